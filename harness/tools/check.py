"""What this machine has for a run. Each part is tried and says what its lack costs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

import psutil
from mmrepro.base import processes, units
from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.installed import install_command
from mmrepro.base.machine import (
    Device,
    cache_root,
    child_environment,
    choose_gpus,
    detect_device,
    read_gpus,
)
from mmrepro.base.records import Document, GpuFacts, Record
from mmrepro.engines.environments import (
    FLOOR_BYTES,
    free_bytes,
    list_environments,
    torch_setting,
    uv_cache_dir,
    uv_version,
    without_credentials,
)
from mmrepro.probes import find_py_spy
from pydantic import Field

_TRIAL_TIMEOUT_S = 10.0
_CAP_SYS_PTRACE = 19  # its bit in /proc/self/status, linux/capability.h
# Three processes with torch each, and vLLM's smallest KV cache.
_MEMORY_WANTED = 6 * units.GIB
# One environment without and one with a cold uv cache, in practice.
_DISK_WANTED = 12 * units.GIB
_SHM = "/dev/shm"  # noqa: S108 (asked for its size, nothing is written)
_SHM_WANTED = 64 * 1024**2

# Says "ready" and then waits for its standard input to be closed: whatever happens to
# us, it ends.
_VICTIM = "import sys; print('ready', flush=True); sys.stdin.read()"


class Part(Record):
    """One part of the machine."""

    name: str
    ok: bool
    required: Annotated[
        bool, Field(description="the main job cannot run without it")
    ] = False
    found: str
    costs: Annotated[str, Field(description="what a run lacks without it")] = ""
    hint: str = ""
    seconds: Annotated[float, Field(description="what it took to examine it")] = 0.0


class CachedEnvironment(Record):
    engine: str
    release: str
    device: Device
    path: str


class HostReport(Document, kind="check"):
    """The whole machine. ``ok``: every required part is there."""

    ok: bool
    device: Annotated[Device, Field(description="what --device auto means here")]
    parts: list[Part]
    gpus: Annotated[
        list[GpuFacts], Field(description="``taken``: by a run that started now")
    ] = []
    environments: list[CachedEnvironment]


def examine(needed: Collection[str] = ()) -> HostReport:
    """Try every part. A part that cannot be examined is one that is missing.

    Args:
        needed: names of parts that are required here besides those that the main job
            requires.

    Raises:
        UsageError: there is no part of such a name.
    """
    tries: list[Callable[[], Part]] = [
        _system,
        _uv,
        _disk,
        _memory,
        _py_spy,
        _ptrace,
        _strace,
        gpu,
        _cpu,
        _shared_memory,
        _working_folder,
        _torch_source,
        _environments,
    ]
    parts = [_safely(attempt) for attempt in tries]
    names = [part.name for part in parts]
    for name in needed:
        if name not in names:
            hint = f"one of: {', '.join(names)}"
            raise UsageError(f"No part is called {name!r}.", hint=hint)

    for part in parts:
        part.required = part.required or part.name in needed

    return HostReport(
        ok=all(part.ok for part in parts if part.required),
        device=detect_device(),
        parts=parts,
        gpus=choose_gpus(read_gpus()).facts(),
        environments=_cached(),
    )


def _safely(attempt: Callable[[], Part]) -> Part:
    began = time.monotonic()
    try:
        part = attempt()
    except (OSError, ValueError, MmreproError, psutil.Error) as error:
        found = f"could not be examined: {error}"
        part = Part(name=attempt.__name__, ok=False, found=found)

    return part.model_copy(update={"seconds": round(time.monotonic() - began, 3)})


def _system() -> Part:
    return Part(
        name="system",
        ok=sys.platform == "linux",
        required=True,
        found=f"{platform.system()} {platform.release()} {platform.machine()}, "
        f"Python {platform.python_version()}",
        costs="engines are supervised and observed through Linux's /proc",
        hint="use a Linux machine or container",
    )


def _uv() -> Part:
    part = Part(
        name="uv",
        ok=False,
        required=True,
        found="not found",
        costs="environments of engines cannot be built",
        hint=install_command("run"),
    )
    try:
        version = uv_version()
    except MmreproError as error:
        return part.model_copy(update={"found": error.message})

    return part.model_copy(update={"ok": True, "found": version}) if version else part


def _py_spy() -> Part:
    binary = find_py_spy()
    return Part(
        name="py-spy",
        ok=binary is not None,
        required=True,
        found=_version([str(binary), "--version"]) if binary else "not found",
        costs=(
            "no Python stacks: the cause of a hang stays unknown, verdicts are "
            "inconclusive"
        ),
        hint="pip install py-spy",
    )


def _ptrace() -> Part:
    """Dump the stack of a child of ours, as the probe does with the engine.

    py-spy and the child are siblings, as py-spy and the engine are: under ptrace_scope
    1 a process may trace its descendants only, so that both are refused alike."""
    capability = "held" if _may_trace() else "not held"
    facts = f"ptrace_scope {_ptrace_scope()}, CAP_SYS_PTRACE {capability}"
    spy = find_py_spy()
    obstacle = _dump_of_child(spy) if spy else "py-spy is missing"
    return Part(
        name="ptrace",
        ok=not obstacle,
        required=True,
        found=f"{obstacle or 'stack of a child read'} ({facts})",
        costs="stacks of the engine cannot be read: the cause of a hang stays unknown",
        hint=(
            "sysctl kernel.yama.ptrace_scope=0, or run a container with "
            "--cap-add=SYS_PTRACE"
        ),
    )


def _may_trace() -> bool:
    """Whether this process has the capability, by the hexadecimal mask in /proc."""
    masks = processes.field("self", "CapEff")
    return any(int(mask, 16) >> _CAP_SYS_PTRACE & 1 for mask in masks)


def _dump_of_child(spy: Path) -> str:
    """What kept py-spy from it; empty: nothing."""
    victim = subprocess.Popen(
        [sys.executable, "-I", "-c", _VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    try:
        assert victim.stdout is not None
        victim.stdout.readline()
        done = subprocess.run(
            [str(spy), "dump", "--nonblocking", "--pid", str(victim.pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return ""
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[0].strip() if lines else f"py-spy ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        return f"py-spy gave no answer in {units.duration(_TRIAL_TIMEOUT_S)}"
    finally:
        victim.kill()
        victim.communicate()


def _ptrace_scope() -> str:
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return "unrestricted (no Yama)"


def _strace() -> Part:
    part = Part(
        name="strace",
        ok=False,
        found="not found",
        costs=(
            "system calls are not counted; /proc tells only whether threads are blocked"
        ),
        hint="apt-get install strace",
    )
    binary = shutil.which("strace")
    if binary is None:
        return part
    try:
        done = subprocess.run(
            [binary, "-o", os.devnull, sys.executable, "-I", "-S", "-c", ""],
            capture_output=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return part.model_copy(update={"found": "gives no answer", "hint": ""})

    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        refused = words[0] if words else f"ended with {done.returncode}"
        return part.model_copy(update={"found": refused, "hint": "see ptrace"})

    return part.model_copy(update={"ok": True, "found": _version([binary, "-V"])})


def gpu() -> Part:
    part = Part(
        name="gpu",
        ok=False,
        found="no NVIDIA driver",
        costs=(
            "engines run on their CPU backend or behind stand-ins; GPU facts "
            "are unavailable"
        ),
    )
    reading = read_gpus()
    if not reading.gpus:
        facts = {"found": reading.reason}
        if reading.blind:
            # There may be a GPU that only cannot be read.
            facts["costs"] = (
                "reports lack GPU facts, and who else uses a GPU is not seen"
            )
        return part.model_copy(update=facts)

    choice = choose_gpus(reading)
    found = [f"driver {reading.driver}, CUDA {reading.cuda}"]
    for facts_of_gpu in choice.facts():
        found.append(_gpu_words(facts_of_gpu))

    part = part.model_copy(update={"found": "; ".join([*found, *reading.broken])})
    if choice.devices:
        return part.model_copy(update={"ok": True})
    costs = f"a run on a GPU ends at once: {choice.reason}"
    return part.model_copy(update={"costs": costs, "hint": choice.hint})


def _gpu_words(gpu: GpuFacts) -> str:
    words = [f"GPU {gpu.index}: {gpu.name}"]
    if gpu.memory_bytes is not None and gpu.memory_used_bytes is not None:
        free = units.size(gpu.memory_bytes - gpu.memory_used_bytes)
        words.append(f"{free} of {units.size(gpu.memory_bytes)} free")

    if gpu.mig:
        words.append("MIG is on")
    if gpu.users:
        words.append(f"in use: {gpu.users}")
    return ", ".join(words)


def _cpu() -> Part:
    cores = len(os.sched_getaffinity(0))
    return Part(
        name="cpu",
        ok=cores >= 2,
        found=f"{cores} cores",
        costs=(
            "a spinning engine leaves no core to its server: expect slow, "
            "maybe refused answers"
        ),
    )


def _memory() -> Part:
    facts = psutil.virtual_memory()
    return Part(
        name="memory",
        ok=facts.available >= _MEMORY_WANTED,
        required=True,
        found=f"{units.size(facts.available)} of {units.size(facts.total)} available",
        costs=f"an engine takes up to {units.size(_MEMORY_WANTED)} and may be killed",
        hint="end other processes",
    )


def _disk() -> Part:
    """Enough for a build; or there is an environment already."""
    free, cache = free_bytes(cache_root()), uv_cache_dir()
    space = f"{units.size(free)} free in {cache_root()}"
    enough = free >= _DISK_WANTED
    if cache is not None:
        left = free_bytes(cache)
        space += f", {units.size(left)} in uv's cache"
        enough = enough and left >= _DISK_WANTED

    ready = bool(list_environments(sizes=False)) and free >= FLOOR_BYTES
    return Part(
        name="disk",
        ok=enough or ready,
        required=True,
        found=space,
        costs=(
            f"an environment cannot be built: it needs up to {units.size(_DISK_WANTED)}"
        ),
        hint=(
            "mmrepro env prune --all --uv-cache, or set MMREPRO_CACHE_DIR to a "
            "larger disk"
        ),
    )


def _working_folder() -> Part:
    free = free_bytes(Path.cwd())
    writable = os.access(Path.cwd(), os.W_OK)
    return Part(
        name="working folder",
        ok=writable and free >= units.GIB // 10,
        found=f"{units.size(free)} free" + ("" if writable else ", not writable"),
        costs="incidents (a few MiB each) cannot be written here",
        hint="mmrepro run SCENARIO --out DIR",
    )


def _shared_memory() -> Part:
    folder = Path(_SHM)
    size = shutil.disk_usage(folder).total if folder.is_dir() else 0
    return Part(
        name=_SHM,
        ok=size >= _SHM_WANTED,
        found=f"{units.size(size, 2)}",
        costs="engines pass tensors through it and may not start",
        hint="run the container with --shm-size=1g",
    )


def _torch_source() -> Part:
    setting = torch_setting()
    words = {
        "auto": (
            "PyTorch's CPU index where it answers, else the package index "
            "(built with CUDA)"
        ),
        "official": "PyTorch's CPU index",
        "package": "the package index (built with CUDA)",
    }
    return Part(
        name="torch from",
        ok=True,
        found=words.get(setting, without_credentials(setting)),
    )


def _environments() -> Part:
    cached = []
    for environment in _cached():
        release = f"{environment.engine} {environment.release}"
        cached.append(f"{release} ({environment.device})")

    return Part(
        name="environments",
        ok=bool(cached),
        found=", ".join(cached) or "none cached",
        costs="the first run of a release downloads about 3 GB",
        hint="mmrepro env create vllm 0.23.0",
    )


def _cached() -> list[CachedEnvironment]:
    cached = []
    for environment in list_environments(sizes=False):
        manifest = environment.manifest
        cached.append(
            CachedEnvironment(
                engine=manifest.engine,
                release=manifest.release,
                device=manifest.device,
                path=str(environment.path),
            )
        )

    return cached


def _version(command: list[str]) -> str:
    """The first line that it prints."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {error}"

    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "no version given"
