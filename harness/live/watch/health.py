"""Live or not, ready or not: a pure state machine over check results. No clock, no
I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mmrepro.failure.documents import NamedClass

STATES = ("starting", "ready", "live", "not-live")


class CheckOutcome(StrEnum):
    """What one check says of the server; only FAILED, SILENT and ABSENT can end
    liveness, and PREPARING that does not end."""

    OK = "ok"
    BUSY = "busy"
    """No answer in time, but its own counters or its stacks moved (or it said 429):
    overloaded."""
    FAILED = "failed"
    """Its process was seen to have ended, or to stand still while the check waited."""
    SILENT = "silent"
    """No answer and no counter moved; whether its processes stand still could not be
    seen."""
    ABSENT = "absent"
    """Nothing listens, and it starts, or what became of it cannot be seen."""
    ERROR = "error"
    """No answer, or an error: clients get no better one, but a restart may heal
    nothing."""
    HELD = "held"
    """Its operator holds it back, by its own metrics or endpoints: asleep, paused."""
    PREPARING = "preparing"
    """It computes, compiles or takes weights, by its stacks: that may take minutes, and
    ends. A long prompt counts no token until its end."""
    UNKNOWN = "unknown"
    """The check itself is wrong for this server (401, 404): it says nothing about
    health."""


@dataclass(frozen=True)
class Check:
    """One check. ``at``: seconds on the monotonic clock when its result was there.

    ``begun``: whether it is past its start, whoever it answered: its counters have
    finished requests, or its engine was seen in its serving loop.
    ``classes``: of failure, that this check and those shortly before it show.
    ``ranks``: role of each rank, and what it is at (``in-collective``, ``stands``)
    while the server is silent; {}: it answers, or runs in one process."""

    verdict: CheckOutcome
    at: float
    seconds: float
    why: str = ""
    begun: bool = False
    classes: tuple[NamedClass, ...] = ()
    ranks: Mapping[str, str] = field(default_factory=dict)


_ALIVE = (CheckOutcome.BUSY, CheckOutcome.ERROR, CheckOutcome.HELD)


@dataclass(kw_only=True)
class Health:
    """Hysteresis: ``failures`` failed checks in a row end liveness, ``successes`` bring
    it back.

    So do silent ones, once nothing has moved for ``stall_s`` seconds: a prompt may be
    so long that for a while no counter moves. A server that is busy, answers with
    errors, or is held back by its operator is alive but not ready: restarting it would
    throw its work away. So is one that computes, compiles or takes weights, for at most
    ``prepare_s`` seconds. Until the first success it is starting: alive, not ready, for
    at most ``grace_s`` seconds from ``started``; failures count only after that. One
    that is seen to have begun is not starting: a watch may start beside a server that
    is hung already. One that is absent after it was there is starting again.

    Raises:
        ValueError: a threshold below 1.
    """

    failures: int = 2
    successes: int = 2
    grace_s: float = 600.0
    prepare_s: float = 600.0
    stall_s: float = 60.0
    started: float = 0.0
    live: bool = field(default=True, init=False)
    starting: bool = field(default=True, init=False)
    answered: bool = field(default=False, init=False)
    """Whether it has answered a check since it started."""
    failed_in_a_row: int = field(default=0, init=False)
    bad_in_a_row: int = field(default=0, init=False)
    ok_in_a_row: int = field(default=0, init=False)
    silent_since: float | None = field(default=None, init=False)
    preparing_since: float | None = field(default=None, init=False)
    last: Check | None = field(default=None, init=False)
    last_ok_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.failures < 1 or self.successes < 1:
            raise ValueError("thresholds are at least 1")

    @property
    def ready(self) -> bool:
        """Live, past its start, not observed to stand still since the last answer, and
        not ``failures`` times in a row without one; it has answered at least once."""
        observed = self.failed_in_a_row > 0
        return (
            self.live
            and not self.starting
            and self.answered
            and not observed
            and self.bad_in_a_row < self.failures
        )

    @property
    def state(self) -> str:
        """``starting``, ``ready``, ``live`` (but not ready) or ``not-live``: see
        :data:`STATES`."""
        if not self.live:
            return "not-live"
        return "starting" if self.starting else "ready" if self.ready else "live"

    @property
    def confirming(self) -> bool:
        """A failure that is not yet a verdict: the next check should not wait."""
        return self.live and 0 < self.failed_in_a_row < self.failures

    @property
    def undecided(self) -> bool:
        """Neither an answer nor long enough a silence."""
        return self.confirming or (self.live and self.silent_since is not None)

    def observe(self, check: Check) -> bool:
        """Take one result; returns whether liveness changed."""
        before = self.live
        self.last = check
        if check.begun:
            self.starting = False
        if check.verdict is not CheckOutcome.PREPARING:
            self.preparing_since = None
        if check.verdict is CheckOutcome.OK:
            self._succeed(check)
        elif check.verdict is not CheckOutcome.UNKNOWN:
            self.ok_in_a_row = 0
            self.bad_in_a_row += 1
            self._observe_bad(check)
        return self.live is not before

    def _succeed(self, check: Check) -> None:
        self.ok_in_a_row += 1
        self.bad_in_a_row = 0
        self._forget_failures()
        self.starting, self.answered, self.last_ok_at = False, True, check.at
        self.live = self.live or self.ok_in_a_row >= self.successes

    def _observe_bad(self, check: Check) -> None:
        """Take a check without an answer."""
        if check.verdict is CheckOutcome.ABSENT and not self.starting:
            self._forget_failures()
            self.starting, self.started, self.live = True, check.at, True
            self.answered = False
            return
        if check.verdict in _ALIVE or self._prepares(check):
            self._forget_failures()
            return
        if not self.starting or check.at - self.started >= self.grace_s:
            self._fail(check)

    def _prepares(self, check: Check) -> bool:
        """Whether it is at something that ends, and has the time for it."""
        if check.verdict is not CheckOutcome.PREPARING:
            return False
        if self.preparing_since is None:
            self.preparing_since = check.at - check.seconds
        return check.at - self.preparing_since < self.prepare_s

    def _forget_failures(self) -> None:
        self.failed_in_a_row = 0
        self.silent_since = None

    def _fail(self, check: Check) -> None:
        if self.silent_since is None:
            self.silent_since = check.at - check.seconds
        self.failed_in_a_row += check.verdict is not CheckOutcome.SILENT
        stalled = check.at - self.silent_since >= self.stall_s
        if (self.bad_in_a_row if stalled else self.failed_in_a_row) >= self.failures:
            self.live = False
