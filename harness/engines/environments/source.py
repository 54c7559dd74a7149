"""A source tree as a release: its Python files kept by their content, and what it is
called.

``resolve("~/vllm@abc123")`` reads a git work tree (dirty or not), one revision of it,
an unpacked sdist or wheel, or such an archive. It writes nothing into the tree. What it
returns has a ``release`` that every command takes:
``0.33.1.dev4+gabc123def.d3.src1a2b3c4d5e6f.on.0.33.0``. The environment of such a
release is made by overlay.py."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from mmrepro.base.errors import UnknownRelease, UsageError
from mmrepro.base.machine import Device, cache_root, device_of, read_file, write_file
from mmrepro.base.records import Record
from mmrepro.base.tar import tarfile
from mmrepro.engines.environments.index import fetch, logins
from mmrepro.engines.environments.lending import (
    Lender,
    listed,
    nearest_release,
    own_releases,
)
from mmrepro.engines.environments.releases import best_wheel, pythons, requirements_of
from mmrepro.engines.environments.spec import SPECS, EnvironmentSpec, TreeLabel
from mmrepro.engines.environments.uv import (
    Distribution,
    UvFailed,
    explain,
    release_files,
)
from packaging.version import InvalidVersion, Version
from pydantic import Field, ValidationError

PLACES = ("", "python/", "src/")
"""Where a tree keeps the engine's package."""
COMPILED = re.compile(r"\.so(\.\d+)*$|\.pyd$|\.py[co]$|(^|/)__pycache__/")
"""Files of a package that are not its source."""
_REQUIREMENT_FILES = (
    "requirements/{0}.txt",
    "requirements-{0}.txt",
    "requirements/runtime_{0}.txt",
)
_LAST_REQUIREMENT_FILES = ("requirements/runtime.txt", "requirements.txt")
_MAX_BYTES = 256 << 20
_MAX_ARCHIVE = 4 << 30
_BESIDE = re.compile(
    r"(PKG-INFO|\.gitignore|pyproject\.toml|requirements[\w./-]*\.txt|[\w.-]+\.(dist"
    r"|egg)-info/"
    r"(METADATA|PKG-INFO|entry_points\.txt))$"
)
"""Files beside the package that are read: metadata, requirements, what the build
makes."""


_PLAUSIBLE_DAYS = 60
"""Between a tag and a commit after it: the engines' releases come every two to six
weeks, so an older tag is one after which the clone has no more of them."""
_PLAUSIBLE_COMMITS = 3000
"""After a tag: vLLM's busiest two months."""
_BRANCH_COMMITS = 100
"""After a tag that are a branch of that release, however old the tag is."""

_SHA256_DIGITS = 64

_PUBLISHED = re.compile(rf"({'|'.join(SPECS)})==([^,*]+)")


class Tree(Record):
    """The Python of an engine by content: ``sources/<digest>.json``, files in
    ``sources/blobs``."""

    engine: str
    digest: str
    version: str
    version_from: Annotated[
        str, Field(description="why the version is known to within a release only")
    ] = ""
    rev: Annotated[str, Field(description="git commit; empty: not from git")] = ""
    dirty: Annotated[
        list[str], Field(description="files that differ from that commit")
    ] = []
    came_as: Annotated[str, Field(description="git, sdist, wheel or folder")]
    requirements: list[str] = []
    requirements_from: Annotated[
        str, Field(description="file of the tree; empty: none")
    ] = ""
    entry_points: str = ""
    ignored: Annotated[
        str, Field(description="its .gitignore: what the build makes")
    ] = ""
    made: Annotated[str, Field(description="when, RFC 3339; empty: unknown")] = ""
    files: Annotated[
        dict[str, str], Field(description="SHA-256 by name in the package")
    ]


