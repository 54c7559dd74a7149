"""What is read of NVML. Made up after NVIDIA's documentation (see nvml_replayed)."""

import os
import sys
import threading
from pathlib import Path

import pytest
from mmrepro.base.machine import nvml as module
from mmrepro.base.machine.nvml import Nvml, NvmlAbsent, read_gpus, short_uuid
from nvml_replayed import GIB, NVMLError, Replayed, gpu, machine, mig, process

MIG = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"
NO_PID = 4194304
"""Larger than any process id that Linux gives."""


def test_a_gpu_in_use() -> None:
    binding = machine(
        gpu(0, used=30, utilisation=97, processes=(process(os.getpid(), 29.5),))
    )
    reading = read_gpus(binding)
    assert (reading.driver, reading.cuda, reading.reason) == ("580.159.03", "13.0", "")
    (one,) = reading.gpus
    assert (one.memory_total_bytes, one.memory_used_bytes) == (80 * GIB, 30 * GIB)
    assert (one.utilization_pct, one.mig, one.slices) == (97, False, [])
    (own,) = one.processes
    comm = Path("/proc/self/comm").read_text().strip()
    assert (own.pid, own.name, own.graphics) == (os.getpid(), comm, False)
    assert binding.open == 0, "NVML was shut down"


def test_a_process_of_another_pid_namespace_has_no_number() -> None:
    (one,) = read_gpus(machine(gpu(0, processes=(process(NO_PID, None),)))).gpus
    assert [(p.pid, p.name, p.used_bytes) for p in one.processes] == [(None, "", None)]


def test_a_process_that_draws_and_computes_computes() -> None:
    both = process(NO_PID, 1)
    (one,) = read_gpus(machine(gpu(0, processes=(both,), graphics=(both,)))).gpus
    assert [p.graphics for p in one.processes] == [False]
    (one,) = read_gpus(machine(gpu(0, graphics=(both,)))).gpus
    assert [p.graphics for p in one.processes] == [True]


def test_mig_devices_have_memory_and_no_utilisation() -> None:
    slices = [
        mig(0, MIG, used=2, processes=(process(NO_PID, 2),)),
        mig(3, MIG[:-1] + "c"),
    ]
    (one,) = read_gpus(machine(gpu(0, slices=slices))).gpus
    assert (one.mig, one.utilization_pct) == (True, None)
    assert [(s.index, s.uuid, s.memory_used_bytes) for s in one.slices] == [
        (0, MIG, 2 * GIB),
        (3, MIG[:-1] + "c", 0),
    ]
    assert one.slices[0].name.endswith("MIG 1g.10gb")
    assert len(one.slices[0].processes) == 1


def test_an_old_driver_tells_less_and_is_read_all_the_same() -> None:
    """No second form of the memory call, no MIG, no CUDA version."""
    old = gpu(0, used=3)
    gone = ("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount")
    old["calls"] = [c for c in old["calls"] if c["call"] not in gone and not c["extra"]]
    binding = machine(old)
    binding.snapshot["system"].pop()
    reading = read_gpus(binding)
    (one,) = reading.gpus
    assert (reading.cuda, one.mig, one.memory_used_bytes) == ("", None, 3 * GIB)


def test_one_gpu_that_is_lost_leaves_the_others() -> None:
    lost = {"index": 0, "error": {"code": 15, "text": "GPU is lost"}}
    reading = read_gpus(machine(lost, gpu(1)))
    assert [g.index for g in reading.gpus] == [1]
    assert reading.reason == ""
    assert reading.broken[0].startswith("GPU 0: a GPU no longer answers")
    reading = read_gpus(machine(lost))
    assert reading.reason == reading.broken[0]


@pytest.mark.parametrize(
    ("code", "text", "driver", "said"),
    [
        (
            12,
            "NVML Shared Library Not Found",
            False,
            "no NVIDIA driver on this machine",
        ),
        (12, "NVML Shared Library Not Found", True, "--gpus all"),
        (9, "Driver Not Loaded", False, "not loaded"),
        (18, "Driver/library version mismatch", True, "different versions"),
        (4, "Insufficient Permissions", True, "may not use"),
        (999, "Unknown Error", True, "does not answer: Unknown Error"),
    ],
)
def test_why_nvml_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: int,
    text: str,
    driver: bool,
    said: str,
) -> None:
    monkeypatch.setattr(module, "DRIVER", tmp_path / "version")
    if driver:
        (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 580.159.03")
    reading = read_gpus(Replayed({}, init={"code": code, "text": text}))
    assert reading.gpus == []
    assert said in reading.reason
    assert "\n" not in reading.reason


def test_without_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in read_gpus().reason
    with pytest.raises(NvmlAbsent, match="nvidia-ml-py"), Nvml():
        pass


def test_the_real_binding_answers_here() -> None:
    """Whatever this machine is: a reading or a reason."""
    reading = read_gpus()
    assert bool(reading.gpus) != bool(reading.reason)


def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gone_on = threading.Event()

    class Hanging(Replayed):
        def nvmlInit(self) -> None:  # noqa: N802
            gone_on.wait(30)
            raise NVMLError(9, "Driver Not Loaded")

    monkeypatch.setattr(module, "ANSWER_LIMIT_S", 0.05)
    assert "no answer" in read_gpus(Hanging({})).reason
    gone_on.set()


def test_samples_are_of_utilisation_and_memory() -> None:
    binding = machine(
        gpu(0, used=5, utilisation=42), gpu(1, slices=[mig(0, MIG)], used=2)
    )
    with Nvml(binding) as nvml:
        assert nvml.sample() == {0: (42, 5 * GIB), 1: (None, 2 * GIB)}
        assert nvml.sample_slices() == {(1, 0): 0}
        binding.snapshot["system"].clear()
        assert nvml.sample() == {}


def test_a_uuid_is_shortened() -> None:
    assert short_uuid("GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5") == "GPU-7f57f032"
    assert short_uuid(MIG) == "MIG-377e0049"
    assert (
        short_uuid("MIG-GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5/1/0") == "MIG-GPU-7f57"
    )
    assert short_uuid("") == ""
