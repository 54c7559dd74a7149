"""A FAKE in front of a sound server: a proxy that lies about some answers, and notes
which."""

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

Lie = Literal[
    "swap", "drop-done", "falsify-usage", "flip-near-tie", "duplicate-token", "truncate"
]
COMPLETIONS = (b"/v1/chat/completions", b"/v1/completions")
DONE = b"data: [DONE]\n\n"
PARTNER_S = 0.5
"""An answer that is to be swapped waits for another so long; then it is the client's
own."""


@dataclass(frozen=True)
class Told:
    """One lie: the bodies of the requests whose answers it is about."""

    lie: Lie
    requests: tuple[bytes, ...]


@dataclass
class _Answer:
    head: bytes
    body: bytes
    request: bytes
    stream: bool

    @property
    def good(self) -> bool:
        return self.head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))


@dataclass
class LyingProxy:
    """Answers as the server behind it does, but for the share ``p`` of the answers.

    Attributes:
        lie: which one; None: it is honest.
        bound: flip-near-tie: only tokens that led by less, in nats.
        told: what it did.
        answers: of a completion with HTTP 200.
    """

    upstream: str = ""
    lie: Lie | None = None
    p: float = 0.01
    seed: int = 0
    bound: float = 0.1
    told: list[Told] = field(default_factory=list)
    answers: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._waiting: list[tuple[_Answer, asyncio.Future[_Answer]]] = []

    # ------------------------------------------------------------------ connections

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_length(head))
            address = urlsplit(self.upstream)
            behind, there = await asyncio.open_connection(
                address.hostname, address.port
            )
            try:
                there.write(_closing(head) + body)
                await there.drain()
                whole = self.lie is not None and head.split()[1] in COMPLETIONS
                answering = asyncio.ensure_future(
                    self._answer(behind, body, writer)
                    if whole
                    else _copy(behind, writer)
                )
                await self._unless_gone(answering, reader)
            finally:
                there.close()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _unless_gone(
        self, answering: asyncio.Future[None], reader: asyncio.StreamReader
    ) -> None:
        """As the server would notice it: a client that goes away takes its request with
        it."""
        gone = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (answering, gone):
            task.cancel()
        with contextlib.suppress(
            OSError, asyncio.CancelledError, asyncio.IncompleteReadError
        ):
            await answering

    async def _answer(
        self, behind: asyncio.StreamReader, request: bytes, writer: asyncio.StreamWriter
    ) -> None:
        head = await behind.readuntil(b"\r\n\r\n")
        chunked = b"transfer-encoding: chunked" in head.lower()
        body = await (_dechunked(behind) if chunked else behind.read())
        answer = _Answer(head, body, request, bool(json.loads(request).get("stream")))
        if answer.good:
            self.answers += 1
            answer = await self._lied(answer)
        writer.write(_plain_head(answer.head, len(answer.body)) + answer.body)
        await writer.drain()

    # ------------------------------------------------------------------ lies

    async def _lied(self, answer: _Answer) -> _Answer:
        if self.lie == "swap":
            return await self._swapped(answer)
        if self._random.random() >= self.p:
            return answer
        body = {
            "drop-done": _without_done,
            "falsify-usage": self._other_usage,
            "flip-near-tie": self._flipped,
            "duplicate-token": self._doubled,
            "truncate": self._cut,
        }[self.lie or ""](answer)
        if body is None:
            return answer
        self.told.append(Told(self.lie or "swap", (answer.request,)))
        return _Answer(answer.head, body, answer.request, answer.stream)

    async def _swapped(self, answer: _Answer) -> _Answer:
        """Half of the swapped answers wait for a partner, so that ``p`` of all are
        swapped."""
        for place, (other, future) in enumerate(self._waiting):
            if other.stream == answer.stream and not future.done():
                del self._waiting[place]
                future.set_result(answer)
                self.told.append(Told("swap", (other.request, answer.request)))
                return other
        if self._random.random() >= self.p / 2:
            return answer
        mine: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        waiting = answer, mine
        self._waiting.append(waiting)
        try:
            return await asyncio.wait_for(mine, PARTNER_S)
        except TimeoutError:
            return answer
        finally:
            self._waiting = [one for one in self._waiting if one is not waiting]

    def _other_usage(self, answer: _Answer) -> bytes | None:
        field = self._random.choice(
            ("prompt_tokens", "completion_tokens", "total_tokens")
        )

        def change(content: Any) -> bool:
            if not content.get("usage"):
                return False
            content["usage"][field] += 1
            return True

        return _edited(answer, change)

    def _flipped(self, answer: _Answer) -> bytes | None:
        """The first token that hardly led becomes the next likely one; the rest
        stays."""
        flipped: list[bool] = []

        def change(content: Any) -> bool:
            if flipped:
                return False
            for choice in content.get("choices", []):
                told = (choice.get("logprobs") or {}).get("content") or []
                for token in told:
                    first, second = [*token["top_logprobs"], None, None][:2]
                    if not first or not second or first["token"] == second["token"]:
                        continue
                    if first["token"] != token["token"] or not token["token"].isascii():
                        continue
                    if (
                        not token["token"]
                        or first["logprob"] - second["logprob"] >= self.bound
                    ):
                        continue
                    said = choice.get("message") or choice.get("delta")
                    said["content"] = said["content"].replace(
                        token["token"], second["token"], 1
                    )
                    token |= {name: second[name] for name in ("token", "logprob")}
                    if choice.get("token_ids"):
                        choice["token_ids"] = None
                    flipped.append(True)
                    return True
            return False

        return _edited(answer, change)

    def _doubled(self, answer: _Answer) -> bytes | None:
        return self._retold(answer, lambda text: text + text[-1:])

    def _cut(self, answer: _Answer) -> bytes | None:
        return self._retold(answer, lambda text: text[:-1])

    def _retold(self, answer: _Answer, how: Any) -> bytes | None:
        """The text of the whole answer, or of the last piece with text, becomes another
        one."""
        texts = [c["choices"][0] for c in _contents(answer) if c.get("choices")]
        last = max((i for i, c in enumerate(texts) if _said(c)), default=None)
        seen = iter(range(len(texts) + 1))

        def change(content: Any) -> bool:
            if not content.get("choices") or next(seen) != last:
                return False
            choice = content["choices"][0]
            holder = choice.get("message") or choice.get("delta") or choice
            name = "text" if holder is choice else "content"
            holder[name] = how(holder[name])
            return True

        return _edited(answer, change)