@dataclass(frozen=True)
class Source:
    """A tree that is to be run, and the release whose compiled files it runs over."""

    tree: Tree
    kernels: str
    """That release; of SGLang and LMDeploy the one whose requirements are taken."""

    @property
    def label(self) -> TreeLabel:
        tree = self.tree
        return TreeLabel(
            tree.version, tree.digest, self.kernels, tree.rev[:9], len(tree.dirty)
        )

    @property
    def release(self) -> str:
        """What ``--release`` takes for it, from now on without the tree."""
        return str(self.label)

    @property
    def words(self) -> str:
        return self.label.words(self.tree.engine)


def _sources_root() -> Path:
    return cache_root() / "sources"


def blob(sha256: str) -> Path:
    return _sources_root() / "blobs" / sha256[:2] / sha256


def read_tree(digest: str) -> Tree:
    """The tree of that digest, from this machine's cache.

    Raises:
        UnknownRelease: it was never read here, or is not whole.
    """
    try:
        tree = Tree.model_validate_json(
            read_file(_sources_root() / f"{digest}.json", _MAX_BYTES)
        )
    except (OSError, ValidationError):
        tree = None
    if tree is None or not all(
        blob(sha256).is_file() for sha256 in tree.files.values()
    ):
        raise UnknownRelease(
            f"The source tree {digest} is not in this cache.",
            hint="name the tree again: --source DIR[@REV]",
        )
    return tree


# ------------------------------------------------------------------ reading a tree


@dataclass
class _Files:
    """The files of a tree by their names below it, whatever holds them."""

    names: list[str]
    read: Callable[[str], bytes]
    rev: str = ""
    dirty: list[str] = field(default_factory=list)
    describe: str = ""
    """The nearest tag by git, how far it is, which commit; "": there is no tag."""
    made: datetime | None = None
    """When the commit was made."""
    tagged: datetime | None = None
    """When the commit of that tag was made."""
    git_names: dict[str, str] = field(default_factory=dict)
    """By file, what git calls its content."""
    known: dict[str, str] = field(default_factory=dict)
    """SHA-256 by file, of those whose content the cache of sources has."""

    def text(self, name: str) -> str:
        """A small file; "": there is none."""
        return self.read(name).decode("utf-8", "replace") if name in self.names else ""

    def matching(self, pattern: str) -> list[str]:
        return sorted(name for name in self.names if re.fullmatch(pattern, name))


def resolve(
    text: str,
    *,
    kernels: str = "",
    device: str = "auto",
    engine: str = "",
    version: str = "",
    lender: Lender | None = None,
) -> Source:
    """Read the tree that ``text`` names, and keep its files in the cache.

    Args:
        text: ``DIR``, ``DIR@REV``, the file of an sdist or a wheel, or
            ``vllm==0.33.0``.
        kernels: the release whose compiled files it is to run over; "": the nearest
            one.
        engine: which one it has to be; "": whichever it is.
        version: of the tree, where it does not say it; the release that it becomes.
        lender: makes or finds the environment of a release: releases are tried in
            order until one can be loaded and has the operators that the tree calls.

    Raises:
        UsageError: it is no tree of an engine, or of another one; or git refuses; or it
            is older than what any release could lend it.
        EnvironmentBuildError: the index has to be asked which release is the nearest,
            and cannot.
    """
    if match := _PUBLISHED.fullmatch(text):
        spec = SPECS[match[1]](match[2], device_of(device))
        if engine not in ("", match[1]):
            raise UsageError(f"{text} is not a release of {engine}.")
        _sources_root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_sources_root()) as folder:
            tree = release_tree(spec, Path(folder))
    else:
        with _opened(text) as files:
            tree = _tree_of(files, text, device_of(device), engine, version)
            made = files.made
    if not tree.version:
        last = _by_date(tree.engine, made, device, text, kernels)
        tree = tree.model_copy(update={"version": _after(Version(last))})
    nearest = kernels
    if not nearest:
        if tree.came_as == "git":
            _refuse_old(tree, device)
        read = _python_of(tree)
        nearest = nearest_release(tree.engine, tree.version, device, read, lender)
    _keep(tree)
    return Source(tree, Version(nearest).public)


