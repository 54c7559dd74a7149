"""Which later fixes of its engine touched the functions that a log's traceback stands
in, by the table of ``history``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mmrepro.engines import ENGINES
from mmrepro.engines.starts import LoggedException, lines_of, raised
from mmrepro.failure.documents import LoggedState, LogReading
from mmrepro.history import LaterFix, later_fixes
from mmrepro.probes import LineReader, LogLine, Unavailable
from mmrepro.probes.log_files import BROKEN


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
    exception = _chosen(raised(lines), engine, number)
    if exception is None:
        return []
    frames = [(frame.file, frame.name) for frame in reversed(exception.frames)]
    name = engine or _engine_of(exception)
    return later_fixes(name, release, frames)


def _chosen(
    exceptions: Iterable[LoggedException], engine: str, number: int | None
) -> LoggedException | None:
    """The exception of that line, else the first with frames of an engine: what comes
    after it is mostly its echo."""
    first = None
    for exception in exceptions:
        own = _engine_of(exception)
        if not own or engine not in ("", own):
            continue
        if number is not None and exception.line.number == number:
            return exception
        first = first or exception
    return first


def _engine_of(exception: LoggedException) -> str:
    """Whose code the innermost frame of an engine is of; "": none is."""
    for frame in reversed(exception.frames):
        for engine in ENGINES:
            if f"/{engine}/" in f"/{frame.file}":
                return engine
    return ""
