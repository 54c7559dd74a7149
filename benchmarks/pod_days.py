"""Many days of many pods in minutes: a watch against a fake clock, over what real engines
showed it.

    python benchmarks/pod_days.py --days 1000 --seed 1

Metrics and stacks were recorded from real engines (pod_days_record.py) and are replayed;
what could not be recorded here is made up and named ``made up``. The checker, its
judgement of stacks, the state machine and the pauses between checks are the program's
own; HTTP, /proc and the clock are replaced. Stretches in which a healthy server only
answers are skipped: the state machine is fed with what the checker says there."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from mmrepro.base.machine import Lateness
from mmrepro.engines import ENGINES
from mmrepro.failure.documents import NamedClass, TargetFacts
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.watch.checker import Checker
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.loop import CONFIRM_PAUSE_S, default_deadline
from mmrepro.live.watch.processes import CheckAnswer, RunningTime, WatchedProcesses
from mmrepro.probes import (
    Frame,
    InferenceData,
    MetricSample,
    MetricsData,
    Probe,
    ProbeResult,
    ProbeStatus,
    StacksData,
    run_probe,
)
from mmrepro.probes.base import RawSink
from mmrepro.probes.http import Fetched

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "tests" / "unit" / "pod_days", ROOT / "benchmarks" / "recordings")
DAY_S = 86400.0
INTERVAL_S = 10.0
FAILURES = 2
DEADLINE_S = default_deadline(INTERVAL_S, FAILURES)
READINGS = 6
"""Of each recorded mood."""
WITHIN_S = 30.0
"""A stall is to be told of within that time, since the first request that waits."""


# ------------------------------------------------------------------ recordings


@dataclass(frozen=True)
class Mood:
    """What a watch reads of a server while it is at something."""

    facts: TargetFacts
    metrics: tuple[MetricsData, ...]
    stacks: tuple[StacksData | None, ...]


@cache
def recorded(name: str) -> Mapping[str, Mood]:
    """The moods in one recording."""
    document = json.loads(gzip.decompress(recordings()[name].read_bytes()))
    moods = {}
    for mood, content in document["moods"].items():
        metrics, stacks = [], []
        for reading in content["readings"]:
            samples = [
                MetricSample(name=name, labels=labels, value=value)
                for name, labels, value in reading["metrics"]
            ]
            metrics.append(MetricsData(url="", samples=samples))
            raw = reading["stacks"]
            stacks.append(None if raw is None else StacksData.model_validate(raw))
        facts = TargetFacts.model_validate(content["facts"])
        moods[mood] = Mood(facts, tuple(metrics), tuple(stacks))
    return moods


@cache
def recordings() -> dict[str, Path]:
    """The file of each recording, by its name."""
    found = {}
    for folder in FOLDERS:
        for file in sorted(folder.glob("*.json.gz")):
            found[file.name.removesuffix(".json.gz")] = file
    return found


def standing_at(mood: Mood, file: str, *functions: str) -> Mood:
    """Made up: the same processes, whose engine is in these functions, innermost
    first."""
    frames = [Frame(function=name, file=file, line=1) for name in functions]
    stacks: list[StacksData | None] = []
    for data in mood.stacks:
        if data is None:
            stacks.append(None)
            continue
        samples = []
        for sample in data.samples:
            threads = [
                thread.model_copy(update={"frames": [*frames, *thread.frames[-2:]]})
                for thread in sample.threads
            ]
            samples.append(sample.model_copy(update={"threads": threads}))
        stacks.append(data.model_copy(update={"samples": samples}))
    return Mood(mood.facts, mood.metrics, tuple(stacks))


def without_metrics(mood: Mood) -> Mood:
    """Made up: the same server, started without metrics."""
    empty = tuple(data.model_copy(update={"samples": []}) for data in mood.metrics)
    return Mood(mood.facts, empty, mood.stacks)


@cache
def moods_of(recording: str, *, metrics: bool) -> Mapping[str, Mood]:
    """The moods of a server with or without metrics."""
    moods = recorded(recording)
    if metrics:
        return moods
    return {name: without_metrics(mood) for name, mood in moods.items()}


def asleep(mood: Mood) -> Mood:
    """Made up: the metrics with which vLLM says that it sleeps."""
    sign = MetricSample(
        name="vllm:engine_sleep_state", labels={"sleep_state": "awake"}, value=0.0
    )
    metrics = []
    for data in mood.metrics:
        others = [s for s in data.samples if s.name != sign.name]
        metrics.append(data.model_copy(update={"samples": [*others, sign]}))
    return Mood(mood.facts, tuple(metrics), mood.stacks)


# ------------------------------------------------------------------ a world


@dataclass
class World:
    """One server at one moment.

    Attributes:
        answer: what the small request gets: an HTTP status; 0: nothing in time; -1:
            nobody listens.
        own: whether its processes are on this machine.
        cached: a gateway's cache answers.
        endpoints: status and body of its endpoints.
        late: part of the time for which the watch waits for a processor.
        starved: whether the server does.
        jump_s: by which the clock goes on while a check waits.
        counters_move: whether metrics go on from reading to reading.
    """

    mood: Mood
    answer: int = 200
    own: bool = True
    cached: bool = False
    endpoints: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    late: float = 0.0
    starved: bool = False
    jump_s: float = 0.0
    counters_move: bool = True
    ended: bool = False


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FixedLateness(Lateness):
    def __init__(self, share: float) -> None:
        self._share = share

    def __enter__(self) -> FixedLateness:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @property
    def share(self) -> float:
        return self._share


class FixedRunning(RunningTime):
    def __init__(self, starved: bool) -> None:
        self._starved = starved

    def is_starved(self) -> bool:
        return self._starved

    def ran_s(self) -> float:
        return 0.0


class ReplayedStacks(Probe[StacksData]):
    """Gives recorded stacks as the probe that took them would."""

    name = "stacks"
    needs = "pid"

    def __init__(self, data: StacksData) -> None:
        self._data = data

    def collect(self, sink: RawSink, deadline: float) -> StacksData:
        return self._data


_JUDGED: dict[Any, tuple[CheckAnswer, bool, bool]] = {}
"""What a look says, whether the engine was in service then, and whether it computed."""
_TAKEN: dict[tuple[int, int], ProbeResult[StacksData]] = {}


def _taken(mood: Mood, reading: int) -> ProbeResult[StacksData] | None:
    """A recorded reading of stacks as a probe's result."""
    data = mood.stacks[reading]
    if data is None:
        return None
    key = id(mood), reading
    if key not in _TAKEN:
        with tempfile.TemporaryDirectory() as folder:
            probe = ReplayedStacks(data)
            _TAKEN[key] = run_probe(probe, Path(folder), 5.0, phase="check")
    return _TAKEN[key]