@contextmanager
def _opened(text: str) -> Iterator[_Files]:
    place, rev = Path(text).expanduser(), ""
    if not place.exists() and "@" in text:
        before, _, rev = text.rpartition("@")
        place = Path(before).expanduser()
    if place.is_file() and not rev:
        with tempfile.TemporaryDirectory() as unpacked:
            _unpack(place, Path(unpacked))
            inside = [one for one in Path(unpacked).iterdir() if one.is_dir()]
            yield _folder(inside[0] if len(inside) == 1 else Path(unpacked))
        return
    if not place.is_dir():
        raise UsageError(
            f"There is no folder {place}.",
            hint="--source DIR, or --source DIR@REV of a git clone",
        )
    if rev:
        yield _commit(place, rev)
    elif _tracked(place):
        yield _work_tree(place)
    else:
        yield _folder(place)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack what is no compiled code: of a CUDA wheel that is a tenth."""
    if (size := archive.stat().st_size) > _MAX_ARCHIVE:
        raise UsageError(f"{archive} has {size} bytes: no sdist or wheel is as large.")
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                for name in wheel.namelist():
                    if not COMPILED.search(name):
                        wheel.extract(name, folder)
            return
        with tarfile.open(archive) as sdist:
            plain = (one for one in sdist if not COMPILED.search(one.name))
            sdist.extractall(folder, members=plain, filter="data")
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UsageError(f"{archive} cannot be unpacked: {error}.") from error


def _folder(place: Path) -> _Files:
    names: list[str] = []
    for base, folders, found in os.walk(place):
        folders[:] = [
            one for one in folders if one not in (".git", "__pycache__", ".venv")
        ]
        below = Path(base).relative_to(place)
        names += [str(PurePosixPath(below / name)) for name in found]
    return _Files(names, lambda name: _content(place, name))


def _content(place: Path, name: str) -> bytes:
    """The file ``name`` in ``place``; a link that leads out of the tree counts as
    empty."""
    path = place / name
    if path.is_symlink() and not path.resolve().is_relative_to(place.resolve()):
        return b""
    return read_file(path, _MAX_BYTES)


def git(place: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Ask git; nothing is written, no program of the tree's settings is run.

    Raises:
        UsageError: git refuses, in its own words.
    """
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.quotepath=false")
    variables = {
        **os.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            ["git", *quiet, "-C", str(place), *arguments],  # noqa: S607
            input=stdin,
            env=variables,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"git cannot be run: {error.strerror}.", hint="install git"
        ) from error
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = (words[0] if words else f"it ended with {done.returncode}").rstrip(".")
        raise UsageError(
            f"git cannot read {place}: {said}.", hint=f"git -C {place} status"
        )
    return done.stdout


def engine_of_clone(place: Path, rev: str = "HEAD") -> str:
    """Which engine a git clone is of.

    Raises:
        UsageError: it is no clone of one, or git refuses.
    """
    for engine in SPECS:
        names = [f"{folder}{engine}/__init__.py" for folder in PLACES]
        if git(place, "ls-tree", rev, "--", *names):
            return engine
    raise UsageError(
        f"{place} is no clone of an engine.", hint=f"one of {', '.join(SPECS)}"
    )


def _names(listed: bytes) -> list[str]:
    return [os.fsdecode(one) for one in listed.split(b"\0") if one]


def _tracked(place: Path) -> bool:
    """Whether git knows ``place``: an unpacked sdist may lie in somebody's checkout."""
    try:
        tracked = _names(git(place, "ls-files", "-z", "--", "."))
    except UsageError:
        if (place / ".git").exists():
            raise
        return False
    return any(name.endswith(".py") for name in tracked)


def _work_tree(place: Path) -> _Files:
    listed = _names(git(place, "ls-files", "-coz", "--exclude-standard", "--", "."))
    names = [name for name in dict.fromkeys(listed) if (place / name).is_file()]
    try:
        files = _commit_facts(place, "HEAD")
    except UsageError:  # no commit yet
        return _Files(names, lambda name: _content(place, name))
    files.names, files.read = names, lambda name: _content(place, name)
    files.dirty = _dirty(place)
    return files


