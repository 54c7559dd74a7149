"""The general diagnosis: one state for each kind of evidence, and no stronger one than
was seen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_up import http, metrics
from mmrepro.engines import get_engine
from mmrepro.failure.documents.diagnosis import (
    COULD_NOT_TELL,
    ServerState,
    TargetFacts,
    TargetProcess,
)
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose.general import assess, at_once, suspicious
from mmrepro.probes.data import (
    AnyProbeData,
    InferenceData,
    MetricSample,
    MetricsData,
    SyscallsData,
)
from mmrepro.traffic.evidence import Evidence
from seen import (
    CORE,
    FRONT,
    GREEN,
    IDLE,
    MOVES,
    SILENCE,
    answer,
    evidence,
    failed,
    frames,
    idle,
    log,
    moving,
    sampled,
    still,
    target,
    thread,
    use,
    waiting,
)

LOOP = frames("pop cache.py:5", "evict cache.py:9", "add core.py:3", "loop core.py:1")
SPIN = sampled(*[[thread(LOOP, gil=True)]] * 5)
NATIVE = sampled(*[[thread(frames("matmul layer.py:7", "step core.py:3"))]] * 5)
NAP = sampled(*[[thread(frames("fetch io.py:7", "step core.py:3"), active=False)]] * 5)
CUDA = sampled(
    *[[thread(frames("synchronize torch/cuda/__init__.py:7"), active=False)]] * 5
)
LOCK = sampled(
    *[[thread(frames("acquire threading.py:7", "step a.py:3"), active=False)]] * 5
)
HOT, COLD = use(98.0), use(1.0)
NO_CONNECTION = http(None, None)
for one in NO_CONNECTION.answers:
    one.error = "ConnectError: refused"
ALONE: dict[str, Any] = {"states": "S"}
"""The front, and no process that is called as the core is."""
FRONT_IDLE = sampled(*[[thread(IDLE, active=False)]] * 5, pid=FRONT)
DIED = log("EngineDeadError: EngineCore encountered an issue")
DIED.match_counts, DIED.matches = {"engine-died": 1}, {"engine-died": DIED.errors}

CASES: dict[str, tuple[ServerState, list[AnyProbeData], dict[str, Any]]] = {
    "healthy": (ServerState.HEALTHY, [GREEN, *still(), answer(), idle(), COLD], {}),
    "busy": (
        ServerState.HEALTHY,
        [GREEN, *moving(running=4), answer(), MOVES, HOT],
        {},
    ),
    "busy, queue, answered": (
        ServerState.HEALTHY,
        [GREEN, *moving(waiting=4), answer(2)],
        {},
    ),
    "busy, not asked": (
        ServerState.HEALTHY,
        [GREEN, *moving(running=4), MOVES, HOT],
        {},
    ),
    "no traffic, not asked": (
        ServerState.NO_FAULT_SEEN,
        [GREEN, *still(), idle(), COLD],
        {},
    ),
    "slow": (ServerState.SLOW, [GREEN, *moving(), answer(9.0)], {}),
    "slow, queue": (
        ServerState.OVERLOADED,
        [GREEN, *moving(waiting=9), answer(9.0)],
        {},
    ),
    "overloaded": (
        ServerState.OVERLOADED,
        [GREEN, *moving(running=8, waiting=9), SILENCE, MOVES],
        {},
    ),
    "turned away": (ServerState.OVERLOADED, [GREEN, failed(429, "HTTP 429: full")], {}),
    "works, silent": (
        ServerState.SLOW,
        [GREEN, *moving(running=1), SILENCE, MOVES, HOT],
        {},
    ),
    "long step": (
        ServerState.SLOW,
        [GREEN, *still(running=1), SILENCE, MOVES, HOT],
        {},
    ),
    "spins in Python": (
        ServerState.FROZEN_PYTHON,
        [GREEN, *still(), SILENCE, SPIN, HOT],
        {},
    ),
    "spins, not asked": (ServerState.FROZEN_PYTHON, [GREEN, *still(), SPIN, HOT], {}),
    "spins in C": (
        ServerState.FROZEN_NATIVE,
        [GREEN, *still(running=1), SILENCE, NATIVE, HOT],
        {},
    ),
    "waits in C": (
        ServerState.FROZEN_NATIVE,
        [GREEN, *still(running=1), SILENCE, NAP, COLD, waiting("read")],
        {},
    ),
    "sleeps in a loop": (
        ServerState.FROZEN_PYTHON,
        [GREEN, *still(running=1), SILENCE, NAP, COLD, waiting("clock_nanosleep")],
        {},
    ),
    "spins behind a late front": (
        ServerState.FROZEN_PYTHON,
        [http(None, None), *still(), SILENCE, SPIN, HOT],
        {},
    ),
    "waits for CUDA": (
        ServerState.KERNEL_STUCK,
        [GREEN, *still(running=1), SILENCE, CUDA, COLD, waiting("futex")],
        {},
    ),
    "lock": (
        ServerState.BLOCKED_ON_LOCK,
        [GREEN, *still(running=1), SILENCE, LOCK, COLD],
        {},
    ),
    "starved": (
        ServerState.STARVED,
        [GREEN, *still(waiting=3), SILENCE, idle(), COLD],
        {},
    ),
    "starved, no stacks": (
        ServerState.STARVED,
        [GREEN, *still(waiting=3), SILENCE, COLD],
        {},
    ),
    "deaf": (ServerState.NOT_RECEIVING, [GREEN, *still(), SILENCE, idle(), COLD], {}),
    "no stacks": (ServerState.FROZEN, [GREEN, *still(), SILENCE, HOT], {}),
    "no stacks, no metrics": (ServerState.UNKNOWN, [GREEN, SILENCE, HOT], {}),
    "silence alone": (ServerState.UNKNOWN, [SILENCE], {}),
    "spins, no stacks, no metrics": (
        ServerState.UNKNOWN,
        [GREEN, SILENCE, HOT, waiting("", "spinning-in-user-space")],
        {},
    ),
    "no metrics": (ServerState.FROZEN_PYTHON, [GREEN, SILENCE, SPIN, HOT], {}),
    "front silent": (
        ServerState.FRONT_FROZEN,
        [http(None, None), *still(), idle()],
        {},
    ),
    "all of it silent": (
        ServerState.FROZEN_PYTHON,
        [http(None, None), SPIN, HOT],
        {"core_role": "", "root_pid": CORE},
    ),
    "closed to us": (ServerState.UNREACHABLE, [NO_CONNECTION], {}),
    "500": (
        ServerState.FAILING,
        [GREEN, failed(500, "HTTP 500: Internal Server Error"), log("RuntimeError: x")],
        {},
    ),
    "reset": (ServerState.FAILING, [GREEN, failed(None, "ReadError: reset")], {}),
    "error finish": (
        ServerState.FAILING,
        [GREEN, failed(200, "ended with finish_reason 'error'")],
        {},
    ),
    "garbage": (
        ServerState.BROKEN_OUTPUT,
        [GREEN, failed(200, "the 200 answer is not JSON")],
        {},
    ),
    "NaN": (ServerState.BROKEN_OUTPUT, [GREEN, answer(text="!!!!!!!!")], {}),
    "refused": (
        ServerState.NO_FAULT_SEEN,
        [GREEN, *still(), failed(400, "HTTP 400"), idle()],
        {},
    ),
    "503, no answer": (
        ServerState.NOT_READY,
        [http(503, 200), *still(), failed(404, "HTTP 404")],
        {},
    ),
    "503, answers": (ServerState.FAILING, [http(503, 200), answer()], {}),
    "late, answers": (ServerState.SLOW, [http(None, 200), answer()], {}),
    "late at first, answers": (
        ServerState.HEALTHY,
        [http(None, 200), GREEN, answer()],
        {},
    ),
    "503 and late, answers": (ServerState.FAILING, [http(None, 503), answer()], {}),
    "stopped": (ServerState.STOPPED, [], {"states": "TT"}),
    "core stopped": (ServerState.STOPPED, [GREEN], {"states": "ST"}),
    "traced": (ServerState.STOPPED, [GREEN], {"states": "St"}),
    "core dead": (ServerState.PART_DEAD, [GREEN, *still()], {"states": "SZ"}),
    "core gone, by its log": (
        ServerState.PART_DEAD,
        [GREEN, *still(), SILENCE, DIED],
        ALONE,
    ),
    "core gone, by its log, not asked": (
        ServerState.PART_DEAD,
        [GREEN, *still(), DIED],
        ALONE,
    ),
    "no core by name": (
        ServerState.FROZEN,
        [GREEN, *still(), SILENCE, FRONT_IDLE],
        ALONE,
    ),
    "no core by name, no metrics": (
        ServerState.UNKNOWN,
        [GREEN, SILENCE, FRONT_IDLE],
        ALONE,
    ),
    "no core by name, healthy": (
        ServerState.HEALTHY,
        [GREEN, *moving(), answer(), DIED],
        ALONE,
    ),
    "no core by name, works": (
        ServerState.HEALTHY,
        [GREEN, *moving(), FRONT_IDLE, DIED],
        ALONE,
    ),
    "no core by name, idle": (
        ServerState.NO_FAULT_SEEN,
        [GREEN, *still(), FRONT_IDLE],
        ALONE,
    ),
    "no core by name, late front": (
        ServerState.FRONT_FROZEN,
        [http(None, None), *still(), FRONT_IDLE],
        ALONE,
    ),
    "a key, healthy": (ServerState.HEALTHY, [http(200, 401), *still(), answer()], {}),
    "a key, late": (ServerState.SLOW, [http(None, 401), *still(), answer()], {}),
    "a key that we lack": (
        ServerState.NO_FAULT_SEEN,
        [http(200, 401), *still(), failed(401, "HTTP 401")],
        {},
    ),
    "a key that we lack, works": (
        ServerState.HEALTHY,
        [http(200, 401), *moving(), failed(401, "HTTP 401")],
        {},
    ),
    "all of it behind a key": (
        ServerState.UNKNOWN,
        [http(401, 401), failed(401, "HTTP 401")],
        {},
    ),
    "endpoints silent, refuses": (
        ServerState.UNKNOWN,
        [http(None, None), failed(400, "HTTP 400")],
        {},
    ),
    "nothing listens, answers": (
        ServerState.SLOW,
        [NO_CONNECTION, answer()],
        {"listening": False, "root_pid": None, "processes": []},
    ),
    "remote, answers only": (
        ServerState.HEALTHY,
        [answer()],
        {"place": "remote", "listening": None, "root_pid": None, "processes": []},
    ),
    "nothing listens": (
        ServerState.DEAD,
        [NO_CONNECTION],
        {"listening": False, "root_pid": None, "processes": []},
    ),
    "zombie": (ServerState.DEAD, [NO_CONNECTION], {"states": "ZZ"}),
    "loading": (ServerState.NOT_READY, [NO_CONNECTION], {"listening": False}),
    "remote, refused": (
        ServerState.DEAD,
        [NO_CONNECTION],
        {"place": "remote", "listening": None, "root_pid": None, "processes": []},
    ),
    "remote, silent": (
        ServerState.UNREACHABLE,
        [http(None, None)],
        {"place": "remote", "listening": None, "root_pid": None, "processes": []},
    ),
    "nothing": (
        ServerState.UNKNOWN,
        [],
        {"root_pid": None, "processes": [], "listening": None},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_evidence_has_its_state(name: str) -> None:
    state, data, facts = CASES[name]
    said = assess(evidence(*data), target(**facts))
    assert said.state is state, said
    assert said.sentence.endswith(".")
    assert said.why or state in (ServerState.UNKNOWN, ServerState.UNREACHABLE)


def test_the_frozen_one_names_frame_thread_and_process() -> None:
    said = assess(evidence(GREEN, *still(), SILENCE, SPIN, HOT), target())
    assert (said.process, said.thread, said.seen) == ("EngineCore", "MainThread", 5)
    assert said.frames[0].function == "pop"
    assert "pop (cache.py:5)" in said.sentence


def test_requests_that_clients_give_up_are_no_progress() -> None:
    """A frozen vLLM counts them as finished: seen on 0.23.0."""
    given_up = [metrics(finished=16), metrics(finished=19)]
    said = assess(evidence(GREEN, *given_up, SILENCE, SPIN, HOT), target())
    assert said.state is ServerState.FROZEN_PYTHON


def test_a_thread_that_moves_is_not_frozen() -> None:
    """The same CPU, the same silence: only the stack tells a loop from work."""
    frozen = assess(evidence(GREEN, *still(running=1), SILENCE, SPIN, HOT), target())
    works = assess(evidence(GREEN, *still(running=1), SILENCE, MOVES, HOT), target())
    assert (frozen.state, works.state) == (ServerState.FROZEN_PYTHON, ServerState.SLOW)


def test_an_engine_one_of_whose_threads_computes_does_not_wait_for_work() -> None:
    """Its main thread may: seen on a vLLM whose input thread was in an endless loop."""
    both = [
        [thread(IDLE, tid=1, active=False), thread(one.threads[0].frames, name="input")]
        for one in MOVES.samples
    ]
    said = assess(evidence(GREEN, *still(), SILENCE, sampled(*both), HOT), target())
    assert (said.state, said.thread) == (ServerState.SLOW, "input")
    quiet = assess(evidence(GREEN, *still(), SILENCE, sampled(*both), COLD), target())
    assert quiet.state is ServerState.NOT_RECEIVING


def test_torn_samples_are_counted_as_such() -> None:
    torn = [thread(frames("<genexpr> cache.py:5"), gil=True)]
    loop = [thread(LOOP, gil=True)]
    spin = sampled(loop, loop, torn, loop)
    said = assess(evidence(GREEN, *still(), SILENCE, spin, HOT), target())
    assert (said.state, said.seen, said.samples) == (ServerState.FROZEN_PYTHON, 3, 4)
    assert "(1 more came out torn)" in " ".join(said.why)


def test_exit_codes_signals_tracers_and_the_oom_killer_are_said() -> None:
    facts = target(states="SZ")
    killed = evidence(GREEN, log("engine died"), **{f"exit:{CORE}": 9})
    said = assess(killed, facts)
    assert "killed by signal 9" in " ".join(said.why)
    assert "engine died" in " ".join(said.why)
    killed.facts |= {f"exit:{CORE}": 3 << 8, "oom": "Killed process 1764 (python)"}
    text = " ".join(assess(killed, facts).why)
    assert "exit code 3" in text
    assert "OOM killer" in text
    del killed.facts[f"exit:{CORE}"]
    assert "cannot be seen" in " ".join(assess(killed, facts).why)
    traced = assess(evidence(**{f"tracer:{CORE}": 77}), target(states="St"))
    assert "process 77" in " ".join([*traced.why, *traced.advice])


def test_a_front_that_fails_each_request_beside_a_core_that_ends() -> None:
    fatal = failed(
        500,
        'HTTP 500: {"error":{"message":"engine-core error: engine core reported fatal '
        'failure","type":"server_error","code":"server_error"}}',
    )
    place = "EngineCore.shutdown vllm/v1/engine/core.py:625"
    stands = [[thread(frames("wait threading.py:320", place))]] * 3
    told = assess(evidence(http(503, 200), fatal, sampled(*stands)), target())
    assert (told.state, told.process) == (ServerState.PART_DEAD, "EngineCore")
    alone = assess(evidence(http(503, 200), fatal), target())
    assert alone.state is ServerState.FAILING


def test_a_front_program_that_answers_nothing_is_named_with_its_threads() -> None:
    whole = processes_of("python", "EngineCore", "RustFrontend")
    pid = whole[2].pid
    calls = SyscallsData(
        pid=pid,
        method="proc",
        window_s=1,
        user_pct=0,
        system_pct=0,
        verdict="blocked",
        why="as measured",
        waits={pid: "futex", pid + 1: "futex", pid + 2: "epoll_wait"},
    )
    mute = evidence(http(None, None), SILENCE, calls)
    told = assess(mute, target(processes=whole, front_role="RustFrontend"))
    assert (told.state, told.process) == (ServerState.FRONT_FROZEN, "RustFrontend")
    words = "threads of RustFrontend wait: 1 in epoll_wait, 2 in futex"
    assert words in told.why


def turned_away(count: float) -> MetricsData:
    read = metrics()
    name = "vllm:admission_rejections_total"
    read.samples.append(
        MetricSample(name=name, labels={"reason": "max_num_queued_reqs"}, value=count)
    )
    return read


def test_a_queue_that_is_full_is_no_server_that_starts() -> None:
    form = '{{"error":{{"message":"{}","type":"ServiceUnavailableError","code":503}}}}'
    words = "The engine is currently busy and cannot accept new requests."
    full = failed(503, f"HTTP 503: {form.format(words)}")
    told = assess(evidence(GREEN, full), target())
    assert told.state is ServerState.OVERLOADED
    assert "as many wait as its limit allows" in told.sentence

    other = failed(503, f"HTTP 503: {form.format('other words')}")
    counted = evidence(GREEN, turned_away(3), turned_away(4), other)
    assert assess(counted, target()).state is ServerState.OVERLOADED
    still_three = evidence(GREEN, turned_away(3), turned_away(3), other)
    assert assess(still_three, target()).state is ServerState.NOT_READY


def test_an_engine_that_waits_for_an_instruction_is_not_dead() -> None:
    status = http(200, 200)
    status.answers[1].path = "/fault_tolerance/status"
    status.answers[1].body = '{"engines": [{"id": 0, "status": "unhealthy"}]}'
    told = assess(evidence(status, SILENCE), target())
    assert (told.state, told.process) == (ServerState.FAILING, "EngineCore")
    assert "it is not dead" in told.sentence
    status.answers[1].body = '{"engines": [{"id": 0, "status": "healthy"}]}'
    other = assess(evidence(status, SILENCE), target())
    assert "waits for an instruction" not in other.sentence


RUST = {"front_role": "RustFrontend"}
FRONT_DIED = log("Process RustFrontend (PID: 27842) died with exit code -9")
FRONT_DIED.matches = {"front-died": FRONT_DIED.errors}


def processes_of(*roles: str) -> list[TargetProcess]:
    """With a state behind a colon."""
    listed = []
    for number, role in enumerate(roles, FRONT):
        name, _, state = role.partition(":")
        process = TargetProcess(
            pid=number, ppid=1, role=name, name=name, state=state or "S"
        )
        listed.append(process)
    return listed


def test_a_front_program_that_has_ended_is_dead_while_its_launcher_listens() -> None:
    left = processes_of("python", "EngineCore", "Worker")
    mute = assess(evidence(SILENCE), target(processes=left, **RUST))
    assert (mute.state, mute.process) == (ServerState.PART_DEAD, "RustFrontend")
    zombie = processes_of("python", "EngineCore", "RustFrontend:Z")
    ended = assess(
        evidence(**{f"exit:{FRONT + 2}": 9}), target(processes=zombie, **RUST)
    )
    assert "killed by signal 9" in " ".join(ended.why)
    # It ends the others, where it has noticed.
    alone = target(processes=processes_of("python"), **RUST)
    assert assess(evidence(FRONT_DIED), alone).process == "RustFrontend"
    assert assess(evidence(), alone).process != "RustFrontend"


def test_a_front_program_that_has_logged_and_is_gone_is_dead_at_a_start() -> None:
    read = log("loaded chat backend with Hugging Face model files")
    line = read.errors[0].model_copy(update={"process": "RustFrontend pid=18817"})
    read.errors, read.last_by_process = [], {"RustFrontend pid=18817": line}
    early = target(processes=processes_of("python", "python"), listening=False, **RUST)
    told = assess(evidence(read), early)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "RustFrontend")
    silent = assess(evidence(), early)
    assert silent.state is ServerState.NOT_READY


def test_a_core_that_ended_at_a_start_is_dead_before_the_front_that_was_ended() -> None:
    words = "RuntimeError: Engine core initialization failed. See root cause above."
    read = log(words)
    read.matches = {"core-not-started": read.errors}
    line = read.errors[0].model_copy(update={"process": "RustFrontend pid=21447"})
    read.last_by_process = {"RustFrontend pid=21447": line}
    left = processes_of("python", "resource_tracker")
    early = target(processes=left, listening=False, **RUST)
    told = assess(evidence(read), early)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "EngineCore")
    assert words in " ".join(told.why)


def test_a_core_that_ended_by_itself_is_dead_before_the_front_that_was_ended() -> None:
    words = "RuntimeError: Engine core process EngineCore died unexpectedly."
    read = log(words)
    read.matches, read.match_counts = {"engine-died": read.errors}, {"engine-died": 1}
    line = read.errors[0].model_copy(update={"process": "RustFrontend pid=7064"})
    read.last_by_process = {"RustFrontend pid=7064": line}
    left = target(processes=processes_of("python", "resource_tracker"), **RUST)
    told = assess(evidence(read), left)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "EngineCore")
    assert told.sentence.startswith("EngineCore is dead")
    # Where the front ended first, its parent says so, and ends the core.
    died = {**read.matches, "front-died": FRONT_DIED.matches["front-died"]}
    both = read.model_copy(update={"matches": died})
    assert assess(evidence(both), left).process == "RustFrontend"


def test_an_only_worker_that_ended_by_the_log_at_a_start_is_named() -> None:
    read = log("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.")
    line = read.errors[0].model_copy(update={"process": "EngineCore pid=25878"})
    read.matches = {"rank-died": [line], "engine-died": [line]}
    read.match_counts = {"engine-died": 1}
    refused = http(None, None, gone=True)
    for endpoint in refused.answers:
        endpoint.error = "ConnectError: [Errno 111] Connection refused"
    left = processes_of("python", "EngineCore", "RustFrontend")
    early = target(processes=left, listening=False, **RUST)
    early.command = ["vllm", "serve", "a-model"]
    told = assess(evidence(read, refused, SILENCE), early)
    assert (told.state, told.process) == (ServerState.RANK_LOST, "Worker")
    early.command.append("--nnodes=2")
    told = assess(evidence(read, refused, SILENCE), early)
    assert told.process != "Worker"


def test_an_only_worker_that_has_logged_and_is_gone_is_lost() -> None:
    read = log("WorkerProc failed.")
    line = read.errors[0].model_copy(update={"process": "Worker pid=32525"})
    read.errors, read.last_by_process = [line], {"Worker pid=32525": line}
    fails = InferenceData(
        answered=False,
        status=500,
        seconds=1.0,
        deadline_s=10.0,
        error='{"error": {"message": "engine core reported fatal failure"}}',
    )
    left = target(processes=processes_of("python", "EngineCore", "RustFrontend"))
    left.command = ["vllm", "serve", "a-model"]
    told = assess(evidence(read, fails), left)
    assert (told.state, told.process) == (ServerState.RANK_LOST, "Worker")
    there = processes_of("python", "EngineCore", "RustFrontend", "Worker")
    with_it = left.model_copy(update={"processes": there})
    assert assess(evidence(read, fails), with_it).state is ServerState.FAILING
    left.command.append("--nnodes=2")
    assert assess(evidence(read, fails), left).state is ServerState.FAILING


def test_a_core_that_failed_by_itself_is_ending_and_its_worker_is_not_the_first() -> (
    None
):
    left = target(processes=processes_of("python", "EngineCore", "RustFrontend"))
    left.command = ["vllm", "serve", "a-model"]
    core = next(p for p in left.processes if p.role == "EngineCore")
    read = log("EngineCore encountered a fatal error.")
    line = read.errors[0].model_copy(update={"process": f"EngineCore pid={core.pid}"})
    worker = line.model_copy(update={"process": "Worker pid=32525"})
    read.errors = [line]
    read.last_by_process = {"Worker pid=32525": worker}
    read.matches, read.match_counts = {"core-fatal": [line]}, {"core-fatal": 1}
    fails = InferenceData(answered=False, status=500, seconds=1.0, deadline_s=10.0)
    told = assess(evidence(read, fails), left)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "EngineCore")
    # The line of another core, of an earlier life of the server, says nothing.
    line.process = "EngineCore pid=1"
    assert assess(evidence(read, fails), left).state is ServerState.FAILING


def test_a_scheduler_that_served_http_itself_is_dead_where_its_parent_says_so() -> None:
    """SGLang's Rust server is threads of the scheduler: nothing listens without it."""
    said = "Scheduler or DataParallelController 14287 terminated with -9"
    assert re.search(get_engine("sglang").log_patterns["engine-died"], said)
    read = log(said)
    left = target(processes=processes_of("tokenizer_manager"), listening=False)
    left.engine, left.core_role, left.front_role = "sglang", "scheduler", ""
    refused = http(None, None, gone=True)
    assert assess(evidence(read, refused), left).state is ServerState.NOT_READY
    read.matches, read.match_counts = {"engine-died": read.errors}, {"engine-died": 1}
    told = assess(evidence(read, refused), left)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "scheduler")


