"""Servers of several processes, made up: what each rank is at, who is the odd one, who
waits."""

from __future__ import annotations

from typing import Any

import pytest
from mmrepro.failure.documents.cause import Certainty
from mmrepro.failure.documents.diagnosis import (
    Assessment,
    LiveClass,
    RankLook,
    ServerState,
    Stand,
    TargetFacts,
    TargetProcess,
)
from mmrepro.live.diagnose import (
    classes,
    frozen,
    general,
    rank_reports,
    rank_verdicts,
    ranks,
)
from mmrepro.live.diagnose.match import stuck_rank
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes.data import (
    AnyProbeData,
    FlightData,
    FlightRank,
    Frame,
    NcclRank,
    ProcessesData,
    RasData,
    SyscallsData,
)
from seen import (
    CORE,
    FRONT,
    GREEN,
    SILENCE,
    answer,
    evidence,
    frames,
    moving,
    sampled,
    still,
    target,
    thread,
    use,
)
from test_waits import ASKED, BROADCAST, EXECUTOR, IDLE, REDUCE

FIRST = 2000
WEDGED = [*frames("_wedge hooks.py:7"), *IDLE]
STEP = frames("matmul torch/functional.py:7", "forward model.py:3")
DEVICE = frames(
    "synchronize torch/cuda/streams.py:3", "get_output vllm/v1/worker/x.py:1"
)
COPY = frames(
    "get_output vllm/v1/worker/gpu_model_runner.py:324", f"enqueue_output {EXECUTOR}:1"
)
STAGE = frames("wait_for_comm vllm/v1/worker/gpu_worker.py:179")
SAVE = frames("wait_for_save vllm/distributed/kv_transfer/kv_connector/v1/nixl.py:9")


def facts(*roles: str, states: str = "", **more: Any) -> TargetFacts:
    """Front, EngineCore and workers of these roles; ``states``: of the workers."""
    base = target().processes
    below = [
        TargetProcess(pid=FIRST + n, ppid=CORE, role=role, name=role, state=state)
        for n, (role, state) in enumerate(
            zip(roles, states or "S" * len(roles), strict=True)
        )
    ]
    return target(**{"release": "0.32.0", "processes": [*base, *below]} | more)


def tp(size: int, states: str = "", **more: Any) -> TargetFacts:
    command = ["python", "-m", "vllm", "--tensor-parallel-size", str(size)]
    roles = [f"Worker_TP{n}" for n in range(size)]
    return facts(*roles, states=states, **{"command": command} | more)


def at(
    pid: int, stack: list[Frame], *, samples: int = 6, name: str = "MainThread"
) -> AnyProbeData:
    return sampled(
        *[[thread(stack, active=False, tid=pid, name=name)]] * samples, pid=pid
    )


def all_at(*stacks: list[Frame], core: list[Frame] = ASKED) -> list[AnyProbeData]:
    return [at(CORE, core), *(at(FIRST + n, stack) for n, stack in enumerate(stacks))]


def calls(pid: int, call: str) -> SyscallsData:
    return SyscallsData(
        pid=pid,
        method="proc",
        window_s=1,
        user_pct=0,
        system_pct=0,
        verdict="blocked",
        why="",
        waits={pid: call},
    )


def uses(**percent: float) -> ProcessesData:
    made = [use(pct, pid=int(name[1:])).processes[0] for name, pct in percent.items()]
    return ProcessesData(root_pid=FRONT, window_s=1.0, processes=made)


def view(where: TargetFacts, *data: AnyProbeData) -> DiagnosisView:
    return DiagnosisView(where, evidence(*data))


def assess(where: TargetFacts, *data: AnyProbeData) -> Assessment:
    return general.assess(evidence(GREEN, SILENCE, *still(), *data), where)


def look(where: TargetFacts, *data: AnyProbeData) -> RankLook:
    found = ranks.look(view(where, *data))
    assert found is not None
    return found


# ------------------------------------------------------------------ who is who


