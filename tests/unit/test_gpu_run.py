"""A run of a FAKE server on a made-up GPU: what it takes, what the engine is told, what
is kept."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine_process import close, ready, starter
from mmrepro.base.errors import ExitCode, GpuUnavailable
from mmrepro.base.machine import gpu as gpu_module
from mmrepro.base.machine.gpu import leased, read_gpus
from mmrepro.base.machine.nvml import Nvml
from mmrepro.failure.documents import Incident
from mmrepro.runs import key
from mmrepro.runs.judge import facts_of
from mmrepro.runs.options import RunCommand
from mmrepro.traffic.evidence import recorder
from mmrepro.traffic.evidence.recorder import GpuSampler, Recorder
from nvml_replayed import Replayed, gpu, machine, mig, process
from test_run import Run, Tiny
from worlds import environment

On = Callable[..., Run]
BUSY = gpu(0, used=70, processes=(process(1, 70),))


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    """A run on a machine with these GPUs."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    for name in ("CUDA_VISIBLE_DEVICES", "MMREPRO_GPU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("mmrepro.runs.observe.QUIET_SPACING_S", 0.0)
    monkeypatch.setattr(recorder, "GPU_INTERVAL_S", 0.01)
    monkeypatch.setattr(gpu_module, "LEAVING_S", 0.0)
    monkeypatch.setattr(gpu_module, "nvidia_driver", lambda: True)
    runs: list[Run] = []

    def run(nvml: Replayed, device: str = "cuda") -> Run:
        made = environment(tmp_path / "environments/fake", device=device)  # type: ignore[arg-type]
        made = replace(made, spec=replace(made.spec, engine="minivllm", release="0.1"))
        monkeypatch.setattr("mmrepro.runs.start.ensure", lambda spec, progress: made)
        for module in (gpu_module, key):
            monkeypatch.setattr(module, "read_gpus", lambda: read_gpus(nvml))
        monkeypatch.setattr(recorder, "Nvml", lambda binding: Nvml(nvml))
        options = RunCommand(
            device=device, model=tmp_path / "model", out=tmp_path / "out"
        )
        runs.append(Run(Tiny(), options, starter(ready)))
        return runs[-1]

    yield run
    for one in runs:
        close(one.starter.processes)


def settings(incident: Incident) -> dict[str, str]:
    return {s.name: s.value for s in incident.engine.settings}


def test_the_free_gpu_of_two_is_taken_told_and_kept(on: On) -> None:
    incident = on(machine(BUSY, gpu(1))).execute()
    assert incident.state == "complete"
    assert incident.engine.environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert settings(incident)["CUDA_VISIBLE_DEVICES"] == "1"
    assert incident.host.gpus == ["NVIDIA H100 80GB HBM3"]
    other, own = incident.host.gpu_facts
    assert (other.taken, own.taken, own.driver, own.cuda) == (
        False,
        True,
        "580.159.03",
        "13.0",
    )
    assert "70 GiB" in other.users
    assert own.uuid == "GPU-00000001"
    texts = [event.text for event in incident.evidence.events]
    assert "the run takes GPU 1 (NVIDIA H100 80GB HBM3)" in texts
    assert any(text.startswith("in use by others: GPU 0") for text in texts)
    assert facts_of(incident, Tiny()).gpus == frozenset({1})
    assert incident.decided_by["device"] == "cuda NVIDIA H100 80GB HBM3"
    assert "CUDA_VISIBLE_DEVICES" not in incident.decided_by["variables"]


def test_utilisation_and_memory_are_sampled_while_it_runs(on: On) -> None:
    incident = on(machine(gpu(0, used=0.5, utilisation=7))).execute()
    assert "CUDA_VISIBLE_DEVICES" not in incident.engine.environment, (
        "there is no other"
    )
    points = [point for point in incident.evidence.series if point.gpu_pct]
    assert points
    assert {(p.gpu_pct["0"], p.gpu_bytes["0"]) for p in points} == {
        (7.0, 0.5 * (1 << 30))
    }


def test_a_gpu_that_others_use_is_not_taken(on: On) -> None:
    run = on(machine(BUSY))
    with pytest.raises(GpuUnavailable, match="in use by others") as caught:
        run.execute()
    assert caught.value.exit_code is ExitCode.INFRASTRUCTURE
    assert caught.value.hint.startswith("MMREPRO_GPU=0 takes it anyway")
    assert run.starter.processes == []
    assert (run.written.state, run.written.failure_class) == (
        "failed",
        "GpuUnavailable",
    )


def test_one_in_use_is_taken_where_it_is_asked_for(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMREPRO_GPU", "any")
    (facts,) = on(machine(BUSY)).execute().host.gpu_facts
    assert (facts.taken, "70 GiB" in facts.users) == (True, True)


def test_a_gpu_that_another_run_has_taken_is_in_use(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its engine has come up nothing else tells."""
    nvml = machine(gpu(0), gpu(1))
    monkeypatch.setattr(gpu_module, "read_gpus", lambda: read_gpus(nvml))
    with leased() as first:
        incident = on(nvml).execute()
        assert [
            first.devices[0].gpu.index,
            [f.taken for f in incident.host.gpu_facts],
        ] == [0, [False, True]]
        assert any(
            "GPU 0" in e.text and "another run of mmrepro" in e.text
            for e in incident.evidence.events
        )
        refused = pytest.raises(GpuUnavailable, match="another run of mmrepro")
        with leased(), refused, leased():
            pass
        monkeypatch.setenv("MMREPRO_GPU", "0")
        with leased() as named:
            assert named.names == first.names
    monkeypatch.delenv("MMREPRO_GPU")
    with leased() as again:
        assert again.devices[0].gpu.index == 0


def test_without_nvml_the_run_goes_on_and_says_so(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrepro.base.machine.nvml.DRIVER", Path("/proc/self/stat"))
    nvml = Replayed({}, init={"code": 12, "text": "NVML Shared Library Not Found"})
    incident = on(nvml).execute()
    assert (incident.host.gpus, incident.host.gpu_facts) == ([], [])
    texts = [event.text for event in incident.evidence.events]
    assert any(
        text.startswith("the GPU cannot be inspected: an NVIDIA driver")
        for text in texts
    )
    assert any(text.startswith("the GPU is not sampled") for text in texts)


def test_a_cpu_run_hides_the_gpus_of_its_machine(on: On) -> None:
    incident = on(machine(BUSY), device="cpu").execute()
    assert incident.engine.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "does not touch" in next(
        s.why for s in incident.engine.settings if s.name == "CUDA_VISIBLE_DEVICES"
    )
    assert incident.host.gpus == []
    assert not any(point.gpu_bytes for point in incident.evidence.series)


def test_mig_devices_are_sampled_by_names_of_their_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    sampling = GpuSampler(
        recorder, machine(gpu(0, slices=[mig(0, "MIG-1"), mig(2, "MIG-2")]))
    )
    sampling.interval_s = 0.01
    sampling.start()
    until = time.monotonic() + 10
    while not recorder.evidence.series and time.monotonic() < until:
        time.sleep(0.01)
    sampling.stop()
    point = recorder.evidence.series[0]
    assert (point.gpu_pct, set(point.gpu_bytes)) == ({}, {"0", "0/0", "0/2"})
