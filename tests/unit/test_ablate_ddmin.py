"""ddmin over any oracle: what it returns does it, and nothing can be left out of it."""

from itertools import combinations

import pytest
from hypothesis import given, strategies as st
from mmrepro.campaign.ablate.search import bound, ddmin

ITEMS = "abcdefg"
subsets = st.sets(st.sampled_from(ITEMS)).map(frozenset)


def all_subsets(items: str) -> list[frozenset[str]]:
    return [frozenset(c) for n in range(len(items) + 1) for c in combinations(items, n)]


@given(cures=st.lists(subsets.filter(bool), min_size=1, max_size=4))
def test_a_monotone_oracle(cures: list[frozenset[str]]) -> None:
    """Whatever contains one of ``cures`` cures: the result is one of them."""
    asked: list[tuple[str, ...]] = []

    def holds(chosen: tuple[str, ...]) -> bool:
        asked.append(chosen)
        return any(cure <= set(chosen) for cure in cures)

    found = frozenset(ddmin(ITEMS, holds))
    assert found in cures
    assert not any(cure < found for cure in cures)
    assert len(asked) <= bound(len(ITEMS))


@given(held=st.frozensets(st.sampled_from(all_subsets("abcde"))))
def test_any_oracle_at_all(held: frozenset[frozenset[str]]) -> None:
    """Not monotone, not anything: the result holds and is 1-minimal, as was really
    asked."""
    items = "abcde"
    asked: dict[frozenset[str], bool] = {}

    def holds(chosen: tuple[str, ...]) -> bool:
        assert list(chosen) == sorted(chosen), "the items keep their order"
        return asked.setdefault(frozenset(chosen), frozenset(chosen) in held)

    found = ddmin(items, holds)
    assert found
    assert len(found) == len(items) or frozenset(found) in held
    if len(found) > 1:
        for left_out in found:
            assert asked[frozenset(found) - {left_out}] is False


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_leave_out(count: int) -> None:
    def holds(_: tuple[str, ...]) -> bool:
        raise AssertionError("the whole is known to hold, and nothing is smaller")

    assert ddmin(ITEMS[:count], holds) == tuple(ITEMS[:count])
    assert bound(count) == 0
