"""What a case itself expects of an answer (``expect``), held against what came."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from mmrepro.base.records import FindingClass
from mmrepro.engines import Engine
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle.judged import OracleReport, Sent, sent_of, sighting
from mmrepro.search.oracle.promises import ids_of, misfit, unlike
from mmrepro.traffic.case import Case, Expect, Played, PlayState
from mmrepro.traffic.evidence import ChoiceSeen, RequestRecord


def expected(case: Case, played: Played, engine: Engine) -> OracleReport:
    """Judge every expectation of the case. What has no answer since the server died or
    hangs is not judged: another oracle reports that."""
    by_id = {sent.op.id: sent for sent in sent_of(case, played)}
    unmet: dict[str, list[tuple[str, str]]] = {}
    unseen: list[str] = []
    for op in case.operations:
        if op.expect is None:
            continue
        sent = by_id.get(op.id)
        if sent is None or sent.record.left or sent.record.status is None:
            unseen.append(
                f"What is expected of {op.id} was not judged: it has no answer."
            )
            ended = played.state is PlayState.ENDED and bool(op.expect.status)
            if ended and sent is not None and not sent.record.left:
                said = f"no answer: {sent.record.error}"
                unmet.setdefault("status", []).append((op.id, said))
            continue

        for kind, said in _unmet(sent, op.expect, by_id, case):
            if kind:
                unmet.setdefault(kind, []).append((op.id, said))
            else:
                unseen.append(f"What is expected of {op.id} was not judged: {said}.")

    sightings: list[Sighting] = []
    for kind, answers in sorted(unmet.items()):
        ids = [id for id, _ in answers]
        more = f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
        said = f"{ids[0]}{more}: {answers[0][1]}."
        words = "The answer is as the case expects it."
        sightings.append(sighting(FindingClass.EXPECTATION, kind, said, words, by=ids))

    return OracleReport(sightings=sightings, unseen=unseen)


def _unmet(
    sent: Sent, expect: Expect, by_id: Mapping[str, Sent], case: Case
) -> Iterator[tuple[str, str]]:
    """Kinds and sentences of what is otherwise; of kind "": it cannot be judged, and
    why."""
    record = sent.record
    if expect.status is not None and not _is_status(record.status, expect.status):
        more = f" ({record.error[:120]})" if record.error else ""
        said = f"the status is {record.status}{more}, and {expect.status} is expected"
        yield "status", said
        return

    yield from _texts(record, expect)
    for end in expect.ends_after:
        other = by_id.get(end)
        if other is not None and sent.end < other.end:
            yield "order", f"it ended before {end}"

    # A refusal has no tokens, and no reason to end.
    if record.status != 200:
        return

    if expect.finish is not None:
        reasons = {choice.finish_reason for choice in record.choices}
        for reason in reasons - {expect.finish}:
            yield "finish", f"it ended with {reason}, and {expect.finish} is expected"

    if expect.same_as is not None:
        yield from _same(sent, by_id.get(expect.same_as))
    for choice in record.choices:
        yield from _tokens(sent, choice, expect, case)
    asked = (expect.tokens, expect.only, expect.never, expect.finish)
    if not record.choices and asked != (None, None, None, None):
        yield "", "its answer has no tokens that are known"


def _texts(record: RequestRecord, expect: Expect) -> Iterator[tuple[str, str]]:
    """What of an answer's texts is otherwise."""
    texts = [choice.text for choice in record.choices]
    if not texts:
        texts = [record.text or record.error]
    for text in texts:
        if expect.text is not None and re.search(expect.text, text) is None:
            yield "text", f"{text[:80]!r} has nothing like {expect.text!r}"
    for text in texts:
        if expect.not_text is not None and re.search(expect.not_text, text):
            yield "not-text", f"{text[:80]!r} has something like {expect.not_text!r}"
    for text in texts:
        why = ""
        if expect.json_schema is not None:
            why = misfit(text, expect.json_schema)
        if why:
            yield "schema", f"{text[:60]!r}: {why}"


def _is_status(status: int | None, expected: str) -> bool:
    if str(status) == expected:
        return True
    return expected.endswith("xx") and str(status)[:1] == expected[:1]


def _same(sent: Sent, other: Sent | None) -> Iterator[tuple[str, str]]:
    if other is None or other.record.status is None:
        yield "", "what it is held against has no answer"
        return
    name, mine, right = other.op.id, sent.record, other.record
    if mine.status != right.status:
        yield "same", f"its status is {mine.status}, and {name}'s {right.status}"
        return
    a, b = mine.choices, right.choices
    if len(a) != len(b) or (not a and mine.text != right.text):
        yield "same", f"{len(a)} answers, and {name} has {len(b)}, or another text"
        return
    for choice, other_choice in zip(a, b, strict=True):
        why = unlike(choice, other_choice)
        if why:
            yield "same", f"beside {name} {why}"
            return


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "": lambda a, b: a == b,
}


def _tokens(
    sent: Sent, choice: ChoiceSeen, expect: Expect, case: Case
) -> Iterator[tuple[str, str]]:
    ids = ids_of(choice, case.server)
    wanted = expect.tokens
    if isinstance(wanted, list):
        if ids is None:
            yield "", "the answer does not tell its tokens' ids"
        elif ids != wanted:
            said = f"the tokens are {ids[:12]}, and {wanted[:12]} are expected"
            yield "tokens", said
    elif wanted is not None:
        sign, number = re.fullmatch(r"([<>]=)?(\d+)", str(wanted)).groups("")  # type: ignore[union-attr]
        count = _count(sent, choice)
        if count is None:
            yield "", "the answer does not tell how many tokens it has"
        elif not _COMPARE[sign](count, int(number)):
            yield "tokens", f"{count} tokens, and {wanted} are expected"

    yield from _only(ids, choice, "only", expect.only)
    yield from _only(ids, choice, "never", expect.never)


def _count(sent: Sent, choice: ChoiceSeen) -> int | None:
    """Tokens of a choice; None: the answer does not tell."""
    # The usage counts the tokens of all choices together.
    if sent.n == 1 and sent.record.completion_tokens is not None:
        return sent.record.completion_tokens
    return len(choice.token_ids) or len(choice.tokens) or None


def _only(
    ids: list[int] | None,
    choice: ChoiceSeen,
    kind: Literal["only", "never"],
    given: Sequence[Any] | None,
) -> Iterator[tuple[str, str]]:
    """The first token that is none of those ``given``, or one of what never comes."""
    if given is None:
        return
    numbers = all(type(token) is int for token in given)
    tokens: Sequence[Any] | None = ids if numbers else choice.tokens
    if not tokens:
        yield "", "the answer does not tell its tokens (logprobs, or return_token_ids)"
        return
    for token in tokens:
        if kind == "never" and token in given:
            yield kind, f"token {token!r} is one of {given}"
            return
        if kind == "only" and token not in given:
            yield kind, f"token {token!r} is none of {given}"
            return
