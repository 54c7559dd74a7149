"""Whose a run's evidence is: of which environment, server, process and speaker.

Each check yields what does not belong to the run, and why. They ask by kinds of
evidence, and nothing of a field that an older document does not have."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from urllib.parse import urlsplit

from mmrepro.engines import PROXY
from mmrepro.failure.signature.foreign_errors import foreign_error, not_the_engines
from mmrepro.failure.signature.run_facts import (
    CLOCK_S,
    EVERYTHING,
    Doubts,
    Run,
    apart,
    beyond,
    kept_lines,
    kind_of,
    of_this_server,
)
from mmrepro.probes import (
    ConnectionsData,
    Frame,
    HttpData,
    LogsData,
    MetricsData,
    ProbeResult,
    ProcessesData,
    ProcessUse,
    StacksData,
    SyscallsData,
)
from mmrepro.traffic.evidence import Event, Evidence

_PORT = re.compile(r" --(?:server-)?port[ =](\d+)")
_STARTED = re.compile(r"engine started as process (\d+)")
_EARLY_S = 5.0
"""A process may be so much older than the line that tells of its start."""
_DEAD = ("Z", "X")
_STOPPED = "T"
"""By a signal; a tracer's own stop is t."""
_SENT_SIGNALS = (9, 15, 2, 1, 3, 10, 12, 24, 30)
"""Signals that somebody sends: KILL, TERM, INT, HUP, QUIT, a batch system's USR1 and
USR2, XCPU of a limit, PWR. A crash raises others in its own process."""
FOREVER = re.compile(r".*_(?:total|count|bucket)|process_start_time_seconds")
"""Metrics that a server which is not started again never lowers. Not sums: those of
durations have been recorded to shrink."""
_OURS = ("harness", "mmrepro", "reproducers", "mmrepro_stream", "PIL", "cv2")
"""Code besides the engine's: of mmrepro, and modules that are called unlike their
packages."""

_Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a metric's series."""


# ------------------------------------------------------- which packages, which release


def named(evidence: Evidence, run: Run) -> Doubts:
    """Wheel, packages and interpreter are of the engine and the release that the run
    says."""
    if run.known:
        yield EVERYTHING, run.known
    own_projects = {_plain(run.engine.name)}
    own_projects.update(map(_plain, run.engine.distributions))
    versions = _versions(run.packages)

    of_release: dict[str, str] = {}
    for project in own_projects & versions.keys():
        of_release[f"the package {project}"] = versions[project]

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
        if project in own_projects:
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


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """The version of each package of a list of ``name==version``."""
    versions: dict[str, str] = {}
    for package in packages:
        name, _, version = package.partition("==")
        versions[_plain(name)] = version
    return versions


