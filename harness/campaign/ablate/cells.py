"""What is known of a cell: its state by its runs, by the cache, and by the incident of
a run."""

from __future__ import annotations

import contextlib
import hashlib
import re
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mmrepro.base import errors
from mmrepro.base.errors import InfrastructureError, MmreproError, UsageError
from mmrepro.base.machine import Device, cache_root, write_file
from mmrepro.base.records import Record
from mmrepro.campaign.ablate.options import AblateCommand
from mmrepro.engines import get_engine
from mmrepro.engines.environments import Environment, existing
from mmrepro.failure.documents import Attempt, Incident, Lost
from mmrepro.failure.documents.searches import CellRun
from mmrepro.failure.signature import Finding, Part, Truth, combine
from mmrepro.runs import Starter, decisive_parts, facts_of, run_key
from mmrepro.scenario import Scenario
from pydantic import ValidationError

_ASSUMED_S = 60.0
_ASSUMED_WHY = "an estimate: no run of this engine was measured on this machine"


_SAME = frozenset(
    {
        "created",
        "seconds",
        "outcome",
        "explanation",
        "fidelity",
        "start_mode",
        "error",
        "command",
    }
)
"""Fields that an attempt and the run of a cell have in common."""


class _StoredRun(Record):
    """A run and what decided it: the reason why another one is, or is not, the same."""

    engine: str
    parts: dict[str, str]
    run: CellRun


class CellStore:
    """The cells of one scenario on one release and device, below ``ablate/`` in the
    cache."""

    def __init__(self, scenario: str, engine: str, release: str, device: str) -> None:
        self.engine = engine
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{scenario}-{release}-{device}")
        self.root = cache_root() / "ablate"
        self.folder = self.root / name

    def read(self, key: str) -> CellRun | None:
        """The run with that key; None if there is none, or none that can be read."""
        stored = _read(self._path(key))
        return stored.run if stored is not None and stored.run.key == key else None

    def write(self, run: CellRun, parts: dict[str, str]) -> None:
        """Keep ``run``; a disk that cannot take it costs only the reuse."""
        stored = _StoredRun(engine=self.engine, parts=parts, run=run)
        text = stored.model_dump_json(indent=1)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self._path(run.key), text + "\n")

    def estimate(self) -> tuple[float, str]:
        """Seconds that a run takes, by the median of those measured here; and what that
        is."""
        own = _seconds(self.folder, self.engine)
        if own:
            what = f"median of {len(own)} measured runs of this scenario"
            return statistics.median(own), what

        others: list[float] = []
        for folder in _folders(self.root):
            others += _seconds(folder, self.engine)

        if others:
            what = f"measured runs of other scenarios of {self.engine}"
            return statistics.median(others), f"median of {len(others)} {what}"
        return _ASSUMED_S, _ASSUMED_WHY

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _read(path: Path) -> _StoredRun | None:
    try:
        return _StoredRun.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []


def _seconds(folder: Path, engine: str) -> list[float]:
    """What each run of the engine took whose record lies in a folder."""
    seconds = []
    for path in sorted(folder.glob("*.json")):
        stored = _read(path)
        if stored is not None and stored.engine == engine:
            seconds.append(stored.run.seconds)

    return seconds


