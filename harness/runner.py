"""One run: environment, model, engine, gate, trigger, check, verdict, incident."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from mmrepro import __version__, deadline
from mmrepro.assemble import assemble
from mmrepro.childenv import child_environment
from mmrepro.drive import Drive
from mmrepro.engines import LaunchPlan, get_engine, root_cause_lines
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.environments import Environment, cache_root, detect_device, ensure
from mmrepro.errors import EngineStartError, MmreproError, RunTimeout, UsageError
from mmrepro.host import host_facts
from mmrepro.incident import (
    EngineFacts,
    Fidelity,
    GateFacts,
    Incident,
    ModelFacts,
    ScenarioFacts,
    ServerFacts,
    Setting,
)
from mmrepro.launching import chosen_release, launch_plan
from mmrepro.options import RunOptions
from mmrepro.probes.base import Moment
from mmrepro.probing import Probing, Target
from mmrepro.ready import answers
from mmrepro.recorder import Listener, Recorder
from mmrepro.redact import Redactor
from mmrepro.rundir import make_run_dir, write_incident
from mmrepro.sampler import Sampler
from mmrepro.scenario import RunFacts, Scenario
from mmrepro.signature import Finding, Outcome, Verdict, decide, evaluate
from mmrepro.supervise import EngineProcess, free_port, start_engine
from mmrepro.traffic import Traffic

READY_POLL_S = 0.1
GRACE_HUNG_S = 1.0
GRACE_S = 6.0
PORT_ATTEMPTS = 2
ENGINE_LOG = "engine.log"


class Run:
    """A run in progress. ``incident`` is valid, if partial, at every moment."""

    def __init__(
        self, scenario: Scenario, options: RunOptions, listener: Listener | None = None
    ) -> None:
        self.scenario = scenario
        self.options = options
        self.engine = get_engine(scenario.engine)
        self.flipped = tuple(scenario.factor(name) for name in options.flips)
        self.release = chosen_release(scenario, options)
        self.device = detect_device() if options.device == "auto" else options.device
        self.dir = make_run_dir(options.out, scenario.full_name, self.release)
        self.recorder = Recorder(self.dir, listener)
        self.redactor = Redactor()
        self.incident = self._blank()
        self.environment: Environment | None = None
        self.plan: LaunchPlan | None = None
        self.process: EngineProcess | None = None
        self.drive: Drive | None = None
        self._sampler: Sampler | None = None
        self._gate_passed = False

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
            self._note_environment(self.environment)
        with self.environment.in_use():  # `mmrepro env prune` beside us leaves it alone
            self._run_engine(self.environment)
        with self._stage("verdict"):
            self._judge()

    def _run_engine(self, environment: Environment) -> None:
        with self._stage("model"):
            model = self._model()
        self.save()
        with self._stage("start-up"):
            url = self._start(environment, model)
        self.save()
        try:
            asyncio.run(self._bounded(url))
        finally:
            if self._sampler is not None:
                self._sampler.stop()

    async def _bounded(self, url: str) -> None:
        try:
            async with asyncio.timeout(self.options.timeout_s):
                await self._observe(url)
        except TimeoutError as error:
            raise RunTimeout(
                f"The run did not end within {self.options.timeout_s:g} s.",
                hint="mmrepro run … --timeout SECONDS",
            ) from error

    # ------------------------------------------------------------------ stages

    def _start(self, environment: Environment, model: Path) -> str:
        """Start the server and wait until it is ready; a port that was taken is tried anew."""
        for attempt in range(PORT_ATTEMPTS):
            port = free_port()
            self.plan = launch_plan(self.scenario, self.options, environment, model, port)
            self._note_plan(self.plan)
            url = f"http://127.0.0.1:{port}"
            try:
                self._launch(self.plan, url)
                return url
            except EngineStartError as error:
                taken = any("ddress already in use" in line for line in error.detail)
                if not taken or attempt + 1 == PORT_ATTEMPTS:
                    raise
                self.recorder.event(f"port {port} was taken meanwhile; trying another one")
        raise AssertionError("unreachable")

    def _launch(self, plan: LaunchPlan, url: str) -> None:
        log = self.recorder.dir / ENGINE_LOG
        started = time.monotonic()
        self.process = start_engine(
            plan.argv, child_environment(plan.env), cwd=self.dir, log=log, grace_s=GRACE_S
        )
        self._sampler = Sampler(
            self.recorder,
            self.process.engine_pid,
            url + self.engine.metrics_path,
            self.engine.metrics,
            self.engine.role_of,
        )
        self._sampler.start()
        self.recorder.event(f"engine started as process {self.process.engine_pid}")
        while not answers(url + self.engine.ready_path):
            if self.process.exit_code is not None:
                raise self._start_error(f"ended with {self.process.exit_code} while it started")
            if time.monotonic() - started > self.options.timeout_s:
                raise self._start_error(f"was not ready after {self.options.timeout_s:g} s")
            time.sleep(READY_POLL_S)
        self._sampler.read_metrics()
        self.incident.engine.start_seconds = round(time.monotonic() - started, 2)
        self.recorder.event(f"engine ready after {self.incident.engine.start_seconds:.1f} s")

    def _start_error(self, what: str) -> EngineStartError:
        log = self.recorder.dir / ENGINE_LOG
        lines = root_cause_lines(log)
        self._stop(GRACE_HUNG_S)
        why = f" The log says: {lines[0]}" if lines else ""
        return EngineStartError(
            f"{self.engine.name} {self.release} {what}.{why}",
            hint=f"less {log}",
            detail=lines,
        )

    async def _observe(self, url: str) -> None:
        assert self.process is not None
        assert self.plan is not None
        assert self.environment is not None
        traffic = Traffic(url, SERVED_MODEL, self.recorder)
        drive = self.drive = Drive(
            traffic=traffic,
            recorder=self.recorder,
            image_size=self.scenario.model.image_size(),
            max_model_len=self.scenario.max_model_len,
            release=self.release,
            mitigations=frozenset(self.options.mitigations),
            flips=frozenset(self.options.flips),
        )
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
                await probing.check(drive.deadline_s, self.environment.python, self.plan.env)
                await asyncio.gather(*drive.pending)
        finally:
            for task in drive.pending:
                task.cancel()
            await asyncio.gather(*drive.pending, return_exceptions=True)
            await traffic.close()
            self.recorder.evidence.engine_exit = self.process.exit_code

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
        evidence = self.recorder.evidence
        facts = self.facts()
        results = evaluate(self.scenario.conditions(facts), evidence)
        healthy = _safely(self.scenario, evidence)
        outcome, why = decide(results, gate_passed=self._gate_passed, healthy_after=healthy)
        expected, because = self._expected(facts)
        self.incident.verdict = Verdict(
            outcome=outcome,
            expected=expected,
            expected_because=because,
            as_expected=outcome is expected,
            explanation=why,
            conditions=results,
        )
        assemble(self.incident, self.scenario, facts, self.environment)

    def _expected(self, facts: RunFacts) -> tuple[Outcome | None, str]:
        if facts.flips:  # what a factor does is to be found out
            return None, f"flipped: {', '.join(self.options.flips)}; nothing is expected of that"
        return self.scenario.expected(self.release, facts.mitigations)

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

    def _blank(self) -> Incident:
        scenario = self.scenario
        now = Moment.now()
        return Incident(
            mmrepro_version=__version__,
            id=uuid.uuid4().hex[:12],
            created=now,
            state="interrupted",
            failure="the run has not ended",
            incident_dir=str(self.dir),
            command=self.options.command(scenario.name),
            scenario=ScenarioFacts(
                name=scenario.name,
                variant=scenario.variant,
                title=scenario.title,
                summary=scenario.summary,
                affected=scenario.affected_range,
                explanation=scenario.explanation,
            ),
            engine=EngineFacts(name=scenario.engine, release=self.release),
            host=host_facts(),
            fidelity=Fidelity.GPU if self.device == "cuda" else Fidelity.CPU,
            references=list(scenario.references),
        )

    def _note_environment(self, environment: Environment) -> None:
        engine = self.incident.engine
        engine.wheel = environment.wheel
        engine.python = environment.python_version
        engine.resolved_until = environment.resolved_until
        engine.packages = environment.packages
        engine.settings = list(environment.notes)
        copy = self.recorder.dir / environment.lock_file.name
        with contextlib.suppress(OSError):
            copy.write_bytes(environment.lock_file.read_bytes())
            engine.packages_file = copy.name

    def _note_plan(self, plan: LaunchPlan) -> None:
        assert self.environment is not None
        engine = self.incident.engine
        engine.command = plan.argv
        engine.environment = plan.env
        flips = [
            Setting(name=f"factor {f.name}", value=f.setting, why=f"flipped; was {f.failing}")
            for f in self.flipped
        ]
        engine.settings = [*self.environment.notes, *plan.settings, *flips]
        self.incident.stand_ins = plan.stand_ins
        self.incident.fidelity = plan.fidelity

    def _model(self) -> Path:
        if self.options.model is not None:
            path = self.options.model.resolve()
            if not (path / "config.json").is_file():
                raise UsageError(f"{path} holds no model: it has no config.json.")
            self.incident.model = ModelFacts(kind="given with --model", path=str(path))
            return path
        tiny = self.scenario.model
        path = tiny.write(cache_root() / "models")
        self.incident.model = ModelFacts(
            kind=tiny.kind,
            path=str(path),
            parameters=tiny.parameters,
            seed=tiny.seed,
            image_tokens=tiny.image_tokens,
            sha256=_sha256(path / "model.safetensors"),
        )
        return path

    def server(self) -> ServerFacts | None:
        """Where a kept server is."""
        if self.process is None or self.drive is None:
            return None
        return ServerFacts(url=self.drive.traffic.base_url, pid=self.process.pid)


def _safely(scenario: Scenario, evidence: object) -> Finding:
    """A checker that crashes yields unknown, never a verdict."""
    try:
        return scenario.healthy_after(evidence)  # type: ignore[arg-type]
    except Exception as error:
        return Finding.unknown(f"the checker failed: {type(error).__name__}: {error}")


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
