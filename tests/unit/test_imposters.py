"""Imposters: recorded runs with one change each, which nothing may take for what they look like."""

from __future__ import annotations

from collections import Counter

import pytest
from imposters import Imposter, imposters
from mmrepro.diagnose.match import all_scenarios, match_all
from mmrepro.incident import ClaimStatus, Incident
from mmrepro.incident.diagnosis import Fit
from mmrepro.run.judge import effect, facts_of, judge
from mmrepro.scenario import LiveFacts
from mmrepro.scenario.registry import load_scenario
from mmrepro.signature import Outcome

EVERY = imposters()
each = pytest.mark.parametrize("imposter", EVERY, ids=[one.name for one in EVERY])


def seen_by_an_observer(incident: Incident) -> Incident:
    """Without what only the run itself knew: its requests, its measures, the engine's own code."""
    evidence = incident.evidence
    evidence.requests, evidence.facts, evidence.reproducers = [], {}, []
    evidence.probes = [p for p in evidence.probes if p.phase == "check"]
    return incident


@each
def test_no_imposter_is_believed(imposter: Imposter) -> None:
    incident = imposter.incident()
    scenario = load_scenario(incident.scenario.name).with_variant(incident.scenario.variant)
    evidence, facts = incident.evidence, facts_of(incident, scenario)
    verdict = judge(scenario, evidence, facts)
    assert verdict.outcome is imposter.outcome, verdict.explanation
    assert verdict.outcome is not Outcome.REPRODUCED
    claims = scenario.claim_results(evidence, facts)
    confirmed = {c.id for c in claims if c.status is ClaimStatus.CONFIRMED}
    assert confirmed <= set(imposter.still_true), [c for c in claims if c.id in confirmed]
    if any(m.applied for m in incident.mitigations):
        assert effect(scenario, evidence, facts, verdict).prevented is not True


@each
def test_no_imposter_matches_a_live_signature(imposter: Imposter) -> None:
    incident = seen_by_an_observer(imposter.incident())
    live = LiveFacts(
        incident.engine.name, incident.engine.release, tuple(incident.engine.command), 15.0
    )
    scenarios = [s for s in all_scenarios() if s.engine == incident.engine.name]
    matches = match_all(scenarios, incident.evidence, live)
    assert not [m.scenario for m in matches if m.fit is Fit.MATCH]


def test_each_change_changes_something() -> None:
    """An imposter that is its recording proves nothing."""
    for imposter in EVERY:
        plain = Imposter(**{**vars(imposter), "edit": lambda incident: None})
        assert plain.incident() != imposter.incident(), imposter.name


def test_there_are_enough_of_every_kind() -> None:
    """At least sixty, and of every scenario and variant that is recorded, several kinds."""
    assert len({one.name for one in EVERY}) == len(EVERY) >= 60
    kinds: dict[str, set[str]] = {}
    for imposter in EVERY:
        incident = imposter.incident()
        name = f"{incident.scenario.name} {incident.scenario.variant}".strip()
        kinds.setdefault(name, set()).add(imposter.kind)
    few = {name: sorted(found) for name, found in kinds.items() if len(found) < 3}
    assert not few
    assert len(Counter(one.kind for one in EVERY)) == 8
