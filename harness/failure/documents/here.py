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
from mmrepro.base.machine.files import is_file, is_folder
from mmrepro.failure.documents.head import (
    CAMPAIGN_FILES,
    COMPLETE,
    FoundIncident,
    ListedCampaign,
    campaigns_in,
    read_head,
    record_folders,
)
from mmrepro.failure.documents.model import INCIDENT_FILE
from mmrepro.failure.documents.replay import FUZZ_FILE, REPLAY_FILE, Fuzz, Replay
from mmrepro.failure.documents.stored import DocumentT, load_document
from mmrepro.traffic.case.model import CASE_FILE

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
    found: list[tuple[float, FoundIncident, str]] = []
    campaigns: list[ListedCampaign] = []
    broken: list[FoundIncident] = []
    for folder, files in record_folders(places_of(roots)):
        if INCIDENT_FILE not in files:
            campaigns += campaigns_in(folder, files)
        elif (one := read_head(folder)).head is None:
            broken.append(one)
        else:
            found.append((one.head.created.wall.timestamp(), one, one.head.id))
    found.sort(key=lambda one: one[0], reverse=True)
    campaigns.sort(key=lambda one: one.created, reverse=True)
    rows: list[tuple[FoundIncident | ListedCampaign, str, str]] = [
        (one, "incident", id) for _, one, id in found
    ]
    rows += [(one, one.kind.name, one.head.id if one.head else "") for one in campaigns]
    return [Here(number, *row) for number, row in enumerate(rows, start=1)], broken


def places_of(roots: Sequence[Path]) -> list[Path]:
    for root in roots:
        if not is_folder(root):
            raise UsageError(f"There is no folder {root}.")
    if roots:
        return list(roots)
    others = sorted(
        path.parent for name in CAMPAIGN_FILES for path in Path().glob(f"*/{name}")
    )
    own = [Path()] if any(Path(name).is_file() for name in CAMPAIGN_FILES) else []
    return [
        *dict.fromkeys([*(Path(n) for n in _ROOTS if Path(n).is_dir()), *others, *own])
    ]


def _fits(one: Here, kind: str) -> bool:
    """Whether it is of a kind that :attr:`Option.names` knows."""
    if kind in ("incident", "campaign"):
        return (one.kind == "incident") is (kind == "incident")
    if kind == "finding":
        return one.kind in ("replay", "fuzz session")
    return kind == "record" or (one.kind != "incident" and unfinished(one.of))


def unfinished(one: Any) -> bool:
    return one.head is None or one.head.state != COMPLETE


def names(kind: str) -> list[str]:
    """``last``, the numbers and the ids of what lies here, for a shell."""
    rows = [one for one in here()[0] if _fits(one, kind)]
    ids = [one.id or one.folder.name for one in rows]
    return [*([LAST] if rows else []), *(str(one.number) for one in rows), *ids]


def place(given: Path, kind: str) -> Path:
    """The folder that ``given`` names: a path, a number of ``mmrepro incidents``, an
    id, the name of a folder, or ``last``. What is no name of anything here is a path,
    as it stands.

    Raises:
        UsageError: no such number, nothing that could be the last one, or a name that
            two have.
    """
    word = str(given)
    number = word.isdecimal() and len(word) < 7
    if os.path.lexists(given) or os.sep in word:
        return _finding(given) if kind == "finding" else given
    rows, _ = here()
    if kind in ("finding", "record") and FINDING.fullmatch(word):
        return _called(word, rows)
    what = {"incident": "incident", "finding": "replay"}.get(kind, "campaign")
    what = "incident or campaign" if kind == "record" else what
    if word == LAST:
        fits = [one for one in rows if _fits(one, kind)]
        if not fits:
            raise UsageError(
                f"There is no {what} here that could be the last.", hint=LISTS
            )
        chosen = _last(fits) if kind == "record" else fits[0]
    elif number:
        if not 1 <= int(word) <= len(rows):
            raise UsageError(
                f"There is no number {word} in a list of {len(rows)}.", hint=LISTS
            )
        chosen = rows[int(word) - 1]
        if not (_fits(chosen, kind) or kind == "unfinished"):
            raise UsageError(
                f"Number {word} is no {what}, but {_a(chosen.kind)}.", hint=LISTS
            )
    else:
        named = [one for one in rows if word in (one.id, one.folder.name)]
        if len({one.folder for one in named}) > 1:
            raise UsageError(
                f"{len(named)} incidents or campaigns are called {word}.", hint=LISTS
            )
        if not named:
            known = [name for one in rows for name in (one.id, one.folder.name)]
            if guess := did_you_mean(word, known):
                raise UsageError(f"Nothing here is called {word}.{guess}", hint=LISTS)
            return given
        chosen = named[0]
    return _finding(chosen.folder) if kind == "finding" else chosen.folder


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _last(rows: Sequence[Here]) -> Here:
    """The newest; an incident within a campaign is a part of it."""
    campaigns = {one.folder.absolute() for one in rows if one.kind != "incident"}
    whole = [
        one
        for one in rows
        if one.kind != "incident" or campaigns.isdisjoint(one.folder.absolute().parents)
    ]
    return max(whole, key=_created)


def _created(one: Here) -> float:
    head = one.of.head
    return head.created.wall.timestamp() if head else 0.0


def _called(word: str, rows: Sequence[Here]) -> Path:
    """The folder of finding ``word`` (f1 of a replay, F1 of a fuzz session) of the
    newest campaign that has such a one. Raises UsageError: none has."""
    searches = [one for one in rows if _fits(one, "finding")]
    for one in sorted(searches, key=_created, reverse=True):
        if word[0] == "F":
            document = _read(Fuzz, one.folder / FUZZ_FILE)
            places = (
                {found.id: found.folder for found in document.found} if document else {}
            )
        else:
            replay = _read(Replay, one.folder / REPLAY_FILE)
            places = (
                {found.id: found.folder for found in replay.findings} if replay else {}
            )
        if places.get(word):
            return one.folder / places[word]
    raise UsageError(
        f"No replay or fuzz session here has a finding {word}.", hint=LISTS
    )


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
    cases = [*folder.glob(f"*/{CASE_FILE}"), *folder.glob(f"*/*/{CASE_FILE}")]
    found = sorted(
        one.parent for one in cases if is_file(one.parent.parent / REPLAY_FILE)
    )
    if len(found) > 1:
        raise UsageError(
            f"{folder} has {len(found)} findings.",
            hint=f"--from {shlex.quote(str(found[0]))}",
        )
    return found[0] if found else folder
