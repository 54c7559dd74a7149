"""The squares of a nightly run drawn: scenarios × releases, the trend, and what the
signs mean."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from markupsafe import Markup
from mmrepro.base.records import Fidelity
from mmrepro.base.text.sanitize import one_line
from mmrepro.base.units import duration
from mmrepro.failure.documents.ledger import Attempt
from mmrepro.history.nightly import NightView
from mmrepro.history.squares import (
    LOOKS,
    Column,
    Grid,
    Point,
    Row,
    Square,
    Standing,
    affects,
)
from mmrepro.history.states import State
from mmrepro.reports import blocks as b
from mmrepro.reports.svg import circle, path, rect, tag, text


def letters(fidelity: Fidelity) -> str:
    """``cs``-like initials, which stand in a square whose row has another fidelity."""
    return "".join(word[0] for word in fidelity.value.split("-"))


def report_href(attempt: Attempt | None) -> str:
    """Address of a run's report below the ledger's folder; empty unless it plainly lies
    there."""
    folder = attempt.incident if attempt is not None else ""
    plainly = re.fullmatch(r"incidents/[A-Za-z0-9+._/-]{1,400}", folder)
    return (
        f"{folder}/report.html"
        if plainly and not {"..", ".", ""} & {*folder.split("/")}
        else ""
    )


def href(night: NightView, attempt: Attempt | None) -> str:
    """Address of a run's report that is there, from the folder; empty for all
    others."""
    address = report_href(attempt)
    return (
        address
        if night.folder and address and (night.folder / address).is_file()
        else ""
    )


def table(grid: Grid) -> list[b.Block]:
    """The picture in words: one line a row, by ranges of releases, which fit any
    width."""
    heads = "scenario:name | declared:name | what came out, oldest release first:name"
    rows = []
    for row in grid.rows:
        took = duration(sum(square.seconds for square in row.squares.values()))
        odd = any(
            square.standing is Standing.SURPRISE for square in row.squares.values()
        )
        cells = (row.name, row.planned.affected, row.ranges, row.fidelity or "", took)
        rows.append(b.row(*cells, tone="bad" if odd else ""))
    return b.table(
        f"{heads} | fidelity:name | took:number",
        rows,
        f"{grid.engine}: scenarios by release",
    )


# ----------------------------------------------------------------------------- pictures

_STACK: Final = (
    *(s for s in State if s is not State.NOT_REPRODUCED),
    State.NOT_REPRODUCED,
)
"""The states in a bar, from its top: what is good is its ground."""


def drawing(night: NightView, new: Collection[tuple[str, str]] = ()) -> Markup:
    """Scenarios × releases of every engine, side by side where they fit.

    ``new``: engine and release of what is run for the first time.
    """
    engines = (_engine(night, grid, new) for grid in night.grids)
    return tag("div", *engines, cls="grids", data_filter=True)


def _engine(night: NightView, grid: Grid, new: Collection[tuple[str, str]]) -> Markup:
    name, size = one_line(grid.engine, 60), b.count(len(grid.columns), "release")
    heads = [tag("th", "scenario", cls="row", scope="col")]
    for column in grid.columns:
        fresh = (grid.engine, column.release) in new
        label = tag("span", one_line(column.label, 40) + " new" * fresh, cls="v")
        heads.append(tag("th", label, scope="col", cls="new" * fresh))
    rows = (_line(night, grid, row) for row in grid.rows)
    small = " small" * (len(grid.columns) > 24)
    drawn = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        cls=f"grid{small}",
    )
    region = f"{name}: scenarios by release"
    title = tag("h3", f"{name} ", tag("span", f"{size}, oldest first", cls="soft"))
    box = tag("div", drawn, cls="gridbox", tabindex=0, role="region", aria_label=region)
    return tag("div", title, box, "\n", cls="engine", data_holds=True)


def band(grid: Grid, row: Row) -> dict[Column, str]:
    """The releases that the scenario declares as affected, each with its place in the
    range."""
    inside = [affects(row.planned.affected, c.release) for c in grid.columns]
    ends = [False, *inside, False]
    return {
        column: "band" + " first" * (not ends[n]) + " last" * (not ends[n + 2])
        for n, column in enumerate(grid.columns)
        if inside[n]
    }


def _line(night: NightView, grid: Grid, row: Row) -> Markup:
    bands, title = band(grid, row), one_line(row.planned.title, 120)
    affected = row.planned.affected
    facts = [
        f"affected {affected}" if affected else "no affected release",
        row.fidelity or "",
    ]
    facts += ["GPU"] if row.planned.cell.device == "cuda" else []
    what = tag("span", f"{title} · ", cls="what") if title else ""
    small = tag("small", what, one_line(" · ".join(filter(None, facts)), 160))
    cells = [tag("th", one_line(row.name, 160), small, cls="row", scope="row")]
    for column in grid.columns:
        square = row.squares.get(column)
        inner = _square(square, row, href(night, square.deciding)) if square else ""
        cells.append(tag("td", inner, cls=bands.get(column)))
    mitigated = "mitigated" if row.planned.cell.mitigations else ""
    return tag("tr", *cells, "\n", data_holds=True, cls=mitigated)


def _square(square: Square, row: Row, address: str) -> Markup:
    """State by colour, letter and shape; solid: not as expected; hatched: in
    quarantine."""
    fidelity = square.fidelity
    odd = letters(fidelity) if fidelity and fidelity != row.fidelity else ""
    mark, _, sign = square.mark.partition(" ")
    small = (sign if sign == "!" else "") + odd
    loud = square.standing in (Standing.SURPRISE, Standing.FLAKY)
    marks = {
        "loud": loud,
        "hatched": square.quarantine is not None,
        "changed": square.events,
    }
    return tag(
        "a" if address else "span",
        mark,
        tag("small", small) if small else "",
        id=square.anchor,
        cls=" ".join(
            ["sq", square.state.value, *(name for name in marks if marks[name])]
        ),
        title=one_line(square.title, 500),
        data_status=LOOKS[square.state].word,
        data_group=one_line(square.cell.engine, 60),
        href=address,
    )


def legend(squares: Sequence[Square]) -> Markup:
    """What the signs mean, with the number of squares of each state."""
    found = Counter(square.state for square in squares)
    states = [
        (
            f"sq {state.value}",
            look.mark + "k/n" * (state is State.FLAKY),
            f"{found[state]} {look.word}",
            look.meaning,
        )
        for state, look in LOOKS.items()
        if found[state]
    ]
    others = [
        (
            "swatch",
            "",
            "orange band",
            "the releases that the scenario declares as affected, dashed "
            "where a mitigation should help: a ✔ in it, or a ✘ outside of it, "
            "contradicts the range",
        ),
        ("sq reproduced loud", "✘!", "solid, with !", "not as expected"),
        ("sq not-reproduced changed", "✔", "ringed", "one of the changes is of it"),
        (
            "sq reproduced hatched",
            "✘",
            "hatched",
            "in quarantine: it runs, and turns nothing red",
        ),
    ]
    items = (
        tag(
            "div",
            tag("dt", tag("span", sign, cls=cls)),
            tag("dd", tag("strong", word), f": {of}"),
        )
        for cls, sign, word, of in [*states, *others]
    )
    return tag("dl", *items, cls="legend")


def chart(trend: Sequence[Point], *, small: bool = False) -> Markup:
    """All jobs of each nightly run as a bar of stacked states; what is odd is marked
    above it.

    ``small``: of one row, without words.
    """
    top = max((point.total for point in trend), default=0) or 1
    wide, gap, y, tall = (12, 2, 6, 22) if small else (62, 10, 22, 110)
    groups = []
    for number, point in enumerate(trend):
        x = number * (wide + gap) + gap / 2
        middle, odd = x + wide / 2, point.surprises
        parts = _stack(point, x, wide, y, tall, top)
        if small and not point.total:
            parts.append(rect("none", x, 26, 12, 2))
        if small and odd:
            parts.append(circle("dot", middle, 3, 2.5))
        if not small:
            parts += [
                text(middle, 14, f"{odd} !" if odd else "–", "odd" if odd else "tick"),
                text(middle, 148, one_line(point.night, 60)[-10:], "tick"),
                text(middle, 164, duration(point.seconds), "tick"),
            ]
        title = tag("title", f"{one_line(point.night, 60)}: {point.text}")
        groups.append(tag("g", title, *parts))
    return _svg(
        "strip" if small else "bars", trend, wide + gap, 28 if small else 172, groups
    )


def pace(trend: Sequence[Point]) -> Markup:
    """How long a row's runs took, one nightly run after the other."""
    known = [(n, p.seconds) for n, p in enumerate(trend) if p.total and p.seconds > 0]
    if len(known) < 2:
        return Markup()
    top = max(seconds for _, seconds in known)
    d = "L".join(f"{n * 14 + 7} {25 - 21 * seconds / top:.1f}" for n, seconds in known)
    return _svg("strip", trend, 14, 28, [path("pace", f"M{d}")])


