"""Exhibits as inline SVG: pictures pixel by pixel, and the birthday curve.

No script, no address, no data URL.

A picture is drawn from its own pixels, so that the page needs no image source in its policy and a
redaction of encoded images leaves it alone. Like everything in an incident, it may be hostile:
sizes are bounded before anything is decoded, and what is no picture is left out.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from markupsafe import Markup
from mmrepro.incident import Birthday, Exhibit, Incident, Shown
from mmrepro.text.sanitize import one_line

MAX_SIDE: Final = 128
"""Larger pictures are shown smaller: a pixel may become an element."""
MAX_ENCODED_PIXELS: Final = 4 << 20
MAX_EXHIBITS: Final = 12

Pictured = list[tuple[Shown, Markup]]


def exhibits(incident: Incident) -> list[tuple[Exhibit, Pictured, Markup]]:
    """Each exhibit with its pictures and its curve, drawn; empty where there is none."""
    return [
        (
            exhibit,
            [(shown, pixels(shown.png, shown.caption)) for shown in exhibit.shown[:MAX_EXHIBITS]],
            curve(exhibit.birthday) if exhibit.birthday else Markup(""),
        )
        for exhibit in incident.exhibits[:MAX_EXHIBITS]
    ]


def pixels(png: bytes, caption: str) -> Markup:
    """An SVG of the picture's pixels; empty if ``png`` is none or is too large to be decoded."""
    rows = _rows(png)
    if not rows:
        return Markup("")
    width, height = len(rows[0]), len(rows)
    paths: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for y, end, x, count, colour in _blocks(rows):
        paths[colour].append(f"M{x} {y}h{count}v{end - y}h-{count}z")
    drawn = Markup("").join(
        Markup('<path fill="#{:02x}{:02x}{:02x}" d="{}"/>').format(*colour, "".join(path))
        for colour, path in paths.items()
    )
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" shape-rendering="crispEdges">{}</svg>'
    ).format(width, height, one_line(caption, 200), drawn)


def _rows(png: bytes) -> list[list[tuple[int, int, int]]]:
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


Block = tuple[int, int, int, int, tuple[int, int, int]]


def _blocks(rows: list[list[tuple[int, int, int]]]) -> Iterator[Block]:
    """(first row, row after the last, x, width, colour): runs of pixels, over equal rows."""
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


def curve(given: Birthday) -> Markup:
    """The probability of a collision over the number of images, with the numbers that matter."""
    from mmrepro.reports.birthday import Pool, birthday_curve

    pools, seen = (
        [Pool(p.images, one_line(p.label, 80)) for p in some] for some in (given.pools, given.seen)
    )
    return birthday_curve(given.bits, pools or None, seen=seen)
