"""What a search found, as it is written: verdicts of points, sentences of a side, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmrepro.bisect.board import Verdict
from mmrepro.bisect.search import Conclusion, Direction, Found
from mmrepro.incident.ledger import Attempt, Lost
from mmrepro.incident.searches import (
    Bisection,
    Chance,
    Point,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.records import Fidelity
from mmrepro.signature import Outcome

LOST_WORDS = {
    Lost.INFRASTRUCTURE: "infrastructure",
    Lost.UNLOADABLE: "its wheel cannot be loaded here",
    Lost.TIMEOUT: "it did not end in time",
    Lost.USAGE: "it cannot be run",
}
POINT_VERDICTS = {
    Outcome.REPRODUCED: PointVerdict.BAD,
    Outcome.NOT_REPRODUCED: PointVerdict.GOOD,
    Outcome.DIFFERENT_FAILURE: PointVerdict.OTHER,
}


def verdict_of(runs: Sequence[Attempt]) -> tuple[PointVerdict | None, str]:
    """Of all runs of a point together, and why."""
    if not runs:
        return None, ""
    seen = [a for a in runs if a.outcome in POINT_VERDICTS]
    if not seen:
        last = runs[-1]
        if last.lost is not None:
            return PointVerdict.UNTESTABLE, f"{LOST_WORDS[last.lost]}: {last.error}"
        return PointVerdict.UNTESTABLE, f"inconclusive: {last.explanation}"
    counts = Counter(POINT_VERDICTS[a.outcome] for a in seen if a.outcome is not None)
    if counts[PointVerdict.BAD] and len(counts) > 1:
        told = ", ".join(f"{number} × {verdict}" for verdict, number in counts.most_common())
        return PointVerdict.BOTH, f"{told}, of {len(runs)}"
    other = next((a for a in seen if a.outcome is Outcome.DIFFERENT_FAILURE), None)
    chosen = other or seen[-1]
    assert chosen.outcome is not None
    return POINT_VERDICTS[chosen.outcome], chosen.explanation


def side_of(
    bisection: Bisection,
    direction: Direction,
    found: Found | None,
    notes: Sequence[str],
    made: int,
) -> Side:
    """What is written of one side.

    Args:
        found: None: no point with the failure was found to start from.
        notes: on the start.
        made: runs that were made for this side; those for the start belong to the first one.
    """
    if found is None:
        return Side(
            conclusion=SideConclusion.NO_FAILURE,
            runs=made,
            explanation="the failure was seen nowhere, so there is nothing to search for",
            notes=list(notes),
        )
    names = [point.name for point in bisection.points]
    side = Side(
        conclusion=SideConclusion(found.conclusion),
        verified=found.verified,
        runs=made,
        one_of=[names[p] for p in found.one_of],
        notes=[*notes, *found.notes],
        returned=[names[p] for p in found.returned],
        rate=found.rate,
    )
    if found.bad is not None and found.beyond is not None:
        side.between = [names[p] for p in sorted((found.bad, found.beyond))]
        exact = found.conclusion is Conclusion.FOUND
        if direction == "introduced":
            side.first_bad = names[found.bad] if exact else None
            side.before = str(found.ends_in)
        else:
            side.first_good = names[found.beyond] if exact and _good(found) else None
            side.after = str(found.ends_in)
    if found.posterior is not None:
        ordered = sorted(found.posterior.items(), key=lambda item: -item[1])
        side.posterior = [Chance(last_bad=names[p], probability=round(c, 4)) for p, c in ordered]
    if found.other_since is not None:
        side.other_between = [names[p] for p in sorted(found.other_since)]
    side.explanation = _explain(bisection, direction, found, side)
    return side


def _good(found: Found) -> bool:
    return found.ends_in is Verdict.GOOD


def _explain(bisection: Bisection, direction: Direction, found: Found, side: Side) -> str:
    names = [_label(point) for point in bisection.points]
    kind = bisection.by
    if found.bad is None or found.beyond is None:
        return "; ".join(found.notes) or "nothing could be told"
    bad, beyond = names[found.bad], names[found.beyond]
    if side.one_of:
        what = "bad" if direction == "introduced" else "good"
        shown = " and ".join(names[p] for p in found.gap)
        one_of = ", ".join(names[p] for p in found.one_of)
        told = f"the first {what} {kind} is one of {one_of}: {shown} cannot be tested"
        if not _good(found):
            told += f"; {beyond} ends in another failure"
        return told
    if direction == "introduced":
        told = f"{bad} is the first bad {kind}"
        if _good(found):
            return f"{told}: {beyond}, before it, does not have the failure"
        return (
            f"{told}; before {bad} the same trigger ends in another failure: "
            f"{_other(bisection.points[found.beyond])}"
        )
    if _good(found):
        return f"{beyond} is the first good {kind}: {bad}, before it, has the failure"
    return (
        f"{bad} is the last {kind} with the failure: from {beyond} on the same trigger ends in "
        f"another failure, so that this is no fix: {_other(bisection.points[found.beyond])}"
    )


def _other(point: Point) -> str:
    return point.why.removeprefix("another failure: ") or "see its incident"


def _label(point: Point) -> str:
    return point.commit[:12] or point.name


def limits(bisection: Bisection) -> list[str]:
    """What the result does not establish, whatever it shows."""
    found = [
        f"every statement is about this scenario's traffic and options, on this device "
        f"({bisection.device}), with each {bisection.by}'s requirements as of its own day"
    ]
    if bisection.by == "release":
        found.append("which change between the two releases is the cause is not said")
    origins = dict.fromkeys(p.wheel.origin for p in bisection.points if p.wheel and p.wheel.origin)
    found += [f"the wheels are a {origin}" for origin in origins if "third-party" in origin]
    if bisection.repeat is None and not any(
        side and side.posterior for side in (bisection.introduced, bisection.fixed)
    ):
        found.append(
            "points away from the boundary were run once: a failure that comes and goes may have "
            "been missed there (--repeat N)"
        )
    kinds = {p.fidelity for p in bisection.points if p.fidelity}
    if kinds and not kinds & {Fidelity.GPU, Fidelity.LIVE}:
        told = ", ".join(sorted(str(kind) for kind in kinds))
        found.append(f"no run was as in production: fidelity {told}")
    skipped = [p.name for p in bisection.points if p.verdict is PointVerdict.UNTESTABLE]
    if skipped:
        found.append(f"could not be tested and counts as nothing: {', '.join(skipped)}")
    return found
