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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

import psutil
from mmrepro.base.errors import EngineStartError
from mmrepro.base.processes import TICKS_PER_S
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.failure.documents.folder import Journal
from mmrepro.failure.documents.upgrade import Block, Side
from mmrepro.runs.changes import METRICS
from mmrepro.runs.play.limits import KV, by_log, by_metrics
from mmrepro.runs.play.looking import cpu_ticks, of_metrics, of_processes
from mmrepro.runs.play.options import Measuring
from mmrepro.runs.start import Started
from mmrepro.traffic import Traffic
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted
from mmrepro.traffic.case.sending import Sending, Time
from mmrepro.traffic.pictures import Picture

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
    """``times``: sent, each piece, ended. A piece may hold several tokens."""
    sent, *pieces, ended = times
    made = Timing(ended - sent, tokens or len(pieces))
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
    began = last = -math.inf
    for op in case.operations:
        at = op.at_s
        late = at is not None and (at - last > _IDLE_S or at - began >= part_s)
        many = at is None and bool(ids) and len(ids[-1]) >= PART_REQUESTS
        if not ids or late or many:
            ids.append([])
            began = began if at is None else at
        ids[-1].append(op.id)
        last = last if at is None else at
    return [part for some in ids if (part := case.keeping(some)).operations]


