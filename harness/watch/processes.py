"""What the processes behind a watched URL show, where they can be seen: an end, a standstill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmrepro.base import processes
from mmrepro.diagnose import discover, general
from mmrepro.diagnose.discover import Target
from mmrepro.diagnose.frozen import Stance, stance
from mmrepro.diagnose.readings import View
from mmrepro.evidence import Evidence
from mmrepro.incident.diagnosis import ServerState, TargetFacts
from mmrepro.probes.base import run_probe
from mmrepro.probes.stacks import StacksProbe
from mmrepro.watch.health import CheckOutcome

SAMPLES = 5

Seen = tuple[CheckOutcome, str]


@dataclass
class _Root:
    """The process that answered. ``alive_at``: when it was last seen to live, in clock ticks after
    boot."""

    pid: int
    start: int
    command: list[str]
    alive_at: int


class Processes:
    """The processes behind ``url``. Nothing is asked of the server, and none is paused."""

    def __init__(self, url: str, scratch: Path) -> None:
        self._url = url
        self._scratch = scratch
        self._target: Target | None = None
        self._root: _Root | None = None
        self._silence = Evidence()

    @property
    def facts(self) -> TargetFacts | None:
        """What was found of it since it answered, or was looked at; None: nothing yet."""
        return None if self._target is None else self._target.facts

    @property
    def silence(self) -> Evidence:
        """Stacks that were taken since the last answer."""
        return self._silence

    def name_engine(self, metrics: frozenset[str]) -> None:
        """By its metrics, where its processes do not tell."""
        if self._target is not None and self._target.engine is None:
            discover.name_engine(self._target, metrics)

    def memory(self) -> dict[tuple[int, int], tuple[str, int]]:
        """(pid, start in clock ticks): role and resident bytes, of each process that lives."""
        known = self._target.facts.processes if self._target is not None else []
        read = ((p.role, processes.stat(p.pid)) for p in known)
        return {
            (s.pid, s.start_ticks): (role, s.rss_bytes)
            for role, s in read
            if s is not None and not s.ended
        }

    @property
    def near(self) -> bool:
        """No network lies between: it runs on this machine."""
        return self._found().facts.place != "remote"

    def answered(self) -> None:
        """It works: what was seen of a silence before is over."""
        self._silence = Evidence()
        if self._root is not None and not self._alive(self._root):
            self._target = self._root = None
        self._found()

    def absent(self) -> Seen:
        """Nothing listens any more: whether it has ended, or starts."""
        root = self._root
        if root is None:
            return CheckOutcome.ABSENT, "nothing listens there"
        if self._alive(root):
            return CheckOutcome.SILENT, f"process {root.pid} lives, and does not listen any more"
        ended = f"process {root.pid}, which answered before, has ended"
        if again := _started_again(root):
            return CheckOutcome.ABSENT, f"{ended}; process {again} has its command: it starts"
        return CheckOutcome.FAILED, ended

    def part_dead(self) -> str:
        """Which process of the engine has ended, while others live; "": none is seen to."""
        target = self._found()
        discover.refresh(target)
        dead = general.at_once(Evidence(), target.facts)
        part = dead is not None and dead.state is ServerState.PART_DEAD
        return dead.sentence if dead is not None and part else ""

    def look(self, seconds: float) -> Seen:
        """Where its threads are, while it keeps a request waiting; for ``seconds``.

        What was seen in the silent checks before counts as well: what moves now and then works.
        """
        unseen = CheckOutcome.SILENT, ""
        target = self._found()
        if target.engine is None or target.facts.root_pid is None:
            return unseen
        if dead := self.part_dead():
            return CheckOutcome.FAILED, dead
        if any(p.state in "Tt" for p in target.facts.processes):
            return CheckOutcome.SILENT, "it is stopped by a signal"
        view = View(target.facts, self._silence)
        pids = [pid for pid in (view.core_pid, target.facts.root_pid) if pid is not None]
        probe = StacksProbe(pids, SAMPLES, seconds / SAMPLES, locals=False, blocking_fallback=False)
        result = run_probe(probe, self._scratch, seconds, phase="check")
        self._silence.probes.append(result)  # type: ignore[arg-type] # as AnyProbeResult
        for raw in result.raw:
            (self._scratch / raw).unlink(missing_ok=True)
        found, place = stance(view)
        if found is Stance.UNSEEN:
            return unseen
        if found is Stance.MOVES:
            return CheckOutcome.SILENT, f"its stacks move ({place})"
        how = "stands still" if found is Stance.STANDS else "idles while a request waits"
        return CheckOutcome.FAILED, f"{target.facts.role_of(view.core_pid) or 'it'} {how} ({place})"

    def _found(self) -> Target:
        if self._target is None:
            self._target = target = discover.find(self._url)
            pid = target.facts.root_pid
            status = None if pid is None else processes.stat(pid)
            if pid is not None and status is not None:
                command = processes.arguments(pid)
                self._root = _Root(pid, status.start_ticks, command, processes.now_ticks())
                discover.name_engine(target, frozenset())
        return self._target

    @staticmethod
    def _alive(root: _Root) -> bool:
        now = processes.now_ticks()
        alive = processes.alive(root.pid, root.start)
        root.alive_at = now if alive else root.alive_at
        return alive


def _started_again(root: _Root) -> int | None:
    """A process of the same command that started after ``root`` was last seen alive."""
    for pid, status in processes.table().items():
        later = not status.ended and status.start_ticks >= root.alive_at
        if later and processes.arguments(pid) == root.command:
            return pid
    return None