@pytest.mark.parametrize(
    ("role", "labels"),
    [
        ("Worker_TP0", {"TP": 0}),
        ("Worker_DP1_PP0_TP3_EP7", {"DP": 1, "PP": 0, "TP": 3, "EP": 7}),
        ("Worker_PCP0_DCP1", {"PCP": 0, "DCP": 1}),
        ("EngineCore_DP1", {"DP": 1}),
        (
            "scheduler_DP0_ATTN_CP1_MOE_DP2_TP3",
            {"DP": 0, "ATTN_CP": 1, "MOE_DP": 2, "TP": 3},
        ),
        ("EngineCore", {}),
        ("Worker_TPX", {}),
    ],
)
def test_ranks_are_read_from_titles(role: str, labels: dict[str, int]) -> None:
    assert ranks.labels(role) == labels


@pytest.mark.parametrize(
    ("command", "sizes"),
    [
        ("vllm serve m --tensor-parallel-size 2", {"TP": 2}),
        ("vllm serve m -tp 2 -pp=3", {"TP": 2, "PP": 3}),
        ("python -m sglang.launch_server --tp 4 --dp-size 2", {"TP": 4, "DP": 2}),
        ("vllm serve m --tensor-parallel-size=1", {}),
        ("vllm serve m --tensor-parallel-size=many", {}),
        ("vllm serve m -tp 2 --nnodes 2", {}),
        ("vllm serve m -tp 2 --distributed-executor-backend=ray", {}),
    ],
)
def test_group_sizes_are_those_of_the_command(
    command: str, sizes: dict[str, int]
) -> None:
    assert ranks.expected(target(command=command.split())) == sizes


def test_a_server_of_one_process_has_no_ranks() -> None:
    assert ranks.look(view(target(), at(CORE, IDLE))) is None
    assert rank_verdicts.silent(view(target(), at(CORE, ASKED)), []) is None


def test_processes_are_named_by_what_they_are_for() -> None:
    other = [(9, "DPCoordinator"), (8, "resource_tracker")]
    more = [
        TargetProcess(pid=n, ppid=FRONT, role=r, name="x", state="S") for n, r in other
    ]
    where = tp(2)
    where.processes += more
    kinds = {rank.role: rank.kind for rank in look(where).ranks}
    assert kinds == {
        "APIServer": "front",
        "EngineCore": "core",
        "Worker_TP0": "worker",
        "Worker_TP1": "worker",
        "DPCoordinator": "coordinator",
    }


def test_a_detokenizer_that_stands_is_the_one_that_is_stuck() -> None:
    """The schedulers go on, and what they compute reaches nobody."""
    where = target(
        engine="sglang",
        core_role="scheduler",
        release="0.5.23",
        processes=[
            TargetProcess(
                pid=FRONT, ppid=1, role="tokenizer_manager", name="x", state="S"
            ),
            TargetProcess(pid=1, ppid=FRONT, role="scheduler_TP0", name="x", state="S"),
            TargetProcess(pid=2, ppid=FRONT, role="scheduler_TP1", name="x", state="S"),
            TargetProcess(pid=3, ppid=FRONT, role="detokenizer", name="x", state="S"),
        ],
    )
    loop = "event_loop sglang/srt/managers/detokenizer_manager.py:188"
    idle = frames("sock_recv sglang/srt/managers/io_struct.py:2744", loop)
    stuck = frames("_wedge hooks.py:7", "handle_batch_token_id_out hooks.py:9", loop)
    for at_, state in ((idle, None), (stuck, ServerState.WORKER_STUCK)):
        seen = (
            GREEN,
            SILENCE,
            at(1, BROADCAST),
            at(2, BROADCAST),
            at(3, at_),
            *still(),
        )
        told = general.assess(evidence(*seen), where)
        named = told.process == "detokenizer"
        assert (told.state is ServerState.WORKER_STUCK and named) is (
            state is not None
        ), told


