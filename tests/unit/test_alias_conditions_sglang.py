"""Conditions of SGLang's aliases on either side of each comparison, on made-up
evidence."""

from collections.abc import Callable

import pytest
from made_up_sglang import (
    EMBEDDING,
    KV,
    PREFIX,
    Change,
    alias_run,
    changed,
    facts_of_pair,
    filled,
    run,
    said,
    setting,
    truth,
    with_facts,
    without,
    without_fact,
)
from mmrepro.base.records import Fidelity
from mmrepro.failure.signature import Truth
from mmrepro.scenario import (
    Finding,
    Logs,
    Reproducers,
    Requests,
    RunFacts,
    Scenario,
    sglang as sharing,
)
from mmrepro.scenario.more import ComparedAnswers
from mmrepro.scenarios import shape_alias
from mmrepro.scenarios.pad_value_collision import SCENARIO as COLLISION, report
from mmrepro.traffic.evidence import Evidence, Missing

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


# ------------------------------------------------------------ the trigger, step by step


@pytest.mark.parametrize(
    ("label", "tokens", "expected"),
    [
        ("gate: A again", PREFIX, NOT_MET),
        ("gate: A again", PREFIX + 1, MET),
        ("gate: B again", PREFIX, NOT_MET),
        ("gate: B again", PREFIX + 1, MET),
        ("gate: B again", None, UNKNOWN),
    ],
)
def test_the_prefix_cache_holds_pictures(
    label: str, tokens: int | None, expected: Truth
) -> None:
    evidence = changed(run(collides=False), setting(label, cached_tokens=tokens))
    assert truth(COLLISION, evidence, "cache-on") is expected


@pytest.mark.parametrize(
    ("label", "tokens", "expected"),
    [
        ("B after A", PREFIX, MET),
        ("B after A", PREFIX - 1, NOT_MET),
        ("A after B", PREFIX - 1, NOT_MET),
        (sharing.OTHER, 0, NOT_MET),
        (sharing.OTHER, 1, MET),
    ],
)
def test_the_cache_was_not_emptied_between_the_two(
    label: str, tokens: int, expected: Truth
) -> None:
    evidence = changed(run(collides=False), setting(label, cached_tokens=tokens))
    assert truth(COLLISION, evidence, "text-shared") is expected


@pytest.mark.parametrize("scenario", [COLLISION, KV, EMBEDDING])
@pytest.mark.parametrize("which", [0, 1])
def test_each_order_starts_anew(scenario: Scenario, which: int) -> None:
    def made() -> Evidence:
        return run(collides=True) if scenario is COLLISION else alias_run(scenario)

    first, second = scenario.pair[which], scenario.pair[1 - which]  # type: ignore[attr-defined]
    label = f"{first} first"
    assert truth(scenario, made(), "starts-anew") is MET
    reused = changed(made(), setting(label, cached_tokens=1))
    assert truth(scenario, reused, "starts-anew") is NOT_MET
    wrong = changed(made(), setting(label, **said(second)))
    assert truth(scenario, wrong, "starts-anew") is NOT_MET
    assert truth(scenario, changed(made(), without(label)), "starts-anew") is UNKNOWN


def test_only_what_takes_the_trigger_away_on_purpose_waives_it() -> None:
    def waived(scenario: Scenario, *mitigations: str) -> dict[str, str]:
        run_facts = RunFacts(
            "0.5.17", Fidelity.CPU_STAND_IN, frozenset(mitigations), 13.0
        )
        return {c.id: c.waived for c in scenario.conditions(run_facts) if c.waived}

    off, salt = "disable-radix-cache", "cache-salt"
    assert waived(COLLISION, off) == {"cache-on": off, "text-shared": off}
    assert waived(COLLISION, salt) == {"text-shared": salt}
    assert waived(COLLISION, "extra-key") == {"text-shared": "extra-key"}
    assert waived(KV, off) == {"cache-on": off, "text-shared": off}
    assert waived(EMBEDDING, "disable-embedding-cache") == {
        "cache-on": "disable-embedding-cache"
    }
    assert waived(COLLISION) == waived(KV) == waived(EMBEDDING) == {}


