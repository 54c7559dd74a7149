"""Which GPU a run takes. Made-up machines (see nvml_replayed)."""

import os
from typing import Any

import pytest
from mmrepro.base.errors import ExitCode, GpuUnavailable
from mmrepro.base.machine import gpu as module
from mmrepro.base.machine.gpu import (
    Choice,
    GpuReading,
    choose,
    free_devices,
    hidden,
    read_gpus,
    visible,
)
from nvml_replayed import Replayed, gpu, machine, mig, process

A = "GPU-aaaa1111-0000-0000-0000-000000000000"
B = "GPU-aaaa2222-0000-0000-0000-000000000000"
C = "GPU-cccc3333-0000-0000-0000-000000000000"
S0, S1 = (
    "MIG-51110000-0000-0000-0000-000000000000",
    "MIG-52220000-0000-0000-0000-000000000000",
)
BUSY = {"processes": (process(4194304, 70),), "used": 70.0}


def three(**second: Any) -> GpuReading:
    return read_gpus(machine(gpu(0, uuid=A), gpu(1, uuid=B, **second), gpu(2, uuid=C)))


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("2,1", [2, 1]),
        (" 2 , 1 ", [2, 1]),
        ("0,2,-1,1", [0, 2]),  # NVIDIA's own example
        ("0,7,1", [0]),
        ("7,0", []),
        ("0,x,1", [0]),
        (A, [0]),
        ("GPU-cccc", [2]),
        (f"{C},0", [2]),  # of another kind than the first
        (f"0,{C}", [0]),
        (f"{C},{A}", [2, 0]),
        (A.upper(), [0]),
        ("GPU-", []),
        ("GPU-aaaa", []),  # begins two of them
        ("GPU-aaaa2", [1]),
        ("1,GPU-dead,2", [1]),
        ("aaaa1111", []),
        ("0,0", []),
        ("MIG-5111", []),
        ("NoDevFiles", []),
    ],
)
def test_what_cuda_visible_devices_leaves(mask: str | None, seen: list[int]) -> None:
    assert [device.gpu.index for device in visible(three(), mask)] == seen


def sliced() -> GpuReading:
    parts = [mig(0, S0), mig(1, S1, **BUSY)]
    return read_gpus(machine(gpu(0, uuid=A), gpu(1, uuid=B, slices=parts)))


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, [S0]),  # one slice, and then no whole GPU
        ("0", [A]),
        ("1", [S0]),
        (B, [S0]),
        (S1, [S1]),
        ("MIG-522", [S1]),
        ("MIG-5", []),
        (f"{S0},{S1}", [S0]),
    ],
)
def test_of_mig_slices_cuda_sees_one(mask: str | None, seen: list[str]) -> None:
    assert [device.uuid for device in visible(sliced(), mask)] == seen


def test_mig_without_a_device_is_no_device() -> None:
    reading = read_gpus(machine(gpu(0, slices=[])))
    assert visible(reading, None) == []
    assert "MIG is on" in choose(reading, {}).reason


def test_what_hides_every_gpu_on_purpose() -> None:
    assert [
        mask for mask in (None, "", " ", "-1", "0", "x", "0,-1") if hidden(mask)
    ] == [
        "",
        " ",
        "-1",
    ]


def indices(choice: Choice) -> list[int]:
    return [device.gpu.index for device in choice.devices]


@pytest.mark.parametrize(
    ("variables", "free"),
    [({}, 2), ({"CUDA_VISIBLE_DEVICES": "1,2"}, 1), ({"CUDA_VISIBLE_DEVICES": ""}, 0)],
)
def test_how_many_are_free(variables: dict[str, str], free: int) -> None:
    assert free_devices(three(**BUSY), variables) == free


def test_how_many_are_free_is_not_known() -> None:
    assert free_devices(three(), {"MMREPRO_GPU": "any"}) is None
    assert free_devices(GpuReading(blind=True), {}) is None


def test_the_only_gpu_free_is_taken_and_nothing_set() -> None:
    choice = choose(read_gpus(machine(gpu(0))), {})
    assert (indices(choice), choice.settings()) == ([0], [])


def test_a_free_one_of_several_is_taken_and_the_engine_told() -> None:
    reading = read_gpus(machine(gpu(0, **BUSY), gpu(1), gpu(2)))
    choice = choose(reading, {})
    assert indices(choice) == [1]
    (setting,) = choice.settings()
    assert (setting.name, setting.value) == ("CUDA_VISIBLE_DEVICES", "1")
    assert "another PID namespace with 70 GiB" in setting.why


