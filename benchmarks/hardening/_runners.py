"""What an attack is run by: nothing at all, or a reference box of bubblewrap.

A runner takes the outside, a script, a time limit and what is weakened, and returns an
`AttackRun`. `unboxed` shows that an attack can get out; `bwrap` shows what a plain
bubblewrap holds, and each of its weakened forms what goes red then."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hardening._filter import box_filter
from hardening._outside import (
    ESCAPES,
    QUOTE,
    AttackRun,
    Bounds,
    Outside,
    boxed,
    file_systems,
    nameless,
    proportional,
    threads,
    used_above,
)
from hardening.escapes import peer as peers

COLLECTED = (
    "result.json",
    "output.txt",
    "stdout",
    "stderr",
    "client.log",
    "server.log",
    "recording.jsonl",
    "events.jsonl",
    "report.md",
    "case.json",
    "race",
    "sparse.json",
)
"""What a harness would read of a stranger's work folder."""


PEER = ESCAPES / "peer.py"


class HungError(Exception):
    """A reader of results waited for what never came."""


def unboxed(
    outside: Outside, script: Path, seconds: float, _weak: str = ""
) -> AttackRun:
    """Run the script as a careless harness would: with everything of its user's."""
    work = Path(tempfile.mkdtemp(dir=outside.scratch))
    command = [sys.executable, str(script)]
    if os.geteuid() == 0:
        # Root alone could unmount what the outside itself stands on. One folder is
        # hidden by a mount, one is read-only: what mounts can undo.
        mounts = f'mount -t tmpfs none {outside.hidden} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mounts, "sh", *command]
    command = on_terminal(script, command)
    if script.stem.startswith("server-"):
        with NaiveClient(outside.facts()["serve"]):
            status, output = run_plainly(command, outside, work, seconds)
    elif script.stem.startswith("peer-"):
        with BarePeer(outside, work) as peer:
            status, output = run_plainly(command, outside, work, seconds)
            if peer.died:
                status = None
    elif script.stem.startswith("door-"):
        with NaiveDoor(outside.door) as door:
            status, output = run_plainly(command, outside, work, seconds)
        if door.died:
            status = None
    else:
        status, output = run_plainly(command, outside, work, seconds)
    return naive_end(work, status, output)


class NaiveDoor:
    """A recorder without any care: it keeps what comes, and does what a request
    says."""

    def __init__(self, place: str) -> None:
        host, _, port = place.rpartition(":")
        self.listener = socket.create_server((host, int(port)), backlog=512)
        self.kept: list[bytes] = []
        self.died = False

    def __enter__(self) -> NaiveDoor:
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        # The thread that waits in accept(2) wakes by this alone.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self) -> None:
        while True:
            try:
                connection, _address = self.listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self.answer, args=(connection,), daemon=True
            ).start()

    def answer(self, connection: socket.socket) -> None:
        careless = contextlib.suppress(OSError, http.client.HTTPException)
        with connection, connection.makefile("rb") as stream, careless:
            try:
                answer = self.obey(stream)
            except ValueError:
                self.died = True
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + answer)

    def obey(self, stream: IO[bytes]) -> bytes:
        """Keep a request's body, fetch what its address names.

        Raises:
            ValueError: if it is malformed.
        """
        request = stream.readline()
        headers = {}
        for line in iter(stream.readline, b"\r\n"):
            if not line:
                break
            self.kept.append(line)
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        if b"content-length" in headers:
            self.kept.append(stream.read(int(headers[b"content-length"])))
        if b"transfer-encoding" in headers:
            self.kept.append(stream.read(int(stream.readline(), 16)))
        target = request.split()[1].decode() if len(request.split()) > 1 else "/"
        if target.startswith("http://127.0.0.1:"):
            with urllib.request.urlopen(target, timeout=2) as fetched:
                return bytes(fetched.read())
        path = target.removeprefix("file://")
        return Path(path).read_bytes() if Path(path).is_file() else b""


class NaiveClient:
    """A reader of a server's answers without any care: it takes all of them into
    memory."""

    def __init__(self, port: str) -> None:
        self.address = ("127.0.0.1", int(port))
        self.ended = threading.Event()
        self.kept: list[bytes] = []

    def __enter__(self) -> NaiveClient:
        threading.Thread(target=self.ask, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.ended.set()

    def ask(self) -> None:
        while not self.ended.wait(0.1):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(self.address) as asked,
            ):
                asked.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while part := asked.recv(1 << 20):
                    self.kept.append(part)


class BarePeer:
    """The other side of an attack, which nothing keeps apart from it."""

    def __init__(self, outside: Outside, work: Path) -> None:
        words = ["serve", outside.peer_secret, outside.marker, "60"]
        self.segment = peers.segment_key(outside.marker)
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), *words],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> BarePeer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()
        subprocess.run(["ipcrm", "-M", hex(self.segment)], capture_output=True)

    @property
    def died(self) -> bool:
        return self.process.poll() is not None


