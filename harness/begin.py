"""What an incident holds before anything has been observed."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

from mmrepro import __version__
from mmrepro.environments import cache_root
from mmrepro.errors import UsageError
from mmrepro.host import host_facts
from mmrepro.incident import EngineFacts, Fidelity, Incident, ModelFacts
from mmrepro.models import TinyModel
from mmrepro.options import RunOptions
from mmrepro.probes.base import Moment
from mmrepro.scenario import Scenario


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
