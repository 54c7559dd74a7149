import base64
import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.traffic.pictures import noise, read_picture, tiles
from PIL import Image

SEEDS = st.integers(0, 2**31)
SIDES = st.integers(1, 300)


@examples(15)
@given(SEEDS, SIDES, SIDES)
def test_a_png_of_the_size_that_was_asked_for(
    seed: int, width: int, height: int
) -> None:
    picture = noise("X", seed, (width, height))
    with Image.open(io.BytesIO(picture.png)) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        assert image.size == (width, height) == (picture.width, picture.height)
        image.load()


@examples(15)
@given(SEEDS, SEEDS)
def test_equal_seeds_equal_bytes_other_seeds_other_bytes(one: int, two: int) -> None:
    first, second = noise("a", one, (140, 84)), noise("b", two, (140, 84))
    assert (first.png == second.png) == (one == two)


def test_what_is_kept_of_it_is_its_digest() -> None:
    picture = noise("fill-7", 7, (56, 28))
    sent = picture.sent()
    assert sent.sha256 == hashlib.sha256(picture.png).hexdigest()
    assert (sent.name, sent.width, sent.height) == ("fill-7", 56, 28)
    assert sent.bytes == len(picture.png)


def test_the_data_url_holds_the_file() -> None:
    picture = noise("X", 777, (28, 28))
    head, _, body = picture.data_url.partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(body) == picture.png


def test_noise_of_patches_stays_small() -> None:
    assert len(noise("X", 1, (420, 420)).png) < 60_000


def test_tiles_of_one_seed_are_the_same_in_any_layout() -> None:
    def cut(rows: int, columns: int) -> np.ndarray:  # type: ignore[type-arg]
        with Image.open(io.BytesIO(tiles("W", rows, columns, 7).png)) as image:
            pixels = np.asarray(image)
        assert pixels.shape == (rows * 28, columns * 28, 3)
        grid = pixels.reshape(rows, 28, columns, 28, 3).transpose(0, 2, 1, 3, 4)
        return grid.reshape(rows * columns, 28, 28, 3)

    assert np.array_equal(cut(2, 4), cut(4, 2))
    assert len({tile.tobytes() for tile in cut(2, 4)}) == 8


def test_a_picture_is_read_from_a_file(tmp_path: Path) -> None:
    made = noise("A", 1, (56, 28))
    (tmp_path / "A.png").write_bytes(made.png)
    assert read_picture(tmp_path / "A.png") == made
    (tmp_path / "B.png").write_bytes(b"no picture")
    for name in ("B", "C"):
        with pytest.raises(UsageError, match=rf"{name}\.png cannot be read") as raised:
            read_picture(tmp_path / f"{name}.png", "make one")
        assert raised.value.hint == "make one"
