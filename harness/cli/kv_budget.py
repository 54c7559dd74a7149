"""``mmrepro kv-budget``: memory and a setting in, blocks and the longest prompt out; and back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from decimal import Decimal

    from mmrepro.kv_budget.config import Model
    from mmrepro.kv_budget.curve import Point
    from mmrepro.kv_budget.geometry import Geometry
    from mmrepro.kv_budget.result import Answer, Need


class Engine(StrEnum):
    LMDEPLOY = "lmdeploy"
    VLLM = "vllm"
    SGLANG = "sglang"


class Device(StrEnum):
    GPU = "gpu"
    CPU = "cpu"


SIZE = "SIZE"  # every number is text here: what is no number gets a sentence, not a stack of them


@dataclass(frozen=True)
class KvBudgetCommand(Command):
    COMMAND: ClassVar[str] = "kv-budget"
    engine: Engine | None = option(None, "Engine.", shown="told by the setting, else lmdeploy")
    release: str = option(
        "", "Its release: lmdeploy 0.6.4, vllm 0.32.0 or sglang 0.5.23.", "VERSION"
    )
    device: Device = option(Device.GPU, "For vllm: gpu or cpu.")
    cache_max_entry_count: str = option("", "LMDeploy: share of what is free for the cache.", "X")
    gpu_memory_utilization: str = option("", "vLLM: share of the device for everything.", "X")
    mem_fraction_static: str = option("", "SGLang: share for weights and cache.", "X")
    kv_space: str = option("", "vLLM on a CPU: VLLM_CPU_KVCACHE_SPACE.", "GIB")
    need: str = option("", "Find the smallest setting for such a prompt.", "TOKENS")
    images: str = option("", "With so many images in it.", "M")
    image_tokens: str = option("", "Tokens of one image.", "TOKENS", shown="by --model")
    image_size: str = option("", "Pixels of one image.", "WxH", shown="the largest there is")
    free: str = option(
        "", "Free: after the weights (lmdeploy, sglang), before (vllm). 6784MiB, 80GB.", SIZE
    )
    total: str = option("", "The device (vllm); free before the weights (sglang).", SIZE)
    runtime: str = option(
        "", "Set aside: LMDeploy's prefill reserve; all but the cache in vLLM.", SIZE
    )
    block_bytes: str = option(
        "", "One block on one device (sglang: one token), if not from a model.", SIZE
    )
    block_size: str = option("", "Tokens of a block.", "TOKENS")
    model: Path | None = option(None, "Folder of a model or its config.json.", "DIR|FILE")
    layers: str = option("", "Without --model: layers.", "N")
    kv_heads: str = option("", "And KV heads.", "N")
    head_dim: str = option("", "And elements of a head.", "N")
    vocab_size: str = option("", "For LMDeploy's reserve.", "N")
    dtype_bytes: str = option("2", "Bytes of the model's element: 2 or 4.", "N")
    tp: str = option("1", "Tensor parallel devices.", "N")
    quant_policy: str = option("0", "LMDeploy: 0, 4, 8, 16, 17 or 42.", "N")
    kv_dtype: str = option("auto", "vLLM, SGLang: auto, fp8_e4m3, …", "TYPE")
    context: str = option("", "--session-len, --max-model-len.", "TOKENS")
    max_prefill_tokens: str = option("", "LMDeploy's --max-prefill-token-num.", "N")
    max_batches: str = option("", "LMDeploy's --max-batch-size.", "N")
    decimals: str = option("2", "Decimals of the setting, 1 to 4.", "N")
    json: bool = common.JSON(False)
    svg: Path | None = option(None, "Draw the curve into this file.", "FILE", OUTPUT)


@command(KvBudgetCommand)
def kv_budget(asked: KvBudgetCommand) -> None:
    """Compute an engine's KV cache from its memory and its setting, and back.

    Exit codes: 0 the engine starts and the prompt fits some setting; 1 not so; 2 usage.

    Example:  mmrepro kv-budget --free 6784MiB --runtime 5061MiB --block-bytes 8388608
    --cache-max-entry-count 0.1 --need 3446
    """
    from mmrepro.kv_budget import curve, inputs, lmdeploy, quantity
    from mmrepro.kv_budget.result import answer

    settings = _settings(
        {
            "--cache-max-entry-count": asked.cache_max_entry_count,
            "--gpu-memory-utilization": asked.gpu_memory_utilization,
            "--mem-fraction-static": asked.mem_fraction_static,
            "--kv-space": asked.kv_space,
        }
    )
    chosen = str(asked.engine or _engine_of(settings))
    cpu = asked.device is Device.CPU or "--kv-space" in settings
    if cpu and chosen != "vllm":
        raise UsageError("--device cpu is for vllm; the others size their cache as on a GPU.")
    read = _read(asked.model)
    steps = quantity.parse_count(asked.decimals, "--decimals", most=4)
    question = inputs.Question(
        engine=chosen,
        release=inputs.check_release(chosen, asked.release),
        free=_bytes(asked.free, "--free", least=1 << 20) or 0,
        total=_bytes(asked.total, "--total", least=1 << 20) or 0,
        runtime=_bytes(asked.runtime, "--runtime", least=0),
        block_bytes=_bytes(asked.block_bytes, "--block-bytes") or 0,
        block_size=_count(asked.block_size, "--block-size", most=1 << 20),
        geometry=_geometry(
            read,
            layers=_count(asked.layers, "--layers", most=10_000),
            kv_heads=_count(asked.kv_heads, "--kv-heads", most=10_000),
            head_dim=_count(asked.head_dim, "--head-dim", most=100_000),
            dtype_bytes=_count(asked.dtype_bytes, "--dtype-bytes", most=4),
        ),
        vocab_size=_count(asked.vocab_size, "--vocab-size", most=1 << 32),
        tp=_count(asked.tp, "--tp", most=4096),
        kv_dtype=asked.kv_dtype,
        quant_policy=quantity.parse_count(asked.quant_policy, "--quant-policy", least=0, most=99),
        context=_count(asked.context, "--context"),
        max_prefill_tokens=_count(asked.max_prefill_tokens, "--max-prefill-tokens")
        or lmdeploy.MAX_PREFILL_TOKENS,
        max_batches=_count(asked.max_batches, "--max-batches", most=1 << 20)
        or lmdeploy.MAX_BATCHES,
        cpu=cpu,
        settings=settings,
    )
    result = answer(question, _need(asked, read), steps)
    points = curve.points(result.plan, min(steps, 2))
    if asked.svg is not None:
        _write_svg(asked.svg, points, result)
    _print(result, points, json=asked.json)
    if not result.works:
        raise typer.Exit(ExitCode.NOT_AS_EXPECTED)


def _bytes(text: str, what: str, *, least: int = 1) -> int | None:
    from mmrepro.kv_budget.quantity import MOST_BYTES

    return units.parse_size(text, what, least=least, most=MOST_BYTES) if text else None


def _count(text: str, what: str, *, most: int = 1 << 40) -> int:
    from mmrepro.kv_budget.quantity import parse_count

    return parse_count(text, what, most=most) if text else 0


def _settings(given: dict[str, str]) -> dict[str, Decimal]:
    from mmrepro.kv_budget.quantity import parse_number

    return {name: parse_number(text, name) for name, text in given.items() if text}


def _engine_of(settings: dict[str, Decimal]) -> str:
    from mmrepro.kv_budget.inputs import SETTINGS

    if len(settings) > 1:
        raise UsageError(f"{' and '.join(settings)} are settings of different engines.")
    if "--kv-space" in settings:
        return "vllm"
    return next((name for name, option in SETTINGS.items() if option in settings), "lmdeploy")


def _read(model: Path | None) -> Model | None:
    if model is None:
        return None
    from mmrepro.kv_budget.config import read_model

    return read_model(model)


def _geometry(
    read: Model | None, *, layers: int, kv_heads: int, head_dim: int, dtype_bytes: int
) -> Geometry | None:
    """From the model, or from numbers; numbers win."""
    from dataclasses import replace

    from mmrepro.kv_budget.geometry import Geometry

    if dtype_bytes not in (2, 4):
        raise UsageError(f"--dtype-bytes {dtype_bytes} is neither 2 nor 4.")
    if read is not None:
        known = read.geometry
        return replace(
            known,
            layers=layers or known.layers,
            kv_heads=kv_heads or known.kv_heads,
            k_dim=head_dim or known.k_dim,
            v_dim=0 if known.mla else head_dim or known.v_dim,
            dtype_bytes=dtype_bytes,
        )
    if not layers and not kv_heads and not head_dim:
        return None
    if not (layers and kv_heads and head_dim):
        raise UsageError("--layers, --kv-heads and --head-dim are needed together.")
    return Geometry(layers, kv_heads, head_dim, head_dim, dtype_bytes)


def _need(asked: KvBudgetCommand, read: Model | None) -> Need | None:
    from mmrepro.kv_budget.quantity import parse_count, parse_pixels
    from mmrepro.kv_budget.result import Need

    need, image_tokens, image_size = asked.need, asked.image_tokens, asked.image_size
    count = _count(asked.images, "--images", most=100_000)
    if not count:
        if image_tokens or image_size:
            raise UsageError("--image-tokens and --image-size need --images: how many there are.")
        return Need(parse_count(need, "--need")) if need else None
    if image_tokens:
        each = parse_count(image_tokens, "--image-tokens", most=1 << 32)
    else:
        rule = read.images if read else None
        if rule is None:
            raise UsageError(
                "How many tokens an image becomes is not known: give --image-tokens"
                + (f" ({read.name or 'this model'} has no rule here)." if read else ".")
            )
        size = parse_pixels(image_size, "--image-size") if image_size else None
        each = (rule.tokens(*size) if size else rule.largest) + rule.around
    return Need(parse_count(need, "--need", least=0) if need else 0, count, each)


def _write_svg(path: Path, points: list[Point], result: Answer) -> None:
    from mmrepro.errors import UnwritableOutput
    from mmrepro.kv_budget.curve import svg_curve
    from mmrepro.kv_budget.inputs import NAMES
    from mmrepro.machine.files import write_file

    picture = svg_curve(
        points,
        title=f"{NAMES[result.plan.engine]} {result.question.release}: longest prompt in tokens",
        axis=result.plan.setting_name,
        need=result.need.tokens if result.need else 0,
    )
    try:
        write_file(path, picture)
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}.") from error


def _print(result: Answer, points: list[Point], *, json: bool) -> None:
    if json:
        import json as json_module

        curve = [[str(p.setting), p.tokens] for p in points]
        print(json_module.dumps({**result.document(), "curve": curve}, indent=1))
        return
    from mmrepro.kv_budget.rendering import show
    from rich.console import Console

    show(result, points, Console())
