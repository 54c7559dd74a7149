"""The options of a fuzz session with its server, and what a session that is continued keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrepro.case.model import ServerWanted
from mmrepro.engines import get_engine
from mmrepro.fuzz.options import FuzzCommand
from mmrepro.fuzz.profiles import Profile, under
from mmrepro.fuzz.store import EPISODES
from mmrepro.incident.replay import EPISODES_FILE, FUZZ_FILE, Fuzz
from mmrepro.machine.files import read_file
from mmrepro.records import parsed
from mmrepro.replay.server import usual_server

MAX_BYTES = 64 << 20


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
    try:
        with (folder / EPISODES_FILE).open("rb") as file:
            line = file.readline(1 << 20)
    except OSError:
        return {}, None  # the session says what is wrong
    head = EPISODES.head(line, folder)
    try:
        budget_s = parsed(Fuzz, read_file(folder / FUZZ_FILE, MAX_BYTES)).budget_s
    except (OSError, ValueError):  # a session that was cut short has none yet
        budget_s = None
    return head.decides, budget_s
