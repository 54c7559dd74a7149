"""LMDeploy's lists of prompts: one thing changed of a recorded run, and the verdict turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.diagnosis import Fit
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.failure.signature.live_server import FAILED
from mmrepro.live.diagnose.match import match_all
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import HttpData, LogLine, LogsData
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge
from mmrepro.scenario import LiveFacts
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import completions_session as session
from mmrepro.traffic.evidence import Evidence, RequestRecord

pytestmark = pytest.mark.usefixtures("by_conditions")

CORPUS = Path(__file__).parent.parent / "evidence"
SCENARIO = load_scenario("completions-session")
MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
Change = Callable[[Evidence], object]


def sent(evidence: Evidence, label: str) -> RequestRecord:
    return evidence.labelled(label)[0]


def answered(*labels: str) -> Change:
    def change(evidence: Evidence) -> None:
        for label in labels:
            record = sent(evidence, label)
            record.status, record.error, record.text, record.completion_tokens = 200, "", "x", 2

    return change


def failed(label: str, status: int = 500) -> Change:
    def change(evidence: Evidence) -> None:
        record = sent(evidence, label)
        record.status, record.error, record.text = status, "x", ""

    return change


def log(**lines: str | None) -> Change:
    """Other lines of these patterns; None: there are none. ``_`` stands for a dash."""

    def change(evidence: Evidence) -> None:
        for _, data in evidence.results(LogsData, "check"):
            for name, text in lines.items():
                pattern = name.replace("_", "-")
                kept = data.matches.pop(pattern, [])[:1] if text else []
                for line in kept:
                    line.text = text or ""
                data.matches[pattern], data.match_counts[pattern] = kept, len(kept)

    return change


def no_log(evidence: Evidence) -> None:
    for probe in evidence.probes:
        if probe.probe == "logs":
            probe.status, probe.data, probe.reason = ProbeStatus.UNAVAILABLE, None, "gone"


def health(evidence: Evidence) -> None:
    for _, data in evidence.results(HttpData, "check"):
        for answer in data.answers:
            answer.status = 503


def fact(name: str, value: int | None) -> Change:
    return lambda evidence: evidence.facts.update({name: value})


FAILED_LINE = '"POST /v1/completions HTTP/1.1" 500 Internal Server Error'
ID = "ValueError: User session id {} already exists"
CASES: dict[str, tuple[Change, dict[str, Truth], Outcome]] = {
    "the list beside it is answered": (
        answered(session.BESIDE), {"beside-fails": NOT_MET}, DIFFERENT,
    ),
    "the list that names a session is answered": (
        answered(session.NAMED), {"beside-fails": NOT_MET}, DIFFERENT,
    ),
    "it is refused": (failed(session.BESIDE, 400), {"beside-fails": NOT_MET}, DIFFERENT),
    "lists come back": (answered(*session.LISTS), {"lists-lost": NOT_MET}, DIFFERENT),
    "texts fail as well": (failed(session.TEXT), {"texts-answered": NOT_MET}, DIFFERENT),
    "the server is not well": (health, {"endpoints-green": NOT_MET}, DIFFERENT),
    "the id is the client's": (
        log(id_taken=ID.format(session.OWN_ID)), {"id-of-place": NOT_MET}, DIFFERENT,
    ),
    "no traceback has the place": (log(numbered=None), {"numbered": NOT_MET}, DIFFERENT),
    "no id was taken": (log(id_taken=None), {"id-of-place": NOT_MET}, DIFFERENT),
    "there is no log": (
        no_log, {"numbered": UNKNOWN, "id-of-place": UNKNOWN, "beside-fails": MET}, INCONCLUSIVE,
    ),
    "the second came too early": (
        fact("pieces_at_two", session.TOKENS), {"under-way": NOT_MET}, INCONCLUSIVE,
    ),
    "the second came too late": (
        fact("pieces_at_two", 999), {"under-way": NOT_MET}, INCONCLUSIVE,
    ),
    "the first came before a piece": (
        fact("pieces_at_one", 0), {"under-way": NOT_MET}, INCONCLUSIVE,
    ),
    "nobody counted": (fact("pieces_at_one", None), {"under-way": UNKNOWN}, INCONCLUSIVE),
    "the long one broke off": (failed(session.LONG), {"under-way": NOT_MET}, INCONCLUSIVE),
    "nothing was sent": (
        lambda e: e.requests.clear(), {"under-way": UNKNOWN, "beside-fails": UNKNOWN}, INCONCLUSIVE,
    ),
}  # fmt: skip


def judged(incident: Incident) -> tuple[Outcome, dict[str, Truth]]:
    verdict = judge(SCENARIO, incident.evidence, facts_of(incident, SCENARIO))
    return verdict.outcome, {c.id: c.truth for c in verdict.conditions}


@pytest.fixture
def run() -> Incident:
    return load(CORPUS / "completions-session-0.14.0.zip")


def test_the_recorded_run_reproduces_it(run: Incident) -> None:
    assert judged(run)[0] is Outcome.REPRODUCED


@pytest.mark.parametrize(("change", "expected", "outcome"), CASES.values(), ids=CASES.keys())
def test_one_change_turns_the_verdict(
    change: Change, expected: dict[str, Truth], outcome: Outcome, run: Incident
) -> None:
    change(run.evidence)
    got, truths = judged(run)
    assert {name: truths[name] for name in expected} == expected
    assert got is outcome, truths


def test_texts_alone_do_not_reproduce_it_and_one_failure_of_them_is_another() -> None:
    run = load(CORPUS / "completions-session-text-prompts.zip")
    assert judged(run)[0] is Outcome.NOT_REPRODUCED
    failed(session.LAST)(run.evidence)
    assert judged(run)[0] is DIFFERENT


@pytest.mark.parametrize(
    ("name", "failed_500", "fit"),
    [
        ("completions-session-0.14.0", 5, Fit.MATCH),
        ("completions-session-text-prompts", 0, Fit.EXPOSED),
    ],
)
def test_an_observer_of_the_server_tells_it(name: str, failed_500: int, fit: Fit) -> None:
    """Who sent none of its requests, looks at the log and asks for one small answer.

    ``failed_500``: lines of the access log in that run's engine.log, which only observers count.
    """
    incident = load(CORPUS / f"{name}.zip")
    seen = Evidence(probes=[p for p in incident.evidence.probes if p.phase == "check"])
    for _, data in seen.results(LogsData):
        data.match_counts[FAILED] = failed_500
        data.matches[FAILED] = [LogLine(number=24, text=FAILED_LINE)] * failed_500
    engine = incident.engine
    live = LiveFacts(engine.name, engine.release, tuple(engine.command), 15.0)
    (match,) = match_all([SCENARIO], seen, live)
    assert match.fit is fit
