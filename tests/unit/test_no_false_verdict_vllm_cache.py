"""What was once said falsely of vLLM's multimodal caches: one test for each."""

import pytest
from made_up import (
    GHOST,
    LOOP,
    OTHER,
    POLLING,
    at,
    desync_run,
    drop,
    hang_run,
    healthy_run,
    judge,
    logs,
    looping,
    metrics,
    processes,
    request,
    stacks,
    swap,
    thread,
)
from made_up_crash import image
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import (
    LogsData,
    MetricSample,
)
from mmrepro.runs.judge import effect
from mmrepro.scenario import vllm
from mmrepro.scenarios.ghost_key_eviction import SCENARIO as GHOST_KEY
from mmrepro.scenarios.vllm_mm_caches import MM_CACHE_DESYNC as DESYNC
from mmrepro.traffic.evidence import Evidence
from vllm_runs import Change, claims, edited, facts, judged, log_line, relabel, truth

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, INCONCLUSIVE = Outcome.REPRODUCED, Outcome.INCONCLUSIVE
NOT_REPRODUCED, DIFFERENT = Outcome.NOT_REPRODUCED, Outcome.DIFFERENT_FAILURE


# ------------------------------------------------------------ item 3: the wrong failure


def one_at_a_time(evidence: Evidence) -> None:
    for number, record in enumerate(evidence.requests):
        record.sent = at(20 * number)


def other_hang() -> Evidence:
    """It hangs, elsewhere; the installed class has the fault all the same."""
    return edited(hang_run, lambda e: swap(e, stacks(*[thread(*POLLING)] * 5)))


@pytest.mark.parametrize(
    "change",
    [
        lambda e: swap(e, stacks(*[thread(*POLLING)] * 5)),
        lambda e: swap(e, looping(OTHER)),
        lambda e: swap(e, logs()),
        lambda e: drop(e, "stacks"),
    ],
    ids=["another stack", "another key", "no assertion", "no stacks"],
)
def test_item_3_a_hang_without_the_ghost_key_says_nothing_of_it(change: Change) -> None:
    told = claims(GHOST_KEY, edited(hang_run, change))
    assert (told["cause"], told["at-will"]) == ("not-tested", "not-tested")
    told = claims(GHOST_KEY, edited(hang_run, one_at_a_time))
    assert (told["cause"], told["at-will"]) == ("confirmed", "refuted")


def test_item_3_the_hang_of_0_12_says_nothing_of_the_one_reported() -> None:
    told = claims(GHOST_KEY, other_hang(), "0.12.0")
    for name in ("stack", "cause", "at-will", "step-2"):
        assert told[name] == ("confirmed" if name == "step-2" else "not-tested")
    assert claims(GHOST_KEY, other_hang(), "0.14.0")["stack"] == "refuted"
    assert claims(GHOST_KEY, other_hang(), "0.24.0")["stack"] == "not-tested"


def test_item_3_at_will_takes_requests_one_at_a_time() -> None:
    evidence = edited(hang_run, one_at_a_time)
    first, second = evidence.requests_in("trigger")[:2]
    assert claims(GHOST_KEY, evidence)["at-will"] == "refuted"
    first.latency_s = second.sent.mono - first.sent.mono
    assert claims(GHOST_KEY, evidence)["at-will"] == "refuted"
    first.latency_s += 0.1
    assert claims(GHOST_KEY, evidence)["at-will"] == "not-tested"


# ----------------------------------------------------------- item 4: it never got there


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        (relabel(vllm.TOO_LONG, 200), "refused-for-length", NOT_MET),
        (
            relabel(vllm.TOO_LONG, 400, "At most 0 images"),
            "refused-for-length",
            NOT_MET,
        ),
        (relabel(vllm.TOO_LONG, 500, "length 3, maximum model length of 2"), "", MET),
        (lambda e: swap(e, metrics(mm_hits=0), phase="gate"), "cache-on", NOT_MET),
        (lambda e: drop(e, "metrics", phase="gate"), "cache-on", UNKNOWN),
        (lambda e: swap(e, logs(added=40)), "broken-promise", NOT_MET),
        (lambda e: drop(e, "processes"), "broken-promise", UNKNOWN),
        (lambda e: e.facts.update(mm_cache_hits_after=3), "evicted", NOT_MET),
        (
            lambda e: e.facts.update(mm_cache_hits_before=0, mm_cache_hits_after=0),
            "evicted",
            UNKNOWN,
        ),
        (lambda e: e.facts.update(mm_cache_hits_after=None), "evicted", UNKNOWN),
    ],
)
def test_item_4_no_hang_means_nothing_where_nothing_was_evicted(
    change: Change, name: str, expected: Truth
) -> None:
    evidence = edited(healthy_run, change)
    assert truth(GHOST_KEY, evidence, name or "cache-on") is expected
    assert judge(GHOST_KEY, evidence, "0.24.0")[0] in (
        (INCONCLUSIVE,) if name else (INCONCLUSIVE, DIFFERENT)
    )
    assert judge(GHOST_KEY, healthy_run(), "0.24.0")[0] is NOT_REPRODUCED


