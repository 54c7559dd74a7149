"""The dead man's switch: what counts as a night that is missing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from made_nights import BEGAN, cell, night
from mmrepro.history.ledger import History
from mmrepro.history.overdue import watch
from mmrepro.incident.ledger import NightState

ONE = {cell(): "r"}


@pytest.mark.parametrize(
    ("hours", "state", "says"),
    [
        (1, NightState.COMPLETE, ""),
        (36, NightState.COMPLETE, ""),
        (37, NightState.COMPLETE, "37 h after n1 began no other night had, and one is due every"),
        (24, NightState.RUNNING, ""),
        (25, NightState.RUNNING, "n1 began 25 h ago and has not ended; one is due every 24 h."),
        (25, NightState.INTERRUPTED, ""),
        (25, NightState.OUT_OF_TIME, ""),
        (-0.9, NightState.COMPLETE, ""),
        (-1.1, NightState.COMPLETE, "n1 began at 2026-11-01 03:00 UTC, which is still to come"),
    ],
)
def test_when_a_night_is_overdue(hours: float, state: NightState, says: str) -> None:
    seen = watch(History([night(1, ONE, hours=0, state=state)]), BEGAN + timedelta(hours=hours))
    assert (seen.event is not None) == bool(says)
    if seen.event is not None:
        assert seen.event.text.startswith(says)
        assert seen.event.identity == "night-missing:n1"
    assert seen.due == BEGAN + timedelta(hours=24)
    assert seen.late_from == BEGAN + timedelta(hours=36)


def test_a_night_without_a_run_is_no_sign_of_life() -> None:
    empty = night(2, {cell(): ""}, hours=30)
    seen = watch(History([night(1, ONE, hours=0), empty]), BEGAN + timedelta(hours=37))
    assert seen.event is not None
    assert seen.event.night == "n1"
    only = watch(History([empty]), BEGAN + timedelta(hours=31))
    assert only.event is not None
    assert only.event.identity == "night-missing:"


def test_an_empty_ledger_is_overdue() -> None:
    seen = watch(History(), BEGAN, 24)
    assert seen.event is not None
    assert (seen.event.identity, seen.due) == ("night-missing:", None)


def test_how_often_may_be_said_from_outside() -> None:
    silent = History([night(1, ONE, hours=0, every_h=None)])
    later = BEGAN + timedelta(hours=900)
    assert watch(silent, later).event is None
    assert watch(silent, later).due is None
    assert watch(silent, later, 24).event is not None
    weekly = History([night(1, ONE, hours=0)])
    assert watch(weekly, BEGAN + timedelta(hours=40), 168).event is None


def test_a_night_that_nobody_delivered_is_missing_at_once() -> None:
    history = History([night(1, ONE, hours=0)])
    soon = BEGAN + timedelta(hours=25)
    assert watch(history, soon).event is None
    missing = watch(history, soon, absent=True).event
    assert missing is not None
    assert missing.identity == "night-missing:n1"  # as the switch has it, once it is late