def _plain(name: str) -> str:
    """A project's name in the form that compares (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reproduced_here(evidence: Evidence, run: Run) -> Doubts:
    """What the reproducers print is of the environment and the release of the run."""
    for reproducer in evidence.reproducers:
        for name, value in reproducer.facts.items():
            if name == run.engine.name and value != run.number:
                yield (
                    "reproducers",
                    f"{reproducer.name} ran in {name} {value}, the run in "
                    f"{run.release}",
                )
            for other in run.other_environments(str(value)):
                yield (
                    "reproducers",
                    f"{reproducer.name} ran in {other}, the run in {run.environment}",
                )


def environments(evidence: Evidence, run: Run) -> Doubts:
    """Processes and tracebacks name one environment: that of the run."""
    for result in of_this_server(evidence):
        texts: list[str] = []
        if isinstance(result.data, ProcessesData):
            texts = [use.cmdline for use in result.data.processes]
        elif isinstance(result.data, LogsData):
            texts = [line.text for line in kept_lines(result.data)]

        for text in texts:
            for other in run.other_environments(text):
                yield (
                    kind_of(result),
                    f"it is of the environment {other}, the run of {run.environment}",
                )


# --------------------------------------------------------------------- which server


def one_server(evidence: Evidence, run: Run) -> Doubts:
    """Endpoints, metrics and connections are of one address, which the server was
    started with."""
    port = run.option("--port", "--server-port")
    model = run.option("--served-model-name", "--model-name")

    places = [(kind, urlsplit(url)) for kind, url in _addresses(evidence)]
    hosts = Counter(url.netloc for _, url in places)
    usual = hosts.most_common(1)[0][0] if hosts else ""
    for kind, url in places:
        if url.netloc != usual or (port and url.port != int(port)):
            yield kind, f"it is of {url.netloc}, the server listens on {port or usual}"

    for result in of_this_server(evidence):
        data = result.data
        if isinstance(data, ConnectionsData) and port and data.port != int(port):
            yield (
                "connections",
                f"they are of port {data.port}, the server listens on {port}",
            )
        if isinstance(data, MetricsData) and model:
            served = {sample.labels.get("model_name") for sample in data.samples}
            # vLLM's Rust front end labels them with the model's folder, which is a word
            # of the command.
            others = served - {None, model, *run.command}
            if others:
                yield (
                    "metrics",
                    f"they are of the model {others.pop()}, {model} was served",
                )
        if isinstance(data, HttpData):
            yield from _foreign_answers(data, run, model)
        if isinstance(data, ProcessesData) and port:
            yield from _listening_elsewhere(data, run, port)


def _addresses(evidence: Evidence) -> Iterator[tuple[str, str]]:
    for result in of_this_server(evidence):
        if isinstance(result.data, MetricsData):
            yield "metrics", result.data.url
        if isinstance(result.data, HttpData):
            yield "http", result.data.base_url


def _listening_elsewhere(data: ProcessesData, run: Run, port: str) -> Doubts:
    proxied = PROXY.search(" ".join(run.command)) is not None
    for use in data.processes:
        # Servers behind the proxy of a pair have ports of their own.
        behind = proxied and use.pid != data.root_pid
        listens = _PORT.search(use.cmdline)
        if listens and listens[1] != port and not behind:
            yield (
                "processes",
                f"process {use.pid} listens on {listens[1]}, the server on {port}",
            )


def _foreign_answers(data: HttpData, run: Run, model: str) -> Doubts:
    for answer in data.answers:
        why = not_the_engines(answer.status, answer.body)
        if why:
            yield "http", f"{answer.path}: {why}"

        entry = _first_model(answer.body)
        owner, name = entry.get("owned_by"), entry.get("id")
        owners = (None, run.engine.name, *run.engine.model_owners)
        of_another_owner = owner not in owners
        of_another_model = bool(model) and name not in (None, model)
        if entry and (of_another_owner or of_another_model):
            yield "http", f"{answer.path} is of {owner}'s model {name}"


def _first_model(body: str) -> Mapping[str, str]:
    """Owner and name of the first entry in a list of models; empty: it is no such
    list. The list is searched, not parsed: it may be cut."""
    entry: dict[str, str] = {}
    for field, value in re.findall(r'"(owned_by|id)": ?"([^"]*)"', body):
        entry.setdefault(field, value)
    return entry if "owned_by" in entry else {}


def counted(evidence: Evidence, run: Run) -> Doubts:
    """Counters only rise, and no series of them goes: one server was read."""
    before: dict[_Series, float] = {}
    for result in of_this_server(evidence):
        if not isinstance(result.data, MetricsData) or not result.ok:
            continue
        now: dict[_Series, float] = {}
        for sample in result.data.samples:
            if sample.value is not None and FOREVER.fullmatch(sample.name):
                series = (sample.name, tuple(sorted(sample.labels.items())))
                now[series] = sample.value

        for series, value in before.items():
            if series not in now or now[series] < value:
                yield (
                    "metrics",
                    f"{series[0]} fell between two readings: it is another server's",
                )
        before = now


# ------------------------------------------------------------------ which processes


def one_tree(evidence: Evidence, run: Run) -> Doubts:
    """One tree of processes, whose core lives from before the trigger on; all else is
    of it."""
    readings: list[ProcessesData] = []
    for result in of_this_server(evidence):
        if isinstance(result.data, ProcessesData):
            readings.append(result.data)

    roots = {data.root_pid for data in readings}
    started = started_pids(event for event in evidence.events if event.phase == "start")
    if started:
        # A start that failed is tried again: the last one is the run's server.
        roots.add(started[-1])
    if len(roots) > 1:
        pids = " and ".join(map(str, sorted(roots)))
        yield "processes", f"they are of two servers, processes {pids}"

    core = run.engine.core_role
    cores = [_pids_of(data, core) for data in readings]
    cores = [pids for pids in cores if pids]
    if any(before != after for before, after in pairwise(cores)):
        yield "processes", f"{core} was started again between the readings"
        yield "metrics", f"{core} was started again between the readings"
    yield from _lives(evidence, readings)
    yield from _traced(evidence, run, readings)


def started_pids(events: Iterable[Event]) -> list[int]:
    """The process ids of servers whose start is noted."""
    matches = [_STARTED.match(event.text) for event in events]
    return [int(match[1]) for match in matches if match]


def _pids_of(data: ProcessesData, role: str) -> set[int]:
    """Processes of a role; none of a role that the engine does not have."""
    return {use.pid for use in data.processes if role and role in use.role}


def _traced(evidence: Evidence, run: Run, readings: Sequence[ProcessesData]) -> Doubts:
    """Stacks and system calls are of the server's core or of its workers."""
    ours: set[int] = set()
    cores: set[int] = set()
    workers: set[int] = set()
    for data in readings:
        ours |= {use.pid for use in data.processes}
        cores |= _pids_of(data, run.engine.core_role)
        workers |= _pids_of(data, run.engine.worker_role)
    # Where no process was seen at all, the server was gone: then no id is known to be
    # another's.
    if ours:
        for data in readings:
            ours |= {*data.vanished, data.root_pid}

    traced_by_phase: dict[str, set[int]] = {}
    for result in of_this_server(evidence):
        if isinstance(result.data, SyscallsData):
            traced_by_phase.setdefault(result.phase, set()).add(result.data.pid)
        for pid in _pids_looked_into(result):
            if ours and pid not in ours:
                yield (
                    kind_of(result),
                    f"they are of process {pid}, which is none of this server",
                )
            elif cores and pid not in cores | workers:
                yield (
                    kind_of(result),
                    f"they are of process {pid}, which is no {run.engine.core_role}",
                )
    if any(before != after for before, after in pairwise(traced_by_phase.values())):
        yield "syscalls", "they are of one process in one phase, of another in the next"


