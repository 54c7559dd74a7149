"""Reading an incident back from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mmrepro.errors import BadIncident
from mmrepro.incident import INCIDENT_FILE, SCHEMA_VERSION, Incident
from mmrepro.reports.bundle_file import is_bundle, read_incident
from pydantic import ValidationError
from pydantic_core import from_json

# A run of an hour is about 10 MB; what is larger was not written by mmrepro.
MAX_BYTES: Final = 128 << 20
_HINT: Final = "give the folder that `mmrepro run` named at its end"


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
        content = from_json(data)
    except ValueError as error:
        raise BadIncident(
            f"{path} is not valid JSON: {error}",
            hint="the run may have been cut short while writing it; run the scenario again",
        ) from error
    if not isinstance(content, dict):
        raise BadIncident(f"{path} holds no incident: its top level is no object", hint=_HINT)
    version = content.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise BadIncident(
            f"{path} has schema version {str(version)[:20]}; "
            f"this mmrepro reads version {SCHEMA_VERSION}",
            hint="make the report with the mmrepro that made the run "
            f"({str(content.get('mmrepro_version', 'unknown'))[:40]})",
        )
    try:
        return Incident.model_validate_json(data)
    except ValidationError as error:
        problems = [_problem(*one) for one in _problems(error)]
        raise BadIncident(
            f"{path} does not follow the incident schema: {problems[0]}",
            hint="`mmrepro schema` prints the schema; if the file was not edited, this is a bug",
            detail=problems[:20],
        ) from error


def _read(path: Path) -> bytes:
    try:
        if not path.parent.exists():
            raise BadIncident(f"there is no folder {path.parent}", hint=_HINT)
        if not path.exists():
            raise BadIncident(f"{path.parent} holds no {INCIDENT_FILE}", hint=_HINT)
        if not path.is_file():
            raise BadIncident(f"{path} is not a file", hint=_HINT)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise BadIncident(
                f"{path} is too large for an incident: {size >> 20} MiB, at most "
                f"{MAX_BYTES >> 20} MiB are read",
                hint="check that it is the file that `mmrepro run` wrote",
            )
        return path.read_bytes()
    except OSError as error:
        raise BadIncident(
            f"{path} cannot be read: {error.strerror or error}",
            hint="check the permissions of the folder",
        ) from error


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    return [
        (".".join(str(part) for part in one["loc"]), one["msg"])
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _problem(location: str, message: str) -> str:
    return f"{location}: {message}"
