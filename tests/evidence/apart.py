"""Mix-ups after which a run's evidence is not all of that run, whatever the scenario.

Each takes one thing from another server, another time or another speaker, as a bug of
ours, a race or a busy machine could. A change that finds nothing to change in a
recording says so."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from mmrepro.base.records import Moment
from mmrepro.engines import get_engine
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature.log_ownership import is_error
from mmrepro.probes.data import (
    HttpData,
    InferenceData,
    LogLine,
    LogsData,
    MetricsData,
    ProbeData,
    ProbeResult,
    ProcessesData,
    StacksData,
    SyscallsData,
)
from mmrepro.traffic.evidence import RequestRecord

Change = Callable[[Incident], bool]
"""In place; False: there is nothing that it could change."""
PAGE = (
    "<html>\r\n<head><title>{0}</title></head>\r\n<body><h1>{0}</h1></body>\r\n</html>"
)


@dataclass(frozen=True)
class Apart:
    name: str
    kind: str
    change: Change


APART: list[Apart] = []


def apart(kind: str) -> Callable[[Change], Change]:
    def declare(change: Change) -> Change:
        APART.append(Apart(change.__name__.replace("_", "-"), kind, change))
        return change

    return declare


# ------------------------------------------------------------------ what there is


def results(
    incident: Incident, kind: type[ProbeData], *phases: str
) -> list[ProbeResult]:  # type: ignore[type-arg]
    return [
        result
        for result in incident.evidence.probes
        if isinstance(result.data, kind)
        and result.phase in (phases or ("gate", "check"))
    ]


def lines(data: LogsData) -> Iterator[LogLine]:
    """Each entry, of which several may be one line."""
    for found in data.matches.values():
        yield from found
    yield from (*data.errors, *data.stuck_requests, *data.last_by_process.values())
    yield from filter(None, (data.first_line, data.last_line, data.last_progress))


def failing(incident: Incident) -> list[LogLine]:
    return [
        line
        for result in results(incident, LogsData, "check")
        for found in result.data.matches.values()
        for line in found
        if is_error(line)
    ]


def triggered(incident: Incident) -> list[RequestRecord]:
    return [r for r in incident.evidence.requests_in("trigger") if r.method == "POST"]


def hung(incident: Incident) -> list[RequestRecord]:
    return [record for record in triggered(incident) if record.timed_out]


def later(moment: Moment, seconds: float) -> Moment:
    return Moment(
        wall=moment.wall + timedelta(seconds=seconds), mono=moment.mono + seconds
    )


def core(incident: Incident, data: ProcessesData) -> Iterator[int]:
    role = get_engine(incident.engine.name).core_role
    return (index for index, use in enumerate(data.processes) if role in use.role)


# ------------------------------------------------------------------ of another server


def _at(kind: type[MetricsData] | type[HttpData], *phases: str) -> Change:
    def change(incident: Incident) -> bool:
        found = results(incident, kind, *phases)
        for result in found:
            name = "url" if kind is MetricsData else "base_url"
            port = getattr(result.data, name).split(":")[2].partition("/")
            setattr(
                result.data,
                name,
                f"http://127.0.0.1:{int(port[0]) + 1}{port[1]}{port[2]}",
            )
        return bool(found)

    return change


@apart("identity")
def metrics_of_another_server(incident: Incident) -> bool:
    return _at(MetricsData, "check")(incident)


@apart("identity")
def all_metrics_of_another_server(incident: Incident) -> bool:
    return _at(MetricsData)(incident)


@apart("identity")
def endpoints_of_another_server(incident: Incident) -> bool:
    return _at(HttpData)(incident)


@apart("identity")
def metrics_of_another_model(incident: Incident) -> bool:
    found = [s for r in results(incident, MetricsData) for s in r.data.samples]
    named = [sample for sample in found if "model_name" in sample.labels]
    for sample in named:
        sample.labels["model_name"] = "llama"
    return bool(named)


@apart("identity")
def endpoints_of_another_model(incident: Incident) -> bool:
    found = [a for r in results(incident, HttpData, "check") for a in r.data.answers]
    named = [answer for answer in found if '"tiny"' in answer.body]
    for answer in named:
        answer.body = answer.body.replace('"tiny"', '"llama"')
    return bool(named)


@apart("identity")
def endpoints_of_another_engine(incident: Incident) -> bool:
    found = [a for r in results(incident, HttpData, "check") for a in r.data.answers]
    named = [answer for answer in found if '"owned_by"' in answer.body]
    for answer in named:
        answer.body = answer.body.replace(incident.engine.name, "tgi")
    return bool(named)


@apart("identity")
def stacks_of_another_process(incident: Incident) -> bool:
    found = [s for r in results(incident, StacksData, "check") for s in r.data.samples]
    for sample in found:
        sample.pid += 1000
    return bool(found)


@apart("identity")
def stacks_of_the_front(incident: Incident) -> bool:
    others = [
        use.pid
        for result in results(incident, ProcessesData, "gate")
        for use in result.data.processes
        if use.pid
        not in [result.data.processes[i].pid for i in core(incident, result.data)]
    ]
    found = [s for r in results(incident, StacksData, "check") for s in r.data.samples]
    for sample in found:
        sample.pid = others[0] if others else sample.pid
    return bool(found and others)


@apart("identity")
def system_calls_of_another_process(incident: Incident) -> bool:
    found = results(incident, SyscallsData, "check")
    for result in found:
        result.data.pid += 1000
    return bool(found)


@apart("identity")
def system_calls_of_another_rank(incident: Incident) -> bool:
    found = results(incident, SyscallsData, "check")
    role = get_engine(incident.engine.name).core_role
    others = {
        use.pid
        for result in results(incident, ProcessesData)
        for use in result.data.processes
        if role in use.role and use.pid not in {result.data.pid for result in found}
    }
    for result in found if others else []:
        result.data.pid = min(others)
    return bool(found and others)


@apart("identity")
def processes_of_another_server(incident: Incident) -> bool:
    found = [r for r in results(incident, ProcessesData, "check") if r.data.processes]
    for result in found:
        result.data.root_pid += 1000
        for use in result.data.processes:
            use.pid, use.ppid = use.pid + 1000, use.ppid + 1000
    return bool(found)


@apart("identity")
def started_again(incident: Incident) -> bool:
    """The core has another process id in the check, and an hour less of age."""
    changed = False
    for result in results(incident, ProcessesData, "check"):
        for index in core(incident, result.data):
            use, changed = result.data.processes[index], True
            if use.pid == result.data.root_pid:
                result.data.root_pid += 7
            use.pid, use.created_wall = use.pid + 7, (use.created_wall or 0.0) + 3600
    return changed


@apart("identity")
def started_after_the_trigger(incident: Incident) -> bool:
    found = [u for r in results(incident, ProcessesData) for u in r.data.processes]
    for use in found:
        use.created_wall = incident.evidence.events[-1].at.wall.timestamp()
    return bool(found)


@apart("identity")
def reproducer_in_another_release(incident: Incident) -> bool:
    changed = False
    for one in incident.evidence.reproducers:
        for name, value in one.facts.items():
            if isinstance(value, str) and "environments/" in value:
                head, _, tail = value.partition("environments/")
                rest = tail.partition("/")[2]
                one.facts[name] = f"{head}environments/vllm-0.1.0-cpu-0000/{rest}"
                changed = True
            if name == incident.engine.name:
                one.facts[name], changed = "0.1.0", True
    return changed


@apart("identity")
def wheel_of_another_release(incident: Incident) -> bool:
    wheel = incident.engine.wheel
    if wheel is None or incident.engine.release not in wheel.filename:
        return False
    wheel.filename = wheel.filename.replace(incident.engine.release, "0.1.0")
    return True


@apart("identity")
def packages_of_another_release(incident: Incident) -> bool:
    told, packages = f"=={incident.engine.release}", incident.engine.packages
    found = [p for p in packages if p.startswith(incident.engine.name) and told in p]
    for package in found:
        packages[packages.index(package)] = package.replace(told, "==0.1.0")
    return bool(found)


@apart("identity")
def command_of_another_release(incident: Incident) -> bool:
    engine = incident.engine
    if not engine.command:
        return False
    engine.command[0] = engine.command[0].replace(f"-{engine.release}-", "-0.1.0-")
    return True


@apart("identity")
def said_to_be_another_release(incident: Incident) -> bool:
    known = {
        "vllm": "0.14.1",
        "sglang": "0.5.18",
        "lmdeploy": "0.6.5",
        "minivllm": "0.2",
    }
    incident.engine.release = known[incident.engine.name]
    return True


@apart("identity")
def said_to_be_another_engine(incident: Incident) -> bool:
    incident.engine.name = "sglang" if incident.engine.name != "sglang" else "vllm"
    return True


@apart("identity")
def log_of_another_server(incident: Incident) -> bool:
    found = [
        line for r in results(incident, LogsData, "check") for line in lines(r.data)
    ]
    named = [line for line in found if " pid=" in line.process]
    for line in named:
        line.process = line.process.partition(" pid=")[0] + " pid=77"
    return bool(named)


@apart("identity")
def log_of_another_engine(incident: Incident) -> bool:
    """In the forms of its lines, as their reader knew them."""
    other = "sglang" if incident.engine.name != "sglang" else "vllm"
    found = [r for r in results(incident, LogsData, "check") if r.data.engine]
    for result in found:
        result.data.engine = other
    return bool(found)


@apart("identity")
def log_of_another_start(incident: Incident) -> bool:
    """Its last start tells of another release."""
    found = results(incident, LogsData, "check")
    for result in found:
        result.data.release = "0.1.0"
    return bool(found)


@apart("identity")
def command_lines_of_another_port(incident: Incident) -> bool:
    found = [u for r in results(incident, ProcessesData) for u in r.data.processes]
    named = [
        use for use in found if re.search(r"--(?:server-)?port[ =]\d", use.cmdline)
    ]
    for use in named:
        use.cmdline = re.sub(r"(--(?:server-)?port[ =])\d+", r"\g<1>7", use.cmdline)
    return bool(named)


@apart("identity")
def traceback_of_another_release(incident: Incident) -> bool:
    found = [
        line for r in results(incident, LogsData, "check") for line in lines(r.data)
    ]
    named = [line for line in found if "/environments/" in line.text]
    for line in named:
        line.text = line.text.replace(f"-{incident.engine.release}-", "-0.1.0-")
    return bool(named)


@apart("identity")
def counters_began_again(incident: Incident) -> bool:
    found = results(incident, MetricsData, "check")
    changed = False
    for sample in found[-1].data.samples if len(found) > 1 else []:
        if sample.name.endswith(("_total", "_count")) and sample.value:
            sample.value, changed = 0.0, True
    return changed


# ------------------------------------------------------------------ of another time


@apart("time")
def checked_before_the_trigger(incident: Incident) -> bool:
    found = [
        r for r in incident.evidence.probes if r.phase == "check" and r.data is not None
    ]
    for result in found:
        result.started = later(result.started, -600.0)
        if isinstance(result.data, StacksData):
            for sample in result.data.samples:
                sample.taken = later(sample.taken, -600.0)
    return bool(found)


@apart("time")
def one_kind_before_the_trigger(incident: Incident) -> bool:
    found = results(incident, InferenceData, "check")
    asked = triggered(incident)
    for result in found if asked else []:
        result.started = later(asked[0].sent, -1.0)
    return bool(found and asked)


@apart("time")
def no_window(incident: Incident) -> bool:
    found = [
        *results(incident, ProcessesData, "check"),
        *results(incident, SyscallsData, "check"),
    ]
    for result in found:
        result.data.window_s = 0.0
    return bool(found)


def shifted(line: LogLine, by: timedelta) -> bool:
    """Move a line's time, in the form that it has."""
    text = line.time.replace(",", ".").replace("T", " ").partition(".")[0]
    for form in ("%Y-%m-%d %H:%M:%S", "%m-%d %H:%M:%S", "%m%d %H:%M:%S"):
        if "Y" in form:
            dated, read = text, form
        else:  # a form without a year; the last one is glog's
            dated, read = f"2026 {text}", f"%Y {form}"
        try:
            at = datetime.strptime(dated, read) + by
        except ValueError:
            continue
        line.time = at.strftime(form)
        return True
    return False


