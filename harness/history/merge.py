"""Ledgers of shards of one night, and of several nights, made one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from mmrepro.base.errors import BadLedger, UnwritableOutput
from mmrepro.base.records import Moment
from mmrepro.failure.documents import INCIDENT_FILE, Attempt, Event, Night, NightState
from mmrepro.history.events import events
from mmrepro.history.ledger import History, Ledger, NightRuns, read

_UNFINISHED = [
    NightState.RUNNING,
    NightState.INTERRUPTED,
    NightState.OUT_OF_TIME,
    NightState.COMPLETE,
]
"""The least finished first: it is the merged night's."""


@dataclass
class MergedLedger:
    """What a merge added to the ledger that it writes."""

    nights: list[str] = field(default_factory=list)
    """Of which something was added."""
    cells: int = 0
    attempts: int = 0
    events: int = 0
    incidents: int = 0
    missing: list[str] = field(default_factory=list)
    """Incidents that an attempt names and its folder lacks."""

    @property
    def nothing(self) -> bool:
        return not (self.nights or self.incidents)

    @property
    def lines(self) -> int:
        """How many cells, attempts and events were added."""
        return self.cells + self.attempts + self.events


def merge(
    folders: Sequence[Path], out: Path, *, incidents: bool = True
) -> MergedLedger:
    """Add all that the ledgers in ``folders`` hold to the one in ``out``, with its
    incidents.

    Shards of a night become one night; its events are found anew once all shards are
    there. A second merge of the same adds nothing. Without ``incidents`` no attempt
    names one.

    Raises:
        BadLedger: one cannot be read, or two say different things of one attempt;
            nothing was written then.
        LedgerBusy: ``out`` is being written.
    """
    sources = [(folder, read(folder)) for folder in folders]
    # Before a folder is made for them.
    _refuse_contradictions(sources)
    merged = MergedLedger()
    with Ledger(out) as ledger:
        _refuse_contradictions([(out, ledger.history), *sources])
        nights: dict[str, list[tuple[Path, NightRuns]]] = {}
        for folder, history in sources:
            for runs in history.nights:
                nights.setdefault(runs.night.id, []).append((folder, runs))

        for name in sorted(nights, key=lambda name: (_began(nights[name]), name)):
            _one_night(ledger, name, nights[name], merged, incidents=incidents)

    return merged


def _began(parts: Sequence[tuple[Path, NightRuns]]) -> datetime:
    return min(runs.night.created.wall for _, runs in parts)


def _one_night(
    ledger: Ledger,
    name: str,
    parts: Sequence[tuple[Path, NightRuns]],
    merged: MergedLedger,
    *,
    incidents: bool,
) -> None:
    there = ledger.history.find(name)
    lines_before = merged.lines
    night = _with_cells([runs for _, runs in parts], there)
    changed = there is None or there.night != night
    if changed:
        # Its events are found anew: a night that runs has none.
        if there is not None and there.events:
            ledger.append(night.model_copy(update={"state": NightState.RUNNING}))
        ledger.append(night)

    runs_there = ledger.history.night(name)
    for folder, runs in parts:
        for cell, planned in runs.planned.items():
            if cell not in runs_there.planned:
                ledger.append(planned)
                merged.cells += 1

        for attempt in runs.attempts:
            if incidents and attempt.incident:
                _copy(folder, ledger.folder, attempt.incident, merged)
            known = {other.index for other in runs_there.attempts_of(attempt.cell)}
            if attempt.index not in known:
                ledger.append(attempt if incidents else _unlinked(attempt))
                merged.attempts += 1

    new = _events(ledger, night, runs_there, parts)
    merged.events += _add_events(ledger, runs_there, new)
    if changed or merged.lines != lines_before:
        merged.nights.append(name)


def _with_cells(parts: Sequence[NightRuns], there: NightRuns | None) -> Night:
    """The record of the merged night, with the number of its cells."""
    night = whole([runs.night for runs in parts], there.night if there else None)
    cells: set[str] = set()
    for runs in parts:
        cells.update(runs.planned)

    if there is not None:
        cells.update(there.planned)
    return night.model_copy(update={"cells": len(cells)})


