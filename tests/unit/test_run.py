"""A whole run of FAKE servers: what is written, and what becomes of the server, however
it ends."""

import asyncio
import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_engine_process import (
    FakeProcess,
    FakeStarter,
    Goes,
    close,
    ends,
    ready,
    silent,
    starter,
)
from mmrepro.base.errors import (
    EngineStartError,
    EnvironmentBuildError,
    ExitCode,
    NoSpace,
    RunTimeout,
    UnwritableOutput,
    UsageError,
)
from mmrepro.cli.run import _exit_code
from mmrepro.engines import spec_for
from mmrepro.engines.environments.spec import Environment, EnvironmentSpec
from mmrepro.engines.supervise import StopReport
from mmrepro.failure.documents import Incident, folder
from mmrepro.failure.documents.folder import Journal
from mmrepro.failure.documents.hashes import HASHES_FILE, checked
from mmrepro.probes.data import LogsData
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, rejudge
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.runner import begin, execute
from mmrepro.runs.start import target
from mmrepro.scenario import Control, Drive, Finding, Logs, Outcome, RunFacts, Scenario
from mmrepro.scenario.more import REFUSED, Condition
from mmrepro.traffic.evidence import Evidence
from worlds import environment as made_up_environment


class Tiny(Scenario):
    """Nothing happens.

    What: nothing.

    Why: it is FAKE.
    """

    name = "tiny"
    engine = "minivllm"
    release = "0.1"
    affected = ">=0.1"

    def __init__(
        self, then: Callable[[], None] = lambda: None, passes: bool = True
    ) -> None:
        self.then, self.passes = then, passes

    async def gate(self, drive: Drive) -> None:
        for label in ("first", "second"):
            await drive.chat(label)

    def gate_check(self, evidence: Evidence) -> Finding:
        return Finding.of(self.passes, "as the test says")

    async def trigger(self, drive: Drive) -> None:
        self.then()
        drive.deadline_s = 11.0
        await drive.ask("third")

    async def control(self, drive: Drive) -> None:
        await drive.ask("of the control server")

    def conditions(self, facts: RunFacts) -> list[Condition]:
        def third(evidence: Evidence) -> Finding:
            return Finding.of(
                bool(evidence.labelled("third")), f"{facts.deadline_s:g} s"
            )

        return [
            Condition("sent", "precondition", "it was sent", third),
            Condition("third", "symptom", "a third request", third),
            Condition(
                "fake", "cause", "it is FAKE", lambda _: Finding.of(True, "so it is")
            ),
        ]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        return Finding.of(True, "it answers")


class Controlled(Tiny):
    """Nothing happens, beside a control server."""

    control_server = Control("another option", ("--other",))


class Run:
    """A run in a test's folder: what it was given, and what it left."""

    def __init__(
        self, scenario: Scenario, options: RunCommand, starter: FakeStarter
    ) -> None:
        self.starter = starter
        self.scenario, self.options = scenario, options
        self.resolved = target(scenario, options)
        self.journal: Journal = begin(scenario, options, self.resolved)

    def execute(self) -> Incident:
        return execute(
            self.scenario,
            self.options,
            self.resolved,
            self.journal,
            self.starter.it,
        )

    @property
    def written(self) -> Incident:
        return Incident.model_validate_json(
            (self.journal.folder / "incident.json").read_text()
        )

    def events(self, source: str) -> list[str]:
        return [e.text for e in self.written.evidence.events if e.source == source]


MakeRun = Callable[..., Run]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    made = made_up_environment(tmp_path / "environments/fake")
    made = replace(made, spec=replace(made.spec, engine="minivllm", release="0.1"))
    monkeypatch.setattr("mmrepro.runs.start.ensure", lambda spec, progress: made)
    # Nothing moves in between.
    monkeypatch.setattr("mmrepro.runs.observe.QUIET_SPACING_S", 0.0)
    monkeypatch.setattr("mmrepro.runs.observe.SPACING_S", 0.0)
    return made


@pytest.fixture
def make(tmp_path: Path, place: Environment) -> Iterator[MakeRun]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    runs: list[Run] = []

    def run(scenario: Scenario, *starts: Goes, **more: object) -> Run:
        options = RunCommand(
            device="cpu",
            model=tmp_path / "model",
            out=tmp_path / "out",
            **more,  # type: ignore[arg-type]
        )
        runs.append(Run(scenario, options, starter(*(starts or (ready,)))))
        return runs[-1]

    yield run
    for made in runs:
        close(made.starter.processes)


