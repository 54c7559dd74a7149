"""The outside of a box: canaries that an attack must not reach, and the judge of what
it did.

An attack's own word counts for nothing but a probe for a right of the whole kernel:
everything else is a fact that is seen here, from outside."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import json
import os
import pwd
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ESCAPES = Path(__file__).resolve().parent / "escapes"
SETTLE_S = 3.0
"""How long what a box started may take to be gone after its end."""

WATCHED_SWITCHES = (
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hostname",
    "kernel/sysrq",
    "vm/overcommit_memory",
    "fs/suid_dumpable",
    "kernel/panic",
    "net/ipv4/ip_forward",
)


@dataclass(frozen=True)
class Bounds:
    """What the outside accepts as the most that a box may take."""

    memory: int = 512 << 20
    processes: int = 300
    disk: int = 256 << 20
    files: int = 20_000
    descriptors: int = 40_000
    output: int = 32 << 20
    own_files: int = 200

    def bombs(self) -> dict[str, int]:
        """Name the sizes of the bombs: each well above its bound, none dangerous."""
        return {
            "bomb_memory": 2 * self.memory,
            "bomb_processes": 2 * self.processes,
            "bomb_disk": 2 * self.disk,
            "bomb_files": 2 * self.files,
            "bomb_output": 2 * self.output,
        }


class AttackRun(NamedTuple):
    """What came of a script: its end, its output, and what mmrepro itself said of it.

    `authority` is what a reader takes for mmrepro's own word: its screen, its outputs.
    Lines that begin with `QUOTE` are understood as the stranger's."""

    exit_status: int | None
    output: bytes
    authority: bytes = b""


QUOTE = b"client: "


@dataclass
class EscapeFinding:
    """What the outside found of one attack."""

    id: str
    state: str
    """`out`, `held` or `not-tried`."""
    facts: list[str] = field(default_factory=list)
    why: str = ""

    @property
    def failed(self) -> bool:
        """Tell whether the rehearsal itself failed: the attack never ran, or broke."""
        return self.state == "not-tried" and self.why.startswith(
            (NEVER_BEGAN, "BROKEN")
        )


NEVER_BEGAN = "it never began"

CANARY = r"""
import ctypes, json, mmap, os, resource, signal, sys
secret, path, report = sys.argv[1], sys.argv[2], int(sys.argv[3])
buffer = ctypes.create_string_buffer(secret.encode(), 8192)
descriptor = os.open(path, os.O_RDONLY)
mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
seen = []
for name in ("SIGURG", "SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGIO"):
    signal.signal(getattr(signal, name), lambda number, _frame: seen.append(number))
hello = {"address": ctypes.addressof(buffer), "descriptor": descriptor}
os.write(report, json.dumps(hello).encode() + b"\n")
for _line in sys.stdin:
    state = {
        "signals": seen, "memory": buffer.raw.hex()[:512],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "scheduler": os.sched_getscheduler(0),
        "processors": sorted(os.sched_getaffinity(0)),
    }
    os.write(report, json.dumps(state).encode() + b"\n")
"""


