"""The plan of a night in the ledger: where it begins, and where it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from mmrepro.campaign.trial import TIMEOUT_S, TrialOptions
from mmrepro.errors import UsageError
from mmrepro.history.ledger import Ledger, NightRuns
from mmrepro.incident.ledger import Night, NightState, Planned
from mmrepro.matrix.file import Settings
from mmrepro.run.options import StartMode


def begin(ledger: Ledger, night: Night, cells: Sequence[Planned]) -> NightRuns:
    """Write down that ``night`` runs these cells, or goes on with them.

    The cells of a night that is there already stay in it. Nothing is written if nothing is new.
    """
    runs = ledger.history.find(night.id)
    new = [p for p in cells if runs is None or p.cell.id not in runs.planned]
    if runs is None or new or _asked(runs.night) != _asked(night):
        total = len(new) + (len(runs.planned) if runs else 0)
        created = runs.night.created if runs else night.created
        ledger.append(night.model_copy(update={"created": created, "cells": total}))
        for planned in new:
            ledger.append(planned)
    return ledger.history.night(night.id)


def _asked(night: Night) -> tuple[int, int]:
    return night.repeat, night.confirm


def unfinished(ledger: Ledger) -> NightRuns | None:
    """The newest night that was not run to its end; None: there is none.

    Raises:
        UsageError: it was killed before its plan was written down.
    """
    for runs in reversed(ledger.history.nights):
        if runs.night.state is NightState.COMPLETE:
            continue
        if runs.night.cells is not None and len(runs.planned) < runs.night.cells:
            raise UsageError(
                f"Night {runs.night.id} ended before its plan was written down.",
                hint=f"run it again: {runs.night.command}",
            )
        return runs
    return None


def night_options(settings: Settings, machine: str) -> TrialOptions:
    """Those of a night. Its start mode is always the same, however many runs an environment has:
    the mode is a part of the key."""
    mode = settings.start_mode or StartMode.AUTO
    return TrialOptions(
        timeout_s=settings.timeout or TIMEOUT_S,
        start_mode=StartMode.WARM if mode is StartMode.AUTO else mode,
        machine=machine,
    )
