"""The tables of a ghost-key-eviction incident: the stack, the symptoms, the report's claims."""

from __future__ import annotations

from mmrepro.evidence import Evidence
from mmrepro.incident import ClaimResult, ClaimStatus, KeyFrame, KeyStack, SymptomRow
from mmrepro.probes.data import GpuData, StackSample, StacksData, ThreadStack
from mmrepro.scenario import RunFacts
from mmrepro.scenarios.ghost_key_evidence import (
    METRICS,
    PATH,
    ROLE,
    both_parts_needed,
    code_loops,
    eviction_stack,
    ghost_in,
    ghost_is_the_key,
    gpu,
    healthy_after,
    input_threads,
    last_line,
    matches,
)
from mmrepro.scenarios.mm_cache_desync import cached_item_assertion, claim, refused_for_length
from mmrepro.signature import Finding, Truth, checks
from packaging.version import Version

FIXED = Version("0.24.0")


def key_stack(evidence: Evidence) -> KeyStack | None:
    best: tuple[int, StackSample, ThreadStack] | None = None
    seen = total = 0
    for _, data in evidence.results(StacksData, "check"):
        for sample in data.samples:
            threads = input_threads(sample)
            if not threads:
                continue
            total += 1
            thread = threads[0]
            in_loop = matches(thread.frames, PATH)
            seen += in_loop
            score = in_loop * 4 + matches(thread.frames, ("popitem",)) * 2
            score += ghost_in(thread.frames) is not None
            if in_loop and (best is None or score > best[0]):
                best = score, sample, thread
    if best is None:
        return None
    _, sample, thread = best
    return KeyStack(
        process=f"{ROLE} (pid {sample.pid})",
        thread=thread.name,
        active=thread.active,
        owns_gil=thread.owns_gil,
        frames=[
            KeyFrame(function=f.function, file=f.file, line=f.line, locals=f.locals)
            for f in thread.frames
        ],
        seen=seen,
        samples=total,
        note=ghost_is_the_key(evidence).observed,
    )


def symptom_rows(evidence: Evidence) -> list[SymptomRow]:
    gate = [r.latency_s for r in evidence.requests_in("gate") if r.answered]
    usual = f"{min(gate):.2f} to {max(gate):.2f} s" if gate else ""
    before = checks.core_processes(evidence, ROLE, "gate")
    gpu = next((d for _, d in evidence.results(GpuData, "check")), None)
    utilisation = ", ".join(f"{max(d.utilization_pct)} %" for d in gpu.devices) if gpu else ""
    queue = checks.queue_empty(evidence, METRICS["running"], METRICS["waiting"])
    # An empty queue is abnormal while a request waits for its answer, and normal otherwise.
    idle = checks.unanswered(evidence).truth is Truth.MET
    rows = [
        ("process alive", "yes", checks.engine_alive(evidence), "yes", False),
        (
            "/health, /v1/models",
            "200, 200",
            checks.endpoints_green(evidence),
            "200, 200",
            False,
        ),
        ("/v1/chat/completions", usual, checks.unanswered(evidence), "no answer in 15 s", True),
        ("a new text-only request", usual, checks.probe_unanswered(evidence), "", True),
        ("running, waiting", "0, 0 when idle", queue, "0 and 0, with a request added", idle),
        (
            "requests added, finished",
            "equal",
            checks.added_but_unfinished(evidence, METRICS["finished"]),
            "added, never scheduled",
            True,
        ),
        (
            "EngineCore CPU",
            f"{before[-1].cpu_pct:.0f} % when idle" if before else "",
            checks.core_burns_cpu(evidence, ROLE),
            "136 %",
            True,
        ),
        (
            "system calls of EngineCore",
            "blocked when idle",
            checks.spins_in_user_space(evidence),
            "8 futex calls in 3 s",
            True,
        ),
    ]
    table = [_row(*row) for row in rows]
    table.append(
        SymptomRow(
            check="GPU utilisation",
            healthy="",
            observed=utilisation or "not-tested: " + evidence.why_missing("gpu", "check"),
            abnormal=None,
            reported="0 %, memory held",
        )
    )
    return table


