"""Live or not, ready or not: a pure state machine over check results. No clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckOutcome(StrEnum):
    """What one check says of the server."""

    OK = "ok"
    BUSY = "busy"
    """No answer in time, but its own counters moved (or it said 429): overloaded, not frozen."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The check itself is wrong for this server (401, 404): it says nothing about health."""


@dataclass(frozen=True)
class Check:
    """One check. ``at``: seconds on the monotonic clock when its result was there."""

    verdict: CheckOutcome
    at: float
    seconds: float
    why: str = ""


class Health:
    """Hysteresis: ``failures`` failed checks in a row end liveness, ``successes`` bring it back.

    A server that is busy is alive but not ready: restarting it would throw its work away. Until
    the first success it is starting: alive, not ready, for at most ``grace_s`` seconds from
    ``started``; failures count only after that.

    Raises:
        ValueError: a threshold below 1.
    """

    def __init__(
        self, *, failures: int = 2, successes: int = 2, grace_s: float = 600.0, started: float = 0.0
    ) -> None:
        if failures < 1 or successes < 1:
            raise ValueError("thresholds are at least 1")
        self.failures = failures
        self.successes = successes
        self.grace_s = grace_s
        self.started = started
        self.live = True
        self.starting = True
        self.failed_in_a_row = 0
        self.bad_in_a_row = 0
        self.ok_in_a_row = 0
        self.last: Check | None = None
        self.last_ok_at: float | None = None

    @property
    def ready(self) -> bool:
        """Live, past its start, and neither failing nor busy ``failures`` times in a row."""
        return self.live and not self.starting and self.bad_in_a_row < self.failures

    @property
    def undecided(self) -> bool:
        """A failure that is not yet a verdict: the next check should not wait."""
        return self.live and 0 < self.failed_in_a_row < self.failures

    def observe(self, check: Check) -> bool:
        """Take one result; returns whether liveness changed."""
        before = self.live
        self.last = check
        if check.verdict is CheckOutcome.OK:
            self._succeed(check)
        elif check.verdict is CheckOutcome.BUSY:
            self.bad_in_a_row += 1
            self.failed_in_a_row = 0
            self.ok_in_a_row = 0
        elif check.verdict is CheckOutcome.FAILED:
            self._fail(check)
        return self.live is not before

    def _succeed(self, check: Check) -> None:
        self.ok_in_a_row += 1
        self.failed_in_a_row = self.bad_in_a_row = 0
        self.starting = False
        self.last_ok_at = check.at
        if not self.live and self.ok_in_a_row >= self.successes:
            self.live = True

    def _fail(self, check: Check) -> None:
        self.ok_in_a_row = 0
        self.bad_in_a_row += 1
        if self.starting and check.at - self.started < self.grace_s:
            return
        self.failed_in_a_row += 1
        if self.live and self.failed_in_a_row >= self.failures:
            self.live = False
