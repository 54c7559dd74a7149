"""Pieces of hand-drawn SVG that the pictures share: text, axes, labels, a chart of steps.

No script, no style attribute: colours are classes of the page's style sheet. All numbers and texts
come from files: both are bounded here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup
from mmrepro.text.sanitize import one_line

WIDTH: Final = 1080
LEFT: Final = 64
RIGHT: Final = 190
TOP: Final = 30
PLOT_W: Final = WIDTH - LEFT - RIGHT
PLOT_H: Final = 170
MAX_LINES: Final = 6
"""Colours of the style sheet."""
MAX_MARKS: Final = 24


def text(x: float, y: float, words: str, classes: str) -> Markup:
    """``words``, one line of at most 90 characters, at their lower left."""
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        classes, x, y, one_line(words, 90)
    )


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        classes, x1, y1, x2, y2
    )


def svg(width: float, height: float, label: str, body: Iterable[Markup]) -> Markup:
    """The drawing. ``label`` says what it shows, for those who do not see it."""
    return Markup(
        '<svg class="picture" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, label, Markup("").join(body))


def nice_step(width: float, count: int) -> float:
    """1, 2 or 5 times a power of ten, so that about ``count`` of them make up ``width``."""
    raw = max(width / count, 1e-3)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5, 10) if m * power >= raw), raw)


def end_labels(labels: Iterable[tuple[float, int, str]], x: float) -> Iterator[Markup]:
    """Names at the right ends of lines: (y, number of the line, name), none over another."""
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
    title: str, lines: Sequence[Line], across: str, marks: Sequence[tuple[float, str]] = ()
) -> Markup:
    """A chart of steps from 0; empty where no line has two points.

    Args:
        across: what the x axis counts.
        marks: x of what happened there, and its name.
    """
    drawn = [
        Line(line.name, [(_bounded(x), _bounded(y)) for x, y in line.points])
        for line in lines[:MAX_LINES]
        if len(line.points) > 1
    ]
    if not drawn:
        return Markup("")
    most_x = max(1.0, *(line.points[-1][0] for line in drawn))
    most_y = max(1.0, *(y for line in drawn for _, y in line.points))
    tick = max(1.0, nice_step(most_y, 4))
    most_y = math.ceil(most_y / tick) * tick
    base = TOP + PLOT_H

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + PLOT_W * min(x / most_x, 1.0), base - PLOT_H * y / most_y

    body = [text(4, 16, title, "panel")]
    for number in range(round(most_y / tick) + 1):
        y = at(0, number * tick)[1]
        body.append(Markup('<path class="grid" d="M{} {:.1f}h{}"/>').format(LEFT, y, PLOT_W))
        body.append(text(LEFT - 8, y + 4, f"{number * tick:,.0f}", "tick end"))
    step = max(1.0, nice_step(most_x, 12))
    for number in range(int(most_x / step) + 1):
        x = at(number * step, 0)[0]
        body.append(Markup('<path class="axis" d="M{:.1f} {}v5"/>').format(x, base))
        body.append(text(x, base + 17, f"{number * step:,.0f}", "tick mid"))
    body.append(text(LEFT + PLOT_W / 2, base + 35, across, "label mid"))
    for number, (x, name) in enumerate(marks[:MAX_MARKS]):
        left = at(_bounded(x), 0)[0]
        row = base - 8 - 13 * (number % 4)
        dashed = Markup('<path class="axis" stroke-dasharray="3 3" d="M{:.1f} {}V{}"/>')
        body.append(dashed.format(left, TOP, base))
        body.append(text(left + 4, row, name, "name"))
    for number, line in enumerate(drawn):
        # Points that change nothing are left out: a session has thousands of them.
        x, y = at(*line.points[0])
        path = f"M{x:.1f} {y:.1f}"
        for (_, before), (after_x, after) in pairwise(line.points):
            if after != before:
                x, y = at(after_x, after)
                path += f"H{x:.1f}V{y:.1f}"
        path += f"H{at(line.points[-1][0], 0)[0]:.1f}"
        tip = f"{one_line(line.name, 60)}: {line.points[0][1]:,.0f} to {line.points[-1][1]:,.0f}"
        body.append(
            Markup('<path class="line s{}" d="{}"><title>{}</title></path>').format(
                number, path, tip
            )
        )
    ends = (
        (at(*line.points[-1])[1], number, f"{one_line(line.name, 22)} {line.points[-1][1]:,.0f}")
        for number, line in enumerate(drawn)
    )
    return svg(WIDTH, base + 44, title, [*body, *end_labels(ends, LEFT + PLOT_W + 6)])


def _bounded(value: float) -> float:
    return float(min(max(value, 0), 10**9))
