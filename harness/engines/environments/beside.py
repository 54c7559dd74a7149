"""Packages that some starts of an engine need and its environment lacks.

They lie in the environment's own folder, outside of its site-packages: only a server
that asks for one has it on its module path. Triton is such a package: with it on the
path vLLM chooses another model runner."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from filelock import FileLock
from mmrepro.base.errors import EnvironmentBuildError
from mmrepro.engines.environments.spec import Environment
from mmrepro.engines.environments.uv import Progress, run_uv
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


def install(package: BesidePackage, progress: Progress | None = None) -> Path:
    """Have ``package`` and return its folder, installed once and whole or not at all.

    Raises:
        EnvironmentBuildError: the index cannot be reached or has no such package, or
            the folder cannot be written.
        NoSpace: the disk is full.
    """
    folder = package.folder
    if folder.is_dir():
        return folder
    environment = package.environment
    building = folder.with_name(f".building-{folder.name}")
    install_to = ["--target", str(building), "--python", str(environment.python)]
    # As of the release's day, like all else in the environment; never built here.
    chosen = ["--exclude-newer", environment.resolved_until, "--only-binary", ":all:"]
    try:
        folder.parent.mkdir(exist_ok=True)
        with FileLock(folder.parent / ".lock"):
            if folder.is_dir():
                return folder
            shutil.rmtree(building, ignore_errors=True)
            words = ["pip", "install", "--no-deps", *install_to, *chosen]
            run_uv(
                [*words, package.requirement],
                doing=f"installing {package.requirement} beside the environment",
                progress=progress,
            )
            building.rename(folder)
    except OSError as error:
        raise EnvironmentBuildError(
            f"{package.requirement} cannot be installed: {error.strerror or error}.",
            hint="set MMREPRO_CACHE_DIR to a folder that you can write",
        ) from error
    return folder
