"""An idle server's processes and counters at one moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil
from mmrepro.base import processes
from mmrepro.case.played import Reading
from mmrepro.engines import Engine
from mmrepro.probes.metrics import parse_metrics
from mmrepro.supervise import EngineProcess
from mmrepro.traffic import Traffic

IDLE_LIMIT_S = 2.0
IDLE_POLL_S = 0.1
SCRAPE_S = 2.0


def of_metrics(text: str) -> dict[str, float]:
    """Each metric, summed over its label sets; what is no number is left out."""
    sums: dict[str, float] = {}
    for sample in parse_metrics(text)[0]:
        if sample.value is not None:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def of_engine(metrics: Mapping[str, float], engine: Engine, name: str) -> float | None:
    """By short name (running, waiting …); None: the engine does not tell."""
    names = engine.metrics.get(name, ())
    return next((metrics[one] for one in names if one in metrics), None)


async def settled(traffic: Traffic, engine: Engine) -> dict[str, float]:
    """The metrics of an idle server, or of one that was not idle within IDLE_LIMIT_S: nothing runs
    and nothing waits, twice in a row."""
    end = time.monotonic() + IDLE_LIMIT_S
    calm = 0
    while True:
        metrics = of_metrics(await traffic.scrape(deadline_s=SCRAPE_S))
        busy = [of_engine(metrics, engine, name) for name in ("running", "waiting")]
        calm = 0 if any(busy) else calm + 1
        if calm == 2 or time.monotonic() > end:
            return metrics
        await asyncio.sleep(IDLE_POLL_S)


async def reading(traffic: Traffic, engine: Engine, process: EngineProcess) -> Reading:
    """Of the server once it is idle."""
    metrics = await settled(traffic, engine)
    return await asyncio.to_thread(of_processes, process.process_ids(), metrics)


def of_processes(pids: Collection[int], metrics: Mapping[str, float]) -> Reading:
    stats = [stat for pid in pids if (stat := processes.stat(pid)) is not None]
    shm = {entry for pid in pids for entry in processes.shared_memory(pid)}
    return Reading(
        mono=time.monotonic(),
        metrics=dict(metrics),
        threads=sum(stat.threads for stat in stats) if stats else None,
        files=_files(pids),
        rss_bytes=sum(stat.rss_bytes for stat in stats) if stats else None,
        shm={
            processes.shm_name(entry): size for entry in shm if (size := _size(entry)) is not None
        },
    )


def cpu_ticks(pids: Collection[int]) -> int:
    """User and system time of all of them so far."""
    stats = [stat for pid in pids if (stat := processes.stat(pid)) is not None]
    return sum(stat.user_ticks + stat.system_ticks for stat in stats)


def _files(pids: Collection[int]) -> int | None:
    """None: one of them may not be looked at."""
    try:
        return sum(psutil.Process(pid).num_fds() for pid in pids)
    except psutil.Error:
        return None


def _size(entry: str) -> int | None:
    try:
        return Path(entry).stat().st_size
    except OSError:
        return None
