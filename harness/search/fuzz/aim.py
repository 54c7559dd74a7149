"""Which code two sides do not have alike, and which requests run it.

The sides' Python files are compared as they lie in their environments, so that releases,
trees and commits are aimed at in the same way. A server that is asked to
(``reproducers/standins/reach``) writes to its log when a line of the functions that
differ runs; requests go one after another, so the time says which request ran it."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Final

from mmrepro.base.machine import read_file
from mmrepro.engines import REACH
from mmrepro.engines.allowed import allowed_of
from mmrepro.failure.documents import UpgradeSide
from mmrepro.failure.documents.replay import AimedFunction
from mmrepro.traffic.case import Case, Played, ServerWanted

_LINE: Final = re.compile(
    rb"^mmrepro reach (\d{1,12}\.\d{3}) (\S{1,400}):(\d{1,7})$", re.M
)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{5,60}")
_MOST_FILES = 200
"""Files that differ: more are two releases, of which most requests run something."""
_FILE_BYTES = 4 << 20
_SPEC_BYTES = 60_000
"""A process takes no variable of more than 128 KiB."""
_LOG_BYTES = 64 << 20
_SLACK_S = 0.05
"""After an answer: what a server does once it has answered belongs to that request."""


@dataclass(frozen=True)
class ChangedFunction:
    """A function of one side that the other has otherwise or not at all.

    Attributes:
        file: below the side's module path, e.g. ``vllm/config/model.py``.
        name: with the classes and functions around it.
        first, last: its lines.
        changed: those of them that differ and that run.
    """

    file: str
    name: str
    first: int
    last: int
    changed: frozenset[int]

    @property
    def key(self) -> tuple[str, str]:
        return self.file, self.name


@dataclass(frozen=True)
class SideAim:
    """The functions of one side that are looked for."""

    functions: list[ChangedFunction] = field(default_factory=list)

    def watching(self, server: ServerWanted) -> ServerWanted:
        """The server, asked to write which of the lines run."""
        spec = self.spec
        if not spec:
            return server
        return server.model_copy(update={"env": {**server.env, REACH: spec}})

    @property
    def spec(self) -> str:
        """The value of ``MMREPRO_REACH``; functions beyond its size are left out."""
        by_file: dict[str, list[str]] = {}
        size = 0
        for function in self.functions:
            part = f"{function.first}-{function.last}"
            size += len(part) + 1
            if function.file not in by_file:
                size += len(function.file) + 2
            if size > _SPEC_BYTES:
                break
            by_file.setdefault(function.file, []).append(part)
        entries = [f"{file}:{','.join(parts)}" for file, parts in by_file.items()]
        return ";".join(entries)

    def function_at(self, file: str, line: int) -> ChangedFunction | None:
        """The innermost function of the file that has the line."""
        holding = [f for f in self.functions if f.file == file]
        holding = [f for f in holding if f.first <= line <= f.last]
        return min(holding, key=lambda f: f.last - f.first, default=None)


@dataclass(frozen=True)
class Aim:
    """What both sides have otherwise.

    Attributes:
        files: that differ.
        unread: why not all of it is aimed at.
        names: that the functions which differ have in their code.
    """

    old: SideAim
    new: SideAim
    files: list[str]
    unread: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def of(self, side: UpgradeSide) -> SideAim:
        return self.old if side == "old" else self.new


# ------------------------------------------------------------------ what differs


def aim_at(old: Path, new: Path, package: str) -> Aim | None:
    """What the package of an engine has otherwise below two folders of modules; None:
    nothing, or too much for a request to be aimed."""
    differing = _differing(old / package, new / package)
    if not differing or len(differing) > _MOST_FILES:
        return None
    aim = Aim(SideAim(), SideAim(), [f"{package}/{name}" for name in differing])
    for name in aim.files:
        before, after = _text(old / name), _text(new / name)
        if before is None or after is None:
            aim.unread.append(f"{name} cannot be read as a text")
            continue
        gone, come = changed_lines(before, after)
        for side, text, lines in ((aim.old, before, gone), (aim.new, after, come)):
            try:
                functions = changed_functions(name, text, lines)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                aim.unread.append(f"{name} is no Python that is understood here")
                continue
            side.functions.extend(functions)
            code = text.splitlines()
            for function in functions:
                own = code[function.first - 1 : function.last]
                aim.names.update(_NAME.findall("\n".join(own)))
    return aim


def asked_flags(engine: str, names: Collection[str]) -> list[str]:
    """Options without a value that switch something on and are named in the code:
    ``--enable-prompt-tokens-details`` for ``enable_prompt_tokens_details``."""
    flags = []
    for option, kind in allowed_of(engine).options.items():
        name = option.removeprefix("--").replace("-", "_")
        if kind == "flag" and name.startswith("enable_") and name in names:
            flags.append(option)
    return flags


def _differing(old: Path, new: Path) -> list[str]:
    """Names of the Python files below two folders that are not the same; no more than
    show that there are too many."""
    names = sorted(_python_files(old) | _python_files(new))
    differing = (name for name in names if not _same(old / name, new / name))
    return list(islice(differing, _MOST_FILES + 1))


def _python_files(root: Path) -> set[str]:
    files: set[str] = set()
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".py"):
                files.add((Path(folder) / name).relative_to(root).as_posix())
    return files


def _same(one: Path, other: Path) -> bool:
    """Whether both are the same file, or have the same content."""
    try:
        # Neighbouring trees are hard links of the same files.
        return one.samefile(other) or _text(one) == _text(other)
    except OSError:
        return False


def _text(file: Path) -> str | None:
    """The text of a file; "": there is none; None: it is no text."""
    try:
        return read_file(file, _FILE_BYTES).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return None


def changed_lines(before: str, after: str) -> tuple[set[int], set[int]]:
    """Lines, from 1, of the old text that are gone or changed, and of the new text that
    have come or are changed. Where lines only come, the old text's line before them
    stands for them, and the other way round."""
    old, new = before.splitlines(), after.splitlines()
    gone: set[int] = set()
    come: set[int] = set()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        gone.update(range(i1 + 1, i2 + 1) if i2 > i1 else [i1])
        come.update(range(j1 + 1, j2 + 1) if j2 > j1 else [j1])
    return gone, come


def changed_functions(file: str, text: str, lines: set[int]) -> list[ChangedFunction]:
    """Functions that have one of the lines; one whose changed lines are comments alone
    is left out, and what runs at import is none.

    Raises:
        SyntaxError, ValueError: it is no Python of this interpreter.
    """
    if not text or not lines:
        return []
    running = _running_lines(compile(text, file, "exec", dont_inherit=True))
    spans = list(_spans(ast.parse(text), ""))
    functions: dict[tuple[int, int, str], set[int]] = {}
    for line in sorted(lines & running):
        holding = [span for span in spans if span[0] <= line <= span[1]]
        # The line of the def itself runs where the function is made.
        inner = min(holding, key=lambda span: span[1] - span[0], default=None)
        if inner is not None and line >= inner[3]:
            functions.setdefault((inner[0], inner[1], inner[2]), set()).add(line)
    return [
        ChangedFunction(file, name, first, last, frozenset(changed))
        for (first, last, name), changed in functions.items()
    ]


def _spans(node: ast.AST, around: str) -> Iterator[tuple[int, int, str, int]]:
    """First and last line of each function, its name, and where its body begins."""
    for child in ast.iter_child_nodes(node):
        name = around
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{around}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                last = child.end_lineno or child.lineno
                yield child.lineno, last, name, child.body[0].lineno
        yield from _spans(child, name)


def _running_lines(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= _running_lines(constant)
    return lines


# ------------------------------------------------------------------ what was reached


def reached_lines(log: Path, case: Case, played: Played) -> dict[str, list[str]]:
    """The lines that ran while each request was answered, ``FILE:LINE``; of requests
    that reached none there is no entry. Pure, but for the log."""
    try:
        with log.open("rb") as file:
            text = file.read(_LOG_BYTES)
    except OSError:
        return {}
    times: list[tuple[float, str]] = []
    for match in _LINE.finditer(text):
        place = f"{match[2].decode('utf-8', 'replace')}:{int(match[3])}"
        times.append((float(match[1]), place))

    reached: dict[str, list[str]] = {}
    for op in case.operations:
        record = played.record(op.id)
        if record is None:
            continue
        begin = record.sent.mono
        end = begin + record.latency_s + _SLACK_S
        places = {place for at, place in times if begin <= at <= end}
        if places:
            reached[op.id] = sorted(places)
    return reached


class ReachedChange:
    """What the requests of a session have reached so far, on both sides."""

    def __init__(self, aim: Aim) -> None:
        self.aim = aim
        self._places: set[tuple[UpgradeSide, str]] = set()
        self._lines: dict[tuple[str, str], set[tuple[UpgradeSide, int]]] = {}
        self._by: dict[tuple[str, str], list[str]] = {}

    def watching(self, side: UpgradeSide, server: ServerWanted) -> ServerWanted:
        """The side's server, asked to write which of its lines run."""
        return self.aim.of(side).watching(server)

    def without_known(
        self, side: UpgradeSide, reached: dict[str, list[str]]
    ) -> dict[str, list[str]]:
        """The same, without lines that an earlier request has run."""
        known = {place for own, place in self._places if own == side}
        first: dict[str, list[str]] = {}
        for id, places in reached.items():
            new = [place for place in places if place not in known]
            known.update(new)
            if new:
                first[id] = new
        return first

    def take(self, side: UpgradeSide, places: Sequence[str], words: str) -> int:
        """Note which lines a request was the first to run; ``words`` say what it is.
        Returns how many of them differ between the sides."""
        aimed = self.aim.of(side)
        changed = 0
        for place in places:
            self._places.add((side, place))
            file, _, line = place.rpartition(":")
            function = aimed.function_at(file, int(line))
            if function is None:
                continue
            by = self._by.setdefault(function.key, [])
            if words not in by and len(by) < _SHOWN_REQUESTS:
                by.append(words)
            if int(line) in function.changed:
                self._lines.setdefault(function.key, set()).add((side, int(line)))
                changed += 1
        return changed

    def functions(self) -> list[AimedFunction]:
        """Each function that differs, with what was reached of it."""
        listed: dict[tuple[str, str], AimedFunction] = {}
        for function in (*self.aim.old.functions, *self.aim.new.functions):
            entry = listed.get(function.key)
            if entry is None:
                entry = listed[function.key] = AimedFunction(
                    file=function.file,
                    name=function.name,
                    entered=function.key in self._by,
                    reached=len(self._ran(function)),
                    requests=self._by.get(function.key, []),
                )
            entry.lines += len(function.changed)
        for function in self.aim.new.functions:
            ran = {line for side, line in self._ran(function) if side == "new"}
            listed[function.key].missed = line_ranges(function.changed - ran)
        return list(listed.values())

    def _ran(self, function: ChangedFunction) -> set[tuple[UpgradeSide, int]]:
        return self._lines.get(function.key, set())


def line_ranges(lines: Iterable[int]) -> str:
    """Numbers of lines as a reader writes them: ``7, 9-12``."""
    ranges: list[list[int]] = []
    for line in sorted(lines):
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    parts = [f"{a}" if a == b else f"{a}-{b}" for a, b in ranges]
    return ", ".join(parts)


_SHOWN_REQUESTS = 3
