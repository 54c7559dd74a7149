"""Cells by the environment that they need, and what a run of one takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from mmrepro.engines import spec_for
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.errors import MmreproError
from mmrepro.history.ledger import History
from mmrepro.incident.ledger import Cell, Planned

ASSUMED_RUN_S, ASSUMED_BUILD_S = 60.0, 180.0
ASSUMED_WHY = "no earlier attempt of this engine is in the ledger: 60 s is assumed"


@dataclass(frozen=True)
class Group:
    """The cells of one environment.

    Attributes:
        date: of the commit, RFC 3339: its requirements are resolved as of then.
    """

    engine: str
    release: str
    device: str
    commit: str
    cells: tuple[Planned, ...]
    date: str = ""

    @property
    def name(self) -> str:
        """For people: ``vllm 0.23.0 (cpu)``."""
        return f"{self.engine} {self.commit[:9] or self.release} ({self.device})"

    @property
    def spec(self) -> EnvironmentSpec | None:
        """None: there is no such release, as its runs will say."""
        try:
            return spec_for(
                self.engine, self.release, self.device, commit=self.commit, date=self.date
            )
        except MmreproError:
            return None


def groups_of(cells: Iterable[Planned]) -> list[Group]:
    """The cells by environment, in their order."""
    found: dict[tuple[str, ...], list[Planned]] = {}
    for one in cells:
        found.setdefault(environment_of(one), []).append(one)
    return [
        Group(engine, release, device, commit, tuple(some))
        for (engine, release, commit, device), some in found.items()
    ]


def environment_of(one: Planned) -> tuple[str, str, str, str]:
    cell = one.cell
    return (cell.engine, cell.release, cell.commit, cell.device)


class Estimates:
    """What a run of a cell takes, by earlier attempts."""

    def __init__(self, history: History) -> None:
        self._seconds: dict[str, list[float]] = {}
        for night in history.nights:
            for attempt in night.attempts:
                planned = night.planned.get(attempt.cell)
                if planned is not None and attempt.outcome is not None:
                    self.note(planned.cell, attempt.seconds)

    def note(self, cell: Cell, seconds: float) -> None:
        """Another attempt at ``cell`` reached its outcome."""
        for name in self._names(cell):
            self._seconds.setdefault(name, []).append(seconds)

    def of(self, cell: Cell) -> tuple[float, str]:
        """Seconds of one run, and what that is based on."""
        for name, what in zip(self._names(cell), ("cell", "row", "engine"), strict=True):
            if some := self._seconds.get(name):
                return statistics.median(some), f"median of {len(some)} attempts of this {what}"
        return ASSUMED_RUN_S, ASSUMED_WHY

    @staticmethod
    def _names(cell: Cell) -> tuple[str, str, str]:
        return (f"cell {cell.id}", f"row {cell.line}", f"engine {cell.engine}")
