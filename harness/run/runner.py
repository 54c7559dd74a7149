"""One run: environment, model, engine, gate, trigger, check, verdict, incident."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path

from mmrepro.engines import LaunchPlan, get_engine, root_cause_lines, worth_another
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.environments import Environment, detect_device, ensure
from mmrepro.errors import EngineStartError, MmreproError, RunTimeout, WarmParentDied
from mmrepro.evidence.recorder import Listener, Recorder
from mmrepro.evidence.sampler import Sampler
from mmrepro.incident import (
    GateFacts,
    Incident,
    ServerFacts,
    Setting,
)
from mmrepro.incident.folder import make_run_dir, write_incident
from mmrepro.records import Moment
from mmrepro.run import deadline
from mmrepro.run.begin import blank, changes, model_of, note_environment, note_plan
from mmrepro.run.judge import judge
from mmrepro.run.launch import chosen_release, launch_plan
from mmrepro.run.observe import Probing, Target
from mmrepro.run.options import RunOptions, StartMode
from mmrepro.run.reproduce import Interpreter
from mmrepro.run.start_stages import StartStages
from mmrepro.run.starter import SAFER, Started, Starter, mode_settings
from mmrepro.run.tables import assemble
from mmrepro.scenario import Control, RunFacts, Scenario
from mmrepro.supervise import EngineProcess, free_port
from mmrepro.supervise.readiness import answers
from mmrepro.supervise.warm import Refused
from mmrepro.text.redact import Redactor
from mmrepro.traffic import Traffic
from mmrepro.traffic.drive import Drive

READY_POLL_S = 0.05
REPLACED_START_LIMIT_S = 120.0
"""For a start in a mode that replaces something; a cold one may take the run's whole time."""
USAGE_CODE = 2
"""argparse's exit code: the mode of the start has nothing to do with it."""
GRACE_HUNG_S = 1.0
GRACE_S = 6.0
START_ATTEMPTS = 5
ENGINE_LOG = "engine.log"
CONTROL_LOG = "control.log"


