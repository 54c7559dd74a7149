"""What a box is held against as it starts: things outside that must be out of its
reach."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAMESPACES: Final = ("ipc", "mnt", "net", "pid", "uts")


@dataclass(frozen=True)
class Canaries:
    """As :func:`inside.tests` takes them.

    Attributes:
        folder: one in which mmrepro may write.
        file, home: a file that mmrepro may read; one in the user's home.
        socket, abstract: a Unix socket's path, and the name of one without a path; both
            listen.
        port: of a listener on this machine's loopback.
        namespaces: {name: inode} of mmrepro's own.
    """

    folder: str
    file: str
    home: str
    socket: str
    abstract: str
    port: int
    namespaces: dict[str, int]


@contextlib.contextmanager
def canaries_outside(folder: Path) -> Iterator[Canaries]:
    """Canaries in ``folder`` and in the home, while a box starts."""
    name = f"mmrepro-canary-{secrets.token_hex(8)}"
    file = folder / "canary"
    file.touch(0o644)
    home = _in_home(name) or file
    with contextlib.ExitStack() as held:
        if home != file:
            held.callback(home.unlink, missing_ok=True)
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
            socket=str(folder / "canary.sock"),
            abstract=name,
            port=by_port.getsockname()[1],
            namespaces={
                one: Path(f"/proc/self/ns/{one}").stat().st_ino for one in NAMESPACES
            },
        )


def _in_home(name: str) -> Path | None:
    """A file in the user's home; None: there is no home in which mmrepro may write."""
    try:
        file = Path.home() / f".{name}"
        file.touch(0o644)
    except (OSError, RuntimeError):
        return None
    return file