def claims(evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
    """The report's statements. Those about the hang are tested only by a run that hung."""
    hung = checks.unanswered(evidence).truth is Truth.MET

    def of_hang(finding: Finding) -> Finding:
        return finding if hung else Finding.unknown("there was no hang in this run")

    fills = evidence.facts.get("fills_until_hang")
    sequential = f"one request at a time hangs it at image {fills} after the failed one"
    queue = checks.queue_empty(evidence, METRICS["running"], METRICS["waiting"])
    limit = f"the deadline here is {facts.deadline_s:.1f} s, from the gate's latencies"
    again = evidence.labelled("image X again, short")
    failed = (
        Finding.of(again[0].status == 500, f"image X again: {again[0].status}")
        if again
        else Finding.unknown("image X was not sent again")
    )
    statements: list[tuple[str, str, Finding, str]] = [
        (
            "alive-and-green",
            "the process lives, /health and /v1/models answer 200",
            of_hang(checks.endpoints_green(evidence)),
            "",
        ),
        (
            "no-answer",
            "/v1/chat/completions gets no answer (the report waited 15 s)",
            of_hang(checks.unanswered(evidence)),
            limit if hung else "",
        ),
        (
            "idle-metrics",
            "num_requests_running and num_requests_waiting are 0",
            of_hang(queue),
            "",
        ),
        (
            "added-request",
            'the API server logged "Added request" for the unanswered request',
            of_hang(checks.added_but_unfinished(evidence, METRICS["finished"])),
            "",
        ),
        (
            "cpu",
            "EngineCore burns CPU (136 %)",
            of_hang(checks.core_burns_cpu(evidence, ROLE)),
            "",
        ),
        ("gpu-idle", "GPU utilisation is 0 %, memory stays held", gpu(evidence), ""),
        (
            "stack",
            "py-spy: process_input_sockets, active, with the GIL, in popitem below the cache "
            "update",
            of_hang(eviction_stack(evidence)),
            "",
        ),
        (
            "user-space",
            "strace: pure user-space spinning (8 futex calls in 3 s)",
            of_hang(checks.spins_in_user_space(evidence)),
            "",
        ),
        (
            "last-line",
            'the last EngineCore log line is "waiting for work"',
            of_hang(last_line(evidence)),
            "",
        ),
        (
            "assertion-before",
            "Expected a cached item for mm_hash stands in the log before the hang",
            of_hang(cached_item_assertion(evidence)),
            "",
        ),
        (
            "step-1",
            "step 1: a too long request with image X is refused with 400",
            refused_for_length(evidence),
            "",
        ),
        ("step-2", "step 2: image X in a short request gets 500", failed, ""),
        (
            "cause",
            "touch() makes a ghost key that popitem() cannot remove, so eviction never ends",
            of_hang(code_loops(evidence)),
            "the installed class alone, by reproducers/ghost_key.py" if hung else "",
        ),
        (
            "at-will",
            "it is hard to trigger at will: days of uptime, high concurrency, luck",
            of_hang(Finding.of(fills is None, sequential)),
            "",
        ),
    ]
    return [
        *(claim(name, text, finding, note=note) for name, text, finding, note in statements),
        claim(
            "both-parts",
            "the fix needs both parts, in touch() and in popitem()",
            both_parts_needed(evidence),
            "vllm#43595",
        ),
        *fix_claims(evidence, facts),
    ]


def fix_claims(evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
    """ "Fixed in 0.24.0" is two claims, and a run on an older release tests neither."""
    hang, desync = "0.24.0 fixes the hang", "0.24.0 fixes the cause, the desynchronised caches"
    if facts.version < FIXED or "disable-mm-cache" in facts.mitigations:
        how = "mmrepro run ghost-key-eviction --release 0.24.0"
        return [
            ClaimResult(
                id=name,
                text=text,
                source="vllm#43595",
                status=ClaimStatus.NOT_TESTED,
                observed=f"this run is of {facts.release}; to test: {how}",
            )
            for name, text in (("fixed-hang", hang), ("fixed-desync", desync))
        ]
    hung = checks.unanswered(evidence)
    survived = healthy_after(evidence)
    fixed = (
        hung
        if hung.truth is Truth.UNKNOWN
        else Finding.of(
            hung.truth is Truth.NOT_MET and survived.truth is Truth.MET, survived.observed
        )
    )
    again = evidence.labelled("image X again, short")
    cured = (
        Finding.of(
            again[0].answered,
            f"on {facts.release} image X still gets {again[0].status} after its refusal",
        )
        if again
        else Finding.unknown("image X was not sent again")
    )
    return [
        claim("fixed-hang", hang, fixed, "vllm#43595"),
        claim("fixed-desync", desync, cured, "vllm#43595", note="see the scenario mm-cache-desync"),
    ]


def _row(
    check: str, healthy: str, finding: Finding, reported: str, abnormal_if: bool | None
) -> SymptomRow:
    """A row whose value is a finding; ``abnormal_if`` says whether "met" is the abnormal case."""
    abnormal: bool | None = None
    if finding.truth is not Truth.UNKNOWN and abnormal_if is not None:
        abnormal = (finding.truth is Truth.MET) == abnormal_if
    return SymptomRow(
        check=check,
        healthy=healthy,
        observed=finding.observed,
        abnormal=abnormal,
        reported=reported,
    )
