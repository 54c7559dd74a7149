"""``mmrepro run``: drive a real engine into a known failure and judge what was seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode
from mmrepro.run.options import RunCommand

if TYPE_CHECKING:
    from mmrepro.incident import Incident
    from mmrepro.run.starter import Starter
    from mmrepro.scenario import Scenario
    from rich.console import Console


@command(RunCommand)
def run(options: RunCommand) -> None:
    """Reproduce a known failure on the real engine and write an incident.

    Example:  mmrepro run ghost-key-eviction --release 0.24.0
    """
    from mmrepro.errors import UsageError
    from mmrepro.run.starter import Starter
    from mmrepro.scenario.registry import load_scenario
    from rich.console import Console

    chosen = load_scenario(options.scenario).with_variant(options.variant)
    if options.commit or options.index:
        from mmrepro.cli.commits import use_index

        use_index(options.index, options.commit, options.commit_date)
    repeat, json = options.repeat, options.json
    if options.keep_server and repeat > 1:
        raise UsageError("--keep-server and --repeat cannot be combined: one server is kept.")
    console = Console(stderr=json)
    several = repeat > 1 or chosen.control_server is not None
    with Starter(options.start_mode, several=several, keeps=options.keep_server) as starter:
        incidents = [
            _one(
                chosen,
                options.numbered(number) if repeat > 1 else options,
                starter,
                console,
                quiet=json,
            )
            for number in range(1, repeat + 1)
        ]
    if json:
        typer.echo(_document(incidents))
    elif repeat > 1:
        _tell_repeats(incidents, console)
    raise typer.Exit(max((_exit_code(incident) for incident in incidents), key=_severity))


def _one(
    scenario: Scenario, options: RunCommand, starter: Starter, console: Console, *, quiet: bool
) -> Incident:
    from mmrepro.cli.progress import Progress
    from mmrepro.errors import UsageError
    from mmrepro.incident.folder import discard
    from mmrepro.reports import write_reports
    from mmrepro.reports.documents import HTML_FILE
    from mmrepro.reports.incident import compose
    from mmrepro.reports.terminal import print_page
    from mmrepro.run.runner import begin, execute
    from mmrepro.run.start import target

    what = target(scenario, options)
    title = f"{scenario.full_name} on {scenario.engine} {what.release} ({what.device})"
    display = Progress(console, title)
    journal = begin(scenario, options, display)
    try:
        with display:
            incident = execute(scenario, options, journal, starter)
    except UsageError:  # nothing was run: no incident
        discard(journal.folder)
        raise
    except BaseException:
        _tell_partial(journal.folder)
        raise
    write_reports(journal.folder)
    if not quiet:
        place = f"{incident.incident_dir}/{HTML_FILE}"
        print_page(compose(incident), console, place, full=options.full)
    return incident


def _tell_partial(folder: Path) -> None:
    """What was collected until then is on disk; reports of it may be partial."""
    from mmrepro.reports import write_reports

    try:
        write_reports(folder)
    except Exception:
        typer.echo("The partial incident could not be turned into a report.", err=True)
    typer.echo(f"Partial incident: {folder}", err=True)


def _document(incidents: list[Incident]) -> str:
    """The incident; of several, the first with every run's outcome beside it."""
    import json

    from mmrepro.incident.folder import incident_json

    if len(incidents) == 1:
        return incident_json(incidents[0])

    worst = max(incidents, key=lambda incident: _severity(_exit_code(incident)))
    document = json.loads(incident_json(worst))
    document["runs"] = [
        {
            "incident_dir": incident.incident_dir,
            "outcome": incident.outcome,
            "as_expected": bool(incident.verdict and incident.verdict.as_expected),
        }
        for incident in incidents
    ]
    return json.dumps(document, indent=1)


def _tell_repeats(incidents: list[Incident], console: Console) -> None:
    from collections import Counter

    counts = Counter(str(incident.outcome) for incident in incidents)
    told = ", ".join(f"{count} × {outcome}" for outcome, count in counts.most_common())
    console.print(f"\n{len(incidents)} runs: {told}", highlight=False)


def _exit_code(incident: Incident) -> ExitCode:
    verdict = incident.verdict
    if verdict is None or verdict.outcome == "inconclusive":
        return ExitCode.INCONCLUSIVE
    surprise = verdict.expected is not None and not verdict.as_expected
    return ExitCode.NOT_AS_EXPECTED if surprise else ExitCode.AS_EXPECTED


def _severity(code: ExitCode) -> int:
    """A surprise outweighs a run that could not tell, and that one a success."""
    order = (ExitCode.AS_EXPECTED, ExitCode.INCONCLUSIVE, ExitCode.NOT_AS_EXPECTED)
    return order.index(code)
