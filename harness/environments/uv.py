"""Runs uv and says in plain words what went wrong with it.

Every fact about a release (is there one, when was it uploaded, which wheel, which hash) comes from
``uv pip compile --no-deps --format pylock.toml``, so no address of a registry is in this project:
uv's own settings decide where packages come from. Checked with uv 0.13.8.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

from mmrepro.base.units import parse_size
from mmrepro.errors import EnvironmentBuildError, InfrastructureError, NoSpace
from mmrepro.machine.host import child_environment, die_with_parent

Progress = Callable[[str], None]


class Notice(str):
    """What :data:`Progress` is told and the user should still see later, not only meanwhile."""

    __slots__ = ()


UNCACHED = "not cached: "
"""Begins a phase of ``uv pip sync --dry-run -v``, one for each ``name==version``."""

TORCH_INDEX_VARIABLE = "MMREPRO_TORCH_INDEX"
"""``auto``; ``package``: the package index and no other; ``official``: PyTorch's CPU index; or the
address of an index that serves ``torch==X+cpu``."""

AUTO, PACKAGE, OFFICIAL = "auto", "package", "official"

DOWNLOADING = "downloading"
"""A phase that begins so is followed by many alike."""

_DETAIL_LINES = 12
_UNREACHABLE = re.compile(
    r"network was disabled|Failed to fetch|error sending request|dns error|tcp connect|"
    r"Connection (?:refused|reset)|timed out",
    re.IGNORECASE,
)
_FULL = re.compile(r"No space left on device|os error 28|Disk quota exceeded|os error 122")
_DOWNLOAD = re.compile(r"^Downloading (\S+) \((\d+(?:\.\d+)?[KMG]?i?B)\)$")
_DOWNLOADED = re.compile(r"^ ?Downloaded (\S+)$")
_UNCACHED = re.compile(r"^DEBUG Identified uncached distribution: (\S+)$")
_PHASE = re.compile(r"^(Resolved|Prepared|Installed|Would download) (\d+) (\w+)")


class UvFailed(Exception):
    """uv ended with an error. ``stderr``: its words, without credentials."""

    def __init__(self, returncode: int, stderr: str) -> None:
        super().__init__(stderr)
        self.returncode = returncode
        self.stderr = stderr

    @property
    def answered(self) -> bool:
        """The index did answer: it lacks what was asked for."""
        return "No solution found" in self.stderr


@dataclass(frozen=True)
class Distribution:
    """One file of a release on the index."""

    filename: str
    uploaded: datetime | None
    sha256: str
    size: int | None = None
    """Bytes; None: the index does not say."""
    address: str = field(default="", repr=False)
    """Where it lies, for a download of our own: it may hold a password, and is never kept."""


@dataclass(frozen=True)
class ReleaseFiles:
    """What the index has of one release that fits the interpreter asked for."""

    project: str
    version: str
    wheels: list[Distribution]
    sdist: Distribution | None

    @property
    def uploaded(self) -> datetime | None:
        """When the first of its files was uploaded."""
        files = [*self.wheels, *([self.sdist] if self.sdist else [])]
        return min((f.uploaded for f in files if f.uploaded), default=None)


def without_credentials(text: str) -> str:
    """``scheme://user:secret@host`` becomes ``scheme://***@host``; query strings go."""
    text = re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)
    return re.sub(r"(\w+://[^\s?]+)\?\S+", r"\1?***", text)


def torch_setting() -> str:
    """The setting; ``auto`` where there is none."""
    return os.environ.get(TORCH_INDEX_VARIABLE, "").strip() or AUTO


def key_salt() -> str:
    """What the setting adds to an environment's key: a named index does, without credentials.

    ``auto`` and ``package`` do not, whatever came of it: an environment that is there is found
    without asking anybody.
    """
    setting = torch_setting()
    return "" if setting in (AUTO, PACKAGE) else without_credentials(setting)


def uv_binary() -> str:
    """Path of uv, from its wheel.

    Raises:
        EnvironmentBuildError: it is not installed beside this interpreter, nor on PATH.
    """
    from uv import find_uv_bin

    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise EnvironmentBuildError(
            "uv, which builds the engines' environments, is not installed.",
            hint="pip install uv",
        ) from error


