"""One file a kind of evidence. Every probe works alone: ``run_probe(SomeProbe(…), folder, 10)``.

Names are loaded when first asked for: an incident is read back, and ``mmrepro --help`` printed,
without importing an HTTP client and a metrics parser.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrepro.probes.base import Probe, ProbeResult, ProbeStatus, RawSink, run_probe
    from mmrepro.probes.gpu import GpuProbe
    from mmrepro.probes.http import HttpProbe
    from mmrepro.probes.inference import InferenceProbe
    from mmrepro.probes.log_files import LogFilesProbe, with_rotated
    from mmrepro.probes.logs import LogsProbe, scan
    from mmrepro.probes.metrics import MetricsProbe, parse_metrics
    from mmrepro.probes.processes import CpuMeter, ProcessesProbe, role_from_title
    from mmrepro.probes.stacks import StacksProbe
    from mmrepro.probes.syscalls import SyscallsProbe

_HOME = {
    "CpuMeter": "processes",
    "GpuProbe": "gpu",
    "HttpProbe": "http",
    "InferenceProbe": "inference",
    "LogFilesProbe": "log_files",
    "LogsProbe": "logs",
    "MetricsProbe": "metrics",
    "Probe": "base",
    "ProbeResult": "base",
    "ProbeStatus": "base",
    "ProcessesProbe": "processes",
    "RawSink": "base",
    "StacksProbe": "stacks",
    "SyscallsProbe": "syscalls",
    "parse_metrics": "metrics",
    "role_from_title": "processes",
    "run_probe": "base",
    "scan": "logs",
    "with_rotated": "log_files",
}

__all__ = [
    "CpuMeter",
    "GpuProbe",
    "HttpProbe",
    "InferenceProbe",
    "LogFilesProbe",
    "LogsProbe",
    "MetricsProbe",
    "Probe",
    "ProbeResult",
    "ProbeStatus",
    "ProcessesProbe",
    "RawSink",
    "StacksProbe",
    "SyscallsProbe",
    "parse_metrics",
    "role_from_title",
    "run_probe",
    "scan",
    "with_rotated",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
