"""Runs of vLLM's cache scenarios with changes, and what is said of them."""

from collections.abc import Callable

from mmrepro.base.records import Fidelity
from mmrepro.failure.signature import Truth, Verdict
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.runs.judge import judge as judge_run
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.traffic.evidence import Evidence

Change = Callable[[Evidence], object]


def facts(
    scenario: Scenario, release: str = "", *flips: str, by: tuple[str, ...] = ()
) -> RunFacts:
    release = release or scenario.release
    return RunFacts(release, Fidelity.CPU, frozenset(by), 13.0, frozenset(flips))


def judged(scenario: Scenario, evidence: Evidence, given: RunFacts) -> Verdict:
    return judge_run(scenario, evidence, given)


def truth(scenario: Scenario, evidence: Evidence, name: str, *flips: str) -> Truth:
    results = judged(scenario, evidence, facts(scenario, "", *flips)).conditions
    return next(r.truth for r in results if r.id == name)


def claims(scenario: Scenario, evidence: Evidence, release: str = "") -> dict[str, str]:
    told = scenario.claim_results(evidence, facts(scenario, release))
    return {claim.id: claim.status.value for claim in told}


def edited(make: Callable[[], Evidence], *changes: Change) -> Evidence:
    evidence = make()
    for change in changes:
        change(evidence)
    return evidence


def relabel(label: str, status: int, error: str = "") -> Change:
    def change(evidence: Evidence) -> None:
        for record in evidence.labelled(label):
            record.status, record.error, record.timed_out = status, error, False

    return change


def log_line(name: str, text: str, process: str = "APIServer pid=1533") -> Change:
    """The log holds one line more."""

    def change(evidence: Evidence) -> None:
        (log,) = (d for _, d in evidence.results(LogsData, "check"))
        log.matches.setdefault(name, []).append(
            LogLine(number=1, process=process, text=text)
        )
        log.match_counts[name] = log.match_counts.get(name, 0) + 1

    return change