def saturated(case: Case, at_once: int) -> list[list[Operation]]:
    """The same requests without times and order, ``at_once`` at a time."""
    room = [f"running<={at_once - 1}"]
    free = [
        op.model_copy(update={"after": room}) for op in case.operations if not op.values
    ]
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
        self.server, self.journal, self.made = server, journal, made
        self.sample = Sample(
            values={"start": journal.incident.engine.start_seconds or 0.0}
        )
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
        self._before = of_metrics(await self.traffic.scrape())
        self.journal.recorder.phase = "trigger"

    async def perform(
        self, which: _Pass, number: int, operations: Sequence[Operation]
    ) -> None:
        """Send a part and keep its times. Raises Broken: the server has ended, or
        hangs."""
        began, computed = time.monotonic(), time.thread_time()
        sending, tokens = await self._send(
            operations, "real" if which == "recorded" else "fast"
        )
        took = time.monotonic() - began
        self.sample.spent += took
        self.sample.computed += time.thread_time() - computed
        made = self.sample.timings[which]
        for id, count in tokens.items():
            made[number, id] = timing(sending.times[id], count)
        if which == "saturated" and tokens:
            total = sum(made[number, id].tokens for id in tokens)
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
        leaves = {op.id for op in operations if op.leave}
        answered = [r for r in records[first:] if r.answered and r.label not in leaves]
        if any(r.timed_out for r in records[first:]):
            raise _Broken(f"a request has no answer in {_ANSWER_S:.0f} s")
        return sending, {r.label: r.completion_tokens for r in answered}

    async def close(self) -> None:
        """Read what it used, before it is stopped."""
        values, engine = self.sample.values, self.server.spec.engine
        text = await self.traffic.scrape()
        metrics = of_metrics(text)
        log = self.server.process.log
        pids = self.server.process.process_ids()
        reading = await asyncio.to_thread(of_processes, pids, metrics)
        values["rss"] = float(reading.rss_bytes or 0)
        sizes = [
            one.tokens for one in (*by_log(log), *by_metrics(text)) if one.name == KV
        ]
        if sizes:
            values["kv-cache"] = float(min(sizes))

        def grown(short: str) -> float | None:
            name = next(
                (n for n in engine.metrics.get(short, ()) if n in metrics), None
            )
            return None if name is None else metrics[name] - self._before.get(name, 0.0)

        def share(name: str, part: str, whole: str) -> None:
            some, of = grown(part), grown(whole)
            if some is not None and of:
                values[name] = some / of

        share("hit-rate", "prefix_hits", "prefix_queries")
        share("acceptance", "accepted", "drafts")
        share("preemptions", "preemptions", "finished")
        if told := reading.first(engine.metrics.get("accept_length", ())):
            values["acceptance"] = told
        held = [
            sum(p.gpu_bytes.values()) for p in self.journal.recorder.evidence.series
        ]
        if any(held):
            values["gpu"] = max(held)
        await self.traffic.close()
        self._traffic = None


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
    orders: tuple[tuple[Side, Side], ...] = (("old", "new"), ("new", "old"))
    # A B B A over the blocks; the seed decides where that begins
    turn = (wanted.index + wanted.seed) % 4 in (1, 2)
    order = orders[turn]
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
    def __init__(
        self,
        player: ServingPlayer,
        wanted: Measuring,
        folder: Path,
        order: tuple[Side, Side],
        chance: random.Random,
    ) -> None:
        self.player, self.wanted, self.folder, self.order = (
            player,
            wanted,
            folder,
            order,
        )
        self.pictures = pictures(wanted.case, wanted.contents)
        recorded = [part.operations for part in parts(wanted.case, wanted.part_s)]
        crowds = saturated(wanted.case, wanted.at_once)
        chance.shuffle(recorded)
        chance.shuffle(crowds)
        self.parts: dict[_Pass, list[Sequence[Operation]]] = {
            "recorded": [*recorded],
            "saturated": [*crowds],
        }
        if wanted.only in METRICS:
            del self.parts[
                "recorded" if METRICS[wanted.only].saturated else "saturated"
            ]
        whole = sum(_SHARES[which] for which in self.parts)
        self.each_s = {
            which: wanted.seconds * _SHARES[which] / whole for which in self.parts
        }

    def run(self, made: Block) -> dict[Side, Sample]:
        took, busy = time.monotonic(), _busy_s()
        own, samples = time.process_time(), {}
        ticks = 0
        if self.wanted.together:
            with contextlib.ExitStack() as both:
                sides = {
                    side: both.enter_context(self._serving(side)) for side in self.order
                }
                asyncio.run(self._watched(self._in_turn(sides)))
                ticks = sum(self._ticks(one) for one in sides.values())
            samples = {side: one.sample for side, one in sides.items()}
        else:
            counts: dict[_Pass, int] = {}
            for side in self.order:
                with self._serving(side) as one:
                    counts = asyncio.run(self._watched(self._alone(one, counts)))
                    ticks += self._ticks(one)
                samples[side] = one.sample
        took = time.monotonic() - took
        spent = sum(sample.spent for sample in samples.values())
        made.client_busy = round(
            sum(s.computed for s in samples.values()) / max(spent, 1e-3), 3
        )
        others = _busy_s() - busy - (time.process_time() - own) - ticks / TICKS_PER_S
        made.noise = round(max(0.0, others / took), 2)
        return samples

    @staticmethod
    def _ticks(one: _Served) -> int:
        return cpu_ticks(one.server.process.process_ids())

    @contextlib.contextmanager
    def _serving(self, side: Side) -> Iterator[_Served]:
        wanted = self.wanted.old if side == "old" else self.wanted.new
        with self.player.serving(wanted, self.folder / side) as (server, journal):
            try:
                yield _Served(server, journal, self.wanted, self.pictures)
            except _Broken as error:
                raise _Broken(f"{side}: {error}") from error

    async def _watched(self, work: object) -> dict[_Pass, int]:
        """``work``, until it ends or the session is cancelled."""
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        while not (await asyncio.wait({task}, timeout=_WATCH_S))[0]:
            if self.player.cancelled:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise KeyboardInterrupt
        return task.result()  # type: ignore[no-any-return]

    async def _in_turn(self, sides: Mapping[Side, _Served]) -> dict[_Pass, int]:
        """Part by part, A B B A."""
        first, second = (sides[side] for side in self.order)
        for one in (first, second):
            await one.warm_up()
        done: dict[_Pass, int] = {}
        for which, some in self.parts.items():
            limit = max(first.sample.spent, second.sample.spent) + self.each_s[which]
            for number, part in enumerate(itertools.cycle(some)):
                pair = (first, second) if number % 4 in (0, 3) else (second, first)
                for one in pair:
                    await one.perform(which, number, part)
                done[which] = number + 1
                if number % 2 and min(first.sample.spent, second.sample.spent) >= limit:
                    break
        for one in (first, second):
            await one.close()
        return done

    async def _alone(
        self, one: _Served, counts: Mapping[_Pass, int]
    ) -> dict[_Pass, int]:
        """As many parts as the other side had, ``counts``; as there is time for, where
        it is first."""
        await one.warm_up()
        done: dict[_Pass, int] = {}
        for which, some in self.parts.items():
            limit = one.sample.spent + self.each_s[which]
            for number, part in enumerate(itertools.cycle(some)):
                await one.perform(which, number, part)
                done[which] = number + 1
                if done[which] == counts.get(which) or (
                    not counts and number % 2 and one.sample.spent >= limit
                ):
                    break
        await one.close()
        return done


