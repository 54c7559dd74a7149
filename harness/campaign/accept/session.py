"""The policy of an acceptance: its parts one after another; what came to its end is
kept."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.machine.files import write_file
from mmrepro.base.machine.journal import LineFile
from mmrepro.base.records import Moment, Record
from mmrepro.base.text.redact import Redactor
from mmrepro.campaign.accept.judging import Part, Step
from mmrepro.campaign.accept.running import StepRun, beside, used
from mmrepro.campaign.campaign import Campaign, State
from mmrepro.campaign.events import Found, RunEnded, Tone
from mmrepro.campaign.search import Search
from mmrepro.campaign.work import Began, Order
from mmrepro.failure.documents.acceptance import (
    RESULT_FILE,
    SAMPLES_FILE,
    Acceptance,
    PartRecord,
    Status,
    StepRecord,
    counts,
)
from pydantic import ValidationError

STARTS_FILE = "starts.jsonl"
"""A line for each child that was started: what was killed and started again stands
there twice."""
LOCK_FILE = ".lock"
TONES: Final[Mapping[Status, Tone]] = {
    Status.PASSED: "good",
    Status.FAILED: "bad",
    Status.NOT_TESTED: "soft",
    Status.BROKEN_OFF: "unsure",
}


class Accepting(Search[Acceptance, StepRecord]):
    """An acceptance in progress. Its steps follow one another: one may go by what
    another printed.

    Attributes:
        acceptance: valid, if partial, at every moment. What this command has not
            reached stands as an earlier one left it.
    """

    kind = "acceptance"

    def __init__(
        self,
        folder: Path,
        parts: Sequence[Part],
        acceptance: Acceptance,
        *,
        write: Callable[[Acceptance, Path], object],
        report: Callable[[Path], object] = lambda folder: None,
        variables: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> None:
        """
        Args:
            acceptance: with no step, or with those of an earlier command.
            write: writes the documents below the folder, each time that they have
                grown.
            report: writes the reports of an incident's folder.
            variables: make a child see the GPU that is taken; `mmrepro run` takes its
                own.
            again: run once more what came to its end and did not pass.
        """
        super().__init__()
        self.folder, self.parts, self.acceptance = folder, parts, acceptance
        self._write_documents, self._report = write, report
        self._variables, self._again = variables or {}, again
        self._steps = {f"{p.name}/{s.name}": (p, s) for p in parts for s in p.steps}
        self._at = ""
        self.works = [self._work]

    @property
    def resume_command(self) -> str:
        return self.acceptance.resume

    @property
    def records(self) -> list[PartRecord]:
        """The parts that this command was asked for."""
        mine = {part.name for part in self.parts}
        return [part for part in self.acceptance.parts if part.part in mine]

    def standing(self) -> str:
        whole = sum(step.whole for part in self.records for step in part.steps)
        return f"{whole} of {len(self._steps)} steps are whole"

    # -------------------------------------------------------- the steps, in their order

    def _work(self) -> None:
        for part in self.parts:
            steps: list[StepRecord] = []
            record = self._take(part, steps)
            for step in part.steps:
                self._at = f"{part.name}/{step.name}"
                want = Began(self._at, 1, what=f"{part.name}: {step.title}")
                kept = want.key in self.done
                steps.append(self.result(want))
                self._tell(want, steps[-1], kept=kept)
                record = self._take(part, steps)
                self._write()
            _write(self.folder / part.name / RESULT_FILE, record)

    def _take(self, part: Part, steps: Sequence[StepRecord]) -> PartRecord:
        gpu = used(self.folder / part.name / SAMPLES_FILE)
        record = PartRecord(
            part=part.name, title=part.shows, steps=list(steps), gpu=gpu
        )
        parts = [
            record if one.part == part.name else one for one in self.acceptance.parts
        ]
        self.acceptance = self.acceptance.model_copy(update={"parts": parts})
        return record

    def _tell(self, want: Began, record: StepRecord, *, kept: bool) -> None:
        rows = record.rows
        untested = len(rows) == 1 and rows[0].status is Status.NOT_TESTED
        ended = RunEnded(
            what=want.what,
            index=1,
            outcome=counts(rows),
            detail=rows[0].seen if untested else "",
            tone=TONES[PartRecord(part="", title="", steps=[record]).status],
            seconds=record.seconds,
            kept=kept,
        )
        self.campaign.emit(ended)
        for row in rows:
            if row.status in (Status.FAILED, Status.BROKEN_OFF):
                text = f"{row.asked}: {row.seen}"
                self.campaign.emit(Found(text=text, tone=TONES[row.status]))

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Acceptance]) -> None:
        super().begin(campaign)
        busy = UsageError(
            f"Another mmrepro accept is at work in {self.folder}.",
            hint="wait for it, or --out DIR",
        )
        self._starts = LineFile(
            self.folder / STARTS_FILE, LOCK_FILE, "list of starts", busy
        )
        self._began = time.monotonic()
        for name, (_, step) in self._steps.items():
            # A record that cannot be read stands for nothing: its step is run again.
            with contextlib.suppress(OSError, ValidationError):
                content = beside(self.folder / name, "json").read_bytes()
                known = StepRecord.model_validate_json(content)
                if self._kept(known, step):
                    self.done[name, 1] = known
        self._write()

    def order_of(self, want: Began) -> Order:
        part, step = self._steps[want.id]
        until = math.inf if self.campaign.until is None else self.campaign.until
        return StepRun(want, part, step, self.acceptance.device, self._variables, until)

    def began(self, order: Order, began: Began) -> None:
        part, _, step = began.id.partition("/")
        line = {"part": part, "step": step, "at": Moment.now().wall.isoformat()}
        self._starts.append(json.dumps(line).encode() + b"\n")

    def line(self, order: Order, result: Record) -> Record:
        return Redactor().redact_model(result)

    def keep(self, line: StepRecord) -> tuple[str, int]:
        _write(beside(self.folder / self._at, "json"), line)
        if line.incident:
            self._report(self.folder / line.incident)
        return self._at, 1

    def end(self, state: State, failure: str) -> Acceptance:
        parts = self.acceptance.parts
        whole = state is State.COMPLETE and all(
            part.steps and part.whole for part in parts
        )
        ended = (
            "failed"
            if state is State.FAILED
            else "complete"
            if whole
            else "interrupted"
        )
        self.acceptance = self.acceptance.model_copy(update={"state": ended})
        self._write()
        self._starts.close()
        return self.acceptance

    def _kept(self, known: StepRecord, step: Step) -> bool:
        """Whether that record stands for ``step``."""
        if not known.whole or known.key != step.child.key(self.acceptance.device):
            return False
        unhappy = inconclusive(known) or any(
            row.status is Status.FAILED for row in known.rows
        )
        return not (self._again and unhappy)

    def _write(self) -> None:
        update = {"seconds": round(time.monotonic() - self._began, 1)}
        self.acceptance = self.acceptance.model_copy(update=update)
        self._write_documents(self.acceptance, self.folder)


def exit_code(parts: Sequence[PartRecord]) -> ExitCode:
    """The first of these that holds: 1: something failed; 4: nothing passed; 3:
    something was broken off, came out inconclusive or did not fit the budget; else
    0."""
    steps = [step for part in parts for step in part.steps]
    rows = [row.status for step in steps for row in step.rows]
    if Status.FAILED in rows:
        return ExitCode.NOT_AS_EXPECTED
    if Status.PASSED not in rows:
        return ExitCode.INFRASTRUCTURE
    unsure = (one for one in steps if one.over_budget or inconclusive(one))
    if Status.BROKEN_OFF in rows or any(unsure):
        return ExitCode.INCONCLUSIVE
    return ExitCode.AS_EXPECTED


def inconclusive(step: StepRecord) -> bool:
    """It ran to its end, and its first row, the verdict, tells nothing."""
    ran = step.exit_code is not None
    return ran and step.whole and step.rows[0].status is Status.NOT_TESTED


def _write(path: Path, record: Record) -> None:
    write_file(path, record.model_dump_json(indent=1) + "\n")
