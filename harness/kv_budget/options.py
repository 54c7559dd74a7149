"""What ``mmrepro kv-budget`` is asked: its options, each declared once, and the plan
from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from mmrepro.base import common_options as common, units
from mmrepro.base.errors import UsageError
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.base.text import one_line
from mmrepro.kv_budget import plans
from mmrepro.kv_budget.base import MAX_DECIMALS, MemoryPlan
from mmrepro.kv_budget.eras import (
    ENGINES,
    LMDEPLOY,
    SGLANG,
    VLLM,
    VLLM_CPU,
    BudgetEngine,
)
from mmrepro.kv_budget.groups import KERNEL, CacheLayout, Serving, layout_of
from mmrepro.kv_budget.layers import CHUNK, FLOATS, FULL, STATE, WINDOW, LayerKind
from mmrepro.kv_budget.model import Geometry, Model, read_model
from packaging.version import InvalidVersion, Version

_MOST_BYTES = 1 << 50
"""1 PiB: no device has so much; a larger number is a mistake in the unit."""
_MOST = 1 << 40


def _read_number(text: str, *, what: str) -> Decimal:
    """A decimal number above 0, digit for digit. Raises UsageError: not one, or not
    finite."""
    shown = f"{what} {one_line(text, 40)!r}"
    try:
        value = Decimal(text.strip()) if len(text) <= 40 else None
    except InvalidOperation:
        value = None

    if value is None:
        raise UsageError(f"{shown} is not a number.")
    if not value.is_finite():
        raise UsageError(f"{shown} is not a finite number.")
    if value <= 0 or value.adjusted() > 9 or value.adjusted() < -9:
        raise UsageError(f"{shown} is not between 0 and 1.")
    return value


def _read_pixels(text: str) -> tuple[int, int]:
    """``1680x1568`` as (width, height) in pixels. Raises UsageError: not from 1 to 100
    000."""
    width, _, height = text.lower().partition("x")
    if not all(
        n.isdecimal() and len(n) < 7 and 1 <= int(n) <= 100_000 for n in (width, height)
    ):
        shown = one_line(text, 40)
        raise UsageError(
            f"--image-size {shown!r} is not a size in pixels. Write 1680x1568."
        )
    return int(width), int(height)


def _count(
    help: str, metavar: str = "N", default: int | None = None, **more: Any
) -> Any:
    return option(default, help, metavar, **{"least": 1, "most": _MOST, **more})


def _size(name: str, help: str, *, least: int = 1) -> Any:
    read = partial(units.parse_size, what=name, least=least, most=_MOST_BYTES)
    return option(None, help, "SIZE", name=name, read=read, write=units.exact_size)


def _setting(engine: BudgetEngine, help: str, metavar: str = "X") -> Any:
    name = engine.option
    return option(None, help, metavar, name=name, read=partial(_read_number, what=name))


def _ratio(name: str, default: str) -> Any:
    read = partial(_read_number, what=name)
    return option(None, f"SGLang's {name}.", "X", name=name, read=read, shown=default)


class MemoryDevice(StrEnum):
    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True)
class KvBudgetCommand(Command):
    """What was given, None where nothing was. Sizes are in bytes."""

    COMMAND: ClassVar[str] = "kv-budget"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:KvBudgetDocument",)
    engine: str | None = option(
        None, "Engine.", choices=tuple(ENGINES), shown="by the setting, else lmdeploy"
    )
    release: str = option(
        "",
        "Its release.",
        "VERSION",
        shown=", ".join(f"{e.name} {e.release}" for e in ENGINES.values()),
    )
    device: MemoryDevice = option(MemoryDevice.GPU, "For vllm: gpu or cpu.")
    cache_max_entry_count: Decimal | None = _setting(
        LMDEPLOY, "LMDeploy: share of what is free for the cache."
    )
    gpu_memory_utilization: Decimal | None = _setting(
        VLLM, "vLLM: share of the device for everything."
    )
    mem_fraction_static: Decimal | None = _setting(
        SGLANG, "SGLang: share for weights and cache."
    )
    kv_space: Decimal | None = _setting(
        VLLM_CPU, "vLLM on a CPU: VLLM_CPU_KVCACHE_SPACE.", "GIB"
    )
    need: int | None = _count(
        "Find the smallest setting for such a prompt.", "TOKENS", least=0
    )
    requests: int = _count("For so many of them at once.", default=1, most=1 << 20)
    images: int | None = _count("With so many images in it.", "M", most=100_000)
    image_tokens: int | None = _count(
        "Tokens of one image.", "TOKENS", most=1 << 32, shown="by --model"
    )
    image_size: tuple[int, int] | None = option(
        None,
        "Pixels of one image.",
        "WxH",
        shown="the largest there is",
        read=_read_pixels,
        write="{0[0]}x{0[1]}".format,
    )
    free: int | None = _size(
        "--free",
        "Free: after the weights (lmdeploy, sglang), before (vllm). 6784MiB, 80GB.",
        least=units.MIB,
    )
    total: int | None = _size(
        "--total",
        "The device (vllm); free before the weights (sglang).",
        least=units.MIB,
    )
    runtime: int | None = _size(
        "--runtime",
        "Set aside: LMDeploy's prefill reserve; all but the cache in vLLM.",
        least=0,
    )
    block_bytes: int | None = _size(
        "--block-bytes",
        "One block on one device (sglang: one token), if not from a model.",
    )
    block_size: int | None = _count("Tokens of a block.", "TOKENS", most=1 << 20)
    model: Path | None = option(
        None, "Folder of a model or its config.json.", "DIR|FILE"
    )
    layers: int | None = _count("Without --model: layers.", most=10_000)
    kv_heads: int | None = _count("And KV heads.", most=10_000)
    head_dim: int | None = _count("And elements of a head.", most=100_000)
    vocab_size: int | None = _count("For LMDeploy's reserve.", most=1 << 32)
    dtype_bytes: int = _count(
        "Bytes of the model's element: 2 or 4.", default=2, least=2, most=4
    )
    tp: int = _count("Tensor parallel devices.", default=1, most=4096)
    pp: int = _count("vLLM: pipeline stages.", default=1, most=1024)
    dp: int = _count(
        "Data parallel replicas, each with a cache of its own.", default=1, most=4096
    )
    num_speculative_tokens: int = _count(
        "vLLM: draft tokens a step.", default=0, least=0, most=1024
    )
    draft: str = option(
        "",
        "Layers of the drafter that keep keys and values: mtp for the model's own "
        "head, or the folder or config.json of a draft model or EAGLE head.",
        "mtp|DIR|FILE",
    )
    mamba_ssm_cache_dtype: str = option(
        "auto", "vLLM: elements of recurrent states.", choices=("auto", *FLOATS)
    )
    swa_full_tokens_ratio: Decimal | None = _ratio("--swa-full-tokens-ratio", "0.8")
    mamba_full_memory_ratio: Decimal | None = _ratio("--mamba-full-memory-ratio", "0.9")
    max_num_batched_tokens: int | None = _count(
        "vLLM: tokens of a step, which a sliding window holds as well.",
        "TOKENS",
        shown="of a server on that device",
    )
    prefix_caching: bool | None = option(
        None,
        "vLLM: cache prefixes; of a model with states it decides what a request takes.",
        name="--prefix-caching/--no-prefix-caching",
        shown="the release's default",
    )
    disable_hybrid_kv_cache_manager: bool = option(
        False,
        "vLLM: one group for all layers, as with a KV connector that supports no more.",
    )
    quant_policy: int = _count(
        "LMDeploy: 0, 4, 8, 16, 17 or 42.", default=0, least=0, most=99
    )
    kv_dtype: str = option("auto", "vLLM, SGLang: auto, fp8_e4m3, …", "TYPE")
    context: int | None = _count("--session-len, --max-model-len.", "TOKENS")
    max_prefill_tokens: int = _count(
        "LMDeploy's --max-prefill-token-num.", default=plans.MAX_PREFILL_TOKENS
    )
    max_batches: int = _count(
        "LMDeploy's --max-batch-size.", default=plans.MAX_BATCHES, most=1 << 20
    )
    decimals: int = _count("Decimals of the setting.", default=2, most=MAX_DECIMALS)
    full: bool = common.FULL(False)
    json: bool = common.JSON(False)
    svg: Path | None = option(None, "Draw the curve into this file.", "FILE", OUTPUT)

    @cached_property
    def settings(self) -> dict[str, Decimal]:
        """The settings that were given, by their options."""
        options = [engine.option for engine in (LMDEPLOY, VLLM, SGLANG, VLLM_CPU)]
        given = {name: getattr(self, name[2:].replace("-", "_")) for name in options}
        return {name: value for name, value in given.items() if value is not None}

    @cached_property
    def chosen(self) -> BudgetEngine:
        """The engine, by its name, by its setting, or LMDeploy; vLLM's CPU backend is
        one.

        Raises:
            UsageError: the settings are of several engines, or the device is none of
                the engine's.
        """
        if self.engine is None and len(self.settings) > 1:
            raise UsageError(
                f"{' and '.join(self.settings)} are settings of different engines."
            )

        cpu = self.device is MemoryDevice.CPU or VLLM_CPU.option in self.settings
        by_setting = [
            e for e in (*ENGINES.values(), VLLM_CPU) if e.option in self.settings
        ]
        chosen = ENGINES[self.engine] if self.engine else (by_setting or [LMDEPLOY])[0]
        if cpu and chosen.name != VLLM.name:
            raise UsageError(
                "--device cpu is for vllm; the others size their cache as on a GPU."
            )

        return VLLM_CPU if cpu else chosen

    @property
    def setting(self) -> Decimal | None:
        """The value of this engine's own setting. Raises UsageError: it is another
        engine's."""
        own = self.chosen.option
        for name in self.settings:
            if name != own:
                raise UsageError(
                    f"{name} is not the setting of {self.chosen.title}"
                    f"{' on a CPU' if self.chosen is VLLM_CPU else ''}; that is {own}."
                )
        return self.settings.get(own)

    @cached_property
    def version(self) -> str:
        """The release as given, or the engine's default. Raises UsageError: not a
        number."""
        engine = self.chosen
        try:
            Version(release := self.release or engine.release)
        except InvalidVersion:
            raise UsageError(
                f"{self.release!r} is not a release of {engine.name}.",
                hint=(
                    f"mmrepro kv-budget --engine {engine.name} --release "
                    f"{engine.release} …"
                ),
            ) from None

        return release

    @cached_property
    def read(self) -> Model | None:
        """The model, if one was given."""
        return read_model(self.model) if self.model else None

    @cached_property
    def geometry(self) -> Geometry | None:
        """From the model, or from numbers; numbers win."""
        layers, heads, dim = self.layers, self.kv_heads, self.head_dim
        if self.dtype_bytes == 3:
            raise UsageError("--dtype-bytes 3 is neither 2 nor 4.")
        if self.read is not None:
            known = self.read.geometry
            return replace(
                known,
                layers=layers or known.layers,
                kv_heads=heads or known.kv_heads,
                k_dim=dim or known.k_dim,
                v_dim=0 if known.mla else dim or known.v_dim,
                dtype_bytes=self.dtype_bytes,
            )

        if not layers and not heads and not dim:
            return None
        if not (layers and heads and dim):
            raise UsageError("--layers, --kv-heads and --head-dim are needed together.")
        return Geometry(layers, heads, dim, dim, self.dtype_bytes)

    def tokens(self) -> int:
        """Longest sequence that the server is asked to take, or the model is; 0 when
        unknown."""
        return self.context or (self.geometry.context if self.geometry else 0)


