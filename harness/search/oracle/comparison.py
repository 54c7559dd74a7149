"""Answers beside the reference's: each is held against it up to the first near-tie."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import Expectation, Sighting
from mmrepro.search.oracle import near_ties
from mmrepro.search.oracle.judged import Judged, sighting
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.oracle.near_ties import Answer, Compared, Verdict
from mmrepro.search.oracle.promises import EXPECTED, unlike
from mmrepro.search.oracle.reference import PLAIN, greedy, rounds
from mmrepro.traffic.case.model import Case, Operation
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import RequestRecord

NAMED = 3
"""Operations whose answers a sighting tells of; all that it is about are listed."""
LEAST_ALIKE = 4
"""Tokens that another request's answer must share with one that is taken for it, at
least: short answers are alike by chance. One token is enough where the prompt is as
long as the other's too."""
WEIGHING = frozenset(
    (
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logits_processors",
        "custom_logit_processor",
    )
)
"""Parameters that change the odds of tokens; logprobs are told without them."""
SHAPING = WEIGHING | {
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "tools",
    *GRAMMARS,
}
"""Those by which another token than the likeliest may be taken; the others forbid
some."""
_REFUSAL = re.compile(
    r"\W*(?:(?:I(?:['\u2019]m| am) )?(?:so |very |deeply )?sorry\b|"
    r"I(?:['\u2019]m| am) (?:unable|not able|afraid|not comfortable|not allowed)\b|"
    r"I (?:can['\u2019]t|can ?not|won['\u2019]t|apologi[sz]e|must decline|do not"
    r"|don['\u2019]t)\b|"
    r"my apologies|as an? (?:AI|(?:large )?language model)\b|unfortunately|"
    r"(?:es )?tut mir (?:sehr )?leid|leider|ich kann\b.{0,40}\bnicht"
    r"|(?:je suis )?désolé|"
    r"je ne peux|lo siento|lamento|no puedo|desculp|sinto muito|mi dispiace|non posso|"
    r"извините|к сожалению|(?:很|非常)?抱歉|对不起|對不起|我(?:无法|無法|不能)|申し訳|죄송)",
    re.IGNORECASE,
)
"""How models decline: to one request as to another."""
ANSWERS = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER)


def compare_with_reference(case: Case, played: Played, reference: Played) -> Judged:
    """What the reference's answers hold against those of ``played``. Pure.

    ``reference`` may be of a larger case: answers are found by their operations' names.
    """
    if reference.state is PlayState.START_FAILED:
        why = f" ({reference.said})" if reference.said else ""
        return Judged(
            unseen=[
                f"The reference's server did not start{why}: no answer was compared."
            ]
        )
    return _Comparison(case, played, reference).judged()


def compared(judged: Judged) -> bool:
    """Whether answers are not the reference's."""
    return any(one.finding_class in ANSWERS for one in judged.sightings)


def agreeing(judged: Judged, own: Judged) -> Judged:
    """What two references hold against the same answers, one of them in the server's
    own format.

    Of an answer that only the float32 reference does not give, the format is the
    reason: rounding moves the odds of two tokens by a nat now and then, without any
    neighbour or cache."""
    wrong = {
        op
        for one in own.sightings
        if one.finding_class in ANSWERS
        for op in one.operations
    }
    kept, rounded = [], 0
    for one in judged.sightings:
        if one.finding_class not in ANSWERS:
            kept.append(one)
            continue
        left = [op for op in one.operations if op in wrong]
        rounded += len(one.operations) - len(left)
        if left:
            expectations = [e for e in one.expectations if e.operation in left]
            update = {"operations": left, "expectations": expectations}
            kept.append(one.model_copy(update=update))
    counted = dict(judged.counted)
    if rounded:
        counted["answers compared: only the number format differs"] = rounded
    return judged.model_copy(update={"sightings": kept, "counted": counted})


