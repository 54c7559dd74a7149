"""What the runs of a bisection come to: the verdict of a point, the conclusion of a
side in words, and what both leave open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmrepro.base.records import Fidelity
from mmrepro.campaign.bisect.search import Direction, SideFinding
from mmrepro.failure.documents import Attempt, Lost
from mmrepro.failure.documents.searches import (
    Bisection,
    Chance,
    Point,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.failure.signature import Outcome

_LOST_WORDS = {
    Lost.INFRASTRUCTURE: "infrastructure",
    Lost.UNLOADABLE: "it cannot be loaded here",
    Lost.TIMEOUT: "it did not end in time",
    Lost.USAGE: "it cannot be run",
}
VERDICTS = {
    Outcome.REPRODUCED: PointVerdict.BAD,
    Outcome.NOT_REPRODUCED: PointVerdict.GOOD,
    Outcome.DIFFERENT_FAILURE: PointVerdict.OTHER,
}
"""What a run says of its point; others say nothing."""


def verdict_of(runs: Sequence[Attempt]) -> tuple[PointVerdict | None, str]:
    """The verdict of a point, by all of its runs, and why; None: there are none."""
    if not runs:
        return None, ""
    decided = [attempt for attempt in runs if attempt.outcome in VERDICTS]
    if not decided:
        last = runs[-1]
        if last.lost is not None:
            return PointVerdict.UNTESTABLE, f"{_LOST_WORDS[last.lost]}: {last.error}"
        return PointVerdict.UNTESTABLE, f"inconclusive: {last.explanation}"

    counts = Counter(VERDICTS[a.outcome] for a in decided if a.outcome is not None)
    if counts[PointVerdict.BAD] and len(counts) > 1:
        numbers = [f"{number} × {verdict}" for verdict, number in counts.most_common()]
        return PointVerdict.BOTH, f"{', '.join(numbers)}, of {len(runs)}"
    others = [a for a in decided if a.outcome is Outcome.DIFFERENT_FAILURE]
    chosen = others[0] if others else decided[-1]
    assert chosen.outcome is not None
    return VERDICTS[chosen.outcome], chosen.explanation


# ----------------------------------------------------------------------------- a side


def side_of(
    bisection: Bisection,
    direction: Direction,
    finding: SideFinding | None,
    notes: Sequence[str],
    made: int,
) -> Side:
    """What is written of one side.

    Args:
        finding: None: no point with the failure was found to start from.
        notes: on the start.
        made: runs that were made for this side; those for the start belong to the first
            one.
    """
    if finding is None:
        return Side(
            conclusion=SideConclusion.NO_FAILURE,
            runs=made,
            explanation=(
                "the failure was seen nowhere, so there is nothing to search for"
            ),
            notes=list(notes),
        )

    names = [point.name for point in bisection.points]
    side = Side(
        conclusion=finding.conclusion,
        verified=finding.verified,
        runs=made,
        one_of=[names[p] for p in finding.one_of],
        notes=[*notes, *finding.notes],
        returned=[names[p] for p in finding.returned],
        rate=finding.rate,
    )
    _add_boundary(side, names, direction, finding)
    if finding.posterior is not None:
        likeliest = sorted(finding.posterior.items(), key=lambda item: -item[1])
        side.posterior = [
            Chance(last_bad=names[p], probability=round(chance, 4))
            for p, chance in likeliest
        ]
    if finding.other_since is not None:
        side.other_between = [names[p] for p in sorted(finding.other_since)]
    side.explanation = _explain(bisection, direction, finding, side)
    return side


def _add_boundary(
    side: Side, names: Sequence[str], direction: Direction, finding: SideFinding
) -> None:
    if finding.bad is None or finding.beyond is None:
        return
    side.between = [names[p] for p in sorted((finding.bad, finding.beyond))]
    exact = finding.conclusion is SideConclusion.FOUND
    if direction == "introduced":
        side.first_bad = names[finding.bad] if exact else None
        side.before = str(finding.ends_in)
    else:
        is_fixed = exact and _ends_well(finding)
        side.first_good = names[finding.beyond] if is_fixed else None
        side.after = str(finding.ends_in)


def _ends_well(finding: SideFinding) -> bool:
    return finding.ends_in is PointVerdict.GOOD


def _explain(
    bisection: Bisection, direction: Direction, finding: SideFinding, side: Side
) -> str:
    if finding.bad is None or finding.beyond is None:
        return "; ".join(finding.notes) or "nothing could be told"
    names = [_label(point) for point in bisection.points]
    first = finding.bad if direction == "introduced" else finding.beyond
    subject = bisection.points[first].subject
    if subject:
        names[first] += f" ({subject})"

    kind, bad, beyond = bisection.by, names[finding.bad], names[finding.beyond]
    other = _other(bisection.points[finding.beyond])
    if side.one_of:
        return _explain_gap(kind, names, direction, finding)
    if direction == "introduced":
        sentence = f"{bad} is the first bad {kind}"
        if _ends_well(finding):
            return f"{sentence}: {beyond}, before it, does not have the failure"
        return (
            f"{sentence}; before {bad} the same trigger ends in another failure: "
            f"{other}"
        )
    if _ends_well(finding):
        return f"{beyond} is the first good {kind}: {bad}, before it, has the failure"
    return (
        f"{bad} is the last {kind} with the failure: from {beyond} on the same trigger "
        f"ends in another failure, so that this is no fix: {other}"
    )


def _explain_gap(
    kind: str, names: Sequence[str], direction: Direction, finding: SideFinding
) -> str:
    """The boundary lies among points that cannot be tested."""
    assert finding.beyond is not None
    what = "bad" if direction == "introduced" else "good"
    untested = " and ".join(names[p] for p in finding.gap)
    one_of = ", ".join(names[p] for p in finding.one_of)
    sentence = (
        f"the first {what} {kind} is one of {one_of}: {untested} cannot be tested"
    )
    if _ends_well(finding):
        return sentence
    return f"{sentence}; {names[finding.beyond]} ends in another failure"


def _other(point: Point) -> str:
    return point.why.removeprefix("another failure: ") or "see its incident"


def _label(point: Point) -> str:
    return point.commit[:12] or point.name


# ------------------------------------------------------------------------ what is open


def limits(bisection: Bisection) -> list[str]:
    """What the result does not establish, whatever it shows."""
    lines = [
        "every statement is about this scenario's traffic and options, on this device "
        f"({bisection.device}), with each {bisection.by}'s requirements as of its own "
        "day"
    ]
    if bisection.by == "release":
        lines.append("which change between the two releases is the cause is not said")
    origins = dict.fromkeys(p.wheel.origin for p in bisection.points if p.wheel)
    for origin in origins:
        if "third-party" in (origin or ""):
            lines.append(f"the wheels are a {origin}")

    sides = (bisection.introduced, bisection.fixed)
    has_posterior = any(side and side.posterior for side in sides)
    if bisection.repeat is None and not has_posterior:
        lines.append(
            "points away from the boundary were run once: a failure that comes and "
            "goes may have been missed there (--repeat N)"
        )
    kinds = {point.fidelity for point in bisection.points if point.fidelity}
    if kinds and not kinds & {Fidelity.GPU, Fidelity.LIVE}:
        names = ", ".join(sorted(str(kind) for kind in kinds))
        lines.append(f"no run was as in production: fidelity {names}")
    skipped = [p.name for p in bisection.points if p.verdict is PointVerdict.UNTESTABLE]
    if skipped:
        lines.append(f"could not be tested and counts as nothing: {', '.join(skipped)}")
    return lines
