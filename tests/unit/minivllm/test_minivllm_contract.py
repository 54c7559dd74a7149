"""The contract: a right step breaks nothing; each invariant is broken once, by
itself."""

from dataclasses import replace
from typing import Any

import pytest
from mmrepro.reproducers.minivllm.contract import (
    INVARIANTS,
    ContractError,
    SequenceView,
    StepHistory,
    StepView,
    check,
)

FIRST = SequenceView("a", 0, 6, [3, 1], embeddings=3)
SECOND = SequenceView("b", 4, 7, [2, 5], embeddings=4)
RIGHT = StepView(
    sequences=[FIRST, SECOND],
    block_size=4,
    num_blocks=8,
    num_tokens=9,
    positions=[0, 1, 2, 3, 4, 5, 4, 5, 6],
    slot_mapping=[12, 13, 14, 15, 4, 5, 20, 21, 22],
    cu_seqlens_q=[0, 6, 9],
    cu_seqlens_k=[0, 6, 13],
    mask=[1, 1, 1, 0, 0, 0, 0, 0, 0],
    rows=3,
    width=16,
    hidden_size=16,
    inputs_embeds=(9, 16),
)


def names(step: StepView) -> list[str]:
    return [violation.invariant for violation in check(step)]


def test_a_right_step_breaks_nothing() -> None:
    assert names(RIGHT) == []


def test_what_is_not_known_is_not_checked() -> None:
    assert names(StepView(sequences=[SequenceView("a", 0, 6)])) == []


def table(*blocks: int) -> dict[str, Any]:
    return {
        "sequences": [replace(FIRST, block_table=list(blocks)), SECOND],
        "slot_mapping": None,
    }


BROKEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a token too many": ({"num_tokens": 10}, ["lengths"]),
    "a position too few": ({"positions": RIGHT.positions[:-1]}, ["lengths"]),  # type: ignore[index]
    "a short mask": ({"mask": [1, 1, 1]}, ["lengths"]),
    "short embeddings": ({"inputs_embeds": (8, 16)}, ["lengths"]),
    "a slot too few": (
        {"slot_mapping": [12, 13, 14, 15, 4, 5, 20, 21]},
        ["slot-count"],
    ),
    "the null block": (
        {"slot_mapping": [12, 13, 14, 15, 4, 5, 20, 21, 2]},
        ["slot-bounds", "slot-owner"],
    ),
    "beyond the cache": (
        {"slot_mapping": [12, 13, 14, 15, 4, 5, 20, 21, 32]},
        ["slot-bounds", "slot-owner"],
    ),
    "a slot twice": (
        {"slot_mapping": [12, 13, 14, 15, 4, 4, 20, 21, 22]},
        ["slot-unique", "slot-owner"],
    ),
    "another's block": (
        {"slot_mapping": [12, 13, 14, 15, 4, 24, 20, 21, 22]},
        ["slot-owner"],
    ),
    "a block too few": (table(3), ["block-table"]),
    "a block twice": (table(3, 3), ["block-table"]),
    "no such block": (table(3, 9), ["block-table"]),
    "the null block in a table": (table(3, 0), ["block-table"]),
    "positions start anew": ({"positions": [0, 1, 2, 3, 4, 5, 0, 1, 2]}, ["positions"]),
    "positions of the text": (
        {"positions": [0, 1, 2, 0, 1, 2, 4, 5, 6]},
        ["positions"],
    ),
    "cu_seqlens_q": ({"cu_seqlens_q": [0, 3, 6]}, ["cu-seqlens"]),
    "cu_seqlens_k": ({"cu_seqlens_k": [0, 6, 9]}, ["cu-seqlens"]),
    "a row too many": ({"rows": 4}, ["mask-rows"]),
    "more marked than rows": (
        {"mask": [1, 1, 1, 1, 0, 0, 0, 0, 0]},
        ["mask-rows", "mask-place"],
    ),
    "as many, elsewhere": ({"mask": [0, 1, 1, 1, 0, 0, 0, 0, 0]}, ["mask-place"]),
    "narrow rows": ({"width": 8}, ["embeds-width"]),
    "narrow inputs_embeds": ({"inputs_embeds": (9, 8)}, ["embeds-width"]),
}


@pytest.mark.parametrize(("change", "broken"), BROKEN.values(), ids=list(BROKEN))
def test_one_thing_wrong(change: dict[str, Any], broken: list[str]) -> None:
    assert names(replace(RIGHT, **change)) == broken


def test_every_invariant_is_broken_somewhere() -> None:
    seen = {name for _, broken in BROKEN.values() for name in broken} | {"written-once"}
    assert seen == set(INVARIANTS)


def step(start: int, end: int, life: int = 0) -> StepView:
    return StepView(sequences=[SequenceView("a", start, end, life=life)])


def test_tokens_are_written_once() -> None:
    history = StepHistory()
    assert history.check(step(2, 6)) == []  # two came with a shared prefix
    assert history.check(step(6, 7)) == []
    assert [v.invariant for v in history.check(step(6, 8))] == ["written-once"]
    assert [v.invariant for v in history.check(step(9, 10))] == ["written-once"]
    assert history.check(step(0, 10, life=1)) == []  # preempted: all of it again
    history.forget("a")
    assert history.check(step(0, 3)) == []


def test_the_error_says_what_and_how_many() -> None:
    error = ContractError(check(replace(RIGHT, rows=4)))
    assert str(error) == "mask-rows: 3 tokens are marked for 4 rows"