def _dirty(place: Path) -> list[str]:
    """Return the names of files that differ from HEAD or are new, sorted.

    `git diff` would do for the first, but it refreshes the index and writes it, in
    somebody else's clone and whatever GIT_OPTIONAL_LOCKS says. `git status` obeys.
    """
    # Its names are relative to the top of the repository, not to the folder.
    below = os.fsdecode(git(place, "rev-parse", "--show-prefix")).removesuffix("\n")
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all")
    entries = _names(git(place, "status", *options, "--", "."))
    # An entry is two letters of state, a space and the name.
    return sorted({entry[3:].removeprefix(below) for entry in entries})


def _commit(place: Path, rev: str) -> _Files:
    """One revision, read from git's objects: neither the work tree nor the index is
    touched."""
    files = _commit_facts(place, rev)
    blobs: dict[str, str] = {}
    for line in _names(git(place, "ls-tree", "-rz", files.rev, "--", ".")):
        about, _, name = line.partition("\t")
        mode, kind, sha = about.split()
        if kind == "blob" and mode != "120000":
            blobs[name] = sha
    wanted = {name: sha for name, sha in blobs.items() if not COMPILED.search(name)}
    packages = tuple(f"{top}{engine}/" for top in PLACES for engine in SPECS)
    wanted = {
        n: s
        for n, s in wanted.items()
        if n.startswith(packages) or _BESIDE.fullmatch(n)
    }
    # Two neighbours differ in a few files: only those are read from git.
    cached = _read_git_blobs()
    for name, sha in wanted.items():
        if sha in cached:
            files.known[name] = cached[sha]

    new = [name for name in wanted if name not in files.known]
    asked = "".join(f"{wanted[name]}\n" for name in new).encode()
    answer, contents, at = git(place, "cat-file", "--batch", stdin=asked), {}, 0
    for name in new:
        end = answer.index(b"\n", at)
        size = int(answer[at:end].split()[2])
        contents[name] = answer[end + 1 : end + 1 + size]
        at = end + size + 2

    def read(name: str) -> bytes:
        if name in contents:
            return contents[name]
        return blob(files.known[name]).read_bytes()

    files.names, files.read, files.git_names = [*wanted], read, wanted
    return files


def _commit_facts(place: Path, rev: str) -> _Files:
    """What a commit says of itself, without its files."""
    asked = git(place, "rev-parse", "--verify", "--end-of-options", f"{rev}^{{commit}}")
    sha = asked.decode().strip()
    made = git(place, "show", "-s", "--format=%cI", sha).decode().strip()
    try:
        described = git(
            place, "describe", "--tags", "--long", "--match", "v[0-9]*", sha
        )
    except UsageError:  # it has no tag
        described = b""
    facts = _Files([], lambda name: b"", sha, describe=described.decode().strip())
    facts.made = datetime.fromisoformat(made)
    tag = facts.describe.rsplit("-", 2)[0]
    if tag:
        tagged = git(place, "show", "-s", "--format=%cI", f"{tag}^{{commit}}", "--")
        facts.tagged = datetime.fromisoformat(tagged.decode().strip())
    return facts


# ------------------------------------------------------------------ what a tree is


