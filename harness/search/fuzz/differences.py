"""What two servers answer otherwise to the same requests, request by request.

The answers and their form are compared as ``upgrade`` does it; here statuses and errors
count as well, whatever they are: the same request got both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mmrepro.base.records import Record
from mmrepro.failure.documents import Area, Difference, SideRun, UpgradeOutcome
from mmrepro.search.oracle import sides
from mmrepro.traffic.case import CHAT, COMPLETIONS, Case, Operation, PlayState

SERVER = "server"
"""The field of a difference that ends one side's server, or leaves it without an
answer."""
LOST = 3
"""Requests in a row that a lost engine fails, at least."""
_ERROR_FIELDS = ("type", "code", "param")
_OF_CHANCE = frozenset(("id", "created", "request_id", "created_at"))
"""Fields that no two answers have alike."""
_ENDED = frozenset((PlayState.ENDED,))


class SeenDifference(Record):
    """What one request shows.

    Attributes:
        field: of the answer.
        what: the same for all requests that show the same.
    """

    operation: str
    field: str
    what: str
    statement: str

    @staticmethod
    def kind_of(field: str, what: str) -> str:
        return f"{field}: {what}"

    @property
    def kind(self) -> str:
        """What makes two of them the same, whatever the request was."""
        return self.kind_of(self.field, self.what)


def differences(case: Case, old: SideRun, new: SideRun) -> list[SeenDifference]:
    """All that the answers of both sides differ in, in the order of the requests."""
    seen = [*_ends(case, old, new)]
    case, lost = _before_loss(case, old, new)
    seen += lost
    for op in case.operations:
        seen += _statuses(op, old, new)
        seen += _bodies(op, old, new)
    for difference in sides.compare([old], [new], case=case):
        if difference.outcome is UpgradeOutcome.DIFFERENCE:
            seen += _of_requests(difference)
    order = {op.id: place for place, op in enumerate(case.operations)}
    return sorted(seen, key=lambda one: order.get(one.operation, len(order)))


def _ends(case: Case, old: SideRun, new: SideRun) -> Iterator[SeenDifference]:
    """A server that one side's requests ended, or that answers no more."""
    if old.state is new.state or not {old.state, new.state} & _ENDED:
        return
    run = new if old.state in _ENDED else old
    side = "NEW" if run is new else "OLD"
    last = _last_sent(case, run)
    if not last:
        return
    yield SeenDifference(
        operation=last,
        field=SERVER,
        what=f"{side} {run.state}",
        statement=f"{last}: {side} alone {run.state}: {run.error}",
    )


def _last_sent(case: Case, run: SideRun) -> str:
    """The request with which the side ended: the first without a whole answer."""
    for op in case.operations:
        record = run.played.record(op.id) if run.played else None
        if record is None or record.status is None or record.timed_out:
            return op.id
    return ""


def _before_loss(
    case: Case, old: SideRun, new: SideRun
) -> tuple[Case, list[SeenDifference]]:
    """The case up to a request after which one side alone fails all others, and that
    request as a difference: what is asked of a lost engine says nothing."""
    place = len(case.operations)
    side = ""
    for name, run, other in (("OLD", old, new), ("NEW", new, old)):
        at = _lost_at(case, run, other)
        if at is not None and at < place:
            place, side = at, name
    if not side:
        return case, []
    last = case.operations[place]
    words = _message(_body(last, new if side == "NEW" else old))
    loss = SeenDifference(
        operation=last.id,
        field=SERVER,
        what=f"{side} fails all that is asked after it",
        statement=f"{last.id}: {side} fails it and all that is asked after it "
        f"({words[:160]}).",
    )
    kept = [op.id for op in case.operations[:place]]
    return case.keeping(kept), [loss]


def _lost_at(case: Case, run: SideRun, other: SideRun) -> int | None:
    """The place from which on a side fails all that it would have to compute, with the
    same words, of which the other side answers some; None: there is none."""
    failed: list[int] = []
    for place in reversed(range(len(case.operations))):
        op = case.operations[place]
        statuses = _both_statuses(op, run, other)
        computed = statuses is not None and statuses[0] < 400
        if statuses is None or (computed and op.path in (CHAT, COMPLETIONS)):
            break
        # A front end refuses, and tells of itself, whether or not its engine lives.
        if statuses[0] >= 500:
            failed.append(place)
    if not failed:
        return None
    # Before it, requests may have failed by themselves.
    why = _message(_body(case.operations[failed[0]], run)).rpartition(": ")[2]
    same = [p for p in failed if why in _message(_body(case.operations[p], run))]
    sound = 0
    for place in same:
        statuses = _both_statuses(case.operations[place], run, other)
        sound += statuses is not None and statuses[1] < 500
    return min(same) if len(same) >= LOST and sound else None


