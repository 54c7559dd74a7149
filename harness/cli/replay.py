"""``mmrepro replay`` and ``mmrepro fuzz``: recorded or generated requests on fresh engines, what is
wrong, and the few requests that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode
from mmrepro.fuzz.options import FuzzCommand
from mmrepro.fuzz.profiles import Profile
from mmrepro.replay.options import ReplayCommand

if TYPE_CHECKING:
    from mmrepro.case.model import ServerWanted


@command(ReplayCommand)
def replay(asked: ReplayCommand) -> None:
    """Replay recorded traffic on a fresh engine, notice what is wrong, and shrink it.

    It talks to servers that it started itself, never to the recording's. Exit codes: 0 nothing
    unknown; 1 an unknown failure, confirmed; 3 observed but not confirmed; 4 infrastructure.

    Example:  mmrepro replay night.har --engine vllm --release 0.23.0
    """
    from mmrepro.replay.rounds import jobs_here
    from mmrepro.replay.session import Replaying
    from mmrepro.reports import replay as reports, replay_view as words
    from mmrepro.reports.replay_json import replay_json
    from mmrepro.reports.replay_terminal import print_replay

    named = {"engine": asked.engine} if asked.engine else {}
    asked = replace(asked, server=server_wanted(asked.file, asked.resume, named | asked.asked))
    jobs = asked.jobs or (None if asked.ray else jobs_here())
    _conduct(
        asked,
        jobs,
        lambda: Replaying(asked, write=reports.write_replay),
        (reports.REPLAY_HTML, words, print_replay, replay_json),
    )


@command(FuzzCommand)
def fuzz(asked: FuzzCommand) -> None:
    """Look for failures that nobody has reported: generate requests, and judge the answers.

    It talks to servers that it started itself, and claims nothing absent. Exit codes: 0 nothing
    unknown; 1 an unknown failure, confirmed; 3 observed but not confirmed; 4 infrastructure.

    Example:  mmrepro fuzz vllm --release 0.23.0 --budget 10m
    """
    from mmrepro.fuzz.session import Fuzzing
    from mmrepro.reports import fuzz as reports, fuzz_view as words
    from mmrepro.reports.fuzz_json import fuzz_json
    from mmrepro.reports.fuzz_terminal import print_fuzz
    from mmrepro.reports.replay import write_replay

    asked = settled(asked)
    _conduct(
        asked,
        asked.jobs,
        lambda: Fuzzing(asked, write=reports.write_fuzz, write_replay=write_replay),
        (reports.FUZZ_HTML, words, print_fuzz, fuzz_json),
    )


def _conduct(
    asked: ReplayCommand | FuzzCommand,
    jobs: int | None,
    begin: Callable[[], Any],
    shown: tuple[Any, ...],
) -> None:
    """Run it, print it and exit.

    Args:
        begin: makes the session, and its folder.
        shown: the page's name, the words, what prints it for people, and what makes its JSON.
    """
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, finish, placed
    from mmrepro.cli.console import announce, console_for
    from mmrepro.engines import spec_for

    console = console_for(asked)
    page, words, show, document = shown
    if not (asked.ray or asked.resume):
        announce(spec_for(asked.server.engine, asked.server.release), yes=asked.yes)
    running = begin()
    with placed(jobs, asked.ray) as where:
        made = conduct(running, lambda say: where.places(say, TrialOptions()), console, asked)
    text = document(made, running.folder).rstrip("\n") if asked.json else None
    finish(asked, console, made, running.folder / page, words, show, text)
    failed = made.state == "failed"
    raise typer.Exit(ExitCode.INFRASTRUCTURE if failed else ExitCode(made.exit_code))


# ---------------------------------------------------------------- the server


def server_wanted(file: Path, resume: Path | None, asked: dict[str, Any]) -> ServerWanted:
    """The server: a case's own, for a recording that of the engine's scenarios; what ``asked``
    says goes over both.

    Raises:
        UsageError: no engine, or none of that name, or no such release.
    """
    from mmrepro.case.files import read_case
    from mmrepro.case.model import CASE_FILE, ServerWanted
    from mmrepro.engines import get_engine
    from mmrepro.errors import UsageError

    kept = next((place for place in (resume, file) if place and is_case(place)), None)
    own = read_case(kept)[0].server if kept else None
    if own is not None and asked.get("engine", own.engine) != own.engine:
        raise UsageError(
            f"{kept} is a case of {own.engine}, not of {asked['engine']}: another engine has other "
            "options.",
            hint=f"leave --engine out, or change the server in {CASE_FILE}",
        )
    if own is None:
        if "engine" not in asked:
            raise UsageError(
                "--engine says which engine the traffic is played on.",
                hint=f"mmrepro replay {file} --engine vllm",
            )
        get_engine(asked["engine"])
        own = usual_server(asked["engine"])
    wanted = ServerWanted.model_validate({**own.model_dump(), **asked})
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


def settled(asked: FuzzCommand) -> FuzzCommand:
    """The options with the server; a session that is continued keeps its own, where nothing else
    is asked for."""
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


def server_of(engine: str, profile: Profile, asked: dict[str, Any], kept: str) -> ServerWanted:
    """The server: that of the engine's scenarios, under ``profile``, with what ``asked`` says; a
    session that is continued has the ``kept`` one, unless something is asked for.

    Raises:
        UsageError: no such engine or release.
    """
    from mmrepro.case.model import ServerWanted
    from mmrepro.engines import get_engine
    from mmrepro.fuzz.profiles import under

    found = get_engine(engine)
    if kept and not asked:
        return ServerWanted.model_validate_json(kept)
    usual = usual_server(engine)
    wanted = ServerWanted.model_validate({**usual.model_dump(), **asked})
    found.environment_spec(wanted.release, "cpu")
    return under(profile, wanted, length_told="max_model_len" in asked)


def kept_options(folder: Path) -> tuple[dict[str, str], float | None]:
    """What the session in ``folder`` was begun with, and its budget in seconds.

    Raises:
        UsageError: there is none.
    """
    from mmrepro.errors import MmreproError
    from mmrepro.fuzz.store import EPISODES
    from mmrepro.incident.fuzz import EPISODES_FILE
    from mmrepro.reports.fuzz import load_fuzz

    try:
        with (folder / EPISODES_FILE).open("rb") as file:
            line = file.readline(1 << 20)
    except OSError:
        return {}, None  # the session says what is wrong
    head = EPISODES.head(line, folder)
    try:
        budget_s = load_fuzz(folder).budget_s
    except MmreproError:
        budget_s = None
    return head.decides, budget_s