@pytest.mark.parametrize("scenario", [KV, EMBEDDING])
def test_the_gate_needs_every_answer_and_the_last_flush(scenario: Scenario) -> None:
    assert scenario.gate_check(alias_run(scenario)).truth is MET
    failed = changed(
        alias_run(scenario), setting("gate: T again", status=500, error="x")
    )
    assert scenario.gate_check(failed).truth is NOT_MET
    assert scenario.gate_check(failed).observed == "gate: T again: x"
    refused = changed(alias_run(scenario), setting(sharing.FLUSH, status=400))
    assert scenario.gate_check(refused).truth is (NOT_MET if scenario is KV else MET)


# ------------------------------------------------------------------ claims


ORDERS = ("B after A", "A after B")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), MET),
        ((setting("B after A", cached_tokens=1),), UNKNOWN),
        ((setting("A after B", cached_tokens=1),), UNKNOWN),
        ((setting("B after A", **said("A")),), UNKNOWN),
        ((setting("A after B", **said("B")),), UNKNOWN),
        ((setting("B after A", **said("?")),), UNKNOWN),
        (
            (setting("B after A", **said("A")), setting("A after B", **said("B"))),
            NOT_MET,
        ),
        ((without_fact("match_b_after_a_other_key"),), UNKNOWN),
    ],
)
def test_a_salt_isolates_only_where_nothing_is_shared(
    changes: tuple[Change, ...], expected: Truth
) -> None:
    salted = changed(
        run(collides=False),
        *(setting(label, cached_tokens=0) for label in ORDERS),
        *changes,
    )
    run_facts = RunFacts(
        "0.5.17", Fidelity.CPU_STAND_IN, frozenset({"cache-salt"}), 13.0
    )
    given = (ComparedAnswers(salted), Reproducers(salted), run_facts)
    assert guarded(lambda: report.isolated(*given)) is expected


def guarded(check: Callable[[], Finding]) -> Truth:
    try:
        return check().truth
    except Missing:
        return UNKNOWN


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, MET),
        ({"pad_of_0": 1, "pad_of_2_30": 1}, NOT_MET),
        ({"pad_of_2_30": 1}, NOT_MET),
        ({"pad_of_0": 1}, NOT_MET),
        ({"pad_of_2_30_less_1": 1 << 30}, NOT_MET),
        ({"pad_of_2_30_less_1": (1 << 30) - 2}, NOT_MET),
        ({"pad_of_0": None}, UNKNOWN),
    ],
)
def test_the_range_of_pad_values(more: dict[str, int | None], expected: Truth) -> None:
    assert (
        report.pad_range(
            Reproducers(Evidence(reproducers=[facts_of_pair(**more)]))
        ).truth
        is expected
    )


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, NOT_MET),
        ({"pad_of_0": 9, "pad_of_2_30": 9}, NOT_MET),
        ({"pad_of_2_30": 9}, UNKNOWN),
        ({"pad_of_2_30": None, "pad_of_0": None}, UNKNOWN),
    ],
)
def test_half_a_chance(more: dict[str, int | None], expected: Truth) -> None:
    reproducers = Reproducers(Evidence(reproducers=[facts_of_pair(**more)]))
    assert report.half_chance(reproducers).truth is expected


def test_what_is_told_of_pad_values() -> None:
    few = Reproducers(Evidence(reproducers=[facts_of_pair()]))
    many = Reproducers(Evidence(reproducers=[facts_of_pair(pad_of_2_30=77)]))
    assert report.pad_range(few).observed.endswith(": 2^30 different ones")
    assert report.pad_range(many).observed.endswith(": more than 2^30 different ones")
    half = "50 % is reached at 38,582 images; 46,000 give 62.7%"
    assert report.half_chance(few).observed == half
    pools = report.curve().birthday
    assert pools is not None
    assert [p.images for p in pools.pools] == [38_582, 46_000, 10_000, 100_000]


