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
from typing import Final

from markupsafe import Markup
from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents import Birthday, Exhibit, Incident, Shown
from mmrepro.failure.documents.model import collision_probability, images_for
from mmrepro.reports import svg

MAX_SIDE: Final = 128
"""Larger pictures are shown smaller: a pixel may become an element."""
MAX_ENCODED_PIXELS: Final = 4 << 20
MAX_EXHIBITS: Final = 12

Pictured = list[tuple[Shown, Markup]]
Colour = tuple[int, int, int]


def exhibits(incident: Incident) -> list[tuple[Exhibit, Pictured, Markup]]:
    """Each exhibit with its pictures and its curve, drawn; empty where there is
    none."""
    return [
        (
            exhibit,
            [
                (shown, pixels(shown.png, shown.caption))
                for shown in exhibit.shown[:MAX_EXHIBITS]
            ],
            curve(exhibit.birthday) if exhibit.birthday else Markup(""),
        )
        for exhibit in incident.exhibits[:MAX_EXHIBITS]
    ]


def pixels(png: bytes, caption: str) -> Markup:
    """An SVG of the picture's pixels; empty if ``png`` is none or is too large to be
    decoded."""
    rows = _rows(png)
    if not rows:
        return Markup("")
    paths: dict[Colour, list[str]] = defaultdict(list)
    for y, end, x, count, colour in _blocks(rows):
        paths[colour].append(f"M{x} {y}h{count}v{end - y}h-{count}z")
    drawn = (
        svg.tag("path", fill="#{:02x}{:02x}{:02x}".format(*colour), d="".join(parts))
        for colour, parts in paths.items()
    )
    box, label = f"0 0 {len(rows[0])} {len(rows)}", one_line(caption, 200)
    more = {"aria_label": label, "shape_rendering": "crispEdges"}
    return svg.tag("svg", *drawn, viewBox=box, role="img", **more)


def _rows(png: bytes) -> list[list[Colour]]:
    """RGB values, row by row."""
    if not png:
        return []
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.width * image.height > MAX_ENCODED_PIXELS:
                return []
            image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.NEAREST)
            small = image.convert("RGB")
            data = small.tobytes()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return []
    width = small.width
    triples = [(data[i], data[i + 1], data[i + 2]) for i in range(0, len(data), 3)]
    return [triples[i : i + width] for i in range(0, len(triples), width)]


def _blocks(rows: list[list[Colour]]) -> Iterator[tuple[int, int, int, int, Colour]]:
    """(first row, row after the last, x, width, colour): runs of pixels, over equal
    rows."""
    start = 0
    for y in range(1, len(rows) + 1):
        if y < len(rows) and rows[y] == rows[start]:
            continue
        row, x = rows[start], 0
        for end in range(1, len(row) + 1):
            if end == len(row) or row[end] != row[x]:
                yield start, y, x, end - x, row[x]
                x = end
        start = y


# ------------------------------------------------------------------- the birthday curve

