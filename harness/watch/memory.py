"""Whether a process's memory grows with each request, over a long time. Pure but for the readings.

Caches grow as well, until they are full: only what goes on growing as it began, past what the
caches may take, is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from mmrepro.base import units
from mmrepro.diagnose.classes_logged import named
from mmrepro.incident.diagnosis import Certainty, LiveClass, NamedClass

SETTLE_S = 600.0
"""After a process was first seen: it warms up."""
SPAN_S = 1800.0
"""Shorter than that nothing is said."""
SURE_S = 7200.0
REQUESTS = 100
"""Finished in that time, at least."""
LEAST_BYTES = 256 << 20
"""Allocators and lists of blocks grow by that much in a healthy server."""
PARTS = 4
"""Of the time, each of which has to have grown; the last by at least half of their mean."""
MOST_SAMPLES = 256
MIB = 1 << 20


CACHE_GB = 4.0
"""``mm_processor_cache_gb`` of vllm/config/multimodal.py, 0.11.0 to 0.32.0."""


def caches_bytes(command: Sequence[str]) -> int:
    """What vLLM's multimodal cache may take of each process's memory, by the server's options."""
    option, size = "--mm-processor-cache-gb", CACHE_GB
    for word, after in zip(command, [*command[1:], ""], strict=True):
        value = after if word == option else word.removeprefix(f"{option}=")
        if word.startswith(option):
            with contextlib.suppress(ValueError):
                size = float(value)
    return int(size * 2**30)


@dataclass
class _Course:
    """One process. ``samples``: second, requests finished so far, resident bytes."""

    role: str
    first_seen: float
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    def add(self, at: float, requests: float, rss_bytes: int) -> None:
        if at - self.first_seen < SETTLE_S:
            return
        if self.samples and requests < self.samples[-1][1]:
            self.samples.clear()  # counted anew
        self.samples.append((at, requests, rss_bytes))
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1:-1:2]


class Growth:
    """Takes readings, some seconds apart, of one server's processes."""

    def __init__(self) -> None:
        self._courses: dict[tuple[int, int], _Course] = {}

    def observe(
        self, at: float, requests: float, processes: Mapping[tuple[int, int], tuple[str, int]]
    ) -> None:
        """Take one reading.

        Args:
            at: seconds on the monotonic clock.
            requests: finished since the server's start.
            processes: (pid, start in clock ticks): role and resident bytes.
        """
        self._courses = {k: c for k, c in self._courses.items() if k in processes}
        for key, (role, rss_bytes) in processes.items():
            course = self._courses.setdefault(key, _Course(role, at))
            course.add(at, requests, rss_bytes)

    def named(self, caches_bytes: int = 0) -> NamedClass | None:
        """The class, where a process grows. ``caches_bytes``: what its caches may take of it."""
        grown = [
            told
            for (pid, _), course in self._courses.items()
            if (told := _told(pid, course, max(LEAST_BYTES, caches_bytes)))
        ]
        if not grown:
            return None
        return named(
            LiveClass.MEMORY_GROWS,
            Certainty.LIKELY if any(sure for sure, _ in grown) else Certainty.POSSIBLE,
            "The memory of the server grows with the requests that it answers.",
            [text for _, text in grown],
        )


def _told(pid: int, course: _Course, allowed_bytes: int) -> tuple[bool, str] | None:
    samples = course.samples
    if len(samples) < 2 * PARTS or samples[-1][0] - samples[0][0] < SPAN_S:
        return None
    began, seconds = samples[0][0], samples[-1][0] - samples[0][0]
    parts: list[list[tuple[float, float, int]]] = [[] for _ in range(PARTS)]
    for sample in samples:
        parts[min(PARTS - 1, int((sample[0] - began) / seconds * PARTS))].append(sample)
    if not all(parts):
        return None
    # Of time, requests and bytes: a sample that stands out decides nothing.
    middles = [tuple(map(median, zip(*part, strict=True))) for part in parts]
    steps = [after[2] - before[2] for before, after in pairwise(middles)]
    took, requests, grown = (
        last - first for first, last in zip(middles[0], middles[-1], strict=True)
    )
    steady = min(steps) > 0 and steps[-1] >= 0.5 * grown / len(steps)
    if not steady or requests < REQUESTS or grown < allowed_bytes:
        return None
    text = (
        f"{course.role} (pid {pid}) grew by {units.size(grown)} over {requests:.0f} requests in "
        f"{units.duration(took)}: {units.size(grown / requests, 1)} a request"
    )
    return seconds >= SURE_S, text
