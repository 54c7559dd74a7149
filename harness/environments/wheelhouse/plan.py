"""What an engine's environment on the target is made of: carried, the host's, or left out.

Resolved by the very question that a build asks (resolving.py), for another interpreter. Where the
target has torch, its torch and what that came with are taken as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import ZipFile

from mmrepro.environments import download, releases
from mmrepro.environments.download import Logins
from mmrepro.environments.resolving import Resolver
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.torch_source import (
    FAMILY,
    PACKAGE_INDEX,
    TorchSource,
    cpu_build,
    torch_source,
    without_cpu_build,
)
from mmrepro.environments.uv import (
    Distribution,
    Progress,
    ReleaseFiles,
    UvFailed,
    explain,
    interpreter_options,
    locked,
    run_uv,
)
from mmrepro.environments.wheelhouse.model import Origin, Package, Target
from mmrepro.environments.wheelhouse.target import fitting, public
from mmrepro.errors import EnvironmentBuildError, UsageError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

OF_TORCH = ("nvidia-", "cuda-")  # begin the names of what torch built with CUDA requires
THE_INDEX = "the package index"

BY_REQUEST = "left out by request"
ONLY_THEIRS = "only what is not carried needs it"


@dataclass(frozen=True)
class Planned:
    """One package. ``file``: what is to be fetched for it, a wheel or (``built``) its source."""

    name: str
    version: str
    origin: Origin
    file: Distribution | None = None
    why: str = ""

    def package(self, file: str = "") -> Package:
        return Package(
            name=self.name, version=self.version, origin=self.origin, file=file, why=self.why
        )


@dataclass(frozen=True)
class Plan:
    """An engine's environment for a target. ``spec``: as asked for, with its key."""

    spec: EnvironmentSpec
    release: releases.Release
    packages: list[Planned]
    cutoff: str
    notes: list[tuple[str, str, str]]

    @property
    def title(self) -> str:
        return f"{self.spec.engine} {self.spec.release}"


def plan(
    spec: EnvironmentSpec,
    target: Target,
    leave_out: Collection[str],
    *,
    spare: Mapping[str, str],
    wheels: Path,
    logins: Logins,
    say: Progress,
) -> Plan:
    """Resolve ``spec`` for ``target``.

    Args:
        spare: why, by name, of what else is left out if it is required at all.
        wheels: a folder for a wheel whose metadata the index does not serve by itself.

    Raises:
        UsageError: a name to be left out is not required; the release wants another Python.
        UnknownRelease, EnvironmentBuildError: as a build has it; or the pins that clash with what
            the target has.
    """
    if spec.python and spec.python != target.python:
        raise UsageError(
            f"{spec.engine} {spec.release} wants Python {spec.python}, not {target.python}.",
            hint=f"--python {spec.python}, if the target has one",
        )
    say(f"looking for {spec.project} {spec.installed}")
    release = releases.find(replace(spec, python=target.python), target.platform)
    metadata = _metadata(release.wheel, wheels, logins, say)
    say(f"resolving {spec.engine} {spec.release} for Python {target.python}, {target.platform}")
    asked = spec
    source = PACKAGE_INDEX
    if "torch" not in target.have:
        source = torch_source(spec, sys.executable, say)
    if spec.project == "torch":
        source, spec, release = cpu_build(source, spec, release, say, platform=target.platform)

    def planned(source: TorchSource) -> Plan:
        with tempfile.TemporaryDirectory(prefix="mmrepro-") as name:
            planner = _Planner(spec, release, target, Path(name), metadata, source)
            return replace(planner.plan(leave_out, spare), spec=asked)

    try:
        return planned(source)
    except EnvironmentBuildError:
        if not source.chosen or spec.project == "torch":
            raise
        return planned(without_cpu_build("lacks what this release asks for", say))


