"""Ways out through /proc: links that lead past the mounts, and switches of the whole
kernel."""

from __future__ import annotations

import errno
import os
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
    read_secrets,
    say,
    show_content,
    show_file,
    write_everywhere,
)


def processes() -> list[int]:
    """List the processes in sight, ours left out, and the canary's id besides."""
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    others = [pid for pid in seen if pid != os.getpid()]
    return sorted({*others, FACTS["canary_pid"]})


@attack(
    "proc-root-one", "/proc/1/root as the way to the outside's files", SECRET, WRITTEN
)
def root_of_first() -> None:
    read_secrets("proc-root-one", "/proc/1/root")
    write_everywhere("proc-root-one", "/proc/1/root")


@attack("proc-root-parent", "/proc/PARENT/root", SECRET, WRITTEN)
def root_of_parent() -> None:
    read_secrets("proc-root-parent", f"/proc/{os.getppid()}/root")
    write_everywhere("proc-root-parent", f"/proc/{os.getppid()}/root")


@attack("proc-root-any", "/proc/PID/root of every process in sight", SECRET)
def root_of_any() -> None:
    for pid in processes():
        read_secrets("proc-root-any", f"/proc/{pid}/root")


@attack(
    "proc-root-dotdot",
    "/proc/self/root/.., /proc/thread-self/root, /proc/self/cwd/..",
    SECRET,
)
def root_dotdot() -> None:
    for root in (
        "/proc/self/root/../..",
        "/proc/thread-self/root/..",
        "/proc/self/cwd/../../..",
    ):
        read_secrets("proc-root-dotdot", root)


@attack("proc-cwd", "the working directory of every process in sight", SECRET)
def working_directories() -> None:
    for pid in processes():
        show_file("cwd", f"/proc/{pid}/cwd/{FACTS['canary_cwd_file']}")


@attack(
    "proc-fd", "the open files of every process in sight, opened again", SECRET, WRITTEN
)
def open_files() -> None:
    for pid in processes():
        folder = f"/proc/{pid}/fd"
        names = attempt(f"list {folder}", os.listdir, folder) or []
        for name in names:
            target = attempt(f"{folder}/{name}", os.readlink, f"{folder}/{name}")
            # Only a canary is opened: other files of this machine are nobody's
            # business.
            if target and FACTS["marker"] in target:
                show_file("fd", f"{folder}/{name}")
                attempt("write fd", change_target, f"{folder}/{name}")


@attack(
    "proc-map-files", "the mapped files of every process in sight", SECRET, only="root"
)
def mapped_files() -> None:
    for pid in processes():
        folder = f"/proc/{pid}/map_files"
        names = attempt(f"list {folder}", os.listdir, folder) or []
        for name in names:
            target = attempt(name, os.readlink, f"{folder}/{name}")
            if target and FACTS["marker"] in target:
                show_file("map_files", f"{folder}/{name}")


@attack("proc-environ", "the environment of every process in sight", SECRET)
def environments() -> None:
    for pid in processes():
        path = f"/proc/{pid}/environ"
        try:
            with open(path, "rb") as stream:
                content = stream.read()
        except OSError as error:
            say("REFUSED", f"{path}: {error.strerror}")
        else:
            show_content(path, content)


@attack("proc-cmdline", "the command line of every process in sight", SECRET)
def command_lines() -> None:
    for pid in processes():
        path = f"/proc/{pid}/cmdline"
        try:
            with open(path, "rb") as stream:
                content = stream.read()
        except OSError as error:
            say("REFUSED", f"{path}: {error.strerror}")
        else:
            show_content(path, content)


@attack(
    "proc-mem", "the memory of every process in sight by /proc/PID/mem", SECRET, WRITTEN
)
def memory_files() -> None:
    # Only at the address of the canary's buffer: no other process has a secret there to
    # break.
    for pid in processes():
        path = f"/proc/{pid}/mem"
        handle = attempt(path, os.open, path, os.O_RDWR)
        if handle is None:
            continue
        content = (
            attempt(f"read {path}", os.pread, handle, 200, FACTS["canary_address"])
            or b""
        )
        show_content(path, content)
        if FACTS["secret_start"].encode() in content:
            attempt(
                f"write {path}",
                os.pwrite,
                handle,
                b"out",
                FACTS["canary_address"] + 100,
            )
        os.close(handle)


