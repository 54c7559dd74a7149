"""The collision search: its parts on small numbers, and the whole on a made-up
engine."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_sglang import write_engine
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.base.errors import (
    EngineStartError,
    InfrastructureError,
    NoPair,
    UnwritableOutput,
    UsageError,
)
from mmrepro.cli.progress import Progress
from mmrepro.reproducers import pad_value_search as worker
from mmrepro.scenarios.pad_value_collision.collide import search
from mmrepro.scenarios.pad_value_collision.collide.__main__ import main
from mmrepro.scenarios.pad_value_collision.collide.options import PairSearch
from mmrepro.scenarios.pad_value_collision.collide.pair import (
    NAMES,
    PAIR_FILE,
    Pair,
    equal_low_bits,
)
from mmrepro.scenarios.pad_value_collision.collide.search import (
    _chance,
    find_pair,
    verify_pair,
)
from mmrepro.scenarios.pad_value_collision.collide.worker import EnginePlace
from PIL import Image
from rich.console import Console

PLACE_FOR = "mmrepro.scenarios.pad_value_collision.collide.worker.place_for"


def words_of(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A processor that turns each value into a float, channel by channel."""
    return (
        np.ascontiguousarray(pixels.transpose(2, 0, 1))
        .astype(np.float32)
        .view(np.uint32)
        .ravel()
    )


def picture(seed: int, side: int = 12) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def asked(**options: Any) -> PairSearch:
    return PairSearch(**{"bits": 16, **options})


def place(folder: Path, **changes: Any) -> EnginePlace:
    engine = write_engine(folder / "engine", **changes)
    env = {"PYTHONPATH": str(engine), "PYTHONDONTWRITEBYTECODE": "1"}
    return EnginePlace(
        "sglang", "0.0", "cpu", Path(sys.executable), env, engine / "model"
    )


# ------------------------------------------------------------------ the worker's parts


@examples(20)
@given(st.integers(1, 5), st.integers(0, 2**40), st.integers(0, 3))
def test_the_shortcut_hashes_what_the_engine_hashes(
    varying: int, index: int, seed: int
) -> None:
    index %= 256**varying
    base = picture(seed)
    table = worker.learn(words_of, base, varying)
    family = worker.Family(words_of(worker.member(base, 0, varying)), table)
    whole = hashlib.sha256(
        words_of(worker.member(base, index, varying)).tobytes()
    ).digest()
    assert int(family.hashes(index, index + 1)[0]) == int.from_bytes(whole[:8], "big")


def test_a_range_is_its_images_one_by_one() -> None:
    base = picture(1)
    table = worker.learn(words_of, base, 2)
    family = worker.Family(words_of(base), table)
    start = worker.CHUNK - 3  # over the border of two chunks
    one_by_one = [int(family.hashes(i, i + 1)[0]) for i in range(start, start + 7)]
    assert family.hashes(start, start + 7).tolist() == one_by_one
    assert len(set(one_by_one)) == 7


