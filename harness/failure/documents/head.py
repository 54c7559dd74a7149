"""What a list shows of an incident, or of a campaign: the beginning of its file, no
evidence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.base.machine import DEEPEST, open_to_read
from mmrepro.base.records import Fidelity, Moment, parsed
from mmrepro.failure.documents.ledger import LEDGER_FILE
from mmrepro.failure.documents.model import INCIDENT_FILE
from mmrepro.failure.signature import Outcome
from pydantic import BaseModel
from pydantic_core import from_json

CHUNK = 1 << 16
_MAX_BYTES = 128 << 20
_EVIDENCE = b'\n "evidence": {'
"""The last field of what ``write_incident`` writes, and nearly all of it. No text in
the file holds a line break, so it can be nothing else."""


class _Named(BaseModel):
    name: str
    variant: str = ""
    release: str = ""


class _Server(BaseModel):
    engine: str
    release: str


class _Verdict(BaseModel):
    outcome: Outcome
    expected: Outcome | None = None
    as_expected: bool = False


class IncidentHead(BaseModel):
    """Of an incident of any version that has these fields; others are not looked at."""

    id: str
    created: Moment
    finished: Moment | None = None
    state: str
    failure: str = ""
    failure_class: str = ""
    command: str = ""
    scenario: _Named
    engine: _Named
    fidelity: Fidelity
    verdict: _Verdict | None = None
    diagnosis: dict[str, Any] | None = None

    @property
    def seconds(self) -> float | None:
        """The time from its beginning to its end; None: it has no end."""
        return None if self.finished is None else self.finished.mono - self.created.mono

    @property
    def as_expected(self) -> bool | None:
        """Whether the verdict is the expected one; None: nothing was expected, or there
        is no verdict."""
        if self.verdict is None or self.verdict.expected is None:
            return None
        return self.verdict.as_expected

    @property
    def outcome(self) -> str:
        """The verdict's; of a run without one, how it ended: failed, interrupted,
        diagnosis."""
        if self.verdict is not None and self.state == "complete":
            return self.verdict.outcome.value
        return "diagnosis" if self.diagnosis is not None else self.state


@dataclass(frozen=True)
class FoundIncident:
    """A folder with an incident; ``head`` is None where it cannot be read, and ``why``
    tells."""

    folder: Path
    head: IncidentHead | None
    why: str = ""


def read_head(folder: Path) -> FoundIncident:
    """The head of the incident in ``folder``; reads no more of the file than that
    takes."""
    try:
        head = parsed(IncidentHead, _beginning(folder / INCIDENT_FILE))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return FoundIncident(folder, None, str(why))
    return FoundIncident(folder, head)


def record_folders(roots: Iterable[Path]) -> Iterator[tuple[Path, Collection[str]]]:
    """Folders below ``roots`` (they included) that hold an incident or a campaign, each
    once, with the names of their files. What lies within an incident is its evidence,
    and a campaign within a campaign is a part of it, as is a play of a search. Links
    are not followed."""
    seen: set[Path] = set()
    campaigns: set[Path] = set()
    searches: set[Path] = set()
    for root in roots:
        for place, folders, files in os.walk(root):
            folder = Path(place)
            incident = INCIDENT_FILE in files
            # os.walk calls itself for each folder: a deep tree would end the stack.
            too_deep = len(folder.parts) - len(root.parts) >= DEEPEST
            if incident or too_deep:
                folders.clear()
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            above = {*folder.parents}
            if incident and searches & above:
                continue
            if not incident:
                if campaigns & above or CAMPAIGN_FILES.isdisjoint(files):
                    continue
                campaigns.add(folder)
                if not _SEARCH_FILES.isdisjoint(files):
                    searches.add(folder)
            # One root may lie below another.
            whole = folder.resolve()
            if whole not in seen:
                seen.add(whole)
                yield folder, files


# ---------------------------------------------------------------- campaigns


@dataclass(frozen=True)
class CampaignKind:
    """A kind of campaign.

    Attributes:
        name: as people call it.
        words: of its command.
        also: another command that makes such a document; "": there is none.
    """

    name: str
    words: tuple[str, ...]
    also: str = ""


_DOCUMENTS = {
    "fuzz.json": CampaignKind("fuzz session", ("fuzz",)),
    "replay.json": CampaignKind("replay", ("replay",), also="repro"),
    "upgrade.json": CampaignKind("comparison", ("upgrade",)),
    "ablation.json": CampaignKind("ablation", ("ablate",)),
    "bisection.json": CampaignKind("bisection", ("bisect",)),
}
"""By the file of its document."""
_NIGHTLY = CampaignKind("nightly run", ("matrix", "run"))
CAMPAIGN_FILES = {*_DOCUMENTS, LEDGER_FILE}
_SEARCH_FILES = {"fuzz.json", "replay.json"}
"""Documents of campaigns whose single plays are left out of lists of incidents."""
COMPLETE = "complete"
_NIGHT = b'{"kind": "night", '
"""The beginning of a ledger's line on the state of a nightly run."""


