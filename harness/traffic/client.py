"""An async client of the OpenAI API that records every request.

It never raises for what a server does: garbage, a closed connection or silence end in the record.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mmrepro.evidence import RequestRecord
from mmrepro.evidence.recorder import Recorder
from mmrepro.records import Moment
from mmrepro.traffic.pictures import Picture

CHAT = "/v1/chat/completions"
MAX_BODY_BYTES = 8 << 20
TEXT_LIMIT = 4000
ERROR_LIMIT = 2000
MAX_HOLD_S = 300.0
MAX_LOGPROBS = 256
"""Tokens of an answer of which text and logprob are kept."""

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON of an unexpected shape raises; hostile nesting ends in RecursionError."""


class Traffic:
    """Requests to one server.

    Args:
        base_url: e.g. ``http://127.0.0.1:8000``.
        model: the served model's name.
        recorder: gets a :class:`RequestRecord` for each request, when it ends.
    """

    def __init__(self, base_url: str, model: str, recorder: Recorder) -> None:
        self.base_url = base_url
        self.model = model
        self.recorder = recorder
        self._limits: dict[asyncio.Task[Any] | None, tuple[asyncio.Timeout, float]] = {}
        # Deadlines are ours (asyncio.timeout): a read timeout would also fire on a slow stream.
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            timeout=httpx2.Timeout(None, connect=5.0),
            trust_env=False,
            follow_redirects=False,
            # One connection a request, as curl does: a server may close an idle one at any moment
            # (uvicorn does after a 400), and a request lost to that would be our own failure.
            limits=httpx2.Limits(max_connections=256, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def chat(
        self,
        label: str,
        *,
        text: str,
        images: Sequence[Picture] = (),
        max_tokens: int = 4,
        deadline_s: float,
        stream: bool = False,
        extra: Mapping[str, Any] | None = None,
        started: asyncio.Event | None = None,
    ) -> RequestRecord:
        """One chat completion, greedy, images before the text.

        Args:
            label: what the request is for; shown in reports and found by signatures.
            deadline_s: seconds until the request is given up and recorded as timed out.
            extra: further fields of the body, e.g. ``{"logit_bias": {...}}``.
            started: set when the first token of a stream arrives.
        """
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": p.data_url}} for p in images
        ]
        content.append({"type": "text", "text": text})
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            **(extra or {}),
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        record = self._new_record(label, CHAT, deadline_s)
        record.images = [p.sent() for p in images]
        record.prompt_chars = len(text)
        record.prompt_head = text[:200]
        record.max_tokens = max_tokens
        record.stream = stream
        return await self._send(record, json.dumps(body).encode(), started)

    async def raw(
        self,
        label: str,
        *,
        path: str = CHAT,
        method: str = "POST",
        body: bytes = b"",
        deadline_s: float,
    ) -> RequestRecord:
        """Any request with any body, for malformed traffic and for other endpoints."""
        record = self._new_record(label, path, deadline_s)
        record.method = method
        return await self._send(record, body)

    async def count_tokens(self, text: str, *, deadline_s: float = 10.0) -> int | None:
        """Tokens of a plain text by the server's own ``/tokenize``; None if it does not tell."""
        request = {"model": self.model, "prompt": text}
        answer = await self._ask("POST", "/tokenize", deadline_s, request)
        try:
            return _count(json.loads(answer)["count"])
        except MALFORMED:
            return None

    async def scrape(self, *, deadline_s: float = 5.0) -> str:
        """The text of ``/metrics``; empty if it cannot be had."""
        return await self._ask("GET", "/metrics", deadline_s)

    def hold(self, request: asyncio.Task[RequestRecord]) -> None:
        """Do not give ``request`` up at its deadline: the server may clean up after a client that
        goes away, and what was to be looked at is over then."""
        limit, _ = self._limits.get(request, (None, 0.0))
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + MAX_HOLD_S)

    def release(self, request: asyncio.Task[RequestRecord]) -> None:
        """Give a held ``request`` up at its deadline after all, at once if that has passed."""
        limit, deadline = self._limits.get(request, (None, 0.0))
        if limit is not None and not limit.expired():
            limit.reschedule(deadline)

    # ------------------------------------------------------------------ inner workings

    @asynccontextmanager
    async def _limit(self, deadline_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError after ``deadline_s``, or when it is no longer held."""
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(deadline_s) as limit:
                self._limits[task] = limit, limit.when() or 0.0
                yield
        finally:
            self._limits.pop(task, None)

    async def _ask(self, method: str, path: str, deadline_s: float, body: object = None) -> str:
        """The text of an unrecorded request's answer; empty if it cannot be had."""
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._client.stream(method, path, json=body) as answer,
            ):
                data = await _read_bounded(answer) if answer.status_code == 200 else None
        except (httpx2.HTTPError, TimeoutError):
            return ""
        return "" if data is None else data.decode("utf-8", "replace")

    def _new_record(self, label: str, path: str, deadline_s: float) -> RequestRecord:
        return RequestRecord(
            id=self.recorder.next_id(),
            phase=self.recorder.phase,
            label=label,
            path=path,
            sent=Moment.now(),
            deadline_s=deadline_s,
        )

    async def _send(
        self, record: RequestRecord, body: bytes, started: asyncio.Event | None = None
    ) -> RequestRecord:
        record.sent = Moment.now()
        try:
            async with (
                self._limit(record.deadline_s),
                self._client.stream(
                    record.method,
                    record.path,
                    content=body,
                    headers={"Content-Type": "application/json"},
                ) as answer,
            ):
                record.status = answer.status_code
                if record.stream and answer.status_code == 200:
                    await _read_stream(answer, record, started)
                else:
                    await _read_whole(answer, record)
        except TimeoutError:
            record.timed_out = True
            waited = time.monotonic() - record.sent.mono
            record.error = f"no complete answer in {waited:.1f} s"
        except httpx2.HTTPError as error:
            record.error = f"{type(error).__name__}: {error}"[:ERROR_LIMIT]
        except asyncio.CancelledError:
            record.error = "given up by the client"
            raise
        finally:
            record.latency_s = round(time.monotonic() - record.sent.mono, 4)
            self.recorder.request(record)
        return record