@pytest.mark.parametrize(
    ("images", "expected"),
    [(38_582, MET), (38_200, MET), (38_950, MET), (37_500, NOT_MET), (39_500, NOT_MET)],
)
def test_a_pool_with_about_half_a_chance_would_be_confirmed(
    images: int, expected: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "REPORTED_POOL", images)
    reproducers = Reproducers(Evidence(reproducers=[facts_of_pair()]))
    assert report.half_chance(reproducers).truth is expected


def test_where_nothing_was_salted_there_is_nothing_to_keep_apart() -> None:
    shared = run(collides=True)
    for name, expected in (
        ("", MET),
        ("disable-radix-cache", MET),
        ("extra-key", UNKNOWN),
    ):
        mitigations = frozenset({name} - {""})
        run_facts = RunFacts("0.5.17", Fidelity.CPU_STAND_IN, mitigations, 13.0)
        found = COLLISION.apart_as_told(
            ComparedAnswers(shared), Logs(shared), run_facts
        )
        assert found.truth is expected
        assert (found.observed == "nothing was salted") is (expected is MET)


# ------------------------------------------------------------ conditions, by themselves


@pytest.mark.parametrize(
    "name", ["match_b_after_a", "tokens", "match_control_after_a", "prefix_tokens"]
)
def test_the_radix_cache_alone(name: str) -> None:
    assert truth(COLLISION, run(collides=True), "radix-match") is MET
    assert (
        truth(COLLISION, changed(run(collides=True), without_fact(name)), "radix-match")
        is UNKNOWN
    )
    other = changed(run(collides=True), with_facts(**{name: 5}))
    assert truth(COLLISION, other, "radix-match") is NOT_MET


@pytest.mark.parametrize("fact", ["hashes_equal", "grids_differ"])
def test_one_hash_of_two_grids(fact: str) -> None:
    assert truth(KV, alias_run(KV), "one-hash") is MET
    assert (
        truth(KV, changed(alias_run(KV), with_facts(**{fact: False})), "one-hash")
        is NOT_MET
    )
    assert truth(KV, changed(alias_run(KV), without_fact(fact)), "one-hash") is UNKNOWN


@pytest.mark.parametrize("victim", ["T after W", "W after T"])
def test_the_picture_itself_came_from_the_prefix_cache(victim: str) -> None:
    """Not only more than the control did, before which the cache may have been
    flushed."""
    for tokens, expected in ((PREFIX, NOT_MET), (PREFIX + 1, MET)):
        control = [setting(f"control after {p}", cached_tokens=0) for p in "WT"]
        evidence = changed(
            alias_run(KV), setting(victim, cached_tokens=tokens), *control
        )
        assert truth(KV, evidence, "kv-reused") is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (setting("B after A", status=201), UNKNOWN),
        (setting("A after B", finish_reason="abort"), NOT_MET),
        (setting("A after B", finish_reason="stop"), MET),
        (setting("B after A", finish_reason=None), NOT_MET),
    ],
)
def test_a_silent_answer_is_whole(change: Change, expected: Truth) -> None:
    assert truth(COLLISION, changed(run(collides=True), change), "silent") is expected


# ---------------------------------------------------------- item 9: the embedding cache


def both_own(evidence: Evidence) -> None:
    for label in ("W after T", LATER[1]):
        setting(label, **said("W"))(evidence)


