"""What evidence says of the ghost key: the stacks, the installed class, the eviction
itself."""

from itertools import pairwise

from mmrepro.failure.signature.checks import calls, digest_in, same_digest
from mmrepro.scenario import (
    Check,
    Evidence,
    Finding,
    Logs,
    Measured,
    Reproducers,
    Requests,
    Truth,
    answered,
    precondition,
    vllm,
)
from mmrepro.scenario.more import StacksData, ThreadStack, trigger_ended
from mmrepro.traffic.evidence import Missing

FILLS = 30
"""Images sent to fill the cache; it holds about ten, so an eviction is certain."""

STREAM, STREAMED, STREAM_S = "a stream meanwhile", 150, 60.0
"""A request, its tokens, and how long they may take: in the hang up to half a
minute."""
THROUGHPUT = "throughput"
THROUGHPUT_LINES = {THROUGHPUT: r"Avg generation throughput: ([\d.]+) tokens/s"}
MEDIA = "media"
"""Fact of a run: the type of the content's parts that a trigger sent."""
GENERATED = "vllm:generation_tokens_total"
NEW = "after: a new image"
FIRST_AGAIN = "fill 1, again"
_REPRODUCER = "ghost_key.py"
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

_MIN_SAMPLES = 3


def key_in(thread: ThreadStack) -> str:
    """The key that ``popitem`` is about to evict, from py-spy's locals; "": not
    there."""
    for frame in thread.frames:
        local = {"popitem": "lru_key", "pop": "key"}.get(frame.name, "")
        if key := digest_in(frame.locals.get(local, "")):
            return key
    return ""


def keys(stacks: StacksData) -> list[str]:
    """One of each sample that shows it."""
    shown = [key_in(thread) for thread in stacks.threads(THREAD)]
    return [key for key in shown if key]


def in_the_loop(stacks: StacksData) -> Finding:
    """The core's thread stays in the loop of evictions, and takes keys from it."""
    threads = stacks.threads(THREAD)
    if len(threads) < _MIN_SAMPLES:
        text = f"{THREAD} in {len(threads)} of {len(stacks.samples)} samples"
        # Many samples of other threads alone show that this one is gone.
        absent = not threads and len(stacks.samples) >= _MIN_SAMPLES
        return Finding.of(False, text) if absent else Finding.unknown(text)

    inside = popping = with_gil = running = 0
    for thread in threads:
        if thread.active is False or not thread.within(*LOOP):
            continue
        inside += 1
        popping += thread.within("popitem", *LOOP)
        with_gil += bool(thread.owns_gil)
        running += bool(thread.active)
    text = (
        f"{inside} of {len(threads)} samples inside the loop, {popping} of them "
        f"in popitem, {with_gil} with the GIL"
    )
    if inside and not running:
        return Finding.unknown(f"{text}; whether it runs is not shown")
    return calls(text, "popitem", popping, inside, inside == len(threads))


def is_the_key(stacks: StacksData, logs: Logs) -> Finding:
    return same_digest(
        keys(stacks), vllm.missing_hashes(logs, (vllm.ASSERTION,)), "popitem evicts"
    )


def never_evicted(reproducers: Reproducers) -> Finding:
    inserts = reproducers.truth(_REPRODUCER, "touch_inserts_missing_key")
    ends = reproducers.truth(_REPRODUCER, "eviction_ends")
    text = (
        f"touch() of a missing key {'inserts' if inserts else 'does not insert'} it; "
        f"the eviction {_ends(ends)} "
        f"(cachetools {reproducers.facts(_REPRODUCER).get('cachetools')})"
    )
    return Finding.of(inserts and not ends, text)


def ends_it_alone(method: str) -> Check:
    """Of the fix's two parts: ``method`` as fixed, alone, lets the eviction end."""

    def alone(reproducers: Reproducers) -> Finding:
        if reproducers.truth(_REPRODUCER, "eviction_ends"):
            return Finding.unknown("nothing loops in this engine")
        ends = reproducers.truth(_REPRODUCER, f"eviction_ends_with_{method}_fix")
        return Finding.of(ends, f"with {method}() as fixed, alone, it {_ends(ends)}")

    return alone


def article_test_hangs(reproducers: Reproducers) -> Finding:
    """The article's unit test, as it stands there: it ends; the insert after its last
    one loops."""
    if reproducers.truth(_REPRODUCER, "eviction_ends"):
        return Finding.unknown("nothing loops in this engine")
    last = reproducers.truth(_REPRODUCER, "article_test_ends")
    more = reproducers.truth(_REPRODUCER, "insert_after_article_test_ends")
    text = (
        f"its last insert {_ends(last)}: it evicts real_key, which is older than the "
        f"ghost; the next one, which finds the ghost oldest, {_ends(more)}"
    )
    return Finding.of(not last, text if last else f"its last insert {_ends(last)}")


def _ends(ends: bool) -> str:
    return "ends" if ends else "never ends"


