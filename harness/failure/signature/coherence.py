"""Whether a run's evidence belongs together: held against itself, before a condition is
judged.

Conditions ask whether something is there. Whose it is, when it was and who said it is
asked here, once, by kinds of evidence and never by scenario. What contradicts the rest
is doubted: a condition that reads it is unknown, and the run has no verdict. What an
older document does not have is no
contradiction: nothing here is asked of a field that is not there.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from itertools import pairwise
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from mmrepro.base.records import Moment
from mmrepro.engines import Engine
from mmrepro.engines.base import PROXY
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
from mmrepro.probes.log_forms import ERROR_LEVELS, FORMS, TRACEBACK, written
from mmrepro.traffic.evidence import Evidence, Phase, RequestRecord

Doubts = Iterator[tuple[str, str]]
"""What is doubted (a field of Evidence, or a kind of probe data; EVERYTHING), and
why."""

EVERYTHING = "*"
PLACES = (
    ("start", "control"),
    ("gate",),
    ("trigger",),
    ("check",),
    ("after",),
    ("stop",),
)
ORDER: Mapping[str, int] = {
    phase: n for n, phases in enumerate(PLACES) for phase in phases
}
STAGES: Mapping[str, Phase] = {"gate": "gate", "trigger": "trigger", "probes": "check"}
"""Event with which a phase begins."""
CLOCK_S = 1.0
"""Wall and monotonic clock of one run may drift so far apart."""
SLACK_S = 0.1
"""Moments and durations are taken by different threads, and rounded."""
TURN_S = 0.002
"""Requests of one client are numbered in turn, each as it is sent."""
LATE_S = 30.0
"""An event may be written so long after what it tells of: the loop of a starved machine
stands."""
ZONE = timedelta(minutes=15)
FARTHEST = timedelta(hours=14)
"""Logs have the local time: off by a whole number of ZONE, at most FARTHEST."""
CHAT = "/v1/chat/completions"
PICTURE = re.compile(r"\b(?:image|picture|photo)s?\b")
"""In the label of a request that shows one."""
FEW = 64
"""A text has at most one token a character, and the tokens of the chat template. That
is found from texts of so few characters; an image has more tokens than as many
besides."""
OUTSIDE = (9, 15, 2, 1, 3, 10, 12, 24, 30)
"""Signals that somebody sends: KILL, TERM, INT, HUP, QUIT, a batch system's USR1 and
USR2, XCPU of a limit, PWR. A crash raises others in its own process."""
GATEWAY, DELIVERY = (502, 504), 520
"""No engine answers with these; 520 and on are content delivery networks' own."""
ENVIRONMENT = re.compile(r"environments/([^/\s]+)/")
PORT = re.compile(r" --(?:server-)?port[ =](\d+)")
PID = re.compile(r"(\S+) pid=(\d+)")
STARTED = re.compile(r"engine started as process (\d+)")
EARLY_S = 5.0
"""A process may be so much older than the line that tells of its start."""
DEAD = ("Z", "X")
LOG_FORMS = {form.engine for form in FORMS}
"""Engines whose lines have a form of their own."""
STOPPED = "T"
"""By a signal; a tracer's own stop is t."""
LEVELS = ("", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")
KEPT = 25
"""Lines of a pattern that a log reading keeps: the first 20 and the last 5."""
FOREVER = re.compile(r".*_(?:total|count|bucket)|process_start_time_seconds")
"""Metrics that a server which is not started again never lowers. Not sums: those of
durations have been recorded to shrink."""


@dataclass(frozen=True)
class Run:
    """What a run says of itself, for its evidence to be held against.

    Attributes:
        known: the engine and the variant are ones that this mmrepro has; else why not.
        wheel, packages: the file's name; ``name==version`` of all that was resolved.
        kernels: release of the wheel, where it lends its compiled files to another's
            Python.
        command: of its server, as a cold start runs it.
        began, ended: of the run; None: not known yet.
        passed: whether the gate was noted to pass; None: there was none.
        latencies_s: of the gate's requests, as they were noted.
        deadline_s: after which silence counts, by the gate's rule; None: the gate did
            not pass.
        waited_s: deadline of the check, where the scenario made another of it.
        sources: file and qualified name of definitions that the scenario is about.
        patterns: expressions by which the log was searched.
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
    latencies_s: tuple[float, ...] | None = None
    deadline_s: float | None = None
    waited_s: float | None = None
    sources: tuple[tuple[str, str], ...] = ()
    patterns: Mapping[str, str] = field(default_factory=dict)
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
    def environment(self) -> str:
        found = ENVIRONMENT.search(" ".join(self.command[:1]))
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


def named(evidence: Evidence, run: Run) -> Doubts:
    """Wheel, packages and interpreter are of the engine and the release that the run
    says."""
    if run.known:
        yield EVERYTHING, run.known
    own = {_plain(name) for name in (run.engine.name, *run.engine.distributions)}
    versions = {_plain(n): v for n, _, v in (p.partition("==") for p in run.packages)}
    told = {f"the package {name}": versions[name] for name in own & versions.keys()}
    project, _, rest = run.wheel.partition("-")
    wheel = rest.partition("-")[0]
    if run.kernels and wheel != run.kernels:
        yield (
            EVERYTHING,
            f"the wheel is {run.wheel}, the compiled files are of {run.kernels}",
        )
    if versions and not run.kernels and versions.get(_plain(project), wheel) != wheel:
        yield EVERYTHING, f"the wheel is {run.wheel}, the packages have another"
    if _plain(project) in own and not run.kernels:
        told["the wheel"] = wheel
    if run.environment and run.packages:
        told["the environment"] = run.environment.removeprefix(
            run.engine.name + "-"
        ).split("-")[0]
        if not run.environment.startswith(run.engine.name + "-"):
            yield (
                EVERYTHING,
                f"the server ran in {run.environment}, not of {run.engine.name}",
            )
    for what, version in told.items():
        if version.partition("+")[0] != run.release.partition("+")[0]:
            yield EVERYTHING, f"{what} is of {version}, the run of {run.release}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def reproduced_here(evidence: Evidence, run: Run) -> Doubts:
    """What the reproducers print is of the environment and the release of the run, and
    theirs."""
    for one in evidence.reproducers:
        for name, value in one.facts.items():
            if name == run.engine.name and value != run.release.partition("+")[0]:
                yield (
                    "reproducers",
                    f"{one.name} ran in {name} {value}, the run in {run.release}",
                )
            for other in ENVIRONMENT.findall(str(value)):
                if (
                    run.environment
                    and other != run.environment
                    and not run.of_kernels(other)
                ):
                    yield (
                        "reproducers",
                        f"{one.name} ran in {other}, the run in {run.environment}",
                    )
        if one.facts and one.exit_code != 0:
            yield (
                "reproducers",
                f"{one.name} ended with {one.exit_code} and has results",
            )
    if len({one.name for one in evidence.reproducers}) < len(evidence.reproducers):
        yield "reproducers", "a reproducer has two results"


def one_server(evidence: Evidence, run: Run) -> Doubts:
    """Endpoints, metrics and connections are of one address, which the server was
    started with."""
    port = run.option("--port", "--server-port")
    model = run.option("--served-model-name", "--model-name")
    places = [(kind, urlsplit(url)) for kind, url in _addresses(evidence)]
    usual = Counter(url.netloc for _, url in places).most_common()
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
        if isinstance(data, MetricsData):
            served = {s.labels.get("model_name") for s in data.samples} - {None, model}
            if model and served:
                yield (
                    "metrics",
                    f"they are of the model {served.pop()}, {model} was served",
                )
        if isinstance(data, HttpData):
            yield from _front(data, run, model)
        for use in data.processes if isinstance(data, ProcessesData) else ():
            listens = PORT.search(use.cmdline)
            behind = isinstance(data, ProcessesData) and use.pid != data.root_pid
            behind = behind and PROXY.search(" ".join(run.command)) is not None
            if listens and port and listens[1] != port and not behind:
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


def _front(data: HttpData, run: Run, model: str) -> Doubts:
    for answer in data.answers:
        if why := not_the_engines(answer.status, answer.body):
            yield "http", f"{answer.path}: {why}"
        if answer.status is not None and (answer.timed_out or answer.error):
            yield "http", f"{answer.path} has an answer, and none"
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


def one_tree(evidence: Evidence, run: Run) -> Doubts:
    """One tree of processes, whose core lives from before the trigger on; all else is
    of it."""
    readings = [r.data for r in _theirs(evidence) if isinstance(r.data, ProcessesData)]
    begun = (
        STARTED.match(event.text) for event in evidence.events if event.phase == "start"
    )
    started = [int(found[1]) for found in begun if found]
    roots = {data.root_pid for data in readings} | set(started[-1:])
    if len(roots) > 1:
        yield "processes", f"they are of two servers, processes {_listed(roots)}"
    pids = {pid for data in readings for pid in (*data.vanished, data.root_pid)}
    there = {use.pid for data in readings for use in data.processes}
    # Of a server that is gone nobody knows them.
    pids = pids | there if there else set()
    core, worker = run.engine.core_role, run.engine.worker_role
    traced: dict[str, set[int]] = {}
    for result in _theirs(evidence):
        if isinstance(result.data, SyscallsData):
            traced.setdefault(result.phase, set()).add(result.data.pid)
    if any(pids != other for pids, other in pairwise(traced.values())):
        yield "syscalls", "they are of one process in one phase, of another in the next"
    ranks = {
        u.pid for d in readings for u in d.processes if worker and worker in u.role
    }
    cores = [
        {u.pid for u in data.processes if core and core in u.role} for data in readings
    ]
    seen = [one for one in cores if one]
    if any(a != b for a, b in pairwise(seen)):
        yield "processes", f"{core} was started again between the readings"
        yield "metrics", f"{core} was started again between the readings"
    yield from _lives(evidence, readings, core)
    for result in _theirs(evidence):
        data = result.data
        if isinstance(data, StacksData):
            for pid in {s.pid for s in data.samples} | set(data.denied):
                if pids and pid not in pids:
                    yield (
                        "stacks",
                        f"they are of process {pid}, which is none of this server",
                    )
                elif seen and pid not in ranks and not any(pid in one for one in seen):
                    yield "stacks", f"they are of process {pid}, which is no {core}"
        if isinstance(data, SyscallsData):
            if pids and data.pid not in pids:
                yield (
                    "syscalls",
                    f"they are of process {data.pid}, which is none of this server",
                )
            elif (
                seen
                and data.pid not in ranks
                and not any(data.pid in one for one in seen)
            ):
                yield "syscalls", f"they are of process {data.pid}, which is no {core}"


def _lives(evidence: Evidence, readings: Sequence[ProcessesData], core: str) -> Doubts:
    """Every process has one start and one parent, of this server, before the first
    request."""
    first = min(
        (r.sent.wall.timestamp() for r in evidence.requests_in("gate")), default=None
    )
    begun = (event for event in evidence.events if STARTED.match(event.text))
    since = max((event.at.wall.timestamp() for event in begun), default=None)
    known: dict[int, ProcessUse] = {}
    for data in readings:
        here = {use.pid: use for use in data.processes}
        if len(here) < len(data.processes) or 0 in here:
            yield "processes", "a process stands there twice, or is none"
        if data.root_pid not in {*here, *data.vanished}:
            yield "processes", f"the server's own process {data.root_pid} is not there"
        alive = {use.pid for use in data.processes if use.state not in DEAD}
        parents = {*here, *data.vanished, data.root_pid}
        if data.root_pid not in alive and (root := known.get(data.root_pid)):
            # What a server leaves goes to the process that started it.
            parents.add(root.ppid)
        for use in data.processes:
            before = known.setdefault(use.pid, use)
            if use.pid != data.root_pid and use.ppid not in parents:
                yield "processes", f"process {use.pid} is no child of this server"
            if before.ppid != use.ppid and (
                use.pid == data.root_pid or before.ppid in alive
            ):
                yield "processes", f"process {use.pid} has two parents"
            if core in before.role and core not in use.role and use.state not in DEAD:
                yield (
                    "processes",
                    f"process {use.pid} is called {before.role} and {use.role}",
                )
            born = use.created_wall
            if born is None or before.created_wall is None:
                continue
            if _apart(born, before.created_wall):
                yield "processes", f"process {use.pid} has two starts"
            if (
                first
                and (use.role or use.state in DEAD)
                and _past(born, first, CLOCK_S)
            ):
                yield (
                    "processes",
                    f"{use.role or use.name} was started after the first request",
                )
            if since is not None and _past(since, born, EARLY_S):
                yield "processes", f"process {use.pid} is older than the server"
            above = here.get(use.ppid)
            if above is not None and _past(above.created_wall or born, born, CLOCK_S):
                yield (
                    "processes",
                    f"process {use.pid} is older than the one that started it",
                )
    ids: dict[tuple[str, float | None], int] = {}
    for data in readings:
        often = Counter((use.role, use.created_wall) for use in data.processes)
        for use in data.processes:
            one = (use.role, use.created_wall)
            if all(one) and often[one] == 1 and ids.setdefault(one, use.pid) != use.pid:
                yield "processes", f"{use.role} has two process ids"
    root = known.get(readings[0].root_pid) if readings else None
    for result in _theirs(evidence):
        if (
            root is not None
            and root.created_wall
            and isinstance(result.data, MetricsData)
        ):
            told = result.data.total("process_start_time_seconds")
            if told is not None and _apart(told, root.created_wall):
                yield (
                    "metrics",
                    "they are of a process that was started at another time",
                )


def environments(evidence: Evidence, run: Run) -> Doubts:
    """Processes and tracebacks name one environment: that of the run."""
    if not run.environment:
        return
    texts = [
        ("processes", use.cmdline)
        for result in _theirs(evidence)
        if isinstance(result.data, ProcessesData)
        for use in result.data.processes
    ]
    texts += [
        ("logs", line.text)
        for result in _theirs(evidence)
        if isinstance(result.data, LogsData)
        for line in _lines(result.data)
    ]
    for kind, text in texts:
        for other in ENVIRONMENT.findall(text):
            if other != run.environment and not run.of_kernels(other):
                yield (
                    kind,
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


def clocks(evidence: Evidence, run: Run) -> Doubts:
    """Wall and monotonic clock of every moment are as far apart as of all others."""
    found = list(_moments(evidence))
    samples = (
        r.data.samples for r in evidence.probes if isinstance(r.data, StacksData)
    )
    found += [("stacks", "", s.taken) for some in samples for s in some]
    found += [(EVERYTHING, "", m) for m in (run.began, run.ended) if m is not None]
    apart = [m.wall.timestamp() - m.mono for _, _, m in found]
    if not apart:
        return
    usual = median(apart)
    for (what, _, moment), one in zip(found, apart, strict=True):
        if _apart(one, usual):
            yield (
                what,
                f"its clocks disagree by {one - usual:.1f} s at {moment.wall:%H:%M:%S}",
            )
    for what, _, moment in found:
        before = run.began is not None and _past(run.began.mono, moment.mono)
        if before or (run.ended is not None and _past(moment.mono, run.ended.mono)):
            yield what, "it is of another time than the run"
    points = [point.mono for point in evidence.series]
    if any(b < a for a, b in pairwise(points)) and not _gpu(evidence):
        yield "series", "its points are in no order"


def _gpu(evidence: Evidence) -> bool:
    """Two samplers take turns in one series."""
    return any(point.gpu_pct or point.gpu_bytes for point in evidence.series)


def order(evidence: Evidence, run: Run) -> Doubts:
    """Phases follow each other: what is of the check comes after what is of the
    trigger."""
    events = [event.at.mono for event in evidence.events]
    if any(_past(a, b) for a, b in pairwise(events)):
        yield "events", "the timeline is in no order"
    places = [ORDER[event.phase] for event in evidence.events]
    if places != sorted(places):
        yield "events", "the phases of the timeline are in no order"
    begins: dict[int, float] = {}
    for event in evidence.events:
        if event.source == "stage" and event.text in STAGES:
            begins.setdefault(ORDER[STAGES[event.text]], event.at.mono)
    asked = evidence.requests
    for record in asked:
        begun = begins.get(ORDER[record.phase]) if record.phase in ORDER else None
        if begun is not None and _ended(record) < begun:
            yield (
                "requests",
                f"{record.label!r} was answered before the {record.phase} began",
            )
    for what, phase, moment in _moments(evidence):
        if what == "events":
            continue
        if phase not in ORDER or (what == "requests" and phase == "start"):
            yield what, f"nothing of it is done in the phase {phase!r}"
            continue
        place = ORDER[phase]
        begin = max(
            (at for earlier, at in begins.items() if earlier <= place), default=None
        )
        end = min((at for later, at in begins.items() if later > place), default=None)
        turn = 0.0 if what == "requests" else TURN_S
        if (begin is not None and _past(begin, moment.mono, turn)) or (
            end is not None and _past(moment.mono, end, turn)
        ):
            yield what, f"it is called one of the {phase}, and was at another time"
        if not begins and any(
            (ORDER[r.phase] > place and _past(moment.mono, r.sent.mono))
            or (ORDER[r.phase] < place and _past(r.sent.mono, moment.mono))
            for r in asked
        ):
            yield what, f"it is called one of the {phase}, and was at another time"


def in_turn(evidence: Evidence, run: Run) -> Doubts:
    """Requests are numbered as they were sent and noted as they ended; readings lie
    apart."""
    records = evidence.requests
    if {r.id for r in records} != set(range(1, len(records) + 1)):
        yield "requests", "a request has another's number, or one is missing"
    by_id = sorted(records, key=lambda r: r.id)
    places = [ORDER[r.phase] for r in by_id if r.phase in ORDER]
    if places != sorted(places):
        yield "requests", "the phases of its requests are in no order"
    for a, b in pairwise(by_id):
        if _past(a.sent.mono, b.sent.mono, TURN_S):
            yield (
                "requests",
                f"{b.label!r} was sent before {a.label!r}, and is numbered after it",
            )
    for a, b in pairwise(records):
        if _past(_ended(a), _ended(b)):
            yield (
                "requests",
                f"{a.label!r} ended after {b.label!r}, and stands before it",
            )
    last: dict[tuple[str, str], float] = {}
    for result in evidence.probes:
        if result.probe != "logs":
            at, key = result.started.mono, (result.probe, result.phase)
            if key in last and at <= last[key]:
                yield _kind(result), "its readings are of one moment, or in no order"
            last[key] = at


def _past(later: float, earlier: float, slack: float = SLACK_S) -> bool:
    """Whether one moment or duration is beyond another by more than ``slack``
    seconds."""
    return later > earlier + slack


def _apart(one: float, other: float, slack: float = CLOCK_S) -> bool:
    """Whether two moments differ by more than ``slack`` seconds."""
    return abs(one - other) > slack


def _ended(record: RequestRecord) -> float:
    return record.sent.mono + record.latency_s


def told(evidence: Evidence, run: Run) -> Doubts:
    """The timeline tells of each request, probe and reproducer what its record does."""
    said = Counter((event.source, event.text) for event in evidence.events)
    when = {
        (event.source, event.text): event.at.mono for event in reversed(evidence.events)
    }
    latest = {(event.source, event.text): event.at.mono for event in evidence.events}
    if evidence.events or run.began is not None:
        for record in evidence.requests:
            key = ("client", record.told)
            if said[key] <= 0:
                yield "requests", f"the timeline has no {record.told[:120]!r}"
            elif _past(when[key], _ended(record)) or _past(_ended(record), latest[key]):
                yield (
                    "requests",
                    f"{record.label!r} ended when the timeline has it otherwise",
                )
            said[key] -= 1
        for (source, text), left in said.items():
            if source == "client" and left > 0:
                yield (
                    "requests",
                    f"the timeline has {text[:120]!r}, which no record is of",
                )
    heads = Counter(
        found[0]
        for event in evidence.events
        if event.source == "probe"
        and (found := re.match(r"probe .*? in [\d.]+", event.text))
    )
    if heads:
        for result in evidence.probes:
            head = f"probe {result.probe}: {result.status} in {result.seconds:.2f}"
            if heads[head] <= 0:
                yield _kind(result), f"the timeline has no {head!r} s"
            heads[head] -= 1
    for one in evidence.reproducers:
        text = f"reproducer {one.name}: {one.error or f'ended with {one.exit_code}'}"
        others = [
            e.text
            for e in evidence.events
            if e.text.startswith(f"reproducer {one.name}: ")
        ]
        if others and not any(
            t.startswith(f"{text} in {one.seconds:.2f} s") for t in others
        ):
            yield "reproducers", f"the timeline has {others[0]!r}"


def windows(evidence: Evidence, run: Run) -> Doubts:
    """Windows are above zero and within their probe; samples are of different moments
    in it."""
    asked: dict[bool, list[str]] = {}
    for result in evidence.probes:
        data, begin = result.data, result.started.mono
        end = begin + result.seconds
        if result.seconds < 0:
            yield _kind(result), "it took less than no time"
        if isinstance(data, ProcessesData | SyscallsData) and (
            data.window_s <= 0 or _past(data.window_s, result.seconds)
        ):
            yield (
                _kind(result),
                f"its window is {data.window_s:g} s of {result.seconds:.2f} s",
            )
        if isinstance(data, InferenceData) and _past(data.seconds, result.seconds):
            yield "inference", f"it waited {data.seconds:g} s of {result.seconds:.2f} s"
        if isinstance(data, HttpData):
            if any(
                a.seconds < 0 or _past(a.seconds, result.seconds) for a in data.answers
            ):
                yield "http", "an endpoint was asked for longer than all of them"
            paths = [answer.path for answer in data.answers]
            if asked.setdefault(result.phase == "control", paths) != paths:
                yield "http", f"{paths} were asked, and other endpoints at another time"
        if isinstance(data, StacksData):
            if result.ok and not data.samples:
                yield "stacks", "it was read, and nothing is there"
            times = [s.taken.mono for s in data.samples]
            if any(_past(begin, t) or _past(t, end) for t in times):
                yield "stacks", "a sample is of another time"
            of_each = {
                pid: [s.taken.mono for s in data.samples if s.pid == pid]
                for pid in {s.pid for s in data.samples}
            }
            if any(b <= a for each in of_each.values() for a, b in pairwise(each)):
                yield "stacks", "its samples are of one moment, or in no order"


# --------------------------------------------------------------- how long it was waited


def silence(evidence: Evidence, run: Run) -> Doubts:
    """No answer means that the whole deadline passed, by the gate's rule, and nothing
    came."""
    rule = run.deadline_s
    measured = [r.latency_s for r in evidence.requests_in("gate") if r.answered]
    if run.latencies_s is not None and measured and list(run.latencies_s) != measured:
        yield "requests", "the latencies of the gate are others than were noted in it"
    for record in evidence.requests:
        label, waited = record.label, record.latency_s
        if waited < 0 or record.deadline_s <= 0:
            yield "requests", f"{label!r} took {waited:g} s of {record.deadline_s:g}"
        ttft = record.ttft_s
        if ttft is not None and (ttft < 0 or _past(ttft, waited)):
            yield "requests", f"{label!r} began after it had ended"
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
        if data.answered and (data.status != 200 or data.error):
            yield "inference", "it was answered and failed"
        if not data.answered and data.status == 200 and not data.error:
            yield "inference", "it was answered, and not"
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


# ------------------------------------------------------------------ what it holds


def images(evidence: Evidence, run: Run) -> Doubts:
    """A picture that is called the same is the same, by its digest, and is there."""
    looks: dict[str, tuple[object, ...]] = {}
    sent_as = Counter(
        (i.name, i.sha256) for r in evidence.requests for i in r.images if i.name
    )
    called = Counter(name for name, _ in sent_as)
    owners: dict[tuple[Phase, str], str] = {}
    kinds: dict[str, tuple[object, ...]] = {}
    pictured: dict[tuple[str, str], bool] = {}
    named_so = Counter(
        i.name
        for r in evidence.requests
        for i in r.images
        if i.name and _says(r.label, i.name)
    )
    shown = [name for name, often in named_so.items() if often > 1]
    for record in evidence.requests:
        for sent in record.images:
            look = (sent.width, sent.height, sent.bytes, sent.pixels, sent.coarse)
            if looks.setdefault(sent.sha256, look) != look:
                yield "requests", f"{record.label!r}: one digest is of two pictures"
            if not re.fullmatch(r"[0-9a-f]{64}", sent.sha256):
                yield "requests", f"{record.label!r}: a digest is none"
            if not sent.name and called:
                yield (
                    "requests",
                    f"{record.label!r}: one picture has no name, others have",
                )
            # A name that is given again, to a picture that is used again, is a new
            # name.
            if called[sent.name] > 1 and sent_as[sent.name, sent.sha256] == 1:
                yield (
                    "requests",
                    f"{record.label!r}: {sent.name} is another picture elsewhere",
                )
            if owners.setdefault((record.phase, sent.sha256), sent.name) != sent.name:
                yield (
                    "requests",
                    f"{record.label!r}: {sent.name} is the picture of another name",
                )
        kind = (bool(record.images), record.method, record.path, record.stream)
        if kinds.setdefault(_stem(record.label), kind) != kind:
            yield (
                "requests",
                f"{record.label!r} is not like the other ones of that name",
            )
        about = record.label.rpartition(": ")[2].partition(",")[0]
        if pictured.setdefault((record.path, about), bool(record.images)) != bool(
            record.images
        ):
            yield "requests", f"{record.label!r} is without the picture of another one"
        shows = PICTURE.search(record.label) and "text" not in record.label
        if shows and not record.images and record.path == CHAT:
            yield "requests", f"{record.label!r} has no picture"
        absent = {name for name in shown if _says(record.label, name)}
        if absent and not record.images and "text" not in record.label:
            yield "requests", f"{record.label!r} is without {absent.pop()}"
        generated = record.path.endswith(("/completions", "/generate", "/responses"))
        if (record.completion_tokens and not generated) or not record.path.startswith(
            "/"
        ):
            yield (
                "requests",
                f"{record.label!r} has an answer that {record.path} does not give",
            )
        prompted = record.images or record.prompt_chars
        if record.method not in ("GET", "POST") or (
            record.method == "GET" and prompted
        ):
            yield (
                "requests",
                f"{record.label!r} was a {record.method or 'nothing'} with a prompt",
            )
    texts = [
        (record, record.prompt_tokens - record.prompt_chars)
        for record in evidence.requests
        if record.prompt_tokens is not None
        and record.prompt_chars
        and record.path == CHAT
        if not record.images
    ]
    template = min((more for r, more in texts if r.prompt_chars <= FEW), default=0)
    for record, more in texts:
        if more > template + FEW:
            yield (
                "requests",
                f"{record.label!r} has no picture, and {record.prompt_tokens} tokens",
            )


def _says(label: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", label) is not None


def _stem(label: str) -> str:
    return re.sub(r"\d+", "#", re.sub(r" \(\d+\)$", "", label))


def sums(evidence: Evidence, run: Run) -> Doubts:
    """The numbers of an answer agree with each other."""
    for record in evidence.requests:
        tokens, prompt, total = (
            record.completion_tokens,
            record.prompt_tokens,
            record.total_tokens,
        )
        cached, most = record.cached_tokens, record.max_tokens
        wrong = {
            "its tokens do not add up": None not in (prompt, total, tokens)
            and total != (prompt or 0) + (tokens or 0),
            "it has other tokens than it counts": record.tokens
            and tokens not in (None, len(record.tokens)),
            "tokens and logprobs are not as many": record.logprobs
            and len(record.tokens) != len(record.logprobs),
            "more of it is cached than was asked": None not in (cached, prompt)
            and not 0 <= (cached or 0) <= (prompt or 0),
            "it has more tokens than were asked for": record.path == CHAT
            and most
            and tokens is not None
            and tokens > most * max(1, len(record.choices)),
            "its text is not as long as it says": len(record.prompt_head)
            != min(record.prompt_chars, 200),
            "its client left, and waited": record.left and record.timed_out,
            "it is no stream, and came in parts": not record.stream
            and (record.ttft_s is not None or record.done is not None or record.pieces),
            "its text is not of its tokens": record.tokens
            and "\ufffd" not in record.text
            and record.text not in ("", "".join(record.tokens)),
            "its wait and its error are not as long": record.timed_out
            and not _waited(record),
            "it failed, and has an answer": record.status not in (200, None)
            and came(record),
            "its answers are in no order": [c.index for c in record.choices]
            != list(range(len(record.choices))),
        }
        for why in (why for why, holds in wrong.items() if holds):
            yield "requests", f"{record.label!r}: {why}"


def _waited(record: RequestRecord) -> bool:
    found = re.fullmatch(r"no complete answer in ([\d.]+) s", record.error)
    return found is not None and not _apart(
        float(found[1]), record.latency_s, 2 * SLACK_S
    )


def counted(evidence: Evidence, run: Run) -> Doubts:
    """Counters only rise, and no series of them goes: one server was read."""
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for result in _theirs(evidence):
        if not isinstance(result.data, MetricsData) or not result.ok:
            continue
        now: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in result.data.samples:
            if sample.value is not None and FOREVER.fullmatch(sample.name):
                key = (sample.name, tuple(sorted(sample.labels.items())))
                if key in now:
                    yield "metrics", f"{sample.name} stands there twice"
                now[key] = sample.value
        for key, value in before.items():
            if key not in now or now[key] < value:
                yield (
                    "metrics",
                    f"{key[0]} fell between two readings: it is another server's",
                )
        before = now


# ------------------------------------------------------------------ who said it


def logs(evidence: Evidence, run: Run) -> Doubts:
    """Each line is one line: of this log, in its order and time, found by what looked
    for it."""
    for result in evidence.probes:
        if isinstance(result.data, LogsData) and result.ok:
            found = [*_kept(result.data, run), *_dated(result, evidence, run)]
            found += _of_another_engine(result.data, run)
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
    own, number = run.engine.name, run.release.partition("+")[0]
    # Minivllm has vLLM's.
    if data.engine not in (
        "",
        own,
        own if own in LOG_FORMS else "vllm",
    ):
        yield f"it has the lines of {data.engine}, the run is of {own}"
    release = data.release.partition("+")[0]
    # It has its own number.
    tree = run.kernels and (release == run.kernels or "dev" in release)
    if release not in ("", number) and not tree:
        yield f"it is of {own} {release}, the run of {number}"


def _kept(data: LogsData, run: Run) -> Iterator[str]:
    known: dict[int, LogLine] = {}
    for line in _lines(data):
        if known.setdefault(line.number, line) != line and not data.files:
            yield f"line {line.number} is two lines"
        if not data.earlier_lines < line.number <= data.lines and not data.files:
            yield f"line {line.number} is none of the {data.lines} of this log"
    sourced = any(line.source for line in known.values())
    formed = any(line.engine for line in known.values())
    levels: dict[str, bool] = {}
    for line in known.values():
        timed = bool(line.level and line.time)
        odd = bool(line.source) != timed and (line.source or (timed and sourced))
        if odd and not formed:  # else its reader knew each engine's form
            yield f"line {line.number} is in another form than the engine's"
        after = known.get(line.number + 1)
        if line.level not in LEVELS:
            yield f"line {line.number} has the level {line.level!r}"
        fails = line.level in LEVELS[-2:]
        if line.source and levels.setdefault(line.source, fails) != fails:
            yield f"line {line.number} has another level than its place logs at"
        goes_on = after is not None and after.text.startswith(" ")
        if (
            after is None
            or not goes_on
            or (after.process, after.time) != (line.process, line.time)
        ):
            continue
        if after.source != line.source:
            yield f"line {after.number} goes on with another's traceback"
    for name, lines in data.matches.items():
        pattern = re.compile(run.patterns.get(name, ""))
        for line in lines:
            private = "[redacted:" in line.text
            if not private and not any(map(pattern.search, _as_written(line, run))):
                yield f"line {line.number} is none of {name}"
        count = data.match_counts.get(name, 0)
        if len(lines) != min(count, KEPT):
            yield f"{len(lines)} of {count} lines are kept of {name}"
        if any(b.number <= a.number for a, b in pairwise(lines)) and not data.files:
            yield f"the lines of {name} are in no order"
    missing = {
        name for name, count in data.match_counts.items() if count
    } - data.matches.keys()
    if missing:
        yield f"no line is kept of {missing.pop()}"
    if len(data.errors) != min(data.error_count, 50):
        yield f"{len(data.errors)} of {data.error_count} error lines are kept"
    if any(b.number <= a.number for a, b in pairwise(data.errors)) and not data.files:
        yield "its errors are in no order"
    errors = {line.number for line in data.errors}
    for line in _lines(data):
        first = data.error_count <= 50 or any(line.number < number for number in errors)
        if first and _is_error(line) != (line.number in errors):
            yield f"line {line.number} is an error, and is none"


def _is_error(line: LogLine) -> bool:
    return line.level in ERROR_LEVELS or TRACEBACK in line.own_words


def _as_written(line: LogLine, run: Run) -> Iterator[str]:
    """The line, as the forms of the engines have it."""
    yield line.text
    yield f"({line.process}) {line.level} {line.time} [{line.source}] {line.text}"
    yield (
        f"{line.time} - {run.engine.name} - {line.level} - {line.source} - {line.text}"
    )


def _dated(result: ProbeResult, evidence: Evidence, run: Run) -> Iterator[str]:  # type: ignore[type-arg]
    data = result.data
    assert isinstance(data, LogsData)
    read = result.started.wall.astimezone(UTC).replace(tzinfo=None)
    lines = sorted(_lines(data), key=lambda line: line.number)
    dated = [
        (line, at) for line in lines if (at := written(line.time, read)) is not None
    ]
    if len(dated) < sum(bool(line.time) for line in lines):
        yield "a line has a time that there is not"
    if not data.files:
        for (a, at), (b, then) in pairwise(dated):
            # Some lines have whole seconds alone, and two processes write past each
            # other.
            earliest = at if then.microsecond else at.replace(microsecond=0)
            if then < earliest - timedelta(seconds=CLOCK_S * (a.process != b.process)):
                yield f"line {b.number} is older than line {a.number} before it"
    if not dated:
        return
    newest = max(at for _, at in dated)
    if run.utc_offset_s is not None:
        zone = timedelta(seconds=run.utc_offset_s)
    else:  # the nearest zone in which nothing was logged after it was read
        zone = -((read - newest + timedelta(seconds=1)) // ZONE) * ZONE
    # A busy machine reads a long log for seconds, and the engine goes on writing.
    ended = read + timedelta(seconds=result.seconds)
    if abs(zone) > FARTHEST or newest - zone > ended + timedelta(seconds=1):
        yield (
            f"it is of another day: its last line is of {newest}, it was read at {read}"
        )
    if run.utc_offset_s is not None and run.began is not None:
        began = run.began.wall.astimezone(UTC).replace(tzinfo=None) + zone
        if newest < began - timedelta(seconds=1):
            yield (
                f"it is older than the run: its last line is of {newest}, the "
                f"run began {began}"
            )
    sent = [r.sent.wall for r in evidence.requests_in("trigger")]
    if not sent or evidence.never_ready:
        return
    asked = min(sent).astimezone(UTC).replace(tzinfo=None) + zone
    matched = {line.number for found in data.matches.values() for line in found}
    for line, at in dated:
        if (
            line.number in matched
            and _is_error(line)
            and at < asked - timedelta(seconds=1)
        ):
            yield f"line {line.number} was there before the trigger's first request"


def _writers(data: LogsData, evidence: Evidence) -> Iterator[str]:
    """A process that is called as one of the tree is that one."""
    uses = [
        use
        for result in _theirs(evidence)
        if isinstance(result.data, ProcessesData)
        for use in result.data.processes
    ]
    begun = (STARTED.match(event.text) for event in evidence.events)
    started = {found[1] for found in begun if found}
    named = {pid for line in _lines(data) for _, pid in PID.findall(line.process)}
    if not uses and started and named and not named & started:
        yield (
            f"it is of the processes {', '.join(sorted(named))}, none of which was "
            "started"
        )
    pids = {str(use.pid) for use in uses}
    ours = {
        name
        for line in _lines(data)
        for name, pid in PID.findall(line.process)
        if pid in pids
    }
    for line in _lines(data):
        for name, pid in PID.findall(line.process):
            if name in ours and pid not in pids:
                yield (
                    f"line {line.number} is of {line.process}, others are of "
                    f"this server's {name}"
                )
            same = {use.pid for use in uses if use.role and use.role in name}
            if same and int(pid) not in same:
                yield (
                    f"line {line.number} is of {line.process}, which is none of this "
                    "server"
                )


def frames(evidence: Evidence, run: Run) -> Doubts:
    """What the scenario is about is the engine's own function, by its file; code that
    somebody plugged in has functions of the same names."""
    known = {_plain(package.partition("==")[0]) for package in run.packages}
    standard = {*run.engine.code, *OURS, *sys.stdlib_module_names}
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


OURS = ("harness", "mmrepro", "reproducers", "mmrepro_stream", "PIL", "cv2")
"""Besides the engine's: of mmrepro, and modules that are called unlike their
packages."""


def replies(evidence: Evidence, run: Run) -> Doubts:
    """An HTTP error is in the engine's own form: not a page of something that stands
    before it."""
    for record in evidence.requests:
        if why := foreign_error(record.status, record.error):
            yield "requests", f"{record.label!r}: {why}"
        if record.status is None and not (
            record.timed_out or record.left or record.error
        ):
            yield "requests", f"{record.label!r} has no answer, and no reason"


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


ERROR_FIELDS = frozenset({"message", "type", "param", "code", "object"})


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
        isinstance(error, dict) and "message" in error and error.keys() <= ERROR_FIELDS
    )
    if known and (status >= 500 or "code" in error):
        known = "type" in error and error.get("code") == status
    return "" if known else f"the answer {status} is in no engine's form"


# ------------------------------------------------------------------ another cause


def ended(evidence: Evidence, run: Run) -> Doubts:
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
            if use.state == STOPPED and leads:
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
        [] if code is None else [one for one in (-code, code - 128) if one in OUTSIDE]
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


CHECKS: Sequence[Callable[[Evidence, Run], Doubts]] = (
    named,
    reproduced_here,
    one_server,
    one_tree,
    environments,
    clocks,
    order,
    in_turn,
    told,
    windows,
    silence,
    images,
    sums,
    counted,
    logs,
    frames,
    replies,
    ended,
)