_STEPS = ((160, 16384), (70, 8192), (0, 2048))
"""GiB of a GPU from which a server's step has so many tokens, an A100's 2048 apart
(vLLM 0.32.0 engine/arg_utils.py:2923; 0.23.0 has no first row). On a CPU: 2048 a rank
(:2978)."""


def _layout(
    asked: KvBudgetCommand, geometry: Geometry, release: str, block: int
) -> CacheLayout | None:
    """How vLLM groups the layers; None: one group of full attention on one stage.

    Raises:
        UsageError: nothing is known of them, or of that release.
    """
    engine, era = asked.chosen, asked.chosen.era(release)
    if asked.draft and asked.pp > 1:
        raise UsageError(
            "How a drafter is spread over pipeline stages was not read here."
        )

    own = asked.draft == "mtp"
    drafter: tuple[LayerKind, ...] = (geometry.full,) * geometry.drafts if own else ()
    if asked.draft and not own:
        drafted = read_model(Path(asked.draft)).geometry
        drafter = tuple(kind for layer in drafted.each for kind in layer)

    if not (geometry.mixed or drafter or asked.pp > 1):
        return None
    if geometry.odd:
        geometry.token_bytes(engine)  # raises with the reason
    several = geometry.mixed or any(kind != geometry.full for kind in drafter)
    if several and not era.grouped:
        raise UsageError(
            f"How {engine.title} {release} groups layers of several kinds was not read "
            "here; known are 0.22.0 to 0.25.0, 0.32.0 and 0.33.0.",
            hint="mmrepro kv-budget --engine vllm --release 0.32.0 …",
        )

    if several and asked.tokens() == 0:
        raise UsageError(
            "The context decides what layers of several kinds keep: give --context."
        )

    cpu = engine is VLLM_CPU
    step = asked.max_num_batched_tokens
    if step is None:
        gib = (asked.total or 0) / units.GIB
        rows = _STEPS if era.counts_flight else _STEPS[1:]
        step = (
            2048 * asked.tp * asked.pp
            if cpu
            else next(s for least, s in rows if gib >= least)
        )

    if era.counts_flight:
        step *= asked.pp if cpu else asked.pp + 1
    serving = Serving(
        element=geometry.element(engine, asked.kv_dtype),
        model=geometry.dtype_bytes,
        cell=4 if era.wide_states else FLOATS.get(asked.mamba_ssm_cache_dtype, 0),
        tp=asked.tp,
        pp=asked.pp,
        drafts=asked.num_speculative_tokens,
        drafter=drafter,
        in_flight=step,
        prefix_caching=asked.prefix_caching,
        hybrid=not asked.disable_hybrid_kv_cache_manager,
        aligned=KERNEL["cpu" if cpu else "gpu"],
    )
    return layout_of(geometry.each, era, block, serving, asked.tokens())


