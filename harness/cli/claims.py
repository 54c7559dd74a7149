"""``mmrepro claims``: what recorded runs say of each claim of the original reports."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass
from typing import ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command
from mmrepro.incident import ClaimStatus


@dataclass(frozen=True)
class ClaimsCommand(Command):
    COMMAND: ClassVar[str] = "claims"
    scenarios: tuple[str, ...] = common.SCENARIOS(())
    status: ClaimStatus | None = option(None, "Only those with this status.")
    json: bool = common.JSON(False)


@command(ClaimsCommand)
def claims(asked: ClaimsCommand) -> None:
    """List the claims of the original reports, and the run that judged each.

    Example:  mmrepro claims ghost-key-eviction --status refuted
    """
    from mmrepro.catalogue.claims import load
    from mmrepro.scenario.registry import load_scenario
    from mmrepro.scenarios.data import claims as file

    status = asked.status
    names = {load_scenario(name).name for name in asked.scenarios}
    found = [
        one
        for one in load(file())
        if (not names or one.scenario in names) and status in (None, one.judged.status)
    ]
    if asked.json:
        document = {"claims": [one.model_dump(mode="json") for one in found]}
        typer.echo(jsonlib.dumps(document, indent=1, ensure_ascii=False))
    else:
        from mmrepro.catalogue.claims import words
        from mmrepro.cli.console import table_console
        from rich.markup import escape
        from rich.table import Table

        styles = {ClaimStatus.CONFIRMED: "green", ClaimStatus.REFUTED: "red"}
        table = Table("claim", "made in", "status", "what it says", "judged by", "on", box=None)
        for one in found:
            told = one.judged
            style = styles.get(told.status, "yellow")
            table.add_row(
                f"[bold]{escape(one.name)}",
                escape(one.made_in),
                f"[{style}]{words(told.status)}",
                escape(one.text),
                escape(told.command),
                told.at.date().isoformat(),
            )
        table_console().print(table)
