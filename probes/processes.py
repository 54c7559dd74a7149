"""The engine's processes and threads: who uses a core, who sleeps, who is gone.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.processes import ProcessesProbe
    result = run_probe(ProcessesProbe(pid), Path("evidence"), 5)
    print([(p.role, p.cpu_pct, p.state) for p in result.data.processes])
    from mmrepro.probes.processes import ConnectionsProbe
    print(run_probe(ConnectionsProbe(8000), Path("evidence"), 3).data.clients)
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import psutil
from mmrepro.base import processes
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import ConnectionsData, ProcessesData, ProcessUse, ThreadUse

_MAX_BUSIEST = 8

_RoleOf = Callable[[str, str], str]
"""(name, command line) of a process -> what it is to the engine."""

# vLLM and SGLang name their processes by setproctitle: "VLLM::EngineCore",
# "sglang::scheduler_TP0".
_TITLE = re.compile(r"^[A-Za-z][\w.-]*::([\w.\-]+)")


def role_from_title(name: str, cmdline: str) -> str:
    """``EngineCore`` of a process titled ``VLLM::EngineCore``; otherwise its name.

    The command line comes first: the kernel cuts names at 15 characters.
    """
    for text in (cmdline, name):
        if match := _TITLE.match(text):
            return match[1]
    if "multiprocessing.resource_tracker" in cmdline:
        return "resource_tracker"
    return name


@dataclass(frozen=True)
class _ProcessReading:
    mono: float
    stat: processes.Stat
    threads: dict[int, processes.Thread]


class ProcessesProbe(Probe[ProcessesData]):
    """Two readings of the tree below ``root_pid``, ``window_s`` seconds apart.

    ``also``: processes that belong to the engine but were reparented away from the
    tree. CPU times come in clock ticks (10 ms), so percentages are as fine as 1 /
    ``window_s`` per cent."""

    name = "processes"
    needs = "pid"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(subject.pid)

    def __init__(
        self,
        root_pid: int,
        window_s: float = 0.5,
        role_of: _RoleOf | None = None,
        *,
        also: Sequence[int] = (),
    ) -> None:
        self.root_pid = root_pid
        self.window_s = window_s
        self.role_of = role_of or role_from_title
        self.also = tuple(also)

    def collect(self, sink: RawSink, deadline: float) -> ProcessesData:
        """Take two readings. Raises Unavailable when no process of the tree exists,
        TimedOut without time."""
        started = time.monotonic()
        window_s = min(self.window_s, deadline - started - 0.2)
        if window_s < 0.05:
            raise TimedOut("no time for two readings of the processes")
        first = self._read_all()
        if not first:
            raise Unavailable(f"process {self.root_pid} does not exist (any more)")
        time.sleep(window_s)
        second = self._read_all()
        window_s = round(time.monotonic() - started, 4)

        uses: list[ProcessUse] = []
        for pid, reading in second.items():
            uses.append(self._use(reading, first.get(pid)))
        vanished: list[int] = []
        for pid, reading in first.items():
            # A pid that is used again belongs to another process.
            now = second.get(pid)
            if now is None or now.stat.start_ticks != reading.stat.start_ticks:
                vanished.append(pid)
        data = ProcessesData(
            root_pid=self.root_pid, window_s=window_s, processes=uses, vanished=vanished
        )
        sink.write("processes.json", data.model_dump_json(indent=1))
        return data

    def _read_all(self) -> dict[int, _ProcessReading]:
        readings: dict[int, _ProcessReading] = {}
        for pid in processes.tree(self.root_pid, self.also):
            threads = processes.threads(pid)
            now = time.monotonic()
            stat = processes.stat(pid)
            if stat is not None:
                readings[pid] = _ProcessReading(now, stat, threads)
        return readings

    def _use(
        self, after: _ProcessReading, before: _ProcessReading | None
    ) -> ProcessUse:
        stat = after.stat
        if before is None or before.stat.start_ticks != stat.start_ticks:
            # Born within the window, or a recycled pid: nothing to compare with.
            before = after
        seconds = max(after.mono - before.mono, 1e-6)
        runs = thread_runs(before.threads, after.threads, seconds)
        busiest = [_thread_use(run) for run in runs[:_MAX_BUSIEST]]
        line = processes.cmdline(stat.pid)
        started_s = stat.start_ticks / processes.TICKS_PER_S
        return ProcessUse(
            pid=stat.pid,
            ppid=stat.ppid,
            name=stat.name,
            cmdline=line,
            role=self.role_of(stat.name, line),
            state=stat.state,
            threads=stat.threads,
            rss_bytes=stat.rss_bytes,
            user_pct=_pct(stat.user_ticks - before.stat.user_ticks, seconds),
            system_pct=_pct(stat.system_ticks - before.stat.system_ticks, seconds),
            voluntary_switches=sum(run.voluntary for run in runs),
            involuntary_switches=sum(run.involuntary for run in runs),
            queued_pct=round(sum(run.queued_pct for run in runs), 1),
            created_wall=psutil.boot_time() + started_s,
            busiest=busiest,
        )


def _pct(ticks: int, seconds: float) -> float:
    return round(max(ticks, 0) / processes.TICKS_PER_S / seconds * 100, 1)


class ThreadRun(NamedTuple):
    """What one thread did between two readings; percentages are of a core."""

    stat: processes.Stat
    user_pct: float
    system_pct: float
    queued_pct: float
    voluntary: int
    involuntary: int


def thread_runs(
    before: Mapping[int, processes.Thread],
    after: Mapping[int, processes.Thread],
    seconds: float,
) -> list[ThreadRun]:
    """Return the threads of ``after``, busiest first; one that is new did nothing
    yet."""
    runs: list[ThreadRun] = []
    for tid, now in after.items():
        then = before.get(tid, now)
        run = ThreadRun(
            stat=now.stat,
            user_pct=_pct(now.stat.user_ticks - then.stat.user_ticks, seconds),
            system_pct=_pct(now.stat.system_ticks - then.stat.system_ticks, seconds),
            queued_pct=max(now.queued_s - then.queued_s, 0.0) / seconds * 100,
            voluntary=max(now.voluntary - then.voluntary, 0),
            involuntary=max(now.involuntary - then.involuntary, 0),
        )
        runs.append(run)
    return sorted(runs, key=lambda run: run.user_pct + run.system_pct, reverse=True)


def _thread_use(run: ThreadRun) -> ThreadUse:
    return ThreadUse(
        tid=run.stat.pid,
        name=run.stat.name,
        state=run.stat.state,
        user_pct=run.user_pct,
        system_pct=run.system_pct,
        queued_pct=round(run.queued_pct, 1),
    )


class CpuMeter:
    """CPU of a process tree since the last call, cheap enough for four calls a second.

    Walking /proc for the tree is what costs, so that is done every ``refresh_s``
    seconds only; in between each call reads one line for each known process. Not safe
    for several threads."""

    def __init__(
        self,
        root_pid: int,
        *,
        also: Sequence[int] = (),
        role_of: _RoleOf | None = None,
        refresh_s: float = 2.0,
    ) -> None:
        self.root_pid = root_pid
        self.also = tuple(also)
        self.role_of = role_of or role_from_title
        self.refresh_s = refresh_s
        self._walked = float("-inf")
        self._roles: dict[int, str] = {}
        self._last: dict[int, _CpuReading] = {}

    def read(self) -> dict[str, float]:
        """Return by role the % of one core since the last call, summed over the
        processes of that role.

        A process seen for the first time counts from the next call on, so the first
        call is all zeros. Empty when nothing of the tree is left."""
        now = time.monotonic()
        if now - self._walked >= self.refresh_s:
            self._walk(now)
        use: dict[str, float] = {}
        seen: dict[int, _CpuReading] = {}
        for pid, role in self._roles.items():
            stat = processes.stat(pid)
            if stat is None or stat.ended:
                continue
            ticks = stat.user_ticks + stat.system_ticks
            reading = _CpuReading(stat.start_ticks, ticks, time.monotonic())
            seen[pid] = reading
            last = self._last.get(pid)
            pct = 0.0
            # Another start: the pid was given to a new process.
            if last is not None and last.start_ticks == reading.start_ticks:
                seconds = max(reading.mono - last.mono, 1e-3)
                pct = _pct(ticks - last.ticks, seconds)
            use[role] = use.get(role, 0.0) + pct
        self._last = seen
        return {role: round(pct, 1) for role, pct in use.items()}

    def _walk(self, now: float) -> None:
        self._walked = now
        roles: dict[int, str] = {}
        for pid in processes.tree(self.root_pid, self.also):
            stat = processes.stat(pid)
            if stat is not None:
                # Asked anew each time: a process takes its title some time after its
                # start.
                roles[pid] = self.role_of(stat.name, processes.cmdline(pid))
        self._roles = roles


class _CpuReading(NamedTuple):
    start_ticks: int
    ticks: int
    mono: float


# ------------------------------------------------------------------ who is connected


class ConnectionsProbe(Probe[ConnectionsData]):
    """Connections to ``port`` in the network namespace of process ``pid``; those that
    this process holds itself are left out."""

    name = "connections"
    needs = "url"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls(urlsplit(subject.url).port or 80, subject.pid or "self")

    def __init__(self, port: int, pid: int | str = "self") -> None:
        self.port = port
        self.pid = pid

    def collect(self, sink: RawSink, deadline: float) -> ConnectionsData:
        """Count the connections. Raises Unavailable where no table can be read, or the port
        is none of that namespace."""
        sockets = _table(self.pid)
        at_port = [socket for socket in sockets if socket.port == self.port]
        if not any(socket.state == processes.LISTEN for socket in at_port):
            raise Unavailable(f"nothing is seen to listen on port {self.port} there")

        # Read after the table: one of ours that was opened meanwhile is among them.
        own: set[int] = set()
        for connection in psutil.Process().net_connections("tcp"):
            if connection.laddr:
                own.add(connection.laddr.port)
        clients = [socket for socket in at_port if socket.peer_port not in own]
        connected = [s for s in clients if s.state == processes.ESTABLISHED]
        return ConnectionsData(
            port=self.port,
            clients=len(connected),
            unread=sum(socket.unread > 0 for socket in connected),
            left=sum(socket.state == processes.CLOSE_WAIT for socket in clients),
        )


def _table(pid: int | str) -> list[processes.Socket]:
    """Raises Unavailable."""
    sockets = processes.sockets(pid)
    if sockets is None:
        raise Unavailable(f"the TCP sockets of process {pid} cannot be read")
    return sockets


# ------------------------------------------------------------------ after a tracer


def wait_until(
    condition: Callable[[], bool], seconds: float, step_s: float = 0.01
) -> bool:
    """Poll ``condition`` for at most ``seconds``; return whether it came true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(step_s)
    return True


def resume_after_trace(pid: int, state_before: str) -> bool:
    """Undo a stop that a tracer of ours left behind; return whether there was one.

    A tracer that dies between attaching and its first wait can leave its target
    stopped. One that was stopped before we came is left so."""
    # While a tracer is attached, its target is stopped rightly.
    wait_until(lambda: processes.tracer(pid) == 0, 2.0)
    stat = processes.stat(pid)
    if stat is None or stat.state != "T" or state_before == "T":
        return False
    try:
        os.kill(pid, signal.SIGCONT)
    except OSError:
        return False
    return True
