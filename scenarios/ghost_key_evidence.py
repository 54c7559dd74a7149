"""What evidence says of the ghost key: the checks behind the conditions of ghost-key-eviction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from mmrepro.engines.vllm import VllmEngine
from mmrepro.evidence import Evidence
from mmrepro.probes.data import Frame, GpuData, LogsData, StackSample, StacksData, ThreadStack
from mmrepro.scenarios.mm_cache_desync import missing_hashes, short_hash
from mmrepro.signature import Finding, Truth, checks

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
METRICS = VllmEngine.metrics
ROLE = VllmEngine.core_role
DIGEST = re.compile(r"['\"]([0-9a-f]{16,128})[.…]*['\"]?")
"""A digest as py-spy prints a local: quoted, and cut when it is long."""


def matches(frames: Sequence[Frame], path: Sequence[str]) -> bool:
    """Whether ``path`` (bare function names) occurs in order, without gaps, from some frame on."""
    names = [frame.function.rsplit(".", 1)[-1] for frame in frames]
    return any(
        tuple(names[i : i + len(path)]) == tuple(path) for i in range(len(names) - len(path) + 1)
    )


def input_threads(sample: StackSample) -> list[ThreadStack]:
    return [t for t in sample.threads if matches(t.frames, (THREAD,))]


def digest_in(value: str) -> str:
    """The digest that py-spy printed of a local; "" when it printed anything else.

    A sample that pauses nothing may read a local while it is replaced, and prints whatever lay
    there: another object, a number. That is no reading of the key.
    """
    found = DIGEST.fullmatch(value.strip())
    return found[1] if found else ""


def ghost_in(frames: Sequence[Frame]) -> str:
    """The key that ``popitem`` is about to evict, from py-spy's locals; "": not there."""
    for frame in frames:
        name = frame.function.rsplit(".", 1)[-1]
        local = {"popitem": "lru_key", "pop": "key"}.get(name, "")
        if key := digest_in(frame.locals.get(local, "")):
            return key
    return ""


def is_named(keys: Sequence[str], named: Collection[str]) -> Truth:
    """Whether ``keys``, one of each sample that read it, are digests of ``named``.

    Unknown where the samples disagree: one of them may be torn, or the eviction goes on.
    """
    fits = [any(digest.startswith(key) for digest in named) for key in keys]
    if not fits or not named or len(set(fits)) > 1:
        return Truth.UNKNOWN
    return Truth.MET if fits[0] else Truth.NOT_MET


def counted(keys: Sequence[str]) -> str:
    """``3 × 98803abf0caaa857…``, the most frequent first."""
    return ", ".join(f"{n} × {short_hash(key)}" for key, n in Counter(keys).most_common(5))


def eviction_stack(evidence: Evidence) -> Finding:
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


def ghost_is_the_key(evidence: Evidence) -> Finding:
    hashes = set(missing_hashes(evidence))
    samples = [s for _, data in evidence.results(StacksData, "check") for s in data.samples]
    keys = [k for s in samples for t in input_threads(s) if (k := ghost_in(t.frames))]
    if not keys:
        return Finding.unknown(f"no local of popitem could be read in {len(samples)} samples")
    if not hashes:
        return Finding.unknown("the log names no mm_hash to compare with")
    wanted = ", ".join(short_hash(h) for h in sorted(hashes))
    said = f"popitem evicts {counted(keys)}; the assertion named {wanted}"
    return Finding(is_named(keys, hashes), said, tuple(checks.log_files(evidence)))


def code_loops(evidence: Evidence) -> Finding:
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
    return Finding.of(inserted and not ends, text, "ghost_key.py.json")


def both_parts_needed(evidence: Evidence) -> Finding:
    result = evidence.reproducer("ghost_key.py")
    if result is None or result.exit_code != 0:
        return Finding.unknown("the reproducer did not run")
    if result.facts.get("eviction_ends"):
        return Finding.unknown("nothing loops in this engine")
    one = result.facts.get("eviction_ends_with_touch_fix")
    two = result.facts.get("eviction_ends_with_popitem_fix")
    text = f"touch() alone ends the loop: {one}; popitem() alone ends it: {two}"
    return Finding.of(not (one or two), text.replace("True", "yes").replace("False", "no"))


def evicted(evidence: Evidence) -> Finding:
    """Without an eviction, the absence of a hang means nothing."""
    queries = evidence.facts.get("mm_cache_queries")
    before = evidence.facts.get("mm_cache_hits_before")
    after = evidence.facts.get("mm_cache_hits_after")
    if queries == 0:
        return Finding.of(True, f"{FILLS} images answered; the multimodal cache is off")
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return Finding.unknown("this release does not count hits: was there an eviction?")
    if after > before:
        return Finding.unknown(f"image fill-1 is still cached after {FILLS} others: no eviction")
    return Finding.of(True, f"{FILLS} images answered; fill-1 was evicted; a new one is answered")


def last_line(evidence: Evidence) -> Finding:
    for _, data in evidence.results(LogsData, "check"):
        for process, line in data.last_by_process.items():
            if ROLE in process:
                return Finding.of("waiting for work" in line.text, f"{process}: {line.text}")
    return Finding.unknown("the log has no line of EngineCore")


def gpu(evidence: Evidence) -> Finding:
    for _, data in evidence.results(GpuData, "check"):
        busy = max((max(d.utilization_pct, default=0) for d in data.devices), default=0)
        return Finding.of(busy == 0, f"at most {busy} %")
    return Finding.unknown(evidence.why_missing("gpu", "check"))


def healthy_after(evidence: Evidence) -> Finding:
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
        return Finding.of(False, f"{failed[0].label}: {failed[0].status} {failed[0].error[:120]}")
    return evicted(evidence)
