"""``mmrepro fuzz``: generated requests on fresh engines, what is wrong, and the few requests."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mmrepro.cli.options import command
from mmrepro.cli.replay import usual_server
from mmrepro.errors import ExitCode
from mmrepro.fuzz.options import FuzzCommand
from mmrepro.fuzz.profiles import Profile

if TYPE_CHECKING:
    from mmrepro.case.model import ServerWanted
    from mmrepro.incident.replay import Fuzz
    from rich.console import Console


@command(FuzzCommand)
def fuzz(asked: FuzzCommand) -> None:
    """Look for failures that nobody has reported: make up requests, and judge the answers.

    It talks to servers that it started itself, and claims nothing absent. Exit codes: 0 nothing
    unknown; 1 an unknown failure, confirmed; 3 seen but not proven; 4 infrastructure.

    Example:  mmrepro fuzz vllm --release 0.23.0 --budget 10m
    """
    from mmrepro.cli.console import table_console

    console = table_console(stderr=asked.json or asked.events == "-")
    made = _run(settled(asked), console, quiet=asked.json)
    if asked.json:
        from mmrepro.reports.documents import document_json

        typer.echo(document_json(made).rstrip("\n"))
    raise typer.Exit(
        ExitCode.INFRASTRUCTURE if made.state == "failed" else ExitCode(made.exit_code)
    )


def settled(asked: FuzzCommand) -> FuzzCommand:
    """The options with the server, and of a session that is gone on with its own, where nothing
    else is asked for."""
    kept, budget_s = kept_options(asked.resume) if asked.resume is not None else ({}, None)
    changes: dict[str, Any] = {}
    for field, name, read in (
        ("profile", "--profile", Profile),
        ("seed", "--seed", int),
        ("repeat", "--repeat", int),
        ("source", "--from", Path),
        ("blind", "--blind", bool),
    ):
        if kept.get(name) and not asked.given(field):
            changes[field] = read(kept[name])
    if kept.get("--no-shrink") and not asked.given("shrink"):
        changes["shrink"] = False
    if budget_s and not asked.given("budget_s"):
        changes["budget_s"] = budget_s
    profile = changes.get("profile", asked.profile)
    server = server_of(asked.engine, profile, asked.asked, kept.get("server", ""))
    return replace(asked, server=server, **changes)


def server_of(engine: str, profile: Profile, told: dict[str, Any], kept: str) -> ServerWanted:
    """The server: that of the engine's scenarios, under ``profile``, with what ``told`` says; of
    a session that is gone on with the ``kept`` one, unless something is told.

    Raises:
        UsageError: no such engine or release.
    """
    from mmrepro.case.model import ServerWanted
    from mmrepro.engines import get_engine
    from mmrepro.fuzz.profiles import under

    found = get_engine(engine)
    if kept and not told:
        return ServerWanted.model_validate_json(kept)
    usual = usual_server(engine)
    wanted = ServerWanted.model_validate({**usual.model_dump(), **told})
    found.environment_spec(wanted.release, "cpu")
    return under(profile, wanted, length_told="max_model_len" in told)


def kept_options(folder: Path) -> tuple[dict[str, str], float | None]:
    """What the session in ``folder`` was begun with, and its budget in seconds.

    Raises:
        UsageError: there is none.
    """
    from mmrepro.errors import MmreproError
    from mmrepro.fuzz.store import EPISODES
    from mmrepro.incident.replay import EPISODES_FILE
    from mmrepro.reports.fuzz import load

    try:
        with (folder / EPISODES_FILE).open("rb") as file:
            line = file.readline(1 << 20)
    except OSError:
        return {}, None  # the session says what is wrong
    head = EPISODES.head(line, folder)
    try:
        budget_s = load(folder).budget_s
    except MmreproError:
        budget_s = None
    return head.decides, budget_s


def _run(options: FuzzCommand, console: Console, *, quiet: bool) -> Fuzz:
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.fuzz.session import Fuzzing
    from mmrepro.reports.documents import keep
    from mmrepro.reports.fuzz import KIND, compose
    from mmrepro.reports.replay import write_replay
    from mmrepro.reports.terminal import print_page

    running = Fuzzing(options, write=partial(keep, KIND), write_replay=write_replay)
    with placed(options.jobs, options.ray) as where:
        made = conduct(
            running,
            lambda say: where.places(say, TrialOptions()),
            console,
            events=options.events,
        )
    page = compose(made, str(running.folder))
    place = str(running.folder / KIND.files[1])
    print_page(page, console, place, full=options.full, quiet=quiet)
    return made
