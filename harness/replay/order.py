"""The order in which a play went, as barriers: what is left of a case must not go another way."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from mmrepro.case.model import Case
from mmrepro.replay.seen import Seen


def as_sent(case: Case, seen: Seen) -> Case:
    """``case`` with its requests in the order in which they were sent; without those that never
    were, and without what they wait for."""
    operations = {op.id: op for op in case.operations}
    sent = [operations[id].model_copy(update={"after": []}) for id in seen.sent]
    kept = case.keeping([op.id for op in sent])
    return kept.model_copy(update={"operations": sent})


class _Span(NamedTuple):
    sent: float
    end: float
    place: int


def as_it_went(case: Case, seen: Seen) -> Case:
    """``case`` in which each operation also waits for those that had ended when it was sent.

    How many run at a time puts requests in an order that is gone with those between them: without
    a hundred requests in between, the last ones are sent beside the first. What overlapped in the
    play may do so still. What had no answer is taken to have ended with the play, and what was
    never sent to come after it, one by one.
    """
    spans = _spans(case, seen)
    by_end = sorted(spans, key=lambda span: span.end)
    ends = [span.end for span in by_end]
    latest = list(accumulate((span.sent for span in by_end), max))
    ids = [op.id for op in case.operations]
    operations = []
    for span, op in zip(spans, case.operations, strict=True):
        before = bisect_right(ends, span.sent)
        after = list(op.after)
        if before:
            # Who had ended before another one of them was sent is waited for by that one.
            first = bisect_right(ends, latest[before - 1])
            last = next(one for one in by_end[:before] if one.sent == latest[before - 1])
            waited = {*by_end[first:before], last}
            names = (f"{ids[p]}.end" for p in sorted(w.place for w in waited) if p < span.place)
            after = list(dict.fromkeys([*after, *names]))
        operations.append(op.model_copy(update={"after": after}))
    return case.model_copy(update={"operations": operations})


def _spans(case: Case, seen: Seen) -> list[_Span]:
    """Of each operation, in the case's order; of what had none, a made-up one after all others."""
    known = list(seen.times.values())
    close = max((end for _, end in known if end is not None), default=0.0)
    close = max(close, *(sent for sent, _ in known)) + 1 if known else 1.0
    spans, later = [], close
    for place, op in enumerate(case.operations):
        if op.id in seen.times:
            sent, end = seen.times[op.id]
            spans.append(_Span(sent, close if end is None else end, place))
        else:
            spans.append(_Span(later, later + 1, place))
            later += 2
    return spans
