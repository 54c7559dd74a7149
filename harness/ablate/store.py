"""Finished runs of cells on disk: reused by the next ablation, and the measure of its time."""

from __future__ import annotations

import contextlib
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from mmrepro.incident.searches import CellRun
from mmrepro.machine.files import cache_root, write_file
from mmrepro.records import Record
from pydantic import ValidationError

ASSUMED_S = 60.0
ASSUMED_WHY = (
    "no run of this engine was measured here: 60 s each is assumed, twice what "
    "ghost-key-eviction takes on two cores"
)


class Stored(Record):
    """A run and what decided it: the reason why another one is, or is not, the same."""

    engine: str
    parts: dict[str, str]
    run: CellRun


@dataclass(frozen=True)
class Estimate:
    """Seconds for one run, and what that is based on."""

    seconds: float
    why: str


class CellStore:
    """The cells of one scenario on one release and device, below ``ablate/`` in the cache."""

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
        text = Stored(engine=self.engine, parts=parts, run=run).model_dump_json(indent=1)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self._path(run.key), text + "\n")

    def estimate(self) -> Estimate:
        """What a run takes, by the median of those measured here."""
        own = _seconds(self.folder, self.engine)
        if own:
            return Estimate(
                statistics.median(own), f"median of {len(own)} measured runs of this scenario"
            )
        others = [s for folder in _folders(self.root) for s in _seconds(folder, self.engine)]
        if others:
            return Estimate(
                statistics.median(others),
                f"median of {len(others)} measured runs of other scenarios of {self.engine}",
            )
        return Estimate(ASSUMED_S, ASSUMED_WHY)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _read(path: Path) -> Stored | None:
    try:
        return Stored.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []


def _seconds(folder: Path, engine: str) -> list[float]:
    stored = (_read(path) for path in sorted(folder.glob("*.json")))
    return [s.run.seconds for s in stored if s is not None and s.engine == engine]
