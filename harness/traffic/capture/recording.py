"""What a proxy records: kept on disk while it runs, and written as a HAR piece by
piece.

A client may send more than memory holds, so no body is ever whole in it but where its
reader asks."""

from __future__ import annotations

import base64
import codecs
import json
import os
import secrets
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, overload

from mmrepro.base.machine import replacing

PIECE: Final = 1 << 16
"""Bytes that are read, sent and written at once."""
NO_ANSWER: Final = "there was no answer until the end"
_BASE64_PIECE: Final = 3 << 14
"""Bytes encoded at once: a multiple of three, so that no padding stands inside."""


def entry_of(
    method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes
) -> dict[str, Any]:
    """An entry of a HAR, of a request that has no answer yet."""
    headers = list(headers)
    entry = _entry(method, url, headers)
    if body:
        entry["request"]["postData"] = {
            "mimeType": _content_type(headers),
            **_text(body),
        }
    return entry


def _entry(method: str, url: str, headers: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "startedDateTime": datetime.now(UTC).isoformat(),
        "time": 0.0,
        "request": {
            "method": method,
            "url": url,
            "headers": [{"name": name, "value": value} for name, value in headers],
        },
        "response": {"status": 0, "content": {"text": ""}, "_error": NO_ANSWER},
    }


def _content_type(headers: Iterable[tuple[str, str]]) -> str:
    for name, value in headers:
        if name.lower() == "content-type":
            return value
    return ""


def _text(body: bytes) -> dict[str, str]:
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"text": base64.b64encode(body).decode(), "encoding": "base64"}


class RecordingFull(Exception):
    """The recording has reached its bound, or the disk has."""


class Spool:
    """Bytes in one file without a name, gone with this object; no more than ``most`` in
    all.

    Attributes:
        held: bytes that were taken.
        full: whether something was refused.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.full = False
        self._end = 0
        self._lock = threading.Lock()
        file = tempfile.TemporaryFile(prefix="mmrepro-")  # noqa: SIM115  (outlives this function)
        self._file = file
        weakref.finalize(self, file.close)

    def reserve(self, count: int) -> None:
        """Take ``count`` bytes of the bound. Raises RecordingFull."""
        with self._lock:
            if self.held + count > self.most:
                self.full = True
                raise RecordingFull
            self.held += count

    def write(self, data: bytes) -> tuple[int, int]:
        """Write what was reserved; return where it lies, and its length. Raises
        RecordingFull."""
        with self._lock:
            begin = self._end
            at = 0
            try:
                while at < len(data):
                    at += os.pwrite(self._file.fileno(), data[at:], begin + at)
            except OSError as error:
                # The end stays where it was: the next piece is written over this one.
                self.full = True
                raise RecordingFull from error
            self._end += len(data)
        return begin, len(data)

    def read(self, begin: int, count: int) -> bytes:
        return os.pread(self._file.fileno(), count, begin)


class KeptBytes:
    """A head, a body or an answer in a spool, to which one thread adds."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._lock = threading.Lock()
        self._places: list[tuple[int, int]] = []
        self._last = bytearray()
        self.length = 0

    def add(self, data: bytes) -> None:
        """Raises RecordingFull: nothing of ``data`` is kept."""
        self._spool.reserve(len(data))
        with self._lock:
            self._last += data
            self.length += len(data)
            # Streams come in pieces of some bytes: a place in the file for each is too
            # many.
            if len(self._last) >= PIECE:
                self._flush()

    def close(self) -> None:
        """Write the rest: nothing is added any more. Raises RecordingFull."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if self._last:
            self._places.append(self._spool.write(bytes(self._last)))
            self._last = bytearray()

    def pieces(self) -> Iterator[bytes]:
        """Yield all of it as it is now, some ``PIECE`` bytes at a time."""
        # Other threads add while this one reads: what they add later is not of it.
        with self._lock:
            places = list(self._places)
            last = bytes(self._last)
        for begin, count in places:
            end = begin + count
            for at in range(begin, end, PIECE):
                yield self._spool.read(at, min(PIECE, end - at))
        if last:
            yield last

    def between(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from ``begin`` to ``end``, some at a time."""
        at = 0
        for piece in self.pieces():
            part = piece[max(0, begin - at) : max(0, end - at)]
            at += len(piece)
            if part:
                yield part
            if at >= end:
                return

    def whole(self) -> bytes:
        return b"".join(self.pieces())

    def as_it_is_now(self) -> KeptBytes:
        """Return a copy to which nothing is added while somebody reads it twice."""
        copy = KeptBytes(self._spool)
        with self._lock:
            copy._places = list(self._places)
            copy._last = bytearray(self._last)
            copy.length = self.length
        return copy


