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
from mmrepro.base.machine.files import is_folder
from mmrepro.base.records import Document
from mmrepro.failure.documents.head import (
    CampaignHead,
    FoundIncident,
    Head,
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
class Wanted:
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

    def incident(self, head: Head) -> bool:
        return (
            fnmatchcase(head.scenario.name, self.scenario or "*")
            and self.engine in ("", head.engine.name)
            and self.has(head.engine.release)
            and (not self.outcome or head.outcome in self.outcome)
            and head.created.wall.timestamp() >= self.begin
        )

    def campaign(self, head: CampaignHead | None) -> bool:
        """By what only an incident has, none is asked for; one that cannot be read
        always is."""
        if head is None:
            return True
        if self.engine or self.release or self.outcome:
            return False
        named = fnmatchcase(getattr(head.scenario, "name", ""), self.scenario or "*")
        return named and head.created.wall.timestamp() >= self.begin


def _releases(text: str) -> Callable[[str], bool]:
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
            return False

    return contains


def _time(text: str) -> datetime:
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


def _incident_facts(one: Here, head: Head) -> dict[str, Any]:
    return {
        "number": one.number,
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
        "folder": str(one.folder),
    }


def campaign_facts(one: Here, listed: ListedCampaign) -> dict[str, Any]:
    head = listed.head
    left = head is not None and unfinished(listed)
    return {
        "number": one.number,
        "kind": one.kind,
        "folder": str(one.folder),
        "state": head.state if head else "unreadable",
        "created": head.created.wall.isoformat() if head else "",
        "what": head.what if head else "",
        "why": listed.why or (head.failure if head else ""),
        "command": head.command if head else "",
        "resume": f"mmrepro resume {shlex.quote(str(one.folder))}" if left else "",
    }


@dataclass(frozen=True)
class Listing:
    """``broken``: incidents that cannot be read."""

    incidents: list[tuple[Here, Head]]
    campaigns: list[tuple[Here, ListedCampaign]]
    broken: list[FoundIncident]

    def document(self, limit: int) -> IncidentsDocument:
        return IncidentsDocument(
            found=len(self.incidents),
            incidents=[_incident_facts(*one) for one in self.incidents[:limit]],
            campaigns=[campaign_facts(*one) for one in self.campaigns[:limit]],
            unreadable=[
                {"folder": str(one.folder), "why": one.why} for one in self.broken
            ],
        )


def find(roots: Sequence[Path], wanted: Wanted) -> Listing:
    """What is wanted of what lies below ``roots``. Raises as ``here`` and
    :class:`Wanted`."""
    rows, broken = here(roots)
    listing = Listing([], [], broken)
    for one in rows:
        if isinstance(one.of, ListedCampaign):
            if wanted.campaign(one.of.head):
                listing.campaigns.append((one, one.of))
        elif one.of.head is not None and wanted.incident(one.of.head):
            listing.incidents.append((one, one.of.head))
    return listing


# -------------------------------------------------------------------------- to continue

_IN_THE_PLAN: Final = ("--scenario", "--night", "--shard")
"""Options of a nightly run whose outcome is written down; no other kind has them."""


def _left(folder: Path) -> tuple[ListedCampaign, CampaignHead]:
    """The newest campaign there that has something left. Raises UsageError: there is
    none."""
    if not is_folder(folder):
        raise UsageError(f"There is no folder {folder}.", hint=LISTS)
    found = list(campaigns_in(folder, {path.name for path in folder.iterdir()}))
    for one in found:
        if one.head is not None and unfinished(one):
            return one, one.head
    if not found:
        raise UsageError(f"{folder} holds no campaign to go on with.", hint=LISTS)
    if found[0].head is None:
        raise UsageError(
            f"The {found[0].kind.name} in {folder} cannot be read: {found[0].why}."
        )
    nightly = found[0].kind.words[0] == "matrix"
    report = "matrix report" if nightly else "report"
    raise UsageError(
        f"The {found[0].kind.name} in {folder} is complete: nothing is left to run.",
        hint=f"mmrepro {report} {shlex.quote(str(folder))}",
    )


def resume_words(folder: Path) -> list[str]:
    """The words that continue the newest campaign in ``folder``, wherever that lies
    now.

    Raises:
        UsageError: none there has something left, or what is written down is no command
            of one.
    """
    one, head = _left(folder)
    try:
        program, *given = shlex.split(head.resume or head.command)
    except ValueError:
        program, given = "", []
    kind = one.kind.words
    if one.kind.also and given[:1] == [one.kind.also]:
        kind = (one.kind.also,)
    if program != "mmrepro" or tuple(given[: len(kind)]) != kind:
        raise UsageError(
            (
                f"What is written in {folder} does not say how to go on with its "
                f"{one.kind.name}."
            ),
            hint=f"mmrepro {' '.join(kind)} --help",
        )
    named = kind[0] in ("replay", "repro", "fuzz")
    with_value = {"--out", *(["--resume"] if named else _IN_THE_PLAN)}
    words, value = [], False
    for word in given:
        if word.partition("=")[0] in with_value:
            value = "=" not in word
        elif value or word == "--resume":
            value = False
        else:
            # Documents have ~ in place of the home folder.
            words.append(str(Path(word).expanduser()) if word.startswith("~") else word)
    at = words.index("--") if "--" in words else len(words)
    more = ["--resume", str(folder)] if named else ["--out", str(folder)]
    if not named and kind[0] != "ablate":
        more.append("--resume")
    return [*words[:at], *more, *words[at:]]
