"""One file a kind of evidence. Every probe works alone: ``run_probe(SomeProbe(…), folder, 10)``.

A probe is registered here, once, and loaded when it is first asked for: an incident is read back,
and ``mmrepro --help`` printed, without an HTTP client and a metrics parser.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mmrepro.probes.base import Probe

PROBES: Final[Mapping[str, str]] = {
    "http": "HttpProbe",
    "inference": "InferenceProbe",
    "metrics": "MetricsProbe",
    "processes": "ProcessesProbe",
    "stacks": "StacksProbe",
    "syscalls": "SyscallsProbe",
    "connections": "ConnectionsProbe",
    "gpu": "GpuProbe",
    "logs": "LogsProbe",
}
"""Name of a probe, which is its module's too: its class."""


def probe_class(name: str) -> type[Probe[Any]]:
    """The class of the probe called ``name``. Raises KeyError: there is none."""
    probe: type[Probe[Any]] = getattr(importlib.import_module(f"{__name__}.{name}"), PROBES[name])
    return probe
