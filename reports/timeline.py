"""One chronological list of what happened, and sparklines of what the sampler saw."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents import Incident
from mmrepro.reports.blocks import Block, Fence, Paragraph
from mmrepro.reports.words import sane, span
from mmrepro.traffic.evidence import Evidence, RequestRecord

_GIB: Final = 1 << 30
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Line:
    """``at`` is in seconds since the run began."""

    at: float
    phase: str
    source: str
    text: str
    level: str = "info"


def lines(incident: Incident) -> list[Line]:
    """Events and groups of requests, oldest first.

    Events of the client are left out where there are requests: the groups say it
    shorter."""
    evidence = incident.evidence
    merged = [
        Line(e.at.mono - incident.created.mono, e.phase, e.source, e.text, e.level)
        for e in evidence.events
        if not (e.source == "client" and evidence.requests)
    ]
    for group in request_groups(evidence.requests):
        at, phase = group.first.sent.mono - incident.created.mono, group.first.phase
        how = (
            f"in {group.latency}" if group.kind != "lost" else f"after {group.latency}"
        )
        level = {"ok": "info", "client": "warning"}.get(group.kind, "error")
        merged.append(
            Line(at, phase, "client", f"{group.what}: {group.status} {how}", level)
        )
    return sorted((m for m in merged if sane(m.at)), key=lambda m: m.at)


def status_words(request: RequestRecord) -> str:
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
class RequestGroup:
    """Requests in a row that went alike."""

    requests: Sequence[RequestRecord]

    def __post_init__(self) -> None:
        self.first, self.count = self.requests[0], len(self.requests)
        self.status, self.kind = status_words(self.first), status_class(self.first)

    @property
    def latency(self) -> str:
        """A range."""
        return span(request.latency_s for request in self.requests)

    @property
    def ids(self) -> str:
        return (
            f"{self.first.id}–{self.requests[-1].id}"
            if self.count > 1
            else f"{self.first.id}"
        )

    @property
    def what(self) -> str:
        """What for: a label, or several times their common purpose."""
        label = self.first.label
        return f"{self.count} × {purpose(label)}" if self.count > 1 else label


def request_groups(requests: list[RequestRecord]) -> list[RequestGroup]:
    """Consecutive requests of one phase, purpose and status, as one row each."""
    ordered = sorted(requests, key=lambda r: (r.sent.mono, r.id))
    return [RequestGroup([*alike]) for _, alike in groupby(ordered, _key)]


def purpose(label: str) -> str:
    """``fill-7`` and ``fill 7`` are one purpose: ``fill``."""
    return label.rstrip("0123456789").rstrip(" -#_") or label


def _key(request: RequestRecord) -> tuple[str, str, str]:
    return request.phase, purpose(request.label), status_words(request)


@dataclass(frozen=True)
class Track:
    """One line of the sampler: ``points`` are (monotonic seconds, value)."""

    name: str
    points: list[tuple[float, float]]

    @property
    def most(self) -> float:
        return max(value for _, value in self.points)


def cpu_tracks(evidence: Evidence) -> list[Track]:
    return _tracks(evidence, "cpu_pct")


def metric_tracks(evidence: Evidence) -> list[Track]:
    return _tracks(evidence, "metrics")


def gpu_tracks(incident: Incident) -> list[Track]:
    """Utilisation in percent. Of several GPUs the engine's own are marked."""
    return _named(incident, _tracks(incident.evidence, "gpu_pct"))


def gpu_memory_tracks(incident: Incident) -> list[Track]:
    """Memory that processes hold, in GiB."""
    tracks = _tracks(incident.evidence, "gpu_bytes")
    in_gib = [
        Track(t.name, [(mono, held / _GIB) for mono, held in t.points]) for t in tracks
    ]
    return _named(incident, in_gib)


def _named(incident: Incident, tracks: list[Track]) -> list[Track]:
    """The engine's own first, and marked where there are others."""
    own = {str(gpu.index) for gpu in incident.host.gpu_facts if gpu.taken}
    several = any(t.name.partition("/")[0] not in own for t in tracks)

    def name(track: Track) -> str:
        mark = "engine " if several and track.name.partition("/")[0] in own else ""
        return f"{mark}GPU {track.name}"

    tracks = sorted(tracks, key=lambda t: t.name.partition("/")[0] not in own)
    return [Track(name(track), track.points) for track in tracks]


def _tracks(evidence: Evidence, field: str) -> list[Track]:
    """Tracks of one field, the most active first; values that are not numbers are
    dropped."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for point in sorted(evidence.series, key=lambda p: p.mono if sane(p.mono) else 0.0):
        values: dict[str, float] = getattr(point, field)
        for name, value in values.items():
            if sane(value) and sane(point.mono):
                by_name.setdefault(name, []).append((point.mono, value))
    tracks = [Track(name, points) for name, points in by_name.items()]
    return sorted(tracks, key=lambda t: -t.most)


def sparks(incident: Incident) -> list[Block]:
    """CPU, GPU and requests over the sampled time, as lines of text."""
    gpu, memory = gpu_tracks(incident), gpu_memory_tracks(incident)
    cpu, metrics = cpu_tracks(incident.evidence), metric_tracks(incident.evidence)
    drawn = [
        (
            f"{one_line(before + t.name + after, 22):<22} {sparkline(t)}  max "
            f"{t.most:.0f}{unit}"
        )
        for tracks, before, after, unit in (
            (cpu, "", "", " %"),
            (gpu, "", "", " %"),
            (memory, "", " memory", " GiB"),
            (metrics, "requests ", "", ""),
        )
        for t in tracks[:6]
    ]
    if not drawn:
        return []
    also = ", GPU" if gpu or memory else ""
    text = f"CPU (% of one core){also} and requests over the sampled time:"
    return [Paragraph(text), Fence("\n".join(drawn))]


def sparkline(track: Track, width: int = 48) -> str:
    """The track's highest value in each of ``width`` equal spans of time."""
    start, end = track.points[0][0], track.points[-1][0]
    step = (end - start) / width or 1.0
    highest: list[float | None] = [None] * width
    for mono, value in track.points:
        index = min(int((mono - start) / step), width - 1)
        seen = highest[index]
        highest[index] = value if seen is None else max(seen, value)
    top = max((v for v in highest if v is not None), default=0.0) or 1.0
    drawn, last = [], 0.0
    for value_or_gap in highest:
        last = last if value_or_gap is None else value_or_gap
        level = min(max(last, 0.0) / top, 1.0)
        drawn.append(_BLOCKS[round(level * (len(_BLOCKS) - 1))])
    return "".join(drawn)