def _tree_of(
    files: _Files, text: str, device: Device, engine: str, version: str
) -> Tree:
    there = [
        (name, place)
        for name in SPECS
        for place in PLACES
        if f"{place}{name}/__init__.py" in files.names
    ]
    found = [pair for pair in there if engine in ("", pair[0])]
    if not found:
        has = (
            f"is a tree of {there[0][0]}" if there else "holds no package of an engine"
        )
        wanted = f"{engine}/__init__.py" if engine else "vllm/, sglang/ or lmdeploy/"
        raise UsageError(
            f"{text} {has}.", hint=f"name the top folder of a tree with {wanted}"
        )
    name, place = found[0]
    package = f"{place}{name}/"
    own = sorted(
        n for n in files.names if n.startswith(package) and not COMPILED.search(n)
    )
    requirements, said_in = _requirements(files, place, device)
    points = files.matching(r"[^/]*\.dist-info/entry_points\.txt")
    digests = _kept_files(files, own, package)
    entry_points = files.text(points[0]) if points else ""
    whole = json.dumps([name, sorted(digests.items()), requirements, entry_points])
    as_wheel = bool(files.matching(r"[^/]*\.dist-info/METADATA"))
    came_as = (
        "wheel" if as_wheel else "sdist" if "PKG-INFO" in files.names else "folder"
    )
    dirty = [n for n in files.dirty if n.startswith(package) or _BESIDE.fullmatch(n)]
    known = Version(version).public if version else ""
    shown = known or _version(files, place, name, bool(dirty))
    return Tree(
        engine=name,
        digest=hashlib.sha256(whole.encode()).hexdigest()[:12],
        version=shown,
        version_from="" if shown else _why_dated(files),
        rev=files.rev,
        dirty=[n for n in dirty if not COMPILED.search(n)],
        came_as="git" if files.rev else came_as,
        requirements=requirements,
        requirements_from=said_in,
        entry_points=entry_points,
        ignored="\n".join(
            filter(None, (files.text(f"{p}.gitignore") for p in {"", place}))
        ),
        made=files.made.isoformat() if files.made and not dirty else "",
        files=digests,
    )


def _metadata(files: _Files, place: str) -> str:
    """METADATA of a wheel or PKG-INFO of an sdist; "": the tree is neither."""
    for pattern in (r"[^/]*\.dist-info/METADATA", rf"({re.escape(place)})?PKG-INFO"):
        for name in files.matching(pattern):
            return files.text(name)
    return ""


def _requirements(files: _Files, place: str, device: Device) -> tuple[list[str], str]:
    """The requirements for that device, and the file of the tree that says them."""
    folders = [*dict.fromkeys(("", place))]
    for name in (
        f"{f}{one.format(device)}" for f in folders for one in _REQUIREMENT_FILES
    ):
        if name in files.names:
            return list(dict.fromkeys(_lines(files, name, set()))), name
    if lines := [
        one for one in requirements_of(_metadata(files, place)) if "extra" not in one
    ]:
        return lines, "its metadata"
    for folder in reversed(folders):
        if named := _project(files, folder).get("dependencies"):
            return [str(one) for one in named], f"{folder}pyproject.toml"
    for name in (
        f"{folder}{one}" for folder in folders for one in _LAST_REQUIREMENT_FILES
    ):
        if name in files.names:
            return list(dict.fromkeys(_lines(files, name, set()))), name
    return [], ""


def _lines(files: _Files, name: str, known: set[str]) -> Iterator[str]:
    """The requirements of a file and of those that it names with ``-r``."""
    known.add(name)
    for line in files.text(name).splitlines():
        text = re.sub(r"(^|\s)#.*$", "", line).strip()
        if match := re.match(r"(?:-r|--requirement)[\s=]*(\S+)", text):
            other = os.path.normpath(os.path.join(os.path.dirname(name), match[1]))  # noqa: PTH118, PTH120
            if other not in known:
                yield from _lines(files, other, known)
        elif text and not text.startswith("-"):
            yield text


def _version(files: _Files, place: str, engine: str, dirty: bool) -> str:
    """The tree's version: of its metadata, its nearest tag or a file of its own; "":
    unknown."""
    if (
        own := HeaderParser().parsestr(_metadata(files, place)).get("Version")
    ) and _valid(own):
        return Version(own).public
    nearest = _nearest_tag(files)
    if nearest is not None and _is_plausible(files):
        tag, away = nearest
        return tag.public if away == 0 and not dirty else _after(tag, away)
    for name in (f"{place}{engine}/version.py", f"{place}{engine}/_version.py"):
        found = re.search(
            r"^__version__\s*(?::\s*str\s*)?=(?:\s*version\s*=)?\s*['\"]([^'\"]+)",
            files.text(name),
            re.MULTILINE,
        )
        if found and _valid(found[1]):
            return Version(found[1]).public
    for folder in dict.fromkeys((place, "")):
        own = _project(files, folder).get("version")
        if isinstance(own, str) and _valid(own):
            return Version(own).public
    return ""