def hangs_one_at_a_time(requests: Requests, measured: Measured) -> Finding:
    fills = measured.number("fills_until_hang")
    sent = requests.within("trigger")
    pairs = pairwise(sent)
    if any(one.sent.mono + one.latency_s > two.sent.mono for one, two in pairs):
        return Finding.unknown("requests of the trigger overlap")
    return Finding.of(
        True, f"one request at a time hangs it {fills:g} images after the failed one"
    )


def served_meanwhile(requests: Requests) -> Finding:
    """Between the request that failed and the image that is not answered."""
    fills = requests.all("fill")
    answered = sum(one.answered for one in fills)
    if answered == len(fills):
        return Finding.unknown(f"all {answered} images were answered")
    return Finding.of(
        answered > 0, f"{answered} new images answered after the failed one"
    )


def throughput_ends(logs: Logs) -> Finding:
    """The API server's lines, which need no DEBUG level: some throughput, and none at
    last."""
    rates = [float(m[1]) for m in logs.search(THROUGHPUT, THROUGHPUT_LINES[THROUGHPUT])]
    if len(rates) < 2:
        return Finding.unknown(
            f"{len(rates)} lines of throughput: one comes in ten seconds"
        )
    observed = (
        f"tokens/s in the last lines: {', '.join(f'{value:g}' for value in rates[-4:])}"
    )
    return (
        Finding.of(rates[-1] == 0, observed)
        if any(rates)
        else Finding.unknown(observed)
    )


def streamed_on(requests: Requests, measured: Measured) -> Finding:
    """A stream went on after the eviction had begun that never ended.

    To its last token, for a second at least: what was ready by then may come a moment
    later. Or by the engine's own count."""
    hung = next((r for r in requests.all("fill") if not r.answered), None)
    if hung is None:
        return Finding.unknown("every image was answered")
    before, later = (
        measured.number(name) for name in ("generated_when_full", "generated_later")
    )
    for stream in requests.all(STREAM):
        begun = (
            stream.ttft_s is not None
            and stream.sent.mono + stream.ttft_s < hung.sent.mono
        )
        after = stream.sent.mono + stream.latency_s - hung.sent.mono
        if begun and after >= 1:
            text = (
                f"a stream ended {after:.1f} s after the image was sent that was never "
                f"answered: {stream.reply}; tokens generated since that was noticed: "
                f"{later - before:g}"
            )
            return Finding.of(stream.answered or later > before, text)
    return Finding.unknown("no stream was under way when an image was not answered")


def _again(measured: Measured) -> tuple[float, float]:
    """Hits before and after the first image of the fill was sent again."""
    return measured.number("mm_cache_hits_before"), measured.number(
        "mm_cache_hits_after"
    )


def sent_videos(evidence: Evidence) -> Finding:
    """What the trigger's requests had for pictures, by the part of their content that
    it was."""
    sent = str(evidence.facts.get(MEDIA, ""))
    return Finding.of(sent == "video_url", f"it sent {sent or 'image_url'}")


def keeps_all(measured: Measured, requests: Requests) -> Finding:
    """The cache holds the first image after all others: the small one holds about
    ten."""
    fills = [r for r in requests.all("fill") if r.answered]
    before, after = _again(measured)
    text = (
        f"{len(fills)} images sent, then the first again: hits {before:g} → {after:g}"
    )
    return Finding.of(len(fills) > FILLS and after > before, text)


def _evicted(evidence: Evidence) -> Finding:
    """Without an eviction, the absence of a hang means nothing.

    One that ended shows in a cache that no longer knows its first image; one that did
    not, in the stacks."""
    try:
        before, after = _again(Measured(evidence))
    except Missing:
        inside = in_the_loop(_stacks(evidence))
        return inside if inside.truth is Truth.MET else Finding.unknown(inside.observed)
    if before == 0:
        return Finding.unknown("no image was ever found in the multimodal cache")
    if not Requests(evidence).first(FIRST_AGAIN).answered:
        return Finding.unknown(
            f"{FIRST_AGAIN}: {Requests(evidence).first(FIRST_AGAIN).reply}"
        )
    if after > before:
        return Finding.of(False, f"image fill-1 is still cached after {FILLS} others")
    return Finding.of(True, "image fill-1 was evicted")


def _stacks(evidence: Evidence) -> StacksData:
    samples = [
        s for _, data in evidence.results(StacksData, "check") for s in data.samples
    ]
    return StacksData(samples=samples)


EVICTED = precondition(
    (
        "the multimodal cache evicts: it no longer knows an image, or the eviction "
        "does not end"
    ),
    _evicted,
    removed_by=(vllm.DISABLE_CACHE.name, vllm.MM_CACHE.name),
)
BROKEN_PROMISE = precondition(
    "EngineCore is promised image X and does not hold it: the request with it fails",
    vllm.missed_in_run,
    id="broken-promise",
    removed_by=(vllm.DISABLE_CACHE.name, vllm.MM_CACHE.name, vllm.REFUSAL.name),
)
WORKS_AFTER = (trigger_ended, answered("fill", NEW))
