"""vLLM (V1): ``--gpu-memory-utilization`` is a share of the whole device; weights, activations and
everything else come out of it first, the rest is KV cache.

Read in the wheels of 0.11.0, 0.13.0 to 0.20.0 and 0.22.0 to 0.32.0. The arithmetic is the same in
all; what changed is rounding (0.14.0), what is counted as used (since 0.21.0 CUDA graphs are
estimated and taken off as well: 0.23.0 v1/worker/gpu_worker.py:464) and the check at the start:
until 0.28.0 it forgot that one block, the null block, is given to nobody. A server whose blocks
just hold its context then starts, and a request that needs the last block waits for ever; 0.29.0
and later refuse to start (v1/core/kv_cache_utils.py:975). Seen on 0.23.0: docs/kv-budget.md.

On the CPU backend there is no profile: the pool is ``VLLM_CPU_KVCACHE_SPACE`` GiB, or
``--kv-cache-memory-bytes`` (0.23.0 platforms/cpu.py:136). Without either the flag named for GPUs is
a share of the machine's memory less the process's own (0.20.0 and later, v1/worker/cpu_worker.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from mmrepro.kv_budget.base import Budget, MemoryPlan, Source, too_old
from mmrepro.kv_budget.geometry import Geometry
from packaging.version import Version

OLDEST = "0.11.0"
NEWEST = "0.32.0"
BLOCK_SIZE = 16
CPU_BLOCK_SIZE = 128
"""vllm 0.23.0 platforms/cpu.py:125; 16 before, unless the user gave one."""
GIB = 1 << 30

_ROUNDS_UP = Version("0.14.0")
_NEW_DEFAULT = Version("0.20.0")
_CONCURRENCY_LOG = Version("0.22.0")
_COUNTS_NULL_BLOCK = Version("0.29.0")

KV_BYTES = {"auto": 0, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float16": 2, "bfloat16": 2}
"""Bytes of an element by ``--kv-cache-dtype``; 0 for the model's own. Formats that pack or carry
scales (nvfp4, turboquant, int8 per head) are not considered here."""


def _at(release: str, file: str, line: int, says: str) -> Source:
    return Source("vllm-project/vllm", release, file, line, says)


_REST = "pool = int(budget - everything else)"
_BLOCK = "block bytes = layers x block size x KV heads x (key + value elements) x bytes each"
_NULL = "the first block is kept as the null block: no request gets it"
_NEED = "refuses to start unless blocks for max_model_len fit"
_SPACE = "pool = VLLM_CPU_KVCACHE_SPACE x 2^30"
_POOL_SOURCES = (
    _at("0.23.0", "v1/kv_cache_interface.py", 309, _BLOCK),
    _at("0.23.0", "v1/core/kv_cache_utils.py", 731, _NEED),
    _at("0.23.0", "v1/core/kv_cache_utils.py", 967, "blocks = pool // page // layers"),
    _at("0.23.0", "v1/core/block_pool.py", 176, _NULL),
)
_NEW_POOL_SOURCES = (
    _at("0.32.0", "v1/kv_cache_interface.py", 553, _BLOCK),
    _at("0.32.0", "v1/core/kv_cache_utils.py", 2627, _NEED + ", and the null block"),
    _at("0.32.0", "v1/core/kv_cache_utils.py", 1627, "blocks = pool // bytes of a block"),
    _at("0.32.0", "v1/core/block_pool.py", 185, _NULL),
)


def block_bytes_of(
    geometry: Geometry, *, tp: int = 1, kv_dtype: str = "auto", block_size: int = BLOCK_SIZE
) -> int:
    """Bytes of one block over all layers on one device: pages of ``FullAttentionSpec``.

    vllm 0.23.0 v1/kv_cache_interface.py:309 (:379 for MLA, which keeps one head). With more
    devices than KV heads each device keeps one (0.32.0 config/model.py:1670).

    Raises:
        UsageError: an unknown type, or layers that vLLM sizes group by group.
    """
    return block_size * geometry.token_bytes("vLLM", tp, kv_dtype, KV_BYTES)


@dataclass(frozen=True)
class _Pool(MemoryPlan):
    """What a pool of bytes becomes: the same on every device.

    Attributes:
        release: of vLLM.
        bytes_per_block: see ``block_bytes_of``.
        tokens_per_block: ``--block-size``.
        max_model_len: 0 when not given; with it vLLM refuses a pool that cannot hold so much.
    """

    release: str
    bytes_per_block: int
    tokens_per_block: int = BLOCK_SIZE
    max_model_len: int = 0

    engine: ClassVar[str] = "vllm"

    def __post_init__(self) -> None:
        if Version(self.release) < Version(OLDEST):
            raise too_old("vLLM", self.release, OLDEST)

    @property
    def formula_release(self) -> str:
        version = Version(self.release)
        return next((str(v) for v in (_COUNTS_NULL_BLOCK, _ROUNDS_UP) if version >= v), OLDEST)

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_block

    @property
    def block_size(self) -> int:
        return self.tokens_per_block

    def blocks_for(self, tokens: int) -> int:
        """Blocks to run a prompt, the null block included."""
        return -(-tokens // self.tokens_per_block) + 1

    def _pooled(self, setting: Decimal, pool: int, reserve: int) -> Budget:
        blocks = max(pool // self.bytes_per_block, 0)
        refusal = self._refusal(pool)
        tokens, limited_by = max(blocks - 1, 0) * self.tokens_per_block, "kv"
        notes: tuple[str, ...] = ()
        if 0 < self.max_model_len <= tokens:
            # The last token of a context has to be generated.
            tokens, limited_by = self.max_model_len - 1, "context"
        elif self.max_model_len and not refusal:
            notes = (
                f"vLLM starts, but a request of more than {tokens} tokens waits for ever: the "
                "check at the start does not count the null block (0.29.0 and later do)",
            )
        return Budget(
            setting=setting,
            pool_bytes=pool,
            reserve_bytes=reserve,
            blocks=blocks,
            block_size=self.tokens_per_block,
            max_tokens=0 if refusal else tokens,
            limited_by=limited_by,
            refusal=refusal,
            notes=notes,
            log="" if refusal else self._log(blocks),
        )

    def _refusal(self, pool: int) -> str:
        if pool <= 0:
            return "No available memory for the cache blocks."
        need = -(-self.max_model_len // self.tokens_per_block) * self.bytes_per_block
        held_back = self.bytes_per_block if Version(self.release) >= _COUNTS_NULL_BLOCK else 0
        if self.max_model_len and need > pool - held_back:
            return (
                "To serve at least one request with the model's max seq len "
                f"({self.max_model_len}), {need / GIB:.2f} GiB KV cache is needed."
            )
        if pool < self.bytes_per_block:
            return "No available memory for the cache blocks."
        return ""

    def _log(self, blocks: int) -> str:
        tokens = blocks * self.tokens_per_block
        if self.max_model_len and Version(self.release) >= _CONCURRENCY_LOG:
            each = -(-self.max_model_len // self.tokens_per_block)
            tokens = int(blocks / each * self.max_model_len)
        return f"GPU KV cache size: {tokens:,} tokens"


@dataclass(frozen=True)
class VllmPlan(_Pool):
    """vLLM on a GPU.

    Attributes:
        total: bytes of the device.
        free: bytes free before vLLM starts; the same as ``total`` on an idle device.
        non_kv: bytes that are not KV cache: weights, peak activation, what other libraries took,
            CUDA graphs (since 0.21.0). vLLM logs them at the debug level; weights alone at info.
    """

    total: int = 0
    free: int = 0
    non_kv: int = 0

    setting_name: ClassVar[str] = "gpu-memory-utilization"

    @property
    def default(self) -> Decimal | None:
        """vllm 0.19.0 config/cache.py:41, 0.20.0 config/cache.py:66; above 0, at most 1."""
        return Decimal("0.92" if Version(self.release) >= _NEW_DEFAULT else "0.9")

    @property
    def sources(self) -> tuple[Source, ...]:
        if Version(self.release) < _ROUNDS_UP:
            return (
                _at("0.11.0", "v1/worker/gpu_worker.py", 183, "budget = total x utilization"),
                _at("0.11.0", "v1/worker/gpu_worker.py", 279, _REST),
                _at("0.11.0", "v1/kv_cache_interface.py", 66, _BLOCK),
                _at("0.11.0", "v1/core/kv_cache_utils.py", 824, "blocks = pool // page // layers"),
                _at("0.11.0", "v1/core/block_pool.py", 157, _NULL),
            )  # fmt: skip
        if Version(self.release) < _COUNTS_NULL_BLOCK:
            return (
                _at("0.23.0", "v1/worker/utils.py", 410, "budget = ceil(total x utilization)"),
                _at("0.23.0", "v1/worker/gpu_worker.py", 461, _REST),
                *_POOL_SOURCES,
            )
        return (
            _at("0.32.0", "v1/worker/utils.py", 724, "budget = ceil(total x utilization)"),
            _at("0.32.0", "v1/worker/gpu_worker.py", 740, _REST),
            *_NEW_POOL_SOURCES,
        )

    def forward(self, setting: Decimal) -> Budget:
        budget: float = self.total * float(setting)
        if Version(self.release) >= _ROUNDS_UP:
            budget = math.ceil(budget)
        pool = int(budget - self.non_kv)
        if self.free < budget:
            return Budget(
                setting=setting,
                pool_bytes=pool,
                reserve_bytes=self.non_kv,
                blocks=0,
                block_size=self.tokens_per_block,
                max_tokens=0,
                refusal="Free memory on device on startup is less than desired GPU memory "
                "utilization.",
            )
        return self._pooled(setting, pool, self.non_kv)


@dataclass(frozen=True)
class VllmCpuPlan(_Pool):
    """vLLM on its CPU backend: the setting is the pool itself, in whole GiB."""

    tokens_per_block: int = CPU_BLOCK_SIZE

    setting_name: ClassVar[str] = "VLLM_CPU_KVCACHE_SPACE"
    top: ClassVar[Decimal] = Decimal(1024)
    whole: ClassVar[bool] = True

    @property
    def default(self) -> Decimal | None:
        return None

    @property
    def sources(self) -> tuple[Source, ...]:
        if Version(self.release) < _COUNTS_NULL_BLOCK:
            return (_at("0.23.0", "platforms/cpu.py", 136, _SPACE), *_POOL_SOURCES)
        return (_at("0.32.0", "platforms/cpu.py", 326, _SPACE), *_NEW_POOL_SOURCES)

    def forward(self, setting: Decimal) -> Budget:
        return self._pooled(setting, int(setting) * GIB, 0)
