"""Python stacks of running processes, without stopping them (py-spy).

Alone::

    from mmrepro.probes.base import run_probe
    from mmrepro.probes.stacks import StacksProbe
    result = run_probe(StacksProbe([pid]), Path("evidence"), 10)
    print(result.reason or [f.function for f in result.data.samples[0].threads[0].frames])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from mmrepro.base import processes
from mmrepro.probes import py_spy
from mmrepro.probes.base import Probe, RawSink, Subject, TimedOut, Unavailable
from mmrepro.probes.data import StackSample, StacksData
from mmrepro.probes.py_spy import Dump, Outcome
from mmrepro.records import Moment

RETRIES = 3
DUMP_TIMEOUT_S = 10.0


class StacksProbe(Probe[StacksData]):
    """``samples`` dumps of each of ``pids``, ``interval_s`` seconds apart.

    Samples are taken without pausing the target, so a stack that changes while it is read may
    come out torn: after ``RETRIES`` failures in a row one sample pauses the process for some
    milliseconds, unless ``blocking_fallback`` forbids it.

    ``until`` ends the sampling early once it holds for what was sampled so far, but not before each
    process has been sampled ``min_samples`` times: a hang is a stack that stays.

    ``pausing`` is for a hang in a small loop, whose locals come out torn: that many samples more,
    each of which pauses the process, while ``until`` does not hold.

    ``native`` adds the frames of C and C++ code; every sample pauses the process then.

    A process that denies access is listed in ``denied``; one that is gone, or is not Python, has
    one sample with an ``error`` and no threads.
    """

    name = "stacks"
    needs = "pid"

    @classmethod
    def on(cls, subject: Subject) -> Self:
        return cls([subject.pid])

    def __init__(
        self,
        pids: Sequence[int],
        samples: int = 8,
        interval_s: float = 0.05,
        locals: bool = True,
        blocking_fallback: bool = True,
        until: Callable[[Sequence[StackSample]], bool] | None = None,
        *,
        min_samples: int = 3,
        pausing: int = 0,
        native: bool = False,
    ) -> None:
        self.pids = tuple(dict.fromkeys(pids))
        self.samples = samples
        self.interval_s = interval_s
        self.locals = locals
        self.blocking_fallback = blocking_fallback
        self.until = until
        self.min_samples = min(min_samples, samples)
        self.pausing = pausing if until is not None and blocking_fallback else 0
        self.native = native
        self._data = StacksData(samples=[])

    def collect(self, sink: RawSink, deadline: float) -> StacksData:
        """Raises Unavailable when no process could be sampled, TimedOut without any sample."""
        program = py_spy.find_py_spy()
        if program is None:
            raise Unavailable("py-spy is not installed beside this Python (pip install py-spy)")
        self._data = data = StacksData(samples=[])
        live = list(self.pids)
        seen = False
        for number in range(self.samples + self.pausing):
            if number:
                time.sleep(max(min(self.interval_s, deadline - time.monotonic()), 0))
            for pid in list(live):
                if time.monotonic() >= deadline:
                    return self._finish(out_of_time=True)
                sample, outcome = self._sample(program, pid, number, sink, deadline)
                if outcome is Outcome.DENIED:
                    data.denied[pid] = sample.error
                    live.remove(pid)
                    continue
                data.samples.append(sample)
                if outcome is Outcome.GONE or (outcome is Outcome.NOT_PYTHON and not number):
                    live.remove(pid)
            seen = seen or (self.until is not None and self.until(data.samples))
            if not live or (seen and number + 1 >= self.min_samples):
                break
        return self._finish(out_of_time=False)

    def partial(self) -> StacksData | None:
        return self._data if self._data.samples or self._data.denied else None

    def _finish(self, *, out_of_time: bool) -> StacksData:
        data = self._data
        if any(sample.threads for sample in data.samples):
            return data
        reasons = list(dict.fromkeys([*data.denied.values(), *(s.error for s in data.samples)]))
        if out_of_time:
            raise TimedOut("; ".join(["no stack was sampled in time", *reasons])[:2000])
        raise Unavailable("; ".join(reasons)[:2000] or "no process was given")

    def _sample(
        self, program: Path, pid: int, number: int, sink: RawSink, deadline: float
    ) -> tuple[StackSample, Outcome]:
        pause = self.native or number >= self.samples
        taken, blocking = Moment.now(), pause and self._may_pause(pid, deadline)
        dumped = self._dump(program, pid, deadline, blocking=blocking)
        for _ in range(RETRIES):
            if dumped.outcome is not Outcome.TORN or time.monotonic() >= deadline:
                break
            taken = Moment.now()
            dumped = self._dump(program, pid, deadline, blocking=blocking)
        if (
            dumped.outcome is Outcome.TORN
            and self.blocking_fallback
            and self._may_pause(pid, deadline)
        ):
            taken, blocking = Moment.now(), True
            dumped = self._dump(program, pid, deadline, blocking=True)
        if dumped.raw:
            sink.write(f"{pid}-{number:02d}.json", dumped.raw)
        return (
            StackSample(
                pid=pid,
                taken=taken,
                blocking=blocking,
                seconds=round(time.monotonic() - taken.mono, 4),
                threads=dumped.threads,
                error=dumped.error,
            ),
            dumped.outcome,
        )

    def _may_pause(self, pid: int, deadline: float) -> bool:
        stat = processes.stat(pid)
        # A process stopped by a signal never reports to a tracer: py-spy would wait for ever.
        stopped = stat is None or stat.state in ("T", "t")
        return not stopped and time.monotonic() < deadline

    def _dump(self, program: Path, pid: int, deadline: float, *, blocking: bool) -> Dump:
        return py_spy.dump(
            program,
            pid,
            blocking=blocking,
            with_locals=self.locals,
            native=self.native and blocking,
            timeout_s=min(DUMP_TIMEOUT_S, deadline - time.monotonic()),
        )
