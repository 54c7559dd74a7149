"""``mmrepro accept``: all that only this machine can show, in one summary."""

from __future__ import annotations

from dataclasses import replace

import typer
from mmrepro.accept.options import AcceptCommand
from mmrepro.cli.options import command


@command(AcceptCommand)
def accept(asked: AcceptCommand) -> None:
    """Try what only this machine can show, the most valuable first, and write one summary.

    What came to its end is not run again: the same command goes on where it ended.
    Exit codes: 0 what ran passed; 1 something failed; 3 something was broken off, inconclusive or
    beyond the budget; 4 no GPU, or nothing could be run.

    Example:  mmrepro accept --device cuda --budget 25m --out accepted
    """
    from mmrepro.accept.parts import chosen
    from mmrepro.cli.accept_run import execute, show_list
    from mmrepro.machine.files import device_of

    parts = chosen(asked.only)
    device = device_of(asked.device)
    if asked.list_:
        show_list(parts, device, as_json=asked.json)
        return
    raise typer.Exit(execute(replace(asked, device=device), device))
