"""One diagnosis by its steps: what could not be seen, since when, what is kept, its
command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up import GHOST, at, drop, logs, metrics
from mmrepro.base.errors import NoSpace, UnwritableOutput, UsageError
from mmrepro.engines import ENGINES
from mmrepro.failure.documents.diagnosis import Effect, ServerState
from mmrepro.failure.documents.folder import make_folders
from mmrepro.live.diagnose import session
from mmrepro.live.diagnose.collect import Collector
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.fleet import session as fleet_session
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.data import AnyProbeData, LogLine, LogsData, ProbeResult
from mmrepro.probes.logs import LogsProbe
from mmrepro.probes.stacks import HOW_TO_ALLOW
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence
from mmrepro.traffic.evidence.recorder import Recorder
from seen import GREEN, SILENCE, evidence, idle, log, target
from test_match import hung

URL = "http://127.0.0.1:8000"
VLLM = ENGINES["vllm"]


def missing(probe: str, reason: str) -> Any:
    return ProbeResult[AnyProbeData](
        probe=probe,
        phase="check",
        status=ProbeStatus.UNAVAILABLE,
        reason=reason,
        started=at(0),
        seconds=0.1,
    )


# --------------------------------------------------------------- what could not be seen


def unseen(found: Evidence, **facts: Any) -> list[str]:
    return session._unseen(ServerTarget(target(**facts), unseen=["first"]), found)


def test_what_could_not_be_seen_is_said_once() -> None:
    assert unseen(evidence(GREEN, idle(), metrics(), log())) == ["first"]
    found = Evidence(
        probes=[
            missing("logs", "gone"),
            missing("metrics", "closed"),
            missing("metrics", "closed"),
            missing("http", "http is not told"),
        ]
    )
    assert unseen(found) == ["first", "the log: gone", "the metrics: closed"]


def test_processes_of_another_machine_cannot_be_seen() -> None:
    told = "its processes: stacks, CPU and log need mmrepro on its machine"
    assert unseen(evidence(), place="remote", root_pid=None) == ["first", told]
    assert unseen(evidence(), place="remote") == ["first"]
    assert unseen(evidence(), root_pid=None) == ["first"]


def test_a_core_without_a_title_is_said_to_be_unknown() -> None:
    (_, told) = unseen(evidence(), states="S")
    assert told.startswith("which process is EngineCore: none is called so")
    assert unseen(evidence(), states="S", core_role="") == ["first"]
    assert unseen(evidence(), processes=[]) == ["first"]


def test_why_there_are_no_stacks() -> None:
    refused = Evidence(probes=[missing("stacks", "py-spy was refused: ptrace")])
    assert unseen(refused) == ["first", f"Python stacks: {HOW_TO_ALLOW}"]
    other = Evidence(probes=[missing("stacks", "no py-spy here")])
    assert unseen(other) == ["first", "Python stacks: no py-spy here"]


def test_what_was_skipped_of_a_log_is_said() -> None:
    data = log()
    data.skipped_bytes = 5 << 20
    told = "the first 5 MiB of engine.log: only its end was read"
    assert unseen(evidence(data)) == ["first", told]


# ---------------------------------------------------------------- since when


def line(number: int, time: str) -> LogLine:
    return LogLine(number=number, time=time, text="t")


def test_since_when_is_the_logs_last_progress_or_its_first_error() -> None:
    data = log("boom", progress="EngineCore loop active")
    frozen = ServerState.FROZEN
    told = "11-21 03:37:42: last activity in the log, line 9"
    assert session._since(evidence(data), frozen) == told
    data.stuck_count = 3
    assert session._since(evidence(data), frozen) == f"{told}; 3 requests since"
    assert session._since(evidence(data), ServerState.HEALTHY) == ""
    untimed = log("boom", "bang")
    assert session._since(evidence(untimed), frozen) == ""
    untimed.errors = [line(4, "11-21 01:00:00"), line(5, "11-21 02:00:00")]
    told = "11-21 01:00:00: first error in the log, line 4"
    assert session._since(evidence(untimed), frozen) == told
    untimed.last_progress = line(9, "")
    assert session._since(evidence(untimed), frozen) == told
    late = log()
    late.errors = [line(4, ""), line(5, "11-21 02:00:00")]
    assert session._since(evidence(late), frozen) == ""
    assert session._since(evidence(), frozen) == ""


# ---------------------------------------------------------------- what is kept


def test_lines_that_are_cited_are_kept_and_no_other(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    data = logs(GHOST)
    data.errors = [line(2, "11-21 01:00:00")]
    data.last_progress = LogLine(
        number=1,
        process="EngineCore pid=1",
        level="DEBUG",
        time="T",
        source="s.py:1",
        text="works",
    )
    found = evidence(data)
    found.probes[0].status = ProbeStatus.TIMED_OUT
    session._keep_log_lines(recorder, found)
    (kept,) = recorder.dir.rglob("engine.log")
    text = kept.read_text().splitlines()
    assert text[0] == "# lines of engine.log"
    assert text[1] == "1: (EngineCore pid=1) DEBUG T [s.py:1] works"
    assert [words.partition(":")[0] for words in text[1:]] == ["1", "2", "400", "590"]


def test_metric_names_are_those_that_were_read() -> None:
    assert "vllm:num_requests_running" in session._metric_names(
        evidence(metrics(), GREEN)
    )
    assert session._metric_names(evidence(GREEN)) == frozenset()


@pytest.mark.parametrize("error", [UnwritableOutput("no"), NoSpace("full")])
def test_where_nothing_can_be_written_a_temporary_folder_serves(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Path | None, str, str]] = []

    def make(out: Path | None, name: str, mark: str) -> Path:
        asked.append((out, name, mark))
        raise error

    monkeypatch.setattr(session, "make_run_dir", make)
    monkeypatch.setattr(session.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    assert session._folder(None) == tmp_path
    assert (tmp_path / "evidence").is_dir()
    assert asked == [(None, "diagnose", str(session.os.getpid()))]
    with pytest.raises(type(error)):
        session._folder(tmp_path)
    assert asked[1] == (tmp_path, "diagnose", "")


def test_a_folder_that_is_not_kept_goes_with_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "incidents" / "diagnose-1"
    make_folders(folder / "evidence")
    (folder / "evidence" / "x.json").write_text("{}")
    session._remove(folder)
    assert list(tmp_path.iterdir()) == []
    make_folders(folder / "evidence")
    (tmp_path / "incidents" / "other").mkdir()
    session._remove(folder)
    assert [p.name for p in (tmp_path / "incidents").iterdir()] == ["other"]


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "out", ["look", "look/deep/er", "there", "there/evidence", "."]
)
@pytest.mark.parametrize("several", [False, True])
def test_only_what_a_look_has_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, several: bool
) -> None:
    """The user's folders stay, empty ones too: a look that broke off is no reason to
    take them."""

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "empty" / "there" / "evidence").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(session, "_look", broken)
    monkeypatch.setattr(fleet_session, "_each", broken)
    before = everything_below(tmp_path)
    more = ("http://127.0.0.1:2",) if several else ()
    asked = DiagnoseCommand("http://127.0.0.1:1", more=more, out=Path(out))
    with pytest.raises(KeyboardInterrupt):
        fleet_session.look(asked) if several else session.diagnose(asked)
    assert everything_below(tmp_path) == before


def test_a_file_of_the_users_beside_the_evidence_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "mine.txt").write_text("mine")
    monkeypatch.setattr(session, "_look", broken)
    with pytest.raises(KeyboardInterrupt):
        session.diagnose(DiagnoseCommand("http://127.0.0.1:1", out=tmp_path))
    assert everything_below(tmp_path) == ["evidence", "evidence/mine.txt"]


@pytest.mark.parametrize("log", ["/", "a" * 5000, "a/" * 5000, "nul\0", "itself"])
def test_a_log_that_can_be_none_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    with pytest.raises(UsageError, match=r"^--log .* is no log file: ") as refused:
        DiagnoseCommand("http://127.0.0.1:1", logs=(Path(log),))
    assert len(refused.value.message) < 250


def test_a_log_that_is_not_there_yet_is_taken(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    for name in ("later.log", "dumps"):
        assert DiagnoseCommand("http://127.0.0.1:1", logs=(tmp_path / name,)).logs


# -------------------------------------------------------------- locals that were missed


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []
    monkeypatch.setattr(
        Collector, "more_stacks", lambda self, wanted: asked.append(wanted)
    )
    return asked


def collector(tmp_path: Path, found: Evidence) -> Collector:
    recorder = Recorder(tmp_path)
    recorder.evidence.probes.extend(found.probes)
    return Collector(
        ServerTarget(target(), ENGINES["vllm"]), DiagnoseCommand(), recorder
    )


@pytest.mark.parametrize("seen", ["no locals", "never in popitem"])
def test_more_samples_are_taken_for_what_fits_but_for_what_was_missed(
    tmp_path: Path, more: list[Any], seen: str
) -> None:
    ghost = load_scenario("ghost-key-eviction")
    assert ghost.looks_for_locals
    missed = hung()
    for data in (d for _, d in missed.results(type(idle()))):
        for sample in data.samples:
            for one in sample.threads:
                for frame in one.frames:
                    frame.locals.clear()
                if seen == "never in popitem":
                    one.frames = [f for f in one.frames if f.name != "popitem"]
    session._catch_locals(collector(tmp_path, missed), [ghost])
    (wanted,) = more
    assert (
        wanted([s for _, d in hung().results(type(idle())) for s in d.samples]) is True
    )
    assert wanted([]) is False


def test_no_more_samples_for_what_is_sure_or_is_not_there(
    tmp_path: Path, more: list[Any]
) -> None:
    ghost = load_scenario("ghost-key-eviction")
    session._catch_locals(collector(tmp_path, hung()), [ghost])
    session._catch_locals(collector(tmp_path, evidence(GREEN)), [ghost])
    likely = hung()
    drop(likely, "inference")
    session._catch_locals(
        collector(tmp_path, likely), [load_scenario("encoder-cache-overflow")]
    )
    assert more == []
    session._catch_locals(collector(tmp_path, likely), [ghost])
    assert len(more) == 1


# ---------------------------------------------------------------- the order of a look


class Looked:
    """In the place of the collector: what it was asked, and evidence that is there
    already."""

    log_patterns: Any = None

    def __init__(self, recorder: Recorder) -> None:
        self.evidence = recorder.evidence
        self.calls: list[str] = []
        self.plain: bool | None = None

    def ask_front(self) -> None:
        self.calls.append("front")

    def ask_release(self) -> None:
        self.calls.append("release")

    def look(self, suspicious: Any, *, plain: bool) -> None:
        self.calls.append("look")
        self.plain, self.suspicious = plain, suspicious(self.evidence)

    def note_log_sizes(self) -> None:
        pass

    def log_growth(self) -> float | None:
        return None

    def effect(self) -> Effect:
        return Effect()

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def run(
        *data: AnyProbeData, engine: str = "vllm", **facts: Any
    ) -> tuple[Looked, Any]:
        recorder = Recorder(tmp_path)
        recorder.evidence.probes.extend(evidence(*data).probes)
        made = Looked(recorder)
        found = ServerTarget(target(engine=engine, **facts), ENGINES.get(engine))
        for name in ("find_logs", "name_engine", "name_engine_by_log", "find_release"):
            monkeypatch.setattr(
                session.discover, name, lambda *_, name=name: made.calls.append(name)
            )
        monkeypatch.setattr(session, "Collector", lambda *_: made)
        monkeypatch.setattr(
            session, "note_kernel", lambda *_: made.calls.append("kernel")
        )
        scenarios = [
            load_scenario("ghost-key-eviction"),
            load_scenario("kv-growth-crash"),
        ]
        told = session._look(
            DiagnoseCommand(url=URL), found, recorder, at(0), scenarios
        )
        return made, told

    return run


def test_a_look_goes_from_the_processes_to_the_judgement(looked: Any) -> None:
    made, told = looked(GREEN)
    steps = [
        "find_logs",
        "front",
        "find_release",
        "kernel",
        "release",
        "look",
        "kernel",
        "close",
    ]
    assert made.calls == steps
    assert (made.plain, made.suspicious) == (False, False)
    assert set(made.log_patterns) == set(
        load_scenario("ghost-key-eviction").log_patterns.values()
    )
    assert told.taken == at(0)
    assert {m.scenario for m in told.matches} == {
        "ghost-key-eviction",
        "kv-growth-crash",
    }


def test_one_that_is_stopped_is_not_asked(looked: Any) -> None:
    for states in ("TS", "St"):
        made, told = looked(states=states)
        assert "front" not in made.calls
        assert "release" not in made.calls
        assert (made.plain, told.state) == (True, ServerState.STOPPED)
    made, told = looked(GREEN, states="SZ")
    assert ("front" in made.calls, "release" in made.calls) == (True, False)
    assert told.state is ServerState.PART_DEAD


def test_an_engine_is_named_by_processes_then_by_log_then_by_metrics(
    looked: Any,
) -> None:
    made, _ = looked(GREEN, SILENCE, engine="")
    steps = ["find_logs", "name_engine", "front", "name_engine_by_log", "name_engine"]
    assert made.calls[:5] == steps
    assert len(made.log_patterns) > len(
        load_scenario("ghost-key-eviction").log_patterns
    )
    made, _ = looked(engine="", root_pid=None, processes=[])
    assert made.calls[:4] == ["find_logs", "front", "name_engine_by_log", "name_engine"]


def test_an_exposed_server_that_is_frozen_gets_more_samples(
    looked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[int] = []
    monkeypatch.setattr(
        session, "_catch_locals", lambda _, mine: caught.append(len(mine))
    )
    worth = {
        ServerState.FROZEN_PYTHON,
        ServerState.FROZEN_NATIVE,
        ServerState.BLOCKED_ON_LOCK,
    }
    assert worth == session.WORTH_MORE
    _, told = looked(*[p.data for p in hung().probes])
    assert (told.state, caught) == (ServerState.FROZEN_PYTHON, [1])
    looked(GREEN)
    assert caught == [1]


def test_without_debug_lines_the_throughput_tells_since_when(tmp_path: Path) -> None:
    """vLLM's log at INFO: the last line that is not 0.0, of the ten seconds before
    it."""
    said = (
        "INFO 06-29 00:{}:42 [loggers.py:271] Engine 000: Avg prompt "
        "throughput: 0.0 tokens/s, "
    )
    said += "Avg generation throughput: {} tokens/s, Running: 0 reqs, Waiting: 0 reqs"
    path = tmp_path / "vllm.log"
    rates = ("12.5", "10.0", "0.0", "0.0")
    path.write_text(
        "".join(said.format(30 + n, rate) + "\n" for n, rate in enumerate(rates))
    )
    probe = LogsProbe(path, VLLM.log_patterns, VLLM.progress_pattern)
    read = run_probe(probe, tmp_path / "raw", 10).data
    assert isinstance(read, LogsData)
    assert read.last_progress is None
    told = "06-29 00:31:42: last activity in the log, line 2"
    assert session._since(evidence(read), ServerState.FROZEN) == told
    path.write_text(said.format(30, "0.0") + "\n")
    idle = run_probe(LogsProbe(path, VLLM.log_patterns), tmp_path / "raw", 10).data
    assert isinstance(idle, LogsData)
    assert session._since(evidence(idle), ServerState.FROZEN) == ""


def test_since_when_is_read_from_a_part_of_the_log_as_well() -> None:
    data = log()
    data.errors = [line(4, "11-21 01:00:00")]
    found = evidence(data)
    found.probes[0].status = ProbeStatus.TIMED_OUT
    assert "first error in the log, line 4" in session._since(found, ServerState.FROZEN)
    data.errors, data.last_progress = [], line(9, "11-21 02:00:00")
    assert "line 9" in session._since(found, ServerState.FROZEN)