def _nearest_tag(files: _Files) -> tuple[Version, int] | None:
    """The version that the nearest tag names, and how many commits back it is."""
    match = re.fullmatch(r"v?(.+)-(\d+)-g[0-9a-f]+", files.describe)
    if match is None or not _valid(match[1]):
        return None
    return Version(match[1]), int(match[2])


def _is_plausible(files: _Files) -> bool:
    """Whether the nearest tag is that of the release before the commit: a clone, and
    above all a fork, may have lost all later ones."""
    nearest = _nearest_tag(files)
    if nearest is None:
        return False
    _, away = nearest
    if away <= _BRANCH_COMMITS or files.made is None or files.tagged is None:
        return True
    days = (files.made - files.tagged).days
    return days <= _PLAUSIBLE_DAYS and away <= _PLAUSIBLE_COMMITS


def _why_dated(files: _Files) -> str:
    """Why a version comes from the commit's date; "": nothing but its date is known."""
    nearest = _nearest_tag(files)
    if files.made is None:
        return ""
    why = "the clone has no tag before it"
    if nearest is not None:
        why = f"its nearest tag, v{nearest[0]}, is {nearest[1]:,} commits back"
    return (
        f"{why}: the version is by its date, {files.made.date()}, to within a release"
    )


def _project(files: _Files, folder: str) -> dict[str, Any]:
    """``[project]`` of the ``pyproject.toml`` in a folder of the tree; {}: there is
    none."""
    try:
        project = tomllib.loads(files.text(f"{folder}pyproject.toml")).get(
            "project", {}
        )
    except tomllib.TOMLDecodeError:
        return {}
    return project if isinstance(project, dict) else {}


def _valid(text: str) -> bool:
    try:
        return Version(text) > Version("0.0")
    except InvalidVersion:
        return False


def _after(version: Version, away: int = 0) -> str:
    """A version of development after ``version``, as setuptools_scm names the next
    one."""
    if version.pre is not None:
        return f"{version.base_version}{version.pre[0]}{version.pre[1] + 1}.dev{away}"
    last = (*version.release, 0, 0)[:3]
    return f"{last[0]}.{last[1]}.{last[2] + 1}.dev{away}"


# ------------------------------------------------------------------ what is kept


def _kept_files(files: _Files, own: Sequence[str], package: str) -> dict[str, str]:
    """SHA-256 by name below ``package`` of the files ``own``, all of which the cache
    then has."""
    digests = {}
    lines = []
    for name in own:
        digest = files.known.get(name, "")
        if not digest:
            content = files.read(name)
            digest = hashlib.sha256(content).hexdigest()
            _write_blob(content, blob(digest))
            if name in files.git_names:
                lines.append(f"{files.git_names[name]} {digest}\n")
        digests[name.removeprefix(package)] = digest

    if lines:
        # One write at the end of the file: two processes do not mix their lines.
        with _git_blobs_file().open("a", encoding="ascii") as file:
            file.write("".join(lines))
    return digests


def _write_blob(content: bytes, path: Path) -> None:
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_bytes(content)
    new.chmod(0o444)  # environments link to it
    new.replace(path)


def _git_blobs_file() -> Path:
    return _sources_root() / "git-blobs.txt"


def _read_git_blobs() -> dict[str, str]:
    """SHA-256 by git's name of a content, of those that the cache holds."""
    try:
        text = read_file(_git_blobs_file(), _MAX_BYTES).decode("ascii", "replace")
    except OSError:
        return {}
    known = {}
    for line in text.splitlines():
        sha, _, digest = line.partition(" ")
        # A line that was cut off while it was written names no file.
        if len(digest) == _SHA256_DIGITS and blob(digest).is_file():
            known[sha] = digest
    return known


