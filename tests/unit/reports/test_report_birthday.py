"""The birthday curve: well formed, in its frame, and true to the arithmetic."""

import math
import re
from xml.etree import ElementTree as ET

from hypothesis import given, settings, strategies as st
from mmrepro.failure.documents.model import collision_probability
from mmrepro.reports.exhibits import (
    BASE,
    HEIGHT,
    PLOT_W,
    TOP,
    ImagePool,
    birthday_curve,
    percent,
)
from mmrepro.reports.svg import LEFT, WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ET.Element) -> list[str]:
    return ["".join(e.itertext()) for e in root.iter(f"{SVG}text")]


def test_the_points_of_interest_are_told() -> None:
    root = ET.fromstring(str(birthday_curve(30)))
    said = texts(root)
    assert "38,582: 50.0 %" in said
    assert "46,000: 62.7 %, where the report expects 50 %" in said
    described = root.find(f"{SVG}desc")
    assert described is not None
    assert "38,582 images: 50.0 %" in (described.text or "")
    assert len(str(birthday_curve(30))) < 10_000
    assert "style" not in str(birthday_curve(30)), (
        "the report's content policy refuses styles"
    )


def test_the_curve_is_the_probability() -> None:
    svg = str(birthday_curve(20, pools=[ImagePool(1000, "x")]))
    path = re.search(r'class="line s0" d="M([^"]+)"', svg)
    assert path is not None
    points = [tuple(map(float, p.split())) for p in path[1].split("L")]
    ticks = ET.fromstring(svg)
    # Two labelled ticks of the axis give its scale.
    marks = [
        (float(e.text.replace(",", "")), float(e.get("x", "")))
        for e in ticks.iter(f"{SVG}text")
        if e.get("class") == "tick mid" and e.text
    ]
    per_pixel = (marks[1][0] - marks[0][0]) / (marks[1][1] - marks[0][1])
    for x, y in points[::20]:
        images = round((x - LEFT) * per_pixel)
        wanted = TOP + (BASE - TOP) * (1 - collision_probability(images, 20))
        assert abs(y - wanted) < 2.5, (images, y, wanted)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 64),
    st.lists(
        st.builds(ImagePool, st.integers(-5, 10**30), st.text(max_size=30)), max_size=20
    ),
    st.lists(
        st.builds(ImagePool, st.integers(-5, 10**30), st.text(max_size=30)), max_size=20
    ),
)
def test_wild_pools_stay_in_the_frame(
    bits: int, pools: list[ImagePool], seen: list[ImagePool]
) -> None:
    root = ET.fromstring(str(birthday_curve(bits, pools, seen=seen, standalone=True)))
    for element in root.iter():
        for name, most in (
            ("x", WIDTH),
            ("y", HEIGHT),
            ("cx", LEFT + PLOT_W),
            ("cy", HEIGHT),
        ):
            value = element.get(name)
            if value is not None:
                assert math.isfinite(float(value))
                assert -200 <= float(value) <= most
        assert "nan" not in (element.get("d") or "")


def test_a_probability_is_never_rounded_to_certainty() -> None:
    known = {
        0.0: "0.0 %",
        1e-9: "<0.1 %",
        0.5: "50.0 %",
        0.99999: ">99.9 %",
        1.0: "100.0 %",
    }
    assert {p: percent(p) for p in known} == known
