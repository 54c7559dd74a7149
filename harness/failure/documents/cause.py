"""What a log tells of the end of a server, as data: what ``mmrepro logs --json``
prints."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from mmrepro.base.records import Document, Record
from mmrepro.failure.documents.dumps import DumpReading, Resemblance
from mmrepro.probes import LogLine, LogsData
from pydantic import ConfigDict, Field


class Certainty(StrEnum):
    """How sure a class is, surest first."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class CauseClass(StrEnum):
    """What ended or stopped a server, by its log. The names are stable
    (docs/logs.md)."""

    GPU_FAULT = "gpu-fault"
    OUT_OF_GPU_MEMORY = "out-of-gpu-memory"
    OUT_OF_HOST_MEMORY = "out-of-host-memory"
    OUT_OF_KV_CACHE = "out-of-kv-cache"
    COLLECTIVE_TIMEOUT = "collective-timeout"
    WORKER_UNRESPONSIVE = "worker-unresponsive"
    HANG = "hang"
    NATIVE_CRASH = "native-crash"
    KILLED_BY_SIGNAL = "killed-by-signal"
    DIED_WITHOUT_A_WORD = "died-without-a-word"
    MACHINE_LIMIT = "machine-limit"
    NETWORK = "network"
    ENGINE_DEFECT = "engine-defect"
    KILLED_BY_INPUT = "killed-by-input"
    PLACEHOLDER_COUNTS = "placeholder-counts"
    NEVER_FITS = "never-fits"
    GRAMMAR_LOOP = "grammar-loop"
    FAILED_START = "failed-start"
    OVERLOADED = "overloaded"
    ALIVE = "alive"
    NOT_A_LOG = "not-a-log"
    UNKNOWN = "unknown"


CAUSE_WORDS: dict[CauseClass, str] = {
    CauseClass.GPU_FAULT: "a fault of the GPU or of a kernel on it",
    CauseClass.OUT_OF_GPU_MEMORY: "the GPU's memory is used up",
    CauseClass.OUT_OF_HOST_MEMORY: "the machine's memory is used up",
    CauseClass.OUT_OF_KV_CACHE: "the KV cache is used up",
    CauseClass.COLLECTIVE_TIMEOUT: "a collective of the ranks did not end in time",
    CauseClass.WORKER_UNRESPONSIVE: "a worker does not answer",
    CauseClass.HANG: "it stands still while requests run",
    CauseClass.NATIVE_CRASH: "native code crashed",
    CauseClass.KILLED_BY_SIGNAL: "a signal ended it",
    CauseClass.DIED_WITHOUT_A_WORD: "a process is gone, and the log does not show why",
    CauseClass.MACHINE_LIMIT: "a limit of the machine is reached",
    CauseClass.NETWORK: "the network between its processes failed",
    CauseClass.ENGINE_DEFECT: (
        "an exception of the engine that nothing ties to a request"
    ),
    CauseClass.KILLED_BY_INPUT: "a request ended the engine",
    CauseClass.PLACEHOLDER_COUNTS: "more or fewer embeddings than places for them",
    CauseClass.NEVER_FITS: "a request can never fit into the KV cache",
    CauseClass.GRAMMAR_LOOP: "a grammar is compiled or matched without end",
    CauseClass.FAILED_START: "it did not start",
    CauseClass.OVERLOADED: "it gets more work than it can do",
    CauseClass.ALIVE: "nothing ended it as far as the log goes",
    CauseClass.NOT_A_LOG: "this does not look like a server log",
    CauseClass.UNKNOWN: "the log does not show the cause",
}


class LoggedState(StrEnum):
    """What became of a server, as far as its log goes: the first word of an answer."""

    ALIVE = "alive"
    DEAD = "dead"
    SHUT_DOWN = "shut-down"
    NEVER_READY = "never-ready"
    STANDS_STILL = "stands-still"
    REQUEST_FAILED = "one-request-failed"
    TEST_FAILED = "test-failed"
    UNKNOWN = "unknown"
    NOT_A_LOG = "not-a-log"


STATE_OF_LOG_WORDS: dict[LoggedState, str] = {
    LoggedState.ALIVE: "alive",
    LoggedState.DEAD: "dead",
    LoggedState.SHUT_DOWN: "shut down",
    LoggedState.NEVER_READY: "never ready",
    LoggedState.STANDS_STILL: "stands still",
    LoggedState.REQUEST_FAILED: "one request failed",
    LoggedState.TEST_FAILED: "a test failed",
    LoggedState.UNKNOWN: "unknown",
    LoggedState.NOT_A_LOG: "no log",
}


class FirstFailure(Record):
    """The first exception, or the line that stands for one, as it was written."""

    lines: Annotated[
        list[str], Field(description="type and message, without a client's words")
    ]
    process: str = ""
    time: str = ""
    line: int | None = None
    file: Annotated[str, Field(description="which of several; empty: there is one")] = (
        ""
    )
    place: Annotated[
        str, Field(description="innermost frame in the engine: FILE:LINE in FUNCTION")
    ] = ""
    code: Annotated[str, Field(description="the code there; empty: not printed")] = ""


