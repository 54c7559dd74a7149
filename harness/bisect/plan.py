"""What a bisection would do: its points, the prior, how many runs and environments it takes."""

from __future__ import annotations

import math
from typing import Annotated

from mmrepro.ablate.store import CellStore
from mmrepro.bisect.options import BisectCommand
from mmrepro.bisect.points import Field
from mmrepro.bisect.search import Direction
from mmrepro.engines import spec_for
from mmrepro.environments.build import existing
from mmrepro.incident.searches import Point
from mmrepro.records import Record
from mmrepro.scenario import Scenario
from pydantic import Field as Described


class SidePlan(Record):
    """What is to be expected of one side."""

    direction: str
    points: Annotated[int, Described(description="between the known bad one and the far end")]
    far: str
    declared: Annotated[
        list[str], Described(description="the two points that are tried first; older first")
    ] = []
    least: Annotated[int, Described(description="runs, if the declared boundary is right")]
    most: Annotated[int, Described(description="runs, if it is not; untestable points come on top")]
    missing: Annotated[
        list[str], Described(description="of the points tried first, those without environment")
    ] = []


class BisectionPlan(Record):
    """Printed by ``--dry-run``."""

    scenario: str
    variant: str
    engine: str
    device: str
    known_bad: str
    points: list[Point]
    sides: list[SidePlan]
    seconds_each: float
    seconds_from: str


def plan(scenario: Scenario, options: BisectCommand, field: Field) -> BisectionPlan:
    """Asks the package index for the releases, and nobody else; runs nothing."""
    store = CellStore(scenario.full_name, scenario.engine, scenario.release, field.device)
    estimate = store.estimate()
    return BisectionPlan(
        scenario=scenario.name,
        variant=scenario.variant,
        engine=scenario.engine,
        device=field.device,
        known_bad=field.points[field.bad].name,
        points=field.points[field.oldest : field.newest + 1],
        sides=[_side(scenario, options, field, direction) for direction in options.directions],
        seconds_each=estimate.seconds,
        seconds_from=estimate.why,
    )


def _side(
    scenario: Scenario, options: BisectCommand, field: Field, direction: Direction
) -> SidePlan:
    far, step = field.far(direction), -1 if direction == "introduced" else 1
    side = field.points[field.bad : far + step if far + step >= 0 else None : step]
    declared: list[Point] = []
    if side[0].declared and not all(p.declared for p in side):
        first = [p.declared for p in side].index(False)
        declared = side[first - 1 : first + 1]
    least = 4 + len({p.name for p in (*declared, side[0], side[-1])}) - 2 if declared else 0
    most = 2 + math.ceil(math.log2(max(2, len(side)))) + 2
    if options.linear:
        most = len(side) + 2
    repeat = options.repeat or 1
    tried = {p.name: p for p in (side[0], side[-1], *declared)}.values()
    return SidePlan(
        direction=direction,
        points=len(side),
        far=side[-1].name,
        declared=sorted((p.name for p in declared), key=[p.name for p in field.points].index),
        least=(least or most) * repeat,
        most=most * repeat,
        missing=[p.name for p in tried if not p.commit and not _is_there(scenario, field, p)],
    )


def _is_there(scenario: Scenario, field: Field, point: Point) -> bool:
    return existing(spec_for(scenario.engine, point.release, field.device)) is not None
