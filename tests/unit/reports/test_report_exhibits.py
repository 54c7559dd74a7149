"""Exhibits: pictures drawn from their own pixels, answers side by side, the birthday
curve."""

import io
import re

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.base.records import StandIn
from mmrepro.base.text.redact import Redactor
from mmrepro.failure.documents import Birthday, Exhibit, Incident, Pool, Shown
from mmrepro.reports.exhibits import MAX_SIDE, pixels
from mmrepro.reports.incident import stand_in_use
from PIL import Image
from rendered import html, markdown
from sample import sample_incident


def png(width: int, height: int, values: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.frombytes("RGB", (width, height), values).save(buffer, "PNG")
    return buffer.getvalue()


def redrawn(svg: str, width: int, height: int) -> list[list[str]]:
    """What the SVG's rectangles paint, pixel by pixel."""
    canvas = [[""] * width for _ in range(height)]
    for colour, path in re.findall(r'<path fill="#(\w{6})" d="([^"]+)"/>', svg):
        for x, y, w, h in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z", path):
            for row in range(int(y), int(y) + int(h)):
                for column in range(int(x), int(x) + int(w)):
                    assert canvas[row][column] == "", "a pixel is painted once"
                    canvas[row][column] = colour
    return canvas


@given(st.integers(1, 6), st.integers(1, 6), st.data())
@settings(max_examples=60, deadline=None)
def test_every_pixel_is_drawn_in_its_colour(
    width: int, height: int, data: st.DataObject
) -> None:
    level = st.sampled_from((0, 255))
    values = bytes(data.draw(level) for _ in range(width * height * 3))
    canvas = redrawn(str(pixels(png(width, height, values), "A")), width, height)
    flat = [colour for row in canvas for colour in row]
    assert flat == [values[i : i + 3].hex() for i in range(0, len(values), 3)]


def test_large_pictures_are_shown_smaller() -> None:
    svg = str(pixels(png(600, 300, bytes(600 * 300 * 3)), "A"))
    assert f'viewBox="0 0 {MAX_SIDE} {MAX_SIDE // 2}"' in svg


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"<svg onload=alert(1)>", b"\0" * 99]
)
def test_what_is_no_picture_is_left_out(data: bytes) -> None:
    assert pixels(data, "A") == ""


def shown_incident() -> Incident:
    red = png(2, 1, b"\xff\0\0\0\0\xff")
    return sample_incident(
        exhibits=[
            Exhibit(
                title="Side <b>",
                note="`greedy`",
                shown=[
                    Shown(
                        caption="A alone",
                        png=red,
                        file="A.png",
                        text="x y",
                        facts={"lp": "-1"},
                    ),
                    Shown(caption="<script>", text="| pipe"),
                ],
            ),
            Exhibit(
                title="Birthday",
                birthday=Birthday(
                    bits=30, pools=[Pool(images=46_000, label="50 % they say")]
                ),
            ),
        ]
    )


def test_both_reports_show_them_and_hostile_words_stay_words() -> None:
    page, text = html(shown_incident()), markdown(shown_incident())
    assert 'fill="#ff0000"' in page
    assert page.count("<script>") == 1, "its own"
    assert "data:image" not in page
    assert "<b>" not in page
    assert "evidence/A.png" in text
    assert "x y" in text
    assert "46,000" in text
    assert "62.7%" in text
    assert page.count("polyline") + page.count("<path class") > 0


def test_pictures_survive_json_and_redaction() -> None:
    made = shown_incident()
    again = Incident.model_validate_json(made.model_dump_json())
    assert again == made
    assert (
        Redactor().redact_model(made).exhibits[0].shown[0].png
        == made.exhibits[0].shown[0].png
    )
    with pytest.raises(ValueError, match="png"):
        Shown.model_validate_json('{"caption": "A", "png": "no base64!"}')


def test_the_use_of_a_stand_in_is_said() -> None:
    def said(loaded: int | None, calls: int | None) -> str:
        return stand_in_use(
            StandIn(name="s", replaces="r", why="w", loaded=loaded, calls=calls)
        )

    assert said(None, None) == ""
    assert "nothing that it only pretends" in said(3, 0)
    assert "2 calls" in said(3, 2)
    assert said(3, None) == "reported itself 3 times"
