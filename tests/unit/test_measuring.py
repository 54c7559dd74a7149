"""A block's parts of the traffic, and what both sides' times say."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_plays import SERVER, fake_case, fake_op
from mmrepro.failure.documents.upgrade import Block
from mmrepro.runs.play.measuring import (
    PART_REQUESTS,
    Sample,
    Timing,
    _Block,
    note_changes,
    parts,
    percentile,
    quantiles,
    saturated,
    timing,
)
from mmrepro.runs.play.options import Measuring
from mmrepro.traffic.case.model import Case, Operation


def recorded(*at: float | None) -> Case:
    ops = [
        fake_op(f"r{n}").model_copy(update={"at_s": one}) for n, one in enumerate(at)
    ]
    return fake_case(ops)


def ids(case: Case, part_s: float = 2.0) -> list[list[str]]:
    return [[op.id for op in part.operations] for part in parts(case, part_s)]


def test_a_recording_is_cut_where_it_was_idle_and_where_a_part_is_long() -> None:
    assert ids(recorded(0.0, 0.3, 0.6, 5.0, 5.2)) == [["r0", "r1", "r2"], ["r3", "r4"]]
    assert ids(recorded(0.0, 0.4, 0.8, 1.2), part_s=0.8) == [["r0", "r1"], ["r2", "r3"]]
    without = [len(part) for part in ids(recorded(*[None] * (PART_REQUESTS + 2)))]
    assert without == [PART_REQUESTS, 2]


def test_what_waits_for_another_part_waits_for_nothing() -> None:
    case = fake_case([fake_op("a"), fake_op("b", after=["a.end"])])
    late = case.operations[1].model_copy(update={"at_s": 9.0})
    first = case.operations[0].model_copy(update={"at_s": 0.0})
    both = parts(case.model_copy(update={"operations": [first, late]}), 1.0)
    assert [part.operations[0].after for part in both] == [[], []]


def test_at_saturation_so_many_are_under_way() -> None:
    crowds = saturated(recorded(*range(30)), 4)
    assert [len(crowd) for crowd in crowds] == [4] * 7 + [2]
    assert {tuple(op.after) for crowd in crowds for op in crowd} == {("running<=3",)}


class PartsServer:
    """A server that counts the parts it is sent; each takes a second."""

    def __init__(self) -> None:
        self.sample = Sample()
        self.parts: Counter[str] = Counter()

    async def warm_up(self) -> None:
        """Nothing is cold here."""

    async def perform(
        self, which: str, number: int, operations: Sequence[Operation]
    ) -> None:
        self.parts[which] += 1
        self.sample.spent += 1.0

    async def close(self) -> None:
        """Nothing is open here."""


def test_a_server_that_follows_another_gets_as_many_parts() -> None:
    case = recorded(*[float(n) for n in range(8)])
    wanted = Measuring(SERVER, SERVER, case, seconds=6.0, together=False)
    player: Any = None  # it starts servers: these run already
    order = ("old", "new")
    block = _Block(player, wanted, Path(), order, random.Random(1))
    first, second = PartsServer(), PartsServer()

    async def one_by_one(*servers: Any) -> None:
        counts: dict[Any, int] = {}
        for server in servers:
            counts = await block._alone(server, counts)

    asyncio.run(one_by_one(first, second))
    assert first.parts == second.parts
    assert min(first.parts.values()) >= 2
    assert len(first.parts) == 2


def test_a_request_s_times() -> None:
    made = timing([10.0, 10.5, 10.6, 10.7, 10.75], tokens=5)
    assert made.latency == pytest.approx(0.75)
    assert made.ttft == pytest.approx(0.5)
    assert made.tpot == pytest.approx(0.2 / 4), "a piece may hold several tokens"
    assert made.gaps == pytest.approx([0.1, 0.1])
    whole = timing([10.0, 10.4], tokens=7)
    assert (whole.ttft, whole.tpot, whole.itl, whole.tokens) == (None, None, None, 7)


def sample(factor: float, *, pieces: int = 20) -> Sample:
    """Requests of several lengths, all of which take ``factor`` as long between
    tokens."""
    made = Sample(values={"rss": 100.0 * factor, "preemptions": 0.0})
    for n in range(20):
        gap = 0.01 * (1 + n / 10) * factor
        times = [0.0, 0.1, *(0.1 + gap * (k + 1) for k in range(pieces))]
        made.timings["recorded"][0, f"r{n}"] = timing([*times, times[-1]], pieces + 1)
    made.rates = [50.0 / factor, 60.0 / factor]
    return made


def test_each_request_is_held_against_the_same_one() -> None:
    block = Block(index=1, first="old")
    old, new = sample(1.0), sample(1.05)
    new.timings["recorded"][0, "more"] = Timing(99.0, 1, ttft=50.0)
    note_changes(block, old, new)
    for name in ("itl", "tpot", "itl-p99", "rss"):
        assert block.changes[name] == pytest.approx(math.log(1.05), abs=1e-4), name
    assert block.changes["throughput"] == pytest.approx(-math.log(1.05), abs=1e-4)
    assert block.changes["ttft"] == 0
    assert block.changes["preemptions"] == 0
    assert 0 < block.changes["latency"] < math.log(1.05)
    assert "kv-cache" not in block.changes
    assert len(block.spread["itl"][0]) == 21


def test_a_slow_tail_is_told_from_a_slow_median() -> None:
    """Of eleven requests the two slowest take twice as long."""
    old, new = Sample(), Sample()
    for n in range(1, 12):
        slower = n * (2 if n > 9 else 1)
        old.timings["recorded"][0, f"r{n}"] = Timing(latency=float(n), ttft=float(n))
        new.timings["recorded"][0, f"r{n}"] = Timing(float(slower), ttft=float(slower))
    block = Block(index=1, first="old")
    note_changes(block, old, new)
    for name in ("ttft", "latency"):
        assert block.changes[name] == 0
        tail = f"{name}-p90"
        assert block.changes[tail] == pytest.approx(math.log(2), abs=1e-5)
        assert (block.old[tail], block.new[tail]) == (10.0, 20.0)


def test_a_part_that_the_machine_disturbed_is_left_out() -> None:
    """Of twenty parts at saturation one took three times as long."""
    old, new = sample(1.0), sample(1.0)
    old.rates, new.rates = [100.0] * 20, [95.0] * 19 + [100.0 / 3]
    block = Block(index=1, first="old")
    note_changes(block, old, new)
    assert block.changes["throughput"] == pytest.approx(math.log(0.95), abs=1e-5)


def test_answers_in_other_pieces_are_compared_by_their_medians() -> None:
    block = Block(index=1, first="old")
    note_changes(block, sample(1.0), sample(1.1, pieces=30))
    assert block.changes["itl"] == pytest.approx(math.log(1.1), abs=1e-4)


def test_sides_of_which_one_answered_nothing_have_no_change() -> None:
    block = Block(index=1, first="old")
    note_changes(block, sample(1.0), Sample())
    assert not block.changes


def test_percentiles() -> None:
    assert percentile([], 0.9) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.9) == pytest.approx(1.9)
    assert quantiles([2.0, 1.0])[0] == 1.0
    assert quantiles([2.0, 1.0])[-1] == 2.0