LATER = ("T after W and others", "W after T and others")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda e: None, MET),
        (setting(LATER[0], **said("T")), NOT_MET),
        (setting(LATER[1], **said("W")), NOT_MET),
        (setting("T after W", **said("T")), NOT_MET),
        (both_own, NOT_MET),
        (setting("T first", **said("WT")), NOT_MET),
        (setting("W first", **said("TW")), NOT_MET),
        (without(LATER[0]), UNKNOWN),
        (without("T first"), UNKNOWN),
    ],
)
def test_item_9_the_embedding_cache_keeps_the_alias_as_long_as_it_has_room(
    change: Change, expected: Truth
) -> None:
    evidence = changed(alias_run(EMBEDDING), change)
    assert truth(EMBEDDING, evidence, "embeddings-kept") is expected


def test_the_order_in_which_it_was_not_kept_is_told() -> None:
    evidence = changed(alias_run(EMBEDDING), setting(LATER[1], **said("W")))
    found = shape_alias.embeddings_kept(ComparedAnswers(evidence))
    first = shape_alias.embeddings_kept(ComparedAnswers(alias_run(EMBEDDING))).observed
    assert found.observed.startswith("W after T")
    assert "in between: another answer; 5: its own" in found.observed
    assert first.startswith("T after W")


def twice(again: float, pairs: int = 2) -> Evidence:
    return Evidence(requests=[r for _ in range(pairs) for r in filled(again)])


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        (0.5, MET),
        (0.51, UNKNOWN),
        (0.79, UNKNOWN),
        (0.8, NOT_MET),
        (1.0, NOT_MET),
        (0.1, MET),
    ],
)
def test_a_picture_sent_again_tells_whether_it_was_encoded_again(
    again: float, expected: Truth
) -> None:
    assert shape_alias.encoded_once(Requests(twice(again))).truth is expected


def test_it_is_the_share_of_the_time_that_tells() -> None:
    slow = twice(0.3)
    for record in slow.requests:
        record.latency_s *= 4
    assert shape_alias.encoded_once(Requests(slow)).truth is MET


def test_few_pictures_tell_nothing_of_the_cache() -> None:
    assert shape_alias.encoded_once(Requests(twice(0.1, pairs=1))).truth is UNKNOWN
    first_only = twice(0.1)
    first_only.requests = [
        r for r in first_only.requests if not r.label.endswith("again")
    ]
    assert shape_alias.encoded_once(Requests(first_only)).truth is UNKNOWN
    refused = twice(0.1)
    refused.requests[-1].status = 503  # nine pairs are left
    assert refused.requests[-1].label == "fill-4 again"
    assert shape_alias.encoded_once(Requests(refused)).truth is UNKNOWN


def test_the_cache_is_at_work_where_it_serves_an_alias_or_a_picture_again() -> None:
    # An alias, and a machine so fast that the time tells nothing.
    slow = alias_run(EMBEDDING)
    slow.requests = [r for r in slow.requests if not r.label.startswith("fill")]
    assert (
        truth(
            EMBEDDING,
            changed(slow, lambda e: e.requests.extend(filled(1.0))),
            "cache-on",
        )
        is MET
    )
    # By its time.
    assert truth(EMBEDDING, alias_run(EMBEDDING, aliases=False), "cache-on") is MET
    off = alias_run(EMBEDDING, aliases=False)
    off.requests = [r for r in off.requests if not r.label.startswith("fill")] + twice(
        1.0
    ).requests
    assert truth(EMBEDDING, off, "cache-on") is NOT_MET


@pytest.mark.parametrize(
    ("again", "hashes_equal", "expected"),
    [
        (1.0, True, MET),
        (1.0, False, MET),
        (0.1, True, UNKNOWN),
        (0.1, False, MET),
        (0.6, True, UNKNOWN),
    ],
)
def test_own_answers_count_where_the_cache_cannot_have_made_them(
    again: float, hashes_equal: bool, expected: Truth
) -> None:
    evidence = twice(again)
    evidence.reproducers = alias_run(EMBEDDING).reproducers
    evidence.reproducers[0].facts["hashes_equal"] = hashes_equal
    found = shape_alias.was_emptied(Requests(evidence), Reproducers(evidence))
    assert found.truth is expected
