"""Prepares a box from within, tests that it holds, and becomes the command.

bubblewrap runs it as ``python -I -S inside.py ORDER REPORT``, two descriptors: of a
file with JSON (:class:`InsidePlan`), and of a pipe on which one line says what was
tested. Nothing of a stranger has run before that line is written, and the command
starts only where each test held.

Standard library only; it runs under the interpreter of mmrepro, which is seen
read-only."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_SIOCSIFADDR = 0x8916
PR_SET_DUMPABLE, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 4, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
_PTRACE_SEIZE = 0x4206
_MS_REMOUNT_BIND = 0x20 | 0x1000
_DOES_NOT_HOLD = 125
"""The exit code where a test failed and nothing was run."""
_CONNECTIONS = 512
"""At a time, through one lead or the door."""
PIECE = 1 << 16
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class InsidePlan:
    """What mmrepro asks for, as JSON.

    Attributes:
        argv, env: the command.
        user: the uid and gid that it becomes; 0: it has its own already.
        work: the folder in which it starts.
        copied: (folder, where to): contents that are copied first, in that order.
        addresses: further ones of the loopback.
        leads: [ports, path of a Unix socket, preface] each.
        door: descriptor of a listening Unix socket; -1: there is none.
        descriptors: open files that the command inherits.
        limits: {name of an RLIMIT_*: value}.
        canaries: what must be out of reach, see :func:`tests`.
    """

    argv: list[str]
    env: dict[str, str]
    user: int
    work: str
    copied: list[tuple[str, str]]
    addresses: list[str]
    leads: list[tuple[list[int], str, str]]
    door: int
    descriptors: list[int]
    limits: dict[str, int]
    canaries: dict[str, Any]


def main() -> NoReturn:
    with os.fdopen(int(sys.argv[1])) as file:
        plan = InsidePlan(**json.load(file))
    report = int(sys.argv[2])
    _add_addresses(plan.addresses)
    listeners = []
    for ports, place, preface in plan.leads:
        for port in ports:
            with contextlib.suppress(OSError):  # a port twice, or one that is none
                listeners.append((listen(port), place, preface.encode()))
    become(plan.user)
    _drop_capabilities()
    _set_limits(plan.limits)
    _copy_folders(plan.copied)
    failed = [name for name, holds in tests(plan.canaries) if not held(holds)]
    names = [name for name, _ in tests(plan.canaries)]
    os.write(report, json.dumps({"tested": names, "failed": failed}).encode() + b"\n")
    os.close(report)
    if failed:
        os._exit(_DOES_NOT_HOLD)
    if listeners or plan.door >= 0:
        _serve_apart(listeners, plan.door)
    for listener, _, _ in listeners:
        listener.close()
    if plan.door >= 0:
        os.close(plan.door)
    for descriptor in plan.descriptors:
        os.set_inheritable(descriptor, True)
    try:
        os.execvpe(plan.argv[0], plan.argv, plan.env)  # noqa: S606
    except OSError as error:
        print(
            f"{plan.argv[0]} cannot be run: {error.strerror}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(127)


# ---------------------------------------------------------------------- what it sets up


def _add_addresses(addresses: list[str]) -> None:
    """Give the loopback further IPv4 addresses, so that a script's own address is this
    box."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for number, address in enumerate(addresses, 1):
            name = struct.pack("16s", f"lo:{number}".encode())
            # 999.1.1.1 is in a script, and no address.
            with contextlib.suppress(OSError):
                place = struct.pack(
                    "HH4s8x", socket.AF_INET, 0, socket.inet_aton(address)
                )
                fcntl.ioctl(control, _SIOCSIFADDR, name + place)


def listen(port: int) -> socket.socket:
    """A listening socket on all addresses of the box. Raises OSError."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
    return socket.create_server(("", port), backlog=128)


def become(user: int) -> None:
    """Leave root's uid for good. The kernel takes the capabilities away with it."""
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _drop_capabilities() -> None:
    """Give up what setting up the network took. Raises OSError."""
    LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    if LIBC.capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")


def _set_limits(limits: dict[str, int]) -> None:
    """Set each bound, soft and hard; one that is above what the machine allows is
    that."""
    for name, value in limits.items():
        number = getattr(resource, name)
        _, most = resource.getrlimit(number)
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (bound, bound))


def _copy_folders(folders: list[tuple[str, str]]) -> None:
    """Copy contents: links as links, up to what the temporary folders hold."""
    for source, target in folders:
        Path(target).mkdir(parents=True, exist_ok=True)
        command = ["cp", "--recursive", "--no-dereference", "--", f"{source}/.", target]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )


# ------------------------------------------------------------------------ does it hold?


