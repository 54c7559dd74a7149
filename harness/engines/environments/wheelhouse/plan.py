"""What an engine's environment on the target is made of: carried, the host's, or left
out.

Resolved by the very question that a build asks (resolving.py), for another interpreter.
Where the target has torch, its torch and what that came with are taken as they are."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import ZipFile

from mmrepro.base.errors import EnvironmentBuildError, UsageError
from mmrepro.engines.environments import index, releases
from mmrepro.engines.environments.index import Logins
from mmrepro.engines.environments.releases import best_wheel, public_of
from mmrepro.engines.environments.resolving import (
    FAMILY,
    PACKAGE_INDEX,
    Resolver,
    TorchSource,
    cpu_build,
    torch_source,
    without_cpu_build,
)
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.engines.environments.uv import (
    Distribution,
    Progress,
    ReleaseFiles,
    interpreter_options,
    locked,
    run_uv,
)
from mmrepro.engines.environments.wheelhouse.model import Origin, Target
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

# Begin the names of what torch built with CUDA requires.
_OF_TORCH = (
    "nvidia-",
    "cuda-",
)
_BY_REQUEST = "left out by request"
_ONLY_THEIRS = "only what is not carried needs it"


@dataclass(frozen=True)
class PlannedPackage:
    """One package. ``file``: what is fetched for it, a wheel or (``built``) its
    source."""

    name: str
    version: str
    origin: Origin
    file: Distribution | None = None
    why: str = ""

    @property
    def size(self) -> int | None:
        """Bytes to carry; None: the index does not say."""
        return self.file.size if self.file is not None else 0


@dataclass(frozen=True)
class Plan:
    """An engine's environment for a target. ``spec``: as asked for, with its key."""

    spec: EnvironmentSpec
    release: releases.Release
    packages: list[PlannedPackage]
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
        spare: what else is left out if it is required at all: why, by name.
        wheels: a folder for a wheel whose metadata the index does not serve by itself.

    Raises:
        UsageError: a name to be left out is not required; the release wants another
        Python. UnknownRelease, EnvironmentBuildError: as for a build; or the pins that
        clash with what the
            target has.
    """
    if spec.python and spec.python != target.python:
        raise UsageError(
            (
                f"{spec.engine} {spec.release} wants Python {spec.python}, not "
                f"{target.python}."
            ),
            hint=f"--python {spec.python}, if the target has one",
        )
    say(f"looking for {spec.project} {spec.installed}")
    release = releases.find(replace(spec, python=target.python), target.platform)
    metadata = index.metadata_beside(release.wheel, logins)
    if metadata is None:
        say(f"fetching {release.wheel.filename}")
        wheels.mkdir(parents=True, exist_ok=True)
        with ZipFile(index.fetch(release.wheel, wheels, logins=logins)[0]) as archive:
            member = next(
                n for n in archive.namelist() if n.endswith(".dist-info/METADATA")
            )
            metadata = archive.read(member).decode("utf-8", "replace")
    say(
        f"resolving {spec.engine} {spec.release} for Python {target.python}, "
        f"{target.platform}"
    )
    asked = spec
    source = PACKAGE_INDEX
    if "torch" not in target.have:
        source = torch_source(spec, sys.executable, say)
    if spec.project == "torch":
        source, spec, release = cpu_build(
            source, spec, release, say, platform=target.platform
        )

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


@dataclass
class _Planner:
    spec: EnvironmentSpec
    release: releases.Release
    target: Target
    folder: Path
    metadata: str
    source: TorchSource

    def __post_init__(self) -> None:
        self.title = f"{self.spec.engine} {self.spec.release}"
        machine = interpreter_options(self.target.python, self.target.platform)
        self.options = [*machine, "--format", "pylock.toml", *self.source.options]
        self.resolver = Resolver(
            self.spec,
            self.release,
            self.metadata,
            self.folder,
            self._uv,
            self.source.local,
        )

    def plan(self, leave_out: Collection[str], spare: Mapping[str, str]) -> Plan:
        left: dict[str, str] = {
            canonicalize_name(name): _BY_REQUEST for name in leave_out
        }
        pins = self._pins()
        own = canonicalize_name(self.spec.project)
        if own in pins and pins[own] != self.spec.installed:
            raise self._clash("wants", [f"{own}=={self.spec.installed}"])
        found = self._resolve(pins)
        names = {one.project for one in found}
        if unknown := sorted(left.keys() - names):
            raise UsageError(
                (
                    f"{self.title} does not require {', '.join(unknown)}, so it cannot "
                    "be left out."
                ),
                hint="leave that --leave-out away",
            )
        left = {
            name: why for name, why in spare.items() if name in names - pins.keys()
        } | left
        closed = left.keys() | (pins.keys() & names)
        needed = self._needed(found, closed, engine_taken=own in pins)
        packages = [self._planned(one, pins, left, needed) for one in found]
        if own in pins:
            have, why = self.target.have[own], "it is the target's torch"
            packages.append(PlannedPackage(self.spec.project, have, "host", why=why))
        else:
            wheel = self.release.wheel
            packages.append(
                PlannedPackage(self.spec.project, wheel.version, "wheel", wheel)
            )
        reasons = [*self.spec.reasons, *self.release.reasons]
        reasons += [*self.source.reasons, *self.resolver.reasons]
        return Plan(
            spec=self.spec,
            release=self.release,
            packages=sorted(packages, key=lambda one: one.name),
            cutoff=self.resolver.cutoff.isoformat(),
            notes=[(r.name, r.value, r.why) for r in reasons],
        )

    def _uv(self, arguments: list[str], doing: str, stdin: str = "") -> str:
        variables = self.source.variables
        return run_uv(
            arguments, doing=doing, cwd=self.folder, stdin=stdin, extra=variables
        )

    def _written(self, name: str, lines: Collection[str]) -> str:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        return name

    # ------------------------------------------------------------ the target's torch

    def _pins(self) -> dict[str, str]:
        """The torch family as the target has it: public version by name; empty: no
        torch there."""
        have = self.target.have
        if "torch" not in have:
            return {}
        asked = [f"{name}=={public_of(have[name])}" for name in FAMILY if name in have]
        arguments = ["pip", "compile", "-q", *self.options, "-"]
        try:
            text = self._uv(arguments, "resolving the target's torch", "\n".join(asked))
        except EnvironmentBuildError as error:
            raise EnvironmentBuildError(
                f"The package index cannot give {' '.join(asked)}, which the target "
                f"has, for Python {self.target.python}.",
                hint="check the list that --have was given",
                detail=error.detail,
            ) from error
        closure = {one.project for one in locked(text)}
        family = sorted(name for name in closure if name.startswith(_OF_TORCH))
        return {
            name: public_of(have[name]) for name in (*FAMILY, *family) if name in have
        }

    def _resolve(self, pins: dict[str, str]) -> list[ReleaseFiles]:
        if not pins:
            return locked(self.resolver.compile(self.options))
        pinned = self._written(
            "target.txt", [f"{n}=={version}" for n, version in pins.items()]
        )
        options = [*self.options, "--constraint", pinned]
        for name in pins:  # what the target has may be younger than the release
            options += ["--exclude-newer-package", f"{name}=false"]
        try:
            return locked(self.resolver.compile(options))
        except EnvironmentBuildError as error:
            raise self._clash(*self._wanted_otherwise(pins), error.detail) from error

    def _wanted_otherwise(self, pins: dict[str, str]) -> tuple[str, list[str]]:
        """What of the family is wanted in another version: by the engine itself, or by
        others."""
        wanted: dict[str, str] = {}
        for line in self.resolver.requirements:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            name = canonicalize_name(requirement.name)
            if name in pins and not requirement.specifier.contains(
                pins[name], prereleases=True
            ):
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
            hint="another release, or no --have: its own torch is then carried, if "
            "that fits the target's driver",
            detail=detail,
        )

    # ------------------------------------------------------------ what is carried

    def _needed(
        self, found: list[ReleaseFiles], closed: set[str], *, engine_taken: bool
    ) -> set[str]:
        """Names of what is left of ``found`` when ``closed`` ask for nothing
        themselves.

        The same question again, with empty requirements put in for ``closed`` and all
        versions as they were found."""
        if not closed and not engine_taken:
            return {one.project for one in found}
        empty = "[[dependency-metadata]]\nname = {}\nrequires-dist = []"
        self._written(
            "uv.toml", [empty.format(json.dumps(name)) for name in sorted(closed)]
        )
        same = self._written(
            "found.txt", [f"{one.project}=={one.version}" for one in found]
        )
        lines = self.spec.requirements if engine_taken else self.resolver.requirements
        asked = self._written("needed.in", lines)
        arguments = ["pip", "compile", "-q", *self.options, "--constraint", same]
        arguments += [*self.resolver.overrides, asked]
        text = self._uv(arguments, f"trimming what {self.title} requires")
        return {one.project for one in locked(text)}

    def _planned(
        self,
        one: ReleaseFiles,
        pins: Collection[str],
        left: Mapping[str, str],
        needed: Collection[str],
    ) -> PlannedPackage:
        name, version = one.project, one.version
        have = self.target.have.get(name, "")
        if name in left:
            return PlannedPackage(name, version, "left-out", why=left[name])
        if name in pins:
            return PlannedPackage(
                name, have, "host", why="it came with the target's torch"
            )
        if name not in needed:
            return PlannedPackage(name, version, "left-out", why=_ONLY_THEIRS)
        if public_of(have) == public_of(version):
            return PlannedPackage(
                name, have, "host", why="the target has the same version"
            )
        if one.wheels:  # uv names only those that fit
            return PlannedPackage(name, version, "wheel", best_wheel(one.wheels))
        if one.sdist is not None:
            return PlannedPackage(name, version, "built", one.sdist)
        raise EnvironmentBuildError(
            f"{name} {version}, which {self.title} requires, has no wheel for Python "
            f"{self.target.python} on {self.target.platform}, and no source.",
            hint=f"--leave-out {name}, or another --platform",
        )
