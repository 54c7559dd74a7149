"""On a starved machine an endpoint is late: that is no sign that the front is not
well."""

from pathlib import Path

import pytest
from made_up import out_of_time
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Finding, Outcome, Truth, checks
from mmrepro.probes.data import EndpointAnswer, HttpData
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge
from mmrepro.scenario.registry import load_scenario

pytestmark = pytest.mark.usefixtures("by_conditions")

EVIDENCE = Path(__file__).parent.parent / "evidence"
LATE = {
    "status": None,
    "seconds": 5.0,
    "error": "no complete answer in 5.0 s",
    "timed_out": True,
}
GONE = {"status": None, "seconds": 0.01, "error": "ConnectError: refused"}
GREEN, RED = {"status": 200, "seconds": 0.01}, {"status": 503, "seconds": 0.01}


def asked(*answers: dict[str, object]) -> Finding:
    paths = ("/health", "/v1/models", "/ping")
    told = [
        EndpointAnswer.model_validate({"path": path, **answer})
        for path, answer in zip(paths, answers, strict=False)
    ]
    return checks.endpoints_green(HttpData(base_url="", answers=told))


@pytest.mark.parametrize(
    ("answers", "truth"),
    [
        ((GREEN, GREEN), Truth.MET),
        ((LATE, GREEN), Truth.UNKNOWN),
        ((GREEN, LATE), Truth.UNKNOWN),
        ((LATE, LATE), Truth.UNKNOWN),
        ((GREEN, RED), Truth.NOT_MET),
        ((LATE, RED), Truth.NOT_MET),
        ((GONE, LATE), Truth.NOT_MET),
        ((GREEN, GONE), Truth.NOT_MET),
        ((GREEN, GREEN, RED), Truth.NOT_MET),
    ],
)
def test_late_is_neither_green_nor_red(
    answers: tuple[dict[str, object], ...], truth: Truth
) -> None:
    found = asked(*answers)
    assert found.truth is truth
    assert ("late: " in found.observed) == (truth is Truth.UNKNOWN)


def test_which_endpoint_is_late() -> None:
    assert asked(GREEN, LATE).observed.endswith("; late: /v1/models")


def hang() -> Incident:
    return load(EVIDENCE / "ghost-key-eviction-0.23.0.zip")


def answers_of(incident: Incident) -> list[EndpointAnswer]:
    probes = incident.evidence.probes
    return [a for p in probes if isinstance(p.data, HttpData) for a in p.data.answers]


def outcome(incident: Incident) -> Outcome:
    scenario = load_scenario(incident.scenario.name)
    return judge(scenario, incident.evidence, facts_of(incident, scenario)).outcome


def test_a_hang_on_a_starved_machine_is_no_different_failure() -> None:
    """The same run, but /health came late: whether it is that failure cannot be
    said."""
    late, red = hang(), hang()
    for answer in answers_of(late)[-2:]:
        answer.status, answer.timed_out = None, True
    assert outcome(late) is Outcome.INCONCLUSIVE
    for answer in answers_of(red)[-2:]:
        answer.status = 503
    assert outcome(red) is not Outcome.REPRODUCED


def test_a_probe_that_ran_out_of_time_says_nothing_either() -> None:
    late = hang()
    out_of_time(late.evidence, "http")
    assert outcome(late) is Outcome.INCONCLUSIVE
