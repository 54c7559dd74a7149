"""What a case itself expects of an answer (``expect``), held against what came."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from mmrepro.base.records import FindingClass
from mmrepro.engines import Engine
from mmrepro.search.oracle.judged import Judged, Sent, sent_of, sighting
from mmrepro.search.oracle.promises import ids_of, misfit, unlike
from mmrepro.traffic.case.model import Case, Expect
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import ChoiceSeen


def expected(case: Case, played: Played, engine: Engine) -> Judged:
    """Every expectation of the case. What has no answer since the server died or hangs
    is not
    judged: that is told by itself."""
    sent = {one.op.id: one for one in sent_of(case, played)}
    found: dict[str, list[tuple[str, str]]] = {}
    unseen = []
    for op in case.operations:
        if op.expect is None:
            continue
        one = sent.get(op.id)
        if one is None or one.record.left or one.record.status is None:
            ended = played.state is PlayState.ENDED
            unseen.append(
                f"What is expected of {op.id} was not judged: it has no answer."
            )
            if ended and one is not None and op.expect.status and not one.record.left:
                found.setdefault("status", []).append(
                    (op.id, f"no answer: {one.record.error}")
                )
            continue
        for kind, said in _unmet(one, op.expect, sent, case):
            if kind:
                found.setdefault(kind, []).append((op.id, said))
            else:
                unseen.append(f"What is expected of {op.id} was not judged: {said}.")
    sightings = []
    for kind, told in sorted(found.items()):
        ids = [id for id, _ in told]
        more = f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
        said = f"{ids[0]}{more}: {told[0][1]}."
        words = "The answer is as the case expects it."
        sightings.append(sighting(FindingClass.EXPECTATION, kind, said, words, by=ids))
    return Judged(sightings=sightings, unseen=unseen)


def _unmet(
    one: Sent, expect: Expect, sent: dict[str, Sent], case: Case
) -> Iterator[tuple[str, str]]:
    """Kinds and sentences of what is otherwise; of kind "": it cannot be judged, and
    why."""
    record = one.record
    if expect.status is not None and not _is_status(record.status, expect.status):
        more = f" ({record.error[:120]})" if record.error else ""
        yield (
            "status",
            f"the status is {record.status}{more}, and {expect.status} is expected",
        )
        return
    texts = [choice.text for choice in record.choices] or [record.text or record.error]
    if expect.text is not None:
        for text in (t for t in texts if re.search(expect.text, t) is None):
            yield "text", f"{text[:80]!r} has nothing like {expect.text!r}"
    if expect.not_text is not None:
        for text in (t for t in texts if re.search(expect.not_text, t)):
            yield "not-text", f"{text[:80]!r} has something like {expect.not_text!r}"
    if expect.json_schema is not None:
        for text in texts:
            if why := misfit(text, expect.json_schema):
                yield "schema", f"{text[:60]!r}: {why}"
    for end in expect.ends_after:
        if (other := sent.get(end)) is not None and one.end < other.end:
            yield "order", f"it ended before {end}"
    if record.status != 200:
        return
    if expect.finish is not None:
        for reason in {choice.finish_reason for choice in record.choices} - {
            expect.finish
        }:
            yield "finish", f"it ended with {reason}, and {expect.finish} is expected"
    if expect.same_as is not None:
        yield from _same(one, sent.get(expect.same_as))
    for choice in record.choices:
        yield from _tokens(one, choice, expect, case)
    asked = (expect.tokens, expect.only, expect.never, expect.finish)
    if not record.choices and any(one is not None for one in asked):
        yield "", "its answer has no tokens that are known"


def _is_status(status: int | None, expected: str) -> bool:
    return str(status) == expected or (
        expected.endswith("xx") and str(status)[:1] == expected[:1]
    )


def _same(one: Sent, other: Sent | None) -> Iterator[tuple[str, str]]:
    if other is None or other.record.status is None:
        yield "", "what it is held against has no answer"
        return
    if one.record.status != other.record.status:
        yield (
            "same",
            (
                f"its status is {one.record.status}, and {other.op.id}'s "
                f"{other.record.status}"
            ),
        )
        return
    a, b = one.record.choices, other.record.choices
    if len(a) != len(b) or not a:
        if one.record.text != other.record.text or len(a) != len(b):
            yield (
                "same",
                f"{len(a)} answers, and {other.op.id} has {len(b)}, or another text",
            )
        return
    for mine, right in zip(a, b, strict=True):
        if why := unlike(mine, right):
            yield "same", f"beside {other.op.id} {why}"
            return


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "": lambda a, b: a == b,
}


def _tokens(
    one: Sent, choice: ChoiceSeen, expect: Expect, case: Case
) -> Iterator[tuple[str, str]]:
    ids = ids_of(choice, case.server.model)
    told = expect.tokens
    if isinstance(told, list):
        if ids is None:
            yield "", "the answer does not tell its tokens' ids"
        elif ids != told:
            yield "tokens", f"the tokens are {ids[:12]}, and {told[:12]} are expected"
    elif told is not None:
        sign, number = re.fullmatch(r"([<>]=)?(\d+)", str(told)).groups("")  # type: ignore[union-attr]
        count = one.record.completion_tokens if one.n == 1 else None
        count = (
            (len(choice.token_ids) or len(choice.tokens) or None)
            if count is None
            else count
        )
        if count is None:
            yield "", "the answer does not tell how many tokens it has"
        elif not _COMPARE[sign](count, int(number)):
            yield "tokens", f"{count} tokens, and {told} are expected"
    for kind, given in (("only", expect.only), ("never", expect.never)):
        if given is None:
            continue
        tokens: list[Any] | None = (
            ids if all(type(t) is int for t in given) else choice.tokens
        )
        if not tokens:
            yield (
                "",
                "the answer does not tell its tokens (logprobs, or return_token_ids)",
            )
            continue
        wrong = [t for t in tokens if (t in given) == (kind == "never")]
        if wrong:
            yield (
                kind,
                (
                    f"token {wrong[0]!r} is "
                    f"{'one of' if kind == 'never' else 'none of'} {given}"
                ),
            )
