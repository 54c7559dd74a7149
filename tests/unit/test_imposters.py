"""Imposters: recorded runs with one change each, which nothing may take for what they
look like."""

import pytest
import verdicts
from grids import grid
from imposters import CORPUS, Imposter, imposters
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.diagnosis import Fit
from mmrepro.failure.signature import Outcome
from mmrepro.live.diagnose.match import all_scenarios, match_all
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.traffic.evidence import Evidence

EVERY = imposters()
SCENARIOS = all_scenarios()


@pytest.fixture(scope="module")
def changed() -> dict[str, Incident]:
    """By the imposter's name; not to be changed further."""
    return {one.name: one.incident() for one in EVERY}


def test_no_imposter_is_believed(changed: dict[str, Incident]) -> None:
    """By ``mmrepro judge``, all in one command; and each is judged as the table has it.

    By the conditions alone: most of these changes contradict the rest of the evidence
    as well, which would hide a condition that holds nothing back. ``test_coherence.py``
    has that."""
    documents = verdicts.judged(changed, by_conditions=True)
    for one in EVERY:
        document, name = documents[one.name], one.name
        assert document["now"] == one.outcome, f"{name}: {document['explanation']}"
        assert one.outcome is not Outcome.REPRODUCED, name
        parts = document["parts"]
        confirmed = {p["id"]: p["observed"] for p in parts if p["now"] == "confirmed"}
        believed = {
            claim: confirmed[claim] for claim in confirmed.keys() - set(one.still_true)
        }
        assert not believed, name
        assert not [p for p in parts if p["now"] == "prevented"], name
    now = {name: verdicts.row(document) for name, document in documents.items()}
    assert not verdicts.differences(verdicts.read()["imposters"], now), verdicts.UPDATE


def matched(incident: Incident, scenarios: list[Scenario]) -> list[str]:
    """What it shows an observer: without the run's own requests and measures, and the
    engine's code."""
    engine, seen = incident.engine, incident.evidence
    evidence = Evidence(
        probes=[p for p in seen.probes if p.phase == "check"],
        engine_exit=seen.engine_exit,
    )
    live = LiveFacts(engine.name, engine.release, tuple(engine.command), 15.0)
    mine = [s for s in scenarios if s.engine == engine.name]
    return [m.scenario for m in match_all(mine, evidence, live) if m.fit is Fit.MATCH]


def test_no_imposter_matches_its_own_live_signature(
    changed: dict[str, Incident],
) -> None:
    for name, incident in changed.items():
        own = [s for s in SCENARIOS if s.name == incident.scenario.name]
        assert own, name
        assert not matched(incident, own), name


@pytest.mark.parametrize(
    "imposter", grid(EVERY, always=EVERY[::20]), ids=lambda one: one.name
)
def test_no_imposter_matches_a_live_signature(imposter: Imposter) -> None:
    """Of any scenario of its engine."""
    assert not matched(imposter.incident(), SCENARIOS)


@pytest.mark.nightly
def test_each_change_changes_something(changed: dict[str, Incident]) -> None:
    """An imposter that is its recording proves nothing."""
    from mmrepro.reports import load

    plain = {
        name: load(CORPUS / f"{name}.zip") for name in {one.recording for one in EVERY}
    }
    assert not [one.name for one in EVERY if plain[one.recording] == changed[one.name]]


def test_there_are_enough_of_every_kind(changed: dict[str, Incident]) -> None:
    """At least sixty, and several kinds of every scenario and variant."""
    assert len(changed) == len(EVERY) >= 60
    kinds: dict[tuple[str, str], set[str]] = {}
    for imposter in EVERY:
        scenario = changed[imposter.name].scenario
        kinds.setdefault((scenario.name, scenario.variant), set()).add(imposter.kind)
    assert not {name: sorted(found) for name, found in kinds.items() if len(found) < 3}
    known = {(s.name, s.variant) for s in all_scenarios()} - {
        ("undersized-kv-budget", "full-size")
    }
    assert known <= kinds.keys()
    assert len({one.kind for one in EVERY}) == 8
