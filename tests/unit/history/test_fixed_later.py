"""Later fixes of the functions of a traceback: the table from a clone, and what it
says."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.cli import fixed_later_table
from mmrepro.cli.app import app
from mmrepro.cli.fixed_later_table import functions_at, table_of
from mmrepro.engines.environments.index import Listed
from mmrepro.history import FixTable, TableFix, TableFunction, fixed_later, later_fixes
from mmrepro.history.fixed_later import read_table, write_table
from mmrepro.live.diagnose import later_fixes_in
from packaging.version import Version
from typer.testing import CliRunner

MODULE = """\
import json
import os

LIMIT = 3


class Scheduler:
    def schedule(self):
        if LIMIT:
            return 1

        return 0

    async def update(self):
        def inner():
            return [
                1,
            ]
        return inner()


def free(block):
    return block
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 9, in step
    self.scheduler.schedule()
  File "/opt/lib/python3.12/site-packages/vllm/v1/core/scheduler.py", line 7, in schedule
    return free(self.block)
  File "/opt/lib/python3.12/site-packages/vllm/v1/core/scheduler.py", line 21, in free
    raise KeyError("block")
KeyError: 'block'
"""


def test_the_function_that_holds_a_line() -> None:
    lines = MODULE.splitlines()

    def of(text: str) -> set[str]:
        return functions_at(MODULE, {lines.index(text) + 1})

    assert of("            return 1") == {"schedule"}
    assert of("                1,") == {"inner"}
    assert of("        return inner()") == {"update"}
    assert of("def free(block):") == {"free"}
    assert of("LIMIT = 3") == of("class Scheduler:") == set()


def git(folder: Path, *arguments: str, day: str = "2026-06-01") -> str:
    who = {}
    for role in ("AUTHOR", "COMMITTER"):
        who[f"GIT_{role}_NAME"] = "somebody"
        who[f"GIT_{role}_EMAIL"] = "somebody@example.com"
        who[f"GIT_{role}_DATE"] = f"{day}T12:00:00+00:00"
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def own_releases(engine: str, device: str) -> list[Listed]:
        days = {"0.22.0": "2026-05-29", "0.23.0": "2026-06-13", "0.24.0": "2026-06-30"}
        made = []
        for version, day in days.items():
            moment = datetime.fromisoformat(day).replace(tzinfo=UTC)
            made.append(Listed(Version(version), version, moment))
        return made

    monkeypatch.setattr(fixed_later_table, "own_releases", own_releases)
    folder = tmp_path / "clone"
    module = folder / "vllm" / "core.py"
    module.parent.mkdir(parents=True)
    module.write_text(MODULE)
    (folder / "vllm" / "__init__.py").touch()
    git(folder.parent, "init", "-q", "-b", "main", str(folder))

    def commit(subject: str, old: str, new: str, day: str) -> None:
        module.write_text(module.read_text().replace(old, new))
        git(folder, "add", "-A", day=day)
        git(folder, "commit", "-qm", subject, day=day)

    commit("first", "", "", "2026-05-01")
    commit("[Bugfix] Free it (#7)", "return block", "return None", "2026-06-03")
    commit("Faster (#8)", "return 1", "return 2", "2026-06-10")
    commit("Fix the schedule (#9)", "return 2", "return 3", "2026-06-25")
    return folder


def test_the_table_of_a_clone(clone: Path) -> None:
    table = table_of(clone)
    assert [(fix.pull, fix.day) for fix in table.fixes] == [
        (9, date(2026, 6, 25)),
        (7, date(2026, 6, 3)),
    ]
    assert table.functions == {
        TableFunction("vllm/core.py", "schedule"): [0],
        TableFunction("vllm/core.py", "free"): [1],
    }
    assert table.until == date(2026, 6, 25)
    # Cut some days before its upload: what came in between is in the next one.
    assert table.first_release(date(2026, 6, 3)) == "0.23.0"
    assert table.first_release(date(2026, 6, 10)) == "0.24.0"
    assert table.first_release(date(2026, 6, 25)) == ""
    # Up to a revision: a fork goes on with pull requests of its own.
    older = table_of(clone, "HEAD~1")
    assert [fix.pull for fix in older.fixes] == [7]
    assert older.until == date(2026, 6, 10)
    git(clone, "rm", "-rq", "vllm")
    git(clone, "commit", "-qm", "gone")
    with pytest.raises(UsageError, match="is no clone of an engine"):
        table_of(clone)


def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in which many fixes touched ``schedule``, and two ``free``."""
    first = date(2026, 6, 1)
    fixes = [TableFix(n, first + timedelta(days=n), f"{n:09x}") for n in range(60)]
    functions = {
        TableFunction("vllm/v1/core/scheduler.py", "schedule"): [*range(50)],
        TableFunction("vllm/v1/core/scheduler.py", "free"): [3, 55],
        TableFunction("vllm/old/place/core.py", "step"): [40],
    }
    releases = {"0.22.0": date(2026, 5, 20), "0.23.0": date(2026, 6, 18)}
    made = FixTable("vllm", date(2026, 8, 1), releases, fixes, functions)
    other = FixTable("sglang", date(2026, 8, 1), {}, fixes[:1], {})
    path = tmp_path / "table.xz"
    write_table([other, made], path)
    monkeypatch.setattr(fixed_later, "TABLE_OF_FIXES", path)


