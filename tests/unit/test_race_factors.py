"""async-race: what hides and what prevents (item 10), and flips without effect (item
5)."""

from dataclasses import replace

import pytest
from made_up import run_facts, swap
from made_up_crash import quiet_log, with_stream
from made_up_race import (
    RACE,
    apart,
    cached,
    counting,
    idle,
    large,
    ordered,
    race,
    reworded,
)
from mmrepro.failure.documents.searches import Ablation, FactorClass, FactorResult
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.runs.judge import effect, judge as judged
from mmrepro.scenarios.chunked_mm_prefill import async_race as module
from mmrepro.traffic.evidence import Evidence
from turns import Change, both, edit

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
NOT_REPRODUCED = Outcome.NOT_REPRODUCED

# -------------------------------------------------------- hidden or prevented (item 10)


def of_mitigation(name: str, evidence: Evidence) -> tuple[str, str]:
    facts = run_facts(RACE, "", name)
    verdict = judged(RACE, evidence, facts)
    assert verdict.outcome is NOT_REPRODUCED, verdict.explanation
    told = effect(RACE, evidence, facts, verdict)
    return told.word, told.observed


def test_a_large_budget_hides_the_race_and_does_not_prevent_it() -> None:
    evidence = ordered(overwrite=5)
    large(evidence)
    word, observed = of_mitigation("budget", evidence)
    assert word == "hidden"
    assert "5 writes to a buffer still to be read" in observed


def test_the_barrier_and_synchronous_scheduling_prevent_it() -> None:
    assert of_mitigation("barrier", ordered(ordered=1))[0] == "prevented"
    evidence = ordered()
    idle(evidence)
    assert of_mitigation("sync-scheduling", evidence)[0] == "prevented"


@pytest.mark.parametrize(
    ("name", "evidence", "why"),
    [
        (
            "sync-scheduling",
            ordered(),
            "9 of 16 steps begun with the device still busy",
        ),
        ("barrier", ordered(), "0 × the event was recorded"),
        ("budget", ordered(), "at most 254 image rows in a step"),
    ],
)
def test_a_mitigation_without_effect_prevented_nothing(
    name: str, evidence: Evidence, why: str
) -> None:
    """Another reason why nothing was overwritten: this mitigation's part in it was not
    seen."""
    word, observed = of_mitigation(name, evidence)
    assert word == "not-told"
    assert f"{name} was not seen to take effect: {why}" in observed


def test_answers_from_wrong_rows_are_not_healthy() -> None:
    evidence = ordered()
    swap(evidence, with_stream(quiet_log(), steps=1, overwrite=5, mask=8, silent=2))
    outcome = judged(RACE, evidence, run_facts(RACE)).outcome
    assert outcome is Outcome.DIFFERENT_FAILURE


# ------------------------------------------------------------------ flips (item 5)


def with_flip(name: str, evidence: Evidence) -> tuple[Truth, str]:
    facts = replace(run_facts(RACE), flips=frozenset({name}))
    results = {r.id: r for r in judged(RACE, evidence, facts).conditions}
    return results[f"flip-{name}"].truth, results[f"flip-{name}"].observed


