"""Builds an environment whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from mmrepro.base.errors import EnvironmentBuildError, NoSpace, UnknownRelease
from mmrepro.base.machine import environments_root
from mmrepro.base.records import Setting
from mmrepro.engines.environments.resolving import key_salt
from mmrepro.engines.environments.spec import (
    LOCK_FILE,
    SPECS,
    USE_FILE,
    Environment,
    EnvironmentSpec,
    Manifest,
    TreeLabel,
)
from mmrepro.engines.environments.store import (
    BUILDING,
    dead_folders,
    lock_path,
    read_manifest,
    require_space,
    site_packages,
)
from mmrepro.engines.environments.uv import Progress


def folder_of(spec: EnvironmentSpec) -> Path:
    """Where the environment for ``spec`` is, or would be."""
    return environments_root() / spec.key(key_salt())


def existing(spec: EnvironmentSpec) -> Environment | None:
    """The environment for ``spec`` if it is on disk; nothing is built."""
    folder = folder_of(spec)
    manifest = read_manifest(folder)
    return (
        _environment(spec, folder, manifest, reused=True)
        if manifest is not None
        else None
    )


def doubt(spec: EnvironmentSpec) -> str:
    """Whether there is such a release: on disk, or on the package index.

    Returns why it is not known (the index cannot be asked, or has no wheel for this
    machine); "": it is there, or is no release. Raises UnknownRelease: the index has no
    such release."""
    if spec.tree or spec.commit or existing(spec) is not None:
        return ""
    from mmrepro.engines.environments.releases import find

    try:
        try:
            find(spec)
        except UnknownRelease as unknown:
            if not spec.has_sources:
                raise
            from mmrepro.engines.environments.source import published

            published(spec, unknown)
    except EnvironmentBuildError as error:
        return error.message
    return ""


def needed_bytes(spec: EnvironmentSpec) -> int:
    """What the environment takes unpacked, roughly, with the one that it is to stand
    on."""
    lender = SPECS[spec.engine](spec.kernels, spec.device) if spec.kernels else None
    below = lender.disk_bytes if lender is not None and existing(lender) is None else 0
    return spec.disk_bytes + below


def ensure(
    spec: EnvironmentSpec,
    progress: Progress | None = None,
    *,
    wheelhouse: Path | None = None,
    python: str = "",
    system_site_packages: bool = False,
) -> Environment:
    """Return the environment for ``spec``: the one on disk, or a new one.

    An existing one is taken without asking uv or the network. A second builder of the
    same one waits for the first. Ctrl-C, a crash or ``kill -9`` leave at most a folder
    ``.building-…``, which the next builder or ``prune`` removes.

    Args:
        wheelhouse: a folder to build it from, without a network.
        python: for a wheelhouse: the interpreter to make it with; empty: one of its
            version.
        system_site_packages: for a wheelhouse: use that interpreter's packages after
            its own. Done in any case where the wheelhouse was made for what the host
            has.

    Raises:
        UnknownRelease: the package index has no such release.
        UnloadableWheel: its compiled code cannot be loaded on this host.
        NoSpace: the disk is too full, or became full.
        EnvironmentBuildError: anything else; ``detail`` holds uv's own words.
    """
    say = progress or (lambda _: None)
    if (environment := existing(spec)) is not None:
        return environment
    # Half of this folder: only to build.
    from mmrepro.engines.environments.recipe import (
        Build,
    )

    make: Callable[[EnvironmentSpec, Path, Progress], Build] = Build
    if spec.tree:
        from mmrepro.engines.environments.overlay import Overlay

        make = partial(Overlay, lender=ensure)
    if wheelhouse is not None:
        from mmrepro.engines.environments.wheelhouse.carried import CarriedBuild

        make = partial(
            CarriedBuild,
            wheelhouse=wheelhouse,
            python=python,
            system_site_packages=system_site_packages,
        )
    folder = folder_of(spec)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _builder(folder, say):
            if (manifest := read_manifest(folder)) is not None:
                return _environment(spec, folder, manifest, reused=True)
            for dead in dead_folders(folder):
                shutil.rmtree(dead, ignore_errors=True)
            require_space(folder.parent)
            temporary = folder.with_name(f"{BUILDING}{folder.name}-{os.getpid()}")
            try:
                try:
                    manifest = make(spec, temporary, say).run()
                except UnknownRelease as unknown:
                    if make is not Build or not spec.has_sources:
                        raise
                    from mmrepro.engines.environments.overlay import Overlay

                    manifest = Overlay(spec, temporary, say, ensure, unknown).run()
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _disk_error(error, folder.parent) from error
    return _environment(spec, folder, manifest, reused=False)


@contextmanager
def _builder(folder: Path, say: Progress) -> Iterator[None]:
    """Holds the right to build ``folder``; the kernel takes it back if this process
    dies."""
    path = lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that builds {folder.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _disk_error(error: OSError, root: Path) -> NoSpace | EnvironmentBuildError:
    if error.errno in (ENOSPC, EDQUOT):
        return NoSpace(
            "The disk of the cache folder became full.",
            hint="free some space, or: mmrepro env prune --all",
            detail=[str(error)],
        )
    return EnvironmentBuildError(
        f"The environment cannot be written below {root}: {error.strerror or error}.",
        hint="set MMREPRO_CACHE_DIR to a folder that you can write",
    )


def _environment(
    spec: EnvironmentSpec, folder: Path, manifest: Manifest, *, reused: bool
) -> Environment:
    venv = folder / "venv"
    label = TreeLabel.of(spec.release)
    python_of = label.words(spec.engine) if label else manifest.python_of
    notes = manifest.notes
    if python_of:
        words = "what the Python files are, and what compiled code they run over"
        notes = [Setting(name="source", value=python_of, why=words), *notes]
    try:
        (folder / USE_FILE).touch()  # what `prune --older-than` goes by
        (folder / "state").mkdir(exist_ok=True)
    except OSError:
        pass  # a cache that is read-only to us serves as well
    return Environment(
        path=folder,
        python=venv / "bin" / "python",
        site_packages=site_packages(venv),
        wheel=manifest.wheel,
        resolved_until=manifest.resolved_until,
        packages=manifest.packages,
        lock_file=folder / LOCK_FILE,
        spec=spec,
        python_version=manifest.python,
        notes=notes,
        reused=reused,
        python_of=python_of,
        kernels=manifest.kernels,
        below=folder.with_name(manifest.below) if manifest.below else None,
    )
