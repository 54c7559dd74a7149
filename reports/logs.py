"""What a log tells as a page: what ended the server, which process first, when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from mmrepro.base import units
from mmrepro.base.text import one_line
from mmrepro.failure.documents import (
    STATE_OF_LOG_WORDS,
    Cause,
    CauseClass,
    Certainty,
    DumpReading,
    LogFacts,
    LoggedState,
    LogReading,
    Resemblance,
    ServerInLog,
)
from mmrepro.probes import LogLine
from mmrepro.probes.log_forms import UNKNOWN, written
from mmrepro.probes.log_words import own_line
from mmrepro.reports import blocks as b, words

_TONES: Final[dict[LoggedState, b.Tone]] = {
    LoggedState.ALIVE: "good",
    LoggedState.SHUT_DOWN: "unsure",
    LoggedState.REQUEST_FAILED: "unsure",
    LoggedState.TEST_FAILED: "unsure",
    LoggedState.UNKNOWN: "unsure",
    LoggedState.NOT_A_LOG: "unsure",
}
_NOTHING_FAILED: Final = frozenset(
    {LoggedState.ALIVE, LoggedState.SHUT_DOWN, LoggedState.NOT_A_LOG}
)


def compose_logs(reading: LogReading) -> b.Page:
    """The page of what logs and dumps tell."""
    log = reading.log
    facts = facts_of(reading)
    name = f"{reading.engine or 'unknown engine'} {reading.release}".strip()
    read = b.count(len(log.files or [log.file]), "file")
    if log.bytes_read:
        lines = b.count(log.lines, "line")
        read += f", {units.size(log.bytes_read, 1)}, {lines}"
    warning = None
    if reading.unread:
        warning = b.Warning(f"Not read to its end: {reading.unread}.")
    word = STATE_OF_LOG_WORDS[facts.state]
    return b.Page(
        title=f"The log of {name}" if log.bytes_read else f"Dumps of {name}",
        badge=b.Badge(word, _TONES.get(facts.state, "bad")),
        subject=f"{name}, {read}",
        warning=warning,
        card=[*_card(reading, facts)],
        commands=[],
        sections=[*_sections(reading)],
    )


def facts_of(reading: LogReading) -> LogFacts:
    """The facts of the server that failed first; of an older document those that its
    cause has."""
    if reading.facts is not None:
        return reading.facts
    return LogFacts(state=LoggedState.UNKNOWN, sentence=reading.cause.sentence)


def _sections(reading: LogReading) -> Iterator[b.Section]:
    yield b.Section("What it rests on", [*_rests_on(reading.cause)])
    if reading.dumps is not None:
        yield b.Section("Dumps", [*_dumps(reading.dumps)])
    yield b.Section("Servers", _servers(reading.servers))
    yield b.Section("What else ends a server", [*_others(reading)])
    yield b.Section("Lines of known patterns", [*_matches(reading)])
    yield b.Section("Last words", [*_last_words(reading)])


def _rests_on(cause: Cause) -> Iterator[b.Block]:
    """The class with its certainty, and the lines that say so."""
    name = (b.code(cause.name.value), f", {cause.certainty.value}: {cause.sentence}")
    yield b.p(*name)
    yield from b.bullets(cause.why)


def fact_rows(
    facts: LogFacts, engine: str, release: str
) -> Iterator[tuple[str, b.Inline]]:
    """Label and value of what a log carries, for a table of facts."""
    server = [f"{engine or 'unknown engine'} {release}".strip()]
    if facts.platform:
        server.append(_PLATFORMS.get(facts.platform, facts.platform))
    yield "server", ", ".join([*server, *facts.topology])
    if facts.command:
        yield "command", facts.command

    failure = facts.failure
    if failure is not None:
        label = "echo" if facts.echo else "failure"
        for text in failure.lines[:_FAILURE_LINES]:
            yield label, one_line(text, 300)
            label = ""
        where = [failure.process, failure.time, Path(failure.file).name]
        if failure.line is not None:
            where.append(f"line {failure.line}")
        yield "seen in", ", ".join(filter(None, where))
    if failure is not None and failure.place:
        code = f": {failure.code}" if failure.code else ""
        yield "raised at", f"{failure.place}{code}"
    for text in facts.ties:
        yield "tie", text
    label = "then"
    for text in facts.after:
        yield label, one_line(text, 200)
        label = ""


_PLATFORMS: Final = {
    "cuda": "CUDA",
    "rocm": "ROCm",
    "npu": "NPU",
    "xpu": "XPU",
    "tpu": "TPU",
    "cpu": "CPU",
}
_FAILURE_LINES: Final = 4


def class_rows(cause: Cause) -> Iterator[tuple[str, b.Inline]]:
    """The class, where a certain sign says it, and what is below a failed start."""
    if cause.certainty is Certainty.CERTAIN and cause.name not in _NO_CLASS:
        yield "class", (b.code(cause.name.value), f", {cause.certainty.value}")
    if cause.start is not None:
        start = (b.code(cause.start.name), f": {cause.start.sentence}")
        yield "below it", start


_NO_CLASS: Final = frozenset(
    {CauseClass.ALIVE, CauseClass.UNKNOWN, CauseClass.NOT_A_LOG}
)


def _card(reading: LogReading, facts: LogFacts) -> Iterator[b.Block]:
    cause = reading.cause
    log = reading.log
    word = STATE_OF_LOG_WORDS[facts.state].upper()
    headline = b.strong(f"{word}: {words.sentence(facts.sentence)}")
    if facts.fetch:
        # The first line says at once what gets the cause.
        yield b.p(headline, " Get it with: ", b.code(facts.fetch))
    else:
        yield b.p(headline)
    yield b.Facts([*_card_rows(reading, facts)], "what the log tells")
    yield from _more_servers(reading)
    yield from _to_do(cause, facts)
    for file, why in list(log.unread.items())[:2]:
        yield b.p(f"Not read: {file}: {why}", tone="unsure")


def _more_servers(reading: LogReading) -> Iterator[b.Block]:
    """What ended the other servers of the log, and what else may have ended this
    one."""
    for server in reading.servers[1:4]:
        name = server.name or "without a name"
        ended = server.cause.sentence
        state = server.cause.name.value
        if server.facts is not None:
            state, ended = (
                STATE_OF_LOG_WORDS[server.facts.state].upper(),
                server.facts.sentence,
            )
        yield b.p("Server ", b.code(name), f" {state}: {ended}")


def _to_do(cause: Cause, facts: LogFacts) -> Iterator[b.Block]:
    """The advice on a start that failed comes first: it is the more precise."""
    advice = list(cause.advice)
    if cause.start:
        advice = [*cause.start.advice, *advice]
    # The command that gets the rest of a log stands above the table.
    shown = [text for text in advice if not (facts.fetch and facts.fetch in text)]
    for text in shown[:3]:
        yield b.p("To do: ", b.prose(text))


def _card_rows(reading: LogReading, facts: LogFacts) -> Iterator[tuple[str, b.Inline]]:
    log = reading.log
    yield from fact_rows(facts, reading.engine, reading.release)
    if log.bytes_read:
        work = _shown(reading.last_progress) or "no line shows work done"
        yield "last work", work
        error = reading.first_error
        line = facts.failure.line if facts.failure else None
        went_in_order = facts.state is LoggedState.SHUT_DOWN
        if error is not None and error.number != line and not went_in_order:
            yield "first error", _shown(error)
    yield from class_rows(reading.cause)

    if log.stuck_count:
        came = b.count(log.stuck_count, "request")
        was = "was" if log.stuck_count == 1 else "were"
        yield "requests", f"{came} came after the last work and {was} never scheduled"
    for failure in reading.known[:2]:
        fixed = f" ({failure.fixed})" if failure.fixed else ""
        show = b.code(f"mmrepro show {failure.scenario}")
        text = f"{failure.scenario}{fixed}: {failure.title} ("
        yield "log lines of", (text, show, ")")

    if log.first_line and log.last_line:
        yield "log covers", covered(log.first_line.time, log.last_line.time)
    if reading.dumps is not None:
        yield from dump_rows(reading.dumps, few=bool(log.bytes_read))


def covered(first: str, last: str) -> str:
    """The time between two lines, however each form of a log writes it: ``11-28
    13:53:00 – 13:57:08 (4 min 08 s)``."""
    begin = written(first)
    end = written(last, begin or UNKNOWN)
    if begin is None or end is None:
        return " – ".join(filter(None, [first, last]))
    # What the log does not write is taken from the day that is given.
    elsewhere = written(first, _ANOTHER_DAY) or begin
    has_day = (elsewhere.month, elsewhere.day) == (begin.month, begin.day)
    begun = f"{begin:%m-%d %H:%M:%S}" if has_day else f"{begin:%H:%M:%S}"
    ended = f"{end:%H:%M:%S}"
    if has_day and end.date() != begin.date():
        ended = f"{end:%m-%d %H:%M:%S}"
    span = (end - begin).total_seconds()
    length = f" ({units.duration(round(span))})" if span >= 0 else ""
    return f"{begun} – {ended}{length}"


_ANOTHER_DAY: Final = datetime(2004, 2, 29)
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
        yield from b.bullets([*failure.why, *words.linked(failure.references)])

    yield from b.bullets([f"unknown: {text}" for text in reading.unseen])


def _servers(servers: list[ServerInLog]) -> list[b.Block]:
    if len(servers) < 2:
        return []
    rows = []
    for server in servers:
        row = b.row(
            server.name,
            f"{server.engine} {server.release}".strip(),
            STATE_OF_LOG_WORDS[server.facts.state] if server.facts else "",
            server.cause.name.value,
            server.cause.certainty.value,
            server.cause.time,
            server.cause.sentence,
            _shown(server.last_progress),
        )
        rows.append(row)

    heads = "server:name | engine:name | is | cause:name | sure:name | at:name | what"
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
    return f"{head}  {one_line(own_line(line), 200)}"
