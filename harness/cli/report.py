"""``mmrepro report`` and ``mmrepro schema``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import typer
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.errors import UsageError
    from mmrepro.records import Record
    from mmrepro.reports.documents import Kind

T = TypeVar("T")


class Format(StrEnum):
    MD = "md"
    HTML = "html"
    JSON = "json"
    JUNIT = "junit"
    ISSUE = "issue"


@dataclass(frozen=True)
class ReportCommand(Command):
    COMMAND: ClassVar[str] = "report"
    incident: Path = option(
        Path(),
        "Folder of an incident, ablation, bisection, acceptance, replay, finding or fuzzing "
        "session, or a bundle.",
        "DIR",
        argument=True,
        required=True,
    )
    format: Format = option(
        Format.MD,
        "What to print on stdout; issue: the engine's own bug-report form, to paste.",
        group=OUTPUT,
    )


@command(ReportCommand)
def report_command(asked: ReportCommand) -> None:
    """Make a report again, from an incident's folder alone.

    Example:  mmrepro report incidents/ghost-key-eviction-0.23.0-20261121-030000 --format html
    """
    from mmrepro.reports.documents import kind_of, render

    kind = kind_of(asked.incident)
    loaded = _shown(kind.load(asked.incident))
    if asked.format is Format.ISSUE:
        text = _issue(kind, loaded, asked.incident)
    else:
        text = render(kind, loaded, asked.format)
    typer.echo(text.rstrip("\n"))


def _shown(loaded: T) -> T:
    """``loaded`` redacted again: who wrote it may not have known what is known now."""
    from mmrepro.records import Record
    from mmrepro.text.redact import Redactor

    if not isinstance(loaded, Record):
        return loaded
    redactor = Redactor()
    redactor.reserve(loaded.model_dump_json())
    return redactor.redact_model(loaded)


def _issue(kind: Kind[Any], loaded: object, folder: Path) -> str:
    """The engine's own form, filled in. Raises UsageError: ``loaded`` is no single failure."""
    from mmrepro.errors import UsageError
    from mmrepro.incident import Incident
    from mmrepro.incident.replay import Fuzz, Replay
    from mmrepro.reports.finding import LoadedFinding
    from mmrepro.reports.issue_form import finding_issue, incident_issue

    if isinstance(loaded, Incident):
        return incident_issue(loaded)
    if isinstance(loaded, LoadedFinding):
        return finding_issue(loaded)
    if isinstance(loaded, Replay):
        raise _of_one([folder / finding.folder for finding in loaded.findings], "a replay", folder)
    if isinstance(loaded, Fuzz):
        raise _of_one([folder / found.folder for found in loaded.found], "a session", folder)
    raise UsageError(
        f"{kind.name.capitalize()} is no bug report: give an incident's folder, or a finding's.",
        hint=f"mmrepro report {folder} --format md",
    )


def _of_one(findings: list[Path], name: str, folder: Path) -> UsageError:
    from mmrepro.errors import UsageError

    first = findings[0] if findings else folder / "f1"
    return UsageError(
        f"An issue is of one finding, and {name} may have several.",
        hint=f"mmrepro report {first} --format issue",
    )


class Document(StrEnum):
    INCIDENT = "incident"
    ABLATION = "ablation"
    BISECTION = "bisection"
    REPLAY = "replay"
    FUZZ = "fuzz"
    CASE = "case"


@dataclass(frozen=True)
class SchemaCommand(Command):
    COMMAND: ClassVar[str] = "schema"
    of: Document = option(Document.INCIDENT, "Which document.", group=OUTPUT)


@command(SchemaCommand)
def schema(asked: SchemaCommand) -> None:
    """Print the JSON Schema of incident.json, of a case, or of another document of mmrepro's.

    Example:  mmrepro schema > incident.schema.json
    """
    import json

    from mmrepro.case.model import Case
    from mmrepro.incident import Incident
    from mmrepro.incident.replay import Fuzz, Replay
    from mmrepro.incident.searches import Ablation, Bisection

    models: dict[Document, type[Record]] = {
        Document.INCIDENT: Incident,
        Document.ABLATION: Ablation,
        Document.BISECTION: Bisection,
        Document.REPLAY: Replay,
        Document.FUZZ: Fuzz,
        Document.CASE: Case,
    }
    document = models[asked.of].model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    typer.echo(json.dumps(document, indent=1))
