"""What runs of a cell come to. What was not decided makes nothing good; flaky is under
one key."""

import math

import pytest
from hypothesis import given, strategies as st
from made_nights import LETTERS, attempt, attempts
from mmrepro.failure.signature import Outcome
from mmrepro.history.states import VERDICTS, JobState, fisher, settle, surprise, wilson

RUNS = st.text("rndil", max_size=7)


@pytest.mark.parametrize(
    ("letters", "state", "why"),
    [
        ("", JobState.MISSING, "no run"),
        ("ll", JobState.LOST, "2 × lost (infrastructure)"),
        ("li", JobState.INCONCLUSIVE, "1 × lost (infrastructure), 1 × inconclusive"),
        ("nii", JobState.NOT_REPRODUCED, "2 × inconclusive, 1 × not-reproduced"),
        ("lr", JobState.REPRODUCED, "1 × lost (infrastructure), 1 × reproduced"),
        ("dd", JobState.DIFFERENT_FAILURE, "2 × different-failure"),
        ("rnr", JobState.FLAKY, "2 × reproduced, 1 × not-reproduced, under one key"),
        (
            "dn",
            JobState.FLAKY,
            "1 × different-failure, 1 × not-reproduced, under one key",
        ),
        ("rd", JobState.FLAKY, "1 × reproduced, 1 × different-failure, under one key"),
    ],
)
def test_under_one_key(letters: str, state: JobState, why: str) -> None:
    settled = settle(attempts(letters))
    assert (settled.state, settled.why) == (state, why)
    assert settled.lost == letters.count("l")
    assert settled.reproduced == letters.count("r")
    assert settled.conclusive == sum(letters.count(x) for x in "rnd")


@given(RUNS)
def test_one_state_follows_from_the_verdicts_alone(letters: str) -> None:
    settled = settle(attempts(letters))
    kinds = {LETTERS[x] for x in letters} - {None, Outcome.INCONCLUSIVE}
    if len(kinds) > 1:
        assert settled.state is JobState.FLAKY
    elif kinds:
        assert settled.state.value == kinds.pop()
        assert settled.state in VERDICTS
    else:
        assert settled.state in (JobState.INCONCLUSIVE, JobState.LOST, JobState.MISSING)
    assert settle(attempts("".join(sorted(letters)))).state is settled.state


def test_different_keys_are_no_contradiction_and_the_worst_counts() -> None:
    warm, cold = {"start mode": "warm"}, {"start mode": "cold"}
    settled = settle([attempt("n", 1, parts=warm), attempt("r", 2, parts=cold)])
    assert settled.state is JobState.REPRODUCED
    assert settled.differing == ("start mode",)
    assert settled.why.endswith("different keys, which differ in: start mode")
    other = settle([attempt("n", 1, parts=warm), attempt("d", 2, parts=cold)])
    assert other.state is JobState.DIFFERENT_FAILURE
    again = settle([attempt("n", 1, parts=warm), attempt("n", 2, parts=cold)])
    assert (again.state, again.differing) == (JobState.NOT_REPRODUCED, ())
    both = [
        attempt("n", 1, parts=warm),
        attempt("r", 2, parts=cold),
        attempt("r", 3, parts=warm),
    ]
    assert settle(both).state is JobState.FLAKY


def test_a_key_that_nobody_knows_excuses_nothing() -> None:
    runs = [a.model_copy(update={"key": ""}) for a in attempts("rn")]
    settled = settle(runs)
    assert settled.state is JobState.FLAKY
    assert settled.why.endswith("under a key nobody knows")
    assert settled.keys == frozenset()


@given(st.integers(0, 60), st.integers(1, 60))
def test_wilsons_interval(successes: int, trials: int) -> None:
    successes = min(successes, trials)
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    for end in {low, high} - {
        0.0,
        1.0,
    }:  # it is where the score test is just not refused
        spread = math.sqrt(end * (1 - end) / trials)
        assert abs(successes / trials - end) / spread == pytest.approx(
            1.95996, abs=1e-4
        )


def test_intervals_that_are_in_textbooks() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ((3, 1), (1, 3), 34 / 70),  # the lady and her tea
        ((8, 2), (1, 5), 0.03497),
        ((4, 0), (0, 4), 2 / 70),
        ((7, 0), (0, 2), 1 / 36),
        ((1, 0), (0, 1), 1.0),
        ((0, 0), (3, 2), 1.0),
    ],
)
def test_fishers_exact_test(
    first: tuple[int, int], second: tuple[int, int], p: float
) -> None:
    assert fisher(first, second) == pytest.approx(p, abs=1e-5)
    assert fisher(second, first) == pytest.approx(p, abs=1e-5)


@pytest.mark.parametrize(
    ("letters", "expected", "says"),
    [
        ("r", Outcome.REPRODUCED, True),
        ("n", Outcome.REPRODUCED, False),
        ("rn", Outcome.REPRODUCED, False),
        ("i", Outcome.REPRODUCED, False),
        ("l", Outcome.REPRODUCED, None),
        ("r", None, None),
    ],
)
def test_as_expected(letters: str, expected: Outcome | None, says: bool | None) -> None:
    assert settle(attempts(letters, expected=expected)).as_expected is says


def test_a_surprise_is_what_the_last_night_did_not_settle_on() -> None:
    bad, good = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED
    seen = {
        letters: settle(attempts(letters)) for letters in ("r", "n", "rn", "i", "l", "")
    }
    for before in (None, seen["l"], seen[""]):
        assert (
            surprise(attempt("n"), before, bad)
            == "not-reproduced, but reproduced is expected"
        )
        assert surprise(attempt("r"), before, bad) == ""
        assert (
            surprise(attempt("i"), before, bad)
            == "inconclusive, but reproduced is expected"
        )
        assert surprise(attempt("d"), before, None) == ""
    # The same key: what it was then counts, not what the scenario says.
    assert surprise(attempt("n"), seen["n"], bad) == ""
    assert surprise(attempt("r"), seen["n"], bad).endswith(
        "not-reproduced the night before, under the same key"
    )
    assert surprise(attempt("i"), seen["i"], bad) == ""
    assert surprise(attempt("n"), seen["i"], bad) != ""
    # Another key: the scenario's word again.
    other = settle(attempts("n", parts={"environment": "e2"}))
    assert surprise(attempt("r"), other, bad) == ""
    assert surprise(attempt("n"), other, bad) != ""
    assert surprise(attempt("n"), other, good) == ""


def test_the_lost_and_what_is_known_to_be_flaky_surprise_nobody() -> None:
    flaky = settle(attempts("rn"))
    for before in (None, flaky, settle(attempts("r"))):
        assert surprise(attempt("l"), before, Outcome.REPRODUCED) == ""
    assert (
        surprise(attempt("r"), flaky, None) == surprise(attempt("n"), flaky, None) == ""
    )
    assert surprise(flaky, flaky) == ""
    assert "not among" in surprise(attempt("d"), flaky, None)
    assert surprise(flaky, settle(attempts("r"))).startswith("flaky, but reproduced")
    assert surprise(flaky, None).startswith(
        "more than one verdict under one key: 1 × reproduced"
    )
