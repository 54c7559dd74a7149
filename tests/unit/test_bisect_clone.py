"""``mmrepro bisect --source``: over the commits of a clone; and ``bisect-run``, as git
calls it."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import cloned
import pytest
from cloned import KERNELS, Clone
from in_process import mmrepro
from matrix_nights import FakeProvisions
from mmrepro.base.errors import UsageError
from mmrepro.campaign.bisect.clone import history
from mmrepro.campaign.bisect.once import GitCode, code_of
from mmrepro.campaign.cluster import where
from mmrepro.campaign.trial import Trials
from mmrepro.cli.app import app
from mmrepro.failure.documents.searches import PointVerdict
from typer.testing import CliRunner

GHOST = "ghost-key-eviction"
STATES = (
    "bad",
    "bad",
    "bad",
    "bad",
    "infrastructure",
    "bad",
    "good",
    "unloadable",
    "good",
    "good",
)


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine is started; trees are read as ever."""
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Trials, "run", cloned.run)
    monkeypatch.setattr(where, "Provisions", lambda *rest: FakeProvisions())
    monkeypatch.chdir(tmp_path)


def line_of(clone: Clone, states: tuple[str, ...] = STATES) -> list[str]:
    """Commits with these states; after each one that changes the docs alone."""
    changes: list[tuple[str, dict[str, str]]] = []
    for number, state in enumerate(states):
        changes.append((f"c{number}", {"state": f"{state}\n{number}"}))
        if number % 3 == 0:
            changes.append((f"docs {number}", {"docs": f"{number}"}))
    made = zip(changes, clone.commits(changes), strict=True)
    return [commit for (_subject, files), commit in made if "state" in files]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "tree")


def typed(clone: Clone, *argv: str) -> tuple[int, dict[str, object], str]:
    words = [
        "bisect",
        GHOST,
        "--device",
        "cpu",
        "--source",
        str(clone.path),
        "--kernels",
        KERNELS,
    ]
    done = CliRunner().invoke(app, [*words, "--json", *argv])
    if isinstance(done.exception, UsageError):
        raise done.exception
    return done.exit_code, json.loads(done.stdout), done.stderr


def test_the_fix_is_named_and_what_cannot_be_tested_is_skipped(clone: Clone) -> None:
    commits = line_of(clone)
    before = (
        clone.git("status", "--porcelain", "--branch"),
        clone.git("rev-parse", "HEAD"),
    )
    code, document, _ = typed(clone, "--find", "fixed", "--out", "b")
    assert code == 0
    fixed = document["fixed"]
    assert isinstance(fixed, dict)
    assert (fixed["first_good"], fixed["verified"]) == (commits[6], True)
    assert fixed["explanation"].startswith(
        f"{commits[6][:12]} (c6) is the first good commit: "
    )
    points = document["points"]
    assert isinstance(points, list)
    assert [
        point["name"] for point in points
    ] == commits  # no commit that changes docs alone
    seen = {point["subject"]: point["verdict"] for point in points if point["verdict"]}
    assert (seen["c4"], seen["c5"], seen["c6"], seen["c7"]) == (
        "untestable",
        "bad",
        "good",
        "untestable",
    )
    assert (
        len([r for p in points if p["subject"] in ("c5", "c6") for r in p["runs"]]) >= 4
    )
    assert (
        clone.git("status", "--porcelain", "--branch"),
        clone.git("rev-parse", "HEAD"),
    ) == before
    limits = document["limits"]
    assert isinstance(limits, list)
    assert any("compiled code is not built" in one for one in limits)
    assert any("9 of 13 commits after" in one for one in limits)


def test_resumed_though_the_branch_has_moved(clone: Clone, tmp_path: Path) -> None:
    commits = line_of(clone)
    _, document, _ = typed(clone, "--find", "fixed", "--out", "b", "--", "vllm")
    clone.commit("later", state="good\nlater")
    resume = str(document["resume"])
    assert resume.endswith("--resume -- vllm")
    done = CliRunner().invoke(app, [*resume.split()[1:-2], "--json", "--", "vllm"])
    again = json.loads(done.stdout)
    assert again["fixed"]["first_good"] == commits[6]
    assert len(again["points"]) == len(commits)


def test_where_it_came_in_and_both_sides(clone: Clone) -> None:
    commits = line_of(clone, ("good", "good", "bad", "bad", "good"))
    code, document, _ = typed(
        clone,
        "--find",
        "introduced",
        "--good",
        commits[0][:9],
        "--bad",
        commits[3],
        "--out",
        "b",
    )
    assert code == 0
    assert document["introduced"]["first_bad"] == commits[2]  # type: ignore[index]
    code, document, _ = typed(clone, "--bad", commits[3], "--out", "c")
    assert document["introduced"]["first_bad"] == commits[2]  # type: ignore[index]
    assert document["fixed"]["first_good"] == commits[4]  # type: ignore[index]


