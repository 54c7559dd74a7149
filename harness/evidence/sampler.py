"""Readings at a steady pace while a run lasts: what the timeline's picture is drawn from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from urllib.request import ProxyHandler, build_opener

from mmrepro.evidence import SeriesPoint
from mmrepro.evidence.recorder import Recorder
from mmrepro.probes.metrics import parse_metrics
from mmrepro.probes.processes import CpuMeter

INTERVAL_S = 0.25
METRICS_EVERY = 2
SHOWN = ("running", "waiting", "finished")


class Sampler:
    """A thread that reads CPU by role four times a second and a few metrics twice a second."""

    def __init__(
        self,
        recorder: Recorder,
        root_pid: int,
        metrics_url: str,
        names: Mapping[str, tuple[str, ...]],
        role_of: Callable[[str, str], str] | None = None,
    ) -> None:
        self.recorder = recorder
        self.url = metrics_url
        self.names = {short: names[short] for short in SHOWN if short in names}
        self._meter = CpuMeter(root_pid, role_of=role_of)
        self._stop = threading.Event()
        self._with_metrics = threading.Event()
        self._opener = build_opener(ProxyHandler({}))
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read_metrics(self) -> None:
        """From now on read metrics as well, if the engine has any: the server is up."""
        if self.names:
            self._with_metrics.set()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(INTERVAL_S):
            count += 1
            point = SeriesPoint(mono=round(time.monotonic(), 3), cpu_pct=self._meter.read())
            if self._with_metrics.is_set() and count % METRICS_EVERY == 0:
                point.metrics = self._metrics()
            self.recorder.point(point)

    def _metrics(self) -> dict[str, float]:
        try:
            with self._opener.open(self.url, timeout=2) as answer:
                text = answer.read(4 << 20).decode("utf-8", "replace")
        except (OSError, ValueError):
            return {}
        wanted = {name for names in self.names.values() for name in names}
        lines = [ln for ln in text.splitlines() if ln.split("{")[0].split(" ")[0] in wanted]
        samples, _ = parse_metrics("\n".join(lines) + "\n")
        found = {}
        for short, names in self.names.items():
            for name in names:
                values = [s.value for s in samples if s.name == name and s.value is not None]
                if values:
                    found[short] = sum(values)
                    break
        return found
