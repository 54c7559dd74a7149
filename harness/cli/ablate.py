"""``mmrepro ablate``: which setting is really the cause of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from mmrepro.ablate.options import AblateCommand
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode

if TYPE_CHECKING:
    from mmrepro.ablate.plan import AblationPlan
    from rich.console import Console


@command(AblateCommand)
def ablate(asked: AblateCommand) -> None:
    """Toggle a failing scenario's factors, alone and together, and name the setting that is the
    cause.

    Finished runs are kept and used again by the next call; --fresh runs everything anew.
    Exit codes: 0 a workaround was found; 1 there is none; 3 inconclusive; 4 infrastructure.

    Example:  mmrepro ablate ghost-key-eviction --factors mm-cache,prefix-caching
    """
    from mmrepro.ablate.plan import plan
    from mmrepro.ablate.session import Ablating
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, finish
    from mmrepro.cli.console import console_for, emit
    from mmrepro.cluster.where import placed
    from mmrepro.reports import ablation as reports, ablation_view as words
    from mmrepro.reports.ablation_terminal import print_ablation
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(asked.scenario).with_variant(asked.variant)
    console = console_for(asked)
    if asked.dry_run:
        expected = plan(loaded, asked)
        emit(expected) if asked.json else print_plan(expected, console)
        return
    running = Ablating(loaded, asked, write=reports.write_ablation)
    trials = TrialOptions(timeout_s=asked.run.timeout_s, start_mode=asked.run.start_mode)
    with placed(asked.jobs, asked.ray) as where:
        made = conduct(
            running,
            lambda say: where.places(say, trials, device=running.device),
            console,
            asked,
            budget_s=asked.budget_s,
        )
    page = running.folder / reports.HTML_FILE
    finish(asked, console, made, page, words, print_ablation)
    raise typer.Exit(_exit_code(made))


def print_plan(expected: AblationPlan, console: Console) -> None:
    """The cells, what each takes, and what the estimate is based on."""
    from mmrepro.base.units import duration
    from mmrepro.cli.console import table

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    line(
        f"{expected.scenario}{f' ({expected.variant})' if expected.variant else ''} on "
        f"{expected.engine} {expected.release} ({expected.device}); its environment is "
        f"{expected.environment}"
    )
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
    console.print(table(("cell", "toggled", "runs", "in the cache", "about"), rows))
    runs = sum(cell.runs for cell in expected.cells)
    reused = sum(cell.reused for cell in expected.cells)
    line(
        f"{runs} runs, about {duration(expected.seconds)}; {reused} are in the cache.\n"
        f"{duration(expected.seconds_each)} each: {expected.seconds_from}."
        if runs
        else f"Nothing is to be run: all {reused} runs are in the cache."
    )
    if expected.more:
        line(f"Up to {expected.more} more cells may follow: {expected.more_why}.")


def _exit_code(made: Any) -> ExitCode:
    from mmrepro.incident.ablation import Conclusion

    codes = {Conclusion.CURE: ExitCode.AS_EXPECTED, Conclusion.NO_CURE: ExitCode.NOT_AS_EXPECTED}
    return codes.get(made.conclusion, ExitCode.INCONCLUSIVE)
