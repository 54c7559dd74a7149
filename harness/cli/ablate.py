"""``mmrepro ablate``: which setting is really the cause of a failure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mmrepro.base.errors import ExitCode
from mmrepro.base.units import count
from mmrepro.campaign.ablate import AblateCommand
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.campaign.ablate import AblationPlan
    from rich.console import Console


@command(AblateCommand)
def ablate(asked: AblateCommand) -> None:
    """Toggle a failing scenario's factors, alone and together, and name the setting
    that is the cause.

    Finished runs are kept and used again by the next call; --fresh runs everything
    anew.

    Example:  mmrepro ablate ghost-key-eviction --factors mm-cache,prefix-caching
    """
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(asked.scenario).with_variant(asked.variant)
    # Before the rest is loaded, which takes seconds.
    asked.chosen(loaded)
    from mmrepro.campaign import TrialOptions
    from mmrepro.campaign.ablate import Ablating, ablation_plan
    from mmrepro.cli.campaign import carry_out
    from mmrepro.cli.console import console_for, emit, planned_head
    from mmrepro.cli.sources import released
    from mmrepro.reports import ABLATION_REPORT
    from mmrepro.reports.documents import keep
    from mmrepro.runs import check_options

    asked = released(asked, loaded.engine)
    check_options(loaded, asked.run)
    if asked.dry_run:
        expected = ablation_plan(loaded, asked)
        if asked.json:
            head = planned_head(asked, expected.seconds)
            emit(expected, head, "ablation-plan")
        else:
            _print_plan(expected, console_for(asked))
        return
    running = Ablating(loaded, asked, write=partial(keep, ABLATION_REPORT))
    trials = TrialOptions(
        timeout_s=asked.run.timeout_s, start_mode=asked.run.start_mode
    )
    carry_out(
        running,
        ABLATION_REPORT,
        asked,
        trials,
        exit_code=_exit_code,
        jobs=asked.jobs,
        device=running.device,
        budget_s=asked.budget_s,
    )


def _print_plan(expected: AblationPlan, console: Console) -> None:
    """The cells, what each takes, and what the estimate is based on."""
    from mmrepro.base.units import duration
    from mmrepro.reports.blocks import Paragraph, table
    from mmrepro.reports.terminal import print_blocks

    runs = reused = 0
    rows: list[tuple[str, ...]] = []
    for cell in expected.cells:
        runs += cell.runs
        reused += cell.reused
        about = duration(cell.seconds) if cell.runs else "–"
        flips = " + ".join(cell.flips) or "nothing"
        rows.append((cell.role, flips, str(cell.runs), str(cell.reused), about))
    heads = [
        "cell:name",
        "toggled:name",
        "runs:number",
        "in the cache:number",
        "about:number",
    ]
    name = expected.scenario + (f" ({expected.variant})" if expected.variant else "")
    blocks = [
        Paragraph(
            f"{name} on {expected.engine} {expected.release} ({expected.device}); its "
            f"environment is {expected.environment}"
        ),
        *table(heads, rows),
    ]
    if runs:
        blocks += [
            Paragraph(
                f"{count(runs, 'run')}, about {duration(expected.seconds)}; {reused} are in the "
                "cache."
            ),
            Paragraph(
                f"{duration(expected.seconds_each)} each: {expected.seconds_from}."
            ),
        ]
    else:
        blocks.append(
            Paragraph(
                f"Nothing is to be run: every one of {count(reused, 'run')} is in the cache."
            )
        )
    if expected.more:
        more = f"Up to {expected.more} more cells may follow: {expected.more_why}."
        blocks.append(Paragraph(more))
    print_blocks(blocks, console)


def _exit_code(made: Any) -> ExitCode:
    from mmrepro.failure.documents.searches import Conclusion

    codes = {
        Conclusion.CURE: ExitCode.AS_EXPECTED,
        Conclusion.NO_CURE: ExitCode.NOT_AS_EXPECTED,
    }
    return codes.get(made.conclusion, ExitCode.INCONCLUSIVE)
