"""The incident of a run while it grows, in its folder: made early, checked for space,
written at every stage."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from mmrepro.base import units
from mmrepro.base.errors import MmreproError, NoSpace, UnwritableOutput
from mmrepro.base.machine import is_folder, is_there, write_file
from mmrepro.base.records import EVIDENCE_DIR, Moment
from mmrepro.base.text import Redactor
from mmrepro.failure.documents.hashes import HASHES_FILE, HashChain, hashed_files
from mmrepro.failure.documents.model import INCIDENT_FILE, HashHead, Incident
from mmrepro.failure.documents.stored import document_json
from mmrepro.traffic.evidence import Listener, Recorder

NEEDED_BYTES = 100 << 20
DEFAULT_ROOT = "incidents"


def make_run_dir(out: Path | None, scenario: str, release: str) -> Path:
    """The folder of a run: ``out``, or a new one below ``incidents/``.

    Raises:
        UnwritableOutput: it cannot be made or written, or already holds an incident.
        NoSpace: less than 100 MiB are free there.
    """
    folder = out if out is not None else new_folder(DEFAULT_ROOT, scenario, release)
    if is_there(folder / INCIDENT_FILE):
        raise UnwritableOutput(
            f"{folder} already holds an incident.",
            hint="choose another --out, or remove it",
        )
    return prepared(folder, EVIDENCE_DIR)


def new_folder(root: str, scenario: str, release: str) -> Path:
    """A name below ``root`` that nothing has yet."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{scenario}-{release}-{stamp}")
    return unused(Path(root) / name)


_WORKING: Final = ("blocks", "episodes", "incidents", "plays", "runs")
"""Folders that campaigns empty in theirs: a run that was killed may have left something
there."""


def refuse_taken(out: Path, names: Iterable[str] = _WORKING) -> None:
    """Raises UnwritableOutput: ``out``, in which a campaign is to begin, has such a
    folder already.

    What is in it is not the campaign's, which would empty it.
    """
    taken = next((name for name in names if is_there(out / name)), None)
    if taken is not None:
        raise UnwritableOutput(
            f"{out} holds no campaign, and has a folder {taken} that one would empty.",
            hint="choose another --out",
        )


def prepared(folder: Path, below: str = "") -> Path:
    """``folder``, made with ``below`` in it, and seen to be writable and roomy;
    absolute.

    Raises:
        UnwritableOutput: it cannot be made or written.
        NoSpace: less than 100 MiB are free there.
    """
    try:
        make_folders(folder / below)
        # Permissions do not tell it all: a mount may be read-only, or a quota spent.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-test-"):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(folder) from error
        why = os.strerror(error.errno or 0)
        raise UnwritableOutput(
            f"The output folder {folder} cannot be written: {why}.",
            hint="mmrepro run … --out DIR, with a DIR that you may write",
        ) from error
    if free < NEEDED_BYTES:
        raise _full(folder, free)
    return folder.resolve()


def unused(path: Path) -> Path:
    """``path``, or with a number behind it: two runs may start within one second."""
    candidate = path
    number = 2
    while is_there(candidate):
        candidate = path.with_name(f"{path.name}-{number}")
        number += 1
    return candidate


def _full(folder: Path, free: int | None = None) -> NoSpace:
    left = ""
    if free:
        needed = units.size(NEEDED_BYTES)
        left = f" ({units.size(free)} are free, {needed} are needed)"
    return NoSpace(
        f"The disk that holds {folder} is full{left}.",
        hint="mmrepro env prune, or --out DIR on another disk",
    )


# What this process has made, as it was then: where it lies, and which folder of the
# disk it is.
_MADE: dict[Path, tuple[int, int]] = {}


