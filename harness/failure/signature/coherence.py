"""Whether a run's evidence is of that run: held against itself, before a condition is
judged.

Conditions ask whether something is there. Whose it is, when it was and who said it is
asked here, once, by kinds of evidence and never by scenario: what a bug of ours, a
race or a busy machine can mix up. What does not fit the rest is doubted: a condition
that reads it is unknown, and the run has no verdict. Nothing is asked of a field that
an older document does not have.

Whether somebody changed a run afterwards is not seen here, but from the record of its
hashes (``failure.documents.hashes``).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from mmrepro.base.records import Moment
from mmrepro.engines import Engine
from mmrepro.engines.base import PROXY
from mmrepro.engines.folders import facts, folders
from mmrepro.probes.data import (
    ConnectionsData,
    HttpData,
    InferenceData,
    LogLine,
    LogsData,
    MetricsData,
    ProbeResult,
    ProcessesData,
    ProcessUse,
    StacksData,
    SyscallsData,
)
from mmrepro.probes.log_forms import ERROR_LEVELS, TRACEBACK, written
from mmrepro.traffic.evidence import Event, Evidence, Phase, RequestRecord

_Doubts = Iterator[tuple[str, str]]
"""What is doubted (a field of Evidence, or a kind of probe data; EVERYTHING), and
why."""

EVERYTHING = "*"
_PLACES = (
    ("start", "control"),
    ("gate",),
    ("trigger",),
    ("check",),
    ("after",),
    ("stop",),
)
_ORDER: Mapping[str, int] = {
    phase: n for n, phases in enumerate(_PLACES) for phase in phases
}
_STAGES: Mapping[str, Phase] = {"gate": "gate", "trigger": "trigger", "probes": "check"}
"""Event with which a phase begins."""
_CLOCK_S = 1.0
"""Wall and monotonic clock of one run may drift so far apart."""
SLACK_S = 0.1
"""Moments and durations are taken by different threads, and rounded."""
_TURN_S = 0.002
"""A phase begins so long before or after the event that notes it."""
LATE_S = 30.0
"""An event may be written so long after what it tells of: the loop of a starved machine
stands."""
_ZONE = timedelta(minutes=15)
_FARTHEST = timedelta(hours=14)
"""Logs have the local time: off by a whole number of _ZONE, at most _FARTHEST."""
_OUTSIDE = (9, 15, 2, 1, 3, 10, 12, 24, 30)
"""Signals that somebody sends: KILL, TERM, INT, HUP, QUIT, a batch system's USR1 and
USR2, XCPU of a limit, PWR. A crash raises others in its own process."""
GATEWAY, DELIVERY = (502, 504), 520
"""No engine answers with these; 520 and on are content delivery networks' own."""
_ENVIRONMENT = re.compile(r"environments/([^/\s]+)/")
PORT = re.compile(r" --(?:server-)?port[ =](\d+)")
_PID = re.compile(r"(\S+) pid=(\d+)")
_STARTED = re.compile(r"engine started as process (\d+)")
_EARLY_S = 5.0
"""A process may be so much older than the line that tells of its start."""
_DEAD = ("Z", "X")
_STOPPED = "T"
"""By a signal; a tracer's own stop is t."""
FOREVER = re.compile(r".*_(?:total|count|bucket)|process_start_time_seconds")
"""Metrics that a server which is not started again never lowers. Not sums: those of
durations have been recorded to shrink."""


