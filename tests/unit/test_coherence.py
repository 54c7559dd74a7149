"""Evidence held against itself: what is of another run is no evidence of this one.

Two ways to mix a recording up: one thing of another server, time or speaker (``apart``),
and parts of two runs in one."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import verdicts
from apart import APART, Apart
from imposters import CORPUS, imposters
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Finding, Outcome, Truth
from mmrepro.failure.signature.coherence import CHECKS, Run, doubts
from mmrepro.failure.signature.decide import guarded
from mmrepro.failure.signature.run_facts import EVERYTHING
from mmrepro.probes.data import (
    LogsData,
    MetricsData,
    ProbeData,
    ProcessesData,
    StacksData,
)
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, held, judge, rejudge
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence, Held

REPRODUCED = Outcome.REPRODUCED


def scenario_of(incident: Incident) -> Scenario:
    return load_scenario(incident.scenario.name).with_variant(incident.scenario.variant)


def reproduced() -> dict[str, Incident]:
    """Recordings that are, by name; each is the caller's."""
    rows = verdicts.read()["recordings"]
    names = [name for name in sorted(rows) if rows[name]["outcome"] == REPRODUCED]
    return {name: load(CORPUS / f"{name}.zip") for name in names}


@pytest.fixture(scope="module")
def corpus() -> dict[str, Incident]:
    """Not to be changed, or changed and taken back."""
    return reproduced()


@pytest.fixture(scope="module")
def packed(corpus: dict[str, Incident]) -> dict[str, bytes]:
    """One of each scenario and variant, to be unpacked and changed."""
    first: dict[tuple[str, str], str] = {}
    for name, one in corpus.items():
        first.setdefault((one.scenario.name, one.scenario.variant), name)
    return {name: pickle.dumps(corpus[name]) for name in first.values()}


def outcome(incident: Incident, scenario: Scenario) -> Outcome:
    return judge(scenario, incident.evidence, facts_of(incident, scenario)).outcome


# ------------------------------------------------------------------ mixed up

WEAK: dict[tuple[str, str], str] = {}
"""By change and recording: why it is believed all the same."""


def believed(
    one: Apart, packed: dict[str, bytes], names: list[str]
) -> tuple[int, list[str]]:
    """In how many recordings it changes anything, and which of those are still
    believed."""
    tried, left = 0, []
    for name in names:
        incident = pickle.loads(packed[name])
        scenario = scenario_of(incident)
        if one.change(incident):
            tried += 1
            weak = outcome(incident, scenario) is REPRODUCED
            left += [name] if weak and (one.name, name) not in WEAK else []
    return tried, left


@pytest.mark.parametrize("one", APART, ids=[one.name for one in APART])
def test_nothing_apart_is_believed(one: Apart, packed: dict[str, bytes]) -> None:
    """In a recording that it changes; in all of them every night."""
    names = sorted(packed)
    random.Random(one.name).shuffle(names)
    tried, left, rest = 0, [], iter(names)
    while not tried and (name := next(rest, "")):
        more, found = believed(one, packed, [name])
        tried, left = tried + more, left + found
    assert tried, "it changes nothing in any recording"
    assert not left


@pytest.mark.slow
def test_nothing_apart_is_believed_in_any_scenario(packed: dict[str, bytes]) -> None:
    found = {one.name: believed(one, packed, sorted(packed)) for one in APART}
    assert sum(tried for tried, _ in found.values()) >= 1000
    assert not {name: left for name, (_, left) in found.items() if left}
    assert len({pickle.loads(data).scenario.name for data in packed.values()}) >= 14


def test_no_imposter_is_reproduced_together_either() -> None:
    """Those of ``imposters/``, which are judged by their conditions alone elsewhere."""
    for one in imposters()[::11]:
        incident = one.incident()
        now = rejudge(incident, scenario_of(incident))
        assert now.now.outcome is not REPRODUCED, one.name
        confirmed = {part.id for part in now.parts if part.now == "confirmed"}
        assert confirmed <= set(one.still_true), one.name


# ------------------------------------------------------------------ of two runs


@pytest.mark.parametrize("kind", [MetricsData, StacksData, ProcessesData, LogsData])
def test_a_reading_of_another_run_is_none_of_this(
    kind: type[ProbeData], corpus: dict[str, Incident]
) -> None:
    """Of the same scenario: its metrics, stacks, processes or log instead of the run's
    own."""
    tried = 0
    siblings: dict[tuple[str, str], list[str]] = {}
    for name, one in corpus.items():
        siblings.setdefault((one.scenario.name, one.scenario.variant), []).append(name)
    for mine, other, *_ in (names for names in siblings.values() if len(names) > 1):
        incident = corpus[mine].model_copy(deep=True)
        probes = incident.evidence.probes
        own = [
            i
            for i, r in enumerate(probes)
            if isinstance(r.data, kind) and r.phase == "check"
        ]
        theirs = [
            r
            for r in corpus[other].evidence.probes
            if isinstance(r.data, kind) and r.phase == "check"
        ]
        for index, result in zip(own, theirs, strict=False):
            # As if it had been read then: whose it is, is all that tells.
            probes[index].data = result.data
        log = theirs[0].data if theirs else None
        if isinstance(log, LogsData) and not any(line.process for line in log.errors):
            continue  # nothing in it says whose it is, and it may be of another zone
        if own and theirs:
            tried += 1
            assert outcome(incident, scenario_of(incident)) is not REPRODUCED, (
                mine,
                other,
            )
    assert tried >= 5


