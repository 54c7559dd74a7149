"""Exhibits as inline SVG: pictures pixel by pixel, and the birthday curve.

A picture is drawn from its own pixels, so that the page needs no image source in its
policy and a redaction of encoded images leaves it alone. Like everything in an
incident, it may be hostile: sizes are bounded before anything is decoded, and what is
no picture is left out."""

import io
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from markupsafe import Markup
from mmrepro.base.text import one_line
from mmrepro.failure.documents import (
    Birthday,
    Exhibit,
    Incident,
    Pool,
    Shown,
    collision_probability,
    images_for,
)
from mmrepro.reports import svg

MAX_SIDE: Final = 128
"""Larger pictures are shown smaller: a pixel may become an element."""
_MAX_ENCODED_PIXELS: Final = 4 << 20
_MAX_EXHIBITS: Final = 12

Pictured = list[tuple[Shown, Markup]]
"""Pictures of an exhibit, each with its drawing."""
_Colour = tuple[int, int, int]


def exhibits(incident: Incident) -> list[tuple[Exhibit, Pictured, Markup]]:
    """Each exhibit with its pictures and its curve, drawn; empty where there is
    none."""
    drawn = []
    for exhibit in incident.exhibits[:_MAX_EXHIBITS]:
        pictures = []
        for shown in exhibit.shown[:_MAX_EXHIBITS]:
            pictures.append((shown, pixels(shown.png, shown.caption)))

        curve = _birthday(exhibit.birthday) if exhibit.birthday else Markup("")
        drawn.append((exhibit, pictures, curve))

    return drawn


def pixels(png: bytes, caption: str) -> Markup:
    """An SVG of the picture's pixels; empty if ``png`` is none or is too large to be
    decoded."""
    rows = _rows(png)
    if not rows:
        return Markup("")
    # One path a colour: an element a pixel would make the page too heavy.
    paths: dict[_Colour, list[str]] = defaultdict(list)
    for y, end, x, count, colour in _blocks(rows):
        paths[colour].append(f"M{x} {y}h{count}v{end - y}h-{count}z")

    drawn = []
    for (red, green, blue), parts in paths.items():
        fill = f"#{red:02x}{green:02x}{blue:02x}"
        drawn.append(svg.tag("path", fill=fill, d="".join(parts)))

    return svg.tag(
        "svg",
        *drawn,
        viewBox=f"0 0 {len(rows[0])} {len(rows)}",
        role="img",
        aria_label=one_line(caption, 200),
        shape_rendering="crispEdges",
    )


def _rows(png: bytes) -> list[list[_Colour]]:
    """RGB values, row by row."""
    if not png:
        return []
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.width * image.height > _MAX_ENCODED_PIXELS:
                return []
            image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.NEAREST)
            small = image.convert("RGB")
            data = small.tobytes()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return []

    # Three bytes a pixel, one row after the other.
    pixels = list(zip(data[0::3], data[1::3], data[2::3], strict=True))
    width = small.width
    return [pixels[first : first + width] for first in range(0, len(pixels), width)]


def _blocks(rows: list[list[_Colour]]) -> Iterator[tuple[int, int, int, int, _Colour]]:
    """(first row, row after the last, x, width, colour): runs of pixels, over equal
    rows."""
    start = 0
    for y in range(1, len(rows) + 1):
        if y < len(rows) and rows[y] == rows[start]:
            continue
        for x, count, colour in _row_runs(rows[start]):
            yield start, y, x, count, colour

        start = y


def _row_runs(row: list[_Colour]) -> Iterator[tuple[int, int, _Colour]]:
    """(x, width, colour) of the pixels in a row that are alike."""
    x = 0
    for colour, alike in groupby(row):
        count = len([*alike])
        yield x, count, colour
        x += count


def _birthday(given: Birthday) -> Markup:
    """The probability of a collision over the number of images, with the numbers that
    matter."""
    pools = [_pool(pool) for pool in given.pools]
    seen = [_pool(pool) for pool in given.seen]
    return birthday_curve(given.bits, pools or None, seen=seen)


