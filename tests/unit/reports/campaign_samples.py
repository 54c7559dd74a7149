"""An ablation, a bisection and an acceptance, made up and always the same."""

from datetime import UTC, datetime

from mmrepro.base.records import ClaimStatus, Fidelity, HostFacts, Moment, StandIn
from mmrepro.failure.documents import ClaimResult, ScenarioFacts
from mmrepro.failure.documents.ledger import Attempt, Lost
from mmrepro.failure.documents.searches import (
    Ablation,
    Bisection,
    Cell,
    CellRun,
    CellState,
    Chance,
    Conclusion,
    Cure,
    FactorClass,
    FactorResult,
    Point,
    PointVerdict,
    Side,
    SideConclusion,
)
from mmrepro.failure.signature import Outcome, Truth

NOW = Moment(wall=datetime(2026, 11, 25, 9, 30, tzinfo=UTC), mono=0.0)
STAND_IN = StandIn(name="patch", replaces="touch()", why="under test")
HOST = HostFacts(
    os="Linux", kernel="6.1", cpu="a CPU", cores=2, memory_bytes=8 << 30, python="3.11"
)
SCENARIO = ScenarioFacts(
    name="ghost-key-eviction",
    variant="one",
    title="It hangs in `evict`",
    summary="s",
    affected=">=0.14",
    explanation="",
)


# ----------------------------------------------------------------------------- ablation


def run(
    outcome: Outcome, symptom: Truth, cause: Truth, name: str = "baseline"
) -> CellRun:
    return CellRun(
        key="k",
        index=1,
        created=NOW,
        seconds=31.5,
        outcome=outcome,
        gate_passed=True,
        symptom=symptom,
        symptom_observed="no answer",
        cause=cause,
        cause_observed="a ghost",
        incident_dir=f"cells/{name}/run-1",
        stand_ins=[STAND_IN] if name == "mm-cache" else [],
    )


def cell(name: str, state: CellState, *runs: CellRun) -> Cell:
    flips = [name] if name else []
    return Cell(
        flips=flips,
        role="alone" if name else "baseline",
        state=state,
        why="",
        runs=[*runs],
    )


def ablation() -> Ablation:
    met, gone = Truth.MET, Truth.NOT_MET
    factors = {
        "mm-cache": FactorClass.NECESSARY,
        "cache-size": FactorClass.HIDES,
        "prefix-caching": FactorClass.IRRELEVANT,
    }
    return Ablation(
        mmrepro_version="0.1.0",
        id="abc",
        created=NOW,
        finished=NOW,
        state="complete",
        command="mmrepro ablate ghost-key-eviction",
        engine="vllm",
        release="0.23.0",
        device="cpu",
        scenario=SCENARIO,
        host=HOST,
        fidelity=Fidelity.CPU,
        factors=[
            FactorResult(
                name=name,
                description="what it is",
                failing="--x",
                setting="--no-x",
                claim="claimed of it",
                factor_class=chosen,
                why="toggled alone",
            )
            for name, chosen in factors.items()
        ],
        cells=[
            cell("", CellState.FAILS, run(Outcome.REPRODUCED, met, met)),
            cell(
                "mm-cache",
                CellState.CURED,
                run(Outcome.NOT_REPRODUCED, gone, gone, "mm-cache"),
            ),
            cell(
                "cache-size",
                CellState.HIDDEN,
                run(Outcome.INCONCLUSIVE, gone, met, "size"),
            ),
            cell(
                "prefix-caching",
                CellState.FAILS,
                run(Outcome.REPRODUCED, met, met, "prefix"),
            ),
        ],
        cures=[
            Cure(
                flips=["mm-cache"], settings="--no-x", minimal=True, why="toggled alone"
            )
        ],
        left_out={"cache-size": "it hides the failure"},
        conclusion=Conclusion.CURE,
        explanation="smallest workaround: mm-cache",
        hypotheses=[
            ClaimResult(
                id="h",
                text="the budget is too small",
                source="the report",
                status=ClaimStatus.REFUTED,
                observed="it only hides it",
            )
        ],
        limits=["each cell was run once"],
    )


# ---------------------------------------------------------------------------- bisection

GOOD, BAD, OTHER = Outcome.NOT_REPRODUCED, Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
_VERDICTS = {GOOD: PointVerdict.GOOD, BAD: PointVerdict.BAD, OTHER: PointVerdict.OTHER}


def attempt(name: str, index: int, outcome: Outcome | None) -> Attempt:
    return Attempt(
        night="bisect",
        cell=name,
        index=index,
        created=NOW,
        seconds=2.5,
        outcome=outcome,
        lost=None if outcome else Lost.UNLOADABLE,
        explanation=f"{name} was run",
        error="" if outcome else "no such symbol",
        incident=f"incidents/{name}/run-{index}",
        command=f"mmrepro run ghost-key-eviction --release {name}",
    )


def point(name: str, *outcomes: Outcome | None) -> Point:
    runs = [attempt(name, n, outcome) for n, outcome in enumerate(outcomes, 1)]
    verdict = None
    if runs:
        last = outcomes[-1]
        verdict = PointVerdict.UNTESTABLE if last is None else _VERDICTS[last]
        verdict = PointVerdict.BOTH if len(set(outcomes)) > 1 else verdict
    return Point(
        name=name,
        release=name,
        uploaded="2026-01-02T00:00:00Z",
        declared=name >= "0.14",
        verdict=verdict,
        why=f"{name} was run" if runs else "",
        runs=runs,
    )


def bisection() -> Bisection:
    """Introduced: found. Fixed: a range, with runs that contradict each other."""
    return Bisection(
        mmrepro_version="0.1.0",
        id="abc",
        created=NOW,
        finished=NOW,
        state="complete",
        command="mmrepro bisect ghost-key-eviction --find both",
        engine="vllm",
        device="cpu",
        scenario=SCENARIO,
        host=HOST,
        stand_ins=[STAND_IN],
        by="release",
        find="both",
        confidence=0.95,
        known_bad="0.23.0",
        points=[
            point("0.9.0.1.post2", OTHER),
            point("0.12.0"),
            point("0.13.0", GOOD, GOOD),
            point("0.14.0", BAD, BAD),
            point("0.23.0", BAD, GOOD),
            point("0.23.1", None),
            point("0.24.0", GOOD, GOOD),
        ],
        introduced=Side(
            conclusion=SideConclusion.FOUND,
            first_bad="0.14.0",
            between=["0.13.0", "0.14.0"],
            verified=True,
            runs=6,
            before="good",
            explanation=(
                "0.14.0 is the first bad release: 0.13.0, before it, does not have it"
            ),
            notes=["0.9.0.1.post2 fails otherwise"],
            other_between=["0.9.0.1.post2", "0.13.0"],
        ),
        fixed=Side(
            conclusion=SideConclusion.RANGE,
            between=["0.23.0", "0.24.0"],
            one_of=["0.23.1", "0.24.0"],
            runs=5,
            after="good",
            returned=["0.24.0"],
            rate=0.5,
            explanation="the first good release is one of 0.23.1, 0.24.0",
            posterior=[Chance(last_bad="0.23.0", probability=0.97)],
        ),
        limits=["which change between the two releases is the cause is not stated"],
    )
