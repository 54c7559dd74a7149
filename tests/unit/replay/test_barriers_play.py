"""Any barriers: every operation is sent at last, and none before its time. The server
is a FAKE."""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_server import STREAM_HEAD, completion, delta, http, serving
from grids import examples
from hypothesis import HealthCheck, given, strategies as st
from mmrepro.runs.play.observing import blocks
from mmrepro.traffic import Traffic
from mmrepro.traffic.case.model import Barrier, Message, Operation
from mmrepro.traffic.case.sending import Barriers, Sending, Time, leave_at
from mmrepro.traffic.evidence import RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder

EVENTS = ("sent", "first-token", "tokens>=1", "tokens>=3", "end")
PIECES = 4
PLENTY_S = 30.0


def op(id: str, *after: str, **more: object) -> Operation:
    messages = [Message(role="user", content=id)]
    return Operation.model_validate(
        {"id": id, "after": after, "messages": messages, **more}
    )


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    made: list[Operation] = []
    for n in range(draw(st.integers(1, 7))):
        barriers = [f"r{m}.{event}" for m in range(n) for event in EVENTS]
        barriers += [
            f"running{sign}{count}" for sign in (">=", "<=") for count in (0, 1, 2, 9)
        ]
        stream = draw(st.booleans())
        leaves = st.sampled_from(
            ["", "", "sent", "first-token", "tokens>=2", "tokens>=9"]
        )
        made.append(
            op(
                f"r{n}",
                *draw(st.lists(st.sampled_from(barriers), max_size=3, unique=True)),
                stream=stream,
                leave=draw(leaves),
                at_s=draw(st.sampled_from([None, 0.0, 0.01, 0.02])),
            )
        )
    return made


# ---------------------------------------------------------------------- the machine


def holds(text: str, seen: dict[str, int], running: set[str]) -> bool:
    """``seen``: pieces of what was written; PIECES + 1: it has ended."""
    barrier = Barrier.parse(text)
    if barrier.event == "running>=":
        return len(running) >= barrier.count
    if barrier.event == "running<=":
        return len(running) <= barrier.count
    needs = {"sent": 0, "first-token": 1, "tokens": barrier.count, "end": PIECES + 1}
    return seen.get(barrier.op, -1) >= min(needs[barrier.event], PIECES + 1)


@given(operations(), st.data(), st.sampled_from(["fast", "order"]))
def test_each_is_sent_once_and_not_before_its_barriers(
    made: list[Operation], data: st.DataObject, at: Time
) -> None:
    barriers, seen, order = Barriers(made, at), dict[str, int](), list[str]()
    for _ in range(10 * len(made) + 10):
        running = {one for one in order if seen.get(one, -1) <= PIECES}
        before = set(running)
        for one in barriers.ready():
            stalled = not running and one.id == next(
                o.id for o in made if o.id not in order
            )
            alone = not running if at == "order" else True
            assert alone
            kept = all(holds(text, seen, running) for text in one.after)
            assert kept or stalled or at == "order"
            order.append(one.id)
            running.add(one.id)
        assert before or running or not barriers.unsent, "nothing runs, and nobody goes"
        if at == "fast":
            late = [o.id for o in made if o.id not in order]
            late = [
                o
                for o in late
                if all(holds(t, seen, running) for t in barriers.unsent[o].after)
            ]
            assert late == [], "nobody is kept longer than its barriers say"
        if not running:
            break
        moves = data.draw(st.sampled_from(sorted(running)))
        seen[moves] = seen.get(moves, -1) + 1
        if seen[moves] == 0:
            barriers.written(moves)
        elif seen[moves] <= PIECES:
            barriers.piece(moves, seen[moves])
        else:
            barriers.end(moves)
    else:
        pytest.fail("it does not end")
    assert sorted(order) == sorted(one.id for one in made)
    if at == "order":
        assert order == [one.id for one in made]


def test_with_real_time_nobody_goes_before_its_own() -> None:
    barriers = Barriers(
        [op("a", at_s=5.0), op("b"), op("c", "a.end", at_s=7.0)], "real"
    )
    assert [one.id for one in barriers.ready(0.0)] == ["a", "b"]
    assert barriers.next_due_s(0.0) == 2.0
    barriers.end("a")
    barriers.end("b")
    assert barriers.ready(1.9) == []
    assert [one.id for one in barriers.ready(2.0)] == ["c"]
    assert barriers.next_due_s(2.0) is None


def test_those_of_an_earlier_block_have_ended() -> None:
    later = Barriers([op("b", "a.tokens>=9")], ended={"a"})
    assert [one.id for one in later.ready()] == ["b"]


def test_blocks_are_equal_and_whole() -> None:
    made = [op(f"r{n}") for n in range(10)]
    for number in (0, 1, 3, 10, 99):
        split = list(blocks(made, number))
        assert [one for block in split for one in block] == made
        sizes = [len(block) for block in split]
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == max(1, min(number, 10))
    assert list(blocks([], 3)) == [[]]


def test_where_a_client_leaves() -> None:
    said = {"": None, "sent": 0, "first-token": 1, "tokens>=5": 5}
    assert {text: leave_at(op("r", leave=text)) for text in said} == said


# ---------------------------------------------------------------------- over a wire