class CampaignHead(BaseModel):
    """Of the document of a campaign of any kind, or of a nightly run's line."""

    mmrepro_version: str
    id: str = ""
    created: Moment
    finished: Moment | None = None
    state: str = "interrupted"
    failure: str = ""
    command: str
    resume: str = ""
    scenario: _Named | None = None
    server: _Server | None = None
    device: str = ""
    cells: int | list[Any] | None = None
    """How many a nightly run has; an ablation's document has the cells themselves."""

    @property
    def what(self) -> str:
        """What it is about: a scenario, a server, a device, or how many cells."""
        if self.scenario is not None:
            variant = f" ({self.scenario.variant})" if self.scenario.variant else ""
            return f"{self.scenario.name}{variant}"
        if self.server is not None:
            return f"{self.server.engine} {self.server.release}"
        if self.device:
            return f"on {self.device}"
        return self.id + (
            f", {self.cells} cells" if isinstance(self.cells, int) else ""
        )


@dataclass(frozen=True)
class ListedCampaign:
    """A campaign; ``head`` is None where its document cannot be read, and ``why``
    tells."""

    folder: Path
    kind: CampaignKind
    head: CampaignHead | None
    why: str = ""

    @property
    def created(self) -> float:
        """Unix time; 0: not known."""
        return 0.0 if self.head is None else self.head.created.wall.timestamp()


def campaigns_in(folder: Path, files: Collection[str]) -> Iterator[ListedCampaign]:
    """The campaigns whose records are right in ``folder``, newest first. Of a document
    no more is read than its beginning; of a ledger the lines on its nightly runs are
    looked for."""
    names = [name for name in _DOCUMENTS if name in files]
    for name in names:
        try:
            with open_to_read(folder / name) as file:
                begins = from_json(file.read(CHUNK), allow_partial=True)
            head = CampaignHead.model_validate(begins)
            yield ListedCampaign(folder, _DOCUMENTS[name], head)
        except (OSError, ValueError) as error:
            why = str(getattr(error, "strerror", None) or error)
            yield ListedCampaign(folder, _DOCUMENTS[name], None, f"{name}: {why}")
    if not names and LEDGER_FILE in files:
        yield from _nights(folder)


def _nights(folder: Path) -> list[ListedCampaign]:
    """The last line counts of each night. A line that cannot be read is somebody else's
    to report: whoever opens the ledger hears which."""
    heads: dict[str, CampaignHead] = {}
    with contextlib.suppress(OSError), open_to_read(folder / LEDGER_FILE) as lines:
        for line in lines:
            # A line without its end is being written, or was cut by a kill.
            if line.startswith(_NIGHT) and line.endswith(b"\n"):
                with contextlib.suppress(ValueError):
                    head = CampaignHead.model_validate_json(line)
                    heads[head.id] = head
    newest = sorted(
        heads.values(), key=lambda head: head.created.wall.timestamp(), reverse=True
    )
    kinds = {kind.words[0]: kind for kind in _DOCUMENTS.values()}

    def kind(head: CampaignHead) -> CampaignKind:
        """A bisection has a ledger too, and a kill may leave it without its
        document."""
        return kinds.get("".join(head.command.split()[1:2]), _NIGHTLY)

    return [ListedCampaign(folder, kind(head), head) for head in newest]


def _beginning(path: Path) -> bytes:
    """The file up to its evidence, as a JSON document of its own; all of one laid out
    otherwise."""
    text = bytearray()
    with open_to_read(path) as file:
        while chunk := file.read(CHUNK):
            # The mark may begin in one chunk and end in the next.
            start = max(0, len(text) - len(_EVIDENCE))
            text += chunk
            end = text.find(_EVIDENCE, start)
            if end >= 0:
                return bytes(text[:end].rstrip().removesuffix(b",") + b"}")
            if len(text) > _MAX_BYTES:
                raise ValueError("it is larger than any that mmrepro writes")
    return bytes(text)
