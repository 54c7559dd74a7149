"""Runs a client that nobody vouches for, where it reaches one server and nothing else.

Its network has a loopback and nothing besides. Every port that the client may call leads through a
Unix socket to mmrepro's recording proxy. Files are read-only but for the client's own folder.
Started as ``unshare --user --map-root-user --net --mount … python client_box.py``, or in a
container without a network. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP_RUNNING = 0x8914, 0x8916, 0x41
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, RDONLY = 442, -100, 0x8000, 1
FILE_BYTES, FILES = 256 << 20, 4096


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True, help="of the recording proxy")
    parser.add_argument("--port", type=int, action="append", default=[])
    parser.add_argument("--address", action="append", default=[], help="given to the loopback")
    parser.add_argument("--hosts", default="", help="file that stands for /etc/hosts")
    parser.add_argument("--hide", action="append", default=[], help="folder shown empty")
    parser.add_argument("--writable", default="", help="the only folder that is")
    parser.add_argument("--memory", type=int, default=0, help="bytes of address space")
    parser.add_argument("--cpu", type=int, default=0, help="seconds")
    parser.add_argument("--told", type=int, default=-1, help="descriptor: what was had, as JSON")
    parser.add_argument("--own-network", action="store_true", help="it is one: set it up")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    had: dict[str, Any] = {"files": False, "why": "", "ports": []}
    if asked.own_network:
        loopback_up(asked.address)
        try:
            confine(asked.writable, asked.hosts, asked.hide)
            had["files"] = True
        except OSError as error:
            had["why"] = str(error)
    for port in dict.fromkeys(asked.port):
        with contextlib.suppress(OSError):
            listen(port, asked.socket)
            had["ports"].append(port)
    if asked.told >= 0:  # no file: what is open for writing cannot become read-only
        os.write(asked.told, json.dumps(had).encode())
        os.close(asked.told)
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


def loopback_up(addresses: list[str]) -> None:
    """The loopback with its own address, and ``addresses`` beside it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP_RUNNING))
        for number, address in enumerate(addresses, 1):
            family = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            with contextlib.suppress(OSError):
                fcntl.ioctl(one, SIOCSIFADDR, struct.pack("16s", f"lo:{number}".encode()) + family)


def confine(writable: str, hosts: str, hide: list[str]) -> None:
    """All files read-only but for ``writable``. Raises OSError."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    if hosts:
        mount(hosts, "/etc/hosts", "", MS_BIND)
    for folder in hide:
        mount("none", folder, "tmpfs", 0)
    own = ["/dev/shm"]  # noqa: S108
    if not any(place.startswith("/tmp/") for place in os.environ["PATH"].split(":")):  # noqa: S108
        own.append("/tmp")  # noqa: S108
    aside = os.open(Path(writable).parent, os.O_RDONLY | os.O_DIRECTORY)
    for folder in own:
        mount("none", folder, "tmpfs", 0)
    if not Path(writable).exists():  # below the new /tmp
        Path(writable).parent.mkdir(parents=True)
        mount(f"/proc/self/fd/{aside}", str(Path(writable).parent), "", MS_BIND)
    os.close(aside)
    mount(writable, writable, "", MS_BIND)
    attributes("/", set_=RDONLY, flags=AT_RECURSIVE)
    for folder in (writable, *own):
        attributes(folder, clear=RDONLY)
    os.chdir(Path.cwd())  # the folder that was entered before is below the old mount


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, None):
        raise OSError(ctypes.get_errno(), f"mount of {target}")


def attributes(target: str, set_: int = 0, clear: int = 0, flags: int = 0) -> None:
    """mount_setattr(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    asked = struct.pack("QQQQ", set_, clear, 0, 0)
    if libc.syscall(MOUNT_SETATTR, AT_FDCWD, target.encode(), flags, asked, len(asked)):
        raise OSError(ctypes.get_errno(), f"mount_setattr of {target}")


def limit(memory: int, cpu: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if cpu:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def listen(port: int, place: str) -> None:
    """Connections to ``port`` lead to the socket at ``place``. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=128)
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
