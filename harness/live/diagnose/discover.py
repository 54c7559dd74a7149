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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from mmrepro.base import processes
from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import is_file
from mmrepro.base.processes import Socket
from mmrepro.engines import ENGINES, Engine, Signs, get_engine, log_marks
from mmrepro.engines.supervise.warm import FORK_SERVER
from mmrepro.failure.documents.diagnosis import TargetFacts, TargetProcess
from mmrepro.live.diagnose.titles import whole
from mmrepro.probes.flight import PREFIX, VARIABLES
from mmrepro.probes.http import api_root
from mmrepro.probes.logs import identify
from mmrepro.probes.processes import role_from_title
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

MAX_CLIMB = 16
MAX_PROCESSES = 256
_PACKAGES = re.compile(r"(/[^\0\n]*?/(?:site|dist)-packages)/")

ROUGH_S = 2.0
"""Log lines have whole seconds."""
AS_OWNER = "run mmrepro as root, or as the server's own user"


@dataclass
class Target:
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


def find(url: str, pid: int = 0, typed: Sequence[str] = ()) -> Target:
    """The target behind ``url``, or with process ``pid``: processes only, nothing is
    asked.

    ``typed``: its command line, where that is known.

    Raises:
        UsageError: ``url`` is no http address.
    """
    host, port = parse_url(url)
    target = Target(
        TargetFacts(url=api_root(url), place="remote", port=port), typed=typed
    )
    _listen(target, host, port)
    if pid:
        target.given = True
        target.facts.root_pid, target.facts.found_by = pid, "given with --pid"
        if target.facts.place == "remote":
            target.facts.place = "local"
    refresh(target)
    if any(p.inner_pid is not None for p in target.facts.processes):
        target.facts.place = "container"
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


# ---------------------------------------------------------------- processes


def _listen(target: Target, host: str, port: int) -> None:
    """Find who listens, where ``host`` is this machine or a container on it."""
    facts = target.facts
    known = addresses(host)
    namespace: int | str = "self"
    if any(is_ours(a) for a in known):
        facts.place = "local"
    else:
        inside = next((p for a in known if (p := namespace_with(a)) is not None), None)
        if inside is None:
            target.unseen.append(
                f"{host} is not an address of this machine: only what HTTP shows can "
                "be seen; run mmrepro where the server runs, or with --pid"
            )
            return
        facts.place, namespace = "container", inside
    listening = _matching(listeners(port, namespace), known)
    facts.listening = bool(listening)
    if not listening:
        if facts.place == "local" and (pid := _on_its_way(port)) is not None:
            facts.root_pid = pid
            facts.found_by = (
                f"its command line names port {port}, where nothing listens"
            )
        return
    owners, closed = processes.holders(s.inode for s in listening)
    if owners:
        facts.root_pid = _topmost(owners)
        facts.found_by = f"it listens on port {port}"
    elif closed:
        facts.root_pid = _by_command(port, {s.uid for s in listening})
        why = (
            f"who listens on port {port} cannot be seen from here ({closed} processes "
            "are closed)"
        )
        if facts.root_pid is not None:
            facts.found_by = f"its command line names port {port}"
            target.unseen.append(
                f"{why}; taken by its command line. To be sure: {AS_OWNER}"
            )
        else:
            target.unseen.append(f"{why}: {AS_OWNER}, or give --pid")
    else:
        target.unseen.append(
            f"no process of this pid namespace holds the socket on port {port}: the "
            "server runs in another container; run mmrepro on its host, or in its pid "
            "namespace"
        )


def _matching(listeners: list[Socket], known: Sequence[str]) -> list[Socket]:
    """Those bound to one of the host's addresses or to all; failing that, any of the
    port."""
    wanted = {*known, "0.0.0.0", "::"}  # noqa: S104
    return [s for s in listeners if s.address in wanted] or listeners


