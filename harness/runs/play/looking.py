"""What a server shows from outside: counters, stacks that stand still, tracebacks in
its log."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from mmrepro.base import processes
from mmrepro.base.processes import TICKS_PER_S
from mmrepro.engines import Engine
from mmrepro.engines.supervise import EngineProcess
from mmrepro.probes import (
    Frame,
    LineReader,
    LogLine,
    RaisedException,
    StackSample,
    StacksData,
    StacksProbe,
    ThreadStack,
    exceptions_in,
    parse_metrics,
    run_probe,
)
from mmrepro.runs.start import Started
from mmrepro.traffic import Traffic
from mmrepro.traffic.case import Reading
from mmrepro.traffic.evidence import RequestRecord

_IDLE_LIMIT_S = 2.0
_IDLE_POLL_S = 0.1
_IDLE_SCRAPE_S = 2.0


def of_metrics(text: str) -> dict[str, float]:
    """Each metric, summed over its label sets; what is no number is left out."""
    sums: dict[str, float] = {}
    for sample in parse_metrics(text)[0]:
        if sample.value is not None:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


async def _settled(traffic: Traffic, engine: Engine) -> dict[str, float]:
    """The metrics of an idle server, or of one that was not idle within _IDLE_LIMIT_S:
    nothing runs and nothing waits, twice in a row."""
    end = time.monotonic() + _IDLE_LIMIT_S
    calm = 0
    while True:
        metrics = of_metrics(await traffic.scrape(deadline_s=_IDLE_SCRAPE_S))
        names = [engine.metrics.get(short, ()) for short in ("running", "waiting")]
        busy = any(
            next((metrics[n] for n in some if n in metrics), None) for some in names
        )
        calm = 0 if busy else calm + 1
        if calm == 2 or time.monotonic() > end:
            return metrics
        await asyncio.sleep(_IDLE_POLL_S)


async def reading(traffic: Traffic, engine: Engine, process: EngineProcess) -> Reading:
    """Of the server once it is idle."""
    metrics = await _settled(traffic, engine)
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
            processes.shm_name(entry): size
            for entry in shm
            if (size := size_of(Path(entry))) is not None
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


def size_of(file: Path) -> int | None:
    """Bytes; None: it is not there."""
    try:
        return file.stat().st_size
    except OSError:
        return None


# ----------------------------------------------------------------- does it stand still?

_COUNTERS = ("prompt_tokens", "generation_tokens", "finished")
_KV_USE = re.compile(r"cache_usage|token_usage|used_tokens|cache_used")
"""vllm:kv_cache_usage_perc, sglang:token_usage, sglang:num_used_tokens."""
SAMPLES, INTERVAL_S, STACKS_S = 20, 0.02, 3.0
_APART_S = 0.5
_SCRAPE_S = 1.0
_ASLEEP_PCT = 10.0
"""Of one core, all processes together: below it nobody is at work on the request."""
_TURNING = 4
"""Innermost frames that may change in a loop that is never left."""
_SHARE = 0.95
"""Of the samples that must agree on a frame: one of 20 may be torn."""


@dataclass(frozen=True)
class _TwoReadings:
    """Two readings, and stacks between them."""

    still: bool
    why: str
    threads: list[ThreadStack]


async def counters(server: Started, traffic: Traffic) -> dict[str, float]:
    """What the engine tells of its answers: tokens and requests, and how full the KV
    cache is, as some count an answer only once it is whole. Others may count what goes
    round in a loop."""
    metrics = of_metrics(await traffic.scrape(deadline_s=_SCRAPE_S))
    counted = {
        name
        for short in _COUNTERS
        for name in server.spec.engine.metrics.get(short, ())
    }
    return {
        name: value
        for name, value in metrics.items()
        if name in counted or _KV_USE.search(name)
    }


async def stand(
    server: Started, traffic: Traffic, client: Callable[[], int], folder: Path
) -> _TwoReadings:
    """Look for as long as it takes to tell standing still from slow work.

    Still: nothing that the engine or the client counts moves, and either all of the
    engine's processes sleep, or the core's busiest thread does not leave the place
    where it is."""
    began, seen = time.monotonic(), client()
    pids = server.process.process_ids()
    before, ticks = await counters(server, traffic), cpu_ticks(pids)
    threads, samples = await stacks(server, folder)
    await asyncio.sleep(max(0.0, _APART_S - (time.monotonic() - began)))
    used = (cpu_ticks(pids) - ticks) / TICKS_PER_S / (time.monotonic() - began) * 100
    after = await counters(server, traffic)
    if client() != seen or before != after:
        return _TwoReadings(False, "work goes on", threads)
    silent = "no counter moves" if after else "no counter is told"
    if used < _ASLEEP_PCT:
        return _TwoReadings(True, f"{silent}, and its processes sleep", threads)
    busiest = (
        threads[0] if threads and threads[0].active and threads[0].frames else None
    )
    if busiest and stays(busiest, samples, server.spec.engine.idle_loops):
        place = busiest.frames[0].function
        return _TwoReadings(True, f"{silent}, and the core stays in {place}", threads)
    return _TwoReadings(False, f"{silent}, but the core moves", threads)


async def stacks(
    server: Started, folder: Path
) -> tuple[list[ThreadStack], list[StackSample]]:
    """The core's threads as they stand, busiest first, and the samples behind that."""
    pid = server.core_pid
    if pid is None:
        return [], []
    probe = StacksProbe([pid], samples=SAMPLES, interval_s=INTERVAL_S, locals=False)
    result = await asyncio.to_thread(
        run_probe,
        probe,
        folder,
        STACKS_S,
        phase="check",
        label=f"stand-{time.monotonic():.0f}",
    )
    data = result.data
    taken = (
        [s for s in data.samples if s.threads] if isinstance(data, StacksData) else []
    )
    return standing(taken), taken


