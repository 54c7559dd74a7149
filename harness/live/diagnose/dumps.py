"""Dumps beside a log, or alone: the evidence that they are, and what it shows. Pure but
for reading the files.

The same signatures are tried on them as on a live server. What a dump does not hold is
unknown."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mmrepro.base.machine import files_below
from mmrepro.base.records import Moment
from mmrepro.base.units import count
from mmrepro.engines import ENGINES
from mmrepro.failure.documents import (
    Cause,
    CauseClass,
    Certainty,
    DumpedFailure,
    DumpFile,
    DumpReading,
    Fit,
    LoggedState,
    Match,
    ProcessStand,
    Resemblance,
    TargetFacts,
)
from mmrepro.failure.signature import ConditionResult, Truth
from mmrepro.live.diagnose.cause_advice import advice_for
from mmrepro.live.diagnose.cause_rules import meaning
from mmrepro.live.diagnose.dump_counts import (
    gpu_lines,
    metric_lines,
    request_lines,
    total_counted,
)
from mmrepro.live.diagnose.dump_stacks import (
    WATCHDOG,
    ended,
    numbered,
    process_stands,
    server_facts,
)
from mmrepro.live.diagnose.match import all_scenarios, match, match_all
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes import (
    KIND_WORDS,
    AnyProbeResult,
    GpuData,
    MetricsData,
    ProbeResult,
    ProbeStatus,
    RequestDumpData,
    StackSample,
    StacksData,
)
from mmrepro.probes.dumps import Dump, kind_of, read_dump
from mmrepro.probes.log_files import MAX_FILES, logs_in
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.traffic.evidence import Evidence

_REPEATED = 8
"""As often a single sample is repeated, to try what it would be if it stayed so."""
_FITS = (Fit.MATCH, Fit.LIKELY, Fit.SYMPTOM_ONLY)
_Data = TypeVar("_Data")


def read(
    dumps: Sequence[Dump],
    logs: Sequence[AnyProbeResult] = (),
    *,
    in_logs: Mapping[Path, StacksData] | None = None,
    engine: str = "",
    release: str = "",
    scenarios: Iterable[Scenario] | None = None,
) -> DumpReading:
    """What ``dumps`` show together with the readings of the logs beside them.

    Args:
        in_logs: stacks that logs hold themselves.
        engine, release: as given, or as the logs have it; "": the dumps may.
        scenarios: to try; None: all.
    """
    files = [_file(dump) for dump in dumps]
    for path, data in (in_logs or {}).items():
        tools = ", ".join(dict.fromkeys(sample.tool for sample in data.samples))
        sentence = f"a log that holds stacks of {_holds(data.samples)}, by {tools}"
        files.append(DumpFile(file=str(path), kind=None, sentence=sentence))

    whole = [dump for dump in dumps if dump.data is not None]
    distinct = _distinct(whole)
    stacks = [*_data_of(distinct, StacksData), *(in_logs or {}).values()]
    samples = numbered(stacks)
    metrics = [dump for dump in distinct if isinstance(dump.data, MetricsData)]
    readings, judged = _readings(_data_of(distinct, MetricsData))
    gpus = _data_of(whole, GpuData)
    request_dumps = _data_of(whole, RequestDumpData)
    if request_dumps:
        engine = engine or _writes_requests()

    facts = server_facts(samples, readings, engine, release)
    evidence = _evidence(logs, samples, judged, gpus)
    counts = metric_lines(ENGINES.get(facts.engine), metrics)
    for gpu in gpus:
        counts += gpu_lines(gpu)
    for requests in request_dumps:
        counts += request_lines(requests)

    live = LiveFacts(facts.engine, facts.release, tuple(facts.command))
    tried = list(scenarios) if scenarios is not None else [*all_scenarios()]
    processes = process_stands(DiagnosisView(facts, evidence), samples)
    return DumpReading(
        engine=facts.engine,
        release=facts.release,
        files=files,
        processes=processes,
        counts=counts,
        failures=failures(tried, evidence, live),
        unseen=_unseen(facts, processes, metrics, readings),
    )


def _evidence(
    logs: Sequence[AnyProbeResult],
    samples: list[StackSample],
    readings: Sequence[MetricsData],
    gpus: Sequence[GpuData],
) -> Evidence:
    """The evidence of a check, as if a server had been watched."""
    probes = [result.model_copy(update={"phase": "check"}) for result in logs]
    if samples:
        probes.append(_result("stacks", StacksData(samples=samples)))
    for reading in readings:
        probes.append(_result("metrics", reading))
    for gpu in gpus:
        probes.append(_result("gpu", gpu))
    return Evidence(probes=probes)


def _data_of(dumps: Sequence[Dump], kind: type[_Data]) -> list[_Data]:
    return [dump.data for dump in dumps if isinstance(dump.data, kind)]


def sort(files: Iterable[Path]) -> tuple[list[Dump], list[Path]]:
    """``files`` that are dumps, read, and the others: logs, or what is taken for one.
    Of a folder each file is looked at."""
    dumps: list[Dump] = []
    logs: list[Path] = []
    for path in files:
        inside = [path]
        if path.is_dir():
            inside = sorted(files_below(path).files)[:MAX_FILES]
        taken = set()
        for file in inside:
            kind = kind_of(file)
            if kind is not None:
                taken.add(file)
                dumps.append(read_dump(file, kind))
        if taken:
            logs += [log for log in logs_in([path]) if log not in taken]
        else:
            logs.append(path)
    return dumps, logs


def cause_of(reading: DumpReading) -> Cause:
    """What ended the server, by the dumps alone. A fatal error's last words show it;
    other files that are no log do not."""
    for process in reading.processes:
        cause = _cause_of_end(process, reading.engine)
        if cause is not None:
            return cause
    for process in reading.processes:
        if WATCHDOG in process.reason:
            return _cause_of_standstill(process, reading.engine)

    kinds: dict[str, None] = {}
    for file in reading.files:
        if file.kind and file.read:
            kinds[KIND_WORDS[file.kind]] = None
    what = (
        f"No log: {', '.join(kinds)}."
        if kinds
        else "This is no log, and mmrepro cannot read it."
    )
    return Cause(
        name=CauseClass.NOT_A_LOG,
        certainty=Certainty.CERTAIN,
        sentence=f"{what} {reading.sentence}".strip(),
        why=[file.sentence for file in reading.files],
        advice=[
            "give the server's log as well: mmrepro logs server.log dump.txt "
            "metrics.txt"
        ],
    )


def state_of(cause: Cause) -> LoggedState:
    """The first word of what dumps tell."""
    if cause.name is CauseClass.NOT_A_LOG:
        return LoggedState.NOT_A_LOG
    stands = cause.name is CauseClass.HANG
    return LoggedState.STANDS_STILL if stands else LoggedState.DEAD


def _cause_of_end(process: ProcessStand, engine: str) -> Cause | None:
    """The cause that a process's last words name; None: it did not end, or they name
    none."""
    if not ended(process.reason):
        return None
    text = f"Fatal Python error: {process.reason}"
    if process.tool == "gdb":
        text = process.reason
    rule = meaning(text, exception=False)
    if rule is None:
        return None
    pid = f"pid {process.pid}" if process.pid else ""
    return Cause(
        name=rule.name,
        certainty=rule.sure,
        sentence=process.sentence,
        exception=text,
        process=process.role or pid,
        why=[f"{process.tool} wrote its stacks as it ended: {process.reason}"],
        advice=advice_for(rule.name, engine, text),
    )


def _cause_of_standstill(process: ProcessStand, engine: str) -> Cause:
    return Cause(
        name=CauseClass.HANG,
        certainty=Certainty.LIKELY if process.stays else Certainty.POSSIBLE,
        sentence=(
            f"vLLM's watchdog saw no progress of {process.role}: {process.sentence}"
        ),
        process=process.role,
        why=[f"the watchdog wrote its stacks {process.samples} times, for {WATCHDOG}"],
        advice=advice_for(CauseClass.HANG, engine, ""),
    )


# ------------------------------------------------------------------ the evidence


def _result(probe: str, data: StacksData | MetricsData | GpuData) -> AnyProbeResult:
    return ProbeResult(
        probe=probe,
        phase="check",
        status=ProbeStatus.OK,
        started=Moment.now().model_copy(update={"mono": 0.0}),
        seconds=0.0,
        data=data,
    )


def _distinct(dumps: Sequence[Dump]) -> list[Dump]:
    """The dumps without copies of the same file: they are no second reading."""
    seen: set[bytes] = set()
    kept = []
    for dump in dumps:
        digest = _digest(dump)
        if digest not in seen:
            seen.add(digest)
            kept.append(dump)
    return kept


def _digest(dump: Dump) -> bytes:
    """The digest of what a dump holds, without the file that it was read from."""
    data = dump.data
    if isinstance(data, MetricsData):
        data = data.model_copy(update={"url": ""})
    digest = hashlib.sha256()
    if isinstance(data, StacksData):
        for sample in data.samples:
            threads = [thread.model_dump_json() for thread in sample.threads]
            digest.update(f"{sample.pid} {threads}".encode("utf-8", "replace"))
    elif data is not None:
        digest.update(data.model_dump_json().encode("utf-8", "replace"))
    return digest.digest()


def _readings(
    metrics: Sequence[MetricsData],
) -> tuple[list[MetricsData], list[MetricsData]]:
    """The readings in the order of their counters, and those that may be judged.

    When files were written is not known, so two that are alike may be of one moment:
    then only one is judged. Counters that moved show which reading is the older one,
    and that work was done."""
    if len(metrics) < 2:
        return [*metrics], [*metrics]
    ordered = sorted(metrics, key=total_counted)
    moved = total_counted(ordered[0]) != total_counted(ordered[-1])
    return ordered, ordered if moved else ordered[-1:]


def _writes_requests() -> str:
    """The engine that alone writes files of requests."""
    for engine in ENGINES.values():
        if engine.dumps_requests:
            return engine.name
    return ""


# ------------------------------------------------------------------ known failures


def failures(
    scenarios: Sequence[Scenario], evidence: Evidence, live: LiveFacts
) -> list[DumpedFailure]:
    """The known failures whose signature fits, and those in whose place a process
    stands."""
    known: list[DumpedFailure] = []
    names: set[tuple[str, str]] = set()
    for matched in match_all(scenarios, evidence, live):
        if matched.fit in _FITS:
            names.add((matched.scenario, matched.variant))
            fit = Resemblance(matched.fit.value)
            known.append(_known(matched.scenario, matched, fit, [matched.why]))
    others: list[Scenario] = []
    for scenario in scenarios:
        if (scenario.name, scenario.variant) not in names:
            others.append(scenario)
    return [*known, *_standing(others, evidence, live)]


def _standing(
    scenarios: Iterable[Scenario], evidence: Evidence, live: LiveFacts
) -> Iterator[DumpedFailure]:
    """Known failures whose stack this is, if it stays: one sample does not show that.

    The conditions of their cause are tried as if each sample had been taken again and
    again. What the same evidence shows without any stack is not counted."""
    samples: list[StackSample] = []
    for _, data in evidence.results(StacksData, "check"):
        samples += data.samples
    if not samples:
        return

    others = [r for r in evidence.probes if not isinstance(r.data, StacksData)]
    blind = evidence.model_copy(update={"probes": others})
    repeated = _result("stacks", StacksData(samples=samples * _REPEATED))
    stays = evidence.model_copy(update={"probes": [*others, repeated]})
    for scenario in scenarios:
        if live.engine and scenario.engine != live.engine:
            continue
        if_it_stays = match(scenario, stays, live)
        if if_it_stays.exposed is False:
            continue
        without_stacks = _met(match(scenario, blind, live).conditions)
        by_stacks = _met(if_it_stays.conditions) - without_stacks

        why: list[str] = []
        for condition in if_it_stays.conditions:
            if condition.id in by_stacks:
                why.append(f"{condition.statement}: {condition.observed}")
        if not why or _speaks_against(if_it_stays.conditions):
            why = _shown_stack(scenario, evidence)
        if why:
            now = _met(match(scenario, evidence, live).conditions) - without_stacks
            fit = Resemblance.STANDS_THERE if now else Resemblance.IF_IT_STAYS
            affected = scenario.affected_range
            yield _known(scenario.name, if_it_stays, fit, why, affected)


def _known(
    name: str, matched: Match, fit: Resemblance, why: list[str], affected: str = ""
) -> DumpedFailure:
    return DumpedFailure(
        scenario=name,
        variant=matched.variant,
        title=matched.title,
        fit=fit,
        why=why,
        affected=affected,
        remedies=matched.remedies,
        references=matched.references,
    )


def _shown_stack(scenario: Scenario, evidence: Evidence) -> list[str]:
    """A sentence that a thread is inside the stack which the scenario shows in its own
    reports."""
    # A scenario's own table may fail on evidence of another kind: it shows nothing.
    with contextlib.suppress(Exception):
        stack = scenario.key_stack(evidence)
        if stack:
            below = " ← ".join(frame.function for frame in stack.frames[:4])
            return [f"{stack.process} is inside the stack of its report: {below}"]
    return []


def _met(conditions: Sequence[ConditionResult]) -> set[str]:
    return {c.id for c in _of_cause(conditions) if c.truth is Truth.MET}


def _of_cause(conditions: Sequence[ConditionResult]) -> list[ConditionResult]:
    return [c for c in conditions if c.part == "cause" and c.required]


def _speaks_against(conditions: Sequence[ConditionResult]) -> bool:
    return any(c.truth is Truth.NOT_MET for c in _of_cause(conditions))


# ------------------------------------------------------------------ words


def _file(dump: Dump) -> DumpFile:
    if dump.data is None:
        return DumpFile(
            file=str(dump.file), kind=dump.kind, sentence=dump.error, read=False
        )
    sentence = f"{KIND_WORDS[dump.kind]}: {_about(dump)}"
    return DumpFile(file=str(dump.file), kind=dump.kind, sentence=sentence, read=True)


def _about(dump: Dump) -> str:
    data = dump.data
    if isinstance(data, StacksData):
        return _holds(data.samples)
    if isinstance(data, MetricsData):
        return f"{len(data.samples)} values"
    if isinstance(data, GpuData):
        return f"{len(data.devices)} GPUs" if len(data.devices) > 1 else "one GPU"
    return count(data.count, "request") if data is not None else ""


def _holds(samples: Sequence[StackSample]) -> str:
    pids = dict.fromkeys(s.pid for s in samples)
    processes = "one process" if len(pids) == 1 else f"{len(pids)} processes"
    times = f", {len(samples)} dumps" if len(samples) > len(pids) else ""
    return processes + times


def _unseen(
    facts: TargetFacts,
    processes: Sequence[ProcessStand],
    metrics: Sequence[Dump],
    readings: Sequence[MetricsData],
) -> list[str]:
    """What these dumps do not show, and how to see it."""
    unseen: list[str] = []
    for process in processes:
        if process.stays is None and not ended(process.reason):
            unseen.append(
                "whether it stays there: three dumps some seconds apart show it "
                "(py-spy dump --pid PID)"
            )
            break
    has_core = any(facts.is_core(process.role) for process in processes)
    if facts.core_role and processes and not has_core:
        unseen.append(f"the stack of {facts.core_role}, which runs the model")

    totals = {total_counted(data) for data in readings}
    if len(metrics) == 1:
        unseen.append(
            "whether the counters move: read the metrics a second time, 10 s later"
        )
    elif len(metrics) > 1 and len(totals) == 1:
        unseen.append(
            "no counter moved between the readings; how far apart they are is not known"
        )
    if not facts.engine:
        unseen.append("which engine it is; give --engine")
    return unseen
