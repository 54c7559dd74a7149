"""``mmrepro ablate``: which setting is really the cause of a failure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer
from mmrepro.ablate.options import AblateCommand
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode

if TYPE_CHECKING:
    from mmrepro.ablate.plan import AblationPlan
    from mmrepro.incident.ablation import Ablation
    from mmrepro.scenario import Scenario
    from rich.console import Console


@command(AblateCommand)
def ablate(options: AblateCommand) -> None:
    """Toggle a failing scenario's factors, alone and together, and find the setting that causes it.

    Finished runs are kept and used again by the next call; --fresh runs everything anew.
    Exit codes: 0 a workaround was found; 1 there is none; 3 inconclusive; 4 infrastructure.

    Example:  mmrepro ablate ghost-key-eviction --factors mm-cache,prefix-caching
    """
    from mmrepro.cli.console import table_console
    from mmrepro.reports.documents import document_json
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(options.scenario).with_variant(options.variant)
    console = table_console(stderr=options.json or options.events == "-")
    if options.dry_run:
        _dry_run(loaded, options, console, json=options.json)
        return
    ablation = _run(loaded, options, console)
    if options.json:
        typer.echo(document_json(ablation), nl=False)
    raise typer.Exit(_exit_code(ablation))


def _run(scenario: Scenario, options: AblateCommand, console: Console) -> Ablation:
    from mmrepro.ablate.session import Ablating
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.reports.ablation import KIND
    from mmrepro.reports.documents import keep
    from mmrepro.reports.terminal import print_page

    running = Ablating(scenario, options, write=partial(keep, KIND))
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
        place = str(running.folder / KIND.files[1])
        print_page(KIND.compose(ablation), console, place, full=options.full)
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
    from mmrepro.reports.blocks import Paragraph, table
    from mmrepro.reports.terminal import print_blocks

    name = expected.scenario + (f" ({expected.variant})" if expected.variant else "")
    rows = [
        (
            cell.role,
            " + ".join(cell.flips) or "nothing",
            str(cell.runs),
            str(cell.reused),
            duration(cell.seconds) if cell.runs else "–",
        )
        for cell in expected.cells
    ]
    heads = ["cell:name", "toggled:name", "runs:number", "in the cache:number", "about:number"]
    runs = sum(cell.runs for cell in expected.cells)
    reused = sum(cell.reused for cell in expected.cells)
    blocks = [
        Paragraph(
            f"{name} on {expected.engine} {expected.release} ({expected.device}); its environment "
            f"is {expected.environment}"
        ),
        *table(heads, rows),
    ]
    if runs:
        blocks += [
            Paragraph(
                f"{runs} runs, about {duration(expected.seconds)}; {reused} are in the cache."
            ),
            Paragraph(f"{duration(expected.seconds_each)} each: {expected.seconds_from}."),
        ]
    else:
        blocks.append(Paragraph(f"Nothing is to be run: all {reused} runs are in the cache."))
    if expected.more:
        more = f"Up to {expected.more} more cells may follow: {expected.more_why}."
        blocks.append(Paragraph(more))
    print_blocks(blocks, console)


def _exit_code(ablation: Ablation) -> ExitCode:
    from mmrepro.incident.ablation import Conclusion

    return {
        Conclusion.CURE: ExitCode.AS_EXPECTED,
        Conclusion.NO_CURE: ExitCode.NOT_AS_EXPECTED,
        Conclusion.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        None: ExitCode.INCONCLUSIVE,
    }[ablation.conclusion]