def test_a_start_names_where_a_process_stands_still() -> None:
    stacks = sampled(*[[thread(frames("load weights.py:7"), active=False)]] * 5)
    for sample in stacks.samples:
        sample.threads[0].tid = CORE
    told = assess(evidence(stacks), target(listening=False))
    assert told.state is ServerState.NOT_READY
    assert any(f"EngineCore ({CORE})" in line and "load" in line for line in told.why)
    assert any("is where the start hangs" in line for line in told.advice)
    moves = sampled(
        *[[thread(frames(f"f{n} a.py:{n}"), active=True)] for n in range(5)]
    )
    for sample in moves.samples:
        sample.threads[0].tid = CORE
    told = assess(evidence(moves), target(listening=False))
    assert not any(str(CORE) in line for line in told.why)
    assert told.advice == ["its log tells which; then diagnose again"]


def test_a_process_that_is_stopped_while_its_server_starts_is_stopped() -> None:
    told = assess(evidence(), target(states="ST", listening=False))
    assert (told.state, told.process) == (ServerState.STOPPED, "EngineCore")


def test_a_front_program_that_lives_or_is_not_there_yet_is_not_dead() -> None:
    whole = processes_of("python", "EngineCore", "RustFrontend")
    assert at_once(evidence(), target(processes=whole, **RUST)) is None
    early = processes_of("python", "resource_tracker")
    assert at_once(evidence(), target(processes=early, **RUST)) is None
    left = processes_of("python", "EngineCore")
    assert at_once(evidence(), target(processes=left)) is None


