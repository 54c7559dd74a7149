"""The environment variables that a child process of the harness is given.

A user's shell may carry variables that silently change what is built or how an engine behaves
(a PYTHONPATH, a pip configuration, a resolver option of uv). They are taken away here, in one
place, for every child: uv, the checks of an environment, the engines.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1

# Whole families: none of them belongs in somebody else's interpreter. PYTHONDONTWRITEBYTECODE is
# the one that costs: without .pyc files `import vllm` takes 8 s instead of 4 s, in each of three
# processes. PYTHONPATH and PYTHONHOME put other code in front of the engine's own.
POLLUTING_PREFIXES = ("PYTHON", "PIP_", "COVERAGE_", "PYTEST_")

# Single variables. Index, proxy, certificate, cache, offline and timeout settings of uv stay
# (UV_DEFAULT_INDEX, UV_INDEX, UV_CACHE_DIR, UV_OFFLINE, SSL_CERT_FILE, HTTPS_PROXY, …): they say
# where packages come from on this machine, not which ones are chosen.
POLLUTING = frozenset(
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
    """The variables for a child: ``base`` (default: our own) less what pollutes, plus ``extra``.

    What an engine itself reads (``VLLM_*``, ``HF_*``, ``CUDA_*``) is left alone: that is for the
    engine's adapter to decide.
    """
    source = os.environ if base is None else base
    kept = {
        name: value
        for name, value in source.items()
        if name not in POLLUTING and not name.startswith(POLLUTING_PREFIXES)
    }
    kept.update(extra or {})
    return kept


def die_with_parent() -> None:
    """For ``preexec_fn``: the kernel kills the child when its parent ends, however that ends.

    The kernel takes the thread that starts the child for its parent: stay in it until it ends.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
