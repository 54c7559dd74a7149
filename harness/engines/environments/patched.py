"""A commit with a patch, as a commit that can be read: in a clone of its own, which
shares the objects of the first one and writes nothing there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmrepro.base.errors import UsageError
from mmrepro.engines.environments.source import git

_WHO = (
    *("-c", "user.name=mmrepro", "-c", "user.email=mmrepro@localhost"),
    *("-c", "commit.gpgsign=false"),
)


@contextmanager
def patched(clone: Path, rev: str, patch: Path) -> Iterator[tuple[Path, str]]:
    """Yield a clone and the commit in it that is ``rev`` with ``patch``.

    Raises:
        UsageError: the patch cannot be read or does not apply, or git refuses.
    """
    try:
        content = patch.read_bytes()
    except OSError as error:
        raise UsageError(f"{patch} cannot be read: {error.strerror}.") from error
    with tempfile.TemporaryDirectory(prefix="mmrepro-patch-") as name:
        folder = Path(name) / "clone"
        sha = git(clone, "rev-parse", "--verify", f"{rev}^{{commit}}").decode().strip()
        words = ("clone", "--quiet", "--bare", "--shared", str(clone), str(folder))
        git(clone, *words)
        git(folder, "read-tree", sha)
        try:
            git(folder, "apply", "--cached", "--whitespace=nowarn", "-", stdin=content)
        except UsageError as error:
            _, _, why = error.message.partition(": ")
            raise UsageError(
                f"{patch.name} does not apply to {rev}: {why}",
                hint="take it against that commit: git diff COMMIT > FILE.diff",
            ) from error
        tree = git(folder, "write-tree").decode().strip()
        if tree == git(folder, "rev-parse", f"{sha}^{{tree}}").decode().strip():
            raise UsageError(f"{patch.name} changes nothing of {rev}.")
        made = git(folder, *_WHO, "commit-tree", tree, "-p", sha, "-m", "patched")
        yield folder, made.decode().strip()
