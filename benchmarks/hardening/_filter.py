"""A seccomp filter written by hand: for the reference box, and for what docker's
profile refuses.

The real box has its own; this one shows which attacks such a filter holds.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from hardening.escapes.attacker import NUMBERS

ARM = os.uname().machine == "aarch64"
AUDIT_ARCH = 0xC00000B7 if ARM else 0xC000003E
X32_BIT = 0x40000000
NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag, NEWTIME included."""

LOAD_WORD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, AND, RETURN = (
    0x20,
    0x15,
    0x35,
    0x45,
    0x54,
    0x06,
)
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97

REFUSED_CALLS = (
    "acct",
    "add_key",
    "bpf",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_load",
    "keyctl",
    "migrate_pages",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
)
DOCKER_CALLS = (
    "mount",
    "umount2",
    "unshare",
    "setns",
    "pivot_root",
    "keyctl",
    "add_key",
    "bpf",
)
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6; netlink 0 besides, which lists the own network's
addresses."""

SOCKET = 198 if ARM else 41
IOCTL = 29 if ARM else 16
CHROOT = 51 if ARM else 161


def error(number: int) -> int:
    return 0x00050000 | number


class Program:
    """Instructions of classic BPF, one after the other."""

    def __init__(self) -> None:
        self.code: list[bytes] = []

    def add(
        self, code: int, value: int, when_true: int = 0, when_false: int = 0
    ) -> None:
        self.code.append(struct.pack("HBBI", code, when_true, when_false, value))

    def refuse(self, number: int, answer: int) -> None:
        """Answer one system call with an error."""
        self.add(JUMP_EQUAL, number, 0, 1)
        self.add(RETURN, answer)

    def refuse_value(
        self, number: int, offset: int, values: Iterable[int], answer: int
    ) -> None:
        """Refuse a call for some values of an argument."""
        for value in values:
            self.add(JUMP_EQUAL, number, 0, 4)
            self.add(LOAD_WORD, offset)
            self.add(JUMP_EQUAL, value, 0, 1)
            self.add(RETURN, answer)
            self.add(LOAD_WORD, NUMBER)

    def finish(self) -> bytes:
        self.add(RETURN, ALLOW)
        return b"".join(self.code)


def number_of(name: str) -> int:
    return NUMBERS[name][1 if ARM else 0]


def start() -> Program:
    """Refuse every call by another architecture's numbers: 32 bits, and x32."""
    program = Program()
    program.add(LOAD_WORD, ARCHITECTURE)
    program.add(JUMP_EQUAL, AUDIT_ARCH, 1, 0)
    program.add(RETURN, KILL_PROCESS)
    program.add(LOAD_WORD, NUMBER)
    if not ARM:
        program.add(JUMP_GREATER_EQUAL, X32_BIT, 0, 1)
        program.add(RETURN, error(ENOSYS))
    return program


def no_namespaces(program: Program) -> None:
    """Refuse clone with a namespace's flag; clone3, whose flags lie in memory, as
    unknown."""
    program.refuse(number_of("clone3"), error(ENOSYS))
    program.add(JUMP_EQUAL, number_of("clone"), 0, 4)
    program.add(LOAD_WORD, FIRST)
    program.add(JUMP_SET, NAMESPACES, 0, 1)
    program.add(RETURN, error(EPERM))
    program.add(LOAD_WORD, NUMBER)


def box_filter() -> bytes:
    """Return the filter of the reference box."""
    program = start()
    for name in REFUSED_CALLS:
        if number_of(name) >= 0:
            program.refuse(number_of(name), error(EPERM))
    program.refuse(CHROOT, error(EPERM))
    no_namespaces(program)

    TIOCSTI, TIOCLINUX = 0x5412, 0x541C
    program.refuse_value(IOCTL, SECOND, (TIOCSTI, TIOCLINUX), error(EPERM))
    READ_IMPLIES_EXEC = 0x0400000
    program.refuse_value(
        number_of("personality"), FIRST, (READ_IMPLIES_EXEC,), error(EPERM)
    )

    # Last, because it loads over the number: which families of sockets there are.
    program.add(JUMP_EQUAL, SOCKET, 1, 0)
    program.add(RETURN, ALLOW)
    program.add(LOAD_WORD, FIRST)
    for family in FAMILIES:
        program.add(JUMP_EQUAL, family, 0, 1)
        program.add(RETURN, ALLOW)
    AF_NETLINK = 16
    program.add(JUMP_EQUAL, AF_NETLINK, 1, 0)
    program.add(RETURN, error(EAFNOSUPPORT))
    THIRD = 32
    program.add(LOAD_WORD, THIRD)
    program.add(JUMP_EQUAL, 0, 1, 0)
    program.add(RETURN, error(EAFNOSUPPORT))
    return program.finish()


def docker_filter() -> bytes:
    """Return what matters here of docker's default profile: no namespaces, no
    mounts."""
    program = start()
    for name in DOCKER_CALLS:
        program.refuse(number_of(name), error(EPERM))
    no_namespaces(program)
    return program.finish()


class SockFprog(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install(code: bytes) -> None:
    """Put the calling process and all of its children under the filter.

    Raises:
        OSError: if the kernel refuses it.
    """
    PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = SockFprog(len(code) // 8, code)
    if (
        libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
        != 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")
