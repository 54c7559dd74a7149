"""What both sides answer to the same requests, token by token up to the first
difference.

Two releases compute in other orders, so that a near-tie may turn round: how far the
odds of two tokens moved where the answers part, beside how far they moved where they
agree, tells the one from the other (``oracle.near_ties``). A request to which a side
itself gives several answers is not compared; where the answers of one side alone
stopped repeating, that is a difference by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mmrepro.failure.documents.upgrade import Area, Difference, Outcome, SideRun
from mmrepro.history.states import fisher
from mmrepro.search.oracle import near_ties
from mmrepro.search.oracle.comparison import SHAPING
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.oracle.near_ties import Answer, Compared, Verdict
from mmrepro.search.oracle.promises import unlike
from mmrepro.search.oracle.reference import PLAIN, greedy, rounds
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import Case, Operation
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord

SHOWN = 3
REPEATS_P, REPEATS_SHARE = 0.001, 0.25
"""That one side repeats its answers and the other does not: the most that chance may
have of it, and the share of the requests that must make the difference. A batch of
another shape rounds otherwise, which turns a few round in a run."""
FORMS = ("tools", "structured", "streamed", "whole")
"""Kinds of requests that are compared apart: an answer is of the first one that
fits."""


@dataclass(frozen=True)
class _Told:
    """One request, compared.

    Attributes:
        verdict: None: it was not compared, as ``why`` says.
        sampled: it is not greedy: its answer follows from the sampler too.
    """

    op: Operation
    form: str
    verdict: Verdict | None = None
    why: str = ""
    sampled: bool = False


def compare(
    old: Sequence[SideRun], new: Sequence[SideRun], *, case: Case
) -> list[Difference]:
    """What of the answers differs: one statement for each kind of request, and one for
    each reason why requests were not compared."""
    old, new = (
        [run for run in runs if run.played and run.started] for runs in (old, new)
    )
    if not old or not new:
        return []
    comparison = _Comparison(case, old, new)
    told = list(comparison.told())
    found = [
        one
        for form in FORMS
        for one in _stated(form, [t for t in told if t.form == form])
    ]
    found += [*comparison.repeating(), *comparison.spelling()]
    apart = Counter(one.why for one in told if one.verdict is None)
    for why, count in apart.items():
        ids = [one.op.id for one in told if one.verdict is None and one.why == why]
        said = f"{count} of {len(told)} requests were not compared: {why}."
        found.append(_difference("not compared", Outcome.NONE, said, ids))
    if told and not any(one.verdict for one in told):
        said = "No answer could be compared."
        found.append(_difference("answers", Outcome.UNTOLD, said, []))
    return found


class _Comparison:
    """All runs of both sides, by request."""

    def __init__(
        self, case: Case, old: Sequence[SideRun], new: Sequence[SideRun]
    ) -> None:
        self.case = case
        self.records = [
            {op.id: [_record(run, op.id) for run in runs] for op in case.operations}
            for runs in (old, new)
        ]
        plain = PLAIN.get(case.server.engine)
        self.misled = plain is not None and plain.streams_mislead
        self.exact = plain is not None and plain.exact and not rounds(case.server)
        drifts = (
            drift
            for op in case.operations
            for one, other in self._pairs(op)
            for drift in near_ties.drift(one, other)
        )
        self.bound = near_ties.bound_of(drifts, exact=self.exact)
        self.ops = [opened(op) for op in case.operations]
        self.alike = {
            op.id: self._alike(op) for op in self.ops if not self._unanswered(op)
        }

    def told(self) -> Iterator[_Told]:
        for op in self.ops:
            form, sampled = _form(op), not greedy(op)
            if why := self._apart(op, sampled):
                yield _Told(op, form, why=why)
                continue
            yield self._compared(op, form, sampled)

    def repeating(self) -> Iterator[Difference]:
        """A statement where one side repeats its answers and the other does not."""
        for words, wanted in _REPEATED.items():
            ops = [op for op in self.ops if op.id in self.alike and wanted(op)]
            ops = [op for op in ops if self._runs(op) > 1]
            alike = [self.alike[op.id] for op in ops]
            unlike = [sum(not side[place] for side in alike) for place in (0, 1)]
            total = len(ops)
            chance = (
                fisher(*((count, total - count) for count in unlike)) if total else 1.0
            )
            if (
                chance >= REPEATS_P
                or abs(unlike[0] - unlike[1]) < REPEATS_SHARE * total
            ):
                continue
            worse = unlike[1] > unlike[0]
            said = f"OLD answers {unlike[0]} of {total} {words} otherwise each time, "
            said += f"NEW {unlike[1]}."
            ids = [
                op.id for op, side in zip(ops, alike, strict=True) if side[0] != side[1]
            ]
            yield _difference(
                f"{words}, repeated", Outcome.DIFFERENCE, said, ids, matters=worse
            )

    def spelling(self) -> Iterator[Difference]:
        """A statement where the same tokens are spelled otherwise."""
        ids, shown = [], ""
        for op in self.ops:
            pairs = (
                pair
                for a, b in self._pairs(op)
                for pair in zip(a.tokens, b.tokens, strict=False)
                if pair[0].spelled_out(pair[1]) or pair[1].spelled_out(pair[0])
            )
            if (pair := next(pairs, None)) is not None:
                ids.append(op.id)
                shown = shown or f"{op.id}: {pair[0].text!r} → {pair[1].text!r}"
        if ids:
            said = (
                f"Of {len(ids)} answers the tokens are the same, parts of characters "
                "among "
            )
            said += f"them are spelled otherwise ({shown})."
            yield _difference("tokens of logprobs", Outcome.DIFFERENCE, said, ids)

    def _apart(self, op: Operation, sampled: bool) -> str:
        """Why a request is not compared; "": it is."""
        if why := self._unanswered(op):
            return why
        if sampled and self._runs(op) < 2:
            return "sampled, and run once"
        if self.bound is None:
            return "the odds of all tokens moved more than an answer can bear"
        names = zip(("OLD", "NEW"), self.alike[op.id], strict=True)
        return next(
            (f"{name} answers it otherwise each time" for name, a in names if not a), ""
        )

    def _unanswered(self, op: Operation) -> str:
        sides = [side[op.id] for side in self.records]
        if any(record is None or record.left for side in sides for record in side):
            return "not answered by all runs, or left by the client"
        without = [
            name
            for name, side in zip(("OLD", "NEW"), sides, strict=True)
            if not all(r is not None and r.answered and r.choices for r in side)
        ]
        return f"no completion by {' and '.join(without)}" if without else ""

    def _runs(self, op: Operation) -> int:
        return min(len(side[op.id]) for side in self.records)

    def _alike(self, op: Operation) -> list[bool]:
        """For each side: whether all its runs gave the same answer."""
        sides = [
            [self._answers(r) for r in side[op.id] if r is not None]
            for side in self.records
        ]
        return [
            all(self._agree(first, other, op) for other in others)
            for first, *others in sides
        ]

    def _agree(
        self, one: Sequence[Answer], other: Sequence[Answer], op: Operation
    ) -> bool:
        """Whether two runs of one side gave the same answer."""
        return len(one) == len(other) and all(
            self._held(a, b, op).verdict is Verdict.SAME
            for a, b in zip(one, other, strict=True)
        )

    def _compared(self, op: Operation, form: str, sampled: bool) -> _Told:
        same = Verdict.SAME
        right, mine = (
            [r for r in side[op.id] if r is not None] for side in self.records
        )
        pairs = list(
            zip(*(self._answers(side[0]) for side in (right, mine)), strict=False)
        )
        if len(mine[0].choices) != len(right[0].choices):
            said = f"{len(right[0].choices)} answers against {len(mine[0].choices)}"
            return _Told(op, form, Verdict.DIFFERS, said, sampled)
        for b, a in pairs:
            held = self._held(a, b, op)
            if held.verdict is not same:
                return _Told(op, form, held.verdict, held.said, sampled)
        for a, b in zip(mine[0].choices, right[0].choices, strict=True):
            # Of what is cut short a parser may stand anywhere in the middle.
            if "length" not in (a.finish_reason, b.finish_reason) and (
                why := _parsed(a, b)
            ):
                if a.tokens and a.tokens == b.tokens:
                    return _Told(
                        op, form, Verdict.DIFFERS, f"of the same tokens {why}", sampled
                    )
                verdict = Verdict.DIFFERS if self.exact else Verdict.NOT_COMPARABLE
                return _Told(op, form, verdict, why, sampled)
        return _Told(op, form, same, "", sampled)

    def _held(self, one: Answer, other: Answer, op: Operation) -> Compared:
        shaped = not SHAPING.isdisjoint(op.parameters)
        return near_ties.compare(
            one, other, self.bound or 0.0, exact=self.exact, shaped=shaped
        )

    def _pairs(self, op: Operation) -> Iterator[tuple[Answer, Answer]]:
        """The answers of each run of one side beside those of each of the other."""
        for a, b in product(*(side[op.id] for side in self.records)):
            if a is not None and b is not None and a.answered and b.answered:
                yield from zip(self._answers(a), self._answers(b), strict=False)

    def _answers(self, record: RequestRecord) -> list[Answer]:
        """Without the tokens of a stream that misleads about them."""
        told = near_ties.answers(record)
        if self.misled and record.stream:
            return [Answer(one.text, (), one.whole) for one in told]
        return told


_REPEATED: Mapping[str, Callable[[Operation], bool]] = {
    "greedy requests": greedy,
    "requests with a seed": lambda op: (
        not greedy(op) and op.parameters.get("seed") is not None
    ),
}


def _parsed(a: ChoiceSeen, b: ChoiceSeen) -> str:
    """What parsers made of two answers otherwise; "": nothing. The reason to end is
    protocol's."""
    return unlike(a, b.model_copy(update={"finish_reason": a.finish_reason}))


