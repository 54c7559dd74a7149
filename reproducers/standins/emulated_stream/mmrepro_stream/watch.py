"""What the stand-in sees of host memory that the device has still to read.

Two things are told apart. *Overwritten*: the host wrote to a buffer while a copy out of
it was queued; whether it wrote other values does not matter, the program is wrong
either way. *Changed*: the device read other values than those that were there at the
launch."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

MAX_LINES = 400
"""Of each kind of line: a long run must not fill the disk."""


@dataclass
class Copy:
    """A queued copy out of a host buffer: elements ``start`` to ``stop``, launched in
    ``step``."""

    buffer: Hashable
    start: int
    stop: int
    step: int
    overwritten_in: list[int] = field(default_factory=list)


@dataclass
class _MergeStep:
    """A step of the engine that merges image rows.

    ``prepared`` and ``read``: rows that the host marked as image rows, and that the
    device saw.
    ``differing``: rows marked differently. ``embeddings``: rows to be put there.
    """

    number: int
    embeddings: int = 0
    prepared: int | None = None
    read: int | None = None
    differing: int = 0

    @property
    def changed(self) -> bool:
        return self.differing > 0


class Watch:
    """Keeps the copies that are queued, and tells of each step in a line of the log.

    Args:
        tell: gets each line, without a newline.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.names: dict[Hashable, str] = {}
        self.step = _MergeStep(0)
        self.early = 0
        self.overwrites = 0
        self.silent = 0
        self._queued: dict[Hashable, list[Copy]] = {}
        self._tell = tell
        self._told: dict[str, int] = {}

    def begin(self, *, busy: bool = False) -> _MergeStep:
        """The host begins a step; ``busy``: the device has still to do work of those
        before.

        How many of all did so is told of the first, second, fourth, eighth step, and so
        on."""
        self.step = _MergeStep(self.step.number + 1)
        self.early += busy
        begun = self.step.number
        if begun & (begun - 1) == 0:
            self._line(
                "steps",
                f"steps: {begun} begun, {self.early} with the device still busy",
            )
        return self.step

    def copy_queued(self, buffer: Hashable, start: int, stop: int) -> Copy:
        copy = Copy(buffer, start, stop, self.step.number)
        self._queued.setdefault(buffer, []).append(copy)
        return copy

    def copy_runs(self, copy: Copy) -> None:
        self._queued[copy.buffer].remove(copy)

    def host_writes(self, buffer: Hashable, start: int, stop: int) -> None:
        """The host writes elements ``start`` to ``stop`` of ``buffer`` now."""
        for copy in self._queued.get(buffer, ()):
            if max(start, copy.start) < min(stop, copy.stop):
                first = self.step.number not in copy.overwritten_in
                copy.overwritten_in.append(self.step.number)
                if first:
                    self.overwrites += 1
                    self._line(
                        "overwrite",
                        f"step {self.step.number}: overwrite: the host writes "
                        f"{self.names.get(buffer, 'a buffer')}[{start}:{stop}] while "
                        f"the copy of [{copy.start}:{copy.stop}] of step {copy.step} "
                        "is queued",
                    )

    def mask_read(
        self, step: _MergeStep, prepared: int, read: int, differing: int
    ) -> None:
        """The device has copied the mask of image rows of ``step``."""
        step.prepared, step.read, step.differing = prepared, read, differing
        if step.embeddings or step.changed:
            self._line(
                "mask",
                f"step {step.number}: mask: {step.embeddings} embeddings, {prepared} "
                f"image rows prepared, {read} read, {differing} rows differ",
            )

    def ended(self, step: _MergeStep) -> None:
        """The device has done all work of ``step`` without an error."""
        if step.embeddings and step.changed:
            self.silent += 1
            self._line(
                "silent",
                f"step {step.number}: silent: no error, but {step.embeddings} "
                f"embeddings went by a mask with {step.differing} wrong rows",
            )

    def failed(self, step: _MergeStep, error: BaseException) -> None:
        self._line(
            "error",
            f"step {step.number}: device error with {step.embeddings} embeddings, "
            f"{step.prepared} image rows prepared, {step.read} read: "
            f"{type(error).__name__}: {error}"[:600],
        )

    def _line(self, kind: str, text: str) -> None:
        self._told[kind] = self._told.get(kind, 0) + 1
        if self._told[kind] <= MAX_LINES:
            self._tell(text)
