"""``mmrepro run``: drive a real engine into a known failure and judge what was
observed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from mmrepro.base.errors import ExitCode
from mmrepro.cli.options import command
from mmrepro.runs import RunCommand

if TYPE_CHECKING:
    from mmrepro.base.records import DocumentHead
    from mmrepro.engines.environments import EnvironmentSpec
    from mmrepro.failure.documents import Incident
    from mmrepro.runs import Starter
    from mmrepro.scenario import Scenario
    from rich.console import Console


@command(RunCommand)
def run(asked: RunCommand) -> None:
    """Reproduce a known failure on the real engine and write an incident.

    Example:  mmrepro run ghost-key-eviction --release 0.24.0
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.cli.commits import use_index
    from mmrepro.cli.console import announce, emit
    from mmrepro.cli.sources import released
    from mmrepro.runs import Starter, target
    from mmrepro.scenario.registry import load_scenario
    from rich.console import Console

    chosen = load_scenario(asked.scenario).with_variant(asked.variant)
    asked = released(asked, chosen.engine)
    if asked.commit or asked.index:
        use_index(asked.index, asked.commit, asked.commit_date)
    repeat = asked.repeat
    if asked.keep_server and repeat > 1:
        raise UsageError(
            "--keep-server and --repeat cannot be combined: one server is kept."
        )
    resolved = target(chosen, asked)
    announce(resolved, yes=asked.yes)
    about = (
        f"{chosen.full_name} on {chosen.engine} {resolved.release} ({resolved.device})"
    )
    console = Console(stderr=asked.json, quiet=asked.quiet)
    several = repeat > 1 or chosen.control_server is not None
    with Starter(asked.start_mode, several=several) as starter:
        incidents = [
            _one(
                chosen,
                asked.numbered(number) if repeat > 1 else asked,
                resolved,
                starter,
                about,
                console,
            )
            for number in range(1, repeat + 1)
        ]
    worst = max(incidents, key=lambda incident: _severity(_exit_code(incident)))
    if asked.json:
        emit(_document(incidents, worst), _head(worst))
    elif repeat > 1:
        _print_repeats(incidents, console)
    raise typer.Exit(_exit_code(worst))


def _one(
    scenario: Scenario,
    asked: RunCommand,
    resolved: EnvironmentSpec,
    starter: Starter,
    about: str,
    console: Console,
) -> Incident:
    from mmrepro.base.errors import UsageError
    from mmrepro.cli.console import table_console
    from mmrepro.cli.progress import Progress
    from mmrepro.failure.documents import as_published, discard_folder, shown_here
    from mmrepro.reports import INCIDENT_REPORT, load_incident
    from mmrepro.reports.documents import write
    from mmrepro.reports.terminal import print_page
    from mmrepro.runs import begin_run, execute_run

    display = Progress(console, about, verbose=asked.verbose)
    journal = begin_run(scenario, asked, resolved, display)
    try:
        with display:
            incident = execute_run(scenario, asked, resolved, journal, starter)
    except (UsageError, ModuleNotFoundError):  # nothing was run: no incident
        discard_folder(journal.folder)
        raise
    except BaseException:
        _keep_partial(journal.folder)
        raise
    # The incident as it was written: what is printed is redacted as the files are.
    incident = load_incident(journal.folder)
    write(INCIDENT_REPORT, incident, journal.folder)
    if not asked.json:
        place = f"{journal.folder}/{INCIDENT_REPORT.files[1]}"
        # What is to be typed again has the user's own paths, and no secret.
        own = {
            "command": shown_here(incident).command,
            "incident_dir": str(journal.folder),
        }
        shown = as_published(incident).model_copy(update=own)
        page = INCIDENT_REPORT.compose(shown)
        print_page(page, table_console(), place, full=asked.full, quiet=asked.quiet)
    return incident


def _keep_partial(folder: Path) -> None:
    """What was collected until then is on disk; reports of it may be partial."""
    from mmrepro.reports import write_reports

    try:
        write_reports(folder)
    except Exception:
        typer.echo("The partial incident could not be turned into a report.", err=True)
    typer.echo(f"Partial incident: {folder}", err=True)


def _head(incident: Incident) -> DocumentHead:
    from mmrepro.cli.console import head_of_page
    from mmrepro.failure.documents import as_published
    from mmrepro.reports import INCIDENT_REPORT

    page = INCIDENT_REPORT.compose(as_published(incident))
    place = f"{incident.incident_dir}/{INCIDENT_REPORT.files[1]}"
    status = str(incident.outcome or incident.state)
    return head_of_page(page, status, _exit_code(incident), place)


def _document(incidents: list[Incident], worst: Incident) -> object:
    """The incident; of several the first with the gravest end, with every run's outcome
    in it."""
    import json

    if len(incidents) == 1:
        return worst
    runs = [
        {
            "incident_dir": incident.incident_dir,
            "outcome": incident.outcome,
            "as_expected": bool(incident.verdict and incident.verdict.as_expected),
        }
        for incident in incidents
    ]
    return {**json.loads(worst.model_dump_json(indent=1)), "runs": runs}


def _print_repeats(incidents: list[Incident], console: Console) -> None:
    from collections import Counter

    counts = Counter(str(incident.outcome) for incident in incidents)
    each = ", ".join(f"{count} × {outcome}" for outcome, count in counts.most_common())
    console.print(f"\n{len(incidents)} runs: {each}", highlight=False)


def _exit_code(incident: Incident) -> ExitCode:
    verdict = incident.verdict
    if verdict is None or verdict.outcome == "inconclusive":
        return ExitCode.INCONCLUSIVE
    unexpected = verdict.expected is not None and not verdict.as_expected
    return ExitCode.NOT_AS_EXPECTED if unexpected else ExitCode.AS_EXPECTED


def _severity(code: ExitCode) -> int:
    """An unexpected result outweighs an inconclusive one, and that one a success."""
    order = (ExitCode.AS_EXPECTED, ExitCode.INCONCLUSIVE, ExitCode.NOT_AS_EXPECTED)
    return order.index(code)
