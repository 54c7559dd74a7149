"""By what was sent a silent failure is recognised, and by what it is not."""

import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from fake_sglang import write_engine
from mmrepro.base.errors import EngineStartError, InfrastructureError
from mmrepro.base.records import FindingClass
from mmrepro.scenario import Finding, Truth
from mmrepro.scenario.more import Failure
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenario.sglang import patches
from mmrepro.scenarios.borrowed_faults import PAD_RANGE, digest
from mmrepro.scenarios.pad_value_collision.collide import worker
from mmrepro.scenarios.pad_value_collision.collide.search import identify
from mmrepro.scenarios.pad_value_collision.collide.worker import EnginePlace
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import (
    Case,
    Image,
    Message,
    Near,
    Noise,
    Operation,
    Part,
    ServerWanted,
    Tiles,
)
from mmrepro.traffic.pictures import Picture, noise

SGLANG = ServerWanted(engine="sglang", release="0.5.23")
OLD = ServerWanted(engine="sglang", release="0.5.6")
MINI = ServerWanted(engine="minivllm", release="0.1", args=["--fault", "pad-value-key"])
IMAGES: dict[str, Image] = {
    "W": Tiles(seed=7, rows=2, columns=4),
    "T": Tiles(seed=7, rows=4, columns=2),
    "W2": Tiles(seed=7, rows=2, columns=4),
    "other": Tiles(seed=8, rows=4, columns=2),
    "bit": Near(of="T", seed=1, pixels=1),
    "N": Noise(seed=1, size=(112, 56)),
}
KV, EMBEDDING = "kv-cache", "embedding-cache"


def asks(
    id: str, *parts: str, after: Sequence[str] = (), **parameters: Any
) -> Operation:
    """A request with pictures by name, and texts that begin with a quote."""
    content = [Part(text=p[1:]) if p[:1] == "'" else Part(image=p) for p in parts]
    return Operation(
        id=id,
        after=list(after),
        messages=[Message(role="user", content=content)],
        parameters={"max_tokens": 4, **parameters},
    )


def failure(
    *operations: Operation,
    server: ServerWanted = SGLANG,
    kind: FindingClass = FindingClass.CACHE_BOUND,
    bucket: str = "cache-bound/picture",
    shows: Sequence[str] = ("r2",),
    images: dict[str, Image] | None = None,
    made: dict[str, Picture] | None = None,
) -> Failure:
    case = Case(server=server, images=images or IMAGES, operations=list(operations))
    return Failure(kind, bucket, tuple(shows), case, made or pictures(case, None))


def asked(name: str, one: Failure, variant: str = "") -> Finding:
    return load_scenario(name).with_variant(variant).recognises(one)


def alias(*operations: Operation, variant: str = KV, **more: Any) -> Truth:
    return asked("shape-alias", failure(*operations, **more), variant).truth


# ---------------------------------------------------------------------- shape alias


@pytest.mark.parametrize(("first", "second"), [("W", "T"), ("T", "W")])
@pytest.mark.parametrize(
    "kind",
    [FindingClass.CACHE_BOUND, FindingClass.WRONG_ANSWER, FindingClass.CROSS_TALK],
)
def test_the_same_bytes_in_another_layout_are_recognised(
    first: str, second: str, kind: FindingClass
) -> None:
    one = failure(
        asks("r1", "'see", first, "'a"), asks("r2", "'see", second, "'b"), kind=kind
    )
    found = asked("shape-alias", one, KV)
    assert found.truth is Truth.MET
    assert f"r2: its picture {second} and {first} of r1" in found.observed


@pytest.mark.parametrize("second", ["other", "W2", "W", "bit", "N"])
def test_other_tiles_or_the_same_grid_are_not(second: str) -> None:
    assert alias(asks("r1", "W", "'a"), asks("r2", second, "'a")) is Truth.NOT_MET


@pytest.mark.parametrize(
    "first",
    [
        asks("r1", "'read", "W", "'a"),
        asks("r1", "W", "'see", "'a"),
        asks("r1", "'see", "N", "W", "'a"),
        asks("r1", "'see", "W", "'a", cache_salt="x"),
        asks("r1", "'see", "W", "'a", tools=[{}]),
        asks("r1", "'see", "W", "'a", after=["r0.end", "r2.end"]),
    ],
    ids=["text", "place", "a picture before it", "salt", "tools", "it comes later"],
)
def test_what_stands_before_the_picture_counts(first: Operation) -> None:
    start, second = asks("r0", "'hi"), asks("r2", "'see", "T", "'a")
    order = (
        [start, second, first] if "r2.end" in first.after else [start, first, second]
    )
    assert alias(*order) is Truth.NOT_MET
    same = asks("r1", "'see", "W", "'a")
    assert alias(start, same, second) is Truth.MET


def test_what_is_sent_at_once_may_have_been_first() -> None:
    assert alias(asks("r2", "T", "'a"), asks("r1", "W", "'a")) is Truth.MET


