"""Runs a client that nobody vouches for in a container without a network, where it
reaches one server and nothing else.

Every port that the client may call leads through a Unix socket to mmrepro's recording.
What else the client may do is the container's to bound. Standard library only: an image
brings its own Python."""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import socket
import subprocess
import sys
import threading

_FILE_BYTES = 256 << 20


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True, help="of the recording proxy")
    parser.add_argument("--port", type=int, action="append", default=[])
    parser.add_argument("--memory", type=int, default=0, help="bytes of address space")
    parser.add_argument("--cpu", type=int, default=0, help="seconds")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    for port in dict.fromkeys(asked.port):
        with contextlib.suppress(OSError):
            listen(port, asked.socket)
    command = asked.command[asked.command[:1] == ["--"] :]
    try:
        child = subprocess.Popen(
            command,
            preexec_fn=lambda: limit(asked.memory, asked.cpu),
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    return 128 - code if code < 0 else code


def limit(memory: int, cpu: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if cpu:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def listen(port: int, place: str) -> None:
    """Connections to ``port`` lead to the socket at ``place``. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(
            ("", port), family=family, dualstack_ipv6=both, backlog=128
        )
    except OSError:
        server = socket.create_server(("", port), backlog=128)
    threading.Thread(target=accept, args=(server, place), daemon=True).start()


def accept(server: socket.socket, place: str) -> None:
    while True:
        client, _ = server.accept()
        onward = socket.socket(socket.AF_UNIX)
        try:
            onward.connect(place)
        except OSError:
            client.close()
            continue
        for source, target in ((client, onward), (onward, client)):
            threading.Thread(target=copy, args=(source, target), daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RD)


if __name__ == "__main__":
    sys.exit(main())
