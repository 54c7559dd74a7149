"""What ended or stopped a server, by the lines of its log alone. Pure functions.

The lines are those of one server, in their order; lines may be missing. A class is
named by what a line or an exception says; one that follows from something else as a
rule (a collective that times out, a connection that is closed) gives way to what
explains it. What is survived is no cause: work that is done after it shows that.
Nothing is concluded from a line that is not there, but that a process is gone "without
a word", which is never certain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice, pairwise

from mmrepro.engines.folders import facts, folders, published
from mmrepro.failure.documents.cause import (
    CAUSE_WORDS,
    Cause,
    CauseClass as C,
    ServerInLog,
    StartCause,
)
from mmrepro.failure.documents.diagnosis import Certainty
from mmrepro.live.diagnose import cause_rules as rules
from mmrepro.live.diagnose.cause_advice import advice_for
from mmrepro.live.diagnose.cause_input import Blamed, blamed, placeholders
from mmrepro.live.diagnose.cause_rules import CERTAIN, LIKELY, POSSIBLE, CauseRule
from mmrepro.live.diagnose.raised import LogException, frames_text, read, roots
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.probes.log_words import public_line

SHOWN = 240
_AFTER_S = 30.0
"""Work that is logged so long after a failure is no echo of what was done before it."""
_AFTER_LINES = 5
"""The same by lines of work, where they have no time."""
_NEAR_S = 10.0
_NEAR_LINES = 300
"""An explanation is looked for so far behind what it explains."""
FAR_LINES, FAR_S = 1000, 60.0
"""An exception so far before the end, in lines and in seconds, is of something else."""
_STALLS = 3
"""Readings in a row, ten seconds apart, in which requests run and no token is made."""
_HEARTBEATS = 2
OTHERS = 5
_BACKWARDS = 5
"""Times that step back so often, and hardly ever forward, are those of an export."""
_YEAR_S = 366 * 86400.0
WAITING = 10
NO_END = frozenset({C.ALIVE, C.UNKNOWN, C.OVERLOADED, C.NOT_A_LOG})
"""Classes of a server that has not ended, nor stands still, by its log."""
STRONG = frozenset(
    {
        C.GPU_FAULT,
        C.OUT_OF_GPU_MEMORY,
        C.OUT_OF_HOST_MEMORY,
        C.OUT_OF_KV_CACHE,
        C.MACHINE_LIMIT,
        C.PLACEHOLDER_COUNTS,
    }
)
"""What explains others that were printed shortly before."""
_KEPT_AT_START = frozenset(
    {
        C.GPU_FAULT,
        C.NATIVE_CRASH,
        C.OUT_OF_HOST_MEMORY,
        C.KILLED_BY_SIGNAL,
        C.COLLECTIVE_TIMEOUT,
        C.WORKER_UNRESPONSIVE,
        C.HANG,
    }
)
"""Classes that say more than that it did not start."""
_UNTIED = frozenset({C.ENGINE_DEFECT, C.KILLED_BY_INPUT})
"""Exceptions that an engine may survive."""
SILENT_S = 10.0
_QUIET = frozenset({"INFO", "DEBUG"})
_SETTINGS = re.compile(
    r"server_args=|non-default args|Namespace\(|Initializing a|Dumping |EngineArgs\(|"
    r"vLLM (?:API )?server version|engine_config|Received request|input_tokens="
    r"|prompt: "
)
_OWN_SETTINGS = re.compile(r"server_args=|non-default args: |Namespace\(")
_GONE = re.compile(
    r"(?:Worker proc|Engine core proc|process|[Pp]roc|[Ss]ubprocess) (?P<name>[\w.:-]+)"
    r"(?: \(pid[= ](?P<pid2>\d+)\))? (?:died|crashed)|"
    r"Engine process \(pid (?P<pid>\d+)\) died"
    r"|(?P<worker>\w*Worker\w*) pid (?P<wpid>\d+) died|"
    r"Rank (?P<rank>\d+) scheduler (?:is dead|died)|"
    r"rank=(?P<ranks>\[?[\d, ]+\]?) died|(?:DataParallelController"
    r"|TP process) (?P<proc>\d+) "
)
_CUT = re.compile(
    r"fatal error|hit an exception|failed to start|loop failed|task failed|"
    r"WorkerProc (?:failed|hit)|"
    r"Engine core initialization failed|Engine process failed|AsyncEngineDeadError|"
    r"[Bb]ackground loop"
)
"""Words that an exception always follows, or goes before."""
_SHUT = re.compile(
    r"^Shutting down|Waiting for application shutdown|Finished server process"
)
"""uvicorn's, on SIGTERM and SIGINT."""
_STARTED = re.compile(r"vLLM (?:API )?server version|server_args=ServerArgs\(")
"""A server logs its settings once, as it starts."""
_STEPPED = re.compile(
    r"\[TM\]\[INFO\].{0,80}\bstep = |\bstep = \d+, .*\[TM\]|"
    r"EngineCore loop active|EngineCore waiting for work|Finished request "
)
"""Lines of work done that are no statistics."""
_ADDED = re.compile(r"Added request ")
_TRIGGERED = re.compile(r"^\[shutdown\] API server: shutdown triggered")
"""vllm/entrypoints/launcher.py since 0.23: on SIGTERM and SIGINT, before anything else
ends."""
_KILLED = re.compile(r"[Kk]ill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]+)\)")
_RANK = re.compile(r"\[(?:Rank|PG .{0,80}Rank) (\d+)\]")


