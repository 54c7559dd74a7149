"""The typed data of every probe: what signatures and reports read.

Kept in one module so that an incident can be read back (a discriminated union) without
importing what the probes need to collect it."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Generic, Literal, Self, TypeVar

from mmrepro.base.records import (
    GpuProcess as GpuProcess,
    MigSlice as MigSlice,
    Moment,
    Record,
)
from pydantic import Field

D = TypeVar("D")


class ProbeStatus(StrEnum):
    OK = "ok"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed-out"


class ProbeData(Record):
    """Base of a probe's typed data. Each subclass has a ``kind`` literal of its own."""

    kind: str


class ProbeResult(Record, Generic[D]):
    """What came of one collection. ``data`` may be partial when ``status`` is not
    ``ok``."""

    probe: str
    phase: Annotated[str, Field(description="gate, trigger, check or after")] = ""
    status: ProbeStatus
    reason: Annotated[str, Field(description="why it is not ok; empty when it is")] = ""
    started: Moment
    seconds: Annotated[float, Field(description="how long the collection took")]
    raw: Annotated[
        list[str], Field(description="raw files, relative to evidence/")
    ] = []
    data: D | None = None

    @property
    def ok(self) -> bool:
        return self.status is ProbeStatus.OK and self.data is not None


# ------------------------------------------------------------------ HTTP endpoints


class EndpointAnswer(Record):
    path: str
    status: Annotated[
        int | None, Field(description="HTTP status; None without an answer")
    ]
    seconds: float
    error: Annotated[
        str, Field(description="why there is no answer; empty when there is")
    ] = ""
    timed_out: Annotated[bool, Field(description="no complete answer came in time")] = (
        False
    )
    body: Annotated[str, Field(description="first 2000 characters of the body")] = ""


class HttpData(ProbeData):
    kind: Literal["http"] = "http"
    base_url: str
    answers: list[EndpointAnswer]

    def answer(self, path: str) -> EndpointAnswer | None:
        return next((a for a in self.answers if a.path == path), None)


# --------------------------------------------------------------- a real small inference


class InferenceData(ProbeData):
    kind: Literal["inference"] = "inference"
    answered: Annotated[
        bool, Field(description="a complete, well-formed completion came back")
    ]
    status: int | None
    seconds: float
    deadline_s: float
    cut: Annotated[
        bool,
        Field(
            description=(
                "it was given up before its deadline: what else was seen decided"
            )
        ),
    ] = False
    text: str = ""
    completion_tokens: int | None = None
    completion_id: Annotated[str, Field(description="as the answer has it")] = ""
    created: Annotated[
        int | None, Field(description="Unix time at which the answer says it was made")
    ] = None
    cached: Annotated[
        str, Field(description="the header that tells that a cache answered")
    ] = ""
    error: str = ""


# ------------------------------------------------------------------ Prometheus metrics


class MetricSample(Record):
    name: str
    labels: dict[str, str]
    value: float | None = Field(
        description="None where the exposition said NaN or infinity"
    )


class MetricsData(ProbeData):
    kind: Literal["metrics"] = "metrics"
    url: str
    samples: Annotated[
        list[MetricSample], Field(description="histogram buckets left out")
    ]
    bad_lines: Annotated[int, Field(description="lines that could not be parsed")] = 0

    def totals(self, names: Collection[str]) -> dict[str, float]:
        """Return :meth:`total` of each of these metrics that has one, in one pass."""
        sums: dict[str, float] = {}
        bad: set[str] = set()
        for sample in self.samples:
            if sample.name not in names:
                continue
            if sample.value is None:
                bad.add(sample.name)
            else:
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
        return {name: value for name, value in sums.items() if name not in bad}

    def total(self, name: str) -> float | None:
        """Return the sum over all label sets of a metric; None if it is absent or not a
        number."""
        total: float | None = None
        for sample in self.samples:
            if sample.name != name:
                continue
            if sample.value is None:
                return None
            total = (total or 0) + sample.value
        return total


# ---------------------------------------------------------------- processes and threads


class ThreadUse(Record):
    tid: int
    name: str
    state: Annotated[
        str, Field(description="one letter, as in /proc/PID/stat: R, S, D, Z, T …")
    ]
    user_pct: Annotated[
        float, Field(description="user-space CPU over the window, % of a core")
    ]
    system_pct: Annotated[
        float, Field(description="kernel CPU over the window, % of a core")
    ]
    queued_pct: Annotated[
        float | None, Field(description="runnable but without a core, % of the window")
    ] = None


