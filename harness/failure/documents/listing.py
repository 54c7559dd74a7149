"""A list of what ran here, as it is asked for; and the words that continue a
campaign."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

from mmrepro.base import units
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import is_folder
from mmrepro.base.records import Document
from mmrepro.failure.documents.head import (
    CampaignHead,
    FoundIncident,
    IncidentHead,
    ListedCampaign,
    campaigns_in,
)
from mmrepro.failure.documents.here import LISTS, Here, here, unfinished
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from pydantic import Field


class IncidentsDocument(Document, kind="incidents"):
    """What ``mmrepro incidents --json`` prints."""

    found: Annotated[int, Field(description="incidents; the list may have fewer")]
    incidents: list[dict[str, Any]]
    campaigns: list[dict[str, Any]]
    unreadable: list[dict[str, str]]


@dataclass
class RecordFilter:
    """Which incidents and campaigns are asked for; what is empty asks for all.

    Attributes:
        scenario: ``*`` stands for anything.
        release: one, or a range such as ``>=0.14, <0.24``.
        since: a length of time, or a date (UTC).

    Raises:
        UsageError: a range or a time that is none.
    """

    scenario: str = ""
    engine: str = ""
    release: str = ""
    outcome: Sequence[str] = ()
    since: str = ""

    def __post_init__(self) -> None:
        self.begin = _time(self.since).timestamp() if self.since else 0.0
        self.has = _releases(self.release)

    def incident(self, head: IncidentHead) -> bool:
        """Whether an incident is among those that are asked for."""
        if not fnmatchcase(head.scenario.name, self.scenario or "*"):
            return False
        if self.engine not in ("", head.engine.name):
            return False
        if not self.has(head.engine.release):
            return False
        if self.outcome and head.outcome not in self.outcome:
            return False
        return head.created.wall.timestamp() >= self.begin

    def campaign(self, head: CampaignHead | None) -> bool:
        """Whether a campaign is among those that are asked for: none is by what only an
        incident has; one that cannot be read always is."""
        if head is None:
            return True
        if self.engine or self.release or self.outcome:
            return False
        named = fnmatchcase(getattr(head.scenario, "name", ""), self.scenario or "*")
        return named and head.created.wall.timestamp() >= self.begin


def _releases(text: str) -> Callable[[str], bool]:
    """Whether a release is the one, or in the range, that ``text`` names. Raises
    UsageError: it is no range."""
    if not text or text[0] not in "<>=!~":
        return lambda release: not text or release == text
    try:
        known = SpecifierSet(text)
    except InvalidSpecifier:
        raise UsageError(
            f"{text!r} is no range of releases.",
            hint=f"{LISTS} --release '>=0.14, <0.24'",
        ) from None

    def contains(release: str) -> bool:
        try:
            return known.contains(release, prereleases=True)
        except InvalidVersion:
            # A server that was only observed may give a release of any form.
            return False

    return contains


def _time(text: str) -> datetime:
    """The moment that ``text`` names: a date, or so long ago. Raises UsageError."""
    try:
        try:
            when = datetime.fromisoformat(text.strip())
        except ValueError:
            when = datetime.now(UTC) - timedelta(seconds=units.parse_duration(text))
    except UsageError:
        raise UsageError(
            f"{text!r} is no time.", hint=f"{LISTS} --since 2d, or --since 2026-11-22"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _incident_facts(row: Here, head: IncidentHead) -> dict[str, Any]:
    return {
        "number": row.number,
        "id": head.id,
        "created": head.created.wall.isoformat(),
        "scenario": head.scenario.name,
        "variant": head.scenario.variant,
        "engine": head.engine.name,
        "release": head.engine.release,
        "outcome": head.outcome,
        "as_expected": head.as_expected,
        "fidelity": head.fidelity.value,
        "seconds": None if head.seconds is None else round(head.seconds, 2),
        "failure": head.failure,
        "command": head.command,
        "folder": str(row.folder),
    }


def campaign_facts(row: Here, listed: ListedCampaign) -> dict[str, Any]:
    """A campaign's row of the list, for machines."""
    facts: dict[str, Any] = {
        "number": row.number,
        "kind": row.kind,
        "folder": str(row.folder),
        "state": "unreadable",
        "created": "",
        "what": "",
        "why": listed.why,
        "command": "",
        "resume": "",
    }
    head = listed.head
    if head is None:
        return facts

    facts["state"] = head.state
    facts["created"] = head.created.wall.isoformat()
    facts["what"] = head.what
    facts["why"] = listed.why or head.failure
    facts["command"] = head.command
    if unfinished(listed):
        facts["resume"] = f"mmrepro resume {shlex.quote(str(row.folder))}"
    return facts


