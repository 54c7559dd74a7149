"""From evidence to the incident's tables: what the report shows besides the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mmrepro.environments import Environment
from mmrepro.evidence import Evidence
from mmrepro.incident import Incident, LogExcerpt, MitigationFacts
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.run.source import read_definition
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.signature import Outcome
from mmrepro.signature.checks import log_count

T = TypeVar("T")
LINES_EACH = 3


def assemble(
    incident: Incident, scenario: Scenario, facts: RunFacts, environment: Environment | None
) -> None:
    """Fill symptoms, stack, log lines, sources, claims and mitigations of a judged incident.

    A scenario's table that fails leaves its part empty and a warning: the verdict stands.
    """
    evidence = incident.evidence
    incident.symptoms = (
        _guarded(incident, lambda e: scenario.symptom_rows(e, facts), evidence) or []
    )
    incident.exhibits = _guarded(incident, lambda e: scenario.exhibits(e, facts), evidence) or []
    incident.key_stack = _guarded(incident, scenario.key_stack, evidence)
    incident.claims = _guarded(incident, lambda e: scenario.claim_results(e, facts), evidence) or []
    incident.log_lines = log_excerpts(evidence, scenario)
    count_stand_ins(incident)
    incident.mitigations = mitigation_table(incident, scenario, facts)
    if environment is not None:
        found = (read_definition(environment.site_packages, ref) for ref in scenario.sources)
        incident.sources = [excerpt for excerpt in found if excerpt is not None]


def _guarded(incident: Incident, build: Callable[[Evidence], T], evidence: Evidence) -> T | None:
    try:
        return build(evidence)
    except Exception as error:
        name = getattr(build, "__name__", "claims")
        incident.failure_detail.append(
            f"the scenario's {name} failed: {type(error).__name__}: {error}"
        )
        return None


def count_stand_ins(incident: Incident) -> None:
    """How often each stand-in reported itself, and calls of what it only pretends to have.

    Counted are the lines of the engine's log that match the patterns ``NAME-loaded`` and
    ``NAME-called``, where the engine or the scenario has such; without a log: None.
    """
    for stand_in in incident.stand_ins:
        stand_in.loaded = log_count(incident.evidence, f"{stand_in.name}-loaded")
        stand_in.calls = log_count(incident.evidence, f"{stand_in.name}-called")


def log_excerpts(evidence: Evidence, scenario: Scenario) -> list[LogExcerpt]:
    """The quoted lines: the scenario's patterns, and each process's last word."""
    data = next((d for _, d in reversed(list(evidence.results(LogsData, partial=True)))), None)
    if data is None:
        return []
    lines: list[LogExcerpt] = []
    for pattern in dict.fromkeys((*scenario.key_log_patterns, "contract-violated")):
        count = data.match_counts.get(pattern, 0)
        for line in data.matches.get(pattern, [])[:LINES_EACH]:
            note = f"{count} lines like this" if count > LINES_EACH else ""
            lines.append(excerpt(data.file, line, note))
    for process, line in data.last_by_process.items():
        if process:
            lines.append(excerpt(data.file, line, f"last line of {process}"))
    if data.last_progress is not None:
        lines.append(excerpt(data.file, data.last_progress, "last progress of the engine"))
    return sorted(lines, key=lambda entry: entry.number)


def excerpt(file: str, line: LogLine, note: str) -> LogExcerpt:
    from pathlib import Path

    where = f" [{line.source}]" if line.source else ""
    return LogExcerpt(
        file=Path(file).name,
        number=line.number,
        process=line.process,
        time=line.time,
        text=f"{line.level}{where} {line.text}".strip(),
        note=note,
    )


def mitigation_table(
    incident: Incident, scenario: Scenario, facts: RunFacts
) -> list[MitigationFacts]:
    """Every mitigation; only an applied one, in a conclusive run, is said to help or not."""
    verdict = incident.verdict
    conclusive = verdict is not None and verdict.outcome is not Outcome.INCONCLUSIVE
    table = []
    for mitigation in scenario.mitigations:
        applied = mitigation.name in facts.mitigations
        effective: bool | None = None
        if applied and conclusive and verdict is not None:
            effective = verdict.outcome is Outcome.NOT_REPRODUCED
        table.append(
            MitigationFacts(
                name=mitigation.name,
                description=mitigation.description,
                applied=applied,
                effective=effective,
                command=_command(scenario, mitigation.name),
            )
        )
    return table


def _command(scenario: Scenario, mitigation: str) -> str:
    variant = f" --variant {scenario.variant}" if scenario.variant else ""
    return f"mmrepro run {scenario.name}{variant} --mitigation {mitigation}"