@dataclass(frozen=True)
class _LogEvent:
    """What one line, or one exception, says that can end a server."""

    name: C
    sure: Certainty
    text: str
    line: LogLine
    process: str = ""
    time: str = ""
    when: float | None = None
    effect: bool = False
    raised: LogException | None = None
    why: tuple[str, ...] = ()
    by: str = ""
    advice: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.line.number

    @property
    def shown(self) -> str:
        return self.text[:SHOWN]


class _Placed(LogLine):
    """A line whose ``number`` is its place among all lines; ``at``: its number in its
    file."""

    at: int


@dataclass(frozen=True)
class LogVerdict:
    """What the lines of one server tell."""

    cause: Cause
    others: list[Cause] = field(default_factory=list)
    noted: list[Cause] = field(default_factory=list)
    last_progress: LogLine | None = None
    engine: str = ""


def judge(lines: Sequence[LogLine], engine: str = "", *, stuck: int = 0) -> LogVerdict:
    """What ended or stopped the server that wrote ``lines``.

    Args:
        engine: its name, for advice and for what follows from its own forms; "": not
            known.
        stuck: requests that were added after its last progress, and never scheduled.
    """
    lives = [_Life(part, engine) for part in _lives(_ordered(lines))]
    latest = lives[-1]
    latest.stuck = stuck
    ended = [life for life in lives if life.first or life.death]
    if not ended or ended[-1] is latest:
        return latest.judged()

    judged = ended[-1].judged()
    at = _where(latest.lines[0]) if latest.lines else ""
    works = latest.progress[-1].time if latest.progress else ""
    after = f"it was started again ({at})"
    if works:
        after += f" and worked at {works}"
    cause = judged.cause.model_copy(update={"why": [*judged.cause.why, after]})
    return replace(judged, cause=cause)


def lines_of(data: LogsData) -> list[LogLine]:
    """Every line that a reading kept, in its order, each once."""
    kept = [
        *data.excerpt,
        *data.errors,
        *data.last_by_process.values(),
        *data.stuck_requests,
    ]
    for matching in data.matches.values():
        kept += matching
    for line in (data.last_progress, data.last_work, data.first_line, data.last_line):
        if line is not None:
            kept.append(line)

    files = {file: number for number, file in enumerate(data.files)}
    unique: dict[tuple[int, int, str], LogLine] = {}
    for line in kept:
        # A message of several lines, in JSON, is one line of its file: its number
        # alone does not tell them apart. What was kept twice stands where it came last.
        place = (files.get(line.file, 0), line.number, line.text)
        unique[place] = unique.pop(place, line)
    places = sorted(unique, key=lambda place: place[:2])
    return [unique[place] for place in places]


def servers(data: LogsData) -> list[ServerInLog]:
    """Each server of a log, judged for itself; first those that ended, as they stand in
    the log.

    A stream without a line of an engine's form (the kernel's, an init system's) is no
    server: its lines are told of each."""
    streams = [stream for stream in data.servers if stream.engine]
    besides: list[LogLine] = []
    for stream in data.servers:
        if not stream.engine:
            besides += lines_of(stream)

    judged = []
    for stream in streams:
        lines = lines_of(stream)
        if besides:
            lines = [*lines, *besides]
            lines.sort(key=lambda line: (line.file, line.number))
        judged.append(_server(stream, lines))
    if not streams:
        judged.append(_server(data, lines_of(data)))
    return sorted(judged, key=_ended_first)


def _server(stream: LogsData, lines: Sequence[LogLine]) -> ServerInLog:
    judged = judge(lines, stream.engine, stuck=stream.stuck_count or 0)
    return ServerInLog(
        name=stream.stream,
        engine=stream.engine or _engine_of(judged.cause) or judged.engine,
        release=stream.release,
        cause=judged.cause,
        others=judged.others,
        last_progress=judged.last_progress,
        first_error=stream.errors[0] if stream.errors else None,
    )


def _ended_first(server: ServerInLog) -> tuple[bool, bool]:
    """A key: those that ended, then those of which nothing is known, then the rest."""
    name = server.cause.name
    return name in NO_END, name is not C.UNKNOWN


def _engine_of(cause: Cause) -> str:
    """By the title of the process that the kernel killed."""
    name = cause.process.partition("::")[0].casefold()
    return name if name in folders() and "::" in cause.process else ""


# ---------------------------------------------------------------- the order of lines


