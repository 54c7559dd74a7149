"""Live or not, ready or not: a pure state machine over check results. No clock, no
I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mmrepro.failure.documents import Certainty, LiveClass, NamedClass

STATES = ("starting", "ready", "live", "not-live")


class CheckOutcome(StrEnum):
    """What one check says of the server; only FAILED, SILENT and ABSENT can end
    liveness."""

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
    UNKNOWN = "unknown"
    """The check itself is wrong for this server (401, 404): it says nothing about
    health."""


@dataclass(frozen=True)
class Check:
    """One check. ``at``: seconds on the monotonic clock when its result was there.

    ``classes``: of failure, that this check and those shortly before it show.
    ``ranks``: role of each rank, and what it is at (``in-collective``, ``stands``)
    while the server is silent; {}: it answers, or runs in one process."""

    verdict: CheckOutcome
    at: float
    seconds: float
    why: str = ""
    classes: tuple[NamedClass, ...] = ()
    ranks: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_hang(self) -> bool:
        """Whether it failed, and certainly since the engine's steps stopped."""
        if self.verdict is not CheckOutcome.FAILED:
            return False
        for known in self.classes:
            if known.name is LiveClass.STEPS_STOPPED:
                return known.certainty is Certainty.CERTAIN
        return False


@dataclass(kw_only=True)
class Health:
    """Hysteresis: ``failures`` failed checks in a row end liveness, ``successes`` bring
    it back.

    So do silent ones, once nothing has moved for ``stall_s`` seconds: a prompt may be
    so long that for a while no counter moves. A server that is busy, or answers with
    errors, is alive but not
    ready: restarting it would throw its work away. Until the first success it is
    starting: alive, not ready, for at most ``grace_s`` seconds from ``started``;
    failures count only after that. One that is absent after it was there is starting
    again.

    Raises:
        ValueError: a threshold below 1.
    """

    failures: int = 2
    successes: int = 2
    grace_s: float = 600.0
    stall_s: float = 60.0
    started: float = 0.0
    live: bool = field(default=True, init=False)
    starting: bool = field(default=True, init=False)
    failed_in_a_row: int = field(default=0, init=False)
    bad_in_a_row: int = field(default=0, init=False)
    ok_in_a_row: int = field(default=0, init=False)
    silent_since: float | None = field(default=None, init=False)
    last: Check | None = field(default=None, init=False)
    last_ok_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.failures < 1 or self.successes < 1:
            raise ValueError("thresholds are at least 1")

    @property
    def ready(self) -> bool:
        """Live, past its start, not observed to stand still since the last answer, and
        not ``failures`` times in a row without one."""
        observed = self.failed_in_a_row > 0
        return (
            self.live
            and not self.starting
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
        if check.verdict is CheckOutcome.OK:
            self.ok_in_a_row += 1
            self.bad_in_a_row = 0
            self._forget_failures()
            self.starting, self.last_ok_at = False, check.at
            self.live = self.live or self.ok_in_a_row >= self.successes
        elif check.verdict is not CheckOutcome.UNKNOWN:
            self.ok_in_a_row = 0
            self.bad_in_a_row += 1
            if check.verdict is CheckOutcome.ABSENT and not self.starting:
                self._forget_failures()
                self.starting, self.started, self.live = True, check.at, True
            elif check.verdict in (CheckOutcome.BUSY, CheckOutcome.ERROR):
                self._forget_failures()
            elif check.is_hang:
                # It has served before: a sidecar that starts beside a hung server
                # would otherwise call it starting until the grace is over.
                self.starting = False
                self._fail(check)
            elif not self.starting or check.at - self.started >= self.grace_s:
                self._fail(check)
        return self.live is not before

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