def test_a_hidden_exit_code_is_not_called_zero() -> None:
    said = assess(evidence(GREEN), target(states="SZ"))
    assert "exit code 0" not in " ".join(said.why)


def test_who_holds_the_lock() -> None:
    waits = frames("acquire threading.py:7", "step a.py:3")
    waits[1].locals["lock"] = "<lock at 0x7f01>"
    holds = frames("sleepy b.py:9", "held b.py:4")
    holds[1].locals["lock"] = "<lock at 0x7f01>"
    both = [
        thread(waits, active=False),
        thread(holds, active=False, name="other", tid=1),
    ]
    said = assess(
        evidence(GREEN, *still(running=1), SILENCE, sampled(*[both] * 4)), target()
    )
    assert said.state is ServerState.BLOCKED_ON_LOCK
    assert "'other'" in said.holder
    holds[1].locals["lock"] = "<lock at 0x7f99>"
    said = assess(
        evidence(GREEN, *still(running=1), SILENCE, sampled(*[both] * 4)), target()
    )
    assert said.holder == ""
    waits[1].locals["self"] = "<Pool at 0x5>"
    holds[1].locals["self"] = "<Pool at 0x5>"
    said = assess(
        evidence(GREEN, *still(running=1), SILENCE, sampled(*[both] * 4)), target()
    )
    assert said.holder.startswith("probably thread 'other'")


