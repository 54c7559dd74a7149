"""Ranks of processes that have ended: what is left of a title, and what else tells the
rank."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest
from made_up import http
from mmrepro.base import processes
from mmrepro.failure.documents.diagnosis import ServerState, TargetFacts, TargetProcess
from mmrepro.live.diagnose import classes_logged, discover, general, ranks
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.titles import whole
from mmrepro.probes.data import LogLine, LogsData
from seen import CORE, FRONT, GREEN, SILENCE, answer, evidence, failed, target

FIRST = 3000
SGLANG = {"engine": "sglang", "core_role": "scheduler", "release": "0.5.23"}


def server(command: str, *roles: str, **more: Any) -> TargetFacts:
    """A front, and below it these: a title that is cut (15 characters) is of one that
    ended.
    ``vllm``: below EngineCore."""
    engine = command.split()[0]
    core = "VLLM::EngineCore" if engine == "vllm" else ""
    parent = CORE if core else FRONT
    listed = [(FRONT, 1, "front"), *([(CORE, FRONT, core)] if core else [])]
    listed += [(FIRST + n, parent, role) for n, role in enumerate(roles)]
    made = [
        TargetProcess(
            pid=pid,
            ppid=ppid,
            role=role.rpartition("::")[2],
            name=role[:15],
            state="Z" if len(role) == 15 else "S",
        )
        for pid, ppid, role in listed
    ]
    own = SGLANG if engine == "sglang" else {"release": "0.32.0"}
    return target(**{"processes": made, "command": command.split()} | own | more)


def roles(facts: TargetFacts, **died: int) -> list[str]:
    found = whole(facts, {int(pid[1:]): number for pid, number in died.items()})
    return [p.role for p in found.processes if p.pid >= FIRST]


SCHEDULER, WORKER, UNTITLED = "sglang::schedul", "VLLM::Worker_TP", "VLLM::Worker"
TP0, TP1 = "sglang::scheduler_TP0", "sglang::scheduler_TP1"
LOST, UNKNOWN = "scheduler of unknown rank", "Worker of unknown rank"


@pytest.mark.parametrize(
    ("command", "titles", "named"),
    [
        ("sglang --tp-size 2", [TP0, SCHEDULER], ["scheduler_TP0", "scheduler_TP1"]),
        ("sglang --tp-size 2", [SCHEDULER, TP1], ["scheduler_TP0", "scheduler_TP1"]),
        ("sglang --tp=2", [SCHEDULER, SCHEDULER], ["scheduler_TP0", "scheduler_TP1"]),
        (
            "sglang --tp 4",
            [TP0, SCHEDULER, "sglang::scheduler_TP2", SCHEDULER],
            [f"scheduler_TP{n}" for n in range(4)],
        ),
        (
            "sglang --tp 2 --pp-size 2",
            [SCHEDULER] * 4,
            [f"scheduler_PP{p}_TP{t}" for p in (0, 1) for t in (0, 1)],
        ),
        ("vllm -tp 2", ["VLLM::Worker_TP0", WORKER], ["Worker_TP0", "Worker_TP1"]),
        ("vllm -tp 2", [WORKER, WORKER], ["Worker_TP0", "Worker_TP1"]),
        # Whichever was started first: one rank is missing, and one process has none.
        ("sglang --tp-size 2", [SCHEDULER, TP0], ["scheduler_TP1", "scheduler_TP0"]),
    ],
)
def test_the_others_tell_the_rank(
    command: str, titles: list[str], named: list[str]
) -> None:
    assert roles(server(command, *titles)) == named


@pytest.mark.parametrize(
    ("command", "titles", "named"),
    [
        ("sglang --tp 4", [TP0, SCHEDULER, SCHEDULER], ["scheduler_TP0", LOST, LOST]),
        ("sglang --tp-size 2", [SCHEDULER], [LOST]),
        ("sglang --tp-size 2", [SCHEDULER] * 3, [LOST] * 3),
        # They were not started in their order, so that the order tells nothing.
        ("sglang --tp 3", [SCHEDULER, TP0, SCHEDULER], [LOST, "scheduler_TP0", LOST]),
        (
            "sglang --tp 3",
            [SCHEDULER, "sglang::scheduler_TP9", TP0],
            [LOST, "scheduler_TP9", "scheduler_TP0"],
        ),
        # Threads of the data parallel controller start the groups, in any order.
        ("sglang --tp 2 --dp 2", [SCHEDULER] * 4, [LOST] * 4),
        ("sglang --tp 2 --nnodes 2", [TP0, SCHEDULER], ["scheduler_TP0", "scheduler"]),
        ("sglang", [SCHEDULER], ["scheduler"]),
        ("sglang", ["sglang::detoken"], ["detokenizer"]),
        ("vllm -dp 2", ["VLLM::DPCoordin"], ["DPCoordinator"]),
        ("vllm", ["python-and-more"], ["python-and-more"]),
    ],
)
def test_what_nothing_tells_keeps_no_rank(
    command: str, titles: list[str], named: list[str]
) -> None:
    assert roles(server(command, *titles)) == named


def test_workers_have_the_replica_of_their_core() -> None:
    where = server("vllm -tp 2 -dp 2", WORKER, "VLLM::Worker_DP1_TP1")
    where.processes[1].role, where.processes[1].state = "EngineCor", "Z"
    core = where.processes[1].model_copy(
        update={"pid": CORE + 1, "role": "EngineCore_DP0"}
    )
    core.state = "S"
    assert roles(where) == [UNKNOWN, "Worker_DP1_TP1"]
    where.processes.insert(1, core)
    found = whole(where)
    assert [p.role for p in found.processes[1:]] == [
        "EngineCore_DP0",
        "EngineCore_DP1",
        "Worker_DP1_TP0",
        "Worker_DP1_TP1",
    ]


def test_the_log_tells_which_of_two_was_collected() -> None:
    """SGLang's front has collected one of them, so that one is left, without its
    rank."""
    where = server("sglang --tp-size 2", SCHEDULER)
    assert roles(where, p77=1) == ["scheduler_TP0"]
    assert roles(where, **{f"p{FIRST}": 1}) == ["scheduler_TP1"]
    assert roles(where, p77=5) == [LOST]
    inside = server("sglang --tp-size 2", SCHEDULER)
    inside.processes[-1].inner_pid = 12
    assert roles(inside, p12=0) == ["scheduler_TP0"]


def test_the_log_calls_its_processes_by_name() -> None:
    """vLLM 0.32.0 with EngineCore_DP1 killed: the front has collected that one, and
    ended the other one, which is still listed as ``VLLM::EngineCor``."""
    where = server("vllm -dp 2", release="0.33.0")
    where.processes[1].role, where.processes[1].state = "EngineCor", "Z"
    line = LogLine(number=1, text="x")
    names = {f"EngineCore_DP0 pid={CORE}": line, f"EngineCore_DP1 pid={CORE + 1}": line}
    log = LogsData(file="x.log", bytes_read=1, lines=1, last_by_process=names)
    told = general.assess(evidence(log), where)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "EngineCore_DP1")
    assert told.sentence == (
        f"EngineCore_DP1, EngineCore_DP0 (pid {CORE}) are dead, EngineCore_DP1 first, "
        "while the rest of the server lives."
    )
    other = {f"Worker_DP0 pid={CORE}": line}
    data = LogsData(file="x.log", bytes_read=1, lines=1, last_by_process=other)
    for less in (evidence(), evidence(data)):
        unknown = general.assess(less, where)
        assert unknown.process == "EngineCore of unknown rank"
        assert "first" not in unknown.sentence


# ------------------------------------------------------------------ what is said


def logged(text: str, process: str = "") -> LogsData:
    line = LogLine(number=3, time="10:00:00", text=text, process=process)
    return LogsData(
        file="x.log",
        bytes_read=1,
        lines=1,
        matches={"rank-died": [line]},
        match_counts={"rank-died": 1},
    )


CRASH = (
    "Subprocess scheduler_1 (pid=3001) crashed with exit code -9. Triggering SIGQUIT"
)
VLLM = (
    "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down "
    "executor."
)


def test_of_two_that_ended_the_log_names_the_first() -> None:
    where = server("sglang --tp-size 2", SCHEDULER, SCHEDULER)
    told = general.assess(evidence(logged(CRASH)), where)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "scheduler_TP1")
    assert told.sentence == (
        "scheduler_TP0 (pid 3000), scheduler_TP1 (pid 3001) are dead, scheduler_TP1 "
        "first, while the rest of the server lives."
    )
    own = LogLine(
        number=2, level="ERROR", text="ValueError: x", process="scheduler_TP0"
    )
    raised = LogsData(file="y.log", bytes_read=1, lines=1, errors=[own])
    either = general.assess(evidence(logged(CRASH), raised), where)
    assert either.process == "scheduler"  # the other one may have raised before
    silent = general.assess(evidence(), where)
    assert (silent.state, silent.process) == (ServerState.PART_DEAD, "scheduler")
    assert "first" not in silent.sentence
    unknown = general.assess(evidence(), where.model_copy(update={"release": ""}))
    assert unknown.process == "scheduler"
    assert f"{LOST} (pid 3000), {LOST} (pid 3001) are dead" in unknown.sentence


def test_of_two_that_ended_the_speechless_one_was_first() -> None:
    """A rank that is killed says nothing, and the other one that its peer is gone."""
    where = server("sglang --tp-size 2", SCHEDULER, SCHEDULER)
    gloo = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:4711"

    def told(*lines: tuple[str, str]) -> str:
        errors = [
            LogLine(number=n, level="ERROR", text=text, process=process)
            for n, (process, text) in enumerate(lines, 1)
        ]
        log = LogsData(file="x.log", bytes_read=1, lines=1, errors=errors)
        return general.assess(evidence(log), where).process

    assert told(
        ("scheduler_TP0", "Scheduler hit an exception"), ("scheduler_TP0", gloo)
    ) == ("scheduler_TP1")
    assert told(("scheduler_TP0", "RuntimeError: of its own")) == "scheduler"
    assert told(("scheduler_TP0", gloo), ("scheduler_TP1", gloo)) == "scheduler"
    assert told(("", gloo)) == "scheduler"
    assert told() == "scheduler"


def test_one_that_ended_is_named() -> None:
    told = general.assess(evidence(), server("sglang --tp-size 2", TP0, SCHEDULER))
    assert told.process == "scheduler_TP1"
    assert told.sentence.startswith("scheduler_TP1 (pid 3001) is dead, while")
    lone = general.assess(evidence(), server("sglang --tp-size 2", SCHEDULER))
    assert lone.process == LOST
    seen = ranks.look(
        DiagnosisView(server("sglang --tp-size 2", SCHEDULER), evidence())
    )
    assert seen is not None
    assert [r.role for r in seen.ranks[1:]] == ["scheduler_TP0", "scheduler_TP1"]


def test_a_worker_whose_core_ended_all_others_by_the_log() -> None:
    """vLLM 0.23.0: 3 s after a kill no worker is left, and the core answers 500. A real
    one was ``failing``."""
    failure = failed(500, "EngineCore encountered an issue.")
    refused = http(None, None, gone=True)
    for one in refused.answers:
        one.error = "ConnectError: [Errno 111] Connection refused"
    ending = general.assess(evidence(refused, logged(VLLM)), server("vllm -tp 2"))
    assert (ending.state, ending.process) == (ServerState.RANK_LOST, "Worker_TP1")
    assert (
        general.assess(evidence(refused), server("vllm -tp 2")).state
        is ServerState.UNREACHABLE
    )
    for data in (failure, SILENCE):
        told = general.assess(evidence(GREEN, data, logged(VLLM)), server("vllm -tp 2"))
        assert (told.state, told.process) == (ServerState.RANK_LOST, "Worker_TP1")
    bare = general.assess(evidence(GREEN, failure), server("vllm -tp 2"))
    assert bare.state is ServerState.FAILING
    lives = server("vllm -tp 2", "VLLM::Worker_TP0", "VLLM::Worker_TP1")
    later = general.assess(evidence(GREEN, failure, logged(VLLM)), lives)
    assert later.state is ServerState.FAILING
    answered = general.assess(
        evidence(GREEN, answer(), logged(VLLM)), server("vllm -tp 2")
    )
    assert answered.state is ServerState.HEALTHY


@pytest.mark.parametrize(
    ("command", "title", "role"),
    [
        ("sglang --tp-size 2", "sglang::detoken", "detokenizer"),
        ("vllm -dp 2", "VLLM::DPCoordin", "DPCoordinator"),
        ("sglang --dp 2", "sglang::data_pa", "data_parallel_controller"),
    ],
)
def test_what_serves_all_ranks_and_ended_is_named(
    command: str, title: str, role: str
) -> None:
    told = general.assess(evidence(), server(command, title))
    assert (told.state, told.process) == (ServerState.PART_DEAD, role)
    alive = server(command, title)
    alive.processes[-1].state = "S"
    assert general.at_once(evidence(), alive) is None


def test_a_core_that_ended_after_its_worker() -> None:
    where = server("vllm -tp 2", WORKER, WORKER)
    where.processes[1].state, where.processes[1].role = "Z", "EngineCor"
    told = general.assess(evidence(logged(VLLM, "EngineCore pid=7")), where)
    assert (told.state, told.process) == (ServerState.PART_DEAD, "Worker_TP1")
    assert told.sentence.startswith(
        f"EngineCore (pid {CORE}) is dead, after Worker_TP1, while"
    )


@pytest.mark.parametrize(
    ("command", "line", "process", "named"),
    [
        ("vllm -tp 2", VLLM, "EngineCore pid=7", "Worker_TP1"),
        ("vllm -tp 2 -dp 2", VLLM, "EngineCore_DP1 pid=7", "Worker_DP1_TP1"),
        ("vllm -dp 2", VLLM.replace("-1", "-0"), "EngineCore_DP1 pid=7", "Worker_DP1"),
        ("vllm -tp 2 -dp 2", VLLM, "EngineCore pid=7", ""),
        ("vllm -pp 2", VLLM, "", "Worker_PP1"),
        ("vllm -tp 2", VLLM.replace("-1", "-7"), "", ""),
        ("vllm -tp 2", "Worker proc Other died unexpectedly", "", ""),
        ("vllm", VLLM, "", ""),
        ("sglang --tp 2", CRASH, "", "scheduler_TP1"),
        ("sglang --tp 2 --pp 2", CRASH, "", "scheduler_PP0_TP1"),
        ("sglang --tp 2 --dp 2", CRASH, "", ""),
    ],
)
def test_the_first_to_end_by_the_log(
    command: str, line: str, process: str, named: str
) -> None:
    view = DiagnosisView(server(command), evidence(logged(line, process)))
    assert ranks.first_dead(view) == named
    assert ranks.first_dead(DiagnosisView(server(command), evidence())) == ""


def test_both_engines_lines_are_searched() -> None:
    import re

    pattern = re.compile(classes_logged.LOG_PATTERNS["rank-died"])
    assert pattern.search(CRASH)
    assert pattern.search(VLLM)
    assert not pattern.search(
        "Subprocess detokenizer (pid=7) crashed with exit code -9."
    )


# ------------------------------------------------------------------ while it lived


def test_a_title_that_was_read_while_the_process_lived_is_kept() -> None:
    """Its argument list is its title; the kernel's name of it is ``sleep``."""
    process = subprocess.Popen(["sglang::scheduler_TP1", "60"], executable="/bin/sleep")
    try:
        while not processes.arguments(process.pid):
            time.sleep(0.01)
        found = ServerTarget(target(root_pid=process.pid, **SGLANG))
        discover.refresh(found)
        command = found.facts.command
        process.kill()
        while (status := processes.stat(process.pid)) is not None and not status.ended:
            time.sleep(0.01)
        discover.refresh(found)
        kept = found.facts.processes[0]
        assert (kept.role, kept.state) == ("scheduler_TP1", "Z")
        assert found.facts.command == command == ["sglang::scheduler_TP1", "60"]
        later = ServerTarget(target(root_pid=process.pid, **SGLANG))
        discover.refresh(later)
        assert later.facts.processes[0].role == "sleep"
    finally:
        process.kill()
        process.wait()


def test_children_stand_in_the_order_of_their_start() -> None:
    """Process numbers begin anew at the greatest one."""

    def stat(pid: int, ppid: int, start: int) -> processes.Stat:
        return processes.Stat(pid, "x", "S", ppid, 0, 0, 1, start, 0)

    among = {
        s.pid: s
        for s in (stat(9, 1, 1), stat(3, 9, 30), stat(32767, 9, 20), stat(4, 9, 30))
    }
    assert processes.tree(9, among=among) == [9, 32767, 3, 4]


@pytest.mark.parametrize(
    ("release", "named"),
    [
        ("0.32.0", ["Worker_TP0", "Worker_TP1"]),
        ("0.33.0", [UNKNOWN] * 2),
        ("", [UNKNOWN] * 2),
    ],
)
def test_the_order_of_another_release_tells_nothing(
    release: str, named: list[str]
) -> None:
    assert roles(server("vllm -tp 2", WORKER, WORKER, release=release)) == named
    one = server("vllm -tp 2", "VLLM::Worker_TP0", WORKER, release=release)
    assert roles(one) == ["Worker_TP0", "Worker_TP1"]
