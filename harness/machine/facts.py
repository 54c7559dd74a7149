"""What machine a run was on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

import psutil
from mmrepro.records import GpuFacts, HostFacts


def host_facts(gpus: Iterable[str] = (), gpu_facts: Iterable[GpuFacts] = ()) -> HostFacts:
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
