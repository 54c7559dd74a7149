"""A commit of an engine as a case: what it touches, and its own tests on its parent and
on itself."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import device_of
from mmrepro.base.records import Document
from mmrepro.engines import spec_for
from mmrepro.engines.environments import (
    PLACES,
    ask_git,
    engine_of_clone,
    ensure,
    existing,
    prune_environments,
    resolve_source,
)
from mmrepro.failure.documents.replay import AimedChange, SideDifference
from mmrepro.runs.tree_tests import (
    LIMIT_S,
    UntestableCause,
    UpstreamRun,
    UpstreamSide,
    run_tests,
    unpack_tests,
)
from pydantic import Field

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_DEFINITION = re.compile(r"^(\s*)(?:async\s+)?(def|class)\s+(\w+)")
_COMPILED = (".cu", ".cuh", ".cpp", ".cc", ".c", ".h", ".hpp", ".rs", ".hip")


class CommitResult(StrEnum):
    """What the tests of a commit say of it."""

    TURNED = "turned"
    """A test is red on the parent and green on the commit."""
    ABSENT = "absent"
    """They import what the parent does not have: it cannot be red there."""
    SAME = "same"
    """They are green on both."""
    UNTESTABLE = "untestable"
    NONE = "none"
    """It has no test."""


@dataclass(frozen=True)
class CommitChange:
    """What a commit changes.

    Attributes:
        product: files of the engine's Python.
        compiled: files that only a build would make run.
        tests: files below its tests.
        lines: of files of the parent, the lines that are changed or stand before an
            insertion.
    """

    engine: str
    commit: str
    parent: str
    product: tuple[str, ...]
    compiled: tuple[str, ...]
    tests: tuple[str, ...]
    lines: dict[str, set[int]] = field(default_factory=dict)

    @property
    def test_files(self) -> list[str]:
        """Those that pytest collects."""
        names = [PurePosixPath(name) for name in self.tests]
        return [
            str(name)
            for name in names
            if name.suffix == ".py" and name.name.startswith("test_")
        ]


class CommitReading(Document, kind="commit"):
    """What a commit changes, and what its own tests say of its parent and of it."""

    engine: str
    commit: str
    parent: str
    product: list[str]
    compiled: Annotated[
        list[str], Field(description="changed as well, and not run: no build is made")
    ]
    tests: list[str]
    functions: Annotated[
        list[str], Field(description="of the parent that it touches, FILE: NAME")
    ]
    kernels: str = ""
    result: CommitResult
    why: str
    turned: Annotated[
        list[str], Field(description="tests that are red before and green after")
    ] = []
    before: UpstreamRun | None = None
    after: UpstreamRun | None = None
    aim: Annotated[
        AimedChange | None,
        Field(description="what requests aimed at the change ran of it"),
    ] = None
    differences: Annotated[
        list[SideDifference],
        Field(description="what they are answered otherwise: OLD is the parent"),
    ] = []
    seconds: float = 0.0


# ------------------------------------------------------------------ what it changes


def change_of(clone: Path, rev: str) -> CommitChange:
    """What a commit changes against its first parent.

    Raises:
        UsageError: git refuses, or it has no parent.
    """
    sha = _text(clone, "rev-parse", "--verify", f"{rev}^{{commit}}")
    try:
        parent = _text(clone, "rev-parse", "--verify", f"{sha}^1")
    except UsageError:
        raise UsageError(
            f"{rev} has no parent in this clone.", hint="git fetch --unshallow"
        ) from None
    engine = engine_of_clone(clone, sha)
    names = _text(clone, "diff", "--name-only", "--no-renames", parent, sha)
    packages = tuple(f"{place}{engine}/" for place in PLACES)
    product, compiled, tests = [], [], []
    for name in names.splitlines():
        if name.endswith(_COMPILED):
            compiled.append(name)
        elif name.startswith(packages):
            product.append(name)
        elif name.startswith(("tests/", "test/")):
            tests.append(name)
    patch = ask_git(clone, "diff", "-U0", "--no-renames", parent, sha, "--", *product)
    lines = old_lines(patch.decode("utf-8", "replace")) if product else {}
    return CommitChange(
        engine, sha, parent, tuple(product), tuple(compiled), tuple(tests), lines
    )


def _text(clone: Path, *arguments: str) -> str:
    return ask_git(clone, *arguments).decode("utf-8", "replace").strip()


def old_lines(patch: str) -> dict[str, set[int]]:
    """By file the lines of the old side of a patch without context: those that are
    changed, and those that an insertion follows."""
    lines: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in patch.splitlines():
        if line.startswith("--- "):
            # Of a file that is new there is no old side.
            file = line[6:] if line.startswith("--- a/") else ""
        elif file and (match := _HUNK.match(line)):
            first = int(match[1])
            count = int(match[2] or 1)
            lines[file].update(range(first, first + max(count, 1)))
    return dict(lines)


def functions_at(text: str, lines: set[int]) -> set[str]:
    """Names of the functions that hold one of these lines, 1-based, by indentation."""
    names = set()
    for around in _definitions_around(text, lines):
        if around and around[-1][0] == "def":
            names.add(around[-1][1])
    return names


MODULE_SCOPE = "<module>"
"""What a traceback calls the code of a module that stands in no function."""
CLASS_SCOPE = "class:"
"""Before the name of a class."""


def scopes_at(text: str, lines: set[int]) -> set[str]:
    """Functions as in :func:`functions_at`, and besides the classes that hold one of
    these lines, as ``class:NAME``; ``<module>`` for lines that stand in neither."""
    scopes = set()
    for around in _definitions_around(text, lines):
        if not around:
            scopes.add(MODULE_SCOPE)
            continue
        kind, name = around[-1]
        if kind == "def":
            scopes.add(name)
        classes = [name for kind, name in around if kind == "class"]
        if classes:
            scopes.add(CLASS_SCOPE + classes[-1])
    return scopes


def _definitions_around(text: str, lines: set[int]) -> Iterator[list[tuple[str, str]]]:
    """For each of these lines the definitions that it stands in, outermost first:
    ``def`` or ``class``, and the name.

    A module is not parsed: the table of later fixes asks for some 20,000 of them, which
    would take ten minutes, and a traceback has the name alone.
    """
    last = max(lines, default=0)
    stack: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if number > last:
            break
        bare = line.strip()
        if bare and not bare.startswith(("#", ")", "]", "}")):
            indent = len(line) - len(line.lstrip())
            while stack and stack[-1][0] >= indent:
                stack.pop()
            if match := _DEFINITION.match(line):
                stack.append((indent, match[2], match[3]))
        if number in lines:
            yield [(kind, name) for _, kind, name in stack]


def touched_by(clone: Path, change: CommitChange) -> list[str]:
    """Functions of the parent that the commit touches, as ``FILE: NAME``."""
    touched = []
    for file, lines in change.lines.items():
        text = _text(clone, "show", f"{change.parent}:{file}")
        for name in sorted(functions_at(text, lines)):
            touched.append(f"{file}: {name}")
    return touched


# ------------------------------------------------------------------ its own tests


@dataclass
class _PreparedCommit:
    """A commit of which tests are to be run: what is known of it, and its two sides,
    the commit's own first; (): it has no tests."""

    reading: CommitReading
    sides: tuple[UpstreamSide, ...] = ()


