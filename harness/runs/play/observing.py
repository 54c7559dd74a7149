"""One play on a server that is ready: canary, operations, canary, and a look."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmrepro.base import processes
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.probes.data import ThreadStack
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.observe import Interpreter, Probing
from mmrepro.runs.play import looking
from mmrepro.runs.play.looking import (
    failed,
    read_tracebacks,
    reading,
    says_it_ends,
    telling,
)
from mmrepro.runs.play.options import Look, PlayOptions
from mmrepro.runs.start import Started
from mmrepro.traffic import Traffic
from mmrepro.traffic.case.model import CHAT, Case, Operation
from mmrepro.traffic.case.sending import Played, PlayState, Reading, Sending
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.pictures import Picture

CANARY_BEFORE, CANARY_AFTER = "canary before", "canary after"
CANARY_TEXT, CANARY_TOKENS = "hello", 8
_FIRST_ANSWER_S = 60.0
"""For the first answer of a server: it warms up, and a scenario's gate waits as
long."""
_MOST_DEADLINES = 30
"""A request that has no answer after so many deadlines hangs, whatever else goes on."""
WATCH_S, COUNT_S, LOOK_AGAIN_S = 0.1, 0.5, 1.0
DEAD_GRACE_S, EXIT_S = 1.0, 0.5
_MAX_CAUSES = 6


class Observing:
    """One play on ``server``; see :meth:`play`."""

    def __init__(
        self,
        server: Started,
        recorder: Recorder,
        options: PlayOptions,
        deadlines: Deadlines,
        pictures: Mapping[str, Picture],
        cancelled: threading.Event,
    ) -> None:
        self.server, self.recorder, self.options = server, recorder, options
        self.deadlines, self.cancelled = deadlines, cancelled
        self.traffic = Traffic(server.url, SERVED_MODEL, recorder)
        self.sending = Sending(
            self.traffic,
            pictures,
            deadlines.answer_s,
            options.time,
            bodies=options.bodies,
        )
        self.state, self.said, self.early = PlayState.ENDED, "", False
        self.stack: list[ThreadStack] = []
        self._no_logprobs = False
        self.sending.alive = lambda: not self._dead()
        pid = server.core_pid
        self._core = processes.stat(pid) if pid is not None else None
        self._log_start = looking.size_of(server.process.log) or 0

    async def play(self, case: Case, played: Played, on_look: Look | None) -> None:
        """Play ``case`` and write into ``played`` what came of it. Raises
        SupervisorError: the process that owns the server is gone; KeyboardInterrupt:
        the session was cancelled."""
        watching = asyncio.ensure_future(self._watch())
        performing = asyncio.ensure_future(self._perform(case, played))
        try:
            await asyncio.wait(
                {performing, watching}, return_when=asyncio.FIRST_COMPLETED
            )
            if watching.done():
                self.sending.stop()
                watching.result()
            await performing
            watching.cancel()
            if self.cancelled.is_set():
                raise KeyboardInterrupt
            await self._close(played, on_look)
        finally:
            for task in (watching, performing):
                task.cancel()
            await asyncio.gather(watching, performing, return_exceptions=True)
            await self.sending.give_up()
            await self.traffic.close()
            self.recorder.evidence.engine_exit = self.server.process.exit_code
        self._tell(played)

    # ------------------------------------------------------------------ traffic

    async def _perform(self, case: Case, played: Played) -> None:
        looks, stopped = self.options.look != "none", self.sending.stopped
        self.recorder.phase = "gate"
        if self.options.canary:
            await self._canary(CANARY_BEFORE)
        if looks and not stopped.is_set():
            played.before = await self._reading()
        self.recorder.phase = "trigger"
        for block in blocks(case.operations, self.options.blocks):
            await self.sending.perform(block)
            if self.options.blocks and not stopped.is_set():
                block_end = await self._reading()
                played.blocks += [block_end] if block_end else []
        self.recorder.phase = "after"
        if looks and not stopped.is_set():
            played.after = await self._reading()
        if self.options.canary and not stopped.is_set() and not case.changes_server:
            await self._canary(CANARY_AFTER)

    async def _canary(self, label: str) -> None:
        """The same small request each time. Its logprobs tell near-ties apart; an
        engine that refuses a request for them is asked without."""
        fields: dict[str, Any] = {
            "model": SERVED_MODEL,
            "messages": [{"role": "user", "content": CANARY_TEXT}],
            "max_tokens": CANARY_TOKENS,
            "temperature": 0,
        }
        plain = json.dumps(fields).encode()
        data = json.dumps(fields | {"logprobs": True, "top_logprobs": 5}).encode()
        data = plain if self._no_logprobs else data
        record = await self.sending.ask(label, data, CHAT, CANARY_TEXT)
        if record is not None and record.status in (400, 422) and not self._no_logprobs:
            record.label = f"{label}, with logprobs"
            self._no_logprobs = True
            await self.sending.ask(label, plain, CHAT, CANARY_TEXT)

    async def _reading(self) -> Reading | None:
        """None: the server died meanwhile, or before."""
        made = await reading(self.traffic, self.server.spec.engine, self.server.process)
        return None if self._dead() else made

    # ------------------------------------------------------------------ is it alive?

    async def _watch(self) -> None:
        """Returns when the play is over for a reason of the server's, or was
        cancelled."""
        counters, counted, moved, looked = None, 0.0, 0.0, 0.0
        while not self.cancelled.is_set() and not self._dead():
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            age = max(
                (now - since for _, since in self.sending.pending.values()), default=0.0
            )
            if age < self.deadlines.suspect_s:
                counters, moved = None, now
                continue
            self.sending.hold()
            if counters is None or now - counted >= COUNT_S:
                before, counted = counters, now
                counters = await looking.counters(self.server, self.traffic)
                moved = now if before is None or before != counters else moved
            quiet = now - max(moved, self.sending.progressed)
            if self._overdue(age, quiet):
                return
            if self.options.early and self._warm and now - looked >= LOOK_AGAIN_S:
                client, folder = lambda: self.sending.progress, self.recorder.dir
                stand = await looking.stand(self.server, self.traffic, client, folder)
                looked = time.monotonic()
                if stand.still and not self._dead() and self.sending.pending:
                    self._hangs(stand.why)
                    self.stack, self.early = stand.threads, True
                    return

    @property
    def _warm(self) -> bool:
        """Whether it has answered anything yet."""
        return any(r.status is not None for r in self.recorder.evidence.requests)

    def _overdue(self, age: float, quiet: float) -> bool:
        """Whether it hangs: no answer in time, and nothing has moved since it was
        suspected."""
        limits = self.deadlines
        answer_s = (
            limits.answer_s if self._warm else max(limits.answer_s, _FIRST_ANSWER_S)
        )
        if age >= answer_s and quiet >= max(
            limits.answer_s - limits.suspect_s, 2 * COUNT_S
        ):
            self._hangs("nothing moves")
        elif age >= _MOST_DEADLINES * answer_s:
            self._hangs("others are answered")
        return self.state is PlayState.HUNG

    def _hangs(self, why: str) -> None:
        since = min(since for _, since in self.sending.pending.values())
        waiting = list(self.sending.pending)
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        self.state = PlayState.HUNG
        self.said = (
            f"{waiting[0]}{more}: nothing came in "
            f"{time.monotonic() - since:.1f} s; {why}"
        )

    def _dead(self) -> bool:
        role, code = self.server.spec.engine.core_role, self.server.process.exit_code
        if code is not None:
            self.state, self.said = PlayState.DIED, f"the server ended with {code}"
        elif self._core and not processes.alive(self._core.pid, self._core.start_ticks):
            self.state, self.said = (
                PlayState.DIED,
                f"the server's process {role} is gone",
            )
        return self.state is PlayState.DIED

    # ------------------------------------------------------------------ the end

    async def _close(self, played: Played, on_look: Look | None) -> None:
        if self.state is PlayState.ENDED and self._failed():
            await asyncio.sleep(EXIT_S)  # a process that ends of it is still to be seen
        if self._dead():
            await self.sending.give_up(DEAD_GRACE_S)
            await asyncio.sleep(EXIT_S if self.server.process.exit_code is None else 0)
            self._dead()  # how it ended is known by now
        hung = self.state is PlayState.HUNG
        self.recorder.phase = "check"
        if hung:
            self.sending.hold()
            played.stuck = list(self.sending.pending)
            if not self.stack:
                self.stack, _ = await looking.stacks(self.server, self.recorder.dir)
        if on_look is not None and self.server.process.exit_code is None:
            await self._call(on_look)
        await self._look(hung)
        if hung:
            await self.sending.give_up()

    async def _call(self, look: Look) -> None:
        """In a thread, beside the waiting requests; its failure costs nothing but its
        result.

        A thread that nobody waits for, should the session be interrupted meanwhile.
        """
        process = self.server.process

        def run() -> None:
            try:
                look(self.server.url, process.engine_pid, process.log)
            except Exception as error:
                why = f"a look at the server failed: {type(error).__name__}: {error}"
                self.recorder.event(why, level="warning")

        thread = threading.Thread(target=run, name="look", daemon=True)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(WATCH_S)
            if self.cancelled.is_set():
                raise KeyboardInterrupt

    async def _look(self, hung: bool) -> None:
        spec = self.server.spec
        probing = Probing(self.server, spec.scenario, self.recorder)
        if self.options.look == "full":
            interpreter = Interpreter(spec.environment.python, self.server.plan.env)
            await probing.check(self.deadlines.answer_s, interpreter, waiting=hung)
        elif self.options.look == "quick":
            await probing.logs()

    def _failed(self) -> bool:
        return any(map(failed, self.recorder.evidence.requests))

    def _tell(self, played: Played) -> None:
        played.state, played.said, played.early = self.state, self.said, self.early
        played.unsent, played.stack = self.sending.unsent, self.stack
        played.bodies, played.headers = self.sending.bodies, self.sending.headers
        played.exit_code = self.recorder.evidence.engine_exit
        engine = self.server.spec.engine
        fatal = engine.log_patterns.get("core-fatal", "")
        found = read_tracebacks(self.server.process.log, self._log_start, fatal)
        played.ends_itself = self.state is PlayState.DIED and (
            any(one.fatal for one in found)
            or says_it_ends(
                self.server.process.log, self._log_start, engine.ends_itself
            )
        )
        played.loop_ended = next((one.error for one in found if one.fatal), "")
        if (
            self.state is PlayState.ENDED
            and not self._failed()
            and not played.loop_ended
        ):
            played.said = "every request has its answer"
            return
        told = telling(found, self.recorder.evidence.requests, engine.core_role)
        played.frames = told[0].frames_of(engine) if told else []
        played.causes = list(dict.fromkeys(one.error for one in told))[:_MAX_CAUSES]
        if not played.said:
            played.said = "a request failed, and the server lives on"


def blocks(
    operations: Sequence[Operation], number: int
) -> Iterator[Sequence[Operation]]:
    """``number`` runs of operations as equal as can be; one, if it is 0."""
    number = max(1, min(number, len(operations)))
    for block in range(number):
        first = block * len(operations) // number
        yield operations[first : (block + 1) * len(operations) // number]
