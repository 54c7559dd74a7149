"""An async client of the OpenAI API that records every request.

It never raises for what a server does: garbage, a closed connection or silence end in
the record."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mmrepro.base.records import Moment
from mmrepro.traffic.evidence import ImageSent, RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.pictures import Picture
from mmrepro.traffic.reading import (
    CHAT,
    COMPLETIONS,
    ERROR_LIMIT,
    GENERATE,
    MALFORMED,
    TEXT_LIMIT,
    Left,
    RequestWatch,
    count,
    end_of_stream,
    read_chunk,
    read_completion,
    read_event,
    read_generated,
    read_other,
)

if TYPE_CHECKING:
    import httpx2

MAX_BODY_BYTES = 8 << 20
_MAX_HOLD_S = 300.0
_AFTER_DONE_S = 1.0
"""A stream that is watched is read on for so long after [DONE]; a sound one ends at
once."""


class Traffic:
    """Requests to one server.

    Args:
        base_url: e.g. ``http://127.0.0.1:8000``.
        model: the served model's name.
        recorder: gets a :class:`RequestRecord` for each request, when it ends.
    """

    def __init__(self, base_url: str, model: str, recorder: Recorder) -> None:
        # Here, not above: `mmrepro list` loads every scenario, and sends nothing.
        import ssl

        import httpx2

        self.base_url = base_url
        self.model = model
        self.recorder = recorder
        self._limits: dict[asyncio.Task[Any] | None, tuple[asyncio.Timeout, float]] = {}
        # Deadlines are ours (asyncio.timeout): a read timeout would also fire on a slow
        # stream, and a connect timeout of some seconds on a loop that stood still so
        # long: asyncio then looks at the timer that is due before the socket that is
        # ready.
        self._failure = httpx2.HTTPError
        # Reading the certificate store takes tens of milliseconds: only for https. A
        # context without it trusts no certificate.
        verify: bool | ssl.SSLContext = True
        if not base_url.lower().startswith("https:"):
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            verify=verify,
            timeout=None,
            trust_env=False,
            follow_redirects=False,
            # One connection a request, as curl does: a server may close an idle one at
            # any moment (uvicorn does after a 400), and a request lost to that would be
            # our own failure.
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
        content: list[dict[str, Any]] = [picture.part for picture in images]
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
        record = self._new_record(label, CHAT, deadline_s, text)
        record.images, record.max_tokens = (
            [picture.sent() for picture in images],
            max_tokens,
        )
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

    async def send(
        self,
        label: str,
        body: bytes,
        watch: RequestWatch,
        *,
        path: str = CHAT,
        target: str = "",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        images: Sequence[ImageSent] = (),
        text: str = "",
        max_tokens: int | None = None,
        deadline_s: float,
    ) -> RequestRecord:
        """A request whose ``body`` was made elsewhere, watched; ``target``: the path as
        it is sent, and a query; the rest is for its record."""
        record = self._new_record(label, path, deadline_s, text)
        record.method = method
        record.stream, record.images, record.max_tokens = (
            stream,
            list(images),
            max_tokens,
        )
        return await self._send(
            record, body, watch=watch, target=target, headers=headers
        )

    async def count_tokens(self, text: str, *, deadline_s: float = 10.0) -> int | None:
        """Tokens of a plain text by the server's own ``/tokenize``; None if it does not
        tell."""
        request = {"model": self.model, "prompt": text}
        answer = await self._ask("POST", "/tokenize", deadline_s, request)
        try:
            return count(json.loads(answer)["count"])
        except MALFORMED:
            return None

    async def scrape(self, *, deadline_s: float = 5.0) -> str:
        """The text of ``/metrics``; empty if it cannot be had."""
        return await self._ask("GET", "/metrics", deadline_s)

    def hold(self, request: asyncio.Task[RequestRecord]) -> None:
        """Do not give ``request`` up at its deadline: the server may clean up after a
        client that goes away, and what was to be looked at is over then."""
        limit, _ = self._limits.get(request, (None, 0.0))
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + _MAX_HOLD_S)

    def release(
        self, request: asyncio.Task[RequestRecord], *, now: bool = False
    ) -> None:
        """Give a held ``request`` up at its deadline after all, at once if that has
        passed, or if it is to be ``now``."""
        limit, deadline = self._limits.get(request, (None, 0.0))
        if limit is not None and not limit.expired():
            limit.reschedule(0.0 if now else deadline)

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

    async def _ask(
        self, method: str, path: str, deadline_s: float, body: object = None
    ) -> str:
        """The text of an unrecorded request's answer; empty if it cannot be had."""
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._client.stream(method, path, json=body) as answer,
            ):
                data = (
                    await _read_bounded(answer) if answer.status_code == 200 else None
                )
        except (self._failure, TimeoutError):
            return ""
        return "" if data is None else data.decode("utf-8", "replace")

    def _new_record(
        self, label: str, path: str, deadline_s: float, text: str = ""
    ) -> RequestRecord:
        return RequestRecord(
            id=self.recorder.next_id(),
            phase=self.recorder.phase,
            label=label,
            path=path,
            sent=Moment.now(),
            deadline_s=deadline_s,
            prompt_chars=len(text),
            prompt_head=text[:200],
        )

    async def _send(
        self,
        record: RequestRecord,
        body: bytes,
        started: asyncio.Event | None = None,
        watch: RequestWatch | None = None,
        target: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> RequestRecord:
        async def traced(step: str, _: object) -> None:
            if watch is not None and step == "http11.send_request_body.complete":
                watch.sent()
                if watch.leave_at == 0:
                    raise Left

        record.sent = Moment.now()
        leaving = asyncio.timeout(None if watch is None else watch.leave_s)
        try:
            async with (
                self._limit(record.deadline_s),
                leaving,
                self._client.stream(
                    record.method,
                    target or record.path,
                    content=body,
                    headers={"Content-Type": "application/json"}
                    if headers is None
                    else headers,
                    extensions={} if watch is None else {"trace": traced},
                ) as answer,
            ):
                record.status = answer.status_code
                if watch is not None:
                    watch.headed(answer.headers)
                    if record.path not in (CHAT, COMPLETIONS):
                        kind = answer.headers.get("content-type", "")
                        record.stream = kind.startswith("text/event-stream")
                if record.stream and answer.status_code == 200:
                    await _read_stream(answer, record, started, watch)
                else:
                    await _read_whole(answer, record, watch)
        except Left:
            record.left = True
        except TimeoutError:
            if leaving.expired():
                record.left = True
                return record
            record.timed_out = True
            waited = time.monotonic() - record.sent.mono
            record.error = f"no complete answer in {waited:.1f} s"
        except self._failure as error:
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


async def _read_whole(
    answer: httpx2.Response, record: RequestRecord, watch: RequestWatch | None = None
) -> None:
    """Read an answer that is no stream."""
    body = await _read_bounded(answer)
    if body is None:
        record.error = f"the answer has more than {MAX_BODY_BYTES} bytes"
        return
    if watch is not None:
        watch.heard(body)
    text = body.decode("utf-8", "replace")
    watched = watch is not None
    is_completion = record.path == CHAT or (watched and record.path == COMPLETIONS)
    if record.status is None or record.status >= 400:
        record.error = text[:ERROR_LIMIT] or f"HTTP {record.status} with an empty body"
    elif is_completion:
        try:
            read_completion(json.loads(text), record, watched=watched)
        except MALFORMED as error:
            kind = type(error).__name__
            record.error = f"not a chat completion ({kind}): {text[:200]}"
    elif record.path == GENERATE and not watched:
        try:
            read_generated(json.loads(text), record)
        except MALFORMED as error:
            kind = type(error).__name__
            record.error = f"not an answer of /generate ({kind}): {text[:200]}"
    else:
        record.text = text[:TEXT_LIMIT]
        if watched:
            with contextlib.suppress(*MALFORMED):  # no form is promised of it
                read_other(json.loads(text), record)


async def _read_stream(
    answer: httpx2.Response,
    record: RequestRecord,
    started: asyncio.Event | None,
    watch: RequestWatch | None = None,
) -> None:
    """Server-sent events: text pieces, then usage, then ``[DONE]``. In other forms than
    that of completions nothing is promised of the end."""
    text: list[str] = []
    other = watch if record.path not in (CHAT, COMPLETIONS) else None
    done = False
    try:
        async with asyncio.timeout(None) as rest:
            async for line in _lines(answer):
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if done:
                    record.after_done += 1
                    continue
                if data == "[DONE]":
                    done = True
                    if watch is None:
                        break
                    rest.reschedule(asyncio.get_running_loop().time() + _AFTER_DONE_S)
                    continue
                if watch is not None:
                    watch.heard(line.encode() + b"\n")
                try:
                    if other is not None:
                        read_event(json.loads(data), record, other)
                    else:
                        text.append(read_chunk(json.loads(data), record, watch))
                except MALFORMED as error:
                    record.error = (
                        f"a broken stream ({type(error).__name__}): {data[:200]}"
                    )
                if started is not None and record.ttft_s is not None:
                    started.set()
                if record.error:
                    break
    except TimeoutError:
        if not rest.expired():
            raise
    except _TooLong:
        record.error = f"the answer has more than {MAX_BODY_BYTES} bytes"
    finally:  # what came before a closed connection or the deadline is evidence as well
        if other is None:
            record.text = "".join(text)[:TEXT_LIMIT]
        if watch is not None and other is None:
            end_of_stream(record, done=done)
    if not done and not record.error and other is None:
        record.error = "the stream ended without [DONE]"
