"""The record of an incident's hashes, which shows whether it was changed afterwards.

``hashes.jsonl`` lies beside ``incident.json``. A line is appended each time the
incident is written: it holds the SHA-256 of each part of it, of each raw file, and of
the line before. The last line's own hash, the head, stands in the incident and in its
report.

Nobody is kept from making a false incident with a record that fits. A head that was
shown elsewhere, or signed, is what such an incident cannot have."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from mmrepro.base.errors import BadIncident, ChangedIncident
from mmrepro.base.machine import open_to_read, read_file
from mmrepro.base.records import EVIDENCE_DIR, Record, Unfit, parsed
from mmrepro.failure.documents.model import INCIDENT_FILE, HashHead, Incident
from mmrepro.failure.documents.signed import signer_of
from mmrepro.failure.documents.stored import (
    MAX_BYTES,
    is_bundle,
    listed_names,
    read_listed,
)
from pydantic import Field

HASHES_FILE: Final = "hashes.jsonl"
SIGNATURE_FILE: Final = "hashes.sig"
_REST: Final = "the rest"
"""Of an incident: all of it but its evidence and the head itself."""
_MAX_HASHES_BYTES: Final = 64 << 20
_MAX_SIGNATURE_BYTES: Final = 1 << 20
_MOST_NAMED: Final = 8
"""Of what was changed, in a sentence."""
_CHUNK: Final = 1 << 20


class PartHash(Record):
    """The hash of a part of ``incident.json``."""

    part: Annotated[str, Field(description="a field of the evidence, or the rest")]
    first: Annotated[int, Field(description="of a list: index of its first item")] = 0
    count: Annotated[
        int | None, Field(description="of a list: items; null: it is no list")
    ] = None
    sha256: str

    @property
    def place(self) -> str:
        """For people: where it is in the document."""
        if self.part == _REST:
            return INCIDENT_FILE
        if self.count is None:
            return f"{INCIDENT_FILE}: evidence.{self.part}"
        last = self.first + self.count - 1
        return f"{INCIDENT_FILE}: evidence.{self.part}[{self.first}:{last}]"


class FileHash(Record):
    """The hash of a raw file below ``evidence/``."""

    bytes: int
    sha256: str
    grows: Annotated[
        bool,
        Field(description="its writer goes on: the hash is of its first bytes"),
    ] = False


class HashLine(Record):
    """A line of the record: the hashes of all that there was when it was written."""

    number: int
    at: datetime
    incident: Annotated[str, Field(description="its id")]
    act: Annotated[
        Literal["recorded", "packed"],
        Field(description="packed: what a bundle kept of it"),
    ] = "recorded"
    previous_sha256: Annotated[str, Field(description="of the line before this one")]
    parts: list[PartHash] = []
    files: dict[str, FileHash] = {}
    changed: Annotated[
        list[str],
        Field(description="packed: what had been changed already, for people"),
    ] = []


class HashChain:
    """The record of one incident, while it is written.

    Attributes:
        lines: so far, as they are written.
        last_sha256: of the last line.

    Args:
        number, last_sha256: of the line before, where it goes on from one.
    """

    def __init__(self, incident: str, number: int = 0, last_sha256: str = "") -> None:
        self.incident = incident
        self.lines: list[bytes] = []
        self.last_sha256 = last_sha256
        self._number = number
        self._lengths: dict[str, list[int]] = {}

    def note(self, document: Mapping[str, Any], files: Mapping[str, FileHash]) -> None:
        """Append the hashes of a document, as its JSON has it, and of its raw files.

        What a list of the evidence gained since the last line has a hash by itself.
        """
        for name, value in document.get("evidence", {}).items():
            if isinstance(value, list):
                self._lengths.setdefault(name, []).append(len(value))
        self._append(list(_parts_of(document, self._lengths)), files)

    def pack(
        self, parts: list[PartHash], files: Mapping[str, FileHash], changed: list[str]
    ) -> None:
        """Append what is kept of all that is before, for a bundle.

        ``changed``: what was no longer as it had been recorded when it was packed.
        """
        self._append(parts, files, "packed", changed)

    def _append(
        self,
        parts: list[PartHash],
        files: Mapping[str, FileHash],
        act: Literal["recorded", "packed"] = "recorded",
        changed: Sequence[str] = (),
    ) -> None:
        self._number += 1
        line = HashLine(
            number=self._number,
            at=datetime.now(UTC),
            incident=self.incident,
            act=act,
            previous_sha256=self.last_sha256,
            parts=parts,
            files=dict(files),
            changed=list(changed),
        )
        self.lines.append(line.model_dump_json().encode() + b"\n")
        self.last_sha256 = _sha256(self.lines[-1])


def _parts_of(
    document: Mapping[str, Any], lengths: Mapping[str, list[int]]
) -> Iterator[PartHash]:
    """The hash of each part of an incident, as its JSON has it.

    ``lengths``: of each list of the evidence as it grew, each of which ends a piece
    with a hash of its own; what follows is one more piece.
    """
    rest = {
        name: value
        for name, value in document.items()
        if name not in ("evidence", "hashes")
    }
    yield PartHash(part=_REST, sha256=_of_json(rest))
    for name, value in document.get("evidence", {}).items():
        if not isinstance(value, list):
            yield PartHash(part=name, sha256=_of_json(value))
            continue
        begin = 0
        for end in sorted({*lengths.get(name, ()), len(value)}):
            piece = value[begin:end]
            if piece:
                yield PartHash(
                    part=name, first=begin, count=len(piece), sha256=_of_json(piece)
                )
            begin = end


def _lengths_of(parts: Sequence[PartHash]) -> dict[str, list[int]]:
    """The places where the pieces of each list end."""
    ends: dict[str, list[int]] = {}
    for part in parts:
        if part.count is not None:
            ends.setdefault(part.part, []).append(part.first + part.count)
    return ends


def _of_json(value: object) -> str:
    """The hash of a value, however its JSON is laid out in a file."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return _sha256(text.encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _document_of(data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``.

    Raises:
        ValueError: it is none, or a key stands in it twice: readers may differ on
            which of the two counts.
    """
    document = json.loads(data, object_pairs_hook=_once_each)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a key stands there twice")
    return unique


# ------------------------------------------------------------------------ the raw files


def hash_of(content: bytes) -> FileHash:
    """The hash of a whole file."""
    return FileHash(bytes=len(content), sha256=_sha256(content))


def hashed_files(folder: Path, *, growing: bool = False) -> dict[str, FileHash]:
    """The hash of each plain file below the folder ``evidence/``.

    ``growing``: a server goes on to write its logs.
    """
    hashes = {}
    for path in _plain_files(folder):
        # A probe that overran its deadline may still replace a file of its own.
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            sha256, read = _file_sha256(path, size)
            name = path.relative_to(folder).as_posix()
            grows = growing and path.suffix == ".log"
            hashes[name] = FileHash(bytes=read, sha256=sha256, grows=grows)
    return hashes


def _plain_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            unfinished = name.startswith(".mmrepro-")
            if path.is_file() and not path.is_symlink() and not unfinished:
                yield path


def _file_sha256(path: Path, most: int) -> tuple[str, int]:
    """The hash of the first ``most`` bytes, and how many there are. Raises OSError."""
    digest, left = hashlib.sha256(), most
    with open_to_read(path) as file:
        while left and (chunk := file.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest(), most - left


# -------------------------------------------------------------------------- the check


class HashCheck(NamedTuple):
    """What the record says of an incident.

    Attributes:
        has_record: whether there is one; incidents of before have none.
        changed: what differs from it, for people.
        added: files that it does not know.
        head: the hash of its last line.
    """

    has_record: bool = False
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    head: str = ""

    @property
    def word(self) -> Literal["unchanged", "changed", "none"]:
        """For machines."""
        if not self.has_record:
            return "none"
        return "changed" if self.changed else "unchanged"

    @property
    def notes(self) -> list[str]:
        """What whoever reads a verdict on it has to know."""
        notes = []
        if self.changed:
            names = ", ".join(self.changed)
            notes.append(f"judged as edited: changed since it was recorded: {names}")
        if self.added:
            notes.append(f"not in its record: {', '.join(self.added)}")
        return notes

    def refuse_changed(self, place: Path) -> None:
        """Raises ChangedIncident: something differs from the record."""
        if not self.changed:
            return
        names = list(self.changed[:_MOST_NAMED])
        if more := len(self.changed) - len(names):
            names.append(f"and {more} more")
        raise ChangedIncident(
            f"{place} was changed since it was recorded: {', '.join(names)}.",
            hint=f"mmrepro judge {place} --edited judges it as it is now",
        )


@dataclass
class _StoredIncident:
    """An incident as it lies on disk, in a folder or in a bundle."""

    place: Path
    packed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.packed = is_bundle(self.place)
        if self.place.name == INCIDENT_FILE:
            self.place = self.place.parent

    def read(self, name: str, most: int) -> bytes | None:
        """The content of a file; None: there is none. Raises BadIncident."""
        if self.packed:
            listed = name in listed_names(self.place)
            return read_listed(self.place, name) if listed else None
        try:
            return read_file(self.place / name, most)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadIncident(
                f"{self.place / name} cannot be read: {error.strerror or error}",
                hint="get the file again from whoever made it",
            ) from error

    def names(self) -> set[str]:
        """Names of the raw files, below ``evidence/``."""
        if self.packed:
            within = f"{EVIDENCE_DIR}/"
            listed = listed_names(self.place)
            return {n.removeprefix(within) for n in listed if n.startswith(within)}
        folder = self.place / EVIDENCE_DIR
        return {path.relative_to(folder).as_posix() for path in _plain_files(folder)}

    def is_as_hashed(self, name: str, noted: FileHash) -> bool:
        """Whether a raw file is still what was noted of it. Raises BadIncident."""
        if self.packed:
            content = read_listed(self.place, f"{EVIDENCE_DIR}/{name}")
            return hash_of(content) == noted
        path = self.place / EVIDENCE_DIR / name
        try:
            longer = path.stat().st_size > noted.bytes
            if longer and not noted.grows:
                return False
            return _file_sha256(path, noted.bytes) == (noted.sha256, noted.bytes)
        except OSError:
            return False


def checked(place: Path) -> HashCheck:
    """Hold the incident in a folder, a file or a bundle against its record.

    Raises:
        BadIncident: it cannot be read.
    """
    stored = _StoredIncident(place)
    data = stored.read(INCIDENT_FILE, MAX_BYTES)
    if data is None:
        raise BadIncident(
            f"{place} holds no {INCIDENT_FILE}",
            hint="give the folder that the command named at its end",
        )
    text = stored.read(HASHES_FILE, _MAX_HASHES_BYTES)
    try:
        document = _document_of(data)
    except ValueError as error:
        unread = HashCheck(True, (f"{INCIDENT_FILE}: {error}",))
        return HashCheck() if text is None else unread
    head = document.get("hashes")
    if text is None and head is None:
        return HashCheck()
    if text is None:
        return HashCheck(True, (f"{HASHES_FILE} is missing",))
    if not isinstance(head, dict):
        return HashCheck(True, (f"{INCIDENT_FILE} no longer names its {HASHES_FILE}",))
    lines, wrong = _whole_chain(text, document)
    if wrong:
        return HashCheck(True, (wrong,))
    return _compared(stored, document, lines)


def _whole_chain(
    text: bytes, document: Mapping[str, Any]
) -> tuple[list[HashLine], str]:
    """The lines of a record, and what is wrong with them: "" if nothing is."""
    head = document["hashes"]
    recorded = ""
    lines: list[HashLine] = []
    previous = ""
    for count, raw in enumerate(text.splitlines(keepends=True), 1):
        try:
            line = parsed(HashLine, raw)
        except Unfit:
            return lines, f"{HASHES_FILE}, line {count}"
        number = lines[-1].number + 1 if lines else 1
        if line.act == "packed" and not lines:
            # The lines of the run stayed where it was packed.
            number, previous = line.number, head.get("recorded_sha256")
            recorded = previous
        fits = (line.number, line.previous_sha256) == (number, previous)
        if not fits or line.incident != document.get("id"):
            return lines, f"{HASHES_FILE}, line {count}"
        previous = _sha256(raw)
        lines.append(line)
    if not lines or head != {"sha256": previous, "recorded_sha256": recorded}:
        return lines, f"{HASHES_FILE} does not end with the hash in {INCIDENT_FILE}"
    return lines, ""


def _compared(
    stored: _StoredIncident, document: Mapping[str, Any], lines: list[HashLine]
) -> HashCheck:
    """What is no longer as the last line has it."""
    noted = lines[-1]
    changed = [
        f"{name} (before it was packed)" for line in lines for name in line.changed
    ]

    before = {(part.part, part.first): part for part in noted.parts}
    parts_now = _parts_of(document, _lengths_of(noted.parts))
    now = {(part.part, part.first): part for part in parts_now}
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            changed.append((before.get(key) or now[key]).place)

    there = stored.names()
    for name, file in noted.files.items():
        if name not in there:
            changed.append(f"{EVIDENCE_DIR}/{name} is missing")
        elif not stored.is_as_hashed(name, file):
            changed.append(f"{EVIDENCE_DIR}/{name}")
    added = sorted(there - noted.files.keys())
    head = document["hashes"]["sha256"]
    return HashCheck(True, tuple(changed), tuple(added), head)


def signed_by(place: Path, check: HashCheck, signers: Path) -> str:
    """Who signed the record of an incident, of the allowed signers in a file.

    Raises:
        BadIncident: nobody did, or somebody else.
        UsageError: there is no such file, or no ``ssh-keygen``.
    """
    signature = _StoredIncident(place).read(SIGNATURE_FILE, _MAX_SIGNATURE_BYTES)
    if signature is None:
        raise BadIncident(
            f"{place} is not signed.",
            hint="mmrepro bundle DIR --sign KEY, by whoever made it",
        )
    return signer_of(place, check.head, signature, signers)


# -------------------------------------------------------------------------- a bundle


def packed_chain(
    place: Path, shown: Incident, files: Mapping[str, FileHash]
) -> HashChain | None:
    """The record of what a bundle keeps of an incident; None: it has no record.

    ``shown`` is what the bundle has of the incident, ``files`` of its raw files. Its
    one line goes on from the head of the run. The lines before stay behind: by the hash
    of a whole text, what was redacted in it could be guessed. The new head is put into
    ``shown``.

    Raises:
        BadIncident: the incident cannot be read.
    """
    check = checked(place)
    if not check.has_record or shown.hashes is None:
        return None
    text = _StoredIncident(place).read(HASHES_FILE, _MAX_HASHES_BYTES) or b""
    lines = len(text.splitlines())
    chain = HashChain(shown.id, number=lines, last_sha256=shown.hashes.sha256)
    document = json.loads(shown.model_dump_json())
    chain.pack(list(_parts_of(document, {})), files, list(check.changed))
    recorded = shown.hashes.sha256
    shown.hashes = HashHead(sha256=chain.last_sha256, recorded_sha256=recorded)
    return chain
