"""What a client may send to the recording proxy, and what becomes of more."""

import http.client
import io
import json
import resource
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mmrepro.traffic.capture import proxy as proxies, received
from mmrepro.traffic.capture.proxy import RecordingProxy

MIB = 1 << 20


class Counting(BaseHTTPRequestHandler):
    """Tells how long a body was, and how it begins."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left, head = int(self.headers["Content-Length"]), b""
        length = left
        while left:
            piece = self.rfile.read1(min(left, 1 << 16))
            head = (head + piece)[:100]
            left -= len(piece)
        data = json.dumps({"length": length, "head": head.decode("latin-1")}).encode()
        if self.path == "/long":
            data = b"x" * (3 * MIB)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "LOOK_S", 0.02)
    monkeypatch.setattr(proxies, "LINGERS_S", 0.3)


@pytest.fixture
def proxied(server: int, quick: None) -> Iterator[tuple[RecordingProxy, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with RecordingProxy(server, "tiny") as proxy:
        proxy.listen(port)
        yield proxy, port


def said(port: int, data: bytes) -> bytes:
    """All that comes back for what is sent as it is."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(data)
        got = b""
        while piece := client.recv(1 << 16):
            got += piece
        return got


def post(port: int, body: Any, path: str = "/x", **headers: str) -> tuple[int, bytes]:
    one = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    one.request("POST", path, body, headers, encode_chunked=not isinstance(body, bytes))
    answer = one.getresponse()
    return answer.status, answer.read()


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"
MALFORMED = {
    "length-word": (HEAD + b"Content-Length: abc\r\n\r\n", 400),
    "length-negative": (HEAD + b"Content-Length: -5\r\n\r\n", 400),
    "length-plus": (HEAD + b"Content-Length: +5\r\n\r\nabcde", 400),
    "length-empty": (HEAD + b"Content-Length: \r\n\r\n", 400),
    "length-digits-of-others": (HEAD + "Content-Length: ٣\r\n\r\nabc".encode(), 400),
    "length-of-4000-digits": (
        HEAD + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n",
        400,
    ),
    "length-twice": (
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        400,
    ),
    "length-list": (HEAD + b"Content-Length: 5, 6\r\n\r\nabcdef", 400),
    "length-beyond": (HEAD + b"Content-Length: 1600000000\r\n\r\n", 413),
    "coding": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "coding-like": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "chunk-word": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "chunk-negative": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n",
        400,
    ),
    "chunk-empty": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n", 400),
    "chunk-beyond": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n60000000\r\nabc", 413),
    "chunk-long-line": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 70_000,
        400,
    ),
    "chunk-too-long": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n",
        400,
    ),
    "trailer": (
        HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
        + b"a: b\r\n" * 20_000
        + b"\r\n",
        431,
    ),
    "address": (b"GET http://[::1/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "address-bytes": (b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "address-control": (b"GET /\x00\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "address-1-MB": (b"GET /" + b"a" * MIB + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "address-of-another": (b"GET http://a b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "method": (b"G\x01T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "connect": (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "version": (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
    "version-word": (b"GET / FTP/x\r\nHost: a\r\n\r\n", 400),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "websocket": (HEAD + b"Upgrade: WebSocket\r\nConnection: upgrade\r\n\r\n", 501),
    "words": (b"one two three four five\r\n\r\n", 400),
    "header-control": (HEAD + b"A: \x00\x01\r\n\r\n", 400),
    "header-name": (HEAD + b"A B: c\r\n\r\n", 400),
    "header-without-colon": (HEAD + b"nothing\r\nA: b\r\n\r\n", 400),
    "header-folded": (HEAD + b"A: b\r\n c\r\n\r\n", 400),
    "header-1-MB": (HEAD + b"A: " + b"b" * MIB + b"\r\n\r\n", 431),
    "headers-many": (HEAD + b"A: b\r\n" * 5000 + b"\r\n", 431),
    "headers-long": (HEAD + (b"A: " + b"b" * 2000 + b"\r\n") * 90 + b"\r\n", 431),
    "host": (b"GET / HTTP/1.1\r\nHost: a b\x7f\r\n\r\n", 400),
    "hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
}


@pytest.mark.parametrize(("data", "status"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused_and_told_and_the_proxy_goes_on(
    proxied: tuple[RecordingProxy, int], data: bytes, status: int, capfd: Any
) -> None:
    proxy, port = proxied
    got = said(port, data)
    assert got.split(b" ", 2)[1] == b"%d" % status, got[:100]
    until(lambda: proxy.malformed)
    assert sum(proxy.malformed.values()) == 1
    assert any("refused" in note for note in proxy.notes)
    assert all(note.isprintable() and len(note) < 300 for note in proxy.notes)
    assert post(port, b"{}")[0] == 200
    assert len(proxy.entries) == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("ending", [b"Content-Length: 50\r\n\r\nabc", b"Content-Le"])
def test_a_request_that_ends_early_is_told_and_not_passed_on(
    proxied: tuple[RecordingProxy, int], ending: bytes
) -> None:
    proxy, port = proxied
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(HEAD + ending)
    client.close()
    until(lambda: proxy.malformed)
    assert len(proxy.entries) == 0


def test_many_bodies_take_no_memory_and_are_written_byte_for_byte(
    proxied: tuple[RecordingProxy, int], tmp_path: Path
) -> None:
    proxy, port = proxied
    text = b'{"model": "a", "prompt": "' + "é\\n".encode() * (2 * MIB) + b'"}'
    other = bytes(range(256)) * (16 << 10)
    tracemalloc.start()
    for _ in range(5):
        status, answer = post(
            port, iter([text[at : at + MIB] for at in range(0, 9 * MIB, MIB)])
        )
        assert (status, json.loads(answer)["length"]) == (200, len(text) + 3)
        assert json.loads(answer)["head"].startswith('{"model": "tiny", "prompt"')
    post(port, other)
    held, _ = tracemalloc.get_traced_memory()
    proxy.write(tmp_path / "x.har")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4 * MIB
    assert peak < 40 * MIB
    written = json.loads((tmp_path / "x.har").read_bytes())["log"]["entries"]
    assert written == list(proxy.entries)
    assert written[0]["request"]["postData"]["text"].encode() == text
    assert written[-1]["request"]["postData"]["encoding"] == "base64"


def test_a_recording_is_bounded_in_all(
    server: int, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "MAX_RECORDING", 3 * MIB)
    with RecordingProxy(server, "tiny") as proxy:
        proxy.listen(0)
        port = proxy._servers[0].server_address[1]
        kinds = [post(port, b"x" * MIB)[0] for _ in range(4)]
        assert kinds == [200, 200, 413, 413]
        assert any("recording holds" in note for note in proxy.notes)
        # Passes whole, and is not recorded whole.
        status, answer = post(port, b"x", "/long")
        assert (status, len(answer)) == (200, 3 * MIB)
        assert proxy.recording.spool.held <= 3 * MIB
        assert any("only the beginning" in note for note in proxy.notes)


def test_a_full_disk_is_told_and_the_proxy_goes_on(
    proxied: tuple[RecordingProxy, int],
) -> None:
    proxy, port = proxied
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        assert post(port, b"x" * (2 * MIB))[0] == 413
        assert post(port, b"x")[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert any("free on the disk" in note for note in proxy.notes)


def test_requests_are_bounded_in_number(
    server: int, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "MAX_REQUESTS", 3)
    with RecordingProxy(server, "tiny") as proxy:
        proxy.listen(0)
        port = proxy._servers[0].server_address[1]
        assert [post(port, b"{}")[0] for _ in range(5)] == [200, 200, 200, 429, 429]
        assert len(proxy.entries) == 3
        assert any("more than 3 requests" in note for note in proxy.notes)


def test_silent_connections_are_bounded_in_number_and_in_time(
    proxied: tuple[RecordingProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, port = proxied
    monkeypatch.setattr(proxies, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(proxies, "RECEIVES_S", 0.5)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    for client in held:
        client.sendall(b"GET /")
    until(lambda: proxy.crowded == 20)
    until(lambda: proxy.slow == 20)
    assert not proxy.malformed
    assert len([note for note in proxy.notes if ": 20." in note]) == 2
    # Half a second may pass between this request's head and its body as well, where
    # the machine is busy: then it would be the one that is refused.
    until(lambda: not proxy.open)
    monkeypatch.setattr(proxies, "RECEIVES_S", 20)
    assert post(port, b"{}")[0] == 200
    for client in held:
        client.close()


def test_who_takes_no_answer_is_left(
    proxied: tuple[RecordingProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, port = proxied
    monkeypatch.setattr(proxies, "RECEIVES_S", 0.5)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(b"POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
    until(lambda: proxy.slow)
    until(lambda: not proxy.open)
    assert proxy.entries[0]["response"]["_error"] == proxies.CLIENT_LEFT
    client.close()


def test_hosts_are_bounded(proxied: tuple[RecordingProxy, int]) -> None:
    proxy, port = proxied
    for number in range(70):
        post(port, b"{}", Host=f"host-{number}.example")
    assert len(proxy.hosts) <= 50
    assert all(len(note) < 300 for note in proxy.notes)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": ' * 50_000,
        b'{"model": "x"' * 50_000,
        b'[{"model":"x"},' * 50_000,
        b'{"' + b'\\"' * 300_000,
        b'"model"' * 100_000,
        b'"model" ' + b" " * 600_000,
        b'"model":"' * 70_000,
        b"{}" * 300_000,
        b'--b\r\ncontent-disposition: form-data; name="model"' * 10_000,
        b"--b\r\n" + b'content-disposition: name="x"\r\n' * 20_000,
        b"--b\r\n" + b"content-disposition: " + b'name="model"' * 40_000,
    ],
)
def test_a_name_is_looked_for_in_linear_time(text: bytes) -> None:
    proxy = RecordingProxy(0, "tiny")
    began = time.process_time()
    proxy.served_name(text)
    assert time.process_time() - began < 3


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize(("size", "fits"), [(8, True), (9, False)])
def test_a_body_of_just_the_bound_passes(
    framing: str, size: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "MAX_BODY", 8)
    headers = http.client.HTTPMessage()
    sent = b"x" * size
    if framing == "length":
        headers["Content-Length"] = str(size)
    else:
        headers["Transfer-Encoding"] = "chunked"
        sent = b"3\r\nxxx\r\n%x\r\n%b\r\n0\r\n\r\n" % (size - 3, sent[3:])
    body = received.body_of(received.BoundedHead(io.BytesIO(sent)), headers)
    if fits:
        assert b"".join(body) == b"x" * size
    else:
        with pytest.raises(received.MalformedRequest, match="a body of more than"):
            list(body)
