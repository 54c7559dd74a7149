"""``mmrepro bisect``: the release or commit that a failure came in with, or went with."""

from __future__ import annotations

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
    from mmrepro.incident.searches import Bisection
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
        typer.echo(bisection.model_dump_json(indent=1))
    raise typer.Exit(exit_code(bisection))


def _run(
    scenario: Scenario, options: BisectCommand, field: Field, where: Where, console: Console
) -> Bisection:
    from mmrepro.bisect.session import Bisecting
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct
    from mmrepro.reports.bisection import write_bisection
    from mmrepro.reports.bisection_terminal import print_bisection

    running = Bisecting(scenario, options, field, write=write_bisection)
    trials = TrialOptions(
        timeout_s=options.run.timeout_s,
        start_mode=options.run.start_mode,
        commit_dates={p.commit: p.uploaded for p in field.points if p.commit},
    )

    def places(say: Say) -> Places:
        return where.places(say, trials, device=field.device)

    bisection = conduct(running, places, console, budget_s=options.budget_s, events=options.events)
    if not options.json:
        print_bisection(bisection, console, str(running.folder))
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
    from mmrepro.reports.lines import Printer

    line = Printer(console).line
    name = expected.scenario + (f" ({expected.variant})" if expected.variant else "")
    points = expected.points
    line(
        f"{name} on {expected.engine} ({expected.device}): {len(points)} points from "
        f"{points[0].name} to {points[-1].name}; starting from {expected.known_bad}",
        cut=False,
    )
    line("  " + " ".join(p.name[:12] + ("*" if p.declared else "") for p in points), cut=False)
    line("  * declared affected")
    for side in expected.sides:
        line()
        line((side.direction, "bold"), f": {side.points} points, as far as {side.far}")
        if side.declared:
            line(f"  tried first: between {' and '.join(side.declared)}, as the scenario declares")
            line(f"  {side.least} runs if that is right, about {side.most} if not", cut=False)
        else:
            line(f"  no boundary is declared there; about {side.most} runs")
        line("  points that cannot be tested come on top")
        if side.missing:
            line(f"  to be fetched at least: {', '.join(side.missing)}", cut=False)
    least = sum(side.least for side in expected.sides)
    line()
    line(
        f"about {duration(least * expected.seconds_each)} for {least} runs, environments apart; "
        f"{duration(expected.seconds_each)} each: {expected.seconds_from}",
        cut=False,
    )


def exit_code(bisection: Bisection) -> ExitCode:
    from mmrepro.incident.ledger import Lost
    from mmrepro.incident.searches import SideConclusion

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