class LogFacts(Record):
    """What the log of one server carries, without any judgement of what it means."""

    state: LoggedState
    sentence: Annotated[str, Field(description="for people, without the state")] = ""
    echo: Annotated[
        bool, Field(description="the failure's cause was logged elsewhere")
    ] = False
    fetch: Annotated[
        str, Field(description="the command that gets what is missing; empty: none")
    ] = ""
    platform: Annotated[
        str, Field(description="cuda, rocm, npu, xpu, tpu or cpu; empty: not known")
    ] = ""
    topology: Annotated[
        list[str], Field(description="ranks, P/D role, transfer backend")
    ] = []
    command: Annotated[
        str, Field(description="how it was started, as its log has it")
    ] = ""
    failure: FirstFailure | None = None
    after: Annotated[
        list[str], Field(description="what came after the failure, first three")
    ] = []
    ties: Annotated[
        list[str], Field(description="options of its command that the frame is of")
    ] = []


class StartCause(Record):
    """Why a start failed, below the class ``failed-start``."""

    name: Annotated[str, Field(description="stable, e.g. driver-too-old")]
    sentence: Annotated[
        str, Field(description="for people, with the numbers of the log")
    ]
    numbers: Annotated[
        dict[str, str], Field(description="what the log says, by name")
    ] = {}
    why: list[str] = []
    advice: list[str] = []


class Cause(Record):
    """What ended or stopped one server."""

    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)

    name: Annotated[CauseClass, Field(alias="class")]
    certainty: Certainty
    sentence: Annotated[str, Field(description="for people")] = ""
    exception: Annotated[
        str,
        Field(description="the first one, type and message; empty: the log shows none"),
    ] = ""
    process: Annotated[
        str, Field(description="that died or failed first; empty: unmarked")
    ] = ""
    time: Annotated[str, Field(description="as the log prints it; empty: none")] = ""
    line: Annotated[
        int | None, Field(description="1-based; None: no single line tells")
    ] = None
    file: Annotated[str, Field(description="which of several; empty: there is one")] = (
        ""
    )
    why: Annotated[list[str], Field(description="the lines that it rests on")] = []
    advice: Annotated[list[str], Field(description="what to do next")] = []
    start: Annotated[
        StartCause | None, Field(description="of a failed start alone")
    ] = None


class ServerInLog(Record):
    """One server of a log: two replicas are two."""

    name: Annotated[
        str, Field(description="service, pod or host; empty: there is one")
    ] = ""
    engine: Annotated[str, Field(description="empty: not recognised")] = ""
    release: str = ""
    cause: Cause
    others: Annotated[
        list[Cause],
        Field(description="what else the log tells that ends a server, as it came"),
    ] = []
    last_progress: Annotated[LogLine | None, Field(description="before its end")] = None
    first_error: LogLine | None = None
    facts: Annotated[
        LogFacts | None, Field(description="None: of documents before there were facts")
    ] = None


class KnownFailure(Record):
    """A known failure of which a line that only it prints stands in the log."""

    scenario: str
    title: str
    fixed: Annotated[
        str, Field(description="release or state of its fix; empty: none")
    ] = ""
    workaround: str = ""
    because: list[str]


class LogReading(Document, kind="logs"):
    """What a log tells. What is said of the whole is the server's that failed first."""

    mmrepro_version: str = ""
    engine: str = ""
    release: str = ""
    cause: Cause
    others: list[Cause] = []
    known: Annotated[
        list[KnownFailure],
        Field(description="failures of this release with a line in the log"),
    ] = []
    last_progress: LogLine | None = None
    first_error: LogLine | None = None
    facts: Annotated[
        LogFacts | None, Field(description="of the server that failed first")
    ] = None
    servers: list[ServerInLog]
    unread: Annotated[
        str, Field(description="why it was not read to its end; empty: it was")
    ] = ""
    log: Annotated[LogsData, Field(description="counts, last words, chosen patterns")]
    dumps: Annotated[
        DumpReading | None,
        Field(description="stacks, metrics and others; None: there are none"),
    ] = None

    @property
    def exit_code(self) -> int:
        """0 it shows no failure; 1 it shows one; 3 undecided: nothing shows an end, it
        was not read to its end, or it is no log."""
        dumped = self.dumps.failures if self.dumps is not None else []
        if any(failure.fit is not Resemblance.IF_IT_STAYS for failure in dumped):
            return 1
        if self.facts is not None and self.facts.state is LoggedState.DEAD:
            # Also where only the echo of what ended it is in the log.
            return 1
        if self.facts is not None and self.facts.state is LoggedState.SHUT_DOWN:
            return 3 if self.unread else 0
        if self.cause.name in (CauseClass.UNKNOWN, CauseClass.NOT_A_LOG):
            return 3
        if self.cause.name is CauseClass.ALIVE:
            return 3 if self.unread else 0
        return 1
