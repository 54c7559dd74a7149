"""What fails on one side alone: the oracles' findings of both sides, and requests
refused by one.

What was observed once may be chance: it is a difference only when two runs of the one
side show it and two of the other do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrepro.base.records import FindingClass
from mmrepro.failure.documents import Area, Difference, SideRun, UpgradeOutcome
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle.judged import alike, normalised
from mmrepro.search.oracle.loud import OVERLOADED, error_words
from mmrepro.traffic.case import Case
from mmrepro.traffic.evidence import RequestRecord
from pydantic import JsonValue

_REPEATED = 2
"""Runs of each side that a statement wants."""
_SHOWN = 3


def compare(
    old: Sequence[SideRun],
    new: Sequence[SideRun],
    *,
    case: Case,
    known: Sequence[Difference] = (),
) -> list[Difference]:
    """State failures of one side alone. A server that does not start is left to
    ``starts``.

    Args:
        known: differences of answers and of the protocol: what an oracle holds against
            the form of the same answers is not stated twice.
    """
    old = [run for run in old if run.started]
    new = [run for run in new if run.started]
    if not old or not new:
        return []

    known_ids: set[str] = set()
    for item in known:
        if item.outcome is UpgradeOutcome.DIFFERENCE:
            known_ids.update(item.evidence)
    failing: set[str] = set()
    for run in (*old, *new):
        for sighting in run.sightings:
            failing.update(sighting.operations)

    differences: list[Difference] = []
    for failure in _failures(old, new, known_ids):
        differences.append(_stated(failure, len(old), len(new)))
    differences += _statuses(old, new, case, failing)
    if all(item.outcome is UpgradeOutcome.NONE for item in differences):
        said = f"Nothing fails on one side alone, in {len(old)} and {len(new)} runs."
        differences.append(difference("failures", UpgradeOutcome.NONE, said))
    return differences


@dataclass(frozen=True)
class _Failure:
    """A failure, and how many runs of each side show it."""

    sighting: Sighting
    old: int
    new: int


def _failures(
    old: Sequence[SideRun], new: Sequence[SideRun], known_ids: set[str]
) -> Iterator[_Failure]:
    distinct: list[Sighting] = []
    # NEW's words for a failure come first where both sides show it.
    for run in (*new, *old):
        for sighting in run.sightings:
            if sighting.finding_class is FindingClass.START_FAILURE:
                continue
            is_form = sighting.finding_class is FindingClass.PROTOCOL
            if is_form and known_ids.issuperset(sighting.operations):
                continue
            if not _is_among(sighting, distinct):
                distinct.append(sighting)

    distinct.sort(key=lambda sighting: sighting.finding_class.place)
    for sighting in distinct:
        yield _Failure(sighting, _showing(old, sighting), _showing(new, sighting))


def _is_among(sighting: Sighting, others: Sequence[Sighting]) -> bool:
    return any(alike(sighting.bucket, other.bucket) for other in others)


def _showing(runs: Sequence[SideRun], sighting: Sighting) -> int:
    return sum(_is_among(sighting, run.sightings) for run in runs)


def _stated(failure: _Failure, old: int, new: int) -> Difference:
    said = failure.sighting.said
    counts = f"{failure.new} of {new} runs of NEW and {failure.old} of {old} of OLD"
    if failure.old and failure.new:
        outcome, words = UpgradeOutcome.NONE, f"Both sides show it ({counts}): {said}"
    elif max(failure.old, failure.new) < _REPEATED or min(old, new) < _REPEATED:
        outcome, words = (
            UpgradeOutcome.UNTOLD,
            f"Not repeated often enough ({counts}): {said}",
        )
    else:
        side = "NEW" if failure.new else "OLD"
        outcome, words = (
            UpgradeOutcome.DIFFERENCE,
            f"{side} alone fails ({counts}): {said}",
        )

    return difference(
        str(failure.sighting.finding_class),
        outcome,
        words,
        matters=outcome is UpgradeOutcome.DIFFERENCE and bool(failure.new),
        sides=(failure.old, failure.new),
        evidence=failure.sighting.operations,
    )


# ------------------------------------------------------------------ refused by one side


def _statuses(
    old: Sequence[SideRun], new: Sequence[SideRun], case: Case, failing: set[str]
) -> Iterator[Difference]:
    """Requests that one side answers and the other one refuses, grouped by the words of
    the error."""
    groups: dict[tuple[int, int, str], list[str]] = {}
    errors: dict[tuple[int, int, str], str] = {}  # by group: the first error in full
    for op in case.operations:
        if op.id in failing:
            continue
        before, after = _status(old, op.id), _status(new, op.id)
        if before is None or after is None or before[0] == after[0]:
            continue
        words = before[1] or after[1]
        key = before[0], after[0], normalised(words)
        groups.setdefault(key, []).append(op.id)
        errors.setdefault(key, words)

    repeated = min(len(old), len(new)) >= _REPEATED
    for key, ids in groups.items():
        before_status, after_status, _ = key
        refused = after_status >= 400
        said = f"NEW answers {after_status} where OLD answers {before_status}: "
        said += ", ".join(ids[:_SHOWN])
        if len(ids) > _SHOWN:
            said += f" and {len(ids) - _SHOWN} more"
        words = " ".join(errors[key].split())[:200]
        if words:
            said += f" ({words})"
        if not repeated:
            said = f"Not repeated often enough: {said}"
        yield difference(
            "refused requests" if refused else "requests answered",
            UpgradeOutcome.DIFFERENCE if repeated else UpgradeOutcome.UNTOLD,
            f"{said}.",
            matters=refused and repeated,
            sides=(before_status, after_status),
            evidence=ids,
        )


def _status(runs: Sequence[SideRun], id: str) -> tuple[int, str] | None:
    """The status of an operation and what its error says; None: no answer, an
    overloaded server, or another status in another run."""
    records: list[RequestRecord] = []
    for run in runs:
        record = run.played.record(id) if run.played else None
        if record:
            records.append(record)

    statuses: set[int | None] = set()
    for record in records:
        if not (record.left or record.timed_out):
            statuses.add(record.status)
    if len(statuses) != 1 or len(records) < len(runs):
        return None
    status = statuses.pop()
    # What an overloaded or failing server answers is chance; failures are the oracles'
    # matter.
    if status is None or status in OVERLOADED or status >= 500:
        return None
    words = error_words(records[0]) if records[0].error else ""
    return status, words


def difference(
    subject: str,
    outcome: UpgradeOutcome,
    said: str,
    *,
    matters: bool = False,
    sides: tuple[JsonValue, JsonValue] = (None, None),
    evidence: Sequence[str] = (),
) -> Difference:
    """State a difference of failures; ``sides``: what OLD and what NEW has."""
    return Difference(
        area=Area.FAILURES,
        subject=subject,
        outcome=outcome,
        matters=matters,
        statement=said,
        old=sides[0],
        new=sides[1],
        evidence=list(evidence),
    )