def _ordered(lines: Sequence[LogLine]) -> list[_Placed]:
    """As they came: files of several ranks by their times, an export of newest lines
    first turned round."""
    ordered = list(lines)
    files: dict[str, list[LogLine]] = {}
    for line in lines:
        files.setdefault(line.file, []).append(line)
    if len(files) > 1:
        ordered = _merged(list(files.values()))
    elif _newest_first(lines):
        ordered.reverse()

    placed: list[_Placed] = []
    at = 0
    before: LogLine | None = None
    for line in ordered:
        step = 1
        if before is not None and before.file == line.file:
            # Lines may be missing: what was between the two counts as distance.
            step = max(1, abs(line.number - before.number))
        at += step
        values = {**line.__dict__, "number": at, "at": line.number}
        placed.append(_Placed.model_construct(**values))
        before = line
    return placed


def _merged(files: Sequence[Sequence[LogLine]]) -> list[LogLine]:
    """By time where each file has times of the same kind, else one file after the
    other."""
    begun = [when for when in map(_first_time, files) if when is not None]
    if len(begun) < len(files) or max(begun) - min(begun) > _YEAR_S:
        return list(chain.from_iterable(files))

    placed: list[tuple[float, int, LogLine]] = []
    for number, (lines, when) in enumerate(zip(files, begun, strict=True)):
        for line in lines:
            # A line without a time belongs to the one above it, and a clock that is
            # set back does not change the order of a file.
            if line.when is not None:
                when = max(when, line.when)
            placed.append((when, number, line))
    placed.sort(key=lambda entry: entry[:2])
    return [line for _, _, line in placed]


def _first_time(lines: Sequence[LogLine]) -> float | None:
    for line in lines:
        if line.when is not None:
            return line.when
    return None


def _newest_first(lines: Sequence[LogLine]) -> bool:
    times = [line.when for line in lines if line.when is not None]
    back = forward = 0
    for earlier, later in pairwise(times):
        back += later < earlier
        forward += later > earlier
    # Times of one server step back now and then: its processes write side by side.
    return back >= _BACKWARDS and back > 10 * forward


# ---------------------------------------------------------------- one life of a server


def _lives(lines: Sequence[_Placed]) -> list[Sequence[_Placed]]:
    """Cut where a server is started again after one has ended."""
    parts: list[Sequence[_Placed]] = []
    begin, died = 0, False
    for n, line in enumerate(lines):
        words = line.own_words
        if died and _STARTED.search(words):
            parts.append(lines[begin:n])
            begin, died = n, False
        died = died or bool(re.search(rules.DEATHS, words))
    parts.append(lines[begin:])
    return parts


