"""A healthy server of each engine, of which only a part can be seen: it looks like no
failure."""

from __future__ import annotations

from itertools import combinations

import pytest
from made_up import probed
from mmrepro.engines import get_engine
from mmrepro.failure.documents.diagnosis import Fit
from mmrepro.failure.signature import Truth, evaluate
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose.match import all_scenarios, match, union
from mmrepro.probes.data import (
    AnyProbeData,
    LogsData,
    MetricSample,
    MetricsData,
)
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.traffic.evidence import Evidence
from seen import GREEN, IDLE, answer, sampled, thread, use, waiting

SCENARIOS = all_scenarios()


def counted(engine: str, running: float, tokens: float) -> MetricsData:
    read = {"running": running, "generation_tokens": tokens, "prompt_tokens": tokens}
    samples = [
        MetricSample(name=name, labels={}, value=read.get(short, 0.0))
        for short, names in get_engine(engine).metrics.items()
        for name in names
    ]
    return MetricsData(url="http://127.0.0.1:8000/metrics", samples=samples)


def parts(scenario: Scenario, *, busy: bool) -> dict[str, list[AnyProbeData]]:
    """What each probe has of it. Its log holds no line of any pattern."""
    engine = scenario.engine
    role = get_engine(engine).core_role or "server"
    core = use(30.0 if busy else 1.0).model_copy(deep=True)
    core.processes[0].role = role
    patterns = [*union(SCENARIOS).values(), "failed-500"]
    log = LogsData(
        file="e.log", bytes_read=1, lines=9, match_counts=dict.fromkeys(patterns, 0)
    )
    before, after = (1.0, 99.0) if busy else (5.0, 5.0)
    return {
        "inference": [answer()],
        "http": [GREEN],
        "metrics": [
            counted(engine, float(busy), before),
            counted(engine, float(busy), after),
        ],
        "processes": [core],
        "stacks": [sampled(*[[thread(IDLE, active=False)]] * 5)],
        "syscalls": [waiting("epoll_wait")],
        "logs": [log],
    }


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.full_name)
def test_a_healthy_server_looks_like_no_failure_however_little_of_it_is_seen(
    scenario: Scenario, busy: bool
) -> None:
    kinds = parts(scenario, busy=busy)
    facts = LiveFacts(scenario.engine, scenario.release, (), 15.0)
    for count in (1, 2, 3, len(kinds) - 1, len(kinds)):
        for seen in combinations(kinds, count):
            data = [probed(one) for kind in seen for one in kinds[kind]]
            evidence = Evidence(probes=data, facts={CORE_ALIVE: True})
            found = match(scenario, evidence, facts)
            assert found.fit in (Fit.EXPOSED, Fit.NOT_THIS), (seen, found.why)


def test_what_a_healthy_server_meets_as_well_is_declared_so() -> None:
    """A request that waits is all that makes an empty queue and idle counters odd."""
    waits = {"no-progress", "nothing-queued"}
    for scenario in SCENARIOS:
        facts = LiveFacts(scenario.engine, scenario.release, (), 15.0)
        data = [
            probed(one) for kind in parts(scenario, busy=False).values() for one in kind
        ]
        conditions = scenario.live_conditions(facts)
        results = evaluate(conditions, Evidence(probes=data, facts={CORE_ALIVE: True}))
        met = {r.id for r in results if r.part == "symptom" and r.truth is Truth.MET}
        assert met <= waits | {c.id for c in conditions if c.usual}, scenario.full_name
