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
from typing import Annotated, Any, Self

from mmrepro.base.records import FindingClass, Record
from mmrepro.failure.documents.replay import Sighting
from mmrepro.probes.data import Frame, StackSample, ThreadStack
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import CHAT, COMPLETIONS, Case, Operation
from mmrepro.traffic.case.sending import Played
from mmrepro.traffic.evidence import RequestRecord
from pydantic import Field

TOP_FRAMES = 3
WORDS = 12
"""Of a message: what comes later is mostly about the one request."""
INWARD = " > "
ENOUGH = 3
"""Samples of which it means something that all of them lie below an idle loop."""

_TYPE = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Fault"
    r"|Timeout))\b"
)
PLAIN = ("AssertionError", "RuntimeError", "ValueError", "Exception")
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
    text = _SEVERAL.sub("*", " ".join(text.split()[:WORDS]))
    return text.strip(" .:,;").replace("/", " ")


def loud_bucket(
    engine: str,
    kind: FindingClass,
    causes: Sequence[str],
    frames: Sequence[str],
    otherwise: str,
) -> str:
    """Of an exception: its type and the top functions; its message where the type says
    nothing, or there is no traceback.

    Args:
        causes: lines that say why, the one that matters first.
        frames: names of the engine's functions, innermost first.
        otherwise: where there is no cause.
    """
    cause = causes[0] if causes else otherwise
    cause = cause.strip()
    typed = _TYPE.match(cause)
    top = [name for name in frames if not name.startswith("<")][:TOP_FRAMES]
    what = normalised(cause) or "no cause"
    if typed and top:
        said = normalised(cause[typed.end() :]) if typed[1] in PLAIN else ""
        what = f"{typed[1]}: {said}" if said else typed[1]
    return "/".join([engine, str(kind), what, *([" < ".join(top)] if top else [])])


def hang_bucket(engine: str, path: Sequence[str]) -> str:
    """``path``: functions of the engine, outermost first; (): no stack was seen."""
    return "/".join([engine, str(FindingClass.HANG), INWARD.join(path)])


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
    shorter, longer = sorted((_path(a[2]), _path(b[2])), key=len)
    return longer[: len(shorter)] == shorter


def _path(text: str) -> list[str]:
    return text.split(INWARD) if text else []


# ---------------------------------------------------------------------- stacks


def hang_path(
    stack: Sequence[ThreadStack],
    samples: Sequence[StackSample],
    engine: str,
    idle_loops: Iterable[str] = (),
) -> list[str]:
    """Where a hanging engine stands: functions of the engine, outermost first.

    The thread is the one that runs in most samples; if none runs in half of them, the
    engine waits, and its main thread says where. Of its stacks only what all samples
    share counts, and of that the engine's functions down to the first one of a library:
    how deep a sample meets a loop is chance, who called the library is not.

    Args:
        stack: threads as they stand, busiest first.
        samples: further looks at the same process.
        idle_loops: functions that turn round while there is nothing to do.
    """
    looks = [sample.threads for sample in samples if sample.threads] or (
        [list(stack)] if stack else []
    )
    if not looks:
        return []
    by_thread: dict[str, list[ThreadStack]] = {}
    for thread in (thread for threads in looks for thread in threads):
        if any(_of(engine, frame) for frame in thread.frames):
            by_thread.setdefault(thread.name, []).append(thread)
    if not by_thread:
        return []
    busiest = max(by_thread, key=lambda name: _busy(by_thread[name]))
    if _busy(by_thread[busiest]) < len(looks):
        busiest = min(by_thread, key=lambda name: (name != "MainThread", name))
    paths = [_engine_path(frames, engine) for frames in _whole(by_thread[busiest])]
    shared = list(commonprefix([path for path in paths if path]))  # noqa: RUF071 - of lists
    idle = next((i for i, name in enumerate(shared) if name in set(idle_loops)), None)
    # Where it turned just then says nothing.
    if idle is not None and len(paths) < ENOUGH:
        return shared[: idle + 1]
    return shared


def _busy(thread: Sequence[ThreadStack]) -> int:
    """Two for each sample in which it runs with the interpreter's lock."""
    return sum(bool(one.active) + bool(one.owns_gil) for one in thread)


def _whole(thread: Sequence[ThreadStack]) -> list[list[Frame]]:
    """Its samples, outermost first, that begin as most of them do: others are torn."""
    inward = [list(reversed(one.frames)) for one in thread if one.frames]
    roots = Counter((frames[0].function, frames[0].file) for frames in inward)
    root = max(roots, key=lambda one: roots[one])
    return [frames for frames in inward if (frames[0].function, frames[0].file) == root]


def _of(engine: str, frame: Frame) -> bool:
    return re.search(rf"(?:^|/){re.escape(engine)}/", frame.file) is not None


def _engine_path(inward: Sequence[Frame], engine: str) -> list[str]:
    """Outermost first: the engine's functions below the innermost root that has some,
    down to the first frame of a library; without comprehensions and lambdas."""
    frames = [f for f in inward if not f.file.endswith(_WRAPPERS)]
    roots = [i for i, f in enumerate(frames) if any(mark in f.file for mark in _ROOTS)]
    start = next(
        (i for i in reversed(roots) if any(_of(engine, f) for f in frames[i:])), 0
    )
    path: list[str] = []
    for frame in frames[start:]:
        if _of(engine, frame):
            path += [] if frame.name.startswith("<") else [frame.name]
        elif path:
            break
    return path


# --------------------------------------------------------------- what an oracle reports


class Judged(Record):
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
    def of(cls, parts: Iterable[Judged]) -> Self:
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
        wanted = [self.parameter("n", 1), self.parameter("best_of", 1)]
        given = (
            self.parameter("prompt", []) if self.op.prompt is None else self.op.prompt
        )
        prompts = given if isinstance(given, list) else []
        several = len(prompts) if any(not isinstance(p, int) for p in prompts) else 1
        return max([1, *(w for w in wanted if isinstance(w, int))]) * several

    @property
    def limit(self) -> int | None:
        """Most tokens asked for, of each answer; None: not told."""
        for name in ("max_completion_tokens", "max_tokens"):
            if type(found := self.op.parameters.get(name)) is int and found > 0:
                return found
        return None

    @property
    def greedy(self) -> bool:
        return self.parameter("temperature", 1) == 0 and self.n == 1

    @cached_property
    def body(self) -> str:
        """All that is asked for, but for whether it streams; equal texts ask for the
        same."""
        op = self.op.model_dump(
            mode="json",
            include={
                "method",
                "path",
                "query",
                "headers",
                "model",
                "messages",
                "prompt",
            }
            | {"parameters", "body", "data", "form"},
            exclude_none=True,
            warnings=False,
        )
        op["parameters"] = {
            name: value
            for name, value in op["parameters"].items()
            if name not in _ANY_STREAM
        }
        return json.dumps(op, sort_keys=True)

    def parameter(self, name: str, otherwise: Any = None) -> Any:
        """A field of the body; ``otherwise``: it is not there, or null."""
        value = self.op.parameters.get(name)
        return otherwise if value is None else value


def sent_of(case: Case, played: Played) -> list[Sent]:
    """In the order in which they were sent; their bodies taken apart, as far as they
    can be."""
    records = {record.label: record for record in reversed(played.evidence.requests)}
    sent = [
        Sent(opened(op), records[op.id]) for op in case.operations if op.id in records
    ]
    return sorted(sent, key=lambda one: one.begin)
