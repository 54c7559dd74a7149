"""Where the scripts beside this one do their harm: a network, processes and memory of
their own."""

from __future__ import annotations

import fcntl
import shutil
import socket
import struct
import subprocess

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def apart(*more: str) -> list[str]:
    """What starts a program in a network of its own, and in what ``more`` of unshare(1)
    says; empty where the kernel refuses."""
    command = ["unshare", "--user", "--map-root-user", "--net", *more]
    if shutil.which(command[0]) is None:
        return []
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return [] if tried.returncode else command


def loopback_up() -> None:
    """In a new network: a closed port of 127.0.0.1 refuses, as it does elsewhere."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