@dataclass(frozen=True)
class Listing:
    """``broken``: incidents that cannot be read."""

    incidents: list[tuple[Here, IncidentHead]]
    campaigns: list[tuple[Here, ListedCampaign]]
    broken: list[FoundIncident]

    def document(self, limit: int) -> IncidentsDocument:
        """What ``--json`` prints: at most ``limit`` incidents, and as many campaigns."""
        return IncidentsDocument(
            found=len(self.incidents),
            incidents=[_incident_facts(*row) for row in self.incidents[:limit]],
            campaigns=[campaign_facts(*row) for row in self.campaigns[:limit]],
            unreadable=[
                {"folder": str(incident.folder), "why": incident.why}
                for incident in self.broken
            ],
        )


def find(roots: Sequence[Path], wanted: RecordFilter) -> Listing:
    """What is wanted of what lies below ``roots``. Raises as ``here`` and
    :class:`RecordFilter`."""
    rows, broken = here(roots)
    listing = Listing([], [], broken)
    for row in rows:
        if isinstance(row.of, ListedCampaign):
            if wanted.campaign(row.of.head):
                listing.campaigns.append((row, row.of))
        elif row.of.head is not None and wanted.incident(row.of.head):
            listing.incidents.append((row, row.of.head))
    return listing


# -------------------------------------------------------------------------- to continue

_IN_THE_PLAN: Final = ("--scenario", "--night", "--shard")
"""Options of a nightly run whose outcome is written down; no other kind has them."""


def _left(folder: Path) -> tuple[ListedCampaign, CampaignHead]:
    """The newest campaign there that has something left. Raises UsageError: there is
    none."""
    if not is_folder(folder):
        raise UsageError(f"There is no folder {folder}.", hint=LISTS)
    campaigns = list(campaigns_in(folder, {path.name for path in folder.iterdir()}))
    for campaign in campaigns:
        if campaign.head is not None and unfinished(campaign):
            return campaign, campaign.head
    if not campaigns:
        raise UsageError(f"{folder} holds no campaign to go on with.", hint=LISTS)
    if campaigns[0].head is None:
        raise UsageError(
            f"The {campaigns[0].kind.name} in {folder} cannot be read: {campaigns[0].why}."
        )
    nightly = campaigns[0].kind.words[0] == "matrix"
    report = "matrix report" if nightly else "report"
    raise UsageError(
        f"The {campaigns[0].kind.name} in {folder} is complete: nothing is left to run.",
        hint=f"mmrepro {report} {shlex.quote(str(folder))}",
    )


def resume_words(folder: Path) -> list[str]:
    """The words that continue the newest campaign in ``folder``, wherever that lies
    now.

    Raises:
        UsageError: none there has something left, or what is written down is no command
            of one.
    """
    campaign, head = _left(folder)
    try:
        program, *given = shlex.split(head.resume or head.command)
    except ValueError:
        program, given = "", []
    command = campaign.kind.words
    if campaign.kind.also and given[:1] == [campaign.kind.also]:
        command = (campaign.kind.also,)
    if program != "mmrepro" or tuple(given[: len(command)]) != command:
        raise UsageError(
            f"What is written in {folder} does not say how to go on with its "
            f"{campaign.kind.name}.",
            hint=f"mmrepro {' '.join(command)} --help",
        )

    # These take the folder with --resume; the others find their plan in --out.
    named = command[0] in ("replay", "repro", "fuzz")
    dropped = {"--out", "--resume"} if named else {"--out", *_IN_THE_PLAN}
    words = _without_options(given, dropped)
    more = ["--resume", str(folder)] if named else ["--out", str(folder)]
    if not named and command[0] != "ablate":
        more.append("--resume")
    # What follows "--" is the server's own command.
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *more, *words[at:]]


def _without_options(given: Sequence[str], dropped: set[str]) -> list[str]:
    """The words of a command without the options ``dropped``, their values, and
    ``--resume``."""
    words: list[str] = []
    is_value = False
    for word in given:
        if word.partition("=")[0] in dropped:
            is_value = "=" not in word
        elif is_value or word == "--resume":
            is_value = False
        elif word.startswith("~"):
            # Documents have ~ in place of the home folder.
            words.append(str(Path(word).expanduser()))
        else:
            words.append(word)
    return words
