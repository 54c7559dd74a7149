"""Answers of two sides: a change at a large margin is named, a near tie apart, chance
never."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from made_up_answers import play, prompt_of
from made_up_plays import case_of, operation
from mmrepro.failure.documents.upgrade import Difference, Outcome, Side, SideRun
from mmrepro.search.oracle import side_answers
from mmrepro.traffic.case.model import Case, Operation
from mmrepro.traffic.evidence import RequestRecord, ToolCall

OPS = [
    *(operation(f"r{i}", f"text {i}") for i in range(20)),
    *(operation(f"s{i}", f"text {i} too", stream=True) for i in range(5)),
    operation("t1", "a tool", tools=[{"type": "function"}]),
    operation("g1", "a grammar", response_format={"type": "json_object"}),
]
CASE = case_of(OPS)
LARGE, SMALL = 2.5, 0.01


def sides(
    case: Case = CASE,
    noise: float = SMALL,
    swapped: str = "",
    times: int = 2,
    change=None,
) -> tuple[list[SideRun], list[SideRun]]:
    """``swapped``: an operation to which NEW gives another answer."""

    def runs(side: Side) -> list[SideRun]:
        other = {swapped: "quite another text"} if swapped and side == "new" else {}
        changed = change if side == "new" else None
        made = [
            play(
                case,
                noise=noise,
                seed=len(side) + (side == "new"),
                answers=other,
                change=changed,
            )
            for _ in range(times)
        ]
        return [
            SideRun(side=side, index=i, played=one) for i, one in enumerate(made, 1)
        ]

    return runs("old"), runs("new")


def compared(*given: list[SideRun], case: Case = CASE) -> dict[str, Difference]:
    found = side_answers.compare(*given, case=case)
    assert len({one.subject for one in found}) == len(found)
    return {one.subject: one for one in found}


def test_noise_of_another_kernel_is_no_difference() -> None:
    found = compared(*sides())
    assert all(one.outcome is Outcome.NONE for one in found.values())
    assert {"answers", "streamed answers", "structured answers"} <= {
        subject.partition(",")[0] for subject in found
    }


@pytest.mark.parametrize(
    ("id", "subject"),
    [
        ("r7", "answers"),
        ("s2", "streamed answers"),
        ("t1", "answers to requests with tools"),
        ("g1", "structured answers"),
    ],
)
def test_another_answer_is_named_by_its_kind(id: str, subject: str) -> None:
    found = compared(*sides(swapped=id))
    named = [one for one in found.values() if one.outcome is Outcome.DIFFERENCE]
    assert [(one.subject, one.evidence, one.matters) for one in named] == [
        (subject, [id], True)
    ]
    assert "token " in named[0].statement
    assert "nats" in named[0].statement


def test_one_token_at_a_large_margin() -> None:
    """A token of no odds at all is taken; what follows is as it was."""

    def one_token(op: Operation, record: RequestRecord) -> RequestRecord:
        if op.id == "r3":
            choice = record.choices[0]
            choice.tokens[4], choice.logprobs[4] = "Z", -9.0
            choice.text = "".join(choice.tokens)
        return record

    found = compared(*sides(change=one_token))
    assert found["answers"].evidence == ["r3"]
    assert "token 5: 'Z'" in found["answers"].statement


def test_a_near_tie_stands_apart() -> None:
    """With noise as between number formats some answers part, none of them by much."""
    case = case_of([operation(f"r{i}", f"prompt {i}") for i in range(60)])
    found = compared(*sides(case, noise=0.05), case=case)
    assert found["answers, near ties"].outcome is Outcome.NONE
    assert not any(one.matters for one in found.values())
    assert "answers" not in found


def test_a_side_that_does_not_agree_with_itself_is_not_compared() -> None:
    old, new = sides(noise=0.0)
    other = play(CASE, answers={"r5": "something else"})
    new[1].played = other
    found = compared(old, new)
    assert found["not compared"].evidence == ["r5"]
    assert "NEW answers it otherwise each time" in found["not compared"].statement


def test_a_sampled_answer_is_compared_only_if_it_is_repeated() -> None:
    case = case_of([operation("r1", "x", temperature=1.0, seed=3)])
    once = compared(*sides(case, times=1, swapped="r1"), case=case)
    assert once["answers"].outcome is Outcome.UNTOLD
    twice = compared(*sides(case, times=2, swapped="r1"), case=case)
    assert twice["answers, sampled"].outcome is Outcome.DIFFERENCE
    assert not twice["answers, sampled"].matters


def test_answers_that_one_side_alone_repeats_are_named() -> None:
    """Of vLLM 0.24.0 and 0.32.0 on the CPU: the older one draws a batch without its
    seeds where one request of it has none."""
    case = case_of(
        [operation(f"r{i}", f"{i}", temperature=1.0, seed=i) for i in range(25)]
    )
    old, new = sides(case, noise=0.0)
    for run, back in ((old, False), (new, True)):
        kept = run[1].played
        ids = {f"r{i}": f"another text {i}" for i in range(24)}
        run[1].played = play(case, noise=0.0, answers=ids)
        named = compared(old, new, case=case)["requests with a seed, repeated"]
        assert (named.outcome, named.matters) == (Outcome.DIFFERENCE, back)
        assert set(named.evidence) == set(ids)
        few = {f"r{i}": f"another text {i}" for i in range(4)}
        run[1].played = play(case, noise=0.0, answers=few)
        assert "requests with a seed, repeated" not in compared(old, new, case=case)
        run[1].played = kept


def test_a_seed_draws_others_from_another_stream_of_random_numbers() -> None:
    case = case_of([operation("r1", "x", temperature=1.0, seed=3)])
    old, new = sides(case, noise=0.0, swapped="r1")
    for run in (*old, *new):
        without_logprobs(case.operations[0], run.played.evidence.requests[-1])
    found = compared(old, new, case=case)
    assert found["answers, sampled"].outcome is Outcome.DIFFERENCE
    assert all(one.outcome is not Outcome.UNTOLD for one in found.values())


def test_bytes_that_are_spelled_out_are_the_same_tokens() -> None:
    """Of SGLang 0.5.17 and 0.5.23: a byte that is no character by itself is U+FFFD, or
    as latin-1 has it."""

    def spelled(first: str) -> Callable[[Operation, RequestRecord], RequestRecord]:
        def change(op: Operation, record: RequestRecord) -> RequestRecord:
            choice = record.choices[0]
            choice.tokens[0] = first
            choice.text = "\ufffd" + "".join(choice.tokens[1:])
            return record

        return change

    older = sides(noise=0.0, change=spelled("\ufffd"))[1]
    newer = sides(noise=0.0, change=spelled("\xf6"))[1]
    older = [run.model_copy(update={"side": "old"}) for run in older]
    found = compared(older, newer)
    assert found["tokens of logprobs"].outcome is Outcome.DIFFERENCE
    assert not found["tokens of logprobs"].matters
    assert "'\ufffd' → 'ö'" in found["tokens of logprobs"].statement
    assert found["answers"].outcome is Outcome.NONE
    assert not any(one.matters for one in found.values())
    other = compared(older, sides(noise=0.0, change=spelled("\xf6"), swapped="r7")[1])
    # What it began with may be another byte.
    assert other["answers, near ties"].evidence == ["r7"]


@pytest.mark.parametrize("refuses", ["OLD", "NEW", "OLD and NEW"])
def test_who_gave_no_completion_is_named(refuses: str) -> None:
    old, new = sides(noise=0.0)
    for name, runs in (("OLD", old), ("NEW", new)):
        for run in runs if name in refuses else ():
            (record,) = (r for r in run.played.evidence.requests if r.label == "r5")
            record.status, record.choices = 400, []
    one = compared(old, new)["not compared"]
    assert one.evidence == ["r5"]
    assert f"no completion by {refuses}." in one.statement


def test_what_the_client_left_is_held_against_no_side() -> None:
    old, new = sides(noise=0.0)
    (record,) = (r for r in new[0].played.evidence.requests if r.label == "r5")
    record.left = True
    one = compared(old, new)["not compared"]
    assert one.evidence == ["r5"]
    assert one.statement.endswith("not answered by all runs, or left by the client.")


def without_logprobs(op: Operation, record: RequestRecord) -> RequestRecord:
    for choice in record.choices:
        choice.tokens, choice.logprobs, choice.top = [], [], []
    return record


def bare(
    given: tuple[list[SideRun], list[SideRun]],
) -> tuple[list[SideRun], list[SideRun]]:
    for run in (*given[0], *given[1]):
        assert run.played is not None
        for record in run.played.evidence.requests:
            without_logprobs(OPS[0], record)
    return given


def test_without_logprobs_a_difference_may_be_a_tie() -> None:
    found = compared(*bare(sides(noise=0.0, swapped="r7")))
    assert found["answers, without logprobs"].outcome is Outcome.UNTOLD
    assert found["answers, without logprobs"].evidence == ["r7"]


def test_an_exact_engine_needs_no_logprobs() -> None:
    case = case_of(OPS, engine="minivllm")
    found = compared(*bare(sides(case, noise=0.0, swapped="r7")), case=case)
    assert found["answers"].evidence == ["r7"]
    assert found["answers"].matters


def test_the_same_tokens_parsed_into_another_call() -> None:
    def parsed(op: Operation, record: RequestRecord) -> RequestRecord:
        if op.id == "t1":
            record.choices[0].finish_reason = "tool_calls"
            record.choices[0].tool_calls = [ToolCall(name="f", arguments="{}")]
        return record

    old, new = sides(change=parsed)
    for run in old:
        assert run.played is not None
        run.played.record("t1").choices[0].finish_reason = "stop"  # type: ignore[union-attr]
    found = compared(old, new)
    assert "of the same tokens the calls of tools are" in (
        found["answers to requests with tools"].statement
    )


def test_odds_that_moved_everywhere_are_said() -> None:
    """Another model, so to say: nothing is near anything."""
    chance = random.Random(1)

    def shaken(op: Operation, record: RequestRecord) -> RequestRecord:
        for choice in record.choices:
            choice.top = [
                [(t, p + chance.uniform(-LARGE, LARGE)) for t, p in top]
                for top in choice.top
            ]
        return record

    found = compared(*sides(change=shaken))
    assert found["answers"].outcome is Outcome.UNTOLD
    assert "moved more than an answer can bear" in found["not compared"].statement


def test_prompts_are_what_the_answers_follow_from() -> None:
    assert len({prompt_of(op) for op in OPS}) == len(OPS)