def test_schedulers_are_core_and_worker_at_once() -> None:
    where = target(
        engine="sglang",
        core_role="scheduler",
        release="0.5.23",
        processes=[
            TargetProcess(
                pid=FRONT, ppid=1, role="tokenizer_manager", name="x", state="S"
            ),
            TargetProcess(pid=1, ppid=FRONT, role="scheduler_TP0", name="x", state="S"),
            TargetProcess(pid=2, ppid=FRONT, role="scheduler_TP1", name="x", state="S"),
            TargetProcess(pid=3, ppid=FRONT, role="detokenizer", name="x", state="S"),
        ],
    )
    seen = look(where, at(1, BROADCAST), at(2, frames("_wedge hooks.py:7")))
    assert [r.kind for r in seen.ranks] == ["front", "worker", "worker", "detokenizer"]
    assert [(e.waiter, e.awaited) for e in seen.edges] == [
        ("scheduler_TP0", "scheduler_TP1")
    ]
    told = general.assess(
        evidence(
            GREEN,
            SILENCE,
            at(1, BROADCAST),
            at(2, frames("_wedge hooks.py:7")),
            *still(),
        ),
        where,
    )
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, "scheduler_TP1")
    # The pattern of sglang#27221: one waits in a collective of the step, the rest for
    # requests.
    step = frames(
        "all_reduce torch/distributed/distributed_c10d.py:3075",
        "check_prefetch_progress sglang/srt/mem_cache/hiradix_cache.py:1373",
    )
    diverged = general.assess(
        evidence(GREEN, SILENCE, at(1, step), at(2, BROADCAST), *still()), where
    )
    assert diverged.state is ServerState.RANK_DIVERGED
    assert "scheduler_TP0 is in all_reduce" in diverged.sentence


# ------------------------------------------------------------------ what is wrong


def test_one_of_eight_stands_in_its_own_code() -> None:
    data = all_at(*[REDUCE] * 5, WEDGED, *[REDUCE] * 2)
    told = assess(tp(8), *data)
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, "Worker_TP5")
    assert told.frames[0].function == "_wedge"
    assert told.sentence == (
        "Worker_TP5 is stuck in _wedge (hooks.py:7); EngineCore waits for its answer, "
        "and Worker_TP0, Worker_TP1, Worker_TP2, Worker_TP3 and 3 more for it in "
        "all_reduce."
    )
    assert "7 in all_reduce: Worker_TP0" in "\n".join(told.why)
    seen = look(tp(8), *data)
    assert seen.odd == ["Worker_TP5"]
    assert {(e.waiter, e.awaited) for e in seen.edges} == {
        (waiter, "Worker_TP5")
        for waiter in ("EngineCore", *(f"Worker_TP{n}" for n in range(8) if n != 5))
    }


def test_a_worker_that_waits_for_work_is_not_stuck() -> None:
    """The core waits for work as well: the request is elsewhere."""
    idle = frames(
        "Condition.wait threading.py:327",
        "Queue.get queue.py:171",
        "EngineCoreProc._process_input_queue vllm/v1/engine/core.py:1588",
    )
    told = assess(tp(2), *all_at(IDLE, IDLE, core=idle))
    assert told.state is ServerState.NOT_RECEIVING
    assert [r.stand for r in look(tp(2), *all_at(IDLE, IDLE, core=idle)).ranks[1:]] == [
        Stand.WORK
    ] * 3


@pytest.mark.parametrize(
    ("first", "second", "state", "words"),
    [
        (
            REDUCE,
            REDUCE,
            ServerState.COLLECTIVE_WAITS,
            "All 2 ranks wait in all_reduce",
        ),
        (DEVICE, DEVICE, ServerState.KERNEL_STUCK, "Every rank waits for its device"),
        (COPY, COPY, ServerState.KERNEL_STUCK, "Every rank waits for its device"),
        (REDUCE, IDLE, ServerState.RANK_DIVERGED, "Worker_TP1 is idle"),
        (
            IDLE,
            IDLE,
            ServerState.RANK_DIVERGED,
            "EngineCore waits for an answer of theirs",
        ),
        (
            SAVE,
            SAVE,
            ServerState.TRANSFER_STUCK,
            "waits for a KV cache in wait_for_save",
        ),
        (WEDGED, WEDGED, ServerState.WORKER_STUCK, "like every other rank"),
        (STAGE, IDLE, ServerState.RANK_DIVERGED, "Worker_TP1 is idle"),
    ],
)
def test_what_all_of_them_show(
    first: list[Frame], second: list[Frame], state: ServerState, words: str
) -> None:
    told = assess(tp(2), *all_at(first, second))
    assert told.state is state, told.sentence
    assert words in told.sentence
    assert told.frames


