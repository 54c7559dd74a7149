"""A fake of what runs engines, for the pytest that a test runs: installed by its
conftest.

Everything else is the plugin's own, from the collection to what pytest reports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from matrix_nights import FakeProvisions, FakeTrials
from mmrepro.campaign.trial import TrialOptions
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, Role
from mmrepro.failure.signature import Outcome
from mmrepro.pytest_plugin import items, running
from mmrepro.scenario.registry import load_scenario

HERE = Path(__file__).parent
CONFTEST = f"""
import sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent / "matrix")!r}]
import plugin_fakes
plugin_fakes.install({{world!r}})
"""
KNOWN = (items, load_scenario("ghost-key-eviction"))
"""Imported here once: each run of pytest in this process forgets what it imported."""

World = Mapping[str, Sequence[str]]
"""What the runs of a cell come to, one after another, by release, or by mitigation."""
Faked = Callable[[World], pytest.Pytester]
LOG = "runs.log"

TRIALS: list[RecordingTrials] = []
PROVISIONS: list[FakeProvisions] = []
"""All that were made since :func:`install`."""


class RecordingTrials(FakeTrials):
    """Writes down when it runs what, in which process."""

    def __init__(self, options: TrialOptions, world: World) -> None:
        def came(cell: Cell, index: int) -> Outcome | Lost:
            some = next(
                world[n]
                for n in (*cell.mitigations, cell.release, "else")
                if n in world
            )
            said = some[min(index, len(some)) - 1]
            return Outcome(said) if said in set(Outcome) else Lost(said)

        super().__init__(came)
        self.options = options
        self.cells: list[Cell] = []

    def run(
        self,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        self.cells.append(cell)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        _log(f"begin {worker} {cell.release}")
        if worker:
            time.sleep(0.02)  # so that two of them, were they allowed to, overlap
        done = super().run(cell, folder, root, night=night, index=index, role=role)
        _log(f"end {worker} {cell.release}")
        expected = items.planned("", load_scenario(cell.scenario), cell).expected
        told = {"expected": expected, "explanation": "as the fake has it"}
        update = told if done.outcome else {"expected": None}
        return done.model_copy(update={**update, "command": "mmrepro run"})


def install(world: World) -> None:
    """In this process, from here on."""
    TRIALS.clear()
    PROVISIONS.clear()

    def trials(options: TrialOptions) -> RecordingTrials:
        TRIALS.append(RecordingTrials(options, world))
        return TRIALS[-1]

    def provisions(*_: object) -> FakeProvisions:
        PROVISIONS.append(FakeProvisions())
        return PROVISIONS[-1]

    running.Trials = trials  # type: ignore[assignment, misc]
    running.Provisions = provisions  # type: ignore[assignment, misc]


def _log(line: str) -> None:
    with Path(LOG).open("a") as file:
        file.write(f"{line}\n")


def before_the_summary(text: str) -> str:
    """What pytest printed before its short summary, whose lines are whole on CI
    alone."""
    shown, header, _ = text.partition("short test summary info")
    assert header
    return shown
