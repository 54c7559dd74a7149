"""The GPU probe against a stand-in for NVML; the real one needs a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.gpu import GpuProbe


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.open = 0
        self.memory_supported = True

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattr__(self, name: str):
        answers = {
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
            "nvmlSystemGetDriverVersion": b"570.1",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100, used=90),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=None)],
        }
        if name not in answers:
            raise AttributeError(name)

        def call(*_: object) -> object:
            if name == "nvmlDeviceGetMemoryInfo" and not self.memory_supported:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return call


def collect(evidence, monkeypatch, nvml):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return run_probe(GpuProbe(samples=2, interval_s=0), evidence, 3)


def test_memory_held_and_nothing_done(evidence, monkeypatch):
    nvml = FakeNvml()
    result = collect(evidence, monkeypatch, nvml)
    assert result.ok, result.reason
    (device,) = result.data.devices
    assert (device.name, device.driver, device.utilization_pct) == ("NVIDIA H200", "570.1", [0, 0])
    assert (device.memory_used_bytes, device.memory_total_bytes) == (90, 100)
    assert [(p.pid, p.used_bytes) for p in device.processes] == [(7, None)]
    assert nvml.open == 0


def test_what_a_gpu_does_not_support_is_left_out(evidence, monkeypatch):
    nvml = FakeNvml()
    nvml.memory_supported = False
    assert collect(evidence, monkeypatch, nvml).data.devices[0].memory_total_bytes == 0


@pytest.mark.parametrize(
    ("nvml", "reason"), [(None, "nvidia-ml-py"), (FakeNvml(count=0), "no GPU is visible")]
)
def test_without_binding_or_gpu_it_is_unavailable(evidence, monkeypatch, nvml, reason):
    result = collect(evidence, monkeypatch, nvml)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert reason in result.reason


def test_without_a_driver_it_is_unavailable(evidence, monkeypatch):
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError("NVML Shared Library Not Found")

    result = collect(evidence, monkeypatch, NoDriver())
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "Library Not Found" in result.reason
