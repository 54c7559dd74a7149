"""The points of a bisection on one line, as an inline SVG: no script, no style attribute.

A verdict is told by a mark as well as by its colour; colours are classes of the page's style sheet.
"""

from __future__ import annotations

from typing import Final

from markupsafe import Markup
from mmrepro.incident.searches import Bisection, PointVerdict
from mmrepro.reports import bisection_view as view
from mmrepro.text.sanitize import one_line

WIDTH: Final = 1080
MARGIN: Final = 44
HEIGHT: Final = 214
AXIS: Final = 96
LABELS: Final = AXIS + 30
APART: Final = 13.0
"""Between labels, which stand on their heads, in pixels."""
MAX_LABELS: Final = 70
FILLS: Final = {
    PointVerdict.BAD: "server",
    PointVerdict.GOOD: "ok",
    PointVerdict.OTHER: "client",
    PointVerdict.UNTESTABLE: "tick",
    PointVerdict.BOTH: "lost",
}


def picture(bisection: Bisection) -> Markup:
    """The SVG, or an empty string when nothing was run."""
    points = bisection.points
    if not view.ran(bisection):
        return Markup("")
    step = (WIDTH - 2 * MARGIN) / max(1, len(points) - 1)
    xs = [MARGIN + step * number for number in range(len(points))]
    body = [
        Markup('<line class="axis" x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}"/>').format(
            xs[0], AXIS, xs[-1], AXIS
        )
    ]
    body += _boundaries(bisection, xs)
    taken = -APART
    labels = 0
    for x, point in zip(xs, points, strict=True):
        words = view.VERDICT_WORDS[point.verdict] if point.verdict else "not run"
        told = f"{view.point_name(point)}: {words}" + (", declared affected" * point.declared)
        radius = 9 if point.verdict else 2.5
        body.append(
            Markup(
                '<circle class="{}" cx="{:.1f}" cy="{}" r="{}"><title>{}</title></circle>'
            ).format(
                FILLS[point.verdict] if point.verdict else "tick",
                x,
                AXIS,
                radius,
                one_line(told, 300),
            )
        )
        if point.verdict is None:
            continue
        body.append(
            Markup('<text class="inbar mid" x="{:.1f}" y="{}">{}</text>').format(
                x, AXIS + 4, view.VERDICT_MARKS[point.verdict]
            )
        )
        if labels < MAX_LABELS:
            taken, labels = max(x, taken + APART), labels + 1
            body.append(
                Markup(
                    '<text class="tick" transform="translate({:.1f} {}) rotate(60)">{}</text>'
                ).format(taken - 3, LABELS - 8, one_line(view.point_name(point), 14))
            )
    return Markup(
        '<svg class="picture" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(
        WIDTH,
        HEIGHT,
        f"{len(points)} points from old to new, those that were run marked with their verdict",
        Markup("").join(body),
    )


def _boundaries(bisection: Bisection, xs: list[float]) -> list[Markup]:
    """A band between the two sides of each boundary, and what it is."""
    names = [point.name for point in bisection.points]
    drawn = []
    for level, (direction, side) in enumerate(view.sides(bisection)):
        if len(side.between) != 2 or not set(side.between) <= set(names):
            continue
        left, right = (xs[names.index(name)] for name in side.between)
        middle = (left + right) / 2
        top = 20 + 22 * level
        drawn.append(
            Markup('<rect class="b1" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
                left, top + 8, max(1.0, right - left), AXIS - top - 8
            )
        )
        drawn.append(
            Markup('<line class="grid" x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}"/>').format(
                middle, top + 6, middle, AXIS
            )
        )
        anchor = "end" if middle > WIDTH * 0.66 else "mid" if middle > WIDTH * 0.25 else ""
        told = view.answer(bisection, direction, side)
        drawn.append(
            Markup('<text class="name {}" x="{:.1f}" y="{}">{}: {}</text>').format(
                anchor, middle, top, direction, one_line(told, 90)
            )
        )
    return drawn
