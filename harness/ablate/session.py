"""An ablation from start to end: environment, cells, conclusion, and its files at every step."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import mmrepro
from mmrepro.ablate.cells import Cells
from mmrepro.ablate.options import AblateCommand
from mmrepro.ablate.search import Flips, Search, search
from mmrepro.ablate.states import decided, state_of_cell, state_of_run
from mmrepro.ablate.store import CellStore
from mmrepro.engines import get_engine
from mmrepro.environments.build import ensure
from mmrepro.environments.spec import Environment, EnvironmentSpec
from mmrepro.errors import MmreproError, UnwritableOutput
from mmrepro.evidence import Event
from mmrepro.incident.ablation import (
    ABLATION_FILE,
    Ablation,
    Cell,
    CellRun,
    CellState,
    Conclusion,
    Cure,
    FactorClass,
    FactorResult,
    Role,
)
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.machine.cache import cache_root, device_of
from mmrepro.machine.facts import host_facts
from mmrepro.machine.files import is_there
from mmrepro.records import Moment
from mmrepro.run.key import gpu_models
from mmrepro.run.launch import chosen_release
from mmrepro.run.starter import Starter
from mmrepro.scenario import Scenario
from mmrepro.signature import Outcome
from mmrepro.text.redact import Redactor
from pydantic import ValidationError

DEFAULT_ROOT = "ablations"
NOT_ENDED = "the ablation has not ended"
MakeCells = Callable[..., Cells]


class Watcher(Protocol):
    """Is told how an ablation goes; the live table is one."""

    def event(self, event: Event) -> None:
        """Of the run in progress."""

    def began(self, flips: Flips, role: Role, index: int) -> None:
        """A run is looked for in the cache, or started."""

    def ended(self, cell: Cell) -> None:
        """A cell is whole."""


class Ablating:
    """An ablation in progress. ``ablation`` is valid, if partial, at every moment."""

    def __init__(
        self,
        scenario: Scenario,
        options: AblateCommand,
        watcher: Watcher | None = None,
        make_cells: MakeCells | None = None,
        *,
        write: Callable[[Ablation, Path], object],
        report: Callable[[Path], object],
    ) -> None:
        """``write`` writes the ablation's documents below its folder, each time that it has
        grown; ``report`` the reports of one run."""
        self.scenario = scenario
        self.options = options
        self.watcher = watcher
        self.factors = options.chosen(scenario)
        self.release = chosen_release(scenario, options.run)
        self.device = device_of(options.run.device)
        self.store = CellStore(scenario.full_name, scenario.engine, self.release, self.device)
        self.dir = self._folder()
        self.ablation = self._blank()
        self.make_cells = make_cells or Cells
        self._cells: Cells | None = None
        self._write_documents, self._report = write, report

    @property
    def names(self) -> list[str]:
        return [factor.name for factor in self.factors]

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; finished cells come from the cache."""
        return self._command(out=self.dir)

    def _command(self, **changed: Any) -> str:
        name = self.options.scenario or self.scenario.name
        return self.options.command_line(scenario=name, **changed)

    def execute(self) -> Ablation:
        """Run to the conclusion. The files are on disk afterwards, whatever happened.

        Raises:
            MmreproError: infrastructure that no cell can do without, or usage.
            KeyboardInterrupt: the partial ablation is on disk.
        """
        try:
            environment = ensure(self._spec(), progress=self._tell)
            several = Starter(self.options.run.start_mode, several=True)
            with environment.in_use(), several as starter:
                self._cells = self._prepared(environment, starter)
                found = search(self.names, self._cell)
            self._conclude(found)
        except KeyboardInterrupt:
            self._end("interrupted", f"interrupted; to resume, run: {self.resume_command}")
            raise
        except MmreproError as error:
            self._end("failed", error.message)
            raise
        except BaseException as error:
            self._end("failed", f"mmrepro itself failed: {type(error).__name__}: {error}")
            raise
        self._end("complete")
        return self.ablation

    # ------------------------------------------------------------------ cells

    def _cell(self, flips: Flips, role: Role) -> CellState:
        """The oracle of the search: runs a cell until its state is settled.

        The baseline is always run in full: how often it fails is what the other cells are held
        against.
        """
        repeat, threshold = self.options.repeat, self.options.threshold
        runs: list[CellRun] = []
        reused = 0
        while len(runs) < repeat:
            settled = decided([state_of_run(r) for r in runs], repeat, threshold)
            if settled and role != "baseline":
                break
            run, kept = self._run(flips, role, len(runs) + 1)
            runs.append(run)
            reused += kept
        state, why = state_of_cell([state_of_run(r) for r in runs], repeat, threshold)
        cell = Cell(flips=list(flips), role=role, state=state, why=why, runs=runs, reused=reused)
        self.ablation.cells.append(cell)
        if role == "baseline":
            self._note_baseline(cell)
        self._write()
        if self.watcher is not None:
            self.watcher.ended(cell)
        return state

    def _run(self, flips: Flips, role: Role, index: int) -> tuple[CellRun, bool]:
        assert self._cells is not None
        if self.watcher is not None:
            self.watcher.began(flips, role, index)
        run, kept = self._cells.run(flips, index)
        inside = Path(run.incident_dir)
        if inside.is_relative_to(self.dir):
            run = run.model_copy(update={"incident_dir": str(inside.relative_to(self.dir))})
        return run, kept

    def _note_baseline(self, cell: Cell) -> None:
        self.ablation.fidelity = next((r.fidelity for r in cell.runs if r.fidelity), None)
        self.ablation.stand_ins = cell.runs[0].stand_ins
        error = self._cells.last_error if self._cells is not None else None
        if cell.state is CellState.LOST and error is not None:
            raise error

    # ------------------------------------------------------------------ the end

    def _conclude(self, found: Search) -> None:
        ablation = self.ablation
        ablation.conclusion, ablation.explanation = found.conclusion, found.explanation
        ablation.left_out = found.left_out
        for factor in ablation.factors:
            judged = found.factors[factor.name]
            factor.factor_class, factor.why = judged.factor_class, judged.why
            factor.cures_alone, factor.needed = judged.cures_alone, judged.needed
            cell = ablation.cell([factor.name])
            if factor.factor_class is FactorClass.NOT_TESTED and cell is not None:
                seen = next(filter(None, (run.without_effect for run in cell.runs)), "")
                factor.why += f" ({seen})"
        ablation.cures = [
            Cure(
                flips=list(cure.flips),
                settings="; ".join(self.scenario.factor(n).setting for n in cure.flips),
                minimal=cure.minimal,
                why=cure.why,
            )
            for cure in found.cures
        ]
        ablation.limits = limits(ablation)
        try:
            ablation.hypotheses = self.scenario.hypotheses(ablation)
        except Exception as error:
            ablation.limits.append(
                f"the scenario's hypotheses could not be judged: {type(error).__name__}: {error}"
            )

    def _end(self, state: str, failure: str = "") -> None:
        self.ablation.state = state  # type: ignore[assignment]
        self.ablation.failure = failure
        self.ablation.finished = Moment.now()
        self._write()

    def _write(self) -> None:
        self._write_documents(Redactor().redact_model(self.ablation), self.dir)

    # ------------------------------------------------------------------ set-up

    def _spec(self) -> EnvironmentSpec:
        return get_engine(self.scenario.engine).environment_spec(self.release, self.device)

    def _prepared(self, environment: Environment, starter: Starter) -> Cells:
        return self.make_cells(
            scenario=self.scenario,
            options=self.options,
            environment=environment,
            model=self.scenario.model.write(cache_root() / "models"),
            store=self.store,
            folder=self.dir,
            starter=starter,
            report=self._report,
            listener=self.watcher.event if self.watcher is not None else None,
        )

    def _tell(self, text: str) -> None:
        if self.watcher is not None:
            now = Moment.now()
            self.watcher.event(Event(at=now, phase="start", source="environment", text=text))

    def _folder(self) -> Path:
        """A new folder, or the one of the same ablation that is to be gone on with."""
        name = self.scenario.full_name
        if self.options.out is None:
            return prepared(new_folder(DEFAULT_ROOT, name, self.release))
        file = self.options.out / ABLATION_FILE
        if is_there(file):
            try:
                old = Ablation.model_validate_json(file.read_bytes())
            except (OSError, ValidationError):
                old = None
            mine = (self.scenario.name, self.scenario.variant, self.release)
            if old is None or (old.scenario.name, old.scenario.variant, old.release) != mine:
                raise UnwritableOutput(
                    f"{self.options.out} already holds another ablation.",
                    hint="choose another --out, or remove it",
                )
        return prepared(self.options.out)

    def _blank(self) -> Ablation:
        scenario = self.scenario
        return Ablation(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            created=Moment.now(),
            state="interrupted",
            failure=f"{NOT_ENDED}; to resume, run: {self.resume_command}",
            command=self._command(),
            scenario=scenario.facts,
            engine=scenario.engine,
            release=self.release,
            device=self.device,
            host=host_facts(gpu_models(self.device)),
            repeat=self.options.repeat,
            threshold=self.options.threshold,
            factors=[
                FactorResult(
                    name=f.name,
                    description=f.description,
                    failing=f.failing,
                    setting=f.setting,
                    claim=f.claim,
                )
                for f in self.factors
            ],
        )


