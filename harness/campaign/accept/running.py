"""One step: its environment, its child within its time, and what the child left,
judged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from mmrepro.base.errors import MmreproError
from mmrepro.base.machine.files import Device, open_plain
from mmrepro.base.machine.host import child_environment
from mmrepro.base.machine.nvml import Nvml, NvmlAbsent
from mmrepro.base.records import Moment, Record
from mmrepro.base.units import duration
from mmrepro.campaign.accept.judging import Ended, Part, Step, broken, untested
from mmrepro.campaign.trial import spawn, spawn_program
from mmrepro.campaign.work import Began, Here, WithoutEnvironment, Working
from mmrepro.engines import spec_for
from mmrepro.engines.environments.build import existing
from mmrepro.failure.documents.acceptance import (
    SAMPLES_FILE,
    GpuUse,
    Peak,
    Row,
    StepRecord,
)

INTERVAL_S = 1.0


class Sample(NamedTuple):
    """One GPU at one moment; what NVML does not tell is None."""

    gpu: int
    utilisation_pct: float | None
    memory_bytes: float | None


Read = Callable[[], Sequence[Sample]]


@contextmanager
def nvml_samples() -> Iterator[Read]:
    """What NVML tells, which is opened once; where it is absent, nothing."""
    try:
        with Nvml() as nvml:
            yield lambda: [Sample(gpu, *told) for gpu, told in nvml.sample().items()]
    except NvmlAbsent:
        yield lambda: []


@contextmanager
def sampled(
    read: Read, file: Path, step: str, interval_s: float = INTERVAL_S
) -> Iterator[None]:
    """Append a line for each GPU to ``file`` every ``interval_s`` seconds, while this
    lasts.

    A reading that fails is left out: the gap in the times tells.
    """
    over = threading.Event()
    handle = open_plain(file, os.O_WRONLY | os.O_APPEND)

    def look() -> None:
        with os.fdopen(handle, "a", encoding="utf-8") as lines:
            while True:
                at = datetime.now(UTC).isoformat(timespec="milliseconds")
                # Whatever a driver raises: this is beside the point of the step.
                with suppress(Exception):
                    for one in read():
                        line = {"at": at, "step": step, **one._asdict()}
                        lines.write(json.dumps(line) + "\n")
                lines.flush()
                if over.wait(interval_s):
                    return

    thread = threading.Thread(target=look, name="gpu-samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


def used(file: Path) -> list[GpuUse]:
    """Least and most of each step and GPU, in the order of their first readings."""
    found: dict[tuple[str, int], list[dict[str, float | None]]] = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for line in lines:
        # The last line of a command that was killed is torn.
        with suppress(ValueError, LookupError, TypeError):
            one = json.loads(line)
            found.setdefault((one["step"], one["gpu"]), []).append(one)
    return [
        GpuUse(
            step=step,
            gpu=gpu,
            readings=len(readings),
            utilisation_pct=_peak(one.get("utilisation_pct") for one in readings),
            memory_bytes=_peak(one.get("memory_bytes") for one in readings),
        )
        for (step, gpu), readings in found.items()
    ]


def _peak(values: Iterable[float | None]) -> Peak | None:
    known = [value for value in values if value is not None]
    return Peak(least=min(known), most=max(known)) if known else None


BUILD_ESTIMATE_S = 300.0
LAST_WORDS = 600
MAX_DOCUMENT = 16 << 20


def beside(incident: Path, kind: str) -> Path:
    """A file of the step whose incident's folder that is: ``json``, ``out``, ``err`` or
    ``xml``."""
    return incident.with_name(f"{incident.name}.{kind}")


@dataclass(frozen=True)
class StepRun(WithoutEnvironment):
    """The order of one step.

    Attributes:
        variables: for a script, those that make it see the GPU that is taken.
        until: of the place's clock; no child has more time.
    """

    began: Began
    part: Part
    step: Step
    device: Device
    variables: Mapping[str, str]
    until: float

    @property
    def name(self) -> str:
        return self.began.what

    @property
    def campaign(self) -> str:
        return "accept"

    def folder(self, began: Began) -> Path:
        return Path(began.id)

    def files(self, result: Record) -> str:
        assert isinstance(result, StepRecord)
        return result.incident

    def not_carried(self, result: Record, why: str) -> Record:
        rows = [broken(self.step, why)]
        return result.model_copy(update={"rows": rows, "whole": False, "incident": ""})

    def carry_out(self, here: Here, root: Path) -> Working:
        (root / self.part.name).mkdir(parents=True, exist_ok=True)
        python, left_s, record = self._ready(here)
        if record is None:
            yield self.began
            record = self._made(here, root / self.folder(self.began), python, left_s)
        yield record

    def _ready(self, here: Here) -> tuple[Path | None, float, StepRecord | None]:
        """The interpreter of a script, and the time that is left; the record of a step
        of which nothing is started."""
        step, child = self.step, self.step.child
        if self.device not in step.devices:
            return None, 0.0, self._without(step.why_not, whole=True)
        if (child.tests or child.reads) and not child.file.is_file():
            name = child.reads or child.words[0]
            why = f"{name} is not in an installed mmrepro: run it in the repository"
            return None, 0.0, self._without(why)
        python, why, late = self._python(here) if child.needs else (None, "", False)
        left_s = self.until - here.clock()
        if not why and step.estimate_s > left_s:
            needed, left = duration(step.estimate_s), duration(max(0.0, left_s))
            why, late = f"the budget: about {needed} are needed, {left} left", True
        return python, left_s, self._without(why, over_budget=late) if why else None

    def _made(
        self, here: Here, incident: Path, python: Path | None, left_s: float
    ) -> StepRecord:
        step, created, began = self.step, Moment.now(), here.clock()
        shutil.rmtree(incident, ignore_errors=True)  # of one that was broken off
        with (
            nvml_samples() as read,
            sampled(read, incident.with_name(SAMPLES_FILE), step.name),
        ):
            ended = self._run(here, incident, python, min(step.limit_s, left_s))
        try:
            judged = step.judge(ended)
            rows, whole = judged.rows, judged.whole
        except Exception as error:  # a judge that fails never passes
            rows, whole = [broken(step, f"judging failed: {error!r}")], False
        return self._record(
            rows,
            created=created,
            seconds=round(here.clock() - began, 2),
            exit_code=ended.exit_code,
            whole=whole,
            incident=self.began.id if incident.is_dir() else "",
        )

    def _run(
        self, here: Here, incident: Path, python: Path | None, limit_s: float
    ) -> Ended:
        """Run the child; one that outruns ``limit_s`` seconds is ended, with its
        engine.

        Raises:
            KeyboardInterrupt: the child has been ended.
        """
        began, code = time.monotonic(), None
        printed, errors = beside(incident, "out"), beside(incident, "err")
        with _emptied(printed) as stdout, _emptied(errors) as stderr:
            start = partial(self._start, incident, python, stdout, stderr)
            # A late one is ended as this block is left.
            late = contextlib.suppress(subprocess.TimeoutExpired)
            with late, here.children.running(start) as process:
                code = process.wait(limit_s)
        if here.stopped():
            raise KeyboardInterrupt
        earlier = self.part.steps[: list(self.part.steps).index(self.step)]
        names = [one.name for one in earlier]
        return Ended(
            device=self.device,
            exit_code=code,
            seconds=round(time.monotonic() - began, 2),
            limit_s=limit_s,
            incident=incident,
            report=beside(incident, "xml"),
            words=_last_words(errors),
            document=document(printed),
            before={n: document(beside(incident.with_name(n), "out")) for n in names},
        )

    def _start(
        self, incident: Path, python: Path | None, stdout: IO[bytes], stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        child = self.step.child
        arguments = child.arguments(self.device)
        if child.reads:
            arguments[arguments.index(child.reads)] = str(child.file)
        if child.script or child.tests:
            command = [str(python), str(child.file), *arguments[1:]]
            if child.tests:
                command[1:1] = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
                command += ["--junitxml", str(beside(incident, "xml"))]
            plain = child_environment(self.variables)
            return spawn_program(command, plain, stdout=stdout, stderr=stderr)
        plain = {**os.environ, "NO_COLOR": "1"}
        if child.incident:
            # What it prints is the incident that it writes.
            return spawn([*arguments, "--out", str(incident)], plain, stderr=stderr)
        return spawn(arguments, plain, stdout=stdout, stderr=stderr)

    def _without(self, why: str, **what: bool) -> StepRecord:
        return self._record([untested(self.step, why)], **what)

    def _record(self, rows: list[Row], **what: Any) -> StepRecord:
        step = self.step
        return StepRecord(
            **{
                "step": step.name,
                "title": step.title,
                "key": step.child.key(self.device),
                "command": step.child.shown(self.device),
                "created": Moment.now(),
                "whole": False,
                "rows": rows,
                **what,
            }
        )

    def _python(self, here: Here) -> tuple[Path | None, str, bool]:
        """The interpreter of the first environment that is there, else of one that is
        built now; why there is none; and whether that is for want of time."""
        specs, why = [], ""
        for needed in self.step.child.needs:
            try:
                spec = spec_for(needed.engine, needed.release, self.device)
            except MmreproError as error:
                why = error.message
                continue
            if (environment := existing(spec)) is not None:
                return environment.python, "", False
            specs.append((f"{needed} ({self.device})", spec))
        for name, spec in specs:
            left_s = self.until - here.clock()
            if left_s < BUILD_ESTIMATE_S and not here.provisions.failed(spec):
                about = f"which takes about {duration(BUILD_ESTIMATE_S)}"
                return None, f"the budget: {name} is not built, {about}", True
            why = here.provisions.provide(spec, name, left_s)
            if not why and (environment := existing(spec)) is not None:
                return environment.python, "", False
            why = f"no environment of {name} is here: {why}"
        return None, why, False


def _emptied(path: Path) -> IO[bytes]:
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_TRUNC), "wb")


def _last_words(file: Path) -> str:
    """The end of what it wrote to stderr, in one line."""
    text = file.read_bytes()[-LAST_WORDS * 4 :].decode("utf-8", "replace")
    return " ".join(text.split())[-LAST_WORDS:]


def document(file: Path) -> dict[str, Any]:
    """The JSON object that a child printed; {}: it printed none."""
    try:
        if file.stat().st_size > MAX_DOCUMENT:
            return {}
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
