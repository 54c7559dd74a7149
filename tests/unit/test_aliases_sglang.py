"""SGLang's aliases: nothing is said where the pair is none, or the cache was not seen
at work.

Recorded runs with one change, and made-up ones for what lies on either side of a
comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from imposters import CORPUS
from imposters.sglang import answered_as, asked, logged, mitigated
from made_up import probed, request, run_facts
from made_up_sglang import (
    EMBEDDING,
    KV,
    alias_run,
    changed,
    log,
    run,
    swapped,
    truth,
    with_facts,
    without_fact,
)
from mmrepro.base.records import Fidelity
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Condition, Outcome, Truth, evaluate
from mmrepro.reports import load
from mmrepro.runs.judge import rejudge
from mmrepro.scenario import LiveFacts, Logs, RunFacts, Scenario, sglang as sharing
from mmrepro.scenario.more import ComparedAnswers
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import shape_alias
from mmrepro.scenarios.pad_value_collision import SCENARIO as COLLISION, report
from mmrepro.traffic.evidence import Evidence

pytestmark = pytest.mark.usefixtures("by_conditions")

REPRODUCED, NOT_REPRODUCED = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED
INCONCLUSIVE, DIFFERENT = Outcome.INCONCLUSIVE, Outcome.DIFFERENT_FAILURE
MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
PAD, ALIAS, VISION = (
    "pad-value-collision-",
    "shape-alias-kv-cache-",
    "shape-alias-embedding-cache-",
)


@dataclass
class Told:
    outcome: Outcome
    why: str
    said: dict[str, str]
    """By id: the truth of a condition, the status of a claim, what a mitigation did."""

    def __getitem__(self, name: str) -> str:
        return self.said[name]


def told(recording: str, *edits: Callable[[Incident], object]) -> Told:
    """A recording with changes, judged again."""
    incident = load(CORPUS / f"{recording}.zip")
    for edit in edits:
        edit(incident)
    scenario = load_scenario(incident.scenario.name).with_variant(
        incident.scenario.variant
    )
    now = rejudge(incident, scenario)
    said = {part.id: part.now for part in now.parts}
    said |= {
        f"did {part.id}": part.now for part in now.parts if part.kind == "mitigation"
    }
    return Told(now.now.outcome, now.now.explanation, said)


# ---------------------------------------------------------- item 4: the pair, the bytes


A, B = 0x39EC1567E1977410, 0x08F735A321977410
TOP, NEXT = 1 << 29, 1 << 30


@pytest.mark.parametrize(
    ("b", "control", "expected"),
    [
        (B, B + 1, MET),
        (B ^ NEXT, B + 1, MET),
        (B ^ TOP, B + 1, NOT_MET),
        (B ^ 1, B + 1, NOT_MET),
        (A, B + 1, NOT_MET),
        (B, B, NOT_MET),
        (B, A ^ NEXT, NOT_MET),
        (B, B ^ TOP, MET),
    ],
)
def test_a_pair_differs_and_agrees_in_30_bits_which_the_control_does_not(
    b: int, control: int, expected: Truth
) -> None:
    more = {
        "hash_a": f"{A:016x}",
        "hash_b": f"{b:016x}",
        "hash_control": f"{control:016x}",
    }
    assert (
        truth(COLLISION, changed(run(collides=True), with_facts(**more)), "pair-agrees")
        is expected
    )


@pytest.mark.parametrize("bad", ["", "12 ", "xyz", "0x12", None, 7])
def test_a_hash_that_is_none_makes_it_unknown(bad: object) -> None:
    evidence = changed(run(collides=True), with_facts(hash_b=bad))
    assert truth(COLLISION, evidence, "pair-agrees") is UNKNOWN


@pytest.mark.parametrize("scenario", [KV, EMBEDDING])
@pytest.mark.parametrize("fact", ["bytes_equal", "grids_differ"])
def test_both_halves_of_one_buffer_in_two_layouts_are_read(
    scenario: Scenario, fact: str
) -> None:
    assert truth(scenario, alias_run(scenario), "same-bytes") is MET
    no = changed(alias_run(scenario), with_facts(**{fact: False}))
    assert truth(scenario, no, "same-bytes") is NOT_MET
    assert (
        truth(scenario, changed(alias_run(scenario), without_fact(fact)), "same-bytes")
        is UNKNOWN
    )


# ---------------------------------------------------------------- what a mitigation did


@pytest.mark.parametrize("victim", ["B after A", "A after B"])
def test_a_salt_that_was_dropped_prevents_nothing(victim: str) -> None:
    found = told(f"{PAD}0.5.17-cache-salt", asked(victim, cached_tokens=7))
    assert (found.outcome, found["did cache-salt"]) == (INCONCLUSIVE, "not-told")
    assert found["extra-key"] == "not-tested"


@pytest.mark.parametrize(
    ("times", "expected"), [(8, "not-told"), (9, "prevented"), (10, "not-told")]
)
def test_what_was_flushed_in_between_is_not_kept_apart(
    times: int, expected: str
) -> None:
    found = told(f"{PAD}0.5.17-cache-salt", logged(**{"cache-flushed": times}))
    assert found["did cache-salt"] == expected
    assert found["extra-key"] == ("confirmed" if times == 9 else "not-tested")


def test_a_flush_that_was_refused_emptied_nothing() -> None:
    evidence = Evidence(
        requests=[request("gate", sharing.FLUSH, status) for status in (400, 200)],
        probes=[probed(log())],
    )
    assert report.flushed_alone(Logs(evidence)).truth is MET


def test_a_release_with_the_fix_needs_no_cure() -> None:
    assert told(f"{PAD}0.5.23", mitigated("release"))["did release"] == "prevented"


# ------------------------------------------------------------------ item 9: claims


def test_claims_about_answers_need_the_engines_own_kernels() -> None:
    pretended = changed(run(collides=True), swapped(log(calls=1)))
    for fidelity, expected in (
        (Fidelity.CPU_STAND_IN, "not-tested"),
        (Fidelity.GPU, "confirmed"),
    ):
        run_facts = RunFacts("0.5.6", fidelity, frozenset(), 13.0)
        status = {c.id: c.status for c in COLLISION.claim_results(pretended, run_facts)}
        assert status["kv-reused"] == status["a-features"] == expected


def test_a_stand_in_that_was_called_is_seen() -> None:
    for counts in ({"sgl_kernel_stub-called": 1}, {"vllm_names-called": 1}):
        data = log()
        data.match_counts.update(counts)
        found = changed(run(collides=True), swapped(data))
        assert truth(COLLISION, found, "no-pretended-kernel") is UNKNOWN
    one = changed(run(collides=True), swapped(log(loaded=1)))
    assert truth(COLLISION, one, "no-pretended-kernel") is MET


@pytest.mark.parametrize("one_order", ["A after B", "B after A"])
def test_a_claim_of_the_pair_needs_both_orders(one_order: str) -> None:
    own = f"gate: {one_order[0]} alone"
    found = told(f"{PAD}0.5.6", answered_as(one_order, own, cached_tokens=7))
    assert {found[c] for c in ("kv-reused", "a-features")} <= {"refuted", "not-tested"}
    assert found["embeddings"] == "not-tested"


# ------------------------------------------------------------ item 12, and live servers


def test_item_12_the_range_says_what_was_run_and_what_was_read() -> None:
    text = Path(shape_alias.__file__).read_text()
    assert "# Run: 0.5.6, 0.5.17 and 0.5.23. By source only: 0.4.6" in text
    assert [KV.affects(r) for r in ("0.4.5", "0.4.6", "0.5.23")] == [False, True, True]
    assert [EMBEDDING.affects(r) for r in ("0.4.6", "0.4.7", "0.5.23")] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("scenario", [COLLISION, KV, EMBEDDING])
def test_nobody_asks_a_live_server_for_a_trigger(scenario: Scenario) -> None:
    conditions = scenario.live_conditions(LiveFacts("sglang", "0.5.17"))
    assert conditions
    assert "precondition" not in {c.part for c in conditions}


# ------------------------------------------------------------------ what is shown


def parted() -> ComparedAnswers:
    """A's answers when it was alone are not alike, and longer than what is shown of
    them."""
    kinds = ("alone", "again", "after others")
    sent = [
        request(
            "gate",
            f"gate: A {kind}",
            tokens=[kind] * 7,
            logprobs=[-0.5] * 7,
            cached_tokens=0,
        )
        for kind in kinds
    ]
    return ComparedAnswers(Evidence(requests=sent))


def test_its_own_answer_is_the_first_one() -> None:
    assert sharing.own_answer("A")(parted()).startswith("alone alone")
    own, again = (
        sharing.shown(parted(), f"gate: A {kind}").facts for kind in ("alone", "again")
    )
    assert "against its own" not in own
    assert again["against its own"] == "token 1: 'again' against 'alone'"
    assert own["logprobs"] == "-0.500, -0.500, -0.500, -0.500, -0.500 …"


def test_what_did_not_start_anew_is_told_against_the_first_answer() -> None:
    evidence = alias_run(KV, aliases=False)
    by_label = {r.label: r for r in evidence.requests}
    first, again = by_label["W first"], by_label["gate: W again"]
    first.tokens, again.tokens = ["x"], ["y"]
    by_label["gate: W after others"].tokens = ["y"]
    results = evaluate(KV.conditions(run_facts(KV)), evidence)
    (found,) = (r for r in results if r.id == "starts-anew")
    assert found.observed.endswith("token 1: 'x' against 'W0'")


@pytest.mark.parametrize(
    ("before", "last", "found"), [(400, 200, True), (200, 400, False)]
)
def test_it_is_the_last_flush_that_counts(before: int, last: int, found: bool) -> None:
    evidence = alias_run(KV)
    (flush,) = (r for r in evidence.requests if r.label == sharing.FLUSH)
    flush.status = last
    earlier = request("gate", sharing.FLUSH, before, path="/flush_cache")
    evidence.requests = [earlier, *evidence.requests]
    assert (KV.gate_check(evidence).truth is Truth.MET) is found


@pytest.mark.parametrize(
    ("mitigations", "cached", "found"),
    [((), 31, MET), ((sharing.OFF,), 31, UNKNOWN), ((sharing.OFF,), 0, MET)],
)
def test_the_prefix_cache_is_off_where_it_was_to_be(
    mitigations: tuple[str, ...], cached: int, found: Truth
) -> None:
    evidence = alias_run(KV)
    for record in evidence.requests:
        if record.label in ("gate: W again", "gate: T again"):
            record.cached_tokens = cached if record.label == "gate: T again" else 0
    told = KV.off_as_told(ComparedAnswers(evidence), run_facts(KV, "", *mitigations))
    assert told.truth is found


def test_an_observer_is_told_of_all_but_preconditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = KV.live_conditions(LiveFacts("sglang", "0.5.17"))
    assert {c.part for c in live} == {"symptom", "cause"}
    releases: list[str] = []

    def conditions(scenario: Scenario, facts: RunFacts) -> list[Condition]:
        releases.append(facts.release)
        return []

    monkeypatch.setattr(type(KV), "conditions", conditions)
    for release in ("0.5.17", ""):
        assert KV.live_conditions(LiveFacts("sglang", release)) == []
    assert releases == ["0.5.17", KV.release]
