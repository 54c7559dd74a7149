"""Kinds of evidence. Every probe works alone: ``run_probe(SomeProbe(…), folder, 10)``.

A probe is registered here, once, and loaded when it is first asked for: an incident is
read back, and ``mmrepro --help`` printed, without an HTTP client and a metrics parser.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mmrepro.base.door import lazily

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


if TYPE_CHECKING:
    from mmrepro.probes.base import (
        Probe as Probe,
        ProbeStatus as ProbeStatus,
        RawSink as RawSink,
        Subject as Subject,
        Unavailable as Unavailable,
        run_probe as run_probe,
    )
    from mmrepro.probes.data import (
        KIND_WORDS as KIND_WORDS,
        QUOTED_CHAR as QUOTED_CHAR,
        WORKED as WORKED,
        AnyProbeResult as AnyProbeResult,
        ConnectionsData as ConnectionsData,
        DumpKind as DumpKind,
        EndpointAnswer as EndpointAnswer,
        FlightData as FlightData,
        FlightRank as FlightRank,
        Frame as Frame,
        GpuCoreData as GpuCoreData,
        GpuData as GpuData,
        GpuDevice as GpuDevice,
        HttpData as HttpData,
        InferenceData as InferenceData,
        LogLine as LogLine,
        LogPattern as LogPattern,
        LogsData as LogsData,
        MetricSample as MetricSample,
        MetricsData as MetricsData,
        NcclRank as NcclRank,
        ProbeData as ProbeData,
        ProbeResult as ProbeResult,
        ProcessesData as ProcessesData,
        ProcessUse as ProcessUse,
        RasData as RasData,
        RequestDumpData as RequestDumpData,
        StackSample as StackSample,
        StacksData as StacksData,
        SyscallsData as SyscallsData,
        ThreadStack as ThreadStack,
    )
    from mmrepro.probes.flight import (
        PREFIX as PREFIX,
        VARIABLES as VARIABLES,
        FlightProbe as FlightProbe,
    )
    from mmrepro.probes.gpu import GpuProbe as GpuProbe
    from mmrepro.probes.gpu_core import (
        ENABLE as ENABLE,
        GpuCoreProbe as GpuCoreProbe,
        pipe_of as pipe_of,
    )
    from mmrepro.probes.log_anchors import (
        anchors_of as anchors_of,
        words_of as words_of,
    )
    from mmrepro.probes.log_reader import LineReader as LineReader
    from mmrepro.probes.log_wraps import (
        ANSI as ANSI,
        SAMPLE_LINES as SAMPLE_LINES,
        Peeler as Peeler,
    )
    from mmrepro.probes.logs import LogsProbe as LogsProbe, identify as identify_log
    from mmrepro.probes.metrics import (
        MetricsProbe as MetricsProbe,
        parse_metrics as parse_metrics,
    )
    from mmrepro.probes.processes import (
        ConnectionsProbe as ConnectionsProbe,
        CpuMeter as CpuMeter,
        ProcessesProbe as ProcessesProbe,
        role_from_title as role_from_title,
    )
    from mmrepro.probes.ras import MOST_S as MOST_S, PORT as PORT, RasProbe as RasProbe
    from mmrepro.probes.stack_texts import NEEDLES as NEEDLES
    from mmrepro.probes.stacks import (
        HOW_TO_ALLOW as HOW_TO_ALLOW,
        StacksProbe as StacksProbe,
        find_py_spy as find_py_spy,
    )
    from mmrepro.probes.syscalls import SyscallsProbe as SyscallsProbe
    from mmrepro.probes.tracebacks import (
        MAX_MESSAGE_LINES as MAX_MESSAGE_LINES,
        RaisedException as RaisedException,
        TracebackFrame as TracebackFrame,
        Tracebacks as Tracebacks,
        bare as is_bare_line,
        exceptions_in as exceptions_in,
        frames_text as frames_text,
        roots as root_exceptions,
    )
else:
    __getattr__ = lazily(__name__)
