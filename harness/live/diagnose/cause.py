"""What ended or stopped a server, by the lines of its log alone. Pure functions.

The lines are those of one server, in their order; lines may be missing. A class is
named by what a line or an exception says; one that follows from something else as a
rule (a collective that times out, a connection that is closed) gives way to what
explains it. What is survived is no cause: work that is done after it shows that.
Nothing is concluded from a line that is not there, but that a process is gone "without
a word", which is never certain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise

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
from mmrepro.live.diagnose.cause_rules import CERTAIN, LIKELY, POSSIBLE, Rule
from mmrepro.live.diagnose.raised import Raised, frames_text, read, roots
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.probes.log_words import public_line

SHOWN = 240
AFTER_S = 30.0
"""Work that is logged so long after a failure is no echo of what was done before it."""
AFTER_LINES = 5
"""The same by lines of work, where they have no time."""
NEAR_S = 10.0
NEAR_LINES = 300
"""An explanation is looked for so far behind what it explains."""
FAR_LINES, FAR_S = 1000, 60.0
"""An exception so far before the end, in lines and in seconds, is of something else."""
STALLS = 3
"""Readings in a row, ten seconds apart, in which requests run and no token is made."""
HEARTBEATS = 2
OTHERS = 5
BACKWARDS = 5
"""Times that step back so often, and hardly ever forward, are those of an export."""
YEAR_S = 366 * 86400.0
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
KEPT_AT_START = frozenset(
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
UNTIED = frozenset({C.ENGINE_DEFECT, C.KILLED_BY_INPUT})
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
_ADDED = re.compile(r"Added request ")
_TRIGGERED = re.compile(r"^\[shutdown\] API server: shutdown triggered")
"""vllm/entrypoints/launcher.py since 0.23: on SIGTERM and SIGINT, before anything else
ends."""
_KILLED = re.compile(r"[Kk]ill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]+)\)")
_RANK = re.compile(r"\[(?:Rank|PG .{0,80}Rank) (\d+)\]")


@dataclass(frozen=True)
class Event:
    """What one line, or one exception, says that can end a server."""

    name: C
    sure: Certainty
    text: str
    line: LogLine
    process: str = ""
    time: str = ""
    when: float | None = None
    effect: bool = False
    raised: Raised | None = None
    why: tuple[str, ...] = ()
    by: str = ""
    advice: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.line.number


class _Placed(LogLine):
    """A line whose ``number`` is its place among all lines; ``at``: its number in its
    file."""

    at: int


@dataclass(frozen=True)
class Judged:
    """What the lines of one server tell."""

    cause: Cause
    others: list[Cause] = field(default_factory=list)
    noted: list[Cause] = field(default_factory=list)
    last_progress: LogLine | None = None
    engine: str = ""


def judge(lines: Sequence[LogLine], engine: str = "", *, stuck: int = 0) -> Judged:
    """What ended or stopped the server that wrote ``lines``.

    Args:
        engine: its name, for advice and for what follows from its own forms; "": not
            known.
        stuck: requests that were added after its last progress, and never scheduled.
    """
    told = [_Life(part, engine) for part in _lives(_ordered(lines))]
    told[-1].stuck = stuck
    ended = [n for n, life in enumerate(told) if life.first or life.death]
    if not ended or ended[-1] == len(told) - 1:
        return told[-1].judged()
    last = told[ended[-1]].judged()
    again = told[-1]
    at = _where(again.lines[0]) if again.lines else ""
    works = again.progress[-1].time if again.progress else ""
    after = f"it was started again ({at})" + (
        f" and worked at {works}" if works else ""
    )
    cause = last.cause.model_copy(update={"why": [*last.cause.why, after]})
    return replace(last, cause=cause)


def lines_of(data: LogsData) -> list[LogLine]:
    """Every line that a reading kept, in its order, each once."""
    kept = [
        *data.excerpt,
        *data.errors,
        *data.last_by_process.values(),
        *data.stuck_requests,
    ]
    kept += [line for lines in data.matches.values() for line in lines]
    single = (data.last_progress, data.last_work, data.first_line, data.last_line)
    kept += [line for line in single if line is not None]
    files = {file: n for n, file in enumerate(data.files)}
    # A message of several lines, in JSON, is one line of its file.
    unique = {
        (files.get(line.file, 0), line.number, line.text): line
        for line in reversed(kept)
    }
    places = list(reversed(unique))
    places.sort(key=lambda place: place[:2])
    return [unique[place] for place in places]


def servers(data: LogsData) -> list[ServerInLog]:
    """Each server of a log, judged for itself; first those that ended, as they stand in
    the log.

    A stream without a line of an engine's form (the kernel's, an init system's) is no
    server: its lines are told of each."""
    mine = [one for one in data.servers if one.engine]
    besides = [line for one in data.servers if not one.engine for line in lines_of(one)]
    found = []
    for one in mine or [data]:
        lines = lines_of(one) if one is not data else lines_of(data)
        if besides and one is not data:
            lines = sorted(
                [*lines, *besides], key=lambda line: (line.file, line.number)
            )
        judged = judge(lines, one.engine, stuck=one.stuck_count or 0)
        found.append(
            ServerInLog(
                name=one.stream,
                engine=one.engine or _engine_of(judged.cause) or judged.engine,
                release=one.release,
                cause=judged.cause,
                others=judged.others,
                last_progress=judged.last_progress,
                first_error=one.errors[0] if one.errors else None,
            )
        )
    return sorted(
        found, key=lambda s: (s.cause.name in NO_END, s.cause.name is not C.UNKNOWN)
    )


def _engine_of(cause: Cause) -> str:
    """By the title of the process that the kernel killed."""
    name = cause.process.partition("::")[0].casefold()
    return name if name in folders() and "::" in cause.process else ""


# ---------------------------------------------------------------- the order of lines


def _ordered(lines: Sequence[LogLine]) -> list[_Placed]:
    """As they came: files of several ranks by their times, an export of newest lines
    first turned round."""
    ordered = list(lines)
    files = list(dict.fromkeys(line.file for line in lines))
    if len(files) > 1:
        ordered = _merged(
            {file: [one for one in lines if one.file == file] for file in files}
        )
    elif _newest_first(lines):
        ordered.reverse()
    placed: list[_Placed] = []
    at = 0
    for n, one in enumerate(ordered):
        before = ordered[n - 1] if n and ordered[n - 1].file == one.file else None
        # Lines may be missing.
        at += max(1, abs(one.number - before.number)) if before else 1
        placed.append(
            _Placed.model_construct(**{**one.__dict__, "number": at, "at": one.number})
        )
    return placed


def _merged(files: Mapping[str, Sequence[LogLine]]) -> list[LogLine]:
    """By time where each file has times of the same kind, else one file after the
    other."""
    first = [
        next((one.when for one in lines if one.when is not None), None)
        for lines in files.values()
    ]
    known = [when for when in first if when is not None]
    if len(known) < len(first) or max(known) - min(known) > YEAR_S:
        return [line for lines in files.values() for line in lines]
    placed: list[tuple[float, int, LogLine]] = []
    for number, (lines, when) in enumerate(zip(files.values(), known, strict=True)):
        for line in lines:
            when = max(when, line.when) if line.when is not None else when
            placed.append((when, number, line))
    return [line for _, _, line in sorted(placed, key=lambda one: one[:2])]


def _newest_first(lines: Sequence[LogLine]) -> bool:
    times = [line.when for line in lines if line.when is not None]
    steps = [later - earlier for earlier, later in pairwise(times)]
    back = sum(step < 0 for step in steps)
    return back >= BACKWARDS and back > 10 * sum(step > 0 for step in steps)


# ---------------------------------------------------------------- one life of a server


def _lives(lines: Sequence[_Placed]) -> list[Sequence[_Placed]]:
    """Cut where a server is started again after one has ended."""
    parts: list[Sequence[_Placed]] = []
    begin, died = 0, False
    for n, line in enumerate(lines):
        words = line.own_words
        if died and re.search(
            r"vLLM (?:API )?server version|server_args=ServerArgs\(", words
        ):
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
        told = read(lines)
        self.raised, self.taken = roots(told.raised), told.taken
        self.words = [line.own_words for line in lines]

    # ------------------------------------------------------------ work

    @cached_property
    def progress(self) -> list[_Placed]:
        """Lines of work done; without any, answers of the front."""
        strong = [
            line
            for line, text in zip(self.lines, self.words, strict=True)
            if _moved(line, text)
        ]
        if strong or self.stats:
            return strong
        return [
            line
            for line, text in zip(self.lines, self.words, strict=True)
            if (match := rules.ANSWERED.search(text)) and match["status"] == "200"
        ]

    @cached_property
    def stats(self) -> list[tuple[LogLine, re.Match[str]]]:
        pairs = zip(self.lines, self.words, strict=True)
        return [
            (line, match) for line, text in pairs if (match := rules.STATS.search(text))
        ]

    def works_after(
        self, number: int, when: float | None, least: int = AFTER_LINES
    ) -> bool:
        later = [line for line in self.progress if line.number > number]
        if not later:
            return False
        timed = [line.when for line in later if line.when is not None]
        if when is not None and timed:
            return max(timed) > when + AFTER_S
        return len(later) >= least

    # ------------------------------------------------------------ death

    @cached_property
    def death(self) -> LogLine | None:
        """The first line with which a process of it is gone, where no work follows.
        What goes because the server was told to go is none."""
        told = self._told_to_go
        for line, text in zip(self.lines, self.words, strict=True):
            if told is not None and line.number > told.number:
                return None
            if re.search(rules.DEATHS, text) and not _SETTINGS.search(text):
                if self.works_after(line.number, line.when):
                    continue
                return line
        return None

    @cached_property
    def _told_to_go(self) -> _Placed | None:
        """The line with which it begins to end by itself."""
        pairs = zip(self.lines, self.words, strict=True)
        return next((line for line, text in pairs if _TRIGGERED.search(text)), None)

    @cached_property
    def events(self) -> list[Event]:
        """All that can end a server, as it came; what was survived as well."""
        found: list[Event] = []
        told = self._told_to_go
        for one in self.raised:
            if told is not None and one.line.number > told.number:
                continue
            if rules.ECHO.search(one.text) or self._of_a_request(one):
                continue
            if one.line.level in ("WARNING", "DEBUG"):
                continue
            found.append(self._of(one))
        for line, text in zip(self.lines, self.words, strict=True):
            if line.number not in self.taken and (event := _alone(line, text)):
                found.append(event)
        return sorted(found, key=lambda event: event.number)

    @cached_property
    def fatal(self) -> list[Event]:
        lasting = [
            event
            for event in self.events
            if not self.works_after(
                event.number, event.when, 1 if event.effect else AFTER_LINES
            )
        ]
        return [event for event in lasting if not self._long_before(event)]

    def _long_before(self, event: Event) -> bool:
        """Whether the end came so much later that it is another one's."""
        end = self.death
        if end is None or event.number > end.number - FAR_LINES:
            return False
        return event.when is None or end.when is None or end.when > event.when + FAR_S

    @cached_property
    def first(self) -> Event | None:
        """What the end began with."""
        if not self.fatal:
            return None
        first = self.fatal[0]
        if not first.effect:
            return first
        for event in self.fatal[1:]:
            killed = first.name is C.KILLED_BY_SIGNAL and not event.effect
            if (event.name in STRONG or killed) and _near(first, event):
                return event
        return first

    def _of_a_request(self, one: Raised) -> bool:
        """Whether it is answered with an error, and ends nothing."""
        source = one.source.rpartition(":")[0] or one.source
        if rules.REQUEST_SOURCES.search(source) or rules.REQUEST_INTRO.search(
            one.intro
        ):
            return True
        files = "\n".join(frame.file for frame in one.frames)
        return bool(
            rules.REQUEST_FRAMES.search(files) or rules.REQUEST_TEXT.search(one.text)
        )

    def _of(self, one: Raised) -> Event:
        rule = rules.meaning(one.text, exception=True)
        name, sure = (rule.name, rule.sure) if rule else (C.ENGINE_DEFECT, LIKELY)
        why: tuple[str, ...] = ()
        by = ""
        if name is C.PLACEHOLDER_COUNTS:
            counted = placeholders(one.text)
            if counted is None:
                name, sure = C.ENGINE_DEFECT, LIKELY
            else:
                sure, by = (CERTAIN if counted.inside else LIKELY), counted.sentence
        elif name in (C.ENGINE_DEFECT, C.GPU_FAULT):
            found = blamed(one, self.lines)
            if found is not None:
                name, sure, why = C.KILLED_BY_INPUT, found.sure, _blame(found)
                by = (
                    "A request ended the engine, by its field "
                    f"{' or '.join(found.fields)}"
                )
        if rule is not None and rule.sentence:
            by = rule.sentence
        who = rules.WHOSE.search(one.intro) if not one.process else None
        process = who["name"] if who else one.process
        return Event(
            name,
            sure,
            one.told,
            one.line,
            process,
            one.time,
            one.when,
            effect=bool(rule and rule.effect),
            raised=one,
            why=why,
            by=by,
            advice=rule.advice if rule else (),
        )

    # ------------------------------------------------------------ start

    @cached_property
    def starting(self) -> Certainty | None:
        """How sure it is that what ended it ended a start; None: it had been at work,
        or nothing tells."""
        end = (
            self.first.number
            if self.first
            else self.death.number
            if self.death
            else None
        )
        if end is None or any(line.number < end for line in self.progress):
            return None
        if any(rules.AFTER_START.search(text) for text in self.words):
            return None
        if any(rules.STARTS_FAILED.search(text) for text in self.words):
            return CERTAIN
        ready = next(
            (n for n, text in enumerate(self.words) if rules.READY.search(text)), None
        )
        if ready is not None and self.lines[ready].number < end:
            return None
        one = self.first.raised if self.first else None
        frames = frames_text(one, 60) if one else ""
        if rules.START_FRAMES.search(frames) and not rules.LOOP_FRAMES.search(frames):
            return LIKELY
        if rules.LOOP_FRAMES.search(frames):
            return None
        if rules.ENTRY_FRAMES.search(frames):
            return LIKELY
        if one is not None and (rules.START_TEXT.search(one.text) or _set_up(one.text)):
            return LIKELY
        begins = any(rules.STARTING.search(text) for text in self.words)
        return LIKELY if begins else None

    # ------------------------------------------------------------ the answer

    def judged(self) -> Judged:
        cause = (
            self._never_scheduled() or self._ended() or self._stands() or self._alive()
        )
        cause = cause or self._unknown()
        shown = (
            self.first if self.first and cause.line == _at(self.first.line) else None
        )
        later = [e for e in self.fatal if e is not shown and e.name is not cause.name]
        others: dict[C, Cause] = {}
        for event in later:
            others.setdefault(event.name, self._cause(event))
        noted = [
            self._cause(
                Event(
                    C.PLACEHOLDER_COUNTS,
                    CERTAIN if one.inside else LIKELY,
                    text.strip(),
                    line,
                    line.process,
                    line.time,
                    line.when,
                    by=one.sentence,
                )
            )
            for line, text in zip(self.lines, self.words, strict=True)
            if (one := placeholders(text)) is not None
        ]
        engine = self.engine or self._engine_by_frames()
        kept = list(others.values())[:8]
        return Judged(cause, kept, noted, self._last_progress(cause), engine)

    def _engine_by_frames(self) -> str:
        """Whose code the tracebacks are of; "" where no line has a form of its own, nor
        frames."""
        files = [frame.file for one in self.raised for frame in one.frames]
        counts = {
            name: sum(
                f"/{name}/" in file or file.startswith(f"{name}/") for file in files
            )
            for name in published()
        }
        best = max(counts, key=lambda name: counts[name])
        return best if counts[best] else self._engine_by_processes()

    def _engine_by_processes(self) -> str:
        """Whose processes the lines are of, by their names; "": they do not tell."""
        for engine in folders():
            form = facts(engine).log_processes
            if form and any(re.match(form, line.process) for line in self.lines):
                return engine
        return ""

    def _last_progress(self, cause: Cause) -> LogLine | None:
        ends = [
            line
            for line in (self.death, self.first.line if self.first else None)
            if line
        ]
        end = min((line.number for line in ends), default=None)
        done = [line for line in self.progress if end is None or line.number < end]
        if not done:
            return None
        return LogLine.model_construct(
            **{name: getattr(done[-1], name) for name in LogLine.model_fields}
            | {"number": _at(done[-1])}
        )

    def _cause(self, event: Event, why: Iterable[str] = ()) -> Cause:
        name = event.name
        first = f"{_where(event.line, event)}: {event.text[:SHOWN]}"
        return Cause(
            name=name,
            certainty=event.sure,
            sentence=f"{event.by.rstrip('.')}: {event.text[:SHOWN]}"
            if event.by
            else _sentence(name, event.text),
            exception=event.text[: 2 * SHOWN],
            process=event.process,
            time=event.time,
            line=_at(event.line),
            file=event.line.file,
            why=[first, *event.why, *why],
            advice=[
                *event.advice,
                *advice_for(name, self.engine, event.text, self.settings),
            ],
        )

    @cached_property
    def settings(self) -> str:
        """The lines in which the server logs its own settings."""
        told = (line.text for line in self.lines if _OWN_SETTINGS.search(line.text))
        return "\n".join(islice(told, 8))

    def _ended(self) -> Cause | None:
        event = self.first
        if event is None:
            return self._died()
        why = []
        if (before := self._since(event.number)) is not None:
            why.append(f"last work before it: {_where(before)}")
        elif event.name in (C.HANG, C.COLLECTIVE_TIMEOUT, C.WORKER_UNRESPONSIVE):
            event = replace(event, sure=POSSIBLE) if event.name is C.HANG else event
        beats = self._heartbeats(event.number)
        if beats and event.effect:
            why.append(_beat_words(beats))
        if self.death is not None:
            why.append(
                f"its end ({_where(self.death)}): {self.death.own_words[:SHOWN]}"
            )
        elif event.sure is CERTAIN and event.raised is not None:
            event = replace(event, sure=LIKELY)
            why.append("the log does not show that the server ended")
        for other in self.fatal:
            if (
                other is not event
                and other.name is not event.name
                and other.name in STRONG
            ):
                why.append(
                    f"besides ({_where(other.line, other)}): {other.text[:SHOWN]}"
                )
                break
        starting = self.starting
        kept = event.name in KEPT_AT_START and not _set_up(event.text)
        if starting is None:
            return self._cause(event, why)
        start = self._below(event.raised)
        if not kept:
            event = replace(event, name=C.FAILED_START, sure=starting)
        cause = self._cause(event, why)
        return cause.model_copy(update={"start": start}) if start else cause

    def _below(self, one: Raised | None) -> StartCause | None:
        answers = (rule(self.lines, one, self.engine) for rule in rules.START_RULES)
        return next((answer for answer in answers if answer is not None), None)

    def _died(self) -> Cause | None:
        """A process is gone, and no line says of what."""
        line = self.death
        if line is None:
            return None
        text = line.own_words
        if (quoted := self._quoted() or self._passed_on()) is not None:
            return quoted
        starting = self.starting
        # Each of these logs its exception: the log is cut before it.
        cut = _CUT.search(text)
        name, sure = (C.UNKNOWN, POSSIBLE) if cut else (C.DIED_WITHOUT_A_WORD, LIKELY)
        if starting is not None:
            name, sure = C.FAILED_START, starting
        gone = _gone(text) or line.process or line.rank
        before = self._since(line.number)
        told = (
            "it ended with an exception that the log does not show"
            if cut
            else text[:SHOWN]
        )
        start = self._below(None) if name is C.FAILED_START else None
        return Cause(
            name=name,
            certainty=sure,
            sentence=_sentence(name, told),
            process=gone,
            time=line.time,
            line=_at(line),
            file=line.file,
            why=[
                f"{_where(line)}: {text[:SHOWN]}",
                *([f"last work before it: {_where(before)}"] if before else []),
            ],
            advice=advice_for(name, self.engine, text),
            start=start,
        )

    def _quoted(self) -> Cause | None:
        """What an echo says of the exception that the log does not show."""
        for one in self.raised:
            if (match := rules.QUOTES.search(one.text)) is None:
                continue
            said = next(text for text in match.groups() if text)
            rule = rules.meaning(said, exception=True)
            name = rule.name if rule else C.ENGINE_DEFECT
            process = one.process
            event = Event(
                name, POSSIBLE, one.told, one.line, process, one.time, one.when
            )
            if self.starting is not None and name not in KEPT_AT_START:
                event = replace(event, name=C.FAILED_START, sure=self.starting)
            return self._cause(event, ["the exception itself is not in the log"])
        return None

    def _passed_on(self) -> Cause | None:
        """The exception as a request got it, where the engine's own is not in the log;
        one after which it worked ended nothing."""
        worked = self.progress[-1].number if self.progress else 0
        for one in self.raised:
            if (
                one.line.number > worked
                and self._of_a_request(one)
                and not rules.ECHO.search(one.text)
            ):
                event = replace(self._of(one), sure=POSSIBLE)
                return self._cause(event, ["it is the exception that a request got"])
        return None

    # ------------------------------------------------------------ no end: does it move?

    def _since(self, number: int) -> LogLine | None:
        before = [line for line in self.progress if line.number < number]
        return before[-1] if before else None

    def _heartbeats(self, before: int | None = None) -> list[tuple[LogLine, int]]:
        """Those after the last work, with their seconds."""
        last = self.progress[-1].number if self.progress else 0
        pairs = zip(self.lines, self.words, strict=True)
        return [
            (line, int(match[1]))
            for line, text in pairs
            if (match := rules.HEARTBEAT.search(text))
            and line.number > last
            and (before is None or line.number < before)
        ]

    def _never_scheduled(self) -> Cause | None:
        """Requests came after its last work, none was scheduled, and no line shows an
        end."""
        first, last = self.first, self.progress[-1] if self.progress else None
        survived = first is None or (first.raised is not None and first.name in UNTIED)
        if not self.stuck or last is None or self.death is not None or not survived:
            return None
        times = [line.when for line in self.lines if line.when is not None]
        silent = max(times) - last.when if times and last.when is not None else 0.0
        before = [
            one
            for one in self.raised
            if one.line.number <= last.number or first is None or one is first.raised
        ]
        mine = [one for one in before if one.process and one.process != self._front()]
        why = [
            f"last work: {_where(last)}",
            f"{self.stuck} requests were added after it",
        ]
        if mine:
            why.append(
                f"its last error ({_where(mine[-1].line)}): {mine[-1].told[:SHOWN]}"
            )
        return Cause(
            name=C.HANG,
            certainty=LIKELY if silent >= SILENT_S else POSSIBLE,
            sentence=(
                f"{self.stuck} requests were added after its last work, and never "
                "scheduled."
            ),
            exception=mine[-1].told[: 2 * SHOWN] if mine else "",
            process=mine[-1].process if mine else "",
            time=last.time,
            line=_at(last),
            file=last.file,
            why=why,
            advice=advice_for(C.HANG, self.engine, ""),
        )

    def _front(self) -> str:
        """The process that takes requests in."""
        pairs = zip(self.lines, self.words, strict=True)
        return next((line.process for line, text in pairs if _ADDED.search(text)), "")

    def _stands(self) -> Cause | None:
        """Requests run, or wait, and nothing moves up to the end of the log."""
        last = self.progress[-1] if self.progress else None
        after = [
            (line, m)
            for line, m in self.stats
            if last is None or line.number > last.number
        ]
        stalls = [(line, m) for line, m in after if int(m["running"] or 0) > 0]
        beats = self._heartbeats()
        if self._shut() is not None or (beats and self._goes_on(beats[0][0].number)):
            return None
        if after and (full := self._never_fits(after, last)):
            return full
        if len(stalls) < STALLS and len(beats) < HEARTBEATS:
            return None
        sure = LIKELY if stalls and last is not None else POSSIBLE
        why = []
        if last is not None:
            why.append(f"no progress since {_where(last)}")
        if stalls:
            at = f"{stalls[0][0].time} to {stalls[-1][0].time}"
            why.append(
                f"requests run and no token is made in {len(stalls)} readings, {at}"
            )
        if beats:
            why.append(_beat_words(beats))
        line = stalls[0][0] if stalls else beats[0][0]
        since = f" since {last.time}" if last is not None and last.time else ""
        return Cause(
            name=C.HANG,
            certainty=sure,
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
        pairs = zip(self.lines, self.words, strict=True)
        other = [
            line
            for line, text in pairs
            if line.number > number
            and line.level
            and line.source
            and not (rules.HEARTBEAT.search(text) or rules.STATS.search(text))
        ]
        return len(other) > OTHERS

    def _shut(self) -> _Placed | None:
        """Where it begins to go by itself, as it does when it is told to."""
        pairs = list(zip(self.lines, self.words, strict=True))[-80:]
        return next((line for line, text in pairs if _SHUT.search(text)), None)

    def _never_fits(
        self, after: Sequence[tuple[LogLine, re.Match[str]]], last: LogLine | None
    ) -> Cause | None:
        waits = [
            (line, m)
            for line, m in after
            if int(m["running"] or 0) == 0 and int(m["waiting"] or 0) > 0
        ]
        if len(waits) < STALLS or len(waits) < len(after):
            return None
        if any(float(m["usage"] or 0) > 1.0 for _, m in waits):
            return None
        line, match = waits[0]
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
            why=[
                f"running 0, waiting {match['waiting']}, KV cache in use "
                f"{match['usage'] or '?'} % "
                f"in {len(waits)} readings, {line.time} to {waits[-1][0].time}",
                *([f"last work before it: {_where(last)}"] if last else []),
            ],
            advice=advice_for(C.NEVER_FITS, self.engine, ""),
        )

    def _alive(self) -> Cause | None:
        last = self.progress[-1] if self.progress else None
        ready = next(
            (
                line
                for line, text in zip(self.lines, self.words, strict=True)
                if rules.READY.search(text)
            ),
            None,
        )
        seen = last or ready
        if crowded := self._overloaded():
            return crowded
        if seen is None:
            return None
        if (shut := self._shut()) is not None and shut.number > seen.number:
            told = f"it was shut down: {shut.own_words}"
            event = Event(
                C.KILLED_BY_SIGNAL, POSSIBLE, told, shut, shut.process, shut.time
            )
            return self._cause(
                event, [f"last work before it: {_where(seen)}"] if last else []
            )
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
        pairs = zip(self.lines, self.words, strict=True)
        told = [line for line, text in pairs if rules.OVERLOAD.search(text)]
        recent = self.stats[-STALLS:]
        waiting = [int(m["waiting"] or 0) for _, m in recent]
        crowded = (
            len(recent) == STALLS
            and min(waiting) >= WAITING
            and waiting == sorted(waiting)
        )
        if len(told) < STALLS and not crowded:
            return None
        line = told[0] if len(told) >= STALLS else recent[0][0]
        why = []
        if told:
            why.append(
                f"{len(told)} lines, first ({_where(told[0])}): "
                f"{told[0].own_words[:SHOWN]}"
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
        for line, text in zip(self.lines, self.words, strict=True):
            if rules.NEVER_FITS.search(text):
                event = Event(
                    C.NEVER_FITS, LIKELY, text, line, line.process, line.time, line.when
                )
                return self._cause(event)
        return None

    def _no_log(self) -> Cause | None:
        """Nothing in it has the form of a log's line, and nothing of it is an
        exception."""
        marked = any(
            line.level or line.time or line.process or line.engine
            for line in self.lines
        )
        if marked or self.raised or self.taken or not self.lines:
            return None
        text = "\n".join(self.words[:200])
        what = next((name for name, form in rules.NO_LOGS if form.search(text)), "")
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
        if (none := self._no_log()) is not None:
            return none
        if refused := self._refused_for_size():
            return refused
        request = next((one for one in self.raised if self._of_a_request(one)), None)
        told = "The log shows neither an end nor work done."
        if request is not None:
            told = "The log shows that a request was refused, and no end."
        return Cause(
            name=C.UNKNOWN,
            certainty=POSSIBLE,
            sentence=told,
            exception=request.told[: 2 * SHOWN] if request else "",
            process=request.process if request else "",
            time=request.time if request else "",
            line=_at(request.line) if request else None,
            file=request.line.file if request else "",
            advice=advice_for(C.UNKNOWN, self.engine, ""),
        )


# ---------------------------------------------------------------- lines


def _moved(line: LogLine, text: str) -> bool:
    if match := rules.STATS.search(text):
        return float(match["prompt"]) > 0 or float(match["generation"]) > 0
    return bool(
        rules.BATCH.search(text)
        or re.search(r"\[TM\]\[INFO\].{0,80}\bstep = |\bstep = \d+, .*\[TM\]", text)
        or re.search(
            r"EngineCore loop active|EngineCore waiting for work|Finished request ",
            text,
        )
    )


def _alone(line: LogLine, text: str) -> Event | None:
    """What a line without an exception says."""
    if _SETTINGS.search(text) or "please ignore" in text:
        return None
    rule = rules.meaning(text, exception=False)
    if rule is None or not _loud(line, rule) or rules.HEARTBEAT.search(text):
        return None
    why: tuple[str, ...] = ()
    said = public_line(line)
    shown, process = said.strip(), line.process
    bar = "%|" in shown and rule.bounded is None
    if bar and (found := rule.expression.search(said)):
        shown = said[found.start() :].strip()  # a bar of progress stands before it
    if match := rules.XID.search(text):
        code = int(match["code"])
        meant = rules.XIDS.get(code, "see NVIDIA's table of Xid errors")
        shown, why = f"Xid {code}: {match['rest'] or meant}", (f"Xid {code}: {meant}",)
        process = f"GPU {match['bus']}"
        if code in (43, 45):
            rule = replace(rule, effect=True, sure=LIKELY)
    elif match := _KILLED.search(text):
        process = f"{match['name']} pid={match['pid']}"
    elif match := _RANK.search(text):
        process = process or f"rank {match[1]}"
    process = _gone(text) or process or line.rank
    return Event(
        rule.name,
        rule.sure,
        shown,
        line,
        process,
        line.time,
        line.when,
        rule.effect,
        why=why,
        by=rule.sentence,
        advice=rule.advice,
    )


def _loud(line: LogLine, rule: Rule) -> bool:
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
    found = {name: value for name, value in match.groupdict().items() if value}
    if pid := found.get("pid"):
        return f"engine process pid={pid}"
    if rank := found.get("rank") or found.get("ranks"):
        return f"rank {rank.strip('[]')}"
    if worker := found.get("worker"):
        return f"{worker} pid={found['wpid']}"
    if proc := found.get("proc"):
        return f"pid={proc}"
    pid = found.get("pid2")
    return found["name"] + (f" pid={pid}" if pid else "")


def _near(first: Event, other: Event) -> bool:
    if first.when is not None and other.when is not None:
        return other.when <= first.when + NEAR_S
    return other.number <= first.number + NEAR_LINES


def _blame(found: Blamed) -> tuple[str, ...]:
    return tuple(f"{name}: {how}" for name, how in found.fields.items()) + (
        (found.set_there,) if found.set_there else ()
    )


def _beat_words(beats: Sequence[tuple[LogLine, int]]) -> str:
    seconds = sum(s for _, s in beats)
    took = f"{seconds // 60} minutes" if seconds >= 120 else f"{seconds} seconds"
    at = f" ({beats[0][0].time} to {beats[-1][0].time})" if beats[0][0].time else ""
    return (
        f"workers take no messages for {took}{at}: {len(beats)} lines of shm_broadcast"
    )


def _where(line: LogLine, event: Event | None = None) -> str:
    process = event.process if event else line.process or line.rank
    time = (event.time if event else "") or line.time
    return ", ".join(filter(None, [f"line {_at(line)}", process, time]))


def _sentence(name: C, text: str) -> str:
    words = CAUSE_WORDS[name]
    told = text[:SHOWN].strip()
    return f"{words[0].upper()}{words[1:]}" + (f": {told}" if told else ".")
