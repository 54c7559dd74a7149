"""``pad-value-collision --option traffic``: its claims on the recorded run, one thing
changed."""

from collections.abc import Callable

import pytest
from imposters import CORPUS
from mmrepro.reports import load
from mmrepro.runs.judge import facts_of
from mmrepro.scenarios.pad_value_collision import SCENARIO, traffic
from mmrepro.traffic.evidence import Evidence, RequestRecord

Change = Callable[[Evidence], object]
RECORDED = load(CORPUS / "pad-value-collision-option-traffic.zip")
IDS = [claim.id for claim in traffic.CLAIMS]


def claims(evidence: Evidence) -> dict[str, str]:
    results = SCENARIO.claim_results(evidence, facts_of(RECORDED, SCENARIO))
    return {claim.id: claim.status.value for claim in results if claim.id in IDS}


def sent(evidence: Evidence, label: str) -> RequestRecord:
    return next(r for r in reversed(evidence.requests) if r.label == label)


def answered_as(label: str, other: str) -> Change:
    """As if the request had got the other's answer, from as much of the cache as it
    took."""

    def change(evidence: Evidence) -> None:
        mine, its = sent(evidence, label), sent(evidence, other)
        mine.tokens, mine.logprobs, mine.text = its.tokens, its.logprobs, its.text

    return change


def took(label: str, tokens: int) -> Change:
    """From the cache; the server's counter agrees."""

    def change(evidence: Evidence) -> None:
        mine = sent(evidence, label)
        before, mine.cached_tokens = mine.cached_tokens or 0, tokens
        total = evidence.facts["cached_tokens_total"]
        evidence.facts["cached_tokens_total"] = float(total or 0) + tokens - before

    return change


def unanswered(label: str) -> Change:
    def change(evidence: Evidence) -> None:
        sent(evidence, label).status = 503

    return change


def test_without_the_option_nothing_is_said() -> None:
    plain = load(CORPUS / "pad-value-collision-0.5.6.zip")
    assert claims(plain.evidence) == dict.fromkeys(IDS, "not-tested")


@pytest.mark.parametrize(
    ("change", "claim", "status"),
    [
        (answered_as(traffic.B_ASKED, traffic.B_OWN), "prefix-alone", "refuted"),
        (answered_as(traffic.B_OWN, traffic.A_ASKED), "prefix-alone", "refuted"),
        (unanswered(traffic.B_ASKED), "prefix-alone", "not-tested"),
        (
            answered_as(traffic.B_TOLD_AFTER, traffic.A_FIRST),
            "same-text-before",
            "refuted",
        ),
        (took(traffic.B_TOLD_AFTER, 40), "same-text-before", "refuted"),
        (answered_as(traffic.B_LATER, traffic.B_ANEW), "pollution", "refuted"),
        (answered_as(traffic.B_ASKED_LATER, traffic.B_OWN), "pollution", "refuted"),
        (answered_as(traffic.B_ANEW, traffic.B_LATER), "pollution", "refuted"),
        (took(traffic.UNEQUAL["small"], 7), "partial-match", "refuted"),
        (took(traffic.UNEQUAL["large"], 15), "partial-match", "refuted"),
        (unanswered(traffic.UNEQUAL["large"]), "partial-match", "not-tested"),
        (
            answered_as(traffic.UNEQUAL["large"], traffic.ALONE["large"]),
            "partial-wrong",
            "refuted",
        ),
        (unanswered(traffic.AFTERWARDS), "partial-wrong", "not-tested"),
    ],
)
def test_one_thing_changed_and_the_claim_falls(
    change: Change, claim: str, status: str
) -> None:
    evidence = RECORDED.evidence.model_copy(deep=True)
    change(evidence)
    assert claims(evidence)[claim] == status
