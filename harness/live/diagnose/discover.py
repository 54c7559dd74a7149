"""From a URL to the server behind it: its processes, its engine, its release, its
logs."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import stat
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from mmrepro.base import processes
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import is_file
from mmrepro.base.processes import Socket
from mmrepro.engines import ENGINES, Engine, Signs, get_engine, log_marks
from mmrepro.engines.folders import title
from mmrepro.engines.supervise.warm import FORK_SERVER
from mmrepro.failure.documents import TargetFacts, TargetProcess
from mmrepro.live.diagnose.titles import whole
from mmrepro.probes import PREFIX, VARIABLES, identify_log, role_from_title
from mmrepro.probes.http import api_root
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

MAX_CLIMB = 16
MAX_PROCESSES = 256
_PACKAGES = re.compile(r"(/[^\0\n]*?/(?:site|dist)-packages)/")

ROUGH_S = 2.0
"""Log lines have whole seconds."""
_AS_OWNER = "run mmrepro as root, or as the server's own user"


@dataclass
class ServerTarget:
    """The server as found, and what of it could not be seen."""

    facts: TargetFacts
    engine: Engine | None = None
    unseen: list[str] = field(default_factory=list)
    given: bool = False
    """The process was named by the user."""
    proxied: bool = False
    """Who listens is seen, and is not the engine."""
    typed: Sequence[str] = ()
    """Its command line, where whoever asks has started it: a fork shows its fork
    server's own."""
    titled: dict[tuple[int, int], str] = field(default_factory=dict)
    """(pid, start in clock ticks): command line while it lived, of each process that
    was here."""

    def role_of(self, name: str, cmdline: str) -> str:
        return (self.engine.role_of if self.engine else role_from_title)(name, cmdline)


def find(url: str, pid: int = 0, typed: Sequence[str] = ()) -> ServerTarget:
    """The target behind ``url``, or with process ``pid``: processes only, nothing is
    asked.

    ``typed``: its command line, where that is known.

    Raises:
        UsageError: ``url`` is no http address.
    """
    host, port = parse_url(url)
    target = ServerTarget(
        TargetFacts(url=api_root(url), place="remote", port=port), typed=typed
    )
    facts = target.facts
    _listen(target, host, port)
    if pid:
        target.given = True
        facts.root_pid, facts.found_by = pid, "given with --pid"
        if facts.place == "remote":
            facts.place = "local"
    refresh(target)
    if any(process.inner_pid is not None for process in facts.processes):
        facts.place = "container"
    return target


