"""``mmrepro bisect``: the release or commit that introduced or fixed a failure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer
from mmrepro.base.errors import ExitCode
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.campaign.bisect.plan import BisectionPlan
    from mmrepro.failure.documents.searches import Bisection
    from rich.console import Console


@command(BisectCommand)
def bisect(asked: BisectCommand) -> None:
    """Find the release (or commit) that introduced a failure, or the one that fixed it.

    Exit codes: 0 found, both sides run twice; 1 there is no boundary: the failure is in the last
    release too, or in none; 3 a range, or inconclusive; 4 infrastructure.

    Example:  mmrepro bisect ghost-key-eviction --find both
    """
    from mmrepro.campaign.bisect.plan import field_of, plan
    from mmrepro.campaign.bisect.session import Bisecting
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import carry_out
    from mmrepro.cli.commits import use_index
    from mmrepro.cli.console import console_for, emit
    from mmrepro.reports.bisection import KIND
    from mmrepro.reports.documents import keep
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(asked.scenario).with_variant(asked.variant)
    if asked.by == "commit":
        use_index(asked.index)
    field = field_of(loaded, asked)
    if asked.dry_run:
        expected = plan(loaded, asked, field)
        emit(expected) if asked.json else print_plan(expected, console_for(asked))
        return
    running = Bisecting(loaded, asked, field, write=partial(keep, KIND))
    trials = TrialOptions(
        timeout_s=asked.run.timeout_s,
        start_mode=asked.run.start_mode,
        commit_dates={p.commit: p.uploaded for p in field.points if p.commit},
    )
    made = carry_out(
        running,
        KIND,
        asked,
        trials,
        jobs=asked.jobs,
        device=field.device,
        budget_s=asked.budget_s,
    )
    raise typer.Exit(exit_code(made))


def print_plan(expected: BisectionPlan, console: Console) -> None:
    """The points, the prior, the runs to be expected and what is to be fetched."""
    from mmrepro.base.units import duration
    from mmrepro.reports.blocks import Paragraph, strong, table
    from mmrepro.reports.terminal import print_blocks

    name = expected.scenario + (f" ({expected.variant})" if expected.variant else "")
    points = expected.points
    shown = [(p.commit[:12] or p.name) + "*" * p.declared for p in points]
    rows = [
        (
            strong(side.direction),
            str(side.points),
            side.far,
            " and ".join(side.declared) or "no boundary is declared",
            f"{side.least} to {side.most}" if side.declared else f"about {side.most}",
            ", ".join(side.missing) or "–",
        )
        for side in expected.sides
    ]
    heads = ["side:name", "points:number", "as far as:name", "tried first:name", "runs:name"]
    least = sum(side.least for side in expected.sides)
    blocks = [
        Paragraph(
            f"{name} on {expected.engine} ({expected.device}): {len(points)} points from "
            f"{points[0].name} to {points[-1].name}; starting from {expected.known_bad}"
        ),
        Paragraph("* the scenario declares it affected", "soft"),
        Paragraph("  " + " ".join(shown)),
        *table([*heads, "to fetch at least:name"], rows),
        Paragraph("Fewest runs: it is as declared. Untestable points come on top.", "soft"),
        Paragraph(
            f"about {duration(least * expected.seconds_each)} for {least} runs, environments "
            f"apart; {duration(expected.seconds_each)} each: {expected.seconds_from}"
        ),
    ]
    print_blocks(blocks, console)


def exit_code(bisection: Bisection) -> ExitCode:
    from mmrepro.failure.documents.ledger import Lost
    from mmrepro.failure.documents.searches import SideConclusion

    runs = [run for point in bisection.points for run in point.runs]
    if bisection.state != "complete":
        return ExitCode.INCONCLUSIVE
    if runs and all(run.lost in (Lost.INFRASTRUCTURE, Lost.TIMEOUT) for run in runs):
        return ExitCode.INFRASTRUCTURE
    nothing = (SideConclusion.NO_BOUNDARY, SideConclusion.NO_FAILURE)
    order = (ExitCode.AS_EXPECTED, ExitCode.NOT_AS_EXPECTED, ExitCode.INCONCLUSIVE)
    codes = [order[0]]
    for _, side in bisection.sides:
        if side.conclusion in nothing:
            codes.append(order[1])
        elif side.conclusion is not SideConclusion.FOUND or not side.verified:
            codes.append(order[2])
    return max(codes, key=order.index)
