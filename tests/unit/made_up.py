"""Made-up evidence of runs, modelled on real ones of vLLM 0.23.0 and 0.24.0. No run
made it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mmrepro.base.records import Moment
from mmrepro.engines import get_engine
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import (
    AnyProbeData,
    AnyProbeResult,
    EndpointAnswer,
    Frame,
    HttpData,
    InferenceData,
    LogLine,
    LogsData,
    MetricSample,
    MetricsData,
    ProbeResult,
    ProcessesData,
    ProcessUse,
    StackSample,
    StacksData,
    SyscallsData,
    ThreadStack,
)
from mmrepro.runs.judge import judge as judge_run
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.traffic.evidence import Evidence, Phase, ReproducerResult, RequestRecord

GHOST = "5f060411f6672c43afaf56ad299c688f7f229b9728324f49dc54e3a4be614385"
OTHER = "bd6aafa38a7654f26fc16f182fd6f25be1f045d426e228020c1ab3b28523b949"
NOW = datetime(2026, 6, 26, 9, 30, tzinfo=UTC)


def at(seconds: float) -> Moment:
    return Moment(wall=NOW + timedelta(seconds=seconds), mono=1000 + seconds)


def request(
    phase: Phase, label: str, status: int | None = 200, **more: Any
) -> RequestRecord:
    fields: dict[str, Any] = {"latency_s": 0.1, "deadline_s": 13.0}
    if status == 200:
        fields |= {"text": "$Y", "completion_tokens": 4, "prompt_tokens": 240}
    elif status is not None:
        fields |= {"error": f"HTTP {status}"}
    return RequestRecord(
        id=1, phase=phase, label=label, sent=at(1), status=status, **{**fields, **more}
    )


def hung(label: str) -> RequestRecord:
    return request(
        "trigger", label, None, timed_out=True, latency_s=13.0, error="no answer"
    )


def probed(data: AnyProbeData, phase: str = "check") -> AnyProbeResult:
    return ProbeResult[AnyProbeData](
        probe=data.kind,
        phase=phase,
        status=ProbeStatus.OK,
        started=at(20),
        seconds=0.1,
        raw=[f"{phase}-{data.kind}.raw"],
        data=data,
    )


def http(*statuses: int | None, gone: bool = False) -> HttpData:
    """None: it is late, or nobody listens there any more."""
    paths = ("/health", "/v1/models")
    told = "refused" if gone else "late"
    answers = [
        EndpointAnswer(
            path=p,
            status=s,
            seconds=0.01,
            error="" if s else told,
            timed_out=not (s or gone),
        )
        for p, s in zip(paths, statuses, strict=True)
    ]
    return HttpData(base_url="http://127.0.0.1:8000", answers=answers)


def metrics(**values: float | None) -> MetricsData:
    """``running=1`` is vllm:num_requests_running, and so on."""
    names = {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "finished": "vllm:request_success_total",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "mm_queries": "vllm:mm_cache_queries_total",
        "mm_hits": "vllm:mm_cache_hits_total",
    }
    read = {"running": 0, "waiting": 0, "finished": 16, "prompt_tokens": 3496} | {
        "generation_tokens": 60,
        "mm_queries": 4,
        "mm_hits": 2,
        **values,
    }
    samples = [
        MetricSample(name=names[short], labels={"engine": "0"}, value=value)
        for short, value in read.items()
    ]
    return MetricsData(url="http://127.0.0.1:8000/metrics", samples=samples)


def processes(
    user: float, system: float = 0.0, role: str = "EngineCore"
) -> ProcessesData:
    core = ProcessUse(
        pid=1764,
        ppid=1533,
        name=f"VLLM::{role}",
        cmdline="",
        role=role,
        state="R",
        threads=16,
        rss_bytes=1 << 30,
        user_pct=user,
        system_pct=system,
        voluntary_switches=0,
        involuntary_switches=100,
    )
    return ProcessesData(root_pid=1533, window_s=1.0, processes=[core])


LOOP = (
    ("LRUCache.popitem", "vllm/utils/cache.py"),
    ("Cache.__setitem__", "cachetools/__init__.py"),
    ("LRUCache.__setitem__", "cachetools/__init__.py"),
    ("MultiModalReceiverCache.get_and_update_item", "vllm/multimodal/cache.py"),
    ("BaseMultiModalReceiverCache.get_and_update_features", "vllm/multimodal/cache.py"),
    ("EngineCore.preprocess_add_request", "vllm/v1/engine/core.py"),
    ("EngineCoreProc.process_input_sockets", "vllm/v1/engine/core.py"),
    ("Thread.run", "threading.py"),
)
POLLING = (("Poller.poll", "zmq/sugar/poll.py"), *LOOP[-2:])


def thread(
    *functions: tuple[str, str], key: str = "", active: bool = True
) -> ThreadStack:
    """py-spy's view of process_input_sockets; ``key`` is the local ``lru_key`` of
    popitem."""
    frames = [Frame(function=name, file=file, line=1) for name, file in functions]
    if key:
        frames[0].locals["lru_key"] = repr(key)
    return ThreadStack(
        tid=2040,
        name="Thread-1 (process_input_sockets)",
        active=active,
        owns_gil=active,
        frames=frames,
    )


def stacks(*threads: ThreadStack) -> StacksData:
    """A sample each."""
    return StacksData(
        samples=[
            StackSample(pid=1764, taken=at(21), blocking=False, threads=[t])
            for t in threads
        ]
    )


def looping(key: str = GHOST) -> StacksData:
    """In four of five samples inside popitem, in one between two calls of it."""
    return stacks(*[thread(*LOOP, key=key)] * 4, thread(*LOOP[1:]))


def syscalls(verdict: Any = "spinning-in-user-space") -> SyscallsData:
    return SyscallsData(
        pid=1764,
        method="strace",
        window_s=1.5,
        total=0,
        user_pct=98,
        system_pct=0,
        verdict=verdict,
        why="as measured",
    )


def logs(
    *hashes: str, added: int = 18, last: str = "EngineCore waiting for work."
) -> LogsData:
    """A log with one assertion for each of ``hashes``."""
    core = "EngineCore pid=1764"
    lines = [
        LogLine(
            number=400 + i,
            process=core,
            level="ERROR",
            time="11-21 03:37:42",
            text=f"AssertionError: Expected a cached item for mm_hash={h!r}",
        )
        for i, h in enumerate(hashes)
    ]
    return LogsData(
        file="engine.log",
        bytes_read=125_704,
        lines=644,
        last_by_process={core: LogLine(number=590, process=core, text=last)},
        matches={"cached-item-assertion": lines} if lines else {},
        match_counts={
            "cached-item-assertion": len(lines),
            "cache-drift": 0,
            "added-request": added,
        },
    )


def ghost_key(**facts: Any) -> ReproducerResult:
    found = {
        "cachetools": "7.1.4",
        "touch_inserts_missing_key": True,
        "eviction_ends": False,
        "eviction_ends_with_touch_fix": True,
        "eviction_ends_with_popitem_fix": True,
        "eviction_ends_with_both": True,
        "article_test_ends": True,
        "insert_after_article_test_ends": False,
    }
    return ReproducerResult(
        name="ghost_key.py", exit_code=0, seconds=0.3, facts=found | facts
    )


def gate() -> list[RequestRecord]:
    labels = [
        "image 1 (cold)",
        "image 1 again",
        "image 2",
        "text only",
        "image 1, streamed",
    ]
    return [request("gate", f"gate: {label}") for label in labels]


REFUSED = (
    '{"error":{"message":"Input length (2144) exceeds the maximum context '
    'length (2048)."}}'
)


def hang_run() -> Evidence:
    """ghost-key-eviction on vLLM 0.23.0, as it reproduces."""
    return Evidence(
        requests=[
            *gate(),
            request("trigger", "image X, too long", 400, error=REFUSED),
            request("trigger", "image X again, short", 500),
            *(request("trigger", f"fill {i}") for i in range(1, 11)),
            hung("fill 11"),
        ],
        probes=[
            probed(http(200, 200), "gate"),
            probed(metrics(finished=5), "gate"),
            probed(processes(user=0.4), "gate"),
            probed(stacks(thread(*POLLING, active=False)), "gate"),
            probed(metrics()),
            probed(http(200, 200)),
            probed(processes(user=97.0)),
            probed(looping()),
            probed(syscalls()),
            probed(
                InferenceData(
                    answered=False, status=None, seconds=13.1, deadline_s=13.0
                )
            ),
            probed(metrics()),
            probed(logs(GHOST)),
        ],
        reproducers=[ghost_key()],
        facts={"fills_until_hang": 11},
    )


def healthy_run() -> Evidence:
    """ghost-key-eviction on vLLM 0.24.0: every image answered, one of them after its
    eviction."""
    evidence = hang_run()
    evidence.requests[-1:] = [
        *(request("trigger", f"fill {i}") for i in range(11, 31)),
        request("trigger", "fill 1, again"),
        request("trigger", "after: a new image"),
    ]
    evidence.probes[4:] = [
        probed(metrics(finished=39)),
        probed(http(200, 200)),
        probed(processes(user=0.5)),
        probed(stacks(*[thread(*POLLING, active=False)] * 5)),
        probed(syscalls("blocked")),
        probed(InferenceData(answered=True, status=200, seconds=0.1, deadline_s=13.0)),
        probed(metrics(finished=40)),
        probed(logs(GHOST, added=40)),
    ]
    evidence.reproducers = [
        ghost_key(touch_inserts_missing_key=False, eviction_ends=True)
    ]
    evidence.facts = {
        "mm_cache_hits_before": 2,
        "mm_cache_hits_after": 2,
        "mm_cache_queries": 40,
    }
    return evidence


def desync_run() -> Evidence:
    """mm-cache-desync on vLLM 0.24.0, as it reproduces."""
    again = [
        "image X again, short",
        *(f"image X again, short ({i})" for i in (2, 3, 4)),
    ]
    return Evidence(
        requests=[
            *gate(),
            request("trigger", "image X, too long", 400, error=REFUSED),
            *(request("trigger", label, 500) for label in again),
            request("trigger", "control: another image"),
            request("trigger", "control: text only"),
        ],
        probes=[
            probed(http(200, 200), "gate"),
            probed(metrics(finished=5), "gate"),
            probed(http(200, 200)),
            probed(processes(user=0.5)),
            probed(logs(*[GHOST] * 4)),
        ],
        facts={"mm_cache_hits_before": 2, "mm_cache_hits_after": 3},
    )


def healing_run() -> Evidence:
    """The same on vLLM 0.32.0: EngineCore notices, and the image is answered the second
    time."""
    evidence = desync_run()
    for record in evidence.labelled("image X again, short")[1:]:
        record.status, record.error, record.completion_tokens = 200, "", 4
    line = LogLine(
        number=400,
        process="EngineCore pid=1764",
        level="WARNING",
        time="11-21 03:37:42",
        text="Multi-modal cache miss for request chatcmpl-1, likely P0/P1 cache drift: "
        f"mm_hashes=['{GHOST}']",
    )
    log = logs()
    log.matches, log.match_counts["cache-drift"] = {"cache-drift": [line]}, 1
    swap(evidence, log)
    return evidence


def judge(
    scenario: Scenario, evidence: Evidence, release: str = ""
) -> tuple[Outcome, dict[str, Truth], list[ConditionResult]]:
    """The verdict, as a run reaches it from evidence."""
    verdict = judge_run(scenario, evidence, run_facts(scenario, release))
    return (
        verdict.outcome,
        {r.id: r.truth for r in verdict.conditions},
        verdict.conditions,
    )


def run_facts(scenario: Scenario, release: str = "", *mitigations: str) -> RunFacts:
    fidelity = get_engine(scenario.engine).fidelity_on("cpu")
    return RunFacts(release or scenario.release, fidelity, frozenset(mitigations), 13.0)


def drop(
    evidence: Evidence,
    probe: str,
    reason: str = "ptrace is not permitted",
    phase: str = "check",
) -> None:
    """Make every result of ``probe`` in the check unavailable."""
    for result in evidence.probes:
        if result.probe == probe and result.phase == phase:
            result.status, result.reason = ProbeStatus.UNAVAILABLE, reason
            result.data = None


def swap(evidence: Evidence, *data: AnyProbeData, phase: str = "check") -> None:
    """Replace the check's results of that kind, in order; a single one replaces all."""
    found = [r for r in evidence.probes if r.probe == data[0].kind and r.phase == phase]
    for index, result in enumerate(found):
        result.data = data[min(index, len(data) - 1)]


def out_of_time(evidence: Evidence, probe: str) -> None:
    """The probe was cut off: what it has is partial."""
    for result in evidence.probes:
        if result.probe == probe and result.phase == "check":
            result.status, result.reason = ProbeStatus.TIMED_OUT, "no result in 20.0 s"
