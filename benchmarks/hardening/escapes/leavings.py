"""Ways out through the end: what stays when the box is over, and ends that never
come."""

from __future__ import annotations

import os
import signal
import time

from hardening.escapes.attacker import FACTS, LEFT, attack, attempt, say, syscall

LIFE_S = 60


def outlive() -> None:
    """Wait much longer than the box should live, but not for ever."""
    signal.alarm(LIFE_S)
    time.sleep(LIFE_S)
    os._exit(0)


@attack(
    "left-daemon",
    "a daemon: forked twice, a session of its own, no standard streams",
    LEFT,
)
def daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (0, 1, 2):
                os.close(number)
            outlive()
        os._exit(0)
    os.wait()
    say("DONE", "daemon started")


@attack(
    "left-holding",
    "a daemon that holds the output open, so that a reader waits for ever",
    LEFT,
)
def holding() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            outlive()
        os._exit(0)
    os.wait()


@attack(
    "left-stubborn", "ignores every signal that can be ignored, and never ends", LEFT
)
def stubborn() -> None:
    for number in range(1, 64):
        if number not in (signal.SIGALRM, signal.SIGKILL, signal.SIGSTOP, 32, 33):
            attempt_quietly(number)
    say("DONE", "signals ignored")
    outlive()


@attack("left-stopped", "stops itself and its parent's group by SIGSTOP", LEFT)
def stopped() -> None:
    if os.fork() == 0:
        os.setsid()
        signal.alarm(LIFE_S)
        os.kill(os.getpid(), signal.SIGSTOP)
        outlive()
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)


@attack(
    "left-endless", "a client that never ends, in a loop that costs a processor", LEFT
)
def endless() -> None:
    signal.alarm(LIFE_S)
    deadline = time.monotonic() + LIFE_S
    while time.monotonic() < deadline:
        pass


@attack("left-respawn", "a pair of processes that start each other again", LEFT)
def respawn() -> None:
    deadline = time.monotonic() + LIFE_S
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < deadline:
            child = os.fork()
            if child == 0:
                os.setsid()
                time.sleep(0.2)
                os._exit(0)
            os.waitpid(child, 0)
        os._exit(0)
    say("DONE", "pair started")


@attack(
    "left-vfork-death",
    "dies in the middle (SIGKILL of itself) with a child alive",
    LEFT,
)
def sudden_death() -> None:
    if os.fork() == 0:
        os.setsid()
        outlive()
    os.kill(os.getpid(), signal.SIGKILL)


@attack("left-sysv", "a System V segment, semaphores and a queue", LEFT)
def system_v() -> None:
    IPC_CREAT = 0o1000
    attempt("shmget", syscall, "shmget", FACTS["ipc_key"], 4096, IPC_CREAT | 0o600)
    say("DONE", "segment left")


@attack("left-shm", "names in /dev/shm, /tmp and /var/tmp", LEFT)
def shared_names() -> None:
    for folder in ("/dev/shm", "/tmp", "/var/tmp"):
        path = f"{folder}/{FACTS['marker']}-left"
        handle = attempt(path, os.open, path, os.O_CREAT | os.O_WRONLY, 0o600)
        if handle is not None:
            os.close(handle)


@attack("left-lock", "a lock on a file of the outside that is never given back", LEFT)
def lock() -> None:
    import fcntl

    for path in FACTS["targets"]:
        handle = attempt(path, os.open, path, os.O_RDONLY)
        if handle is None:
            continue
        attempt("flock", fcntl.flock, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fork() == 0:
            os.setsid()
            outlive()


def attempt_quietly(number: int) -> None:
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        return
