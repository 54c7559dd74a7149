"""Git clones of a made-up engine tree: a package ``vllm`` whose ``state.py`` says what
a run of it comes to."""

import os
import subprocess
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


class Clone:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q", "-b", "main", str(path), at=path.parent)
        self._day = 0

    def git(self, *words: str, at: Path | None = None, **env: str) -> str:
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
            env={**os.environ, **self_named, **who, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, subject: str, **files: str) -> str:
        """Write files (``state`` is ``vllm/state.py``), commit, and return the
        commit."""
        places = {
            "state": "vllm/state.py",
            "docs": "docs/x.md",
            "other": "vllm/other.py",
        }
        for name, text in {"init": "", **files}.items():
            path = self.path / places.get(name, "vllm/__init__.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.path / "pyproject.toml").write_text('[project]\nversion = "0.23.1"\n')
        self._day += 1
        when = f"2026-06-{self._day:02d}T12:00:00+00:00"
        self.git("add", "-A")
        self.git(
            "commit", "-q", "-m", subject, "--allow-empty", GIT_COMMITTER_DATE=when
        )
        return self.git("rev-parse", "HEAD")


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