@dataclass
class KnownCells:
    """The runs of cells that the cache has, by all that decides their outcome."""

    scenario: Scenario
    options: AblateCommand
    release: str
    device: Device
    store: CellStore = field(init=False)

    def __post_init__(self) -> None:
        name, engine = self.scenario.full_name, self.scenario.engine
        self.store = CellStore(name, engine, self.release, self.device)

    @property
    def environment(self) -> Environment | None:
        """The environment that its runs have; None: it is still to be built, and
        nothing is known of them."""
        engine = get_engine(self.scenario.engine)
        return existing(engine.environment_spec(self.release, self.device))

    def parts(self, flips: tuple[str, ...]) -> dict[str, str] | None:
        """All that would decide a run of that cell now."""
        environment = self.environment
        if environment is None:
            return None
        starter = Starter(self.options.run.start_mode, several=True)
        made = self.options.of_cell(flips)
        return decisive_parts(self.scenario, made, environment, self._model, starter)

    def read(self, parts: dict[str, str] | None, number: int) -> CellRun | None:
        """Run ``number`` of the cell of ``parts``."""
        if parts is None or self.options.fresh:
            return None
        return self.store.read(_cell_key(run_key(parts), number))

    def first(self, flips: tuple[str, ...]) -> list[CellRun]:
        """The runs of a cell up to the first that is not known."""
        parts = self.parts(flips)
        runs: list[CellRun] = []
        for number in range(1, self.options.repeat + 1):
            run = self.read(parts, number)
            if run is None:
                break
            runs.append(run)

        return runs

    @cached_property
    def _model(self) -> Path:
        return self.scenario.model.write(cache_root() / "models")


def _cell_key(key: str, number: int) -> str:
    return hashlib.sha256(f"{key} {number}".encode()).hexdigest()[:32]


def cell_run(
    scenario: Scenario,
    attempt: Attempt,
    incident: Incident | None,
    number: int,
    folder: Path,
) -> CellRun:
    """What run ``number`` of a cell shows.

    Args:
        incident: that it left; None: none that can be read.
        folder: the attempt names its incident relative to it.
    """
    run = CellRun(
        **attempt.model_dump(include=set(_SAME)),
        key=_cell_key(attempt.key, number) if attempt.key else "",
        index=number,
        symptom=Truth.UNKNOWN,
        cause=Truth.UNKNOWN,
        incident_dir=str(folder / attempt.incident) if attempt.incident else "",
    )
    if incident is None:
        return run

    symptom = _part(incident, "symptom")
    cause = _cause(scenario, incident, symptom)
    update = {
        "gate_passed": bool(incident.gate and incident.gate.passed),
        "symptom": symptom.truth,
        "symptom_observed": symptom.observed,
        "cause": cause.truth,
        "cause_observed": cause.observed,
        "without_effect": _without_effect(incident),
        "stand_ins": incident.stand_ins,
    }
    return run.model_copy(update=update)


def error_of(attempt: Attempt, incident: Incident | None) -> MmreproError:
    """What ended a run that was lost, as it was raised there."""
    if attempt.lost is Lost.USAGE:
        return UsageError(attempt.error, hint=attempt.command)
    name = incident.failure_class if incident is not None else ""
    kind: type[MmreproError] = getattr(errors, name, InfrastructureError)
    return kind(attempt.error, hint=attempt.command)


def _cause(scenario: Scenario, incident: Incident, symptom: Finding) -> Finding:
    """What a run shows of the cause: with the symptom by its conditions, without it by
    what the scenario can still see.

    A scenario whose check crashes knows nothing: the cause is unknown, never gone.
    """
    if incident.verdict is None or symptom.truth is Truth.MET:
        return _part(incident, "cause")
    try:
        return scenario.cause_remains(incident.evidence, facts_of(incident, scenario))
    except Exception as error:
        return Finding.unknown(f"the check failed: {type(error).__name__}: {error}")


def _part(incident: Incident, part: Part) -> Finding:
    """What the required conditions of one part come to."""
    if incident.verdict is None:
        return Finding.unknown("no verdict was reached")
    results = []
    for condition in incident.verdict.conditions:
        if condition.required and condition.part == part:
            results.append(condition)

    truth = combine([condition.truth for condition in results])
    # What decides it is said: of a part that is not met, what is not.
    observed = []
    for condition in results:
        if condition.truth is truth:
            observed.append(f"{condition.id}: {condition.observed}")

    return Finding(truth, "; ".join(observed))


def _without_effect(incident: Incident) -> str:
    """Name the toggles that showed no effect, and what was observed instead."""
    if incident.verdict is None:
        return ""
    texts = []
    for condition in incident.verdict.conditions:
        if condition.part == "flip" and condition.truth is not Truth.MET:
            texts.append(f"{condition.statement}: {condition.observed}")

    return "; ".join(texts)
