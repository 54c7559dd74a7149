"""A bisection's report: ``bisection.json`` as a page, with its points on one line."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup
from mmrepro.base.text.sanitize import one_line
from mmrepro.base.units import duration
from mmrepro.failure.documents.searches import (
    BISECTION_FILE,
    Bisection,
    Point,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.reports import blocks as b, svg, words
from mmrepro.reports.documents import kind

_CHANCES: Final = 12
_OPEN_POINTS: Final = 25
"""Points in a table that is not folded."""
_LOOKS: Final[dict[PointVerdict, tuple[str, b.Tone, str]]] = {
    PointVerdict.BAD: ("✘ bad", "bad", "server"),
    PointVerdict.GOOD: ("✔ good", "good", "ok"),
    PointVerdict.OTHER: ("≠ different failure", "unsure", "client"),
    PointVerdict.UNTESTABLE: ("? untestable", "soft", "tick"),
    PointVerdict.BOTH: ("± both", "unsure", "lost"),
}
"""Of each verdict: its mark and words, its tone, the class of its dot."""
_MEASURED: Final = (
    "✘ bad: the metric moved there as far as at the bad end. ✔ good: it did not. ±: "
    "that is left open. ?: nothing was measured."
)
_LEGEND: Final = (
    "✘ bad: reproduced, with symptom and cause. ✔ good: not reproduced, although the "
    "trigger arrived and the engine works after it. ≠: a different failure. ?: "
    "untestable; no run reached a verdict, which counts as neither. ±: both; runs "
    "contradict each other."
)


def compose(bisection: Bisection) -> b.Page:
    found = bisection.sides
    answers = "; ".join(
        _answer(bisection, direction, side) for direction, side in found
    )
    stand_ins = ((one, "") for one in bisection.stand_ins)
    what = f"{bisection.measure} under " * bool(bisection.measure)
    what += words.scenario_name(bisection.scenario)
    over = f"{what} over {bisection.engine} {bisection.by}s"
    return b.Page(
        title=f"Bisection of {over}",
        badge=_badge(bisection),
        subject=over + (f": {answers}" if answers else ""),
        warning=b.broken_off(
            bisection.failure and words.sentence(bisection.failure),
            began=bool(bisection.runs),
        ),
        card=[*_card(bisection)],
        counts=[
            f"{b.count(bisection.runs, 'run')} of {len(bisection.ran)} of "
            f"{b.count(len(bisection.points), 'point')}",
            duration(bisection.seconds),
        ],
        commands=[("to repeat it", bisection.command)],
        sections=[
            b.Section("Points, old to new", [*_line(bisection)], 90),
            *(
                b.Section(f"Where it was {name}", [*_side(bisection, s)], 97)
                for name, s in found
            ),
            b.Section("Runs next to a boundary", _runs(bisection), 80),
            b.Section("Every point that was run", [*_points(bisection)], 95),
            b.Section("What this does not establish", b.bullets(bisection.limits), 85),
            b.Section("Stand-ins", words.stand_ins(stand_ins, ""), 60),
            b.Section("Repeat one run", _commands(bisection), 70),
            b.Section("Set-up", [b.Facts(_setup(bisection))], 50),
        ],
        footer=words.footer(
            f"Bisection {bisection.id}", bisection.created, BISECTION_FILE, words.RUNS
        ),
    )


def _badge(bisection: Bisection) -> b.Badge:
    if bisection.state != "complete":
        tones: dict[str, b.Tone] = {"interrupted": "unsure", "failed": "bad"}
        return b.Badge(bisection.state.capitalize(), tones[bisection.state])
    found = [side for _, side in bisection.sides]
    if all(side.conclusion is SideConclusion.FOUND and side.verified for side in found):
        return b.Badge("Found", "good")
    if any(s.conclusion in (SideConclusion.FOUND, SideConclusion.RANGE) for s in found):
        return b.Badge("Found in part", "unsure")
    return b.Badge("Not found", "unsure")


def _answer(bisection: Bisection, direction: str, side: Side) -> str:
    """The side in a few words: ``first bad 0.14.0``."""
    label = {"introduced": "first bad", "fixed": "first good"}[direction]
    named = side.first_bad or side.first_good
    if named:
        return f"{label} {_short(bisection, named)}"
    if side.one_of:
        return f"{label} one of {_shorts(bisection, side.one_of)}"
    if side.between and direction == "fixed":
        return f"last bad {_short(bisection, side.between[0])}"
    a = "a " * (side.conclusion is SideConclusion.RANGE)
    return f"{label}: {a}{side.conclusion.replace('-', ' ')}"


def _certainty(side: Side) -> str:
    if side.verified:
        return "both sides were run again and agree"
    if side.conclusion is SideConclusion.RANGE:
        return "a range: what lies between cannot be tested"
    return "not verified"


# --------------------------------------------------------------------- the first screen


def _card(bisection: Bisection) -> Iterator[b.Block]:
    for direction, side in bisection.sides:
        text = side.explanation or _answer(bisection, direction, side)
        yield b.p(b.strong(_sentence(text)), f" {_sentence(_certainty(side))}")
        for chance in side.posterior[:1]:
            name = _short(bisection, chance.last_bad)
            share = f"last bad is {name} with {chance.probability:.1%}"
            yield b.p(f"Runs {_disagree(bisection)}: {share}.", tone="unsure")
    rows = [(*_cells(point)[:2], point.why) for point in _boundary(bisection)[:6]]
    yield from b.table(
        f"{bisection.by}:name | verdict:name | observed", rows, "the boundaries"
    )


def _disagree(bisection: Bisection) -> str:
    return "leave it open" if bisection.measure else "contradict each other"


# ----------------------------------------------------------------------------- sections


def _line(bisection: Bisection) -> Iterator[b.Block]:
    points = bisection.ran
    if points:
        yield b.p(_MEASURED if bisection.measure else _LEGEND, tone="soft")
        marks = [f"{p.label} {_LOOKS[p.verdict][0][0]}" for p in points if p.verdict]
        caption = (
            "Small: not run. A shaded band lies between the two sides of a boundary."
        )
        yield b.Picture(_drawing(bisection), [b.p(" · ".join(marks))], caption)


def _side(bisection: Bisection, side: Side) -> Iterator[b.Block]:
    yield b.p(_sentence(side.explanation))
    facts = [f"{_certainty(side)}; {b.count(side.runs, 'run')}", *side.notes]
    if side.other_between:
        between = " and ".join(_short(bisection, name) for name in side.other_between)
        facts.append(f"the different failure gives way between {between}")
    if side.returned:
        facts.append(f"bad again: {_shorts(bisection, side.returned)}")
    yield from b.bullets(facts)
    if side.posterior:
        shows = side.rate and not bisection.measure
        rate = (
            f"; the failure shows in about {side.rate:.0%} of the runs" if shows else ""
        )
        yield b.p(f"Runs {_disagree(bisection)}{rate}. Where the boundary may lie:")
        chances = side.posterior[:_CHANCES]
        rows = [
            (_short(bisection, c.last_bad), f"{c.probability:.1%}") for c in chances
        ]
        yield from b.table(
            "last bad:name | probability:number", rows, "the boundary's place"
        )


def _points(bisection: Bisection) -> Iterator[b.Block]:
    """The points that were run, oldest first."""
    rows = []
    for point in bisection.ran:
        took = duration(sum(run.seconds for run in point.runs))
        of = ("affected" if point.declared else "–", point.uploaded[:10] or "–")
        rows.append(
            b.row(*_cells(point), took, point.why, *of, status=str(point.verdict))
        )
    heads = f"{bisection.by}:name | verdict:name | runs | took:number | observed"
    heads += " | declared:name | uploaded:name"
    yield from b.counted("point", heads, rows, _OPEN_POINTS)


def _cells(point: Point) -> tuple[b.Inline, b.Inline, b.Inline]:
    """Its name, its verdict, and its runs, such as ``2 × reproduced``."""
    found = Counter(words.attempt(run, "no verdict") for run in point.runs)
    runs = ", ".join(f"{number} × {word}" for word, number in found.most_common())
    name = f"{point.label} {one_line(point.subject, 60)}".strip()
    if point.verdict is None:
        return name, "not run", runs
    return name, b.toned(*_LOOKS[point.verdict][:2]), runs


def _runs(bisection: Bisection) -> list[b.Block]:
    """Each run of the points next to a boundary."""
    rows: list[Sequence[b.Inline]] = []
    for point in _boundary(bisection):
        for run in point.runs:
            came = (words.attempt(run, "no verdict"), run.error or run.explanation)
            rows.append(
                (
                    point.label,
                    *came,
                    duration(run.seconds),
                    words.run_link(run.incident),
                )
            )
    heads = f"{bisection.by}:name | outcome:name | observed | took:number | incident"
    return b.table(heads, rows, "runs next to a boundary")


def _commands(bisection: Bisection) -> list[b.Block]:
    runs = (run.command for point in _boundary(bisection) for run in point.runs[:1])
    lines = [one_line(command, 4000) for command in dict.fromkeys(runs) if command]
    return [b.Fence("\n".join(lines[:20]), "sh")] if lines else []


def _setup(bisection: Bisection) -> list[tuple[str, b.Inline]]:
    wheels = dict.fromkeys(
        f"{p.wheel.project}: {p.wheel.origin}" for p in bisection.points if p.wheel
    )
    how = (
        "one after another"
        if bisection.linear
        else "search from the declared boundary on"
    )
    return [
        ("engine", bisection.engine),
        *(("wheels", text) for text in wheels),
        ("device", bisection.device),
        ("fidelity", words.fidelity_words(*(p.fidelity for p in bisection.points))),
        ("scenario", b.prose(bisection.scenario.title)),
        ("declared affected", bisection.scenario.affected),
        ("known bad", _short(bisection, bisection.known_bad) or "none"),
        ("points", f"{len(bisection.points)}, {len(bisection.ran)} of them run"),
        ("order", how),
        (
            "runs of each",
            str(bisection.repeat) if bisection.repeat else "as many as needed",
        ),
        (
            "runs",
            (
                f"{bisection.runs}, {duration(bisection.seconds)} in all, environments "
                "included"
            ),
        ),
        *words.made_on(bisection.host, bisection.mmrepro_version),
    ]


def _boundary(bisection: Bisection) -> list[Point]:
    """The points next to a boundary that were run, oldest first."""
    wanted = {n for _, side in bisection.sides for n in (*side.between, *side.one_of)}
    return [point for point in bisection.points if point.name in wanted and point.runs]


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a commit or a release."""
    return words.sentence(
        words.capital(text) if text.partition(" ")[0].isalpha() else text
    )


