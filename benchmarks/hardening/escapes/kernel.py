"""Ways out through what else the kernel offers: the more of it is open, the more there
is to break.

TIOCLINUX, modules, clocks, power: only the right is asked for (see `attacker.probe`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from functools import partial

from hardening.escapes.attacker import (
    ARM,
    BAD_POINTER,
    FACTS,
    LEFT,
    PERMITTED,
    SECRET,
    attack,
    attempt,
    call_number,
    in_child,
    not_tried,
    permitted,
    probe,
    say,
    show_content,
    syscall,
)

CLONE_NEWUSER = 0x10000000
KEYCTL_GET_KEYRING_ID, KEYCTL_LINK, KEYCTL_SEARCH, KEYCTL_READ = 0, 8, 10, 11
SESSION_KEYRING, USER_KEYRING, USER_SESSION_KEYRING = -3, -4, -5


@attack("io-uring", "io_uring: system calls that no filter sees", PERMITTED)
def io_uring() -> None:
    parameters = ctypes.create_string_buffer(120)
    probe("io_uring_setup", "io_uring_setup", 1, ctypes.byref(parameters))


@attack(
    "userfaultfd", "userfaultfd: stop the kernel in the middle of a copy", PERMITTED
)
def user_faults() -> None:
    UFFD_USER_MODE_ONLY = 1
    probe("userfaultfd", "userfaultfd", 0)
    probe("userfaultfd, user mode", "userfaultfd", UFFD_USER_MODE_ONLY)


@attack("bpf", "bpf(2): a map, a program", PERMITTED, only="root")
def bpf() -> None:
    BPF_MAP_CREATE, BPF_MAP_TYPE_ARRAY = 0, 2
    attributes = (ctypes.c_uint32 * 18)(BPF_MAP_TYPE_ARRAY, 4, 4, 1)
    size = ctypes.sizeof(attributes)
    probe("BPF_MAP_CREATE", "bpf", BPF_MAP_CREATE, ctypes.byref(attributes), size)


@attack("perf", "perf_event_open: count and trace", PERMITTED)
def perf() -> None:
    # struct perf_event_attr: type software, size, config cpu clock; disabled, user mode
    # only
    attributes = (ctypes.c_uint32 * 32)(1, 128, 0, 0)
    attributes[10] = 1 | 1 << 5 | 1 << 6
    probe("perf_event_open", "perf_event_open", ctypes.byref(attributes), 0, -1, -1, 0)


@attack("ldt", "modify_ldt", PERMITTED)
def local_descriptors() -> None:
    probe("modify_ldt", "modify_ldt", 0, ctypes.create_string_buffer(16), 16)


@attack(
    "personality", "personality: no randomised addresses, executable data", PERMITTED
)
def personality() -> None:
    READ_IMPLIES_EXEC = 0x0400000
    in_child(lambda: probe("READ_IMPLIES_EXEC", "personality", READ_IMPLIES_EXEC))


@attack("modules", "load or remove a module", PERMITTED, only="kernel")
def modules() -> None:
    probe(
        "init_module",
        "init_module",
        BAD_POINTER,
        0,
        BAD_POINTER,
        granted=("EFAULT", "ENOEXEC"),
    )
    probe(
        "finit_module", "finit_module", -1, BAD_POINTER, 0, granted=("EBADF", "EFAULT")
    )


@attack("kexec", "start another kernel", PERMITTED, only="kernel")
def kexec() -> None:
    # Flags that do not exist: EINVAL once CAP_SYS_BOOT is found.
    probe("kexec_load", "kexec_load", 0, 0, BAD_POINTER, 0xFFFF, granted=("EINVAL",))


@attack("reboot", "reboot or power off", PERMITTED, only="root")
def reboot() -> None:
    # No magic numbers: EINVAL once CAP_SYS_BOOT is found.
    probe("reboot", "reboot", 0, 0, 0, 0, granted=("EINVAL",))


@attack("swap", "swap on, swap off, accounting of processes", PERMITTED, only="root")
def swap() -> None:
    probe("swapon", "swapon", BAD_POINTER, 0, granted=("EFAULT",))
    probe("swapoff", "swapoff", BAD_POINTER, granted=("EFAULT",))
    probe("acct", "acct", BAD_POINTER, granted=("EFAULT",))


@attack("clock", "set the clock", PERMITTED, only="root")
def clock() -> None:
    # struct timex asks for a tick of 0, which the kernel refuses after it found the
    # right.
    ADJ_TICK = 0x4000
    request = (ctypes.c_long * 32)(ADJ_TICK)
    probe("adjtimex", "adjtimex", ctypes.byref(request), granted=("EINVAL",))


@attack("hostname", "set the name of the machine", PERMITTED, only="root")
def hostname() -> None:
    # Far too long a name: EINVAL once CAP_SYS_ADMIN is found.
    probe("sethostname", "sethostname", BAD_POINTER, 1000, granted=("EINVAL",))
    probe("setdomainname", "setdomainname", BAD_POINTER, 1000, granted=("EINVAL",))


@attack("ports", "the machine's ports (iopl, ioperm)", PERMITTED, only="kernel")
def ports() -> None:
    in_child(lambda: probe("iopl", "iopl", 3))
    in_child(lambda: probe("ioperm", "ioperm", 0x80, 1, 1))


@attack("kernel-log", "read the kernel's log", PERMITTED, only="root")
def kernel_log() -> None:
    SYSLOG_ACTION_READ_ALL = 3
    buffer = ctypes.create_string_buffer(16)
    probe("syslog", "syslog", SYSLOG_ACTION_READ_ALL, buffer, 15)


@attack(
    "fanotify",
    "watch the files of the whole machine (fanotify)",
    PERMITTED,
    only="root",
)
def watch_files() -> None:
    probe("fanotify_init", "fanotify_init", 0, os.O_RDONLY)


@attack("keys-session", "read the keys of the session's keyring", SECRET)
def session_keys() -> None:
    read_key(SESSION_KEYRING)


@attack("keys-user", "read the keys of the user's keyring", SECRET)
def user_keys() -> None:
    # Whoever can link a keyring to one of its own possesses the keys in it.
    PROCESS_KEYRING = -2
    attempt("link", syscall, "keyctl", KEYCTL_LINK, USER_KEYRING, PROCESS_KEYRING, 0, 0)
    read_key(USER_KEYRING)
    read_key(USER_SESSION_KEYRING)


@attack("keys-by-number", "read the key of the outside by its number", SECRET)
def numbered_key() -> None:
    show_key(FACTS["key_serial"])


@attack("keys-add", "leave a key in the keyrings of session and user", LEFT)
def leave_key() -> None:
    name = f"{FACTS['marker']}-left"
    for ring in (SESSION_KEYRING, USER_KEYRING, USER_SESSION_KEYRING):
        attempt(f"add to {ring}", syscall, "add_key", "user", name, b"out", 3, ring)


@attack(
    "keys-call", "the calls add_key, request_key and keyctl: open at all", PERMITTED
)
def key_calls() -> None:
    PROCESS_KEYRING = -2
    probe("add_key", "add_key", "user", "own", b"x", 1, PROCESS_KEYRING)
    probe("keyctl", "keyctl", KEYCTL_GET_KEYRING_ID, PROCESS_KEYRING, 1, 0, 0)


def read_key(ring: int) -> None:
    name = f"{FACTS['marker']}-key" + ("" if ring == SESSION_KEYRING else "-user")
    serial = attempt(
        f"search {ring}", syscall, "keyctl", KEYCTL_SEARCH, ring, "user", name, 0
    )
    if serial:
        attempt(f"read {serial}", show_key, serial)


def show_key(serial: int) -> None:
    buffer = ctypes.create_string_buffer(400)
    syscall("keyctl", KEYCTL_READ, serial, buffer, 399, 0)
    show_content("key", buffer.raw)


# ------------------------------------------ the same calls by other doors of the kernel

INT80 = bytes.fromhex(
    "53"  # push rbx
    "89f8"  # mov eax, edi
    "89f3"  # mov ebx, esi
    "89d1"  # mov ecx, edx
    "31d2"  # xor edx, edx
    "31f6"  # xor esi, esi
    "31ff"  # xor edi, edi
    "cd80"  # int 0x80
    "5b"  # pop rbx
    "c3"  # ret
)


@attack(
    "int80",
    "system calls of 32 bits, which a filter for 64 bits does not know",
    PERMITTED,
)
def old_calls() -> None:
    if ARM:
        not_tried("no machine of this kind")
        return
    for label, number, first, second in (
        ("keyctl", 288, KEYCTL_GET_KEYRING_ID, -2),
        ("unshare", 310, CLONE_NEWUSER, 0),
        ("getpid", 20, 0, 0),
    ):
        in_child(partial(call_32, label, number, first, second))


def call_32(label: str, number: int, first: int, second: int) -> None:
    rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    area = mmap.mmap(-1, mmap.PAGESIZE, prot=rights)
    area.write(INT80)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)
    function = kind(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    result = function(number, first, second)
    if result >= 0:
        permitted(f"int 0x80 {label}: {result}")
    else:
        say("REFUSED", f"int 0x80 {label}: errno {-result}")


@attack("x32", "system calls with the numbers of x32", PERMITTED, only="kernel")
def x32_calls() -> None:
    if ARM:
        not_tried("no machine of this kind")
        return
    X32 = 0x40000000
    try:
        call_number(X32 | 272, "unshare", CLONE_NEWUSER)
    except OSError as error:
        say("REFUSED", f"x32 unshare: {error}")
    else:
        permitted("x32 unshare")


@attack(
    "filter-own",
    "a filter of its own that answers in the kernel's place (SECCOMP notify)",
    PERMITTED,
)
def own_filter() -> None:
    # What may stay open: a filter can only take away. A listener could answer for
    # set-user-ID programs, so it counts where no_new_privs is not set.
    PR_GET_NO_NEW_PRIVS = 39
    if ctypes.CDLL(None).prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        say("REFUSED", "no_new_privs is set")
    else:
        permitted("no_new_privs is not set")


@attack(
    "core-dump", "end with a core dump: the kernel's handler runs outside", PERMITTED
)
def dump_core() -> None:
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    attempt("limit", resource.setrlimit, resource.RLIMIT_CORE, (hard, hard))
    say("DONE", f"core limit {hard}")
    status = in_child(lambda: os.kill(os.getpid(), signal.SIGQUIT))
    if os.WCOREDUMP(status):
        permitted("a core was dumped")