def parse_url(url: str) -> tuple[str, int]:
    """Host and port. Raises UsageError and says what an address looks like."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(
            f"{url!r} is not the address of a server.",
            hint="mmrepro diagnose http://127.0.0.1:8000",
        )
    return host, port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True)
class LocalServer:
    """An inference server of this machine."""

    url: str
    engine: str
    pid: int


def local_servers() -> list[LocalServer]:
    """The inference servers that run here, by their command lines, as far as this user
    can see who listens. By port."""
    ports: dict[int, list[int]] = {}
    engine_of: dict[int, Engine] = {}
    for pid in processes.pids():
        engines = _engines_of(" ".join(processes.arguments(pid)))
        listening = _listening_ports(pid) if engines else []
        if listening:
            ports[pid], engine_of[pid] = listening, engines[0]
    servers = []
    for pid, listening in ports.items():
        # A worker listens as well, for its siblings.
        if not _has_ancestor(pid, ports.keys()):
            port = _served_port(pid, listening)
            url = f"http://127.0.0.1:{port}"
            servers.append((port, LocalServer(url, title(engine_of[pid].name), pid)))
    return [server for _, server in sorted(servers, key=lambda pair: pair[0])]


def _listening_ports(pid: int) -> list[int]:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    listening = [c for c in connections if c.status == psutil.CONN_LISTEN]
    return sorted({connection.laddr.port for connection in listening})


def _has_ancestor(pid: int, among: Container[int]) -> bool:
    status = processes.stat(pid)
    for _ in range(MAX_CLIMB):
        if status is None or status.ppid <= 1:
            return False
        if status.ppid in among:
            return True
        status = processes.stat(status.ppid)
    return False


def _served_port(pid: int, listening: Sequence[int]) -> int:
    """The port that its command names, else the lowest."""
    words = processes.arguments(pid)
    for port in listening:
        if _names_port(words, port):
            return port
    return listening[0]


# ---------------------------------------------------------------- processes


def _listen(target: ServerTarget, host: str, port: int) -> None:
    """Find who listens, where ``host`` is this machine or a container on it."""
    facts = target.facts
    known = addresses(host)
    namespace: int | str = "self"
    if any(is_ours(address) for address in known):
        facts.place = "local"
    else:
        inside = _container_with(known)
        if inside is None:
            target.unseen.append(
                f"{host} is not an address of this machine: only what HTTP shows can "
                "be seen; run mmrepro where the server runs, or with --pid"
            )
            return
        facts.place, namespace = "container", inside
    listening = _matching(listeners(port, namespace), known)
    facts.listening = bool(listening)
    if listening:
        _find_owner(target, port, listening)
        return
    pid = _on_its_way(port) if facts.place == "local" else None
    if pid is not None:
        facts.root_pid = pid
        facts.found_by = f"its command line names port {port}, where nothing listens"


def _container_with(known: Sequence[str]) -> int | None:
    """A process of a container on this machine that owns one of these addresses."""
    for address in known:
        pid = namespace_with(address)
        if pid is not None:
            return pid
    return None


def _find_owner(target: ServerTarget, port: int, listening: Sequence[Socket]) -> None:
    """Find the process of these sockets, or say why it cannot be seen."""
    facts = target.facts
    owners, closed = processes.holders(s.inode for s in listening)
    if owners:
        facts.root_pid = _topmost(owners)
        facts.found_by = f"it listens on port {port}"
        return
    if not closed:
        target.unseen.append(
            f"no process of this pid namespace holds the socket on port {port}: the "
            "server runs in another container; run mmrepro on its host, or in its pid "
            "namespace"
        )
        return
    facts.root_pid = _by_command(port, {s.uid for s in listening})
    hidden = "1 process is" if closed == 1 else f"{closed} processes are"
    why = f"who listens on port {port} cannot be seen from here ({hidden} closed)"
    if facts.root_pid is None:
        target.unseen.append(f"{why}: {_AS_OWNER}, or give --pid")
        return
    facts.found_by = f"its command line names port {port}"
    target.unseen.append(f"{why}; taken by its command line. To be sure: {_AS_OWNER}")


def _matching(listeners: list[Socket], known: Sequence[str]) -> list[Socket]:
    """Those bound to one of the host's addresses or to all; failing that, any of the
    port."""
    wanted = {*known, "0.0.0.0", "::"}  # noqa: S104
    return [s for s in listeners if s.address in wanted] or listeners


def _topmost(pids: Sequence[int]) -> int:
    """The ancestor of the others, then up while the parent is a process of the same
    engine."""
    root = _eldest(pids)
    engines = _engines_of(_title(root))
    for _ in range(MAX_CLIMB):
        if FORK_SERVER in _title(root):
            break  # a fork: its supervisor and its fork server, above it, have its command line
        status = processes.stat(root)
        if status is None or status.ppid <= 1:
            break
        signs = Signs((_title(status.ppid),))
        if not any(engine.recognise(signs) for engine in engines):
            break
        root = status.ppid
    return root


def _eldest(pids: Sequence[int]) -> int:
    """The first of them whose parent is none of them."""
    parents = {}
    for pid in pids:
        status = processes.stat(pid)
        if status is not None:  # it may have ended since it was seen
            parents[pid] = status.ppid
    for pid, parent in parents.items():
        if parent not in parents:
            return pid
    return pids[0]


def _engines_of(title: str) -> list[Engine]:
    """The engines that know a command line as theirs."""
    signs = Signs((title,))
    return [engine for engine in ENGINES.values() if engine.recognise(signs)]


def _by_command(port: int, uids: set[int]) -> int | None:
    """Where sockets' owners are hidden: a process of that user whose options name the
    port, else the only engine of that user."""
    named, engines = [], []
    for pid in processes.pids():
        if processes.owner(pid) not in uids:
            continue
        words = processes.arguments(pid)
        known = bool(_engines_of(" ".join(words)))
        if _names_port(words, port):
            named.append((not known, pid))
        elif known:
            engines.append(pid)
    if named:
        return min(named)[1]
    tops = {_topmost([pid]) for pid in engines}
    return tops.pop() if len(tops) == 1 else None


def _names_port(words: Sequence[str], port: int) -> bool:
    """Whether an option of a command line is this port."""
    for word in words:
        if word.startswith("-") and word.endswith(f"port={port}"):
            return True
    for option, value in pairwise(words):
        if option.startswith("-") and option.endswith("port") and value == str(port):
            return True
    return False


def _on_its_way(port: int) -> int | None:
    """An engine that is to listen there and does not yet; its load generator is
    none."""
    for pid in processes.pids():
        words = processes.arguments(pid)
        if not _names_port(words, port) or "bench" in words:
            continue
        if _engines_of(" ".join(words)):
            return _topmost([pid])
    return None


def refresh(target: ServerTarget) -> None:
    """Look at the process tree again; roles are as the engine names them."""
    facts = target.facts
    if facts.root_pid is None:
        return
    # None is left of one that ended.
    words = processes.arguments(facts.root_pid) or facts.command
    facts.command = [*target.typed] if FORK_SERVER in words else words
    facts.processes = []
    for pid in processes.tree(facts.root_pid)[:MAX_PROCESSES]:
        status = processes.stat(pid)
        if status is None:
            continue
        # A pid may be another process later: with its start it is the same one.
        key = pid, status.start_ticks
        # A zombie has no command line: the one from before is kept.
        target.titled[key] = processes.cmdline(pid) or target.titled.get(key, "")
        facts.processes.append(
            TargetProcess(
                pid=pid,
                ppid=status.ppid,
                role=target.role_of(status.name, target.titled[key]),
                name=status.name,
                state=status.state,
                inner_pid=_inner_pid(pid),
            )
        )
    facts.processes = whole(facts).processes


def _inner_pid(pid: int) -> int | None:
    """The pid inside the innermost pid namespace, if there is one below ours
    (NSpid)."""
    numbers = processes.field(pid, "NSpid")
    return int(numbers[-1]) if len(numbers) > 1 else None


def _title(pid: int) -> str:
    return " ".join(processes.arguments(pid)) or processes.name(pid)


# ---------------------------------------------------------------- engine and release


def name_engine(
    target: ServerTarget, metrics: frozenset[str], chosen: str = "auto"
) -> None:
    """Say which engine it is, by its processes and metrics, and name the roles after
    it."""
    facts = target.facts
    commands = [" ".join(facts.command)] if facts.command else []
    commands += [_title(process.pid) for process in facts.processes]
    if chosen != "auto":
        target.engine, reasons = get_engine(chosen), ["given with --engine"]
    else:
        signs = Signs(tuple(commands), metrics)
        best = max(ENGINES.values(), key=lambda engine: len(engine.recognise(signs)))
        reasons = best.recognise(signs)
        target.engine = best if reasons else None
    if target.engine is None:
        target.unseen.append(
            "the engine was not recognised, neither by its processes nor by its "
            "metrics: only general conditions are judged; give --engine"
        )
        return
    _check_root(target, Signs(tuple(commands)))
    facts.engine, facts.engine_because = target.engine.name, reasons
    facts.core_role = target.engine.core_role
    if facts.root_pid is not None:
        variables = processes.environ(facts.root_pid)
        facts.front_role = facts.front_role or target.engine.front_role_in(variables)
    # Roles are as the engine calls them, and it was not known before.
    refresh(target)


_IDENTIFY_S = 4.0
"""To find a gone server's engine in its log; some 2 GB are read in that time."""


