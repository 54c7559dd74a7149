"""A server of each side under the same requests in turn: how long each takes, what each
uses.

The traffic is cut where the recording was idle, or into equal parts, and the parts are
sent to both sides in the order A B B A. Where both servers live at once, a part follows
on the other side within a second: what drifts on the machine falls on both. Each
request is held against the same request on the other side."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import statistics
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

import psutil
from mmrepro.base.errors import EngineStartError
from mmrepro.base.processes import TICKS_PER_S
from mmrepro.engines import SERVED_MODEL
from mmrepro.failure.documents import Block, Journal, UpgradeSide
from mmrepro.runs.changes import METRICS
from mmrepro.runs.play.limits import KV, by_log, by_metrics
from mmrepro.runs.play.looking import cpu_ticks, of_metrics, of_processes
from mmrepro.runs.play.options import Measuring
from mmrepro.runs.start import Started
from mmrepro.traffic import Picture, Traffic
from mmrepro.traffic.case import (
    Case,
    Message,
    Operation,
    Sending,
    ServerWanted,
    Time,
    pictures,
)

T = TypeVar("T")

_IDLE_S = 0.5
"""A recording is cut where nothing was sent for so long."""
PART_REQUESTS = 12
"""Of a part of traffic without times."""
_LEAST_AT_ONCE = 4
"""Requests of a part at saturation. Two parts differ by as much chance however long
they are, so that many short ones tell more."""
_TRIMMED = 0.1
"""The share of the ratios at saturation that is left out at each end: something else
may have used the machine for a moment."""
_ANSWER_S = 600.0
_WARM_UPS = 3
"""Requests before anything is measured."""
_WATCH_S = 0.1
_QUANTILES = 21
_SPREAD: Final = ("ttft", "itl", "tpot", "latency")
"""Times of a request, by the attributes of :class:`Timing`."""
_SHARE_METRICS: Final = {
    "hit-rate": ("prefix_hits", "prefix_queries"),
    "acceptance": ("accepted", "drafts"),
    "preemptions": ("preemptions", "finished"),
}
"""Of each share the counters of its part and of its whole."""

_Pass = Literal["recorded", "saturated"]
_SHARES: Final[dict[_Pass, float]] = {"recorded": 0.4, "saturated": 0.6}
"""The share of a block's time that each pass gets. All metrics that decide, except
TTFT, are measured at saturation."""


class _Broken(Exception):
    """A side cannot be measured any more; the text says why."""


@dataclass
class Timing:
    """One answered request, in seconds. ``gaps``: between its tokens."""

    latency: float
    tokens: int = 0
    ttft: float | None = None
    tpot: float | None = None
    gaps: list[float] = field(default_factory=list)

    @property
    def itl(self) -> float | None:
        return statistics.median(self.gaps) if self.gaps else None


def timing(times: Sequence[float], tokens: int | None) -> Timing:
    """Compute the times of one request. ``times``: sent, each piece, ended. A piece may
    hold several tokens."""
    sent, *pieces, ended = times
    made = Timing(latency=ended - sent, tokens=tokens or len(pieces))
    if pieces:
        made.ttft = pieces[0] - sent
        made.gaps = [late - early for early, late in itertools.pairwise(pieces)]

    if len(pieces) > 1 and made.tokens > 1:
        made.tpot = (pieces[-1] - pieces[0]) / (made.tokens - 1)
    return made


@dataclass
class Sample:
    """What was measured of one side.

    Attributes:
        timings: by pass, number of the part and request.
        rates: tokens a second of each part, at saturation.
        values: what is known once of a server: ``start``, ``rss`` …, by metric.
    """

    timings: dict[_Pass, dict[tuple[int, str], Timing]] = field(
        default_factory=lambda: {"recorded": {}, "saturated": {}}
    )
    rates: list[float] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    spent: float = 0.0
    computed: float = 0.0


# ---------------------------------------------------------------------------- the parts


def parts(case: Case, part_s: float) -> list[Case]:
    """The traffic cut where nothing was sent for a while, or after ``part_s``; each
    part can be sent by itself."""
    ids: list[list[str]] = []
    began = -math.inf
    last = -math.inf
    for op in case.operations:
        at = op.at_s
        if at is None:
            cut = bool(ids) and len(ids[-1]) >= PART_REQUESTS
        else:
            cut = at - last > _IDLE_S or at - began >= part_s

        if cut or not ids:
            ids.append([])
            began = began if at is None else at

        ids[-1].append(op.id)
        last = last if at is None else at

    kept = [case.keeping(some) for some in ids]
    return [part for part in kept if part.operations]


def saturated(case: Case, at_once: int) -> list[list[Operation]]:
    """The same requests without times and order, ``at_once`` at a time."""
    room = [f"running<={at_once - 1}"]
    free = []
    for op in case.operations:
        # A request with values of an earlier answer has an order of its own.
        if not op.values:
            free.append(op.model_copy(update={"after": room}))

    size = max(_LEAST_AT_ONCE, at_once)
    return [free[first : first + size] for first in range(0, len(free), size)]


# ----------------------------------------------------------------------------- one side


class _Served:
    """One side while it is measured."""

    def __init__(
        self,
        server: Started,
        journal: Journal,
        wanted: Measuring,
        made: Mapping[str, Picture],
    ) -> None:
        self.server = server
        self.journal = journal
        self.made = made
        self.sample = Sample()
        self.sample.values["start"] = journal.incident.engine.start_seconds or 0.0
        self._traffic: Traffic | None = None
        self._before: dict[str, float] = {}

    @property
    def traffic(self) -> Traffic:
        if self._traffic is None:
            self._traffic = Traffic(
                self.server.url, SERVED_MODEL, self.journal.recorder
            )
        return self._traffic

    async def warm_up(self) -> None:
        self.journal.recorder.phase = "gate"
        for number in range(_WARM_UPS):
            text = f"warm-up {number}"
            message = Message(role="user", content=text)
            op = Operation(
                id=f"warm-up-{number}",
                messages=[message],
                parameters={"max_tokens": 8, "temperature": 0},
                stream=True,
            )
            await self._send([op], "fast")

        # Counters begin with the server: what warmed it up is no part of the block.
        self._before = of_metrics(await self.traffic.scrape())
        self.journal.recorder.phase = "trigger"

    async def perform(
        self, which: _Pass, number: int, operations: Sequence[Operation]
    ) -> None:
        """Send a part and keep its times. Raises Broken: the server has ended, or
        hangs."""
        pace: Time = "real" if which == "recorded" else "fast"
        began = time.monotonic()
        computed = time.thread_time()
        sending, tokens = await self._send(operations, pace)
        took = time.monotonic() - began
        self.sample.spent += took
        self.sample.computed += time.thread_time() - computed

        timings = self.sample.timings[which]
        total = 0
        for id, count in tokens.items():
            answered = timing(sending.times[id], count)
            timings[number, id] = answered
            total += answered.tokens

        if which == "saturated" and tokens:
            self.sample.rates.append((total or len(tokens)) / took)

    async def _send(
        self, operations: Sequence[Operation], at: Time
    ) -> tuple[Sending, dict[str, int | None]]:
        """Tokens of those that were answered, as the server counts them."""
        records = self.journal.recorder.evidence.requests
        first = len(records)
        sending = Sending(self.traffic, self.made, _ANSWER_S, at)
        sending.alive = self.server.alive
        await sending.perform(operations)
        if not self.server.alive():
            raise _Broken(f"the server ended with {self.server.process.exit_code}")

        # What leaves before its answer has no time of its own.
        leaves = {op.id for op in operations if op.leave}
        tokens = {}
        for record in records[first:]:
            if record.timed_out:
                raise _Broken(f"a request has no answer in {_ANSWER_S:.0f} s")
            if record.answered and record.label not in leaves:
                tokens[record.label] = record.completion_tokens

        return sending, tokens

    async def close(self) -> None:
        """Read what it used, before it is stopped."""
        values = self.sample.values
        text = await self.traffic.scrape()
        metrics = of_metrics(text)
        pids = self.server.process.process_ids()
        reading = await asyncio.to_thread(of_processes, pids, metrics)
        values["rss"] = float(reading.rss_bytes or 0)
        kv_tokens = self._kv_tokens(text)
        if kv_tokens:
            values["kv-cache"] = float(min(kv_tokens))

        for name, (part, whole) in _SHARE_METRICS.items():
            share = self._share(metrics, part, whole)
            if share is not None:
                values[name] = share

        # Where an engine tells it by itself, that is taken.
        names = self.server.spec.engine.metrics.get("accept_length", ())
        accepted = reading.first(names)
        if accepted:
            values["acceptance"] = accepted

        held = []
        for point in self.journal.recorder.evidence.series:
            held.append(sum(point.gpu_bytes.values()))

        if any(held):
            values["gpu"] = max(held)
        await self.traffic.close()
        self._traffic = None

    def _kv_tokens(self, metrics: str) -> list[int]:
        """Sizes of its KV cache, by its log and its metrics."""
        limits = [*by_log(self.server.process.log), *by_metrics(metrics)]
        return [limit.tokens for limit in limits if limit.name == KV]

    def _share(
        self, metrics: Mapping[str, float], part: str, whole: str
    ) -> float | None:
        """How much one counter grew of another, since the warm-up; None: it has not
        both, or the whole did not grow."""
        some = self._grown(metrics, part)
        all_of_it = self._grown(metrics, whole)
        if some is None or not all_of_it:
            return None
        return some / all_of_it

    def _grown(self, metrics: Mapping[str, float], short: str) -> float | None:
        """How much a counter grew, by a metric's short name, of whose names a release
        has one."""
        for name in self.server.spec.engine.metrics.get(short, ()):
            if name in metrics:
                return metrics[name] - self._before.get(name, 0.0)

        return None


# ------------------------------------------------------------------------------ a block


class ServingPlayer(Protocol):
    """A player, as far as a block needs it."""

    @property
    def cancelled(self) -> bool:
        """Tell whether nothing goes on any more."""

    def serving(
        self, wanted: ServerWanted, folder: Path
    ) -> AbstractContextManager[tuple[Started, Journal]]:
        """Start a server and keep it while the context lasts."""


def measure(player: ServingPlayer, wanted: Measuring, folder: Path) -> Block:
    """Measure a block; what cannot be measured is said in it.

    Raises:
        InfrastructureError: nothing was learnt of the engines.
        KeyboardInterrupt: the session was cancelled.
    """
    began = time.monotonic()
    chance = random.Random(f"{wanted.seed}/{wanted.index}")  # noqa: S311
    order: tuple[UpgradeSide, UpgradeSide] = ("old", "new")
    # A B B A over the blocks; the seed decides where that begins.
    if (wanted.index + wanted.seed) % 4 in (1, 2):
        order = ("new", "old")

    made = Block(index=wanted.index, first=order[0])
    pace = _pace_s()
    try:
        samples = _Block(player, wanted, folder, order, chance).run(made)
    except EngineStartError as error:
        made.error = f"a server did not start: {error.message}"
    except _Broken as error:
        made.error = str(error)
    else:
        note_changes(made, samples["old"], samples["new"])

    made.pace = round(1000 * (pace + _pace_s()) / 2, 2)
    made.seconds = round(time.monotonic() - began, 2)
    return made


class _Block:
    """Both sides of one block; ``order``: which of them is first."""

    def __init__(
        self,
        player: ServingPlayer,
        wanted: Measuring,
        folder: Path,
        order: tuple[UpgradeSide, UpgradeSide],
        chance: random.Random,
    ) -> None:
        self.player = player
        self.wanted = wanted
        self.folder = folder
        self.order = order
        self.pictures = pictures(wanted.case, wanted.contents)

        recorded = [part.operations for part in parts(wanted.case, wanted.part_s)]
        crowds = saturated(wanted.case, wanted.at_once)
        chance.shuffle(recorded)
        chance.shuffle(crowds)
        self.parts: dict[_Pass, list[Sequence[Operation]]] = {
            "recorded": [*recorded],
            "saturated": [*crowds],
        }
        # One metric alone is measured in one of the passes.
        if wanted.only in METRICS:
            unused: _Pass = "saturated"
            if METRICS[wanted.only].saturated:
                unused = "recorded"
            del self.parts[unused]

        whole = sum(_SHARES[which] for which in self.parts)
        self.each_s: dict[_Pass, float] = {}
        for which in self.parts:
            self.each_s[which] = wanted.seconds * _SHARES[which] / whole

    def run(self, made: Block) -> dict[UpgradeSide, Sample]:
        """Measure both sides; what the machine did meanwhile is noted in ``made``."""
        began = time.monotonic()
        busy = _busy_s()
        own = time.process_time()
        together = self._together if self.wanted.together else self._one_by_one
        samples, ticks = together()

        took = time.monotonic() - began
        spent = sum(sample.spent for sample in samples.values())
        computed = sum(sample.computed for sample in samples.values())
        made.client_busy = round(computed / max(spent, 1e-3), 3)

        # What neither mmrepro nor the servers used, others did.
        own = time.process_time() - own
        others = _busy_s() - busy - own - ticks / TICKS_PER_S
        made.noise = round(max(0.0, others / took), 2)
        return samples

    def _together(self) -> tuple[dict[UpgradeSide, Sample], int]:
        """Both servers live at once; the samples, and the servers' ticks."""
        sides: dict[UpgradeSide, _Served] = {}
        with contextlib.ExitStack() as both:
            for side in self.order:
                sides[side] = both.enter_context(self._serving(side))

            asyncio.run(self._watched(self._in_turn(sides)))
            ticks = sum(self._ticks(served) for served in sides.values())

        return {side: served.sample for side, served in sides.items()}, ticks

    def _one_by_one(self) -> tuple[dict[UpgradeSide, Sample], int]:
        """The second server starts when the first has ended, and gets as many parts."""
        samples: dict[UpgradeSide, Sample] = {}
        ticks = 0
        counts: dict[_Pass, int] = {}
        for side in self.order:
            with self._serving(side) as served:
                counts = asyncio.run(self._watched(self._alone(served, counts)))
                ticks += self._ticks(served)

            samples[side] = served.sample

        return samples, ticks

    @staticmethod
    def _ticks(served: _Served) -> int:
        return cpu_ticks(served.server.process.process_ids())

    @contextlib.contextmanager
    def _serving(self, side: UpgradeSide) -> Iterator[_Served]:
        wanted = self.wanted.old if side == "old" else self.wanted.new
        with self.player.serving(wanted, self.folder / side) as (server, journal):
            try:
                yield _Served(server, journal, self.wanted, self.pictures)
            except _Broken as error:
                raise _Broken(f"{side}: {error}") from error

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """``work``, until it ends or the session is cancelled."""
        task = asyncio.ensure_future(work)
        # Awaited in slices: a thread that waits sees no other thread's wish.
        while not (await asyncio.wait({task}, timeout=_WATCH_S))[0]:
            if self.player.cancelled:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise KeyboardInterrupt

        return task.result()

    async def _in_turn(self, sides: Mapping[UpgradeSide, _Served]) -> None:
        """Part by part, A B B A."""
        first, second = (sides[side] for side in self.order)
        both = (first, second)
        for served in both:
            await served.warm_up()

        for which, operations in self.parts.items():
            spent = max(served.sample.spent for served in both)
            limit = spent + self.each_s[which]
            for number, part in enumerate(itertools.cycle(operations)):
                pair = both if number % 4 in (0, 3) else (second, first)
                for served in pair:
                    await served.perform(which, number, part)

                # Only after both orders: else one side was first more often.
                spent = min(served.sample.spent for served in both)
                if number % 2 and spent >= limit:
                    break

        for served in both:
            await served.close()

    async def _alone(
        self, served: _Served, counts: Mapping[_Pass, int]
    ) -> dict[_Pass, int]:
        """Send as many parts as the other side had, ``counts``; where it is first, as
        there is time for."""
        await served.warm_up()
        done: dict[_Pass, int] = {}
        for which, operations in self.parts.items():
            limit = served.sample.spent + self.each_s[which]
            for number, part in enumerate(itertools.cycle(operations)):
                await served.perform(which, number, part)
                done[which] = number + 1
                if counts:
                    over = done[which] == counts.get(which)
                else:
                    over = bool(number % 2) and served.sample.spent >= limit
                if over:
                    break

        await served.close()
        return done


