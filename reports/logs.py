"""What a log tells as a page: what ended the server, which process first, when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base import units
from mmrepro.base.text import one_line
from mmrepro.failure.documents import (
    Cause,
    CauseClass,
    DumpReading,
    LogReading,
    Resemblance,
    ServerInLog,
)
from mmrepro.probes import LogLine
from mmrepro.probes.log_words import public_line
from mmrepro.reports import blocks as b, words

_TONES: Final[dict[CauseClass, b.Tone]] = {
    CauseClass.ALIVE: "good",
    CauseClass.UNKNOWN: "unsure",
    CauseClass.NOT_A_LOG: "unsure",
    CauseClass.OVERLOADED: "unsure",
}


def compose_logs(reading: LogReading) -> b.Page:
    """The page of what logs and dumps tell."""
    cause, log = reading.cause, reading.log
    name = f"{reading.engine or 'unknown engine'} {reading.release}".strip()
    read = b.count(len(log.files or [log.file]), "file")
    if log.bytes_read:
        read += f", {units.size(log.bytes_read, 1)}, {log.lines} lines"
    warning = None
    if reading.unread:
        warning = b.Warning(f"Not read to its end: {reading.unread}.")
    tone = _TONES.get(cause.name, "bad")
    return b.Page(
        title=f"The log of {name}" if log.bytes_read else f"Dumps of {name}",
        badge=b.Badge(cause.name.value, tone, note=cause.certainty.value),
        subject=f"{name}, {read}",
        warning=warning,
        card=[*_card(reading)],
        commands=[],
        sections=[*_sections(reading)],
    )


def _sections(reading: LogReading) -> Iterator[b.Section]:
    yield b.Section("What it rests on", b.bullets(reading.cause.why))
    if reading.dumps is not None:
        yield b.Section("Dumps", [*_dumps(reading.dumps)])
    yield b.Section("Servers", _servers(reading.servers))
    yield b.Section("What else ends a server", [*_others(reading)])
    yield b.Section("Lines that were looked for", [*_matches(reading)])
    yield b.Section("Last words", [*_last_words(reading)])


def cause_rows(cause: Cause) -> list[tuple[str, b.Inline]]:
    """Label and value of what a cause says, for a table of facts."""
    name = (b.code(cause.name.value), f", {cause.certainty.value}")
    rows: list[tuple[str, b.Inline]] = [("cause", name)]
    exception = one_line(cause.exception, 400)
    if exception:
        rows.append(("exception", exception))

    line = f"line {cause.line}" if cause.line is not None else ""
    file = Path(cause.file).name
    where = ", ".join(filter(None, [cause.process, cause.time, file, line]))
    if where and cause.name is not CauseClass.ALIVE:
        # Of a server that works nothing failed: its last work is a row of its own.
        label = "seen" if cause.name in _TONES else "first to fail"
        rows.append((label, where))
    if cause.start is not None:
        start = (b.code(cause.start.name), f": {cause.start.sentence}")
        rows.append(("below it", start))

    return rows


def _card(reading: LogReading) -> Iterator[b.Block]:
    cause = reading.cause
    log = reading.log
    yield b.p(b.strong(words.sentence(cause.sentence)))
    yield b.Facts([*_card_rows(reading)], "what the log tells")
    if log.bytes_read:
        # The exception is a row of the table above.
        begin = 1 if cause.exception else 0
        yield from b.bullets(cause.why[begin : begin + 3])

    yield from _more_servers(reading)
    yield from _to_do(cause)
    for file, why in list(log.unread.items())[:2]:
        yield b.p(f"Not read: {file}: {why}", tone="unsure")


def _more_servers(reading: LogReading) -> Iterator[b.Block]:
    """What ended the other servers of the log, and what else may have ended this
    one."""
    for server in reading.servers[1:4]:
        name = server.name or "without a name"
        ended = f" {server.cause.name.value}: {server.cause.sentence}"
        yield b.p("Server ", b.code(name), ended)

    for other in reading.others[:1]:
        exception = f", {one_line(other.exception, 160)}"
        yield b.p("Besides: ", b.code(other.name.value), exception)


def _to_do(cause: Cause) -> Iterator[b.Block]:
    """The advice on a start that failed comes first: it is the more precise."""
    advice = list(cause.advice)
    if cause.start:
        advice = [*cause.start.advice, *advice]
    for text in advice[:3]:
        yield b.p("To do: ", b.prose(text))


def _card_rows(reading: LogReading) -> Iterator[tuple[str, b.Inline]]:
    log = reading.log
    yield from cause_rows(reading.cause)
    if log.bytes_read:
        progress = _shown(reading.last_progress) or "no line shows work done"
        yield "last progress", progress
        yield "first error", _shown(reading.first_error) or "no error line"

    if log.stuck_count:
        yield "requests", f"{log.stuck_count} were added after it and never scheduled"
    for failure in reading.known[:2]:
        fixed = f" ({failure.fixed})" if failure.fixed else ""
        show = b.code(f"mmrepro show {failure.scenario}")
        text = f"{failure.scenario}{fixed}: {failure.title} ("
        yield "a line of", (text, show, ")")

    if log.first_line and log.last_line:
        yield "from, to", f"{log.first_line.time}, {log.last_line.time}"
    if reading.dumps is not None:
        yield from dump_rows(reading.dumps, few=bool(log.bytes_read))


_FITS: Final[dict[Resemblance, str]] = {
    Resemblance.MATCH: "it is",
    Resemblance.LIKELY: "likely",
    Resemblance.SYMPTOM_ONLY: "looks like",
    Resemblance.STANDS_THERE: "stands as in",
    Resemblance.IF_IT_STAYS: "if it stays there",
}


def dump_rows(reading: DumpReading, *, few: bool) -> Iterator[tuple[str, b.Inline]]:
    """What each file is, what the processes do, what is counted, which known failure it
    is."""
    for file in reading.files[: 2 if few else 3]:
        name = f"{Path(file.file).name}: " if file.read else ""
        yield "file", one_line(f"{name}{file.sentence}", 300)

    for process in reading.processes[: 2 if few else 3]:
        yield "process", process.sentence

    for text in reading.counts[: 2 if few else 4]:
        yield "counted", text

    for failure in reading.failures[:2]:
        show = b.code(f"mmrepro show {failure.scenario}")
        yield _FITS[failure.fit], (f"{failure.scenario}: {failure.title} (", show, ")")

    for text in reading.unseen[: 1 if few else 2]:
        yield "unknown", text


def _dumps(reading: DumpReading) -> Iterator[b.Block]:
    yield from b.bullets([f"{file.file}: {file.sentence}" for file in reading.files])
    rows = []
    for process in reading.processes:
        row = b.row(
            process.role or "?",
            str(process.pid or "?"),
            process.tool,
            str(process.samples),
            process.sentence,
        )
        rows.append(row)

    heads = "process:name | pid:number | by:name | dumps:number | what it does"
    yield from b.table(heads, rows, "processes")
    yield from b.bullets(reading.counts)
    for failure in reading.failures:
        fit = _FITS[failure.fit]
        yield b.p(fit, " ", b.code(failure.scenario), f": {failure.title}")
        yield from b.bullets([*failure.why, *failure.references])

    yield from b.bullets([f"unknown: {text}" for text in reading.unseen])


def _servers(servers: list[ServerInLog]) -> list[b.Block]:
    if len(servers) < 2:
        return []
    rows = []
    for server in servers:
        row = b.row(
            server.name,
            f"{server.engine} {server.release}".strip(),
            server.cause.name.value,
            server.cause.certainty.value,
            server.cause.time,
            server.cause.sentence,
            _shown(server.last_progress),
        )
        rows.append(row)

    heads = "server:name | engine:name | cause:name | sure:name | at:name | what"
    return b.table(f"{heads} | last progress", rows, "servers")


def _others(reading: LogReading) -> Iterator[b.Block]:
    for other in reading.others:
        yield b.Heading((b.code(other.name.value), f" {other.certainty.value}"))
        yield from b.bullets(other.why[:4])


def _matches(reading: LogReading) -> Iterator[b.Block]:
    rows = []
    for name, count in reading.log.match_counts.items():
        lines = reading.log.matches.get(name)
        if count and lines:
            rows.append(b.row(name, str(count), _shown(lines[-1])))

    yield from b.table("looked for:name | lines:number | last", rows, "patterns")


def _last_words(reading: LogReading) -> Iterator[b.Block]:
    rows = []
    for process, line in reading.log.last_by_process.items():
        rows.append(b.row(process or "(unmarked)", _shown(line)))

    yield from b.table("process:name | last words", rows, "last words")


def _shown(line: LogLine | None) -> str:
    """A line of the log with its time, its place and its process; empty without one."""
    if line is None:
        return ""
    where = f"line {line.number}"
    if line.file:
        where = f"{Path(line.file).name}:{line.number}"
    head = " ".join(filter(None, [line.time, where, line.process]))
    return f"{head}  {one_line(public_line(line), 200)}"
