"""What ``mmrepro matrix run --dry-run`` prints."""

from __future__ import annotations

from mmrepro.base.units import duration, size
from mmrepro.matrix.plan import DryRun
from mmrepro.reports.blocks import count
from mmrepro.text.sanitize import one_line
from rich import box
from rich.console import Console
from rich.table import Table


def print_dry_run(told: DryRun, console: Console) -> None:
    """The cells by environment, what each takes, and what is fetched first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("environment", "cell", "expected", "runs", "about"):
        table.add_column(head)
    for group in told.groups:
        fetched = "" if not group.download_bytes else f", {group.environment}"
        for number, cell in enumerate(group.cells):
            table.add_row(
                f"{group.name}{fetched}" if number == 0 else "",
                one_line(cell.cell.row, 120),
                cell.expected or "–",
                str(cell.runs),
                duration(cell.seconds) if cell.runs else "–",
            )
    console.print(table)
    cells = sum(len(group.cells) for group in told.groups)
    places = f"{count(cells, 'job')} in {count(len(told.groups), 'environment')}"
    text = f"Nightly run {told.night}: {places}, {count(told.runs, 'run')}"
    text += f", about {duration(told.seconds)}." if told.runs else ": nothing is left to run."
    if told.download_bytes:
        text += f" About {size(told.download_bytes)} are unpacked first, at most."
    console.print(text, highlight=False, soft_wrap=True)
    for why in dict.fromkeys(c.seconds_from for g in told.groups for c in g.cells if c.runs):
        console.print(f"Times: {why}.", highlight=False, soft_wrap=True)
    for note in told.notes:
        console.print(f"Left out: {note}.", highlight=False, soft_wrap=True)
