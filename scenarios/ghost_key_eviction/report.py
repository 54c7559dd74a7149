"""The tables of a ghost-key-eviction incident: the symptoms, the statements of the report."""

from __future__ import annotations

from mmrepro.scenario import (
    Check,
    Claim,
    Engine,
    Evidence,
    Finding,
    GpuData,
    LogsData,
    Measured,
    RunFacts,
    Truth,
    answered,
    checks,
    claim,
    idle_cpu,
    row,
    usual_latency,
)
from mmrepro.scenario.vllm import (
    AGAIN,
    DISABLE_CACHE,
    LRU_FIX,
    MM_CACHE,
    MM_CACHE_ISSUE,
    image_fails,
    refused_for_length,
)
from mmrepro.scenarios.ghost_key_eviction.evidence import WORKS_AFTER, both_parts_needed


def idle_while_asked(evidence: Evidence, engine: Engine) -> Finding:
    """An empty queue is abnormal while a request waits for its answer, and normal otherwise."""
    queue = checks.queue_empty(evidence, engine.metrics["running"], engine.metrics["waiting"])
    if queue.truth is Truth.UNKNOWN:
        return queue
    hung = checks.unanswered(evidence).truth is Truth.MET
    return Finding.of((queue.truth is Truth.MET) == hung, queue.observed)


def gpu_idle(gpu: GpuData) -> Finding:
    busy = max((max(d.utilization_pct, default=0) for d in gpu.devices), default=0)
    return Finding.of(busy == 0, f"at most {busy} %")


def waits_for_work(log: LogsData, engine: Engine) -> Finding:
    for process, line in log.last_by_process.items():
        if engine.core_role in process:
            return Finding.of("waiting for work" in line.text, f"{process}: {line.text}")
    return Finding.unknown(f"the log has no line of {engine.core_role}")


def one_at_a_time_hangs(measured: Measured) -> Finding:
    fills = measured.number("fills_until_hang")
    text = f"one request at a time hangs it at image {fills:g} after the failed one"
    return Finding.of(True, text)


def cache_is_on(facts: RunFacts) -> Finding:
    off = DISABLE_CACHE.name in facts.mitigations or MM_CACHE.name in facts.flips
    return Finding.of(not off, "the cache is off" if off else "the cache is on")


def of_hang(name: str, text: str, by: str | Check, *, refuted: bool = False) -> Claim:
    """A statement of the report about the hang: only a run that hung tests it."""
    return claim(
        name,
        text,
        MM_CACHE_ISSUE,
        by=by,
        refuted=refuted,
        given="no-answer",
        otherwise="there was no hang in this run",
    )


ROWS = (
    row("process alive", checks.engine_alive, "yes", "yes", abnormal_if=False),
    row("/health, /v1/models", "endpoints-green", "200, 200", "200, 200", abnormal_if=False),
    row("/v1/chat/completions", "no-answer", usual_latency, "no answer in 15 s"),
    row("a new text-only request", "no-answer-later", usual_latency),
    row("running, waiting", idle_while_asked, "0, 0 when idle", "0 and 0, with a request added"),
    row("requests added, finished", "added-not-scheduled", "equal", "added, never scheduled"),
    row("EngineCore CPU", "core-burns-cpu", idle_cpu, "136 %"),
    row(
        "system calls of EngineCore", "user-space-spin", "blocked when idle", "8 futex calls in 3 s"
    ),
    row("GPU utilisation", gpu_idle, reported="0 %, memory held", abnormal_if=None),
)
CLAIMS = (
    of_hang(
        "alive-and-green",
        "the process lives, /health and /v1/models answer 200",
        "endpoints-green",
    ),
    of_hang(
        "no-answer", "/v1/chat/completions gets no answer (the report waited 15 s)", "no-answer"
    ),
    of_hang(
        "idle-metrics", "num_requests_running and num_requests_waiting are 0", "nothing-queued"
    ),
    of_hang(
        "added-request",
        'the API server logged "Added request" for the unanswered request',
        "added-not-scheduled",
    ),
    of_hang("cpu", "EngineCore burns CPU (136 %)", "core-burns-cpu"),
    claim("gpu-idle", "GPU utilisation is 0 %, memory stays held", MM_CACHE_ISSUE, by=gpu_idle),
    of_hang(
        "stack",
        "py-spy: process_input_sockets, active, with the GIL, in popitem below the cache update",
        "eviction-stack",
    ),
    of_hang(
        "user-space",
        "strace: pure user-space spinning (8 futex calls in 3 s)",
        "user-space-spin",
    ),
    of_hang("last-line", 'the last EngineCore log line is "waiting for work"', waits_for_work),
    of_hang(
        "assertion-before",
        "Expected a cached item for mm_hash stands in the log before the hang",
        "cached-item-assertion",
    ),
    claim(
        "step-1",
        "step 1: a too long request with image X is refused with 400",
        MM_CACHE_ISSUE,
        by=refused_for_length,
    ),
    claim("step-2", "step 2: image X in a short request gets 500", MM_CACHE_ISSUE, by=image_fails),
    of_hang(
        "cause",
        "touch() makes a ghost key that popitem() cannot remove, so eviction never ends",
        "engine-code-loops",
    ),
    of_hang(
        "at-will",
        "it is hard to trigger at will: days of uptime, high concurrency, luck",
        one_at_a_time_hangs,
        refuted=True,
    ),
    claim(
        "both-parts",
        "the fix needs both parts, in touch() and in popitem()",
        LRU_FIX,
        by=both_parts_needed,
    ),
    # "Fixed in 0.24.0" is two claims, and a run on an older release tests neither.
    claim(
        "fixed-hang",
        "0.24.0 fixes the hang",
        LRU_FIX,
        by=WORKS_AFTER,
        given=cache_is_on,
        releases=">=0.24.0",
    ),
    claim(
        "fixed-desync",
        "0.24.0 fixes the cause, the desynchronised caches",
        LRU_FIX,
        by=answered(AGAIN),
        given=cache_is_on,
        releases=">=0.24.0",
        note="see the scenario mm-cache-desync",
    ),
)
