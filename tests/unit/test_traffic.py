"""The client against a FAKE server (fake_server.py): whatever it does ends in the
record."""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest
from fake_server import (
    STREAM_HEAD,
    FakeServer,
    Reply,
    answering,
    completion,
    delta,
    endless,
    events,
    http,
    serving,
    silent,
    then_silent,
)
from grids import examples
from hypothesis import HealthCheck, given, strategies as st
from mmrepro.traffic import Traffic, client as traffic_module
from mmrepro.traffic.evidence import Evidence, RequestRecord, recorder as recorders
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.pictures import noise

T = TypeVar("T")
PLENTY_S = 20.0
"""A deadline that no answer here needs: passing it is a failure of the test."""


def drive(
    tmp_path: Path, reply: Reply, use: Callable[[Traffic, FakeServer], Awaitable[T]]
) -> tuple[T, Recorder]:
    recorder = Recorder(tmp_path)

    async def run() -> T:
        async with serving(reply) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            try:
                return await use(traffic, server)
            finally:
                await traffic.close()

    return asyncio.run(run()), recorder


def ask(
    tmp_path: Path, reply: Reply, *, stream: bool = False, deadline_s: float = PLENTY_S
) -> RequestRecord:
    """One chat request; its record, which is the only one kept and can be read back."""
    record, recorder = drive(
        tmp_path,
        reply,
        lambda t, _: t.chat(
            "question", text="hi", deadline_s=deadline_s, stream=stream
        ),
    )
    assert recorder.evidence.requests == [record]
    assert (
        Evidence.model_validate_json(recorder.evidence.model_dump_json())
        == recorder.evidence
    )
    return record


def test_a_completion(tmp_path: Path) -> None:
    record = ask(tmp_path, answering(http(200, completion("hello"))))
    assert record.answered
    assert (record.status, record.text, record.finish_reason) == (
        200,
        "hello",
        "length",
    )
    assert (record.prompt_tokens, record.completion_tokens) == (7, 4)
    assert 0 < record.latency_s < PLENTY_S


def test_a_loop_that_stood_still_is_no_failure_of_the_server(tmp_path: Path) -> None:
    """The connection is made by the kernel while the loop, here by its clock, is late
    for it."""

    async def use(traffic: Traffic, _: FakeServer) -> RequestRecord:
        loop = asyncio.get_running_loop()
        asked = asyncio.ensure_future(
            traffic.chat("late", text="hi", deadline_s=PLENTY_S)
        )
        clock = loop.time
        jump = patch.object(loop, "time", lambda: clock() + PLENTY_S / 2)
        loop.call_soon(jump.start)
        try:
            return await asked
        finally:
            jump.stop()

    record, _ = drive(tmp_path, answering(http(200, completion("hello"))), use)
    assert record.answered, record.error


def test_what_is_sent(tmp_path: Path) -> None:
    picture = noise("X", 777, (28, 28))

    async def use(traffic: Traffic, server: FakeServer) -> tuple[RequestRecord, bytes]:
        record = await traffic.chat(
            "image X",
            text="what?",
            images=[picture],
            max_tokens=2,
            deadline_s=PLENTY_S,
            extra={"logit_bias": {"5": -100}},
        )
        return record, server.requests[0]

    (record, request), _ = drive(tmp_path, answering(http(200, completion())), use)
    head, _, raw = request.partition(b"\r\n\r\n")
    body = json.loads(raw)
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1")
    image, text = body["messages"][0]["content"]
    assert image["image_url"]["url"] == picture.data_url
    assert text["text"] == "what?"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny", 0, 2)
    assert body["logit_bias"] == {"5": -100}
    assert record.images == [picture.sent()]
    assert (record.prompt_head, record.prompt_chars) == ("what?", 5)


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_an_error_status_keeps_its_body(tmp_path: Path, status: int) -> None:
    record = ask(tmp_path, answering(http(status, b'{"error":{"message":"too long"}}')))
    assert not record.answered
    assert record.status == status
    assert "too long" in record.error
    assert not record.timed_out


def test_an_error_without_a_body_or_of_any_size(tmp_path: Path) -> None:
    assert (
        ask(tmp_path, answering(http(500, b""))).error == "HTTP 500 with an empty body"
    )
    assert len(ask(tmp_path, answering(http(500, b"\xff" * 100_000))).error) == 2000


GARBAGE = [
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"7",
    b'"choices"',
    b"{}",
    b'{"choices": []}',
    b'{"choices": {}}',
    b'{"choices": [null]}',
    b'{"choices": ["message"]}',
    b'{"choices": [{"message": null}]}',
    b'{"choices": [{"message": {}}]}',
    b'{"choices": [{"message": {"content": "x"}}], "usage": [1]}',
    b'{"choices": [{"message": {"content": "x"}}], "usage": "many"}',
    b"[" * 100_000,
    b'{"choices": ' + b"1" * 5000 + b"}",
]


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: body[:40].decode("latin-1"))
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_200_that_is_no_completion(tmp_path: Path, body: bytes, stream: bool) -> None:
    raw = STREAM_HEAD + b"data: " + body + b"\n\n" if stream else http(200, body)
    record = ask(tmp_path, answering(raw), stream=stream)
    assert record.status == 200
    assert record.error
    assert not record.answered


