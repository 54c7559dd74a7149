"""The operations of a case while they are sent, their clients, and what came of
them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from mmrepro.base.machine.files import cache_root
from mmrepro.base.records import Record
from mmrepro.engines.models.tiny import MODELS_DIR
from mmrepro.probes.data import ThreadStack
from mmrepro.traffic import Traffic
from mmrepro.traffic.case.bodies import NoValue, opened, placed, wire
from mmrepro.traffic.case.files import pictures, read_case
from mmrepro.traffic.case.model import LEAVE_S, Barrier, Operation
from mmrepro.traffic.drive import Drive, Picture
from mmrepro.traffic.evidence import Evidence, RequestRecord
from mmrepro.traffic.reading import Watch
from pydantic import Field


class PlayState(StrEnum):
    """How a play ended."""

    ENDED = "ended"
    """Every request has its answer, or its client went away as the case says."""
    START_FAILED = "start-failed"
    DIED = "died"
    """The server ended, and the player did not end it."""
    HUNG = "hung"
    """A request has no answer, and nothing moves any more."""


class Reading(Record):
    """The server's processes and counters at one moment, idle."""

    mono: float
    metrics: Annotated[
        dict[str, float], Field(description="all of /metrics, summed over label sets")
    ] = {}
    threads: int | None = None
    files: Annotated[
        int | None, Field(description="open descriptors, all processes")
    ] = None
    rss_bytes: int | None = None
    shm: Annotated[
        dict[str, int], Field(description="its files in /dev/shm: name, bytes")
    ] = {}

    def first(self, names: Iterable[str]) -> float | None:
        """The first metric of ``names`` that the server has; None: it has none of
        them."""
        return next(
            (self.metrics[name] for name in names if name in self.metrics), None
        )


class Played(Record):
    """One play of a case on one fresh server.

    ``evidence`` holds every request (its label is the operation's id; the canary's are
    ``canary before`` and ``canary after``) and what was looked at; ``before`` and
    ``after`` are readings of the idle server around the operations, ``blocks`` further
    ones, taken idle, after equal blocks of requests where the play was asked for them.
    """

    state: PlayState
    said: Annotated[str, Field(description="one sentence on how it ended")] = ""
    evidence: Evidence = Evidence()
    before: Reading | None = None
    after: Reading | None = None
    blocks: list[Reading] = []
    stuck: Annotated[
        list[str], Field(description="operations without an answer at the end")
    ] = []
    unsent: Annotated[
        list[str], Field(description="operations that were never sent")
    ] = []
    exit_code: int | None = None
    ends_itself: Annotated[
        bool,
        Field(
            description=(
                "died: its log says what ended it, or that it ends its processes"
            )
        ),
    ] = False
    stack: Annotated[
        list[ThreadStack],
        Field(description="hung: the core's threads as they stand, busiest first"),
    ] = []
    log_file: Annotated[
        str, Field(description="the engine's log, below the play's folder")
    ] = ""
    causes: Annotated[
        list[str],
        Field(description="first exceptions in the log, or why it did not start"),
    ] = []
    frames: Annotated[
        list[str],
        Field(
            description="innermost first: function names of that exception's traceback"
        ),
    ] = []
    start_s: Annotated[float, Field(description="seconds from the start to ready")] = (
        0.0
    )
    seconds: Annotated[
        float, Field(description="of the whole play, with start and stop")
    ] = 0.0
    device: Annotated[str, Field(description="that the server ran on: cpu or cuda")] = (
        "cpu"
    )
    loop_ended: Annotated[
        str, Field(description="by the log: the exception that ended the engine's loop")
    ] = ""
    bodies: Annotated[
        dict[str, str],
        Field(
            description=(
                "by operation, its answer as it came, where the play was asked for them"
            )
        ),
    ] = {}
    headers: Annotated[
        dict[str, dict[str, str]],
        Field(description="by operation, those of its answer, likewise"),
    ] = {}
    deadline_s: Annotated[
        float, Field(description="silence from then on is a hang")
    ] = 0.0
    early: Annotated[
        bool, Field(description="judged before the deadline, by what stands still")
    ] = False

    def record(self, op: str) -> RequestRecord | None:
        """The request of operation ``op``; None: it was not sent."""
        return next((r for r in self.evidence.requests if r.label == op), None)


Time = Literal["fast", "real", "order"]


