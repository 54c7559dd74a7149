"""Ways out through namespaces: one of its own, where a stranger is root, or somebody
else's."""

from __future__ import annotations

import ctypes
import os
from functools import partial

from hardening.escapes.attacker import (
    FACTS,
    PERMITTED,
    REACHED,
    SECRET,
    attack,
    attempt,
    in_child,
    permitted,
    probe,
    read_secrets,
    say,
    syscall,
)

FLAGS = {
    "mnt": 0x20000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "cgroup": 0x2000000,
    "time": 0x80,
}
SIGCHLD = 17


def unshare_each(also: int) -> None:
    for name, flag in FLAGS.items():
        in_child(partial(probe, f"unshare {name}", "unshare", flag | also))


@attack("ns-unshare-user", "a user namespace of its own by unshare(2)", PERMITTED)
def unshare_user() -> None:
    in_child(lambda: probe("unshare user", "unshare", FLAGS["user"]))


@attack("ns-unshare-each", "each other namespace by unshare(2)", PERMITTED, only="root")
def unshare_others() -> None:
    for name, flag in FLAGS.items():
        if name != "user":
            in_child(partial(probe, f"unshare {name}", "unshare", flag))


@attack("ns-unshare-both", "each namespace together with a user namespace", PERMITTED)
def unshare_with_user() -> None:
    unshare_each(also=FLAGS["user"])


@attack("ns-clone", "a user namespace by clone(2)", PERMITTED)
def clone_user() -> None:
    child = attempt(
        "clone", syscall, "clone", FLAGS["user"] | SIGCHLD, None, None, None, None
    )
    if child == 0:
        os._exit(0)
    if child:
        os.waitpid(child, 0)
        permitted("clone(CLONE_NEWUSER)")


@attack(
    "ns-clone3",
    "a user namespace by clone3(2), whose flags no filter can read",
    PERMITTED,
)
def clone3_user() -> None:
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, ...
    arguments = (ctypes.c_uint64 * 11)(FLAGS["user"], 0, 0, 0, SIGCHLD)
    size = ctypes.sizeof(arguments)
    child = attempt("clone3", syscall, "clone3", ctypes.byref(arguments), size)
    if child == 0:
        os._exit(0)
    if child:
        os.waitpid(child, 0)
        permitted("clone3(CLONE_NEWUSER)")


@attack("ns-setns-one", "enter the namespaces of process 1", SECRET, PERMITTED)
def enter_first() -> None:
    enter("/proc/1/ns")


@attack("ns-setns-parent", "enter the namespaces of the parent", SECRET, PERMITTED)
def enter_parent() -> None:
    enter(f"/proc/{os.getppid()}/ns")


@attack(
    "ns-setns-outside",
    "enter the namespaces of a process outside by its id",
    SECRET,
    PERMITTED,
)
def enter_outside() -> None:
    enter(f"/proc/{FACTS['canary_pid']}/ns")


def enter(folder: str) -> None:
    """Join each namespace of the folder that is another one than ours, then look for
    secrets."""
    for name in ("user", "mnt", "net", "ipc", "uts", "pid"):
        try:
            theirs = os.open(f"{folder}/{name}", os.O_RDONLY)
        except OSError as error:
            say("REFUSED", f"{folder}/{name}: {error.strerror}")
            continue
        if os.readlink(f"{folder}/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            say("DONE", f"{name}: the same namespace")
            os.close(theirs)
            continue
        if attempt(f"setns {name}", syscall, "setns", theirs, FLAGS[name]) is not None:
            permitted(f"setns {folder}/{name}")
        os.close(theirs)
    read_secrets("setns")


@attack(
    "ns-setns-own",
    "setns(2) into its own namespaces: the right alone",
    PERMITTED,
    only="root",
)
def enter_own() -> None:
    for name in ("mnt", "net", "ipc", "uts", "pid", "cgroup"):
        handle = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        probe(f"setns {name}", "setns", handle, FLAGS[name])
        os.close(handle)


@attack("ns-setns-pidfd", "enter by a process handle (pidfd)", PERMITTED, only="root")
def enter_by_pidfd() -> None:
    for pid in (1, os.getppid(), FACTS["canary_pid"]):
        handle = attempt(f"pidfd_open {pid}", syscall, "pidfd_open", pid, 0)
        if handle is not None:
            probe(f"setns pidfd {pid}", "setns", handle, FLAGS["net"] | FLAGS["mnt"])


@attack(
    "ns-net-parent", "reach the outside's loopback from the parent's network", REACHED
)
def parent_network() -> None:
    import socket

    for pid in (1, os.getppid(), FACTS["canary_pid"]):
        handle = attempt(f"net of {pid}", os.open, f"/proc/{pid}/ns/net", os.O_RDONLY)
        if handle is not None:
            attempt(f"setns net of {pid}", syscall, "setns", handle, FLAGS["net"])
    address = ("127.0.0.1", FACTS["tcp4"])
    with socket.create_connection(address, timeout=3) as connection:
        connection.sendall(FACTS["token"].encode())
