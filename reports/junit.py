"""The incident as JUnit XML, for CI: never greener than the run.

One test case for the verdict, one per condition, one per claim:

* verdict: passes only when the outcome is the expected one; inconclusive or missing is an error;
  where nothing was expected it is skipped.
* condition: met passes; not met fails, unless the verdict is as expected without it (skipped);
  unknown is an error if it was required and the verdict is not as expected, else skipped.
* the state of a diagnosed live server: healthy passes, what could not be told is an error; each
  known failure that was found fails.
* claim: its name ends with what the run says of it. A refuted claim passes: that the bug report was
  wrong in one point is a finding, not a failure of the run. Not tested is skipped.
"""

from __future__ import annotations

from typing import Any

from mmrepro.incident import ClaimResult, ClaimStatus, Incident
from mmrepro.incident.diagnosis import COULD_NOT_TELL, Diagnosis, Match, ServerState
from mmrepro.reports import view
from mmrepro.signature import ConditionResult, Outcome, Truth
from mmrepro.text.sanitize import clip, plain


def render_junit(incident: Incident) -> str:
    from junitparser import JUnitXml, TestSuite

    suite: Any = TestSuite(_text(f"mmrepro.{incident.scenario.name}"))
    suite.timestamp = incident.created.wall.isoformat(timespec="seconds")
    for name, value in (
        ("engine", view.engine_name(incident)),
        ("fidelity", str(incident.fidelity)),
        ("incident", incident.id),
        ("command", incident.command),
    ):
        suite.add_property(_text(name), _text(value))
    if incident.diagnosis is not None:
        suite.add_testcase(_state_case(incident, incident.diagnosis))
        for match in incident.diagnosis.found:
            suite.add_testcase(_match_case(incident, match))
    else:
        suite.add_testcase(_verdict_case(incident))
    as_expected = incident.verdict is not None and incident.verdict.as_expected
    for condition in incident.verdict.conditions if incident.verdict else []:
        suite.add_testcase(_condition_case(incident, condition, as_expected))
    for claim in incident.claims:
        suite.add_testcase(_claim_case(incident, claim))
    suite.update_statistics()
    suite.time = _seconds(incident)
    document: Any = JUnitXml("mmrepro")
    document.add_testsuite(suite)
    document.update_statistics()
    content = document.tostring()
    return content.decode() if isinstance(content, bytes) else str(content)


def _verdict_case(incident: Incident) -> Any:
    from junitparser import Error, Failure, Skipped

    verdict = incident.verdict
    case = _case(incident, "verdict", f"outcome on {view.engine_name(incident)}")
    case.time = _seconds(incident)
    if verdict is None or incident.state != "complete":
        note = view.partial_note(incident) or "no verdict"
        _set(case, Error(_text(note), incident.state), "\n".join(incident.failure_detail))
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        _set(case, Error(_text(f"inconclusive: {verdict.explanation}"), "inconclusive"))
    elif verdict.expected is None:
        _set(case, Skipped(_text(f"{verdict.outcome}, and no outcome was expected")))
    elif not verdict.as_expected:
        message = f"{verdict.outcome}, expected {verdict.expected}: {verdict.explanation}"
        _set(case, Failure(_text(message), str(verdict.outcome)), verdict.expected_because)
    else:
        case.system_out = _text(f"{verdict.outcome}: {verdict.explanation}")
    return case


def _state_case(incident: Incident, diagnosis: Diagnosis) -> Any:
    """Healthy passes; what could not be told is an error, never a pass."""
    from junitparser import Error, Failure

    case = _case(incident, "state", f"state of {diagnosis.target.url}")
    assessment = diagnosis.assessment
    sentence = _text(assessment.sentence)
    if diagnosis.state is ServerState.HEALTHY:
        case.system_out = sentence
    elif diagnosis.state in COULD_NOT_TELL:
        _set(case, Error(sentence, str(assessment.state)), "\n".join(assessment.why))
    else:
        _set(case, Failure(sentence, str(assessment.state)), "\n".join(assessment.why))
    return case


def _match_case(incident: Incident, match: Match) -> Any:
    from junitparser import Failure

    case = _case(incident, "known-failure", f"{match.scenario} {match.variant}".strip())
    _set(case, Failure(_text(f"{match.title}: {match.why}"), str(match.fit)))
    return case


def _condition_case(incident: Incident, condition: ConditionResult, as_expected: bool) -> Any:
    from junitparser import Error, Failure, Skipped

    case = _case(incident, f"condition.{condition.part}", f"{condition.id}: {condition.statement}")
    files = "\n".join(f"evidence/{f}" for f in condition.evidence)
    if condition.truth is Truth.MET:
        case.system_out = _text(f"{condition.observed}\n{files}".strip())
    elif condition.truth is Truth.UNKNOWN:
        message = _text(f"unknown: {condition.observed}")
        matters = condition.required and not as_expected
        _set(case, Error(message, "unknown") if matters else Skipped(message), files)
    elif as_expected:
        _set(case, Skipped(_text(f"not met, as expected of this run: {condition.observed}")))
    else:
        _set(case, Failure(_text(f"not met: {condition.observed}"), "not-met"), files)
    return case


def _claim_case(incident: Incident, claim: ClaimResult) -> Any:
    from junitparser import Skipped

    case = _case(incident, "claim", f"{claim.id}: {claim.text} [{claim.status}]")
    if claim.status is not ClaimStatus.NOT_TESTED:
        case.system_out = _text(f"{claim.status}: {claim.observed}")
    else:
        _set(case, Skipped(_text(f"not tested: {claim.observed}")))
    return case


def _case(incident: Incident, group: str, name: str) -> Any:
    from junitparser import TestCase

    return TestCase(_text(name, 300), _text(f"mmrepro.{incident.scenario.name}.{group}"), 0.0)


def _set(case: Any, result: Any, text: str = "") -> None:
    if text:
        result.text = _text(text)
    case.result = [result]


def _seconds(incident: Incident) -> float:
    if incident.finished is None:
        return 0.0
    return round(max(incident.finished.mono - incident.created.mono, 0.0), 3)


def _text(value: str, limit: int = 4000) -> str:
    return clip(plain(value), limit)
