"""A server's start with FAKE servers: which mode is tried next, and what is remembered
of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine_process import (
    FakeProcess,
    FakeStarter,
    close,
    ends,
    raises,
    ready,
    silent,
    starter,
)
from mmrepro.base import processes
from mmrepro.base.errors import EngineStartError, ForkServerDied, SupervisorError
from mmrepro.base.records import Setting
from mmrepro.engines.supervise.warm import Refused
from mmrepro.failure.documents.folder import Journal
from mmrepro.failure.signature import Finding
from mmrepro.runs import start as start_module
from mmrepro.runs.judge import Deadlines, of_gate
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.start import START_ATTEMPTS, ServerSpec, Started, start
from mmrepro.scenario.registry import load_scenario
from simple_incident import incident
from worlds import environment

COLD, FORK, WARM = StartMode.COLD, StartMode.FORK, StartMode.WARM
GHOST = load_scenario("ghost-key-eviction")
PORT_TAKEN = "OSError: [Errno 98] Address already in use"

# ------------------------------------------------------------------ starts


class Starts:
    """``one(starter)`` starts a server in a journal of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "evidence").mkdir()
        self.journal = Journal(incident(), folder)
        self.made: list[FakeStarter] = []
        self.spec = ServerSpec(
            GHOST, RunCommand(device="cpu"), environment(folder / "environment"), folder
        )

    def one(self, starter: FakeStarter, **more: tuple[Setting, ...]) -> Started:
        self.made.append(starter)
        return start(self.spec, self.journal, starter.it, **more)

    @property
    def warnings(self) -> list[str]:
        return [
            e.text
            for e in self.journal.recorder.evidence.events
            if e.level == "warning"
        ]

    @property
    def mode_and_why(self) -> tuple[str, str]:
        (setting,) = [
            s for s in self.journal.incident.engine.settings if s.name == "start mode"
        ]
        assert setting.value == self.journal.incident.engine.start_mode
        return setting.value, setting.why


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    made = Starts(tmp_path)
    yield made
    for each in made.made:
        close(each.processes)


def test_a_start_that_works_is_remembered(starts: Starts) -> None:
    made = starter(ready, mode=FORK, reasons=("not warm: it was seen",))
    server = starts.one(made)
    server.sampler.stop()
    assert (made.modes, made.worked, made.unusable) == ([FORK], [FORK], [])
    assert starts.mode_and_why[0] == "fork"
    assert "not warm: it was seen" in starts.mode_and_why[1]
    assert server.url.endswith(str(made.processes[0].port))
    assert (server.plan.argv, server.restarts) == (
        starts.journal.incident.engine.command,
        (),
    )
    assert made.processes[0].stopped == []


@pytest.mark.parametrize(
    ("line", "runner"),
    [
        (
            "(Worker pid=7) INFO 11-29 00:26:59 [v1/worker/gpu/model_runner.py:298] "
            "Loading model from scratch...",
            "Model Runner V2",
        ),
        (
            "(Worker pid=7) INFO 11-29 00:23:31 [v1/worker/cpu_model_runner.py:68] "
            "Starting to load model tiny...",
            "Model Runner V1",
        ),
        ("INFO 11-29 00:23:31 [cpu_model_runner.py:68] Load", "Model Runner V1"),
        ("INFO 11-29 00:20:51 [cpu_worker.py:149] Using V2 Model Runner", "V2"),
        ("INFO 11-29 00:20:51 [core.py:93] Model Runner V2 requires Triton", ""),
        (
            "INFO 11-29 00:49:02 [v1/utils.py:370] Launching Rust frontend: /vllm-rs\n"
            "INFO 11-29 00:49:08 [cpu_model_runner.py:68] Load",
            "Model Runner V1, Rust front end",
        ),
    ],
)
def test_the_model_runner_is_the_one_that_the_log_shows(
    starts: Starts, line: str, runner: str
) -> None:
    def logs_and_answers(process: FakeProcess) -> None:
        process.log.write_text(f"starting\n{line}\n")
        ready(process)

    starts.one(starter(logs_and_answers))
    shown = starts.journal.incident.engine.runner
    assert shown.endswith(runner)
    assert bool(shown) == bool(runner)


