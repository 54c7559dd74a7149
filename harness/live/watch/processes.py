"""The processes behind a watched URL, where they can be observed: an end, a standstill,
memory that grows with each request.

Caches grow as well, until they are full: only what goes on growing as it began, past
what the caches may take, is told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from mmrepro.base import processes, units
from mmrepro.failure.documents import (
    Certainty,
    LiveClass,
    NamedClass,
    ServerState,
    TargetFacts,
)
from mmrepro.live.diagnose import discover, general
from mmrepro.live.diagnose.classes_logged import named
from mmrepro.live.diagnose.collect import MAX_RANKS
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.frozen import Stance, at_upkeep, in_service, stance
from mmrepro.live.diagnose.kernel import NOT_RESTARTED, exit_code
from mmrepro.live.diagnose.listeners import listening_sockets
from mmrepro.live.diagnose.ranks import workers
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.watch.health import CheckOutcome
from mmrepro.probes import ProbeResult, StacksData, StacksProbe, run_probe
from mmrepro.traffic.evidence import Evidence

SETTLE_S = 600.0
"""After a process was first seen: it warms up."""
_SPAN_S = 1800.0
"""Shorter than that nothing is said."""
_SURE_S = 7200.0
REQUESTS = 100
"""Finished in that time, at least."""
_LEAST_BYTES = 256 << 20
"""Allocators and lists of blocks grow by that much in a healthy server."""
PARTS = 4
"""Of the time, each of which has to have grown; the last by at least half of their
mean."""
_MOST_SAMPLES = 256
MIB = 1 << 20


CACHE_GB = 4.0
"""``mm_processor_cache_gb`` of vllm/config/multimodal.py, 0.11.0 to 0.32.0."""


def caches_bytes(command: Sequence[str]) -> int:
    """What vLLM's multimodal cache may take of each process's memory, by the server's
    options."""
    option, size = "--mm-processor-cache-gb", CACHE_GB
    for word, after in zip(command, [*command[1:], ""], strict=True):
        value = after if word == option else word.removeprefix(f"{option}=")
        if word.startswith(option):
            with contextlib.suppress(ValueError):
                size = float(value)
    return int(size * 2**30)


@dataclass
class _Course:
    """One process. ``samples``: second, requests finished so far, resident bytes."""

    role: str
    first_seen: float
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    def add(self, at: float, requests: float, rss_bytes: int) -> None:
        if at - self.first_seen < SETTLE_S:
            return
        if self.samples and requests < self.samples[-1][1]:
            self.samples.clear()  # counted anew
        self.samples.append((at, requests, rss_bytes))
        if len(self.samples) > _MOST_SAMPLES:
            # Thinned out over its whole time: the first and the last reading stay.
            del self.samples[1:-1:2]


class Growth:
    """Takes readings, some seconds apart, of one server's processes."""

    def __init__(self) -> None:
        self._courses: dict[tuple[int, int], _Course] = {}

    def observe(
        self,
        at: float,
        requests: float,
        processes: Mapping[tuple[int, int], tuple[str, int]],
    ) -> None:
        """Take one reading.

        Args:
            at: seconds on the monotonic clock.
            requests: finished since the server's start.
            processes: (pid, start in clock ticks): role and resident bytes.
        """
        # What has ended is forgotten: a process that replaces it begins anew.
        self._courses = {k: c for k, c in self._courses.items() if k in processes}
        for key, (role, rss_bytes) in processes.items():
            course = self._courses.setdefault(key, _Course(role, at))
            course.add(at, requests, rss_bytes)

    def named(self, caches_bytes: int = 0) -> NamedClass | None:
        """The class, where a process grows. ``caches_bytes``: what its caches may take
        of it."""
        certainty, lines = Certainty.POSSIBLE, []
        for (pid, _), course in self._courses.items():
            growth = _growth(pid, course, max(_LEAST_BYTES, caches_bytes))
            if growth is None:
                continue
            sure, line = growth
            lines.append(line)
            if sure:
                certainty = Certainty.LIKELY
        if not lines:
            return None
        return named(
            LiveClass.MEMORY_GROWS,
            certainty,
            "The memory of the server grows with the requests that it answers.",
            lines,
        )


