"""The head and the body of a client's request, read within bounds; what is malformed is
refused."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from email.message import Message
from io import BufferedIOBase
from typing import Final
from urllib.parse import urlsplit

from mmrepro.traffic.capture.recording import PIECE

_MAX_HEAD: Final = 64 << 10
"""Bytes of all header lines of a request, and of the trailer of its body."""
MAX_BODY: Final = 64 << 20
_MAX_CHUNK_LINE: Final = 1000
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HOST: Final = re.compile(r"[\w.:%\[\]-]{1,255}", re.ASCII)


class MalformedRequest(Exception):
    """A request that is not passed on. ``status``: of the answer to it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class BoundedHead:
    """A stream whose lines have ``_MAX_HEAD`` bytes in all, until ``begin`` is called
    again."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._left = _MAX_HEAD

    def begin(self) -> None:
        """The header lines of another request follow."""
        self._left = _MAX_HEAD

    def readline(self, limit: int = -1, /) -> bytes:
        """Raises LineTooLong: all lines together are."""
        most = self._left if limit < 0 else min(limit, self._left)
        line = self._stream.readline(most + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("header line")
        return line

    def read1(self, count: int) -> bytes:
        """Bytes of a body: they have a bound of their own."""
        return self._stream.read1(count)

    def close(self) -> None:
        self._stream.close()


def check_head(method: str, target: str, headers: Message) -> None:
    """Raises MalformedRequest: the head is none that HTTP has, or none that can be
    passed on."""
    if method == "CONNECT":
        raise MalformedRequest(501, "a tunnel (CONNECT)")
    if not _TOKEN.fullmatch(method):
        raise MalformedRequest(400, "a method that is no word")
    if not re.fullmatch(r"[!-~]+", target):
        raise MalformedRequest(400, "an address with other characters than ASCII")
    if headers.defects or headers.get_payload():
        raise MalformedRequest(400, "a header line without a name")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise MalformedRequest(400, "a header whose name is no word")
        if not _VALUE.fullmatch(value):
            raise MalformedRequest(400, "a header with control characters")
    hosts = headers.get_all("Host") or []
    if len(hosts) > 1 or not all(_HOST.fullmatch(host) for host in hosts):
        raise MalformedRequest(400, "a Host that is none")
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise MalformedRequest(400, "an address that is none") from error
    if parts.netloc and not _HOST.fullmatch(parts.netloc.rpartition("@")[2]):
        raise MalformedRequest(400, "an address that is none")


def body_of(stream: BoundedHead, headers: Message) -> Iterator[bytes]:
    """Yield the body in pieces, without its framing.

    Raises:
        MalformedRequest: its framing is wrong, it is longer than ``MAX_BODY``, or it
            ends early.
    """
    codings = _words(headers, "Transfer-Encoding")
    if codings == ["chunked"]:
        yield from _chunks(stream)
        return
    if codings not in ([], ["identity"]):
        raise MalformedRequest(501, "a body in another coding than chunked")
    # The same length may be sent twice; with two lengths nobody knows where it ends.
    lengths = set(_words(headers, "Content-Length"))
    if len(lengths) > 1:
        raise MalformedRequest(400, "two different Content-Lengths")
    length = lengths.pop() if lengths else "0"
    if not _LENGTH.fullmatch(length):
        raise MalformedRequest(400, "a Content-Length that is no number")
    yield from _exactly(stream, int(length), 0)


def _words(headers: Message, name: str) -> list[str]:
    """Return the values of a header, in small letters; it may come several times, with
    several values each."""
    words: list[str] = []
    for value in headers.get_all(name) or []:
        words += [word.strip().lower() for word in value.split(",")]
    return words


def _chunks(stream: BoundedHead) -> Iterator[bytes]:
    total = 0
    while True:
        stream.begin()  # many chunks have more bytes of size lines than a head
        line = _CHUNK.fullmatch(stream.readline(_MAX_CHUNK_LINE))
        if line is None:
            raise MalformedRequest(400, "a chunk without a size")
        size = int(line[1], 16)
        if not size:
            break
        yield from _exactly(stream, size, total)
        total += size
        if stream.readline(2) not in (b"\r\n", b"\n"):
            raise MalformedRequest(400, "a chunk that is longer than its size")
    while stream.readline().strip():
        pass  # the trailer


def _exactly(stream: BoundedHead, count: int, before: int) -> Iterator[bytes]:
    """``count`` bytes, of a body that has had ``before``."""
    if before + count > MAX_BODY:  # asked before the first of them is read
        raise MalformedRequest(413, f"a body of more than {MAX_BODY >> 20} MiB")
    while count:
        piece = stream.read1(min(count, PIECE))
        if not piece:
            raise MalformedRequest(400, "a body that ends early")
        count -= len(piece)
        yield piece
