"""Documents on disk and the reports made of them: read, composed, written, each kind by
one table.

A kind of report is a module of this package with a ``KIND``. Nothing here knows
engines, scenarios or the runner; a report can be made again from its folder, or from
the file that ``mmrepro bundle`` makes of it, at any time."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import is_file
from mmrepro.base.records import Document, Record
from mmrepro.base.text import clip, plain
from mmrepro.failure.documents import (
    as_published,
    document_json,
    listed_names,
    load_document,
    replace_file,
)
from mmrepro.reports.blocks import Page
from mmrepro.reports.html import render_html
from mmrepro.reports.markdown import render_markdown

MARKDOWN_FILE: Final = "report.md"
HTML_FILE: Final = "report.html"
T = TypeVar("T")
DocumentT = TypeVar("DocumentT", bound=Document)
_MODULES: Final = {
    "fuzz.json": "fuzz",
    "replay.json": "replay",
    "upgrade.json": "upgrade",
    "ablation.json": "ablation",
    "bisection.json": "bisection",
    "fleet.json": "fleet",
    "incident.json": "incident",
    "ledger.jsonl": "nightly",
}
"""The file that a folder of each kind holds, and the module that reports it, first
match first."""
How = Literal["passed", "failed", "error", "skipped"]


@dataclass(frozen=True)
class JunitCase:
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
    """Test cases of one run, with what is known of it."""

    name: str
    when: datetime
    cases: Sequence[JunitCase]
    properties: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class ReportKind(Generic[T]):
    """One kind of report.

    Attributes:
        name: in a sentence, with its article: ``a bisection``.
        files: the names of its Markdown and its HTML.
        load: reads it from its folder, its file or a bundle. Raises BadIncident.
        compose: makes the page.
        stored: the document itself, as it lies on disk and as ``--json`` prints it.
        junit: makes the test cases; None: it has no expectation that could fail.
        markdown_bytes: its Markdown's at most. GitHub refuses comments over 65,536
            characters; people add a few lines of their own.
        file: the document's name, where ``keep`` writes it; empty: its command writes
            it.
        compose_at: as ``compose``, its commands with the folder, as they are typed
            elsewhere; None:
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
    document: type[DocumentT],
    file: str,
    compose: Callable[[DocumentT], Page],
    *,
    name: str = "",
    files: tuple[str, str] | None = None,
    junit: Callable[[DocumentT], Sequence[Suite]] | None = None,
    compose_at: Callable[[DocumentT, str], Page] | None = None,
) -> ReportKind[DocumentT]:
    """A kind whose reports are made of one document, ``file``.

    ``name``, ``files``: where they are others than those by the document's name and the
    file's."""
    word = document.__name__.lower()
    article = "an" if word[0] in "aeiou" else "a"
    stem = file.removesuffix(".json")
    return ReportKind(
        name=name or f"{article} {word}",
        files=files or (f"{stem}.md", f"{stem}.html"),
        load=partial(load_document, file=file, kind=document),
        compose=compose,
        stored=lambda loaded: loaded,
        junit=junit,
        file=file,
        compose_at=compose_at,
    )


def kind_of(place: Path) -> ReportKind[Any]:
    """The kind of report that ``place``, a folder, its document or a bundle, holds.

    A run where unsure: reading it says what is wrong.
    """
    module = import_module(f"mmrepro.reports.{_module_of(place)}")
    report_kind: ReportKind[Any] = module.KIND
    return report_kind


def _module_of(place: Path) -> str:
    names = {place.name, *listed_names(place)}
    for file, module in _MODULES.items():
        if file in names or is_file(place / file):
            return module

    # A finding's folder holds a case, and lies in that of its replay. realpath:
    # place may be "." or a link.
    above = Path(os.path.realpath(place)).parent
    is_finding = is_file(place / "case.json") and is_file(above / "replay.json")
    return "finding" if is_finding else "incident"


def render(
    kind: ReportKind[T], loaded: T, format: str, folder: Path | None = None
) -> str:
    """The report as ``md``, ``html``, ``json`` or ``junit``; ends with a newline.

    ``folder``: as ``html.render_html`` has it.

    Raises:
        UsageError: the kind has no such format.
    """
    if format == "json":
        return document_json(kind.stored(as_published(loaded)))
    if format == "junit":
        if kind.junit is None:
            raise UsageError(
                f"{kind.name.capitalize()} has no JUnit report: it has no expectation "
                "that could fail.",
                hint="--format json",
            )
        return _render_junit(kind.junit(as_published(loaded)))

    page = kind.compose(as_published(loaded))
    if format == "html":
        return render_html(page, folder)
    return render_markdown(page, kind.markdown_bytes)


def rendered(
    kind: ReportKind[T], loaded: T, folder: Path | None = None
) -> dict[str, str]:
    """The Markdown and the HTML by the names of their files. ``folder``: as
    ``render``."""
    page = kind.compose(as_published(loaded))
    texts = (render_markdown(page, kind.markdown_bytes), render_html(page, folder))
    return dict(zip(kind.files, texts, strict=True))


def write_reports(place: Path) -> list[Path]:
    """Make the Markdown and HTML of a folder again. Raises as its ``load``, and as
    ``write``."""
    kind = kind_of(place)
    return write(kind, kind.load(place), place if place.is_dir() else place.parent)


def write(kind: ReportKind[T], loaded: T, folder: Path) -> list[Path]:
    """Write the Markdown and the HTML, each whole or not at all; returns their paths.

    Raises:
        UnwritableOutput: a file could not be written; one that was there before is
            untouched.
    """
    texts = rendered(kind, loaded, folder)
    for name, text in texts.items():
        replace_file(folder / name, text)

    return [folder / name for name in texts]


def keep(kind: ReportKind[T], loaded: T, folder: Path) -> list[Path]:
    """Write the document itself, then its reports; returns their paths. Raises as
    ``write``."""
    assert kind.file
    path = folder / kind.file
    replace_file(path, document_json(kind.stored(loaded)))
    return [path, *write(kind, loaded, folder)]


# -------------------------------------------------------------------------------- JUnit


def _render_junit(suites: Sequence[Suite]) -> str:
    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    results = {"failed": Failure, "error": Error, "skipped": Skipped}
    document: Any = JUnitXml("mmrepro")
    for suite in suites:
        made: Any = TestSuite(_text(suite.name, 300))
        made.timestamp = suite.when.isoformat(timespec="seconds")
        for name, value in suite.properties:
            made.add_property(name, _text(value))

        for case in suite.cases:
            one: Any = TestCase(
                _text(case.name, 300), _text(case.group, 300), case.seconds
            )
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