def _events(
    ledger: Ledger,
    night: Night,
    runs_there: NightRuns,
    parts: Sequence[tuple[Path, NightRuns]],
) -> list[Event]:
    """The events of the merged night. A shard knows too little to have found any: they
    are found anew once all shards are there."""
    if not any(runs.night.shard for _, runs in parts):
        known: list[Event] = []
        for _, runs in parts:
            known += runs.events

        return known

    if night.shard or night.state is NightState.RUNNING:
        return []
    return events(ledger.history, runs_there)


def whole(nights: Sequence[Night], there: Night | None = None) -> Night:
    """One record of a night whose shards these are.

    Args:
        there: what an earlier merge made; it counts only if it covers a shard that is
            not given, so that the same shards, gone on with since, are told as they are
            now.
    """
    if there is not None and _covers_more(there, nights):
        nights = [*nights, there]
    states = [night.state for night in nights]
    first = min(nights, key=lambda n: (n.created.wall, n.command, n.machine))
    shards = "" if _all_there(nights) else ",".join(sorted(_all_shards(nights)))
    return first.model_copy(
        update={
            "state": min(states, key=_UNFINISHED.index),
            "finished": _last_end(nights),
            "shard": shards,
        }
    )


def _last_end(nights: Sequence[Night]) -> Moment | None:
    """When the last of them ended; None: one has not."""
    ends = []
    for night in nights:
        if night.finished is None:
            return None
        ends.append(night.finished)

    return max(ends, key=lambda moment: moment.wall)


def _covers_more(there: Night, nights: Sequence[Night]) -> bool:
    """Whether it has a shard that is none of these; a night that is whole has all."""
    if not all(night.shard for night in nights):
        return False
    return not there.shard or not _shards(there) <= _all_shards(nights)


def _all_there(nights: Sequence[Night]) -> bool:
    """Whether one is whole, or they are all ``n`` shards of ``n``."""
    if not all(night.shard for night in nights):
        return True
    shards = _all_shards(nights)
    counts = {int(shard.partition("/")[2]) for shard in shards}
    return counts == {len(shards)}


def _all_shards(nights: Sequence[Night]) -> frozenset[str]:
    return frozenset[str]().union(*map(_shards, nights))


def _shards(night: Night) -> frozenset[str]:
    return frozenset(re.findall(r"\d+/\d+", night.shard))


def _refuse_contradictions(sources: Sequence[tuple[Path, History]]) -> None:
    seen: dict[tuple[str, str, int], tuple[Path, Attempt]] = {}
    for folder, history in sources:
        for attempt in _attempts(history):
            key = (attempt.night, attempt.cell, attempt.index)
            other, first = seen.setdefault(key, (folder, attempt))
            # Where its incident lies is no contradiction: folders differ in that.
            if _unlinked(first) == _unlinked(attempt):
                continue
            raise BadLedger(
                f"{other} and {folder} say different things of attempt "
                f"{attempt.index} at {attempt.cell} in night {attempt.night}.",
                hint="two campaigns have one name: keep them in two folders, "
                "and name the next ones with --night",
            )


def _attempts(history: History) -> Iterator[Attempt]:
    for runs in history.nights:
        yield from runs.attempts


def _unlinked(attempt: Attempt) -> Attempt:
    return attempt.model_copy(update={"incident": ""})


def _add_events(ledger: Ledger, runs: NightRuns, events: Sequence[Event]) -> int:
    """Append the events that are not there yet. Returns how many these are."""
    known = {event.identity for event in runs.events}
    added = 0
    for event in events:
        if event.identity not in known:
            ledger.append(event)
            known.add(event.identity)
            added += 1

    return added


def _copy(source: Path, out: Path, incident: str, merged: MergedLedger) -> None:
    """One incident's folder, whole or not at all."""
    old = source / incident
    new = out / incident
    if new.is_dir() or old.resolve() == new.resolve():
        return
    if not (old / INCIDENT_FILE).is_file():
        merged.missing.append(incident)
        return

    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=new.parent) as temporary:
            made = Path(temporary) / "incident"
            # A link is copied as one: what it leads to is no part of the incident.
            shutil.copytree(old, made, symlinks=True)
            made.replace(new)
    except (OSError, shutil.Error) as error:
        raise UnwritableOutput(
            f"The incident {incident} could not be copied to {out}: {error}.",
            hint="free some space, then merge again: what is there is kept",
        ) from error

    merged.incidents += 1
