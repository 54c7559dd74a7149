"""Which release lends its compiled files and packages to the Python of a source
tree."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from mmrepro.base.errors import (
    EnvironmentBuildError,
    MmreproError,
    UnknownRelease,
    UnloadableWheel,
)
from mmrepro.base.machine import cache_root, device_of, read_file, write_file
from mmrepro.base.records import Record
from mmrepro.engines.environments.index import Listed, releases_of
from mmrepro.engines.environments.spec import SPECS, Environment, EnvironmentSpec
from mmrepro.engines.environments.store import Stored, list_environments, site_packages
from packaging.version import Version
from pydantic import Field, ValidationError

Lender = Callable[[EnvironmentSpec], Environment]
"""Makes or finds the environment of a release."""
_MOST_TRIED = 4
"""Releases whose environment is made for one tree: each is 100 MB to fetch, and two
before and two after it differ from a tree by two months."""
_MAX_BYTES = 4 << 20
_NAME = re.compile(rb"\x00([A-Za-z_]\w{3,60})(?=[\x00(])")
"""A string of a compiled file that is a name, or a schema, which begins with one."""


class _LenderMemory(Record):
    """What trying releases in order has shown on this machine, so that it is done
    once."""

    unloadable: Annotated[
        dict[str, str],
        Field(description="why its wheel cannot be loaded here, by engine and release"),
    ] = {}
    chosen: Annotated[
        dict[str, str],
        Field(description="release by version of the tree and operators it calls"),
    ] = {}

    @classmethod
    def read(cls) -> _LenderMemory:
        try:
            return cls.model_validate_json(read_file(_memory_file(), _MAX_BYTES))
        except (OSError, ValidationError):
            return cls()

    def write(self) -> None:
        # A cache that cannot be written serves as well: it is tried once more.
        with contextlib.suppress(OSError):
            _memory_file().parent.mkdir(parents=True, exist_ok=True)
            write_file(_memory_file(), self.model_dump_json(indent=1) + "\n")


def _memory_file() -> Path:
    return cache_root() / "sources" / "lenders.json"


def nearest_release(
    engine: str,
    version: str,
    device: str = "auto",
    python: Callable[[], Iterable[str]] = lambda: (),
    lender: Lender | None = None,
) -> str:
    """The release of which ``version`` takes the compiled files: itself, else the last
    before it, else the first after it.

    With a ``lender`` it is the first of these, and of the next ones, whose wheel can be
    loaded here and whose operators are those that the tree calls; what was found out is
    remembered. Without one, of the two nearest, where both environments are here, the
    one that the calls fit better.

    Args:
        python: gives the texts of the tree's Python files.
        lender: makes or finds the environment of a release.

    Raises:
        UnknownRelease: no release can lend anything on this machine.
        EnvironmentBuildError: the index cannot be asked, and no environment of the
            engine is here; or no release near by could be made.
    """
    ranked = candidates(engine, version, device)
    here = _here(engine, device)
    wanted = Version(version)
    is_own = Version(ranked[0]).base_version == wanted.base_version
    may_load = lender is None or ranked[0] in here
    if is_own and may_load and not wanted.is_prerelease:
        return ranked[0]

    if lender is None:
        nearest = ranked[:2]
        if not here.keys() >= {*nearest}:
            return ranked[0]
        texts = [*python()]
        misfits = {one: _misfits(texts, engine, here[one].path) for one in nearest}
        return min(nearest, key=misfits.__getitem__)

    return _first_that_fits(engine, version, device, ranked, [*python()], lender)


def candidates(engine: str, version: str, device: str) -> list[str]:
    """Releases that may lend their compiled files to ``version``, nearest first.

    Raises:
        UnknownRelease: there is none for this machine.
        EnvironmentBuildError: the index cannot be asked, and none is here.
    """
    there = [one.version for one in listed(engine, device)]
    if not there:
        raise UnknownRelease(
            (
                f"No release of {engine} lends compiled files to {version} on this "
                "machine."
            ),
            hint="--kernels RELEASE names one",
        )
    base = Version(version).base_version
    # Of several builds of one release the one that is here already: 0.5.6 for
    # 0.5.6.post2.
    here = _here(engine, device)
    same = [one for one in (*there, *here) if Version(one).base_version == base]
    below = [one for one in there if Version(one) < Version(base)]
    above = [one for one in there if Version(one) > Version(base)]

    ranked = same[-1:]
    while below or above:
        if below:
            ranked.append(below.pop())
        if above:
            ranked.append(above.pop(0))
    return list(dict.fromkeys(ranked))


def _first_that_fits(
    engine: str,
    version: str,
    device: str,
    ranked: Sequence[str],
    texts: Sequence[str],
    lender: Lender,
) -> str:
    """The first of ``ranked`` that can be loaded and has what the tree calls; of those
    that were tried the best, where none has all."""
    memory = _LenderMemory.read()
    asked = json.dumps(sorted(calls(texts)))
    key = f"{engine} {device_of(device)} {version.partition('.dev')[0]} "
    key += hashlib.sha256(asked.encode()).hexdigest()[:16]
    here = _here(engine, device)
    if memory.chosen.get(key) in here:
        return memory.chosen[key]

    misfits: dict[str, int] = {}
    refusal: MmreproError | None = None
    for release in ranked[:_MOST_TRIED]:
        name = f"{engine} {device_of(device)} {release}"
        if release not in here and name in memory.unloadable:
            continue
        try:
            environment = lender(SPECS[engine](release, device_of(device)))
        except UnloadableWheel as error:
            memory.unloadable[name] = error.message
            refusal = error
            continue
        except (EnvironmentBuildError, UnknownRelease) as error:
            refusal = error
            continue
        near = [here[one].path for one in ranked[:_MOST_TRIED] if one in here]
        misfits[release] = _misfits(texts, engine, environment.path, near)
        if not misfits[release]:
            break

    if not misfits:
        memory.write()
        raise refusal or EnvironmentBuildError(
            f"None of the releases next to {engine} {version} can be loaded here.",
            hint="--kernels RELEASE names another one",
            detail=sorted(memory.unloadable.values()),
        )
    best = min(misfits, key=misfits.__getitem__)
    memory.chosen[key] = best
    memory.write()
    return best


def listed(engine: str, device: str) -> Sequence[Listed]:
    """Releases that can be installed here, oldest first; without an index those that
    are."""
    wanted = device_of(device)
    try:
        return built_releases(SPECS[engine]("0.0", wanted))
    except EnvironmentBuildError as error:
        if not (here := _here(engine, device)):
            raise error
        return [Listed(Version(one), one, None) for one in here]


def _here(engine: str, device: str) -> dict[str, Stored]:
    """Releases whose whole environment is on this disk, oldest first."""
    wanted = (engine, device_of(device))
    found = {
        one.manifest.release: one
        for one in list_environments(sizes=False)
        if (one.manifest.engine, one.manifest.device) == wanted
        and not (one.manifest.commit or one.manifest.kernels)
    }
    return {name: found[name] for name in sorted(found, key=Version)}


def own_releases(engine: str, device: str) -> Sequence[Listed]:
    """Releases of the engine's own project with the day of each, oldest first, whoever
    repackages them; without an index those that are here."""
    spec = SPECS[engine]("0.0", device_of(device))
    with contextlib.suppress(UnknownRelease, EnvironmentBuildError):
        return releases_of(replace(spec, project=spec.engine), upstream=False)
    return listed(engine, device)


def built_releases(spec: EnvironmentSpec) -> list[Listed]:
    """Releases with a wheel for this machine and device, oldest first."""
    return releases_of(spec, upstream=False)


# ------------------------------------------------------------------ what calls what


def calls(texts: Iterable[str]) -> set[tuple[str, int]]:
    """Names of the compiled operators that Python files call, with the number of
    arguments."""
    found: set[tuple[str, int]] = set()
    for text in texts:
        if "torch.ops._" in text:
            found |= _calls_of(text)
    return found


@lru_cache(maxsize=1024)
def _calls_of(text: str) -> frozenset[tuple[str, int]]:
    """The calls of one file. Two neighbours of a search share nearly all of theirs, and
    to parse those again took most of the time between two commits."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if ast.unparse(node.func).startswith("torch.ops._"):
            found.add((node.func.attr, len(node.args) + len(node.keywords)))
    return frozenset(found)


