"""What is left out must not send the rest another way."""

from fake_plays import FakeTest, answered_until, fake_case, fake_op, fake_seen
from hypothesis import given, strategies as st
from mmrepro.search.replay.shrink import Shrinking
from mmrepro.search.replay.simplify import as_it_went, options_left_out
from mmrepro.search.replay.store import STUCK
from mmrepro.traffic.case.model import Barrier, Case

SPANS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=14
)


def waits(case: Case) -> dict[str, set[str]]:
    """Of each operation all that end before it is sent, by its barriers and those of
    others."""
    found: dict[str, set[str]] = {}
    for op in case.operations:
        direct = {Barrier.parse(text).op for text in op.after if text.endswith(".end")}
        found[op.id] = direct | {o for d in direct for o in found[d]}
    return found


@given(SPANS, st.randoms(use_true_random=False))
def test_what_had_ended_is_waited_for_and_nothing_else(
    spans: list[tuple[int, int]], chance: object
) -> None:
    """Also when others are left out: exactly the order of the play, restricted to the
    rest."""
    spans.sort()
    case = fake_case(
        [fake_op(f"r{n}", after=["running<=3"]) for n in range(len(spans))]
    )
    seen = fake_seen(case, {op.id: "200" for op in case.operations})
    seen.times = {f"r{n}": (sent, sent + long) for n, (sent, long) in enumerate(spans)}
    ordered = as_it_went(case, seen)
    kept = [op.id for op in case.operations if chance.random() < 0.6]  # type: ignore[attr-defined]
    for some in (ordered, ordered.keeping(kept)):
        assert all("running<=3" in op.after for op in some.operations)
        ids = [op.id for op in some.operations]
        times = seen.times
        assert waits(some) == {
            op: {
                o
                for o in ids
                if times[o][1] <= times[op][0] and ids.index(o) < ids.index(op)
            }
            for op in ids
        }


def test_what_was_never_sent_comes_after_all_one_by_one() -> None:
    case = fake_case([fake_op(name) for name in ("a", "b", "c", "d")])
    seen = fake_seen(case, {"a": "200", "b": STUCK})
    ordered = as_it_went(case, seen)
    assert waits(ordered) == {
        "a": set(),
        "b": {"a"},
        "c": {"a", "b"},
        "d": {"a", "b", "c"},
    }


def test_a_long_case_takes_no_long_time() -> None:
    count = 5000
    case = fake_case([fake_op(f"r{n}") for n in range(count)])
    seen = fake_seen(case, {f"r{n}": "200" for n in range(count)})
    seen.times = {f"r{n}": (n, n + 8.5) for n in range(count)}
    ordered = as_it_went(case, seen)
    assert max(len(op.after) for op in ordered.operations) <= 9


def test_what_is_left_is_played_in_the_order_of_the_first_play() -> None:
    """A fake engine that fails only where the first request has ended before the last
    is sent: what kept them apart, ninety others and eight at a time, goes."""

    def engine(case: Case) -> dict[str, str]:
        apart = "r0" in waits(case).get("r99", set())
        return answered_until(case, "r99" if apart else None)

    ops = [fake_op(f"r{n}", after=["running<=7"]) for n in range(100)]
    case = fake_case(ops)
    seen = fake_seen(case, answered_until(case, "r99"))
    test = FakeTest(engine)
    shrinking = Shrinking(case, seen, test, lambda s: ["r99"], simpler=False)
    shrinking.run()
    assert shrinking.ids == ["r0", "r99"]


def test_a_feature_is_an_option_of_its_own_and_no_value_of_the_one_before() -> None:
    case = fake_case([fake_op("a")])
    args = ["--enable-scale-out", "{feature:runner-v2}", "--max-num-seqs", "4"]
    case.server.args = args
    shorter = [step.made(case).server.args for step in options_left_out(case)]
    assert shorter == [args[1:], [args[0], *args[2:]], args[:2]]
