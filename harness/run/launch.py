"""From what was asked for to a server that is ready: its command, its start, its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmrepro.engines import Engine, LaunchPlan, LaunchRequest, get_engine, spec_for
from mmrepro.engines.base import root_cause_lines, worth_another
from mmrepro.environments.spec import Environment, EnvironmentSpec
from mmrepro.errors import EngineStartError, UnknownRelease, UsageError, WarmParentDied
from mmrepro.evidence.sampler import GpuSampler, Sampler
from mmrepro.incident import ServerFacts, Setting
from mmrepro.incident.journal import Journal
from mmrepro.machine.gpu import Choice
from mmrepro.run.options import RunCommand, StartMode
from mmrepro.run.start_stages import StartStages
from mmrepro.run.starter import SAFER, Attempt, Started, Starter, mode_settings
from mmrepro.run.tables import changes, note_plan
from mmrepro.scenario import Control, Scenario
from mmrepro.supervise import EngineProcess, free_port, procfs
from mmrepro.supervise.readiness import answers
from mmrepro.supervise.warm import Refused
from packaging.version import InvalidVersion, Version

READY_POLL_S = 0.05
REPLACED_START_LIMIT_S = 120.0
"""For a start in a mode that replaces something; a cold one may take the run's whole time."""
USAGE_CODE = 2
"""argparse's exit code: the mode of the start has nothing to do with it."""
GRACE_HUNG_S, GRACE_S = 1.0, 6.0


def chosen_release(scenario: Scenario, options: RunCommand) -> str:
    """The release that is run: a mitigation's, the one asked for, or the scenario's own.

    Raises:
        UsageError: a mitigation that is a release contradicts ``--release``.
        UnknownRelease: it is no version at all.
    """
    mitigations = [scenario.mitigation(name) for name in options.mitigations]
    replaced = [m.release for m in mitigations if m.release]
    if options.commit:
        if replaced:
            raise UsageError(
                f"--mitigation release means {replaced[0]}, but --commit says "
                f"{options.commit[:12]}."
            )
        return target(scenario, options).release
    if replaced and options.release and options.release != replaced[0]:
        raise UsageError(
            f"--mitigation release means {replaced[0]}, but --release says {options.release}."
        )
    release = (replaced or [options.release or scenario.release])[0]
    try:
        Version(release)
    except InvalidVersion as error:
        raise UnknownRelease(
            f"{release!r} is not a release of {scenario.engine}.",
            hint=f"mmrepro show {scenario.name}",
        ) from error
    return release


def target(scenario: Scenario, options: RunCommand) -> EnvironmentSpec:
    """The environment that is run, as asked for. Raises as ``chosen_release`` and ``spec_for``."""
    if options.commit:
        return spec_for(
            scenario.engine,
            options.release,
            options.device,
            commit=options.commit,
            date=options.commit_date,
        )
    return spec_for(scenario.engine, chosen_release(scenario, options), options.device)


def launch_plan(
    scenario: Scenario,
    options: RunCommand,
    environment: Environment,
    model: Path,
    port: int,
    control: Control | None = None,
    gpu: Choice | None = None,
) -> LaunchPlan:
    """The server's command and variables; nothing is started. Raises UsageError.

    ``control``: the control server's, which has its own options and no mitigation; ``gpu``: what a
    GPU run takes.
    """
    engine = get_engine(scenario.engine)
    mitigations = [scenario.mitigation(name) for name in options.mitigations]
    mitigations += [scenario.factor(name).flip for name in options.flips]
    if control is not None:
        mitigations = []
    if options.contract_probe:
        if (watch := engine.contract_watch()) is None:
            raise UsageError(
                f"There is no contract probe for {engine.name}.", hint="leave --contract-probe out"
            )
        mitigations.append(watch)
    last = control.server_args if control else ()
    return engine.plan(
        LaunchRequest(
            environment=environment,
            model=model,
            port=port,
            max_model_len=scenario.max_model_len,
            server_args=(
                *scenario.server_args_with(options.options),
                *options.server_args,
                *last,
            ),
            mitigations=tuple(mitigations),
            patches=scenario.patches_for(chosen_release(scenario, options)),
            server_env=scenario.server_env,
            gpu=tuple(gpu.settings()) if gpu else (),
        )
    )


