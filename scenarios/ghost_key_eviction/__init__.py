"""vLLM: EngineCore spins for ever when the multimodal cache evicts, with /health green.

Starts from the desynchronised caches of ``mm-cache-desync``: the failed request leaves
a key in the receiver's LRU order that is not in the cache, and the first eviction never
ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mmrepro.scenario import (
    Drive,
    Evidence,
    FailureClass,
    LiveFacts,
    Logs,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    common,
    cure,
    issue,
    quote,
    upgrade,
    vllm,
)
from mmrepro.scenario.more import (
    Condition,
    Picture,
    StackSample,
    StacksData,
    ThreadStack,
    clip,
    guarded,
)
from mmrepro.scenarios.ghost_key_eviction import ghost, report

if TYPE_CHECKING:
    from mmrepro.scenario.more import KeyStack


class GhostKeyEviction(vllm.MmCacheScenario):
    """EngineCore hangs in multimodal cache eviction while /health stays 200.

    What: After a multimodal request was refused for its length and its image was sent
    again, the next eviction of EngineCore's multimodal cache never ends. One thread
    spins in user space and holds the GIL; /health and /v1/models answer 200, nothing
    runs, nothing waits, and no request is ever answered again.

    Why: `LRUCache.touch()` puts a key that is not in the cache into the LRU order: a
    ghost. The request that failed with 'Expected a cached item' has just touched one.
    When the cache is full, `popitem()` picks the oldest key, which is now the ghost;
    `pop()` finds nothing and returns None, so `currsize` does not shrink, and
    cachetools' `while currsize + size >
    maxsize: popitem()` never ends. The loop runs in the thread that receives requests,
    so none reaches the scheduler."""

    name = "ghost-key-eviction"
    release = "0.23.0"
    affected = ">=0.14.0,<0.24.0"
    failure_class, severity = FailureClass.SILENT_HANG, Severity.CRITICAL
    needs = ("images",)
    upstream = Upstream(UpstreamState.FIXED, vllm.LRU_FIX, "2026-11-24", "0.24.0")
    references = (
        vllm.MM_CACHE_ISSUE,
        vllm.LRU_FIX,
        issue(
            "vllm#47958",
            (
                "EngineCore process_input_sockets thread hangs indefinitely in mm "
                "cache eviction"
            ),
            "the same hang in production, found by a py-spy dump",
        ),
    )
    sources = (
        quote(
            "vllm/utils/cache.py",
            "LRUCache.touch",
            "a missing key gets a place in the LRU order",
            "except KeyError",
            "order[key] = None",
        ),
        quote(
            "vllm/utils/cache.py",
            "LRUCache.popitem",
            "the oldest key of the order is taken to be in the cache",
            "value = self.pop(",
        ),
        quote(
            "cachetools/__init__.py",
            "Cache.__setitem__",
            "the loop that never ends: popitem() removes nothing, so the size stays",
            "while",
            "self.popitem()",
        ),
        vllm.RECEIVER,
    )
    mitigations = (
        upgrade("0.24.0", "upgrade to 0.24.0, the first release with vllm#43595"),
        vllm.DISABLE_CACHE,
        cure(
            "patch",
            description="vllm#43595 applied at start: touch() ignores missing keys, "
            "popitem() drops ghosts",
            patch=report.PATCH,
        ),
    )
    log_patterns = vllm.MmCacheScenario.log_patterns | ghost.THROUGHPUT_LINES
    factors = report.FACTORS
    ablation_hypotheses = report.HYPOTHESES
    reproducers = ("ghost_key.py",)

    options = {
        "stream": "answers are streamed all the while, also when the eviction begins",
        "video": "videos in place of images, as in the article",
    }
    option_servers = {"video": """--limit-mm-per-prompt '{"image":4,"video":1}'"""}

    async def trigger(self, drive: Drive) -> None:
        x = _media(drive, "X", 777)
        drive.fact(ghost.MEDIA, str(x.part["type"]))
        await vllm.desynchronise(drive, x)
        if "stream" not in drive.options:
            await self.fill(drive)
            return
        begun, full = asyncio.Event(), asyncio.Event()
        streams = asyncio.ensure_future(self.stream(drive, begun, full))
        with suppress(TimeoutError):
            await asyncio.wait_for(begun.wait(), drive.deadline_s)
        await self.fill(drive)
        full.set()
        drive.fact("generated_when_full", await drive.metric(ghost.GENERATED))
        await streams
        drive.fact("generated_later", await drive.metric(ghost.GENERATED))

    async def stream(
        self, drive: Drive, begun: asyncio.Event, full: asyncio.Event
    ) -> None:
        """Short streams, one after the other, until the cache is full or one is not
        answered."""
        answered = True
        while answered and not full.is_set():
            sent = await drive.traffic.chat(
                ghost.STREAM,
                text="hello",
                max_tokens=ghost.STREAMED,
                deadline_s=ghost.STREAM_S,
                stream=True,
                extra={"ignore_eos": True},
                started=begun,
            )
            answered = sent.answered

    async def fill(self, drive: Drive) -> None:
        """Images, until one is not answered."""
        first = _media(drive, "fill-1", 1001)
        for i in range(1, ghost.FILLS + 1):
            image = first if i == 1 else _media(drive, f"fill-{i}", 1000 + i)
            if await drive.ask(f"fill {i}", image=image) is None:
                drive.fact("fills_until_hang", i)
                return
        # No hang. Was there an eviction at all? The first image must have left the
        # cache.
        hits = await drive.metric("vllm:mm_cache_hits_total")
        await drive.ask(ghost.FIRST_AGAIN, image=first)
        await drive.ask(ghost.NEW, image=_media(drive, "after", 9001))
        drive.fact("mm_cache_hits_before", hits)
        drive.fact(
            "mm_cache_hits_after", await drive.metric("vllm:mm_cache_hits_total")
        )
        drive.fact(
            "mm_cache_queries", await drive.metric("vllm:mm_cache_queries_total")
        )

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        return bool(ghost.keys(StacksData(samples=list(samples))))

    preconditions = (vllm.REFUSED, vllm.CACHE_ON, ghost.BROKEN_PROMISE, ghost.EVICTED)
    symptoms = (
        common.some_request_unanswered(),
        common.new_request_unanswered(live=common.not_answered(id="no-answer-later")),
        common.endpoints_green("/health and /v1/models answer 200 all the while"),
        common.nothing_queued(),
        common.added_not_scheduled(),
        common.no_progress(),
        common.core_burns_cpu(),
    )
    causes = (
        common.spins_in_user_space(),
        cause(
            "in every stack sample the thread process_input_sockets is inside the "
            "eviction loop: popitem ← __setitem__ ← __setitem__ ← get_and_update_item "
            "← get_and_update_features ← preprocess_add_request",
            ghost.in_the_loop,
            id="eviction-stack",
        ),
        cause(
            'EngineCore logged "Expected a cached item for mm_hash=…" before the hang',
            vllm.asserted_in_run,
            id="cached-item-assertion",
            live=cause(
                'EngineCore logged "Expected a cached item for mm_hash=…"',
                vllm.cached_item_assertion,
            ),
        ),
        cause(
            "the key that popitem() tries to evict is the mm_hash of that assertion",
            ghost.is_the_key,
            id="ghost-is-the-key",
        ),
        cause(
            (
                "the installed LRUCache, alone, never ends an eviction after touch() "
                "of a missing key"
            ),
            ghost.never_evicted,
            id="engine-code-loops",
        ),
    )
    # The others need the hang.
    lasting_causes = (
        "cached-item-assertion",
        "engine-code-loops",
    )
    works_after = ghost.WORKS_AFTER
    rows = report.ROWS
    claims = report.CLAIMS

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        exposed = Condition(
            "affected-release",
            "cause",
            (
                "the release is one of those whose LRU order takes in ghosts "
                f"({self.affected_range})"
            ),
            lambda _: self.exposure(facts),
            required=False,
        )
        return [*super().live_conditions(facts), exposed]

    def key_stack(self, evidence: Evidence) -> KeyStack | None:
        """Of those inside the loop the one that shows the most: ``popitem``, and its
        key."""
        from mmrepro.scenario.more import KeyStack

        samples: list[StackSample] = []
        for _, data in evidence.results(StacksData, "check"):
            samples += data.samples
        threads: list[tuple[int, ThreadStack]] = []
        for sample in samples:
            for thread in sample.threads:
                if thread.within(ghost.THREAD):
                    threads.append((sample.pid, thread))
        looping = [
            (pid, thread) for pid, thread in threads if thread.within(*ghost.LOOP)
        ]
        if not looping:
            return None

        def shows(entry: tuple[int, ThreadStack]) -> tuple[bool, bool]:
            return entry[1].within("popitem"), bool(ghost.key_in(entry[1]))

        pid, best = max(looping, key=shows)
        stacks = StacksData(samples=samples)
        key = guarded(lambda seen: ghost.is_the_key(stacks, Logs(seen)), evidence)
        return KeyStack.of(
            best,
            process=f"EngineCore (pid {pid})",
            seen=len(looping),
            samples=len(threads),
            note=key.observed,
        )


def _media(drive: Drive, name: str, seed: int) -> Picture:
    """An image, or as many pixels in two frames."""
    if "video" in drive.options:
        return clip(name, seed, drive.image_size)
    return drive.picture(name, seed)


SCENARIO = GhostKeyEviction()
