"""``mmrepro schema``: the JSON Schema of each document that a command prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import typer
from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command


@dataclass(frozen=True)
class _SchemaCommand(Command):
    COMMAND: ClassVar[str] = "schema"
    document: str = option(
        "",
        "The $id of a document, or its kind, e.g. logs.",
        "ID",
        argument=True,
        shown="a list of all",
    )


@command(_SchemaCommand)
def schema(asked: _SchemaCommand) -> None:
    """Print the JSON Schema of a document that a command prints with --json.

    Example:  mmrepro schema urn:mmrepro:diagnosis:1
    """
    import json

    from mmrepro.cli.console import print_rows
    from mmrepro.cli.json_schema import documents_by_urn, json_schema

    places: dict[str, str] = {}
    rows: list[tuple[str, str]] = [("$id", "printed by")]
    for urn, words, place in documents_by_urn():
        places[urn] = place
        rows.append((urn, f"mmrepro {words} --json"))
    if not asked.document:
        print_rows(rows)
        return
    urn = asked.document
    if not urn.startswith("urn:"):
        urn = f"urn:mmrepro:{urn}:1"
    if urn not in places:
        kinds = [known.split(":")[2] for known in places]
        close = did_you_mean(asked.document, kinds)
        raise UsageError(
            f"No document is {asked.document}.{close}", hint="mmrepro schema"
        )
    typer.echo(json.dumps(json_schema([places[urn]]), indent=1))