HEIGHT: Final = 380
TOP: Final = 30
BASE: Final = HEIGHT - 52
PLOT_W: Final = svg.WIDTH - svg.LEFT - 40
MAX_POOLS: Final = 12
STANDALONE_STYLE: Final = (
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
class Pool:
    """A number of images worth marking. ``label``: what it is, in a few words; may be
    empty."""

    images: int
    label: str = ""


def curve(given: Birthday) -> Markup:
    """The probability of a collision over the number of images, with the numbers that
    matter."""
    pools, seen = (
        [Pool(p.images, one_line(p.label, 80)) for p in some]
        for some in (given.pools, given.seen)
    )
    return birthday_curve(given.bits, pools or None, seen=seen)


def pools_of_interest(bits: int = 30) -> tuple[Pool, ...]:
    """Points of 1, 50 and 99 %; for 30 bits also the 46 000 that the report takes for
    50 %."""
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

    ``pools`` are marked on the curve (default: ``pools_of_interest``); ``seen`` are
    numbers that were measured, such as a search's own, marked on the axis below. At
    most 12 are drawn.
    ``standalone``: with its own colours, for a file of its own.

    Raises:
        ValueError: ``bits`` is not in 1..256.
    """
    marks = [
        p
        for p in (pools_of_interest(bits) if pools is None else pools)
        if p.images >= 0
    ]
    marks = sorted(marks, key=lambda pool: pool.images)[:MAX_POOLS]
    measured = [p for p in seen if p.images >= 0][:MAX_POOLS]
    widest = max([images_for(0.999, bits), *(p.images for p in (*marks, *measured))])
    # One wild number must not press the curve against the axis.
    axis = _Axis(bits, min(widest, 4 * images_for(0.999, bits)) * 1.04)
    body = [*_grid(axis), _curve(axis), *_marks(axis, marks), *_seen(axis, measured)]
    if standalone:
        page = svg.rect("page", 0, 0, svg.WIDTH, HEIGHT)
        body = [svg.tag("style", Markup(STANDALONE_STYLE)), page, *body]  # noqa: S704 - a constant
    label = f"Probability of a collision among images with {bits}-bit pad values"
    told = "; ".join(_words(bits, p) for p in (*marks, *measured)) + "."
    return svg.described("birthday", HEIGHT, label, told, body)


@dataclass(frozen=True)
class _Axis:
    """Images to x, probability to y; both linear, from 0."""

    bits: int
    most: float

    def x(self, images: float) -> float:
        return svg.LEFT + PLOT_W * min(max(images / self.most, 0.0), 1.0)

    def y(self, probability: float) -> float:
        return TOP + (BASE - TOP) * (1 - probability)

    def chance(self, images: float) -> float:
        return collision_probability(round(images), self.bits)


def _words(bits: int, pool: Pool) -> str:
    label = f" ({one_line(pool.label, 80)})" if pool.label else ""
    return (
        f"{pool.images:,} images{label}: "
        f"{percent(collision_probability(pool.images, bits))}"
    )


def percent(probability: float) -> str:
    """``62.7 %``; never 0 or 100 for what is neither."""
    if 0 < probability < 0.0005:
        return "<0.1 %"
    if 0.9995 <= probability < 1:
        return ">99.9 %"
    return f"{probability * 100:.1f} %"


def _grid(axis: _Axis) -> Iterator[Markup]:
    yield svg.text(4, 16, "Probability that two images have one pad value", "panel")
    shares = [(share, f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    yield from svg.grid_lines(svg.LEFT, PLOT_W, shares, axis.y)
    yield svg.path("axis", f"M{svg.LEFT} {BASE}h{PLOT_W}")
    step = svg.nice_step(axis.most, 8)
    numbers = [number * step for number in range(math.floor(axis.most / step) + 1)]
    yield from svg.ticks(BASE, ((axis.x(n), f"{n:,.0f}") for n in numbers))
    across = "different images in the cache's time"
    yield svg.text(svg.LEFT + PLOT_W / 2, BASE + 36, across, "label mid")


def _curve(axis: _Axis) -> Markup:
    points = [axis.most * i / 240 for i in range(241)]
    d = "L".join(f"{axis.x(n):.1f} {axis.y(axis.chance(n)):.1f}" for n in points)
    return svg.path("line s0", f"M{d}", f"2^{axis.bits} values")


def _marks(axis: _Axis, pools: Sequence[Pool]) -> Iterator[Markup]:
    """A point on the curve, a line to the axis, and a label on the side that the curve
    leaves."""
    # The curve rises to the right: each label must end above the one before it.
    below = math.inf
    for pool in pools:
        chance = axis.chance(pool.images)
        x, y = axis.x(pool.images), axis.y(chance)
        yield svg.path("axis", f"M{x:.1f} {y:.1f}V{BASE}", stroke_dasharray="3 3")
        yield svg.circle("line s0", x, y, 4, _words(axis.bits, pool))
        label = f"{pool.images:,}: {percent(chance)}" + (
            f", {pool.label}" if pool.label else ""
        )
        if chance < 0.05:  # here the curve is flat and has the free side above it
            yield svg.text(x - 6, y - 30, label, "name")
            continue
        below = min(y + 16, below - 14, BASE - 8)
        room = x < svg.LEFT + PLOT_W * 0.75
        yield svg.text(
            x + 10 if room else x - 8, below, label, "name" if room else "name end"
        )


def _seen(axis: _Axis, pools: Sequence[Pool]) -> Iterator[Markup]:
    for row, pool in enumerate(pools):
        x = axis.x(pool.images)
        yield svg.path("line s1", f"M{x:.1f} {BASE - 10}V{BASE}")
        side, at = ("", x + 5) if x < svg.LEFT + PLOT_W * 0.6 else (" end", x - 5)
        words = f"{pool.images:,} ({pool.label})"
        yield svg.text(at, BASE - 14 - 13 * row, words, f"name s1-text{side}")
