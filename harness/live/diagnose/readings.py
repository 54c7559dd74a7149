"""The few numbers that a general diagnosis turns on, read from the evidence. Pure
functions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mmrepro.engines import ENGINES
from mmrepro.failure.documents.diagnosis import TargetFacts
from mmrepro.failure.signature import checks
from mmrepro.failure.signature.live_server import ENDED_BADLY, gateways, stands_before
from mmrepro.failure.signature.views import BEGUN_AT, metric_readings, spinning
from mmrepro.live.diagnose.threads import Course, courses
from mmrepro.probes.data import (
    ConnectionsData,
    EndpointAnswer,
    HttpData,
    InferenceData,
    LogLine,
    LogsData,
    MetricsData,
    ProcessesData,
    ProcessUse,
    StacksData,
    SyscallsData,
)
from mmrepro.probes.http import NOT_SENT, connection_refused
from mmrepro.traffic.evidence import Evidence

TOKENS = ("prompt_tokens", "generation_tokens")
COUNTERS = ("finished", *TOKENS)
BEGUN = "in the body of a"
"""In the error of an answer that began, and was not whole."""
NO_WAY = "ConnectError"
"""How an error begins where there was no connection."""
HOT_PCT = checks.BUSY_PCT

Answer = Literal[
    "not-asked",
    "answered",
    "silent",
    "refused",
    "failed",
    "gateway",
    "unavailable",
    "malformed",
    "overload",
]


@dataclass(frozen=True)
class View:
    facts: TargetFacts
    evidence: Evidence

    # ------------------------------------------------------------ the request

    @property
    def inference(self) -> InferenceData | None:
        return next((d for _, d in self.evidence.results(InferenceData, "check")), None)

    @property
    def answer(self) -> Answer:
        """What became of the one small request."""
        data = self.inference
        if data is None or data.error.startswith(NOT_SENT):
            return "not-asked"
        if data.answered:
            return "answered"
        if data.status is None:
            late = data.cut or data.seconds >= 0.9 * data.deadline_s
            return "silent" if late and BEGUN not in data.error else "failed"
        if data.status == 200:
            return "failed" if ENDED_BADLY in data.error else "malformed"
        if data.status == 429:
            return "overload"
        if data.status < 500:
            return "refused"
        if gateways(data):
            return "gateway"
        return "unavailable" if data.status == 503 else "failed"

    # ------------------------------------------------------------ the front

    @property
    def endpoints(self) -> HttpData | None:
        """The latest whole reading of the cheap endpoints."""
        return next(
            (d for _, d in reversed(list(self.evidence.results(HttpData, "check")))),
            None,
        )

    @property
    def green(self) -> bool | None:
        """Whether all say so that say anything: one that refuses us (a key, a path)
        does not."""
        said = [a.status for a in self._answers if not _refused(a.status)]
        return all(status == 200 for status in said) if said else None

    @property
    def late(self) -> list[str]:
        """Endpoints without an answer in time, where no other one says that it is not
        well."""
        if any(
            a.status not in (None, 200) and not _refused(a.status)
            for a in self._answers
        ):
            return []
        return [a.path for a in self._answers if a.status is None]

    @property
    def front_answers(self) -> bool | None:
        """Whether anything at all came back over HTTP, be it a refusal."""
        if self.inference is not None and self.inference.status is not None:
            return True
        return (
            any(a.status is not None for a in self._answers) if self._answers else None
        )

    @property
    def refused_connection(self) -> bool:
        data = self.endpoints
        return data is not None and all(
            connection_refused(a.error) for a in data.answers
        )

    @property
    def mute(self) -> bool:
        """Whether every endpoint let the time pass and sent nothing back."""
        return bool(self._answers) and all(
            a.timed_out and not a.body for a in self._answers
        )

    @property
    def garbled(self) -> bool:
        """Whether one closed or reset its connection, or sent what is no whole HTTP
        answer: what does that is not frozen."""
        cut = [
            a
            for a in self._answers
            if a.status is None and not a.error.startswith(NO_WAY)
        ]
        return any(a.body or not a.timed_out for a in cut)

    @property
    def _answers(self) -> list[EndpointAnswer]:
        asked = self.endpoints.answers if self.endpoints else []
        return [a for a in asked if not a.error.startswith(NOT_SENT)]

    @property
    def warms(self) -> bool:
        """Whether all that is not well says 503: a server that starts does."""
        bad = {a.status for a in self._answers if (a.status or 0) >= 500}
        return bad == {503}

    @property
    def behind(self) -> EndpointAnswer | None:
        """An endpoint's answer that is of what stands before the server: 502 and 504,
        or a page."""
        return next((a for a in self._answers if stands_before(a.status, a.body)), None)

    # ------------------------------------------------------------ the counters

    @property
    def here(self) -> bool:
        """Whether processes of the engine itself were found behind the address."""
        return self.facts.root_pid is not None and bool(self.facts.engine)

    @property
    def own(self) -> bool:
        """Whether the counters are of the server that was asked: its processes are
        here, or a request is counted that waits. A balancer may have asked another
        replica for them."""
        return self.here or bool(self.always("running") or self.always("waiting"))

    def readings(self, short: str) -> list[float]:
        engine = ENGINES.get(self.facts.engine)
        names = engine.metrics.get(short, ()) if engine else ()
        return metric_readings(self.evidence, names, "check")

    @property
    def progress(self) -> bool | None:
        """Whether a counter of tokens moved; None: none was read twice, or one fell.

        Requests count only where tokens are not counted: a frozen vLLM counts as
        finished those that their clients give up."""
        for counters in (TOKENS, ("finished",)):
            readings = [
                values for c in counters if len(values := self.readings(c)) >= 2
            ]
            pairs = [pair for values in readings for pair in pairwise(values)]
            if not self.here and any(after < before for before, after in pairs):
                return None  # counted anew, or by another replica
            if readings:
                return any(values[-1] != values[0] for values in readings)
        return None

    @property
    def moving(self) -> bool | None:
        """As ``progress``; steps that were made, and a KV cache that fills, are some as
        well."""
        others = [
            values
            for c in ("steps", "kv_usage")
            if len(values := self.readings(c)) >= 2
        ]
        if self.progress is False and any(values[-1] != values[0] for values in others):
            return True
        return self.progress

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last reading of the counters."""
        read = [r.started.mono for r, _ in self.evidence.results(MetricsData, "check")]
        return max(read) - min(read) if read else 0.0

    def timed(self, short: str) -> list[tuple[float, float]]:
        """Monotonic second and value of each reading, oldest first.
        ``waiting_capacity``,
        ``waiting_deferred``: of those that wait, the ones that do for that reason."""
        engine = ENGINES.get(self.facts.engine)
        names = engine.metrics.get(short, ()) if engine else ()
        reason = (
            short.removeprefix("waiting_") if short.startswith("waiting_") else None
        )
        found = []
        read = list(self.evidence.results(MetricsData, "check"))
        begun = read[-1][1].total(BEGUN_AT) if read else None
        for result, data in read:
            if data.total(BEGUN_AT) not in (None, begun):
                continue
            values = [
                s.value
                for s in data.samples
                if s.name in names and reason in (None, s.labels.get("reason"))
            ]
            if values and None not in values:
                found.append(
                    (result.started.mono, sum(v for v in values if v is not None))
                )
        return found

    @property
    def others_running(self) -> list[float]:
        """Requests that run, in each reading, without ours where it was on its way."""
        own = [
            (r.started.mono, r.started.mono + d.seconds)
            for r, d in self.evidence.results(InferenceData, "check")
        ]
        return [
            value - any(began <= at <= ended for began, ended in own)
            for at, value in self.timed("running")
        ]

    @property
    def connections(self) -> list[ConnectionsData]:
        """Who was connected, one reading each."""
        return [data for _, data in self.evidence.results(ConnectionsData, "check")]

    @property
    def last_progress(self) -> LogLine | None:
        """The log's last line of work done."""
        logs = (d.last_work for _, d in self.evidence.results(LogsData, partial=True))
        return next((line for line in logs if line is not None), None)

    def always(self, short: str) -> bool | None:
        """Whether a gauge was above 0 in every reading; None: not read twice."""
        values = self.readings(short)
        return all(v > 0 for v in values) if len(values) >= 2 else None

    def counted(self) -> str:
        """``running 0 → 0, waiting 3 → 5``: for people."""
        parts = []
        for short in ("running", "waiting", *COUNTERS):
            values = self.readings(short)
            if values:
                parts.append(f"{short} " + " → ".join(f"{v:g}" for v in values))
        return ", ".join(parts)

    # ------------------------------------------------------------ the processes

    @property
    def core_pid(self) -> int | None:
        """None: not seen. Where the core should have a process of its own and none is
        called so, the front is not taken for it."""
        cores = self.facts.cores
        if cores:
            return cores[0].pid
        return None if self.facts.core_role else self.facts.root_pid

    @property
    def core_is_front(self) -> bool:
        return self.core_pid == self.facts.root_pid

    @property
    def kills(self) -> list[str]:
        """What the kernel killed of the server, for people."""
        kill = self.evidence.facts.get("oom")
        return [f"the kernel's OOM killer was at work: {kill}"] if kill else []

    def use(self, pid: int | None) -> ProcessUse | None:
        """The latest CPU reading of a process."""
        latest = None
        for _, data in self.evidence.results(ProcessesData, "check"):
            latest = next((p for p in data.processes if p.pid == pid), latest)
        return latest

    @property
    def core_hot(self) -> bool | None:
        """Whether the core took most of one core in user space, or queued for one all
        the time."""
        pid = self.core_pid
        uses = [
            p.user_pct
            for _, data in self.evidence.results(ProcessesData, "check")
            for p in data.processes
            if p.pid == pid
        ]
        if pid is not None and spinning(self.evidence, {pid}):
            return True
        return any(u >= HOT_PCT for u in uses) if uses else None

    def hot_thread(self, pid: int | None) -> int | None:
        """Id of the thread that uses most of a core."""
        use = self.use(pid)
        if use is None or not use.busiest:
            return None
        thread = use.busiest[0]
        return thread.tid if thread.user_pct + thread.system_pct >= HOT_PCT else None

    def waits(self, pid: int | None) -> dict[int, str]:
        """Thread id: the system call that it waits in."""
        calls: dict[int, str] = {}
        for _, data in self.evidence.results(SyscallsData, "check"):
            if data.pid == pid:
                calls = data.waits
        return calls

    def courses(self, pid: int | None) -> list[Course]:
        if pid is None:
            return []
        samples = [
            s for _, d in self.evidence.results(StacksData, "check") for s in d.samples
        ]
        return courses(samples, pid)


def _refused(status: int | None) -> bool:
    """It turned this request away, or sent it elsewhere, which tells nothing of how it
    is."""
    return status is not None and 300 <= status < 500
