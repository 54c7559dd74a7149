"""How much a metric changed from one server to another: intervals over blocks, looked
at more than once, for several metrics at a time.

A block is a fresh server of each side, measured in turn: what drifts falls on both, and
what differs from one start to the next (addresses, caches, clocks) is between blocks,
where the interval accounts for it. The change of a block is the logarithm of new over
old, over the same requests. The interval is Student's t over blocks. Its error is spent
over a fixed number of looks, half of it on the last one, and, by weight, over all
metrics (Bonferroni): all intervals of a comparison hold together, whenever it stops,
and so does each difference. That there is none above some size is two one-sided tests
of one metric by itself (Schuirmann 1987): of several metrics all must pass, so that
nothing is to be paid for their number (Berger 1982)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.failure.documents.upgrade import Area, Block, Difference, Outcome

CONFIDENCE = 0.99
_NONE_TIMES = 5
"""How much more often "no difference above 4 %" may be wrong of a change that is just
above than a difference where there is none: 5 %, as is usual for tests of equivalence,
against 1 %."""
LOOKS: Final = (6, 8, 11, 15, 21, 30, 42)
"""Blocks after which it is decided whether to go on."""
_LAST_SHARE = 0.5
"""The share of the error that the last look may spend: the time or the blocks are over.
On a noisy machine most comparisons end there. The other looks share the rest."""
FEWEST = 3
"""Blocks without which no interval is given."""
_DECIDING_SHARE = 0.8
"""Of the error, for the metrics that decide when to stop."""
_TIMES: Final = (
    "ttft",
    "itl",
    "tpot",
    "latency",
    "throughput",
    "itl-saturated",
    "tpot-saturated",
    "latency-saturated",
)
"""Metrics that ``--worse 5%`` is of."""
BUSY = 0.7
"""Of one core: a client that computes for longer may itself be what is measured."""


@dataclass(frozen=True)
class Metric:
    """What is measured of a server.

    Attributes:
        words: for people.
        unit: "s", "tokens/s", "bytes" …; of the values.
        worse: the direction that is bad.
        verbs: of a change to the worse and to the better.
        threshold: a change to the worse that matters, 0.03 is 3 %.
        decides: the comparison goes on until it is settled; else what is too noisy is
            only noted. At saturation no core sleeps between requests, and a block
            scatters by half as much.
        points: the change is a difference, in points of 0.01, and no ratio: it may be
            of 0.
    """

    name: str
    words: str
    unit: str
    worse: Literal["higher", "lower"] = "higher"
    verbs: tuple[str, str] = ("slower", "faster")
    threshold: float = 0.05
    decides: bool = False
    area: Area = Area.SPEED
    points: bool = False

    @property
    def saturated(self) -> bool:
        return self.name == "throughput" or self.name.endswith("-saturated")

    def change(self, old: float, new: float) -> float | None:
        """From ``old`` to ``new``; None: there is none."""
        if self.points:
            return new - old
        return math.log(new / old) if old > 0 and new > 0 else None

    def relative(self, change: float) -> float:
        """A change as people read it: 0.07 is 7 % more."""
        return change if self.points else math.expm1(change)

    def limit(self, threshold: float) -> float:
        """The threshold as a change."""
        return threshold if self.points else math.log1p(threshold)


_LESS_MORE, _MORE_LESS = ("lower", "higher"), ("higher", "lower")
METRICS: Final = {
    one.name: one
    for one in (
        Metric("ttft", "TTFT, median", "s", threshold=0.1, decides=True),
        Metric("itl", "inter-token latency, median", "s", threshold=0.03),
        Metric("tpot", "TPOT, median", "s", threshold=0.03),
        Metric("latency", "latency, median", "s"),
        Metric(
            name="throughput",
            words="throughput at saturation",
            unit="tokens/s",
            worse="lower",
            verbs=_LESS_MORE,
            decides=True,
        ),
        Metric("ttft-p90", "TTFT, 90th percentile", "s", threshold=0.15),
        Metric("latency-p90", "latency, 90th percentile", "s", threshold=0.15),
        Metric("itl-p99", "inter-token latency, 99th percentile", "s", threshold=0.25),
        Metric("tpot-saturated", "TPOT at saturation, median", "s", threshold=0.04),
        Metric("latency-saturated", "latency at saturation, median", "s", decides=True),
        Metric(
            "itl-saturated",
            "inter-token latency at saturation, median",
            "s",
            threshold=0.04,
            decides=True,
        ),
        Metric("start", "start-up time", "s", threshold=0.25),
        Metric(
            name="kv-cache",
            words="KV cache size",
            unit="tokens",
            worse="lower",
            verbs=_LESS_MORE,
            threshold=0.02,
            area=Area.MEMORY,
        ),
        Metric(
            name="hit-rate",
            words="prefix cache hit rate",
            unit="",
            worse="lower",
            verbs=_LESS_MORE,
            threshold=0.05,
            area=Area.MEMORY,
            points=True,
        ),
        Metric(
            name="acceptance",
            words="accepted tokens a draft",
            unit="tokens",
            worse="lower",
            verbs=_LESS_MORE,
            threshold=0.05,
            area=Area.MEMORY,
        ),
        Metric(
            name="preemptions",
            words="preemptions a request",
            unit="",
            worse="higher",
            verbs=_MORE_LESS,
            threshold=0.05,
            area=Area.MEMORY,
            points=True,
        ),
        Metric(
            name="rss",
            words="memory",
            unit="bytes",
            worse="higher",
            verbs=_MORE_LESS,
            threshold=0.05,
            area=Area.MEMORY,
        ),
        Metric(
            name="gpu",
            words="GPU memory",
            unit="bytes",
            worse="higher",
            verbs=_MORE_LESS,
            threshold=0.02,
            area=Area.MEMORY,
        ),
    )
}


def metric_of(name: str, said: str) -> Metric:
    """The metric called ``name``. Raises UsageError that begins with ``said``: there is
    none."""
    if name not in METRICS:
        guess = did_you_mean(name, [*METRICS])
        raise UsageError(
            f"{said}: there is no metric {name!r}.{guess}",
            hint=f"one of {', '.join(METRICS)}",
        )

    return METRICS[name]


def thresholds(words: Sequence[str]) -> dict[str, float]:
    """By metric, where ``words`` are ``5%`` (of all times) or ``tpot=2%``.

    Raises:
        UsageError: a word is neither, or names no metric.
    """
    made = {name: metric.threshold for name, metric in METRICS.items()}
    for word in words:
        name, sign, text = word.rpartition("=")
        try:
            value = float(text.strip().removesuffix("%")) / (
                100 if text.endswith("%") else 1
            )
        except ValueError:
            value = math.nan

        if not 0 < value < 10:
            raise UsageError(
                f"--worse {word}: {text!r} is no share.", hint="--worse tpot=3%"
            )
        if sign:
            metric_of(name, f"--worse {word}")
        made |= dict.fromkeys([name] if sign else _TIMES, value)

    return made


# -------------------------------------------------------------------------- Student's t


def tail(t: float, df: int) -> float:
    """The probability of more than ``t``, for a whole number of degrees of freedom
    (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(df))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    term = math.cos(angle) if df % 2 else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if df % 2 else 2, df, 2):
        term *= square * (k - 1) / k
        total += term

    inside = 2 / math.pi * (angle + sine * total) if df % 2 else sine * total
    return (1 - inside) / 2


