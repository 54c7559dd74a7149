"""``*.mmrepro.toml`` as pytest sees it: a file, its environments, and a test a cell."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest
from mmrepro.campaign.schedule import CONFIRM, REPEAT, Group, groups_of
from mmrepro.errors import MmreproError
from mmrepro.history.concerns import Quarantine, load_quarantine
from mmrepro.incident.ledger import Cell, Planned
from mmrepro.matrix.options import MatrixFile, MatrixRunCommand, load
from mmrepro.matrix.plan import plan
from mmrepro.matrix.session import night_options
from mmrepro.pytest_plugin import SUFFIX, MmreproWarning, out_folder, session_name
from mmrepro.pytest_plugin.running import How, Ran, Runs, failure, sentence
from mmrepro.text.sanitize import one_line


class MatrixToml(pytest.File):
    """The file: what it plans, and what all its cells share."""

    given: MatrixFile
    quarantine: Quarantine

    def collect(self) -> Iterator[EnvironmentCells]:
        try:
            self.given = load(self.path)
            named = self.given.matrix.quarantine
            self.quarantine = load_quarantine(named) if named else Quarantine()
            made = plan(self._night, self.given.cell, MatrixRunCommand(), self.given.matrix)
        except MmreproError as error:
            raise self.CollectError(sentence(error)) from None
        warnings = self.quarantine.warnings((p.cell for p in made.cells), datetime.now(UTC))
        for text in (*(f"Left out: {note}." for note in made.notes), *warnings):
            self.warn(MmreproWarning(f"{self.name}: {text}"))
        for group in groups_of(made.cells):
            yield EnvironmentCells.from_parent(self, name=group.name, group=group)

    @cached_property
    def runs(self) -> Runs:
        """Made for the first cell: ``max-time`` is counted from there on."""
        settings = self.given.matrix
        return Runs(
            How(
                root=out_folder(self.config),
                night=self._night,
                options=night_options(settings, settings.machine),
                repeat=settings.repeat or REPEAT,
                confirm=CONFIRM if settings.confirm is None else settings.confirm,
                until=time.time() + settings.max_time if settings.max_time else None,
                disk=settings.disk,
                turns=settings.jobs or 1,
            )
        )

    @cached_property
    def selected(self) -> dict[EnvironmentCells, Group]:
        """Its cells that this pytest run is to run, by environment."""
        cells: dict[EnvironmentCells, list[Planned]] = {}
        for item in self.session.items:
            if isinstance(item, CellItem) and item.toml is self:
                cells.setdefault(item.environment, []).append(item.planned)
        return {one: groups_of(some)[0] for one, some in cells.items()}

    def after(self, environment: EnvironmentCells) -> Group | None:
        groups = list(self.selected.items())
        at = [one for one, _ in groups].index(environment) + 1
        return groups[at][1] if at < len(groups) else None

    def teardown(self) -> None:
        self.runs.close()

    @property
    def _night(self) -> str:
        """Below the folder of incidents: two files may have the same cell."""
        return f"{session_name(self.config)}/{self.name.removesuffix(SUFFIX)}"


class EnvironmentCells(pytest.Collector):
    """The cells of one environment; while they are run its engine stays imported.

    A scope of its own, so that ``--dist loadscope`` of pytest-xdist gives them to one worker.
    """

    def __init__(self, *, group: Group, **rest: Any) -> None:
        super().__init__(**rest)
        self.group = group

    @property
    def toml(self) -> MatrixToml:
        return cast(MatrixToml, self.parent)

    def collect(self) -> Iterator[CellItem]:
        names: set[str] = set()
        for planned in self.group.cells:
            cell = planned.cell
            name = one_line(_row(cell, self.path.parent), 300).replace("::", ":")
            name = f"{name} ({cell.id[-8:]})" if name in names else name
            names.add(name)
            yield CellItem.from_parent(self, name=name, planned=planned)

    def teardown(self) -> None:
        self.toml.runs.leave()


class CellItem(pytest.Item):
    """A cell: it is run in the set-up, where a failure is an error, and judged as a test."""

    ran: Ran | None = None

    def __init__(self, *, planned: Planned, **rest: Any) -> None:
        super().__init__(**rest)
        self.planned = planned
        entry = self.toml.quarantine.entry_for(planned.cell, datetime.now(UTC))
        if entry is not None:
            self.add_marker(pytest.mark.xfail(reason=entry.says, strict=False))

    @property
    def environment(self) -> EnvironmentCells:
        return cast(EnvironmentCells, self.parent)

    @property
    def toml(self) -> MatrixToml:
        return self.environment.toml

    def setup(self) -> None:
        if self.config.getoption("setupplan", False):
            return
        toml, environment = self.toml, self.environment
        try:
            attempts = toml.runs.run(
                toml.selected[environment], self.planned, toml.after(environment)
            )
        except (MmreproError, OSError) as error:
            raise failure(sentence(error)) from None
        self.ran = Ran(
            what=f"{self.name} on {environment.name}",
            planned=self.planned,
            attempts=tuple(attempts),
            root=toml.runs.how.root,
            here=self.config.invocation_params.dir,
        )
        self.user_properties += self.ran.properties
        self.ran.check_learnt(self.config)

    def runtest(self) -> None:
        assert self.ran is not None
        self.ran.check_expected()

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, f"{self.name} on {self.environment.name}"


def _row(cell: Cell, folder: Path) -> str:
    """As ``Cell.row``, with a scenario's file named relative to ``folder``: the name of a test does
    not depend on where pytest is started."""
    if not cell.scenario.endswith(".py"):
        return cell.row
    return cell.model_copy(update={"scenario": os.path.relpath(cell.scenario, folder)}).row