def test_a_processor_that_mixes_pixels_is_refused() -> None:
    def mixing(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return words_of(
            (pixels // 2 + np.roll(pixels, 1, axis=1) // 2).astype(np.uint8)
        )

    with pytest.raises(worker.Problem, match="mixes neighbouring pixels"):
        worker.learn(mixing, picture(1), 2)
    with pytest.raises(worker.Problem, match="do not reach the hash"):
        worker.learn(lambda pixels: words_of(pixels[:-1]), picture(1), 2)


@given(
    st.integers(2, 6),
    st.lists(
        st.tuples(st.lists(st.integers(0, 255), min_size=1, max_size=6)), max_size=5
    ),
    st.randoms(use_true_random=False),
)
def test_the_matcher_finds_what_counting_finds(
    bits: int, made: Any, random: Any
) -> None:
    matcher, first, second = worker.Matcher(bits), [], []
    for (values,) in made:
        others = [random.randrange(256) for _ in values]
        first += values
        second += others
        found = matcher.add([np.array(values, np.uint64), np.array(others, np.uint64)])
        pairs = [
            (max(i, j), i, j)
            for i, a in enumerate(first)
            for j, b in enumerate(second)
            if (a ^ b) % (1 << bits) == 0
        ]
        assert (found is not None) == bool(pairs)
        if found is not None:
            assert (first[found.first] ^ second[found.second]) % (1 << bits) == 0
            assert max(found.first, found.second) == min(pairs)[0]
            return


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_equal_low_bits(one: int, other: int) -> None:
    n = equal_low_bits(one, other)
    assert (one ^ other) % (1 << n) == 0
    assert n == 64 or (one ^ other) >> n & 1
    assert equal_low_bits(one, one) == 64


@given(st.integers(search.MIN_BITS, search.MAX_BITS))
def test_there_are_always_images_enough(bits: int) -> None:
    each = search.capacity(bits)
    assert each <= 256 ** search.varying_pixels(bits)
    assert each >= 16 * 2 ** (bits / 2)
    assert search.per_round(bits) <= each / 16


# ------------------------------------------------------------------ the pictures


def test_the_families_cannot_be_mistaken_for_each_other() -> None:
    for seed in range(5):
        first, second = (np.asarray(p).astype(int) for p in search.draw(seed, 84))
        assert first.shape == second.shape == (84, 84, 3)
        assert np.abs(first - second).mean() > 80
    assert search.draw(1, 84)[0].tobytes() != search.draw(2, 84)[0].tobytes()


def test_the_users_own_pictures_get_one_size(tmp_path: Path) -> None:
    """``--size`` does not count for them, ``--second-size`` does."""
    Image.new("L", (100, 41)).save(tmp_path / "a.png")
    Image.new("RGBA", (7, 900)).save(tmp_path / "b.png")
    own = asked(first=tmp_path / "a.png", second=tmp_path / "b.png", size=57)
    made = search.pictures_of(own)
    assert [(p.size, p.mode) for p in made] == [((112, 56), "RGB")] * 2
    assert search.pictures_of(replace(own, second_size=56))[1].size == (56, 56)
    (tmp_path / "b.png").write_text("no picture")
    for changes, words in (
        ({}, "not a picture"),
        ({"second": tmp_path / "c.png"}, "There is no picture"),
        ({"second": None}, "belong together"),
    ):
        with pytest.raises(UsageError, match=words):
            search.pictures_of(replace(own, **changes))


# ------------------------------------------------------- the whole, on a made-up engine


def test_a_pair_is_found_verified_and_written(tmp_path: Path) -> None:
    here = place(tmp_path, pad="self.hash % (1 << 16)")
    seen: list[tuple[str, str]] = []
    found = find_pair(
        here, tmp_path / "out", asked(size=56, jobs=2), lambda *one: seen.append(one)
    )
    assert found.collides
    assert found.control_differs
    assert found.equal_bits >= 16
    a, b, control = (
        np.asarray(Image.open(tmp_path / "out" / f"{n}.png")) for n in NAMES
    )
    assert np.abs(a.astype(int) - b).mean() > 80
    assert np.unpackbits(b ^ control).sum() == 1
    assert (
        Pair.model_validate_json((tmp_path / "out" / PAIR_FILE).read_bytes()) == found
    )
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "A.png",
        "B.png",
        "control.png",
        PAIR_FILE,
    ]
    assert {stage for stage, _ in seen} >= {"importing the engine", "hashing images"}
    chances = [
        float(detail.partition("%")[0]) for _, detail in seen if "sure by now" in detail
    ]
    assert chances == sorted(chances)
    assert round(found.search.probability * 100, 1) == chances[-1]
    # Another number of processes finds the same pair.
    again = find_pair(here, tmp_path / "again", asked(size=56, jobs=1))
    assert again.images == found.images
    with pytest.raises(UnwritableOutput, match="already holds a pair"):
        find_pair(here, tmp_path / "out", asked())
    # The same pair, asked of a release that makes its pad values of all the bits.
    wide = place(tmp_path / "wide", pad="self.hash")
    _, images = verify_pair(wide, tmp_path / "out")
    assert images["A"].hash == found.images["A"].hash
    assert images["A"].pad_value != images["B"].pad_value
    (tmp_path / "out" / "B.png").unlink()
    with pytest.raises(UsageError, match=r"holds no B\.png"):
        verify_pair(wide, tmp_path / "out")


@pytest.mark.parametrize(
    ("engine", "options", "error", "words"),
    [
        ({"salt": b"x"}, {}, InfrastructureError, "this release hashes in another way"),
        ({}, {"bits": 40, "max_images": 300}, NoPair, "No pair among 300 images"),
        ({"pad": "1 / 0"}, {}, EngineStartError, "exit status 1"),
    ],
    ids=["another hash", "no pair", "a crash"],
)
def test_what_goes_wrong_is_said_and_leaves_nothing(
    tmp_path: Path, engine: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        find_pair(
            place(tmp_path, **engine), tmp_path / "out", asked(size=56, **options)
        )
    assert not (tmp_path / "out").exists()
    if error is EngineStartError:
        assert any("ZeroDivisionError" in line for line in caught.value.detail)  # type: ignore[attr-defined]


def test_without_jobs_each_core_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[dict[str, Any]] = []

    def ask(place: EnginePlace, request: dict[str, Any], *_: Any) -> None:
        requests.append(request)
        raise NoPair("there is none")

    monkeypatch.setattr(search, "ask", ask)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    for jobs in (None, 2):
        with pytest.raises(NoPair):
            find_pair(place(tmp_path), tmp_path / "out", asked(size=56, jobs=jobs))
    assert [request["jobs"] for request in requests] == [3, 2]


def test_a_worker_that_writes_nothing_is_ended(tmp_path: Path) -> None:
    here = replace(place(tmp_path), silence_s=0.01)
    with pytest.raises(InfrastructureError, match="wrote nothing for"):
        find_pair(here, tmp_path / "out", asked(size=56))
    assert not (tmp_path / "out").exists()


def test_the_script_prints_the_pair_and_checks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = place(tmp_path, pad="self.hash % (1 << 16)")
    monkeypatch.setattr(
        "mmrepro.scenarios.pad_value_collision.collide.worker.place_for",
        lambda *_, **__: here,
    )

    def collide(*words: str) -> tuple[int, str]:
        return main(words), capsys.readouterr().out

    folder = str(tmp_path / "pair")
    code, out = collide("--bits", "16", "--size", "56", "--out", folder, "--json")
    found = json.loads(out)
    assert (code, found["collides"], found["control_differs"]) == (0, True, True)
    assert found["equal_bits"] >= 16
    code, out = collide("--check", folder)
    assert code == 0
    assert found["images"]["A"]["hash"] in out
    assert "sglang 0.5.6: A and B have one pad value" in out
    other = place(tmp_path / "other", pad="self.hash")
    monkeypatch.setattr(PLACE_FOR, lambda *_, **__: other)
    code, out = collide("--check", folder, "--json")
    assert (code, json.loads(out)["collides"]) == (1, False)


def test_an_engine_that_does_not_confirm_the_pair_is_believed(tmp_path: Path) -> None:
    # Confirms samples and then, asked about the PNG files, hashes in another way.
    here = place(tmp_path)
    batch = tmp_path / "engine" / "sglang" / "srt" / "managers" / "schedule_batch.py"
    text = batch.read_text().replace(
        "SALT +", "COUNT.append(1) or SALT * (len(COUNT) > 12) +"
    )
    batch.write_text("COUNT = []\n" + text.replace("SALT = b''", "SALT = b'x'"))
    with pytest.raises(
        InfrastructureError, match="the search is wrong about this release"
    ):
        find_pair(here, tmp_path / "out", asked(size=56))
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    here = place(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from mmrepro.scenarios.pad_value_collision.collide.search import *\n"
        "from mmrepro.scenarios.pad_value_collision.collide.worker import EnginePlace\n"
        f"p = Path({str(tmp_path)!r}); e = p / 'engine'\n"
        "here = EnginePlace('sglang', '0', 'cpu', Path(sys.executable), {'PYTHONPATH': "
        "str(e)}, "
        "e / 'model')\n"
        "find_pair(here, p / 'out', PairSearch(bits=40, jobs=2), "
        "lambda stage, detail: print(stage, flush=True))"
    )
    assert here.model.is_dir()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "hashing images":
            break
    # As a terminal does it: to the whole group.
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in stderr
    assert not (tmp_path / "out").exists()
    deadline = time.monotonic() + 10  # the kernel ends the orphans, in its own time
    while alive_in_group(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive_in_group(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2] == str(group) and fields[0] not in "ZX":
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 50}, "between 8 and 40"),
        ({"size": 57}, "would resize"),
        ({"size": 28}, "resize"),
        ({"size": 84, "second_size": 85}, "pictures of 85 pixels"),
    ],
)
def test_wrong_sizes_are_usage_errors(tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_pair(place(tmp_path), tmp_path / "out", asked(**options))


def test_the_families_may_have_two_sizes(tmp_path: Path) -> None:
    found = find_pair(place(tmp_path), tmp_path / "out", asked(second_size=56))
    sizes = []
    for name in NAMES:
        with Image.open(tmp_path / "out" / f"{name}.png") as picture:
            sizes.append(picture.size)
    assert sizes == [(84, 84), (56, 56), (56, 56)]
    assert found.equal_bits >= 16


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableOutput, match="cannot be written"):
        find_pair(place(tmp_path), tmp_path / "file" / "out", asked())


