"""An ablation's report: ``ablation.json`` as a page. Which setting is really the
cause."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from mmrepro.base.records import StandIn
from mmrepro.base.units import duration
from mmrepro.failure.documents.searches import (
    ABLATION_FILE,
    Ablation,
    Cell,
    CellRun,
    CellState,
    Conclusion,
    FactorClass,
    FactorResult,
)
from mmrepro.failure.signature import Truth
from mmrepro.reports import blocks as b, words
from mmrepro.reports.documents import kind

_FOUND: Final = 8
"""Factors on the first screen."""
_CLASSES: Final[dict[FactorClass, tuple[str, b.Tone, str]]] = {
    FactorClass.NECESSARY: (
        "necessary",
        "good",
        "the failure needs this setting: toggled alone, symptom and cause are "
        "gone, and no workaround that was tried does without it",
    ),
    FactorClass.SUFFICIENT: (
        "sufficient workaround",
        "good",
        "toggled alone, symptom and cause are gone; there are other workarounds",
    ),
    FactorClass.CONTRIBUTES: (
        "contributes",
        "good",
        "toggled alone it changes nothing; it is part of a smallest workaround",
    ),
    FactorClass.IRRELEVANT: (
        "irrelevant",
        "soft",
        "toggled alone, the failure is the same; it is part of no smallest "
        "workaround that was found",
    ),
    FactorClass.HIDES: (
        "hides it",
        "bad",
        "toggled alone, the symptom is gone, but the cause was observed to be "
        "still there",
    ),
    FactorClass.OTHER: (
        "other failure",
        "unsure",
        "toggled alone, it fails in another way",
    ),
    FactorClass.NOT_TESTED: (
        "not tested",
        "unsure",
        "the toggle was not observed to take effect, so that its run shows nothing",
    ),
    FactorClass.INCONCLUSIVE: (
        "inconclusive",
        "unsure",
        "toggled alone, too little was observed to decide",
    ),
}
"""Of each class: its word, its tone and its meaning."""
_STATES: Final[dict[CellState, str]] = {
    CellState.FAILS: "fails",
    CellState.CURED: "symptom and cause gone",
    CellState.HIDDEN: "hidden: the cause is still there",
    CellState.OTHER: "fails in another way",
    CellState.UNDECIDED: "undecided",
    CellState.NOT_TESTED: "not tested: a toggle was not observed to take effect",
    CellState.LOST: "no run reached a verdict",
}
_THERE: Final = {Truth.MET: "there", Truth.NOT_MET: "gone", Truth.UNKNOWN: "unknown"}
_BADGES: Final = {
    Conclusion.CURE: b.Badge("Workaround found", "good"),
    Conclusion.NO_CURE: b.Badge("No workaround", "bad"),
    Conclusion.INCONCLUSIVE: b.Badge("Inconclusive", "unsure"),
}
_BASELINE: Final = "(the failing baseline)"


def compose(ablation: Ablation) -> b.Page:
    """Compose the page of an ablation."""
    name = words.scenario_name(ablation.scenario)
    where = f"{name} on {ablation.engine} {ablation.release}"
    fidelity = f", fidelity {ablation.fidelity}" if ablation.fidelity else ""
    failure = ablation.failure and words.sentence(ablation.failure)
    return b.Page(
        title=f"Ablation of {where}",
        badge=_badge(ablation),
        subject=where + fidelity,
        warning=b.broken_off(failure, began=bool(ablation.cells)),
        card=[*_card(ablation)],
        counts=[*_counts(ablation)],
        commands=[("run again", ablation.command)],
        sections=[*_sections(ablation)],
        footer=words.footer(
            f"Ablation {ablation.id}", ablation.created, ABLATION_FILE, words.RUNS
        ),
    )


def _sections(ablation: Ablation) -> Iterator[b.Section]:
    hypotheses = words.claims(ablation.hypotheses, "status", "hypothesis", "hypotheses")
    limits = b.bullets(ablation.limits)
    stand_ins = words.stand_ins(_stand_ins(ablation), "in")
    yield b.Section("Which setting is the cause", [*_factors(ablation)], keep=97)
    yield b.Section("Smallest workarounds", _workarounds(ablation), keep=95)
    yield b.Section("The report's hypotheses", hypotheses, keep=93)
    yield b.Section("What this does not establish", limits, keep=85)
    yield b.Section("Every run", _runs(ablation), keep=60)
    yield b.Section("Stand-ins", stand_ins, keep=65)
    yield b.Section("Set-up", [b.Facts(_setup(ablation))], keep=50)


def _badge(ablation: Ablation) -> b.Badge:
    if ablation.conclusion is not None:
        return _BADGES[ablation.conclusion]
    labels = {
        "interrupted": "Interrupted",
        "failed": "Failed",
        "complete": "No conclusion",
    }
    return b.Badge(labels[ablation.state], "unsure")


def _outcome_word(run: CellRun) -> str:
    return run.outcome.words if run.outcome else "no verdict"


def cell_words(cell: Cell | None) -> tuple[str, str, str]:
    """Outcome, symptom and cause of a cell, over its runs."""
    if cell is None:
        return "not run", "", ""
    outcomes = []
    symptoms = []
    causes = []
    for run in cell.runs:
        outcomes.append(_outcome_word(run))
        symptoms.append(_THERE[run.symptom])
        causes.append(_THERE[run.cause])

    return _counted(outcomes), _counted(symptoms), _counted(causes)


def _counted(given: Sequence[str]) -> str:
    """``gone``, or ``2 × gone, 1 × there``; ``reproduced (3 of 3)`` where several runs
    agree."""
    counts = Counter(given)
    many = len(given)
    if len(counts) == 1:
        return given[0] if many == 1 else f"{given[0]} ({many} of {many})"
    return ", ".join(f"{number} × {word}" for word, number in counts.most_common())


# --------------------------------------------------------------------- the first screen


def _card(ablation: Ablation) -> Iterator[b.Block]:
    if ablation.explanation:
        yield b.p(b.strong(words.capital(words.sentence(ablation.explanation))))
    unimportant = (None, FactorClass.IRRELEVANT)
    rows = []
    for factor in ablation.factors:
        if factor.factor_class not in unimportant:
            rows.append(_alone(ablation, factor))

    yield from b.table(_ALONE, rows[:_FOUND], "factors that matter")
    more = len(rows) - _FOUND
    if more > 0:
        yield b.p(f"{more} more factors matter.", tone="soft")


def _counts(ablation: Ablation) -> Iterator[str]:
    cells = b.count(len(ablation.cells), "cell")
    reused = f", {ablation.reused} of them reused" if ablation.reused else ""
    yield f"{b.count(ablation.runs, 'run')} in {cells}{reused}"
    classes = Counter(factor.factor_class for factor in ablation.factors)
    irrelevant, unjudged = classes[FactorClass.IRRELEVANT], classes[None]
    if irrelevant:
        yield f"{b.count(irrelevant, 'factor')} irrelevant"
    if unjudged:
        yield f"{b.count(unjudged, 'factor')} not judged"
    yield from words.claim_counts(ablation.hypotheses, "hypothesis", "hypotheses")


# ----------------------------------------------------------------------------- sections


def _factors(ablation: Ablation) -> Iterator[b.Block]:
    """The baseline and every factor as it was toggled alone."""
    used = {factor.factor_class for factor in ablation.factors}
    meanings = []
    for factor_class, (word, _, meaning) in _CLASSES.items():
        if factor_class in used:
            meanings.append((b.strong(word), f": {meaning}."))

    yield from b.bullets(meanings)
    yield b.p(
        "Each factor is toggled alone. Of a run without the symptom, the cause is what "
        "was still observed."
    )
    rows = []
    whys = []
    baseline = ablation.cell(())
    if baseline:
        cells = cell_words(baseline)
        rows.append(b.row(_BASELINE, "–", *cells, "", "", tone="soft"))

    for factor in ablation.factors:
        failing = b.code(factor.failing)
        status = str(factor.factor_class or "")
        rows.append(b.row(*_alone(ablation, factor), failing, status=status))
        if factor.why:
            whys.append((factor.name, factor.why, factor.claim, factor.description))

    yield from b.table(f"{_ALONE} | failing setting", rows, "factors")
    heads = "factor:name | why | what the report claims | what it is"
    yield from b.folded("Why each class", b.table(heads, whys, "why each class"))


_ALONE: Final = "factor:name | class:name | outcome | symptom | cause | toggled to"


def _alone(ablation: Ablation, factor: FactorResult) -> tuple[b.Inline, ...]:
    """What came of the factor, toggled alone."""
    name: b.Inline = "–"
    if factor.factor_class:
        word, tone, _ = _CLASSES[factor.factor_class]
        name = b.toned(word, tone)
    cells = cell_words(ablation.cell((factor.name,)))
    return (factor.name, name, *cells, b.code(factor.setting))


def _workarounds(ablation: Ablation) -> list[b.Block]:
    rows = []
    for cure in ablation.cures:
        rows.append((" + ".join(cure.flips), b.code(cure.settings), cure.why))

    return b.table("toggle:name | setting | observed", rows, "smallest workarounds")


def _runs(ablation: Ablation) -> list[b.Block]:
    rows = []
    for cell in ablation.cells:
        for run in cell.runs:
            row = b.row(
                _toggled(cell),
                run.error or _outcome_word(run),
                run.symptom_observed,
                f"{_THERE[run.cause]}: {run.cause_observed}",
                _STATES[cell.state],
                duration(run.seconds),
                words.run_link(run.incident_dir),
                status=cell.state.value,
            )
            rows.append(row)

    heads = (
        "toggled:name | run | symptom | cause | all of its runs | took:number "
        "| incident"
    )
    return b.counted("run", heads, rows, most=0)


def _toggled(cell: Cell) -> str:
    return " + ".join(cell.flips) or _BASELINE


def _stand_ins(ablation: Ablation) -> list[tuple[StandIn, str]]:
    """Every stand-in of every cell, and where it was."""
    places: dict[str, tuple[StandIn, str]] = {}
    for stand_in in ablation.stand_ins:
        places[stand_in.name] = (stand_in, "every run")

    for cell in ablation.cells:
        where = f"runs with {_toggled(cell)}"
        for run in cell.runs:
            for stand_in in run.stand_ins:
                places.setdefault(stand_in.name, (stand_in, where))

    return list(places.values())


def _setup(ablation: Ablation) -> list[tuple[str, b.Inline]]:
    seconds = 0.0
    for cell in ablation.cells:
        for run in cell.runs:
            seconds += run.seconds

    threshold = f"{ablation.threshold} failing make it fail"
    cells = f"{len(ablation.cells)} cells, {ablation.reused} of them reused"
    took = f"{duration(seconds)} of engine time in all"
    return [
        ("engine", f"{ablation.engine} {ablation.release}"),
        ("device", ablation.device),
        ("fidelity", words.fidelity_words(ablation.fidelity)),
        ("scenario", b.prose(ablation.scenario.title)),
        ("runs of each cell", f"{ablation.repeat}; {threshold}"),
        ("runs", f"{ablation.runs} in {cells}; {took}"),
        *words.made_on(ablation.host, ablation.mmrepro_version),
    ]


KIND: Final = kind(Ablation, ABLATION_FILE, compose)
