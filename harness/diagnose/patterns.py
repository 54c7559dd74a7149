"""Log patterns of many scenarios in one reading: names may collide, expressions do not.

The log is searched for each distinct expression once, under the expression itself as its name;
before a scenario judges, its own names are put back.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmrepro.evidence import Evidence
from mmrepro.probes.data import LogsData
from mmrepro.scenario import Scenario


def union(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """Every expression of theirs, each once."""
    return {p: p for scenario in scenarios for p in scenario.log_patterns.values()}


def as_seen_by(scenario: Scenario, evidence: Evidence) -> Evidence:
    """The evidence with the log's matches under the scenario's own names."""
    if not scenario.log_patterns:
        return evidence
    probes = [
        result.model_copy(update={"data": _renamed(scenario, result.data)})
        if isinstance(result.data, LogsData)
        else result
        for result in evidence.probes
    ]
    return evidence.model_copy(update={"probes": probes})


def _renamed(scenario: Scenario, data: LogsData) -> LogsData:
    matches, counts = dict(data.matches), dict(data.match_counts)
    for name, expression in scenario.log_patterns.items():
        if expression in data.match_counts:
            counts[name] = data.match_counts[expression]
            if expression in data.matches:
                matches[name] = data.matches[expression]
    return data.model_copy(update={"matches": matches, "match_counts": counts})