class CommitReader:
    """Reads commits of one clone; a context manager that removes the environments that
    were made for them.

    Attributes:
        kernels: the release that lends compiled files; "": the nearest one.
        limit_s: for the tests of one side.
    """

    def __init__(
        self,
        clone: Path,
        *,
        device: str = "auto",
        kernels: str = "",
        limit_s: float = LIMIT_S,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.clone = clone
        self.device = device_of(device)
        self.kernels, self.limit_s = kernels, limit_s
        self._say = say
        self._held = ExitStack()
        self._made: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        if self._made:
            prune_environments(names=self._made)

    def prepare(self, rev: str) -> _PreparedCommit:
        """Read what a commit changes, and make both sides' environments.

        Raises:
            UsageError: git refuses, or the commit is too old for any kernels.
            EnvironmentBuildError: an environment cannot be made.
        """
        change = change_of(self.clone, rev)
        reading = CommitReading(
            engine=change.engine,
            commit=change.commit,
            parent=change.parent,
            product=list(change.product),
            compiled=list(change.compiled),
            tests=list(change.tests),
            functions=touched_by(self.clone, change),
            result=CommitResult.NONE,
            why="it changes no file of tests that pytest collects",
        )
        if not change.test_files:
            return _PreparedCommit(reading)
        parent = self._side(change, change.parent, reading)
        own = self._side(change, change.commit, reading)
        return _PreparedCommit(reading, (parent, replace(own, red_first=True)))

    def _side(
        self, change: CommitChange, sha: str, reading: CommitReading
    ) -> UpstreamSide:
        source = resolve_source(
            f"{self.clone}@{sha}",
            # Both sides stand on the same release.
            kernels=self.kernels or reading.kernels,
            device=self.device,
            engine=change.engine,
            lender=ensure,
        )
        reading.kernels = source.kernels
        self._say(source.words)
        spec = spec_for(change.engine, source.release, self.device)
        was_there = existing(spec) is not None
        environment = ensure(spec, self._say)
        if not was_there:
            self._made.append(environment.path.name)
        folder = Path(self._held.enter_context(tempfile.TemporaryDirectory()))
        unpack_tests(self.clone, sha, folder, newer=change.commit, files=change.tests)
        return UpstreamSide(environment, folder, change.test_files)

    def run(self, prepared: Sequence[_PreparedCommit]) -> None:
        """Run the tests of commits that stand on one release, all in one box: what they
        have in common is imported once.

        Raises:
            NoBox: there is none here.
            EnvironmentBuildError: pytest cannot be installed.
        """
        sides = [side for commit in prepared for side in commit.sides]
        if not sides:
            return
        self._say(f"running the tests of {len(prepared)} commits on both sides")
        runs = iter(run_tests(sides, limit_s=self.limit_s))
        for commit in prepared:
            if commit.sides:
                _conclude(commit.reading, next(runs), next(runs))


def _conclude(reading: CommitReading, before: UpstreamRun, after: UpstreamRun) -> None:
    reading.after, reading.before = after, before
    reading.seconds = max(after.seconds, before.seconds)
    reading.turned = sorted(before.red & after.green)
    reading.result, reading.why = compared(after, before)


def read_commit(clone: Path, rev: str, **options: Any) -> CommitReading:
    """Run the tests that a commit brings on its parent and on itself, in one box.

    ``options`` and what it raises are those of :class:`CommitReader`.
    """
    with CommitReader(clone, **options) as reader:
        prepared = reader.prepare(rev)
        reader.run([prepared])
    return prepared.reading


def compared(after: UpstreamRun, before: UpstreamRun) -> tuple[CommitResult, str]:
    """What tests say of a commit, and why: only a test that is red before and green
    after speaks for it."""
    turned = before.red & after.green
    if turned:
        return CommitResult.TURNED, f"{len(turned)} red before and green after"
    if not after.green:
        cause = after.cause.value if after.cause else "red after it as well"
        return CommitResult.UNTESTABLE, f"on the commit: {cause}: {after.why}"
    causes = {seen.cause for seen in before.tests}
    if UntestableCause.ABSENT in causes:
        why = "its tests import what the parent does not have"
        return CommitResult.ABSENT, why
    if not before.green:
        cause = before.cause.value if before.cause else "no test ran"
        return CommitResult.UNTESTABLE, f"on the parent: {cause}: {before.why}"
    if before.red:
        why = f"{len(before.red)} red on the parent, and not green on the commit"
        for seen in after.tests:
            if seen.test in before.red and seen.cause is not None:
                return CommitResult.UNTESTABLE, f"{why}: {seen.cause.value}"
        return CommitResult.SAME, why
    return CommitResult.SAME, "none of its tests is red on the parent"
