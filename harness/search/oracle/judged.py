"""What oracles report of an attempt, and what makes two failures the same one.

A bucket is a short text without anything that differs by chance: ports, pids,
addresses, lengths, hashes, request ids and quoted names are taken out of messages. A
traceback keeps the engine's top functions. A hang keeps the path from the thread's
first function of the engine to the deepest one that every sample shows: how deep that
is differs from attempt to attempt, as :func:`alike` knows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import Annotated, Any, Final, Self

from mmrepro.base.records import FindingClass, Record
from mmrepro.failure.documents.replay import Sighting
from mmrepro.probes import Frame, StackSample, ThreadStack
from mmrepro.traffic.case import CHAT, COMPLETIONS, Case, Operation, Played, opened_body
from mmrepro.traffic.evidence import RequestRecord
from pydantic import Field

_TOP_FRAMES = 3
_WORDS = 12
"""Of a message: what comes later is mostly about the one request."""
_INWARD = " > "
_ENOUGH = 3
"""Samples of which it means something that all of them lie below an idle loop."""

_TYPE = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Fault"
    r"|Timeout))\b"
)
_PLAIN = ("AssertionError", "RuntimeError", "ValueError", "Exception")
"""Types of exceptions of which one function may raise several for different reasons."""
_QUOTED = re.compile(r"\"[^\"\n]*\"|`[^`\n]*`|(?<!\w)'[^'\n]*'(?!\w)")
_PATH = re.compile(r"(?<!\w)[\w.~-]*(?:/[\w.@+=~-]+)+/?")
_HEX = re.compile(r"\b(?:0x)?[0-9a-f]{8,}\b", re.IGNORECASE)
_NUMBERED = re.compile(r"[\w.+-]*\d[\w.+-]*")
_SEVERAL = re.compile(r"\*(?:[\s,;:.=()\[\]{}<>|x×-]*\*)+")
_WRAPPERS = ("contextlib.py", "functools.py", "torch/utils/_contextlib.py")
"""Files whose frames lie between two of an engine and say nothing: decorators'."""
_ROOTS = ("asyncio/", "uvloop/", "anyio/", "threading.py", "multiprocessing/")
"""Files of frames below which a stack begins anew: event loops, threads, processes; a
forked process has its parent's frames above them."""


def normalised(message: str) -> str:
    """The message without what differs from run to run; of equal form, whatever the
    numbers."""
    text = " ".join(message.split())
    for pattern in (_QUOTED, _PATH, _HEX, _NUMBERED):
        text = pattern.sub("*", text)
    text = _SEVERAL.sub("*", " ".join(text.split()[:_WORDS]))
    return text.strip(" .:,;").replace("/", " ")


def loud_bucket(
    engine: str,
    kind: FindingClass,
    causes: Sequence[str],
    frames: Sequence[str],
    otherwise: str,
) -> str:
    """Make the bucket of an exception: its type and the top functions; its message
    where the type says nothing, or there is no traceback.

    Args:
        causes: lines that say why, the one that matters first.
        frames: names of the engine's functions, innermost first.
        otherwise: where there is no cause.
    """
    cause = causes[0] if causes else otherwise
    cause = cause.strip()
    typed = _TYPE.match(cause)
    top = [name for name in frames if not name.startswith("<")][:_TOP_FRAMES]
    what = normalised(cause) or "no cause"
    if typed and top:
        said = normalised(cause[typed.end() :]) if typed[1] in _PLAIN else ""
        what = f"{typed[1]}: {said}" if said else typed[1]
    parts = [engine, str(kind), what]
    if top:
        parts.append(" < ".join(top))
    return "/".join(parts)


def hang_bucket(engine: str, path: Sequence[str]) -> str:
    """``path``: functions of the engine, outermost first; (): no stack was seen."""
    return "/".join([engine, str(FindingClass.HANG), _INWARD.join(path)])


def silent_bucket(kind: FindingClass, what: str) -> str:
    """Of what no exception tells: the class, and which of the oracle's findings."""
    return f"{kind}/{what}"


def alike(one: str, other: str) -> bool:
    """Whether two buckets are those of one failure.

    Equal, or of two hangs one was seen deeper in the same calls than the other: stacks
    are samples. A hang_bucket without a stack may be any hang_bucket of its engine."""
    if one == other:
        return True
    a, b = (text.split("/", 2) for text in (one, other))
    if len(a) != 3 or len(b) != 3 or a[:2] != b[:2] or a[1] != FindingClass.HANG:
        return False
    # Stacks are samples: one look goes deeper than another.
    shorter, longer = sorted((_path(a[2]), _path(b[2])), key=len)
    return longer[: len(shorter)] == shorter


