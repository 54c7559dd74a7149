"""Looking at a live server: every probe side by side, bounded, none of them
intrusive."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from mmrepro.engines import UVICORN_STARTS, log_marks
from mmrepro.engines.held import request_fields
from mmrepro.failure.documents import Effect
from mmrepro.failure.signature import live_server as live
from mmrepro.live.diagnose import discover
from mmrepro.live.diagnose.cause_rules import places
from mmrepro.live.diagnose.classes_logged import LOG_PATTERNS as CLASS_PATTERNS
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.listeners import ask_all, listening_sockets
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.ranks import coordinators, replicas, workers
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes import (
    ENABLE,
    MOST_S as RAS_S,
    PORT as RAS_PORT,
    ConnectionsProbe,
    FlightProbe,
    GpuCoreProbe,
    GpuProbe,
    HttpData,
    LogsData,
    LogsProbe,
    MetricsProbe,
    Probe,
    ProbeData,
    ProcessesProbe,
    RasProbe,
    StackSample,
    StacksData,
    StacksProbe,
    SyscallsProbe,
    pipe_of,
    run_probe,
)
from mmrepro.probes.http import HttpProbe, InferenceProbe, fetch, field_of, first_model
from mmrepro.probes.log_files import recent
from mmrepro.probes.log_lines import Life
from mmrepro.traffic.evidence import Evidence, Recorder

FRONT_S = 3.0
"""For a cheap endpoint: a front that takes longer does not answer."""
APART_S = 2.0
"""At least so long between two readings of the progress counters."""
GLANCE_S = 3.0
"""A request that is answered by then leaves nothing more to wait for."""
_AT_ONCE_S = 0.5
"""A request that is answered by then needs no stacks: they are the dearest of all
evidence."""
OTHERS = 2
"""Samples of a process that is neither the core nor, where that is silent, the
front."""
SECOND_LOOK = 0.6
"""Part of the deadline after which the second look begins."""
LAST_S = 1.5
"""How long before the deadline the last readings are taken."""
SOONEST_S = 4.5
"""Since a request was sent: before that its silence decides nothing, whatever else was
seen."""
BESIDE_S = 3.0
"""Of a whole look, beside the deadline: what is still asked then is given up."""
WINDOW_S = 1.0
"""Over which processor time is measured."""
EVIDENCE_S = 2.5
"""For a round of stacks and CPU readings."""
WORTH_S = 1.0
"""A cheap endpoint that has less time than that is not called late for it."""
LEAST_S = 0.3
"""For a probe that begins at the end of it."""
MAX_LOG_BYTES = 512 << 20
MAX_LOGS = 8
MAX_SAMPLED = 6
MAX_RANKS = 16
RANK_SAMPLES = 3
"""Of each worker beside the core, in each round."""
_GPU_CORE_S = 60.0
"""For a core dump of a GPU and its reading."""
RANK_S = 0.25
"""More time for a round of stacks, for each of them."""
TOKENS = 8

_DEFAULT_ENDPOINTS = ("/health", "/v1/models")


class Collector:
    """One look at one target. ``recorder`` gets every probe's result, in phase
    "check"."""

    def __init__(
        self, target: ServerTarget, plan: DiagnoseCommand, recorder: Recorder
    ) -> None:
        self.target = target
        self.plan = plan
        self.recorder = recorder
        self.requests: list[str] = []
        self.log_patterns: Mapping[str, str] = {}
        self.inferences = 0
        self._started = time.monotonic()
        self._end = self._started + plan.deadline_s + BESIDE_S
        self._usage = _usage()
        self._asked_at = self._started
        self._waiting: Future[None] | None = None
        self._lived: set[int] = set()
        """Pids when the logs were read."""
        self._sizes: dict[str, int] = {}
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(
            max_workers=16 + MAX_RANKS, thread_name_prefix="diagnose"
        )

    @property
    def evidence(self) -> Evidence:
        return self.recorder.evidence

    # ------------------------------------------------------------ the front

    def ask_front(self) -> None:
        """The cheap endpoints and the metrics, at once; they also tell which engine it
        is."""
        self._all(self._start(self._http(self._cheap())), *self._counts("1"))

    def model(self) -> str:
        """The model to ask for: as given, as /v1/models lists it, as the command line
        names it."""
        if self.plan.model:
            return self.plan.model
        for _, data in self.evidence.results(HttpData, partial=True):
            answer = data.answer("/v1/models")
            if answer and answer.status == 200 and (name := first_model(answer.body)):
                return name
        words = self.target.facts.command
        for option in (
            "--served-model-name",
            "--model-name",
            "--model",
            "--model-path",
        ):
            for index, word in enumerate(words[:-1]):
                if word == option:
                    return words[index + 1]
        return ""

    def ask_release(self) -> None:
        """Where no file tells the release: an endpoint that does."""
        engine, facts = self.target.engine, self.target.facts
        if (
            engine is None
            or facts.release
            or DiagnosisView(facts, self.evidence).front_answers is False
        ):
            return
        for path in engine.version_paths:
            self._note_request(f"GET {path}")
            got = fetch(
                "GET",
                facts.url + path,
                timeout_s=FRONT_S,
                max_bytes=1 << 20,
                headers=self.plan.headers,
            )
            release = discover.public_release(field_of(got.body, "version"))
            if got.status == 200 and release:
                facts.release, facts.release_from = release, f"its endpoint {path}"
                return

    # ------------------------------------------------------------ the whole look

    def look(self, suspicious: Callable[[Evidence], bool], *, plain: bool) -> bool:
        """Everything else, in parallel. Returns whether that leaves a suspicion, and
        time.

        Args:
            plain: it is dead or stopped: no request is sent, and once is enough.
            suspicious: whether what was seen by now could be a hang. With a request on
                its way that is its silence; without one, the counters and the processes
                have to tell.

        A front that was not well is asked again in any case: its first answer may have
        been late because this machine was busy."""
        self._asked_at = time.monotonic()
        self._waiting = self._request() if self.plan.request and not plain else None
        if self._waiting is not None:
            _wait(self._waiting, self._asked_at + _AT_ONCE_S)
        stacks = (
            plain or self._waiting is None or self.waits or replicas(self.target.facts)
        )
        first = self._processes_round(stacks=stacks)
        self._all(*first, *self._logs(), self._start(GpuProbe()))
        if plain:
            return False
        # A server at work may make no step between two readings that are close.
        self._until(self._asked_at + APART_S)
        self._all(*self._counts("2"))
        if self._waiting is not None:
            _wait(self._waiting, min(self._asked_at + GLANCE_S, self._end))
        self._ask_each_socket()
        if self.waits or suspicious(self.evidence):
            return True
        view = DiagnosisView(self.target.facts, self.evidence)
        # A server may end on this very request: what it was like before tells nothing.
        broken = view.answer == "failed" and view.inference_status is None
        if broken:
            discover.refresh(self.target)
        if broken or view.green is False:
            self._all(self._start(self._http(self._cheap()), label="http-2"))
        # A front that fails a request at once may have an engine without the thread
        # that takes requests.
        if view.answer == "failed" and not stacks:
            threads = self._processes_round(label="failed-", samples=3, others=False)
            self._all(*threads)
        return False

    def _ask_each_socket(self) -> None:
        """Where several sockets listen on its port: whether each of them answers."""
        facts = self.target.facts
        sockets = listening_sockets(facts)
        if sockets < 2:
            return
        answers = ask_all(facts.url, sockets, self.plan.headers)
        self._note_request(f"GET /v1/models on {answers.asked} connections")
        if answers.one_is_silent:
            self.evidence.facts[live.SILENT_SOCKET] = answers.sentence

    @property
    def waits(self) -> bool:
        """Whether the one request is still on its way."""
        return self._waiting is not None and not self._waiting.done()

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._asked_at

    def look_again_at_once(self) -> None:
        """A second look without the wait for it, and readings not before
        ``SOONEST_S``."""
        self._all(*self._processes_round(label="soon-", samples=3, others=False))
        self._until(self._asked_at + SOONEST_S, unless=self._waiting)
        self._all(
            *self._counts("soon"),
            self._start(self._http(self._cheap()), label="http-soon"),
        )
        discover.refresh(self.target)

    def give_up(self) -> None:
        """The request is waited for no longer: its connection is closed."""
        self._given_up.set()
        if self._waiting is not None:
            self._all(self._waiting)

    def look_on(self) -> None:
        """Until the deadline: a second look, and the last readings."""
        end = self._asked_at + self.plan.deadline_s
        self._until(
            self._asked_at + SECOND_LOOK * self.plan.deadline_s, unless=self._waiting
        )
        if self._end - time.monotonic() < LEAST_S:  # the front alone took all of it
            if self._waiting is not None:
                _wait(self._waiting, self._end)
            return
        discover.refresh(self.target)
        room = end - LAST_S - time.monotonic()
        self._all(*self._processes_round(label="2-", seconds=max(room, EVIDENCE_S)))
        # The last readings shortly before the deadline: after it there is only judging
        # to do.
        self._until(end - LAST_S, unless=self._waiting)
        last = self._counts("3")
        if self._end - time.monotonic() >= WORTH_S:
            last.append(self._start(self._http(self._cheap()), label="http-2"))
        if self._waiting is not None:
            _wait(self._waiting, end + 1.0)
        self._all(*last)
        discover.refresh(self.target)
        if self._lived - self._living():
            self._logs_again()

    def _living(self) -> set[int]:
        """Pids of the server's processes that have not ended."""
        return {p.pid for p in self.target.facts.processes if p.state not in "ZX"}

    def _logs_again(self) -> None:
        """Read the logs once more, in place of the first reading: why a process ended
        while it was observed, and which was first, is written after that."""
        probes = self.evidence.probes
        before = len(probes)
        self._all(*self._logs("logs-late"))
        again: set[str] = set()
        for result in probes[before:]:
            if isinstance(result.data, LogsData) and result.ok:
                again.add(result.data.file)
        for result in probes[:before]:
            if isinstance(result.data, LogsData) and result.data.file in again:
                probes.remove(result)

    def more_stacks(self, wanted: Callable[[Sequence[StackSample]], bool]) -> None:
        """Further samples of the core, quickly one after the other, for a local that
        was missed."""
        cores = [process.pid for process in self.target.facts.cores][:1]
        seen = self._samples()
        if cores and not wanted(seen):
            probe = StacksProbe(
                cores,
                samples=20,
                interval_s=0.03,
                blocking_fallback=False,
                until=lambda more: wanted([*seen, *more]),
                min_samples=1,
            )
            self._all(self._start(probe, seconds=EVIDENCE_S, label="stacks-more"))

    def _samples(self) -> list[StackSample]:
        samples: list[StackSample] = []
        for _, data in self.evidence.results(StacksData, partial=True):
            samples += data.samples
        return samples

    def gpu_cores(self) -> None:
        """A core dump of the GPU of each process that runs the model and was started
        for it."""
        facts = self.target.facts
        probes = []
        for process in workers(facts) or facts.cores or facts.processes[:1]:
            pipe = pipe_of(process.pid, process.inner_pid or 0, discover.inside)
            if pipe is not None:
                probes.append((process.pid, GpuCoreProbe(process.pid, pipe)))
        if not probes:
            self.target.unseen.append(
                "a core dump of the GPU: no process has CUDA's pipe for it; "
                f"start the server with {ENABLE}=1"
            )
            return
        # Such a dump is large: writing it takes longer than a look.
        self._end = max(self._end, time.monotonic() + _GPU_CORE_S)
        started = []
        for pid, probe in probes:
            label = f"gpu-core-{pid}"
            started.append(self._start(probe, seconds=_GPU_CORE_S, label=label))
        self._all(*started)

    def effect(self) -> Effect:
        """What this look did, as measured: CPU of this process and of its ended
        children."""
        samples = self._samples()
        paused = sum(sample.seconds for sample in samples if sample.blocking)
        log_bytes = 0
        for _, data in self.evidence.results(LogsData, partial=True):
            log_bytes += data.bytes_read
        cpu_s, peak_rss_bytes = _usage()
        return Effect(
            seconds=round(time.monotonic() - self._started, 2),
            cpu_s=round(cpu_s - self._usage[0], 2),
            peak_rss_bytes=peak_rss_bytes,
            requests=list(self.requests),
            inferences=self.inferences,
            stack_samples=len(samples),
            paused_s=round(paused, 2),
            log_bytes_read=log_bytes,
        )

    def log_growth(self) -> float | None:
        """Bytes a second by which the logs grew since this look began; None: there is
        none, or it was too short."""
        seconds = time.monotonic() - self._started
        grown = []
        for name, now in self._log_sizes().items():
            if name in self._sizes:
                grown.append(now - self._sizes[name])
        return sum(grown) / seconds if grown and seconds >= APART_S else None

    def note_log_sizes(self) -> None:
        self._sizes = self._log_sizes()

    def _log_sizes(self) -> dict[str, int]:
        sizes = {}
        for name in self.target.facts.logs[:MAX_LOGS]:
            with contextlib.suppress(OSError):
                sizes[name] = Path(name).stat().st_size
        return sizes

    def close(self) -> None:
        # A probe that hangs is left to its thread: nobody waits for it.
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ probes

    def _request(self) -> Future[None] | None:
        facts = self.target.facts
        facts.model = facts.model or self.model()
        if not facts.model:
            self.target.unseen.append(
                "no request was sent: the served model's name is not known; give "
                "--model NAME"
            )
            return None
        probe = InferenceProbe(
            facts.url,
            facts.model,
            self.plan.deadline_s,
            max_tokens=TOKENS,
            headers=self.plan.headers,
            given_up=self._given_up,
            fields=request_fields(facts.engine, facts.command),
        )
        self._note_request("POST /v1/chat/completions")
        self.inferences += 1
        return self._start(probe, seconds=self.plan.deadline_s + 0.5)

    def _processes_round(
        self,
        label: str = "",
        seconds: float = EVIDENCE_S,
        *,
        stacks: bool = True,
        samples: int = 0,
        others: bool = True,
    ) -> list[Future[None]]:
        """Stacks of the processes that matter, system calls of the core, CPU of all.

        Args:
            seconds: for the stacks; a sample takes 0.05 s, on a busy machine 0.5 s.
            samples: of the core, where it is not what the plan says.
            others: whether there are any of processes beside the core.
        """
        facts = self.target.facts
        if facts.root_pid is None:
            return []
        cores = [process.pid for process in facts.cores]
        core = cores[0] if cores else facts.root_pid
        close = [core]
        view = DiagnosisView(facts, self.evidence)
        front = view.front_pid or facts.root_pid
        if not cores or not view.front_answers:
            close.append(facts.root_pid)
        close = list(dict.fromkeys([*close, *cores]))[:MAX_SAMPLED]
        beside = [p.pid for p in (*workers(facts), *coordinators(facts))]
        ranks = [pid for pid in beside if pid not in close][:MAX_RANKS]

        started: list[Future[None]] = []
        if stacks:
            count = samples or self.plan.samples
            started += self._stacks(close, count, seconds, label=f"{label}stacks")
            # Each rank is sampled for itself: a round of many takes longer.
            longer = seconds + RANK_S * len(ranks)
            started += self._stacks(ranks, RANK_SAMPLES, longer, label=f"{label}ranks")
            if others:
                rest = self._rest({*close, *ranks})[: MAX_SAMPLED - len(close)]
                started += self._stacks(rest, OTHERS, seconds, label=f"{label}others")
        started.append(
            self._start(
                ProcessesProbe(facts.root_pid, WINDOW_S, self.target.role_of),
                seconds=WINDOW_S + 2,
                label=f"{label}processes",
            )
        )
        if stacks and ranks and discover.listens(self.target, RAS_PORT):
            ras = self._start(RasProbe(), seconds=RAS_S, label=f"{label}nccl-ras")
            started.append(ras)
        # In a later round, which has a label, with what was written meanwhile.
        dumps = discover.flight_files(self.target) if label and ranks else []
        if dumps:
            started.append(self._start(FlightProbe(dumps), label=f"{label}flight"))
        # A front end without Python has no stacks.
        silent = [front] if front != facts.root_pid and not view.front_answers else []
        for pid in dict.fromkeys([core, *cores[:MAX_SAMPLED], *silent, *ranks]):
            name = f"{label}syscalls"
            if pid != core:
                name += f"-{pid}"
            # Never strace here: it stops the target at each of its system calls.
            probe = SyscallsProbe(pid, window_s=WINDOW_S, use_strace=False)
            started.append(self._start(probe, seconds=WINDOW_S + 2, label=name))
        return started

    def _rest(self, near: Collection[int]) -> list[int]:
        """Processes beside those that are near, but for helpers."""
        rest = []
        for process in self.target.facts.processes:
            if _may_matter(process.role) and process.pid not in near:
                rest.append(process.pid)
        return rest

    def _stacks(
        self, pids: list[int], samples: int, seconds: float, *, label: str
    ) -> list[Future[None]]:
        """Samples of these processes, spread over half of the time for a round."""
        if not pids:
            return []
        if self.plan.native:
            seconds += 5.0  # C frames take py-spy that much longer
        probe = StacksProbe(
            pids,
            samples=samples,
            interval_s=max(0.02, EVIDENCE_S / 2 / samples / len(pids)),
            blocking_fallback=False,
            native=self.plan.native,
        )
        return [self._start(probe, seconds=seconds, label=label)]

    def _logs(self, label: str = "logs") -> list[Future[None]]:
        self._lived = self._living()
        engine = self.target.engine
        own = engine.log_patterns if engine else {}
        patterns = {**live.LOG_PATTERNS, **CLASS_PATTERNS, **own, **self.log_patterns}
        progress = engine.progress_pattern if engine else None
        added = (engine.added_pattern if engine else "") or None
        began = discover.began(self.target)
        starts = engine.start_lines if engine else (UVICORN_STARTS,)
        # A container may have another zone: its log's times are not held against our
        # clock.
        local = self.target.facts.place == "local"
        since = datetime.fromtimestamp(began) if local and began is not None else None

        started: list[Future[None]] = []
        for name in self.target.facts.logs[:MAX_LOGS]:
            path = Path(name)
            if _older(path, began):
                self.target.unseen.append(
                    f"the log: {name} was written before this server started"
                )
                continue
            files = [f for f in recent(path, MAX_LOG_BYTES) if not _older(f, began)]
            probe = LogsProbe(
                files or [path],
                patterns,
                progress,
                max_bytes=MAX_LOG_BYTES,
                added=added,
                life=Life(starts, since),
                marks=log_marks(),
                around=places(),
            )
            name = f"{label}-{len(started) + 1}"
            started.append(self._start(probe, seconds=self.plan.deadline_s, label=name))
        return started

    def _cheap(self) -> Sequence[str]:
        """The engine's endpoints that cost it nothing: SGLang's /health_generate is a
        request."""
        engine = self.target.engine
        if engine is None:
            return _DEFAULT_ENDPOINTS
        paths = engine.endpoints_of(self.target.facts.command)
        return [path for path in paths if "generate" not in path]

    def _http(self, paths: Sequence[str]) -> HttpProbe:
        for path in paths:
            self._note_request(f"GET {path}")
        return HttpProbe(
            self.target.facts.url, paths, FRONT_S, headers=self.plan.headers
        )

    def _metrics(self) -> MetricsProbe:
        engine = self.target.engine
        path = engine.metrics_path if engine else "/metrics"
        self._note_request(f"GET {path}")
        return MetricsProbe(
            self.target.facts.url + path, FRONT_S, headers=self.plan.headers
        )

    def _counts(self, label: str) -> list[Future[None]]:
        """What the server counts, and who is connected to it at that time."""
        facts = self.target.facts
        started = []
        if facts.port and facts.place != "remote":
            probe = ConnectionsProbe(facts.port, facts.root_pid or "self")
            started.append(self._start(probe, label=f"connections-{label}"))
        return [*started, self._start(self._metrics(), label=f"metrics-{label}")]

    def _start(
        self, probe: Probe[ProbeData], *, seconds: float = FRONT_S * 2, label: str = ""
    ) -> Future[None]:
        seconds = min(seconds, max(LEAST_S, self._end - time.monotonic()))

        def run() -> None:
            to, mask = self.recorder.dir, self.recorder.mask
            result = run_probe(
                probe, to, seconds, phase="check", label=label, mask=mask
            )
            self.recorder.probe(result)  # type: ignore[arg-type] # data is one of AnyProbeData

        return self._pool.submit(run)

    def _note_request(self, text: str) -> None:
        with self._lock:
            self.requests.append(text)

    @staticmethod
    def _all(*futures: Future[None]) -> None:
        for future in futures:
            future.result()

    def _until(self, moment: float, unless: Future[None] | None = None) -> None:
        """Wait for ``moment``, or until ``unless`` is done."""
        moment = min(moment, self._end)
        if unless is not None:
            _wait(unless, moment)
        else:
            time.sleep(max(0.0, moment - time.monotonic()))


def _older(file: Path, began: float | None) -> bool:
    """Whether nothing was written to it since the server began."""
    try:
        return began is not None and file.stat().st_mtime < began
    except OSError:
        return False


def _may_matter(role: str) -> bool:
    """Not the helpers that every multiprocessing program has."""
    return role not in ("resource_tracker", "sh", "bash", "timeout", "tee")


def _wait(future: Future[None], until: float) -> None:
    try:
        future.result(timeout=max(0.0, until - time.monotonic()))
    except TimeoutError:
        return


def _usage() -> tuple[float, int]:
    """CPU seconds of this process and its ended children, and the highest memory of
    one."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss) * 1024
