"""The eras of the engines: which releases compute alike, by which terms, and where that
was read.

A change of an engine's arithmetic is a row here: ``since``, the terms that differ, and
each formula with its file and line. ``plans`` computes with the terms and has no
release's number of its own.

* LMDeploy, PyTorch engine, read in the wheels of 0.6.4, 0.6.5, 0.7.0.post3 to 0.7.3,
  0.8.0, 0.9.0 to 0.9.2, 0.10.0 to 0.10.2, 0.11.0, 0.11.1, 0.12.0, 0.12.3 and 0.13.0 to
  0.18.0.
* vLLM (V1), read in 0.11.0, 0.13.0 to 0.20.0 and 0.22.0 to 0.33.0. Since 0.21.0 CUDA
  graphs are estimated and count as used (0.23.0 v1/worker/gpu_worker.py:464). How
  layers of several kinds are grouped was read in 0.22.0 to 0.25.0, 0.32.0 and 0.33.0.
* SGLang, read in 0.5.6, 0.5.17 and 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from mmrepro.base.errors import UsageError
from packaging.version import Version


@dataclass(frozen=True)
class FormulaSource:
    """Where a formula was read.

    Attributes:
        release: the published wheel it was read in.
        file: below the package's folder.
        line: in that release.
        says: the formula in words.
    """

    repository: str
    release: str
    file: str
    line: int
    says: str

    def __str__(self) -> str:
        return f"{self.repository} {self.release} {self.file}:{self.line}"


@dataclass(frozen=True)
class Era:
    """Releases of one engine that compute alike.

    Attributes:
        since: the first of them.
        formulas: every formula in the order of its use: file, line and the formula in
            words.
        read_in: the release whose lines those are; empty for ``since``.
        spare_blocks: blocks that no prompt gets.
        fewest_blocks: with that many or fewer the engine does not start.
        whole_division: bytes are truncated before they are divided.
        reserve: LMDeploy's prefill reserve: bytes per token and word, and extra
            batches.
        aligned: LMDeploy pads each tensor of a block to 256 bytes.
        shortens_context: LMDeploy takes a block off a context that is shorter than the
            cache too.
        rounds_up: vLLM rounds its budget up to whole bytes.
        checks_spare: vLLM's check at the start counts the null block.
        reserves_images: SGLang sets memory for image embeddings aside.
        pools: SGLang's pools of windows and of states were read there.
        grouped: how vLLM groups layers of several kinds was read there.
        caches_states: vLLM caches prefixes of models with states by default.
        caches_every_state: if it caches them, the state of every block, where a kernel
            can.
        checkpoints: a cached Mamba2 state takes a block more (0.32.0
            mamba_mixer2.py:1107).
        aligns_latents: latents beside states get blocks of 128 tokens.
        pads_pages: a page that does not divide the largest is padded.
        counts_flight: a window holds the tokens of every batch in flight.
        wide_states: a CPU keeps recurrent states in 32 bits.
        names_device: the log says which device's cache it is, and the concurrency in
            its line.
    """

    since: str
    formulas: tuple[tuple[str, int, str], ...]
    read_in: str = ""
    spare_blocks: int = 0
    fewest_blocks: int = 0
    whole_division: bool = False
    reserve: tuple[int, int] = (0, 0)
    aligned: bool = False
    shortens_context: bool = False
    rounds_up: bool = False
    checks_spare: bool = False
    reserves_images: bool = False
    pools: bool = False
    grouped: bool = False
    caches_states: bool = False
    caches_every_state: bool = False
    checkpoints: bool = False
    aligns_latents: bool = False
    pads_pages: bool = False
    counts_flight: bool = False
    wide_states: bool = False
    names_device: bool = False


@dataclass(frozen=True)
class BudgetEngine:
    """What holds for all releases of an engine, and its eras.

    Attributes:
        option: of ``mmrepro kv-budget``, which carries the engine's own setting.
        setting: the engine's name for it, without dashes.
        release: taken when none is given.
        newest: newest release whose code was read; later ones are taken to compute
            alike.
        block_size: tokens a block where nothing else is asked for.
        needs: sizes without which nothing can be computed, and what they are.
        defaults: value of the setting without the option, by first release; empty where
            the engine works one out itself.
        top: the largest value of the setting; ``top_included``: it is itself taken.
        whole: only whole numbers are taken.
        element_bytes: size of an element by the cache's type; 0 for the model's own.
            Types that pack or carry scales (nvfp4, mxfp8, turboquant, int8 per head)
            have no formula here.
    """

    name: str
    title: str
    repository: str
    option: str
    setting: str
    release: str
    newest: str
    block_size: int
    eras: tuple[Era, ...]
    needs: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()
    top: Decimal = Decimal(1)
    top_included: bool = True
    whole: bool = False
    element_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def takes(self) -> str:
        """The values of the setting in words."""
        if self.whole:
            return f"it takes whole numbers from 1 to {self.top}"
        border = "up to" if self.top_included else "below"
        return f"it takes numbers above 0 and {border} {self.top}"

    def era(self, release: str) -> Era:
        """Return how that release computes.

        Raises:
            UsageError: it is older than the first release whose code was read.
        """
        known = [era for era in self.eras if Version(era.since) <= Version(release)]
        if not known:
            oldest = self.eras[0].since
            raise UsageError(
                f"The arithmetic of {self.title} {release} is not known here; it "
                f"starts with {oldest}.",
                hint=f"mmrepro kv-budget --engine {self.name} --release {oldest} …",
            )

        return known[-1]

    def default(self, release: str) -> Decimal | None:
        """Return what that release takes without the option; None: it works one out
        itself."""
        known = [
            value
            for since, value in self.defaults
            if Version(since) <= Version(release)
        ]
        return Decimal(known[-1]) if known else None

    def sources(self, release: str) -> tuple[FormulaSource, ...]:
        """Return every formula of that release with its place, in the order of their
        use."""
        era = self.era(release)
        read_in = era.read_in or era.since
        return tuple(
            FormulaSource(self.repository, read_in, *formula)
            for formula in era.formulas
        )


_LOADED = "the bytes that are free once the weights are loaded"

# ------------------------------------------------------------------ LMDeploy

_WIDE = "reserve = int(prefill tokens x vocabulary x 7), halved until 16 blocks fit"
_HALF = (
    "reserve = int((prefill tokens + 2 x batches) x vocabulary x 2), halved "
    "until 16 blocks fit"
)
_FLOAT = "blocks = int((free - reserve) x cache_max_entry_count / block bytes)"
_WHOLE = (
    "blocks = int((free - reserve) x cache_max_entry_count) // block bytes; more than 2"
)
_PLAIN = "block bytes = layers x (keys + values + their scales and zeros)"
_ALL = "longest prompt = blocks x block size"
_LESS_1 = "longest prompt = (blocks - 1) x block size"
_LESS_2 = "longest prompt = (blocks - 1 - kept) x block size"
_DUMMY = "one block is kept for dummy input"
_PADDED = "block bytes = layers x the same, each tensor padded to 256 bytes"

LMDEPLOY = BudgetEngine(
    name="lmdeploy",
    title="LMDeploy",
    repository="InternLM/lmdeploy",
    option="--cache-max-entry-count",
    setting="cache-max-entry-count",
    release="0.6.4",  # the bug report's
    newest="0.18.0",
    block_size=64,  # --cache-block-seq-len: 0.6.4 messages.py:268
    needs=(("free", _LOADED),),
    defaults=(("0.6.4", "0.8"),),  # 0.6.4 messages.py:266, 0.18.0 messages.py:555
    top_included=False,  # 0.6.4 messages.py:286: assert 0 < cache_max_entry_count < 1
    eras=(
        Era(
            "0.6.4",
            (
                ("pytorch/engine/model_agent.py", 50, _WIDE),
                ("pytorch/engine/cache_engine.py", 323, _PLAIN),
                ("pytorch/engine/model_agent.py", 103, _FLOAT),
                ("pytorch/engine/engine.py", 270, _ALL),
            ),
            reserve=(7, 0),
        ),
        Era(
            "0.7.2",
            (
                ("pytorch/engine/executor/base.py", 95, _WIDE),
                ("pytorch/engine/cache_engine.py", 305, _PLAIN),
                ("pytorch/engine/executor/base.py", 138, _FLOAT),
                ("pytorch/engine/engine.py", 242, _ALL),
            ),
            reserve=(7, 0),
        ),
        # Logits in half precision, for the prefill and two batches.
        Era(
            "0.9.2",
            (
                ("pytorch/engine/executor/base.py", 125, _HALF),
                ("pytorch/engine/cache_engine.py", 314, _PLAIN),
                ("pytorch/engine/executor/base.py", 169, _FLOAT),
                ("pytorch/engine/engine.py", 485, _LESS_1),
            ),
            reserve=(2, 2),
            spare_blocks=1,
            shortens_context=True,
        ),
        Era(
            "0.10.0",
            (
                ("pytorch/engine/executor/base.py", 138, _HALF),
                ("pytorch/engine/cache_engine.py", 317, _PLAIN),
                ("pytorch/engine/executor/base.py", 182, _FLOAT),
                ("pytorch/engine/engine.py", 491, _LESS_1),
            ),
            reserve=(2, 2),
            spare_blocks=1,
        ),
        Era(
            "0.11.1",
            (
                ("pytorch/engine/executor/base.py", 137, _HALF),
                ("pytorch/engine/cache_engine.py", 272, _PADDED),
                ("pytorch/engine/executor/base.py", 228, _FLOAT),
                ("pytorch/engine/config_builder.py", 69, _DUMMY),
                ("pytorch/engine/engine.py", 270, _LESS_2),
            ),
            reserve=(2, 2),
            spare_blocks=2,
            aligned=True,
        ),
        Era(
            "0.13.0",
            (
                ("pytorch/engine/executor/base.py", 196, _HALF),
                ("pytorch/engine/cache_engine.py", 300, _PADDED),
                ("pytorch/engine/executor/base.py", 154, _WHOLE),
                ("pytorch/engine/config_builder.py", 76, _DUMMY),
                ("pytorch/engine/engine.py", 285, _LESS_2),
            ),
            reserve=(2, 2),
            spare_blocks=2,
            aligned=True,
            whole_division=True,
            fewest_blocks=2,
        ),
        Era(
            "0.18.0",
            (
                ("pytorch/engine/executor/base.py", 232, _HALF),
                ("pytorch/engine/cache_engine/layout.py", 62, _PADDED),
                ("pytorch/engine/executor/base.py", 190, _WHOLE),
                ("pytorch/engine/config_builder.py", 92, _DUMMY),
                ("pytorch/engine/engine.py", 336, _LESS_2),
            ),
            reserve=(2, 2),
            spare_blocks=2,
            aligned=True,
            whole_division=True,
            fewest_blocks=2,
        ),
    ),
)

# ------------------------------------------------------------------ vLLM

_LEFT = "pool = int(budget - everything else)"
_BLOCK = (
    "block bytes = layers x block size x KV heads x (key + value elements) x bytes each"
)
_NULL = "the first block is kept as the null block: no request gets it"
_NEED = "refuses to start unless blocks for max_model_len fit"
_ROUNDED = "budget = ceil(total x utilization)"
_SPACE = "pool = VLLM_CPU_KVCACHE_SPACE x 2^30"
_STATE = (
    "block size: raised until a page of attention holds a state, which is padded to it"
)
_GROUPED = (
    "groups of as many layers as the rarest kind has; of the most, if that is "
    "under 1.5 x it"
)
_WINDOW = "a window's blocks = ceil((window - 1 + tokens) / block size) + 1, tokens: "
_AT_ONCE = "concurrency = blocks / the sum over groups of the blocks of one request"
_BY_LAYER = "blocks = pool // page // layers"
_POOL_23 = (
    ("v1/kv_cache_interface.py", 309, _BLOCK),
    ("v1/core/kv_cache_utils.py", 731, _NEED),
    ("v1/core/kv_cache_utils.py", 967, _BY_LAYER),
    ("v1/core/block_pool.py", 176, _NULL),
)
_GROUPS_23 = (
    ("platforms/interface.py", 661, _STATE),
    ("v1/core/kv_cache_utils.py", 1161, _GROUPED),
    ("v1/kv_cache_interface.py", 503, _WINDOW + "max_num_batched_tokens"),
    ("v1/core/kv_cache_utils.py", 890, _AT_ONCE),
)
_GROUPS_32 = (
    ("platforms/interface.py", 1086, _STATE),
    ("v1/core/kv_cache_utils.py", 1470, _GROUPED),
    ("v1/kv_cache_interface.py", 881, _WINDOW + "tokens in flight"),
    ("v1/core/kv_cache_utils.py", 1220, _AT_ONCE),
)
_POOL_32 = (
    ("v1/kv_cache_interface.py", 553, _BLOCK),
    ("v1/core/kv_cache_utils.py", 2627, _NEED + ", and the null block"),
    ("v1/core/kv_cache_utils.py", 1627, "blocks = pool // bytes of a block"),
    ("v1/core/block_pool.py", 185, _NULL),
)

VLLM = BudgetEngine(
    name="vllm",
    title="vLLM",
    repository="vllm-project/vllm",
    option="--gpu-memory-utilization",
    setting="gpu-memory-utilization",
    release="0.32.0",
    newest="0.33.0",
    block_size=16,
    needs=(
        ("total", "the device's memory"),
        (
            "runtime",
            (
                "what is not KV cache (weights, peak activation, CUDA graphs), from "
                "its log"
            ),
        ),
    ),
    defaults=(
        ("0.11.0", "0.9"),
        ("0.20.0", "0.92"),
    ),  # config/cache.py: 0.19.0 :41, 0.20.0 :66
    element_bytes={
        "auto": 0,
        "fp8": 1,
        "fp8_e4m3": 1,
        "fp8_e5m2": 1,
        "float16": 2,
        "bfloat16": 2,
    },
    eras=(
        Era(
            "0.11.0",
            (
                ("v1/worker/gpu_worker.py", 183, "budget = total x utilization"),
                ("v1/worker/gpu_worker.py", 279, _LEFT),
                ("v1/kv_cache_interface.py", 66, _BLOCK),
                ("v1/core/kv_cache_utils.py", 824, _BY_LAYER),
                ("v1/core/block_pool.py", 157, _NULL),
            ),
            spare_blocks=1,
        ),
        Era(
            "0.14.0",
            (
                ("v1/worker/utils.py", 410, _ROUNDED),
                ("v1/worker/gpu_worker.py", 461, _LEFT),
                *_POOL_23,
            ),
            read_in="0.23.0",
            spare_blocks=1,
            rounds_up=True,
        ),
        Era(
            "0.22.0",
            (
                ("v1/worker/utils.py", 410, _ROUNDED),
                ("v1/worker/gpu_worker.py", 461, _LEFT),
                *_POOL_23,
                *_GROUPS_23,
            ),
            read_in="0.23.0",
            spare_blocks=1,
            rounds_up=True,
            grouped=True,
            caches_every_state=True,
        ),
        Era(
            "0.26.0",
            (
                ("v1/worker/utils.py", 410, _ROUNDED),
                ("v1/worker/gpu_worker.py", 461, _LEFT),
                *_POOL_23,
            ),
            read_in="0.23.0",
            spare_blocks=1,
            rounds_up=True,
        ),
        # 0.29.0 v1/core/kv_cache_utils.py:975. Before, a server whose blocks just hold
        # its context starts, and a request that needs the last block waits for ever:
        # docs/kv-budget.md.
        Era(
            "0.29.0",
            (
                ("v1/worker/utils.py", 724, _ROUNDED),
                ("v1/worker/gpu_worker.py", 740, _LEFT),
                *_POOL_32,
            ),
            read_in="0.32.0",
            spare_blocks=1,
            rounds_up=True,
            checks_spare=True,
        ),
        Era(
            "0.32.0",
            (
                ("v1/worker/utils.py", 724, _ROUNDED),
                ("v1/worker/gpu_worker.py", 740, _LEFT),
                *_POOL_32,
                *_GROUPS_32,
            ),
            spare_blocks=1,
            rounds_up=True,
            checks_spare=True,
            grouped=True,
            caches_states=True,
            checkpoints=True,
            aligns_latents=True,
            pads_pages=True,
            counts_flight=True,
            names_device=True,
        ),
    ),
)

_SPACE_23, _SPACE_32 = (
    ("platforms/cpu.py", 136, _SPACE),
    ("platforms/cpu.py", 326, _SPACE),
)
VLLM_CPU = replace(
    VLLM,
    option="--kv-space",
    setting="VLLM_CPU_KVCACHE_SPACE",
    block_size=128,  # 0.23.0 platforms/cpu.py:125; 16 before, unless the user gave one
    needs=(),
    defaults=(),
    top=Decimal(1024),
    whole=True,
    eras=tuple(
        replace(
            era,
            formulas=(_SPACE_32 if era.checks_spare else _SPACE_23, *era.formulas[2:]),
            read_in="0.32.0" if era.checks_spare else "0.23.0",
            wide_states=era.names_device,  # 0.32.0 platforms/cpu.py:304
        )
        for era in (
            replace(VLLM.eras[1], since="0.11.0", rounds_up=False),
            *VLLM.eras[1:],
        )
    ),
)
"""vLLM's CPU backend profiles nothing: the pool is VLLM_CPU_KVCACHE_SPACE, or
``--kv-cache-memory-bytes``. Without either the flag named for GPUs is a share of the
machine's memory less the process's own (0.20.0 and later, v1/worker/cpu_worker.py)."""

# ------------------------------------------------------------------ SGLang

_CELL = "token bytes = KV heads x (key + value elements) x layers x bytes each"
_REST = (
    "rest = free after loading - free before loading x (1 - "
    "mem_fraction_static), in GiB"
)
_PROMPT = "longest prompt: min(context, pool) - 1 - 5, itself excluded"
_POOLS = (
    "token bytes = full layers + swa_full_tokens_ratio x window layers, in "
    "SGLang's hybrids"
)
_STATES = (
    "states: (int((rest x ratio / (1 + ratio) - one) // one) + 1) x one come "
    "off, ratio: "
)
_STATES += "mamba_full_memory_ratio"
_BYTES = "bytes = int(rest x 2^30)"
_PAGES = "pool = bytes // token bytes, a multiple of the page size"

SGLANG = BudgetEngine(
    name="sglang",
    title="SGLang",
    repository="sgl-project/sglang",
    option="--mem-fraction-static",
    setting="mem-fraction-static",
    release="0.5.23",
    newest="0.5.23",
    block_size=1,
    needs=(
        ("total", "the bytes that are free before the weights are loaded"),
        ("free", _LOADED),
    ),
    top_included=False,
    element_bytes={"auto": 0, "fp8_e4m3": 1, "fp8_e5m2": 1, "bf16": 2, "bfloat16": 2},
    eras=(
        Era(
            "0.5.6",
            (
                ("srt/model_executor/model_runner.py", 1417, _CELL),
                ("srt/model_executor/model_runner.py", 1442, _REST),
                (
                    "srt/model_executor/model_runner.py",
                    1447,
                    "pool = int(rest x 2^30 // token bytes)",
                ),
                (
                    "srt/model_executor/model_runner.py",
                    1729,
                    "pool = a multiple of the page size",
                ),
                ("srt/managers/tp_worker.py", 307, _PROMPT),
            ),
        ),
        Era(
            "0.5.17",
            (
                ("srt/model_executor/pool_configurator.py", 291, _CELL),
                ("srt/model_executor/pool_configurator.py", 427, _POOLS),
                ("srt/mem_cache/kv_cache_configurator.py", 1635, _REST),
                ("srt/mem_cache/kv_cache_configurator.py", 1923, _STATES),
                ("srt/mem_cache/kv_cache_configurator.py", 1657, _BYTES),
                ("srt/model_executor/pool_configurator.py", 325, _PAGES),
                ("srt/managers/tp_worker.py", 521, _PROMPT),
            ),
            whole_division=True,
            pools=True,
        ),
        Era(
            "0.5.23",
            (
                ("srt/model_executor/pool_configurator.py", 493, _CELL),
                ("srt/model_executor/pool_configurator.py", 776, _POOLS),
                (
                    "srt/mem_cache/kv_cache_configurator.py",
                    3038,
                    _REST + ", less the memory for image embeddings",
                ),
                ("srt/mem_cache/kv_cache_configurator.py", 3352, _STATES),
                ("srt/mem_cache/kv_cache_configurator.py", 3060, _BYTES),
                ("srt/model_executor/pool_configurator.py", 646, _PAGES),
                ("srt/managers/tp_worker.py", 572, _PROMPT),
            ),
            whole_division=True,
            reserves_images=True,
            pools=True,
        ),
    ),
)

ENGINES: Mapping[str, BudgetEngine] = {
    engine.name: engine for engine in (LMDEPLOY, VLLM, SGLANG)
}
