"""One build of an environment, step by step."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path

from mmrepro.base.units import size
from mmrepro.environments import commits, loading, releases
from mmrepro.environments.download_size import plan_of, rate_of
from mmrepro.environments.resolving import Resolver
from mmrepro.environments.space import require_space
from mmrepro.environments.spec import (
    LOCK_FILE,
    MANIFEST_FILE,
    USE_FILE,
    EnvironmentSpec,
    Manifest,
    Reason,
    Source,
)
from mmrepro.environments.store import site_packages
from mmrepro.environments.torch_source import (
    PACKAGE_INDEX,
    cpu_build,
    torch_source,
    unused,
    without_cpu_build,
)
from mmrepro.environments.uv import (
    DOWNLOADING,
    Notice,
    Progress,
    UvFailed,
    explain,
    run_uv,
    uv_version,
)
from mmrepro.errors import EnvironmentBuildError, UnloadableWheel
from mmrepro.machine.files import nvidia_driver
from mmrepro.records import Setting, WheelFacts


class Build:
    """One build in ``folder``: each step is a method, in the order of ``run``."""

    source: Source = "index"
    host_packages: Sequence[str] = ()
    """What is not in it, but on the host, whose site-packages it sees."""

    def __init__(self, spec: EnvironmentSpec, folder: Path, say: Progress) -> None:
        self.spec = spec
        self.folder = folder
        self.say = say
        self.venv = folder / "venv"
        self.python = self.venv / "bin" / "python"
        self.reasons: list[Reason] = list(spec.reasons)
        self.of_commit: commits.CommitWheel | None = None
        self.torch = PACKAGE_INDEX
        self.slim = True
        """What torch.toml calls unused is left out."""
        self.changed: list[Reason] = []
        """In the requirements, by the latest resolution."""
        self.rate = 0.0
        """Bytes a second of the engine's wheel."""

    def run(self) -> Manifest:
        started = time.monotonic()
        release = self._find()
        self.reasons += release.reasons
        if self.spec.device == "cuda" and not nvidia_driver():
            raise UnloadableWheel(
                f"The wheel {release.wheel.filename} cannot be loaded on this host: there is no "
                "NVIDIA driver (libcuda.so.1).",
                hint="use --device cpu, or a machine with a GPU",
            )
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        self._make_venv(release)
        release = self._install_wheel(release)
        self._check_link(release)
        packages, cutoff = self._resolve(release)
        self._install_packages(release, cutoff)
        if library := self._missed():
            self.say(Notice(f"torch wants {library} even on a CPU: nothing is left out"))
            self.slim = False
            packages, cutoff = self._resolve(release)
            self._install_packages(release, cutoff)
        self._write_aliases()
        self._check_load(release)
        manifest = Manifest(
            engine=self.spec.engine,
            release=self.spec.release,
            commit=self.spec.commit,
            device=self.spec.device,
            project=self.spec.project,
            wheel=self._wheel_facts(release),
            resolved_until=cutoff,
            packages=packages,
            notes=[
                Setting(name=r.name, value=r.value, why=r.why)
                for r in (*self.reasons, *self.torch.reasons, *self.changed)
            ],
            python=self._python_version(),
            uv=uv_version(),
            created=datetime.now(UTC),
            build_seconds=round(time.monotonic() - started, 3),
            source=self.source,
            host_packages=list(self.host_packages),
        )
        (self.folder / USE_FILE).touch()
        (self.folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1) + "\n")
        return manifest

    def _find(self) -> releases.Release:
        self.say(f"looking for {self.spec.project} {self.spec.installed}")
        if self.spec.commit:
            release, self.of_commit = commits.find(self.spec)
        else:
            release = releases.find(self.spec)
        self.torch = torch_source(self.spec, release.python, self.say)
        if self.spec.project == "torch":
            self.torch, self.spec, release = cpu_build(self.torch, self.spec, release, self.say)
        return release

    def _uv(self, arguments: list[str], doing: str, phases: list[str] | None = None) -> str:
        def say(phase: str) -> None:
            self.say(phase)
            if phases is not None:
                phases.append(phase)

        try:
            # From within the build folder, so that no project of the user's is picked up.
            return run_uv(arguments, cwd=self.folder, extra=self.torch.variables, progress=say)
        except UvFailed as failure:
            raise explain(failure, doing) from failure

    def _make_venv(self, release: releases.Release) -> None:
        # --relocatable: the folder gets its final name when all is whole.
        arguments = ["venv", "--relocatable", "--python", release.python, str(self.venv)]
        self._uv(arguments, f"making a virtual environment for {self.spec.project}")

    def _install_wheel(self, release: releases.Release) -> releases.Release:
        """The engine's wheel alone, by its hash. The release, with the wheel as it is."""
        if self.of_commit is not None:
            return self._install_commit(release, self.of_commit)
        bytes_ = release.wheel.size or 0
        self.say(f"fetching {release.wheel.filename}" + (f" ({size(bytes_)})" if bytes_ else ""))
        line = f"{self.spec.project}=={self.spec.installed} --hash=sha256:{release.wheel.sha256}\n"
        (self.folder / "wheel.lock").write_text(line)
        arguments = ["pip", "install", "--python", str(self.python), "--no-deps"]
        arguments += ["--require-hashes", "-r", "wheel.lock", *self.torch.options]
        phases: list[str] = []
        began = time.monotonic()
        self._uv(arguments, f"installing {self.spec.project} {self.spec.installed}", phases)
        if any(phase.startswith(DOWNLOADING) for phase in phases):
            self.rate = rate_of(bytes_, time.monotonic() - began)
        return release

    def _install_commit(
        self, release: releases.Release, wheel: commits.CommitWheel
    ) -> releases.Release:
        """As :meth:`_install_wheel`, from a file. The release, with the wheel's hash."""
        path, digest = commits.fetch(wheel, self.folder, self.say)
        line = f"{self.spec.project}=={self.spec.installed} --hash=sha256:{digest}\n"
        (self.folder / "wheel.lock").write_text(line)
        arguments = ["pip", "install", "--python", str(self.python), "--no-deps", "--no-index"]
        self._uv([*arguments, f"./{path.name}"], f"installing {path.name}")
        path.unlink()
        return replace(release, wheel=replace(release.wheel, sha256=digest))

    def _check_link(self, release: releases.Release) -> None:
        files = loading.extension_files(site_packages(self.venv), self.spec.extensions)
        modules = [path for paths in files.values() for path in paths]
        if missing := loading.missing_versions(self.python, modules):
            first = missing[0]
            raise self._unloadable(release, str(first), list(map(str, missing)), first.library)

    def _unloadable(
        self, release: releases.Release, why: str, detail: list[str], library: str = ""
    ) -> UnloadableWheel:
        other = self._other_build(release)
        newer = f", or a system with a newer {library}" if library else ""
        step = (
            f"try --release {other}, the same release built again"
            if other
            else ("try another --release")
        )
        return UnloadableWheel(
            f"The wheel {release.wheel.filename} cannot be loaded on this host: {why}.",
            hint=f"{step}{newer}",
            detail=detail,
        )

    def _other_build(self, release: releases.Release) -> str:
        """A later build of the same release, or ``""``."""
        return "" if self.spec.commit else releases.repackaged(self.spec, release.python)

    def _resolve(self, release: releases.Release) -> tuple[list[str], str]:
        """Write the lock file. Gives back its packages and the cutoff that it was made with."""
        try:
            return self._resolve_with(release)
        except EnvironmentBuildError:
            if not self.torch.chosen or self.spec.project == "torch":
                raise
            self.torch = without_cpu_build("lacks what this release asks for", self.say)
            return self._resolve_with(release)

    def _resolve_with(self, release: releases.Release) -> tuple[list[str], str]:
        self.say("resolving as of the release's day")
        resolver = Resolver.of(
            self.spec,
            release,
            self._metadata(),
            folder=self.folder,
            uv=self._uv,
            keep_local=self.torch.local,
            slim=self.slim,
        )
        options = ["--python", str(self.python), "--generate-hashes", "--no-header"]
        text = resolver.compile([*options, "--no-annotate", *self.torch.options])
        self.changed = resolver.reasons
        text += (self.folder / "wheel.lock").read_text()
        (self.folder / LOCK_FILE).write_text(text)
        packages = [line.split()[0] for line in text.splitlines() if line[:1].strip(" #")]
        return sorted(packages), resolver.cutoff.isoformat()

    def _install_packages(self, release: releases.Release, cutoff: str) -> None:
        until = ["--exclude-newer", cutoff, *self.torch.options]
        if self.spec.commit:  # the wheel is there, and on no index that uv knows
            lock = self.folder / "others.lock"
            text = (self.folder / LOCK_FILE).read_text()
            lock.write_text(text.removesuffix((self.folder / "wheel.lock").read_text()))
            install = ["pip", "install", "--no-deps", "-r", lock.name]
        else:
            lock = self.folder / LOCK_FILE
            if not (self.torch.local and self.spec.project == "torch"):  # that has no upload time
                until += ["--exclude-newer-package"]
                until += [f"{self.spec.project}={release.wheel_cutoff.isoformat()}"]
            install = ["pip", "sync", lock.name]
        arguments = [*install, "--python", str(self.python), "--require-hashes", *until]
        doing = f"installing the requirements of {self.spec.project} {self.spec.installed}"
        run = functools.partial(run_uv, cwd=self.folder, extra=self.torch.variables)
        described = ["--python", str(self.python), "--no-deps", *until, lock.name]
        try:
            plan = plan_of(run, arguments, described, self.rate)
        except UvFailed as failure:
            raise explain(failure, doing) from failure
        require_space(self.folder.parent, self.spec.disk_bytes, cold=plan.files > 0)
        self.say(Notice(plan))
        self._uv(arguments, doing)

    def _missed(self) -> str:
        """A library that was left out, and without which torch does not load after all."""
        slim = self.source == "index" and unused(self.spec)
        return loading.missing_library(self.python, "torch") if slim else ""

    def _write_aliases(self) -> None:
        """A ``dist-info`` without code or entry points for each alias."""
        for alias in self.spec.dist_aliases:
            name, _, version = alias.partition("==")
            info = site_packages(self.venv) / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                f"Summary: another name of {self.spec.project}, written by mmrepro\n"
            )
            (info / "INSTALLER").write_text("mmrepro\n")
            listed = "".join(f"{info.name}/{f},,\n" for f in ("METADATA", "INSTALLER", "RECORD"))
            (info / "RECORD").write_text(listed)

    def _check_load(self, release: releases.Release) -> None:
        self.say("loading the engine's compiled code")
        files = loading.extension_files(site_packages(self.venv), self.spec.extensions)
        if failures := loading.load_failures(self.python, files):
            raise self._unloadable(release, failures[0], failures)

    def _metadata(self) -> str:
        wanted = self.spec.project.replace("-", "_").lower()
        for info in site_packages(self.venv).glob("*.dist-info"):
            text = (info / "METADATA").read_text(encoding="utf-8", errors="replace")
            name = HeaderParser().parsestr(text, headersonly=True).get("Name", "")
            if name.replace("-", "_").lower() == wanted:
                return text
        raise EnvironmentBuildError(
            f"The wheel of {self.spec.project} {self.spec.installed} has no metadata.",
            hint="try another release: mmrepro run SCENARIO --release X.Y.Z",
        )

    def _wheel_facts(self, release: releases.Release) -> WheelFacts:
        return WheelFacts(
            project=self.spec.project,
            filename=release.wheel.filename,
            sha256=release.wheel.sha256,
            uploaded=release.wheel.uploaded.isoformat() if release.wheel.uploaded else "",
            origin=self.spec.origin,
        )

    def _python_version(self) -> str:
        for line in (self.venv / "pyvenv.cfg").read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "version_info":
                return value.strip()
        return ""
