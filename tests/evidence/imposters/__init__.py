"""Evidence that must fool nobody: real recorded runs, each with one documented change.

An imposter looks like a known failure, or like one that was prevented, and is neither.
A change is one that a real machine could have shown: a probe that was not there, a log
of yesterday, an engine that does not hold what the trigger needs. None may come out
``reproduced``; no claim may be confirmed but those that the change leaves true; no
mitigation has prevented anything; and looked at as a live server, nothing matches.
``tests/unit/test_imposters.py`` holds them to it."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.reports import load

CORPUS = Path(__file__).resolve().parent.parent

Kind = Literal[
    "healthy",
    "other-cause",
    "other-release",
    "stale-log",
    "absent-probe",
    "torn-sample",
    "overload",
    "trigger-failed",
]


@dataclass(frozen=True)
class Imposter:
    """A recording with one change.

    Attributes:
        name: of its own, by which tests and people call it.
        recording: the real run: the stem of a file beside this folder.
        kind: what it passes for evidence of.
        change: the one change, in a sentence.
        edit: makes it, in place.
        outcome: what the verdict must be.
        still_true: ids of claims that the change leaves true, and that may be
            confirmed.
    """

    name: str
    recording: str
    kind: Kind
    change: str
    edit: Callable[[Incident], object]
    outcome: Outcome
    still_true: tuple[str, ...] = ()

    def incident(self) -> Incident:
        """The changed run, read anew: it is the caller's."""
        incident = load(CORPUS / f"{self.recording}.zip")
        self.edit(incident)
        return incident


def imposters() -> list[Imposter]:
    """Those of every module of this package that lists ``IMPOSTERS``, by name."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    found = [one for module in modules for one in getattr(module, "IMPOSTERS", ())]
    return sorted(found, key=lambda one: one.name)
