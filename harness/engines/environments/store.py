"""The environments on disk: which there are, how large, how to remove them, room for
another."""

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
from mmrepro.base import processes, units
from mmrepro.base.errors import EnvironmentBuildError, NoSpace
from mmrepro.base.machine import environments_root, folders_in
from mmrepro.engines.environments.spec import MANIFEST_FILE, USE_FILE, Manifest
from mmrepro.engines.environments.uv import UvFailed, run_uv
from pydantic import ValidationError

BUILDING, REMOVING, LOCKS = ".building-", ".removing-", ".locks"
_IN_USE = "it is in use"

# What even an environment needs whose every file is a hard link into uv's cache: the
# links themselves (60 000 files), .pyc files and the engine's own caches.
FLOOR_BYTES = 1 * 1024**3


def lock_path(folder: Path) -> Path:
    """Lock of whoever builds or removes ``folder``. Lock files stay: removing one is a
    race."""
    return folder.parent / LOCKS / f"{folder.name}.lock"


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest; None: no whole environment is there (or one that this version
    cannot read, or what it stands on is gone)."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    below = manifest.below
    return (
        manifest
        if not below or (folder.parent / below / MANIFEST_FILE).is_file()
        else None
    )


def site_packages(venv: Path) -> Path:
    """Where the packages of a virtual environment are. Raises EnvironmentBuildError:
    nowhere."""
    folders = sorted(venv.glob("lib/python*/site-packages"))
    if not folders:
        raise EnvironmentBuildError(
            f"The environment {venv.parent.name} is damaged: it has no site-packages.",
            hint="mmrepro env prune --all",
        )
    return folders[0]


def dead_folders(folder: Path) -> list[Path]:
    """What broken-off builds and removals of ``folder`` left. Only for the holder of
    its lock."""
    marks = (f"{BUILDING}{folder.name}-", f"{REMOVING}{folder.name}-")
    try:
        names = [
            path for path in folder.parent.iterdir() if path.name.startswith(marks)
        ]
    except OSError:
        return []
    # A folder of that very name without a manifest cannot come from a rename: it is
    # damaged.
    damaged = [folder] if folder.exists() and read_manifest(folder) is None else []
    return [*names, *damaged]


@dataclass(frozen=True)
class Size:
    """Bytes on disk. ``own``: what removal frees; the rest is shared with uv's
    cache."""

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
class _Pruned:
    """What ``prune`` did, or with ``dry_run`` would do."""

    removed: list[str] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    """Name and why it was not removed although it was meant."""
    freed_bytes: int = 0
    packages: set[str] = field(default_factory=set)
    """Names of the packages that were in what is removed."""


def disk_size(folder: Path) -> Size:
    """Size of all below ``folder``; a file with a second hard link is counted as
    shared."""
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
    """All whole environments, by name. ``sizes`` False leaves out the walk over their
    files."""
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
) -> _Pruned:
    """Remove the leftovers of broken builds, and the environments that are meant.

    Meant are all with ``everything``; else those of ``engine`` (and ``release``) if
    given, called one of ``names`` if given, and not used for ``older_than_days`` if
    given; with none of these, leftovers alone. One that is being built or used is kept,
    and ``kept`` says so."""
    root = environments_root()
    done = _Pruned()
    chosen = everything or bool(engine) or bool(names) or older_than_days is not None
    busy = b"\n".join(words for _, words in _processes(root)) if chosen else b""
    if everything and not dry_run:
        shutil.rmtree(root.parent / "sources", ignore_errors=True)

    def meant(path: Path, manifest: Manifest) -> bool:
        return (
            chosen
            and engine in ("", manifest.engine)
            and release in ("", manifest.release)
            and (not names or path.name in names)
            and (
                older_than_days is None
                # Of a number that is none nothing is true, and nothing is removed.
                or time.time() - last_used(path) >= older_than_days * 86400
            )
        )

    there = {path: read_manifest(path) for path in folders_in(root)}
    bases = {
        m.below: p.name for p, m in there.items() if m and m.below and not meant(p, m)
    }
    for path, manifest in there.items():
        if path.name.startswith((BUILDING, REMOVING)):
            key = (
                path.name.removeprefix(BUILDING)
                .removeprefix(REMOVING)
                .rpartition("-")[0]
            )
            _remove(path, root / key, done, dry_run=dry_run)
        elif not path.name.startswith("."):
            if manifest is None:
                _remove(path, path, done, dry_run=dry_run)
            elif not meant(path, manifest):
                continue
            elif path.name in bases:
                done.kept.append((path.name, f"{bases[path.name]} stands on it"))
            elif os.fsencode(f"{path}/") in busy:
                done.kept.append((path.name, _IN_USE))
            elif _remove(path, path, done, dry_run=dry_run):
                done.packages |= {line.partition("==")[0] for line in manifest.packages}
    return done