class _Life:
    """From a server's start, or from where the log begins, to its end."""

    stuck = 0

    def __init__(self, lines: Sequence[_Placed], engine: str) -> None:
        self.lines = lines
        self.engine = engine
        reading = read(lines)
        self.raised, self.taken = roots(reading.raised), reading.taken
        self.words = [line.own_words for line in lines]
        self.worded = list(zip(lines, self.words, strict=True))

    def _first_with(self, pattern: re.Pattern[str]) -> _Placed | None:
        """The first line whose own words match."""
        for line, text in self.worded:
            if pattern.search(text):
                return line
        return None

    def _any_with(self, pattern: re.Pattern[str]) -> bool:
        return self._first_with(pattern) is not None

    # ------------------------------------------------------------ work

    @cached_property
    def progress(self) -> list[_Placed]:
        """Lines of work done; without any, answers of the front."""
        strong = [line for line, text in self.worded if _moved(line, text)]
        if strong or self.stats:
            return strong
        answers = []
        for line, text in self.worded:
            match = rules.ANSWERED.search(text)
            if match and match["status"] == "200":
                answers.append(line)
        return answers

    @property
    def last_work(self) -> _Placed | None:
        return self.progress[-1] if self.progress else None

    @cached_property
    def stats(self) -> list[tuple[LogLine, re.Match[str]]]:
        stats: list[tuple[LogLine, re.Match[str]]] = []
        for line, text in self.worded:
            if match := rules.STATS.search(text):
                stats.append((line, match))
        return stats

    def works_after(
        self, number: int, when: float | None, least: int = _AFTER_LINES
    ) -> bool:
        """Whether work is logged so long after a line that it is no echo of what was
        done before it."""
        later = [line for line in self.progress if line.number > number]
        if not later:
            return False
        timed = [line.when for line in later if line.when is not None]
        if when is not None and timed:
            return max(timed) > when + _AFTER_S
        return len(later) >= least

    # ------------------------------------------------------------ death

    @cached_property
    def death(self) -> LogLine | None:
        """The first line with which a process of it is gone, where no work follows.
        What goes because the server was told to go is none."""
        ordered = self._told_to_go
        for line, text in self.worded:
            if ordered is not None and line.number > ordered.number:
                return None
            if not re.search(rules.DEATHS, text) or _SETTINGS.search(text):
                continue
            # One process of several may end while the server goes on.
            if not self.works_after(line.number, line.when):
                return line
        return None

    @cached_property
    def _told_to_go(self) -> _Placed | None:
        """The line with which it begins to end by itself."""
        return self._first_with(_TRIGGERED)

    @cached_property
    def events(self) -> list[_LogEvent]:
        """All that can end a server, as it came; what was survived as well."""
        events: list[_LogEvent] = []
        ordered = self._told_to_go
        for raised in self.raised:
            # Processes that are ended on purpose raise as they go.
            if ordered is not None and raised.line.number > ordered.number:
                continue
            if rules.ECHO.search(raised.text) or self._of_a_request(raised):
                continue
            if raised.line.level in ("WARNING", "DEBUG"):
                continue
            events.append(self._of(raised))
        for line, text in self.worded:
            if line.number in self.taken:
                continue
            event = _alone(line, text)
            if event is not None:
                events.append(event)
        return sorted(events, key=lambda event: event.number)

    @cached_property
    def fatal(self) -> list[_LogEvent]:
        """Those events after which no work is logged."""
        fatal = []
        for event in self.events:
            # One line of work is enough to show that an effect was survived.
            least = 1 if event.effect else _AFTER_LINES
            if self.works_after(event.number, event.when, least):
                continue
            if not self._long_before(event):
                fatal.append(event)
        return fatal

    def _long_before(self, event: _LogEvent) -> bool:
        """Whether the end came so much later that it is another one's."""
        end = self.death
        if end is None or event.number > end.number - FAR_LINES:
            return False
        return event.when is None or end.when is None or end.when > event.when + FAR_S

    @cached_property
    def first(self) -> _LogEvent | None:
        """What the end began with."""
        if not self.fatal:
            return None
        first = self.fatal[0]
        if not first.effect:
            return first
        # What follows from something else as a rule gives way to what explains it.
        for event in self.fatal[1:]:
            killed = first.name is C.KILLED_BY_SIGNAL and not event.effect
            if (event.name in STRONG or killed) and _near(first, event):
                return event
        return first

    def _of_a_request(self, raised: LogException) -> bool:
        """Whether it is answered with an error, and ends nothing."""
        source = raised.source.rpartition(":")[0] or raised.source
        if rules.REQUEST_SOURCES.search(source):
            return True
        if rules.REQUEST_INTRO.search(raised.intro):
            return True
        files = "\n".join(frame.file for frame in raised.frames)
        if rules.REQUEST_FRAMES.search(files):
            return True
        return rules.REQUEST_TEXT.search(raised.text) is not None

    def _of(self, raised: LogException) -> _LogEvent:
        """What an exception says."""
        rule = rules.meaning(raised.text, exception=True)
        name, sure = (rule.name, rule.sure) if rule else (C.ENGINE_DEFECT, LIKELY)
        why: tuple[str, ...] = ()
        by = ""
        if name is C.PLACEHOLDER_COUNTS:
            counted = placeholders(raised.text)
            if counted is None:
                name, sure = C.ENGINE_DEFECT, LIKELY
            else:
                sure = CERTAIN if counted.inside else LIKELY
                by = counted.sentence
        elif name in (C.ENGINE_DEFECT, C.GPU_FAULT):
            blame = blamed(raised, self.lines)
            if blame is not None:
                name, sure, why = C.KILLED_BY_INPUT, blame.sure, _blame(blame)
                fields = " or ".join(blame.fields)
                by = f"A request ended the engine, by its field {fields}"
        if rule is not None and rule.sentence:
            by = rule.sentence
        process = raised.process
        if not process and (owner := rules.WHOSE.search(raised.intro)):
            process = owner["name"]
        return _LogEvent(
            name=name,
            sure=sure,
            text=raised.told,
            line=raised.line,
            process=process,
            time=raised.time,
            when=raised.when,
            effect=rule is not None and rule.effect,
            raised=raised,
            why=why,
            by=by,
            advice=rule.advice if rule else (),
        )

    # ------------------------------------------------------------ start

    @cached_property
    def starting(self) -> Certainty | None:
        """How sure it is that what ended it ended a start; None: it had been at work,
        or nothing tells."""
        end = self._end_number()
        if end is None or any(line.number < end for line in self.progress):
            return None
        if self._any_with(rules.AFTER_START):
            return None
        if self._any_with(rules.STARTS_FAILED):
            return CERTAIN
        ready = self._first_with(rules.READY)
        if ready is not None and ready.number < end:
            return None

        raised = self.first.raised if self.first else None
        frames = frames_text(raised, 60) if raised else ""
        # Frames of a start that a serving loop runs are no start.
        loops = rules.LOOP_FRAMES.search(frames) is not None
        if rules.START_FRAMES.search(frames) and not loops:
            return LIKELY
        if loops:
            return None
        if rules.ENTRY_FRAMES.search(frames):
            return LIKELY
        text = raised.text if raised else ""
        if rules.START_TEXT.search(text) or _set_up(text):
            return LIKELY
        return LIKELY if self._any_with(rules.STARTING) else None

    def _end_number(self) -> int | None:
        """The line that its end began with."""
        if self.first is not None:
            return self.first.number
        return self.death.number if self.death is not None else None

    # ------------------------------------------------------------ the answer

    def judged(self) -> LogVerdict:
        cause = (
            self._never_scheduled()
            or self._ended()
            or self._stands()
            or self._alive()
            or self._unknown()
        )
        shown = None
        if self.first is not None and cause.line == _at(self.first.line):
            shown = self.first

        others: dict[C, Cause] = {}
        for event in self.fatal:
            if event is not shown and event.name is not cause.name:
                others.setdefault(event.name, self._cause(event))
        return LogVerdict(
            cause=cause,
            others=list(others.values())[:8],
            noted=self._noted(),
            last_progress=self._last_progress(cause),
            engine=self.engine or self._engine_by_frames(),
        )

    def _noted(self) -> list[Cause]:
        """Counts of placeholders that do not agree, wherever a line prints them."""
        causes = []
        for line, text in self.worded:
            counted = placeholders(text)
            if counted is None:
                continue
            event = _LogEvent(
                name=C.PLACEHOLDER_COUNTS,
                sure=CERTAIN if counted.inside else LIKELY,
                text=text.strip(),
                line=line,
                process=line.process,
                time=line.time,
                when=line.when,
                by=counted.sentence,
            )
            causes.append(self._cause(event))
        return causes

    def _engine_by_frames(self) -> str:
        """Whose code the tracebacks are of; "" where no line has a form of its own, nor
        frames."""
        counts = dict.fromkeys(published(), 0)
        for raised in self.raised:
            for frame in raised.frames:
                for name in counts:
                    if f"/{name}/" in frame.file or frame.file.startswith(f"{name}/"):
                        counts[name] += 1
        best = max(counts, key=counts.__getitem__)
        return best if counts[best] else self._engine_by_processes()

    def _engine_by_processes(self) -> str:
        """Whose processes the lines are of, by their names; "": they do not tell."""
        for engine in folders():
            form = facts(engine).log_processes
            if form and any(re.match(form, line.process) for line in self.lines):
                return engine
        return ""

    def _last_progress(self, cause: Cause) -> LogLine | None:
        ends = []
        if self.death is not None:
            ends.append(self.death.number)
        if self.first is not None:
            ends.append(self.first.number)
        work = self._since(min(ends)) if ends else self.last_work
        if work is None:
            return None
        values = {name: getattr(work, name) for name in LogLine.model_fields}
        values["number"] = _at(work)
        return LogLine.model_construct(**values)

    def _cause(self, event: _LogEvent, why: Iterable[str] = ()) -> Cause:
        sentence = _sentence(event.name, event.text)
        if event.by:
            sentence = f"{event.by.rstrip('.')}: {event.shown}"
        advice = advice_for(event.name, self.engine, event.text, self.settings)
        return Cause(
            name=event.name,
            certainty=event.sure,
            sentence=sentence,
            exception=event.text[: 2 * SHOWN],
            process=event.process,
            time=event.time,
            line=_at(event.line),
            file=event.line.file,
            why=[f"{_where(event.line, event)}: {event.shown}", *event.why, *why],
            advice=[*event.advice, *advice],
        )

    @cached_property
    def settings(self) -> str:
        """The lines in which the server logs its own settings."""
        texts = (line.text for line in self.lines if _OWN_SETTINGS.search(line.text))
        return "\n".join(islice(texts, 8))

    def _ended(self) -> Cause | None:
        event = self.first
        if event is None:
            return self._died()
        why = []
        before = self._since(event.number)
        if before is not None:
            why.append(f"last work before it: {_where(before)}")
        # Nothing shows that it ever moved.
        elif event.name is C.HANG:
            event = replace(event, sure=POSSIBLE)
        beats = self._heartbeats(event.number)
        if beats and event.effect:
            why.append(_beat_words(beats))
        if self.death is not None:
            end = self.death.own_words[:SHOWN]
            why.append(f"its end ({_where(self.death)}): {end}")
        elif event.sure is CERTAIN and event.raised is not None:
            event = replace(event, sure=LIKELY)
            why.append("the log does not show that the server ended")
        why += self._besides(event)

        starting = self.starting
        if starting is None:
            return self._cause(event, why)
        start = self._below(event.raised)
        if event.name not in _KEPT_AT_START or _set_up(event.text):
            event = replace(event, name=C.FAILED_START, sure=starting)
        cause = self._cause(event, why)
        return cause.model_copy(update={"start": start}) if start else cause

    def _besides(self, event: _LogEvent) -> list[str]:
        """The first other thing that may have ended it as well."""
        for other in self.fatal:
            if other.name in STRONG and other.name is not event.name:
                return [f"besides ({_where(other.line, other)}): {other.shown}"]
        return []

    def _below(self, raised: LogException | None) -> StartCause | None:
        # What it needs is half of the harness.
        from mmrepro.live.diagnose.starts import below

        return below(self.lines, raised, self.engine)

    def _died(self) -> Cause | None:
        """A process is gone, and no line says of what."""
        line = self.death
        if line is None:
            return None
        quoted = self._quoted() or self._passed_on()
        if quoted is not None:
            return quoted

        text = line.own_words
        # Each of these logs its exception: the log is cut before it.
        cut = _CUT.search(text)
        name, sure = (C.UNKNOWN, POSSIBLE) if cut else (C.DIED_WITHOUT_A_WORD, LIKELY)
        shown = text[:SHOWN]
        if cut:
            shown = "it ended with an exception that the log does not show"
        start = None
        if self.starting is not None:
            name, sure = C.FAILED_START, self.starting
            start = self._below(None)
        why = [f"{_where(line)}: {text[:SHOWN]}"]
        before = self._since(line.number)
        if before is not None:
            why.append(f"last work before it: {_where(before)}")
        return Cause(
            name=name,
            certainty=sure,
            sentence=_sentence(name, shown),
            process=_gone(text) or line.process or line.rank,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=advice_for(name, self.engine, text),
            start=start,
        )

    def _quoted(self) -> Cause | None:
        """What an echo says of the exception that the log does not show."""
        for raised in self.raised:
            match = rules.QUOTES.search(raised.text)
            if match is None:
                continue
            quotes = [text for text in match.groups() if text]
            rule = rules.meaning(quotes[0], exception=True)
            event = _LogEvent(
                name=rule.name if rule else C.ENGINE_DEFECT,
                sure=POSSIBLE,
                text=raised.told,
                line=raised.line,
                process=raised.process,
                time=raised.time,
                when=raised.when,
            )
            if self.starting is not None and event.name not in _KEPT_AT_START:
                event = replace(event, name=C.FAILED_START, sure=self.starting)
            return self._cause(event, ["the exception itself is not in the log"])
        return None

    def _passed_on(self) -> Cause | None:
        """The exception as a request got it, where the engine's own is not in the log;
        one after which it worked ended nothing."""
        worked = self.last_work.number if self.last_work else 0
        for raised in self.raised:
            if raised.line.number <= worked or rules.ECHO.search(raised.text):
                continue
            if self._of_a_request(raised):
                event = replace(self._of(raised), sure=POSSIBLE)
                return self._cause(event, ["it is the exception that a request got"])
        return None

    # ------------------------------------------------------------ no end: does it move?

    def _since(self, number: int) -> LogLine | None:
        """The last line of work before that one."""
        for line in reversed(self.progress):
            if line.number < number:
                return line
        return None

    def _heartbeats(self, before: int | None = None) -> list[tuple[LogLine, int]]:
        """Those after the last work, with their seconds."""
        last = self.last_work.number if self.last_work else 0
        beats: list[tuple[LogLine, int]] = []
        for line, text in self.worded:
            if line.number <= last or (before is not None and line.number >= before):
                continue
            if match := rules.HEARTBEAT.search(text):
                beats.append((line, int(match[1])))
        return beats

    def _never_scheduled(self) -> Cause | None:
        """Requests came after its last work, none was scheduled, and no line shows an
        end."""
        first, last = self.first, self.last_work
        survived = first is None or (first.raised is not None and first.name in _UNTIED)
        if not self.stuck or last is None or self.death is not None or not survived:
            return None
        times = [line.when for line in self.lines if line.when is not None]
        silent = max(times) - last.when if times and last.when is not None else 0.0
        error = self._error_before_silence(last)
        why = [
            f"last work: {_where(last)}",
            f"{self.stuck} requests were added after it",
        ]
        if error is not None:
            why.append(f"its last error ({_where(error.line)}): {error.told[:SHOWN]}")
        return Cause(
            name=C.HANG,
            certainty=LIKELY if silent >= SILENT_S else POSSIBLE,
            sentence=(
                f"{self.stuck} requests were added after its last work, and never "
                "scheduled."
            ),
            exception=error.told[: 2 * SHOWN] if error else "",
            process=error.process if error else "",
            time=last.time,
            line=_at(last),
            file=last.file,
            why=why,
            advice=advice_for(C.HANG, self.engine, ""),
        )

    def _error_before_silence(self, last: _Placed) -> LogException | None:
        """The last exception of another process than the front, up to the last work, or
        the one with which the end began."""
        first, front = self.first, self._front()
        error = None
        for raised in self.raised:
            if not raised.process or raised.process == front:
                continue
            began_with = first is None or raised is first.raised
            if began_with or raised.line.number <= last.number:
                error = raised
        return error

    def _front(self) -> str:
        """The process that takes requests in."""
        line = self._first_with(_ADDED)
        return line.process if line is not None else ""

    def _stands(self) -> Cause | None:
        """Requests run, or wait, and nothing moves up to the end of the log."""
        last = self.last_work
        after = self.stats
        if last is not None:
            after = [entry for entry in self.stats if entry[0].number > last.number]
        stalls = [line for line, match in after if int(match["running"] or 0) > 0]
        beats = self._heartbeats()
        # What is told to go stops its work as well.
        if self._shut() is not None:
            return None
        if beats and self._goes_on(beats[0][0].number):
            return None
        if after and (full := self._never_fits(after, last)):
            return full
        if len(stalls) < _STALLS and len(beats) < _HEARTBEATS:
            return None

        why = []
        if last is not None:
            why.append(f"no progress since {_where(last)}")
        if stalls:
            at = f"{stalls[0].time} to {stalls[-1].time}"
            why.append(
                f"requests run and no token is made in {len(stalls)} readings, {at}"
            )
        if beats:
            why.append(_beat_words(beats))
        line = stalls[0] if stalls else beats[0][0]
        since = f" since {last.time}" if last is not None and last.time else ""
        return Cause(
            name=C.HANG,
            certainty=LIKELY if stalls and last is not None else POSSIBLE,
            sentence=f"It stands still{since} while requests run.",
            process=beats[0][0].process if beats else line.process,
            time=last.time if last is not None else line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=advice_for(C.HANG, self.engine, ""),
        )

    def _goes_on(self, number: int) -> bool:
        """Whether the engine says other things after that line: it loads, or
        compiles."""
        others = 0
        for line, text in self.worded:
            if line.number <= number or not line.level or not line.source:
                continue
            if not rules.HEARTBEAT.search(text) and not rules.STATS.search(text):
                others += 1
        return others > OTHERS

    def _shut(self) -> _Placed | None:
        """Where it begins to go by itself, as it does when it is told to."""
        for line, text in self.worded[-80:]:
            if _SHUT.search(text):
                return line
        return None

    def _never_fits(
        self, after: Sequence[tuple[LogLine, re.Match[str]]], last: LogLine | None
    ) -> Cause | None:
        for _, match in after:
            if int(match["running"] or 0) != 0 or int(match["waiting"] or 0) <= 0:
                return None
            if float(match["usage"] or 0) > 1.0:
                return None
        if len(after) < _STALLS:
            return None
        line, match = after[0]
        why = [
            f"running 0, waiting {match['waiting']}, KV cache in use "
            f"{match['usage'] or '?'} % "
            f"in {len(after)} readings, {line.time} to {after[-1][0].time}"
        ]
        if last is not None:
            why.append(f"last work before it: {_where(last)}")
        return Cause(
            name=C.NEVER_FITS,
            certainty=LIKELY,
            sentence=(
                "Requests wait, none runs, and the KV cache is empty: nothing "
                "can make room."
            ),
            process=line.process,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=advice_for(C.NEVER_FITS, self.engine, ""),
        )

    def _alive(self) -> Cause | None:
        if crowded := self._overloaded():
            return crowded
        last = self.last_work
        seen = last or self._first_with(rules.READY)
        if seen is None:
            return None
        shut = self._shut()
        if shut is not None and shut.number > seen.number:
            event = _LogEvent(
                name=C.KILLED_BY_SIGNAL,
                sure=POSSIBLE,
                text=f"it was shut down: {shut.own_words}",
                line=shut,
                process=shut.process,
                time=shut.time,
            )
            why = [f"last work before it: {_where(seen)}"] if last else []
            return self._cause(event, why)
        if refused := self._refused_for_size():
            return refused
        at = f" at {seen.time}" if seen.time else ""
        what = "It worked" if last else "It was ready"
        return Cause(
            name=C.ALIVE,
            certainty=LIKELY if last else POSSIBLE,
            sentence=f"{what}{at}, and no line after it says that it ended.",
            process=seen.process,
            time=seen.time,
            line=_at(seen),
            file=seen.file,
            why=[f"last work: {_where(seen)}" if last else f"ready: {_where(seen)}"],
            advice=advice_for(C.ALIVE, self.engine, ""),
        )

    def _overloaded(self) -> Cause | None:
        refusals = [line for line, text in self.worded if rules.OVERLOAD.search(text)]
        recent = self.stats[-_STALLS:]
        waiting = [int(match["waiting"] or 0) for _, match in recent]
        grows = waiting == sorted(waiting)
        crowded = len(recent) == _STALLS and min(waiting) >= WAITING and grows
        if len(refusals) < _STALLS and not crowded:
            return None
        line = refusals[0] if len(refusals) >= _STALLS else recent[0][0]
        why = []
        if refusals:
            first = refusals[0]
            why.append(
                f"{len(refusals)} lines, first ({_where(first)}): "
                f"{first.own_words[:SHOWN]}"
            )
        if crowded:
            why.append(f"waiting {' → '.join(map(str, waiting))} in the last readings")
        return Cause(
            name=C.OVERLOADED,
            certainty=LIKELY if crowded else POSSIBLE,
            sentence="It works, and more is asked of it than it can do.",
            process=line.process,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=advice_for(C.OVERLOADED, self.engine, ""),
        )

    def _refused_for_size(self) -> Cause | None:
        for line, text in self.worded:
            if rules.NEVER_FITS.search(text):
                event = _LogEvent(
                    name=C.NEVER_FITS,
                    sure=LIKELY,
                    text=text,
                    line=line,
                    process=line.process,
                    time=line.time,
                    when=line.when,
                )
                return self._cause(event)
        return None

    def _no_log(self) -> Cause | None:
        """Nothing in it has the form of a log's line, and nothing of it is an
        exception."""
        if self.raised or self.taken or not self.lines:
            return None
        for line in self.lines:
            if line.level or line.time or line.process or line.engine:
                return None
        text = "\n".join(self.words[:200])
        what = ""
        for name, form in rules.NO_LOGS:
            if form.search(text):
                what = name
                break
        return Cause(
            name=C.NOT_A_LOG,
            certainty=LIKELY if what else POSSIBLE,
            sentence=(
                f"This is {what or 'no log of a server, by the form of its lines'}."
            ),
            line=_at(self.lines[0]),
            file=self.lines[0].file,
            why=[f"no line has a time, a level or a process: {text.strip()[:80]!r}"],
            advice=advice_for(C.NOT_A_LOG, self.engine, ""),
        )

    def _unknown(self) -> Cause:
        if (no_log := self._no_log()) is not None:
            return no_log
        if refused := self._refused_for_size():
            return refused
        advice = advice_for(C.UNKNOWN, self.engine, "")
        for raised in self.raised:
            if self._of_a_request(raised):
                return Cause(
                    name=C.UNKNOWN,
                    certainty=POSSIBLE,
                    sentence="The log shows that a request was refused, and no end.",
                    exception=raised.told[: 2 * SHOWN],
                    process=raised.process,
                    time=raised.time,
                    line=_at(raised.line),
                    file=raised.line.file,
                    advice=advice,
                )
        return Cause(
            name=C.UNKNOWN,
            certainty=POSSIBLE,
            sentence="The log shows neither an end nor work done.",
            advice=advice,
        )


