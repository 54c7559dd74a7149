"""What .ci/nightly/lint.sh holds the workflows and examples to: each check is shown one
fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grids import grid
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
NIGHTLY = ".github/workflows/nightly-gpu.yml"
OVERDUE = ".github/workflows/nightly-overdue.yml"
GITLAB, BUILDKITE = "docs/ci/gitlab-ci.yml", "docs/ci/buildkite.yml"
ANSWER = ".ci/issue/answer/action.yml"
WORKFLOWS = (NIGHTLY, OVERDUE)


def copied(place: Path) -> Path:
    """What lint.sh looks at, where it can be changed."""
    for folder in (".ci", ".github", "docs/ci"):
        shutil.copytree(ROOT / folder, place / folder)
    shutil.copy(ROOT / "action.yml", place)
    subprocess.run(["git", "init", "--quiet"], cwd=place, check=True)
    return place


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copied(tmp_path)


def lint(checkout: Path, tools: Path = Path(sys.executable).parent) -> tuple[int, str]:
    subprocess.run(["git", "add", "--all"], cwd=checkout, check=True)
    done = subprocess.run(
        [str(ROOT / ".ci/nightly/lint.sh"), str(checkout)],
        env={
            **os.environ,
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What lint.sh prints of the files as they are, which pass."""
    code, output = lint(copied(tmp_path_factory.mktemp("sound")))
    assert code == 0, output
    return output


FAULTS = [
    # an action by its tag
    (
        NIGHTLY,
        "@3d3c42e5aac5ba805825da76410c181273ba90b1",
        "@v7",
        "error[unpinned-uses]",
    ),
    # an input inside of a script
    (
        NIGHTLY,
        'machine.sh check "$SHARD"',
        "machine.sh check ${{ inputs.scenario }}",
        "[template-injection]",
    ),
    # all rights
    (NIGHTLY, "permissions: {}", "permissions: write-all", "[excessive-permissions]"),
    # credentials that stay in the checkout
    (OVERDUE, "persist-credentials: false", "fetch-depth: 1", "[artipacked]"),
    # an image that nobody pins
    (NIGHTLY, "# zizmor: ignore[unpinned-images]", "#", "[unpinned-images]"),
    # a misspelt key of GitHub's, and of GitLab's
    (
        NIGHTLY,
        "    timeout-minutes: 15",
        "    timeout-minute: 15",
        "'timeout-minute' was ",
    ),
    (GITLAB, "  parallel:", "  paralel:", "'paralel'"),
    # a job without a limit
    (
        OVERDUE,
        "    timeout-minutes: 15\n",
        "",
        "'timeout-minutes' is a required property",
    ),
    # a word for a number
    (BUILDKITE, "parallelism: 2", "parallelism: two", "'two'"),
    # a misspelt key of an action, and an input inside of its script
    ("action.yml", "  using: composite", "  usin: composite", "'usin'"),
    ("action.yml", "[[ $RELEASE =~", "[[ ${{ inputs.release }} =~", "action.yml:"),
    (ANSWER, "  using: composite", "  usin: composite", "answer/action.yml"),
    # an unquoted variable in a step, in GitLab's script, in Buildkite's command, in a
    # script
    (
        NIGHTLY,
        'machine.sh run "$SHARD"',
        "machine.sh run $SHARD",
        "machine.sh run $SHARD",
    ),
    (
        GITLAB,
        'machine.sh check "$SHARD"',
        "machine.sh check $SHARD",
        "machine.sh check $SHARD",
    ),
    (BUILDKITE, '"$$PWD/.installed"', "$$PWD/.installed", "$PWD/.installed"),
    (".ci/nightly/plan.sh", 'echo "$night" >', "echo $night >", "echo $night >"),
]


ONE_BY_ONE = [pytest.param([fault], marks=pytest.mark.nightly) for fault in FAULTS]


@pytest.mark.parametrize("faults", [FAULTS, *ONE_BY_ONE])
def test_each_fault_is_seen(
    checkout: Path, sound: str, faults: list[tuple[str, ...]]
) -> None:
    for file, old, new, _ in faults:
        path = checkout / file
        whole = path.read_text()
        assert old in whole
        path.write_text(whole.replace(old, new))
    code, output = lint(checkout)
    assert code == 1
    assert output.count("SC2086") >= sum("$" in told for *_, told in faults)
    for *_, told in faults:
        assert told in output
        assert told not in sound


TOOLS = ("zizmor", "check-jsonschema", "shellcheck")
CALLS = [
    *((one, 1) for one in TOOLS),
    ("zizmor", 2),
    *(("check-jsonschema", n) for n in range(2, 8)),
]


@pytest.mark.parametrize(
    ("tool", "call"),
    grid(CALLS, always=[("zizmor", 2), ("check-jsonschema", 7), ("shellcheck", 1)]),
)
def test_what_one_check_finds_fails_the_whole(
    checkout: Path, tool: str, call: int
) -> None:
    """Tools of which nothing but one call of one finds something; all others are called
    still."""
    tools = checkout / "tools"
    tools.mkdir()
    for name in TOOLS:
        calls = tools / f"{name}.calls"
        fails = f'[ "$(wc -l <{calls})" = {call} ] && exit 1' if name == tool else ""
        (tools / name).write_text(f"#!/bin/sh\necho x >>{calls}\n{fails}\nexit 0\n")
        (tools / name).chmod(0o755)
    assert lint(checkout, tools)[0] == 1
    calls = [len((tools / f"{name}.calls").read_text().splitlines()) for name in TOOLS]
    assert calls == [2, 7, 1]


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
    expected = {
        NIGHTLY: {"report: contents", "alert: issues"},
        OVERDUE: {"overdue: issues"},
    }
    assert writes == expected[file]
