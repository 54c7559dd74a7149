"""A proxy in front of a server that records what a client sends, as a HAR.

Any method, path, header and body passes. Of a request only the model's name is replaced, by the one
that is served. A streamed answer reaches the client piece by piece.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from mmrepro.base.machine.files import write_file

MAX_BODY, MAX_ANSWER = 64 << 20, 8 << 20
PIECE = 1 << 16
LOOK_S, SETTLES_S = 0.2, 0.5
RETRY: Final = "x-stainless-retry-count"
"""Header with which the clients of OpenAI and Anthropic number what they send again."""
_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "expect", "content-length", "host", "accept-encoding"),
        "proxy-connection",
    }
)
CLIENT_LEFT: Final = "the client disconnected"
SERVER_CLOSED: Final = "the server closed the connection"
NO_ANSWER: Final = "there was no answer until the end"


class RecordingProxy:
    """Passes requests on to a server on this machine; a context manager.

    Attributes:
        entries: of the HAR, in the order in which requests came.
        retried: requests that a client's library sent again by itself; they are not recorded.
        refused: protocols that it does not pass on, each once.
        hosts: that clients called; they are recorded as one.
    """

    def __init__(self, port: int, model: str) -> None:
        """``port``: of the server. ``model``: the name that it serves."""
        self.port, self.model = port, model
        self.entries: list[dict[str, Any]] = []
        self.retried = 0
        self.refused: list[str] = []
        self.hosts: dict[str, None] = {}
        self.open: dict[int, float] = {}
        """Number of a request without a complete answer: when something last came of it."""
        self._lock = threading.Lock()
        self._servers: list[socketserver.BaseServer] = []

    def listen(self, place: Path | int) -> None:
        """Accept clients at a Unix socket, or at a port of 127.0.0.1. Raises OSError."""
        made: _TcpServer | _UnixServer
        if isinstance(place, Path):
            made = _UnixServer(str(place), _Handler)
        else:
            made = _TcpServer(("127.0.0.1", place), _Handler)
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
        said = [f"The client tried a {what}: that is left out." for what in self.refused]
        if self.retried:
            said.append(f"{self.retried} requests that the client's library repeats are left out.")
        if len(self.hosts) > 1:
            said.append(f"The client calls {', '.join(self.hosts)}: one server answers for all.")
        return said

    def write(self, file: Path) -> None:
        """Write what was recorded. Raises OSError."""
        end = time.monotonic() + SETTLES_S  # the last answer is out, and its entry is not whole
        while self.open and time.monotonic() < end:
            time.sleep(LOOK_S / 10)
        with self._lock:
            entries = [{**one, "time": round(one["time"], 3)} for one in self.entries]
        log = {"version": "1.2", "creator": {"name": "mmrepro"}, "entries": entries}
        write_file(file, json.dumps({"log": log}))

    # ------------------------------------------------------------------ asked by the handlers

    def begin(self, entry: dict[str, Any]) -> int:
        """Record a request; returns its number."""
        with self._lock:
            self.entries.append(entry)
            number = len(self.entries)
            self.open[number] = time.monotonic()
            return number

    def moved(self, number: int) -> None:
        with self._lock:
            self.open[number] = time.monotonic()

    def end(self, number: int) -> None:
        with self._lock:
            self.open.pop(number, None)

    def served_name(self, body: bytes) -> bytes:
        """``body`` with the served model's name in place of the client's; else byte for byte."""
        name = json.dumps(self.model)[1:-1].encode()
        if (form := _FORM.search(body)) is not None:
            return body[: form.start(1)] + name + body[form.end(1) :]
        for found in _MODEL.finditer(body):
            if _depth(body[: found.start()]) == 1:
                return body[: found.start(1)] + name + body[found.end(1) :]
        return body


_MODEL: Final = re.compile(rb'"model"\s*:\s*"((?:[^"\\]|\\.)*)"')
_FORM: Final = re.compile(
    rb'^--[^\r\n]+\r\n(?:.*\r\n)*?content-disposition:[^\r\n]*\bname="model"[^\r\n]*\r\n'
    rb"(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)",
    re.IGNORECASE,
)
_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')


def _depth(text: bytes) -> int:
    """How many objects and lists are open at the end of ``text``."""
    bare = _TEXT.sub(b"", text)
    opened = bare.count(b"{") + bare.count(b"[")
    return opened - bare.count(b"}") - bare.count(b"]")


def entry_of(
    method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes
) -> dict[str, Any]:
    """An entry of a HAR, of a request that has no answer yet."""
    headers = list(headers)
    request: dict[str, Any] = {
        "method": method,
        "url": url,
        "headers": [{"name": name, "value": value} for name, value in headers],
    }
    if body:
        kind = next((value for name, value in headers if name.lower() == "content-type"), "")
        request["postData"] = {"mimeType": kind, **_text(body)}
    return {
        "startedDateTime": datetime.now(UTC).isoformat(),
        "time": 0.0,
        "request": request,
        "response": {"status": 0, "content": {"text": ""}, "_error": NO_ANSWER},
    }


def _text(body: bytes) -> dict[str, str]:
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"text": base64.b64encode(body).decode(), "encoding": "base64"}


class _TcpServer(socketserver.ThreadingTCPServer):
    proxy: RecordingProxy
    daemon_threads, allow_reuse_address, block_on_close = True, True, False
    request_queue_size = 128


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    proxy: RecordingProxy
    daemon_threads, block_on_close = True, False
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # of any method
            return self._pass
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def _pass(self) -> None:
        assert isinstance(self.server, (_TcpServer, _UnixServer))
        proxy = self.server.proxy
        if "websocket" in self.headers.get("Upgrade", "").lower():
            if "websocket" not in proxy.refused:
                proxy.refused.append("websocket")
            self.send_error(501, "mmrepro records no websockets")
            return
        body = self._body()
        if body is None:
            self.send_error(413, f"mmrepro records no body of more than {MAX_BODY} bytes")
            return
        entry = entry_of(self.command, self._url(), self.headers.items(), body)
        again = self.headers.get(RETRY, "0") not in ("", "0")
        proxy.retried += again
        number = -proxy.retried if again else proxy.begin(entry)
        began = time.monotonic()
        try:
            self._answer(proxy, number, entry, body)
        finally:
            entry["time"] = (time.monotonic() - began) * 1000
            proxy.end(number)

    def _url(self) -> str:
        assert isinstance(self.server, (_TcpServer, _UnixServer))
        parts = urlsplit(self.path)
        host = parts.netloc or self.headers.get("Host") or "localhost"
        host = re.sub(r"^(?:127\.0\.0\.1|0\.0\.0\.0|\[::1?\])(?=:|$)", "localhost", host)
        self.server.proxy.hosts[host] = None
        path = self.path if self.path.startswith("/") else urlunsplit(("", "", *parts[2:4], ""))
        return f"http://{next(iter(self.server.proxy.hosts))}{path}"

    def _body(self) -> bytes | None:
        """None: it is too long."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts, total = [], 0
            while length := int(self.rfile.readline().partition(b";")[0].strip() or b"0", 16):
                parts.append(self.rfile.read(length))
                self.rfile.readline()
                total += length
                if total > MAX_BODY:
                    return None
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        length = int(self.headers.get("Content-Length") or 0)
        return None if length > MAX_BODY else self.rfile.read(length)

    def _answer(
        self, proxy: RecordingProxy, number: int, entry: dict[str, Any], body: bytes
    ) -> None:
        response = entry["response"]
        onward = http.client.HTTPConnection("127.0.0.1", proxy.port)
        try:
            path = self.path if self.path.startswith("/") else "/" + self.path.split("/", 3)[-1]
            onward.putrequest(self.command, path, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    onward.putheader(name, value)
            sent = proxy.served_name(body)
            if sent or self.command in ("POST", "PUT", "PATCH"):
                onward.putheader("Content-Length", str(len(sent)))
            onward.endheaders(sent or None)
            if not self._waited(onward):
                response["_error"] = CLIENT_LEFT
                self.close_connection = True
                return
            answer = onward.getresponse()
        except (OSError, http.client.HTTPException):
            response["_error"] = SERVER_CLOSED
            self.close_connection = True  # as the server did
            return
        try:
            self._relay(proxy, number, response, answer)
        finally:
            onward.close()

    def _waited(self, onward: http.client.HTTPConnection) -> bool:
        """Whether the server answers; False: the client has gone before."""
        client = self.connection
        while True:
            ready, _, _ = select.select([onward.sock, client], [], [])
            if onward.sock in ready:
                return True
            if not client.recv(1, socket.MSG_PEEK):
                return False
            time.sleep(LOOK_S)  # it already sends its next request

    def _relay(
        self,
        proxy: RecordingProxy,
        number: int,
        response: dict[str, Any],
        answer: http.client.HTTPResponse,
    ) -> None:
        kept, total, left, closed = [], 0, False, ""
        response["status"] = answer.status
        known = answer.length is not None
        try:
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header(*_framing(answer.length))
            self.end_headers()
        except OSError:
            left = True
        while not left:
            try:
                piece = answer.read1(PIECE)
            except (OSError, http.client.HTTPException):
                closed = SERVER_CLOSED
                break
            if not piece:
                closed = SERVER_CLOSED if answer.length else ""
                break
            proxy.moved(number)
            if total < MAX_ANSWER:
                kept.append(piece)
            total += len(piece)
            try:
                self.wfile.write(piece if known else b"%x\r\n%s\r\n" % (len(piece), piece))
            except OSError:
                left = True
        if not (left or closed or known) and self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.close_connection or left or bool(closed)
        response["_error"] = CLIENT_LEFT if left else closed
        kind = answer.getheader("Content-Type") or ""
        response["content"] = {"mimeType": kind, **_text(b"".join(kept))}


def _framing(length: int | None) -> tuple[str, str]:
    if length is None:
        return "Transfer-Encoding", "chunked"
    return "Content-Length", str(length)
