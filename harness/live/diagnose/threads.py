"""What several samples of one process's Python threads say together. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmrepro.probes import Frame, StackSample, ThreadStack

MIN_SAMPLES = 3
NEAR = 3
"""Frames by which the samples of one small loop may differ at their inner end."""
_NEAR_IN_PYTHON = 6
"""The same for a thread that has the GIL in every sample: its loop is all Python, and
calls Python functions. A model's forward pass, which moves by as much, gives the GIL up
in each of its kernels. vLLM 0.23.0's LRUCache.popitem differs by 4 (line 81 or 82 of
cachetools' __setitem__)."""

# Where a thread with nothing to do stands. The last part of the innermost function's
# name.
WAITING = frozenset(
    {
        "wait",
        "get",
        "poll",
        "select",
        "epoll",
        "recv",
        "recv_multipart",
        "recv_bytes",
        "recv_pyobj",
        "_recv",
        "accept",
        "dequeue",
        "readline",
        "join",
        "_worker",
        "run_forever",
        "run_until_complete",
        "_run_once",
        "serve_forever",
        "watch",
        "_monitor_engine_cores",
        "_poll",
        "wait_for_ready",
        "watchdog_thread",
        "_watchdog_thread",
        "_watchdog_once",
    }
)
_LOOPS = frozenset({"run_forever", "run_until_complete", "_run_once", "serve_forever"})
RUNNERS = ("uvloop/__init__.py", "asyncio/runners.py")
"""uvloop's event loop has no Python frame: who runs it is the innermost one while it
waits."""
_WAITING_FILES = ("selectors.py", "concurrent/futures/thread.py", *RUNNERS)
_LOCKING = frozenset({"acquire", "__enter__", "_acquire_restore", "acquire_lock"})
DEVICE = re.compile(r"(?:torch/cuda|/nccl|torch/distributed|torch/_C|cuda|triton)")
_LOCK = re.compile(
    r"<(?:[\w. ]*)(?:lock|Lock|Semaphore|Condition)[^>]* at (0x[0-9a-f]+)"
)
_SELF = re.compile(r" at (0x[0-9a-f]+)")


@dataclass(frozen=True)
class Course:
    """One thread over all samples in which it appears.

    Attributes:
        stacks: its samples, oldest first, without the torn ones.
        torn: how many were torn, and left out.
        steady: frames, innermost first, that are the same in every sample, lines
            included.
        loose: how many frames at most stand inside of them.
        turning: the function that differs first, coming from outside; "" when none
            does.
    """

    pid: int
    tid: int | None
    name: str
    stacks: tuple[ThreadStack, ...]
    steady: tuple[Frame, ...]
    loose: int
    turning: str
    torn: int = 0

    @property
    def samples(self) -> int:
        return len(self.stacks)

    @property
    def active(self) -> int:
        return sum(bool(stack.active) for stack in self.stacks)

    @property
    def with_gil(self) -> int:
        return sum(bool(stack.owns_gil) for stack in self.stacks)

    @property
    def stays(self) -> bool:
        """In one place in every sample, or inside one small loop."""
        near = _NEAR_IN_PYTHON if self.with_gil == self.samples else NEAR
        return self.samples >= MIN_SAMPLES and bool(self.steady) and self.loose <= near

    @property
    def rigid(self) -> bool:
        """The very same line of the very same function in every sample."""
        return self.stays and self.loose == 0

    @property
    def waits(self) -> bool:
        """It stands where a thread without work stands, in every sample."""
        return all(_waits(stack.frames) for stack in self.stacks)

    @property
    def idle_loop(self) -> bool:
        """It is an event loop that has nothing to do, in every sample."""
        for stack in self.stacks:
            own = _python(stack.frames)
            if not own:
                return False
            file = own[0].file
            # A selector may be other code's: it counts inside of an event loop only.
            selects = file.endswith("selectors.py") and self.in_a_loop
            if not file.endswith(RUNNERS) and not selects:
                return False
        return True

    @property
    def in_a_loop(self) -> bool:
        """Further out it runs an event loop."""
        return all(_runs_a_loop(stack.frames[1:]) for stack in self.stacks)

    @property
    def locking(self) -> bool:
        """Its innermost Python function is one that takes a lock, in every sample."""
        for stack in self.stacks:
            if not stack.frames or bare(_python(stack.frames)[0]) not in _LOCKING:
                return False
        return self.samples >= MIN_SAMPLES

    @property
    def on_device(self) -> bool:
        for stack in self.stacks:
            for frame in _python(stack.frames)[:3]:
                if DEVICE.search(frame.file):
                    return True
        return False

    @property
    def driver_call(self) -> str:
        """The function of CUDA's or HIP's driver in which it waits in every sample, by
        its C frames; "": none, or they were not read."""
        calls = [_driver_call(stack.frames) for stack in self.stacks]
        return calls[-1] if all(calls) else ""

    @property
    def frames(self) -> list[Frame]:
        """The most telling sample's frames: the deepest."""
        return list(max(self.stacks, key=lambda s: len(s.frames)).frames)

    @property
    def place(self) -> str:
        """``LRUCache.popitem (vllm/utils/cache.py:195)``: the innermost frame most
        often seen."""
        tops = [where(_python(s.frames)[0]) for s in self.stacks if s.frames]
        return max(set(tops), key=tops.count) if tops else "no Python frame"


