"""Shrinking, on models of failures: what is left, and how many plays it took."""

import random

import pytest
from fake_plays import (
    SERVER,
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
    """As the checker's: the refused picture, it again, and new ones, among ordinary
    requests."""
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
            ops.append(
                fake_op(name, text="LONG" if chance.random() < 0.04 else "a" * number)
            )
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
    """Operations of several kinds; the last culprit hangs, if all the others came
    before it."""
    ids = [f"r{n}" for n in culprits]
    sizes = {"shared": 50} | {
        f"own{n}": 60 for n, kind in enumerate(kinds) if kind == 1
    }
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


def test_two_places_make_the_same_shrink_in_fewer_rounds() -> None:
    """What is not needed is made for nothing: the walk, its steps and its end are those
    of one."""
    alone = beside = 0
    for seed in range(6):
        case = ghost_trace(seed, 120)
        one, two = (FakeTest(FakeGhostKey(1000)) for _ in range(2))
        two.jobs = 2
        ended = [shrunk(case, test) for test in (one, two)]
        assert ended[0].steps == ended[1].steps
        assert ended[0].case == ended[1].case
        assert one.rounds == 0
        assert two.plays <= 1.5 * one.plays
        alone, beside = alone + one.plays, beside + two.rounds
    assert alone / (2 * beside) >= 0.8


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    kinds = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=3, max_size=60))
    places = st.integers(0, len(kinds) - 1)
    return sorted(draw(st.sets(places, min_size=1, max_size=3))), kinds


@given(traces())
def test_exactly_the_culprits_are_left_in_few_plays(
    trace: tuple[list[int], list[int]],
) -> None:
    culprits, kinds = trace
    case, test = planted(culprits, kinds)
    found = shrunk(case, test)
    assert found.ids == [f"r{n}" for n in culprits]
    assert found.minimal
    assert set(found.needed) == set(found.ids)
    assert test.plays <= 32


# -------------------------------------------------------- options and requests together


def bound(
    needs: dict[str, list[str]], culprits: list[str], total: int
) -> tuple[Case, FakeTest]:
    """The last culprit hangs where all of them are there, and where for each thing that
    is there (a request, an option) one of those that ``needs`` lists for it is there as
    well."""
    named = {name for thing, wanted in needs.items() for name in (thing, *wanted)}
    options = sorted(name for name in named if name.startswith("--"))
    ops = [fake_op(f"r{n}", text="a" * (n + 1)) for n in range(total)]
    server = SERVER.model_copy(update={"args": options})
    case = fake_case(ops).model_copy(update={"server": server})

    def engine(case: Case) -> dict[str, str]:
        there = {op.id for op in case.operations} | set(case.server.args)
        kept = all(
            there & set(wanted) for thing, wanted in needs.items() if thing in there
        )
        fails = kept and there >= set(culprits)
        return answered_until(case, culprits[-1] if fails else None)

    return case, FakeTest(engine)


def without(case: Case, name: str) -> Case:
    if name.startswith("--"):
        args = [arg for arg in case.server.args if arg != name]
        return case.model_copy(
            update={"server": case.server.model_copy(update={"args": args})}
        )
    return case.keeping([op.id for op in case.operations if op.id != name])


def holds(case: Case, test: FakeTest) -> bool:
    return STUCK in test.engine(case).values()


def test_an_option_that_only_a_request_needs_goes_after_it() -> None:
    """``--limit`` keeps r1 from another failure; without r1 nothing needs it. r2 is
    only there for ``--seed``."""
    case, test = bound(
        {"r1": ["--limit"], "--seed": ["r2"], "r3": ["--seed", "--limit"]}, ["r4"], 6
    )
    found = shrunk(case, test)
    assert (found.ids, found.case.server.args) == (["r4"], [])
    assert (found.minimal, found.needed_options) == (True, {})


things = st.sampled_from([f"r{n}" for n in range(6)] + ["--a", "--b", "--c"])


@given(
    st.dictionaries(things, st.lists(things, min_size=1, max_size=2), max_size=6),
    st.sets(st.integers(0, 5), min_size=1, max_size=2),
    st.integers(1, 60),
)
def test_what_is_called_needed_is_needed_by_what_is_left(
    needs: dict[str, list[str]], culprits: set[int], budget: int
) -> None:
    case, test = bound(needs, [f"r{n}" for n in sorted(culprits)], 6)
    if not holds(case, test):
        return
    test.budget = budget
    found = shrunk(case, test)
    left = found.case
    assert holds(left, test)
    for name in [*found.needed_options, *found.needed]:
        alone = name in found.needed and len(left.operations) == 1
        stands_in = found.needed[name].by if name in found.needed else ""
        assert alone or stands_in or not holds(without(left, name), test), name
    if found.minimal and found.plainer and not found.not_tried:
        assert set(found.needed) == set(found.ids)
        assert set(found.needed_options) == set(left.server.args)
    assert found.minimal or found.not_tried
