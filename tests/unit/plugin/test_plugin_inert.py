"""Where nothing of mmrepro is named, pytest is as it is without the plugin; and beside
others."""

import re
from itertools import groupby
from pathlib import Path

import plugin_fakes
import pytest
from grids import grid
from plugin_fakes import Faked

SOURCE = """
import warnings
import pytest

def test_pass(tmp_path): pass
def test_fail(): assert 0
def test_warns(): warnings.warn("so")
@pytest.mark.xfail
def test_xfail(): assert 0
@pytest.mark.parametrize("one", [1, 2])
def test_many(one): pass
"""
DURATION = re.compile(r"\d+\.\d\ds")


def outlines(result: pytest.RunResult) -> list[str]:
    """Without the list of plugins, and times."""
    return [
        DURATION.sub("", line)
        for line in result.outlines
        if not line.startswith("plugins:")
    ]


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--setup-show"],
        ["--collect-only"],
        pytest.param(["-n2"], marks=pytest.mark.nightly),
    ],
)
def test_inert(pytester: pytest.Pytester, more: list[str]) -> None:
    pytester.makepyfile(SOURCE)
    Path("nightly.mmrepro.toml").write_text("not even TOML")
    arguments = ("-p", "no:cacheprovider", "-rA", "--strict-markers", *more)
    run = (
        pytester.runpytest_subprocess if "-n2" in more else pytester.runpytest_inprocess
    )
    having = run(*arguments)
    without = run(*arguments, "-p", "no:mmrepro")
    assert having.ret == without.ret
    if "-n2" in more:  # in whatever order, by whichever worker
        assert having.parseoutcomes() == without.parseoutcomes()
    else:
        assert outlines(having) == outlines(without)
    assert having.errlines == without.errlines
    assert not list(Path().glob("mmrepro*"))


def test_what_it_imports(pytester: pytest.Pytester) -> None:
    """Itself, and nothing of what it would run: some milliseconds."""
    pytester.makepyfile("""
    import sys

    def test_modules():
        with open("modules", "w") as file:
            print(*sorted(sys.modules), file=file)
    """)
    names = []
    for plugin in ("mmrepro", "no:mmrepro"):
        arguments = () if plugin == "mmrepro" else ("-p", plugin)
        pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
        names.append(set(Path("modules").read_text().split()))
    assert names[0] - names[1] == {
        "mmrepro",
        "mmrepro.pytest_plugin",
        "mmrepro.pytest_plugin.settings",
    }


def test_what_it_adds_to_the_help(pytester: pytest.Pytester) -> None:
    helped = pytester.runpytest_inprocess("--help")
    for option in (
        "--mmrepro ",
        "--mmrepro-out",
        "--mmrepro-inconclusive",
        "mmrepro_out (string)",
    ):
        assert option in helped.stdout.str()
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.mmrepro(scen*"]
    )
    pytester.runpytest_inprocess("--fixtures").stdout.fnmatch_lines(
        ["mmrepro_run -- *"]
    )


def test_without_it_a_file_is_none(pytester: pytest.Pytester) -> None:
    Path("nightly.mmrepro.toml").write_text("")
    result = pytester.runpytest_subprocess("nightly.mmrepro.toml", "-p", "no:mmrepro")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


# -------------------------------------------------------------- workers of pytest-xdist

TOML = """
[matrix]
device = "cpu"
releases = ["0.20.0", "0.21.0", "0.22.0", "0.23.0"]
jobs = {jobs}
[[cell]]
scenario = "ghost-key-eviction"
mitigation = ["none", "disable-mm-cache"]
"""
WORLD = {
    "disable-mm-cache": ["not-reproduced"],
    "0.23.0": ["not-reproduced"],
    "else": ["reproduced"],
}


@pytest.mark.parametrize(
    ("dist", "jobs"), grid([("load", 1), ("loadscope", 2)], always=[("loadscope", 2)])
)
def test_xdist(faked: Faked, dist: str, jobs: int) -> None:
    inner = faked(WORLD)
    Path("nightly.mmrepro.toml").write_text(TOML.format(jobs=jobs))
    result = inner.runpytest_subprocess(
        "nightly.mmrepro.toml", "-n2", "--dist", dist, "--junitxml=junit.xml"
    )
    result.assert_outcomes(passed=7, failed=1)
    text = plugin_fakes.before_the_summary(result.stdout.str())
    assert text.count("/run-4/report.md") == 2, "with the reason, and at the end"
    lines = [line.split() for line in Path(plugin_fakes.LOG).read_text().splitlines()]
    assert {worker for _, worker, _ in lines} == {"gw0", "gw1"}
    running, most = 0, 0
    for what, _, _ in lines:
        running += 1 if what == "begin" else -1
        most = max(most, running)
    assert most <= jobs, "engines at a time"
    if dist == "loadscope":
        by_release = groupby(sorted((release, worker) for _, worker, release in lines))
        workers = [release for (release, _), _ in by_release]
        assert len(workers) == 4, "the cells of an environment are one worker's"
    sessions = {
        path.parent for path in Path("mmrepro-runs/incidents").glob("*/nightly")
    }
    assert len(sessions) == 1, "of all workers"
