"""Is there room for an environment?"""

from __future__ import annotations

import shutil
from pathlib import Path

from mmrepro.base.units import size
from mmrepro.environments.uv import UvFailed, run_uv
from mmrepro.errors import NoSpace

# What even an environment needs whose every file is a hard link into uv's cache: the links
# themselves (60 000 files), .pyc files and the engine's own caches.
FLOOR_BYTES = 1 * 1024**3


def uv_cache_dir() -> Path | None:
    """uv's cache folder; None: it does not say."""
    try:
        text = run_uv(["cache", "dir"]).strip()
    except UvFailed:
        return None
    return Path(text) if text else None


def free_bytes(path: Path) -> int:
    """Free for us on the file system of ``path`` or of its nearest parent that exists."""
    return shutil.disk_usage(_existing(path)).free


def require_space(root: Path, needed: int = 0, *, cold: bool = False) -> None:
    """Refuse what would not fit.

    ``needed``: bytes of the unpacked environment. They are needed once if uv's cache lacks the
    packages (``cold``), and once more if the cache is on another file system than ``root``, since
    files cannot be hard-linked across.

    Raises:
        NoSpace: with what is needed, where, and what is free.
    """
    cache = uv_cache_dir() if needed else None
    apart = cache is not None and not _same_device(cache, root)
    _check(
        root, FLOOR_BYTES + (needed if apart or (cold and cache is None) else 0), "the cache folder"
    )
    if cache is not None and cold:
        _check(cache, needed + (0 if apart else FLOOR_BYTES), "uv's cache")


def require_free(folder: Path, needed: int) -> None:
    """Raises NoSpace: ``needed`` bytes do not fit into ``folder``."""
    if (free := free_bytes(folder)) < needed:
        raise NoSpace(
            f"The disk of {folder} has {size(free)} free; {size(needed)} are needed.",
            hint="free some space, or choose a folder on a larger disk",
        )


def _check(path: Path, needed: int, what: str) -> None:
    free = free_bytes(path)
    if free < needed:
        raise NoSpace(
            f"The disk of {what} has {size(free)} free; the environment needs {size(needed)}.",
            hint="mmrepro env prune --all --uv-cache, or set MMREPRO_CACHE_DIR to a larger disk",
        )


def _same_device(one: Path, other: Path) -> bool:
    return _existing(one).stat().st_dev == _existing(other).stat().st_dev


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
