"""The form of answers: what is planted is named, once; noise and other texts are no
difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from made_up_plays import answer, case_of, operation, refused
from mmrepro.failure.documents.upgrade import Difference, Outcome, SideRun
from mmrepro.search.oracle import side_form
from mmrepro.search.oracle.side_form import fields_of
from mmrepro.traffic.evidence import RequestRecord, ToolCall
from upgrade_sides import Change, nothing, run, sides

OPS = [operation(f"r{i}", f"text {i}", stream=i % 2 == 0) for i in range(6)]
CASE = case_of(OPS)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(0, 1)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner)
    ),
    max_leaves=12,
)


def compared(change: Change) -> list[Difference]:
    found = side_form.compare(*sides(CASE, answer, change), case=CASE)
    return [one for one in found if one.outcome is Outcome.DIFFERENCE]


def test_the_same_answers() -> None:
    (found,) = side_form.compare(*sides(CASE, answer, nothing), case=CASE)
    assert found.outcome is Outcome.NONE


def renamed(record: RequestRecord, body: dict[str, Any]) -> None:
    body["usage"]["prompt_token_count"] = body["usage"].pop("prompt_tokens")


def gone(record: RequestRecord, body: dict[str, Any]) -> None:
    del body["usage"]


def empty_gone(record: RequestRecord, body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        del choice["message"]["reasoning"]


def no_calls(record: RequestRecord, body: dict[str, Any]) -> None:
    """vLLM 0.24.0 leaves an empty list of calls out (its ChatMessage has a
    serializer)."""
    for choice in body["choices"]:
        del choice["message"]["calls"]


def added(record: RequestRecord, body: dict[str, Any]) -> None:
    body["usage"]["cost"] = {"cents": 1}


def retyped(record: RequestRecord, body: dict[str, Any]) -> None:
    body["id"] = 7


def another_end(record: RequestRecord, body: dict[str, Any]) -> None:
    record.finish_reason = "max_tokens"
    for choice, told in zip(record.choices, body["choices"], strict=True):
        choice.finish_reason = told["finish_reason"] = "max_tokens"


def longer_prompts(record: RequestRecord, body: dict[str, Any]) -> None:
    record.prompt_tokens = (record.prompt_tokens or 0) + 4


@pytest.mark.parametrize(
    ("change", "subject", "says", "matters"),
    [
        (
            renamed,
            "usage.prompt_tokens",
            "usage.prompt_token_count, perhaps the same",
            True,
        ),
        (gone, "usage", "is gone from 3 of 3", True),
        (empty_gone, "choices[].message.reasoning", "it was always null", False),
        (no_calls, "choices[].message.calls", "it was always empty", False),
        (added, "usage.cost", "is new in 3 of 3", False),
        (retyped, "id", "integer in place of string", True),
    ],
)
def test_a_planted_field_is_named_for_streams_and_whole_answers(
    change: Change, subject: str, says: str, matters: bool
) -> None:
    (one,) = compared(change)
    assert (one.subject, one.matters) == (subject, matters)
    assert says in one.statement
    assert "streamed and 3 of 3 answers of" in one.statement
    assert sorted(one.evidence) == [op.id for op in OPS]


def test_a_reason_to_end() -> None:
    (one,) = compared(another_end)
    assert (one.subject, one.old, one.new) == ("finish_reason", "length", "max_tokens")
    assert one.matters
    assert "6 answers with the same text" in one.statement


def test_several_sampled_answers_that_end_otherwise_say_nothing() -> None:
    """vLLM 0.24.0 beside 0.23.0: of two sampled answers one was longer."""
    case = case_of([operation("r1", n=2, temperature=0.8)])

    def shorter(record: RequestRecord, body: dict[str, Any]) -> None:
        record.choices[1].text, record.choices[1].finish_reason = "ab", "stop"

    (found,) = side_form.compare(*sides(case, answer, shorter), case=case)
    assert found.outcome is Outcome.NONE


def test_token_counts() -> None:
    (one,) = compared(longer_prompts)
    assert one.subject == "usage.prompt_tokens"
    assert "by +4 in 6 of 6" in one.statement


def test_another_text_is_no_difference_of_form() -> None:
    """A tool is called on one side alone, and the reason to end follows from that."""

    def calls(record: RequestRecord, body: dict[str, Any]) -> None:
        if record.label != "r1":
            return
        record.choices[0].text, record.choices[0].finish_reason = "", "tool_calls"
        record.choices[0].tool_calls = [ToolCall(name="f")]
        told = body["choices"][0]["message"]
        told["content"], told["tool_calls"] = None, [{"function": {"name": "f"}}]

    assert compared(calls) == []


def test_refusals_are_compared_among_themselves() -> None:
    case = case_of([operation("r1")])

    def detailed(record: RequestRecord, body: dict[str, Any]) -> None:
        body["detail"] = body.pop("error")["message"]

    old, new = sides(case, refused, detailed)
    found = side_form.compare(old, new, case=case)
    assert {one.subject for one in found} == {"error", "detail"}
    assert all("/v1/chat/completions (400)" in one.statement for one in found)


def test_a_field_that_comes_and_goes_on_one_side_is_no_difference() -> None:
    def sometimes(record: RequestRecord, body: dict[str, Any]) -> None:
        body["service_tier"] = "x"

    records = [answer(op) for op in OPS]
    old = [run("old", records), run("old", records, sometimes, index=2)]
    new = [run("new", records), run("new", records, index=2)]
    (found,) = side_form.compare(old, new, case=CASE)
    assert found.outcome is Outcome.NONE


def test_nothing_that_both_sides_answer() -> None:
    old = [run("old", [answer(OPS[0])])]
    new = [run("new", [refused(OPS[0])])]
    (found,) = side_form.compare(old, new, case=CASE)
    assert found.outcome is Outcome.UNTOLD


# --------------------------------------------------------------------------- the schema


def test_fields_of_a_stream_are_those_of_all_pieces() -> None:
    pieces = [
        {"choices": [{"delta": {"role": "a"}}]},
        {"choices": [], "usage": {"n": 1}},
    ]
    text = (
        "".join(f"data: {json.dumps(piece)}\n" for piece in pieces) + "data: [DONE]\n"
    )
    assert fields_of(text.encode()) == {
        "choices": ["array"],
        "choices[]": ["object"],
        "choices[].delta": ["object"],
        "choices[].delta.role": ["string"],
        "usage": ["object"],
        "usage.n": ["integer"],
    }


def test_tokens_as_keys_are_data() -> None:
    told = {
        "logprobs": {"top_logprobs": [{" the": -1.0, "a": -2.5}, None, {"cat": -1.0}]}
    }
    assert fields_of(json.dumps(told).encode()) == {
        "logprobs": ["object"],
        "logprobs.top_logprobs": ["array"],
        "logprobs.top_logprobs[]": ["null", "object"],
        "logprobs.top_logprobs[].*": ["number"],
    }


def test_the_likeliest_tokens_of_a_chat_have_fields() -> None:
    told = {"top_logprobs": [{"token": "a", "logprob": -1.0}]}
    assert fields_of(json.dumps(told).encode())["top_logprobs[].token"] == ["string"]


HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Content-Length": "7",
    "Date": "now",
    "X-Request-Id": "7",
}


def test_of_headers_that_say_something_a_few_have_values() -> None:
    found = fields_of(b"", HEADERS)
    assert found == {
        "header content-type": ["text/event-stream"],
        "header x-request-id": ["there"],
    }


@pytest.mark.parametrize(
    ("headers", "subject", "says", "matters"),
    [
        (
            {"X-Request-Id": None},
            "header x-request-id",
            "is gone from 6 of 6 answers",
            False,
        ),
        ({"X-Served-By": "a"}, "header x-served-by", "is new in 6 of 6 answers", False),
        (
            {"Content-Type": "text/plain"},
            "header content-type",
            "is text/plain in place of",
            True,
        ),
        ({"X-Request-Id": "8", "Date": "then", "Content-Length": "9"}, "", "", False),
    ],
)
def test_a_header_that_comes_or_goes(
    headers: dict[str, str | None], subject: str, says: str, matters: bool
) -> None:
    case = case_of([operation(f"r{n}") for n in range(6)])
    old, new = sides(case, answer)
    newer = {
        name: value for name, value in (HEADERS | headers).items() if value is not None
    }
    for runs, told in ((old, HEADERS), (new, newer)):
        for one in runs:
            one.fields = {
                id: {**form, **fields_of(b"", told)} for id, form in one.fields.items()
            }
    found = [
        one for one in side_form.compare(old, new, case=case) if one.subject != "form"
    ]
    assert [(one.subject, one.matters) for one in found] == [(subject, matters)] * bool(
        subject
    )
    assert all(says in one.statement for one in found)


@given(JSON)
def test_each_answer_is_like_itself(value: object) -> None:
    """Whatever is sent: the same on both sides is the same form, and never raises."""
    data = json.dumps(value).encode()
    fields = fields_of(data)
    assert fields == fields_of(b"data: " + data + b"\n")
    records = [answer(op) for op in OPS]
    both = [run(side, records) for side in ("old", "new")]
    for one in both:
        one.fields = {op.id: fields for op in OPS}
    (found,) = side_form.compare(both[:1], both[1:], case=CASE)
    assert found.outcome is Outcome.NONE


@given(JSON, st.sampled_from(["mine", "a_field"]))
def test_a_field_beside_any_others_is_named(value: object, name: str) -> None:
    def beside(record: RequestRecord, body: dict[str, Any]) -> None:
        body[name] = value

    assert {one.subject for one in compared(beside)} == {name}


@given(st.binary(max_size=60))
def test_any_bytes_have_fields_or_none(data: bytes) -> None:
    assert isinstance(fields_of(data), dict)


def test_a_run_without_recorded_fields_is_compared_by_its_records() -> None:
    old, new = sides(CASE, answer, another_end)
    bare = [SideRun(**(one.__dict__ | {"fields": {}})) for one in new]
    found = side_form.compare(old, bare, case=CASE)
    assert [one.subject for one in found] == ["finish_reason"]
