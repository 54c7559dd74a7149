"""``mmrepro repro``: a bug report to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from mmrepro.cli.console import say
from mmrepro.cli.options import command
from mmrepro.search.repro.options import ReproCommand

_BEFORE = 500
"""Commits before the tree, of the line of first parents, among which the one that
brought a failure is looked for: a fortnight of vLLM's."""


@command(ReproCommand)
def repro(asked: ReproCommand) -> None:
    """Test a bug report: its server and its client, on a fresh server with a tiny
    model.

    The report is the text of an issue of vLLM, SGLang or LMDeploy; --server, --client
    and --release replace or add what it lacks. Server and client run in a box: no
    network, none of your files.

    Example: mmrepro repro --server "vllm serve Qwen/Qwen3-0.6B" --client "python
    client.py" """
    from mmrepro.base.errors import ExitCode
    from mmrepro.cli.replay import box_there, conduct_search, device_there
    from mmrepro.cli.sources import released
    from mmrepro.reports import REPLAY_REPORT, write_replay
    from mmrepro.search.replay.session import jobs_of
    from mmrepro.search.repro.report import releases_of
    from mmrepro.search.repro.session import Reproducing

    if asked.bisect and asked.tree:
        asked = at_the_reported_release(asked)
    tree = asked.tree
    if asked.test_patch is not None and tree:
        asked = _with_patch(asked, asked.test_patch)
    if asked.tree or asked.kernels:
        asked = released(asked, asked.engine)
    asked = box_there(asked, "--trust-report")
    device_there(asked)
    session = Reproducing(asked, write=write_replay)
    engine = session.asked.server.engine
    servers = [(engine, release) for release in releases_of(session.asked)]
    try:
        conduct_search(
            session.options, jobs_of(asked), lambda: session, REPLAY_REPORT, servers
        )
    except typer.Exit as ended:
        if asked.bisect and tree and ended.exit_code == ExitCode.NOT_AS_EXPECTED:
            _bisect(asked, tree, session.folder)
        raise


def at_the_reported_release(asked: ReproCommand) -> ReproCommand:
    """The options with the commit of the report's release in place of HEAD: what is
    fixed since then fails there alone, and the commit that fixes it lies ahead.

    A revision that is given stays, and so does HEAD where no release is named.

    Raises:
        UsageError: the clone has no commit of that release.
    """
    from mmrepro.campaign.bisect import commit_of_release
    from mmrepro.cli.test_tree import split_revision
    from mmrepro.search.repro.report import reported_release

    clone, rev = split_revision(asked.tree)
    engine, release = reported_release(asked)
    if rev or not release:
        return asked
    sha = commit_of_release(clone, engine, release, asked.device)
    typer.echo(f"the report is of {release}: its commit is {sha[:12]}", err=True)
    return replace(asked, tree=f"{clone}@{sha}")


def _with_patch(asked: ReproCommand, patch: Path) -> ReproCommand:
    """The options with the patched tree as what the finding is compared with.

    Its content is kept in the cache, so that the clone it is made in may go.

    Raises:
        UsageError: the patch does not apply, or the tree is no git clone.
    """
    from mmrepro.cli.test_tree import split_revision
    from mmrepro.engines.environments import ensure, patched_clone, resolve_source

    clone, rev = split_revision(asked.tree)
    with patched_clone(clone, rev or "HEAD", patch) as (folder, sha):
        source = resolve_source(
            f"{folder}@{sha}",
            kernels=asked.kernels,
            device=asked.device,
            engine=asked.engine,
            lender=ensure,
        )
    say(f"with {patch.name}: {source.words}", stderr=True)
    return replace(asked, fixed=source.release, test_patch=None)


def _bisect(asked: ReproCommand, tree: str, folder: Path) -> None:
    """Look for the commits between which the first finding came and went, and add to
    the text for a comment what they are."""
    import os

    from mmrepro.campaign import spawn
    from mmrepro.cli.test_tree import split_revision
    from mmrepro.failure.documents import load_document
    from mmrepro.failure.documents.searches import BISECTION_FILE, Bisection
    from mmrepro.reports import COMMENT_FILE

    clone, rev = split_revision(tree)
    out = folder / "bisection"
    findings = sorted(path for path in folder.glob("f*") if path.is_dir())
    if not findings:
        # The client's own check has no requests that another commit could be sent.
        typer.echo(
            "No commit is looked for: what was found is in no request's answer. "
            "--expect says what an answer is to be.",
            err=True,
        )
        return
    words = bisect_words(clone, rev, findings[0], asked.since, asked.boundaries)
    if asked.kernels:
        words += ["--kernels", asked.kernels]
    child = spawn([*words, "--out", str(out)], dict(os.environ), stdout=2, stderr=2)
    child.wait()
    made = load_document(out, BISECTION_FILE, Bisection)
    lines = [f"- {direction}: {side.explanation}" for direction, side in made.sides]
    for line in lines:
        typer.echo(line, err=asked.json)
    comment = folder / COMMENT_FILE
    text = comment.read_text(encoding="utf-8")
    comment.write_text(with_commits(text, lines), encoding="utf-8")


def with_commits(comment: str, lines: Sequence[str]) -> str:
    """The text for a comment with what its commits are, behind the verdict, which is
    its first line: the script below is long."""
    verdict, _, rest = comment.partition("\n")
    return "\n".join([verdict, "", "By commit:", "", *lines, rest])


def bisect_words(
    clone: Path, rev: str, finding: Path, since: str, boundaries: str = "both"
) -> list[str]:
    """The command that looks for the boundaries of a finding of ``rev``: those that are
    asked for where later commits are known, else where it came in.

    Raises:
        UsageError: git refuses.
    """
    from mmrepro.engines.environments import ask_git

    def ask(*words: str) -> str:
        return ask_git(clone, *words).decode().strip()

    head = ask("rev-parse", "HEAD^{commit}")
    bad = ask("rev-parse", f"{rev or 'HEAD'}^{{commit}}")
    words = ["bisect", str(finding), "--source", str(clone)]
    if bad != head and boundaries == "fixed":
        return [*words, "--find", "fixed", "--bad", bad, "--good", head]
    if not since:
        line = ("rev-list", "--first-parent", f"--max-count={_BEFORE + 1}", bad)
        since = ask(*line).splitlines()[-1]
    find = "introduced" if bad == head else boundaries
    return [*words, "--find", find, "--bad", bad, "--good", since]
