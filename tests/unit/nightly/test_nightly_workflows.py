"""What .ci/nightly/lint.sh holds the workflows and examples to: each check is shown one fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
NIGHTLY = ".github/workflows/nightly-gpu.yml"
OVERDUE = ".github/workflows/nightly-overdue.yml"
GITLAB, BUILDKITE = "docs/ci/gitlab-ci.yml", "docs/ci/buildkite.yml"
WORKFLOWS = (NIGHTLY, OVERDUE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What lint.sh looks at, where it can be changed."""
    for folder in (".ci", ".github", "docs/ci"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def lint(checkout: Path) -> tuple[int, str]:
    subprocess.run(["git", "add", "--all"], cwd=checkout, check=True)
    done = subprocess.run(
        [str(ROOT / ".ci/nightly/lint.sh"), str(checkout)],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_what_is_there_passes(checkout: Path) -> None:
    code, told = lint(checkout)
    assert code == 0, told


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        pytest.param(
            NIGHTLY, "@3d3c42e5aac5ba805825da76410c181273ba90b1", "@v7",
            "unpinned-uses", id="an action by its tag",
        ),
        pytest.param(
            NIGHTLY, 'machine.sh check "$SHARD"', "machine.sh check ${{ inputs.scenario }}",
            "template-injection", id="an input inside of a script",
        ),
        pytest.param(
            NIGHTLY, "permissions: {}", "permissions: write-all",
            "excessive-permissions", id="all rights",
        ),
        pytest.param(
            OVERDUE, "persist-credentials: false", "fetch-depth: 1",
            "artipacked", id="credentials that stay in the checkout",
        ),
        pytest.param(
            NIGHTLY, "# zizmor: ignore[unpinned-images]", "#",
            "unpinned-images", id="an image that nobody pins",
        ),
        pytest.param(
            NIGHTLY, "    timeout-minutes: 15", "    timeout-minute: 15",
            "timeout-minute", id="a misspelt key of GitHub's",
        ),
        pytest.param(
            OVERDUE, "    timeout-minutes: 15\n", "",
            "'timeout-minutes' is a required property", id="a job without a limit",
        ),
        pytest.param(
            GITLAB, "  parallel:", "  paralel:", "paralel", id="a misspelt key of GitLab's",
        ),
        pytest.param(
            BUILDKITE, "parallelism: 2", "parallelism: two", "'two'", id="a word for a number",
        ),
        pytest.param(
            NIGHTLY, 'machine.sh run "$SHARD"', "machine.sh run $SHARD",
            "SC2086", id="an unquoted variable in a step",
        ),
        pytest.param(
            GITLAB, 'machine.sh check "$SHARD"', "machine.sh check $SHARD",
            "SC2086", id="an unquoted variable in GitLab's script",
        ),
        pytest.param(
            BUILDKITE, '"$$PWD/.installed"', "$$PWD/.installed",
            "SC2086", id="an unquoted variable in Buildkite's command",
        ),
        pytest.param(
            ".ci/nightly/plan.sh", 'echo "$night" >', "echo $night >",
            "SC2086", id="an unquoted variable in a script",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_seen(checkout: Path, file: str, old: str, new: str, told: str) -> None:
    path = checkout / file
    whole = path.read_text()
    assert old in whole
    path.write_text(whole.replace(old, new))
    code, output = lint(checkout)
    assert code == 1
    assert told in output


@pytest.mark.parametrize("file", WORKFLOWS)
def test_workflows_start_by_the_clock_or_by_hand_and_may_little(file: str) -> None:
    workflow = YAML(typ="safe").load(ROOT / file)
    assert set(workflow["on"]) == {"schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["cancel-in-progress"] is False
    writes = {
        f"{job}: {right}"
        for job, definition in workflow["jobs"].items()
        for right, how in definition["permissions"].items()
        if how != "read"
    }
    expected = {NIGHTLY: {"report: contents", "alert: issues"}, OVERDUE: {"overdue: issues"}}
    assert writes == expected[file]
