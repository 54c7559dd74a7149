"""One square of a night's picture: a cell, what its runs came to, and what that means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mmrepro.base.units import duration
from mmrepro.history.quarantine import Entry
from mmrepro.history.states import VERDICTS, Settled, State
from mmrepro.incident.ledger import Attempt, Cell, Event, Planned
from mmrepro.records import Fidelity
from mmrepro.reports.night_words import STATE_WORDS, Standing, plural
from mmrepro.reports.words import OUTCOME_WORDS, sane
from mmrepro.signature import Outcome
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Column:
    """A release of an engine, or a commit of it."""

    release: str
    commit: str = ""

    @property
    def label(self) -> str:
        return f"{self.release} {self.commit[:9]}".strip()

    @property
    def order(self) -> tuple[bool, Version, str, str]:
        """By version; what is none comes last."""
        try:
            return (False, Version(self.release), self.release, self.commit)
        except InvalidVersion:
            return (True, Version("0"), self.release, self.commit)


@dataclass(frozen=True)
class Square:
    """A cell of the plan and all that this night knows of it."""

    planned: Planned
    settled: Settled
    attempts: Sequence[Attempt]
    quarantine: Entry | None = None
    events: Sequence[Event] = ()

    @property
    def cell(self) -> Cell:
        return self.planned.cell

    @property
    def column(self) -> Column:
        return Column(self.cell.release, self.cell.commit)

    @property
    def state(self) -> State:
        return self.settled.state

    @cached_property
    def standing(self) -> Standing:
        if self.state is State.FLAKY:
            return Standing.QUARANTINED if self.quarantine else Standing.FLAKY
        if self.state not in VERDICTS:
            return Standing.UNTESTED
        if not self.odd:
            return Standing.UNJUDGED if self.expected is None else Standing.EXPECTED
        return Standing.QUARANTINED if self.quarantine else Standing.SURPRISE

    @property
    def odd(self) -> bool:
        """Whether it has a verdict that was not expected, quarantined or not."""
        return self.state in VERDICTS and self.settled.as_expected is False

    @property
    def fidelity(self) -> Fidelity | None:
        return next((a.fidelity for a in reversed(self.attempts) if a.fidelity), None)

    @property
    def seconds(self) -> float:
        return sum(a.seconds for a in self.attempts if sane(a.seconds))

    @property
    def ratio(self) -> str:
        """``k/n`` of a flaky cell, else nothing."""
        if self.state is not State.FLAKY:
            return ""
        return f"{self.settled.reproduced}/{self.settled.conclusive}"

    @property
    def words(self) -> str:
        """E.g. ``flaky: 3 of 8 reproduced (14–69 %)``."""
        if self.state is not State.FLAKY:
            return STATE_WORDS[self.state]
        s = self.settled
        return (
            f"flaky: {s.reproduced} of {s.conclusive} reproduced "
            f"({100 * s.low:.0f}–{100 * s.high:.0f} %)"
        )

    @property
    def expected(self) -> Outcome | None:
        """As the runs had it, by which they are judged; without a run, as the plan had it."""
        return self.settled.expected or self.planned.expected

    @property
    def expectation(self) -> str:
        """``as expected``, or what was expected instead."""
        if self.expected is None:
            return "nothing was expected"
        if self.settled.as_expected:
            return "as expected"
        return f"expected: {OUTCOME_WORDS[self.expected].lower()}"

    @property
    def why(self) -> str:
        """What the run that decides the state says of it."""
        run = self.deciding
        return (run.explanation or run.error) if run else self.settled.why

    @property
    def deciding(self) -> Attempt | None:
        """The newest run that has the state of the square; the newest of all where none has."""
        same = [a for a in self.attempts if a.outcome and a.outcome.value == self.state.value]
        runs = same or list(self.attempts)
        return runs[-1] if runs else None

    @property
    def runs(self) -> str:
        """``reproduced, not reproduced, lost (timeout)``, in the order in which they were made."""
        return ", ".join(outcome_words(a) for a in self.attempts)

    @property
    def title(self) -> str:
        """All that matters of the square, one line."""
        s = self.settled
        parts = [f"{self.cell.engine} {self.column.label}, {self.cell.row}", self.words]
        parts.append(self.expectation)
        if s.conclusive > 1 and self.state is not State.FLAKY:
            parts.append(f"{s.reproduced} of {s.conclusive} runs reproduced it")
        if s.lost:
            parts.append(f"{s.lost} {plural(s.lost, 'run')} lost")
        if self.quarantine is not None:
            parts.append(self.quarantine.says)
        if self.fidelity is not None:
            parts.append(f"fidelity {self.fidelity}")
        if self.attempts:
            parts.append(duration(self.seconds))
        return "; ".join(parts)


def outcome_words(attempt: Attempt) -> str:
    if attempt.outcome is not None:
        return OUTCOME_WORDS[attempt.outcome].lower()
    return f"lost ({attempt.lost})" if attempt.lost else "lost"


def report_href(attempt: Attempt | None) -> str:
    """Address of a run's report below the ledger's folder; empty unless it plainly lies there."""
    folder = attempt.incident if attempt is not None else ""
    parts = folder.split("/")
    plainly = re.fullmatch(r"incidents/[A-Za-z0-9+._/-]{1,400}", folder)
    return f"{folder}/report.html" if plainly and not {"..", ".", ""} & set(parts) else ""
