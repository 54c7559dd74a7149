"""Issue 14, item 12: a planted fault says nothing of another engine, and a stand-in is
no GPU."""

import re
from pathlib import Path

import pytest
from made_up import run_facts
from mmrepro.base.records import ClaimStatus, Fidelity
from mmrepro.engines import get_engine
from mmrepro.engines.base import Patch, lowered
from mmrepro.engines.lmdeploy import CPU, WITNESS, device_memory
from mmrepro.engines.vllm import EMULATED_STREAM
from mmrepro.failure.documents import ClaimResult, Incident
from mmrepro.failure.signature import Finding, Outcome, Truth
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.reports import load
from mmrepro.runs.judge import effect, facts_of, judge
from mmrepro.scenario import Scenario, claim
from mmrepro.scenario.parts import PROJECTS
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence

pytestmark = pytest.mark.usefixtures("by_conditions")

CORPUS = Path(__file__).resolve().parents[1] / "evidence"
FAMILIES = ("borrowed-faults", "mm-prefill-contract")
RECORDED = sorted(p.stem for name in FAMILIES for p in CORPUS.glob(f"{name}-*.zip"))
FIXED = [name for name in RECORDED if name.endswith("-fix")]
FLIPPED = "mm-prefill-contract-slot-mapping-flip-last-block"
"""A factor's flip, and the same `--fix`."""
TEACHING, CPU_ONLY = Fidelity.TEACHING_ENGINE, Fidelity.CPU
ELSEWHERE = re.compile(rf"(?i)\b({'|'.join(PROJECTS.keys() - {'minivllm'})}|note)\b")


def recorded(name: str) -> tuple[Incident, Scenario]:
    incident = load(CORPUS / f"{name}.zip")
    return incident, load_scenario(incident.scenario.name).with_variant(
        incident.scenario.variant
    )


def claims(incident: Incident, scenario: Scenario) -> dict[str, ClaimResult]:
    facts = facts_of(incident, scenario)
    return {c.id: c for c in scenario.claim_results(incident.evidence, facts)}


# ------------------------------------------------------------------ claims


@pytest.mark.parametrize("name", RECORDED)
def test_a_planted_fault_confirms_nothing_of_another_engine(name: str) -> None:
    """On the code before, ghost-key-lru printed "the reason of vllm#43941:
    confirmed"."""
    told = claims(*recorded(name))
    assert told["original"].status is ClaimStatus.NOT_TESTED
    assert "teaching engine" in told["original"].observed
    for one in told.values():
        if one.id == "pin-memory":  # of torch alone: its words, whoever calls it
            assert one.text.startswith("on a GPU torch ")
            assert (one.status is ClaimStatus.CONFIRMED) == name.endswith("on-a-gpu")
        elif one.status is not ClaimStatus.NOT_TESTED:
            assert one.source == "minivllm"
            assert "minivllm" in one.text
            assert not ELSEWHERE.search(one.text)


@pytest.mark.parametrize("name", RECORDED)
def test_what_minivllm_s_own_fault_does_is_said_of_it(name: str) -> None:
    incident, scenario = recorded(name)
    told, facts = claims(incident, scenario), facts_of(incident, scenario)
    outcome = judge(scenario, incident.evidence, facts).outcome
    cause, fixed = told["root-cause"].status, told["fixed"].status
    confirmed = ClaimStatus.CONFIRMED
    assert (cause is confirmed) == (outcome is Outcome.REPRODUCED)
    assert (fixed is confirmed) == (
        outcome is Outcome.NOT_REPRODUCED and name in (*FIXED, FLIPPED)
    )


class Elsewhere(type(load_scenario("borrowed-faults").variants[0])):  # type: ignore[misc]
    """Says of vLLM what only minivllm did."""

    claims = (
        claim("vllm", "vLLM hangs for it", "vllm#43941", by="endpoints-green"),
        claim("own", "minivllm does", "minivllm#1", by="endpoints-green"),
        claim("note", "the note says so", "milestone note", by="endpoints-green"),
        claim("report", "as the first reference has it", by="endpoints-green"),
    )


def test_a_claim_about_another_engine_is_not_tested_whatever_it_is_judged_by() -> None:
    incident = load(CORPUS / "borrowed-faults-ghost-key-lru-0.1.zip")
    scenario = Elsewhere()
    told = claims(incident, scenario)
    assert told["vllm"].status is told["report"].status is ClaimStatus.NOT_TESTED
    assert told["vllm"].observed == "a run of a teaching engine tells nothing of vllm"
    assert told["own"].status is told["note"].status is ClaimStatus.CONFIRMED


# ----------------------------------------------------------- a fix that takes no effect


def log_of(incident: Incident) -> LogsData:
    return [data for _, data in incident.evidence.results(LogsData, "check")][-1]


def said(log: LogsData, *faults: str) -> None:
    log.matches["fault-on"] = [
        LogLine(number=1, text=f"fault {f} is on: words") for f in faults
    ]
    log.match_counts["fault-on"] = len(faults)


@pytest.mark.parametrize("name", FIXED)
def test_a_fix_that_the_engine_does_not_confirm_has_fixed_nothing(name: str) -> None:
    """The option was given, and the engine says that the fault is on."""
    incident, scenario = recorded(name)
    facts, log = facts_of(incident, scenario), log_of(incident)

    def prevented() -> bool | None:
        verdict = judge(scenario, incident.evidence, facts)
        return effect(scenario, incident.evidence, facts, verdict).prevented

    assert prevented() is True
    assert claims(incident, scenario)["fixed"].status is ClaimStatus.CONFIRMED
    variants = (v.variant for v in load_scenario(scenario.name).variants)
    other = next(name for name in variants if name != scenario.variant)
    said(log, other, f"{scenario.variant}-more", f"x{scenario.variant}")
    assert prevented() is True
    said(log, other, scenario.variant)
    assert prevented() is None
    assert claims(incident, scenario)["fixed"].status is ClaimStatus.NOT_TESTED
    del log.matches["fault-on"], log.match_counts["fault-on"]
    assert prevented() is None
    assert claims(incident, scenario)["fixed"].status is ClaimStatus.NOT_TESTED