class FakeTokens:
    """A FAKE engine: it answers by pieces, slowly enough that whoever does not wait is
    early."""

    def __init__(self) -> None:
        self.arrived: list[tuple[str, dict[str, int]]] = []
        self.open: set[str] = set()
        self.most_open = 0
        self.written: dict[str, int] = {}

    async def reply(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        id = body["messages"][0]["content"]
        self.arrived.append((id, dict(self.written)))
        self.written[id] = 0
        self.open.add(id)
        self.most_open = max(self.most_open, len(self.open))
        try:
            if not body.get("stream"):
                await asyncio.sleep(0.003)
                self.written[id] = PIECES + 1
                self.open.discard(id)
                writer.write(http(200, completion()))
                return
            writer.write(STREAM_HEAD)
            for number in range(PIECES):
                await asyncio.sleep(0.001)
                self.written[id] = number + 1
                writer.write(b"data: " + json.dumps(delta("x")).encode() + b"\n\n")
                await writer.drain()
            self.written[id] = PIECES + 1
            self.open.discard(id)
            writer.write(b"data: [DONE]\n\n")
        finally:
            self.open.discard(id)


def played(
    tmp_path: Path, made: Sequence[Operation], at: Time = "fast"
) -> tuple[FakeTokens, list[RequestRecord], Sending]:
    recorder, engine = Recorder(tmp_path), FakeTokens()

    async def run() -> Sending:
        async with serving(engine.reply) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            sending = Sending(traffic, {}, PLENTY_S, at)
            async with asyncio.timeout(PLENTY_S):
                await sending.perform(made)
            await traffic.close()
            return sending

    sending = asyncio.run(run())
    return engine, recorder.evidence.requests, sending


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=operations(), at=st.sampled_from(["fast", "fast", "real", "order"]))
def test_any_case_ends_and_its_order_is_kept(
    tmp_path: Path, made: list[Operation], at: Time
) -> None:
    engine, records, sending = played(tmp_path, made, at)
    assert sorted(r.label for r in records) == sorted(one.id for one in made)
    assert sending.unsent == []
    assert sending.pending == {}
    leavers = {one.id for one in made if one.leave}
    for id, written in engine.arrived:
        for text in next(one for one in made if one.id == id).after:
            barrier = Barrier.parse(text)
            if barrier.op and barrier.op not in leavers:
                assert holds(text, written, set()) or barrier.event == "sent"
    for record in records:
        one = next(one for one in made if one.id == record.label)
        meant = one.leave == "sent" or (
            one.stream and one.leave in ("first-token", "tokens>=2")
        )
        assert record.left == meant
        assert record.answered == (not meant)
        assert record.error == ""
    if at == "order":
        sent = sorted(records, key=lambda r: r.sent.mono)
        assert [r.label for r in sent] == [one.id for one in made]
        assert engine.most_open <= 1 or leavers


def test_so_many_run_and_no_more(tmp_path: Path) -> None:
    made = [op(f"r{n}", "running<=2", stream=True) for n in range(9)]
    engine, _, _ = played(tmp_path, made)
    assert engine.most_open == 3


def test_real_time_is_waited_for(tmp_path: Path) -> None:
    made = [op("a", at_s=100.0), op("b", at_s=100.3)]
    _, (a, b), _ = played(tmp_path, made, "real")
    assert b.sent.mono - a.sent.mono == pytest.approx(0.3, abs=0.25)
    assert b.sent.mono - a.sent.mono >= 0.29


def test_stopped_it_sends_nothing_more_and_waits_for_nobody(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)

    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def run() -> Sending:
        async with serving(silent) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            sending = Sending(traffic, {}, PLENTY_S, "fast")
            performing = asyncio.ensure_future(
                sending.perform([op("a"), op("b", "a.end")])
            )
            await server.asked.wait()
            sending.stop()
            await performing
            assert list(sending.pending) == ["a"]
            sending.hold()
            await sending.give_up()
            await traffic.close()
            return sending

    began = time.monotonic()
    sending = asyncio.run(run())
    assert time.monotonic() - began < PLENTY_S / 2
    assert sending.unsent == ["b"]
    (record,) = recorder.evidence.requests
    assert record.timed_out
    assert "no complete answer" in record.error


@pytest.mark.parametrize("dies", [True, False])
def test_whose_connection_broke_may_be_dying(tmp_path: Path, dies: bool) -> None:
    """What waits for that request is not sent to a server that ends a moment later."""
    recorder = Recorder(tmp_path)
    broke: list[float] = []

    async def breaks(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await writer.drain()
        broke.append(time.monotonic())
        writer.transport.abort()

    async def run() -> Sending:
        async with serving(breaks) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            sending = Sending(traffic, {}, PLENTY_S, "fast")
            sending.alive = lambda: (
                not (dies and broke and time.monotonic() > broke[0] + 0.2)
            )
            async with asyncio.timeout(PLENTY_S):
                await sending.perform(
                    [op("a", stream=True), op("b", "a.end", stream=True)]
                )
            await traffic.close()
            return sending

    sending = asyncio.run(run())
    assert sending.unsent == (["b"] if dies else [])
    assert [r.label for r in recorder.evidence.requests if r.broken] == ["a", "b"][
        : 2 - dies
    ]


def test_nothing_is_due_for_ever() -> None:
    assert Barriers([]).ready(math.inf) == []