def _pids_looked_into(result: ProbeResult) -> set[int]:  # type: ignore[type-arg]
    """Processes whose stacks or system calls a result has."""
    data = result.data
    if isinstance(data, StacksData):
        return {sample.pid for sample in data.samples} | set(data.denied)
    if isinstance(data, SyscallsData):
        return {data.pid}
    return set()


def _lives(evidence: Evidence, readings: Sequence[ProcessesData]) -> Doubts:
    """Every process has one start, of this server, before the first request: an id may
    be given again to another process."""
    sent = [r.sent.wall.timestamp() for r in evidence.requests_in("gate")]
    started = [e.at.wall.timestamp() for e in evidence.events if _STARTED.match(e.text)]
    first_use: dict[int, ProcessUse] = {}
    for data in readings:
        for use in data.processes:
            before = first_use.setdefault(use.pid, use)
            born = use.created_wall
            if born is None or before.created_wall is None:
                continue
            if apart(born, before.created_wall):
                yield "processes", f"process {use.pid} has two starts"
            # A helper without a role may start at any time; a zombie has lost its
            # command line, and with it its role.
            works = bool(use.role) or use.state in _DEAD
            if sent and works and beyond(born, min(sent), CLOCK_S):
                yield (
                    "processes",
                    f"{use.role or use.name} was started after the first request",
                )
            if started and beyond(max(started), born, _EARLY_S):
                yield "processes", f"process {use.pid} is older than the server"

    root = first_use.get(readings[0].root_pid) if readings else None
    if root is None or not root.created_wall:
        return
    for result in of_this_server(evidence):
        if isinstance(result.data, MetricsData):
            born = result.data.total("process_start_time_seconds")
            if born is not None and apart(born, root.created_wall):
                yield (
                    "metrics",
                    "they are of a process that was started at another time",
                )


