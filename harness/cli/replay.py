"""``mmrepro replay``: recorded traffic on a fresh engine, what is wrong, and the few requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode
from mmrepro.replay.options import ReplayCommand

if TYPE_CHECKING:
    from mmrepro.case.model import ServerWanted
    from mmrepro.incident.replay import Replay
    from rich.console import Console


@command(ReplayCommand)
def replay(asked: ReplayCommand) -> None:
    """Play recorded traffic on a fresh engine, notice what is wrong, and shrink it.

    It talks to servers that it started itself, never to the recording's. Exit codes: 0 nothing
    unknown; 1 an unknown failure, confirmed; 3 seen but not proven; 4 infrastructure.

    Example:  mmrepro replay night.har --engine vllm --release 0.23.0
    """
    from mmrepro.cli.console import table_console

    given = {"engine": asked.engine} if asked.engine else {}
    server = server_wanted(asked.file, asked.resume, given | asked.asked)
    console = table_console(stderr=asked.json)
    made = _run(replace(asked, server=server), console, quiet=asked.json)
    if asked.json:
        from mmrepro.reports.documents import document_json

        typer.echo(document_json(made).rstrip("\n"))
    raise typer.Exit(exit_code(made))


def server_wanted(file: Path, resume: Path | None, told: dict[str, Any]) -> ServerWanted:
    """The server: of a case its own, of a recording that of the engine's scenarios; over both
    goes what ``told`` says.

    Raises:
        UsageError: no engine, or none of that name, or no such release.
    """
    from mmrepro.case.files import read_case
    from mmrepro.case.model import CASE_FILE, ServerWanted
    from mmrepro.engines import get_engine
    from mmrepro.errors import UsageError

    kept = next((place for place in (resume, file) if place and is_case(place)), None)
    own = read_case(kept)[0].server if kept else None
    if own is not None and told.get("engine", own.engine) != own.engine:
        raise UsageError(
            f"{kept} is a case of {own.engine}, not of {told['engine']}: another engine has other "
            "options.",
            hint=f"leave --engine out, or change the server in {CASE_FILE}",
        )
    if own is None:
        if "engine" not in told:
            raise UsageError(
                "--engine says which engine the traffic is played on.",
                hint=f"mmrepro replay {file} --engine vllm",
            )
        get_engine(told["engine"])
        own = usual_server(told["engine"])
    wanted = ServerWanted.model_validate({**own.model_dump(), **told})
    get_engine(wanted.engine).environment_spec(wanted.release, "cpu")
    return wanted


def is_case(place: Path) -> bool:
    """Whether a case is there: a folder with one, or a file called so."""
    from mmrepro.case.model import CASE_FILE
    from mmrepro.machine.files import is_file

    return place.name == CASE_FILE or is_file(place / CASE_FILE)


def usual_server(engine: str) -> ServerWanted:
    """The newest release that a known scenario runs, and the tiny model that goes with it."""
    from mmrepro.case.model import ServerWanted
    from mmrepro.cli.new import last_known
    from mmrepro.models.tiny import TINY

    known = last_known(engine)
    return ServerWanted(
        engine=engine,
        release=known.release,
        model=next(name for name, tiny in TINY.items() if type(tiny) is type(known.model)),
        max_model_len=known.max_model_len,
    )


def _run(options: ReplayCommand, console: Console, *, quiet: bool) -> Replay:
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.replay.rounds import jobs_here
    from mmrepro.replay.session import Replaying
    from mmrepro.reports.replay import KIND, compose, write_replay
    from mmrepro.reports.terminal import print_page

    running = Replaying(options, write=write_replay)
    jobs = options.jobs or (None if options.ray else jobs_here())
    with placed(jobs, options.ray) as where:
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


def exit_code(made: Replay) -> ExitCode:
    """4 where the replay failed before it could say anything."""
    if made.state == "failed":
        return ExitCode.INFRASTRUCTURE
    return ExitCode(made.exit_code)
