"""From times to barriers: nothing starts before what had ended in the recording."""

import time

from hypothesis import given, strategies as st
from mmrepro.traffic.capture.recorded import RequestSpan, Waits, waits

SPANS = st.lists(
    st.builds(
        lambda begin, length: RequestSpan(
            begin / 4, None if length is None else (begin + length) / 4
        ),
        st.integers(0, 40),
        st.none() | st.integers(-2, 20),
    ),
    max_size=14,
)


def implied(found: list[Waits], place: int) -> set[int]:
    """All whose end must have come before ``place`` is sent: what is waited for had
    waited too."""
    ends: set[int] = set()
    ready = [place]
    sent = {place}
    while ready:
        one = ready.pop()
        before = [
            *found[one].ends,
            *([] if found[one].sent is None else [found[one].sent]),
        ]
        ends.update(found[one].ends)
        ready += [n for n in before if n not in sent]
        sent.update(before)
    return ends


@given(spans=SPANS, slack=st.sampled_from([0.0, 0.3]))
def test_the_order_of_the_recording_is_kept(
    spans: list[RequestSpan], slack: float
) -> None:
    ordered = sorted(spans, key=lambda span: span.begin)
    found = waits(ordered, slack)
    for place, span in enumerate(ordered):
        had_ended = {
            n
            for n, other in enumerate(ordered[:place])
            if other.end is not None
            and max(other.end, other.begin) <= span.begin + slack
        }
        ends = implied(found, place)
        assert had_ended <= ends, "it would be sent too early"
        for n in found[place].ends:
            assert n in had_ended, "it waits for what still ran"
        for n in found[place].ends:  # none follows from the others
            others = [k for k in found[place].ends if k != n]
            assert all(n not in implied(found, k) for k in others)
        if place:
            assert found[place].sent == place - 1 or place - 1 in ends


def test_without_overlap_each_waits_for_the_one_before() -> None:
    found = waits([RequestSpan(n, n + 0.5) for n in range(4)])
    assert found == [Waits(), Waits((0,)), Waits((1,)), Waits((2,))]


def test_what_runs_together_waits_for_nothing_but_the_sending() -> None:
    found = waits([RequestSpan(n, 10.0) for n in range(3)] + [RequestSpan(11.0, 12.0)])
    assert found == [Waits(), Waits((), 0), Waits((), 1), Waits((0, 1, 2))]


def test_a_night_of_requests_is_put_in_order_at_once() -> None:
    """Quadratic would be minutes."""
    spans = [RequestSpan(n / 100, n / 100 + (n % 37) / 10) for n in range(20_000)]
    begun = time.monotonic()
    found = waits(spans)
    assert time.monotonic() - begun < 20
    assert max(len(one.ends) for one in found) < 400
