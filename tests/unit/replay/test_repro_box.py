"""What a stranger wrote runs in a box, or not at all."""

import json
from pathlib import Path

import pytest
from in_process import mmrepro
from mmrepro.base.box import box as boxes
from mmrepro.base.box.box import _why_none
from mmrepro.base.options import declared
from mmrepro.failure.documents.listing import resume_words
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.repro.options import ReproCommand

ISSUE = """# It dies

```sh
vllm serve a/b
```
vllm 0.23.0
```sh
curl http://localhost:8000/v1/models; touch {canary}
```
"""


@pytest.fixture
def _no_box(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(boxes, "program_here", lambda: "")
    _why_none.cache_clear()
    yield
    _why_none.cache_clear()


@pytest.mark.usefixtures("_no_box")
@pytest.mark.parametrize("words", [["--json"], ["--quiet"], ["--yes"], []])
def test_without_a_box_nothing_is_run_or_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ISSUE.md").write_text(ISSUE.format(canary=tmp_path / "ran"))
    code, _, error = mmrepro("repro", "ISSUE.md", *words)
    assert code == 2
    assert "none can be made here" in error
    assert "bubblewrap" in error
    assert "--trust-report" in error
    assert [file.name for file in tmp_path.iterdir()] == ["ISSUE.md"]


@pytest.mark.usefixtures("_no_box")
def test_a_recording_is_not_replayed_without_a_box_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.har").write_text('{"log": {"entries": []}}')
    code, _, error = mmrepro(
        "replay", "a.har", "--engine", "minivllm", "--release", "0.1"
    )
    assert code == 2
    assert "--no-box" in error


def test_only_a_word_of_the_command_line_trusts_a_report() -> None:
    for command in (ReproCommand, ReplayCommand):
        box = next(one for one in declared(command) if one.field == "box")
        assert not box.configurable
        assert not box.variable
    assert ReproCommand().boxed
    assert not ReproCommand(box=False).boxed
    assert "--trust-report" in ReproCommand(box=False).argv()


@pytest.mark.parametrize("words", ["repro ISSUE.md --release 0.1", "replay a.har"])
def test_resume_goes_on_with_a_replay_and_with_a_report(
    words: str, tmp_path: Path
) -> None:
    head = {
        "mmrepro_version": "0",
        "created": {"wall": "2026-01-01T00:00:00+00:00", "mono": 0.0},
        "state": "interrupted",
        "command": f"mmrepro {words}",
        "resume": f"mmrepro {words} --resume somewhere",
    }
    (tmp_path / "replay.json").write_text(json.dumps(head))
    assert resume_words(tmp_path) == [*words.split(), "--resume", str(tmp_path)]
