"""Dumps beside a log, or alone: the evidence that they are, and what it shows. Pure but
for reading the files.

The same signatures are tried on them as on a live server. What a dump does not hold is
unknown."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mmrepro.base.machine.files import files_below
from mmrepro.base.records import Moment
from mmrepro.base.units import size
from mmrepro.engines import ENGINES, Engine
from mmrepro.engines.base import Signs, StackRole
from mmrepro.failure.documents.cause import Cause, CauseClass, Certainty
from mmrepro.failure.documents.diagnosis import Fit, Match, TargetFacts, TargetProcess
from mmrepro.failure.documents.dumps import (
    DumpFile,
    DumpReading,
    KnownFailure,
    ProcessStand,
    Resemblance,
)
from mmrepro.failure.signature import ConditionResult, Truth
from mmrepro.live.diagnose.cause_advice import advice_for
from mmrepro.live.diagnose.cause_rules import meaning
from mmrepro.live.diagnose.match import all_scenarios, match, match_all
from mmrepro.live.diagnose.readings import View
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course, where
from mmrepro.probes.base import ProbeResult, ProbeStatus
from mmrepro.probes.data import (
    KIND_WORDS,
    AnyProbeResult,
    Frame,
    GpuData,
    MetricsData,
    RequestDumpData,
    StackSample,
    StacksData,
    ThreadStack,
)
from mmrepro.probes.dumps import Dump, kind_of, read_dump
from mmrepro.probes.log_files import MAX_FILES, logs_in
from mmrepro.probes.processes import role_from_title
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.traffic.evidence import Evidence

SHOWN_FRAMES = 12
SHOWN_PLACES = 4
SHOWN_REQUESTS = 3
REPEATED = 8
"""As often a single sample is repeated, to try what it would be if it stayed so."""
FITS = (Fit.MATCH, Fit.LIKELY, Fit.SYMPTOM_ONLY)
WATCHDOG = "feed timeout"
"""Why vLLM's watchdog writes stacks (vllm/utils/watch_dog.py)."""
NATIVE_WAITS = {
    r"^cu(?:da)?(?:Event|Stream|Ctx|Device)\w*[Ss]ynchronize": "waits for the GPU",
    r"^hip(?:Event|Stream|Device)Synchronize": "waits for the GPU",
    r"^nccl[A-Z]\w+|^rccl": "is a collective of NCCL",
}
"""Functions of the CUDA driver and runtime, of HIP, and of NCCL."""
READABLE = re.compile(r"\.py$|^<")


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
    read_ones = [d for d in dumps if d.data is not None]
    for path, data in (in_logs or {}).items():
        tools = ", ".join(dict.fromkeys(s.tool for s in data.samples))
        sentence = f"a log that holds stacks of {_holds(data.samples)}, by {tools}"
        files.append(DumpFile(file=str(path), kind=None, sentence=sentence))
    stacks = [d.data for d in _distinct(read_ones) if isinstance(d.data, StacksData)]
    samples = _numbered([*stacks, *(in_logs or {}).values()])
    metrics = [d for d in _distinct(read_ones) if isinstance(d.data, MetricsData)]
    readings, counted = _readings(
        [d.data for d in metrics if isinstance(d.data, MetricsData)]
    )
    if any(isinstance(d.data, RequestDumpData) for d in read_ones):
        engine = engine or _writes_requests()
    facts = _facts(samples, readings, engine, release)
    evidence = Evidence(
        probes=[
            *(result.model_copy(update={"phase": "check"}) for result in logs),
            *([_result("stacks", StacksData(samples=samples))] if samples else []),
            *(_result("metrics", data) for data in counted),
            *(_result("gpu", d.data) for d in read_ones if isinstance(d.data, GpuData)),
        ]
    )
    live = LiveFacts(facts.engine, facts.release, tuple(facts.command))
    tried = [*(scenarios if scenarios is not None else all_scenarios())]
    view = View(facts, evidence)
    processes = _stands(view, samples)
    return DumpReading(
        engine=facts.engine,
        release=facts.release,
        files=files,
        processes=processes,
        counts=[
            *_counts(ENGINES.get(facts.engine), metrics),
            *(
                line
                for d in read_ones
                if isinstance(d.data, GpuData)
                for line in _gpus(d.data)
            ),
            *(
                line
                for d in read_ones
                if isinstance(d.data, RequestDumpData)
                for line in _requests(d.data)
            ),
        ],
        failures=failures(tried, evidence, live),
        unseen=_unseen(facts, processes, metrics, readings),
    )