def test_a_range_names_both_ends(clone: Clone) -> None:
    commits = line_of(clone, ("good", "good", "bad", "bad", "good"))
    span = f"{clone.path}@{commits[0][:9]}..{commits[3]}"
    words = ["bisect", GHOST, "--device", "cpu", "--kernels", KERNELS, "--source", span]
    found = [*words, "--find", "introduced", "--out", "b", "--json"]
    done = CliRunner().invoke(app, found)
    assert json.loads(done.stdout)["introduced"]["first_bad"] == commits[2]
    for more, why in (
        ([], "Which end of"),
        (["--find", "introduced", "--bad", "HEAD"], "names both ends"),
    ):
        done = CliRunner().invoke(app, [*words, *more])
        assert isinstance(done.exception, UsageError)
        assert why in str(done.exception)


def test_a_tree_that_cannot_be_read_is_skipped(clone: Clone) -> None:
    commits = line_of(clone, ("bad", "bad"))
    clone.git("mv", "vllm", "moved")
    clone.git("commit", "-q", "-m", "moved")
    clone.git("mv", "moved", "vllm")
    clone.git("commit", "-q", "-m", "back")
    last = [clone.commit("fix", state="good"), clone.commit("more", other="1")]
    _, document, _ = typed(clone, "--find", "fixed", "--linear", "--out", "b")
    assert document["fixed"]["first_good"] == last[0]  # type: ignore[index]
    (moved,) = [p for p in document["points"] if p["subject"] == "moved"]  # type: ignore[attr-defined]
    assert moved["verdict"] == "untestable"
    assert "holds no package of an engine" in moved["why"]
    assert commits[0] == document["points"][0]["name"]  # type: ignore[index]


def test_a_merge_is_a_point_and_its_branch_can_be_searched(clone: Clone) -> None:
    line_of(clone, ("bad", "bad"))
    clone.git("checkout", "-q", "-b", "side")
    inside = [clone.commit("s0", other="0"), clone.commit("s1", state="good\nside")]
    clone.git("checkout", "-q", "main")
    clone.commit("m", docs="m")
    clone.git("merge", "-q", "--no-ff", "-m", "merge side", "side")
    merge = clone.git("rev-parse", "HEAD")
    _, document, _ = typed(clone, "--find", "fixed", "--out", "b")
    assert document["fixed"]["first_good"] == merge  # type: ignore[index]
    (note,) = [n for n in document["fixed"]["notes"] if "is a merge" in n]  # type: ignore[index]
    assert note.startswith(
        f"{merge[:12]} is a merge of 2 commits; to search them: mmrepro bisect "
    )
    words = shlex.split(note.partition(": mmrepro ")[2])
    done = CliRunner().invoke(app, [*words, "--json", "--out", "c"])
    assert json.loads(done.stdout)["fixed"]["first_good"] == inside[1]


# ------------------------------------------------------------------ which commits


def test_the_ends(clone: Clone) -> None:
    commits = line_of(clone, ("bad", "bad", "good"))
    clone.git("tag", "v0.23.0", commits[1])
    found = history(clone.path, "vllm", "fixed", release="0.23.0")
    assert [point.name for point in found.points] == commits[1:]
    found = history(clone.path, "vllm", "fixed", release="0.22.0")
    assert [point.name for point in found.points] == commits
    assert (found.bad, found.points[0].subject) == (0, "c0")
    found = history(clone.path, "vllm", "introduced")
    assert found.bad == 2
    clone.git("checkout", "-q", "-b", "release", commits[0])
    clone.commit("only there", state="bad\nrelease")
    clone.git("tag", "v0.22.1")
    found = history(clone.path, "vllm", "fixed", bad="v0.22.1", good="main")
    assert [point.name for point in found.points] == commits
    assert any("v0.22.1 is on a branch of its own" in note for note in found.notes)


def test_paths(clone: Clone) -> None:
    commits = line_of(clone, ("bad", "bad"))
    other = clone.commit("o", other="1")
    last = clone.commit("s", state="good")
    found = history(clone.path, "vllm", "fixed", paths=["vllm/other.py"])
    # The end runs otherwise than the last commit of these paths: it is a point as well.
    assert [point.name for point in found.points] == [commits[0], other, last]
    found = history(clone.path, "vllm", "fixed", paths=["vllm/state.py"])
    assert [point.name for point in found.points] == [*commits, last]


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ({"bad": "nothing"}, "git cannot read"),
        ({"bad": "--all"}, "git cannot read"),
        ({"bad": "HEAD", "good": "HEAD~2"}, "HEAD is newer than HEAD~2"),
        ({"bad": "HEAD"}, "the same commit"),
        ({"bad": "HEAD~1"}, "No commit between"),
        ({"find": "both"}, "Which of the commits"),
    ],
)
def test_ends_that_are_none(clone: Clone, ends: dict[str, str], says: str) -> None:
    line_of(clone, ("bad", "good"))
    clone.commit("docs at the end", docs="x")
    with pytest.raises(UsageError, match=says):
        history(clone.path, "vllm", **{"find": "fixed", **ends})  # type: ignore[arg-type]


