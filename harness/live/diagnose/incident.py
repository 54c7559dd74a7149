"""A diagnosis as an incident: the same folder and the same reports as a run has."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path

from mmrepro import __version__
from mmrepro.base.machine import host_facts
from mmrepro.base.records import Fidelity, GpuFacts, Moment
from mmrepro.failure.documents import (
    STATE_WORDS,
    Diagnosis,
    EngineFacts,
    Incident,
    KeyFrame,
    KeyStack,
    LogExcerpt,
    Match,
    MitigationFacts,
    ScenarioFacts,
)
from mmrepro.live.diagnose.match import as_seen_by
from mmrepro.probes import GpuData, LogsData, ProcessesData
from mmrepro.scenario import Scenario
from mmrepro.traffic.evidence import Evidence


def build(
    diagnosis: Diagnosis,
    evidence: Evidence,
    folder: Path,
    command: str,
    scenarios: Sequence[Scenario],
) -> Incident:
    """The incident of a diagnosis; its scenario is the known failure that was found, if
    one was.

    Args:
        scenarios: those that were tried.
    """
    best = diagnosis.found[0] if diagnosis.found else None
    scenario = _scenario(best, scenarios)
    seen = as_seen_by(scenario, evidence) if scenario else evidence
    target, gpus = diagnosis.target, _gpus(evidence)
    return Incident(
        mmrepro_version=__version__,
        id=uuid.uuid4().hex[:12],
        created=diagnosis.taken,
        finished=Moment.now(),
        state="complete",
        incident_dir=str(folder),
        command=command,
        scenario=_facts(scenario, diagnosis),
        engine=EngineFacts(
            name=target.engine or "unknown engine",
            release=target.release,
            command=target.command,
        ),
        host=host_facts((g.name for g in gpus), gpus),
        fidelity=Fidelity.LIVE,
        key_stack=_stack(scenario, diagnosis, seen),
        log_lines=_logs(scenario, seen),
        mitigations=_mitigations(scenario),
        references=list(scenario.references) if scenario else [],
        stages={"diagnosis": diagnosis.effect.seconds},
        evidence=evidence,
        diagnosis=diagnosis,
    )


def _scenario(best: Match | None, known: Sequence[Scenario]) -> Scenario | None:
    if best is None:
        return None
    for scenario in known:
        if (scenario.name, scenario.variant) == (best.scenario, best.variant):
            return scenario
    return None


def _facts(scenario: Scenario | None, diagnosis: Diagnosis) -> ScenarioFacts:
    if scenario is None:
        return ScenarioFacts(
            name="diagnose",
            title=f"A live server: {STATE_WORDS[diagnosis.state]}",
            summary=diagnosis.assessment.sentence,
            affected="",
            explanation="",
        )
    return scenario.facts


def _stack(
    scenario: Scenario | None, diagnosis: Diagnosis, evidence: Evidence
) -> KeyStack | None:
    """The scenario's own stack where it has one, else that of the general diagnosis."""
    if scenario is not None:
        # A table that fails leaves the general stack.
        with contextlib.suppress(Exception):
            if stack := scenario.key_stack(evidence):
                return stack
    assessment = diagnosis.assessment
    if not assessment.frames:
        return None
    return KeyStack(
        process=assessment.process,
        thread=assessment.thread,
        active=assessment.state.value.startswith("frozen"),
        owns_gil=assessment.state.value == "frozen-in-python",
        frames=[
            KeyFrame(function=f.function, file=f.file, line=f.line, locals=f.locals)
            for f in assessment.frames
        ],
        seen=assessment.seen,
        samples=assessment.samples,
        note=assessment.holder,
    )


def _logs(scenario: Scenario | None, evidence: Evidence) -> list[LogExcerpt]:
    from mmrepro.runs import log_excerpt, log_excerpts

    if scenario is not None:
        return log_excerpts(evidence, scenario)
    lines: list[LogExcerpt] = []
    for _, data in evidence.results(LogsData, partial=True):
        lines += [
            log_excerpt(data.file, line, "first errors") for line in data.errors[:3]
        ]
        if data.last_work is not None:
            lines.append(
                log_excerpt(data.file, data.last_work, "last progress of the engine")
            )
    return lines


def _mitigations(scenario: Scenario | None) -> list[MitigationFacts]:
    if scenario is None:
        return []
    return [
        MitigationFacts(
            name=m.name,
            description=m.description,
            applied=False,
            command=f"mmrepro run {scenario.name} --mitigation {m.name}",
        )
        for m in scenario.mitigations
    ]


def _gpus(evidence: Evidence) -> list[GpuFacts]:
    """Those of the machine; the server's own are the ones that its processes hold."""
    pids: set[int] = set()
    for _, processes in evidence.results(ProcessesData):
        pids.update(process.pid for process in processes.processes)
    readings = [data for _, data in evidence.results(GpuData)]
    gpus = []
    for device in readings[-1].devices if readings else ():
        holders = {process.pid for process in device.processes}
        gpus.append(
            GpuFacts(
                index=device.index,
                name=device.name,
                uuid=device.uuid,
                memory_bytes=device.memory_total_bytes or None,
                memory_used_bytes=device.memory_used_bytes,
                driver=device.driver,
                cuda=device.cuda,
                mig=device.mig,
                taken=not pids.isdisjoint(holders),
            )
        )
    return gpus