def _record(run: SideRun, id: str) -> RequestRecord | None:
    return run.played.record(id) if run.played is not None else None


def _form(op: Operation) -> str:
    if op.parameters.get("tools"):
        return "tools"
    if any(op.parameters.get(name) for name in GRAMMARS):
        return "structured"
    return "streamed" if op.stream else "whole"


_WORDS = {
    "tools": "answers to requests with tools",
    "structured": "structured answers",
    "streamed": "streamed answers",
    "whole": "answers",
}


def _stated(form: str, told: Sequence[_Told]) -> Iterator[Difference]:
    compared = [one for one in told if one.verdict is not None]
    if not compared:
        return
    words, total = _WORDS[form], len(compared)
    differ = [one for one in compared if one.verdict is Verdict.DIFFERS]
    greedy_ones = [one for one in differ if not one.sampled]
    # Another answer that each side repeats: by a near tie or by another stream of
    # random numbers.
    others = (Verdict.DIFFERS, Verdict.NOT_COMPARABLE)
    sampled = [one for one in compared if one.sampled and one.verdict in others]
    ties = [one for one in compared if one.verdict is Verdict.NEAR_TIE]
    untold = [
        one
        for one in compared
        if one.verdict is Verdict.NOT_COMPARABLE and not one.sampled
    ]
    if greedy_ones:
        said = f"{len(greedy_ones)} of {total} {words} differ, NEW against OLD: "
        said += f"{_some(greedy_ones)}."
        yield _difference(
            words, Outcome.DIFFERENCE, said, _ids(greedy_ones), matters=True
        )
    if sampled:
        said = (
            f"{len(sampled)} of {total} {words}, sampled, are others, NEW against OLD: "
        )
        said += f"{_some(sampled)}."
        yield _difference(f"{words}, sampled", Outcome.DIFFERENCE, said, _ids(sampled))
    if ties:
        said = f"{len(ties)} of {total} {words} differ by a near tie: {_some(ties)}."
        yield _difference(f"{words}, near ties", Outcome.NONE, said, _ids(ties))
    if untold:
        said = (
            f"{len(untold)} of {total} {words} differ, and no logprobs tell whether by "
            "a near "
        )
        yield _difference(
            f"{words}, without logprobs",
            Outcome.UNTOLD,
            f"{said}tie: {_some(untold)}.",
            _ids(untold),
        )
    same = total - len(greedy_ones) - len(sampled) - len(ties) - len(untold)
    if same == total:
        yield _difference(words, Outcome.NONE, f"{total} {words} are the same.", [])


def _some(told: Sequence[_Told]) -> str:
    shown = "; ".join(f"{one.op.id}, {one.why}" for one in told[:SHOWN])
    return shown + (f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else "")


def _ids(told: Sequence[_Told]) -> list[str]:
    return [one.op.id for one in told]


def _difference(
    subject: str,
    outcome: Outcome,
    said: str,
    ids: Sequence[str],
    *,
    matters: bool = False,
) -> Difference:
    return Difference(
        area=Area.ANSWERS,
        subject=subject,
        outcome=outcome,
        matters=matters,
        statement=said,
        evidence=list(ids),
    )