def tests(canaries: dict[str, Any]) -> list[tuple[str, Callable[[], bool]]]:
    """Names of what must not be possible, and functions that try it: true where it was
    not.

    Args:
        canaries: ``folder``, one that is writable outside; ``file``, a secret;
            ``home``, a folder, and ``home_identity``, its device and inode; ``socket``
            and ``abstract``, that listen outside; ``port``, on the loopback outside;
            ``namespaces``, {name: inode} outside.
    """
    return [
        (
            "write outside",
            lambda: refused(_write_file, f"{canaries['folder']}/written"),
        ),
        ("write to the system", lambda: refused(_write_file, "/usr/.mmrepro-written")),
        ("read outside", lambda: refused(_read_file, canaries["file"])),
        (
            "read the home",
            lambda: is_another(canaries["home"], canaries["home_identity"]),
        ),
        ("reach a socket", lambda: refused(_connect_unix, canaries["socket"])),
        (
            "reach an abstract socket",
            lambda: refused(_connect_unix, "\0" + canaries["abstract"]),
        ),
        ("reach an address", lambda: refused(_connect_tcp, canaries["port"])),
        ("mount", lambda: refused(_remount_writable)),
        ("make a user namespace", lambda: refused(_make_user_namespace)),
        ("trace a process", lambda: refused(trace, os.getppid())),
        ("change a setting of the kernel", lambda: refused(_open_setting)),
        ("see the processes outside", lambda: apart(canaries["namespaces"])),
        ("hold a right", _has_no_right),
    ]


def held(test: Callable[[], bool]) -> bool:
    """A test that cannot be carried out has not held."""
    try:
        return test()
    except Exception:
        return False


def refused(attempt: Callable[..., None], *words: Any) -> bool:
    """Whether the kernel refuses ``attempt``."""
    try:
        attempt(*words)
    except OSError:
        return True
    return False


def _write_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _read_file(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def is_another(path: str, identity: list[int]) -> bool:
    """Whether a folder is not there, or is one of the box's own: a parent of what is
    shown below it."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return True
    return [status.st_dev, status.st_ino] != identity


def _connect_unix(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)


def _connect_tcp(port: int) -> None:
    with socket.socket() as link:
        link.settimeout(2)
        link.connect(("127.0.0.1", port))


def _remount_writable() -> None:
    _checked(LIBC.mount(b"none", b"/usr", None, _MS_REMOUNT_BIND, None))


def _make_user_namespace() -> None:
    _checked(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))


def trace(pid: int) -> None:
    _checked(LIBC.ptrace(_PTRACE_SEIZE, pid, None, None))


def _open_setting() -> None:
    """Open one for writing, and write nothing."""
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


def apart(outside: dict[str, int]) -> bool:
    """Whether each namespace is another than mmrepro's."""
    inodes = {name: Path(f"/proc/self/ns/{name}").stat().st_ino for name in outside}
    return all(inodes[name] != inode for name, inode in outside.items())


def _has_no_right() -> bool:
    """No capability, no uid of root, nothing to be gained by executing, calls
    filtered."""
    status = Path("/proc/self/status").read_text()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    none = all(
        int(lines[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")
    )
    sealed = lines["NoNewPrivs"].strip() == "1" and lines["Seccomp"].strip() == "2"
    return (
        none
        and sealed
        and 0 not in (os.getuid(), os.geteuid(), os.getgid(), os.getegid())
    )


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "refused")


# ---------------------------------------------------------------------- ways out and in


def _serve_apart(listeners: list[tuple[socket.socket, str, bytes]], door: int) -> None:
    """Serve leads and door in a process of its own, which is no child of the command's:
    that one may count its children, and end them."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    if os.fork():
        os._exit(0)
    # Nobody in the box reads its memory or its files.
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    used = {listener.fileno() for listener, _, _ in listeners} | {door, 0, 1, 2}
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in used:
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
    for listener, place, preface in listeners:
        lead = Relay(listener, functools.partial(_lead_out, place, preface))
        threading.Thread(target=lead.accept).start()
    if door >= 0:
        threading.Thread(
            target=Relay(socket.socket(fileno=door), to_port).accept
        ).start()
    threading.Event().wait()  # what follows is the command's process, and none of this one's


class Relay:
    """Accepts connections, and passes bytes both ways between each and another."""

    def __init__(
        self, listener: socket.socket, connect: Callable[[socket.socket], socket.socket]
    ) -> None:
        """``connect`` gives the other end for an accepted connection. Raises OSError,
        ValueError: there is none."""
        self.listener = listener
        self.connect = connect
        self.room = threading.BoundedSemaphore(_CONNECTIONS)

    def accept(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return
            if not self.room.acquire(timeout=30):
                accepted.close()
                continue
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        try:
            with (
                accepted,
                contextlib.suppress(OSError, ValueError),
                self.connect(accepted) as other,
            ):
                _pass_on(accepted, other)
        finally:
            self.room.release()


def _lead_out(place: str, preface: bytes, _: socket.socket) -> socket.socket:
    """The other end of whatever connects to a lead."""
    return onward(place, preface)


def onward(place: str, preface: bytes) -> socket.socket:
    """A connection to mmrepro's socket at ``place``. Raises OSError."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(place)
        link.sendall(preface)
    except OSError:
        link.close()
        raise
    return link


def to_port(accepted: socket.socket) -> socket.socket:
    """The box's port that the first line of ``accepted`` asks for. Raises OSError,
    ValueError."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 8:
        byte = accepted.recv(1)
        if not byte:
            break
        line += byte
    return socket.create_connection(("127.0.0.1", int(line)), timeout=None)


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until both are over."""
    back = threading.Thread(target=copy, args=(other, one), daemon=True)
    back.start()
    copy(one, other)
    back.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy one way, and pass on its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RD)


if __name__ == "__main__":
    main()
