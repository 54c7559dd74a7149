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
from typing import TypeVar

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
from mmrepro.live.diagnose.readings import DiagnosisView, first_total
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course, where
from mmrepro.probes.base import ProbeResult, ProbeStatus
from mmrepro.probes.data import (
    KIND_WORDS,
    AnyProbeResult,
    Frame,
    GpuData,
    MetricSample,
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

_SHOWN_FRAMES = 12
_SHOWN_PLACES = 4
_SHOWN_REQUESTS = 3
REPEATED = 8
"""As often a single sample is repeated, to try what it would be if it stayed so."""
FITS = (Fit.MATCH, Fit.LIKELY, Fit.SYMPTOM_ONLY)
WATCHDOG = "feed timeout"
"""Why vLLM's watchdog writes stacks (vllm/utils/watch_dog.py)."""
_NATIVE_WAITS = {
    r"^cu(?:da)?(?:Event|Stream|Ctx|Device)\w*[Ss]ynchronize": "waits for the GPU",
    r"^hip(?:Event|Stream|Device)Synchronize": "waits for the GPU",
    r"^nccl[A-Z]\w+|^rccl": "is a collective of NCCL",
}
"""Functions of the CUDA driver and runtime, of HIP, and of NCCL."""
_READABLE = re.compile(r"\.py$|^<")
_LIBRARY = re.compile(
    r"^(?:threading|queue|selectors|runpy|contextlib|asyncio/|concurrent/"
    r"|multiprocessing/"
    r"|torch/(?:utils|nn/modules|_ops)|uvloop/|<frozen)"
)
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
    samples = _numbered(stacks)
    metrics = [dump for dump in distinct if isinstance(dump.data, MetricsData)]
    readings, counted = _readings(_data_of(distinct, MetricsData))
    gpus = _data_of(whole, GpuData)
    request_dumps = _data_of(whole, RequestDumpData)
    if request_dumps:
        engine = engine or _writes_requests()

    facts = _facts(samples, readings, engine, release)
    probes = [result.model_copy(update={"phase": "check"}) for result in logs]
    if samples:
        probes.append(_result("stacks", StacksData(samples=samples)))
    for reading in counted:
        probes.append(_result("metrics", reading))
    for gpu in gpus:
        probes.append(_result("gpu", gpu))
    evidence = Evidence(probes=probes)

    counts = _counts(ENGINES.get(facts.engine), metrics)
    for gpu in gpus:
        counts += _gpus(gpu)
    for requests in request_dumps:
        counts += _requests(requests)
    live = LiveFacts(facts.engine, facts.release, tuple(facts.command))
    tried = [*(scenarios if scenarios is not None else all_scenarios())]
    processes = _stands(DiagnosisView(facts, evidence), samples)
    return DumpReading(
        engine=facts.engine,
        release=facts.release,
        files=files,
        processes=processes,
        counts=counts,
        failures=failures(tried, evidence, live),
        unseen=_unseen(facts, processes, metrics, readings),
    )


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
    what = f"No log: {', '.join(kinds)}." if kinds else "No log, and not to be read."
    return Cause(
        name=CauseClass.NOT_A_LOG,
        certainty=Certainty.CERTAIN,
        sentence=f"{what} {reading.sentence}".strip(),
        why=[file.sentence for file in reading.files],
        advice=[
            (
                "give the server's log as well: mmrepro logs server.log dump.txt "
                "metrics.txt"
            )
        ],
    )


def _cause_of_end(process: ProcessStand, engine: str) -> Cause | None:
    """The cause that a process's last words name; None: it did not end, or they name
    none."""
    if not _ended(process.reason):
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
    """Without copies of the same file: they are no second reading."""
    seen: set[bytes] = set()
    kept = []
    for dump in dumps:
        digest = _digest(dump)
        if digest not in seen:
            seen.add(digest)
            kept.append(dump)
    return kept


def _digest(dump: Dump) -> bytes:
    """Of what a dump holds, without the file that it was read from."""
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


def _numbered(readings: Sequence[StacksData]) -> list[StackSample]:
    """All samples. Processes that no dump numbers get a number of their own in each
    file."""
    samples: list[StackSample] = []
    unknown = 0
    for data in readings:
        own = set()
        for sample in data.samples:
            # Below 0 is a process without a number, counted anew in each file.
            if sample.pid < 0:
                own.add(sample.pid)
                sample = sample.model_copy(update={"pid": sample.pid - unknown})
            samples.append(sample)
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
    moved = _counted(ordered[0]) != _counted(ordered[-1])
    return ordered, ordered if moved else ordered[-1:]


def _counted(data: MetricsData) -> float:
    """All tokens and requests that a reading counts."""
    names: set[str] = set()
    for engine in ENGINES.values():
        for short in ("prompt_tokens", "generation_tokens", "finished"):
            names.update(engine.metrics.get(short, ()))
    total = 0.0
    for sample in data.samples:
        if sample.name in names and sample.value is not None:
            total += sample.value
    return total


# ------------------------------------------------------------------ the server


def _facts(
    samples: Sequence[StackSample],
    metrics: Sequence[MetricsData],
    engine_name: str,
    release: str,
) -> TargetFacts:
    """Which engine, and which process is what: by titles, else by the frames of its
    stacks."""
    names: set[str] = set()
    for data in metrics:
        names.update(sample.name for sample in data.samples)
    titles = tuple(sample.title for sample in samples if sample.title)
    signs = Signs(titles, frozenset(names))
    engine = ENGINES.get(engine_name) or _engine(signs, samples)
    processes: dict[int, TargetProcess] = {}
    for sample in samples:
        if sample.pid not in processes:
            processes[sample.pid] = TargetProcess(
                pid=sample.pid,
                ppid=0,
                role=_role(engine, sample),
                name=sample.title[:200],
                state="",
            )
    return TargetFacts(
        url="",
        place="remote",
        processes=[*processes.values()],
        engine=engine.name if engine else engine_name,
        core_role=engine.core_role if engine else "",
        release=release,
        command=_command(engine, titles),
    )


def _command(engine: Engine | None, titles: Iterable[str]) -> list[str]:
    """The first title that is a command line of the engine, with options."""
    for title in titles:
        if engine is not None and engine.name in title and " -" in title:
            return title.split()
    return []


def _engine(signs: Signs, samples: Sequence[StackSample]) -> Engine | None:
    best = max(ENGINES.values(), key=lambda engine: len(engine.recognise(signs)))
    if best.recognise(signs):
        return best
    counts: Counter[str] = Counter()
    for sample in samples:
        for thread in sample.threads:
            for frame in thread.frames:
                for name in ENGINES:
                    if re.search(rf"(?:^|/){name}/", frame.file):
                        counts[name] += 1
    if not counts:
        return None
    return ENGINES[counts.most_common(1)[0][0]]


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
    """What a process is: by its title, else by the outer frames of its stacks."""
    role = ""
    if sample.title:
        role_of = engine.role_of if engine else role_from_title
        role = role_of("", sample.title)
    if role and ("::" in sample.title or role != sample.title):
        return role
    outward = []
    for thread in sample.threads:
        outward += thread.frames[-25:]
    for known in [engine] if engine else ENGINES.values():
        for place in known.stack_roles:
            if _has_frame(outward, place):
                return place.role or (engine.core_role if engine else "")
    if not sample.title:
        return ""
    return sample.title.split(" ")[0].rsplit("/", 1)[-1][:40]


# --------------------------------------------------------------- what each process does


def _stands(view: DiagnosisView, samples: Sequence[StackSample]) -> list[ProcessStand]:
    stands = []
    for process in view.facts.processes:
        mine = []
        for sample in samples:
            if sample.pid == process.pid and sample.threads:
                mine.append(sample)
        if mine:
            stands.append(_stand(view, process, mine))
    return sorted(stands, key=lambda stand: not view.facts.is_core(stand.role))


def _stand(
    view: DiagnosisView, process: TargetProcess, samples: Sequence[StackSample]
) -> ProcessStand:
    """What one process is at, by the thread that tells it."""
    last = samples[-1]
    courses = view.courses(process.pid)
    course = _telling(view, courses) if courses else None
    thread = course.stacks[-1] if course else _main(last)
    stays = None
    # Two dumps may be of one moment: that a thread stays takes three.
    if course is not None and course.samples >= MIN_SAMPLES:
        stays = course.stays
    # Locals hold prompts, and are in the file.
    frames = [
        frame.model_copy(update={"locals": {}})
        for frame in thread.frames[:_SHOWN_FRAMES]
    ]
    return ProcessStand(
        pid=process.pid if process.pid > 0 else None,
        role=process.role,
        tool=last.tool,
        reason=last.reason,
        samples=len(samples),
        thread=thread.name,
        running=thread.active,
        stays=stays,
        frames=frames,
        sentence=_sentence(process, samples, thread, course, stays=stays),
    )


def _telling(view: DiagnosisView, courses: Sequence[Course]) -> Course:
    """The thread that crashed or works; else the engine's own one, else the main
    one."""
    working = [course for course in courses if course.active and not course.waits]
    if working:
        return max(working, key=lambda c: (c.with_gil, c.name == "MainThread"))
    role = view.facts.core_role
    for course in courses:
        if role and role in course.name:
            return course
    for course in courses:
        if course.name == "MainThread":
            return course
    return courses[0]


def _main(sample: StackSample) -> ThreadStack:
    for thread in sample.threads:
        if thread.name == "MainThread":
            return thread
    return sample.threads[0]


def _sentence(
    process: TargetProcess,
    samples: Sequence[StackSample],
    thread: ThreadStack,
    course: Course | None,
    *,
    stays: bool | None,
) -> str:
    who = process.role or "A process"
    if process.pid > 0:
        number = f"pid {process.pid}"
        who = f"{process.role} ({number})" if process.role else number
    if not thread.frames:
        return f"{who}: no frame of Python is shown."
    shown = [where(frame) for frame in places(thread.frames)]
    path = " ← ".join(shown) + _awaited(thread.frames)
    if stays:
        return f"{who} stands in {path}, in all {len(samples)} dumps."
    if stays is False:
        return f"{who} moves; in the last of {len(samples)} dumps it is in {path}."
    waits = " and waits there" if course is not None and course.waits else ""
    reason = _last_words(samples)
    why = f" as it ended ({reason})" if _ended(reason) else ""
    return f"{who} was in {path}{waits}{why}."


def _last_words(samples: Sequence[StackSample]) -> str:
    """faulthandler's reason where it wrote one: it writes as the process crashes."""
    for sample in samples:
        if sample.tool == "faulthandler" and sample.reason:
            return sample.reason
    return samples[-1].reason


def _awaited(frames: Sequence[Frame]) -> str:
    """What a native function among the innermost frames waits for, as the end of a
    sentence."""
    for frame in frames[:6]:
        for pattern, words in _NATIVE_WAITS.items():
            if re.search(pattern, frame.function) and not frame.file.endswith(".py"):
                return f", which {words}"
    return ""


def _ended(reason: str) -> bool:
    """Whether stacks were written because the process ended, and not on demand or by a
    timer."""
    if not reason or WATCHDOG in reason:
        return False
    return not reason.startswith("Timeout (")


def places(frames: Sequence[Frame]) -> list[Frame]:
    """The frames that show where a thread is: the innermost one, and those of the
    engine's own code nearest to it."""
    own = []
    for frame in frames[1:]:
        if _READABLE.search(frame.file) and not _library(frame):
            own.append(frame)
    if not own:
        return [*frames[:_SHOWN_PLACES]]
    return [frames[0], *own[: _SHOWN_PLACES - 1]]


def _library(frame: Frame) -> bool:
    """The standard library's and PyTorch's helpers, which everything passes."""
    return _LIBRARY.search(frame.file) is not None


# ------------------------------------------------------------------ what is counted


def _counts(engine: Engine | None, metrics: Sequence[Dump]) -> list[str]:
    lines = []
    for dump in metrics:
        data = dump.data
        assert isinstance(data, MetricsData)
        name = f"{dump.file.name}: " if len(metrics) > 1 else ""
        if engine is None:
            lines.append(
                f"{name}{len(data.samples)} values of no engine that mmrepro knows"
            )
            continue
        for label, part in _by_engine(data):
            if parts := _of(engine, part):
                lines.append(f"{name}{label}{', '.join(parts)}")
    return lines


def _by_engine(data: MetricsData) -> list[tuple[str, MetricsData]]:
    """Each data-parallel engine's own values, where there are several."""
    by: dict[str, list[MetricSample]] = {}
    for sample in data.samples:
        if "engine" in sample.labels:
            by.setdefault(sample.labels["engine"], []).append(sample)
    if len(by) < 2:
        return [("", data)]
    parts = []
    for label, samples in list(by.items())[:16]:
        part = MetricsData(url=data.url, samples=samples)
        parts.append((f"engine {label}: ", part))
    return parts


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
        value = first_total(data, engine.metrics.get(short, ()))
        if value is None:
            continue
        shown = f"{value:,.0f}"
        if short == "kv_usage":
            shown = f"{value * 100:.0f} % used"
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
            busy = " → ".join(f"{pct} %" for pct in device.utilization_pct[-4:])
            parts.append(f"{busy} busy")
        if device.memory_total_bytes:
            used = size(device.memory_used_bytes)
            parts.append(f"{used} of {size(device.memory_total_bytes)} used")
        holders = []
        for process in device.processes[:4]:
            holders.append(f"{process.name or 'a process'} (pid {process.pid})")
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
    ordered = sorted(waiting, key=lambda r: (not r.fields, r.created or 0.0))
    for request in ordered[:_SHOWN_REQUESTS]:
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
    known = []
    names = set()
    for matched in match_all(scenarios, evidence, live):
        if matched.fit in FITS:
            names.add((matched.scenario, matched.variant))
            fit = Resemblance(matched.fit.value)
            known.append(_known(matched.scenario, matched, fit, [matched.why]))
    others = [s for s in scenarios if (s.name, s.variant) not in names]
    return [*known, *_standing(others, evidence, live)]


def _standing(
    scenarios: Iterable[Scenario], evidence: Evidence, live: LiveFacts
) -> Iterator[KnownFailure]:
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
    repeated = _result("stacks", StacksData(samples=samples * REPEATED))
    stays = evidence.model_copy(update={"probes": [*others, repeated]})
    for scenario in scenarios:
        if live.engine and scenario.engine != live.engine:
            continue
        if_so = match(scenario, stays, live)
        if if_so.exposed is False:
            continue
        without = _met(match(scenario, blind, live).conditions)
        new = _met(if_so.conditions) - without
        why = []
        for condition in if_so.conditions:
            if condition.id in new:
                why.append(f"{condition.statement}: {condition.observed}")
        if not why or _against(if_so.conditions):
            why = _shown_stack(scenario, evidence)
        if why:
            now = _met(match(scenario, evidence, live).conditions) - without
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
    return {c.id for c in _of_cause(conditions) if c.truth is Truth.MET}


def _of_cause(conditions: Sequence[ConditionResult]) -> list[ConditionResult]:
    return [c for c in conditions if c.part == "cause" and c.required]


def _against(conditions: Sequence[ConditionResult]) -> bool:
    return any(c.truth is Truth.NOT_MET for c in _of_cause(conditions))


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
    for process in processes:
        if process.stays is None and not _ended(process.reason):
            unseen.append(
                "whether it stays there: three dumps some seconds apart show it "
                "(py-spy dump --pid PID)"
            )
            break
    has_core = any(facts.is_core(process.role) for process in processes)
    if facts.core_role and processes and not has_core:
        unseen.append(f"the stack of {facts.core_role}, which runs the model")
    if len(metrics) == 1:
        unseen.append(
            "whether the counters move: read the metrics a second time, 10 s later"
        )
    elif len(metrics) > 1 and len({_counted(data) for data in readings}) == 1:
        unseen.append(
            "no counter moved between the readings; how far apart they are is not known"
        )
    if not facts.engine:
        unseen.append("which engine it is; give --engine")
    return unseen
