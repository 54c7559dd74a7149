"""What every format says alike of a bisection: words, the headline, the table's rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from mmrepro.base.units import duration
from mmrepro.incident.ledger import Attempt
from mmrepro.incident.searches import (
    Bisection,
    Point,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.reports.words import FIDELITY_WORDS, OUTCOME_WORDS

VERDICT_WORDS: Final[dict[PointVerdict, str]] = {
    PointVerdict.BAD: "bad",
    PointVerdict.GOOD: "good",
    PointVerdict.OTHER: "different failure",
    PointVerdict.UNTESTABLE: "untestable",
    PointVerdict.BOTH: "both: runs contradict each other",
}
VERDICT_MARKS: Final[dict[PointVerdict, str]] = {
    PointVerdict.BAD: "✘",
    PointVerdict.GOOD: "✔",
    PointVerdict.OTHER: "≠",
    PointVerdict.UNTESTABLE: "?",
    PointVerdict.BOTH: "±",
}
VERDICT_TONES: Final[dict[PointVerdict, str]] = {
    PointVerdict.BAD: "bad",
    PointVerdict.GOOD: "good",
    PointVerdict.OTHER: "unsure",
    PointVerdict.UNTESTABLE: "soft",
    PointVerdict.BOTH: "unsure",
}
CONCLUSION_WORDS: Final[dict[SideConclusion, str]] = {
    SideConclusion.FOUND: "found",
    SideConclusion.RANGE: "a range",
    SideConclusion.NO_BOUNDARY: "no boundary",
    SideConclusion.NO_FAILURE: "no failure",
    SideConclusion.INCONCLUSIVE: "inconclusive",
}
MEANINGS: Final = (
    "bad: reproduced, with symptom and cause; good: not reproduced, although the trigger "
    "arrived and the engine works after it; different failure: neither; untestable: nothing was "
    "learnt, which counts as neither"
)


@dataclass(frozen=True)
class Headline:
    label: str
    tone: str


@dataclass(frozen=True)
class Row:
    """One point. ``tone``: good, bad, soft or unsure."""

    name: str
    uploaded: str
    declared: str
    verdict: str
    mark: str
    tone: str
    runs: str
    took: str
    why: str


def headline(bisection: Bisection) -> Headline:
    if bisection.state == "interrupted":
        return Headline("Interrupted", "unsure")
    if bisection.state == "failed":
        return Headline("Failed", "bad")
    found = [side for _, side in sides(bisection)]
    if all(s.conclusion is SideConclusion.FOUND and s.verified for s in found):
        return Headline("Found", "good")
    if any(s.conclusion in (SideConclusion.FOUND, SideConclusion.RANGE) for s in found):
        return Headline("Found in part", "unsure")
    return Headline("Not found", "unsure")


def title(bisection: Bisection) -> str:
    return f"Bisection of {name(bisection)} over {bisection.engine} {bisection.by}s"


def name(bisection: Bisection) -> str:
    scenario = bisection.scenario
    return f"{scenario.name} ({scenario.variant})" if scenario.variant else scenario.name


def point_name(point: Point) -> str:
    """A release; of a commit its first digits, with the version that its wheel has."""
    if not point.commit:
        return point.name
    return f"{point.commit[:12]} ({point.release})" if point.release else point.commit[:12]


def short(bisection: Bisection, named: str) -> str:
    point = bisection.point(named)
    return point_name(point) if point else named


def sides(bisection: Bisection) -> list[tuple[str, Side]]:
    both = (("introduced", bisection.introduced), ("fixed", bisection.fixed))
    return [(direction, side) for direction, side in both if side is not None]


def answer(bisection: Bisection, direction: str, side: Side) -> str:
    """The side in a few words."""
    label = {"introduced": "first bad", "fixed": "first good"}[direction]
    named = side.first_bad or side.first_good
    if named:
        return f"{label}: {short(bisection, named)}"
    if side.one_of:
        return f"{label}: one of {', '.join(short(bisection, n) for n in side.one_of)}"
    if side.between and direction == "fixed":
        return f"last bad: {short(bisection, side.between[0])}"
    return f"{label}: {CONCLUSION_WORDS[side.conclusion]}"


def certainty(side: Side) -> str:
    if side.verified:
        return "both sides were run again and agree"
    if side.conclusion is SideConclusion.RANGE:
        return "a range: what lies between cannot be tested"
    return "not verified"


def ran(bisection: Bisection) -> list[Point]:
    return [point for point in bisection.points if point.verdict is not None]


def rows(bisection: Bisection) -> list[Row]:
    """The points that were run, oldest first."""
    table = []
    for point in ran(bisection):
        verdict = point.verdict
        assert verdict is not None
        table.append(
            Row(
                name=point_name(point),
                uploaded=point.uploaded[:10] or "–",
                declared="affected" if point.declared else "–",
                verdict=VERDICT_WORDS[verdict],
                mark=VERDICT_MARKS[verdict],
                tone=VERDICT_TONES[verdict],
                runs=counted(point),
                took=duration(sum(run.seconds for run in point.runs)),
                why=point.why,
            )
        )
    return table


def counted(point: Point) -> str:
    """``2 × reproduced, 1 × no verdict``."""
    count = Counter(attempt_word(run) for run in point.runs)
    return ", ".join(f"{number} × {word}" for word, number in count.most_common())


def attempt_word(attempt: Attempt) -> str:
    if attempt.outcome is not None:
        return OUTCOME_WORDS[attempt.outcome].lower()
    return f"no verdict ({attempt.lost})" if attempt.lost else "no verdict"


def boundary_points(bisection: Bisection) -> list[Point]:
    """Those next to a boundary, oldest first: their runs are shown one by one."""
    wanted = {n for _, side in sides(bisection) for n in (*side.between, *side.one_of)}
    return [point for point in bisection.points if point.name in wanted and point.runs]


def commands(bisection: Bisection) -> list[str]:
    """One for the whole, and one for each point next to a boundary."""
    found = dict.fromkeys([bisection.command])
    for point in boundary_points(bisection):
        found |= dict.fromkeys(run.command for run in point.runs[:1])
    return list(found)


def setup(bisection: Bisection) -> list[tuple[str, str]]:
    host = bisection.host
    kinds = dict.fromkeys(p.fidelity for p in bisection.points if p.fidelity)
    how = "one after another" if bisection.linear else "search from the declared boundary on"
    told = [
        ("engine", bisection.engine),
        ("device", bisection.device),
        ("fidelity", "; ".join(f"{k}: {FIDELITY_WORDS[k]}" for k in kinds) or "unknown"),
        ("declared affected", bisection.scenario.affected),
        ("known bad", short(bisection, bisection.known_bad) or "none"),
        ("points", f"{len(bisection.points)}, {len(ran(bisection))} of them run"),
        ("order", how),
        ("runs of each", str(bisection.repeat) if bisection.repeat else "as many as needed"),
        ("runs", f"{bisection.runs}, {duration(bisection.seconds)} in all, environments included"),
        ("host", f"{host.cpu}, {host.cores} cores, {host.os}"),
        ("made by", f"mmrepro {bisection.mmrepro_version}"),
    ]
    wheels = dict.fromkeys(
        f"{p.wheel.project}: {p.wheel.origin}" for p in bisection.points if p.wheel
    )
    return [*told[:1], *(("wheels", text) for text in wheels), *told[1:]]
