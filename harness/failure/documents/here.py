"""What lies here: incidents and campaigns, and the names by which commands take
them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.base.errors import BadIncident, UsageError, did_you_mean
from mmrepro.base.machine import is_file, is_folder
from mmrepro.failure.documents.head import (
    CAMPAIGN_FILES,
    COMPLETE,
    FoundIncident,
    IncidentHead,
    ListedCampaign,
    campaigns_in,
    read_head,
    record_folders,
)
from mmrepro.failure.documents.model import INCIDENT_FILE
from mmrepro.failure.documents.replay import FUZZ_FILE, REPLAY_FILE, Fuzz, Replay
from mmrepro.failure.documents.stored import DocumentT, load_document
from mmrepro.traffic.case import CASE_FILE

_ROOTS = ("incidents", "ablations", "bisections", "nights", "replays", "fuzz")
"""Where commands put incidents by default."""
LAST = "last"
LISTS = "mmrepro incidents"
FINDING = re.compile(r"[fF][1-9]\d{0,5}")
"""Ids of findings: f1 of a replay, F1 of a fuzz session."""


@dataclass(frozen=True)
class Here:
    """An incident or a campaign with its number: incidents come first, newest first,
    then the campaigns."""

    number: int
    of: FoundIncident | ListedCampaign
    kind: str
    id: str

    @property
    def folder(self) -> Path:
        return self.of.folder


def here(roots: Sequence[Path] = ()) -> tuple[list[Here], list[FoundIncident]]:
    """What lies below ``roots``, and the incidents that cannot be read.

    Args:
        roots: none: where commands put their results, below the current folder.

    Raises:
        UsageError: a folder that was named is not there.
    """
    incidents: list[tuple[float, FoundIncident, str]] = []
    campaigns: list[ListedCampaign] = []
    broken: list[FoundIncident] = []
    for folder, files in record_folders(places_of(roots)):
        if INCIDENT_FILE not in files:
            campaigns += campaigns_in(folder, files)
            continue
        incident = read_head(folder)
        if incident.head is None:
            broken.append(incident)
        else:
            created = incident.head.created.wall.timestamp()
            incidents.append((created, incident, incident.head.id))
    incidents.sort(key=lambda row: row[0], reverse=True)
    campaigns.sort(key=lambda campaign: campaign.created, reverse=True)

    rows: list[Here] = []
    for _, incident, incident_id in incidents:
        rows.append(Here(len(rows) + 1, incident, "incident", incident_id))
    for campaign in campaigns:
        campaign_id = campaign.head.id if campaign.head else ""
        rows.append(Here(len(rows) + 1, campaign, campaign.kind.name, campaign_id))
    return rows, broken


def places_of(roots: Sequence[Path]) -> list[Path]:
    """The folders to search: ``roots``, or those where commands put their results.
    Raises UsageError: a root is no folder."""
    for root in roots:
        if not is_folder(root):
            raise UsageError(f"There is no folder {root}.")
    if roots:
        return list(roots)

    places = [Path(name) for name in _ROOTS if Path(name).is_dir()]
    # With --out NAME a campaign lies in a folder of its own beside those.
    others: list[Path] = []
    for name in CAMPAIGN_FILES:
        others += [file.parent for file in Path().glob(f"*/{name}")]
    places += sorted(others)
    if any(Path(name).is_file() for name in CAMPAIGN_FILES):
        places.append(Path())
    return list(dict.fromkeys(places))


def _fits(row: Here, kind: str) -> bool:
    """Whether it is of a kind that :attr:`Option.names` knows."""
    is_incident = row.kind == "incident"
    match kind:
        case "incident":
            return is_incident
        case "run":
            head = row.of.head
            return is_incident and isinstance(head, IncidentHead) and not head.diagnosis
        case "campaign":
            return not is_incident
        case "finding":
            return row.kind in ("replay", "fuzz session")
        case "record":
            return True
        case _:
            return not is_incident and unfinished(row.of)


def unfinished(record: Any) -> bool:
    """Whether a campaign is not complete, as far as its head can be read."""
    return record.head is None or record.head.state != COMPLETE


def names(kind: str) -> list[str]:
    """``last``, the numbers and the ids of what lies here, for a shell."""
    rows = [row for row in here()[0] if _fits(row, kind)]
    if not rows:
        return []
    numbers = [str(row.number) for row in rows]
    ids = [row.id or row.folder.name for row in rows]
    return [LAST, *numbers, *ids]


def place(given: Path, kind: str) -> Path:
    """The folder that ``given`` names: a path, a number of ``mmrepro incidents``, an
    id, the name of a folder, or ``last``. What is no name of anything here is a path,
    as it stands.

    Raises:
        UsageError: no such number, nothing that could be the last one, or a name that
            two have.
    """
    word = str(given)
    if os.path.lexists(given) or os.sep in word:
        return _finding(given) if kind == "finding" else given
    rows, _ = here()
    if kind in ("finding", "record") and FINDING.fullmatch(word):
        return _folder_of_finding(word, rows)

    if word == LAST:
        chosen = _last(rows, kind)
    # A longer number is the name of a folder: a date, say.
    elif word.isdecimal() and len(word) < 7:
        chosen = _numbered(word, rows, kind)
    else:
        named = _named(word, rows)
        if named is None:
            return given
        chosen = named
    return _finding(chosen.folder) if kind == "finding" else chosen.folder


_KIND_WORDS = {
    "incident": "incident",
    "run": "run",
    "finding": "replay",
    "record": "incident or campaign",
}


def _kind_words(kind: str) -> str:
    return _KIND_WORDS.get(kind, "campaign")


def _last(rows: Sequence[Here], kind: str) -> Here:
    """The newest of a kind. Raises UsageError: none is here."""
    fitting = [row for row in rows if _fits(row, kind)]
    if not fitting:
        raise UsageError(
            f"There is no {_kind_words(kind)} here that could be the last.", hint=LISTS
        )
    return _newest_record(fitting) if kind == "record" else fitting[0]


def _numbered(word: str, rows: Sequence[Here], kind: str) -> Here:
    """The row with that number. Raises UsageError: there is none, or it is of another
    kind."""
    if not 1 <= int(word) <= len(rows):
        raise UsageError(f"No incident {word}; there are {len(rows)}.", hint=LISTS)
    row = rows[int(word) - 1]
    # Why a record cannot be gone on with, the command that resumes says better.
    if kind == "run" and row.kind == "incident" and not _fits(row, kind):
        raise UsageError(
            f"Number {word} is a diagnosis, which cannot be judged again.",
            hint="mmrepro judge last, for the newest run",
        )
    if kind != "unfinished" and not _fits(row, kind):
        raise UsageError(
            f"Number {word} is no {_kind_words(kind)}, but {_a(row.kind)}.", hint=LISTS
        )
    return row


def _named(word: str, rows: Sequence[Here]) -> Here | None:
    """The row with that id or folder; None: none, nor any that is called much like it.
    Raises UsageError: two have it, or a similar name is meant."""
    named = [row for row in rows if word in (row.id, row.folder.name)]
    if len({row.folder for row in named}) > 1:
        raise UsageError(
            f"{len(named)} incidents or campaigns are called {word}.", hint=LISTS
        )
    if named:
        return named[0]

    known: list[str] = []
    for row in rows:
        known += [row.id, row.folder.name]
    guess = did_you_mean(word, known)
    if guess:
        raise UsageError(f"Nothing here is called {word}.{guess}", hint=LISTS)
    return None


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _newest_record(rows: Sequence[Here]) -> Here:
    """The newest; an incident within a campaign is a part of it."""
    campaigns = {row.folder.absolute() for row in rows if row.kind != "incident"}
    whole: list[Here] = []
    for row in rows:
        around = row.folder.absolute().parents
        if row.kind != "incident" or campaigns.isdisjoint(around):
            whole.append(row)
    return max(whole, key=_created)


def _created(row: Here) -> float:
    head = row.of.head
    return head.created.wall.timestamp() if head else 0.0


def _folder_of_finding(word: str, rows: Sequence[Here]) -> Path:
    """The folder of finding ``word`` (f1 of a replay, F1 of a fuzz session) of the
    newest campaign that has such a one. Raises UsageError: none has."""
    searches = [row for row in rows if _fits(row, "finding")]
    for row in sorted(searches, key=_created, reverse=True):
        folder = _finding_folders(word, row.folder).get(word)
        if folder:
            return row.folder / folder
    raise UsageError(
        f"No replay or fuzz session here has a finding {word}.", hint=LISTS
    )


def _finding_folders(word: str, campaign: Path) -> dict[str, str]:
    """Folders of a campaign's findings by their ids, where it has ids like ``word``."""
    if word[0] == "F":
        fuzz = _read(Fuzz, campaign / FUZZ_FILE)
        return {found.id: found.folder for found in fuzz.found} if fuzz else {}
    replay = _read(Replay, campaign / REPLAY_FILE)
    return {found.id: found.folder for found in replay.findings} if replay else {}


def _read(kind: type[DocumentT], file: Path) -> DocumentT | None:
    try:
        return load_document(file.parent, file.name, kind)
    except BadIncident:
        return None


def _finding(folder: Path) -> Path:
    """The one finding of a replay or of a fuzz session in ``folder``, else ``folder``
    itself.

    Raises:
        UsageError: it has several.
    """
    if not any(is_file(folder / name) for name in (REPLAY_FILE, FUZZ_FILE)):
        return folder
    # A fuzz session keeps its findings in replays of their own, one folder deeper.
    cases = [*folder.glob(f"*/{CASE_FILE}"), *folder.glob(f"*/*/{CASE_FILE}")]
    findings: list[Path] = []
    for case in cases:
        if is_file(case.parent.parent / REPLAY_FILE):
            findings.append(case.parent)
    if len(findings) > 1:
        raise UsageError(
            f"{folder} has {len(findings)} findings.",
            hint=f"--from {shlex.quote(str(min(findings)))}",
        )
    return findings[0] if findings else folder
