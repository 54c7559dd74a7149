"""Classes of failure that a watch names: by its checks, by memory over time, by a
diagnosis."""

import random
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from made_up import at
from mmrepro.failure.documents.cause import Certainty
from mmrepro.failure.documents.diagnosis import (
    CLASS_WORDS,
    LiveClass,
    NamedClass,
    TargetFacts,
    TargetProcess,
)
from mmrepro.live.watch.checker import Window
from mmrepro.live.watch.health import Check, CheckOutcome, Health
from mmrepro.live.watch.loop import ServerWatch, WatchDiagnosis
from mmrepro.live.watch.options import WatchCommand
from mmrepro.live.watch.processes import MIB, SETTLE_S, Growth, caches_bytes
from mmrepro.live.watch.server import CERTAINTIES, WatchServer, state
from mmrepro.probes.base import ProbeStatus
from mmrepro.probes.data import (
    ConnectionsData,
    InferenceData,
    MetricSample,
    MetricsData,
    ProbeResult,
)
from mmrepro.traffic.evidence import Evidence

F, C = LiveClass, Certainty
FACTS = TargetFacts(
    url="http://127.0.0.1:8000",
    place="local",
    port=8000,
    listening=True,
    root_pid=1,
    engine="vllm",
    core_role="EngineCore",
    processes=[
        TargetProcess(pid=2, ppid=1, role="EngineCore", name="EngineCore", state="S")
    ],
)

# ---------------------------------------------------------------- checks


SERVED = WatchCommand(http="9400")


def read(
    seconds: float, running: float, tokens: float, clients: int
) -> list[ProbeResult]:  # type: ignore[type-arg]
    values = {"running": running, "waiting": 0.0}
    samples = [
        MetricSample(name=f"vllm:num_requests_{n}", labels={}, value=v)
        for n, v in values.items()
    ]
    samples += [
        MetricSample(name=f"vllm:{n}_tokens_total", labels={}, value=tokens)
        for n in ("prompt", "generation")
    ]
    data = (
        MetricsData(url="x", samples=samples),
        ConnectionsData(port=8000, clients=clients),
    )
    return [result(one, seconds) for one in data]


def result(data: object, seconds: float) -> ProbeResult:  # type: ignore[type-arg]
    return ProbeResult(
        probe="x",
        phase="check",
        status=ProbeStatus.OK,
        started=at(seconds),
        seconds=0.1,
        data=data,
    )


def asked(seconds: float, answered: bool = True) -> ProbeResult:  # type: ignore[type-arg]
    took = 0.1 if answered else 4.5
    data = InferenceData(
        answered=answered,
        status=200 if answered else None,
        seconds=took,
        deadline_s=4.5,
    )
    return result(data, seconds)


def named(window: Window, **more: float) -> list[tuple[LiveClass, Certainty]]:
    return [
        (one.name, one.certainty) for one in window.classes(FACTS, Evidence(), **more)
    ]


def checked(
    window: Window, seconds: float, *, running: float, tokens: float, clients: int
) -> None:
    window.begin()
    for one in (*read(seconds, running, tokens, clients), asked(seconds + 0.2)):
        window.add(one)


def test_work_for_nobody_is_seen_over_several_checks() -> None:
    window = Window()
    checked(window, 0, running=1, tokens=0, clients=0)
    assert named(window) == []
    checked(window, 10, running=1, tokens=400, clients=0)
    assert named(window) == [(F.WORK_WITHOUT_CLIENTS, C.LIKELY)]
    checked(window, 20, running=1, tokens=800, clients=1)
    assert named(window) == []


def test_a_loaded_and_an_idle_server_are_no_failures() -> None:
    for running, clients in ((4, 4), (0, 0), (0, 3)):
        window = Window()
        for n in range(5):
            checked(
                window,
                10 * n,
                running=running,
                tokens=n * 400.0 * (running > 0),
                clients=clients,
            )
            assert named(window) == []


