"""The pair that is shipped: what can be checked of it without the engine."""

import hashlib

import numpy as np
from mmrepro.failure.documents.model import cross_probability
from mmrepro.reproducers import pad_value_search as worker
from mmrepro.scenarios.data import pad_value_pair
from mmrepro.scenarios.pad_value_collision.collide.pair import NAMES, PAIR_FILE, Pair
from mmrepro.scenarios.pad_value_collision.collide.search import draw
from PIL import Image

FOLDER = pad_value_pair()
PAIR = Pair.model_validate_json((FOLDER / PAIR_FILE).read_bytes())


def pixels(name: str) -> np.ndarray:  # type: ignore[type-arg]
    with Image.open(FOLDER / f"{name}.png") as picture:
        assert picture.mode == "RGB"
        return np.asarray(picture)


def test_its_files_are_small_and_all_there() -> None:
    assert sorted(p.name for p in FOLDER.iterdir()) == [
        "A.png",
        "B.png",
        "control.png",
        "pair.json",
    ]
    for image in PAIR.images.values():
        data = (FOLDER / image.file).read_bytes()
        assert image.bytes == len(data) < 4096
        assert image.sha256 == hashlib.sha256(data).hexdigest()


def test_its_numbers_agree_with_each_other() -> None:
    for image in PAIR.images.values():
        # The engine keeps the first 64 bits of the SHA-256 over the preprocessed
        # pixels.
        assert image.hash == image.features_sha256[:16]
        assert image.pad_value == image.hash_value % (1 << 30)
    assert PAIR.collides
    assert PAIR.control_differs
    assert PAIR.equal_bits >= PAIR.search.bits == 30
    each = PAIR.search.images // 2
    assert PAIR.search.probability == cross_probability(each, each, 30)
    assert max(PAIR.search.index_a, PAIR.search.index_b) < each


def test_it_comes_from_its_seed_and_looks_like_two_pictures() -> None:
    assert PAIR.search.seed is not None
    bases = [np.asarray(p) for p in draw(PAIR.search.seed, PAIR.search.width)]
    found = zip("AB", bases, (PAIR.search.index_a, PAIR.search.index_b), strict=True)
    for name, base, index in found:
        assert np.array_equal(
            pixels(name), worker.member(base, index, PAIR.search.varying)
        )
    assert np.abs(pixels("A").astype(int) - pixels("B")).mean() > 80
    flipped = pixels("B") ^ pixels("control")
    assert np.unpackbits(flipped).sum() == 1


def test_it_names_no_machine() -> None:
    text = (FOLDER / "pair.json").read_text()
    for word in ("/home", "/root", "/tmp", "/work", "http"):
        assert word not in text
    assert PAIR.engine.wheel is not None
    assert len(PAIR.engine.wheel.sha256) == 64


def test_the_files_are_those_of_the_search() -> None:
    for name in NAMES:
        data = (FOLDER / f"{name}.png").read_bytes()
        assert hashlib.sha256(data).hexdigest() == PAIR.images[name].sha256
