"""The operations of a case while they are sent, and the clients that wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from mmrepro.case.barriers import Barriers, Time
from mmrepro.case.bodies import body
from mmrepro.case.model import Barrier, Operation
from mmrepro.evidence import RequestRecord
from mmrepro.traffic import Traffic
from mmrepro.traffic.drive import Picture
from mmrepro.traffic.reading import Watch

GIVE_UP_S = 5.0


class Sending:
    """What is under way to one server.

    Attributes:
        pending: by label, requests that have no answer yet, and since when nothing came of them,
            monotonic seconds.
        alive: asked before anything is sent; once it says no, nothing more is.
        unsent: ids of operations that will not be sent any more.
        progress: number that grows whenever a client sees anything; ``progressed``: when.
        stopped: by ``stop``.
    """

    def __init__(
        self, traffic: Traffic, pictures: Mapping[str, Picture], deadline_s: float, at: Time
    ) -> None:
        self.traffic, self.pictures, self.deadline_s, self.time = traffic, pictures, deadline_s, at
        self.pending: dict[str, tuple[asyncio.Task[RequestRecord], float]] = {}
        self.unsent: list[str] = []
        self.progress, self.progressed = 0, time.monotonic()
        self.alive: Callable[[], bool] = lambda: True
        self.stopped = asyncio.Event()
        self._ended: set[str] = set()
        self._changed = asyncio.Event()

    async def perform(self, operations: Sequence[Operation]) -> None:
        """Send them by their barriers until all have ended, or until it is stopped."""
        barriers = Barriers(operations, self.time, self._ended)
        began = time.monotonic()
        while (barriers.unsent or barriers.running) and not self.stopped.is_set():
            self._changed.clear()
            elapsed = time.monotonic() - began
            if barriers.unsent and not self.alive():
                break
            for op in barriers.ready(elapsed):
                self._launch(op, barriers)
            due = barriers.next_due_s(elapsed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - elapsed):
                    await self._changed.wait()
        self.unsent += barriers.unsent

    def stop(self) -> None:
        """Send nothing more, and wait for nothing."""
        self.stopped.set()
        self._changed.set()

    async def ask(self, label: str, data: bytes, path: str, text: str) -> RequestRecord | None:
        """A request of that ``text`` beside the operations; None: it has no answer, and waits."""
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
        """Nobody gives up: what is to be looked at may be over when a client goes away."""
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
            self.pending[op.id] = self.pending[op.id][0], time.monotonic()
            self._moved(wake=barriers.piece(op.id, pieces))

        watch = Watch(written, piece, leave_at(op))
        texts = [p.text for m in op.messages or [] for p in m.parts() if p.text is not None]
        limit = op.parameters.get("max_tokens", op.parameters.get("max_completion_tokens"))
        sending = self.traffic.send(
            op.id,
            body(op, self.pictures, self.traffic.model),
            watch,
            path=op.path,
            stream=op.stream,
            images=[self.pictures[name].sent() for name in op.images],
            text=op.prompt if isinstance(op.prompt, str) else "\n".join(texts),
            max_tokens=limit if isinstance(limit, int) else None,
            deadline_s=self.deadline_s,
        )

        def ended(_: object) -> None:
            barriers.end(op.id)
            self._ended.add(op.id)
            self._moved(wake=True)

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
    """At how many pieces its client goes away; 0: once it is sent; None: it stays."""
    if not op.leave:
        return None
    barrier = Barrier.parse(op.leave)
    return {"sent": 0, "first-token": 1}.get(barrier.event, barrier.count)
