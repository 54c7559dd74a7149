"""From recorded facts to effects and changes, at the edges."""

from types import SimpleNamespace
from typing import Any

import pytest
from made_up import hang_run, healthy_run, run_facts
from mmrepro.base.errors import UsageError
from mmrepro.base.records import Setting
from mmrepro.failure.documents import GateFacts, Incident
from mmrepro.failure.documents.model import MitigationFacts
from mmrepro.failure.signature import Condition, ConditionResult, Outcome, Verdict
from mmrepro.failure.signature.decide import decide
from mmrepro.runs.judge import (
    FLOOR_S,
    ConditionChange,
    MitigationEffect,
    effect,
    expectation,
    facts_of,
    judge,
    rejudge,
)
from mmrepro.scenario import Finding, RunFacts, Truth
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence
from simple_incident import incident

pytestmark = pytest.mark.usefixtures("by_conditions")

GHOST_KEY = load_scenario("ghost-key-eviction")
FACTS = run_facts(GHOST_KEY)


def of(
    outcome: Outcome, cause: Truth, affected: bool = True, applied: str = ""
) -> MitigationEffect:
    scenario: Any = SimpleNamespace(
        cause_remains=lambda e, f: Finding(cause, "the cause"),
        mitigations=[
            SimpleNamespace(name=n, release=r)
            for n, r in (("release", "2"), ("off", ""))
        ],
        affects=lambda release, device: affected,
        affected_where="<2",
    )
    verdict = Verdict(outcome=outcome, explanation="why", conditions=[])
    facts = RunFacts("2", FACTS.fidelity, frozenset({applied} - {""}), 13.0)
    return effect(scenario, Evidence(), facts, verdict)


def test_what_is_not_affected_needs_no_cure() -> None:
    gone = Outcome.NOT_REPRODUCED
    assert of(gone, Truth.NOT_MET, affected=False).word == "not-told"
    assert of(gone, Truth.NOT_MET, affected=False, applied="off").word == "not-told"
    assert (
        of(gone, Truth.NOT_MET, affected=False, applied="release").word == "prevented"
    )
    assert of(gone, Truth.NOT_MET, applied="off").word == "prevented"


def test_prevented_is_seen_to_be_gone() -> None:
    gone, words = Outcome.NOT_REPRODUCED, {}
    for cause in Truth:
        found = of(gone, cause)
        words[cause] = (found.word, found.prevented, found.hides)
        assert found.observed == "no symptom; the cause: the cause"
        assert of(Outcome.REPRODUCED, cause) == MitigationEffect(False, "why")
        for other in (Outcome.INCONCLUSIVE, Outcome.DIFFERENT_FAILURE):
            assert of(other, cause) == MitigationEffect(None, "why")
    assert words == {
        Truth.MET: ("hidden", False, True),
        Truth.NOT_MET: ("prevented", True, False),
        Truth.UNKNOWN: ("not-told", None, False),
    }
    assert of(Outcome.REPRODUCED, Truth.MET).word == "not-prevented"
    assert not MitigationEffect(True, "").hides


def test_of_a_flipped_run_nothing_is_expected() -> None:
    flipped = RunFacts(
        FACTS.release, FACTS.fidelity, frozenset(), 13.0, frozenset({"b", "a"})
    )
    assert expectation(GHOST_KEY, flipped) == (
        None,
        "flipped: a, b; nothing is expected of that",
    )
    assert expectation(GHOST_KEY, FACTS)[0] is Outcome.REPRODUCED


def test_as_expected_is_the_outcome_that_was() -> None:
    hang, healthy = (
        judge(GHOST_KEY, hang_run(), FACTS),
        judge(GHOST_KEY, healthy_run(), FACTS),
    )
    assert hang.expected is healthy.expected is Outcome.REPRODUCED
    for verdict in (hang, healthy):
        assert verdict.as_expected is (verdict.outcome is Outcome.REPRODUCED)
    evidence = hang_run()
    evidence.requests[0].status = 500
    assert judge(GHOST_KEY, evidence, FACTS).outcome is Outcome.INCONCLUSIVE, (
        "the gate failed"
    )


def told(**more: Any) -> RunFacts:
    return facts_of(incident(**more), GHOST_KEY)


def test_the_deadline_is_the_runs_else_the_gates_else_the_least() -> None:
    gate = GateFacts(passed=True, why="", deadline_s=7.0)
    assert told(deadline_s=9.0, gate=gate).deadline_s == 9.0
    assert told(gate=gate).deadline_s == 7.0
    assert told(gate=GateFacts(passed=False, why="")).deadline_s == FLOOR_S == 6.0
    assert told().deadline_s == 6.0


def test_only_what_was_applied_and_is_known_mitigates() -> None:
    given = [
        MitigationFacts(name=name, description="", command="", applied=applied)
        for name, applied in (
            ("patch", True),
            ("disable-mm-cache", False),
            ("no such", True),
        )
    ]
    assert told(mitigations=given).mitigations == {"patch"}


