"""A diagnosis as data: what ``mmrepro diagnose --json`` prints and incidents keep."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from mmrepro.base.records import Document, Moment, Record
from mmrepro.failure.documents.cause import Cause, Certainty as Certainty, LogFacts
from mmrepro.failure.documents.dumps import DumpReading
from mmrepro.failure.signature import ConditionResult
from mmrepro.probes import Frame
from pydantic import Field


class ServerState(StrEnum):
    """What the server is, whatever the reason; one answer a diagnosis."""

    HEALTHY = "healthy"
    NO_FAULT_SEEN = "no-fault-seen"
    SLOW = "slow"
    OVERLOADED = "overloaded"
    STARVED = "starved"
    NOT_RECEIVING = "not-receiving"
    FROZEN_PYTHON = "frozen-in-python"
    FROZEN_NATIVE = "frozen-in-native-code"
    FROZEN = "frozen"
    BLOCKED_ON_LOCK = "blocked-on-lock"
    WORKER_STUCK = "worker-stuck"
    RANK_DIVERGED = "rank-diverged"
    RANK_LOST = "rank-lost"
    COLLECTIVE_WAITS = "collective-waits"
    KERNEL_STUCK = "kernel-stuck"
    TRANSFER_STUCK = "transfer-stuck"
    FRONT_FROZEN = "front-frozen"
    STOPPED = "stopped"
    PART_DEAD = "part-dead"
    DEAD = "dead"
    NOT_READY = "not-ready"
    FAILING = "failing"
    BROKEN_OUTPUT = "broken-output"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


STATE_WORDS: dict[ServerState, str] = {
    ServerState.HEALTHY: "healthy",
    ServerState.NO_FAULT_SEEN: "no fault seen, and no work seen",
    ServerState.SLOW: "slow but alive",
    ServerState.OVERLOADED: "overloaded",
    ServerState.STARVED: "starved: requests wait and none is scheduled",
    ServerState.NOT_RECEIVING: "not receiving: the engine idles while a request waits",
    ServerState.FROZEN_PYTHON: "frozen in Python code",
    ServerState.FROZEN_NATIVE: "frozen in native code",
    ServerState.FROZEN: "frozen: the place could not be observed",
    ServerState.BLOCKED_ON_LOCK: "blocked on a lock",
    ServerState.WORKER_STUCK: "worker stuck: the others wait for one rank",
    ServerState.RANK_DIVERGED: "ranks diverged: some wait where others never arrive",
    ServerState.RANK_LOST: "rank lost: a worker process is gone",
    ServerState.COLLECTIVE_WAITS: (
        "collective waits: every rank is in one collective and none returns"
    ),
    ServerState.KERNEL_STUCK: "kernel stuck: every rank waits for its device",
    ServerState.TRANSFER_STUCK: "transfer stuck: a KV cache does not arrive",
    ServerState.FRONT_FROZEN: "the API server is frozen",
    ServerState.STOPPED: "stopped by a signal or a tracer",
    ServerState.PART_DEAD: "a process of the engine is dead",
    ServerState.DEAD: "dead",
    ServerState.NOT_READY: "not ready",
    ServerState.FAILING: "alive, but requests fail",
    ServerState.BROKEN_OUTPUT: "alive, but its answers are broken",
    ServerState.UNREACHABLE: "not reachable from here",
    ServerState.UNKNOWN: "undecided",
}
COULD_NOT_TELL = frozenset(
    {ServerState.NO_FAULT_SEEN, ServerState.UNREACHABLE, ServerState.UNKNOWN}
)


class LiveClass(StrEnum):
    """What kind of failure it is, whether or not it is a known one; none, one or
    several."""

    STEPS_STOPPED = "steps-stopped"
    KILLED_BY_INPUT = "killed-by-input"
    NEVER_FITS = "never-fits"
    WORK_WITHOUT_CLIENTS = "work-without-clients"
    GAUGES_LIE = "gauges-lie"
    MEMORY_GROWS = "memory-grows"
    PLACEHOLDER_COUNTS = "placeholder-counts"
    GRAMMAR_LOOP = "grammar-loop"
    WORKER_STUCK = "worker-stuck"
    RANK_DIVERGED = "rank-diverged"
    RANK_LOST = "rank-lost"
    COLLECTIVE_WAITS = "collective-waits"
    KERNEL_STUCK = "kernel-stuck"
    TRANSFER_STUCK = "transfer-stuck"
    HEARTBEAT_ONLY = "heartbeat-only"


CLASS_WORDS: dict[LiveClass, str] = {
    LiveClass.STEPS_STOPPED: "steps stopped: a request waits and no step is made",
    LiveClass.KILLED_BY_INPUT: "killed by input: a request ended the engine",
    LiveClass.NEVER_FITS: "can never fit: a request waits for more than there is",
    LiveClass.WORK_WITHOUT_CLIENTS: "work without clients: it works for nobody",
    LiveClass.GAUGES_LIE: "gauges lie: the metrics contradict the processes",
    LiveClass.MEMORY_GROWS: "memory grows with each request",
    LiveClass.PLACEHOLDER_COUNTS: (
        "placeholder counts: more or fewer embeddings than places"
    ),
    LiveClass.GRAMMAR_LOOP: (
        "grammar loop: a grammar is compiled or matched without end"
    ),
    LiveClass.WORKER_STUCK: (
        "worker stuck: one rank is stuck in its own code, the others wait for it"
    ),
    LiveClass.RANK_DIVERGED: (
        "ranks diverged: some wait in a collective that others never entered"
    ),
    LiveClass.RANK_LOST: "rank lost: a worker process is gone",
    LiveClass.COLLECTIVE_WAITS: (
        "collective waits: every rank is in it, and none gets out"
    ),
    LiveClass.KERNEL_STUCK: "kernel stuck: every rank waits for its device",
    LiveClass.TRANSFER_STUCK: "transfer stuck: a KV cache does not arrive",
    LiveClass.HEARTBEAT_ONLY: "heartbeat only: a log line of a wait, and no fault",
}


class NamedClass(Record):
    """One class of failure, and what it rests on."""

    name: LiveClass
    certainty: Certainty
    sentence: Annotated[str, Field(description="what is wrong, for people")]
    why: Annotated[list[str], Field(description="the observations it rests on")] = []
    advice: Annotated[list[str], Field(description="what to do next")] = []
    references: Annotated[
        list[str], Field(description="upstream threads, pages of ours")
    ] = []


class Fit(StrEnum):
    """How a known failure's signature fits the evidence, best first."""

    MATCH = "match"
    LIKELY = "likely"
    SYMPTOM_ONLY = "symptom-only"
    EXPOSED = "exposed"
    NOT_THIS = "not-this"


