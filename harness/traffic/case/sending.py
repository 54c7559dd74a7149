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

from mmrepro.base.machine import cache_root
from mmrepro.base.records import Record
from mmrepro.engines.models import MODELS_DIR
from mmrepro.probes import ThreadStack
from mmrepro.traffic.case.bodies import NoValue, opened, placed, wire
from mmrepro.traffic.case.files import pictures, read_case
from mmrepro.traffic.case.model import LEAVE_S, Barrier, Operation
from mmrepro.traffic.client import Traffic
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import Evidence, RequestRecord
from mmrepro.traffic.pictures import Picture
from mmrepro.traffic.reading import RequestWatch
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
        """Return the first metric of ``names`` that the server has; None: it has none of
        them."""
        for name in names:
            if name in self.metrics:
                return self.metrics[name]
        return None


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
    places: Annotated[
        list[str],
        Field(
            description="the same with file and line",
            exclude_if=lambda places: not places,
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
        """Return the request of operation ``op``; None: it was not sent."""
        for request in self.evidence.requests:
            if request.label == op:
                return request
        return None


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
        self._waits: dict[str, list[Barrier]] = {}
        self._counted: set[str] = set()
        """Operations whose pieces somebody waits for."""
        for op in operations:
            # What it takes a value from must have ended, too.
            texts = [*op.after, *(f"{source}.end" for source in op.sources)]
            barriers = [Barrier.parse(text) for text in texts]
            self._waits[op.id] = barriers
            for barrier in barriers:
                if barrier.event in ("first-token", "tokens"):
                    self._counted.add(barrier.op)
        times = [op.at_s for op in operations if op.at_s is not None]
        self._first_at = min(times, default=0.0)
        self._written: set[str] = set()
        self._pieces: dict[str, int] = {}
        self._ended = set(ended)

    def ready(self, elapsed_s: float = math.inf) -> list[Operation]:
        """Return those that may be sent now, in the order of the file; they run from now
        on.

        ``elapsed_s``: since the first one was sent; with ``real`` time later ones wait
        for theirs."""
        going: list[Operation] = []
        # Each that goes counts as running for the barriers of the next.
        while (op := self._next(elapsed_s)) is not None:
            del self.unsent[op.id]
            self.running.add(op.id)
            going.append(op)
        return going

    def _next(self, elapsed_s: float) -> Operation | None:
        """Return the one that may be sent now; None: none may."""
        if self.time == "order":
            return None if self.running else self._first(self.unsent.values())
        due = [op for op in self.unsent.values() if self._due_s(op) <= elapsed_s]
        for op in due:
            if all(self._holds(barrier) for barrier in self._waits[op.id]):
                return op

        # Where nothing runs and nothing is still to come, no barrier will hold any more.
        later = len(due) < len(self.unsent)
        return None if self.running or later else self._first(due)

    @staticmethod
    def _first(operations: Iterable[Operation]) -> Operation | None:
        return next(iter(operations), None)

    def next_due_s(self, elapsed_s: float) -> float | None:
        """Return when the next one's time comes, after ``elapsed_s``; None: no time is
        waited for."""
        times = [self._due_s(op) for op in self.unsent.values()]
        return min((due for due in times if due > elapsed_s), default=None)

    def written(self, id: str) -> None:
        """Note that the request is out."""
        self._written.add(id)

    def piece(self, id: str, pieces: int) -> bool:
        """Note how many tokens of the answer have come; return whether anybody may wait for
        that."""
        self._pieces[id] = pieces
        return id in self._counted

    def end(self, id: str) -> None:
        """Note that it was answered, refused, given up, or its client went away."""
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

_GIVE_UP_S = 5.0
_DYING_S = 1.0
"""Seconds, at most, from a broken connection until the end of the server's process is
seen."""
_MOST_BODY = 64 << 10
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
        self.traffic = traffic
        self.pictures = pictures
        self.deadline_s = deadline_s
        self.time = at
        self.pending: dict[str, tuple[asyncio.Task[RequestRecord], float]] = {}
        self.unsent: list[str] = []
        self.progress = 0
        self.progressed = time.monotonic()
        self.alive: Callable[[], bool] = lambda: True
        self.times: dict[str, list[float]] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.stopped = asyncio.Event()
        self._ended: set[str] = set()
        self._broke = -math.inf
        self._answers: dict[str, str] = {}
        self._keeps_all = bodies
        self._changed = asyncio.Event()

    async def perform(self, operations: Sequence[Operation]) -> None:
        """Send them by their barriers until all have ended, or until it is stopped."""
        barriers = Barriers(operations, self.time, self._ended)
        for op in operations:
            kept = [*op.sources, op.id] if self._keeps_all else op.sources
            for id in kept:
                self._answers.setdefault(id, "")
        began = time.monotonic()
        while (barriers.unsent or barriers.running) and not self.stopped.is_set():
            # Cleared before anything is looked at: a change meanwhile wakes it at once.
            self._changed.clear()
            if barriers.unsent and not await self._lives():
                break
            elapsed = time.monotonic() - began
            for op in barriers.ready(elapsed):
                self._launch(op, barriers)
            due = barriers.next_due_s(elapsed)
            timeout = None if due is None else due - elapsed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
        self.unsent += barriers.unsent

    async def _lives(self) -> bool:
        """Whether the server runs; where a connection broke, that is known a moment
        later."""
        while alive := self.alive():
            if self.stopped.is_set() or time.monotonic() > self._broke + _DYING_S:
                break
            await asyncio.sleep(_DYING_S / 20)
        return alive

    @property
    def bodies(self) -> dict[str, str]:
        """Answers as they came, by operation, cut at :data:`_MOST_BODY`; {}: none are
        kept."""
        if not self._keeps_all:
            return {}
        return {id: text[:_MOST_BODY] for id, text in self._answers.items()}

    def stop(self) -> None:
        """Send nothing more, and wait for nothing."""
        self.stopped.set()
        self._changed.set()

    async def ask(
        self, label: str, data: bytes, path: str, text: str
    ) -> RequestRecord | None:
        """Send a request of that ``text`` beside the operations; None: it has no answer,
        and waits."""
        watch = RequestWatch(sent=self._moved, piece=lambda _: self._moved())
        sending = self.traffic.send(
            label, data, watch, path=path, text=text, deadline_s=self.deadline_s
        )
        task = self._begun(label, sending)
        stopped = asyncio.ensure_future(self.stopped.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return task.result() if task.done() else None

    def hold(self) -> None:
        """Let nobody give up: what is to be looked at may be over when a client goes
        away."""
        for task, _ in self.pending.values():
            self.traffic.hold(task)

    async def give_up(self, within_s: float = 0.0) -> None:
        """Let everybody go who has no answer ``within_s`` seconds."""
        tasks = {task for task, _ in self.pending.values()}
        if not tasks:
            return
        if within_s:
            await asyncio.wait(tasks, timeout=within_s)
        for task in tasks:
            self.traffic.release(task, now=True)
        _, late = await asyncio.wait(tasks, timeout=_GIVE_UP_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    # ------------------------------------------------------------------ inner workings

    def _launch(self, op: Operation, barriers: Barriers) -> None:
        """Begin to send an operation, unless an earlier answer lacks what it takes."""
        models = cache_root() / MODELS_DIR
        model = self.traffic.model
        try:
            sent = wire(placed(op, models), self.pictures, model, self._answers)
        except NoValue as why:
            self.traffic.recorder.event(f"{op.id} is not sent: {why}", level="warning")
            self.unsent.append(op.id)
            barriers.end(op.id)
            self._changed.set()
            return
        parts = opened(op)
        sending = self.traffic.send(
            op.id,
            sent.body,
            self._watch(op, barriers),
            path=op.path,
            target=sent.target,
            method=sent.method,
            headers=sent.headers,
            stream=parts.stream,
            images=[self.pictures[name].sent() for name in op.images],
            text=_prompt_text(parts),
            max_tokens=_limit(parts),
            deadline_s=self.deadline_s,
        )
        times = [time.monotonic()]
        self.times[op.id] = times

        def ended(task: asyncio.Task[RequestRecord]) -> None:
            times.append(time.monotonic())
            if not task.cancelled() and not task.exception() and task.result().broken:
                self._broke = times[-1]
            barriers.end(op.id)
            self._ended.add(op.id)
            self._moved(wake=True)

        self._begun(op.id, sending).add_done_callback(ended)

    def _watch(self, op: Operation, barriers: Barriers) -> RequestWatch:
        """Return who tells the barriers, and keeps, what comes of an operation."""

        def written() -> None:
            barriers.written(op.id)
            self._moved(wake=True)

        def piece(pieces: int) -> None:
            now = time.monotonic()
            self.times[op.id].append(now)
            task, _ = self.pending[op.id]
            self.pending[op.id] = task, now
            self._moved(wake=barriers.piece(op.id, pieces))

        def heard(data: bytes) -> None:
            if op.id in self._answers:
                self._answers[op.id] += data.decode("utf-8", "replace")

        def headed(headers: Mapping[str, str]) -> None:
            if self._keeps_all:
                self.headers[op.id] = dict(headers)

        left_after = LEAVE_S.match(op.leave)
        leave_s = float(left_after[1]) if left_after else None
        return RequestWatch(written, piece, leave_at(op), leave_s, heard, headed)

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


def _prompt_text(operation: Operation) -> str:
    """Return the text of a prompt, or of all its messages."""
    if isinstance(operation.prompt, str):
        return operation.prompt
    texts: list[str] = []
    for message in operation.messages or []:
        for part in message.parts():
            if part.text is not None:
                texts.append(part.text)
    return "\n".join(texts)


def _limit(operation: Operation) -> int | None:
    """Return how many tokens it asks for, at most."""
    parameters = operation.parameters
    limit = parameters.get("max_tokens", parameters.get("max_completion_tokens"))
    return limit if type(limit) is int else None


def leave_at(op: Operation) -> int | None:
    """Return at how many pieces its client goes away; 0: once it is sent; None: it
    stays, or goes by the clock."""
    if not op.leave or LEAVE_S.match(op.leave):
        return None
    barrier = Barrier.parse(op.leave)
    if barrier.event == "sent":
        return 0
    if barrier.event == "first-token":
        return 1
    return barrier.count


# ------------------------------------------------------------------------- as a trigger

_LOOK_S = 0.1


async def play_case(drive: Drive, folder: Path) -> bool:
    """Send the requests of the case in ``folder`` by its barriers, called by their ids.

    A request without an answer, while nothing else moves, ends it: the request waits
    on, as with ``Drive.ask``, and what would come later is not sent. Returns whether
    all of it was sent.

    Raises:
        UsageError: there is no case, or a picture of it is missing.
    """
    case, contents = read_case(folder)
    sending = Sending(drive.traffic, pictures(case, contents), drive.deadline_s, "fast")
    performing = asyncio.ensure_future(sending.perform(case.operations))
    try:
        while not performing.done():
            await asyncio.wait({performing}, timeout=_LOOK_S)
            still_s = time.monotonic() - sending.progressed
            if not performing.done() and sending.pending and still_s > drive.suspect_s:
                sending.stop()
                sending.hold()
    finally:
        drive.pending += [task for task, _ in sending.pending.values()]
    await performing
    drive.fact("operations_unsent", len(sending.unsent))
    return not sending.unsent
