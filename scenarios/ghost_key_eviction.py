"""vLLM: EngineCore spins for ever when the multimodal cache evicts, with /health green.

Starts from the desynchronised caches of ``mm-cache-desync``: the failed request leaves a key in
the receiver's LRU order that is not in the cache, and the first eviction never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mmrepro import checks
from mmrepro.drive import Drive
from mmrepro.engines.vllm import VllmEngine
from mmrepro.evidence import Evidence
from mmrepro.incident import (
    ClaimResult,
    ClaimStatus,
    KeyFrame,
    KeyStack,
    Reference,
    StandIn,
    SymptomRow,
)
from mmrepro.probes.data import Frame, GpuData, StackSample, StacksData, ThreadStack
from mmrepro.scenario import Mitigation, RunFacts, Scenario, SourceRef
from mmrepro.scenarios.mm_cache_desync import (
    BASE_ARGS,
    DISABLE_CACHE,
    ISSUE,
    LOG_PATTERNS,
    RECEIVER_SOURCE,
    before_handler,
    cached_item_assertion,
    claim,
    desynchronise,
    missing_hashes,
    refused_for_length,
    same_answer_twice,
    short_hash,
    steady_state,
)
from mmrepro.signature import Condition, Finding, Outcome, Truth
from packaging.specifiers import SpecifierSet
from packaging.version import Version

FILLS = 30
"""Images sent to fill the cache; it holds about ten, so an eviction is certain."""

THREAD = "process_input_sockets"
PATH = (
    "__setitem__",
    "__setitem__",
    "get_and_update_item",
    "get_and_update_features",
    "preprocess_add_request",
    "process_input_sockets",
)
"""The report's stack below ``popitem``, innermost first."""

MIN_SAMPLES = 3
FIXED = Version("0.24.0")
METRICS = VllmEngine.metrics
ROLE = VllmEngine.core_role


def matches(frames: Sequence[Frame], path: Sequence[str]) -> bool:
    """Whether ``path`` (bare function names) occurs in order, without gaps, from some frame on."""
    names = [frame.function.rsplit(".", 1)[-1] for frame in frames]
    return any(
        tuple(names[i : i + len(path)]) == tuple(path) for i in range(len(names) - len(path) + 1)
    )


def input_threads(sample: StackSample) -> list[ThreadStack]:
    return [t for t in sample.threads if matches(t.frames, (THREAD,))]


def ghost_in(frames: Sequence[Frame]) -> str | None:
    """The key that ``popitem`` is about to evict, from py-spy's locals."""
    for frame in frames:
        name = frame.function.rsplit(".", 1)[-1]
        value = frame.locals.get({"popitem": "lru_key", "pop": "key"}.get(name, ""), "")
        key = value.strip("'\"")
        if len(key) >= 16:
            return key
    return None


