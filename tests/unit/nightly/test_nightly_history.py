"""`.ci/nightly/history.sh` against a real git repository on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_nights import cell, night, written
from mmrepro.history.ledger import read

SCRIPT = Path(__file__).parents[3] / ".ci" / "nightly" / "history.sh"
ONE, TWO, THREE = (night(n, {cell(): "r"}) for n in (1, 2, 3))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bare repository with a branch main, and two clones of it, a and b."""
    monkeypatch.setenv("MMREPRO", f"{sys.executable} -m mmrepro")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "origin.git")
    git(tmp_path, "clone", "--quiet", "origin.git", "a")
    (tmp_path / "a" / "code.py").write_text("pass\n")
    git(tmp_path / "a", "add", "code.py")
    someone = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    git(tmp_path / "a", *someone, "commit", "--quiet", "-m", "code")
    git(tmp_path / "a", "push", "--quiet", "origin", "HEAD:main")
    git(tmp_path, "clone", "--quiet", "origin.git", "b")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run([SCRIPT, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def kept(places: Path) -> list[str]:
    """The nights on the branch."""
    text = git(places / "origin.git", "show", "history:ledger.jsonl")
    (places / "shown.jsonl").write_text(text)
    return [n.night.id for n in read(places / "shown.jsonl").nights]


def test_the_first_night_and_the_second(places: Path) -> None:
    a = places / "a"
    assert "has no branch history yet" in script(a, "fetch", "history", "hist")
    written(a / "hist", ONE)
    (a / "hist" / "night.md").write_text("# n1\n")
    (a / "hist" / "incidents").mkdir()
    (a / "hist" / "incidents" / "secret").write_text("")
    assert "Night n1" in script(a, "push", "history", "hist", "Night n1")
    assert kept(places) == ["n1"]
    names = git(
        places / "origin.git", "ls-tree", "-r", "--name-only", "history"
    ).split()
    assert names == ["ledger.jsonl", "night.md"], (
        "and none of the code, the lock or the incidents"
    )
    assert git(places / "origin.git", "log", "--format=%s", "history").splitlines() == [
        "Night n1",
        "Begin the history of the nights",
    ]

    b = places / "b"
    assert script(b, "fetch", "history", "hist") == ""
    written(b / "hist", TWO)
    script(b, "push", "history", "hist", "Night n2")
    assert kept(places) == ["n1", "n2"]
    assert git(b, "status", "--short", "--untracked-files=no") == "", (
        "the checkout is untouched"
    )
    assert git(b, "branch", "--list", "--format=%(refname:short)").split() == ["main"]


@pytest.mark.parametrize("first", [True, False])
def test_somebody_else_pushed_meanwhile(places: Path, first: bool) -> None:
    a, b = places / "a", places / "b"
    if not first:
        script(a, "fetch", "history", "begun")
        written(a / "begun", ONE)
        script(a, "push", "history", "begun", "Night n1")
    for clone in (a, b):
        script(clone, "fetch", "history", "hist")
    written(a / "hist", TWO)
    written(b / "hist", THREE)
    script(a, "push", "history", "hist", "Night n2")
    before = git(places / "origin.git", "rev-parse", "history").strip()
    said = script(b, "push", "history", "hist", "Night n3")
    assert "push 1 of 5 was refused" in said
    assert kept(places) == [*([] if first else ["n1"]), "n2", "n3"]
    git(places / "origin.git", "merge-base", "--is-ancestor", before, "history")
    assert "n3" in git(places / "origin.git", "show", "history:night.md"), (
        "made of both"
    )


def test_it_gives_up_and_keeps_what_is_here(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = places / "a"
    script(a, "fetch", "history", "hist")
    written(a / "hist", ONE)
    hook = places / "origin.git" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)
    monkeypatch.setenv("HISTORY_TRIES", "2")
    said = script(a, "push", "history", "hist", "Night n1", code=4)
    assert "took none of 2 pushes" in said
    assert [n.night.id for n in read(a / "hist").nights] == ["n1"]
    hook.unlink()
    script(a, "push", "history", "hist", "Night n1")
    assert kept(places) == ["n1"]


def test_a_ledger_that_contradicts_is_not_pushed(places: Path) -> None:
    a, b = places / "a", places / "b"
    for clone, letter in ((a, "r"), (b, "n")):
        script(clone, "fetch", "history", "hist")
        written(clone / "hist", night(1, {cell(): letter}))
    script(a, "push", "history", "hist", "Night n1")
    said = script(b, "push", "history", "hist", "Night n1", code=2)
    assert "say different things of attempt 1" in said
    ours = said.partition("ours is in ")[2].split()[0]
    assert read(Path(ours)).night("n1").attempts[0].outcome == "not-reproduced"


def test_dry_run(places: Path) -> None:
    a = places / "a"
    script(a, "--dry-run", "fetch", "history", "hist")
    written(a / "hist", ONE)
    said = script(a, "--dry-run", "push", "history", "hist", "Night n1")
    assert "would commit to history of origin: Night n1" in said
    assert "?? ledger.jsonl" in said
    assert git(places / "origin.git", "branch", "--list", "history") == ""
    assert "another branch" not in said
    (a / "hist" / "ledger.jsonl").write_bytes(b"\n" * (51 << 20))
    said = script(a, "--dry-run", "push", "history", "hist", "Night n1")
    assert (
        "ledger.jsonl has 51 MiB; GitHub takes 100: soon another branch is to be begun"
        in said
    )
    assert git(a / "hist", "log", "--format=%s").split("\n")[0].startswith("Begin")


def test_a_second_push_of_the_same_does_nothing(places: Path) -> None:
    a = places / "a"
    script(a, "fetch", "history", "hist")
    written(a / "hist", ONE)
    script(a, "push", "history", "hist", "Night n1")
    before = git(places / "origin.git", "rev-parse", "history")
    script(a, "push", "history", "hist", "Night n1 again")
    assert git(places / "origin.git", "rev-parse", "history") == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ("fetch", "main", "hist"),
            2,
            "has files and no ledger.jsonl: it is no history",
        ),
        (("fetch", "no..name", "hist"), 2, "cannot name a branch"),
        (("fetch", "history", "."), 2, "is there already"),
        (("push", "history", ".", "words"), 2, "has no ledger.jsonl"),
        (("push", "history", "hist"), 2, "history.sh push BRANCH DIR MESSAGE"),
        ((), 2, "history.sh fetch BRANCH DIR"),
        (("sweep", "history", "hist"), 2, "history.sh fetch BRANCH DIR"),
    ],
)
def test_what_is_refused(
    places: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    assert says in script(places / "a", *words, code=code)


def test_a_folder_within_the_code_is_not_pushed(places: Path) -> None:
    written(places / "a" / "nights", ONE)
    said = script(places / "a", "push", "history", "nights", "words", code=2)
    assert "was not made by: history.sh fetch history nights" in said


def test_a_remote_that_does_not_answer(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTORY_REMOTE", str(places / "nowhere"))
    said = script(places / "a", "fetch", "history", "hist", code=4)
    assert "does not answer" in said
    assert not (places / "a" / "hist").exists(), (
        "no new history is begun for want of a network"
    )
