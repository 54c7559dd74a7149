"""One run of a cell: an ordinary run with an incident of its own, or one from the cache."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mmrepro.ablate.options import AblateCommand
from mmrepro.ablate.store import CellStore
from mmrepro.environments.spec import Environment
from mmrepro.errors import (
    EnvironmentBuildError,
    GpuUnavailable,
    InfrastructureError,
    MmreproError,
    NoSpace,
    UnloadableWheel,
    UsageError,
)
from mmrepro.evidence.recorder import Listener
from mmrepro.incident import Incident
from mmrepro.incident.ablation import CellRun
from mmrepro.incident.folder import discard, unused
from mmrepro.incident.journal import Journal
from mmrepro.records import Moment
from mmrepro.run.judge import facts_of
from mmrepro.run.key import START_MODE, cell_key, decisive_parts
from mmrepro.run.options import RunCommand
from mmrepro.run.runner import begin, execute
from mmrepro.run.starter import Starter
from mmrepro.scenario import Scenario
from mmrepro.signature import ConditionResult, Finding, Part, Truth, combine

CELLS_DIR = "cells"
HOPELESS = (NoSpace, UnloadableWheel, EnvironmentBuildError, GpuUnavailable)
"""What a second attempt, or another cell, would meet as well."""


@dataclass
class Cells:
    """Makes runs, or takes them from ``store``."""

    scenario: Scenario
    options: AblateCommand
    environment: Environment
    model: Path
    store: CellStore
    folder: Path
    """Of the ablation."""
    starter: Starter
    report: Callable[[Path], object]
    """Writes the reports of the run whose folder it gets."""
    listener: Listener | None = None
    execute: Callable[[Scenario, RunCommand, Journal, Starter], Incident] = execute
    last_error: MmreproError | None = None
    """Why the latest lost run was run."""
    _code: str = ""

    def run(self, flips: tuple[str, ...], index: int) -> tuple[CellRun, bool]:
        """Run ``index`` of the cell ``flips``, and whether it came from the cache.

        A run that is lost to infrastructure is tried once more; then it is recorded as lost, and
        not kept in the cache.

        Raises:
            UsageError: the command line is wrong; no cell can be run.
            InfrastructureError: of the kinds that every other run would meet as well.
            KeyboardInterrupt: the run's partial incident is on disk.
        """
        parts = decisive_parts(
            self.scenario, self.options.of_cell(flips), self.environment, self.model, self.starter
        )
        key = cell_key(parts, index)
        # A file that is edited while this goes on is not what runs: the old one was imported.
        self._code = self._code or parts["code"]
        whole = parts["code"] == self._code
        if not self.options.fresh and whole and (kept := self.store.read(key)) is not None:
            return kept, True
        run = self._once(flips, index, key)
        if run.outcome is None and isinstance(self.last_error, InfrastructureError):
            again = self._once(flips, index, key)
            run = again.model_copy(update={"retried": run.error})
        if run.outcome is not None and whole:
            # It may have found that the mode cannot be used; the next one will know beforehand.
            parts[START_MODE] = run.start_mode or parts[START_MODE]
            run = run.model_copy(update={"key": cell_key(parts, index)})
            self.store.write(run, parts)
        return run, False

    def _once(self, flips: tuple[str, ...], index: int, key: str) -> CellRun:
        began, created = time.monotonic(), Moment.now()
        out = unused(self.folder / CELLS_DIR / slug(flips) / f"run-{index}")
        options = self.options.of_cell(flips, out)
        journal = begin(self.scenario, options, self.listener)
        error = ""
        try:
            self.execute(self.scenario, options, journal, self.starter)
        except UsageError:
            discard(journal.folder)
            raise
        except HOPELESS:
            raise
        except MmreproError as failed:
            self.last_error, error = failed, failed.message
        except BaseException:
            with contextlib.suppress(Exception):  # what was seen until then is worth a report
                self.report(journal.folder)
            raise
        self.report(journal.folder)
        seconds = time.monotonic() - began
        return _cell_run(self.scenario, journal.incident, key, index, created, seconds, error)


def _cell_run(
    scenario: Scenario,
    incident: Incident,
    key: str,
    index: int,
    created: Moment,
    seconds: float,
    error: str,
) -> CellRun:
    symptom, cause = _part(incident, "symptom"), Finding.unknown("no verdict was reached")
    if incident.verdict is not None:
        cause = _cause(scenario, incident, symptom)
    return CellRun(
        key=key,
        index=index,
        created=created,
        seconds=round(seconds, 2),
        outcome=None if error else incident.outcome,
        gate_passed=bool(incident.gate and incident.gate.passed),
        symptom=symptom.truth,
        symptom_observed=symptom.observed,
        cause=cause.truth,
        cause_observed=cause.observed,
        explanation=incident.verdict.explanation if incident.verdict else "",
        without_effect=_without_effect(incident),
        fidelity=incident.fidelity,
        start_mode=incident.engine.start_mode,
        stand_ins=incident.stand_ins,
        error=error or ("" if incident.verdict else "no verdict was reached"),
        incident_dir=incident.incident_dir,
        command=incident.command,
    )


def _cause(scenario: Scenario, incident: Incident, symptom: Finding) -> Finding:
    """With the symptom, the conditions of the cause; without it, what the scenario can still see.

    A scenario whose check crashes knows nothing: the cause is unknown, never gone.
    """
    if symptom.truth is Truth.MET:
        return _part(incident, "cause")
    try:
        return scenario.cause_remains(incident.evidence, facts_of(incident, scenario))
    except Exception as error:
        return Finding.unknown(f"the check failed: {type(error).__name__}: {error}")


def _part(incident: Incident, part: Part) -> Finding:
    if incident.verdict is None:
        return Finding.unknown("no verdict was reached")
    results = [c for c in incident.verdict.conditions if c.required and c.part == part]
    truth = combine([c.truth for c in results])
    shown: list[ConditionResult] = [c for c in results if c.truth is truth]
    return Finding(truth, "; ".join(f"{c.id}: {c.observed}" for c in shown))


def _without_effect(incident: Incident) -> str:
    flips = [c for c in incident.verdict.conditions if c.part == "flip"] if incident.verdict else []
    return "; ".join(f"{c.statement}: {c.observed}" for c in flips if c.truth is not Truth.MET)


def slug(flips: tuple[str, ...]) -> str:
    """Folder of a cell."""
    name = re.sub(r"[^A-Za-z0-9+.-]+", "-", "+".join(flips)) or "baseline"
    return name if len(name) <= 100 else f"{name[:80]}-{len(flips)}-flips-{_short(name)}"


def _short(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]