def _pace_s() -> float:
    """What a fixed computation takes: where that varies, so does all that is measured
    beside it."""
    took = []
    # The median of several: any one may be interrupted.
    for _ in range(5):
        began = time.perf_counter()
        sum(number * number for number in range(200_000))
        took.append(time.perf_counter() - began)

    return statistics.median(took)


def _busy_s() -> float:
    """Processor time of the whole machine so far, in seconds of one core."""
    now = psutil.cpu_times()
    total = now.user + now.system
    # Not every system counts these.
    for field_name in ("nice", "steal"):
        total += getattr(now, field_name, 0.0)

    return float(total)


# ------------------------------------------------------------------------- what changed


def note_changes(made: Block, old: Sample, new: Sample) -> None:
    """Write into ``made`` what both sides' samples say."""
    passes: Sequence[tuple[str, _Pass]] = (
        ("", "recorded"),
        ("-saturated", "saturated"),
    )
    for suffix, which in passes:
        pairs = _pairs(old.timings[which], new.timings[which])
        for name in _SPREAD:
            if name + suffix in METRICS:
                _note_time(made, name, suffix, which, pairs)

        if which == "recorded":
            before = [gap for timing, _ in pairs for gap in timing.gaps]
            after = [gap for _, timing in pairs for gap in timing.gaps]
            _note_tail(made, "itl-p99", before, after, 0.99)

    if old.rates and new.rates:
        rates = list(zip(old.rates, new.rates, strict=False))
        change = _ratio(rates, "saturated")
        _note(
            made,
            "throughput",
            statistics.median(old.rates),
            statistics.median(new.rates),
            change,
        )

    for name in old.values.keys() & new.values.keys():
        _note(made, name, old.values[name], new.values[name])