class _Planner:
    def __init__(
        self,
        spec: EnvironmentSpec,
        release: releases.Release,
        target: Target,
        folder: Path,
        metadata: str,
        source: TorchSource,
    ) -> None:
        self.spec = spec
        self.release = release
        self.target = target
        self.folder = folder
        self.title = f"{spec.engine} {spec.release}"
        self.source = source
        self.options = [
            *interpreter_options(target.python, target.platform),
            *("--format", "pylock.toml"),
            *source.options,
        ]
        self.resolver = Resolver.of(
            spec, release, metadata, folder=folder, uv=self._uv, keep_local=source.local
        )

    def plan(self, leave_out: Collection[str], spare: Mapping[str, str]) -> Plan:
        left: dict[str, str] = {canonicalize_name(name): BY_REQUEST for name in leave_out}
        pins = self._pins()
        own = canonicalize_name(self.spec.project)
        if own in pins and pins[own] != self.spec.installed:
            raise self._clash("wants", [f"{own}=={self.spec.installed}"])
        found = self._resolve(pins)
        names = {one.project for one in found}
        if unknown := sorted(left.keys() - names):
            raise UsageError(
                f"{self.title} does not require {', '.join(unknown)}, so it cannot be left out.",
                hint="leave that --leave-out away",
            )
        left = {name: why for name, why in spare.items() if name in names - pins.keys()} | left
        closed = left.keys() | (pins.keys() & names)
        needed = self._needed(found, closed, engine_taken=own in pins)
        packages = [self._planned(one, pins, left, needed) for one in found]
        packages.append(self._engine(own in pins))
        reasons = [*self.spec.reasons, *self.release.reasons]
        reasons += [*self.source.reasons, *self.resolver.reasons]
        return Plan(
            spec=self.spec,
            release=self.release,
            packages=sorted(packages, key=lambda one: one.name),
            cutoff=self.resolver.cutoff.isoformat(),
            notes=[(r.name, r.value, r.why) for r in reasons],
        )

    def _uv(self, arguments: list[str], doing: str) -> str:
        try:
            return run_uv(arguments, cwd=self.folder, extra=self.source.variables)
        except UvFailed as failure:
            raise explain(failure, doing) from failure

    # ------------------------------------------------------------ the target's torch

    def _pins(self) -> dict[str, str]:
        """The torch family as the target has it: public version by name; empty: no torch there."""
        have = self.target.have
        if "torch" not in have:
            return {}
        asked = "".join(f"{n}=={public(have[n])}\n" for n in FAMILY if n in have)
        arguments = ["pip", "compile", "-q", *self.options, "-"]
        try:
            closure = locked(run_uv(arguments, stdin=asked, cwd=self.folder))
        except UvFailed as failure:
            told = explain(failure, "resolving what the target's torch requires")
            raise EnvironmentBuildError(
                f"The package index cannot give {' '.join(asked.split())}, which the target has, "
                f"for Python {self.target.python}.",
                hint="check the list that --have was given",
                detail=told.detail,
            ) from failure
        family = {one.project for one in closure if one.project.startswith(OF_TORCH)}
        return {name: public(have[name]) for name in (*FAMILY, *sorted(family)) if name in have}

    def _resolve(self, pins: dict[str, str]) -> list[ReleaseFiles]:
        if not pins:
            return locked(self.resolver.compile(self.options))
        pinned = self.folder / "target.txt"
        pinned.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        options = [*self.options, "--constraint", pinned.name]
        for name in pins:  # what the target has may be younger than the release
            options += ["--exclude-newer-package", f"{name}=false"]
        try:
            return locked(self.resolver.compile(options))
        except EnvironmentBuildError as error:
            raise self._clash(*self._wanted_otherwise(pins), error.detail) from error

    def _wanted_otherwise(self, pins: dict[str, str]) -> tuple[str, list[str]]:
        """What of the family is wanted in another version: by the engine itself, or by others."""
        wanted: dict[str, str] = {}
        for line in self.resolver.requirements:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            name = canonicalize_name(requirement.name)
            if name in pins and not requirement.specifier.contains(pins[name], prereleases=True):
                wanted[name] = f"{name}{requirement.specifier}"
        if wanted:
            return "wants", list(wanted.values())
        free = locked(self.resolver.compile(self.options))
        return "resolves to", [
            f"{one.project}=={one.version}"
            for one in free
            if pins.get(one.project, one.version) != one.version
        ]

    def _clash(
        self, verb: str, wanted: Sequence[str], detail: list[str] | None = None
    ) -> EnvironmentBuildError:
        names = [canonicalize_name(Requirement(one).name) for one in wanted]
        has = ", ".join(f"{name} {self.target.have[name]}" for name in names)
        torch = self.target.have["torch"]
        return EnvironmentBuildError(
            f"{self.title} {verb} {', '.join(wanted)}; the target has {has}."
            if wanted
            else f"{self.title} cannot be resolved with the target's torch {torch}.",
            hint="another release, or no --have: its own torch is then carried, if that fits "
            "the target's driver",
            detail=detail,
        )

    # ------------------------------------------------------------ what is carried

    def _needed(
        self, found: list[ReleaseFiles], closed: set[str], *, engine_taken: bool
    ) -> set[str]:
        """Names of what is left of ``found`` when ``closed`` ask for nothing themselves."""
        if not closed and not engine_taken:
            return {one.project for one in found}
        (self.folder / "uv.toml").write_text(
            "".join(
                f"[[dependency-metadata]]\nname = {json.dumps(name)}\nrequires-dist = []\n"
                for name in sorted(closed)
            )
        )
        (self.folder / "found.txt").write_text(
            "".join(f"{one.project}=={one.version}\n" for one in found)
        )
        lines = self.spec.requirements if engine_taken else self.resolver.requirements
        (self.folder / "needed.in").write_text("".join(f"{line}\n" for line in lines))
        arguments = ["pip", "compile", "-q", *self.options, "--constraint", "found.txt"]
        if self.resolver.overridden:
            arguments += ["--override", "overrides.in"]
        text = self._uv([*arguments, "needed.in"], f"trimming what {self.title} requires")
        return {one.project for one in locked(text)}

    def _planned(
        self,
        one: ReleaseFiles,
        pins: Collection[str],
        left: Mapping[str, str],
        needed: Collection[str],
    ) -> Planned:
        name, version = one.project, one.version
        have = self.target.have.get(name, "")
        if name in left:
            return Planned(name, version, "left-out", why=left[name])
        if name in pins:
            return Planned(name, have, "host", why="it came with the target's torch")
        if name not in needed:
            return Planned(name, version, "left-out", why=ONLY_THEIRS)
        if public(have) == public(version):
            return Planned(name, have, "host", why="the target has the same version")
        if wheel := fitting(one.wheels, self.target):
            return Planned(name, version, "wheel", wheel)
        if one.sdist is not None:
            return Planned(name, version, "built", one.sdist)
        raise EnvironmentBuildError(
            f"{name} {version}, which {self.title} requires, has no wheel for Python "
            f"{self.target.python} on {self.target.platform}, and no source.",
            hint=f"--leave-out {name}, or another --platform",
        )

    def _engine(self, taken: bool) -> Planned:
        name, version = self.spec.project, self.spec.installed
        if taken:
            return Planned(name, self.target.have[name], "host", why="it is the target's torch")
        return Planned(name, version, "wheel", self.release.wheel)


def _metadata(wheel: Distribution, wheels: Path, logins: Logins, say: Progress) -> str:
    text = download.read_beside(wheel, ".metadata", logins)
    if text is not None:
        return text
    say(f"fetching {wheel.filename}")
    wheels.mkdir(parents=True, exist_ok=True)
    path, _ = download.fetch(wheel, wheels, where=THE_INDEX, logins=logins)
    return metadata_of(path)


def metadata_of(wheel: Path) -> str:
    """METADATA of a wheel on disk."""
    with ZipFile(wheel) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(member).decode("utf-8", "replace")