class ProcessUse(Record):
    pid: int
    ppid: int
    name: str
    cmdline: str
    role: Annotated[
        str, Field(description="what the process calls itself, e.g. EngineCore")
    ] = ""
    state: str
    threads: int
    rss_bytes: int
    user_pct: Annotated[
        float, Field(description="user-space CPU over the window, % of a core")
    ]
    system_pct: float
    voluntary_switches: Annotated[
        int, Field(description="within the window, all threads")
    ]
    involuntary_switches: int
    queued_pct: Annotated[
        float,
        Field(description="runnable but without a core, all threads, % of the window"),
    ] = 0.0
    created_wall: float | None = Field(
        default=None, description="start, seconds since the epoch"
    )
    busiest: Annotated[
        list[ThreadUse], Field(description="at most 8 threads, busiest first")
    ] = []

    @property
    def cpu_pct(self) -> float:
        return self.user_pct + self.system_pct


class ProcessesData(ProbeData):
    kind: Literal["processes"] = "processes"
    root_pid: int
    window_s: Annotated[float, Field(description="time between the two readings")]
    processes: list[ProcessUse]
    vanished: Annotated[
        list[int], Field(description="pids gone between the readings")
    ] = []


# ------------------------------------------------------------------ Python stacks


class Frame(Record):
    function: Annotated[
        str, Field(description="qualified where py-spy knows: LRUCache.popitem")
    ]
    file: Annotated[str, Field(description="short file name, e.g. vllm/utils/cache.py")]
    line: int
    locals: Annotated[
        dict[str, str], Field(description="repr of arguments and locals")
    ] = {}

    @property
    def name(self) -> str:
        """The function's bare name: popitem."""
        return self.function.rsplit(".", 1)[-1]


class ThreadStack(Record):
    tid: int | None
    name: str
    active: Annotated[
        bool | None, Field(description="it runs; None: gdb and faulthandler do not say")
    ]
    owns_gil: Annotated[bool | None, Field(description="None: it is not known")]
    frames: Annotated[list[Frame], Field(description="innermost first")]

    def within(self, *functions: str) -> bool:
        """Whether a frame is of the function, a bare name such as ``schedule``; of
        several, innermost first, whether their frames lie next to each other."""
        names = tuple(frame.name for frame in self.frames)
        starts = range(len(names) - len(functions) + 1)
        return any(
            names[start : start + len(functions)] == functions for start in starts
        )

    def frame(self, function: str) -> Frame:
        """The innermost frame of ``function``. Raises StopIteration: there is none."""
        return next(frame for frame in self.frames if frame.name == function)


class StackSample(Record):
    """One process at one moment.

    ``pid`` is negative where a text does not print it: another number for each such
    process."""

    pid: int
    taken: Moment
    blocking: Annotated[
        bool, Field(description="the process was paused for this sample")
    ]
    seconds: Annotated[float, Field(description="how long taking it took")] = 0.0
    threads: list[ThreadStack]
    error: str = ""
    title: Annotated[str, Field(description="of a text: what it calls the process")] = (
        ""
    )
    tool: Annotated[
        Literal["py-spy", "gdb", "faulthandler"],
        Field(description="what wrote the stacks down"),
    ] = "py-spy"
    reason: Annotated[
        str,
        Field(
            description="of a text: why it was written, e.g. a signal; empty: on demand"
        ),
    ] = ""
    line: Annotated[
        int, Field(description="of a text: the line with which it begins")
    ] = 0


class StacksData(ProbeData):
    kind: Literal["stacks"] = "stacks"
    samples: list[StackSample]
    denied: Annotated[
        dict[int, str], Field(description="pid: why py-spy was refused")
    ] = {}

    def threads(self, function: str) -> list[ThreadStack]:
        """Of each sample the thread that is inside ``function`` (a bare name), if there
        is one."""
        inside = (
            next((t for t in s.threads if t.within(function)), None)
            for s in self.samples
        )
        return [thread for thread in inside if thread is not None]

    def texts(self, local: str, *, frame: str) -> list[str]:
        """The local variable of function ``frame``, as py-spy prints it, one of each
        sample that shows it."""
        values = (t.frame(frame).locals.get(local, "") for t in self.threads(frame))
        return [value for value in values if value]

    def numbers(self, local: str, *, frame: str) -> list[int]:
        """The same, of those that are whole numbers: a frame that is just being built
        shows other objects in their place."""
        return [
            int(value) for value in self.texts(local, frame=frame) if value.isdigit()
        ]


