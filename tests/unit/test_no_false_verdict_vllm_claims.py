"""What vLLM's cache scenarios say of the original report: by what each claim stands or
falls."""

import pytest
from made_up import (
    GHOST,
    LOOP,
    OTHER,
    POLLING,
    desync_run,
    drop,
    ghost_key,
    hang_run,
    healing_run,
    healthy_run,
    logs,
    metrics,
    processes,
    request,
    stacks,
    swap,
    thread,
)
from mmrepro.base.records import Moment
from mmrepro.failure.signature import Truth
from mmrepro.failure.signature.decide import guarded
from mmrepro.probes.data import LogLine, LogsData, ThreadStack
from mmrepro.scenario import Scenario, vllm
from mmrepro.scenario.definition import bind
from mmrepro.scenarios.ghost_key_eviction import SCENARIO as GHOST_KEY, ghost
from mmrepro.scenarios.vllm_mm_caches import MM_CACHE_DESYNC as DESYNC
from mmrepro.traffic.evidence import Evidence, ReproducerResult
from vllm_runs import Change, claims, edited, facts, relabel, truth

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


def told_by(reproducer: ReproducerResult) -> dict[str, str]:
    return claims(
        GHOST_KEY, edited(hang_run, lambda e: e.reproducers.__setitem__(0, reproducer))
    )


@pytest.mark.parametrize(
    ("ends", "touch", "popitem", "first", "second"),
    [
        (False, True, False, "confirmed", "refuted"),
        (False, False, True, "refuted", "confirmed"),
        (True, True, True, "not-tested", "not-tested"),
        (True, False, False, "not-tested", "not-tested"),
    ],
)
def test_each_part_of_the_fix_is_judged_where_something_loops(
    ends: bool, touch: bool, popitem: bool, first: str, second: str
) -> None:
    alone = ghost_key(
        eviction_ends=ends,
        eviction_ends_with_touch_fix=touch,
        eviction_ends_with_popitem_fix=popitem,
    )
    said = told_by(alone)
    assert (said["first-layer"], said["second-layer"]) == (first, second)


@pytest.mark.parametrize(
    ("engine_ends", "ends", "more", "status"),
    [
        (False, True, False, "refuted"),
        (False, True, True, "refuted"),
        (False, False, False, "confirmed"),
        (True, True, True, "not-tested"),
    ],
)
def test_the_articles_unit_test_is_held_to_what_it_says(
    engine_ends: bool, ends: bool, more: bool, status: str
) -> None:
    played = ghost_key(
        eviction_ends=engine_ends,
        article_test_ends=ends,
        insert_after_article_test_ends=more,
    )
    assert told_by(played)["unit-test-hangs"] == status
    facts = {k: v for k, v in played.facts.items() if k != "article_test_ends"}
    older = played.model_copy(update={"facts": facts})
    assert told_by(older)["unit-test-hangs"] == "not-tested"


@pytest.mark.parametrize(
    ("ends_after_s", "status", "more", "told"),
    [
        (8.0, 200, 0, "refuted"),
        (60.0, None, 90, "refuted"),
        (60.0, None, 0, "confirmed"),
        (0.2, 200, 0, "not-tested"),
    ],
)
def test_a_stream_across_the_hang_says_who_was_blocked(
    ends_after_s: float, status: int | None, more: int, told: str
) -> None:
    def streams(evidence: Evidence) -> None:
        hung = next(r for r in evidence.labelled("fill") if not r.answered)
        stream = request(
            "trigger", ghost.STREAM, status, ttft_s=0.1, completion_tokens=1800
        )
        stream.sent = Moment(wall=hung.sent.wall, mono=hung.sent.mono - 1)
        stream.latency_s = ends_after_s + 1
        evidence.requests.append(stream)
        evidence.facts |= {"generated_when_full": 500, "generated_later": 500 + more}

    assert claims(GHOST_KEY, edited(hang_run, streams))["gil-blocks-all"] == told
    assert claims(GHOST_KEY, hang_run())["gil-blocks-all"] == "not-tested"


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((5.4, 0.0), "confirmed"),
        ((5.4, 12.9), "refuted"),
        ((0.0, 0.0), "not-tested"),
        ((0.0,), "not-tested"),
    ],
)
def test_throughput_has_to_have_been_some(rates: tuple[float, ...], told: str) -> None:
    def logged(evidence: Evidence) -> None:
        lines = [
            LogLine(
                number=n, text=f"Avg generation throughput: {rate} tokens/s, Running: 0"
            )
            for n, rate in enumerate(rates)
        ]
        for _, data in evidence.results(LogsData, "check"):
            data.matches[ghost.THROUGHPUT] = lines
            data.match_counts[ghost.THROUGHPUT] = len(lines)

    assert claims(GHOST_KEY, edited(hang_run, logged))["throughput"] == told


