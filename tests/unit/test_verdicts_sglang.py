"""SGLang's aliases on made-up evidence: one thing changed at a time, and the verdict
turns."""

from pathlib import Path

import pytest
from made_up import http
from made_up_sglang import (
    EMBEDDING,
    KV,
    PREFIX,
    PROMPT,
    Change,
    alias_run,
    facts_of_pair,
    filled,
    judge,
    log,
    run,
    said,
    setting,
    swapped,
    without,
    without_fact,
)
from mmrepro.base.records import ClaimStatus, Fidelity
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.runs.judge import with_pictures
from mmrepro.scenario import RunFacts, Scenario, sglang as sharing
from mmrepro.scenario.more import tiles
from mmrepro.scenarios import pad_value_collision as collision, shape_alias
from mmrepro.scenarios.data import pad_value_pair
from mmrepro.scenarios.pad_value_collision import SCENARIO as COLLISION, traffic
from mmrepro.traffic.evidence import Evidence, Missing
from turns import Row, ran, to

REPRODUCED, NOT_REPRODUCED = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED
INCONCLUSIVE, DIFFERENT = Outcome.INCONCLUSIVE, Outcome.DIFFERENT_FAILURE


def test_own_answers_are_not_reproduced() -> None:
    outcome, truths = judge(COLLISION, run(collides=False))
    assert outcome is NOT_REPRODUCED
    assert (
        truths["b-gets-a"]
        is truths["kv-reused"]
        is truths["equal-pad-values"]
        is Truth.NOT_MET
    )


def control_shares_the_picture(evidence: Evidence) -> None:
    setting("control after A", cached_tokens=PREFIX + 1)(evidence)


def as_056(evidence: Evidence) -> None:
    """0.5.6 reports nothing for nothing; its counter tells."""
    for record in evidence.requests:
        record.cached_tokens = record.cached_tokens or None
    evidence.facts["cached_tokens_total"] = sum(
        r.cached_tokens or 0 for r in evidence.requests
    )


def no_probe(evidence: Evidence) -> None:
    evidence.probes.pop()


ROWS: dict[str, Row] = {
    "the control shares more than the text": (
        control_shares_the_picture,
        "inconclusive ?control",
    ),
    "B's answer is its own": (
        setting("B after A", **said("B", PROMPT - 1)),
        "different -b-gets-a",
    ),
    "B's answer is nobody's": (
        setting("B after A", **said("?", PROMPT - 1)),
        "different -b-gets-a",
    ),
    "one logprob differs": (
        setting("B after A", logprobs=[-0.65, -0.66, -0.67, -0.69]),
        "different -b-gets-a",
    ),
    "one order only": (
        setting("A after B", **said("A", PREFIX)),
        "different -a-gets-b -kv-reused",
    ),
    "B was not answered": (
        setting("B after A", status=500),
        "inconclusive ?text-shared ?b-gets-a ?silent ?kv-reused",
    ),
    "the answer broke off": (
        setting("B after A", finish_reason="abort"),
        "different -silent",
    ),
    "wrong answers without the cache": (
        setting("B after A", cached_tokens=PREFIX),
        "different -kv-reused",
    ),
    "what was shared is unknown": (
        setting("B after A", cached_tokens=None),
        "inconclusive ?text-shared ?kv-reused",
    ),
    "the control's answer is A's": (
        setting("control after A", **said("A", PREFIX)),
        "different -control",
    ),
    "no control": (without("control after B"), "inconclusive ?control"),
    "the prefix is unknown": (
        without("gate: other picture after another"),
        "inconclusive ?cache-on ?text-shared ?control ?kv-reused",
    ),
    "A and B are answered alike": (
        setting("gate: B alone", **said("A")),
        "inconclusive -b-gets-a",
    ),
    "control and B are answered alike": (
        setting("gate: control again", **said("B")),
        "inconclusive",
    ),
    "answers do not repeat": (
        setting("gate: A again", **said("x", PROMPT - 1)),
        "inconclusive",
    ),
    "no logprobs": (setting("gate: A alone", logprobs=[]), "inconclusive"),
    "a gate request failed": (
        setting("gate: B again", status=500),
        "inconclusive ?cache-on",
    ),
    "the cache was not flushed": (setting(sharing.FLUSH, status=400), "inconclusive"),
    "never flushed": (without(sharing.FLUSH), "inconclusive"),
    "pad values differ": (
        ran(facts_of_pair(pads_equal=False)),
        "different -equal-pad-values",
    ),
    "hashes are equal as well": (
        ran(facts_of_pair(hashes_differ=False)),
        "different -equal-pad-values",
    ),
    "no reproducer": (
        ran(),
        "inconclusive ?pair-agrees ?equal-pad-values ?radix-match",
    ),
    "a pretended kernel was called": (
        swapped(log(calls=1)),
        "inconclusive ?no-pretended-kernel",
    ),
    "the stand-in is not in the log": (
        swapped(log(loaded=0)),
        "inconclusive ?no-pretended-kernel",
    ),
    "no log": (no_probe, "inconclusive ?no-pretended-kernel"),
    "zero is reported as nothing": (as_056, "reproduced"),
    "red endpoints": (to(http(200, 503)), "reproduced -endpoints-green"),
    "it does not say whether pad values are equal": (
        without_fact("pads_equal"),
        "inconclusive ?equal-pad-values",
    ),
    "it does not say whether hashes differ": (
        without_fact("hashes_differ"),
        "inconclusive ?equal-pad-values",
    ),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (control_shares_the_picture, INCONCLUSIVE),
        (without("B after A"), INCONCLUSIVE),
        (setting("B after A", status=500), DIFFERENT),
        (setting("control after B", status=500), INCONCLUSIVE),
        (setting("B after A", **said("?", PREFIX)), DIFFERENT),
        (as_056, NOT_REPRODUCED),
    ],
)
def test_a_healthy_run_is_not_taken_on_trust(change: Change, expected: Outcome) -> None:
    evidence = run(collides=False)
    change(evidence)
    assert judge(COLLISION, evidence)[0] is expected


