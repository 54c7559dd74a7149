"""Can the wheel's compiled code be loaded on this host?

Asked twice. First, before gigabytes are downloaded for it, of the dynamic linker alone: with
LD_TRACE_LOADED_OBJECTS it resolves libraries and symbol versions in the very process image that
the engine will have, and runs nothing. Then, when all is installed, by loading each module.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrepro.machine.host import child_environment

TIMEOUT_S = 120.0

# What ld.so says, e.g.: python: /lib/x86_64-linux-gnu/libstdc++.so.6: version `CXXABI_1.3.15' not
# found (required by /…/vllm/_C.abi3.so)
_NO_LIBRARY = re.compile(r"ImportError: (\S+): cannot open shared object file")
_VERSION = re.compile(r"(\S+): version [`'](\S+)' not found \(required by (\S+)\)")

# Loads each file in a process of its own, after torch, whose libraries the modules are linked to:
# two builds of one module (AVX2, AVX-512) cannot be loaded into the same process.
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


@dataclass(frozen=True)
class MissingVersion:
    """A symbol version that a compiled module wants and this host's library does not have."""

    module: str
    version: str
    library: str

    def __str__(self) -> str:
        return f"{self.module} wants {self.version}, which this host's {self.library} does not have"


def extension_files(site_packages: Path, globs: Sequence[str]) -> dict[str, list[Path]]:
    """The compiled modules by the glob they match."""
    return {glob: sorted(site_packages.glob(glob)) for glob in globs}


def missing_versions(python: Path, modules: Sequence[Path]) -> list[MissingVersion]:
    """Symbol versions that the linker does not find; libraries that are not there yet are fine.

    Empty also where the linker cannot be asked (musl, no such interpreter): the second check
    decides then.
    """
    missing: dict[MissingVersion, None] = {}
    for module in modules:
        variables = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_PRELOAD": str(module)}
        try:
            done = subprocess.run(
                [str(python), "-c", ""],
                env=child_environment(variables),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        for line in (done.stderr + done.stdout).decode("utf-8", "replace").splitlines():
            if match := _VERSION.search(line):
                names = Path(match[3]).name, match[2], Path(match[1]).name
                missing[MissingVersion(*names)] = None
    return list(missing)


def load_failures(python: Path, by_glob: dict[str, list[Path]]) -> list[str]:
    """Globs of which no module could be loaded, with the reason; empty: all is well."""
    modules = [str(path) for paths in by_glob.values() for path in paths]
    failures = [f"the wheel holds no {glob}" for glob, paths in by_glob.items() if not paths]
    if not modules:
        return failures
    try:
        done = subprocess.run(
            [str(python), "-c", _LOAD, *modules],
            env=child_environment(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [*failures, f"the load check could not be run: {error}"]
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    answer = next((line for line in lines if line.startswith("answers ")), None)
    if answer is None:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return [*failures, words[-1] if words else f"the load check ended with {done.returncode}"]
    answers: dict[str, str] = json.loads(answer.removeprefix("answers "))
    for paths in by_glob.values():
        reasons = [f"{path.name}: {answers[str(path)]}" for path in paths if answers[str(path)]]
        if paths and len(reasons) == len(paths):
            failures += reasons
    return failures


def missing_library(python: Path, module: str) -> str:
    """The shared library for want of which ``module`` cannot be imported; empty: none is missing.

    Whatever else may be wrong with the module is not asked here.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", f"import {module}"],
            env=child_environment(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _NO_LIBRARY.search(done.stderr.decode("utf-8", "replace"))
    return match[1] if match else ""
