"""What ended or stopped a server, by the lines of its log alone. Pure functions.

The lines are those of one server, in their order; lines may be missing. A class is
named by what a line or an exception says; one that follows from something else as a
rule (a collective that times out, a connection that is closed) gives way to what
explains it. What is survived is no cause: work that is done after it shows that.
Nothing is concluded from a line that is not there, but that a process is gone "without
a word", which is never certain."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from mmrepro.base.units import count
from mmrepro.engines.folders import facts, folders, published
from mmrepro.failure.documents import (
    CAUSE_WORDS,
    Cause,
    CauseClass as C,
    Certainty,
    FirstFailure,
    LogFacts,
    LoggedState,
    ServerInLog,
    StartCause,
)
from mmrepro.live.diagnose import cause_rules as rules
from mmrepro.live.diagnose.cause_advice import (
    advice_for,
    of_other_platform,
    platform_of,
)
from mmrepro.live.diagnose.cause_input import Blamed, blamed, placeholders
from mmrepro.live.diagnose.cause_rules import CERTAIN, LIKELY, POSSIBLE
from mmrepro.live.diagnose.log_events import (
    SETTINGS,
    SHOWN,
    LogEvent,
    event_of,
    explains,
    of_another,
    process_gone,
    shows_work,
)
from mmrepro.live.diagnose.log_facts import (
    LoggedCommand,
    command_of,
    engine_frame,
    failure_of,
    failure_of_exception,
    failure_of_line,
    ties_of,
    topology_of,
    what_came_after,
)
from mmrepro.live.diagnose.log_order import PlacedLine, in_order, lines_of
from mmrepro.probes import (
    LogLine,
    LogsData,
    RaisedException,
    exceptions_in,
    frames_text,
    is_bare_line,
    root_exceptions,
)
from mmrepro.probes.log_words import own_line, public_line

_AFTER_S = 30.0
"""Work that is logged so long after a failure is no echo of what was done before it."""
_AFTER_LINES = 5
"""The same by lines of work, where they have no time."""
_FAR_LINES, _FAR_S = 1000, 60.0
"""An exception so far before the end, in lines and in seconds, is of something else."""
_STALLS = 3
"""Readings in a row, ten seconds apart, in which requests run and no token is made."""
_HEARTBEATS = 2
_OTHERS = 5
_WAITING = 10
NO_END = frozenset({C.ALIVE, C.UNKNOWN, C.OVERLOADED, C.NOT_A_LOG})
"""Classes of a server that has not ended, nor stands still, by its log."""
_STRONG = frozenset(
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
_SURVIVABLE = frozenset({*_UNTIED, C.NETWORK})
_SILENT_S = 10.0
_STANDS_S = 60.0
"""A start that says the same for so long waits for something."""
_QUIET_ENDS = frozenset({C.KILLED_BY_SIGNAL, C.COLLECTIVE_TIMEOUT, C.HANG})
_ERRORS = frozenset({"ERROR", "CRITICAL", "FATAL"})
_OWN_SETTINGS = re.compile(r"server_args=|non-default args: |Namespace\(")
_CUT = re.compile(
    r"fatal error|hit an exception|failed to start|loop failed|task failed|"
    r"WorkerProc (?:failed|hit)|"
    r"Engine core initialization failed|Engine process failed|AsyncEngineDeadError|"
    r"[Bb]ackground loop"
)
"""Words that an exception always follows, or goes before."""
_SHUT = re.compile(
    r"^Shutting down|Waiting for application shutdown|Finished server process"
    r"|^received shutdown signal \(SIG\w+\), shutting down"
)
"""uvicorn's, and vllm-rs's, on SIGTERM and SIGINT."""
_STARTED = re.compile(r"vLLM (?:API )?server version|server_args=ServerArgs\(")
"""A server logs its settings once, as it starts."""
_ADDED = re.compile(r"Added request ")
_TRIGGERED = re.compile(r"^\[shutdown\] API server: shutdown triggered")
"""vllm/entrypoints/launcher.py since 0.23: on SIGTERM and SIGINT, before anything else
ends."""


@dataclass(frozen=True)
class LogVerdict:
    """What the lines of one server tell."""

    cause: Cause
    others: list[Cause] = field(default_factory=list)
    noted: list[Cause] = field(default_factory=list)
    last_progress: LogLine | None = None
    engine: str = ""
    facts: LogFacts | None = None


def judge(lines: Sequence[LogLine], engine: str = "", *, stuck: int = 0) -> LogVerdict:
    """What ended or stopped the server that wrote ``lines``.

    Args:
        engine: its name, for advice and for what follows from its own forms; "": not
            known.
        stuck: requests that were added after its last progress, and never scheduled.
    """
    lives = [_Life(part, engine) for part in _lives(in_order(lines))]
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
        facts=judged.facts,
        first_error=stream.errors[0] if stream.errors else None,
    )


def _ended_first(server: ServerInLog) -> tuple[bool, bool]:
    """A key: those that ended, then those of which nothing is known, then the rest."""
    name = server.cause.name
    return name in NO_END, name is not C.UNKNOWN


def _engine_of(cause: Cause) -> str:
    """The engine, by the title of the process that the kernel killed."""
    name = cause.process.partition("::")[0].casefold()
    return name if name in folders() and "::" in cause.process else ""


# ---------------------------------------------------------------- one life of a server


def _lives(lines: Sequence[PlacedLine]) -> list[Sequence[PlacedLine]]:
    """Cut where a server is started again after one has ended."""
    parts: list[Sequence[PlacedLine]] = []
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
    """The lines from a server's start, or from where the log begins, to its end."""

    stuck = 0

    def __init__(self, lines: Sequence[PlacedLine], engine: str) -> None:
        self.lines = lines
        self.engine = engine
        reading = exceptions_in(lines)
        self.raised, self.taken = root_exceptions(reading.raised), reading.taken
        self.cut = reading.cut
        self.words = [line.own_words for line in lines]
        self.worded = list(zip(lines, self.words, strict=True))

    def _first_with(self, pattern: re.Pattern[str]) -> PlacedLine | None:
        """The first line whose own words match."""
        for line, text in self.worded:
            if pattern.search(text):
                return line
        return None

    def _any_with(self, pattern: re.Pattern[str]) -> bool:
        return self._first_with(pattern) is not None

    # ------------------------------------------------------------ work

    @cached_property
    def progress(self) -> list[PlacedLine]:
        """Lines of work done; without any, answers of the front."""
        strong = [line for line, text in self.worded if shows_work(line, text)]
        if strong or self.stats:
            return strong
        answers = []
        for line, text in self.worded:
            match = rules.ANSWERED.search(text)
            if match and match["status"] == "200":
                answers.append(line)
        return answers

    @property
    def last_work(self) -> PlacedLine | None:
        """The last line of work done."""
        return self.progress[-1] if self.progress else None

    @cached_property
    def stats(self) -> list[tuple[LogLine, re.Match[str]]]:
        """The lines in which it logs how much it does, with their numbers."""
        stats: list[tuple[LogLine, re.Match[str]]] = []
        for line, text in self.worded:
            match = rules.STATS.search(text)
            if match:
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
            if not re.search(rules.DEATHS, text) or SETTINGS.search(text):
                continue
            # One process of several may end while the server goes on.
            if not self.works_after(line.number, line.when):
                return line
        return None

    @cached_property
    def _told_to_go(self) -> PlacedLine | None:
        """The line with which it begins to end by itself."""
        return self._first_with(_TRIGGERED)

    @cached_property
    def events(self) -> list[LogEvent]:
        """All that can end a server, as it came; what was survived as well."""
        events: list[LogEvent] = []
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
        for place, (line, text) in enumerate(self.worded):
            if place in self.taken:
                continue
            if self._kills_itself(line, text):
                continue
            event = event_of(line, text)
            if event is not None and not of_another(text, self._pids, self._names):
                events.append(event)
        return sorted(events, key=lambda event: event.number)

    def _kills_itself(self, line: PlacedLine, text: str) -> bool:
        """Whether a shell reports the end that the server brought about itself, as a
        child had failed."""
        if not rules.OWN_KILL.search(text):
            return False
        order = self._first_with(rules.CHILD_FAILED)
        return order is not None and order.number < line.number

    @cached_property
    def _pids(self) -> set[int]:
        """Ids of its processes, by the marks of their lines."""
        return {line.pid for line in self.lines if line.pid is not None}

    @cached_property
    def _names(self) -> set[str]:
        """Units, containers and services that print its lines."""
        return {line.stream for line in self.lines if line.stream and line.engine}

    @cached_property
    def fatal(self) -> list[LogEvent]:
        """The events after which no work is logged."""
        fatal = []
        for event in self.events:
            # One line of work is enough to show that an effect was survived.
            least = 1 if event.effect else _AFTER_LINES
            if self.works_after(event.number, event.when, least):
                continue
            if self._of_no_process(event) and self._answers_after(event):
                continue
            if self._of_one_request(event):
                continue
            if not self._long_before(event):
                fatal.append(event)
        return fatal

    def _of_no_process(self, event: LogEvent) -> bool:
        """Whether an engine may survive it: no process ended with it, and it is no
        fault of the machine's."""
        if event.name not in _SURVIVABLE or self.death is not None:
            return False
        if event.raised is None:
            return True
        frames = frames_text(event.raised, 60)
        return not rules.PROCESS_FRAMES.search(frames)

    def _of_one_request(self, event: LogEvent) -> bool:
        """Whether a pair of servers gave one request up, and worked afterwards."""
        if not rules.REQUEST_FAILED.search(event.line.own_words):
            return False
        last = self._last_sign_of_life()
        return last is not None and last.number > event.number

    def _answers_after(self, event: LogEvent) -> bool:
        """Whether the server answers so long after an event that the answer was not
        begun before it."""
        if event.when is None:
            return False
        for line, text in self.worded:
            late = line.when is not None and line.when >= event.when + _AFTER_S
            if line.number > event.number and late and rules.LIVES.search(text):
                return True
        return False

    def _long_before(self, event: LogEvent) -> bool:
        """Whether the end came so much later that it is another one's."""
        end = self.death
        if end is None or event.number > end.number - _FAR_LINES:
            return False
        return event.when is None or end.when is None or end.when > event.when + _FAR_S

    @cached_property
    def first(self) -> LogEvent | None:
        """What the end began with."""
        if not self.fatal:
            return None
        first = self.fatal[0]
        if not first.effect:
            return first
        # What follows from something else as a rule gives way to what explains it.
        for event in self.fatal[1:]:
            killed = first.name is C.KILLED_BY_SIGNAL and not event.effect
            if (event.name in _STRONG or killed) and explains(first, event):
                return event
        return first

    def _of_a_request(self, raised: RaisedException) -> bool:
        """Whether it is answered with an error, and ends nothing."""
        source = raised.source.rpartition(":")[0] or raised.source
        if rules.REQUEST_SOURCES.search(source):
            return True
        if rules.REQUEST_INTRO.search(raised.intro):
            return True
        files = "\n".join(frame.file for frame in raised.frames)
        if rules.REQUEST_FRAMES.search(files):
            return True
        if rules.REQUEST_FAILED.search(raised.line.own_words):
            return True
        return rules.REQUEST_TEXT.search(raised.text) is not None

    def _of(self, raised: RaisedException) -> LogEvent:
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
            blame = blamed(raised, self.lines) if self._had_requests(raised) else None
            if blame is not None:
                name, sure, why = C.KILLED_BY_INPUT, blame.sure, _blame(blame)
                fields = " or ".join(blame.fields)
                by = f"A request ended the engine, by its field {fields}"
        if rule is not None and rule.sentence:
            by = rule.sentence
        process = raised.process
        if not process and (owner := rules.WHOSE.search(raised.intro)):
            process = owner["name"]
        return LogEvent(
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

    def _had_requests(self, raised: RaisedException) -> bool:
        """Whether anything shows that a request had come: without one none is to
        blame."""
        if self.progress or self._any_with(rules.REQUESTED):
            return True
        # A core that ended after its start was in its loop, which works on requests.
        if self._any_with(rules.AFTER_START):
            return True
        frames = frames_text(raised, 60)
        taken_in = rules.TAKES_IN_FRAMES.search(f"{raised.intro}\n{frames}") is not None
        return taken_in or rules.LOOP_FRAMES.search(frames) is not None

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
        frames = frames_text(raised, 60) if raised else self._cut_frames()
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

    def _cut_frames(self) -> str:
        """Frames of tracebacks whose exception is not in the log."""
        lines = []
        for frames in self.cut:
            lines += [f"{frame.file} {frame.name} {frame.source}" for frame in frames]
        return "\n".join(lines)

    def _end_number(self) -> int | None:
        """The line that its end began with."""
        if self.first is not None:
            return self.first.number
        return self.death.number if self.death is not None else None

    # ------------------------------------------------------------ the answer

    def judged(self) -> LogVerdict:
        """What ended or stopped it, and what else may have."""
        cause = (
            self._of_a_test()
            or self._never_scheduled()
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
            facts=self._facts(cause),
            others=list(others.values())[:8],
            noted=self._noted(),
            last_progress=self._last_progress(cause),
            engine=self.engine or self._engine_by_frames(),
        )

    # ------------------------------------------------------------ a job's log

    @cached_property
    def _test_job(self) -> bool:
        """Whether it is the log of a run of tests."""
        return self._any_with(rules.TEST_JOB)

    def _engine_failed(self) -> bool:
        """Whether an engine's own process ended in it: a line of an engine says so, or
        an exception that left the engine's code."""
        death = self.death
        if death is not None and (death.level or death.process):
            return True
        first = self.first
        if first is None:
            return False
        if first.raised is None:
            logged = first.line.level or first.line.process
            return first.name in _STRONG and bool(logged)
        frame = engine_frame(first.raised.frames)
        in_test = frame is None or "/test" in frame.file
        return first.raised.headed and not in_test

    def _of_a_test(self) -> Cause | None:
        """A test that failed, where no engine did; None: it is no log of tests, or the
        engine failed."""
        if not self._test_job or self._engine_failed():
            return None
        outside = self._first_with(rules.INFRASTRUCTURE)
        line = outside or self._first_with(rules.FAILED_TEST)
        if line is None:
            return None
        shown = own_line(line, SHOWN).strip()
        what = f"A test failed, and no line shows that the engine did: {shown}"
        if outside is not None:
            what = f"The job's machine or network failed, and no engine: {shown}"
        return Cause(
            name=C.UNKNOWN,
            certainty=POSSIBLE,
            sentence=what,
            exception=shown,
            process=line.process,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=[f"{_where(line)}: {shown}"],
        )

    # ------------------------------------------------------------ the facts

    def _facts(self, cause: Cause) -> LogFacts:
        """What the log carries, beside what is concluded from it."""
        failure = self._first_failure(cause)
        state = self._state(cause)
        first = self.first
        frames = first.raised.frames if first and first.raised else []
        return LogFacts(
            state=state,
            sentence=self._fact_sentence(state, cause, failure),
            echo=self._is_echo,
            platform=self.platform,
            topology=topology_of(self.lines, [self.settings, *self.words]),
            command=self.command.shown,
            failure=failure,
            after=self._after() if failure else [],
            ties=ties_of(frames, self.command.options),
        )

    def _after(self) -> list[str]:
        """What came after the failure: other events, and what says that a process is
        gone."""
        deaths = []
        for line, text in self.worded:
            if re.search(rules.DEATHS, text) and not SETTINGS.search(text):
                deaths.append(line)
        return what_came_after(self.first, self.fatal, deaths)

    def _state(self, cause: Cause) -> LoggedState:
        name = cause.name
        if name is C.NOT_A_LOG:
            return LoggedState.NOT_A_LOG
        if self._test_job and not self._engine_failed():
            return LoggedState.TEST_FAILED
        ended = self.first is not None or self.death is not None
        if name is C.FAILED_START or cause.start is not None:
            return LoggedState.NEVER_READY
        if ended and self.starting is not None and name not in NO_END:
            return LoggedState.NEVER_READY
        if name in (C.ALIVE, C.OVERLOADED):
            failed = self._failed_request is not None
            return LoggedState.REQUEST_FAILED if failed else LoggedState.ALIVE
        if name in (C.HANG, C.NEVER_FITS, C.GRAMMAR_LOOP) and self.death is None:
            return LoggedState.STANDS_STILL
        if name is C.UNKNOWN:
            return self._unknown_state()
        if self._went_in_order(cause):
            return LoggedState.SHUT_DOWN
        return LoggedState.DEAD if self._shows_death() else LoggedState.UNKNOWN

    def _went_in_order(self, cause: Cause) -> bool:
        """Whether the server got a signal to end, and nothing had failed before. What
        its processes raise while they end is no failure."""
        if cause.name is not C.KILLED_BY_SIGNAL:
            return False
        if self.first is not None or self.death is not None:
            return False
        told = self._told_to_go or self._shut()
        if told is None:
            return False
        error = self._first_error()
        return error is None or error.number > told.number

    def _unknown_state(self) -> LoggedState:
        if self.death is not None:
            started = self.starting is None
            return LoggedState.DEAD if started else LoggedState.NEVER_READY
        if self._still_starts:
            return LoggedState.NEVER_READY
        return LoggedState.UNKNOWN

    def _shows_death(self) -> bool:
        """Whether the log shows that a process ended: by a line, or by what it died
        of."""
        first = self.first
        if self.death is not None or first is None:
            return True
        kernel = rules.OF_KERNEL.search(first.line.own_words) is not None
        if kernel and first.name is C.GPU_FAULT and not self.engine:
            # The kernel resets a device for whoever used it.
            return False
        if first.name not in _SURVIVABLE:
            return True
        frames = frames_text(first.raised, 60) if first.raised else ""
        return rules.PROCESS_FRAMES.search(frames) is not None

    def _first_failure(self, cause: Cause) -> FirstFailure | None:
        """What it began with; else what a request met; else an error line."""
        if self._test_job and not self._engine_failed():
            line = self._first_with(rules.INFRASTRUCTURE)
            line = line or self._first_with(rules.FAILED_TEST)
            return failure_of_line(line, _at(line)) if line is not None else None
        if self._went_in_order(cause):
            return None
        event = self.first
        alive = event is None and cause.name in (C.ALIVE, C.OVERLOADED)
        if alive:
            event = self._failed_request
        if event is not None:
            return failure_of(event, event.line.file, _at(event.line))
        if alive:
            return None
        below = self._first_with(rules.BELOW_GPU_ERRORS)
        if below is not None:
            return failure_of_line(below, _at(below))
        death = self.death
        for raised in self.raised:
            if death is not None and death.number < raised.number and not self._is_echo:
                break
            if not raised.within or death is not None:
                return failure_of_exception(raised, raised.line.file, _at(raised.line))
        if cause.name is not C.UNKNOWN and self.death is None:
            return None
        told = self.death or self._first_error()
        return failure_of_line(told, _at(told)) if told is not None else None

    @cached_property
    def _failed_request(self) -> LogEvent | None:
        """What a request met that was answered with a server's error, or an exception
        after which the server worked."""
        for event in self.events:
            survived = event not in self.fatal and event.name not in _QUIET_ENDS
            if survived and (event.raised is not None or event.name is C.NETWORK):
                return event
        broken = self._any_with(rules.SERVER_ERROR)
        for line, text in self.worded:
            if rules.REQUEST_FAILED.search(text):
                return LogEvent(
                    name=C.NETWORK,
                    sure=POSSIBLE,
                    text=text.strip(),
                    line=line,
                    process=line.process,
                    time=line.time,
                    when=line.when,
                )
        for raised in self.raised:
            if broken and self._of_a_request(raised):
                return self._of(raised)
        return None

    def _fact_sentence(
        self, state: LoggedState, cause: Cause, failure: FirstFailure | None
    ) -> str:
        """One sentence for people; the state goes before it."""
        if state is LoggedState.TEST_FAILED:
            return cause.sentence
        if self._is_echo:
            return "its cause is not in this log, which has only an echo"
        if cause.start is not None:
            return cause.start.sentence
        told = _told_of(failure) if failure else ""
        if state is LoggedState.REQUEST_FAILED:
            last = self._last_sign_of_life()
            goes_on = f"the server goes on ({_where(last)})" if last else "it goes on"
            return f"{goes_on}: {told}"
        if state is LoggedState.SHUT_DOWN:
            return "the server got a signal to end; no earlier line shows a failure"
        ended = state in (LoggedState.DEAD, LoggedState.NEVER_READY)
        first = self.first
        if ended and failure is not None and (first is None or not first.by):
            return told
        if state is LoggedState.UNKNOWN and first is not None:
            return f"its log ends with this, and does not show that it ended: {told}"
        return cause.sentence

    def _last_sign_of_life(self) -> PlacedLine | None:
        for line, text in reversed(self.worded):
            if rules.LIVES.search(text) or shows_work(line, text):
                return line
        return None

    @cached_property
    def _is_echo(self) -> bool:
        """Whether what ended it is not in the log: only what others said of it."""
        if self.first is not None or self.death is None:
            return False
        if self._any_with(rules.BELOW_GPU_ERRORS):
            return True
        if self._any_with(rules.SILENT_ENDS):
            return False
        if rules.CHILD_FAILED.search(self.death.own_words):
            return True
        return self._first_echo() is not None or self._only_echoes(self.death)

    @cached_property
    def _still_starts(self) -> bool:
        """Whether the log ends within a start that nothing ended."""
        if self.first is not None or self.death is not None or self.progress:
            return False
        if self._any_with(rules.READY) or self._first_error() is not None:
            return False
        return self._any_with(rules.STARTING)

    def _starting_yet(self) -> Cause | None:
        """The log ends within a start; what it waits for is its last line, where that
        is said again and again."""
        if not self._still_starts:
            return None
        last = self.worded[-1][0]
        # Numbers that change are progress.
        again = [line for line, text in self.worded if text == last.own_words]
        waited = 0.0
        if last.when is not None and again[0].when is not None:
            waited = last.when - again[0].when
        shown = last.own_words.strip()[:SHOWN]
        # A heartbeat tells only that something takes its time: a compilation, a download.
        beat = rules.HEARTBEAT.search(last.own_words) is not None
        if len(again) < 2 or waited < _STANDS_S or beat:
            return Cause(
                name=C.UNKNOWN,
                certainty=POSSIBLE,
                sentence=f"It is still starting; its last line is: {shown}",
                process=last.process,
                time=last.time,
                line=_at(last),
                file=last.file,
                why=[f"last line: {_where(last)}"],
                advice=self._advice(C.UNKNOWN),
            )
        since = f"for {waited:.0f} s, since {again[0].time}"
        sentence = f"It still starts, and is stuck {since} at: {shown}"
        start = StartCause(name="hang-at-start", sentence=sentence)
        return Cause(
            name=C.HANG,
            certainty=POSSIBLE,
            sentence=sentence,
            process=last.process,
            time=again[0].time,
            line=_at(again[0]),
            file=last.file,
            why=[f"{len(again)} lines say the same: {_where(again[0])}"],
            advice=self._advice(C.HANG),
            start=start,
        )

    def _noted(self) -> list[Cause]:
        """Counts of placeholders that do not agree, wherever a line prints them."""
        causes = []
        for line, text in self.worded:
            counted = placeholders(text)
            if counted is None:
                continue
            event = LogEvent(
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

    def _cause(self, event: LogEvent, why: Iterable[str] = ()) -> Cause:
        sentence = _sentence(event.name, event.text)
        if event.by:
            sentence = f"{event.by.rstrip('.')}: {event.shown}"
        advice = self._advice(event.name, event.shown_with_frames)
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
            advice=self._fitting([*event.advice, *advice]),
        )

    @cached_property
    def settings(self) -> str:
        """The lines in which the server logs its own settings."""
        texts = (line.text for line in self.lines if _OWN_SETTINGS.search(line.text))
        return "\n".join(islice(texts, 8))

    @cached_property
    def platform(self) -> str:
        """The platform that it ran on; "": its log does not tell."""
        return platform_of(f"{line.source} {text}" for line, text in self.worded)

    @cached_property
    def command(self) -> LoggedCommand:
        """How it was started, as its log has it."""
        return command_of(self.words, self.settings)

    def _advice(self, name: C, text: str = "") -> list[str]:
        """What to do about a class here; ``text``: the failure's own words."""
        log = "\n".join(self.words)
        settings = self.settings
        found = advice_for(
            name, self.engine, text, settings, platform=self.platform, log=log
        )
        return self._fitting(found)

    def _fitting(self, advice: Iterable[str]) -> list[str]:
        """Without what another platform has."""
        return [text for text in advice if not of_other_platform(text, self.platform)]

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
        if event.name is C.KILLED_BY_INPUT:
            # No request had come.
            event = replace(event, name=C.ENGINE_DEFECT, why=(), by="")
        start = self._below(event.raised)
        if event.name not in _KEPT_AT_START or _set_up(event.text):
            event = replace(event, name=C.FAILED_START, sure=starting)
        cause = self._cause(event, why)
        return cause.model_copy(update={"start": start}) if start else cause

    def _besides(self, event: LogEvent) -> list[str]:
        """The first other thing that may have ended it as well."""
        for other in self.fatal:
            if other.name in _STRONG and other.name is not event.name:
                return [f"besides ({_where(other.line, other)}): {other.shown}"]
        return []

    def _below(self, raised: RaisedException | None) -> StartCause | None:
        # What it needs is half of the harness.
        from mmrepro.live.diagnose.starts import below

        start = below(self.lines, raised, self.engine)
        if start is None:
            return None
        return start.model_copy(update={"advice": self._fitting(start.advice)})

    def _died(self) -> Cause | None:
        """A process is gone, and no line says of what."""
        line = self.death
        if line is None:
            return None
        quoted = self._quoted() or self._passed_on()
        if quoted is not None:
            return quoted
        if hinted := self._nameless_fault():
            return hinted
        if self._only_echoes(line) or rules.CHILD_FAILED.search(line.own_words):
            return self._logged_before(line)

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
            process=process_gone(text) or line.process or line.rank,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=self._advice(name, text),
            start=start,
        )

    def _nameless_fault(self) -> Cause | None:
        """What torch prints below each error of a GPU, where the error itself is not in
        the log."""
        line = self._first_with(rules.BELOW_GPU_ERRORS)
        if line is None:
            return None
        event = LogEvent(
            name=C.GPU_FAULT,
            sure=POSSIBLE,
            text=line.own_words.strip(),
            line=line,
            process=line.process,
            time=line.time,
            when=line.when,
            by="An error of the GPU ended it; which one, this part of the log does "
            "not say",
        )
        return self._cause(event, ["only what follows such an error is in the log"])

    def _only_echoes(self, end: LogLine) -> bool:
        """Whether the log begins with what was said of a failure before it: nothing in
        it is older, neither work nor a start."""
        for place, (line, text) in enumerate(self.worded):
            if line.number >= end.number:
                return not self._any_with(rules.STARTS_FAILED)
            if place in self.taken or not text.strip():
                continue
            if line.level not in _ERRORS and not is_bare_line(line):
                return False
            if not rules.ANNOUNCES.search(text):
                return False
        return False

    def _first_echo(self) -> RaisedException | None:
        for raised in self.raised:
            if rules.ECHO.search(raised.text):
                return raised
        return None

    def _logged_before(self, line: LogLine) -> Cause:
        """The answer of a log that has the echo alone."""
        echo = self._first_echo()
        told = echo.told if echo is not None else line.own_words.strip()
        return Cause(
            name=C.UNKNOWN,
            certainty=POSSIBLE,
            sentence=(
                "These lines are the echo of a failure: its cause was logged before "
                "them, and is not in this log."
            ),
            exception=told[: 2 * SHOWN] if echo is not None else "",
            process=line.process,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=[f"{_where(line)}: {told[:SHOWN]}"],
            advice=self._advice(C.UNKNOWN, line.own_words),
        )

    def _quoted(self) -> Cause | None:
        """What an echo says of the exception that the log does not show."""
        for raised in self.raised:
            match = rules.QUOTES.search(raised.text)
            if match is None:
                continue
            quotes = [text for text in match.groups() if text]
            rule = rules.meaning(quotes[0], exception=True)
            event = LogEvent(
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
        """The heartbeats after the last work, with their seconds."""
        last = self.last_work.number if self.last_work else 0
        beats: list[tuple[LogLine, int]] = []
        for line, text in self.worded:
            if line.number <= last or (before is not None and line.number >= before):
                continue
            match = rules.HEARTBEAT.search(text)
            if match:
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
            f"{count(self.stuck, 'request')} came after it",
        ]
        if error is not None:
            why.append(f"its last error ({_where(error.line)}): {error.told[:SHOWN]}")
        were = "was" if self.stuck == 1 else "were"
        return Cause(
            name=C.HANG,
            certainty=LIKELY if silent >= _SILENT_S else POSSIBLE,
            sentence=(
                f"{count(self.stuck, 'request')} arrived after the engine's last "
                f"activity and {were} never scheduled."
            ),
            exception=error.told[: 2 * SHOWN] if error else "",
            process=error.process if error else "",
            time=last.time,
            line=_at(last),
            file=last.file,
            why=why,
            advice=self._advice(C.HANG),
        )

    def _error_before_silence(self, last: PlacedLine) -> RaisedException | None:
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
        never_fits = self._never_fits(after, last) if after else None
        if never_fits is not None:
            return never_fits
        if len(stalls) < _STALLS and len(beats) < _HEARTBEATS:
            return None

        why: list[str] = []
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
            advice=self._advice(C.HANG),
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
        return others > _OTHERS

    def _shut(self) -> PlacedLine | None:
        """The line with which it begins to go by itself, as it does when it is told to."""
        for line, text in self.worded[-80:]:
            if _SHUT.search(text):
                return line
        return None

    def _never_fits(
        self, after: Sequence[tuple[LogLine, re.Match[str]]], last: LogLine | None
    ) -> Cause | None:
        """Requests wait while none runs and the KV cache is empty, in every reading."""
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
            sentence="Requests wait, none runs, and the KV cache is empty: nothing can "
            "make room.",
            process=line.process,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=self._advice(C.NEVER_FITS),
        )

    def _alive(self) -> Cause | None:
        """It works up to the end of the log, or was shut down; None: no line shows work,
        nor that it was ready."""
        crowded = self._overloaded()
        if crowded is not None:
            return crowded
        last = self.last_work
        seen = last or self._first_with(rules.READY)
        if seen is None:
            return None
        shut = self._shut()
        if shut is not None and shut.number > seen.number:
            event = LogEvent(
                name=C.KILLED_BY_SIGNAL,
                sure=POSSIBLE,
                text=f"it was shut down: {shut.own_words}",
                line=shut,
                process=shut.process,
                time=shut.time,
            )
            why = [f"last work before it: {_where(seen)}"] if last else []
            return self._cause(event, why)
        refused = self._refused_for_size()
        if refused is not None:
            return refused
        if error := self._errors_after(seen):
            return error

        at = f" at {seen.time}" if seen.time else ""
        what = "It worked" if last else "It was ready"
        failed = self._failed_request
        advice = self._advice(C.ALIVE)
        if failed is not None:
            advice = [*self._advice(failed.name, failed.shown_with_frames), *advice]
        return Cause(
            name=C.ALIVE,
            certainty=LIKELY if last else POSSIBLE,
            sentence=f"{what}{at}, and no line after it says that it ended.",
            process=seen.process,
            time=seen.time,
            line=_at(seen),
            file=seen.file,
            why=[f"last work: {_where(seen)}" if last else f"ready: {_where(seen)}"],
            advice=advice,
        )

    def _errors_after(self, seen: PlacedLine) -> Cause | None:
        """Errors of the engine's own processes after all that shows that it works: what
        they mean is not known, and neither is that it lives."""
        error = self._first_error(after=seen.number, without=self._fronts())
        if error is None or rules.REQUEST_SOURCES.search(error.source):
            return None
        shown = public_line(error).strip()[:SHOWN]
        at = f" at {seen.time}" if seen.time else ""
        return Cause(
            name=C.UNKNOWN,
            certainty=POSSIBLE,
            sentence=f"It worked{at}; after that come errors that no rule knows: {shown}",
            process=error.process,
            time=error.time,
            line=_at(error),
            file=error.file,
            why=[f"last work: {_where(seen)}", f"{_where(error)}: {shown}"],
            advice=self._advice(C.UNKNOWN),
        )

    def _fronts(self) -> set[str]:
        """Processes that answer requests or count them, and those without a name: their
        errors may be a request's."""
        fronts = {""}
        for line, text in self.worded:
            forms = (rules.READY, rules.ANSWERED, rules.STATS, _ADDED)
            if any(form.search(text) for form in forms):
                fronts.add(line.process)
        return fronts

    def _overloaded(self) -> Cause | None:
        """It refuses requests again and again, or ever more of them wait."""
        refusals = [line for line, text in self.worded if rules.OVERLOAD.search(text)]
        recent = self.stats[-_STALLS:]
        waiting = [int(match["waiting"] or 0) for _, match in recent]
        grows = waiting == sorted(waiting)
        crowded = len(recent) == _STALLS and min(waiting) >= _WAITING and grows
        if len(refusals) < _STALLS and not crowded:
            return None

        line = refusals[0] if len(refusals) >= _STALLS else recent[0][0]
        why: list[str] = []
        if refusals:
            first = refusals[0]
            why.append(
                f"{len(refusals)} lines, first ({_where(first)}): {first.own_words[:SHOWN]}"
            )
        if crowded:
            why.append(f"waiting {' → '.join(map(str, waiting))} in the last readings")
        return Cause(
            name=C.OVERLOADED,
            certainty=LIKELY if crowded else POSSIBLE,
            sentence="It works, and gets more work than it can do.",
            process=line.process,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=why,
            advice=self._advice(C.OVERLOADED),
        )

    def _refused_for_size(self) -> Cause | None:
        for line, text in self.worded:
            if rules.NEVER_FITS.search(text):
                event = LogEvent(
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
        if self.taken or not self.lines:
            return None
        for line in self.lines:
            if line.level or line.time or line.process or line.engine:
                return None
        if self._any_with(rules.NATIVE_FRAMES):
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
                f"This is {what}." if what else "This does not look like a server log."
            ),
            line=_at(self.lines[0]),
            file=self.lines[0].file,
            why=[f"no line has a time, a level or a process: {text.strip()[:80]!r}"],
            advice=self._advice(C.NOT_A_LOG),
        )

    def _unknown(self) -> Cause:
        """The log does not tell: it is none, or shows a refusal, or nothing at all."""
        known = self._no_log() or self._refused_for_size() or self._starting_yet()
        if known is not None:
            return known
        advice = self._advice(C.UNKNOWN)
        if hinted := self._nameless_fault():
            return hinted
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
        error = self._first_error()
        if error is not None:
            return Cause(
                name=C.UNKNOWN,
                certainty=POSSIBLE,
                sentence=(
                    "The log shows neither an end nor work done; its first error is: "
                    f"{public_line(error).strip()[:SHOWN]}"
                ),
                process=error.process,
                time=error.time,
                line=_at(error),
                file=error.file,
                advice=advice,
            )
        return Cause(
            name=C.UNKNOWN,
            certainty=POSSIBLE,
            sentence="The log shows neither an end nor work done.",
            advice=advice,
        )

    def _first_error(
        self, after: int = 0, without: Collection[str] = ()
    ) -> PlacedLine | None:
        """The first line, behind the one of that number, that its logger calls an
        error; ``without`` those of some processes."""
        for line, text in self.worded:
            error = line.level in _ERRORS and text.strip() != ""
            if error and line.number > after and line.process not in without:
                return line
        return None