class GhostKeyEviction(Scenario):
    name: ClassVar[str] = "ghost-key-eviction"
    title: ClassVar[str] = "EngineCore hangs in multimodal cache eviction while /health stays 200"
    summary: ClassVar[str] = (
        "After a multimodal request was refused for its length and its image was sent again, the "
        "next eviction of EngineCore's multimodal cache never ends. One thread spins in user "
        "space and holds the GIL; /health and /v1/models answer 200, nothing runs, nothing waits, "
        "and no request is ever answered again."
    )
    explanation: ClassVar[str] = (
        "`LRUCache.touch()` puts a key that is not in the cache into the LRU order: a ghost. The "
        "request that failed with 'Expected a cached item' has just touched one. When the cache "
        "is full, `popitem()` picks the oldest key, which is now the ghost; `pop()` finds nothing "
        "and returns None, so `currsize` does not shrink, and cachetools' "
        "`while currsize + size > maxsize: popitem()` never ends. The loop runs in the thread "
        "that receives requests, so none reaches the scheduler."
    )
    default_release: ClassVar[str] = "0.23.0"
    affected: ClassVar[SpecifierSet] = SpecifierSet(">=0.14.0,<0.24.0")
    server_args: ClassVar[tuple[str, ...]] = BASE_ARGS
    reproducers: ClassVar[tuple[str, ...]] = ("ghost_key.py",)
    log_patterns = LOG_PATTERNS
    key_log_patterns: ClassVar[tuple[str, ...]] = ("cached-item-assertion",)
    sources: ClassVar[tuple[SourceRef, ...]] = (
        SourceRef(
            file="vllm/utils/cache.py",
            qualname="LRUCache.touch",
            note="a missing key gets a place in the LRU order",
            highlight=("except KeyError", "order[key] = None"),
        ),
        SourceRef(
            file="vllm/utils/cache.py",
            qualname="LRUCache.popitem",
            note="the oldest key of the order is taken to be in the cache",
            highlight=("value = self.pop(",),
        ),
        SourceRef(
            file="cachetools/__init__.py",
            qualname="Cache.__setitem__",
            note="the loop that never ends: popitem() removes nothing, so the size stays",
            highlight=("while", "self.popitem()"),
        ),
        RECEIVER_SOURCE,
    )
    mitigations: ClassVar[tuple[Mitigation, ...]] = (
        Mitigation(
            name="release",
            description="upgrade to 0.24.0, the first release with vllm#43595",
            release="0.24.0",
        ),
        DISABLE_CACHE,
        Mitigation(
            name="patch",
            description="vllm#43595 applied at start: touch() ignores missing keys, popitem() "
            "drops ghosts",
            patch="ghost_key_patch",
            stand_in=StandIn(
                name="ghost_key_patch",
                replaces="vllm.utils.cache.LRUCache.touch and .popitem, by the fixed versions",
                why="the mitigation under test, as the report's author patched by hand",
            ),
        ),
    )
    references: ClassVar[tuple[Reference, ...]] = (
        ISSUE,
        Reference(
            id="vllm#43595",
            title="fix: prevent MM cache hang from stale LRU order keys",
            url="https://github.com/vllm-project/vllm/pull/43595",
            note="the fix, in 0.24.0",
        ),
        Reference(
            id="vllm#47958",
            title="EngineCore process_input_sockets thread hangs indefinitely in mm cache eviction",
            url="https://github.com/vllm-project/vllm/issues/47958",
            note="the same hang in production, found by a py-spy dump",
        ),
    )

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        return before_handler(release, mitigations) or super().expected(release, mitigations)

    async def gate(self, drive: Drive) -> None:
        await steady_state(drive)

    def gate_check(self, evidence: Evidence) -> Finding:
        answered = super().gate_check(evidence)
        return answered if answered.truth is not Truth.MET else same_answer_twice(evidence)

    async def trigger(self, drive: Drive) -> None:
        await desynchronise(drive, drive.picture("X", 777))
        first = drive.picture("fill-1", 1001)
        for i in range(1, FILLS + 1):
            picture = first if i == 1 else drive.picture(f"fill-{i}", 1000 + i)
            if await drive.unless_stuck(drive.chat(f"fill {i}", images=[picture])) is None:
                drive.fact("fills_until_hang", i)
                return
        # No hang. Was there an eviction at all? The first image must have left the cache.
        hits = await drive.metric("vllm:mm_cache_hits_total")
        await drive.unless_stuck(drive.chat("fill 1, again", images=[first]))
        await drive.unless_stuck(
            drive.chat("after: a new image", images=[drive.picture("after", 9001)])
        )
        drive.fact("mm_cache_hits_before", hits)
        drive.fact("mm_cache_hits_after", await drive.metric("vllm:mm_cache_hits_total"))
        drive.fact("mm_cache_queries", await drive.metric("vllm:mm_cache_queries_total"))

    def enough_stacks(self, sample: StackSample) -> bool:
        return any(ghost_in(t.frames) for t in input_threads(sample))

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "no-answer",
                "symptom",
                "a request is not answered within a deadline many times the usual latency",
                checks.unanswered,
            ),
            Condition(
                "no-answer-later",
                "symptom",
                "a new text-only request is not answered either",
                checks.probe_unanswered,
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200 all the while",
                checks.endpoints_green,
            ),
            Condition(
                "nothing-queued",
                "symptom",
                "num_requests_running and num_requests_waiting are 0",
                lambda e: checks.queue_empty(e, METRICS["running"], METRICS["waiting"]),
            ),
            Condition(
                "added-not-scheduled",
                "symptom",
                'the API server logged "Added request" for requests that never finished',
                lambda e: checks.added_but_unfinished(e, METRICS["finished"]),
            ),
            Condition(
                "no-progress",
                "symptom",
                "counters of finished requests and tokens stand still",
                lambda e: checks.no_progress(
                    e, {k: METRICS[k] for k in ("finished", "prompt_tokens", "generation_tokens")}
                ),
            ),
            Condition(
                "core-burns-cpu",
                "symptom",
                "EngineCore uses a whole core in user space, idle before",
                lambda e: checks.core_burns_cpu(e, ROLE),
            ),
            Condition(
                "user-space-spin",
                "cause",
                "EngineCore spins in user space instead of waiting in a system call",
                checks.spins_in_user_space,
            ),
            Condition(
                "eviction-stack",
                "cause",
                "in every stack sample the thread process_input_sockets is inside the eviction "
                "loop: popitem ← __setitem__ ← __setitem__ ← get_and_update_item ← "
                "get_and_update_features ← preprocess_add_request",
                self._eviction_stack,
            ),
            Condition(
                "cached-item-assertion",
                "cause",
                'EngineCore logged "Expected a cached item for mm_hash=…" before the hang',
                cached_item_assertion,
            ),
            Condition(
                "ghost-is-the-key",
                "cause",
                "the key that popitem() tries to evict is the mm_hash of that assertion",
                self._ghost_is_the_key,
            ),
            Condition(
                "engine-code-loops",
                "cause",
                "the installed LRUCache, alone, never ends an eviction after touch() of a "
                "missing key",
                self._code_loops,
            ),
        ]

    def healthy_after(self, evidence: Evidence) -> Finding:
        new = evidence.labelled("after: a new image")
        if not new:
            hung = [r for r in evidence.requests_in("trigger") if r.timed_out]
            if hung:
                return Finding.of(False, f"{hung[0].label} was not answered")
            return Finding.unknown("the trigger did not run to its end")
        if not new[0].answered:
            return Finding.of(False, f"a new image: {new[0].status} {new[0].error[:120]}")
        failed = [r for r in evidence.labelled("fill") if not r.answered]
        if failed:
            return Finding.of(
                False, f"{failed[0].label}: {failed[0].status} {failed[0].error[:120]}"
            )
        return self._evicted(evidence)

    def key_stack(self, evidence: Evidence) -> KeyStack | None:
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
            note=self._ghost_is_the_key(evidence).observed,
        )

    def symptom_rows(self, evidence: Evidence) -> list[SymptomRow]:
        gate = [r.latency_s for r in evidence.requests_in("gate") if r.answered]
        usual = f"{min(gate):.2f} to {max(gate):.2f} s" if gate else ""
        before = checks.core_processes(evidence, ROLE, "gate")
        gpu = next((d for _, d in evidence.results(GpuData, "check")), None)
        utilisation = ", ".join(f"{max(d.utilization_pct)} %" for d in gpu.devices) if gpu else ""
        queue = checks.queue_empty(evidence, METRICS["running"], METRICS["waiting"])
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
            ("running, waiting", "0, 0 when idle", queue, "0 and 0, with a request added", None),
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

    def claims(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
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
                "/v1/chat/completions does not answer in 15 s",
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
            ("gpu-idle", "GPU utilisation is 0 %, memory stays held", self._gpu(evidence), ""),
            (
                "stack",
                "py-spy: process_input_sockets, active, with the GIL, in popitem below the cache "
                "update",
                of_hang(self._eviction_stack(evidence)),
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
                of_hang(self._last_line(evidence)),
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
                self._code_loops(evidence),
                "the installed class alone, by reproducers/ghost_key.py",
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
                self._both_parts_needed(evidence),
                "vllm#43595",
            ),
            *self._fix_claims(evidence, facts),
        ]

    # ------------------------------------------------------------------ checks

    def _eviction_stack(self, evidence: Evidence) -> Finding:
        samples = [s for _, data in evidence.results(StacksData, "check") for s in data.samples]
        threads = [t for s in samples for t in input_threads(s)]
        raw = [n for r, _ in evidence.results(StacksData, "check") for n in r.raw][:3]
        if not threads and len(samples) >= MIN_SAMPLES:
            return Finding.of(False, f"no thread {THREAD} in {len(samples)} samples", *raw)
        if len(threads) < MIN_SAMPLES:
            return Finding.unknown(
                f"{len(threads)} usable samples; " + evidence.why_missing("stacks", "check"), *raw
            )
        inside = [t for t in threads if t.active and matches(t.frames, PATH)]
        popping = sum(matches(t.frames, ("popitem", *PATH)) for t in inside)
        text = (
            f"{len(inside)} of {len(threads)} samples inside the loop, {popping} of them in "
            f"popitem, {sum(t.owns_gil for t in inside)} with the GIL"
        )
        return Finding.of(len(inside) == len(threads) and popping > 0, text, *raw)

    def _ghost_is_the_key(self, evidence: Evidence) -> Finding:
        hashes = set(missing_hashes(evidence))
        samples = [s for _, data in evidence.results(StacksData, "check") for s in data.samples]
        keys = {k for s in samples for t in input_threads(s) if (k := ghost_in(t.frames))}
        if not keys:
            return Finding.unknown(f"no local of popitem could be read in {len(samples)} samples")
        if not hashes:
            return Finding.unknown("the log names no mm_hash to compare with")
        shown = ", ".join(short_hash(k) for k in sorted(keys))
        wanted = ", ".join(short_hash(h) for h in sorted(hashes))
        # py-spy cuts long values, so a prefix is compared.
        same = all(any(_same_key(k, h) for h in hashes) for k in keys)
        return Finding.of(same, f"popitem evicts {shown}; the assertion named {wanted}")

    def _code_loops(self, evidence: Evidence) -> Finding:
        result = evidence.reproducer("ghost_key.py")
        if result is None or result.exit_code != 0:
            return Finding.unknown(result.error if result else "the reproducer was not run")
        inserted = result.facts.get("touch_inserts_missing_key")
        ends = result.facts.get("eviction_ends")
        if not isinstance(inserted, bool) or not isinstance(ends, bool):
            return Finding.unknown("the reproducer did not say")
        text = (
            f"touch() of a missing key {'inserts' if inserted else 'does not insert'} it; "
            f"the eviction {'ends' if ends else 'never ends'} "
            f"(cachetools {result.facts.get('cachetools')})"
        )
        return Finding.of(inserted and not ends, text)

    def _both_parts_needed(self, evidence: Evidence) -> Finding:
        result = evidence.reproducer("ghost_key.py")
        if result is None or result.exit_code != 0:
            return Finding.unknown("the reproducer did not run")
        if result.facts.get("eviction_ends"):
            return Finding.unknown("nothing loops in this engine")
        one = result.facts.get("eviction_ends_with_touch_fix")
        two = result.facts.get("eviction_ends_with_popitem_fix")
        text = f"touch() alone ends the loop: {one}; popitem() alone ends it: {two}"
        return Finding.of(not (one or two), text.replace("True", "yes").replace("False", "no"))

    def _evicted(self, evidence: Evidence) -> Finding:
        """Without an eviction, the absence of a hang means nothing."""
        queries = evidence.facts.get("mm_cache_queries")
        before = evidence.facts.get("mm_cache_hits_before")
        after = evidence.facts.get("mm_cache_hits_after")
        if queries == 0:
            return Finding.of(True, f"{FILLS} images answered; the multimodal cache is off")
        if not isinstance(before, int | float) or not isinstance(after, int | float):
            return Finding.unknown("this release does not count hits: was there an eviction?")
        if after > before:
            return Finding.unknown(
                f"image fill-1 is still cached after {FILLS} others: no eviction"
            )
        return Finding.of(
            True, f"{FILLS} images answered; fill-1 was evicted; a new one is answered"
        )

    def _last_line(self, evidence: Evidence) -> Finding:
        from mmrepro.probes.data import LogsData

        for _, data in evidence.results(LogsData, "check"):
            for process, line in data.last_by_process.items():
                if ROLE in process:
                    return Finding.of("waiting for work" in line.text, f"{process}: {line.text}")
        return Finding.unknown("the log has no line of EngineCore")

    def _gpu(self, evidence: Evidence) -> Finding:
        for _, data in evidence.results(GpuData, "check"):
            busy = max((max(d.utilization_pct, default=0) for d in data.devices), default=0)
            return Finding.of(busy == 0, f"at most {busy} %")
        return Finding.unknown(evidence.why_missing("gpu", "check"))

    def _fix_claims(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
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
        survived = self.healthy_after(evidence)
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
            claim(
                "fixed-desync", desync, cured, "vllm#43595", note="see the scenario mm-cache-desync"
            ),
        ]


def _same_key(shown: str, full: str) -> bool:
    """Whether a possibly cut key is the full one."""
    bare = shown.rstrip(".…")
    return len(bare) >= 16 and full.startswith(bare)


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


SCENARIO = GhostKeyEviction()
