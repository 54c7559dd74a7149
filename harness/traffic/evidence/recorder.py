"""Where a run's evidence accumulates, from several threads and tasks, and the readings
at a steady pace that its timeline is drawn from."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from mmrepro.base.machine import Nvml, NvmlAbsent, local_get
from mmrepro.base.records import EVIDENCE_DIR, Moment
from mmrepro.base.text import Mask, unmasked
from mmrepro.probes import AnyProbeResult, CpuMeter, parse_metrics
from mmrepro.traffic.evidence.model import (
    Event,
    Evidence,
    Phase,
    RequestRecord,
    SeriesPoint,
)

_Level = Literal["info", "warning", "error"]
Listener = Callable[[Event], None]


class Recorder:
    """Collects evidence; every event is also told to ``listener`` (the progress
    display). ``mask`` is for whoever writes raw files to ``dir``."""

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

    def event(
        self, text: str, *, source: str = "harness", level: _Level = "info"
    ) -> None:
        event = Event(
            at=Moment.now(), phase=self.phase, source=source, text=text, level=level
        )
        with self._lock:
            self.evidence.events.append(event)
        if self._listener is not None:
            self._listener(event)

    def next_id(self) -> int:
        return next(self._ids)

    def request(self, record: RequestRecord) -> None:
        with self._lock:
            self.evidence.requests.append(record)
        self.event(record.told, source="client", level=_level(record))

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


def _level(record: RequestRecord) -> _Level:
    if record.left:
        return "info"
    if record.timed_out or record.status is None or record.status >= 500:
        return "error"
    return "info" if record.status < 400 else "warning"


_INTERVAL_S = 0.25
_MOST_METRICS = 4 << 20
_METRICS_EVERY = 2
GPU_INTERVAL_S = 0.5
"""NVML measures utilisation over a span of its own, 1/6 s to 1 s by its
documentation."""
_SHOWN = ("running", "waiting", "finished")


class Pace:
    """A thread that takes a reading every ``interval_s`` seconds until it is
    stopped."""

    def __init__(self, recorder: Recorder, name: str, interval_s: float) -> None:
        self.recorder = recorder
        self.interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        raise NotImplementedError


class GpuSampler(Pace):
    """Utilisation and memory of every GPU, twice a second. A thread of its own: a GPU
    that is lost may keep whoever asks waiting."""

    def __init__(self, recorder: Recorder, binding: Any = None) -> None:
        super().__init__(recorder, "gpu-sampler", GPU_INTERVAL_S)
        self._binding = binding

    def _run(self) -> None:
        try:
            with Nvml(self._binding) as nvml:
                while not self._stop.wait(self.interval_s):
                    self._point(nvml)
        except NvmlAbsent as absent:
            self.recorder.event(f"the GPU is not sampled: {absent}", level="warning")

    def _point(self, nvml: Nvml) -> None:
        mono = time.monotonic()
        seen = nvml.sample()
        pct: dict[str, float] = {}
        held: dict[str, float] = {}
        for gpu, (used_pct, used_bytes) in seen.items():
            if used_pct is not None:
                pct[str(gpu)] = float(used_pct)
            if used_bytes is not None:
                held[str(gpu)] = float(used_bytes)
        if len(pct) < len(seen):
            # A GPU that is cut into slices (MIG) has no utilisation of its own.
            for (gpu, number), used in nvml.sample_slices().items():
                if used is not None:
                    held[f"{gpu}/{number}"] = float(used)
        if pct or held:
            point = SeriesPoint(mono=round(mono, 3), gpu_pct=pct, gpu_bytes=held)
            self.recorder.point(point)


class Sampler(Pace):
    """CPU by role four times a second and a few metrics twice a second; ``gpu``: a
    sampler that goes along."""

    def __init__(
        self,
        recorder: Recorder,
        root_pid: int,
        metrics_url: str,
        names: Mapping[str, tuple[str, ...]],
        role_of: Callable[[str, str], str] | None = None,
        gpu: GpuSampler | None = None,
    ) -> None:
        super().__init__(recorder, "sampler", _INTERVAL_S)
        self.url = metrics_url
        self.names = {short: names[short] for short in _SHOWN if short in names}
        self._meter = CpuMeter(root_pid, role_of=role_of)
        self._with_metrics = threading.Event()
        self._gpu = gpu

    def start(self) -> None:
        super().start()
        if self._gpu is not None:
            self._gpu.start()

    def read_metrics(self) -> None:
        """From now on read metrics as well, if the engine has any: the server is up."""
        if self.names:
            self._with_metrics.set()

    def stop(self) -> None:
        super().stop()
        if self._gpu is not None:
            self._gpu.stop()

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(self.interval_s):
            count += 1
            mono = round(time.monotonic(), 3)
            point = SeriesPoint(mono=mono, cpu_pct=self._meter.read())
            if self._with_metrics.is_set() and count % _METRICS_EVERY == 0:
                point.metrics = self._metrics()
            self.recorder.point(point)

    def _metrics(self) -> dict[str, float]:
        """Return the shown metrics, each summed over its label sets; {}: the server does
        not answer."""
        try:
            status, body = local_get(self.url, _MOST_METRICS)
        except OSError:
            return {}
        if status != HTTPStatus.OK:
            return {}
        text = body.decode("utf-8", "replace")

        # Only the lines that are wanted are parsed: the whole text has thousands.
        wanted: set[str] = set()
        for names in self.names.values():
            wanted.update(names)
        lines: list[str] = []
        for line in text.splitlines():
            name = line.split("{")[0].split(" ")[0]
            if name in wanted:
                lines.append(line)
        samples, _ = parse_metrics("\n".join(lines) + "\n")
        values: dict[str, list[float]] = {}
        for sample in samples:
            if sample.value is not None:
                values.setdefault(sample.name, []).append(sample.value)

        metrics: dict[str, float] = {}
        for short, names in self.names.items():
            for name in names:
                if name in values:
                    metrics[short] = sum(values[name])
                    break
        return metrics
