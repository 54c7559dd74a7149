"""undersized-kv-budget: of which memory an engine takes its share, by what its witness
saw."""

from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.failure.signature import Truth
from mmrepro.scenarios.undersized_kv_budget import report
from mmrepro.traffic.evidence import Missing


def witness(*seen: dict[str, Any]) -> Any:
    """A witness that saw these sizings, and an entry count of 0.5."""
    return SimpleNamespace(
        values=lambda _: [*seen],
        sizing=lambda: SimpleNamespace(cache_max_entry_count=0.5),
    )


@pytest.mark.parametrize(
    ("total", "pool", "truth"),
    [
        (1000, 450, Truth.MET),  # all of it is free
        (2000, 450, Truth.NOT_MET),
        (1000, 400, Truth.UNKNOWN),
    ],
)
def test_a_share_is_of_what_is_free_or_of_the_whole(
    total: int, pool: int, truth: Truth
) -> None:
    seen = {"memory": (1000, total), "runtime": [100], "pool": pool}
    assert report._of_total(witness(seen)).truth is truth


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [{}],
        [{"memory": None, "runtime": [1], "pool": 1}],
        [{"memory": (1, 2, 3), "runtime": [1], "pool": 1}],
    ],
)
def test_what_the_witness_did_not_see_is_missing(seen: list[dict[str, Any]]) -> None:
    with pytest.raises(Missing, match="did not see how the memory is shared out"):
        report._of_total(witness(*seen))