def trends(grids: Sequence[Grid]) -> Markup:
    """Each row's strip, its durations, and this nightly run in words."""
    rows = (
        tag(
            "tr",
            tag("td", one_line(row.name, 160)),
            tag("td", one_line(grid.engine, 60), cls="tight"),
            tag("td", chart(row.trend, small=True), cls="tight"),
            tag("td", pace(row.trend), cls="tight"),
            tag("td", row.trend[-1].text),
        )
        for grid in grids
        for row in grid.rows
    )
    heads = ("scenario", "engine", "nightly runs", "durations", "this nightly run")
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    return tag("table", head, tag("tbody", *rows))


def _svg(
    kind: str, trend: Sequence[Point], step: int, height: int, body: Iterable[Markup]
) -> Markup:
    label = ". ".join(f"{one_line(p.night, 60)}: {p.text}" for p in trend)
    size = {"width": max(len(trend) * step, 1), "height": height}
    box = "0 0 {width} {height}".format(**size)
    label = f"Oldest first. {label}"
    return tag(
        "svg", *body, cls=kind, **size, viewBox=box, role="img", aria_label=label
    )


def _stack(
    point: Point, x: float, width: float, y: float, height: float, top: int
) -> list[Markup]:
    parts, at = [], y + height * (1 - point.total / top)
    for state in _STACK:
        tall = height * point.counts[state] / top
        if tall > 0:
            parts.append(rect(state.value, x, at, width, max(tall - 0.7, 0.4)))
        # A letter where it fits: colour alone is nothing to some readers.
        if width > 20 and tall >= 15:
            label = f"{LOOKS[state].mark} {point.counts[state]}"
            parts.append(
                text(x + width / 2, at + tall / 2 + 4, label, f"in {state.value}")
            )
        at += tall
    return parts
