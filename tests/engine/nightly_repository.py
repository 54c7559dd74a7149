"""A repository for tests of the nightly: this checkout's files, a bare origin, runs,
issues."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmrepro.base.machine.files import cache_root
from nightly_steps import JobResult, Night

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


def git(*words: str, at: Path) -> str:
    someone = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    done = subprocess.run(
        ["git", *someone, *words], cwd=at, check=True, capture_output=True, text=True
    )
    return done.stdout


class Repository:
    """This checkout's files in a bare repository, with a night for tests; its runs, its
    issues."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.origin = folder, folder / "origin.git"
        self.issues_file = folder / "gh.json"
        source = folder / "source"
        listed = git(
            "ls-files", "-z", "--cached", "--others", "--exclude-standard", at=ROOT
        )
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
        """``broken``: variables of some machines, by their job. ``installed``: where
        mmrepro is;
        None: the workflow installs it, with all that this machine needs to reach its
            index.
        ``by_hand``: the form's inputs; None: it is the schedule."""
        self.runs += 1
        image = self.machine(installed)
        self.night = Night(
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
        return self.night.run()

    def machine(
        self, installed: Path | None = Path(sys.executable).parent
    ) -> dict[str, str]:
        """The variables of one."""
        path = [self.folder / "bin", installed, os.environ["PATH"]]
        return {
            **(os.environ if installed is None else {}),
            "PATH": ":".join(str(one) for one in path if one is not None),
            "FAKE_GH": str(self.issues_file),
            "MMREPRO_CACHE_DIR": str(cache_root()),
        }

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
        newest = git("rev-parse", BRANCH, at=self.origin).strip()
        folder = self.folder / f"history-{newest}"
        if not folder.exists():
            git(
                "clone",
                "--quiet",
                "--branch",
                BRANCH,
                str(self.origin),
                str(folder),
                at=self.folder,
            )
        return folder

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Each record of the history's ledger."""
        folder = self.history()
        records = [
            json.loads(line)
            for line in (folder / "ledger.jsonl").read_text().splitlines()
        ]
        for record in records:
            change(record)
        (folder / "ledger.jsonl").write_text(
            "".join(f"{json.dumps(r)}\n" for r in records)
        )
        git("commit", "--quiet", "--all", "-m", "edited by a test", at=folder)
        git("push", "--quiet", at=folder)


def told(jobs: Mapping[str, list[JobResult]]) -> str:
    """For a failed assertion: every step, and what it said."""
    lines = []
    for job in (one for several in jobs.values() for one in several):
        lines.append(f"== {job.name}: {job.result}")
        for step in job.steps:
            lines.append(
                f"-- {step.name}: {step.code}, {step.seconds:.0f} s\n"
                f"{step.output[-2000:]}"
            )
    return "\n".join(lines)
