"""SGLang: ``--mem-fraction-static`` is the share of the device for weights and KV cache together;
what the rest takes is subtracted from what is free once the weights are loaded.

Read in the wheels of 0.5.6, 0.5.17 and 0.5.23. SGLang counts in GiB as floating-point numbers and
turns the rest into bytes at the end; 0.5.6 divides before it truncates, later releases after.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from mmrepro.kv_budget.base import Budget, MemoryPlan, Source, too_old
from mmrepro.kv_budget.geometry import Geometry
from packaging.version import Version

OLDEST = "0.5.6"
NEWEST = "0.5.23"
GIB = 1 << 30
_BYTES_FIRST = Version("0.5.17")
_RESERVES_IMAGES = Version("0.5.23")

KV_BYTES = {"auto": 0, "fp8_e4m3": 1, "fp8_e5m2": 1, "bf16": 2, "bfloat16": 2}
"""Bytes of an element by ``--kv-cache-dtype``; 0 for the model's own. fp4 and mxfp8, which carry
scales, are not considered here."""

MARGIN = 7
"""Tokens of the pool that no prompt gets: the longest request is the pool less 1, its prompt 5
less, and a prompt of exactly that length is refused (0.5.6 managers/tp_worker.py:303, :307 and
managers/scheduler.py:1363; so in 0.5.23)."""


def _at(release: str, file: str, line: int, says: str) -> Source:
    return Source("sgl-project/sglang", release, file, line, says)


_CELL = "token bytes = KV heads x (key + value elements) x layers x bytes each"
_REST = "rest = free after loading - free before loading x (1 - mem_fraction_static), in GiB"
_PROMPT = "longest prompt: min(context, pool) - 1 - 5, itself excluded"


def token_bytes_of(geometry: Geometry, *, tp: int = 1, kv_dtype: str = "auto") -> int:
    """Bytes of one token over all layers on one device: SGLang's ``cell_size``.

    sglang 0.5.6 model_executor/model_runner.py:1417 (:1385 for MLA). With more devices than KV
    heads each device keeps one (configs/model_config.py:506).

    Raises:
        UsageError: an unknown type, or layers that SGLang sizes apart.
    """
    return geometry.token_bytes("SGLang", tp, kv_dtype, KV_BYTES)


@dataclass(frozen=True)
class SglangPlan(MemoryPlan):
    """SGLang on one device.

    Attributes:
        release: of SGLang.
        before: bytes free before the weights are loaded, the smallest of all ranks.
        free: bytes free after.
        bytes_per_token: see ``token_bytes_of``.
        page_size: ``--page-size``; the pool is a multiple of it.
        context: the model's context length; 0 when not given.
        image_reserve: bytes for image embeddings that 0.5.23 takes off for a multimodal model
            (``SGLANG_VLM_CACHE_SIZE_MB``); ignored by older releases.
    """

    release: str
    before: int
    free: int
    bytes_per_token: int
    page_size: int = 1
    context: int = 0
    image_reserve: int = 0

    engine: ClassVar[str] = "sglang"
    setting_name: ClassVar[str] = "mem-fraction-static"
    top_included: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if Version(self.release) < Version(OLDEST):
            raise too_old("SGLang", self.release, OLDEST)

    @property
    def default(self) -> Decimal | None:
        return None  # SGLang works one out from the device and the batch sizes

    @property
    def _version(self) -> Version:
        return Version(self.release)

    @property
    def formula_release(self) -> str:
        for since in (_RESERVES_IMAGES, _BYTES_FIRST):
            if self._version >= since:
                return str(since)
        return OLDEST

    @property
    def sources(self) -> tuple[Source, ...]:
        if self._version < _BYTES_FIRST:
            return (
                _at("0.5.6", "srt/model_executor/model_runner.py", 1417, _CELL),
                _at("0.5.6", "srt/model_executor/model_runner.py", 1442, _REST),
                _at("0.5.6", "srt/model_executor/model_runner.py", 1447,
                    "pool = int(rest x 2^30 // token bytes)"),
                _at("0.5.6", "srt/model_executor/model_runner.py", 1729,
                    "pool = a multiple of the page size"),
                _at("0.5.6", "srt/managers/tp_worker.py", 307, _PROMPT),
            )  # fmt: skip
        if self._version < _RESERVES_IMAGES:
            return (
                _at("0.5.17", "srt/model_executor/pool_configurator.py", 291, _CELL),
                _at("0.5.17", "srt/mem_cache/kv_cache_configurator.py", 1635, _REST),
                _at("0.5.17", "srt/mem_cache/kv_cache_configurator.py", 1657,
                    "bytes = int(rest x 2^30)"),
                _at("0.5.17", "srt/model_executor/pool_configurator.py", 325,
                    "pool = bytes // token bytes, a multiple of the page size"),
                _at("0.5.17", "srt/managers/tp_worker.py", 521, _PROMPT),
            )  # fmt: skip
        return (
            _at("0.5.23", "srt/model_executor/pool_configurator.py", 493, _CELL),
            _at("0.5.23", "srt/mem_cache/kv_cache_configurator.py", 3038,
                _REST + ", less the memory for image embeddings"),
            _at("0.5.23", "srt/mem_cache/kv_cache_configurator.py", 3060,
                "bytes = int(rest x 2^30)"),
            _at("0.5.23", "srt/model_executor/pool_configurator.py", 646,
                "pool = bytes // token bytes, a multiple of the page size"),
            _at("0.5.23", "srt/managers/tp_worker.py", 572, _PROMPT),
        )  # fmt: skip

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.page_size

    @property
    def block_size(self) -> int:
        return self.page_size

    def blocks_for(self, tokens: int) -> int:
        return -(-(tokens + MARGIN) // self.page_size)

    def forward(self, setting: Decimal) -> Budget:
        slack = self.before / GIB * (1 - float(setting))
        rest = self.free / GIB - slack
        reserve = int(slack * GIB)
        if self._version >= _RESERVES_IMAGES:
            rest -= self.image_reserve / GIB
            reserve += self.image_reserve
        if self._version < _BYTES_FIRST:
            tokens = int(rest * GIB // self.bytes_per_token)
        else:
            tokens = int(rest * GIB) // self.bytes_per_token
        tokens = tokens // self.page_size * self.page_size
        refusal = self._refusal(rest, tokens)
        limited_by = "context" if 0 < self.context < tokens else "kv"
        longest = (self.context if limited_by == "context" else tokens) - MARGIN
        if not refusal and longest < 1:
            refusal = "Memory pool size is too small"
        return Budget(
            setting=setting,
            pool_bytes=int(rest * GIB),
            reserve_bytes=reserve,
            blocks=max(tokens // self.page_size, 0),
            block_size=self.page_size,
            max_tokens=0 if refusal else longest,
            limited_by=limited_by,
            refusal=refusal,
            log="" if refusal else f"max_total_num_tokens={tokens}",
        )

    def _refusal(self, rest: float, tokens: int) -> str:
        if self._version >= _BYTES_FIRST and rest <= 0:
            return "Loaded weights leave no GPU memory for the KV cache."
        if tokens <= 0:
            return "Not enough memory. Please try to increase --mem-fraction-static."
        return ""