def test_ranks_in_different_collectives_have_diverged() -> None:
    gather = [frames("gather vllm/distributed/parallel_state.py:8")[0], *REDUCE[3:]]
    told = assess(tp(3), *all_at(REDUCE, gather, REDUCE))
    assert told.state is ServerState.RANK_DIVERGED
    assert "Worker_TP1 is in gather" in told.sentence


def test_a_rank_that_moves_is_slow() -> None:
    steps = [frames(*(f"f{n}{i} m.py:{n}" for i in range(8))) for n in range(6)]
    moves = sampled(*[[thread(one, tid=FIRST)] for one in steps], pid=FIRST)
    told = assess(tp(2), at(CORE, ASKED), moves, at(FIRST + 1, REDUCE))
    assert (told.state, told.process) == (ServerState.SLOW, "Worker_TP0")


def test_a_kernel_that_is_compiled_ends() -> None:
    gcc = frames(
        "Popen._wait subprocess.py:2040",
        "VecISA._probe_load torch/_inductor/cpu_vec_isa.py:147",
    )
    assert assess(tp(2), *all_at(gcc, gcc)).state is ServerState.SLOW


def test_a_collective_at_another_place_each_time_moves() -> None:
    layers = [[*REDUCE[:3], *frames(f"forward model.py:{n}")] for n in range(6)]
    moves = sampled(*[[thread(one, tid=FIRST)] for one in layers], pid=FIRST)
    assert (
        assess(tp(2), at(CORE, ASKED), moves, at(FIRST + 1, REDUCE)).state
        is ServerState.SLOW
    )


def test_a_rank_that_is_gone() -> None:
    where = tp(3)
    where.processes = [p for p in where.processes if p.role != "Worker_TP1"]
    told = assess(where, at(CORE, ASKED), at(FIRST, REDUCE), at(FIRST + 2, REDUCE))
    assert told.state is ServerState.RANK_LOST
    assert told.sentence == "Worker_TP1 is gone, while the rest of the server runs."
    ended = assess(tp(2, states="SZ"), at(CORE, ASKED), at(FIRST, REDUCE))
    assert (ended.state, ended.process) == (ServerState.RANK_LOST, "Worker_TP1")


def test_of_several_that_are_gone_none_is_called_the_one() -> None:
    """A real one named the first of both, where the other one was killed."""
    told = assess(tp(3, states="SZZ"), at(CORE, ASKED), at(FIRST, REDUCE))
    assert (told.state, told.process) == (ServerState.RANK_LOST, "")
    assert told.sentence == (
        "Worker_TP1, Worker_TP2 are gone, while the rest of the server runs; nothing "
        "tells which of them ended first."
    )


@pytest.mark.parametrize("role", ["Worker_TP", "Worker"])
def test_a_rank_that_has_ended_keeps_half_of_its_title(role: str) -> None:
    """As the kernel lists an ended process: 15 characters of ``VLLM::Worker_TP1``."""
    where = tp(2)
    where.processes[-1] = where.processes[-1].model_copy(
        update={"role": role, "state": "Z"}
    )
    told = assess(where, at(CORE, ASKED), at(FIRST, REDUCE))
    assert (told.state, told.process) == (ServerState.RANK_LOST, "Worker_TP1")
    ranks_ = look(where, at(CORE, ASKED), at(FIRST, REDUCE)).ranks
    assert [(r.role, r.pid) for r in ranks_ if r.stand is Stand.GONE] == [
        ("Worker_TP1", FIRST + 1)
    ]


def test_titles_of_other_groups_are_not_counted() -> None:
    where = tp(2)
    for process in where.processes:
        process.role = process.role.replace("Worker_TP", "Worker_EP")
    assert not [r for r in look(where).ranks if r.stand is Stand.GONE]


def test_workers_whose_stacks_are_closed() -> None:
    told = assess(tp(2), at(CORE, ASKED))
    assert told.state is ServerState.FROZEN
    assert "handed a step out" in told.sentence


def test_two_samples_of_a_rank_are_too_few() -> None:
    told = assess(
        tp(2), at(CORE, ASKED), at(FIRST, REDUCE), at(FIRST + 1, WEDGED, samples=2)
    )
    assert told.state is ServerState.FROZEN