def _note_time(
    made: Block,
    name: str,
    suffix: str,
    which: _Pass,
    pairs: Sequence[tuple[Timing, Timing]],
) -> None:
    """Note how one time of all requests changed: its middle, its tail, its spread."""
    both = []
    for old, new in pairs:
        both += _values(name, old, new)

    if not both:
        return
    before = [value for value, _ in both]
    after = [value for _, value in both]
    _note(
        made,
        name + suffix,
        statistics.median(before),
        statistics.median(after),
        _ratio(both, which),
    )
    if which == "recorded":
        made.spread[name] = quantiles(before), quantiles(after)
    _note_tail(made, f"{name}-p90{suffix}", before, after, 0.9)


def _note_tail(
    made: Block,
    name: str,
    before: Sequence[float],
    after: Sequence[float],
    share: float,
) -> None:
    """Note how a percentile changed, where it is a metric and both sides have one."""
    old = percentile(before, share)
    new = percentile(after, share)
    if name in METRICS and old is not None and new is not None:
        _note(made, name, old, new)


def _note(
    made: Block, name: str, before: float, after: float, change: float | None = None
) -> None:
    """Note one metric of both sides. ``change``: where it was computed of pairs; None:
    it is that of both values."""
    if change is None:
        change = METRICS[name].change(before, after)
    if change is not None:
        made.changes[name] = round(change, 6)
        made.old[name] = _short(before)
        made.new[name] = _short(after)


