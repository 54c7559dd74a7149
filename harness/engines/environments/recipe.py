"""One build of an environment from an index, step by step."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from mmrepro.base.errors import EnvironmentBuildError, UnfitPython, UnloadableWheel
from mmrepro.base.machine import nvidia_driver
from mmrepro.base.records import Setting, WheelFacts
from mmrepro.base.units import size
from mmrepro.engines.environments import index, loading, releases
from mmrepro.engines.environments.resolving import (
    PACKAGE_INDEX,
    Resolver,
    cpu_build,
    stubbed,
    torch_source,
    unused,
    without_cpu_build,
)
from mmrepro.engines.environments.spec import (
    LOCK_FILE,
    MANIFEST_FILE,
    USE_FILE,
    EnvironmentSpec,
    Manifest,
    Reason,
    Source,
)
from mmrepro.engines.environments.store import require_space, site_packages
from mmrepro.engines.environments.stubs import write_stubs
from mmrepro.engines.environments.uv import (
    DOWNLOADING,
    Notice,
    Progress,
    plan_of,
    rate_of,
    run_uv,
    uv_version,
)

TORCH_MODULE = "torch/lib/libtorch_python.so"
"""What ``import torch`` loads first; it links all of torch's other libraries."""


class Build:
    """One build in ``folder``: each step is a method, in the order of ``run``.

    Steps leave their results behind: ``release`` and ``torch`` are what was found,
    ``packages`` and ``cutoff`` the latest resolution, ``changed`` what it changed in
    the requirements."""

    source: Source = "index"
    release: releases.Release

    def __init__(self, spec: EnvironmentSpec, folder: Path, say: Progress) -> None:
        self.spec = spec
        self.folder = folder
        self.say = say
        self.venv = folder / "venv"
        self.python = self.venv / "bin" / "python"
        self.reasons: list[Reason] = list(spec.reasons)
        self.torch = PACKAGE_INDEX
        self.slim = True  # without what torch.toml calls unused
        self.packages: list[str] = []
        self.cutoff = ""
        self.changed: list[Reason] = []
        self.unfit: list[str] = []  # Pythons that were tried in vain
        self.host_packages: list[
            str
        ] = []  # not in it: the host's, whose site-packages it sees
        self.rate = 0.0  # bytes a second of the engine's wheel

    def run(self) -> Manifest:
        started = time.monotonic()
        self._find()
        if self.spec.device == "cuda" and not nvidia_driver():
            raise UnloadableWheel(
                f"The wheel {self.release.wheel.filename} cannot be loaded on this "
                "host: there is no NVIDIA driver (libcuda.so.1).",
                hint="use --device cpu, or a machine with a GPU",
            )
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        self._fill_for_some_python()
        self._check_load()
        manifest = Manifest(
            engine=self.spec.engine,
            release=self.spec.release,
            commit=self.spec.commit,
            device=self.spec.device,
            project=self.spec.project,
            wheel=self._wheel_facts(),
            resolved_until=self.cutoff,
            packages=self.packages,
            notes=[
                Setting(name=r.name, value=r.value, why=r.why)
                for r in (*self.reasons, *self.torch.reasons, *self.changed)
            ],
            python=self._python_version(),
            uv=uv_version(),
            created=datetime.now(UTC),
            build_seconds=round(time.monotonic() - started, 3),
            source=self.source,
            host_packages=self.host_packages,
            **self._lent(),
        )
        (self.folder / USE_FILE).touch()
        (self.folder / MANIFEST_FILE).write_text(
            manifest.model_dump_json(indent=1) + "\n"
        )
        return manifest

    def _fill_for_some_python(self) -> None:
        """For the first one for which every requirement has a wheel, or can be built
        here."""
        first: UnfitPython | None = None
        while True:
            try:
                self._make_venv()
                return self._fill()
            except UnfitPython as error:
                first = first or error
                if not self._another_python(error.message):
                    raise first from None
                why = Reason("python", self.release.python, first.message)
                self.reasons = [*self.spec.reasons, *self.release.reasons, why]

    def _another_python(self, why: str) -> bool:
        """Begin again with the next one that the engine's wheel fits; False: there is
        none."""
        if self.spec.commit or self.release.python not in releases.pythons(self.spec):
            return False
        self.unfit.append(self.release.python)
        try:
            self._find()
        except EnvironmentBuildError:
            return False
        shutil.rmtree(self.venv, ignore_errors=True)
        self.say(Notice(f"{why} Python {self.release.python} is tried"))
        return True

    def _fill(self) -> None:
        """Put into the virtual environment what belongs there."""
        self._install_wheel()
        self._check_link()
        self._resolve()
        self._install_packages()
        stubs = self._write_stubs()
        self._check_torch(stubs)
        self._write_aliases()

    def _lent(self) -> dict[str, Any]:
        """What the manifest says of another release that this one stands on."""
        return {}

    def _find(self) -> None:
        self.say(f"looking for {self.spec.project} {self.spec.installed}")
        found = partial(releases.find, unfit=self.unfit)
        self.release = (index.find_commit if self.spec.commit else found)(self.spec)
        self.reasons += self.release.reasons
        self.torch = torch_source(self.spec, self.release.python, self.say)
        if self.spec.project == "torch":
            self.torch, self.spec, self.release = cpu_build(
                self.torch, self.spec, self.release, self.say
            )

    def _uv(
        self, arguments: list[str], doing: str = "", progress: Progress | None = None
    ) -> str:
        # From within the build folder, so that no project of the user's is picked up.
        return run_uv(
            arguments,
            doing=doing,
            cwd=self.folder,
            extra=self.torch.variables,
            progress=progress or self.say,
        )

    def _make_venv(self) -> None:
        # --relocatable: the folder gets its final name when all is whole.
        arguments = [
            "venv",
            "--relocatable",
            "--python",
            self.release.python,
            str(self.venv),
        ]
        self._uv(arguments, f"making a virtual environment for {self.spec.project}")

    def _install_wheel(self) -> None:
        """Install the engine's wheel alone, by its hash."""
        wheel = self.release.wheel
        install = ["pip", "install", "--python", str(self.python), "--no-deps"]
        doing = f"installing {self.spec.project} {self.spec.installed}"
        about = f" ({size(wheel.size)})" if wheel.size else ""
        self.say(f"fetching {wheel.filename}{about}")
        if self.spec.commit:  # uv gets it as a file: its address may hold a password
            path, digest = index.fetch(wheel, self.folder, where=index.COMMITS)
            self.release = replace(self.release, wheel=replace(wheel, sha256=digest))
            self._write_wheel_lock()
            self._uv([*install, "--no-index", f"./{path.name}"], doing)
            path.unlink()
            return
        self._write_wheel_lock()
        phases: list[str] = []

        def say(phase: str) -> None:
            phases.append(phase)
            self.say(phase)

        began = time.monotonic()
        by_hash = ["--require-hashes", "-r", "wheel.lock"]
        self._uv([*install, *by_hash, *self.torch.options], doing, say)
        if any(phase.startswith(DOWNLOADING) for phase in phases):
            self.rate = rate_of(wheel.size or 0, time.monotonic() - began)

    def _write_wheel_lock(self) -> None:
        # Its own version: the hash of X+cu129 is none of ==X.
        wheel = self.release.wheel
        line = f"{self.spec.project}=={wheel.version} --hash=sha256:{wheel.sha256}\n"
        (self.folder / "wheel.lock").write_text(line)

    def _check_link(self) -> None:
        missing = loading.missing_from_host(self.python, self._extensions())
        if missing:
            raise self._unloadable(list(missing), next(iter(missing.values())))

    def _check_load(self) -> None:
        self.say("loading the engine's compiled code")
        if failures := loading.load_failures(self.python, self._extensions()):
            raise self._unloadable(failures)

    def _extensions(self) -> dict[str, list[Path]]:
        """The compiled modules by the glob that they match."""
        place = site_packages(self.venv)
        return {glob: sorted(place.glob(glob)) for glob in self.spec.extensions}

    def _unloadable(self, detail: list[str], library: str = "") -> UnloadableWheel:
        absent = library or next(
            (m[1] for one in detail if (m := loading.ABSENT.search(one))), ""
        )
        if package := loading.SYSTEM_PACKAGES.get(absent):
            hint = f"apt install {package}"
        else:
            newer = f", or a system with a newer {library}" if library else ""
            other = self._other_build()
            step = f"--release {other}, the same release built again" if other else ""
            hint = f"try {step or 'another --release'}{newer}"
        return UnloadableWheel(
            (
                f"The wheel {self.release.wheel.filename} cannot be loaded on this "
                f"host: {detail[0]}."
            ),
            hint=hint,
            detail=detail,
        )

    def _other_build(self) -> str:
        """A later build of the same release, or ``""``."""
        return (
            ""
            if self.spec.commit
            else releases.repackaged(self.spec, self.release.python)
        )

    def _resolve(self) -> None:
        """Write the lock file."""
        try:
            self._resolve_with_torch()
        except EnvironmentBuildError:
            if not self.torch.chosen or self.spec.project == "torch":
                raise
            self.torch = without_cpu_build("lacks what this release asks for", self.say)
            self._resolve_with_torch()

    def _resolve_with_torch(self) -> None:
        self.say("resolving as of the release's day")
        asked = (self.spec, self.release, self._metadata(), self.folder, self._uv)
        resolver = Resolver(*asked, keep_local=self.torch.local, slim=self.slim)
        options = ["--python", str(self.python), "--generate-hashes", "--no-header"]
        text = resolver.compile([*options, "--no-annotate", *self.torch.options])
        self.changed, self.cutoff = resolver.reasons, resolver.cutoff.isoformat()
        text += (self.folder / "wheel.lock").read_text()
        (self.folder / LOCK_FILE).write_text(text)
        lines = text.splitlines()
        self.packages = sorted(
            line.split()[0] for line in lines if line[:1].strip(" #")
        )

    def _install_packages(self) -> None:
        until = ["--exclude-newer", self.cutoff, *self.torch.options]
        if self.spec.commit:  # the wheel is there, and on no index that uv knows
            lock = self.folder / "others.lock"
            text = (self.folder / LOCK_FILE).read_text()
            lock.write_text(text.removesuffix((self.folder / "wheel.lock").read_text()))
            install = ["pip", "install", "--no-deps", "-r", lock.name]
        else:
            lock = self.folder / LOCK_FILE
            # That has no upload time.
            if not (self.torch.local and self.spec.project == "torch"):
                day = self.release.wheel_cutoff.isoformat()
                until += ["--exclude-newer-package", f"{self.spec.project}={day}"]
            install = ["pip", "sync", lock.name]
        arguments = [*install, "--python", str(self.python), "--require-hashes", *until]
        doing = (
            f"installing the requirements of {self.spec.project} {self.spec.installed}"
        )
        described = ["--python", str(self.python), "--no-deps", *until, lock.name]
        plan = plan_of(self._uv, arguments, described, self.rate)
        require_space(self.folder.parent, self.spec.disk_bytes, cold=plan.files > 0)
        self.say(Notice(plan))
        self._uv(arguments, doing)

    def _write_stubs(self) -> list[Path]:
        """Give torch the names of the libraries that were left out although it links
        them."""
        if not stubbed(self.spec):
            return []
        stubs = write_stubs(site_packages(self.venv) / TORCH_MODULE)
        if names := ", ".join(path.name for path in stubs):
            why = "names without code, for torch to load: a CPU calls none of them"
            self.reasons.append(Reason("stub libraries", names, why))
        return stubs

    def _check_torch(self, stubs: Sequence[Path]) -> None:
        """Where torch does not load without a library that was left out, install it
        after all."""
        if not unused(self.spec):
            return
        if library := loading.missing_library(self.python, "torch"):
            self.say(
                Notice(f"torch wants {library} even on a CPU: nothing is left out")
            )
            self.slim = False
            for path in {*stubs, *(stub.resolve() for stub in stubs)}:
                path.unlink()
            self.reasons = [one for one in self.reasons if one.name != "stub libraries"]
            self._resolve()
            self._install_packages()

    def _write_aliases(self) -> None:
        """Write a ``dist-info`` without code or entry points for each alias."""
        for alias in self.spec.dist_aliases:
            name, _, version = alias.partition("==")
            info = site_packages(self.venv) / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                f"Summary: another name of {self.spec.project}, written by mmrepro\n"
            )
            (info / "INSTALLER").write_text("mmrepro\n")
            listed = "".join(
                f"{info.name}/{f},,\n" for f in ("METADATA", "INSTALLER", "RECORD")
            )
            (info / "RECORD").write_text(listed)

    def _metadata(self) -> str:
        installed = distributions(
            name=self.spec.project, path=[str(site_packages(self.venv))]
        )
        for one in installed:
            if text := one.read_text("METADATA"):
                return text
        raise EnvironmentBuildError(
            f"The wheel of {self.spec.project} {self.spec.installed} has no metadata.",
            hint="use an index whose wheels are whole",
        )

    def _wheel_facts(self) -> WheelFacts:
        wheel = self.release.wheel
        return WheelFacts(
            project=self.spec.project,
            filename=wheel.filename,
            sha256=wheel.sha256,
            uploaded=wheel.uploaded.isoformat() if wheel.uploaded else "",
            origin=self.spec.origin,
        )

    def _python_version(self) -> str:
        for line in (self.venv / "pyvenv.cfg").read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "version_info":
                return value.strip()
        return ""