def test_those_that_touched_the_innermost_function_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    frames = [
        ("/x/site-packages/vllm/v1/core/scheduler.py", "free"),
        ("/x/site-packages/vllm/v1/core/scheduler.py", "Scheduler.schedule"),
        ("/x/site-packages/vllm/v1/engine/core.py", "step"),
        ("/x/asyncio/base_events.py", "run"),
    ]
    found = later_fixes("vllm", "0.22.0", frames)
    assert len(found) == 5
    assert [fix.day for fix in found] == sorted((f.day for f in found), reverse=True)
    assert {3, 55} <= {fix.pull for fix in found}
    by_pull = {fix.pull: fix for fix in found}
    assert by_pull[3].release == "0.23.0"
    assert by_pull[55].release == ""
    assert by_pull[55].to_dict()["until"] == "2026-08-01"
    assert by_pull[55].functions == ["vllm/v1/core/scheduler.py: free"]
    assert "touched since, not proven" in by_pull[55].to_dict().values()
    # What the release has is no later fix.
    assert 3 not in {fix.pull for fix in later_fixes("vllm", "0.23.0", frames)}
    # A file that has moved since is found by its own name.
    assert [fix.pull for fix in later_fixes("vllm", "", frames[2:])] == [40]
    assert later_fixes("vllm", "0.22.0", frames[3:]) == []
    assert later_fixes("lmdeploy", "0.22.0", frames) == []
    assert read_table("sglang", set()) is not None


def test_a_traceback_that_was_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    found = later_fixes_in(TRACEBACK)
    assert {3, 55} <= {fix.pull for fix in found}
    assert found[0].sentence.startswith("vllm#55 of 2026-07-26, in no release yet")
    assert later_fixes_in("KeyError: 'block'") == []


def test_find_and_logs_print_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    done = CliRunner().invoke(app, ["find", TRACEBACK])
    assert "touched since, not proven; of those until 2026-08-01" in done.stdout
    assert "vllm#55 of 2026-07-26" in done.stdout
    done = CliRunner().invoke(app, ["find", TRACEBACK, "--json"])
    pulls = [fix["pull"] for fix in json.loads(done.stdout)["later_fixes"]]
    assert {3, 55} <= set(pulls)

    log = tmp_path / "server.log"
    mark = "(EngineCore pid=20) ERROR 06-24 18:12:17 [core.py:1195] "
    log.write_text("".join(f"{mark}{line}\n" for line in TRACEBACK.splitlines()))
    done = CliRunner().invoke(app, ["logs", str(log)])
    assert "vllm#55 of 2026-07-26" in done.stdout
