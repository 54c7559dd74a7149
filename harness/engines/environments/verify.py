"""Compares an environment with what its wheels say of their files, without running any
of it.

Each wheel brings a RECORD with the hash of each file. This finds what was damaged,
changed, added or lost since; not what was changed together with its RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from mmrepro.engines.environments.recipe import TORCH_MODULE
from mmrepro.engines.environments.spec import LOCK_FILE, Manifest
from mmrepro.engines.environments.store import read_manifest, site_packages
from mmrepro.engines.environments.stubs import FILE as STUB_FILE, write_stubs
from mmrepro.engines.environments.wheelhouse.carried import PTH as HOST_FILE
from packaging.utils import canonicalize_name

_CHUNK_BYTES = 1 << 20
_MAX_TEXT_BYTES = 64 << 20
"""Of a RECORD, and of a lock; torch's RECORD has 1.5 MB."""

_HASHES = ("sha256", "sha384", "sha512")
_UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s", "METADATA", "INSTALLER")
"""Of a dist-info, what may stand in a RECORD without a hash: the last two are those of
an alias."""

_OF_VENV = re.compile(
    r"pyvenv\.cfg|CACHEDIR\.TAG|\.lock|\.gitignore|lib64|bin/(activate|deactivate|pydoc"
    r"|python)[\w.]*"
)
"""What a virtual environment has before anything is installed."""

_HOST_LINE = re.compile(r"import site; site\.addsitedir\('[^'\\]*'\)")
"""What mmrepro writes where an environment uses the packages of the host's Python."""

_LOCKED = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+)", re.MULTILINE)


@dataclass
class Verification:
    """What was found in one environment."""

    name: str
    files: int = 0
    """Files whose hash is that of their wheel."""
    unverified: int = 0
    """Files that no wheel has a hash of: compiled by Python here (.pyc), or written by
    mmrepro."""
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class _Row:
    """What a RECORD says of a file; ``digest`` is empty where it has no hash."""

    algorithm: str
    digest: str
    size: int | None


def verify(folder: Path) -> Verification:
    """Compare all files of the environment in ``folder`` with its wheels' RECORDs and
    its lock.

    Raises:
        EnvironmentBuildError: it has no site-packages.
    """
    found = Verification(folder.name)
    manifest = read_manifest(folder)
    if manifest is None:
        found.problems.append("it is not whole: no manifest that can be read")
        return found
    if manifest.below:
        found.problems.append(
            "its Python is that of a source tree, which no wheel lists"
        )
        return found
    venv = folder / "venv"
    listed = _listed(venv, found)
    _compare_packages(folder, manifest, found)
    _compare_files(venv, listed, found)
    return found


# ------------------------------------------------------------------ packages


def _compare_packages(folder: Path, manifest: Manifest, found: Verification) -> None:
    """Packages that are installed against those that the lock and the manifest have."""
    installed = set(_installed(folder / "venv"))
    expected = {
        _normal(*line.split("==", 1)) for line in manifest.packages if "==" in line
    }
    for name in sorted(expected - installed):
        found.problems.append(f"{name} is missing")
    for name in sorted(installed - expected):
        if not _is_alias(name, manifest):
            found.problems.append(f"{name} is installed, and was not when it was built")
    locks = [
        path for name in (LOCK_FILE, "wheel.lock") if (path := folder / name).is_file()
    ]
    locked = {
        _normal(*match.groups())
        for path in locks
        for match in _LOCKED.finditer(_text(path))
    }
    for name in sorted(expected - locked):
        found.problems.append(f"{name} is not in {LOCK_FILE}")


def _is_alias(name: str, manifest: Manifest) -> bool:
    """Whether mmrepro wrote this dist-info, as the manifest says."""
    values = [note.value for note in manifest.notes if note.name == "dist-info alias"]
    return any(name == _normal(*value.split("==", 1)) for value in values)


def _installed(venv: Path) -> Iterator[str]:
    for folder in site_packages(venv).glob("*.dist-info"):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        yield _normal(name, version)


def _normal(name: str, version: str) -> str:
    return f"{canonicalize_name(name)}=={version}"


# ------------------------------------------------------------------ files


