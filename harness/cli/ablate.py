"""``mmrepro ablate``: which setting is really the cause of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mmrepro.cli.bounds import WEEK_S
from mmrepro.cli.run import DeviceChoice
from mmrepro.cli.where import Budget, Events, Jobs, Ray
from mmrepro.errors import ExitCode
from mmrepro.run.options import StartMode

if TYPE_CHECKING:
    from mmrepro.ablate.options import AblateOptions
    from mmrepro.ablate.plan import AblationPlan
    from mmrepro.campaign.provisions import Say
    from mmrepro.campaign.work import Places
    from mmrepro.incident.ablation import Ablation
    from mmrepro.scenario import Scenario
    from rich.console import Console


def ablate(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario, or a FILE.py with one.")],
    variant: Annotated[
        str, typer.Option(help="Variant of the scenario; see mmrepro show SCENARIO.")
    ] = "",
    release: Annotated[
        str, typer.Option(help="Release of the engine.  [default: the scenario's]")
    ] = "",
    factors: Annotated[
        str, typer.Option(help="Only these, separated by commas; see mmrepro show SCENARIO.")
    ] = "",
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each cell.")] = 1,
    threshold: Annotated[
        int, typer.Option(min=1, max=1000, help="Failing runs that make a cell fail.")
    ] = 1,
    device: Annotated[
        DeviceChoice, typer.Option(help="auto takes a GPU where there is one.")
    ] = DeviceChoice.AUTO,
    server_arg: Annotated[
        list[str] | None, typer.Option(help="One more option for the server, in every cell.")
    ] = None,
    start_mode: Annotated[
        StartMode,
        typer.Option(
            envvar="MMREPRO_START_MODE",
            help="How servers are started; see mmrepro run --help. auto means warm here.",
        ),
    ] = StartMode.AUTO,
    timeout: Annotated[float, typer.Option(min=1, max=WEEK_S, help="Seconds for one run.")] = 600.0,
    jobs: Jobs = None,
    ray: Ray = "",
    budget: Budget = "",
    events: Events = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every cell anew.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and the time they take; run none.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The ablation's folder; give it again to go on.  [default: ablations/…]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Flip a failing scenario's factors, alone and together, and say which setting is the cause.

    Finished runs are kept and used again by the next call; --fresh runs everything anew.
    Exit codes: 0 a cure was found; 1 none cures; 3 inconclusive; 4 infrastructure.

    Example:  mmrepro ablate ghost-key-eviction --factors mm-cache,prefix-caching
    """
    from mmrepro.ablate.options import AblateOptions
    from mmrepro.base.units import parse_duration
    from mmrepro.cli.console import table_console
    from mmrepro.run.options import RunOptions
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(scenario).with_variant(variant)
    options = AblateOptions(
        run=RunOptions(
            release=release,
            device=device.value,
            server_args=tuple(server_arg or ()),
            timeout_s=timeout,
            scenario=scenario,
            variant=variant,
            start_mode=start_mode,
        ),
        factors=tuple(dict.fromkeys(name.strip() for name in factors.split(",") if name.strip())),
        repeat=repeat,
        threshold=threshold,
        fresh=fresh,
        out=out,
    )
    console = table_console(stderr=json or events == "-")
    if dry_run:
        _dry_run(loaded, options, console, json=json)
        return
    how = {"budget_s": parse_duration(budget) if budget else None, "events": events}
    ablation = _run(loaded, options, console, quiet=json, jobs=jobs, ray=ray, **how)
    if json:
        typer.echo(ablation.model_dump_json(indent=1))
    raise typer.Exit(_exit_code(ablation))


def _run(
    scenario: Scenario,
    options: AblateOptions,
    console: Console,
    *,
    quiet: bool,
    jobs: int | None,
    ray: str,
    **how: Any,
) -> Ablation:
    from mmrepro.ablate.session import Ablating
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.reports.ablation import write_ablation
    from mmrepro.reports.ablation_terminal import print_ablation

    running = Ablating(scenario, options, write=write_ablation)
    trials = TrialOptions(timeout_s=options.run.timeout_s, start_mode=options.run.start_mode)
    with placed(jobs, ray) as where:

        def places(say: Say) -> Places:
            return where.places(say, trials, device=running.document.device)

        ablation = conduct(running, places, console, **how)
    if not quiet:
        print_ablation(ablation, console, str(running.folder))
    return ablation


def _dry_run(scenario: Scenario, options: AblateOptions, console: Console, *, json: bool) -> None:
    from mmrepro.ablate.plan import plan

    expected = plan(scenario, options)
    if json:
        typer.echo(expected.model_dump_json(indent=1))
    else:
        print_plan(expected, console)


def print_plan(expected: AblationPlan, console: Console) -> None:
    """The cells, what each takes, and what the estimate is based on."""
    from mmrepro.base.units import duration
    from rich import box
    from rich.table import Table

    console.print(
        f"{expected.scenario}{f' ({expected.variant})' if expected.variant else ''} on "
        f"{expected.engine} {expected.release} ({expected.device}); its environment is "
        f"{expected.environment}",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("cell", "flipped", "runs", "in the cache", "about"):
        table.add_column(head)
    for cell in expected.cells:
        table.add_row(
            cell.role,
            " + ".join(cell.flips) or "nothing",
            str(cell.runs),
            str(cell.reused),
            duration(cell.seconds) if cell.runs else "–",
        )
    console.print(table)
    runs = sum(cell.runs for cell in expected.cells)
    reused = sum(cell.reused for cell in expected.cells)
    console.print(
        f"{runs} runs, about {duration(expected.seconds)}; {reused} are in the cache.\n"
        f"{duration(expected.seconds_each)} each: {expected.seconds_from}."
        if runs
        else f"Nothing is to be run: all {reused} runs are in the cache.",
        highlight=False,
        soft_wrap=True,
    )
    if expected.more:
        console.print(
            f"Up to {expected.more} more cells may follow: {expected.more_why}.",
            highlight=False,
            soft_wrap=True,
        )


def _exit_code(ablation: Ablation) -> ExitCode:
    from mmrepro.incident.ablation import Conclusion

    return {
        Conclusion.CURE: ExitCode.AS_EXPECTED,
        Conclusion.NO_CURE: ExitCode.NOT_AS_EXPECTED,
        Conclusion.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        None: ExitCode.INCONCLUSIVE,
    }[ablation.conclusion]
