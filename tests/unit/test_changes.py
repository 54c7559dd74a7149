"""Intervals over blocks, by simulation against known truths: what is called a
difference where there is none, what is missed, and whether the intervals hold what is
true."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.failure.documents.upgrade import Block, Outcome
from mmrepro.runs import changes as c
from mmrepro.runs.changes import (
    LOOKS,
    METRICS,
    Change,
    changes,
    difference,
    enough,
    quantile,
    tail,
    thresholds,
)

SATURATED = ("itl-saturated", "latency-saturated")
MEASURED = (
    "ttft",
    "itl",
    "tpot",
    "latency",
    "throughput",
    *SATURATED,
    "ttft-p90",
    "rss",
    "start",
)
Noise = Callable[[random.Random], float]


def blocks_of(truth: dict[str, float], noise: Noise, seed: int) -> list[Block]:
    """``truth``: the relative change by metric. Metrics of a block share half of their
    noise, as those of one server do."""
    chance = random.Random(seed)
    made = []
    for index in range(LOOKS[-1]):
        shared = noise(chance)
        found = {
            name: math.log1p(truth.get(name, 0.0)) + 0.7 * shared + 0.7 * noise(chance)
            for name in MEASURED
        }
        ones = dict.fromkeys(MEASURED, 1.0)
        made.append(
            Block(index=index + 1, first="old", changes=found, old=ones, new=ones)
        )
    return made


def ended(
    blocks: Sequence[Block], worse: dict[str, float] | None = None
) -> list[Change]:
    """As a session looks: at each look, until it is enough or there are no more."""
    wanted = worse or thresholds([])
    for look in LOOKS:
        found = changes(blocks[:look], wanted)
        if enough(found):
            return found
    return changes(blocks, wanted, last=True)


def normal(sd: float) -> Noise:
    return lambda chance: chance.gauss(0.0, sd)


def bursts(sd: float) -> Noise:
    """One block in six is disturbed by ten times as much."""
    return lambda chance: chance.gauss(0.0, sd * (10 if chance.random() < 1 / 6 else 1))


@pytest.mark.parametrize("noise", [normal(0.008), normal(0.02), bursts(0.01)])
def test_nothing_is_called_a_difference_where_there_is_none(noise: Noise) -> None:
    """1 % of comparisons may, over all metrics and looks: 1 of 100, 5 by chance."""
    wrong = sum(
        any(x.differs for x in ended(blocks_of({}, noise, seed))) for seed in range(100)
    )
    assert wrong <= 5


def test_on_a_quiet_machine_no_difference_is_an_answer_after_few_blocks() -> None:
    """In 57 of 60, and in none it matters."""
    told = [ended(blocks_of({}, normal(0.006), seed)) for seed in range(60)]
    deciding = [[x for x in some if x.metric.decides] for some in told]
    assert sum(all(x.outcome is Outcome.NONE for x in some) for some in deciding) >= 57
    assert not any(x.matters for some in told for x in some)
    assert sum(some[0].blocks for some in told) / len(told) < 9


def test_five_percent_a_token_is_found_and_two_percent_has_its_interval() -> None:
    slower = dict.fromkeys(("itl", "tpot", "latency", *SATURATED), 0.05) | {
        "throughput": -0.045
    }
    for seed in range(20):
        found = {
            x.metric.name: x for x in ended(blocks_of(slower, normal(0.012), seed))
        }
        assert any(found[name].matters for name in slower)
        assert not any(found[name].matters for name in found.keys() - slower.keys())
    slightly = dict.fromkeys(("itl", "tpot", "latency", *SATURATED), 0.02)
    for seed in range(20):
        found = {
            x.metric.name: x for x in ended(blocks_of(slightly, normal(0.01), seed))
        }
        assert not any(x.matters for x in found.values())
        for name in slightly:
            low, high = math.expm1(found[name].low), math.expm1(found[name].high)
            assert low < 0.02 < high < (0.09 if name in SATURATED else 0.15)


def test_all_intervals_hold_together_whenever_it_stops() -> None:
    truth = {"itl": 0.04, "tpot": 0.01, "throughput": -0.03, "rss": 0.1}
    missed = 0
    for seed in range(100):
        found = ended(blocks_of(truth, normal(0.015), seed))
        sound = (math.log1p(truth.get(x.metric.name, 0.0)) for x in found)
        missed += any(
            not x.low <= t <= x.high for x, t in zip(found, sound, strict=True)
        )
    assert missed <= 5


def test_what_is_excluded_by_itself_is_so_whenever_it_stops() -> None:
    """In 5 of 100 the truth may lie above; without a margin it would in every other
    one."""
    truth = {"itl-saturated": 0.035, "ttft": 0.08, "latency-saturated": 0.04}
    above = bare = 0
    for seed in range(100):
        found = {x.metric.name: x for x in ended(blocks_of(truth, normal(0.02), seed))}
        above += sum(
            found[name].bound < math.log1p(true) for name, true in truth.items()
        )
        bare += sum(
            abs(found[name].estimate) < math.log1p(true) for name, true in truth.items()
        )
    assert above <= 25
    assert bare > 90


def test_a_machine_too_noisy_is_said() -> None:
    found = ended(blocks_of({"itl": 0.02}, normal(0.5), 1))
    assert all(x.outcome is Outcome.UNTOLD for x in found if x.metric.decides)
    assert "too noisy to tell" in difference(found[0]).statement


def test_looking_often_without_paying_for_it_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of these tests: with the error of one look and one metric they
    fail."""

    monkeypatch.setattr(c, "quantile", lambda error, df: quantile(0.025, df))
    wrong = sum(
        any(x.differs for x in ended(blocks_of({}, normal(0.02), n))) for n in range(60)
    )
    assert wrong > 6


