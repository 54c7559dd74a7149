"""Which later fixes of an engine touched the functions that a traceback stands in.

A table ships beside this module; ``python -m mmrepro.cli.fixed_later_table CLONE...``
makes it from git clones. A fix is named because it *touched* a function after the
release of the log: that it mends this failure is not proven."""

from __future__ import annotations

import lzma
import math
import re
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
_INNERMOST = 20
"""Functions of the engine's own that are asked for: further out every request
passes."""
_BY_CLASS = 0.8
_BY_MOVED = 0.4
_BY_FILE = 0.25
_BY_NAMESAKE = 0.1
"""Weights beside the 1 of the innermost function itself: a class that the message
names; a function of that name in a file of that name elsewhere; another function of the
file; another of a file of that name."""
_MOST_NAMESAKES = 3
"""Files of one name: of more the name says nothing."""
_NARROW = 4
"""A fix of 16 functions counts half as much as one of a single function."""
_LESS_PLAIN = 0.5
"""What only avoids or handles something counts so much of a fix that says so."""
_EVER = 0.03
"""A fix counts for so much more, however far from that day it came."""
BRANCHED_DAYS = 8
"""Between the commit that a release is cut from and its upload, about: by the files of
the wheels of vLLM 0.22 to 0.28."""
_TREE_DAYS = 3
"""Between a tree's newest commit and the day on which it was built, mostly."""
_HALF_LIFE_DAYS = 20
"""What many meet is mended about when it is logged; where the log has no day, soon
after its release."""
_EPOCH = date(2020, 1, 1)
_MODULE = "<module>"
_OTHERS = ": other functions"
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_CLASS_NAME = re.compile(r"\b(?:[A-Z][a-z0-9]*){2,}\b")


class TableFix(NamedTuple):
    """A commit that mends something.

    Attributes:
        pull: number of its pull request; 0: its subject names none.
        breadth: how many functions it touched.
        plain: its subject says that it is a fix, not only that it avoids or handles
            something.
    """

    pull: int
    day: date
    commit: str
    breadth: int = 1
    plain: bool = True


class TableFunction(NamedTuple):
    """A function of an engine: its file below site-packages, and its name there;
    ``class:NAME`` for a class, and ``<module>`` for what stands in neither."""

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
            if uploaded - timedelta(days=BRANCHED_DAYS) >= day:
                having.append(version)
        return min(having, key=Version, default="")

    def begin(self, failure: TracedFailure) -> date:
        """The first day of fixes that a failure may lack: by its release, or by the day
        of its tree; else by the newest release of the day on which it was logged."""
        # A tree may be older than the day on which it was built, by little mostly.
        branched = self.branched(failure.release)
        if failure.built is not None:
            return max(branched, failure.built - timedelta(days=_TREE_DAYS))
        if branched != _EPOCH or failure.day is None:
            return branched
        earlier = [one for one in self.releases.values() if one < failure.day]
        if not earlier:
            return _EPOCH
        return max(earlier) - timedelta(days=BRANCHED_DAYS)

    def logged(self, failure: TracedFailure) -> date:
        """The day of the log, or the first one that it can be; of an unknown one the
        first day of fixes."""
        begin = self.begin(failure)
        if failure.day is not None:
            return max(failure.day, begin)
        if failure.month_day is None or begin == _EPOCH:
            return begin
        for year in (begin.year, begin.year + 1):
            try:
                day = date(year, *failure.month_day)
            except ValueError:
                continue
            if day >= begin:
                return day
        return begin

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
        return self.releases[last] - timedelta(days=BRANCHED_DAYS)


@dataclass
class LaterFix:
    """A fix that touched what a failure names after the release of the log.

    Attributes:
        release: the first one that has it, by its day; "": none has it yet.
        functions: those that it touched, innermost first, as ``file: name``; else the
            files in which it touched others.
        until: day of the newest commit that the table knows.
    """

    engine: str
    pull: int
    commit: str
    day: date
    release: str
    until: date
    functions: list[str] = field(default_factory=list)
    certainty: str = TOUCHED

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "day": str(self.day), "until": str(self.until)}

    @property
    def sentence(self) -> str:
        name = f"{self.engine}#{self.pull}" if self.pull else self.commit
        since = f"in {self.release}" if self.release else "in no release yet"
        places = "; ".join(self.functions[:2])
        return f"{name} of {self.day}, {since}: touched {places}"


