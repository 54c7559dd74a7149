"""Which release lends its compiled files and packages to the Python of a source
tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from mmrepro.base.errors import EnvironmentBuildError, UnknownRelease
from mmrepro.base.machine import device_of
from mmrepro.engines.environments.index import Listed, releases_of
from mmrepro.engines.environments.spec import SPECS, EnvironmentSpec
from mmrepro.engines.environments.store import Stored, list_environments, site_packages
from packaging.version import Version


def nearest_release(
    engine: str,
    version: str,
    device: str = "auto",
    python: Callable[[], Iterable[str]] = lambda: (),
) -> str:
    """The release of which ``version`` takes the compiled files: itself, else the last
    before it, else the first after it.

    Between two releases whose environments are both here it is the later one where the
    tree's calls of compiled operators fit that one better.

    Args:
        python: gives the texts of the tree's Python files.

    Raises:
        EnvironmentBuildError: the index cannot be asked, and no environment of the
            engine is here.
    """
    there = [one.version for one in listed(engine, device)]
    base = Version(version).base_version
    # Of several builds of one release the one that is here already: 0.5.6 for
    # 0.5.6.post2.
    here = _here(engine, device)
    same = [one for one in (*there, *here) if Version(one).base_version == base]
    below = [one for one in there if Version(one) < Version(base)]
    above = [one for one in there if Version(one) > Version(base)]
    if not there:
        raise UnknownRelease(
            (
                f"No release of {engine} lends compiled files to {version} on this "
                "machine."
            ),
            hint="--kernels RELEASE names one",
        )
    usual = (same[-1:] or below[-1:] or above[:1])[0]
    if same and not Version(version).is_prerelease:
        return usual
    pair = [*below[-1:], *(same[-1:] or above[:1])]
    if len(pair) < 2 or not {*pair} <= here.keys():
        return usual
    misfits = {one: _misfits([*python()], engine, here[one]) for one in pair}
    return (
        usual
        if misfits[pair[0]] == misfits[pair[1]]
        else min(pair, key=misfits.__getitem__)
    )


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


def built_releases(spec: EnvironmentSpec) -> list[Listed]:
    """Releases with a wheel for this machine and device, oldest first."""
    return releases_of(spec, upstream=False)


# ------------------------------------------------------------------ what calls what


def calls(texts: Iterable[str]) -> set[tuple[str, int]]:
    """Names of the compiled operators that Python files call, with the number of
    arguments."""
    found: set[tuple[str, int]] = set()
    for text in texts:
        if "torch.ops._" not in text:
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            ):
                continue
            if ast.unparse(node.func).startswith("torch.ops._"):
                found.add((node.func.attr, len(node.args) + len(node.keywords)))
    return found


def _misfits(texts: Sequence[str], engine: str, lender: Stored) -> int:
    """How many operators of the lender's compiled files the tree calls in another way
    than the lender's own Python."""
    own, code = _compiled(site_packages(lender.path / "venv") / engine)
    known = {name for name, _ in own}
    asked = {
        call for call in calls(texts) if call[0] in known and call[0].encode() in code
    }
    return len({name for name, _ in asked - own})


@lru_cache(maxsize=4)
def _compiled(package: Path) -> tuple[set[tuple[str, int]], bytes]:
    """What a release's own Python calls, and its compiled files."""
    own = calls(path.read_text("utf-8", "replace") for path in package.rglob("*.py"))
    return own, b"".join(path.read_bytes() for path in sorted(package.rglob("*.so")))
