"""What a person sees of a bisection: the points as they are run, and the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmrepro.incident.searches import Bisection
from mmrepro.reports import bisection_view as view
from mmrepro.reports.lines import TONES, Printer
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def point_table(bisection: Bisection) -> Table:
    """The points that were run, oldest first. Nothing in it is read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in (bisection.by, "uploaded", "declared", "verdict", "runs", "took", "why"):
        table.add_column(head, overflow="fold", no_wrap=head in (bisection.by, "uploaded"))
    for row in view.rows(bisection):
        cells = [row.name, row.uploaded, row.declared, row.verdict, row.runs, row.took, row.why]
        texts = [Text(one_line(cell, 120)) for cell in cells]
        texts[3].stylize(TONES[row.tone])
        table.add_row(*texts)
    return table


def print_bisection(bisection: Bisection, console: Console, folder: str) -> None:
    """The answer, the points, the notes, where it is and what to type next."""
    line = partial(Printer(console).line, cut=False)
    head = view.headline(bisection)
    line()
    line((head.label.upper(), TONES[head.tone]), f"  {view.title(bisection)}")
    if bisection.failure:
        line((bisection.failure, "yellow"))
    for direction, side in view.sides(bisection):
        line()
        line((direction, "bold"), "  ", (view.answer(bisection, direction, side), "bold"))
        line(f"  {side.explanation}")
        line(f"  {view.certainty(side)}; {side.runs} runs")
        if side.other_between:
            older, newer = side.other_between
            line(f"  the different failure begins or ends between {older} and {newer}")
        for note in side.notes:
            line("  ", (note, "dim"))
        for chance in side.posterior[:5]:
            line(f"  {chance.probability:7.1%}  last bad {view.short(bisection, chance.last_bad)}")
    console.print(point_table(bisection))
    if bisection.limits:
        line(("What this does not establish", "bold"))
        for limit in bisection.limits:
            line("  ", limit)
    line()
    line(f"{bisection.runs} runs of {len(view.ran(bisection))} points")
    line("  ", folder)
    line(f"  to repeat it:  {bisection.command}")
