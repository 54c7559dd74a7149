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
from mmrepro.base.text.sanitize import one_line

WIDTH: Final = 1080
LEFT: Final = 64
_RIGHT: Final = 190
_TOP: Final = 30
_PLOT_W: Final = WIDTH - LEFT - _RIGHT
_PLOT_H: Final = 170
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
    given = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False and value != ""
    )
    # Not by Markup.format, which takes ten times as long: thousands of elements make a
    # page.
    if name in _SHAPES and not inside:
        return Markup(f"<{name}{given}/>")  # noqa: S704 - each value is escaped
    return Markup(f"<{name}{given}>{join(inside)}</{name}>")  # noqa: S704


def _value(value: object) -> Markup | str:
    if value is True:
        return ""
    return escape(f"{value:.1f}" if isinstance(value, float) else value)


def text(x: float, y: float, words: str, classes: str) -> Markup:
    """``words``, one line of at most 90 characters, at their lower left."""
    return tag("text", one_line(words, 90), cls=classes, x=float(x), y=float(y))


def path(classes: str, d: str, tip: str = "", **more: object) -> Markup:
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
    return tag(
        "rect", *_title(tip), cls=classes, x=x, y=y, width=width, height=height, **more
    )


def circle(classes: str, x: float, y: float, radius: float, tip: str = "") -> Markup:
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
    ids = f"{name}-title", f"{name}-desc"
    told = (tag("title", label, id=ids[0]), tag("desc", words, id=ids[1]))
    more = {"aria_labelledby": " ".join(ids), "xmlns": "http://www.w3.org/2000/svg"}
    return svg(height, label, [*told, *body], **more)


def nice_step(width: float, count: int) -> float:
    """1, 2 or 5 times a power of ten, so that about ``count`` of them make up
    ``width``."""
    raw = max(width / count, 1e-3)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5, 10) if m * power >= raw), raw)


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
        previous = max(wanted + 4, previous + 13)
        yield text(x, previous, words, f"name s{number}-text")


@dataclass(frozen=True)
class Line:
    """``points``: x rises from 0; each y holds until the next x."""

    name: str
    points: Sequence[tuple[float, float]]


def steps(
    title: str,
    lines: Sequence[Line],
    across: str,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """A chart of steps from 0; empty where no line has two points.

    Args:
        across: what the x axis counts.
        marks: x of what happened there, and its name.
    """
    drawn = [
        Line(line.name, [(_bounded(x), _bounded(y)) for x, y in line.points])
        for line in lines[:_MAX_LINES]
        if len(line.points) > 1
    ]
    if not drawn:
        return Markup("")
    most_x = max(1.0, *(line.points[-1][0] for line in drawn))
    most_y = max(1.0, *(y for line in drawn for _, y in line.points))
    tick = max(1.0, nice_step(most_y, 4))
    most_y = math.ceil(most_y / tick) * tick
    step = max(1.0, nice_step(most_x, 12))
    base = _TOP + _PLOT_H

    def right(x: float) -> float:
        return LEFT + _PLOT_W * min(x / most_x, 1.0)

    def up(y: float) -> float:
        return base - _PLOT_H * y / most_y

    heights = [number * tick for number in range(round(most_y / tick) + 1)]
    along = [number * step for number in range(int(most_x / step) + 1)]
    body = [
        text(4, 16, title, "panel"),
        *grid_lines(LEFT, _PLOT_W, ((y, f"{y:,.0f}") for y in heights), up),
        *ticks(base, ((right(x), f"{x:,.0f}") for x in along)),
        text(LEFT + _PLOT_W / 2, base + 35, across, "label mid"),
    ]
    for number, (x, name) in enumerate(marks[:_MAX_MARKS]):
        left = right(_bounded(x))
        body.append(path("axis", f"M{left:.1f} {_TOP}V{base}", stroke_dasharray="3 3"))
        body.append(text(left + 4, base - 8 - 13 * (number % 4), name, "name"))
    for number, line in enumerate(drawn):
        first, last = line.points[0], line.points[-1]
        # Points that change nothing are left out: a session has thousands of them.
        d = f"M{right(first[0]):.1f} {up(first[1]):.1f}"
        for (_, before), (x, y) in pairwise(line.points):
            if y != before:
                d += f"H{right(x):.1f}V{up(y):.1f}"
        d += f"H{right(last[0]):.1f}"
        tip = f"{one_line(line.name, 60)}: {first[1]:,.0f} to {last[1]:,.0f}"
        body.append(path(f"line s{number}", d, tip))
    ends = (
        (
            up(line.points[-1][1]),
            number,
            f"{one_line(line.name, 22)} {line.points[-1][1]:,.0f}",
        )
        for number, line in enumerate(drawn)
    )
    return svg(base + 44, title, [*body, *end_labels(ends, LEFT + _PLOT_W + 6)])


def _bounded(value: float) -> float:
    return float(min(max(value, 0), 10**9))
