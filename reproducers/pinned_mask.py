"""vLLM's mask of image rows, step by step, behind a vision tower that is not yet done.

``python pinned_mask.py --device cuda two-steps`` runs one case, in this process, and
prints it as
JSON: a device-side assert ends what CUDA can do in a process, so ``pinned_reuse.py``
runs each in a child. With ``--device emulated`` the device is
``standins/emulated_stream``.

The steps are vLLM 0.12.0's (``_gather_mm_embeddings``,
``_merge_multimodal_embeddings``): the host waits for an event, records it anew,
launches the tower, writes the mask's pinned buffer, queues its copy, and puts the
image's rows in with ``masked_scatter_``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

# ---------------------------------------------------------- a device that may be behind

NAMES = ("cuda", "cpu", "emulated")
BUSY_MS = 40.0
"""What the device is given to do before the copy: a vision tower takes about as
long."""
_EMULATED = Path(__file__).parent / "standins" / "emulated_stream"


def missing(name: str) -> str:
    """Why there is no device called ``name``; "" if there is."""
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)  # with it nothing is ever late
    if name == "cuda" and not torch.cuda.is_available():
        return (
            "torch finds no CUDA device here; --device emulated shows what is predicted"
        )
    return ""


class Cpu:
    """Everything is done when it is launched."""

    name = "cpu"
    graphs = False

    def buffer(
        self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8
    ) -> Any:
        """Host memory."""
        return torch.zeros(count, dtype=dtype)

    def blank(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Any:
        """Device memory."""
        return torch.zeros(shape, dtype=dtype)

    def work(self, kind: str) -> None:
        """``kind``: "sleep" or "matmul"."""

    def event(self) -> Any:
        return Done()

    def wait(self) -> None:
        """For all that was launched. Raises what the device raised."""

    def queueing(self) -> AbstractContextManager[object]:
        """Around what is launched; what is read afterwards stands outside."""
        return nullcontext()


class Done:
    """An event of a device that is never behind."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Emulated(Cpu):
    """``standins/emulated_stream``: work waits in a queue until somebody needs it."""

    name = "emulated"

    def __init__(self) -> None:
        sys.path.insert(0, str(_EMULATED))
        from mmrepro_stream.dispatch import Marks, StreamMode
        from mmrepro_stream.queue import Event, Stream
        from mmrepro_stream.watch import Watch
        from torch.utils._python_dispatch import _disable_current_modes

        @contextmanager
        def as_device() -> Iterator[None]:
            with _disable_current_modes(), torch.inference_mode():
                yield

        self.stream = Stream(as_device)
        self.marks = Marks()
        self.mode = StreamMode(self.stream, self.marks, Watch(lambda line: None))
        Event.stream = self.stream
        self._event = Event

    def event(self) -> Any:
        return self._event()

    def buffer(
        self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8
    ) -> Any:
        made = super().buffer(count, pinned=pinned, dtype=dtype)
        return self.marks.pinned(made) if pinned else made

    def blank(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Any:
        return self.marks.device(super().blank(*shape, dtype=dtype))

    def work(self, kind: str) -> None:
        self.stream.launch(lambda: None)

    def wait(self) -> None:
        self.stream.wait()

    def queueing(self) -> AbstractContextManager[object]:
        return self.mode


class Cuda(Cpu):
    """The current stream of the current GPU."""

    name = "cuda"
    graphs = True

    def __init__(self, busy_ms: float = BUSY_MS) -> None:
        self._wide = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._wide)
        self._cycles = self._scaled(lambda n: torch.cuda._sleep(n), 4_000_000, busy_ms)
        self._products = self._scaled(self._multiply, 20, busy_ms)

    def event(self) -> Any:
        return torch.cuda.Event()

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.matmul(self._wide, self._wide, out=self._out)

    def _scaled(
        self, launch: Callable[[int], None], sample: int, busy_ms: float
    ) -> int:
        """How much of ``launch`` takes ``busy_ms``; the second run counts, the first is
        cold."""
        for _ in range(2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            launch(sample)
            end.record()
            torch.cuda.synchronize()
        return max(1, round(sample * busy_ms / max(start.elapsed_time(end), 1e-3)))

    def buffer(
        self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8
    ) -> Any:
        made = torch.zeros(count, dtype=dtype, pin_memory=pinned)
        assert made.is_pinned() is pinned
        return made

    def blank(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Any:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    def work(self, kind: str) -> None:
        if kind == "matmul":
            self._multiply(self._products)
        else:
            torch.cuda._sleep(self._cycles)

    def wait(self) -> None:
        torch.cuda.synchronize()


def device_of(name: str) -> Cpu:
    return {"cpu": Cpu, "emulated": Emulated, "cuda": Cuda}[name]()


# --------------------------------------------------------------- the mask, step by step


@dataclass(frozen=True)
class Mask:
    """``is_mm_embed`` of one prompt, step by step, and what is scattered by it.

    Attributes:
        images: (offset, length) in tokens.
        prompt: tokens, images included; then two decode steps.
        order: "0.12.0": the event is recorded before the mask is written and copied;
            "event": after the copy (vllm#31373); "two-buffers": 0.12.0's event, buffers
            in turn (vllm#31841).
        emulation: what the emulated stream makes of the first step: "assert", "silent",
            "right".
    """

    name: str
    what: str
    images: tuple[tuple[int, int], ...]
    prompt: int
    order: str
    emulation: str
    budget: int = 2048


_REPORT = ((2, 4819),)
MASKS = (
    Mask("three-steps", "the report's image", _REPORT, 4900, "0.12.0", "assert"),
    Mask("two-steps", "an image of two steps", ((2, 2400),), 2410, "0.12.0", "silent"),
    Mask(
        "equal-count",
        "as many rows in each step, in other places",
        ((2, 1000), (2548, 1000)),
        3560,
        "0.12.0",
        "silent",
    ),
    Mask(
        "one-step",
        "an image of one step: right, by luck",
        ((2, 2000),),
        2010,
        "0.12.0",
        "right",
    ),
    Mask(
        "three-steps-event", "the event after the copy", _REPORT, 4900, "event", "right"
    ),
    Mask(
        "three-steps-two-buffers", "two buffers", _REPORT, 4900, "two-buffers", "right"
    ),
)
_HIDDEN = 64


@dataclass
class MaskResult:
    """Of one ``Mask``, in a process of its own: a device-side assert ends what CUDA can
    do there.

    Attributes:
        outcome: "assert" (masked_scatter refused), "silent" (wrong embeddings, no
            error), "right".
        rows: of each step: rows to be put in, and rows that the device's mask marked;
            None where a failed device tells no more.
        wrong: of each step, rows of the result that are not what they should be.
        error: what was raised, ``raised_by`` which call; ``stderr``: what the device
            printed.
        exit_code: of that process, as of ``subprocess``. After a device-side assert it
            is -6 where torch frees pinned memory: that asks the device, and what it
            raises nobody catches.
    """

    name: str
    what: str
    outcome: str = ""
    emulation: str = ""
    as_emulated: bool | None = None
    rows: list[tuple[int, int | None]] = field(default_factory=list)
    wrong: list[int | None] = field(default_factory=list)
    error: str = ""
    raised_by: str = ""
    stderr: str = ""
    exit_code: int = 0


def _mask_steps(case: Mask) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """(first token, tokens, image rows from and to) of each step of ``case``."""
    done = 0
    while done < case.prompt + 2:
        count = min(case.budget, case.prompt - done) if done < case.prompt else 1
        rows = [(max(a - done, 0), min(a + n - done, count)) for a, n in case.images]
        yield done, count, [(a, b) for a, b in rows if a < b]
        done += count


_KEPT: list[Any] = []
"""Buffers that are freed only when all is told."""


def _run_mask(device: Cpu, case: Mask) -> MaskResult:
    """In this process. As vLLM's ``_gather_mm_embeddings`` and
    ``_merge_multimodal_embeddings``."""
    result = MaskResult(case.name, case.what, emulation=case.emulation)
    pairs = [
        (
            device.buffer(case.budget, pinned=True, dtype=torch.bool),
            device.blank(case.budget, dtype=torch.bool),
        )
        for _ in range(2 if case.order == "two-buffers" else 1)
    ]
    _KEPT.extend(pairs)
    steps = list(_mask_steps(case))
    total = case.prompt + 2
    embeddings = device.blank(total, _HIDDEN, dtype=torch.float32)
    embeddings.copy_(torch.arange(1, total + 1).float()[:, None].expand(-1, _HIDDEN))
    made = [device.blank(count, _HIDDEN, dtype=torch.float32) for _, count, _ in steps]
    marked = [device.blank(1, dtype=torch.int64) for _ in steps]
    prepared = device.event()

    def run(*, ordered: bool) -> None:
        for number, (first, count, spans) in enumerate(steps):
            result.raised_by = f"step {number + 1}: the event"
            prepared.synchronize()
            result.raised_by = f"step {number + 1}: a launch"
            if case.order != "event":
                prepared.record()
            if not number:
                device.work("sleep")  # the vision tower
            host, mask = pairs[number % len(pairs)]
            host[:count] = False
            for start, end in spans:
                host[start:end] = True
            mask[:count].copy_(host[:count], non_blocking=True)
            if case.order == "event":
                prepared.record()
            marked[number].copy_(mask[:count].sum().view(1))
            if spans:
                rows = torch.cat([embeddings[first + a : first + b] for a, b in spans])
                made[number].masked_scatter_(mask[:count][:, None], rows)
            if ordered:
                device.wait()
        result.raised_by = "synchronize"
        device.wait()
        result.raised_by = ""

    # What is loaded or allocated at its first use may wait for the device: once in
    # order first.
    run(ordered=True)
    for tensor in made:
        tensor.zero_()
    device.wait()
    try:
        with device.queueing():
            run(ordered=False)
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"[:2000]
        result.outcome = "assert"
        result.rows = [(sum(b - a for a, b in spans), None) for *_, spans in steps]
        result.as_emulated = result.outcome == case.emulation
        return result
    for (first, count, spans), got, ones in zip(steps, made, marked, strict=True):
        wanted = torch.zeros(count, _HIDDEN)
        for a, b in spans:
            wanted[a:b] = torch.arange(first + a + 1, first + b + 1).float()[:, None]
        result.rows.append((sum(b - a for a, b in spans), int(ones.cpu())))
        result.wrong.append(int((got.cpu() != wanted).any(dim=1).sum()))
    result.outcome = "silent" if any(result.wrong) else "right"
    result.as_emulated = result.outcome == case.emulation
    return result


def masked(name: str, case: Mask) -> MaskResult:
    """``_run_mask``; on a GPU in a child, with what that printed."""
    if name != "cuda":
        return _run_mask(device_of(name), case)
    command = [sys.executable, __file__, "--device", name, case.name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    lines = done.stdout.splitlines()
    if lines and lines[-1].startswith("{"):
        result = MaskResult(**json.loads(lines[-1]))
    else:
        result = MaskResult(case.name, case.what, "no answer", case.emulation, False)
    if result.outcome in ("assert", "no answer"):
        result.stderr = done.stderr[-4000:]
    return replace(result, exit_code=done.returncode)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=NAMES, default="cuda")
    parser.add_argument("case", choices=[case.name for case in MASKS])
    options = parser.parse_args(argv)
    if why := missing(options.device):
        print(json.dumps({"device": options.device, "error": why}))
        return 4
    case = next(case for case in MASKS if case.name == options.case)
    print(json.dumps(asdict(_run_mask(device_of(options.device), case))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
