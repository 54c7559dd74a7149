"""The canary of an engine that refuses a request for its logprobs."""

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from mmrepro.runs.play.observing import CANARY_AFTER, CANARY_BEFORE, Observing


@dataclass
class FakeSending:
    """A FAKE: it refuses what ``refuses`` names."""

    refuses: str
    status: int = 400
    asked: list[SimpleNamespace] = field(default_factory=list)

    async def ask(
        self, label: str, data: bytes, path: str, text: str
    ) -> SimpleNamespace:
        refused = self.refuses in json.loads(data)
        self.asked.append(
            SimpleNamespace(
                label=label, status=self.status if refused else 200, data=data
            )
        )
        return self.asked[-1]


def canaries(sending: FakeSending) -> list[tuple[str, int]]:
    observing = Observing.__new__(Observing)
    observing.sending, observing._no_logprobs = sending, False

    async def both() -> None:
        await observing._canary(CANARY_BEFORE)
        await observing._canary(CANARY_AFTER)

    asyncio.run(both())
    return [(one.label, one.status) for one in sending.asked]


@pytest.mark.parametrize("status", [400, 422])
def test_it_is_asked_without_logprobs_from_then_on(status: int) -> None:
    assert canaries(FakeSending("logprobs", status)) == [
        (f"{CANARY_BEFORE}, with logprobs", status),
        (CANARY_BEFORE, 200),
        (CANARY_AFTER, 200),
    ]


def test_elsewhere_it_has_them_and_other_failures_are_not_asked_again() -> None:
    sending = FakeSending("nothing")
    assert canaries(sending) == [(CANARY_BEFORE, 200), (CANARY_AFTER, 200)]
    assert all("logprobs" in json.loads(one.data) for one in sending.asked)
    assert canaries(FakeSending("messages", 500)) == [
        (CANARY_BEFORE, 500),
        (CANARY_AFTER, 500),
    ]
