"""``mmrepro matrix simulate``: what a night would take on so many machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from mmrepro.cli.run import DeviceChoice

MACHINES = "1,2,4,8,16"


def simulate(
    file: Annotated[
        Path | None, typer.Argument(help="FILE.toml with the rows, as for matrix run.")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option(help="As for matrix run. May be repeated.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Only scenarios of this engine.")] = "",
    releases: Annotated[str, typer.Option(help="As for matrix run.  [default: own,newest]")] = "",
    device: Annotated[DeviceChoice | None, typer.Option(help="As for matrix run.")] = None,
    mitigation: Annotated[list[str] | None, typer.Option(help="As for matrix run.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=1000, help="Runs of each cell.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Orders at a time on each machine.")] = 1,
    max_time: Annotated[str, typer.Option(help="As for matrix run, e.g. 45m.")] = "",
    disk: Annotated[str, typer.Option(help="What a night may add to each machine, e.g. 40G.")] = "",
    machines: Annotated[str, typer.Option(help="How many, several with commas.")] = MACHINES,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Where earlier runs' times are; without a scenario, its newest night's cells.  "
            "[default: nights, if it is there]"
        ),
    ] = None,
    cells: Annotated[
        int | None, typer.Option(min=1, max=50_000, help="So many: copies of the plan's.")
    ] = None,
    fetched: Annotated[
        bool, typer.Option("--fetched", help="All machines have all environments already.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what a night would take on several machines: nothing is run or fetched.

    The cells are given out as matrix run does it, with the times that were measured.

    Example:  mmrepro matrix simulate nightly.toml --machines 1,2,4 --ledger nights
    """
    from mmrepro.cli.matrix_run import Asked, settings_of
    from mmrepro.cli.matrix_simulated import Question, execute

    settings = settings_of(
        engine=engine,
        releases=releases,
        mitigation=mitigation,
        device=device,
        repeat=repeat,
        max_time=max_time,
        disk=disk,
    )
    asked = Asked(file, tuple(scenario or ()), settings, json=json)
    execute(asked, Question(machines, jobs, ledger, cells, fetched))
