"""Everything that mmrepro raises on purpose.

* MmreproError
  x UsageError             (exit 2: the command or a file it names is wrong)
    - UnknownScenario
    - UnknownRelease
    - BrokenScenario
    - UntrustedFile
    - UnwritableOutput
    - BadIncident
      + ChangedIncident
    - BadLedger
    - LedgerBusy
  x InfrastructureError    (exit 4: nothing was learnt about the engine)
    - EnvironmentBuildError
    - UnloadableWheel
    - EngineStartError
    - NoSpace
    - GpuUnavailable
    - SupervisorError
      + ForkServerDied
    - PlaceLost
    - NoPlaceLeft
  x RunTimeout             (exit 3: the run did not end in time: inconclusive)
  x NoPair                 (exit 3: the search ended without a pair: inconclusive)

Each carries one plain sentence and, where there is one, the next command to type.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

RUN_MODULES = (
    "PIL",
    "greenlet",
    "jinja2",
    "jsonschema",
    "numpy",
    "pathspec",
    "referencing",
    "tokenizers",
    "uv",
    "yaml",
)
"""What the extra ``run`` of pyproject.toml installs."""


class ExitCode(IntEnum):
    """What ``mmrepro`` exits with."""

    AS_EXPECTED = 0
    NOT_AS_EXPECTED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INFRASTRUCTURE = 4
    INTERRUPTED = 130
    READER_GONE = (
        141  # of stdout or stderr; what a shell says of a program that SIGPIPE ended
    )


class MmreproError(Exception):
    """Base of the tree. ``hint``: the next step; ``detail``: what lies behind it (log
    lines)."""

    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(
        self, message: str, *, hint: str = "", detail: list[str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail or []


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that names what is close to ``word``, to follow another; "":
    nothing is."""
    from difflib import get_close_matches

    close = get_close_matches(word, [*known], 1)
    return f" Did you mean {close[0]}?" if close else ""


class UsageError(MmreproError):
    exit_code = ExitCode.USAGE


class UnknownScenario(UsageError):
    """No scenario of that name is known."""


class UnknownRelease(UsageError):
    """The package index does not serve that release of the engine."""


class BrokenScenario(UsageError):
    """A scenario file that cannot be loaded, or whose definition contradicts itself."""


class UntrustedFile(UsageError):
    """Python that would have to be run to be read, and that nobody has said to
    trust."""


class UnwritableOutput(UsageError):
    """The output folder cannot be created or written."""


class BadIncident(UsageError):
    """A folder that holds no readable incident."""


class ChangedIncident(BadIncident):
    """An incident that differs from the record of its hashes."""


class BadLedger(UsageError):
    """A ledger that cannot be read, or a record that it cannot take."""


class LedgerBusy(UsageError):
    """Another process writes that ledger: there is one writer."""


class InfrastructureError(MmreproError):
    exit_code = ExitCode.INFRASTRUCTURE


class EnvironmentBuildError(InfrastructureError):
    """uv could not build the engine's environment."""


class UnfitPython(EnvironmentBuildError):
    """It is not to be had, or a requirement has no wheel for it and cannot be built
    here."""


class UnloadableWheel(InfrastructureError):
    """The wheel's compiled code wants something that this host lacks (a newer
    libstdc++, say)."""


class EngineStartError(InfrastructureError):
    """The engine never came up.

    ``usage``: it said that its command line is wrong. ``ended_with``: its exit code;
    None: it did not end, and was late. ``race``: why the same start is worth repeating;
    "": it is not.
    ``refused``: what was to be provoked is what it refuses, by the words that were
    named."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        detail: list[str] | None = None,
        usage: bool = False,
        ended_with: int | None = None,
        race: str = "",
        refused: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.usage, self.ended_with, self.race = usage, ended_with, race
        self.refused = refused


class NoSpace(InfrastructureError):
    """A disk is full, or would be."""


class GpuUnavailable(InfrastructureError):
    """There is no GPU that this run may take: none answers, or others use it."""


class SupervisorError(InfrastructureError):
    """The process that owns the engine could not be started or died."""


class ForkServerDied(SupervisorError):
    """A fork server could not be started, died as it imported, or no longer answers."""


class PlaceLost(InfrastructureError):
    """A machine that works for a night, or what worked there, is gone."""


class NoPlaceLeft(InfrastructureError):
    """No machine is left that could go on with a night."""


class RunTimeout(MmreproError):
    """The run took longer than ``--timeout``."""

    exit_code = ExitCode.INCONCLUSIVE


class NotConfirmed(MmreproError):
    """A test that was written for a finding does not tell the two sides apart."""

    exit_code = ExitCode.INCONCLUSIVE


class NoPair(MmreproError):
    """The collision search went through all its images and found no pair."""

    exit_code = ExitCode.INCONCLUSIVE


def missing_extra(module: str) -> str:
    """The sentence for a module of the extra that is not installed."""
    return f"This command needs the extra `run` ({module} is not installed)."