def with_images(evidence: Evidence) -> None:
    for record in evidence.requests_in("gate", "trigger"):
        record.images = image("", (420, 420)).images


def arguments(text: str) -> Change:
    return log_line(vllm.ARGUMENTS, f"non-default args: {{'host': '::', {text}}}")


def parsed(value: str) -> Change:
    return arguments(f"'mm_processor_cache_gb': {value}, 'max_num_seqs': 8")


def answered_x(evidence: Evidence) -> None:
    relabel(vllm.AGAIN, 200)(evidence)
    for record in evidence.labelled(vllm.AGAIN):
        record.completion_tokens = 4
    swap(evidence, logs())
    evidence.facts["mm_cache_hits_after"] = 2


@pytest.mark.parametrize(
    ("error", "holds"),
    [
        ("Input length (2144) exceeds model's maximum context length (2048).", MET),
        (
            (
                "The decoder prompt (length 2144) is longer than the maximum model "
                "length of 2048. M"
            ),
            MET,
        ),
        (
            (
                "The decoder prompt (length 2048) is longer than the maximum model "
                "length of 2048."
            ),
            NOT_MET,
        ),
        ("the length of the name is wrong", NOT_MET),
        ("", NOT_MET),
    ],
)
def test_item_4_a_refusal_for_its_length_names_both_lengths(
    error: str, holds: Truth
) -> None:
    evidence = edited(desync_run, relabel(vllm.TOO_LONG, 400, error))
    assert truth(DESYNC, evidence, "refused-for-length") is holds
    assert (
        truth(
            DESYNC,
            edited(desync_run, relabel(vllm.TOO_LONG, 413, error)),
            "refused-for-length",
        )
        is NOT_MET
    )


@pytest.mark.parametrize(
    "change",
    [
        relabel(vllm.TOO_LONG, 200),
        relabel(
            vllm.TOO_LONG, 400, "At most 0 image(s) may be provided in one prompt."
        ),
        lambda e: swap(e, metrics(mm_hits=0, mm_queries=0), phase="gate"),
        lambda e: drop(e, "metrics", phase="gate"),
    ],
    ids=[
        "too long was answered",
        "refused for something else",
        "cache off",
        "cache not seen",
    ],
)
def test_item_4_no_500_means_nothing_where_no_promise_was_made(change: Change) -> None:
    healthy = edited(desync_run, answered_x)
    assert judge(DESYNC, healthy, "0.24.0")[0] is NOT_REPRODUCED
    assert claims(DESYNC, healthy, "0.24.0")["fixed-desync"] == "confirmed"
    assert claims(DESYNC, healthy, "0.24.0")["step-2"] == "refuted"
    change(healthy)
    assert judge(DESYNC, healthy, "0.24.0")[0] is INCONCLUSIVE
    assert claims(DESYNC, healthy, "0.24.0")["fixed-desync"] == "not-tested"
    assert claims(DESYNC, healthy, "0.24.0")["step-2"] == "not-tested"
    assert claims(DESYNC, healthy, "0.24.0")["two-caches"] == "not-tested"