def test_gpus_of_several_models_are_counted_by_bus() -> None:
    reading = read_gpus(machine(gpu(0, name="NVIDIA T4", **BUSY), gpu(1)))
    names = {s.name: s.value for s in choose(reading, {}).settings()}
    assert names == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_the_only_gpu_in_use_is_not_taken() -> None:
    me = process(os.getpid(), 12)
    reading = read_gpus(machine(gpu(0, processes=(me,), used=12)))
    choice = choose(reading, {})
    assert choice.devices == ()
    assert f"process {os.getpid()}" in choice.reason
    assert choice.hint.startswith("MMREPRO_GPU=0 ")
    for wanted in ("any", "0", "GPU-0000"):
        assert indices(choose(reading, {"MMREPRO_GPU": wanted})) == [0]


def test_memory_that_nobody_visible_holds_is_somebodys() -> None:
    assert indices(choose(read_gpus(machine(gpu(0, used=0.9))), {})) == [0]
    choice = choose(read_gpus(machine(gpu(0, used=1.5))), {})
    assert "1.5 GiB are held by processes that cannot be seen" in choice.reason


def test_a_desktop_does_not_count() -> None:
    screen = process(os.getpid(), 1.5)
    assert indices(
        choose(read_gpus(machine(gpu(0, used=1.7, graphics=(screen,)))), {})
    ) == [0]


def test_a_gpu_on_which_nothing_may_compute_is_not_taken() -> None:
    assert "prohibited" in choose(read_gpus(machine(gpu(0, mode=2))), {}).reason


def test_any_takes_the_one_with_the_least_held() -> None:
    reading = read_gpus(
        machine(gpu(0, **BUSY), gpu(1, used=4, processes=(process(1, 4),)))
    )
    assert choose(reading, {}).devices == ()
    choice = choose(reading, {"MMREPRO_GPU": "any"})
    assert indices(choice) == [1]
    assert [sentence[:5] for sentence in choice.passed_over] == ["GPU 0"]


def test_what_is_wanted_lies_within_what_is_visible() -> None:
    choice = choose(three(), {"CUDA_VISIBLE_DEVICES": "1,2", "MMREPRO_GPU": "0"})
    assert choice.devices == ()
    assert choice.hint == "one of 1, 2, or any"
    assert indices(
        choose(three(), {"CUDA_VISIBLE_DEVICES": "1,2", "MMREPRO_GPU": "2,1"})
    ) == [2, 1]
    assert "names no GPU" in choose(three(), {"MMREPRO_GPU": "H100"}).reason


def test_a_mask_is_made_plain_for_the_engine() -> None:
    """vLLM reads numbers only (vllm#13815)."""
    choice = choose(three(), {"CUDA_VISIBLE_DEVICES": "GPU-cccc,GPU-aaaa1"})
    assert [s.value for s in choice.settings()] == ["2"]
    choice = choose(sliced(), {"CUDA_VISIBLE_DEVICES": S0})
    assert [s.value for s in choice.settings()] == ["1"], (
        "CUDA takes the first slice by itself"
    )
    busy = choose(sliced(), {"CUDA_VISIBLE_DEVICES": "MIG-522"})
    assert "MIG device 1" in busy.reason
    assert S1 in busy.hint


@pytest.mark.parametrize("mask", ["", "-1", "9", "abc"])
def test_a_mask_that_leaves_none_is_said(mask: str) -> None:
    choice = choose(three(), {"CUDA_VISIBLE_DEVICES": mask})
    assert choice.devices == ()
    assert f"CUDA_VISIBLE_DEVICES={mask!r} leaves no GPU of the 3" in choice.reason


def test_no_gpu_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Replayed({}, init={"code": 18, "text": "mismatch"})
    monkeypatch.setattr(module, "read_gpus", lambda: read_gpus(nvml))
    with pytest.raises(GpuUnavailable, match="different versions") as caught:
        module.take()
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    assert "--device cpu" in caught.value.hint


def test_the_end_of_a_process_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [read_gpus(machine(gpu(0, **BUSY))), read_gpus(machine(gpu(0)))]
    monkeypatch.setattr(
        module, "read_gpus", lambda: looks.pop(0) if len(looks) > 1 else looks[0]
    )
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.0)
    assert len(module.take().devices) == 1
    looks[:] = [read_gpus(machine(gpu(0, **BUSY)))]
    monkeypatch.setattr(module, "LEAVING_S", 0.0)
    with pytest.raises(GpuUnavailable, match="in use by others"):
        module.take()
