"""What of a replay leaves the machine: the issue and the bundle."""

import re
import zipfile
from pathlib import Path

import pytest
from finding_samples import finding, ghost_case, written
from made_up_replay import SECRET, operation
from mmrepro.cli.app import app
from mmrepro.failure.documents import LoadedFinding, as_public
from mmrepro.failure.documents.finding import load as load_finding
from mmrepro.reports import load
from mmrepro.reports.bundle import write_bundle
from mmrepro.reports.issue_form import (
    MAX_CHARS,
    Report,
    filled,
    incident_issue,
    public_command,
    public_issue,
)
from mmrepro.traffic.case.files import read_case, write_case
from mmrepro.traffic.case.model import Case, Recorded
from typer.testing import CliRunner

RECORDED = Path(__file__).parents[2] / "evidence"


def finding_issue(loaded: LoadedFinding) -> str:
    with as_public(loaded) as shown:
        return public_issue(shown)


def private_case() -> Case:
    case = ghost_case()
    for op in case.operations:
        op.recorded = Recorded(status=200, text="the answer about Erika Mustermann")
    return case


def test_an_issue_has_the_engines_own_headings(tmp_path: Path) -> None:
    written(tmp_path, finding(), case=private_case())
    forms = {
        "vllm": [
            "Your current environment",
            "🐛 Describe the bug",
            "Before submitting a new issue",
        ],
        "sglang": ["Checklist", "Describe the bug", "Reproduction", "Environment"],
        "lmdeploy": [
            "Checklist",
            "Describe the bug",
            "Reproduction",
            "Environment",
            "Error traceback",
        ],
        "minivllm": ["Describe the bug", "Reproduction", "Environment"],
    }
    for engine, headings in forms.items():
        shown = load_finding(tmp_path / "f1")
        shown.replay.server = shown.replay.server.model_copy(update={"engine": engine})
        text = finding_issue(shown)
        found = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert [name.removesuffix("...") for name in found] == headings
        for word in (
            "**Observed:**",
            "**Expected:**",
            "every request is answered",
            "popitem",
            "3 of 3 attempts",
            "Made-up CPU",
            "reproduce.py",
        ):
            assert word in text
        assert "- [x]" not in text
        assert "Mustermann" not in text
        assert len(text) <= MAX_CHARS


def test_a_long_script_is_attached_not_pasted(tmp_path: Path) -> None:
    case = ghost_case()
    long = "".join(chr(97 + (i * i * 7 + i // 5) % 26) for i in range(70_000))
    case.operations[0] = operation("r1", text=long, images=("X",))
    written(tmp_path, finding(), case=case)
    text = finding_issue(load_finding(tmp_path / "f1"))
    assert len(text) <= MAX_CHARS
    assert "attach the file" in text


def test_what_was_said_does_not_end_the_script(tmp_path: Path) -> None:
    case = ghost_case()
    case.operations[1] = operation(
        "r2", "r1.end", text="``` and ````` end it", images=("X",)
    )
    case.origin.anonymised = True
    written(tmp_path, finding(), case=case)
    text = finding_issue(load_finding(tmp_path / "f1"))
    script = re.search(r"^(`{3,})python$(.*?)^\1$", text, re.MULTILINE | re.DOTALL)
    assert script is not None
    assert script[1] == "``````"
    assert script[2].strip().endswith("sys.exit(main())")


def test_no_issue_is_longer_than_github_takes() -> None:
    text = filled(Report("vllm", "t", "d" * 90_000, "r", "e"))
    assert len(text) <= MAX_CHARS
    assert text.endswith("[cut: too long]\n")


@pytest.mark.parametrize("name", ["ghost-key-eviction-0.23.0", "kv-growth-crash"])
def test_an_incident_of_a_run_is_an_issue_too(name: str) -> None:
    path = sorted(RECORDED.glob(f"{name}*.zip"))[0]
    incident = load(path)
    text = incident_issue(incident)
    assert "### Describe the bug" in text or "### 🐛 Describe the bug" in text
    assert incident.engine.release in text
    command = public_command(incident.engine.command)
    assert command.startswith("python3 ")
    assert " /" not in command
    assert command in text
    assert len(text) <= MAX_CHARS
    done = CliRunner().invoke(app, ["report", str(path), "--format", "issue"])
    assert (done.exit_code, done.stdout.strip()) == (0, text.strip())


def test_a_bundle_has_other_words_and_no_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    made = written(
        folder,
        finding(
            private_case(), log_lines=[f"Received request: prompt: '{SECRET}', params"]
        ),
        case=private_case(),
    )
    target = tmp_path / "r.zip"
    write_bundle(folder, made, target)
    with zipfile.ZipFile(target) as archive:
        names = set(archive.namelist())
        texts = {name: archive.read(name).decode() for name in names}
    assert {
        "replay.json",
        "f1/case.json",
        "f1/reproduce.py",
        "f1/report.md",
        "f1/issue.md",
    } <= names
    for name, text in texts.items():
        assert "Mustermann" not in text, name
        assert "patient" not in text, name
    (tmp_path / "case.json").write_text(texts["f1/case.json"])
    public, _ = read_case(tmp_path / "case.json")
    assert public.origin.anonymised
    assert [op.images for op in public.operations] == [
        op.images for op in ghost_case().operations
    ]
    assert "the random ones were not played" in texts["f1/report.md"]
    done = CliRunner().invoke(app, ["report", str(target)])
    assert done.exit_code == 0, done.stderr
    assert "# Replay of night.har" in done.stdout


def test_where_the_other_words_were_played_the_bundle_has_those(tmp_path: Path) -> None:
    made = written(tmp_path, finding(), case=private_case())
    played = ghost_case()
    played.operations[1] = operation("r2", "r1.end", text="played words", images=("X",))
    write_case(played, tmp_path / "f1" / "anonymised")
    target = tmp_path / "r.zip"
    write_bundle(tmp_path, made, target)
    with zipfile.ZipFile(target) as archive:
        assert "played words" in archive.read("f1/reproduce.py").decode()
        assert "were not played" not in archive.read("f1/report.md").decode()