# ------------------------------------------------------------------ system calls


class SyscallsData(ProbeData):
    kind: Literal["syscalls"] = "syscalls"
    pid: int
    method: Annotated[
        Literal["strace", "proc"],
        Field(description="strace counts; /proc only tells the state"),
    ]
    window_s: float
    counts: Annotated[
        dict[str, int], Field(description="calls seen in the window, by name")
    ] = {}
    total: Annotated[
        int | None, Field(description="None where calls cannot be counted")
    ] = None
    waiting_in: Annotated[
        dict[str, int], Field(description="threads blocked, by system call")
    ] = {}
    waits: Annotated[
        dict[int, str], Field(description="thread id: the system call that it waits in")
    ] = {}
    user_pct: float
    system_pct: float
    verdict: Annotated[
        Literal[
            "spinning-in-user-space", "busy-in-kernel", "blocked", "working", "unclear"
        ],
        Field(description="what the numbers say of the process"),
    ]
    why: str


# ------------------------------------------------------------------ connections


class ConnectionsData(ProbeData):
    kind: Literal["connections"] = "connections"
    port: int
    clients: Annotated[
        int, Field(description="connected to the port, mmrepro itself left out")
    ]
    unread: Annotated[
        int, Field(description="of these: with bytes that the server has not read")
    ] = 0
    left: Annotated[
        int,
        Field(description="closed by the client (CLOSE_WAIT), not yet by the server"),
    ] = 0


# ------------------------------------------------------------------ GPU


class GpuDevice(Record):
    index: Annotated[int, Field(description="by PCI bus, as nvidia-smi counts")]
    name: str
    uuid: Annotated[
        str, Field(description="its beginning; a whole one names the machine")
    ]
    driver: str
    memory_total_bytes: Annotated[int, Field(description="0: the driver does not tell")]
    memory_used_bytes: Annotated[
        int, Field(description="0: the driver does not tell, or none")
    ]
    utilization_pct: Annotated[
        list[int], Field(description="one reading a sample; none with MIG")
    ]
    processes: list[GpuProcess] = []
    cuda: Annotated[
        str, Field(description="newest CUDA that the driver runs, e.g. 13.0")
    ] = ""
    mig: Annotated[bool | None, Field(description="MIG mode; None: not told")] = None
    slices: Annotated[list[MigSlice], Field(description="its MIG devices")] = []


class GpuData(ProbeData):
    kind: Literal["gpu"] = "gpu"
    devices: list[GpuDevice]

    def held_by(self, pids: Collection[int]) -> list[GpuDevice]:
        """Return those on which one of these processes has memory."""
        held: list[GpuDevice] = []
        for device in self.devices:
            if any(process.pid in pids for process in device.processes):
                held.append(device)
        return held


class GpuCoreData(ProbeData):
    """A core dump of a process's GPU, which CUDA wrote when it was asked to."""

    kind: Literal["gpu-core"] = "gpu-core"
    pid: int
    file: str
    bytes: int
    kernels: Annotated[
        list[str], Field(description="that ran, as cuda-gdb names them")
    ] = []
    note: Annotated[
        str, Field(description="why cuda-gdb named none, or how to ask it")
    ] = ""


# ------------------------------------------------------------------ NCCL's own report


class NcclRank(Record):
    """One rank of a communicator, as NCCL's RAS service has it."""

    communicator: str
    rank: int
    pid: int
    host: str = ""
    counts: Annotated[
        dict[str, int],
        Field(description="operations launched, by kind; text has them as one: all"),
    ] = {}
    error: Annotated[
        int, Field(description="ncclResult_t of ncclCommGetAsyncError")
    ] = 0
    missing: Annotated[
        bool, Field(description="it gave no data of this communicator")
    ] = False
    unresponsive: bool = False
    dead: Annotated[bool, Field(description="NCCL considers its process dead")] = False


class RasData(ProbeData):
    kind: Literal["nccl-ras"] = "nccl-ras"
    form: Literal["json", "text"]
    protocol: int = 0
    nccl: Annotated[str, Field(description="version of the library")] = ""
    sizes: Annotated[
        dict[str, int], Field(description="communicator: ranks that it has")
    ] = {}
    ranks: Annotated[
        list[NcclRank], Field(description="all; of a text, the outliers")
    ] = []
    launched: Annotated[
        dict[str, dict[int, int]],
        Field(
            description=(
                "communicator and kind: how many ranks launched up to which operation"
            )
        ),
    ] = {}
    lost_pids: Annotated[
        list[int], Field(description="processes that NCCL calls lost")
    ] = []
    troubles: Annotated[
        list[str], Field(description="lines of its errors and warnings")
    ] = []


