"""When a hang is named before its request's deadline, and the busy servers that look
alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mmrepro.failure.documents.diagnosis import Fit, TargetFacts, TargetProcess
from mmrepro.failure.signature.checks import probe_unanswered
from mmrepro.failure.signature.decide import Truth
from mmrepro.live.diagnose.match import known_hang
from mmrepro.probes.data import (
    HttpData,
    InferenceData,
    LogsData,
    MetricsData,
    ProcessesData,
    StacksData,
    SyscallsData,
)
from mmrepro.traffic.evidence import Evidence
from seen import frames, target
from test_live_imposters import SCENARIOS, Seen, live

Change = Callable[[Evidence], None]


def hung() -> tuple[Seen, TargetFacts]:
    """The recorded hang, as a look has it while its request is still on its way."""
    seen = live("ghost-key-eviction-0.23.0")
    seen.evidence.probes = [p for p in seen.evidence.probes if p.probe != "inference"]
    used = next(d for _, d in seen.evidence.results(ProcessesData))
    processes = [
        TargetProcess(pid=p.pid, ppid=1, name="", role=p.role, state=p.state)
        for p in used.processes
    ]
    facts = target(root_pid=processes[0].pid, processes=processes, release="0.23.0")
    return seen, facts


def known(seen: Seen, facts: TargetFacts, waited_s: float = 4.6) -> Fit | None:
    mine = [s for s in SCENARIOS if s.engine == "vllm"]
    found = known_hang(mine, seen.evidence, facts, seen.facts, waited_s)
    return found.fit if found else None


def test_the_recorded_hang_is_decided_without_its_deadline() -> None:
    seen, facts = hung()
    mine = [s for s in SCENARIOS if s.engine == "vllm"]
    found = known_hang(mine, seen.evidence, facts, seen.facts, 4.6)
    assert found is not None
    assert (found.scenario, found.fit) == ("ghost-key-eviction", Fit.MATCH)
    silence = next(c for c in found.conditions if c.id == "no-answer-later")
    assert "in 4.6 s, of 15: the wait was cut" in silence.observed
    assert not list(seen.evidence.results(InferenceData)), (
        "nothing is added to what was seen"
    )


def moved(evidence: Evidence) -> None:
    last = [d for _, d in evidence.results(MetricsData)][-1]
    for sample in last.samples:
        if sample.name == "vllm:generation_tokens_total" and sample.value is not None:
            sample.value += 8


def cool(evidence: Evidence) -> None:
    for _, used in evidence.results(ProcessesData):
        for process in used.processes:
            process.user_pct = 2.0
    for _, calls in evidence.results(SyscallsData):
        calls.verdict = "blocked"


def once_elsewhere(evidence: Evidence) -> None:
    """In one sample the thread computes: it is not always in the loop."""
    samples = [s for _, d in evidence.results(StacksData) for s in d.samples]
    thread = next(t for t in samples[-1].threads if t.within("popitem"))
    outer = next(
        n for n, f in enumerate(thread.frames) if f.function.endswith("input_sockets")
    )
    thread.frames = frames("decode msgpack.py:9") + thread.frames[outer:]


def not_green(evidence: Evidence) -> None:
    for _, asked in evidence.results(HttpData):
        asked.answers[0].status = 503


def nothing_logged(evidence: Evidence) -> None:
    for _, log in evidence.results(LogsData):
        log.matches.clear()
        log.match_counts = dict.fromkeys(log.match_counts, 0)
        log.errors.clear()


def no_stacks(evidence: Evidence) -> None:
    evidence.probes = [p for p in evidence.probes if p.probe != "stacks"]


def no_counters(evidence: Evidence) -> None:
    evidence.probes = [p for p in evidence.probes if p.probe != "metrics"]


@pytest.mark.parametrize(
    "change",
    [moved, cool, once_elsewhere, not_green, nothing_logged, no_stacks, no_counters],
    ids=lambda change: change.__name__,
)
def test_what_a_busy_server_may_be_waits_for_its_deadline(change: Change) -> None:
    seen, facts = hung()
    change(seen.evidence)
    assert known(seen, facts) is not Fit.MATCH


def test_a_wait_that_was_cut_is_a_silence_and_one_that_broke_is_none() -> None:
    data = InferenceData(
        answered=False, status=None, seconds=4.6, deadline_s=15.0, error="late"
    )
    assert probe_unanswered(data).truth is Truth.NOT_MET
    assert probe_unanswered(data.model_copy(update={"cut": True})).truth is Truth.MET
