"""One chronological list of what happened, and sparklines of what the sampler saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from mmrepro.base.text import one_line
from mmrepro.failure.documents import Incident
from mmrepro.reports.blocks import Block, Fence, Paragraph
from mmrepro.reports.words import sane, span
from mmrepro.traffic.evidence import Evidence, RequestRecord

_GIB: Final = 1 << 30
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LEVELS: Final = {"ok": "info", "client": "warning"}
"""Of what became of requests; all else is an error."""


@dataclass(frozen=True)
class TimelineLine:
    """``at`` is in seconds since the run began."""

    at: float
    phase: str
    source: str
    text: str
    level: str = "info"


def lines(incident: Incident) -> list[TimelineLine]:
    """Events and groups of requests, oldest first.

    Events of the client are left out where there are requests: the groups say it
    shorter."""
    evidence = incident.evidence
    began = incident.created.mono
    merged = []
    for event in evidence.events:
        if event.source == "client" and evidence.requests:
            continue
        at = event.at.mono - began
        merged.append(
            TimelineLine(
                at=at,
                phase=event.phase,
                source=event.source,
                text=event.text,
                level=event.level,
            )
        )

    for group in request_groups(evidence.requests):
        merged.append(_group_line(group, began))

    known = [line for line in merged if sane(line.at)]
    return sorted(known, key=lambda line: line.at)


def _group_line(group: _RequestGroup, began: float) -> TimelineLine:
    how = "after" if group.kind == "lost" else "in"
    return TimelineLine(
        at=group.first.sent.mono - began,
        phase=group.first.phase,
        source="client",
        text=f"{group.what}: {group.status} {how} {group.latency}",
        level=_LEVELS.get(group.kind, "error"),
    )


def status_words(request: RequestRecord) -> str:
    """Say how a request was answered: its HTTP status, or that it was not."""
    if request.timed_out:
        return "no answer"
    return "failed" if request.status is None else str(request.status)


def status_class(request: RequestRecord) -> str:
    """ok, client (4xx), server (5xx or no connection) or lost (no answer in time)."""
    if request.timed_out:
        return "lost"
    if request.status is None or request.status >= 500:
        return "server"
    if request.status >= 400:
        return "client"
    return "ok" if not request.error else "server"


@dataclass
class _RequestGroup:
    """Requests in a row that went alike."""

    requests: Sequence[RequestRecord]

    def __post_init__(self) -> None:
        self.first = self.requests[0]
        self.count = len(self.requests)
        self.status = status_words(self.first)
        self.kind = status_class(self.first)

    @property
    def latency(self) -> str:
        """A range."""
        return span(request.latency_s for request in self.requests)

    @property
    def ids(self) -> str:
        if self.count == 1:
            return f"{self.first.id}"
        return f"{self.first.id}–{self.requests[-1].id}"

    @property
    def what(self) -> str:
        """What for: a label, or several times their common purpose."""
        label = self.first.label
        if self.count == 1:
            return label
        return f"{self.count} × {purpose(label)}"


def request_groups(requests: list[RequestRecord]) -> list[_RequestGroup]:
    """Consecutive requests of one phase, purpose and status, as one row each."""
    ordered = sorted(requests, key=lambda r: (r.sent.mono, r.id))
    return [_RequestGroup([*alike]) for _, alike in groupby(ordered, _key)]


def purpose(label: str) -> str:
    """Take a number away: ``fill-7`` and ``fill 7`` are one purpose, ``fill``."""
    return label.rstrip("0123456789").rstrip(" -#_") or label


def _key(request: RequestRecord) -> tuple[str, str, str]:
    return request.phase, purpose(request.label), status_words(request)


@dataclass(frozen=True)
class SampledTrack:
    """One line of the sampler: ``points`` are (monotonic seconds, value)."""

    name: str
    points: list[tuple[float, float]]

    @property
    def most(self) -> float:
        return max(value for _, value in self.points)


def cpu_tracks(evidence: Evidence) -> list[SampledTrack]:
    """Read the CPU share of each process, in percent of one core."""
    return _tracks(evidence, "cpu_pct")


def metric_tracks(evidence: Evidence) -> list[SampledTrack]:
    """Read the engine's own metrics of requests."""
    return _tracks(evidence, "metrics")


