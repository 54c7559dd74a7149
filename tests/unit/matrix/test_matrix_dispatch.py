"""Who gets which cells: nothing twice, nothing never, and whole where that is
cheaper."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from grids import examples
from hypothesis import given, strategies as st
from matrix_nights import planned
from mmrepro.campaign.schedule import (
    Costs,
    Dispatcher,
    EnvironmentGroup,
    Slice,
    groups_of,
)


def groups(*sizes: int) -> list[EnvironmentGroup]:
    """Environments 1.0, 2.0, … with so many cells each."""
    names = "abcdefghijklmnopqrstuvwxyz"
    return groups_of(
        planned(f"{names[n % 26]}{n // 26}", f"{number}.0")
        for number, size in enumerate(sizes, 1)
        for n in range(size)
    )


def costs(
    plan: Sequence[EnvironmentGroup],
    seconds: float = 10.0,
    build: float = 0.0,
    setup: float = 0.0,
) -> Costs:
    names = [p.cell.id for group in plan for p in group.cells]
    return Costs(dict.fromkeys(names, seconds), lambda group: build, setup)


def nothing(group: EnvironmentGroup) -> bool:
    return False


def releases(*those: str) -> Callable[[EnvironmentGroup], bool]:
    return lambda group: group.release in those


def given_to(slice: Slice | None) -> tuple[str, int]:
    return ("", 0) if slice is None else (slice.group.release, len(slice.group.cells))


# ---------------------------------------------------------------- one machine


@pytest.mark.parametrize("sliced", [False, True])
def test_one_machine_gets_the_environments_in_the_order_of_the_plan(
    sliced: bool,
) -> None:
    plan = groups(2, 5, 1)
    dispatcher = Dispatcher(plan, costs(plan), sliced=sliced)
    seen = []
    while (slice := dispatcher.next("a", releases("2.0"), {"a"})) is not None:
        seen += [p.cell.id for p in slice.group.cells]
        dispatcher.ended(slice)
    assert seen == [p.cell.id for group in plan for p in group.cells]
    assert dispatcher.waiting == 0


def test_whole_environments_for_two_jobs_of_one_machine() -> None:
    plan = groups(3, 4, 5)
    dispatcher = Dispatcher(plan, costs(plan), sliced=False)
    first, second = (dispatcher.next("", nothing, {""}) for _ in range(2))
    assert [given_to(first), given_to(second)] == [("1.0", 3), ("2.0", 4)]
    assert first is not None
    assert first.ahead is not None
    assert first.ahead.release == "2.0", "the next one of the plan is fetched meanwhile"
    assert second is not None
    assert second.ahead is not None
    assert second.ahead.release == "3.0"


# ---------------------------------------------------------------- several


def test_a_machine_goes_on_with_its_environment_and_the_largest_is_begun_first() -> (
    None
):
    plan = groups(40, 60, 50)
    dispatcher = Dispatcher(plan, costs(plan))
    two = {"a", "b"}
    first = dispatcher.next("a", nothing, two)
    assert given_to(first) == ("2.0", 37), (
        "a quarter of 150 cells: half of a machine's part"
    )
    assert given_to(dispatcher.next("b", nothing, two))[0] == "3.0"
    assert first is not None
    dispatcher.ended(first)
    assert given_to(dispatcher.next("a", releases("2.0", "1.0"), two))[0] == "2.0"


def test_an_environment_that_a_machine_has_is_begun_before_a_larger_one() -> None:
    plan = groups(10, 30)
    dispatcher = Dispatcher(plan, costs(plan))
    assert given_to(dispatcher.next("a", releases("1.0"), {"a", "b"}))[0] == "1.0"


@pytest.mark.parametrize(
    ("build", "has", "helped"),
    [(10.0, False, True), (200.0, False, False), (200.0, True, True)],
)
def test_help_has_to_be_worth_the_build(build: float, has: bool, helped: bool) -> None:
    plan = groups(40)
    dispatcher = Dispatcher(plan, costs(plan, build=build))
    both = {"a", "b"}
    dispatcher.next("a", lambda group: True, both)  # 10 cells; 300 s are left
    helping = dispatcher.next("b", lambda group: has, both)
    assert (helping is not None) is helped


def test_an_order_is_worth_its_set_up() -> None:
    plan = groups(40)
    small = Dispatcher(plan, costs(plan)).next("a", nothing, set("abcdefgh"))
    large = Dispatcher(plan, costs(plan, setup=20)).next("a", nothing, set("abcdefgh"))
    assert [given_to(one)[1] for one in (small, large)] == [2, 10]


@pytest.mark.parametrize(
    ("build", "has", "cells"), [(0.0, False, 10), (120.0, True, 10), (120.0, False, 8)]
)
def test_who_helps_is_done_when_the_other_is(
    build: float, has: bool, cells: int
) -> None:
    plan = groups(40)
    dispatcher = Dispatcher(plan, costs(plan, build=build, setup=20))
    both = {"a", "b"}
    # 10 cells, for 5 set-ups; 300 s are left.
    dispatcher.next("a", lambda group: True, both)
    helping = dispatcher.next("b", lambda group: has, both)
    assert given_to(helping)[1] == cells
    # Without: 300 s from now. With: 20 + 120 + 8 * 10 = 220, and 300 - 80 = 220.


def test_what_one_machine_fetches_ahead_is_not_begun_by_another() -> None:
    plan = groups(9, 8, 8, 7)
    dispatcher = Dispatcher(plan, costs(plan, setup=100))
    both = {"a", "b"}
    first = dispatcher.next("a", nothing, both)
    assert first is not None
    assert first.ahead is not None
    second = dispatcher.next("b", nothing, both)
    assert second is not None
    assert second.ahead is not None
    named = [first.group, first.ahead, second.group, second.ahead]
    assert [group.release for group in named] == ["1.0", "2.0", "3.0", "4.0"]
    dispatcher.ended(first)
    assert given_to(dispatcher.next("a", nothing, both))[0] == "2.0"


def test_what_a_lost_machine_was_to_do_is_for_the_others_and_comes_first() -> None:
    plan = groups(4, 4)
    dispatcher = Dispatcher(plan, costs(plan, setup=100))
    both = {"a", "b"}
    slice = dispatcher.next("a", nothing, both)
    assert slice is not None
    assert given_to(slice) == ("1.0", 4)
    assert slice.ahead is not None
    dispatcher.lost(slice, slice.group.cells[1:])
    assert given_to(dispatcher.next("a", nothing, both)) == ("2.0", 4), (
        "not where it was lost"
    )
    again = dispatcher.next("b", nothing, both)
    assert again is not None
    assert again.group.cells == slice.group.cells[1:]
    dispatcher.lost(again, again.group.cells)
    assert given_to(dispatcher.next("b", nothing, {"b"})) == ("1.0", 3), (
        "there is no other"
    )


def test_what_a_machine_that_went_was_to_fetch_is_for_others() -> None:
    plan = groups(9, 8)
    dispatcher = Dispatcher(plan, costs(plan, build=1000, setup=100))
    slice = dispatcher.next("a", nothing, {"a", "b"})
    assert slice is not None
    assert slice.ahead is not None
    dispatcher.ended(slice)
    assert dispatcher.next("b", nothing, {"a", "b"}) is None, "a is about to begin it"
    assert given_to(dispatcher.next("b", nothing, {"b"})) == ("2.0", 8)


def test_what_a_lost_machine_was_to_fetch_is_for_others() -> None:
    plan = groups(9, 8)
    dispatcher = Dispatcher(plan, costs(plan, build=1000, setup=100))
    three = {"a", "b", "c"}
    slice = dispatcher.next("a", nothing, three)
    assert slice is not None
    assert slice.ahead is not None
    assert slice.ahead.release == "2.0"
    dispatcher.lost(slice, slice.group.cells)
    again = dispatcher.next("b", nothing, three)
    assert again is not None
    assert given_to(again)[0] == "1.0"
    assert again.ahead is not None, "no longer a's"
    assert again.ahead.release == "2.0"


# ---------------------------------------------------------------- whatever happens


@examples(30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    chance=st.randoms(use_true_random=False),
    build=st.sampled_from([0.0, 30.0, 1000.0]),
    setup=st.sampled_from([0.0, 8.0]),
    sliced=st.booleans(),
)
def test_every_cell_is_handed_out_once_unless_it_is_given_back(
    sizes: list[int], chance: random.Random, build: float, setup: float, sliced: bool
) -> None:
    plan = groups(*sizes)
    cells = [p.cell.id for group in plan for p in group.cells]
    seconds = {name: chance.choice([1.0, 10.0, 300.0]) for name in cells}
    dispatcher = Dispatcher(
        plan, Costs(seconds, lambda group: build, setup), sliced=sliced
    )
    machines = {name: set[str]() for name in "abcd"[: chance.randint(1, 4)]}
    handed, back, losses = Counter[str](), Counter[str](), chance.randint(0, 6)
    busy: dict[str, Slice] = {}
    while True:
        for name, known in machines.items():
            if name not in busy:
                slice = dispatcher.next(name, releases(*known), machines)
                if slice is not None:
                    busy[name] = slice
                    known.add(slice.group.release)
                    handed.update(p.cell.id for p in slice.group.cells)
        if not busy:
            break
        name = chance.choice(sorted(busy))
        slice = busy.pop(name)
        if losses and chance.random() < 0.3:
            losses -= 1
            again = slice.group.cells[chance.randint(0, len(slice.group.cells)) :]
            back.update(p.cell.id for p in again)
            dispatcher.lost(slice, again)
            if chance.random() < 0.5:
                del machines[name]
        else:
            dispatcher.ended(slice)
            if losses and chance.random() < 0.1:  # it goes as if it had never been
                losses -= 1
                del machines[name]
        if not machines or chance.random() < 0.1:
            machines[f"later-{len(handed)}-{losses}"] = set()
    assert dispatcher.waiting == 0, "nobody works, and something waits"
    assert handed == Counter(cells) + back


@examples(15)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    machines=st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_the_same_questions_have_the_same_answers(
    sizes: list[int], machines: set[str]
) -> None:
    plan = groups(*sizes)

    def played() -> list[tuple[str, int]]:
        dispatcher = Dispatcher(plan, costs(plan, build=20, setup=8))
        told = []
        while dispatcher.waiting:
            slices = [
                dispatcher.next(name, nothing, machines) for name in sorted(machines)
            ]
            told += [given_to(one) for one in slices]
            for one in slices:
                if one is not None:
                    dispatcher.ended(one)
        return told

    assert played() == played()
