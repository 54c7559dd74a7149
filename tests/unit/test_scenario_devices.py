"""A fault of one backend: on the other device nobody expects it, and nothing is said of
it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.base.records import ClaimStatus, Fidelity
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import field_of
from mmrepro.campaign.matrix.plan import planned
from mmrepro.failure.documents.diagnosis import Fit, TargetFacts, TargetProcess
from mmrepro.failure.documents.ledger import Cell
from mmrepro.failure.documents.searches import Point
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.live.diagnose.dumps import _result
from mmrepro.live.diagnose.match import match
from mmrepro.live.diagnose.session import _live
from mmrepro.probes.data import GpuData, GpuDevice, GpuProcess
from mmrepro.reports import load
from mmrepro.reports.incident import compose
from mmrepro.runs.judge import effect, facts_of, judge
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.search.upgrade import catalogue as upgrade
from mmrepro.tools.catalogue import standing
from mmrepro.tools.catalogue.recorded import RecordedRun
from mmrepro.traffic.case.model import Case, ServerWanted
from mmrepro.traffic.evidence import Evidence

EVIDENCE = Path(__file__).parents[1] / "evidence"
NONE: frozenset[str] = frozenset()
WELL, ILL = Outcome.NOT_REPRODUCED, Outcome.REPRODUCED
EVERY = [
    v
    for name in scenario_names()
    for s in [load_scenario(name)]
    for v in s.variants or (s,)
]
OF_A_CPU = [one for one in EVERY if one.devices == ("cpu",)]
CHUNK = load_scenario("seeded-chunk")


def test_there_are_some_and_most_have_every_device() -> None:
    assert CHUNK in OF_A_CPU
    assert 2 * len(OF_A_CPU) < len(EVERY)


@pytest.mark.parametrize("scenario", OF_A_CPU, ids=lambda one: one.full_name)
def test_it_is_expected_on_its_own_device_alone(scenario: Scenario) -> None:
    release = scenario.release
    for device, outcome in (("cpu", ILL), ("cuda", WELL), ("", ILL)):
        assert scenario.expected_on(device, release, NONE)[0] is outcome
        assert scenario.affects(release, device) is (outcome is ILL)
        truth = scenario.exposure(
            LiveFacts(scenario.engine, release, device=device)
        ).truth
        assert truth is (Truth.MET if outcome is ILL else Truth.NOT_MET)
    told = scenario.expected_on("cuda", release, NONE)[1]
    assert told == "it happens on a CPU alone, and this is on a GPU"


@pytest.mark.parametrize("scenario", OF_A_CPU, ids=lambda one: one.full_name)
def test_a_look_at_a_server_on_a_gpu_does_not_match_it(scenario: Scenario) -> None:
    facts = LiveFacts(scenario.engine, scenario.release, ("serve",), 15.0)
    assert match(scenario, Evidence(), facts).fit is Fit.EXPOSED
    assert (
        match(scenario, Evidence(), replace(facts, device="cuda")).fit is Fit.NOT_THIS
    )


@pytest.mark.parametrize("fidelity", Fidelity)
def test_a_run_s_device_follows_from_its_fidelity(fidelity: Fidelity) -> None:
    told = {"gpu": "cuda", "cpu": "cpu", "source": "cpu", "emulated": "cpu"}
    assert fidelity.device == told.get(fidelity.value.partition("-")[0], "")


def test_a_run_on_a_gpu_refutes_nothing_and_is_as_expected() -> None:
    incident = load(EVIDENCE / "seeded-chunk-0.23.0-on-a-gpu.zip")
    facts = facts_of(incident, CHUNK)
    verdict = judge(CHUNK, incident.evidence, facts)
    assert (verdict.outcome, verdict.as_expected) == (WELL, True)
    for claim in CHUNK.claim_results(incident.evidence, facts):
        assert (claim.status, claim.observed) == (
            ClaimStatus.NOT_TESTED,
            "it happens on a CPU alone, and this is on a GPU",
        )
    cured = effect(
        CHUNK, incident.evidence, replace(facts, mitigations=frozenset({"x"})), verdict
    )
    assert cured.prevented is None
    on_a_cpu = replace(facts, fidelity=Fidelity.CPU)
    assert not judge(CHUNK, incident.evidence, on_a_cpu).as_expected
    refuted = {c.status for c in CHUNK.claim_results(incident.evidence, on_a_cpu)}
    assert refuted == {ClaimStatus.REFUTED}
    incident.scenario = CHUNK.facts
    assert "Affected releases: >=0.14.0, on a CPU alone" in str(compose(incident))


def test_a_run_with_another_model_runner_refutes_nothing() -> None:
    incident = load(EVIDENCE / "seeded-chunk-0.23.0-on-a-gpu.zip")
    incident.engine.runner = "Model Runner V2"
    on_v2 = replace(facts_of(incident, CHUNK), fidelity=Fidelity.CPU)
    assert judge(CHUNK, incident.evidence, on_v2).as_expected
    on_v1 = replace(on_v2, runner="Model Runner V1, Rust front end")
    assert not judge(CHUNK, incident.evidence, on_v1).as_expected
    statuses = {c.status for c in CHUNK.claim_results(incident.evidence, on_v2)}
    assert statuses == {ClaimStatus.NOT_TESTED}


def run(fidelity: Fidelity, outcome: Outcome, *mitigations: str) -> RecordedRun:
    return RecordedRun(
        scenario=CHUNK.name,
        engine="vllm",
        release="0.33.0",
        at=datetime(2026, 11, 1, tzinfo=UTC),
        outcome=outcome,
        fidelity=fidelity,
        mitigations=list(mitigations),
    )


def test_the_catalogue_goes_by_runs_on_its_own_device() -> None:
    there = [run(Fidelity.GPU, WELL), run(Fidelity.GPU, WELL, "larger-budget")]
    ((one,), _) = standing.known(there, [CHUNK.name])
    assert standing.releases(one) == ">=0.14.0, on a CPU alone<br>not on a GPU: 0.33.0"
    newest = standing.Newest(engine="vllm", release="0.33.0", says="index")
    (row,) = standing.standings([one], [newest])
    assert (row.alive, row.outcome, row.where) == (None, standing.NOT_RUN, "on a CPU")
    assert [cured.helped for cured in one.cures()] == [()]
    ((one,), _) = standing.known([*there, run(Fidelity.CPU, ILL)], [CHUNK.name])
    assert "reproduced: 0.33.0; not on a GPU: 0.33.0" in standing.releases(one)
    (row,) = standing.standings([one], [newest])
    assert (row.alive, row.runs) == (True, 1)


def test_a_cell_on_a_gpu_expects_nothing_of_it() -> None:
    def cell(device: str) -> Cell:
        return Cell(scenario=CHUNK.name, engine="vllm", release="0.32.0", device=device)

    there, here = (planned("n", CHUNK, cell(device)) for device in ("cuda", "cpu"))
    assert (there.expected, there.affected) == (WELL, "")
    assert (here.expected, here.affected) == (ILL, ">=0.14.0")


def test_a_bisection_on_a_gpu_has_nothing_to_find() -> None:
    points = [Point(name="0.32.0", release="0.32.0")]
    asked = BisectCommand(scenario=CHUNK.name)
    on_a_gpu = replace(asked, device="cuda")
    with pytest.raises(UsageError, match="happens on a CPU alone"):
        field_of(CHUNK, on_a_gpu, points)
    assert field_of(CHUNK, replace(asked, device="cpu"), points).bad == 0
    assert field_of(CHUNK, replace(on_a_gpu, bad="0.32.0"), points).bad == 0


def test_the_device_of_a_live_server_is_found() -> None:
    def found(*command: str, build: str = "", holder: int = 9) -> str:
        facts = TargetFacts(
            url="http://localhost:1",
            place="local",
            processes=[TargetProcess(pid=5, ppid=1, role="", name="", state="S")],
            command=list(command),
            release_from=build,
        )
        gpu = GpuDevice(
            index=0,
            name="x",
            uuid="",
            driver="",
            memory_total_bytes=0,
            memory_used_bytes=0,
            utilization_pct=[],
            processes=[GpuProcess(pid=holder, name="", used_bytes=1)],
        )
        evidence = Evidence()
        evidence.probes.append(_result("gpu", GpuData(devices=[gpu])))
        return _live(facts, evidence).device

    assert found() == ""
    assert found("serve", holder=5) == "cuda"
    assert found("serve", "--device", "cpu") == "cpu"
    assert found("serve", "--device=cuda:1") == "cuda"
    assert found("serve", "--device=auto") == ""
    assert found(build="vllm-0.23.0+cpu.dist-info beside its interpreter") == "cpu"


def test_an_upgrade_on_a_gpu_does_not_count_it() -> None:
    old, new = (ServerWanted(engine="vllm", release=r) for r in ("0.32.0", "0.33.0"))
    case = Case(title="t", server=old, operations=[])

    def names(device: str) -> str:
        return str([one.model_dump() for one in upgrade.compare(case, new, device)])

    assert "lora-no-adapter" in names("cpu")
    assert "lora-no-adapter" not in names("cuda")
