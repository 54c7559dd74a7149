"""Parts: nothing too large, nothing lost, and what is missing or damaged is named."""

import hashlib
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st
from mmrepro.engines.environments.wheelhouse import install
from mmrepro.engines.environments.wheelhouse.make import write_parts

SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 90), max_size=8)


@given(SIZES, st.integers(1, 40), st.randoms(use_true_random=False))
def test_parts_are_filled_and_joined_again_and_any_flipped_byte_is_noticed(
    sizes: dict[str, int], capacity: int, chance: random.Random
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        contents = {file: chance.randbytes(size) for file, size in sizes.items()}
        document = written(folder, contents, capacity)
        total = sum(sizes.values())
        filled = [
            sum(map(size_of, (folder / part).glob("[a-h]*")))
            for part in document["parts"]
        ]
        assert filled[:-1] == [capacity] * (len(filled) - 1)
        assert sum(filled) == total
        joined = folder / "joined"
        joined.mkdir()
        install.check_there(folder, document, document["files"])
        install.join(folder, document["files"], joined)
        assert {path.name: path.read_bytes() for path in joined.iterdir()} == contents
        pieces = [path for path in folder.glob("part-*/[a-h]*") if path.stat().st_size]
        if not pieces:
            return
        victim = chance.choice(sorted(pieces))
        data = bytearray(victim.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        victim.unlink()  # not through the hard link that was joined
        victim.write_bytes(data)
        with pytest.raises(
            install.BadWheelhouse, match=f"{victim.parent.name}/{victim.name} is d"
        ):
            install.join(folder, document["files"], None)


EMPTY: dict[str, Any] = {"harness": {"packages": []}, "engines": []}


def written(folder: Path, contents: dict[str, bytes], capacity: int) -> install.Json:
    source = folder / "source"
    source.mkdir()
    for file, content in contents.items():
        (source / file).write_bytes(content)
    digests = {
        file: hashlib.sha256(content).hexdigest() for file, content in contents.items()
    }
    parts, files = write_parts(source, folder, digests, capacity)
    document = {
        "schema_version": 1,
        "made": "2026-11-22T12:00:00Z",
        "parts": parts,
        "files": [file.model_dump() for file in files],
        **EMPTY,
    }
    for place in (folder, *(folder / part for part in parts)):
        (place / install.MANIFEST).write_text(json.dumps(document))
    return document


def size_of(path: Path) -> int:
    return path.stat().st_size


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: remove(f / "part-02"), "part-02 of 4 parts is missing"),
        (
            lambda f: (
                remove(f / "part-01"),
                remove(f / "part-03"),
                remove(f / "part-04"),
            ),
            "part-01, part-03 and part-04 of 4 parts are missing",
        ),
        (
            lambda f: (f / "part-01" / "big.whl.001").unlink(),
            "part-01 lacks big.whl.001",
        ),
        (
            lambda f: (f / "part-02" / "big.whl.002").write_bytes(b"short"),
            "part-02/big.whl.002 has 5 bytes instead of 10",
        ),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, damage: Damage, sentence: str
) -> None:
    written(tmp_path, {"big.whl": bytes(25), "small.whl": bytes(9)}, 10)
    damage(tmp_path)
    document = install.read(tmp_path)  # of any part that is there
    with pytest.raises(install.BadWheelhouse) as caught:
        install.check_there(tmp_path, document, document["files"])
    assert str(caught.value) == sentence


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_pieces_that_are_right_but_not_of_one_file(tmp_path: Path) -> None:
    document = written(tmp_path, {"big.whl": bytes(range(25))}, 10)
    document["files"][0]["pieces"].reverse()
    with pytest.raises(
        install.BadWheelhouse, match=r"big\.whl is damaged: .* when joined"
    ):
        install.join(tmp_path, document["files"], None)


