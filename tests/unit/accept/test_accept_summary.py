"""The summary: what is published of an acceptance."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from campaign_samples import acceptance
from mmrepro.base.errors import GpuUnavailable
from mmrepro.base.machine.gpu import Choice, choose, read_gpus
from mmrepro.campaign.accept.parts import PARTS
from mmrepro.campaign.accept.running import Sample, StepRun, sampled, used
from mmrepro.cli.app import app
from mmrepro.failure.documents.acceptance import Acceptance, PartRecord, Peak
from mmrepro.reports.acceptance import KIND
from mmrepro.reports.documents import keep
from nvml_replayed import Replayed
from typer.testing import CliRunner


def test_readings_are_added_to_those_of_an_earlier_command(tmp_path: Path) -> None:
    file = tmp_path / "gpu.jsonl"
    for reading in (Sample(0, 0.0, 5.0), Sample(0, 90.0, 7.0)):
        with sampled(lambda reading=reading: [reading], file, "a", interval_s=60):
            pass
    with file.open("a") as lines:
        lines.write('{"at": "2026-')  # killed as it wrote
    (use,) = used(file)
    assert use.readings == 2
    assert use.utilisation_pct == Peak(least=0, most=90)
    assert use.memory_bytes == Peak(least=5, most=7)
    assert used(tmp_path / "none.jsonl") == []


def test_the_list_tells_what_is_tried_and_how_long_it_takes() -> None:
    done = CliRunner().invoke(app, ["accept", "--list", "--json", "--device", "cpu"])
    told = json.loads(done.stdout)
    assert [part["part"] for part in told["parts"]][:3] == ["check", "minivllm", "race"]
    steps = {step["step"]: step for part in told["parts"] for step in part["steps"]}
    assert steps["pinned-reuse"]["estimate_s"] == 0
    assert "emulated" in steps["pinned-reuse"]["not_tested"]
    assert steps["ghost-key-eviction"]["needs"] == ["vllm 0.23.0"]
    shown = CliRunner().invoke(app, ["accept", "--list", "--device", "cuda"])
    assert "all on cuda: about" in shown.stdout


def test_the_command_line_is_checked(tmp_path: Path) -> None:
    def fails(*words: str) -> str:
        done = CliRunner().invoke(app, ["accept", "--device", "cpu", *words])
        assert done.exit_code
        return str(done.exception)

    out = str(tmp_path / "it")
    assert "--out DIR" in fails()
    assert "no part 'rage'" in fails("--only", "rage", "--out", out)
    assert "not a length of time" in fails("--budget", "soon", "--out", out)
    assert "no acceptance to go on with" in fails("--resume", "--out", out)
    assert not (tmp_path / "it").exists()
    told = acceptance(PartRecord(part="race", title="", steps=[]))
    (tmp_path / "it").mkdir()
    keep(KIND, told, tmp_path / "it")
    assert "observed on cuda; this is cpu" in fails("--out", out)


def test_one_summary_of_a_folder_whatever_parts_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only a GPU has is not run on a CPU, so that no child is started here."""
    folder = str(tmp_path / "it")

    def told(*words: str) -> list[str]:
        CliRunner().invoke(app, ["accept", "--device", "cpu", "--out", folder, *words])
        summary = Acceptance.model_validate_json(
            (tmp_path / "it/summary.json").read_bytes()
        )
        return [part.part for part in summary.parts if part.steps]

    for name in ("race", "check"):
        only = replace(next(p for p in PARTS if p.name == "device-assert"), name=name)
        parts = tuple(only if part.name == name else part for part in PARTS)
        monkeypatch.setattr("mmrepro.campaign.accept.parts.PARTS", parts)
        assert name in told("--only", name)
    monkeypatch.undo()
    assert told("--only", "device-assert") == ["check", "race", "device-assert"]


def test_on_a_gpu_the_one_that_is_taken_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NVML said on an H100, replayed; there is no environment, so that nothing is
    started."""
    recorded = json.loads((Path(__file__).parents[1] / "nvml_h100.json").read_text())
    taken = choose(read_gpus(Replayed(recorded["snapshots"]["before"])), {})
    monkeypatch.setattr("mmrepro.base.machine.gpu.take", lambda: taken)
    nothing = None, "no environment is here", False
    monkeypatch.setattr(StepRun, "_python", lambda *_: nothing)
    words = [
        "accept",
        "--device",
        "cuda",
        "--only",
        "race",
        "--out",
        str(tmp_path / "it"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 4
    assert "no environment is here" in done.output
    summary = Acceptance.model_validate_json(
        (tmp_path / "it/summary.json").read_bytes()
    )
    assert summary.device == "cuda"
    assert summary.host.gpus == ["NVIDIA H100 80GB HBM3"]
    assert [step.step for step in summary.parts[0].steps][1] == "pinned-reuse"
    assert "driver 580.159.04" in (tmp_path / "it/summary.md").read_text()


def test_a_gpu_that_others_use_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> Choice:
        raise GpuUnavailable(
            "The GPU is in use by others.", hint="MMREPRO_GPU=0 takes it anyway"
        )

    monkeypatch.setattr("mmrepro.base.machine.gpu.take", busy)
    done = CliRunner().invoke(
        app, ["accept", "--device", "cuda", "--out", str(tmp_path / "it")]
    )
    assert isinstance(done.exception, GpuUnavailable)
    assert done.exception.exit_code == 4
    assert not (tmp_path / "it").exists()
