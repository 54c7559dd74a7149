"""Which later fixes of its engine touched the functions that a log's traceback stands
in, by the table of ``history``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import islice
from pathlib import Path

from mmrepro.engines import ENGINES
from mmrepro.engines.starts import LoggedException, lines_of, raised
from mmrepro.failure.documents import LoggedState, LogReading
from mmrepro.history import LaterFix, TracedFailure, later_fixes
from mmrepro.probes import LineReader, LogLine, Unavailable
from mmrepro.probes.log_files import BROKEN

_TRACEBACKS = 4
"""Of a log that are read: what failed, and what came of it."""
_MESSAGE = 2000
_HEAD = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(
    r"File \"(?P<file>[^\"]+)\", line \d+, in (?P<name>[\w.<>]+)"
    # IPython's form.
    r"|^File (?P<cell>\S+\.py):\d+, in (?P<cell_name>[\w.<>]+)"
)
_DAY = re.compile(r"\b(20[2-9]\d-[01]\d-[0-3]\d)(?=[T ]\d\d:\d\d)")
_BUILT = re.compile(r"\.d(20[2-9]\d)([01]\d)([0-3]\d)\b")
"""The day in a version of a tree that was not clean."""


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
    message = "\n".join(exception.text[:_MESSAGE] for exception in exceptions)
    if not tracebacks:
        # A prefix of lines that no reader knows, or an exception of no known form.
        own = (one for one in _bare_tracebacks(lines) if _engine_of(one))
        tracebacks = list(islice(own, _TRACEBACKS))
    if not tracebacks:
        return []
    name = engine or _engine_of(tracebacks[0])
    failure = TracedFailure(
        release=release or _release_in(lines, name),
        tracebacks=tracebacks,
        message=message,
        day=_day_in(lines),
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
            if f"/{engine}/" in f"/{file}":
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
        built = _BUILT.search(line.text)
        words = match[1] if match else "-".join(built.groups()) if built else ""
        try:
            if words:
                return date.fromisoformat(words)
        except ValueError:
            continue
    return None
