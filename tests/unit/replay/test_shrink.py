"""Shrinking, on models of failures: what is left, and how many plays it took."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from mmrepro.case.model import Case
from mmrepro.replay.shrink import Shrinking

sys.path.insert(0, str(Path(__file__).parent))

from fake_plays import (
    FakeGhostKey,
    FakeTest,
    fake_case,
    fake_op,
    fake_seen,
)


def shrunk(case: Case, test: FakeTest) -> Shrinking:
    seen = fake_seen(case, test.engine(case))
    assert seen.has(test.bucket)

    def failing(seen):  # type: ignore[no-untyped-def]
        sighting = seen.sighting(test.bucket)
        return sighting.operations if sighting else []

    shrinking = Shrinking(case, seen, test, failing)
    shrinking.run()
    return shrinking


def ghost_trace(seed: int, n: int = 200) -> Case:
    """As the checker's: the refused picture, it again, and new ones, among ordinary requests."""
    chance = random.Random(seed)
    sizes = {f"p{i}": chance.choice((50, 60, 100)) for i in range(3)} | {"x": 100}
    trigger = chance.randint(n // 5, n // 3)
    again = trigger + chance.randint(2, 6)
    fills = set(chance.sample(range(again + 4, n - 10), 14))
    ops = []
    for number in range(n):
        name = f"r{number}"
        if number == trigger:
            ops.append(fake_op(name, "x", text="LONG"))
        elif number == again:
            ops.append(fake_op(name, "x"))
        elif number in fills:
            sizes[f"new{number}"] = 100
            ops.append(fake_op(name, f"new{number}"))
        elif chance.random() < 0.08 and not trigger < number < again:
            ops.append(fake_op(name, chance.choice(("p0", "p1", "p2"))))
        else:
            ops.append(fake_op(name, text="LONG" if chance.random() < 0.04 else "a" * number))
    return fake_case(ops, sizes)


@pytest.mark.parametrize("seed", range(20))
def test_the_ghost_key_among_two_hundred_requests(seed: int) -> None:
    case = ghost_trace(seed)
    test = FakeTest(FakeGhostKey(1000))
    found = shrunk(case, test)
    print(seed, len(found.ids), test.plays, found.not_tried)
    assert found.minimal
    assert len(found.ids) <= 15
    assert test.plays <= 31
