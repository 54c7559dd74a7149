"""What observes a server: probes, a baseline after the gate and the whole set after the
trigger, and single-file reproducers, which the engine's own interpreter runs beside the
server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrepro.base.errors import MmreproError
from mmrepro.base.machine import child_environment
from mmrepro.engines import SERVED_MODEL, Engine
from mmrepro.engines.supervise import Entry
from mmrepro.engines.supervise.warm import ForkServer
from mmrepro.probes import (
    GpuProbe,
    LogsProbe,
    MetricsProbe,
    Probe,
    ProbeData,
    ProcessesProbe,
    RawSink,
    StacksProbe,
    SyscallsProbe,
    run_probe,
)
from mmrepro.probes.http import HttpProbe, InferenceProbe
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.start import Started
from mmrepro.scenario import Scenario
from mmrepro.traffic.evidence import Recorder, ReproducerResult

_BASELINE_S = 5.0
_CHECK_S = 20.0
_MIN_STACK_SAMPLES = 10
_MAX_STACK_SAMPLES = 40
_PAUSING_SAMPLES = 20
_RARE_STACK_SAMPLES = 80
_RARE_S = 45.0
"""Where a hang shows what is looked for only now and then: on a machine that it keeps
busy, a sample takes half a second, and few of them catch it."""
SPACING_S = 2.0
QUIET_SPACING_S = 1.0
"""Between the two readings of the progress counters: where a request waits, and where
none does."""
_SYSCALLS_S = 1.5
_QUIET_SYSCALLS_S = 0.5


@dataclass(frozen=True)
class Probing:
    """What looks at a server, by the scenario's wishes; all that it gets goes to the
    recorder."""

    server: Started
    scenario: Scenario
    recorder: Recorder

    async def baseline(self) -> None:
        """What healthy and idle looks like: the column that symptoms are held
        against."""
        core = self.server.core_pid
        probes: list[Probe[ProbeData]] = [
            HttpProbe(self.server.url, self.server.spec.engine.endpoints),
            self._metrics(),
            self._processes(0.5),
            GpuProbe(samples=1),
        ]
        if core is not None:
            probes += [
                StacksProbe([core], samples=1),
                SyscallsProbe(core, window_s=0.5),
            ]

        await asyncio.gather(*(self._run(probe, _BASELINE_S) for probe in probes))

    async def check(
        self, deadline_s: float, interpreter: Interpreter, *, waiting: bool
    ) -> None:
        """Every probe, once the trigger has ended; the metrics twice, the stacks many
        times.

        ``waiting``: a request of the trigger is unanswered. If none is, what is looked
        at is an idle server or one that has ended: shorter windows show all that there
        is."""
        started = time.monotonic()
        core = self.server.core_pid
        url = self.server.url
        await self._run(self._metrics(), _BASELINE_S, label="metrics-1")

        inference = InferenceProbe(url, SERVED_MODEL, deadline_s)
        endpoints = HttpProbe(url, self.server.spec.engine.endpoints)
        await asyncio.gather(
            self._run(inference, deadline_s + 5),
            self._run(endpoints, _CHECK_S),
            self._run(self._processes(1.0), _CHECK_S),
            self._run(GpuProbe(), _CHECK_S),
            self._core_probes(core, waiting=waiting),
            self._reproducers(interpreter),
        )

        # Counters that stand still show a hang only some time apart.
        spacing = SPACING_S if waiting else QUIET_SPACING_S
        await asyncio.sleep(max(0.0, spacing - (time.monotonic() - started)))
        await self._run(self._metrics(), _BASELINE_S, label="metrics-2")
        await self.logs()

    async def logs(self) -> None:
        server = self.server
        await read_log(
            server.process.log, server.spec.engine, self.scenario, self.recorder
        )

    def _processes(self, window_s: float) -> ProcessesProbe:
        server = self.server
        return ProcessesProbe(
            server.process.engine_pid, window_s, server.spec.engine.role_of
        )

    def _metrics(self) -> MetricsProbe:
        return MetricsProbe(self.server.url + self.server.spec.engine.metrics_path)

    async def _core_probes(self, core: int | None, *, waiting: bool) -> None:
        """Stacks first, then system calls: strace stops what py-spy reads."""
        if core is None:
            self.recorder.event(
                f"no process {self.server.spec.engine.core_role} is left to look at",
                level="error",
            )
            return

        locals_too = self.scenario.looks_for_locals
        rare = waiting and locals_too
        most = _MAX_STACK_SAMPLES if waiting or locals_too else _MIN_STACK_SAMPLES
        stacks = StacksProbe(
            [core, *self.server.other_pids],
            samples=_RARE_STACK_SAMPLES if rare else most,
            interval_s=0.03,
            until=self.scenario.enough_stacks,
            min_samples=_MIN_STACK_SAMPLES,
            pausing=_PAUSING_SAMPLES if locals_too else 0,
        )
        await self._run(stacks, _RARE_S if rare else _CHECK_S)
        window_s = _SYSCALLS_S if waiting or locals_too else _QUIET_SYSCALLS_S
        await self._run(SyscallsProbe(core, window_s=window_s), _CHECK_S)

    async def _run(
        self, probe: Probe[ProbeData], seconds: float, label: str = ""
    ) -> None:
        await _observe(self.recorder, probe, seconds, label)

    async def _reproducers(self, interpreter: Interpreter) -> None:
        sink = RawSink(self.recorder.dir)
        for name in self.scenario.reproducers:
            result = await asyncio.to_thread(interpreter.run, name, self.recorder.dir)
            sink.write(f"{name}.json", result.model_dump_json(indent=1))
            self.recorder.evidence.reproducers.append(result)

            outcome = result.error or f"ended with {result.exit_code}"
            text = f"reproducer {name}: {outcome} in {result.seconds:.2f} s"
            if result.forked:
                text += ", forked from the fork server"
            self.recorder.event(text)


async def read_log(
    log: Path, engine: Engine, scenario: Scenario, recorder: Recorder
) -> None:
    """Keep what the engine's and the scenario's patterns find in a server's log."""
    patterns = {**engine.log_patterns, **scenario.log_patterns}
    await _observe(recorder, LogsProbe(log, patterns, engine.progress_pattern), 120.0)


