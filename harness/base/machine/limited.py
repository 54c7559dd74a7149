"""Work on what strangers wrote, in a child process with limits of memory and of time.

The child is forked, not started anew: importing what reads a report takes four times as
long as reading one. Nothing of the report runs in it. What it hands back is JSON of a
bounded size."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

_PIECE: Final = 1 << 16


@dataclass(frozen=True)
class WorkLimits:
    """``bytes`` come on top of what this process has; ``answer``: bytes of the
    result."""

    cpu_s: int = 10
    wall_s: float = 18.0
    bytes: int = 1 << 30
    answer: int = 8 << 20


class OverLimit(Exception):
    """The work took more than a limit; the text says which, as a clause."""


class WorkFailed(Exception):
    """The work raised an exception that nobody expects; the text is its name."""


def within_limits(
    work: Callable[[], Any],
    limits: WorkLimits = WorkLimits(),
    *,
    expected: type[Exception],
) -> Any:
    """What ``work`` returns, which JSON can hold.

    Args:
        expected: an exception of one text that ``work`` may raise; it is raised here as
            well, with its attributes that JSON can hold.

    Raises:
        OverLimit: it took more than a limit.
        WorkFailed: it raised another exception.
        OSError: no child can be started.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _work(work, limits, expected, writer)
    os.close(writer)
    try:
        data = _answer(reader, limits)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # it has answered, or never will
        _, status = os.waitpid(child, 0)
    return _result(data, status, expected)


def _answer(reader: int, limits: WorkLimits) -> bytes:
    """Raises OverLimit."""
    data, due = bytearray(), time.monotonic() + limits.wall_s
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, due - time.monotonic()))
        if not ready:
            raise OverLimit("takes too long to read")
        piece = os.read(reader, _PIECE)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > limits.answer:
            raise OverLimit("says too much")


def _result(data: bytes, status: int, expected: type[Exception]) -> Any:
    """Raises OverLimit, WorkFailed, ``expected``."""
    if not data:
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if ended_by in (signal.SIGXCPU, signal.SIGKILL):
            raise OverLimit("takes too long to read")
        raise OverLimit("takes more memory or depth than it may")
    answer = json.loads(data)
    match answer["kind"]:
        case "result":
            return answer["value"]
        case "expected":
            raised = expected(answer["text"])
            for name, value in answer["about"].items():
                setattr(raised, name, value)
            raise raised
        case "memory":
            raise OverLimit("takes too much memory to read")
        case "depth":
            raise OverLimit("is nested too deep")
    raise WorkFailed(answer["text"])


def _work(
    work: Callable[[], Any], limits: WorkLimits, expected: type[Exception], writer: int
) -> NoReturn:
    """What the child does. It never returns to who forked it."""
    try:
        _limit(limits)
        answer = _tried(work, expected)
        data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _limit(limits: WorkLimits) -> None:
    """Give up what the work does not need."""
    gc.freeze()  # collecting would copy the pages of all that is there
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)

    # The child has all that its parent has mapped: the limit is what it may take more.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped = pages * resource.getpagesize()
    for name, soft in (
        (resource.RLIMIT_AS, mapped + limits.bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        _, hard = resource.getrlimit(name)
        most = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(name, (most, most))


def _tried(work: Callable[[], Any], expected: type[Exception]) -> dict[str, Any]:
    try:
        return {"kind": "result", "value": work()}
    except expected as error:
        plain = {k: v for k, v in vars(error).items() if isinstance(v, str | list)}
        return {"kind": "expected", "text": str(error), "about": plain}
    except MemoryError:
        return {"kind": "memory"}
    except RecursionError:
        return {"kind": "depth"}
    except Exception as error:
        return {"kind": "failed", "text": type(error).__name__}
