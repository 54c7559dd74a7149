"""Whether a server stands still, and where."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrepro.base.processes import TICKS_PER_S
from mmrepro.play.readings import cpu_ticks, of_metrics
from mmrepro.probes.base import run_probe
from mmrepro.probes.data import Frame, StackSample, StacksData, ThreadStack
from mmrepro.probes.stacks import StacksProbe
from mmrepro.run.start import Started
from mmrepro.traffic import Traffic

COUNTERS = ("prompt_tokens", "generation_tokens", "finished")
KV_USE = re.compile(r"cache_usage|token_usage|used_tokens|cache_used")
"""vllm:kv_cache_usage_perc, sglang:token_usage, sglang:num_used_tokens."""
SAMPLES, INTERVAL_S, STACKS_S = 20, 0.02, 3.0
APART_S = 0.5
SCRAPE_S = 1.0
ASLEEP_PCT = 10.0
"""Of one core, all processes together: below it nobody is at work on the request."""
TURNING = 4
"""Innermost frames that may change in a loop that is never left."""
SHARE = 0.95
"""Of the samples that must agree on a frame: one of 20 may be torn."""


@dataclass(frozen=True)
class Stand:
    """Two readings, and stacks between them."""

    still: bool
    why: str
    threads: list[ThreadStack]


async def counters(server: Started, traffic: Traffic) -> dict[str, float]:
    """What the engine tells of its answers: tokens and requests, and how full the KV cache is, as
    some count an answer only once it is whole. Others may count what goes round in a loop."""
    metrics = of_metrics(await traffic.scrape(deadline_s=SCRAPE_S))
    counted = {name for short in COUNTERS for name in server.spec.engine.metrics.get(short, ())}
    return {
        name: value for name, value in metrics.items() if name in counted or KV_USE.search(name)
    }


async def stand(
    server: Started, traffic: Traffic, client: Callable[[], int], folder: Path
) -> Stand:
    """Look for as long as it takes to tell standing still from slow work.

    Still: nothing that the engine or the client counts moves, and either all of the engine's
    processes sleep, or the core's busiest thread does not leave the place where it is.
    """
    began, seen = time.monotonic(), client()
    pids = server.process.process_ids()
    before, ticks = await counters(server, traffic), cpu_ticks(pids)
    threads, samples = await stacks(server, folder)
    await asyncio.sleep(max(0.0, APART_S - (time.monotonic() - began)))
    used = (cpu_ticks(pids) - ticks) / TICKS_PER_S / (time.monotonic() - began) * 100
    after = await counters(server, traffic)
    if client() != seen or before != after:
        return Stand(False, "work goes on", threads)
    silent = "no counter moves" if after else "no counter is told"
    if used < ASLEEP_PCT:
        return Stand(True, f"{silent}, and its processes sleep", threads)
    busiest = threads[0] if threads and threads[0].active and threads[0].frames else None
    if busiest and stays(busiest, samples, server.spec.engine.idle_loops):
        place = busiest.frames[0].function
        return Stand(True, f"{silent}, and the core stays in {place}", threads)
    return Stand(False, f"{silent}, but the core moves", threads)


async def stacks(
    server: Started, folder: Path, samples: int = SAMPLES
) -> tuple[list[ThreadStack], list[StackSample]]:
    """The core's threads as they stand, busiest first, and the samples behind that."""
    pid = server.core_pid
    if pid is None:
        return [], []
    probe = StacksProbe([pid], samples=samples, interval_s=INTERVAL_S, locals=False)
    result = await asyncio.to_thread(
        run_probe, probe, folder, STACKS_S, phase="check", label=f"stand-{time.monotonic():.0f}"
    )
    data = result.data
    taken = [s for s in data.samples if s.threads] if isinstance(data, StacksData) else []
    return standing(taken), taken


def standing(samples: Sequence[StackSample]) -> list[ThreadStack]:
    """Each thread with the frames that it did not leave, busiest first.

    A loop that never ends is caught somewhere else in each sample: what they share is its place.
    """
    by_thread: dict[tuple[int | None, str], list[ThreadStack]] = {}
    for sample in samples:
        for thread in sample.threads:
            by_thread.setdefault((thread.tid, thread.name), []).append(thread)
    kept = [seen for seen in by_thread.values() if len(seen) >= SHARE * len(samples)]
    kept.sort(key=lambda seen: sum(2 * t.active + t.owns_gil for t in seen), reverse=True)
    return [
        seen[-1].model_copy(
            update={
                "frames": _shared(seen),
                "active": 2 * sum(t.active for t in seen) > len(seen),
                "owns_gil": any(t.owns_gil for t in seen),
            }
        )
        for seen in kept
    ]


def _shared(seen: Sequence[ThreadStack]) -> list[Frame]:
    """The frames, innermost first, that nearly all of the samples have from the outside in."""
    inward = [list(reversed(thread.frames)) for thread in seen if thread.frames]
    roots = Counter(frames[0].function for frames in inward)
    following = [f for f in inward if f[0].function == roots.most_common(1)[0][0]]  # else torn
    shared = []
    whole = len(following)
    for depth in range(max(map(len, following), default=0)):
        here = Counter((f[depth].function, f[depth].file) for f in following if len(f) > depth)
        if not here:
            break
        best, count = here.most_common(1)[0]
        if count < SHARE * whole:
            break
        following = [
            f for f in following if len(f) > depth and (f[depth].function, f[depth].file) == best
        ]
        shared.append(following[-1][depth])
    return list(reversed(shared))


def stays(thread: ThreadStack, samples: Sequence[StackSample], idle: Collection[str] = ()) -> bool:
    """Whether the thread never came far from where it stands; a function of ``idle`` is no place:
    it turns there for want of work."""
    if not thread.frames or thread.frames[0].name in idle:
        return False
    seen = [t for s in samples for t in s.threads if (t.tid, t.name) == (thread.tid, thread.name)]
    deepest = sorted(len(t.frames) for t in seen)[: max(1, round(SHARE * len(seen)))][-1]
    return len(thread.frames) >= deepest - TURNING
