"""Anonymised pictures: noise of the same size, in the same relations to each other."""

import base64
import io
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import given, strategies as st
from made_up_har import SERVER, captured, chat, data_url, shown
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.looks import look
from mmrepro.traffic.capture.messages import Captured, Contents
from mmrepro.traffic.case.files import pictures, read_case, write_case
from mmrepro.traffic.case.model import Case, Content, Image, Message, Operation, Part
from mmrepro.traffic.pictures import noise, tiles
from PIL import Image as Pillow


def encode(pixels: Any, form: str = "PNG", **how: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, form, **how)
    return buffer.getvalue()


def case_with(*images: bytes, media_type: str = "image/png") -> Captured:
    contents = Contents()
    named: dict[str, Image] = {
        f"i{n}": Content(sha256=contents.add(data), media_type=media_type)
        for n, data in enumerate(images)
    }
    content = [Part(image=name) for name in named]
    operations = [Operation(id="r1", messages=[Message(role="user", content=content)])]
    return Captured(Case(server=SERVER, images=named, operations=operations), contents)


def hidden_pixels(found: Captured, folder: Path) -> tuple[list[Any], Captured]:
    """Of each picture, as it is sent; None where it is broken."""
    hidden = anonymise(found)
    write_case(hidden.case, folder, hidden.contents)
    case, at = read_case(folder)
    made = pictures(case, at)
    return [look(made[name].png).pixels for name in case.images], hidden


