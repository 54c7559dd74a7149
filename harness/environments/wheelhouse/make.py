"""Makes a wheelhouse, or adds an engine to one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from mmrepro.base import units
from mmrepro.environments import download
from mmrepro.environments.download import Logins
from mmrepro.environments.listing import logins
from mmrepro.environments.space import require_free
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.environments.uv import DOWNLOADING, Distribution, Progress
from mmrepro.environments.wheelhouse import install, own, pack
from mmrepro.environments.wheelhouse.model import (
    EngineSet,
    HarnessSet,
    Package,
    Target,
    Wheelhouse,
)
from mmrepro.environments.wheelhouse.plan import THE_INDEX, Plan, Planned, plan
from mmrepro.environments.wheelhouse.unneeded import unneeded
from mmrepro.errors import EnvironmentBuildError, UsageError
from mmrepro.machine.files import write_file
from mmrepro.records import Setting, WheelFacts

AT_ONCE = 4  # downloads
FETCHED = ".fetched"
# In each part lie the manifest and install.py; the manifest's size is only known in the end.
RESERVE = 512 * 1024
SMALLEST_PART = 4 * RESERVE


@dataclass(frozen=True)
class Made:
    """``plans``: what was asked for; ``new_parts``: what was written for it."""

    plan: Plan
    harness: list[Planned]
    house: Wheelhouse | None
    new_parts: list[str]


def make(
    spec: EnvironmentSpec,
    target: Target,
    into: Path,
    *,
    leave_out: Collection[str] = (),
    lean: bool = False,
    max_part: int,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Made:
    """A wheelhouse for ``spec`` in ``into``, or that engine added to the one that is there.

    What was fetched for one that was broken off is not fetched again.

    Args:
        lean: without what ``unneeded.toml`` has for it.

    Raises:
        UsageError: ``into`` is for another target; the parts are too small; see ``plan``.
        UnknownRelease, EnvironmentBuildError, NoSpace: as for a build.
    """
    say = progress or (lambda _: None)
    if max_part < SMALLEST_PART:
        raise UsageError(
            f"Parts of {max_part} bytes are too small.",
            hint=f"--max-part {units.exact_size(SMALLEST_PART)}",
        )
    into = into.absolute()
    before = _there(into, target)
    fetched = into / FETCHED
    known = logins()
    spare = unneeded(spec) if lean else {}
    ask = partial(plan, spec, target, leave_out, spare=spare, logins=known, say=say)
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="mmrepro-") as name:
            return Made(ask(wheels=Path(name)), own.own_requirements(target), None, [])
    planned = ask(wheels=fetched)
    harness = own.own_requirements(target)
    fetched.mkdir(parents=True, exist_ok=True)
    held = {file.name: file for file in before.files} if before else {}
    work = _Fetch(fetched, held, known, say)
    work.require_room([*planned.packages, *harness])
    mine = own.own_wheel(fetched)
    digest = download.digest_of(mine)
    if mine.name in held and held[mine.name].sha256 == digest:
        mine.unlink()
    else:
        work.digests[mine.name] = digest
        held.pop(mine.name, None)
    itself = Package(name=own.NAME, version=own.version(), origin="wheel", file=mine.name)
    harness_set = HarnessSet(version=own.version(), packages=[itself, *work.fetch(harness)])
    first = {name: (fetched / name).stat().st_size for name in work.digests}
    packages = work.fetch(planned.packages)
    rest = {name: (fetched / name).stat().st_size for name in work.digests if name not in first}
    say("writing the parts")
    number = len(before.parts) if before else 0
    stretches = pack.arrange([first, rest], max_part - RESERVE)
    parts = {f"part-{number + i:02d}": part for i, part in enumerate(stretches, 1)}
    files = pack.write(parts, fetched, into, work.digests)
    shutil.rmtree(fetched)
    house = Wheelhouse(
        made=datetime.now(UTC),
        target=target,
        max_part=max_part,
        parts=[*(before.parts if before else []), *parts],
        files=[*held.values(), *files],
        harness=harness_set,
        engines=[
            *(e for e in (before.engines if before else []) if e.key != spec.key()),
            _engine_set(planned, packages),
        ],
    )
    for folder in (into, *(into / part for part in parts)):
        write_file(folder / install.MANIFEST, house.model_dump_json(indent=1) + "\n")
        write_file(folder / "install.py", Path(install.__file__).read_bytes())
    _check_sizes(into, parts, max_part)
    say("checking what was written")
    check(into)
    return Made(planned, harness, house, list(parts))


def check(folder: Path) -> Wheelhouse:
    """Every part of a wheelhouse, to the last byte.

    Raises:
        EnvironmentBuildError: one is missing or damaged, in one sentence.
    """
    try:
        document = install.read(folder)
        install.check_there(folder, document, document["files"])
        install.join(folder, document["files"], None)
    except install.BadWheelhouse as error:
        raise bad(folder, error) from error
    return Wheelhouse.model_validate(document)


def bad(folder: Path, error: install.BadWheelhouse) -> EnvironmentBuildError:
    """That error as one of ours."""
    return EnvironmentBuildError(
        f"The wheelhouse cannot be used: {error}.",
        hint=f"carry that part over again, then: python3 {folder / 'install.py'} --check",
    )


def _there(into: Path, target: Target) -> Wheelhouse | None:
    if not (into / install.MANIFEST).exists():
        if into.is_dir() and any(path.name != FETCHED for path in into.iterdir()):
            raise UsageError(f"{into} is not empty, and no wheelhouse.", hint="--into a new folder")
        return None
    house = check(into)
    if house.target != target:
        raise UsageError(
            f"{into} is for Python {house.target.python} on {house.target.platform}"
            f"{' with what it was said to have' if house.target.have else ''}, not for this one.",
            hint="--into a new folder",
        )
    return house


class _Fetch:
    """Fetches what is not held yet. ``digests``: SHA-256 by name of what was fetched."""

    def __init__(self, folder: Path, held: Collection[str], known: Logins, say: Progress) -> None:
        self.folder = folder
        self.held = held
        self.logins = known
        self.say = say
        self.digests: dict[str, str] = {}

    def require_room(self, packages: Iterable[Planned]) -> None:
        # Twice: what is cut lies there whole until its pieces are written.
        require_free(self.folder, 2 * sum(size_of(one) or 0 for one in packages))

    def fetch(self, packages: Sequence[Planned]) -> list[Package]:
        """The packages, with the names of their files."""
        wanted = sum(one.file is not None for one in packages)
        done: list[Package] = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for package in pool.map(self._one, packages):
                done.append(package)
                there = sum(bool(one.file) for one in done)
                self.say(f"{DOWNLOADING}: {there} of {wanted} packages are there")
        return done

    def _one(self, one: Planned) -> Package:
        if one.file is None:
            return one.package()
        if one.origin == "built":
            return self._built(one, one.file)
        if one.file.filename not in self.held:
            self._get(one.file)
        return one.package(one.file.filename)

    def _get(self, file: Distribution) -> Path:
        path, digest = download.fetch(file, self.folder, where=THE_INDEX, logins=self.logins)
        self.digests[file.filename] = digest
        return path

    def _built(self, one: Planned, source: Distribution) -> Package:
        """From source, which only a wheel for any machine can be used of."""
        path, digest = download.fetch(source, self.folder, where=THE_INDEX, logins=self.logins)
        made = own.build_wheel(path, self.folder, f"{one.name} {one.version}")
        path.unlink()
        if not made.name.endswith("-none-any.whl"):
            made.unlink()
            raise EnvironmentBuildError(
                f"{one.name} {one.version} comes as source only, and must be compiled on the "
                "target's own kind of machine.",
                hint=f"--leave-out {one.name}, or build its wheel there",
            )
        if made.name in self.held:
            made.unlink()
        else:
            self.digests[made.name] = download.digest_of(made)
        package = one.package(made.name)
        return package.model_copy(update={"why": f"built here from source {digest[:16]}…"})


def size_of(one: Planned) -> int | None:
    """Bytes to carry; None: the index does not say."""
    return one.file.size if one.file is not None else 0


def _engine_set(planned: Plan, packages: list[Package]) -> EngineSet:
    spec, wheel = planned.spec, planned.release.wheel
    own_package = next(p for p in packages if p.name == spec.project)
    host = own_package.origin == "host"
    return EngineSet(
        engine=spec.engine,
        release=spec.release,
        device=spec.device,
        key=spec.key(),
        wheel=WheelFacts(
            project=spec.project,
            filename=f"{spec.project} {own_package.version}" if host else wheel.filename,
            sha256="" if host else wheel.sha256,
            uploaded=wheel.uploaded.isoformat() if wheel.uploaded and not host else "",
            origin="the host's own installation" if host else spec.origin,
        ),
        cutoff=planned.cutoff,
        packages=packages,
        notes=[Setting(name=name, value=value, why=why) for name, value, why in planned.notes],
    )


def _check_sizes(into: Path, parts: Iterable[str], max_part: int) -> None:
    for part in parts:
        size = sum(path.stat().st_size for path in (into / part).iterdir())
        if size > max_part:
            raise EnvironmentBuildError(
                f"{part} has {size} bytes, more than {max_part}: its manifest is too large.",
                hint="a larger --max-part",
            )