class _Comparison:
    """One play beside the reference's."""

    def __init__(self, case: Case, played: Played, reference: Played) -> None:
        self.case = case
        self.mine, self.right = _records(played), _records(reference)
        self.counted: Counter[str] = Counter()
        self.exact = not rounds(case.server)
        self.pairs = list(self._pairs())
        drifts = [list(near_ties.drift(mine, right)) for _, mine, right in self.pairs]
        most = [max(each, default=0.0) for each in drifts]
        self.moved = (
            {n: most[n] for n in near_ties.outliers(most)} if self.exact else {}
        )
        """By place among ``pairs``: nats, of answers whose odds no noise moves so
        far."""
        calm = (d for n, each in enumerate(drifts) if n not in self.moved for d in each)
        self.bound = near_ties.bound_of(calm, exact=self.exact)

    def _pairs(self) -> Iterator[tuple[Operation, Answer, Answer]]:
        for op in self.case.operations:
            mine, right = self.mine.get(op.id), self.right.get(op.id)
            if mine is None or right is None or (why := _not_compared(op, mine, right)):
                self.counted[
                    f"answers not compared: {why if mine and right else 'not sent'}"
                ] += 1
                continue
            both = zip(near_ties.answers(mine), near_ties.answers(right), strict=False)
            misled = mine.stream and PLAIN[self.case.server.engine].streams_mislead
            for one, other in both:
                yield op, replace(one, tokens=()) if misled else one, other

    def judged(self) -> Judged:
        if self.bound is None:
            unseen = [
                "Answers differ from the reference's by noise alone: none was compared."
            ]
            sightings = list(_sightings({}, {}, dict(self._usage(set(), set()))))
            return Judged(
                sightings=sightings, counted=dict(self.counted), unseen=unseen
            )
        untold = PLAIN[self.case.server.engine].exact and self.exact
        wrong: dict[str, str] = {}
        swapped: dict[str, str] = {}
        same: set[str] = set()
        for place, (op, mine, right) in enumerate(self.pairs):
            compared = near_ties.compare(
                mine,
                right,
                self.bound,
                exact=untold,
                shaped=not SHAPING.isdisjoint(op.parameters),
                masked=WEIGHING.isdisjoint(op.parameters),
            )
            if whose := self._whose(op, mine, compared):
                swapped[op.id] = f"{op.id} got the answer to {whose}"
            elif compared.verdict is Verdict.DIFFERS:
                wrong.setdefault(op.id, f"{op.id}, {compared.said}")
            elif place in self.moved:
                said = f"the odds of its tokens moved by {self.moved[place]:.3f} nats"
                wrong.setdefault(
                    op.id, f"{op.id}, {said}, noise is below {self.bound:.3f}"
                )
            else:
                self.counted[f"answers compared: {compared.verdict}"] += 1
                token_by_token = untold or (mine.tokens and right.tokens)
                if compared.verdict is Verdict.SAME and mine.whole and token_by_token:
                    same.add(op.id)
        usage = dict(self._usage({*swapped, *wrong}, same))
        sightings = list(_sightings(swapped, wrong, usage))
        if parts := dict(self._parts(same)):
            said, by = (
                f"A stream is told otherwise than the whole: {_some(parts)}.",
                list(parts),
            )
            words = EXPECTED["stream-parts"]
            sightings.append(
                sighting(FindingClass.PROTOCOL, "stream-parts", said, words, by=by)
            )
        for one in sightings:
            if untold and one.finding_class is not FindingClass.PROTOCOL:
                # The reference's answers, which a sound server gives to the letter.
                one.expectations = [
                    Expectation(operation=op.id, text=self.right[op.id].text)
                    for op in self.case.operations
                    if op.id in one.operations and not op.leave
                ]
        return Judged(sightings=sightings, counted=dict(self.counted))

    def _whose(self, op: Operation, mine: Answer, compared: Compared) -> str:
        """The operation to which the reference gave the answer that ``op`` got; "": to
        none.

        A near-tie may lead to any answer, and requests that are much alike have the
        same, as have those that a model declines: there, the prompt's length must be
        that of the other one as well."""
        assert self.bound is not None
        told = _length(self.mine, op.id)
        foreign = told is not None and told != _length(self.right, op.id)
        same = compared.verdict is Verdict.SAME
        if same or (compared.verdict is not Verdict.DIFFERS and not foreign):
            return ""
        found: list[str] = []
        for other in self._by_start.get(_starts(mine)[0], []):
            if other == op.id or (foreign and _length(self.right, other) != told):
                continue
            like = near_ties.compare(mine, self._answers[other], self.bound)
            far = like.alike >= max(1 if foreign else LEAST_ALIKE, compared.alike + 1)
            if far and like.verdict in (Verdict.SAME, Verdict.NEAR_TIE):
                found.append(other)
        asked = {
            id: (one.messages, one.prompt)
            for id in found
            if (one := self.case.operation(id))
        }
        several = any(prompt != asked[found[0]] for prompt in asked.values())
        if not foreign and (several or _REFUSAL.match(mine.text)):
            return ""  # what many get is nobody's own
        return found[0] if found else ""

    @cached_property
    def _answers(self) -> dict[str, Answer]:
        """The reference's answers that a request may be given by mistake."""
        records = (
            (op.id, self.right.get(op.id)) for op in self.case.operations if greedy(op)
        )
        return {
            id: near_ties.answers(record)[0]
            for id, record in records
            if record is not None and record.answered and record.choices
        }

    @cached_property
    def _by_start(self) -> dict[str, list[str]]:
        starts: dict[str, list[str]] = {}
        for id, answer in self._answers.items():
            for start in set(_starts(answer)):
                starts.setdefault(start, []).append(id)
        return starts

    def _parts(self, same: set[str]) -> Iterator[tuple[str, str]]:
        """Operations that stream, and what of the ``same`` tokens is told otherwise
        than by the reference, which does not; what is cut short leaves a parser in the
        middle."""
        for id in sorted(same):
            mine, right = self.mine[id], self.right[id]
            if mine.stream and not right.stream and mine.finish_reason != "length":
                for one, other in zip(mine.choices, right.choices, strict=False):
                    if one.token_ids == other.token_ids and (why := unlike(one, other)):
                        yield id, f"{id}, {why}"

    def _usage(self, known: set[str], same: set[str]) -> Iterator[tuple[str, str]]:
        """Operations and what is told of them otherwise than by the reference: of those
        that got the ``same`` answer the length of that too; nothing of those of which
        it is ``known``."""
        for op in self.case.operations:
            mine, right = self.mine.get(op.id), self.right.get(op.id)
            if mine is None or right is None or not (mine.answered and right.answered):
                continue
            fields = ["prompt_tokens"] if op.id not in known else []
            if op.id in same:
                fields += ["completion_tokens", "finish_reason"]
            for field in fields:
                told, expected = getattr(mine, field), getattr(right, field)
                if None not in (told, expected) and told != expected:
                    yield (
                        op.id,
                        f"{op.id} says {field} {told}, the reference {expected}",
                    )
                    break


