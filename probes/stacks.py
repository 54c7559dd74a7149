"""Python stacks of running processes, without stopping them (py-spy).

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.stacks import StacksProbe
    result = run_probe(StacksProbe([pid]), Path("evidence"), 10)
    print(result.reason or [f.function for f in result.data.samples[0].threads[0].frames])
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from mmrepro.base import processes
from mmrepro.base.records import Moment
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import Frame, StackSample, StacksData, ThreadStack
from mmrepro.probes.processes import resume_after_trace

_RETRIES = 3
_DUMP_TIMEOUT_S = 10.0


class StacksProbe(Probe[StacksData]):
    """``samples`` dumps of each of ``pids``, ``interval_s`` seconds apart.

    Samples are taken without pausing the target, so a stack that changes while it is
    read may come out torn: after ``_RETRIES`` failures in a row one sample pauses the
    process for some milliseconds, unless ``blocking_fallback`` forbids it.

    ``until`` ends the sampling early once it holds for what was sampled so far, but not
    before each process has been sampled ``min_samples`` times: a hang is a stack that
    stays.

    ``pausing`` is for a hang in a small loop, whose locals come out torn: that many
    samples more, each of which pauses the process, while ``until`` does not hold.

    ``native`` adds the frames of C and C++ code; every sample pauses the process then.

    A process that denies access is listed in ``denied``; one that is gone, or is not
    Python, has one sample with an ``error`` and no threads."""

    name = "stacks"
    needs = "pid"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls([subject.pid])

    def __init__(
        self,
        pids: Sequence[int],
        samples: int = 8,
        interval_s: float = 0.05,
        locals: bool = True,
        blocking_fallback: bool = True,
        until: Callable[[Sequence[StackSample]], bool] | None = None,
        *,
        min_samples: int = 3,
        pausing: int = 0,
        native: bool = False,
    ) -> None:
        self.pids = tuple(dict.fromkeys(pids))
        self.samples = samples
        self.interval_s = interval_s
        self.locals = locals
        self.blocking_fallback = blocking_fallback
        self.until = until
        self.min_samples = min(min_samples, samples)
        self.pausing = pausing if until is not None and blocking_fallback else 0
        self.native = native
        self._data = StacksData(samples=[])

    def collect(self, sink: RawSink, deadline: float) -> StacksData:
        """Take the samples. Raises Unavailable when no process could be sampled, TimedOut
        without any sample."""
        program = find_py_spy()
        if program is None:
            raise Unavailable(
                "py-spy is not installed beside this Python (pip install py-spy)"
            )
        data = StacksData(samples=[])
        self._data = data
        live = list(self.pids)
        seen = False
        for number in range(self.samples + self.pausing):
            if number:
                time.sleep(max(min(self.interval_s, deadline - time.monotonic()), 0))
            for pid in list(live):
                if time.monotonic() >= deadline:
                    return self._finish(out_of_time=True)
                sample, outcome = self._sample(program, pid, number, sink, deadline)
                if outcome is SampleOutcome.DENIED:
                    data.denied[pid] = sample.error
                    live.remove(pid)
                    continue
                data.samples.append(sample)
                # A process that was once read does not stop being Python: such an answer
                # is a torn sample then.
                no_python = outcome is SampleOutcome.NOT_PYTHON and number == 0
                if no_python or outcome is SampleOutcome.GONE:
                    live.remove(pid)
            seen = seen or (self.until is not None and self.until(data.samples))
            if not live or (seen and number + 1 >= self.min_samples):
                break
        return self._finish(out_of_time=False)

    def partial(self) -> StacksData | None:
        return self._data if self._data.samples or self._data.denied else None

    def _finish(self, *, out_of_time: bool) -> StacksData:
        """Return what was sampled. Raises Unavailable, TimedOut: nothing was."""
        data = self._data
        if any(sample.threads for sample in data.samples):
            return data
        errors = [*data.denied.values(), *(sample.error for sample in data.samples)]
        reasons = list(dict.fromkeys(errors))
        if out_of_time:
            raise TimedOut("; ".join(["no stack was sampled in time", *reasons])[:2000])
        raise Unavailable("; ".join(reasons)[:2000] or "no process was given")

    def _sample(
        self, program: Path, pid: int, number: int, sink: RawSink, deadline: float
    ) -> tuple[StackSample, SampleOutcome]:
        """Take a sample of one process, and say what came of it."""
        pause = self.native or number >= self.samples
        taken = Moment.now()
        blocking = pause and self._may_pause(pid, deadline)
        dumped = self._dump(program, pid, deadline, blocking=blocking)

        # py-spy reads the memory of a process that runs on, so that a sample may be torn:
        # most are whole at the next try.
        for _ in range(_RETRIES):
            if dumped.outcome is not SampleOutcome.TORN or time.monotonic() >= deadline:
                break
            taken = Moment.now()
            dumped = self._dump(program, pid, deadline, blocking=blocking)

        # A process that is paused gives a whole one; that is the last resort.
        still_torn = dumped.outcome is SampleOutcome.TORN
        if still_torn and self.blocking_fallback and self._may_pause(pid, deadline):
            taken = Moment.now()
            blocking = True
            dumped = self._dump(program, pid, deadline, blocking=True)
        if dumped.raw:
            sink.write(f"{pid}-{number:02d}.json", dumped.raw)
        sample = StackSample(
            pid=pid,
            taken=taken,
            blocking=blocking,
            seconds=round(time.monotonic() - taken.mono, 4),
            threads=dumped.threads,
            error=dumped.error,
        )
        return sample, dumped.outcome

    def _may_pause(self, pid: int, deadline: float) -> bool:
        stat = processes.stat(pid)
        # A process stopped by a signal never reports to a tracer: py-spy would wait for
        # ever.
        stopped = stat is None or stat.state in ("T", "t")
        return not stopped and time.monotonic() < deadline

    def _dump(
        self, program: Path, pid: int, deadline: float, *, blocking: bool
    ) -> PySpyDump:
        return dump(
            program,
            pid,
            blocking=blocking,
            with_locals=self.locals,
            native=self.native and blocking,
            timeout_s=min(_DUMP_TIMEOUT_S, deadline - time.monotonic()),
        )


# ------------------------------------------------------------------ py-spy, as 0.4.3 is


MAX_JSON_BYTES = 16 << 20
MAX_THREADS = 256
MAX_FRAMES = 200
MAX_LOCALS = 40
MAX_REPR_CHARS = 200

HOW_TO_ALLOW = (
    "py-spy needs the right to trace that process: run as root or as the process's own "
    "user with CAP_SYS_PTRACE, set kernel.yama.ptrace_scope to 0, or give the "
    "container 'docker run --cap-add SYS_PTRACE'"
)


class SampleOutcome(StrEnum):
    SAMPLED = "sampled"
    DENIED = "denied"
    GONE = "gone"
    NOT_PYTHON = "not-python"
    TORN = "torn"


@dataclass(frozen=True)
class PySpyDump:
    outcome: SampleOutcome
    threads: list[ThreadStack]
    raw: bytes
    error: str = ""


@lru_cache(maxsize=1)
def find_py_spy() -> Path | None:
    """Return the binary that the wheel installed: beside the interpreter, rarely on
    PATH."""
    candidates = [
        Path(sysconfig.get_path("scripts")) / "py-spy",
        Path(sys.executable).parent / "py-spy",
    ]
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("py-spy") or []:
            if file.name == "py-spy":
                candidates.append(Path(str(file.locate())))
    for path in candidates:
        if path.is_file():
            return path
    return None


def dump(
    py_spy: Path,
    pid: int,
    *,
    blocking: bool,
    with_locals: bool,
    timeout_s: float,
    native: bool = False,
) -> PySpyDump:
    """Take one sample of ``pid``, bounded in time and size; never raises.

    ``blocking`` pauses the process for some milliseconds; it runs again whatever
    becomes of py-spy. ``native`` adds the frames of C and C++ code, for which py-spy
    has to pause it."""
    stat = processes.stat(pid)
    if stat is None:
        return PySpyDump(
            SampleOutcome.GONE, [], b"", f"process {pid} does not exist (any more)"
        )
    if stat.ended:
        why = f"process {pid} has exited and waits to be reaped"
        return PySpyDump(SampleOutcome.GONE, [], b"", why)

    command = [str(py_spy), "dump", "--pid", str(pid), "--json"]
    if not blocking:
        command.append("--nonblocking")
    if with_locals:
        command.append("--locals")
    if native:
        command.append("--native")
    try:
        code, raw, stderr = _run(command, timeout_s)
    except OSError as error:
        return PySpyDump(
            SampleOutcome.TORN, [], b"", f"py-spy could not be started: {error}"
        )
    finally:
        # Also where py-spy was killed: then it left the process stopped.
        if blocking:
            resume_after_trace(pid, stat.state)
    if code != 0:
        outcome, error_text = _classify(pid, code, stderr)
        return PySpyDump(outcome, [], raw, error_text)
    try:
        return PySpyDump(SampleOutcome.SAMPLED, parse_dump(raw), raw)
    except ValueError as error:
        return PySpyDump(
            SampleOutcome.TORN, [], raw, f"unreadable py-spy output: {error}"[:300]
        )


def _run(command: list[str], timeout_s: float) -> tuple[int, bytes, str]:
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        timer = threading.Timer(max(timeout_s, 0.1), process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            raw = process.stdout.read(MAX_JSON_BYTES + 1)
            if len(raw) > MAX_JSON_BYTES:
                process.kill()  # a torn read can follow a pointer into something endless
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
        errors.seek(0)
        return code, raw, errors.read(8192).decode("utf-8", "replace")


def _classify(pid: int, code: int, stderr: str) -> tuple[SampleOutcome, str]:
    """Return what py-spy's error text means; the stack backtrace below it is left
    out."""
    text = stderr.split("Stack backtrace:")[0]
    line = " ".join(text.split())[:300] or f"py-spy ended with {code}"
    if not processes.alive(pid):
        return SampleOutcome.GONE, f"process {pid} went away while it was sampled"

    lowered = text.lower()
    if any(sign in lowered for sign in _REFUSED):
        return (
            SampleOutcome.DENIED,
            f"py-spy was refused at process {pid}; {HOW_TO_ALLOW}",
        )
    no_python = any(sign in lowered for sign in _NO_PYTHON)
    if no_python and not _maps_python(pid):
        return SampleOutcome.NOT_PYTHON, f"process {pid} does not run Python: {line}"
    if code < 0:
        return SampleOutcome.TORN, f"py-spy gave no sample in time (signal {-code})"
    return SampleOutcome.TORN, line


_REFUSED = ("permission denied", "not permitted", "os error 13")
_NO_PYTHON = ("failed to find python version", "failed to find a python")


def _maps_python(pid: int) -> bool:
    """Whether an interpreter is loaded: py-spy, which pauses nothing, may look for it
    in the moment in which its memory changes, and says the same as of a program that is
    no Python."""
    maps = processes.read(pid, "maps", 65536)  # its program comes first
    return re.search(rb"/(?:lib)?python\d[^/\n]*$", maps, re.MULTILINE) is not None


def parse_dump(raw: bytes) -> list[ThreadStack]:
    """Return the threads of one ``py-spy dump --json``, bounded in every dimension.

    Raises:
        ValueError: it is not what py-spy writes.
    """
    threads: list[ThreadStack] = []
    for process in parse_processes(raw):
        threads += process.threads
    return threads


@dataclass(frozen=True)
class PyProcess:
    """One process of a dump. ``pid`` is None where its threads do not say it (py-spy
    0.3)."""

    pid: int | None
    title: str
    threads: list[ThreadStack]


def parse_processes(raw: bytes | str) -> list[PyProcess]:
    """Return each process of one or several ``py-spy dump --json`` that follow each
    other.

    Raises:
        ValueError: it is not what py-spy writes.
    """
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")
    decoder = json.JSONDecoder()
    at = 0
    dumped: list[PyProcess] = []
    while True:
        # With --subprocesses a line of dashes may stand between two processes.
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr] # it may match nothing
        if at >= len(text) and dumped:
            return dumped
        try:
            document, at = decoder.raw_decode(text, at)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(document, list):
            raise ValueError("not a list of threads")
        try:
            dumped += _processes(document[:MAX_THREADS])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a thread: {error!r}") from error


_BETWEEN = re.compile(r"[\s-]*")


def _processes(items: list[dict[str, Any]]) -> list[PyProcess]:
    """Return the threads by their process; without a thread, a process without a
    number."""
    by_pid: dict[int | None, PyProcess] = {}
    for item in items:
        pid = item.get("pid")
        if not isinstance(pid, int):
            pid = None
        info = item.get("process_info") or {}
        title = _text(info.get("command_line"), 500)
        process = by_pid.setdefault(pid, PyProcess(pid, title, []))
        process.threads.append(_thread(item))
    if not by_pid:
        return [PyProcess(None, "", [])]
    return list(by_pid.values())


def _thread(item: dict[str, Any]) -> ThreadStack:
    tid = item.get("os_thread_id")
    return ThreadStack(
        tid=tid if isinstance(tid, int) else None,
        name=_text(item.get("thread_name"), 200),
        active=bool(item["active"]),
        owns_gil=bool(item["owns_gil"]),
        frames=[_frame(frame) for frame in item["frames"][:MAX_FRAMES]],
    )


def _frame(item: dict[str, Any]) -> Frame:
    line = item.get("line")
    variables: dict[str, str] = {}
    for variable in (item.get("locals") or [])[:MAX_LOCALS]:
        name = _text(variable.get("name"), 100)
        variables[name] = _text(variable.get("repr"), MAX_REPR_CHARS)
    return Frame(
        function=_text(item["name"], 300),
        file=_text(item.get("short_filename") or item.get("filename"), 500),
        line=line if isinstance(line, int) else 0,
        locals=variables,
    )


def _text(value: object, limit: int) -> str:
    """Return a string as JSON may carry it: lone surrogates cannot be written to a file
    again."""
    if value is None:
        return ""
    return str(value)[:limit].encode("utf-8", "replace").decode("utf-8")
