"""Whose answer it was: answers compared token by token, logprob by logprob."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import request
from mmrepro.failure.signature import Finding, Truth
from mmrepro.failure.signature.comparison import (
    ComparedAnswers,
    first_difference,
    same,
    spelled,
)
from mmrepro.traffic.evidence import Evidence, Missing, RequestRecord


def answer(
    tokens: str, *logprobs: float, label: str = "gate: A alone", **more: Any
) -> RequestRecord:
    """One letter is one token."""
    phase = "gate" if label.startswith("gate") else "trigger"
    return request(phase, label, tokens=list(tokens), logprobs=list(logprobs), **more)


def gate(picture: str, *answers: tuple[str, float]) -> list[RequestRecord]:
    kinds = ("alone", "again", "after others")
    return [
        answer(tokens, logprob, label=f"gate: {picture} {kind}")
        for kind, (tokens, logprob) in zip(kinds, answers, strict=False)
    ]


A, B = gate("A", ("x", -1.0), ("x", -1.0)), gate("B", ("y", -2.0), ("y", -2.0))


def differ(*records: RequestRecord) -> Finding:
    return ComparedAnswers(Evidence(requests=list(records))).differ("A", "B")


def test_each_picture_has_an_answer_of_its_own() -> None:
    assert differ(*A, *B) == Finding(
        Truth.MET, "A, B alone: different answers, repeatable"
    )


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (A, "B alone was not answered"),
        ([*A, answer("y", -2.0, label="gate: B later")], "B alone was not answered"),
        ([*A, *B[:1]], "B was not answered twice"),
        (
            [*A, *gate("B", ("y", -2.0), ("z", -2.0))],
            "B is not answered alike twice: token 1",
        ),
        (
            [*A, *gate("B", ("x", -1.0), ("x", -1.5))],
            "A and B get one and the same answer",
        ),
        (
            [*A, *gate("B", ("x", -1.5), ("x", -1.0))],
            "A and B get one and the same answer",
        ),
        (
            [*A, answer("y", label="gate: B alone"), B[1]],
            "B: the server gives no logprobs",
        ),
    ],
)
def test_else_the_gate_fails(records: list[RequestRecord], why: str) -> None:
    found = differ(*records)
    assert found.truth is Truth.NOT_MET
    assert found.observed.startswith(why)


def test_a_logprob_more_or_less_in_a_repeat_is_no_difference() -> None:
    """It was computed on the cached prefix, and rounds in another way."""
    assert differ(*A, *gate("B", ("y", -2.0), ("y", -2.1))).truth is Truth.MET


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (answer("ab", -1.0, -2.0), True),
        (answer("ac", -1.0, -2.0), False),
        (answer("ab", -1.0, -2.5), False),
        (answer("ac", -1.0, -2.5), False),
    ],
)
def test_alike_is_token_by_token_and_logprob_by_logprob(
    other: RequestRecord, alike: bool
) -> None:
    assert same(answer("ab", -1.0, -2.0), other) is alike
    assert same(other, answer("ab", -1.0, -2.0)) is alike


def test_answers_without_logprobs_are_like_no_other() -> None:
    assert not same(answer("ab"), answer("ab"))


@pytest.mark.parametrize(
    ("other", "where"),
    [
        (answer("xb", -1.0, -2.0), "token 1: 'a' against 'x'"),
        (answer("ax", -1.0, -3.0), "token 2: 'b' against 'x'"),
        (answer("ab", -1.0, -2.5), "token 2: logprob -2.0000 against -2.5000"),
        (answer("abc", -1.0, -2.0, -3.0), "2 against 3 tokens"),
        (answer("ab", -1.0, -2.0), "no difference"),
    ],
)
def test_where_two_answers_part(other: RequestRecord, where: str) -> None:
    assert first_difference(answer("ab", -1.0, -2.0), other) == where


def test_an_answer_for_people() -> None:
    assert spelled(answer("a\n", -1.0, -2.0)) == "a \\n"
    assert spelled(answer("", text="whole")) == "whole"


def test_it_is_the_last_answer_that_counts() -> None:
    first, last = (answer(t, -1.0, label="B after A") for t in "yz")
    other = answer("w", -1.0, label="B after A and others")
    failed = request("trigger", "B after A", 500)
    compared = ComparedAnswers(Evidence(requests=[first, last, other, failed]))
    assert compared.to("B after A") is last
    with pytest.raises(Missing, match="A after B was not answered"):
        compared.to("A after B")
    assert not compared.alike("B after A", "B after A and others")
    assert compared.alike("B after A", "B after A")


def test_whose_answer_it_was() -> None:
    texts = {
        "x": (
            "A",
            (
                "B after A: A's answer, all 1 tokens and logprobs; from its own it "
                "differs at"
            ),
        ),
        "y": ("B", "B after A: B's own answer"),
        "z": (
            "",
            "B after A: neither A's nor B's answer; from its own it differs at token 1",
        ),
    }
    for token, (whose, text) in texts.items():
        logprob = {"x": -1.0, "y": -2.0, "z": -3.0}[token]
        sent = answer(token, logprob, label="B after A")
        compared = ComparedAnswers(Evidence(requests=[*A, *B, sent]))
        assert compared.after("A", "B")[0] == whose
        assert compared.after("A", "B")[1].startswith(text)
        own = Truth.MET if whose == "B" else Truth.NOT_MET
        assert compared.own("A", "B").truth is own


@pytest.mark.parametrize(
    ("reported", "counted", "expected"),
    [(None, 9, 0), (None, 8, None), (None, None, None), (0, 8, 0), (3, None, 3)],
)
def test_nothing_is_zero_where_the_counter_agrees(
    reported: int | None, counted: int | None, expected: int | None
) -> None:
    sent = answer("x", -1.0, label="B first", cached_tokens=reported)
    others = [
        answer("x", -1.0, label=name, cached_tokens=n)
        for name, n in (("a", 9), ("b", None))
    ]
    evidence = Evidence(
        requests=[sent, *others], facts={"cached_tokens_total": counted}
    )
    compared = ComparedAnswers(evidence)
    if expected is None:
        with pytest.raises(Missing, match="what came from the cache is unknown"):
            compared.cached("B first")
    else:
        assert compared.cached("B first") == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (8, 8, Truth.MET),
        (7, 8, Truth.NOT_MET),
        (8, 7, Truth.NOT_MET),
        (6, 6, Truth.NOT_MET),
    ],
)
def test_more_than_the_text(first: int, second: int, expected: Truth) -> None:
    sizes = {"text": 7, "one": first, "two": second}
    sent = [answer("x", -1.0, label=name, cached_tokens=n) for name, n in sizes.items()]
    found = ComparedAnswers(Evidence(requests=sent)).more_than_text(
        "text", "one", "two"
    )
    assert found.truth is expected


def test_where_they_part_is_told_of_the_first_answer() -> None:
    found = differ(*A, *gate("B", ("y", -2.0), ("z", -2.0), ("y", -2.0)))
    assert found.observed == "B is not answered alike twice: token 1: 'y' against 'z'"
    sent = answer("v", -3.0, label="B after A")
    odd = gate("B", ("y", -2.0), ("w", -2.0))
    told = ComparedAnswers(Evidence(requests=[*A, *odd, sent])).after("A", "B")[1]
    assert told.endswith("from its own it differs at token 1: 'v' against 'y'")
