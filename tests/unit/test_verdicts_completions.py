"""LMDeploy's lists of prompts: one thing changed of a recorded run, and the verdict
turns."""

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
from turns import Change, Row, edit, measured, nothing_sent

pytestmark = pytest.mark.usefixtures("by_conditions")

CORPUS = Path(__file__).parent.parent / "evidence"
SCENARIO = load_scenario("completions-session")
MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE


def sent(evidence: Evidence, label: str) -> RequestRecord:
    return evidence.labelled(label)[0]


def answered(*labels: str) -> Change:
    def change(evidence: Evidence) -> None:
        for label in labels:
            record = sent(evidence, label)
            record.status, record.error, record.text, record.completion_tokens = (
                200,
                "",
                "x",
                2,
            )

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
            probe.status, probe.data, probe.reason = (
                ProbeStatus.UNAVAILABLE,
                None,
                "gone",
            )


def health(evidence: Evidence) -> None:
    for _, data in evidence.results(HttpData, "check"):
        for answer in data.answers:
            answer.status = 503


FAILED_LINE = '"POST /v1/completions HTTP/1.1" 500 Internal Server Error'
ID = "ValueError: User session id {} already exists"
ROWS: dict[str, Row] = {
    "the list beside it is answered": (
        answered(session.BESIDE),
        "different -beside-fails",
    ),
    "the list that names a session is answered": (
        answered(session.NAMED),
        "different -beside-fails",
    ),
    "it is refused": (
        edit(session.BESIDE, status=400, error="x", text=""),
        "different -beside-fails",
    ),
    "lists come back": (answered(*session.LISTS), "different -lists-lost"),
    "texts fail as well": (
        edit(session.TEXT, status=500, text=""),
        "different -texts-answered",
    ),
    "the server is not well": (health, "different -endpoints-green"),
    "the id is the client's": (
        log(id_taken=ID.format(session.OWN_ID)),
        "different -id-of-place",
    ),
    "no traceback has the place": (log(numbered=None), "different -numbered"),
    "no id was taken": (log(id_taken=None), "different -id-of-place"),
    "there is no log": (no_log, "inconclusive ?numbered ?id-of-place +beside-fails"),
    "the second came too early": (
        measured(pieces_at_two=session.TOKENS),
        "inconclusive -under-way",
    ),
    "the second came too late": (
        measured(pieces_at_two=999),
        "inconclusive -under-way",
    ),
    "the first came before a piece": (
        measured(pieces_at_one=0),
        "inconclusive -under-way",
    ),
    "nobody counted": (measured(pieces_at_one=None), "inconclusive ?under-way"),
    "the long one broke off": (
        edit(session.LONG, status=500, text=""),
        "inconclusive -under-way",
    ),
    "nothing was sent": (nothing_sent, "inconclusive ?under-way ?beside-fails"),
}


def judged(incident: Incident) -> tuple[Outcome, dict[str, Truth]]:
    verdict = judge(SCENARIO, incident.evidence, facts_of(incident, SCENARIO))
    return verdict.outcome, {c.id: c.truth for c in verdict.conditions}


@pytest.fixture
def run() -> Incident:
    return load(CORPUS / "completions-session-0.14.0.zip")


def test_texts_alone_do_not_reproduce_it_and_one_failure_of_them_is_another() -> None:
    run = load(CORPUS / "completions-session-text-prompts.zip")
    assert judged(run)[0] is Outcome.NOT_REPRODUCED
    edit(session.LAST, status=500, text="")(run.evidence)
    assert judged(run)[0] is DIFFERENT


@pytest.mark.parametrize(
    ("name", "failed_500", "fit"),
    [
        ("completions-session-0.14.0", 5, Fit.MATCH),
        ("completions-session-text-prompts", 0, Fit.EXPOSED),
    ],
)
def test_an_observer_of_the_server_tells_it(
    name: str, failed_500: int, fit: Fit
) -> None:
    """Who sent none of its requests, looks at the log and asks for one small answer.

    ``failed_500``: lines of the access log in that run's engine.log, which only
    observers count."""
    incident = load(CORPUS / f"{name}.zip")
    seen = Evidence(probes=[p for p in incident.evidence.probes if p.phase == "check"])
    for _, data in seen.results(LogsData):
        data.match_counts[FAILED] = failed_500
        data.matches[FAILED] = [LogLine(number=24, text=FAILED_LINE)] * failed_500
    engine = incident.engine
    live = LiveFacts(engine.name, engine.release, tuple(engine.command), 15.0)
    (match,) = match_all([SCENARIO], seen, live)
    assert match.fit is fit
