"""``mmrepro accept``, from the options to the exit code."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import mmrepro
import typer
from mmrepro.accept.options import AcceptCommand
from mmrepro.accept.parts import PARTS, chosen
from mmrepro.accept.provide import Provider
from mmrepro.accept.sampling import nvml_samples
from mmrepro.accept.session import Session, Setup, exit_code
from mmrepro.accept.steps import Part, Step
from mmrepro.cli.console import table_console
from mmrepro.cli.progress import LiveView
from mmrepro.errors import ExitCode, UsageError
from mmrepro.incident.acceptance import (
    SUMMARY_FILE,
    Acceptance,
    PartRecord,
    Status,
    StepRecord,
)
from mmrepro.incident.folder import prepared
from mmrepro.machine.cache import Device
from mmrepro.machine.facts import host_facts
from mmrepro.machine.files import is_there
from mmrepro.machine.gpu import Choice, take
from mmrepro.records import Moment
from mmrepro.reports import write_reports
from mmrepro.reports.acceptance import MARKDOWN_FILE, counts, write_acceptance
from mmrepro.reports.document import document_json, load_document
from mmrepro.reports.words import duration
from mmrepro.text.sanitize import one_line
from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

STYLES = {
    Status.PASSED: "green",
    Status.FAILED: "red",
    Status.NOT_TESTED: "dim",
    Status.BROKEN_OFF: "yellow",
}


def execute(asked: AcceptCommand, device: Device) -> ExitCode:
    """Run the parts, or go on with them. Raises MmreproError and KeyboardInterrupt."""
    if asked.out is None:
        raise UsageError(
            "--out DIR says where the summary and the incidents go.",
            hint="mmrepro accept --out accepted",
        )
    gpu = take() if asked.device == "cuda" else Choice()
    earlier = _earlier(asked, asked.out)
    folder = prepared(asked.out)
    known = earlier.parts if earlier else []
    parts = chosen(asked.only or ([part.part for part in known] if asked.resume else ()))
    console = table_console(stderr=asked.json)
    board = Board(console, folder, _blank(asked, device, parts, earlier, gpu))
    board.changed([])
    variables = {one.name: one.value for one in gpu.settings()}
    setup = Setup(device, asked.budget_s, variables, asked.again)
    provider = Provider(device, board.say)
    try:
        with board, nvml_samples() as read:
            done = Session(folder, parts, setup, provider, board, read).execute()
    except KeyboardInterrupt:
        typer.echo(f"to resume, run: {board.told.resume}", err=True)
        raise
    board.changed(done)
    if asked.json:
        typer.echo(document_json(board.told).rstrip("\n"))
    else:
        _tell(board.told, console)
    left = sum(not step.whole for part in done for step in part.steps)
    console.print(f"Summary: {folder / MARKDOWN_FILE}", highlight=False, soft_wrap=True)
    if left:
        again = f"{left} steps were not run to their end; to try them: {board.told.resume}"
        console.print(again, highlight=False, soft_wrap=True)
    return exit_code(done)


def _earlier(asked: AcceptCommand, folder: Path) -> Acceptance | None:
    """What an earlier command left there. Raises UsageError: of another device; or none."""
    if not is_there(folder / SUMMARY_FILE):
        if asked.resume:
            raise UsageError(
                f"{folder} holds no acceptance to go on with.",
                hint=f"mmrepro accept --out {shlex.quote(str(folder))}",
            )
        return None
    found = load_document(folder, SUMMARY_FILE, Acceptance, "acceptance", 1)
    if found.device != asked.device:
        raise UsageError(
            f"{folder} holds what was seen on {found.device}; this is {asked.device}.",
            hint="choose another --out",
        )
    return found


def _blank(
    asked: AcceptCommand,
    device: Device,
    parts: Sequence[Part],
    earlier: Acceptance | None,
    gpu: Choice,
) -> Acceptance:
    assert asked.out is not None
    return Acceptance(
        mmrepro_version=mmrepro.__version__,
        created=earlier.created if earlier else Moment.now(),
        seconds=0.0,
        budget_s=asked.budget_s,
        device=device,
        command=asked.command_line(out=Path(asked.out.name)),
        resume=asked.command_line(out=asked.out, resume=True),
        host=host_facts(gpu.names).model_copy(update={"gpu_facts": gpu.facts()}),
        parts=_in_order(
            [PartRecord(part=part.name, title=part.shows, steps=[]) for part in parts],
            earlier.parts if earlier else [],
        ),
    )


def _in_order(parts: Sequence[PartRecord], newer: Sequence[PartRecord]) -> list[PartRecord]:
    """All of them, ``newer`` in place of those of the same name: one summary of a folder, whatever
    parts each command was asked for."""
    found = {part.part: part for part in (*parts, *newer)}
    return [found[part.name] for part in PARTS if part.name in found]


class Board(LiveView):
    """A line for each step that ended; on a terminal the one under way below them. Writes the
    summary whenever a step has ended."""

    def __init__(self, console: Console, folder: Path, told: Acceptance) -> None:
        super().__init__(console, per_second=4, transient=True)
        self.told = told
        self._folder = folder
        self._began = time.monotonic()
        self._current: tuple[str, float, float] | None = None
        self._latest = ""

    def say(self, text: str) -> None:
        self._latest = one_line(text, 200)
        if not self.console.is_terminal:
            self._line(f"  {text}")

    def began(self, part: Part, step: Step) -> None:
        title = f"{part.name}: {step.title}"
        with self._lock:
            self._current, self._latest = (title, time.monotonic(), step.estimate_s), ""

    def ended(self, part: Part, step: StepRecord, *, kept: bool) -> None:
        if step.incident and not kept:
            write_reports(self._folder / step.incident)
        with self._lock:
            self._current = None
        worst = PartRecord(part=part.name, title="", steps=[step]).status
        when = "kept" if kept else duration(step.seconds)
        text = Text(f"{part.name}: {step.title}: ")
        text.append(counts(step.rows), style=STYLES[worst])
        text.append(f", {when}")
        self.console.print(text, soft_wrap=True, highlight=False)
        for row in step.rows:
            if row.status in (Status.FAILED, Status.BROKEN_OFF):
                self._line(f"  {row.asked}: {row.seen}", STYLES[row.status])
            elif len(step.rows) == 1 and row.status is Status.NOT_TESTED:
                self._line(f"  {row.seen}", "dim")

    def changed(self, parts: list[PartRecord]) -> None:
        """What this command has not reached stands as an earlier one left it."""
        update = {
            "parts": _in_order(self.told.parts, parts),
            "seconds": round(time.monotonic() - self._began, 1),
        }
        self.told = self.told.model_copy(update=update)
        write_acceptance(self.told, self._folder)

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(Text(one_line(text, 400), style=style), soft_wrap=True, highlight=False)

    def _draw(self) -> RenderableType:
        with self._lock:
            if self._current is None:
                return Text("")
            title, began, estimate_s = self._current
            spent = time.monotonic() - began
            table = Table.grid(padding=(0, 2))
            told = Text(f"{spent:.0f} s of about {estimate_s:.0f} s", style="dim")
            table.add_row(Spinner("dots"), title, told)
            return Group(table, Text(self._latest, style="dim")) if self._latest else table


def _tell(told: Acceptance, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("part", "status", "rows", "time"):
        table.add_column(name, no_wrap=name != "rows")
    for part in told.parts:
        status = Text(part.status, style=STYLES[part.status])
        table.add_row(part.part, status, counts(part.rows), duration(part.seconds))
    console.print(table)


def show_list(parts: Sequence[Part], device: Device, *, json: bool) -> None:
    """The parts with their steps and estimates."""
    if json:
        import json as json_module

        told = [
            {
                "part": part.name,
                "shows": part.shows,
                "estimate_s": part.estimate_s(device),
                "steps": [
                    {
                        "step": step.name,
                        "title": step.title,
                        "command": step.child.shown(device),
                        "estimate_s": step.estimate_s if device in step.devices else 0,
                        "needs": [str(one) for one in step.child.needs],
                        "not_tested": "" if device in step.devices else step.why_not,
                    }
                    for step in part.steps
                ],
            }
            for part in parts
        ]
        typer.echo(json_module.dumps({"device": device, "parts": told}, indent=1))
        return
    console = table_console()
    table = Table(box=None, pad_edge=False)
    for name in ("part", "shows that", "steps", "about"):
        table.add_column(name, justify="right" if name in ("steps", "about") else "left")
    for part in parts:
        able = [step for step in part.steps if device in step.devices]
        about = duration(part.estimate_s(device)) if able else f"not on {device}"
        table.add_row(part.name, part.shows, str(len(able)), about)
    console.print(table)
    total = sum(part.estimate_s(device) for part in parts)
    console.print(f"all on {device}: about {duration(total)}, environments apart", highlight=False)
