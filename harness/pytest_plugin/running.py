"""Runs of engines from pytest's main thread, which Ctrl-C and pytest-timeout may
interrupt.

What came of them is in pytest's words: pass, failure, error or skip, with its reason.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import pytest
from filelock import FileLock, Timeout
from mmrepro.base.errors import MmreproError
from mmrepro.base.text import Redactor, clip, one_line, plain
from mmrepro.base.units import duration
from mmrepro.campaign import (
    Bound,
    CellsUntilWhole,
    EnvironmentGroup,
    Estimates,
    LocalPlaces,
    Provisions,
    TrialOptions,
    Trials,
    Workplace,
)
from mmrepro.failure.documents import Attempt, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history import VERDICTS, History, JobState, Settled, settle_cell
from mmrepro.pytest_plugin.settings import PROPERTY, skips_inconclusive
from mmrepro.reports.documents import MARKDOWN_FILE

_DETAIL_LINES = 6


@dataclass(frozen=True)
class CellResult:
    """A cell that was run as often as it had to be.

    Attributes:
        what: it, for people: ``ghost-key-eviction on vllm 0.24.0 (cpu)``.
        root: incidents are named relative to it.
        here: folders below it are told relative to it.
        named: whether a reason has to say what it is of: the test has another name.
    """

    what: str
    planned: Planned
    attempts: tuple[Attempt, ...]
    root: Path
    here: Path
    named: bool = False

    @cached_property
    def settled(self) -> Settled:
        return settle_cell(self.attempts)

    @property
    def expected(self) -> Outcome | None:
        """As the runs say, and those without an outcome cannot."""
        return (
            self.planned.expected
            if self.settled.expected is None
            else self.settled.expected
        )

    @cached_property
    def shown(self) -> Attempt | None:
        """The attempt that shows it best: of a flaky one what was not expected, else
        the last of those that decided."""
        with_outcome = [a for a in self.attempts if a.outcome is not None]
        if self.settled.state is JobState.FLAKY:
            odd = [a for a in with_outcome if a.outcome is not a.expected]
            return (odd or with_outcome)[-1]
        decided = [a for a in with_outcome if str(a.outcome) == str(self.settled.state)]
        last = decided or self.attempts
        return last[-1] if last else None

    @property
    def folder(self) -> Path | None:
        if self.shown is None or not self.shown.incident:
            return None
        return self.root / self.shown.incident

    @property
    def properties(self) -> Iterator[tuple[str, str]]:
        """For JUnit's ``<properties>`` and the summary on the terminal."""
        cell, shown = self.planned.cell, self.shown
        facts = {
            "cell": cell.id,
            "engine": cell.engine,
            "release": cell.release,
            "device": cell.device,
            "outcome": str(self.settled.state),
            "expected": self.expected or "",
            "runs": self.settled.why,
            "key": shown.key if shown else "",
            "fidelity": (shown and shown.fidelity) or "",
            "incident": self._path(self.folder) if self.folder else "",
            "command": shown.command if shown else "",
        }
        return (
            (f"{PROPERTY}{name}", str(value)) for name, value in facts.items() if value
        )

    # ------------------------------------------------------------------ judged

    def check_learnt(self, config: pytest.Config) -> None:
        """Raises what makes an error, or a skip, of it: nothing is known of the
        engine."""
        state = self.settled.state
        if state in VERDICTS or state is JobState.FLAKY:
            return
        if state is JobState.LOST:
            assert self.shown is not None
            tried = (
                f" in each of {len(self.attempts)} runs"
                if len(self.attempts) > 1
                else ""
            )
            self._fail(
                f"nothing was learnt, {self.shown.lost}{tried}", self.shown.error
            )

        if self.shown is None:
            first, why = "not run: no run would have ended within max-time", ""
        else:
            first, why = "inconclusive", self.shown.explanation

        if skips_inconclusive(config):
            pytest.skip(one_line(f"{self.what}: {first}{': ' if why else ''}{why}"))
        self._fail(first, why)

    def check_expected(self) -> None:
        """Raises what makes a failure of it: its verdict was not expected, or not
        one."""
        settled, wanted = self.settled, self.expected
        if settled.state is JobState.FLAKY:
            outcome = (
                f"flaky: {settled.reproduced} of {settled.conclusive} runs reproduced "
                "it"
            )
            self._fail(
                f"{outcome}; {wanted} was expected" if wanted else outcome, settled.why
            )

        if settled.as_expected is False:
            assert self.shown is not None
            several = settled.why if len(self.attempts) > 1 else ""
            self._fail(
                f"{settled.state}; {wanted} was expected",
                self.shown.explanation,
                several,
            )

    def _fail(self, first: str, *more: str) -> NoReturn:
        raise failure("\n".join(self._lines(first, more)))

    def _lines(self, first: str, more: Sequence[str]) -> Iterator[str]:
        yield f"{self.what}: {first}" if self.named else first
        for text in more:
            lines = [line for line in plain(text).splitlines() if line.strip()]
            yield from (clip(line, 300) for line in lines[:_DETAIL_LINES])
        if self.folder is not None:
            yield f"report: {self._path(self.folder)}/{MARKDOWN_FILE}"
        if self.shown is not None and self.shown.command:
            yield f"run again: {self.shown.command}"

    def _path(self, path: Path) -> str:
        return str(
            path.relative_to(self.here) if path.is_relative_to(self.here) else path
        )


