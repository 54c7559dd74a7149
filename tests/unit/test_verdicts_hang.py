"""ghost-key-eviction on made-up evidence: one thing changed at a time, and the verdict
flips.

A signature whose condition cannot fail would pass the first test and none of the
others."""

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
    processes,
    stacks,
    swap,
    syscalls,
    thread,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.probes.data import InferenceData
from mmrepro.scenarios.ghost_key_eviction import SCENARIO as GHOST_KEY
from mmrepro.traffic.evidence import Evidence
from turns import Row, edit, half, no, nothing_sent, ran, to

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE


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
    # The desynchronisation is still there.
    assert truths.pop("cached-item-assertion") is MET
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
        answered=False,
        status=None,
        seconds=0.01,
        deadline_s=13.0,
        error="connection refused",
    )
    swap(evidence, data)


def reproducer_failed(evidence: Evidence) -> None:
    evidence.reproducers = [
        ghost_key().model_copy(update={"exit_code": 1, "error": "no vllm"})
    ]


def no_baseline(evidence: Evidence) -> None:
    evidence.probes = [
        r for r in evidence.probes if (r.probe, r.phase) != ("processes", "gate")
    ]


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
    swap(
        evidence,
        stacks(*[thread(*LOOP, key=GHOST)] * 4, thread(*POLLING, active=False)),
    )


def no_trigger(evidence: Evidence) -> None:
    """Nothing is refused, looked up or evicted."""
    labelled = evidence.labelled("image X, too long") + evidence.labelled("fill 10")
    labelled[0].status, labelled[1].label = 200, "fill 1, again"
    evidence.facts = {"mm_cache_hits_before": 2, "mm_cache_hits_after": 3}
    swap(evidence, metrics(mm_hits=0), phase="gate")


ROWS: dict[str, Row] = {
    "no log": (no("logs"), "inconclusive ?cached-item-assertion"),
    "no assertion in the log": (
        to(logs()),
        "different -cached-item-assertion ?ghost-is-the-key",
    ),
    "half of the log was read": (
        half("logs"),
        "inconclusive ?cached-item-assertion ?added-not-scheduled",
    ),
    "py-spy denied": (no("stacks"), "inconclusive ?eviction-stack ?ghost-is-the-key"),
    "two stack samples": (
        to(stacks(*[thread(*LOOP, key=GHOST)] * 2)),
        "inconclusive ?eviction-stack",
    ),
    "another stack": (
        to(stacks(*[thread(*POLLING)] * 5)),
        "different -eviction-stack ?ghost-is-the-key",
    ),
    "one sample is elsewhere": (all_but_one_in_the_loop, "different -eviction-stack"),
    "never in popitem": (
        to(stacks(*[thread(*LOOP[1:])] * 10)),
        "different -eviction-stack ?ghost-is-the-key",
    ),
    "few samples, none in popitem": (
        to(stacks(*[thread(*LOOP[1:])] * 9)),
        "inconclusive ?eviction-stack ?ghost-is-the-key",
    ),
    "the loop's thread sleeps": (
        to(stacks(*[thread(*LOOP, key=GHOST, active=False)] * 5)),
        "different -eviction-stack",
    ),
    "another key in popitem": (to(looping(OTHER)), "different -ghost-is-the-key"),
    "no locals": (to(stacks(*[thread(*LOOP)] * 5)), "inconclusive ?ghost-is-the-key"),
    "/health red": (to(http(503, 200)), "different -endpoints-green"),
    "no endpoint": (no("http"), "inconclusive ?endpoints-green"),
    "endpoints cut off": (half("http"), "inconclusive ?endpoints-green"),
    "one request runs": (to(metrics(running=1)), "different -nothing-queued"),
    "one waits later": (to(metrics(), metrics(waiting=1)), "different -nothing-queued"),
    "metrics read once": (
        one_metrics_reading,
        "inconclusive ?nothing-queued ?no-progress",
    ),
    "no metrics": (
        no("metrics"),
        "inconclusive ?nothing-queued ?no-progress ?added-not-scheduled",
    ),
    "tokens still come": (
        to(metrics(), metrics(generation_tokens=64)),
        "different -no-progress",
    ),
    "a counter is NaN": (
        to(metrics(), metrics(generation_tokens=None)),
        "inconclusive ?no-progress",
    ),
    "all added ones finished": (
        to(logs(GHOST, added=16)),
        "different -added-not-scheduled",
    ),
    "only the failed one is missing": (
        to(logs(GHOST, added=17)),
        "inconclusive ?added-not-scheduled",
    ),
    "the log does not say what was added": (
        to(logs(GHOST, added=0)),
        "inconclusive ?added-not-scheduled",
    ),
    "the core is idle": (to(processes(user=2)), "different -core-burns-cpu"),
    "the kernel burns": (to(processes(user=5, system=95)), "different -core-burns-cpu"),
    "busy before": (busy_in_the_gate, "different -core-burns-cpu"),
    "no baseline": (no_baseline, "inconclusive ?core-burns-cpu"),
    "no process of that role": (
        to(processes(user=97, role="Worker")),
        "inconclusive ?core-burns-cpu",
    ),
    "blocked": (to(syscalls("blocked")), "different -user-space-spin"),
    "system calls unclear": (to(syscalls("unclear")), "inconclusive ?user-space-spin"),
    "no strace, no /proc": (no("syscalls"), "inconclusive ?user-space-spin"),
    "the class ends its eviction": (
        ran(ghost_key(eviction_ends=True)),
        "different -engine-code-loops",
    ),
    "touch ignores missing keys": (
        ran(ghost_key(touch_inserts_missing_key=False)),
        "different -engine-code-loops",
    ),
    "the reproducer failed": (reproducer_failed, "inconclusive ?engine-code-loops"),
    "the reproducer was not run": (ran(), "inconclusive ?engine-code-loops"),
    "the reproducer says nonsense": (
        ran(ghost_key(eviction_ends="no")),
        "inconclusive ?engine-code-loops",
    ),
    "a new request is answered": (answered, "different -no-answer-later"),
    "a new request fails at once": (failed_at_once, "different -no-answer-later"),
    "no new request": (no("inference"), "inconclusive ?no-answer-later"),
    "the engine died": (
        engine_died,
        "different -endpoints-green -no-answer-later ?eviction-stack",
    ),
    "nobody asked": (nothing_sent, "inconclusive"),
    "nothing hung": (edit("fill 11", status=200, timed_out=False), "different"),
    "no trigger": (no_trigger, "inconclusive"),
    "nothing is known of the cache": (
        no("metrics", phase="gate"),
        "inconclusive ?cache-on",
    ),
}
"""Where the symptom is not what is required but a request hung, that is another
failure."""


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
    evidence.facts["mm_cache_hits_after"] = (
        3  # fill-1 was still there: nothing was evicted
    )
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE
    evidence.facts["mm_cache_hits_after"] = None
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE


def test_a_trigger_that_was_cut_short_says_nothing() -> None:
    evidence = healthy_run()
    evidence.requests = [
        r for r in evidence.requests if not r.label.startswith("after")
    ]
    assert judge(GHOST_KEY, evidence)[0] is INCONCLUSIVE


@pytest.mark.parametrize("label", ["fill 7", "after: a new image"])
def test_an_image_that_fails_is_another_failure(label: str) -> None:
    evidence = healthy_run()
    for record in evidence.requests:
        if record.label == label:
            record.status, record.error = 500, "boom"
    assert judge(GHOST_KEY, evidence)[0] is DIFFERENT
