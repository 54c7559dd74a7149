"""What a case's server is to the code that starts a scenario's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from mmrepro.case.model import ServerWanted
from mmrepro.errors import UsageError
from mmrepro.models import TinyModel, TinyQwen2VL
from mmrepro.models.tiny import TINY, TinyText
from mmrepro.run.options import RunCommand
from mmrepro.scenario import Drive, Scenario
from mmrepro.scenario.registry import load_scenario

NAME = "replay"


class _Replayed(Scenario):
    """A case is played.

    What: the requests of a case are sent to a fresh server.

    Why: to see whether it fails.
    """

    name = NAME
    release = ""
    affected = ""

    async def trigger(self, drive: Drive) -> None:
        """The player sends what the case says."""


def replayed(wanted: ServerWanted, options: RunCommand) -> tuple[Scenario, RunCommand]:
    """The scenario that starts ``wanted``, and the options with its model and mitigation.

    Raises:
        UsageError: there is no such model or mitigation.
    """
    given = None if wanted.model in TINY else Path(wanted.model)
    attributes: dict[str, Any] = {
        "__doc__": _Replayed.__doc__,
        "engine": wanted.engine,
        "release": wanted.release,
        "model": TINY[wanted.model] if given is None else _stand_in(given),
        "max_model_len": wanted.max_model_len,
        "server": shlex.join(wanted.args),
        "server_env": wanted.env,
    }
    names: tuple[str, ...] = ()
    if wanted.mitigation:
        scenario, _, name = wanted.mitigation.rpartition("/")
        known = load_scenario(scenario)
        if known.engine != wanted.engine:
            raise UsageError(f"{wanted.mitigation} is of {known.engine}, not of {wanted.engine}.")
        attributes["mitigations"], names = (known.mitigation(name),), (name,)
    made = type("Replayed", (_Replayed,), attributes)()
    return made, RunCommand(
        model=given, mitigations=names, timeout_s=options.timeout_s, device=options.device
    )


def _stand_in(folder: Path) -> TinyModel:
    """What is known of a model of the user's own: whether it sees images. Raises UsageError."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        names = ", ".join(TINY)
        raise UsageError(
            f"{folder} holds no model: its config.json cannot be read.",
            hint=f"--model DIR, or one of {names}",
        ) from error
    sees = isinstance(config, dict) and any("vision" in name for name in config)
    return TinyQwen2VL() if sees else TinyText()
