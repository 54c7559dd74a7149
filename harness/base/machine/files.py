"""Files that users name or mmrepro keeps: read within bounds, written whole or not at
all.

Only a plain file is ever written over: a link, a FIFO, a socket or a device that stands
there is somebody else's, and a rename would destroy it, as root a device node too. A
link in the path of the *folder* is followed: that is where its user wants the file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from mmrepro.base import units
from mmrepro.base.errors import UsageError

_MAX_TOML_BYTES: Final = 4 << 20
MOST_CONFIG_BYTES: Final = 4 << 20
"""Of a model's config.json."""
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, which takes the place of ``path`` when the block ends, and not if it
    raises.

    Raises:
        OSError: it cannot be written, or something that is no plain file is there;
            ``strerror`` says which.
    """
    refuse_other_kinds(path)  # before somebody spends a minute on the content
    temporary = path.with_name(f".mmrepro-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        refuse_other_kinds(path)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: str | bytes) -> None:
    """Write ``path`` whole or not at all, a text as UTF-8. Raises OSError, as
    ``replacing``."""
    with replacing(path) as file:
        file.write(
            content.encode("utf-8", "replace") if isinstance(content, str) else content
        )


def open_plain(path: Path, flags: int) -> int:
    """A handle of the plain file ``path``, which is made if there is none.

    Raises:
        OSError: it cannot be opened, or is no plain file; ``strerror`` says which.
    """
    refuse_other_kinds(path)  # opening a FIFO waits, opening a device may act
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def open_to_read(path: Path) -> BufferedReader:
    """The plain file ``path``, or one that it is a link to.

    Raises:
        OSError: it cannot be opened, or is no plain file; ``strerror`` says which.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:  # opening a device may act
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}", path)
    # Opening a FIFO, which may take the file's place meanwhile, would wait for ever.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    kind = stat.S_IFMT(os.fstat(file.fileno()).st_mode)
    if kind != stat.S_IFREG:
        file.close()
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}", path)
    return file


def read_file(path: Path, most: int) -> bytes:
    """The content of ``path``. Raises OSError, as above, and where it has over ``most``
    bytes."""
    with open_to_read(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(
            errno.EFBIG, f"it is too large: more than {units.size(most)}", path
        )
    return content


def read_toml(path: Path, hint: str = "") -> dict[str, Any]:
    """The document of a TOML file.

    Raises:
        UsageError: it cannot be read, is none, or is beyond what a person writes: in
            depth, in tables, in digits.
    """
    try:
        return parse_toml(read_file(path, _MAX_TOML_BYTES))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}."
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", hint=hint) from error


def parse_toml(content: bytes) -> dict[str, Any]:
    """The document of a TOML file's content.

    Raises:
        ValueError: it is none, of another encoding than UTF-8, or beyond what a person
            writes: in depth, in tables, in digits.
    """
    import tomllib

    text = content.decode()
    if _DEEP.search(text):  # tomllib takes gigabytes for a key of 20,000 parts
        raise ValueError(f"a key of more than {_MOST_PARTS} parts")
    if text.count("[[") > _MOST_TABLES:
        raise ValueError(f"more than {_MOST_TABLES:,} tables")
    try:
        document = tomllib.loads(text)
        _within_limits(document)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return document


_MOST_PARTS: Final = 20
_MOST_TABLES: Final = 5000
# From the beginning of a part only, and never back into one: a line of 2 MiB took 10 s.
_DEEP: Final = re.compile(
    rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}"
)


def _within_limits(value: Any, depth: int = 0) -> None:
    """Raises ValueError: a number that no option takes, or a depth that no file of ours
    has."""
    if depth > _MOST_PARTS:
        raise ValueError("it is nested too deep")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _within_limits(item, depth + 1)
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("a number of more than 63 bits")


_MAX_YAML_CHARS: Final = 1 << 18
_MOST_VALUES_YAML: Final = 20_000


def read_yaml(text: str) -> list[Any]:
    """The documents of YAML; none where it is not valid, or beyond what a person
    writes: in length, in depth, and in values, those counted again that an alias stands
    for."""
    import yaml

    if len(text) > _MAX_YAML_CHARS:
        return []
    sizes: dict[str, int] = {}  # by anchor
    within: list[tuple[str | None, int]] = [(None, 0)]  # anchor, and the values so far
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            anchor, count = getattr(event, "anchor", None), 0
            if isinstance(event, yaml.AliasEvent):
                count = sizes[event.anchor]  # of what it stands in, there is none yet
            elif isinstance(event, yaml.ScalarEvent):
                count = 1
            elif isinstance(event, yaml.CollectionStartEvent):
                within.append((anchor, 1))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, count = within.pop()
            if anchor is not None and count:
                sizes[anchor] = count
            name, before = within[-1]
            within[-1] = name, before + count
            if before + count > _MOST_VALUES_YAML or len(within) > _MOST_PARTS:
                return []
        return list(yaml.safe_load_all(text))
    except (
        yaml.YAMLError,
        KeyError,
        ValueError,
    ):  # of a date or a number that there is none of
        return []


