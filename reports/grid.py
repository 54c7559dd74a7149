"""The jobs of a nightly run as squares: what each came to, what that means, and their picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Final, NamedTuple

from markupsafe import Markup
from mmrepro.base.records import Fidelity
from mmrepro.base.text.sanitize import one_line
from mmrepro.base.units import duration
from mmrepro.failure.documents.ledger import Attempt, Cell, Event, EventKind, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history.concerns import Entry
from mmrepro.history.states import VERDICTS, Settled, State
from mmrepro.reports import words
from mmrepro.reports.blocks import Block, Row as TableRow, Tone, count, slug, table
from mmrepro.reports.svg import circle, path, rect, tag, text
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


class Standing(StrEnum):
    """What a square means to a reader: each has exactly one."""

    SURPRISE = "surprise"
    FLAKY = "flaky"
    UNTESTED = "untested"
    QUARANTINED = "quarantined"
    """Not as expected or flaky, and known: it runs, and turns nothing red."""
    EXPECTED = "expected"
    UNJUDGED = "unjudged"
    """It has a verdict, and none was expected."""

    @property
    def words(self) -> str:
        return "not as expected" if self is Standing.SURPRISE else self.value


class Look(NamedTuple):
    """How a state is shown: never by its colour alone."""

    word: str
    mark: str
    tone: Tone
    meaning: str


LOOKS: Final[dict[State, Look]] = {
    State.REPRODUCED: Look("reproduced", "✘", "bad", "the release has this failure: symptom and "
                           "cause were observed"),
    State.NOT_REPRODUCED: Look("not reproduced", "✔", "good", "the trigger arrived, nothing "
                               "failed, the engine still works"),
    State.DIFFERENT_FAILURE: Look("different failure", "◆", "bad", "it fails, and not for the "
                                  "cause that the scenario names"),
    State.INCONCLUSIVE: Look("inconclusive", "?", "unsure", "too little was observed to say"),
    State.FLAKY: Look("flaky", "≈", "unsure", "both verdicts at an unchanged key; k of n runs "
                      "reproduced it"),
    State.LOST: Look("lost", "∅", "unsure", "no run reached a verdict: nothing was learnt"),
    State.MISSING: Look("did not run", "–", "unsure", "planned, and no run was made of it"),
}  # fmt: skip
EVENTS: Final[dict[EventKind, tuple[str, Tone]]] = {
    EventKind.BUG_RETURNED: ("bug returned", "bad"),
    EventKind.NEW_RELEASE_AFFECTED: ("new release affected", "bad"),
    EventKind.DIFFERENT_FAILURE: ("different failure", "bad"),
    EventKind.DRIFT: ("drift", "bad"),
    EventKind.FLAKY: ("flaky", "unsure"),
    EventKind.COVERAGE_LOST: ("coverage lost", "unsure"),
    EventKind.NIGHT_MISSING: ("nightly run missing", "unsure"),
    EventKind.FIXED_IN: ("fixed", "good"),
    EventKind.NEW_RELEASE: ("new release", "soft"),
}
"""Words and tone of each, in the order in which they are shown."""


def letters(fidelity: Fidelity) -> str:
    """``cs``-like initials, which stand in a square whose row has another fidelity."""
    return "".join(word[0] for word in fidelity.value.split("-"))


class Column(NamedTuple):
    """A release of an engine, or a commit of it."""

    release: str
    commit: str = ""

    @property
    def label(self) -> str:
        return f"{self.release} {self.commit[:9]}".strip()

    @property
    def order(self) -> tuple[bool, Version, str, str]:
        """By version; what is none comes last."""
        try:
            return (False, Version(self.release), self.release, self.commit)
        except InvalidVersion:
            return (True, Version("0"), self.release, self.commit)


@dataclass(frozen=True)
class Square:
    """A job of the plan, and all that this nightly run knows of it."""

    planned: Planned
    settled: Settled
    attempts: Sequence[Attempt]
    quarantine: Entry | None = None
    events: Sequence[Event] = ()

    @property
    def cell(self) -> Cell:
        return self.planned.cell

    @property
    def column(self) -> Column:
        return Column(self.cell.release, self.cell.commit)

    @property
    def place(self) -> str:
        return f"{self.cell.engine} {self.column.label}"

    @property
    def anchor(self) -> str:
        return slug(f"c-{self.cell.id}")

    @property
    def state(self) -> State:
        return self.settled.state

    @cached_property
    def standing(self) -> Standing:
        if self.state is not State.FLAKY and self.state not in VERDICTS:
            return Standing.UNTESTED
        if self.state is State.FLAKY or self.odd:
            loud = Standing.FLAKY if self.state is State.FLAKY else Standing.SURPRISE
            return Standing.QUARANTINED if self.quarantine else loud
        return Standing.UNJUDGED if self.expected is None else Standing.EXPECTED

    @property
    def odd(self) -> bool:
        """Whether it has a verdict that was not expected, quarantined or not."""
        return self.state in VERDICTS and self.settled.as_expected is False

    @property
    def fidelity(self) -> Fidelity | None:
        return next((a.fidelity for a in reversed(self.attempts) if a.fidelity), None)

    @property
    def seconds(self) -> float:
        return sum(a.seconds for a in self.attempts if words.sane(a.seconds))

    @property
    def mark(self) -> str:
        """``✘``, or ``≈2/3`` of a flaky one; ``!``: not as expected; ``q``: in quarantine."""
        s = self.settled
        flaky = self.state is State.FLAKY
        sign = LOOKS[self.state].mark + f"{s.reproduced}/{s.conclusive}" * flaky
        if self.quarantine is not None:
            return f"{sign} q"
        return f"{sign} !" if self.standing is Standing.SURPRISE else sign

    @property
    def words(self) -> str:
        """E.g. ``flaky: 3 of 8 reproduced (14–69 %)``."""
        s = self.settled
        if self.state is not State.FLAKY:
            return LOOKS[self.state].word
        interval = f"{100 * s.low:.0f}–{100 * s.high:.0f} %"
        return f"flaky: {s.reproduced} of {s.conclusive} reproduced ({interval})"

    @property
    def expected(self) -> Outcome | None:
        """As the runs had it, by which they are judged; without a run, as the plan had it."""
        return self.settled.expected or self.planned.expected

    @property
    def expectation(self) -> str:
        """``as expected``, or what was expected instead."""
        if self.expected is None:
            return "nothing was expected"
        if self.settled.as_expected:
            return "as expected"
        return f"expected: {words.outcome(self.expected)}"

    @property
    def why(self) -> str:
        """What the run that decides the state reports."""
        run = self.deciding
        return (run.explanation or run.error) if run else self.settled.why

    @property
    def deciding(self) -> Attempt | None:
        """The newest run that has the state of the square; the newest of all where none has."""
        same = [a for a in self.attempts if a.outcome and a.outcome.value == self.state.value]
        runs = same or list(self.attempts)
        return runs[-1] if runs else None

    @property
    def title(self) -> str:
        """All that matters of the square, in one line."""
        s = self.settled
        parts = [f"{self.place}, {self.cell.row}", self.words, self.expectation]
        if s.conclusive > 1 and self.state is not State.FLAKY:
            parts.append(f"{s.reproduced} of {s.conclusive} runs reproduced it")
        if s.lost:
            parts.append(f"{count(s.lost, 'run')} lost")
        if self.quarantine is not None:
            parts.append(self.quarantine.says)
        if self.fidelity is not None:
            parts.append(f"fidelity {self.fidelity}")
        if self.attempts:
            parts.append(duration(self.seconds))
        return "; ".join(parts)


def outcome_words(attempt: Attempt) -> str:
    return words.attempt(attempt, "lost")


def report_href(attempt: Attempt | None) -> str:
    """Address of a run's report below the ledger's folder; empty unless it plainly lies there."""
    folder = attempt.incident if attempt is not None else ""
    plainly = re.fullmatch(r"incidents/[A-Za-z0-9+._/-]{1,400}", folder)
    return f"{folder}/report.html" if plainly and not {"..", ".", ""} & {*folder.split("/")} else ""


def affects(specifier: str, release: str) -> bool:
    """Whether the declared range has that release; nothing declared or no version: no."""
    try:
        known = SpecifierSet(specifier)
        return bool(specifier.strip()) and known.contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def state_words(squares: Iterable[Square]) -> list[str]:
    """``14 reproduced``, for each state that there is."""
    found = Counter(square.state for square in squares)
    return [f"{found[state]} {LOOKS[state].word}" for state in State if found[state]]


class Point:
    """One nightly run of a trend."""

    def __init__(self, night: str, squares: Sequence[Square]) -> None:
        self.night = night
        self.counts = Counter(s.state for s in squares)
        self.total = len(squares)
        self.surprises = sum(s.odd for s in squares)
        self.seconds = sum(s.seconds for s in squares)
        odd = f", {self.surprises} not as expected" if self.surprises else ""
        self.text = f"{', '.join(state_words(squares)) or 'no jobs'}{odd}; {duration(self.seconds)}"


@dataclass
class Row:
    """A scenario with all that is set for it, over the releases."""

    planned: Planned
    squares: dict[Column, Square] = field(default_factory=dict)
    trend: list[Point] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.planned.cell.row

    @property
    def fidelity(self) -> Fidelity | None:
        """The one that most of its squares have."""
        known = Counter(s.fidelity for s in self.squares.values() if s.fidelity)
        return known.most_common(1)[0][0] if known else None

    @property
    def ranges(self) -> str:
        """Neighbours that came out alike, together: ``✘ 0.14.0–0.23.0 (4), ✔ 0.24.0``."""
        parts = []
        for mark, group in groupby(self.squares.items(), key=lambda item: item[1].mark):
            names = [one_line(column.label, 40) for column, _ in group]
            several = f"–{names[-1]} ({len(names)})" if len(names) > 1 else ""
            parts.append(f"{mark} {names[0]}{several}")
        return ", ".join(parts) or "–"


@dataclass
class Grid:
    """The rows and releases of one engine, the oldest release first."""

    engine: str
    columns: list[Column]
    rows: list[Row]

    @property
    def squares(self) -> list[Square]:
        return [s for row in self.rows for s in row.squares.values()]

    def band(self, row: Row) -> dict[Column, str]:
        """The releases that the scenario declares as affected, each with its place in the range."""
        inside = [affects(row.planned.affected, c.release) for c in self.columns]
        ends = [False, *inside, False]
        return {
            column: "band" + " first" * (not ends[n]) + " last" * (not ends[n + 2])
            for n, column in enumerate(self.columns)
            if inside[n]
        }

    def table(self) -> list[Block]:
        """The picture in words: one line a row, by ranges of releases, which fit any width."""
        heads = (
            *("scenario:name", "declared:name", "what came out, oldest release first:name"),
            *("fidelity:name", "took:number"),
        )
        rows = [
            TableRow(
                (
                    row.name,
                    row.planned.affected,
                    row.ranges,
                    row.fidelity or "",
                    duration(sum(s.seconds for s in row.squares.values())),
                ),
                "bad" if any(s.standing is Standing.SURPRISE for s in row.squares.values()) else "",
            )
            for row in self.rows
        ]
        return table(heads, rows, f"{self.engine}: scenarios by release")


def grids_of(squares: Iterable[Square]) -> list[Grid]:
    engines: dict[str, dict[str, Row]] = {}
    for square in squares:
        rows = engines.setdefault(square.cell.engine, {})
        row = rows.setdefault(square.cell.line, Row(square.planned))
        row.squares[square.column] = square
    grids = []
    for engine, rows in sorted(engines.items()):
        named = sorted(rows.items(), key=lambda i: (i[1].name, i[1].planned.cell.device, i[0]))
        found = {column for row in rows.values() for column in row.squares}
        order = sorted(found, key=lambda column: column.order)
        for row in rows.values():
            row.squares = {column: row.squares[column] for column in order if column in row.squares}
        grids.append(Grid(engine, order, [row for _, row in named]))
    return grids


# ------------------------------------------------------------------------------------ pictures

STACK: Final = (*(s for s in State if s is not State.NOT_REPRODUCED), State.NOT_REPRODUCED)
"""The states in a bar, from its top: what is good is its ground."""


def drawing(
    grids: Sequence[Grid],
    href: Callable[[Attempt | None], str],
    new: Collection[tuple[str, str]] = (),
) -> Markup:
    """Scenarios × releases of every engine, side by side where they fit.

    Args:
        href: address of a run's report; empty: there is none.
        new: engine and release of what is run for the first time.
    """
    engines = (_engine(grid, href, new) for grid in grids)
    return tag("div", *engines, cls="grids", data_filter=True)


def _engine(
    grid: Grid, href: Callable[[Attempt | None], str], new: Collection[tuple[str, str]]
) -> Markup:
    name, size = one_line(grid.engine, 60), count(len(grid.columns), "release")
    heads = [tag("th", "scenario", cls="row", scope="col")]
    for column in grid.columns:
        fresh = (grid.engine, column.release) in new
        label = tag("span", one_line(column.label, 40) + " new" * fresh, cls="v")
        heads.append(tag("th", label, scope="col", cls="new" * fresh))
    rows = (_line(grid, row, href) for row in grid.rows)
    small = " small" * (len(grid.columns) > 24)
    drawn = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), cls=f"grid{small}")
    region = f"{name}: scenarios by release"
    return tag(
        "div",
        tag("h3", f"{name} ", tag("span", f"{size}, oldest first", cls="soft")),
        tag("div", drawn, cls="gridbox", tabindex=0, role="region", aria_label=region),
        "\n",
        cls="engine",
        data_holds=True,
    )


def _line(grid: Grid, row: Row, href: Callable[[Attempt | None], str]) -> Markup:
    band = grid.band(row)
    affected, title = row.planned.affected, one_line(row.planned.title, 120)
    facts = [f"affected {affected}" if affected else "no range declared", row.fidelity or ""]
    facts += ["GPU"] if row.planned.cell.device == "cuda" else []
    what = tag("span", f"{title} · ", cls="what") if title else ""
    small = tag("small", what, one_line(" · ".join(filter(None, facts)), 160))
    cells = [tag("th", one_line(row.name, 160), small, cls="row", scope="row")]
    for column in grid.columns:
        square = row.squares.get(column)
        inner = _square(square, row, href(square.deciding)) if square else ""
        cells.append(tag("td", inner, cls=band.get(column)))
    mitigated = "mitigated" if row.planned.cell.mitigations else ""
    return tag("tr", *cells, "\n", data_holds=True, cls=mitigated)


def _square(square: Square, row: Row, href: str) -> Markup:
    fidelity = square.fidelity
    odd = letters(fidelity) if fidelity and fidelity != row.fidelity else ""
    mark, _, sign = square.mark.partition(" ")
    small = (sign if sign == "!" else "") + odd
    return tag(
        "a" if href else "span",
        mark,
        tag("small", small) if small else "",
        id=square.anchor,
        cls=_classes(square),
        title=one_line(square.title, 500),
        data_status=LOOKS[square.state].word,
        data_group=one_line(square.cell.engine, 60),
        href=href,
    )


def _classes(square: Square) -> str:
    """State by colour, letter and shape; solid: not as expected; hatched: in quarantine."""
    loud = square.standing in (Standing.SURPRISE, Standing.FLAKY)
    marks = {"loud": loud, "hatched": square.quarantine is not None, "changed": square.events}
    return " ".join(["sq", square.state.value, *(name for name in marks if marks[name])])


def legend(squares: Sequence[Square]) -> Markup:
    """What the signs mean, with the number of squares of each state."""
    found = Counter(square.state for square in squares)
    states = [
        (f"sq {state.value}", look.mark + "k/n" * (state is State.FLAKY),
         f"{found[state]} {look.word}", look.meaning)
        for state, look in LOOKS.items()
        if found[state]
    ]  # fmt: skip
    others = [
        ("swatch", "", "orange band", "the releases that the scenario declares as affected, dashed "
         "where a mitigation should help: a ✔ in it, or a ✘ outside of it, contradicts the range"),
        ("sq reproduced loud", "✘!", "solid, with !", "not as expected"),
        ("sq not-reproduced changed", "✔", "ringed", "one of the changes is of it"),
        ("sq reproduced hatched", "✘", "hatched", "in quarantine: it runs, and turns nothing red"),
    ]  # fmt: skip
    items = (
        tag("div", tag("dt", tag("span", sign, cls=cls)), tag("dd", tag("strong", word), f": {of}"))
        for cls, sign, word, of in [*states, *others]
    )
    return tag("dl", *items, cls="legend")


def chart(trend: Sequence[Point], *, small: bool = False) -> Markup:
    """All jobs of each nightly run as a bar of stacked states; what is odd is marked above it.

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
    return _svg("strip" if small else "bars", trend, wide + gap, 28 if small else 172, groups)


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
    return tag("svg", *body, cls=kind, **size, viewBox=box, role="img", aria_label=label)


def _stack(point: Point, x: float, width: float, y: float, height: float, top: int) -> list[Markup]:
    parts, at = [], y + height * (1 - point.total / top)
    for state in STACK:
        tall = height * point.counts[state] / top
        if tall > 0:
            parts.append(rect(state.value, x, at, width, max(tall - 0.7, 0.4)))
        # A letter where it fits: colour alone is nothing to some readers.
        if width > 20 and tall >= 15:
            label = f"{LOOKS[state].mark} {point.counts[state]}"
            parts.append(text(x + width / 2, at + tall / 2 + 4, label, f"in {state.value}"))
        at += tall
    return parts