def test_item_4_a_mitigation_takes_away_only_what_it_is_for() -> None:
    """Without the cache nobody looks for hits in it; a request that was answered is no
    refusal."""
    unused = metrics(mm_hits=0, mm_queries=0)
    off = edited(
        desync_run, answered_x, with_images, lambda e: swap(e, unused, phase="gate")
    )
    given = facts(DESYNC, by=("disable-mm-cache",))
    verdict = judged(DESYNC, off, given)
    assert verdict.outcome is NOT_REPRODUCED
    assert effect(DESYNC, off, given, verdict).word == "prevented"
    relabel(vllm.TOO_LONG, 200)(off)
    verdict = judged(DESYNC, off, given)
    assert verdict.outcome is INCONCLUSIVE
    assert effect(DESYNC, off, given, verdict).word == "not-told"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((lambda e: swap(e, metrics(mm_hits=0, mm_queries=0), phase="gate"),), MET),
        ((lambda e: swap(e, metrics(mm_hits=0, mm_queries=1), phase="gate"),), NOT_MET),
        ((lambda e: drop(e, "metrics", phase="gate"),), UNKNOWN),
        ((lambda e: drop(e, "metrics", phase="gate"), parsed("4.0")), NOT_MET),
        (
            (lambda e: drop(e, "metrics", phase="gate"), parsed("0.02"), parsed("0.0")),
            NOT_MET,
        ),
        ((lambda e: drop(e, "metrics", phase="gate"), parsed("0.0")), MET),
        ((lambda e: drop(e, "metrics", phase="gate"), parsed("0")), MET),
    ],
)
def test_item_4_a_mitigation_without_effect_prevented_nothing(
    changes: tuple[Change, ...], expected: Truth
) -> None:
    """The counters before the log: a release that has none has logged what it was
    given."""
    off = edited(desync_run, answered_x, with_images, *changes)
    given = facts(DESYNC, by=("disable-mm-cache",))
    verdict = judged(DESYNC, off, given)
    assert next(r.truth for r in verdict.conditions if r.id == "cache-off") is expected
    assert verdict.outcome is (NOT_REPRODUCED if expected is MET else INCONCLUSIVE)
    assert effect(DESYNC, off, given, verdict).prevented is (
        True if expected is MET else None
    )
    plain = judged(DESYNC, off, facts(DESYNC))
    assert not [r for r in plain.conditions if r.id == "cache-off"]


def test_item_4_lines_of_another_process_are_no_broken_promise() -> None:
    """A log that goes on where yesterday's ended."""
    evidence = desync_run()
    (log,) = (d for _, d in evidence.results(LogsData, "check"))
    for line in log.matches["cached-item-assertion"]:
        line.process = "EngineCore pid=17640"
    assert judge(DESYNC, evidence)[0] is DIFFERENT
    assert claims(DESYNC, evidence)["two-caches"] == "refuted"
    hang = edited(
        hang_run, lambda e: swap(e, processes(user=97.0), processes(user=97.0))
    )
    (log,) = (d for _, d in hang.results(LogsData, "check"))
    log.matches["cached-item-assertion"][0].process = "EngineCore pid=176"
    assert truth(GHOST_KEY, hang, "cached-item-assertion") is NOT_MET
    assert truth(GHOST_KEY, hang, "broken-promise") is NOT_MET


def test_item_4_an_eviction_that_does_not_end_is_one() -> None:
    """Seen in the stacks, in popitem; and an image that fails again tells of none."""
    assert (
        truth(GHOST_KEY, edited(healthy_run, relabel("fill 1, again", 500)), "evicted")
        is UNKNOWN
    )
    assert truth(GHOST_KEY, hang_run(), "evicted") is MET
    elsewhere = edited(
        hang_run, lambda e: swap(e, stacks(*[thread(*LOOP[1:], key=GHOST)] * 5))
    )
    assert truth(GHOST_KEY, elsewhere, "evicted") is UNKNOWN
    assert truth(GHOST_KEY, other_hang(), "evicted") is UNKNOWN
    assert judge(GHOST_KEY, hang_run())[0] is REPRODUCED


# ----------------------------------------------------------- item 5: a flip took effect


def configured(value: str | None, name: str = "vllm:cache_config_info") -> Change:
    def change(evidence: Evidence) -> None:
        data = metrics()
        labels = {} if value is None else {"enable_prefix_caching": value}
        data.samples.append(MetricSample(name=name, labels=labels, value=1.0))
        swap(evidence, data)

    return change


def not_refused(evidence: Evidence) -> None:
    (sent,) = evidence.labelled(vllm.TOO_LONG)
    sent.label, sent.status, sent.error = vllm.SHORT, 200, ""


def refused_as_well(evidence: Evidence) -> None:
    evidence.requests.append(request("trigger", vllm.TOO_LONG, 400))


def no_lookups(evidence: Evidence) -> None:
    swap(evidence, metrics(mm_queries=0))
    swap(evidence, metrics(mm_queries=0), phase="gate")


def one_lookup(evidence: Evidence) -> None:
    swap(evidence, metrics(mm_queries=0), metrics(mm_queries=1))


def unanswered(evidence: Evidence) -> None:
    for record in evidence.requests_in("gate", "trigger"):
        record.status = 500


def patched(*methods: str) -> Change:
    def change(evidence: Evidence) -> None:
        for name in methods:
            text = f"mmrepro: LRUCache.{name} is patched"
            log_line("ghost_key_patch-loaded", text, process="")(evidence)

    return change


