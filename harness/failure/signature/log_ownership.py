"""Whether the lines of a log are of the run: of its engine, its time and its
processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from mmrepro.base.records import Moment
from mmrepro.engines.folders import facts, folders
from mmrepro.failure.signature.ownership import started_pids
from mmrepro.failure.signature.run_facts import (
    CLOCK_S,
    Doubts,
    Run,
    kept_lines,
    of_this_server,
)
from mmrepro.probes import LogLine, LogsData, ProbeResult, ProcessesData, ProcessUse
from mmrepro.probes.log_forms import ERROR_LEVELS, TRACEBACK, written
from mmrepro.traffic.evidence import Evidence

_SECOND = timedelta(seconds=1)
"""Most lines have whole seconds."""
_ZONE = timedelta(minutes=15)
_FARTHEST = timedelta(hours=14)
"""Logs have the local time: off by a whole number of _ZONE, at most _FARTHEST."""
_PID = re.compile(r"(\S+) pid=(\d+)")


def logs(evidence: Evidence, run: Run) -> Doubts:
    """The lines of a log are of the run's engine and release, of its time and of its
    processes."""
    for result in evidence.probes:
        if not isinstance(result.data, LogsData) or not result.ok:
            continue
        reasons = [*_of_another_time(result, evidence, run)]
        reasons += _of_another_engine(result.data, run)
        # The other server's processes are in no reading of this one's.
        if result.phase != "control":
            reasons += _of_other_processes(result.data, evidence)
        for why in reasons:
            yield "logs", why


def _of_another_engine(data: LogsData, run: Run) -> Iterator[str]:
    own = run.engine.name
    # An engine without a form of its own may write in another one's.
    form = facts(own).log_form if own in folders() else ""
    if data.engine not in ("", own, form):
        yield f"it has the lines of {data.engine}, the run is of {own}"

    release = data.release.partition("+")[0]
    # A source tree over a release's compiled files has a number of its own.
    of_tree = run.kernels and (release == run.kernels or "dev" in release)
    if release not in ("", run.number) and not of_tree:
        yield f"it is of {own} {release}, the run of {run.number}"


def is_error(line: LogLine) -> bool:
    """Whether a line is an error's, by its level or by the words of a traceback."""
    return line.level in ERROR_LEVELS or TRACEBACK in line.own_words


# ------------------------------------------------------------------------------ times


def _of_another_time(
    result: ProbeResult,  # type: ignore[type-arg]
    evidence: Evidence,
    run: Run,
) -> Iterator[str]:
    """What is of another time in a log, whose lines have the machine's local time."""
    data = result.data
    assert isinstance(data, LogsData)
    read = _utc(result.started)
    times = _times(data, read)
    if not times:
        return
    # Lines of several files that were joined are in no common order.
    if not data.files:
        yield from _disordered(times)

    newest = max(at for _, at in times)
    zone = _zone(run, read, newest)
    # A busy machine reads a long log for seconds, and the engine goes on writing.
    read_until = read + timedelta(seconds=result.seconds)
    if abs(zone) > _FARTHEST or newest - zone > read_until + _SECOND:
        yield (
            f"it is of another day: its last line is of {newest}, it was read at {read}"
        )
    if run.utc_offset_s is not None and run.began is not None:
        began = _utc(run.began) + zone
        if newest < began - _SECOND:
            yield (
                f"it is older than the run: its last line is of {newest}, the "
                f"run began {began}"
            )

    triggers = evidence.requests_in("trigger")
    if not triggers or evidence.never_ready:
        return
    asked = min(_utc(record.sent) for record in triggers) + zone
    matched: set[int] = set()
    for lines in data.matches.values():
        matched |= {line.number for line in lines}
    for line, at in times:
        early = at < asked - _SECOND
        if early and line.number in matched and is_error(line):
            yield f"line {line.number} was there before the trigger's first request"


def _times(data: LogsData, read: datetime) -> list[tuple[LogLine, datetime]]:
    """The lines that have a time, in the order of the log."""
    times: list[tuple[LogLine, datetime]] = []
    for line in sorted(kept_lines(data), key=lambda line: line.number):
        at = written(line.time, read)
        if at is not None:
            times.append((line, at))
    return times


def _zone(run: Run, read: datetime, newest: datetime) -> timedelta:
    """How far the machine's local time is from UTC: as the run noted it, else the
    nearest zone in which nothing was logged after it was read."""
    if run.utc_offset_s is not None:
        return timedelta(seconds=run.utc_offset_s)
    return -((read - newest + _SECOND) // _ZONE) * _ZONE


def _disordered(times: Sequence[tuple[LogLine, datetime]]) -> Iterator[str]:
    """What of one log is older than the line before it."""
    for (before, at), (line, then) in pairwise(times):
        # Some lines have whole seconds alone.
        earliest = at if then.microsecond else at.replace(microsecond=0)
        # Two processes write past each other.
        slack = CLOCK_S if before.process != line.process else 0.0
        if then < earliest - timedelta(seconds=slack):
            yield f"line {line.number} is older than line {before.number} before it"


def _utc(moment: Moment) -> datetime:
    """A moment in UTC without a zone, as the times of log lines are compared."""
    return moment.wall.astimezone(UTC).replace(tzinfo=None)


# -------------------------------------------------------------------------- processes


def _of_other_processes(data: LogsData, evidence: Evidence) -> Iterator[str]:
    """What is of a process of another server: one that is called as one of ours."""
    uses: list[ProcessUse] = []
    for result in of_this_server(evidence):
        if isinstance(result.data, ProcessesData):
            uses += result.data.processes
    writers: list[tuple[LogLine, str, str]] = []
    for line in kept_lines(data):
        for name, pid in _PID.findall(line.process):
            writers.append((line, name, pid))

    started = {str(pid) for pid in started_pids(evidence.events)}
    writing = {pid for _, _, pid in writers}
    if not uses and started and writing and not writing & started:
        yield (
            f"it is of the processes {', '.join(sorted(writing))}, none of which was "
            "started"
        )

    pids = {str(use.pid) for use in uses}
    our_names = {name for _, name, pid in writers if pid in pids}
    for line, name, pid in writers:
        if name in our_names and pid not in pids:
            yield (
                f"line {line.number} is of {line.process}, others are of "
                f"this server's {name}"
            )
        with_role = {str(use.pid) for use in uses if use.role and use.role in name}
        if with_role and pid not in with_role:
            yield (
                f"line {line.number} is of {line.process}, which is none of this server"
            )
