"""Later fixes of the functions of a traceback: the table from a clone, and what it
says."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.cli import fixed_later_table
from mmrepro.cli.app import app
from mmrepro.cli.fixed_later_table import table_of
from mmrepro.engines.environments.index import Listed
from mmrepro.history import (
    FixTable,
    TableFix,
    TableFunction,
    TracedFailure,
    fixed_later,
    later_fixes,
)
from mmrepro.history.fixed_later import read_table, write_table
from mmrepro.live.diagnose import later_fixes_in
from mmrepro.runs import functions_at, scopes_at
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


def test_classes_and_modules_hold_lines_too() -> None:
    lines = MODULE.splitlines()

    def of(text: str) -> set[str]:
        return scopes_at(MODULE, {lines.index(text) + 1})

    assert of("            return 1") == {"schedule", "class:Scheduler"}
    assert of("class Scheduler:") == {"class:Scheduler"}
    assert of("def free(block):") == {"free"}
    assert of("LIMIT = 3") == {"<module>"}


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
    commit("Longer (#10)\n\nCloses #5", "LIMIT = 3", "LIMIT = 4", "2026-06-26")
    commit(
        "Handle it early (#11)",
        "            return 3",
        "            return 5",
        "2026-06-27",
    )
    return folder


def test_the_table_of_a_clone(clone: Path) -> None:
    table = table_of(clone)
    assert [(fix.pull, fix.day, fix.breadth, fix.plain) for fix in table.fixes] == [
        (11, date(2026, 6, 27), 1, False),
        (10, date(2026, 6, 26), 0, True),
        (9, date(2026, 6, 25), 1, True),
        (7, date(2026, 6, 3), 1, True),
    ]
    assert table.functions == {
        TableFunction("vllm/core.py", "<module>"): [1],
        TableFunction("vllm/core.py", "schedule"): [0, 2],
        TableFunction("vllm/core.py", "class:Scheduler"): [0, 2],
        TableFunction("vllm/core.py", "free"): [3],
    }
    assert table.until == date(2026, 6, 27)
    # Cut some days before its upload: what came in between is in the next one.
    assert table.first_release(date(2026, 6, 3)) == "0.23.0"
    assert table.first_release(date(2026, 6, 10)) == "0.24.0"
    assert table.first_release(date(2026, 6, 25)) == ""
    # Up to a revision: a fork goes on with pull requests of its own.
    older = table_of(clone, "HEAD~3")
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
    # A wide one, and one that only avoids something.
    fixes[20] = fixes[20]._replace(breadth=50)
    fixes[22] = fixes[22]._replace(plain=False)
    functions = {
        TableFunction("vllm/v1/core/scheduler.py", "schedule"): [*range(50)],
        TableFunction("vllm/v1/core/scheduler.py", "free"): [3, 55],
        TableFunction("vllm/old/place/core.py", "step"): [40],
        TableFunction("vllm/v1/pool.py", "grow"): [57],
        TableFunction("vllm/v1/pool.py", "<module>"): [58],
        TableFunction("vllm/v1/request.py", "class:RequestQueue"): [59],
    }
    releases = {"0.22.0": date(2026, 5, 20), "0.23.0": date(2026, 6, 18)}
    made = FixTable("vllm", date(2026, 8, 1), releases, fixes, functions)
    other = FixTable("sglang", date(2026, 8, 1), {}, fixes[:1], {})
    path = tmp_path / "table.xz"
    write_table([other, made], path)
    monkeypatch.setattr(fixed_later, "TABLE_OF_FIXES", path)


SCHEDULER = "/x/site-packages/vllm/v1/core/scheduler.py"
CORE = "/x/site-packages/vllm/v1/engine/core.py"
POOL = "/x/site-packages/vllm/v1/pool.py"


def pulls(
    release: str, *frames: tuple[str, str], message: str = "", day: date | None = None
) -> set[int]:
    failure = TracedFailure(release, [frames], message, day)
    return {fix.pull for fix in later_fixes("vllm", failure)}


def test_those_that_touched_the_innermost_function_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    frames = [
        (SCHEDULER, "free"),
        (SCHEDULER, "Scheduler.schedule"),
        (CORE, "step"),
        ("/x/asyncio/base_events.py", "run"),
    ]
    found = later_fixes("vllm", TracedFailure("0.22.0", [frames]))
    assert len(found) == 5
    assert [fix.day for fix in found] == sorted((f.day for f in found), reverse=True)
    assert {3, 55} <= {fix.pull for fix in found}
    by_pull = {fix.pull: fix for fix in found}
    assert by_pull[3].release == "0.23.0"
    assert by_pull[55].release == ""
    assert by_pull[55].to_dict()["until"] == "2026-08-01"
    assert by_pull[55].functions[0] == "vllm/v1/core/scheduler.py: free"
    assert "touched since, not proven" in by_pull[55].to_dict().values()
    # What the release has is no later fix.
    assert 3 not in pulls("0.23.0", *frames)
    # A file that has moved since is found by its own name.
    moved = later_fixes("vllm", TracedFailure("", [frames[2:]]))
    assert [fix.pull for fix in moved] == [40]
    assert moved[0].functions[0] == "vllm/old/place/core.py: step"
    assert pulls("0.22.0", *frames[3:]) == set()
    assert later_fixes("lmdeploy", TracedFailure("0.22.0", [frames])) == []
    assert read_table("sglang", set(), set()) is not None


def test_what_stands_beside_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    # Nothing touched the function itself: another of its file was mended.
    found = later_fixes("vllm", TracedFailure("0.22.0", [[(POOL, "shrink")]]))
    assert {fix.pull for fix in found} == {57, 58}
    assert found[0].functions == ["vllm/v1/pool.py: other functions"]
    # An import that fails stands in a module.
    first = later_fixes("vllm", TracedFailure("0.22.0", [[(POOL, "<module>")]]))[0]
    assert (first.pull, first.functions[0]) == (58, "vllm/v1/pool.py: <module>")
    # A class that the message names is not in the traceback.
    message = "'RequestQueue' object has no attribute 'peek'"
    found = later_fixes("vllm", TracedFailure("0.22.0", [[(CORE, "add")]], message))
    assert 59 in {fix.pull for fix in found}
    assert "vllm/v1/request.py: class RequestQueue" in found[0].functions
    assert 59 not in pulls("0.22.0", (CORE, "add"), message="no attribute 'peek'")
    # An environment may be called like the engine.
    assert (
        pulls("0.22.0", ("/opt/vllm/lib/site-packages/torch/pool.py", "grow")) == set()
    )
    assert 57 in pulls("0.22.0", ("vllm/python/vllm/v1/pool.py", "grow"))


def test_what_came_of_a_failure_is_asked_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    tracebacks = [[(SCHEDULER, "free")], [(POOL, "grow"), (CORE, "step")]]
    found = later_fixes("vllm", TracedFailure("0.22.0", tracebacks))
    assert {3, 55, 57, 40} <= {fix.pull for fix in found}


def test_fixes_about_the_day_of_the_log_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    frames = [(SCHEDULER, "schedule")]

    def nearest(**when: Any) -> set[int]:
        failure = TracedFailure("0.22.0", [frames], **when)
        return {fix.pull for fix in later_fixes("vllm", failure)}

    assert nearest() == {0, 1, 2, 3, 4}
    # 2026-06-22 is the day of fix 21. Beside it stand a wide and a weak one.
    assert nearest(day=date(2026, 6, 22)) == {18, 19, 21, 23, 24}
    assert nearest(month_day=(6, 22)) == {18, 19, 21, 23, 24}
    assert nearest(month_day=(2, 30)) == nearest()
    # Built from a tree that has what was done until then.
    assert nearest(built=date(2026, 6, 24)) == {21, 23, 24, 25, 26}


def test_without_a_release_the_day_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    frame = (SCHEDULER, "free")
    assert 3 in pulls("", frame)
    assert 3 in pulls("", frame, day=date(2026, 6, 17))
    # 0.23.0 was there by then, and has it.
    assert 3 not in pulls("", frame, day=date(2026, 6, 20))
    assert 3 in pulls("0.22.0", frame, day=date(2026, 6, 20))


def test_a_traceback_that_was_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    found = later_fixes_in(TRACEBACK)
    assert {3, 55} <= {fix.pull for fix in found}
    assert found[0].sentence.startswith("vllm#55 of 2026-07-26, in no release yet")
    assert later_fixes_in("KeyError: 'block'") == []
    # Environments are called like the engines that were tried in them.
    for other in ("sglang", "lmdeploy"):
        text = TRACEBACK.replace("/opt/lib", f"/opt/{other}/lib")
        assert {3, 55} <= {fix.pull for fix in later_fixes_in(text)}


@pytest.mark.parametrize(
    ("words", "later"),
    [
        ("vLLM Version                 : 0.23.0", False),
        ("vLLM Version: 0.22.1.dev7+g3b45714", True),
        ("pip install vllm==0.23.0", False),
        ("docker run vllm/vllm-openai:v0.23.0 --model m", False),
        ("[2026-06-24 12:00:01] INFO started", False),
        ("vLLM Version: 0.1.dev5239+g3b45714.d20260624", False),
        ("It is the newest one.", True),
    ],
)
def test_the_release_as_people_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, later: bool
) -> None:
    table(tmp_path, monkeypatch)
    found = {fix.pull for fix in later_fixes_in(f"{words}\n\n{TRACEBACK}")}
    assert (3 in found) == later


@pytest.mark.parametrize("prefix", ["  | [2026-05-20T20:13:34Z] ", "|| w3 # "])
def test_lines_with_a_prefix_of_no_known_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    table(tmp_path, monkeypatch)
    text = "".join(f"{prefix}{line}\n" for line in TRACEBACK.splitlines())
    assert {3, 55} <= {fix.pull for fix in later_fixes_in(text)}


def test_a_traceback_of_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path, monkeypatch)
    text = """\
KeyError                                  Traceback (most recent call last)
Cell In[13], line 43
---> 43 llm = LLM(model)
File /x/site-packages/vllm/v1/core/scheduler.py:21, in free(self, block)
     20 def free(self, block):
---> 21     raise KeyError("block")
KeyError: 'block'
"""
    assert {3, 55} <= {fix.pull for fix in later_fixes_in(text)}


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
