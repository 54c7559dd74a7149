"""Which later fixes of an engine touched the functions that a traceback stands in.

A table ships beside this module; ``python -m mmrepro.cli.fixed_later_table CLONE...``
makes it from git clones. A fix is named because it *touched* a function after the
release of the log: that it mends this failure is not proven."""

from __future__ import annotations

import lzma
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

TABLE_OF_FIXES = Path(__file__).with_name("fixed_later.xz")
TOUCHED = "touched since, not proven"
"""What is known of a later fix."""
MOST_LATER = 5
_INNERMOST = 12
"""Frames of the engine's own that are asked for: further out every request passes."""
_BRANCHED_DAYS = 8
"""Between the commit that a release is cut from and its upload, about: by the files of
the wheels of vLLM 0.22 to 0.28."""
_HALF_LIFE_DAYS = 90
"""A fix comes soon after the release in which the failure was seen, or late."""
_EPOCH = date(2020, 1, 1)


class TableFix(NamedTuple):
    """A commit that mends something.

    Attributes:
        pull: number of its pull request; 0: its subject names none.
    """

    pull: int
    day: date
    commit: str


class TableFunction(NamedTuple):
    """A function of an engine: its file below site-packages, and its name there."""

    file: str
    name: str


@dataclass
class FixTable:
    """The fixes of one engine.

    Attributes:
        until: day of the newest commit that was read.
        releases: day of the upload of each release.
        functions: positions in ``fixes`` of those that touched it.
    """

    engine: str
    until: date
    releases: dict[str, date]
    fixes: list[TableFix]
    functions: Mapping[TableFunction, Sequence[int]]

    def first_release(self, day: date) -> str:
        """The first release that has a commit of that day; "": none has it yet."""
        having = []
        for version, uploaded in self.releases.items():
            if uploaded - timedelta(days=_BRANCHED_DAYS) >= day:
                having.append(version)
        return min(having, key=Version, default="")

    def branched(self, release: str) -> date:
        """The day on which a release was cut, or the last one before it; of an unknown
        release the first day."""
        try:
            wanted = Version(release)
        except InvalidVersion:
            return _EPOCH
        known = [one for one in self.releases if Version(one) <= wanted]
        last = max(known, key=Version, default="")
        if not last:
            return _EPOCH
        return self.releases[last] - timedelta(days=_BRANCHED_DAYS)


@dataclass
class LaterFix:
    """A fix that touched a function of a traceback after the release of the log.

    Attributes:
        release: the first one that has it, by its day; "": none has it yet.
        functions: those that it touched, innermost first, as ``file: name``.
    """

    engine: str
    pull: int
    commit: str
    day: date
    release: str
    functions: list[str] = field(default_factory=list)
    certainty: str = TOUCHED

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "day": self.day.isoformat()}

    @property
    def sentence(self) -> str:
        name = f"{self.engine}#{self.pull}" if self.pull else self.commit
        since = f"in {self.release}" if self.release else "in no release yet"
        places = "; ".join(self.functions[:2])
        return f"{name} of {self.day}, {since}: touched {places}"


# ------------------------------------------------------------------ the question


def later_fixes(
    engine: str,
    release: str,
    frames: Sequence[tuple[str, str]],
    most: int = MOST_LATER,
) -> list[LaterFix]:
    """The later fixes that touched the innermost functions of a traceback, newest
    first; []: none is known, or the engine is not in the table.

    Of all that did, ``most`` are chosen: those that touched the innermost function,
    rather one that few fixes touch, rather soon after the release.

    Args:
        release: of the log; "": unknown, so that any fix may be later.
        frames: file and name of each function, innermost first.
    """
    own = _own_frames(engine, frames)
    if not own:
        return []
    table = read_table(engine, {PurePosixPath(file).name for file, _ in own})
    if table is None:
        return []

    begin = table.branched(release)
    scores: dict[int, float] = defaultdict(float)
    touched: dict[int, list[str]] = defaultdict(list)
    for depth, function in enumerate(own):
        exact, renamed = _fixes_of(table, function)
        for numbers, weight in ((exact, 1.0), (renamed, 0.4)):
            later = [one for one in numbers if table.fixes[one].day >= begin]
            for number in later:
                rarity = 1 / math.log2(2 + len(later))
                scores[number] += weight * rarity / (1 + depth)
                touched[number].append(f"{function.file}: {function.name}")

    def rank(number: int) -> float:
        if begin == _EPOCH:
            return scores[number]
        age = (table.fixes[number].day - begin).days
        return scores[number] * (1 + math.pow(0.5, age / _HALF_LIFE_DAYS))

    best = sorted(scores, key=lambda one: (-rank(one), one))[:most]
    newest_first = sorted(best, key=lambda one: table.fixes[one].day, reverse=True)
    return [_later(table, number, touched[number]) for number in newest_first]


