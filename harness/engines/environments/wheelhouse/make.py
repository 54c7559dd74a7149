"""Makes a wheelhouse, or adds an engine to one."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from mmrepro.base import units
from mmrepro.base.errors import EnvironmentBuildError, UsageError
from mmrepro.base.machine import write_file
from mmrepro.base.records import Setting, WheelFacts
from mmrepro.engines.environments.index import Logins, digest_of, fetch, logins
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.engines.environments.store import require_free
from mmrepro.engines.environments.uv import DOWNLOADING, Progress
from mmrepro.engines.environments.wheelhouse import install, own
from mmrepro.engines.environments.wheelhouse.model import (
    EngineSet,
    HarnessSet,
    Package,
    Piece,
    Target,
    WheelFile,
    Wheelhouse,
    unneeded,
)
from mmrepro.engines.environments.wheelhouse.plan import Plan, PlannedPackage, plan

_AT_ONCE = 4  # downloads
_FETCHED = ".fetched"
_PART = "part-{:02d}"
_CHUNK = 1 << 20
# In each part lie the manifest and install.py; the manifest's size is only known in the
# end.
_RESERVE = 512 * 1024
_SMALLEST_PART = 4 * _RESERVE


@dataclass(frozen=True)
class Made:
    """``plan``: of the engine, None without one; ``new_parts``: what was written for
    it."""

    plan: Plan | None
    harness: list[PlannedPackage]
    house: Wheelhouse | None
    new_parts: list[str]

    def facts(self) -> dict[str, Any]:
        """As JSON can hold them."""
        plan = self.plan
        engine = plan and {
            "engine": plan.spec.engine,
            "release": plan.spec.release,
            "device": plan.spec.device,
            "resolved_until": plan.cutoff,
            "packages": [_facts(one) for one in plan.packages],
        }
        return (engine or {}) | {
            "harness": [_facts(one) for one in self.harness],
            "new_parts": self.new_parts,
            "wheelhouse": self.house.model_dump(mode="json") if self.house else None,
        }


def _facts(one: PlannedPackage) -> dict[str, Any]:
    fields = ("name", "version", "origin", "why")
    return {field: getattr(one, field) for field in fields} | {"bytes": one.size}


def make(
    spec: EnvironmentSpec | None,
    target: Target,
    into: Path,
    *,
    leave_out: Collection[str] = (),
    lean: bool = False,
    max_part: int,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Make a wheelhouse for ``spec`` in ``into``, or add that engine to the one that is
    there.

    What was fetched for a call that broke off is not fetched again.

    Args:
        spec: None: mmrepro alone, for a machine that only observes.
        lean: without what ``unneeded.toml`` has for it.
        max_part: bytes.

    Raises:
        UsageError: ``into`` is for another target; the parts are too small; see
        ``plan``. UnknownRelease, EnvironmentBuildError, NoSpace: as for a build.
    """
    say = progress or (lambda _: None)
    if max_part < _SMALLEST_PART:
        raise UsageError(
            f"Parts of {max_part} bytes are too small.",
            hint=f"--max-part {units.exact_size(_SMALLEST_PART)}",
        )
    into = into.absolute()
    before = _there(into, target)
    fetched = into / _FETCHED
    known = logins()
    spare = unneeded(spec) if lean and spec else {}
    ask = (
        partial(plan, spec, target, leave_out, spare=spare, logins=known, say=say)
        if spec
        else None
    )
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="mmrepro-") as name:
            wanted = ask(wheels=Path(name)) if ask else None
            return Made(wanted, own.own_requirements(target), None, [])
    planned = ask(wheels=fetched) if ask else None
    carried = planned.packages if planned else []
    harness = own.own_requirements(target)
    fetched.mkdir(parents=True, exist_ok=True)
    # Twice: what is cut lies there whole until its pieces are written.
    require_free(fetched, 2 * sum(one.size or 0 for one in [*carried, *harness]))
    held = {file.name: file for file in before.files} if before else {}
    work = _Fetch(fetched, held, known, say)
    itself = work.itself()
    harness_set = HarnessSet(
        version=itself.version, packages=[itself, *work.fetch(harness)]
    )
    packages = work.fetch(carried)
    say("writing the parts")
    old = before.parts if before else []
    parts, files = write_parts(
        fetched, into, work.digests, max_part - _RESERVE, first=len(old) + 1
    )
    shutil.rmtree(fetched)
    known_engines = before.engines if before else []
    engines = [
        *(one for one in known_engines if not spec or one.key != spec.key()),
        *([_engine_set(planned, packages)] if planned else []),
    ]
    # Only parts are carried: one says what is new.
    if not parts and engines != known_engines:
        parts = [_PART.format(len(old) + 1)]
        (into / parts[0]).mkdir()
    new = {file.name for file in files}
    house = Wheelhouse(
        made=datetime.now(UTC),
        target=target,
        max_part=max_part,
        parts=[*old, *parts],
        files=[*(file for name, file in held.items() if name not in new), *files],
        harness=harness_set,
        engines=engines,
    )
    for folder in (into, *(into / part for part in parts)):
        write_file(folder / install.MANIFEST, house.model_dump_json(indent=1) + "\n")
        write_file(folder / "install.py", Path(install.__file__).read_bytes())
    _check_sizes(into, parts, max_part)
    say("checking what was written")
    check(into)
    return Made(planned, harness, house, parts)


