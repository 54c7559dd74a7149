"""Recorded failures as a live server shows them, each with one change: none of these
may match.

A look at a live server has no gate, no trigger and no code run in the environment; it
has the access log, the one small request, and the kernel's word on who lives. Where the
recording matches, the same evidence with one change must not."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from mmrepro.engines import ENGINES
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.diagnosis import Fit, Match
from mmrepro.failure.signature import live_server
from mmrepro.live.diagnose.match import all_scenarios, match_all, union
from mmrepro.probes.data import InferenceData, LogLine, LogsData
from mmrepro.probes.log_lines import Life
from mmrepro.probes.logs import Scanner, scan
from mmrepro.reports import load
from mmrepro.scenario import LiveFacts
from mmrepro.traffic.evidence import Evidence
from seen import answer, failed, probed

CORPUS = Path(__file__).parents[2] / "evidence"
SCENARIOS = all_scenarios()
ACCESS = '127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
STARTS = {
    "vllm": "INFO 11-21 09:00:00 [api_utils.py:273] non-default args: {'model': 'm'}",
    "sglang": "[2026-11-21 09:00:00] server_args=ServerArgs(model_path='m')",
    "lmdeploy": "INFO:     Started server process [7]",
    "minivllm": (
        "(APIServer pid=1) INFO 11-22 11:41:20 [server.py:310] ready on port 42367"
    ),
}


@dataclass(frozen=True)
class Seen:
    """What a look would have had of a recorded server."""

    evidence: Evidence
    facts: LiveFacts

    def matches(self) -> list[Match]:
        mine = [s for s in SCENARIOS if s.engine == self.facts.engine]
        return match_all(mine, self.evidence, self.facts)

    @property
    def matched(self) -> list[str]:
        return [
            f"{m.scenario}/{m.variant}" for m in self.matches() if m.fit is Fit.MATCH
        ]


@cache
def recorded(name: str) -> Incident:
    return load(CORPUS / f"{name}.zip")


def live(name: str) -> Seen:
    incident = recorded(name).model_copy(deep=True)
    engine, evidence = incident.engine, incident.evidence
    seen = Evidence(
        probes=[p for p in evidence.probes if p.phase == "check"],
        engine_exit=evidence.engine_exit,
    )
    failures = sum(r.status == 500 for r in evidence.requests_in("trigger"))
    for _, data in seen.results(LogsData, partial=True):
        data.match_counts[live_server.FAILED] = failures
        data.matches[live_server.FAILED] = [LogLine(number=9, text=ACCESS)] * failures
    if not list(seen.results(InferenceData)) and evidence.engine_exit is None:
        last = evidence.requests_in("trigger")[-1]
        seen.probes.append(
            probed(answer() if last.answered else failed(last.status, last.error))
        )
    core = ENGINES[engine.name].core_role
    lives = any(
        core in process.role and process.state not in "ZX"
        for p in seen.probes
        if p.probe == "processes" and p.data is not None
        for process in p.data.processes  # type: ignore[union-attr]
    )
    seen.facts[live_server.CORE_ALIVE] = lives and evidence.engine_exit is None
    # A run's folder is no option of a server that anybody starts: of the command the
    # rest counts.
    return Seen(
        seen, LiveFacts(engine.name, engine.release, tuple(engine.command), 15.0)
    )


MATCHING = (
    "borrowed-faults-ghost-key-lru-0.1",
    "borrowed-faults-kv-budget-0.1",
    "borrowed-faults-reused-mask-0.1",
    "chunked-mm-prefill-generated-placeholder-0.11.0",
    "ghost-key-eviction-0.14.0",
    "ghost-key-eviction-0.23.0",
    "kv-growth-crash-0.6.4",
    "kv-growth-crash-0.7.0.post3",
    "mm-cache-desync-0.24.0",
    "mm-cache-desync-0.32.0",
    "mm-prefill-contract-broken-module-0.1",
    "mm-prefill-contract-slot-mapping-0.1",
    "undersized-kv-budget-text-0.6.4",
)
OTHERS = (
    "borrowed-faults-pad-value-key-0.1",  # silent, as the next two
    "pad-value-collision-0.5.6",
    "shape-alias-kv-cache-0.5.6",
    "chunked-mm-prefill-async-race-0.12.0",  # needs what its run saw of /health
    "encoder-cache-overflow-0.11.0",
)


def stale_log(name: str) -> Seen:
    """The server was started again, into the same log; it is healthy, as in the
    gate."""
    seen = live(name)
    lines: list[str] = []
    for _, data in seen.evidence.results(LogsData, partial=True):
        for line in [
            *data.errors,
            *(m for found in data.matches.values() for m in found),
        ]:
            process = f"({line.process}) " if line.process else ""
            lines.append(
                f"{process}{line.level or 'INFO'} 11-20 03:00:00 [x.py:1] {line.text}"
            )
            lines.append(line.text)
    text = "\n".join([*lines, STARTS[seen.facts.engine], ""]).encode()
    patterns = {**live_server.LOG_PATTERNS, **ENGINES[seen.facts.engine].log_patterns}
    patterns |= union(s for s in SCENARIOS if s.engine == seen.facts.engine)
    assert sum(scan(io.BytesIO(text), patterns).match_counts.values())
    life = Life(ENGINES[seen.facts.engine].start_lines)
    read = Scanner(patterns, None, file="engine.log", life=life).scan(io.BytesIO(text))
    healthy = [
        p.model_copy(update={"phase": "check"})
        for p in recorded(name).evidence.probes
        if p.phase == "gate" and p.probe != "logs"
    ]
    doubled = [*healthy, *(p for p in healthy if p.probe == "metrics")]
    evidence = Evidence(probes=[*doubled, probed(answer()), probed(read)])
    evidence.facts[live_server.CORE_ALIVE] = True
    return replace(seen, evidence=evidence)


def stale_log_of_a_killed_one(name: str) -> Seen:
    """It was started again, and then killed from outside: gone, and its log tells
    nothing."""
    seen = stale_log(name)
    evidence = Evidence(probes=[p for p in seen.evidence.probes if p.probe == "logs"])
    evidence.facts[live_server.CORE_ALIVE] = False
    evidence.engine_exit = -9
    return replace(seen, evidence=evidence)


def refused(name: str) -> Seen:
    """The request is turned away for want of a key, and the engine works on others'
    meanwhile."""
    seen = live(name)
    probes = [
        p for p in seen.evidence.probes if p.probe not in ("inference", "metrics")
    ]
    probes += [p for p in stale_log(name).evidence.probes if p.probe == "metrics"]
    seen.evidence.probes = [*probes, probed(failed(401, "HTTP 401: Unauthorized"))]
    seen.evidence.facts[live_server.CORE_ALIVE] = True
    return seen


def other_release(name: str) -> Seen:
    """A release that is not affected, with a log of one that was."""
    seen = live(name)
    scenario = next(s for s in SCENARIOS if s.name == recorded(name).scenario.name)
    release = next(r for r in ("999.0", "0.10.0", "0.0.1") if not scenario.affects(r))
    return replace(seen, facts=replace(seen.facts, release=release))


def cure_applied(name: str) -> Seen:
    """It runs with the option that takes the failure away."""
    seen = live(name)
    facts = recorded(name).scenario
    # Of variants that look alike from outside, a look names the first.
    named = next(iter(seen.matched), f"{facts.name}/{facts.variant}")
    scenario = next(s for s in SCENARIOS if f"{s.name}/{s.variant}" == named)
    options = next((m.server_args for m in scenario.mitigations if m.server_args), ())
    if not options:
        pytest.skip("no option takes it away")
    command = (*seen.facts.command, *options)
    return replace(seen, facts=replace(seen.facts, command=command))


def unknown_release(name: str) -> Seen:
    """Nothing tells which release it is."""
    seen = live(name)
    return replace(seen, facts=replace(seen.facts, release=""))


def no_log(name: str) -> Seen:
    """Its output goes nowhere."""
    seen = live(name)
    seen.evidence.probes = [p for p in seen.evidence.probes if p.probe != "logs"]
    return seen


CHANGES: list[Callable[[str], Seen]] = [
    stale_log,
    stale_log_of_a_killed_one,
    refused,
    other_release,
    cure_applied,
    unknown_release,
    no_log,
]


@pytest.mark.parametrize("name", MATCHING)
def test_the_recording_itself_matches(name: str) -> None:
    """Else that the changed ones do not would prove nothing."""
    scenario = recorded(name).scenario
    assert live(name).matched == [f"{scenario.name}/{scenario.variant}"]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", MATCHING + OTHERS)
def test_no_changed_recording_matches(name: str, change: Callable[[str], Seen]) -> None:
    assert change(name).matched == []