@dataclass(frozen=True)
class Run:
    """What a run says of itself, for its evidence to be held against.

    Attributes:
        known: why the engine or the variant is none that this mmrepro has; "": it is.
        wheel: the file's name.
        kernels: release of the wheel, where it lends its compiled files to another's
            Python.
        packages: ``name==version`` of all that was resolved.
        command: of its server, as a cold start runs it.
        began, ended: of the run; None: not known yet.
        passed: whether the gate was noted to pass; None: there was none.
        deadline_s: after which silence counts, by the gate's rule; None: the gate did
            not pass.
        waited_s: deadline of the check, where the scenario made another of it.
        sources: file and qualified name of definitions that the scenario is about.
        utc_offset_s: of the machine's local time; None: not noted.
    """

    engine: Engine
    release: str
    known: str = ""
    wheel: str = ""
    kernels: str = ""
    packages: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    began: Moment | None = None
    ended: Moment | None = None
    passed: bool | None = None
    deadline_s: float | None = None
    waited_s: float | None = None
    sources: tuple[tuple[str, str], ...] = ()
    utc_offset_s: float | None = None

    def option(self, *names: str) -> str:
        """Value of the first of these options that the command has; "": none."""
        pairs = pairwise(self.command)
        return next((value for name, value in pairs if name in names), "")

    def of_kernels(self, environment: str) -> bool:
        """Whether that environment is the one that lends its compiled files and
        packages."""
        lender = f"{self.engine.name}-{self.kernels}-"
        return bool(self.kernels) and environment.startswith(lender)

    @property
    def number(self) -> str:
        """The release, without what a build adds to it."""
        return self.release.partition("+")[0]

    @property
    def environment(self) -> str:
        found = _ENVIRONMENT.search(" ".join(self.command[:1]))
        return found[1] if found else ""


def doubts(evidence: Evidence, run: Run) -> dict[str, str]:
    """What of ``evidence`` does not belong to the rest or to ``run``, and the first
    reason why.

    A check that fails, on a document that nobody could have recorded, doubts
    everything."""
    found: dict[str, str] = {}
    for check in CHECKS:
        try:
            for what, why in check(evidence, run):
                found.setdefault(what, why)
        except Exception as error:
            found.setdefault(
                EVERYTHING, f"{check.__name__}: {type(error).__name__}: {error}"
            )
    return found


# ------------------------------------------------------------------ whose it is


def named(evidence: Evidence, run: Run) -> _Doubts:
    """Wheel, packages and interpreter are of the engine and the release that the run
    says."""
    if run.known:
        yield EVERYTHING, run.known
    own = {_plain(name) for name in (run.engine.name, *run.engine.distributions)}
    versions: dict[str, str] = {}
    for package in run.packages:
        name, _, version = package.partition("==")
        versions[_plain(name)] = version
    of_release = {f"the package {name}": versions[name] for name in own & {*versions}}

    distribution, _, rest = run.wheel.partition("-")
    project, wheel = _plain(distribution), rest.partition("-")[0]
    if run.kernels:
        if wheel != run.kernels:
            yield (
                EVERYTHING,
                f"the wheel is {run.wheel}, the compiled files are of {run.kernels}",
            )
    else:
        if versions and versions.get(project, wheel) != wheel:
            yield EVERYTHING, f"the wheel is {run.wheel}, the packages have another"
        if project in own:
            of_release["the wheel"] = wheel

    if run.environment and run.packages:
        begin = f"{run.engine.name}-"
        if not run.environment.startswith(begin):
            yield (
                EVERYTHING,
                f"the server ran in {run.environment}, not of {run.engine.name}",
            )
        within = run.environment.removeprefix(begin)
        of_release["the environment"] = within.split("-")[0]
    for what, version in of_release.items():
        if version.partition("+")[0] != run.number:
            yield EVERYTHING, f"{what} is of {version}, the run of {run.release}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def reproduced_here(evidence: Evidence, run: Run) -> _Doubts:
    """What the reproducers print is of the environment and the release of the run."""
    for reproducer in evidence.reproducers:
        for name, value in reproducer.facts.items():
            if name == run.engine.name and value != run.number:
                yield (
                    "reproducers",
                    f"{reproducer.name} ran in {name} {value}, the run in "
                    f"{run.release}",
                )
            for other in _other_environments(str(value), run):
                yield (
                    "reproducers",
                    f"{reproducer.name} ran in {other}, the run in {run.environment}",
                )


def _other_environments(text: str, run: Run) -> Iterator[str]:
    """Environments that a text names, and that are not the run's."""
    if not run.environment:
        return
    for other in _ENVIRONMENT.findall(text):
        if other != run.environment and not run.of_kernels(other):
            yield other