class ReplayedProcesses(WatchedProcesses):
    """The processes of a recorded server."""

    def __init__(self, world: Callable[[], World], scratch: Path) -> None:
        super().__init__("http://replayed:1", scratch)
        self._world = world
        self._reading = 0
        self._looks: tuple[int, ...] = ()

    def _found(self) -> ServerTarget:
        world = self._world()
        facts = world.mood.facts
        if not world.own:
            facts = facts.model_copy(
                update={"place": "remote", "root_pid": None, "processes": []}
            )
        target = ServerTarget(facts, ENGINES.get(facts.engine))
        self._target = target
        return target

    @property
    def listening_sockets(self) -> int:
        return 1

    def part_dead(self) -> str:
        return "a process of the engine has ended" if self._world().ended else ""

    def absent(self) -> CheckAnswer:
        if self._world().ended:
            return CheckOutcome.FAILED, "it has ended"
        return CheckOutcome.ABSENT, "nothing listens there"

    def memory(self) -> dict[tuple[int, int], tuple[str, int]]:
        return {}

    def _running(self, pids: Sequence[int]) -> RunningTime:
        return FixedRunning(self._world().starved)

    def answered(self) -> None:
        super().answered()
        self._looks = ()
        # Each silence begins with the first reading or the middle one. With any of them
        # three times as many windows of stacks would have to be judged.
        self._reading = 0 if self._reading >= READINGS // 2 else READINGS // 2

    def look(self, seconds: float) -> CheckAnswer:
        """The same stacks after the same ones are judged once."""
        world = self._world()
        self._reading = (self._reading + 1) % len(world.mood.stacks)
        result = _taken(world.mood, self._reading)
        if result is None:
            return super().look(seconds)
        self._looks = (*self._looks, id(result))[-12:]
        key = (world.starved, world.ended, self._looks)
        if key not in _JUDGED:
            answer = super().look(seconds)
            _JUDGED[key] = (answer, self.in_service, self.computes)
            return answer
        self._found()
        self._keep(result)
        answer, served, self.computes = _JUDGED[key]
        self.in_service = self.in_service or served
        return answer

    def _take_stacks(self, view: DiagnosisView, seconds: float) -> None:
        result = _taken(self._world().mood, self._reading)
        if result is not None:
            self._keep(result)


