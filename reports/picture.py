"""The run as one inline SVG: requests, CPU and metrics over time.

The status of a request is also a label, never a colour alone. All numbers come from a
file: they are bounded and checked before a coordinate is made of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup
from mmrepro.base import units
from mmrepro.base.text import one_line
from mmrepro.failure.documents import Incident
from mmrepro.reports import svg, timeline, words
from mmrepro.traffic.evidence import RequestRecord

_LEFT: Final = 128
_RIGHT: Final = 132
_PLOT: Final = svg.WIDTH - _LEFT - _RIGHT
_ROW: Final = 15
_MAX_ROWS: Final = 14
_MAX_BARS: Final = 600
_LABEL_WIDTH: Final = 90
"""Of a bar that a label has room in."""
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
    requests = []
    for request in incident.evidence.requests:
        if words.sane(request.sent.mono):
            requests.append(request)

    if requests:
        body, y = _requests(requests[:_MAX_BARS], axis, y)

    for panel in _panels(incident):
        part, y = _draw_panel(panel, axis, y)
        body += part

    # The bands first: what is drawn later lies above them.
    frame = [*_bands(incident, axis, y - 16), *body, *_time_axis(axis, y - 10)]
    return svg.described(
        name="picture",
        height=round(y + 34),
        label="Requests, CPU and metrics over time",
        words=_description(incident),
        body=frame,
    )


@dataclass(frozen=True)
class _Panel:
    """Lines with one y axis.

    Attributes:
        least: the axis reaches at least so far.
        step: a value holds until the next one, and only whole ones are marked.
    """

    name: str
    unit: str
    tracks: list[timeline.SampledTrack]
    height: int
    least: float
    step: bool = False


def _panels(incident: Incident) -> list[_Panel]:
    gauges = []
    counters = []
    for track in timeline.metric_tracks(incident.evidence):
        if _is_counter(track):
            counters.append(track)
        else:
            gauges.append(track)

    return [
        _Panel(
            name="CPU",
            unit="% of one core",
            tracks=timeline.cpu_tracks(incident.evidence)[:6],
            height=120,
            least=100.0,
        ),
        _Panel(
            name="GPU",
            unit="utilisation, %",
            tracks=timeline.gpu_tracks(incident)[:6],
            height=90,
            least=100.0,
        ),
        _Panel(
            name="GPU memory",
            unit="held, GiB",
            tracks=timeline.gpu_memory_tracks(incident)[:6],
            height=72,
            least=1.0,
        ),
        _Panel(
            name="Requests now",
            unit="requests",
            tracks=gauges[:4],
            height=72,
            least=2.0,
            step=True,
        ),
        _Panel(
            name="Counters",
            unit="since start",
            tracks=counters[:4],
            height=90,
            least=4.0,
            step=True,
        ),
    ]


def _description(incident: Incident) -> str:
    requests = []
    for group in timeline.request_groups(incident.evidence.requests)[:40]:
        purpose = one_line(timeline.purpose(group.first.label), 60)
        requests.append(
            f"{group.first.phase}: {group.count} × {purpose} {group.status} "
            f"{group.latency}"
        )

    cpu = []
    for track in timeline.cpu_tracks(incident.evidence)[:6]:
        name = one_line(track.name, 40)
        cpu.append(f"{name} at most {track.most:.0f} % of a core")

    gpu = []
    for track in timeline.gpu_tracks(incident)[:6]:
        gpu.append(f"{track.name} at most {track.most:.0f} %")

    text = f"Requests: {'; '.join(requests) or 'none'}."
    text += f" CPU: {'; '.join(cpu) or 'not sampled'}."
    if gpu:
        text += f" GPU: {'; '.join(gpu)}."
    return text


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
    """From shortly before the warm-up check to the end: start-up would squeeze all
    that matters."""
    span = _requests_span(incident) or _sampled_span(incident)
    if span is None:
        return None
    low, high = span
    # A day is more than any run takes; a wild number must not flatten the picture.
    high = min(high, low + 86_400)
    margin = max((high - low) * 0.02, 0.05)
    zero = incident.created.mono if words.sane(incident.created.mono) else low
    return _TimeAxis(low - margin, high + margin, zero)


def _requests_span(incident: Incident) -> tuple[float, float] | None:
    """From the first request to the end of all that happened; None without one."""
    evidence = incident.evidence
    starts = []
    ends = []
    for request in evidence.requests:
        starts.append(request.sent.mono)
        ends.append(request.sent.mono + request.latency_s)

    for event in evidence.events:
        if event.phase in ("check", "after", "stop"):
            ends.append(event.at.mono)

    for probe in evidence.probes:
        ends.append(probe.started.mono)

    known = list(filter(words.sane, starts))
    if not known:
        return None
    low = min(known)
    return low, max([low, *filter(words.sane, ends)])


def _sampled_span(incident: Incident) -> tuple[float, float] | None:
    """The time that the sampler covers; None: it has no two points."""
    moments = [point.mono for point in incident.evidence.series]
    known = list(filter(words.sane, moments))
    if len(known) < 2:
        return None
    return min(known), max(known)


def _time_axis(axis: _TimeAxis, y: float) -> Iterator[Markup]:
    right = _LEFT + _PLOT
    yield svg.path("axis", f"M{_LEFT} {y:.1f}H{right}")

    step = svg.nice_step(axis.high - axis.low, 10)
    digits = max(0, -math.floor(math.log10(step)))
    first = math.ceil((axis.low - axis.zero) / step)
    last = math.floor((axis.high - axis.zero) / step)
    # A step is a tenth of the axis or more; rounding must not make it hundreds.
    last = min(last, first + 11)
    marks = []
    for number in range(first, last + 1):
        seconds = number * step
        marks.append((axis.x(seconds + axis.zero), f"{seconds:.{digits}f}"))

    yield from svg.ticks(y, marks)
    middle = _LEFT + _PLOT / 2
    yield svg.text(middle, y + 34, "seconds since the run began", "label mid")


def _bands(incident: Incident, axis: _TimeAxis, bottom: float) -> Iterator[Markup]:
    starts = _phase_starts(incident)
    ends = [start for _, start in starts[1:]] + [axis.high]
    last_label = -math.inf
    for number, (phase, start) in enumerate(starts):
        left = axis.x(start)
        width = axis.x(ends[number]) - left
        if width < 0.5:
            continue
        yield svg.rect(
            f"band b{number % 2}",
            x=left,
            y=24,
            width=width,
            height=bottom - 24,
        )

        # Narrow neighbours would print over each other: the second goes one line up.
        crowded = left < last_label
        name = one_line(phase, 12)
        yield svg.text(left + 2, 8 if crowded else 20, name, "phase")
        if not crowded:
            last_label = left + 8 * len(name)


def _phase_starts(incident: Incident) -> list[tuple[str, float]]:
    """Each phase with the first moment that belongs to it, in their order."""
    evidence = incident.evidence
    moments: list[tuple[str, float]] = []
    for event in evidence.events:
        moments.append((event.phase, event.at.mono))

    for request in evidence.requests:
        moments.append((request.phase, request.sent.mono))

    for probe in evidence.probes:
        if probe.phase:
            moments.append((probe.phase, probe.started.mono))

    starts: dict[str, float] = {}
    for phase, mono in moments:
        if words.sane(mono):
            starts[phase] = min(mono, starts.get(phase, mono))

    return sorted(starts.items(), key=lambda item: item[1])


# ------------------------------------------------------------------ requests


def _requests(
    requests: list[RequestRecord], axis: _TimeAxis, y: float
) -> tuple[list[Markup], float]:
    """One lane per phase; requests that overlap get rows of their own."""
    out = [svg.text(4, y + 4, "Requests", "panel")]
    y += 14
    lanes: dict[str, list[RequestRecord]] = {}
    for request in sorted(requests, key=lambda request: request.sent.mono):
        lanes.setdefault(request.phase, []).append(request)

    for phase, lane in lanes.items():
        bars, rows = _lane(lane, axis, y)
        out += bars
        out.append(svg.text(_LEFT - 8, y + 9, one_line(phase, 16), "label end"))
        y += rows * _ROW + 6

    out += _status_legend(y)
    return out, y + 34


def _lane(
    requests: Sequence[RequestRecord], axis: _TimeAxis, top: float
) -> tuple[list[Markup], int]:
    """The bars of one phase, oldest first, and the number of their rows."""
    rows: list[float] = []
    answered: list[Markup] = []
    failed: list[Markup] = []
    for request in requests:
        latency = request.latency_s if words.sane(request.latency_s) else 0.0
        left = axis.x(request.sent.mono)
        end = axis.x(request.sent.mono + max(latency, 0.0))
        # An answer within a pixel is still to be seen.
        width = max(end - left, 3.0)
        label = _bar_label(request, latency)
        row = _free_row(rows, left)
        rows[row] = left + width + 2
        # A label that has no room in its bar stands right of it.
        if label and width < _LABEL_WIDTH:
            rows[row] += 7.5 * len(label)

        bar = _bar(request, left, top + row * _ROW, width, label)
        # Where a lane is full bars overlap: what failed is drawn last, on top.
        if label:
            failed.append(bar)
        else:
            answered.append(bar)

    return answered + failed, len(rows)


def _bar_label(request: RequestRecord, latency: float) -> str:
    if request.timed_out:
        return f"no answer in {units.duration(latency)}"
    if timeline.status_class(request) == "ok":
        return ""
    return timeline.status_words(request)


def _free_row(rows: list[float], left: float) -> int:
    """The first row that ends left of ``left``; a new one is added to ``rows``, or the
    last is shared where there are ``_MAX_ROWS``."""
    for row, end in enumerate(rows):
        if end <= left:
            return row

    if len(rows) < _MAX_ROWS:
        rows.append(0.0)
    return len(rows) - 1


def _status_legend(y: float) -> Iterator[Markup]:
    x = float(_LEFT)
    for kind, wording in _STATUS_WORDS.items():
        yield svg.rect(
            f"req {kind}",
            x=x,
            y=y + 2,
            width=10,
            height=10,
            rx=2,
        )
        yield svg.text(x + 14, y + 11, wording, "tick")
        x += 34 + 6.4 * len(wording)


def _bar(
    request: RequestRecord, left: float, y: float, width: float, label: str
) -> Markup:
    kind = timeline.status_class(request)
    purpose = one_line(request.label, 120)
    answer = timeline.status_words(request)
    took = units.duration(request.latency_s)
    tip = f"request {request.id}, {request.phase}: {purpose}: {answer} after {took}"
    bar = svg.rect(f"req {kind}", left, y, width, 11, tip, rx=2)
    if not label:
        return bar
    base = y + 9
    if width >= _LABEL_WIDTH:
        return bar + svg.text(left + 6, base, label, "inbar")
    return bar + svg.text(left + width + 3, base, label, f"tick {kind}-text")


# ------------------------------------------------------------------ lines


def _is_counter(track: timeline.SampledTrack) -> bool:
    """A counter never falls and ends above where it began; a gauge of requests
    returns."""
    values = [value for _, value in track.points]
    rising = all(later >= earlier for earlier, later in pairwise(values))
    return rising and values[-1] > max(values[0], 2.0)


def _draw_panel(panel: _Panel, axis: _TimeAxis, y: float) -> tuple[list[Markup], float]:
    """Lines over time with a y axis from 0; the lines are named at their right ends."""
    tracks = _visible(panel.tracks, axis)
    if not tracks:
        return [], y
    scale = _scale_of(panel, tracks, y)
    drawn = [
        svg.text(4, y + 12, panel.name, "panel"),
        svg.text(4, y + 27, panel.unit, "tick"),
    ]
    drawn += svg.grid_lines(_LEFT, _PLOT, scale.marks, scale.y)

    labels: list[tuple[float, int, str]] = []
    for number, track in enumerate(tracks):
        path = _path(track, axis, scale.y, panel.step)
        last = track.points[-1][1]
        tip = f"{one_line(track.name, 60)}: last {last:.0f}, highest {track.most:.0f}"
        drawn.append(svg.path(f"line s{number}", path, tip))
        label = f"{one_line(track.name, 15)} {last:.0f}"
        labels.append((scale.y(last), number, label))

    drawn += svg.end_labels(labels, _LEFT + _PLOT + 6)
    return drawn, y + panel.height + 34


@dataclass(frozen=True)
class _ValueAxis:
    """Values to y of a panel, from 0 at its bottom.

    Attributes:
        most: the value at its top, a multiple of ``tick``.
        tick: between two marks.
    """

    most: float
    tick: float
    top: float
    height: int

    def y(self, value: float) -> float:
        share = min(max(value, 0.0), self.most) / self.most
        return self.top + self.height * (1 - share)

    @property
    def marks(self) -> list[tuple[float, str]]:
        marks = []
        for number in range(round(self.most / self.tick) + 1):
            mark = self.tick * number
            marks.append((mark, f"{mark:g}"))

        return marks


def _scale_of(
    panel: _Panel, tracks: Sequence[timeline.SampledTrack], y: float
) -> _ValueAxis:
    most = max(panel.least, *(track.most for track in tracks))
    tick = svg.nice_step(most, 4)
    if panel.step:
        # There is no half request.
        tick = max(1.0, tick)

    # Less a little: a value on a mark needs no further mark above it.
    most = math.ceil(most / tick - 1e-9) * tick
    return _ValueAxis(most=most, tick=tick, top=y + 8, height=panel.height)


def _visible(
    tracks: Sequence[timeline.SampledTrack], axis: _TimeAxis
) -> list[timeline.SampledTrack]:
    """The tracks without the points beside the axis, and without those left empty."""
    visible = []
    for track in tracks:
        points = []
        for mono, value in track.points:
            if axis.low <= mono <= axis.high:
                points.append((mono, value))

        if points:
            visible.append(timeline.SampledTrack(track.name, points))

    return visible


def _path(
    track: timeline.SampledTrack,
    axis: _TimeAxis,
    scale: Callable[[float], float],
    step: bool,
) -> str:
    """The line's drawing, with the first, last, lowest and highest point of each pixel
    column alone."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for mono, value in track.points:
        x = axis.x(mono)
        columns.setdefault(int(x), []).append((x, scale(value)))

    points: list[tuple[float, float]] = []
    for column in columns.values():
        points += _extremes(column)

    first_x, first_y = points[0]
    parts = [f"M{first_x:.1f} {first_y:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}" if step else f"L{x:.1f} {y:.1f}")

    return "".join(parts)


def _extremes(column: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The first, last, lowest and highest of a column's points, in their order."""
    heights = [height for _, height in column]
    lowest = heights.index(min(heights))
    highest = heights.index(max(heights))
    kept = {0, len(column) - 1, lowest, highest}
    return [column[place] for place in sorted(kept)]
