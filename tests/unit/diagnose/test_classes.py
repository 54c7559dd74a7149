"""Each class of failure: what makes it, and the one changed thing that takes it
away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_up import at, http
from mmrepro.failure.documents.cause import Certainty
from mmrepro.failure.documents.diagnosis import CLASS_WORDS, LiveClass
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose.cause_advice import advice_rows
from mmrepro.live.diagnose.classes import LOG_GROWTH, classes
from mmrepro.live.diagnose.classes_logged import CLASS_FACTS
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import (
    AnyProbeData,
    AnyProbeResult,
    ConnectionsData,
    InferenceData,
    MetricSample,
    MetricsData,
    ProbeResult,
)
from mmrepro.traffic.evidence import Evidence
from seen import (
    FRONT,
    GREEN,
    MOVES,
    SILENCE,
    answer,
    frames,
    idle,
    probed,
    sampled,
    target,
    thread,
    use,
    waiting,
)

NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "finished": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "steps": "vllm:iteration_tokens_total_count",
    "kv_usage": "vllm:kv_cache_usage_perc",
    "capacity": "vllm:num_requests_waiting_by_reason",
    "deferred": "vllm:num_requests_waiting_by_reason",
}


def at_time(data: AnyProbeData, seconds: float) -> AnyProbeResult:
    return ProbeResult[AnyProbeData](
        probe=data.kind,
        phase="check",
        status=ProbeStatus.OK,
        started=at(seconds),
        seconds=0.1,
        data=data,
    )


def reading(**values: float) -> MetricsData:
    counted = {
        "running": 0.0,
        "waiting": 0.0,
        "finished": 16.0,
        "prompt_tokens": 3496.0,
        "generation_tokens": 60.0,
        "steps": 90.0,
        "kv_usage": 0.0,
    } | values
    samples = [
        MetricSample(
            name=NAMES[n],
            labels={"reason": n} if n in ("capacity", "deferred") else {},
            value=v,
        )
        for n, v in counted.items()
    ]
    return MetricsData(url="http://127.0.0.1:8000/metrics", samples=samples)


def counts(*values: dict[str, float], every: float = 5.0) -> list[AnyProbeResult]:
    """One reading each, ``every`` seconds apart, the first at once."""
    return [at_time(reading(**one), n * every) for n, one in enumerate(values)]


def connected(*clients: int, unread: int = 0) -> list[AnyProbeData]:
    return [ConnectionsData(port=8000, clients=n, unread=unread) for n in clients]


def seen(*parts: Any, **facts: Any) -> Evidence:
    """Data, results, and lists of either."""
    flat = [
        one for part in parts for one in (part if isinstance(part, list) else [part])
    ]
    probes = [one if isinstance(one, ProbeResult) else probed(one) for one in flat]
    return Evidence(probes=probes, facts=facts)


def told(evidence: Evidence, **more: Any) -> dict[LiveClass, Certainty]:
    return {one.name: one.certainty for one in classes(evidence, target(**more))}


EVICTION = frames(
    "popitem vllm/utils/cache.py:195", "set cache.py:9", "add core.py:3", "run c.py:1"
)
SPIN = sampled(*[[thread(EVICTION, gil=True)]] * 5)
STILL: list[dict[str, float]] = [{}, {}, {}]
RUNS: list[dict[str, float]] = [{"running": 1.0}] * 3
QUEUE: list[dict[str, float]] = [
    {"waiting": 2.0, "capacity": 2.0, "deferred": 0.0, "running": 0.0}
] * 3
ASKED = at_time(SILENCE, 0.5)
HOT, COLD = use(98.0), use(1.0)
F, C = LiveClass, Certainty


# ---------------------------------------------------------------- what is no failure


BUSY = counts(
    *(
        {
            "running": 4.0,
            "waiting": 1.0,
            "generation_tokens": 60.0 + 90 * n,
            "steps": 90.0 + n,
        }
        for n in range(2)
    ),
    every=2.0,
)
SLOW_STEP = counts(
    {"running": 1.0}, {"running": 1.0, "steps": 91.0}, {"running": 1.0, "steps": 91}
)
FILLS = counts({"running": 1.0, "kv_usage": 0.1}, {"running": 1.0, "kv_usage": 0.2})
NO_FAILURE: dict[str, Evidence] = {
    "idle": seen(GREEN, counts(*STILL[:2]), answer(), idle(), COLD, connected(0, 0)),
    "idle, clients keep their connections": seen(
        GREEN, counts(*STILL), answer(), connected(9, 9)
    ),
    "loaded": seen(GREEN, BUSY, answer(), MOVES, HOT, connected(4, 4)),
    "loaded, clients come and go": seen(
        GREEN, BUSY, answer(), MOVES, HOT, connected(4, 0)
    ),
    "loaded, not asked": seen(GREEN, BUSY, MOVES, HOT, connected(4, 4)),
    "overloaded": seen(GREEN, BUSY, ASKED, MOVES, HOT, connected(48, 48)),
    "slow: one step takes long": seen(
        GREEN, SLOW_STEP, ASKED, MOVES, HOT, connected(1, 1)
    ),
    "slow: its stack moves": seen(
        GREEN, counts(*RUNS), ASKED, MOVES, HOT, connected(1, 1)
    ),
    "slow: its KV cache fills": seen(GREEN, FILLS, ASKED, SPIN, HOT, connected(1, 1)),
    "slow: read for too short a time": seen(
        GREEN, counts(*RUNS, every=1.0), ASKED, SPIN, HOT
    ),
    "slow, not asked": seen(
        GREEN, counts(*RUNS, every=2.0), SPIN, HOT, connected(1, 1)
    ),
    "idle, not asked": seen(GREEN, counts(*STILL), idle(), COLD, connected(0, 0)),
    "starting, nothing listens": seen(http(None, None, gone=True), idle()),
    "starting, not ready": seen(http(503, 200), counts({}, {}), idle(), HOT),
    "the machine is short of processors": seen(
        GREEN, counts(*RUNS), ASKED, SPIN, HOT, **{LATENESS: 0.6}
    ),
    "short of processors, and no reason is told": seen(
        GREEN, counts(*[{"waiting": 1.0}] * 3), ASKED, MOVES, COLD, **{LATENESS: 0.6}
    ),
    "answered after a queue for capacity": seen(
        GREEN, counts(*QUEUE), answer(), idle()
    ),
    "nothing could be seen": seen(),
    "silence alone": seen(ASKED),
}


@pytest.mark.parametrize("case", NO_FAILURE)
def test_what_is_no_failure_has_no_class(case: str) -> None:
    assert told(NO_FAILURE[case]) == {}


# ---------------------------------------------------------------- what is one


Made = dict[str, tuple[Evidence, dict[LiveClass, Certainty]]]
COMPILES = frames(
    "compile_json_schema xgrammar/compiler.py:205",
    "XgrammarBackend.compile_grammar vllm/v1/structured_output/backend_xgrammar.py:81",
    "run concurrent/futures/thread.py:58",
)
GRAMMAR = sampled(*[[thread(COMPILES)]] * 5)
STALE = counts(*[{"running": 3.0}] * 2, every=2.0)
IN_A_STEP = sampled(
    *[
        [
            thread(
                frames("dequeue shm.py:1", "_process_engine_step core.py:9"),
                active=False,
            )
        ]
    ]
    * 5
)
ORPHANS = counts(
    *({"running": 1.0, "generation_tokens": 60.0 + 40 * n} for n in range(2)), every=2
)

CASES: Made = {
    "hang, gauges at 0": (
        seen(GREEN, counts(*STILL), ASKED, SPIN, HOT, connected(1, 1)),
        {F.STEPS_STOPPED: C.CERTAIN, F.GAUGES_LIE: C.CERTAIN},
    ),
    "hang, one runs": (
        seen(GREEN, counts(*RUNS), ASKED, SPIN, HOT, connected(1, 1)),
        {F.STEPS_STOPPED: C.CERTAIN},
    ),
    "hang, stacks closed to us": (
        seen(GREEN, counts(*RUNS), ASKED, connected(1, 1)),
        {F.STEPS_STOPPED: C.POSSIBLE},
    ),
    "hang, not asked": (
        seen(GREEN, counts(*RUNS), SPIN, HOT, connected(1, 1)),
        {F.STEPS_STOPPED: C.LIKELY},
    ),
    "hang, not asked, only sockets tell": (
        seen(GREEN, counts(*STILL), SPIN, HOT, connected(1, 1, unread=1)),
        {F.STEPS_STOPPED: C.LIKELY},
    ),
    "requests do not get there": (
        seen(GREEN, counts(*STILL), ASKED, idle(), COLD, connected(0, 0)),
        {F.STEPS_STOPPED: C.LIKELY},
    ),
    "can never fit": (
        seen(GREEN, counts(*QUEUE), ASKED, MOVES, COLD, connected(1, 1)),
        {F.NEVER_FITS: C.CERTAIN},
    ),
    "can never fit, on a busy machine": (
        seen(GREEN, counts(*QUEUE), ASKED, MOVES, COLD, **{LATENESS: 0.6}),
        {F.NEVER_FITS: C.CERTAIN},
    ),
    "can never fit, stacks closed to us": (
        seen(GREEN, counts(*QUEUE), ASKED, COLD),
        {F.NEVER_FITS: C.CERTAIN},
    ),
    "can never fit, not asked": (
        seen(GREEN, counts(*QUEUE[:2], every=2.0), MOVES, COLD),
        {F.NEVER_FITS: C.LIKELY},
    ),
    "can never fit, no reason is told": (
        seen(GREEN, counts(*[{"waiting": 1.0}] * 3), ASKED, MOVES, COLD),
        {F.NEVER_FITS: C.LIKELY},
    ),
    "gauges from before an abort": (
        seen(GREEN, STALE, idle(), COLD, connected(0, 0)),
        {F.GAUGES_LIE: C.CERTAIN},
    ),
    "gauges from before an abort, clients connected": (
        seen(GREEN, STALE, idle(), COLD, connected(2, 2)),
        {F.GAUGES_LIE: C.LIKELY},
    ),
    "work for nobody": (
        seen(GREEN, ORPHANS, MOVES, HOT, connected(0, 0)),
        {F.WORK_WITHOUT_CLIENTS: C.LIKELY},
    ),
    "work for nobody, answered": (
        seen(GREEN, ORPHANS, answer(), connected(0, 0)),
        {F.WORK_WITHOUT_CLIENTS: C.LIKELY},
    ),
    "a flood in the log": (
        seen(GREEN, counts({}, {}), answer(), connected(0, 0), **{LOG_GROWTH: 9e5}),
        {F.WORK_WITHOUT_CLIENTS: C.POSSIBLE},
    ),
    "grammar": (
        seen(GREEN, counts(*RUNS), ASKED, GRAMMAR, HOT, connected(1, 1)),
        {F.GRAMMAR_LOOP: C.CERTAIN, F.STEPS_STOPPED: C.CERTAIN},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_class(case: str) -> None:
    evidence, expected = CASES[case]
    assert told(evidence) == expected
    for one in classes(evidence, target()):
        assert all(one.why)
        assert len(one.why) >= 1
        assert one.advice
        assert one.references


# ---------------------------------------------------------------- the one changed thing


def changed(case: str, *more: Any, **facts: Any) -> dict[LiveClass, Certainty]:
    """The case with each kind of data that is in ``more`` in the place of its own."""
    evidence = CASES[case][0]
    new = seen(*more)
    kinds = {p.probe for p in new.probes}
    kept = [p for p in evidence.probes if p.probe not in kinds]
    return told(
        Evidence(probes=[*kept, *new.probes], facts={**evidence.facts, **facts})
    )


TOKENS = counts(*({"running": 1.0, "generation_tokens": 60.0 + n} for n in range(3)))
TURNS: dict[str, Callable[[], dict[LiveClass, Certainty]]] = {
    "a token is counted": lambda: changed("hang, one runs", TOKENS),
    "the request is answered": lambda: changed(
        "hang, one runs", answer(), counts(*STILL)
    ),
    "the stack moves": lambda: changed("hang, gauges at 0", MOVES),
    "nothing waits": lambda: changed("hang, not asked", counts(*STILL)),
    "no reading but one": lambda: changed("hang, one runs", counts(*RUNS[:1])),
    "the reason is another": lambda: changed(
        "can never fit, not asked",
        counts(*[{"waiting": 2.0, "capacity": 0.0, "deferred": 2.0}] * 2, every=2.0),
    ),
    "the cache is in use": lambda: changed(
        "can never fit", counts(*[{**QUEUE[0], "kv_usage": 0.9}] * 3)
    ),
    "one runs": lambda: changed(
        "can never fit", counts(*[{**QUEUE[0], "running": 1.0}] * 3)
    ),
    "it left the queue": lambda: changed(
        "can never fit, not asked",
        counts(QUEUE[0], {"waiting": 0.0, "capacity": 0.0}, every=2.0),
    ),
    "idle inside a step: another process works": lambda: changed(
        "gauges from before an abort", IN_A_STEP
    ),
    "nothing runs by the gauges": lambda: changed(
        "gauges from before an abort", counts(*STILL)
    ),
    "a client is connected": lambda: changed("work for nobody", connected(1, 1)),
    "a client is connected by then": lambda: changed(
        "work for nobody", connected(0, 1)
    ),
    "sockets were read once": lambda: changed("work for nobody", connected(0)),
    "it is our own request that runs": lambda: changed(
        "work for nobody, answered",
        at_time(answer(9.0), 0.0),
        counts(
            {"running": 1.0}, {"running": 1.0, "generation_tokens": 64.0}, every=2.0
        ),
    ),
    "a log that grows slowly": lambda: changed(
        "a flood in the log", **{LOG_GROWTH: 6000.0}
    ),
    "a flood with clients": lambda: changed("a flood in the log", connected(3, 3)),
}


@pytest.mark.parametrize("turn", TURNS)
def test_one_changed_thing_takes_it_away(turn: str) -> None:
    assert TURNS[turn]() == {}


def test_our_own_request_is_not_counted_among_those_that_run() -> None:
    readings = counts(*[{"running": 2.0}] * 3)  # at 0, 5 and 10 s
    evidence = seen(at_time(answer(6.0), 1.0), readings)
    assert DiagnosisView(target(), evidence).others_running == [2.0, 1.0, 2.0]


def test_a_grammar_that_is_compiled_while_others_are_answered_is_no_loop() -> None:
    assert F.GRAMMAR_LOOP not in changed("grammar", answer(), counts(*STILL))
    assert F.GRAMMAR_LOOP not in changed("grammar", TOKENS)
    elsewhere = frames("step core.py:1", "run concurrent/futures/thread.py:58")
    some = sampled(*[[thread(COMPILES if n else elsewhere)] for n in range(5)])
    assert F.GRAMMAR_LOOP not in changed("grammar", some)
    front = sampled(*[[thread(COMPILES)]] * 5, pid=FRONT)
    assert changed("grammar", front)[F.GRAMMAR_LOOP] is C.CERTAIN


def test_what_a_lock_holds_up_is_a_standstill_as_well() -> None:
    lock = sampled(
        *[[thread(frames("acquire threading.py:7", "step a.py:3"), active=False)]] * 5
    )
    found = told(seen(GREEN, counts(*RUNS), ASKED, lock, COLD, waiting()))
    assert found == {F.STEPS_STOPPED: C.CERTAIN}


@given(st.sets(st.integers(0, 40)))
def test_less_evidence_names_no_class_that_more_did_not(left_out: set[int]) -> None:
    for evidence, expected in CASES.values():
        kept = [p for n, p in enumerate(evidence.probes) if n not in left_out]
        found = told(Evidence(probes=kept, facts=dict(evidence.facts)))
        # What explained another one may be gone.
        more = set(found) - set(expected) - {F.STEPS_STOPPED}
        assert more <= {F.GAUGES_LIE}
        assert F.GAUGES_LIE not in more or found[F.GAUGES_LIE] is C.POSSIBLE


def test_every_class_has_words_advice_and_references() -> None:
    assert set(CLASS_WORDS) == set(CLASS_FACTS) == set(LiveClass)
    for facts in CLASS_FACTS.values():
        assert facts.advice
        assert any("https://github.com/" in r for r in facts.references)


def test_an_issue_behind_an_advice_is_a_reference_of_its_class() -> None:
    # `mmrepro logs` gives the advice, `mmrepro diagnose` the references.
    by_name = {name.value: facts.references for name, facts in CLASS_FACTS.items()}
    cited = {row.source: row.name for row in advice_rows() if "#" in row.source}
    assert cited
    for issue, name in cited.items():
        issues = [reference.split()[0] for reference in by_name[name]]
        assert issue in issues, name


def test_a_silent_request_that_was_cut_short_of_its_deadline_counts() -> None:
    cut = InferenceData(
        answered=False, status=None, seconds=4.6, deadline_s=15.0, cut=True
    )
    evidence = seen(GREEN, counts({}, {}, every=4.5), at_time(cut, 0.1), SPIN, HOT)
    assert told(evidence)[F.STEPS_STOPPED] is C.CERTAIN


# ------------------------------------------------------------- prefill and decode apart


def transfers(*values: float, every: float = 5.0) -> list[AnyProbeResult]:
    names = ("sglang:num_decode_transfer_queue_reqs", "sglang:generation_tokens_total")
    return [
        at_time(
            MetricsData(
                url="",
                samples=[
                    MetricSample(name=names[0], labels={}, value=value),
                    MetricSample(name=names[1], labels={}, value=7.0),
                ],
            ),
            n * every,
        )
        for n, value in enumerate(values)
    ]


def test_a_kv_cache_that_does_not_arrive() -> None:
    sglang = {"engine": "sglang", "core_role": "scheduler"}
    assert (
        told(seen(GREEN, transfers(1, 1), SILENCE), **sglang)[F.TRANSFER_STUCK]
        is C.LIKELY
    )
    for other in (
        seen(GREEN, transfers(1, 0), SILENCE),
        seen(GREEN, transfers(1, 1), answer()),
        seen(GREEN, transfers(1, 1, every=1.0), SILENCE),
        seen(GREEN, transfers(1, 1)),  # 5 s without a request of ours
        seen(GREEN, transfers(1, 1), SILENCE, **{LATENESS: 0.5}),
    ):
        assert F.TRANSFER_STUCK not in told(other, **sglang)
    assert F.TRANSFER_STUCK in told(seen(GREEN, transfers(1, 1, 1)), **sglang)
