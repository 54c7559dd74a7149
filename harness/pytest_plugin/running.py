"""Runs of engines from pytest's main thread, which Ctrl-C and pytest-timeout may interrupt."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from mmrepro.base.units import duration
from mmrepro.campaign.disk import Bound
from mmrepro.campaign.groups import Estimates, Group
from mmrepro.campaign.provisions import Provisions
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import CellsUntilWhole, Here
from mmrepro.history.ledger import History
from mmrepro.incident.ledger import Attempt, Planned
from mmrepro.text.redact import Redactor

POLL_S = 0.2
STOP_S = 10.0
"""For a run to end that was stopped: its process has ended by then."""


@dataclass(frozen=True)
class How:
    """What is the same for all runs of a file, or of a marker.

    Attributes:
        root: the incidents are below it, in ``incidents/NIGHT``.
        until: Unix time; no run is started that is not expected to end by then.
        disk: what may be added to the disk, in bytes.
        turns: engines at a time, of all workers of pytest-xdist together.
    """

    root: Path
    night: str
    options: TrialOptions
    repeat: int = 1
    confirm: int = 0
    until: float | None = None
    disk: int | None = None
    turns: int = 1


class Runs:
    """Runs cells one after another; the engine of the last environment stays imported."""

    def __init__(self, how: How) -> None:
        self.how = how
        self._estimates = Estimates(History())
        self._redactor = Redactor()
        self._inside = contextlib.ExitStack()
        self._group: Group | None = None
        self._trials: Trials | None = None
        self._provisions: Provisions | None = None

    def run(self, group: Group, planned: Planned, ahead: Group | None = None) -> list[Attempt]:
        """Run the cell until it is whole: planned runs, a retry, those that confirm a surprise.

        Args:
            group: all cells of its environment that are to be run.
            ahead: whose environment is worth fetching meanwhile.

        Returns:
            Its attempts; none: there was no time for one.

        Raises:
            BaseException: what interrupted it; the engine has ended by then.
        """
        made: list[Attempt] = []
        failed: list[BaseException] = []
        ended = threading.Event()

        def do() -> None:
            try:
                made.extend(self._work(group, planned, ahead))
            except BaseException as error:
                failed.append(error)
            finally:
                ended.set()

        with turn(self.how.root, self.how.turns):
            self._trials = Trials(self.how.options)
            # A daemon: who presses Ctrl-C twice does not wait for it; its run is killed with it.
            thread = threading.Thread(target=do, name="mmrepro", daemon=True)
            try:
                thread.start()
                # Not join: a thread that was joined when a signal came is taken for ended.
                while not ended.wait(POLL_S):
                    pass
            except BaseException:
                self._stop()
                ended.wait(STOP_S)  # it may not even have begun, and then does nothing
                self.leave()
                raise
        if failed:
            raise failed[0]
        return [self._redactor.redact_model(attempt) for attempt in made]

    def leave(self) -> None:
        """The last environment is done with: its warm parent ends."""
        self._inside.close()
        self._group = None

    def close(self) -> None:
        """End what is fetched ahead, and the last warm parent."""
        self._stop()
        self.leave()

    def _stop(self) -> None:
        """End all that runs, and what is fetched; a later run begins anew."""
        trials, provisions = self._trials, self._provisions
        self._trials = self._provisions = None
        try:
            if provisions is not None:
                provisions.stop()
        finally:
            if trials is not None:
                trials.stop()

    def _work(self, group: Group, planned: Planned, ahead: Group | None) -> Iterator[Attempt]:
        how, trials = self.how, self._trials
        assert trials is not None
        provisions = self._provisions or self._provide()
        seconds = self._estimates.of(planned.cell)[0]
        ready = time.time() + provisions.seconds(group)
        if how.until is not None and ready + seconds > how.until:
            return  # and nothing is fetched for it
        self._enter(group, provisions)
        one = replace(group, cells=(planned,))
        order = CellsUntilWhole(
            night=how.night,
            group=one,
            attempts={},
            before={},
            seconds={planned.cell.id: seconds},
            repeat=how.repeat,
            confirm=how.confirm,
            until=how.until,
            ahead=ahead,
        )
        provisions.expect([one])
        here = Here(trials, provisions, how.options.machine)
        for step in order.carry_out(here, how.root):
            if isinstance(step, Attempt):
                if step.outcome is not None:
                    self._estimates.note(planned.cell, step.seconds)
                print(_told(step), flush=True)  # pytest shows it with what fails, or with -s
                yield step

    def _enter(self, group: Group, provisions: Provisions) -> None:
        """Have the environment, and its engine imported, until :meth:`leave`."""
        if self._group is group:
            return
        self.leave()
        self._group = group
        provisions.expect([group])
        self._inside.callback(provisions.done, group)
        if not provisions.prepare(group):  # else each run is told why
            runs = [(planned.cell, self.how.repeat) for planned in group.cells]
            self._inside.enter_context(provisions.warm(runs))

    def _provide(self) -> Provisions:
        how = self.how
        bound = None
        if how.disk is not None:
            bound = Bound(how.disk, how.root / f".disk-{how.night.replace('/', '-')}.json")
        self._provisions = Provisions(how.options, bound, print)
        return self._provisions


@contextlib.contextmanager
def turn(root: Path, count: int) -> Iterator[None]:
    """Wait until fewer than ``count`` engines run below ``root``, and be one of them.

    Workers of pytest-xdist share that folder: a hang is told by its time, and engines that take the
    cores from each other are slow.
    """
    locks = [FileLock(root / f".turn-{n}.lock", thread_local=False) for n in range(count)]
    while True:
        for lock in locks:
            with contextlib.suppress(Timeout):
                lock.acquire(timeout=0)
                break
        else:
            time.sleep(POLL_S)
            continue
        break
    try:
        yield
    finally:
        lock.release()


def _told(attempt: Attempt) -> str:
    came = attempt.outcome or f"lost ({attempt.lost})"
    return f"run {attempt.index} ({attempt.role}): {came}, {duration(attempt.seconds)}"
