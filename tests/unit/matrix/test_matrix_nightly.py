"""`mmrepro matrix overdue`, `annotate`, `surprises`, `issues`: exit codes and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_nights import cell, night, written
from mmrepro.cli.app import app
from mmrepro.errors import MmreproError
from mmrepro.history.ledger import NightRuns
from mmrepro.signature import Outcome
from typer.testing import CliRunner

MID = cell("0.23.0")


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["matrix", *words])
    if isinstance(done.exception, MmreproError):
        return int(done.exception.exit_code), f"{done.exception.message} {done.exception.hint}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def ledger(folder: Path, *nights: NightRuns, ago: float = 1) -> str:
    """The newest night began so many hours ago."""
    return str(written(folder, *nights, ago=ago))


@pytest.mark.parametrize(
    ("ago", "every_h", "options", "code", "says"),
    [
        (1, 24, [], 0, "and is complete; the next night is due at "),
        (40, 24, [], 1, "40 h after n1 began no other night had, and one is due every 24 h."),
        (40, 24, ["--every", "7d"], 0, "the next night is due at"),
        (40, None, ["--every", "24h"], 1, "40 h after n1 began"),
        (40, None, [], 2, "says when the next one is due. mmrepro matrix overdue"),
    ],
)
def test_overdue(
    tmp_path: Path, ago: float, every_h: float | None, options: list[str], code: int, says: str
) -> None:
    folder = ledger(tmp_path, night(1, {MID: "r"}, every_h=every_h), ago=ago)
    exit_code, told = command("overdue", folder, *options)
    assert (exit_code, told.count("\n") <= 1) == (code, True)
    assert says in told
    if code != 2:
        exit_code, told = command("overdue", folder, *options, "--json")
        assert (exit_code, json.loads(told)["overdue"]) == (code, code == 1)
        assert json.loads(told)["night"] == "n1"


def test_overdue_without_a_night_or_a_ledger(tmp_path: Path) -> None:
    code, told = command("overdue", str(tmp_path))
    assert (code, "holds no ledger.jsonl" in told) == (2, True)
    assert command("overdue", ledger(tmp_path)) == (1, "No night of this ledger ran anything.\n")


def test_annotate(tmp_path: Path) -> None:
    runs = {cell(f"0.{n}.0"): "r" for n in range(12)}
    folder = ledger(tmp_path, night(1, runs, expected=Outcome.NOT_REPRODUCED))
    code, told = command("annotate", folder)
    assert (code, len(told.splitlines())) == (0, 10)
    assert all(line.startswith("::error title=") for line in told.splitlines())
    assert "3 more were not shown (3 errors)" in told.splitlines()[-1]
    assert len(command("annotate", folder, "--max", "20")[1].splitlines()) == 12
    assert command("annotate", folder, "--night", "n7")[0] == 2


def test_surprises(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = ledger(tmp_path / "M", night(1, {MID: "r"}, expected=Outcome.REPRODUCED))
    assert command("surprises", folder, "--out", str(out)) == (
        0,
        "Night n1 has nothing to bundle.\n",
    )
    assert not out.exists()
    odd = ledger(tmp_path / "O", night(1, {MID: "r"}, expected=Outcome.NOT_REPRODUCED))
    code, told = command("surprises", odd, "--out", str(out), "--json")
    (run,) = json.loads(told)["runs"]
    assert (code, run["file"], "there is no folder" in run["left_out"]) == (0, "", True)
    assert command("surprises", odd, "--out", str(out), "--max-bytes", "no")[0] == 2


def test_issues(tmp_path: Path) -> None:
    folder = ledger(tmp_path / "M", night(1, {MID: "r"}), night(2, {MID: "l"}))
    there = tmp_path / "open.json"
    there.write_text("[]")
    code, told = command("issues", folder, "--open", str(there), "--json")
    (action,) = json.loads(told)["actions"]
    assert (code, action["do"], action["labels"]) == (0, "open", ["mmrepro-nightly"])
    assert command("issues", folder, "--open", str(there))[1] == (
        "open: coverage lost: ghost on vllm 0.23.0\n"
    )
    extra = {"id": "LA_1", "name": "mmrepro-nightly", "description": "", "color": "ffffff"}
    issue = {"number": 4, "title": "edited", "body": action["body"], "labels": [extra]}
    there.write_text(json.dumps([{**issue, "state": "OPEN"}]))
    assert command("issues", folder, "--open", str(there)) == (0, "Nothing is to be done.\n")
    newer = {**issue, "number": 5}
    there.write_text(json.dumps([newer, issue]))
    told = command("issues", folder, "--open", str(there), "--json")[1]
    (action,) = json.loads(told)["actions"]
    assert (action["do"], action["number"], action["reason"]) == ("close", 5, "not planned")
    assert action["comment"] == "The same as #4, which goes on."


def test_issues_in_quarantine_and_more_than_wanted(tmp_path: Path) -> None:
    two = {MID: "r", cell("0.24.0"): "r"}
    folder = ledger(tmp_path / "M", night(1, two), night(2, dict.fromkeys(two, "l")))
    there, excused = tmp_path / "open.json", tmp_path / "q.toml"
    there.write_text("[]")
    told = command("issues", folder, "--open", str(there), "--max-new", "1")[1]
    assert (
        told.splitlines()[1]
        == "1 more wait for the next night: coverage lost: ghost on vllm 0.24.0"
    )
    excused.write_text(
        '[[quarantine]]\nscenario = "ghost"\nreleases = "==0.23.0"\nreason = "known"\n'
        'issue = "#1"\nowner = "ada"\nexpires = 2999-01-01\n'
    )
    told = command("issues", folder, "--open", str(there), "--quarantine", str(excused))[1]
    assert told == "open: coverage lost: ghost on vllm 0.24.0\n"


@pytest.mark.parametrize("text", ["", "{}", '[{"title": "no number"}]', '[{"number": 0}]'])
def test_issues_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    folder = ledger(tmp_path / "M", night(1, {MID: "r"}))
    there = tmp_path / "open.json"
    there.write_text(text)
    code, told = command("issues", folder, "--open", str(there))
    assert (code, "is no list of issues" in told) == (2, True)
    there.unlink()
    assert command("issues", folder, "--open", str(there))[0] == 2
