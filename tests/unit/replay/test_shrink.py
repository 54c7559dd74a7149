"""Shrinking, on models of failures: what is left, and how many plays it took."""

from __future__ import annotations

import random

import pytest
from fake_plays import (
    FakeGhostKey,
    FakeTest,
    answered_until,
    fake_case,
    fake_op,
    fake_seen,
)
from hypothesis import given, strategies as st
from mmrepro.search.replay.shrink import Shrinking
from mmrepro.search.replay.store import STUCK, Observation
from mmrepro.traffic.case.model import Case


def shrunk(case: Case, test: FakeTest) -> Shrinking:
    seen = fake_seen(case, test.engine(case))
    assert seen.has(test.bucket)

    def failing(seen: Observation) -> list[str]:
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
    assert found.minimal
    assert len(found.ids) <= 15
    assert test.plays <= 25
    assert {op.id for op in case.operations if "x" in op.images} <= set(found.ids)
    assert not any(
        test.engine(found.case.keeping(set(found.ids) - {op}))[found.ids[-1]] == STUCK
        for op in found.ids[:-1]
    )


def planted(culprits: list[int], kinds: list[int]) -> tuple[Case, FakeTest]:
    """Operations of several kinds; the last culprit hangs, if all the others came before it."""
    ids = [f"r{n}" for n in culprits]
    sizes = {"shared": 50} | {f"own{n}": 60 for n, kind in enumerate(kinds) if kind == 1}
    images = {0: (), 1: ("own",), 2: ("shared",), 3: ()}
    ops = []
    for n, kind in enumerate(kinds):
        names = [f"own{n}" if name == "own" else name for name in images[kind]]
        ops.append(fake_op(f"r{n}", *names, text="LONG" if kind == 3 else "a" * n))

    def engine(case: Case) -> dict[str, str]:
        refused = [op.id for op in case.operations if op.id in long]
        there = {op.id for op in case.operations}
        return answered_until(case, ids[-1] if there >= set(ids) else None, refused)

    long = [f"r{n}" for n, kind in enumerate(kinds) if kind == 3]
    return fake_case(ops, sizes), FakeTest(engine)


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    kinds = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=3, max_size=60))
    places = st.integers(0, len(kinds) - 1)
    return sorted(draw(st.sets(places, min_size=1, max_size=3))), kinds


@given(traces())
def test_exactly_the_culprits_are_left_in_few_plays(trace: tuple[list[int], list[int]]) -> None:
    culprits, kinds = trace
    case, test = planted(culprits, kinds)
    found = shrunk(case, test)
    assert found.ids == [f"r{n}" for n in culprits]
    assert found.minimal
    assert set(found.needed) == set(found.ids)
    assert test.plays <= 32
