"""``mmrepro bisect``: the release or commit that introduced or fixed a failure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mmrepro.base.errors import ExitCode
from mmrepro.base.options import declared
from mmrepro.base.units import count
from mmrepro.campaign.bisect import BisectCommand, BisectRunCommand
from mmrepro.cli.options import command
from mmrepro.traffic.case import CASE_DIR, CASE_FILE

if TYPE_CHECKING:
    from mmrepro.campaign.bisect import BisectionPlan, UpstreamSubject
    from mmrepro.failure.documents.searches import Bisection
    from mmrepro.reports.blocks import Inline
    from mmrepro.scenario import Scenario
    from mmrepro.search.replay.bisected import CaseSubject
    from rich.console import Console


@command(BisectCommand)
def bisect(asked: BisectCommand) -> None:
    """Find the release (or commit) that introduced or fixed a failure.

    SCENARIO is a scenario, a case.json, or a finding: its folder, or f1 for that of the
    newest replay; with --measure it is a recording or a profile, and the metric's move
    is searched for.

    Example:  mmrepro bisect ghost-key-eviction --source ~/vllm --find fixed
    """
    from mmrepro.campaign import ByRun, TrialOptions
    from mmrepro.campaign.bisect import (
        Bisecting,
        BisectingTest,
        bisection_plan,
        field_of,
        newest_end,
    )
    from mmrepro.cli.campaign import carry_out
    from mmrepro.cli.commits import use_index
    from mmrepro.cli.console import console_for, emit, planned_head
    from mmrepro.reports import BISECTION_REPORT
    from mmrepro.reports.documents import keep
    from mmrepro.search.replay.bisected import BisectingCase

    test: UpstreamSubject | None = None
    case: CaseSubject | None = None
    if asked.test:
        test = _test_of(asked, asked.clone, newest_end(asked))
        loaded = test.scenario
    else:
        case, loaded = _what(asked)
    if asked.by == "commit":
        use_index(asked.index)
    field = field_of(loaded, asked)
    if asked.dry_run:
        expected = bisection_plan(loaded, asked, field)
        if asked.json:
            least = sum(side.least for side in expected.sides)
            head = planned_head(asked, least * expected.seconds_each)
            emit(expected, head, "bisection-plan")
        else:
            _print_plan(expected, console_for(asked))
        return
    asked = replace(asked, **field.ends)
    write = partial(keep, BISECTION_REPORT)
    if test is not None:
        running: Bisecting = BisectingTest(test, asked, field, write=write)
    elif case is not None and asked.measure:
        from mmrepro.search.upgrade.bisected import BisectingMetric

        running = BisectingMetric(case, asked, field, write=write)
    elif case is not None:
        running = BisectingCase(case, asked, field, write=write)
    else:
        running = Bisecting(loaded, asked, field, write=write)
    trials = TrialOptions(
        timeout_s=asked.run.timeout_s,
        start_mode=asked.run.start_mode,
        commit_dates={p.commit: p.uploaded for p in field.points if p.commit},
        making=getattr(running, "making", ByRun()),
    )
    carry_out(
        running,
        BISECTION_REPORT,
        asked,
        trials,
        exit_code=exit_code,
        jobs=asked.jobs,
        device=field.device,
        budget_s=asked.budget_s,
    )


@command(BisectRunCommand)
def bisect_run(asked: BisectRunCommand) -> None:
    """Test one source tree, for git bisect run.

    The exit codes are those of git. With --find fixed 0 and 1 change places.

    Example:  git bisect run mmrepro bisect-run ghost-key-eviction
    """
    import tempfile
    from contextlib import ExitStack

    from mmrepro.base.records import DocumentHead
    from mmrepro.base.text import one_line
    from mmrepro.campaign import ByRun, Making
    from mmrepro.campaign.bisect import tested_apart, tested_tree
    from mmrepro.cli.console import emit
    from mmrepro.cli.test_tree import split_revision
    from mmrepro.failure.documents import prepared_folder

    test: UpstreamSubject | None = None
    case: CaseSubject | None = None
    loaded: Scenario | None = None
    if asked.test:
        place, _ = split_revision(asked.source)
        test = _test_of(asked, place, asked.newer)
        loaded = test.scenario
    else:
        case, loaded = _what_apart(asked)
    with ExitStack() as kept:
        if asked.out is None:
            root = Path(
                kept.enter_context(
                    tempfile.TemporaryDirectory(prefix="mmrepro-bisect-")
                )
            )
        else:
            root = prepared_folder(asked.out)
        if case is not None:
            asked = replace(asked, scenario=case.name)
        if loaded is None:
            made = tested_apart(asked, root)
        else:
            making: Making = ByRun()
            if case is not None:
                making = case.making(root / CASE_DIR)
            elif test is not None:
                making = test.making()
                asked = replace(asked, scenario=test.name)
            made = tested_tree(loaded, asked, making, root)
    if asked.json:
        summary = one_line(f"{made.words}: {made.verdict}; {made.why}", 400)
        head = DocumentHead(
            status=made.verdict.value, exit_code=made.exit_code, summary=summary
        )
        emit(made, head, "bisect-run")
    elif asked.quiet:
        typer.echo(made.verdict.upper())
    else:
        called = f": {made.term}" if made.term else ""
        typer.echo(one_line(f"{made.words}: {made.verdict}; {made.why}", 400))
        typer.echo(f"exit code {made.exit_code} for git bisect{called or ': skip'}")
    raise typer.Exit(made.exit_code)


def _test_of(asked: Any, clone: Path | None, newer: str) -> UpstreamSubject:
    """The test that is meant.

    Raises:
        UsageError: a scenario is given as well, or something that only a server takes.
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.campaign.bisect import UpstreamSubject

    if asked.scenario or asked.server_args or asked.mitigations or asked.options:
        raise UsageError(
            "--test is run without a server: a scenario, its options and those of a "
            "server exclude it.",
            hint="mmrepro bisect --test tests/x/test_y.py::test_z --source DIR",
        )
    assert clone is not None  # as the options' own check has it
    return UpstreamSubject(asked.test, clone, newer)


