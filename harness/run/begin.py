"""What an incident holds of the set-up, before anything has been observed."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path

from mmrepro import __version__
from mmrepro.engines import LaunchPlan
from mmrepro.environments import Environment, cache_root
from mmrepro.errors import UsageError
from mmrepro.incident import EngineFacts, Fidelity, Incident, ModelFacts, Setting
from mmrepro.machine.facts import host_facts
from mmrepro.models import TinyModel
from mmrepro.records import Moment
from mmrepro.reproducers import reproducer_path
from mmrepro.run.options import RunOptions
from mmrepro.scenario import Control, Factor, Scenario


def blank(
    scenario: Scenario, options: RunOptions, release: str, device: str, folder: Path
) -> Incident:
    """The incident of a run that has just begun, valid as it is.

    ``device``: ``cpu`` or ``cuda``, as decided; ``folder``: the run's own.
    """
    return Incident(
        mmrepro_version=__version__,
        id=uuid.uuid4().hex[:12],
        created=Moment.now(),
        state="interrupted",
        failure="the run has not ended",
        incident_dir=str(folder),
        command=options.command(scenario.name),
        scenario=scenario.facts,
        engine=EngineFacts(name=scenario.engine, release=release),
        host=host_facts(),
        fidelity=Fidelity.GPU if device == "cuda" else Fidelity.CPU,
        references=list(scenario.references),
    )


def model_of(tiny: TinyModel, given: Path | None) -> tuple[Path, ModelFacts]:
    """Folder and facts of the model: the user's own if ``given``, else ``tiny``.

    Raises:
        UsageError: ``given`` holds no model.
    """
    if given is not None:
        path = given.resolve()
        if not (path / "config.json").is_file():
            raise UsageError(f"{path} holds no model: it has no config.json.")
        return path, ModelFacts(kind="given with --model", path=str(path))
    path = tiny.write(cache_root() / "models")
    with (path / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path, ModelFacts(
        kind=tiny.kind,
        path=str(path),
        parameters=tiny.parameters,
        seed=tiny.seed,
        image_tokens=tiny.image_tokens,
        sha256=digest,
    )


def note_environment(incident: Incident, environment: Environment, folder: Path) -> None:
    """What the engine was installed as; the list with hashes is copied into ``folder``."""
    engine = incident.engine
    engine.wheel = environment.wheel
    engine.python = environment.python_version
    engine.resolved_until = environment.resolved_until
    engine.packages = environment.packages
    engine.settings = list(environment.notes)
    copy = folder / environment.lock_file.name
    with contextlib.suppress(OSError):
        copy.write_bytes(environment.lock_file.read_bytes())
        engine.packages_file = copy.name


def changes(flipped: Sequence[Factor], control: Control | None) -> list[Setting]:
    """What a run sets on purpose: flipped factors, the options of its control server."""
    found = [
        Setting(name=f"factor {f.name}", value=f.setting, why=f"flipped; was {f.failing}")
        for f in flipped
    ]
    if control is not None:
        options = shlex.join(control.server_args)
        found.append(Setting(name="control server", value=options, why=control.description))
    return found


def note_plan(incident: Incident, plan: LaunchPlan, settings: list[Setting]) -> None:
    """How the server is about to be started."""
    # Where mmrepro itself lies is no fact of the run: reports are the same from any checkout.
    here = str(reproducer_path("").absolute())
    incident.engine.command = plan.argv
    incident.engine.environment = {k: v.replace(here, "{reproducers}") for k, v in plan.env.items()}
    incident.engine.settings = settings
    incident.stand_ins = plan.stand_ins
    incident.fidelity = plan.fidelity