# -------------------------------------------------------------- what follows of a doubt


def a_run(corpus: dict[str, Incident]) -> tuple[Incident, Scenario]:
    incident = corpus["ghost-key-eviction-0.14.0"].model_copy(deep=True)
    return incident, scenario_of(incident)


def test_only_what_reads_the_doubted_is_unknown(corpus: dict[str, Incident]) -> None:
    incident, scenario = a_run(corpus)
    for result in incident.evidence.probes:
        if isinstance(result.data, StacksData):
            for sample in result.data.samples:
                sample.pid = 1
    verdict = judge(scenario, incident.evidence, facts_of(incident, scenario))
    truths = {r.id: r.truth for r in verdict.conditions}
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert (
        "stacks: they are of process 1, which is none of this server"
        in verdict.explanation
    )
    assert truths["eviction-stack"] is Truth.UNKNOWN
    assert truths["endpoints-green"] is Truth.MET
    told = next(r for r in verdict.conditions if r.id == "eviction-stack")
    assert told.observed.startswith("doubted: they are of process 1")


def test_claims_that_read_the_doubted_are_not_tested(
    corpus: dict[str, Incident],
) -> None:
    incident, scenario = a_run(corpus)
    for result in incident.evidence.probes:
        if isinstance(result.data, MetricsData):
            result.data.url = "http://127.0.0.1:1/metrics"
    parts = {
        part.id: part
        for part in rejudge(incident, scenario).parts
        if part.kind == "claim"
    }
    assert (parts["idle-metrics"].then, parts["idle-metrics"].now) == (
        "confirmed",
        "not-tested",
    )
    assert parts["no-answer"].now == "confirmed"


def test_a_recording_has_no_doubts(corpus: dict[str, Incident]) -> None:
    for name, incident in corpus.items():
        scenario = scenario_of(incident)
        assert held(incident.evidence, facts_of(incident, scenario))[0] == {}, name


def test_the_label_of_a_request_decides_nothing(corpus: dict[str, Incident]) -> None:
    """A request for a text may be called as if it showed a picture."""
    incident, scenario = a_run(corpus)
    (asked,) = incident.evidence.labelled("gate: text only")
    (line,) = (event for event in incident.evidence.events if event.text == asked.told)
    asked.label = "describe a picture"
    line.text = asked.told
    assert outcome(incident, scenario) is REPRODUCED


def test_made_up_evidence_is_not_held_against_anything(
    corpus: dict[str, Incident],
) -> None:
    incident, scenario = a_run(corpus)
    facts = replace(facts_of(incident, scenario), run=None)
    assert held(incident.evidence, facts) == ({}, incident.evidence)


def test_a_check_that_fails_doubts_everything(
    corpus: dict[str, Incident], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(evidence: Evidence, run: Run) -> Iterator[tuple[str, str]]:
        raise ValueError("nobody could have recorded that")

    monkeypatch.setattr("mmrepro.failure.signature.coherence.CHECKS", (*CHECKS, broken))
    incident, scenario = a_run(corpus)
    facts = facts_of(incident, scenario)
    assert facts.run is not None
    told = "broken: ValueError: nobody could have recorded that"
    assert doubts(incident.evidence, facts.run) == {EVERYTHING: told}
    verdict = judge(scenario, incident.evidence, facts)
    assert {r.truth for r in verdict.conditions} == {Truth.UNKNOWN}


def test_a_doubt_reaches_whoever_reads_it_and_nobody_else() -> None:
    evidence = Held.of(Evidence(), {"metrics": "another's", "requests": "yesterday's"})

    def found(read: object) -> Finding:
        return guarded(read, evidence)  # type: ignore[arg-type]

    def metrics(seen: Evidence) -> Finding:
        return Finding.of(not list(seen.results(MetricsData)), "none")

    def stacks(seen: Evidence) -> Finding:
        return Finding.of(not list(seen.results(StacksData)), "none")

    def all_probes(seen: Evidence) -> Finding:
        return Finding.of(not seen.probes, "none")

    def requests(seen: Evidence) -> Finding:
        return Finding.of(not seen.requests_in("gate"), "none")

    def within(seen: Evidence) -> Finding:
        return Finding.of(guarded(metrics, seen).truth is Truth.UNKNOWN, "asked again")

    assert found(stacks) == Finding(Truth.MET, "none")
    assert found(metrics) == Finding(Truth.UNKNOWN, "doubted: another's")
    assert found(all_probes) == Finding(Truth.UNKNOWN, "doubted: another's")
    assert found(requests) == Finding(Truth.UNKNOWN, "doubted: yesterday's")
    assert found(within).truth is Truth.UNKNOWN
