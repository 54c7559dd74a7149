"""mm-cache-desync on made-up evidence: one thing changed at a time, and the verdict flips."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from made_up import (
    GHOST,
    OTHER,
    desync_run,
    drop,
    healing_run,
    http,
    hung,
    judge,
    logs,
    metrics,
    out_of_time,
    request,
    swap,
)
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.scenario import Requests, vllm
from mmrepro.scenario.vllm import desynchronise
from mmrepro.scenarios.vllm_mm_caches import MM_CACHE_DESYNC as DESYNC
from mmrepro.traffic.drive import Picture
from mmrepro.traffic.evidence import Evidence

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
REPRODUCED, DIFFERENT = Outcome.REPRODUCED, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED, INCONCLUSIVE = Outcome.NOT_REPRODUCED, Outcome.INCONCLUSIVE

Change = Callable[[Evidence], object]
Case = tuple[str, Change, dict[str, Truth], Outcome]


def test_the_desynchronisation_reproduces() -> None:
    outcome, truths, _ = judge(DESYNC, desync_run())
    assert set(truths.values()) == {MET}
    assert outcome is REPRODUCED


def relabel(evidence: Evidence, label: str, status: int, error: str = "") -> None:
    for record in evidence.requests:
        if record.label == label:
            record.status, record.error = status, error


def without(label: str) -> Change:
    def change(evidence: Evidence) -> None:
        evidence.requests = [r for r in evidence.requests if r.label != label]

    return change


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


DESYNC_CASES: list[Case] = [
    (
        "image X is answered",
        all_are_answered,
        {"same-image-500": NOT_MET, "sender-hits": NOT_MET, "receiver-misses": NOT_MET},
        NOT_REPRODUCED,
    ),
    ("only later ones fail", first_is_answered, {"same-image-500": NOT_MET}, DIFFERENT),
    ("image X hangs", one_hangs, {"same-image-500": NOT_MET}, DIFFERENT),
    (
        "image X was not sent again",
        never_again,
        {"same-image-500": UNKNOWN, "sender-hits": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "the other image fails too",
        lambda e: relabel(e, "control: another image", 500, "boom"),
        {"others-answered": NOT_MET},
        DIFFERENT,
    ),
    ("one control", without("control: text only"), {"others-answered": UNKNOWN}, INCONCLUSIVE),
    ("/health red", lambda e: swap(e, http(503, 200)), {"endpoints-green": NOT_MET}, DIFFERENT),
    ("no endpoint", lambda e: drop(e, "http"), {"endpoints-green": UNKNOWN}, INCONCLUSIVE),
    (
        "refused for something else",
        lambda e: relabel(e, "image X, too long", 400, "unknown model"),
        {"refused-for-length": NOT_MET},
        INCONCLUSIVE,
    ),
    (
        "not refused",
        lambda e: relabel(e, "image X, too long", 200),
        {"refused-for-length": NOT_MET},
        INCONCLUSIVE,
    ),
    (
        "never sent",
        without("image X, too long"),
        {"refused-for-length": UNKNOWN},
        INCONCLUSIVE,
    ),
    ("no log line", lambda e: swap(e, logs()), {"receiver-misses": NOT_MET}, DIFFERENT),
    (
        "two hashes",
        lambda e: swap(e, logs(GHOST, GHOST, GHOST, OTHER)),
        {"receiver-misses": NOT_MET},
        DIFFERENT,
    ),
    (
        "fewer lines than failures",
        lambda e: swap(e, logs(GHOST)),
        {"receiver-misses": NOT_MET},
        DIFFERENT,
    ),
    ("no log", lambda e: drop(e, "logs"), {"receiver-misses": UNKNOWN}, INCONCLUSIVE),
    (
        "half of the log was read",
        lambda e: out_of_time(e, "logs"),
        {"receiver-misses": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "no hits",
        lambda e: e.facts.update(mm_cache_hits_after=2),
        {"sender-hits": NOT_MET},
        DIFFERENT,
    ),
    (
        "the gate's image is not known again",
        lambda e: swap(e, metrics(mm_hits=0), phase="gate"),
        {"cache-on": NOT_MET},
        INCONCLUSIVE,
    ),
    (
        "nothing is known of the cache",
        lambda e: drop(e, "metrics", phase="gate"),
        {"cache-on": UNKNOWN},
        INCONCLUSIVE,
    ),
    (
        "hits are not counted",
        lambda e: e.facts.update(mm_cache_hits_after=None),
        {"sender-hits": UNKNOWN},
        INCONCLUSIVE,
    ),
]


@pytest.mark.parametrize(
    ("change", "flipped", "outcome"),
    [case[1:] for case in DESYNC_CASES],
    ids=[c[0] for c in DESYNC_CASES],
)
def test_one_change_of_the_desynchronisation(
    change: Change, flipped: dict[str, Truth], outcome: Outcome
) -> None:
    evidence = desync_run()
    change(evidence)
    got, truths, results = judge(DESYNC, evidence)
    assert {name: truths[name] for name in flipped} == flipped
    assert got is outcome
    assert all(r.observed for r in results)


def test_a_release_that_heals_after_one_failure_reproduces() -> None:
    outcome, truths, _ = judge(DESYNC, healing_run(), "0.32.0")
    assert outcome is REPRODUCED
    assert truths.pop("for-ever") is NOT_MET  # a supporting condition
    assert set(truths.values()) == {MET}


def test_every_condition_of_the_desynchronisation_can_fail_and_can_be_unknown() -> None:
    seen: dict[str, set[Truth]] = {}
    for change in [lambda e: None, *(case[1] for case in DESYNC_CASES)]:
        evidence = desync_run()
        change(evidence)
        for name, truth in judge(DESYNC, evidence)[1].items():
            seen.setdefault(name, set()).add(truth)
    assert {name: truths for name, truths in seen.items() if truths != set(Truth)} == {}


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


@pytest.mark.parametrize(("flips", "first"), [((), "too long"), (("refusal",), "short")])
def test_the_refused_request_is_a_factor_of_the_traffic(flips: tuple[str, ...], first: str) -> None:
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
    assert (vllm.image_survives(seen).truth, vllm.image_fails(seen).truth) == (survives, fails)
    told = ", ".join(str(status or "no answer") for status in statuses)
    assert vllm.statuses(seen) == f"image X: {told}"