@pytest.mark.parametrize("count", [-1, 1.5, True, "4", [4], 10**30, None])
def test_a_token_count_that_is_none(tmp_path: Path, count: object) -> None:
    body = completion("x", prompt_tokens=count, completion_tokens=count)
    record = ask(tmp_path, answering(http(200, body)))
    assert (record.prompt_tokens, record.completion_tokens) == (None, None)


@pytest.mark.parametrize("stream", [False, True])
def test_lone_surrogates_can_be_kept(tmp_path: Path, stream: bool) -> None:
    raw = events(delta("\ud800")) if stream else http(200, completion("\ud800"))
    assert ask(tmp_path, answering(raw), stream=stream).text == "?"


def test_a_connection_that_is_closed_in_the_body(tmp_path: Path) -> None:
    record = ask(tmp_path, answering(http(200, completion(), length=10_000)))
    assert record.error
    assert not record.timed_out
    assert not record.answered


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH\r\n", b"\0" * 500]
)
def test_an_answer_that_is_no_http(tmp_path: Path, raw: bytes) -> None:
    record = ask(tmp_path, answering(raw))
    assert record.status is None
    assert record.error
    assert not record.timed_out


def test_a_broken_encoding(tmp_path: Path) -> None:
    raw = http(200, b"no gzip").replace(
        b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n", 1
    )
    assert "DecodingError" in ask(tmp_path, answering(raw)).error


SILENCES: dict[str, Reply] = {
    "from the start": silent,
    "after the head": then_silent(http(200, b"", length=10)),
    "in the body": then_silent(http(200, b'{"choices"', length=10_000)),
    "in the stream": then_silent(events(delta("hel"), done=False)),
}


