"""What pytest collects and runs of mmrepro: the jobs of a ``*.mmrepro.toml``, and what
the marker ``@pytest.mark.mmrepro`` and its fixture ``mmrepro_run`` ask for."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.base.records import Misfit, plain_refusal
from mmrepro.base.text import one_line
from mmrepro.campaign import (
    CONFIRM,
    INCIDENTS,
    REPEAT,
    RUN_TIMEOUT_S,
    EnvironmentGroup,
    TrialOptions,
    cell_of,
    groups_of,
    incident_in,
)
from mmrepro.campaign.matrix import (
    Device,
    MatrixFile,
    MatrixRunCommand,
    Seconds,
    Texts,
    load_matrix,
    matrix_plan,
    night_options,
    planned,
)
from mmrepro.failure.documents import Attempt, Cell, Incident, Planned, unused_folder
from mmrepro.failure.signature import Outcome
from mmrepro.history import JobState, Quarantine, load_quarantine
from mmrepro.pytest_plugin.running import CellResult, How, Runs, failure, sentence
from mmrepro.pytest_plugin.settings import (
    FIXTURE,
    MARKER,
    PROPERTY,
    SUFFIX,
    MmreproWarning,
    out_folder,
    session_name,
)
from mmrepro.reports.documents import MARKDOWN_FILE
from mmrepro.runs import RunCommand, split_variant, target
from mmrepro.scenario.registry import load_scenario
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError


class MatrixToml(pytest.File):
    """The file: what it plans, and what all its cells share."""

    given: MatrixFile
    quarantine: Quarantine

    def collect(self) -> Iterator[EnvironmentCells]:
        try:
            self.given = load_matrix(self.path)
            named = self.given.matrix.quarantine
            self.quarantine = load_quarantine(named) if named else Quarantine()
            # pytest runs the Python of a folder that it collects, this plug-in or not.
            over = MatrixRunCommand(trust=True)
            made = matrix_plan(self._night, self.given.cell, over, self.given.matrix)
        except MmreproError as error:
            raise self.CollectError(sentence(error)) from None

        warnings = self.quarantine.warnings(
            (p.cell for p in made.cells), datetime.now(UTC)
        )
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
    def selected(self) -> dict[EnvironmentCells, EnvironmentGroup]:
        """The cells that this pytest run is to run, by environment."""
        cells: dict[EnvironmentCells, list[Planned]] = {}
        for item in self.session.items:
            if isinstance(item, CellItem) and item.toml is self:
                cells.setdefault(item.environment, []).append(item.planned)
        return {one: groups_of(some)[0] for one, some in cells.items()}

    def after(self, environment: EnvironmentCells) -> EnvironmentGroup | None:
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

    A scope of its own, so that ``--dist loadscope`` of pytest-xdist gives them to one
    worker."""

    def __init__(self, *, group: EnvironmentGroup, **rest: Any) -> None:
        super().__init__(**rest)
        self.group = group

    @property
    def toml(self) -> MatrixToml:
        return cast(MatrixToml, self.parent)

    def collect(self) -> Iterator[CellItem]:
        names: set[str] = set()
        for member in self.group.cells:
            cell = member.cell
            name = one_line(_row(cell, self.path.parent), 300).replace("::", ":")
            name = f"{name} ({cell.id[-8:]})" if name in names else name
            names.add(name)
            yield CellItem.from_parent(self, name=name, planned=member)

    def teardown(self) -> None:
        self.toml.runs.leave()