def test_prefix_caching_is_not_needed_where_it_hangs_without() -> None:
    assert claims(GHOST_KEY, hang_run())["needs-prefix-caching"] == "not-tested"


def timed_out(evidence: Evidence) -> None:
    for record in evidence.labelled(vllm.AGAIN):
        record.status, record.timed_out, record.error = None, True, "no answer"


def later_ones_answered(evidence: Evidence) -> None:
    for record in evidence.labelled(vllm.AGAIN)[1:]:
        record.status, record.error = 200, ""


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (relabel(vllm.AGAIN, 500, "boom"), "refuted"),
        (relabel(vllm.AGAIN, 200), "confirmed"),
        (relabel(vllm.AGAIN, 503, "busy"), "not-tested"),
        (timed_out, "not-tested"),
        (later_ones_answered, "refuted"),
    ],
)
@pytest.mark.parametrize("scenario", [DESYNC, GHOST_KEY], ids=["desync", "ghost"])
def test_the_fix_of_the_cause_is_told_by_answers_and_by_500_alone(
    scenario: Scenario, change: Change, status: str
) -> None:
    run = desync_run if scenario is DESYNC else healthy_run
    assert claims(scenario, edited(run, change), "0.24.0")["fixed-desync"] == status
    assert (
        claims(scenario, edited(run, change), "0.23.0")["fixed-desync"] == "not-tested"
    )


@pytest.mark.parametrize(
    "change",
    [
        relabel(vllm.TOO_LONG, 200),
        lambda e: swap(e, metrics(mm_hits=0), phase="gate"),
        lambda e: swap(e, logs(added=40)),
        lambda e: e.facts.update(mm_cache_hits_after=3),
    ],
    ids=["not refused", "cache off", "no promise broken", "no eviction"],
)
def test_the_fix_of_the_hang_is_told_only_where_the_trigger_arrived(
    change: Change,
) -> None:
    assert claims(GHOST_KEY, healthy_run(), "0.24.0")["fixed-hang"] == "confirmed"
    assert claims(GHOST_KEY, healthy_run(), "0.23.0")["fixed-hang"] == "not-tested"
    assert (
        claims(GHOST_KEY, edited(healthy_run, change), "0.24.0")["fixed-hang"]
        == "not-tested"
    )


def test_a_hit_is_one_of_the_cache_that_the_gate_used() -> None:
    one = edited(healthy_run, lambda e: swap(e, metrics(mm_hits=1), phase="gate"))
    assert claims(GHOST_KEY, one, "0.24.0")["fixed-hang"] == "confirmed"


def last_processes(*names: str) -> Change:
    def change(evidence: Evidence) -> None:
        for _, log in evidence.results(LogsData, "check"):
            log.last_by_process = {
                name: LogLine(number=9, text="", process=name) for name in names
            }

    return change


def written_by(process: str) -> Change:
    def change(evidence: Evidence) -> None:
        for _, log in evidence.results(LogsData, "check"):
            for line in log.matches["cached-item-assertion"]:
                line.process = process

    return change


NOW_RUNS, BEFORE = "EngineCore pid=1764", "EngineCore pid=17"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), MET),
        ((written_by(BEFORE),), NOT_MET),
        (
            (written_by(BEFORE), last_processes(BEFORE)),
            MET,
        ),  # a container's own numbers
        ((written_by(BEFORE), last_processes(BEFORE, NOW_RUNS)), NOT_MET),
        ((written_by(BEFORE), lambda e: drop(e, "processes")), MET),  # a log alone
        ((written_by(BEFORE), lambda e: swap(e, processes(1.0, role="Worker"))), MET),
        ((lambda e: drop(e, "logs"),), UNKNOWN),
    ],
)
def test_on_a_live_server_a_known_core_speaks_for_itself(
    changes: tuple[Change, ...], expected: Truth
) -> None:
    evidence = edited(desync_run, *changes)
    for check in (vllm.missing_item, vllm.cached_item_assertion):
        bound = bind(check, DESYNC, facts(DESYNC))
        assert guarded(bound, evidence).truth is expected


