"""From what a person knows to a plan: the numbers that an engine's formula needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from mmrepro.errors import UsageError
from mmrepro.kv_budget import lmdeploy, sglang, vllm
from mmrepro.kv_budget.base import MemoryPlan
from mmrepro.kv_budget.geometry import Geometry
from packaging.version import InvalidVersion, Version

ENGINES = ("lmdeploy", "vllm", "sglang")
DEFAULT_RELEASES = {
    "lmdeploy": lmdeploy.OLDEST,
    "vllm": vllm.NEWEST,
    "sglang": sglang.NEWEST,
}
"""LMDeploy's is that of the bug report; ``--release`` takes any other."""
SETTINGS = {
    "lmdeploy": "--cache-max-entry-count",
    "vllm": "--gpu-memory-utilization",
    "sglang": "--mem-fraction-static",
}
NAMES = {"lmdeploy": "LMDeploy", "vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True)
class Question:
    """What was given; 0 and None where nothing was.

    Attributes:
        free: bytes free: after the weights are loaded (LMDeploy, SGLang), before (vLLM).
        total: bytes of the device (vLLM), or free before the weights are loaded (SGLang).
        runtime: bytes for everything but weights and KV cache; None when not given. For vLLM
            the weights are part of it.
        block_bytes: of one block on one device; for SGLang of one token.
        block_size: tokens a block.
        context: longest sequence that the server is told to take.
    """

    engine: str
    release: str
    free: int = 0
    total: int = 0
    runtime: int | None = None
    block_bytes: int = 0
    block_size: int = 0
    geometry: Geometry | None = None
    vocab_size: int = 0
    tp: int = 1
    kv_dtype: str = "auto"
    quant_policy: int = 0
    context: int = 0
    max_prefill_tokens: int = lmdeploy.MAX_PREFILL_TOKENS
    max_batches: int = lmdeploy.MAX_BATCHES
    cpu: bool = False
    settings: dict[str, Decimal] = field(default_factory=dict)
    """By the option's name, as typed."""

    @property
    def own_option(self) -> str:
        """The option that carries this engine's setting."""
        return "--kv-space" if self.cpu else SETTINGS[self.engine]

    @property
    def setting(self) -> Decimal | None:
        """The value of this engine's own setting.

        Raises:
            UsageError: a setting of another engine was given.
        """
        own = self.own_option
        for name in self.settings:
            if name != own:
                raise UsageError(
                    f"{name} is not the setting of {NAMES[self.engine]}"
                    f"{' on a CPU' if self.cpu else ''}; that is {own}."
                )
        return self.settings.get(own)


def check_release(engine: str, release: str) -> str:
    """The release as given, or the engine's default here.

    Raises:
        UsageError: not a release's number.
    """
    release = release or DEFAULT_RELEASES[engine]
    try:
        Version(release)
    except InvalidVersion:
        raise UsageError(
            f"{release!r} is not a release of {engine}.",
            hint=f"mmrepro kv-budget --engine {engine} --release {DEFAULT_RELEASES[engine]} …",
        ) from None
    return release


def newest_read(engine: str) -> str:
    """The newest release whose code was read; later ones are taken to compute alike."""
    return {"lmdeploy": lmdeploy.NEWEST, "vllm": vllm.NEWEST, "sglang": sglang.NEWEST}[engine]


def plan_for(question: Question) -> MemoryPlan:
    """The engine's arithmetic with everything filled in.

    Raises:
        UsageError: a number that the formula needs is missing, or the engine refuses one.
    """
    return {"lmdeploy": _lmdeploy, "vllm": _vllm, "sglang": _sglang}[question.engine](question)


def _lmdeploy(q: Question) -> MemoryPlan:
    if q.kv_dtype != "auto":
        raise UsageError("LMDeploy's KV cache type is set with --quant-policy, not --kv-dtype.")
    _need(q, "free", "the bytes that are free once the weights are loaded")
    size = q.block_size or lmdeploy.BLOCK_SIZE
    if q.geometry is not None:
        size = lmdeploy.block_size_of(q.geometry, size)
    bytes_each = q.block_bytes
    if not bytes_each:
        bytes_each = lmdeploy.block_bytes_of(
            _geometry(q), q.release, tp=q.tp, quant_policy=q.quant_policy, block_size=size
        )
    vocab = q.vocab_size or (q.geometry.vocab_size if q.geometry else 0)
    if q.runtime is None and not vocab:
        raise UsageError(
            "LMDeploy's reserve is not known: give --runtime (its size), or --vocab-size or "
            "--model to let LMDeploy's own rule find it."
        )
    return lmdeploy.LmdeployPlan(
        release=q.release,
        free=q.free,
        bytes_per_block=bytes_each,
        tokens_per_block=size,
        runtime=q.runtime,
        vocab_size=vocab,
        max_prefill_tokens=q.max_prefill_tokens,
        max_batches=q.max_batches,
        session_len=q.context or (q.geometry.context if q.geometry else 0),
        window=q.geometry.window if q.geometry else 0,
    )


def _vllm(q: Question) -> MemoryPlan:
    _no_quant_policy(q)
    size = q.block_size or (vllm.CPU_BLOCK_SIZE if q.cpu else vllm.BLOCK_SIZE)
    bytes_each = q.block_bytes or vllm.block_bytes_of(
        _geometry(q), tp=q.tp, kv_dtype=q.kv_dtype, block_size=size
    )
    context = q.context or (q.geometry.context if q.geometry else 0)
    if q.cpu:
        return vllm.VllmCpuPlan(q.release, bytes_each, size, context)
    _need(q, "total", "the device's memory")
    if q.runtime is None:
        raise UsageError(
            "vLLM needs --runtime: what is not KV cache (weights, peak activation, CUDA graphs), "
            "as its log says."
        )
    if q.free > q.total:
        raise UsageError("--free is more than --total.")
    return vllm.VllmPlan(
        release=q.release,
        bytes_per_block=bytes_each,
        tokens_per_block=size,
        max_model_len=context,
        total=q.total,
        free=q.free or q.total,
        non_kv=q.runtime,
    )


def _sglang(q: Question) -> MemoryPlan:
    _no_quant_policy(q)
    _need(q, "total", "the bytes that are free before the weights are loaded")
    _need(q, "free", "the bytes that are free once the weights are loaded")
    if q.free > q.total:
        raise UsageError("--free is more than --total.")
    each = q.block_bytes or sglang.token_bytes_of(_geometry(q), tp=q.tp, kv_dtype=q.kv_dtype)
    return sglang.SglangPlan(
        release=q.release,
        before=q.total,
        free=q.free,
        bytes_per_token=each,
        page_size=q.block_size or 1,
        context=q.context or (q.geometry.context if q.geometry else 0),
        image_reserve=q.runtime or 0,
    )


def _no_quant_policy(q: Question) -> None:
    if q.quant_policy:
        raise UsageError("--quant-policy is LMDeploy's; vLLM and SGLang have --kv-dtype.")


def _need(q: Question, name: str, what: str) -> None:
    if not getattr(q, name):
        raise UsageError(
            f"{NAMES[q.engine]} needs --{name}: {what}.", hint="mmrepro kv-budget --help"
        )


def _geometry(q: Question) -> Geometry:
    if q.geometry is None:
        raise UsageError(
            "The size of a block is not known: give --block-bytes, --model PATH, or --layers, "
            "--kv-heads and --head-dim.",
            hint="mmrepro kv-budget --help",
        )
    return q.geometry