async def _observe(
    recorder: Recorder, probe: Probe[ProbeData], seconds: float, label: str = ""
) -> None:
    result = await asyncio.to_thread(
        run_probe, probe, recorder.dir, seconds, phase=recorder.phase, label=label
    )
    recorder.probe(result)  # type: ignore[arg-type] # data is one of AnyProbeData


TIMEOUT_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Interpreter:
    """What runs a reproducer.

    Attributes:
        python: the engine's interpreter.
        env: what the engine itself got besides the cleaned environment: a patch that
            the engine has, the reproducer has too.
        parent: where the server was forked from it, the reproducer is too: most of its
            time is the engine's import.
    """

    python: Path
    env: Mapping[str, str]
    parent: ForkServer | None = None

    def run(self, name: str, folder: Path) -> ReproducerResult:
        """Run the reproducer ``name``; the last line that it prints is a JSON object of
        facts.

        ``folder``: an existing one for what it prints where it is forked. Never raises.
        """
        started = time.monotonic()
        result = ReproducerResult(name=name, exit_code=None, seconds=0.0)
        try:
            result.forked, (result.exit_code, output, error) = self._outcome(
                name, folder
            )
            if result.exit_code == 0:
                facts = json.loads(output.strip().splitlines()[-1])
                result = ReproducerResult.model_validate(
                    {**result.model_dump(), "facts": facts}
                )
            else:
                result.error = error.strip()[-500:]
        except TimeoutError:
            result.error = f"no result in {TIMEOUT_S:.0f} s"
        except (OSError, ValueError, IndexError) as problem:
            result.exit_code = None  # pydantic's error is a ValueError
            result.error = f"{type(problem).__name__}: {problem}"[:500]

        result.seconds = round(time.monotonic() - started, 3)
        return result

    def _outcome(self, name: str, folder: Path) -> tuple[bool, tuple[int, str, str]]:
        if self.parent is not None:
            # The parent may have ended meanwhile: a new process does it, too.
            with contextlib.suppress(MmreproError):
                return True, self._forked(name, folder, self.parent)
        return False, self._new_process(name)

    def _new_process(self, name: str) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                [str(self.python), str(reproducer_path(name))],
                env=child_environment() | dict(self.env),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError from expired

        output = done.stdout.decode("utf-8", "replace")
        error = done.stderr.decode("utf-8", "replace")
        return done.returncode, output, error

    def _forked(
        self, name: str, folder: Path, parent: ForkServer
    ) -> tuple[int, str, str]:
        script = reproducer_path(name)
        log = folder / f"{script.stem}.log"
        process = parent.start(
            [str(self.python), str(script)],
            Entry(script.stem, [], [str(script.parent)]),
            child_environment() | dict(self.env),
            cwd=folder,
            log=log,
            grace_s=0.0,
        )
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while (code := process.exit_code) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(_POLL_S)
        finally:
            process.stop()

        output = log.read_text(errors="replace")
        return code, output, output