@apart("time")
def log_of_yesterday(incident: Incident) -> bool:
    changed = False
    for result in results(incident, LogsData, "check"):
        for line in {id(line): line for line in lines(result.data)}.values():
            changed = shifted(line, timedelta(days=-1)) or changed
    return changed


@apart("time")
def failed_before_the_trigger(incident: Incident) -> bool:
    """What failed was logged minutes before the first request that is to have done
    it."""
    changed = False
    for line in {id(line): line for line in failing(incident)}.values():
        changed = shifted(line, timedelta(minutes=-30)) or changed
    return changed


@apart("time")
def failed_long_after(incident: Incident) -> bool:
    changed = False
    for line in {id(line): line for line in failing(incident)}.values():
        changed = shifted(line, timedelta(minutes=90)) or changed
    return changed


@apart("time")
def answered_before_it_was_asked(incident: Incident) -> bool:
    found = triggered(incident)
    for record in found:
        record.sent = later(incident.created, -60.0)
    return bool(found)


@apart("time")
def triggered_before_the_gate(incident: Incident) -> bool:
    gate, found = incident.evidence.requests_in("gate"), triggered(incident)
    for record in found if gate else []:
        record.sent = later(gate[0].sent, -1.0)
    return bool(gate and found)


@apart("time")
def called_a_request_of_the_gate(incident: Incident) -> bool:
    found = triggered(incident)
    if found:
        found[-1].phase = "gate"
    return bool(found)


