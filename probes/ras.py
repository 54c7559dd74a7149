"""NCCL's own report of its ranks (RAS, NCCL 2.24 and later): read only, loopback only,
2 s at most.

The library listens on localhost:28028 in every process that uses it, and answers with
the state of all ranks of the job: text, and from 2.28.7 on JSON (NCCL user guide,
"RAS"; src/ras/client.cc and client_support.cc of NCCL's repository). Of the commands
only ``CLIENT PROTOCOL``, ``SET FORMAT``, ``TIMEOUT`` and ``VERBOSE STATUS`` are sent:
none changes anything.

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.ras import RasProbe
    print(run_probe(RasProbe(), Path("evidence"), 2).data)
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any, Self

from mmrepro.base.text import one_line
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import NcclRank, RasData

PORT = 28028
PROTOCOL = 2
"""NCCL_RAS_CLIENT_PROTOCOL of src/include/ras.h. The server answers with its own."""
MOST_S = 2.0
_MAX_BYTES = 8 << 20
_MAX_LINE = 512
MAX_RANKS = 4096
_MAX_COUNT = 1 << 62
_GREETING = re.compile(rb"SERVER PROTOCOL (\d{1,6})\s*$", re.IGNORECASE)
_COMM = re.compile(r"^\s*#\d+-\d+ \((?P<hash>[0-9a-f]{1,16})\) (?P<what>[A-Z,]+)\s*$")
_KIND = re.compile(
    r"^\s*Communicator ranks have different (?P<kind>[A-Z]\w{1,30}"
    r"|collective) operation counts"
)
_AT = r"(?:have|has) launched up to operation (?P<at>\d+)"
_GROUP = re.compile(rf"^\s*(?P<count>\d+) ranks? {_AT}\s*$")
_MEMBER = re.compile(
    rf"^\s*Rank (?P<rank>\d+)(?: {_AT})? -- GPU \d+ managed by process (?P<pid>\d+) on "
    rf"node "
    r"(?P<host>\S{1,64})"
)
"""``Rank 3 -- GPU …`` below its group, and of 2.28 ``Rank 3 has launched up to
operation 7 -- …`` where it is alone."""
_PROCESS = re.compile(
    r"^\s*Process (?P<pid>\d+) on node (?P<host>\S{1,64}) managing GPU"
)
_TROUBLE = re.compile(
    r"^\s*(?:(?:INCOMPLETE|DEAD|TIMEOUT|MISMATCH|ERROR)\b|Missing |The missing "
    r"|\d+ job process"
    r"|Communicator ranks have different|Encountered |Rank \d+ reported )"
)


_MISSING = re.compile(r"^\s*Missing communicator data from \d+ rank")
_ALL = "all"
"""The kind of operations that are counted together."""


class NotNccl(ValueError):
    """What answered is no RAS service, or its answer is no whole one."""


class RasProbe(Probe[RasData]):
    """One report. Connects to 127.0.0.1 and to no other address."""

    name = "nccl-ras"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls()

    def __init__(self, port: int = PORT) -> None:
        self.port = port

    def collect(self, sink: RawSink, deadline: float) -> RasData:
        """Raises Unavailable where no RAS service answers, TimedOut where it does not
        in time."""
        end = min(deadline, time.monotonic() + MOST_S)
        try:
            return self._read(sink, end)
        except TimeoutError as late:
            raise TimedOut(
                f"no whole answer on port {self.port} in {MOST_S:g} s"
            ) from late
        except (OSError, NotNccl) as error:
            raise Unavailable(
                f"no RAS service of NCCL on port {self.port}: {error}"
            ) from error

    def _read(self, sink: RawSink, end: float) -> RasData:
        """The report in JSON; in words where there is none, or it cannot be read: NCCL
        2.28.9 writes no comma before the status of a missing rank. Raises NotNccl,
        OSError."""
        why: list[str] = []
        for ask_for_json in (True, False):
            protocol, as_json, text = self._report(end, as_json=ask_for_json)
            sink.write("nccl-ras." + ("json" if as_json else "txt"), text)
            try:
                data = read_json(text) if as_json else read_text(text)
            except (ValueError, RecursionError) as error:
                why.append(str(error))
                if as_json:
                    continue
                break
            data.protocol = protocol
            return data
        raise NotNccl(f"its report cannot be read: {'; in words: '.join(why)}")

    def _report(self, end: float, *, as_json: bool) -> tuple[int, bool, str]:
        """Return the service's protocol, whether its report is JSON, and the report."""
        with socket.create_connection(
            ("127.0.0.1", self.port), _left(end)
        ) as connection:
            talk = _Talk(connection, end)
            talk.send(f"CLIENT PROTOCOL {PROTOCOL}")
            match = _GREETING.match(talk.line())
            if match is None:
                raise NotNccl("it does not greet as NCCL does")
            talk.send("TIMEOUT 1")
            talk.line()
            if as_json:
                talk.send("SET FORMAT json")
                as_json = talk.line().strip().upper() == b"OK"
            talk.send("VERBOSE STATUS")
            return int(match[1]), as_json, talk.rest().decode("utf-8", "replace")