def _growth(pid: int, course: _Course, allowed_bytes: int) -> tuple[bool, str] | None:
    """How a process grew, and whether that is sure; None: it did not, or not steadily."""
    samples = course.samples
    if len(samples) < 2 * PARTS or samples[-1][0] - samples[0][0] < _SPAN_S:
        return None
    began, seconds = samples[0][0], samples[-1][0] - samples[0][0]
    parts: list[list[tuple[float, float, int]]] = [[] for _ in range(PARTS)]
    for sample in samples:
        part = int((sample[0] - began) / seconds * PARTS)
        parts[min(PARTS - 1, part)].append(sample)
    if not all(parts):
        return None
    # Of time, requests and bytes: a sample that stands out decides nothing.
    middles = [tuple(map(median, zip(*part, strict=True))) for part in parts]
    steps = [after[2] - before[2] for before, after in pairwise(middles)]
    first, last = middles[0], middles[-1]
    took, requests, grown = last[0] - first[0], last[1] - first[1], last[2] - first[2]
    # A cache that fills grows less and less.
    steady = min(steps) > 0 and steps[-1] >= 0.5 * grown / len(steps)
    if not steady or requests < REQUESTS or grown < allowed_bytes:
        return None
    text = (
        f"{course.role} (pid {pid}) grew by {units.size(grown)} over {requests:.0f} "
        f"requests in {units.duration(took)}: {units.size(grown / requests, 1)} a "
        "request"
    )
    return seconds >= _SURE_S, text


_STARVED_SHARE = 0.6
"""Part of a look for which a thread waited for a processor."""
_IDLE_SHARE = 0.25
"""Part of it for which such a thread ran: one that spins on a machine that is only busy
gets more."""


_STOOD_S = 1.0
"""Processor time in one place after which a server that is short of it is hung."""


class RunningTime:
    """Threads at the beginning of a look: how long each had run and had waited to run.

    A container with too little quota stands in one place in all samples, and is not
    hung."""

    def __init__(self, threads: Mapping[tuple[int, int], processes.Thread]) -> None:
        self._at = time.monotonic()
        self._threads = dict(threads)

    @classmethod
    def of(cls, pids: Sequence[int]) -> RunningTime:
        return cls(_threads_of(pids))

    def is_starved(self) -> bool:
        """Whether a thread wanted to run since then and hardly did."""
        elapsed = time.monotonic() - self._at
        pids = {pid for pid, _ in self._threads}
        for key, now in _threads_of(sorted(pids)).items():
            before = self._threads.get(key)
            if before is not None and waited_to_run(before, now, elapsed):
                return True
        return False

    def ran_s(self) -> float:
        """Processor time of the thread that ran most since then."""
        pids = {pid for pid, _ in self._threads}
        most = 0
        for key, now in _threads_of(sorted(pids)).items():
            before = self._threads.get(key)
            if before is not None:
                most = max(most, _ticks(now) - _ticks(before))
        return most / processes.TICKS_PER_S


def _ticks(thread: processes.Thread) -> int:
    return thread.stat.user_ticks + thread.stat.system_ticks


def _threads_of(pids: Sequence[int]) -> dict[tuple[int, int], processes.Thread]:
    threads = {}
    for pid in pids:
        for tid, thread in processes.threads(pid).items():
            threads[pid, tid] = thread
    return threads


def waited_to_run(
    before: processes.Thread, now: processes.Thread, elapsed: float
) -> bool:
    """Whether a thread was runnable for most of ``elapsed`` seconds, and hardly ran."""
    if elapsed <= 0:
        return False
    ran = (_ticks(now) - _ticks(before)) / processes.TICKS_PER_S / elapsed
    queued = (now.queued_s - before.queued_s) / elapsed
    # The kernel counts a wait when it ends: one that lasts shows in the states alone.
    runnable = before.stat.state == now.stat.state == "R"
    return ran < _IDLE_SHARE and (queued >= _STARVED_SHARE or runnable)


_STOPPED_SHARE = 0.8
"""Part of a look after which a process that was stopped at its beginning is so still."""
_SOCKETS_S = 60.0
_MOST_LOOKS = 12
"""Of one silence, so that one that worked and then hangs is told of."""
SAMPLES = 5

CheckAnswer = tuple[CheckOutcome, str]