def _keep(tree: Tree) -> None:
    path = _sources_root() / f"{tree.digest}.json"
    write_file(path, tree.model_dump_json(indent=1) + "\n")


def _by_date(
    engine: str, made: datetime | None, device: str, text: str, kernels: str
) -> str:
    """The last release of the engine that came before a commit of that time; without a
    date, of the commit or of the releases, ``kernels``.

    Raises:
        UsageError: neither is known; or no release came before.
    """
    dated = []
    if made is not None:
        known = own_releases(engine, device)
        dated = [one for one in known if one.uploaded is not None]
    if kernels and not dated:
        return kernels
    if made is None:
        raise UsageError(
            (
                f"{text} does not say its version: it has no tag, no metadata and no "
                "version file."
            ),
            hint="git fetch --tags, or --kernels RELEASE",
        )
    if not dated:
        raise UsageError(
            f"{text} has no tag near by, and the index does not say when the releases "
            f"of {engine} came.",
            hint="git fetch --tags, or --kernels RELEASE",
        )
    when = made.astimezone(UTC)
    before = [one for one in dated if one.uploaded and one.uploaded <= when]
    if not before:
        raise UsageError(
            f"{text} is of {when.date()}, before {engine} {dated[0].version}, the first "
            "release on the index.",
            hint="a later commit, or --kernels RELEASE",
        )
    return before[-1].version


def _refuse_old(tree: Tree, device: str) -> None:
    """Refuse a commit that is older than what any release can lend it.

    Raises:
        UsageError: its minor version came before the first one with a wheel.
    """
    there = listed(tree.engine, device)
    if not there:
        return
    first = Version(there[0].version)
    if Version(tree.version).release[:2] < first.release[:2]:
        raise UsageError(
            f"{tree.rev[:9]} is of {tree.engine} {tree.version}, and {first} is the "
            f"first release that has compiled files for {device_of(device)} here.",
            hint=f"a later commit, or --kernels {first}, which hardly fits",
        )


def _python_of(tree: Tree) -> Callable[[], Iterator[str]]:
    """What reads the tree's Python files, where somebody wants them."""
    names = [name for name in tree.files if name.endswith(".py")]
    return lambda: (blob(tree.files[n]).read_text("utf-8", "replace") for n in names)


# -------------------------------------------------------- a release without a CPU wheel


def release_tree(
    spec: EnvironmentSpec, folder: Path, unknown: UnknownRelease | None = None
) -> Tree:
    """The Python of a published release, from the file of :func:`published`, which
    raises.

    Args:
        folder: for the file, which is removed again.
    """
    file, uploaded = published(spec, unknown)
    path, _ = fetch(file, folder, logins=logins())
    try:
        with _opened(str(path)) as opened:
            opened.made = uploaded
            tree = _tree_of(
                opened, file.filename, spec.device, spec.engine, spec.release
            )
    finally:
        path.unlink(missing_ok=True)
    _keep(tree)
    return tree


def published(
    spec: EnvironmentSpec, unknown: UnknownRelease | None
) -> tuple[Distribution, datetime | None]:
    """The sdist of a release of the engine's own project or, without one, a wheel; and
    its upload.

    Args:
        unknown: what is raised where the index has no such release.

    Raises:
        UnknownRelease: it has none.
        EnvironmentBuildError: the index cannot be asked.
    """
    requirement = f"{spec.engine}=={spec.release}"
    refused: UvFailed | None = None
    for python in pythons(spec):
        try:
            # Its text is read, and nothing is run: no interpreter is fetched for that.
            files = release_files(
                requirement, python, options=["--no-python-downloads"]
            )
        except UvFailed as failure:
            refused = failure
            if failure.unknown:
                break
            continue
        file = files.sdist or (best_wheel(files.wheels) if files.wheels else None)
        if file is None:
            continue
        return file, files.uploaded
    if refused is not None and not refused.answered:
        raise explain(refused, f"looking for {requirement}")
    said = f"The package index has no release {spec.release} of {spec.engine}."
    raise unknown or UnknownRelease(said)
