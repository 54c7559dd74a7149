"""An engine's process and its children by ``fork``: one import of the engine instead of
three.

Runs under the engine's interpreter, as a script of start mode ``fork`` and as a part of
a fork server. Standard library only."""

from __future__ import annotations

import atexit
import ctypes
import io
import os
import runpy
import signal
import sys
import threading
import traceback
from multiprocessing import (
    context,
    popen_fork,
    popen_spawn_posix,
    reduction,
    resource_tracker,
    util,
)
from multiprocessing.context import SpawnProcess
from typing import Any

_NEIGHBOURS = ("fork_server", "forked", "processes", "supervisor")

_STAND_IN = "mmrepro_stand_in_"
"""What ``standins/boot`` calls the modules of stand-ins, before their folder's name."""

_STREAMS = [(stream, dict(vars(stream))) for stream in (sys.stdout, sys.stderr)]
"""As the interpreter made them."""

_CUDA_NOT_INITIALISED = (3, 34)
"""What the driver says before ``cuInit``, or where only its stub is linked (cuda.h:
CUresult)."""
_NVML_USERS = 64

_FORKED = "mmrepro start: forked in place of a spawn: "


def fork_instead_of_spawn() -> None:
    """From now on a process that multiprocessing is asked to spawn is forked, and
    otherwise as a spawned one: it has the files that it was given, no others, and
    signals have their defaults.

    Locks, queues and ``get_start_method()`` stay those of "spawn". A process that has
    initialised CUDA does spawn: CUDA cannot be used in its forks."""
    spawn = SpawnProcess._Popen

    def popen(process: Any) -> Any:
        if cuda_initialised():
            say(f"mmrepro start: spawned, CUDA is initialised: {process.name}")
            return spawn(process)
        say(_FORKED + process.name)
        return _ForkedPopen(process)

    SpawnProcess._Popen = staticmethod(popen)  # type: ignore[assignment,method-assign]


class _HandedOver(popen_spawn_posix.Popen):
    """Pickles a process as "spawn" does, to learn which files it is given; starts
    nothing."""

    def __init__(self, process: Any) -> None:
        self._fds: list[int] = []
        context.set_spawning_popen(self)
        try:
            reduction.dump(process, io.BytesIO())
        finally:
            context.set_spawning_popen(None)

    @property
    def files(self) -> set[int]:
        tracker = resource_tracker.getfd()
        return {*self._fds, *([] if tracker is None else [tracker])}


class _ForkedPopen(popen_fork.Popen):
    """A child by fork that has of its parent's files what a spawned one would have."""

    def _launch(self, process_obj: Any) -> None:
        given = _HandedOver(process_obj).files
        parent_r, child_w = os.pipe()
        child_r, parent_w = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _let_go({*given, child_r, child_w})
                default_signals()
                _new_streams()
                tell_stand_ins()
                code = process_obj._bootstrap(parent_sentinel=child_r)
            finally:
                os._exit(code)
        os.close(child_w)
        os.close(child_r)
        self.finalizer = util.Finalize(
            self,
            util.close_fds,  # type: ignore[attr-defined]
            (parent_r, parent_w),
        )
        self.sentinel = parent_r


def _let_go(kept: set[int]) -> None:
    """Put /dev/null in the place of every socket, pipe and poll that is not in
    ``kept``.

    The numbers stay taken: the parent's objects, which are here as well, may close them
    yet."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, what in open_files().items():
        if number not in kept and what.startswith(("socket:", "pipe:", "anon_inode:")):
            os.dup2(null, number, inheritable=False)
    os.close(null)


def open_files() -> dict[int, str]:
    """{file descriptor: what it is}, the standard streams apart."""
    files = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            files[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # the listing's own
    return {number: what for number, what in files.items() if number > 2}


def default_signals() -> None:
    """What ``exec`` and a new interpreter make of signals: handlers go, what is ignored
    stays."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _new_streams() -> None:
    """Take away what was hung onto stdout and stderr: vLLM puts the process's name
    before each line, and up to 0.12 it would put the child's behind its parent's."""
    for stream, attributes in _STREAMS:
        vars(stream).clear()
        vars(stream).update(attributes)
    sys.stdout, sys.stderr = (stream for stream, _ in _STREAMS)


def tell_stand_ins() -> None:
    """A stand-in that reports itself does so in a forked process too (its ``forked``):
    the report counts the processes of the engine that have it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_STAND_IN) and hasattr(module, "forked"):
            module.forked()


def cuda_initialised() -> bool:
    """Whether CUDA's driver is initialised in this process: its forks could not use the
    GPU.

    ``torch.cuda.is_initialized()`` tells of torch's own contexts alone: pinned memory
    and ``torch.cuda.is_available()`` initialise the driver past it. Open files do not
    tell: NVML, which does no harm, opens the same (seen of torch 2.11.0, driver
    580.159: tests/unit/nvml_h100.json)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    driver = loaded("libcuda.so.1")
    if driver is None:
        return False
    return (
        driver.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))
        not in _CUDA_NOT_INITIALISED
    )


def close_nvml() -> None:
    """Shut NVML down where an import left it open, as ``torch.cuda.device_count()``
    does: forks would share its files. Whoever asks NVML again opens it anew."""
    nvml = loaded("libnvidia-ml.so.1")
    for _ in range(_NVML_USERS):
        if nvml is None or nvml.nvmlShutdown() != 0:  # it counts who has opened it
            return


def loaded(library: str) -> Any:
    """The shared library, if this process has it; None if not. Nothing is loaded."""
    try:
        return ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def say(text: str) -> None:
    """One whole line in one write: several processes share the log."""
    os.write(2, f"{text}\n".encode())


def run_as_main(module: str, arguments: list[str], path: list[str]) -> None:
    """Run ``module`` and end the process as the interpreter would after ``python
    -m``."""
    code = 1
    for name in _NEIGHBOURS:  # the engine may have modules of these names
        sys.modules.pop(name, None)
    try:
        sys.path[:0] = path
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        traceback.print_exc()
    finish(code)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def finish(code: int) -> None:
    """Wait for threads, run what was registered with atexit, and end."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main() -> None:
    """The script of start mode ``fork``: ``PATH MODULE ARGUMENTS``, PATH as in
    ``$PATH``."""
    path, module, *arguments = sys.argv[1:]
    fork_instead_of_spawn()
    run_as_main(
        module, arguments, [folder for folder in path.split(os.pathsep) if folder]
    )
