"""What evidence says of the ghost key: the stacks, the installed class, the eviction itself."""

from __future__ import annotations

from mmrepro.scenario import (
    Finding,
    Logs,
    Measured,
    Reproducers,
    RunFacts,
    StacksData,
    ThreadStack,
    answered,
    trigger_ended,
    vllm,
)
from mmrepro.signature.digests import digest_in, same_digest

FILLS = 30
"""Images sent to fill the cache; it holds about ten, so an eviction is certain."""

NEW = "after: a new image"
REPRODUCER = "ghost_key.py"
THREAD = "process_input_sockets"
LOOP = (
    "__setitem__",
    "__setitem__",
    "get_and_update_item",
    "get_and_update_features",
    "preprocess_add_request",
    THREAD,
)
"""The report's stack below ``popitem``, innermost first."""

MIN_SAMPLES = 3


def key_in(thread: ThreadStack) -> str:
    """The key that ``popitem`` is about to evict, from py-spy's locals; "": not there."""
    for frame in thread.frames:
        local = {"popitem": "lru_key", "pop": "key"}.get(frame.name, "")
        if key := digest_in(frame.locals.get(local, "")):
            return key
    return ""


def keys(stacks: StacksData) -> list[str]:
    """One of each sample that shows it."""
    return [key for thread in stacks.threads(THREAD) if (key := key_in(thread))]


def in_the_loop(stacks: StacksData) -> Finding:
    threads = stacks.threads(THREAD)
    if len(threads) < MIN_SAMPLES:
        text = f"{THREAD} in {len(threads)} of {len(stacks.samples)} samples"
        absent = not threads and len(stacks.samples) >= MIN_SAMPLES
        return Finding.of(False, text) if absent else Finding.unknown(text)
    inside = [t for t in threads if t.active and t.within(*LOOP)]
    popping = sum(t.within("popitem", *LOOP) for t in inside)
    text = (
        f"{len(inside)} of {len(threads)} samples inside the loop, {popping} of them in "
        f"popitem, {sum(t.owns_gil for t in inside)} with the GIL"
    )
    return Finding.of(len(inside) == len(threads) and popping > 0, text)


def is_the_key(stacks: StacksData, logs: Logs) -> Finding:
    return same_digest(keys(stacks), vllm.missing_hashes(logs, (vllm.ASSERTION,)), "popitem evicts")


def never_evicted(reproducers: Reproducers) -> Finding:
    inserts = reproducers.truth(REPRODUCER, "touch_inserts_missing_key")
    ends = reproducers.truth(REPRODUCER, "eviction_ends")
    text = (
        f"touch() of a missing key {'inserts' if inserts else 'does not insert'} it; "
        f"the eviction {'ends' if ends else 'never ends'} "
        f"(cachetools {reproducers.facts(REPRODUCER).get('cachetools')})"
    )
    return Finding.of(inserts and not ends, text)


def both_parts_needed(reproducers: Reproducers) -> Finding:
    """Of the fix: neither ``touch()`` nor ``popitem()`` as fixed ends the eviction alone."""
    if reproducers.truth(REPRODUCER, "eviction_ends"):
        return Finding.unknown("nothing loops in this engine")
    touch = reproducers.truth(REPRODUCER, "eviction_ends_with_touch_fix")
    popitem = reproducers.truth(REPRODUCER, "eviction_ends_with_popitem_fix")
    alone = [name for name, ends in (("touch()", touch), ("popitem()", popitem)) if ends]
    return Finding.of(not alone, f"alone ends the loop: {', '.join(alone) or 'neither part'}")


def hangs_one_at_a_time(measured: Measured) -> Finding:
    fills = measured.number("fills_until_hang")
    return Finding.of(True, f"one request at a time hangs it {fills:g} images after the failed one")


def has_the_cache(facts: RunFacts) -> Finding:
    off = vllm.DISABLE_CACHE.name in facts.mitigations or vllm.MM_CACHE.name in facts.flips
    return Finding.of(not off, f"the multimodal cache is {'off' if off else 'on'}")


def evicted(measured: Measured) -> Finding:
    """Without an eviction, the absence of a hang means nothing."""
    if measured.number("mm_cache_queries") == 0:
        return Finding.of(True, "the multimodal cache is off")
    if measured.number("mm_cache_hits_after") > measured.number("mm_cache_hits_before"):
        return Finding.unknown(f"image fill-1 is still cached after {FILLS} others: no eviction")
    return Finding.of(True, "image fill-1 was evicted")


WORKS_AFTER = (trigger_ended, answered("fill", NEW), evicted)