def failure(text: str) -> BaseException:
    """The exception to be raised: pytest shows ``text`` alone. In a test's set-up it is
    an error."""
    return pytest.fail.Exception(text, pytrace=False)


def sentence(error: Exception) -> str:
    hint = error.hint if isinstance(error, MmreproError) else ""
    return f"{error} ({hint})" if hint else str(error)


def tell_reports(
    terminal: pytest.TerminalReporter, ran: Sequence[tuple[str, pytest.TestReport]]
) -> None:
    """Tell where the incidents of what failed are."""
    name = f"{PROPERTY}incident"
    folders = [
        (report.nodeid, str(value))
        for kind, report in ran
        if kind in ("failed", "error")
        for key, value in report.user_properties
        if key == name
    ]
    if folders:
        terminal.section("mmrepro: reports of what failed")
        for nodeid, folder in folders:
            terminal.write_line(f"{nodeid}: {Path(folder) / MARKDOWN_FILE}")


POLL_S = 0.2
_STOP_S = 10.0
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

    Without a campaign: pytest says what is run next, item by item, and what interrupts
    an item is raised in its main thread, where it ends that item alone."""

    def __init__(self, how: How) -> None:
        self.how = how
        self._estimates = Estimates(History())
        self._redactor = Redactor()
        self._places: LocalPlaces | None = None

    def run(
        self,
        group: EnvironmentGroup,
        planned: Planned,
        ahead: EnvironmentGroup | None = None,
    ) -> list[Attempt]:
        """Run the cell until it is whole: planned runs, a retry, those that confirm a
        surprise.

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
            # A daemon: who presses Ctrl-C twice does not wait for it; its run is killed
            # with it.
            thread = threading.Thread(target=do, name="mmrepro", daemon=True)
            try:
                thread.start()
                # Not join: a thread that was joined when a signal came is taken for
                # ended.
                while not ended.wait(POLL_S):
                    pass
            except BaseException:
                places.stop()
                ended.wait(_STOP_S)  # it may not even have begun, and then does nothing
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
        """End all that runs, what is fetched and the last fork server; a later run
        begins anew."""
        places, self._places = self._places, None
        if places is not None:
            try:
                places.stop()
            finally:
                places.join()

    def _work(
        self,
        here: Workplace,
        group: EnvironmentGroup,
        planned: Planned,
        ahead: EnvironmentGroup | None,
    ) -> Iterator[Attempt]:
        how, provisions = self.how, here.provisions
        seconds = self._estimates.of(planned.cell)[0]
        ready = time.time() + provisions.seconds(group)
        if how.until is not None and ready + seconds > how.until:
            return  # and nothing is fetched for it
        here.enter(group, how.repeat)  # where that fails each run is told why
        group_of_one = replace(group, cells=(planned,))
        order = CellsUntilWhole(
            night=how.night,
            group=group_of_one,
            attempts={},
            before={},
            seconds={planned.cell.id: seconds},
            repeat=how.repeat,
            confirm=how.confirm,
            until=how.until,
            ahead=ahead,
        )
        provisions.expect([group_of_one])
        for step in order.carry_out(here, how.root):
            if isinstance(step, Attempt):
                if step.outcome is not None:
                    self._estimates.note(planned.cell, step.seconds)
                # Pytest shows it with what fails, or with -s.
                print(_told(step), flush=True)
                yield step

    def _provided(self) -> LocalPlaces:
        how, bound = self.how, None
        if how.disk is not None:
            bound = Bound(
                how.disk, how.root / f".disk-{how.night.replace('/', '-')}.json"
            )
        provisions = Provisions(how.options, bound, print)
        return LocalPlaces(Trials(how.options), provisions, machine=how.options.machine)


@contextlib.contextmanager
def turn(root: Path, count: int) -> Iterator[None]:
    """Wait until fewer than ``count`` engines run below ``root``, and be one of them.

    Workers of pytest-xdist share that folder: a hang is told by its time, and engines
    that take the cores from each other are slow."""
    locks = [
        FileLock(root / f".turn-{n}.lock", thread_local=False) for n in range(count)
    ]
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
