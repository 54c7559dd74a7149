"""One play on a server that is ready: canary, operations, canary, and a look."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmrepro.base import processes
from mmrepro.engines import SERVED_MODEL
from mmrepro.probes import ThreadStack
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
from mmrepro.traffic import Picture, Traffic
from mmrepro.traffic.case import (
    CHAT,
    Case,
    Operation,
    Played,
    PlayState,
    Reading,
    Sending,
)
from mmrepro.traffic.evidence import Recorder

CANARY_BEFORE = "canary before"
CANARY_AFTER = "canary after"
_CANARY_TEXT = "hello"
_CANARY_TOKENS = 8
_FIRST_ANSWER_S = 60.0
"""For the first answer of a server: it warms up, and a scenario's gate waits as
long."""
_MOST_DEADLINES = 30
"""A request that has no answer after so many deadlines hangs, whatever else goes on."""
_WATCH_S = 0.1
_COUNT_S = 0.5
_LOOK_AGAIN_S = 1.0
_DEAD_GRACE_S = 1.0
_EXIT_S = 0.5
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
        self.server = server
        self.recorder = recorder
        self.options = options
        self.deadlines = deadlines
        self.cancelled = cancelled
        self.traffic = Traffic(server.url, SERVED_MODEL, recorder)
        self.sending = Sending(
            self.traffic,
            pictures,
            deadlines.answer_s,
            options.time,
            bodies=options.bodies,
        )
        self.sending.alive = lambda: not self._dead()
        self.state = PlayState.ENDED
        self.said = ""
        self.early = False
        self.stack: list[ThreadStack] = []
        self._no_logprobs = False
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
        looks = self.options.look != "none"
        stopped = self.sending.stopped
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
                if block_end:
                    played.blocks.append(block_end)

        self.recorder.phase = "after"
        if looks and not stopped.is_set():
            played.after = await self._reading()
        # A server that the case changed answers the canary otherwise, and rightly.
        if self.options.canary and not stopped.is_set() and not case.changes_server:
            await self._canary(CANARY_AFTER)

    async def _canary(self, label: str) -> None:
        """The same small request each time. Its logprobs tell near-ties apart; an
        engine that refuses a request for them is asked without."""
        fields: dict[str, Any] = {
            "model": SERVED_MODEL,
            "messages": [{"role": "user", "content": _CANARY_TEXT}],
            "max_tokens": _CANARY_TOKENS,
            "temperature": 0,
        }
        plain = json.dumps(fields).encode()
        if self._no_logprobs:
            await self.sending.ask(label, plain, CHAT, _CANARY_TEXT)
            return

        data = json.dumps(fields | {"logprobs": True, "top_logprobs": 5}).encode()
        record = await self.sending.ask(label, data, CHAT, _CANARY_TEXT)
        if record is not None and record.status in (400, 422):
            record.label = f"{label}, with logprobs"
            self._no_logprobs = True
            await self.sending.ask(label, plain, CHAT, _CANARY_TEXT)

    async def _reading(self) -> Reading | None:
        """Read the idle server; None: it died meanwhile, or before."""
        made = await reading(self.traffic, self.server.spec.engine, self.server.process)
        return None if self._dead() else made

    # ------------------------------------------------------------------ is it alive?

    async def _watch(self) -> None:
        """Returns when the play is over for a reason of the server's, or was
        cancelled."""
        counters: object = None
        counted = 0.0
        moved = 0.0
        looked = 0.0
        while not self.cancelled.is_set() and not self._dead():
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            age = self._age(now)
            if age < self.deadlines.suspect_s:
                counters = None
                moved = now
                continue

            # No further request: those that wait are to be seen as they are.
            self.sending.hold()
            if counters is None or now - counted >= _COUNT_S:
                before = counters
                counted = now
                counters = await looking.counters(self.server, self.traffic)
                if before is None or before != counters:
                    moved = now

            quiet = now - max(moved, self.sending.progressed)
            if self._overdue(age, quiet):
                return
            if self.options.early and self._warm and now - looked >= _LOOK_AGAIN_S:
                ended = await self._stands_still()
                looked = time.monotonic()
                if ended:
                    return

    def _age(self, now: float) -> float:
        """Seconds for which the oldest request that waits has got nothing."""
        ages = [now - since for _, since in self.sending.pending.values()]
        return max(ages, default=0.0)

    async def _stands_still(self) -> bool:
        """Whether stacks show that it hangs, before the deadline is over."""
        stand = await looking.stand(
            self.server,
            self.traffic,
            lambda: self.sending.progress,
            self.recorder.dir,
        )
        # What waited may have been answered while the stacks were taken.
        if not stand.still or self._dead() or not self.sending.pending:
            return False
        self._hangs(stand.why)
        self.stack = stand.threads
        self.early = True
        return True

    @property
    def _warm(self) -> bool:
        """Whether it has answered anything yet."""
        return any(r.status is not None for r in self.recorder.evidence.requests)

    def _overdue(self, age: float, quiet: float) -> bool:
        """Whether it hangs: no answer in time, and nothing has moved since it was
        suspected."""
        limits = self.deadlines
        answer_s = limits.answer_s
        if not self._warm:
            answer_s = max(answer_s, _FIRST_ANSWER_S)

        quiet_s = max(limits.answer_s - limits.suspect_s, 2 * _COUNT_S)
        if age >= answer_s and quiet >= quiet_s:
            self._hangs("nothing moves")
        elif age >= _MOST_DEADLINES * answer_s:
            self._hangs("others are answered")

        return self.state is PlayState.HUNG

    def _hangs(self, why: str) -> None:
        waiting = list(self.sending.pending)
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        silent = self._age(time.monotonic())
        self.state = PlayState.HUNG
        self.said = f"{waiting[0]}{more}: nothing came in {silent:.1f} s; {why}"

    def _dead(self) -> bool:
        code = self.server.process.exit_code
        core = self._core
        if code is not None:
            self.state = PlayState.DIED
            self.said = f"the server ended with {code}"
        elif core and not processes.alive(core.pid, core.start_ticks):
            role = self.server.spec.engine.core_role
            self.state = PlayState.DIED
            self.said = f"the server's process {role} is gone"

        return self.state is PlayState.DIED

    # ------------------------------------------------------------------ the end

    async def _close(self, played: Played, on_look: Look | None) -> None:
        if self.state is PlayState.ENDED and self._failed():
            # A process that ends of it is still to be seen.
            await asyncio.sleep(_EXIT_S)
        if self._dead():
            await self.sending.give_up(_DEAD_GRACE_S)
            await asyncio.sleep(_EXIT_S if self.server.process.exit_code is None else 0)
            # How it ended is known by now.
            self._dead()

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
        # Only now: what waits shows in stacks and metrics.
        if hung:
            await self.sending.give_up()

    async def _call(self, look: Look) -> None:
        """Call ``look`` in a thread, beside the waiting requests; its failure costs
        nothing but its result.

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
            await asyncio.sleep(_WATCH_S)
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
        played.state = self.state
        played.said = self.said
        played.early = self.early
        played.unsent = self.sending.unsent
        played.stack = self.stack
        played.bodies = self.sending.bodies
        played.headers = self.sending.headers
        played.exit_code = self.recorder.evidence.engine_exit

        engine = self.server.spec.engine
        log = self.server.process.log
        fatal = engine.log_patterns.get("core-fatal", "")
        tracebacks = read_tracebacks(log, self._log_start, fatal)
        ends = [traceback for traceback in tracebacks if traceback.fatal]
        if ends:
            played.loop_ended = ends[0].error
        if self.state is PlayState.DIED:
            pattern = engine.ends_itself
            by_log = bool(ends) or says_it_ends(log, self._log_start, pattern)
            played.ends_itself = by_log

        well = self.state is PlayState.ENDED and not self._failed()
        if well and not played.loop_ended:
            played.said = "every request has its answer"
            return

        requests = self.recorder.evidence.requests
        causes = telling(tracebacks, requests, engine.core_role)
        if causes:
            played.frames = causes[0].frames_of(engine)
            played.places = causes[0].places_of(engine)
        errors = dict.fromkeys(traceback.error for traceback in causes)
        played.causes = list(errors)[:_MAX_CAUSES]
        if not played.said:
            played.said = "a request failed, and the server lives on"


def blocks(
    operations: Sequence[Operation], number: int
) -> Iterator[Sequence[Operation]]:
    """``number`` runs of operations as equal as can be; one, if it is 0."""
    total = len(operations)
    number = max(1, min(number, total))
    for block in range(number):
        first = block * total // number
        end = (block + 1) * total // number
        yield operations[first:end]