def test_the_environment_is_resolved_once(
    make: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved: list[EnvironmentSpec] = []

    def resolve(*words: Any, **more: Any) -> EnvironmentSpec:
        resolved.append(spec_for(*words, **more))
        return resolved[-1]

    monkeypatch.setattr("mmrepro.runs.start.spec_for", resolve)
    make(Tiny()).execute()
    assert len(resolved) == 1


def test_a_whole_run(make: MakeRun) -> None:
    run = make(Tiny())
    incident = run.execute()
    written, made = run.written.model_dump(), incident.model_dump()
    # Of a checkout below the home folder, its owner is left out.
    for one in (
        written,
        made,
    ):
        one["engine"]["command"] = [
            Path(word).name for word in one["engine"]["command"]
        ]
    assert written == made
    assert (incident.state, incident.failure, incident.outcome) == (
        "complete",
        "",
        Outcome.REPRODUCED,
    )
    stages = [
        "environment",
        "model",
        "start-up",
        "gate",
        "trigger",
        "probes",
        "verdict",
        "stop",
    ]
    assert run.events("stage") == list(incident.stages) == stages
    assert all(0 <= seconds < 60 for seconds in incident.stages.values())
    phases = [r.phase for r in incident.evidence.requests]
    assert phases == ["gate", "gate", "trigger"]
    assert [p.stopped for p in run.starter.processes] == [[6.0]]
    assert incident.engine.start_mode == "cold"
    assert incident.engine.start_seconds is not None
    assert incident.server is None
    assert incident.finished is not None


def test_a_run_exits_with_what_came_of_it(make: MakeRun) -> None:
    incident = make(Tiny()).execute()
    assert incident.verdict is not None
    assert _exit_code(incident) is ExitCode.AS_EXPECTED
    surprise = {"expected": "not reproduced", "as_expected": False}
    incident.verdict = incident.verdict.model_copy(update=surprise)
    assert _exit_code(incident) is ExitCode.NOT_AS_EXPECTED
    incident.verdict = None
    assert _exit_code(incident) is ExitCode.INCONCLUSIVE


def test_what_a_run_was_judged_with_is_told_by_its_incident(make: MakeRun) -> None:
    """Also a deadline that the scenario itself made longer."""
    incident = make(Tiny()).execute()
    assert incident.gate is not None
    assert (incident.gate.deadline_s, incident.deadline_s) == (6.0, 11.0)
    assert facts_of(incident, Tiny()).deadline_s == 11.0
    assert not rejudge(incident, Tiny()).changes
    assert incident.verdict is not None
    assert incident.verdict.conditions[0].observed == "11 s"


def test_a_failed_gate_triggers_nothing(make: MakeRun) -> None:
    run = make(Tiny(passes=False))
    incident = run.execute()
    assert incident.outcome is Outcome.INCONCLUSIVE
    assert _exit_code(incident) is ExitCode.INCONCLUSIVE
    assert "trigger" not in incident.stages
    assert incident.gate is not None
    assert (incident.gate.passed, incident.gate.why) == (False, "as the test says")
    assert incident.gate.deadline_s is None
    assert incident.deadline_s == 60.0, "that of the gate's own requests"


def test_a_gate_that_is_not_what_its_check_expects(make: MakeRun) -> None:
    class Broken(Tiny):
        """Broken."""

        def gate_check(self, evidence: Evidence) -> Finding:
            raise KeyError("image X")

    incident = make(Broken()).execute()
    assert incident.outcome is Outcome.INCONCLUSIVE
    assert incident.gate is not None
    assert incident.gate.why == "the checker failed: KeyError: 'image X'"


def test_a_kept_server_is_left_and_told(make: MakeRun) -> None:
    run = make(Tiny(), keep_server=True)
    run.execute()
    (process,) = run.starter.processes
    assert (process.detached, process.stopped) == (True, [])
    server = run.written.server
    assert server is not None
    assert (server.url, server.pid) == (f"http://127.0.0.1:{process.port}", process.pid)
    assert "stop" not in run.written.stages


def test_a_server_is_not_kept_where_the_run_failed(make: MakeRun) -> None:
    def fails() -> None:
        raise RuntimeError("no such picture")

    run = make(Tiny(fails), keep_server=True)
    with pytest.raises(RuntimeError, match="no such picture"):
        run.execute()
    assert [(p.detached, p.stopped) for p in run.starter.processes] == [(False, [1.0])]
    written = run.written
    assert (written.state, written.server) == ("failed", None)
    assert written.failure == "mmrepro itself failed: RuntimeError: no such picture"
    assert len(written.evidence.requests_in("gate")) == 2


def test_an_environment_that_cannot_be_built(
    make: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Environment:
        raise EnvironmentBuildError("uv ended with 1.", detail=["no wheel"])

    monkeypatch.setattr("mmrepro.runs.start.ensure", broken)
    run = make(Tiny())
    with pytest.raises(EnvironmentBuildError):
        run.execute()
    written = run.written
    assert (written.state, written.failure) == ("failed", "uv ended with 1.")
    assert written.failure_detail == ["no wheel"]
    assert list(written.stages) == ["environment"]
    assert (written.verdict, written.model, written.engine.command) == (None, None, [])
    assert run.starter.processes == []


def test_an_engine_that_never_comes_up(make: MakeRun) -> None:
    run = make(Tiny(), ends("ValueError: no such layer"))
    with pytest.raises(
        EngineStartError, match="The log says: ValueError: no such layer"
    ):
        run.execute()
    written = run.written
    assert written.state == "failed"
    assert "minivllm 0.1 ended with 1 while it started." in written.failure
    assert written.failure_detail == ["ValueError: no such layer"]
    assert written.engine.command, "how it was started is told"
    assert [p.stopped for p in run.starter.processes] == [[1.0]]
    assert list(written.stages) == ["environment", "model", "stop", "start-up"]


def test_an_engine_that_stays_silent(make: MakeRun) -> None:
    run = make(Tiny(), silent, timeout_s=0.2)
    with pytest.raises(EngineStartError, match=r"was not ready after 0\.20 s"):
        run.execute()
    assert run.written.state == "failed"
    assert [p.stopped for p in run.starter.processes] == [[1.0]]


class NotStarting(Controlled):
    """That it does not start is the failure."""

    fails_at_start = True

    def gate_check(self, evidence: Evidence) -> Finding:
        return Finding.of(
            bool(evidence.requests_in("control")), "the control server answered"
        )

    def conditions(self, facts: RunFacts) -> list[Condition]:
        def told(evidence: Evidence) -> Finding:
            return Finding.of(bool(evidence.never_ready), evidence.never_ready)

        def logged(evidence: Evidence) -> Finding:
            return Finding.of(
                evidence.engine_exit == 3, f"{len(list(evidence.results(LogsData)))}"
            )

        return [
            Condition("control", "precondition", "it is there", self.gate_check),
            Condition("never", "symptom", "it does not start", told),
            Condition("log", "cause", "its log was read, it ended with 3", logged),
        ]


def test_a_server_that_is_to_fail_as_it_starts_is_judged_by_its_log(
    make: MakeRun,
) -> None:
    run = make(NotStarting(), ready, ends("ValueError: no such layer", code=3))
    incident = run.execute()
    assert incident.verdict is not None
    assert incident.verdict.outcome is Outcome.REPRODUCED, incident.verdict.explanation
    assert [c.observed for c in incident.verdict.conditions][2] == "1"
    assert run.written.state == "complete"
    assert run.written.evidence.never_ready.endswith(
        "The log says: ValueError: no such layer"
    )
    assert run.written.gate is not None
    assert run.written.gate.passed
    assert all(p.stopped for p in run.starter.processes)
    assert list(run.written.stages)[-2:] == ["probes", "verdict"]


def test_where_it_starts_all_the_same_nothing_failed(make: MakeRun) -> None:
    incident = make(NotStarting(), ready, ready).execute()
    assert incident.verdict is not None
    assert incident.verdict.outcome is Outcome.NOT_REPRODUCED
    assert incident.evidence.never_ready == ""


@pytest.mark.parametrize(
    ("start", "timeout_s"),
    [(silent, 1.0), (ends("usage: …", code=2), 60.0)],
    ids=["late", "wrong words"],
)
def test_a_late_server_and_wrong_words_are_no_such_failure(
    make: MakeRun, start: Goes, timeout_s: float
) -> None:
    run = make(NotStarting(), ready, start, timeout_s=timeout_s)
    with pytest.raises(EngineStartError):
        run.execute()
    assert run.written.state == "failed"
    assert run.written.verdict is None


class Refused(Tiny):
    """A server with the fix refuses it as it starts."""

    log_patterns: ClassVar = {REFUSED: r"ValueError: needs \d+ blocks"}
    blocks = 9

    def conditions(self, facts: RunFacts) -> list[Condition]:
        def that(evidence: Evidence) -> Finding:
            found = Logs(evidence).search(REFUSED, rf"needs {self.blocks} blocks")
            return Finding.of(bool(found), f"{len(found)} lines")

        return [
            Condition("that", "precondition", "it refuses that", that),
            *super().conditions(facts)[1:],
        ]


REFUSES = ends("ValueError: needs 9 blocks, 8 are there")


@pytest.mark.parametrize("mode", [StartMode.COLD, StartMode.WARM])
def test_a_server_that_refuses_what_the_failure_needs_does_not_have_it(
    make: MakeRun, mode: StartMode
) -> None:
    run = make(Refused(), REFUSES)
    run.starter.mode = mode
    incident = run.execute()
    assert incident.verdict is not None
    assert (incident.verdict.outcome, incident.verdict.explanation) == (
        Outcome.NOT_REPRODUCED,
        "the server refuses to start so: ValueError: needs 9 blocks",
    )
    assert (run.written.state, run.written.gate) == ("complete", None)
    assert len(run.starter.processes) == 1, "no other mode is tried: it refuses in each"
    assert not rejudge(incident, Refused()).differs


def test_a_server_that_refuses_another_size_tells_nothing(make: MakeRun) -> None:
    class Other(Refused):
        """Its failure needs other blocks."""

        blocks = 12

    incident = make(Other(), REFUSES).execute()
    assert incident.outcome is Outcome.INCONCLUSIVE


def test_a_server_that_ends_with_other_words_refuses_nothing(make: MakeRun) -> None:
    run = make(Refused(), ends("ValueError: no such layer"))
    with pytest.raises(EngineStartError, match="no such layer"):
        run.execute()
    assert run.written.verdict is None


@pytest.mark.parametrize("moment", ["start", "trigger"])
def test_an_interrupted_run(
    make: MakeRun, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    if moment == "start":
        monkeypatch.setattr("mmrepro.runs.start.answers", interrupted)
    run = make(Tiny(interrupted if moment == "trigger" else lambda: None))
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    written = run.written
    assert (written.state, written.failure) == (
        "interrupted",
        "interrupted by the user",
    )
    assert written.verdict is None
    assert (written.gate is not None) is (moment == "trigger")
    assert list(written.stages)[-1] == {"start": "start-up", "trigger": "stop"}[moment]
    assert [p.stopped for p in run.starter.processes] == [[1.0]]


def test_a_run_that_takes_too_long(make: MakeRun) -> None:
    class Slow(Tiny):
        """Slow."""

        async def trigger(self, drive: Drive) -> None:
            await asyncio.sleep(60)

    run = make(Slow(), timeout_s=3.0)
    with pytest.raises(RunTimeout, match="did not end within 3 s"):
        run.execute()
    assert run.written.state == "failed"
    assert [p.stopped for p in run.starter.processes] == [[1.0]]


def test_what_is_left_of_all_servers_is_told(make: MakeRun) -> None:
    def left(process: FakeProcess) -> None:
        process.report = StopReport(
            left=[f"python {process.log.stem}"], forced=["python worker"]
        )
        ready(process)

    run = make(Controlled(), left, left)
    incident = run.execute()
    assert incident.left_behind == ["python control", "python engine"]
    assert run.events("harness").count("needed SIGKILL: python worker") == 2


def test_a_control_server_runs_first_and_has_ended_by_then(make: MakeRun) -> None:
    taken = ends("OSError: [Errno 98] Address already in use")
    run = make(Controlled(), taken, ready, ready)
    incident = run.execute()
    assert [p.log.name for p in run.starter.processes] == [
        "control.log",
        "control.log",
        "engine.log",
    ]
    assert [r.phase for r in incident.evidence.requests] == [
        "control",
        "gate",
        "gate",
        "trigger",
    ]
    assert (run.journal.recorder.dir / "control-start-1.log").exists()
    assert all(p.stopped for p in run.starter.processes)
    assert "--other" not in incident.engine.command, "the run's own server"
    told = [
        (s.name, s.value)
        for s in incident.engine.settings
        if s.name != "OMP_NUM_THREADS"
    ]
    assert told == [
        ("start mode", "cold"),
        ("control server", "--other"),
        ("start-up", "repeated"),
    ]
    stages = run.events("stage")
    assert stages[2:6] == ["control", "stop", "stop", "start-up"]


def test_a_table_that_fails_leaves_a_warning(make: MakeRun) -> None:
    class Broken(Tiny):
        """Broken."""

        def key_stack(self, evidence: Evidence) -> None:
            raise IndexError("no frame")

    run = make(Broken())
    assert run.execute().outcome is Outcome.REPRODUCED
    assert run.written.failure_detail == [
        "the scenario's key_stack failed: IndexError: no frame"
    ]


def test_a_disk_that_is_full_moves_the_incident(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(Tiny())
    first, write = run.journal.folder, folder.write_file

    def at_the_end(path: Path, text: str) -> None:
        if path.parent == first and run.journal.incident.finished is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    monkeypatch.setattr(folder, "write_file", at_the_end)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    incident = run.execute()
    assert run.journal.folder.parent == tmp_path / "tmp"
    assert incident.incident_dir == str(run.journal.folder)
    assert run.written.outcome is Outcome.REPRODUCED
    assert run.written.incident_dir == incident.incident_dir


def test_no_room_anywhere_ends_the_server(
    make: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(Tiny())

    def full(*_: object) -> None:
        if run.starter.processes:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "write_file", full)
    with pytest.raises(NoSpace, match="could not be written"):
        run.execute()
    assert [p.stopped for p in run.starter.processes] == [[1.0]]


WRONG = {
    "option": {"options": ("no-such",)},
    "factor": {"flips": ("no-such",)},
    "mitigation": {"mitigations": ("no-such",)},
    "release": {"release": "newest"},
}


@pytest.mark.parametrize("more", WRONG.values(), ids=WRONG.keys())
def test_wrong_words_make_no_folder(
    make: MakeRun, tmp_path: Path, more: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        make(Tiny(), **more)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_an_incident_is_left_alone(
    make: MakeRun, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/incident.json").write_text("{}")
    with pytest.raises(UnwritableOutput):
        make(Tiny())


def test_all_evidence_is_hashed_before_it_is_judged(make: MakeRun) -> None:
    """And what is written afterwards leaves the record whole."""
    run = make(Tiny(), ready)
    run.execute()
    check = checked(run.journal.folder)
    assert check.has_record
    assert not check.changed
    text = (run.journal.folder / HASHES_FILE).read_bytes()
    lines = [json.loads(line) for line in text.splitlines()]
    requests = [
        [part for part in line["parts"] if part["part"] == "requests"] for line in lines
    ]
    assert requests[-2] == requests[-1] != []
    assert lines[-2]["files"].keys() == lines[-1]["files"].keys() != set()


def test_it_is_valid_on_disk_at_every_stage(
    make: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, saved = make(Controlled(), ready, ready), []
    save = Journal.save

    def look(journal: Journal) -> None:
        save(journal)
        saved.append((run.written.state, list(run.written.stages)[-1]))

    monkeypatch.setattr(Journal, "save", look)
    run.execute()
    assert saved == [
        ("interrupted", "model"),
        ("interrupted", "control"),
        ("interrupted", "start-up"),
        ("interrupted", "probes"),
        ("complete", "verdict"),
    ]
    assert (
        json.loads((run.journal.folder / "incident.json").read_text())["failure"] == ""
    )


def test_a_run_that_has_begun_can_be_read(tmp_path: Path) -> None:
    options = RunCommand(scenario="tiny", device="cpu", out=tmp_path / "out")
    begin(Tiny(), options, target(Tiny(), options))
    assert load(tmp_path / "out").state == "interrupted"


def test_a_run_that_cannot_begin_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Incident:
        raise KeyboardInterrupt

    monkeypatch.setattr("mmrepro.runs.runner.blank", interrupted)
    options = RunCommand(scenario="tiny", device="cpu", out=tmp_path / "out")
    resolved = target(Tiny(), options)
    with pytest.raises(KeyboardInterrupt):
        begin(Tiny(), options, resolved)
    assert not (tmp_path / "out").exists()
