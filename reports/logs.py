"""What a log tells as a page: what ended the server, which process first, when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base import units
from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents.cause import Cause, CauseClass, LogReading, ServerInLog
from mmrepro.failure.documents.dumps import DumpReading, Resemblance
from mmrepro.probes.data import LogLine
from mmrepro.probes.log_words import public_line
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
    size = (
        f", {units.size(log.bytes_read, 1)}, {log.lines} lines"
        if log.bytes_read
        else ""
    )
    read = b.count(len(files), "file") + size
    name = f"{reading.engine or 'unknown engine'} {reading.release}".strip()
    if reading.dumps is not None:
        sections.insert(1, b.Section("Dumps", [*_dumps(reading.dumps)]))
    return b.Page(
        title=f"The log of {name}" if log.bytes_read else f"Dumps of {name}",
        badge=b.Badge(
            cause.name.value, _TONES.get(cause.name, "bad"), cause.certainty.value
        ),
        subject=f"{name}, {read}",
        warning=b.Warning(f"Not read to its end: {reading.unread}.")
        if reading.unread
        else None,
        card=[*_card(reading)],
        commands=[],
        sections=sections,
    )


def cause_rows(cause: Cause) -> list[tuple[str, b.Inline]]:
    """Label and value of what a cause says, for a table of facts."""
    at = f"line {cause.line}" if cause.line is not None else ""
    where = ", ".join(
        filter(None, [cause.process, cause.time, Path(cause.file).name, at])
    )
    rows: list[tuple[str, b.Inline]] = [
        (
            "cause",
            (b.code(cause.name.value), f", {cause.certainty.value}"),
        ),
        ("exception", one_line(cause.exception, 400)),
        ("first to fail", where),
    ]
    if cause.start is not None:
        rows.append(
            ("below it", (b.code(cause.start.name), f": {cause.start.sentence}"))
        )
    return [row for row in rows if row[1]]


def _card(reading: LogReading) -> Iterator[b.Block]:
    cause, log = reading.cause, reading.log
    yield b.p(b.strong(words.sentence(cause.sentence)))
    rows = cause_rows(cause)
    if log.bytes_read:
        rows.append(
            (
                "last progress",
                _shown(reading.last_progress) or "no line shows work done",
            )
        )
        rows.append(("first error", _shown(reading.first_error) or "no error line"))
    if log.stuck_count:
        rows.append(
            ("requests", f"{log.stuck_count} were added after it and never scheduled")
        )
    for failure in reading.known[:2]:
        fixed = f" ({failure.fixed})" if failure.fixed else ""
        show = b.code(f"mmrepro show {failure.scenario}")
        rows.append(
            ("a line of", (f"{failure.scenario}{fixed}: {failure.title} (", show, ")"))
        )
    if log.first_line and log.last_line:
        rows.append(("from, to", f"{log.first_line.time}, {log.last_line.time}"))
    if reading.dumps is not None:
        rows += dump_rows(reading.dumps, few=bool(log.bytes_read))
    yield b.Facts(rows, "what the log tells")
    begin = 1 if cause.exception else 0
    if log.bytes_read:
        yield from b.bullets(cause.why[begin : begin + 3])
    for server in reading.servers[1:4]:
        told = f"{server.cause.name.value}: {server.cause.sentence}"
        yield b.p("Server ", b.code(server.name or "without a name"), f" {told}")
    for other in reading.others[:1]:
        yield b.p(
            "Besides: ", b.code(other.name.value), f", {one_line(other.exception, 160)}"
        )
    start = cause.start.advice if cause.start else []
    for text in [*start, *cause.advice][:3]:
        yield b.p("To do: ", b.prose(text))
    for file, why in list(log.unread.items())[:2]:
        yield b.p(f"Not read: {file}: {why}", tone="unsure")


_FITS: Final[dict[Resemblance, str]] = {
    Resemblance.MATCH: "it is",
    Resemblance.LIKELY: "likely",
    Resemblance.SYMPTOM_ONLY: "looks like",
    Resemblance.STANDS_THERE: "stands as in",
    Resemblance.IF_IT_STAYS: "if it stays there",
}


def dump_rows(found: DumpReading, *, few: bool) -> Iterator[tuple[str, b.Inline]]:
    """What each file is, what the processes do, what is counted, which known failure it
    is."""
    for file in found.files[: 2 if few else 3]:
        name = f"{Path(file.file).name}: " if file.read else ""
        yield "file", one_line(f"{name}{file.sentence}", 300)
    for process in found.processes[: 2 if few else 3]:
        yield "process", process.sentence
    for text in found.counts[: 2 if few else 4]:
        yield "counted", text
    for failure in found.failures[:2]:
        show = b.code(f"mmrepro show {failure.scenario}")
        yield _FITS[failure.fit], (f"{failure.scenario}: {failure.title} (", show, ")")
    for text in found.unseen[: 1 if few else 2]:
        yield "unknown", text


def _dumps(found: DumpReading) -> Iterator[b.Block]:
    yield from b.bullets([f"{file.file}: {file.sentence}" for file in found.files])
    rows = [
        b.row(
            process.role or "?",
            str(process.pid or "?"),
            process.tool,
            str(process.samples),
            process.sentence,
        )
        for process in found.processes
    ]
    heads = ("process:name", "pid:number", "by:name", "dumps:number", "what it does")
    yield from b.table(heads, rows, "processes")
    yield from b.bullets(found.counts)
    for failure in found.failures:
        yield b.p(
            _FITS[failure.fit], " ", b.code(failure.scenario), f": {failure.title}"
        )
        yield from b.bullets([*failure.why, *failure.references])
    yield from b.bullets([f"unknown: {text}" for text in found.unseen])


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
    heads = (
        "server:name",
        "engine:name",
        "cause:name",
        "sure:name",
        "at:name",
        "what",
        "last progress",
    )
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
    where = (
        f"{Path(line.file).name}:{line.number}" if line.file else f"line {line.number}"
    )
    head = " ".join(filter(None, [line.time, where, line.process]))
    return f"{head}  {one_line(public_line(line), 200)}"