class CanaryProcess:
    """A process outside, of the same user, with a secret in each part of it."""

    def __init__(self, secret: str, folder: Path, secret_file: Path, log: Path) -> None:
        reading, writing = os.pipe()
        environment = {
            "PATH": os.defpath,
            "MMREPRO_ESCAPE_CANARY": secret + "-environment",
        }
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    CANARY,
                    secret + "-memory",
                    str(secret_file),
                    str(writing),
                ],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                cwd=folder,
                env=environment,
                pass_fds=[writing],
                start_new_session=True,
            )
        os.close(writing)
        self.reports = os.fdopen(reading, "rb")
        hello = json.loads(self.reports.readline())
        self.address: int = hello["address"]
        self.descriptor: int = hello["descriptor"]

    def state(self) -> dict[str, Any]:
        """Ask the process for its state; one that vanished or hangs says so."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
            with selectors.DefaultSelector() as waiting:
                waiting.register(self.reports, selectors.EVENT_READ)
                if not waiting.select(3):
                    return {"gone": "it does not answer"}
            return dict(json.loads(self.reports.readline()))
        except (OSError, ValueError) as error:
            return {"gone": str(error)}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reports.close()


class Listeners:
    """Sockets outside, each of which notes who reached it and answers with a secret."""

    def __init__(self, folder: Path, marker: str, secret: str) -> None:
        self.reached: list[str] = []
        self.secret = secret
        self.selector = selectors.DefaultSelector()
        self.stop_reading, self.stop_writing = os.pipe()
        self.selector.register(self.stop_reading, selectors.EVENT_READ, None)

        self.tcp4 = self.listen(socket.AF_INET, ("127.0.0.1", 0), "TCP 127.0.0.1")
        self.tcp6 = 0
        with contextlib.suppress(OSError):
            self.tcp6 = self.listen(socket.AF_INET6, ("::1", 0), "TCP ::1")
        self.udp4 = self.listen(
            socket.AF_INET, ("127.0.0.1", 0), "UDP", socket.SOCK_DGRAM
        )

        self.abstract = f"{marker}-abstract"
        self.listen(socket.AF_UNIX, "\0" + self.abstract, "abstract socket")
        datagram = "\0" + self.abstract + "-datagram"
        self.listen(socket.AF_UNIX, datagram, "abstract datagram", socket.SOCK_DGRAM)

        display = Path("/tmp") / f"{marker}-display"
        self.paths = {
            name: folder / name for name in ("docker.sock", "agent.sock", "bus")
        }
        self.paths["display"] = display
        for name, path in self.paths.items():
            self.listen(socket.AF_UNIX, str(path), name)

        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def listen(
        self, family: int, address: Any, name: str, kind: int = socket.SOCK_STREAM
    ) -> int:
        """Open one listener; return its port, 0 where it has none."""
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(64)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, name)
        return int(listener.getsockname()[1]) if family != socket.AF_UNIX else 0

    def serve(self) -> None:
        while True:
            for key, _events in self.selector.select():
                if key.data is None:
                    return
                listener = key.fileobj
                assert isinstance(listener, socket.socket)
                with contextlib.suppress(OSError):
                    self.note(listener, key.data)

    def note(self, listener: socket.socket, name: str) -> None:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(4096)
            self.reached.append(name)
            return
        connection, _address = listener.accept()
        self.reached.append(name)
        with connection:
            connection.settimeout(1)
            connection.sendall(self.secret.encode())

    def close(self) -> None:
        os.write(self.stop_writing, b"x")
        self.thread.join(timeout=5)
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()
        for number in (self.stop_reading, self.stop_writing):
            os.close(number)
        for path in self.paths.values():
            path.unlink(missing_ok=True)


class Peaks:
    """The most that the processes of a box took, sampled from outside."""

    INTERVAL_S = 0.05

    def __init__(self, comm: str, spared: set[int]) -> None:
        self.comm, self.spared = comm, spared
        self.memory = self.processes = self.disk = self.files = self.descriptors = 0
        self.available_before = self.available_least = available_memory()
        self.own_before = self.own_most = resident(os.getpid())
        self.own_files_before = self.own_files = open_files(os.getpid())
        self.used_before = file_systems([os.getpid()])
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        while not self.ended.wait(self.INTERVAL_S):
            self.sample()

    def sample(self) -> None:
        inside = [pid for pid in boxed(self.comm) if pid not in self.spared]
        # Threads are what the kernel's limits count.
        self.processes = max(self.processes, sum(map(threads, inside)))
        memory = sum(map(resident, inside))
        if memory > self.memory:
            # Pages that forks share are counted once; this is slow, so only for a new
            # peak.
            shared_once = sum(map(proportional, inside[:40]))
            others = sum(map(resident, inside[40:])) // 4
            self.memory = max(
                self.memory, shared_once + others + sum(map(nameless, inside[:40]))
            )
        else:
            self.memory = max(self.memory, sum(map(nameless, inside[:40])))
        disk, files = used_above(self.used_before, file_systems(inside[:20]))
        self.disk, self.files = max(self.disk, disk), max(self.files, files)
        self.descriptors = max(self.descriptors, sum(map(open_files, inside[:40])))
        self.available_least = min(self.available_least, available_memory())
        self.own_most = max(self.own_most, resident(os.getpid()))
        self.own_files = max(self.own_files, open_files(os.getpid()))

    def end(self) -> None:
        self.ended.set()
        self.thread.join(timeout=10)


def boxed(comm: str) -> list[int]:
    """List the descendants of this process, and whatever carries the name of the
    attacks."""
    parents: dict[int, int] = {}
    named = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(
                encoding="utf-8", errors="replace"
            )
        except OSError:
            continue
        process_name, _, rest = stat.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        if state == "Z":
            continue
        parents[int(name)] = int(parent)
        if process_name == comm:
            named.add(int(name))
    found = set(named)
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and pid != os.getpid():
            found.add(pid)
    return sorted(found)


def named_processes(comm: str) -> list[int]:
    """List the processes that carry the name of the attacks."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if (
                    Path("/proc", name, "comm").read_text(encoding="utf-8").strip()
                    == comm
                ):
                    state = Path("/proc", name, "stat").read_text(encoding="utf-8")
                    if state.rpartition(")")[2].split()[0] != "Z":
                        found.append(int(name))
    return found


def resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return (
            int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            * 4096
        )
    return 0


def proportional(pid: int) -> int:
    """Return a process's memory, what it shares divided among the sharers."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(
            encoding="ascii", errors="replace"
        )
    except OSError:
        return resident(pid)
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def threads(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[17])
    return 0


def open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def nameless(pid: int) -> int:
    """Return the bytes in files of a process that have no name (memfd)."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd")[:64]:
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    total += os.stat(path).st_blocks * 512
    return total


def file_systems(inside: list[int]) -> dict[int, tuple[int, int]]:
    """Return bytes and files in each temporary file system that the processes see."""
    sizes: dict[int, tuple[int, int]] = {}
    for pid in inside:
        try:
            table = Path(f"/proc/{pid}/mountinfo").read_text(
                encoding="utf-8", errors="replace"
            )
        except OSError:
            continue
        for line in table.splitlines():
            words = line.split()
            number, point, kind = words[2], words[4], words[words.index("-") + 1]
            major, minor = map(int, number.split(":"))
            device = os.makedev(major, minor)
            if kind != "tmpfs" or device in sizes:
                continue
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/root{point}"
                # Another mount may lie above this one.
                if os.stat(path).st_dev != device:
                    continue
                facts = os.statvfs(path)
                used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
                sizes[device] = (used, facts.f_files - facts.f_ffree)
    return sizes


