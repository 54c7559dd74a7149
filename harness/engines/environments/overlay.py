"""The Python of one tree over the compiled files and packages of a release.

The environment is a thin one. Its site-packages hold the tree's package, hard links
into the cache of sources, with the release's compiled modules beside them, and the
packages that the tree wants and the release lacks. Behind it comes the release's own
site-packages, by a ``.pth`` file; that environment is not changed, and is kept while
this one stands on it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from mmrepro.base.errors import EnvironmentBuildError, UnknownRelease, UsageError
from mmrepro.base.machine import child_environment
from mmrepro.base.records import WheelFacts
from mmrepro.engines.environments.lending import nearest_release
from mmrepro.engines.environments.recipe import Build
from mmrepro.engines.environments.releases import Release, end_of_day
from mmrepro.engines.environments.resolving import FAMILY, cuda_only
from mmrepro.engines.environments.source import (
    COMPILED,
    Tree,
    blob,
    read_tree,
    release_tree,
)
from mmrepro.engines.environments.spec import (
    LOCK_FILE,
    NEVER,
    SPECS,
    Environment,
    EnvironmentSpec,
    Reason,
    TreeLabel,
    lent,
)
from mmrepro.engines.environments.store import list_environments, site_packages
from mmrepro.engines.environments.uv import Distribution, Notice, Progress
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pathspec import GitIgnoreSpec

LAYER_FILE = "mmrepro_layer.pth"
_COMPILE = """
import py_compile, sys
for line in sys.stdin.read().splitlines():
    source, target = line.split("\\t")
    try:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(source, target, doraise=True, invalidation_mode=mode)
    except (OSError, py_compile.PyCompileError):
        pass
"""
"""Compiles files as they are: what was compiled of a content stays right, wherever it
lies, since an import sets the file's own name."""
_COMPILE_S = 300.0
_SAME_DAYS = 14
"""Between two trees with the same requirements over the same release: the later one
takes what was resolved for the other, which is 3 s of an environment's 7."""
_BESIDE_LOCK = "beside.lock"
_OF_KERNELS = (*FAMILY, "triton", "intel-openmp")
"""What compiled files are linked with: it stays the release's."""