def test_nothing_counts_as_zero_only_if_the_counter_agrees() -> None:
    evidence = run(collides=True)
    as_056(evidence)
    evidence.facts["cached_tokens_total"] = 1
    assert sharing.ComparedAnswers(evidence).to("A first").cached_tokens is None
    with pytest.raises(Missing, match="A first: what came from the cache is unknown"):
        sharing.ComparedAnswers(evidence).cached("A first")


def test_without_a_stand_in_nothing_is_asked_of_it() -> None:
    evidence = run(collides=True)
    swapped(log(loaded=0))(evidence)
    assert judge(COLLISION, evidence, Fidelity.GPU)[0] is REPRODUCED


# -------------------------------------------------------------- claims and expectations


def claims(
    evidence: Evidence, release: str, *mitigations: str
) -> dict[str, ClaimStatus]:
    facts = RunFacts(release, Fidelity.CPU_STAND_IN, frozenset(mitigations), 13.0)
    return {c.id: c.status for c in COLLISION.claim_results(evidence, facts)}


def test_claims_of_a_collision() -> None:
    yes, no, untested = (
        ClaimStatus.CONFIRMED,
        ClaimStatus.REFUTED,
        ClaimStatus.NOT_TESTED,
    )
    found = claims(run(collides=True), "0.5.6")
    assert found == {
        "pad-range": yes,
        "half-chance": no,
        "kv-reused": yes,
        "a-features": yes,
        "embeddings": no,
        "extra-key": untested,
        "key-from-hash": untested,
        "full-hash": untested,
        "widened-2256": yes,
        **dict.fromkeys((claim.id for claim in traffic.CLAIMS), untested),
    }
    assert claims(run(collides=True), "0.5.6", "cache-salt")["extra-key"] is no
    salted = run(collides=False)
    salted.reproducers = [facts_of_pair()]
    for label in ("B after A", "A after B"):
        setting(label, cached_tokens=0)(salted)
    assert claims(salted, "0.5.17", "cache-salt")["extra-key"] is yes
    healthy = claims(run(collides=False), "0.5.23")
    # pictures with different pad values tell nothing of those with equal ones
    assert {healthy[c] for c in ("kv-reused", "a-features")} == {untested}
    shifted = run(collides=True)
    shifted.reproducers = [
        facts_of_pair(
            pad_of_0=10**6, pad_of_2_30_less_1=10**6 + 2**30 - 1, pad_of_2_30=10**6
        )
    ]
    assert claims(shifted, "0.5.17")["pad-range"] is no


@pytest.mark.parametrize(
    ("release", "mitigation", "outcome"),
    [
        ("0.5.6", "", REPRODUCED),
        ("0.5.17", "", REPRODUCED),
        ("0.5.22", "", REPRODUCED),
        ("0.5.23", "", NOT_REPRODUCED),
        ("0.5.6", "cache-salt", REPRODUCED),
        ("0.5.10", "extra-key", REPRODUCED),
        ("0.5.11", "extra-key", NOT_REPRODUCED),
        ("0.5.17", "cache-salt", NOT_REPRODUCED),
        ("0.5.6", "disable-radix-cache", NOT_REPRODUCED),
    ],
)
def test_what_is_expected(release: str, mitigation: str, outcome: Outcome) -> None:
    found, why = COLLISION.expected(
        release, frozenset({mitigation} if mitigation else ())
    )
    assert found is outcome
    dropped = outcome is REPRODUCED and mitigation
    field = mitigation.replace("-", "_")
    assert (f"its scheduler drops {field}, which is passed on" in why) == bool(dropped)
    assert ("drops" in why) == bool(dropped)


