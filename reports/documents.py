"""Documents on disk and the reports made of them: read, composed, written, each kind by one table.

A kind of report is a module of this package with a ``KIND``. Nothing here knows engines,
scenarios or the runner; a report can be made again from its folder, or from the file that
``mmrepro bundle`` makes of it, at any time.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from mmrepro.base.errors import BadIncident, UnwritableOutput, UsageError
from mmrepro.base.machine.files import is_file, read_file, write_file
from mmrepro.base.records import Record, Unfit, parsed
from mmrepro.base.text.sanitize import clip, plain
from mmrepro.base.units import size
from mmrepro.reports.blocks import Page
from pydantic import BaseModel, Field

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


How = Literal["passed", "failed", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test case. ``kind``: the type of what turned it red; ``text``: its detail."""

    group: str
    name: str
    how: How = "passed"
    message: str = ""
    text: str = ""
    kind: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    name: str
    when: datetime
    cases: Sequence[Case]
    properties: Sequence[tuple[str, str]] = ()


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
        compose_at: as ``compose``, its commands with the folder, as they are typed elsewhere; None:
            no command names a place in the folder.
    """

    name: str
    files: tuple[str, str]
    load: Callable[[Path], T]
    compose: Callable[[T], Page]
    stored: Callable[[T], Record]
    junit: Callable[[T], Sequence[Suite]] | None = None
    markdown_bytes: int = 60_000
    file: str = ""
    compose_at: Callable[[T, str], Page] | None = None


def kind(
    word: str,
    file: str,
    document: type[RecordT],
    version: int,
    compose: Callable[[RecordT], Page],
    *,
    name: str = "",
    files: tuple[str, str] | None = None,
    junit: Callable[[RecordT], Sequence[Suite]] | None = None,
    compose_at: Callable[[RecordT, str], Page] | None = None,
) -> Kind[RecordT]:
    """A kind whose reports are made of one document and are called after its file.

    Args:
        word: that its schema is called by; so is the kind, with its article.
        version: of the schema that is read here.
        name, files: where they are others than those by the word and by the file.
    """
    stem = file.removesuffix(".json")
    return Kind(
        name or f"{'an' if word[0] in 'aeiou' else 'a'} {word}",
        files or (f"{stem}.md", f"{stem}.html"),
        partial(load_document, file=file, kind=document, name=word, version=version),
        compose,
        lambda loaded: loaded,
        junit,
        file=file,
        compose_at=compose_at,
    )


def kind_of(place: Path) -> Kind[Any]:
    """The kind of report that ``place``, a folder, its document or a bundle, holds.

    A run where unsure: reading it says what is wrong.
    """
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


def render(kind: Kind[T], loaded: T, format: str, folder: Path | None = None) -> str:
    """The report as ``md``, ``html``, ``json`` or ``junit``; ends with a newline.

    ``folder``: as ``html.render_html`` has it.

    Raises:
        UsageError: the kind has no such format.
    """
    if format == "json":
        return document_json(kind.stored(loaded))
    if format == "junit":
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

        return render_html(page, folder)
    from mmrepro.reports.markdown import render_markdown

    return render_markdown(page, kind.markdown_bytes)


def rendered(kind: Kind[T], loaded: T, folder: Path | None = None) -> dict[str, str]:
    """The Markdown and the HTML by the names of their files, composed once.

    ``folder``: as ``html.render_html`` has it.
    """
    from mmrepro.reports.html import render_html
    from mmrepro.reports.markdown import render_markdown

    page = kind.compose(loaded)
    texts = (render_markdown(page, kind.markdown_bytes), render_html(page, folder))
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
    texts = rendered(kind, loaded, folder)
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
    """The document in ``directory``, in that file itself, or in a bundle.

    Args:
        name: what it is, in a sentence: ``ablation``.
        version: of the schema that is read here.

    Raises:
        BadIncident: there is none, or it cannot be read; the message says why.
    """
    if is_bundle(directory):
        return read_document(read_listed(directory, file), directory, kind, name, version)
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


# ------------------------------------------------------------------------------------- JUnit


def render_junit(suites: Sequence[Suite]) -> str:
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    results = {"failed": Failure, "error": Error, "skipped": Skipped}
    document: Any = JUnitXml("mmrepro")
    for suite in suites:
        made: Any = TestSuite(_text(suite.name, 300))
        made.timestamp = suite.when.isoformat(timespec="seconds")
        for name, value in suite.properties:
            made.add_property(name, _text(value))
        for case in suite.cases:
            one: Any = TestCase(_text(case.name, 300), _text(case.group, 300), case.seconds)
            if case.how != "passed":
                result: Any = results[case.how](_text(case.message), case.kind or None)
                if case.text:
                    result.text = _text(case.text)
                one.result = [result]
            if case.output:
                one.system_out = _text(case.output, 20_000)
            made.add_testcase(one)
        made.update_statistics()
        document.add_testsuite(made)
    document.update_statistics()
    content = document.tostring()
    return content.decode() if isinstance(content, bytes) else str(content)


def _text(value: str, limit: int = 4000) -> str:
    return clip(plain(value), limit)


# ----------------------------------------------------------------------------------- bundles

MANIFEST_FILE: Final = "manifest.json"
MAX_MEMBER_BYTES: Final = 128 << 20
MAX_MANIFEST_BYTES: Final = 4 << 20


class BundledFile(Record):
    name: str
    bytes: int
    sha256: str
    original_bytes: Annotated[int, Field(description="before redaction and trimming")]
    redactions: Annotated[int, Field(description="placeholders in it")] = 0
    note: Annotated[str, Field(description="what was left out of it, and why")] = ""


class LeftOut(Record):
    name: str
    bytes: int
    why: str


class BundleManifest(Record):
    format: Literal["mmrepro-bundle-1"] = "mmrepro-bundle-1"
    mmrepro_version: str
    incident: str
    scenario: str
    files: list[BundledFile]
    left_out: list[LeftOut] = []


def is_bundle(path: Path) -> bool:
    """Whether ``path`` is a ZIP file; False for whatever cannot be read."""
    return is_file(path) and zipfile.is_zipfile(path)


def read_manifest(path: Path) -> BundleManifest:
    """What the bundle says it holds. Raises BadIncident."""
    try:
        return parsed(BundleManifest, _member(path, MANIFEST_FILE, MAX_MANIFEST_BYTES))
    except Unfit as error:
        raise BadIncident(
            f"{path} is no bundle of mmrepro: its {MANIFEST_FILE} does not fit the format: {error}",
            hint="make it with: mmrepro bundle INCIDENT_DIR",
        ) from error


def read_listed(path: Path, name: str) -> bytes:
    """The bundle's file ``name``, its checksum compared.

    Raises:
        BadIncident: no bundle, a broken file, or one that differs from its listed checksum.
    """
    manifest = read_manifest(path)
    listed = {entry.name: entry for entry in manifest.files}
    if name not in listed:
        raise BadIncident(f"{path} holds no {name}", hint="mmrepro bundle INCIDENT_DIR")
    data = _member(path, name, MAX_MEMBER_BYTES)
    if hashlib.sha256(data).hexdigest() != listed[name].sha256:
        raise BadIncident(
            f"{name} in {path} is not what its manifest lists: the checksums differ",
            hint="get the file again from whoever made it",
        )
    return data


def listed_names(path: Path) -> set[str]:
    """Names of the files that the bundle ``path`` lists; none where it is no bundle."""
    try:
        return {entry.name for entry in read_manifest(path).files} if is_bundle(path) else set()
    except BadIncident:
        return set()


def _member(path: Path, name: str, limit: int) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            data = member.read(limit + 1)
    except KeyError as error:
        raise BadIncident(
            f"{path} holds no {name}", hint="make it with: mmrepro bundle INCIDENT_DIR"
        ) from error
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        # RuntimeError: encrypted; NotImplementedError (one of its kind): an unknown compression
        raise BadIncident(
            f"{path} cannot be read: {error}", hint="get the file again from whoever made it"
        ) from error
    if len(data) > limit:
        raise BadIncident(f"{name} in {path} is too large: over {size(limit)}")
    return data
