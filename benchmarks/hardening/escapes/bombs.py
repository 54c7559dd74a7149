"""Ways out through quantity: each bomb is bounded by itself, and ends after some
seconds."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import threading
import time

from hardening.escapes.attacker import (
    BOUNDS,
    FACTS,
    LEFT,
    attack,
    attempt,
    say,
    syscall,
)

HOLD_S = 1.5


def hold() -> None:
    """Stay at the top for as long as the outside needs to see it."""
    time.sleep(HOLD_S)


@attack("bomb-fork", "a fork bomb", BOUNDS)
def forks() -> None:
    children: list[int] = []
    for _count in range(FACTS["bomb_processes"]):
        try:
            child = os.fork()
        except OSError as error:
            say("REFUSED", f"fork after {len(children)}: {error.strerror}")
            break
        if child == 0:
            signal.alarm(int(HOLD_S) + 6)
            signal.pause()
            os._exit(0)
        children.append(child)
    say("DONE", f"{len(children)} processes")
    hold()
    for child in children:
        os.kill(child, signal.SIGKILL)


@attack(
    "bomb-tree",
    "a fork bomb whose parents leave, each in a session of its own",
    BOUNDS,
    LEFT,
)
def fork_tree() -> None:
    count = 0
    while count < FACTS["bomb_processes"]:
        try:
            child = os.fork()
        except OSError as error:
            say("REFUSED", f"fork after {count}: {error.strerror}")
            break
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                signal.alarm(int(HOLD_S) + 6)
                signal.pause()
            os._exit(0)
        os.waitpid(child, 0)
        count += 1
    say("DONE", f"{count} processes")
    hold()


@attack("bomb-threads", "a bomb of threads", BOUNDS)
def threads() -> None:
    threading.stack_size(65536)
    stop = threading.Event()
    started = 0
    for _count in range(FACTS["bomb_processes"]):
        thread = threading.Thread(target=stop.wait, args=(HOLD_S + 4,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            say("REFUSED", f"thread after {started}: {error}")
            break
        started += 1
    say("DONE", f"{started} threads")
    hold()
    stop.set()


@attack("bomb-memory", "memory of one process", BOUNDS)
def memory() -> None:
    fill(FACTS["bomb_memory"])
    hold()


@attack(
    "bomb-memory-shared",
    "memory of many processes, each below a limit of its own",
    BOUNDS,
)
def memory_of_many() -> None:
    parts = 8
    children: list[int] = []
    for _part in range(parts):
        child = os.fork()
        if child == 0:
            signal.alarm(int(HOLD_S) + 10)
            attempt("fill", fill, FACTS["bomb_memory"] // parts)
            hold()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


@attack("bomb-memory-file", "memory in a file without a name (memfd)", BOUNDS)
def memory_in_memfd() -> None:
    handle = os.memfd_create("bomb")
    write_much(handle, FACTS["bomb_memory"])
    hold()


@attack(
    "bomb-memory-sysv",
    "memory in a System V segment, which outlives the process",
    BOUNDS,
    LEFT,
)
def memory_sysv() -> None:
    IPC_CREAT = 0o1000
    segment = syscall(
        "shmget", FACTS["ipc_key"], FACTS["bomb_memory"], IPC_CREAT | 0o600
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, 0)
    chunk = 1 << 24
    for offset in range(0, FACTS["bomb_memory"], chunk):
        ctypes.memset(address + offset, 1, chunk)
    say("DONE", "segment filled")
    hold()


@attack("bomb-shm", "files in /dev/shm", BOUNDS)
def shared_memory() -> None:
    fill_folder("/dev/shm")


@attack("bomb-tmp", "files in /tmp", BOUNDS)
def temporary_files() -> None:
    fill_folder("/tmp")


@attack("bomb-work", "files in the work folder", BOUNDS)
def work_files() -> None:
    fill_folder(os.getcwd())


@attack("bomb-inodes", "empty files, until no folder takes one more", BOUNDS)
def empty_files() -> None:
    folder = f"/tmp/{FACTS['marker']}-own-inodes"
    os.mkdir(folder)
    for number in range(FACTS["bomb_files"]):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
    say("DONE", f"{FACTS['bomb_files']} files")
    hold()


@attack("bomb-descriptors", "open files", BOUNDS)
def descriptors() -> None:
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    attempt("limit", resource.setrlimit, resource.RLIMIT_NOFILE, (hard, hard))
    count = 0
    children: list[int] = []
    for _process in range(8):
        child = os.fork()
        if child == 0:
            signal.alarm(int(HOLD_S) + 10)
            try:
                while count < 10_000:
                    os.open("/dev/null", os.O_RDONLY)
                    count += 1
            except OSError as error:
                say("REFUSED", f"open after {count}: {error.strerror}")
            hold()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


@attack(
    "bomb-pipes", "memory of the kernel in pipes and sockets that nobody reads", BOUNDS
)
def kernel_memory() -> None:
    pairs = []
    total = 0
    while total < FACTS["bomb_memory"]:
        try:
            left, right = socket.socketpair()
            left.setblocking(False)
            pairs.append((left, right))
            while True:
                total += left.send(bytes(65536))
        except BlockingIOError:
            continue
        except OSError as error:
            say("REFUSED", f"after {total} bytes: {error.strerror}")
            break
    say("DONE", f"{total} bytes in sockets")
    hold()


@attack("bomb-output", "output without end, without a line feed", BOUNDS)
def output() -> None:
    for _part in range(FACTS["bomb_output"] >> 20):
        os.write(1, b"x" * (1 << 20))


@attack("bomb-errors", "output without end on standard error, in lines", BOUNDS)
def errors() -> None:
    line = b"an error of a stranger\n" * 40_000
    for _part in range(FACTS["bomb_output"] // len(line)):
        os.write(2, line)


def fill(size: int) -> mmap.mmap:
    """Take memory and touch each page of it."""
    area = mmap.mmap(-1, size)
    chunk = bytes([1]) * (1 << 20)
    for offset in range(0, size - (1 << 20) + 1, 1 << 20):
        area[offset : offset + (1 << 20)] = chunk
    say("DONE", f"{size >> 20} MiB touched")
    return area


def write_much(handle: int, size: int) -> None:
    written = 0
    chunk = bytes([1]) * (1 << 20)
    while written < size:
        written += os.write(handle, chunk)
    say("DONE", f"{written >> 20} MiB written")


def fill_folder(folder: str) -> None:
    """Write the bound and half of it again in files that one limit of file size cannot
    hold."""
    number = 0
    written = 0
    part = 64 << 20
    while written < FACTS["bomb_disk"]:
        path = os.path.join(folder, f"{FACTS['marker']}-own-bomb-{number}")
        handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            write_much(handle, part)
        finally:
            os.close(handle)
        written += part
        number += 1
    hold()
