"""A device that is behind what it was told to do: a GPU, the emulated stream, or a CPU's none.

For ``pinned_reuse.py`` and ``pinned_mask.py``; torch and the standard library are all it needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

NAMES = ("cuda", "cpu", "emulated")
BUSY_MS = 40.0
"""What the device is given to do before the copy: a vision tower takes about as long."""
EMULATED = Path(__file__).parent / "standins" / "emulated_stream"


def missing(name: str) -> str:
    """Why there is no device called ``name``; "" if there is."""
    os.environ.pop("CUDA_LAUNCH_BLOCKING", None)  # with it nothing is ever late
    if name == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device here; --device emulated shows what is predicted"
    return ""


class Cpu:
    """Everything is done when it is launched."""

    name = "cpu"
    graphs = False

    def buffer(self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> Any:
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
        sys.path.insert(0, str(EMULATED))
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

    def buffer(self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> Any:
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

    def _scaled(self, launch: Callable[[int], None], sample: int, busy_ms: float) -> int:
        """How much of ``launch`` takes ``busy_ms``; the second run counts, the first is cold."""
        for _ in range(2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            launch(sample)
            end.record()
            torch.cuda.synchronize()
        return max(1, round(sample * busy_ms / max(start.elapsed_time(end), 1e-3)))

    def buffer(self, count: int, *, pinned: bool, dtype: torch.dtype = torch.uint8) -> Any:
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