def used_above(
    before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
) -> tuple[int, int]:
    """Add up bytes and files that came to the file systems since; new ones count
    whole."""
    size = files = 0
    for device, (size_now, files_now) in now.items():
        size_before, files_before = before.get(device, (0, 0))
        size += max(0, size_now - size_before)
        files += max(0, files_now - files_before)
    return size, files


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Outside:
    """The canaries of one rehearsal; `prepare` an attack, run it, `judge` what it
    did."""

    def __init__(
        self, bounds: Bounds | None = None, door: str = "127.0.0.1:8000"
    ) -> None:
        self.bounds = bounds or Bounds()
        self.nonce = secrets.token_hex(6)
        self.marker = f"mmrepro-escape-{self.nonce}"
        self.secret_start = f"CANARY-{self.nonce}"
        self.comm = f"esc-{self.nonce[:10]}"
        self.door = door
        self.undo: list[Path] = []
        self.in_world = in_world()
        self.folder = Path(tempfile.mkdtemp(prefix=self.marker + "-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.scratch = self.folder / "scratch"
        """Where a runner keeps its own files: what appears here is no escape."""
        for name in (
            "scratch",
            "scripts",
            "home",
            "runtime",
            "cwd",
            "targets",
            "python",
        ):
            (self.folder / name).mkdir()
        self.secret_files: list[Path] = []
        self.plant_files()
        self.listeners = Listeners(
            self.folder / "runtime", self.marker, self.secret_start + "-socket"
        )
        self.canary = CanaryProcess(
            self.secret_start,
            self.folder / "cwd",
            self.secret_files[0],
            self.folder / "targets" / "canary-stdout",
        )
        self.key = self.plant_key()
        self.inherited = self.open_inherited()
        self.signals: list[int] = []
        self.previous_handler = signal.signal(signal.SIGURG, self.note_signal)
        self.before: dict[str, Any] = {}
        self.peaks: Peaks | None = None

    def note_signal(self, number: int, _frame: Any) -> None:
        self.signals.append(number)

    # ------------------------------------------------------------ canaries

    def plant(self, path: Path, name: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{self.secret_start}-{name}\n", encoding="ascii")
        path.chmod(0o600)
        return path

    def plant_files(self) -> None:
        """Put a secret wherever a user keeps some; below real folders, one file to be
        removed."""
        plants = [
            (self.folder / "secret.txt", "folder"),
            (self.folder / "cwd" / "cwd.txt", "cwd"),
        ]
        for place in ("/tmp", "/dev/shm", "/var/tmp"):
            path = Path(place) / f"{self.marker}-secret"
            plants.append((path, place.strip("/").replace("/", "-")))
            self.undo.append(path)
        self.secret_files = [self.plant(path, name) for path, name in plants]

        home = self.folder / "home"
        dotted = (
            ".ssh/id_ed25519",
            ".netrc",
            ".npmrc",
            ".aws/credentials",
            ".config/gh/hosts.yml",
        )
        self.home_files = [self.plant(home / name, "home-" + name) for name in dotted]
        self.account_file = (
            Path(pwd.getpwuid(os.getuid()).pw_dir) / f".{self.marker}-account"
        )
        with contextlib.suppress(OSError):
            self.plant(self.account_file, "account")
            self.undo.append(self.account_file)
        self.other_home = self.plant(
            self.folder / "other-home" / ".ssh" / "id_rsa", "other-home"
        )
        self.hidden = self.folder / "hidden"
        self.secret_files.append(self.plant(self.hidden / "hidden.txt", "hidden"))
        self.standard_input = self.plant(
            self.folder / "targets" / f"{self.marker}-stdin", "stdin"
        )
        if self.in_world and os.geteuid() == 0:
            # Of this world alone: the machine's own file is untouched.
            shadow = self.plant(self.folder / "shadow", "shadow")
            subprocess.run(["mount", "--bind", str(shadow), "/etc/shadow"], check=True)
        for name in ("target.txt", "github-output"):
            (self.folder / "targets" / name).write_text("as it was\n", encoding="ascii")

    def plant_key(self) -> int:
        """Put a key in a keyring for this session alone, and one in the user's for some
        minutes."""
        KEYCTL_JOIN_SESSION_KEYRING, KEYCTL_UNLINK, KEYCTL_SET_TIMEOUT = 1, 9, 15
        SESSION_KEYRING, USER_KEYRING = -3, -4
        libc = ctypes.CDLL(None, use_errno=True)
        add_key, keyctl = (217, 219) if os.uname().machine == "aarch64" else (248, 250)
        libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
        name, value = f"{self.marker}-key".encode(), f"{self.secret_start}-key".encode()
        users = libc.syscall(
            add_key, b"user", name + b"-user", value, len(value), USER_KEYRING
        )
        # A rehearsal that is killed leaves it for so long.
        libc.syscall(keyctl, KEYCTL_SET_TIMEOUT, users, 1800)
        self.forget_key = functools.partial(
            libc.syscall, keyctl, KEYCTL_UNLINK, users, USER_KEYRING
        )
        return int(
            libc.syscall(add_key, b"user", name, value, len(value), SESSION_KEYRING)
        )

    def open_inherited(self) -> list[int]:
        """Open what a careless caller could pass on: a folder, a secret, a target, a
        listener."""
        target = self.folder / "targets" / "target.txt"
        numbers = [
            os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY),
            os.open(self.secret_files[0], os.O_RDONLY),
            os.open(target, os.O_WRONLY | os.O_APPEND),
            os.open(target, os.O_PATH),
        ]
        self.spare_listener = socket.create_server(("127.0.0.1", 0))
        numbers.append(self.spare_listener.fileno())
        for number in numbers:
            os.set_inheritable(number, True)
        return numbers

    def environment(self) -> dict[str, str]:
        """Return what the runner's process has for an environment: the user's, with
        canaries."""
        runtime = self.folder / "runtime"
        output = str(self.folder / "targets" / "github-output")
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder / "home"),
            "MMREPRO_ESCAPE_CANARY": f"{self.secret_start}-variable",
            "SSH_AUTH_SOCK": str(runtime / "agent.sock"),
            "XDG_RUNTIME_DIR": str(runtime),
            "GITHUB_OUTPUT": output,
            "GITHUB_ENV": output,
        }

    @property
    def peer_secret(self) -> str:
        """What the other side of an attack holds."""
        return self.secret_start + "-peer"

    def facts(self) -> dict[str, Any]:
        """Return what each attack is told: where the canaries are, never what they
        hold."""
        targets = self.folder / "targets"
        folders = [self.folder, self.folder / "home", self.folder / "runtime"]
        outer = [*map(str, folders), "/tmp", "/var/tmp", "/dev/shm"]
        return {
            "token": f"TOKEN-{self.nonce}",
            "marker": self.marker,
            "comm": self.comm,
            "secret_start": self.secret_start,
            "forged": f"FORGED-{self.nonce}",
            "secret_files": [str(path) for path in self.secret_files],
            "home_files": [str(path) for path in self.home_files],
            "account_file": str(self.account_file),
            "account_name": self.account_file.name,
            "other_home_file": str(self.other_home),
            "folders": outer,
            "targets": [str(targets / "target.txt")],
            "script_folder": str(self.folder / "scripts"),
            "python_folders": [str(self.folder / "python")],
            "loaded": str(self.folder / "targets" / "loaded"),
            "github_output": str(targets / "github-output"),
            "tcp4": self.listeners.tcp4,
            "tcp6": self.listeners.tcp6,
            "udp4": self.listeners.udp4,
            "unix": {name: str(path) for name, path in self.listeners.paths.items()},
            "abstract": self.listeners.abstract,
            "canary_pid": self.canary.process.pid,
            "canary_address": self.canary.address,
            "canary_descriptor": self.canary.descriptor,
            "canary_cwd_file": "cwd.txt",
            "harness_pid": os.getpid(),
            "key_serial": self.key,
            "ipc_key": int(self.nonce[:7], 16),
            "pid_namespace": os.readlink("/proc/self/ns/pid"),
            "door": self.door,
            "serve": "8000",
            **self.bounds.bombs(),
        }

    # ------------------------------------------------------------ one attack

    def prepare(self, kind: str, name: str) -> Path:
        """Write the attack's script, note how everything is, and begin to measure."""
        script = self.folder / "scripts" / f"{name}.py"
        script.write_text(script_text(kind, name, self.facts()), encoding="utf-8")
        script.chmod(0o644)
        self.listeners.reached.clear()
        self.signals.clear()
        self.before = self.state()
        self.peaks = Peaks(self.comm, spared={self.canary.process.pid})
        return script

    def state(self) -> dict[str, Any]:
        return {
            "files": self.tree(),
            "names": self.names(),
            "canary": self.canary.state(),
            "switches": switches(),
            "segments": segments(),
            "keys": keys(self.marker),
        }

    def tree(self) -> dict[str, tuple[int, int, int]]:
        """Note each canary file and folder, but for the runner's own."""
        found = {}
        for top, folders, files in os.walk(self.folder):
            if Path(top) == self.folder:
                folders.remove("scratch")
            for name in [*folders, *files]:
                path = os.path.join(top, name)
                facts = os.lstat(path)
                # A folder's time changes with what is in it, which is noted itself.
                changed = facts.st_mtime_ns if name in files else 0
                found[path] = (facts.st_mode, facts.st_size if changed else 0, changed)
        return found

    def names(self) -> set[str]:
        """List the names with the marker in the folders that everybody writes in."""
        found = set()
        for place in ("/tmp", "/dev/shm", "/var/tmp", str(self.account_file.parent)):
            with contextlib.suppress(OSError):
                for name in os.listdir(place):
                    if self.marker in name and "-own-" not in name:
                        found.add(os.path.join(place, name))
        return found

    def judge(self, attack: Any, ran: AttackRun) -> EscapeFinding:
        """Decide by what is seen outside whether the attack got out."""
        assert self.peaks is not None
        left = self.left_processes()
        self.peaks.end()
        facts = [
            *self.seen_in_output(attack, ran),
            *self.seen_in_files(),
            *self.seen_in_processes(),
            *self.seen_in_peaks(attack, ran),
            *left,
            *self.seen_in_scratch(),
        ]
        if facts:
            return EscapeFinding(attack.id, "out", facts)
        why = not_tried(self.facts()["token"], ran)
        return EscapeFinding(attack.id, "not-tried" if why else "held", [], why)

    def seen_in_output(self, attack: Any, ran: AttackRun) -> list[str]:
        facts = []
        token = f"TOKEN-{self.nonce} PERMITTED ".encode()
        where = ran.output.find(self.secret_start.encode())
        if where >= 0:
            content = ran.output[where : where + 60].split(b"\n")[0]
            facts.append("secret: " + content.decode("ascii", "replace"))
        elif any(form in ran.output for form in encodings(self.secret_start)):
            facts.append("secret: in an encoding")
        rights = []
        if "permitted" in attack.aims:
            for line in ran.output.splitlines():
                if line.startswith(token):
                    rights.append(line[len(token) :].decode("utf-8", "replace"))
        if rights:
            facts.append("permitted: " + "; ".join(rights[:6]) + more(len(rights) - 6))
        if forged(ran.authority, f"FORGED-{self.nonce}".encode()):
            facts.append("forged: mmrepro's own words carry the attack's")
        if ran.exit_status is None:
            facts.append("the runner did not come to an end")
        return facts

    def seen_in_files(self) -> list[str]:
        facts = []
        before, after = self.before["files"], self.tree()
        changed = [path for path in after if before.get(path) != after[path]]
        changed += [path for path in before if path not in after]
        if changed:
            short = [str(Path(path).relative_to(self.folder)) for path in changed]
            facts.append("written: " + ", ".join(short[:4]) + more(len(short) - 4))
        appeared = sorted(self.names() - self.before["names"])
        if appeared:
            facts.append("written: " + ", ".join(appeared[:4]))
        if switches() != self.before["switches"]:
            facts.append("written: a switch under /proc/sys")
        new_keys = keys(self.marker) - self.before["keys"]
        if new_keys:
            facts.append(f"left: a key in a keyring of the outside: {sorted(new_keys)}")
        if segments() - self.before["segments"]:
            facts.append("left: a System V segment of the outside")
        return facts

    def seen_in_processes(self) -> list[str]:
        facts = []
        if self.listeners.reached:
            facts.append("reached: " + ", ".join(sorted(set(self.listeners.reached))))
        if self.signals:
            facts.append("signalled: mmrepro's own process")
        before, after = self.before["canary"], self.canary.state()
        if "gone" in after:
            facts.append(f"signalled: the canary is gone: {after['gone']}")
        elif after["memory"] != before["memory"]:
            facts.append("written: the canary's memory")
        else:
            for name in before:
                if name != "memory" and after[name] != before[name]:
                    facts.append(f"signalled: the canary's {name} changed")
        return facts

    def seen_in_peaks(self, attack: Any, ran: AttackRun) -> list[str]:
        peaks, bounds = self.peaks, self.bounds
        assert peaks is not None
        facts = []
        for name in ("memory", "processes", "disk", "files", "descriptors"):
            most, bound = getattr(peaks, name), getattr(bounds, name)
            if most > bound:
                facts.append(f"bounds: {name} {most:,} above {bound:,}")
        if len(ran.output) > bounds.output:
            facts.append(f"bounds: output {len(ran.output):,} above {bounds.output:,}")
        own = peaks.own_most - peaks.own_before
        if own > bounds.memory:
            facts.append(f"bounds: mmrepro's own memory grew by {own:,}")
        files = peaks.own_files - peaks.own_files_before
        if files > bounds.own_files:
            facts.append(f"bounds: mmrepro's own open files grew by {files:,}")
        if attack.id == "bomb-pipes":
            # The kernel's own memory belongs to no process: the machine's has to do,
            # which others use as well, so only what came back with the end counts.
            taken = peaks.available_before - peaks.available_least
            back = available_memory() - peaks.available_least
            if taken > bounds.memory and back > taken // 2:
                facts.append(f"bounds: kernel memory {taken:,} above {bounds.memory:,}")
        return facts

    def seen_in_scratch(self) -> list[str]:
        left = sorted(os.listdir(self.scratch))
        if not left:
            return []
        remove_all(self.scratch)
        self.scratch.mkdir(exist_ok=True)
        return ["left: " + ", ".join(left[:3])]

    def left_processes(self) -> list[str]:
        """Wait until what was started is gone; end what is not, and say so."""
        deadline = time.monotonic() + SETTLE_S
        while (left := named_processes(self.comm)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        while (
            left
            and named_processes(self.comm)
            and time.monotonic() < deadline + SETTLE_S
        ):
            for pid in named_processes(self.comm):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        return [f"left: {len(left)} processes"] if left else []

    def restore(self) -> None:
        """Undo what an attack changed, so that the next one starts from the same
        state."""
        for path in self.names() - self.before["names"]:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        for place in ("/tmp", "/dev/shm", "/var/tmp"):
            with contextlib.suppress(OSError):
                for name in os.listdir(place):
                    if name.startswith(f"{self.marker}-own-"):
                        remove_all(Path(place, name))
        for path in set(self.tree()) - set(self.before["files"]):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        if switches() != self.before["switches"]:
            raise RuntimeError(
                "a switch of the kernel was changed: the rehearsal ends here"
            )
        remove_segments(self.facts()["ipc_key"])
        if self.canary.state() != self.before["canary"]:
            self.canary.close()
            self.canary = CanaryProcess(
                self.secret_start,
                self.folder / "cwd",
                self.secret_files[0],
                self.folder / "targets" / "canary-stdout",
            )

    def close(self) -> None:
        self.canary.close()
        self.listeners.close()
        self.forget_key()
        signal.signal(signal.SIGURG, self.previous_handler)
        for number in self.inherited[:-1]:
            os.close(number)
        self.spare_listener.close()
        for path in self.undo:
            path.unlink(missing_ok=True)
        remove_all(self.folder)


@contextlib.contextmanager
def rehearsal(
    bounds: Bounds | None = None, door: str = "127.0.0.1:8000"
) -> Iterator[Outside]:
    """Set the canaries up, and take them away whatever happens."""
    outside = Outside(bounds, door)
    try:
        yield outside
    finally:
        outside.close()


def in_world() -> bool:
    """Tell whether this is a world made by escape.py, whose mounts are nobody
    else's."""
    return os.environ.get("MMREPRO_ESCAPE_WORLD") == "1"


def script_text(kind: str, name: str, facts: dict[str, Any]) -> str:
    """Join the helpers, the kind's file and a call into one script of the standard
    library."""
    helpers = (ESCAPES / "attacker.py").read_text(encoding="utf-8")
    attacks = (ESCAPES / f"{kind}.py").read_text(encoding="utf-8")
    return f"""\
import json, sys, types

def load(name, source):
    module = types.ModuleType(name)
    sys.modules[name] = module
    if source:
        exec(compile(source, name, "exec"), module.__dict__)
    return module

load("hardening", "")
load("hardening.escapes", "")
attacker = load("hardening.escapes.attacker", {helpers!r})
attacker.FACTS.update(json.loads({json.dumps(facts)!r}))
load("hardening.escapes.{kind}", {attacks!r})
attacker.run({name!r})
"""


def not_tried(token: str, ran: AttackRun) -> str:
    """Say why an attack that got nowhere never tried, or nothing where it did."""
    lines = ran.output.decode("utf-8", "replace").splitlines()
    told = [line[len(token) + 1 :] for line in lines if line.startswith(token)]
    if not any(line.startswith("BEGIN") for line in told):
        last = lines[-1] if lines else "no output"
        return f"{NEVER_BEGAN} (exit {ran.exit_status}): {last[:200]}"
    for line in told:
        if line.startswith(("NOT-TRIED", "BROKEN")):
            return line[:400]
    return ""


def forged(authority: bytes, token: bytes) -> bool:
    """Tell whether a stranger's words stand where a reader takes them for mmrepro's
    own."""
    controls = (b"\x1b", b"\r", b"\x07", b"\xc2\x9b", "\u202e".encode())
    if any(control in authority for control in controls):
        return True
    lines = authority.split(b"\n")
    return any(token in line and not line.startswith(QUOTE) for line in lines)


def encodings(secret: str) -> list[bytes]:
    """Return a secret's beginning as base64, as hexadecimal digits and backwards."""
    # Whole groups of three bytes alone: what follows changes the last group of base64.
    whole = secret[: len(secret) // 3 * 3].encode()
    return [
        base64.b64encode(whole),
        secret.encode().hex().encode(),
        secret[::-1].encode(),
    ]


def more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def switches() -> dict[str, str]:
    """Read the kernel's switches that an attack would like to set; none is ever
    written."""
    found = {}
    for name in WATCHED_SWITCHES:
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text(
                encoding="ascii", errors="replace"
            )
    return found


def segments() -> set[str]:
    with contextlib.suppress(OSError):
        lines = Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:]
        return {" ".join(line.split()[:2]) for line in lines}
    return set()


def remove_segments(key: int) -> None:
    """Remove the System V segment that an attack left, known by its key."""
    for segment in segments():
        name, number = segment.split()
        if int(name) == key:
            subprocess.run(["ipcrm", "-m", number], check=False, capture_output=True)


def keys(marker: str) -> set[str]:
    """List the kernel's keys with the marker in their name that this process may
    see."""
    with contextlib.suppress(OSError):
        lines = (
            Path("/proc/keys")
            .read_text(encoding="ascii", errors="replace")
            .splitlines()
        )
        return {line.split()[0] for line in lines if marker in line}
    return set()


def remove_all(path: Path) -> None:
    """Remove a folder however deep or locked it is, and follow no link."""
    if path.is_dir() and not path.is_symlink():
        subprocess.run(
            ["chmod", "-R", "u+rwx", str(path)], check=False, capture_output=True
        )
        subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=False)
    else:
        path.unlink(missing_ok=True)
