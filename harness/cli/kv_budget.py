"""``mmrepro kv-budget``: memory and a setting in, blocks and the longest prompt out; and back."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mmrepro.base import units
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


def _size(help: str) -> Any:
    return typer.Option(metavar=SIZE, help=help)


def kv_budget(
    engine: Annotated[
        Engine | None, typer.Option(help="Engine; else told by the setting, else lmdeploy.")
    ] = None,
    release: Annotated[
        str, typer.Option(help="Its release: lmdeploy 0.6.4, vllm 0.32.0 or sglang 0.5.23.")
    ] = "",
    device: Annotated[Device, typer.Option(help="For vllm: gpu or cpu.")] = Device.GPU,
    cache_max_entry_count: Annotated[
        str, typer.Option(metavar="X", help="LMDeploy: share of what is free for the cache.")
    ] = "",
    gpu_memory_utilization: Annotated[
        str, typer.Option(metavar="X", help="vLLM: share of the device for everything.")
    ] = "",
    mem_fraction_static: Annotated[
        str, typer.Option(metavar="X", help="SGLang: share for weights and cache.")
    ] = "",
    kv_space: Annotated[
        str, typer.Option(metavar="GIB", help="vLLM on a CPU: VLLM_CPU_KVCACHE_SPACE.")
    ] = "",
    need: Annotated[
        str, typer.Option(metavar="TOKENS", help="Find the smallest setting for such a prompt.")
    ] = "",
    images: Annotated[str, typer.Option(metavar="M", help="With so many images in it.")] = "",
    image_tokens: Annotated[
        str, typer.Option(metavar="TOKENS", help="Tokens of one; else from --model.")
    ] = "",
    image_size: Annotated[
        str, typer.Option(metavar="WxH", help="Pixels of one; else the largest there is.")
    ] = "",
    free: Annotated[
        str, _size("Free: after the weights (lmdeploy, sglang), before (vllm). 6784MiB, 80GB.")
    ] = "",
    total: Annotated[str, _size("The device (vllm); free before the weights (sglang).")] = "",
    runtime: Annotated[
        str, _size("Set aside: LMDeploy's prefill reserve; all but the cache in vLLM.")
    ] = "",
    block_bytes: Annotated[
        str, _size("One block on one device (sglang: one token), if not from a model.")
    ] = "",
    block_size: Annotated[str, typer.Option(metavar="TOKENS", help="Tokens a block.")] = "",
    model: Annotated[Path | None, typer.Option(help="A model's folder or its config.json.")] = None,
    layers: Annotated[str, typer.Option(metavar="N", help="Without --model: layers.")] = "",
    kv_heads: Annotated[str, typer.Option(metavar="N", help="And KV heads.")] = "",
    head_dim: Annotated[str, typer.Option(metavar="N", help="And elements a head.")] = "",
    vocab_size: Annotated[str, typer.Option(metavar="N", help="For LMDeploy's reserve.")] = "",
    dtype_bytes: Annotated[
        str, typer.Option(metavar="N", help="Bytes of the model's element: 2 or 4.")
    ] = "2",
    tp: Annotated[str, typer.Option(metavar="N", help="Tensor parallel devices.")] = "1",
    quant_policy: Annotated[
        str, typer.Option(metavar="N", help="LMDeploy: 0, 4, 8, 16, 17 or 42.")
    ] = "0",
    kv_dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="vLLM, SGLang: auto, fp8_e4m3, …")
    ] = "auto",
    context: Annotated[
        str, typer.Option(metavar="TOKENS", help="--session-len, --max-model-len.")
    ] = "",
    max_prefill_tokens: Annotated[
        str, typer.Option(metavar="N", help="LMDeploy's --max-prefill-token-num.")
    ] = "",
    max_batches: Annotated[
        str, typer.Option(metavar="N", help="LMDeploy's --max-batch-size.")
    ] = "",
    decimals: Annotated[str, typer.Option(metavar="N", help="Of the setting, 1 to 4.")] = "2",
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the curve into this file.")] = None,
) -> None:
    """Compute an engine's KV cache from its memory and its setting, and back.

    Exit codes: 0 the engine starts and the prompt fits some setting; 1 not so; 2 usage.

    Example:  mmrepro kv-budget --free 6784MiB --runtime 5061MiB --block-bytes 8388608
    --cache-max-entry-count 0.1 --need 3446
    """
    from mmrepro.kv_budget import curve, inputs, lmdeploy, quantity
    from mmrepro.kv_budget.result import answer

    settings = _settings(
        {
            "--cache-max-entry-count": cache_max_entry_count,
            "--gpu-memory-utilization": gpu_memory_utilization,
            "--mem-fraction-static": mem_fraction_static,
            "--kv-space": kv_space,
        }
    )
    chosen = str(engine or _engine_of(settings))
    cpu = device is Device.CPU or "--kv-space" in settings
    if cpu and chosen != "vllm":
        raise UsageError("--device cpu is for vllm; the others size their cache as on a GPU.")
    read = _read(model)
    steps = quantity.parse_count(decimals, "--decimals", most=4)
    asked = inputs.Question(
        engine=chosen,
        release=inputs.check_release(chosen, release),
        free=_bytes(free, "--free", least=1 << 20) or 0,
        total=_bytes(total, "--total", least=1 << 20) or 0,
        runtime=_bytes(runtime, "--runtime", least=0),
        block_bytes=_bytes(block_bytes, "--block-bytes") or 0,
        block_size=_count(block_size, "--block-size", most=1 << 20),
        geometry=_geometry(
            read,
            layers=_count(layers, "--layers", most=10_000),
            kv_heads=_count(kv_heads, "--kv-heads", most=10_000),
            head_dim=_count(head_dim, "--head-dim", most=100_000),
            dtype_bytes=_count(dtype_bytes, "--dtype-bytes", most=4),
        ),
        vocab_size=_count(vocab_size, "--vocab-size", most=1 << 32),
        tp=_count(tp, "--tp", most=4096),
        kv_dtype=kv_dtype,
        quant_policy=quantity.parse_count(quant_policy, "--quant-policy", least=0, most=99),
        context=_count(context, "--context"),
        max_prefill_tokens=_count(max_prefill_tokens, "--max-prefill-tokens")
        or lmdeploy.MAX_PREFILL_TOKENS,
        max_batches=_count(max_batches, "--max-batches", most=1 << 20) or lmdeploy.MAX_BATCHES,
        cpu=cpu,
        settings=settings,
    )
    result = answer(asked, _need(need, images, image_tokens, image_size, read), steps)
    points = curve.points(result.plan, min(steps, 2))
    if svg is not None:
        _write_svg(svg, points, result)
    _print(result, points, json=json)
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


def _need(
    need: str, images: str, image_tokens: str, image_size: str, read: Model | None
) -> Need | None:
    from mmrepro.kv_budget.quantity import parse_count, parse_pixels
    from mmrepro.kv_budget.result import Need

    count = _count(images, "--images", most=100_000)
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
