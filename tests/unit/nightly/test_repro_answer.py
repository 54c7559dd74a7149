"""action.yml's answer to an issue: only where something was tested, and nobody is mentioned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci" / "repro_answer.py"


def said(folder: Path, verdict: str | None, code: int = 1, **more: Any) -> tuple[str, str]:
    """What the action gets, and the answer."""
    facts = {"verdict": verdict, "said": "r1 got 500", **more}
    document = {"report": facts, "server": {"engine": "vllm", "release": "0.23.0"}}
    (folder / "repro.json").write_text(json.dumps(document) if verdict else "no JSON")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(code)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    file = folder / "answer.md"
    return done.stdout, file.read_text() if file.is_file() else ""


@pytest.mark.parametrize("verdict", ["reproduced", "different", "not-reproduced"])
def test_there_is_an_answer_where_something_was_tested(tmp_path: Path, verdict: str) -> None:
    out, text = said(tmp_path, verdict)
    assert out == f"verdict={verdict}\nanswer={tmp_path / 'answer.md'}\n"
    assert "vllm 0.23.0" in text
    assert "r1 got 500" in text


@pytest.mark.parametrize("verdict", ["nothing-tested", "needs-hardware", "unproven", None])
def test_there_is_none_where_nothing_was(tmp_path: Path, verdict: str | None) -> None:
    out, text = said(tmp_path, verdict, code=3)
    assert out == f"verdict={verdict or 'none (exit code 3)'}\n"
    assert text == ""


def test_a_strangers_words_stay_in_their_fence_and_call_nobody(tmp_path: Path) -> None:
    evil = "```\n@everyone [x](http://evil) <img src=x>\n## ok"
    (tmp_path / "report.md").write_text(evil)
    replaced = [{"what": evil, "by": "", "why": evil}]
    _, text = said(tmp_path, "reproduced", said=evil, replaced=replaced)
    assert "@everyone" not in text
    inside, outside = False, []
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            outside.append(line)
    assert not inside
    assert not any("evil" in line or line == "ok" for line in outside)
