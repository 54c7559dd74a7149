"""Git clones of a made-up engine tree: a package ``vllm`` whose ``state.py`` says what
a run of it comes to."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from mmrepro.base.records import Moment
from mmrepro.campaign.trial import Trials
from mmrepro.engines.environments.source import blob, read_tree
from mmrepro.engines.environments.spec import TreeLabel
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, Role
from mmrepro.failure.signature import Outcome

KERNELS = "0.23.0"
SAYS = {
    "bad": Outcome.REPRODUCED,
    "good": Outcome.NOT_REPRODUCED,
    "other": Outcome.DIFFERENT_FAILURE,
}

PLACES = {
    "state": "vllm/state.py",
    "docs": "docs/x.md",
    "other": "vllm/other.py",
}
PYPROJECT = '[project]\nversion = "0.23.1"\n'


class Clone:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q", "-b", "main", str(path), at=path.parent)
        self._day = 0

    def git(self, *words: str, at: Path | None = None, stdin: str = "") -> str:
        self_named = {
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
        }
        who = {
            f"GIT_{who}_{what}": "made-up@x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        done = subprocess.run(
            ["git", *words],
            cwd=at or self.path,
            env={**os.environ, **self_named, **who},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, subject: str, **files: str) -> str:
        """Write files (``state`` is ``vllm/state.py``), commit, and return the
        commit."""
        return self.commits([(subject, files)])[0]

    def commits(self, changes: list[tuple[str, dict[str, str]]]) -> list[str]:
        """Commit changes, each a subject and its files, on what is checked out.

        One git imports them all: three processes a commit were most of what these tests
        took."""
        branch = self.git("symbolic-ref", "HEAD")
        stream = self.imports(branch, changes)
        marks = self.path / ".git" / "marks"
        self.git("fast-import", "--quiet", f"--export-marks={marks}", stdin=stream)
        self.git("reset", "-q", "--hard")
        made = dict(line.split() for line in marks.read_text().splitlines())
        return [made[f":{number}"] for number in range(1, len(changes) + 1)]

    def imports(self, branch: str, changes: list[tuple[str, dict[str, str]]]) -> str:
        """Return the stream in which `git fast-import` reads the changes."""
        lines = []
        for number, (subject, files) in enumerate(changes, 1):
            self._day += 1
            when = int(datetime(2026, 6, self._day, 12, tzinfo=UTC).timestamp())
            lines += [f"commit {branch}", f"mark :{number}"]
            lines += [f"committer made-up <made-up@x> {when} +0000", counted(subject)]
            if number == 1 and (self.path / ".git" / branch).exists():
                lines.append(f"from {branch}^0")
            for name, text in {"init": "", **files}.items():
                place = PLACES.get(name, "vllm/__init__.py")
                lines += [f"M 100644 inline {place}", counted(text)]
            lines += ["M 100644 inline pyproject.toml", counted(PYPROJECT)]
        return "\n".join([*lines, ""])


def counted(text: str) -> str:
    """Return text as `git fast-import` reads it, after its length."""
    return f"data {len(text.encode())}\n{text}"


def run(
    self: Trials,
    cell: Cell,
    folder: Path,
    root: Path,
    *,
    night: str,
    index: int,
    role: Role,
) -> Attempt:
    """A run that was none: the tree's ``state.py`` says what comes of it."""
    label = TreeLabel.of(cell.release)
    assert label is not None, cell
    assert label.kernels == KERNELS
    says = blob(read_tree(label.digest).files["state.py"]).read_text().split("\n")[0]
    outcome = SAYS.get(says)
    folder.mkdir(parents=True)
    return Attempt(
        night=night,
        cell=cell.id,
        index=index,
        role=role,
        created=Moment.now(),
        seconds=1,
        outcome=outcome,
        lost=None if outcome else Lost(says),
        explanation=f"state {says}",
        error="" if outcome else "SyntaxError: invalid syntax",
        incident=f"run-{index}",
        command=f"mmrepro run x --release {cell.release}",
    )
