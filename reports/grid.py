"""The squares of a nightly run drawn: scenarios × releases, the trend, and what the
signs mean."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from markupsafe import Markup
from mmrepro.base.records import Fidelity
from mmrepro.base.text import one_line
from mmrepro.base.units import duration
from mmrepro.failure.documents import Attempt
from mmrepro.history import (
    SQUARE_LOOKS,
    Grid,
    JobState,
    NightView,
    ReleaseColumn,
    ScenarioRow,
    Square,
    SquareStanding,
    TrendPoint,
    affects,
)
from mmrepro.reports import blocks as b
from mmrepro.reports.svg import circle, path, rect, tag, text


def letters(fidelity: Fidelity) -> str:
    """``cs``-like initials, which stand in a square whose row has another fidelity."""
    return "".join(word[0] for word in fidelity.value.split("-"))


def report_href(attempt: Attempt | None) -> str:
    """Address of a run's report below the ledger's folder; empty unless it plainly lies
    there."""
    folder = attempt.incident if attempt is not None else ""
    if not re.fullmatch(r"incidents/[A-Za-z0-9+._/-]{1,400}", folder):
        return ""
    # A ledger may be somebody else's: no link leads out of its folder.
    if {"..", ".", ""} & {*folder.split("/")}:
        return ""
    return f"{folder}/report.html"


def href(night: NightView, attempt: Attempt | None) -> str:
    """Address of a run's report that is there, from the folder; empty for all
    others."""
    address = report_href(attempt)
    if not address or not night.folder:
        return ""
    return address if (night.folder / address).is_file() else ""


def table(grid: Grid) -> list[b.Block]:
    """The picture in words: one line a row, by ranges of releases, which fit any
    width."""
    rows = []
    for row in grid.rows:
        squares = row.squares.values()
        odd = any(square.standing is SquareStanding.SURPRISE for square in squares)
        cells = b.row(
            row.name,
            row.planned.affected,
            row.ranges,
            row.fidelity or "",
            duration(sum(square.seconds for square in squares)),
            tone="bad" if odd else "",
        )
        rows.append(cells)

    heads = "scenario:name | declared:name | what came out, oldest release first:name"
    heads += " | fidelity:name | took:number"
    return b.table(heads, rows, f"{grid.engine}: scenarios by release")


# ----------------------------------------------------------------------------- pictures

_STACK: Final = (
    *(s for s in JobState if s is not JobState.NOT_REPRODUCED),
    JobState.NOT_REPRODUCED,
)
"""The states in a bar, from its top: what is good is its ground."""
_OTHER_SIGNS: Final = (
    (
        "swatch",
        "",
        "orange band",
        "the releases that the scenario declares as affected, dashed "
        "where a mitigation should help: a ✔ in it, or a ✘ outside of it, "
        "contradicts the range",
    ),
    ("sq reproduced loud", "✘!", "solid, with !", "not as expected"),
    ("sq not-reproduced changed", "✔", "ringed", "changed since the last nightly run"),
    (
        "sq reproduced hatched",
        "✘",
        "hatched",
        "quarantined: it runs, and never fails the night",
    ),
)
"""Class, sign, name and meaning of what the legend explains besides the states."""


def drawing(night: NightView, new: Collection[tuple[str, str]] = ()) -> Markup:
    """Scenarios × releases of every engine, side by side where they fit.

    ``new``: engine and release of what is run for the first time.
    """
    engines = (_engine(night, grid, new) for grid in night.grids)
    return tag("div", *engines, cls="grids", data_filter=True)


def _engine(night: NightView, grid: Grid, new: Collection[tuple[str, str]]) -> Markup:
    name = one_line(grid.engine, 60)
    rows = [_line(night, grid, row) for row in grid.rows]
    # Many columns are drawn small, so that they fit a screen.
    cls = "grid small" if len(grid.columns) > 24 else "grid"
    drawn = tag("table", _grid_head(grid, new), tag("tbody", *rows), cls=cls)

    size = b.count(len(grid.columns), "release")
    title = tag("h3", f"{name} ", tag("span", f"{size}, oldest first", cls="soft"))
    box = tag(
        "div",
        drawn,
        cls="gridbox",
        tabindex=0,
        role="region",
        aria_label=f"{name}: scenarios by release",
    )
    return tag("div", title, box, "\n", cls="engine", data_holds=True)


def _grid_head(grid: Grid, new: Collection[tuple[str, str]]) -> Markup:
    """The releases; those that are run for the first time are marked."""
    heads = [tag("th", "scenario", cls="row", scope="col")]
    for column in grid.columns:
        label = one_line(column.label, 40)
        cls = ""
        if (grid.engine, column.release) in new:
            label += " new"
            cls = "new"
        heads.append(tag("th", tag("span", label, cls="v"), scope="col", cls=cls))

    return tag("thead", tag("tr", *heads))


def band(grid: Grid, row: ScenarioRow) -> dict[ReleaseColumn, str]:
    """The releases that the scenario declares as affected, each with its place in the
    range."""
    affected = row.planned.affected
    inside = [affects(affected, column.release) for column in grid.columns]
    # One more at either end, so that each column has neighbours.
    padded = [False, *inside, False]
    bands = {}
    for number, column in enumerate(grid.columns):
        if not inside[number]:
            continue
        first = "" if padded[number] else " first"
        last = "" if padded[number + 2] else " last"
        bands[column] = f"band{first}{last}"

    return bands


def _line(night: NightView, grid: Grid, row: ScenarioRow) -> Markup:
    bands = band(grid, row)
    cells = [_row_head(row)]
    for column in grid.columns:
        square = row.squares.get(column)
        inner: Markup | str = ""
        if square:
            inner = _square(square, row, href(night, square.deciding))
        cells.append(tag("td", inner, cls=bands.get(column)))

    mitigated = "mitigated" if row.planned.cell.mitigations else ""
    return tag("tr", *cells, "\n", data_holds=True, cls=mitigated)


def _row_head(row: ScenarioRow) -> Markup:
    planned = row.planned
    title = one_line(planned.title, 120)
    facts = ["no affected release"]
    if planned.affected:
        facts = [f"affected {planned.affected}"]
    if row.fidelity:
        facts.append(row.fidelity)
    if planned.cell.device == "cuda":
        facts.append("GPU")
    what = tag("span", f"{title} · ", cls="what") if title else ""
    small = tag("small", what, one_line(" · ".join(facts), 160))
    return tag("th", one_line(row.name, 160), small, cls="row", scope="row")


def _square(square: Square, row: ScenarioRow, address: str) -> Markup:
    """State by colour, letter and shape; solid: not as expected; hatched: in
    quarantine."""
    mark, _, sign = square.mark.partition(" ")
    small = sign if sign == "!" else ""
    if square.fidelity and square.fidelity != row.fidelity:
        small += letters(square.fidelity)
    return tag(
        "a" if address else "span",
        mark,
        tag("small", small) if small else "",
        id=square.anchor,
        cls=" ".join(_square_classes(square)),
        title=one_line(square.title, 500),
        data_status=SQUARE_LOOKS[square.state].word,
        data_group=one_line(square.cell.engine, 60),
        href=address,
    )


def _square_classes(square: Square) -> Iterator[str]:
    yield "sq"
    yield square.state.value
    if square.standing in (SquareStanding.SURPRISE, SquareStanding.FLAKY):
        yield "loud"
    if square.quarantine is not None:
        yield "hatched"
    if square.events:
        yield "changed"


def legend(squares: Sequence[Square]) -> Markup:
    """What the signs mean, with the number of squares of each state."""
    counts = Counter(square.state for square in squares)
    items = []
    for state, look in SQUARE_LOOKS.items():
        if counts[state]:
            sign = look.mark + ("k/n" if state is JobState.FLAKY else "")
            word = f"{counts[state]} {look.word}"
            items.append(_sign(f"sq {state.value}", sign, word, look.meaning))

    for cls, sign, word, meaning in _OTHER_SIGNS:
        items.append(_sign(cls, sign, word, meaning))

    return tag("dl", *items, cls="legend")


def _sign(cls: str, sign: str, word: str, meaning: str) -> Markup:
    term = tag("dt", tag("span", sign, cls=cls))
    return tag("div", term, tag("dd", tag("strong", word), f": {meaning}"))


def chart(trend: Sequence[TrendPoint], *, small: bool = False) -> Markup:
    """All jobs of each nightly run as a bar of stacked states; what is odd is marked
    above it.

    ``small``: of one row, without words.
    """
    top = max((point.total for point in trend), default=0) or 1
    draw = _small_bar if small else _bar
    step = 14 if small else 72
    groups = []
    for number, point in enumerate(trend):
        title = tag("title", f"{one_line(point.night, 60)}: {point.text}")
        groups.append(tag("g", title, *draw(point, number * step, top)))

    if small:
        return _svg("strip", trend, step, 28, groups)
    return _svg("bars", trend, step, 172, groups)


def _small_bar(point: TrendPoint, left: float, top: int) -> Iterator[Markup]:
    x = left + 1.0
    yield from _stack(point, x, 12, 6, 22, top)
    if not point.total:
        yield rect("none", x, 26, 12, 2)
    if point.surprises:
        yield circle(
            "dot",
            x=x + 6,
            y=3,
            radius=2.5,
        )


def _bar(point: TrendPoint, left: float, top: int) -> Iterator[Markup]:
    x = left + 5.0
    middle = x + 31
    yield from _stack(point, x, 62, 22, 110, top)
    if point.surprises:
        yield text(middle, 14, f"{point.surprises} !", "odd")
    else:
        yield text(middle, 14, "–", "tick")

    # The last characters of a night's name are its date.
    date = one_line(point.night, 60)[-10:]
    yield text(middle, 148, date, "tick")
    yield text(middle, 164, duration(point.seconds), "tick")


def pace(trend: Sequence[TrendPoint]) -> Markup:
    """How long a row's runs took, one nightly run after the other."""
    known = []
    for number, point in enumerate(trend):
        if point.total and point.seconds > 0:
            known.append((number, point.seconds))

    if len(known) < 2:
        return Markup()
    top = max(seconds for _, seconds in known)
    places = []
    for number, seconds in known:
        places.append(f"{number * 14 + 7} {25 - 21 * seconds / top:.1f}")

    return _svg("strip", trend, 14, 28, [path("pace", f"M{'L'.join(places)}")])