def test_a_port_that_was_taken_is_another_port_and_told(starts: Starts) -> None:
    earlier = (Setting(name="start-up", value="repeated", why="the control server's"),)
    made = starter(ends(PORT_TAKEN), ready)
    server = starts.one(made, restarts=earlier)
    server.sampler.stop()
    assert made.modes == [COLD, COLD]
    assert starts.warnings == ["the port was taken meanwhile; starting it again"]
    assert [r.why for r in server.restarts] == [
        "the control server's",
        "the port was taken meanwhile",
    ]
    assert starts.journal.incident.engine.settings[-2:] == list(server.restarts)
    evidence = starts.journal.recorder.dir
    assert PORT_TAKEN in (evidence / "engine-start-1.log").read_text()
    assert (evidence / "engine.log").read_text() == ""
    assert made.processes[0].stopped == [1.0]
    assert made.unusable == []


def test_ports_that_are_always_taken_are_an_error_at_last(starts: Starts) -> None:
    made = starter(*[ends(PORT_TAKEN)] * START_ATTEMPTS)
    with pytest.raises(EngineStartError, match="Address already in use"):
        starts.one(made)
    assert made.modes == [COLD] * START_ATTEMPTS
    assert len(starts.warnings) == START_ATTEMPTS - 1
    assert all(p.stopped for p in made.processes)


def test_a_parent_that_refuses_is_remembered_and_a_fork_tried(starts: Starts) -> None:
    def refuses() -> None:
        raise Refused("its imports opened pipe:")

    made = starter(ready, mode=WARM, warms=refuses)
    starts.one(made).sampler.stop()
    assert made.modes == [FORK]
    assert made.unusable == [(WARM, "its imports opened pipe:", True)]
    assert starts.mode_and_why[0] == "fork"
    assert starts.mode_and_why[1].endswith("not warm: its imports opened pipe:")
    assert not list(starts.journal.recorder.dir.glob("engine-start-*"))
    assert "fork server" in starts.journal.incident.stages


def test_a_thread_that_no_fork_may_meet_means_a_cold_start_now_and_later(
    starts: Starts,
) -> None:
    made = starter(
        raises(Refused("a thread", cold=True)), ready, mode=WARM, parent=True
    )
    starts.one(made).sampler.stop()
    assert made.modes == [WARM, COLD]
    assert made.unusable == [(WARM, "a thread", True), (FORK, "a thread", True)]


def test_a_mode_that_is_refused_as_well_leaves_the_engines_own(starts: Starts) -> None:
    refusals = raises(Refused("no warm start")), raises(Refused("no fork here"))
    made = starter(*refusals, ready, mode=WARM, parent=True)
    starts.one(made).sampler.stop()
    assert made.modes == [WARM, FORK, COLD]
    assert starts.warnings == ["not warm: no warm start", "not fork: no fork here"]
    assert starts.mode_and_why[1].endswith(
        "; not warm: no warm start; not fork: no fork here"
    )
    assert not list(starts.journal.recorder.dir.glob("engine-start-*")), (
        "nothing was started"
    )


def test_a_failure_by_chance_is_repeated_in_the_same_mode(starts: Starts) -> None:
    made = starter(*[ends(PORT_TAKEN)] * START_ATTEMPTS, mode=FORK)
    with pytest.raises(EngineStartError, match="Address already in use"):
        starts.one(made)
    assert (made.modes, made.unusable) == ([FORK] * START_ATTEMPTS, [])


def test_a_parent_that_died_is_not_held_against_the_mode(starts: Starts) -> None:
    made = starter(
        raises(ForkServerDied("it was killed")), ready, mode=WARM, parent=True
    )
    starts.one(made).sampler.stop()
    assert made.modes == [WARM, FORK]
    assert made.unusable == []
    assert starts.warnings == ["not warm: it was killed"]
    assert "fork server" not in starts.journal.incident.stages, "there was one"


def test_a_fork_that_does_not_start_is_tried_cold_and_then_doubted(
    starts: Starts,
) -> None:
    made = starter(ends("RuntimeError: not in a fork"), ready, mode=FORK)
    starts.one(made).sampler.stop()
    assert (made.modes, made.worked) == ([FORK, COLD], [COLD])
    ((mode, why, certain),) = made.unusable
    assert (mode, certain) == (FORK, False)
    assert "not in a fork" in why
    assert "a start in mode fork failed" in starts.mode_and_why[1]


def test_what_starts_in_no_mode_says_nothing_of_the_modes(starts: Starts) -> None:
    broken = ends("RuntimeError: nowhere")
    made = starter(broken, broken, mode=FORK)
    with pytest.raises(EngineStartError, match="RuntimeError: nowhere"):
        starts.one(made)
    assert (made.modes, made.worked, made.unusable) == ([FORK, COLD], [], [])


def test_a_usage_error_is_told_at_once(starts: Starts) -> None:
    made = starter(
        ends("error: unrecognized arguments: --no-such", code=2), mode=WARM, parent=True
    )
    with pytest.raises(EngineStartError, match="ended with 2 while it started") as told:
        starts.one(made)
    assert told.value.usage
    assert made.modes == [WARM]