class Barriers:
    """What was sent, what came and what has ended, and so who is next.

    A barrier that can never hold any more counts as held: the end of an operation
    fulfils all of its own, and where nothing runs and nobody may go, the first in the
    file goes. So every operation is sent at last, whatever the barriers say.

    Attributes:
        unsent: operations that were not sent yet, in the order of the file, by id.
        running: ids of those that were sent and have not ended.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        time: Time = "fast",
        ended: Collection[str] = (),
    ) -> None:
        """``ended``: operations before these, all of which have ended."""
        self.time = time
        self.unsent = {op.id: op for op in operations}
        self.running: set[str] = set()
        self._waits = {
            op.id: [
                *map(Barrier.parse, [*op.after, *(f"{one}.end" for one in op.sources)])
            ]
            for op in operations
        }
        self._first_at = min(
            (op.at_s for op in operations if op.at_s is not None), default=0.0
        )
        self._written: set[str] = set()
        self._pieces: dict[str, int] = {}
        self._ended = set(ended)
        waited = [barrier for waits in self._waits.values() for barrier in waits]
        self._counted = {b.op for b in waited if b.event in ("first-token", "tokens")}

    def ready(self, elapsed_s: float = math.inf) -> list[Operation]:
        """Those that may be sent now, in the order of the file; they run from now on.

        ``elapsed_s``: since the first one was sent; with ``real`` time later ones wait
        for theirs."""
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
        """When the next one's time comes, after ``elapsed_s``; None: no time is waited
        for."""
        later = (
            due for op in self.unsent.values() if (due := self._due_s(op)) > elapsed_s
        )
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


# ------------------------------------------------------------------ clients

GIVE_UP_S = 5.0
DYING_S = 1.0
"""Seconds, at most, from a broken connection until the end of the server's process is
seen."""
MOST_BODY = 64 << 10
"""Characters of an answer that are kept as they came."""


class Sending:
    """What is under way to one server.

    Attributes:
        pending: by label, requests that have no answer yet, and since when nothing came
            of them, monotonic seconds.
        alive: asked before anything is sent; once it says no, nothing more is.
        unsent: ids of operations that will not be sent any more.
        progress: number that grows whenever a client sees anything; ``progressed``:
            when.
        times: by operation, monotonic seconds: sent, each piece of its answer, ended.
        headers: by operation, those of its answer, where bodies are kept.
        stopped: by ``stop``.
    """

    def __init__(
        self,
        traffic: Traffic,
        pictures: Mapping[str, Picture],
        deadline_s: float,
        at: Time,
        *,
        bodies: bool = False,
    ) -> None:
        """``bodies``: keep each answer as it came, and its headers."""
        self.traffic, self.pictures, self.deadline_s, self.time = (
            traffic,
            pictures,
            deadline_s,
            at,
        )
        self.pending: dict[str, tuple[asyncio.Task[RequestRecord], float]] = {}
        self.unsent: list[str] = []
        self.progress, self.progressed = 0, time.monotonic()
        self.alive: Callable[[], bool] = lambda: True
        self.times: dict[str, list[float]] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.stopped = asyncio.Event()
        self._ended: set[str] = set()
        self._broke = -math.inf
        self._answers: dict[str, str] = {}
        self._all = bodies
        self._changed = asyncio.Event()

    async def perform(self, operations: Sequence[Operation]) -> None:
        """Send them by their barriers until all have ended, or until it is stopped."""
        barriers = Barriers(operations, self.time, self._ended)
        for op in operations:
            for id in (*op.sources, *([op.id] if self._all else [])):
                self._answers.setdefault(id, "")
        began = time.monotonic()
        while (barriers.unsent or barriers.running) and not self.stopped.is_set():
            self._changed.clear()
            if barriers.unsent and not await self._lives():
                break
            elapsed = time.monotonic() - began
            for op in barriers.ready(elapsed):
                self._launch(op, barriers)
            due = barriers.next_due_s(elapsed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - elapsed):
                    await self._changed.wait()
        self.unsent += barriers.unsent

    async def _lives(self) -> bool:
        """Whether the server runs; where a connection broke, that is known a moment
        later."""
        while alive := self.alive():
            if self.stopped.is_set() or time.monotonic() > self._broke + DYING_S:
                break
            await asyncio.sleep(DYING_S / 20)
        return alive

    @property
    def bodies(self) -> dict[str, str]:
        """Answers as they came, by operation, cut at :data:`MOST_BODY`; {}: none are
        kept."""
        return (
            {id: text[:MOST_BODY] for id, text in self._answers.items()}
            if self._all
            else {}
        )

    def stop(self) -> None:
        """Send nothing more, and wait for nothing."""
        self.stopped.set()
        self._changed.set()

    async def ask(
        self, label: str, data: bytes, path: str, text: str
    ) -> RequestRecord | None:
        """A request of that ``text`` beside the operations; None: it has no answer, and
        waits."""
        watch = Watch(sent=self._moved, piece=lambda _: self._moved())
        sending = self.traffic.send(
            label, data, watch, path=path, text=text, deadline_s=self.deadline_s
        )
        task = self._begun(label, sending)
        stopped = asyncio.ensure_future(self.stopped.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return task.result() if task.done() else None

    def hold(self) -> None:
        """Nobody gives up: what is to be looked at may be over when a client goes
        away."""
        for task, _ in self.pending.values():
            self.traffic.hold(task)

    async def give_up(self, within_s: float = 0.0) -> None:
        """Whoever has no answer ``within_s`` seconds goes."""
        tasks = {task for task, _ in self.pending.values()}
        if tasks and within_s:
            await asyncio.wait(tasks, timeout=within_s)
        for task in tasks:
            self.traffic.release(task, now=True)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=GIVE_UP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # ------------------------------------------------------------------ inner workings

    def _launch(self, op: Operation, barriers: Barriers) -> None:
        def written() -> None:
            barriers.written(op.id)
            self._moved(wake=True)

        def piece(pieces: int) -> None:
            now = time.monotonic()
            times.append(now)
            self.pending[op.id] = self.pending[op.id][0], now
            self._moved(wake=barriers.piece(op.id, pieces))

        def heard(data: bytes) -> None:
            if op.id in self._answers:
                self._answers[op.id] += data.decode("utf-8", "replace")

        def headed(told: Mapping[str, str]) -> None:
            if self._all:
                self.headers[op.id] = dict(told)

        models = cache_root() / MODELS_DIR
        try:
            sent = wire(
                placed(op, models), self.pictures, self.traffic.model, self._answers
            )
        except NoValue as why:
            self.traffic.recorder.event(f"{op.id} is not sent: {why}", level="warning")
            self.unsent.append(op.id)
            barriers.end(op.id)
            self._changed.set()
            return
        told = opened(op)
        left_after = LEAVE_S.match(op.leave)
        leave_s = float(left_after[1]) if left_after else None
        watch = Watch(written, piece, leave_at(op), leave_s, heard, headed)
        texts = [
            p.text for m in told.messages or [] for p in m.parts() if p.text is not None
        ]
        limit = told.parameters.get(
            "max_tokens", told.parameters.get("max_completion_tokens")
        )
        sending = self.traffic.send(
            op.id,
            sent.body,
            watch,
            path=op.path,
            target=sent.target,
            method=sent.method,
            headers=sent.headers,
            stream=told.stream,
            images=[self.pictures[name].sent() for name in op.images],
            text=told.prompt if isinstance(told.prompt, str) else "\n".join(texts),
            max_tokens=limit if type(limit) is int else None,
            deadline_s=self.deadline_s,
        )

        def ended(task: asyncio.Task[RequestRecord]) -> None:
            times.append(time.monotonic())
            if not task.cancelled() and not task.exception() and task.result().broken:
                self._broke = times[-1]
            barriers.end(op.id)
            self._ended.add(op.id)
            self._moved(wake=True)

        times = self.times[op.id] = [time.monotonic()]
        self._begun(op.id, sending).add_done_callback(ended)

    def _begun(
        self, label: str, sending: Coroutine[Any, Any, RequestRecord]
    ) -> asyncio.Task[RequestRecord]:
        task = asyncio.ensure_future(sending)
        self.pending[label] = task, time.monotonic()

        def ended(_: object) -> None:
            self.pending.pop(label, None)
            self._moved()

        task.add_done_callback(ended)
        return task

    def _moved(self, *, wake: bool = False) -> None:
        self.progress += 1
        self.progressed = time.monotonic()
        if wake:
            self._changed.set()


def leave_at(op: Operation) -> int | None:
    """At how many pieces its client goes away; 0: once it is sent; None: it stays, or
    goes by the clock."""
    if not op.leave or LEAVE_S.match(op.leave):
        return None
    barrier = Barrier.parse(op.leave)
    return {"sent": 0, "first-token": 1}.get(barrier.event, barrier.count)


# ------------------------------------------------------------------------- as a trigger

LOOK_S = 0.1


async def play_case(drive: Drive, folder: Path) -> bool:
    """Send the requests of the case in ``folder`` by its barriers, called by their ids.

    A request without an answer, while nothing else moves, ends it: the request waits
    on, as with ``Drive.ask``, and what would come later is not sent. Whether all of it
    was sent.

    Raises:
        UsageError: there is no case, or a picture of it is missing.
    """
    case, contents = read_case(folder)
    sending = Sending(drive.traffic, pictures(case, contents), drive.deadline_s, "fast")
    performing = asyncio.ensure_future(sending.perform(case.operations))
    try:
        while not (await asyncio.wait({performing}, timeout=LOOK_S))[0]:
            if (
                sending.pending
                and time.monotonic() - sending.progressed > drive.suspect_s
            ):
                sending.stop()
                sending.hold()
    finally:
        drive.pending += [task for task, _ in sending.pending.values()]
    await performing
    drive.fact("operations_unsent", len(sending.unsent))
    return not sending.unsent