FIT_WORDS: dict[Fit, str] = {
    Fit.MATCH: "match: every required condition is met",
    Fit.LIKELY: "likely: nothing speaks against it, not everything could be seen",
    Fit.SYMPTOM_ONLY: "symptom only: it looks like this, its cause was not seen",
    Fit.EXPOSED: "exposed: this release can fail like this; no sign of it is visible",
    Fit.NOT_THIS: "not this",
}


class TargetProcess(Record):
    pid: int
    ppid: int
    role: str
    name: str
    state: Annotated[str, Field(description="one letter, as in /proc/PID/stat")]
    inner_pid: Annotated[
        int | None,
        Field(description="its pid inside its own pid namespace, where it has one"),
    ] = None


class TargetFacts(Record):
    """What was found of the server behind the URL."""

    url: str
    place: Annotated[
        Literal["local", "container", "remote"],
        Field(description="where it runs, seen from here"),
    ]
    port: int | None = None
    listening: Annotated[
        bool | None,
        Field(description="whether a socket listens there; None: cannot be seen"),
    ] = None
    root_pid: int | None = None
    found_by: Annotated[str, Field(description="how the processes were found")] = ""
    processes: list[TargetProcess] = []
    engine: str = ""
    engine_because: list[str] = []
    core_role: Annotated[
        str, Field(description="role of the process that runs the model")
    ] = ""
    front_role: Annotated[
        str,
        Field(
            description="role of the program that serves HTTP in place of the process "
            "that was started; empty: that process serves it"
        ),
    ] = ""
    release: str = ""
    release_from: str = ""
    command: list[str] = []
    site_packages: str = ""
    logs: list[str] = []
    model: Annotated[
        str, Field(description="served model that the request asks for")
    ] = ""

    def role_of(self, pid: int | None) -> str:
        return next((p.role for p in self.processes if p.pid == pid), "")

    def is_core(self, role: str) -> bool:
        """Whether ``role`` is the core's; a dead process keeps 15 characters of its
        name only."""
        wanted = self.core_role
        return bool(wanted) and (
            wanted in role or (len(role) >= 6 and wanted.startswith(role))
        )

    @property
    def cores(self) -> list[TargetProcess]:
        own = [p for p in self.processes if self.is_core(p.role)]
        # A front is called as the engine is that it forked (LMDeploy's api_server).
        return [p for p in own if p.pid != self.root_pid] or own


