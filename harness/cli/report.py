"""``mmrepro report`` and ``mmrepro schema``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import typer
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.errors import UsageError
    from mmrepro.records import Record

T = TypeVar("T", bound="Record")


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
    from mmrepro import reports
    from mmrepro.incident.ablation import ABLATION_FILE
    from mmrepro.incident.acceptance import SUMMARY_FILE
    from mmrepro.incident.bisection import BISECTION_FILE
    from mmrepro.machine.files import is_file

    incident, format = asked.incident, asked.format
    campaigns = (ABLATION_FILE, BISECTION_FILE, SUMMARY_FILE)
    if any(incident.name == file or is_file(incident / file) for file in campaigns):
        typer.echo(_of_campaign(incident, format), nl=False)
        return
    from mmrepro.reports.fuzz import is_fuzz
    from mmrepro.reports.replay import is_finding, is_replay

    if is_fuzz(incident):
        typer.echo(_of_fuzz(incident, format).rstrip("\n"))
        return
    if is_replay(incident) or is_finding(incident):
        typer.echo(_of_replay(incident, format).rstrip("\n"))
        return
    loaded = _shown(reports.load(incident))
    if format is Format.ISSUE:
        from mmrepro.reports.issue_form import incident_issue

        typer.echo(incident_issue(loaded).rstrip("\n"))
        return
    render = {
        Format.MD: reports.render_markdown,
        Format.HTML: reports.render_html,
        Format.JSON: reports.render_json,
        Format.JUNIT: reports.render_junit,
    }[format]
    typer.echo(render(loaded).rstrip("\n"))


def _shown(loaded: T) -> T:
    """``loaded`` redacted again: who wrote it may not have known what is known now."""
    from mmrepro.text.redact import Redactor

    redactor = Redactor()
    redactor.reserve(loaded.model_dump_json())
    return redactor.redact_model(loaded)


def _of_campaign(folder: Path, format: Format) -> str:
    from mmrepro.errors import UsageError
    from mmrepro.reports.documents import kind_of, render

    kind = kind_of(folder)
    if format is Format.ISSUE:
        raise UsageError(
            f"{kind.name.capitalize()} is no bug report: give the folder of an incident or of a "
            "finding.",
            hint=f"mmrepro report {folder} --format md",
        )
    return render(kind, _shown(kind.load(folder)), format)


def _of_fuzz(folder: Path, format: Format) -> str:
    from mmrepro.reports import fuzz as reports

    loaded = _shown(reports.load_fuzz(folder))
    if format is Format.ISSUE:
        raise _of_one([folder / found.folder for found in loaded.found], "a session", folder)
    both = (reports.fuzz_markdown, reports.fuzz_html)
    return _of_document(loaded, both, format, "A fuzzing session", folder)


def _of_replay(folder: Path, format: Format) -> str:
    from mmrepro.reports import replay as reports
    from mmrepro.reports.issue_form import finding_issue

    if reports.is_finding(folder):
        told = reports.load_finding(folder)
        if format is Format.ISSUE:
            return finding_issue(told)
        renders = (
            lambda _: reports.finding_markdown(told),
            lambda _: reports.finding_html(told),
        )
        return _of_document(told.finding, renders, format, "A finding", folder)
    loaded = _shown(reports.load_replay(folder))
    if format is Format.ISSUE:
        raise _of_one([folder / finding.folder for finding in loaded.findings], "a replay", folder)
    both = (reports.replay_markdown, reports.replay_html)
    return _of_document(loaded, both, format, "A replay", folder)


def _of_one(findings: list[Path], name: str, folder: Path) -> UsageError:
    from mmrepro.errors import UsageError

    first = findings[0] if findings else folder / "f1"
    return UsageError(
        f"An issue is of one finding, and {name} may have several.",
        hint=f"mmrepro report {first} --format issue",
    )


def _of_document(
    loaded: T,
    renders: tuple[Callable[[T], str], Callable[[T], str]],
    format: Format,
    name: str,
    folder: Path,
) -> str:
    """``renders``: to Markdown and to HTML. Raises UsageError: JUnit is asked for, or an issue."""
    from mmrepro.errors import UsageError
    from mmrepro.reports.document import document_json

    if format is Format.JUNIT:
        raise UsageError(
            f"{name} has no JUnit report: it has no expectation that could fail.",
            hint=f"mmrepro report {folder} --format json",
        )
    if format is Format.ISSUE:
        raise UsageError(
            f"{name} is no bug report: give an incident's folder, or a finding's.",
            hint=f"mmrepro report {folder} --format md",
        )
    markdown, html = renders
    return {Format.MD: markdown, Format.HTML: html, Format.JSON: document_json}[format](loaded)


class Document(StrEnum):
    INCIDENT = "incident"
    ABLATION = "ablation"
    BISECTION = "bisection"
    REPLAY = "replay"
    REPLAY_JSON = "replay-json"
    FUZZ = "fuzz"
    FUZZ_JSON = "fuzz-json"
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
    from mmrepro.incident.ablation import Ablation
    from mmrepro.incident.bisection import Bisection
    from mmrepro.incident.fuzz import Fuzz
    from mmrepro.incident.replay import Replay
    from mmrepro.reports.fuzz_json import ToldFuzz
    from mmrepro.reports.replay_json import ToldReplay

    models: dict[Document, type[Record]] = {
        Document.INCIDENT: Incident,
        Document.ABLATION: Ablation,
        Document.BISECTION: Bisection,
        Document.REPLAY: Replay,
        Document.REPLAY_JSON: ToldReplay,
        Document.FUZZ: Fuzz,
        Document.FUZZ_JSON: ToldFuzz,
        Document.CASE: Case,
    }
    document = models[asked.of].model_json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    typer.echo(json.dumps(document, indent=1))