def check(folder: Path) -> Wheelhouse:
    """Read every part of a wheelhouse, to the last byte.

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
    """Return that error as one of ours."""
    return EnvironmentBuildError(
        f"The wheelhouse cannot be used: {error}.",
        hint=(
            f"carry that part over again, then: python3 {folder / 'install.py'} --check"
        ),
    )


def _there(into: Path, target: Target) -> Wheelhouse | None:
    if not (into / install.MANIFEST).exists():
        if into.is_dir() and any(path.name != _FETCHED for path in into.iterdir()):
            raise UsageError(
                f"{into} is not empty, and no wheelhouse.", hint="--into a new folder"
            )
        return None
    house = check(into)
    if house.target != target:
        raise UsageError(
            f"{into} is for Python {house.target.python} on "
            f"{house.target.platform}{' with what --have listed' if house.target.have else ''}, "
            "not for this one.",
            hint="--into a new folder",
        )
    return house


class _Fetch:
    """Fetches files that ``held`` lacks. ``digests``: SHA-256 by name of what is new,
    in order."""

    def __init__(
        self, folder: Path, held: Mapping[str, WheelFile], known: Logins, say: Progress
    ) -> None:
        self.folder = folder
        self.held = held
        self.logins = known
        self.say = say
        self.digests: dict[str, str] = {}

    def itself(self) -> Package:
        """mmrepro's own wheel; another one of the same version takes the old one's
        place."""
        made = own.own_wheel(self.folder)
        digest = digest_of(made)
        if made.name in self.held and self.held[made.name].sha256 == digest:
            made.unlink()
        else:
            self.digests[made.name] = digest
        return Package(
            name=own.NAME, version=own.version(), origin="wheel", file=made.name
        )

    def fetch(self, packages: Sequence[PlannedPackage]) -> list[Package]:
        """The packages, with the names of their files."""
        wanted = sum(one.file is not None for one in packages)
        done: list[Package] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for package in pool.map(self._one, packages):
                done.append(package)
                there = sum(bool(one.file) for one in done)
                self.say(f"{DOWNLOADING}: {there} of {wanted} packages are there")
        return done

    def _one(self, one: PlannedPackage) -> Package:
        package = Package(
            name=one.name, version=one.version, origin=one.origin, why=one.why
        )
        if one.file is None:
            return package
        if one.origin != "built":
            name = one.file.filename
            if name not in self.held:
                self.digests[name] = fetch(one.file, self.folder, logins=self.logins)[1]
            return package.model_copy(update={"file": name})
        source, digest = fetch(one.file, self.folder, logins=self.logins)
        made = own.build_wheel(source, self.folder, f"{one.name} {one.version}")
        source.unlink()
        if not made.name.endswith("-none-any.whl"):
            made.unlink()
            raise EnvironmentBuildError(
                f"{one.name} {one.version} comes as source only, and must be compiled "
                "on the target's own kind of machine.",
                hint=f"--leave-out {one.name}, or build its wheel there",
            )
        if made.name in self.held:
            made.unlink()
        else:
            self.digests[made.name] = digest_of(made)
        why = f"built here from source {digest[:16]}…"
        return package.model_copy(update={"file": made.name, "why": why})


def write_parts(
    source: Path,
    into: Path,
    digests: Mapping[str, str],
    capacity: int,
    *,
    first: int = 1,
) -> tuple[list[str], list[WheelFile]]:
    """Write files into parts of at most ``capacity`` bytes, one part filled after the
    other.

    A file that meets the end of a part is cut there. One that is not cut is moved.

    Args:
        source: the folder of the files, which are used up.
        digests: SHA-256 by name of the file, in the order in which they are packed.
        first: number of the first part.
    """
    parts: list[str] = []
    files: list[WheelFile] = []
    room = 0
    for file, digest in digests.items():
        size = left = (source / file).stat().st_size
        pieces: list[Piece] = []
        with (source / file).open("rb") as stream:
            while left or not pieces:
                if not room:
                    parts.append(_PART.format(first + len(parts)))
                    (into / parts[-1]).mkdir()
                    room = capacity
                bytes_ = min(left, room)
                whole = bytes_ == size
                name = file if whole else f"{file}.{len(pieces) + 1:03d}"
                place = into / parts[-1] / name
                own = digest if whole else _copy(stream, bytes_, place)
                if whole:
                    (source / file).rename(place)
                pieces.append(
                    Piece(part=parts[-1], name=name, bytes=bytes_, sha256=own)
                )
                room, left = room - bytes_, left - bytes_
        files.append(WheelFile(name=file, bytes=size, sha256=digest, pieces=pieces))
    return parts, files


def _copy(stream: BinaryIO, count: int, target: Path) -> str:
    """Copy the next ``count`` bytes; return their SHA-256."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while count:
            chunk = stream.read(min(_CHUNK, count))
            digest.update(chunk)
            out.write(chunk)
            count -= len(chunk)
    return digest.hexdigest()


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
            filename=f"{spec.project} {own_package.version}"
            if host
            else wheel.filename,
            sha256="" if host else wheel.sha256,
            uploaded=wheel.uploaded.isoformat() if wheel.uploaded and not host else "",
            origin="the host's own installation" if host else spec.origin,
        ),
        cutoff=planned.cutoff,
        packages=packages,
        notes=[
            Setting(name=name, value=value, why=why)
            for name, value, why in planned.notes
        ],
    )


def _check_sizes(into: Path, parts: Iterable[str], max_part: int) -> None:
    for part in parts:
        size = sum(path.stat().st_size for path in (into / part).iterdir())
        if size > max_part:
            raise EnvironmentBuildError(
                (
                    f"{part} has {size} bytes, more than {max_part}: its manifest is "
                    "too large."
                ),
                hint="a larger --max-part",
            )