def name_engine_by_log(target: ServerTarget) -> None:
    """Of a server that is gone: the engine by the form of its log's lines, and often
    its release, as the last start says it that the log holds: an earlier one may have
    been of another."""
    facts = target.facts
    for path in map(Path, facts.logs):
        # Opening a FIFO waits for ever.
        if not is_file(path):
            continue
        identity = identify_log(path, log_marks(), deadline_s=_IDENTIFY_S)
        if identity is None:
            continue
        engine = ENGINES[identity.engine]
        target.engine, facts.engine = engine, engine.name
        facts.core_role = engine.core_role
        facts.engine_because = [f"its log: {identity.engine_because}"]
        release = public_release(identity.release)
        if release and not facts.release:
            facts.release, facts.release_from = release, "its log"
        return


def _check_root(target: ServerTarget, commands: Signs) -> None:
    """Let go of a listener that is not the engine: a proxy in front of it would look
    like a server whose engine process is gone."""
    facts = target.facts
    assert target.engine is not None
    if facts.root_pid is None or target.given or target.engine.recognise(commands):
        return
    target.unseen.append(
        f"its processes: who listens on port {facts.port} is no {target.engine.name} "
        f"({_title(facts.root_pid)[:80]}), a proxy perhaps; give --pid of the engine"
    )
    facts.root_pid, facts.processes, facts.command, facts.found_by = None, [], [], ""
    target.proxied = True


