"""The collision search on the real SGLang, and the shipped pair, by the engine's own
classes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from live import need_python
from mmrepro.scenarios.data import pad_value_pair

pytestmark = [
    pytest.mark.engine,
    pytest.mark.meanwhile("ghost-key-eviction"),
]


def collide(*arguments: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mmrepro.scenarios.pad_value_collision.collide",
            "--release",
            "0.5.6",
            "--device",
            "cpu",
            "--json",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    need_python(done.stderr)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_the_shipped_pair_collides_in_the_engine() -> None:
    code, found = collide("--check", str(pad_value_pair()))
    assert code == 0
    shipped = json.loads((pad_value_pair() / "pair.json").read_text())
    assert found["collides"]
    assert found["images"] == shipped["images"]
    a, b, control = (found["images"][name] for name in ("A", "B", "control"))
    assert a["pad_value"] == b["pad_value"] != control["pad_value"]
    assert a["hash"] != b["hash"]


def test_a_small_search_is_confirmed_by_the_engine(tmp_path: Path) -> None:
    code, found = collide(
        "--bits", "20", "--seed", "7", "--out", str(tmp_path / "pair")
    )
    assert code == 0
    assert found["equal_bits"] >= 20
    assert found["search"]["samples_checked"] == 12
    hashes = [int(found["images"][name]["hash"], 16) for name in ("A", "B")]
    assert (hashes[0] ^ hashes[1]) % (1 << 20) == 0
    assert hashes[0] != hashes[1]
    # What the engine's import leaves: learning the bytes and hashing some thousand
    # images.
    assert found["search"]["learn_s"] + found["search"]["search_s"] < 10
    assert (tmp_path / "pair" / "control.png").is_file()
