"""``mmrepro accept``: all that only this machine can show, in one summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from mmrepro.base import units
from mmrepro.cli.run import DeviceChoice
from mmrepro.cli.where import Events


def accept(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the summary and of all incidents.")
    ] = None,
    device: Annotated[
        DeviceChoice, typer.Option(help="auto takes a GPU where there is one.")
    ] = DeviceChoice.AUTO,
    budget: Annotated[
        str, typer.Option(help="Wall-clock time, e.g. 25m; what does not fit is not tested.")
    ] = "25m",
    only: Annotated[
        list[str] | None, typer.Option(help="A part, see --list. May be repeated.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what is in --out, as it was asked for.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Run what failed or was inconclusive once more.")
    ] = False,
    events: Events = "",
    list_: Annotated[bool, typer.Option("--list", help="Show the parts and their times.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Try what only this machine can show, the most valuable first, and write one summary.

    What came to its end is not run again: the same command goes on where it ended.
    Exit codes: 0 what ran passed; 1 something failed; 3 something was broken off, inconclusive or
    beyond the budget; 4 no GPU, or nothing could be run.

    Example:  mmrepro accept --device cuda --budget 25m --out accepted
    """
    from mmrepro.accept.parts import chosen
    from mmrepro.cli.accept_run import execute, show_list
    from mmrepro.cli.bounds import WEEK_S
    from mmrepro.errors import UsageError
    from mmrepro.machine.cache import device_of

    parts = chosen(only or ())
    found = device_of(device)
    if list_:
        show_list(parts, found, as_json=json)
        return
    seconds = units.parse_duration(budget)
    if seconds > WEEK_S:
        raise UsageError(f"--budget {budget} is more than a week.", hint="e.g. --budget 25m")
    how = {"resume": resume, "again": again, "as_json": json}
    raise typer.Exit(execute(out, found, seconds, only or (), events=events, **how))
