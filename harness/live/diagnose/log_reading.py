"""What logs tell, from files to one document: read once, each server judged."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mmrepro import __version__
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, Engine, get_engine, log_marks
from mmrepro.failure.documents import (
    CauseClass,
    DumpReading,
    KnownFailure,
    LogFacts,
    LogReading,
    ServerInLog,
)
from mmrepro.failure.signature.live_server import LOG_PATTERNS
from mmrepro.live.diagnose import cause, cause_rules, dumps
from mmrepro.live.diagnose.kernel import NOT_RESTARTED
from mmrepro.live.diagnose.log_facts import fetch_command
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.probes import (
    NEEDLES,
    AnyProbeResult,
    LogPattern,
    LogsData,
    LogsProbe,
    ProbeResult,
    StacksData,
    identify_log,
    run_probe,
)
from mmrepro.probes.dumps import Dump, stacks_in_log
from mmrepro.probes.log_files import BROKEN, kept, logs_in, open_log, with_rotated
from mmrepro.tools.catalogue import Matched, find_failures
from packaging.specifiers import InvalidSpecifier, SpecifierSet

_PEEK_BYTES = 1 << 20
_SAMPLE_BYTES = 64 << 10
"""Of a log's beginning: what stands around its lines is the same in all of it."""
_STACKS = "stacks"
_STACKS_HERE = LogPattern("|".join(map(re.escape, NEEDLES)), *NEEDLES)
NO_CAUSE = frozenset(
    {
        CauseClass.UNKNOWN,
        CauseClass.ALIVE,
        CauseClass.NOT_A_LOG,
        CauseClass.DIED_WITHOUT_A_WORD,
    }
)


def read_logs(
    paths: Sequence[Path],
    engine: str = "auto",
    *,
    alone: bool = False,
    deadline_s: float = 600.0,
    more: Mapping[str, str] | None = None,
    rules: Path | None = None,
) -> LogReading:
    """Read ``paths`` as one timeline, and judge each server in it.

    Args:
        paths: files, folders of them, or ``-`` for the standard input.
        engine: its name; "auto": by the form of the lines.
        alone: without what was rotated away from them.
        more: patterns whose lines are wanted besides, by name.
        rules: an operator's own, tried before all others.

    Raises:
        UsageError: no such engine, the rules do not load, or nothing could be read.
    """
    with cause_rules.with_rules(rules):
        return _read_logs(paths, engine, alone, deadline_s, more or {})


def _read_logs(
    paths: Sequence[Path],
    engine: str,
    alone: bool,
    deadline_s: float,
    more: Mapping[str, str],
) -> LogReading:
    with tempfile.TemporaryDirectory(prefix="mmrepro-logs-") as folder:
        given, files = dumps.sort(kept(paths, Path(folder)))
        if given and not files:
            return _of_dumps(
                dumps.read(given, engine="" if engine == "auto" else engine)
            )
        chosen = get_engine(engine) if engine != "auto" else _written_by(files)
        probe = LogsProbe(
            files,
            {
                **cause_rules.PATTERNS,
                **LOG_PATTERNS,
                **scenario_patterns(chosen),
                _STACKS: _STACKS_HERE,
                **more,
            },
            chosen.progress_pattern if chosen else None,
            added=chosen.added_pattern or None if chosen else None,
            rotated=not alone,
            marks=log_marks(),
            around=cause_rules.places(),
        )
        result = run_probe(probe, Path(folder), deadline_s)
        stacks = _stacks_in(result.data)
    data = result.data
    if data is None or not data.bytes_read:
        why = result.reason or "there is nothing in it"
        raise UsageError(f"No log could be read: {why}.", hint="mmrepro logs FILE")
    if engine != "auto":
        data = data.model_copy(update={"engine": engine})
    found = _with_commands(cause.servers(data), files)
    first = found[0]
    died = first.cause is not None and first.cause.name in _DEATHS
    if died and first.cause is not None and _ended_in_order(data):
        first.cause.advice.append(f"it shut down in order; {NOT_RESTARTED}")
    own = {
        name: lines
        for name, lines in data.matches.items()
        if name not in cause_rules.PATTERNS
    }
    reading = LogReading(
        mmrepro_version=__version__,
        engine=first.engine,
        release=first.release,
        cause=first.cause,
        others=first.others,
        known=_known(result, first),
        last_progress=first.last_progress,
        first_error=first.first_error,
        facts=first.facts,
        servers=found,
        unread="" if result.ok else result.reason,
        log=data.model_copy(update={"excerpt": [], "matches": own, "servers": []}),
    )
    return _beside(reading, given, result, stacks) if given or stacks else reading


def _with_commands(
    judged: Sequence[ServerInLog], files: Sequence[Path]
) -> list[ServerInLog]:
    """Each server whose failure is not in the log, with the command that gets it."""
    given = ""
    made = []
    for server in judged:
        if server.facts is None or not server.facts.echo:
            made.append(server)
            continue
        given = given or _given(files)
        fetch = fetch_command(given)
        facts = server.facts.model_copy(update={"fetch": fetch})
        advice = [f"get what was logged before: {fetch}", *server.cause.advice]
        ended = server.cause.model_copy(update={"advice": advice})
        made.append(server.model_copy(update={"facts": facts, "cause": ended}))
    return made


def _given(files: Sequence[Path]) -> str:
    """The beginning of the logs, as they were given."""
    for file in logs_in(files):
        with suppress(*BROKEN), open_log(file) as stream:
            return stream.read(_SAMPLE_BYTES).decode("utf-8", "replace")
    return ""


