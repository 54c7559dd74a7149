"""Answers beside the reference's: each is held against it up to the first near-tie."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from mmrepro.base.records import FindingClass
from mmrepro.engines.plain import PlainServer, plain_server
from mmrepro.failure.documents.replay import Expectation, Sighting
from mmrepro.search.oracle import near_ties
from mmrepro.search.oracle.judged import OracleReport, sighting
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.oracle.near_ties import Compared, TieVerdict, TokenAnswer
from mmrepro.search.oracle.promises import EXPECTED, unlike
from mmrepro.search.oracle.reference import greedy, rounds
from mmrepro.traffic.case import Case, Operation, Played, PlayState
from mmrepro.traffic.evidence import RequestRecord

_NAMED = 3
"""Operations whose answers a sighting tells of; all that it is about are listed."""
_LEAST_ALIKE = 4
"""Tokens that another request's answer must share with one that is taken for it, at
least: short answers are alike by chance. One token is enough where the prompt is as
long as the other's too."""
_WEIGHING = frozenset(
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
SHAPING = _WEIGHING | {
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
_ANSWERS = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER)


def compare_with_reference(
    case: Case, played: Played, reference: Played
) -> OracleReport:
    """Hold the answers of ``played`` against the reference's. Pure.

    ``reference`` may be of a larger case: answers are found by their operations' names.
    """
    if reference.state is PlayState.START_FAILED:
        why = f" ({reference.said})" if reference.said else ""
        said = f"The reference's server did not start{why}: no answer was compared."
        return OracleReport(unseen=[said])
    return _ReferenceComparison(case, played, reference).judged()


def compared(judged: OracleReport) -> bool:
    """Whether answers are not the reference's."""
    return any(sighting.finding_class in _ANSWERS for sighting in judged.sightings)


def agreeing(judged: OracleReport, own: OracleReport) -> OracleReport:
    """Keep what two references hold against the same answers, one of them in the
    server's own format.

    Of an answer that only the float32 reference does not give, the format is the
    reason: rounding moves the odds of two tokens by a nat now and then, without any
    neighbour or cache."""
    wrong: set[str] = set()
    for shown in own.sightings:
        if shown.finding_class in _ANSWERS:
            wrong.update(shown.operations)
    kept: list[Sighting] = []
    rounded = 0
    for shown in judged.sightings:
        if shown.finding_class not in _ANSWERS:
            kept.append(shown)
            continue
        left = [op for op in shown.operations if op in wrong]
        # Only the number format tells these from the reference.
        rounded += len(shown.operations) - len(left)
        if left:
            expectations = [e for e in shown.expectations if e.operation in left]
            update = {"operations": left, "expectations": expectations}
            kept.append(shown.model_copy(update=update))

    counted = dict(judged.counted)
    if rounded:
        counted["answers compared: only the number format differs"] = rounded
    return judged.model_copy(update={"sightings": kept, "counted": counted})


class _ReferenceComparison:
    """One play beside the reference's."""

    def __init__(self, case: Case, played: Played, reference: Played) -> None:
        self.case = case
        self.mine, self.right = _records(played), _records(reference)
        self.counted: Counter[str] = Counter()
        self.exact = not rounds(case.server)
        self.plain = plain_server(case.server.engine) or PlainServer(args=())
        self.pairs = list(self._pairs())

        drifts = [list(near_ties.drift(mine, right)) for _, mine, right in self.pairs]
        self.moved: dict[int, float] = {}
        """By place among ``pairs``: nats, of answers whose odds no noise moves so
        far."""
        if self.exact:
            most = [max(nats, default=0.0) for nats in drifts]
            self.moved = {place: most[place] for place in near_ties.outliers(most)}
        # Answers that moved too far would widen the bound that they are held against.
        calm: list[float] = []
        for place, nats in enumerate(drifts):
            if place not in self.moved:
                calm += nats
        self.bound = near_ties.bound_of(calm, exact=self.exact)

    def _pairs(self) -> Iterator[tuple[Operation, TokenAnswer, TokenAnswer]]:
        for op in self.case.operations:
            mine, right = self.mine.get(op.id), self.right.get(op.id)
            if mine is None or right is None:
                self.counted["answers not compared: not sent"] += 1
                continue
            why = _not_compared(op, mine, right)
            if why:
                self.counted[f"answers not compared: {why}"] += 1
                continue
            misled = mine.stream and self.plain.streams_mislead
            answers, references = near_ties.answers(mine), near_ties.answers(right)
            for answer, expected in zip(answers, references, strict=False):
                if misled:
                    answer = replace(answer, tokens=())
                yield op, answer, expected

    def judged(self) -> OracleReport:
        if self.bound is None:
            said = (
                "Answers differ from the reference's by noise alone: none was compared."
            )
            sightings = list(_sightings({}, {}, dict(self._usage(set(), set()))))
            return OracleReport(
                sightings=sightings, counted=dict(self.counted), unseen=[said]
            )

        # The answers of an exact engine are the reference's to the letter.
        to_the_letter = self.plain.exact and self.exact
        wrong: dict[str, str] = {}
        swapped: dict[str, str] = {}
        same: set[str] = set()
        for place, (op, mine, right) in enumerate(self.pairs):
            compared = near_ties.compare(
                mine,
                right,
                self.bound,
                exact=to_the_letter,
                shaped=not SHAPING.isdisjoint(op.parameters),
                masked=_WEIGHING.isdisjoint(op.parameters),
            )
            whose = self._whose(op, mine, compared)
            if whose:
                swapped[op.id] = f"{op.id} got the answer to {whose}"
                continue
            if compared.verdict is TieVerdict.DIFFERS:
                wrong.setdefault(op.id, f"{op.id}, {compared.said}")
                continue
            if place in self.moved:
                said = f"the odds of its tokens moved by {self.moved[place]:.3f} nats"
                said = f"{op.id}, {said}, noise is below {self.bound:.3f}"
                wrong.setdefault(op.id, said)
                continue
            self.counted[f"answers compared: {compared.verdict}"] += 1
            token_by_token = to_the_letter or (mine.tokens and right.tokens)
            if compared.verdict is TieVerdict.SAME and mine.whole and token_by_token:
                same.add(op.id)

        usage = dict(self._usage({*swapped, *wrong}, same))
        sightings = list(_sightings(swapped, wrong, usage))
        sightings += self._stream_parts(same)
        if to_the_letter:
            for shown in sightings:
                if shown.finding_class is not FindingClass.PROTOCOL:
                    shown.expectations = self._expectations(shown.operations)

        return OracleReport(sightings=sightings, counted=dict(self.counted))

    def _expectations(self, operations: Sequence[str]) -> list[Expectation]:
        """The reference's answers, which a sound server gives to the letter."""
        expectations: list[Expectation] = []
        for op in self.case.operations:
            if op.id in operations and not op.leave:
                text = self.right[op.id].text
                expectations.append(Expectation(operation=op.id, text=text))
        return expectations

    def _whose(self, op: Operation, mine: TokenAnswer, compared: Compared) -> str:
        """The operation to which the reference gave the answer that ``op`` got; "": to
        none.

        A near-tie may lead to any answer, and requests that are much alike have the
        same, as have those that a model declines: there, the prompt's length must be
        that of the other one as well."""
        assert self.bound is not None
        if compared.verdict is TieVerdict.SAME:
            return ""
        length = _length(self.mine, op.id)
        foreign = length is not None and length != _length(self.right, op.id)
        if compared.verdict is not TieVerdict.DIFFERS and not foreign:
            return ""
        least = max(1 if foreign else _LEAST_ALIKE, compared.alike + 1)
        owners: list[str] = []
        for other in self._by_start.get(_starts(mine)[0], []):
            if other == op.id or (foreign and _length(self.right, other) != length):
                continue
            like = near_ties.compare(mine, self._answers[other], self.bound)
            is_like = like.verdict in (TieVerdict.SAME, TieVerdict.NEAR_TIE)
            if is_like and like.alike >= least:
                owners.append(other)

        if not owners:
            return ""
        if not foreign and (self._several(owners) or _REFUSAL.match(mine.text)):
            return ""  # what many get is nobody's own
        return owners[0]

    def _several(self, ids: Sequence[str]) -> bool:
        """Whether the operations ask for different things."""
        prompts: list[object] = []
        for id in ids:
            op = self.case.operation(id)
            if op:
                prompts.append((op.messages, op.prompt))
        return any(prompt != prompts[0] for prompt in prompts)

    @cached_property
    def _answers(self) -> dict[str, TokenAnswer]:
        """The reference's answers that a request may be given by mistake."""
        answers: dict[str, TokenAnswer] = {}
        for op in self.case.operations:
            record = self.right.get(op.id)
            if record is None or not greedy(op):
                continue
            if record.answered and record.choices:
                answers[op.id] = near_ties.answers(record)[0]
        return answers

    @cached_property
    def _by_start(self) -> dict[str, list[str]]:
        starts: dict[str, list[str]] = {}
        for id, answer in self._answers.items():
            for start in set(_starts(answer)):
                starts.setdefault(start, []).append(id)
        return starts

    def _stream_parts(self, same: set[str]) -> Iterator[Sighting]:
        parts = dict(self._parts(same))
        if not parts:
            return
        kind = "stream-parts"
        said = f"A streamed answer differs from the whole answer: {_some(parts)}."
        by = list(parts)
        yield sighting(FindingClass.PROTOCOL, kind, said, EXPECTED[kind], by=by)

    def _parts(self, same: set[str]) -> Iterator[tuple[str, str]]:
        """Operations that stream, and what of the ``same`` tokens is told otherwise
        than by the reference, which does not."""
        for id in sorted(same):
            mine, right = self.mine[id], self.right[id]
            if not mine.stream or right.stream:
                continue
            if mine.finish_reason == "length":
                continue  # what is cut short leaves a parser in the middle
            for choice, other in zip(mine.choices, right.choices, strict=False):
                if choice.token_ids != other.token_ids:
                    continue
                why = unlike(choice, other)
                if why:
                    yield id, f"{id}, {why}"

    def _usage(self, known: set[str], same: set[str]) -> Iterator[tuple[str, str]]:
        """Operations and what their usage says otherwise than the reference's: of those
        that got the ``same`` answer the length of that too; nothing of those of which
        it is ``known``."""
        for op in self.case.operations:
            mine, right = self.mine.get(op.id), self.right.get(op.id)
            if mine is None or right is None or not (mine.answered and right.answered):
                continue
            fields: list[str] = []
            if op.id not in known:
                fields.append("prompt_tokens")
            if op.id in same:
                fields += ["completion_tokens", "finish_reason"]
            for field in fields:
                value, expected = getattr(mine, field), getattr(right, field)
                if None not in (value, expected) and value != expected:
                    said = f"{op.id} says {field} {value}, the reference {expected}"
                    yield op.id, said
                    break


def _records(played: Played) -> dict[str, RequestRecord]:
    """By operation, as :meth:`Played.record`."""
    return {record.label: record for record in reversed(played.evidence.requests)}


def _length(records: Mapping[str, RequestRecord], id: str) -> int | None:
    """Tokens of the prompt, as its answer tells it."""
    record = records.get(id)
    if record is None or not record.answered:
        return None
    return record.prompt_tokens


def _starts(answer: TokenAnswer) -> list[str]:
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
    if near_ties.answers(mine) and near_ties.answers(right):
        return ""
    return "no completion"


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
            f"The usage differs from the reference: {_some(usage)}.",
            "As many prompt tokens as the same server counts in the same request "
            "alone; for the same answer as many tokens, and the same reason to end.",
            by=list(usage),
        )


def _some(said: Mapping[str, str]) -> str:
    shown = list(said.values())[:_NAMED]
    more = len(said) - len(shown)
    text = "; ".join(shown)
    if more > 0:
        text += f"; and {more} more"
    return text