# ------------------------------------------------------------ PyTorch's Flight Recorder


class FlightRank(Record):
    """What one rank entered last, by process group."""

    rank: int
    version: str = ""
    entered: Annotated[
        dict[str, int], Field(description="group: its last sequence number")
    ] = {}
    operation: Annotated[
        dict[str, str], Field(description="group: the operation of it")
    ] = {}
    completed: Annotated[
        dict[str, bool], Field(description="group: whether it is done")
    ] = {}


class FlightData(ProbeData):
    kind: Literal["flight"] = "flight"
    ranks: list[FlightRank] = []
    unread: Annotated[
        dict[str, str], Field(description="file: why it was not read")
    ] = {}


# ------------------------------------------------------------------ logs


QUOTED_CHAR = "\N{MIDDLE DOT}"
"""Stands for each character of a client's words in ``LogLine.own_words``: neither a
letter, a digit nor a space."""


class LogLine(Record):
    """One line of a log, without what a collector put before it."""

    number: Annotated[int, Field(description="1-based line number in its file")]
    file: Annotated[
        str, Field(description="which of several files; empty: there is one")
    ] = ""
    process: Annotated[
        str,
        Field(
            description="as its mark says, innermost first of nested ones: EngineCore "
            "pid=123, VllmWorker rank=2 pid=267, DP1 PP0; empty if unmarked"
        ),
    ] = ""
    level: str = ""
    time: Annotated[
        str, Field(description="as printed, e.g. 11-21 02:51:52; empty if none")
    ] = ""
    source: Annotated[str, Field(description="e.g. v1/engine/core.py:1616")] = ""
    text: Annotated[
        str, Field(description="the message, ANSI codes removed, cut at 2000")
    ]
    when: Annotated[
        float | None,
        Field(
            description="the time in seconds, comparable between lines of a log: since "
            "1970 where the year is printed or its collector's, else since 2000; None: "
            "no time"
        ),
    ] = None
    pid: Annotated[int | None, Field(description="the process id in its mark")] = None
    rank: Annotated[
        str,
        Field(description="TP6, DP1 PP0, or 2 for a global rank; empty if it has none"),
    ] = ""
    stream: Annotated[
        str,
        Field(
            description="whose output it is: service, pod, host; empty: of one server"
        ),
    ] = ""
    engine: Annotated[
        str,
        Field(
            description=(
                "the engine of whose lines it has the form; empty: any program's"
            )
        ),
    ] = ""
    quoted: Annotated[
        list[tuple[int, int]],
        Field(
            description=(
                "spans of text that are a client's words: prompts, outputs, names"
            )
        ),
    ] = []

    @property
    def own_words(self) -> str:
        """``text`` with each character of a client's words replaced by ``QUOTED_CHAR``:
        all that a pattern may be tried on."""
        text = self.text
        for begin, end in self.quoted:
            end = min(end, len(text))
            text = text[:begin] + QUOTED_CHAR * (end - begin) + text[end:]
        return text


class LogPattern(str):
    """A regular expression with the ``texts`` of which each line that matches holds at
    least one.

    A log is searched for these texts, and only lines that hold one are tried. An
    expression that has such a text outside of its groups needs no declaration: that one
    is taken::

        LogPattern(r"(?:Value|Type)(?:Error|Warning): ", "Error: ", "Warning: ")

    ``clients``: it asks what a client sent, and is tried on a client's words as well:
    never a sign of what the engine did."""

    texts: tuple[str, ...]
    clients: bool

    def __new__(cls, expression: str, *texts: str, clients: bool = False) -> Self:
        made = super().__new__(cls, expression)
        made.texts, made.clients = texts, clients
        return made


WORKED = "worked"
"""Name of the pattern of lines that tell of work done at any log level."""