class ReplayedChecker(Checker):
    """Checks a world in place of a server."""

    def __init__(self, clock: Clock, world: World) -> None:
        super().__init__("http://replayed:1", DEADLINE_S, model="tiny", now=clock)
        self.clock = clock
        self.world = world
        self._reading = 0
        self._id = 0
        self._processes = ReplayedProcesses(
            lambda: self.world, Path(self._scratch.name)
        )

    def _measured(self) -> Lateness:
        return FixedLateness(self.world.late)

    def _look_who_is_connected(self) -> None:
        return

    def _run(self, probe: Probe[Any], seconds: float) -> ProbeResult[Any]:
        readings = self.world.mood.metrics
        if self.world.counters_move:
            self._reading += 1
        data = readings[self._reading % len(readings)]
        empty = not data.samples
        result: ProbeResult[Any] = ProbeResult(
            probe="metrics",
            phase="check",
            started=_moment(),
            seconds=0.01,
            status=ProbeStatus.UNAVAILABLE if empty else ProbeStatus.OK,
            data=None if empty else data,
        )
        self._window.add(result)
        return result

    def _classes(self) -> tuple[NamedClass, ...]:
        """They decide nothing of liveness."""
        return ()

    def _ranks(self) -> dict[str, str]:
        return {}

    def _small(self, path: str) -> Fetched:
        status, body = self.world.endpoints.get(path, (404, b""))
        return Fetched(status, body, 0.0)

    def _request(self) -> tuple[InferenceData | None, CheckAnswer]:
        world, seen = self.world, (CheckOutcome.SILENT, "")
        self.clock.now += world.jump_s
        if world.answer:
            self.clock.now += 0.05
            return self._answered(world), seen
        self._read_late()
        if world.own:
            seen = self._processes.look(DEADLINE_S * 0.7)
        self.clock.now += DEADLINE_S
        return _data(None, DEADLINE_S, "no complete answer"), seen

    def _answered(self, world: World) -> InferenceData:
        if world.answer < 0:
            return _data(None, 0.05, "ConnectError: Connection refused")
        if world.answer != 200:
            return _data(world.answer, 0.05, f"HTTP {world.answer}: no")
        self._id += 0 if world.cached else 1
        data = _data(200, 0.05, "")
        header = "age" if world.cached else ""
        return data.model_copy(
            update={
                "answered": not world.cached,
                "cached": header,
                "completion_id": f"chatcmpl-{self._id}",
                "created": int(self.clock.now),
            }
        )


def _data(status: int | None, seconds: float, error: str) -> InferenceData:
    return InferenceData(
        answered=False,
        status=status,
        seconds=seconds,
        deadline_s=DEADLINE_S,
        error=error,
    )


@cache
def _moment() -> Any:
    from mmrepro.base.records import Moment

    return Moment.now()


# ------------------------------------------------------------------ a pod


