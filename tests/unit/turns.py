"""Tables of a signature: one change of a run that reproduces, what turns with it, the
verdict then.

``test_verdicts_turn.py`` has the tables and what holds for each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from made_up import drop, out_of_time, probed, processes, run_facts, swap
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.probes.data import AnyProbeData
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.traffic.evidence import Evidence, ReproducerResult

CORPUS = Path(__file__).parent.parent / "evidence"
SIGNS = {"+": Truth.MET, "-": Truth.NOT_MET, "?": Truth.UNKNOWN}
SHORT = {"different": Outcome.DIFFERENT_FAILURE}
Change = Callable[[Evidence], object]
Row = tuple[Change, str]
"""The change; the verdict, and conditions: ``"different -no-answer ?core-alive
+no-progress"``."""


@dataclass(frozen=True)
class Table:
    scenario: Scenario
    run: Callable[[], Evidence]
    rows: dict[str, Row]
    facts: Callable[[], RunFacts] | None = None
    """Read when a test asks: a recorded run is a zip file."""
    alone: bool = False
    """By the conditions alone: a change of recorded evidence need not fit the rest."""
    complete: bool = True
    """The rows turn each required condition both ways; else other tests turn the
    rest."""

    def judged(self, *changes: Change) -> tuple[Outcome, list[ConditionResult]]:
        evidence = self.run()
        for change in changes:
            change(evidence)
        facts = self.facts() if self.facts else run_facts(self.scenario)
        verdict = judge(self.scenario, evidence, facts)
        return verdict.outcome, verdict.conditions


def recorded(stem: str, scenario: Scenario, rows: dict[str, Row]) -> Table:
    def run() -> Evidence:
        return load(CORPUS / f"{stem}.zip").evidence

    @cache
    def facts() -> RunFacts:
        return facts_of(load(CORPUS / f"{stem}.zip"), scenario)

    return Table(scenario, run, rows, facts, alone=True, complete=False)


def meant(words: str) -> tuple[Outcome, dict[str, Truth]]:
    first, *signed = words.split()
    return SHORT.get(first) or Outcome(first), {
        word[1:]: SIGNS[word[0]] for word in signed
    }


# ------------------------------------------------------------------ changes


def to(*data: AnyProbeData, phase: str = "check") -> Change:
    """Other results of that probe, in order; a single one in place of all."""
    return lambda evidence: swap(evidence, *data, phase=phase)


def no(probe: str, phase: str = "check") -> Change:
    return lambda evidence: drop(evidence, probe, phase=phase)


def half(probe: str) -> Change:
    return partial(out_of_time, probe=probe)


def measured(**facts: Any) -> Change:
    return lambda evidence: evidence.facts.update(facts)


def ran(*reproducers: ReproducerResult) -> Change:
    return lambda evidence: setattr(evidence, "reproducers", list(reproducers))


def exited(code: int | None) -> Change:
    return lambda evidence: setattr(evidence, "engine_exit", code)


def edit(label: str, **fields: object) -> Change:
    def change(evidence: Evidence) -> None:
        for record in evidence.labelled(label):
            for name, value in fields.items():
                setattr(record, name, value)

    return change


def without(label: str) -> Change:
    """No request whose label begins so."""

    def change(evidence: Evidence) -> None:
        evidence.requests = [
            r for r in evidence.requests if not r.label.startswith(label)
        ]

    return change


def both(*changes: Change) -> Change:
    return lambda evidence: [change(evidence) for change in changes]


def lives_on(evidence: Evidence) -> None:
    evidence.probes.append(probed(processes(user=1.0)))
    evidence.engine_exit = None


def nothing_sent(evidence: Evidence) -> None:
    evidence.requests.clear()
