import pytest
from hypothesis import given, strategies as st
from mmrepro.runs.judge import CEILING_S, FACTOR, FLOOR_S, derive

SECONDS = st.floats(0, 1000)
LATENCIES = st.lists(SECONDS, min_size=1, max_size=8)


@given(LATENCIES)
def test_within_floor_and_ceiling_and_looked_at_before_it_ends(
    latencies: list[float],
) -> None:
    found = derive(latencies)
    assert FLOOR_S <= found.answer_s <= CEILING_S
    assert 0 < found.suspect_s < found.answer_s


@given(LATENCIES)
def test_at_least_thirty_times_the_slowest_warm_request(latencies: list[float]) -> None:
    slowest = max(latencies[1:] or latencies)
    assert derive(latencies).answer_s >= min(CEILING_S, FACTOR * slowest) - 0.01


@given(LATENCIES, st.data())
def test_a_slower_engine_never_gets_less_time(
    latencies: list[float], data: st.DataObject
) -> None:
    slower = [x + data.draw(SECONDS) for x in latencies]
    assert derive(slower).answer_s >= derive(latencies).answer_s
    assert derive(slower).suspect_s >= derive(latencies).suspect_s


@given(SECONDS, SECONDS, st.lists(SECONDS, min_size=1, max_size=5))
def test_the_first_request_warms_up_and_does_not_count(
    first: float, other: float, warm: list[float]
) -> None:
    assert derive([first, *warm]) == derive([other, *warm])


def test_a_single_request_counts() -> None:
    assert derive([2.0]).answer_s == 60.0


def test_the_rule_says_what_was_measured() -> None:
    assert "0.44 s" in derive([9.0, 0.11, 0.44]).rule


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no latency"):
        derive([])