@dataclass
class Pod:
    """A watch beside one server."""

    kind: str
    checker: ReplayedChecker
    health: Health
    clock: Clock
    counts: Counter[str] = field(default_factory=Counter)
    restarts: list[str] = field(default_factory=list)

    def check(self, world: World, mood: str) -> bool:
        """One check and the pause after it; whether the server is live."""
        self.checker.world = world
        began = self.clock.now
        before = self.health.live
        check = self.checker.check()
        self.health.observe(check)
        self.counts[check.verdict.value] += 1
        if before and not self.health.live:
            self.restarts.append(f"{self.kind}, {mood}: {check.why}")
        pause = INTERVAL_S - (self.clock.now - began)
        self.clock.now += CONFIRM_PAUSE_S if self.health.confirming else max(0.0, pause)
        return self.health.live

    def stay(self, world: World, mood: str, seconds: float) -> None:
        """So long in one mood. Where all its readings were judged alike, twice over,
        the state machine is fed with that judgement for the rest."""
        until = self.clock.now + seconds
        alike = 0
        before = None
        while self.clock.now < until:
            self.check(world, mood)
            last = self.health.last
            verdict = last.verdict if last is not None else None
            alike = alike + 1 if verdict is before else 0
            before = verdict
            # Stacks are kept over several checks; of an answer nothing is.
            enough = 2 * READINGS if world.answer == 0 else 3
            if last is not None and alike >= enough:
                self._skip(last, mood, until)

    def _skip(self, last: Check, mood: str, until: float) -> None:
        """Feed the state machine with the like of the last check until then."""
        while self.clock.now < until:
            self.clock.now += last.seconds
            before = self.health.live
            self.health.observe(replace(last, at=self.clock.now))
            self.counts[last.verdict.value] += 1
            if before and not self.health.live:
                self.restarts.append(f"{self.kind}, {mood}: {last.why}")
            confirming = self.health.confirming
            pause = INTERVAL_S - last.seconds
            self.clock.now += CONFIRM_PAUSE_S if confirming else max(0.0, pause)


def pod(kind: str, world: World) -> Pod:
    clock = Clock()
    health = Health(failures=FAILURES, started=clock.now)
    return Pod(kind, ReplayedChecker(clock, world), health, clock)


# ------------------------------------------------------------------ moods of a day

Episode = tuple[str, World, float, float]
"""Its name, the world, and the seconds that it takes at least and at most."""


@cache
def episodes(recording: str, *, own: bool, metrics: bool = True) -> list[Episode]:
    """What happens to a server of this kind, none of it a reason for a restart."""
    kind, moods = recording, moods_of(recording, metrics=metrics)
    idle, decode, prefill = moods["idle"], moods["decode"], moods.get("prefill")
    step = _loop(idle)
    loads = standing_at(
        idle, "vllm/v1/worker/gpu_worker.py", "recv", "update_weights", *step
    )
    compiles = standing_at(
        idle, "torch/_inductor/async_compile.py", "wait", "result", *step
    )
    paused = {"/is_paused": (200, b'{"is_paused": true}')}
    paused["/ready"], paused["/server_info"] = (503, b""), (200, b"{}")
    common: list[Episode] = [
        ("no traffic", World(idle, own=own), 3600, 6 * 3600),
        ("busy decode, no answer in time", World(decode, 0, own), 30, 1800),
        ("admission refused 429", World(decode, 429, own), 30, 1800),
        ("drained 503", World(idle, 503, own), 30, 1800),
        ("a gateway answers 502", World(idle, 502, own), 10, 600),
        ("a gateway's cache answers", World(idle, 200, own, cached=True), 30, 3600),
        ("restarted by its supervisor", World(idle, -1, own), 20, 500),
        ("the watch's machine is short", World(idle, 0, own, late=0.6), 30, 900),
        ("the clock jumps", World(idle, 0, own, late=0.99, jump_s=7200), 5, 10),
        ("answers again", World(idle, 200, own), 600, 3600),
    ]
    if own:
        common += [
            ("made up: compiles", World(compiles, 0, counters_move=False), 60, 580),
            ("the server has no processor", World(idle, 0, starved=True), 30, 900),
        ]
    if own and kind.startswith("vllm"):
        taking = World(loads, 0, counters_move=False)
        common.append(("made up: takes weights", taking, 60, 580))
    if own and metrics and kind.startswith("vllm"):
        common.append(("made up: sleeps", World(asleep(idle), 0), 600, 6 * 3600))
    if "paused" in moods and own:
        held = World(moods["paused"], 0, endpoints=paused, counters_move=False)
        common.append(("paused", held, 60, 6 * 3600))
    if prefill is not None:
        # A long prompt counts nothing until its end, and behind a network that is all
        # that is seen of it: there prompts follow each other.
        filling = World(prefill, 0, own, counters_move=not own)
        common.append(("prefill of minutes", filling, 60, 580))
    return common


def _loop(mood: Mood) -> list[str]:
    """The functions at the bottom of an engine's stack."""
    for data in mood.stacks:
        for sample in data.samples if data is not None else ():
            for thread in sample.threads:
                return [frame.function for frame in thread.frames[-2:]]
    return []