def standing(samples: Sequence[StackSample]) -> list[ThreadStack]:
    """Each thread with the frames that it did not leave, busiest first.

    A loop that never ends is caught somewhere else in each sample: what they share is
    its place."""
    by_thread: dict[tuple[int | None, str], list[ThreadStack]] = {}
    for sample in samples:
        for thread in sample.threads:
            by_thread.setdefault((thread.tid, thread.name), []).append(thread)
    kept = [seen for seen in by_thread.values() if len(seen) >= _SHARE * len(samples)]
    kept.sort(
        key=lambda seen: sum(2 * bool(t.active) + bool(t.owns_gil) for t in seen),
        reverse=True,
    )
    return [
        seen[-1].model_copy(
            update={
                "frames": _shared(seen),
                "active": 2 * sum(bool(t.active) for t in seen) > len(seen),
                "owns_gil": any(t.owns_gil for t in seen),
            }
        )
        for seen in kept
    ]


def _shared(seen: Sequence[ThreadStack]) -> list[Frame]:
    """The frames, innermost first, that nearly all of the samples have from the outside
    in."""
    inward = [list(reversed(thread.frames)) for thread in seen if thread.frames]
    roots = Counter(frames[0].function for frames in inward)
    # Else torn.
    following = [f for f in inward if f[0].function == roots.most_common(1)[0][0]]
    shared = []
    whole = len(following)
    for depth in range(max(map(len, following), default=0)):
        here = Counter(
            (f[depth].function, f[depth].file) for f in following if len(f) > depth
        )
        if not here:
            break
        best, count = here.most_common(1)[0]
        if count < _SHARE * whole:
            break
        following = [
            f
            for f in following
            if len(f) > depth and (f[depth].function, f[depth].file) == best
        ]
        shared.append(following[-1][depth])
    return list(reversed(shared))


def stays(
    thread: ThreadStack, samples: Sequence[StackSample], idle: Collection[str] = ()
) -> bool:
    """Whether the thread never came far from where it stands; a function of ``idle`` is
    no place: it turns there for want of work."""
    if not thread.frames or thread.frames[0].name in idle:
        return False
    seen = [
        t
        for s in samples
        for t in s.threads
        if (t.tid, t.name) == (thread.tid, thread.name)
    ]
    deepest = sorted(len(t.frames) for t in seen)[: max(1, round(_SHARE * len(seen)))][
        -1
    ]
    return len(thread.frames) >= deepest - _TURNING


# --------------------------------------------------------------------------- tracebacks

_MAX_BYTES = 16 << 20
MAX_TRACEBACKS, MAX_FRAMES = 200, 60
ERROR_CHARS, MESSAGE_CHARS = 300, 60
OF_LEAVING = (
    "CancelledError",
    "ClientDisconnect",
    "KeyboardInterrupt",
    "BrokenPipeError",
)
"""What a server logs of a client that went away: no failure."""
_OF_DEATH = ("EngineDeadError",)
"""What the rest of an engine says when its core has died: an echo, whatever the cause
was."""
_WEB_SERVERS = ("/uvicorn/", "/starlette/", "/fastapi/")


@dataclass
class Traceback:
    """One of a log: the line that names the exception, and where it was raised."""

    error: str = ""
    frames: list[str] = field(default_factory=list)
    """Names of functions, innermost first."""
    files: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """Numbers of the lines in those files."""
    process: str = ""
    """What its lines begin with: "(EngineCore pid=7)"; "": nothing."""
    fatal: bool = False
    """Its process said just before that this ends the engine."""

    @property
    def message(self) -> str:
        """What the exception says, its beginning."""
        _, _, message = self.error.partition(":")
        return message[: MESSAGE_CHARS + 1].strip()

    def named_in(self, answers: Sequence[str]) -> bool:
        """Whether one of them carries what it says."""
        plain = (answer.replace('\\"', '"') for answer in answers)  # it is inside JSON
        return bool(self.message) and any(self.message in answer for answer in plain)

    def frames_of(self, engine: Engine) -> list[str]:
        """Its functions in the engine's own code, innermost first; of others, if it has
        none."""
        both = zip(self.frames, self.files, strict=True)
        own = [name for name, file in both if f"/{engine.name}/" in file]
        return own or self.frames

    def places_of(self, engine: Engine) -> list[str]:
        """The same with file and line: ``popitem (vllm/utils/cache.py:196)``."""
        places: list[str] = []
        own: list[str] = []
        for name, file, line in zip(self.frames, self.files, self.lines, strict=False):
            place = f"{name} ({short_file(file, engine)}:{line})"
            places.append(place)
            if f"/{engine.name}/" in file:
                own.append(place)
        return own or places

    @property
    def type(self) -> str:
        """The bare name of the exception."""
        return self.error.partition(":")[0].rpartition(".")[2]

    @property
    def in_request(self) -> bool:
        """Raised while the web server handled one request, and not by the engine on its
        own."""
        return any(web in file for file in self.files for web in _WEB_SERVERS)


