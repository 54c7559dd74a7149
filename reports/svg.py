"""Elements of HTML, and pieces of hand-drawn SVG that the pictures share: axes, labels,
charts.

No script, no style attribute: colours are classes of the page's style sheet. All
numbers and texts come from files: both are bounded here."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup, escape
from mmrepro.base.text import one_line

WIDTH: Final = 1080
LEFT: Final = 64
_RIGHT: Final = 190
_TOP: Final = 30
_PLOT_W: Final = WIDTH - LEFT - _RIGHT
_PLOT_H: Final = 170
_BASE: Final = _TOP + _PLOT_H
_MAX_LINES: Final = 6
"""Colours of the style sheet."""
_MAX_MARKS: Final = 24
_SHAPES: Final = ("path", "rect", "circle")
"""Elements that most often hold nothing."""


def join(parts: Iterable[Markup | str]) -> Markup:
    """The parts one after another; what is plain text among them is escaped."""
    return Markup("".join(map(escape, parts)))  # noqa: S704 - each is escaped


def tag(name: str, *inside: Markup | str, **attributes: object) -> Markup:
    """An element, its texts escaped: ``tag("td", text, cls="tight", data_at=2.5)``.

    ``cls`` is its class; an underscore stands for a hyphen. An attribute that is None,
    False or empty is left out, True is one without a value, and a fraction is rounded
    to a tenth: a pixel."""
    given = ""
    for key, value in attributes.items():
        if value is None or value is False or value == "":
            continue
        attribute = "class" if key == "cls" else key.replace("_", "-")
        given += f' {attribute}="{_value(value)}"'

    # Not by Markup.format, which takes ten times as long: thousands of elements make a
    # page.
    if name in _SHAPES and not inside:
        return Markup(f"<{name}{given}/>")  # noqa: S704 - each value is escaped
    return Markup(f"<{name}{given}>{join(inside)}</{name}>")  # noqa: S704


def _value(value: object) -> Markup | str:
    if value is True:
        return ""
    if isinstance(value, float):
        return escape(f"{value:.1f}")
    return escape(value)


def text(x: float, y: float, words: str, classes: str) -> Markup:
    """``words``, one line of at most 90 characters, at their lower left."""
    return tag("text", one_line(words, 90), cls=classes, x=float(x), y=float(y))


def path(classes: str, d: str, tip: str = "", **more: object) -> Markup:
    """Draw a path. ``tip``: what a pointer on it shows."""
    return tag("path", *_title(tip), cls=classes, **more, d=d)


def rect(
    classes: str,
    x: float,
    y: float,
    width: float,
    height: float,
    tip: str = "",
    **more: object,
) -> Markup:
    """Draw a rectangle. ``tip``: what a pointer on it shows."""
    place = {"x": x, "y": y, "width": width, "height": height}
    return tag("rect", *_title(tip), cls=classes, **place, **more)


def circle(classes: str, x: float, y: float, radius: float, tip: str = "") -> Markup:
    """Draw a circle. ``tip``: what a pointer on it shows."""
    return tag("circle", *_title(tip), cls=classes, cx=x, cy=y, r=radius)


def _title(tip: str) -> list[Markup]:
    """What a pointer that rests on an element shows."""
    return [tag("title", tip)] if tip else []


def svg(height: float, label: str, body: Iterable[Markup], **more: str) -> Markup:
    """The drawing, ``WIDTH`` wide. ``label`` says what it shows, for those who do not
    see it."""
    box = f"0 0 {WIDTH} {height:.0f}"
    named = more or {"aria_label": label}
    return tag("svg", *body, cls="picture", viewBox=box, role="img", **named)


def described(
    name: str, height: float, label: str, words: str, body: Iterable[Markup]
) -> Markup:
    """A drawing whose label and description are elements of their own, called after
    ``name``."""
    title_id = f"{name}-title"
    words_id = f"{name}-desc"
    head = (tag("title", label, id=title_id), tag("desc", words, id=words_id))
    more = {
        "aria_labelledby": f"{title_id} {words_id}",
        "xmlns": "http://www.w3.org/2000/svg",
    }
    return svg(height, label, [*head, *body], **more)


def nice_step(width: float, count: int) -> float:
    """1, 2 or 5 times a power of ten, so that about ``count`` of them make up
    ``width``."""
    raw = max(width / count, 1e-3)
    power = 10.0 ** math.floor(math.log10(raw))
    for multiple in (1, 2, 5, 10):
        if multiple * power >= raw:
            return multiple * power

    return raw


def grid_lines(
    left: float,
    width: float,
    marks: Iterable[tuple[float, str]],
    y: Callable[[float], float],
) -> Iterator[Markup]:
    """A line across the plot for each mark, its label left of it."""
    for value, label in marks:
        yield path("grid", f"M{left} {y(value):.1f}h{width}")
        yield text(left - 8, y(value) + 4, label, "tick end")


def ticks(base: float, marks: Iterable[tuple[float, str]]) -> Iterator[Markup]:
    """Marks on the x axis at ``base``: each an x and its label."""
    for x, label in marks:
        yield path("axis", f"M{x:.1f} {base:.1f}v5")
        yield text(x, base + 17, label, "tick mid")


def end_labels(labels: Iterable[tuple[float, int, str]], x: float) -> Iterator[Markup]:
    """Names at the right ends of lines: (y, number of the line, name), none over
    another."""
    previous = -math.inf
    for wanted, number, words in sorted(labels):
        # 13 pixels are a line of text.
        previous = max(wanted + 4, previous + 13)
        yield text(x, previous, words, f"name s{number}-text")


@dataclass(frozen=True)
class _Scales:
    """Values to pixels of a chart of steps, both from 0."""

    most_x: float
    most_y: float
    tick: float
    """Between two marks of the y axis."""

    def right(self, x: float) -> float:
        return LEFT + _PLOT_W * min(x / self.most_x, 1.0)

    def up(self, y: float) -> float:
        return _BASE - _PLOT_H * y / self.most_y


@dataclass(frozen=True)
class StepLine:
    """``points``: x rises from 0; each y holds until the next x."""

    name: str
    points: Sequence[tuple[float, float]]


def steps(
    title: str,
    lines: Sequence[StepLine],
    across: str,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """A chart of steps from 0; empty where no line has two points.

    Args:
        across: what the x axis counts.
        marks: x of what happened there, and its name.
    """
    drawn = _drawable(lines)
    if not drawn:
        return Markup("")
    scales = _scales(drawn)
    body = [text(4, 16, title, "panel"), *_step_axes(scales, across)]
    for number, (x, name) in enumerate(marks[:_MAX_MARKS]):
        body += _step_mark(number, scales.right(_bounded(x)), name)

    ends = []
    for number, line in enumerate(drawn):
        first = line.points[0][1]
        last = line.points[-1][1]
        tip = f"{one_line(line.name, 60)}: {first:,.0f} to {last:,.0f}"
        body.append(path(f"line s{number}", _step_path(line, scales), tip))
        label = f"{one_line(line.name, 22)} {last:,.0f}"
        ends.append((scales.up(last), number, label))

    body += end_labels(ends, LEFT + _PLOT_W + 6)
    return svg(_BASE + 44, title, body)


def _step_mark(number: int, left: float, name: str) -> Iterator[Markup]:
    """A dashed line where something happened, and its name."""
    line = f"M{left:.1f} {_TOP}V{_BASE}"
    yield path("axis", line, stroke_dasharray="3 3")
    # Four heights in turn: names of neighbours do not cover each other.
    height = _BASE - 8 - 13 * (number % 4)
    yield text(left + 4, height, name, "name")


def _drawable(lines: Sequence[StepLine]) -> list[StepLine]:
    """The first lines of more than one point, their numbers bounded."""
    drawn = []
    for line in lines[:_MAX_LINES]:
        if len(line.points) > 1:
            points = [(_bounded(x), _bounded(y)) for x, y in line.points]
            drawn.append(StepLine(line.name, points))

    return drawn


def _scales(lines: Sequence[StepLine]) -> _Scales:
    most_x = 1.0
    most_y = 1.0
    for line in lines:
        most_x = max(most_x, line.points[-1][0])
        most_y = max(most_y, *(y for _, y in line.points))

    # What is counted is whole.
    tick = max(1.0, nice_step(most_y, 4))
    return _Scales(
        most_x=most_x,
        most_y=math.ceil(most_y / tick) * tick,
        tick=tick,
    )


def _step_axes(scales: _Scales, across: str) -> Iterator[Markup]:
    heights = []
    for number in range(round(scales.most_y / scales.tick) + 1):
        height = number * scales.tick
        heights.append((height, f"{height:,.0f}"))

    yield from grid_lines(LEFT, _PLOT_W, heights, scales.up)

    step = max(1.0, nice_step(scales.most_x, 12))
    along = []
    for number in range(int(scales.most_x / step) + 1):
        x = number * step
        along.append((scales.right(x), f"{x:,.0f}"))

    yield from ticks(_BASE, along)
    yield text(LEFT + _PLOT_W / 2, _BASE + 35, across, "label mid")


def _step_path(line: StepLine, scales: _Scales) -> str:
    first_x, first_y = line.points[0]
    parts = [f"M{scales.right(first_x):.1f} {scales.up(first_y):.1f}"]
    # Points that change nothing are left out: a session has thousands of them.
    for (_, before), (x, y) in pairwise(line.points):
        if y != before:
            parts.append(f"H{scales.right(x):.1f}V{scales.up(y):.1f}")

    last_x, _ = line.points[-1]
    parts.append(f"H{scales.right(last_x):.1f}")
    return "".join(parts)


def _bounded(value: float) -> float:
    return float(min(max(value, 0), 10**9))