def fewer_fills(evidence: Evidence) -> None:
    evidence.requests = [r for r in evidence.requests if r.label != "fill 30"]


def hit(evidence: Evidence) -> None:
    evidence.facts["mm_cache_hits_after"] = 3


def nothing(evidence: Evidence) -> None:
    return


@pytest.mark.parametrize(
    ("factor", "changes", "expected"),
    [
        ("prefix-caching", (), UNKNOWN),
        ("prefix-caching", (configured("True"),), NOT_MET),
        ("prefix-caching", (configured(None),), UNKNOWN),
        ("prefix-caching", (configured("False"),), MET),
        ("prefix-caching", (configured("False", "vllm:other"),), UNKNOWN),
        ("concurrency", (), UNKNOWN),
        ("concurrency", (arguments("'max_num_seqs': 8"),), NOT_MET),
        ("concurrency", (arguments("'max_num_seqs': 1"),), MET),
        ("concurrency", (arguments("'max_num_seqs': 1, 'x': 2"),), MET),
        ("concurrency", (arguments("'max_model_len': 1"),), UNKNOWN),
        (
            "concurrency",
            (arguments("'max_num_seqs': 1"), arguments("'max_num_seqs': 8")),
            NOT_MET,
        ),
        ("cache-size", (), NOT_MET),
        ("cache-size", (hit,), MET),
        ("cache-size", (hit, fewer_fills), NOT_MET),
        ("cache-size", (lambda e: e.facts.clear(),), UNKNOWN),
        ("refusal", (), UNKNOWN),
        ("refusal", (not_refused,), MET),
        ("refusal", (not_refused, refused_as_well), NOT_MET),
        ("refusal", (not_refused, relabel(vllm.SHORT, 400, "too long")), NOT_MET),
        ("mm-cache", (), UNKNOWN),  # no image was sent
        ("mm-cache", (with_images,), NOT_MET),
        ("mm-cache", (with_images, no_lookups), MET),
        ("mm-cache", (with_images, no_lookups, one_lookup), NOT_MET),
        ("mm-cache", (with_images, no_lookups, unanswered), UNKNOWN),
        (
            "mm-cache",
            (
                with_images,
                lambda e: (drop(e, "metrics"), drop(e, "metrics", phase="gate")),
            ),
            UNKNOWN,
        ),
        ("touch-fix", (), UNKNOWN),
        ("touch-fix", (patched("touch"),), MET),
        ("touch-fix", (patched("touch", "touch"),), MET),  # in each process
        ("touch-fix", (patched("popitem"),), NOT_MET),
        ("touch-fix", (patched("touch", "popitem"),), NOT_MET),
        ("popitem-fix", (patched("touch"),), NOT_MET),
        ("popitem-fix", (patched("popitem"),), MET),
    ],
)
def test_item_5_a_flip_took_effect_only_where_the_engine_says_so(
    factor: str, changes: tuple[Change, ...], expected: Truth
) -> None:
    evidence = edited(healthy_run, *changes)
    assert truth(GHOST_KEY, evidence, f"flip-{factor}", factor) is expected


def test_item_5_every_factor_has_its_check() -> None:
    for scenario in (GHOST_KEY, DESYNC):
        for factor in scenario.factors:
            told = judged(
                scenario, Evidence(), facts(scenario, "", factor.name)
            ).conditions
            (flip,) = [r for r in told if r.part == "flip"]
            assert flip.truth is UNKNOWN
            assert "does not say what shows" not in flip.observed


def test_item_5_both_halves_of_the_fix_cannot_be_flipped_together() -> None:
    """One variable names the half: the later factor's stands."""
    evidence = edited(healthy_run, patched("popitem"))
    results = judged(
        GHOST_KEY, evidence, facts(GHOST_KEY, "", "touch-fix", "popitem-fix")
    )
    flips = {r.id: r.truth for r in results.conditions if r.part == "flip"}
    assert flips == {"flip-touch-fix": NOT_MET, "flip-popitem-fix": MET}


def test_item_5_a_flip_that_took_no_effect_takes_no_precondition_away() -> None:
    evidence = edited(healthy_run, with_images, lambda e: swap(e, logs(added=40)))
    flipped = facts(GHOST_KEY, "", "mm-cache")
    assert judged(GHOST_KEY, evidence, flipped).outcome is INCONCLUSIVE
    no_lookups(evidence)
    assert judged(GHOST_KEY, evidence, flipped).outcome is NOT_REPRODUCED
