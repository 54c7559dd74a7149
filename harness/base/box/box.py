"""One box: started, tested, connected to and ended."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Self

from mmrepro.base import processes
from mmrepro.base.box import inside, keeper
from mmrepro.base.box.bubblewrap import (
    USER,
    box_options,
    is_privileged,
    new_uid,
    program_here,
)
from mmrepro.base.box.canaries import Canaries, canaries_outside
from mmrepro.base.box.order import WORK, BoxOrder, Limits
from mmrepro.base.box.seccomp import seccomp_program
from mmrepro.base.errors import InfrastructureError, UsageError

_SOCKETS: Final = Path("/run/mmrepro")
"""Where the box sees mmrepro's sockets."""
_START_S: Final = 60.0
"""A busy machine takes seconds; where bubblewrap cannot make one, it ends at once."""
_EXPOSE_S: Final = 10.0
_MOST_CACHED: Final = 256 << 20
ISOLATION: Final = (
    "in a box (bubblewrap): a network of its own, of this machine's files only what it "
    "needs, read-only, no rights"
)
"""The sentence for reports; only of a box whose tests have held."""


class NoBox(UsageError):
    """There is no box here, so nothing of a stranger is run."""


class BoxEnded(InfrastructureError):
    """A box ended before what it was made for."""


def require_box(without: str) -> None:
    """Make sure that a box holds here, by making one.

    ``without``: the option with which a user does without it. Raises NoBox.
    """
    if why := _why_none():
        raise NoBox(
            f"What a stranger wrote runs in a box, and none can be made here: {why}.",
            hint="apt install bubblewrap (Ubuntu and containers: mmrepro help box), or, "
            f"once you have read what is run, {without}",
        )


@functools.cache
def _why_none() -> str:
    """Why no box can be made here; "": one can. Asked once a process: it takes 0.2
    seconds."""
    try:
        with Box(BoxOrder(("true",), {"PATH": "/usr/bin:/bin"})) as box:
            box.wait(_START_S)
    except (NoBox, BoxEnded) as error:
        return error.message.rstrip(".")
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


@dataclass
class _Descriptors:
    """Descriptors on their way into a box; closed here once it has its own."""

    opened: list[int] = field(default_factory=list)

    def add(self, descriptor: int) -> int:
        self.opened.append(descriptor)
        return descriptor

    def file(self, content: bytes) -> int:
        """A file without a name that holds ``content``."""
        made = self.add(os.memfd_create("mmrepro"))
        os.write(made, content)
        os.lseek(made, 0, os.SEEK_SET)
        return made

    def close(self) -> None:
        for descriptor in self.opened:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.opened.clear()