def _said(choice: Any) -> str:
    said = (choice.get("message") or choice.get("delta") or {}).get("content")
    return said or choice.get("text") or ""


def _without_done(answer: _Answer) -> bytes | None:
    return answer.body.replace(DONE, b"") if DONE in answer.body else None


def _contents(answer: _Answer) -> list[Any]:
    """The answer's JSON; of a stream, that of each event."""
    if not answer.stream:
        return [json.loads(answer.body)]
    events = [e.removeprefix(b"data: ") for e in answer.body.split(b"\n\n")]
    return [
        json.loads(event) for event in events if event.strip() not in (b"", b"[DONE]")
    ]


def _edited(answer: _Answer, change: Any) -> bytes | None:
    """The body with what ``change`` did to its contents; None: it did nothing."""
    contents = _contents(answer)
    changed = [change(content) for content in contents]
    if not any(changed):
        return None
    if not answer.stream:
        return json.dumps(contents[0]).encode()
    events = [
        b"data: " + json.dumps(content).encode() + b"\n\n" for content in contents
    ]
    return b"".join(events) + (DONE if DONE in answer.body else b"")


# ---------------------------------------------------------------------- bytes


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _closing(head: bytes) -> bytes:
    lines = [
        one for one in head.split(b"\r\n") if not one.lower().startswith(b"connection:")
    ]
    return b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])


def _plain_head(head: bytes, length: int) -> bytes:
    drop = (b"content-length:", b"transfer-encoding:", b"connection:")
    lines = [
        one for one in head.rstrip().split(b"\r\n") if not one.lower().startswith(drop)
    ]
    lines += [b"Content-Length: %d" % length, b"Connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _dechunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    return body


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()


@contextmanager
def lying(proxy: LyingProxy) -> Iterator[LyingProxy]:
    """``proxy``, listening on the loopback address, in a thread of its own."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(
            proxy._connected, "127.0.0.1", 0, limit=1 << 24
        )
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(
        target=loop.run_until_complete, args=(serve(),), daemon=True
    )
    thread.start()
    try:
        assert ready.wait(10)
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
