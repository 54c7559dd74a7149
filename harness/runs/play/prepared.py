"""What an engine keeps between starts, made by a start of mmrepro's own.

An engine writes down what it has learnt of a model, and Python what it has compiled.
Nothing that a box writes is kept, so that a stranger's server cannot leave anything for
a later one. Once for each environment and model a plain server, with no option or
request of anybody's, is therefore started outside of a box; boxes begin with a copy of
what it has left."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import InfrastructureError
from mmrepro.base.machine import write_file
from mmrepro.base.records import EVIDENCE_DIR
from mmrepro.failure.documents import Journal, prepared_folder
from mmrepro.runs.options import StartMode
from mmrepro.runs.runner import blank
from mmrepro.runs.start import ServerSpec, in_service, start
from mmrepro.runs.starter import Starter
from mmrepro.scenario import Scenario

_FOLDER: Final = "prepared"
"""In an environment's state: a file for each model."""


def prepare(spec: ServerSpec, plain: type[Scenario], journal: Journal) -> None:
    """Start the plain server of ``spec``'s environment and model once, if nobody has.

    Whether it starts is no matter: the start that is asked for tells.

    Args:
        plain: a scenario without options, variables and mitigations.
    """
    environment = spec.environment
    done = environment.state_dir / _FOLDER / spec.model.name
    if done.exists() or not os.access(environment.state_dir, os.W_OK):
        return
    label = f"{environment.spec.engine} {environment.spec.release}"
    journal.recorder.event(
        f"preparing {label} for its boxes, once: a plain start outside of one"
    )
    attributes: dict[str, Any] = {
        "__doc__": plain.__doc__,
        "engine": spec.scenario.engine,
        "release": spec.scenario.release,
        "model": spec.scenario.model,
    }
    scenario = type("Plain", (plain,), attributes)()
    options = replace(spec.options, mitigations=())
    plain_spec = ServerSpec(
        scenario, options, environment, spec.model, gpu=spec.gpu, tries_cold=False
    )
    with (
        tempfile.TemporaryDirectory(prefix="mmr-prepare-") as made,
        contextlib.suppress(InfrastructureError),
        Starter(StartMode.FORK) as starter,
    ):
        folder = prepared_folder(Path(made) / "run", EVIDENCE_DIR)
        incident = blank(
            scenario, options, scenario.release, environment.spec.device, folder
        )
        own = Journal(incident, folder)
        server = start(plain_spec, own, starter)
        with in_service(server, own):
            pass

    done.parent.mkdir(exist_ok=True)
    write_file(done, "")