# ---------------------------------------------------------------- lines


def _moved(line: LogLine, text: str) -> bool:
    """Whether a line tells of work done."""
    if match := rules.STATS.search(text):
        return float(match["prompt"]) > 0 or float(match["generation"]) > 0
    return bool(rules.BATCH.search(text) or _STEPPED.search(text))


def _alone(line: LogLine, text: str) -> _LogEvent | None:
    """What a line without an exception says."""
    if _SETTINGS.search(text) or "please ignore" in text:
        return None
    rule = rules.meaning(text, exception=False)
    if rule is None or not _loud(line, rule) or rules.HEARTBEAT.search(text):
        return None
    why: tuple[str, ...] = ()
    public = public_line(line)
    shown, process = public.strip(), line.process
    # A bar of progress has no end of line: what is printed next stands behind it.
    if "%|" in shown and rule.bounded is None:
        words = rule.expression.search(public)
        if words:
            shown = public[words.start() :].strip()
    if match := rules.XID.search(text):
        code = int(match["code"])
        meant = rules.XIDS.get(code, "see NVIDIA's table of Xid errors")
        shown, why = f"Xid {code}: {match['rest'] or meant}", (f"Xid {code}: {meant}",)
        process = f"GPU {match['bus']}"
        # What these two report follows from another error.
        if code in (43, 45):
            rule = replace(rule, effect=True, sure=LIKELY)
    elif match := _KILLED.search(text):
        process = f"{match['name']} pid={match['pid']}"
    elif match := _RANK.search(text):
        process = process or f"rank {match[1]}"
    return _LogEvent(
        name=rule.name,
        sure=rule.sure,
        text=shown,
        line=line,
        process=_gone(text) or process or line.rank,
        time=line.time,
        when=line.when,
        effect=rule.effect,
        why=why,
        by=rule.sentence,
        advice=rule.advice,
    )


