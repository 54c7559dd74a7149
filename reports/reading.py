"""Reading an incident back from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mmrepro.errors import BadIncident
from mmrepro.incident import INCIDENT_FILE, SCHEMA_VERSION, Incident
from mmrepro.machine.files import read_file
from mmrepro.records import Unfit, parsed
from mmrepro.reports.bundle_file import is_bundle, read_incident
from pydantic import BaseModel

# A run of an hour is about 10 MB; what is larger was not written by mmrepro.
MAX_BYTES: Final = 128 << 20
_HINT: Final = "give the folder that `mmrepro run` named at its end"


class _Made(BaseModel):
    """By which mmrepro it was made; nothing else is looked at."""

    schema_version: Any = SCHEMA_VERSION
    mmrepro_version: Any = "unknown"


def load(directory: Path | str) -> Incident:
    """The incident kept in ``directory``, or in the file that ``mmrepro bundle`` made of it.

    Its ``incident.json`` itself is accepted as well.

    Raises:
        BadIncident: there is none, or it cannot be read; the message says which and why.
    """
    directory = Path(directory)
    path = directory if directory.name == INCIDENT_FILE else directory / INCIDENT_FILE
    data = read_incident(directory) if is_bundle(directory) else _read(path)
    try:
        made = parsed(_Made, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} holds no incident: {error}",
            hint="the run may have been cut short while writing it; run the scenario again",
        ) from error
    if made.schema_version != SCHEMA_VERSION:
        raise BadIncident(
            f"{path} has schema version {str(made.schema_version)[:20]}; "
            f"this mmrepro reads version {SCHEMA_VERSION}",
            hint="make the report with the mmrepro that made the run "
            f"({str(made.mmrepro_version)[:40]})",
        )
    try:
        return parsed(Incident, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} does not follow the incident schema: {error}",
            hint="`mmrepro schema` prints the schema; if the file was not edited, this is a bug",
            detail=error.problems[:20],
        ) from error


def _read(path: Path) -> bytes:
    try:
        if not path.parent.exists():
            raise BadIncident(f"there is no folder {path.parent}", hint=_HINT)
        if not path.exists():
            raise BadIncident(f"{path.parent} holds no {INCIDENT_FILE}", hint=_HINT)
        return read_file(path, MAX_BYTES)
    except OSError as error:
        why = error.strerror or error
        raise BadIncident(f"{path} cannot be read: {why}", hint=_HINT) from error