def test_each_wrong_answer_needs_a_reason() -> None:
    both = [asks("r1", "W", "'a"), asks("r2", "T", "'a"), asks("r3", "N", "'a")]
    assert alias(*both, shows=["r2"]) is Truth.MET
    assert alias(*both, shows=["r2", "r3"]) is Truth.NOT_MET
    assert alias(*both, shows=[]) is Truth.UNKNOWN


LOUD = [
    k for k in FindingClass if k not in ("cross-talk", "cache-bound", "wrong-answer")
]


@pytest.mark.parametrize(
    "more",
    [
        *({"kind": kind} for kind in LOUD),
        {"bucket": "cache-bound/whole"},
        {"server": SGLANG.model_copy(update={"engine": "vllm"})},
        {"server": SGLANG.model_copy(update={"release": "0.4.5"})},
        {"server": SGLANG.model_copy(update={"args": ["--disable-radix-cache"]})},
        {
            "server": SGLANG.model_copy(
                update={"mitigation": "shape-alias/disable-radix-cache"}
            )
        },
        {"server": SGLANG.model_copy(update={"model": "/a/model"})},
        {
            "images": {
                **IMAGES,
                "W": Tiles(seed=7, rows=8, columns=64),
                "T": Tiles(seed=7, rows=64, columns=8),
            }
        },
    ],
)
def test_another_class_server_or_a_picture_that_is_resized_is_not(
    more: dict[str, Any],
) -> None:
    assert alias(asks("r1", "W", "'a"), asks("r2", "T", "'a"), **more) is not Truth.MET


def test_features_are_kept_whatever_stands_before_a_picture() -> None:
    wrong: dict[str, Any] = {
        "kind": FindingClass.WRONG_ANSWER,
        "bucket": "wrong-answer/text",
    }
    two = asks("r1", "'read", "W"), asks("r2", "'see", "N", "T")
    assert alias(*two, **wrong) is Truth.NOT_MET
    assert alias(*two, variant=EMBEDDING, **wrong) is Truth.MET
    # More tokens than are shared.
    assert alias(*two, variant=EMBEDDING) is Truth.NOT_MET
    off = SGLANG.model_copy(update={"env": {"SGLANG_VLM_CACHE_SIZE_MB": "0"}})
    assert alias(*two, variant=EMBEDDING, server=off, **wrong) is Truth.NOT_MET
    others = asks("r1", "'read", "other"), two[1]
    assert alias(*others, variant=EMBEDDING, **wrong) is Truth.NOT_MET


def test_a_picture_of_no_pixels_is_nobodys_alias() -> None:
    broken = Picture("W", b"no picture", 0, 0)
    assert patches(broken, "qwen2-vl") is None
    whole = noise("N", 1, (112, 56))
    assert patches(whole, "qwen2-vl") is not None
    assert patches(whole, "text") is None
    assert patches(noise("N", 1, (28, 28)), "qwen2-vl") is None  # enlarged
    assert patches(noise("N", 1, (113, 56)), "qwen2-vl") is None


# ---------------------------------------------------------------------- pad value


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A made-up SGLang; the pad value's expression is given."""

    def made(pad: str) -> EnginePlace:
        folder = write_engine(tmp_path / "engine", pad=pad)
        env = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        place = EnginePlace(
            "sglang", "0.0", "cpu", Path(sys.executable), env, folder / "model"
        )
        monkeypatch.setattr(worker, "place_for", lambda *_, **__: place)
        return place

    return made


def colliding(
    place: EnginePlace, folder: Path
) -> tuple[dict[str, Image], tuple[str, str], str]:
    """Noise, two of whom have one pad value, and one that has another."""
    images: dict[str, Image] = {
        f"p{n}": Noise(seed=n, size=(56, 56)) for n in range(18)
    }
    made = pictures(Case(server=OLD, images=images), None)
    for name, picture in made.items():
        (folder / name).write_bytes(picture.png)
    known = identify(place, {name: folder / name for name in made})[1]
    pair = next(
        (a, b)
        for a, b in combinations(made, 2)
        if known[a].pad_value == known[b].pad_value
    )
    apart = next(n for n in made if known[n].pad_value != known[pair[0]].pad_value)
    return images, pair, apart


def collides(one: Failure) -> Finding:
    return asked("pad-value-collision", one)


def test_one_pad_value_of_two_pictures_is_recognised(
    tmp_path: Path, engine: Any
) -> None:
    images, (a, b), apart = colliding(engine("self.hash % (1 << 4)"), tmp_path)
    given: dict[str, Any] = {"server": OLD, "images": images}
    met = collides(failure(asks("r1", a, "'x"), asks("r2", b, "'x"), **given))
    assert met.truth is Truth.MET
    assert "one pad value by the engine's own code" in met.observed
    for first in (
        asks("r1", apart, "'x"),
        asks("r1", "'text", a, "'x"),
        asks("r1", b, "'x"),
    ):
        assert (
            collides(failure(first, asks("r2", b, "'x"), **given)).truth
            is Truth.NOT_MET
        )
    engine("self.hash")
    wide = collides(failure(asks("r1", a, "'x"), asks("r2", b, "'x"), **given))
    assert wide.truth is Truth.NOT_MET


