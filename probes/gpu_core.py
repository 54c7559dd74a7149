"""The kernels on a process's GPU, by CUDA's own core dump. The one probe that changes
its target.

A process started with CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 makes a pipe, and writes a
core dump of its GPU when something is written to it (CUDA-GDB manual, "GPU core dump
support"); ``cuda-gdb`` names the kernels of the dump. Then it aborts. With skip_abort
in CUDA_COREDUMP_GENERATION_FLAGS it does not, and yet its next call of CUDA fails
(driver 580: "unspecified launch failure").

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.gpu_core import GpuCoreProbe, pipe_of
    print(run_probe(GpuCoreProbe(4711, pipe_of(4711)), Path("evidence"), 60).data)
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mmrepro.base import processes
from mmrepro.base.text import one_line
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import GpuCoreData

ENABLE = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"
_PIPES = ("corepipe_%h_%p", "corepipe.cuda.%h.%p")
"""The name where none is given: of driver 580, and of the manual."""
_DUMP = "core_%t_%h_%p.nvcudmp"
_WRITTEN = 1 << 20
"""Bytes: more than a pipe holds, so that its reader sees some whenever it looks."""
QUIET_S = 1.0
"""A dump that has not grown for as long is whole."""
_OPEN_S = 1.0
_READ_S = 20.0
_MAX_KERNELS = 40


@dataclass(frozen=True)
class Pipe:
    """``dumps``: a folder, and the pattern of the files that may be written there."""

    path: Path
    dumps: tuple[Path, str]


def pipe_of(
    pid: int, inner_pid: int = 0, inside: Callable[[int, str], Path] | None = None
) -> Pipe | None:
    """The pipe of a process that was started for it; None: it was not, or has none
    (yet).

    Args:
        inner_pid: its number in its own pid namespace.
        inside: a path as that process sees it.
    """
    env = processes.environ(pid)
    if env.get(ENABLE, "0") in ("", "0"):
        return None

    def files(name: str) -> tuple[Path, str]:
        """Return the folder and the pattern that a name with CUDA's marks means."""
        if not name.startswith("/"):
            name = f"{processes.link(pid, 'cwd')}/{name}"
        path = inside(pid, name) if inside else Path(name)
        number = str(inner_pid or pid)
        pattern = glob.escape(path.name).replace("%p", number)
        return path.parent, pattern.replace("%h", "*").replace("%t", "*")

    named = env.get("CUDA_COREDUMP_PIPE")
    names = [named] if named else _PIPES
    # Anybody may have put a pipe of that name there: only its own user's counts.
    with suppress(OSError):
        owner = Path(f"/proc/{pid}").stat().st_uid
        for name in names:
            folder, pattern = files(name)
            for path in folder.glob(pattern):
                status = path.lstat()
                if stat.S_ISFIFO(status.st_mode) and status.st_uid == owner:
                    return Pipe(path, files(env.get("CUDA_COREDUMP_FILE") or _DUMP))
    return None


class GpuCoreProbe(Probe[GpuCoreData]):
    """Has one dump written, and reads the kernels from it where cuda-gdb is
    installed."""

    name = "gpu-core"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        raise Unavailable("diagnose --gpu-core finds the pipe")

    def __init__(self, pid: int, pipe: Pipe) -> None:
        self.pid = pid
        self.pipe = pipe

    def collect(self, sink: RawSink, deadline: float) -> GpuCoreData:
        """Raises Unavailable where nothing reads the pipe, TimedOut where no dump is
        written."""
        began = time.time()
        self._trigger(deadline)
        file = self._written(began, deadline)
        data = GpuCoreData(pid=self.pid, file=str(file), bytes=file.stat().st_size)
        program = shutil.which("cuda-gdb")
        if program is None:
            data.note = f'cuda-gdb -ex "target cudacore {file}" -ex "info cuda kernels"'
            return data
        words = [
            "-nx",
            "-batch",
            "-ex",
            f"target cudacore {file}",
            "-ex",
            "info cuda kernels",
        ]
        try:
            ran = subprocess.run(
                [program, *words],
                capture_output=True,
                timeout=_READ_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            data.note = f"cuda-gdb: {one_line(str(error), 200)}"
            return data
        text = ran.stdout.decode("utf-8", "replace")
        sink.write("gpu-core.txt", text + ran.stderr.decode("utf-8", "replace"))
        data.kernels = kernels(text)
        return data

    def _trigger(self, deadline: float) -> None:
        """Write to the pipe, which makes the driver write a dump. Raises Unavailable."""
        pipe = self._opened(time.monotonic() + _OPEN_S)
        try:
            if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                raise Unavailable(f"{self.pipe.path} is no pipe")
            left = _WRITTEN
            while left > 0 and time.monotonic() < deadline:
                try:
                    left -= os.write(pipe, b"\0" * min(left, 65536))
                except BlockingIOError:
                    # Full, after some of it: whoever reads it is on its way.
                    if left < _WRITTEN:
                        return
                    time.sleep(0.05)
                except BrokenPipeError:
                    return
        finally:
            os.close(pipe)

    def _opened(self, end: float) -> int:
        """Open the pipe. Raises Unavailable where nobody reads it."""
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        while True:
            try:
                return os.open(self.pipe.path, flags)
            except OSError as error:
                # ENXIO: the reader has not come yet.
                if error.errno != errno.ENXIO or time.monotonic() > end:
                    raise Unavailable(f"{self.pipe.path}: {error.strerror}") from error
            time.sleep(0.05)

    def _written(self, began: float, deadline: float) -> Path:
        """Return the dump, when it has not grown for a while. Raises TimedOut."""
        newest: Path | None = None
        size = -1
        since = time.monotonic()
        while time.monotonic() < deadline:
            new = self._new_dumps(began)
            if new:
                newest = max(new, key=lambda path: path.stat().st_mtime)
                now = newest.stat().st_size
                if now != size:
                    size = now
                    since = time.monotonic()
                elif now and time.monotonic() - since >= QUIET_S:
                    return newest
            time.sleep(0.1)
        what = f"{newest} is not whole yet" if newest else "no dump was written"
        raise TimedOut(f"{what}; {self.pipe.path} was written to")

    def _new_dumps(self, began: float) -> list[Path]:
        """Return the dumps of which something was written since then; clocks of file
        systems may lag a little."""
        folder, pattern = self.pipe.dumps
        new: list[Path] = []
        for path in folder.glob(pattern):
            if path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_mtime >= began - 1:
                new.append(path)
        return new


def kernels(text: str) -> list[str]:
    """What the column ``Invocation`` of cuda-gdb's ``info cuda kernels`` has."""
    at = -1
    found = []
    for line in text.splitlines():
        if "Invocation" in line and "GridDim" in line:
            at = line.index("Invocation")
        elif at >= 0 and re.match(r"\s*\*?\s*\d+\s", line):
            found.append(one_line(line[at:].strip(), 300))
    return found[:_MAX_KERNELS]
