"""``mmrepro check``: what this machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.errors import ExitCode
from mmrepro.base.options import Command, option
from mmrepro.cli.console import emit, table, table_console, wants_document
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.base.records import DocumentHead
    from mmrepro.engines.environments import FitReport
    from mmrepro.tools import HostReport


@dataclass(frozen=True)
class _CheckCommand(Command):
    COMMAND: ClassVar[str] = "check"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.tools.check:HostReport",
        "mmrepro.engines.environments.fit:FitReport",
    )
    need: tuple[str, ...] = option(
        (),
        "A part that this machine must have as well, e.g. gpu. May be repeated.",
        "PART",
    )
    release: str = option(
        "",
        (
            "Compare a release with this machine instead, e.g. vllm==0.33.0; nothing "
            "is installed."
        ),
        "ENGINE==VERSION",
        name="--for",
        once=True,
    )
    json: bool = common.JSON(False)


@command(_CheckCommand)
def check(asked: _CheckCommand) -> None:
    """Show what of this machine a run can use, and what each missing part costs.

    With --for: whether a release of vllm, sglang or lmdeploy fits this machine (Python,
    processor, C library, torch and its CUDA, driver, GPU, disk). The package index is
    asked for it.

    Example:  mmrepro check --need gpu
    """
    from mmrepro.tools import examine_host

    if asked.release:
        _fit(asked)
        return
    report = examine_host(asked.need)
    code = ExitCode.AS_EXPECTED if report.ok else ExitCode.INFRASTRUCTURE
    if wants_document(asked):
        status = "ok" if report.ok else "missing"
        emit(report, _head(status, code, _sentence(report)), printed=asked.json)
    if not asked.json:
        _print(report)
    raise typer.Exit(code)


def _head(status: str, code: ExitCode, sentence: str) -> DocumentHead:
    from mmrepro.base.records import DocumentHead

    return DocumentHead(status=status, exit_code=code, summary=sentence)


def _fit(asked: _CheckCommand) -> None:
    from mmrepro.base.machine import read_gpus
    from mmrepro.engines import spec_for
    from mmrepro.engines.environments import Fits, asked_for, fit_to_machine
    from mmrepro.engines.folders import published

    engine, release = asked_for(asked.release, published())
    report = fit_to_machine(spec_for(engine, release, "cuda"), read_gpus())
    codes = {
        Fits.YES: ExitCode.AS_EXPECTED,
        Fits.UNKNOWN: ExitCode.INCONCLUSIVE,
        Fits.NO: ExitCode.INFRASTRUCTURE,
    }
    code = codes[report.fits]
    if wants_document(asked):
        head = _head(report.fits.value, code, _fit_sentence(report))
        emit(report, head, printed=asked.json)
    if not asked.json:
        _print_fit(report)
    raise typer.Exit(code)


def _print_fit(report: FitReport) -> None:
    from rich.text import Text

    marks = {"ok": "[green]✓[/]", "not-ok": "[red]✗[/]", "unknown": "[yellow]?[/]"}
    rows = []
    for row in report.rows:
        has = Text(row.has)
        if row.do:
            has.append(f"\n→ {row.do}", style="dim")
        rows.append((marks[row.fits], row.name, row.asks, has))
    console = table_console()
    console.print(table(("", "part", "the release asks for", "this machine has"), rows))
    console.print(_fit_sentence(report))


def _fit_sentence(report: FitReport) -> str:
    what = f"{report.engine} {report.release}"
    lacking = ", ".join(row.name for row in report.rows if row.fits == "not-ok")
    unknown = ", ".join(row.name for row in report.rows if row.fits == "unknown")
    words = {
        "ok": f"{what} fits this machine.",
        "not-ok": f"{what} does not fit this machine: {lacking}.",
        "unknown": (
            f"Nothing speaks against {what} here, and this is not known: {unknown}."
        ),
    }
    return words[report.fits]


def _print(report: HostReport) -> None:
    from rich.text import Text

    console, rows = table_console(), []
    for part in report.parts:
        mark = (
            "[green]✓[/]"
            if part.ok
            else "[red]✗[/]"
            if part.required
            else "[yellow]–[/]"
        )
        words = Text(part.found)
        if not part.ok:
            words.append(f"\n{part.costs}", style="yellow")
            if part.hint:
                words.append(f"\n→ {part.hint}", style="dim")
        rows.append((mark, part.name, words))
    console.print(table(("", "part", "found"), rows))
    console.print(_sentence(report))


def _sentence(report: HostReport) -> str:
    if report.ok:
        return "The main job can run here: mmrepro run ghost-key-eviction"
    lacking = [part.name for part in report.parts if part.required and not part.ok]
    return f"Missing, and needed: {', '.join(lacking)}."
