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
from mmrepro.failure.documents import Area, Block, Difference, UpgradeOutcome

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


_LESS_MORE = ("lower", "higher")
_MORE_LESS = ("higher", "lower")
_ALL_METRICS = (
    Metric(
        name="ttft",
        words="TTFT, median",
        unit="s",
        threshold=0.1,
        decides=True,
    ),
    Metric(
        name="itl",
        words="inter-token latency, median",
        unit="s",
        threshold=0.03,
    ),
    Metric(name="tpot", words="TPOT, median", unit="s", threshold=0.03),
    Metric(name="latency", words="latency, median", unit="s"),
    Metric(
        name="throughput",
        words="throughput at saturation",
        unit="tokens/s",
        worse="lower",
        verbs=_LESS_MORE,
        decides=True,
    ),
    Metric(
        name="ttft-p90",
        words="TTFT, 90th percentile",
        unit="s",
        threshold=0.15,
    ),
    Metric(
        name="latency-p90",
        words="latency, 90th percentile",
        unit="s",
        threshold=0.15,
    ),
    Metric(
        name="itl-p99",
        words="inter-token latency, 99th percentile",
        unit="s",
        threshold=0.25,
    ),
    Metric(
        name="tpot-saturated",
        words="TPOT at saturation, median",
        unit="s",
        threshold=0.04,
    ),
    Metric(
        name="latency-saturated",
        words="latency at saturation, median",
        unit="s",
        decides=True,
    ),
    Metric(
        name="itl-saturated",
        words="inter-token latency at saturation, median",
        unit="s",
        threshold=0.04,
        decides=True,
    ),
    Metric(name="start", words="start-up time", unit="s", threshold=0.25),
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
METRICS: Final = {metric.name: metric for metric in _ALL_METRICS}


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
    """Thresholds by metric, where ``words`` are ``5%`` (of all times) or ``tpot=2%``.

    Raises:
        UsageError: a word is neither, or names no metric.
    """
    limits = {name: metric.threshold for name, metric in METRICS.items()}
    for word in words:
        name, sign, text = word.rpartition("=")
        value = _share(text)
        if not 0 < value < 10:
            raise UsageError(
                f"--worse {word}: {text!r} is no share.", hint="--worse tpot=3%"
            )
        if sign:
            metric_of(name, f"--worse {word}")
        limits |= dict.fromkeys([name] if sign else _TIMES, value)

    return limits


def _share(text: str) -> float:
    """``5%`` or ``0.05``; what is neither is no number."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        return math.nan
    return value / 100 if text.endswith("%") else value


# -------------------------------------------------------------------------- Student's t


def tail(t: float, df: int) -> float:
    """The probability of more than ``t``, for a whole number of degrees of freedom
    (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd = df % 2
    angle = math.atan2(t, math.sqrt(df))
    sine = math.sin(angle)
    square = math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df, 2):
        term *= square * (k - 1) / k
        total += term

    inside = sine * total
    if odd:
        inside = 2 / math.pi * (angle + sine * total)
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
    def outcome(self) -> UpgradeOutcome:
        if self.differs:
            return UpgradeOutcome.DIFFERENCE
        within = self.bound <= self.metric.limit(self.threshold)
        return UpgradeOutcome.NONE if within else UpgradeOutcome.UNTOLD

    @property
    def matters(self) -> bool:
        return self.differs and self.toward_worse >= self.metric.limit(self.threshold)

    @property
    def settled(self) -> bool:
        """Whether more blocks would change what is said of it."""
        if not self.differs:
            return self.outcome is UpgradeOutcome.NONE
        limit = self.metric.limit(self.threshold)
        half = (self.high - self.low) / 2
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
    measured: dict[str, list[Block]] = {}
    for name in [only] if only else METRICS:
        with_metric = [block for block in blocks if name in block.changes]
        if len(with_metric) >= FEWEST:
            measured[name] = with_metric

    error = (1 - confidence) * _LAST_SHARE
    if not last:
        error = (1 - confidence) * ((1 - _LAST_SHARE) / len(LOOKS))

    family = [METRICS[name] for name in measured]
    return [
        _change(metric, measured[metric.name], worse[metric.name], family, error)
        for metric in family
    ]


def _change(
    metric: Metric,
    blocks: Sequence[Block],
    threshold: float,
    family: Collection[Metric],
    error: float,
) -> Change:
    kin = [other for other in family if other.decides == metric.decides]
    share = _DECIDING_SHARE if metric.decides else 1 - _DECIDING_SHARE
    if len(kin) == len(family):
        share = 1.0

    values = [block.changes[metric.name] for block in blocks]
    number = len(values)
    mean = math.fsum(values) / number
    squares = math.fsum((value - mean) ** 2 for value in values)
    spread = math.sqrt(squares / (number - 1))
    scale = spread / math.sqrt(number)
    half = quantile(error * share / len(kin) / 2, number - 1) * scale
    # That there is no difference is claimed of one metric by itself, and more often.
    alone = quantile(min(_NONE_TIMES * error, 0.5), number - 1) * scale
    return Change(
        metric=metric,
        threshold=threshold,
        blocks=number,
        estimate=mean,
        low=mean - half,
        high=mean + half,
        bound=abs(mean) + alone,
        old=statistics.median(block.old[metric.name] for block in blocks),
        new=statistics.median(block.new[metric.name] for block in blocks),
    )


def enough(changes: Sequence[Change]) -> bool:
    """Whether no further block is worth its time: what decides is settled, or one of it
    matters."""
    alone = len(changes) == 1
    deciding = [change for change in changes if change.metric.decides or alone]
    settled = [change for change in deciding if change.settled]
    if not deciding:
        return False
    all_settled = len(settled) == len(deciding)
    return all_settled or any(change.matters for change in settled)


# --------------------------------------------------------------------------- statements


def _percent(share: float) -> str:
    """Write a share in percent, ``7`` or ``0.4``: two figures below 10 are enough."""
    value = abs(share) * 100
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def difference(change: Change) -> Difference:
    metric = change.metric
    low, high = metric.relative(change.low), metric.relative(change.high)
    return Difference(
        area=metric.area,
        subject=metric.words,
        outcome=change.outcome,
        matters=change.matters,
        decides=metric.decides,
        statement=_statement(change, low, high),
        old=_rounded(change.old),
        new=_rounded(change.new),
        unit=metric.unit,
        metric=metric.name,
        interval=(round(low, 5), round(high, 5)),
    )


def _statement(change: Change, low: float, high: float) -> str:
    """What is known of the change. ``low``, ``high``: its interval, as people read
    it."""
    metric = change.metric
    unit = "points" if metric.points else "%"
    worse, better = metric.verbs
    up, down = (worse, better) if metric.worse == "higher" else (better, worse)
    if change.differs:
        verb = up if change.estimate > 0 else down
        value = _percent(metric.relative(change.estimate))
        text = f"{verb} by {value} {unit}"
        least, most = sorted((abs(low), abs(high)))
        if least != most:
            text += f" ({_percent(least)} to {_percent(most)})"
        return text

    if change.outcome is UpgradeOutcome.NONE:
        bound = _percent(metric.relative(change.bound))
        return f"no difference above {bound} {unit}" if float(bound) else "the same"
    return (
        f"too noisy to tell: from {_percent(low)} {unit} {down} to "
        f"{_percent(high)} {unit} {up}"
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