def test_a_mode_that_replaces_something_has_less_time_than_a_cold_start(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_module, "REPLACED_START_LIMIT_S", 0.1)
    made = starter(silent, ready, mode=FORK)
    starts.one(made).sampler.stop()
    assert made.modes == [FORK, COLD]
    assert "was not ready after 0.10 s" in starts.warnings[0]


def test_a_process_that_cannot_be_started_is_not_tried_again(starts: Starts) -> None:
    made = starter(raises(SupervisorError("no such command")), mode=FORK)
    with pytest.raises(SupervisorError, match="no such command"):
        starts.one(made)
    assert made.modes == [FORK]


def test_two_starts_never_share_a_port(starts: Starts) -> None:
    made = starter(ends(PORT_TAKEN), ends(PORT_TAKEN), ready)
    starts.one(made).sampler.stop()
    command = starts.journal.incident.engine.command
    assert command[command.index("--port") + 1] == str(made.processes[-1].port)


# ------------------------------------------------------------------ what the gate gives

BEFORE = Deadlines(240.0, 60.0)


def test_a_gate_that_passed_gives_the_deadlines() -> None:
    facts, deadlines = of_gate(
        Finding.of(True, "all answered"), [5.0, 0.5, 1.0], BEFORE
    )
    assert (facts.passed, facts.why, facts.latencies_s) == (
        True,
        "all answered",
        [5.0, 0.5, 1.0],
    )
    assert (deadlines.answer_s, deadlines.suspect_s) == (30.0, 12.0)
    assert (facts.deadline_s, facts.deadline_rule) == (30.0, deadlines.rule)


@pytest.mark.parametrize(
    "finding", [Finding.of(False, "500"), Finding.unknown("no log")]
)
def test_a_gate_that_did_not_leaves_them(finding: Finding) -> None:
    facts, deadlines = of_gate(finding, [], BEFORE)
    assert (facts.passed, facts.why) == (False, finding.observed)
    assert (facts.deadline_s, facts.deadline_rule) == (None, "")
    assert deadlines is BEFORE


def test_a_gate_that_passed_without_an_answer_is_none() -> None:
    with pytest.raises(ValueError, match="no latency"):
        of_gate(Finding.of(True, "all refused"), [], BEFORE)


PARENT = """
import multiprocessing, sys, time

def child(): time.sleep(float(sys.argv[1]))

if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[2]).Process(target=child).start()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("method", "lives_s", "said"),
    [
        ("spawn", 0.6, "lost its process"),
        ("fork", 0.6, "lost its process"),
        ("fork", 60, "was not ready after 3 s"),
    ],
)
def test_a_child_that_dies_ends_the_start_once_nothing_moves(
    starts: Starts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    lives_s: float,
    said: str,
) -> None:
    """A real parent that waits for its dead child until the time limit; one whose child
    lives is given that time."""
    monkeypatch.setattr(start_module, "_CHILDREN_POLL_S", 0.1)
    monkeypatch.setattr(start_module, "_STANDS_S", 0.7)
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py"), str(lives_s), method]
    with subprocess.Popen(command, start_new_session=True) as parent:

        def stands(process: FakeProcess) -> None:
            process.engine_pid = parent.pid

        def of_parent(_: FakeProcess) -> list[int]:
            return [parent.pid, *processes.descendants(parent.pid)]

        monkeypatch.setattr(FakeProcess, "process_ids", of_parent)
        limit = RunCommand(device="cpu", timeout_s=3 if lives_s == 60 else 30)
        starts.spec = replace(starts.spec, options=limit)
        try:
            with pytest.raises(EngineStartError) as caught:
                starts.one(starter(stands))
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
    assert said in caught.value.message


DIES = """
import multiprocessing

def child(): raise EOFError

if __name__ == "__main__":
    process = multiprocessing.Process(target=child, name="mp_engine_proc")
    process.start()
    process.join()
"""


def test_a_child_that_died_before_anybody_looked_is_in_the_log(tmp_path: Path) -> None:
    """As a real child of multiprocessing words it."""
    log = tmp_path / "engine.log"
    assert start_module._died_by_log(log) == ""
    with log.open("wb") as file:
        command = [sys.executable, "-c", DIES]
        subprocess.run(command, stderr=file, check=True)
    assert start_module._died_by_log(log) == "mp_engine_proc"
    log.write_text("Process mp_engine_proc: started\n")
    assert start_module._died_by_log(log) == ""
