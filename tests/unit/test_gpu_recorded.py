"""NVML and CUDA as a real H100 answered them (nvml_h100.json: recorded 2026-11-22; see
"what")."""

import json
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.machine.gpu import choose, read_gpus, visible
from mmrepro.base.machine.nvml import Nvml
from nvml_replayed import Replayed

H100: dict[str, Any] = json.loads(
    (Path(__file__).parent / "nvml_h100.json").read_text()
)
GIB = 1 << 30


def replayed(phase: str) -> Replayed:
    return Replayed(H100["snapshots"][phase])


def test_an_idle_h100_holds_nothing_and_is_taken() -> None:
    """Of the 480 MiB that the first form of the call counts, all are the driver's
    own."""
    reading = read_gpus(replayed("before"))
    (gpu,) = reading.gpus
    assert (reading.driver, reading.cuda) == ("580.159.04", "13.0")
    assert (gpu.name, gpu.memory_used_bytes, gpu.utilization_pct) == (
        "NVIDIA H100 80GB HBM3",
        0,
        0,
    )
    assert (gpu.mig, gpu.compute_mode, gpu.processes) == (False, "default", [])
    choice = choose(reading, {})
    assert (choice.names, choice.settings()) == (["NVIDIA H100 80GB HBM3"], [])


@pytest.mark.parametrize(
    ("phase", "utilisation"),
    [("held, idle", 0), ("held, busy", 97), ("held, idle again", 0)],
)
def test_one_that_a_process_holds_is_not_taken(phase: str, utilisation: int) -> None:
    reading = read_gpus(replayed(phase))
    (gpu,) = reading.gpus
    assert gpu.utilization_pct == utilisation
    assert 10 * GIB < (gpu.memory_used_bytes or 0) < 11 * GIB
    assert [10 * GIB < (p.used_bytes or 0) < 11 * GIB for p in gpu.processes] == [True]
    choice = choose(reading, {})
    assert choice.devices == ()
    assert "GiB" in choice.reason


def test_from_another_pid_namespace_only_the_memory_is_seen() -> None:
    assert H100["pid_namespace"]["processes"] == []
    nvml = replayed("held, idle")
    for call in nvml.snapshot["devices"][0]["calls"]:
        if call["call"].endswith("ComputeRunningProcesses"):
            call["result"] = H100["pid_namespace"]["processes"]
    assert "cannot be seen from here" in choose(read_gpus(nvml), {}).reason


def test_after_its_end_the_gpu_is_free_again() -> None:
    assert choose(read_gpus(replayed("after")), {}).devices
    with Nvml(replayed("after")) as nvml:
        assert nvml.sample() == {0: (0, 0)}


@pytest.mark.parametrize(("mask", "seen"), H100["masks"]["seen"])
def test_cuda_visible_devices_as_cuda_reads_it(mask: str | None, seen: int) -> None:
    assert len(visible(read_gpus(replayed("before")), mask)) == seen


def test_utilisation_falls_within_a_quarter_of_a_second() -> None:
    """What `gpu_idle` may rely on: readings a second after the last kernel are of an
    idle GPU."""
    marks = dict(H100["marks"])
    falls = [
        at
        for at, pct, _ in H100["series"]["points"]
        if pct == 0 and at > marks["idle-held"]
    ]
    assert falls[0] - marks["idle-held"] < 0.25