def test_students_t_is_that_of_the_tables() -> None:
    assert quantile(0.025, 1) == pytest.approx(12.7062, abs=1e-4)
    assert quantile(0.025, 4) == pytest.approx(2.7764, abs=1e-4)
    assert quantile(0.005, 7) == pytest.approx(3.4995, abs=1e-4)
    assert quantile(0.0005, 30) == pytest.approx(3.6460, abs=1e-4)
    assert tail(0.0, 9) == 0.5


def change(
    name: str, low: float, high: float, old: float = 1.0, new: float = 1.0
) -> Change:
    """Of relative ends."""
    metric = METRICS[name]
    ends = (low, high) if metric.points else (math.log1p(low), math.log1p(high))
    bound = max(map(abs, ends))
    return Change(metric, metric.threshold, 9, sum(ends) / 2, *ends, bound, old, new)


@pytest.mark.parametrize(
    ("name", "ends", "outcome", "matters", "statement"),
    [
        ("tpot", (0.04, 0.1), Outcome.DIFFERENCE, True, "slower by 7 % (4 to 10)"),
        ("tpot", (0.01, 0.02), Outcome.DIFFERENCE, False, "slower by 1.5 % (1 to 2)"),
        ("tpot", (-0.1, -0.04), Outcome.DIFFERENCE, False, "faster by 7 % (4 to 10)"),
        ("tpot", (-0.01, 0.02), Outcome.NONE, False, "no difference above 2 %"),
        (
            "tpot",
            (-0.03, 0.2),
            Outcome.UNTOLD,
            False,
            "too noisy to tell: from 3 % faster to 20 % slower",
        ),
        (
            "throughput",
            (-0.12, -0.08),
            Outcome.DIFFERENCE,
            True,
            "lower by 10 % (8 to 12)",
        ),
        (
            "throughput",
            (0.08, 0.12),
            Outcome.DIFFERENCE,
            False,
            "higher by 10 % (8 to 12)",
        ),
        (
            "hit-rate",
            (-0.2, -0.1),
            Outcome.DIFFERENCE,
            True,
            "lower by 15 points (10 to 20)",
        ),
        ("rss", (0.1, 0.1), Outcome.DIFFERENCE, True, "higher by 10 %"),
        ("kv-cache", (0.0, 0.0), Outcome.NONE, False, "the same"),
    ],
)
def test_a_statement_is_one_sentence_with_its_interval(
    name: str,
    ends: tuple[float, float],
    outcome: Outcome,
    matters: bool,
    statement: str,
) -> None:
    told = difference(change(name, *ends))
    assert (told.outcome, told.matters, told.statement) == (outcome, matters, statement)
    assert told.interval == pytest.approx(ends, abs=1e-4)


def test_thresholds_are_of_all_times_or_of_one() -> None:
    plain = thresholds([])
    assert plain == {name: metric.threshold for name, metric in METRICS.items()}
    assert thresholds(["8%"])["tpot"] == thresholds(["8%"])["itl-saturated"] == 0.08
    assert thresholds(["8%"])["rss"] == plain["rss"]
    assert thresholds(["8%", "tpot=2.5%", "rss=0.5"])["tpot"] == 0.025
    for wrong in ("tpott=3%", "tpot=much", "tpot=-3%", "nan", "0%"):
        with pytest.raises(UsageError):
            thresholds([wrong])