def _path(text: str) -> list[str]:
    return text.split(_INWARD) if text else []


# ---------------------------------------------------------------------- stacks


def hang_path(
    stack: Sequence[ThreadStack],
    samples: Sequence[StackSample],
    engine: str,
    idle_loops: Iterable[str] = (),
) -> list[str]:
    """Return where a hanging engine is stuck: functions of the engine, outermost first.

    The thread is the one that runs in most samples; if none runs in half of them, the
    engine waits, and its main thread says where. Of its stacks only what all samples
    share counts, and of that the engine's functions down to the first one of a library:
    how deep a sample meets a loop is chance, who called the library is not.

    Args:
        stack: threads as they stand, busiest first.
        samples: further looks at the same process.
        idle_loops: functions that turn round while there is nothing to do.
    """
    looks = [sample.threads for sample in samples if sample.threads]
    if not looks and stack:
        looks = [list(stack)]
    by_thread: dict[str, list[ThreadStack]] = {}
    for threads in looks:
        for thread in threads:
            if any(_of(engine, frame) for frame in thread.frames):
                by_thread.setdefault(thread.name, []).append(thread)

    if not by_thread:
        return []

    busiest = max(by_thread, key=lambda name: _busy(by_thread[name]))
    if _busy(by_thread[busiest]) < len(looks):
        # None runs in half of the samples: the main thread says what is waited for.
        busiest = min(by_thread, key=lambda name: (name != "MainThread", name))
    paths = [_engine_path(frames, engine) for frames in _whole(by_thread[busiest])]
    shared = list(commonprefix([path for path in paths if path]))  # noqa: RUF071 - of lists
    if len(paths) < _ENOUGH:
        # Where an idle loop turned just then says nothing.
        idle = set(idle_loops)
        for place, name in enumerate(shared):
            if name in idle:
                return shared[: place + 1]

    return shared


_WAIT_CALL: Final = re.compile(r"(?:^|\.)(?:wait|get|poll|select|acquire|join)$")
_WAIT_FILE: Final = re.compile(
    r"(?:^|/)(?:threading|queue|selectors|multiprocessing/connection|zmq/[\w/]+)\.py$"
)


def _busy(thread: Sequence[ThreadStack]) -> int:
    """Two for each sample in which it runs with the interpreter's lock. One that stands
    in a call that waits does not run, whatever its state was when it was looked at: with
    a timeout it wakes again and again."""
    return sum(
        bool(sample.active) + bool(sample.owns_gil)
        for sample in thread
        if not _waits(sample)
    )


def _waits(sample: ThreadStack) -> bool:
    if not sample.frames:
        return False
    innermost = sample.frames[0]
    call = _WAIT_CALL.search(innermost.function)
    return call is not None and _WAIT_FILE.search(innermost.file) is not None


def _whole(thread: Sequence[ThreadStack]) -> list[list[Frame]]:
    """Its samples, outermost first, that begin as most of them do: others are torn."""
    inward = [list(reversed(sample.frames)) for sample in thread if sample.frames]
    roots = Counter(_root(frames) for frames in inward)
    root = max(roots, key=lambda root: roots[root])
    return [frames for frames in inward if _root(frames) == root]


def _root(inward: Sequence[Frame]) -> tuple[str, str]:
    return inward[0].function, inward[0].file


def _of(engine: str, frame: Frame) -> bool:
    return re.search(rf"(?:^|/){re.escape(engine)}/", frame.file) is not None


def _engine_path(inward: Sequence[Frame], engine: str) -> list[str]:
    """Outermost first: the engine's functions below the innermost root that has some,
    down to the first frame of a library; without comprehensions and lambdas."""
    frames = [f for f in inward if not f.file.endswith(_WRAPPERS)]
    path: list[str] = []
    for frame in frames[_start(frames, engine) :]:
        if not _of(engine, frame):
            if path:
                break
        elif not frame.name.startswith("<"):
            path.append(frame.name)

    return path


def _start(frames: Sequence[Frame], engine: str) -> int:
    """The place of the innermost root with a function of the engine below it."""
    below = False
    for place in reversed(range(len(frames))):
        below = below or _of(engine, frames[place])
        is_root = any(mark in frames[place].file for mark in _ROOTS)
        if is_root and below:
            return place
    return 0


# --------------------------------------------------------------- what an oracle reports