_DRIVER = re.compile(r"^(?:cu|hip)\w*(?:Synchronize|Memcpy)")
_LIBRARY = re.compile(r"lib(?:cuda|cudart|amdhip64)\.so")


def _driver_call(frames: Sequence[Frame]) -> str:
    """Of the C frames below the innermost Python one; a copy to the host waits for the
    device."""
    own = _python(frames)
    below = list(frames)
    if own and own[0].file.endswith(".py"):
        below = below[: below.index(own[0])]
    for frame in below:
        if _LIBRARY.search(frame.file) and _DRIVER.match(frame.function):
            return frame.function
    return ""


def _runs_a_loop(frames: Iterable[Frame]) -> bool:
    return any(
        bare(frame) in _LOOPS or frame.file.endswith(RUNNERS) for frame in frames
    )


def bare(frame: Frame) -> str:
    return frame.function.rpartition(".")[2]


def where(frame: Frame) -> str:
    place = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return f"{frame.function} ({place})"


def _python(frames: Sequence[Frame]) -> list[Frame]:
    """Without the frames of C code, which --native adds: one Python call runs many of
    them."""
    own = [f for f in frames if f.file.endswith(".py") or f.file.startswith("<")]
    return own or list(frames)


def _waits(frames: Sequence[Frame]) -> bool:
    if not frames:
        return True  # a thread that runs no Python code is none of ours
    frames = _python(frames)
    return bare(frames[0]) in WAITING or frames[0].file.endswith(_WAITING_FILES)


def courses(samples: Iterable[StackSample], pid: int) -> list[Course]:
    """The threads of ``pid`` that are there in every sample of it, in the order first
    seen."""
    taken = 0
    by_thread: dict[object, list[ThreadStack]] = {}
    for sample in samples:
        if sample.pid != pid or not sample.threads:
            continue
        taken += 1
        for thread in sample.threads:
            by_thread.setdefault(thread.tid or thread.name, []).append(thread)
    # A thread that came or went while samples were taken stands nowhere.
    lasting = [stacks for stacks in by_thread.values() if len(stacks) == taken]
    return [_course(pid, stacks) for stacks in lasting]


def _untorn(stacks: list[ThreadStack]) -> list[ThreadStack]:
    """Without the few samples that py-spy, which pauses nothing, took while the stack
    changed.

    Such a sample has no frame, or ends short of the frame in which the thread was
    started: that one never changes. Where more than a third is like that, nothing is
    left out."""
    counts: Counter[tuple[str, str]] = Counter()
    for stack in stacks:
        if root := _root(stack):
            counts[root] += 1
    common = max(counts, key=counts.__getitem__, default=None)
    whole = [stack for stack in stacks if _root(stack) == common]
    return whole if len(whole) * 3 >= len(stacks) * 2 else stacks


def _root(stack: ThreadStack) -> tuple[str, str] | None:
    """Function and file of the outermost frame."""
    frames = _python(stack.frames)
    return (frames[-1].function, frames[-1].file) if frames else None


def _course(pid: int, taken: list[ThreadStack]) -> Course:
    stacks = _untorn(taken)
    # From the outside in: stacks are compared where they begin, for what a thread
    # calls last is of another depth in each sample.
    outward = [list(reversed(_python(stack.frames))) for stack in stacks]
    depth = 0
    for frames in zip(*outward, strict=False):
        if len({(f.function, f.file, f.line) for f in frames}) > 1:
            break
        depth += 1
    turning = {bare(frames[depth]) for frames in outward if len(frames) > depth}
    return Course(
        pid=pid,
        tid=stacks[0].tid,
        name=stacks[0].name,
        stacks=tuple(stacks),
        steady=tuple(reversed(outward[0][:depth])),
        loose=max(map(len, outward)) - depth,
        turning=turning.pop() if len(turning) == 1 else "",
        torn=len(taken) - len(stacks),
    )


def holder(waiting: Course, all_courses: Sequence[Course]) -> str:
    """Which thread holds the lock that ``waiting`` waits for, as far as locals tell;
    else "".

    py-spy prints a lock as ``<lock at 0x…>``. A thread that has the same lock in a
    local and does not wait for it is the holder; a thread inside another method of the
    same object probably is."""
    near = waiting.stacks[-1].frames[:4]
    locks, objects = _locks(near), _objects(near)
    others = [c for c in all_courses if c is not waiting and not c.locking]
    for other in others:
        if locks & _locks(other.stacks[-1].frames):
            return f"thread {other.name!r} has it, in {other.place}"
    for other in others:
        if objects & _objects(other.stacks[-1].frames):
            return (
                f"probably thread {other.name!r}, inside the same object: {other.place}"
            )
    return ""


def _locks(frames: Sequence[Frame]) -> set[str]:
    locks = set()
    for frame in frames:
        for value in frame.locals.values():
            if match := _LOCK.search(value):
                locks.add(match[1])
    return locks


def _objects(frames: Sequence[Frame]) -> set[str]:
    """Those whose methods the frames are."""
    objects = set()
    for frame in frames:
        if match := _SELF.search(frame.locals.get("self", "")):
            objects.add(match[1])
    return objects
