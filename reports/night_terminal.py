"""What a person sees of nights on a terminal: one night, what changed, the rows' histories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from mmrepro.base.units import duration
from mmrepro.history.ledger import History
from mmrepro.history.states import VERDICTS, State, settle
from mmrepro.incident.ledger import Cell, Event
from mmrepro.reports import night_words as words
from mmrepro.reports.lines import TONES, Printer
from mmrepro.reports.night_square import Column, Square
from mmrepro.reports.night_view import Grid, NightView, Row
from mmrepro.reports.night_words import Standing, plural
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STATE_TONES: Final[dict[State, str]] = {
    State.REPRODUCED: "red",
    State.NOT_REPRODUCED: "green",
    State.DIFFERENT_FAILURE: "magenta",
    State.INCONCLUSIVE: "yellow",
    State.FLAKY: "bold yellow",
    State.LOST: "yellow",
    State.MISSING: "yellow",
}
MAX_LINES: Final = 40


def print_night(night: NightView, console: Console) -> None:
    """Headline, changes, what is odd, one line a row, how to go on."""
    out = Printer(console)
    head = night.headline
    out.line()
    out.line((head.label.upper(), TONES[head.tone]), f"  {night.title}: {night.changes}", cut=False)
    if night.warning:
        out.line((night.warning, "yellow"), cut=False)
    for note in night.notes[:MAX_LINES]:
        out.line((note, "yellow"), cut=False)
    out.line(f"{night.counts}. {night.scale}", cut=False)
    if night.events:
        out.heading("What changed")
        _events(night.events, out)
    if night.shifted:
        out.line(night.shifted, cut=False)
    for standing in (Standing.SURPRISE, Standing.FLAKY, Standing.UNTESTED, Standing.QUARANTINED):
        _squares(standing, night.standing(standing), out)
    for grid in night.grids:
        out.heading(grid.engine)
        console.print(grid_table(grid))
    out.line("  again:  ", night.runs.night.command, cut=False)


def print_events(
    events: Sequence[Event], console: Console, before: str = "", now: str = ""
) -> None:
    """What changed from one night to another."""
    out = Printer(console)
    if before and now:
        count = len(events)
        told = f"{count} {plural(count, 'change')}" if count else "Nothing changed"
        out.line((told, "bold"), f" from night {before} to {now}")
    _events(sorted(events, key=lambda e: list(words.EVENT_TONES).index(e.what)), out, limit=0)


def print_history(history: History, console: Console, scenario: str = "") -> None:
    """Each line of cells over the nights, oldest first; of one scenario, each cell of it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Printer(console)
    nights = history.nights
    strips = strips_of(history, scenario, cells=bool(scenario))
    if not strips:
        named = f" of {scenario}" if scenario else ""
        out.line(f"No night of this ledger has a cell{named}.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("engine", "scenario" if not scenario else "cell", "nights", "newest"):
        table.add_column(title, overflow="fold", no_wrap=title in ("engine",))
    for engine, name, squares in strips:
        strip = Text()
        for group in squares:
            strip.append_text(_night_mark(group, bool(scenario)))
        newest = next((g for g in reversed(squares) if g), [])
        table.add_row(one_line(engine, 40), Text(one_line(name, 120)), strip, Text(_told(newest)))
    out.line(f"{len(nights)} {plural(len(nights), 'night')}: {nights[0].night.id} … "
             f"{nights[-1].night.id}, oldest first")  # fmt: skip
    console.print(table)
    shown = list(State) if scenario else [s for s in State if s not in VERDICTS]
    told = ", ".join(f"{words.MARKS[s]} {words.STATE_WORDS[s]}" for s in shown)
    if not scenario:
        told = f"= every release as expected, ! one of them not, else {told}"
    out.line((f"{told}; _ no cell in that night", "dim"), cut=False)


def strips_of(
    history: History, scenario: str = "", *, cells: bool = False
) -> list[tuple[str, str, list[list[Square]]]]:
    """Engine, name and, night after night, the squares of each line; or of each cell."""
    nights = history.nights
    names: dict[str, Cell] = {}
    found: dict[str, list[list[Square]]] = {}
    for number, runs in enumerate(nights):
        for key, planned in runs.planned.items():
            if scenario and planned.cell.scenario != scenario:
                continue
            group = key if cells else planned.cell.line
            names[group] = planned.cell
            attempts = runs.attempts_of(key)
            strip = found.setdefault(group, [[] for _ in nights])
            strip[number].append(Square(planned, settle(attempts), attempts))

    def order(group: str) -> tuple[object, ...]:
        cell = names[group]
        column = Column(cell.release, cell.commit).order if cells else ()
        return (cell.engine, cell.row, column, group)

    def name(cell: Cell) -> str:
        return f"{cell.row} on {Column(cell.release, cell.commit).label}" if cells else cell.row

    return [(names[g].engine, name(names[g]), found[g]) for g in sorted(names, key=order)]


def grid_table(grid: Grid) -> Table:
    """A line a row: what came out, told by ranges of releases, so that it fits any width."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("scenario", "declared", "what came out, oldest release first", "took"):
        table.add_column(title, overflow="fold", no_wrap=title == "took")
    for row in grid.rows:
        told = Text(", ").join(_ranges(row)) if row.squares else Text("–")
        seconds = sum(s.seconds for s in row.squares.values())
        table.add_row(
            Text(one_line(row.name, 120)),
            Text(one_line(row.affected, 60) or "–"),
            told,
            duration(seconds),
        )
    return table


def _ranges(row: Row) -> Iterable[Text]:
    """Neighbours that came out alike, together: ``✘ 0.14.0–0.23.0 (4)``."""
    from rich.text import Text

    def alike(item: tuple[Column, Square]) -> tuple[str, ...]:
        _, square = item
        return (square.words, square.standing.value, str(square.quarantine is not None))

    for _, group in groupby(row.squares.items(), key=alike):
        items = list(group)
        first, square = items[0]
        names = one_line(first.label, 40)
        if len(items) > 1:
            names += f"–{one_line(items[-1][0].label, 40)} ({len(items)})"
        mark = words.MARKS[square.state] + (f" {square.ratio}" if square.ratio else "")
        if square.quarantine is not None:
            mark += " q"
        elif square.standing is Standing.SURPRISE:
            mark += " !"
        style = STATE_TONES[square.state]
        if square.standing is Standing.SURPRISE:
            style = f"bold reverse {style}"
        yield Text.assemble((mark, style), f" {names}")


def _events(events: Sequence[Event], out: Printer, limit: int = MAX_LINES) -> None:
    for event in events[: limit or None]:
        tone = TONES[words.EVENT_TONES[event.what]]
        out.line("  ", (words.EVENT_WORDS[event.what], tone), f": {event.text}", cut=False)
    if limit and len(events) > limit:
        out.line((f"  … {len(events) - limit} more", "dim"))


def _squares(standing: Standing, squares: Sequence[Square], out: Printer) -> None:
    if not squares:
        return
    title = words.STANDING_WORDS[standing]
    out.heading(f"{title[:1].upper()}{title[1:]} ({len(squares)})")
    for s in squares[:MAX_LINES]:
        told = f"{s.words}, {s.expectation}" if s.expected else s.words
        if s.quarantine is not None:
            told += f"; {s.quarantine.reason} (until {s.quarantine.expires})"
        where = f" {s.cell.row} on {s.cell.engine} {s.column.label}: "
        out.line("  ", (words.MARKS[s.state], STATE_TONES[s.state]), where, told, cut=False)
        if standing is not Standing.UNTESTED and len(s.attempts) > 1:
            out.line(("      every run: ", "dim"), s.runs, cut=False)
        elif standing is Standing.UNTESTED and s.attempts:
            out.line(("      ", "dim"), s.why)
    if len(squares) > MAX_LINES:
        out.line((f"  … {len(squares) - MAX_LINES} more", "dim"))


def _night_mark(group: Sequence[Square], cells: bool) -> Text:
    """One sign for a night: a cell's state; of a line's releases, what matters most."""
    from rich.text import Text

    if not group:
        return Text("_", "dim")
    odd = any(s.standing is Standing.SURPRISE for s in group)
    if cells:
        style = STATE_TONES[group[0].state]
        return Text(words.MARKS[group[0].state], f"bold reverse {style}" if odd else style)
    if odd:
        return Text("!", "bold red")
    for state in (State.FLAKY, State.LOST, State.INCONCLUSIVE, State.MISSING):
        if any(s.state is state for s in group):
            return Text(words.MARKS[state], STATE_TONES[state])
    return Text("=", "green")


def _told(group: Sequence[Square]) -> str:
    if len(group) == 1:
        return f"{group[0].words}, {group[0].expectation}"
    counts = [(s, sum(q.state is s for q in group)) for s in State]
    told = ", ".join(f"{n} {words.STATE_WORDS[s]}" for s, n in counts if n)
    odd = sum(s.standing is Standing.SURPRISE for s in group)
    return told + (f"; {odd} not as expected" if odd else "")