def test_the_thread_that_copies_outputs_tells_where_the_main_one_waits() -> None:
    copies = sampled(
        *[[thread(IDLE, active=False, tid=FIRST), thread(COPY, tid=7, name="Async")]]
        * 6,
        pid=FIRST,
    )
    seen = look(tp(2), at(CORE, ASKED), copies, at(FIRST + 1, IDLE))
    assert [(r.stand, r.thread) for r in seen.ranks[2:]] == [
        (Stand.DEVICE, "Async"),
        (Stand.WORK, "MainThread"),
    ]


def test_replicas_are_judged_each_with_its_own_workers() -> None:
    """DP 2 x TP 2: the core of the second replica waits, that of the first has nothing
    to do."""
    where = facts(
        "Worker_DP0_TP0", "Worker_DP0_TP1", "Worker_DP1_TP0", "Worker_DP1_TP1"
    )
    core = TargetProcess(
        pid=1999, ppid=FRONT, role="EngineCore_DP1", name="x", state="S"
    )
    where.processes[1].role = "EngineCore_DP0"
    for process in where.processes[-2:]:
        process.ppid = core.pid
    where.processes.append(core)
    idle = frames(
        "Queue.get queue.py:171", "_process_input_queue vllm/v1/engine/core.py:15"
    )
    told = assess(
        where,
        at(CORE, idle),
        at(1999, ASKED),
        at(FIRST, IDLE),
        at(FIRST + 1, IDLE),
        at(FIRST + 2, REDUCE),
        at(FIRST + 3, WEDGED),
    )
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, "Worker_DP1_TP1")
    assert "EngineCore_DP1 waits" in told.sentence


def two_replicas() -> TargetFacts:
    """As vLLM 0.32.0 runs on a CPU: each core has a worker beside it."""
    where = facts(
        "Worker_DP0", "Worker_DP1", command=["vllm", "--data-parallel-size", "2"]
    )
    core = TargetProcess(
        pid=1999, ppid=FRONT, role="EngineCore_DP1", name="x", state="S"
    )
    where.processes[1].role = "EngineCore_DP0"
    where.processes[-1].ppid = core.pid
    where.processes.append(core)
    return where


def test_a_core_of_several_that_stands_in_its_own_code() -> None:
    """A real one was taken for a core that gets no requests: the first one has nothing
    to do."""
    idle = frames(
        "Queue.get queue.py:171", "_process_input_queue vllm/v1/engine/core.py:15"
    )
    own = [*frames("_wedge hooks.py:7"), *idle]
    workers = at(FIRST, IDLE), at(FIRST + 1, IDLE)
    where = two_replicas()
    told = assess(where, at(CORE, idle), at(1999, own), *workers)
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, "EngineCore_DP1")
    assert told.frames[0].name == "_wedge"
    assert "EngineCore_DP0 is idle" in told.sentence
    assert look(where, at(CORE, idle), at(1999, own), *workers).odd == [
        "EngineCore_DP1"
    ]
    stance = frozen.stance(view(where, at(CORE, idle), at(1999, own), *workers))
    assert stance[0] is frozen.Stance.STANDS
    both = assess(where, at(CORE, own), at(1999, own), *workers)
    assert "every other core stands as well" in both.sentence
    none = assess(where, at(CORE, idle), at(1999, idle), *workers)
    assert none.state is ServerState.NOT_RECEIVING
    asleep = calls(1999, "futex"), uses(p1999=0.0)
    data = [GREEN, answer(), *still(), at(CORE, idle), at(1999, own), *workers, *asleep]
    answered = general.assess(evidence(*data), where)
    assert (answered.state, answered.process) == (
        ServerState.WORKER_STUCK,
        "EngineCore_DP1",
    )
    moves = [
        GREEN,
        SILENCE,
        *moving(),
        at(CORE, idle),
        at(1999, own),
        *workers,
        *asleep,
    ]
    works = general.assess(evidence(*moves), where)
    assert (works.state, works.process) == (ServerState.WORKER_STUCK, "EngineCore_DP1")


