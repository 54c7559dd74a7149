"""What a box is held against as it starts: things outside that must be out of its
reach."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAMESPACES: Final = ("ipc", "mnt", "net", "pid", "uts")


@dataclass(frozen=True)
class Canaries:
    """As :func:`inside.tests` takes them.

    Attributes: folder: one in which mmrepro may write. file: one that mmrepro may read.
        home: the user's home, or ``folder``. home_identity: its device and inode.
        socket, abstract: a Unix socket's path, and the name of one without a path; both
        listen. port: of a listener on this machine's loopback. namespaces: {name:
        inode} of mmrepro's own.
    """

    folder: str
    file: str
    home: str
    home_identity: tuple[int, int]
    socket: str
    abstract: str
    port: int
    namespaces: dict[str, int]


@contextlib.contextmanager
def canaries_outside(folder: Path) -> Iterator[Canaries]:
    """Canaries in ``folder``, while a box starts.

    In the home nothing is made, since a file there would stay where mmrepro is killed.
    """
    name = f"mmrepro-canary-{secrets.token_hex(8)}"
    file = folder / "canary"
    file.touch(0o644)
    home = _own_home() or folder
    status = home.stat()
    with contextlib.ExitStack() as held:
        by_path = held.enter_context(socket.socket(socket.AF_UNIX))
        by_path.bind(str(folder / "canary.sock"))
        by_path.listen()
        by_name = held.enter_context(socket.socket(socket.AF_UNIX))
        by_name.bind(f"\0{name}")
        by_name.listen()
        by_port = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield Canaries(
            folder=str(folder),
            file=str(file),
            home=str(home),
            home_identity=(status.st_dev, status.st_ino),
            socket=str(folder / "canary.sock"),
            abstract=name,
            port=by_port.getsockname()[1],
            namespaces={
                one: Path(f"/proc/self/ns/{one}").stat().st_ino for one in _NAMESPACES
            },
        )


def _own_home() -> Path | None:
    """The user's home; None: there is none in which mmrepro may write, as of an account
    that a program of the system has."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home if home.is_dir() and os.access(home, os.W_OK) else None