def _misfits(
    texts: Sequence[str], engine: str, lender: Path, others: Sequence[Path] = ()
) -> int:
    """How many operators of the compiled files in the environment ``lender`` the tree
    calls in another way than that release's own Python, or calls and they lack.

    An operator that is compiled for a GPU alone is in no release's files: it is counted
    only where one of the environments ``others`` has it.
    """
    own, operators = _compiled(lender, engine)
    known = {name for name, _ in own}
    asked = calls(texts)
    changed = set()
    absent = set()
    for name, arguments in asked:
        if name not in operators:
            if name not in known:
                absent.add(name)
        elif name in known and (name, arguments) not in own:
            changed.add(name)

    if absent:
        elsewhere: set[str] = set()
        for other in others:
            elsewhere |= _compiled(other, engine)[1]
        absent &= elsewhere
    return len(changed) + len(absent)


@lru_cache
def _compiled(environment: Path, engine: str) -> tuple[set[tuple[str, int]], set[str]]:
    """What a release's own Python calls, and the names in its compiled files."""
    package = site_packages(environment / "venv") / engine
    own = calls(path.read_text("utf-8", "replace") for path in package.rglob("*.py"))
    return own, _names_in(package, environment.name)


def _names_in(package: Path, environment: str) -> set[str]:
    """Names that stand by themselves in the compiled files of a package, operators
    among them; kept on disk, since 400 MB of vLLM's take 10 s to read through."""
    kept = cache_root() / "sources" / f"names-{environment}.txt"
    with contextlib.suppress(OSError):
        return set(read_file(kept, _MAX_BYTES).decode("ascii").split())

    names: set[str] = set()
    for path in sorted(package.rglob("*.so")):
        found = _NAME.findall(path.read_bytes())
        names |= {name.decode("ascii") for name in found}
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_file(kept, "\n".join(sorted(names)) + "\n")
    return names
