"""``mmrepro check``: what this machine can do, and what each missing part costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

# Heavy modules are imported inside: see env.py.
if TYPE_CHECKING:
    from mmrepro.check import HostReport, Part


@dataclass(frozen=True)
class CheckCommand(Command):
    COMMAND: ClassVar[str] = "check"
    need: tuple[str, ...] = option(
        (), "A part that this machine must have as well, e.g. gpu. May be repeated.", "PART"
    )
    json: bool = common.JSON(False)


@command(CheckCommand)
def check(asked: CheckCommand) -> None:
    """Tell what of this machine a run can use, and what each missing part costs.

    Exit status 0: the main job can run here; 4: it cannot, or a part that is needed is missing.

    Example: mmrepro check --need gpu
    """
    from mmrepro.check import examine
    from mmrepro.errors import ExitCode

    report = examine(asked.need)
    if asked.json:
        print(report.model_dump_json(indent=1))
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(int(ExitCode.INFRASTRUCTURE))


def _print(report: HostReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("part", no_wrap=True)
    table.add_column("found", overflow="fold")
    for part in report.parts:
        words = Text(part.found)
        if not part.ok:
            words.append(f"\n{part.costs}", style="yellow")
            if part.hint:
                words.append(f"\n→ {part.hint}", style="dim")
        table.add_row(_mark(part), part.name, words)
    console.print(table)
    if report.ok:
        console.print("The main job can run here: mmrepro run ghost-key-eviction")
    else:
        lacking = ", ".join(part.name for part in report.parts if part.required and not part.ok)
        console.print(f"Missing, and needed: {lacking}.")


def _mark(part: Part) -> str:
    if part.ok:
        return "[green]✓[/]"
    return "[red]✗[/]" if part.required else "[yellow]–[/]"
