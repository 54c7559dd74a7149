"""The device's queue: work runs in order, and as late as the host's own waiting allows.

A real stream runs queued work at some time between its launch and the moment when
somebody has waited for it. This one always takes the latest moment, which makes every
run the same: what a program relies on without waiting for it goes wrong each time, and
what it waits for is right."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Work = Callable[[], object]


class DeviceError(RuntimeError):
    """Queued work failed. As on a GPU, the error shows where the host next waits, and
    stays."""


class Stream:
    """Work in the order of its launch.

    Args:
        around: entered while work runs, e.g. ``torch.inference_mode``.
        on_error: told once of what failed, before anybody waits for it.
    """

    def __init__(
        self,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        on_error: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.launched = 0
        self.done = 0
        self.error: BaseException | None = None
        self._around = around
        self._on_error = on_error
        self._queue: deque[Work] = deque()
        self._lock = threading.RLock()
        self._running = False

    def launch(self, work: Work) -> int:
        """Put ``work`` at the end; returns its position, counted from 1."""
        with self._lock:
            self._queue.append(work)
            self.launched += 1
            return self.launched

    def wait(self, position: int | None = None) -> None:
        """Run everything up to ``position`` (None: all that was launched).

        Raises:
            DeviceError: some of the work, this or earlier, failed.
        """
        with self._lock:
            if self._running:  # work that reads a value of its own device
                return
            target = self.launched if position is None else position
            self._running = True
            try:
                while self.done < target:
                    self._run(self._queue.popleft())
                    self.done += 1
            finally:
                self._running = False
        if self.error is not None:
            said = f"{type(self.error).__name__}: {self.error}"
            raise DeviceError(f"emulated device error: {said}") from self.error

    def _run(self, work: Work) -> None:
        if self.error is not None:  # nothing runs on a device that has failed
            return
        try:
            with self._around():
                work()
        except Exception as error:
            self.error = error
            self._on_error(error)


class Event:
    """A position in the stream, as ``torch.Event`` and ``torch.cuda.Event``."""

    stream: Stream

    def __init__(self, *args: object, **options: object) -> None:
        self.position = 0

    def record(self, stream: object = None) -> None:
        self.position = self.stream.launched

    def synchronize(self) -> None:
        self.stream.wait(self.position)

    def wait(self, stream: object = None) -> None:
        """One stream only: what comes later waits anyway."""

    def query(self) -> bool:
        return self.stream.done >= self.position


class LazyFuture(Future[Any]):
    """Computed by whoever asks for the result first, in that thread; never done
    before."""

    def __init__(self, compute: Callable[[], object]) -> None:
        super().__init__()
        self._compute: Callable[[], object] | None = compute

    def result(self, timeout: float | None = None) -> Any:
        compute, self._compute = self._compute, None
        if compute is not None:
            try:
                self.set_result(compute())
            except Exception as error:
                self.set_exception(error)
        return super().result(timeout)


class LazyExecutor:
    """In place of a thread that waits for the device: nobody waits before a result is
    wanted."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def submit(
        self, compute: Callable[..., object], *args: Any, **options: Any
    ) -> LazyFuture:
        return LazyFuture(lambda: compute(*args, **options))

    def shutdown(self, *args: object, **options: object) -> None:
        pass
