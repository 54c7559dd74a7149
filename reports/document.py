"""What an ablation's and a bisection's reports have alike: a JSON file, read back or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from mmrepro.errors import BadIncident
from mmrepro.machine.files import read_file
from mmrepro.records import Record, Unfit, parsed

MAX_BYTES: Final = 64 << 20
T = TypeVar("T", bound=Record)


def load_document(directory: Path, file: str, kind: type[T], name: str, version: int) -> T:
    """The document in ``directory``, or in that file itself.

    Args:
        name: what it is, in a sentence: ``ablation``.
        version: of the schema that is read here.

    Raises:
        BadIncident: there is none, or it cannot be read; the message says why.
    """
    path = directory if directory.name == file else directory / file
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise BadIncident(f"{path} cannot be read: {error.strerror or error}") from error
    return read_document(data, path, kind, name, version)


def read_document(data: bytes, path: Path, kind: type[T], name: str, version: int) -> T:
    """The document that ``data``, from ``path``, is. Raises as ``load_document``."""
    try:
        return parsed(kind, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} is no {name} of schema version {version}: {error}",
            hint=f"mmrepro schema --of {name}",
        ) from error


def document_json(document: Record) -> str:
    return document.model_dump_json(indent=1) + "\n"