def test_the_layout_explains_it_without_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        worker, "place_for", lambda *_, **__: pytest.fail("it was asked")
    )
    one = failure(asks("r1", "W", "'a"), asks("r2", "T", "'a"), server=OLD)
    assert collides(one).truth is Truth.NOT_MET
    for more in (
        {"server": SGLANG},
        {"server": MINI},
        {"server": OLD, "kind": FindingClass.RESIDUE},
    ):
        two = failure(asks("r1", "N", "'a"), asks("r2", "T", "'a"), **more)  # type: ignore[arg-type]
        assert collides(two).truth is Truth.NOT_MET


@pytest.mark.parametrize(
    "error", [InfrastructureError("no wheel"), EngineStartError("no wheel")]
)
def test_an_engine_that_cannot_be_asked_leaves_it_open(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def none(*_: object, **__: object) -> EnginePlace:
        raise error

    monkeypatch.setattr(worker, "place_for", none)
    found = collides(failure(asks("r1", "N", "'a"), asks("r2", "T", "'a"), server=OLD))
    assert (found.truth, "no wheel" in found.observed) == (Truth.UNKNOWN, True)


def test_the_engine_lays_pictures_out_as_was_computed(
    tmp_path: Path, engine: Any
) -> None:
    """The made-up engine's processor was written after transformers', and for another
    test."""
    place = engine("self.hash")
    made = pictures(Case(server=SGLANG, images=IMAGES), None)
    for name, picture in made.items():
        (tmp_path / name).write_bytes(picture.png)
    known = identify(place, {name: tmp_path / name for name in made})[1]
    for a, b in combinations(made, 2):
        mine, other = patches(made[a], "qwen2-vl"), patches(made[b], "qwen2-vl")
        assert mine is not None
        assert other is not None
        assert (mine.values == other.values) == (known[a].hash == known[b].hash), (a, b)


# ----------------------------------------------------------------- minivllm's pad value


@pytest.fixture(scope="module")
def noises() -> tuple[Picture, Picture, Picture]:
    """Two of one key, and one of another."""
    seen: dict[int, Picture] = {}
    for seed in range(5000, 9000):
        made = noise("b", seed, (84, 84))
        pad = digest(made) % PAD_RANGE
        if pad in seen:
            first = Picture("a", seen[pad].png, 84, 84)
            return first, made, noise("c", 4, (84, 84))
        seen[pad] = made
    raise AssertionError("no pair")


@pytest.mark.parametrize(
    ("first", "second", "args", "truth"),
    [
        (["a", "'x"], ["b", "'y"], ["--fault", "pad-value-key"], Truth.MET),
        (["'text", "a"], ["b", "'y"], ["--fault", "pad-value-key"], Truth.MET),
        (["c", "a"], ["c", "b"], ["--fault=pad-value-key"], Truth.MET),
        (["c", "'x"], ["b", "'x"], ["--fault", "pad-value-key"], Truth.NOT_MET),
        (["b", "'x"], ["b", "'x"], ["--fault", "pad-value-key"], Truth.NOT_MET),
        (["c", "a"], ["b", "a"], ["--fault", "pad-value-key"], Truth.NOT_MET),
        (["a", "'x"], ["b", "'x"], ["--fault", "kv-budget"], Truth.NOT_MET),
        (["a", "'x"], ["b", "'x"], [], Truth.UNKNOWN),
        (
            ["a"],
            ["b"],
            ["--fault", "pad-value-key", "--no-prefix-caching"],
            Truth.NOT_MET,
        ),
        (
            ["a"],
            ["b"],
            ["--fault", "pad-value-key", "--fix", "pad-value-key"],
            Truth.NOT_MET,
        ),
    ],
)
def test_minivllms_keys_are_digests_of_a_few_bits(
    noises: tuple[Picture, ...],
    first: list[str],
    second: list[str],
    args: list[str],
    truth: Truth,
) -> None:
    images: dict[str, Image] = {p.name: Noise(seed=1, size=(84, 84)) for p in noises}
    one = failure(
        asks("r1", *first),
        asks("r2", *second),
        server=MINI.model_copy(update={"args": args}),
        images=images,
        made={p.name: p for p in noises},
    )
    assert asked("borrowed-faults", one, "pad-value-key").truth is truth
    assert asked("borrowed-faults", one, "kv-budget").truth is Truth.UNKNOWN


def test_the_digest_is_minivllms_own(noises: tuple[Picture, ...]) -> None:
    from mmrepro.reproducers.minivllm import config, sequence

    assert config.PAD_RANGE == PAD_RANGE
    for picture in noises:
        image = sequence.Image.of(picture.png, 3, 3)
        assert int(image.digest, 16) == digest(picture)