_SWA_POOLS = ("gpt_oss", "llama4", "llama4_text")
"""Kinds of models whose windows SGLang keeps in a pool of their own (0.5.17
configs/model_config.py:1993); all others keep every token in every layer."""


def _sglang_cells(
    asked: KvBudgetCommand, geometry: Geometry, release: str
) -> tuple[float, int]:
    """Bytes of a token and of a request's states, on one device. Raises UsageError:
    there is no formula."""
    engine, era = asked.chosen, asked.chosen.era(release)
    element = geometry.element(engine, asked.kv_dtype)
    if geometry.odd:
        geometry.token_bytes(engine)  # raises with the reason
    if asked.pp > 1:
        raise UsageError(
            "--pp is for vllm: there is no formula for SGLang's stages here."
        )

    kinds = [kind for layer in geometry.each for kind in layer]
    states = [kind.state for kind in kinds if kind.state]
    full = [kind for kind in kinds if kind.name in (FULL, STATE)]
    apart = geometry.model_type in _SWA_POOLS and len(full) < len(kinds)
    if (apart or states) and not era.pools:
        raise UsageError(
            f"How SGLang {release} sizes pools of windows or states was not read here; "
            "known are 0.5.17 and later.",
            hint="mmrepro kv-budget --engine sglang --release 0.5.23 …",
        )

    token = geometry.full.token_bytes(asked.tp, element)
    cell = float(token * sum(kind.name == FULL for kind in kinds))
    windows = token * sum(kind.name in (WINDOW, CHUNK) for kind in kinds)
    cell += windows * (float(asked.swa_full_tokens_ratio or 0.8) if apart else 1)
    if asked.draft and states:
        raise UsageError("There is no formula here for SGLang's drafts beside states.")
    if asked.draft:
        own = geometry.drafts if asked.draft == "mtp" else 0
        drafter = own or read_model(Path(asked.draft)).geometry.layers
        cell += token * drafter

    # 32 bits, whatever the model's type is (0.5.17 configs/mamba_utils.py:71).
    state = sum(
        one.bytes(asked.tp, 0, geometry.dtype_bytes, one.cell_bytes or 4)
        for one in states
    )
    return cell, state