@dataclass
class _Root:
    """The process that answered. ``alive_at``: when it was last seen to live, in clock
    ticks after boot."""

    pid: int
    start: int
    command: list[str]
    alive_at: int


class WatchedProcesses:
    """The processes behind ``url``. Nothing is asked of the server, and none is
    paused."""

    def __init__(self, url: str, scratch: Path) -> None:
        self._url = url
        self._scratch = scratch
        self._target: ServerTarget | None = None
        self._root: _Root | None = None
        self.silence = Evidence()
        """Stacks that were taken since the last answer."""
        self.in_service = False
        """Whether its engine was seen in its serving loop since it was found."""
        self.by_states = False
        """Whether the last look rests on the states of processes alone, of which a busy
        machine changes nothing."""
        self.computes = False
        """Whether the last look saw stacks that move from place to place."""
        self._stood_s = 0.0
        """Processor time that it got, without an answer, while it stood in one place
        and wanted more."""
        self._sockets = 0
        self._sockets_until = 0.0

    @property
    def facts(self) -> TargetFacts | None:
        """What was found of it since it answered, or was looked at; None: nothing
        yet."""
        return None if self._target is None else self._target.facts

    def name_engine(self, metrics: frozenset[str]) -> None:
        """By its metrics, where its processes do not tell."""
        if self._target is not None and self._target.engine is None:
            discover.name_engine(self._target, metrics)

    def memory(self) -> dict[tuple[int, int], tuple[str, int]]:
        """(pid, start in clock ticks): role and resident bytes, of each process that
        lives."""
        memory = {}
        known = self._target.facts.processes if self._target is not None else []
        for process in known:
            status = processes.stat(process.pid)
            if status is None or status.ended:
                continue
            # With its start: a pid may be another process's by the next reading.
            key = status.pid, status.start_ticks
            memory[key] = process.role, status.rss_bytes
        return memory

    @property
    def near(self) -> bool:
        """No network lies between, nor a proxy that can be seen: it runs on this
        machine."""
        target = self._found()
        return target.facts.place != "remote" and not target.proxied

    @property
    def seen(self) -> bool:
        """Whether its processes are here, and are an engine's."""
        facts = self._found().facts
        return facts.root_pid is not None and bool(facts.engine)

    def answered(self) -> None:
        """It works: what was seen of a silence before is over."""
        self.silence = Evidence()
        self._stood_s = 0.0
        if self._root is not None and not self._alive(self._root):
            self._forget()
        self._found()

    def _forget(self) -> None:
        """What was known of a process that has ended."""
        self._target = self._root = None
        self.in_service = False
        self._sockets_until = 0.0

    @property
    def listening_sockets(self) -> int:
        """Sockets that listen on its port beside each other; 0: not to be seen."""
        now = time.monotonic()
        # The table of all sockets may be long: it is not read at each check.
        if now >= self._sockets_until:
            self._sockets = listening_sockets(self._found().facts)
            self._sockets_until = now + _SOCKETS_S
        return self._sockets

    def absent(self) -> CheckAnswer:
        """Nothing listens any more: whether it has ended, or starts."""
        root = self._root
        if root is None:
            return CheckOutcome.ABSENT, "nothing listens there"
        if self._alive(root):
            return (
                CheckOutcome.SILENT,
                f"process {root.pid} lives, and does not listen any more",
            )
        self.in_service = False
        ended = f"process {root.pid}, which answered before, has ended"
        if exit_code(root.pid) == 0:
            ended += f" ({NOT_RESTARTED})"
        if again := _started_again(root):
            return (
                CheckOutcome.ABSENT,
                f"{ended}; process {again} has its command: it starts",
            )
        return CheckOutcome.FAILED, ended

    def part_dead(self) -> str:
        """Which process of the engine has ended, while others live; "": none is seen
        to."""
        target = self._found()
        discover.refresh(target)
        dead = general.at_once(Evidence(), target.facts)
        if dead is None or dead.state is not ServerState.PART_DEAD:
            return ""
        return dead.sentence

    def look(self, seconds: float) -> CheckAnswer:
        """Where its threads are, while it keeps a request waiting; for ``seconds``.

        What was seen in the silent checks before counts as well: what moves now and
        then works."""
        unseen = CheckOutcome.SILENT, ""
        self.by_states = self.computes = False
        # What takes connections now is not the process that has ended.
        if self._root is not None and not self._alive(self._root):
            self._forget()
        target = self._found()
        facts = target.facts
        if target.engine is None or facts.root_pid is None:
            return unseen
        if dead := self.part_dead():
            self.by_states = True
            return CheckOutcome.FAILED, dead
        if any(process.state in "Tt" for process in facts.processes):
            self.by_states = True
            return self._stays_stopped(seconds)
        view = DiagnosisView(facts, self.silence)
        running = self._running(self._core(view))
        self._take_stacks(view, seconds)
        found, place = stance(view)
        if found is Stance.UNSEEN:
            return unseen
        if found is Stance.MOVES:
            self._stood_s = 0.0
            self.computes = True
            return CheckOutcome.PREPARING, f"it computes: its stacks move ({place})"
        if what := at_upkeep(view):
            return CheckOutcome.PREPARING, f"it {what} ({place})"
        if running.is_starved():
            self._stood_s += running.ran_s()
            # With so much processor time a step that is only slow has moved on.
            if self._stood_s < _STOOD_S:
                return CheckOutcome.ERROR, "the server itself waits for a processor"
        self.in_service = self.in_service or in_service(view)
        how = "idles while a request waits"
        if found is Stance.STANDS:
            how = "stands still"
        role = facts.role_of(view.core_pid) or "it"
        return CheckOutcome.FAILED, f"{role} {how} ({place})"

    def _stays_stopped(self, seconds: float) -> CheckAnswer:
        """What a process that is stopped says: one that a signal stops goes on by no
        work of its own, a debugger may let it go on."""
        threading.Event().wait(seconds * _STOPPED_SHARE)
        target = self._found()
        discover.refresh(target)
        if any(process.state == "T" for process in target.facts.processes):
            return CheckOutcome.FAILED, "it is stopped by a signal"
        return CheckOutcome.SILENT, "it is stopped by a tracer, or was for a moment"

    def _keep(self, result: ProbeResult[StacksData]) -> None:
        """Add stacks to the silence. A server may be silent for hours: only the last
        ones tell where it is now."""
        self.silence.probes.append(result)  # type: ignore[arg-type] # as AnyProbeResult
        del self.silence.probes[:-_MOST_LOOKS]

    @staticmethod
    def _running(pids: Sequence[int]) -> RunningTime:
        return RunningTime.of(pids)

    @staticmethod
    def _core(view: DiagnosisView) -> list[int]:
        """The process of the engine, or those of its ranks."""
        pids = [process.pid for process in workers(view.facts)]
        if view.core_pid is not None:
            pids.append(view.core_pid)
        return pids

    def _take_stacks(self, view: DiagnosisView, seconds: float) -> None:
        """Add samples of the core, the front and the ranks to the silence so far."""
        ranks = [process.pid for process in workers(view.facts)][:MAX_RANKS]
        pids = dict.fromkeys((view.core_pid, view.facts.root_pid, *ranks))
        probe = StacksProbe(
            [pid for pid in pids if pid is not None],
            SAMPLES,
            seconds / SAMPLES,
            locals=False,
            blocking_fallback=False,
        )
        result = run_probe(probe, self._scratch, seconds, phase="check")
        self._keep(result)
        for raw in result.raw:
            (self._scratch / raw).unlink(missing_ok=True)

    def _found(self) -> ServerTarget:
        if self._target is None:
            self._target = target = discover.find(self._url)
            pid = target.facts.root_pid
            status = None if pid is None else processes.stat(pid)
            if pid is not None and status is not None:
                command = processes.arguments(pid)
                self._root = _Root(
                    pid, status.start_ticks, command, processes.now_ticks()
                )
                discover.name_engine(target, frozenset())
        return self._target

    @staticmethod
    def _alive(root: _Root) -> bool:
        # The time is taken first: a process of the same command that starts in between
        # is then younger than what was last seen alive.
        now = processes.now_ticks()
        alive = processes.alive(root.pid, root.start)
        if alive:
            root.alive_at = now
        return alive


def _started_again(root: _Root) -> int | None:
    """A process of the same command that started after ``root`` was last seen alive."""
    for pid, status in processes.table().items():
        later = not status.ended and status.start_ticks >= root.alive_at
        if later and processes.arguments(pid) == root.command:
            return pid
    return None