def silent(window: Window, seconds: float, tokens: float, running: float = 1) -> None:
    window.begin()
    for one in (
        *read(seconds, running, tokens, 1),
        asked(seconds + 0.2, answered=False),
    ):
        window.add(one)
    window.add(read(seconds + 4.8, running, tokens, 1)[0])


def test_what_was_counted_before_an_answer_is_none_of_the_silence_after_it() -> None:
    """And without stacks a standstill is possible only, which a watch does not tell."""
    window = Window()
    checked(window, 0, running=1, tokens=0, clients=1)
    silent(window, 10, tokens=400)
    assert named(window) == []
    assert all(not c or len(c) == 4 for c in window._checks)


# ---------------------------------------------------------------- memory

PID = (2, 77)
HOUR = 3600


def course(
    mib: list[float],
    *,
    hours: float = 3.0,
    requests: float = 4000.0,
    growth: Growth | None = None,
) -> Growth:
    """Resident memory, evenly over that time, from when the process has settled."""
    made = growth or Growth()
    made.observe(0.0, 0.0, {PID: ("EngineCore", 0)})
    for n, size in enumerate(mib):
        part = n / (len(mib) - 1)
        moment = SETTLE_S + part * hours * HOUR
        made.observe(moment, part * requests, {PID: ("EngineCore", int(size * MIB))})
    return made


LEAK = [2000 + 10.0 * n for n in range(101)]
NOISE = random.Random(4)


def test_memory_that_grows_all_the_time_is_told_with_its_slope() -> None:
    found = course(LEAK).named()
    assert found is not None
    assert (found.name, found.certainty) == (F.MEMORY_GROWS, C.LIKELY)
    (told,) = found.why
    grew = "EngineCore (pid 2) grew by 755 MiB over 3020 requests in 2 h 15 min"
    assert told == f"{grew}: 256 KiB a request"
    short = course(LEAK, hours=1.0).named()
    assert short is not None
    assert short.certainty is C.POSSIBLE


NO_LEAK = {
    "steady": [2000.0 + NOISE.uniform(-20, 20) for _ in range(100)],
    "a cache that fills": [2000 + min(n, 40) * 25.0 for n in range(101)],
    "it flattens": [2000 + 1000 * (1 - 0.95**n) for n in range(101)],
    "a step": [2000.0] * 50 + [3000.0] * 50,
    "it shrinks": LEAK[::-1],
    "a saw": [2000 + 900.0 * (n % 25) / 25 for n in range(101)],
    "little": [2000 + 2.0 * n for n in range(101)],
}


@pytest.mark.parametrize("case", NO_LEAK)
def test_memory_that_does_not_go_on_growing_is_not_told(case: str) -> None:
    assert course(NO_LEAK[case]).named() is None


def test_too_short_too_few_requests_or_within_the_caches() -> None:
    assert course(LEAK, hours=0.4).named() is None
    assert course(LEAK, requests=100).named() is None
    assert course(LEAK).named(caches_bytes=4 << 30) is None
    assert course(LEAK).named(caches_bytes=700 << 20) is not None


def test_another_process_begins_anew() -> None:
    growth = course(LEAK[:60], hours=1.5)
    growth.observe(9000.0, 4000.0, {(3, 88): ("EngineCore", 9 << 30)})
    assert growth.named() is None


def test_counters_that_fall_begin_anew_and_samples_are_bounded() -> None:
    growth = course(LEAK * 8)
    (one,) = growth._courses.values()
    assert len(one.samples) <= 256
    assert all(a[0] < b[0] for a, b in pairwise(one.samples))
    growth.observe(9e6, 0.0, {PID: ("EngineCore", 1)})
    assert len(one.samples) == 1