def find_release(target: ServerTarget) -> None:
    """The release from the installed distribution's folder, read from disk."""
    facts, engine = target.facts, target.engine
    if engine is None or facts.root_pid is None:
        return
    names = {canonicalize_name(n) for n in engine.distributions or (engine.name,)}
    for folder in package_folders(target):
        try:
            entries = sorted(entry.name for entry in folder.iterdir())
        except OSError:
            continue
        for entry in entries:
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if not entry.endswith(".dist-info") or canonicalize_name(name) not in names:
                continue
            if release := public_release(version):
                facts.release = release
                facts.release_from = f"{entry} beside its interpreter"
                facts.site_packages = str(folder)
                return


def public_release(text: str) -> str:
    """``0.23.0`` of ``0.23.0+cpu``; "" for what is no version."""
    try:
        return Version(text).public
    except InvalidVersion:
        return ""


def package_folders(target: ServerTarget) -> list[Path]:
    """Folders that the server's interpreter imports from: beside it, and those of its
    loaded libraries (/proc/PID/maps, with the right to read them)."""
    folders: list[Path] = []
    facts = target.facts
    for pid in (facts.root_pid, *(process.pid for process in facts.cores)):
        if pid is None:
            continue
        own = facts.command if pid == facts.root_pid else []
        words = processes.arguments(pid) or own  # none is left of one that ended
        if words and words[0].startswith("/"):
            prefix = inside(pid, words[0]).parent.parent
            with contextlib.suppress(OSError):
                folders += [*prefix.glob("lib/python3*/site-packages")]
        maps = processes.read(pid, "maps", processes.MAPS_BYTES)
        for path in _PACKAGES.findall(maps.decode("utf-8", "replace")):
            folders.append(inside(pid, path))
    return list(dict.fromkeys(folders))


def inside(pid: int, path: str) -> Path:
    """``path`` as process ``pid`` sees it: through its root where it has a file system
    of its own."""
    mount = processes.link(pid, "ns/mnt")
    if not mount:
        return Path(path)
    # A chroot has our mounts and another root.
    same_mounts = mount == processes.link("self", "ns/mnt")
    if same_mounts and processes.link(pid, "root") in ("", "/"):
        return Path(path)
    return Path(f"/proc/{pid}/root") / path.lstrip("/")


# ---------------------------------------------------------------- logs


def began(target: ServerTarget) -> float | None:
    """When its first process started, less what clocks are rough, as time.time(); None:
    unknown."""
    pid = target.facts.root_pid
    status = processes.stat(pid) if pid is not None else None
    if status is None:
        return None
    ago = (processes.now_ticks() - status.start_ticks) / processes.TICKS_PER_S
    return time.time() - ago - ROUGH_S


