"""Puts mmrepro onto a machine without a network: ``python3 install.py`` in a
wheelhouse.

Also what mmrepro itself reads a wheelhouse with. It lies in every part, and runs where
nothing is installed yet: the standard library alone, on Python 3.9 or later. uv comes
in the wheelhouse."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "wheelhouse.json"
_PARTS = "part-*"
_CHUNK = 1 << 20
Json = dict[str, Any]


class BadWheelhouse(Exception):
    """It cannot be used. The message is one sentence without its full stop."""


MOST_BYTES = 64 << 20
"""A manifest with two engines has 300 KB."""
# Never a path, never two lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")
_PART = re.compile(r"part-[0-9]{1,9}")
_HASH = re.compile(r"[0-9a-f]{64}")
_FILE = {"name": _NAME, "bytes": int, "sha256": _HASH}
_PACKAGE = {
    "name": _NAME,
    "version": _NAME,
    "file": re.compile(rf"(?:{_NAME.pattern})?"),
}
_SHAPE = {
    "schema_version": int,
    "made": str,
    "parts": [_PART],
    "files": [{**_FILE, "pieces": [{**_FILE, "part": _PART}]}],
    "harness": {"packages": [_PACKAGE]},
    "engines": [
        {"engine": _NAME, "release": _NAME, "device": _NAME, "packages": [_PACKAGE]},
    ],
}
"""What this program reads of a manifest. Names in it become names of files: each is
checked before it is used, since anybody may have written it."""


def _unfit(value: Any, shape: Any, where: str = "") -> str:
    """The place in ``value`` that is not as ``shape`` has it; empty: there is none."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return where or "the whole"
        places = (
            (value.get(key), part, f"{where}.{key}".strip("."))
            for key, part in shape.items()
        )
    elif isinstance(shape, list):
        if not isinstance(value, list):
            return where
        places = ((one, shape[0], f"{where}[{at}]") for at, one in enumerate(value))
    elif isinstance(shape, re.Pattern):
        return "" if isinstance(value, str) and shape.fullmatch(value) else where
    else:
        return "" if type(value) is shape else where
    return next(filter(None, (_unfit(*place) for place in places)), "")


def read(folder: Path) -> Json:
    """The youngest manifest below ``folder``: one that was added to has older ones as
    well.

    Raises:
        BadWheelhouse: there is none, or one that this version cannot read.
    """
    found = []
    for path in (folder / MANIFEST, *sorted(folder.glob(f"{_PARTS}/{MANIFEST}"))):
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO waits
                raise BadWheelhouse(f"{path.relative_to(folder)} is no plain file")
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise BadWheelhouse(
                    f"{path.relative_to(folder)} is too large for a manifest"
                )
            document = json.loads(content)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise BadWheelhouse(
                f"{path.relative_to(folder)} cannot be read: {error}"
            ) from error
        version = document.get("schema_version", 1) if isinstance(document, dict) else 1
        if version == 1 and (wrong := _unfit(document, _SHAPE)):
            raise BadWheelhouse(
                f"{path.relative_to(folder)} is no manifest: {wrong} does not fit"
            )
        found.append(document)
    if not found:
        raise BadWheelhouse(
            f"{folder} is no wheelhouse: no {MANIFEST} is in it or in a part of it"
        )
    newest: Json = max(found, key=lambda one: str(one.get("made")))
    if newest["schema_version"] != 1:
        raise BadWheelhouse(
            f"the wheelhouse is of a form {newest['schema_version']!r:.40}, not 1"
        )
    held = {file["name"] for file in newest["files"]}
    sets = (newest["harness"], *newest["engines"])
    wanted = {package["file"] for one in sets for package in one["packages"]} - {""}
    if lost := sorted(wanted - held):
        raise BadWheelhouse(f"its manifest names no file {lost[0]}")
    return newest


def files_of(document: Json, packages: Iterable[Json]) -> list[Json]:
    """Return the files of those ``packages`` that are carried, in the manifest's
    order."""
    wanted = {package["file"] for package in packages}
    return [file for file in document["files"] if file["name"] in wanted]


def check_there(folder: Path, document: Json, files: Sequence[Json]) -> None:
    """Raises BadWheelhouse: a piece of ``files`` is not there, or has another size."""
    parts = sorted({piece["part"] for file in files for piece in file["pieces"]})
    gone = [part for part in parts if not (folder / part).is_dir()]
    if gone:
        names = " and ".join(filter(None, (", ".join(gone[:-1]), gone[-1])))
        verb = "is" if len(gone) == 1 else "are"
        raise BadWheelhouse(f"{names} of {len(document['parts'])} parts {verb} missing")
    for file in files:
        for piece in file["pieces"]:
            part, name = piece["part"], piece["name"]
            try:
                found = (folder / part / name).lstat()
            except OSError:
                raise BadWheelhouse(f"{part} lacks {name}") from None
            if not stat.S_ISREG(found.st_mode):  # a link may lead anywhere
                raise BadWheelhouse(f"{part}/{name} is no plain file")
            size = found.st_size
            if size != piece["bytes"]:
                raise BadWheelhouse(
                    f"{part}/{name} has {size} bytes instead of {piece['bytes']}"
                )


