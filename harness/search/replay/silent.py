"""What is silent: answers held against a plain server's, and against other
neighbours'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from mmrepro.engines import Engine
from mmrepro.engines.plain import plain_server
from mmrepro.search.oracle.comparison import agreeing, compare_with_reference, compared
from mmrepro.search.oracle.crosstalk import crosstalk, runs_needed
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.reference import (
    comparable,
    has_own_format,
    reference_case,
    reference_limits,
)
from mmrepro.search.replay.store import BLOCKS, AttemptWanted, Observation
from mmrepro.traffic.case import Case, Played

_LEAST_OF_BLOCK = 8
"""Operations: of fewer nothing is told by what grows from block to block."""
_MOST_SUSPECTS = 1
"""Of whom cross-talk is asked: each takes ten plays."""


class ReplayPlays(Protocol):
    """The attempts of a replay, as far as a comparison of answers needs them.

    Attributes:
        blocks: into so many blocks a case is cut; 0: into none.
    """

    blocks: int

    @property
    def left(self) -> int:
        """Starts of servers that may still be made."""

    def play(self, wanted: AttemptWanted) -> Observation:
        """Make one attempt. Raises Spent."""

    def whole(self, seen: Observation) -> Played:
        """Read all that an attempt recorded."""


@dataclass
class Silent:
    """The plays that only look at answers, of one replay.

    Attributes:
        reference: the plain server's play, which answers are held against once it is
            there.
        own: the same in the server's own number format, once an answer was not the
            reference's.
        judged: what was said besides sightings.
    """

    plays: ReplayPlays
    engine: Engine
    contents: Path | None
    reference: Played | None = None
    own: Played | None = None
    judged: list[OracleReport] = field(default_factory=list)
    _own_case: Case | None = None

    def judge(self, case: Case, played: Played) -> OracleReport:
        """What the reference holds against ``played``; nothing, while there is none.
        Raises Spent: there is no start left for a second one."""
        plain = self._own_case
        if self.reference is None or case is plain:
            return OracleReport()
        judged = compare_with_reference(case, played, self.reference)
        if not compared(judged) or plain is None:
            return judged
        if self.own is None:
            said = "the reference, in the server's own number format"
            self.own = self.plays.whole(
                self.plays.play(AttemptWanted(plain, "silent", 2, said))
            )

        return agreeing(judged, compare_with_reference(case, played, self.own))

    def compare(self, case: Case) -> tuple[Case, Observation] | None:
        """The case with what is needed to compare it, and its play; None: there is no
        reference, and ``judged`` says why. Raises Spent."""
        limits = reference_limits(self.engine)
        self.judged.append(OracleReport(unseen=limits))
        if plain_server(self.engine.name) is None or not case.operations:
            return None
        asked = comparable(case)
        plain = reference_case(case, self.engine)
        said = "the reference: one after another, caches off"
        reference = self.plays.play(AttemptWanted(plain, "silent", 1, said))
        self.reference, self.own, self._own_case = (
            self.plays.whole(reference),
            None,
            None,
        )
        if has_own_format(case):
            self._own_case = reference_case(case, self.engine, own_format=True)
        if len(asked.operations) >= BLOCKS * _LEAST_OF_BLOCK:
            self.plays.blocks = BLOCKS
        what = "what is held against the reference"
        return asked, self.plays.play(AttemptWanted(asked, "silent", 1, what))

    def cross_talk(self, case: Case, suspects: Sequence[str]) -> OracleReport:
        """Whether a wrong answer follows from what its neighbours hold. Raises
        Spent."""
        asked = [op.id for op in case.operations if op.id in suspects][:_MOST_SUSPECTS]
        if not asked or len(case.operations) < 2:
            return OracleReport()
        needed = 2 * runs_needed(len(asked))
        if self.plays.left < needed:
            why = f"{needed} plays are needed, {self.plays.left} are left: --budget"
            whose = ", ".join(asked)
            return OracleReport(
                unseen=[f"{whose}: whether its neighbours' content matters: {why}"]
            )

        numbers = count(1)

        def tried(case: Case) -> Played:
            wanted = AttemptWanted(
                case, "silent", next(numbers), "cross-talk: other neighbours"
            )
            return self.plays.whole(self.plays.play(wanted))

        return crosstalk(case, asked, tried, contents=self.contents)
