"""Documents on disk and the reports made of them: read, composed, written, each kind by one table.

A kind of report is a module of this package with a ``KIND``. Nothing here knows engines,
scenarios or the runner; a report can be made again from its folder at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from mmrepro.errors import BadIncident, UnwritableOutput, UsageError
from mmrepro.machine.files import is_file, read_file, write_file
from mmrepro.records import Record, Unfit, parsed
from mmrepro.reports.blocks import Page
from mmrepro.reports.junit import Suite
from pydantic import BaseModel

# A run of an hour is about 10 MB; what is larger was not written by mmrepro.
MAX_BYTES: Final = 128 << 20
MARKDOWN_FILE: Final = "report.md"
HTML_FILE: Final = "report.html"
T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=Record)
_MODULES: Final = {
    "fuzz.json": "fuzz",
    "replay.json": "replay",
    "ablation.json": "ablation",
    "bisection.json": "bisection",
    "summary.json": "acceptance",
    "incident.json": "incident",
    "ledger.jsonl": "nightly",
}
"""The file that a folder of each kind holds, and the module that reports it, first match first."""
_FINDING: Final = ("case.json", "replay.json")
"""A finding's folder holds a case, and lies in the folder of its replay."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind of report.

    Attributes:
        name: in a sentence, with its article: ``a bisection``.
        files: the names of its Markdown and its HTML.
        load: reads it from its folder, its file or a bundle. Raises BadIncident.
        compose: makes the page.
        stored: the document itself, as it lies on disk and as ``--json`` prints it.
        junit: makes the test cases; None: it has no expectation that could fail.
        markdown_bytes: its Markdown's at most. GitHub refuses comments over 65,536 characters;
            people add a few lines of their own.
        file: the document's name, where ``keep`` writes it; empty: its command writes it.
    """

    name: str
    files: tuple[str, str]
    load: Callable[[Path], T]
    compose: Callable[[T], Page]
    stored: Callable[[T], Record]
    junit: Callable[[T], Sequence[Suite]] | None = None
    markdown_bytes: int = 60_000
    file: str = ""


def kind_of(place: Path) -> Kind[Any]:
    """The kind of report that ``place``, a folder, its document or a bundle, holds.

    A run where unsure: reading it says what is wrong.
    """
    from mmrepro.reports.bundle_file import listed_names

    names = {place.name, *listed_names(place)}
    module = next((m for file, m in _MODULES.items() if file in names or is_file(place / file)), "")
    if not module:
        case, replay = _FINDING
        # realpath, since place may be "." or a link
        above = Path(os.path.realpath(place)).parent
        finding = is_file(place / case) and is_file(above / replay)
        module = "finding" if finding else "incident"
    found: Kind[Any] = import_module(f"mmrepro.reports.{module}").KIND
    return found


def render(kind: Kind[T], loaded: T, format: str) -> str:
    """The report as ``md``, ``html``, ``json`` or ``junit``; ends with a newline.

    Raises:
        UsageError: the kind has no such format.
    """
    if format == "json":
        return document_json(kind.stored(loaded))
    if format == "junit":
        from mmrepro.reports.junit import render_junit

        if kind.junit is None:
            raise UsageError(
                f"{kind.name.capitalize()} has no JUnit report: it has no expectation that could "
                "fail.",
                hint="--format json",
            )
        return render_junit(kind.junit(loaded))
    page = kind.compose(loaded)
    if format == "html":
        from mmrepro.reports.html import render_html

        return render_html(page)
    from mmrepro.reports.markdown import render_markdown

    return render_markdown(page, kind.markdown_bytes)


def rendered(kind: Kind[T], loaded: T) -> dict[str, str]:
    """The Markdown and the HTML by the names of their files, composed once."""
    from mmrepro.reports.html import render_html
    from mmrepro.reports.markdown import render_markdown

    page = kind.compose(loaded)
    texts = (render_markdown(page, kind.markdown_bytes), render_html(page))
    return dict(zip(kind.files, texts, strict=True))


def write_reports(place: Path) -> list[Path]:
    """Make the Markdown and HTML of a folder again. Raises as its ``load``, and as ``write``."""
    kind = kind_of(place)
    return write(kind, kind.load(place), place if place.is_dir() else place.parent)


def write(kind: Kind[T], loaded: T, folder: Path) -> list[Path]:
    """Write the Markdown and the HTML, each whole or not at all; returns their paths.

    Raises:
        UnwritableOutput: a file could not be written; one that was there before is untouched.
    """
    texts = rendered(kind, loaded)
    for name, text in texts.items():
        replace_file(folder / name, text)
    return [folder / name for name in texts]


def keep(kind: Kind[T], loaded: T, folder: Path) -> list[Path]:
    """Write the document itself, then its reports; returns their paths. Raises as ``write``."""
    assert kind.file
    path = folder / kind.file
    replace_file(path, document_json(kind.stored(loaded)))
    return [path, *write(kind, loaded, folder)]


class _Made(BaseModel):
    """By which mmrepro a document was made; nothing else of it is read."""

    schema_version: Any = 1
    mmrepro_version: Any = "unknown"


def load_document(
    directory: Path, file: str, kind: type[RecordT], name: str, version: int
) -> RecordT:
    """The document in ``directory``, or in that file itself.

    Args:
        name: what it is, in a sentence: ``ablation``.
        version: of the schema that is read here.

    Raises:
        BadIncident: there is none, or it cannot be read; the message says why.
    """
    path = directory if directory.name == file else directory / file
    hint = "give the folder that the command named at its end; mmrepro incidents lists them"
    try:
        if not path.parent.exists():
            raise BadIncident(f"there is no folder {path.parent}", hint=hint)
        if not path.exists():
            raise BadIncident(f"{path.parent} holds no {file}", hint=hint)
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise BadIncident(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error
    return read_document(data, path, kind, name, version)


def read_document(data: bytes, path: Path, kind: type[RecordT], name: str, version: int) -> RecordT:
    """The document that ``data``, from ``path``, is. Raises as ``load_document``."""
    try:
        made = parsed(_Made, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} holds no {name}: {error}",
            hint="the command may have been cut short while writing it; run it again",
        ) from error
    if made.schema_version != version:
        raise BadIncident(
            f"{path} has schema version {str(made.schema_version)[:20]}; "
            f"this mmrepro reads version {version}",
            hint="make the report with the mmrepro that wrote it "
            f"({str(made.mmrepro_version)[:40]})",
        )
    try:
        return parsed(kind, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} does not follow the {name} schema: {error}",
            hint=f"mmrepro schema --of {name}; if the file was not edited, this is a bug",
            detail=error.problems[:20],
        ) from error


def document_json(document: Record) -> str:
    """The document as it is stored, with a newline at its end."""
    return document.model_dump_json(indent=1) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all. Raises UnwritableOutput."""
    try:
        write_file(path, text)
    except OSError as error:
        raise UnwritableOutput(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"free some space or check the permissions, then: mmrepro report {path.parent}",
        ) from error
