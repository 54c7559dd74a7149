"""What every format says alike of an ablation: words for classes and states, the table's rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from mmrepro.base.units import duration
from mmrepro.incident import StandIn
from mmrepro.incident.searches import (
    Ablation,
    Cell,
    CellRun,
    CellState,
    Conclusion,
    Cure,
    FactorClass,
)
from mmrepro.reports.words import FIDELITY_WORDS, OUTCOME_WORDS
from mmrepro.signature import Truth

CLASS_WORDS: Final[dict[FactorClass, str]] = {
    FactorClass.NECESSARY: "necessary",
    FactorClass.SUFFICIENT: "sufficient cure",
    FactorClass.CONTRIBUTES: "contributes",
    FactorClass.IRRELEVANT: "irrelevant",
    FactorClass.HIDES: "hides it",
    FactorClass.OTHER: "other failure",
    FactorClass.NOT_TESTED: "not tested",
    FactorClass.INCONCLUSIVE: "inconclusive",
}
CLASS_MEANINGS: Final[dict[FactorClass, str]] = {
    FactorClass.NECESSARY: "the failure needs this setting: flipped alone, symptom and cause are "
    "gone, and nothing else that was tried cures without it",
    FactorClass.SUFFICIENT: "flipped alone, symptom and cause are gone; other flips cure as well",
    FactorClass.CONTRIBUTES: "flipped alone it changes nothing; it is part of a smallest cure",
    FactorClass.IRRELEVANT: "flipped alone, the failure is the same; it is part of no smallest "
    "cure that was found",
    FactorClass.HIDES: "flipped alone, the symptom is gone, but the cause was seen to be still "
    "there",
    FactorClass.OTHER: "flipped alone, it fails in another way",
    FactorClass.NOT_TESTED: "its flip was not seen to take effect, so that its run tells nothing "
    "of it",
    FactorClass.INCONCLUSIVE: "flipped alone, too little could be seen to say",
}
CLASS_TONES: Final[dict[FactorClass, str]] = {
    FactorClass.NECESSARY: "good",
    FactorClass.SUFFICIENT: "good",
    FactorClass.CONTRIBUTES: "good",
    FactorClass.IRRELEVANT: "soft",
    FactorClass.HIDES: "bad",
    FactorClass.OTHER: "unsure",
    FactorClass.NOT_TESTED: "unsure",
    FactorClass.INCONCLUSIVE: "unsure",
}
STATE_WORDS: Final[dict[CellState, str]] = {
    CellState.FAILS: "fails",
    CellState.CURED: "cured",
    CellState.HIDDEN: "hidden: the cause is still there",
    CellState.OTHER: "fails in another way",
    CellState.UNDECIDED: "undecided",
    CellState.NOT_TESTED: "not tested: a flip was not seen to take effect",
    CellState.LOST: "no run reached a verdict",
}
SYMPTOM_WORDS: Final = {Truth.MET: "there", Truth.NOT_MET: "gone", Truth.UNKNOWN: "unknown"}
CAUSE_WORDS: Final = {Truth.MET: "there", Truth.NOT_MET: "gone", Truth.UNKNOWN: "unknown"}
BASELINE: Final = "(the failing baseline)"


@dataclass(frozen=True)
class Row:
    """One row of the table that matters. ``tone``: good, bad, soft or unsure, for colours."""

    factor: str
    failing: str
    setting: str
    outcome: str
    symptom: str
    cause: str
    factor_class: str
    tone: str
    why: str


@dataclass(frozen=True)
class Headline:
    label: str
    tone: str


def headline(ablation: Ablation) -> Headline:
    if ablation.conclusion is None:
        label = {"interrupted": "Interrupted", "failed": "Failed", "complete": "No conclusion"}
        return Headline(label[ablation.state], "unsure")
    return {
        Conclusion.CURE: Headline("Cure found", "good"),
        Conclusion.NO_CURE: Headline("No cure", "bad"),
        Conclusion.INCONCLUSIVE: Headline("Inconclusive", "unsure"),
    }[ablation.conclusion]


def title(ablation: Ablation) -> str:
    return f"Ablation of {name(ablation)} on {ablation.engine} {ablation.release}"


def name(ablation: Ablation) -> str:
    scenario = ablation.scenario
    return f"{scenario.name} ({scenario.variant})" if scenario.variant else scenario.name


def rows(ablation: Ablation) -> list[Row]:
    """The baseline, then every factor as it was flipped alone."""
    table = []
    baseline = ablation.cell(())
    if baseline is not None:
        table.append(
            Row(BASELINE, "", "", *cell_words(baseline), "–", "soft", STATE_WORDS[baseline.state])
        )
    for factor in ablation.factors:
        cell = ablation.cell((factor.name,))
        words = cell_words(cell) if cell is not None else ("not run", "", "")
        chosen = factor.factor_class
        table.append(
            Row(
                factor.name,
                factor.failing,
                factor.setting,
                *words,
                CLASS_WORDS[chosen] if chosen else "–",
                CLASS_TONES[chosen] if chosen else "soft",
                factor.why,
            )
        )
    return table


def cell_words(cell: Cell) -> tuple[str, str, str]:
    """Outcome, symptom and cause of a cell, over its runs."""
    return (
        _counted([outcome_word(run) for run in cell.runs]),
        _counted([SYMPTOM_WORDS[run.symptom] for run in cell.runs]),
        _counted([CAUSE_WORDS[run.cause] for run in cell.runs]),
    )


def outcome_word(run: CellRun) -> str:
    return OUTCOME_WORDS[run.outcome].lower() if run.outcome else "no verdict"


def _counted(words: list[str]) -> str:
    """``gone``, or ``2 × gone, 1 × there``; ``reproduced (3 of 3)`` where several runs agree."""
    count = Counter(words)
    if len(count) == 1:
        return words[0] if len(words) == 1 else f"{words[0]} ({len(words)} of {len(words)})"
    return ", ".join(f"{number} × {word}" for word, number in count.most_common())


def flips_words(cell: Cell) -> str:
    return " + ".join(cell.flips) or BASELINE


def cure_words(cure: Cure) -> str:
    return " + ".join(cure.flips)


def classes(ablation: Ablation) -> list[tuple[str, str]]:
    """The classes that occur, with their meaning."""
    used = {f.factor_class for f in ablation.factors}
    return [(CLASS_WORDS[c], CLASS_MEANINGS[c]) for c in FactorClass if c in used]


def stand_ins(ablation: Ablation) -> list[tuple[StandIn, str]]:
    """Every stand-in of every cell, and where it was."""
    always = {s.name for s in ablation.stand_ins}
    by_name = {s.name: (s, "every run") for s in ablation.stand_ins}
    for cell in ablation.cells:
        for run in cell.runs:
            for stand_in in run.stand_ins:
                if stand_in.name not in always and stand_in.name not in by_name:
                    by_name[stand_in.name] = (stand_in, f"runs with {flips_words(cell)}")
    return list(by_name.values())


def setup(ablation: Ablation) -> list[tuple[str, str]]:
    fidelity = ablation.fidelity
    seconds = sum(run.seconds for cell in ablation.cells for run in cell.runs)
    return [
        ("engine", f"{ablation.engine} {ablation.release}"),
        ("device", ablation.device),
        ("fidelity", f"{fidelity}: {FIDELITY_WORDS[fidelity]}" if fidelity else "unknown"),
        ("runs of each cell", f"{ablation.repeat}; {ablation.threshold} failing make it fail"),
        (
            "runs",
            f"{ablation.runs} in {len(ablation.cells)} cells, {ablation.reused} of them reused; "
            f"{duration(seconds)} of engine time in all",
        ),
        ("host", f"{ablation.host.cpu}, {ablation.host.cores} cores, {ablation.host.os}"),
        ("made by", f"mmrepro {ablation.mmrepro_version}"),
    ]