def ended(evidence: Evidence, run: Run) -> Doubts:
    """A signal from outside, or from a kernel that is out of memory, ended no server by
    itself; nor is a server silent by itself whose core or front such a signal
    stopped."""
    signal = sent_by_others(evidence.engine_exit, evidence, run.engine.ends_itself)
    if signal is not None:
        yield "engine_exit", f"signal {signal} ended it, which somebody sent"

    for result in of_this_server(evidence):
        data = result.data
        if not isinstance(data, ProcessesData):
            continue
        for use in data.processes:
            leads = use.pid == data.root_pid or run.engine.core_role in use.role
            if use.state != _STOPPED or not leads:
                continue
            who = use.role or use.name
            why = f"{who} was stopped, by a signal that somebody sent"
            for kind in ("processes", "requests", "inference"):
                yield kind, why


def sent_by_others(
    code: int | None, evidence: Evidence, ends_itself: str
) -> int | None:
    """The signal that ended a server with exit code ``code`` from outside; None: there
    was none, or its log holds a line of ``ends_itself``."""
    if code is None:
        return None
    # Python gives a signal as -9, a shell as 128 + 9.
    signals = [number for number in (-code, code - 128) if number in _SENT_SIGNALS]
    if not signals:
        return None
    # Some engines end their own processes with a signal, and log that they do.
    if ends_itself and _logs_hold(evidence, ends_itself):
        return None
    return signals[0]


def _logs_hold(evidence: Evidence, pattern: str) -> bool:
    for result in of_this_server(evidence):
        if not isinstance(result.data, LogsData):
            continue
        for line in kept_lines(result.data):
            if re.search(pattern, line.text):
                return True
    return False


# ----------------------------------------------------------------------- who speaks


def frames(evidence: Evidence, run: Run) -> Doubts:
    """What the scenario is about is the engine's own function, by its file; code that
    somebody plugged in has functions of the same names."""
    packages = {_plain(package.partition("==")[0]) for package in run.packages}
    standard = {*run.engine.code, *_OURS, *sys.stdlib_module_names}
    foreign: dict[str, bool] = {}
    for frame in _sampled_frames(evidence):
        own = [file for file, name in run.sources if name == frame.function]
        if own and not any(f"/{file}".endswith(f"/{frame.file}") for file in own):
            yield "stacks", f"{frame.function} is of {frame.file}, not of {own[0]}"

        top, _, rest = frame.file.partition("/")
        if not (run.engine.code and packages and rest):
            continue
        if top not in foreign:
            # A module is seldom called as its package, but much like it.
            of_package = any(_plain(top) in package for package in packages)
            foreign[top] = top not in standard and not of_package
        if foreign[top]:
            yield (
                "stacks",
                f"{frame.function} is of {frame.file}, which is not the engine's",
            )


def _sampled_frames(evidence: Evidence) -> Iterator[Frame]:
    for result in of_this_server(evidence):
        if not isinstance(result.data, StacksData):
            continue
        for sample in result.data.samples:
            for thread in sample.threads:
                yield from thread.frames


def replies(evidence: Evidence, run: Run) -> Doubts:
    """An HTTP error is in the engine's own form: not a page of something that stands
    before it."""
    for record in evidence.requests:
        why = foreign_error(record.status, record.error)
        if why:
            yield "requests", f"{record.label!r}: {why}"
