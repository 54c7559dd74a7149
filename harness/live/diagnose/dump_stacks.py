"""Which processes dumps of stacks are of, and where each of them stands. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mmrepro.engines import ENGINES, Engine, Signs, StackRole
from mmrepro.failure.documents import ProcessStand, TargetFacts, TargetProcess
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.threads import MIN_SAMPLES, Course, where
from mmrepro.probes import (
    Frame,
    MetricsData,
    StackSample,
    StacksData,
    ThreadStack,
    role_from_title,
)

_SHOWN_FRAMES = 12

_SHOWN_PLACES = 4

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


def numbered(readings: Sequence[StacksData]) -> list[StackSample]:
    """All samples. Processes that no dump numbers get a number of their own in each
    file."""
    samples: list[StackSample] = []
    unknown = 0
    for data in readings:
        own: set[int] = set()
        for sample in data.samples:
            # Below 0 is a process without a number, counted anew in each file.
            if sample.pid < 0:
                own.add(sample.pid)
                sample = sample.model_copy(update={"pid": sample.pid - unknown})
            samples.append(sample)
        unknown += len(own)
    return samples


def server_facts(
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
    """The engine that titles and metrics show best, else the one of most frames."""
    best = max(ENGINES.values(), key=lambda engine: len(engine.recognise(signs)))
    if best.recognise(signs):
        return best

    counts: Counter[str] = Counter()
    for frame in _all_frames(samples):
        for name in ENGINES:
            if re.search(rf"(?:^|/){name}/", frame.file):
                counts[name] += 1
    if not counts:
        return None
    return ENGINES[counts.most_common(1)[0][0]]


def _all_frames(samples: Sequence[StackSample]) -> Iterator[Frame]:
    for sample in samples:
        for thread in sample.threads:
            yield from thread.frames


def _has_frame(frames: Sequence[Frame], place: StackRole) -> bool:
    for frame in frames:
        in_file = re.search(place.file, frame.file) is not None
        if in_file and re.fullmatch(place.functions, frame.name):
            return True
    return False


def _role(engine: Engine | None, sample: StackSample) -> str:
    """What a process is: by its title, else by the outer frames of its stacks."""
    if sample.title:
        role_of = engine.role_of if engine else role_from_title
        role = role_of("", sample.title)
        if role:
            return role

    outer: list[Frame] = []
    for thread in sample.threads:
        outer += thread.frames[-25:]
    for candidate in [engine] if engine else ENGINES.values():
        for place in candidate.stack_roles:
            if _has_frame(outer, place):
                return place.role or (engine.core_role if engine else "")
    if not sample.title:
        return ""
    program = sample.title.split(" ")[0]
    return program.rsplit("/", 1)[-1][:40]


def process_stands(
    view: DiagnosisView, samples: Sequence[StackSample]
) -> list[ProcessStand]:
    """The places of all processes that show a thread, the core first."""
    stands: list[ProcessStand] = []
    for process in view.facts.processes:
        own: list[StackSample] = []
        for sample in samples:
            if sample.pid == process.pid and sample.threads:
                own.append(sample)
        if own:
            stands.append(_stand(view, process, own))
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
        return max(
            working, key=lambda course: (course.with_gil, course.name == "MainThread")
        )
    role = view.facts.core_role
    for course in courses:
        if role and role in course.name:
            return course
    for course in courses:
        if course.name == "MainThread":
            return course
    return courses[0]


def _main(sample: StackSample) -> ThreadStack:
    """The main thread, or the first one."""
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

    shown = [where(frame) for frame in _places(thread.frames)]
    path = " ← ".join(shown) + _awaited(thread.frames)
    if stays:
        return f"{who} is stuck in {path}, in all {len(samples)} dumps."
    if stays is False:
        return f"{who} moves; in the last of {len(samples)} dumps it is in {path}."
    waits = " and waits there" if course is not None and course.waits else ""
    reason = _last_words(samples)
    why = f" as it ended ({reason})" if ended(reason) else ""
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


def ended(reason: str) -> bool:
    """Whether stacks were written because the process ended, and not on demand or by a
    timer."""
    if not reason or WATCHDOG in reason:
        return False
    return not reason.startswith("Timeout (")


def _places(frames: Sequence[Frame]) -> list[Frame]:
    """The frames that show where a thread is: the innermost one, and those of the
    engine's own code nearest to it."""
    own: list[Frame] = []
    for frame in frames[1:]:
        # Everything passes the standard library's and PyTorch's helpers.
        is_library = _LIBRARY.search(frame.file) is not None
        if _READABLE.search(frame.file) and not is_library:
            own.append(frame)
    if not own:
        return [*frames[:_SHOWN_PLACES]]
    return [frames[0], *own[: _SHOWN_PLACES - 1]]
