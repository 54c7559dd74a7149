"""``mmrepro matrix``: scenarios × releases, night after night."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from mmrepro.cli.run import DeviceChoice
from mmrepro.run.options import StartMode

DEFAULT_OUT = "nights"

app = typer.Typer(
    name="matrix",
    help="Run many scenarios on many releases, keep what came of it, and say what changed.",
    no_args_is_help=True,
)


@app.command()
def run(
    file: Annotated[
        Path | None, typer.Argument(help="FILE.toml with the rows; see docs/matrix.md.")
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(help="NAME, NAME:VARIANT, NAME:all, a FILE.py, or all. May be repeated."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Only scenarios of this engine.")] = "",
    releases: Annotated[
        str,
        typer.Option(
            help="affected, boundary, newest, own, A..B or versions, separated by commas.  "
            "[default: own,newest]"
        ),
    ] = "",
    device: Annotated[
        DeviceChoice | None,
        typer.Option(help="auto takes a GPU where there is one.  [default: auto]"),
    ] = None,
    mitigation: Annotated[
        list[str] | None,
        typer.Option(help="none, each (one more cell for each), or a name.  [default: none]"),
    ] = None,
    server_arg: Annotated[
        list[str] | None, typer.Option(help="One more option for the server, in every cell.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME=VALUE: an option of the scenario.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Runs of each cell.  [default: 1]")
    ] = None,
    confirm: Annotated[
        int | None,
        typer.Option(min=0, max=100, help="More runs of a cell that surprises.  [default: 3]"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=64, help="Environments at a time.  [default: 1]")
    ] = None,
    max_time: Annotated[
        str, typer.Option(help="Start no run that is not expected to end in time, e.g. 45m.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds for one run.  [default: 600]")
    ] = None,
    disk: Annotated[
        str, typer.Option(help="What the night may add to the disk, e.g. 40G.  [default: no bound]")
    ] = "",
    quarantine: Annotated[
        Path | None, typer.Option(help="TOML with the cells that are not to fail the night.")
    ] = None,
    every: Annotated[
        str, typer.Option(help="When the next night is due, e.g. 24h; a missing one is told.")
    ] = "",
    start_mode: Annotated[
        StartMode | None,
        typer.Option(help="As for mmrepro run.  [default: warm, so that all nights are alike]"),
    ] = None,
    shard: Annotated[
        str, typer.Option(help="I/N: the Ith of N machines' part; join with matrix merge.")
    ] = "",
    machine: Annotated[str, typer.Option(help="This machine's label in the ledger.")] = "",
    out: Annotated[
        Path | None, typer.Option(help=f"The ledger's folder.  [default: {DEFAULT_OUT}]")
    ] = None,
    night: Annotated[str, typer.Option(help="Name of the night.  [default: the UTC date]")] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest night that is unfinished.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and the time they take; run none.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Run a night: every scenario on every release that is asked for, each in its own process.

    The same command on the same night goes on with it; what has ended is kept.
    Exit codes: 0 all as expected; 1 a surprise; 3 inconclusive or left; 4 infrastructure.

    Example:  mmrepro matrix run --scenario ghost-key-eviction --releases boundary,newest
    """
    from mmrepro.cli.matrix_run import Asked, execute
    from mmrepro.matrix import quantity, selectors
    from mmrepro.matrix.file import Settings

    settings = Settings(
        engine=engine or None,
        releases=list(selectors.parse(releases)) if releases else None,
        mitigation=mitigation or None,
        device=device.value if device is not None else None,
        repeat=repeat,
        confirm=confirm,
        jobs=jobs,
        max_time=quantity.seconds(max_time) if max_time else None,
        timeout=timeout,
        disk=quantity.size(disk) if disk else None,
        quarantine=str(quarantine) if quarantine is not None else None,
        every=quantity.seconds(every) if every else None,
        start_mode=start_mode,
        machine=machine or None,
        out=str(out) if out is not None else None,
    )
    asked = Asked(
        file=file,
        scenarios=tuple(scenario or ()),
        server_args=tuple(server_arg or ()),
        options=tuple(option or ()),
        settings=settings,
        shard=shard,
        night=night,
        resume=resume,
        dry_run=dry_run,
        json=json,
    )
    raise typer.Exit(execute(asked))
