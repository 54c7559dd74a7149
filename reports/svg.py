"""Pieces of the drawings: inline SVG whose colours are classes of the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup
from mmrepro.text.sanitize import one_line


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
