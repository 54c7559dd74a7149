"""Where environments are kept, and on what they are meant to run."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]
CACHE_VARIABLE = "MMREPRO_CACHE_DIR"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def cache_root() -> Path:
    """Folder of all that mmrepro keeps: ``MMREPRO_CACHE_DIR``, else the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).expanduser().absolute()
    import platformdirs  # here, not above: `mmrepro --help` does not need it

    return Path(platformdirs.user_cache_dir("mmrepro"))


def environments_root() -> Path:
    return cache_root() / "environments"


def folders_in(root: Path) -> list[Path]:
    """By name; none where ``root`` cannot be read."""
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []


def detect_device() -> Device:
    """``cuda`` where there is an NVIDIA driver and CUDA_VISIBLE_DEVICES does not hide every GPU on
    purpose, else ``cpu``."""
    return "cuda" if nvidia_driver() and not hidden(os.environ.get(VISIBLE)) else "cpu"


def device_of(asked: str) -> Device:
    """What ``--device`` means here: ``auto`` is :func:`detect_device`."""
    if asked == "auto":
        return detect_device()
    return "cuda" if asked == "cuda" else "cpu"


def hidden(mask: str | None) -> bool:
    """Whether that value of CUDA_VISIBLE_DEVICES (None: not set) hides every GPU on purpose."""
    return mask is not None and mask.strip() in ("", "-1", "NoDevFiles")


def nvidia_driver() -> bool:
    """Whether an NVIDIA driver is loaded and its library is found.

    Both are asked for: a container may see the driver of its host in /proc without being given
    the library (or a device), and an image may carry the library on a host without a GPU.
    """
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    # WSL has neither: its device is /dev/dxg.
    if not driver and not Path("/dev/dxg").exists():
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