class Stand(StrEnum):
    """What a process of the server is at, over all samples of its stack."""

    WORK = "waits-for-work"
    WORKER = "waits-for-worker"
    COLLECTIVE = "in-collective"
    STAGE = "waits-for-stage"
    DEVICE = "waits-for-device"
    TRANSFER = "waits-for-transfer"
    STANDS = "stands"
    MOVES = "moves"
    STOPPED = "stopped"
    GONE = "gone"
    UNSEEN = "unseen"


_STAND_WORDS: dict[Stand, str] = {
    Stand.WORK: "is idle",
    Stand.WORKER: "waits for a worker",
    Stand.COLLECTIVE: "in",
    Stand.STAGE: "waits for another stage in",
    Stand.DEVICE: "waits for its device in",
    Stand.TRANSFER: "waits for a KV cache in",
    Stand.STANDS: "is stuck in",
    Stand.MOVES: "moves, now in",
    Stand.STOPPED: "stopped",
    Stand.GONE: "gone",
    Stand.UNSEEN: "not observed",
}


class Rank(Record):
    """One process of a server of several, and what it is at."""

    pid: Annotated[
        int | None, Field(description="None: it should be there, and is not")
    ] = None
    role: str
    kind: Annotated[
        Literal["front", "core", "worker", "coordinator", "detokenizer"],
        Field(
            description="what it is for; a core that also runs the model is a worker"
        ),
    ]
    labels: Annotated[
        dict[str, int], Field(description="its rank by group: TP, PP, DP, EP …")
    ] = {}
    under: Annotated[
        int | None, Field(description="pid of the process that started it")
    ] = None
    state: Annotated[str, Field(description="one letter, as in /proc/PID/stat")] = ""
    cpu_pct: Annotated[float | None, Field(description="of one core")] = None
    call: Annotated[str, Field(description="system call that its thread waits in")] = ""
    stand: Stand = Stand.UNSEEN
    what: Annotated[
        str, Field(description="the operation, or the function that it is stuck in")
    ] = ""
    place: Annotated[
        str, Field(description="function, file and line in its own code")
    ] = ""
    source: Annotated[
        str, Field(description="line of the engine's source that waits so")
    ] = ""
    thread: str = ""
    samples: int = 0
    course: Annotated[
        list[str], Field(description="where it was in each sample, in order")
    ] = []

    @property
    def words(self) -> str:
        """``in all_reduce``, ``stands in _wedge``: for people."""
        words = _STAND_WORDS[self.stand]
        return f"{words} {self.what}" if words.endswith("in") else words


class RankEdge(Record):
    """Who waits for whom."""

    waiter: str
    awaited: str
    why: str


