"""One chronological list of what happened, and sparklines of what the sampler saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mmrepro.evidence import Evidence
from mmrepro.incident import Incident
from mmrepro.reports import view, words

GIB: Final = 1 << 30
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

    Events of the client are left out where there are requests: the groups say it shorter.
    """
    evidence = incident.evidence
    merged = [
        Line(view.since_start(incident, e.at.mono), e.phase, e.source, e.text, e.level)
        for e in evidence.events
        if not (e.source == "client" and evidence.requests)
    ]
    for group in view.request_groups(evidence.requests):
        first = group.first
        many = f"{group.count} × {view.purpose(first.label)}" if group.count > 1 else first.label
        how = f"in {group.latency}" if group.kind != "lost" else f"after {group.latency}"
        merged.append(
            Line(
                view.since_start(incident, first.sent.mono),
                first.phase,
                "client",
                f"{many}: {group.status} {how}",
                {"ok": "info", "client": "warning"}.get(group.kind, "error"),
            )
        )
    return sorted((m for m in merged if words.sane(m.at)), key=lambda m: m.at)


@dataclass(frozen=True)
class Track:
    """One line of the sampler: ``points`` are (monotonic seconds, value)."""

    name: str
    points: list[tuple[float, float]]


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
    in_gib = [Track(t.name, [(mono, held / GIB) for mono, held in t.points]) for t in tracks]
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
    """Tracks of one field, the most active first; values that are not numbers are dropped."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for point in sorted(evidence.series, key=lambda p: p.mono if words.sane(p.mono) else 0.0):
        values: dict[str, float] = getattr(point, field)
        for name, value in values.items():
            if words.sane(value) and words.sane(point.mono):
                by_name.setdefault(name, []).append((point.mono, value))
    tracks = [Track(name, points) for name, points in by_name.items()]
    return sorted(tracks, key=lambda t: -max(v for _, v in t.points))


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