def test_the_chance_is_that_of_as_many_images_of_each_family() -> None:
    # Of 8 bits, and two images of each: four pairs, each of which may agree.
    assert _chance(8, 4) == pytest.approx(1 - (1 - 1 / 256) ** 4, rel=0.01)


def test_the_view_has_a_line_a_stage_and_the_running_probability() -> None:
    console = Console(record=True, force_terminal=True, width=140, file=io.StringIO())
    view = Progress(console, "a search")
    for stage, detail in (
        ("learning", ""),
        ("hashing", ""),
        ("hashing", "50.0% sure by now"),
    ):
        view.show(stage, detail)
    console.print(view._draw())
    lines = [line.split() for line in console.export_text().splitlines()]
    assert [line[1] for line in lines[1:3]] == ["learning", "hashing"]
    assert lines[3:] == [["50.0%", "sure", "by", "now"]]


# ------------------------------------------------------------------ verdict of a pair


Change = Callable[[dict[str, Any]], None]


def test_a_pair_collides_only_by_the_engines_own_pad_values(tmp_path: Path) -> None:
    image = {"sha256": "", "bytes": 1, "features_sha256": ""}
    made = {
        name: {
            "file": f"{name}.png",
            "hash": f"{hash_:016x}",
            "pad_value": pad,
            **image,
        }
        for name, hash_, pad in (("A", 1, 7), ("B", 2, 7), ("control", 3, 8))
    }

    def pair(**changes: Any) -> Pair:
        images = json.loads(json.dumps(made))
        for path, value in changes.items():
            name, _, key = path.partition("_")
            images[name][key] = value
        return Pair.model_construct(images={n: _image(i) for n, i in images.items()})

    assert pair().collides
    assert pair().control_differs
    assert not pair(B_pad_value=9).collides
    assert not pair(B_hash=f"{1:016x}").collides, (
        "one hash: the same features, no collision"
    )
    assert not pair(control_pad_value=7).control_differs


def _image(facts: dict[str, Any]) -> Any:
    from mmrepro.scenarios.pad_value_collision.collide.pair import PairImage

    return PairImage.model_validate(facts)