def _what(asked: Any) -> tuple[CaseSubject | None, Scenario]:
    """The case that is meant, if it is one, and the scenario, or what stands for one.

    Raises:
        UsageError: no such case or variant; a mitigation that is a release; an option
            that only a scenario has; as ``check``.
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.search.replay.bisected import subject

    if not asked.scenario:
        raise UsageError(
            "What is to be bisected?", hint="mmrepro bisect SCENARIO, or --test TEST"
        )
    if getattr(asked, "measure", ""):
        from mmrepro.search.upgrade.bisected import traffic

        case: CaseSubject | None = traffic(asked)
    else:
        case = subject(asked.scenario)
    if case is None:
        return None, scenario_of(asked)
    own = ["variant", "mitigations", "options"]
    if case.contents is None:  # a recording has no server of its own
        own.append("server_args")
    names = {one.field: one.name for one in declared(type(asked))}
    for name in own:
        if getattr(asked, name):
            raise UsageError(
                (
                    f"{names[name]} is for scenarios: a case has its server's options "
                    "in it."
                ),
                hint=f"change the server in {case.folder / CASE_FILE}",
            )
    if getattr(asked, "ray", ""):
        raise UsageError("A case is replayed on this machine: --ray is for scenarios.")
    return case, case.scenario


def _what_apart(asked: BisectRunCommand) -> tuple[CaseSubject | None, Scenario | None]:
    """As :func:`_what`; a scenario that is not mmrepro's own is None: it is not loaded
    here."""
    from mmrepro.scenario.registry import (
        comes_with_mmrepro,
        is_file_name,
        scenario_names,
    )

    name = asked.scenario
    if is_file_name(name) or (
        name in scenario_names() and not comes_with_mmrepro(name)
    ):
        return None, None
    return _what(asked)


def scenario_of(asked: BisectCommand | BisectRunCommand) -> Scenario:
    """The scenario that is meant; its file, if it is one, is run.

    Raises:
        UsageError: no such scenario or variant; a mitigation that is a release; as
            ``check``.
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.runs import check_options
    from mmrepro.scenario.registry import load_scenario

    scenario = load_scenario(asked.scenario).with_variant(asked.variant)
    check_options(scenario, asked.run)
    for name in asked.mitigations:
        if release := scenario.mitigation(name).release:
            raise UsageError(
                (
                    f"The mitigation {name!r} is another release, {release}: a point "
                    "of its own."
                ),
                hint=f"mmrepro bisect {asked.scenario}",
            )
    return scenario