_DEATHS = frozenset(
    {
        CauseClass.GPU_FAULT,
        CauseClass.OUT_OF_GPU_MEMORY,
        CauseClass.COLLECTIVE_TIMEOUT,
        CauseClass.WORKER_UNRESPONSIVE,
        CauseClass.NATIVE_CRASH,
        CauseClass.DIED_WITHOUT_A_WORD,
        CauseClass.ENGINE_DEFECT,
        CauseClass.KILLED_BY_INPUT,
        CauseClass.PLACEHOLDER_COUNTS,
    }
)
"""Ends of an engine that nobody asked for."""
_IN_ORDER = re.compile(r"^(?:INFO: +)?Finished server process \[\d+\]")
"""uvicorn's last line: its process then ends with exit code 0."""
_LAST_LINES = 20


def _ended_in_order(data: LogsData) -> bool:
    """Whether the front end shut down by itself after what ended the engine."""
    last = data.excerpt[-_LAST_LINES:]
    return any(_IN_ORDER.search(line.text) for line in last)


def _known(result: ProbeResult[LogsData], server: ServerInLog) -> list[KnownFailure]:
    """Scenarios whose own words stand there, of a release that has the failure."""
    data = _named_by_expression(result).data
    found = find_failures("", matched=matched_in(data) if data else {})
    return [
        KnownFailure(
            scenario=one.entry.name,
            title=one.entry.title,
            fixed=one.entry.fixed,
            workaround=next(iter(one.entry.workarounds), ""),
            because=one.because,
        )
        for one in found
        if one.entry.kind == "scenario" and one.sure == "this"
        if server.engine in ("", one.entry.engine)
        and _affects(one.entry.affected, server.release)
    ][:3]


def matched_in(data: LogsData) -> dict[str, Matched]:
    """What the catalogue is asked with, by the name of the pattern."""
    return {
        name: Matched(data.match_counts[name], lines[0].number, lines[0].own_words)
        for name, lines in data.matches.items()
        if lines
    }


def _affects(affected: str, release: str) -> bool:
    """Whether the release is in the range; one that is not known may be."""
    try:
        return not release or SpecifierSet(affected).contains(release, prereleases=True)
    except InvalidSpecifier:
        return True


def _of_dumps(found: DumpReading) -> LogReading:
    """Dumps without a log."""
    ended = dumps.cause_of(found)
    facts = LogFacts(state=dumps.state_of(ended), sentence=ended.sentence)
    files = [one.file for one in found.files]
    unread = [one.sentence for one in found.files if not one.read]
    return LogReading(
        mmrepro_version=__version__,
        engine=found.engine,
        release=found.release,
        cause=ended,
        facts=facts,
        servers=[ServerInLog(engine=found.engine, release=found.release, cause=ended)],
        unread="; ".join(unread) if len(unread) == len(files) else "",
        log=LogsData(
            file=", ".join(files), files=files, bytes_read=0, skipped_bytes=0, lines=0
        ),
        dumps=found,
    )


def _beside(
    reading: LogReading,
    given: Sequence[Dump],
    result: ProbeResult[LogsData],
    stacks: Mapping[Path, StacksData],
) -> LogReading:
    """With what dumps, and stacks in the log, show besides. They name the cause where
    the log does not."""
    found = dumps.read(
        given,
        [AnyProbeResult.model_validate(_named_by_expression(result).model_dump())],
        in_logs=stacks,
        engine=reading.engine,
        release=reading.release,
    )
    ended = dumps.cause_of(found)
    unknown = reading.cause.name in NO_CAUSE and ended.name not in NO_CAUSE
    changes: dict[str, object] = {
        "dumps": found,
        "engine": reading.engine or found.engine,
        "cause": ended if unknown else reading.cause,
    }
    if unknown and reading.facts is not None:
        # The dump shows what the log does not.
        update = {"state": dumps.state_of(ended), "sentence": ended.sentence}
        changes["facts"] = reading.facts.model_copy(update=update)
    return reading.model_copy(update=changes)


def _named_by_expression(result: ProbeResult[LogsData]) -> ProbeResult[LogsData]:
    """As ``match_all`` asks for them: each pattern under its own expression."""
    data = result.data
    assert data is not None
    matches, counts = dict(data.matches), dict(data.match_counts)
    for name, expression in scenario_patterns(ENGINES.get(data.engine)).items():
        if name in data.match_counts:
            counts[expression] = data.match_counts[name]
            matches[expression] = data.matches.get(name, [])
    changes = {"matches": matches, "match_counts": counts}
    return result.model_copy(update={"data": data.model_copy(update=changes)})


def _stacks_in(data: LogsData | None) -> dict[Path, StacksData]:
    """Stacks that the logs hold themselves, by file: looked for where a line is of
    some."""
    if data is None or not data.match_counts.get(_STACKS):
        return {}
    found = {
        Path(file): stacks_in_log(Path(file)) for file in data.files or [data.file]
    }
    return {file: stacks for file, stacks in found.items() if stacks is not None}


def _written_by(files: Iterable[Path]) -> Engine | None:
    """The engine whose form the lines have with which the logs begin."""
    for file in logs_in(files):
        for path in dict.fromkeys((file, with_rotated(file)[0])):
            if found := identify_log(path, log_marks(), _PEEK_BYTES):
                return ENGINES[found.engine]
    return None


def scenario_patterns(engine: Engine | None) -> dict[str, str]:
    """The engine's and those of its scenarios; of every engine's where it is not known.

    A name that two scenarios give to different expressions goes with the second one's
    own name."""
    patterns = dict(engine.log_patterns) if engine else {}
    for scenario in all_scenarios():
        if engine is None or scenario.engine == engine.name:
            for name, expression in scenario.log_patterns.items():
                taken = patterns.setdefault(name, expression) != expression
                if taken and expression not in patterns.values():
                    patterns[f"{scenario.full_name}: {name}"] = expression
    return patterns