@attack(
    "proc-self-mem",
    "/proc/self/mem to change pages of a read-only file's mapping",
    WRITTEN,
    only="kernel",
)
def own_memory() -> None:
    import ctypes
    import mmap

    # A private mapping: what is written must never reach the file (as "dirty cow" did).
    for path in FACTS["targets"]:
        descriptor = attempt(path, os.open, path, os.O_RDONLY)
        if descriptor is None:
            continue
        area = mmap.mmap(
            descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        handle = os.open("/proc/self/mem", os.O_RDWR)
        attempt("write", os.pwrite, handle, b"cow", address)


# Of its own namespaces: to write there changes nothing outside.
OWN_SWITCHES = (
    "/proc/sys/net/",
    "/proc/sys/user/",
    "/proc/sys/fs/mqueue/",
    "/proc/sys/kernel/shm",
    "/proc/sys/kernel/msg",
    "/proc/sys/kernel/sem",
    "/proc/sys/kernel/auto_msgmni",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/pid_max",  # of the process namespace since Linux 6.14
)


@attack(
    "proc-sys",
    "switches under /proc/sys: core_pattern, modprobe, and all others",
    PERMITTED,
    only="root",
)
def switches() -> None:
    # Opened for writing and closed: nothing is ever written.
    for folder, _folders, names in os.walk("/proc/sys"):
        for name in names:
            path = os.path.join(folder, name)
            if not path.startswith(OWN_SWITCHES):
                ask_to_write(path)


GLOBAL_FILES = (
    "/proc/sysrq-trigger",
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/kpageflags",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/scsi/scsi",
    "/proc/acpi/wakeup",
    "/proc/latency_stats",
)


@attack(
    "proc-global",
    "sysrq-trigger, kcore, kmsg and others of the kernel itself",
    PERMITTED,
    only="root",
)
def global_files() -> None:
    for path in GLOBAL_FILES:
        mode = os.O_RDONLY if path in ("/proc/kcore", "/proc/kmsg") else os.O_WRONLY
        ask_to_open(path, mode | os.O_NONBLOCK)


@attack(
    "proc-sysfs",
    "switches under /sys: uevent_helper, power, cgroup release agents",
    PERMITTED,
    only="root",
)
def sysfs() -> None:
    ask_to_write("/sys/kernel/uevent_helper")
    ask_to_write("/sys/power/state")
    for folder, folders, names in os.walk("/sys/fs/cgroup"):
        folders[:] = folders[:4]
        for name in names:
            if name in ("release_agent", "cgroup.procs", "memory.max", "pids.max"):
                ask_to_write(os.path.join(folder, name))


@attack(
    "proc-oom",
    "shield itself from the kernel's killer (oom_score_adj below 0)",
    PERMITTED,
    only="root",
)
def oom_shield() -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("-1")
    permitted("oom_score_adj -1")


@attack(
    "proc-exe-helper",
    "overwrite the box's own program by /proc/1/exe (as CVE-2019-5736)",
    PERMITTED,
    only="root",
)
def program_of_first() -> None:
    for pid in sorted({1, os.getppid()}):
        ask_to_write(f"/proc/{pid}/exe")


@attack(
    "proc-exe-self",
    "overwrite the interpreter by /proc/self/exe",
    PERMITTED,
    only="root",
)
def program_of_itself() -> None:
    ask_to_write("/proc/self/exe")
    ask_to_write(sys.executable)
    ask_to_write(os.__file__)


def ask_to_write(path: str) -> None:
    ask_to_open(path, os.O_WRONLY)


def ask_to_open(path: str, flags: int) -> None:
    """Open without O_TRUNC and close: the right to write, and not one byte of it."""
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC))
    except OSError as error:
        # A running program is found busy before its mount is asked whether it is
        # read-only.
        if error.errno == errno.ETXTBSY and not on_read_only_mount(path):
            permitted(f"{path}: only busy")
        else:
            say("REFUSED", f"{path}: {error.strerror}")
    else:
        permitted(path)


def on_read_only_mount(path: str) -> bool:
    handle = os.open(path, os.O_PATH)
    try:
        return bool(os.fstatvfs(handle).f_flag & os.ST_RDONLY)
    finally:
        os.close(handle)
