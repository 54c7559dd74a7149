"""Runs uv, reads its answers and words its errors for people.

Every fact about a release (is there one, when was it uploaded, which wheel, which hash)
comes from ``uv pip compile --no-deps --format pylock.toml``, so no address of a
registry is in this project: uv's own settings decide where packages come from. Checked
with uv 0.13.8 and 0.13.9."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

from mmrepro.base.errors import EnvironmentBuildError, NoSpace, UnfitPython
from mmrepro.base.machine import child_environment, die_with_parent
from mmrepro.base.units import duration, parse_size, size
from packaging.utils import parse_wheel_filename

Progress = Callable[[str], None]


class Notice(str):
    """A phase that stays on the screen when the next one comes."""

    __slots__ = ()


UNCACHED = "not cached: "
"""Begins a phase of ``uv pip sync --dry-run -v``, one for each ``name==version``."""

DOWNLOADING = "downloading"
"""A phase that begins so is followed by many alike."""

_READABLE = {"NO_COLOR": "1", "COLUMNS": "4096"}
"""uv breaks its errors at ``COLUMNS``, so that what belongs together is on two
lines."""
_DETAIL_LINES = 12
_UNREACHABLE = re.compile(
    r"network was disabled|Failed to fetch|error sending request|dns error|tcp connect|"
    r"Connection (?:refused|reset)|timed out",
    re.IGNORECASE,
)
_PYTHON = re.compile(
    r"(?:Failed to download \S*/cpython-|No interpreter found for Python )(3\.\d+)"
)
_UNBUILT = re.compile(
    r"Failed to build `([^`]+)`\s+(?:cause: )?The build backend returned an error"
)
_FULL = re.compile(
    r"No space left on device|os error 28|Disk quota exceeded|os error 122"
)
_DOWNLOAD = re.compile(r"^Downloading (\S+) \((\d+(?:\.\d+)?[KMG]?i?B)\)$")
_DOWNLOADED = re.compile(r"^ ?Downloaded (\S+)$")
_UNCACHED = re.compile(r"^DEBUG Identified uncached distribution: (\S+)$")
_UNKNOWN = re.compile(
    r"there (?:is|are) no versions? of|was not found in the (?:package registry|cache)"
)
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
        offline = "network was disabled" in self.stderr
        return "No solution found" in self.stderr and not offline

    @property
    def unknown(self) -> bool:
        """There is no such release or project, whatever the interpreter; offline, none
        is known."""
        return _UNKNOWN.search(self.stderr) is not None


@dataclass(frozen=True)
class Distribution:
    """One file of a release on the index."""

    filename: str
    uploaded: datetime | None
    sha256: str
    size: int | None = None
    """Bytes; None: the index does not say."""
    address: str = field(default="", repr=False)
    """Where it lies, for a download of our own: it may hold a password, and is never
    kept."""

    @property
    def version(self) -> str:
        """The version of a wheel, whose local label (``+cu129``) the request may
        lack."""
        return str(parse_wheel_filename(self.filename)[1])


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


def uv_binary() -> str:
    """Path of uv, from its wheel.

    Raises:
        EnvironmentBuildError: it is not installed beside this interpreter, nor on PATH.
    """
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        from mmrepro.base.installed import install_command

        raise EnvironmentBuildError(
            "uv, which builds the engines' environments, is not installed.",
            hint=install_command("run"),
        ) from error


def run_uv(
    arguments: Sequence[str],
    *,
    doing: str = "",
    cwd: Path | None = None,
    stdin: str = "",
    extra: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run uv to its end and return its standard output.

    Its standard error is read line by line: downloads and phases go to ``progress``.
    Whatever ends this early (Ctrl-C too) ends uv first; after ``timeout_s`` seconds it
    is killed.

    Raises:
        UvFailed: uv ended with an error and ``doing`` is empty; else what
            :func:`explain` makes of it: a NoSpace or an EnvironmentBuildError.
        EnvironmentBuildError: uv itself could not be started.
    """
    words: list[str] = []
    phases = _Phases()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            child = subprocess.Popen(
                [uv_binary(), *arguments],
                cwd=cwd,
                env=child_environment({**_READABLE, **(extra or {})}),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # A killed harness must not leave a uv behind that goes on filling the
                # disk.
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            raise EnvironmentBuildError(
                f"uv could not be started: {error}.",
                hint="pip install --force-reinstall uv",
            ) from error
        assert child.stdin is not None
        assert child.stderr is not None
        clock = threading.Timer(timeout_s or 0, child.kill)
        if timeout_s is not None:
            clock.start()
        try:
            # It may end before it reads; its exit status says why.
            with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
                pipe.write(stdin)
            for line in child.stderr:
                words.append(line.rstrip())
                if progress is not None and (phase := phases.read(line.rstrip())):
                    progress(phase)
            child.wait()
        finally:
            clock.cancel()
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            child.stderr.close()
        if child.returncode != 0:
            failure = UvFailed(child.returncode, without_credentials("\n".join(words)))
            raise explain(failure, doing) if doing else failure
        output.seek(0)
        return output.read()


class _Phases:
    """Turns uv's lines into phases. Of its downloads the largest one is the one to wait
    for.

    uv names only files of 1 MiB and more, each when it begins and when it is there.
    """

    def __init__(self) -> None:
        self.under_way: dict[str, str] = {}
        self.done = self.begun = 0.0

    def read(self, line: str) -> str:
        """Return the phase that ``line`` begins; empty: none."""
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
        name = max(
            self.under_way, key=lambda one: parse_size(self.under_way[one], least=0)
        )
        others = len(self.under_way) - 1
        more = f" and {others} more" if others else ""
        share = f"; {self.done / self.begun:.0%} is there" if self.done else ""
        return f"{DOWNLOADING} {name} ({self.under_way[name]}){more}{share}"


def explain(failure: UvFailed, doing: str) -> NoSpace | EnvironmentBuildError:
    """uv's error as one of ours, with its root-cause lines and the next step."""
    lines = [line.strip() for line in failure.stderr.splitlines() if line.strip()]
    causes = [
        one
        for one in lines
        if one.startswith(("error:", "cause:", "hint:", "Caused by"))
    ]
    detail = (causes or lines)[-_DETAIL_LINES:]
    if _FULL.search(failure.stderr):
        hint = "free some space, or: mmrepro env prune --all --uv-cache"
        return NoSpace(f"The disk became full while {doing}.", hint=hint, detail=detail)
    if package := _UNBUILT.search(failure.stderr):
        message = (
            f"{package[1]} has no wheel for this Python and could not be "
            f"built, {doing}."
        )
        hint = "install another Python beside it, e.g. 3.11, or what the build asks for"
        return UnfitPython(message, hint=hint, detail=detail)
    message = f"uv failed while {doing}."
    hint = "the lines above are uv's own; `mmrepro check` shows what this machine lacks"
    if python := _PYTHON.search(failure.stderr):
        message = (
            f"Python {python[1]} is not here, and could not be downloaded, {doing}."
        )
        hint = (
            f"install Python {python[1]}, or take a release with wheels for the one "
            "that is here"
        )
        return UnfitPython(message, hint=hint, detail=detail)
    if _UNREACHABLE.search(failure.stderr):
        message = f"The package index could not be reached while {doing}."
        hint = (
            "check the network or proxy; `mmrepro env list` shows what is already built"
        )
    return EnvironmentBuildError(message, hint=hint, detail=detail)


def uv_version() -> str:
    """``0.13.8``, or ``""``: uv is there but does not answer."""
    try:
        return run_uv(["--version"]).split()[1]
    except (UvFailed, IndexError):
        return ""


def interpreter_options(python: str, platform: str = "") -> list[str]:
    """For whom uv resolves: ``python`` here (a path or a version), or a version on
    ``platform``, another machine's as uv names it, e.g. ``x86_64-manylinux_2_28``."""
    if platform:
        # uv would else download an interpreter of that version, only to build sources
        # with it.
        return [
            "--python-version",
            python,
            "--python-platform",
            platform,
            "--no-python-downloads",
        ]
    return ["--python", python]


def release_files(
    requirement: str,
    python: str,
    *,
    platform: str = "",
    lowest: bool = False,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> ReleaseFiles:
    """The files of the newest (``lowest``: oldest) release that ``requirement`` allows.

    Only files that fit that interpreter: see :func:`interpreter_options`.

    Args:
        options, variables: for uv; they may name another index than its own settings
            do.

    Raises:
        UvFailed: no such release, none for that interpreter, or the index cannot be
            reached.
    """
    arguments = [
        "pip",
        "compile",
        "-q",
        "--no-deps",
        "--format",
        "pylock.toml",
        *options,
    ]
    arguments += ["--resolution", "lowest"] if lowest else []
    arguments += [*interpreter_options(python, platform), "-"]
    return locked(run_uv(arguments, stdin=requirement + "\n", extra=variables))[0]


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
        filename=unquote(
            str(entry.get("name") or address).partition("#")[0].rpartition("/")[2]
        ),
        uploaded=uploaded if isinstance(uploaded, datetime) else None,
        sha256=str(hashes.get("sha256", "")) if isinstance(hashes, dict) else "",
        size=size if isinstance(size, int) else None,
        address=address,
    )


# ---------------------------------------------------------------- what uv will download

_DISK_RATIO = 1.9
"""Unpacked bytes to downloaded ones: 1.78 to 1.96 in environments of the four
engines."""

_ASSUMED_RATE = 12.5e6
"""Bytes a second (100 Mbit/s), where nothing large enough was downloaded yet."""

_TELLING_BYTES = 20_000_000
"""A smaller download is mostly waiting, so it gives no rate."""

_COUNT = re.compile(r"would download (\d+)")


@dataclass(frozen=True)
class Download:
    """Packages that are not in uv's cache yet."""

    files: int
    bytes: int
    """0: the index does not say."""
    rate: float = 0.0
    """Bytes a second of the last download; 0: not known."""

    def __str__(self) -> str:
        if not self.files:
            return "nothing to download: all is in uv's cache"
        what = f"{self.files} package{'' if self.files == 1 else 's'} to download"
        if not self.bytes:
            return f"{what}; the index does not say how large"
        rate = self.rate or _ASSUMED_RATE
        basis = f"at the {size(rate)}/s seen" if self.rate else "at 100 Mbit/s"
        took = duration(max(1, round(self.bytes / rate)))
        unpacked = size(self.bytes * _DISK_RATIO)
        return f"{what}, {size(self.bytes)}; up to {unpacked} on disk, {took} {basis}"


def rate_of(size: int, seconds: float) -> float:
    """Bytes a second of one download; 0.0: it is too small to give a rate."""
    return size / seconds if size >= _TELLING_BYTES and seconds > 0 else 0.0


def plan_of(
    run: Callable[..., str], install: list[str], described: list[str], rate: float
) -> Download:
    """What an installation will download.

    Args:
        run: runs uv, as ``run_uv`` does.
        install: the arguments of the installation. Raises as ``run`` where it cannot be
            planned.
        described: arguments for ``uv pip compile`` with the same packages, for uv to
            describe.
        rate: bytes a second, as far as known.
    """
    phases: list[str] = []
    run(
        [*install, "--dry-run", "-v"],
        progress=phases.append,
        doing="planning the installation",
    )
    try:
        packages = locked(
            run(["pip", "compile", "-q", "--format", "pylock.toml", *described])
        )
    except UvFailed:
        packages = []  # it can be installed, so it will be
    # Several wheels that fit differ by little; where there is none it is the source.
    sizes = {
        f"{one.project}=={one.version}": max(
            (file.size or 0 for file in one.wheels or filter(None, [one.sdist])),
            default=0,
        )
        for one in packages
    }
    names = [
        phase.removeprefix(UNCACHED) for phase in phases if phase.startswith(UNCACHED)
    ]
    counts = [match for phase in phases if (match := _COUNT.match(phase))]
    files = max([len(names), *(int(match[1]) for match in counts)])
    return Download(files, sum(sizes.get(name, 0) for name in names), rate)
