"""Errors of the other forms of the API, in answers and in streams."""

from __future__ import annotations

import json

import pytest
from mmrepro.failure.signature.foreign_errors import foreign_error
from mmrepro.traffic.reading import _failure_of

MESSAGES = {"type": "error", "error": {"type": "internal_error", "message": "boom"}}


def test_an_error_of_v1_messages_is_the_engine_s() -> None:
    assert foreign_error(500, json.dumps(MESSAGES)) == ""


@pytest.mark.parametrize(
    "more",
    [
        {"request_id": "req_1"},
        {"type": "message"},
        {"error": {"type": "x", "message": "y", "code": None}},
        {"error": "boom"},
    ],
)
def test_what_a_gateway_adds_to_it_is_not(more: dict[str, object]) -> None:
    assert "no engine's form" in foreign_error(500, json.dumps(MESSAGES | more))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"type": "error", "message": "boom"}, "boom"),
        (
            {"type": "response.failed", "response": {"error": {"message": "boom"}}},
            "boom",
        ),
        ({"type": "response.failed", "response": {}}, "an error without a text"),
        ({"type": "response.completed", "response": {"error": None}}, ""),
    ],
)
def test_an_error_in_a_stream_of_responses(
    event: dict[str, object], words: str
) -> None:
    assert _failure_of(str(event["type"]), event) == words
