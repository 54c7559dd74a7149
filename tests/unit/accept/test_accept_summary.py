"""The summary: what is published of an acceptance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mmrepro.accept.parts import PARTS
from mmrepro.accept.running import StepRun
from mmrepro.accept.sampling import Sample, sampled, used
from mmrepro.cli.app import app
from mmrepro.errors import GpuUnavailable
from mmrepro.incident.acceptance import (
    Acceptance,
    GpuUse,
    PartRecord,
    Peak,
    Row,
    Status,
    StepRecord,
)
from mmrepro.machine.facts import host_facts
from mmrepro.machine.gpu import Choice, choose, read_gpus
from mmrepro.records import GpuFacts, Moment
from mmrepro.reports.acceptance import render_acceptance, write_acceptance
from nvml_replayed import Replayed
from typer.testing import CliRunner


def row(status: Status, seen: str = "as it should be") -> Row:
    return Row(asked="does | it?", expected="so", source="CUDA", seen=seen, status=status)


def record(name: str, *rows: Row, whole: bool = True) -> StepRecord:
    return StepRecord(
        step=name,
        title=name,
        key="k",
        command=f"mmrepro run {name} --device cuda",
        created=Moment.now(),
        seconds=12.5,
        exit_code=0 if whole else None,
        whole=whole,
        incident=f"race/{name}" if whole else "",
        rows=list(rows),
    )


def acceptance(*parts: PartRecord) -> Acceptance:
    card = GpuFacts(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-534e6eff",
        memory_bytes=80 << 30,
        memory_used_bytes=0,
        driver="580.159.04",
        cuda="13.0",
        taken=True,
    )
    return Acceptance(
        mmrepro_version="0.1.0",
        created=Moment.now(),
        seconds=12.5,
        budget_s=1500,
        device="cuda",
        command="mmrepro accept --device cuda --out accepted",
        resume="mmrepro accept --device cuda --out accepted --resume",
        host=host_facts([card.name]).model_copy(update={"gpu_facts": [card]}),
        parts=list(parts),
    )


def test_every_row_and_its_status_is_told() -> None:
    use = GpuUse(step="pinned", gpu=0, readings=3, memory_bytes=Peak(least=0, most=2**30))
    rows = [row(status, f"seen {status}") for status in Status]
    told = acceptance(
        PartRecord(part="race", title="it races", steps=[record("pinned", *rows)], gpu=[use])
    )
    text = render_acceptance(told)
    for status in Status:
        assert f"seen {status}" in text
    assert "1 passed, 1 failed, 1 not tested, 1 broken off" in text
    assert "| [race](#race) | it races | **✘ failed** |" in text
    assert "NVIDIA H100 80GB HBM3, 80 GiB, driver 580.159.04, CUDA 13.0, taken" in text
    assert "| pinned | 0 | 3 | not told | 0 B to 1 GiB |" in text
    assert "`mmrepro run pinned --device cuda`, 12.5 s: `pinned/report.md`" in text
    assert "does &#124; it?" in text, "what was seen is no Markdown"
    assert "--resume" not in text, "nothing is left"


def test_what_is_left_is_told_with_its_command() -> None:
    untried = record("late", row(Status.BROKEN_OFF), whole=False)
    text = render_acceptance(acceptance(PartRecord(part="race", title="", steps=[untried])))
    assert "mmrepro accept --device cuda --out accepted --resume" in text


def test_a_part_that_has_not_been_reached_is_not_tested() -> None:
    told = acceptance(PartRecord(part="race", title="it races", steps=[]))
    assert told.parts[0].status is Status.NOT_TESTED
    assert "| it races | – not tested | nothing |" in render_acceptance(told)


def test_it_is_written_twice_and_can_be_read_back(tmp_path: Path) -> None:
    told = acceptance(PartRecord(part="race", title="", steps=[record("a", row(Status.PASSED))]))
    assert [path.name for path in write_acceptance(told, tmp_path)] == [
        "summary.json",
        "summary.md",
    ]
    assert Acceptance.model_validate_json((tmp_path / "summary.json").read_bytes()) == told


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
    write_acceptance(told, tmp_path / "it")
    assert "seen on cuda; this is cpu" in fails("--out", out)


def test_one_summary_of_a_folder_whatever_parts_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only a GPU has is not run on a CPU, so that no child is started here."""
    folder = str(tmp_path / "it")

    def told(*words: str) -> list[str]:
        CliRunner().invoke(app, ["accept", "--device", "cpu", "--out", folder, *words])
        summary = Acceptance.model_validate_json((tmp_path / "it/summary.json").read_bytes())
        return [part.part for part in summary.parts if part.steps]

    for name in ("race", "check"):
        only = replace(next(p for p in PARTS if p.name == "device-assert"), name=name)
        parts = tuple(only if part.name == name else part for part in PARTS)
        monkeypatch.setattr("mmrepro.accept.parts.PARTS", parts)
        assert name in told("--only", name)
    monkeypatch.undo()
    assert told("--only", "device-assert") == ["check", "race", "device-assert"]


def test_on_a_gpu_the_one_that_is_taken_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NVML said on an H100, replayed; there is no environment, so that nothing is started."""
    recorded = json.loads((Path(__file__).parents[1] / "nvml_h100.json").read_text())
    taken = choose(read_gpus(Replayed(recorded["snapshots"]["before"])), {})
    monkeypatch.setattr("mmrepro.machine.gpu.take", lambda: taken)
    nothing = None, "no environment is here", False
    monkeypatch.setattr(StepRun, "_python", lambda *_: nothing)
    words = ["accept", "--device", "cuda", "--only", "race", "--out", str(tmp_path / "it")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 4
    assert "no environment is here" in done.output
    summary = Acceptance.model_validate_json((tmp_path / "it/summary.json").read_bytes())
    assert summary.device == "cuda"
    assert summary.host.gpus == ["NVIDIA H100 80GB HBM3"]
    assert [step.step for step in summary.parts[0].steps][1] == "pinned-reuse"
    assert "driver 580.159.04" in (tmp_path / "it/summary.md").read_text()


def test_a_gpu_that_others_use_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> Choice:
        raise GpuUnavailable("The GPU is in use by others.", hint="MMREPRO_GPU=0 takes it anyway")

    monkeypatch.setattr("mmrepro.machine.gpu.take", busy)
    done = CliRunner().invoke(app, ["accept", "--device", "cuda", "--out", str(tmp_path / "it")])
    assert isinstance(done.exception, GpuUnavailable)
    assert done.exception.exit_code == 4
    assert not (tmp_path / "it").exists()