class RankLook(Record):
    """All processes of a server of several side by side."""

    ranks: list[Rank]
    groups: Annotated[
        list[str], Field(description="``3 in all_reduce: Worker_TP0, …``")
    ] = []
    odd: Annotated[
        list[str], Field(description="roles of ranks that differ from the rest")
    ] = []
    edges: list[RankEdge] = []


class Assessment(Record):
    """The general diagnosis: from evidence alone, without any signature."""

    state: ServerState
    sentence: Annotated[str, Field(description="what is wrong, for people")]
    why: Annotated[list[str], Field(description="the observations it rests on")] = []
    process: str = ""
    thread: str = ""
    frames: Annotated[list[Frame], Field(description="innermost first")] = []
    seen: Annotated[int, Field(description="samples that show this stack")] = 0
    samples: int = 0
    holder: Annotated[
        str, Field(description="who holds the lock, where that can be told")
    ] = ""
    advice: Annotated[
        list[str], Field(description="what to do, and what would tell more")
    ] = []


class Match(Record):
    """One known failure, held against the evidence."""

    scenario: str
    variant: str = ""
    title: str
    fit: Fit
    why: str
    met: int = 0
    not_met: int = 0
    unknown: int = 0
    exposed: Annotated[
        bool | None, Field(description="release and options can fail so; None: unknown")
    ] = None
    exposed_because: str = ""
    conditions: list[ConditionResult] = []
    remedies: Annotated[
        list[str], Field(description="what helps, as its scenario declares")
    ] = []
    until_fixed: Annotated[
        str, Field(description="the flag or variable to set; empty: none is known")
    ] = ""
    fix: Annotated[str, Field(description="release with a fix; empty: none")] = ""
    references: list[str] = []


class Effect(Record):
    """What the diagnosis did to the target and cost this machine."""

    seconds: float = 0.0
    cpu_s: Annotated[
        float, Field(description="CPU of mmrepro and its helpers (py-spy)")
    ] = 0.0
    peak_rss_bytes: int = 0
    requests: Annotated[list[str], Field(description="every HTTP request sent")] = []
    inferences: Annotated[
        int, Field(description="how many of them were completions")
    ] = 0
    stack_samples: int = 0
    paused_s: Annotated[
        float,
        Field(description="upper bound of the time for which the target was paused"),
    ] = 0.0
    log_bytes_read: int = 0


class Diagnosis(Document, kind="diagnosis"):
    mmrepro_version: str = ""
    taken: Moment
    target: TargetFacts
    assessment: Assessment
    dumps: Annotated[
        DumpReading | None,
        Field(description="of files that were given; None: none was a dump"),
    ] = None
    logged: Annotated[
        LogFacts | None, Field(description="of the log that the cause is from")
    ] = None
    cause: Annotated[
        Cause | None,
        Field(description="what its log tells of its end; None: no log, or it lives"),
    ] = None
    classes: Annotated[
        list[NamedClass],
        Field(description="classes of failure, surest first; none: none is seen"),
    ] = []
    since: Annotated[str, Field(description="since when, and how that is known")] = ""
    ranks: Annotated[
        RankLook | None,
        Field(description="of a server of several processes; None: of one"),
    ] = None
    matches: Annotated[
        list[Match], Field(description="every known failure, best fit first")
    ] = []
    unseen: Annotated[
        list[str], Field(description="what could not be seen, and how to allow it")
    ] = []
    effect: Effect = Effect()
    incident_dir: str = ""

    @property
    def state(self) -> ServerState:
        return self.assessment.state

    @property
    def found(self) -> list[Match]:
        """Known failures that were found, not merely possible ones."""
        return [m for m in self.matches if m.fit in (Fit.MATCH, Fit.LIKELY)]

    @property
    def exit_code(self) -> int:
        """0 healthy; 1 a known failure, or unhealthy; 3 could not be told."""
        if self.found:
            return 1
        if self.state is ServerState.HEALTHY:
            return 0
        return 3 if self.state in COULD_NOT_TELL else 1
