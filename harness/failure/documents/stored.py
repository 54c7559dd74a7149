"""Documents as they lie on disk, in a folder or in the file that ``mmrepro bundle``
makes of it."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from mmrepro.base.errors import BadIncident, UnwritableOutput
from mmrepro.base.machine import is_file, read_file, write_file
from mmrepro.base.records import Document, Record, Unfit, parsed
from mmrepro.base.units import size
from pydantic import BaseModel, Field

# A run of an hour is about 10 MB; what is larger was not written by mmrepro.
MAX_BYTES: Final = 128 << 20
DocumentT = TypeVar("DocumentT", bound=Document)
_MADE_BY: Final = {
    "ablation": "ablate",
    "bisection": "bisect",
    "fleet": "diagnose",
    "incident": "run",
}
"""By document: the command that makes it, where that has another name."""


class _Made(BaseModel):
    """By which mmrepro a document was made; nothing else of it is read."""

    schema_version: Any = 1
    mmrepro_version: Any = "unknown"


def load_document(directory: Path, file: str, kind: type[DocumentT]) -> DocumentT:
    """The document in ``directory``, in that file itself, or in a bundle.

    Raises:
        BadIncident: there is none, or it cannot be read; the message says why.
    """
    if is_bundle(directory):
        return _read(read_listed(directory, file), directory, kind)
    path = directory if directory.name == file else directory / file
    hint = "mmrepro incidents"
    try:
        if not path.parent.exists():
            raise BadIncident(f"There is no folder {path.parent}.", hint=hint)
        if not path.exists():
            raise BadIncident(f"{path.parent} holds no {file}", hint=hint)
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise BadIncident(
            f"{path} cannot be read: {error.strerror or error}", hint=hint
        ) from error
    return _read(data, path, kind)


def _read(data: bytes, path: Path, kind: type[DocumentT]) -> DocumentT:
    name, version = kind.__name__.lower(), kind.model_fields["schema_version"].default
    # First by which mmrepro it was made: a document of another version has other fields.
    try:
        made = parsed(_Made, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} holds no {name}: {error}",
            hint="the command may have been cut short while writing it; run it again",
        ) from error
    if made.schema_version != version:
        raise BadIncident(
            f"{path} has schema version {str(made.schema_version)[:20]}; "
            f"this mmrepro reads version {version}",
            hint="make the report with the mmrepro that wrote it "
            f"({str(made.mmrepro_version)[:40]})",
        )
    try:
        return parsed(kind, data)
    except Unfit as error:
        raise BadIncident(
            f"{path} does not follow the {name} schema: {error}",
            hint=(
                f"mmrepro {_MADE_BY.get(name, name)} --json-schema; if the file was not "
                "edited, this is a bug"
            ),
            detail=error.problems[:20],
        ) from error


def document_json(document: Record) -> str:
    """The document as it is stored, with a newline at its end."""
    return document.model_dump_json(indent=1) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all. Raises UnwritableOutput."""
    try:
        write_file(path, text)
    except OSError as error:
        raise UnwritableOutput(
            f"{path} cannot be written: {error.strerror or error}",
            hint=(
                "free some space or check the permissions, then: mmrepro report "
                f"{path.parent}"
            ),
        ) from error


# ------------------------------------------------------------------------------ bundles

MANIFEST_FILE: Final = "manifest.json"
_MAX_MEMBER_BYTES: Final = 128 << 20
_MAX_MANIFEST_BYTES: Final = 4 << 20


class BundledFile(Record):
    name: str
    bytes: int
    sha256: str
    original_bytes: Annotated[int, Field(description="before redaction and trimming")]
    redactions: Annotated[int, Field(description="placeholders in it")] = 0
    note: Annotated[str, Field(description="what was left out of it, and why")] = ""


class LeftOut(Record):
    name: str
    bytes: int
    why: str


class BundleManifest(Record):
    format: Literal["mmrepro-bundle-1"] = "mmrepro-bundle-1"
    mmrepro_version: str
    incident: str
    scenario: str
    files: list[BundledFile]
    left_out: list[LeftOut] = []


def is_bundle(path: Path) -> bool:
    """Whether ``path`` is a ZIP file; False for whatever cannot be read."""
    return is_file(path) and zipfile.is_zipfile(path)


def read_manifest(path: Path) -> BundleManifest:
    """What the bundle says it holds. Raises BadIncident."""
    try:
        return parsed(BundleManifest, _member(path, MANIFEST_FILE, _MAX_MANIFEST_BYTES))
    except Unfit as error:
        raise BadIncident(
            (
                f"{path} is no bundle of mmrepro: its {MANIFEST_FILE} does not fit "
                f"the format: {error}"
            ),
            hint="make it with: mmrepro bundle INCIDENT_DIR",
        ) from error


def read_listed(path: Path, name: str) -> bytes:
    """The bundle's file ``name``, its checksum compared.

    Raises:
        BadIncident: no bundle, a broken file, or one that differs from its listed
            checksum.
    """
    manifest = read_manifest(path)
    listed = {entry.name: entry for entry in manifest.files}
    if name not in listed:
        raise BadIncident(f"{path} holds no {name}", hint="mmrepro bundle INCIDENT_DIR")
    data = _member(path, name, _MAX_MEMBER_BYTES)
    if hashlib.sha256(data).hexdigest() != listed[name].sha256:
        raise BadIncident(
            f"{name} in {path} is not what its manifest lists: the checksums differ",
            hint="get the file again from whoever made it",
        )
    return data


def listed_names(path: Path) -> set[str]:
    """Names of the files that the bundle ``path`` lists; none where it is no bundle."""
    if not is_bundle(path):
        return set()
    try:
        return {entry.name for entry in read_manifest(path).files}
    except BadIncident:
        return set()


def _member(path: Path, name: str, limit: int) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            # A small archive may hold gigabytes: its own sizes are not believed.
            data = member.read(limit + 1)
    except KeyError as error:
        raise BadIncident(
            f"{path} holds no {name}", hint="make it with: mmrepro bundle INCIDENT_DIR"
        ) from error
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        # RuntimeError: encrypted; NotImplementedError (one of its kind): an unknown
        #     compression
        raise BadIncident(
            f"{path} cannot be read: {error}",
            hint="get the file again from whoever made it",
        ) from error
    if len(data) > limit:
        raise BadIncident(f"{name} in {path} is too large: over {size(limit)}")
    return data