def test_pictures_become_noise_of_their_size(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    photo = chance.integers(0, 256, (50, 90, 3), dtype=np.uint8)
    found = case_with(
        encode(photo, "JPEG"), encode(photo[:, :60]), noise("", 9, (300, 10)).png
    )
    (one, two, three), hidden = hidden_pixels(found, tmp_path)
    assert [p.shape for p in (one, two, three)] == [
        (50, 90, 3),
        (50, 60, 3),
        (10, 300, 3),
    ]
    assert not (one[:, :60] == two).all()
    assert not (one[:50, :90] == look(encode(photo, "JPEG")).pixels).all()
    assert {image.kind for image in hidden.case.images.values()} == {"noise"}
    assert len(hidden.contents) == 0


def test_the_same_pixels_in_another_file_stay_the_same_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    files = encode(pixels), encode(pixels, compress_level=0), encode(pixels[::-1])
    assert len(set(files)) == 3
    (one, two, three), _ = hidden_pixels(case_with(*files), tmp_path)
    assert (one == two).all()
    assert not (one == three).all()


@examples(15)
@given(changed=st.integers(1, 60), seed=st.integers(0, 99))
def test_near_duplicates_stay_as_near(
    changed: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = np.random.default_rng(seed)
    first = chance.integers(0, 256, (56, 112, 3), dtype=np.uint8)
    near = first.copy()
    flat = near.reshape(-1, 3)
    flat[chance.choice(len(flat), changed, replace=False)] += 1
    far = chance.integers(0, 256, (56, 112, 3), dtype=np.uint8)
    found = case_with(encode(first), encode(far), encode(near))
    (one, other, two), _ = hidden_pixels(found, tmp_path_factory.mktemp("near"))
    assert int((one != two).any(axis=2).sum()) == changed
    assert int((one != other).any(axis=2).sum()) > 3000


def test_the_same_tiles_in_another_layout_stay_that(tmp_path: Path) -> None:
    found = case_with(
        *(tiles("", *layout, seed=3).png for layout in ((2, 4), (4, 2), (1, 8)))
    )
    _, hidden = hidden_pixels(found, tmp_path)
    kinds = [image.kind for image in hidden.case.images.values()]
    assert kinds == ["tiles", "relayout", "relayout"]
    first = hidden.case.images["i0"]
    assert first.kind == "tiles"
    assert (first.rows, first.columns) == (2, 4)
    assert first.seed != 3


def test_broken_pictures_stay_broken_in_their_way(tmp_path: Path) -> None:
    whole = encode(np.zeros((64, 64, 3), dtype=np.uint8) + 7)
    cut, junk, header = (
        whole[: len(whole) // 2],
        b"no picture at all, only words",
        whole[:20],
    )
    found = case_with(cut, junk, header, whole, b"")
    (_, _, _, last, _), hidden = hidden_pixels(found, tmp_path)
    data = [
        hidden.contents[image.sha256] if isinstance(image, Content) else b""
        for image in hidden.case.images.values()
    ]
    assert (look(data[0]).size, look(data[0]).cut) == ((64, 64), True)
    assert look(data[1]).size is None
    assert look(data[2]).size is None
    assert (len(data[1]), len(data[2]), len(data[4])) == (len(junk), len(header), 0)
    assert not any(word in data[1] for word in junk.split())
    assert last.shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("form", "mode"), [("PNG", "RGBA"), ("PNG", "L"), ("GIF", "P"), ("WEBP", "RGB")]
)
def test_unusual_formats_stay_what_they_are(
    form: str, mode: str, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).convert(mode).save(buffer, form)
    found = case_with(buffer.getvalue(), media_type=f"image/{form.lower()}")
    _, hidden = hidden_pixels(found, tmp_path)
    image = hidden.case.images["i0"]
    assert isinstance(image, Content)
    assert image.media_type == f"image/{form.lower()}"
    seen = look(hidden.contents[image.sha256])
    assert (seen.size, seen.form) == ((40, 30), f"{form} {mode}")
    assert hidden.contents[image.sha256] != buffer.getvalue()


def test_a_very_large_picture_is_noise_as_large(tmp_path: Path) -> None:
    large = io.BytesIO()
    Pillow.new("RGB", (9000, 40), (1, 2, 3)).save(large, "PNG")
    _, hidden = hidden_pixels(case_with(large.getvalue()), tmp_path)
    image = hidden.case.images["i0"]
    assert isinstance(image, Content)
    assert look(hidden.contents[image.sha256]).size == (9000, 40)


def test_pictures_that_collide_are_no_pair_any_more_and_that_is_said(
    tmp_path: Path,
) -> None:
    folder = resources.files("mmrepro.scenarios.data") / "pad_value_pair"
    found = case_with(*((folder / name).read_bytes() for name in ("A.png", "B.png")))
    (one, two), hidden = hidden_pixels(found, tmp_path)
    assert not (one.shape == two.shape and (one == two).all())
    assert "(SGLang's pad value) no longer are such a pair" in " ".join(
        hidden.case.origin.notes
    )
    assert len({str(image) for image in hidden.case.images.values()}) == 2


def test_recipes_stay(tmp_path: Path) -> None:
    found = captured(tmp_path, chat([shown("https://pictures.example/a.png")]))
    hidden = anonymise(found)
    assert hidden.case.images == found.case.images
    assert "pictures" not in " ".join(hidden.case.origin.notes[-1:])


def test_payloads_within_parts_are_replaced_as_well(tmp_path: Path) -> None:
    sound = base64.b64encode(b"RIFF" + bytes(40) + b"spoken words " * 30).decode()
    odd = "data:image/png;base64,%%%" + "secretwords" * 9
    keyed = {
        "type": "image_url",
        "image_url": {"url": data_url(5, (84, 56))},
        "uuid": "cust-7",
    }
    parts = [
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        shown(odd),
        keyed,
        keyed,
        shown(data_url(5, (84, 56))),
    ]
    found = captured(tmp_path, chat(parts))
    hidden = anonymise(found)
    messages = hidden.case.operations[0].messages
    assert messages is not None
    audio, broken, one, two, plain = (part.raw for part in messages[0].parts())
    assert plain is None
    assert audio is not None
    assert broken is not None
    assert one is not None
    assert one == two
    data = audio["input_audio"]["data"]
    assert (len(data), audio["input_audio"]["format"]) == (len(sound), "wav")
    assert b"spoken" not in base64.b64decode(data)
    assert data != sound
    url = broken["image_url"]["url"]
    assert (len(url), url[:25]) == (len(odd), odd[:25])
    assert "secretwords" not in url
    picture = base64.b64decode(one["image_url"]["url"].partition(",")[2])
    assert look(picture).size == (84, 56)
    assert picture != noise("", 5, (84, 56)).png
    there = look(pictures(hidden.case, None)["i1"].png).pixels
    assert np.array_equal(look(picture).pixels, there), (
        "the same picture, here and there"
    )
    assert one["uuid"] not in ("cust-7", "")