def test_the_assertion_is_no_drift_and_the_drift_no_assertion() -> None:
    for check, expected in (
        (vllm.missing_item, MET),
        (vllm.cached_item_assertion, NOT_MET),
        (vllm.missed_in_run, MET),
        (vllm.asserted_in_run, NOT_MET),
    ):
        bound = bind(check, DESYNC, facts(DESYNC, "0.32.0"))
        assert guarded(bound, healing_run()).truth is expected


def test_what_a_miss_names_is_read_from_its_lines() -> None:
    bound = bind(vllm.missed_in_run, DESYNC, facts(DESYNC))
    found = guarded(bound, desync_run())
    assert found.observed == (
        f"4 × cached-item-assertion in {NOW_RUNS}, first at 11-21 03:37:42: mm_hash "
        f"{GHOST[:16]}…"
    )
    line = LogLine(number=1, text="Expected a cached item for mm_hash=None")
    assert vllm.hashes_in([line]) == []


SPINS, WAITS = thread(*LOOP, key=GHOST), thread(("Poller.poll", "zmq/sugar/poll.py"))
ABOVE = thread(*LOOP[1:])


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ([SPINS] * 3, MET),
        ([SPINS, ABOVE, ABOVE], MET),
        ([SPINS] * 2, UNKNOWN),
        ([SPINS] * 2 + [WAITS] * 3, UNKNOWN),  # its thread is in too few
        ([WAITS] * 3, NOT_MET),  # it is in none
        ([WAITS] * 2, UNKNOWN),
        ([ABOVE] * 9, UNKNOWN),  # popitem may have been missed
        ([ABOVE] * 10, NOT_MET),
        ([SPINS] * 3 + [thread(*POLLING)], NOT_MET),
        ([SPINS] * 2 + [thread(*LOOP, key=GHOST, active=False)], NOT_MET),
    ],
)
def test_the_loop_is_judged_where_its_thread_was_seen(
    threads: list[ThreadStack], expected: Truth
) -> None:
    evidence = edited(hang_run, lambda e: swap(e, stacks(*threads)))
    assert truth(GHOST_KEY, evidence, "eviction-stack") is expected


@pytest.mark.parametrize(
    ("inserts", "ends", "expected"),
    [
        (True, False, MET),
        (True, True, NOT_MET),
        (False, False, NOT_MET),
        (False, True, NOT_MET),
    ],
)
def test_the_class_alone_loops_where_the_key_is_put_in_and_nothing_ends(
    inserts: bool, ends: bool, expected: Truth
) -> None:
    alone = ghost_key(touch_inserts_missing_key=inserts, eviction_ends=ends)
    evidence = edited(hang_run, lambda e: e.reproducers.__setitem__(0, alone))
    assert truth(GHOST_KEY, evidence, "engine-code-loops") is expected


def test_one_hit_before_is_one() -> None:
    for before, after, expected in ((1, 1, MET), (1, 2, NOT_MET), (0, 0, UNKNOWN)):
        evidence = healthy_run()
        evidence.facts.update(mm_cache_hits_before=before, mm_cache_hits_after=after)
        assert truth(GHOST_KEY, evidence, "evicted") is expected


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ((GHOST,) * 4, MET),
        ((GHOST,) * 3, NOT_MET),
        ((GHOST,) * 5, NOT_MET),
        ((GHOST, GHOST, GHOST, OTHER), NOT_MET),
    ],
)
def test_a_line_of_one_hash_for_each_failed_request(
    hashes: tuple[str, ...], expected: Truth
) -> None:
    evidence = edited(desync_run, lambda e: swap(e, logs(*hashes)))
    assert truth(DESYNC, evidence, "receiver-misses") is expected