def test_a_coordinator_that_stands_while_the_replicas_answer() -> None:
    where = two_replicas()
    where.processes.append(
        TargetProcess(pid=1998, ppid=FRONT, role="DPCoordinator", name="x", state="S")
    )
    polls = frames(
        "poll zmq/sugar/poll.py:106", "process_input_socket vllm/v1/engine/x.py:7"
    )
    idle = frames(
        "Queue.get queue.py:171", "_process_input_queue vllm/v1/engine/core.py:15"
    )

    def told(stack: list[Frame], call: str = "clock_nanosleep") -> Assessment:
        data = [at(CORE, idle), at(1999, idle), at(1998, stack), calls(1998, call)]
        return general.assess(
            evidence(GREEN, answer(), *still(), *data, uses(p1998=0.0)), where
        )

    stuck = told([*frames("_wedge hooks.py:7"), *polls[1:]])
    assert (stuck.state, stuck.process) == (ServerState.WORKER_STUCK, "DPCoordinator")
    assert told(polls, "poll").state is ServerState.HEALTHY
    assert (
        told([*frames("_wedge hooks.py:7"), *polls[1:]], "read").state
        is ServerState.HEALTHY
    )


def test_one_core_that_stands_is_no_rank() -> None:
    own = [*frames("_wedge hooks.py:7"), *ASKED[1:]]
    told = assess(tp(2), at(CORE, own), at(FIRST, IDLE), at(FIRST + 1, IDLE))
    assert (told.state, told.process) != (ServerState.WORKER_STUCK, "EngineCore")


# ------------------------------------------------------------------ when it is sure


def test_an_answer_outranks_every_stack() -> None:
    data = [GREEN, answer(), *still(), *all_at(REDUCE, WEDGED)]
    assert general.assess(evidence(*data), tp(2)).state is ServerState.HEALTHY
    assert not classes.classes(evidence(*data), tp(2))


def test_counters_that_move_outrank_every_stack() -> None:
    data = [GREEN, SILENCE, *moving(), *all_at(REDUCE, WEDGED)]
    assert general.assess(evidence(*data), tp(2)).state is ServerState.SLOW


def test_a_stuck_rank_that_sleeps_is_decided_before_the_deadline() -> None:
    pid = FIRST + 1

    def decided(
        call: str, cpu: float, *more: AnyProbeData, state: list[Frame] = WEDGED
    ) -> bool:
        counters = more or tuple(still())
        data = [
            *all_at(REDUCE, state),
            calls(pid, call),
            uses(**{f"p{pid}": cpu}),
            *counters,
        ]
        return stuck_rank(evidence(GREEN, *data), tp(2), 4.6, 15.0)

    assert decided("clock_nanosleep", 0.0)
    assert not decided("read", 0.0)  # a disk may be slow
    assert not decided("", 0.0)
    assert not decided("futex", 90.0)
    assert not decided("futex", 0.0, *moving())
    assert not decided("futex", 0.0, state=REDUCE)


def test_stance_of_a_core_that_waits_for_its_workers_is_theirs() -> None:
    stands = view(tp(2), *all_at(REDUCE, WEDGED))
    assert frozen.stance(stands) == (
        frozen.Stance.STANDS,
        "Worker_TP1: _wedge (hooks.py:7)",
    )
    unseen = view(tp(2), at(CORE, ASKED))
    assert frozen.stance(unseen)[0] is frozen.Stance.UNSEEN
    steps = [frames(*(f"f{n}{i} m.py:{n}" for i in range(8))) for n in range(6)]
    moves = sampled(*[[thread(one, tid=FIRST)] for one in steps], pid=FIRST)
    busy = view(tp(2), at(CORE, ASKED), moves, at(FIRST + 1, REDUCE))
    assert frozen.stance(busy)[0] is frozen.Stance.MOVES


# ------------------------------------------------------------------ classes


def test_the_classes_say_who_is_stuck_and_what_never_came() -> None:
    from mmrepro.live.diagnose.classes import STANDSTILL_S

    data = [GREEN, SILENCE, *still(), *all_at(REDUCE, WEDGED)]
    seen = evidence(*data)
    spread = [
        r for r in seen.probes if r.probe == "metrics" or r.data.kind == "metrics"
    ]  # type: ignore[union-attr]
    spread[-1].started.mono += STANDSTILL_S
    named = {one.name: one for one in classes.classes(seen, tp(2))}
    assert list(named) == [LiveClass.WORKER_STUCK, LiveClass.RANK_DIVERGED]
    assert named[LiveClass.WORKER_STUCK].certainty is Certainty.CERTAIN
    assert named[LiveClass.RANK_DIVERGED].sentence == (
        "Worker_TP0 waits in all_reduce, which Worker_TP1 never entered."
    )


