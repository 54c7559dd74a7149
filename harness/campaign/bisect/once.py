"""One verdict of one source tree, as the exit code that ``git bisect run`` takes."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated

from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.machine import device_of
from mmrepro.base.records import Record
from mmrepro.campaign.bisect.options import BisectRunCommand
from mmrepro.campaign.bisect.session import ONCE_MORE
from mmrepro.campaign.bisect.sides import verdict_of
from mmrepro.campaign.trial import ENDED_SILENTLY, Making, TrialOptions, Trials, cell_of
from mmrepro.engines import spec_for
from mmrepro.engines.environments import (
    ask_git,
    ensure,
    existing,
    prune_environments,
    resolve_source,
)
from mmrepro.failure.documents import Attempt, Cell, Lost, unused_folder
from mmrepro.failure.documents.searches import PointVerdict
from mmrepro.scenario import Scenario
from pydantic import Field

NIGHT = "bisect-run"


class GitCode(IntEnum):
    """What ``git bisect run`` takes: 1 to 127, without 125, is for a bad commit."""

    OLD = 0
    NEW = 1
    SKIP = 125
    STOP = 128
    """128 and above end the bisection: nothing is known of the commit."""


class Tested(Record):
    """What the runs of one tree came to."""

    tree: Annotated[str, Field(description="as a release, by its content")]
    words: Annotated[str, Field(description="the same for people")]
    verdict: PointVerdict
    why: str
    exit_code: int
    term: Annotated[
        str, Field(description="what git bisect calls such a commit; empty: skipped")
    ]
    runs: list[Attempt]


def code_of(verdict: PointVerdict, find: str) -> GitCode:
    """The exit code of a verdict.

    Args:
        find: introduced: what is new has the failure; fixed: what is old has it.
    """
    bad, good = GitCode.NEW, GitCode.OLD
    if find == "fixed":
        bad, good = good, bad
    codes = {PointVerdict.BAD: bad, PointVerdict.BOTH: bad, PointVerdict.GOOD: good}
    return codes.get(verdict, GitCode.SKIP)


def terms(tree: Path) -> tuple[str, str]:
    """What the bisection in progress there calls the new and the old: ("bad", "good")
    by default, and where there is none."""
    try:
        file = ask_git(tree, "rev-parse", "--git-path", "BISECT_TERMS").decode().strip()
        new, old = (tree / file).read_text(encoding="utf-8").split()[:2]
    except (MmreproError, OSError, ValueError):
        return "bad", "good"

    return new, old


def tested(
    scenario: Scenario, asked: BisectRunCommand, making: Making, root: Path
) -> Tested:
    """Run it on the tree; the runs are in a folder of the tree's below ``root``.

    Raises:
        UsageError: it is no tree of the engine, or the runs refuse the options.
        MmreproError: the machine is at fault, and no commit.
    """
    tree = Path(asked.source).expanduser()
    new, old = terms(tree) if tree.is_dir() else ("bad", "good")
    find = asked.find or ("fixed" if new == "fixed" else "introduced")
    device = device_of(asked.device)
    source = resolve_source(
        asked.source,
        kernels=asked.over,
        device=device,
        engine=scenario.engine,
        lender=ensure,
    )
    spec = spec_for(scenario.engine, source.release, device)
    was_there = existing(spec) is not None
    options = replace(asked.run, scenario=asked.scenario)
    cell = cell_of(scenario, options, device, release=source.release)
    folder = unused_folder(root / source.release)
    try:
        runs = _runs(cell, asked, making, folder)
    finally:
        if not (was_there or asked.keep_environments):
            made = existing(spec)
            prune_environments(names=[made.path.name] if made else [])

    verdict, why = verdict_of(runs)
    assert verdict is not None
    code = code_of(verdict, find)
    term = {GitCode.NEW: new, GitCode.OLD: old}.get(code, "")
    return Tested(
        tree=source.release,
        words=source.words,
        verdict=verdict,
        why=why,
        exit_code=code,
        term=term,
        runs=runs,
    )


def _runs(
    cell: Cell, asked: BisectRunCommand, making: Making, folder: Path
) -> list[Attempt]:
    """Run the cell until it is not good, or as often as asked for. Raises as
    ``tested``."""
    trials = Trials(TrialOptions(asked.timeout_s, asked.start_mode, making=making))
    runs: list[Attempt] = []
    left = asked.repeat
    spare = 1
    while left:
        index = len(runs) + 1
        place = folder / f"run-{index}"
        run = trials.run(cell, place, folder, night=NIGHT, index=index, role="planned")
        runs.append(run)
        _not_the_machine(run)
        # What was lost says nothing: it is made once more.
        if run.lost in ONCE_MORE and spare:
            spare -= 1
            continue

        left -= 1
        if verdict_of(runs)[0] is not PointVerdict.GOOD:
            break

    return runs


def _not_the_machine(run: Attempt) -> None:
    """Raises UsageError: the options are at fault; MmreproError: no commit can be."""
    # mmrepro itself says why it ends: the scenario's code ended it.
    if run.error.startswith(ENDED_SILENTLY):
        return
    if run.lost is Lost.USAGE:
        raise UsageError(run.error or "mmrepro run refuses the command line.")
    if run.lost is not None and not run.incident:
        raise MmreproError(run.error or "the run left nothing behind")
