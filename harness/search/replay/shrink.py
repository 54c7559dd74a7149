"""A failing case made smaller, by as few plays as it takes. Nothing here starts a
server.

First whole groups are left out, chosen by what a play showed: what was sent after the
failing request, what looks healthy and shares nothing with what does not, one class of
operations after the other. What is left of a class is searched for the operations that
matter, one after the other, by halving. In the end each operation is left out by
itself, and each option of the server, until neither can go: what is left then is
1-minimal, as delta debugging (Zeller and Hildebrandt, IEEE TSE 28(2), 2002) calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mmrepro.campaign import Spent
from mmrepro.failure.documents.replay import Needed, Step
from mmrepro.search.replay.simplify import (
    Simplification,
    abnormal,
    all_at_once,
    all_options_left_out,
    as_it_went,
    changes,
    grouped,
    kinds,
    options_left_out,
    restricted,
    sharing,
    stand_ins,
)
from mmrepro.search.replay.store import CandidateVerdict, Observation
from mmrepro.traffic.case import Case, case_digest

if TYPE_CHECKING:
    from mmrepro.search.replay.confirm import Candidates

_FEW, _MANY = 3, 12
"""So few of a class are left out one by one; of so many not all are needed, most
likely."""


class _Unknown(Exception):
    """A candidate of which nobody knows whether it fails."""

    def __init__(self, case: Case, what: str) -> None:
        super().__init__(what)
        self.case, self.what = case, what


@dataclass
class _Guesses:
    """Verdicts that are known or assumed, in place of attempts."""

    verdicts: Mapping[str, CandidateVerdict]
    left = sys.maxsize

    def __call__(self, case: Case, what: str) -> CandidateVerdict:
        """Raises _Unknown."""
        if (verdict := self.verdicts.get(case_digest(case))) is None:
            raise _Unknown(case, what)
        return verdict


@dataclass
class Shrinking:
    """One failure's case while it shrinks.

    Attributes:
        case: the smallest one that fails; ``seen``: a failing play of it.
        failing: operations whose answers show the failure, from a play.
        grew: told of each step.
        simpler: requests may be changed, and not only left out.
        plainer: options of the server may be left out.
        not_tried: what the budget did not allow.
        minimal: each operation was left out by itself, or one that is alike; with these
            options.
    """

    case: Case
    seen: Observation
    test: Candidates | _Guesses
    failing: Callable[[Observation], list[str]]
    grew: Callable[[], None] = lambda: None
    simpler: bool = True
    plainer: bool = True
    steps: list[Step] = field(default_factory=list)
    needed: dict[str, Needed] = field(default_factory=dict)
    needed_options: dict[str, Needed] = field(default_factory=dict)
    not_tried: list[str] = field(default_factory=list)
    minimal: bool = False

    def __post_init__(self) -> None:
        self._whole = self.case, self.seen
        self._likely = False
        """Whether the present phase's candidates fail more often than not."""
        self._plan = as_it_went(self.case, self.seen)
        self._singly: Case | None = None
        self._plainly: Case | None = None
        """The cases of which each operation, and each option, was left out by
        itself."""

    def run(self) -> None:
        """To the end, or until nothing more may be played."""
        phases = (
            ("all that looks healthy", self.bold, False),
            ("what was sent after it", self.tail, True),
            ("what was sent before anything went wrong", self.head, True),
            ("classes of operations", self.classes, False),
            ("numbers within a class", self.numbers, False),
            ("simpler requests", self.simplify, True),
            ("options of the server", self.options, True),
            ("each operation by itself", self.singles, False),
            (
                "options and operations again, each without the others that went",
                self.settle,
                False,
            ),
        )
        for number, (_, phase, self._likely) in enumerate(phases):
            try:
                phase()
            except Spent:
                self.not_tried += [name for name, _, _ in phases[number:]]
                break
        if self._plainly != self.case:  # another case needed them
            self.needed_options.clear()
        self.minimal = self._singly == self.case

    @property
    def ids(self) -> list[str]:
        return [op.id for op in self.case.operations]

    # ------------------------------------------------------------------ large pieces

    def tail(self) -> None:
        """What was sent after the first failing operation, or else what was never
        sent."""
        sent, order = self.seen.sent, {op: n for n, op in enumerate(self.seen.sent)}
        if not sent and self.ids:
            self._try(self._plan.keeping([]), "without any request")
            return
        failing = sorted(order[op] for op in self.failing(self.seen) if op in order)
        if not failing:
            self.keep(sent, "without what was never sent")
            return
        # One of them set it off, and all that came later failed with it.
        first, last = self._culprits()[0], sent[failing[-1]]
        if not self.keep(
            sent[: order[first] + 1], f"without what was sent after {first}"
        ):
            self.keep(sent[: failing[-1] + 1], f"without what was sent after {last}")

    def bold(self) -> None:
        """Few at once: what fails, with what went wrong before it, and who shares
        images.

        Also of what was sent later: it may take the place of what goes.
        """
        failing = self._culprits()
        ops = {op.id: op for op in self.case.operations}
        kind = kinds(self.case, self.seen)
        same = {op for op in self.ids if kind[op] in {kind[f] for f in failing}}
        images = {op for op in self.ids if ops[op].images}
        odd = sharing(self.case, [*abnormal(self.seen), *failing])
        first = [(set(failing), "the failing operation alone")]
        if images.intersection(failing):
            own = {op for op in self.ids if kind[op].images == "new"} & images
            refused = sharing(self.case, abnormal(self.seen))
            first += [
                (
                    images & odd,
                    "only what has an image and fails, was refused, or shares it",
                ),
                (
                    images & (refused | own),
                    "refused images, and all that nobody shares",
                ),
                (
                    images & (odd | same),
                    "refused images, and all of the failing one's class",
                ),
                (images, "only what has an image"),
            ]
        first += [
            (odd, "only what fails, was refused, or shares an image with one of these"),
            (odd | same, "these, and all that is of a failing one's class"),
        ]
        for keep, what in first:
            if self.keep(keep, what):
                return

    def head(self) -> None:
        """What was sent before anything went wrong."""
        odd = sharing(self.case, [*abnormal(self.seen), *self._culprits()])
        sent = [op for op in self.seen.sent if op in self.ids]
        first = next((n for n, op in enumerate(sent) if op in odd), 0)
        if first:
            self.drop(sent[:first], f"without what was sent before {sent[first]}")

    def classes(self) -> None:
        """One class of operations after another, the largest first."""
        kind = kinds(self.case, self.seen)
        failing = set(self._culprits())
        for name, members in grouped(kind, self.ids).items():
            gone = [op for op in members if op in self.ids and op not in failing]
            if _FEW < len(gone) < len(self.ids):
                self.drop(gone, f"without the {len(gone)} × {name}")

    # ------------------------------------------------------------------ within a class

    def numbers(self) -> None:
        """Of each class that is needed only those that are."""
        kind, order = (
            kinds(self.case, self.seen),
            {op: n for n, op in enumerate(self.seen.sent)},
        )
        failing = set(self._culprits())
        for name, members in grouped(kind, self.ids).items():
            rest = [op for op in members if op not in failing]
            if len(rest) > _FEW:
                rest.sort(key=lambda op: order.get(op, len(order)))
                self._search(rest, str(name))

    def _search(self, rest: list[str], name: str) -> None:
        """The operations that matter, oldest first: all before the next one may go.

        ``rest`` was left out as a whole before, and it did not fail then.
        """
        while len(rest) > _MANY:
            rest = rest[self._most(rest, name) + 1 :]
            if self.drop(rest, f"without the other {len(rest)} × {name}"):
                return
        # Of a few, halves; what stays then is left out one by one.
        while len(rest) >= _FEW:
            halves = rest[: len(rest) // 2], rest[len(rest) // 2 :]
            what = f"of the other {len(rest)} × {name}"
            gone = next(
                (h for h in halves if self.drop(h, f"without {len(h)} {what}")), None
            )
            if gone is None:
                return
            rest = [op for op in rest if op not in gone]

    def _most(self, rest: Sequence[str], name: str) -> int:
        """How many of the first of ``rest`` may go together: the next one is needed."""
        low, high = 0, len(rest)  # without `low` it fails, without `high` it does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.drop(
                rest[:middle], f"without the first {middle} of {len(rest)} × {name}"
            ):
                low = middle
            else:
                high = middle
        return low

    # ------------------------------------------------------------------ one by one

    def singles(self) -> None:
        """Each operation left out by itself, until none can be."""
        before = -1
        while len(self.ids) not in (before, 1, 0):
            before = len(self.ids)
            self.needed.clear()  # more were there then
            self._each_once()
        if len(self.ids) == 1:
            alone = set(self.ids) - set(self.failing(self.seen))
            if (
                not alone
                or not self._try(self._plan.keeping([]), "without any request").fails
            ):
                self.needed = {
                    op: Needed(what=op, why="it is the only request") for op in self.ids
                }
        self._singly = self.case

    def settle(self) -> None:
        """Until neither an option nor an operation can go: one may need only what has
        gone by now."""
        while self._singly != self.case or (
            self.plainer and self._plainly != self.case
        ):
            if self.plainer and self._plainly != self.case:
                self._each_option(spare=False)
            if self._singly != self.case:
                self.singles()

    def _each_once(self) -> None:
        groups = stand_ins(self.case, self.seen)
        stands = {op: group[0] for group in groups for op in group[1:]}
        try:
            odd = set(abnormal(self.seen)) | set(self._culprits())
            # These hardly go.
            first = sorted((g[0] for g in groups), key=lambda op: op in odd)
            for op in [*first, *stands]:
                self._leave_out(op)
        except Spent:
            missing = [op for op in self.ids if op not in self.needed]
            if any(stands.get(op) not in self.needed for op in missing):
                raise
            for op in missing:
                self.needed[op] = self.needed[stands[op]].model_copy(
                    update={"what": op, "by": stands[op]}
                )
            if missing:
                alone = (
                    f"{len(missing)} operations by themselves: each is replaced by "
                    "one like it"
                )
                self.not_tried.append(alone)
        finally:
            self.needed = {op: why for op, why in self.needed.items() if op in self.ids}

    def _leave_out(self, op: str) -> None:
        rest = [other for other in self.ids if other != op]
        if rest and len(rest) < len(self.ids):
            verdict = self._try(self._plan.keeping(rest), f"without {op}")
            if not verdict.fails:
                others = f"the other {len(rest)} requests"
                self.needed[op] = Needed(what=op, why=_why(verdict, others))

    # ------------------------------------------------------------------ simpler

    def simplify(self) -> None:
        """The requests that are left, made simpler; as far as each of them can still be
        tried."""
        if (
            self.simpler
            and self._affords(1)
            and (change := all_at_once(self.case, self.seen))
        ):
            if self._change(change):
                return
            for single in changes(self.case, self.seen):
                if not self._affords(1):
                    self.not_tried.append("further simplifications of the requests")
                    return
                self._change(single)

    def options(self) -> None:
        """All options of the server left out, or each by itself."""
        if not self.plainer:
            return
        every = all_options_left_out(self.case)
        if every and self._affords(1):
            self._change(every)
        self._each_option(spare=True)

    def _each_option(self, *, spare: bool) -> None:
        """Each option left out by itself, until none can be. ``spare``: as far as each
        operation can still be tried."""
        before: Case | None = None
        while before != self.case:
            before = self.case
            self.needed_options.clear()  # more were there then
            for change in list(options_left_out(before)):
                if spare and not self._affords(1):
                    return
                case = change.made(self.case)
                if (
                    case != self.case
                    and not (verdict := self._try(case, change.what)).fails
                ):
                    why = _why(verdict, "the same requests")
                    self.needed_options[change.name] = Needed(what=change.name, why=why)
        self._plainly = self.case

    def _change(self, change: Simplification) -> bool:
        case = change.made(self.case)
        return case == self.case or self._try(case, change.what).fails

    def _affords(self, plays: int) -> bool:
        """Whether one operation of each kind can still be left out afterwards."""
        return self.test.left >= plays + len(stand_ins(self.case, self.seen))

    # ------------------------------------------------------------------ steps

    def keep(self, ids: Sequence[str] | set[str], what: str) -> bool:
        """Whether the case with only these fails; then it is the case."""
        chosen = [op for op in self.ids if op in ids]
        if len(chosen) == len(self.ids) or (not chosen and self.ids):
            return False
        return self._try(self._plan.keeping(chosen), what).fails

    def drop(self, ids: Sequence[str], what: str) -> bool:
        return self.keep([op for op in self.ids if op not in ids], what)

    def _try(self, case: Case, what: str) -> CandidateVerdict:
        test = self.test
        known = test.verdicts
        if (
            not isinstance(test, _Guesses)
            and test.jobs > 1
            and case_digest(case) not in known
        ):
            test.beside(self._ahead(case, what, test.jobs))
        verdict = test(case, what)
        self._note(case, what, verdict)
        return verdict

    def _ahead(self, case: Case, what: str, number: int) -> list[tuple[Case, str]]:
        """The candidate, and those that are asked for next where it turns out as most
        of its phase
        do: the same walk from the whole case, on verdicts that are known and
            assumed."""
        found, known, likely = [(case, what)], self.test.verdicts, self._likely
        whole, first = self._whole
        while len(found) < number:
            case = found[-1][0]
            verdict = CandidateVerdict(
                likely, int(likely), 1, restricted(self.seen, case)
            )
            known = {**known, case_digest(case): verdict}
            twin = replace(
                self,
                case=whole,
                seen=first,
                test=_Guesses(known),
                grew=lambda: None,
                steps=[],
                needed={},
                needed_options={},
                not_tried=[],
            )
            try:
                twin.run()
                break
            except _Unknown as asked:
                found.append((asked.case, asked.what))
                likely = twin._likely
        return found

    def _note(self, case: Case, what: str, verdict: CandidateVerdict) -> None:
        if verdict.fails:
            self.case = self._plan = case
            self.seen = verdict.seen or self.seen
        if verdict.again and not verdict.fails:
            return
        self.steps.append(
            Step(
                what=what,
                kept=verdict.fails,
                requests=len(case.operations),
                failed=verdict.failed,
                plays=verdict.plays,
            )
        )
        self.grew()

    def _culprits(self) -> list[str]:
        """The operation that most likely set it off: of those that show it the first
        one that was sent, with an image if there is such a one; the last one that was
        sent, if none shows it."""
        ids = self.ids
        sent = [op for op in self.seen.sent if op in ids] or ids
        shown = set(self.failing(self.seen))
        images = {op.id for op in self.case.operations if op.images}
        found = [op for op in sent if op in shown]
        return ([op for op in found if op in images] or found or sent[-1:])[:1]


def _why(verdict: CandidateVerdict, of: str) -> str:
    plays = f"{verdict.plays} play{'s' * (verdict.plays > 1)}"
    return f"without it: no such failure in {plays} of {of}"