class OracleReport(Record):
    """Sightings, what was seen and is none, and what could not be judged."""

    sightings: Annotated[list[Sighting], Field(description="worst class first")] = []
    counted: Annotated[dict[str, int], Field(description="seen, and no failure")] = {}
    unseen: Annotated[
        list[str], Field(description="sentences: not judged, and why")
    ] = []
    untestable: Annotated[
        list[str], Field(description="sentences: what failed for this machine's limits")
    ] = []

    @classmethod
    def of(cls, parts: Iterable[OracleReport]) -> Self:
        """All of ``parts`` in one."""
        sightings: list[Sighting] = []
        counted: dict[str, int] = {}
        unseen: list[str] = []
        untestable: list[str] = []
        for part in parts:
            sightings += part.sightings
            unseen += part.unseen
            untestable += part.untestable
            for what, number in part.counted.items():
                counted[what] = counted.get(what, 0) + number

        sightings.sort(key=lambda sighting: sighting.finding_class.place)
        return cls(
            sightings=sightings,
            counted=counted,
            unseen=list(dict.fromkeys(unseen)),
            untestable=list(dict.fromkeys(untestable)),
        )

    @classmethod
    def found(
        cls, kind: FindingClass, bucket: str, *words: str, by: Sequence[str] = ()
    ) -> Self:
        """One sighting; ``words``: what was observed, and what was expected. ``by``:
        operations."""
        return cls(sightings=[sighting(kind, bucket, *words, by=by)])


def sighting(
    kind: FindingClass, bucket: str, said: str, expected: str, *, by: Sequence[str] = ()
) -> Sighting:
    """What an oracle found; a ``bucket`` without a slash is one of that class's own."""
    return Sighting(
        finding_class=kind,
        bucket=bucket if "/" in bucket else silent_bucket(kind, bucket),
        operations=list(by),
        said=said,
        expected=expected,
    )


# ------------------------------------------------------------------ what was sent

GENERATES = (CHAT, COMPLETIONS)
_ANY_STREAM = ("stream", "stream_options")
_ASKED = {
    "method",
    "path",
    "query",
    "headers",
    "model",
    "messages",
    "prompt",
    "parameters",
    "body",
    "data",
    "form",
}
"""Fields of an operation that say what is asked for."""


@dataclass(frozen=True)
class Sent:
    """An operation and its request."""

    op: Operation
    record: RequestRecord

    @property
    def begin(self) -> float:
        return self.record.sent.mono

    @property
    def end(self) -> float:
        return self.record.sent.mono + self.record.latency_s

    @property
    def generates(self) -> bool:
        return self.op.path in GENERATES

    @property
    def n(self) -> int:
        """Answers asked for."""
        most = 1
        for name in ("n", "best_of"):
            wanted = self.parameter(name, 1)
            if isinstance(wanted, int):
                most = max(most, wanted)
        return most * self._prompts

    @property
    def _prompts(self) -> int:
        """Prompts of a completion: a list of numbers is one, of tokens."""
        prompt = self.op.prompt
        if prompt is None:
            prompt = self.parameter("prompt", [])
        if not isinstance(prompt, list):
            return 1
        return 1 if all(isinstance(part, int) for part in prompt) else len(prompt)

    @property
    def limit(self) -> int | None:
        """Most tokens asked for, of each answer; None: not told."""
        for name in ("max_completion_tokens", "max_tokens"):
            given = self.op.parameters.get(name)
            if type(given) is int and given > 0:
                return given
        return None

    @property
    def greedy(self) -> bool:
        return self.parameter("temperature", 1) == 0 and self.n == 1

    @cached_property
    def body(self) -> str:
        """All that is asked for, but for whether it streams; equal texts ask for the
        same."""
        op = self.op.model_dump(
            mode="json", include=_ASKED, exclude_none=True, warnings=False
        )
        for name in _ANY_STREAM:
            op["parameters"].pop(name, None)
        return json.dumps(op, sort_keys=True)

    def parameter(self, name: str, otherwise: Any = None) -> Any:
        """A field of the body; ``otherwise``: it is not there, or null."""
        value = self.op.parameters.get(name)
        return otherwise if value is None else value

    @property
    def rules_out_parallel_calls(self) -> bool:
        """Whether it asks for one call of a tool at most, by the field of its API."""
        choice = self.parameter("tool_choice")
        disabled = isinstance(choice, dict) and choice.get("disable_parallel_tool_use")
        return self.parameter("parallel_tool_calls") is False or disabled is True


def sent_of(case: Case, played: Played) -> list[Sent]:
    """In the order in which they were sent; their bodies taken apart, as far as they
    can be."""
    records = {record.label: record for record in reversed(played.evidence.requests)}
    requests: list[Sent] = []
    for op in case.operations:
        if op.id in records:
            requests.append(Sent(opened_body(op), records[op.id]))
    return sorted(requests, key=lambda sent: sent.begin)
