"""Where a run's evidence accumulates, from several threads and tasks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from mmrepro.evidence import Event, Evidence, Phase, RequestRecord, SeriesPoint
from mmrepro.probes.data import AnyProbeResult
from mmrepro.records import EVIDENCE_DIR, Moment
from mmrepro.text.sanitize import Mask, unmasked

Level = Literal["info", "warning", "error"]
Listener = Callable[[Event], None]


class Recorder:
    """Collects evidence; every event is also told to ``listener`` (the progress display). ``mask``
    is for whoever writes raw files to ``dir``."""

    def __init__(
        self, run_dir: Path, listener: Listener | None = None, *, mask: Mask = unmasked
    ) -> None:
        self.dir = run_dir / EVIDENCE_DIR
        self.mask = mask
        self.evidence = Evidence()
        self.phase: Phase = "start"
        self._listener = listener
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def event(self, text: str, *, source: str = "harness", level: Level = "info") -> None:
        event = Event(at=Moment.now(), phase=self.phase, source=source, text=text, level=level)
        with self._lock:
            self.evidence.events.append(event)
        if self._listener is not None:
            self._listener(event)

    def next_id(self) -> int:
        return next(self._ids)

    def request(self, record: RequestRecord) -> None:
        with self._lock:
            self.evidence.requests.append(record)
        self.event(describe(record), source="client", level=_level(record))

    def probe(self, result: AnyProbeResult) -> None:
        with self._lock:
            self.evidence.probes.append(result)
        tail = f": {result.reason}" if result.reason else ""
        self.event(
            f"probe {result.probe}: {result.status} in {result.seconds:.2f} s{tail}",
            source="probe",
            level="info" if result.ok else "warning",
        )

    def point(self, point: SeriesPoint) -> None:
        with self._lock:
            self.evidence.series.append(point)


def describe(record: RequestRecord) -> str:
    """One line: ``image X, too long: 400 in 0.05 s (…)``."""
    if record.timed_out:
        return f"{record.label}: no answer in {record.latency_s:.1f} s"
    if record.left:
        return f"{record.label}: the client went away after {record.latency_s:.2f} s"
    status = "no HTTP answer" if record.status is None else str(record.status)
    tail = f" ({record.error[:160]})" if record.error else ""
    if record.cached_tokens is not None:
        tail += f", {record.cached_tokens} of {record.prompt_tokens} prompt tokens cached"
    return f"{record.label}: {status} in {record.latency_s:.2f} s{tail}"


def _level(record: RequestRecord) -> Level:
    if record.left:
        return "info"
    if record.timed_out or record.status is None or record.status >= 500:
        return "error"
    return "info" if record.status < 400 else "warning"
