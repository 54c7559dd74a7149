"""``mmrepro ablate``: which setting is really the cause of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from mmrepro.ablate.options import AblateCommand
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode

if TYPE_CHECKING:
    from mmrepro.ablate.plan import AblationPlan
    from mmrepro.incident.searches import Ablation
    from mmrepro.scenario import Scenario
    from rich.console import Console


@command(AblateCommand)
def ablate(options: AblateCommand) -> None:
    """Flip a failing scenario's factors, alone and together, and say which setting is the cause.

    Finished runs are kept and used again by the next call; --fresh runs everything anew.
    Exit codes: 0 a cure was found; 1 none cures; 3 inconclusive; 4 infrastructure.

    Example:  mmrepro ablate ghost-key-eviction --factors mm-cache,prefix-caching
    """
    from mmrepro.cli.console import table_console
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(options.scenario).with_variant(options.variant)
    console = table_console(stderr=options.json or options.events == "-")
    if options.dry_run:
        _dry_run(loaded, options, console, json=options.json)
        return
    ablation = _run(loaded, options, console)
    if options.json:
        typer.echo(ablation.model_dump_json(indent=1))
    raise typer.Exit(_exit_code(ablation))


def _run(scenario: Scenario, options: AblateCommand, console: Console) -> Ablation:
    from mmrepro.ablate.session import Ablating
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.reports.ablation import write_ablation
    from mmrepro.reports.ablation_terminal import print_ablation

    running = Ablating(scenario, options, write=write_ablation)
    trials = TrialOptions(timeout_s=options.run.timeout_s, start_mode=options.run.start_mode)
    with placed(options.jobs, options.ray) as where:
        ablation = conduct(
            running,
            lambda say: where.places(say, trials, device=running.device),
            console,
            budget_s=options.budget_s,
            events=options.events,
        )
    if not options.json:
        print_ablation(ablation, console, str(running.folder))
    return ablation


def _dry_run(scenario: Scenario, options: AblateCommand, console: Console, *, json: bool) -> None:
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
    from mmrepro.incident.searches import Conclusion

    return {
        Conclusion.CURE: ExitCode.AS_EXPECTED,
        Conclusion.NO_CURE: ExitCode.NOT_AS_EXPECTED,
        Conclusion.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        None: ExitCode.INCONCLUSIVE,
    }[ablation.conclusion]
