"""mm-cache-desync on made-up evidence: one thing changed at a time, and the verdict
flips."""

import asyncio

import pytest
from made_up import (
    GHOST,
    OTHER,
    healing_run,
    http,
    hung,
    judge,
    logs,
    metrics,
    request,
    swap,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.scenario import Requests, vllm
from mmrepro.scenario.vllm import desynchronise
from mmrepro.scenarios.vllm_mm_caches import MM_CACHE_DESYNC as DESYNC
from mmrepro.traffic.evidence import Evidence
from mmrepro.traffic.pictures import Picture
from turns import Row, edit, half, measured, no, to, without

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE


def relabel(evidence: Evidence, label: str, status: int, error: str = "") -> None:
    for record in evidence.requests:
        if record.label == label:
            record.status, record.error = status, error


def one_hangs(evidence: Evidence) -> None:
    evidence.requests[6] = hung("image X again, short")


def first_is_answered(evidence: Evidence) -> None:
    relabel(evidence, "image X again, short", 200)
    swap(evidence, logs(*[GHOST] * 3))


def all_are_answered(evidence: Evidence) -> None:
    for record in evidence.labelled("image X again, short"):
        record.status, record.error = 200, ""
    swap(evidence, logs())
    evidence.facts["mm_cache_hits_after"] = 2


def never_again(evidence: Evidence) -> None:
    evidence.requests = [r for r in evidence.requests if "again, short" not in r.label]


ROWS: dict[str, Row] = {
    "image X is answered": (
        all_are_answered,
        "not-reproduced -same-image-500 -sender-hits -receiver-misses",
    ),
    "only later ones fail": (first_is_answered, "different -same-image-500"),
    "image X hangs": (one_hangs, "different -same-image-500"),
    "image X was not sent again": (
        never_again,
        "inconclusive ?same-image-500 ?sender-hits",
    ),
    "the other image fails too": (
        edit("control: another image", status=500),
        "different -others-answered",
    ),
    "one control": (without("control: text only"), "inconclusive ?others-answered"),
    "/health red": (to(http(503, 200)), "different -endpoints-green"),
    "no endpoint": (no("http"), "inconclusive ?endpoints-green"),
    "refused for something else": (
        edit("image X, too long", status=400, error="unknown model"),
        "inconclusive -refused-for-length",
    ),
    "not refused": (
        edit("image X, too long", status=200, error=""),
        "inconclusive -refused-for-length",
    ),
    "never sent": (without("image X, too long"), "inconclusive ?refused-for-length"),
    "no log line": (to(logs()), "different -receiver-misses"),
    "two hashes": (to(logs(GHOST, GHOST, GHOST, OTHER)), "different -receiver-misses"),
    "fewer lines than failures": (to(logs(GHOST)), "different -receiver-misses"),
    "no log": (no("logs"), "inconclusive ?receiver-misses"),
    "half of the log was read": (half("logs"), "inconclusive ?receiver-misses"),
    "no hits": (measured(mm_cache_hits_after=2), "different -sender-hits"),
    "the gate's image is not known again": (
        to(metrics(mm_hits=0), phase="gate"),
        "inconclusive -cache-on",
    ),
    "nothing is known of the cache": (
        no("metrics", phase="gate"),
        "inconclusive ?cache-on",
    ),
    "hits are not counted": (
        measured(mm_cache_hits_after=None),
        "inconclusive ?sender-hits",
    ),
}


def test_a_release_that_heals_after_one_failure_reproduces() -> None:
    outcome, truths, _ = judge(DESYNC, healing_run(), "0.32.0")
    assert outcome is REPRODUCED
    assert truths.pop("for-ever") is NOT_MET  # a supporting condition
    assert set(truths.values()) == {MET}


class Chats:
    """A drive that only notes what it is asked for."""

    def __init__(self, *flips: str) -> None:
        self.flips = frozenset(flips)
        self.max_model_len = 2048
        self.labels: list[str] = []

    async def text_of_tokens(self, tokens: int) -> str:
        return "long"

    async def ask(self, label: str, **_: object) -> None:
        self.labels.append(label)


@pytest.mark.parametrize(
    ("flips", "first"), [((), "too long"), (("refusal",), "short")]
)
def test_the_refused_request_is_a_factor_of_the_traffic(
    flips: tuple[str, ...], first: str
) -> None:
    drive = Chats(*flips)
    picture = Picture("X", b"", 1, 1)
    asyncio.run(desynchronise(drive, picture))  # type: ignore[arg-type]
    assert drive.labels == [f"image X, {first}", "image X again, short"]


@pytest.mark.parametrize(
    ("statuses", "survives", "fails"),
    [
        ((200, 200), MET, NOT_MET),
        ((500,), NOT_MET, MET),
        ((200, 500), NOT_MET, NOT_MET),
        ((None,), UNKNOWN, NOT_MET),
        ((500, None), UNKNOWN, MET),
        ((499,), UNKNOWN, NOT_MET),
        ((501,), UNKNOWN, NOT_MET),
    ],
)
def test_an_image_survives_or_fails_or_is_late(
    statuses: tuple[int | None, ...], survives: Truth, fails: Truth
) -> None:
    sent = [request("trigger", vllm.AGAIN, status) for status in statuses]
    seen = Requests(Evidence(requests=sent))
    assert (vllm.image_survives(seen).truth, vllm.image_fails(seen).truth) == (
        survives,
        fails,
    )
    told = ", ".join(str(status or "no answer") for status in statuses)
    assert vllm.statuses(seen) == f"image X: {told}"
