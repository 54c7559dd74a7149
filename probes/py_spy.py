"""Running py-spy once and reading its JSON. Facts are those of py-spy 0.4.3."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from mmrepro.base import processes
from mmrepro.probes import _traced
from mmrepro.probes.data import Frame, ThreadStack

MAX_JSON_BYTES = 16 << 20
MAX_THREADS = 256
MAX_FRAMES = 200
MAX_LOCALS = 40
MAX_REPR_CHARS = 200

HOW_TO_ALLOW = (
    "py-spy needs the right to trace that process: run as root or as the process's own user with "
    "CAP_SYS_PTRACE, set kernel.yama.ptrace_scope to 0, or give the container "
    "'docker run --cap-add SYS_PTRACE'"
)


class Outcome(StrEnum):
    SAMPLED = "sampled"
    DENIED = "denied"
    GONE = "gone"
    NOT_PYTHON = "not-python"
    TORN = "torn"


@dataclass(frozen=True)
class Dump:
    outcome: Outcome
    threads: list[ThreadStack]
    raw: bytes
    error: str = ""


@lru_cache(maxsize=1)
def find_py_spy() -> Path | None:
    """The binary that the wheel installed: beside the interpreter, rarely on PATH."""
    candidates = [Path(sysconfig.get_path("scripts")) / "py-spy"]
    candidates.append(Path(sys.executable).parent / "py-spy")
    try:
        files = metadata.files("py-spy") or []
    except metadata.PackageNotFoundError:
        files = []
    candidates.extend(Path(str(file.locate())) for file in files if file.name == "py-spy")
    return next((path for path in candidates if path.is_file()), None)


def dump(
    py_spy: Path,
    pid: int,
    *,
    blocking: bool,
    with_locals: bool,
    timeout_s: float,
    native: bool = False,
) -> Dump:
    """One sample of ``pid``, bounded in time and size; never raises.

    ``blocking`` pauses the process for some milliseconds; it runs again whatever becomes of py-spy.
    ``native`` adds the frames of C and C++ code, for which py-spy has to pause it.
    """
    stat = processes.stat(pid)
    if stat is None:
        return Dump(Outcome.GONE, [], b"", f"process {pid} does not exist (any more)")
    if stat.ended:
        return Dump(Outcome.GONE, [], b"", f"process {pid} has exited and waits to be reaped")
    command = [str(py_spy), "dump", "--pid", str(pid), "--json"]
    command += [] if blocking else ["--nonblocking"]
    command += ["--locals"] if with_locals else []
    command += ["--native"] if native else []
    try:
        code, raw, stderr = _run(command, timeout_s)
    except OSError as error:
        return Dump(Outcome.TORN, [], b"", f"py-spy could not be started: {error}")
    finally:
        if blocking:
            _traced.resume_after_trace(pid, stat.state)
    if code != 0:
        outcome, error_text = _classify(pid, code, stderr)
        return Dump(outcome, [], raw, error_text)
    try:
        return Dump(Outcome.SAMPLED, parse_dump(raw), raw)
    except ValueError as error:
        return Dump(Outcome.TORN, [], raw, f"unreadable py-spy output: {error}"[:300])


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


def _classify(pid: int, code: int, stderr: str) -> tuple[Outcome, str]:
    """What py-spy's error text means; the stack backtrace below it is left out."""
    text = stderr.split("Stack backtrace:")[0]
    line = " ".join(text.split())[:300] or f"py-spy ended with {code}"
    if not processes.alive(pid):
        return Outcome.GONE, f"process {pid} went away while it was sampled"
    lowered = text.lower()
    if any(sign in lowered for sign in ("permission denied", "not permitted", "os error 13")):
        return Outcome.DENIED, f"py-spy was refused at process {pid}; {HOW_TO_ALLOW}"
    not_python = "failed to find python version" in lowered or "failed to find a python" in lowered
    if not_python and not _maps_python(pid):
        return Outcome.NOT_PYTHON, f"process {pid} does not run Python: {line}"
    if code < 0:
        return Outcome.TORN, f"py-spy gave no sample in time (signal {-code})"
    return Outcome.TORN, line


def _maps_python(pid: int) -> bool:
    """Whether an interpreter is loaded: py-spy, which pauses nothing, may look for it in the moment
    in which its memory changes, and says the same as of a program that is no Python."""
    maps = processes.read(pid, "maps", 65536)  # its program comes first
    return re.search(rb"/(?:lib)?python\d[^/\n]*$", maps, re.MULTILINE) is not None


def parse_dump(raw: bytes) -> list[ThreadStack]:
    """Threads of one ``py-spy dump --json``, bounded in every dimension.

    Raises:
        ValueError: it is not what py-spy writes.
    """
    try:
        document = json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, list):
        raise ValueError("not a list of threads")
    try:
        return [_thread(item) for item in document[:MAX_THREADS]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a thread: {error!r}") from error


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
    variables = item.get("locals") or []
    return Frame(
        function=_text(item["name"], 300),
        file=_text(item.get("short_filename") or item.get("filename"), 500),
        line=line if isinstance(line, int) else 0,
        locals={
            _text(variable.get("name"), 100): _text(variable.get("repr"), MAX_REPR_CHARS)
            for variable in variables[:MAX_LOCALS]
        },
    )


def _text(value: object, limit: int) -> str:
    """A string as JSON may carry it: lone surrogates cannot be written to a file again."""
    if value is None:
        return ""
    return str(value)[:limit].encode("utf-8", "replace").decode("utf-8")