def _pace_s() -> float:
    """What a fixed computation takes: where that varies, so does all that is measured
    beside it."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        sum(number * number for number in range(200_000))
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _busy_s() -> float:
    """Processor time of the whole machine so far, in seconds of one core."""
    now = psutil.cpu_times()
    return float(
        now.user + now.system + getattr(now, "nice", 0.0) + getattr(now, "steal", 0.0)
    )


# ------------------------------------------------------------------------- what changed


def note_changes(made: Block, old: Sample, new: Sample) -> None:
    """Write into ``made`` what both sides' samples say."""

    def note(
        name: str, before: float | None, after: float | None, change: float | None
    ) -> None:
        if before is None or after is None:
            return
        if change is None:
            change = METRICS[name].change(before, after)
        if change is not None:
            made.changes[name] = round(change, 6)
            made.old[name], made.new[name] = _short(before), _short(after)

    passes: Sequence[tuple[str, _Pass]] = (
        ("", "recorded"),
        ("-saturated", "saturated"),
    )
    for suffix, which in passes:
        pairs = _pairs(old.timings[which], new.timings[which])
        for name in ("ttft", "itl", "tpot", "latency"):
            both = [both for pair in pairs for both in _values(name, *pair)]
            if not both or name + suffix not in METRICS:
                continue
            before, after = ([pair[side] for pair in both] for side in (0, 1))
            ratio = _ratio(both, which)
            note(
                name + suffix,
                statistics.median(before),
                statistics.median(after),
                ratio,
            )
            if name in _SPREAD and not suffix:
                made.spread[name] = quantiles(before), quantiles(after)
            if (tail := f"{name}-p90{suffix}") in METRICS:
                note(tail, percentile(before, 0.9), percentile(after, 0.9), None)
        if not suffix:
            before = [gap for one, _ in pairs for gap in one.gaps]
            after = [gap for _, one in pairs for gap in one.gaps]
            note("itl-p99", percentile(before, 0.99), percentile(after, 0.99), None)
    if old.rates and new.rates:
        both = list(zip(old.rates, new.rates, strict=False))
        ratio = _ratio(both, "saturated")
        note(
            "throughput",
            statistics.median(old.rates),
            statistics.median(new.rates),
            ratio,
        )
    for name in old.values.keys() & new.values.keys():
        note(name, old.values[name], new.values[name], None)


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
        return [
            (a, b) for a, b in zip(old.gaps, new.gaps, strict=True) if a > 0 and b > 0
        ]
    before, after = getattr(old, name), getattr(new, name)
    return [(before, after)] if before and after else []


def _pairs(
    old: Mapping[tuple[int, str], Timing], new: Mapping[tuple[int, str], Timing]
) -> list[tuple[Timing, Timing]]:
    """The same request on both sides."""
    return [(old[key], new[key]) for key in old if key in new]


def percentile(values: Sequence[float], share: float) -> float | None:
    """By linear interpolation; None: there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def quantiles(values: Sequence[float]) -> list[float]:
    """Values that stand for the whole distribution, from the least to the largest."""
    some = (
        percentile(values, number / (_QUANTILES - 1)) for number in range(_QUANTILES)
    )
    return [_short(value) for value in some if value is not None]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