def limits(ablation: Ablation) -> list[str]:
    """What the table does not establish, whatever it shows."""
    found = [
        "every statement is about the factors and settings in the table, in this scenario's "
        "traffic, on this release and device"
    ]
    baseline = ablation.cell(())
    if ablation.repeat == 1:
        found.append(
            "each cell was run once: a failure that comes and goes may look cured (--repeat N)"
        )
    elif baseline is not None and (fails := baseline.count(Outcome.REPRODUCED)) < len(
        baseline.runs
    ):
        luck = (1 - fails / len(baseline.runs)) ** ablation.repeat
        found.append(
            f"the baseline failed in {fails} of {len(baseline.runs)} runs: at that rate, "
            f"{ablation.repeat} runs without a failure are luck in {luck:.0%} of the cases"
        )
    found += [f"{name} is in no combination: {why}" for name, why in ablation.left_out.items()]
    for cell in ablation.cells:
        if cell.state is CellState.LOST and cell.runs:
            name = " + ".join(cell.flips) or "the baseline"
            found.append(f"{name}: no run reached a verdict: {cell.runs[-1].error}")
    together = [
        c for c in ablation.cells if c.role == "together" and c.state is not CellState.CURED
    ]
    alone = {name for c in ablation.cures if len(c.flips) == 1 for name in c.flips}
    found += [
        f"{' + '.join(c.flips)}: {c.state}, although {', '.join(sorted(alone & set(c.flips)))} "
        "alone cures: the factors do not simply add up"
        for c in together
        if alone & set(c.flips)
    ]
    if ablation.conclusion is Conclusion.NO_CURE:
        found.append("combinations of some, but not all, of the factors were not tried")
    return found