def _loud(line: LogLine, rule: CauseRule) -> bool:
    """Engines tell of a fault above INFO; of a signal they get, and of exit codes, also
    there."""
    return line.level not in _QUIET or rule.name in (C.KILLED_BY_SIGNAL, C.HANG)


def _at(line: LogLine) -> int:
    """Its number in its file."""
    return line.at if isinstance(line, _Placed) else line.number


def _set_up(text: str) -> bool:
    """An error of CUDA's that a set-up brings about, and no kernel."""
    return "error: " in text and rules.CUDA_SETUP.search(text) is not None


def _gone(text: str) -> str:
    """The process that a line says is gone."""
    match = _GONE.search(text)
    if match is None:
        return ""
    groups = match.groupdict()
    if pid := groups["pid"]:
        return f"engine process pid={pid}"
    if rank := groups["rank"] or groups["ranks"]:
        return f"rank {rank.strip('[]')}"
    if worker := groups["worker"]:
        return f"{worker} pid={groups['wpid']}"
    if proc := groups["proc"]:
        return f"pid={proc}"
    if pid := groups["pid2"]:
        return f"{groups['name']} pid={pid}"
    return groups["name"]


def _near(first: _LogEvent, other: _LogEvent) -> bool:
    if first.when is not None and other.when is not None:
        return other.when <= first.when + _NEAR_S
    return other.number <= first.number + _NEAR_LINES


def _blame(blame: Blamed) -> tuple[str, ...]:
    lines = [f"{name}: {how}" for name, how in blame.fields.items()]
    if blame.set_there:
        lines.append(blame.set_there)
    return tuple(lines)


def _beat_words(beats: Sequence[tuple[LogLine, int]]) -> str:
    seconds = sum(s for _, s in beats)
    took = f"{seconds // 60} minutes" if seconds >= 120 else f"{seconds} seconds"
    at = f" ({beats[0][0].time} to {beats[-1][0].time})" if beats[0][0].time else ""
    return (
        f"workers take no messages for {took}{at}: {len(beats)} lines of shm_broadcast"
    )


def _where(line: LogLine, event: _LogEvent | None = None) -> str:
    process, time = line.process or line.rank, line.time
    if event is not None:
        process, time = event.process, event.time or line.time
    return ", ".join(filter(None, [f"line {_at(line)}", process, time]))


def _sentence(name: C, text: str) -> str:
    words = CAUSE_WORDS[name]
    shown = text[:SHOWN].strip()
    words = f"{words[0].upper()}{words[1:]}"
    return f"{words}: {shown}" if shown else f"{words}."
