"""The commits of a git clone, as the points of a bisection: those that change what
runs.

The history is that of ``--first-parent``, a line. What a point runs is the Python of
its commit over the compiled files of the nearest release; the clone is only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from mmrepro.base.errors import UsageError
from mmrepro.engines.environments import PLACES, ask_git, own_releases
from mmrepro.failure.documents.searches import Find, Point
from mmrepro.history import BRANCHED_DAYS

_BESIDE = (
    "pyproject.toml",
    "python/pyproject.toml",
    "requirements",
    "requirements.txt",
)
"""Files beside the package on which an environment depends."""
_MOST = 20_000
"""Commits: more than a search ever needs, and than a document should list."""
_FORMAT = "%H%x00%P%x00%cI%x00%s"


@dataclass(frozen=True)
class PointHistory:
    """What a bisection may run.

    Attributes:
        points: oldest first.
        bad: number of the point that is to have the failure.
        merges: commit: how many commits it merged, for those that are merges.
        notes: on how the points were chosen.
    """

    points: list[Point]
    bad: int
    merges: dict[str, int]
    notes: list[str]


@dataclass(frozen=True)
class _Commit:
    sha: str
    parents: tuple[str, ...]
    date: str
    subject: str

    @property
    def point(self) -> Point:
        return Point(
            name=self.sha, commit=self.sha, uploaded=self.date, subject=self.subject
        )


def history(
    clone: Path,
    engine: str,
    find: Find,
    *,
    good: str = "",
    bad: str = "",
    paths: Sequence[str] = (),
    release: str = "",
) -> PointHistory:
    """The commits between ``good`` and ``bad`` that change what the engine runs.

    Args:
        good, bad: revisions. The newer one is HEAD, if it is not given; the older one
            is the tag of ``release``, where there is one and it has the failure
            (``find`` fixed), else the first commit. For both sides ``bad`` is given and
            lies between.
        paths: pathspecs: only commits that change something there; (): the engine's
            Python and its requirements.
        release: that is known to have the failure.

    Raises:
        UsageError: git refuses, a revision is none, the two are the wrong way round, or
            no commit lies between.
    """
    ask = _GitClone(clone)
    relevant = [*(f"{place}{engine}" for place in PLACES), *_BESIDE]
    wanted = list(paths) or relevant
    if find == "both" and not bad:
        raise UsageError(
            "Which of the commits has the failure?",
            hint="--bad REV; or --find introduced, where HEAD has it, or --find fixed, "
            "where it is gone in HEAD",
        )

    newer = {"introduced": bad, "fixed": good, "both": ""}[find] or "HEAD"
    older = {"introduced": good, "fixed": bad, "both": good}[find]
    if not older and find == "fixed" and release and ask.has(f"refs/tags/v{release}"):
        older = f"v{release}"
    end = ask.commit(newer)
    begin, notes = _begin(ask, older, newer, end)
    total = ask.count(begin, end)
    if total > _MOST:
        option = "--bad" if find == "fixed" else "--good"
        raise UsageError(
            f"{total:,} commits lie between {older or 'the first one'} and {newer}.",
            hint=f"{option} REV nearer to the failure",
        )

    commits = ask.log("", begin, (), most=1)
    for commit in ask.log(begin, end, wanted):
        if commit.sha != begin:
            commits.append(commit)

    if paths and ask.differ(commits[-1].sha, end, relevant):
        # What lies beyond the paths changed, too: the end is not the last of these.
        commits += ask.log("", end, (), most=1)
    if len(commits) < 2:
        changed = ", ".join(paths) or engine
        lines = f"{begin[:12]}..{newer} -- {wanted[0]}"
        raise UsageError(
            f"No commit between {begin[:12]} and {newer} changes {changed}.",
            hint=f"git -C {clone} log --first-parent {lines}",
        )

    changed = ", ".join(paths) or f"the Python of {engine} or what it requires"
    notes.append(
        f"{len(commits) - 1} of {total} commits after {begin[:12]} (--first-parent) "
        f"change {changed}; the others run as the one before them"
    )
    number = {"introduced": len(commits) - 1, "fixed": 0}.get(find)
    if number is None:
        number = _number(ask, commits, bad, wanted)

    merges = {}
    for commit in commits[1:]:
        if len(commit.parents) > 1:
            own, merged = commit.parents[:2]
            merges[commit.sha] = ask.count(own, merged)

    points = [commit.point for commit in commits]
    return PointHistory(points, number, merges, notes)


def commit_of_release(clone: Path, engine: str, release: str, device: str) -> str:
    """The commit of HEAD's line at which a release left it: by the release's tag, else
    by the day of its upload, to within some days.

    Raises:
        UsageError: git refuses, or neither is known.
    """
    ask = _GitClone(clone)
    head = ask.commit("HEAD")
    if ask.has(f"refs/tags/v{release}"):
        return ask.base(f"refs/tags/v{release}", head)

    for known in own_releases(engine, device):
        if known.version != release or known.uploaded is None:
            continue
        day = (known.uploaded - timedelta(days=BRANCHED_DAYS)).isoformat()
        line = ("rev-list", "--first-parent", "--max-count=1", head)
        before = ask.text(*line, f"--before={day}")
        # A clone that ends before that day does not have the release's commit.
        if before and ask.text(*line, f"--after={day}"):
            return before
    raise UsageError(
        f"The clone has no commit of {engine} {release}.",
        hint=f"git -C {clone} fetch --tags, or --source {clone}@REV",
    )


def _begin(ask: _GitClone, older: str, newer: str, end: str) -> tuple[str, list[str]]:
    """The oldest commit of the search, and what is to be said of it."""
    if not older:
        return ask.root(end), []
    begin = ask.commit(older)
    if begin == end:
        raise UsageError(f"{older} and {newer} are the same commit.")
    base = ask.base(begin, end)
    if base == end:
        raise UsageError(
            f"{older} is newer than {newer}.",
            hint="--find introduced: --good is the older one; --find fixed: --bad is",
        )
    if base == begin:
        return begin, []
    return base, [
        f"{older} is on a branch of its own: the search begins at {base[:12]}, where "
        f"{newer} and it part"
    ]


def _number(
    ask: _GitClone, commits: Sequence[_Commit], bad: str, wanted: Sequence[str]
) -> int:
    """The point that runs as revision ``bad`` does."""
    names = [commit.sha for commit in commits]
    sha = ask.commit(bad)
    if sha in names:
        return names.index(sha)
    # It changes nothing that runs: then it runs as the last before it that does.
    for last in ask.log("", sha, wanted, most=1):
        if last.sha in names:
            return names.index(last.sha)

    raise UsageError(f"--bad {bad} is no commit of that line of history.")


class _GitClone:
    """Git, asked about one clone."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone

    def text(self, *arguments: str) -> str:
        return ask_git(self.clone, *arguments).decode("utf-8", "replace").strip()

    def commit(self, rev: str) -> str:
        return self.text(
            "rev-parse", "--verify", "--end-of-options", f"{rev}^{{commit}}"
        )

    def has(self, rev: str) -> bool:
        try:
            return bool(self.commit(rev))
        except UsageError:
            return False

    def root(self, end: str) -> str:
        roots = self.text("rev-list", "--first-parent", "--max-parents=0", end)
        return roots.splitlines()[-1]

    def base(self, one: str, other: str) -> str:
        try:
            return self.text("merge-base", one, other)
        except UsageError:
            raise UsageError(
                f"{one[:12]} and {other[:12]} have no history in common.",
                hint="git fetch --unshallow",
            ) from None

    def count(self, begin: str, end: str) -> int:
        return int(self.text("rev-list", "--count", "--first-parent", end, f"^{begin}"))

    def differ(self, one: str, other: str, paths: Sequence[str]) -> bool:
        return bool(self.text("diff", "--name-only", one, other, "--", *paths))

    def log(
        self, begin: str, end: str, paths: Sequence[str], most: int = 0
    ) -> list[_Commit]:
        """Commits after ``begin`` up to ``end``, oldest first; ``most``: the newest of
        them."""
        limits = []
        if most:
            limits.append(f"-{most}")
        if begin:
            limits.append(f"^{begin}")
        lines = self.text(
            "log",
            "--first-parent",
            "--reverse",
            f"--format={_FORMAT}",
            end,
            *limits,
            "--",
            *paths,
        )
        commits = []
        for line in lines.splitlines():
            sha, parents, date, subject = line.split("\0", 3)
            commits.append(_Commit(sha, tuple(parents.split()), date, subject))

        return commits
