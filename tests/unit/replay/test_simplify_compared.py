"""What is held against each other keeps what decides its answers."""

from __future__ import annotations

from fake_plays import SERVER
from mmrepro.failure.documents.replay import PlayFacts
from mmrepro.search.replay.simplify import changes
from mmrepro.search.replay.store import Observation
from mmrepro.traffic.case import Case, Expect, Message, Operation


def _asked(id: str, **more: object) -> Operation:
    fields = {
        "path": "/v1/chat/completions",
        "messages": [Message(role="user", content="go")],
        "parameters": {"temperature": 0, "tools": [], "max_tokens": 9, "user": "x"},
        **more,
    }
    return Operation(id=id, **fields)  # type: ignore[arg-type]


def _simpler(case: Case) -> Case:
    play = PlayFacts(number=1, what="", requests=2, state="ended")
    for change in changes(case, Observation(play=play)):
        case = change.made(case)
    return case


def test_two_answers_that_are_compared_keep_stream_and_sampling() -> None:
    streamed = _asked("r1", stream=True, expect=Expect(same_as="r1-whole"))
    case = Case(server=SERVER, operations=[_asked("r1-whole"), streamed])
    whole, left = _simpler(case).operations
    assert left.stream
    for op in (whole, left):
        assert op.parameters == {"temperature": 0, "tools": [], "max_tokens": 9}


def test_an_answer_that_is_compared_with_none_keeps_what_bounds_it() -> None:
    case = Case(server=SERVER, operations=[_asked("r1", stream=True)])
    (left,) = _simpler(case).operations
    assert (left.stream, left.parameters) == (False, {"max_tokens": 9})