def test_a_standstill_of_an_instant_is_possible_at_most() -> None:
    named = classes.classes(
        evidence(GREEN, SILENCE, *still(), *all_at(REDUCE, WEDGED)), tp(2)
    )
    assert {one.certainty for one in named} == {Certainty.POSSIBLE}


# ------------------------------------------------------------------ replicas


def dp(*data: AnyProbeData) -> Assessment:
    where = target(release="0.32.0")
    where.processes = [
        where.processes[0],
        TargetProcess(pid=1, ppid=FRONT, role="EngineCore_DP0", name="x", state="S"),
        TargetProcess(pid=2, ppid=FRONT, role="EngineCore_DP1", name="x", state="S"),
    ]
    return general.assess(evidence(GREEN, answer(), *still(), *data), where)


QUEUE = frames(
    "Queue.get queue.py:171", "_process_input_queue vllm/v1/engine/core.py:15"
)


def test_a_replica_that_is_stuck_while_another_answers() -> None:
    own = [*frames("_wedge hooks.py:7"), *QUEUE]
    asleep = [calls(2, "futex"), uses(p1=0.0, p2=0.0)]
    told = dp(at(1, QUEUE), at(2, own), *asleep)
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, "EngineCore_DP1")
    assert "another replica works" in told.sentence
    assert dp(at(1, QUEUE), at(2, QUEUE), *asleep).state is ServerState.HEALTHY
    assert dp(at(1, QUEUE), at(2, own)).state is ServerState.HEALTHY
    busy = [calls(2, "futex"), uses(p1=0.0, p2=80.0)]
    assert dp(at(1, QUEUE), at(2, own), *busy).state is ServerState.HEALTHY
    two = at(2, own, samples=2)
    assert dp(at(1, QUEUE), two, *asleep).state is ServerState.HEALTHY


def test_one_replica_that_answers_is_healthy_whatever_its_stacks_are() -> None:
    data = [
        GREEN,
        answer(),
        *still(),
        *all_at(REDUCE, WEDGED),
        calls(FIRST + 1, "futex"),
    ]
    assert general.assess(evidence(*data), tp(2)).state is ServerState.HEALTHY


def test_a_loop_that_turns_idly_waits_for_work() -> None:
    where = target(engine="sglang", core_role="scheduler", release="0.5.23")
    where.processes = [
        TargetProcess(pid=n, ppid=FRONT, role=f"scheduler_TP{n}", name="x", state="S")
        for n in (0, 1)
    ]
    turns = [
        frames(f"recv_requests sglang/x.py:{n}", f"event_loop_overlap sglang/y.py:{n}")
        for n in range(6)
    ]
    spins = sampled(*[[thread(one, tid=5)] for one in turns], pid=0)
    seen = ranks.look(view(where, spins, at(1, BROADCAST)))
    assert seen is not None
    assert [rank.stand for rank in seen.ranks] == [Stand.WORK, Stand.WORK]
    told = general.assess(
        evidence(GREEN, SILENCE, *still(), spins, at(1, BROADCAST)), where
    )
    assert told.state is ServerState.NOT_RECEIVING


# ------------------------------------------------------------------ NCCL's own word


def nccl(*counts: int, missing: int | None = None) -> RasData:
    made = [
        NcclRank(
            communicator="0x1",
            rank=n,
            pid=FIRST + n,
            counts={"AllReduce": count, "Send": 2},
        )
        for n, count in enumerate(counts)
    ]
    if missing is not None:
        made[missing] = made[missing].model_copy(
            update={"missing": True, "dead": True, "counts": {}}
        )
    return RasData(form="json", ranks=made, sizes={"0x1": len(counts)})


def test_a_rank_that_launched_less_never_entered_the_operation() -> None:
    stands = all_at(COPY, COPY, COPY)
    report = nccl(7, 6, 7)
    told = assess(tp(3), *stands, report, report)
    assert (told.state, told.process) == (ServerState.RANK_DIVERGED, "Worker_TP1")
    assert "Worker_TP1 never launched the operation" in told.sentence
    assert "NCCL: Worker_TP1 has launched 6 AllReduce, 2 others 7" in told.why


