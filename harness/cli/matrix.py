"""``mmrepro matrix``: scenarios × releases, night after night."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from mmrepro.base import units
from mmrepro.cli.bounds import WEEK_S
from mmrepro.cli.matrix_ledger import (
    DEFAULT_OUT,
    Excused,
    Folder,
    Json,
    NightName,
    chosen_night,
    quarantine_of,
)
from mmrepro.cli.run import DeviceChoice
from mmrepro.cli.where import Budget, Events, Jobs, Ray
from mmrepro.run.options import StartMode

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
            help="affected, boundary, after, newest, own, A..B or versions, separated by commas.  "
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
    jobs: Jobs = None,
    max_time: Annotated[str, typer.Option(help="The same as --budget.")] = "",
    budget: Budget = "",
    timeout: Annotated[
        float | None, typer.Option(min=1, max=WEEK_S, help="Seconds for one run.  [default: 600]")
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
    ray: Ray = "",
    events: Events = "",
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
    from mmrepro.cli.matrix_run import Asked, execute, settings_of

    settings = settings_of(
        engine=engine,
        releases=releases,
        mitigation=mitigation,
        device=device,
        repeat=repeat,
        max_time=max_time or budget,
        disk=disk,
        confirm=confirm,
        jobs=jobs,
        timeout=timeout,
        quarantine=str(quarantine) if quarantine is not None else None,
        every=units.parse_duration(every) if every else None,
        start_mode=start_mode,
        machine=machine or None,
        ray=ray or None,
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
        events=events,
    )
    raise typer.Exit(execute(asked))


class Format(StrEnum):
    TERMINAL = "terminal"
    MD = "md"
    HTML = "html"
    JSON = "json"
    JUNIT = "junit"


@app.command()
def report(
    ledger: Folder = Path(DEFAULT_OUT),
    night: NightName = "",
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.TERMINAL,
    quarantine: Excused = None,
    write: Annotated[
        Path | None, typer.Option(help="Write all files of the report into this folder instead.")
    ] = None,
) -> None:
    """Tell a night again, from the ledger alone.

    Example:  mmrepro matrix report nights --format md >> "$GITHUB_STEP_SUMMARY"
    """
    from mmrepro.cli.console import table_console
    from mmrepro.history.ledger import read
    from mmrepro.reports.dashboard import linked, render_dashboard
    from mmrepro.reports.night import night_view, write_night
    from mmrepro.reports.night_json import night_json
    from mmrepro.reports.night_junit import render_night_junit
    from mmrepro.reports.night_markdown import render_night_markdown
    from mmrepro.reports.night_terminal import print_night

    history = read(ledger)
    chosen = chosen_night(ledger, night, history)
    excused = quarantine_of(quarantine)
    if write is not None:
        for path in write_night(history, chosen, write, excused):
            typer.echo(str(path))
        return
    shown = night_view(history, chosen, excused)
    if format is Format.TERMINAL:
        print_night(shown, table_console())
        return
    text = {
        Format.MD: lambda: render_night_markdown(shown),
        Format.HTML: lambda: render_dashboard(shown, linked(ledger)),
        Format.JSON: lambda: night_json(shown),
        Format.JUNIT: lambda: render_night_junit(shown),
    }[format]()
    typer.echo(text.rstrip("\n"))


@app.command()
def diff(
    ledger: Folder = Path(DEFAULT_OUT),
    before: Annotated[
        str, typer.Argument(help="A night, or DIR:NIGHT of another ledger.  [default: the last]")
    ] = "",
    now: Annotated[str, typer.Argument(help="Likewise.  [default: the newest]")] = "",
    json: Json = False,
) -> None:
    """Say what changed from one night to another.

    Exit codes: 0 nothing that alarms; 1 a bug came back, a drift, a flaky cell, another failure.

    Example:  mmrepro matrix diff nights 2026-11-21 2026-11-22
    """
    from mmrepro.cli.console import table_console
    from mmrepro.errors import ExitCode, UsageError
    from mmrepro.history.events import ALARMS, diff as find
    from mmrepro.history.ledger import read
    from mmrepro.reports.night_terminal import print_events

    after = chosen_night(ledger, now)
    if before:
        first = chosen_night(ledger, before)
    else:
        earlier = read(ledger).before(after.night)
        if not earlier:
            raise UsageError(
                f"{ledger} has no night before {after.night.id}.",
                hint=f"mmrepro matrix report {ledger}",
            )
        first = earlier[-1]
    found = find(first, after)
    if json:
        import json as json_module

        told = [event.model_dump(mode="json") for event in found]
        ids = {"before": first.night.id, "now": after.night.id}
        typer.echo(json_module.dumps({**ids, "events": told}, indent=1, ensure_ascii=False))
    else:
        print_events(found, table_console(), first.night.id, after.night.id)
    if any(event.what in ALARMS for event in found):
        raise typer.Exit(ExitCode.NOT_AS_EXPECTED)


@app.command()
def history(
    ledger: Folder = Path(DEFAULT_OUT),
    scenario: Annotated[str, typer.Option(help="Each cell of this one.")] = "",
    json: Json = False,
) -> None:
    """Show every row over the nights, oldest first.

    Example:  mmrepro matrix history nights --scenario ghost-key-eviction
    """
    from mmrepro.cli.console import table_console
    from mmrepro.history.ledger import read
    from mmrepro.reports.night_json import history_json
    from mmrepro.reports.night_terminal import print_history

    known = read(ledger)
    if json:
        typer.echo(history_json(known, scenario).rstrip("\n"))
        return
    print_history(known, table_console(), scenario)


@app.command()
def merge(
    folders: Annotated[
        list[Path], typer.Argument(help="Ledgers' folders: of shards, or of nights.", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option(help="The ledger that they are added to.")],
    incidents: Annotated[bool, typer.Option(help="Copy the incidents as well.")] = True,
    quarantine: Excused = None,
) -> None:
    """Make one ledger of several, and its reports; what is there already is kept.

    Example:  mmrepro matrix merge shard-1 shard-2 --out nights
    """
    from mmrepro.history.ledger import read
    from mmrepro.history.merge import merge as join
    from mmrepro.reports.night import write_night

    excused = quarantine_of(quarantine)
    done = join(folders, out, incidents=incidents)
    if done.nothing:
        typer.echo(f"{out} has all of that already.")
        return
    nights = ", ".join(done.nights)
    typer.echo(
        f"{out}: {done.cells} cells, {done.attempts} runs, {done.events} events of {nights}; "
        f"{done.incidents} incidents copied."
    )
    for missing in done.missing:
        typer.echo(f"no such incident: {missing}", err=True)
    known = read(out)
    if known.newest is not None:
        write_night(known, known.newest, out, excused)