def plan_for(asked: KvBudgetCommand, release: str) -> MemoryPlan:
    """The engine's arithmetic at that release with everything filled in.

    Raises:
        UsageError: a number that the formula needs is missing, or the engine refuses
            one.
    """
    engine, geometry, context = asked.chosen, asked.geometry, asked.tokens()
    if engine is LMDEPLOY and asked.kv_dtype != "auto":
        raise UsageError(
            "LMDeploy's KV cache type is set with --quant-policy, not --kv-dtype."
        )

    if engine is not LMDEPLOY and asked.quant_policy:
        raise UsageError(
            "--quant-policy is LMDeploy's; vLLM and SGLang have --kv-dtype."
        )

    for name, what in engine.needs:
        if getattr(asked, name) is None:
            hint = "mmrepro kv-budget --help"
            raise UsageError(f"{engine.title} needs --{name}: {what}.", hint=hint)

    total, free, runtime = asked.total or 0, asked.free or 0, asked.runtime or 0
    if engine in (VLLM, SGLANG) and free > total:
        raise UsageError("--free is more than --total.")
    size = asked.block_size or engine.block_size
    layout = None
    if (
        engine is VLLM_CPU
        and geometry
        and geometry.mla
        and engine.era(release).wide_states
    ):
        size = (
            16  # whatever is asked for, without AMX tiles (0.32.0 platforms/cpu.py:280)
        )

    if engine is LMDEPLOY and geometry:
        size = plans.block_size_of(geometry, size)
    heads = geometry.kv_heads if geometry and not geometry.mla else 1
    if engine is not LMDEPLOY and heads % asked.tp and asked.tp % heads:
        raise UsageError(
            f"{engine.title} cannot divide {heads} KV heads among {asked.tp} devices."
        )

    if asked.block_bytes:
        each = asked.block_bytes * (size if engine is SGLANG else 1)
    elif geometry is None:
        raise UsageError(
            "The size of a block is not known: give --block-bytes, --model PATH, or "
            "--layers, --kv-heads and --head-dim.",
            hint="mmrepro kv-budget --help",
        )
    elif engine is LMDEPLOY:
        each = plans.block_bytes_of(
            geometry,
            release,
            tp=asked.tp,
            quant_policy=asked.quant_policy,
            block_size=size,
        )
    elif engine.name == VLLM.name and (
        layout := _layout(asked, geometry, release, size)
    ):
        each, size = layout.bytes_per_block, layout.block
    elif engine is SGLANG:
        each = size * int(_sglang_cells(asked, geometry, release)[0])
    else:
        each = size * geometry.token_bytes(engine, tp=asked.tp, kv_dtype=asked.kv_dtype)

    if engine is VLLM_CPU:
        return plans.VllmCpuPlan(release, each, size, context, layout)
    if engine is VLLM:
        return plans.VllmPlan(
            release, each, size, context, total, free or total, runtime, layout
        )

    if engine is SGLANG:
        cell, state = (
            (0.0, 0) if geometry is None else _sglang_cells(asked, geometry, release)
        )
        return plans.SglangPlan(
            release,
            total,
            free,
            each,
            size,
            context,
            runtime,
            cell,
            state,
            float(asked.mamba_full_memory_ratio or 0.9),
        )

    vocabulary = asked.vocab_size or (geometry.vocab_size if geometry else 0)
    if asked.runtime is None and not vocabulary:
        raise UsageError(
            "LMDeploy's reserve is not known: give --runtime (its size), or "
            "--vocab-size or --model to let LMDeploy's own rule find it."
        )

    return plans.LmdeployPlan(
        release,
        free,
        each,
        size,
        asked.runtime,
        vocabulary,
        asked.max_prefill_tokens,
        asked.max_batches,
        context,
        geometry.window if geometry else 0,
    )