@lru_cache(maxsize=1024)
def quantile(error: float, df: int) -> float:
    """The t with ``error`` above it, found by halving."""
    low, high = 0.0, 1.0
    while tail(high, df) > error and high < 1e9:
        low, high = high, 2 * high

    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, df) > error else (low, middle)

    return high


# ---------------------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Change:
    """What blocks say of one metric; changes as :meth:`Metric.change` has them.

    Attributes:
        blocks: that measured it.
        low, high: hold together with those of all other metrics.
        bound: the largest change, in either direction, that this metric by itself does
            not exclude.
        old, new: medians of the values.
    """

    metric: Metric
    threshold: float
    blocks: int
    estimate: float
    low: float
    high: float
    bound: float
    old: float
    new: float

    @property
    def toward_worse(self) -> float:
        """The estimate, counted toward the worse."""
        return self.estimate if self.metric.worse == "higher" else -self.estimate

    @property
    def differs(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def outcome(self) -> Outcome:
        if self.differs:
            return Outcome.DIFFERENCE
        within = self.bound <= self.metric.limit(self.threshold)
        return Outcome.NONE if within else Outcome.UNTOLD

    @property
    def matters(self) -> bool:
        return self.differs and self.toward_worse >= self.metric.limit(self.threshold)

    @property
    def settled(self) -> bool:
        """Whether more blocks would change what is said of it."""
        if not self.differs:
            return self.outcome is Outcome.NONE
        limit, half = self.metric.limit(self.threshold), (self.high - self.low) / 2
        if self.toward_worse <= 0 or self.matters:
            return half <= max(limit, abs(self.estimate) / 2)
        return self.bound <= limit or half <= limit / 3


def changes(
    blocks: Sequence[Block],
    worse: Mapping[str, float],
    confidence: float = CONFIDENCE,
    *,
    only: str = "",
    last: bool = False,
) -> list[Change]:
    """Of each metric that enough blocks measured, in the order of :data:`METRICS`, or
    of one; the intervals hold together with ``confidence``, at every look. ``last``:
    nothing of what was seen before ended it; else it is one of :data:`LOOKS`."""
    names = [only] if only else METRICS
    found = {name: [b for b in blocks if name in b.changes] for name in names}
    seen = [METRICS[name] for name, some in found.items() if len(some) >= FEWEST]
    error = (1 - confidence) * (_LAST_SHARE if last else (1 - _LAST_SHARE) / len(LOOKS))
    return [_change(one, found[one.name], worse[one.name], seen, error) for one in seen]


def _change(
    metric: Metric,
    blocks: Sequence[Block],
    threshold: float,
    family: Collection[Metric],
    error: float,
) -> Change:
    kin = [one for one in family if one.decides == metric.decides]
    share = _DECIDING_SHARE if metric.decides else 1 - _DECIDING_SHARE
    if len(kin) == len(family):
        share = 1.0
    values = [block.changes[metric.name] for block in blocks]
    number = len(values)
    mean = math.fsum(values) / number
    spread = math.sqrt(
        math.fsum((value - mean) ** 2 for value in values) / (number - 1)
    )
    scale = spread / math.sqrt(number)
    half = quantile(error * share / len(kin) / 2, number - 1) * scale
    return Change(
        metric,
        threshold,
        number,
        mean,
        mean - half,
        mean + half,
        abs(mean) + quantile(min(_NONE_TIMES * error, 0.5), number - 1) * scale,
        statistics.median(block.old[metric.name] for block in blocks),
        statistics.median(block.new[metric.name] for block in blocks),
    )


def enough(found: Sequence[Change]) -> bool:
    """Whether no further block is worth its time: what decides is settled, or one of it
    matters."""
    deciding = [one for one in found if one.metric.decides or len(found) == 1]
    settled = [one for one in deciding if one.settled]
    return bool(deciding) and (
        len(settled) == len(deciding) or any(s.matters for s in settled)
    )


# --------------------------------------------------------------------------- statements


def _percent(share: float) -> str:
    """``7``, ``0.4``: two figures below 10 are enough."""
    value = abs(share) * 100
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def difference(change: Change) -> Difference:
    metric, unit = change.metric, "points" if change.metric.points else "%"
    low, high = metric.relative(change.low), metric.relative(change.high)
    worse, better = metric.verbs
    up, down = (worse, better) if metric.worse == "higher" else (better, worse)
    if change.differs:
        verb = up if change.estimate > 0 else down
        sides = sorted((abs(low), abs(high)))
        span = " to ".join(map(_percent, sides))
        value = _percent(metric.relative(change.estimate))
        said = f"{verb} by {value} {unit}"
        if sides[0] != sides[1]:
            said += f" ({span})"
    elif change.outcome is Outcome.NONE:
        most = _percent(metric.relative(change.bound))
        said = f"no difference above {most} {unit}" if float(most) else "the same"
    else:
        said = (
            f"too noisy to tell: from {_percent(low)} {unit} {down} to "
            f"{_percent(high)} {unit} {up}"
        )

    return Difference(
        area=metric.area,
        subject=metric.words,
        outcome=change.outcome,
        matters=change.matters,
        decides=metric.decides,
        statement=said,
        old=_rounded(change.old),
        new=_rounded(change.new),
        unit=metric.unit,
        metric=metric.name,
        interval=(round(low, 5), round(high, 5)),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
