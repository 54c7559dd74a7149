"""The run as one inline SVG: requests, CPU and metrics over time. No script, no style attribute.

Colours are classes that the page's style sheet defines for light and dark; the status of a request
is also told by a label, never by colour alone. All numbers come from a file: they are bounded and
checked before a coordinate is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup
from mmrepro.base import units
from mmrepro.evidence import RequestRecord
from mmrepro.incident import Incident
from mmrepro.reports import timeline, words
from mmrepro.reports.svg import end_labels, nice_step, text as _text
from mmrepro.text.sanitize import one_line

WIDTH: Final = 1080
LEFT: Final = 128
RIGHT: Final = 132
PLOT: Final = WIDTH - LEFT - RIGHT
ROW: Final = 15
MAX_ROWS: Final = 14
MAX_BARS: Final = 600
STATUS_WORDS: Final = {
    "ok": "200",
    "client": "4xx: refused",
    "server": "5xx or connection error",
    "lost": "no answer in time",
}


@dataclass(frozen=True)
class Axis:
    """Monotonic seconds to x; ``zero`` is the beginning of the run."""

    low: float
    high: float
    zero: float

    def x(self, mono: float) -> float:
        share = (mono - self.low) / (self.high - self.low)
        return LEFT + PLOT * min(max(share, 0.0), 1.0)


def picture(incident: Incident) -> Markup:
    """The SVG, or an empty string when there is nothing to draw."""
    axis = _axis(incident)
    if axis is None:
        return Markup("")
    body: list[Markup] = []
    y = 44.0
    requests = [r for r in incident.evidence.requests if words.sane(r.sent.mono)]
    if requests:
        part, y = _requests(requests[:MAX_BARS], axis, y)
        body += part
    cpu = timeline.cpu_tracks(incident.evidence)
    if cpu:
        part, y = _panel("CPU", "% of one core", cpu[:6], axis, y, 120, 100.0, step=False)
        body += part
    gpu, memory = timeline.gpu_tracks(incident), timeline.gpu_memory_tracks(incident)
    if gpu:
        part, y = _panel("GPU", "utilisation, %", gpu[:6], axis, y, 90, 100.0, step=False)
        body += part
    if memory:
        part, y = _panel("GPU memory", "held, GiB", memory[:6], axis, y, 72, 1.0, step=False)
        body += part
    metrics = timeline.metric_tracks(incident.evidence)
    gauges = [t for t in metrics if not _is_counter(t)]
    counters = [t for t in metrics if _is_counter(t)]
    if gauges:
        part, y = _panel("Requests now", "requests", gauges[:4], axis, y, 72, 2.0, step=True)
        body += part
    if counters:
        part, y = _panel("Counters", "since start", counters[:4], axis, y, 90, 4.0, step=True)
        body += part
    frame = [*_bands(incident, axis, y - 16), *body, *_time_axis(axis, y - 10)]
    height = y + 34
    return Markup(
        '<svg class="picture" viewBox="0 0 {w} {h}" role="img" '
        'aria-labelledby="picture-title picture-desc" xmlns="http://www.w3.org/2000/svg">'
        '<title id="picture-title">Requests, CPU and metrics over time</title>'
        '<desc id="picture-desc">{desc}</desc>{body}</svg>'
    ).format(w=WIDTH, h=round(height), desc=_description(incident), body=Markup("").join(frame))


def _description(incident: Incident) -> str:
    groups = timeline.request_groups(incident.evidence.requests)[:40]
    requests = "; ".join(
        f"{g.first.phase}: {g.count} × {one_line(timeline.purpose(g.first.label), 60)} "
        f"{g.status} {g.latency}"
        for g in groups
    )
    cpu = "; ".join(
        f"{one_line(t.name, 40)} at most {max(v for _, v in t.points):.0f} % of a core"
        for t in timeline.cpu_tracks(incident.evidence)[:6]
    )
    gpu = "; ".join(
        f"{t.name} at most {max(v for _, v in t.points):.0f} %"
        for t in timeline.gpu_tracks(incident)[:6]
    )
    told = f"Requests: {requests or 'none'}. CPU: {cpu or 'not sampled'}."
    return f"{told} GPU: {gpu}." if gpu else told


# ------------------------------------------------------------------ time


def axis_of(incident: Incident) -> tuple[float, float, float, float] | None:
    """First and last second of the time axis, and where these stand, as shares of the width."""
    axis = _axis(incident)
    if axis is None:
        return None
    seconds = (axis.low - axis.zero, axis.high - axis.zero)
    return (*seconds, LEFT / WIDTH, (LEFT + PLOT) / WIDTH)


def _axis(incident: Incident) -> Axis | None:
    """From shortly before the gate to the end: start-up would squeeze all that matters."""
    evidence = incident.evidence
    starts = [r.sent.mono for r in evidence.requests]
    sampled = [p.mono for p in evidence.series if words.sane(p.mono)]
    if any(words.sane(s) for s in starts):
        ends = [r.sent.mono + r.latency_s for r in evidence.requests]
        ends += [e.at.mono for e in evidence.events if e.phase in ("check", "after", "stop")]
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
    return Axis(low - margin, high + margin, zero)


def _time_axis(axis: Axis, y: float) -> Iterator[Markup]:
    step = nice_step(axis.high - axis.low, 10)
    digits = max(0, -math.floor(math.log10(step)))
    first = math.ceil((axis.low - axis.zero) / step)
    yield Markup('<path class="axis" d="M{} {:.1f}H{}"/>').format(LEFT, y, LEFT + PLOT)
    for number in range(first, first + 12):
        tick = number * step
        if tick + axis.zero > axis.high:
            break
        x = axis.x(tick + axis.zero)
        yield Markup('<path class="axis" d="M{0:.1f} {1:.1f}v5"/>').format(x, y)
        yield _text(x, y + 17, f"{tick:.{digits}f}", "tick mid")
    yield _text(LEFT + PLOT / 2, y + 34, "seconds since the run began", "label mid")


def _bands(incident: Incident, axis: Axis, bottom: float) -> Iterator[Markup]:
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
        yield Markup(
            '<rect class="band b{}" x="{:.1f}" y="24" width="{:.1f}" height="{:.1f}"/>'
        ).format(number % 2, left, right - left, bottom - 24)
        # Narrow neighbours would print over each other: the second goes one line up.
        crowded = left < last_label
        yield _text(left + 2, 8 if crowded else 20, one_line(phase, 12), "phase")
        last_label = left + 8 * len(one_line(phase, 12)) if not crowded else last_label


# ------------------------------------------------------------------ requests


def _requests(requests: list[RequestRecord], axis: Axis, y: float) -> tuple[list[Markup], float]:
    """One lane per phase; requests that overlap get rows of their own."""
    out: list[Markup] = []
    phases = list(dict.fromkeys(r.phase for r in sorted(requests, key=lambda r: r.sent.mono)))
    out.append(_text(4, y + 4, "Requests", "panel"))
    y += 14
    for phase in phases:
        rows: list[float] = []
        top = y
        failed: list[Markup] = []
        for request in sorted((r for r in requests if r.phase == phase), key=lambda r: r.sent.mono):
            latency = request.latency_s if words.sane(request.latency_s) else 0.0
            left = axis.x(request.sent.mono)
            width = max(axis.x(request.sent.mono + max(latency, 0.0)) - left, 3.0)
            label = "" if timeline.status_class(request) == "ok" else timeline.status_words(request)
            if request.timed_out:
                label = f"no answer in {units.duration(latency)}"
            taken = left + width + 2 + (7.5 * len(label) if label and width < 90 else 0)
            row = next((i for i, end in enumerate(rows) if end <= left), None)
            if row is None:
                row = min(len(rows), MAX_ROWS - 1)
                rows += [0.0] * (row + 1 - len(rows))
            rows[row] = taken
            # Where a lane is full bars overlap: what failed is drawn last, on top.
            (failed if label else out).append(_bar(request, left, top + row * ROW, width, label))
        out += failed
        out.append(_text(LEFT - 8, top + 9, one_line(phase, 16), "label end"))
        y = top + len(rows) * ROW + 6
    x = float(LEFT)
    for kind, wording in STATUS_WORDS.items():
        out.append(
            Markup(
                '<rect class="req {}" x="{:.0f}" y="{:.1f}" width="10" height="10" rx="2"/>'
            ).format(kind, x, y + 2)
        )
        out.append(_text(x + 14, y + 11, wording, "tick"))
        x += 34 + 6.4 * len(wording)
    return out, y + 34


def _bar(request: RequestRecord, left: float, y: float, width: float, label: str) -> Markup:
    kind = timeline.status_class(request)
    tip = (
        f"request {request.id}, {request.phase}: {one_line(request.label, 120)}: "
        f"{timeline.status_words(request)} after {units.duration(request.latency_s)}"
    )
    bar = Markup(
        '<rect class="req {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="11" rx="2">'
        "<title>{}</title></rect>"
    ).format(kind, left, y, width, tip)
    if not label:
        return bar
    if width >= 90:
        return bar + _text(left + 6, y + 9, label, "inbar")
    return bar + _text(left + width + 3, y + 9, label, f"tick {kind}-text")


# ------------------------------------------------------------------ lines


def _is_counter(track: timeline.Track) -> bool:
    """A counter never falls and ends above where it began; a gauge of requests returns."""
    values = [v for _, v in track.points]
    rising = all(b >= a for a, b in pairwise(values))
    return rising and values[-1] > max(values[0], 2.0)


def _panel(
    name: str, unit: str, tracks: list[timeline.Track], axis: Axis, y: float, height: int,
    least: float, *, step: bool,
) -> tuple[list[Markup], float]:  # fmt: skip
    """Lines over time with a y axis from 0; the lines are named at their right ends."""
    visible = [
        timeline.Track(t.name, [p for p in t.points if axis.low <= p[0] <= axis.high])
        for t in tracks
    ]
    visible = [t for t in visible if t.points]
    if not visible:
        return [], y
    top_value = max(least, *(v for t in visible for _, v in t.points))
    tick = nice_step(top_value, 4)
    if step:
        tick = max(1.0, tick)  # there is no half request
    top_value = math.ceil(top_value / tick - 1e-9) * tick

    def scale(value: float) -> float:
        return y + 8 + height * (1 - min(max(value, 0.0), top_value) / top_value)

    out = [_text(4, y + 12, name, "panel"), _text(4, y + 27, unit, "tick")]
    mark = 0.0
    while mark <= top_value * 1.001:
        out.append(Markup('<path class="grid" d="M{} {:.1f}h{}"/>').format(LEFT, scale(mark), PLOT))
        out.append(_text(LEFT - 8, scale(mark) + 4, f"{mark:g}", "tick end"))
        mark += tick
    labels: list[tuple[float, int, str]] = []
    for number, track in enumerate(visible):
        path = _path(track, axis, scale, step)
        last = track.points[-1][1]
        highest = max(v for _, v in track.points)
        tip = f"{one_line(track.name, 60)}: last {last:.0f}, highest {highest:.0f}"
        out.append(
            Markup('<path class="line s{}" d="{}"><title>{}</title></path>').format(
                number, path, tip
            )
        )
        labels.append((scale(last), number, f"{one_line(track.name, 15)} {last:.0f}"))
    out += end_labels(labels, LEFT + PLOT + 6)
    return out, y + height + 34


def _path(track: timeline.Track, axis: Axis, scale: Callable[[float], float], step: bool) -> str:
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
