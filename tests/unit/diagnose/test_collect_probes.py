"""Which processes and logs are looked at, within which bounds, and what a look says of
itself."""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from looked import NOW, Told, collector, told
from made_up import at, logs
from mmrepro.base.processes import Stat
from mmrepro.engines import ENGINES
from mmrepro.failure.documents.diagnosis import TargetProcess
from mmrepro.failure.signature import live_server as live
from mmrepro.live.diagnose import collect, discover
from mmrepro.live.diagnose.classes_logged import LOG_PATTERNS as CLASS_PATTERNS
from mmrepro.live.diagnose.collect import Collector
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import refused_stacks
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import (
    AnyProbeData,
    EndpointAnswer,
    HttpData,
    ProbeResult,
    StackSample,
    StacksData,
)
from mmrepro.traffic.evidence import Evidence
from seen import CORE, FRONT, GREEN, answer, probed, sampled, target, thread

assert told  # a fixture


# ---------------------------------------------------------------- the processes


def processes(*roles: str) -> list[TargetProcess]:
    return [
        TargetProcess(pid=FRONT + n, ppid=1, role=role, name=role, state="S")
        for n, role in enumerate(roles)
    ]


def test_the_core_is_sampled_first_and_helpers_never(
    tmp_path: Path, told: Told
) -> None:
    found = processes(
        "APIServer", "resource_tracker", "EngineCore", "bash", "Worker", "sh", "tee"
    )
    made = collector(tmp_path, processes=found, plan=DiagnoseCommand(samples=4))
    made._processes_round("2-", 6.0)
    _, words, options = told.probe("2-stacks")
    assert words == ([FRONT + 2, FRONT],)
    assert "2-others" not in told.labels
    assert told.probe("2-ranks")[1] == ([FRONT + 4],)
    assert told.probe("2-ranks")[2]["samples"] == collect.RANK_SAMPLES
    assert told.seconds("2-ranks") == 6.0 + collect.RANK_S
    assert options == {
        "samples": 4,
        "interval_s": pytest.approx(2.5 / 2 / 4 / 2),
        "blocking_fallback": False,
        "native": False,
    }
    assert told.seconds("2-stacks") == 6.0
    role_of = made.target.role_of
    assert told.probe("2-processes") == ("processes", (FRONT, 1.0, role_of), {})
    quiet = {"window_s": 1.0, "use_strace": False}
    assert told.probe("2-syscalls") == ("syscalls", (FRONT + 2,), quiet)
    assert (told.seconds("2-processes"), told.seconds("2-syscalls")) == (3.0, 3.0)
    assert told.probe(f"2-syscalls-{FRONT + 4}") == ("syscalls", (FRONT + 4,), quiet)


def test_more_than_one_core_and_many_processes(tmp_path: Path, told: Told) -> None:
    roles = ("APIServer", *("EngineCore",) * 3, *("Worker",) * 9)
    made = collector(
        tmp_path, processes=processes(*roles), plan=DiagnoseCommand(native=True)
    )
    made._processes_round()
    pids = told.probe("stacks")[1][0]
    assert pids == [FRONT + 1, FRONT, FRONT + 2, FRONT + 3]
    assert told.probe("ranks")[1] == ([FRONT + 4 + n for n in range(9)],)
    with_more = collector(
        tmp_path, processes=processes("APIServer", "EngineCore", *"abcdefg")
    )
    with_more._processes_round()
    assert told.probe("others")[1] == ([FRONT + 2 + n for n in range(4)],)
    assert told.probe("others")[2]["samples"] == collect.OTHERS
    assert told.probe("stacks")[2]["native"] is True
    assert told.probe("stacks")[2]["interval_s"] == pytest.approx(2.5 / 2 / 5 / 4)
    assert told.seconds("stacks") == 7.5
    many = collector(tmp_path, plan=DiagnoseCommand(samples=500))
    many._processes_round()
    assert told.started[-3][0][2]["interval_s"] == 0.02


