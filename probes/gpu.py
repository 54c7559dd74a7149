"""What the NVIDIA driver says of each GPU: memory held, utilisation, the processes on it.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.gpu import GpuProbe
    result = run_probe(GpuProbe(), Path("evidence"), 5)
    print(result.reason or [(d.name, d.utilization_pct) for d in result.data.devices])
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from mmrepro.probes.base import Probe, RawSink, TimedOut, Unavailable
from mmrepro.probes.data import GpuData, GpuDevice, GpuProcess


class GpuProbe(Probe[GpuData]):
    """``samples`` readings of utilisation, ``interval_s`` seconds apart, of every GPU."""

    name = "gpu"

    def __init__(self, samples: int = 3, interval_s: float = 0.2) -> None:
        self.samples = samples
        self.interval_s = interval_s

    def collect(self, sink: RawSink, deadline: float) -> GpuData:
        """Raises Unavailable without the NVML binding, a driver or a GPU."""
        nvml = _load_nvml()
        try:
            nvml.nvmlInit()
        except Exception as error:  # NVMLError has a subclass for each code, made at import time
            raise Unavailable(f"no NVIDIA driver answers here: {error}") from error
        try:
            data = self._collect(nvml, deadline)
        except nvml.NVMLError as error:
            raise Unavailable(f"NVML failed: {error}") from error
        finally:
            nvml.nvmlShutdown()
        sink.write("gpu.json", data.model_dump_json(indent=1))
        return data

    def _collect(self, nvml: Any, deadline: float) -> GpuData:
        count = nvml.nvmlDeviceGetCount()
        if count == 0:
            raise Unavailable("the NVIDIA driver is there but no GPU is visible")
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        readings: list[list[int]] = [[] for _ in handles]
        for number in range(max(self.samples, 1)):
            if number:
                time.sleep(self.interval_s)
            if time.monotonic() >= deadline:
                if not readings[0]:
                    raise TimedOut("the deadline passed before the first reading")
                break
            for reading, handle in zip(readings, handles, strict=True):
                utilisation = _optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
                if utilisation is not None:  # not supported on a MIG slice
                    reading.append(int(utilisation.gpu))
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return GpuData(
            devices=[
                _device(nvml, index, handle, driver, reading)
                for index, (handle, reading) in enumerate(zip(handles, readings, strict=True))
            ]
        )


def _load_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        if not Path("/proc/driver/nvidia/version").exists():
            raise Unavailable(
                "there is no NVIDIA driver on this machine, and nvidia-ml-py is not installed"
            ) from error
        raise Unavailable(
            "the package nvidia-ml-py is not installed (pip install 'mmrepro[gpu]')"
        ) from error


def _device(nvml: Any, index: int, handle: Any, driver: str, readings: list[int]) -> GpuDevice:
    # Where the GPU shares the host's memory NVML refuses to say: zero rather than no device.
    memory = _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    processes = _optional(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return GpuDevice(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        driver=driver,
        memory_total_bytes=int(memory.total) if memory else 0,
        memory_used_bytes=int(memory.used) if memory else 0,
        utilization_pct=readings,
        processes=[
            GpuProcess(
                pid=int(process.pid),
                used_bytes=None if process.usedGpuMemory is None else int(process.usedGpuMemory),
            )
            for process in processes
        ],
    )


def _optional(nvml: Any, call: Any, handle: Any) -> Any:
    try:
        return call(handle)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    """Releases of the binding before 11.5 return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