@pytest.mark.parametrize(
    "reports",
    [
        [nccl(7, 6, 7)],  # one report: it may be about to launch it
        [nccl(7, 6, 7), nccl(8, 7, 8)],
        [nccl(7, 7, 7), nccl(7, 7, 7)],
        [nccl(7, 7, 7), nccl(7, 6, 7)],
    ],
)
def test_counts_that_move_or_agree_accuse_nobody(reports: list[RasData]) -> None:
    told = assess(tp(3), *all_at(COPY, COPY, COPY), *reports)
    assert told.state is ServerState.KERNEL_STUCK


def test_a_rank_that_nccl_misses_is_named() -> None:
    report = nccl(7, 7, missing=1)
    told = assess(tp(2), *all_at(COPY, COPY), report, report)
    assert "NCCL: Worker_TP1 (rank 1) is considered dead" in told.why


def test_counts_do_not_outrank_a_stack() -> None:
    report = nccl(7, 6, 7)
    told = assess(tp(3), *all_at(WEDGED, REDUCE, REDUCE), report, report)
    assert (told.state, told.process) == (ServerState.WORKER_STUCK, "Worker_TP0")


def test_the_flight_recorder_says_who_did_not_enter() -> None:
    dumps = FlightData(
        ranks=[
            FlightRank(
                rank=n,
                entered={"0 tp": number},
                operation={"0 tp": "nccl:all_reduce"},
                completed={"0 tp": False},
            )
            for n, number in enumerate((9, 8, 9))
        ]
    )
    told = assess(tp(3), *all_at(REDUCE, IDLE, REDUCE), dumps)
    assert told.state is ServerState.RANK_DIVERGED
    assert (
        "Flight Recorder: in group 0 tp rank 0, 2 entered nccl:all_reduce (number 9), "
        "rank 1 (at 8) did not" in told.why
    )
    same = dumps.model_copy(update={"ranks": [dumps.ranks[0], dumps.ranks[2]]})
    assert not rank_reports.flight(view(tp(3), same))


# ------------------------------------------------------------------ event loops

LOOP = frames(
    "EpollSelector.select selectors.py:468",
    "BaseEventLoop._run_once asyncio/base_events.py:1884",
    "BaseEventLoop.run_forever asyncio/base_events.py:607",
)
UVLOOP = frames("run uvloop/__init__.py:69", "Runner.run asyncio/runners.py:118")
BLOCKING = frames(
    "get queue.py:171",
    "Handle._run asyncio/events.py:84",
    "BaseEventLoop._run_once asyncio/base_events.py:1922",
    "BaseEventLoop.run_forever asyncio/base_events.py:607",
)


@pytest.mark.parametrize("loop", [LOOP, UVLOOP], ids=["asyncio", "uvloop"])
def test_an_event_loop_without_work_is_not_stuck(loop: list[Frame]) -> None:
    where = tp(2)
    assert look(where, *all_at(loop, loop)).ranks[-1].stand is Stand.WORK
    for stack in (BLOCKING, frames("select selectors.py:468", "step vllm/x.py:3")):
        assert look(where, *all_at(stack, loop)).odd == ["Worker_TP0"], (
            "it blocks its loop"
        )


def test_a_front_that_forked_its_engine_is_no_rank() -> None:
    """As LMDeploy 0.18.0 is where its engine's process is forked: both are called
    api_server."""
    pair = [
        TargetProcess(
            pid=pid, ppid=above, role="api_server", name="lmdeploy", state="S"
        )
        for pid, above in ((FRONT, 1), (CORE, FRONT))
    ]
    where = target(
        engine="lmdeploy", core_role="api_server", release="0.18.0", processes=pair
    )
    assert [p.pid for p in where.cores] == [CORE]
    computes = sampled(*[[thread(STEP, tid=CORE)]] * 6, pid=CORE)
    told = assess(where, at(FRONT, LOOP), computes)
    assert told.state is not ServerState.WORKER_STUCK, told
    assert "other ranks" not in told.sentence
    alone = target(engine="lmdeploy", core_role="api_server", processes=pair[:1])
    assert [p.pid for p in alone.cores] == [FRONT]
