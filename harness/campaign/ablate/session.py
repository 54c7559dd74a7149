"""The policy of an ablation: its plan, its cells, the runs of each, its document at
every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mmrepro.base.errors import (
    EnvironmentBuildError,
    GpuUnavailable,
    MmreproError,
    NoSpace,
    UnloadableWheel,
    UnwritableOutput,
    UsageError,
)
from mmrepro.base.machine import device_of, is_there
from mmrepro.base.records import Record
from mmrepro.base.units import count
from mmrepro.campaign.ablate.cells import KnownCells, cell_run, error_of
from mmrepro.campaign.ablate.options import AblateCommand
from mmrepro.campaign.ablate.search import (
    AblationResult,
    Flips,
    bound,
    decided,
    search,
    state_of_cell,
    state_of_run,
)
from mmrepro.campaign.events import Established, RunEnded, Tone
from mmrepro.campaign.search import CellSearch, Write
from mmrepro.campaign.trial import cell_of
from mmrepro.campaign.work import StartedRun
from mmrepro.failure.documents import Attempt, Cell as Ran, Lost, Role as RunRole
from mmrepro.failure.documents.searches import (
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
from mmrepro.failure.signature import Outcome
from mmrepro.history import History
from mmrepro.runs import chosen_release, run_key
from mmrepro.scenario import Scenario
from pydantic import Field


class PlannedCell(Record):
    flips: list[str]
    role: Role
    runs: Annotated[int, Field(description="runs that are still to be made")]
    reused: Annotated[int, Field(description="runs that the cache has")]
    seconds: Annotated[float, Field(description="estimate for the runs to be made")]
    command: Annotated[str, Field(description="the command of one of its runs")]


class AblationPlan(Record):
    scenario: str
    variant: str
    engine: str
    release: str
    device: str
    environment: Annotated[str, Field(description="there, or to be built first")]
    cells: list[PlannedCell]
    more: Annotated[int, Field(description="cells that may follow, at most")]
    more_why: str
    seconds: Annotated[float, Field(description="estimate for the cells listed")]
    seconds_each: float
    seconds_from: Annotated[str, Field(description="what the estimate is based on")]


def plan(scenario: Scenario, options: AblateCommand) -> AblationPlan:
    """The cells that are certain, as far as the cache tells what follows. Raises
    UsageError.

    Where a cell's outcome is not known yet, the plan goes on as if its flips changed
    nothing."""
    factors = options.chosen(scenario)
    release = chosen_release(scenario, options.run)
    device = device_of(options.run.device)
    known = KnownCells(scenario, options, release, device)
    each_s, each_why = known.store.estimate()
    cells: list[PlannedCell] = []
    unknown: list[Flips] = []

    def state(flips: Flips, role: Role) -> CellState:
        states = [state_of_run(run) for run in known.first(flips)]
        whole = len(states) >= options.repeat
        # The baseline is always run in full.
        if role != "baseline" and decided(states, options.repeat, options.threshold):
            whole = True
        left = 0 if whole else options.repeat - len(states)
        named = options.scenario or scenario.name
        cell = PlannedCell(
            flips=list(flips),
            role=role,
            runs=left,
            reused=len(states),
            seconds=round(left * each_s, 1),
            command=options.of_cell(flips).command_line(scenario=named),
        )
        cells.append(cell)
        if whole:
            return state_of_cell(states, options.repeat, options.threshold)[0]
        unknown.append(flips)
        return CellState.FAILS

    def states(asked: Sequence[Flips], role: Role) -> list[CellState]:
        return [state(flips, role) for flips in asked]

    search([factor.name for factor in factors], states)
    more, more_why = 0, ""
    if unknown and len(factors) > 1:
        more = 1 + bound(len(factors)) + len(factors)
        more_why = (
            "one if a factor alone is a workaround; more only if none is and "
            "all together are"
        )
    return AblationPlan(
        scenario=scenario.name,
        variant=scenario.variant,
        engine=scenario.engine,
        release=release,
        device=device,
        environment="there" if known.environment is not None else "to be built first",
        cells=cells,
        more=more,
        more_why=more_why,
        seconds=round(sum(cell.seconds for cell in cells), 1),
        seconds_each=round(each_s, 1),
        seconds_from=each_why,
    )


_HOPELESS = (
    NoSpace,
    UnloadableWheel,
    EnvironmentBuildError,
    GpuUnavailable,
    UsageError,
)
"""What a second attempt, or another cell, would meet as well."""
_TRIES = 1000
"""Run N of a cell is number N in the ledger, a further try of it N + _TRIES: --repeat
ends there."""
_STARTS = 2
"""So many starts of a cell's server are counted on, so that each is from a fork server:
runs of different start modes are different experiments."""
_DECLARED = ("name", "description", "failing", "setting", "claim")
_TONES: dict[CellState, Tone] = {CellState.CURED: "good", CellState.FAILS: "bad"}


class Ablating(CellSearch[Ablation]):
    """An ablation in progress. Cells that do not depend on each other run beside each
    other where several places are free."""

    kind, night = "ablation", "ablate"
    root, file, model = "ablations", ABLATION_FILE, Ablation
    parents = _STARTS

    def __init__(
        self, scenario: Scenario, options: AblateCommand, *, write: Write[Ablation]
    ) -> None:
        """``write`` writes the documents below the folder, each time that they have
        grown."""
        self.options, self.factors = options, options.chosen(scenario)
        self.release = chosen_release(scenario, options.run)
        device = device_of(options.run.device)
        self.known = KnownCells(scenario, options, self.release, device)
        self._asked: list[Flips] = []
        self._codes: list[str] = []
        """Of the runs so far, the first one's first."""
        self._error = MmreproError("")
        """Why the latest lost run was lost."""
        super().__init__(scenario, options, device, write, self.release)
        self.works = [self._work]
        self.start = self._cell(())

    def standing(self) -> str:
        return f"{count(len(self.document.cells), 'cell')} done"

    # ------------------------------------------------------------------ the search

    def _work(self) -> None:
        self._conclude(search([factor.name for factor in self.factors], self._states))

    def _states(self, asked: Sequence[Flips], role: Role) -> list[CellState]:
        self._asked += asked
        return self.beside([partial(self._state, flips, role) for flips in asked])

    def _state(self, flips: Flips, role: Role) -> CellState:
        """Run a cell until its state is settled.

        The baseline is always run in full: how often it fails is what the other cells
        are held against."""
        repeat, threshold = self.options.repeat, self.options.threshold
        made: list[tuple[CellRun, bool]] = []
        if role == "baseline":
            numbers = range(1, repeat + 1)
            made = self.beside([partial(self._run, flips, n) for n in numbers])
        while not decided([state_of_run(run) for run, _ in made], repeat, threshold):
            made.append(self._run(flips, len(made) + 1))

        runs = [run for run, _ in made]
        states = [state_of_run(run) for run in runs]
        state, why = state_of_cell(states, repeat, threshold)
        reused = sum(kept for _, kept in made)
        cell = Cell(
            flips=list(flips), role=role, state=state, why=why, runs=runs, reused=reused
        )
        self._add(cell)
        took = sum(run.seconds for run, kept in made if not kept)
        how = "reused" if reused == len(runs) else f"in {took:.1f} s"
        text = f"{_name(flips)}: {state} ({why}), {how}"
        self.campaign.emit(Established(text=text, tone=_TONES.get(state, "unsure")))
        if role == "baseline" and state is CellState.LOST:
            raise self._error
        return state

    def _add(self, cell: Cell) -> None:
        """A cell is whole: the document has it, in the order in which cells were asked
        for."""
        document = self.document
        document.cells.append(cell)
        document.cells.sort(key=lambda known: self._asked.index(tuple(known.flips)))
        if cell.role == "baseline":
            fidelities = [run.fidelity for run in cell.runs if run.fidelity]
            document.fidelity = fidelities[0] if fidelities else None
            document.stand_ins = cell.runs[0].stand_ins
        self.write()

    # ------------------------------------------------------------------ runs

    def _run(self, flips: Flips, number: int) -> tuple[CellRun, bool]:
        """Run ``number`` of a cell, and whether it was made before, for this or another
        ablation.

        A run that is lost to infrastructure is tried once more; then it is recorded as
        lost, and tried again by the next call.

        Raises:
            MmreproError: every other run would meet it as well.
        """
        cell = self._cell(flips)
        parts = self.known.parts(flips)
        before = self._of_before(cell, number, parts)
        if before is not None:
            want = StartedRun(cell.id, before.index, before.role, _name(flips))
            return self._shown(self._made(self.attempt(want), number)), True
        kept = self.known.read(parts, number) if self._of_one_code(parts) else None
        if kept is not None:
            event = RunEnded(
                what=_name(flips),
                index=kept.index,
                outcome=kept.outcome or "lost",
                seconds=kept.seconds,
                kept=True,
            )
            self.campaign.emit(event)
            return self._shown(kept), True
        attempt = self._tried(cell, flips, number, "planned")
        if attempt.lost is Lost.INFRASTRUCTURE:
            attempt = self._tried(cell, flips, number, "retry")
        return self._shown(self._made(attempt, number)), False

    def _cell(self, flips: Flips) -> Ran:
        run = self.options.run
        cell = cell_of(
            self.scenario, run, self.device, release=self.release, flips=flips
        )
        return self.cells.setdefault(cell.id, cell)

    def _of_before(
        self, cell: Ran, number: int, parts: dict[str, str] | None
    ) -> Attempt | None:
        """That run as an earlier call of this ablation made it, if it would be the same
        now.

        One that was made here has the key that it would have now; where another machine
        made it, only its code can be compared."""

        def same(attempt: Attempt) -> bool:
            if parts is None or attempt.machine:
                return parts is None or attempt.parts.get("code") == parts["code"]
            return attempt.key == run_key(parts)

        tries: list[Attempt] = []
        for (name, index), attempt in self.done.items():
            if name == cell.id and index % _TRIES == number % _TRIES:
                tries.append(attempt)
        for attempt in reversed(tries):
            whole = attempt.outcome is not None and same(attempt)
            if whole and self.incident(attempt):
                return attempt
        return None

    def _tried(self, cell: Ran, flips: Flips, number: int, role: RunRole) -> Attempt:
        index = number
        while (cell.id, index) in self.done:
            index += _TRIES
        attempt = self.attempt(StartedRun(cell.id, index, role, _name(flips)))
        if attempt.outcome is None:
            self._error = error_of(attempt, self.incident(attempt))
            if isinstance(self._error, _HOPELESS):
                raise self._error
        return attempt

    def _made(self, attempt: Attempt, number: int) -> CellRun:
        """What the run shows; others may use it as well."""
        whole = self._of_one_code(attempt.parts)
        run = cell_run(
            self.scenario, attempt, self.incident(attempt), number, self.folder
        )
        before = self.done.get((attempt.cell, attempt.index - _TRIES))
        run = run.model_copy(update={"retried": before.error if before else ""})
        if attempt.outcome is not None and attempt.key and whole:
            self.known.store.write(run, attempt.parts)
        return run

    def _of_one_code(self, parts: Mapping[str, str] | None) -> bool:
        """Whether what has these parts is of the same code as the first run: a file may
        be edited meanwhile, and then nothing is kept for others, or taken from them."""
        code = parts.get("code") if parts is not None else None
        if code is not None and code not in self._codes:
            self._codes.append(code)
        return self._codes[:1] == [code]

    def _shown(self, run: CellRun) -> CellRun:
        """With its incident relative to this ablation's folder, if it is below it."""
        inside = Path(run.incident_dir)
        if not inside.is_relative_to(self.folder):
            return run
        return run.model_copy(
            update={"incident_dir": str(inside.relative_to(self.folder))}
        )

    # ------------------------------------------------------------------ the document

    def _conclude(self, result: AblationResult) -> None:
        ablation = self.document
        ablation.conclusion = result.conclusion
        ablation.explanation = result.explanation
        ablation.left_out = result.left_out
        for factor in ablation.factors:
            self._classify(factor, result)
        ablation.cures = []
        for cure in result.cures:
            settings = [self.scenario.factor(name).setting for name in cure.flips]
            found = Cure(
                flips=list(cure.flips),
                settings="; ".join(settings),
                minimal=cure.minimal,
                why=cure.why,
            )
            ablation.cures.append(found)

        ablation.limits = limits(ablation)
        if len(self._codes) > 1:
            ablation.limits.append(
                "the code of the scenario or of mmrepro was edited meanwhile: not all "
                "runs are of the same"
            )
        try:
            ablation.hypotheses = self.scenario.hypotheses(ablation)
        except Exception as error:
            ablation.limits.append(
                "the scenario's hypotheses could not be judged: "
                f"{type(error).__name__}: {error}"
            )

    def _classify(self, factor: FactorResult, result: AblationResult) -> None:
        """What a factor is, and why."""
        judged = result.factors[factor.name]
        factor.factor_class, factor.why = judged.factor_class, judged.why
        factor.cures_alone, factor.needed = judged.cures_alone, judged.needed
        cell = self.document.cell([factor.name])
        if factor.factor_class is FactorClass.NOT_TESTED and cell is not None:
            reasons = [run.without_effect for run in cell.runs if run.without_effect]
            reason = reasons[0] if reasons else ""
            factor.why += f" ({reason})"

    def blank(self, **facts: Any) -> Ablation:
        return Ablation(
            **facts,
            release=self.release,
            repeat=self.options.repeat,
            threshold=self.options.threshold,
            factors=[
                FactorResult(**{n: getattr(f, n) for n in _DECLARED})
                for f in self.factors
            ],
        )

    def check(self, folder: Path, old: Ablation | None) -> None:
        mine = (self.scenario.name, self.scenario.variant, self.release)
        if old is not None:
            same = (old.scenario.name, old.scenario.variant, old.release) == mine
        else:
            same = not is_there(folder / ABLATION_FILE)
        if not same:
            raise UnwritableOutput(
                f"{folder} already holds another ablation.",
                hint="choose another --out, or remove it",
            )

    def night_of(self, history: History) -> str:
        """The newest one is gone on with; what is to be run anew makes one of its
        own."""
        nights = [
            n.night.id for n in history.nights if n.night.id.startswith(self.night)
        ]
        if nights and not self.options.fresh:
            return nights[-1]
        return f"{self.night}-{len(nights) + 1}" if nights else self.night


