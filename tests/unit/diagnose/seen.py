"""Made-up evidence of a live vLLM server with two processes. No server made it."""

from __future__ import annotations

from typing import Any

from made_up import at, http, metrics, probed, request
from mmrepro.failure.documents.diagnosis import TargetFacts, TargetProcess
from mmrepro.probes.data import (
    AnyProbeData,
    Frame,
    InferenceData,
    LogLine,
    LogsData,
    ProcessesData,
    ProcessUse,
    StackSample,
    StacksData,
    SyscallsData,
    ThreadStack,
    ThreadUse,
)
from mmrepro.traffic.evidence import Evidence

FRONT, CORE = 1533, 1764
TID = 2040
URL = "http://127.0.0.1:8000"

assert request  # re-exported with the rest of made_up for the tests beside this module


def target(**more: Any) -> TargetFacts:
    """vLLM 0.23.0, listening; ``states`` are those of the front and of EngineCore."""
    states = more.pop("states", "SS")
    roles = (("APIServer", FRONT, 1), ("EngineCore", CORE, FRONT))
    fields: dict[str, Any] = {
        "url": URL,
        "place": "local",
        "port": 8000,
        "listening": True,
        "root_pid": FRONT,
        "engine": "vllm",
        "core_role": "EngineCore",
        "release": "0.23.0",
        "processes": [
            TargetProcess(pid=pid, ppid=ppid, role=role, name=role, state=state)
            for (role, pid, ppid), state in zip(roles, states, strict=False)
        ],
    }
    return TargetFacts(**fields | more)


def answer(seconds: float = 0.1, text: str = "ok fine", **more: Any) -> InferenceData:
    fields: dict[str, Any] = {
        "answered": True,
        "status": 200,
        "text": text,
        "deadline_s": 15.0,
    }
    return InferenceData(seconds=seconds, **fields | more)


SILENCE = InferenceData(answered=False, status=None, seconds=15.1, deadline_s=15.0)


def failed(status: int | None, error: str, seconds: float = 0.1) -> InferenceData:
    return InferenceData(
        answered=False, status=status, seconds=seconds, deadline_s=15.0, error=error
    )


def use(user: float, *, pid: int = CORE, thread: float | None = None) -> ProcessesData:
    busiest = [
        ThreadUse(
            tid=TID,
            name="t",
            state="R",
            user_pct=user if thread is None else thread,
            system_pct=0,
        )
    ]
    process = ProcessUse(
        pid=pid,
        ppid=1,
        name="EngineCore",
        cmdline="",
        role="EngineCore",
        state="R",
        threads=16,
        rss_bytes=1,
        user_pct=user,
        system_pct=0,
        voluntary_switches=0,
        involuntary_switches=0,
        busiest=busiest,
    )
    return ProcessesData(root_pid=FRONT, window_s=1.0, processes=[process])


def waiting(call: str = "futex", verdict: Any = "blocked") -> SyscallsData:
    return SyscallsData(
        pid=CORE,
        method="proc",
        window_s=1,
        user_pct=0,
        system_pct=0,
        verdict=verdict,
        why="as measured",
        waits={TID: call} if call else {},
    )


def frames(*names: str) -> list[Frame]:
    """``function file:line``, innermost first."""
    made = []
    for text in names:
        function, _, place = text.partition(" ")
        file, _, line = place.partition(":")
        made.append(Frame(function=function, file=file, line=int(line or 1)))
    return made


def thread(
    stack: list[Frame],
    *,
    name: str = "MainThread",
    active: bool = True,
    gil: bool = False,
    tid: int = TID,
) -> ThreadStack:
    return ThreadStack(tid=tid, name=name, active=active, owns_gil=gil, frames=stack)


def sampled(*samples: list[ThreadStack], pid: int = CORE) -> StacksData:
    return StacksData(
        samples=[
            StackSample(pid=pid, taken=at(n), blocking=False, threads=threads)
            for n, threads in enumerate(samples)
        ]
    )


IDLE = frames("wait threading.py:320", "get queue.py:171", "run_busy_loop v1/core.py:1")


def idle() -> StacksData:
    return sampled(*[[thread(IDLE, active=False)]] * 5)


def log(*errors: str, progress: str = "") -> LogsData:
    lines = [
        LogLine(number=n, level="ERROR", text=text) for n, text in enumerate(errors, 1)
    ]
    last = LogLine(number=9, time="11-21 03:37:42", text=progress) if progress else None
    return LogsData(
        file="engine.log",
        bytes_read=1,
        lines=1,
        errors=lines,
        error_count=len(lines),
        last_progress=last,
    )


def evidence(*data: AnyProbeData, **facts: Any) -> Evidence:
    return Evidence(probes=[probed(one) for one in data], facts=facts)


def still(**values: float | None) -> list[AnyProbeData]:
    return [metrics(**values), metrics(**values)]


def moving(**values: float | None) -> list[AnyProbeData]:
    return [metrics(**values), metrics(finished=17, generation_tokens=99, **values)]


GREEN = http(200, 200)


MOVES = sampled(
    *[
        [
            thread(
                frames(
                    f"f{n} m.py:{n}",
                    f"g{n} m.py:{n}",
                    f"h{n} m:1",
                    f"i{n} m:1",
                    "s a:1",
                )
            )
        ]
        for n in range(5)
    ]
)
"""Its stack is another one in each sample."""