@apart("time")
def timeline_of_another_day(incident: Incident) -> bool:
    for event in incident.evidence.events:
        event.at = later(event.at, -86400.0)
    return True


# ------------------------------------------------------------------ not waited for


@apart("deadline")
def given_up_at_once(incident: Incident) -> bool:
    for record in hung(incident):
        record.latency_s = record.deadline_s = 0.5
    return bool(hung(incident))


@apart("deadline")
def given_up_early(incident: Incident) -> bool:
    for record in hung(incident):
        record.latency_s = record.deadline_s / 10
    return bool(hung(incident))


@apart("deadline")
def a_shorter_deadline(incident: Incident) -> bool:
    for record in hung(incident):
        record.deadline_s /= 10
    return bool(hung(incident))


@apart("deadline")
def answered_late(incident: Incident) -> bool:
    for record in hung(incident):
        record.status, record.completion_tokens, record.text = 200, 4, "hello"
    return bool(hung(incident))


@apart("deadline")
def headers_came(incident: Incident) -> bool:
    found = [record for record in hung(incident) if not record.stream]
    for record in found:
        record.status = 200
    return bool(found)


@apart("deadline")
def a_stream_that_flows(incident: Incident) -> bool:
    for record in hung(incident):
        record.stream, record.status, record.ttft_s, record.pieces = True, 200, 0.2, 40
    return bool(hung(incident))