def _print_plan(expected: BisectionPlan, console: Console) -> None:
    """The points, the prior, the runs to be expected and what is to be fetched."""
    from mmrepro.base.units import duration
    from mmrepro.reports.blocks import Paragraph, strong, table
    from mmrepro.reports.terminal import print_blocks

    name = expected.scenario + (f" ({expected.variant})" if expected.variant else "")
    points = expected.points
    shown = [(p.commit[:12] or p.name) + "*" * p.declared for p in points]
    least = 0
    rows: list[tuple[Inline, ...]] = []
    for side in expected.sides:
        least += side.least
        runs = f"{side.least} to {side.most}" if side.declared else f"about {side.most}"
        row = (
            strong(side.direction),
            str(side.points),
            side.far,
            " and ".join(side.declared) or "no boundary is declared",
            runs,
            ", ".join(side.missing) or "–",
        )
        rows.append(row)
    heads = [
        "side:name",
        "points:number",
        "as far as:name",
        "tried first:name",
        "runs:name",
    ]
    blocks = [
        Paragraph(
            f"{name} on {expected.engine} ({expected.device}): {count(len(points), 'point')} "
            f"from {points[0].name} to {points[-1].name}; starting from "
            f"{expected.known_bad}"
        ),
        Paragraph("* the scenario declares it affected", "soft"),
        Paragraph("  " + " ".join(shown)),
        *table([*heads, "to fetch at least:name"], rows),
        Paragraph(
            "At best, if the declared range is right; untestable releases add to this.",
            "soft",
        ),
        Paragraph(
            f"about {duration(least * expected.seconds_each)} for {count(least, 'run')}, "
            f"environments apart; {duration(expected.seconds_each)} each: "
            f"{expected.seconds_from}"
        ),
    ]
    print_blocks(blocks, console)


def exit_code(bisection: Bisection) -> ExitCode:
    """The exit code of a bisection: the worst of its sides."""
    from mmrepro.failure.documents import Lost
    from mmrepro.failure.documents.searches import SideConclusion

    if bisection.state != "complete":
        return ExitCode.INCONCLUSIVE
    lost: set[Lost | None] = set()
    for point in bisection.points:
        lost.update(run.lost for run in point.runs)
    # Where no run told anything, the machine is at fault and not the engine.
    if lost and lost <= {Lost.INFRASTRUCTURE, Lost.TIMEOUT}:
        return ExitCode.INFRASTRUCTURE

    nothing = (SideConclusion.NO_BOUNDARY, SideConclusion.NO_FAILURE)
    order = (ExitCode.AS_EXPECTED, ExitCode.NOT_AS_EXPECTED, ExitCode.INCONCLUSIVE)
    codes = [ExitCode.AS_EXPECTED]
    for _, side in bisection.sides:
        if side.conclusion in nothing:
            codes.append(ExitCode.NOT_AS_EXPECTED)
        elif side.conclusion is not SideConclusion.FOUND or not side.verified:
            codes.append(ExitCode.INCONCLUSIVE)
    return max(codes, key=order.index)