def test_without_a_core_by_name_the_front_is_measured(
    tmp_path: Path, told: Told
) -> None:
    made = collector(tmp_path, states="S")
    made._processes_round()
    assert told.probe("stacks")[1] == ([FRONT],)
    assert told.probe("syscalls")[1] == (FRONT,)
    assert collector(tmp_path, root_pid=None)._processes_round() == []


def test_helpers_of_every_program_do_not_matter() -> None:
    helpers = ["resource_tracker", "sh", "bash", "timeout", "tee"]
    assert [collect._may_matter(role) for role in (*helpers, "Worker")] == [
        False
    ] * 5 + [True]


# ---------------------------------------------------------------- more of the core


def test_more_samples_are_taken_until_one_shows_what_is_wanted(
    tmp_path: Path, told: Told
) -> None:
    spin = sampled([thread([])], [thread([])])
    made = collector(tmp_path, "vllm", spin)
    asked: list[int] = []

    def wanted(samples: Any) -> bool:
        asked.append(len(samples))
        return len(samples) > 2

    made.more_stacks(wanted)
    _, words, options = told.probe("stacks-more")
    until = options.pop("until")
    assert words == ([CORE],)
    bounds = {
        "samples": 20,
        "interval_s": 0.03,
        "blocking_fallback": False,
        "min_samples": 1,
    }
    assert options == bounds
    assert told.seconds("stacks-more") == 2.5
    two = collector(
        tmp_path, processes=processes("APIServer", "EngineCore", "EngineCore")
    )
    two.more_stacks(lambda samples: False)
    assert told.started[-1][0][1] == ([FRONT + 1],)
    assert (until([]), until(spin.samples)) == (False, True)
    assert asked == [2, 2, 4]


@pytest.mark.parametrize("facts", [{"states": "S"}, {}])
def test_no_more_samples_without_a_core_or_a_want(
    facts: dict[str, Any], tmp_path: Path, told: Told
) -> None:
    collector(tmp_path, **facts).more_stacks(lambda samples: not facts)
    assert told.started == []


# ---------------------------------------------------------------- what it did


def test_what_a_look_did_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = iter([(1.0, 5), (3.544, 7)])
    monkeypatch.setattr(collect, "_usage", lambda: next(usage))
    clock = iter([100.0, 102.346])
    monkeypatch.setattr(collect.time, "monotonic", lambda: next(clock))
    stacks = StacksData(
        samples=[
            StackSample(
                pid=CORE, taken=at(n), blocking=n < 2, seconds=0.111, threads=[]
            )
            for n in range(3)
        ]
    )
    made = collector(tmp_path, "vllm", stacks, logs())
    made._note_request("GET /x")
    made.inferences = 1
    did = made.effect()
    assert (did.seconds, did.cpu_s, did.peak_rss_bytes) == (2.35, 2.54, 7)
    assert (did.requests, did.inferences, did.stack_samples) == (["GET /x"], 1, 3)
    assert (did.paused_s, did.log_bytes_read) == (0.22, 125_704)
    made.close()