@dataclass
class KeptRequest:
    """One request of a recording, and what came of it.

    Attributes:
        head: its entry of a HAR as JSON, without bodies.
        took_ms: until its answer was complete.
        error: why the answer is not whole; "": it is.
        content_type: of the answer.
    """

    head: KeptBytes
    body: KeptBytes
    answer: KeptBytes
    request_type: str = ""
    took_ms: float = 0.0
    status: int = 0
    error: str = NO_ANSWER
    content_type: str = ""
    answered: bool = False
    """Whether the head of an answer came."""

    def entry(self) -> dict[str, Any]:
        """Return the entry of a HAR, with whole bodies."""
        entry = self._without_bodies()
        if self.body.length:
            sent = {"mimeType": self.request_type, **_text(self.body.whole())}
            entry["request"]["postData"] = sent
        if self.answered:
            came = {"mimeType": self.content_type, **_text(self.answer.whole())}
            entry["response"]["content"] = came
        return entry

    def _without_bodies(self) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(self.head.whole())
        entry["time"] = round(self.took_ms, 3)
        entry["response"]["status"] = self.status
        entry["response"]["_error"] = self.error
        return entry

    def written(self) -> Iterator[bytes]:
        """Yield the entry as JSON, in pieces: a body may be longer than memory."""
        entry = self._without_bodies()
        # A text that no client can know replaces each body: there the JSON is taken apart.
        marks: dict[str, KeptBytes] = {}
        if self.body.length:
            mark = secrets.token_hex(16)
            marks[mark] = self.body
            sent = {"mimeType": self.request_type, "text": mark}
            entry["request"]["postData"] = sent | _encoding(self.body)
        if self.answered:
            # It is read twice, for its encoding and for its text, and may grow meanwhile.
            answer = self.answer.as_it_is_now()
            mark = secrets.token_hex(16)
            marks[mark] = answer
            came = {"mimeType": self.content_type, "text": mark}
            entry["response"]["content"] = came | _encoding(answer)
        rest = json.dumps(entry)
        for mark, kept in marks.items():
            before, _, rest = rest.partition(mark)
            yield before.encode()
            yield from _inside_json(kept)
        yield rest.encode()


class RecordedEntries(Sequence[dict[str, Any]]):
    """The entries of a HAR, each read from the spool when it is asked for."""

    def __init__(self, requests: Sequence[KeptRequest]) -> None:
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, at: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(at, slice):
            return [request.entry() for request in self._requests[at]]
        return self._requests[at].entry()


class Recording:
    """All requests of a recording, in the order in which they came; bounded in number
    and bytes."""

    def __init__(self, most_requests: int, most_bytes: int) -> None:
        self.most_requests = most_requests
        self.spool = Spool(most_bytes)
        self.requests: list[KeptRequest] = []
        self._lock = threading.Lock()

    def begin(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: KeptBytes
    ) -> KeptRequest:
        """Return a request that has no answer yet; ``keep`` records it. Raises
        RecordingFull."""
        entry = _entry(method, url, headers)
        head = KeptBytes(self.spool)
        head.add(json.dumps(entry).encode())
        head.close()
        return KeptRequest(head, body, KeptBytes(self.spool), _content_type(headers))

    def keep(self, request: KeptRequest) -> int:
        """Record a request; returns its number, from 1. Raises RecordingFull."""
        with self._lock:
            if len(self.requests) >= self.most_requests:
                raise RecordingFull
            self.requests.append(request)
            return len(self.requests)

    def write(self, file: Path) -> None:
        """Write the HAR, piece by piece. Raises OSError."""
        with self._lock:
            requests = list(self.requests)
        with replacing(file) as out:
            _write(out, requests)


def _write(out: BinaryIO, requests: Sequence[KeptRequest]) -> None:
    out.write(
        b'{"log": {"version": "1.2", "creator": {"name": "mmrepro"}, "entries": ['
    )
    for number, request in enumerate(requests):
        out.write(b", " if number else b"")
        out.writelines(request.written())
    out.write(b"]}}")


def _encoding(kept: KeptBytes) -> dict[str, str]:
    """Return the field that a HAR has for what is no text."""
    return {} if _is_text(kept) else {"encoding": "base64"}


def _is_text(kept: KeptBytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in kept.pieces():
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _inside_json(kept: KeptBytes) -> Iterator[bytes]:
    """Yield text as it stands between the quotes of JSON; what is none, as Base64."""
    if _is_text(kept):
        # A character's bytes may lie in two pieces: the decoder keeps what is begun.
        decoder = codecs.getincrementaldecoder("utf-8")()
        for piece in kept.pieces():
            yield json.dumps(decoder.decode(piece), ensure_ascii=False)[1:-1].encode()
        return
    left = b""
    for piece in kept.pieces():
        left += piece
        whole = len(left) - len(left) % _BASE64_PIECE
        yield base64.b64encode(left[:whole])
        left = left[whole:]
    yield base64.b64encode(left)
