"""What a log tells as a page: what ended the server, which process first, when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base import units
from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents.cause import Cause, CauseClass, LogReading, ServerInLog
from mmrepro.probes.data import LogLine
from mmrepro.reports import blocks as b, words

_TONES: Final[dict[CauseClass, b.Tone]] = {
    CauseClass.ALIVE: "good",
    CauseClass.UNKNOWN: "unsure",
    CauseClass.NOT_A_LOG: "unsure",
    CauseClass.OVERLOADED: "unsure",
}


def compose_logs(reading: LogReading) -> b.Page:
    cause, log = reading.cause, reading.log
    sections = [
        b.Section("What it rests on", b.bullets(cause.why)),
        b.Section("Servers", _servers(reading.servers)),
        b.Section("What else ends a server", [*_others(reading)]),
        b.Section("Lines that were looked for", [*_matches(reading)]),
        b.Section("Last words", [*_last_words(reading)]),
    ]
    files = log.files or [log.file]
    size = f"{units.size(log.bytes_read, 1)}, {log.lines} lines"
    read = f"{b.count(len(files), 'file')}, {size}"
    name = f"{reading.engine or 'unknown engine'} {reading.release}".strip()
    return b.Page(
        title=f"The log of {name}",
        badge=b.Badge(cause.name.value, _TONES.get(cause.name, "bad"), cause.certainty.value),
        subject=f"{name}, {read}",
        warning=b.Warning(f"Not read to its end: {reading.unread}.") if reading.unread else None,
        card=[*_card(reading)],
        commands=[],
        sections=sections,
    )


def cause_rows(cause: Cause) -> list[tuple[str, b.Inline]]:
    """Label and value of what a cause says, for a table of facts."""
    at = f"line {cause.line}" if cause.line is not None else ""
    where = ", ".join(filter(None, [cause.process, cause.time, Path(cause.file).name, at]))
    rows: list[tuple[str, b.Inline]] = [
        (
            "cause",
            (b.code(cause.name.value), f", {cause.certainty.value}"),
        ),
        ("exception", one_line(cause.exception, 400)),
        ("first to fail", where),
    ]
    if cause.start is not None:
        rows.append(("below it", (b.code(cause.start.name), f": {cause.start.sentence}")))
    return [row for row in rows if row[1]]


def _card(reading: LogReading) -> Iterator[b.Block]:
    cause, log = reading.cause, reading.log
    yield b.p(b.strong(words.sentence(cause.sentence)))
    rows = cause_rows(cause)
    rows.append(("last progress", _shown(reading.last_progress) or "no line shows work done"))
    rows.append(("first error", _shown(reading.first_error) or "no error line"))
    if log.stuck_count:
        rows.append(("requests", f"{log.stuck_count} were added after it and never scheduled"))
    if log.first_line and log.last_line:
        rows.append(("from, to", f"{log.first_line.time}, {log.last_line.time}"))
    yield b.Facts(rows, "what the log tells")
    begin = 1 if cause.exception else 0
    yield from b.bullets(cause.why[begin : begin + 3])
    for server in reading.servers[1:4]:
        told = f"{server.cause.name.value}: {server.cause.sentence}"
        yield b.p("Server ", b.code(server.name or "without a name"), f" {told}")
    for other in reading.others[:1]:
        yield b.p("Besides: ", b.code(other.name.value), f", {one_line(other.exception, 160)}")
    start = cause.start.advice if cause.start else []
    for text in [*start, *cause.advice][:3]:
        yield b.p("To do: ", b.prose(text))
    for file, why in list(log.unread.items())[:2]:
        yield b.p(f"Not read: {file}: {why}", tone="unsure")


def _servers(servers: list[ServerInLog]) -> list[b.Block]:
    if len(servers) < 2:
        return []
    rows = [
        b.row(
            server.name,
            f"{server.engine} {server.release}".strip(),
            server.cause.name.value,
            server.cause.certainty.value,
            server.cause.time,
            server.cause.sentence,
            _shown(server.last_progress),
        )
        for server in servers
    ]
    heads = ("server:name", "engine:name", "cause:name", "sure:name", "at:name", "what",
             "last progress")  # fmt: skip
    return b.table(heads, rows, "servers")


def _others(reading: LogReading) -> Iterator[b.Block]:
    for other in reading.others:
        yield b.Heading((b.code(other.name.value), f" {other.certainty.value}"))
        yield from b.bullets(other.why[:4])


def _matches(reading: LogReading) -> Iterator[b.Block]:
    log = reading.log
    rows = [
        b.row(name, str(count), _shown(log.matches[name][-1]))
        for name, count in log.match_counts.items()
        if count and log.matches.get(name)
    ]
    yield from b.table(("looked for:name", "lines:number", "last"), rows, "patterns")


def _last_words(reading: LogReading) -> Iterator[b.Block]:
    rows = [
        b.row(process or "(unmarked)", _shown(line))
        for process, line in reading.log.last_by_process.items()
    ]
    yield from b.table(("process:name", "last words"), rows, "last words")


def _shown(line: LogLine | None) -> str:
    if line is None:
        return ""
    where = f"{Path(line.file).name}:{line.number}" if line.file else f"line {line.number}"
    head = " ".join(filter(None, [line.time, where, line.process]))
    return f"{head}  {one_line(line.text, 200)}"