FLIPS = [
    ("eager-mode", counting(), NOT_MET, "0 batches run by a graph, of 30"),
    ("eager-mode", counting(graph_batch=1), MET, "1 batches run by a graph, of 30"),
    ("eager-mode", counting(batch=0), UNKNOWN, "the engine logged no batch"),
    ("async-scheduling", idle, MET, "0 of 16 steps begun with the device still busy"),
    (
        "async-scheduling",
        counting(),
        NOT_MET,
        "9 of 16 steps begun with the device still busy",
    ),
    (
        "async-scheduling",
        reworded("stream-steps", "steps: 16", "steps: 1"),
        UNKNOWN,
        "1 steps",
    ),
    (
        "async-scheduling",
        reworded("stream-steps", "begun", "…"),
        UNKNOWN,
        "0 steps were watched",
    ),
    (
        "async-scheduling",
        reworded("stream-steps", "16 begun, 9", "2 begun, 0"),
        MET,
        "0 of 2",
    ),
    ("prefix-caching", cached("False"), MET, "enable_prefix_caching=False"),
    ("prefix-caching", cached("True"), NOT_MET, "enable_prefix_caching=True"),
    ("prefix-caching", counting(), UNKNOWN, "no enable_prefix_caching"),
    ("chunk-budget", large, MET, "at most 602 image rows in a step, of 256 tokens"),
    (
        "chunk-budget",
        reworded("stream-mask", "254 embeddings", "257 embeddings"),
        MET,
        "at most 257",
    ),
    (
        "chunk-budget",
        reworded("stream-mask", "254 embeddings", "256 embeddings"),
        NOT_MET,
        "at most 256",
    ),
    (
        "chunk-budget",
        reworded("stream-mask", "254 embeddings", "0 embeddings"),
        UNKNOWN,
        "no step",
    ),
    ("image-size", apart, MET, "prompts of 240 tokens, an image in at most 1 steps"),
    ("image-size", counting(), NOT_MET, "an image in at most 8 steps"),
    (
        "image-size",
        both(apart, edit(module.SECOND, prompt_tokens=609)),
        NOT_MET,
        "prompts of 240, 609",
    ),
    (
        "image-size",
        both(apart, edit(module.SECOND, prompt_tokens=None)),
        UNKNOWN,
        "did not say",
    ),
]


@pytest.mark.parametrize(("name", "change", "truth", "said"), FLIPS)
def test_a_flip_counts_where_the_engine_shows_it(
    name: str, change: Change, truth: Truth, said: str
) -> None:
    evidence = ordered()
    change(evidence)
    got, observed = with_flip(name, evidence)
    assert got is truth
    assert said in observed


def test_every_factor_says_what_shows_its_flip() -> None:
    assert {name for name, *_ in FLIPS} == {factor.name for factor in RACE.factors}


def test_no_enforce_eager_on_a_cpu_refutes_nothing_about_graphs() -> None:
    """--no-enforce-eager switched no graph on: nothing is said, in the report
    itself."""
    facts = replace(run_facts(RACE), flips=frozenset({"eager-mode"}))
    told = {c.id: c for c in RACE.claim_results(race(), facts)}["graphs"]
    assert told.status.value == "not-tested"
    why = (
        "eager-mode: its flip was not seen to take effect: 0 batches run by a "
        "graph, of 30"
    )
    result = FactorResult.model_construct(
        name="eager-mode", factor_class=FactorClass.NOT_TESTED, why=why
    )
    ablation = Ablation.model_construct(factors=[result])
    table = {c.id: c for c in RACE.hypotheses(ablation)}
    assert table["graphs"].status.value == "not-tested"
    assert "0 batches run by a graph" in table["graphs"].observed


@pytest.mark.parametrize(
    ("factor_class", "status"),
    [
        (FactorClass.NECESSARY, "confirmed"),
        (FactorClass.SUFFICIENT, "confirmed"),
        (FactorClass.CONTRIBUTES, "not-tested"),
        (FactorClass.IRRELEVANT, "refuted"),
        (FactorClass.HIDES, "refuted"),
        (FactorClass.OTHER, "not-tested"),
        (None, "not-tested"),
    ],
)
def test_the_reports_hypotheses_against_an_ablations_table(
    factor_class: FactorClass | None, status: str
) -> None:
    names = ("prefix-caching", "chunk-budget", "eager-mode", "async-scheduling")
    results = {
        name: FactorResult.model_construct(
            name=name, factor_class=factor_class, why="as it ran"
        )
        for name in names
    }
    ablation = Ablation.model_construct(factors=list(results.values()))
    told = {c.id: (c.status.value, c.source) for c in RACE.hypotheses(ablation)}
    assert told.pop("reporters-build")[0] == "not-tested"
    assert set(told) == {"prefix-caching", "chunk-budget", "graphs", "async-scheduling"}
    assert set(told.values()) == {(status, "the report of 2025-11-01")}
