"""The dry run of workflows itself: what it does as GitHub does, and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from github_expressions import Unknown, evaluate, interpolated
from github_runner import Command
from nightly_steps import Night
from ruamel.yaml import YAML

CONTEXTS = {
    "github": {"run_id": "7"},
    "inputs": {"machines": "", "max-time": "45m"},
    "vars": {},
    "needs": {"plan": {"outputs": {"shards": "[1,2]"}}},
    "steps": {},
    "matrix": {},
    "functions": {
        "always": lambda: True,
        "fromJSON": lambda text: text.strip("[]").split(","),
    },
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("github.run_id", "7"),
        ("inputs.max-time", "45m"),
        (" inputs.machines || vars.MACHINES || '1' ", "1"),
        ("vars.NOBODY_SET_IT", ""),
        ("needs.plan.outputs.none", ""),
        ("fromJSON(needs.plan.outputs.shards)", ["1", "2"]),
        ("always()", True),
        ("github.run_id == '7'", True),
        ("inputs.max-time == '45M'", True),
        ("vars.NOBODY_SET_IT == 'yes'", False),
    ],
)
def test_expressions(expression: str, value: Any) -> None:
    assert evaluate(expression, CONTEXTS) == value
    assert interpolated(f"${{{{ {expression} }}}}", CONTEXTS) == value


@pytest.mark.parametrize(
    "expression",
    [
        "github.actor",
        "secrets.TOKEN",
        "needs.gpu.outputs.x",
        "failure()",
        "toJSON(github.run_id)",
        "github.run_id != '7'",
        "!always()",
        "inputs.machines && '1'",
        "github",
        "",
    ],
)
def test_what_it_does_not_know_it_refuses(expression: str) -> None:
    with pytest.raises(Unknown):
        evaluate(expression, CONTEXTS)


def job(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"runs-on": "here", "timeout-minutes": 1, "steps": list(steps), **more}


def run(folder: Path, jobs: dict[str, Any], **more: Any) -> Night:
    workflow = folder / "workflow.yml"
    with workflow.open("w") as file:
        YAML().dump({"defaults": {"run": {"shell": "bash"}}, "jobs": jobs}, file)
    night = Night(
        workflow, folder / "origin", folder / "run", github={"run_attempt": "1"}, **more
    )
    night.run()
    return night


def uses(action: str, **given: Any) -> dict[str, Any]:
    return {"uses": f"actions/{action}@0", "with": given}


def test_the_shell_stops_as_github_s_does(tmp_path: Path) -> None:
    night = run(
        tmp_path,
        {
            "a": job(
                {"name": "pipe", "run": "false | true\necho not reached"},
                {"name": "after", "run": "echo no"},
                {"name": "always", "if": "always()", "run": "echo yes"},
            ),
            "b": job({"run": "true"}, needs="a"),
            "c": job({"run": "true"}, needs=["a", "b"], **{"if": "always()"}),
        },
    )
    (a,) = night.jobs["a"]
    assert [(s.name, s.code, s.output) for s in a.steps] == [
        ("pipe", 1, ""),
        ("always", 0, "yes\n"),
    ]
    assert [night.result(name) for name in "abc"] == ["failure", "skipped", "success"]


def test_files_outputs_and_the_matrix(tmp_path: Path) -> None:
    write = {
        "id": "w",
        "run": 'echo "all=[1,2]" >> "$GITHUB_OUTPUT"; echo A=b >> "$GITHUB_ENV"',
    }
    bin_ = {
        "run": (
            'mkdir x; echo "$PWD/x" >> "$GITHUB_PATH"; echo sum >> '
            '"$GITHUB_STEP_SUMMARY"'
        )
    }
    read = {
        "env": {"C": "${{ steps.w.outputs.all }}"},
        "run": 'echo "$A $C ${PATH%%:*}"',
    }
    first = job(write, bin_, read, outputs={"all": "${{ steps.w.outputs.all }}"})
    say = {
        "name": "say",
        "env": {"N": "${{ matrix.n }}"},
        "run": 'echo "::error title=t::$N"',
    }
    axes = {"fail-fast": False, "matrix": {"n": "${{ fromJSON(needs.a.outputs.all) }}"}}
    second = job(say, needs="a", name="b (${{ matrix.n }})", strategy=axes)
    night = run(tmp_path, {"a": first, "b": second})
    (a,) = night.jobs["a"]
    assert a.steps[-1].output == f"b [1,2] {tmp_path}/run/attempt-1/a/workspace/x\n"
    assert a.summary == "sum\n"
    assert [(j.name, j.annotations) for j in night.jobs["b"]] == [
        (f"b ({n})", [Command("error", {"title": "t"}, str(n))]) for n in (1, 2)
    ]


@pytest.mark.parametrize(("count", "where"), [(1, "into/f"), (2, "into/made-1/f")])
def test_one_artifact_is_extracted_without_its_name(
    tmp_path: Path, count: int, where: str
) -> None:
    """As actions/download-artifact v8 does: a trap for a night on one machine."""
    made = [
        job(
            {"run": "mkdir out; touch out/f out/.hidden"},
            uses("upload-artifact", name=f"made-{n}", path="out"),
        )
        for n in range(1, count + 1)
    ]
    jobs = {f"make{n}": one for n, one in enumerate(made)}
    take = job(
        uses("download-artifact", pattern="made-*", path="into"), needs=list(jobs)
    )
    night = run(tmp_path, {**jobs, "take": take})
    workspace = tmp_path / "run/attempt-1/take/workspace"
    assert night.result("take") == "success"
    assert (workspace / where).exists()
    assert not list(workspace.rglob(".hidden"))


def test_a_checkout_an_artifact_that_is_not_there_and_a_runner_that_is_gone(
    tmp_path: Path,
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "origin")], check=True)
    someone = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(
        ["git", *someone, "commit", "--quiet", "--allow-empty", "-m", "a"],
        cwd=tmp_path / "origin",
        check=True,
    )
    none = uses("download-artifact", name="none", path="x")
    night = run(
        tmp_path,
        {
            "a": job(
                uses("checkout"),
                {**none, "continue-on-error": True},
                {"run": "git log -1"},
            ),
            "b": job(none),
            "c": job({"run": "true"}),
        },
        gone=frozenset("c"),
    )
    assert [night.result(name) for name in "abc"] == ["success", "failure", "failure"]


@pytest.mark.parametrize(
    "jobs",
    [
        {"a": job({"run": "echo ${{ github.sha }}"})},
        {"a": job(uses("cache", path="x"))},
        {"a": job({"run": "true", "shell": "python"})},
        {"a": job({"run": "true"}, services={})},
        {"a": job({"run": 'echo no-pair >> "$GITHUB_OUTPUT"', "id": "x"})},
        {"a": job({"run": "true"}, needs="b"), "b": job({"run": "true"}, needs="a")},
    ],
)
def test_what_a_workflow_may_not_have_here(
    tmp_path: Path, jobs: dict[str, Any]
) -> None:
    with pytest.raises(Unknown):
        run(tmp_path, jobs)


def test_a_step_that_takes_too_long(tmp_path: Path) -> None:
    slow = {**job({"run": "sleep 60"}), "timeout-minutes": 0.005}
    night = run(tmp_path, {"a": slow})
    assert (night.result("a"), night.jobs["a"][0].steps[0].code) == ("failure", 124)


def test_what_failed_is_run_again_with_all_that_needs_it(tmp_path: Path) -> None:
    fine = tmp_path / "fine"
    strategy = {"fail-fast": False, "matrix": {"n": ["1", "2"]}}
    once = 'echo "$GITHUB_RUN_ATTEMPT"; [ "$N" = 1 ] || [ -e "$FINE" ]'
    env = {"N": "${{ matrix.n }}", "FINE": str(fine)}
    say = job({"run": 'echo "$GITHUB_RUN_ATTEMPT"'})
    jobs = {
        "a": say,
        "b": job(
            {"run": once},
            needs="a",
            name="b ${{ matrix.n }}",
            strategy=strategy,
            env=env,
        ),
        "c": {**say, "needs": "b", "if": "always()"},
    }
    night = run(tmp_path, jobs)
    assert [night.result(name) for name in "abc"] == ["success", "failure", "success"]
    fine.touch()
    night.again()
    told = {
        j.name: j.steps[0].output for several in night.jobs.values() for j in several
    }
    assert told == {"a": "1\n", "b 1": "1\n", "b 2": "2\n", "c": "2\n"}
    assert night.result("b") == "success"
