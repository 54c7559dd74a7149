"""What fails on one side alone: the oracles' findings of both sides, and requests
refused by one.

What was observed once may be chance: it is a difference only when two runs of the one
side show it and two of the other do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import Sighting
from mmrepro.failure.documents.upgrade import Area, Difference, Outcome, SideRun
from mmrepro.search.oracle.judged import alike, normalised
from mmrepro.search.oracle.loud import OVERLOADED, error_words
from mmrepro.traffic.case.model import Case
from pydantic import JsonValue

REPEATED = 2
"""Runs of each side that a statement wants."""
SHOWN = 3


def compare(
    old: Sequence[SideRun],
    new: Sequence[SideRun],
    *,
    case: Case,
    known: Sequence[Difference] = (),
) -> list[Difference]:
    """Failures of one side alone. A server that does not start is left to ``starts``.

    Args:
        known: differences of answers and of the protocol: what an oracle holds against
            the form of the same answers is not named twice.
    """
    old, new = ([run for run in runs if run.started] for runs in (old, new))
    if not old or not new:
        return []
    named = {
        id for one in known if one.outcome is Outcome.DIFFERENCE for id in one.evidence
    }
    findings = [_stated(one, len(old), len(new)) for one in _findings(old, new, named)]
    failing = {
        id for run in (*old, *new) for one in run.sightings for id in one.operations
    }
    found = [*findings, *_statuses(old, new, case, failing)]
    if not any(one.outcome is not Outcome.NONE for one in found):
        said = f"Nothing fails on one side alone, in {len(old)} and {len(new)} runs."
        return [*found, difference("failures", Outcome.NONE, said)]
    return found


@dataclass(frozen=True)
class _Finding:
    """One failure: runs of each side that show it."""

    sighting: Sighting
    old: int
    new: int


def _findings(
    old: Sequence[SideRun], new: Sequence[SideRun], named: set[str]
) -> Iterator[_Finding]:
    distinct: list[Sighting] = []
    for run in (*new, *old):
        for one in run.sightings:
            form = (
                one.finding_class is FindingClass.PROTOCOL
                and {*one.operations} <= named
            )
            start = one.finding_class is FindingClass.START_FAILURE
            if not (
                form
                or start
                or any(alike(one.bucket, other.bucket) for other in distinct)
            ):
                distinct.append(one)
    for one in sorted(distinct, key=lambda sighting: sighting.finding_class.place):
        yield _Finding(one, _showing(old, one), _showing(new, one))


def _showing(runs: Sequence[SideRun], sighting: Sighting) -> int:
    return sum(
        any(alike(sighting.bucket, one.bucket) for one in run.sightings) for run in runs
    )


def _stated(one: _Finding, old: int, new: int) -> Difference:
    said, kind = one.sighting.said, one.sighting.finding_class
    counts = f"{one.new} of {new} runs of NEW and {one.old} of {old} of OLD"
    if one.old and one.new:
        outcome, words = Outcome.NONE, f"Both sides show it ({counts}): {said}"
    elif max(one.old, one.new) < REPEATED or min(old, new) < REPEATED:
        outcome, words = Outcome.UNTOLD, f"Not repeated often enough ({counts}): {said}"
    else:
        side = "NEW" if one.new else "OLD"
        outcome, words = Outcome.DIFFERENCE, f"{side} alone fails ({counts}): {said}"
    return difference(
        str(kind),
        outcome,
        words,
        matters=outcome is Outcome.DIFFERENCE and bool(one.new),
        sides=(one.old, one.new),
        evidence=one.sighting.operations,
    )


# ------------------------------------------------------------------ refused by one side


def _statuses(
    old: Sequence[SideRun], new: Sequence[SideRun], case: Case, failing: set[str]
) -> Iterator[Difference]:
    """Requests that one side answers and the other one refuses, by what is said of
    them."""
    groups: dict[tuple[int, int, str], list[str]] = {}
    told: dict[tuple[int, int, str], str] = {}  # by group: the first error in full
    for op in case.operations:
        if op.id in failing:
            continue
        before, after = _status(old, op.id), _status(new, op.id)
        if before is None or after is None or before[0] == after[0]:
            continue
        words = before[1] or after[1]
        key = before[0], after[0], normalised(words)
        groups.setdefault(key, []).append(op.id)
        told.setdefault(key, words)
    for key, ids in groups.items():
        before_status, after_status, _ = key
        names = ", ".join(ids[:SHOWN]) + (
            f" and {len(ids) - SHOWN} more" if ids[SHOWN:] else ""
        )
        refused = after_status >= 400
        verb = f"NEW answers {after_status} where OLD answers {before_status}"
        words = " ".join(told[key].split())[:200]
        said = f"{verb}: {names}" + (f" ({words})" if words else "")
        repeated = min(len(old), len(new)) >= REPEATED
        yield difference(
            "refused requests" if refused else "requests answered",
            Outcome.DIFFERENCE if repeated else Outcome.UNTOLD,
            f"{said}." if repeated else f"Not repeated often enough: {said}.",
            matters=refused and repeated,
            sides=(before_status, after_status),
            evidence=ids,
        )


def _status(runs: Sequence[SideRun], id: str) -> tuple[int, str] | None:
    """The status of an operation and what its error says; None: no answer, an
    overloaded server, or another status in another run."""
    records = [
        record for run in runs if run.played and (record := run.played.record(id))
    ]
    statuses = {
        record.status for record in records if not (record.left or record.timed_out)
    }
    if len(statuses) != 1 or len(records) < len(runs):
        return None
    status = statuses.pop()
    if status is None or status in OVERLOADED or status >= 500:
        return None
    return status, error_words(records[0]) if records[0].error else ""


def difference(
    subject: str,
    outcome: Outcome,
    said: str,
    *,
    matters: bool = False,
    sides: tuple[JsonValue, JsonValue] = (None, None),
    evidence: Sequence[str] = (),
) -> Difference:
    """One of failures; ``sides``: what OLD and what NEW has."""
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