def _remove(path: Path, folder: Path, done: _Pruned, *, dry_run: bool) -> bool:
    """Remove ``path``, which is the environment ``folder`` or is left of it."""
    lock = lock_path(folder)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=0), _unused(path) as free:
            if not free:
                done.kept.append((path.name, _IN_USE))
                return False
            freed = disk_size(path).own
            if not dry_run:
                # Renamed first: a removal that is broken off never leaves half an
                # environment.
                doomed = path
                if not path.name.startswith(REMOVING):
                    doomed = folder.with_name(f"{REMOVING}{folder.name}-{os.getpid()}")
                    path.rename(doomed)
                shutil.rmtree(doomed)
            done.removed.append(path.name)
            done.freed_bytes += freed
            return True
    except Timeout:
        done.kept.append((path.name, "it is being built"))
    except OSError as error:
        done.kept.append((path.name, str(error)))
    return False


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
    """Processes that run from ``folder``, by their arguments or by what they have
    mapped."""
    return [
        pid for pid, words in _processes(folder) if os.fsencode(f"{folder}/") in words
    ]


def _processes(root: Path) -> list[tuple[int, bytes]]:
    """Processes whose arguments or mapped files name something below ``root``, and
    those.

    Mapped files count because vLLM's processes give themselves other names. Reading
    them takes 0.1 s for each process that has torch loaded, so one call serves all
    folders."""
    needle = os.fsencode(f"{root}/")
    found = []
    for pid in filter(lambda one: one != os.getpid(), processes.pids()):
        for name in ("cmdline", "maps"):
            words = processes.read(pid, name, processes.MAPS_BYTES)
            if needle in words:
                found.append((pid, words))
                break
    return found


# ------------------------------------------------------------------ room for another


def uv_cache_dir() -> Path | None:
    """uv's cache folder; None: it does not say."""
    try:
        text = run_uv(["cache", "dir"]).strip()
    except UvFailed:
        return None
    return Path(text) if text else None


def free_bytes(path: Path) -> int:
    """Free for us on the file system of ``path`` or of its nearest parent that
    exists."""
    return shutil.disk_usage(_existing(path)).free


def require_space(root: Path, needed: int = 0, *, cold: bool = False) -> None:
    """Refuse an environment that would not fit.

    Args:
        needed: bytes of the unpacked environment. They are needed once if uv's cache
            lacks the packages (``cold``), and once more if the cache is on another file
            system than ``root``, since files cannot be hard-linked across.

    Raises:
        NoSpace: with what is needed, where, and what is free.
    """
    cache = uv_cache_dir() if needed else None
    apart = cache is not None and not _same_device(cache, root)
    own = needed if apart or (cold and cache is None) else 0
    places = [(root, FLOOR_BYTES + own, "the cache folder")]
    if cache is not None and cold:
        places.append((cache, needed + (0 if apart else FLOOR_BYTES), "uv's cache"))
    hint = (
        "mmrepro env prune --all --uv-cache, or set MMREPRO_CACHE_DIR to a larger disk"
    )
    for path, bytes_, what in places:
        _require(path, bytes_, what, "the environment needs", hint)


def require_free(folder: Path, needed: int) -> None:
    """Raises NoSpace: ``needed`` bytes do not fit into ``folder``."""
    hint = "free some space, or choose a folder on a larger disk"
    _require(folder, needed, str(folder), "it needs", hint)


def _require(path: Path, needed: int, what: str, who: str, hint: str) -> None:
    if (free := free_bytes(path)) < needed:
        raise NoSpace(
            (
                f"The disk of {what} has {units.size(free)} free; {who} "
                f"{units.size(needed)}."
            ),
            hint=hint,
        )


def _same_device(one: Path, other: Path) -> bool:
    return _existing(one).stat().st_dev == _existing(other).stat().st_dev


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
