"""How a failure stands: what a user sees of it, how bad that is, what its project says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mmrepro.incident import Reference


class FailureClass(StrEnum):
    """What a user of the server sees; :data:`SEES` says it in a sentence."""

    SILENT_HANG = "silent-hang"
    ENGINE_DEATH = "engine-death"
    REQUESTS_FAIL = "requests-fail"
    WRONG_ANSWERS = "wrong-answers"
    WORK_SURVIVES_CLIENT = "work-survives-client"
    MEMORY_GROWS = "memory-grows"
    NEVER_FITS = "never-fits"
    METRICS_LIE = "metrics-lie"
    START_FAILURE = "start-failure"

    @property
    def words(self) -> str:
        return self.value.replace("-", " ")


SEES: Final = {
    FailureClass.SILENT_HANG: "no answer and no error, with health checks green",
    FailureClass.ENGINE_DEATH: "one request ends the engine, or its loop behind a living front",
    FailureClass.REQUESTS_FAIL: "the server lives on, and valid requests end with an error",
    FailureClass.WRONG_ANSWERS: "200, and not the answer to what was asked",
    FailureClass.WORK_SURVIVES_CLIENT: "the client has gone, and what it asked for goes on",
    FailureClass.MEMORY_GROWS: "what the server holds grows with every request",
    FailureClass.NEVER_FITS: "a request that can never be served is taken, or refused in words "
    "that do not say so",
    FailureClass.METRICS_LIE: "what the server tells of itself is wrong",
    FailureClass.START_FAILURE: "the server does not start",
}


class Severity(StrEnum):
    """Whom one such request harms, the worst first; :data:`HARMS` says it in a sentence."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HARMS: Final = {
    Severity.CRITICAL: "all users until somebody starts the server again; or one is silently "
    "answered wrongly",
    Severity.HIGH: "other requests than the one that did it, or some kinds of requests for good",
    Severity.MEDIUM: "the request that did it, alone",
    Severity.LOW: "nobody's answer",
}


class UpstreamState(StrEnum):
    """What the project's tracker says."""

    OPEN = "open"
    """Reported, and nothing that closes it was merged."""
    FIXED = "fixed"
    CLOSED = "closed"
    """Closed without a fix: stale, or not to be changed."""
    DOCUMENTED = "documented"
    """Known and meant to be so."""
    NOT_REPORTED = "not-reported"
    """Looked for, and not found."""
    PLANTED = "planted"
    """A fault of minivllm, which is there to have it."""
    NOT_LOOKED_UP = "not-looked-up"

    @property
    def words(self) -> str:
        return self.value.replace("-", " ")


@dataclass(frozen=True)
class Upstream:
    """What the project says of a failure, as it was looked up; never what a run here showed.

    Attributes:
        source: where it says so.
        looked_up: the day, as 2026-11-24.
        release: the first one with the fix, as far as it is known.
        note: what else there is to say, a few words.
    """

    state: UpstreamState
    source: Reference | None = None
    looked_up: str = ""
    release: str = ""
    note: str = ""

    @property
    def words(self) -> str:
        """Without the source: ``fixed in 0.24.0``."""
        told = f"{self.state.words} in {self.release}" if self.release else self.state.words
        return f"{told} ({self.note})" if self.note else told


NOT_LOOKED_UP = Upstream(UpstreamState.NOT_LOOKED_UP)