def test_cpu_is_ones_own_and_ones_childrens(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Use:
        ru_utime: float
        ru_stime: float
        ru_maxrss: int

    uses = {
        collect.resource.RUSAGE_SELF: Use(1, 2, 30),
        collect.resource.RUSAGE_CHILDREN: Use(4, 8, 20),
    }
    monkeypatch.setattr(collect.resource, "getrusage", uses.get)
    assert collect._usage() == (15, 30 * 1024)


def test_a_probes_result_is_kept_under_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(
        probe: Any, folder: Path, seconds: float, *, phase: str, label: str, mask: Any
    ) -> Any:
        assert mask is made.recorder.mask
        seen.append((probe, folder, seconds, phase, label))
        return probed(answer())

    monkeypatch.setattr(collect, "run_probe", run)
    made = collector(tmp_path)
    probe: Any = "probe"
    made._all(made._start(probe, label="x"), made._start(probe, seconds=1.0))
    assert sorted(seen, key=str) == sorted(
        [
            (probe, made.recorder.dir, 6.0, "check", "x"),
            (probe, made.recorder.dir, 1.0, "check", ""),
        ],
        key=str,
    )
    assert len(made.evidence.probes) == 2
    made.close()
    with pytest.raises(RuntimeError):
        made._start(probe)


# ---------------------------------------------------------------- waiting


def test_waiting_ends_with_the_moment_or_with_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(collect.time, "monotonic", lambda: NOW)
    monkeypatch.setattr(collect.time, "sleep", slept.append)
    made = collector(tmp_path)
    made._until(NOW + 2)
    made._until(NOW - 2)
    assert slept == [2, 0]
    made._until(NOW + 60)
    assert slept.pop() == made.plan.deadline_s + collect.BESIDE_S
    waits: list[float] = []

    class Pending:
        def result(self, timeout: float) -> None:
            waits.append(timeout)
            raise TimeoutError

    pending: Any = Pending()
    made._until(NOW + 3, unless=pending)
    collect._wait(pending, NOW - 3)
    assert (waits, slept) == ([3, 0], [2, 0])
    never: Future[None] = Future()
    never.cancel()
    with pytest.raises(CancelledError):
        Collector._all(never)


def test_why_stacks_are_missing() -> None:
    def stacks(status: ProbeStatus, reason: str) -> Any:
        return ProbeResult[AnyProbeData](
            probe="stacks",
            phase="check",
            status=status,
            reason=reason,
            started=at(0),
            seconds=0.1,
        )

    closed = stacks(ProbeStatus.UNAVAILABLE, "closed")
    late = stacks(ProbeStatus.TIMED_OUT, "late")
    read = probed(sampled([thread([])]))
    assert refused_stacks(Evidence()) == ""
    assert refused_stacks(Evidence(probes=[probed(GREEN)])) == ""
    assert refused_stacks(Evidence(probes=[closed, late])) == "late"
    assert refused_stacks(Evidence(probes=[closed, read])) == ""
    http_closed = closed.model_copy(update={"probe": "http"})
    assert refused_stacks(Evidence(probes=[http_closed])) == ""


# ---------------------------------------------------------------- the logs


def log_file(folder: Path, name: str, written: float, size: int = 1) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (written, written))
    return path


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(discover, "began", lambda found: 5000.0)
    made: list[Any] = []
    monkeypatch.setattr(collect, "Life", lambda *words: made.append(words) or made[-1])
    return made


def test_logs_are_read_from_the_process_on(
    tmp_path: Path, told: Told, lives: list[Any]
) -> None:
    last = log_file(tmp_path, "s.log", 6000.0)
    newer = log_file(tmp_path, "s.log.1", 5000.0)
    log_file(tmp_path, "s.log.2", 4999.0)
    made = collector(tmp_path, logs=[str(last)])
    made.log_patterns = {"mine": "mine"}
    made._logs()
    vllm = ENGINES["vllm"]
    name, words, options = told.probe("logs-1")
    files, patterns, progress = words
    assert (name, files, progress) == ("logs", [newer, last], vllm.progress_pattern)
    assert patterns.keys() == {
        "failed-500",
        "mine",
        *CLASS_PATTERNS,
        *vllm.log_patterns,
    }
    assert options["life"] == (vllm.start_lines, datetime.fromtimestamp(5000.0))
    assert options["added"] == vllm.added_pattern
    assert told.seconds("logs-1") == 10.0
    assert made.target.unseen == []


def test_a_log_that_was_written_before_the_server_is_not_its_own(
    tmp_path: Path, told: Told, lives: list[Any]
) -> None:
    old, own = (
        log_file(tmp_path, "old.log", 4999.0),
        log_file(tmp_path, "own.log", 5000.0),
    )
    made = collector(tmp_path, logs=[str(old), str(own), str(tmp_path / "gone.log")])
    made._logs()
    assert told.labels == ["logs-1", "logs-2"]
    assert told.probe("logs-1")[1][0] == [own]
    assert told.probe("logs-2")[:2] == (
        "logs",
        ([tmp_path / "gone.log"], *told.probe("logs-1")[1][1:]),
    )
    assert made.target.unseen == [
        f"the log: {old} was written before this server started"
    ]


