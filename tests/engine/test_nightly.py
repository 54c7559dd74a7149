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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mmrepro
import pytest
from made_nights import cell, night
from mmrepro.history.ledger import Ledger, read
from mmrepro.incident.ledger import NightState
from mmrepro.machine.cache import cache_root
from mmrepro.records import Moment
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
        shutil.copy(ROOT / "tests/unit/nightly/fake_gh.py", folder / "bin" / "gh")
        (folder / "bin" / "gh").chmod(0o755)
        self.runs = 0

    def run(
        self,
        workflow: str,
        broken: Mapping[str, Mapping[str, str]] | None = None,
        installed: Path | None = Path(sys.executable).parent,
        by_hand: Mapping[str, str] | None = None,
        **more: Any,
    ) -> dict[str, list[JobResult]]:
        """``broken``: variables of some machines, by their job. ``installed``: where mmrepro is;
        None: the workflow installs it, with all that this machine needs to reach its index.
        ``by_hand``: the form's inputs; None: it is the schedule."""
        self.runs += 1
        path = [self.folder / "bin", installed, os.environ["PATH"]]
        image = {
            **(os.environ if installed is None else {}),
            "PATH": ":".join(str(one) for one in path if one is not None),
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
                "event_name": "schedule" if by_hand is None else "workflow_dispatch",
                "server_url": "https://github.com",
            },
            inputs=by_hand or {},
            variables={
                "MMREPRO_IMAGE": IMAGE,
                "MMREPRO_NIGHT": "night.toml",
                "MMREPRO_NEED": "cpu",
                "MMREPRO_MACHINES": "2",
            },
            machine=lambda job: {**image, **(broken or {}).get(job, {})},
            without=frozenset({"Install mmrepro"} if installed is not None else ()),
            **more,
        )
        return night.run()

    @property
    def issues(self) -> list[dict[str, Any]]:
        if not self.issues_file.exists():
            return []
        found: list[dict[str, Any]] = json.loads(self.issues_file.read_text())["issues"]
        return found

    def missing(self) -> list[str]:
        """The state of the newest issue about a night."""
        return [i["state"] for i in self.issues if "night missing" in i["title"]][-1:]

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


@pytest.fixture
def lately(tmp_path: Path) -> Repository:
    """One with a night of an hour ago, made up: nothing is late."""
    new = Repository(tmp_path)
    made = night(1, {cell(): "r"})
    folder = tmp_path / "made"
    git("init", "--quiet", f"--initial-branch={BRANCH}", str(folder), at=tmp_path)
    with Ledger(folder) as ledger:
        wall = datetime.now(UTC) - timedelta(hours=1)
        ledger.append(made.night.model_copy(update={"created": Moment(wall=wall, mono=0.0)}))
        for record in (*made.planned.values(), *made.attempts):
            ledger.append(record)
    git("add", "ledger.jsonl", at=folder)
    git("commit", "--quiet", "-m", "a night", at=folder)
    git("push", "--quiet", str(new.origin), BRANCH, at=folder)
    return new


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

    # Two days in which there is none.
    jobs = repository.run("nightly-overdue.yml")
    assert results(jobs) == {"overdue": "success"}, told(jobs)

    def earlier(record: dict[str, Any]) -> None:
        for moment in filter(None, (record.get("created"), record.get("finished"))):
            began = datetime.fromisoformat(moment["wall"]) - timedelta(days=2)
            moment["wall"] = began.isoformat()

    repository.edit(earlier)
    jobs = repository.run("nightly-overdue.yml")
    assert results(jobs) == {"overdue": "failure"}, told(jobs)
    assert repository.missing() == ["OPEN"]


def test_no_night_was_ever_begun(tmp_path: Path) -> None:
    """Here mmrepro is installed as the workflow does it."""
    new = Repository(tmp_path)
    jobs = new.run("nightly-overdue.yml", installed=None)
    (overdue,) = jobs["overdue"]
    assert [(s.name, s.code) for s in overdue.steps if s.code] == [("Did a night end in time?", 1)]
    assert overdue.step("Install mmrepro").output.endswith(f"mmrepro {mmrepro.__version__}\n")
    assert [i["title"] for i in new.issues] == ["night missing: none since the beginning"]


def test_a_machine_that_is_not_fit(repository: Repository) -> None:
    """The one with the cells: the other one's part is soon done."""
    nowhere = {"MMREPRO_CACHE_DIR": "/proc/nowhere"}
    jobs = repository.run("nightly-gpu.yml", broken={"gpu (2)": nowhere})
    first, second = jobs["gpu"]
    assert first.result == "success", told(jobs)
    assert (second.result, second.step(FIT).code) == ("failure", 4), told(jobs)
    assert [title for _, title, _ in second.annotations] == ["title=Infrastructure"]
    (report,) = jobs["report"]
    assert report.result == "failure"
    assert "Machine 2 of 2 delivered nothing: mmrepro check ended with 4." in report.summary
    assert [level for level, _, _ in report.step(MERGE).annotations] == ["error"]


def test_nothing_is_delivered(lately: Repository) -> None:
    jobs = lately.run("nightly-gpu.yml", gone=frozenset({"gpu (1)", "gpu (2)"}))
    (report,) = jobs["report"]
    assert report.step(MERGE).code == 4, told(jobs)
    assert report.outputs == {"delivered": "0"}
    assert "Machine 2 of 2 delivered nothing, not even why." in report.summary
    (alert,) = jobs["alert"]
    assert alert.result == "success", told(jobs)
    assert lately.missing() == ["OPEN"]


def test_a_wrong_input(lately: Repository) -> None:
    jobs = lately.run("nightly-gpu.yml", by_hand={"machines": "$(touch here)"})
    assert results(jobs) == {
        "plan": "failure", "gpu": "skipped", "report": "failure", "alert": "success",
    }, told(jobs)  # fmt: skip
    assert jobs["plan"][0].step("Plan the night").code == 2
    assert not list(lately.folder.rglob("here"))
    assert lately.issues == []  # a person has seen it
