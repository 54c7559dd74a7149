"""Cells whose verdict is known to be no news, for a reason, by somebody, until a day.

They still run and are still shown; only nobody is woken for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

from mmrepro.errors import UsageError
from mmrepro.incident.ledger import Cell
from mmrepro.machine.files import read_toml
from mmrepro.records import Record
from mmrepro.text.sanitize import one_line
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from pydantic import Field, StringConstraints, ValidationError, field_validator

Told = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_EXAMPLE = 'see docs/history.md; an entry begins with [[quarantine]] and scenario = "NAME"'


class Entry(Record):
    """What is quarantined, and all that has to be known about it."""

    scenario: Told
    variant: Annotated[str | None, Field(description="None: any")] = None
    engine: Annotated[str | None, Field(description="None: any")] = None
    releases: Annotated[str, Field(description="e.g. '>=0.14, <0.24'; empty: all")] = ""
    reason: Told
    issue: Annotated[Told, Field(description="where it is worked on")]
    owner: Told
    expires: Annotated[date, Field(description="the last day on which it counts")]

    @field_validator("releases")
    @classmethod
    def _specifier(cls, text: str) -> str:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise ValueError(f"{text!r} is no range of releases such as '>=0.14, <0.24'") from None
        return text

    def covers(self, cell: Cell) -> bool:
        """Whether it means this cell, on whatever day."""
        if cell.scenario != self.scenario or self.engine not in (None, cell.engine):
            return False
        if self.variant not in (None, cell.variant):
            return False
        try:
            return SpecifierSet(self.releases).contains(cell.release, prereleases=True)
        except InvalidVersion:
            return not self.releases

    def expired(self, when: date | datetime) -> bool:
        day = when.date() if isinstance(when, datetime) else when
        return day > self.expires

    @property
    def what(self) -> str:
        name = f"{self.scenario} ({self.variant})" if self.variant else self.scenario
        return " ".join(filter(None, [name, self.engine and f"on {self.engine}", self.releases]))

    @property
    def says(self) -> str:
        """One clause for a table."""
        return f"quarantined until {self.expires}: {self.reason} ({self.issue}, {self.owner})"


@dataclass(frozen=True)
class Quarantine:
    """The entries of one file, in its order."""

    entries: tuple[Entry, ...] = ()
    source: str = ""

    def entry_for(self, cell: Cell, when: date | datetime) -> Entry | None:
        """The first entry that covers ``cell`` and has not expired."""
        return next((e for e in self.entries if e.covers(cell) and not e.expired(when)), None)

    def warnings(self, cells: Iterable[Cell], when: date | datetime) -> list[str]:
        """A sentence for each entry that has expired, and for each that covers no cell."""
        known = list(cells)
        said = []
        for entry in self.entries:
            if entry.expired(when):
                said.append(
                    f"The quarantine of {entry.what} expired on {entry.expires} and counts no "
                    f"more: {entry.owner} is to look at {entry.issue}."
                )
            elif not any(entry.covers(cell) for cell in known):
                said.append(f"The quarantine of {entry.what} covers no cell of this plan.")
        return said


def load(path: Path) -> Quarantine:
    """Read a TOML file of ``[[quarantine]]`` tables.

    Raises:
        UsageError: it cannot be read, or an entry lacks something; all that is wrong is told.
    """
    data = read_toml(path, _EXAMPLE)
    tables = data.pop("quarantine", [])
    wrong = [f"{name!r} means nothing here" for name in data]
    if not isinstance(tables, list):
        wrong.append("'quarantine' is to be written as [[quarantine]]")
        tables = []
    entries = []
    for number, table in enumerate(tables, start=1):
        try:
            entries.append(Entry.model_validate(table))
        except ValidationError as error:
            wrong += [f"entry {number}{_named(table)}: {said}" for said in _said(error)]
    if wrong:
        raise UsageError(f"{path}: {'; '.join(wrong)}.", hint=_EXAMPLE)
    return Quarantine(tuple(entries), str(path))


def _named(table: object) -> str:
    name = table.get("scenario") if isinstance(table, dict) else None
    return f" ({one_line(name, 60)})" if isinstance(name, str) else ""


def _said(error: ValidationError) -> list[str]:
    said = []
    for one in error.errors(include_url=False):
        field = ".".join(str(part) for part in one["loc"])
        known = {
            "missing": f"'{field}' is missing",
            "string_too_short": f"'{field}' is empty",
            "extra_forbidden": f"'{field}' means nothing here",
            "value_error": one_line(one["msg"].removeprefix("Value error, "), 200),
        }
        said.append(known.get(one["type"], f"'{field}': {one_line(one['msg'], 200)}"))
    return said
