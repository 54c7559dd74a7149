"""``mmrepro demo``: the recording in the package, judged again and shown."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.cli import demo
from mmrepro.cli.app import app
from typer.testing import CliRunner

EVIDENCE = Path(__file__).parents[1] / "evidence"
PACKAGED = Path(demo.__file__).with_name(demo.RECORDING)


def test_the_recording_is_the_evidence_that_ci_judges() -> None:
    assert (
        PACKAGED.read_bytes()
        == (EVIDENCE / "ghost-key-eviction-0.23.0.zip").read_bytes()
    )


def test_it_judges_again_and_names_what_to_type_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Under `uv run` what to type next is `uv run mmrepro`.
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    for _ in range(2):  # the folder of an earlier demo is no hindrance
        shown = CliRunner().invoke(app, ["demo"])
        assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert "43 conditions and claims): still reproduced" in lines[0]
    assert sum(line.startswith("mmrepro ") for line in lines) == 4
    assert lines[-1] == "incidents/demo/report.html"
    assert (tmp_path / lines[-1]).stat().st_size > 50_000


def test_a_verdict_that_evidence_does_not_carry_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(PACKAGED) as recorded:
        incident = json.loads(recorded.read("incident.json"))
        manifest = json.loads(recorded.read("manifest.json"))
    incident["verdict"]["outcome"] = "not-reproduced"
    data = json.dumps(incident).encode()
    for file in manifest["files"]:
        file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("incident.json", data)
        other.writestr("manifest.json", json.dumps(manifest))
    monkeypatch.setattr(demo, "RECORDING", str(tmp_path / "other.zip"))
    shown = CliRunner().invoke(
        app, ["demo", "--print", "--out", str(tmp_path / "here")]
    )
    assert shown.exit_code == 1
    assert "now differs: reproduced" in shown.output.splitlines()[0]


@pytest.mark.parametrize("name", ["incident.json", "fuzz.json"])
def test_what_is_there_is_never_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(shown.exception, UsageError)
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "{}"