def _listed(venv: Path, found: Verification) -> dict[str, _Row]:
    """What the RECORDs have, by the file's path below ``venv``."""
    site = site_packages(venv)
    listed: dict[str, _Row] = {}
    for folder in sorted(site.glob("*.dist-info")):
        inside = folder.relative_to(venv).as_posix()
        try:
            rows = list(csv.reader(_text(folder / "RECORD").splitlines()))
        except (OSError, csv.Error) as error:
            found.problems.append(f"{inside}/RECORD cannot be read: {error}")
            continue
        for row in rows:
            path = (
                os.path.normpath(f"{PurePosixPath(inside).parent}/{row[0]}")
                if row
                else ".."
            )
            if path.startswith(("/", "..")) or len(row) < 3:
                found.problems.append(
                    f"{inside}/RECORD lists what is no file of the environment"
                )
                continue
            algorithm, _, digest = row[1].partition("=")
            size = int(row[2]) if row[2].isascii() and row[2].isdigit() else None
            listed[path] = _Row(algorithm, digest, size)
    return listed


def _compare_files(venv: Path, listed: dict[str, _Row], found: Verification) -> None:
    """All files that there are against those that are listed."""
    there = set(_walk(venv))
    own = _own_files(venv, there)
    for path in sorted(there):
        row = listed.get(path)
        if row is not None and row.digest:
            if why := _differs(venv / path, row):
                found.problems.append(f"{path} {why}")
            else:
                found.files += 1
        elif path in own or _needs_no_hash(venv, path, listed):
            found.unverified += 1
        else:
            found.problems.append(f"{path} is of no wheel")
    found.problems += [f"{path} is missing" for path in sorted(listed.keys() - there)]


def _walk(venv: Path) -> Iterator[str]:
    """Paths of all that is no folder, links to folders among them."""
    for base, folders, names in os.walk(venv):
        links = [name for name in folders if (Path(base) / name).is_symlink()]
        for name in (*names, *links):
            yield (Path(base) / name).relative_to(venv).as_posix()


def _differs(path: Path, row: _Row) -> str:
    """How the file is not what its RECORD says; empty: it is."""
    if row.algorithm not in _HASHES:
        return "is listed without a hash that is safe"
    try:
        # A FIFO in its place would be waited for.
        handle = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                return "is no file"
            if row.size is not None and facts.st_size != row.size:
                return "has another size than its wheel says"
            digest = hashlib.new(row.algorithm)
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    value = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return "" if value == row.digest else "has another content than its wheel says"


def _needs_no_hash(venv: Path, path: str, listed: dict[str, _Row]) -> bool:
    """Whether a file without a hash belongs to an environment."""
    parts = PurePosixPath(path)
    if parts.suffix == ".pyc" and parts.parent.name == "__pycache__":
        source = parts.parent.parent / f"{parts.name.split('.')[0]}.py"
        return source.as_posix() in listed and not (venv / path).is_symlink()
    if parts.name in _UNHASHED and parts.parent.suffix == ".dist-info":
        return path in listed
    return _OF_VENV.fullmatch(path) is not None


def _own_files(venv: Path, there: set[str]) -> set[str]:
    """What mmrepro itself put beside the packages, if it is what mmrepro would put
    there."""
    site = site_packages(venv)
    own = _stubs(site / TORCH_MODULE)
    host_file = site / HOST_FILE
    if host_file.relative_to(venv).as_posix() in there and _names_folders(host_file):
        own.add(host_file)
    return {path.relative_to(venv).as_posix() for path in own}


def _names_folders(host_file: Path) -> bool:
    """Whether it adds folders of packages, and does nothing else."""
    try:
        lines = _text(host_file).splitlines()
    except OSError:
        return False
    return all(_HOST_LINE.fullmatch(line) for line in lines)


def _stubs(module: Path) -> set[Path]:
    """The stand-ins for CUDA's libraries beside torch, if they are those that it
    gets."""
    stub = module.parent / STUB_FILE
    if stub.is_symlink() or not stub.is_file():
        return set()
    with tempfile.TemporaryDirectory() as folder:
        for path in module.parent.iterdir():
            if path.is_file() and not path.is_symlink() and path != stub:
                Path(folder, path.name).symlink_to(path)
        try:
            made = write_stubs(Path(folder, module.name))
        except (OSError, ValueError, struct.error):
            return set()  # torch's own libraries are damaged, which is found as well
        if not made or Path(folder, STUB_FILE).read_bytes() != stub.read_bytes():
            return set()
    links = {module.parent / path.name for path in made}
    return {stub} | {
        link for link in links if link.is_symlink() and _leads_to_stub(link)
    }


def _leads_to_stub(link: Path) -> bool:
    return link.readlink() == Path(STUB_FILE)


def _text(path: Path) -> str:
    """A small text of an environment. Raises OSError: it is none, or is not small."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("it is no file")
        content = file.read(_MAX_TEXT_BYTES + 1)
    if len(content) > _MAX_TEXT_BYTES:
        raise OSError("it is too large")
    return content.decode("utf-8", "replace")