# ------------------------------------------------------------------ the question


@dataclass(frozen=True)
class TracedFailure:
    """What a log tells of a failure.

    Attributes:
        release: of the engine; "": unknown.
        tracebacks: each as file and name of its functions, innermost first; what failed
            first comes first, what came of it after it.
        message: of the exceptions.
        day: on which it was logged; None: unknown.
        month_day: the same without its year, as some engines log it.
        built: the day on which the engine was built from a tree; None: unknown.
    """

    release: str
    tracebacks: Sequence[Sequence[tuple[str, str]]]
    message: str = ""
    day: date | None = None
    month_day: tuple[int, int] | None = None
    built: date | None = None


@dataclass(frozen=True)
class _Touch:
    """Fixes that touched one thing near a failure.

    Attributes:
        place: that thing, for people.
        weight: how near it is to the failure.
    """

    place: str
    weight: float
    fixes: Sequence[int]


def later_fixes(
    engine: str, failure: TracedFailure, most: int = MOST_LATER
) -> list[LaterFix]:
    """The later fixes that touched what a failure names, newest first; []: none is
    known, or the engine is not in the table.

    Of all that did, ``most`` are chosen: those that touched the innermost function, a
    class that the message names, or else other functions of these files; rather what
    few fixes touch, rather a small fix, rather soon after the release.
    """
    distances = _own_functions(engine, failure.tracebacks)
    if not distances:
        return []
    bases = {PurePosixPath(function.file).name for function in distances}
    classes = set(_CLASS_NAME.findall(failure.message))
    table = read_table(engine, bases, classes)
    if table is None:
        return []

    begin, logged = table.begin(failure), table.logged(failure)
    scores: dict[int, float] = defaultdict(float)
    places: dict[int, list[str]] = defaultdict(list)
    for touch in _touches(table, distances, classes):
        later = [one for one in touch.fixes if table.fixes[one].day >= begin]
        # What many fixes touch says little about each.
        rarity = 1 / math.sqrt(1 + len(later))
        for number in later:
            scores[number] += touch.weight * rarity
            places[number].append(touch.place)

    def rank(number: int) -> float:
        fix = table.fixes[number]
        score = scores[number] / (1 + math.log2(max(fix.breadth, 1)) / _NARROW)
        if not fix.plain:
            score *= _LESS_PLAIN
        if begin == _EPOCH:
            return score
        apart = abs((fix.day - logged).days)
        return score * (_EVER + math.pow(0.5, apart / _HALF_LIFE_DAYS))

    best = sorted(scores, key=lambda one: (-rank(one), one))[:most]
    newest_first = sorted(best, key=lambda one: table.fixes[one].day, reverse=True)
    return [_later(table, number, places[number]) for number in newest_first]


def _later(table: FixTable, number: int, places: list[str]) -> LaterFix:
    fix = table.fixes[number]
    named = [place for place in places if not place.endswith(_OTHERS)]
    return LaterFix(
        engine=table.engine,
        pull=fix.pull,
        commit=fix.commit,
        day=fix.day,
        release=table.first_release(fix.day),
        until=table.until,
        functions=list(dict.fromkeys(named or places)),
    )


def package_path(engine: str, file: str) -> str:
    """The path from the engine's package on; "": the file is not the engine's."""
    path = f"/{file}".replace("\\", "/")
    installed = _INSTALLED.search(path)
    if installed is not None:
        # An environment's folder may have the engine's name.
        own = path[installed.end() :]
        return own if own.startswith(f"{engine}/") else ""
    _, found, below = path.rpartition(f"/{engine}/")
    return f"{engine}/{below}" if found else ""