def test_no_clone_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="git cannot read"):
        history(tmp_path / "empty", "vllm", "fixed")


# ------------------------------------------------------------------ bisect-run


def test_codes() -> None:
    verdicts = {
        PointVerdict.BAD: (1, 0),
        PointVerdict.BOTH: (1, 0),
        PointVerdict.GOOD: (0, 1),
        PointVerdict.OTHER: (125, 125),
        PointVerdict.UNTESTABLE: (125, 125),
    }
    for verdict, codes in verdicts.items():
        assert (code_of(verdict, "introduced"), code_of(verdict, "fixed")) == codes
    assert all(code == GitCode.SKIP or not 1 < code < 128 for code in GitCode)


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
import cloned
from mmrepro.campaign.trial import Trials
Trials.run = cloned.run if {state!r} == "" else None
if {state!r} == "slow":
    import time
    def run(*given, **named):
        print("running", flush=True)
        time.sleep(60)
    Trials.run = run
from mmrepro.cli import main
sys.argv[0] = "mmrepro"
main()
"""


def program(tmp_path: Path, state: str = "") -> list[str]:
    file = tmp_path / f"program{state}.py"
    file.write_text(PROGRAM.format(tests=str(Path(__file__).parent), state=state))
    return [
        sys.executable,
        str(file),
        "bisect-run",
        "--kernels",
        KERNELS,
        "--device",
        "cpu",
    ]


def test_git_bisect_run_finds_it(clone: Clone, tmp_path: Path) -> None:
    """Skipped: a tree that does not start. The terms say that the fix is searched
    for."""
    states = ("bad", "bad", "infrastructure", "bad", "good", "good")
    commits = line_of(clone, states)
    clone.git(
        "bisect", "start", "--term-new=fixed", "--term-old=broken", "--first-parent"
    )
    clone.git("bisect", "broken", commits[0])
    clone.git("bisect", "fixed", "HEAD")
    told = clone.git("bisect", "run", *program(tmp_path), GHOST)
    assert f"{commits[4]} is the first fixed commit" in told
    assert "good; state good\nexit code 1 for git bisect: fixed" in told


@pytest.mark.parametrize(
    "argv",
    [
        ("ghost-key-evicton",),
        (GHOST, "--nonsense"),
        (GHOST, "--source", "nowhere"),
        ("f7",),
        (),
    ],
)
def test_a_wrong_command_line_stops_git_bisect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = mmrepro(
        "bisect-run", "--kernels", KERNELS, "--device", "cpu", *argv
    )
    assert (code, bool(said)) == (128, True)


def test_ctrl_c_stops_git_bisect(clone: Clone, tmp_path: Path) -> None:
    import signal

    clone.commit("c", state="bad")
    child = subprocess.Popen(
        [*program(tmp_path, "slow"), GHOST],
        cwd=clone.path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
    finally:
        child.kill()


def test_one_verdict(clone: Clone, tmp_path: Path) -> None:
    clone.commit("c", state="bad")
    clone.commit("d", state="good")
    words = [
        "bisect-run",
        GHOST,
        "--device",
        "cpu",
        "--kernels",
        KERNELS,
        "--json",
        "--source",
    ]
    for tree, flags, code, runs in (
        (str(clone.path), (), 0, 1),
        (str(clone.path), ("--find", "fixed"), 1, 1),
        (f"{clone.path}@HEAD~1", (), 1, 1),
        (str(clone.path), ("--repeat", "3"), 0, 3),
        (f"{clone.path}@HEAD~1", ("--repeat", "3"), 1, 1),
    ):
        done = CliRunner().invoke(app, [*words, tree, *flags])
        assert done.exit_code == code
        document = json.loads(done.stdout)
        assert (document["exit_code"], len(document["runs"])) == (code, runs)
    (clone.path / "vllm/state.py").write_text("timeout")
    done = CliRunner().invoke(
        app, [*words[:-2], "--source", str(clone.path), "--out", "kept"]
    )
    assert done.exit_code == 125
    assert done.stdout.splitlines()[-1] == "exit code 125 for git bisect: skip"
    assert "(dirty: 1 file)" in done.stdout
    # Infrastructure is tried once more.
    assert len([*Path("kept").glob("*/run-*")]) == 2
