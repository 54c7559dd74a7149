"""Ways out through what the box's process was born with: open files, variables,
identities."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys

from hardening.escapes.attacker import (
    FACTS,
    PERMITTED,
    SECRET,
    WRITTEN,
    attack,
    attempt,
    change_target,
    permitted,
    say,
    show_content,
    show_file,
    syscall,
    write_marker,
)


def descriptors() -> list[int]:
    """List the open files that are not the three standard ones."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in listed if number > 2 and is_open(number)]


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@attack(
    "fd-folder", "an open folder of the outside: openat, fchdir and ..", SECRET, WRITTEN
)
def open_folders() -> None:
    for number in descriptors():
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            continue
        say("DONE", f"folder {number}: {os.readlink(f'/proc/self/fd/{number}')}")
        up = "../" * 64
        for path in FACTS["secret_files"]:
            name = up + path.lstrip("/")
            show_file(
                f"openat {number}",
                name,
                lambda name, flags, number=number: os.open(name, flags, dir_fd=number),
            )
        attempt("write", write_marker, f"/proc/self/fd/{number}", "fd-folder")


@attack("fd-file", "an open file of the outside: read it, write it", SECRET, WRITTEN)
def inherited_files() -> None:
    for number in descriptors():
        target = os.readlink(f"/proc/self/fd/{number}")
        say("DONE", f"{number}: {target}")
        if not stat.S_ISREG(os.fstat(number).st_mode):
            continue
        content = attempt(f"pread {number}", os.pread, number, 400, 0)
        show_content(f"fd {number}", content or b"")
        # Files that are not ours stay as they are: the name tells.
        if FACTS["marker"] in target:
            attempt(f"write {number}", os.write, number, b"changed from inside\n")


@attack(
    "fd-reopen",
    "open an inherited file again with more rights (O_PATH, /proc/self/fd)",
    SECRET,
    WRITTEN,
)
def reopen() -> None:
    for number in descriptors():
        path = f"/proc/self/fd/{number}"
        if FACTS["marker"] in os.readlink(path):
            show_file("reopen", path)
            attempt("write", change_target, path)


@attack(
    "fd-socket", "an inherited listener: accept, or turn it into a connection", SECRET
)
def inherited_sockets() -> None:
    AF_UNSPEC = 0
    for number in descriptors():
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            continue
        with socket.socket(fileno=os.dup(number)) as inherited:
            listening = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            say(
                "DONE",
                f"socket {number}, listening {listening}: {inherited.getsockname()}",
            )
            if not listening:
                continue
            # connect(AF_UNSPEC) ends the listening: the socket is free for a peer of
            # ours.
            unspecified = struct.pack("H14x", AF_UNSPEC)
            ctypes.CDLL(None).connect(number, unspecified, len(unspecified))
            inherited.settimeout(2)
            attempt("connect", inherited.connect, ("127.0.0.1", FACTS["tcp4"]))
            show_content(f"socket {number}", inherited.recv(400))


@attack(
    "fd-standard",
    "standard input, output and error opened again for the other direction",
    SECRET,
    WRITTEN,
)
def standard_streams() -> None:
    for number in (0, 1, 2):
        path = f"/proc/self/fd/{number}"
        target = os.readlink(path)
        say("DONE", f"{number}: {target}")
        if stat.S_ISREG(os.fstat(number).st_mode) and FACTS["marker"] in target:
            show_file("standard", path)
            attempt("write", change_target, path)


@attack("environment", "variables of the user", SECRET)
def variables() -> None:
    for name, value in os.environ.items():
        # A canary's value alone is printed: other variables are the user's own.
        if FACTS["secret_start"] in value:
            say("SECRET", f"{name}={value}")
    say("DONE", f"{len(os.environ)} variables")


@attack(
    "environment-first",
    "variables of process 1, of the parent and of its own start",
    SECRET,
)
def first_variables() -> None:
    for pid in (1, os.getppid(), "self"):
        path = f"/proc/{pid}/environ"
        with open(path, "rb") as stream:
            show_content(path, stream.read())


