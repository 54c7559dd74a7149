"""Ledgers of shards of one night, and of several nights, made one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.base.errors import BadLedger, UnwritableOutput
from mmrepro.failure.documents import INCIDENT_FILE
from mmrepro.failure.documents.ledger import Attempt, Event, Night, NightState
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
class Merged:
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


def merge(folders: Sequence[Path], out: Path, *, incidents: bool = True) -> Merged:
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
    _refuse_contradictions(sources)  # before a folder is made for them
    merged = Merged()
    with Ledger(out) as ledger:
        _refuse_contradictions([(out, ledger.history), *sources])
        ids = [n.night.id for _, history in sources for n in history.nights]
        began = {
            name: min(
                h.night(name).night.created.wall for _, h in sources if h.find(name)
            )
            for name in ids
        }
        for name in sorted(began, key=lambda n: (began[n], n)):
            parts = [
                (f, runs) for f, h in sources if (runs := h.find(name)) is not None
            ]
            _one_night(ledger, name, parts, merged, incidents=incidents)
    return merged


def _one_night(
    ledger: Ledger,
    name: str,
    parts: Sequence[tuple[Path, NightRuns]],
    merged: Merged,
    *,
    incidents: bool,
) -> None:
    there = ledger.history.find(name)
    before = (merged.cells, merged.attempts, merged.events)
    night = whole([runs.night for _, runs in parts], there.night if there else None)
    plans = [runs.planned for _, runs in parts] + ([there.planned] if there else [])
    night = night.model_copy(update={"cells": len(set().union(*plans))})
    changed = there is None or there.night != night
    if changed:
        if there is not None and there.events:  # which are found anew
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
            if all(
                a.index != attempt.index for a in runs_there.attempts_of(attempt.cell)
            ):
                ledger.append(attempt if incidents else _unlinked(attempt))
                merged.attempts += 1
    sharded = any(runs.night.shard for _, runs in parts)
    found = [] if sharded else [e for _, runs in parts for e in runs.events]
    if sharded and not night.shard and night.state is not NightState.RUNNING:
        found = events(ledger.history, runs_there)
    merged.events += _add_events(ledger, runs_there, found)
    if changed or before != (merged.cells, merged.attempts, merged.events):
        merged.nights.append(name)


def whole(nights: Sequence[Night], there: Night | None = None) -> Night:
    """One record of a night whose shards these are.

    Args:
        there: what an earlier merge made; it counts only if it covers a shard that is
            not given, so that the same shards, gone on with since, are told as they are
            now.
    """
    covered = frozenset[str]().union(*(_shards(n) for n in nights))
    sharded = all(n.shard for n in nights)
    if (
        there is not None
        and sharded
        and (not there.shard or not _shards(there) <= covered)
    ):
        nights = [*nights, there]
    shards = frozenset[str]().union(*(_shards(n) for n in nights))
    counts = {int(s.partition("/")[2]) for s in shards}
    all_there = any(not n.shard for n in nights) or (
        len(counts) == 1 and len(shards) == next(iter(counts))
    )
    finished = [n.finished for n in nights if n.finished is not None]
    first = min(nights, key=lambda n: (n.created.wall, n.command, n.machine))
    return first.model_copy(
        update={
            "state": min((n.state for n in nights), key=_UNFINISHED.index),
            "finished": max(finished, key=lambda f: f.wall)
            if len(finished) == len(nights)
            else None,
            "shard": "" if all_there else ",".join(sorted(shards)),
        }
    )


def _shards(night: Night) -> frozenset[str]:
    return frozenset(re.findall(r"\d+/\d+", night.shard))


def _refuse_contradictions(sources: Sequence[tuple[Path, History]]) -> None:
    seen: dict[tuple[str, str, int], tuple[Path, Attempt]] = {}
    for folder, history in sources:
        for runs in history.nights:
            for attempt in runs.attempts:
                key = (attempt.night, attempt.cell, attempt.index)
                other, first = seen.setdefault(key, (folder, attempt))
                if _unlinked(first) != _unlinked(attempt):
                    raise BadLedger(
                        f"{other} and {folder} say different things of attempt "
                        f"{attempt.index} at {attempt.cell} in night {attempt.night}.",
                        hint="two campaigns have one name: keep them in two folders, "
                        "and name the next ones with --night",
                    )


def _unlinked(attempt: Attempt) -> Attempt:
    return attempt.model_copy(update={"incident": ""})


def _add_events(ledger: Ledger, runs: NightRuns, found: Sequence[Event]) -> int:
    known, added = {e.identity for e in runs.events}, 0
    for event in found:
        if event.identity not in known:
            ledger.append(event)
            known.add(event.identity)
            added += 1
    return added


def _copy(source: Path, out: Path, incident: str, merged: Merged) -> None:
    """One incident's folder, whole or not at all."""
    old, new = source / incident, out / incident
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
