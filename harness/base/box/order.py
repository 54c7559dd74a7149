"""What a box is asked for: what may be seen in it, how much it may use, what runs in
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WORK: Final = Path("/box")
"""The folder in which everything in a box starts; it is empty, and gone with the
box."""
TEMPORARY: Final = Path("/tmp")  # noqa: S108 - the box's own
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What all processes of a box may use together, and each by itself.

    Attributes:
        memory: bytes of memory that all processes hold together, files in /tmp,
            /dev/shm and the work folder apart.
        address_space: bytes that one process may map; 0: no bound, since engines map
            far more than they use.
        processes: processes and threads.
        file: bytes of the largest file.
        files: open files of one process.
        inodes: files that /tmp, /dev/shm and the work folder may hold together.
        cpu_s: processor seconds of one process; 0: no bound.
        work, temporary, shared: bytes that the work folder, /tmp and /dev/shm may hold.
    """

    memory: int = 12 * GIB
    address_space: int = 0
    processes: int = 4096
    file: int = 2 * GIB
    files: int = 65536
    inodes: int = 200_000
    cpu_s: int = 0
    work: int = GIB
    temporary: int = 2 * GIB
    shared: int = 2 * GIB


@dataclass(frozen=True)
class Leads:
    """Ports of the box's own loopback that lead out of it, each to one Unix socket.

    Attributes:
        ports: on which processes of the box may connect.
        socket: of mmrepro, outside.
        preface: bytes sent first on each connection, as :class:`Door` expects them.
    """

    ports: tuple[int, ...]
    socket: Path
    preface: str = ""


@dataclass(frozen=True)
class BoxOrder:
    """A command, and the box that it runs in. What is not listed here is not there.

    Attributes:
        argv: the command; its first word is looked up in ``env``'s PATH inside the box.
        env: all of its variables.
        readable: files and folders that the box shows read-only, at their own paths.
        devices: device nodes that the box shows (a GPU's).
        copied: folders of mmrepro's own making, whose contents are copied into the work
            folder before the command starts, one after the other.
        caches: folders outside and in the box: the one's content is copied into the
            other, up to 256 MiB.
        leads: ways out.
        door: whether mmrepro connects to ports of the box.
        hosts: names that mean the box's loopback.
        addresses: further addresses of the box's loopback.
        descriptors: open files that the command inherits under the same numbers.
        removed: folders outside that are removed with the box, however mmrepro ends.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    copied: tuple[Path, ...] = ()
    caches: tuple[tuple[Path, Path], ...] = ()
    leads: tuple[Leads, ...] = ()
    door: bool = False
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()
    removed: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)
