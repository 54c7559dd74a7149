"""What scenarios do with a server, against a FAKE one (fake_server.py)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_server import (
    FakeServer,
    Reply,
    answering,
    completion,
    http,
    in_turn,
    serving,
    silent,
)
from mmrepro.traffic import Traffic
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence.recorder import Recorder

FINE = answering(http(200, completion()))
Use = Callable[[Drive, FakeServer], Awaitable[None]]


def drive(tmp_path: Path, reply: Reply, use: Use, **times: float) -> Recorder:
    recorder = Recorder(tmp_path)

    async def run() -> None:
        async with serving(reply) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            try:
                await use(
                    Drive(traffic, recorder, (28, 28), 2048, "0.23.0", **times), server
                )  # type: ignore[arg-type]
            finally:
                await traffic.close()

    asyncio.run(run())
    return recorder


def test_a_suspect_waits_on_for_its_full_deadline(tmp_path: Path) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.unless_stuck(drive.chat("hung")) is None
        (pending,) = drive.pending
        assert not pending.done()
        assert drive.recorder.evidence.requests == []
        await drive.collect()
        record = pending.result()
        assert record.timed_out
        assert record.latency_s >= 0.6

    recorder = drive(tmp_path, silent, use, deadline_s=0.6, suspect_s=0.1)
    (record,) = recorder.evidence.requests
    assert (record.label, record.deadline_s) == ("hung", 0.6)


def test_a_suspect_is_not_given_up_before_it_is_collected(tmp_path: Path) -> None:
    """The server might clean up after a client that leaves, and the hang would be
    over."""

    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.unless_stuck(drive.chat("hung")) is None
        assert await drive.unless_stuck(drive.chat("hung as well")) is None
        done, _ = await asyncio.wait(drive.pending, timeout=1.2)
        assert not done
        await drive.collect()
        assert all(task.result().timed_out for task in drive.pending)
        assert drive.pending[0].result().latency_s >= 1.2

    # A busy machine stands still between a suspicion and a deadline for 0.3 s.
    recorder = drive(tmp_path, silent, use, deadline_s=0.8, suspect_s=0.05)
    assert [r.deadline_s for r in recorder.evidence.requests] == [0.8, 0.8]


def test_others_are_sent_while_a_suspect_waits(tmp_path: Path) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.unless_stuck(drive.chat("hung")) is None
        later = await drive.chat("later")
        assert later.answered
        assert not drive.pending[0].done()
        await drive.collect()

    recorder = drive(
        tmp_path, in_turn(silent, FINE), use, deadline_s=2.0, suspect_s=0.1
    )
    assert [r.label for r in recorder.evidence.requests] == ["later", "hung"]


def test_a_slow_answer_after_the_suspicion_is_an_answer(tmp_path: Path) -> None:
    """A hang is not slowness."""
    release = asyncio.Event()

    async def slow(request: bytes, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await FINE(request, writer)

    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.unless_stuck(drive.chat("slow")) is None
        release.set()
        assert (await drive.pending[0]).answered

    drive(tmp_path, slow, use, deadline_s=20.0, suspect_s=0.05)


def test_an_answer_in_time_leaves_nothing_pending(tmp_path: Path) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        record = await drive.unless_stuck(drive.chat("quick"))
        assert record is not None
        assert record.answered
        assert drive.pending == []

    drive(tmp_path, FINE, use, deadline_s=20.0, suspect_s=10.0)


def test_a_trigger_that_is_cut_short_leaves_its_request_to_be_collected(
    tmp_path: Path,
) -> None:
    async def use(drive: Drive, server: FakeServer) -> None:
        trigger = asyncio.create_task(drive.unless_stuck(drive.chat("hung")))  # type: ignore[arg-type]
        await server.asked.wait()
        trigger.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trigger
        (pending,) = drive.pending
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)

    recorder = drive(tmp_path, silent, use, deadline_s=20.0, suspect_s=10.0)
    assert [r.error for r in recorder.evidence.requests] == ["given up by the client"]


METRICS = b"""\
# TYPE vllm:mm_cache_hits_total counter
vllm:mm_cache_hits_total{engine="0"} 3.0
vllm:mm_cache_hits_total{engine="1"} 4.0
vllm:broken_total{engine="0"} NaN
"""


def test_a_metric_is_summed_and_absence_is_none(tmp_path: Path) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.metric("vllm:mm_cache_hits_total") == 7
        assert await drive.metric("vllm:mm_cache_queries_total") is None
        assert await drive.metric("vllm:broken_total") is None

    drive(tmp_path, answering(http(200, METRICS, "text/plain")), use)


@pytest.mark.parametrize("raw", [http(500, METRICS), http(200, b"\xff\x00{"), b""])
def test_metrics_that_cannot_be_read_are_none(tmp_path: Path, raw: bytes) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.metric("vllm:mm_cache_hits_total") is None

    drive(tmp_path, answering(raw), use)


@pytest.mark.parametrize(("count", "tokens"), [(512, 100), (256, 100), (1024, 7)])
def test_a_text_of_tokens_is_not_longer_than_asked(
    tmp_path: Path, count: int, tokens: int
) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        text = await drive.text_of_tokens(tokens)
        units, per_unit = text.count("a "), count / 256
        assert tokens - per_unit < units * per_unit <= tokens

    drive(tmp_path, answering(http(200, b'{"count": %d}' % count)), use)


def test_a_text_of_tokens_without_a_tokenizer(tmp_path: Path) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        assert await drive.text_of_tokens(100) == "a " * 50

    drive(tmp_path, answering(http(404, b"{}")), use)


def test_pictures_and_facts(tmp_path: Path) -> None:
    async def use(drive: Drive, _: FakeServer) -> None:
        assert drive.picture("X", 1).png == drive.picture("X", 1, (28, 28)).png
        drive.fact("fills_until_hang", 11)
        drive.note("caches are full")

    recorder = drive(tmp_path, FINE, use)
    assert recorder.evidence.facts == {"fills_until_hang": 11}
    assert [(e.source, e.text) for e in recorder.evidence.events] == [
        ("scenario", "caches are full")
    ]