def trends(grids: Sequence[Grid]) -> Markup:
    """Each row's strip, its durations, and this nightly run in words."""
    rows = []
    for grid in grids:
        engine = one_line(grid.engine, 60)
        for row in grid.rows:
            cells = [
                tag("td", one_line(row.name, 160)),
                tag("td", engine, cls="tight"),
                tag("td", chart(row.trend, small=True), cls="tight"),
                tag("td", pace(row.trend), cls="tight"),
                tag("td", row.trend[-1].text),
            ]
            rows.append(tag("tr", *cells))

    heads = []
    for name in ("scenario", "engine", "nightly runs", "durations", "this nightly run"):
        heads.append(tag("th", name, scope="col"))

    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows))


def _svg(
    kind: str,
    trend: Sequence[TrendPoint],
    step: int,
    height: int,
    body: Iterable[Markup],
) -> Markup:
    nights = ". ".join(f"{one_line(point.night, 60)}: {point.text}" for point in trend)
    width = max(len(trend) * step, 1)
    return tag(
        "svg",
        *body,
        cls=kind,
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"Oldest first. {nights}",
    )


def _stack(
    point: TrendPoint, x: float, width: float, y: float, height: float, top: int
) -> Iterator[Markup]:
    """A bar of the states, its height in proportion to ``top``."""
    y += height * (1 - point.total / top)
    for state in _STACK:
        tall = height * point.counts[state] / top
        if tall > 0:
            yield rect(
                state.value,
                x=x,
                y=y,
                width=width,
                height=max(tall - 0.7, 0.4),
            )
        # A letter where it fits: colour alone is nothing to some readers.
        if width > 20 and tall >= 15:
            label = f"{SQUARE_LOOKS[state].mark} {point.counts[state]}"
            yield text(x + width / 2, y + tall / 2 + 4, label, f"in {state.value}")

        y += tall
