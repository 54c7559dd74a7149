"""What an ablation would run, and how long that takes: nothing is started, nothing is built."""

from __future__ import annotations

from typing import Annotated

from mmrepro.ablate.cells import KnownCells
from mmrepro.ablate.ddmin import bound
from mmrepro.ablate.options import AblateCommand
from mmrepro.ablate.search import Flips, search
from mmrepro.ablate.states import decided, state_of_cell, state_of_run
from mmrepro.incident.ablation import CellState, Role
from mmrepro.machine.cache import device_of
from mmrepro.records import Record
from mmrepro.run.start import chosen_release
from mmrepro.scenario import Scenario
from pydantic import Field


class PlannedCell(Record):
    flips: list[str]
    role: Role
    runs: Annotated[int, Field(description="runs that are still to be made")]
    reused: Annotated[int, Field(description="runs that the cache has")]
    seconds: Annotated[float, Field(description="estimate for the runs to be made")]
    command: Annotated[str, Field(description="the command of one of its runs")]


class AblationPlan(Record):
    scenario: str
    variant: str
    engine: str
    release: str
    device: str
    environment: Annotated[str, Field(description="there, or to be built first")]
    cells: list[PlannedCell]
    more: Annotated[int, Field(description="cells that may follow, at most")]
    more_why: str
    seconds: Annotated[float, Field(description="estimate for the cells listed")]
    seconds_each: float
    seconds_from: Annotated[str, Field(description="what the estimate is based on")]


def plan(scenario: Scenario, options: AblateCommand) -> AblationPlan:
    """The cells that are certain, as far as the cache tells what follows. Raises UsageError.

    Where a cell's outcome is not known yet, the plan goes on as if its flips changed nothing.
    """
    factors = options.chosen(scenario)
    release = chosen_release(scenario, options.run)
    device = device_of(options.run.device)
    known = KnownCells(scenario, options, release, device)
    each = known.store.estimate()
    cells: list[PlannedCell] = []
    unknown: list[Flips] = []

    def state(flips: Flips, role: Role) -> CellState:
        states = [state_of_run(run) for run in known.first(flips)]
        whole = len(states) >= options.repeat or (
            role != "baseline" and decided(states, options.repeat, options.threshold)
        )
        left = 0 if whole else options.repeat - len(states)
        cells.append(
            PlannedCell(
                flips=list(flips),
                role=role,
                runs=left,
                reused=len(states),
                seconds=round(left * each.seconds, 1),
                command=options.of_cell(flips).command_line(
                    scenario=options.scenario or scenario.name
                ),
            )
        )
        if whole:
            return state_of_cell(states, options.repeat, options.threshold)[0]
        unknown.append(flips)
        return CellState.FAILS

    search([f.name for f in factors], lambda cells, role: [state(c, role) for c in cells])
    count = len(factors)
    more = (1 + bound(count) + count if count > 1 else 0) if unknown else 0
    return AblationPlan(
        scenario=scenario.name,
        variant=scenario.variant,
        engine=scenario.engine,
        release=release,
        device=device,
        environment="there" if known.environment is not None else "to be built first",
        cells=cells,
        more=more,
        more_why="one if a factor alone is a workaround; more only if none is and all together are"
        if more
        else "",
        seconds=round(sum(cell.seconds for cell in cells), 1),
        seconds_each=round(each.seconds, 1),
        seconds_from=each.why,
    )
