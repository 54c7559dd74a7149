"""A proxy in front of a server that records what a client sends, as a HAR.

Any method, path, header and body passes. Of a request only the model's name is
replaced, by the one that is served. A streamed answer reaches the client piece by
piece. What a client may send, at once and in all, is bounded; what a bound left out is
told in the notes, and the proxy goes on."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from mmrepro.base import units
from mmrepro.traffic.capture.received import (
    MAX_BODY,
    BoundedHead,
    MalformedRequest,
    body_of,
    check_head,
)
from mmrepro.traffic.capture.recording import (
    NO_ANSWER,
    PIECE,
    KeptBytes,
    KeptRequest,
    RecordedEntries,
    Recording,
    RecordingFull,
    entry_of,
)

__all__ = ["CLIENT_LEFT", "NO_ANSWER", "SERVER_CLOSED", "RecordingProxy", "entry_of"]

_MAX_ANSWER: Final = 8 << 20
"""Bytes of one answer that are recorded; all of it is passed on."""
MAX_RECORDING: Final = 256 << 20
"""Bytes of all heads, bodies and answers."""
MAX_REQUESTS: Final = 10_000
MAX_CONNECTIONS: Final = 400
"""Open at once."""
RECEIVES_S: Final = 60.0
"""Until the next request of a connection is there whole, and until an answer is taken
on."""
LOOK_S, SETTLES_S, LINGERS_S = 0.2, 0.5, 2.0
_THIS_MACHINE: Final = re.compile(r"^(?:127\.0\.0\.1|0\.0\.0\.0|\[::1?\])(?=:|$)")
_RETRY: Final = "x-stainless-retry-count"
"""Header with which the clients of OpenAI and Anthropic number what they send again."""
_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "content-length",
        "host",
        "accept-encoding",
        "proxy-connection",
    }
)
CLIENT_LEFT: Final = "the client disconnected"
SERVER_CLOSED: Final = "the server closed the connection"
_MOST_HOSTS, _HOSTS_SHOWN = 50, 5
_MOST_REASONS: Final = 20
_SEARCHED_ALONE: Final = 256 << 10
"""Bytes of a body above which only one is in memory at a time."""


class RecordingProxy:
    """Passes requests on to a server on this machine; a context manager.

    Attributes:
        retried: requests that a client's library sent again by itself; they are not
            recorded.
        refused: protocols that it does not pass on, each once.
        malformed: requests that it does not pass on either, by what is wrong with them.
        hosts: that clients called; they are recorded as one.
        slow: connections that were closed because a request did not come, or an answer
            was not taken, in ``RECEIVES_S``.
        crowded: connections that were closed because ``MAX_CONNECTIONS`` were open.
        cut: answers that are recorded in part.
    """

    def __init__(self, port: int, model: str) -> None:
        """``port``: of the server. ``model``: the name that it serves."""
        self.port, self.model = port, model
        self.recording = Recording(MAX_REQUESTS, MAX_RECORDING)
        self.retried = 0
        self.refused: list[str] = []
        self.malformed: Counter[str] = Counter()
        self.hosts: dict[str, None] = {}
        self.slow = self.crowded = self.cut = 0
        self.open: dict[int, float] = {}
        """Number of a request without a complete answer: when something last came of
        it."""
        self.searched_alone = threading.Lock()
        self._lock = threading.Lock()
        self._servers: list[_TcpServer | _UnixServer] = []

    @property
    def entries(self) -> RecordedEntries:
        """Of the HAR, in the order in which requests came."""
        return RecordedEntries(self.recording.requests)

    def listen(self, place: Path | int | socket.socket) -> None:
        """Accept clients at a Unix socket, one that listens already or a path, or at a
        port of 127.0.0.1. Raises OSError."""
        made: _TcpServer | _UnixServer
        if isinstance(place, Path):
            made = _UnixServer(str(place), _ProxyHandler)
        elif isinstance(place, socket.socket):
            made = _UnixServer("", _ProxyHandler, bind_and_activate=False)
            made.socket.close()
            made.socket = place
        else:
            made = _TcpServer(("127.0.0.1", place), _ProxyHandler)
        made.proxy = self
        self._servers.append(made)
        threading.Thread(target=made.serve_forever, args=(LOOK_S,), daemon=True).start()

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def silent_s(self) -> float:
        """Seconds since anything came of the requests that wait; 0: none does."""
        with self._lock:
            return time.monotonic() - max(self.open.values()) if self.open else 0.0

    @property
    def notes(self) -> list[str]:
        """Sentences on what it did not record."""
        sentences: list[str] = []
        for what in self.refused:
            sentences.append(f"The client tried a {what}: that is left out.")
        if self.retried:
            sentences.append(
                f"{self.retried} requests that the client's library repeats are left out."
            )
        if len(self.hosts) > 1:
            names = ", ".join([*self.hosts][:_HOSTS_SHOWN])
            more = len(self.hosts) - _HOSTS_SHOWN
            if more > 0:
                names += f" and {more} more"
            sentences.append(f"The client calls {names}: one server answers for all.")
        for what, count in self.malformed.items():
            sentences.append(
                f"Requests that are refused and left out: {count}, each with {what}."
            )
        if self.slow:
            sentences.append(
                f"Connections closed after {RECEIVES_S:.0f} s without a whole request "
                f"or a reader: {self.slow}."
            )
        if self.crowded:
            sentences.append(
                f"Connections refused because {MAX_CONNECTIONS} were open: {self.crowded}."
            )
        if self.cut:
            sentences.append(
                f"Answers of which only the beginning is recorded: {self.cut}."
            )
        return sentences

    def write(self, file: Path) -> None:
        """Write what was recorded. Raises OSError."""
        # A client may have its last answer before that answer's entry is whole.
        end = time.monotonic() + SETTLES_S
        while self.open and time.monotonic() < end:
            time.sleep(LOOK_S / 10)
        self.recording.write(file)

    # ------------------------------------------------------------ asked by the handlers

    def begin(self, request: KeptRequest, *, again: bool) -> int:
        """Record a request, unless it is sent ``again``; return its number. Raises
        RecordingFull."""
        with self._lock:
            if again:
                self.retried += 1
                number = -self.retried
            else:
                number = self.recording.keep(request)
            self.open[number] = time.monotonic()
            return number

    def moved(self, number: int) -> None:
        with self._lock:
            self.open[number] = time.monotonic()

    def end(self, number: int) -> None:
        with self._lock:
            self.open.pop(number, None)

    def refuse(self, what: str) -> None:
        """Count a request that is not passed on."""
        with self._lock:
            known = what in self.malformed or len(self.malformed) < _MOST_REASONS
            self.malformed[what if known else "something else wrong"] += 1

    def called(self, host: str) -> str:
        """Return the host as which a request is recorded, whose client called ``host``."""
        host = _THIS_MACHINE.sub("localhost", host)
        with self._lock:
            if len(self.hosts) < _MOST_HOSTS:
                self.hosts[host] = None
            return next(iter(self.hosts))

    def served_name(self, body: bytes) -> bytes:
        """Put the served model's name in place of the client's in ``body``; else it stays
        byte for byte."""
        begin, name, end = self.name_in(body)
        return body[:begin] + name + body[end:]

    def name_in(self, body: bytes) -> tuple[int, bytes, int]:
        """Return where the client's name of the model begins, what takes its place, and
        where it ends."""
        span = _name_in_form(body) or _name_in_json(body)
        if span is None:
            return 0, b"", 0
        begin, end = span
        return begin, json.dumps(self.model)[1:-1].encode(), end


# ------------------------------------------------------------------ the model's name

_TOKEN: Final = re.compile(
    rb'"model"\s*+:\s*+"(?P<name>(?:[^"\\]|\\.)*+)"'
    # A string that lacks its end goes to the end of the text, and is not looked through
    # again.
    rb'|"(?:[^"\\]|\\.)*+\\?(?:"|\Z)'
    rb"|(?P<opens>[{\[]+)|(?P<closes>[}\]]+)",
    re.DOTALL,
)
_MOST_TOKENS: Final = 1_000_000
"""Strings and brackets of a body before the model's name; no client's has as many."""
_MOST_PARTS, _MOST_PART_HEAD = 1000, 8192
_FORM_NAME: Final = re.compile(rb'(?im)^content-disposition:[^\r\n]*?\bname="model"')


def _name_in_json(body: bytes) -> tuple[int, int] | None:
    """Return where the outermost object's ``model`` stands, also in what is nearly
    JSON."""
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(body)):
        if token["opens"] is not None:
            depth += len(token["opens"])
        elif token["closes"] is not None:
            depth -= len(token["closes"])
        elif token["name"] is not None and depth == 1:
            return token.span("name")
        if count > _MOST_TOKENS:
            return None
    return None


def _name_in_form(body: bytes) -> tuple[int, int] | None:
    """Return where the value of the field ``model`` of a multipart form stands."""
    if not body.startswith(b"--"):
        return None
    boundary = body[: max(0, body.find(b"\r\n", 0, 300))]
    if len(boundary) < 3:
        return None
    at = 0
    for _ in range(_MOST_PARTS):
        at = body.find(boundary, at)
        if at < 0:
            return None
        head_end = body.find(b"\r\n\r\n", at, at + _MOST_PART_HEAD)
        if head_end >= 0 and _FORM_NAME.search(body, at, head_end):
            begin = head_end + len(b"\r\n\r\n")
            end = body.find(b"\r\n", begin)
            return begin, len(body) if end < 0 else end
        at += len(boundary)
    return None


# ------------------------------------------------------------------ connections


class _Bounded(socketserver.ThreadingMixIn):
    """A server whose connections are bounded in number, and in the time that each may
    take to send a request."""

    proxy: RecordingProxy
    daemon_threads, block_on_close = True, False
    request_queue_size = 128

    def __init__(self, *given: Any, **more: Any) -> None:
        self.due: dict[socket.socket, float] = {}
        """Connections: the time by which a request is there. Others: no connection
        waits."""
        self.late: set[socket.socket] = set()
        """Connections that were closed for it."""
        self._connections: set[socket.socket] = set()
        super().__init__(*given, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self.proxy.crowded += 1
            self.shutdown_request(request)  # type: ignore[attr-defined]
            return
        self._connections.add(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread
            self._connections.discard(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.due.pop(request, None)
            self.late.discard(request)
            self._connections.discard(request)

    def service_actions(self) -> None:
        """Asked by ``serve_forever`` every ``LOOK_S``: close connections that are too
        slow."""
        now = time.monotonic()
        for connection, due in list(self.due.items()):
            if now > due and self.due.pop(connection, None) is not None:
                self.proxy.slow += 1
                self.late.add(connection)
                with contextlib.suppress(OSError):  # what its thread waits for ends
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A request that nothing else refused: no traceback reaches a user."""
        self.proxy.refuse("something that mmrepro does not pass on")


