"""A night as Markdown: what a GitHub step summary shows. The least important part is cut first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from mmrepro.incident.ledger import Event
from mmrepro.reports import gfm, night_words as words
from mmrepro.reports.night_square import Square
from mmrepro.reports.night_view import Grid, NightView, Row
from mmrepro.reports.night_words import Standing
from mmrepro.text.sanitize import one_line

T = TypeVar("T")
MARKDOWN_FILE: Final = "night.md"
LIMIT: Final = 900_000
"""Bytes; GitHub refuses a step summary of more than 1 MiB."""
REST: Final = "all of it is in dashboard.html and `mmrepro matrix report --format json`"
_NOTE: Final = 300
"""Bytes kept free for what is said of a cut."""


@dataclass
class Section(Generic[T]):
    """A part whose rows may be cut from their end; no more of them is made than is shown.

    ``head`` stands before the rows, in one block with them (a table's head).
    """

    title: str
    head: str
    items: Sequence[T] = ()
    row: Callable[[T], str] = str

    def text(self, budget: int) -> str:
        """At most ``budget`` bytes of it, the cut told; "" where not even its head fits."""
        title = f"## {self.title}\n\n" if self.title else ""
        used = _size(title) + _size(self.head) + _NOTE
        if used > budget:
            return ""
        rows = []
        for item in self.items:
            row = self.row(item)
            used += _size(row) + 1
            if used > budget:
                break
            rows.append(row)
        block = "\n".join([*filter(None, [self.head]), *rows])
        cut = len(self.items) - len(rows)
        told = f"… {cut} more of {len(self.items)} rows were cut here: {REST}." if cut else ""
        return title + "\n\n".join(filter(None, [block, told]))


def render_night_markdown(night: NightView, limit: int = LIMIT) -> str:
    """At most ``limit`` bytes, the most important first."""
    sections: list[Section[Any]] = [_head(night), _changes(night)]
    for standing, title in (
        (Standing.SURPRISE, "Not as expected"),
        (Standing.FLAKY, "Flaky"),
        (Standing.UNTESTED, "Untested: nothing was learnt of these"),
    ):
        squares = night.standing(standing)
        if squares:
            sections.append(_list(f"{title} ({len(squares)})", squares))
    sections += [_matrix(grid) for grid in night.grids]
    if night.grids:
        sections.append(_legend(night))
    if night.quarantined:
        sections.append(_quarantine(night.quarantined))
    sections += [_setup(night), _next(night)]
    return _fitted(sections, limit)


def _fitted(sections: Sequence[Section[Any]], limit: int) -> str:
    """The sections in order, each with what those before it left."""
    left, parts, dropped = limit - 2 * _NOTE, [], []
    for section in sections:
        text = section.text(left)
        if text:
            parts.append(text)
            left -= _size(text) + 2
        else:
            dropped.append(section.title)
    if dropped:
        named = ", ".join(dropped[:4]) + (f" and {len(dropped) - 4} more" if dropped[4:] else "")
        parts.append(f"Left out, this page being full: {named}; {REST}.")
    return "\n\n".join(parts) + "\n"


def _head(night: NightView) -> Section[str]:
    head = night.headline
    parts = [f"# {gfm.text(night.title, 200)}: {gfm.text(night.changes, 300)}"]
    if night.warning:
        parts.append(f"> [!WARNING]\n> {gfm.text(night.warning)}")
    parts += [f"> [!WARNING]\n> {gfm.text(note)}" for note in night.notes[:20]]
    parts.append(
        f"**{gfm.text(head.label.upper(), 200)}** · {gfm.text(f'{night.counts}. {night.scale}')}"
    )
    return Section("", "\n\n".join(parts))


def _changes(night: NightView) -> Section[str]:
    rest = [f"- {gfm.text(night.shifted, 1000)}"] if night.shifted else []
    head = "" if night.events else gfm.text(night.unchanged) + "\n" * bool(rest)
    return Section("What changed", head, [*(_event(e, night) for e in night.events), *rest])


def _event(event: Event, night: NightView) -> str:
    line = f"- **{words.EVENT_WORDS[event.what]}**: {gfm.text(event.text, 800)}"
    if event.before or event.now:
        line += f" ({gfm.text(event.before, 120) or '–'} → {gfm.text(event.now, 120) or '–'})"
    square = night.by_id.get(event.cell)
    run = square.deciding if square is not None else None
    return line + (f"; {gfm.code(run.incident, 300)}" if run is not None and run.incident else "")


def _list(title: str, squares: Sequence[Square]) -> Section[Square]:
    head = ["scenario", "release", "came out", "expected", "every run of it", "says", "incident"]
    return Section(title, gfm.table(head, []), squares, _listed)


def _listed(square: Square) -> str:
    run = square.deciding
    return _row(
        f"**{gfm.cell(square.cell.row)}**",
        _release(square),
        gfm.cell(square.words),
        gfm.cell(square.expectation.removeprefix("expected: ")),
        gfm.cell(square.runs),
        gfm.cell(square.why),
        (gfm.code(run.incident, 300) if run else "") or "–",
    )


def _matrix(grid: Grid) -> Section[Row]:
    def told(row: Row) -> str:
        band = grid.band(row)
        name = f"**{gfm.cell(row.name)}**"
        if row.fidelity:
            name += f" {row.fidelity}"
        marks = []
        for column in grid.columns:
            square = row.squares.get(column)
            text = mark(square) if square else ""
            marks.append(f"[{text}]" if column in band else text)
        return _row(name, *marks)

    head = ["scenario", *(gfm.cell(c.label) for c in grid.columns)]
    title = f"{gfm.text(grid.engine, 60)}: scenarios × releases"
    return Section(title, gfm.table(head, []), grid.rows, told)


def mark(square: Square) -> str:
    """``✘``; ``**✘ !**`` where it is not as expected; ``q`` where it is in quarantine."""
    text = words.MARKS[square.state] + (f" {square.ratio}" if square.ratio else "")
    if square.quarantine is not None:
        return f"{text} q"
    if square.standing is Standing.SURPRISE:
        return f"**{text} !**"
    return text


def _legend(night: NightView) -> Section[str]:
    marks = ", ".join(f"{words.MARKS[s]} {words.STATE_WORDS[s]}" for s in words.MARKS)
    return Section(
        "",
        f"{marks}; **!** not as expected; q in quarantine; [ ] a release that the scenario "
        "declares as affected.",
    )


def _quarantine(squares: Sequence[Square]) -> Section[Square]:
    head = ["scenario", "release", "tonight", "reason", "issue", "owner", "until"]
    return Section(
        "Quarantine: these run, and turn nothing red", gfm.table(head, []), squares, _excused
    )


def _excused(square: Square) -> str:
    entry = square.quarantine
    assert entry is not None
    return _row(
        f"**{gfm.cell(square.cell.row)}**",
        _release(square),
        gfm.cell(square.words),
        gfm.cell(entry.reason),
        gfm.cell(entry.issue),
        gfm.cell(entry.owner),
        gfm.cell(str(entry.expires)),
    )


def _setup(night: NightView) -> Section[str]:
    rows = [_row(name, gfm.cell(value)) for name, value in night.setup]
    return Section("How it was run", gfm.table(["", ""], []), rows)


def _next(night: NightView) -> Section[str]:
    parts = [
        f"To {gfm.text(what, 300)}:\n\n" + gfm.fence(one_line(command, 4000), "sh", 1, 4000)
        for what, command in night.next_commands
    ]
    return Section("Next", "\n\n".join(parts))


def _release(square: Square) -> str:
    return gfm.cell(f"{square.cell.engine} {square.column.label}")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
