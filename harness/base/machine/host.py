"""This machine: what it is, whether it is short of processors, and the variables that a
child gets.

A user's shell may carry variables that silently change what is built or how an engine
behaves (a PYTHONPATH, a pip configuration, a resolver option of uv). They are taken
away here, in one place, for every child: uv, the checks of an environment, the engines.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import psutil
from mmrepro.base.records import GpuFacts, HostFacts


def host_facts(
    gpus: Iterable[str] = (), gpu_facts: Iterable[GpuFacts] = ()
) -> HostFacts:
    """``gpus``: their names."""
    return HostFacts(
        os=_os_name(),
        kernel=platform.release(),
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=list(gpus),
        gpu_facts=list(gpu_facts),
        python=platform.python_version(),
        utc_offset_s=time.localtime().tm_gmtoff,
    )


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


STEP_S = 0.05
SHORT = 0.25
"""Part of the time beyond which nothing can be told of who is silent."""


class Lateness:
    """Measures while it is entered: how much later it woke than it had asked to."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._late_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def share(self) -> float:
        """Of the time since it was entered, 0 to 1."""
        return min(1.0, self._late_s / max(STEP_S, time.monotonic() - self._began))

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(STEP_S):
            now = time.monotonic()
            self._late_s += now - began - STEP_S
            began = now


_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1

# Whole families: none of them belongs in somebody else's interpreter.
# PYTHONDONTWRITEBYTECODE is the one that costs: without .pyc files `import vllm` takes
# 8 s instead of 4 s, in each of three processes. PYTHONPATH and PYTHONHOME put other
# code in front of the engine's own.
_POLLUTING_PREFIXES = ("PYTHON", "PIP_", "COVERAGE_", "PYTEST_")

# Single variables. Index, proxy, certificate, cache, offline and timeout settings of uv
# stay (UV_DEFAULT_INDEX, UV_INDEX, UV_CACHE_DIR, UV_OFFLINE, SSL_CERT_FILE,
# HTTPS_PROXY, …): they say where packages come from on this machine, not which ones are
# chosen.
_POLLUTING = frozenset(
    {
        "VIRTUAL_ENV",  # uv pip would install there
        "VIRTUAL_ENV_PROMPT",
        "CONDA_PREFIX",  # likewise
        "CONDA_DEFAULT_ENV",
        "__PYVENV_LAUNCHER__",
        "MMREPRO_COMMIT_INDEX",  # it may hold a password; wheels of commits are fetched by us
        "LD_PRELOAD",  # a profiler's or sandbox's library, and our own link check sets it itself
        "UV",  # set by `uv run` to its own path
        "UV_BREAK_SYSTEM_PACKAGES",
        "UV_BUILD_CONSTRAINT",
        "UV_COMPILE_BYTECODE",
        "UV_CONSTRAINT",
        "UV_CUSTOM_COMPILE_COMMAND",
        "UV_ENV_FILE",
        "UV_EXCLUDE",
        "UV_EXCLUDE_NEWER",
        "UV_EXCLUDE_NEWER_PACKAGE",
        "UV_EXTRA_BUILD_DEPENDENCIES",
        "UV_FORK_STRATEGY",
        "UV_INDEX_STRATEGY",
        "UV_NO_BINARY",
        "UV_NO_BINARY_PACKAGE",
        "UV_NO_BUILD",
        "UV_NO_BUILD_ISOLATION",
        "UV_NO_BUILD_PACKAGE",
        "UV_NO_PROGRESS",
        "UV_NO_SOURCES",
        "UV_NO_VERIFY_HASHES",
        "UV_ONLY_BINARY",
        "UV_OVERRIDE",
        "UV_PRERELEASE",
        "UV_PROJECT",
        "UV_PROJECT_ENVIRONMENT",
        "UV_PYTHON",
        "UV_PYTHON_PLATFORM",
        "UV_REQUIRE_HASHES",
        "UV_RESOLUTION",
        "UV_RUN_RECURSION_DEPTH",
        "UV_SYSTEM_PYTHON",
        "UV_TORCH_BACKEND",
        "UV_VENV_CLEAR",
        "UV_VENV_RELOCATABLE",
        "UV_VENV_SEED",
        "UV_VERIFY_HASHES",
        "UV_WORKING_DIR",
        "UV_WORKING_DIRECTORY",
    }
)


def child_environment(
    extra: Mapping[str, str] | None = None, *, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for a child: ``base`` (default: our own) less what pollutes, plus
    ``extra``.

    What an engine itself reads (``VLLM_*``, ``HF_*``, ``CUDA_*``) is left alone: that
    is for the engine's adapter to decide."""
    source = os.environ if base is None else base
    kept = {
        name: value
        for name, value in source.items()
        if name not in _POLLUTING and not name.startswith(_POLLUTING_PREFIXES)
    }
    kept.update(extra or {})
    return kept


def die_with_parent() -> None:
    """For ``preexec_fn``: the kernel kills the child when its parent ends, however that
    ends.

    The kernel takes the thread that starts the child for its parent: stay in it until
    it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