class Overlay(Build):
    """One build; see :class:`Build`.

    Args:
        lender: makes or finds the environment of the release that lends the rest.
        unknown: why a published release has no wheel here: it is then the release's own
            sources that are laid over the nearest wheel.
    """

    tree: Tree
    below: Environment
    python_of: str

    def __init__(
        self,
        spec: EnvironmentSpec,
        folder: Path,
        say: Progress,
        lender: Callable[[EnvironmentSpec, Progress], Environment],
        unknown: UnknownRelease | None = None,
    ) -> None:
        super().__init__(spec, folder, say)
        self._lender = lender
        self.unknown = unknown
        self.left_out: list[str] = []

    def _find(self) -> None:
        """Have the tree, and the release that lends the rest."""
        spec, kernels = self.spec, self.spec.kernels
        if self.unknown is None:
            self.tree = read_tree(spec.tree)
            if self.tree.engine != spec.engine:
                raise UsageError(
                    f"The source tree {spec.tree} is of {self.tree.engine}, not of "
                    f"{spec.engine}."
                )
        else:
            self.tree = release_tree(spec, self.folder.parent, self.unknown)
            kernels = nearest_release(spec.engine, spec.release, spec.device)
            why = (
                f"{self.unknown.message} Its own sources run over those of the nearest "
                "one"
            )
            self.reasons.append(
                Reason("release", f"{lent(spec.engine)} of {kernels}", why)
            )
        label = TreeLabel.of(spec.release)
        words = f"Python of {spec.release}, {lent(spec.engine)} of {kernels}"
        self.python_of = label.words(spec.engine) if label else words
        self.say(Notice(self.python_of))
        self.below = self._lender(SPECS[spec.engine](kernels, spec.device), self.say)
        own = f"{spec.project}=="
        packages = [one for one in self.below.packages if not one.startswith(own)]
        self.packages = sorted([*packages, f"{own}{self.version}"])
        made = (
            datetime.fromisoformat(self.tree.made)
            if self.tree.made
            else datetime.now(UTC)
        )
        day, wheel = end_of_day(made), self.below.wheel
        self.cutoff = day.isoformat()
        lender = Distribution(wheel.filename, None, wheel.sha256)
        self.release = Release(str(self.below.python), lender, day, day, [])

    def _fill(self) -> None:
        self.say("linking the tree's files")
        self._link_package()
        self._link_bytecode()
        self._write_dist_infos()
        self._lay_below()
        self._install_beside()

    def _check_load(self) -> None:
        """The compiled files are links to those of a whole environment, which were
        loaded when that one was made: to load torch for them takes 5 s and says nothing
        new."""

    # ------------------------------------------------------------------ files

    @cached_property
    def site(self) -> Path:
        return site_packages(self.venv)

    def _link_package(self) -> None:
        """The tree's package, with what of the release's is compiled or made by its
        build."""
        package = self.site / self.tree.engine
        for name, sha256 in self.tree.files.items():
            _link(blob(sha256), package / name)
        theirs = self.below.site_packages / self.tree.engine
        made = GitIgnoreSpec.from_lines(self.tree.ignored.splitlines())
        compiled = filled = 0
        for base, folders, names in os.walk(theirs):
            folders[:] = [one for one in folders if one != "__pycache__"]
            for name in (str((Path(base) / one).relative_to(theirs)) for one in names):
                if name in self.tree.files:
                    continue
                is_code = COMPILED.search(name) and not name.endswith((".pyc", ".pyo"))
                placed = [f"{top}{self.tree.engine}/{name}" for top in ("", "python/")]
                if is_code or (
                    name != "_version.py" and any(map(made.match_file, placed))
                ):
                    _link(theirs / name, package / name)
                    compiled, filled = compiled + bool(is_code), filled + (not is_code)
        if not (package / "_version.py").exists() and (theirs / "_version.py").exists():
            (package / "_version.py").write_text(_version_file(self.version), "utf-8")
        kinds = (
            f"{compiled} compiled files"
            + f" and {filled} that a build makes" * bool(filled)
        )
        why = (
            f"taken from {self.below.spec.release}, since they are no part of the "
            "sources"
        )
        self.reasons.append(Reason("files of the package", kinds, why))

    def _link_bytecode(self) -> None:
        """Give the modules that an engine imports their bytecode, by content: a box
        writes none, and each of a server's processes would compile them anew.

        They are those that the release's own environment has bytecode of. A neighbour
        compiles only what has changed.
        """
        import_once(self.below, (self.tree.engine,))
        theirs = self.below.site_packages / self.tree.engine
        major, minor = self.below.python_version.split(".")[:2]
        tag = f"cpython-{major}{minor}"
        pairs = []
        for name, sha256 in self.tree.files.items():
            path = Path(name)
            cached = path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"
            if path.suffix == ".py" and (theirs / cached).is_file():
                source = blob(sha256)
                kept = source.with_name(f"{sha256}.{tag}.pyc")
                pairs.append((source, kept, self.site / self.tree.engine / cached))

        missing = [(source, kept) for source, kept, _ in pairs if not kept.is_file()]
        lines = "".join(f"{source}\t{kept}\n" for source, kept in missing)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if missing:
                self.say(f"compiling {len(missing)} modules")
                subprocess.run(
                    [str(self.python), "-I", "-c", _COMPILE],
                    input=lines.encode(),
                    capture_output=True,
                    timeout=_COMPILE_S,
                    check=False,
                )
            for _, kept, place in pairs:
                if kept.is_file():
                    _link(kept, place)

    @property
    def version(self) -> str:
        return Version(self.spec.release).public

    def _write_dist_infos(self) -> None:
        """The tree under the project's name, which hides the release's, and under the
        aliases."""
        name = self.spec.project
        info = self.site / f"{name.replace('-', '_')}-{self.version}.dist-info"
        info.mkdir()
        requires = "".join(f"Requires-Dist: {line}\n" for line in self._parsed())
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {self.version}\n{requires}",
            "utf-8",
        )
        points = self.tree.entry_points
        if not points:
            own = distributions(name=name, path=[str(self.below.site_packages)])
            points = next(
                (text for d in own if (text := d.read_text("entry_points.txt"))), ""
            )
        (info / "entry_points.txt").write_text(points, "utf-8")
        (info / "INSTALLER").write_text("mmrepro\n")
        self._write_aliases()

    def _lay_below(self) -> None:
        """The release's packages come after those of this environment."""
        below = self.below.path.name
        tail = self.below.site_packages.relative_to(self.below.path)
        parts = ", ".join(repr(part) for part in ("..", "..", below, *tail.parts))
        (self.site / LAYER_FILE).write_text(
            "import os, site, sys; site.addsitedir(os.path.join(sys.prefix, "
            f"{parts}))\n"
        )
        libraries = self.below.path / "venv" / "lib"
        for one in libraries.iterdir():
            # Libraries that packages put beside Python's.
            if not re.match(r"python\d", one.name):
                there = Path("..", "..", "..", below, "venv", "lib", one.name)
                (self.venv / "lib" / one.name).symlink_to(there)

    # ------------------------------------------------------------------ packages

    def _parsed(self) -> Iterator[Requirement]:
        for line in self.tree.requirements:
            try:
                yield Requirement(line)
            except InvalidRequirement:
                self.left_out.append(line.split(" ")[0])

    def _wanted(self) -> list[str]:
        """What the tree asks for and the release lacks or has in another version."""
        packages = _versions(self.below.packages)
        python = self.below.python_version
        short = ".".join(python.split(".")[:2])
        variables = {
            "python_version": short,
            "python_full_version": python,
            "extra": "",
        }
        never = {
            canonicalize_name(o.split(" ;")[0])
            for o in self.spec.overrides
            if NEVER in o
        }
        never |= {canonicalize_name(Requirement(o).name) for o in self.spec.overrides}
        never |= {canonicalize_name(name) for name in (*self.spec.drop, *_OF_KERNELS)}
        cpu = self.spec.device == "cpu"
        wanted = []
        extra = [Requirement(line) for line in self.spec.requirements]
        self.left_out.clear()
        for one in (*self._parsed(), *extra):
            name = canonicalize_name(one.name)
            if one.marker is not None and not one.marker.evaluate(variables):
                continue
            if name in packages and one.specifier.contains(
                packages[name], prereleases=True
            ):
                continue
            gpu = (
                cpu
                and name not in packages
                and any(fnmatch(name, p) for p in cuda_only())
            )
            if name in never or one.url or gpu:
                self.left_out.append(f"{one.name}{one.specifier}")
            else:
                wanted.append(str(_replace_marker(one)))
        return wanted

    def _install_beside(self) -> None:
        wanted = self._wanted()
        if self.left_out:
            why = (
                f"for a GPU, or what the compiled files of {self.below.spec.release} "
                "go with"
            )
            self.reasons.append(
                Reason("left out", ", ".join(dict.fromkeys(self.left_out)), why)
            )
        lock = self.below.lock_file.read_text("utf-8")
        if wanted:
            beside = self._known_beside(wanted)
            if beside is None:
                self.say(f"resolving {len(wanted)} requirements of the tree")
                beside = self._resolved(wanted)
            lock = f"{beside}{lock}"
            if beside:
                (self.folder / _BESIDE_LOCK).write_text(beside, "utf-8")
                install = ["pip", "install", "--python", str(self.python), "--no-deps"]
                until = ["--exclude-newer", self.cutoff]
                doing = (
                    f"installing what {self.spec.engine} {self.version} wants besides"
                )
                self._uv(
                    [*install, "--require-hashes", *until, "-r", _BESIDE_LOCK], doing
                )
                added = [
                    line.split()[0]
                    for line in beside.splitlines()
                    if line[:1].strip(" #")
                ]
                names = {one.partition("==")[0] for one in added}
                rest = [p for p in self.packages if p.partition("==")[0] not in names]
                self.packages = sorted([*rest, *added])
                why = (
                    f"the tree asks for it, and {self.below.spec.release} has none "
                    "that fits"
                )
                self.reasons.append(Reason("installed beside", ", ".join(added), why))
        head = f"# Python: tree {self.tree.digest}; the rest: {self.below.path.name}\n"
        (self.folder / LOCK_FILE).write_text(head + lock, "utf-8")

    def _known_beside(self, wanted: list[str]) -> str | None:
        """What was resolved for a neighbour: a tree with the same requirements, of the
        same fortnight and not of later, over the same environment; None: there is none.
        """
        asked = "\n".join(wanted) + "\n"
        cutoff = datetime.fromisoformat(self.cutoff)
        for stored in list_environments(sizes=False):
            facts = stored.manifest
            if facts.below != self.below.path.name or facts.device != self.spec.device:
                continue
            age = cutoff - datetime.fromisoformat(facts.resolved_until)
            if not timedelta() <= age <= timedelta(days=_SAME_DAYS):
                continue
            lock = stored.path / _BESIDE_LOCK
            with contextlib.suppress(OSError):
                if (stored.path / "requirements.in").read_text("utf-8") == asked:
                    text = lock.read_text("utf-8") if lock.exists() else ""
                    why = f"as resolved for {facts.release}, which asks for the same"
                    until = facts.resolved_until
                    self.reasons.append(Reason("resolution date", until, why))
                    return text
        return None

    def _resolved(self, wanted: list[str]) -> str:
        """Locked requirements that are to be installed beside: those that ``below`` has
        in that very version are left out. Its other packages stay as they are where
        that can be."""
        has = _versions(self.below.packages)
        names = {canonicalize_name(Requirement(line).name) for line in wanted}
        kernels = {
            n: v for n, v in has.items() if n in _OF_KERNELS or n.startswith("nvidia-")
        }
        others = {n: v for n, v in has.items() if n not in names}
        (self.folder / "requirements.in").write_text("\n".join(wanted) + "\n", "utf-8")
        overrides = "".join(f"{one}\n" for one in self.spec.overrides)
        (self.folder / "overrides.in").write_text(overrides, "utf-8")
        compile_ = [
            "pip",
            "compile",
            "-q",
            "--python",
            str(self.python),
            "--generate-hashes",
        ]
        compile_ += ["--no-header", "--no-annotate", "--exclude-newer", self.cutoff]
        compile_ += ["--override", "overrides.in"] if overrides else []
        compile_ += ["--constraint", "constraints.in", "requirements.in"]
        doing = f"resolving the requirements of {self.spec.engine} {self.version}"
        text = ""
        for kept in (others, kernels):
            pins = "".join(f"{name}=={version}\n" for name, version in kept.items())
            (self.folder / "constraints.in").write_text(pins, "utf-8")
            try:
                text = self._uv(compile_, doing)
                break
            except EnvironmentBuildError:
                if kept is kernels:
                    raise
        found = ""
        for entry in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
            match = re.match(r"([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", entry)
            if match and not _same(has.get(canonicalize_name(match[1]), ""), match[2]):
                found += entry
        return found

    # ------------------------------------------------------------------ what is written

    def _wheel_facts(self) -> WheelFacts:
        wheel = self.below.wheel
        origin = f"{self.python_of}; that wheel: {wheel.origin}"
        return wheel.model_copy(update={"origin": origin})

    def _lent(self) -> dict[str, Any]:
        said = "" if self.spec.tree else self.python_of  # of a tree each label says it
        release, below = self.below.spec.release, self.below.path.name
        return {"kernels": release, "below": below, "python_of": said}