def one_server(evidence: Evidence, run: Run) -> _Doubts:
    """Endpoints, metrics and connections are of one address, which the server was
    started with."""
    port = run.option("--port", "--server-port")
    model = run.option("--served-model-name", "--model-name")
    places = [(kind, urlsplit(url)) for kind, url in _addresses(evidence)]
    usual = Counter(url.netloc for _, url in places).most_common(1)
    first = usual[0][0] if usual else ""
    for kind, url in places:
        if url.netloc != first or (port and url.port != int(port)):
            yield kind, f"it is of {url.netloc}, the server listens on {port or first}"
    for result in _theirs(evidence):
        data = result.data
        if isinstance(data, ConnectionsData) and port and data.port != int(port):
            yield (
                "connections",
                f"they are of port {data.port}, the server listens on {port}",
            )
        if isinstance(data, MetricsData) and model:
            served = {sample.labels.get("model_name") for sample in data.samples}
            others = served - {None, model}
            if others:
                yield (
                    "metrics",
                    f"they are of the model {others.pop()}, {model} was served",
                )
        if isinstance(data, HttpData):
            yield from _front(data, run, model)
        if isinstance(data, ProcessesData) and port:
            yield from _listening(data, run, port)


def _listening(data: ProcessesData, run: Run, port: str) -> _Doubts:
    proxied = PROXY.search(" ".join(run.command)) is not None
    for use in data.processes:
        # Servers behind the proxy of a pair have ports of their own.
        behind = proxied and use.pid != data.root_pid
        listens = PORT.search(use.cmdline)
        if listens and listens[1] != port and not behind:
            yield (
                "processes",
                f"process {use.pid} listens on {listens[1]}, the server on {port}",
            )