@dataclass(frozen=True)
class ServerSpec:
    """A server that is to be started: the run's own, or its ``control`` server.

    ``tries_cold``: if it does not start, in a mode that replaces nothing; not where that was seen
    to make no difference.
    """

    scenario: Scenario
    options: RunCommand
    environment: Environment
    model: Path
    control: Control | None = None
    gpu: Choice | None = None
    tries_cold: bool = True

    def plan(self, port: int) -> LaunchPlan:
        """As :func:`launch_plan`."""
        return launch_plan(
            self.scenario, self.options, self.environment, self.model, port, self.control, self.gpu
        )

    @property
    def engine(self) -> Engine:
        return get_engine(self.scenario.engine)

    def log(self, journal: Journal) -> Path:
        return journal.recorder.dir / ("control.log" if self.control else "engine.log")


@dataclass(frozen=True)
class Server:
    """A server that was started.

    ``began``: its start, monotonic seconds; ``sampler``: of a control server it reads nothing;
    ``restarts``: those of the run so far.
    """

    spec: ServerSpec
    plan: LaunchPlan
    url: str
    began: float
    started: Started
    sampler: Sampler
    restarts: tuple[Setting, ...] = ()

    @property
    def process(self) -> EngineProcess:
        return self.started.process

    @property
    def core_pid(self) -> int | None:
        """The process that schedules; None if it is gone."""
        for pid in self.process.process_ids():
            command = procfs.read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
            name = procfs.read(pid, "comm").decode("utf-8", "replace").strip()
            if self.spec.engine.core_role in self.spec.engine.role_of(name, command.strip()):
                return pid
        return None


def start(
    spec: ServerSpec, journal: Journal, starter: Starter, restarts: tuple[Setting, ...] = ()
) -> Server:
    """Start a server and wait until it is ready; one that does not become ready is stopped.

    A port that was taken, and a start that an engine is known to fail at random, are tried anew;
    one that failed in a mode that replaces something is tried cold. ``restarts``: earlier ones.

    Raises:
        EngineStartError: it ended, or was not ready in time, at the last attempt.
        SupervisorError: its process could not be started.
    """
    plan, environment, engine = spec.plan(free_port()), spec.environment, spec.engine
    mode, reasons = starter.choose(plan, environment)
    attempt = Attempt(mode, tuple(reasons), restarts=restarts)
    while True:
        try:
            return _ready(spec, attempt, journal, starter)
        except (Refused, WarmParentDied) as refusal:
            why = str(refusal)
            if isinstance(refusal, Refused):  # and one that died may live the next time
                starter.note_unusable(attempt.mode, plan, environment, why, certain=True)
            attempt = attempt.refused(why)
        except EngineStartError as error:
            race = worth_another(engine, error.detail)
            following = attempt.ended(error, race, cold=spec.tries_cold)
            if following is None:
                raise
            log = spec.log(journal)
            log.rename(log.with_name(f"{log.stem}-start-{attempt.number}{log.suffix}"))
            attempt = following
        journal.recorder.event(attempt.because, level="warning")


def _ready(spec: ServerSpec, attempt: Attempt, journal: Journal, starter: Starter) -> Server:
    """One start. Raises as :func:`start`, and Refused or WarmParentDied: nothing was started."""
    server = _launched(spec, attempt, journal, starter)
    recorder, facts = journal.recorder, journal.incident.engine
    started, plan, environment = server.started, server.plan, spec.environment
    try:
        if spec.control is None:
            server.sampler.start()
        pid = started.process.engine_pid
        recorder.event(f"engine started as process {pid}, start mode {attempt.mode}")
        stages = StartStages(spec.engine.start_marks, started.process.log, server.began)
        ready = _wait(server, stages)
        server.sampler.read_metrics()
        facts.start_seconds = round(ready - server.began, 2)
        facts.start_stages = stages.ended(ready)
        recorder.event(f"engine ready after {facts.start_seconds:.1f} s")
        starter.note(started, plan, environment, facts.start_seconds)
        for unusable, why in attempt.failed:  # another start worked: it was the mode
            starter.note_unusable(unusable, plan, environment, why, certain=False)
    except BaseException:
        _stop(server, journal, GRACE_HUNG_S)
        raise
    return server