def gpu_tracks(incident: Incident) -> list[SampledTrack]:
    """Utilisation in percent. Of several GPUs the engine's own are marked."""
    return _named(incident, _tracks(incident.evidence, "gpu_pct"))


def gpu_memory_tracks(incident: Incident) -> list[SampledTrack]:
    """Memory that processes hold, in GiB."""
    in_gib = []
    for track in _tracks(incident.evidence, "gpu_bytes"):
        points = [(mono, held / _GIB) for mono, held in track.points]
        in_gib.append(SampledTrack(track.name, points))

    return _named(incident, in_gib)


def _named(incident: Incident, tracks: list[SampledTrack]) -> list[SampledTrack]:
    """The engine's own first, and marked where there are others."""
    taken = {str(gpu.index) for gpu in incident.host.gpu_facts if gpu.taken}
    own: list[SampledTrack] = []
    others: list[SampledTrack] = []
    for track in tracks:
        gpu = track.name.partition("/")[0]
        (own if gpu in taken else others).append(track)

    mark = "engine " if others else ""
    named = [SampledTrack(f"{mark}GPU {track.name}", track.points) for track in own]
    return named + [SampledTrack(f"GPU {track.name}", track.points) for track in others]


def _tracks(evidence: Evidence, field: str) -> list[SampledTrack]:
    """Tracks of one field, the most active first; values that are not numbers are
    dropped."""
    # An incident may come from elsewhere: its order is not relied on.
    known = [point for point in evidence.series if sane(point.mono)]
    known.sort(key=lambda point: point.mono)

    by_name: dict[str, list[tuple[float, float]]] = {}
    for point in known:
        values: dict[str, float] = getattr(point, field)
        for name, value in values.items():
            if sane(value):
                by_name.setdefault(name, []).append((point.mono, value))

    tracks = [SampledTrack(name, points) for name, points in by_name.items()]
    return sorted(tracks, key=lambda track: -track.most)


def sparks(incident: Incident) -> list[Block]:
    """CPU, GPU and requests over the sampled time, as lines of text."""
    gpu = gpu_tracks(incident)
    memory = gpu_memory_tracks(incident)
    drawn = []
    for track in cpu_tracks(incident.evidence)[:6]:
        drawn.append(_spark(track.name, track, " %"))

    for track in gpu[:6]:
        drawn.append(_spark(track.name, track, " %"))

    for track in memory[:6]:
        drawn.append(_spark(f"{track.name} memory", track, " GiB"))

    for track in metric_tracks(incident.evidence)[:6]:
        drawn.append(_spark(f"requests {track.name}", track, ""))

    if not drawn:
        return []
    also = ", GPU" if gpu or memory else ""
    text = f"CPU (% of one core){also} and requests over the sampled time:"
    return [Paragraph(text), Fence("\n".join(drawn))]


def _spark(name: str, track: SampledTrack, unit: str) -> str:
    return f"{one_line(name, 22):<22} {sparkline(track)}  max {track.most:.0f}{unit}"


def sparkline(track: SampledTrack, width: int = 48) -> str:
    """The track's highest value in each of ``width`` equal spans of time."""
    start, end = track.points[0][0], track.points[-1][0]
    step = (end - start) / width or 1.0
    highest: dict[int, float] = {}
    for mono, value in track.points:
        # The last point lies on the end of the last span, which belongs to it.
        place = min(int((mono - start) / step), width - 1)
        highest[place] = max(value, highest.get(place, value))

    top = max(highest.values(), default=0.0) or 1.0
    drawn = []
    last = 0.0
    for place in range(width):
        # A span without a sample looks as the one before it.
        last = highest.get(place, last)
        level = min(max(last, 0.0) / top, 1.0)
        drawn.append(_BLOCKS[round(level * (len(_BLOCKS) - 1))])

    return "".join(drawn)
