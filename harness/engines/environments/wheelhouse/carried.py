"""Builds an environment out of a wheelhouse: as recipe.py does, without a network."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from mmrepro.base.errors import EnvironmentBuildError, UsageError
from mmrepro.base.machine import child_environment
from mmrepro.base.records import Record, WheelFacts
from mmrepro.engines.environments import loading
from mmrepro.engines.environments.recipe import Build
from mmrepro.engines.environments.releases import Release
from mmrepro.engines.environments.resolving import TorchSource
from mmrepro.engines.environments.spec import LOCK_FILE, EnvironmentSpec, Reason
from mmrepro.engines.environments.store import require_space, site_packages
from mmrepro.engines.environments.uv import Distribution, Progress, UvFailed, run_uv
from mmrepro.engines.environments.wheelhouse import install
from mmrepro.engines.environments.wheelhouse.make import bad
from mmrepro.engines.environments.wheelhouse.model import EngineSet, Wheelhouse
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

PTH = "zz_mmrepro_host.pth"  # .pth files are read by name: all of ours are before it
_TIMEOUT_S = 60.0
_OFFLINE = {"UV_OFFLINE": "1", "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}

# Of an interpreter in a virtual environment this is that environment's own folder, and
# the base's only where it was made to see them. `uv venv --system-site-packages` would
# take the base's alone.
_FACTS = """
import json, site, sys
from importlib.metadata import distributions
have = {}
for one in distributions():
    name = one.metadata["Name"]
    if name:
        have.setdefault(name, one.version)
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "sites": [p for p in site.getsitepackages() if p in sys.path],
    "have": have,
}))
"""


class _Facts(Record):
    """What an interpreter reports of itself."""

    version: str
    sites: list[str]
    have: dict[str, str]


class CarriedBuild(Build):
    """``python``: the interpreter to make it with, whose packages are the host's."""

    source = "wheelhouse"

    def __init__(
        self,
        spec: EnvironmentSpec,
        folder: Path,
        say: Progress,
        *,
        wheelhouse: Path,
        python: str,
        system_site_packages: bool,
    ) -> None:
        super().__init__(spec, folder, say)
        # No index is asked, whatever is set.
        self.torch = TorchSource(variables=_OFFLINE)
        self.place = wheelhouse.absolute()
        self.house, self.document = _read(self.place)
        self.set = _set_of(self.house, spec)
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        wanted = self.house.target.python
        self.interpreter = python or (sys.executable if own == wanted else wanted)
        self.of_host = [one for one in self.set.packages if one.origin == "host"]
        self.host_packages = [f"{one.name}=={one.version}" for one in self.of_host]
        self.sees_host = bool(self.of_host) or system_site_packages

    def _find(self) -> None:
        packages = [one.model_dump() for one in self.set.packages]
        self.files = install.files_of(self.document, packages)
        try:
            install.check_there(self.place, self.document, self.files)
        except install.BadWheelhouse as error:
            raise bad(self.place, error) from error
        self.lock = install.lock_of(packages, self.files)
        self._check_host()
        self.reasons = [
            Reason(n.name, n.value, n.why) for n in self.set.notes
        ] + self._reasons()
        wheel = self.set.wheel
        uploaded = datetime.fromisoformat(wheel.uploaded) if wheel.uploaded else None
        cutoff = datetime.fromisoformat(self.set.cutoff)
        file = Distribution(wheel.filename, uploaded, wheel.sha256)
        self.release = Release(self.interpreter, file, cutoff, cutoff, [])

    def _reasons(self) -> list[Reason]:
        target = self.house.target
        made = (
            f"{self.house.made:%Y-%m-%d} for Python {target.python} on "
            f"{target.platform}"
        )
        reasons = [Reason("wheelhouse", made, "carried here; no network was used")]
        if self.of_host:
            names = ", ".join(f"{one.name} {one.version}" for one in self.of_host)
            why = "the host has them; they are used as they are"
            reasons.append(Reason("packages of the host", names, why))
        left: dict[str, list[str]] = {}
        for one in self.set.packages:
            if one.origin == "left-out":
                left.setdefault(one.why, []).append(f"{one.name} {one.version}")
        reasons += [
            Reason("packages left out", ", ".join(p), why) for why, p in left.items()
        ]
        if self.set.key != self.spec.key():
            why = (
                "the wheelhouse was made by another version of mmrepro, which "
                "asked for other"
            )
            reasons.append(Reason("requirements", self.set.key, f"{why} requirements"))
        return reasons

    def _check_host(self) -> None:
        """Refuse a machine, or a Python, that the wheelhouse is not for."""
        target = self.house.target
        glibc = re.search(r"\d+$", target.platform)
        own = re.fullmatch(r"2\.(\d+)", platform.libc_ver()[1])
        if glibc and own and int(own[1]) < int(glibc[0]):
            raise self._other(f"glibc 2.{glibc[0]}", f"this machine has 2.{own[1]}")
        if platform.machine() not in target.platform:
            raise self._other(target.platform, f"this machine is {platform.machine()}")
        facts = self._facts()
        if facts.version != target.python:
            raise self._other(
                f"Python {target.python}", f"{self.interpreter} is {facts.version}"
            )
        have: dict[str, str] = {canonicalize_name(n): v for n, v in facts.have.items()}
        wrong = [p for p in self.of_host if not _same(have.get(p.name, ""), p.version)]
        if wrong:
            what = ", ".join(f"{p.name} {p.version}" for p in wrong)
            has = ", ".join(f"{p.name} {have.get(p.name, 'not at all')}" for p in wrong)
            hint = "--python PATH of the interpreter that has them"
            raise self._other(what, f"{self.interpreter} has {has}", hint)
        self.sites = facts.sites if self.sees_host else []

    def _other(self, wants: str, has: str, hint: str = "") -> EnvironmentBuildError:
        return EnvironmentBuildError(
            f"This wheelhouse is for a machine with {wants}; {has}.",
            hint=hint or "make one for this machine: mmrepro env wheelhouse --help",
        )

    def _facts(self) -> _Facts:
        try:
            found = run_uv(["python", "find", self.interpreter], extra=_OFFLINE).strip()
            done = subprocess.run(
                [found, "-c", _FACTS],
                env=child_environment(),
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            return _Facts.model_validate_json(done.stdout)
        except (
            UvFailed,
            OSError,
            subprocess.SubprocessError,
            ValidationError,
        ) as error:
            raise self._other(
                f"Python {self.house.target.python}",
                f"{self.interpreter} is none that works here",
                "--python PATH of one that is",
            ) from error

    def _make_venv(self) -> None:
        super()._make_venv()
        if self.sites:
            lines = [f"import site; site.addsitedir({path!r})\n" for path in self.sites]
            (site_packages(self.venv) / PTH).write_text("".join(lines))

    def _install_wheel(self) -> None:
        """Install everything: all of it is here already."""
        wheels = self.folder / "wheels"
        wheels.mkdir()
        self.say(f"joining {len(self.files)} wheels")
        size = sum(file["bytes"] for file in self.files)
        require_space(
            self.folder.parent, max(self.spec.disk_bytes, size) if self.files else 0
        )
        try:
            install.join(self.place, self.files, wheels)
        except install.BadWheelhouse as error:
            raise bad(self.place, error) from error
        (self.folder / "wheel.lock").write_text(self.lock)
        arguments = [
            "pip",
            "install",
            "--python",
            str(self.python),
            "--no-index",
            "--no-deps",
        ]
        arguments += ["--find-links", "wheels", "--require-hashes", "-r", "wheel.lock"]
        self.say("installing")
        self._uv(arguments, f"installing {self.spec.engine} {self.spec.release}")
        shutil.rmtree(wheels)

    def _resolve(self) -> None:
        """Take the resolution that was carried."""
        host = "".join(f"# of the host: {line}\n" for line in self.host_packages)
        (self.folder / LOCK_FILE).write_text(self.lock + host)
        there = [one for one in self.set.packages if one.origin != "left-out"]
        self.packages = sorted(f"{one.name}=={one.version}" for one in there)
        self.cutoff = self.set.cutoff

    def _install_packages(self) -> None:
        """Do nothing: see ``_install_wheel``."""

    def _check_torch(self, stubs: Sequence[Path]) -> None:
        if library := loading.missing_library(self.python, "torch"):
            raise EnvironmentBuildError(
                f"The torch of this environment does not load without {library}, which "
                "neither the wheelhouse nor the host has.",
                hint=(
                    "make the wheelhouse without --leave-out, or for a torch "
                    "that the host has"
                ),
            )

    def _wheel_facts(self) -> WheelFacts:
        return self.set.wheel

    def _other_build(self) -> str:
        return ""  # no index to ask


def _same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _read(folder: Path) -> tuple[Wheelhouse, install.Json]:
    try:
        document = install.read(folder)
        return Wheelhouse.model_validate(document), document
    except install.BadWheelhouse as error:
        raise bad(folder, error) from error
    except ValidationError as error:
        raise EnvironmentBuildError(
            (
                f"The manifest of the wheelhouse {folder} cannot be read by this "
                "version of mmrepro."
            ),
            hint=(
                "make the wheelhouse and mmrepro with the same version: "
                "install.py puts it there"
            ),
            detail=str(error).splitlines()[:4],
        ) from error


def _set_of(house: Wheelhouse, spec: EnvironmentSpec) -> EngineSet:
    wanted = (spec.engine, spec.release, spec.device)
    for one in house.engines:
        if (one.engine, one.release, one.device) == wanted:
            return one
    held = ", ".join(
        f"{one.engine} {one.release} ({one.device})" for one in house.engines
    )
    other = next(iter(house.engines), None)
    raise UsageError(
        f"The wheelhouse holds {held or 'no engine'}; "
        f"not {spec.engine} {spec.release} ({spec.device}).",
        hint=f"for example: mmrepro env create {other.engine} {other.release} "
        f"--device {other.device} --wheelhouse DIR"
        if other
        else f"mmrepro env wheelhouse --engine {spec.engine} --release {spec.release}",
    )