def test_the_youngest_manifest_counts(tmp_path: Path) -> None:
    for part, made, parts in (
        ("part-01", "09", 3),
        ("part-02", "10", 2),
        ("part-03", "08", 1),
    ):
        (tmp_path / part).mkdir()
        document = {
            "schema_version": 1,
            "made": f"2026-11-{made}",
            "files": [],
            **EMPTY,
        }
        document["parts"] = ["part-1"] * parts
        (tmp_path / part / install.MANIFEST).write_text(json.dumps(document))
    assert install.read(tmp_path)["made"] == "2026-11-10"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is no wheelhouse"),
        ("{", "cannot be read"),
        ('{"schema_version": 2, "made": "", "parts": []}', "is of a form 2, not 1"),
        ("null", "is no manifest: the whole does not fit"),
        ("[]", "is no manifest: the whole does not fit"),
        ("[" * 90_000, "cannot be read"),
        ('{"schema_version": ' + "9" * 5000 + "}", "cannot be read"),
        ('{"schema_version": 1, "made": []}', "is no manifest: made does not fit"),
    ],
)
def test_a_manifest_that_cannot_be_used(
    tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / install.MANIFEST).write_text(text)
    with pytest.raises(install.BadWheelhouse, match=words):
        install.read(tmp_path)


@pytest.mark.parametrize(
    "name", ["../up", "/absolute", "a/b", "..", "", "a\nb", "x" * 999, 7, None]
)
@pytest.mark.parametrize(
    "place",
    ["file", "piece", "part", "package", "version", "engine", "parts", "carried"],
)
def test_a_name_that_leads_out_of_the_folder(
    tmp_path: Path, place: str, name: object
) -> None:
    """Nothing is read or written by it, whoever asks."""
    document = written(tmp_path, {"it.whl": b"it"}, 10)
    package = {"name": "it", "version": "1", "file": "it.whl"}
    document["harness"] = {"packages": [package]}
    document["engines"] = [
        {"engine": "e", "release": "1", "device": "cpu", "packages": [package]}
    ]
    (tmp_path / install.MANIFEST).write_text(json.dumps(document))
    assert install.read(tmp_path) == document
    file = document["files"][0]
    owner, key = {
        "file": (file, "name"),
        "piece": (file["pieces"][0], "name"),
        "part": (file["pieces"][0], "part"),
        "package": (package, "name"),
        "version": (package, "version"),
        "engine": (document["engines"][0], "release"),
        "parts": (document, "parts"),
        "carried": (package, "file"),
    }[place]
    owner[key] = [name] if place == "parts" else name
    (tmp_path / install.MANIFEST).write_text(json.dumps(document))
    if place == "carried" and name == "":
        assert install.read(tmp_path) == document, "it is not carried"
        return
    with pytest.raises(install.BadWheelhouse, match=r"does not fit$|names no file"):
        install.read(tmp_path)


def test_a_piece_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    document = written(tmp_path, {"it.whl": b"it"}, 10)
    (piece,) = tmp_path.glob("part-*/it.whl*")
    (tmp_path / "away").write_bytes(piece.read_bytes())
    piece.unlink()
    piece.symlink_to(tmp_path / "away")
    with pytest.raises(install.BadWheelhouse, match="is no plain file"):
        install.check_there(tmp_path, document, document["files"])


def test_a_wheel_of_uv_without_uv_is_named(tmp_path: Path) -> None:
    with pytest.raises(install.BadWheelhouse, match="the wheelhouse has no uv"):
        install._uv_of(tmp_path, tmp_path)
    wheel = tmp_path / "uv-1.0-py3-none-any.whl"
    wheel.write_bytes(b"no zip")
    with pytest.raises(install.BadWheelhouse, match=f"{wheel.name} has no uv in it"):
        install._uv_of(tmp_path, tmp_path)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("uv/__init__.py", "")
    with pytest.raises(install.BadWheelhouse, match=f"{wheel.name} has no uv in it"):
        install._uv_of(tmp_path, tmp_path)