def run_uv(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    stdin: str = "",
    extra: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run uv to its end and give back what it printed on stdout.

    uv's stderr is read line by line: its downloads and phases go to ``progress``. Whatever ends
    this early (Ctrl-C too) ends uv first; after ``timeout_s`` seconds it is killed.

    Raises:
        UvFailed: it ended with an error; ``explain`` turns that into one for people.
        EnvironmentBuildError: uv itself could not be started.
    """
    environment = child_environment({"NO_COLOR": "1", **(extra or {})})
    try:
        child = subprocess.Popen(
            [uv_binary(), *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # A killed harness must not leave a uv behind that goes on filling the disk.
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        raise EnvironmentBuildError(
            f"uv could not be started: {error}.", hint="pip install --force-reinstall uv"
        ) from error
    output: list[str] = []
    words: list[str] = []
    phases = _Phases()
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    stdout = child.stdout
    reader = threading.Thread(target=lambda: output.append(stdout.read()), daemon=True)
    reader.start()
    clock = threading.Timer(timeout_s, child.kill) if timeout_s is not None else None
    if clock is not None:
        clock.start()
    try:
        try:
            child.stdin.write(stdin)
            child.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it read; its exit status tells
        for line in child.stderr:
            words.append(line.rstrip())
            if progress is not None and (phase := phases.read(line.rstrip())):
                progress(phase)
        child.wait()
    finally:
        if clock is not None:
            clock.cancel()
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        reader.join(timeout=5)
        child.stderr.close()
        child.stdout.close()
    if child.returncode != 0:
        raise UvFailed(child.returncode, without_credentials("\n".join(words)))
    return "".join(output)


class _Phases:
    """uv's lines as phases. Of its downloads, those under way: the largest is the one to wait for.

    uv names only files of 1 MiB and more, and tells of each when it begins and when it is there.
    """

    def __init__(self) -> None:
        self.under_way: dict[str, str] = {}
        self.done = self.begun = 0.0

    def read(self, line: str) -> str:
        """What to tell of ``line``; empty: nothing."""
        if match := _DOWNLOAD.match(line):
            self.under_way[match[1]] = match[2]
            self.begun += parse_size(match[2], least=0)
        elif match := _DOWNLOADED.match(line):
            self.done += parse_size(self.under_way.pop(match[1], "0"), least=0)
            if not self.under_way:
                return "unpacking"
        elif match := _UNCACHED.match(line):
            return f"{UNCACHED}{match[1]}"
        elif match := _PHASE.match(line):
            return f"{match[1].lower()} {match[2]} {match[3]}"
        else:
            return ""
        name = max(self.under_way, key=lambda one: parse_size(self.under_way[one], least=0))
        others = len(self.under_way) - 1
        more = f" and {others} more" if others else ""
        share = f"; {self.done / self.begun:.0%} is there" if self.done else ""
        return f"{DOWNLOADING} {name} ({self.under_way[name]}){more}{share}"


def explain(failure: UvFailed, doing: str) -> InfrastructureError:
    """uv's error as one of ours, with its root-cause lines and the next step."""
    lines = [line.strip() for line in failure.stderr.splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("error:", "cause:", "hint:", "Caused by"))
    ]
    detail = (telling or lines)[-_DETAIL_LINES:]
    if _FULL.search(failure.stderr):
        return NoSpace(
            f"The disk became full while {doing}.",
            hint="free some space, or: mmrepro env prune --all --uv-cache",
            detail=detail,
        )
    if _UNREACHABLE.search(failure.stderr):
        return EnvironmentBuildError(
            f"The package index could not be reached while {doing}.",
            hint="check the network or proxy; `mmrepro env list` shows what is already built",
            detail=detail,
        )
    return EnvironmentBuildError(
        f"uv failed while {doing}.",
        hint="the lines above are uv's own; `mmrepro check` tells what this machine lacks",
        detail=detail,
    )


def uv_version() -> str:
    """``0.13.8``, or ``""``: uv is there but does not answer."""
    try:
        words = run_uv(["--version"]).split()
    except UvFailed:
        return ""
    return words[1] if len(words) > 1 else ""


@dataclass(frozen=True)
class IndexSource:
    """Options and variables that make uv look elsewhere than its own settings say."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def interpreter_options(python: str, platform: str = "") -> list[str]:
    """For whom uv is to resolve: ``python`` here (a path or a version), or its version there.

    ``platform``: of another machine, as uv names them, e.g. ``x86_64-manylinux_2_28``.
    """
    if platform:
        return ["--python-version", python, "--python-platform", platform]
    return ["--python", python]


def release_files(
    requirement: str,
    python: str,
    *,
    platform: str = "",
    lowest: bool = False,
    source: IndexSource | None = None,
) -> ReleaseFiles:
    """The files of the newest (``lowest``: oldest) release that ``requirement`` allows.

    Only files that fit that interpreter: see :func:`interpreter_options`. ``source``: another index
    than uv's own settings name.

    Raises:
        UvFailed: no such release, none for that interpreter, or the index cannot be reached.
    """
    arguments = ["pip", "compile", "-q", "--no-deps", "--format", "pylock.toml"]
    arguments += ["--resolution", "lowest"] if lowest else []
    arguments += interpreter_options(python, platform)
    extra = None
    if source is not None:
        arguments += source.options
        extra = source.variables
    return locked(run_uv([*arguments, "-"], stdin=requirement + "\n", extra=extra))[0]


def locked(pylock: str) -> list[ReleaseFiles]:
    """The packages of a ``pylock.toml``, and what the index has of each."""
    return [
        ReleaseFiles(
            project=package["name"],
            version=package.get("version", ""),
            wheels=[_distribution(wheel) for wheel in package.get("wheels", [])],
            sdist=_distribution(package["sdist"]) if "sdist" in package else None,
        )
        for package in tomllib.loads(pylock).get("packages", [])
    ]


def _distribution(entry: dict[str, object]) -> Distribution:
    address = str(entry.get("url") or entry.get("path") or "")
    uploaded = entry.get("upload-time")
    hashes = entry.get("hashes")
    size = entry.get("size")
    return Distribution(
        filename=unquote(str(entry.get("name") or address).partition("#")[0].rpartition("/")[2]),
        uploaded=uploaded if isinstance(uploaded, datetime) else None,
        sha256=str(hashes.get("sha256", "")) if isinstance(hashes, dict) else "",
        size=size if isinstance(size, int) else None,
        address=address,
    )
