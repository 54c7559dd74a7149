"""A FAKE OpenAI server: no engine, only the ways in which one may answer, well or
badly."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FakeServer:
    """What it was asked, and where it listens."""

    url: str
    requests: list[bytes] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[FakeServer]:
    """A server that hands each whole request to ``reply`` and then closes the
    connection."""
    seen = FakeServer("")
    open_ones: set[asyncio.Task[None]] = set()

    async def connected(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_ones.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            request = head + await reader.readexactly(length)
            seen.requests.append(request)
            seen.asked.set()
            await reply(request, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_ones.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()
        for task in list(open_ones):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*open_ones, return_exceptions=True)


def http(
    status: int, body: bytes, kind: str = "application/json", length: int | None = None
) -> bytes:
    size = len(body) if length is None else length
    head = (
        f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: "
        f"{size}\r\n\r\n"
    )
    return head.encode() + body


def answering(raw: bytes) -> Reply:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return reply


def in_turn(*replies: Reply) -> Reply:
    """The first request gets the first reply, and so on; the last one from then on."""
    left = list(replies)

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, writer)

    return reply


async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def then_silent(raw: bytes) -> Reply:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        await asyncio.Event().wait()

    return reply


def endless(head: bytes, piece: bytes) -> Reply:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()

    return reply


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
)


def events(*chunks: object, done: bool = True) -> bytes:
    """A stream of server-sent events."""
    lines = [c if isinstance(c, str) else json.dumps(c) for c in chunks]
    return STREAM_HEAD + b"".join(
        f"data: {line}\n\n".encode() for line in [*lines, *(["[DONE]"] if done else [])]
    )


def completion(text: object = "hello", **usage: object) -> bytes:
    return json.dumps(
        {
            "choices": [{"message": {"content": text}, "finish_reason": "length"}],
            "usage": usage or {"prompt_tokens": 7, "completion_tokens": 4},
        }
    ).encode()


def delta(text: str | None, **more: object) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, **more}]}