def _topmost(pids: Sequence[int]) -> int:
    """The ancestor of the others, then up while the parent is a process of the same
    engine."""
    parents = {
        pid: status.ppid for pid in pids if (status := processes.stat(pid)) is not None
    }
    root = next((p for p in parents if parents[p] not in parents), pids[0])
    engines = [e for e in ENGINES.values() if e.recognise(Signs((_title(root),)))]
    for _ in range(MAX_CLIMB):
        if FORK_SERVER in _title(root):
            break  # a fork: its supervisor and its fork server, above it, have its command line
        status = processes.stat(root)
        if status is None or status.ppid <= 1:
            break
        if not any(e.recognise(Signs((_title(status.ppid),))) for e in engines):
            break
        root = status.ppid
    return root


def _by_command(port: int, uids: set[int]) -> int | None:
    """Where sockets' owners are hidden: a process of that user whose options name the
    port, else the only engine of that user."""
    named, engines = [], []
    for pid in processes.pids():
        if processes.owner(pid) not in uids:
            continue
        words = processes.arguments(pid)
        known = any(e.recognise(Signs((" ".join(words),))) for e in ENGINES.values())
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
    spaced = any(
        a.startswith("-") and a.endswith("port") and b == str(port)
        for a, b in pairwise(words)
    )
    return spaced or any(
        w.startswith("-") and w.endswith(f"port={port}") for w in words
    )


def _on_its_way(port: int) -> int | None:
    """An engine that is to listen there and does not yet; its load generator is
    none."""
    for pid in processes.pids():
        words = processes.arguments(pid)
        if not _names_port(words, port) or "bench" in words:
            continue
        if any(e.recognise(Signs((" ".join(words),))) for e in ENGINES.values()):
            return _topmost([pid])
    return None


def refresh(target: Target) -> None:
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
        key = pid, status.start_ticks
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


def name_engine(target: Target, metrics: frozenset[str], chosen: str = "auto") -> None:
    """Say which engine it is, by its processes and metrics, and name the roles after
    it."""
    commands = [" ".join(target.facts.command)] if target.facts.command else []
    commands += [_title(p.pid) for p in target.facts.processes]
    signs = Signs(tuple(commands), metrics)
    if chosen != "auto":
        target.engine, reasons = get_engine(chosen), ["given with --engine"]
    else:
        ranked = sorted(
            ((engine.recognise(signs), engine) for engine in ENGINES.values()),
            key=lambda pair: -len(pair[0]),
        )
        reasons, best = ranked[0]
        target.engine = best if reasons else None
    facts = target.facts
    if target.engine is None:
        target.unseen.append(
            "the engine was not recognised, neither by its processes nor by its "
            "metrics: only general conditions are judged; give --engine"
        )
        return
    _check_root(target, Signs(tuple(commands)))
    facts.engine, facts.engine_because = target.engine.name, reasons
    facts.core_role = target.engine.core_role
    refresh(target)


IDENTIFY_S = 4.0
"""To find a gone server's engine in its log; some 2 GB are read in that time."""


def name_engine_by_log(target: Target) -> None:
    """Of a server that is gone: the engine by the form of its log's lines, and often
    its release, as the last start says it that the log holds: an earlier one may have
    been of another."""
    facts = target.facts
    # Opening a FIFO waits for ever.
    for path in filter(lambda log: is_file(Path(log)), facts.logs):
        if (found := identify(Path(path), log_marks(), deadline_s=IDENTIFY_S)) is None:
            continue
        engine = ENGINES[found.engine]
        target.engine, facts.engine = engine, engine.name
        facts.core_role = engine.core_role
        facts.engine_because = [f"its log: {found.engine_because}"]
        release = public_release(found.release)
        if release and not facts.release:
            facts.release, facts.release_from = release, "its log"
        return


def _check_root(target: Target, commands: Signs) -> None:
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


def find_release(target: Target) -> None:
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
                facts.release, facts.release_from = (
                    release,
                    f"{entry} beside its interpreter",
                )
                facts.site_packages = str(folder)
                return


def public_release(text: str) -> str:
    """``0.23.0`` of ``0.23.0+cpu``; "" for what is no version."""
    try:
        return Version(text).public
    except InvalidVersion:
        return ""


