"""Ways out through devices: opened for the right alone, never read or written."""

from __future__ import annotations

import os
import stat

from hardening.escapes.attacker import (
    PERMITTED,
    SECRET,
    attack,
    attempt,
    permitted,
    say,
)

# What any program may have.
HARMLESS = {
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "ptmx",
    "console",
    "stdin",
    "stdout",
    "stderr",
    "fd",
    "core",
    "pts",
    "shm",
}


@attack("dev-nodes", "every device in /dev that is not a harmless one", PERMITTED)
def nodes() -> None:
    for name in sorted(os.listdir("/dev")):
        path = os.path.join("/dev", name)
        if name in HARMLESS or name.startswith(("tty", "loop", "vcs")):
            continue
        mode = os.stat(path).st_mode
        # Asked for with access(2): a device can act when it is only opened.
        if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and os.access(path, os.R_OK):
            permitted(path)
    say("DONE", "listed")


@attack(
    "dev-memory",
    "/dev/mem, /dev/kmsg, /dev/port, /dev/kvm, /dev/fuse, /dev/net/tun",
    PERMITTED,
)
def memory() -> None:
    for name in (
        "mem",
        "kmem",
        "port",
        "kmsg",
        "kvm",
        "fuse",
        "net/tun",
        "vhost-vsock",
        "vsock",
    ):
        path = f"/dev/{name}"
        if os.access(path, os.R_OK) or os.access(path, os.W_OK):
            permitted(path)
        else:
            say("REFUSED", path)


@attack("dev-disks", "the machine's disks", PERMITTED, only="root")
def disks() -> None:
    for name in sorted(os.listdir("/dev")):
        path = f"/dev/{name}"
        if stat.S_ISBLK(os.stat(path).st_mode) and os.access(path, os.R_OK):
            permitted(path)
    say("DONE", "listed")


@attack("dev-make", "make a device of its own", PERMITTED, only="root")
def make() -> None:
    # The numbers of /dev/null in places of its own: the right alone.
    for folder in ("/tmp", "/dev", "/dev/shm", os.getcwd()):
        path = f"{folder}/own-device-{os.getpid()}"
        if attempt(path, os.mknod, path, 0o020600, os.makedev(1, 3)) is not None:
            os.remove(path)
            permitted(f"mknod {path}")


@attack(
    "dev-terminals",
    "terminals of others (/dev/pts, /dev/tty0, /dev/vcs)",
    PERMITTED,
    SECRET,
)
def terminals() -> None:
    own = {os.ttyname(number) for number in (0, 1, 2) if os.isatty(number)}
    listed = attempt("/dev/pts", os.listdir, "/dev/pts") or []
    for path in [f"/dev/pts/{name}" for name in listed if name != "ptmx"] + [
        "/dev/tty0",
        "/dev/vcs",
    ]:
        if path not in own and os.access(path, os.W_OK):
            permitted(path)
    say("DONE", "listed")
