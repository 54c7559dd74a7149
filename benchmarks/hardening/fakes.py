"""FAKE servers, each hostile in one way. No engine; standard library only, so that one
starts fast.

``python fakes.py KIND WHERE SEED`` prints its port and serves until it is ended. WHERE
is the route that is hostile (health, models, completion, metrics) or ``all``; the
others answer as an engine would. Its main thread sleeps, as that of many a server does.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

WHERE = ("all", "completion", "models", "metrics", "health")
COMPLETION = (
    b'{"choices": [{"message": {"content": "OK"}, "finish_reason": "stop"}], '
    b'"usage": {"completion_tokens": 1}}'
)
MODELS = b'{"data": [{"id": "tiny"}]}'
METRICS = (
    b"vllm:generation_tokens_total 7\nvllm:prompt_tokens_total 9\n"
    b"vllm:num_requests_running 1\n"
)
STRANGE = b"app_requests_total 7\n"
"""Metrics of no engine that is known."""
FOR_EVER = 3600.0


@dataclass(frozen=True)
class Asked:
    route: str
    raw: bytes
    right: bytes
    """The body that an engine would send."""
    rng: random.Random


Sends = Callable[[Asked], Iterator[bytes | float]]
"""Pieces, and pauses in seconds; at the end the connection is closed."""


@dataclass(frozen=True)
class Kind:
    """``sound``: a right answer, oddly sent. ``silent``: nothing that can be read comes
    in time."""

    sends: Sends
    sound: bool = False
    silent: bool = False


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def says(*pieces: bytes | float, **traits: bool) -> Kind:
    return Kind(lambda asked: iter(pieces), **traits)


def repeats(head: bytes, piece: bytes, pause_s: float = 0.0, **traits: bool) -> Kind:
    def sends(asked: Asked) -> Iterator[bytes | float]:
        yield head
        while True:
            yield piece
            yield pause_s

    return Kind(sends, **traits)


def made(body: Callable[[Asked], bytes], *headers: str, **traits: bool) -> Kind:
    return Kind(lambda asked: iter([answer(body(asked), "200 OK", *headers)]), **traits)


def dripped(asked: Asked) -> Iterator[bytes | float]:
    for byte in answer(asked.right):
        yield bytes([byte])
        yield 0.3


def random_bytes(asked: Asked) -> Iterator[bytes | float]:
    yield asked.rng.randbytes(asked.rng.randrange(1, 100_000))


def mutated(asked: Asked) -> Iterator[bytes | float]:
    """A right answer with a few bytes changed."""
    sent = bytearray(answer(asked.right))
    for _ in range(asked.rng.randrange(1, 12)):
        sent[asked.rng.randrange(len(sent))] = asked.rng.randrange(256)
    yield bytes(sent)


def chunks(*parts: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts)


def nested(opens: bytes, closes: bytes, depth: int) -> bytes:
    return b'{"data": ' + opens * depth + closes * depth + b"}"


@functools.cache
def listed(count: int) -> bytes:
    return json.dumps(
        {"data": [{"id": f"m{n}", "permission": [{}]} for n in range(count)]}
    ).encode()


def choice(**fields: object) -> bytes:
    return json.dumps({"choices": [fields]}).encode()


HTML = b"<!doctype html><title>Log in</title><form><input name=password></form>"
SSE = b'data: {"choices": [{"delta": {"content": "O"}}]}\n\n'
STATUSES = (
    100,
    101,
    199,
    201,
    204,
    206,
    226,
    300,
    301,
    302,
    303,
    304,
    307,
    308,
    399,
    400,
    401,
    402,
    403,
    404,
    405,
    406,
    407,
    408,
    409,
    410,
    411,
    413,
    415,
    418,
    421,
    422,
    423,
    425,
    426,
    428,
    429,
    431,
    451,
    499,
    500,
    501,
    502,
    503,
    504,
    505,
    507,
    508,
    511,
    520,
    529,
    599,
    600,
    999,
)

KINDS: dict[str, Kind] = {
    "well": made(lambda a: a.right, sound=True),
    "closes": says(),
    "resets": says(-1.0),
    "closes late": says(1.0),
    "silent": says(FOR_EVER, silent=True),
    "garbage": says(b"garbage\r\n\r\n"),
    "zeros": says(b"\0" * 70_000),
    "random bytes": Kind(random_bytes),
    "mutated": Kind(mutated, sound=True),
    "http/0.9": Kind(lambda a: iter([a.right])),
    "http/2 preface": says(b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64"),
    "tls alert": says(b"\x15\3\3\0\2\2\x46"),
    "tls hello": says(
        b"\x16\3\3\0\x7a\2\0\0\x76\3\3" + b"r" * 119, FOR_EVER, silent=True
    ),
    "ssh banner": says(b"SSH-2.0-OpenSSH_9.6\r\n", FOR_EVER, silent=True),
    "icy": Kind(lambda a: iter([b"ICY 200 OK\r\n\r\n" + a.right])),
    "bare lf": Kind(lambda a: iter([b"HTTP/1.1 200 OK\n\n" + a.right]), sound=True),
    "half a head": says(b"HTTP/1.1 200 O", FOR_EVER, silent=True),
    "head alone": says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", FOR_EVER),
    "half a body": says(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", FOR_EVER),
    "body cut off": says(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
    "negative length": says(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"),
    "two lengths": says(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"
    ),
    "huge length": says(
        b"HTTP/1.1 200 OK\r\nContent-Length: 9" + b"9" * 30 + b"\r\n\r\n{}"
    ),
    "more than said": Kind(lambda a: iter([answer(a.right) + a.right * 9]), sound=True),
    "slow drip": Kind(dripped),
    "head drip": repeats(b"HTTP/1.1 200 OK\r\nx: ", b"x", 0.2, silent=True),
    "endless header line": repeats(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 4096),
    "endless headers": repeats(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 500),
    "endless body": repeats(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
    "endless json": repeats(b"HTTP/1.1 200 OK\r\n\r\n[", b"1," * 30_000),
    "100 flood": repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, silent=True),
    "103 flood": repeats(
        b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 100, silent=True
    ),
    "103 first": Kind(
        lambda a: iter([b"HTTP/1.1 103 E\r\n\r\n", answer(a.right)]), sound=True
    ),
    "upgrade": says(
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 2.0
    ),
    "chunk lies": says(chunks(b"ffffff\r\n{}\r\n0\r\n\r\n")),
    "chunk of minus one": says(chunks(b"-1\r\n{}\r\n0\r\n\r\n")),
    "chunk size huge": says(chunks(b"f" * 40 + b"\r\n{}")),
    "chunk size endless": repeats(chunks(), b"0"),
    "chunks without end": repeats(chunks(), b"1\r\n{\r\n", 0.05),
    "chunks of one byte": Kind(
        lambda a: iter(
            [chunks(*(b"1\r\n" + bytes([b]) + b"\r\n" for b in a.right), b"0\r\n\r\n")]
        ),
        sound=True,
    ),
    "gzip": made(lambda a: gzip.compress(a.right), "Content-Encoding: gzip"),
    "gzip bomb": made(
        lambda a: gzip.compress(b"[" * (64 << 20)), "Content-Encoding: gzip"
    ),
    "gzip in name": made(lambda a: a.right, "Content-Encoding: gzip", sound=True),
    "br in name": made(lambda a: a.right, "Content-Encoding: br, br, br", sound=True),
    "wrong type": made(lambda a: a.right, "Content-Type: image/png", sound=True),
    "utf-16": made(lambda a: a.right.decode().encode("utf-16")),
    "latin-1": made(lambda a: b'{"data": [{"id": "\xe9"}]}'),
    "login page": made(lambda a: HTML, "Content-Type: text/html"),
    "proxy's 502 page": says(answer(HTML, "502 Bad Gateway", "Server: nginx")),
    "proxy's 503 page": says(answer(HTML, "503 Unavailable", "Retry-After: 1")),
    "redirect to itself": says(answer(b"", "302 Found", "Location: /v1/models")),
    "redirect to a file": says(answer(b"", "301 Moved", "Location: file:///dev/null")),
    "redirect elsewhere": says(
        answer(b"", "307 Moved", "Location: http://203.0.113.1/")
    ),
    "deep lists": made(lambda a: nested(b"[", b"]", 200_000)),
    "deep objects": made(lambda a: nested(b'{"a":', b"}", 100_000)),
    "deep and cut": made(lambda a: b'{"data":' * 30_000),
    "600 deep": made(lambda a: nested(b"[", b"]", 600)),
    "huge int": made(lambda a: b'{"data": [{"id": ' + b"9" * 200_000 + b"}]}"),
    "huge float": made(lambda a: b'{"data": [{"id": 1e99999}], "choices": 1e99999}'),
    "nan": made(lambda a: b'{"data": [{"id": NaN}], "choices": [NaN]}'),
    "surrogates": made(
        lambda a: b'{"data": [{"id": "\\ud800"}], "version": "\\udfff"}'
    ),
    "null": made(lambda a: b"null"),
    "empty": made(lambda a: b""),
    "a list": made(lambda a: b"[[[]]]"),
    "wrong types": made(lambda a: b'{"data": "x", "choices": {"0": 1}, "version": []}'),
    "no models": made(lambda a: b'{"data": []}'),
    "100 k models": made(lambda a: listed(100_000)),
    "a name of 1 MB": made(
        lambda a: b'{"data": [{"id": "' + b"m" * (1 << 20) + b'"}]}'
    ),
    "many keys": made(
        lambda a: json.dumps({f"k{n}": n for n in range(200_000)}).encode()
    ),
    "20 MB": made(lambda a: b'{"x": "' + b"x" * (20 << 20) + b'"}'),
    "half an event stream": says(
        b"HTTP/1.1 200 OK\r\n\r\n" + SSE + b"data: {", FOR_EVER
    ),
    "event stream": made(
        lambda a: SSE + b"data: [DONE]\n\n", "Content-Type: text/event-stream"
    ),
    "no choices": made(lambda a: b'{"choices": []}'),
    "ends in error": made(
        lambda a: choice(message={"content": ""}, finish_reason="error")
    ),
    "ends in abort": made(
        lambda a: choice(message={"content": ""}, finish_reason="abort")
    ),
    "content of lists": made(
        lambda a: choice(message={"content": [[]]}, finish_reason="stop")
    ),
    "nan's text": made(
        lambda a: choice(message={"content": "!" * 64}, finish_reason="stop")
    ),
    "long completion": made(
        lambda a: choice(message={"content": "x" * 900_000}, finish_reason="")
    ),
    "echo": made(lambda a: a.raw),
    "echo, 401": Kind(lambda a: iter([answer(a.raw, "401 Unauthorized")])),
    "echo, 500": Kind(lambda a: iter([answer(a.raw, "500 Oops")])),
    "echo as json": made(
        lambda a: json.dumps({"data": [{"id": a.raw.decode()}]}).encode()
    ),
    "echo in the reason": Kind(
        lambda a: iter([b"HTTP/1.1 500 " + a.raw.split(b"\r\n")[-3]])
    ),
    "echo as garbage": Kind(lambda a: iter([a.raw.replace(b"\r\n", b" ")])),
    "1,000 cookies": made(lambda a: a.right, *["Set-Cookie: a=b"] * 1000, sound=True),
    "metrics: text": made(lambda a: b"it works\n" * 1000),
    "metrics: 28 MB": made(lambda a: b'vllm:x_total{a="b"} 1\n' * 1_300_000),
    "metrics: many": made(
        lambda a: b"".join(b"vllm:x%d_total 1\n" % n for n in range(300_000))
    ),
    "metrics: nan": made(lambda a: a.right.replace(b" 7", b" NaN"), sound=True),
    "metrics: labels": made(lambda a: b"x{" + b'a="b",' * 5000 + b"} 1\n" + a.right),
    "metrics: a long line": made(lambda a: b"x" * (8 << 20)),
    "metrics: escapes": made(lambda a: b'x{a="\\\\\\"\\n"} 1\n\x1b[31m\xff 2\n' * 500),
} | {f"status {code}": says(answer(HTML, f"{code} Said")) for code in STATUSES}


def main() -> None:
    kind, where, seed = KINDS[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(
        target=accept, args=(listener, kind, where, seed), daemon=True
    ).start()
    parent = os.getppid()
    while os.getppid() == parent:  # else who started it was killed
        time.sleep(0.5)


def accept(listener: socket.socket, kind: Kind, where: str, seed: int) -> None:
    for number in range(1 << 30):
        client, _ = listener.accept()
        rng = random.Random(f"{seed} {number}")
        threading.Thread(
            target=serve, args=(client, kind, where, seed, rng), daemon=True
        ).start()


def serve(
    client: socket.socket, kind: Kind, where: str, seed: int, rng: random.Random
) -> None:
    try:
        with client:
            asked = read(client, seed, rng)
            sends = kind.sends if where in ("all", asked.route) else KINDS["well"].sends
            for piece in sends(asked):
                if isinstance(piece, bytes):
                    client.sendall(piece)
                elif piece >= 0:
                    time.sleep(piece)
                else:
                    linger = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    except OSError:
        pass  # its client has left


def read(client: socket.socket, seed: int, rng: random.Random) -> Asked:
    raw = b""
    while b"\r\n\r\n" not in raw and (more := client.recv(65536)):
        raw += more
    head, _, body = raw.partition(b"\r\n\r\n")
    length = next(
        (
            int(h[15:])
            for h in head.lower().split(b"\r\n")
            if h[:15] == b"content-length:"
        ),
        0,
    )
    while len(body) < length and (more := client.recv(65536)):
        body += more
    path = head.split(b" ", 2)[1] if head.count(b" ") > 1 else b""
    routes = {b"/health": "health", b"/v1/models": "models", b"/metrics": "metrics"}
    route = "completion" if raw.startswith(b"POST") else routes.get(path, "other")
    right = {
        "completion": COMPLETION,
        "models": MODELS,
        "metrics": STRANGE if seed % 3 == 0 else METRICS,
    }.get(route, b"{}")
    return Asked(route, head + b"\r\n\r\n" + body, right, rng)


if __name__ == "__main__":
    main()
