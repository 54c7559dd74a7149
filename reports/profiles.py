"""Stack samples as files of other viewers: speedscope's own form, and the trace events
that Perfetto and chrome://tracing read.

Both show what was sampled: a frame lasts until the next sample of its process, and
nothing is known of the time between two."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.failure.documents import Incident
from mmrepro.probes import Frame
from mmrepro.reports.flames import process_samples, role_of

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True)
class _SampledThread:
    """One thread of a process over time.

    Attributes:
        moments: seconds since the first sample of all; one more than ``stacks``, the
            end.
        stacks: outermost frame first.
    """

    pid: int
    process: str
    tid: int
    name: str
    moments: Sequence[float]
    stacks: Sequence[Sequence[Frame]]


def speedscope(incident: Incident) -> str:
    """The samples as speedscope reads them. Raises UsageError: there are none."""
    frames: list[dict[str, Any]] = []
    numbers: dict[tuple[str, str, int | None], int] = {}

    def number(frame: Frame) -> int:
        key = (frame.function, frame.file, frame.line)
        if key not in numbers:
            numbers[key] = len(frames)
            frames.append(
                {"name": frame.function, "file": frame.file, "line": frame.line}
            )
        return numbers[key]

    profiles = []
    for thread in _threads(incident):
        samples = [[number(frame) for frame in stack] for stack in thread.stacks]
        weights = []
        for begin, end in zip(thread.moments, thread.moments[1:], strict=False):
            weights.append(round(end - begin, 6))
        profile = {
            "type": "sampled",
            "name": f"{thread.process} (pid {thread.pid}), {thread.name}",
            "unit": "seconds",
            "startValue": thread.moments[0],
            "endValue": thread.moments[-1],
            "samples": samples,
            "weights": weights,
        }
        profiles.append(profile)

    document = {
        "$schema": _SCHEMA,
        "name": incident.id,
        "exporter": "mmrepro",
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(document, indent=1) + "\n"


def trace_events(incident: Incident) -> str:
    """The samples as trace events, which Perfetto reads. Raises UsageError: there are
    none."""
    events: list[dict[str, Any]] = []
    named: set[int] = set()
    for thread in _threads(incident):
        if thread.pid not in named:
            named.add(thread.pid)
            events.append(_named("process_name", thread, thread.process))
        events.append(_named("thread_name", thread, thread.name))
        events += _spans(thread)
    document = {"traceEvents": events, "displayTimeUnit": "ms"}
    return json.dumps(document, indent=1) + "\n"


PROFILES: Final[dict[str, Callable[[Incident], str]]] = {
    "speedscope": speedscope,
    "perfetto": trace_events,
}


def _named(what: str, thread: _SampledThread, name: str) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": what,
        "pid": thread.pid,
        "tid": thread.tid,
        "args": {"name": name},
    }


def _spans(thread: _SampledThread) -> Iterator[dict[str, Any]]:
    """One event for each frame, as long as it stays at its place in the stack."""
    open_frames: list[tuple[Frame, float]] = []
    closing: Sequence[Frame] = []
    for moment, stack in zip(thread.moments, [*thread.stacks, closing], strict=True):
        kept = 0
        while (
            kept < min(len(open_frames), len(stack))
            and open_frames[kept][0].function == stack[kept].function
            and open_frames[kept][0].file == stack[kept].file
        ):
            kept += 1
        while len(open_frames) > kept:
            frame, began = open_frames.pop()
            yield _span(thread, frame, began, moment)
        open_frames += [(frame, moment) for frame in stack[kept:]]


def _span(
    thread: _SampledThread, frame: Frame, began: float, ended: float
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": frame.function,
        "pid": thread.pid,
        "tid": thread.tid,
        "ts": round(began * _MICROSECONDS),
        "dur": round((ended - began) * _MICROSECONDS),
        "args": {"place": f"{frame.file}:{frame.line}"},
    }


def _threads(incident: Incident) -> list[_SampledThread]:
    """Each thread that was sampled. Raises UsageError: none was."""
    processes = process_samples(incident)
    first = min(
        (samples[0].taken.mono for _, samples in processes if samples), default=0.0
    )
    threads: list[_SampledThread] = []
    for pid, samples in processes:
        moments = [round(sample.taken.mono - first, 6) for sample in samples]
        # The last sample lasts as long as the one before it.
        gap = moments[-1] - moments[-2] if len(moments) > 1 else 0.01
        ends = [*moments, moments[-1] + gap]
        keys: dict[tuple[int, str], None] = {}
        for sample in samples:
            for thread in sample.threads:
                keys[thread.tid or 0, thread.name] = None
        for tid, name in keys:
            stacks = []
            for sample in samples:
                found: Sequence[Frame] = []
                for thread in sample.threads:
                    if (thread.tid or 0, thread.name) == (tid, name):
                        found = thread.frames[::-1]
                stacks.append(found)
            role = role_of(incident, pid)
            threads.append(_SampledThread(pid, role, tid or pid, name, ends, stacks))
    if not threads:
        raise UsageError(
            f"{incident.id} holds no stack samples.",
            hint="mmrepro diagnose takes them; --samples says how many",
        )
    return threads
