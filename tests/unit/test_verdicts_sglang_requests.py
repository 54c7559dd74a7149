"""SGLang's failures by single requests: change one thing, and the verdict turns."""

from pathlib import Path
from typing import Any

import pytest
from imposters.sglang import Edit, answered_as, asked, facts, logged, unread
from imposters.sglang_requests import lines_without, measured, measured_as
from mmrepro.base.records import FindingClass, Moment
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of, judge
from mmrepro.scenario.more import Failure
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.evidence import RequestRecord
from mmrepro.traffic.reading import read_generated

pytestmark = pytest.mark.usefixtures("by_conditions")

EVIDENCE = Path(__file__).parent.parent / "evidence"
REPRODUCED, NOT_REPRODUCED = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED
DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
TOO_MANY, AFTER = "more than the vocabulary", "after: a new text"
LEFT, BESIDE = "victim: user10-b beside user1", "control: user10-a beside user2"
GHOST, STAYS = "ghost: a client that leaves", "control: a client that stays"
IN_SESSION, PLAIN_EMBEDS = "embeddings in a session", "embeddings without a session"
FAKE, PLAIN = "long, with the host", "long, without a host"


def gone(label: str) -> Edit:
    def edit(incident: Incident) -> None:
        kept = [r for r in incident.evidence.requests if r.label != label]
        incident.evidence.requests = kept

    return edit


CASES: list[tuple[str, Edit, Outcome]] = [
    ("caller-hash-0.5.23", answered_as("Y after X", "gate: Y alone"), DIFFERENT),
    ("caller-hash-0.5.23", answered_as("X unnamed", "gate: Y alone"), DIFFERENT),
    ("caller-hash-0.5.23", asked("Y after X", cached_tokens=3), DIFFERENT),
    ("caller-hash-0.5.23", asked("X first", cached_tokens=71), INCONCLUSIVE),
    ("caller-hash-0.5.23", facts(given_alike=False), DIFFERENT),
    ("caller-hash-0.5.23", facts(own_alike=True), DIFFERENT),
    ("caller-hash-0.5.23", facts(takes_hashes=False), DIFFERENT),
    ("caller-hash-patch", answered_as("Y after X", "gate: X alone"), DIFFERENT),
    ("caller-hash-patch", unread, INCONCLUSIVE),
    ("top-logprobs-kill-0.5.23", logged(**{"scheduler-exception": 0}), DIFFERENT),
    ("top-logprobs-kill-0.5.23", asked("all of the vocabulary", status=500), DIFFERENT),
    ("top-logprobs-kill-0.5.23", gone(TOO_MANY), INCONCLUSIVE),
    ("top-logprobs-kill-patch", asked(TOO_MANY, error="too long"), INCONCLUSIVE),
    ("top-logprobs-kill-patch", asked(TOO_MANY, status=200, error=""), INCONCLUSIVE),
    ("top-logprobs-kill-patch", asked(AFTER, status=500), DIFFERENT),
    ("session-embeds-0.5.23", logged(**{"scheduler-exception": 0}), DIFFERENT),
    ("session-embeds-0.5.23", asked(PLAIN_EMBEDS, status=500), DIFFERENT),
    ("session-embeds-0.5.23", asked("open the session", status=404), INCONCLUSIVE),
    ("session-embeds-0.5.23", gone(IN_SESSION), INCONCLUSIVE),
    ("session-embeds-patch", asked(IN_SESSION, error="too long"), INCONCLUSIVE),
    ("session-embeds-patch", asked(AFTER, status=500), DIFFERENT),
    ("abort-by-prefix-0.5.23", asked(LEFT, finish_reason="length"), DIFFERENT),
    ("abort-by-prefix-0.5.23", asked(BESIDE, completion_tokens=3), DIFFERENT),
    ("abort-by-prefix-0.5.23", facts(ends_a_longer_one=False), DIFFERENT),
    ("abort-by-prefix-0.5.23", facts(ends_others=True), DIFFERENT),
    ("abort-by-prefix-0.5.23", lines_without("aborted-by-rid", "req-10"), DIFFERENT),
    ("abort-by-prefix-0.5.23", unread, INCONCLUSIVE),
    ("abort-by-prefix-0.5.23", measured_as(f"aborts, {LEFT}", 0.0), INCONCLUSIVE),
    ("abort-by-prefix-patch", asked("afterwards", status=500), DIFFERENT),
    ("abort-by-prefix-patch", logged(**{"sglang_patches-called": 0}), INCONCLUSIVE),
    ("ghost-decode-0.5.19", asked("afterwards", latency_s=0.4), DIFFERENT),
    ("ghost-decode-0.5.19", measured(aborts_passed_on=1.0), DIFFERENT),
    ("ghost-decode-0.5.19", lines_without("output-for-nobody", "ghost-1"), DIFFERENT),
    ("ghost-decode-0.5.19", asked(GHOST, left=False), INCONCLUSIVE),
    ("ghost-decode-0.5.19", asked(STAYS, latency_s=3.0), INCONCLUSIVE),
    ("ghost-decode-release", asked("afterwards", latency_s=500.0), DIFFERENT),
    ("ghost-decode-release", asked("afterwards", status=500), DIFFERENT),
    ("ghost-decode-release", asked(STAYS, status=500), DIFFERENT),
    ("fake-bootstrap-0.5.21", asked(PLAIN, status=500), DIFFERENT),
    ("fake-bootstrap-0.5.21", asked(PLAIN, prompt_tokens=60), INCONCLUSIVE),
    ("fake-bootstrap-0.5.21", logged(**{"scheduler-exception": 0}), DIFFERENT),
    ("fake-bootstrap-0.5.21", unread, INCONCLUSIVE),
    ("fake-bootstrap-release", asked(FAKE, prompt_tokens=3), INCONCLUSIVE),
    ("fake-bootstrap-release", asked(AFTER, status=500), DIFFERENT),
]


