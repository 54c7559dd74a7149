"""vLLM's ghost key, as minivllm has it: an eviction that never ends, behind a green /health."""

from collections.abc import Sequence

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Metrics,
    Requests,
    Severity,
    answered,
    cause,
    endpoints_green,
    precondition,
    symptom,
)
from mmrepro.scenario.minivllm import AFTER, MinivllmFault, admitted, told
from mmrepro.scenario.more import (
    StackSample,
    StacksData,
    checks,
    core_burns_cpu,
    in_log,
    not_answered,
    nothing_queued,
    tokens_stand_still,
)
from mmrepro.scenario.vllm import MM_CACHE_ISSUE
from mmrepro.signature.checks import digest_in, same_digest
from mmrepro.signature.loops import stays_in

TOO_LONG, AGAIN = "image X, too long", "image X again"
FILLS = ("fill 1", "fill 2", "fill 3", "fill 4", "fill 5")
MAKING_ROOM = ("put", "received", "<genexpr>", "add", "_take", "_loop")
"""The engine's thread where it makes room for an image, innermost first."""


def ghosts(stacks: StacksData) -> list[str]:
    """The digests that pop_oldest looks at, from py-spy's locals."""
    digests = map(digest_in, stacks.texts("digest", frame="pop_oldest"))
    return [digest for digest in digests if digest]


class GhostKeyLru(MinivllmFault):
    """The image cache's eviction never ends, while /health stays 200.

    What: After a request was refused for its length and its image was sent again, the next eviction
    never ends: the engine's thread spins, /health is green, nothing is answered.

    Why: `touch()` gives a missing key a place in the LRU order: a ghost. When it is the oldest,
    `pop_oldest()` removes nothing, and `put()` asks for room for ever.
    """

    name, variant = "borrowed-faults", "ghost-key-lru"
    failure_class, severity = FailureClass.SILENT_HANG, Severity.CRITICAL
    origin = "vllm#43941"
    real = "; see ghost-key-eviction"
    server = "--mm-cache-tokens 130"
    refused = (TOO_LONG,)
    references = (MM_CACHE_ISSUE,)
    log_patterns = {"cached-item-assertion": r"AssertionError: Expected a cached item for mm_hash="}
    key_log_patterns = ("cached-item-assertion",)

    async def trigger(self, drive: Drive) -> None:
        image = drive.picture("X", 777)
        await drive.ask(TOO_LONG, text="x" * (drive.max_model_len + 50), image=image)
        await drive.ask(AGAIN, image=image)
        for i, label in enumerate(FILLS, 1):
            if await drive.ask(label, image=drive.picture(f"fill-{i}", 1000 + i)) is None:
                return
        await drive.ask(AFTER)

    @precondition("the image was refused for its request's length, and the engine took it in later")
    def refused_then_taken(self, requests: Requests, logs: Logs) -> Finding:
        long, again = requests.first(TOO_LONG), requests.first(AGAIN)
        taken = any(sent is again for sent, _ in admitted(requests, logs))
        refused = long.status == 400 and "maximum context length" in long.error
        one = [i.sha256 for i in long.images] == [i.sha256 for i in again.images] != []
        said = f"{long.reply}; {'the same' if one else 'another'} image again: {again.reply}"
        return Finding.of(refused and one and taken, said)

    @precondition("room was made in the engine's image cache, for the refused image's place too")
    def eviction_reached(self, requests: Requests, metrics: Metrics) -> Finding:
        older = {image.sha256 for sent in requests.within("gate") for image in sent.images}
        evicted = told(metrics, "mm_cache_evictions_total")
        said = f"asked for room {evicted} times; {len(older)} images were there before"
        return Finding.of(evicted > len(older), said)

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        return bool(ghosts(StacksData(samples=list(samples))))

    symptoms = (
        symptom("an image is not answered", checks.unanswered, id="image-unanswered"),
        not_answered(),
        endpoints_green(),
        nothing_queued(),
        tokens_stand_still(),
        core_burns_cpu(),
    )
    causes = (
        in_log('the log holds "Expected a cached item for mm_hash=…"', "cached-item-assertion"),
    )
    lasting_causes = ("cached-item-assertion",)

    @cause("in every stack sample the engine's loop is inside ImageCache.put")
    def eviction_stack(self, stacks: StacksData) -> Finding:
        return stays_in(stacks, "_loop", MAKING_ROOM, "pop_oldest")

    @cause("the key that cannot be evicted is the mm_hash of that assertion")
    def ghost_is_the_key(self, stacks: StacksData, logs: Logs) -> Finding:
        named = {m[1] for m in logs.search("cached-item-assertion", r"mm_hash='([0-9a-f]{64})'")}
        return same_digest(ghosts(stacks), named, "pop_oldest looks at")

    works_after = (answered(AGAIN, *FILLS, AFTER),)