def join(folder: Path, files: Sequence[Json], into: Path | None) -> None:
    """Put ``files`` together in ``into``, each checked by its SHA-256; None: only
    check.

    A file that was not split is a hard link where that can be.

    Raises:
        BadWheelhouse: one is damaged.
    """
    for file in files:
        whole = hashlib.sha256()
        pieces = [
            (piece, folder / piece["part"] / piece["name"]) for piece in file["pieces"]
        ]
        made = into / file["name"] if into is not None else None
        linked = made is not None and len(pieces) == 1 and _linked(pieces[0][1], made)
        target = made if made is not None and not linked else Path(os.devnull)
        with target.open("wb") as out:
            for piece, path in pieces:
                own = hashlib.sha256()
                with path.open("rb") as stream:
                    while chunk := stream.read(_CHUNK):
                        own.update(chunk)
                        whole.update(chunk)
                        out.write(chunk)
                if own.hexdigest() != piece["sha256"]:
                    raise BadWheelhouse(
                        f"{piece['part']}/{piece['name']} is damaged: its SHA-256 "
                        "differs"
                    )
        if whole.hexdigest() != file["sha256"]:
            raise BadWheelhouse(
                f"{file['name']} is damaged: its SHA-256 differs when joined"
            )


def lock_of(packages: Iterable[Json], files: Sequence[Json]) -> str:
    """Requirements with hashes of those ``packages`` that are carried."""
    digests = {file["name"]: file["sha256"] for file in files}
    lines = [
        (
            f"{package['name']}=={package['version']} "
            f"--hash=sha256:{digests[package['file']]}"
        )
        for package in packages
        if package["file"]
    ]
    return "".join(f"{line}\n" for line in sorted(lines))


def _linked(path: Path, made: Path) -> bool:
    try:
        os.link(path, made)
    except OSError:
        return False
    return True


# --------------------------------------------------------------------- by itself


def install(folder: Path, venv: Path, python: str) -> Path:
    """A new virtual environment ``venv`` with mmrepro in it; gives its command.

    Whole or not at all; no network is used.

    Raises:
        BadWheelhouse: a part is missing or damaged, or uv says no.
    """
    document = read(folder)
    if venv.exists():
        raise BadWheelhouse(f"{venv} exists already; remove it, or give another --into")
    packages = document["harness"]["packages"]
    files = files_of(document, packages)
    check_there(folder, document, files)
    venv.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mmrepro-", dir=venv.parent) as name:
        work = Path(name)
        wheels, fresh = work / "wheels", work / "venv"
        wheels.mkdir()
        join(folder, files, wheels)
        uv = _uv_of(wheels, work)
        (work / "lock").write_text(lock_of(packages, files))
        _run(uv, ["venv", "--relocatable", "--python", python, str(fresh)])
        arguments = [
            "pip",
            "install",
            "--python",
            str(fresh / "bin" / "python"),
            "--no-index",
        ]
        arguments += ["--find-links", str(wheels), "--no-deps", "--require-hashes"]
        _run(uv, [*arguments, "-r", str(work / "lock")])
        fresh.rename(venv)
    return venv / "bin" / "mmrepro"


def _uv_of(wheels: Path, work: Path) -> Path:
    """uv's program, out of its wheel: a wheel is a zip file."""
    wheel = next(iter(wheels.glob("uv-*.whl")), None)
    if wheel is None:
        raise BadWheelhouse("the wheelhouse has no uv")
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(
                one for one in archive.namelist() if one.endswith(".data/scripts/uv")
            )
            with archive.open(member) as source, (work / "uv").open("wb") as target:
                shutil.copyfileobj(source, target)
    except (
        OSError,
        ValueError,
        StopIteration,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise BadWheelhouse(f"{wheel.name} has no uv in it") from error
    (work / "uv").chmod(0o700)
    return work / "uv"


def _run(uv: Path, arguments: list[str]) -> None:
    own = {"UV_OFFLINE": "1", "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(
        [str(uv), *arguments, "--no-cache", "--quiet"],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise BadWheelhouse("uv could not install mmrepro; its own words are above")


def main(words: Sequence[str] | None = None) -> int:
    here = Path(__file__).resolve().parent
    folder = here.parent if here.match(_PARTS) else here
    parser = argparse.ArgumentParser(
        description="Install mmrepro from this wheelhouse, offline."
    )
    parser.add_argument(
        "--into", type=Path, default=Path("mmrepro-venv"), help="the new venv"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter to make it with"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check every part's SHA-256s"
    )
    options = parser.parse_args(words)
    try:
        document = read(folder)
        if options.check:
            check_there(folder, document, document["files"])
            join(folder, document["files"], None)
            parts = (
                "1 part"
                if len(document["parts"]) == 1
                else f"{len(document['parts'])} parts"
            )
            print(f"{len(document['files'])} files in {parts}: all whole")
            return 0
        command = install(folder, options.into.absolute(), options.python)
        print(f"installed {command}")
        for engine in document["engines"]:
            print(
                f"next: {command} env create {engine['engine']} {engine['release']} "
                f"--device {engine['device']} --wheelhouse {folder} --python "
                f"{options.python}"
            )
    except BadWheelhouse as error:
        sys.stderr.write(f"install.py: {error}.\n")
    except OSError as error:
        sys.stderr.write(f"install.py: {error.strerror or error} ({error.filename}).\n")
    else:
        return 0
    return 4


if __name__ == "__main__":
    raise SystemExit(main())
