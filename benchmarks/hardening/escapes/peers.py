"""Ways out through the other side: mmrepro's socket, the server, the client."""

from __future__ import annotations

import os
import socket
import time

from hardening.escapes.attacker import (
    BOUNDS,
    FACTS,
    SECRET,
    attack,
    attempt,
    not_tried,
    say,
    show_content,
)


def door() -> socket.socket:
    """Connect to what mmrepro keeps open for the box: `HOST:PORT`, or the path of a
    socket."""
    place = FACTS["door"]
    if place.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(3)
        connection.connect(place)
        return connection
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=3)


def send(label: str, *parts: bytes) -> None:
    """Send a request in parts and print how it was answered."""
    try:
        with door() as connection:
            for part in parts:
                connection.sendall(part)
            answer = connection.recv(200)
    except OSError as error:
        say("REFUSED", f"{label}: {error}")
    else:
        say("DONE", f"{label}: {answer[:60]!r}")
        show_content(label, answer)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: box\r\n"


@attack(
    "door-malformed",
    "requests that are none: lengths, chunks, addresses, lines",
    BOUNDS,
    needs="door",
)
def malformed() -> None:
    send("length abc", HEAD + b"Content-Length: abc\r\n\r\n")
    send("length -1", HEAD + b"Content-Length: -1\r\n\r\n")
    send("two lengths", HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab")
    send("chunk zz", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    send("chunk -5", HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n")
    send("address", b"GET http://[::1/ HTTP/1.1\r\nHost: box\r\n\r\n")
    send("at sign", b"GET http://localhost:1@127.0.0.1/ HTTP/1.1\r\nHost: box\r\n\r\n")
    send("no line", b"\0" * 4096)
    send(
        "smuggled",
        HEAD
        + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET / ",
    )


@attack(
    "door-path",
    "paths that leave the server's: .., full addresses, CONNECT",
    SECRET,
    needs="door",
)
def paths() -> None:
    secret = FACTS["secret_files"][0].encode()
    outside = b"127.0.0.1:%d" % FACTS["tcp4"]
    send("dotdot", b"GET /../../../.." + secret + b" HTTP/1.1\r\nHost: box\r\n\r\n")
    send("file", b"GET file://" + secret + b" HTTP/1.1\r\nHost: box\r\n\r\n")
    send(
        "full",
        b"GET http://" + outside + b"/ HTTP/1.1\r\nHost: " + outside + b"\r\n\r\n",
    )
    send(
        "connect",
        b"CONNECT " + outside + b" HTTP/1.1\r\nHost: " + outside + b"\r\n\r\n",
    )


@attack("door-bodies", "bodies of 60 MB, one after the other", BOUNDS, needs="door")
def bodies() -> None:
    size = 60_000_000
    for number in range(max(1, FACTS["bomb_memory"] // size)):
        head = HEAD + b"Content-Length: %d\r\n\r\n" % size
        send(f"body {number}", head, *[b"x" * 1_000_000] * (size // 1_000_000))


@attack("door-chunk", "one chunk that is larger than every bound", BOUNDS, needs="door")
def chunk() -> None:
    size = FACTS["bomb_memory"]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size
    send("chunk", head, *[b"x" * 1_000_000] * (size // 1_000_000))


@attack("door-headers", "headers without end", BOUNDS, needs="door")
def headers() -> None:
    line = b"X-Long: " + b"x" * 60_000 + b"\r\n"
    send("headers", HEAD, *[line] * (FACTS["bomb_memory"] * 3 // 4 // len(line)))


@attack("door-idle", "400 connections that say nothing", BOUNDS, needs="door")
def idle() -> None:
    connections = []
    for _count in range(400):
        connection = attempt("connect", door)
        if connection is None:
            break
        connections.append(connection)
    say("DONE", f"{len(connections)} connections")
    time.sleep(2)


@attack(
    "server-answers",
    "a server whose answers never end: headers, a chunk, a stream",
    BOUNDS,
    needs="serve",
)
def answers() -> None:
    listener = socket.create_server(("127.0.0.1", int(FACTS["serve"])))
    listener.settimeout(5)
    say("DONE", "listening")
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    size = FACTS["bomb_memory"]
    endings = [
        (b"HTTP/1.1 200 OK\r\n", b"X-Long: " + b"x" * 60_000 + b"\r\n"),
        (start + b"%x\r\n" % size, b"x" * 1_000_000),
        (start + b"zz\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n", b""),
    ]
    while True:
        try:
            connection, _address = listener.accept()
        except OSError:
            return
        first, more = endings[0]
        endings.append(endings.pop(0))
        attempt("answer", answer, connection, first, more, size)


def answer(connection: socket.socket, first: bytes, more: bytes, size: int) -> None:
    with connection:
        connection.settimeout(5)
        connection.recv(65536)
        connection.sendall(first)
        sent = 0
        while more and sent < size:
            connection.sendall(more)
            sent += len(more)


@attack(
    "peer-secret",
    "the other side's variables and memory in the same box",
    SECRET,
    needs="peer",
)
def peer() -> None:
    # The client's own secret (a key in its script) read by the server, or the other way
    # round.
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            for part in ("environ", "cmdline"):
                path = f"/proc/{name}/{part}"
                content = attempt(path, read_file, path)
                if content and FACTS["peer_secret"].encode() in content:
                    say("SECRET", f"{path} {FACTS['peer_secret']}")
    if not FACTS["peer_secret"]:
        not_tried("no peer")


def read_file(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()