def test_a_log_that_is_too_large_is_read_from_its_end(
    tmp_path: Path, told: Told, lives: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_LOG_BYTES", 4)
    path = log_file(tmp_path, "s.log", 6000.0, size=5)
    made = collector(tmp_path, "lmdeploy", logs=[str(path)], place="container")
    made._logs()
    name, _, options = told.probe("logs-1")
    assert (name, options["max_bytes"], options["added"]) == ("logs", 4, None)
    # A container's clock may have another zone.
    assert options["life"] == (ENGINES["lmdeploy"].start_lines, None)


def test_logs_of_an_unknown_engine_and_of_a_server_that_is_gone(
    tmp_path: Path, told: Told, lives: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "began", lambda found: None)
    path = log_file(tmp_path, "s.log", 1.0)
    made = collector(tmp_path, "", logs=[str(path)] * 9)
    made._logs()
    assert len(told.started) == 8
    _, words, options = told.probe("logs-8")
    assert words == ([path], {**live.LOG_PATTERNS, **CLASS_PATTERNS}, None)
    assert options["life"] == ((r"INFO:\s+Started server process \[\d+\]",), None)


def test_when_a_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    assert discover.began(ServerTarget(target(root_pid=None))) is None
    assert discover.began(ServerTarget(target(root_pid=2**22 + 1))) is None
    began = discover.began(ServerTarget(target(root_pid=os.getpid())))
    assert began is not None
    began_at_300 = Stat(5, "n", "S", 1, 0, 0, 1, 300, 0)
    monkeypatch.setattr(discover.processes, "stat", lambda pid: began_at_300)
    monkeypatch.setattr(discover.processes, "TICKS_PER_S", 100)
    monkeypatch.setattr(
        discover.time, "clock_gettime", {discover.time.CLOCK_BOOTTIME: 50.0}.get
    )
    monkeypatch.setattr(discover.time, "time", lambda: 1000.0)
    # Three seconds after boot, 47 s ago, and two seconds for clocks that are rough.
    assert discover.began(ServerTarget(target())) == 951.0


def test_a_log_of_a_process_that_has_just_started_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    path.touch()
    assert not collect._older(
        path, discover.began(ServerTarget(target(root_pid=os.getpid())))
    )


def test_closing_waits_for_nothing(tmp_path: Path) -> None:
    made = collector(tmp_path)
    assert made._pool._max_workers == 32  # every probe of a look side by side
    made.close()
    closed: list[dict[str, bool]] = []
    made._pool.shutdown = lambda **how: closed.append(how)  # type: ignore[assignment]
    made.close()
    assert closed == [{"wait": False, "cancel_futures": True}]


def test_what_was_cut_off_counts_as_done_too(tmp_path: Path) -> None:
    made = collector(tmp_path, "vllm", sampled([thread([])]), logs())
    for result in made.evidence.probes:
        result.status = ProbeStatus.TIMED_OUT
    did = made.effect()
    assert (did.stack_samples, did.log_bytes_read) == (1, 125_704)
    wanted: list[int] = []
    made.more_stacks(lambda samples: bool(wanted.append(len(samples)) or True))
    assert wanted == [1]
    made.close()


def test_the_model_is_read_from_endpoints_of_which_some_were_cut_off(
    tmp_path: Path,
) -> None:
    body = '{"data":[{"id":"m"}]}'
    answers = [EndpointAnswer(path="/v1/models", status=200, seconds=0.1, body=body)]
    made = collector(
        tmp_path,
        "vllm",
        HttpData(base_url="http://x", answers=answers),
        plan=DiagnoseCommand(),
    )
    made.evidence.probes[0].status = ProbeStatus.TIMED_OUT
    assert made.model() == "m"