# ---------------------------------------------------------------- lines


def _at(line: LogLine) -> int:
    """The number of a line in its file."""
    return line.at if isinstance(line, PlacedLine) else line.number


def _told_of(failure: FirstFailure) -> str:
    """The failure's first line, with its process, time and line."""
    words = [failure.process, failure.time]
    if failure.line is not None:
        words.append(f"line {failure.line}")
    place = ", ".join(word for word in words if word)
    return f"{failure.lines[0]} ({place})" if place else failure.lines[0]


def _set_up(text: str) -> bool:
    """An error of CUDA's that a set-up brings about, and no kernel."""
    return "error: " in text and rules.CUDA_SETUP.search(text) is not None


def _blame(blame: Blamed) -> tuple[str, ...]:
    lines = [f"{name}: {how}" for name, how in blame.fields.items()]
    if blame.set_there:
        lines.append(blame.set_there)
    return tuple(lines)


def _beat_words(beats: Sequence[tuple[LogLine, int]]) -> str:
    """For how long workers took no messages, for people."""
    seconds = sum(wait_s for _, wait_s in beats)
    took = f"{seconds // 60} minutes" if seconds >= 120 else f"{seconds} seconds"
    first, last = beats[0][0], beats[-1][0]
    at = f" ({first.time} to {last.time})" if first.time else ""
    return (
        f"workers take no messages for {took}{at}: {len(beats)} lines of shm_broadcast"
    )


def _where(line: LogLine, event: LogEvent | None = None) -> str:
    """Line, process and time, for people."""
    process, time = line.process or line.rank, line.time
    if event is not None:
        process, time = event.process, event.time or line.time
    words = [f"line {_at(line)}", process, time]
    return ", ".join(word for word in words if word)


def _sentence(name: C, text: str) -> str:
    words = CAUSE_WORDS[name]
    shown = text[:SHOWN].strip()
    words = f"{words[0].upper()}{words[1:]}"
    return f"{words}: {shown}" if shown else f"{words}."
