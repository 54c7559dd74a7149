"""vLLM's requests without an adapter: one change of a recorded run, and the verdict
turns."""

from pathlib import Path

import pytest
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge
from mmrepro.scenario.parts import Failure
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios.lora_no_adapter import (
    ADAPTED,
    AFTER,
    AGAIN,
    ALONE,
    BESIDE,
    LONG,
    OTHER,
)
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted
from mmrepro.traffic.evidence import Evidence
from turns import Change, Row, measured, ran

pytestmark = pytest.mark.usefixtures("by_conditions")

CORPUS = Path(__file__).parent.parent / "evidence"
SCENARIO = load_scenario("lora-no-adapter")
NOT_MET, UNKNOWN = Truth.NOT_MET, Truth.UNKNOWN
DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
NOT_REPRODUCED = Outcome.NOT_REPRODUCED


def as_answered(label: str, other: str) -> Change:
    def change(evidence: Evidence) -> None:
        evidence.labelled(label)[0].tokens = list(evidence.labelled(other)[0].tokens)

    return change


def reproducer(**facts: float) -> Change:
    return lambda evidence: evidence.reproducers[0].facts.update(facts)


def lost(label: str) -> Change:
    def change(evidence: Evidence) -> None:
        record = evidence.labelled(label)[0]
        record.status, record.tokens, record.error = 500, [], "x"

    return change


def late(evidence: Evidence) -> None:
    long, beside = (evidence.labelled(label)[0] for label in (LONG, BESIDE))
    beside.latency_s = long.sent.mono + long.latency_s - beside.sent.mono + 1.0


ROWS: dict[str, Row] = {
    "the model gives its own answer": (
        as_answered(BESIDE, ALONE),
        "not-reproduced -adapters-answer",
    ),
    "nobody's answer": (as_answered(BESIDE, LONG), "different -adapters-answer"),
    "it stays wrong": (as_answered(AFTER, ADAPTED), "different -own-afterwards"),
    "the adapter is wrong": (as_answered(OTHER, ALONE), "different -adapter-sound"),
    "the functions are sound": (
        reproducer(without_adapter=0.0),
        "different -index-is-taken",
    ),
    "an empty slot adds something": (
        reproducer(without_and_an_empty_slot=1.0),
        "different -index-is-taken",
    ),
    "the script was not run": (ran(), "inconclusive ?index-is-taken"),
    "it came before a piece": (measured(pieces_before=0), "inconclusive -one-batch"),
    "the adapter's answer had ended": (late, "inconclusive -one-batch"),
    "the model is not alike twice": (
        as_answered(AGAIN, ADAPTED),
        "inconclusive -tell-apart",
    ),
    "no answer": (lost(BESIDE), "different -adapters-answer"),
}


def judged(incident: Incident) -> tuple[Outcome, dict[str, Truth]]:
    verdict = judge(SCENARIO, incident.evidence, facts_of(incident, SCENARIO))
    return verdict.outcome, {c.id: c.truth for c in verdict.conditions}


@pytest.fixture
def run() -> Incident:
    return load(CORPUS / "lora-no-adapter-0.32.0.zip")


@pytest.mark.parametrize(
    ("wrong", "args", "release", "truth"),
    [
        ("r1", ["--enable-lora"], "0.32.0", Truth.MET),
        ("r2", ["--enable-lora"], "0.32.0", Truth.NOT_MET),
        ("r1", [], "0.32.0", Truth.NOT_MET),
        ("r1", ["--enable-lora"], "0.33.0", Truth.NOT_MET),
    ],
)
def test_it_is_recognised_by_who_was_asked(
    wrong: str, args: list[str], release: str, truth: Truth
) -> None:
    said = [Message(role="user", content="hi")]
    ops = [
        Operation(id="r1", messages=said),
        Operation(id="r2", model="x", messages=said),
    ]
    server = ServerWanted(engine="vllm", release=release, args=args)
    case = Case(server=server, operations=ops)
    failure = Failure(FindingClass.WRONG_ANSWER, "wrong-answer/x", (wrong,), case, {})
    assert SCENARIO.recognises(failure).truth is truth