def _later(table: FixTable, number: int, functions: list[str]) -> LaterFix:
    fix = table.fixes[number]
    release = table.first_release(fix.day)
    places = list(dict.fromkeys(functions))
    return LaterFix(table.engine, fix.pull, fix.commit, fix.day, release, places)


def _own_frames(engine: str, frames: Sequence[tuple[str, str]]) -> list[TableFunction]:
    """The innermost functions of the engine, each once, by their files below
    site-packages."""
    own = []
    for file, name in frames:
        _, found, below = file.replace("\\", "/").rpartition(f"/{engine}/")
        if file.startswith(f"{engine}/"):
            found, below = "/", file.removeprefix(f"{engine}/")
        # From 3.11 on a log may have the qualified name.
        bare = name.rpartition(".")[2]
        if found and bare.isidentifier():
            own.append(TableFunction(f"{engine}/{below}", bare))
    return list(dict.fromkeys(own))[:_INNERMOST]


def _fixes_of(
    table: FixTable, function: TableFunction
) -> tuple[Sequence[int], Sequence[int]]:
    """Fixes of a function, and of one of its name in a file of that name elsewhere:
    files move."""
    exact = table.functions.get(function, ())
    if exact:
        return exact, ()
    base = PurePosixPath(function.file).name
    moved: list[int] = []
    for other, numbers in table.functions.items():
        if other.name == function.name and PurePosixPath(other.file).name == base:
            moved += numbers
    return (), sorted(set(moved))


# ------------------------------------------------------------------ the file


def write_table(tables: Sequence[FixTable], path: Path) -> None:
    """Write the table: a line for each fact, by engine, compressed."""
    lines = []
    for table in tables:
        lines.append(f"engine {table.engine} {table.until}")
        for version, day in table.releases.items():
            lines.append(f"release {version} {(day - _EPOCH).days}")
        for fix in table.fixes:
            lines.append(f"fix {fix.pull} {(fix.day - _EPOCH).days} {fix.commit}")
        by_file: dict[str, list[str]] = defaultdict(list)
        for function, numbers in table.functions.items():
            words = " ".join(map(str, numbers))
            by_file[function.file].append(f" {function.name} {words}")
        for file in sorted(by_file):
            lines += [f"file {file}", *sorted(by_file[file])]
    text = "\n".join(lines) + "\n"
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read_table(
    engine: str, bases: set[str], path: Path | None = None
) -> FixTable | None:
    """The part of an engine, with the functions of the files that are called so; None:
    it is not in the table, or there is no table."""
    try:
        text = lzma.decompress((path or TABLE_OF_FIXES).read_bytes()).decode()
    except (OSError, lzma.LZMAError):
        return None
    table: FixTable | None = None
    functions: dict[TableFunction, list[int]] = {}
    for line in _part(text, engine):
        kind, _, rest = line.partition(" ")
        if kind == "engine":
            until = date.fromisoformat(rest.split()[1])
            table = FixTable(engine, until, {}, [], functions)
        elif table is not None and kind == "release":
            version, day = rest.split()
            table.releases[version] = _EPOCH + timedelta(days=int(day))
        elif table is not None and kind == "fix":
            pull, day, commit = rest.split()
            when = _EPOCH + timedelta(days=int(day))
            table.fixes.append(TableFix(int(pull), when, commit))
        elif kind == "file" and PurePosixPath(rest.partition("\n")[0]).name in bases:
            file, *own = rest.split("\n")
            for words in own:
                name, *numbers = words.split()
                functions[TableFunction(file, name)] = [int(one) for one in numbers]
    return table


def _part(text: str, engine: str) -> Iterator[str]:
    """The entries of an engine; one of a file has its functions' lines with it."""
    start = text.find(f"engine {engine} ")
    if start < 0:
        return
    end = text.find("\nengine ", start)
    own = text[start : end if end >= 0 else len(text)]
    facts, _, files = own.partition("\nfile ")
    yield from facts.splitlines()
    for entry in files.split("\nfile "):
        if entry:
            yield f"file {entry.rstrip()}"
