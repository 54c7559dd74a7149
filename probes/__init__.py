"""Kinds of evidence. Every probe works alone: ``run_probe(SomeProbe(…), folder, 10)``.

A probe is registered here, once, and loaded when it is first asked for: an incident is
read back, and ``mmrepro --help`` printed, without an HTTP client and a metrics parser.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mmrepro.probes.base import Probe

PROBES: Final[Mapping[str, str]] = {
    "http": "http.HttpProbe",
    "inference": "http.InferenceProbe",
    "metrics": "metrics.MetricsProbe",
    "processes": "processes.ProcessesProbe",
    "stacks": "stacks.StacksProbe",
    "syscalls": "syscalls.SyscallsProbe",
    "connections": "processes.ConnectionsProbe",
    "gpu": "gpu.GpuProbe",
    "logs": "logs.LogsProbe",
}
"""Name of a probe: its module here, and its class."""


def probe_class(name: str) -> type[Probe[Any]]:
    """The class of the probe called ``name``. Raises KeyError: there is none."""
    module, _, class_name = PROBES[name].partition(".")
    probe: type[Probe[Any]] = getattr(
        importlib.import_module(f"{__name__}.{module}"), class_name
    )
    return probe
