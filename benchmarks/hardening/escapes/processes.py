"""Ways out through other processes: their memory, their files, signals, priorities and
limits."""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from hardening.escapes.attacker import (
    FACTS,
    PERMITTED,
    SECRET,
    SIGNALLED,
    WRITTEN,
    attack,
    attempt,
    own_world,
    permitted,
    probe,
    say,
    show_content,
    syscall,
)

PTRACE_PEEKDATA, PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 2, 16, 17, 0x4206


def strangers() -> list[int]:
    """List the canary, the parent and process 1: never a process that is nobody's
    canary.

    In a process namespace of its own, 1 and the parent are the box's; else they are
    left out."""
    if own_world():
        return sorted({FACTS["canary_pid"], 1, os.getppid()} - {os.getpid(), 0})
    return [FACTS["canary_pid"]]


class Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


@attack(
    "ptrace-attach", "ptrace(ATTACH) on a process outside, then read its memory", SECRET
)
def ptrace_attach() -> None:
    traced(PTRACE_ATTACH)


@attack(
    "ptrace-seize", "ptrace(SEIZE) on a process outside, then read its memory", SECRET
)
def ptrace_seize() -> None:
    traced(PTRACE_SEIZE)


def traced(request: int) -> None:
    for pid in strangers():
        if (
            attempt(f"ptrace {pid}", syscall, "ptrace", request, pid, None, None)
            is None
        ):
            continue
        if pid != FACTS["canary_pid"]:
            permitted(f"ptrace of {pid}")
            attempt("detach", syscall, "ptrace", PTRACE_DETACH, pid, None, None)
            continue
        if request == PTRACE_SEIZE:
            PTRACE_INTERRUPT = 0x4207
            syscall("ptrace", PTRACE_INTERRUPT, pid, None, None)
        os.waitpid(pid, 0x40000000)
        content = b""
        for offset in range(0, 64, 8):
            value = ctypes.c_uint64()
            place = FACTS["canary_address"] + offset
            syscall("ptrace", PTRACE_PEEKDATA, pid, place, ctypes.byref(value))
            content += int(value.value).to_bytes(8, "little")
        show_content("ptrace", content)
        syscall("ptrace", PTRACE_DETACH, pid, None, None)


@attack("ptrace-own-child", "ptrace a child of its own: the call alone", PERMITTED)
def ptrace_child() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        probe("ptrace(SEIZE) of a child", "ptrace", PTRACE_SEIZE, child, None, None)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@attack("vm-readv", "process_vm_readv of a process outside", SECRET)
def read_memory() -> None:
    for pid in strangers():
        buffer = ctypes.create_string_buffer(100)
        here = Vector(ctypes.addressof(buffer), 100)
        there = Vector(FACTS["canary_address"], 100)
        vectors = (pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if attempt(f"readv {pid}", syscall, "process_vm_readv", *vectors) is not None:
            show_content("process_vm_readv", buffer.raw)


@attack("vm-writev", "process_vm_writev into a process outside", WRITTEN)
def write_memory() -> None:
    buffer = ctypes.create_string_buffer(b"out", 3)
    here = Vector(ctypes.addressof(buffer), 3)
    there = Vector(FACTS["canary_address"] + 100, 3)
    vectors = (FACTS["canary_pid"], ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    syscall("process_vm_writev", *vectors)


@attack("pidfd-getfd", "take an open file of a process outside (pidfd_getfd)", SECRET)
def take_descriptor() -> None:
    for pid in strangers():
        handle = attempt(f"pidfd_open {pid}", syscall, "pidfd_open", pid, 0)
        if handle is None:
            continue
        number = FACTS["canary_descriptor"]
        taken = attempt(f"pidfd_getfd {pid}", syscall, "pidfd_getfd", handle, number, 0)
        if taken is not None:
            show_content("pidfd_getfd", os.pread(taken, 400, 0))


@attack("kcmp", "compare kernel objects with a process outside (kcmp)", PERMITTED)
def compare() -> None:
    for pid in strangers():
        probe(f"kcmp with {pid}", "kcmp", os.getpid(), pid, 3, 0, 0)


@attack(
    "process-madvise",
    "drop the memory of a process outside (process_madvise)",
    PERMITTED,
    only="root",
)
def advise() -> None:
    handle = syscall("pidfd_open", FACTS["canary_pid"], 0)
    there = Vector(FACTS["canary_address"] & ~0xFFF, 4096)
    MADV_COLD = 20
    probe(
        "process_madvise",
        "process_madvise",
        handle,
        ctypes.byref(there),
        1,
        MADV_COLD,
        0,
    )


@attack("move-pages", "move the memory of a process outside (move_pages)", PERMITTED)
def move_pages() -> None:
    # No page is named: the right to the process is checked all the same.
    pages, status = (ctypes.c_void_p * 1)(), (ctypes.c_int * 1)()
    pid = FACTS["canary_pid"]
    probe(
        "move_pages",
        "move_pages",
        pid,
        0,
        ctypes.byref(pages),
        None,
        ctypes.byref(status),
        0,
    )


@attack("signal-pid", "signal a process outside by its id", SIGNALLED)
def signal_by_pid() -> None:
    for pid in strangers():
        attempt(f"kill {pid}", os.kill, pid, signal.SIGURG)


@attack("signal-parent", "signal the parent, mmrepro and process 1", SIGNALLED)
def signal_parent() -> None:
    # SIGURG is ignored by whoever does not wait for it: the canaries do.
    for pid in sorted(
        {FACTS["harness_pid"], os.getppid()} | ({1} if own_world() else set())
    ):
        attempt(f"kill {pid}", os.kill, pid, signal.SIGURG)


@attack("signal-group", "signal its own process group and session", SIGNALLED)
def signal_group() -> None:
    signal.signal(signal.SIGURG, signal.SIG_IGN)
    attempt("killpg 0", os.killpg, 0, signal.SIGURG)
    attempt(
        "killpg of the session", os.killpg, os.getsid(0) or os.getpgrp(), signal.SIGURG
    )


@attack("signal-all", "signal everything (kill -1)", SIGNALLED)
def signal_all() -> None:
    if not own_world():
        # Sharing the outside's processes is out already; the whole machine is spared.
        say(
            "DONE", "the outside's processes are in sight: only the canary is signalled"
        )
        os.kill(FACTS["canary_pid"], signal.SIGURG)
        return
    signal.signal(signal.SIGURG, signal.SIG_IGN)
    os.kill(-1, signal.SIGURG)


@attack("signal-pidfd", "signal by a process handle", SIGNALLED)
def signal_by_handle() -> None:
    for pid in strangers():
        handle = attempt(f"pidfd_open {pid}", syscall, "pidfd_open", pid, 0)
        if handle is not None:
            attempt(
                "send", syscall, "pidfd_send_signal", handle, signal.SIGURG, None, 0
            )


@attack("signal-owner", "signal through F_SETOWN and SIGIO of a pipe", SIGNALLED)
def signal_by_owner() -> None:
    import fcntl

    reading, writing = os.pipe()
    F_SETSIG = 10
    fcntl.fcntl(reading, fcntl.F_SETOWN, FACTS["canary_pid"])
    fcntl.fcntl(reading, F_SETSIG, signal.SIGURG)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writing, b"x")


@attack(
    "priority-other",
    "slow a process outside down (setpriority, scheduler, ioprio)",
    SIGNALLED,
)
def slow_other() -> None:
    pid = FACTS["canary_pid"]
    attempt("nice", os.setpriority, os.PRIO_PROCESS, pid, 5)
    attempt("scheduler", os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0))
    attempt("affinity", os.sched_setaffinity, pid, {0})
    attempt("ioprio", syscall, "ioprio_set", 1, pid, (2 << 13) | 7)


