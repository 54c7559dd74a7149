"""One file to attach to an upstream issue: redacted, listed, checksummed, small.

An incident is redacted again and its reports are made anew from that; raw evidence
follows as text, most telling first, until the limit. A replay's findings have other
words and pictures. What is left out is listed with the reason."""

import contextlib
import hashlib
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mmrepro import __version__
from mmrepro.base import units
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.machine import is_there, replacing
from mmrepro.base.records import EVIDENCE_DIR
from mmrepro.base.text import REDACTED
from mmrepro.failure.documents import (
    HASHES_FILE,
    INCIDENT_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    BundledFile,
    BundleManifest,
    FileHash,
    Incident,
    LeftOut,
    LoadedFinding,
    NotPublic,
    Public,
    as_public as public,
    document_json,
    finding_of,
    hash_of,
    packed_chain,
    public_text,
    register_words,
    sign_head,
)
from mmrepro.failure.documents.replay import REPLAY_FILE, Finding, Replay
from mmrepro.reports import (
    documents,
    finding as one,
    incident as runs,
    issue_form,
    replay as replays,
)
from mmrepro.traffic.case import (
    CASE_FILE,
    IMAGES_DIR,
    SCRIPT_FILE,
    case_text,
    read_contents,
)
from mmrepro.traffic.evidence import Evidence

_DEFAULT_MAX_BYTES: Final = 10 << 20
"""GitHub takes ZIP files of up to 25 MB."""

MAX_FILES: Final = 5000
MAX_ITEMS: Final = 20_000
"""Of one kind of evidence: a run has some hundreds of requests and events."""
_ISSUE_FILE: Final = "issue.md"
_ORDER: Final = ("log", "metrics", "json", "txt", "lock", "stacks")


class _Packer:
    """An archive that is written, and the list of what is in it."""

    archive: zipfile.ZipFile
    manifest: BundleManifest

    def __init__(
        self,
        source: Path,
        target: Path,
        force: bool,
        document: str,
        secrets: Sequence[str],
        max_bytes: int,
    ) -> None:
        """``document``: as it is; ``max_bytes``: of the finished file."""
        if is_there(target):
            # A link may lead into what is packed: real paths are compared.
            real = Path(os.path.realpath(target))
            home = Path(os.path.realpath(source))
            is_earlier_bundle = real.parent == home and real.suffix == ".zip"
            if real.is_relative_to(home) and not is_earlier_bundle:
                raise UsageError(
                    f"{target} is a part of what is packed.", hint="another --out"
                )
            if not force:
                hint = "--force, or --out another name"
                raise UsageError(f"{target} is there already.", hint=hint)

        self.target = target
        self.max_bytes = max_bytes
        self.redactor = Public()
        self.redactor.reserve(document)
        for secret in secrets:
            self.redactor.add(secret)

    @contextlib.contextmanager
    def writing(self, id: str, scenario: str) -> Iterator[None]:
        """The file is written whole or not at all; its manifest comes last."""
        target = self.target
        self.manifest = BundleManifest(
            mmrepro_version=__version__, incident=id, scenario=scenario, files=[]
        )
        try:
            with replacing(target) as file, zipfile.ZipFile(file, "w") as self.archive:
                yield
                # Last: it lists what was written before it.
                self._entry(
                    MANIFEST_FILE, self.manifest.model_dump_json(indent=1) + "\n"
                )
        except OSError as error:
            raise UnwritableOutput(
                f"{target} cannot be written: {error.strerror or error}.",
                hint="free some space or check the permissions, or give --out FILE",
            ) from error

    @property
    def written(self) -> int:
        """Bytes so far."""
        return self.archive.fp.tell() if self.archive.fp is not None else 0

    def add(
        self,
        name: str,
        content: str | bytes,
        original_bytes: int | None = None,
        note: str = "",
    ) -> None:
        """``original_bytes``: before redaction and trimming; None: as many as there
        are."""
        data = (
            content.encode("utf-8", "replace") if isinstance(content, str) else content
        )
        self._entry(name, data)
        listed = BundledFile(
            name=name,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            original_bytes=len(content) if original_bytes is None else original_bytes,
            redactions=len(REDACTED.findall(content))
            if isinstance(content, str)
            else 0,
            note=note,
        )
        self.manifest.files.append(listed)

    def leave_out(self, name: str, size: int, why: str) -> None:
        self.manifest.left_out.append(LeftOut(name=name, bytes=size, why=why))

    def check_size(self, what: str, more: int = 0) -> None:
        """Raises UsageError: what has to be in the file is over its limit.

        ``more``: bytes that are still to be written of it.
        """
        whole = self.written + more
        if whole > self.max_bytes:
            raise UsageError(
                f"{what} takes {units.size(whole)}, over the limit of "
                f"{units.size(self.max_bytes)}.",
                hint="mmrepro bundle … --max-mib 25",
            )

    def _entry(self, name: str, data: str | bytes) -> None:
        """Without a date: the same document gives the same bytes."""
        entry = zipfile.ZipInfo(name)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (stat.S_IFREG | 0o644) << 16
        self.archive.writestr(entry, data)


