"""``mmrepro report`` and ``mmrepro schema``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    MD = "md"
    HTML = "html"
    JSON = "json"
    JUNIT = "junit"


def report_command(
    incident: Annotated[
        Path, typer.Argument(help="An incident's folder, or a bundle of it.", metavar="DIR")
    ],
    format: Annotated[Format, typer.Option(help="What to print on stdout.")] = Format.MD,
) -> None:
    """Make a report again, from an incident's folder alone.

    Example:  mmrepro report incidents/ghost-key-eviction-0.23.0-20261121-030000 --format html
    """
    from mmrepro import reports

    loaded = reports.load(incident)
    render = {
        Format.MD: reports.render_markdown,
        Format.HTML: reports.render_html,
        Format.JSON: reports.render_json,
        Format.JUNIT: reports.render_junit,
    }[format]
    typer.echo(render(loaded).rstrip("\n"))


def schema() -> None:
    """Print the JSON Schema of incident.json.

    Example:  mmrepro schema > incident.schema.json
    """
    import json

    from mmrepro.incident import Incident

    document = Incident.model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    typer.echo(json.dumps(document, indent=1))