class _TooLong(Exception):
    """The answer is longer than ``MAX_BODY_BYTES``."""


async def _parts(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The body piece by piece. Raises _TooLong: a server may send without end."""
    total = 0
    async for part in answer.aiter_bytes():
        total += len(part)
        if total > MAX_BODY_BYTES:
            raise _TooLong
        yield part


async def _lines(answer: httpx2.Response) -> AsyncIterator[str]:
    rest = b""
    async for part in _parts(answer):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    if rest:
        yield rest.decode("utf-8", "replace")


async def _read_bounded(answer: httpx2.Response) -> bytes | None:
    """The whole body; None when it is too long."""
    try:
        return b"".join([part async for part in _parts(answer)])
    except _TooLong:
        return None


async def _read_whole(answer: httpx2.Response, record: RequestRecord) -> None:
    body = await _read_bounded(answer)
    if body is None:
        record.error = f"the answer is longer than {MAX_BODY_BYTES} bytes"
        return
    text = body.decode("utf-8", "replace")
    if record.status is None or record.status >= 400:
        record.error = text[:ERROR_LIMIT] or f"HTTP {record.status} with an empty body"
    elif record.path == CHAT:
        try:
            read_completion(json.loads(text), record)
        except MALFORMED as error:
            record.error = f"not a chat completion ({type(error).__name__}): {text[:200]}"
    else:
        record.text = text[:TEXT_LIMIT]


def read_completion(body: Any, record: RequestRecord) -> None:
    """Copy text, finish reason, usage and logprobs of a chat completion into ``record``."""
    choice = body["choices"][0]
    record.text = _text(choice["message"]["content"])[:TEXT_LIMIT]
    record.finish_reason = _text(choice.get("finish_reason")) or None
    usage = body.get("usage") or {}
    record.prompt_tokens = _count(usage.get("prompt_tokens"))
    record.completion_tokens = _count(usage.get("completion_tokens"))
    record.cached_tokens = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
    seen = (choice.get("logprobs") or {}).get("content") or []
    record.logprobs = [_finite(one["logprob"]) for one in seen[:MAX_LOGPROBS]]
    record.tokens = [_text(one["token"]) for one in seen[:MAX_LOGPROBS]]


async def _read_stream(
    answer: httpx2.Response, record: RequestRecord, started: asyncio.Event | None
) -> None:
    """Server-sent events: text pieces, then usage, then ``[DONE]``."""
    text: list[str] = []
    done = False
    try:
        async for line in _lines(answer):
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                done = True
                break
            try:
                text.append(_read_chunk(json.loads(data), record))
            except MALFORMED as error:
                record.error = f"a broken stream ({type(error).__name__}): {data[:200]}"
            if started is not None and record.ttft_s is not None:
                started.set()
            if record.error:
                break
    except _TooLong:
        record.error = f"the answer is longer than {MAX_BODY_BYTES} bytes"
    finally:  # what came before a closed connection or the deadline is evidence as well
        record.text = "".join(text)[:TEXT_LIMIT]
    if not done and not record.error:
        record.error = "the stream ended without [DONE]"


def _read_chunk(chunk: Any, record: RequestRecord) -> str:
    """The text of one chunk; its time, finish reason and usage go into ``record``."""
    if chunk.get("error") is not None:
        record.error = _text(chunk["error"])[:ERROR_LIMIT] or "an error without a text"
        return ""
    pieces = []
    for choice in chunk.get("choices", []):
        piece = choice["delta"].get("content")
        if piece is not None and record.ttft_s is None and "role" not in choice["delta"]:
            record.ttft_s = round(time.monotonic() - record.sent.mono, 4)
        pieces.append(_text(piece))
        record.finish_reason = _text(choice.get("finish_reason")) or None
    usage = chunk.get("usage") or {}
    record.prompt_tokens = _count(usage.get("prompt_tokens", record.prompt_tokens))
    record.completion_tokens = _count(usage.get("completion_tokens", record.completion_tokens))
    return "".join(pieces)


def _text(value: object) -> str:
    """Text as it can be written to a file again: JSON may carry lone surrogates."""
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def _finite(value: object) -> float:
    """A number that JSON can hold. Raises ValueError or TypeError: it is none."""
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{number} is no logprob")
    return number


def _count(value: object) -> int | None:
    """A number of tokens; anything else that a server sends in its place is none."""
    plausible = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if plausible else None  # type: ignore[return-value]