def is_file(path: Path) -> bool:
    """Whether a plain file can be seen there; whoever opens one that cannot is told
    why."""
    return os.path.isfile(path)  # noqa: PTH113  (Path.is_file raises where a folder is closed to us)


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def is_there(path: Path) -> bool:
    """Whether ``path`` can be seen; one that cannot fails later, when it is made, with
    a reason."""
    return os.path.exists(path)  # noqa: PTH110  (Path.exists raises where a folder is closed to us)


def refuse_other_kinds(path: Path) -> None:
    """Raises OSError: ``path`` is there and is no plain file."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "no file")
        raise OSError(
            errno.EEXIST, f"it is {what}, and only a plain file is written over", path
        )


Device = Literal["cpu", "cuda"]
CACHE_VARIABLE = "MMREPRO_CACHE_DIR"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def cache_root() -> Path:
    """Folder of all that mmrepro keeps: ``MMREPRO_CACHE_DIR``, else the user's cache
    folder."""
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


MOST_ENTRIES: Final = 5000
DEEPEST: Final = 32
_MOST_WALK_S: Final = 10.0


@dataclass
class FilesBelow:
    """Plain files in a folder and in those below it; no link is followed, and no other
    file system entered.

    Attributes:
        left_out: sentences on what a bound left out.
    """

    files: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def files_below(folder: Path) -> FilesBelow:
    """The files in ``folder``, at most so many and so deep. Folders that are closed to
    us are passed over."""
    below = FilesBelow()
    try:
        device = folder.stat().st_dev
    except OSError:
        return below
    until = time.monotonic() + _MOST_WALK_S
    waiting, seen, elsewhere, deep = [(folder, 0)], 0, 0, 0
    while waiting:
        place, depth = waiting.pop(0)
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES or time.monotonic() > until:
                    left = f"of {folder} only the first {seen - 1:,} entries were read"
                    below.left_out.append(left)
                    waiting.clear()
                    break
                if entry.is_file(follow_symlinks=False):
                    below.files.append(Path(entry.path))
                elif not entry.is_dir(follow_symlinks=False):
                    continue
                elif depth + 1 >= DEEPEST:
                    deep += 1
                elif entry.stat(follow_symlinks=False).st_dev != device:
                    elsewhere += 1
                else:
                    waiting.append((Path(entry.path), depth + 1))
    if deep:
        below.left_out.append(
            f"folders of {folder} more than {DEEPEST} deep were not opened"
        )
    if elsewhere:
        below.left_out.append(
            f"{elsewhere} folders of {folder} on other file systems were not opened"
        )
    return below


def detect_device() -> Device:
    """``cuda`` where there is an NVIDIA driver and CUDA_VISIBLE_DEVICES does not hide
    every GPU on purpose, else ``cpu``."""
    return "cuda" if nvidia_driver() and not hidden(os.environ.get(VISIBLE)) else "cpu"


def device_of(asked: str) -> Device:
    """What ``--device`` means here: ``auto`` is :func:`detect_device`."""
    if asked == "auto":
        return detect_device()
    return "cuda" if asked == "cuda" else "cpu"


def hidden(mask: str | None) -> bool:
    """Whether that value of CUDA_VISIBLE_DEVICES (None: not set) hides every GPU on
    purpose."""
    return mask is not None and mask.strip() in ("", "-1", "NoDevFiles")


def nvidia_driver() -> bool:
    """Whether an NVIDIA driver is loaded and its library is found.

    Both are asked for: a container may see the driver of its host in /proc without
    being given the library (or a device), and an image may carry the library on a host
    without a GPU."""
    driver = (
        Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    )
    # WSL has neither: its device is /dev/dxg.
    if not driver and not Path("/dev/dxg").exists():
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


FileState = tuple[int, int, int]


def digest(files: Iterable[Path]) -> str:
    """Of names and contents; a file that cannot be read counts as that."""
    total = hashlib.sha256()
    for path in files:
        total.update(path.name.encode() + b"\0")
        try:
            total.update(_file_digest(path, state(path)))
        except OSError:
            total.update(b"unreadable")
    return total.hexdigest()[:16]


@lru_cache(maxsize=4096)
def _file_digest(path: Path, state: FileState) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def state(path: Path) -> FileState:
    """What changes when a file does. Raises OSError."""
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