def test_the_shipped_pair_is_there() -> None:
    pair = collision.read_pair(pad_value_pair())
    assert set(pair) == {"A", "B", "control"}
    assert len({p.png for p in pair.values()}) == 3
    assert all(len(p.png) < 20_000 for p in pair.values())


def test_a_missing_pair_is_said(tmp_path: Path) -> None:
    from mmrepro.base.errors import UsageError

    with pytest.raises(UsageError, match=r"A\.png cannot be read"):
        collision.read_pair(tmp_path)


def test_the_comparison_shows_pictures_and_answers() -> None:
    run_facts = RunFacts("0.5.6", Fidelity.CPU_STAND_IN, frozenset(), 13.0)
    exhibits = COLLISION.exhibits(run(collides=True), run_facts)
    sides, birthday = with_pictures(exhibits, pad_value_pair())
    texts = {s.caption: s.text for s in sides.shown}
    assert texts["B after A"] == texts["A alone"] != texts["B alone"]
    assert all(s.png.startswith(b"\x89PNG") for s in sides.shown)
    assert birthday.birthday is not None
    assert 38_582 in [p.images for p in birthday.birthday.pools]


def test_a_run_without_its_files_shows_the_answers_alone(tmp_path: Path) -> None:
    (tmp_path / "A.png").write_bytes(b"x" * ((1 << 20) + 1))
    run_facts = RunFacts("0.5.6", Fidelity.CPU_STAND_IN, frozenset(), 13.0)
    evidence = run(collides=True)
    without("control after A")(evidence)
    sides, _ = with_pictures(COLLISION.exhibits(evidence, run_facts), tmp_path)
    assert {s.png for s in sides.shown} == {b""}
    assert [s.file for s in sides.shown] == ["A.png", "B.png", "B.png", "control.png"]
    assert sides.shown[-1].text == "no answer"
    assert sides.shown[2].facts["against its own"].startswith("token 1")


# ------------------------------------------------------------------ the shape alias


@pytest.mark.parametrize("scenario", [KV, EMBEDDING])
def test_the_alias(scenario: Scenario) -> None:
    outcome, truths = judge(scenario, alias_run(scenario))
    assert outcome is REPRODUCED
    assert set(truths.values()) == {Truth.MET}
    healthy = alias_run(scenario, aliases=False)
    if scenario is EMBEDDING:  # one hash, a cache that is on, and no alias: hardly
        assert judge(scenario, healthy)[0] is INCONCLUSIVE
        healthy.requests = [
            r for r in healthy.requests if not r.label.startswith("fill")
        ]
        healthy.requests += [*filled(1.0), *filled(1.0)]
        off = frozenset({"disable-embedding-cache"})
        assert judge(scenario, healthy, mitigations=off)[0] is NOT_REPRODUCED
    else:
        assert judge(scenario, healthy)[0] is NOT_REPRODUCED


@pytest.mark.parametrize(
    ("scenario", "change", "expected"),
    [
        (KV, setting("T after W", cached_tokens=PREFIX), DIFFERENT),
        (EMBEDDING, setting("T after W", cached_tokens=PREFIX), DIFFERENT),
        (KV, setting("control after W", **said("W", PREFIX)), DIFFERENT),
        (KV, without("control after W"), INCONCLUSIVE),
        (KV, setting("W after T", **said("W", PREFIX)), INCONCLUSIVE),
        (KV, lambda e: setattr(e, "reproducers", []), INCONCLUSIVE),
        (KV, setting("gate: T alone", **said("W")), INCONCLUSIVE),
        (EMBEDDING, swapped(log(calls=2)), INCONCLUSIVE),
    ],
)
def test_the_alias_with_one_thing_changed(
    scenario: Scenario, change: Change, expected: Outcome
) -> None:
    evidence = alias_run(scenario)
    change(evidence)
    assert judge(scenario, evidence)[0] is expected


def test_the_tiles_lie_in_another_layout() -> None:
    pictures = shape_alias.KvCache().pictures(None)  # type: ignore[arg-type]
    wide, tall = pictures["W"], pictures["T"]
    assert (wide.width, wide.height) == (tall.height, tall.width) == (112, 56)
    assert wide.png != tall.png
    made = {
        "W": tiles("W", 2, 4, 7),
        "T": tiles("T", 4, 2, 7),
        "control": tiles("control", 4, 2, 8),
    }
    assert {name: picture.png for name, picture in pictures.items()} == {
        name: picture.png for name, picture in made.items()
    }
    # Of a picture that fills the cache.
    assert shape_alias.KvCache.model.image_tokens == 1024