def test_what_the_caches_may_take_is_in_the_command() -> None:
    assert caches_bytes(["vllm", "serve"]) == 4 << 30
    assert caches_bytes(["serve", "--mm-processor-cache-gb", "0"]) == 0
    assert caches_bytes(["serve", "--mm-processor-cache-gb=1.5"]) == 3 << 29
    assert caches_bytes(["serve", "--mm-processor-cache-gb", "x"]) == 4 << 30


# ---------------------------------------------------------------- what is told


class Script:
    def __init__(self, *checks: Check) -> None:
        self.checks = list(checks)

    def check(self) -> Check:
        return self.checks.pop(0)


SECRET = "sk-planted-0123456789abcdef"


def one(name: LiveClass, certainty: Certainty) -> NamedClass:
    return NamedClass(name=name, certainty=certainty, sentence=SECRET, why=[SECRET])


def test_events_and_metrics_tell_a_class_from_when_to_when(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    orphans = (one(F.WORK_WITHOUT_CLIENTS, C.LIKELY),)
    script = Script(
        Check(CheckOutcome.OK, 1.0, 0.1),
        Check(CheckOutcome.OK, 2.0, 0.1, classes=orphans),
        Check(CheckOutcome.OK, 3.0, 0.1, classes=orphans),
        Check(CheckOutcome.OK, 4.0, 0.1),
    )
    watch = ServerWatch(
        script, Health(), SERVED, listener=lambda k, t: told.append((k, t))
    )
    for _ in range(3):
        watch._step()
    likely = f"work-without-clients, likely: {CLASS_WORDS[F.WORK_WITHOUT_CLIENTS]}"
    assert [text for kind, text in told if kind == "class"] == [likely]
    assert state(watch)["classes"] == {"work-without-clients": "likely"}
    server = WatchServer(watch, ("127.0.0.1", 0))
    try:
        url = "http://{}:{}/metrics".format(*server.address)
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    values = {
        line.partition('"')[2].partition('"')[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("mmrepro_watch_class{")
    }
    assert values == dict.fromkeys(LiveClass, 0.0) | {"work-without-clients": 2.0}
    assert CERTAINTIES == {"certain": 3, "likely": 2, "possible": 1}
    watch._step()
    assert told[-1] == ("class", "work-without-clients: seen no more")
    assert SECRET not in text + str(told) + str(state(watch))


def test_the_classes_of_a_diagnosis_stay_until_it_is_live_again() -> None:
    script = Script(
        *(Check(CheckOutcome.OK, n, 0.1) for n in range(2)),
        *(Check(CheckOutcome.FAILED, 2 + n, 0.1) for n in range(2)),
        *(Check(CheckOutcome.OK, 4 + n, 0.1) for n in range(2)),
    )
    found = (one(F.STEPS_STOPPED, C.CERTAIN), one(F.GAUGES_LIE, C.POSSIBLE))
    watch = ServerWatch(
        script, Health(), SERVED, diagnose=lambda: WatchDiagnosis("x", None, found)
    )
    for _ in range(4):
        watch._step()
    assert watch._diagnosis is not None
    watch._diagnosis.join()
    assert watch.classes == {F.STEPS_STOPPED: C.CERTAIN, F.GAUGES_LIE: C.POSSIBLE}
    watch._step()
    assert watch.classes.keys() == {F.STEPS_STOPPED, F.GAUGES_LIE}
    watch._step()
    assert watch.classes == {}


def test_of_a_check_and_a_diagnosis_the_surer_one_counts() -> None:
    for first, second in ((C.CERTAIN, C.LIKELY), (C.LIKELY, C.CERTAIN)):
        checked = Check(CheckOutcome.OK, 1.0, 0.1, classes=(one(F.NEVER_FITS, first),))
        watch = ServerWatch(Script(checked), Health(), SERVED)
        watch.finding = WatchDiagnosis("x", None, (one(F.NEVER_FITS, second),))
        watch._step()
        assert watch.classes == {F.NEVER_FITS: C.CERTAIN}
