"""The nightly's workflows, step by step, on this machine; nightly_steps.py says what is emulated.

Real are mmrepro, git with a bare repository as origin, and minivllm. A fake is `gh` alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mmrepro.history.ledger import read
from mmrepro.incident.ledger import NightState
from mmrepro.machine.cache import cache_root
from nightly_steps import JobResult, Night

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github/workflows"
BRANCH = "mmrepro-history"
IMAGE = "registry.example/mmrepro@sha256:" + "0" * 64
"""Of the form that the plan wants; the steps run on this machine."""
NIGHT = """
[matrix]
device = "cpu"
every = "24h"
confirm = 2

[[cell]]
scenario = "borrowed-faults:ghost-key-lru"
"""
FIT, RUN, MERGE, TELL, ALERT = (
    "Is this machine fit?",
    "Run its part of the night",
    "Merge what the machines delivered",
    "Tell the night",
    "Open, update and close issues",
)


def git(*words: str, at: Path) -> str:
    someone = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    done = subprocess.run(
        ["git", *someone, *words], cwd=at, check=True, capture_output=True, text=True
    )
    return done.stdout


class Repository:
    """This checkout's files in a bare repository, with a night for tests; its runs, its issues."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.origin = folder, folder / "origin.git"
        self.issues_file = folder / "gh.json"
        source = folder / "source"
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", at=ROOT)
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, source / name)
        (source / "night.toml").write_text(NIGHT)
        git("init", "--quiet", "--initial-branch=main", ".", at=source)
        git("add", "--all", "--force", at=source)
        git("commit", "--quiet", "-m", "all of it", at=source)
        git("clone", "--quiet", "--bare", str(source), str(self.origin), at=folder)
        (folder / "bin").mkdir()
        (folder / "bin" / "gh").symlink_to(ROOT / "tests/engine/fake_gh.py")
        self.runs = 0

    def run(
        self,
        workflow: str,
        machines: int = 2,
        broken: Mapping[str, Mapping[str, str]] | None = None,
        **more: Any,
    ) -> dict[str, list[JobResult]]:
        """``broken``: variables of some machines, by their job."""
        self.runs += 1
        tools = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        image = {
            "PATH": tools,
            "FAKE_GH": str(self.issues_file),
            "MMREPRO_CACHE_DIR": str(cache_root()),
        }
        night = Night(
            WORKFLOWS / workflow,
            self.origin,
            self.folder / f"run-{self.runs}",
            github={
                "token": "no-token",
                "repository": "somebody/mmrepro",
                "run_id": str(1000 + self.runs),
                "run_number": str(self.runs),
                "run_attempt": "1",
                "server_url": "https://github.com",
            },
            inputs={"machines": str(machines), "max-time": "10m"},
            variables={
                "MMREPRO_IMAGE": IMAGE,
                "MMREPRO_NIGHT": "night.toml",
                "MMREPRO_NEED": "cpu",
            },
            machine=lambda job: {**image, **(broken or {}).get(job, {})},
            without=frozenset({"Install mmrepro"}),
            **more,
        )
        return night.run()

    @property
    def issues(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.issues_file.read_text())["issues"]
        return found

    def history(self) -> Path:
        """A checkout of the history's branch, that can be changed and pushed."""
        folder = self.folder / f"history-{self.runs}"
        if not folder.exists():
            git("clone", "--quiet", "--branch", BRANCH, str(self.origin), str(folder),
                at=self.folder)  # fmt: skip
        return folder

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Each record of the history's ledger."""
        folder = self.history()
        records = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        for record in records:
            change(record)
        (folder / "ledger.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
        git("commit", "--quiet", "--all", "-m", "edited by a test", at=folder)
        git("push", "--quiet", at=folder)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("nightly"))


def told(jobs: Mapping[str, list[JobResult]]) -> str:
    """For a failed assertion: every step, and what it said."""
    lines = []
    for job in (one for several in jobs.values() for one in several):
        lines.append(f"== {job.name}: {job.result}")
        for step in job.steps:
            lines.append(
                f"-- {step.name}: {step.code}, {step.seconds:.0f} s\n{step.output[-2000:]}"
            )
    return "\n".join(lines)