def import_once(environment: Environment, modules: Sequence[str]) -> None:
    """Import packages of a release's own environment, once, so that Python keeps their
    bytecode there: what runs in a box writes none, and to compile torch and an engine
    takes longer than most runs."""
    kept = environment.state_dir / f".imported-{'-'.join(modules)}"
    if kept.exists():
        return
    words = "".join(f"import {name}\n" for name in modules)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        environment.state_dir.mkdir(exist_ok=True)
        subprocess.run(
            [str(environment.python), "-c", words],
            env=child_environment(),
            cwd=environment.state_dir,
            capture_output=True,
            timeout=_COMPILE_S,
            check=False,
        )
        # One that fails, for want of a stand-in say, has compiled what it came to.
        kept.touch()


def _replace_marker(requirement: Requirement) -> Requirement:
    """The requirement without its marker, which holds."""
    requirement.marker = None
    return requirement


def _versions(packages: list[str]) -> dict[str, str]:
    """Version by name, local labels apart, of ``name==version`` lines."""
    found: dict[str, str] = {}
    for line in packages:
        name, _, version = line.partition("==")
        try:
            found[canonicalize_name(name.partition("[")[0])] = Version(version).public
        except InvalidVersion:
            continue
    return found


def _same(one: str, other: str) -> bool:
    try:
        return Version(one).public == Version(other).public
    except InvalidVersion:
        return False


def _link(file: Path, at: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, at)
    except OSError:  # another file system, or one without links
        shutil.copy2(file, at)


def _version_file(version: str) -> str:
    """As setuptools_scm writes it."""
    parts = re.split(r"[.+]", version)
    numbers = ", ".join(part if part.isdigit() else repr(part) for part in parts)
    return (
        f"__version__ = version = {version!r}\n"
        f"__version_tuple__ = version_tuple = ({numbers},)\n"
        "__commit_id__ = commit_id = None\n"
    )