@pytest.mark.parametrize("reply", SILENCES.values(), ids=SILENCES.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_silence_ends_at_the_deadline(
    tmp_path: Path, reply: Reply, stream: bool
) -> None:
    record = ask(tmp_path, reply, stream=stream, deadline_s=0.2)
    assert record.timed_out
    assert 0.2 <= record.latency_s < PLENTY_S
    assert re.fullmatch(r"no complete answer in \d+\.\d s", record.error)
    assert not record.answered


def test_what_a_stream_said_before_it_fell_silent_is_kept(tmp_path: Path) -> None:
    # On a busy machine the first words take a while too.
    record = ask(tmp_path, SILENCES["in the stream"], stream=True, deadline_s=1.0)
    assert record.text == "hel"


ENDLESS: dict[str, tuple[bool, Reply]] = {
    "body": (False, endless(http(200, b"", length=10**12), b"x" * 65536)),
    "error body": (False, endless(http(500, b"", length=10**12), b"x" * 65536)),
    "events": (True, endless(STREAM_HEAD, events(delta("x" * 9000), done=False)[90:])),
    "line": (True, endless(STREAM_HEAD, b"data: " + b"x" * 65536)),
}


@pytest.mark.parametrize(("stream", "reply"), ENDLESS.values(), ids=ENDLESS.keys())
def test_an_endless_answer_is_cut(
    tmp_path: Path, stream: bool, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_module, "MAX_BODY_BYTES", 1 << 20)
    record = ask(tmp_path, reply, stream=stream)
    assert record.error == "the answer has more than 1048576 bytes"
    assert not record.timed_out


def test_a_stream(tmp_path: Path) -> None:
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    raw = events(first, delta("hel"), delta("lo", finish_reason="length"), usage)
    record = ask(tmp_path, answering(raw), stream=True)
    assert record.answered
    assert (record.text, record.finish_reason) == ("hello", "length")
    assert (record.prompt_tokens, record.completion_tokens) == (7, 2)
    assert record.ttft_s is not None
    assert record.ttft_s <= record.latency_s


def test_a_stream_with_comments_carriage_returns_and_null_errors(
    tmp_path: Path,
) -> None:
    raw = STREAM_HEAD + b": ping\r\n\r\nevent: message\r\n"
    raw += b"data:" + json.dumps({**delta("hi"), "error": None}).encode() + b"\r\n\r\n"
    assert (
        ask(tmp_path, answering(raw + b"data: [DONE]\r\n\r\n"), stream=True).text
        == "hi"
    )


BROKEN_STREAMS = {
    "no [DONE]": (events(delta("hi"), done=False), "the stream ended without [DONE]"),
    "nothing": (STREAM_HEAD, "the stream ended without [DONE]"),
    "an error chunk": (events(delta("hi"), {"error": {"message": "boom"}}), "boom"),
    "an empty error": (events({"error": ""}), "an error without a text"),
    "half a chunk": (events(delta("hi"), '{"choices": [{"del'), "a broken stream"),
    "choices null": (events({"choices": None}), "a broken stream (TypeError)"),
    "no delta": (events({"choices": [{}]}), "a broken stream (KeyError)"),
    "usage list": (events({"usage": [1]}), "a broken stream (AttributeError)"),
}


@pytest.mark.parametrize(
    ("raw", "error"), BROKEN_STREAMS.values(), ids=BROKEN_STREAMS.keys()
)
def test_a_broken_stream(tmp_path: Path, raw: bytes, error: str) -> None:
    record = ask(tmp_path, answering(raw), stream=True)
    assert error in record.error
    assert not record.answered


def test_a_piece_of_text_that_is_none(tmp_path: Path) -> None:
    assert ask(tmp_path, answering(events(delta(7))), stream=True).text == "7"  # type: ignore[arg-type]


def test_a_refused_connection(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def run() -> RequestRecord:
            traffic = Traffic(url, "tiny", recorder)
            try:
                assert await traffic.scrape() == ""
                assert await traffic.count_tokens("a") is None
                return await traffic.chat("question", text="hi", deadline_s=PLENTY_S)
            finally:
                await traffic.close()

        record = asyncio.run(run())
    assert "ConnectError" in record.error
    assert record.status is None
    assert recorder.evidence.requests == [record]


def test_a_cancelled_request_is_recorded_once(tmp_path: Path) -> None:
    async def use(traffic: Traffic, server: FakeServer) -> None:
        task = asyncio.create_task(
            traffic.chat("question", text="hi", deadline_s=PLENTY_S)
        )
        await server.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    _, recorder = drive(tmp_path, silent, use)
    assert [r.error for r in recorder.evidence.requests] == ["given up by the client"]


def test_other_endpoints(tmp_path: Path) -> None:
    record, _ = drive(
        tmp_path,
        answering(http(200, b"fine", "text/plain")),
        lambda t, _: t.raw("health", path="/health", method="GET", deadline_s=PLENTY_S),
    )
    assert (record.answered, record.text, record.path) == (True, "fine", "/health")


COUNTS = {
    b'{"count": 12}': 12,
    b'{"count": "12"}': None,
    b'{"count": 1e999}': None,
    b"[]": None,
    b"[" * 100_000: None,
    b"": None,
}


@pytest.mark.parametrize(
    ("body", "count"), COUNTS.items(), ids=[str(b[:20]) for b in COUNTS]
)
def test_counting_tokens(tmp_path: Path, body: bytes, count: int | None) -> None:
    found, recorder = drive(
        tmp_path, answering(http(200, body)), lambda t, _: t.count_tokens("some text")
    )
    assert found == count
    assert recorder.evidence.requests == []


@pytest.mark.parametrize(
    "reply", [silent, ENDLESS["body"][1]], ids=["silent", "endless"]
)
def test_metrics_that_do_not_end(
    tmp_path: Path, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_module, "MAX_BODY_BYTES", 1 << 20)
    text, _ = drive(tmp_path, reply, lambda t, _: t.scrape(deadline_s=0.2))
    assert text == ""


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "delta",
                    "usage",
                    "error",
                    "prompt_tokens",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@examples(
    30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.one_of(JSON.map(json.dumps), st.text(max_size=60)),
    st.integers(100, 599),
    st.booleans(),
)
def test_any_answer_ends_in_one_record(
    tmp_path: Path, text: str, status: int, stream: bool
) -> None:
    body = text.encode("utf-8", "replace")
    raw = http(status, b"data: " + body + b"\n\ndata: [DONE]\n\n" if stream else body)
    # An interim answer is followed by nothing.
    deadline_s = 0.05 if status < 200 else PLENTY_S
    record = ask(tmp_path, answering(raw), stream=stream, deadline_s=deadline_s)
    assert record.answered == (record.status == 200 and not record.error)


def test_metrics_are_sampled_once_the_server_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"made_up:running 2\nmade_up:other 7\n"
    monkeypatch.setattr(recorders, "local_get", lambda *_: (200, text))
    recorder = Recorder(tmp_path)
    names = {"running": ("made_up:running",), "other": ("made_up:other",)}
    sampler = recorders.Sampler(recorder, os.getpid(), "http://127.0.0.1:9", names)
    sampler.interval_s = 0.01
    series = recorder.evidence.series

    def wait_for(seen: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not seen() and time.monotonic() < until:
            time.sleep(0.01)
        assert seen()

    sampler.start()
    wait_for(lambda: len(series) > 2)
    assert not any(point.metrics for point in series)
    sampler.read_metrics()
    wait_for(lambda: any(point.metrics for point in series))
    sampler.stop()
    shown = next(point.metrics for point in series if point.metrics)
    assert shown == {"running": 2.0}
