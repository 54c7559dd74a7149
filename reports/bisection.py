"""A bisection's report: ``bisection.json`` as a page, with its points on one line."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup
from mmrepro.base.text import one_line
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
    """Compose the page of a bisection."""
    answers = []
    for direction, side in bisection.sides:
        answers.append(_answer(bisection, direction, side))

    over = _subject(bisection)
    failure = bisection.failure and words.sentence(bisection.failure)
    runs = b.count(bisection.runs, "run")
    points = b.count(len(bisection.points), "point")
    return b.Page(
        title=f"Bisection of {over}",
        badge=_badge(bisection),
        subject=f"{over}: {'; '.join(answers)}" if answers else over,
        warning=b.broken_off(failure, began=bool(bisection.runs)),
        card=[*_card(bisection)],
        counts=[
            f"{runs} of {len(bisection.ran)} of {points}",
            duration(bisection.seconds),
        ],
        commands=[("run again", bisection.command)],
        sections=[*_sections(bisection)],
        footer=words.footer(
            f"Bisection {bisection.id}", bisection.created, BISECTION_FILE, words.RUNS
        ),
    )


def _subject(bisection: Bisection) -> str:
    """``ghost-key-eviction over vllm releases``."""
    name = words.scenario_name(bisection.scenario)
    measured = f"{bisection.measure} under " if bisection.measure else ""
    return f"{measured}{name} over {bisection.engine} {bisection.by}s"


def _sections(bisection: Bisection) -> Iterator[b.Section]:
    yield b.Section("Points, old to new", [*_line(bisection)], keep=90)
    for name, side in bisection.sides:
        yield b.Section(f"Where it was {name}", [*_side(bisection, side)], keep=97)

    yield b.Section("Runs next to a boundary", _runs(bisection), keep=80)
    yield b.Section("Every point that was run", [*_points(bisection)], keep=95)
    yield b.Section(
        "What this does not establish", b.bullets(bisection.limits), keep=85
    )
    stand_ins = ((stand_in, "") for stand_in in bisection.stand_ins)
    yield b.Section("Stand-ins", words.stand_ins(stand_ins, ""), keep=60)
    yield b.Section("Repeat one run", _commands(bisection), keep=70)
    yield b.Section("Set-up", [b.Facts(_setup(bisection))], keep=50)


def _badge(bisection: Bisection) -> b.Badge:
    if bisection.state != "complete":
        tones: dict[str, b.Tone] = {"interrupted": "unsure", "failed": "bad"}
        return b.Badge(bisection.state.capitalize(), tones[bisection.state])

    sides = [side for _, side in bisection.sides]
    conclusions = {side.conclusion for side in sides}
    # Without any side all of none are found, and verified.
    found = conclusions <= {SideConclusion.FOUND}
    if found and all(side.verified for side in sides):
        return b.Badge("Found", "good")
    if conclusions & {SideConclusion.FOUND, SideConclusion.RANGE}:
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
    conclusion = side.conclusion.replace("-", " ")
    if side.conclusion is SideConclusion.RANGE:
        return f"{label}: a {conclusion}"
    return f"{label}: {conclusion}"


def _certainty(side: Side) -> str:
    if side.verified:
        return "both sides were run again and agree"
    if side.conclusion is SideConclusion.RANGE:
        return "a range: what lies between cannot be tested"
    return "not verified"


# --------------------------------------------------------------------- the first screen


def _card(bisection: Bisection) -> Iterator[b.Block]:
    for direction, side in bisection.sides:
        yield from _side_in_short(bisection, direction, side)

    rows = []
    for point in _boundary(bisection)[:6]:
        label, verdict, _ = _cells(point)
        rows.append((label, verdict, point.why))

    heads = f"{bisection.by}:name | verdict:name | observed"
    yield from b.table(heads, rows, "the boundaries")


def _side_in_short(
    bisection: Bisection, direction: str, side: Side
) -> Iterator[b.Block]:
    """The answer of one side, how sure it is, and the likeliest place if it is not."""
    text = side.explanation or _answer(bisection, direction, side)
    certainty = f" {_sentence(_certainty(side))}"
    yield b.p(b.strong(_sentence(text)), certainty)
    for chance in side.posterior[:1]:
        name = _short(bisection, chance.last_bad)
        share = f"last bad is {name} with {chance.probability:.1%}"
        yield b.p(f"Runs {_disagree(bisection)}: {share}.", tone="unsure")


def _disagree(bisection: Bisection) -> str:
    return "leave it open" if bisection.measure else "contradict each other"


# ----------------------------------------------------------------------------- sections


def _line(bisection: Bisection) -> Iterator[b.Block]:
    points = bisection.ran
    if not points:
        return
    yield b.p(_MEASURED if bisection.measure else _LEGEND, tone="soft")
    marks = []
    for point in points:
        if point.verdict:
            words_of_verdict = _LOOKS[point.verdict][0]
            marks.append(f"{point.label} {words_of_verdict[0]}")

    caption = "Small: not run. A shaded band lies between the two sides of a boundary."
    yield b.Picture(
        drawing=_drawing(bisection),
        instead=[b.p(" · ".join(marks))],
        caption=caption,
    )


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
        yield from _chances(bisection, side)


def _chances(bisection: Bisection, side: Side) -> Iterator[b.Block]:
    """Where the boundary may lie, after runs that contradicted each other."""
    rate = ""
    if side.rate and not bisection.measure:
        rate = f"; the failure shows in about {side.rate:.0%} of the runs"
    yield b.p(f"Runs {_disagree(bisection)}{rate}. Where the boundary may lie:")
    rows = []
    for chance in side.posterior[:_CHANCES]:
        name = _short(bisection, chance.last_bad)
        rows.append((name, f"{chance.probability:.1%}"))

    heads = "last bad:name | probability:number"
    yield from b.table(heads, rows, "the boundary's place")


def _points(bisection: Bisection) -> Iterator[b.Block]:
    """The points that were run, oldest first."""
    rows = []
    for point in bisection.ran:
        row = b.row(
            *_cells(point),
            duration(sum(run.seconds for run in point.runs)),
            point.why,
            "affected" if point.declared else "–",
            point.uploaded[:10] or "–",
            status=str(point.verdict),
        )
        rows.append(row)

    heads = f"{bisection.by}:name | verdict:name | runs | took:number | observed"
    heads += " | declared:name | uploaded:name"
    yield from b.counted("point", heads, rows, _OPEN_POINTS)


def _cells(point: Point) -> tuple[b.Inline, b.Inline, b.Inline]:
    """Its name, its verdict, and its runs, such as ``2 × reproduced``."""
    name = f"{point.label} {one_line(point.subject, 60)}".strip()
    outcomes = Counter(words.attempt(run, "no verdict") for run in point.runs)
    counts = [f"{number} × {word}" for word, number in outcomes.most_common()]
    runs = ", ".join(counts)
    if point.verdict is None:
        return name, "not run", runs
    word, tone, _ = _LOOKS[point.verdict]
    return name, b.toned(word, tone), runs


def _runs(bisection: Bisection) -> list[b.Block]:
    """Each run of the points next to a boundary."""
    rows: list[Sequence[b.Inline]] = []
    for point in _boundary(bisection):
        for run in point.runs:
            outcome = words.attempt(run, "no verdict")
            observed = run.error or run.explanation
            link = words.run_link(run.incident)
            rows.append((point.label, outcome, observed, duration(run.seconds), link))

    heads = f"{bisection.by}:name | outcome:name | observed | took:number | incident"
    return b.table(heads, rows, "runs next to a boundary")


def _commands(bisection: Bisection) -> list[b.Block]:
    """The command of the first run of each point next to a boundary."""
    commands: dict[str, None] = {}
    for point in _boundary(bisection):
        commands[point.runs[0].command] = None

    lines = [one_line(command, 4000) for command in commands if command]
    return [b.Fence("\n".join(lines[:20]), "sh")] if lines else []


def _setup(bisection: Bisection) -> list[tuple[str, b.Inline]]:
    wheels: dict[str, None] = {}
    fidelities = []
    for point in bisection.points:
        fidelities.append(point.fidelity)
        if point.wheel:
            wheels[f"{point.wheel.project}: {point.wheel.origin}"] = None

    order = "search from the declared boundary on"
    if bisection.linear:
        order = "one after another"
    repeat = str(bisection.repeat) if bisection.repeat else "as many as needed"
    took = duration(bisection.seconds)
    return [
        ("engine", bisection.engine),
        *(("wheels", wheel) for wheel in wheels),
        ("device", bisection.device),
        ("fidelity", words.fidelity_words(*fidelities)),
        ("scenario", b.prose(bisection.scenario.title)),
        ("declared affected", bisection.scenario.affected),
        ("known bad", _short(bisection, bisection.known_bad) or "none"),
        ("points", f"{len(bisection.points)}, {len(bisection.ran)} of them run"),
        ("order", order),
        ("runs of each", repeat),
        ("runs", f"{bisection.runs}, {took} in all, environments included"),
        *words.made_on(bisection.host, bisection.mmrepro_version),
    ]


def _boundary(bisection: Bisection) -> list[Point]:
    """The points next to a boundary that were run, oldest first."""
    wanted: set[str] = set()
    for _, side in bisection.sides:
        wanted.update(side.between, side.one_of)

    return [point for point in bisection.points if point.name in wanted and point.runs]


def _sentence(text: str) -> str:
    """Begin with a capital, unless the text begins with a commit or a release."""
    begins_with_word = text.partition(" ")[0].isalpha()
    return words.sentence(words.capital(text) if begins_with_word else text)


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
    body = [svg.path("axis", f"M{xs[0]:.1f} {_AXIS}H{xs[-1]:.1f}")]
    body += _bands(bisection, xs)

    labels = 0
    longest = 0
    label_x = -_APART
    for x, point in zip(xs, points, strict=True):
        body += _dot(point, x)
        if point.verdict is None or labels == _MAX_LABELS:
            continue
        # A label that has no room at its point moves to the right.
        label_x = max(x, label_x + _APART)
        labels += 1
        name = one_line(point.label, 22)
        longest = max(longest, len(name))
        place = f"translate({label_x - 3:.1f} {_AXIS + 22}) rotate(60)"
        body.append(svg.tag("text", name, cls="tick", transform=place))

    label = (
        f"{len(points)} points from old to new, those that were run marked with their "
        "verdict"
    )
    height = _AXIS + 36 + 6 * longest
    return svg.svg(height, label, body)


def _dot(point: Point, x: float) -> Iterator[Markup]:
    word = "not run"
    fill = "tick"
    radius = 2.5
    if point.verdict:
        word, _, fill = _LOOKS[point.verdict]
        radius = 9

    declared = ", declared affected" if point.declared else ""
    hint = one_line(f"{point.label}: {word}{declared}", 300)
    yield svg.circle(fill, x, _AXIS, radius, hint)
    # The verdict's sign as well: colour alone is nothing to some readers.
    if point.verdict:
        yield svg.text(x, _AXIS + 4, word[0], "inbar mid")


def _bands(bisection: Bisection, xs: Sequence[float]) -> Iterator[Markup]:
    """A band between the two sides of each boundary, and what it is."""
    names = [point.name for point in bisection.points]
    for level, (direction, side) in enumerate(bisection.sides):
        # What names no two points of the document cannot be drawn.
        if len(side.between) != 2 or not set(side.between) <= set(names):
            continue

        left, right = (xs[names.index(name)] for name in side.between)
        middle = (left + right) / 2
        top = 20 + 22 * level
        yield svg.rect(
            "b1",
            x=left,
            y=top + 8,
            width=max(1.0, right - left),
            height=_AXIS - top - 8,
        )
        yield svg.path("grid", f"M{middle:.1f} {top + 6}V{_AXIS}")
        text = f"{direction}: {_answer(bisection, direction, side)}"
        yield svg.text(middle, top, text, f"name {_anchor(middle)}")


def _anchor(x: float) -> str:
    """The side of a text that stands at ``x``: it must not leave the picture."""
    if x > _WIDTH * 0.66:
        return "end"
    return "mid" if x > _WIDTH * 0.25 else ""


KIND: Final = kind(Bisection, BISECTION_FILE, compose)