def _name(flips: Flips) -> str:
    return " + ".join(flips) or "baseline"


def limits(ablation: Ablation) -> list[str]:
    """What the table does not establish, whatever it shows."""
    lines = [
        "every statement is about the factors and settings in the table, in this "
        "scenario's traffic, on this release and device"
    ]
    lines += _luck(ablation)
    for name, why in ablation.left_out.items():
        lines.append(f"{name} is in no combination: {why}")
    for cell in ablation.cells:
        if cell.state is CellState.LOST and cell.runs:
            name = " + ".join(cell.flips) or "the baseline"
            lines.append(f"{name}: no run reached a verdict: {cell.runs[-1].error}")

    cures_alone: set[str] = set()
    for cure in ablation.cures:
        if len(cure.flips) == 1:
            cures_alone.update(cure.flips)
    for cell in ablation.cells:
        cures = sorted(cures_alone & set(cell.flips))
        if cell.role == "together" and cell.state is not CellState.CURED and cures:
            lines.append(
                f"{' + '.join(cell.flips)}: {cell.state}, although {', '.join(cures)} "
                "alone is a workaround: the factors do not simply add up"
            )
    if ablation.conclusion is Conclusion.NO_CURE:
        lines.append("combinations of some, but not all, of the factors were not tried")
    return lines


def _luck(ablation: Ablation) -> list[str]:
    """Where a failure that comes and goes may only seem to be gone."""
    if ablation.repeat == 1:
        return [
            "each cell was run once: a failure that comes and goes may seem to be gone "
            "(--repeat N)"
        ]
    baseline = ablation.cell(())
    if baseline is None:
        return []
    fails, runs = baseline.count(Outcome.REPRODUCED), len(baseline.runs)
    if fails >= runs:
        return []
    luck = (1 - fails / runs) ** ablation.repeat
    return [
        f"the baseline failed in {fails} of {runs} runs: at that "
        f"rate, {ablation.repeat} runs without a failure are luck in {luck:.0%} of "
        "the cases"
    ]
