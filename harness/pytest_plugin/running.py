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
from mmrepro.campaign.local import LocalPlaces
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
    """Runs cells one after another; the engine of the last environment stays imported.

    Without a campaign: pytest says what is run next, item by item, and what interrupts an item is
    raised in its main thread, where it ends that item alone.
    """

    def __init__(self, how: How) -> None:
        self.how = how
        self._estimates = Estimates(History())
        self._redactor = Redactor()
        self._places: LocalPlaces | None = None

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
        places = self._places = self._places or self._provided()

        def do() -> None:
            try:
                made.extend(self._work(places.there()[0].here, group, planned, ahead))
            except BaseException as error:
                failed.append(error)
            finally:
                ended.set()

        with turn(self.how.root, self.how.turns):
            # A daemon: who presses Ctrl-C twice does not wait for it; its run is killed with it.
            thread = threading.Thread(target=do, name="mmrepro", daemon=True)
            try:
                thread.start()
                # Not join: a thread that was joined when a signal came is taken for ended.
                while not ended.wait(POLL_S):
                    pass
            except BaseException:
                places.stop()
                ended.wait(STOP_S)  # it may not even have begun, and then does nothing
                self.close()
                raise
        if failed:
            raise failed[0]
        return [self._redactor.redact_model(attempt) for attempt in made]

    def leave(self) -> None:
        """The last environment is done with: its fork server ends."""
        if self._places is not None:
            self._places.there()[0].here.leave()

    def close(self) -> None:
        """End all that runs, what is fetched and the last fork server; a later run begins anew."""
        places, self._places = self._places, None
        if places is not None:
            try:
                places.stop()
            finally:
                places.join()

    def _work(
        self, here: Here, group: Group, planned: Planned, ahead: Group | None
    ) -> Iterator[Attempt]:
        how, provisions = self.how, here.provisions
        seconds = self._estimates.of(planned.cell)[0]
        ready = time.time() + provisions.seconds(group)
        if how.until is not None and ready + seconds > how.until:
            return  # and nothing is fetched for it
        here.enter(group, how.repeat)  # where that fails each run is told why
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
        for step in order.carry_out(here, how.root):
            if isinstance(step, Attempt):
                if step.outcome is not None:
                    self._estimates.note(planned.cell, step.seconds)
                print(_told(step), flush=True)  # pytest shows it with what fails, or with -s
                yield step

    def _provided(self) -> LocalPlaces:
        how, bound = self.how, None
        if how.disk is not None:
            bound = Bound(how.disk, how.root / f".disk-{how.night.replace('/', '-')}.json")
        provisions = Provisions(how.options, bound, print)
        return LocalPlaces(Trials(how.options), provisions, machine=how.options.machine)


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
