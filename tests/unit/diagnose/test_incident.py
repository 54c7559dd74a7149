"""A diagnosis as an incident, and when its folder is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up import at
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.diagnosis import (
    Assessment,
    Diagnosis,
    Effect,
    Fit,
    Match,
    ServerState,
)
from mmrepro.failure.documents.folder import INCIDENT_FILE
from mmrepro.live.diagnose import session
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.incident import build
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import GpuData, GpuDevice, GpuProcess
from mmrepro.reports import load
from mmrepro.reports.incident import compose
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence
from seen import CORE, URL, evidence, frames, log, target, use
from test_match import hung

GHOST = load_scenario("ghost-key-eviction")
EVIDENCE = Path(__file__).parents[2] / "evidence"
BUDGET = load_scenario("undersized-kv-budget").variants
FROZEN = Assessment(
    state=ServerState.FROZEN_PYTHON,
    sentence="It is frozen.",
    process="EngineCore",
    thread="t",
    frames=frames("pop cache.py:5", "loop core.py:1"),
    seen=4,
    samples=5,
    holder="who",
)


def fits(*known: tuple[str, str, Fit]) -> list[Match]:
    return [
        Match(scenario=name, variant=variant, title="t", fit=fit, why="w")
        for name, variant, fit in known
    ]


def told(
    *matches: tuple[str, str, Fit], said: Assessment = FROZEN, **facts: Any
) -> Diagnosis:
    return Diagnosis(
        taken=at(0),
        target=target(**facts),
        assessment=said,
        matches=fits(*matches),
        effect=Effect(seconds=7.5),
    )


def built(
    diagnosis: Diagnosis,
    found: Evidence | None = None,
    tried: tuple[Scenario, ...] = (),
) -> Incident:
    return build(
        diagnosis, found or evidence(), Path("out"), "mmrepro diagnose x", tried
    )


def test_what_is_no_known_failure_is_told_in_general() -> None:
    one = built(told(command=["vllm", "serve"]), tried=(GHOST,))
    assert (one.scenario.name, one.scenario.summary) == ("diagnose", "It is frozen.")
    assert one.scenario.title.startswith("A live server: ")
    assert (one.engine.name, one.engine.release) == ("vllm", "0.23.0")
    assert one.engine.command == ["vllm", "serve"]
    assert (one.created, one.state, one.fidelity) == (at(0), "complete", "live")
    assert (one.incident_dir, one.command) == ("out", "mmrepro diagnose x")
    assert (one.references, one.mitigations) == ([], [])
    assert one.stages == {"diagnosis": 7.5}
    assert len(one.id) == 12
    assert built(told(engine="")).engine.name == "unknown engine"
    possible = built(told((GHOST.name, "", Fit.SYMPTOM_ONLY)), tried=(GHOST,))
    assert possible.scenario.name == "diagnose"


def test_the_best_of_those_found_is_the_incidents() -> None:
    both = (BUDGET[0].name, "image", Fit.MATCH), (GHOST.name, "", Fit.LIKELY)
    one = built(told(*both), tried=(GHOST, *BUDGET))
    assert (one.scenario.name, one.scenario.variant) == (
        "undersized-kv-budget",
        "image",
    )
    one = built(told(*both[::-1]), tried=(*BUDGET, GHOST))
    assert one.scenario == GHOST.facts
    assert one.references == list(GHOST.references)
    assert [(m.name, m.applied) for m in one.mitigations] == [
        (m.name, False) for m in GHOST.mitigations
    ]
    assert (
        one.mitigations[0].command
        == "mmrepro run ghost-key-eviction --mitigation release"
    )
    untried = built(told(*both), tried=(GHOST,))
    assert untried.scenario.name == "diagnose"


@pytest.mark.parametrize(
    ("state", "active", "gil"),
    [
        (ServerState.FROZEN_PYTHON, True, True),
        (ServerState.FROZEN_NATIVE, True, False),
        (ServerState.BLOCKED_ON_LOCK, False, False),
    ],
)
def test_the_general_stack(state: ServerState, active: bool, gil: bool) -> None:
    stack = built(told(said=FROZEN.model_copy(update={"state": state}))).key_stack
    assert stack is not None
    assert (stack.active, stack.owns_gil) == (active, gil)
    assert (stack.process, stack.thread, stack.note) == ("EngineCore", "t", "who")
    assert (stack.seen, stack.samples) == (4, 5)
    assert [(f.function, f.line) for f in stack.frames] == [("pop", 5), ("loop", 1)]


def test_the_scenarios_own_stack_goes_before_the_general_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diagnosis = told((GHOST.name, "", Fit.MATCH))
    own = built(diagnosis, hung(), (GHOST,)).key_stack
    assert own is not None
    assert own.frames[0].function != "pop"
    for none in (lambda _: None, lambda _: 1 // 0):
        monkeypatch.setattr(
            type(GHOST), "key_stack", lambda self, seen, none=none: none(seen)
        )
        general = built(diagnosis, hung(), (GHOST,)).key_stack
        assert general is not None
        assert general.frames[0].function == "pop"
    silent = FROZEN.model_copy(update={"frames": []})
    assert built(told(said=silent)).key_stack is None


def test_the_logs_lines_and_the_gpus() -> None:
    found = evidence(log("a", "b", "c", "d", progress="stepped"))
    found.probes[0].status = ProbeStatus.TIMED_OUT
    lines = built(told(), found).log_lines
    assert [(n.number, n.note) for n in lines] == [
        *((n, "first errors") for n in (1, 2, 3)),
        (9, "last progress of the engine"),
    ]
    assert len(built(told(), evidence(log("a"))).log_lines) == 1
    known = built(told((GHOST.name, "", Fit.MATCH)), evidence(log("a")), (GHOST,))
    assert known.log_lines == []
    device = GpuDevice(
        index=0,
        name="H100",
        uuid="u",
        driver="1",
        memory_total_bytes=1,
        memory_used_bytes=1,
        utilization_pct=[],
    )
    host = built(told(), evidence(GpuData(devices=[device]))).host
    assert (host.gpus, [g.taken for g in host.gpu_facts]) == (["H100"], [False])
    held = device.model_copy(update={"processes": [GpuProcess(pid=CORE, used_bytes=1)]})
    own = built(told(), evidence(GpuData(devices=[device, held]), use(1.0))).host
    assert [gpu.taken for gpu in own.gpu_facts] == [False, True]


# ---------------------------------------------------------------- what is kept


HEALTHY = Assessment(state=ServerState.HEALTHY, sentence="It works.")
UNKNOWN = Assessment(state=ServerState.UNKNOWN, sentence="Nobody knows.")


@pytest.mark.parametrize(
    ("said", "out", "kept"),
    [
        (HEALTHY, False, False),
        (HEALTHY, True, True),
        (FROZEN, False, True),
        (FROZEN, True, True),
        (UNKNOWN, False, True),
    ],
)
def test_what_is_healthy_is_kept_only_where_it_was_asked_for(
    said: Assessment,
    out: bool,
    kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    named: list[str] = []
    monkeypatch.setattr(session.discover, "find", lambda *args: ServerTarget(target()))
    monkeypatch.setattr(
        session.discover, "name_engine", lambda *args: named.append(args[2])
    )
    monkeypatch.setattr(session, "all_scenarios", lambda names, trust: [])
    secrets = said.model_copy(
        update={"why": ["abcdefg", "sent hijklmn"], "advice": ["middle"]}
    )
    monkeypatch.setattr(session, "_look", lambda *args: told(said=secrets))
    headers = {"X-Own": "Own middle abcdefg", "X-Other": "hijklmn", "X-None": ""}
    folder = tmp_path / "o" if out else None
    done = diagnose(
        DiagnoseCommand(url=URL, out=folder, headers=headers, engine="vllm")
    )
    assert named == ["vllm"]
    assert (done.folder is not None) is kept
    assert len(list(tmp_path.rglob(INCIDENT_FILE))) == kept
    assert bool(list(tmp_path.iterdir())) is kept
    assert done.diagnosis.incident_dir == (str(done.folder) if kept else "")
    assert all("[redacted:header-" in text for text in done.diagnosis.assessment.why)
    assert done.diagnosis.assessment.advice == ["middle"]


def test_the_page_of_a_diagnosis_begins_with_the_pictures_of_its_stacks() -> None:
    recorded = EVIDENCE / "ghost-key-eviction-0.23.0.zip"
    diagnosed = load(recorded).model_copy(update={"diagnosis": told()})
    assert compose(diagnosed).shown[0].title == "Stacks over time"