@pytest.mark.parametrize("name", CASES)
def test_plain_states_are_known_before_any_request(name: str) -> None:
    state, data, facts = CASES[name]
    asked = {"inference", "stacks", "syscalls", "processes"}
    early = at_once(
        evidence(*[d for d in data if d.kind not in asked]), target(**facts)
    )
    plain = {ServerState.STOPPED, ServerState.PART_DEAD, ServerState.DEAD}
    if name.startswith("core gone, by its log"):
        assert early is None  # a log is no process: an answer may still come
    elif name in ("nothing listens, answers", "remote, answers only"):
        assert early is not None  # what an answer then outranks
    elif state in plain or name in ("loading", "remote, silent"):
        assert early is not None
        assert early.state is state
    else:
        assert early is None


SUSPECTS = {
    "spins, not asked": True,
    "starved": True,
    "deaf": False,
    "healthy": False,
    "busy, not asked": False,
    "no traffic, not asked": False,
    "front silent": True,
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_what_looks_like_a_hang_without_a_request(name: str) -> None:
    _, data, facts = CASES[name]
    seen = evidence(*[d for d in data if d.kind != "inference" or d.answered])
    assert suspicious(seen, target(**facts)) is SUSPECTS[name]


@given(
    st.sampled_from(["busy", "healthy", "busy, not asked", "a key, healthy"]),
    st.sets(st.sampled_from(["http", "inference", "metrics", "processes", "stacks"])),
    st.sets(
        st.sampled_from(
            ["core's title", "front's title", "core's process", "core_role"]
        )
    ),
    st.booleans(),
)
def test_less_evidence_never_gives_a_verdict_of_its_own(
    name: str, missing: set[str], unnamed: set[str], old_log: bool
) -> None:
    """Of a healthy server, taking any evidence or any role away never makes a
    failure."""
    _, data, _ = CASES[name]
    kept = [d for d in data if d.kind not in missing]
    facts = target(core_role="" if "core_role" in unnamed else "EngineCore")
    front, core = facts.processes
    front.role = "python3" if "front's title" in unnamed else front.role
    core.role = "python3" if "core's title" in unnamed else core.role
    if "core's process" in unnamed:
        facts.processes.remove(core)
    if old_log and any(d.kind == "inference" for d in kept):
        kept.append(DIED)  # an answer outranks what a log says
    early = at_once(evidence(*[d for d in kept if d.kind != "inference"]), facts)
    assert early is None  # so that the request is sent
    state = assess(evidence(*kept), facts).state
    assert state in COULD_NOT_TELL | {ServerState.HEALTHY}


def test_a_core_that_was_there_when_the_look_began_has_gone() -> None:
    seen = evidence(GREEN, *still(), SILENCE, **{CORE_ALIVE: False})
    said = assess(seen, target(**ALONE))
    assert (said.state, said.process) == (ServerState.PART_DEAD, "EngineCore")
    assert (
        said.why[0]
        == f"no process EngineCore among APIServer ({FRONT}), where there was one"
    )
    assert "EngineCore is dead" in said.sentence
    by_log = assess(evidence(GREEN, *still(), SILENCE, DIED), target(**ALONE))
    assert by_log.why[0] == f"no process EngineCore among APIServer ({FRONT})"
    assert "EngineDeadError" in " ".join(by_log.why)
    answered = evidence(GREEN, *still(), answer(), **{CORE_ALIVE: False})
    assert assess(answered, target(**ALONE)).state is ServerState.HEALTHY
    moves = evidence(GREEN, *moving(), SILENCE, **{CORE_ALIVE: False})
    assert assess(moves, target(**ALONE)).state is ServerState.SLOW
    unknown = assess(seen, target(core_role="", **ALONE))
    assert unknown.state is not ServerState.PART_DEAD


def test_where_the_engine_has_no_name_for_its_core_the_front_is_looked_at() -> None:
    spins = sampled(*[[thread(LOOP, gil=True)]] * 5, pid=FRONT)
    seen = evidence(GREEN, *still(), SILENCE, spins, use(98.0, pid=FRONT))
    assert (
        assess(seen, target(core_role="", **ALONE)).state is ServerState.FROZEN_PYTHON
    )
    assert assess(seen, target(**ALONE)).state is ServerState.FROZEN
    assert assess(seen, target(**ALONE)).process == "the engine"


def test_a_key_that_we_lack_is_asked_for() -> None:
    for status in (401, 403):
        data = [http(200, status), *still(), failed(status, f"HTTP {status}")]
        said = assess(evidence(*data), target())
        assert said.advice == ["give it its key: --header 'Authorization: Bearer KEY'"]
        assert f"HTTP {status}): it proves nothing" in " ".join(said.why)
    said = assess(evidence(GREEN, *still(), failed(404, "HTTP 404")), target())
    assert "--model" in said.advice[0]
    assert "--model" in assess(evidence(GREEN, *still()), target()).advice[0]


KINDS = [one for _, data, _ in CASES.values() for one in data]


@given(st.lists(st.sampled_from(KINDS), max_size=8), st.text("RSDTtZX", max_size=3))
def test_any_mixture_is_assessed_without_raising(
    data: list[AnyProbeData], states: str
) -> None:
    facts = target(states=states[:2])
    said = assess(evidence(*data), facts)
    assert isinstance(said.state, ServerState)
    if any(d.kind == "inference" and not d.answered for d in data):
        first = next(d for d in data if d.kind == "inference")
        assert not (
            said.state is ServerState.HEALTHY
            and not first.answered
            and first is SILENCE
        ) or (facts.root_pid is None)


def test_a_proxy_in_front_is_no_dead_engine() -> None:
    """Without processes of the engine nothing is said about them."""
    facts = target(root_pid=None, processes=[])
    assert (
        assess(evidence(GREEN, *still(), answer()), facts).state is ServerState.HEALTHY
    )
    assert at_once(Evidence(), TargetFacts(url="http://x", place="remote")) is not None


def test_a_process_that_went_away_during_the_look_is_dead() -> None:
    said = assess(evidence(GREEN, *still()), target(processes=[]))
    assert said.state is ServerState.DEAD
    assert str(FRONT) in " ".join(said.why)
