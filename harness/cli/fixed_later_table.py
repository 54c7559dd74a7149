"""Makes the table of ``harness/history/fixed_later.py``: which functions each fix
commit of an engine touched, and when.

    python -m mmrepro.cli.fixed_later_table ~/vllm ~/sglang@REV ~/lmdeploy

REV is the last commit that is the engine's own, where a fork goes on with numbers of
other pull requests. A clone is only read. Of the engines' history the table takes
paths, names of functions, numbers and days; no line of code, and no word of a commit's
message."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from mmrepro.cli.test_tree import split_revision
from mmrepro.engines.environments import PLACES, ask_git, engine_of_clone, own_releases
from mmrepro.history import (
    TABLE_OF_FIXES,
    FixTable,
    TableFix,
    TableFunction,
    write_fix_table,
)
from mmrepro.runs import old_lines, scopes_at

_FIX = re.compile(
    r"\bfix|\bbug|crash|\bhang|deadlock|\brace\b|\bleak|regress|\bcorrect|prevent"
    r"|\bavoid|\bguard|\bhandle|missing|\bwrong|\berror|\brevert|timeout|fall ?back"
    r"|workaround|\brestore|\breject|\bdisable|compatib|\binvalid|\bfail|\bvalidat"
    r"|\bensure|\bignore|\bre-?enable",
    re.IGNORECASE,
)
"""Subjects of commits that mend something."""
_PLAIN = re.compile(r"\bfix|\bhotfix|\bbug|\bcrash|\brevert", re.IGNORECASE)
"""Subjects that name a fix in plain words: they rank first."""
_CLOSES = re.compile(
    r"\b(?:fix(?:es|ed)?|close[sd]?|resolve[sd]?):?\s+"
    r"(?:#|[\w-]+/[\w-]+#|https://github\.com/[\w-]+/[\w-]+/issues/)\d",
    re.IGNORECASE,
)
"""In a commit's message: the issue that it closes."""
_YEARS_DAYS = 730
"""Logs of releases older than that are hardly seen."""
_MOST_FUNCTIONS = 60
"""Touched by a commit: one that touches more moves code, and mends no traceback."""
_PULL = re.compile(r"\(#(\d+)\)\s*$")


@dataclass
class _FixCommit:
    """A commit that mends something, and the lines of its parent's files that it
    changes or stands next to."""

    sha: str
    day: date
    pull: int
    plain: bool
    lines: dict[str, set[int]] = field(default_factory=dict)


def commits_of(clone: Path, engine: str, rev: str) -> Iterator[_FixCommit]:
    """The fix commits up to a revision, newest first."""
    newest = ask_git(clone, "log", "-1", "--format=%cI", rev).decode().strip()
    until = datetime.fromisoformat(newest)
    since = (until - timedelta(days=_YEARS_DAYS)).date().isoformat()
    paths = [f"{place}{engine}/*.py" for place in PLACES]
    about = "--format=%x00%H%x09%cI%x09%s%x01%b%x01"
    options = ("--no-merges", "--no-renames", "-U0", "-p", about, f"--since={since}")
    text = ask_git(clone, "log", *options, rev, "--", *paths).decode("utf-8", "replace")
    for entry in text.split("\0")[1:]:
        head, body, patch = entry.split("\1", 2)
        sha, day, subject = head.split("\t", 2)
        if not (_FIX.search(subject) or _CLOSES.search(body)):
            continue
        moment = datetime.fromisoformat(day).astimezone(UTC)
        pull = _PULL.search(subject)
        plain = bool(_PLAIN.search(subject) or _CLOSES.search(body))
        number = int(pull[1]) if pull else 0
        made = _FixCommit(sha, moment.date(), number, plain)
        made.lines.update(old_lines(patch))
        yield made


def _texts(clone: Path, wanted: Sequence[str]) -> Iterator[str]:
    """The contents of ``REV:FILE`` names, in their order; "": there is none."""
    asked = "".join(f"{name}\n" for name in wanted).encode()
    answer = ask_git(clone, "cat-file", "--batch", stdin=asked)
    at = 0
    for _ in wanted:
        end = answer.index(b"\n", at)
        head = answer[at:end].split()
        if head[-1] == b"missing":
            yield ""
            at = end + 1
            continue
        size = int(head[2])
        yield answer[end + 1 : end + 1 + size].decode("utf-8", "replace")
        at = end + size + 2


def table_of(clone: Path, rev: str = "HEAD") -> FixTable:
    """The part of the table that a clone gives, up to a revision.

    Raises:
        UsageError: it is no clone of an engine.
    """
    engine = engine_of_clone(clone, rev)
    fixes: list[TableFix] = []
    functions: dict[TableFunction, list[int]] = defaultdict(list)
    commits = list(commits_of(clone, engine, rev))
    for start in range(0, len(commits), 200):
        batch = commits[start : start + 200]
        names = [f"{one.sha}^:{file}" for one in batch for file in one.lines]
        texts = dict(zip(names, _texts(clone, names), strict=True))
        for commit in batch:
            touched = _touched(commit, texts)
            breadth = len([one for one in touched if one.name.isidentifier()])
            if not touched or breadth > _MOST_FUNCTIONS:
                continue
            for function in touched:
                functions[function].append(len(fixes))
            fix = TableFix(
                commit.pull, commit.day, commit.sha[:9], breadth, commit.plain
            )
            fixes.append(fix)
    head = ask_git(clone, "log", "-1", "--format=%cs", rev).decode().strip()
    dated = {
        one.version: one.uploaded.date()
        for one in own_releases(engine, "cpu")
        if one.uploaded is not None
    }
    until = date.fromisoformat(head)
    return FixTable(engine, until, dated, fixes, dict(functions))


def _touched(commit: _FixCommit, texts: dict[str, str]) -> list[TableFunction]:
    touched = []
    for file, lines in commit.lines.items():
        own = file
        for place in PLACES:
            own = own.removeprefix(place)
        for name in scopes_at(texts[f"{commit.sha}^:{file}"], lines):
            touched.append(TableFunction(own, name))
    return touched


def main() -> None:
    tables = []
    for word in sys.argv[1:]:
        place, rev = split_revision(word)
        tables.append(table_of(place, rev or "HEAD"))
    if not tables:
        raise SystemExit((__doc__ or "").strip())
    write_fix_table(tables, TABLE_OF_FIXES)
    for table in tables:
        print(
            f"{table.engine} until {table.until}: {len(table.fixes)} fixes, "
            f"{len(table.functions)} functions"
        )
    print(f"{TABLE_OF_FIXES.name}: {TABLE_OF_FIXES.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
