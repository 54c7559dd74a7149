"""The other side of an attack on a peer: it holds a secret wherever a program keeps
one, and serves requests or sends some.

Usage:  python3 peer.py serve|ask SECRET MARKER SECONDS"""

from __future__ import annotations

import contextlib
import ctypes
import http.server
import os
import socket
import sys
import threading
import time
import urllib.request
from typing import Any

PORT = 8000
OWN_PORT = 9999
"""Where it answers with its secret: a port that nobody was given."""
IPC_CREAT = 0o1000
PLACES = ("/tmp", "/dev/shm", "/var/tmp", ".")


class Answers(http.server.BaseHTTPRequestHandler):
    """A server's answers, without its secret."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815 - as its base class calls it

    def log_message(self, format: str, *words: Any) -> None:
        """Print nothing: what it prints is no answer."""


def hold(secret: str, marker: str) -> None:
    """Keep the secret in files, in a segment of memory, and behind sockets."""
    for place in PLACES:
        with (
            contextlib.suppress(OSError),
            open(f"{place}/{marker}-own-peer", "w", encoding="ascii") as file,
        ):
            file.write(secret)
    os.environ["PEER_SECRET"] = secret
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(segment_key(marker), 4096, IPC_CREAT | 0o666)
    address = libc.shmat(segment, None, 0)
    if segment >= 0 and address not in (None, ctypes.c_void_p(-1).value):
        ctypes.memmove(address, secret.encode(), len(secret))
    by_name = socket.socket(socket.AF_UNIX)
    by_name.bind(f"\0{marker}-peer")
    by_name.listen()
    by_port = socket.create_server(("127.0.0.1", OWN_PORT))
    for listener in (by_name, by_port):
        threading.Thread(target=tell, args=(listener, secret), daemon=True).start()


def segment_key(marker: str) -> int:
    return int(marker.rpartition("-")[2][:7], 16) ^ 1


def tell(listener: socket.socket, secret: str) -> None:
    while True:
        connection, _address = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(secret.encode())


def ask(seconds: float) -> None:
    """Send a request each moment, and read all that is answered."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        address = f"http://127.0.0.1:{PORT}/v1/models"
        with contextlib.suppress(Exception):  # an answer that is none ends no client
            urllib.request.urlopen(address, timeout=3).read(1 << 20)
        time.sleep(0.1)


def main() -> None:
    mode, secret, marker, seconds = sys.argv[1:]
    hold(secret, marker)
    if mode == "ask":
        ask(float(seconds))
        return
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Answers)
    threading.Timer(float(seconds), server.shutdown).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