# ------------------------------------------------------------------- the birthday curve

HEIGHT: Final = 380
TOP: Final = 30
BASE: Final = HEIGHT - 52
PLOT_W: Final = svg.WIDTH - svg.LEFT - 40
_MAX_POOLS: Final = 12
_CURVE_STEPS: Final = 240
_STANDALONE_STYLE: Final = (
    ".picture{font:11px system-ui,'DejaVu "
    "Sans',sans-serif;--bg:#fff;--fg:#1b1f24;--soft:#57606a;"
    "--line:#d5dae0;--s0:#0b5cad;--s1:#b7571f}"
    "@media(prefers-color-scheme:dark){.picture{--bg:#0f1419;--fg:#e3e8ee;--soft:#9aa5b1;"
    "--line:#313a44;--s0:#79b8ff;--s1:#f2a36b}}"
    ".page{fill:var(--bg)}text{fill:var(--fg)}.tick{fill:var(--soft)}.panel{font-weight:650;"
    "font-size:12px}.mid{text-anchor:middle}.end{text-anchor:end}.axis{stroke:var(--soft);"
    "fill:none}.grid{stroke:var(--line);fill:none}.line{fill:none;stroke-width:1.8}"
    ".s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s1-text{fill:var(--s1)}.name{font-weight:600}"
)


@dataclass(frozen=True)
class ImagePool:
    """A number of images worth marking. ``label``: what it is, in a few words; may be
    empty."""

    images: int
    label: str = ""


def _pool(given: Pool) -> ImagePool:
    return ImagePool(given.images, one_line(given.label, 80))


def _pools_of_interest(bits: int = 30) -> tuple[ImagePool, ...]:
    """Points of 1, 50 and 99 %; for 30 bits also the 46 000 that the report takes for
    50 %."""
    points = [ImagePool(images_for(share, bits)) for share in (0.01, 0.5, 0.99)]
    if bits == 30:
        points.append(ImagePool(46_000, "where the report expects 50 %"))
    return tuple(sorted(points, key=lambda pool: pool.images))


def birthday_curve(
    bits: int = 30,
    pools: Sequence[ImagePool] | None = None,
    *,
    seen: Sequence[ImagePool] = (),
    standalone: bool = False,
) -> Markup:
    """The probability of a collision of ``bits``-bit values over the number of images.

    ``pools`` are marked on the curve (default: ``_pools_of_interest``); ``seen`` are
    numbers that were measured, such as a search's own, marked on the axis below. At
    most 12 are drawn.
    ``standalone``: with its own colours, for a file of its own.

    Raises:
        ValueError: ``bits`` is not in 1..256.
    """
    if pools is None:
        pools = _pools_of_interest(bits)
    marks = [pool for pool in pools if pool.images >= 0]
    marks = sorted(marks, key=lambda pool: pool.images)[:_MAX_POOLS]
    measured = [pool for pool in seen if pool.images >= 0][:_MAX_POOLS]
    shown = [*marks, *measured]

    full = images_for(0.999, bits)
    widest = max([full, *(pool.images for pool in shown)])
    # One wild number must not press the curve against the axis.
    axis = _BirthdayAxis(bits, min(widest, 4 * full) * 1.04)
    body = [*_grid(axis), _curve(axis), *_marks(axis, marks), *_seen(axis, measured)]
    if standalone:
        page = svg.rect("page", 0, 0, svg.WIDTH, HEIGHT)
        style = svg.tag("style", Markup(_STANDALONE_STYLE))  # noqa: S704 - a constant
        body = [style, page, *body]

    text = "; ".join(_words(bits, pool) for pool in shown)
    return svg.described(
        name="birthday",
        height=HEIGHT,
        label=f"Probability of a collision among images with {bits}-bit pad values",
        words=f"{text}.",
        body=body,
    )