class Run:
    """A run in progress. ``incident`` is valid, if partial, at every moment."""

    def __init__(
        self,
        scenario: Scenario,
        options: RunOptions,
        listener: Listener | None,
        starter: Starter,
    ) -> None:
        self.scenario = scenario
        self.options = options
        self._starter = starter
        self.engine = get_engine(scenario.engine)
        self.flipped = tuple(scenario.factor(name) for name in options.flips)
        self.scenario_options = scenario.read_options(options.options)
        self.release = chosen_release(scenario, options)
        self.device = detect_device() if options.device == "auto" else options.device
        self.dir = make_run_dir(options.out, scenario.full_name, self.release)
        self.recorder = Recorder(self.dir, listener)
        self.redactor = Redactor()
        self.incident = blank(scenario, options, self.release, self.device, self.dir)
        self.environment: Environment | None = None
        self.plan: LaunchPlan | None = None
        self.process: EngineProcess | None = None
        self.drive: Drive | None = None
        self._sampler: Sampler | None = None
        self._gate_passed = False
        self._restarts: list[Setting] = []

    # ------------------------------------------------------------------ the whole

    def execute(self) -> Incident:
        """Run to the verdict. The incident is on disk afterwards, whatever happened.

        Raises:
            MmreproError: infrastructure or usage; the partial incident is written first.
            KeyboardInterrupt: likewise.
        """
        try:
            self._execute()
        except KeyboardInterrupt:
            self._end("interrupted", "interrupted by the user")
            raise
        except MmreproError as error:
            self._end("failed", error.message, error.detail)
            raise
        except BaseException as error:
            self._end("failed", f"mmrepro itself failed: {type(error).__name__}: {error}")
            raise
        self._end("complete")
        return self.incident

    def _execute(self) -> None:
        with self._stage("environment"):
            self.environment = ensure(
                self.engine.environment_spec(self.release, self.device),
                progress=lambda text: self.recorder.event(text, source="environment"),
            )
            note_environment(self.incident, self.environment, self.recorder.dir)
        with self.environment.in_use():  # `mmrepro env prune` beside us leaves it alone
            self._run_engine(self.environment)
        with self._stage("verdict"):
            self._judge()

    def _run_engine(self, environment: Environment) -> None:
        with self._stage("model"):
            model, self.incident.model = model_of(self.scenario.model, self.options.model)
        self.save()
        if self.scenario.control_server is not None:
            with self._stage("control"):
                self._control(environment, model, self.scenario.control_server)
            self.save()
        with self._stage("start-up"):
            url = self._start(environment, model)
        self.save()
        try:
            asyncio.run(self._bounded(self._observe(url)))
        finally:
            if self._sampler is not None:
                self._sampler.stop()

    async def _bounded(self, work: Coroutine[None, None, None]) -> None:
        try:
            async with asyncio.timeout(self.options.timeout_s):
                await work
        except TimeoutError as error:
            raise RunTimeout(
                f"The run did not end within {self.options.timeout_s:g} s.",
                hint="mmrepro run … --timeout SECONDS",
            ) from error

    # ------------------------------------------------------------------ stages

    def _control(self, environment: Environment, model: Path, control: Control) -> None:
        """The other server: start, traffic, log, stop."""
        self.recorder.phase = "control"
        self.recorder.event(f"control server: {control.description}")
        url = self._start(environment, model, control)
        asyncio.run(self._bounded(self._observe_control(url)))
        self._stop(GRACE_S)
        self.recorder.phase = "start"

    def _start(self, environment: Environment, model: Path, control: Control | None = None) -> str:
        """Start a server and wait until it is ready. A port that was taken, and a start that an
        engine is known to fail at random, are tried anew; one that failed in a mode that replaces
        something is tried cold."""
        starter = self._starter
        log = self.recorder.dir / (CONTROL_LOG if control else ENGINE_LOG)
        plan = launch_plan(self.scenario, self.options, environment, model, free_port(), control)
        mode, reasons = starter.choose(plan, environment)
        failed: dict[StartMode, str] = {}
        for attempt in range(1, START_ATTEMPTS + 1):
            port = free_port()
            plan = launch_plan(self.scenario, self.options, environment, model, port, control)
            self._note_plan(plan, environment, mode_settings(mode, reasons))
            self.incident.engine.start_mode = mode
            url = f"http://127.0.0.1:{port}"
            try:
                if mode is StartMode.WARM and not starter.parent_of(plan, environment):
                    with self._stage("warm parent"):
                        starter.warm(plan, environment)
                launched = self._launch(plan, environment, mode, url, log, sampled=control is None)
            except (Refused, WarmParentDied) as refusal:
                if isinstance(refusal, Refused):  # and one that died may live the next time
                    starter.note_unusable(mode, plan, environment, str(refusal), certain=True)
                reasons.append(f"not {mode}: {refusal}")
                self.recorder.event(reasons[-1], level="warning")
                mode = SAFER[mode]
            except EngineStartError as error:
                why = worth_another(self.engine, error.detail)
                mode_in_doubt = mode in SAFER and not error.usage
                if attempt == START_ATTEMPTS or not (why or mode_in_doubt):
                    raise
                log.rename(log.with_name(f"{log.stem}-start-{attempt}{log.suffix}"))
                if why:
                    self.recorder.event(f"{why}; starting it again", level="warning")
                    self._restarts.append(Setting(name="start-up", value="repeated", why=why))
                else:
                    failed[mode] = error.message
                    reasons.append(f"a start in mode {mode} failed: {error.message}")
                    self.recorder.event(reasons[-1], level="warning")
                    mode = StartMode.COLD
            else:
                starter.note(launched, plan, environment, self.incident.engine.start_seconds or 0)
                for unusable, why in failed.items():  # the cold start worked: it was the mode
                    starter.note_unusable(unusable, plan, environment, why, certain=False)
                return url
        raise AssertionError("unreachable")

    def _launch(
        self,
        plan: LaunchPlan,
        environment: Environment,
        mode: StartMode,
        url: str,
        log: Path,
        *,
        sampled: bool,
    ) -> Started:
        began = time.monotonic()
        launched = self._starter.start(
            plan, environment, mode, cwd=self.dir, log=log, grace_s=GRACE_S
        )
        self.plan, self.process = plan, launched.process
        engine = self.incident.engine
        engine.warm_parent = launched.parent
        if sampled:
            self._sampler = Sampler(
                self.recorder,
                self.process.engine_pid,
                url + self.engine.metrics_path,
                self.engine.metrics,
                self.engine.role_of,
            )
            self._sampler.start()
        self.recorder.event(
            f"engine started as process {self.process.engine_pid}, start mode {mode}"
        )
        stages = StartStages(self.engine.start_marks, log, began)
        limit = self.options.timeout_s
        if mode in SAFER:
            limit = min(limit, REPLACED_START_LIMIT_S)
        while not answers(url + self.engine.ready_path):
            stages.look()
            if self.process.exit_code is not None:
                code = self.process.exit_code
                raise self._start_error(log, f"ended with {code} while it started", code)
            if time.monotonic() - began > limit:
                raise self._start_error(log, f"was not ready after {limit:g} s")
            time.sleep(READY_POLL_S)
        ready = time.monotonic()
        if self._sampler is not None:
            self._sampler.read_metrics()
        engine.start_seconds = round(ready - began, 2)
        engine.start_stages = stages.ended(ready)
        self.recorder.event(f"engine ready after {engine.start_seconds:.1f} s")
        return launched

    def _start_error(self, log: Path, what: str, code: int | None = None) -> EngineStartError:
        lines = root_cause_lines(log)
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        self._stop(GRACE_HUNG_S)
        why = f" The log says: {lines[0]}" if lines else ""
        return EngineStartError(
            f"{self.engine.name} {self.release} {what}.{why}",
            hint=f"less {log}",
            detail=lines,
            usage=code == USAGE_CODE,
        )

    async def _observe(self, url: str) -> None:
        assert self.process is not None
        assert self.plan is not None
        assert self.environment is not None
        drive = self.drive = self._drive(url)
        probing = Probing(Target(url, self.process, self.engine), self.scenario, self.recorder)
        try:
            with self._stage("gate"):
                await self._gate(drive, probing)
            if self._gate_passed:
                self.recorder.phase = "trigger"
                with self._stage("trigger"):
                    await self.scenario.trigger(drive)
            self.recorder.phase = "check"
            with self._stage("probes"):
                interpreter = self._interpreter(self.plan, self.environment, drive)
                waiting = bool(drive.pending)
                await probing.check(drive.deadline_s, interpreter, waiting=waiting)
                await drive.collect()
        finally:
            for task in drive.pending:
                task.cancel()
            await asyncio.gather(*drive.pending, return_exceptions=True)
            await drive.traffic.close()
            self.recorder.evidence.engine_exit = self.process.exit_code

    async def _observe_control(self, url: str) -> None:
        assert self.process is not None
        drive = self._drive(url)
        try:
            await self.scenario.control(drive)
            target = Target(url, self.process, self.engine)
            await Probing(target, self.scenario, self.recorder).logs()
        finally:
            await drive.traffic.close()

    def _drive(self, url: str) -> Drive:
        return Drive(
            traffic=Traffic(url, SERVED_MODEL, self.recorder),
            recorder=self.recorder,
            image_size=self.scenario.model.image_size(),
            max_model_len=self.scenario.max_model_len,
            release=self.release,
            mitigations=frozenset(self.options.mitigations),
            flips=frozenset(self.options.flips),
            options=self.scenario_options,
            python=self.environment.python if self.environment else None,
            model=Path(self.incident.model.path) if self.incident.model else None,
        )

    def _interpreter(self, plan: LaunchPlan, environment: Environment, drive: Drive) -> Interpreter:
        """For reproducers: started as the server was."""
        warm = self.incident.engine.start_mode is StartMode.WARM
        parent = self._starter.parent_of(plan, environment) if warm else None
        return Interpreter(environment.python, {**plan.env, **drive.reproducer_env}, parent)

    async def _gate(self, drive: Drive, probing: Probing) -> None:
        self.recorder.phase = "gate"
        await self.scenario.gate(drive)
        finding = self.scenario.gate_check(self.recorder.evidence)
        latencies = [r.latency_s for r in self.recorder.evidence.requests_in("gate") if r.answered]
        self._gate_passed = finding.truth == "met"
        self.incident.gate = GateFacts(
            passed=self._gate_passed, why=finding.observed, latencies_s=latencies
        )
        if self._gate_passed:
            found = deadline.derive(latencies)
            drive.deadline_s, drive.suspect_s = found.answer_s, found.suspect_s
            self.incident.gate.deadline_s = found.answer_s
            self.incident.gate.deadline_rule = found.rule
            await probing.baseline()
        self.recorder.event(
            f"gate {'passed' if self._gate_passed else 'failed'}: {finding.observed}",
            level="info" if self._gate_passed else "error",
        )

    def _judge(self) -> None:
        facts = self.facts()
        self.incident.verdict = judge(self.scenario, self.recorder.evidence, facts)
        assemble(self.incident, self.scenario, facts, self.environment)

    # ------------------------------------------------------------------ the end

    def _end(self, state: str, failure: str = "", detail: list[str] | None = None) -> None:
        self.recorder.phase = "stop"
        self.incident.state = state  # type: ignore[assignment]
        self.incident.failure = failure
        self.incident.failure_detail = detail or []
        keep = self.options.keep_server and state == "complete"
        if self._sampler is not None:
            self._sampler.stop()
        if self.process is not None and keep:
            self.process.detach()
        else:
            hung = any(r.timed_out for r in self.recorder.evidence.requests)
            self._stop(GRACE_HUNG_S if hung or state != "complete" else GRACE_S)
            self.incident.server = None
        self.incident.finished = Moment.now()
        self.save()

    def _stop(self, grace_s: float) -> None:
        if self.process is None:
            return
        with self._stage("stop"):
            report = self.process.stop(grace_s)
        self.process = None
        self.incident.left_behind = report.left
        if report.shm_removed:
            names = ", ".join(report.shm_removed)
            self.recorder.event(f"removed shared memory that the engine left: {names}")
        for command in report.forced:
            self.recorder.event(f"needed SIGKILL: {command}")

    def save(self) -> None:
        """Write the incident as it is now; a full disk moves it to the temporary folder."""
        self.incident.evidence = self.recorder.evidence
        folder = write_incident(self.incident, self.dir, self.redactor)
        if folder != self.dir:
            self.incident.incident_dir = str(folder)
            self.dir = folder

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        self.recorder.event(name, source="stage")
        try:
            yield
        finally:
            self.incident.stages[name] = round(time.monotonic() - began, 2)

    # ------------------------------------------------------------------ facts

    def facts(self) -> RunFacts:
        return RunFacts(
            release=self.release,
            fidelity=self.incident.fidelity,
            mitigations=frozenset(self.options.mitigations),
            deadline_s=self.drive.deadline_s if self.drive else deadline.FLOOR_S,
            flips=frozenset(self.options.flips),
        )

    def _note_plan(self, plan: LaunchPlan, environment: Environment, start: list[Setting]) -> None:
        settings = [*environment.notes, *start, *plan.settings]
        settings += changes(self.flipped, self.scenario.control_server)
        note_plan(self.incident, plan, [*settings, *self._restarts])

    def server(self) -> ServerFacts | None:
        """Where a kept server is."""
        if self.process is None or self.drive is None:
            return None
        return ServerFacts(url=self.drive.traffic.base_url, pid=self.process.pid)
