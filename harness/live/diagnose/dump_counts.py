"""What dumps of metrics, GPUs and requests count, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.base.units import count, size
from mmrepro.engines import ENGINES, Engine
from mmrepro.live.diagnose.readings import first_total
from mmrepro.probes import (
    GpuData,
    GpuDevice,
    MetricSample,
    MetricsData,
    RequestDumpData,
)
from mmrepro.probes.dumps import Dump

_SHOWN_REQUESTS = 3


def total_counted(data: MetricsData) -> float:
    """All tokens and requests that a reading counts."""
    names: set[str] = set()
    for engine in ENGINES.values():
        for short in ("prompt_tokens", "generation_tokens", "finished"):
            names.update(engine.metrics.get(short, ()))
    total = 0.0
    for sample in data.samples:
        if sample.name in names and sample.value is not None:
            total += sample.value
    return total


def metric_lines(engine: Engine | None, metrics: Sequence[Dump]) -> list[str]:
    """A line for each reading of metrics, and for each engine in it."""
    lines: list[str] = []
    for dump in metrics:
        data = dump.data
        assert isinstance(data, MetricsData)
        name = f"{dump.file.name}: " if len(metrics) > 1 else ""
        if engine is None:
            count = len(data.samples)
            lines.append(f"{name}{count} values of no engine that mmrepro knows")
            continue
        for label, part in _by_engine(data):
            counts = _counts_of(engine, part)
            if counts:
                lines.append(f"{name}{label}{', '.join(counts)}")
    return lines


def _by_engine(data: MetricsData) -> list[tuple[str, MetricsData]]:
    """Each data-parallel engine's own values, where there are several."""
    by_label: dict[str, list[MetricSample]] = {}
    for sample in data.samples:
        if "engine" in sample.labels:
            by_label.setdefault(sample.labels["engine"], []).append(sample)
    if len(by_label) < 2:
        return [("", data)]
    parts: list[tuple[str, MetricsData]] = []
    for label, samples in list(by_label.items())[:16]:
        part = MetricsData(url=data.url, samples=samples)
        parts.append((f"engine {label}: ", part))
    return parts


_GAUGES = (
    ("running", "{} running"),
    ("waiting", "{} waiting"),
    ("kv_usage", "KV cache {}"),
    ("prompt_tokens", "{} prompt tokens"),
    ("generation_tokens", "{} tokens generated"),
    ("finished", "{} requests finished"),
)

_TROUBLE = {
    "vllm:corrupted_requests_total": "{} corrupted requests (NaN in their logits)",
    "vllm:corrupted_requests": "{} corrupted requests (NaN in their logits)",
    "vllm:num_preemptions_total": "{} preemptions",
    "sglang:num_retracted_reqs": "{} retracted requests",
    "sglang:num_aborted_requests_total": "{} aborted requests",
}


def _counts_of(engine: Engine, data: MetricsData) -> list[str]:
    """What the engine's own metrics say, and what of them means trouble."""
    counts: list[str] = []
    for short, words in _GAUGES:
        value = first_total(data, engine.metrics.get(short, ()))
        if value is None:
            continue
        shown = f"{value:,.0f}"
        if short == "kv_usage":
            shown = f"{value * 100:.0f} % used"
        counts.append(words.format(shown))
    for name, words in _TROUBLE.items():
        value = data.total(name)
        if value:
            counts.append(words.format(f"{value:,.0f}"))
    return counts


def gpu_lines(data: GpuData) -> list[str]:
    """A line for each GPU: how busy it is, its memory, and who holds it."""
    return [_gpu_line(device) for device in data.devices[:16]]


def _gpu_line(device: GpuDevice) -> str:
    parts = [f"GPU {device.index}"]
    if device.utilization_pct:
        busy = " → ".join(f"{pct} %" for pct in device.utilization_pct[-4:])
        parts.append(f"{busy} busy")
    if device.memory_total_bytes:
        used = size(device.memory_used_bytes)
        parts.append(f"{used} of {size(device.memory_total_bytes)} used")
    holders: list[str] = []
    for process in device.processes[:4]:
        holders.append(f"{process.name or 'a process'} (pid {process.pid})")
    if holders:
        parts.append(f"by {', '.join(holders)}")
    return ", ".join(parts)


def request_lines(data: RequestDumpData) -> list[str]:
    """How many requests were not finished, and the oldest of those."""
    waiting = data.unfinished
    lines = [
        f"{count(data.count, 'request')}, {len(waiting)} of them not finished when it "
        "was written"
    ]
    # First those of which something is known.
    ordered = sorted(waiting, key=lambda r: (not r.fields, r.created or 0.0))
    for request in ordered[:_SHOWN_REQUESTS]:
        about = [f"{name} {value}" for name, value in request.fields.items()]
        if request.media:
            about.insert(0, f"pictures, videos and sounds: {request.media}")
        if request.created is not None and request.ended is not None:
            about.insert(0, f"{request.ended - request.created:.1f} s old")
        line = f"not finished: {request.id or 'a request'} ({', '.join(about)})"
        lines.append(line[:300])
    return lines
