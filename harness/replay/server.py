"""The server that cases are replayed on, from what a command asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrepro.case.files import read_case
from mmrepro.case.model import CASE_FILE, ServerWanted
from mmrepro.diagnose.match import all_scenarios
from mmrepro.engines import get_engine
from mmrepro.errors import UsageError
from mmrepro.machine.files import is_file
from mmrepro.models.tiny import TINY
from mmrepro.scenario.definition import Scenario
from packaging.version import Version


def server_wanted(file: Path, resume: Path | None, asked: dict[str, Any]) -> ServerWanted:
    """The server: a case's own, for a recording that of the engine's scenarios; what ``asked``
    says goes over both.

    Raises:
        UsageError: no engine, or none of that name, or no such release.
    """
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
    return place.name == CASE_FILE or is_file(place / CASE_FILE)


def usual_server(engine: str) -> ServerWanted:
    """The newest release that a known scenario runs, and the tiny model that goes with it."""
    known = last_known(engine)
    return ServerWanted(
        engine=engine,
        release=known.release,
        model=next(name for name, tiny in TINY.items() if type(tiny) is type(known.model)),
        max_model_len=known.max_model_len,
    )


def last_known(engine: str) -> Scenario:
    """The known scenario of ``engine`` with the newest release: release and model go together."""
    tiny = {type(model) for model in TINY.values()}
    found = [s for s in all_scenarios() if s.engine == engine and type(s.model) in tiny]
    return max(found, key=lambda scenario: Version(scenario.release))
