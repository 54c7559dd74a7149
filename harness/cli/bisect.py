"""``mmrepro bisect``: the release or commit that a failure came in with, or went with."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer
from mmrepro.bisect.options import BisectCommand
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode

if TYPE_CHECKING:
    from mmrepro.bisect.plan import BisectionPlan
    from mmrepro.bisect.points import Field
    from mmrepro.campaign.provisions import Say
    from mmrepro.campaign.work import Places
    from mmrepro.cli.campaign import Where
    from mmrepro.incident.bisection import Bisection
    from mmrepro.scenario import Scenario
    from rich.console import Console


@command(BisectCommand)
def bisect(options: BisectCommand) -> None:
    """Find the release (or commit) that a failure came in with, or the one that it went with.

    Exit codes: 0 found, both sides run twice; 1 there is no boundary: the failure is in the last
    release too, or in none; 3 a range, or inconclusive; 4 infrastructure.

    Example:  mmrepro bisect ghost-key-eviction --find both
    """
    from mmrepro.bisect.points import field_of
    from mmrepro.cli.campaign import placed
    from mmrepro.cli.commits import use_index
    from mmrepro.cli.console import table_console
    from mmrepro.reports.documents import document_json
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(options.scenario).with_variant(options.variant)
    if options.by == "commit":
        use_index(options.index)
    console = table_console(stderr=options.json or options.events == "-")
    field = field_of(loaded, options)
    if options.dry_run:
        _dry_run(loaded, options, field, console, json=options.json)
        return
    with placed(options.jobs, options.ray) as where:
        bisection = _run(loaded, options, field, where, console)
    if options.json:
        typer.echo(document_json(bisection), nl=False)
    raise typer.Exit(exit_code(bisection))


def _run(
    scenario: Scenario, options: BisectCommand, field: Field, where: Where, console: Console
) -> Bisection:
    from mmrepro.bisect.session import Bisecting
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct
    from mmrepro.reports.bisection import KIND
    from mmrepro.reports.documents import keep
    from mmrepro.reports.terminal import print_page

    running = Bisecting(scenario, options, field, write=partial(keep, KIND))
    trials = TrialOptions(
        timeout_s=options.run.timeout_s,
        start_mode=options.run.start_mode,
        commit_dates={p.commit: p.uploaded for p in field.points if p.commit},
    )

    def places(say: Say) -> Places:
        return where.places(say, trials, device=field.device)

    bisection = conduct(running, places, console, budget_s=options.budget_s, events=options.events)
    if not options.json:
        place = str(running.folder / KIND.files[1])
        print_page(KIND.compose(bisection), console, place, full=options.full)
    return bisection


def _dry_run(
    scenario: Scenario, options: BisectCommand, field: Field, console: Console, *, json: bool
) -> None:
    from mmrepro.bisect.plan import plan

    expected = plan(scenario, options, field)
    if json:
        typer.echo(expected.model_dump_json(indent=1))
    else:
        print_plan(expected, console)


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
    from mmrepro.incident.bisection import SideConclusion
    from mmrepro.incident.ledger import Lost

    runs = [run for point in bisection.points for run in point.runs]
    if bisection.state != "complete":
        return ExitCode.INCONCLUSIVE
    if runs and all(run.lost in (Lost.INFRASTRUCTURE, Lost.TIMEOUT) for run in runs):
        return ExitCode.INFRASTRUCTURE
    nothing = (SideConclusion.NO_BOUNDARY, SideConclusion.NO_FAILURE)
    order = (ExitCode.AS_EXPECTED, ExitCode.NOT_AS_EXPECTED, ExitCode.INCONCLUSIVE)
    codes = [order[0]]
    for side in (bisection.introduced, bisection.fixed):
        if side is None:
            continue
        if side.conclusion in nothing:
            codes.append(order[1])
        elif side.conclusion is not SideConclusion.FOUND or not side.verified:
            codes.append(order[2])
    return max(codes, key=order.index)