def _statuses(op: Operation, old: SideRun, new: SideRun) -> Iterator[SeenDifference]:
    statuses = _both_statuses(op, old, new)
    if statuses is None or statuses[0] == statuses[1]:
        return
    what = f"{statuses[0]} → {statuses[1]}"
    words = _message(_body(op, new)) or _message(_body(op, old))
    said = f"{op.id}: NEW answers {statuses[1]} where OLD answers {statuses[0]}"
    if words:
        said += f" ({words[:160]})"
    yield SeenDifference(
        operation=op.id, field="status", what=what, statement=f"{said}."
    )


def _both_statuses(op: Operation, old: SideRun, new: SideRun) -> tuple[int, int] | None:
    """None: a side did not answer."""
    statuses: list[int] = []
    for run in (old, new):
        record = run.played.record(op.id) if run.played else None
        if record is None or record.status is None or record.left or record.timed_out:
            return None
        statuses.append(record.status)
    return statuses[0], statuses[1]


def _bodies(op: Operation, old: SideRun, new: SideRun) -> Iterator[SeenDifference]:
    """What errors of one status say, and what endpoints tell that are no
    completions."""
    statuses = _both_statuses(op, old, new)
    if statuses is None or statuses[0] != statuses[1]:
        return
    before, after = _body(op, old), _body(op, new)
    if statuses[0] >= 400:
        yield from _errors(op, before, after)
    elif op.path not in (CHAT, COMPLETIONS) and op.method == "POST":
        yield from _values(op, before, after)


def _errors(op: Operation, before: Any, after: Any) -> Iterator[SeenDifference]:
    old, new = _error(before), _error(after)
    for field in _ERROR_FIELDS:
        if old.get(field) == new.get(field) or not (old and new):
            continue
        what = f"{old.get(field)!r} → {new.get(field)!r}"
        yield SeenDifference(
            operation=op.id,
            field=f"error.{field}",
            what=what,
            statement=f"{op.id}: the error's {field} is {what}.",
        )


def _values(op: Operation, before: Any, after: Any) -> Iterator[SeenDifference]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return
    for field in before.keys() & after.keys() - _OF_CHANCE:
        old, new = before[field], after[field]
        nested = isinstance(old, dict) or isinstance(new, dict)
        if old == new or nested or None in (old, new):
            continue
        shown = f"{json.dumps(old)[:60]} → {json.dumps(new)[:60]}"
        yield SeenDifference(
            operation=op.id,
            field=field,
            what=f"another value by {op.path}",
            statement=f"{op.id}: {field} of {op.path} is {shown}.",
        )


def _body(op: Operation, run: SideRun) -> Any:
    """The answer's JSON; None: it is none."""
    text = run.played.bodies.get(op.id, "") if run.played else ""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _error(body: Any) -> dict[str, Any]:
    """The object in which an answer says what was wrong."""
    if not isinstance(body, dict):
        return {}
    inner = body.get("error", body)
    return inner if isinstance(inner, dict) else {}


def _message(body: Any) -> str:
    return " ".join(str(_error(body).get("message") or "").split())


def _of_requests(difference: Difference) -> Iterator[SeenDifference]:
    """One for each request that shows it."""
    # The sentence counts the requests of a case: it is another one in another case.
    for id in difference.evidence:
        yield SeenDifference(
            operation=id,
            field=difference.subject,
            what=_what(difference),
            statement=f"{id}: {difference.statement}",
        )


def _what(difference: Difference) -> str:
    """How a field differs, in words that are the same whatever else was asked."""
    if difference.area is Area.ANSWERS:
        return "another answer"
    if difference.subject.startswith("usage."):
        return "another count"
    if difference.subject == "finish_reason":
        return f"{difference.old} → {difference.new}"
    if difference.old is None:
        return "new"
    # Of a field that is perhaps renamed, the new name.
    gone = difference.new is None or " is gone from " in difference.statement
    return "gone" if gone else "another type"


def asked_of_both(case: Case, old: SideRun, new: SideRun) -> list[str]:
    """Requests that both sides answered or refused, before either was lost."""
    kept, _ = _before_loss(case, old, new)
    return [op.id for op in kept.operations if _both_statuses(op, old, new) is not None]
