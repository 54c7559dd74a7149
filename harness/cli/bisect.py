"""``mmrepro bisect``: the release or commit that a failure came in with, or went with."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mmrepro.cli.bounds import WEEK_S
from mmrepro.cli.commits import IndexOption
from mmrepro.cli.run import DeviceChoice
from mmrepro.cli.where import Budget, Events, Jobs, Ray, words
from mmrepro.errors import ExitCode
from mmrepro.run.options import StartMode

if TYPE_CHECKING:
    from mmrepro.bisect.options import BisectOptions
    from mmrepro.bisect.plan import BisectionPlan
    from mmrepro.bisect.points import Field
    from mmrepro.campaign.provisions import Say
    from mmrepro.campaign.work import Places
    from mmrepro.cli.campaign import Where
    from mmrepro.incident.bisection import Bisection
    from mmrepro.scenario import Scenario
    from rich.console import Console


class FindChoice(StrEnum):
    INTRODUCED = "introduced"
    FIXED = "fixed"
    BOTH = "both"


class ByChoice(StrEnum):
    RELEASE = "release"
    COMMIT = "commit"


def bisect(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario, or a FILE.py with one.")],
    find: Annotated[
        FindChoice, typer.Option(help="Where it came in, where it went, or both.")
    ] = FindChoice.BOTH,
    good: Annotated[str, typer.Option(help="Search no further than this one.")] = "",
    bad: Annotated[
        str, typer.Option(help="Start from this one.  [default: the scenario's release]")
    ] = "",
    by: Annotated[
        ByChoice, typer.Option(help="Releases of the package index, or a list of commits.")
    ] = ByChoice.RELEASE,
    commits: Annotated[
        Path | None, typer.Option(help="Lines SHA [DATE] [SUBJECT], as git log prints them.")
    ] = None,
    index: IndexOption = "",
    variant: Annotated[
        str, typer.Option(help="Variant of the scenario; see mmrepro show SCENARIO.")
    ] = "",
    device: Annotated[
        DeviceChoice, typer.Option(help="auto takes a GPU where there is one.")
    ] = DeviceChoice.AUTO,
    server_arg: Annotated[
        list[str] | None, typer.Option(help="One more option for the server, in every run.")
    ] = None,
    mitigation: Annotated[
        list[str] | None, typer.Option(help="Apply a mitigation; see mmrepro show SCENARIO.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME=VALUE: an option of the scenario.")
    ] = None,
    repeat: Annotated[
        str, typer.Option(metavar="auto|N", help="Runs of each point; auto: as many as it needs.")
    ] = "auto",
    confidence: Annotated[
        float, typer.Option(help="How sure a boundary must be where runs contradict each other.")
    ] = 0.95,
    linear: Annotated[bool, typer.Option("--linear", help="One after another.")] = False,
    start_mode: Annotated[
        StartMode,
        typer.Option(
            envvar="MMREPRO_START_MODE", help="How servers are started; see mmrepro run --help."
        ),
    ] = StartMode.AUTO,
    timeout: Annotated[float, typer.Option(min=1, max=WEEK_S, help="Seconds for one run.")] = 600.0,
    keep_environments: Annotated[
        bool, typer.Option("--keep-environments", help="Keep those that were fetched for this.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the bisection in --out; no run is repeated."),
    ] = False,
    jobs: Jobs = None,
    ray: Ray = "",
    budget: Budget = "",
    events: Events = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the points and the expected runs; run none.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The bisection's folder.  [default: bisections/…]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Find the release (or commit) that a failure came in with, or the one that it went with.

    Exit codes: 0 found, both sides run twice; 1 there is no boundary: the failure is in the last
    release too, or in none; 3 a range, or inconclusive; 4 infrastructure.

    Example:  mmrepro bisect ghost-key-eviction --find both
    """
    from mmrepro.base.units import parse_duration
    from mmrepro.bisect.options import BisectOptions
    from mmrepro.bisect.points import field_of
    from mmrepro.cli.campaign import placed
    from mmrepro.cli.commits import use_index
    from mmrepro.cli.console import table_console
    from mmrepro.errors import UsageError
    from mmrepro.run.options import RunOptions
    from mmrepro.scenario.registry import load_scenario

    loaded = load_scenario(scenario).with_variant(variant)
    if resume and out is None:
        raise UsageError("--resume needs the folder to go on with.", hint="--resume --out DIR")
    options = BisectOptions(
        run=RunOptions(
            device=device.value,
            server_args=tuple(server_arg or ()),
            mitigations=tuple(dict.fromkeys(mitigation or ())),
            options=tuple(option or ()),
            timeout_s=timeout,
            scenario=scenario,
            variant=variant,
            start_mode=start_mode,
        ),
        find=find.value,
        by=by.value,
        good=good,
        bad=bad,
        commits=commits,
        repeat=_repeat(repeat),
        confidence=confidence,
        linear=linear,
        keep_environments=keep_environments,
        resume=resume,
        out=out,
        where=words(jobs, ray, budget),
    )
    if by is ByChoice.COMMIT:
        use_index(index)
    console = table_console(stderr=json or events == "-")
    field = field_of(loaded, options)
    if dry_run:
        _dry_run(loaded, options, field, console, json=json)
        return
    budget_s = parse_duration(budget) if budget else None
    with placed(jobs, ray) as where:
        how = {"budget_s": budget_s, "events": events}
        bisection = _run(loaded, options, field, where, console, quiet=json, **how)
    if json:
        typer.echo(bisection.model_dump_json(indent=1))
    raise typer.Exit(exit_code(bisection))


def _repeat(text: str) -> int | None:
    from mmrepro.errors import UsageError

    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(f"--repeat {text} is neither auto nor a number from 1 to 1000.")
    return int(text)


def _run(
    scenario: Scenario,
    options: BisectOptions,
    field: Field,
    where: Where,
    console: Console,
    *,
    quiet: bool,
    **how: Any,
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

    bisection = conduct(running, places, console, **how)
    if not quiet:
        print_bisection(bisection, console, str(running.folder))
    return bisection


def _dry_run(
    scenario: Scenario, options: BisectOptions, field: Field, console: Console, *, json: bool
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
