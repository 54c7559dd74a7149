"""A prepared body that is sent and watched: all that came of it is kept. The server is
a FAKE."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_server import (
    STREAM_HEAD,
    FakeServer,
    Reply,
    answering,
    delta,
    events,
    http,
    serving,
    then_silent,
)
from mmrepro.traffic import Traffic
from mmrepro.traffic.evidence import Evidence, RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.reading import COMPLETIONS, RequestWatch

PLENTY_S = 20.0


def send(
    tmp_path: Path, reply: Reply, *, leave_at: int | None = None, **request: Any
) -> tuple[RequestRecord, list[object], FakeServer]:
    """Its record, what was told meanwhile, and the server."""
    told: list[object] = []
    recorder = Recorder(tmp_path)

    async def run() -> FakeServer:
        async with serving(reply) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            watch = RequestWatch(lambda: told.append("sent"), told.append, leave_at)
            request.setdefault("deadline_s", PLENTY_S)
            await traffic.send("r1", b'{"a": 1}', watch, **request)
            await traffic.close()
            return server

    server = asyncio.run(run())
    (record,) = recorder.evidence.requests
    assert (
        Evidence.model_validate_json(recorder.evidence.model_dump_json())
        == recorder.evidence
    )
    return record, told, server


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def test_all_choices_of_a_whole_answer(tmp_path: Path) -> None:
    logprobs = {
        "content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]
    }
    choices = [
        {"index": 1, "message": {"content": "two"}, "finish_reason": "stop"},
        {
            "index": 0,
            "message": {"content": "one"},
            "logprobs": logprobs,
            "token_ids": [5, 6],
        },
    ]
    raw = http(200, json.dumps({"choices": choices, "usage": USAGE}).encode())
    record, told, server = send(tmp_path, answering(raw))
    assert told == ["sent"]
    assert server.requests[0].endswith(b'{"a": 1}')
    assert [(c.index, c.text, c.finish_reason) for c in record.choices] == [
        (0, "one", None),
        (1, "two", "stop"),
    ]
    assert (record.choices[0].tokens, record.choices[0].logprobs) == (
        ["a", "b"],
        [-0.5, -1.0],
    )
    assert record.choices[0].token_ids == [5, 6]
    assert (record.total_tokens, record.cached_tokens, record.usages) == (9, 4, 1)
    assert (record.done, record.pieces, record.left) == (None, 0, False)
    assert record.answered


def piece(index: int, text: str | None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": index, "delta": {"content": text}, **more}]}


def test_all_choices_of_a_stream(tmp_path: Path) -> None:
    head = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    tokens = {"content": [{"token": "a", "logprob": -0.5}]}
    raw = events(
        head,
        piece(0, "a", logprobs=tokens),
        piece(1, "c"),
        piece(0, ""),  # half a character
        piece(1, "d", finish_reason="length"),
        piece(0, "", finish_reason="stop"),
        {"choices": [], "usage": USAGE},
    )
    record, told, _ = send(tmp_path, answering(raw), stream=True)
    assert told == ["sent", 1, 2, 3, 4]
    assert [
        (c.text, c.pieces, c.finish_reason, c.finishes) for c in record.choices
    ] == [
        ("a", 2, "stop", 1),
        ("cd", 2, "length", 1),
    ]
    assert (record.text, record.finish_reason, record.tokens) == ("a", "stop", ["a"])
    assert (record.done, record.after_done, record.pieces, record.usages) == (
        True,
        0,
        4,
        1,
    )
    assert (record.cached_tokens, record.total_tokens) == (4, 9)
    assert record.answered


def test_a_plain_completion_whole_and_streamed(tmp_path: Path) -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -2.0]}
    choice = {"index": 0, "text": "ab", "finish_reason": "stop", "logprobs": logprobs}
    raw = http(200, json.dumps({"choices": [choice], "usage": USAGE}).encode())
    record, _, _ = send(tmp_path, answering(raw), path=COMPLETIONS)
    assert (record.text, record.tokens, record.logprobs) == ("ab", ["b"], [-2.0])
    parts = [{"choices": [{"index": 0, "text": text}]} for text in "ab"]
    record, told, _ = send(
        tmp_path, answering(events(*parts)), path=COMPLETIONS, stream=True
    )
    assert (record.text, told, record.done) == ("ab", ["sent", 1, 2], True)
    record, _, _ = send(
        tmp_path, answering(events(delta("a"))), path=COMPLETIONS, stream=True
    )
    assert "a broken stream (KeyError)" in record.error


def test_no_done_and_what_comes_after_it(tmp_path: Path) -> None:
    record, _, _ = send(
        tmp_path, answering(events(delta("a"), done=False)), stream=True
    )
    assert (record.done, record.error) == (False, "the stream ended without [DONE]")
    more = events(delta("a")) + b"data: {}\n\ndata: [DONE]\n\n"
    record, _, _ = send(tmp_path, answering(more), stream=True)
    assert (record.done, record.after_done, record.error) == (True, 2, "")


def test_a_connection_that_stays_open_after_done_costs_a_second(tmp_path: Path) -> None:
    record, _, _ = send(tmp_path, then_silent(events(delta("a"))), stream=True)
    assert record.done
    assert record.answered
    assert 0.9 < record.latency_s < PLENTY_S / 2


@pytest.mark.parametrize("leave_at", [0, 1, 3])
def test_a_client_goes_away_and_the_server_sees_it(
    tmp_path: Path, leave_at: int
) -> None:
    recorder, told = Recorder(tmp_path), list[object]()

    async def run() -> None:
        gone = asyncio.Event()

        async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(STREAM_HEAD)
            try:
                while True:
                    writer.write(b"data: " + json.dumps(delta("x")).encode() + b"\n\n")
                    await writer.drain()
                    await asyncio.sleep(0.002)
            except ConnectionError:
                gone.set()

        async with serving(reply) as server:
            traffic = Traffic(server.url, "tiny", recorder)
            watch = RequestWatch(lambda: told.append("sent"), told.append, leave_at)
            await traffic.send("r1", b"{}", watch, stream=True, deadline_s=PLENTY_S)
            async with asyncio.timeout(PLENTY_S):
                await gone.wait()
            await traffic.close()

    asyncio.run(run())
    (record,) = recorder.evidence.requests
    assert record.left
    assert not record.answered
    assert (record.error, record.timed_out) == ("", False)
    assert told == ["sent", *range(1, leave_at + 1)]
    assert record.text == "x" * leave_at
    assert "went away" in record.reply
    assert [event.level for event in recorder.evidence.events] == ["info"]


def test_who_means_to_leave_later_than_the_answer_ends_stays(tmp_path: Path) -> None:
    record, _, _ = send(
        tmp_path, answering(events(delta("a"))), stream=True, leave_at=2
    )
    assert (record.left, record.answered) == (False, True)


def test_other_requests_keep_what_they_kept(tmp_path: Path) -> None:
    """An incident of a run says no more than before there were cases."""
    recorder = Recorder(tmp_path)

    async def run() -> None:
        async with serving(
            answering(events(delta("a"), {"choices": [], "usage": USAGE}))
        ) as one:
            traffic = Traffic(one.url, "tiny", recorder)
            await traffic.chat("r", text="hi", stream=True, deadline_s=PLENTY_S)
            await traffic.close()

    asyncio.run(run())
    (record,) = recorder.evidence.requests
    assert (record.choices, record.done, record.usages, record.total_tokens) == (
        [],
        None,
        0,
        None,
    )
    assert (record.pieces, record.cached_tokens) == (0, None)
