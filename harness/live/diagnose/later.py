"""Which later fixes of its engine touched the functions that a log's traceback stands
in, by the table of ``history``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path

from mmrepro.engines import ENGINES
from mmrepro.engines.starts import LoggedException, lines_of, raised
from mmrepro.failure.documents import LoggedState, LogReading
from mmrepro.history import LaterFix, TracedFailure, later_fixes, package_path
from mmrepro.probes import LineReader, LogLine, Unavailable
from mmrepro.probes.log_files import BROKEN

_TRACEBACKS = 4
"""That are read of a log: the first failure, and those that it caused."""
_MESSAGE = 2000
_SEARCHED = 20_000
"""Lines in which the release and the day are searched for."""
_HEAD = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(
    r"File \"(?P<file>[^\"]+)\", line \d+, in (?P<name>[\w.<>]+)"
    # IPython's form.
    r"|^File (?P<cell>\S+\.py):\d+, in (?P<cell_name>[\w.<>]+)"
)
_DAY = re.compile(r"\b(20[2-9]\d)-([01]\d)-([0-3]\d)(?=[T ]\d\d:\d\d)")
_MONTH_DAY = re.compile(r"(?<![\d-])([01]\d)-([0-3]\d) \d\d:\d\d:\d\d\b")
_BUILT = re.compile(r"\.d(20[2-9]\d)([01]\d)([0-3]\d)\b")
"""In a version: the day on which a tree that was not clean was built."""


def later_fixes_of(reading: LogReading) -> list[LaterFix]:
    """Later fixes that touched the innermost functions of what ended the server of a
    log, newest first; []: it has no traceback of an engine, or the table none."""
    state = reading.facts.state if reading.facts is not None else None
    if state in (LoggedState.ALIVE, LoggedState.SHUT_DOWN):
        return []
    files = [reading.cause.file, *reading.log.files, reading.log.file]
    path = next((Path(file) for file in files if file and Path(file).is_file()), None)
    if path is None:
        return []
    try:
        lines = lines_of(path, [])
    except (*BROKEN, Unavailable):
        return []
    return _later(lines, reading.engine, reading.release, reading.cause.line)


def later_fixes_in(text: str, engine: str = "", release: str = "") -> list[LaterFix]:
    """As :func:`later_fixes_of`, of a traceback that was pasted."""
    lines = LineReader().take(text.encode(), last=True)
    return _later(lines, engine, release, None)


def _later(
    lines: Sequence[LogLine], engine: str, release: str, number: int | None
) -> list[LaterFix]:
    exceptions = _chosen(raised(lines), engine, number)
    tracebacks = [_frames_of(exception) for exception in exceptions]
    # An echo names classes that every request passes.
    message = exceptions[0].text[:_MESSAGE] if exceptions else ""
    if number is None or not tracebacks:
        # Some lines have a prefix that no reader knows, or the last one was cut off.
        for frames in _bare_tracebacks(lines):
            own = _engine_of(frames)
            if own and engine in ("", own) and frames not in tracebacks:
                tracebacks.append(frames)
    if not tracebacks:
        return []
    name = engine or _engine_of(tracebacks[0])
    head = lines[:_SEARCHED]
    failure = TracedFailure(
        release=release or _release_in(head, name),
        tracebacks=tracebacks[:_TRACEBACKS],
        message=message,
        day=_day_in(head),
        month_day=_month_day_in(head),
        built=_built_in(head),
    )
    return later_fixes(name, failure)


def _chosen(
    exceptions: Iterable[LoggedException], engine: str, number: int | None
) -> list[LoggedException]:
    """The exception of that line, else the first, and those after it, with frames of an
    engine: what comes after it was mostly raised from it, or is its echo."""
    chosen: list[LoggedException] = []
    for exception in exceptions:
        own = _engine_of(_frames_of(exception))
        if not own or engine not in ("", own):
            continue
        if number is not None and exception.line.number == number:
            chosen = []
        chosen.append(exception)
    return chosen[:_TRACEBACKS]


def _frames_of(exception: LoggedException) -> list[tuple[str, str]]:
    return [(frame.file, frame.name) for frame in reversed(exception.frames)]


def _bare_tracebacks(lines: Iterable[LogLine]) -> Iterator[list[tuple[str, str]]]:
    """The frames of each traceback, innermost first, by their form alone."""
    frames: list[tuple[str, str]] = []
    for line in lines:
        if _HEAD.search(line.text):
            yield frames[::-1]
            frames = []
        match = _FRAME.search(line.text)
        if match is not None:
            file = match["file"] or match["cell"]
            frames.append((file, match["name"] or match["cell_name"]))
    yield frames[::-1]


def _engine_of(frames: Sequence[tuple[str, str]]) -> str:
    """Whose code the innermost frame of an engine is of; "": none is."""
    for file, _ in frames:
        for engine in ENGINES:
            if package_path(engine, file):
                return engine
    return ""


def _release_in(lines: Iterable[LogLine], engine: str) -> str:
    """The engine's release, as people write it into a report; "": they do not."""
    pattern = re.compile(
        rf"\b{engine}(?:(?: api server)? version|-openai)?(?:==|\s*:\s*|\s+)v?"
        r"(?P<release>\d+\.\d+[\w.]*)",
        re.IGNORECASE,
    )
    for line in lines:
        match = pattern.search(line.text)
        # A tree without tags calls itself 0.1.dev.
        if match is not None and not match["release"].startswith("0.1.dev"):
            return match["release"].rstrip(".")
    return ""


def _day_in(lines: Iterable[LogLine]) -> date | None:
    """The first day that a log's lines have; None: they have none with its year."""
    for line in lines:
        match = _DAY.search(f"{line.time} {line.text}")
        if match is not None:
            return _date(*match.groups())
    return None


def _month_day_in(lines: Iterable[LogLine]) -> tuple[int, int] | None:
    """As :func:`_day_in`, of lines that leave the year out."""
    for line in lines:
        match = _MONTH_DAY.search(f"{line.time} {line.text}")
        if match is not None:
            return int(match[1]), int(match[2])
    return None


def _built_in(lines: Iterable[LogLine]) -> date | None:
    """The day on which the engine was built, where its version has it."""
    for line in lines:
        match = _BUILT.search(line.text)
        if match is not None:
            return _date(*match.groups())
    return None


def _date(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None
