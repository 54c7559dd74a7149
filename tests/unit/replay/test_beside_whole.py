"""The whole answer is asked for beside a stream, and what came in order stays so."""

from __future__ import annotations

import pytest
from made_up_plays import case_of, operation
from mmrepro.traffic.case import Operation, in_order
from mmrepro.traffic.case.expecting import beside_whole


def behind(id: str, before: str, *, stream: bool) -> Operation:
    """A request that is sent when another one has ended."""
    update = {"after": [f"{before}.end"]}
    return operation(id, stream=stream).model_copy(update=update)


@pytest.mark.parametrize("alike", [True, False])
def test_the_whole_twin_is_sent_before_what_waited_for_the_stream(alike: bool) -> None:
    first = operation("r1", stream=True)
    second = behind("r2", "r1", stream=True)
    third = behind("r3", "r2", stream=False)
    case = case_of([first, second, third])
    assert in_order(case)
    beside = beside_whole(case, alike=alike)
    ids = [op.id for op in beside.operations]
    assert ids == ["r1", "r1-whole", "r2", "r2-whole", "r3"]
    assert in_order(beside)


def test_requests_at_once_stay_so() -> None:
    case = case_of([operation("r1", stream=True), operation("r2", stream=True)])
    assert not in_order(beside_whole(case, alike=True))
