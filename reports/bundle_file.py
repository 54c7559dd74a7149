"""The file that ``mmrepro bundle`` writes: what is in it, and reading it back."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Final, Literal

from mmrepro.base.units import size
from mmrepro.errors import BadIncident
from mmrepro.incident import INCIDENT_FILE
from mmrepro.machine.files import is_file
from mmrepro.records import Record, Unfit, parsed
from pydantic import Field

MANIFEST_FILE: Final = "manifest.json"
MAX_MEMBER_BYTES: Final = 128 << 20
MAX_MANIFEST_BYTES: Final = 4 << 20


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
        return parsed(BundleManifest, _member(path, MANIFEST_FILE, MAX_MANIFEST_BYTES))
    except Unfit as error:
        raise BadIncident(
            f"{path} is no bundle of mmrepro: its {MANIFEST_FILE} does not fit the format: {error}",
            hint="make it with: mmrepro bundle INCIDENT_DIR",
        ) from error


def read_incident(path: Path) -> bytes:
    """The bundle's ``incident.json``, its checksum compared.

    Raises:
        BadIncident: no bundle, a broken file, or one that differs from its listed checksum.
    """
    return read_listed(path, INCIDENT_FILE)


def read_listed(path: Path, name: str) -> bytes:
    """The bundle's file ``name``, its checksum compared. Raises as ``read_incident``."""
    manifest = read_manifest(path)
    listed = {entry.name: entry for entry in manifest.files}
    if name not in listed:
        raise BadIncident(f"{path} holds no {name}", hint="mmrepro bundle INCIDENT_DIR")
    data = _member(path, name, MAX_MEMBER_BYTES)
    if hashlib.sha256(data).hexdigest() != listed[name].sha256:
        raise BadIncident(
            f"{name} in {path} is not what its manifest lists: the checksums differ",
            hint="get the file again from whoever made it",
        )
    return data


def listed_names(path: Path) -> set[str]:
    """Names of the files that the bundle ``path`` lists; none where it is no bundle."""
    try:
        return {entry.name for entry in read_manifest(path).files} if is_bundle(path) else set()
    except BadIncident:
        return set()


def _member(path: Path, name: str, limit: int) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            data = member.read(limit + 1)
    except KeyError as error:
        raise BadIncident(
            f"{path} holds no {name}", hint="make it with: mmrepro bundle INCIDENT_DIR"
        ) from error
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        # RuntimeError: encrypted; NotImplementedError (one of its kind): an unknown compression
        raise BadIncident(
            f"{path} cannot be read: {error}", hint="get the file again from whoever made it"
        ) from error
    if len(data) > limit:
        raise BadIncident(f"{name} in {path} is too large: over {size(limit)}")
    return data
