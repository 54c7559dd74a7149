"""Pictures of a case: from recipes, byte for byte, and by content."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from mmrepro.base.errors import UsageError
from mmrepro.scenarios.data import pad_value_pair
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import (
    Case,
    Collision,
    Content,
    Image,
    Near,
    Noise,
    Relayout,
    Resized,
    ServerWanted,
    Solid,
    Tiles,
)
from mmrepro.traffic.pictures import Picture, noise, tiles
from numpy.typing import NDArray
from PIL import Image as Pillow

A = Noise(seed=777, size=(56, 28))


def made(folder: Path | None = None, **images: Image) -> dict[str, Picture]:
    case = Case(server=ServerWanted(engine="vllm", release="0.23.0"), images=images)
    return pictures(case, folder)


def pixels(picture: Picture) -> NDArray[np.uint8]:
    return np.asarray(Pillow.open(io.BytesIO(picture.png)).convert("RGB"))


def test_recipes_are_those_of_scenarios() -> None:
    seen = made(
        X=A, T=Tiles(seed=5, rows=2, columns=4), U=Relayout(of="T", rows=4, columns=2)
    )
    assert seen["X"] == noise("X", 777, (56, 28))
    assert seen["T"] == tiles("T", 2, 4, 5)
    assert seen["U"] == tiles("U", 4, 2, 5)
    assert (seen["U"].width, seen["U"].height) == (56, 112)


def test_the_same_bytes_each_time_and_in_a_chain() -> None:
    images: dict[str, Image] = {
        "X": A,
        "small": Resized(of="X", size=(30, 20)),
        "near": Near(of="small", seed=3, pixels=7),
        "flat": Solid(colour=(1, 2, 3), size=(5, 4)),
    }
    first, again = made(**images), made(**images)
    assert first == again
    assert (first["near"].width, first["near"].height) == (30, 20)
    assert (pixels(first["flat"]) == (1, 2, 3)).all()


@pytest.mark.parametrize("count", [1, 7, 10_000])
def test_a_near_duplicate_has_that_many_pixels_changed(count: int) -> None:
    seen = made(X=A, near=Near(of="X", seed=1, pixels=count))
    changed = (pixels(seen["X"]) != pixels(seen["near"])).any(axis=2).sum()
    assert changed == min(count, 56 * 28)
    other = made(X=A, near=Near(of="X", seed=2, pixels=count))
    assert other["near"].png != seen["near"].png


def test_a_collision_is_the_pair_that_is_shipped() -> None:
    seen = made(a=Collision(member=0), b=Collision(member=1))
    assert seen["a"].png == (pad_value_pair() / "A.png").read_bytes()
    assert seen["b"].png == (pad_value_pair() / "B.png").read_bytes()


def kept(folder: Path, data: bytes) -> str:
    name = hashlib.sha256(data).hexdigest()
    (folder / "images").mkdir(exist_ok=True)
    (folder / "images" / name).write_bytes(data)
    return name


def test_by_content(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Pillow.new("RGB", (9, 7)).save(buffer, "JPEG")
    sha = kept(tmp_path, buffer.getvalue())
    seen = made(
        tmp_path,
        X=Content(sha256=sha, media_type="image/jpeg"),
        n=Near(of="X", seed=1, pixels=2),
    )
    assert seen["X"].png == buffer.getvalue()
    assert seen["X"].data_url.startswith("data:image/jpeg;base64,")
    assert seen["X"].sent().sha256 == sha
    assert (seen["n"].width, seen["n"].height) == (9, 7)


def test_what_is_no_picture_is_sent_as_it_is_but_nothing_is_made_of_it(
    tmp_path: Path,
) -> None:
    broken = Content(sha256=kept(tmp_path, b"GIF89a, but no"))
    assert made(tmp_path, X=broken)["X"].png == b"GIF89a, but no"
    with pytest.raises(UsageError, match="The image n cannot be made of X"):
        made(tmp_path, X=broken, n=Near(of="X", seed=1))


def test_a_missing_or_another_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read: No such file"):
        made(tmp_path, X=Content(sha256="0" * 64))
    sha = kept(tmp_path, b"abc")
    (tmp_path / "images" / sha).write_bytes(b"abd")
    with pytest.raises(UsageError, match="its SHA-256 is another"):
        made(tmp_path, X=Content(sha256=sha))


def test_what_a_picture_is_made_of_comes_before_it() -> None:
    with pytest.raises(ValueError, match="does not come before it"):
        made(n=Near(of="X", seed=1), X=A)
    with pytest.raises(ValueError, match="which is not of tiles"):
        made(X=A, r=Relayout(of="X", rows=1, columns=1))