@pytest.mark.parametrize(("recording", "change", "expected"), CASES)
def test_one_thing_changed(recording: str, change: Edit, expected: Outcome) -> None:
    incident = load(EVIDENCE / f"{recording}.zip")
    change(incident)
    scenario = load_scenario(incident.scenario.name)
    verdict = judge(scenario, incident.evidence, facts_of(incident, scenario))
    assert verdict.outcome is expected, verdict.explanation


def hashed(one: str, other: str, *, path: str = "/generate") -> Failure:
    """A second picture's answer was wrong; both were sent with a hash."""
    sent = [("r1", "data:one", one, []), ("r2", "data:two", other, ["r1.end"])]
    operations = [
        {
            "id": id,
            "path": path,
            "after": after,
            "parameters": {"image_data": [data], "mm_hashes": [given]},
        }
        for id, data, given, after in sent
    ]
    server = {"engine": "sglang", "release": "0.5.23", "model": "tiny-qwen2vl"}
    case = Case.model_validate({"server": server, "operations": operations})
    return Failure(FindingClass.CROSS_TALK, "x", ("r2",), case, {})


def test_a_silent_failure_is_recognised_by_the_hash_that_was_sent() -> None:
    scenario = load_scenario("caller-hash")
    assert scenario.recognises(hashed("aa", "aa")).truth is Truth.MET
    assert scenario.recognises(hashed("aa", "bb")).truth is Truth.NOT_MET
    assert scenario.recognises(hashed("aa", "aa", path="/v1/x")).truth is Truth.NOT_MET


def test_an_answer_in_sglangs_own_form_is_read() -> None:
    record = RequestRecord(
        id=1,
        phase="trigger",
        label="x",
        path="/generate",
        sent=Moment.now(),
        deadline_s=1,
    )
    told: dict[str, Any] = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cached_tokens": 3,
    }
    told |= {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.5, 7, None]],
    }
    read_generated({"text": "hi", "meta_info": told}, record)
    assert (record.text, record.finish_reason, record.cached_tokens) == (
        "hi",
        "length",
        3,
    )
    assert (record.tokens, record.logprobs) == (["7"], [-0.5])