@attack("limit-other", "set the limits of a process outside (prlimit)", SIGNALLED)
def limit_other() -> None:
    _soft, hard = resource.prlimit(FACTS["canary_pid"], resource.RLIMIT_NOFILE)
    resource.prlimit(FACTS["canary_pid"], resource.RLIMIT_NOFILE, (100, hard))


@attack(
    "priority-own",
    "a real-time scheduler or a better priority for itself",
    PERMITTED,
    only="root",
)
def raise_own() -> None:
    # At once given back: two processors serve others too.
    if attempt("fifo", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)):
        permitted("SCHED_FIFO")
    elif attempt("nice", os.setpriority, os.PRIO_PROCESS, 0, -5):
        permitted("nice -5")
    attempt("back", os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))


@attack("limit-own", "raise its own hard limits", PERMITTED, only="root")
def raise_limits() -> None:
    for name in (
        "RLIMIT_NOFILE",
        "RLIMIT_NPROC",
        "RLIMIT_FSIZE",
        "RLIMIT_AS",
        "RLIMIT_CORE",
    ):
        kind = getattr(resource, name)
        _soft, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY:
            say("DONE", f"{name}: no limit to raise")
            continue
        try:
            resource.setrlimit(kind, (hard, hard + 1))
        except (OSError, ValueError) as error:
            # Python calls EPERM of setrlimit(2) a wrong value.
            say("REFUSED", f"{name}: {error}")
        else:
            permitted(f"{name} above {hard}")


@attack("terminal-keys", "push keys into the terminal (TIOCSTI, TIOCLINUX)", PERMITTED)
def push_keys() -> None:
    import fcntl

    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        say("REFUSED", f"/dev/tty: {error.strerror}")
        terminal = 0
    if not os.isatty(terminal):
        say("REFUSED", "no terminal is in reach")
        return
    TIOCSTI, TIOCLINUX = 0x5412, 0x541C
    # A line feed alone: should a shell read it, it is an empty command.
    if attempt("TIOCSTI", fcntl.ioctl, terminal, TIOCSTI, b"\n") is not None:
        permitted("TIOCSTI")
    if attempt("TIOCLINUX", fcntl.ioctl, terminal, TIOCLINUX, b"\x06") is not None:
        permitted("TIOCLINUX")