def read_tracebacks(log: Path, start: int = 0, fatal: str = "") -> list[Traceback]:
    """Those of a log from byte ``start`` on, in order; [] where it cannot be read.
    ``fatal``: as for :func:`tracebacks`."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read(_MAX_BYTES)
    except OSError:
        return []
    return _tracebacks(LineReader(alone=True).take(data, last=True), fatal)


_END_BYTES = 256 << 10


def says_it_ends(log: Path, start: int, pattern: str) -> bool:
    """Whether the end of a log, from byte ``start`` on, holds an engine's own line of
    ``pattern``: that it ends its processes itself."""
    if not pattern:
        return False
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _END_BYTES))
            data = file.read(_END_BYTES)
    except OSError:
        return False
    lines = LineReader(alone=True).take(data, last=True)
    return any(re.search(pattern, line.own_words) for line in lines)


def tracebacks(lines: Iterable[str], fatal: str = "") -> list[Traceback]:
    """Of lines in which several processes may write in turn. ``fatal``: pattern of what
    an engine says before the traceback of what ends it; "": it says nothing."""
    data = "\n".join(lines).encode("utf-8", "replace")
    return _tracebacks(LineReader(alone=True).take(data, last=True), fatal)


def _tracebacks(lines: Sequence[LogLine], fatal: str) -> list[Traceback]:
    announced = _announced(lines, fatal)
    found = []
    for raised in exceptions_in(lines).raised:
        if raised.headed and not raised.within:
            found.append(_traceback(raised, announced))
    return found[:MAX_TRACEBACKS]


def short_file(file: str, engine: Engine) -> str:
    """A file from its package on, as stack samples name it."""
    for package in (f"/{engine.name}/", "/site-packages/"):
        _, found, rest = file.rpartition(package)
        if found:
            return f"{engine.name}/{rest}" if engine.name in package else rest
    return file


def _announced(lines: Sequence[LogLine], fatal: str) -> dict[str, list[int]]:
    """By process, the numbers of the lines that say that what follows is fatal."""
    says = re.compile(fatal or r"(?!)")
    announced: dict[str, list[int]] = {}
    for line in lines:
        if says.search(line.own_words):
            announced.setdefault(line.process, []).append(line.number)
    return announced


def _traceback(raised: RaisedException, announced: dict[str, list[int]]) -> Traceback:
    """One word is of the next traceback of its process alone."""
    words = announced.get(raised.process, [])
    before = [number for number in words if number <= raised.number]
    announced[raised.process] = words[len(before) :]
    first, _, _ = raised.message.partition("\n")
    error = f"{raised.kind}: {first}" if first else raised.kind
    known = [frame for frame in raised.frames if frame.file]
    innermost_first = known[::-1][:MAX_FRAMES]
    return Traceback(
        error=error.strip()[:ERROR_CHARS],
        frames=[frame.name for frame in innermost_first],
        files=[frame.file for frame in innermost_first],
        lines=[frame.line or 0 for frame in innermost_first],
        process=f"({raised.process})" if " pid=" in raised.process else "",
        fatal=bool(before),
    )


def failed(record: RequestRecord) -> bool:
    """Whether it got no proper answer: 500 or above, a broken connection, a stream
    without an end."""
    if record.left:
        return False
    return record.status is None or record.status >= 500 or record.cut_short


def telling(
    found: Sequence[Traceback], requests: Sequence[RequestRecord], core: str = ""
) -> list[Traceback]:
    """Those that are more than a refused request or a client that went away; first what
    ended the engine by its own word, then those whose message an answer of 500 or above
    carries, then those of the process ``core``, then those that no request of its own
    raised, last the echoes of a death."""
    refused = [
        r.error for r in requests if r.status is not None and 400 <= r.status < 500
    ]
    failed = [r.error for r in requests if r.status is None or r.status >= 500]
    left = [
        one for one in found if one.type not in OF_LEAVING and not one.named_in(refused)
    ]

    def rank(one: Traceback) -> tuple[bool, ...]:
        named = one.named_in(failed)
        return (
            one.type in _OF_DEATH,
            not one.fatal,
            not named,
            core not in one.process,
            one.in_request,
        )

    return sorted(left, key=rank)


def of_engine(found: Sequence[Traceback], engine: Engine) -> Traceback | None:
    """The first one that was in the engine's own code; else the first."""
    own = [
        one for one in found if any(f"/{engine.name}/" in file for file in one.files)
    ]
    return next(iter([*own, *found]), None)
