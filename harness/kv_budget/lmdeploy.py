"""LMDeploy, PyTorch engine: ``--cache-max-entry-count`` is a share of what is free after the
weights and a reserve for the prefill are off.

Read in the wheels of 0.6.4, 0.6.5, 0.7.0.post3 to 0.7.3, 0.8.0, 0.9.0 to 0.9.2, 0.10.0 to 0.10.2,
0.11.0, 0.11.1, 0.12.0, 0.12.3 and 0.13.0 to 0.18.0. The arithmetic changed four times:

* 0.9.2: the reserve counts logits in half precision for the prefill and two batches, where before
  it counted 7 bytes per token and word. The longest prompt is one block shorter than the cache,
  or than the context where that is shorter.
* 0.10.0: the context is not shortened.
* 0.11.1: a second block is kept for dummy input; tensors of a block are padded to 256 bytes.
* 0.13.0: whole-number division instead of floating point; 2 blocks or fewer are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import ClassVar

from mmrepro.errors import UsageError
from mmrepro.kv_budget.base import UNLIMITED, Budget, MemoryPlan, Source, too_old
from mmrepro.kv_budget.geometry import Geometry
from packaging.version import Version

OLDEST = "0.6.4"
NEWEST = "0.18.0"
BLOCK_SIZE = 64
"""Default of ``--cache-block-seq-len`` (lmdeploy 0.6.4 messages.py:268)."""
MAX_PREFILL_TOKENS = 8192
"""Default of ``--max-prefill-token-num`` (lmdeploy 0.6.4 cli/utils.py:472)."""
MAX_BATCHES = 128
"""Default of ``--max-batch-size`` on a device that is not in LMDeploy's list (0.10.0 utils.py:348);
384 on an A100, 1024 on an H100 or H200 (utils.py:340)."""
MIN_BLOCKS = 16
"""With fewer the prefill batch is halved, and its reserve with it."""
ALIGNMENT = 256


@dataclass(frozen=True)
class Era:
    """Releases that compute alike.

    Attributes:
        since: the first of them.
        wide_reserve: 7 bytes per token and word; else 2, for two batches more.
        spare_blocks: blocks that no prompt gets.
        whole_division: bytes are truncated before they are divided.
        fewest_blocks: with that many or fewer the engine does not start.
        aligned: each tensor of a block is padded to 256 bytes.
    """

    since: str
    wide_reserve: bool
    spare_blocks: int
    whole_division: bool
    fewest_blocks: int
    aligned: bool
    sources: tuple[Source, ...]
    shortens_context: bool = False
    """A block is taken off a context that is shorter than the cache, too."""


def _at(release: str, file: str, line: int, says: str) -> Source:
    return Source("InternLM/lmdeploy", release, file, line, says)


_WIDE = "reserve = int(prefill tokens x vocabulary x 7), halved until 16 blocks fit"
_HALF = "reserve = int((prefill tokens + 2 x batches) x vocabulary x 2), halved until 16 blocks fit"
_FLOAT = "blocks = int((free - reserve) x cache_max_entry_count / block bytes)"
_WHOLE = "blocks = int((free - reserve) x cache_max_entry_count) // block bytes; more than 2"
_PLAIN = "block bytes = layers x (keys + values + their scales and zeros)"
_ALL = "longest prompt = blocks x block size"
_LESS_1 = "longest prompt = (blocks - 1) x block size"
_LESS_2 = "longest prompt = (blocks - 1 - kept) x block size"
_DUMMY = "one block is kept for dummy input"
_PADDED = "block bytes = layers x the same, each tensor padded to 256 bytes"

ERAS: tuple[Era, ...] = (
    Era("0.6.4", True, 0, False, 0, False, (
        _at("0.6.4", "pytorch/engine/model_agent.py", 50, _WIDE),
        _at("0.6.4", "pytorch/engine/cache_engine.py", 323, _PLAIN),
        _at("0.6.4", "pytorch/engine/model_agent.py", 103, _FLOAT),
        _at("0.6.4", "pytorch/engine/engine.py", 270, _ALL),
    )),
    Era("0.7.2", True, 0, False, 0, False, (
        _at("0.7.2", "pytorch/engine/executor/base.py", 95, _WIDE),
        _at("0.7.2", "pytorch/engine/cache_engine.py", 305, _PLAIN),
        _at("0.7.2", "pytorch/engine/executor/base.py", 138, _FLOAT),
        _at("0.7.2", "pytorch/engine/engine.py", 242, _ALL),
    )),
    Era("0.9.2", False, 1, False, 0, False, (
        _at("0.9.2", "pytorch/engine/executor/base.py", 125, _HALF),
        _at("0.9.2", "pytorch/engine/cache_engine.py", 314, _PLAIN),
        _at("0.9.2", "pytorch/engine/executor/base.py", 169, _FLOAT),
        _at("0.9.2", "pytorch/engine/engine.py", 485, _LESS_1),
    ), shortens_context=True),
    Era("0.10.0", False, 1, False, 0, False, (
        _at("0.10.0", "pytorch/engine/executor/base.py", 138, _HALF),
        _at("0.10.0", "pytorch/engine/cache_engine.py", 317, _PLAIN),
        _at("0.10.0", "pytorch/engine/executor/base.py", 182, _FLOAT),
        _at("0.10.0", "pytorch/engine/engine.py", 491, _LESS_1),
    )),
    Era("0.11.1", False, 2, False, 0, True, (
        _at("0.11.1", "pytorch/engine/executor/base.py", 137, _HALF),
        _at("0.11.1", "pytorch/engine/cache_engine.py", 272, _PADDED),
        _at("0.11.1", "pytorch/engine/executor/base.py", 228, _FLOAT),
        _at("0.11.1", "pytorch/engine/config_builder.py", 69, _DUMMY),
        _at("0.11.1", "pytorch/engine/engine.py", 270, _LESS_2),
    )),
    Era("0.13.0", False, 2, True, 2, True, (
        _at("0.13.0", "pytorch/engine/executor/base.py", 196, _HALF),
        _at("0.13.0", "pytorch/engine/cache_engine.py", 300, _PADDED),
        _at("0.13.0", "pytorch/engine/executor/base.py", 154, _WHOLE),
        _at("0.13.0", "pytorch/engine/config_builder.py", 76, _DUMMY),
        _at("0.13.0", "pytorch/engine/engine.py", 285, _LESS_2),
    )),
    Era("0.18.0", False, 2, True, 2, True, (
        _at("0.18.0", "pytorch/engine/executor/base.py", 232, _HALF),
        _at("0.18.0", "pytorch/engine/cache_engine/layout.py", 62, _PADDED),
        _at("0.18.0", "pytorch/engine/executor/base.py", 190, _WHOLE),
        _at("0.18.0", "pytorch/engine/config_builder.py", 92, _DUMMY),
        _at("0.18.0", "pytorch/engine/engine.py", 336, _LESS_2),
    )),
)  # fmt: skip

INT4, INT8, FP8, FP8_E5M2, TURBO = 4, 8, 16, 17, 42
"""Values of ``--quant-policy`` (lmdeploy 0.18.0 messages.py, ``QuantPolicy``); 0 is none."""
_POLICY_SINCE = {0: "0", INT4: "0", INT8: "0", FP8: "0.14.0", FP8_E5M2: "0.14.0", TURBO: "0.13.0"}


@cache
def era_of(release: str) -> Era:
    """How that release computes; a newer one than was read computes like the newest.

    Raises:
        UsageError: older than 0.6.4.
    """
    version = Version(release)
    known = [era for era in ERAS if Version(era.since) <= version]
    if not known:
        raise too_old("LMDeploy", release, OLDEST)
    return known[-1]


def block_size_of(geometry: Geometry, block_size: int = BLOCK_SIZE) -> int:
    """Tokens a block after LMDeploy's own change for large heads.

    lmdeploy 0.6.4 pytorch/engine/model_agent.py:83: keys of 512 elements or more (MLA) get blocks
    of 32. Not so with FlashMLA (0.7.2 and later, when it is installed on a Hopper GPU), which is
    not considered here.
    """
    return 32 if geometry.k_dim >= 512 and block_size > 32 else block_size


def block_bytes_of(
    geometry: Geometry,
    release: str = OLDEST,
    *,
    tp: int = 1,
    quant_policy: int = 0,
    block_size: int = BLOCK_SIZE,
) -> int:
    """Bytes of one block on one device: ``cache_block_size`` in LMDeploy's words.

    Quantised keys and values carry a scale and a zero per token and head in the model's own type
    (lmdeploy 0.6.4 pytorch/engine/cache_engine.py:308); FP8 carries none (0.14.0 :289).

    Args:
        block_size: as asked for; ``block_size_of`` is applied.
        quant_policy: 0, 4 or 8; 42 (TurboQuant) since 0.13.0, 16 and 17 (FP8) since 0.14.0.

    Raises:
        UsageError: LMDeploy refuses that combination, or did not know it in that release.
    """
    if quant_policy not in _POLICY_SINCE:
        raise UsageError(
            f"LMDeploy has no KV quantisation {quant_policy}; it has 0, 4, 8, 16, 17 and 42."
        )
    if Version(release) < Version(_POLICY_SINCE[quant_policy]):
        raise UsageError(
            f"LMDeploy has KV quantisation {quant_policy} since "
            f"{_POLICY_SINCE[quant_policy]}, not in {release}."
        )
    tokens = block_size_of(geometry, block_size)
    heads = heads_per_device(geometry, release, tp)
    k_dim, v_dim = dims_of(geometry, release)
    per_element = 1 if quant_policy else geometry.dtype_bytes
    k_share, v_share = {INT4: (2, 2), TURBO: (2, 4)}.get(quant_policy, (1, 1))
    if k_dim % k_share or v_dim % v_share:
        raise UsageError(
            f"LMDeploy cannot pack heads of {k_dim} elements with KV quantisation {quant_policy}."
        )
    tensors = [
        tokens * heads * (k_dim // k_share) * per_element,
        tokens * heads * (v_dim // v_share) * per_element,
    ]
    if quant_policy in (INT4, INT8, TURBO):
        pair = tokens * heads * 2 * geometry.dtype_bytes
        tensors += [pair, pair // 2 if quant_policy == TURBO else pair]
    if era_of(release).aligned:
        tensors = [-(-size // ALIGNMENT) * ALIGNMENT for size in tensors]
    return geometry.layers * sum(tensors)


def heads_per_device(geometry: Geometry, release: str, tp: int) -> int:
    """KV heads that one of ``tp`` devices keeps.

    With more devices than heads each head is kept several times since 0.6.5
    (pytorch/configurations/default.py, ``update_num_kv_heads``); before, LMDeploy refuses.

    Raises:
        UsageError: the heads do not divide.
    """
    heads = geometry.kv_heads
    if geometry.mla:
        return 1
    replicates = Version(release) >= Version("0.6.5") and tp > heads and tp % heads == 0
    if heads % tp and not replicates:
        raise UsageError(f"LMDeploy {release} cannot divide {heads} KV heads among {tp} devices.")
    return max(heads // tp, 1)


def dims_of(geometry: Geometry, release: str) -> tuple[int, int]:
    """Elements of a key and a value as that release sees them.

    Before 0.7.0 only the builder of Gemma reads ``head_dim`` (0.6.4
    pytorch/configurations/default.py:17 divides the hidden size by the heads).
    """
    if (
        Version(release) < Version("0.7.0")
        and not geometry.mla
        and geometry.plain_head_dim
        and geometry.model_type not in ("gemma", "gemma2")
    ):
        return geometry.plain_head_dim, geometry.plain_head_dim
    return geometry.k_dim, geometry.v_dim


@dataclass(frozen=True)
class LmdeployPlan(MemoryPlan):
    """LMDeploy's PyTorch engine on one device.

    Attributes:
        release: of LMDeploy.
        free: bytes free once the weights are loaded, the smallest of all ranks: what
            ``torch.cuda.mem_get_info`` says then.
        bytes_per_block: see ``block_bytes_of``.
        tokens_per_block: see ``block_size_of``.
        runtime: bytes of the reserve when they are known; None to let LMDeploy's own rule find
            them from ``vocab_size``.
        session_len: the server's ``--session-len`` or the model's context; 0 for none.
        window: the model's sliding window; 0 for none.
    """

    release: str
    free: int
    bytes_per_block: int
    tokens_per_block: int = BLOCK_SIZE
    runtime: int | None = None
    vocab_size: int = 0
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    max_batches: int = MAX_BATCHES
    session_len: int = 0
    window: int = 0

    engine: ClassVar[str] = "lmdeploy"
    setting_name: ClassVar[str] = "cache-max-entry-count"
    # lmdeploy 0.6.4 messages.py:286: assert 0 < cache_max_entry_count < 1
    top_included: ClassVar[bool] = False

    @property
    def era(self) -> Era:
        return era_of(self.release)

    @property
    def default(self) -> Decimal | None:
        return Decimal("0.8")  # lmdeploy 0.6.4 messages.py:266, 0.18.0 messages.py:555

    @property
    def formula_release(self) -> str:
        return self.era.since

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.era.sources

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_block

    @property
    def block_size(self) -> int:
        return self.tokens_per_block

    def blocks_for(self, tokens: int) -> int:
        needed = -(-tokens // self.tokens_per_block) + self.era.spare_blocks
        return max(needed, self.era.fewest_blocks + 1)

    def reserve(self, share: float) -> tuple[int, int]:
        """(bytes set aside, prefill tokens left) by LMDeploy's own rule at that setting.

        Raises:
            _TooFew: a release that gives up while it looks (0.13.0 and later).
        """
        tokens, size = self.max_prefill_tokens, 0
        while tokens > 0:
            if self.era.wide_reserve:
                size = tokens * self.vocab_size * 7
            else:
                size = (tokens + self.max_batches * 2) * self.vocab_size * 2
            available = int((self.free - size) * share)
            blocks = available // self.bytes_per_block
            if self.era.fewest_blocks and blocks <= self.era.fewest_blocks:
                raise _TooFew
            if blocks >= MIN_BLOCKS:
                break
            tokens //= 2
        return size, tokens

    def forward(self, setting: Decimal) -> Budget:
        share = float(setting)  # what argparse's type=float makes of it
        notes: tuple[str, ...] = ()
        if self.runtime is None:
            try:
                reserve, tokens = self.reserve(share)
            except _TooFew:
                return self._refused(setting, 0, 0, 0, _NO_CACHE)
            if tokens <= 0:
                return self._refused(setting, 0, reserve, 0, _NO_RUNTIME)
            if tokens != self.max_prefill_tokens:
                notes = (f"LMDeploy lowers max_prefill_token_num to {tokens} by itself",)
        else:
            reserve = self.runtime
        if self.era.whole_division:
            pool = int((self.free - reserve) * share)
            blocks = pool // self.bytes_per_block
        else:
            exact = (self.free - reserve) * share
            pool = int(exact)
            blocks = int(exact / self.bytes_per_block)
        if blocks <= self.era.fewest_blocks:
            return self._refused(setting, pool, reserve, max(blocks, 0), _NO_CACHE)
        if self.runtime is not None and blocks < MIN_BLOCKS:
            notes = (
                f"with fewer than {MIN_BLOCKS} blocks LMDeploy lowers max_prefill_token_num and "
                "sets less aside: give the vocabulary's size instead of the reserve",
            )
        tokens, limited_by = self._longest(blocks)
        return Budget(
            setting=setting,
            pool_bytes=pool,
            reserve_bytes=reserve,
            blocks=blocks,
            block_size=self.tokens_per_block,
            max_tokens=tokens,
            limited_by=limited_by,
            notes=notes,
        )

    def _longest(self, blocks: int) -> tuple[int, str]:
        """Tokens of the longest prompt, and what limits it (``_get_max_session_len``)."""
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

    def _refused(
        self, setting: Decimal, pool: int, reserve: int, blocks: int, words: str
    ) -> Budget:
        return Budget(
            setting=setting,
            pool_bytes=pool,
            reserve_bytes=reserve,
            blocks=blocks,
            block_size=self.tokens_per_block,
            max_tokens=0,
            refusal=words,
        )


_NO_CACHE = "No enough gpu memory for kv cache."
_NO_RUNTIME = "No enough gpu memory for runtime."


class _TooFew(Exception):
    pass
