"""Victims: tiny programs that say ``ready`` on their standard output and then
misbehave."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Victim = subprocess.Popen[bytes]
StartVictim = Callable[..., Victim]

SPINNING = """
    import sys, threading

    class LRUCache:
        def popitem(self, needle="x" * 500):
            count = 0
            while True:
                count += 1
                if count == 1:
                    print("ready", flush=True)

    threading.Thread(target=LRUCache().popitem, name="process_input_sockets", daemon=True).start()
    sys.stdin.read()
"""

# Waits for a lock that nobody releases, beside a thread that waits for input.
BLOCKED = """
    import sys, threading

    threading.Thread(target=sys.stdin.read, daemon=True).start()
    lock = threading.Lock()
    lock.acquire()

    def wait_for_ever():
        print("ready", flush=True)
        lock.acquire()

    wait_for_ever()
"""

# System calls without end: cheap ones, one after the other.
CALLING = """
    import os

    print("ready", flush=True)
    while True:
        os.stat("/proc/self/status")
"""

# Two children, one of which calls itself as vLLM's does.
PARENT = """
    import subprocess, sys

    child = "import sys; print('up', flush=True); sys.stdin.read()"
    children = [
        subprocess.Popen(
            [title, "-S", "-c", child],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for title in ("VLLM::EngineCore", "plain-child")
    ]
    for process in children:
        process.stdout.readline()
    print("ready", *(process.pid for process in children), flush=True)
    sys.stdin.read()
"""

# One thread computes without the GIL, another polls some thousand times a second.
POLLED = """
    import hashlib, sys, threading, time
    def compute():
        while True:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10_000_000)
    def poll():
        while True:
            time.sleep(0.0003)
    for target in (compute, poll):
        threading.Thread(target=target, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
"""

PROGRAMS = {
    "spinning": SPINNING,
    "spinning-beside-a-poller": POLLED,
    "blocked": BLOCKED,
    "calling": CALLING,
    "parent": PARENT,
}


@pytest.fixture
def start_victim() -> Iterator[StartVictim]:
    """Start one of PROGRAMS and return it when it has said ``ready``; ended after the
    test."""
    started: list[Victim] = []

    def start(kind: str) -> Victim:
        victim = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAMS[kind])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(victim)
        assert victim.stdout is not None
        said = victim.stdout.readline().decode().split()
        assert said[:1] == ["ready"]
        victim.said = [int(word) for word in said[1:]]  # type: ignore[attr-defined]
        return victim

    yield start
    for victim in started:
        victim.kill()
        victim.communicate()  # closes its standard input too: its children end with it


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return tmp_path / "evidence"