@dataclass(frozen=True)
class Kind:
    """One kind of server.

    Attributes:
        recording: whose metrics and stacks it shows.
        own: whether its processes are seen.
        metrics: whether it has any.
        only: names of its episodes begin so; (): all.
    """

    name: str
    recording: str
    own: bool = True
    metrics: bool = True
    only: tuple[str, ...] = ()


def kinds() -> list[Kind]:
    """Kinds of servers, of the recordings that are there."""
    made: list[Kind] = []
    for name in recordings():
        if name.endswith("-hung"):
            continue
        made += [
            Kind(f"{name}, beside it", name),
            Kind(f"{name}, behind a network", name, own=False),
            Kind(f"{name}, without metrics", name, metrics=False),
            Kind(f"{name}, without traffic", name, only=("no traffic", "the clock")),
            Kind(f"{name}, overloaded", name, only=("busy", "admission", "prefill")),
            Kind(f"{name}, for training", name, only=("made up", "paused", "answers")),
            Kind(f"{name}, on a full node", name, only=("the watch", "the server")),
        ]
    return made


def day(kind: Kind, seed: int) -> Pod:
    """A day of a pod."""
    chance = random.Random(seed)
    moods = moods_of(kind.recording, metrics=kind.metrics)
    idle = World(moods["idle"], own=kind.own)
    made = pod(kind.name, idle)
    slow_start = World(moods["idle"], -1, kind.own)
    made.stay(slow_start, "starts", chance.uniform(20, 500))
    made.stay(idle, "answers", 60)
    happening = [
        episode
        for episode in episodes(kind.recording, own=kind.own, metrics=kind.metrics)
        if not kind.only or episode[0].startswith(kind.only)
    ]
    end = 1000.0 + DAY_S
    while made.clock.now < end:
        name, world, least, most = chance.choice(happening)
        made.stay(world, name, chance.uniform(least, most))
        made.stay(idle, "answers", chance.uniform(30, 1800))
    return made


# ------------------------------------------------------------------ stalls


def stall(name: str, seed: int) -> tuple[float, str]:
    """Seconds from the first request that waits until /live fails; what was told."""
    chance = random.Random(seed)
    mood = recorded(name)["hung"]
    base = name.removesuffix("-hung")
    before = recorded(base)["idle"] if base in recordings() else mood
    made = pod(name, World(before))
    if chance.random() < 0.8:
        made.stay(World(before), "answers", chance.uniform(60, 4000))
    hung = World(mood, 0, counters_move=False)
    waits_since = made.clock.now - chance.uniform(0, INTERVAL_S)
    while made.check(hung, "hung") and made.clock.now < waits_since + 600:
        pass
    return made.clock.now - waits_since, (made.restarts or ["never"])[-1]


# ------------------------------------------------------------------ the command


@contextlib.contextmanager
def _scratch() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="pod-days-") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def run(
    days: int, stalls: int, seed: int, most_s: float = float("inf")
) -> dict[str, Any]:
    """Simulate; the numbers of what came of it. After ``most_s`` seconds no further day
    begins."""
    all_kinds = kinds()
    checks: Counter[str] = Counter()
    restarts: list[str] = []
    began = time.monotonic()
    with _scratch():
        done = 0
        for number in range(days):
            if time.monotonic() - began > most_s:
                break
            done += 1
            made = day(all_kinds[number % len(all_kinds)], seed * 1_000_003 + number)
            made.checker.close()
            checks.update(made.counts)
            restarts += made.restarts
        hung = [name for name in recordings() if name.endswith("-hung")]
        times = []
        for number in range(stalls if hung else 0):
            times.append(stall(hung[number % len(hung)], seed * 999_983 + number)[0])
    return {
        "pod_days": done,
        "kinds": len(all_kinds),
        "checks": dict(sorted(checks.items())),
        "false_restarts": restarts,
        "stalls": len(times),
        "in_time": sum(seconds <= WITHIN_S for seconds in times),
        "slowest_s": round(max(times, default=0.0), 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--stalls", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    found = run(asked.days, asked.stalls, asked.seed, asked.seconds)
    print(json.dumps(found, indent=1))
    late = found["stalls"] and found["in_time"] < 0.99 * found["stalls"]
    return 1 if found["false_restarts"] or late else 0


if __name__ == "__main__":
    sys.exit(main())
