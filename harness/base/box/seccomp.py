"""The system calls that no process in a box may make, as a program of the kernel's
packet filter.

A sandbox lists what it lets in; of system calls that cannot be done here, since an
engine with its kernels and its Python packages may make nearly all of them. As in
flatpak (common/flatpak-run.c, setup_seccomp) the calls are listed that reach kernel
code which an ordinary program never needs and which escapes have used. ``socket`` is
the exception: of address families only those are let in that a server needs. AF_VSOCK,
for one, belongs to no network
namespace: through it a box in a virtual machine would reach the host.

Forms and constants: linux/filter.h, linux/seccomp.h, linux/audit.h. Standard library
only."""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass
from typing import Final

_LOAD: Final = 0x20
"""BPF_LD | BPF_W | BPF_ABS: the accumulator takes a 32-bit word of ``struct seccomp_data``."""
_JUMP_EQUAL: Final = 0x15
_JUMP_GREATER_OR_EQUAL: Final = 0x35
_JUMP_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06

_KILL_PROCESS: Final = 0x80000000
_REFUSE: Final = 0x00050000
"""SECCOMP_RET_ERRNO; the error number stands in the low 16 bits."""
_ALLOW: Final = 0x7FFF0000

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
"""Offsets into ``struct seccomp_data``; an argument has eight bytes, the low word
first."""

_NAMESPACE_FLAGS: Final = 0x7E020080
"""All CLONE_NEW* of linux/sched.h: time, mount, cgroup, uts, ipc, user, pid, net."""
_X32_BIT: Final = 0x40000000
"""Set in the numbers of x86-64's second table of calls, which would pass by the
first."""
_FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
_AF_NETLINK: Final = 16
"""For NETLINK_ROUTE (0) alone, with which programs list addresses: other protocols of
it (events of devices, the audit's) are the machine's."""
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into the terminal of whoever started mmrepro."""

# Numbers: asm/unistd_64.h (x86-64) and asm-generic/unistd.h (aarch64); None: there is
#     no such call.
REFUSED_CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    # kernel objects that belong to no namespace, or are too large a surface
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "memfd_secret": (447, 447),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    # old doors of x86
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    # device nodes, of which the box has its own
    "mknod": (133, None),
}


@dataclass(frozen=True)
class _Processor:
    """How a processor's calls are numbered.

    Attributes:
        audit: AUDIT_ARCH_* of linux/audit.h.
        column: of its numbers in :data:`REFUSED_CALLS`.
    """

    audit: int
    column: int
    clone: int
    clone3: int
    socket: int
    ioctl: int


PROCESSORS: Final = {
    "x86_64": _Processor(0xC000003E, 0, clone=56, clone3=435, socket=41, ioctl=16),
    "aarch64": _Processor(0xC00000B7, 1, clone=220, clone3=435, socket=198, ioctl=29),
}


def seccomp_program(machine: str = "") -> bytes:
    """The filter for this machine's processor, as ``bwrap --seccomp`` reads it.

    Args:
        machine: as ``platform.machine()`` names it; "": this machine.

    Raises:
        KeyError: the calls of that processor are not known here.
    """
    processor = PROCESSORS[machine or platform.machine()]
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_JUMP_EQUAL, processor.audit, if_true=1),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _NUMBER_AT),
    ]
    if processor.column == 0:
        program += [
            _step(_JUMP_GREATER_OR_EQUAL, _X32_BIT, if_false=1),
            _refuse(errno.ENOSYS),
        ]
    for numbers in REFUSED_CALLS.values():
        number = numbers[processor.column]
        if number is not None:
            program += [_step(_JUMP_EQUAL, number, if_false=1), _refuse(errno.EPERM)]

    # A filter cannot follow a pointer, and clone3 has its flags behind one. With "no
    # such call" the C library falls back to clone, whose flags can be read.
    program += [_step(_JUMP_EQUAL, processor.clone3, if_false=1), _refuse(errno.ENOSYS)]
    program += _if_call(
        processor.clone,
        [_step(_JUMP_ANY_BIT, _NAMESPACE_FLAGS, if_false=1), _refuse(errno.EPERM)],
    )
    allowed_families: list[bytes] = []
    for family in _FAMILIES.values():
        allowed_families += [
            _step(_JUMP_EQUAL, family, if_false=1),
            _step(_RETURN, _ALLOW),
        ]
    routes = [
        _step(_JUMP_EQUAL, _AF_NETLINK, if_false=3),
        _step(_LOAD, _FIRST_ARGUMENT_AT + 8 * 2),
        _step(_JUMP_EQUAL, 0, if_false=1),
        _step(_RETURN, _ALLOW),
    ]
    sockets = [*allowed_families, *routes, _refuse(errno.EAFNOSUPPORT)]
    program += _if_call(processor.socket, sockets)
    typing: list[bytes] = []
    for request in _TERMINAL_INPUT:
        typing += [_step(_JUMP_EQUAL, request, if_false=1), _refuse(errno.EPERM)]
    # The kernel reads a request as 32 bits, so the low word is all of it
    # (CVE-2019-10063).
    program += _if_call(processor.ioctl, typing, argument=1)
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _if_call(number: int, body: list[bytes], argument: int = 0) -> list[bytes]:
    """``body``, for one call alone, over the low word of an argument; what it lets
    through is allowed. The jump is eight bits wide, and a body is short."""
    steps = [
        _step(_LOAD, _FIRST_ARGUMENT_AT + 8 * argument),
        *body,
        _step(_RETURN, _ALLOW),
    ]
    return [_step(_JUMP_EQUAL, number, if_false=len(steps)), *steps]


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _REFUSE | error)


def _step(code: int, operand: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """One ``struct sock_filter``; jumps count the steps that are passed over."""
    return struct.pack("=HBBI", code, if_true, if_false, operand)
