"""What the NVIDIA driver says of each GPU: memory held, utilisation, the processes on
it.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.gpu import GpuProbe
    result = run_probe(GpuProbe(), Path("evidence"), 5)
    print(result.reason or [(d.name, d.utilization_pct) for d in result.data.devices])
"""

from __future__ import annotations

import time
from typing import Any

from mmrepro.base.machine import Gpu, GpuReading, Nvml, NvmlAbsent, short_uuid
from mmrepro.probes.base import Probe, RawSink, TimedOut, Unavailable
from mmrepro.probes.data import GpuData, GpuDevice


class GpuProbe(Probe[GpuData]):
    """``samples`` readings of utilisation, ``interval_s`` seconds apart, of every
    GPU."""

    name = "gpu"

    def __init__(
        self, samples: int = 3, interval_s: float = 0.2, binding: Any = None
    ) -> None:
        self.samples = max(samples, 1)
        self.interval_s = interval_s
        self.binding = binding

    def collect(self, sink: RawSink, deadline: float) -> GpuData:
        """Raises Unavailable without the NVML binding, a driver or a GPU."""
        try:
            with Nvml(self.binding) as nvml:
                readings = self._readings(nvml, deadline)
        except NvmlAbsent as absent:
            raise Unavailable(str(absent)) from absent
        last = readings[-1]
        if last.reason:
            raise Unavailable(last.reason)
        data = GpuData(devices=[_device(last, gpu, readings) for gpu in last.gpus])
        sink.write("gpu.json", data.model_dump_json(indent=1))
        return data

    def _readings(self, nvml: Nvml, deadline: float) -> list[GpuReading]:
        readings: list[GpuReading] = []
        for number in range(self.samples):
            if number:
                time.sleep(self.interval_s)
            if time.monotonic() >= deadline:
                break
            readings.append(nvml.read())
        if not readings:
            raise TimedOut("the deadline passed before the first reading")
        return readings


def _device(last: GpuReading, gpu: Gpu, readings: list[GpuReading]) -> GpuDevice:
    """Return a GPU as it was read last, with its utilisation in each reading."""
    utilization: list[int] = []
    for reading in readings:
        for other in reading.gpus:
            # By UUID: a GPU may go away between two readings, and numbers move.
            if other.uuid == gpu.uuid and other.utilization_pct is not None:
                utilization.append(other.utilization_pct)
    slices = [s.model_copy(update={"uuid": short_uuid(s.uuid)}) for s in gpu.slices]
    return GpuDevice(
        index=gpu.index,
        name=gpu.name,
        uuid=short_uuid(gpu.uuid),
        driver=last.driver,
        cuda=last.cuda,
        memory_total_bytes=gpu.memory_total_bytes or 0,
        memory_used_bytes=gpu.memory_used_bytes or 0,
        utilization_pct=utilization,
        processes=gpu.processes,
        mig=gpu.mig,
        slices=slices,
    )
