"""The engines' arithmetic with the terms of an era: LMDeploy, vLLM and SGLang.

* LMDeploy's ``--cache-max-entry-count`` is a share of what is free after the weights
  and a reserve for the prefill are off.
* vLLM's ``--gpu-memory-utilization`` is a share of the whole device; weights,
  activations and everything else come out of it first, the rest is KV cache.
* SGLang's ``--mem-fraction-static`` is the share of the device for weights and KV cache
  together; what the rest takes is subtracted from what is free once the weights are
  loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from mmrepro.base.errors import UsageError
from mmrepro.base.units import GIB
from mmrepro.kv_budget.base import UNLIMITED, Budget, MemoryPlan
from mmrepro.kv_budget.eras import LMDEPLOY, SGLANG, VLLM, VLLM_CPU
from mmrepro.kv_budget.groups import CacheGroup, CacheLayout
from mmrepro.kv_budget.layers import FULL, LayerKind
from mmrepro.kv_budget.model import Geometry
from packaging.version import Version

# ------------------------------------------------------------------ LMDeploy

MAX_PREFILL_TOKENS = 8192
"""Default of ``--max-prefill-token-num`` (lmdeploy 0.6.4 cli/utils.py:472)."""
MAX_BATCHES = 128
"""Default of ``--max-batch-size`` on a device that is not in LMDeploy's list (0.10.0
utils.py:348); 384 on an A100, 1024 on an H100 or H200 (utils.py:340)."""
_MIN_BLOCKS = 16
"""With fewer the prefill batch is halved, and its reserve with it."""
_ALIGNMENT = 256

INT4, INT8, FP8, FP8_E5M2, TURBO = 4, 8, 16, 17, 42
"""Values of ``--quant-policy`` (lmdeploy 0.18.0 messages.py, ``QuantPolicy``); 0 is
none."""
_POLICY_SINCE = {
    0: "0",
    INT4: "0",
    INT8: "0",
    FP8: "0.14.0",
    FP8_E5M2: "0.14.0",
    TURBO: "0.13.0",
}
_NO_CACHE = "No enough gpu memory for kv cache."
_NO_RUNTIME = "No enough gpu memory for runtime."


def block_size_of(geometry: Geometry, block_size: int = LMDEPLOY.block_size) -> int:
    """Tokens a block after LMDeploy's own change for large heads.

    lmdeploy 0.6.4 pytorch/engine/model_agent.py:83: keys of 512 elements or more (MLA)
    get blocks of 32. Not so with FlashMLA (0.7.2 and later, when it is installed on a
    Hopper GPU), which is not considered here."""
    return 32 if geometry.k_dim >= 512 and block_size > 32 else block_size


def block_bytes_of(
    geometry: Geometry,
    release: str = LMDEPLOY.release,
    *,
    tp: int = 1,
    quant_policy: int = 0,
    block_size: int = LMDEPLOY.block_size,
) -> int:
    """Bytes of one block on one device: LMDeploy's ``cache_block_size``.

    Quantised keys and values carry a scale and a zero per token and head in the model's
    own type (lmdeploy 0.6.4 pytorch/engine/cache_engine.py:308); FP8 carries none
    (0.14.0 :289).

    Args:
        block_size: as asked for; ``block_size_of`` is applied.
        quant_policy: 0, 4 or 8; 42 (TurboQuant) since 0.13.0, 16 and 17 (FP8) since
            0.14.0.

    Raises:
        UsageError: LMDeploy refuses that combination, or did not know it in that
            release.
    """
    if quant_policy not in _POLICY_SINCE:
        raise UsageError(
            f"LMDeploy has no KV quantisation {quant_policy}; it has 0, 4, 8, 16, 17 "
            "and 42."
        )

    if Version(release) < Version(_POLICY_SINCE[quant_policy]):
        raise UsageError(
            f"LMDeploy has KV quantisation {quant_policy} since "
            f"{_POLICY_SINCE[quant_policy]}, not in {release}."
        )

    if geometry.odd or any(kind.state for layer in geometry.kinds for kind in layer):
        why = geometry.odd or "some layers of this model keep states"
        raise UsageError(
            f"There is no formula here for LMDeploy: {why}. Give --block-bytes instead."
        )

    rows = block_size_of(geometry, block_size) * _heads_per_device(
        geometry, release, tp
    )
    k_dim, v_dim = _dims_of(geometry, release)
    per_element = 1 if quant_policy else geometry.dtype_bytes
    k_share, v_share = {INT4: (2, 2), TURBO: (2, 4)}.get(quant_policy, (1, 1))
    if k_dim % k_share or v_dim % v_share:
        raise UsageError(
            f"LMDeploy cannot pack heads of {k_dim} elements with KV quantisation "
            f"{quant_policy}."
        )

    tensors = [
        rows * (k_dim // k_share) * per_element,
        rows * (v_dim // v_share) * per_element,
    ]
    if quant_policy in (INT4, INT8, TURBO):
        pair = rows * 2 * geometry.dtype_bytes
        tensors += [pair, pair // 2 if quant_policy == TURBO else pair]

    if LMDEPLOY.era(release).aligned:
        tensors = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in tensors]
    return geometry.layers * sum(tensors)


def _heads_per_device(geometry: Geometry, release: str, tp: int) -> int:
    """KV heads that one of ``tp`` devices keeps.

    With more devices than heads each head is kept several times since 0.6.5
    (pytorch/configurations/default.py, ``update_num_kv_heads``); before, LMDeploy
    refuses."""
    heads = geometry.kv_heads
    if geometry.mla:
        return 1
    replicates = Version(release) >= Version("0.6.5") and tp > heads and tp % heads == 0
    if heads % tp and not replicates:
        raise UsageError(
            f"LMDeploy {release} cannot divide {heads} KV heads among {tp} devices."
        )

    return max(heads // tp, 1)


def _dims_of(geometry: Geometry, release: str) -> tuple[int, int]:
    """Elements of a key and a value as that release counts them.

    Before 0.7.0 only the builder of Gemma reads ``head_dim`` (0.6.4
    pytorch/configurations/default.py:17 divides the hidden size by the heads).
    """
    reads = Version(release) >= Version("0.7.0") or geometry.model_type in (
        "gemma",
        "gemma2",
    )
    if reads or geometry.mla or not geometry.plain_head_dim:
        return geometry.k_dim, geometry.v_dim
    return geometry.plain_head_dim, geometry.plain_head_dim


@dataclass(frozen=True)
class LmdeployPlan(MemoryPlan):
    """LMDeploy's PyTorch engine on one device.

    Attributes:
        free: bytes free once the weights are loaded, the smallest of all ranks: what
            ``torch.cuda.mem_get_info`` returns then.
        bytes_per_block: see ``block_bytes_of``.
        tokens_per_block: see ``block_size_of``.
        runtime: bytes of the reserve when they are known; None to let LMDeploy's own
            rule find them from ``vocab_size``.
        session_len: the server's ``--session-len`` or the model's context; 0 for none.
        window: the model's sliding window; 0 for none.
    """

    release: str
    free: int
    bytes_per_block: int
    tokens_per_block: int = LMDEPLOY.block_size
    runtime: int | None = None
    vocab_size: int = 0
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    max_batches: int = MAX_BATCHES
    session_len: int = 0
    window: int = 0

    engine = LMDEPLOY

    def reserve(self, share: float) -> tuple[int, int]:
        """(bytes set aside, prefill tokens left) by LMDeploy's own rule at that
        setting.

        Raises:
            _TooFew: a release that gives up while it looks (0.13.0 and later).
        """
        each, batches = self.era.reserve
        tokens, size = self.max_prefill_tokens, 0
        while tokens > 0:
            size = (tokens + self.max_batches * batches) * self.vocab_size * each
            blocks = int((self.free - size) * share) // self.bytes_per_block
            if self.era.fewest_blocks and blocks <= self.era.fewest_blocks:
                raise _TooFew
            if blocks >= _MIN_BLOCKS:
                break
            tokens //= 2

        return size, tokens

    def forward(self, setting: Decimal) -> Budget:
        share = float(setting)  # what argparse's type=float makes of it
        notes: tuple[str, ...] = ()
        reserve = self.runtime
        if reserve is None:
            try:
                reserve, tokens = self.reserve(share)
            except _TooFew:
                return self._budget(setting, 0, 0, refusal=_NO_CACHE)
            if tokens <= 0:
                return self._budget(setting, 0, reserve, refusal=_NO_RUNTIME)
            if tokens != self.max_prefill_tokens:
                notes = (
                    f"LMDeploy lowers max_prefill_token_num to {tokens} by itself",
                )

        exact = (self.free - reserve) * share
        # A float divided as such is not the same number of blocks as its whole bytes
        # divided.
        whole = self.era.whole_division
        blocks = (
            int(exact) // self.bytes_per_block
            if whole
            else int(exact / self.bytes_per_block)
        )
        if blocks <= self.era.fewest_blocks:
            return self._budget(
                setting, int(exact), reserve, max(blocks, 0), refusal=_NO_CACHE
            )

        if self.runtime is not None and blocks < _MIN_BLOCKS:
            notes = (
                f"with fewer than {_MIN_BLOCKS} blocks LMDeploy lowers "
                "max_prefill_token_num and sets less aside: give the vocabulary's size "
                "instead of the reserve",
            )

        tokens, limit = self._longest(blocks)
        return self._budget(
            setting, int(exact), reserve, blocks, tokens, limited_by=limit, notes=notes
        )

    def _longest(self, blocks: int) -> tuple[int, str]:
        """Tokens of the longest prompt, and what limits it
        (``_get_max_session_len``)."""
        reserved = max(self.era.spare_blocks - 1, 0)
        tokens = (blocks - reserved) * self.tokens_per_block
        limited_by = "kv"
        if 0 < self.window <= tokens:
            tokens, limited_by = UNLIMITED, "window"
        if self.era.spare_blocks:
            tokens -= self.tokens_per_block
        spare = self.tokens_per_block if self.era.shortens_context else 0
        if 0 < self.session_len < tokens + spare:
            tokens, limited_by = self.session_len - spare, "context"
        return max(tokens, 0), limited_by


class _TooFew(Exception):
    pass


# ------------------------------------------------------------------ vLLM

_CONCURRENCY_LOG = Version("0.22.0")
"""Since then the log counts what requests of ``max_model_len`` use."""


class _VllmPool(MemoryPlan):
    """What a pool of bytes becomes: the same on every device.

    Attributes:
        max_model_len: 0 when not given; with it vLLM refuses a pool that cannot hold so
            much.
        layout: of layers of several kinds; None: one group of full attention.
    """

    max_model_len: int
    layout: CacheLayout | None

    @cached_property
    def cut(self) -> CacheLayout:
        """How the pool is cut into blocks."""
        size = self.tokens_per_block
        return self.layout or CacheLayout(
            self.bytes_per_block, size, (CacheGroup(LayerKind(FULL), size),)
        )

    @property
    def groups(self) -> list[dict[str, object]]:
        return [one.facts for one in self.layout.groups] if self.layout else []

    def blocks_for(self, tokens: int, requests: int = 1) -> int:
        return requests * self.cut.pages(tokens) + self.era.spare_blocks

    def _pooled(self, setting: Decimal, pool: int, reserve: int) -> Budget:
        blocks = max(pool // self.bytes_per_block, 0)
        refusal = self._refusal(pool)
        tokens = self.cut.longest(blocks - self.era.spare_blocks)
        limited_by = "kv"
        notes = self.cut.notes
        if 0 < self.max_model_len <= tokens:
            # The last token of a context has to be generated.
            tokens, limited_by = self.max_model_len - 1, "context"
        elif self.max_model_len and not refusal:
            notes = (
                *notes,
                f"vLLM starts, but a request of more than {tokens} tokens waits for "
                "ever: the check at the start does not count the null block (0.29.0 "
                "and later do)",
            )

        return self._budget(
            setting,
            pool,
            reserve,
            blocks,
            tokens,
            limited_by=limited_by,
            refusal=refusal,
            notes=notes,
            log=self._log(blocks),
            concurrency=self.at_once(blocks),
        )

    def at_once(self, blocks: int) -> float | None:
        """Requests of the whole context, as vLLM counts them."""
        return (
            blocks / self.cut.pages(self.max_model_len) if self.max_model_len else None
        )

    def _refusal(self, pool: int) -> str:
        need = self.cut.pages(self.max_model_len) * self.bytes_per_block
        held_back = self.bytes_per_block if self.era.checks_spare else 0
        if 0 < pool < need + held_back and self.max_model_len:
            return (
                "To serve at least one request with the model's max seq len "
                f"({self.max_model_len}), {need / GIB:.2f} GiB KV cache is needed."
            )
        fits = pool >= self.bytes_per_block
        return "" if fits else "No available memory for the cache blocks."

    def _log(self, blocks: int) -> str:
        several = self.at_once(blocks)
        if several is None or Version(self.release) < _CONCURRENCY_LOG:
            return f"GPU KV cache size: {blocks * self.tokens_per_block:,} tokens"
        line = f"{int(several * self.max_model_len):,} tokens"
        if not self.era.names_device:
            return f"GPU KV cache size: {line}"
        device = "CPU" if self.engine is VLLM_CPU else "GPU"
        return (
            f"{device} KV cache size: {line}, Maximum concurrency for "
            f"{self.max_model_len:,} "
            f"tokens per request: {several:.2f}x"
        )


@dataclass(frozen=True)
class VllmPlan(_VllmPool):
    """vLLM on a GPU.

    Attributes:
        bytes_per_block: ``Geometry.token_bytes`` times ``tokens_per_block``, which is
            the page of ``FullAttentionSpec`` (0.23.0 v1/kv_cache_interface.py:309, :379
            for MLA).
        tokens_per_block: ``--block-size``.
        total: bytes of the device.
        free: bytes free before vLLM starts; the same as ``total`` on an idle device.
        non_kv: bytes that are not KV cache: weights, peak activation, what other
            libraries took, CUDA graphs (since 0.21.0). vLLM logs them at the debug
            level; weights alone at info.
    """

    release: str
    bytes_per_block: int
    tokens_per_block: int = VLLM.block_size
    max_model_len: int = 0
    total: int = 0
    free: int = 0
    non_kv: int = 0
    layout: CacheLayout | None = None

    engine = VLLM

    def forward(self, setting: Decimal) -> Budget:
        budget: float = self.total * float(setting)
        if self.era.rounds_up:
            budget = math.ceil(budget)
        pool = int(budget - self.non_kv)
        if self.free < budget:
            refusal = (
                "Free memory on device on startup is less than desired GPU memory "
            )
            return self._budget(
                setting, pool, self.non_kv, refusal=refusal + "utilization."
            )
        return self._pooled(setting, pool, self.non_kv)


@dataclass(frozen=True)
class VllmCpuPlan(_VllmPool):
    """vLLM on its CPU backend: the setting is the pool itself, in whole GiB."""

    release: str
    bytes_per_block: int
    tokens_per_block: int = VLLM_CPU.block_size
    max_model_len: int = 0
    layout: CacheLayout | None = None

    engine = VLLM_CPU

    def forward(self, setting: Decimal) -> Budget:
        return self._pooled(setting, int(setting) * GIB, 0)


# ------------------------------------------------------------------ SGLang

_MARGIN = 7
"""Tokens of the pool that no prompt gets: the longest request is the pool less 1, its
prompt 5 less, and a prompt of exactly that length is refused (0.5.6
managers/tp_worker.py:303, :307 and managers/scheduler.py:1363; so in 0.5.23)."""


@dataclass(frozen=True)
class SglangPlan(MemoryPlan):
    """SGLang on one device.

    SGLang counts in GiB as floating-point numbers and turns the rest into bytes at the
    end.

    Attributes:
        before: bytes free before the weights are loaded, the smallest of all ranks.
        free: bytes free after.
        bytes_per_block: one page: ``cell_size`` (0.5.6
            model_executor/model_runner.py:1417, :1385 for MLA), which is
            ``Geometry.token_bytes``, times ``tokens_per_block``.
        tokens_per_block: ``--page-size``; the pool is a multiple of it.
        context: the model's context length; 0 when not given.
        image_reserve: bytes for image embeddings that 0.5.23 takes off for a multimodal
            model (``SGLANG_VLM_CACHE_SIZE_MB``); ignored by older releases.
        cell: bytes of a token where they are no whole number; 0: those of
            ``bytes_per_block``.
        state: bytes of a request's recurrent states, all layers; 0: it has none.
        state_ratio: ``--mamba-full-memory-ratio``.
    """

    release: str
    before: int
    free: int
    bytes_per_block: int
    tokens_per_block: int = SGLANG.block_size
    context: int = 0
    image_reserve: int = 0
    cell: float = 0.0
    state: int = 0
    state_ratio: float = 0.9

    engine = SGLANG

    def blocks_for(self, tokens: int, requests: int = 1) -> int:
        return -(-(requests * tokens + _MARGIN) // self.tokens_per_block)

    def forward(self, setting: Decimal) -> Budget:
        slack = self.before / GIB * (1 - float(setting))
        rest = self.free / GIB - slack
        reserve = int(slack * GIB)
        if self.era.reserves_images:
            rest -= self.image_reserve / GIB
            reserve += self.image_reserve

        slots = 0
        if self.state:
            share = rest * self.state_ratio / (1 + self.state_ratio) * GIB
            slots = int((share - self.state) // self.state)
            rest -= (slots + 1) * self.state / GIB
            reserve += (slots + 1) * self.state

        page = self.tokens_per_block
        each = self.cell or self.bytes_per_block // page
        whole = self.era.whole_division
        tokens = int(int(rest * GIB) // each) if whole else int(rest * GIB // each)
        tokens = tokens // page * page
        refusal = ""
        if self.state and slots <= 0:
            refusal = (
                "Not enough GPU memory for hybrid (mamba/linear-attention) state cache."
            )
        elif whole and rest <= 0:
            refusal = "Loaded weights leave no GPU memory for the KV cache."
        elif tokens <= 0:
            refusal = "Not enough memory. Please try to increase --mem-fraction-static."

        limited_by = "context" if 0 < self.context < tokens else "kv"
        longest = (self.context if limited_by == "context" else tokens) - _MARGIN
        if longest < 1:
            refusal = refusal or "Memory pool size is too small"
        return self._budget(
            setting,
            int(rest * GIB),
            reserve,
            max(tokens // page, 0),
            longest,
            limited_by=limited_by,
            refusal=refusal,
            log=f"max_total_num_tokens={tokens}",
            notes=(f"{slots:,} slots for states",) if slots else (),
        )
