"""The run as one inline SVG: requests, CPU and metrics over time.

The status of a request is also a label, never a colour alone. All numbers come from a
file: they are bounded and checked before a coordinate is made of them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup
from mmrepro.base import units
from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents import Incident
from mmrepro.reports import svg, timeline, words
from mmrepro.traffic.evidence import RequestRecord

_LEFT: Final = 128
_RIGHT: Final = 132
_PLOT: Final = svg.WIDTH - _LEFT - _RIGHT
_ROW: Final = 15
_MAX_ROWS: Final = 14
_MAX_BARS: Final = 600
_STATUS_WORDS: Final = {
    "ok": "200",
    "client": "4xx: refused",
    "server": "5xx or connection error",
    "lost": "no answer in time",
}


@dataclass(frozen=True)
class _TimeAxis:
    """Monotonic seconds to x; ``zero`` is the beginning of the run."""

    low: float
    high: float
    zero: float

    def x(self, mono: float) -> float:
        share = (mono - self.low) / (self.high - self.low)
        return _LEFT + _PLOT * min(max(share, 0.0), 1.0)


def picture(incident: Incident) -> Markup:
    """The SVG, or an empty string when there is nothing to draw."""
    axis = _axis(incident)
    if axis is None:
        return Markup("")
    body: list[Markup] = []
    y = 44.0
    requests = [r for r in incident.evidence.requests if words.sane(r.sent.mono)]
    if requests:
        body, y = _requests(requests[:_MAX_BARS], axis, y)
    metrics = timeline.metric_tracks(incident.evidence)
    gauges = [t for t in metrics if not _is_counter(t)]
    counters = [t for t in metrics if _is_counter(t)]
    gpu, memory = timeline.gpu_tracks(incident), timeline.gpu_memory_tracks(incident)
    cpu = timeline.cpu_tracks(incident.evidence)
    for name, unit, tracks, height, least, step in (
        ("CPU", "% of one core", cpu[:6], 120, 100.0, False),
        ("GPU", "utilisation, %", gpu[:6], 90, 100.0, False),
        ("GPU memory", "held, GiB", memory[:6], 72, 1.0, False),
        ("Requests now", "requests", gauges[:4], 72, 2.0, True),
        ("Counters", "since start", counters[:4], 90, 4.0, True),
    ):
        part, y = _panel(name, unit, tracks, axis, y, height, least, step=step)
        body += part
    frame = [*_bands(incident, axis, y - 16), *body, *_time_axis(axis, y - 10)]
    label = "Requests, CPU and metrics over time"
    return svg.described("picture", round(y + 34), label, _description(incident), frame)


def _description(incident: Incident) -> str:
    groups = timeline.request_groups(incident.evidence.requests)[:40]
    purposes = [one_line(timeline.purpose(g.first.label), 60) for g in groups]
    requests = "; ".join(
        f"{g.first.phase}: {g.count} × {purpose} {g.status} {g.latency}"
        for g, purpose in zip(groups, purposes, strict=True)
    )
    cpu = "; ".join(
        f"{one_line(t.name, 40)} at most {t.most:.0f} % of a core"
        for t in timeline.cpu_tracks(incident.evidence)[:6]
    )
    gpus = timeline.gpu_tracks(incident)[:6]
    gpu = "; ".join(f"{t.name} at most {t.most:.0f} %" for t in gpus)
    told = f"Requests: {requests or 'none'}. CPU: {cpu or 'not sampled'}."
    return f"{told} GPU: {gpu}." if gpu else told


# ------------------------------------------------------------------ time


def axis_of(incident: Incident) -> tuple[float, float, float, float] | None:
    """First and last second of the time axis, and where these stand, as shares of the
    width."""
    axis = _axis(incident)
    if axis is None:
        return None
    seconds = (axis.low - axis.zero, axis.high - axis.zero)
    return (*seconds, _LEFT / svg.WIDTH, (_LEFT + _PLOT) / svg.WIDTH)


def _axis(incident: Incident) -> _TimeAxis | None:
    """From shortly before the gate to the end: start-up would squeeze all that
    matters."""
    evidence = incident.evidence
    starts = [r.sent.mono for r in evidence.requests]
    sampled = [p.mono for p in evidence.series if words.sane(p.mono)]
    if any(words.sane(s) for s in starts):
        ends = [r.sent.mono + r.latency_s for r in evidence.requests]
        ends += [
            e.at.mono for e in evidence.events if e.phase in ("check", "after", "stop")
        ]
        ends += [p.started.mono for p in evidence.probes]
        low = min(s for s in starts if words.sane(s))
        high = max([low, *(e for e in ends if words.sane(e))])
    elif len(sampled) > 1:
        low, high = min(sampled), max(sampled)
    else:
        return None
    # A day is more than any run takes; a wild number must not flatten the picture.
    high = min(high, low + 86_400)
    margin = max((high - low) * 0.02, 0.05)
    zero = incident.created.mono if words.sane(incident.created.mono) else low
    return _TimeAxis(low - margin, high + margin, zero)


def _time_axis(axis: _TimeAxis, y: float) -> Iterator[Markup]:
    step = svg.nice_step(axis.high - axis.low, 10)
    digits = max(0, -math.floor(math.log10(step)))
    first = math.ceil((axis.low - axis.zero) / step)
    last = math.floor((axis.high - axis.zero) / step)
    yield svg.path("axis", f"M{_LEFT} {y:.1f}H{_LEFT + _PLOT}")
    seconds = [number * step for number in range(first, min(last, first + 11) + 1)]
    yield from svg.ticks(
        y, ((axis.x(s + axis.zero), f"{s:.{digits}f}") for s in seconds)
    )
    yield svg.text(
        _LEFT + _PLOT / 2, y + 34, "seconds since the run began", "label mid"
    )


def _bands(incident: Incident, axis: _TimeAxis, bottom: float) -> Iterator[Markup]:
    starts: dict[str, float] = {}
    evidence = incident.evidence
    moments = (
        [(e.phase, e.at.mono) for e in evidence.events]
        + [(r.phase, r.sent.mono) for r in evidence.requests]
        + [(p.phase, p.started.mono) for p in evidence.probes if p.phase]
    )
    for phase, mono in moments:
        if words.sane(mono):
            starts[phase] = min(mono, starts.get(phase, mono))
    ordered = sorted(starts.items(), key=lambda item: item[1])
    last_label = -math.inf
    for number, (phase, start) in enumerate(ordered):
        end = ordered[number + 1][1] if number + 1 < len(ordered) else axis.high
        left, right = axis.x(start), axis.x(end)
        if right - left < 0.5:
            continue
        yield svg.rect(f"band b{number % 2}", left, 24, right - left, bottom - 24)
        # Narrow neighbours would print over each other: the second goes one line up.
        crowded = left < last_label
        yield svg.text(left + 2, 8 if crowded else 20, one_line(phase, 12), "phase")
        last_label = left + 8 * len(one_line(phase, 12)) if not crowded else last_label


# ------------------------------------------------------------------ requests


def _requests(
    requests: list[RequestRecord], axis: _TimeAxis, y: float
) -> tuple[list[Markup], float]:
    """One lane per phase; requests that overlap get rows of their own."""
    out: list[Markup] = []
    phases = list(
        dict.fromkeys(r.phase for r in sorted(requests, key=lambda r: r.sent.mono))
    )
    out.append(svg.text(4, y + 4, "Requests", "panel"))
    y += 14
    for phase in phases:
        rows: list[float] = []
        top = y
        failed: list[Markup] = []
        for request in sorted(
            (r for r in requests if r.phase == phase), key=lambda r: r.sent.mono
        ):
            latency = request.latency_s if words.sane(request.latency_s) else 0.0
            left = axis.x(request.sent.mono)
            width = max(axis.x(request.sent.mono + max(latency, 0.0)) - left, 3.0)
            label = (
                ""
                if timeline.status_class(request) == "ok"
                else timeline.status_words(request)
            )
            if request.timed_out:
                label = f"no answer in {units.duration(latency)}"
            taken = left + width + 2 + (7.5 * len(label) if label and width < 90 else 0)
            row = next((i for i, end in enumerate(rows) if end <= left), None)
            if row is None:
                row = min(len(rows), _MAX_ROWS - 1)
                rows += [0.0] * (row + 1 - len(rows))
            rows[row] = taken
            # Where a lane is full bars overlap: what failed is drawn last, on top.
            (failed if label else out).append(
                _bar(request, left, top + row * _ROW, width, label)
            )
        out += failed
        out.append(svg.text(_LEFT - 8, top + 9, one_line(phase, 16), "label end"))
        y = top + len(rows) * _ROW + 6
    x = float(_LEFT)
    for kind, wording in _STATUS_WORDS.items():
        out.append(svg.rect(f"req {kind}", x, y + 2, 10, 10, rx=2))
        out.append(svg.text(x + 14, y + 11, wording, "tick"))
        x += 34 + 6.4 * len(wording)
    return out, y + 34


def _bar(
    request: RequestRecord, left: float, y: float, width: float, label: str
) -> Markup:
    kind = timeline.status_class(request)
    tip = (
        f"request {request.id}, {request.phase}: {one_line(request.label, 120)}: "
        f"{timeline.status_words(request)} after {units.duration(request.latency_s)}"
    )
    bar = svg.rect(f"req {kind}", left, y, width, 11, tip, rx=2)
    if not label:
        return bar
    if width >= 90:
        return bar + svg.text(left + 6, y + 9, label, "inbar")
    return bar + svg.text(left + width + 3, y + 9, label, f"tick {kind}-text")


# ------------------------------------------------------------------ lines


def _is_counter(track: timeline.Track) -> bool:
    """A counter never falls and ends above where it began; a gauge of requests
    returns."""
    values = [v for _, v in track.points]
    rising = all(b >= a for a, b in pairwise(values))
    return rising and values[-1] > max(values[0], 2.0)


def _panel(
    name: str,
    unit: str,
    tracks: list[timeline.Track],
    axis: _TimeAxis,
    y: float,
    height: int,
    least: float,
    *,
    step: bool,
) -> tuple[list[Markup], float]:
    """Lines over time with a y axis from 0; the lines are named at their right ends."""
    visible = [
        timeline.Track(t.name, [p for p in t.points if axis.low <= p[0] <= axis.high])
        for t in tracks
    ]
    visible = [t for t in visible if t.points]
    if not visible:
        return [], y
    top_value = max(least, *(t.most for t in visible))
    tick = svg.nice_step(top_value, 4)
    if step:
        tick = max(1.0, tick)  # there is no half request
    top_value = math.ceil(top_value / tick - 1e-9) * tick

    def scale(value: float) -> float:
        return y + 8 + height * (1 - min(max(value, 0.0), top_value) / top_value)

    out = [svg.text(4, y + 12, name, "panel"), svg.text(4, y + 27, unit, "tick")]
    marks = [tick * number for number in range(round(top_value / tick) + 1)]
    out += svg.grid_lines(_LEFT, _PLOT, ((mark, f"{mark:g}") for mark in marks), scale)
    labels: list[tuple[float, int, str]] = []
    for number, track in enumerate(visible):
        path = _path(track, axis, scale, step)
        last = track.points[-1][1]
        tip = f"{one_line(track.name, 60)}: last {last:.0f}, highest {track.most:.0f}"
        out.append(svg.path(f"line s{number}", path, tip))
        labels.append((scale(last), number, f"{one_line(track.name, 15)} {last:.0f}"))
    out += svg.end_labels(labels, _LEFT + _PLOT + 6)
    return out, y + height + 34


def _path(
    track: timeline.Track, axis: _TimeAxis, scale: Callable[[float], float], step: bool
) -> str:
    """At most two points (lowest and highest) a pixel column."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for mono, value in track.points:
        columns.setdefault(int(axis.x(mono)), []).append((axis.x(mono), scale(value)))
    points: list[tuple[float, float]] = []
    for column in columns.values():
        ends = {0, len(column) - 1}
        ends |= {column.index(min(column, key=lambda p: p[1]))}
        ends |= {column.index(max(column, key=lambda p: p[1]))}
        points += [column[i] for i in sorted(ends)]
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}" if step else f"L{x:.1f} {y:.1f}")
    return "".join(parts)
