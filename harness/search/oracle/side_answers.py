"""What both sides answer to the same requests, token by token up to the first
difference.

Two releases compute in other orders, so that a near-tie may turn round: how far the
odds of two tokens moved where the answers part, beside how far they moved where they
agree, tells the one from the other (``oracle.near_ties``). A request to which a side
itself gives several answers is not compared; where the answers of one side alone
stopped repeating, that is a difference by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mmrepro.engines.plain import plain_server
from mmrepro.failure.documents import Area, Difference, SideRun, UpgradeOutcome
from mmrepro.history import fisher
from mmrepro.search.oracle import near_ties
from mmrepro.search.oracle.comparison import SHAPING
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.oracle.near_ties import Compared, TieVerdict, Token, TokenAnswer
from mmrepro.search.oracle.promises import unlike
from mmrepro.search.oracle.reference import greedy, rounds
from mmrepro.traffic.case import Case, Operation, opened_body
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord

_SHOWN = 3
_SIDES = ("OLD", "NEW")
_REPEATS_P, _REPEATS_SHARE = 0.001, 0.25
"""That one side repeats its answers and the other does not: the most that chance may
have of it, and the share of the requests that must make the difference. A batch of
another shape rounds otherwise, which turns a few round in a run."""
_FORMS = ("tools", "structured", "streamed", "whole")
"""Kinds of requests that are compared apart: an answer is of the first one that
fits."""


@dataclass(frozen=True)
class _ComparedRequest:
    """A request, compared.

    Attributes:
        verdict: None: it was not compared, as ``why`` says.
        sampled: it is not greedy: its answer follows from the sampler too.
    """

    op: Operation
    form: str
    verdict: TieVerdict | None = None
    why: str = ""
    sampled: bool = False


def compare(
    old: Sequence[SideRun], new: Sequence[SideRun], *, case: Case
) -> list[Difference]:
    """Compare the answers: one statement for each kind of request, and one for each
    reason why requests were not compared."""
    old, new = _played(old), _played(new)
    if not old or not new:
        return []

    comparison = _AnswerComparison(case, old, new)
    requests = list(comparison.requests())
    differences: list[Difference] = []
    for form in _FORMS:
        of_form = [request for request in requests if request.form == form]
        differences += _stated(form, of_form)
    differences += comparison.repeating()
    differences += comparison.spelling()
    differences += _not_compared(requests)

    if requests and not any(request.verdict for request in requests):
        said = "No answer could be compared."
        differences.append(_difference("answers", UpgradeOutcome.UNTOLD, said, []))
    return differences


def _played(runs: Sequence[SideRun]) -> list[SideRun]:
    return [run for run in runs if run.played and run.started]


def _not_compared(requests: Sequence[_ComparedRequest]) -> Iterator[Difference]:
    """One statement for each reason why requests were not compared."""
    by_reason: dict[str, list[str]] = {}
    for request in requests:
        if request.verdict is None:
            by_reason.setdefault(request.why, []).append(request.op.id)
    for why, ids in by_reason.items():
        said = f"{len(ids)} of {len(requests)} requests were not compared: {why}."
        yield _difference("not compared", UpgradeOutcome.NONE, said, ids)


class _AnswerComparison:
    """All runs of both sides, by request."""

    def __init__(
        self, case: Case, old: Sequence[SideRun], new: Sequence[SideRun]
    ) -> None:
        self.case = case
        self.records = [_by_operation(case, old), _by_operation(case, new)]
        # What the engine's reference is like says how answers may be compared at all.
        plain = plain_server(case.server.engine)
        self.misled = plain is not None and plain.streams_mislead
        self.exact = plain is not None and plain.exact and not rounds(case.server)
        self.bound = near_ties.bound_of(self._drifts(), exact=self.exact)
        self.ops = [opened_body(op) for op in case.operations]
        self.alike: dict[str, list[bool]] = {}
        for op in self.ops:
            if not self._unanswered(op):
                self.alike[op.id] = self._alike(op)

    def requests(self) -> Iterator[_ComparedRequest]:
        for op in self.ops:
            form = _form(op)
            sampled = not greedy(op)
            why = self._apart(op, sampled)
            if why:
                yield _ComparedRequest(op, form, why=why)
            else:
                yield self._compared(op, form, sampled)

    def _drifts(self) -> Iterator[float]:
        """How far the odds of tokens moved where the answers of both sides agree."""
        for op in self.case.operations:
            for old, new in self._pairs(op):
                yield from near_ties.drift(old, new)

    def repeating(self) -> Iterator[Difference]:
        """State where one side repeats its answers and the other does not."""
        for words, is_wanted in _REPEATED.items():
            ops = [op for op in self.ops if self._is_repeated(op) and is_wanted(op)]
            total = len(ops)
            if not total:
                continue

            varying = [0, 0]
            apart: list[str] = []
            for op in ops:
                old_repeats, new_repeats = self.alike[op.id]
                varying[0] += not old_repeats
                varying[1] += not new_repeats
                if old_repeats != new_repeats:
                    apart.append(op.id)

            # A batch of another shape turns a few answers round in any run: chance must
            # be ruled out, and the share must be more than a few.
            old_counts = varying[0], total - varying[0]
            new_counts = varying[1], total - varying[1]
            chance = fisher(old_counts, new_counts)
            few = abs(varying[0] - varying[1]) < _REPEATS_SHARE * total
            if chance >= _REPEATS_P or few:
                continue
            said = f"OLD answers {varying[0]} of {total} {words} otherwise each time, "
            said += f"NEW {varying[1]}."
            yield _difference(
                f"{words}, repeated",
                UpgradeOutcome.DIFFERENCE,
                said,
                apart,
                matters=varying[1] > varying[0],
            )

    def _is_repeated(self, op: Operation) -> bool:
        """Whether each side answered it, and more than once."""
        return op.id in self.alike and self._runs(op) > 1

    def spelling(self) -> Iterator[Difference]:
        """State where the same tokens are spelled otherwise."""
        ids: list[str] = []
        shown = ""
        for op in self.ops:
            pair = self._spelled_otherwise(op)
            if pair is None:
                continue
            ids.append(op.id)
            if not shown:
                shown = f"{op.id}: {pair[0].text!r} → {pair[1].text!r}"

        if ids:
            said = (
                f"Of {len(ids)} answers the tokens are the same, parts of characters "
                "among "
            )
            said += f"them are spelled otherwise ({shown})."
            yield _difference(
                "tokens of logprobs", UpgradeOutcome.DIFFERENCE, said, ids
            )

    def _spelled_otherwise(self, op: Operation) -> tuple[Token, Token] | None:
        """The first token that one side spells out and the other does not."""
        for old, new in self._pairs(op):
            for a, b in zip(old.tokens, new.tokens, strict=False):
                if a.spelled_out(b) or b.spelled_out(a):
                    return a, b
        return None

    def _apart(self, op: Operation, sampled: bool) -> str:
        """Why a request is not compared; "": it is."""
        why = self._unanswered(op)
        if why:
            return why
        if sampled and self._runs(op) < 2:
            return "sampled, and run once"
        if self.bound is None:
            return "the odds of all tokens moved more than an answer can bear"
        for name, repeats in zip(_SIDES, self.alike[op.id], strict=True):
            if not repeats:
                return f"{name} answers it otherwise each time"
        return ""

    def _unanswered(self, op: Operation) -> str:
        sides = [side[op.id] for side in self.records]
        for side in sides:
            if any(record is None or record.left for record in side):
                return "not answered by all runs, or left by the client"
        without: list[str] = []
        for name, side in zip(_SIDES, sides, strict=True):
            if not all(_is_completion(record) for record in side):
                without.append(name)
        if not without:
            return ""
        return f"no completion by {' and '.join(without)}"

    def _runs(self, op: Operation) -> int:
        # The side with fewer runs says how often the request was repeated.
        return min(len(side[op.id]) for side in self.records)

    def _alike(self, op: Operation) -> list[bool]:
        """For each side: whether all its runs gave the same answer."""
        return [self._repeats(side[op.id], op) for side in self.records]

    def _repeats(self, records: Sequence[RequestRecord | None], op: Operation) -> bool:
        first, *others = [self._answers(r) for r in records if r is not None]
        return all(self._agree(first, other, op) for other in others)

    def _agree(
        self, one: Sequence[TokenAnswer], other: Sequence[TokenAnswer], op: Operation
    ) -> bool:
        """Whether two runs of one side gave the same answer."""
        if len(one) != len(other):
            return False
        for a, b in zip(one, other, strict=True):
            if self._held(a, b, op).verdict is not TieVerdict.SAME:
                return False
        return True

    def _compared(self, op: Operation, form: str, sampled: bool) -> _ComparedRequest:
        old, new = (_first(side[op.id]) for side in self.records)
        old_answers, new_answers = self._answers(old), self._answers(new)
        if len(new.choices) != len(old.choices):
            said = f"{len(old.choices)} answers against {len(new.choices)}"
            return _ComparedRequest(op, form, TieVerdict.DIFFERS, said, sampled)
        # The texts first: what parsers make of them is told otherwise if they differ.
        for right, mine in zip(old_answers, new_answers, strict=False):
            held = self._held(mine, right, op)
            if held.verdict is not TieVerdict.SAME:
                return _ComparedRequest(op, form, held.verdict, held.said, sampled)

        for a, b in zip(new.choices, old.choices, strict=True):
            # Of what is cut short a parser may stand anywhere in the middle.
            if "length" in (a.finish_reason, b.finish_reason):
                continue
            why = _parsed(a, b)
            if not why:
                continue
            if a.tokens and a.tokens == b.tokens:
                said = f"of the same tokens {why}"
                return _ComparedRequest(op, form, TieVerdict.DIFFERS, said, sampled)
            verdict = TieVerdict.DIFFERS if self.exact else TieVerdict.NOT_COMPARABLE
            return _ComparedRequest(op, form, verdict, why, sampled)

        return _ComparedRequest(op, form, TieVerdict.SAME, "", sampled)

    def _held(self, one: TokenAnswer, other: TokenAnswer, op: Operation) -> Compared:
        shaped = not SHAPING.isdisjoint(op.parameters)
        return near_ties.compare(
            one, other, self.bound or 0.0, exact=self.exact, shaped=shaped
        )

    def _pairs(self, op: Operation) -> Iterator[tuple[TokenAnswer, TokenAnswer]]:
        """The answers of each run of one side beside those of each of the other."""
        for a, b in product(*(side[op.id] for side in self.records)):
            if a is not None and b is not None and a.answered and b.answered:
                yield from zip(self._answers(a), self._answers(b), strict=False)

    def _answers(self, record: RequestRecord) -> list[TokenAnswer]:
        """Without the tokens of a stream that misleads about them."""
        answers = near_ties.answers(record)
        # The text of such a stream is right, its tokens belong to other places of it.
        if self.misled and record.stream:
            return [TokenAnswer(answer.text, (), answer.whole) for answer in answers]
        return answers


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


def _by_operation(
    case: Case, runs: Sequence[SideRun]
) -> dict[str, list[RequestRecord | None]]:
    """What each run of a side recorded of each operation; None: nothing."""
    return {op.id: [_record(run, op.id) for run in runs] for op in case.operations}


def _record(run: SideRun, id: str) -> RequestRecord | None:
    return run.played.record(id) if run.played is not None else None


def _first(records: Sequence[RequestRecord | None]) -> RequestRecord:
    return next(record for record in records if record is not None)


def _is_completion(record: RequestRecord | None) -> bool:
    return record is not None and record.answered and bool(record.choices)


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


def _stated(form: str, requests: Sequence[_ComparedRequest]) -> Iterator[Difference]:
    compared = [request for request in requests if request.verdict is not None]
    if not compared:
        return
    words, total = _WORDS[form], len(compared)
    differ: list[_ComparedRequest] = []
    sampled: list[_ComparedRequest] = []
    ties: list[_ComparedRequest] = []
    undecided: list[_ComparedRequest] = []
    for request in compared:
        if request.verdict is TieVerdict.NEAR_TIE:
            ties.append(request)
        elif request.verdict is TieVerdict.SAME:
            continue
        elif request.sampled:
            # Another answer that each side repeats: by a near tie or by another stream
            # of random numbers.
            sampled.append(request)
        elif request.verdict is TieVerdict.DIFFERS:
            differ.append(request)
        else:
            undecided.append(request)

    if differ:
        said = f"{len(differ)} of {total} {words} differ, NEW against OLD: "
        said += f"{_some(differ)}."
        yield _difference(
            words, UpgradeOutcome.DIFFERENCE, said, _ids(differ), matters=True
        )

    if sampled:
        said = (
            f"{len(sampled)} of {total} {words}, sampled, are others, NEW against OLD: "
        )
        said += f"{_some(sampled)}."
        yield _difference(
            f"{words}, sampled", UpgradeOutcome.DIFFERENCE, said, _ids(sampled)
        )

    if ties:
        said = f"{len(ties)} of {total} {words} differ by a near tie: {_some(ties)}."
        yield _difference(f"{words}, near ties", UpgradeOutcome.NONE, said, _ids(ties))
    if undecided:
        said = (
            f"{len(undecided)} of {total} {words} differ, and no logprobs tell "
            f"whether by a near tie: {_some(undecided)}."
        )
        subject = f"{words}, without logprobs"
        yield _difference(subject, UpgradeOutcome.UNTOLD, said, _ids(undecided))

    if not (differ or sampled or ties or undecided):
        yield _difference(
            words, UpgradeOutcome.NONE, f"{total} {words} are the same.", []
        )


def _some(requests: Sequence[_ComparedRequest]) -> str:
    shown = "; ".join(
        f"{request.op.id}, {request.why}" for request in requests[:_SHOWN]
    )
    if len(requests) > _SHOWN:
        shown += f"; and {len(requests) - _SHOWN} more"
    return shown


def _ids(requests: Sequence[_ComparedRequest]) -> list[str]:
    return [request.op.id for request in requests]


def _difference(
    subject: str,
    outcome: UpgradeOutcome,
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
