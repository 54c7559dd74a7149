"""Which operation may be sent now: the barriers of a case, as a machine that nothing waits in."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from mmrepro.case.model import Barrier, Operation

Time = Literal["fast", "real", "order"]


class Barriers:
    """What was sent, what came and what has ended, and so who is next.

    A barrier that can never hold any more counts as held: the end of an operation fulfils all of
    its own, and where nothing runs and nobody may go, the first in the file goes. So every
    operation is sent at last, whatever the barriers say.

    Attributes:
        unsent: operations that were not sent yet, in the order of the file, by id.
        running: ids of those that were sent and have not ended.
    """

    def __init__(
        self, operations: Sequence[Operation], time: Time = "fast", ended: Collection[str] = ()
    ) -> None:
        """``ended``: operations before these, all of which have ended."""
        self.time = time
        self.unsent = {op.id: op for op in operations}
        self.running: set[str] = set()
        self._waits = {op.id: [Barrier.parse(text) for text in op.after] for op in operations}
        self._first_at = min((op.at_s for op in operations if op.at_s is not None), default=0.0)
        self._written: set[str] = set()
        self._pieces: dict[str, int] = {}
        self._ended = set(ended)
        waited = [barrier for waits in self._waits.values() for barrier in waits]
        self._counted = {b.op for b in waited if b.event in ("first-token", "tokens")}

    def ready(self, elapsed_s: float = math.inf) -> list[Operation]:
        """Those that may be sent now, in the order of the file; they run from now on.

        ``elapsed_s``: since the first one was sent; with ``real`` time later ones wait for theirs.
        """
        going = []
        while (op := self._next(elapsed_s)) is not None:
            del self.unsent[op.id]
            self.running.add(op.id)
            going.append(op)
        return going

    def _next(self, elapsed_s: float) -> Operation | None:
        if self.time == "order":
            return None if self.running else next(iter(self.unsent.values()), None)
        due = [op for op in self.unsent.values() if self._due_s(op) <= elapsed_s]
        for op in due:
            if all(self._holds(barrier) for barrier in self._waits[op.id]):
                return op
        later = len(due) < len(self.unsent)
        return None if self.running or later else next(iter(due), None)

    def next_due_s(self, elapsed_s: float) -> float | None:
        """When the next one's time comes, after ``elapsed_s``; None: no time is waited for."""
        later = (due for op in self.unsent.values() if (due := self._due_s(op)) > elapsed_s)
        return min(later, default=None)

    def written(self, id: str) -> None:
        """The request is out."""
        self._written.add(id)

    def piece(self, id: str, pieces: int) -> bool:
        """So many tokens of the answer have come; whether anybody may wait for that."""
        self._pieces[id] = pieces
        return id in self._counted

    def end(self, id: str) -> None:
        """Answered, refused, given up, or its client went away."""
        self.running.discard(id)
        self._ended.add(id)

    def _due_s(self, op: Operation) -> float:
        if self.time != "real" or op.at_s is None:
            return -math.inf
        return op.at_s - self._first_at

    def _holds(self, barrier: Barrier) -> bool:
        match barrier.event:
            case "running>=":
                return len(self.running) >= barrier.count
            case "running<=":
                return len(self.running) <= barrier.count
        if barrier.op in self._ended:
            return True
        match barrier.event:
            case "sent":
                return barrier.op in self._written
            case "first-token":
                return self._pieces.get(barrier.op, 0) >= 1
            case "tokens":
                return self._pieces.get(barrier.op, 0) >= barrier.count
        return False