def test_the_cause_of_a_run_without_a_fix_is_its_own() -> None:
    """``cause_remains`` asks for the switch only where a fix is said to have turned
    it."""
    incident, scenario = recorded("borrowed-faults-reused-mask-fix")
    said(log_of(incident), scenario.variant)
    plain = run_facts(scenario)
    assert scenario.cause_remains(incident.evidence, plain).truth is Truth.NOT_MET
    fixed = run_facts(scenario, "", "fix")
    assert scenario.cause_remains(incident.evidence, fixed).truth is Truth.UNKNOWN
    incident, scenario = recorded("borrowed-faults-reused-mask-0.1")
    assert scenario.cause_remains(incident.evidence, fixed).truth is Truth.MET


@pytest.mark.parametrize("name", [n for n in RECORDED if n.endswith("-0.1")])
def test_a_cause_without_its_switch_is_not_the_fault_s(name: str) -> None:
    incident, scenario = recorded(name)
    assert claims(incident, scenario)["root-cause"].status is ClaimStatus.CONFIRMED
    said(log_of(incident))
    assert claims(incident, scenario)["root-cause"].status is ClaimStatus.NOT_TESTED
    incident.evidence.requests = incident.evidence.requests_in("gate", "control")
    said(log_of(incident), scenario.variant)
    assert claims(incident, scenario)["root-cause"].status is ClaimStatus.NOT_TESTED


def test_a_run_without_a_trigger_is_neither_with_nor_without_the_fault() -> None:
    scenario = load_scenario("borrowed-faults").variants[0]
    facts = run_facts(scenario, "", "fix")
    told = {c.id: c.status for c in scenario.claim_results(Evidence(), facts)}
    assert set(told.values()) == {ClaimStatus.NOT_TESTED}


# ------------------------------------------------------------------ fidelity


@pytest.mark.parametrize("name", RECORDED)
def test_older_recordings_are_judged_as_a_teaching_engine_s(name: str) -> None:
    incident, scenario = recorded(name)
    incident.fidelity = CPU_ONLY
    assert facts_of(incident, scenario).fidelity is TEACHING


def test_other_engines_are_judged_with_what_they_were_recorded_with() -> None:
    for name in ("ghost-key-eviction-0.23.0", "kv-growth-crash-0.6.4"):
        incident, scenario = recorded(name)
        assert (
            facts_of(incident, scenario).fidelity is incident.fidelity is not TEACHING
        )
    incident.engine.name = "an engine that is not known"
    assert facts_of(incident, scenario).fidelity is incident.fidelity


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_device_does_not_make_a_teaching_engine_another_one(device: str) -> None:
    assert get_engine("minivllm").fidelity_on(device) is TEACHING
    plain = {"cpu": Fidelity.CPU, "cuda": Fidelity.GPU}[device]
    assert all(
        get_engine(n).fidelity_on(device) is plain
        for n in ("vllm", "sglang", "lmdeploy")
    )
    assert lowered(TEACHING, (EMULATED_STREAM, device_memory(1))) is TEACHING


@pytest.mark.parametrize(
    ("plain", "patches", "fidelity"),
    [
        (Fidelity.GPU, (), Fidelity.GPU),
        (Fidelity.GPU, (WITNESS,), Fidelity.GPU),  # it only reads
        (Fidelity.GPU, (WITNESS, device_memory(1)), Fidelity.GPU_STAND_IN),
        (Fidelity.GPU, (device_memory(1), WITNESS), Fidelity.GPU_STAND_IN),
        (Fidelity.GPU, (device_memory(1), EMULATED_STREAM), Fidelity.EMULATED_STREAM),
        (Fidelity.CPU, (CPU, device_memory(1)), Fidelity.CPU_STAND_IN),
        (Fidelity.CPU, (device_memory(1), CPU), Fidelity.CPU_STAND_IN),
        (Fidelity.CPU, (device_memory(1),), Fidelity.CPU),
    ],
)
def test_a_gpu_whose_memory_is_made_up_is_no_gpu(
    plain: Fidelity, patches: tuple[Patch, ...], fidelity: Fidelity
) -> None:
    assert lowered(plain, patches) is fidelity


def test_reports_say_what_it_is() -> None:
    assert "teaching engine" in TEACHING.words
    assert "stand-in" in Fidelity.GPU_STAND_IN.words
    for said_of in (TEACHING.words, Fidelity.GPU_STAND_IN.words):
        assert "production" not in said_of


def test_what_only_a_gpu_shows_is_not_shown_with_made_up_memory() -> None:
    from mmrepro.scenarios.chunked_mm_prefill.report import on_a_gpu

    scenario = load_scenario("chunked-mm-prefill").variants[0]
    facts = run_facts(scenario)
    seen: dict[Fidelity, Finding] = {}
    for fidelity in Fidelity:
        object.__setattr__(facts, "fidelity", fidelity)
        seen[fidelity] = on_a_gpu(facts)
    assert [f for f, found in seen.items() if found.truth is Truth.MET] == [
        Fidelity.GPU
    ]
