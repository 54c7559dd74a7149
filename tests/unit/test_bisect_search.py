"""The search of a bisection against made-up truths."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st
from mmrepro.campaign.bisect.posterior import Posterior, RunCounts
from mmrepro.campaign.bisect.search import (
    Board,
    Conclusion,
    Direction,
    SearchOptions,
    SideFinding,
    Verdict,
    search,
    start,
)

BAD, GOOD, OTHER, SKIP = Verdict.BAD, Verdict.GOOD, Verdict.OTHER, Verdict.UNTESTABLE


def board_of(
    truth: Sequence[Verdict] | Callable[[int], Verdict],
    size: int = 0,
    declared: tuple[int, int] | None = None,
    **options: object,
) -> Board:
    """``declared``: first and last point that the scenario declares affected; None:
    all."""
    oracle = truth if callable(truth) else truth.__getitem__
    size = size or len(truth)  # type: ignore[arg-type]
    first, last = declared or (0, size - 1)
    return Board(
        oracle,
        [f"r{n}" for n in range(size)],
        [first <= n <= last for n in range(size)],
        SearchOptions(**options),  # type: ignore[arg-type]
    )


def side(board: Board, bad: int, direction: Direction) -> SideFinding:
    return search(
        board, bad, direction, 0 if direction == "introduced" else len(board.names) - 1
    )


@dataclass(frozen=True)
class Made:
    truth: list[Verdict]
    bad: int
    declared: tuple[int, int]


@st.composite
def made(draw: st.DrawFn) -> Made:
    size = draw(st.integers(1, 24))
    first = draw(st.integers(0, size - 1))
    last = draw(st.integers(first, size - 1))
    bad = draw(st.integers(first, last))
    before = draw(st.sampled_from((GOOD, OTHER)))
    truth = [before if n < first else BAD if n <= last else GOOD for n in range(size)]
    for number in draw(st.sets(st.integers(0, size - 1))):
        truth[number] = SKIP if number != bad else BAD
    prior = sorted(draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))))
    return Made(truth, bad, (prior[0], prior[1]))


@given(made(), st.sampled_from(("introduced", "fixed")), st.booleans())
def test_no_wrong_point_is_ever_named(
    one: Made, direction: Direction, linear: bool
) -> None:
    board = board_of(one.truth, declared=one.declared, linear=linear)
    found = side(board, start(board, one.bad)[0] or 0, direction)
    step = -1 if direction == "introduced" else 1
    outward = range(one.bad, -1 if step < 0 else len(one.truth), step)
    testable = [n for n in outward if one.truth[n] is not SKIP]
    beyond = next((n for n in testable if one.truth[n] is not BAD), None)
    last = max(
        (n for n in testable if one.truth[n] is BAD), key=lambda n: abs(n - one.bad)
    )
    assert found.bad == last
    assert found.beyond == beyond
    if beyond is None:
        ends_bad = last == outward[-1]
        assert found.conclusion is (
            Conclusion.NO_BOUNDARY if ends_bad else Conclusion.INCONCLUSIVE
        )
        assert not found.verified
        return
    between = [n for n in outward if min(last, beyond) < n < max(last, beyond)]
    assert found.gap == sorted(between)
    assert found.conclusion is (Conclusion.RANGE if between else Conclusion.FOUND)
    assert found.verified is (not between)
    assert found.ends_in is one.truth[beyond]
    assert set(found.one_of) == (
        {*between, last if step < 0 else beyond} if between else set()
    )
    assert found.posterior is None
    for point in (last, beyond):
        assert len(board.runs[point]) >= 2


@given(made(), st.sampled_from(("introduced", "fixed")))
def test_few_runs_are_needed(one: Made, direction: Direction) -> None:
    board = board_of(one.truth, declared=one.declared)
    begin, _ = start(board, one.bad)
    assert begin == one.bad
    found = side(board, one.bad, direction)
    size = one.bad + 1 if direction == "introduced" else len(one.truth) - one.bad
    runs = sum(v is not SKIP for point in board.runs.values() for v in point)
    # the end, both declared points, each side of the boundary again and once more for
    # the odds
    halvings = math.ceil(math.log2(size)) if size > 1 else 0
    other = halvings if found.ends_in is OTHER else 0
    assert runs <= halvings + 8 + other
    skipped = [p for p, verdicts in board.runs.items() if SKIP in verdicts]
    assert all(len(board.runs[p]) <= 2 for p in skipped)


@pytest.mark.parametrize("declared", [None, (10, 15), (0, 3)])
def test_what_is_fetched_ahead_has_not_run_yet(
    declared: tuple[int, int] | None,
) -> None:
    board = board_of([BAD] * 12 + [GOOD] * 20, declared=declared)
    ahead: list[int] = []

    def upcoming(points: Sequence[int]) -> None:
        assert not board.runs.keys() & {*points}
        ahead.extend(points)

    board.upcoming = upcoming
    start(board, 0)
    assert side(board, 0, "fixed").beyond == 12
    assert {*ahead} & board.runs.keys(), "some of it is needed then"


@pytest.mark.parametrize("size", [8, 43, 200])
def test_a_right_prior_costs_seven_runs(size: int) -> None:
    first, last = size // 3, size // 2
    truth = [GOOD if not first <= n <= last else BAD for n in range(size)]
    board = board_of(truth, declared=(first, last))
    start(board, last)
    fixed = side(board, last, "fixed")
    assert (fixed.bad, fixed.beyond, fixed.verified) == (last, last + 1, True)
    assert board.made <= 7
    introduced = side(board, last, "introduced")
    assert (introduced.bad, introduced.beyond) == (first, first - 1)
    assert introduced.runs <= 7


def test_other_failure_is_a_boundary_of_its_own() -> None:
    truth = [GOOD] * 4 + [SKIP] + [OTHER] * 5 + [BAD] * 6
    board = board_of(truth, declared=(10, 15))
    start(board, 15)
    found = side(board, 15, "introduced")
    assert (found.bad, found.beyond, found.ends_in) == (10, 9, OTHER)
    assert found.verified
    assert found.other_since == (5, 3)


def test_no_good_one_is_invented() -> None:
    board = board_of([OTHER] * 4 + [BAD] * 3)
    start(board, 6)
    found = side(board, 6, "introduced")
    assert (found.bad, found.beyond, found.ends_in) == (4, 3, OTHER)
    assert found.other_since is None
    assert "no good one was seen on that side" in found.notes


def test_what_came_back_is_told() -> None:
    truth = [BAD] * 5 + [GOOD] * 4 + [BAD] * 3
    board = board_of(truth, declared=(0, 4))
    start(board, 2)
    found = side(board, 2, "fixed")
    assert (found.bad, found.beyond, found.returned) == (4, 5, [11])
    assert found.conclusion is Conclusion.FOUND
    assert found.posterior is None
    assert any("it came back" in note for note in found.notes)
    assert len(board.runs[5]) >= board.options.settle


def test_a_start_that_is_not_bad_is_said() -> None:
    board = board_of([GOOD, BAD, BAD, BAD, GOOD, GOOD], declared=(1, 3))
    begin, notes = start(board, 4)
    assert begin == 3
    assert notes == [
        "r4 was to have the failure, and is not reproduced",
        "the search starts from r3 instead",
    ]
    none = board_of([GOOD] * 9)
    begin, notes = start(none, 4)
    assert begin is None
    assert notes[-1].startswith(
        "the failure was seen in none of those that were run: r1, r2"
    )


def test_repeat_is_kept_everywhere() -> None:
    board = board_of([GOOD] * 6 + [BAD] * 4, repeat=3)
    start(board, 9)
    side(board, 9, "introduced")
    runs = {point: len(verdicts) for point, verdicts in board.runs.items()}
    assert all(number >= 3 for point, number in runs.items() if point != 9)


def noisy(
    rate: float, rounds: int, seed: int, **options: float
) -> tuple[int, int, float]:
    """How often the boundary was found, and a wrong one named; runs each."""
    found_it = wrong = runs = 0
    for number in range(rounds):
        dice = random.Random(seed + number)
        size = dice.randint(4, 20)
        last = dice.randrange(size - 1)

        def oracle(point: int, dice: random.Random = dice, last: int = last) -> Verdict:
            return BAD if point <= last and dice.random() < rate else GOOD

        board = board_of(oracle, size, **options)
        begin, _ = start(board, 0)
        found = side(board, begin, "fixed") if begin is not None else None
        runs += board.made
        named = found is not None and found.conclusion is Conclusion.FOUND
        right = (
            named
            and found is not None
            and (found.bad, found.beyond) == (last, last + 1)
        )
        found_it += right
        wrong += named and not right
    return found_it, wrong, runs / rounds


@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_a_failure_that_comes_and_goes_is_found(rate: float) -> None:
    right, wrong, runs = noisy(rate, 120, seed=7)
    assert right >= 0.95 * 120
    assert wrong <= 0.05 * 120
    assert runs < 30


def test_a_contradiction_gives_a_posterior_and_a_rate() -> None:
    flaky = iter([GOOD, BAD] * 200)

    def oracle(point: int) -> Verdict:
        return next(flaky) if point <= 6 else GOOD

    board = board_of(oracle, 12)
    begin, _ = start(board, 2)
    assert begin == 2
    found = side(board, 2, "fixed")
    assert (found.bad, found.beyond) == (6, 7)
    assert found.posterior is not None
    assert found.posterior[6] >= 0.95
    assert sum(found.posterior.values()) == pytest.approx(1)
    assert found.rate is not None
    assert 0.3 < found.rate < 0.7


def test_a_budget_that_is_spent_leaves_it_open() -> None:
    dice = random.Random(3)

    def oracle(point: int) -> Verdict:
        return BAD if point == 0 or (point <= 9 and dice.random() < 0.1) else GOOD

    board = board_of(oracle, 20, budget=5, declared=(0, 9))
    board.runs[1] = [BAD, GOOD]
    found = side(board, 0, "fixed")
    assert found.conclusion is Conclusion.INCONCLUSIVE
    assert not found.verified
    assert found.beyond is None
    assert any("leave it open" in note for note in found.notes)


def test_the_next_run_is_the_one_that_tells_most() -> None:
    """Half way for a failure that always shows. One that seldom does is a Z-channel,
    whose best input is bad with a probability between 1/e and 1/2: somewhat further
    out."""
    often = Posterior([RunCounts(bad=9), *[RunCounts()] * 19, RunCounts(good=9)])
    seldom = Posterior(
        [RunCounts(bad=3, good=9), *[RunCounts()] * 19, RunCounts(good=9)]
    )
    inside = range(1, 20)
    assert often.most_informative(inside) == 10
    assert 11 <= seldom.most_informative(inside) <= 13
    assert seldom.rate < 0.5 < often.rate
    assert sum(often.of_boundary) == pytest.approx(1)


def test_one_good_run_moves_the_boundary_and_another_failure_moves_it_further() -> None:
    def beyond(seen: RunCounts) -> float:
        return sum(
            Posterior([RunCounts(bad=2), RunCounts(), seen, RunCounts()]).of_boundary[
                2:
            ]
        )

    assert beyond(RunCounts(bad=1)) > 0.99
    assert beyond(RunCounts()) > beyond(RunCounts(good=1)) > beyond(RunCounts(good=2))
    assert beyond(RunCounts(good=1)) > 5 * beyond(RunCounts(other=1))
