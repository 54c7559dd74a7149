"""The nightly on GitLab and Buildkite: the examples' own commands, one job after
another.

One of two machines never answers, and the other one's part is empty: so all commands
are run, and no engine. Artifacts are emulated by copying, what installs mmrepro is left
out, and a fake is `buildkite-agent`, which only remembers its calls."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mmrepro.history.ledger import read
from nightly_repository import BRANCH, ROOT, Repository, git
from nightly_steps import load

pytestmark = pytest.mark.engine


class Pipeline:
    """Jobs in clones of their own."""

    def __init__(self, folder: Path) -> None:
        self.repository = Repository(folder)
        self.kept = folder / "artifacts"
        self.kept.mkdir()

    def job(
        self, name: str, script: str, variables: Mapping[str, str], after: str = ""
    ) -> int:
        folder = self.repository.folder / name
        git(
            "clone",
            "--quiet",
            "--depth=1",
            f"file://{self.repository.origin}",
            str(folder),
            at=self.repository.folder,
        )
        shutil.copytree(self.kept, folder, dirs_exist_ok=True)
        lines = [line for line in script.splitlines() if ".installed" not in line]
        known = {
            **self.repository.machine(),
            **variables,
            "HOME": str(folder),
            "NIGHT_FILE": "night.toml",
            "NEED": "cpu",
        }
        for part in filter(None, ["\n".join(lines), after]):
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", part],
                cwd=folder,
                env=known,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=300,
                check=False,
            )
            print(f"== {name}: {done.returncode}\n{done.stdout}")
            if part is not after:
                code = done.returncode
        for made in ("plan", "delivered"):
            if (folder / made).is_dir():
                shutil.copytree(folder / made, self.kept / made, dirs_exist_ok=True)
        return code

    def check(self, verdict: int) -> None:
        report = self.repository.folder / "report"
        assert verdict == 4  # a machine is missing
        summary = (report / "summary.md").read_text()
        assert "Machine 2 of 2 delivered nothing, not even why." in summary
        (night,) = read(self.repository.history()).nights
        assert night.night.shard == "1/2"
        assert night.night.id in summary


def variables_of(*parts: Mapping[str, Any]) -> dict[str, str]:
    return {
        k: v.replace("$$", "$")
        for part in parts
        for k, v in part.get("variables", {}).items()
    }


@pytest.mark.slow
def test_gitlab(tmp_path: Path) -> None:
    document = load(ROOT / "docs/ci/gitlab-ci.yml")
    hosted, pipeline = document[".hosted"], Pipeline(tmp_path)
    given = {
        "CI_PIPELINE_IID": "7",
        "MMREPRO_IMAGE": "registry.example/mmrepro@sha256:" + "0" * 64,
        "CI_PROJECT_DIR": str(tmp_path),
    }
    codes = {}
    for name, more in (("plan", {}), ("gpu", {"SHARD": "1"}), ("report", {})):
        job = document[name]
        parents = (
            [job["extends"]] if isinstance(job["extends"], str) else job["extends"]
        )
        known = variables_of(document, *([hosted] if ".hosted" in parents else []), job)
        # In the place of the project's address.
        known["HISTORY_REMOTE"] = f"file://{pipeline.repository.origin}"
        codes[name] = pipeline.job(
            name,
            "\n".join(job["script"]),
            {**known, **given, **more},
            "\n".join(job.get("after_script", [])),
        )
    assert (codes["plan"], codes["gpu"]) == (0, 0)
    pipeline.check(codes["report"])
    assert git(
        "log", "-1", "--format=%s", BRANCH, at=pipeline.repository.origin
    ).endswith("-7\n")


@pytest.mark.slow
def test_buildkite(tmp_path: Path) -> None:
    document, pipeline = load(ROOT / "docs/ci/buildkite.yml"), Pipeline(tmp_path)
    calls = tmp_path / "calls"
    agent = pipeline.repository.folder / "bin" / "buildkite-agent"
    agent.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ "$1" != annotate ] || cat >> {calls}\n'
    )
    agent.chmod(0o755)
    codes = {}
    for step in document["steps"]:
        known = {
            **document["env"],
            "BUILDKITE_BUILD_NUMBER": "7",
            "BUILDKITE_PARALLEL_JOB": "0",
        }
        script = "\n".join(step["command"]).replace("$$", "$")
        codes[step["key"]] = pipeline.job(step["key"], script, known)
    assert (codes["plan"], codes["gpu"]) == (0, 0)
    pipeline.check(codes["report"])
    told = calls.read_text()
    assert "artifact download delivered/**/* ." in told
    assert "annotate --style info --context night\n> **Machine 2 of 2" in told
