"""From what was asked for to the cells of a nightly run, by environment."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated

import mmrepro
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import device_of, host_facts
from mmrepro.base.records import Moment, Record
from mmrepro.campaign.matrix import selectors
from mmrepro.campaign.matrix.options import MatrixFile, MatrixRunCommand, Rows
from mmrepro.campaign.schedule import (
    ASSUMED_BUILD_S,
    CONFIRM,
    REPEAT,
    EnvironmentGroup,
    Estimates,
    Schedule,
    environment_of,
    groups_of,
)
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments import (
    EnvironmentSpec,
    Listed,
    TreeLabel,
    existing,
    needed_bytes,
    read_tree,
    releases_of,
)
from mmrepro.engines.features import feature
from mmrepro.failure.documents import LEDGER_FILE, Cell, Night, NightState, Planned
from mmrepro.history import History, NightRuns, read_history
from mmrepro.runs import gpu_models
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import known_scenario, scenario_names
from packaging.version import Version
from pydantic import Field

_ALL = "all"
_NONE = "none"
_EACH = "each"

_ReleasesOf = Callable[[EnvironmentSpec], Sequence[Listed]]


@dataclass
class NightPlan:
    """Cells in the order in which they run: those of one environment beside each
    other."""

    cells: list[Planned]
    notes: list[str] = field(default_factory=list)
    """What was asked for and is not among them, and why."""


def plan(
    night: str,
    rows: Sequence[Rows],
    over: MatrixRunCommand,
    defaults: MatrixRunCommand,
    *,
    listing: _ReleasesOf = releases_of,
) -> NightPlan:
    """The cells of ``rows``.

    Args:
        night: id of the night that is to run them.
        over: of the command line: it decides, then the rows themselves, then
            ``defaults``.
        listing: what the package index has.

    Raises:
        UsageError: a name that is none, or nothing to run.
        EnvironmentBuildError: a selector needs the index, which cannot be asked.
    """
    made = _PlanMaking(night, over, defaults, listing)
    for group in rows:
        for name in group.scenario:
            for scenario, text in _scenarios_called(name, over):
                made.scenarios.append((group, scenario, text))

    if not made.scenarios:
        raise UsageError(
            "The matrix has no scenario.", hint="--scenario ghost-key-eviction"
        )

    made.make()
    if not made.cells:
        why = f": {made.notes[0]}" if made.notes else "."
        raise UsageError(f"The matrix has no cell{why}", hint="mmrepro list")
    return NightPlan(_ordered(made.cells.values()), list(dict.fromkeys(made.notes)))


def planned(night: str, scenario: Scenario, cell: Cell) -> Planned:
    """The cell, and what its scenario expects of it."""
    given = frozenset(cell.mitigations)
    expected, _ = scenario.expected_on(cell.device, cell.release, given)
    return Planned(
        night=night,
        cell=cell,
        expected=expected,
        affected="" if scenario.spares(cell.device) else scenario.affected_range,
        title=scenario.title,
    )


def _scenarios_called(name: str, asked: MatrixRunCommand) -> list[tuple[Scenario, str]]:
    """Scenarios called ``NAME``, ``NAME:VARIANT``, ``NAME:all`` or ``all``: each with
    what names it to `run`.

    Raises:
        UsageError: there is none, or FILE.toml alone names its file.
    """
    if name == _ALL:
        every: list[tuple[Scenario, str]] = []
        for known in scenario_names():
            every += _scenarios_called(f"{known}:{_ALL}", asked)

        return every

    text, _, variant = name.partition(":")
    loaded = known_scenario(text, trust=asked.runs_file(name))
    if variant == _ALL:
        return [(scenario, text) for scenario in loaded.variants or (loaded,)]
    return [(loaded.with_variant(variant), text)]


class _PlanMaking:
    def __init__(
        self,
        night: str,
        over: MatrixRunCommand,
        defaults: MatrixRunCommand,
        listing: _ReleasesOf,
    ) -> None:
        self.night = night
        self.over = over
        self.defaults = defaults
        self.scenarios: list[tuple[Rows, Scenario, str]] = []
        """Rows that name a scenario, the scenario, and the words that name it to `run`."""
        self.cells: dict[str, Planned] = {}
        self.notes: list[str] = []
        self._ask = listing
        self._known: dict[tuple[str, str], Sequence[Listed]] = {}

    def make(self) -> None:
        chosen = []
        for group, scenario, text in self.scenarios:
            if self._engine(group) in ("", scenario.engine):
                chosen.append((group, scenario, text))

        if not chosen:
            raise UsageError(
                "No scenario of the matrix is of that engine.", hint="mmrepro list"
            )

        self.scenarios = chosen
        self._check_mitigations()
        several = len({scenario.engine for _, scenario, _ in chosen}) > 1
        for group, scenario, text in chosen:
            self._rows(group, scenario, text, several)

    def _engine(self, group: Rows) -> str:
        name = self.over.engine or group.engine or self.defaults.engine or ""
        return get_engine(name).name if name else ""

    def _rows(self, group: Rows, scenario: Scenario, text: str, several: bool) -> None:
        selected = self._selectors(group, scenario)
        if selected is None:
            self.notes.append(
                f"{scenario.full_name}: the source tree is of another engine"
            )
            return

        device = self.over.device or group.device or self.defaults.device or "auto"
        on = device_of(device)
        scenario.read_options(group.option)
        get_engine(scenario.engine).given(group.server_arg)
        releases = selectors.chosen(
            selected,
            scenario.release,
            scenario.affects,
            lambda: self._listed(scenario, on),
            only_listed=several,
        )
        if not releases:
            self.notes.append(
                f"{scenario.full_name}: no release of {scenario.engine} is meant by "
                f"{','.join(selected)}"
            )

        for name in group.feature:
            if name != _NONE:
                # It raises for a name that is none, and lists those that there are.
                feature(scenario.engine, name)

        for release, given in product(releases, _features(group)):
            for mitigations in self._mitigations(group, scenario, release, on):
                cell = Cell(
                    scenario=text,
                    variant=scenario.variant,
                    engine=scenario.engine,
                    release=release,
                    device=on,
                    mitigations=mitigations,
                    server_args=(*group.server_arg, *given),
                    options=tuple(group.option),
                )
                self.cells.setdefault(cell.id, planned(self.night, scenario, cell))

    def _selectors(self, group: Rows, scenario: Scenario) -> Sequence[str] | None:
        """What selects the releases of a scenario. Source trees of other engines are
        left out; None: there is nothing else."""
        wanted = self.over.releases or group.releases or self.defaults.releases
        if not wanted:
            return selectors.DEFAULT
        own = [name for name in wanted if _engine_of(name) in ("", scenario.engine)]
        return own or None

    def _listed(self, scenario: Scenario, device: str) -> Sequence[Listed]:
        known = (scenario.engine, device)
        if known not in self._known:
            spec = spec_for(scenario.engine, scenario.release, device)
            self._known[known] = self._ask(spec)

        return self._known[known]

    # ------------------------------------------------------------------ mitigations

    def _wanted(self, group: Rows) -> Sequence[str]:
        of_line = self.over.mitigation or group.mitigation
        return of_line or self.defaults.mitigation or [_NONE]

    def _check_mitigations(self) -> None:
        """Raises UsageError: one that no scenario has, or that is another release."""
        wanted_by: dict[str, list[Scenario]] = {}
        for group, scenario, _ in self.scenarios:
            for name in dict.fromkeys(self._wanted(group)):
                wanted_by.setdefault(name, []).append(scenario)

        for name, scenarios in wanted_by.items():
            if name not in (_NONE, _EACH):
                _check_mitigation(name, scenarios)

    def _mitigations(
        self, group: Rows, scenario: Scenario, release: str, device: str
    ) -> Iterable[tuple[str, ...]]:
        wanted = self._wanted(group)
        if _NONE in wanted or _EACH in wanted:
            yield ()
        for mitigation in scenario.mitigations:
            named = mitigation.name in wanted
            if not named and _EACH not in wanted:
                continue
            if mitigation.release:
                self.notes.append(
                    f"{scenario.full_name}: its mitigation {mitigation.name} is the "
                    f"release {mitigation.release}, a column of its own"
                )
                continue

            # Unless it is named, it is tried where there is something to mitigate.
            version = Version(release)
            speaks = mitigation.effective_on.contains(version, prereleases=True)
            if named or (scenario.affects(release, device) and speaks):
                yield (mitigation.name,)


def _check_mitigation(name: str, scenarios: Sequence[Scenario]) -> None:
    """Raises UsageError: none of the scenarios has it, or it is another release."""
    known = []
    for scenario in scenarios:
        known += [one for one in scenario.mitigations if one.name == name]

    if not known:
        # It raises, and lists those that there are.
        scenarios[0].mitigation(name)
    if all(mitigation.release for mitigation in known):
        raise UsageError(
            f"The mitigation {name!r} is another release, which is a column of its "
            "own.",
            hint=f"--releases {known[0].release}",
        )


def _engine_of(selector: str) -> str:
    """The engine whose source tree ``selector`` names; "": it names none. Raises
    UnknownRelease: it is not in this cache."""
    label = TreeLabel.of(selector)
    return read_tree(label.digest).engine if label else ""


def _ordered(cells: Iterable[Planned]) -> list[Planned]:
    """Order the cells by environment, oldest release first; otherwise they stay as they
    come."""

    def order(planned: Planned) -> tuple[object, ...]:
        cell = planned.cell
        version = selectors.version_of(cell.release)
        return cell.engine, version, environment_of(planned)

    return sorted(cells, key=order)


def sharded(cells: Sequence[Planned], shard: str) -> list[Planned]:
    """The cells of shard ``i/n``. Raises UsageError.

    All cells of an environment are in one shard, and which one does not depend on what
    else is in the plan: a machine that sees a release earlier than the others changes
    nothing for them."""
    if not shard:
        return list(cells)
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", shard)
    if not match or int(match[1]) > int(match[2]):
        raise UsageError(
            f"{shard!r} is no shard.", hint="--shard 1/3, 2/3 and 3/3 make the whole"
        )

    number, count = int(match[1]), int(match[2])
    mine = []
    for planned in cells:
        # Not hash(), which differs from one process to the next.
        name = " ".join(environment_of(planned))
        if zlib.crc32(name.encode()) % count == number - 1:
            mine.append(planned)

    return mine


# ---------------------------------------------------------------- for --dry-run


class DryCell(Record):
    cell: Cell
    id: str
    expected: str
    runs: Annotated[
        int, Field(description="that are still to be made, if nothing surprises")
    ]
    seconds: Annotated[float, Field(description="estimate for these runs")]
    seconds_from: Annotated[str, Field(description="what the estimate is based on")]


class DryGroup(Record):
    name: str
    engine: str
    release: str
    device: str
    environment: Annotated[str, Field(description="there, or to be fetched first")]
    download_bytes: Annotated[int, Field(description="unpacked, about; 0: it is there")]
    seconds: Annotated[
        float, Field(description="estimate: the environment and the runs")
    ]
    cells: list[DryCell]


class DryRun(Record):
    night: str
    shard: str
    groups: list[DryGroup]
    runs: int
    seconds: Annotated[float, Field(description="estimate, one after another")]
    download_bytes: int
    notes: list[str]


def dry_run(
    night: str,
    cells: Sequence[Planned],
    left: Callable[[Planned], int],
    estimates: Estimates,
    notes: Sequence[str] = (),
    shard: str = "",
) -> DryRun:
    """What would be run. ``left``: runs of a cell that are still to be made."""
    groups = []
    runs = 0
    for group in groups_of(cells):
        dry_cells = []
        for planned in group.cells:
            dry_cells.append(_dry_cell(planned, left(planned), estimates))

        runs += sum(cell.runs for cell in dry_cells)
        groups.append(_dry_group(group, dry_cells))

    return DryRun(
        night=night,
        shard=shard,
        groups=groups,
        runs=runs,
        seconds=round(sum(group.seconds for group in groups), 1),
        download_bytes=sum(group.download_bytes for group in groups),
        notes=list(notes),
    )


def _dry_cell(planned: Planned, runs: int, estimates: Estimates) -> DryCell:
    seconds, why = estimates.of(planned.cell)
    return DryCell(
        cell=planned.cell,
        id=planned.cell.id,
        expected=planned.expected or "",
        runs=runs,
        seconds=round(runs * seconds, 1),
        seconds_from=why,
    )


def _dry_group(group: EnvironmentGroup, cells: list[DryCell]) -> DryGroup:
    spec = group.spec
    seconds = sum(cell.seconds for cell in cells)
    download_bytes = 0
    environment = "there"
    # What has no run left needs no environment.
    has_runs = any(cell.runs for cell in cells)
    if has_runs and spec is not None and existing(spec) is None:
        environment = "to be fetched first"
        download_bytes = needed_bytes(spec)
        seconds += ASSUMED_BUILD_S

    return DryGroup(
        name=group.name,
        engine=group.engine,
        release=group.release,
        device=group.device,
        environment=environment,
        download_bytes=download_bytes,
        seconds=round(seconds, 1),
        cells=cells,
    )


def dry_run_of(
    asked: MatrixRunCommand, given: MatrixFile, settings: MatrixRunCommand, folder: Path
) -> DryRun:
    """What ``asked`` would run, with ``settings``, beside the ledger in ``folder``.

    Raises:
        UsageError: it is to go on with a night, and none is unfinished.
        MmreproError: as ``planned_of``.
    """
    history = read_history(folder) if (folder / LEDGER_FILE).is_file() else History()
    notes: list[str] = []
    if asked.resume:
        unfinished = _unfinished(history)
        if unfinished is None:
            raise UsageError(f"{folder} has no night that is unfinished.")
        night = unfinished.night
        cells = list(unfinished.planned.values())
    else:
        cells, notes = planned_of(asked, given)
        night = night_of(asked, settings)

    runs = history.find(night.id)
    schedule = Schedule(night.repeat, night.confirm)

    def to_run(planned: Planned) -> int:
        attempts = runs.attempts_of(planned.cell.id) if runs is not None else []
        return schedule.left(attempts, planned)

    return dry_run(night.id, cells, to_run, Estimates(history), notes, night.shard)


def _unfinished(history: History) -> NightRuns | None:
    """The newest night that is not complete."""
    for runs in reversed(history.nights):
        if runs.night.state is not NightState.COMPLETE:
            return runs

    return None


def planned_of(
    asked: MatrixRunCommand, given: MatrixFile
) -> tuple[list[Planned], list[str]]:
    """The cells that are asked for, and what was left out of them. Raises
    MmreproError."""
    made = plan(_name_of(asked), _rows(asked, given), asked, given.matrix)
    cells = sharded(made.cells, asked.shard)
    if not cells:
        made.notes.append(f"no environment of the plan falls into shard {asked.shard}")
    return cells, made.notes


def _name_of(asked: MatrixRunCommand) -> str:
    return asked.night or f"{datetime.now(UTC):%Y-%m-%d}"


def night_of(asked: MatrixRunCommand, settings: MatrixRunCommand) -> Night:
    """Raises UsageError: its name is none."""
    try:
        return Night(
            id=_name_of(asked),
            created=Moment.now(),
            command=asked.command_line(ray="auto" if asked.ray else ""),
            mmrepro_version=mmrepro.__version__,
            machine=settings.machine,
            host=host_facts(gpu_models()),
            repeat=settings.repeat or REPEAT,
            confirm=CONFIRM if settings.confirm is None else settings.confirm,
            every_h=settings.every / 3600 if settings.every else None,
            shard=asked.shard,
        )
    except ValueError as error:
        raise UsageError(
            f"{asked.night!r} cannot name a night.",
            hint="letters, digits, dots, dashes",
        ) from error


def _features(group: Rows) -> list[list[str]]:
    """Options of the server, for each row that the features make of one."""
    rows: list[list[str]] = []
    for name in group.feature or [_NONE]:
        rows.append([] if name == _NONE else [f"{{feature:{name}}}"])

    return rows


def _rows(asked: MatrixRunCommand, given: MatrixFile) -> list[Rows]:
    """The file's, those with a scenario of the command line if that names any; or that
    one's."""
    arguments = list(asked.server_args)
    options = list(asked.options)
    if asked.file is None or not given.cell:
        own = Rows(scenario=list(asked.scenarios), server_arg=arguments, option=options)
        return [own] if asked.scenarios else []

    rows = []
    for group in given.cell:
        names = group.scenario
        if asked.scenarios:
            names = [name for name in names if _named(name, asked.scenarios)]
        if names:
            added = {
                "scenario": names,
                "server_arg": group.server_arg + arguments,
                "option": group.option + options,
            }
            rows.append(group.model_copy(update=added))

    if not rows:
        raise UsageError(
            f"{asked.file} has no row of {', '.join(asked.scenarios)}.",
            hint=f"mmrepro matrix run {asked.file} --dry-run",
        )

    return rows


def _named(name: str, wanted: Sequence[str]) -> bool:
    return "all" in wanted or name in wanted or name.partition(":")[0] in wanted