def _launched(spec: ServerSpec, attempt: Attempt, journal: Journal, starter: Starter) -> Server:
    """A server whose process exists. Raises Refused, WarmParentDied or SupervisorError: none."""
    port, mode, environment, engine = free_port(), attempt.mode, spec.environment, spec.engine
    plan, log = spec.plan(port), spec.log(journal)
    settings = [*environment.notes, *mode_settings(mode, attempt.reasons), *plan.settings]
    settings += [*changes(spec.scenario, spec.options.flips), *attempt.restarts]
    note_plan(journal.incident, plan, settings, mode)
    if mode is StartMode.WARM and not starter.parent_of(plan, environment):
        with journal.stage("warm parent"):
            starter.warm(plan, environment)
    began = time.monotonic()
    started = starter.start(plan, environment, mode, cwd=journal.folder, log=log, grace_s=GRACE_S)
    journal.incident.engine.warm_parent = started.parent
    url, pid = f"http://127.0.0.1:{port}", started.process.engine_pid
    metrics = url + engine.metrics_path, engine.metrics
    gpu = GpuSampler(journal.recorder) if spec.gpu else None
    sampler = Sampler(journal.recorder, pid, *metrics, engine.role_of, gpu)
    return Server(spec, plan, url, began, started, sampler, attempt.restarts)


def _wait(server: Server, stages: StartStages) -> float:
    """When it was ready, monotonic seconds. Raises EngineStartError: it ended, or is late."""
    limit_s = server.spec.options.timeout_s
    if server.started.mode in SAFER:
        limit_s = min(limit_s, REPLACED_START_LIMIT_S)
    while not answers(server.url + server.spec.engine.ready_path):
        stages.look()
        code = server.process.exit_code
        if code is not None or time.monotonic() - server.began > limit_s:
            late = f"was not ready after {limit_s:g} s"
            what = late if code is None else f"ended with {code} while it started"
            lines = root_cause_lines(server.process.log)
            why = f" The log says: {lines[0]}" if lines else ""
            raise EngineStartError(
                f"{server.spec.engine.name} {server.spec.environment.spec.release} {what}.{why}",
                hint=f"less {server.process.log}",
                detail=lines,
                usage=code == USAGE_CODE,
                ended_with=code,
            )
        time.sleep(READY_POLL_S)
    return time.monotonic()


@contextlib.contextmanager
def in_service(server: Server, journal: Journal, *, keep: bool = False) -> Iterator[None]:
    """While a server is looked at; then it is stopped, or, all being well, left if ``keep``."""
    try:
        yield
    except BaseException:
        journal.recorder.phase = "stop"
        _stop(server, journal, GRACE_HUNG_S)
        raise
    if keep:
        server.process.detach()
        journal.incident.server = ServerFacts(url=server.url, pid=server.process.pid)
    else:
        hung = any(request.timed_out for request in journal.recorder.evidence.requests)
        _stop(server, journal, GRACE_HUNG_S if hung else GRACE_S)


def _stop(server: Server, journal: Journal, grace_s: float) -> None:
    """``grace_s``: seconds between SIGTERM and SIGKILL."""
    server.sampler.stop()
    with journal.stage("stop"):
        report = server.process.stop(grace_s)
    journal.incident.left_behind += report.left
    if report.shm_removed:
        names = ", ".join(report.shm_removed)
        journal.recorder.event(f"removed shared memory that the engine left: {names}")
    for command in report.forced:
        journal.recorder.event(f"needed SIGKILL: {command}")
