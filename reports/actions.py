"""What to do about a diagnosed server: now, until the bug is fixed, and the fix.

Three lines, always in this order, made of what is known: nothing that was just done is
advised again, and every command is one to type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mmrepro.failure.documents import Diagnosis, Match, ServerState
from mmrepro.reports import blocks as b

NOW: Final = "NOW"
UNTIL_FIXED: Final = "UNTIL FIXED"
FIX: Final = "FIX"
_STUCK: Final = frozenset(
    {
        ServerState.NOT_RECEIVING,
        ServerState.FROZEN_PYTHON,
        ServerState.FROZEN_NATIVE,
        ServerState.FROZEN,
        ServerState.BLOCKED_ON_LOCK,
        ServerState.WORKER_STUCK,
        ServerState.RANK_DIVERGED,
        ServerState.RANK_LOST,
        ServerState.COLLECTIVE_WAITS,
        ServerState.KERNEL_STUCK,
        ServerState.TRANSFER_STUCK,
        ServerState.FRONT_FROZEN,
        ServerState.PART_DEAD,
    }
)
"""A server in such a state does not recover by itself."""
_NOW: Final = {
    ServerState.DEAD: "start the server again: it does not run",
    ServerState.STOPPED: "continue the stopped process: kill -CONT PID",
    ServerState.OVERLOADED: "do not restart: the engine works. Lower the load",
    ServerState.SLOW: "do not restart: the engine works, slowly",
    ServerState.STARVED: "end the client whose request never fits: the others wait for "
    "it",
    ServerState.NOT_READY: "wait: the server is still starting",
    ServerState.FAILING: "send no traffic here until requests succeed again",
    ServerState.BROKEN_OUTPUT: "send no traffic here: answers are wrong",
    ServerState.UNREACHABLE: "run mmrepro on the machine of the server",
    ServerState.NO_FAULT_SEEN: "send a test request: diagnose without --no-request",
    ServerState.UNKNOWN: "diagnose again with a longer --deadline",
}


def actions(diagnosis: Diagnosis) -> list[tuple[str, b.Inline]]:
    """The three lines; of a healthy server without a known failure none."""
    match = _match(diagnosis)
    if diagnosis.state is ServerState.HEALTHY and match is None:
        return []
    return [
        (NOW, _now(diagnosis)),
        (UNTIL_FIXED, _until_fixed(diagnosis, match)),
        (FIX, _fix(diagnosis, match)),
    ]


def _match(diagnosis: Diagnosis) -> Match | None:
    return diagnosis.found[0] if diagnosis.found else None


def _now(diagnosis: Diagnosis) -> b.Inline:
    state = diagnosis.state
    if state is ServerState.HEALTHY:
        return "do not restart: small requests work"
    if state not in _STUCK:
        text = _NOW[state].replace("PID", _pid(diagnosis))
        return f"{text}{_evidence(diagnosis)}."
    pid = _pid(diagnosis)
    what = f"restart the server (pid {pid})" if pid else "restart the server"
    return f"{what}: it will not recover{_evidence(diagnosis)}."


def _evidence(diagnosis: Diagnosis) -> str:
    """Whether the evidence is kept: a restart destroys what is not."""
    if diagnosis.incident_dir:
        return f"; evidence is saved in {diagnosis.incident_dir}"
    return ""


def _pid(diagnosis: Diagnosis) -> str:
    """The server's first process: ending it ends the others."""
    processes = diagnosis.target.processes
    return str(processes[0].pid) if processes else ""


def _until_fixed(diagnosis: Diagnosis, match: Match | None) -> b.Inline:
    if match is not None:
        if match.until_fixed:
            return b.prose(f"{match.until_fixed}.")
        return "no workaround is known."
    for text in _advice(diagnosis):
        return b.prose(f"{text.rstrip('.')}.")
    return "no known failure matches, so no workaround is known."


def _fix(diagnosis: Diagnosis, match: Match | None) -> b.Inline:
    if match is not None:
        return f"{match.fix}." if match.fix else "no release with a fix is known."
    if diagnosis.assessment.frames:
        return "unknown. Search the upstream issues for the innermost frames."
    return "unknown: no known failure matches."


def _advice(diagnosis: Diagnosis) -> Iterator[str]:
    """Advice of the log's cause, of the classes, and of the state."""
    if diagnosis.cause is not None:
        yield from diagnosis.cause.advice
    for known in diagnosis.classes:
        yield from known.advice
    yield from diagnosis.assessment.advice
