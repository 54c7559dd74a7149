"""Checks that a wheel's compiled code can be loaded on this host, twice.

Before gigabytes are downloaded for it, by the dynamic linker alone: with
LD_TRACE_LOADED_OBJECTS it resolves libraries and symbol versions in the very process
image that the engine will have, and runs nothing. When all is installed, by loading
each module."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrepro.base.machine import child_environment

_TIMEOUT_S = 120.0

# What ld.so says, e.g.: python: /lib/x86_64-linux-gnu/libstdc++.so.6: version
# `CXXABI_1.3.15' not found (required by /…/vllm/_C.abi3.so)
_NOT_FOUND = re.compile(r"(\S+) => not found")
ABSENT = re.compile(r"([\w.+-]+): cannot open shared object file")
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
SYSTEM_PACKAGES: Mapping[str, str] = {
    "libGL.so.1": "libgl1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libibverbs.so.1": "libibverbs1",
    "libnuma.so.1": "libnuma1",
    "librdmacm.so.1": "librdmacm1",
}
"""Libraries of the system that no wheel brings, and what Debian and Ubuntu call their
packages; vLLM's wheels for a CPU need libnuma (0.11 to 0.33)."""
_VERSION = re.compile(r"(\S+): version [`'](\S+)' not found \(required by (\S+)\)")

# Loads each file in a process of its own, after torch, whose libraries the modules are
# linked to: two builds of one module (AVX2, AVX-512) cannot be loaded into the same
# process.
_LOAD = """
import ctypes, json, os, sys
try:
    import torch
except ModuleNotFoundError:
    pass
answers = {}
for name in sys.argv[1:]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            ctypes.CDLL(name)
        except OSError as error:
            os.write(writer, str(error).encode()[:2000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        words = stream.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        words = "ended by signal %d" % os.WTERMSIG(status)
    answers[name] = words
print("answers " + json.dumps(answers))
"""


def missing_from_host(
    python: Path, by_glob: Mapping[str, Sequence[Path]]
) -> dict[str, str]:
    """What the linker does not find here, in a sentence each, with the library's name:
    versions of symbols, and libraries of the system.

    Libraries that a wheel may bring later are fine. Empty also where the linker cannot
    be asked (musl, no such interpreter): the second check decides then."""
    missing = {}
    for module in (path for paths in by_glob.values() for path in paths):
        variables = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_PRELOAD": str(module)}
        try:
            out, err, _ = _run(python, "", variables=variables)
        except (OSError, subprocess.TimeoutExpired):
            continue
        for path, version, wanted_by in _VERSION.findall(err + out):
            library = Path(path).name
            text = (
                f"{Path(wanted_by).name} wants {version}, which this host's {library}"
            )
            missing[f"{text} does not have"] = library
        for library in _NOT_FOUND.findall(err + out):
            if library in SYSTEM_PACKAGES:
                missing[
                    f"{module.name} needs {library}, which this host does not have"
                ] = library
    return missing


def load_failures(python: Path, by_glob: Mapping[str, Sequence[Path]]) -> list[str]:
    """Globs of which no module could be loaded, with the reason; empty: all is well."""
    modules = [str(path) for paths in by_glob.values() for path in paths]
    failures = [
        f"the wheel holds no {glob}" for glob, paths in by_glob.items() if not paths
    ]
    if not modules:
        return failures
    try:
        out, err, status = _run(python, _LOAD, *modules)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [*failures, f"the load check could not be run: {error}"]
    answer = next(
        (line for line in out.splitlines() if line.startswith("answers ")), None
    )
    if answer is None:
        words = err.strip().splitlines()
        return [
            *failures,
            words[-1] if words else f"the load check ended with {status}",
        ]
    answers: dict[str, str] = json.loads(answer.removeprefix("answers "))
    for paths in by_glob.values():
        reasons = [
            f"{path.name}: {answers[str(path)]}" for path in paths if answers[str(path)]
        ]
        if paths and len(reasons) == len(paths):
            failures += reasons
    return failures


def missing_library(python: Path, module: str) -> str:
    """The shared library, or the symbol of one, for want of which ``module`` cannot be
    imported.

    Empty: none is missing. The module may still be broken in another way.
    """
    try:
        _, err, _ = _run(python, f"import {module}")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = ABSENT.search(err) or _UNDEFINED.search(err)
    return match[1] if match else ""


def _run(
    python: Path, code: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> tuple[str, str, int]:
    """Run code in the environment; return its output, its errors and its exit
    status."""
    done = subprocess.run(
        [str(python), "-c", code, *arguments],
        env=child_environment(variables),
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    out, err = (
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )
    return out, err, done.returncode
