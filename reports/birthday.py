"""The birthday curve as one inline SVG: how likely a collision is by the number of images.

No script, no style attribute; colours are classes of the page's style sheet, for light and dark
alike. ``birthday_curve(standalone=True)`` carries its own colours, for a file of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from mmrepro.incident.model import collision_probability, images_for
from mmrepro.reports.svg import WIDTH, nice_step, text as _text
from mmrepro.text.sanitize import one_line

HEIGHT: Final = 380
LEFT: Final = 64
RIGHT: Final = 40
TOP: Final = 30
BOTTOM: Final = 52
PLOT_W: Final = WIDTH - LEFT - RIGHT
PLOT_H: Final = HEIGHT - TOP - BOTTOM
MAX_POOLS: Final = 12

STANDALONE_STYLE: Final = (
    ".picture{font:11px system-ui,'DejaVu Sans',sans-serif;--bg:#fff;--fg:#1b1f24;--soft:#57606a;"
    "--line:#d5dae0;--s0:#0b5cad;--s1:#b7571f}"
    "@media(prefers-color-scheme:dark){.picture{--bg:#0f1419;--fg:#e3e8ee;--soft:#9aa5b1;"
    "--line:#313a44;--s0:#79b8ff;--s1:#f2a36b}}"
    ".page{fill:var(--bg)}text{fill:var(--fg)}.tick{fill:var(--soft)}.panel{font-weight:650;"
    "font-size:12px}.mid{text-anchor:middle}.end{text-anchor:end}.axis{stroke:var(--soft);"
    "fill:none}.grid{stroke:var(--line);fill:none}.line{fill:none;stroke-width:1.8}"
    ".s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s1-text{fill:var(--s1)}.name{font-weight:600}"
)


@dataclass(frozen=True)
class Pool:
    """A number of images worth marking. ``label``: what it is, in a few words; may be empty."""

    images: int
    label: str = ""


def pools_of_interest(bits: int = 30) -> tuple[Pool, ...]:
    """Points of 1, 50 and 99 %; for 30 bits also the 46 000 that the report takes for 50 %."""
    points = [Pool(images_for(share, bits)) for share in (0.01, 0.5, 0.99)]
    if bits == 30:
        points.append(Pool(46_000, "where the report expects 50 %"))
    return tuple(sorted(points, key=lambda pool: pool.images))


def birthday_curve(
    bits: int = 30,
    pools: Sequence[Pool] | None = None,
    *,
    seen: Sequence[Pool] = (),
    standalone: bool = False,
) -> Markup:
    """The probability of a collision of ``bits``-bit values over the number of images.

    ``pools`` are marked on the curve (default: ``pools_of_interest``); ``seen`` are numbers that
    were measured, such as a search's own, marked on the axis below. At most 12 are drawn.

    Raises:
        ValueError: ``bits`` is not in 1..256.
    """
    marks = [p for p in (pools_of_interest(bits) if pools is None else pools) if p.images >= 0]
    marks = sorted(marks, key=lambda pool: pool.images)[:MAX_POOLS]
    measured = [p for p in seen if p.images >= 0][:MAX_POOLS]
    widest = max([images_for(0.999, bits), *(p.images for p in (*marks, *measured))])
    # One wild number must not press the curve against the axis.
    axis = _Axis(bits, min(widest, 4 * images_for(0.999, bits)) * 1.04)
    body = [*_grid(axis), _curve(axis), *_marks(axis, marks), *_seen(axis, measured)]
    style = Markup("<style>{}</style>").format(STANDALONE_STYLE) if standalone else Markup()
    page = (
        Markup('<rect class="page" width="{}" height="{}"/>').format(WIDTH, HEIGHT)
        if standalone
        else Markup()
    )
    return Markup(
        '<svg class="picture" viewBox="0 0 {w} {h}" role="img" '
        'aria-labelledby="birthday-title birthday-desc" xmlns="http://www.w3.org/2000/svg">'
        '<title id="birthday-title">Probability of a collision among images with {bits}-bit pad '
        'values</title><desc id="birthday-desc">{desc}</desc>{style}{page}{body}</svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        bits=bits,
        desc="; ".join(_words(bits, p) for p in (*marks, *measured)) + ".",
        style=style,
        page=page,
        body=Markup("").join(body),
    )


@dataclass(frozen=True)
class _Axis:
    """Images to x, probability to y; both linear, from 0."""

    bits: int
    most: float

    def x(self, images: float) -> float:
        return LEFT + PLOT_W * min(max(images / self.most, 0.0), 1.0)

    def y(self, probability: float) -> float:
        return TOP + PLOT_H * (1 - probability)

    def chance(self, images: float) -> float:
        return collision_probability(round(images), self.bits)


def _words(bits: int, pool: Pool) -> str:
    chance = collision_probability(pool.images, bits)
    label = f" ({one_line(pool.label, 80)})" if pool.label else ""
    return f"{pool.images:,} images{label}: {percent(chance)}"


def percent(probability: float) -> str:
    """``62.7 %``; never 0 or 100 for what is neither."""
    if 0 < probability < 0.0005:
        return "<0.1 %"
    if 0.9995 <= probability < 1:
        return ">99.9 %"
    return f"{probability * 100:.1f} %"


def _grid(axis: _Axis) -> Iterator[Markup]:
    yield _text(4, 16, "Probability that two images have one pad value", "panel")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = axis.y(share)
        yield Markup('<path class="grid" d="M{} {:.1f}h{}"/>').format(LEFT, y, PLOT_W)
        yield _text(LEFT - 8, y + 4, f"{share:.0%}", "tick end")
    base = TOP + PLOT_H
    yield Markup('<path class="axis" d="M{} {:.1f}h{}"/>').format(LEFT, base, PLOT_W)
    step = nice_step(axis.most, 8)
    for number in range(math.floor(axis.most / step) + 1):
        x = axis.x(number * step)
        yield Markup('<path class="axis" d="M{:.1f} {:.1f}v5"/>').format(x, base)
        yield _text(x, base + 17, f"{number * step:,.0f}", "tick mid")
    yield _text(LEFT + PLOT_W / 2, base + 36, "different images in the cache's time", "label mid")


def _curve(axis: _Axis) -> Markup:
    points = [axis.most * i / 240 for i in range(241)]
    path = "L".join(f"{axis.x(n):.1f} {axis.y(axis.chance(n)):.1f}" for n in points)
    return Markup('<path class="line s0" d="M{}"><title>2^{} values</title></path>').format(
        path, axis.bits
    )


def _marks(axis: _Axis, pools: Sequence[Pool]) -> Iterator[Markup]:
    """A point on the curve, a line to the axis, and a label on the side that the curve leaves."""
    base = TOP + PLOT_H
    below = math.inf  # the curve rises to the right: each label must end above the one before it
    for pool in pools:
        chance = axis.chance(pool.images)
        x, y = axis.x(pool.images), axis.y(chance)
        yield Markup('<path class="axis" stroke-dasharray="3 3" d="M{:.1f} {:.1f}V{}"/>').format(
            x, y, base
        )
        yield Markup(
            '<circle class="line s0" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>'
        ).format(x, y, _words(axis.bits, pool))
        label = f"{pool.images:,}: {percent(chance)}"
        if pool.label:
            label += f", {pool.label}"
        if chance < 0.05:  # here the curve is flat and has the free side above it
            yield _text(x - 6, y - 30, label, "name")
            continue
        below = min(y + 16, below - 14, base - 8)
        room = x < LEFT + PLOT_W * 0.75
        yield _text(x + 10 if room else x - 8, below, label, "name" if room else "name end")


def _seen(axis: _Axis, pools: Sequence[Pool]) -> Iterator[Markup]:
    base = TOP + PLOT_H
    for row, pool in enumerate(pools):
        x = axis.x(pool.images)
        yield Markup('<path class="line s1" d="M{0:.1f} {1:.1f}V{2:.1f}"/>').format(
            x, base - 10, base
        )
        side, at = ("", x + 5) if x < LEFT + PLOT_W * 0.6 else (" end", x - 5)
        words = f"{pool.images:,} ({pool.label})"
        yield _text(at, base - 14 - 13 * row, words, f"name s1-text{side}")