def _own_functions(
    engine: str, tracebacks: Sequence[Sequence[tuple[str, str]]]
) -> dict[TableFunction, int]:
    """The innermost functions of the engine, by their files below site-packages, with
    how far each is from the failure."""
    distances: dict[TableFunction, int] = {}
    for order, frames in enumerate(tracebacks):
        own = []
        for file, name in frames:
            below = package_path(engine, file)
            # From 3.11 on a log may have the qualified name.
            bare = name.rpartition(".")[2]
            if below and (bare.isidentifier() or bare == _MODULE):
                own.append(TableFunction(below, bare))
        for depth, function in enumerate(dict.fromkeys(own)):
            distance = order + depth
            distances[function] = min(distance, distances.get(function, distance))
    nearest = sorted(distances, key=lambda function: distances[function])
    return {function: distances[function] for function in nearest[:_INNERMOST]}


def _touches(
    table: FixTable, distances: Mapping[TableFunction, int], classes: set[str]
) -> Iterator[_Touch]:
    by_file: dict[str, set[int]] = defaultdict(set)
    by_name: dict[tuple[str, str], list[TableFunction]] = defaultdict(list)
    for function, numbers in table.functions.items():
        by_file[function.file].update(numbers)
        base = PurePosixPath(function.file).name
        by_name[base, function.name].append(function)
        kind, _, name = function.name.rpartition(":")
        if kind and name in classes:
            yield _Touch(f"{function.file}: class {name}", _BY_CLASS, numbers)

    files: dict[str, int] = {}
    for function, distance in distances.items():
        files[function.file] = min(distance, files.get(function.file, distance))
        near = 1 / (1 + distance)
        exact = table.functions.get(function, ())
        if exact:
            yield _Touch(f"{function.file}: {function.name}", near, exact)
            continue
        # Files move.
        base = PurePosixPath(function.file).name
        for other in by_name[base, function.name]:
            place = f"{other.file}: {other.name}"
            yield _Touch(place, near * _BY_MOVED, table.functions[other])

    for file, distance in files.items():
        near = 1 / (1 + distance)
        base = PurePosixPath(file).name
        namesakes = [one for one in by_file if PurePosixPath(one).name == base]
        if len(namesakes) > _MOST_NAMESAKES:
            namesakes = []
        for other_file, fixes in by_file.items():
            place = other_file + _OTHERS
            if other_file == file:
                yield _Touch(place, near * _BY_FILE, sorted(fixes))
            elif other_file in namesakes:
                yield _Touch(place, near * _BY_NAMESAKE, sorted(fixes))


# ------------------------------------------------------------------ the file


def write_table(tables: Sequence[FixTable], path: Path) -> None:
    """Write the table: a line for each fact, by engine, compressed."""
    lines = []
    for table in tables:
        lines.append(f"engine {table.engine} {table.until}")
        for version, uploaded in table.releases.items():
            lines.append(f"release {version} {(uploaded - _EPOCH).days}")
        for fix in table.fixes:
            day = (fix.day - _EPOCH).days
            what = f"{fix.commit} {fix.breadth} {fix.plain:d}"
            lines.append(f"fix {fix.pull} {day} {what}")
        by_file: dict[str, list[str]] = defaultdict(list)
        for function, numbers in table.functions.items():
            words = " ".join(map(str, numbers))
            by_file[function.file].append(f" {function.name} {words}")
        for file in sorted(by_file):
            lines += [f"file {file}", *sorted(by_file[file])]
    text = "\n".join(lines) + "\n"
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read_table(
    engine: str, bases: set[str], classes: set[str], path: Path | None = None
) -> FixTable | None:
    """The part of an engine, with the functions of the files that are called so and
    with these classes; None: it is not in the table, or there is no table."""
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
            pull, day, commit, breadth, plain = rest.split()
            when = _EPOCH + timedelta(days=int(day))
            fix = TableFix(int(pull), when, commit, int(breadth), plain == "1")
            table.fixes.append(fix)
        elif kind == "file":
            functions.update(_functions_of(rest, bases, classes))
    return table


def _functions_of(
    entry: str, bases: set[str], classes: set[str]
) -> Iterator[tuple[TableFunction, list[int]]]:
    """The functions of a file's entry, or those of its classes that are wanted."""
    file, *lines = entry.split("\n")
    whole = PurePosixPath(file).name in bases
    if not whole and not any(f" class:{name} " in entry for name in classes):
        return
    for line in lines:
        name, *numbers = line.split()
        if whole or name.removeprefix("class:") in classes:
            yield TableFunction(file, name), [int(one) for one in numbers]


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