def make_folders(folder: Path) -> None:
    """Make ``folder`` and those above it that are missing; those are remembered as
    ours.

    Raises:
        OSError: one cannot be made, or something else is there.
    """
    folder = folder.absolute()
    missing = []
    for path in (folder, *folder.parents):
        if is_there(path):
            break
        missing.append(path)
    if not missing and not is_folder(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
    for path in reversed(missing):
        try:
            path.mkdir()
        except FileExistsError:
            # Somebody else was faster: then it is theirs.
            if not is_folder(path):
                raise
        else:
            remember_made(path)


def remember_made(folder: Path) -> None:
    """Note that this process has made ``folder``. Raises OSError."""
    facts = folder.lstat()
    _MADE[folder.absolute()] = facts.st_dev, facts.st_ino


def made_here(folder: Path) -> bool:
    """Whether this process made the folder that is there: only such a one is ever
    removed."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    # The folder that an incident tells of is resolved; the one that was made may not
    # be.
    known = {_MADE.get(folder.absolute()), _MADE.get(folder.resolve())}
    return (facts.st_dev, facts.st_ino) in known


def remove_made(folder: Path) -> None:
    """Remove ``folder`` and those above it, as far as this process made them and they
    are empty."""
    for path in (folder, *folder.absolute().parents):
        if not made_here(path):
            return
        try:
            path.rmdir()
        except OSError:
            return


def discard(folder: Path) -> None:
    """Remove what :func:`make_run_dir` made, and nothing that somebody else put
    there."""
    for name in (INCIDENT_FILE, HASHES_FILE):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    evidence = folder / EVIDENCE_DIR
    remove_made(evidence if is_there(evidence) else folder)


def write_incident(
    incident: Incident,
    folder: Path,
    redactor: Redactor,
    chain: HashChain | None = None,
) -> Path:
    """Write ``incident.json`` whole or not at all; returns the folder that it is in.

    When the disk is full the incident goes to the temporary folder instead: what was
    collected is not lost.

    Args:
        chain: the record of its hashes, to which what is written now is appended.

    Raises:
        NoSpace: there is no room there either.
    """
    shown = redactor.redact_model(incident)
    try:
        _write_with_hashes(shown, folder, chain)
        return folder
    except OSError as error:
        try:
            refuge = Path(tempfile.mkdtemp(prefix=f"mmrepro-{incident.scenario.name}-"))
            # The raw files stayed behind, and what was noted of them with them.
            anew = HashChain(incident.id) if chain is not None else None
            _write_with_hashes(shown, refuge, anew)
        except OSError:
            raise NoSpace(
                f"The incident could not be written to {folder}: {error.strerror}.",
                hint="mmrepro env prune, then run again",
            ) from error
        return refuge


def _write_with_hashes(
    incident: Incident, folder: Path, chain: HashChain | None
) -> None:
    """Raises OSError."""
    if chain is not None:
        document = json.loads(incident.model_dump_json())
        growing = incident.server is not None
        chain.note(document, hashed_files(folder / EVIDENCE_DIR, growing=growing))
        incident.hashes = HashHead(sha256=chain.last_sha256)
        # Before the incident, which names its last line.
        write_file(folder / HASHES_FILE, b"".join(chain.lines))
    write_file(folder / INCIDENT_FILE, document_json(incident))


_State = Literal["complete", "interrupted", "failed"]


class Journal:
    """What a run has told so far; nothing is decided by it.

    Attributes:
        incident: valid, if partial, at every moment; its evidence is the recorder's.
        folder: of the incident; another one once the disk is full.
    """

    def __init__(
        self, incident: Incident, folder: Path, listener: Listener | None = None
    ) -> None:
        self.incident, self.folder = incident, folder
        self.recorder = Recorder(folder, listener)
        self._redactor = Redactor()
        self._chain = HashChain(incident.id)
        incident.evidence = self.recorder.evidence

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """An event as it begins; its seconds once it has ended, however it did."""
        began = time.monotonic()
        self.recorder.event(name, source="stage")
        try:
            yield
        finally:
            self.incident.stages[name] = round(time.monotonic() - began, 2)

    def save(self) -> None:
        """Write the incident as it is; a full disk moves it. Raises as
        ``write_incident``."""
        folder = write_incident(self.incident, self.folder, self._redactor, self._chain)
        if folder != self.folder:
            self._chain = HashChain(self.incident.id)
            self.folder = folder
            # Once more: what was written there does not name its own folder yet.
            self.incident.incident_dir = str(folder)
            self.save()

    @contextlib.contextmanager
    def whole_run(self) -> Iterator[None]:
        """Around all of a run: how it ended is told and saved, and raised again."""
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted", "interrupted by the user")
            raise
        except MmreproError as error:
            self.incident.failure_class = type(error).__name__
            self._end("failed", error.message, error.detail)
            raise
        # Also what no handler of errors catches: an incident without an end would read
        # as a run that was killed.
        except BaseException as error:
            self.incident.failure_class = type(error).__name__
            self._end(
                "failed", f"mmrepro itself failed: {type(error).__name__}: {error}"
            )
            raise
        self._end("complete")

    def _end(
        self, state: _State, failure: str = "", detail: Sequence[str] = ()
    ) -> None:
        self.recorder.phase = "stop"
        self.incident.state, self.incident.failure = state, failure
        self.incident.failure_detail += detail
        self.incident.finished = Moment.now()
        self.save()