def sort(files: Iterable[Path]) -> tuple[list[Dump], list[Path]]:
    """``files`` that are dumps, read, and the others: logs, or what is taken for one.
    Of a folder each file is looked at."""
    dumps: list[Dump] = []
    logs: list[Path] = []
    for path in files:
        inside = (
            sorted(files_below(path).files)[:MAX_FILES] if path.is_dir() else [path]
        )
        kinds = {one: kind for one in inside if (kind := kind_of(one)) is not None}
        dumps += [read_dump(one, kind) for one, kind in kinds.items()]
        logs += (
            [one for one in logs_in([path]) if one not in kinds] if kinds else [path]
        )
    return dumps, logs


def cause_of(reading: DumpReading) -> Cause:
    """What ended the server, by the dumps alone. A fatal error's last words show it;
    other files that are no log do not."""
    for process in reading.processes:
        text = f"Fatal Python error: {process.reason}" if process.reason else ""
        if process.tool == "gdb":
            text = process.reason
        rule = meaning(text, exception=False) if ended(process.reason) else None
        if rule is not None:
            return Cause(
                name=rule.name,
                certainty=rule.sure,
                sentence=process.sentence,
                exception=text,
                process=process.role or (f"pid {process.pid}" if process.pid else ""),
                why=[f"{process.tool} wrote its stacks as it ended: {process.reason}"],
                advice=advice_for(rule.name, reading.engine, text),
            )
    watched = next((p for p in reading.processes if WATCHDOG in p.reason), None)
    if watched is not None:
        return Cause(
            name=CauseClass.HANG,
            certainty=Certainty.LIKELY if watched.stays else Certainty.POSSIBLE,
            sentence=(
                f"vLLM's watchdog saw no progress of {watched.role}: {watched.sentence}"
            ),
            process=watched.role,
            why=[
                f"the watchdog wrote its stacks {watched.samples} times, for {WATCHDOG}"
            ],
            advice=advice_for(CauseClass.HANG, reading.engine, ""),
        )
    what = ", ".join(
        dict.fromkeys(KIND_WORDS[f.kind] for f in reading.files if f.kind and f.read)
    )
    kinds = f"No log: {what}." if what else "No log, and not to be read."
    return Cause(
        name=CauseClass.NOT_A_LOG,
        certainty=Certainty.CERTAIN,
        sentence=f"{kinds} {reading.sentence}".strip(),
        why=[one.sentence for one in reading.files],
        advice=[
            (
                "give the server's log as well: mmrepro logs server.log dump.txt "
                "metrics.txt"
            )
        ],
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
    """Without copies of the same file: they are no second reading."""
    seen: set[bytes] = set()
    kept = []
    for dump in dumps:
        data = dump.data
        if isinstance(data, MetricsData):
            data = data.model_copy(update={"url": ""})
        if isinstance(data, StacksData):
            digest = hashlib.sha256(
                "".join(
                    f"{s.pid} {[t.model_dump_json() for t in s.threads]}"
                    for s in data.samples
                ).encode("utf-8", "replace")
            ).digest()
        else:
            text = data.model_dump_json() if data is not None else ""
            digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        if digest not in seen:
            seen.add(digest)
            kept.append(dump)
    return kept


def _numbered(found: Sequence[StacksData]) -> list[StackSample]:
    """All samples. Processes that no dump numbers get a number of their own in each
    file."""
    samples: list[StackSample] = []
    unknown = 0
    for data in found:
        own = {s.pid for s in data.samples if s.pid < 0}
        samples += [
            s.model_copy(update={"pid": s.pid - unknown}) if s.pid < 0 else s
            for s in data.samples
        ]
        unknown += len(own)
    return samples


def _readings(
    metrics: Sequence[MetricsData],
) -> tuple[list[MetricsData], list[MetricsData]]:
    """The readings in the order of their counters, and those that may be judged.

    When files were written is not known, so two that are alike may be of one moment:
    then only one is judged. Counters that moved show which reading is the older one,
    and that work was done."""
    if len(metrics) < 2:
        return [*metrics], [*metrics]
    ordered = sorted(metrics, key=_counted)
    moved = [_counted(one) for one in ordered]
    return ordered, ordered if len(set(moved)) > 1 else ordered[-1:]


def _counted(data: MetricsData) -> float:
    """All tokens and requests that a reading counts."""
    names = {
        name
        for engine in ENGINES.values()
        for short in ("prompt_tokens", "generation_tokens", "finished")
        for name in engine.metrics.get(short, ())
    }
    return sum(s.value for s in data.samples if s.name in names and s.value is not None)


# ------------------------------------------------------------------ the server


def _facts(
    samples: Sequence[StackSample],
    metrics: Sequence[MetricsData],
    engine_name: str,
    release: str,
) -> TargetFacts:
    """Which engine, and which process is what: by titles, else by the frames of its
    stacks."""
    names = frozenset(s.name for data in metrics for s in data.samples)
    titles = tuple(s.title for s in samples if s.title)
    engine = ENGINES.get(engine_name) or _engine(Signs(titles, names), samples)
    processes: dict[int, TargetProcess] = {}
    for sample in samples:
        if sample.pid not in processes:
            role = _role(engine, sample)
            processes[sample.pid] = TargetProcess(
                pid=sample.pid, ppid=0, role=role, name=sample.title[:200], state=""
            )
    commands = (t.split() for t in titles if engine and engine.name in t and " -" in t)
    return TargetFacts(
        url="",
        place="remote",
        processes=[*processes.values()],
        engine=engine.name if engine else engine_name,
        core_role=engine.core_role if engine else "",
        release=release,
        command=next(commands, []),
    )


def _engine(signs: Signs, samples: Sequence[StackSample]) -> Engine | None:
    best = max(ENGINES.values(), key=lambda engine: len(engine.recognise(signs)))
    if best.recognise(signs):
        return best
    counts = Counter(
        name
        for sample in samples
        for thread in sample.threads
        for frame in thread.frames
        for name in ENGINES
        if re.search(rf"(?:^|/){name}/", frame.file)
    )
    return ENGINES[counts.most_common(1)[0][0]] if counts else None


def _writes_requests() -> str:
    """The engine that alone writes files of requests."""
    for engine in ENGINES.values():
        if engine.dumps_requests:
            return engine.name
    return ""


def _has_frame(frames: Sequence[Frame], place: StackRole) -> bool:
    for frame in frames:
        in_file = re.search(place.file, frame.file) is not None
        if in_file and re.fullmatch(place.functions, frame.name):
            return True
    return False


def _role(engine: Engine | None, sample: StackSample) -> str:
    role = (
        (engine.role_of if engine else role_from_title)("", sample.title)
        if sample.title
        else ""
    )
    if role and ("::" in sample.title or role != sample.title):
        return role
    outward = [f for t in sample.threads for f in t.frames[-25:]]
    for known in [engine] if engine else ENGINES.values():
        for place in known.stack_roles:
            if _has_frame(outward, place):
                return place.role or (engine.core_role if engine else "")
    return sample.title.split(" ")[0].rsplit("/", 1)[-1][:40] if sample.title else ""


# --------------------------------------------------------------- what each process does


def _stands(view: View, samples: Sequence[StackSample]) -> list[ProcessStand]:
    stands = []
    for process in view.facts.processes:
        mine = [s for s in samples if s.pid == process.pid and s.threads]
        if not mine:
            continue
        courses = view.courses(process.pid)
        course = _telling(view, courses) if courses else None
        thread = course.stacks[-1] if course else _main(mine[-1])
        stays = None
        if course is not None and course.samples >= MIN_SAMPLES:
            stays = course.stays
        stands.append(
            ProcessStand(
                pid=process.pid if process.pid > 0 else None,
                role=process.role,
                tool=mine[-1].tool,
                reason=mine[-1].reason,
                samples=len(mine),
                thread=thread.name,
                running=thread.active,
                stays=stays,
                # Locals hold prompts, and are in the file.
                frames=[
                    f.model_copy(update={"locals": {}})
                    for f in thread.frames[:SHOWN_FRAMES]
                ],
                sentence=_sentence(process, mine, thread, course, stays=stays),
            )
        )
    return sorted(stands, key=lambda s: not view.facts.is_core(s.role))


def _telling(view: View, courses: Sequence[Course]) -> Course:
    """The thread that crashed or works; else the engine's own one, else the main
    one."""
    working = [c for c in courses if c.active and not c.waits]
    if working:
        return max(working, key=lambda c: (c.with_gil, c.name == "MainThread"))
    role = view.facts.core_role
    own = next((c for c in courses if role and role in c.name), None)
    main = next((c for c in courses if c.name == "MainThread"), None)
    return own or main or courses[0]


def _main(sample: StackSample) -> ThreadStack:
    return next(
        (t for t in sample.threads if t.name == "MainThread"), sample.threads[0]
    )


def _sentence(
    process: TargetProcess,
    samples: Sequence[StackSample],
    thread: ThreadStack,
    course: Course | None,
    *,
    stays: bool | None,
) -> str:
    number = f"pid {process.pid}" if process.pid > 0 else ""
    who = (
        f"{process.role} ({number})"
        if process.role and number
        else process.role or number
    )
    who = who or "A process"
    crashed = next(
        (s for s in samples if s.tool == "faulthandler" and s.reason), samples[-1]
    )
    why = f" as it ended ({crashed.reason})" if ended(crashed.reason) else ""
    path = " ← ".join(where(f) for f in places(thread.frames)) + _awaited(thread.frames)
    if not thread.frames:
        return f"{who}: no frame of Python is shown."
    if stays:
        return f"{who} stands in {path}, in all {len(samples)} dumps."
    if stays is False:
        return f"{who} moves; in the last of {len(samples)} dumps it is in {path}."
    waits = " and waits there" if course is not None and course.waits else ""
    return f"{who} was in {path}{waits}{why}."


def _awaited(frames: Sequence[Frame]) -> str:
    """What a native function among the innermost frames waits for, as the end of a
    sentence."""
    for frame in frames[:6]:
        for pattern, words in NATIVE_WAITS.items():
            if re.search(pattern, frame.function) and not frame.file.endswith(".py"):
                return f", which {words}"
    return ""


def ended(reason: str) -> bool:
    """Whether stacks were written because the process ended, and not on demand or by a
    timer."""
    return (
        bool(reason) and WATCHDOG not in reason and not reason.startswith("Timeout (")
    )


def places(frames: Sequence[Frame]) -> list[Frame]:
    """The frames that show where a thread is: the innermost one, and those of the
    engine's own code nearest to it."""
    shown = list(frames[:1])
    own = [f for f in frames[1:] if READABLE.search(f.file) and not _library(f)]
    return shown + own[: SHOWN_PLACES - 1] if own else [*frames[:SHOWN_PLACES]]


def _library(frame: Frame) -> bool:
    """The standard library's and PyTorch's helpers, which everything passes."""
    return (
        re.search(
            r"^(?:threading|queue|selectors|runpy|contextlib|asyncio/|concurrent/"
            r"|multiprocessing/"
            r"|torch/(?:utils|nn/modules|_ops)|uvloop/|<frozen)",
            frame.file,
        )
        is not None
    )


# ------------------------------------------------------------------ what is counted


def _counts(engine: Engine | None, metrics: Sequence[Dump]) -> list[str]:
    found = []
    for dump in metrics:
        data = dump.data
        assert isinstance(data, MetricsData)
        name = f"{dump.file.name}: " if len(metrics) > 1 else ""
        for label, part in _by_engine(data):
            parts = _of(engine, part) if engine is not None else []
            if parts:
                found.append(f"{name}{label}{', '.join(parts)}")
        if engine is None:
            found.append(
                f"{name}{len(data.samples)} values of no engine that mmrepro knows"
            )
    return found


def _by_engine(data: MetricsData) -> list[tuple[str, MetricsData]]:
    """Each data-parallel engine's own values, where there are several."""
    labels = dict.fromkeys(
        s.labels["engine"] for s in data.samples if "engine" in s.labels
    )
    if len(labels) < 2:
        return [("", data)]
    return [
        (
            f"engine {label}: ",
            MetricsData(
                url=data.url,
                samples=[s for s in data.samples if s.labels.get("engine") == label],
            ),
        )
        for label in list(labels)[:16]
    ]


_GAUGES = (
    ("running", "{} running"),
    ("waiting", "{} waiting"),
    ("kv_usage", "KV cache {}"),
    ("prompt_tokens", "{} prompt tokens"),
    ("generation_tokens", "{} tokens generated"),
    ("finished", "{} requests finished"),
)
_TROUBLE = {
    "vllm:corrupted_requests_total": "{} corrupted requests (NaN in their logits)",
    "vllm:corrupted_requests": "{} corrupted requests (NaN in their logits)",
    "vllm:num_preemptions_total": "{} preemptions",
    "sglang:num_retracted_reqs": "{} retracted requests",
    "sglang:num_aborted_requests_total": "{} aborted requests",
}


def _of(engine: Engine, data: MetricsData) -> list[str]:
    parts = []
    for short, words in _GAUGES:
        names = engine.metrics.get(short, ())
        value = next((v for n in names if (v := data.total(n)) is not None), None)
        if value is not None:
            shown = (
                f"{value * 100:.0f} % used" if short == "kv_usage" else f"{value:,.0f}"
            )
            parts.append(words.format(shown))
    for name, words in _TROUBLE.items():
        if value := data.total(name):
            parts.append(words.format(f"{value:,.0f}"))
    return parts


def _gpus(data: GpuData) -> list[str]:
    lines = []
    for device in data.devices[:16]:
        parts = [f"GPU {device.index}"]
        if device.utilization_pct:
            parts.append(
                " → ".join(f"{pct} %" for pct in device.utilization_pct[-4:]) + " busy"
            )
        if device.memory_total_bytes:
            used, total = (
                size(device.memory_used_bytes),
                size(device.memory_total_bytes),
            )
            parts.append(f"{used} of {total} used")
        holders = [
            f"{p.name or 'a process'} (pid {p.pid})" for p in device.processes[:4]
        ]
        if holders:
            parts.append(f"by {', '.join(holders)}")
        lines.append(", ".join(parts))
    return lines


def _requests(data: RequestDumpData) -> list[str]:
    waiting = data.unfinished
    lines = [
        (
            f"{data.count} requests, {len(waiting)} of them not finished when it was "
            "written"
        )
    ]
    for request in sorted(waiting, key=lambda r: (not r.fields, r.created or 0.0))[
        :SHOWN_REQUESTS
    ]:
        about = [f"{name} {value}" for name, value in request.fields.items()]
        if request.media:
            about.insert(0, f"pictures, videos and sounds: {request.media}")
        if request.created is not None and request.ended is not None:
            about.insert(0, f"{request.ended - request.created:.1f} s old")
        lines.append(
            f"not finished: {request.id or 'a request'} ({', '.join(about)})"[:300]
        )
    return lines


# ------------------------------------------------------------------ known failures


def failures(
    scenarios: Sequence[Scenario], evidence: Evidence, live: LiveFacts
) -> list[KnownFailure]:
    """Those whose signature fits, and those in whose place a process stands."""
    fitting = [m for m in match_all(scenarios, evidence, live) if m.fit in FITS]
    found = [_known(m.scenario, m, Resemblance(m.fit.value), [m.why]) for m in fitting]
    names = {(m.scenario, m.variant) for m in fitting}
    others = [s for s in scenarios if (s.name, s.variant) not in names]
    return [*found, *_standing(others, evidence, live)]


def _standing(
    scenarios: Iterable[Scenario], evidence: Evidence, live: LiveFacts
) -> Iterator[KnownFailure]:
    """Known failures whose stack this is, if it stays: one sample does not show that.

    The conditions of their cause are tried as if each sample had been taken again and
    again. What the same evidence shows without any stack is not counted."""
    samples = [s for _, d in evidence.results(StacksData, "check") for s in d.samples]
    if not samples:
        return
    others = [r for r in evidence.probes if not isinstance(r.data, StacksData)]
    blind = evidence.model_copy(update={"probes": others})
    repeated = _result("stacks", StacksData(samples=samples * REPEATED))
    stays = evidence.model_copy(update={"probes": [*others, repeated]})
    for scenario in scenarios:
        if live.engine and scenario.engine != live.engine:
            continue
        if_so = match(scenario, stays, live)
        if if_so.exposed is False:
            continue
        without = _met(match(scenario, blind, live).conditions)
        new = [c for c in if_so.conditions if c.id in _met(if_so.conditions) - without]
        why = [f"{c.statement}: {c.observed}" for c in new]
        now = _met(match(scenario, evidence, live).conditions) - without
        if not why or _against(if_so.conditions):
            why = _shown_stack(scenario, evidence)
        if why:
            fit = Resemblance.STANDS_THERE if now else Resemblance.IF_IT_STAYS
            yield _known(scenario.name, if_so, fit, why, scenario.affected_range)


def _known(
    name: str, found: Match, fit: Resemblance, why: list[str], affected: str = ""
) -> KnownFailure:
    return KnownFailure(
        scenario=name,
        variant=found.variant,
        title=found.title,
        fit=fit,
        why=why,
        affected=affected,
        remedies=found.remedies,
        references=found.references,
    )


def _shown_stack(scenario: Scenario, evidence: Evidence) -> list[str]:
    """That a thread is inside the stack which the scenario shows in its own reports."""
    with contextlib.suppress(Exception):  # a table that fails shows nothing
        if stack := scenario.key_stack(evidence):
            below = " ← ".join(frame.function for frame in stack.frames[:4])
            return [f"{stack.process} is inside the stack of its report: {below}"]
    return []


def _met(conditions: Sequence[ConditionResult]) -> set[str]:
    return {
        c.id
        for c in conditions
        if c.part == "cause" and c.required and c.truth is Truth.MET
    }


def _against(conditions: Sequence[ConditionResult]) -> bool:
    return any(
        c.part == "cause" and c.required and c.truth is Truth.NOT_MET
        for c in conditions
    )


# ------------------------------------------------------------------ words


def _file(dump: Dump) -> DumpFile:
    if dump.data is None:
        sentence, read_it = dump.error, False
    else:
        sentence, read_it = f"{KIND_WORDS[dump.kind]}: {_about(dump)}", True
    return DumpFile(
        file=str(dump.file), kind=dump.kind, sentence=sentence, read=read_it
    )


def _about(dump: Dump) -> str:
    data = dump.data
    if isinstance(data, StacksData):
        return _holds(data.samples)
    if isinstance(data, MetricsData):
        return f"{len(data.samples)} values"
    if isinstance(data, GpuData):
        return f"{len(data.devices)} GPUs" if len(data.devices) > 1 else "one GPU"
    return f"{data.count} requests" if data is not None else ""


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
    unseen = []
    if any(p.stays is None and not ended(p.reason) for p in processes):
        unseen.append(
            "whether it stays there: three dumps some seconds apart show it (py-spy "
            "dump --pid PID)"
        )
    if (
        facts.core_role
        and processes
        and not any(facts.is_core(p.role) for p in processes)
    ):
        unseen.append(f"the stack of {facts.core_role}, which runs the model")
    if len(metrics) == 1:
        unseen.append(
            "whether the counters move: read the metrics a second time, 10 s later"
        )
    elif len(metrics) > 1 and len({_counted(one) for one in readings}) == 1:
        unseen.append(
            "no counter moved between the readings; how far apart they are is not known"
        )
    if not facts.engine:
        unseen.append("which engine it is; give --engine")
    return unseen