def package_folders(target: Target) -> list[Path]:
    """Folders that the server's interpreter imports from: beside it, and those of its
    loaded libraries (/proc/PID/maps, with the right to read them)."""
    folders: dict[Path, None] = {}
    pids = [target.facts.root_pid, *(p.pid for p in target.facts.cores)]
    for pid in [p for p in pids if p is not None]:
        own = target.facts.command if pid == target.facts.root_pid else []
        words = processes.arguments(pid) or own  # none is left of one that ended
        if words and words[0].startswith("/"):
            prefix = inside(pid, words[0]).parent.parent
            with contextlib.suppress(OSError):
                folders.update(dict.fromkeys(prefix.glob("lib/python3*/site-packages")))
        maps = processes.read(pid, "maps", processes.MAPS_BYTES).decode(
            "utf-8", "replace"
        )
        folders.update(dict.fromkeys(inside(pid, p) for p in _PACKAGES.findall(maps)))
    return list(folders)


def inside(pid: int, path: str) -> Path:
    """``path`` as process ``pid`` sees it: through its root where it has a file system
    of its own."""
    mount = processes.link(pid, "ns/mnt")
    own = not mount or (
        mount == processes.link("self", "ns/mnt")
        and processes.link(pid, "root") in ("", "/")
    )
    return Path(path) if own else Path(f"/proc/{pid}/root") / path.lstrip("/")


# ---------------------------------------------------------------- logs


def began(target: Target) -> float | None:
    """When its first process started, less what clocks are rough, as time.time(); None:
    unknown."""
    pid = target.facts.root_pid
    status = processes.stat(pid) if pid is not None else None
    if status is None:
        return None
    ago = (processes.now_ticks() - status.start_ticks) / processes.TICKS_PER_S
    return time.time() - ago - ROUGH_S


def find_logs(target: Target, given: Sequence[Path]) -> list[Path]:
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
            why = f"where it logs cannot be seen: {AS_OWNER}, or give --log FILE"
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


def flight_files(target: Target) -> list[Path]:
    """Dumps of PyTorch's Flight Recorder that the server's processes wrote since it
    began."""
    start = began(target)
    prefixes: dict[Path, None] = {}
    for process in target.facts.processes if start is not None else []:
        name = _dumped_to(processes.environ(process.pid))
        if name.startswith("/"):
            prefixes[inside(process.pid, name)] = None
    found: dict[Path, None] = {}
    for prefix in prefixes:
        with contextlib.suppress(OSError):
            for file in sorted(prefix.parent.iterdir()):
                rest = file.name.removeprefix(prefix.name)
                numbered = rest != file.name and rest.removesuffix(".json").isdigit()
                if (
                    numbered
                    and is_file(file)
                    and file.stat().st_mtime >= (start or 0.0)
                ):
                    found[file] = None
    return list(found)


def _dumped_to(variables: Mapping[str, str]) -> str:
    """Of a process's variables only those that name the dumps are looked at."""
    return next((variables[name] for name in VARIABLES if name in variables), PREFIX)


# --------------------------------------------------------------- addresses and sockets


def listeners(port: int, pid: int | str = "self") -> list[Socket]:
    """Sockets that listen on ``port`` in the network namespace of ``pid``."""
    known = processes.sockets(pid) or []
    return [s for s in known if s.port == port and s.state == processes.LISTEN]


def listens(target: Target, port: int) -> bool:
    """Whether a process of the server, and no other one, listens there in this network
    namespace."""
    facts = target.facts
    if facts.place != "local" or facts.root_pid is None:
        return False
    found = listeners(port, "self")
    owners, _ = processes.holders(s.inode for s in found) if found else ([], 0)
    return bool(owners) and set(owners) <= {p.pid for p in facts.processes}


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
    return any(
        entry.address.partition("%")[0] == address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
    )


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
    return any(
        line == f"|-- {address}" and following.startswith("/32 host LOCAL")
        for line, following in pairwise(lines)
    )
