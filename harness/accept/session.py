"""Runs parts one after another within a budget; what came to its end is not run again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from filelock import FileLock, Timeout
from mmrepro.accept import running
from mmrepro.accept.provide import Provided
from mmrepro.accept.running import Place
from mmrepro.accept.sampling import Read, sampled, used
from mmrepro.accept.steps import Ended, Needs, Part, Step, broken, untested
from mmrepro.errors import ExitCode, UsageError
from mmrepro.incident.acceptance import (
    RESULT_FILE,
    SAMPLES_FILE,
    PartRecord,
    Row,
    Status,
    StepRecord,
)
from mmrepro.machine.cache import Device
from mmrepro.machine.files import open_plain, write_file
from mmrepro.records import Moment, Record
from mmrepro.text.redact import Redactor
from pydantic import ValidationError

STARTS_FILE = "starts.jsonl"
"""A line for each child that was started: what was killed and started again stands there twice."""
LOCK_FILE = ".lock"

R = TypeVar("R", bound=Record)


class Provides(Protocol):
    def get(self, needs: Sequence[Needs], left_s: float) -> Provided: ...


class Watcher(Protocol):
    """Is told what happens, and when there is more to be written down."""

    def began(self, part: Part, step: Step) -> None: ...

    def ended(self, part: Part, step: StepRecord, *, kept: bool) -> None: ...

    def changed(self, parts: list[PartRecord]) -> None: ...


@dataclass(frozen=True)
class Setup:
    device: Device
    budget_s: float
    """Wall-clock seconds, from :meth:`Session.execute` on."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """They make a child see the GPU that is taken; `mmrepro run` takes its own."""
    again: bool = False
    """Run once more what came to its end and did not pass."""


class Session:
    """Parts into ``folder``, one below it each.

    Args:
        read: the GPUs now, for the samples.
        run: starts a child; as :func:`running.run`.
    """

    def __init__(
        self,
        folder: Path,
        parts: Sequence[Part],
        setup: Setup,
        provider: Provides,
        watcher: Watcher,
        read: Read,
        run: Callable[..., Ended] = running.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.parts, self.setup = folder, parts, setup
        self._provider, self._watcher, self._read = provider, watcher, read
        self._run, self._clock = run, clock
        self._began = clock()
        self._redactor = Redactor()

    @property
    def left_s(self) -> float:
        return self.setup.budget_s - (self._clock() - self._began)

    def execute(self) -> list[PartRecord]:
        """Run what is left of all parts.

        Raises:
            KeyboardInterrupt: what had come to its end is on disk.
            UsageError: another command is at work in that folder.
        """
        done: list[PartRecord] = []
        with _alone(self.folder):
            self._began = self._clock()
            for part in self.parts:
                steps: list[StepRecord] = []
                done.append(self._record(part, steps))
                for step in part.steps:
                    steps.append(self._step(part, step))
                    done[-1] = self._record(part, steps)
                    self._watcher.changed(done)
                _write(self.folder / part.name / RESULT_FILE, done[-1])
        return done

    def _record(self, part: Part, steps: Sequence[StepRecord]) -> PartRecord:
        gpu = used(self.folder / part.name / SAMPLES_FILE)
        return PartRecord(part=part.name, title=part.shows, steps=list(steps), gpu=gpu)

    # ------------------------------------------------------------------ one step

    def _step(self, part: Part, step: Step) -> StepRecord:
        place = Place(self.folder / part.name, step.name)
        place.folder.mkdir(parents=True, exist_ok=True)
        known = _read(place.record, StepRecord)
        if known is not None and self._kept(known, step):
            self._watcher.ended(part, known, kept=True)
            return known
        self._watcher.began(part, step)
        record = self._redactor.redact_model(self._made(part, step, place))
        _write(place.record, record)
        self._watcher.ended(part, record, kept=False)
        return record

    def _kept(self, known: StepRecord, step: Step) -> bool:
        """Whether that record stands for ``step``."""
        if not known.whole or known.key != self._key(step):
            return False
        unhappy = inconclusive(known) or any(row.status is Status.FAILED for row in known.rows)
        return not (self.setup.again and unhappy)

    def _made(self, part: Part, step: Step, place: Place) -> StepRecord:
        began = self._clock()
        if self.setup.device not in step.devices:
            return self._without(step, [untested(step, step.why_not)], whole=True)
        if step.child.tests and not step.child.file.is_file():
            why = f"{step.child.words[0]} is not in an installed mmrepro: run it in the repository"
            return self._without(step, [untested(step, why)])
        provided = Provided(None)
        if step.child.needs:
            provided = self._provider.get(step.child.needs, self.left_s)
            if provided.python is None:
                row = untested(step, provided.why_not)
                return self._without(step, [row], over_budget=provided.over_budget)
        if step.estimate_s > self.left_s:
            told = f"about {step.estimate_s:.0f} s are needed, {max(0.0, self.left_s):.0f} s left"
            return self._without(step, [untested(step, f"the budget: {told}")], over_budget=True)
        shutil.rmtree(place.incident, ignore_errors=True)  # of one that was broken off
        self._note_start(part, step)
        created = Moment.now()
        with sampled(self._read, place.folder / SAMPLES_FILE, step.name):
            ended = self._run(
                step.child,
                self.setup.device,
                place,
                python=provided.python,
                limit_s=min(step.limit_s, self.left_s),
                before=self._documents(part, step),
                variables=self.setup.variables,
            )
        try:
            judged = step.judge(ended)
            rows, whole = judged.rows, judged.whole
        except Exception as error:  # a judge that fails never passes
            rows, whole = [broken(step, f"judging failed: {error!r}")], False
        return StepRecord(
            step=step.name,
            title=step.title,
            key=self._key(step),
            command=step.child.shown(self.setup.device),
            created=created,
            seconds=round(self._clock() - began, 2),
            exit_code=ended.exit_code,
            whole=whole,
            incident=f"{part.name}/{step.name}" if place.incident.is_dir() else "",
            rows=rows,
        )

    def _without(
        self, step: Step, rows: list[Row], *, whole: bool = False, over_budget: bool = False
    ) -> StepRecord:
        """Of a step of which nothing was started."""
        return StepRecord(
            step=step.name,
            title=step.title,
            key=self._key(step),
            command=step.child.shown(self.setup.device),
            created=Moment.now(),
            whole=whole,
            over_budget=over_budget,
            rows=rows,
        )

    def _key(self, step: Step) -> str:
        return step.child.key(self.setup.device)

    def _documents(self, part: Part, step: Step) -> dict[str, dict[str, Any]]:
        """What the part's earlier steps printed."""
        earlier = part.steps[: list(part.steps).index(step)]
        folder = self.folder / part.name
        return {one.name: running.document(Place(folder, one.name).printed) for one in earlier}

    def _note_start(self, part: Part, step: Step) -> None:
        line = {"part": part.name, "step": step.name, "at": Moment.now().wall.isoformat()}
        handle = open_plain(self.folder / STARTS_FILE, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def exit_code(parts: Sequence[PartRecord]) -> ExitCode:
    """The first of these that holds: 1: something failed; 4: nothing passed;
    3: something was broken off, came out inconclusive or did not fit the budget; else 0."""
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


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(
            f"Another mmrepro accept is at work in {folder}.", hint="wait for it, or --out DIR"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _read(path: Path, kind: type[R]) -> R | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path, record: Record) -> None:
    write_file(path, record.model_dump_json(indent=1) + "\n")