def find_logs(target: ServerTarget, given: Sequence[Path]) -> list[Path]:
    """The log files: those given, else the files that the engine's stdout and stderr go
    to."""
    if given:
        target.facts.logs = [str(path) for path in given]
        return list(given)
    files: dict[tuple[int, int], Path] = {}
    elsewhere: set[str] = set()
    denied = False
    for process in target.facts.processes:
        for number in (1, 2):
            link = f"/proc/{process.pid}/fd/{number}"
            try:
                kind = os.stat(link)  # noqa: PTH116
                name = os.readlink(link)  # noqa: PTH115
            except PermissionError:
                denied = True
                continue
            except OSError:
                continue
            if stat.S_ISREG(kind.st_mode):
                files.setdefault(
                    (kind.st_dev, kind.st_ino), _readable(link, name, kind)
                )
            elif name != "/dev/null":
                elsewhere.add(name.partition(":")[0])
    target.facts.logs = [str(path) for path in files.values()]
    if not files and target.facts.processes:
        if denied:
            why = f"where it logs cannot be seen: {_AS_OWNER}, or give --log FILE"
        elif elsewhere:
            where = ", ".join(sorted(elsewhere))
            why = f"its output goes to no file ({where}): save it and give --log FILE"
        else:
            why = "its output is thrown away: start it with its output in a file"
        target.unseen.append(f"the log: {why}")
    return list(files.values())


def _readable(link: str, name: str, wanted: os.stat_result) -> Path:
    """The file by its name where that is still the same file, else through the
    process."""
    try:
        there = os.stat(name)  # noqa: PTH116
        if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
            return Path(name)
    except OSError:
        pass
    return Path(link)


def flight_files(target: ServerTarget) -> list[Path]:
    """Dumps of PyTorch's Flight Recorder that the server's processes wrote since it
    began."""
    start = began(target)
    if start is None:
        return []
    prefixes: dict[Path, None] = {}
    for process in target.facts.processes:
        name = _dumped_to(processes.environ(process.pid))
        if name.startswith("/"):
            prefixes[inside(process.pid, name)] = None
    files: dict[Path, None] = {}
    for prefix in prefixes:
        with contextlib.suppress(OSError):
            for file in sorted(prefix.parent.iterdir()):
                rest = file.name.removeprefix(prefix.name)
                if rest == file.name or not rest.removesuffix(".json").isdigit():
                    continue
                # One that an earlier server left behind tells nothing of this one.
                if is_file(file) and file.stat().st_mtime >= start:
                    files[file] = None
    return list(files)


def _dumped_to(variables: Mapping[str, str]) -> str:
    """Of a process's variables only those that name the dumps are looked at."""
    for name in VARIABLES:
        if name in variables:
            return variables[name]
    return PREFIX


# --------------------------------------------------------------- addresses and sockets


def listeners(port: int, pid: int | str = "self") -> list[Socket]:
    """Sockets that listen on ``port`` in the network namespace of ``pid``."""
    known = processes.sockets(pid) or []
    return [s for s in known if s.port == port and s.state == processes.LISTEN]


def listens(target: ServerTarget, port: int) -> bool:
    """Whether a process of the server, and no other one, listens there in this network
    namespace."""
    facts = target.facts
    if facts.place != "local" or facts.root_pid is None:
        return False
    listening = listeners(port, "self")
    if not listening:
        return False
    owners, _ = processes.holders(s.inode for s in listening)
    own = {process.pid for process in facts.processes}
    return bool(owners) and own.issuperset(owners)


def addresses(host: str) -> list[str]:
    """What ``host`` resolves to; empty when it does not."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))


def is_ours(address: str) -> bool:
    """Whether an address belongs to this network namespace."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            # Link-local addresses have their interface behind a percent sign.
            if entry.address.partition("%")[0] == address:
                return True
    return False


def namespace_with(address: str) -> int | None:
    """A process in another network namespace that owns ``address``: a container's, seen
    from its host. Needs the right to look into it."""
    seen = {processes.link("self", "ns/net")}
    for pid in processes.pids():
        namespace = processes.link(pid, "ns/net")
        if not namespace or namespace in seen:
            continue
        seen.add(namespace)
        if owns(
            processes.read(pid, "net/fib_trie").decode("ascii", "replace"), address
        ):
            return pid
    return None


def owns(fib_trie: str, address: str) -> bool:
    """Whether a namespace's /proc/net/fib_trie has ``address`` as one of its own."""
    lines = [line.strip() for line in fib_trie.splitlines()]
    for line, following in pairwise(lines):
        if line == f"|-- {address}" and following.startswith("/32 host LOCAL"):
            return True
    return False
