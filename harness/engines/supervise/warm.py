"""Fork servers, from the harness's side: start one, fork from it, keep it or end it.

A fork server serves only starts that would have imported the same
(``ForkServerSpec.key``). Those of one command are its own and end with it; kept ones
live in a folder that commands share, until they were idle for too long."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Self, cast

from filelock import FileLock
from mmrepro.base import processes
from mmrepro.base.box import TEMPORARY, Box, BoxEnded, BoxOrder
from mmrepro.base.errors import ForkServerDied
from mmrepro.base.machine import folders_in, read_file
from mmrepro.base.units import duration
from mmrepro.engines.supervise import (
    EngineProcess,
    Entry,
    launch_order,
    open_log,
    run_variables,
    to_line,
)
from mmrepro.engines.supervise.supervisor import (
    FACTS,
    SOCKET,
    ForkServerFacts,
    ForkServerOrder,
)

SCRIPTS = Path(__file__).parent
FORK_SERVER = (
    "import sys; sys.path.insert(0, sys.argv[1]); import fork_server; del sys.path[0]; "
    "fork_server.main()"
)
"""For ``python -c FORK_SERVER SCRIPTS WORDS``. The words, those that name the engine's
server, are for whoever reads /proc: the kernel shows this command line for each fork as
well."""
FORK = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import forked; del "
    "sys.path[0]; forked.main()"
)
"""For ``python -c FORK SCRIPTS PATH MODULE ARGUMENTS``. Without a main module of its
own there is none that a child started with ``spawn`` would import again."""
_LOG = "fork-server.log"
MAX_FACTS, MAX_PREFACE = 1 << 20, 1 << 20
_IMPORT_TIMEOUT_S = 300.0
_CONNECT_TIMEOUT_S = 10.0
_POLL_S = 0.02
_DEFAULT_LIMIT = 6
_MEMORY_SHARE = 0.25
"""Part of this machine's memory that the fork servers of one command may take
together."""

_SHELL_VARIABLES = frozenset(
    {
        "_",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "TERM",
        "COLUMNS",
        "LINES",
        "WINDOWID",
        "STY",
        "TMUX",
        "TMUX_PANE",
        "SSH_TTY",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_AUTH_SOCK",
        "XDG_SESSION_ID",
        "MMREPRO_CACHE_DIR",
        "MMREPRO_START_MODE",
        "MMREPRO_WARM_IDLE",
        "MMREPRO_WARM_DIR",
    }
)
"""Of the variables that are inherited, those that no engine reads as it is imported."""


@dataclass(frozen=True)
class ForkServerSpec:
    """What a fork server is started with; two starts with equal keys can share one.

    Attributes:
        label: for people, e.g. ``vllm 0.23.0``.
        words: what its command line ends with, by which the engine's adapter knows its
            server.
        box: what it may see, to run in a box with all that it forks; None: it runs in
            none.
        env: all variables; the temporary folder's place is ``{run-tmp}``.
        digest: of code that is not in the environment: stand-ins, an engine of our own.
    """

    label: str
    python: Path
    module: str
    preload: tuple[str, ...]
    env: Mapping[str, str]
    path: tuple[str, ...] = ()
    digest: str = ""
    words: tuple[str, ...] = ()
    box: BoxOrder | None = None

    @property
    def key(self) -> str:
        env = {
            name: value
            for name, value in self.env.items()
            if name not in _SHELL_VARIABLES
        }
        files = [*sorted(SCRIPTS.glob("*.py")), Path(processes.__file__)]
        scripts = [(path.name, path.read_text()) for path in files]
        content = [
            str(self.python),
            self.module,
            self.preload,
            sorted(env.items()),
            self.path,
            self.digest,
            scripts,
            [] if self.box is None else [str(path) for path in self.box.readable],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@dataclass
class ForkServer:
    """A living fork server. ``born``: its start time in clock ticks, so that no later
    process with the same id is taken for it."""

    label: str
    key: str
    folder: Path
    pid: int
    born: int
    kept_s: float = 0.0
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    box: Box | None = field(default=None, repr=False)

    @property
    def facts(self) -> ForkServerFacts:
        """As it last wrote them. Raises ForkServerDied."""
        try:
            return ForkServerFacts(
                **json.loads(read_file(self.folder / FACTS, MAX_FACTS))
            )
        except (
            OSError,
            ValueError,
            TypeError,
        ) as error:  # it ended, and its folder is gone
            raise ForkServerDied(
                f"The fork server of {self.label} has ended."
            ) from error

    @property
    def memory_bytes(self) -> int:
        """After its imports; 0: it is gone."""
        try:
            return self.facts.memory_bytes
        except ForkServerDied:
            return 0

    @property
    def alive(self) -> bool:
        return processes.alive(self.pid, self.born)

    @property
    def last_used(self) -> float:
        """Seconds since the epoch; 0: it is gone."""
        try:
            return (self.folder / FACTS).stat().st_mtime
        except OSError:
            return 0.0

    def start(
        self,
        argv: list[str],
        entry: Entry,
        env: dict[str, str],
        *,
        cwd: Path,
        log: Path,
        grace_s: float = 10.0,
    ) -> EngineProcess:
        """Fork a server from it, under a supervisor of its own.

        Raises:
            ForkServerDied: it does not answer.
            SupervisorError: the server's process could not be started.
        """
        link = self._connected()
        boxed = self.box is not None
        order = launch_order(
            argv,
            env,
            cwd=cwd,
            log=log,
            grace_s=grace_s,
            entry=entry,
            preface="" if boxed else str(self.folder / _LOG),
            boxed=boxed,
        )
        if boxed:
            self._hand_over_log(link, log)
        stream = cast(BinaryIO, link.makefile("rwb", buffering=0))
        link.close()  # the stream holds it open
        process = EngineProcess(order, stream, stream, box=self.box)
        process.begin()
        return process

    def _hand_over_log(self, link: socket.socket, log: Path) -> None:
        """Send the open log into the box, with the fork server's own output in it
        already."""
        descriptor = open_log(log)
        try:
            with (self.folder / _LOG).open("rb") as preface:
                os.write(descriptor, preface.read(MAX_PREFACE))
            socket.send_fds(link, [b"L"], [descriptor])
        except OSError as error:
            raise ForkServerDied(
                f"The fork server of {self.label} does not answer."
            ) from error
        finally:
            os.close(descriptor)

    def _connected(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(_CONNECT_TIMEOUT_S)
        handle = -1
        try:
            handle = os.open(self.folder, os.O_PATH)  # a socket's path holds 107 bytes
            link.connect(f"/proc/self/fd/{handle}/{SOCKET}")
        except OSError as error:
            link.close()
            raise ForkServerDied(
                f"The fork server of {self.label} does not answer."
            ) from error
        finally:
            if handle >= 0:
                os.close(handle)
        link.settimeout(None)
        return link

    def end(self) -> None:
        """End it; servers that it forked go on, unless they are in its box."""
        if self.box is not None:
            self.box.end()
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        if self.alive:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        if self.child is not None:
            self.child.wait()
            assert self.child.stdin is not None
            self.child.stdin.close()
        deadline = time.monotonic() + 5
        while self.alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        shutil.rmtree(self.folder, ignore_errors=True)


class Refused(Exception):
    """Nothing can be forked from what the imports made; the text says why.

    ``cold``: it is a thread, which a fork in start mode ``fork`` would meet as well.
    """

    def __init__(self, why: str, *, cold: bool = False) -> None:
        super().__init__(why)
        self.cold = cold


def begin_fork_server(
    spec: ForkServerSpec, folder: Path, idle_s: float = 0.0
) -> ForkServer:
    """Start a fork server in ``folder``, an empty one, and wait until it has imported
    everything.

    With ``idle_s`` it outlives the caller; else it ends when the caller does, however
    that ends.

    Raises:
        Refused: it cannot be forked.
        ForkServerDied: it could not be started, or died.
    """
    if spec.box is not None:
        try:
            return _begin_boxed(spec, spec.box, folder)
        except BaseException:
            # Where no box could be made, nothing else would remove it.
            shutil.rmtree(folder, ignore_errors=True)
            raise
    order = ForkServerOrder(
        spec.module, list(spec.preload), list(spec.path), idle_s, spec.label
    )
    try:
        with (folder / _LOG).open("wb") as log:
            child = subprocess.Popen(
                [spec.python, "-c", FORK_SERVER, str(SCRIPTS), *spec.words, spec.label],
                env=run_variables(spec.env, str(folder)),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ForkServerDied(
            f"The fork server of {spec.label} could not be started: {error}."
        ) from error
    born = processes.born(child.pid)
    made = ForkServer(spec.label, spec.key, folder, child.pid, born, idle_s, child)
    try:
        _imported(made, child, order)
    except BaseException:
        made.end()
        raise
    return made


def _begin_boxed(spec: ForkServerSpec, box: BoxOrder, folder: Path) -> ForkServer:
    """As ``begin_fork_server``, in a box. It ends with the caller, however that ends.

    ``folder`` stays outside; the box has an open file and a listening socket of it.
    """
    with contextlib.ExitStack() as handed:
        listener = handed.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / SOCKET))
        listener.listen(16)
        facts = handed.enter_context((folder / FACTS).open("wb"))
        log = handed.enter_context((folder / _LOG).open("wb"))
        running = Box(
            replace(
                box,
                argv=(
                    str(spec.python),
                    "-c",
                    FORK_SERVER,
                    str(SCRIPTS),
                    *spec.words,
                    spec.label,
                ),
                env=run_variables(spec.env, str(TEMPORARY)),
                readable=(*box.readable, SCRIPTS, Path(processes.__file__)),
                door=True,
                descriptors=(listener.fileno(), facts.fileno()),
            ),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        order = ForkServerOrder(
            spec.module,
            list(spec.preload),
            list(spec.path),
            label=spec.label,
            listener=listener.fileno(),
            facts_fd=facts.fileno(),
        )
    child = running.process
    made = ForkServer(
        spec.label,
        spec.key,
        folder,
        child.pid,
        processes.born(child.pid),
        child=child,
        box=running,
    )
    try:
        seen = _imported(made, child, order)
        made.pid = running.outside(seen.pid)
        made.born = processes.born(made.pid)
    except BoxEnded as error:
        made.end()
        raise ForkServerDied(f"The fork server of {spec.label} has ended.") from error
    except BaseException:
        made.end()
        raise
    return made


def _imported(
    made: ForkServer, child: subprocess.Popen[bytes], order: ForkServerOrder
) -> ForkServerFacts:
    """Hand over the order, and wait until everything is imported. Raises as
    ``begin_fork_server``."""
    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.write(to_line(order))
        child.stdin.flush()
    _wait_for_facts(made, child)
    facts = made.facts
    if facts.refused:
        raise Refused(facts.refused, cold=facts.cold)
    return facts


def _wait_for_facts(made: ForkServer, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _IMPORT_TIMEOUT_S
    while not _has_facts(made):
        if child.poll() is not None and not _has_facts(made):
            lines = (
                (made.folder / _LOG).read_text(errors="replace").strip().splitlines()
            )
            raise ForkServerDied(
                (
                    f"The fork server of {made.label} ended with {child.returncode} as "
                    "it imported."
                ),
                detail=lines[-6:],
            )
        if time.monotonic() > deadline:
            raise ForkServerDied(
                f"The fork server of {made.label} did not import in "
                f"{duration(_IMPORT_TIMEOUT_S)}."
            )
        time.sleep(_POLL_S)


def _has_facts(made: ForkServer) -> bool:
    """Whether it has written them: in a box the file is there before, and empty."""
    try:
        return (made.folder / FACTS).stat().st_size > 0
    except OSError:
        return False


class ForkServers:
    """The fork servers of one command, at most ``limit`` and within ``memory_bytes``:
    the least recently used one goes when another is needed. Ends them all at its own
    end.

    With ``idle_s`` they are made in ``kept`` and outlive the command; those that are
    ``lent`` are made there as well, for the commands that this one starts."""

    def __init__(
        self,
        kept: Path,
        *,
        limit: int = _DEFAULT_LIMIT,
        memory_bytes: int = 0,
        idle_s: float = 0.0,
        lent: bool = False,
    ) -> None:
        self.kept = kept
        self.limit = limit
        self.memory_bytes = memory_bytes or int(_memory() * _MEMORY_SHARE)
        self.idle_s = idle_s
        self.lent = lent
        self._own: dict[str, ForkServer] = {}
        # Two servers of one command may be started at a time.
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End those that this command made for itself."""
        with self._lock:
            for made in self._own.values():
                made.end()
            self._own.clear()

    def find(self, spec: ForkServerSpec) -> ForkServer | None:
        """A living one for ``spec``, this command's or a kept one."""
        key = spec.key
        mine = self._own.get(key)
        if mine is not None and mine.alive:
            return mine
        return next(
            (one for one in kept_fork_servers(self.kept) if one.key == key), None
        )

    def get(self, spec: ForkServerSpec) -> ForkServer:
        """A living one for ``spec``, started if need be. Raises as
        ``begin_fork_server``."""
        with self._lock:
            parent = self.find(spec)
            if parent is not None:
                return parent
            if spec.box is None and (self.idle_s or self.lent):
                return self._get_kept(spec)
            self._make_room()
            made = begin_fork_server(spec, Path(tempfile.mkdtemp(prefix="mmr-warm-")))
            self._own[spec.key] = made
            return made

    def _get_kept(self, spec: ForkServerSpec) -> ForkServer:
        """One that commands share. What another command is just importing is waited
        for."""
        try:
            self.kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self.kept / f"{spec.key}.lock"):
                parent = self.find(spec)
                if parent is not None:
                    return parent
                self._make_room()
                # A name that no other has had: an ended one's guardian may still remove
                # its folder.
                folder = tempfile.mkdtemp(prefix=f"{spec.key}-", dir=self.kept)
                made = begin_fork_server(spec, Path(folder), self.idle_s)
                if not self.idle_s:
                    self._own[spec.key] = made
                return made
        except OSError as error:
            raise ForkServerDied(
                f"Nothing can be kept warm in {self.kept}: {error}."
            ) from error

    def _make_room(self) -> None:
        """End the least recently used ones; another is taken to be as large as the
        largest."""
        living = (
            kept_fork_servers(self.kept) if self.idle_s else list(self._own.values())
        )
        living = sorted(
            (one for one in living if one.alive), key=lambda one: one.last_used
        )
        sizes = [one.memory_bytes for one in living]
        while living and (
            len(living) >= self.limit or sum(sizes) + max(sizes) > self.memory_bytes
        ):
            living.pop(0).end()
            sizes.pop(0)
        self._own = {key: one for key, one in self._own.items() if one.alive}


def kept_fork_servers(root: Path) -> list[ForkServer]:
    """Those that live in ``root``, most recently used first; what dead ones left is
    removed."""
    parents = []
    for folder in folders_in(root):
        try:
            facts = ForkServerFacts(**json.loads((folder / FACTS).read_bytes()))
        except (OSError, ValueError, TypeError):
            continue  # one that still imports, or of another mmrepro
        key = folder.name.partition("-")[0]
        one = ForkServer(facts.label, key, folder, facts.pid, facts.born, facts.idle_s)
        if one.alive and not facts.refused:
            parents.append(one)
        elif not one.alive:
            shutil.rmtree(folder, ignore_errors=True)
    return sorted(parents, key=lambda one: -one.last_used)


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
