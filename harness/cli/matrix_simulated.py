"""``mmrepro matrix simulate``, from the options to the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from mmrepro.cli.console import table_console
from mmrepro.cli.matrix_run import planned_of
from mmrepro.errors import UsageError
from mmrepro.history.ledger import History, read
from mmrepro.incident.ledger import LEDGER_FILE, Planned
from mmrepro.matrix.dispatch import SETUP_S
from mmrepro.matrix.file import MatrixFile, load
from mmrepro.matrix.measured import ASSUMED_BYTES, NEAR, NONE, OWN, Measured
from mmrepro.matrix.options import DEFAULT_OUT, SimulateCommand
from mmrepro.matrix.plan import (
    ASSUMED_BUILD_S,
    ASSUMED_RUN_S,
    ASSUMED_WHY,
    Estimates,
    Group,
    groups_of,
)
from mmrepro.matrix.schedule import REPEAT
from mmrepro.matrix.simulate import Fleet, Played, Times, copies, simulate
from mmrepro.records import Record
from mmrepro.reports.night_words import plural
from mmrepro.reports.words import duration
from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

MOST = 4096
MOST_WORK = 2_000_000
"""Cells times machines times jobs, of all that is asked in one go: some ten seconds."""


class Simulation(Record):
    cells: int
    environments: int
    run_s: Annotated[float, Field(description="of all runs, one after another")]
    nights: list[Played]
    measured: Annotated[list[str], Field(description="what the figures are based on")]
    assumed: list[str]


def execute(asked: SimulateCommand) -> None:
    """Print what a night would take. Raises MmreproError."""
    asked, given = asked.under(load(asked.file) if asked.file is not None else MatrixFile())
    settings = asked.settings.over(given.matrix)
    history, source = _history(asked, settings.out)
    planned = _cells(asked, given, history, source)
    repeat = settings.repeat or REPEAT
    basis = Basis()
    numbers = _numbers(asked.machines)
    work = (asked.cells or len(planned)) * sum(numbers) * asked.jobs
    if work > MOST_WORK:
        raise UsageError(
            f"Cells times machines times jobs are {work:,}: more than {MOST_WORK:,} would take "
            "minutes.",
            hint="fewer --cells, --machines or --jobs",
        )
    cells, seconds = _times(planned, asked.cells, Estimates(history), source, basis)
    groups = groups_of(cells)
    times = _environments(groups, seconds, repeat, basis, fetched=asked.fetched)
    fleets = [
        Fleet(number, asked.jobs, asked.fetched, settings.disk, settings.max_time)
        for number in numbers
    ]
    basis.assumed.append(
        f"{SETUP_S:.0f} s of set-up for each order, where an environment has several runs; nothing "
        "fails or surprises; machines are alike, and runs do not slow one another"
    )
    told = Simulation(
        cells=len(cells),
        environments=len(groups),
        run_s=round(sum(seconds.values()) * repeat, 1),
        nights=simulate(groups, times, fleets),
        measured=basis.measured,
        assumed=basis.assumed,
    )
    if asked.json:
        typer.echo(told.model_dump_json(indent=1))
    else:
        _print(told, settings.disk is not None, table_console())


@dataclass
class Basis:
    """What the figures are based on, in words."""

    measured: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


def _history(asked: SimulateCommand, out: str | None) -> tuple[History, str]:
    """Earlier nights, and where they are."""
    folder = asked.ledger or Path(out or DEFAULT_OUT)
    if asked.ledger is None and not (folder / LEDGER_FILE).is_file():
        return History(), ""
    return read(folder), str(folder)


def _cells(
    asked: SimulateCommand, given: MatrixFile, history: History, source: str
) -> list[Planned]:
    if asked.file is not None or asked.scenarios or history.newest is None:
        return planned_of(asked.run, given)[0]
    if not history.newest.planned:
        raise UsageError(f"The newest night of {source} has no cell.", hint="mmrepro list")
    return list(history.newest.planned.values())


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if not all(0 < number <= MOST for number in numbers):
        raise UsageError(
            f"--machines {text!r} is not numbers from 1 to {MOST}.", hint="e.g. --machines 1,2,4"
        )
    return numbers


def _times(
    planned: Sequence[Planned], number: int | None, estimates: Estimates, source: str, basis: Basis
) -> tuple[list[Planned], dict[str, float]]:
    """The cells, and what a run of each takes."""
    known = {p.cell.id: estimates.of(p.cell) for p in planned}
    counts = Counter(why.rpartition(" ")[2] for _, why in known.values() if why != ASSUMED_WHY)
    if counts:
        of = ", ".join(f"{counts[w]} by the {w}" for w in ("cell", "row", "engine") if counts[w])
        basis.measured.append(f"run times: medians of the attempts in {source}: {of}")
    if rest := len(known) - counts.total():
        basis.assumed.append(f"run times: {rest} cells, {ASSUMED_RUN_S:.0f} s each")
    made = copies(planned, number or len(planned))
    if len(made) > len(planned):
        basis.assumed.append(
            f"{len(made) - len(planned):,} of the {len(made):,} cells are copies of the plan's "
            f"{len(planned)}, in the same environments"
        )
    return [p for p, _ in made], {p.cell.id: known[original][0] for p, original in made}


def _environments(
    groups: Sequence[Group], run: Mapping[str, float], repeat: int, basis: Basis, *, fetched: bool
) -> Times:
    here = Measured()
    counts = Counter(here.basis(group) for group in groups)
    if counts[OWN] and not fetched:
        basis.measured.append(
            f"environments: build time and packages of {counts[OWN]} of {len(groups)} as they are "
            "on this machine; a machine has each package once, bytes are unpacked ones"
        )
    if fetched:
        basis.assumed.append("environments: every machine has all of them")
    else:
        basis.assumed.append("environments: no machine has any at the start")
        if counts[NEAR]:
            basis.assumed.append(
                f"environments: {counts[NEAR]} that are not on this machine are like the nearest "
                "older release of their engine that is, but for the engine's own package"
            )
        if counts[NONE]:
            basis.assumed.append(
                f"environments: {counts[NONE]} of engines that this machine has none of, "
                f"{ASSUMED_BUILD_S:.0f} s and {ASSUMED_BYTES / 2**30:.0f} GiB each"
            )
    packages = {group.name: here.packages(group) for group in groups}
    builds = {group.name: 0.0 if fetched else here.build_s(group) for group in groups}
    specs = {group.name: group.spec for group in groups}
    rooms = {n: ASSUMED_BYTES if spec is None else spec.disk_bytes for n, spec in specs.items()}
    return Times(
        run,
        build=lambda group: builds[group.name],
        packages=lambda group: packages[group.name],
        room=lambda group: rooms[group.name],
        repeat=repeat,
    )


def _print(told: Simulation, bounded: bool, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    heads = ["machines", "takes", "efficiency", "orders", "longest", "idle", "fetched", "unpacked"]
    heads += ["fullest disk", *(["dropped", "fetched again"] if bounded else []), "cells left"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for one in told.nights:
        table.add_row(
            str(one.machines),
            duration(one.makespan_s),
            f"{one.efficiency:.0%}",
            str(one.orders),
            duration(one.longest_s),
            f"{one.idle_s / (one.machines * one.jobs * one.makespan_s or 1):.0%}",
            str(one.builds),
            _gib(one.fetched_bytes),
            _gib(one.disk_bytes),
            *([str(one.dropped), _gib(one.again_bytes)] if bounded else []),
            str(one.left),
        )
    sums = ((told.cells, "cell"), (told.environments, "environment"))
    words = [f"{number:,} {plural(number, word)}" for number, word in sums]
    text = f"{words[0]} in {words[1]}; the runs alone take {duration(told.run_s)}."
    console.print(text, highlight=False, soft_wrap=True)
    console.print(table)
    for kind, these in (("Measured", told.measured), ("Assumed", told.assumed)):
        for line in these:
            console.print(f"{kind}: {line}.", highlight=False, soft_wrap=True)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
