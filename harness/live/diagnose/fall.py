"""The moment of a fall: all evidence of one look, written before anybody restarts the
server, and judged afterwards.

What is collected is what a live look collects, so that both conclude the same. The
record is written while the look goes on: a pod that is killed meanwhile leaves what was
seen by then."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from mmrepro import __version__
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import SHORT_SHARE, Lateness, replacing
from mmrepro.base.records import Moment
from mmrepro.base.text import Redactor, mask_of
from mmrepro.failure.documents import (
    FALL_FILE,
    Cause,
    Diagnosis,
    FallRecord,
    read_fall,
)
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose import classes_logged, discover
from mmrepro.live.diagnose.collect import BESIDE_S, Collector
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.session import _observe, _unseen, judged, secrets
from mmrepro.live.diagnose.shapes import open_requests
from mmrepro.probes import LogLine, LogsData
from mmrepro.probes.log_words import public_line
from mmrepro.scenario import Scenario
from mmrepro.traffic.evidence import Evidence, Recorder

SAMPLES = 10
"""Of each stack: a hang is a stack that stays, and a slow step moves within ten."""
_LEAST_REQUEST_S = 1.0
_EVERY_S = 2.0
"""Between two writings of a record that is not complete."""


def capture_fall(
    options: DiagnoseCommand, folder: Path, why: str, within_s: float
) -> FallRecord:
    """Look at a server that has just failed, for at most some ``within_s`` seconds, and
    write what was seen to ``folder``.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    redactor = Redactor()
    sent = {s: redactor.add(s, "header") for s in secrets(options.headers)}
    mask = mask_of({secret: words for secret, words in sent.items() if words})
    recorder = Recorder(folder, mask=mask)
    recorder.phase = "check"
    recorder.dir.mkdir(exist_ok=True)
    deadline_s = max(_LEAST_REQUEST_S, within_s - BESIDE_S)
    plan = _with(options, deadline_s)
    scenarios = all_scenarios(plan.scenarios, trust=plan.trust)
    target = discover.find(plan.url, plan.pid)
    collector = Collector(target, plan, recorder)
    lateness = Lateness()
    writing = _Writing(folder, target, collector, why, deadline_s, redactor, lateness)
    with lateness, writing:
        try:
            _observe(plan, target, collector, scenarios)
        finally:
            collector.close()
        cause = classes_logged.cause_of(DiagnosisView(target.facts, recorder.evidence))
        return writing.finish(cause, _unseen(target, recorder.evidence))


def _with(options: DiagnoseCommand, deadline_s: float) -> DiagnoseCommand:
    from dataclasses import replace

    return replace(options, deadline_s=deadline_s, samples=SAMPLES)


class _Writing:
    """Writes the record every few seconds while it is entered."""

    def __init__(
        self,
        folder: Path,
        target: ServerTarget,
        collector: Collector,
        why: str,
        deadline_s: float,
        redactor: Redactor,
        lateness: Lateness,
    ) -> None:
        self._file = folder / FALL_FILE
        self._target = target
        self._collector = collector
        self._why = why
        self._deadline_s = deadline_s
        self._redactor = redactor
        self._taken = Moment.now()
        self._lateness = lateness
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fall", daemon=True)

    def __enter__(self) -> _Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def finish(self, cause: Cause | None, unseen: list[str]) -> FallRecord:
        """Write the whole record."""
        self._over.set()
        record = self._record()
        record.complete, record.cause, record.unseen = True, cause, unseen
        record.effect = self._collector.effect()
        return self._write(record)

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            record = self._record()
            # A look notes it at its end, which this one may not reach.
            if self._lateness.share > SHORT_SHARE:
                record.evidence.facts[LATENESS] = round(self._lateness.share, 2)
            self._write(record)

    def _record(self) -> FallRecord:
        evidence = self._collector.evidence
        return FallRecord(
            mmrepro_version=__version__,
            taken=self._taken,
            why=self._why,
            deadline_s=self._deadline_s,
            target=self._target.facts,
            evidence=without_words(evidence),
            requests=open_requests(evidence),
        )

    def _write(self, record: FallRecord) -> FallRecord:
        shown = self._redactor.redact_model(record)
        with self._lock, replacing(self._file) as file:
            file.write(shown.model_dump_json().encode())
        return shown


def without_words(evidence: Evidence) -> Evidence:
    """The same evidence; of log lines the words of clients are left out."""
    own = {"probes": list(evidence.probes), "facts": dict(evidence.facts)}
    kept = evidence.model_copy(update=own)
    for place, result in enumerate(kept.probes):
        if isinstance(result.data, LogsData):
            fields = {name: _public(value) for name, value in result.data}
            data = result.data.model_copy(update=fields)
            kept.probes[place] = result.model_copy(update={"data": data})
    return kept


def _public(value: object) -> object:
    """The same value; of each log line in it the words of clients are left out."""
    if isinstance(value, LogLine):
        return value.model_copy(update={"text": public_line(value)})
    if isinstance(value, list):
        return [_public(item) for item in value]
    if isinstance(value, dict):
        return {key: _public(item) for key, item in value.items()}
    return value


def diagnose_fall(
    folder: Path, named: Sequence[str] = (), *, trust: bool = False
) -> Diagnosis:
    """Judge what a watch has kept in ``folder``.

    Raises:
        UsageError: it holds no such record, or a damaged one.
    """
    return _judge(_read(folder), all_scenarios(named, trust=trust), folder)


def _read(folder: Path) -> FallRecord:
    try:
        return read_fall(folder)
    except FileNotFoundError:
        raise UsageError(
            f"{folder} holds no {FALL_FILE}, which mmrepro watch writes.",
            hint="mmrepro diagnose http://127.0.0.1:8000; of logs: mmrepro logs DIR",
        ) from None
    except ValueError:
        raise UsageError(
            f"{folder} holds a damaged {FALL_FILE}.", hint="mmrepro logs DIR"
        ) from None


def _judge(
    record: FallRecord, scenarios: Sequence[Scenario], folder: Path
) -> Diagnosis:
    facts, evidence = record.target, record.evidence
    cause = record.cause or classes_logged.cause_of(DiagnosisView(facts, evidence))
    diagnosis = judged(evidence, facts, record.deadline_s, scenarios, cause)
    diagnosis.taken = record.taken
    diagnosis.unseen = record.unseen
    if not record.complete:
        diagnosis.unseen = [*record.unseen, "the rest: the look was cut short"]
    diagnosis.effect = record.effect
    diagnosis.incident_dir = str(folder)
    return diagnosis