def _silent(incident: Incident) -> list[InferenceData]:
    found = (result.data for result in results(incident, InferenceData, "check"))
    return [data for data in found if "no complete answer" in data.error]


@apart("deadline")
def small_request_given_up_at_once(incident: Incident) -> bool:
    for data in _silent(incident):
        data.seconds = data.deadline_s = 0.2
    return bool(_silent(incident))


@apart("deadline")
def small_request_given_up_early(incident: Incident) -> bool:
    for data in _silent(incident):
        data.seconds = data.deadline_s / 10
    return bool(_silent(incident))


@apart("deadline")
def gate_asks_for_more(incident: Incident) -> bool:
    if incident.gate is None or not hung(incident):
        return False
    incident.gate.deadline_s = 10 * (incident.gate.deadline_s or 1.0)
    return True


# ------------------------------------------------------------------ of something else


def _again(incident: Incident) -> list[RequestRecord]:
    """Requests with a picture that was sent before, by the same name."""
    seen: set[tuple[str, str]] = set()
    found = []
    for record in sorted(incident.evidence.requests, key=lambda r: r.id):
        pictures = {(sent.name, sent.sha256) for sent in record.images}
        if pictures & seen:
            found.append(record)
        seen |= pictures
    return found


# ------------------------------------------------------------------ by somebody else


