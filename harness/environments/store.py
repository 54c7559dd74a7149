"""The environments on disk: what there is, how large, and how to be rid of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from mmrepro.base import processes
from mmrepro.environments.spec import MANIFEST_FILE, USE_FILE, Manifest
from mmrepro.errors import EnvironmentBuildError
from mmrepro.machine.files import environments_root, folders_in
from pydantic import ValidationError

BUILDING, REMOVING, LOCKS = ".building-", ".removing-", ".locks"
IN_USE = "it is in use"


def lock_path(folder: Path) -> Path:
    """Lock of whoever builds or removes ``folder``. Lock files stay: removing one is a race."""
    return folder.parent / LOCKS / f"{folder.name}.lock"


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest; None: no whole environment is there (or one that this version cannot read)."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def site_packages(venv: Path) -> Path:
    """Where the packages of a virtual environment are. Raises EnvironmentBuildError: nowhere."""
    folders = sorted(venv.glob("lib/python*/site-packages"))
    if not folders:
        raise EnvironmentBuildError(
            f"The environment {venv.parent.name} is damaged: it has no site-packages.",
            hint="mmrepro env prune --all",
        )
    return folders[0]


def dead_folders(folder: Path) -> list[Path]:
    """What broken-off builds and removals of ``folder`` left. Only for the holder of its lock."""
    marks = (f"{BUILDING}{folder.name}-", f"{REMOVING}{folder.name}-")
    try:
        names = [path for path in folder.parent.iterdir() if path.name.startswith(marks)]
    except OSError:
        return []
    # A folder of that very name without a manifest cannot come from a rename: it is damaged.
    damaged = [folder] if folder.exists() and read_manifest(folder) is None else []
    return [*names, *damaged]


@dataclass(frozen=True)
class Size:
    """Bytes on disk. ``own``: what removal frees; the rest is shared with uv's cache."""

    apparent: int
    own: int


@dataclass(frozen=True)
class Stored:
    """One environment on disk."""

    path: Path
    manifest: Manifest
    last_used: float
    """Seconds since the epoch."""
    size: Size


@dataclass
class Pruned:
    """What ``prune`` did, or with ``dry_run`` would do."""

    removed: list[str] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    """Name and why it was not removed although it was meant."""
    freed_bytes: int = 0
    packages: set[str] = field(default_factory=set)
    """Names of the packages that were in what is removed."""


def disk_size(folder: Path) -> Size:
    """Size of all below ``folder``; a file with a second hard link is counted as shared."""
    apparent = own = 0
    seen: set[int] = set()
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                facts = os.lstat(os.path.join(base, name))  # noqa: PTH118 (60 000 files)
            except OSError:
                continue
            if facts.st_ino in seen:
                continue
            seen.add(facts.st_ino)
            size = facts.st_blocks * 512
            apparent += size
            if facts.st_nlink == 1:
                own += size
    return Size(apparent, own)


def list_environments(*, sizes: bool = True) -> list[Stored]:
    """All whole environments, by name. ``sizes`` False leaves out the walk over their files."""
    stored = []
    for folder in folders_in(environments_root()):
        manifest = None if folder.name.startswith(".") else read_manifest(folder)
        if manifest is not None:
            size = disk_size(folder) if sizes else Size(0, 0)
            stored.append(Stored(folder, manifest, last_used(folder), size))
    return stored


def last_used(folder: Path) -> float:
    for name in (USE_FILE, MANIFEST_FILE):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def prune(
    *,
    everything: bool = False,
    engine: str = "",
    release: str = "",
    names: Collection[str] = (),
    older_than_days: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove the leftovers of broken builds, and the environments that are meant.

    Meant are all with ``everything``; else those of ``engine`` (and ``release``) if given, called
    one of ``names`` if given, and not used for ``older_than_days`` if given; with none of these,
    leftovers alone. One that somebody
    builds or uses is kept, and ``kept`` says so.
    """
    root = environments_root()
    done = Pruned()
    folders = folders_in(root)
    for path in folders:
        if path.name.startswith((BUILDING, REMOVING)):
            key = path.name.removeprefix(BUILDING).removeprefix(REMOVING).rpartition("-")[0]
            _remove(path, root / key, done, dry_run=dry_run)
    chosen = everything or bool(engine) or bool(names) or older_than_days is not None
    busy = b"\n".join(words for _, words in _processes(root)) if chosen else b""
    for path in folders:
        if path.name.startswith("."):
            continue
        manifest = read_manifest(path)
        if manifest is None:
            _remove(path, path, done, dry_run=dry_run)
            continue
        if not chosen or (engine and manifest.engine != engine):
            continue
        if release and manifest.release != release:
            continue
        if names and path.name not in names:
            continue
        if older_than_days is not None and time.time() - last_used(path) < older_than_days * 86400:
            continue
        if os.fsencode(f"{path}/") in busy:
            done.kept.append((path.name, IN_USE))
            continue
        if _remove(path, path, done, dry_run=dry_run):
            done.packages |= {line.partition("==")[0] for line in manifest.packages}
    return done


def _remove(path: Path, folder: Path, done: Pruned, *, dry_run: bool) -> bool:
    lock = FileLock(lock_path(folder))
    try:
        lock_path(folder).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        done.kept.append((path.name, "it is being built"))
        return False
    except OSError as error:
        done.kept.append((path.name, str(error)))
        return False
    try:
        with _unused(path) as free:
            if not free:
                done.kept.append((path.name, IN_USE))
                return False
            freed = disk_size(path).own
            if not dry_run:
                _take_away(path, folder)
            done.removed.append(path.name)
            done.freed_bytes += freed
            return True
    except OSError as error:
        done.kept.append((path.name, str(error)))
        return False
    finally:
        lock.release()


def _take_away(path: Path, folder: Path) -> None:
    # Renamed first: a removal that is broken off never leaves half an environment in place.
    doomed = path
    if not path.name.startswith(REMOVING):
        doomed = folder.with_name(f"{REMOVING}{folder.name}-{os.getpid()}")
        path.rename(doomed)
    shutil.rmtree(doomed)


@contextmanager
def _unused(path: Path) -> Iterator[bool]:
    """True while nobody else holds ``Environment.in_use``."""
    try:
        handle = (path / USE_FILE).open("a")
    except OSError:
        yield True
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def used_by(folder: Path) -> list[int]:
    """Processes that run from ``folder``, by their arguments or by what they have mapped."""
    return [pid for pid, words in _processes(folder) if os.fsencode(f"{folder}/") in words]


def _processes(root: Path) -> list[tuple[int, bytes]]:
    """Processes whose arguments or mapped files name something below ``root``.

    Mapped files count because vLLM's processes give themselves other names. Reading them takes
    0.1 s for each process that has torch loaded, so this is asked once for all folders.
    """
    needle = os.fsencode(f"{root}/")
    found = []
    for pid in filter(lambda one: one != os.getpid(), processes.pids()):
        for name in ("cmdline", "maps"):
            words = processes.read(pid, name, processes.MAPS_BYTES)
            if needle in words:
                found.append((pid, words))
                break
    return found