@dataclass(frozen=True)
class _BirthdayAxis:
    """Images to x, probability to y; both linear, from 0."""

    bits: int
    most: float

    def x(self, images: float) -> float:
        return svg.LEFT + PLOT_W * min(max(images / self.most, 0.0), 1.0)

    def y(self, probability: float) -> float:
        return TOP + (BASE - TOP) * (1 - probability)

    def chance(self, images: float) -> float:
        return collision_probability(round(images), self.bits)


def _words(bits: int, pool: ImagePool) -> str:
    label = f" ({one_line(pool.label, 80)})" if pool.label else ""
    chance = collision_probability(pool.images, bits)
    return f"{pool.images:,} images{label}: {percent(chance)}"


def percent(probability: float) -> str:
    """``62.7 %``; never 0 or 100 for what is neither."""
    if 0 < probability < 0.0005:
        return "<0.1 %"
    if 0.9995 <= probability < 1:
        return ">99.9 %"
    return f"{probability * 100:.1f} %"


def _grid(axis: _BirthdayAxis) -> Iterator[Markup]:
    yield svg.text(4, 16, "Probability that two images have one pad value", "panel")
    shares = [(share, f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    yield from svg.grid_lines(svg.LEFT, PLOT_W, shares, axis.y)
    yield svg.path("axis", f"M{svg.LEFT} {BASE}h{PLOT_W}")

    step = svg.nice_step(axis.most, 8)
    marks = []
    for number in range(math.floor(axis.most / step) + 1):
        images = number * step
        marks.append((axis.x(images), f"{images:,.0f}"))

    yield from svg.ticks(BASE, marks)
    across = "different images in the cache's time"
    yield svg.text(svg.LEFT + PLOT_W / 2, BASE + 36, across, "label mid")


def _curve(axis: _BirthdayAxis) -> Markup:
    places = []
    for number in range(_CURVE_STEPS + 1):
        images = axis.most * number / _CURVE_STEPS
        x = axis.x(images)
        y = axis.y(axis.chance(images))
        places.append(f"{x:.1f} {y:.1f}")

    return svg.path("line s0", f"M{'L'.join(places)}", f"2^{axis.bits} values")


def _marks(axis: _BirthdayAxis, pools: Sequence[ImagePool]) -> Iterator[Markup]:
    """A point on the curve, a line to the axis, and a label on the side that the curve
    leaves."""
    # The curve rises to the right: each label must end above the one before it.
    below = math.inf
    for pool in pools:
        chance = axis.chance(pool.images)
        x = axis.x(pool.images)
        y = axis.y(chance)
        yield svg.path("axis", f"M{x:.1f} {y:.1f}V{BASE}", stroke_dasharray="3 3")
        yield svg.circle("line s0", x, y, 4, _words(axis.bits, pool))

        label = f"{pool.images:,}: {percent(chance)}"
        if pool.label:
            label += f", {pool.label}"
        if chance < 0.05:
            # Here the curve is flat and has the free side above it.
            yield svg.text(x - 6, y - 30, label, "name")
            continue

        below = min(y + 16, below - 14, BASE - 8)
        if x < svg.LEFT + PLOT_W * 0.75:
            yield svg.text(x + 10, below, label, "name")
        else:
            yield svg.text(x - 8, below, label, "name end")


def _seen(axis: _BirthdayAxis, pools: Sequence[ImagePool]) -> Iterator[Markup]:
    for row, pool in enumerate(pools):
        x = axis.x(pool.images)
        y = BASE - 14 - 13 * row
        yield svg.path("line s1", f"M{x:.1f} {BASE - 10}V{BASE}")
        label = f"{pool.images:,} ({pool.label})"
        if x < svg.LEFT + PLOT_W * 0.6:
            yield svg.text(x + 5, y, label, "name s1-text")
        else:
            yield svg.text(x - 5, y, label, "name s1-text end")
