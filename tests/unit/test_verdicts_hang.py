"""ghost-key-eviction on made-up evidence: one thing changed at a time, and the verdict flips.

A signature whose condition cannot fail would pass the first test and none of the others.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_up import (
    GHOST,
    LOOP,
    OTHER,
    POLLING,
    drop,
    ghost_key,
    hang_run,
    healthy_run,
    http,
    judge,
    logs,
    looping,
    metrics,
    out_of_time,
    processes,
    request,
    stacks,
    swap,
    syscalls,
    thread,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import InferenceData
from mmrepro.scenarios.ghost_key_eviction import SCENARIO as GHOST_KEY
from mmrepro.scenarios.vllm_mm_caches import MM_CACHE_DESYNC as DESYNC
from mmrepro.traffic.evidence import Evidence

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE

Change = Callable[[Evidence], object]
Case = tuple[str, Change, dict[str, Truth], Outcome]


def test_the_hang_reproduces() -> None:
    outcome, truths, results = judge(GHOST_KEY, hang_run())
    assert set(truths.values()) == {MET}
    assert outcome is REPRODUCED
    assert all(r.observed for r in results)


def test_the_evidence_of_the_ghost_is_what_was_read() -> None:
    """The key comes from the stacks, the assertion from the log: both are cited."""
    files = {r.id: r.evidence for r in judge(GHOST_KEY, hang_run())[2]}
    assert files["ghost-is-the-key"] == ["check-stacks.raw", "check-logs.raw"]
    assert files["eviction-stack"] == ["check-stacks.raw"]
    assert files["cached-item-assertion"] == ["check-logs.raw", "check-processes.raw"]
    assert files["engine-code-loops"] == ["ghost_key.py.json"]


def test_a_fixed_release_does_not_reproduce_the_hang() -> None:
    outcome, truths, _ = judge(GHOST_KEY, healthy_run(), "0.24.0")
    assert outcome is NOT_REPRODUCED
    assert truths.pop("endpoints-green") is MET
    assert truths.pop("cached-item-assertion") is MET  # the desynchronisation is still there
    assert truths.pop("nothing-queued") is MET
    assert truths.pop("ghost-is-the-key") is UNKNOWN
    arrived = ("refused-for-length", "cache-on", "broken-promise", "evicted")
    assert [truths.pop(name) for name in arrived] == [MET] * 4
    assert set(truths.values()) == {NOT_MET}


def answered(evidence: Evidence) -> None:
    data = InferenceData(answered=True, status=200, seconds=0.1, deadline_s=13.0)
    swap(evidence, data)


def failed_at_once(evidence: Evidence) -> None:
    data = InferenceData(
        answered=False, status=None, seconds=0.01, deadline_s=13.0, error="connection refused"
    )
    swap(evidence, data)


def reproducer_failed(evidence: Evidence) -> None:
    evidence.reproducers = [ghost_key().model_copy(update={"exit_code": 1, "error": "no vllm"})]


def no_baseline(evidence: Evidence) -> None:
    evidence.probes = [r for r in evidence.probes if (r.probe, r.phase) != ("processes", "gate")]


def busy_in_the_gate(evidence: Evidence) -> None:
    for result in evidence.probes:
        if (result.probe, result.phase) == ("processes", "gate"):
            result.data = processes(user=95.0)


def one_metrics_reading(evidence: Evidence) -> None:
    last = max(i for i, r in enumerate(evidence.probes) if r.probe == "metrics")
    del evidence.probes[last]


def engine_died(evidence: Evidence) -> None:
    evidence.engine_exit = -9
    for probe in ("metrics", "processes", "stacks", "syscalls"):
        drop(evidence, probe, "the process is gone")
    swap(evidence, http(None, None, gone=True))
    failed_at_once(evidence)


def all_but_one_in_the_loop(evidence: Evidence) -> None:
    swap(evidence, stacks(*[thread(*LOOP, key=GHOST)] * 4, thread(*POLLING, active=False)))


HANG_CASES: list[Case] = [
    ("no log", lambda e: drop(e, "logs"), {"cached-item-assertion": UNKNOWN}, INCONCLUSIVE),
    (
        "no assertion in the log",
        lambda e: swap(e, logs()),
        {"cached-item-assertion": NOT_MET, "ghost-is-the-key": UNKNOWN},
        DIFFERENT,
    ),
    (
        "half of the log was read",
        lambda e: out_of_time(e, "logs"),
        {"cached-item-assertion": UNKNOWN, "added-not-scheduled": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "py-spy denied",
        lambda e: drop(e, "stacks"),
        {"eviction-stack": UNKNOWN, "ghost-is-the-key": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "two stack samples",
        lambda e: swap(e, stacks(*[thread(*LOOP, key=GHOST)] * 2)),
        {"eviction-stack": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "another stack",
        lambda e: swap(e, stacks(*[thread(*POLLING)] * 5)),
        {"eviction-stack": NOT_MET, "ghost-is-the-key": UNKNOWN},
        DIFFERENT,
    ),
    ("one sample is elsewhere", all_but_one_in_the_loop, {"eviction-stack": NOT_MET}, DIFFERENT),
    (
        "never in popitem",
        lambda e: swap(e, stacks(*[thread(*LOOP[1:])] * 5)),
        {"eviction-stack": NOT_MET, "ghost-is-the-key": UNKNOWN},
        DIFFERENT,
    ),
    (
        "the loop's thread sleeps",
        lambda e: swap(e, stacks(*[thread(*LOOP, key=GHOST, active=False)] * 5)),
        {"eviction-stack": NOT_MET},
        DIFFERENT,
    ),
    (
        "another key in popitem",
        lambda e: swap(e, looping(OTHER)),
        {"ghost-is-the-key": NOT_MET},
        DIFFERENT,
    ),
    (
        "no locals",
        lambda e: swap(e, stacks(*[thread(*LOOP)] * 5)),
        {"ghost-is-the-key": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("/health red", lambda e: swap(e, http(503, 200)), {"endpoints-green": NOT_MET}, DIFFERENT),
    ("no endpoint", lambda e: drop(e, "http"), {"endpoints-green": UNKNOWN}, INCONCLUSIVE),
    (
        "endpoints cut off",
        lambda e: out_of_time(e, "http"),
        {"endpoints-green": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "one request runs",
        lambda e: swap(e, metrics(running=1)),
        {"nothing-queued": NOT_MET},
        DIFFERENT,
    ),
    (
        "one waits later",
        lambda e: swap(e, metrics(), metrics(waiting=1)),
        {"nothing-queued": NOT_MET},
        DIFFERENT,
    ),
    (
        "metrics read once",
        one_metrics_reading,
        {"nothing-queued": UNKNOWN, "no-progress": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "no metrics",
        lambda e: drop(e, "metrics"),
        {"nothing-queued": UNKNOWN, "no-progress": UNKNOWN, "added-not-scheduled": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "tokens still come",
        lambda e: swap(e, metrics(), metrics(generation_tokens=64)),
        {"no-progress": NOT_MET},
        DIFFERENT,
    ),
    (
        "a counter is NaN",
        lambda e: swap(e, metrics(), metrics(generation_tokens=None)),
        {"no-progress": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "all added ones finished",
        lambda e: swap(e, logs(GHOST, added=16)),
        {"added-not-scheduled": NOT_MET},
        DIFFERENT,
    ),
    (
        "only the failed one is missing",
        lambda e: swap(e, logs(GHOST, added=17)),
        {"added-not-scheduled": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the log does not say what was added",
        lambda e: swap(e, logs(GHOST, added=0)),
        {"added-not-scheduled": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the core is idle",
        lambda e: swap(e, processes(user=2)),
        {"core-burns-cpu": NOT_MET},
        DIFFERENT,
    ),
    (
        "the kernel burns",
        lambda e: swap(e, processes(user=5, system=95)),
        {"core-burns-cpu": NOT_MET},
        DIFFERENT,
    ),
    ("busy before", busy_in_the_gate, {"core-burns-cpu": NOT_MET}, DIFFERENT),
    ("no baseline", no_baseline, {"core-burns-cpu": UNKNOWN}, INCONCLUSIVE),
    (
        "no process of that role",
        lambda e: swap(e, processes(user=97, role="Worker")),
        {"core-burns-cpu": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "blocked",
        lambda e: swap(e, syscalls("blocked")),
        {"user-space-spin": NOT_MET},
        DIFFERENT,
    ),
    (
        "system calls unclear",
        lambda e: swap(e, syscalls("unclear")),
        {"user-space-spin": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "no strace, no /proc",
        lambda e: drop(e, "syscalls"),
        {"user-space-spin": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the class ends its eviction",
        lambda e: e.reproducers.__setitem__(0, ghost_key(eviction_ends=True)),
        {"engine-code-loops": NOT_MET},
        DIFFERENT,
    ),
    (
        "touch ignores missing keys",
        lambda e: e.reproducers.__setitem__(0, ghost_key(touch_inserts_missing_key=False)),
        {"engine-code-loops": NOT_MET},
        DIFFERENT,
    ),
    ("the reproducer failed", reproducer_failed, {"engine-code-loops": UNKNOWN}, INCONCLUSIVE),
    (
        "the reproducer was not run",
        lambda e: e.reproducers.clear(),
        {"engine-code-loops": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the reproducer says nonsense",
        lambda e: e.reproducers.__setitem__(0, ghost_key(eviction_ends="no")),
        {"engine-code-loops": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("a new request is answered", answered, {"no-answer-later": NOT_MET}, DIFFERENT),
    ("a new request fails at once", failed_at_once, {"no-answer-later": NOT_MET}, DIFFERENT),
    ("no new request", lambda e: drop(e, "inference"), {"no-answer-later": UNKNOWN}, INCONCLUSIVE),
    (
        "the engine died",
        engine_died,
        {"endpoints-green": NOT_MET, "no-answer-later": NOT_MET, "eviction-stack": UNKNOWN},
        DIFFERENT,
    ),
]
"""Where the symptom is not what is required but a request hung, that is another failure."""


@pytest.mark.parametrize(
    ("change", "flipped", "outcome"),
    [case[1:] for case in HANG_CASES],
    ids=[c[0] for c in HANG_CASES],
)
def test_one_change_of_the_hang(
    change: Change, flipped: dict[str, Truth], outcome: Outcome
) -> None:
    evidence = hang_run()
    change(evidence)
    got, truths, results = judge(GHOST_KEY, evidence)
    assert {name: truths[name] for name in flipped} == flipped
    assert got is outcome
    assert all(r.observed for r in results), "a reader must learn why"


def test_every_condition_of_the_hang_can_fail_and_can_be_unknown() -> None:
    seen: dict[str, set[Truth]] = {}
    changes = [case[1] for case in HANG_CASES]
    changes += [lambda e: e.requests.clear(), no_hang, no_trigger, no_baseline_metrics]
    for change in [lambda e: None, *changes]:
        evidence = hang_run()
        change(evidence)
        for name, truth in judge(GHOST_KEY, evidence)[1].items():
            seen.setdefault(name, set()).add(truth)
    assert {name: truths for name, truths in seen.items() if truths != set(Truth)} == {}


def no_baseline_metrics(evidence: Evidence) -> None:
    drop(evidence, "metrics", phase="gate")


def no_trigger(evidence: Evidence) -> None:
    """Nothing is refused, looked up or evicted."""
    labelled = evidence.labelled("image X, too long") + evidence.labelled("fill 10")
    labelled[0].status, labelled[1].label = 200, "fill 1, again"
    evidence.facts = {"mm_cache_hits_before": 2, "mm_cache_hits_after": 3}
    swap(evidence, metrics(mm_hits=0), phase="gate")


def no_hang(evidence: Evidence) -> None:
    evidence.requests[-1] = request("trigger", "fill 11")


@pytest.mark.parametrize("missing", ["text", "tokens", "status", "all"])
def test_a_failed_gate_is_inconclusive_whatever_came_after(missing: str) -> None:
    evidence = hang_run()
    first = evidence.requests[0]
    if missing == "text":
        again = next(r for r in evidence.requests if r.label == "gate: image 1 again")
        again.text = "something else than for the same image later"
    elif missing == "tokens":
        first.completion_tokens = 0
    elif missing == "status":
        first.status, first.error = 500, "boom"
    else:
        evidence.requests = [r for r in evidence.requests if r.phase != "gate"]
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE


def test_no_hang_is_said_only_after_an_eviction() -> None:
    evidence = healthy_run()
    evidence.facts["mm_cache_hits_after"] = 3  # fill-1 was still there: nothing was evicted
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE
    evidence.facts["mm_cache_hits_after"] = None
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE


def test_a_trigger_that_was_cut_short_says_nothing() -> None:
    evidence = healthy_run()
    evidence.requests = [r for r in evidence.requests if not r.label.startswith("after")]
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE


@pytest.mark.parametrize("label", ["fill 7", "after: a new image"])
def test_an_image_that_fails_is_another_failure(label: str) -> None:
    evidence = healthy_run()
    for record in evidence.requests:
        if record.label == label:
            record.status, record.error = 500, "boom"
    assert judge(GHOST_KEY, evidence)[0] is DIFFERENT


def test_no_evidence_at_all_meets_nothing() -> None:
    for scenario in (GHOST_KEY, DESYNC):
        outcome, truths, _ = judge(scenario, Evidence())
        assert outcome is INCONCLUSIVE
        assert MET not in truths.values()
