"""No condition is met, and no claim confirmed, by the absence of evidence."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import verdicts
from grids import grid
from made_up import run_facts
from mmrepro.base.records import ClaimStatus, Fidelity
from mmrepro.failure.signature import Outcome, checks, crash, evaluate, live_server
from mmrepro.failure.signature.decide import guarded
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.probes.base import ProbeStatus
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge
from mmrepro.scenario import Check, LiveFacts, Scenario, Truth, common, gpu
from mmrepro.scenario.definition import bind
from mmrepro.scenario.parts import Declared
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence

pytestmark = pytest.mark.usefixtures("by_conditions")

EVIDENCE = Path(__file__).parent.parent / "evidence"
GHOST_KEY = load_scenario("ghost-key-eviction")
SCENARIOS = {f"{s.name} {s.variant}".strip(): s for s in all_scenarios()}
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)

SHARED: dict[str, Check | Declared] = {
    **{
        name: getattr(module, name)
        for module, names in {
            checks: "unanswered probe_unanswered endpoints_green queue_empty "
            "counted_as_running no_progress tokens_stand_still core_burns_cpu "
            "core_busy core_alive engine_works spins_in_user_space "
            "added_but_unfinished engine_alive",
            crash: "core_died health_is_503 server_exits",
            common: "trigger_ended idle_while_asked",
            gpu: "gpu_idle gpu_memory_held",
        }.items()
        for name in names.split()
    },
    "logged": lambda e: checks.logged(common.Logs(e), live_server.FAILED, "500"),
    "core-is-dead": lambda e: live_server.core_is_dead(
        e, common.Logs(e), "EngineCore", "dead"
    ),
    "request-500": lambda e: crash.requests_fail_with_500(common.Requests(e), "image"),
    "never-answered": common.never_answered("image"),
    "first-error": common.first_error("exception", "s"),
    "in-log": common.in_log("s", "exception", "engine-dead"),
    "every-request-fails": common.every_request_fails(),
    **{f"dies-of-{part.id}": part for part in common.dies_of("image", "s")},
    **{f"some-fail-{n}": part for n, part in enumerate(common.some_requests_fail())},
    "answered": common.answered("image", "text"),
    "not-logged": common.not_logged("exception"),
    "answered-alike": common.answered_alike("image"),
    "as-by-control": common.as_by_control("image"),
    "refused-or-answered": common.refused_or_answered("image"),
    "answered-row": common.answered_row("image"),
    "happened": common.happened(common.answered("image")),
    "last-line": common.last_line("words"),
}


def every_facts(scenario: Scenario) -> Iterator[common.RunFacts]:
    """As it is, and with each mitigation and factor."""
    plain = run_facts(scenario)
    names = [m.name for m in scenario.mitigations]
    flips = [f.name for f in scenario.factors]
    yield plain
    for part in (
        *({"mitigations": frozenset({n})} for n in names),
        *({"flips": frozenset({n})} for n in flips),
        {"fidelity": Fidelity.GPU},
    ):
        yield replace(plain, **part)  # type: ignore[arg-type]


@pytest.mark.parametrize("check", SHARED.values(), ids=SHARED)
def test_a_shared_check_is_not_met_by_nothing(check: Check | Declared) -> None:
    if isinstance(check, Declared):
        live = check.live if isinstance(check.live, Declared) else None
        both = [part.check for part in (check, live) if part is not None]
    else:
        both = [check]
    for one in both:
        assert one is not None
        for facts in every_facts(GHOST_KEY):
            assert (
                guarded(bind(one, GHOST_KEY, facts), Evidence()).truth is not Truth.MET
            )


@every_scenario
def test_of_no_evidence_nothing_is_met(scenario: Scenario) -> None:
    """No condition, no gate, no health, no claim: of the scenario, flipped, mitigated,
    live."""
    nothing = Evidence()
    live = scenario.live_conditions(LiveFacts(scenario.engine, "", (), 15.0))
    assert not [r.id for r in evaluate(live, nothing) if r.truth is Truth.MET]
    for facts in every_facts(scenario):
        verdict = judge(scenario, nothing, facts)
        assert not [r.id for r in verdict.conditions if r.truth is Truth.MET]
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert guarded(scenario.gate_check, nothing).truth is not Truth.MET
        for check in (scenario.healthy_after, scenario.cause_remains):
            found = guarded(lambda seen, c=check, f=facts: c(seen, f), nothing)  # type: ignore[misc]
            assert found.truth is not Truth.MET
        claims = scenario.claim_results(nothing, facts)
        assert not [c.id for c in claims if c.status is ClaimStatus.CONFIRMED]


RECORDED = sorted(path.stem for path in EVIDENCE.glob("*.zip"))
ROWS = verdicts.read()["recordings"]
REPRODUCED = [name for name in RECORDED if ROWS[name]["outcome"] == Outcome.REPRODUCED]
DAILY = {tuple(name.split("-")[:2]): name for name in REPRODUCED}
"""One of each scenario: two words of a name are its own."""


def without(evidence: Evidence, probe: str) -> Evidence:
    """As it would be, had that probe been unavailable."""
    probes = [
        p.model_copy(
            update={
                "status": ProbeStatus.UNAVAILABLE,
                "data": None,
                "reason": "refused",
            }
        )
        if p.probe == probe
        else p
        for p in evidence.probes
    ]
    return evidence.model_copy(update={"probes": probes})


def lacking(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    for probe in sorted({p.probe for p in evidence.probes}):
        yield probe, without(evidence, probe)
    yield "measured facts", evidence.model_copy(update={"facts": {}})
    yield "reproducers", evidence.model_copy(update={"reproducers": []})


@pytest.mark.parametrize("name", grid(RECORDED, always=DAILY.values()))
def test_what_is_taken_away_makes_nothing_true(name: str) -> None:
    """Each probe in turn unavailable: nothing is met, or confirmed, that was not
    before."""
    incident = load(EVIDENCE / f"{name}.zip")
    scenario = load_scenario(incident.scenario.name).with_variant(
        incident.scenario.variant
    )
    facts, whole = facts_of(incident, scenario), incident.evidence

    def true_of(evidence: Evidence) -> set[str]:
        verdict = judge(scenario, evidence, facts)
        claims = scenario.claim_results(evidence, facts)
        return (
            {r.id for r in verdict.conditions if r.truth is Truth.MET}
            | {f"claim {c.id}" for c in claims if c.status is ClaimStatus.CONFIRMED}
            | ({"reproduced"} if verdict.outcome is Outcome.REPRODUCED else set())
        )

    before = true_of(whole)
    for what, evidence in lacking(whole):
        assert true_of(evidence) <= before, f"without {what}"
