"""What torch can do with the device: allocate, compute, copy, capture a graph, compile
a kernel.

``python device_trial.py --device cuda --json``; torch and the standard library are all
it needs. Each is tried by itself and timed. Ends with 0 where all that must work does,
1 where something does not, 4 where torch finds no such device."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

WORKS, FAILS, NOT_TRIED = 0, 1, 4
_BYTES = 256 << 20
_WIDTH = 1024


class NotHere(Exception):
    """Cannot be tried on this device, and need not be; says why."""


def allocate(device: str) -> str:
    block = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    block.fill_(7)
    wait(device)
    assert int(block[-1].item()) == 7
    return f"{_BYTES >> 20} MiB written and read back"


def compute(device: str) -> str:
    """A product of whole numbers: exact in float32, and the same wherever it is
    computed."""
    torch.manual_seed(0)
    left, right = (torch.randint(-4, 5, (_WIDTH, _WIDTH)).float() for _ in range(2))
    found = (left.to(device) @ right.to(device)).cpu()
    assert torch.equal(found, left @ right), "the product is not that of the CPU"
    return f"{_WIDTH} x {_WIDTH}, equal to the CPU's product"


def copy(device: str) -> str:
    if device == "cpu":
        raise NotHere("a CPU's tensors are in host memory")
    told = []
    for name, host in (
        ("pageable", torch.ones(_BYTES, dtype=torch.uint8)),
        ("pinned", torch.ones(_BYTES, dtype=torch.uint8).pin_memory()),
    ):
        host.to(device)
        wait(device)
        began = time.perf_counter()
        moved = host.to(device, non_blocking=True)
        wait(device)
        rate = _BYTES / (time.perf_counter() - began) / 1e9
        assert int(moved.sum().item()) == _BYTES
        told.append(f"{name} {rate:.1f} GB/s")
    return ", ".join(told)


def graph(device: str) -> str:
    """Captured, and replayed on other values: what was computed at the capture is not
    kept."""
    if device == "cpu":
        raise NotHere("a CPU has no CUDA graphs")
    given = torch.zeros(_WIDTH, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (given * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        total = (given * 2 + 1).sum()
    seen = []
    for value in (1, 20):
        given.fill_(value)
        captured.replay()
        seen.append(int(total.item()))
    assert seen == [3 * _WIDTH, 41 * _WIDTH], seen
    return f"two replays: {seen}"


def compiled(device: str) -> str:
    """Triton compiles a launcher with the system's C compiler: vLLM cannot do
    without."""
    if device == "cpu":
        raise NotHere("Triton compiles for GPUs")
    try:
        import triton
        import triton.language as tl
    except ImportError as error:
        raise NotHere(f"no Triton in this environment: {error}") from None

    def double(source, target, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        place = tl.arange(0, SIZE)
        tl.store(target + place, tl.load(source + place) * 2)

    double.__globals__["tl"] = tl
    source = torch.arange(128, device=device)
    target = torch.empty_like(source)
    triton.jit(double)[(1,)](source, target, SIZE=128)
    assert torch.equal(target, source * 2)
    found = next(
        (name for name in ("cc", "gcc", "clang") if shutil.which(name)), "none on PATH"
    )
    return f"Triton {triton.__version__}, C compiler: {found}"


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


_TRIALS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("allocate", "memory is allocated, written and read", allocate),
    ("compute", "a kernel computes what the CPU computes", compute),
    ("copy", "host memory reaches the device, pinned and not", copy),
    ("graph", "a CUDA graph is captured and replayed on new values", graph),
    ("triton", "Triton compiles a kernel and runs it", compiled),
)


def tried(
    name: str, text: str, trial: Callable[[str], str], device: str
) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        status, observed = "confirmed", trial(device)
    except NotHere as why:
        status, observed = "not-tested", str(why)
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        status, observed = "refuted", f"{type(error).__name__}: {said}"
    seconds = round(time.perf_counter() - began, 3)
    return {
        "id": name,
        "text": text,
        "status": status,
        "observed": observed,
        "seconds": seconds,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    device = options.device
    if device == "cuda" and not torch.cuda.is_available():
        said = "torch finds no CUDA device here"
        print(json.dumps({"device": device, "error": said}) if options.json else said)
        return NOT_TRIED
    claims = [tried(*trial, device) for trial in _TRIALS]
    found = {
        "device": device,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "claims": claims,
    }
    if options.json:
        print(json.dumps(found))
    else:
        for claim in claims:
            print(f"{claim['status']:11} {claim['text']}: {claim['observed']}")
    return FAILS if any(claim["status"] == "refuted" for claim in claims) else WORKS


if __name__ == "__main__":
    sys.exit(main())