def _ratio(both: Sequence[tuple[float, float]], which: _Pass) -> float:
    """How much the second of each pair is of the first, as a logarithm.

    At the recorded times the median of all: a core that slept between two requests
    disturbs many. At saturation the mean without the ends: the requests of a part are
    disturbed together, so that the median is that of a few parts."""
    ratios = sorted(math.log(b / a) for a, b in both)
    if which == "recorded":
        return statistics.median(ratios)
    cut = int(_TRIMMED * len(ratios))
    return statistics.fmean(ratios[cut : len(ratios) - cut])


def _values(name: str, old: Timing, new: Timing) -> list[tuple[float, float]]:
    """The pairs of one request: of the times between its tokens each by its place,
    where both answers came in as many pieces."""
    if name == "itl" and len(old.gaps) == len(new.gaps):
        gaps = zip(old.gaps, new.gaps, strict=True)
        # Two pieces in one read have no time between them, and no logarithm.
        return [(before, after) for before, after in gaps if before > 0 and after > 0]

    before, after = getattr(old, name), getattr(new, name)
    return [(before, after)] if before and after else []


def _pairs(
    old: Mapping[tuple[int, str], Timing], new: Mapping[tuple[int, str], Timing]
) -> list[tuple[Timing, Timing]]:
    """The same request on both sides."""
    return [(old[key], new[key]) for key in old if key in new]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Interpolate linearly between values; None: there are none."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def quantiles(values: Sequence[float]) -> list[float]:
    """Values that stand for the whole distribution, from the least to the largest."""
    some = []
    for number in range(_QUANTILES):
        value = percentile(values, number / (_QUANTILES - 1))
        if value is not None:
            some.append(_short(value))

    return some


def _short(value: float) -> float:
    return float(f"{value:.5g}")