def _addresses(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for result in _theirs(evidence):
        if isinstance(result.data, MetricsData):
            yield "metrics", result.data.url
        if isinstance(result.data, HttpData):
            yield "http", result.data.base_url


def _front(data: HttpData, run: Run, model: str) -> _Doubts:
    for answer in data.answers:
        if why := not_the_engines(answer.status, answer.body):
            yield "http", f"{answer.path}: {why}"
        for entry in _entries(answer.body):
            owner, name = entry.get("owned_by"), entry.get("id")
            if owner not in (None, run.engine.name) or (
                model and name not in (None, model)
            ):
                yield "http", f"{answer.path} is of {owner}'s model {name}"


def _entries(body: str) -> list[Mapping[str, object]]:
    """Of a list of models; what of it is cut tells all the same."""
    pairs = re.findall(r'"(owned_by|id)": ?"([^"]*)"', body)
    found = dict(reversed(pairs))
    return [found] if "owned_by" in found else []


def one_tree(evidence: Evidence, run: Run) -> _Doubts:
    """One tree of processes, whose core lives from before the trigger on; all else is
    of it."""
    readings = [r.data for r in _theirs(evidence) if isinstance(r.data, ProcessesData)]
    roots = {data.root_pid for data in readings}
    started = _started(event for event in evidence.events if event.phase == "start")
    if started:
        roots.add(started[-1])
    if len(roots) > 1:
        yield "processes", f"they are of two servers, processes {_listed(roots)}"

    core = run.engine.core_role
    cores = [_pids_of(data, core) for data in readings]
    cores = [pids for pids in cores if pids]
    if any(before != after for before, after in pairwise(cores)):
        yield "processes", f"{core} was started again between the readings"
        yield "metrics", f"{core} was started again between the readings"
    yield from _lives(evidence, readings)
    yield from _traced(evidence, run, readings)


def _started(events: Iterable[Event]) -> list[int]:
    """The process ids of servers whose start is noted."""
    matches = [_STARTED.match(event.text) for event in events]
    return [int(match[1]) for match in matches if match]


def _pids_of(data: ProcessesData, role: str) -> set[int]:
    """Processes of a role; none of a role that the engine does not have."""
    return {use.pid for use in data.processes if role and role in use.role}


def _traced(evidence: Evidence, run: Run, readings: Sequence[ProcessesData]) -> _Doubts:
    """Stacks and system calls are of the server's core or of its workers."""
    ours: set[int] = set()
    seen: set[int] = set()
    workers: set[int] = set()
    for data in readings:
        ours |= {use.pid for use in data.processes}
        seen |= _pids_of(data, run.engine.core_role)
        workers |= _pids_of(data, run.engine.worker_role)
    if ours:  # of a server that is gone nobody knows them
        for data in readings:
            ours |= {*data.vanished, data.root_pid}

    traced: dict[str, set[int]] = {}
    for result in _theirs(evidence):
        pids: set[int] = set()
        if isinstance(result.data, StacksData):
            pids = {s.pid for s in result.data.samples} | set(result.data.denied)
        elif isinstance(result.data, SyscallsData):
            pids = {result.data.pid}
            traced.setdefault(result.phase, set()).add(result.data.pid)
        for pid in pids:
            if ours and pid not in ours:
                yield (
                    _kind(result),
                    f"they are of process {pid}, which is none of this server",
                )
            elif seen and pid not in seen | workers:
                yield (
                    _kind(result),
                    f"they are of process {pid}, which is no {run.engine.core_role}",
                )
    if any(before != after for before, after in pairwise(traced.values())):
        yield "syscalls", "they are of one process in one phase, of another in the next"


def _lives(evidence: Evidence, readings: Sequence[ProcessesData]) -> _Doubts:
    """Every process has one start, of this server, before the first request: an id may
    be given again to another process."""
    sent = [r.sent.wall.timestamp() for r in evidence.requests_in("gate")]
    started = [e.at.wall.timestamp() for e in evidence.events if _STARTED.match(e.text)]
    known: dict[int, ProcessUse] = {}
    for data in readings:
        for use in data.processes:
            before = known.setdefault(use.pid, use)
            born = use.created_wall
            if born is None or before.created_wall is None:
                continue
            if _apart(born, before.created_wall):
                yield "processes", f"process {use.pid} has two starts"
            works = bool(use.role) or use.state in _DEAD
            if sent and works and _past(born, min(sent), _CLOCK_S):
                yield (
                    "processes",
                    f"{use.role or use.name} was started after the first request",
                )
            if started and _past(max(started), born, _EARLY_S):
                yield "processes", f"process {use.pid} is older than the server"

    root = known.get(readings[0].root_pid) if readings else None
    if root is None or not root.created_wall:
        return
    for result in _theirs(evidence):
        if isinstance(result.data, MetricsData):
            born = result.data.total("process_start_time_seconds")
            if born is not None and _apart(born, root.created_wall):
                yield (
                    "metrics",
                    "they are of a process that was started at another time",
                )


def environments(evidence: Evidence, run: Run) -> _Doubts:
    """Processes and tracebacks name one environment: that of the run."""
    for result in _theirs(evidence):
        texts: list[str] = []
        if isinstance(result.data, ProcessesData):
            texts = [use.cmdline for use in result.data.processes]
        elif isinstance(result.data, LogsData):
            texts = [line.text for line in _lines(result.data)]
        for text in texts:
            for other in _other_environments(text, run):
                yield (
                    _kind(result),
                    f"it is of the environment {other}, the run of {run.environment}",
                )


# ------------------------------------------------------------------ when it was


def _moments(evidence: Evidence) -> Iterator[tuple[str, Phase | str, Moment]]:
    """What has both clocks: what it is, the phase, the moment."""
    for record in evidence.requests:
        yield "requests", record.phase, record.sent
    for result in evidence.probes:
        yield _kind(result), result.phase, result.started
    for event in evidence.events:
        yield "events", event.phase, event.at


def within_the_run(evidence: Evidence, run: Run) -> _Doubts:
    """Nothing was sent, read or noted before the run began or after it ended."""
    for what, _, moment in _moments(evidence):
        before = run.began is not None and _past(run.began.mono, moment.mono)
        after = run.ended is not None and _past(moment.mono, run.ended.mono)
        if before or after:
            yield what, "it is of another time than the run"


def in_phase(evidence: Evidence, run: Run) -> _Doubts:
    """What is of a phase was done in it: an answer that came late is of the phase in
    which it was asked for."""
    begins: dict[int, float] = {}
    for event in evidence.events:
        if event.source == "stage" and event.text in _STAGES:
            begins.setdefault(_ORDER[_STAGES[event.text]], event.at.mono)
    for record in evidence.requests:
        begun = begins.get(_ORDER[record.phase]) if record.phase in _ORDER else None
        if begun is not None and _ended(record) < begun:
            yield (
                "requests",
                f"{record.label!r} was answered before the {record.phase} began",
            )
    for what, phase, moment in _moments(evidence):
        if what == "events":
            continue
        if phase not in _ORDER or (what == "requests" and phase == "start"):
            yield what, f"nothing of it is done in the phase {phase!r}"
            continue
        place = _ORDER[phase]
        begun_before = [at for earlier, at in begins.items() if earlier <= place]
        begun_after = [at for later, at in begins.items() if later > place]
        # The recorder's phase is set just before or after the stage is noted.
        turn = 0.0 if what == "requests" else _TURN_S
        early = begun_before and _past(max(begun_before), moment.mono, turn)
        late = begun_after and _past(moment.mono, min(begun_after), turn)
        if early or late:
            yield what, f"it is called one of the {phase}, and was at another time"


def _past(later: float, earlier: float, slack: float = SLACK_S) -> bool:
    """Whether one moment or duration is beyond another by more than ``slack``
    seconds."""
    return later > earlier + slack


def _apart(one: float, other: float, slack: float = _CLOCK_S) -> bool:
    """Whether two moments differ by more than ``slack`` seconds."""
    return abs(one - other) > slack


def _ended(record: RequestRecord) -> float:
    return record.sent.mono + record.latency_s


def windows(evidence: Evidence, run: Run) -> _Doubts:
    """Windows are above zero and within their probe, and so are samples."""
    for result in evidence.probes:
        data, begin = result.data, result.started.mono
        end = begin + result.seconds
        if isinstance(data, ProcessesData | SyscallsData) and (
            data.window_s <= 0 or _past(data.window_s, result.seconds)
        ):
            yield (
                _kind(result),
                f"its window is {data.window_s:g} s of {result.seconds:.2f} s",
            )
        if isinstance(data, InferenceData) and _past(data.seconds, result.seconds):
            yield "inference", f"it waited {data.seconds:g} s of {result.seconds:.2f} s"
        if isinstance(data, StacksData):
            times = [sample.taken.mono for sample in data.samples]
            if any(_past(begin, t) or _past(t, end) for t in times):
                yield "stacks", "a sample is of another time"


# --------------------------------------------------------------- how long it was waited


def silence(evidence: Evidence, run: Run) -> _Doubts:
    """No answer means that the whole deadline passed, by the gate's rule, and nothing
    came."""
    rule = run.deadline_s
    for record in evidence.requests:
        label, waited = record.label, record.latency_s
        if not record.timed_out:
            if _past(waited, record.deadline_s, LATE_S):
                yield "requests", f"{label!r} was answered long after its deadline"
            continue
        if _past(record.deadline_s, waited):
            yield (
                "requests",
                f"{label!r} was waited for {waited:.1f} s of {record.deadline_s:g}",
            )
        least = rule if record.phase == "trigger" and record.method == "POST" else None
        if least is not None and _past(least, record.deadline_s):
            yield (
                "requests",
                f"the gate's rule asks for {least:g} s, {label!r} had less",
            )
        if (record.status is not None and not record.stream) or came(record):
            yield "requests", f"{label!r} has an answer, which came late or still flows"
    for result in _theirs(evidence):
        data = result.data
        if not isinstance(data, InferenceData):
            continue
        if why := foreign_error(data.status, data.error):
            yield "inference", why
        if (
            data.answered
            or data.status is not None
            or "no complete answer" not in data.error
        ):
            continue
        if _past(data.deadline_s, data.seconds) and not data.cut:
            yield (
                "inference",
                f"it was waited for {data.seconds:.1f} s of {data.deadline_s:g}",
            )
        if data.text or data.completion_tokens:
            yield "inference", "it has an answer, which came late"
        for least in (rule, run.waited_s):
            if least is not None and _past(least, data.deadline_s):
                yield "inference", f"the gate's rule asks for {least:g} s, it had less"


def came(record: RequestRecord) -> bool:
    """Whether anything of an answer came, whole or not."""
    parts = (
        record.text,
        record.tokens,
        record.finish_reason,
        record.pieces,
        record.choices,
    )
    return any(parts) or record.ttft_s is not None or bool(record.completion_tokens)


# ------------------------------------------------------------------ whose counters


def counted(evidence: Evidence, run: Run) -> _Doubts:
    """Counters only rise, and no series of them goes: one server was read."""
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for result in _theirs(evidence):
        if not isinstance(result.data, MetricsData) or not result.ok:
            continue
        now: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in result.data.samples:
            if sample.value is not None and FOREVER.fullmatch(sample.name):
                key = (sample.name, tuple(sorted(sample.labels.items())))
                now[key] = sample.value
        for key, value in before.items():
            if key not in now or now[key] < value:
                yield (
                    "metrics",
                    f"{key[0]} fell between two readings: it is another server's",
                )
        before = now


# ------------------------------------------------------------------ who said it


def logs(evidence: Evidence, run: Run) -> _Doubts:
    """Its lines are of the engine and release, of the time and of the processes of the
    run."""
    for result in evidence.probes:
        if isinstance(result.data, LogsData) and result.ok:
            found = [*_dated(result, evidence, run)]
            found += _of_another_engine(result.data, run)
            # The other server's processes are in no reading of this one's.
            if result.phase != "control":
                found += _writers(result.data, evidence)
            for why in found:
                yield "logs", why


def _lines(data: LogsData) -> list[LogLine]:
    ends = (data.first_line, data.last_line, data.last_progress)
    found = [line for lines in data.matches.values() for line in lines]
    found += [*data.errors, *data.stuck_requests, *data.last_by_process.values()]
    return [*found, *(line for line in ends if line is not None)]


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


def _is_error(line: LogLine) -> bool:
    return line.level in ERROR_LEVELS or TRACEBACK in line.own_words


def _dated(result: ProbeResult, evidence: Evidence, run: Run) -> Iterator[str]:  # type: ignore[type-arg]
    """What is of another time in a log, whose lines have the machine's local time."""
    data = result.data
    assert isinstance(data, LogsData)
    second = timedelta(seconds=1)  # most lines have whole seconds
    read = _utc(result.started)
    times: list[tuple[LogLine, datetime]] = []
    for line in sorted(_lines(data), key=lambda line: line.number):
        at = written(line.time, read)
        if at is not None:
            times.append((line, at))
    if not times:
        return

    if not data.files:
        yield from _disordered(times)
    newest = max(at for _, at in times)
    if run.utc_offset_s is not None:
        zone = timedelta(seconds=run.utc_offset_s)
    else:  # the nearest zone in which nothing was logged after it was read
        zone = -((read - newest + second) // _ZONE) * _ZONE
    # A busy machine reads a long log for seconds, and the engine goes on writing.
    ended = read + timedelta(seconds=result.seconds)
    if abs(zone) > _FARTHEST or newest - zone > ended + second:
        yield (
            f"it is of another day: its last line is of {newest}, it was read at {read}"
        )
    if run.utc_offset_s is not None and run.began is not None:
        began = _utc(run.began) + zone
        if newest < began - second:
            yield (
                f"it is older than the run: its last line is of {newest}, the "
                f"run began {began}"
            )

    triggers = evidence.requests_in("trigger")
    if not triggers or evidence.never_ready:
        return
    asked = min(_utc(record.sent) for record in triggers) + zone
    matched = {line.number for found in data.matches.values() for line in found}
    for line, at in times:
        early = at < asked - second
        if early and line.number in matched and _is_error(line):
            yield f"line {line.number} was there before the trigger's first request"


def _disordered(times: Sequence[tuple[LogLine, datetime]]) -> Iterator[str]:
    """What of one log is older than the line before it."""
    for (before, at), (line, then) in pairwise(times):
        # Some lines have whole seconds alone.
        earliest = at if then.microsecond else at.replace(microsecond=0)
        # Two processes write past each other.
        slack = _CLOCK_S if before.process != line.process else 0.0
        if then < earliest - timedelta(seconds=slack):
            yield f"line {line.number} is older than line {before.number} before it"


def _utc(moment: Moment) -> datetime:
    """As logs have it: without a zone."""
    return moment.wall.astimezone(UTC).replace(tzinfo=None)


def _writers(data: LogsData, evidence: Evidence) -> Iterator[str]:
    """What is of a process of another server: one that is called as one of ours."""
    uses: list[ProcessUse] = []
    for result in _theirs(evidence):
        if isinstance(result.data, ProcessesData):
            uses += result.data.processes
    lines = _lines(data)
    writers = [(line, *pair) for line in lines for pair in _PID.findall(line.process)]

    started = {str(pid) for pid in _started(evidence.events)}
    named = {pid for _, _, pid in writers}
    if not uses and started and named and not named & started:
        yield (
            f"it is of the processes {', '.join(sorted(named))}, none of which was "
            "started"
        )
    pids = {str(use.pid) for use in uses}
    ours = {name for _, name, pid in writers if pid in pids}
    for line, name, pid in writers:
        if name in ours and pid not in pids:
            yield (
                f"line {line.number} is of {line.process}, others are of "
                f"this server's {name}"
            )
        same = {str(use.pid) for use in uses if use.role and use.role in name}
        if same and pid not in same:
            yield (
                f"line {line.number} is of {line.process}, which is none of this server"
            )


def frames(evidence: Evidence, run: Run) -> _Doubts:
    """What the scenario is about is the engine's own function, by its file; code that
    somebody plugged in has functions of the same names."""
    known = {_plain(package.partition("==")[0]) for package in run.packages}
    standard = {*run.engine.code, *_OURS, *sys.stdlib_module_names}
    foreign: dict[str, bool] = {}
    found = (
        frame
        for result in _theirs(evidence)
        if isinstance(result.data, StacksData)
        for sample in result.data.samples
        for thread in sample.threads
        for frame in thread.frames
    )
    for frame in found:
        own = [file for file, name in run.sources if name == frame.function]
        if own and not any(f"/{file}".endswith(f"/{frame.file}") for file in own):
            yield "stacks", f"{frame.function} is of {frame.file}, not of {own[0]}"
        top, _, rest = frame.file.partition("/")
        if not (run.engine.code and known and rest):
            continue
        # A module is seldom called as its package, but much like it.
        if top not in foreign:
            foreign[top] = top not in standard and not any(
                _plain(top) in name for name in known
            )
        if foreign[top]:
            yield (
                "stacks",
                f"{frame.function} is of {frame.file}, which is not the engine's",
            )


_OURS = ("harness", "mmrepro", "reproducers", "mmrepro_stream", "PIL", "cv2")
"""Besides the engine's: of mmrepro, and modules that are called unlike their
packages."""


def replies(evidence: Evidence, run: Run) -> _Doubts:
    """An HTTP error is in the engine's own form: not a page of something that stands
    before it."""
    for record in evidence.requests:
        if why := foreign_error(record.status, record.error):
            yield "requests", f"{record.label!r}: {why}"


def not_the_engines(status: int | None, body: str) -> str:
    """Why an answer with this status and body is none of an engine; "": it may be
    one."""
    if status is not None and not 100 <= status < 600:
        return f"{status} is no status"
    if status is None or status < 400:
        return ""
    if status in GATEWAY or status >= DELIVERY:
        return f"{status} is said by what stands before a server"
    text = _bare(body)
    if text.startswith("<"):
        return f"the answer {status} is a page, not the engine's own error"
    document = _document(text)
    inner = document.get("error")
    code = (inner if isinstance(inner, dict) else document).get("code")
    code = (
        int(code)
        if isinstance(code, str) and code.isdecimal() and len(code) < 4
        else code
    )
    if isinstance(code, int) and 400 <= code < 600 and code != status:
        return f"the answer {status} holds an error {code}"
    return ""


def _bare(body: str) -> str:
    """Without the status that was written before it."""
    return re.sub(r"\AHTTP \d{3}(?: with an empty body|:? ?)", "", body.strip()).strip()


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


_ERROR_FIELDS = frozenset({"message", "type", "param", "code", "object"})


def foreign_error(status: int | None, body: str) -> str:
    """Why the error that answers a completion is none of an engine, by its status and
    its form; "": it may be one. Engines answer with "Internal Server Error", FastAPI's
    ``detail``, or an error object that has its status as a number, by itself with
    ``"object": "error"`` or as the one field ``error`` (vLLM 0.11 to 0.33, SGLang 0.5.6
    to 0.5.23, LMDeploy 0.6.4 to 0.18.0, minivllm). A validation error of SGLang is its
    message alone."""
    if (why := not_the_engines(status, body)) or status is None or status < 400:
        return why
    text = _bare(body)
    if text[:1] not in ("{", "["):
        own = status < 500 or text in ("", "Internal Server Error")
        return "" if own else f"the answer {status} is a text that no engine has"
    try:
        document = json.loads(text)
    except ValueError:
        return ""  # cut
    error = document
    if isinstance(document, dict):
        if document.keys() == {"detail"} and isinstance(document["detail"], str | list):
            return ""
        if document.keys() == {"error"}:
            error = document["error"]
        elif document.get("object") != "error":
            error = None
    known = (
        isinstance(error, dict) and "message" in error and error.keys() <= _ERROR_FIELDS
    )
    if known and (status >= 500 or "code" in error):
        known = "type" in error and error.get("code") == status
    return "" if known else f"the answer {status} is in no engine's form"


# ------------------------------------------------------------------ another cause


def ended(evidence: Evidence, run: Run) -> _Doubts:
    """A signal from outside, or from a kernel that is out of memory, ended no server by
    itself; nor is a server silent by itself whose core or front such a signal
    stopped."""
    if (
        signal := sent_by_others(evidence.engine_exit, evidence, run.engine.ends_itself)
    ) is not None:
        yield "engine_exit", f"signal {signal} ended it, which somebody sent"
    readings = [r.data for r in _theirs(evidence) if isinstance(r.data, ProcessesData)]
    for data in readings:
        for use in data.processes:
            leads = use.pid == data.root_pid or run.engine.core_role in use.role
            if use.state == _STOPPED and leads:
                for kind in ("processes", "requests", "inference"):
                    yield (
                        kind,
                        (
                            f"{use.role or use.name} was stopped, by a signal that "
                            "somebody sent"
                        ),
                    )


def sent_by_others(
    code: int | None, evidence: Evidence, ends_itself: str
) -> int | None:
    """The signal that ended a server with exit code ``code`` from outside; None: there
    was none, or its log holds a line of ``ends_itself``."""
    named = (
        [] if code is None else [one for one in (-code, code - 128) if one in _OUTSIDE]
    )
    if not named:
        return None
    last = [
        line.text
        for result in _theirs(evidence)
        if isinstance(result.data, LogsData)
        for line in _lines(result.data)
    ]
    own = ends_itself and any(re.search(ends_itself, text) for text in last)
    return None if own else named[0]


def _theirs(evidence: Evidence) -> list[ProbeResult]:  # type: ignore[type-arg]
    """Results of the run's own server."""
    return [r for r in evidence.probes if r.data is not None and r.phase != "control"]


def _kind(result: ProbeResult) -> str:  # type: ignore[type-arg]
    return result.data.kind if result.data is not None else result.probe


def _listed(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


CHECKS: Sequence[Callable[[Evidence, Run], _Doubts]] = (
    named,
    reproduced_here,
    one_server,
    one_tree,
    environments,
    within_the_run,
    in_phase,
    windows,
    silence,
    counted,
    logs,
    frames,
    replies,
    ended,
)