def results(jobs: Mapping[str, list[JobResult]]) -> dict[str, str]:
    return {one.name: one.result for several in jobs.values() for one in several}


def shard_with_cells(jobs: Mapping[str, list[JobResult]]) -> JobResult:
    (found,) = [job for job in jobs["gpu"] if "reproduced" in job.step(RUN).output]
    return found


def test_three_nights(repository: Repository) -> None:
    # The first one: as expected.
    jobs = repository.run("nightly-gpu.yml")
    assert set(results(jobs).values()) == {"success"}, told(jobs)
    (report,) = jobs["report"]
    assert "1 reproduced" in report.summary, told(jobs)
    assert report.annotations == []
    history = read(repository.history())
    (night,) = history.nights
    assert night.night.state is NightState.COMPLETE
    assert night.night.shard == ""
    assert [a.outcome for a in night.attempts] == ["reproduced"]
    assert repository.issues == []

    # What it found of one cell is made something else, of another mmrepro: now there is a drift.
    def another(record: dict[str, Any]) -> None:
        if record["kind"] == "attempt":
            record["outcome"] = "not-reproduced"
            record["parts"]["mmrepro"] = record["key"] = "0" * 16

    repository.edit(another)
    jobs = repository.run("nightly-gpu.yml")
    assert results(jobs)["report"] == "failure", told(jobs)
    shard = shard_with_cells(jobs)
    assert shard.result == "success"  # the machine did its work
    (report,) = jobs["report"]
    assert [step.code for step in report.steps if step.code] == [1]  # the verdict
    ((level, _, text),) = report.step(TELL).annotations
    assert level == "error"
    assert "ghost-key-lru" in text
    artifact = repository.folder / f"run-{repository.runs}" / "artifacts"
    (bundle,) = artifact.glob("shard-*/shard-*/surprises/*.zip")
    assert "ghost-key-lru" in bundle.name
    ((issue),) = repository.issues
    assert issue["state"] == "OPEN"
    assert "ghost-key-lru" in issue["title"]
    assert jobs["alert"][0].result == "success"

    # As before: it is over.
    jobs = repository.run("nightly-gpu.yml")
    assert set(results(jobs).values()) == {"success"}, told(jobs)
    ((issue),) = repository.issues
    assert issue["state"] == "CLOSED"
    assert len(read(repository.history()).nights) == 3


def test_a_machine_that_is_not_fit(repository: Repository) -> None:
    """The one with the cells: the other's part is soon done."""
    nowhere = {"MMREPRO_CACHE_DIR": "/proc/nowhere"}
    jobs = repository.run("nightly-gpu.yml", broken={"gpu (1)": nowhere, "gpu (2)": {}})
    first, second = jobs["gpu"]
    assert (first.result, first.step(FIT).code) == ("failure", 4), told(jobs)
    assert any(title == "title=Infrastructure" for _, title, _ in first.annotations)
    assert second.result == "success", told(jobs)
    (report,) = jobs["report"]
    assert report.result == "failure"
    assert "Machine 1 of 2 delivered nothing: mmrepro check ended with 4." in report.summary
    assert [level for level, _, _ in report.step(MERGE).annotations] == ["error"]


def test_nothing_is_delivered(repository: Repository) -> None:
    jobs = repository.run("nightly-gpu.yml", gone=frozenset({"gpu (1)", "gpu (2)"}))
    (report,) = jobs["report"]
    assert report.step(MERGE).code == 4, told(jobs)
    assert report.outputs == {"delivered": "0"}
    assert "Machine 2 of 2 delivered nothing, not even why." in report.summary
    (alert,) = jobs["alert"]
    assert alert.result == "success", told(jobs)
    assert [i["state"] for i in repository.issues if "night missing" in i["title"]] == ["OPEN"]
