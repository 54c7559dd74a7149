"""The few numbers that a general diagnosis turns on, read from the evidence. Pure
functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mmrepro.engines import ENGINES
from mmrepro.failure.documents import TargetFacts
from mmrepro.failure.signature import BEGUN_AT, checks, metric_readings, spinning
from mmrepro.failure.signature.live_server import ENDED_BADLY, gateways, stands_before
from mmrepro.live.diagnose.threads import Course, courses
from mmrepro.probes import (
    ConnectionsData,
    EndpointAnswer,
    HttpData,
    InferenceData,
    LogLine,
    LogsData,
    MetricsData,
    ProcessesData,
    ProcessUse,
    StackSample,
    StacksData,
    SyscallsData,
)
from mmrepro.probes.http import NOT_SENT, connection_refused
from mmrepro.traffic.evidence import Evidence

TOKENS = ("prompt_tokens", "generation_tokens")
COUNTERS = ("finished", *TOKENS)
_COMPUTED = (*TOKENS, "computed_tokens")
"""An engine may count the tokens of a request when that ends, and those that it computes
at each step."""
BEGUN = "in the body of a"
"""In the error of an answer that began, and was not whole."""
_NO_WAY = "ConnectError"
"""How an error begins where there was no connection."""
_HOT_PCT = checks.BUSY_PCT

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
class DiagnosisView:
    facts: TargetFacts
    evidence: Evidence

    # ------------------------------------------------------------ the request

    @property
    def inference(self) -> InferenceData | None:
        for _, data in self.evidence.results(InferenceData, "check"):
            return data
        return None

    @property
    def answer(self) -> Answer:
        """What became of the one small request."""
        data = self.inference
        if data is None or data.error.startswith(NOT_SENT):
            return "not-asked"
        if data.answered:
            return "answered"
        if data.cached:
            return "gateway"
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

    @property
    def inference_status(self) -> int | None:
        """HTTP's status of the one small request; None: none came, or none was sent."""
        data = self.inference
        return None if data is None else data.status

    @property
    def ended_on_the_request(self) -> bool:
        """Whether the connection of the one small request broke after the server had
        answered its cheap endpoints."""
        readings = [data for _, data in self.evidence.results(HttpData, "check")]
        if self.answer != "failed" or self.inference_status is not None:
            return False
        if not readings:
            return False
        return any(answer.status is not None for answer in readings[0].answers)

    # ------------------------------------------------------------ the front

    @property
    def endpoints(self) -> HttpData | None:
        """The latest whole reading of the cheap endpoints."""
        readings = [data for _, data in self.evidence.results(HttpData, "check")]
        return readings[-1] if readings else None

    @property
    def green(self) -> bool | None:
        """Whether all say so that say anything: one that refuses us (a key, a path)
        does not."""
        judged = [a.status for a in self._answers if not _refused(a.status)]
        if not judged:
            return None
        return all(status == 200 for status in judged)

    @property
    def late(self) -> list[str]:
        """Endpoints without an answer in time, where no other one says that it is not
        well."""
        paths = []
        for answer in self._answers:
            if answer.status is None:
                paths.append(answer.path)
            elif answer.status != 200 and not _refused(answer.status):
                return []
        return paths

    @property
    def front_answers(self) -> bool | None:
        """Whether anything at all came back over HTTP, be it a refusal."""
        if self.inference is not None and self.inference.status is not None:
            return True
        if not self._answers:
            return None
        return any(answer.status is not None for answer in self._answers)

    @property
    def gives_metrics(self) -> bool:
        """Whether metrics came no earlier than the last reading of the endpoints, which
        is taken beside them. They are the front's as well."""
        readings = self.evidence.results(HttpData, "check")
        asked = [result.started.mono for result, _ in readings]
        if not self.here or not asked:
            return False
        for result, data in self.evidence.results(MetricsData, "check"):
            came = result.started.mono + result.seconds
            if data.samples and came >= asked[-1]:
                return True
        return False

    @property
    def refused_connection(self) -> bool:
        data = self.endpoints
        if data is None:
            return False
        return all(connection_refused(answer.error) for answer in data.answers)

    @property
    def mute(self) -> bool:
        """Whether every endpoint let the time pass and sent nothing back."""
        for answer in self._answers:
            if answer.body or not answer.timed_out:
                return False
        return bool(self._answers)

    @property
    def garbled(self) -> bool:
        """Whether one closed or reset its connection, or sent what is no whole HTTP
        answer: what does that is not frozen."""
        for answer in self._answers:
            if answer.status is not None or answer.error.startswith(_NO_WAY):
                continue
            if answer.body or not answer.timed_out:
                return True
        return False

    @property
    def _answers(self) -> list[EndpointAnswer]:
        endpoints = self.endpoints
        if endpoints is None:
            return []
        return [a for a in endpoints.answers if not a.error.startswith(NOT_SENT)]

    @property
    def warms(self) -> bool:
        """Whether all that is not well says 503: a server that starts does."""
        bad = {a.status for a in self._answers if (a.status or 0) >= 500}
        return bad == {503}

    @property
    def awaits_orders(self) -> bool:
        """Whether the engine says that it met an exception and waits for an
        instruction."""
        engine = ENGINES.get(self.facts.engine)
        path, words = engine.awaits_orders if engine else ("", "")
        for answer in self._answers:
            if path and answer.path == path and re.search(words, answer.body):
                return True
        return False

    @property
    def queue_full(self) -> bool:
        """Whether the small request was turned away because as many wait as may, by its
        words or by the counter of such requests."""
        engine = ENGINES.get(self.facts.engine)
        words = engine.queue_full if engine else ""
        data = self.inference
        if words and data is not None and re.search(words, data.error):
            return True
        counts = self.readings("turned_away")
        return len(counts) > 1 and counts[-1] > counts[0]

    @property
    def behind(self) -> EndpointAnswer | None:
        """An endpoint's answer that is of what stands before the server: 502 and 504,
        or a page."""
        for answer in self._answers:
            if stands_before(answer.status, answer.body):
                return answer
        return None

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
        return metric_readings(self.evidence, self._metrics(short), "check")

    def _metrics(self, short: str) -> tuple[str, ...]:
        """The engine's own names of a metric; they differ between releases."""
        engine = ENGINES.get(self.facts.engine)
        return tuple(engine.metrics.get(short, ())) if engine else ()

    @property
    def progress(self) -> bool | None:
        """Whether a counter of tokens moved; None: none was read twice, or one fell.

        Requests count only where tokens are not counted: a frozen vLLM counts as
        finished those that their clients give up."""
        for counters in (_COMPUTED, ("finished",)):
            readings = self._read_twice(counters)
            if not self.here and any(_fell(values) for values in readings):
                return None  # counted anew, or by another replica
            if readings:
                return any(values[-1] != values[0] for values in readings)
        return None

    def _read_twice(self, shorts: Iterable[str]) -> list[list[float]]:
        """The readings of those that were read more than once."""
        readings = map(self.readings, shorts)
        return [values for values in readings if len(values) >= 2]

    @property
    def moving(self) -> bool | None:
        """As ``progress``; steps that were made, and a KV cache that fills, are some as
        well."""
        if self.progress is False:
            for values in self._read_twice(("steps", "kv_usage", "kv_tokens")):
                if values[-1] != values[0]:
                    return True
        return self.progress

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last reading of the counters."""
        results = self.evidence.results(MetricsData, "check")
        times = [result.started.mono for result, _ in results]
        return max(times) - min(times) if times else 0.0

    def timed(self, short: str) -> list[tuple[float, float]]:
        """Monotonic second and value of each reading, oldest first.
        ``waiting_capacity``, ``waiting_deferred``: of those that wait, the ones that do
        for that reason."""
        names = self._metrics(short)
        reason = None
        if short.startswith("waiting_"):
            reason = short.removeprefix("waiting_")
        timed = []
        results = list(self.evidence.results(MetricsData, "check"))
        begun = results[-1][1].total(BEGUN_AT) if results else None
        for result, data in results:
            # A reading of a process that began at another time: a restart, or another
            # replica behind the same address.
            if data.total(BEGUN_AT) not in (None, begun):
                continue
            value = _sum(data, names, reason)
            if value is not None:
                timed.append((result.started.mono, value))
        return timed

    @property
    def others_running(self) -> list[float]:
        """Requests that run, in each reading, without ours where it was on its way."""
        own = []
        for result, data in self.evidence.results(InferenceData, "check"):
            began = result.started.mono
            own.append((began, began + data.seconds))
        others = []
        for at, value in self.timed("running"):
            ours = any(began <= at <= ended for began, ended in own)
            others.append(value - 1 if ours else value)
        return others

    @property
    def connections(self) -> list[ConnectionsData]:
        """Who was connected, one reading each."""
        return [data for _, data in self.evidence.results(ConnectionsData, "check")]

    @property
    def last_progress(self) -> LogLine | None:
        """The log's last line of work done."""
        for _, data in self.evidence.results(LogsData, partial=True):
            if data.last_work is not None:
                return data.last_work
        return None

    def always(self, short: str) -> bool | None:
        """Whether a gauge was above 0 in every reading; None: not read twice."""
        values = self.readings(short)
        return min(values) > 0 if len(values) >= 2 else None

    def counted(self) -> str:
        """``running 0 → 0, waiting 3 → 5``: for people."""
        parts = []
        for short in ("running", "waiting", *COUNTERS):
            values = self.readings(short)
            if values:
                parts.append(f"{short} {course_of(values)}")
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
    def front_pid(self) -> int | None:
        """The process that serves HTTP: the one that was started, or the program that
        does so in its place."""
        for process in self.facts.processes:
            if self.facts.front_role and process.role == self.facts.front_role:
                return process.pid
        return self.facts.root_pid

    @property
    def core_is_front(self) -> bool:
        return self.core_pid == self.front_pid

    @property
    def kills(self) -> list[str]:
        """What the kernel killed of the server, for people."""
        kill = self.evidence.facts.get("oom")
        return [f"the kernel's OOM killer was at work: {kill}"] if kill else []

    def use(self, pid: int | None) -> ProcessUse | None:
        """The latest CPU reading of a process."""
        uses = self._uses(pid)
        return uses[-1] if uses else None

    def _uses(self, pid: int | None) -> list[ProcessUse]:
        """A process in each reading of the processes, oldest first."""
        uses = []
        for _, data in self.evidence.results(ProcessesData, "check"):
            for use in data.processes:
                if use.pid == pid:
                    uses.append(use)
                    break
        return uses

    @property
    def core_hot(self) -> bool | None:
        """Whether the core took most of one core in user space, or queued for one all
        the time."""
        pid = self.core_pid
        if pid is not None and spinning(self.evidence, {pid}):
            return True
        uses = self._uses(pid)
        if not uses:
            return None
        return any(use.user_pct >= _HOT_PCT for use in uses)

    def hot_thread(self, pid: int | None) -> int | None:
        """Id of the thread that uses most of a core."""
        use = self.use(pid)
        if use is None or not use.busiest:
            return None
        thread = use.busiest[0]
        return thread.tid if thread.user_pct + thread.system_pct >= _HOT_PCT else None

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
        samples: list[StackSample] = []
        for _, data in self.evidence.results(StacksData, "check"):
            samples += data.samples
        return courses(samples, pid)


def first_total(data: MetricsData, names: Iterable[str]) -> float | None:
    """The first of these metrics that was read; their names differ between
    releases."""
    for name in names:
        value = data.total(name)
        if value is not None:
            return value
    return None


def course_of(values: Iterable[float]) -> str:
    """``3 → 5``: for people."""
    return " → ".join(f"{value:g}" for value in values)


def _fell(values: Sequence[float]) -> bool:
    return any(after < before for before, after in pairwise(values))


def _sum(data: MetricsData, names: Sequence[str], reason: str | None) -> float | None:
    """Over the samples of a metric, of one reason; None: there is none, or one is no
    number."""
    total: float | None = None
    for sample in data.samples:
        if sample.name not in names:
            continue
        if reason is not None and sample.labels.get("reason") != reason:
            continue
        if sample.value is None:
            return None
        total = (total or 0) + sample.value
    return total


def _refused(status: int | None) -> bool:
    """It turned this request away, or sent it elsewhere, which tells nothing of how it
    is."""
    return status is not None and 300 <= status < 500