@attack("setuid", "set-user-ID programs (su, mount, ping, sudo, fusermount)", PERMITTED)
def setuid_programs() -> None:
    # A copy of `id` would do nothing: what counts is whether such a program changes who
    # we are.
    names = (
        "su",
        "mount",
        "umount",
        "passwd",
        "chsh",
        "newgrp",
        "sudo",
        "fusermount3",
        "ping",
    )
    found = [path for path in map(shutil.which, names) if path]
    marked = [
        path for path in found if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID)
    ]
    say("DONE", f"set-user-ID programs in sight: {marked}")
    for path in marked:
        flags = os.statvfs(path).f_flag
        PR_GET_NO_NEW_PRIVS = 39
        bound = ctypes.CDLL(None).prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1
        if not flags & os.ST_NOSUID and not bound:
            permitted(f"{path}: neither nosuid nor no_new_privs")


@attack(
    "setuid-become",
    "become another user or group (setuid, setgroups)",
    PERMITTED,
    only="root",
)
def become() -> None:
    for label, function, value in (
        ("setuid 0", os.setuid, 0),
        ("setgid 0", os.setgid, 0),
        ("setuid 12345", os.setuid, 12345),
    ):
        child = os.fork()
        if child == 0:
            before = (os.getuid(), os.getgid())
            attempt(label, function, value)
            if (os.getuid(), os.getgid()) != before:
                permitted(f"{label}: {before} became {(os.getuid(), os.getgid())}")
            os._exit(0)
        os.waitpid(child, 0)


@attack(
    "capabilities",
    "keep, raise or inherit a capability (capset, ambient)",
    PERMITTED,
    only="root",
)
def capabilities() -> None:
    with open("/proc/self/status", encoding="ascii") as status:
        rights = dict(line.split(":\t", 1) for line in status if line.startswith("Cap"))
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        if int(rights[name], 16):
            permitted(f"{name} {rights[name].strip()}")
    # struct __user_cap_header: version 3, this process; twice effective, permitted,
    # inheritable
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    wanted = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
    attempt("capset", syscall, "capset", ctypes.byref(header), ctypes.byref(wanted))


@attack(
    "capabilities-bound",
    "the bounding set: what a program with capabilities could get",
    PERMITTED,
)
def bounding_set() -> None:
    # Harmless while no_new_privs is set; without it, one setcap binary is enough.
    with open("/proc/self/status", encoding="ascii") as status:
        lines = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    if int(lines["CapBnd"], 16) and lines["NoNewPrivs"].strip() == "0":
        permitted(f"CapBnd {lines['CapBnd'].strip()} and no_new_privs is not set")


@attack(
    "dumpable",
    "make itself open to others, others to itself (PR_SET_DUMPABLE, PTRACER)",
    SECRET,
)
def dumpable() -> None:
    libc = ctypes.CDLL(None)
    PR_SET_DUMPABLE, PR_SET_PTRACER = 4, 0x59616D61
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
    show_file("after dumpable", f"/proc/{FACTS['canary_pid']}/environ")


@attack("memfd", "run a program that lies in no file system (memfd, execveat)", SECRET)
def program_in_memory() -> None:
    # What it could do is what any program of the box can: it must not see more.
    handle = syscall("memfd_create", "program", 0)
    os.write(
        handle, b"#!/bin/sh\ncat " + " ".join(FACTS["secret_files"]).encode() + b"\n"
    )
    subprocess.run(
        [f"/proc/self/fd/{handle}"], check=False, pass_fds=(handle,), timeout=10
    )


@attack(
    "python-start",
    "PYTHONSTARTUP, sitecustomize and .pth where mmrepro's Python looks",
    WRITTEN,
)
def python_start() -> None:
    # Only in the canary's folders, which mmrepro's own start imports from in the
    # rehearsal.
    for folder in FACTS["python_folders"]:
        for name in ("sitecustomize.py", "usercustomize.py", "escape.pth", "json.py"):
            attempt(name, plant, os.path.join(folder, name))
    say("DONE", f"prefix {sys.prefix}")


def plant(path: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(f"open({FACTS['loaded']!r}, 'w').write('loaded')\n")
