"""Numbers of the system calls that threads block in, from the kernel's own tables.

Sources: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import platform

_X86_64 = {
    0: "read",
    1: "write",
    7: "poll",
    17: "pread64",
    18: "pwrite64",
    23: "select",
    24: "sched_yield",
    34: "pause",
    35: "nanosleep",
    42: "connect",
    43: "accept",
    44: "sendto",
    45: "recvfrom",
    46: "sendmsg",
    47: "recvmsg",
    61: "wait4",
    72: "fcntl",
    73: "flock",
    74: "fsync",
    128: "rt_sigtimedwait",
    130: "rt_sigsuspend",
    202: "futex",
    219: "restart_syscall",
    230: "clock_nanosleep",
    232: "epoll_wait",
    247: "waitid",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
    288: "accept4",
    299: "recvmmsg",
    426: "io_uring_enter",
    441: "epoll_pwait2",
    449: "futex_waitv",
}

_AARCH64 = {
    22: "epoll_pwait",
    25: "fcntl",
    32: "flock",
    63: "read",
    64: "write",
    67: "pread64",
    68: "pwrite64",
    72: "pselect6",
    73: "ppoll",
    82: "fsync",
    95: "waitid",
    98: "futex",
    101: "nanosleep",
    115: "clock_nanosleep",
    124: "sched_yield",
    128: "restart_syscall",
    133: "rt_sigsuspend",
    137: "rt_sigtimedwait",
    202: "accept",
    203: "connect",
    206: "sendto",
    207: "recvfrom",
    211: "sendmsg",
    212: "recvmsg",
    242: "accept4",
    243: "recvmmsg",
    260: "wait4",
    426: "io_uring_enter",
    441: "epoll_pwait2",
    449: "futex_waitv",
}

_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}


def syscall_name(number: int, machine: str | None = None) -> str:
    """``futex`` of 202 on x86_64; ``syscall_<number>`` of one that the table lacks."""
    table = _TABLES.get(machine or platform.machine(), {})
    return table.get(number, f"syscall_{number}")
