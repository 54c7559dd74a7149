"""The GPU probe against NVML played back (made up, see nvml_replayed)."""

import sys
from pathlib import Path

import pytest
from mmrepro.probes.base import ProbeStatus, run_probe
from mmrepro.probes.gpu import GpuProbe
from nvml_replayed import NOT_SUPPORTED, Replayed, gpu, machine, mig, process


def collect(evidence: Path, nvml: Replayed, samples: int = 2):
    return run_probe(GpuProbe(samples=samples, interval_s=0, binding=nvml), evidence, 3)


def test_devices_readings_and_processes(evidence: Path) -> None:
    nvml = machine(gpu(0, used=2.5, utilisation=7, processes=(process(1, 2.0),)))
    result = collect(evidence, nvml)
    device = result.data.devices[0]
    assert (device.name, device.driver, device.cuda) == (
        "NVIDIA H100 80GB HBM3",
        "580.159.03",
        "13.0",
    )
    assert (device.memory_used_bytes, device.utilization_pct) == (5 << 29, [7, 7])
    assert [(p.pid, p.used_bytes) for p in device.processes] == [(1, 2 << 30)]
    assert nvml.open == 0
    assert result.raw == ["gpu-gpu.json"]


def test_a_uuid_is_kept_cut_short(evidence: Path) -> None:
    slices = [mig(0, "MIG-377e0049-554c-540b-93c6-d0976f8426cb")]
    nvml = machine(
        gpu(0, uuid="GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5", slices=slices)
    )
    device = collect(evidence, nvml).data.devices[0]
    assert (device.uuid, device.slices[0].uuid) == ("GPU-7f57f032", "MIG-377e0049")
    assert "34ab" not in (evidence / "gpu-gpu.json").read_text()


def test_what_a_gpu_does_not_support_is_left_out(evidence: Path) -> None:
    shared = gpu(0, utilisation=None)
    for call in shared["calls"]:
        if call["call"] == "nvmlDeviceGetMemoryInfo":
            del call["result"]
            call["error"] = NOT_SUPPORTED
    device = collect(evidence, machine(shared)).data.devices[0]
    assert (device.memory_total_bytes, device.utilization_pct) == (0, [])


def test_without_binding_or_gpu_it_is_unavailable(
    evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = collect(evidence, machine())
    assert (result.status, result.data) == (ProbeStatus.UNAVAILABLE, None)
    assert "shows this process no GPU" in result.reason
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in run_probe(GpuProbe(), evidence, 3).reason


def test_without_a_driver_it_is_unavailable(evidence: Path) -> None:
    nvml = Replayed({}, init={"code": 12, "text": "NVML Shared Library Not Found"})
    result = collect(evidence, nvml)
    assert result.status is ProbeStatus.UNAVAILABLE
    assert "NVIDIA driver" in result.reason
    assert nvml.open == 0


def test_a_deadline_that_has_passed(evidence: Path) -> None:
    result = run_probe(GpuProbe(binding=machine(gpu(0))), evidence, -1)
    assert result.status is ProbeStatus.TIMED_OUT