def _records(played: Played) -> dict[str, RequestRecord]:
    """By operation, as :meth:`Played.record`."""
    return {record.label: record for record in reversed(played.evidence.requests)}


def _length(records: Mapping[str, RequestRecord], id: str) -> int | None:
    """Tokens of the prompt, as its answer tells it."""
    record = records.get(id)
    return record.prompt_tokens if record is not None and record.answered else None


def _starts(answer: Answer) -> list[str]:
    """How it begins: its first token, if it is told, and its first character."""
    return [token.text for token in answer.tokens[:1]] + [answer.text[:1]]


def _not_compared(op: Operation, mine: RequestRecord, right: RequestRecord) -> str:
    """Why; "": they are compared."""
    if not greedy(op):
        return "not greedy"
    if mine.status is not None and 400 <= mine.status < 500:
        return "refused"
    if not (mine.answered or mine.left):
        return "not answered"
    if not right.answered:
        return "the reference did not answer"
    return (
        "" if near_ties.answers(mine) and near_ties.answers(right) else "no completion"
    )


def _sightings(
    swapped: dict[str, str], wrong: dict[str, str], usage: dict[str, str]
) -> Iterator[Sighting]:
    expected = (
        "What the same server answers to each request alone, with its caches off."
    )
    if swapped:
        said = f"Requests got the answers of others: {_some(swapped)}."
        yield sighting(
            FindingClass.CROSS_TALK,
            "another's answer",
            said,
            expected,
            by=list(swapped),
        )
    if wrong:
        said = f"Answers are not those of the reference: {_some(wrong)}."
        yield sighting(
            FindingClass.WRONG_ANSWER,
            "not the reference's",
            said,
            expected,
            by=list(wrong),
        )
    if usage:
        yield sighting(
            FindingClass.PROTOCOL,
            "not the reference's usage",
            f"Usage is not as the reference tells it: {_some(usage)}.",
            "As many prompt tokens as the same server counts in the same request "
            "alone; for the same answer as many tokens, and the same reason to end.",
            by=list(usage),
        )


def _some(said: Mapping[str, str]) -> str:
    shown = list(said.values())[:NAMED]
    more = len(said) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