class _TcpServer(_Bounded, socketserver.TCPServer):
    allow_reuse_address = True


class _UnixServer(_Bounded, socketserver.UnixStreamServer):
    pass


_UNREADABLE_HEADS: Final = {
    400: "a request line that is none",
    414: "an address that is too long",
    431: "header lines that are too many or too long",
    505: "another version of HTTP",
}


class _ProxyHandler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: _TcpServer | _UnixServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Asked by the base class, for heads that it cannot read. Its message has the
        client's own text in it, and is not used."""
        self._refuse(code, _UNREADABLE_HEADS.get(code, "a head that cannot be read"))

    def _refuse(self, status: int, what: str) -> None:
        """Answer a request that is not passed on, and end its connection."""
        self.close_connection = self._refused = True
        self.request_version = self.protocol_version  # an older one has no status line
        if self.connection not in self.server.late:  # such a one is told otherwise
            self.server.proxy.refuse(what)
        text = f"mmrepro does not pass this request on: {what}\n".encode()
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text)

    def setup(self) -> None:
        super().setup()
        self._refused = False
        self._stream = BoundedHead(self.rfile)
        self.rfile = self._stream  # type: ignore[assignment]

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()
            if self._refused:
                self._take_the_rest()

    def _take_the_rest(self) -> None:
        """Read what a refused client still sends: the kernel discards our answer with
        the unread. Raises OSError."""
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(LINGERS_S)
        end = time.monotonic() + LINGERS_S
        left = MAX_BODY
        while left > 0 and time.monotonic() < end:
            taken = len(self.connection.recv(PIECE))
            if not taken:
                return
            left -= taken

    def handle_one_request(self) -> None:
        self._stream.begin()
        with self._by_when():
            self.command, self.request_version, self.requestline = "", "HTTP/1.1", ""
            self.raw_requestline = self._request_line()
            if not self.raw_requestline:
                self.close_connection = True
                return
            if not self.parse_request():  # it is answered
                return
            try:
                request = self._request()
            except MalformedRequest as error:
                self._refuse(error.status, error.why)
                return
            except http.client.LineTooLong:
                self._refuse(431, "a trailer that is too long")
                return
        if request is not None:
            self._pass(request)

    def _request_line(self) -> bytes:
        """Read the first line; b"": it is too long, and that is answered, or there is
        none."""
        try:
            return self._stream.readline()
        except http.client.LineTooLong:
            self._refuse(414, "an address that is too long")
            return b""

    @contextlib.contextmanager
    def _by_when(self) -> Iterator[None]:
        """End what is done within where it takes too long."""
        self.server.due[self.connection] = time.monotonic() + RECEIVES_S
        try:
            yield
        finally:
            self.server.due.pop(self.connection, None)

    def _request(self) -> KeptRequest | None:
        """The request, whole; None: it is refused, and that is answered. Raises
        MalformedRequest, LineTooLong."""
        proxy = self.server.proxy
        upgrade = " ".join(self.headers.get_all("Upgrade") or []).lower()
        if "websocket" in upgrade:
            if "websocket" not in proxy.refused:
                proxy.refused.append("websocket")
            raise MalformedRequest(501, "a websocket")
        check_head(self.command, self.path, self.headers)
        body = KeptBytes(proxy.recording.spool)
        try:
            for piece in body_of(self._stream, self.headers):
                body.add(piece)
            body.close()
            return proxy.recording.begin(
                self.command, self._url(), list(self.headers.items()), body
            )
        except RecordingFull as error:
            most = units.size(proxy.recording.spool.most)
            why = f"more than a recording holds ({most}, or what is free on the disk)"
            raise MalformedRequest(413, why) from error

    def _pass(self, request: KeptRequest) -> None:
        proxy = self.server.proxy
        again = self.headers.get(_RETRY, "0") not in ("", "0")
        try:
            number = proxy.begin(request, again=again)
        except RecordingFull:
            self._refuse(429, f"more than {MAX_REQUESTS} requests of a recording")
            return
        began = time.monotonic()
        try:
            self._answer(number, request)
        finally:
            request.took_ms = (time.monotonic() - began) * 1000
            proxy.end(number)

    def _url(self) -> str:
        """Return the address that the client called, as it is recorded."""
        # A client that takes us for a proxy sends the whole address in its first line.
        parts = urlsplit(self.path)
        host = parts.netloc.rpartition("@")[2]
        if not host:
            host = self.headers.get("Host") or "localhost"
        path = self.path
        if not path.startswith("/"):
            path = urlunsplit(("", "", parts.path, parts.query, ""))
        return f"http://{self.server.proxy.called(host)}{path}"

    # -------------------------------------------------------------- the server's answer

    def _answer(self, number: int, request: KeptRequest) -> None:
        onward = http.client.HTTPConnection("127.0.0.1", self.server.proxy.port)
        try:
            self._send_on(onward, request.body)
            if not self._waited(onward):
                request.error = CLIENT_LEFT
                self.close_connection = True
                return
            answer = onward.getresponse()
            self._relay(number, request, answer)
        except (OSError, ValueError, http.client.HTTPException):
            # ValueError: what a server sends as a number, and is none.
            request.error = SERVER_CLOSED
            self.close_connection = True  # as the server did
        finally:
            onward.close()

    def _send_on(self, onward: http.client.HTTPConnection, body: KeptBytes) -> None:
        """Send the request with the served model's name. Raises OSError,
        HTTPException."""
        path = self.path
        if not path.startswith("/"):
            path = "/" + path.split("/", 3)[-1]
        begin, name, end = self._name_in(body)
        length = body.length - (end - begin) + len(name)
        onward.putrequest(self.command, path, skip_accept_encoding=True)
        for header, value in self.headers.items():
            if header.lower() not in _HOP:
                onward.putheader(header, value)
        if length or self.command in ("POST", "PUT", "PATCH"):
            onward.putheader("Content-Length", str(length))
        onward.endheaders()
        for piece in body.between(0, begin):
            onward.send(piece)
        if name:
            onward.send(name)
        for piece in body.between(end, body.length):
            onward.send(piece)

    def _name_in(self, body: KeptBytes) -> tuple[int, bytes, int]:
        proxy = self.server.proxy
        alone = body.length > _SEARCHED_ALONE
        with proxy.searched_alone if alone else contextlib.nullcontext():
            return proxy.name_in(body.whole())

    def _waited(self, onward: http.client.HTTPConnection) -> bool:
        """Wait for the server's answer; return False if the client has gone before."""
        client = self.connection
        both = select.poll()  # select() takes no file descriptor above 1023
        both.register(onward.sock, select.POLLIN)
        both.register(client, select.POLLIN)
        while True:
            ready = {handle for handle, _ in both.poll()}
            if onward.sock.fileno() in ready:
                return True
            try:
                if not client.recv(1, socket.MSG_PEEK):
                    return False
            except OSError:
                return False
            # It already sends its next request, which makes every poll return at once.
            time.sleep(LOOK_S)

    def _relay(
        self, number: int, request: KeptRequest, answer: http.client.HTTPResponse
    ) -> None:
        """Send the answer on, piece by piece, and record its beginning."""
        request.status = answer.status
        request.content_type = (answer.getheader("Content-Type") or "")[:1000]
        request.answered = True
        chunked = answer.length is None
        left = False
        closed = ""
        keeps = True
        try:
            self._send_head(answer)
        except (OSError, ValueError):
            left = True
        while not left:
            try:
                piece = answer.read1(PIECE)
            except (OSError, ValueError, http.client.HTTPException):
                closed = SERVER_CLOSED
                break
            if not piece:
                # A length that is left: the server ended before it.
                closed = SERVER_CLOSED if answer.length else ""
                break
            self.server.proxy.moved(number)
            keeps = keeps and self._keep(request.answer, piece)
            sent = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
            left = not self._sent(sent)

        complete = not left and not closed
        if complete and chunked and self.command != "HEAD":
            self._sent(b"0\r\n\r\n")
        with contextlib.suppress(RecordingFull):
            request.answer.close()
        self.close_connection = self.close_connection or not complete
        request.error = CLIENT_LEFT if left else closed

    def _keep(self, kept: KeptBytes, piece: bytes) -> bool:
        """Record a piece of an answer; False: it has reached its bound, or the
        recording has."""
        try:
            if kept.length >= _MAX_ANSWER:
                raise RecordingFull
            kept.add(piece)
        except RecordingFull:
            self.server.proxy.cut += 1
            return False
        return True

    def _sent(self, data: bytes) -> bool:
        """Whether the client takes it."""
        try:
            with self._by_when():
                self.wfile.write(data)
        except OSError:
            return False
        return True

    def _send_head(self, answer: http.client.HTTPResponse) -> None:
        """Raises OSError, ValueError."""
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        name, value = _framing(answer.length)
        self.send_header(name, value)
        self.end_headers()


def _framing(length: int | None) -> tuple[str, str]:
    if length is None:
        return "Transfer-Encoding", "chunked"
    return "Content-Length", str(length)