@apart("speaker")
def frames_of_a_plugin(incident: Incident) -> bool:
    found = [s for r in results(incident, StacksData, "check") for s in r.data.samples]
    about = [
        f
        for s in found
        for t in s.threads
        for f in t.frames
        if f.file.startswith("vllm/")
    ]
    for frame in about:
        frame.file = frame.file.replace("vllm/", "my_plugin/")
    return bool(about)


@apart("speaker")
def page_of_a_proxy(incident: Incident) -> bool:
    found = [r for r in triggered(incident) if (r.status or 0) >= 500]
    for record in found:
        record.status, record.error = 502, PAGE.format("502 Bad Gateway")
    return bool(found)


@apart("speaker")
def page_with_its_status(incident: Incident) -> bool:
    found = [r for r in triggered(incident) if (r.status or 0) >= 400]
    for record in found:
        record.error = PAGE.format(f"{record.status} Error")
    return bool(found)


@apart("speaker")
def words_of_a_gateway(incident: Incident) -> bool:
    found = [r for r in triggered(incident) if (r.status or 0) >= 400]
    for record in found:
        record.error = '{"message": "An unexpected error occurred", "request_id": "9f"}'
    return bool(found)


@apart("speaker")
def gateway_gave_up(incident: Incident) -> bool:
    found = hung(incident)
    for record in found:
        record.status, record.timed_out, record.error = (
            504,
            False,
            "upstream request timeout",
        )
    return bool(found)


@apart("speaker")
def endpoints_of_a_proxy(incident: Incident) -> bool:
    found = [a for r in results(incident, HttpData, "check") for a in r.data.answers]
    for answer in found:
        answer.status, answer.body = 502, PAGE.format("502 Bad Gateway")
    return bool(found)


# ------------------------------------------------------------------ for another reason


def _ended_by(code: int) -> Change:
    def change(incident: Incident) -> bool:
        was = incident.evidence.engine_exit
        incident.evidence.engine_exit = code
        return was is not None and was >= 0

    return change


@apart("cause")
def killed_from_outside(incident: Incident) -> bool:
    return _ended_by(-9)(incident)


@apart("cause")
def killed_in_its_container(incident: Incident) -> bool:
    return _ended_by(137)(incident)


@apart("cause")
def told_to_end(incident: Incident) -> bool:
    return _ended_by(-15)(incident)


def _stopped(of_the_core: bool) -> Change:
    def change(incident: Incident) -> bool:
        asked = {
            id(r.data): set(core(incident, r.data))
            for r in results(incident, ProcessesData)
        }
        found = [
            use
            for result in results(incident, ProcessesData, "check")
            for index, use in enumerate(result.data.processes)
            if (
                index in asked[id(result.data)]
                if of_the_core
                else use.pid == result.data.root_pid
            )
        ]
        for use in found:
            use.state = "T"
        return bool(found and hung(incident))

    return change


@apart("cause")
def somebody_stopped_the_core(incident: Incident) -> bool:
    return _stopped(of_the_core=True)(incident)


@apart("cause")
def somebody_stopped_the_front(incident: Incident) -> bool:
    return _stopped(of_the_core=False)(incident)


@apart("cause")
def nobody_lives(incident: Incident) -> bool:
    found = [
        u for r in results(incident, ProcessesData, "check") for u in r.data.processes
    ]
    for use in found:
        use.state = "Z"
    return bool(found and hung(incident))


@apart("cause")
def gate_was_noted_to_fail(incident: Incident) -> bool:
    if incident.gate is not None:
        incident.gate.passed = False
    return incident.gate is not None