def on_terminal(script: Path, command: list[str]) -> list[str]:
    """Give the attack that needs one a terminal, as a user at a shell has."""
    if script.stem == "terminal-keys":
        return ["script", "-qefc", shlex.join(command), "/dev/null"]
    return command


def run_plainly(
    command: list[str], outside: Outside, work: Path, seconds: float
) -> tuple[int | None, bytes]:
    """Run a command without any care: reads all, waits for the end of its output, then
    kills it."""
    process = subprocess.Popen(
        command,
        cwd=work,
        env=outside.environment(),
        stdin=outside.standard_input.open("r"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=outside.inherited,
        preexec_fn=allow_core,
    )
    try:
        output, _nothing = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        process.kill()
        return None, late.stdout or b""
    return process.returncode, output


def allow_core() -> None:
    """Raise the limit of a core dump to what the user may: a careless harness leaves
    it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    most = 64 << 20
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))


def naive_end(work: Path, status: int | None, output: bytes) -> AttackRun:
    """Read results and remove the folder as if a friend had written it."""
    try:
        with time_limit(6):
            read_race(work / "race")
            names = "\n".join(f"file={path.name}" for path in work.iterdir())
            for name in COLLECTED:
                path = work / name
                if path.exists():
                    output += path.read_bytes()
                    path.write_bytes(b"read\n")
            for folder in ("out", "results", "logs"):
                if (work / folder).is_dir():
                    (work / folder / "log.txt").write_text("log\n", encoding="ascii")
    except HungError:
        status, names = None, "the reader hung"
    except (OSError, MemoryError) as problem:
        status, names = None, f"the reader ended with {type(problem).__name__}"
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(work)
    told = names.encode("utf-8", "surrogateescape") + b"\n" + output
    return AttackRun(status, output, told)


def read_race(path: Path) -> None:
    """Look at a file and then write it, again and again: between the two it can be
    swapped."""
    seconds = 2 if os.path.lexists(path) else 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if not path.is_symlink():
                path.write_text("read\n", encoding="ascii")


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise HungError in the main thread when the time is over."""

    def stop(_number: int, _frame: Any) -> None:
        raise HungError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


# ---------------------------------------------------------------- the reference box

WEAK = {
    "mounts": (
        "capabilities over its own mounts, of which one is read-only and one hides"
    ),
    "net": "the outside's network",
    "pid": "the outside's processes, and its /proc",
    "seccomp": "no filter",
    "userns": "no filter, and user namespaces of its own",
    "home": "the home, the environment and inherited files",
    "shm": "the outside's /dev/shm and /tmp, its IPC",
    "limits": "no limits and no watch",
    "session": "the terminal of the outside",
    "work": "a work folder of the outside, read without care",
    "end": "no end of what the box started",
}


def bwrap(outside: Outside, script: Path, seconds: float, weak: str = "") -> AttackRun:
    """Run the script in the reference box, or with one thing of it opened again."""
    work = outside.scratch / "work"
    command = box_command(outside, script, work, weak)
    reading = None
    if weak not in ("seccomp", "userns", "mounts", "session"):
        reading = filter_descriptor()
        command[1:1] = ["--seccomp", str(reading)]
    inherited = outside.inherited if weak == "home" else []
    limits = None if weak == "limits" else set_limits
    if weak == "work":
        work.mkdir()
    if weak == "session":
        command.remove("--new-session")
    standard_input = (
        outside.standard_input.open("r") if weak == "home" else subprocess.DEVNULL
    )
    inner = [find_python()]
    if weak != "limits":
        # Counted by user and user namespace (Linux 5.14), so set inside: there only the
        # box counts.
        most = outside.bounds.processes // 2
        inner = ["prlimit", f"--nproc={most}:{most}", *inner]
    # The environment goes to bubblewrap's own process 1 too, where --clearenv does not
    # reach.
    environment = outside.environment() if weak == "home" else {"PATH": os.defpath}
    program = subprocess.Popen(
        on_terminal(script, [*command, *inner, str(script)]),
        env=environment,
        stdin=standard_input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=limits,
        pass_fds=[*inherited, *([reading] if reading is not None else [])],
    )
    if reading is not None:
        os.close(reading)
    watch = None if weak == "limits" else BoxWatch(program, outside)
    status, output = read_bounded(
        program, seconds, None if weak == "limits" else outside.bounds
    )
    if watch is not None:
        watch.end()
    if weak == "work":
        return naive_end(work, status, output)
    quoted = b"".join(
        QUOTE + repr(line).encode() + b"\n" for line in output.splitlines()[:1000]
    )
    return AttackRun(status, output, quoted)


def box_command(outside: Outside, script: Path, work: Path, weak: str) -> list[str]:
    """Write the command line of the box."""
    command = [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
    ]
    if weak == "end":
        command.remove("--die-with-parent")
    if weak == "mounts":
        command += [
            "--ro-bind",
            "/",
            "/",
            "--tmpfs",
            str(outside.hidden),
            "--cap-add",
            "ALL",
        ]
    else:
        command += ["--cap-drop", "ALL", *read_only_system(), *read_only_python()]
        command += ["--ro-bind", str(script), str(script)]
    if weak not in ("userns", "mounts"):
        command += ["--disable-userns"]
    if weak == "net":
        command += ["--share-net"]
    if weak in ("pid", "end"):
        command.remove("--unshare-all")
        command += [f"--unshare-{name}" for name in ("ipc", "net", "uts", "cgroup")]
    size = str(outside.bounds.disk // 2)
    if weak == "pid":
        command += ["--bind", "/proc", "/proc"]
    else:
        # Root keeps its number outside: without a capability it may still write
        # switches.
        command += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    command += ["--dev", "/dev"]
    if weak == "shm":
        command += ["--bind", "/tmp", "/tmp", "--bind", "/dev/shm", "/dev/shm"]
        command += ["--bind", "/var/tmp", "/var/tmp"]
    elif weak == "limits":
        command += ["--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]
    elif weak != "mounts":
        command += [
            "--size",
            size,
            "--tmpfs",
            "/tmp",
            "--size",
            size,
            "--tmpfs",
            "/dev/shm",
        ]
    if weak == "home":
        command += ["--bind", str(outside.folder), str(outside.folder)]
    else:
        command += [
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin:/bin",
            "--setenv",
            "HOME",
            "/tmp",
        ]
    if weak == "work":
        command += ["--bind", str(work), "/work"]
    elif weak == "limits":
        command += ["--tmpfs", "/work"]
    else:
        command += ["--size", size, "--tmpfs", "/work"]
    return [*command, "--chdir", "/work"]


def read_only_system() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    for name in ("hosts", "passwd", "group", "ld.so.cache", "alternatives"):
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def read_only_python() -> list[str]:
    prefix = Path(find_python()).resolve().parent.parent
    if prefix.is_relative_to("/usr"):
        return []
    return ["--ro-bind", str(prefix), str(prefix)]


def find_python() -> str:
    """Return an interpreter that every user may run."""
    return "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable


def filter_descriptor() -> int:
    """Put the filter where bubblewrap reads it from."""
    number = os.memfd_create("filter", 0)
    os.write(number, box_filter())
    os.lseek(number, 0, os.SEEK_SET)
    return number


def set_limits() -> None:
    """Bound what the kernel can bound for one process."""
    bounds = Bounds()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    resource.setrlimit(resource.RLIMIT_FSIZE, (bounds.disk // 2, bounds.disk // 2))


class BoxWatch:
    """Ends a box whose processes take more than half of what the outside accepts."""

    def __init__(self, program: subprocess.Popen[bytes], outside: Outside) -> None:
        self.program, self.bounds = program, outside.bounds
        self.spared = {outside.canary.process.pid}
        self.comm = outside.comm
        self.used_before = file_systems([os.getpid()])
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while not self.ended.wait(0.02):
            inside = [pid for pid in boxed(self.comm) if pid not in self.spared]
            count = sum(map(threads, inside))
            memory = sum(map(proportional, inside[:64])) + sum(
                map(nameless, inside[:64])
            )
            _size, files = used_above(self.used_before, file_systems(inside[:8]))
            too_much = (
                count > self.bounds.processes // 2
                or memory > self.bounds.memory // 2
                or files > self.bounds.files // 2
            )
            if too_much:
                self.program.kill()
                return

    def end(self) -> None:
        self.ended.set()
        self.thread.join(timeout=5)


def read_bounded(
    program: subprocess.Popen[bytes], seconds: float, bounds: Bounds | None
) -> tuple[int | None, bytes]:
    """Read a box's output to its bound and its time, then end the box."""
    assert program.stdout is not None
    limit = bounds.output if bounds is not None else 1 << 40
    parts: list[bytes] = []
    deadline = time.monotonic() + seconds
    os.set_blocking(program.stdout.fileno(), False)
    size = 0
    while time.monotonic() < deadline and size < limit:
        # Asked before the read: what was written before the end is then surely read.
        ended = program.poll() is not None
        part = program.stdout.read(1 << 20)
        if part:
            parts.append(part[: limit - size])
            size += len(part)
        elif part == b"" or ended:
            break
        else:
            time.sleep(0.01)
    program.kill()
    program.wait()
    program.stdout.close()
    return program.returncode, b"".join(parts)