class Box:
    """A command in a box; a context manager that ends it.

    Attributes:
        order: as asked for.
        process: the keeper, whose standard streams are the box's.
        over: why the keeper ended it; "": it did not.
    """

    def __init__(
        self,
        order: BoxOrder,
        *,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.DEVNULL,
    ) -> None:
        """Start it, and return once its tests have held.

        Raises:
            NoBox: bubblewrap is missing, cannot work here, or a test failed: nothing
                was run.
        """
        self.order = order
        self.over = ""
        self._events: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._namespace = 0
        self._folder = Path(tempfile.mkdtemp(prefix="mmr-box-"))
        try:
            # Apart from what the box shows: above that, an ordinary user's box has
            # folders of its own by the same names, in which it may write.
            outside = self._folder / "outside"
            outside.mkdir()
            with canaries_outside(outside) as canaries:
                self._start(canaries, stdin, stdout, stderr)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def door(self) -> Path:
        """The Unix socket of a box with a door. A connection's first line is a port of
        the box."""
        return self._folder / "door"

    @property
    def isolation(self) -> str:
        """A sentence: what its tests showed."""
        return ISOLATION

    # ------------------------------------------------------------------ while it runs

    def poll(self) -> int | None:
        """Its exit code; None: it runs."""
        return self.process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """End all that is in it; safe to call twice."""
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(keeper.REMOVAL_S + 5)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)  # bubblewrap dies with its parent
            self.process.wait()
        self._lifeline.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def expose(self, port: int) -> None:
        """Make ``port`` of this machine's loopback lead to the same port of the box's.

        Raises:
            BoxEnded: the port is taken here, or the box has ended.
        """
        with self._changed:
            self._events.pop("exposed", None)
        with contextlib.suppress(OSError):
            self._lifeline.sendall(f"{port}\n".encode())
        answer = self._wait_for("exposed", _EXPOSE_S)
        if answer is None or answer["why"]:
            why = answer["why"] if answer else "the box has ended"
            raise BoxEnded(f"Port {port} of the box cannot be reached: {why}.")

    def outside(self, pid: int) -> int:
        """The process id, on this machine, of the box's process ``pid``.

        Only processes of the box's own namespace are looked at, whatever number it
        gives. Raises
        BoxEnded: there is no such process.
        """
        for candidate in processes.descendants(self.process.pid):
            try:
                namespace = Path(f"/proc/{candidate}/ns/pid").stat().st_ino
            except OSError:
                continue
            numbers = processes.field(candidate, "NSpid")
            if namespace == self._namespace and numbers and int(numbers[-1]) == pid:
                return candidate
        raise BoxEnded(f"The box has no process {pid}.")

    # ------------------------------------------------------------------ its start

    def _start(
        self,
        canaries: Canaries,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
    ) -> None:
        program = program_here()
        if not program:
            raise NoBox("bubblewrap is not installed.")
        order = self.order
        interpreter = Path(sys.base_prefix)
        privileged = is_privileged([*order.readable, interpreter])
        caches = self._copied_caches()
        for folder in (
            [*order.copied, *(copy for copy, _ in caches)] if privileged else ()
        ):
            _open_to_all(folder)
        given = _Descriptors()
        ours, theirs = socket.socketpair()
        report_in, report_out = os.pipe()
        info_in, info_out = os.pipe()
        given.add(report_out)
        given.add(info_out)
        try:
            words = self._command(
                program,
                privileged,
                given,
                canaries,
                caches,
                report=report_out,
                info=info_out,
            )
            descriptors = [*given.opened, *order.descriptors]
            self.process = subprocess.Popen(
                [sys.executable, "-I", keeper.__file__, str(theirs.fileno())],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(theirs.fileno(), *descriptors),
                start_new_session=True,
            )
        finally:
            given.close()
            theirs.close()
        self._lifeline = ours
        limits = order.limits
        keeping = keeper.KeeperOrder(
            command=words,
            descriptors=descriptors,
            folders=[str(folder) for folder in (self._folder, *order.removed)],
            door=str(self.door) if order.door else "",
            memory=limits.memory,
            files_in_memory=limits.work + limits.temporary + limits.shared,
            processes=limits.processes,
            inodes=limits.inodes,
        )
        try:
            ours.sendall(json.dumps(asdict(keeping)).encode() + b"\n")
            threading.Thread(target=self._listen, name="box", daemon=True).start()
            self._take_info(_read_line(info_in))
            tested = _read_line(report_in)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(info_in)
            os.close(report_in)
        failed = tested.get("failed")
        if failed == [] and tested.get("tested"):
            return
        self.end()
        if failed:
            raise NoBox(f"a box is leaky here: it could {', '.join(failed)}.")
        raise NoBox("bubblewrap cannot make one (are user namespaces off?).")

    def _copied_caches(self) -> list[tuple[Path, Path]]:
        """Copies of the order's caches, and where they go in the box. What an engine
        writes may be closed to all but its user, which the box's may not be."""
        copies = []
        for number, (outside, within) in enumerate(self.order.caches):
            held = sum(file.lstat().st_size for file in outside.rglob("*"))
            if held <= _MOST_CACHED:
                copy = self._folder / f"cache-{number}"
                shutil.copytree(outside, copy, symlinks=True)
                copies.append((copy, within))
        return copies

    def _command(
        self,
        program: str,
        privileged: bool,
        given: _Descriptors,
        canaries: Canaries,
        caches: list[tuple[Path, Path]],
        *,
        report: int,
        info: int,
    ) -> list[str]:
        """bubblewrap's command line, whose descriptors are added to ``given``."""
        order = self.order
        user = new_uid() if privileged else USER
        hosts = " ".join(["localhost", "box", *order.hosts])
        files = {
            "/etc/passwd": given.file(
                f"box:x:{user}:{user}::{WORK}:/bin/sh\n".encode()
            ),
            "/etc/group": given.file(f"box:x:{user}:\n".encode()),
            "/etc/hosts": given.file(f"127.0.0.1 {hosts}\n::1 localhost\n".encode()),
            "/etc/resolv.conf": given.file(b""),
        }
        door = -1
        if order.door:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self.door))
            # Its folder is closed to others; a box may have another uid.
            self.door.chmod(0o666)
            listener.listen(128)
            door = given.add(listener.detach())
        sockets = [
            (lead.socket, _SOCKETS / str(number))
            for number, lead in enumerate(order.leads)
        ]
        plan = inside.InsidePlan(
            argv=[*order.argv],
            env={**order.env},
            user=user if privileged else 0,
            work=str(WORK),
            copied=[
                *((str(folder), str(WORK)) for folder in order.copied),
                *((str(copy), str(within)) for copy, within in caches),
            ],
            addresses=[*order.addresses],
            leads=[
                ([*lead.ports], str(within), lead.preface)
                for lead, (_, within) in zip(order.leads, sockets, strict=True)
            ],
            door=door,
            descriptors=[*order.descriptors],
            limits=_resource_limits(order.limits),
            canaries=asdict(canaries),
        )
        copies = [*order.copied, *(copy for copy, _ in caches)]
        shown = (*order.readable, *copies, Path(sys.base_prefix), Path(inside.__file__))
        options = box_options(
            replace(order, readable=shown),
            privileged=privileged,
            files=files,
            sockets=sockets,
        )
        # By descriptors, since everybody in the box reads the command line of its
        # process 1.
        words = given.file("\0".join(options).encode())
        order_for_inside = given.file(json.dumps(asdict(plan)).encode())
        try:
            filtered = given.file(seccomp_program())
        except KeyError as error:
            raise NoBox(
                f"the system calls of {error.args[0]} are not known."
            ) from error
        return [
            program,
            "--args",
            str(words),
            "--seccomp",
            str(filtered),
            "--info-fd",
            str(info),
            "--",
            str(Path(sys.executable).resolve()),
            "-I",
            "-S",
            inside.__file__,
            str(order_for_inside),
            str(report),
        ]

    def _take_info(self, info: dict[str, Any]) -> None:
        """What bubblewrap reports of the box's namespaces."""
        self._namespace = int(info.get("pid-namespace", 0))

    # -------------------------------------------------------------- the keeper's events

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lifeline.makefile("rb"):
                self._take(json.loads(line))
        self._take({"event": "gone"})

    def _take(self, event: dict[str, Any]) -> None:
        with self._changed:
            self._events[event.pop("event")] = event
            if "over" in self._events:
                self.over = self._events["over"]["why"]
            self._changed.notify_all()

    def _wait_for(self, event: str, timeout_s: float) -> dict[str, Any] | None:
        with self._changed:
            self._changed.wait_for(
                lambda: {event, "gone"} & self._events.keys(), timeout_s
            )
            return self._events.get(event)


def _open_to_all(folder: Path) -> None:
    """Let every user read a folder that mmrepro has made: root's box has a uid of its
    own."""
    for place, _, names in os.walk(folder):
        Path(place).chmod(0o755)
        for name in names:
            file = Path(place) / name
            if not file.is_symlink():
                file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)


def _resource_limits(limits: Limits) -> dict[str, int]:
    """{name of an RLIMIT_*: value} for each process of the box."""
    bounds = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file,
        "RLIMIT_NOFILE": limits.files,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_AS": limits.address_space,
        "RLIMIT_CPU": limits.cpu_s,
    }
    return {
        name: value for name, value in bounds.items() if value or name == "RLIMIT_CORE"
    }


def _read_line(descriptor: int) -> dict[str, Any]:
    """The JSON that a box in its start writes; {}: it ended without, or it takes too
    long."""
    content = b""
    deadline = time.monotonic() + _START_S
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        piece = os.read(descriptor, 65536) if ready else b""
        content += piece
        with contextlib.suppress(ValueError):
            found = json.loads(content)
            return found if isinstance(found, dict) else {}
        if not piece:
            break
    return {}