def write_bundle(
    directory: Path,
    made: Incident | Replay,
    target: Path,
    *,
    max_bytes: int = _DEFAULT_MAX_BYTES,
    secrets: Sequence[str] = (),
    force: bool = False,
    sign: Path | None = None,
    packed: Path | None = None,
) -> BundleManifest:
    """Write the bundle of ``made``, which lies in ``directory``, to ``target`` (a ZIP
    file).

    Each finding's case has random texts and images in place of those that were played,
    unless those were random already; its script, its reports and its issue are made
    anew from that.

    Args:
        max_bytes: of the finished file; evidence that does not fit is left out and
            listed.
        secrets: further texts to be replaced wherever they occur.
        sign: a private key, by which the record of hashes is signed.
        packed: the bundle that ``made`` was read from; None: it is no bundle.

    Raises:
        UsageError: ``target`` is there already, or a file of what is packed; or what
            has to be in it is larger than the limit; or nothing can be signed.
        UnwritableOutput: it cannot be written.
    """
    cut = ""
    if isinstance(made, Incident):
        made, cut = _bounded(made)
    packer = _Packer(directory, target, force, document_json(made), secrets, max_bytes)
    if isinstance(made, Incident):
        _add_incident(packer, directory, packed or directory, made, cut, sign)
    elif sign is not None:
        raise UsageError("--sign is for incidents: a replay has no record of hashes.")
    else:
        _add_replay(packer, directory, made)

    return packer.manifest


def _add_incident(
    packer: _Packer,
    directory: Path,
    place: Path,
    incident: Incident,
    cut: str,
    sign: Path | None,
) -> None:
    """Add an incident, its evidence and its record of hashes.

    ``place``: where its record is; of a bundle, that file."""
    redactor = packer.redactor
    shown = redactor.redact_model(incident)
    with packer.writing(shown.id, shown.scenario.name):
        size = _size_of(directory / INCIDENT_FILE)
        for name, text in documents.rendered(runs.KIND, shown).items():
            # Rendering may join what was apart, so that a pattern fits now that did not
            # before.
            packer.add(name, redactor.redact(text), note=cut)

        document_bytes = _packed(document_json(shown))
        packer.check_size("The incident alone", document_bytes)
        kept = _add_evidence(packer, directory / EVIDENCE_DIR, document_bytes)
        # Last: its head is the hash of a line that has the hashes of the raw files.
        chain = packed_chain(place, shown, kept)
        if chain is not None:
            packer.add(HASHES_FILE, b"".join(chain.lines))
        elif sign is not None:
            raise UsageError(
                f"{place} carries no record of hashes: there is nothing to sign.",
                hint="mmrepro bundle DIR, without --sign",
            )

        if chain is not None and sign is not None:
            packer.add(SIGNATURE_FILE, sign_head(chain.last_sha256, sign))
        packer.add(INCIDENT_FILE, document_json(shown), size, cut)


def _add_replay(packer: _Packer, directory: Path, replay: Replay) -> None:
    with packer.writing(replay.id, "replay"):
        everything = []
        for finding in replay.findings:
            everything.append(finding_of(replay, finding, directory))

        # All words first: one finding's may stand in another's sentences.
        for loaded in everything:
            if loaded.case is not None:
                register_words(loaded.case, packer.redactor)

        shown: list[Finding] = []
        folders: set[str] = set()
        for loaded in everything:
            folder = loaded.finding.folder
            if not folder or folder in folders:
                packer.leave_out(
                    f"finding {loaded.finding.id}", 0, "it has no folder of its own"
                )
                continue

            folders.add(folder)
            with public(loaded, packer.redactor) as shared:
                shown.append(shared.finding)
                _add_finding(packer, shared)

            if loaded.finding.diagnosis:
                why = "an incident of its own: mmrepro bundle packs it"
                packer.leave_out(loaded.finding.diagnosis, 0, why)

        whole = packer.redactor.redact_model(replay).model_copy(
            update={"findings": shown}
        )
        packer.add(REPLAY_FILE, document_json(whole))
        for name, text in documents.rendered(replays.KIND, whole).items():
            packer.add(name, text)

        packer.check_size("The replay")


