"""An idle server is back where it was: nothing runs or waits, and nothing is kept.

Running, waiting and the use of the KV cache are gauges; they count only of engines that set them at
each step (SGLang sets them now and then, and leaves them as they were while it is idle).

What grows once is no leak: pools of threads, caches and allocators fill with the first traffic.
Threads, files, shared memory and memory are therefore judged by blocks of equally many requests,
idle readings after each, and only what grows in every one of them counts, beyond what the block
itself may rightly leave: pictures are kept in caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from mmrepro.base.units import size
from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState, Reading
from mmrepro.engines import Engine
from mmrepro.incident.replay import FindingClass, Sighting
from mmrepro.oracle import buckets
from mmrepro.oracle.judged import Judged, sent_of, sighting

PROMPT_GAUGES = ("vllm", "minivllm")
"""Engines that set their gauges at each step, the last one included."""
KV_USE = {
    "vllm": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "minivllm": ("minivllm:kv_cache_usage_perc",),
}
"""Share of the KV cache that requests hold; cached prefixes are free blocks to both."""
KV_SLACK = 1e-6
LEAST_BLOCKS = 3
LEAST_BLOCKS_OF_MEMORY = 5
"""Allocators and logs make it rougher than a count."""
SHARE_OF_REQUESTS = 0.25
"""A leak that is worth a report takes a thread or a file in every fourth request at least: a pool
that is still filling adds fewer, one at a time."""
LEAST_STEP = 2
NO_BLOCKS = (
    f"Threads, files and memory were not judged: that needs equal blocks of requests, "
    f"{LEAST_BLOCKS} at least."
)
MIB = 1 << 20
PER_REQUEST = 32 << 10
"""Bytes: what a log, a counter's labels or a request's text may leave."""
PER_PIXEL = 96
"""Bytes: a picture in a cache, as three float32 channels twice over, its embedding, and its copy in
a second process."""


def quiescence(case: Case, played: Played, engine: Engine) -> Judged:
    """What the idle server still holds, and what grew with each block."""
    if played.state is not PlayState.ENDED:
        return Judged()
    if played.before is None or played.after is None:
        return Judged(unseen=["The idle server was not read before and after the traffic."])
    return Judged.of(
        [
            _gauges(played.before, played.after, engine),
            _kv_use(played.before, played.after, engine),
            _growth(case, played),
        ]
    )


def _gauges(before: Reading, after: Reading, engine: Engine) -> Judged:
    sightings, unseen = [], []
    for name in ("running", "waiting"):
        value = _gauge(after, engine.metrics.get(name, ()))
        if value is None:
            unseen.append(f"The server does not tell how many requests are {name}.")
        elif value and engine.name not in PROMPT_GAUGES:
            unseen.append(f"The server sets its count of {name} requests now and then only.")
        elif value:
            sightings.append(
                _sighting(name, f"{value:g} requests are {name} on a server that serves nobody")
            )
    return Judged(sightings=sightings, unseen=unseen)


def _kv_use(before: Reading, after: Reading, engine: Engine) -> Judged:
    names = KV_USE.get(engine.name, ())
    first, last = _gauge(before, names), _gauge(after, names)
    if first is None or last is None:
        return Judged(unseen=["The server does not tell how much of its KV cache is in use."])
    if last <= first + KV_SLACK:
        return Judged()
    said = f"{last:.2%} of the KV cache is in use on an idle server, {first:.2%} before the traffic"
    return Judged(sightings=[_sighting("kv-use", said)])


def _gauge(reading: Reading, names: Sequence[str]) -> float | None:
    return next((reading.metrics[name] for name in names if name in reading.metrics), None)


# ---------------------------------------------------------------------- growth over blocks


def _growth(case: Case, played: Played) -> Judged:
    blocks = played.blocks
    if len(blocks) < LEAST_BLOCKS:
        return Judged(unseen=[NO_BLOCKS])
    requests = len(sent_of(case, played)) / len(blocks)
    step = max(LEAST_STEP, SHARE_OF_REQUESTS * requests)
    sightings = []
    for name, people, read in _COUNTED:
        grown = _grown(blocks, read, [step] * (len(blocks) - 1))
        if grown is not None:
            said = f"{grown:.0f} more {people} with each block of {requests:.0f} requests"
            sightings.append(_sighting(name, said))
    grown = None
    if len(blocks) >= LEAST_BLOCKS_OF_MEMORY:
        grown = _grown(blocks, lambda r: r.rss_bytes, list(_allowed(case, played)))
    if grown is not None:
        said = f"{size(grown, 1)} more memory with each block of {requests:.0f} requests"
        sightings.append(_sighting("memory", said))
    return Judged(sightings=sightings)


_COUNTED: tuple[tuple[str, str, Callable[[Reading], float | None]], ...] = (
    ("threads", "threads", lambda reading: reading.threads),
    ("files", "open files", lambda reading: reading.files),
    ("shm", "files in /dev/shm", lambda reading: len(reading.shm)),
)


def grows(bucket: str) -> bool:
    """Whether the failure is one that only equal blocks of requests show."""
    kinds = (*(name for name, _, _ in _COUNTED), "memory")
    return bucket in {buckets.silent(FindingClass.RESIDUE, kind) for kind in kinds}


def _grown(
    blocks: Sequence[Reading],
    read: Callable[[Reading], float | None],
    least: Sequence[float],
) -> float | None:
    """The median step from block to block (Theil-Sen's slope is the median of all pairs'), if each
    step is beyond its ``least`` and all pairs agree; None: no such growth, or it was not read."""
    values = [value for reading in blocks if (value := read(reading)) is not None]
    if len(values) < len(blocks):
        return None
    steps = [later - earlier for earlier, later in pairwise(values)]
    if any(step < bound for step, bound in zip(steps, least, strict=True)):
        return None
    slopes = [
        (values[j] - values[i]) / (j - i)
        for i in range(len(values))
        for j in range(i + 1, len(values))
    ]
    slope = median(slopes)
    return slope if min(steps) >= slope / 2 else None


def _allowed(case: Case, played: Played) -> Iterator[float]:
    """Bytes by which memory may rightly grow in each block after the first."""
    sent = sent_of(case, played)
    seen: set[str] = set()
    begins = [float("-inf"), *(reading.mono for reading in played.blocks)]
    for number, (begin, end) in enumerate(pairwise(begins)):
        of_block = [one for one in sent if begin <= one.begin < end]
        new = {
            image.sha256: image.width * image.height
            for one in of_block
            for image in one.record.images
            if image.sha256 not in seen
        }
        seen |= new.keys()
        if number:
            yield MIB + PER_REQUEST * len(of_block) + PER_PIXEL * sum(new.values())


def _sighting(kind: str, said: str) -> Sighting:
    expected = "A server that serves nobody holds what it held before."
    return sighting(FindingClass.RESIDUE, kind, f"{said}.", expected)