def test_only_a_setting_called_a_factor_flips() -> None:
    names = (
        "factor refusal",
        "factor no such",
        "what factor cache-size",
        "popitem-fix",
    )
    run = incident()
    run.engine.settings = [Setting(name=n, value="", why="") for n in names]
    assert facts_of(run, GHOST_KEY).flips == {"refusal"}


def test_a_change_differs() -> None:
    assert ConditionChange("claim", "c", "met", "not-met", "").differs
    assert not ConditionChange("claim", "c", "met", "met", "").differs


def hang(**more: Any) -> Incident:
    evidence = hang_run()
    verdict = judge(GHOST_KEY, evidence, FACTS)
    return incident(evidence=evidence, verdict=verdict, deadline_s=13.0, **more)


def test_without_a_verdict_nothing_is_judged_again() -> None:
    with pytest.raises(UsageError, match="holds no verdict"):
        rejudge(incident(state="interrupted"), GHOST_KEY)


def test_judged_again_it_is_the_same_and_what_changed_is_named() -> None:
    same = rejudge(hang(), GHOST_KEY)
    assert not same.differs
    assert {p.id for p in same.changes} == {
        p.id for p in same.parts if p.kind == "claim"
    }
    run = hang()
    assert run.verdict is not None
    then = run.verdict.conditions
    then[0].truth = Truth.UNKNOWN
    then.append(
        ConditionResult(
            id="of-old",
            part="cause",
            statement="",
            required=True,
            truth=Truth.MET,
            observed="old",
        )
    )
    gone = then.pop(1)
    changes = {
        p.id: (p.then, p.now)
        for p in rejudge(run, GHOST_KEY).changes
        if p.kind != "claim"
    }
    assert changes == {
        then[0].id: ("unknown", same_now(same, then[0].id)),
        "of-old": ("met", ""),
        gone.id: ("", gone.truth.value),
    }
    run.verdict.outcome = Outcome.DIFFERENT_FAILURE
    assert rejudge(run, GHOST_KEY).differs


def same_now(found: Any, name: str) -> str:
    return next(p.now for p in found.parts if p.id == name and p.kind != "claim")


def test_what_applied_mitigations_did_then_and_now() -> None:
    given = [
        MitigationFacts(
            name="patch", description="", command="", applied=True, effective=True
        ),
        MitigationFacts(name="release", description="", command="", applied=False),
    ]
    parts = [
        p
        for p in rejudge(hang(mitigations=given), GHOST_KEY).parts
        if p.kind == "mitigation"
    ]
    assert [(p.id, p.then) for p in parts] == [("patch", "prevented")]
    assert parts[0].now == ("not-prevented" if hang_is_reproduced() else "not-told")


def hang_is_reproduced() -> bool:
    return judge(GHOST_KEY, hang_run(), FACTS).outcome is Outcome.REPRODUCED


def result(part: Any, truth: Truth, **more: Any) -> ConditionResult:
    fields: dict[str, Any] = {
        "id": part,
        "statement": "",
        "required": True,
        "observed": "seen",
    }
    return ConditionResult(part=part, truth=truth, **fields | more)


def test_a_condition_is_required_unless_told_otherwise() -> None:
    assert Condition("c", "cause", "s", lambda e: Finding.of(True, "")).required


def test_a_verdict_of_which_nothing_is_told_is_not_as_expected() -> None:
    assert not Verdict(
        outcome=Outcome.REPRODUCED, explanation="", conditions=[]
    ).as_expected


def test_a_sentence_for_each_outcome() -> None:
    met, not_met, unknown = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN

    def why(
        symptom: Truth, cause: Truth, healthy: Truth = met, arrived: Truth = met
    ) -> str:
        results = [
            result("precondition", arrived),
            result("symptom", symptom),
            result("cause", cause),
        ]
        finding = Finding(healthy, "healthy?")
        return decide(results, gate_passed=True, healthy_after=finding)[1]

    assert why(met, met) == "every condition of the symptom and of the cause is met"
    lacking = "the trigger was not seen to arrive: precondition is not-met (seen)"
    assert (
        why(met, met, arrived=not_met) == f"symptom and cause are there, but {lacking}"
    )
    assert why(met, not_met).endswith("but not by this cause: cause (seen)")
    assert why(met, unknown).endswith("its cause could not be seen: cause (seen)")
    assert why(unknown, met).endswith("could not be decided: symptom (seen)")
    assert why(not_met, met).endswith("the engine still works: symptom (seen)")
    assert why(not_met, met, arrived=unknown).startswith(
        "the symptom is absent, which means nothing"
    )
    assert why(not_met, met, not_met) == "another failure: healthy?"
    assert why(not_met, met, unknown).endswith("still works is unknown: healthy?")