class CellItem(pytest.Item):
    """A cell: it is run in the set-up, where a failure is an error, and judged as a
    test."""

    ran: CellResult | None = None

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

        self.ran = CellResult(
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
    """A cell's row, with a scenario's file named relative to ``folder``: the name of a
    test does not depend on where pytest is started."""
    if not cell.scenario.endswith(".py"):
        return cell.row
    return cell.model_copy(
        update={"scenario": os.path.relpath(cell.scenario, folder)}
    ).row


_RAN = pytest.StashKey[CellResult]()


def _pairs(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return [name if said is True else f"{name}={said}" for name, said in value.items()]


class RunArguments(BaseModel):
    """The arguments of the marker, and of a call of the fixture."""

    model_config = ConfigDict(extra="forbid")

    scenario: str
    release: str = ""
    variant: str = ""
    device: Device = "auto"
    mitigations: Texts = []
    options: Annotated[Texts, BeforeValidator(_pairs)] = []
    server_args: Texts = []
    timeout: Seconds = RUN_TIMEOUT_S

    def planned(self) -> Planned:
        """The cell. Raises UsageError: there is none such."""
        scenario = load_scenario(self.scenario).with_variant(self.variant)
        wanted = RunCommand(
            scenario=self.scenario,
            variant=self.variant,
            release=self.release,
            device=self.device,
            mitigations=tuple(dict.fromkeys(self.mitigations)),
            server_args=tuple(self.server_args),
            options=tuple(self.options),
        )
        spec = target(scenario, wanted)
        return planned(
            "", scenario, cell_of(scenario, wanted, spec.device, release=spec.release)
        )


def prepare(item: pytest.Item) -> None:
    """Run what the marker of ``item`` asks for, unless that was done."""
    marker = item.get_closest_marker(MARKER)
    if (
        marker is None
        or _RAN in item.stash
        or item.config.getoption("setupplan", False)
    ):
        return

    try:
        ran = _run(item, marker.args, marker.kwargs)
    except UsageError as error:
        raise failure(f"@pytest.mark.{MARKER}: {sentence(error)}") from None
    except (MmreproError, OSError) as error:
        raise failure(sentence(error)) from None

    item.stash[_RAN] = ran
    item.user_properties += ran.properties
    ran.check_learnt(item.config)


def judge(item: pytest.Item) -> None:
    """Fail ``item`` for a verdict that was not expected, if it does not ask for the run
    itself."""
    if FIXTURE not in getattr(item, "fixturenames", ()) and (
        ran := item.stash.get(_RAN, None)
    ):
        ran.check_expected()


def fixture_of(item: pytest.Item) -> MmreproRun:
    """Raises what :func:`prepare` does."""
    prepare(item)
    return MmreproRun(item, item.stash.get(_RAN, None))


class FinishedRun:
    """One run of a scenario on a real engine."""

    def __init__(self, ran: CellResult | None) -> None:
        self._made = ran

    def __repr__(self) -> str:
        if self._made is None:
            return "<no run>"
        return f"<{self._made.what}: {self.outcome}, {self.expected} was expected>"

    @property
    def outcome(self) -> Outcome:
        """A text too: ``run.outcome == "reproduced"``."""
        return Outcome(self._ran.settled.state)

    @property
    def expected(self) -> Outcome | None:
        """By the scenario, of that release with these mitigations."""
        return self._ran.expected

    @property
    def as_expected(self) -> bool:
        """Also where nothing was expected; never of an inconclusive run."""
        return self._ran.settled.as_expected is not False and self.conclusive

    @property
    def conclusive(self) -> bool:
        return self._ran.settled.state is not JobState.INCONCLUSIVE

    @property
    def explanation(self) -> str:
        return self._attempt.explanation

    @property
    def key(self) -> str:
        """Runs with one key are the same experiment."""
        return self._attempt.key

    @property
    def command(self) -> str:
        return self._attempt.command

    @property
    def folder(self) -> Path:
        assert self._ran.folder is not None
        return self._ran.folder

    @property
    def report(self) -> Path:
        return self.folder / MARKDOWN_FILE

    @cached_property
    def incident(self) -> Incident:
        """All of it: conditions, claims, requests, evidence."""
        incident = incident_in(self.folder)
        assert incident is not None
        return incident

    @property
    def _ran(self) -> CellResult:
        if self._made is None:
            raise AttributeError(
                f"nothing was run: the test has no @pytest.mark.{MARKER}; "
                f'{FIXTURE}("SCENARIO") runs one'
            )
        return self._made

    @property
    def _attempt(self) -> Attempt:
        assert self._ran.shown is not None
        return self._ran.shown


class MmreproRun(FinishedRun):
    """The run of the marker, and a function that makes more."""

    def __init__(self, item: pytest.Item, ran: CellResult | None) -> None:
        super().__init__(ran)
        self._item = item

    def __call__(self, *arguments: Any, **named: Any) -> FinishedRun:
        """Run a scenario; the arguments are the marker's. What is inconclusive comes
        back as well.

        Raises:
            UsageError: there is no such scenario, release, variant, ….
            pytest.fail.Exception: infrastructure failed, twice.
        """
        __tracebackhide__ = True
        try:
            ran = _run(self._item, arguments, named)
        except UsageError as error:  # shown where it was called
            raise type(error)(error.message, hint=error.hint) from None

        if ran.folder is not None:
            self._item.user_properties += [
                p for p in ran.properties if p[0] == _INCIDENT
            ]

        try:
            if ran.settled.state is not JobState.INCONCLUSIVE:
                ran.check_learnt(self._item.config)
        except pytest.fail.Exception as error:
            raise pytest.fail.Exception(error.msg) from None

        return FinishedRun(ran)


_INCIDENT = f"{PROPERTY}incident"


def _run(
    item: pytest.Item, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> CellResult:
    asked = _asked(item, arguments, named)
    cell = asked.planned()
    root, (group,) = out_folder(item.config), groups_of([cell])
    name = re.sub(r"[^A-Za-z0-9.]+", "-", item.nodeid).strip("-.")[-100:]
    below = root / INCIDENTS
    night = unused_folder(below / session_name(item.config) / name).relative_to(below)
    runs = Runs(How(root, str(night), TrialOptions(timeout_s=asked.timeout)))
    with contextlib.closing(runs):
        attempts = runs.run(group, cell)
    return CellResult(
        what=f"{cell.cell.row} on {group.name}",
        planned=cell,
        attempts=tuple(attempts),
        root=root,
        here=item.config.invocation_params.dir,
        named=True,
    )


def _asked(
    item: pytest.Item, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> RunArguments:
    """Raises UsageError: one argument, or more, is not as it has to be."""
    example = f'{MARKER}("ghost-key-eviction", release="0.23.0")'
    if len(arguments) > 1:
        raise UsageError("Only the scenario is given without a name.", hint=example)
    try:
        asked = RunArguments(
            **dict(zip(("scenario",), arguments, strict=False)), **named
        )
    except (ValidationError, TypeError) as error:
        raise UsageError(f"{_why(error)}.", hint=example) from None

    asked.scenario, asked.variant = split_variant(asked.scenario, asked.variant)
    if asked.scenario.endswith(".py"):
        asked.scenario = os.path.relpath(item.path.parent / asked.scenario)
    return asked


def _why(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return "The scenario is given twice"
    first = error.errors(include_url=False, include_input=False)[0]
    name = first["loc"][0]
    if first["type"] == "extra_forbidden":
        known = ", ".join(inspect.signature(RunArguments).parameters)
        return f"There is no argument {name!r}; there are: {known}"
    if first["type"] == "missing":
        return f"The argument {name!r} is missing"
    misfit = Misfit((), first["type"], plain_refusal(first["msg"]))
    return misfit.sentence_of(f"The argument {name!r}")