class _Talk:
    """A conversation with the service, in lines, until a time."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection = connection
        self._end = end
        self._read = b""

    def send(self, command: str) -> None:
        self._connection.settimeout(_left(self._end))
        self._connection.sendall(command.encode() + b"\n")

    def line(self) -> bytes:
        while b"\n" not in self._read:
            if len(self._read) > _MAX_LINE:
                raise NotNccl("its line has no end")
            if not self._more():
                raise NotNccl("it closed the connection")
        line, _, self._read = self._read.partition(b"\n")
        return line

    def rest(self) -> bytes:
        """All that follows, until the service closes the connection."""
        while self._more():
            if len(self._read) > _MAX_BYTES:
                raise NotNccl(f"its report is larger than {_MAX_BYTES} bytes")
        return self._read

    def _more(self) -> bool:
        self._connection.settimeout(_left(self._end))
        data = self._connection.recv(65536)
        self._read += data
        return bool(data)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


# ------------------------------------------------------------------ its two forms


def read_json(text: str) -> RasData:
    """Read the report of NCCL 2.28.7 and later. Raises ValueError: it is not whole, or
    not that."""
    document = json.loads(text)
    communicators = None
    if isinstance(document, dict):
        communicators = document.get("communicators")
    if not isinstance(communicators, list):
        raise ValueError("it has no list of communicators")
    data = RasData(form="json", nccl=_text(document.get("nccl_version")))
    for communicator in communicators:
        if not isinstance(communicator, dict):
            raise ValueError("a communicator is no object")
        _read_communicator(communicator, data)
        if len(data.ranks) > MAX_RANKS:
            raise ValueError("it lists too many ranks")
    return data


def _read_communicator(communicator: dict[str, Any], data: RasData) -> None:
    """Read its ranks, and those that are missing. Raises ValueError."""
    name = _text(communicator.get("hash"))
    data.sizes[name] = _number(communicator.get("size"))
    for entry in _objects(communicator.get("ranks")):
        status = _object(entry.get("status"))
        counts: dict[str, int] = {}
        for operation, count in _object(entry.get("collective_counts")).items():
            counts[_text(operation)] = _number(count)
        error = _number(status.get("async_error", 0))
        data.ranks.append(_rank(name, entry, counts=counts, error=error))

    for entry in _objects(communicator.get("missing_ranks")):
        status = _object(entry.get("status"))
        dead = status.get("considered_dead") is True
        lost = dead or status.get("unresponsive") is True
        rank = _rank(name, entry, missing=True, dead=dead, unresponsive=lost)
        data.ranks.append(rank)


def read_text(text: str) -> RasData:
    """Read the report in words: only outliers are listed by rank. Raises ValueError: it
    is not that."""
    if "Communicators" not in text:
        raise ValueError("it has no section of communicators")
    data = RasData(form="text")
    version = re.search(r"NCCL version (\S{1,40})", text)
    if version:
        data.nccl = version[1]

    # Where the reader is: a communicator, in it a kind of operation, below that the
    # number of the operation that a group of ranks has launched.
    communicator = ""
    kind = _ALL
    at: int | None = None
    missing = False
    for line in text.splitlines()[:100_000]:
        if match := _COMM.match(line):
            communicator = match["hash"]
            kind, at, missing = _ALL, None, False
        elif match := _KIND.match(line):
            kind = _ALL if match["kind"] == "collective" else match["kind"]
            at = None
        elif match := _GROUP.match(line):
            at = _launched(data, communicator, kind, match["at"], int(match["count"]))
        elif match := _MEMBER.match(line):
            own = at
            if match["at"]:
                own = _launched(data, communicator, kind, match["at"], 1)
            if len(data.ranks) < MAX_RANKS:
                rank = NcclRank(
                    communicator=communicator,
                    rank=min(int(match["rank"]), _MAX_COUNT),
                    pid=min(int(match["pid"]), _MAX_COUNT),
                    host=match["host"],
                    counts={} if own is None or missing else {kind: own},
                    missing=missing,
                    unresponsive=missing,
                )
                data.ranks.append(rank)
        elif match := _PROCESS.match(line):
            data.lost_pids.append(min(int(match["pid"]), _MAX_COUNT))
        elif _MISSING.match(line):
            missing = True
        if _TROUBLE.match(line) and len(data.troubles) < 40:
            data.troubles.append(one_line(line.strip(), 200))
    return data


def _launched(data: RasData, communicator: str, kind: str, at: str, count: int) -> int:
    """Note how many ranks have launched up to an operation of that kind; return its
    number."""
    number = min(int(at), _MAX_COUNT)
    counts = data.launched.setdefault(f"{communicator} {kind}", {})
    counts[number] = min(counts.get(number, 0) + count, MAX_RANKS)
    return number


def _rank(communicator: str, entry: dict[str, Any], **more: Any) -> NcclRank:
    """Raises ValueError."""
    return NcclRank(
        communicator=communicator,
        rank=_number(entry.get("rank")),
        pid=_number(entry.get("pid")),
        host=_text(entry.get("host")),
        **more,
    )


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object is none")
    return value


def _objects(value: object) -> list[dict[str, Any]]:
    """Raises ValueError."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("a list of ranks is none")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_COUNT:
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return one_line(value, 80)