def _add_finding(packer: _Packer, loaded: LoadedFinding) -> None:
    texts = {
        **documents.rendered(one.KIND, loaded),
        _ISSUE_FILE: issue_form.public_issue(loaded),
    }
    images: dict[str, bytes] = {}
    if loaded.case is not None:
        images = read_contents(loaded.case, loaded.folder)
        texts[CASE_FILE] = case_text(loaded.case)
        if loaded.case.operations:
            texts[SCRIPT_FILE] = one.script_of(loaded)

    below = loaded.finding.folder
    for name, text in texts.items():
        packer.add(f"{below}/{name}", text)

    for sha256, data in images.items():
        packer.add(f"{below}/{IMAGES_DIR}/{sha256}", data)


def _bounded(incident: Incident) -> tuple[Incident, str]:
    """``incident`` with both ends of what there is too much of, and what was cut, in
    words."""
    changes = {}
    cut = []
    for name in Evidence.model_fields:
        value = getattr(incident.evidence, name)
        if isinstance(value, list) and len(value) > MAX_ITEMS:
            # The beginning and the end tell most: how it was set up, how it failed.
            changes[name] = value[: MAX_ITEMS // 2] + value[-MAX_ITEMS // 2 :]
            cut.append(f"{len(value) - MAX_ITEMS} of {len(value)} {name}")

    if not cut:
        return incident, ""
    evidence = incident.evidence.model_copy(update=changes)
    note = f"left out of the middle: {', '.join(cut)}"
    return incident.model_copy(update={"evidence": evidence}), note


# ---------------------------------------------------------------------- raw evidence


def _add_evidence(packer: _Packer, folder: Path, reserved: int) -> dict[str, FileHash]:
    """Add what of the raw files may go out and fits; returns the hashes of those.

    ``reserved``: bytes for what is written after them.
    """
    home = Path(os.path.realpath(folder.parent), folder.name)
    kept = {}
    for path, safe in _named(folder, packer):
        name = f"{EVIDENCE_DIR}/{safe}"
        whole = _size_of(path)
        try:
            text, note = public_text(path, home, packer.redactor)
        except NotPublic as reason:
            packer.leave_out(name, whole, str(reason))
            continue

        if packer.written + reserved + _packed(text) > packer.max_bytes:
            why = f"beyond the limit of {units.size(packer.max_bytes)} for the bundle"
            packer.leave_out(name, whole, why)
        else:
            packer.add(name, text, whole, note)
            kept[safe] = hash_of(text.encode("utf-8", "replace"))

    return kept


def _packed(text: str) -> int:
    return len(zlib.compress(text.encode("utf-8", "replace"))) + 512


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _named(folder: Path, packer: _Packer) -> Iterator[tuple[Path, str]]:
    """Each raw file, and a name that no other has; what is not even looked at is
    listed."""
    if folder.is_symlink():
        packer.leave_out(EVIDENCE_DIR, 0, "a link: it may lead anywhere")
        return

    paths = list(_evidence(folder))
    more = paths[MAX_FILES:]
    if more:
        name = f"{EVIDENCE_DIR}: {len(more)} of {len(paths)} files"
        packer.leave_out(name, sum(map(_size_of, more)), "too many files")

    taken = {path.name for path in paths}
    for path in paths[:MAX_FILES]:
        packer.redactor.name_file(path.name)
        public = packer.redactor.redact(path.name)
        name = re.sub(r"[^\w.\[\]:+-]", "_", public)[:180] or "_"
        # Two names may be alike once what is private in them is gone.
        safe = name
        number = 1
        while safe != path.name and safe in taken:
            number += 1
            safe = f"{Path(name).stem}-{number}{Path(name).suffix}"

        taken.add(safe)
        yield path, safe


def _evidence(folder: Path) -> Iterator[Path]:
    """The raw files, most telling first; of many stack dumps the first and the last
    come first."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return

    stacks = [path for path in paths if "-stacks-" in path.name]
    ends = {*stacks[:3], *stacks[-1:]}

    def rank(path: Path) -> tuple[int, str]:
        if "-stacks-" in path.name:
            return (len(_ORDER) - (path in ends), path.name)
        for place, word in enumerate(_ORDER):
            if word in path.name:
                return (place, path.name)
        return (len(_ORDER) - 2, path.name)

    yield from sorted(paths, key=rank)