class LogsData(ProbeData):
    kind: Literal["logs"] = "logs"
    file: str
    stream: Annotated[str, Field(description="as of a line; empty: all of them")] = ""
    engine: Annotated[
        str, Field(description="by the form of its lines; empty: not known")
    ] = ""
    release: Annotated[
        str, Field(description="as its last start says it; empty: unknown")
    ] = ""
    engine_because: Annotated[str, Field(description="what says so")] = ""
    servers: Annotated[
        list[LogsData],
        Field(
            description="each stream's own reading, where there are lines of several"
        ),
    ] = []
    bytes_read: int
    skipped_bytes: Annotated[
        int,
        Field(
            description=(
                "bytes at the file's start that were passed over: it is too large"
            )
        ),
    ] = 0
    lines: int
    earlier_lines: Annotated[
        int,
        Field(
            description=(
                "of these, passed over: an earlier start of the server wrote them"
            )
        ),
    ] = 0
    bad_bytes: Annotated[
        int, Field(description="lines with bytes that are not UTF-8")
    ] = 0
    last_by_process: dict[str, LogLine] = {}
    errors: Annotated[list[LogLine], Field(description="first 50 error lines")] = []
    error_count: int = 0
    matches: Annotated[
        dict[str, list[LogLine]],
        Field(description="pattern name: first 20 and last 5 lines"),
    ] = {}
    match_counts: dict[str, int] = {}
    last_progress: Annotated[
        LogLine | None, Field(description="last line that shows work done")
    ] = None
    files: Annotated[
        list[str],
        Field(description="of a rotated log: all that were read, oldest first"),
    ] = []
    excerpt: Annotated[
        list[LogLine],
        Field(
            description=(
                "its beginning, its end, and what is around the lines that tell an end"
            )
        ),
    ] = []
    unread: Annotated[
        dict[str, str], Field(description="file: why it was not read")
    ] = {}
    first_line: Annotated[
        LogLine | None, Field(description="first line with a time")
    ] = None
    last_line: Annotated[LogLine | None, Field(description="last line with a time")] = (
        None
    )
    stuck_requests: Annotated[
        list[LogLine],
        Field(description="first 50 requests added after the last progress"),
    ] = []
    stuck_count: Annotated[
        int | None,
        Field(description="None: no line shows progress, so it cannot be told"),
    ] = None

    @property
    def last_work(self) -> LogLine | None:
        """``last_progress``; of a log without such lines (they may want its DEBUG
        level), the last one of the pattern ``worked``, which sums up some seconds
        before it."""
        return self.last_progress or next(reversed(self.matches.get(WORKED, [])), None)


# ------------------------------------------------------------------ dumps


class DumpKind(StrEnum):
    PY_SPY = "py-spy"
    GDB = "gdb"
    FAULTHANDLER = "faulthandler"
    WATCHDOG = "vllm-watchdog"
    METRICS = "metrics"
    NVIDIA_SMI = "nvidia-smi"
    REQUESTS = "request-dump"


KIND_WORDS: dict[DumpKind, str] = {
    DumpKind.PY_SPY: "stacks, by py-spy",
    DumpKind.GDB: "stacks, by gdb",
    DumpKind.FAULTHANDLER: "stacks, by Python's faulthandler",
    DumpKind.WATCHDOG: "stacks, by vLLM's watchdog",
    DumpKind.METRICS: "Prometheus metrics",
    DumpKind.NVIDIA_SMI: "output of nvidia-smi",
    DumpKind.REQUESTS: "requests, as SGLang dumps them",
}


class DumpedRequest(Record):
    """One request of a dump. A user's words are not kept."""

    id: str = ""
    created: Annotated[float | None, Field(description="seconds since 1970")] = None
    ended: Annotated[
        float | None,
        Field(description="as created; of an unfinished one the dump's time"),
    ] = None
    finished: bool
    finish_reason: str = ""
    prompt_chars: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    media: Annotated[int, Field(description="pictures, videos and sounds")] = 0
    fields: Annotated[
        dict[str, str],
        Field(description="what its client set: numbers, else how much of it"),
    ] = {}


class RequestDumpData(ProbeData):
    """The requests that an engine wrote down, as SGLang does before a crash."""

    kind: Literal["request-dump"] = "request-dump"
    file: str
    count: int
    requests: Annotated[list[DumpedRequest], Field(description="the last 2000")]
    options: Annotated[
        dict[str, str], Field(description="the server's, that matter")
    ] = {}
    command: Annotated[
        list[str], Field(description="with which the server was started")
    ] = []

    @property
    def unfinished(self) -> list[DumpedRequest]:
        return [request for request in self.requests if not request.finished]


AnyProbeData = Annotated[
    HttpData
    | InferenceData
    | MetricsData
    | ProcessesData
    | StacksData
    | SyscallsData
    | ConnectionsData
    | GpuData
    | LogsData
    | RasData
    | FlightData
    | GpuCoreData
    | RequestDumpData,
    Field(discriminator="kind"),
]

AnyProbeResult = ProbeResult[AnyProbeData]