def _short(bisection: Bisection, named: str) -> str:
    point = bisection.point(named)
    return point.label if point else named


def _shorts(bisection: Bisection, names: Sequence[str]) -> str:
    return ", ".join(_short(bisection, name) for name in names)


# ------------------------------------------------------------------------------ drawing

_WIDTH: Final = 1080
_MARGIN: Final = 44
_AXIS: Final = 96
_APART: Final = 13.0
"""Pixels between labels, which stand on their heads."""
_MAX_LABELS: Final = 70


def _drawing(bisection: Bisection) -> Markup:
    """The points on one line. A mark shows the verdict as well as its colour does."""
    points = bisection.points
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(points) - 1)
    xs = [_MARGIN + step * number for number in range(len(points))]
    body = [
        svg.path("axis", f"M{xs[0]:.1f} {_AXIS}H{xs[-1]:.1f}"),
        *_bands(bisection, xs),
    ]
    labels, taken, longest = 0, -_APART, 0
    for x, point in zip(xs, points, strict=True):
        verdict = point.verdict
        word, _, fill = _LOOKS[verdict] if verdict else ("not run", "", "tick")
        hint = f"{point.label}: {word}" + (", declared affected" * point.declared)
        body.append(
            svg.circle(fill, x, _AXIS, 9 if verdict else 2.5, one_line(hint, 300))
        )
        if verdict is None:
            continue
        body.append(svg.text(x, _AXIS + 4, word[0], "inbar mid"))
        if labels < _MAX_LABELS:
            taken, labels = max(x, taken + _APART), labels + 1
            name = one_line(point.label, 22)
            longest = max(longest, len(name))
            place = f"translate({taken - 3:.1f} {_AXIS + 22}) rotate(60)"
            body.append(svg.tag("text", name, cls="tick", transform=place))
    label = (
        f"{len(points)} points from old to new, those that were run marked with their "
        "verdict"
    )
    return svg.svg(_AXIS + 36 + 6 * longest, label, body)


def _bands(bisection: Bisection, xs: Sequence[float]) -> Iterator[Markup]:
    """A band between the two sides of each boundary, and what it is."""
    names = [point.name for point in bisection.points]
    for level, (direction, side) in enumerate(bisection.sides):
        if len(side.between) != 2 or not set(side.between) <= set(names):
            continue
        left, right = (xs[names.index(name)] for name in side.between)
        middle, top = (left + right) / 2, 20 + 22 * level
        yield svg.rect("b1", left, top + 8, max(1.0, right - left), _AXIS - top - 8)
        yield svg.path("grid", f"M{middle:.1f} {top + 6}V{_AXIS}")
        anchor = (
            "end" if middle > _WIDTH * 0.66 else "mid" if middle > _WIDTH * 0.25 else ""
        )
        told = f"{direction}: {_answer(bisection, direction, side)}"
        yield svg.text(middle, top, told, f"name {anchor}")


KIND: Final = kind(Bisection, BISECTION_FILE, compose)
