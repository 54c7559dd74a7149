"""From what was asked for to a server that is ready, and to its end.

``start`` gives a ``Started``: the server, and all that its start decided.
``Started.note`` is where that is written into the incident."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mmrepro.base import processes
from mmrepro.base.errors import (
    EngineStartError,
    ForkServerDied,
    UnknownRelease,
    UsageError,
    did_you_mean,
)
from mmrepro.base.machine import Choice, is_file, write_file
from mmrepro.base.records import Setting
from mmrepro.base.units import duration
from mmrepro.engines import Engine, LaunchPlan, LaunchRequest, get_engine, spec_for
from mmrepro.engines.environments import Environment, EnvironmentSpec, Notice, ensure
from mmrepro.engines.supervise import EngineProcess, answers, free_port
from mmrepro.engines.supervise.warm import Refused
from mmrepro.failure.documents import Incident, Journal, ServerFacts, WarmParentFacts
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.starter import SAFER, Starter, StartStages, mode_setting
from mmrepro.scenario import Control, Scenario
from mmrepro.scenario.parts import REFUSED
from mmrepro.traffic.evidence import BUILD, BUILD_NOTICE, GpuSampler, Sampler
from packaging.version import InvalidVersion, Version

_READY_POLL_S = 0.05
REPLACED_START_LIMIT_S = 120.0
"""For a start in a mode that replaces something; a cold one may take the run's whole
time."""
_CHILDREN_POLL_S = 1.0
_STANDS_S = 4.0
_STANDS_SHARE = 0.1
"""Of one core, all processes together: below it a starting server does no work."""
_HEAD_BYTES = 4 << 20
_USAGE_CODE = 2
"""argparse's exit code: the mode of the start has nothing to do with it."""
_GRACE_HUNG_S = 1.0
_GRACE_S = 6.0
START_ATTEMPTS = 5

# ------------------------------------------------------------------- what was asked for


def chosen_release(scenario: Scenario, options: RunCommand) -> str:
    """The release that is run: a mitigation's, the one asked for, or the scenario's
    own.

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
            f"--mitigation release means {replaced[0]}, but --release says "
            f"{options.release}."
        )

    release = (replaced or [options.release or scenario.release])[0]
    try:
        Version(release)
    except InvalidVersion as error:
        from mmrepro.scenarios.data import recorded_releases

        raise UnknownRelease(
            f"{release!r} is not a release of {scenario.engine}."
            + did_you_mean(release, recorded_releases([scenario.engine])),
            hint=f"mmrepro show {scenario.name}",
        ) from error

    return release


def check(scenario: Scenario, options: RunCommand) -> None:
    """What can be told of ``options`` before anything is fetched.

    Raises:
        UsageError: the scenario has no such option, factor or mitigation; the folder
            holds no model; as ``Engine.given``.
    """
    if options.model is not None and not is_file(options.model / "config.json"):
        raise UsageError(
            f"{options.model} holds no model: it has no config.json.",
            hint="--model DIR, or leave it out for the scenario's own",
        )

    scenario.read_options(options.options)
    changes(scenario, options.flips)
    for name in options.mitigations:
        scenario.mitigation(name)

    get_engine(scenario.engine).given(options.server_args)


def target(scenario: Scenario, options: RunCommand) -> EnvironmentSpec:
    """The environment that is run, as asked for. Raises as :func:`check`,
    ``chosen_release`` and ``spec_for``."""
    check(scenario, options)
    if options.commit:
        return spec_for(
            scenario.engine,
            options.release,
            options.device,
            commit=options.commit,
            date=options.commit_date,
        )

    return spec_for(scenario.engine, chosen_release(scenario, options), options.device)


def changes(scenario: Scenario, flips: Iterable[str]) -> list[Setting]:
    """What a run sets on purpose: toggled factors, the options of its control
    server."""
    settings = []
    for factor in map(scenario.factor, flips):
        why = f"flipped; was {factor.failing}"
        name = f"factor {factor.name}"
        settings.append(Setting(name=name, value=factor.setting, why=why))

    control = scenario.control_server
    if control is not None:
        options = shlex.join(control.server_args)
        why = control.description
        settings.append(Setting(name="control server", value=options, why=why))

    return settings


@dataclass(frozen=True)
class ServerSpec:
    """A server that is to be started: the run's own, or its ``control`` server.

    Attributes:
        control: given, the server has its options and no mitigation.
        gpu: what a GPU run takes.
        tries_cold: if it does not start, in a mode that replaces nothing; not where
            that is known to make no difference.
    """

    scenario: Scenario
    options: RunCommand
    environment: Environment
    model: Path
    control: Control | None = None
    gpu: Choice | None = None
    tries_cold: bool = True

    @property
    def engine(self) -> Engine:
        return get_engine(self.scenario.engine)

    def plan(self, port: int) -> LaunchPlan:
        """The server's command and variables; nothing is started. Raises UsageError."""
        scenario = self.scenario
        options = self.options
        engine = self.engine
        mitigations = []
        # A control server shows what the unchanged engine does.
        if self.control is None:
            mitigations = [scenario.mitigation(name) for name in options.mitigations]
            mitigations += [scenario.factor(name).flip for name in options.flips]

        if options.contract_probe:
            watch = engine.contract_watch()
            if watch is None:
                raise UsageError(
                    f"There is no contract probe for {engine.name}.",
                    hint="leave --contract-probe out",
                )
            mitigations.append(watch)

        arguments = [*scenario.server_args_with(options.options)]
        packages = self.environment.site_packages
        arguments += engine.known(scenario.server_if_known, packages)
        arguments += options.server_args
        if self.control:
            arguments += self.control.server_args

        return engine.plan(
            LaunchRequest(
                environment=self.environment,
                model=self.model,
                port=port,
                max_model_len=scenario.max_model_len,
                server_args=tuple(arguments),
                mitigations=tuple(mitigations),
                patches=scenario.patches_for(chosen_release(scenario, options)),
                server_env=scenario.server_env,
                gpu=tuple(self.gpu.settings()) if self.gpu else (),
            )
        )

    def log(self, journal: Journal) -> Path:
        return journal.recorder.dir / ("control.log" if self.control else "engine.log")


def have_environment(wanted: EnvironmentSpec, journal: Journal) -> Environment:
    """The environment, found or built; the journal gets the progress. Raises as
    ``ensure``."""

    def progress(text: str) -> None:
        source = BUILD_NOTICE if isinstance(text, Notice) else BUILD
        journal.recorder.event(text, source=source)

    return ensure(wanted, progress=progress)


def note_gpu(choice: Choice, journal: Journal) -> None:
    """Write down which device the run takes, and who uses the others."""
    host = journal.incident.host
    host.gpus = choice.names
    host.gpu_facts = choice.facts()
    names = ", ".join(device.label for device in choice.devices)
    if names:
        journal.recorder.event(f"the run takes {names}")
    else:
        why = f"the GPU cannot be inspected: {choice.unseen}"
        journal.recorder.event(why, level="warning")

    for sentence in choice.passed_over:
        journal.recorder.event(f"in use by others: {sentence}")


def note_environment(journal: Journal, environment: Environment) -> None:
    """Write down what the engine was installed as; the list with hashes is copied."""
    engine = journal.incident.engine
    engine.commit = environment.spec.commit
    engine.wheel = environment.wheel
    engine.python_of, engine.kernels = environment.python_of, environment.kernels
    if environment.python_of:
        journal.recorder.event(environment.python_of, source=BUILD_NOTICE)
    engine.python = environment.python_version
    engine.resolved_until = environment.resolved_until
    engine.packages = environment.packages
    engine.settings = list(environment.notes)
    copy = journal.recorder.dir / environment.lock_file.name
    # Without the list the run is as good: only its report lacks the hashes.
    with contextlib.suppress(OSError):
        write_file(copy, environment.lock_file.read_bytes())
        engine.packages_file = copy.name


# ---------------------------------------------------------------------- the start


@dataclass(eq=False, repr=False)
class Started:
    """A start of a server: what it decided, and the server that came of it.

    Attributes:
        refusals: why the mode is no faster one.
        restarts: starts of the run so far that were repeated, for a reason that is
            chance.
        began: monotonic seconds; ``seconds``: until it was ready, by ``stages``; None:
            it is not.
        parent: the fork server whose fork it is.
        isolation: the box that it runs in; (): none.
        runner: its model runner, and a front end in place of the usual one, as its log
            shows them; "": unknown.
        process, sampler: there once the process is; of a control server nothing is
            sampled.
    """

    spec: ServerSpec
    mode: StartMode
    refusals: tuple[str, ...]
    restarts: tuple[Setting, ...]
    plan: LaunchPlan
    url: str
    began: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    parent: WarmParentFacts | None = None
    isolation: tuple[Setting, ...] = ()
    runner: str = ""
    process: EngineProcess = field(init=False)
    sampler: Sampler = field(init=False)

    @property
    def core_pid(self) -> int | None:
        """The process that schedules; None if it is gone."""
        for pid in self.process.process_ids():
            role = self.spec.engine.role_of(processes.name(pid), processes.cmdline(pid))
            if self.spec.engine.core_role in role:
                return pid

        return None

    def alive(self) -> bool:
        """Whether it runs, with the process that schedules."""
        return self.process.exit_code is None and self.core_pid is not None

    @property
    def other_pids(self) -> list[int]:
        """The processes that run the model beside :attr:`core_pid`: workers, other
        replicas."""
        engine = self.spec.engine
        first = self.core_pid
        others = []
        for pid in self.process.process_ids():
            role = engine.role_of(processes.name(pid), processes.cmdline(pid))
            worker = bool(engine.worker_role) and role.startswith(engine.worker_role)
            if pid != first and (worker or engine.core_role in role):
                others.append(pid)

        return others

    @property
    def settings(self) -> list[Setting]:
        """All that was set or replaced, for the report."""
        return [
            *self.spec.environment.notes,
            mode_setting(self.mode, self.refusals),
            *self.isolation,
            *self.plan.settings,
            *changes(self.spec.scenario, self.spec.options.flips),
            *self.restarts,
        ]

    def note(self, incident: Incident) -> None:
        """Write the start down; nothing else does."""
        plan = self.plan
        # Where mmrepro itself lies is no fact of the run: reports are the same from any
        # checkout.
        here = str(reproducer_path("").absolute())
        variables = {}
        for name, value in plan.env.items():
            variables[name] = value.replace(here, "{reproducers}")

        engine = incident.engine
        engine.command = plan.argv
        engine.environment = variables
        engine.settings = self.settings
        engine.start_mode = self.mode
        engine.warm_parent = self.parent
        engine.start_seconds = self.seconds
        engine.start_stages = self.stages
        engine.runner = self.runner
        incident.stand_ins = plan.stand_ins
        incident.fidelity = plan.fidelity


def start(
    spec: ServerSpec,
    journal: Journal,
    starter: Starter,
    restarts: tuple[Setting, ...] = (),
) -> Started:
    """Start a server and wait until it is ready; one that does not become ready is
    stopped.

    A port that was taken, and a start that an engine is known to fail at random, are
    tried anew; one that failed in a mode that replaces something is tried cold. The
    incident holds the last attempt, whatever came of it. ``restarts``: earlier ones.

    Raises:
        EngineStartError: it ended, or was not ready in time, at the last attempt.
        SupervisorError: its process could not be started.
    """
    plan = spec.plan(free_port())
    mode, refusals = starter.choose(plan, spec.environment)
    failed: list[tuple[StartMode, str]] = []
    number = 1
    while True:
        port = free_port()
        started = Started(
            spec=spec,
            mode=mode,
            refusals=tuple(refusals),
            restarts=restarts,
            plan=spec.plan(port),
            url=f"http://127.0.0.1:{port}",
        )
        try:
            _launch(started, journal, starter)
            _until_ready(started, journal, starter, failed)
            return started
        except Refused as refusal:
            # Nothing was started: it counts as no attempt.
            because = f"not {mode}: {refusal}"
            refusals = [*refusals, because]
            unusable = [mode, StartMode.FORK] if refusal.cold else [mode]
            for known in unusable:
                why = str(refusal)
                starter.note_unusable(known, plan, spec.environment, why, certain=True)

            mode = StartMode.COLD if refusal.cold else SAFER[mode]
        except ForkServerDied as refusal:
            # Neither was anything here; but one that died may live the next time.
            because = f"not {mode}: {refusal}"
            refusals = [*refusals, because]
            mode = SAFER[mode]
        except EngineStartError as error:
            race = error.race
            by_mode = not (error.usage or error.refused)
            tries_cold = spec.tries_cold and mode in SAFER and by_mode
            if number == START_ATTEMPTS or not (race or tries_cold):
                raise

            log = spec.log(journal)
            log.rename(log.with_name(f"{log.stem}-start-{number}{log.suffix}"))
            number += 1
            if race:
                because = f"{race}; starting it again"
                repeated = Setting(name="start-up", value="repeated", why=race)
                restarts = (*restarts, repeated)
            else:
                because = f"a start in mode {mode} failed: {error.message}"
                failed.append((mode, error.message))
                refusals = [*refusals, because]
                mode = StartMode.COLD
        finally:
            started.note(journal.incident)

        journal.recorder.event(because, level="warning")


def _launch(started: Started, journal: Journal, starter: Starter) -> None:
    """Make the server's process. Raises Refused, ForkServerDied or SupervisorError:
    none."""
    spec = started.spec
    plan = started.plan
    mode = started.mode
    if mode is StartMode.WARM and not starter.parent_of(plan, spec.environment):
        with journal.stage("fork server"):
            starter.warm(plan, spec.environment)

    # The fork server's own start is a stage of its own, and no time of this one.
    started.began = time.monotonic()
    started.process, started.parent = starter.start(
        plan,
        spec.environment,
        mode,
        cwd=journal.folder,
        log=spec.log(journal),
        grace_s=_GRACE_S,
    )
    box = started.process.isolation
    if box:
        started.isolation = (Setting(name="isolation", value="box", why=box),)

    started.process.reach(urlsplit(started.url).port or 0)
    started.sampler = Sampler(
        journal.recorder,
        started.process.engine_pid,
        started.url + spec.engine.metrics_path,
        spec.engine.metrics,
        spec.engine.role_of,
        GpuSampler(journal.recorder) if spec.gpu else None,
    )


def _until_ready(
    started: Started,
    journal: Journal,
    starter: Starter,
    failed: Sequence[tuple[StartMode, str]],
) -> None:
    """Wait for a server that exists; stop it if it fails. Raises EngineStartError.

    ``failed``: modes in which it did not become ready, and why: if it does now, it was
    the mode."""
    spec, plan, recorder = started.spec, started.plan, journal.recorder
    try:
        if spec.control is None:
            started.sampler.start()
        pid = started.process.engine_pid
        recorder.event(f"engine started as process {pid}, start mode {started.mode}")
        stages = StartStages(
            spec.engine.start_marks, started.process.log, started.began
        )
        ready = _wait(started, stages)
        started.sampler.read_metrics()
        started.seconds = round(ready - started.began, 2)
        # The last lines may have come between the last look and the answer.
        started.stages = stages.ended(ready)
        started.runner = _runner_in(started.process.log, spec.engine)
        recorder.event(f"engine ready after {started.seconds:.1f} s")
        starter.note(
            started.mode, plan, spec.environment, started.seconds, started.parent
        )
        for mode, why in failed:
            starter.note_unusable(mode, plan, spec.environment, why, certain=False)
    except BaseException:
        # By Ctrl-C, too: nobody else knows of the process yet.
        _stop(started, journal, _GRACE_HUNG_S)
        raise


def _runner_in(log: Path, engine: Engine) -> str:
    """Name the model runner and the front end that ``log`` shows; "": neither."""
    if not engine.runner_marks:
        return ""
    try:
        with log.open("rb") as file:
            # A server that is ready has loaded its model: the head is enough.
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    names = [_first_mark(head, engine.runner_marks)]
    names.append(_first_mark(head, engine.front_marks))
    return ", ".join(name for name in names if name)


def _first_mark(text: bytes, marks: Mapping[str, str]) -> str:
    """Name the mark that stands first in ``text``; "": none does."""
    first: dict[int, str] = {}
    for name, mark in marks.items():
        if match := re.search(mark.encode(), text):
            first[match.start()] = name
    return first[min(first)] if first else ""


def _wait(started: Started, stages: StartStages) -> float:
    """When it was ready, monotonic seconds. Raises EngineStartError: it ended, or is
    late."""
    spec = started.spec
    limit_s = spec.options.timeout_s
    # There is a safer mode to try: it should still have time.
    if started.mode in SAFER:
        limit_s = min(limit_s, REPLACED_START_LIMIT_S)
    children = _Children(started)
    while not answers(started.url + spec.engine.ready_path):
        stages.look()
        code = started.process.exit_code
        if code is not None:
            raise _failed(started, f"ended with {code} while it started", code)
        child = children.lost()
        if child:
            what = (
                f"lost its process {child} while it started, and nothing has moved "
                "since"
            )
            raise _failed(started, what, None)
        if time.monotonic() - started.began > limit_s:
            late = f"was not ready after {duration(limit_s)}"
            raise _failed(started, late, None)

        time.sleep(_READY_POLL_S)

    return time.monotonic()


_DIED: Final = re.compile(rb"^Process ([\w.-]{1,60}):\s*\nTraceback ", re.MULTILINE)
"""What multiprocessing prints as a child ends by an exception."""


def _died_by_log(log: Path) -> str:
    """The child that a log says has died, whoever saw it alive; "": none."""
    try:
        with log.open("rb") as file:
            found = _DIED.search(file.read(_HEAD_BYTES))
    except OSError:
        return ""
    return found[1].decode() if found else ""


class _Children:
    """The processes of a server that starts: an engine whose child died may wait for it
    until the time limit. It is given up once nothing moves: no line in its log, no work
    on a processor."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._known: dict[int, str] = {}
        self._lost = ""
        self._looked = time.monotonic()
        self._moved = self._looked
        self._log_bytes = 0
        self._ticks = 0

    def lost(self) -> str:
        """The child that ended, as reports name it, once the server stands still; "":
        none."""
        now = time.monotonic()
        elapsed = now - self._looked
        if elapsed < _CHILDREN_POLL_S:
            return ""
        self._looked = now
        process = self._started.process
        pids = process.process_ids()
        for pid in set(pids) - {process.engine_pid}:
            # As it ends its command line is empty: then the name of before counts.
            self._known[pid] = self._role(pid) or self._known.get(pid, "")

        gone = [role for pid, role in self._known.items() if pid not in pids and role]
        self._lost = gone[-1] if gone else ""
        # Both are asked: each counts from its own last answer.
        wrote = self._has_written(process.log)
        worked = self._has_worked(pids, elapsed)
        if wrote or worked:
            self._moved = now
        if now - self._moved < _STANDS_S:
            return ""
        # The log is read once nothing moves, not each time.
        return self._lost or _died_by_log(process.log)

    def _has_written(self, log: Path) -> bool:
        """Whether the log has grown since the last look."""
        before = self._log_bytes
        with contextlib.suppress(OSError):
            self._log_bytes = log.stat().st_size
        return self._log_bytes != before

    def _has_worked(self, pids: Iterable[int], elapsed: float) -> bool:
        """Whether the processes have used a processor in the seconds since then."""
        before = self._ticks
        self._ticks = 0
        for pid in pids:
            stat = processes.stat(pid)
            if stat is not None:
                self._ticks += stat.user_ticks + stat.system_ticks

        # A process that ended takes its ticks with it, so that the sum may fall.
        used = abs(self._ticks - before)
        return used > _STANDS_SHARE * elapsed * processes.TICKS_PER_S

    def _role(self, pid: int) -> str:
        """What a process of the engine is called; "": it is a helper, which may end."""
        command = processes.cmdline(pid)
        name = processes.name(pid)
        if not command or "resource_tracker" in command:
            return ""
        spawned = "multiprocessing" in command or "spawn_main" in command
        forked = command == processes.cmdline(self._started.process.engine_pid)
        role = self._started.spec.engine.role_of(name, command)
        return f"{role} ({pid})" if spawned or forked or role != name else ""


def _failed(started: Started, what: str, code: int | None) -> EngineStartError:
    """The error of a start that ended with ``code``, or that is late (None)."""
    from mmrepro.engines.misfit import misfit_in
    from mmrepro.engines.starts import explain

    engine = started.spec.engine
    environment = started.spec.environment
    release = environment.spec.release
    log = started.process.log
    explanation = explain(log, engine, release, code)
    # Where a source tree and its compiled files do not fit, that is the reason.
    sentence = misfit_in(log, environment) or explanation.sentence
    return EngineStartError(
        f"{engine.name} {release} {what}. {sentence}".rstrip(),
        hint=f"mmrepro why {log}",
        detail=[*explanation.lines],
        usage=code == _USAGE_CODE,
        ended_with=code,
        race=explanation.race,
        refused=_refused(started),
    )


def _refused(started: Started) -> bool:
    """Whether the log holds the words with which a release refuses what the scenario
    needs."""
    words = started.spec.scenario.log_patterns.get(REFUSED)
    if not words:
        return False
    try:
        text = started.process.log.read_text(errors="replace")
    except OSError:
        return False
    return re.search(words, text) is not None


@contextlib.contextmanager
def in_service(
    server: Started, journal: Journal, *, keep: bool = False
) -> Iterator[None]:
    """While a server is observed; then it is stopped, or, all being well, left if
    ``keep``."""
    try:
        yield
    except BaseException:
        journal.recorder.phase = "stop"
        _stop(server, journal, _GRACE_HUNG_S)
        raise

    if keep:
        server.process.detach()
        journal.incident.server = ServerFacts(url=server.url, pid=server.process.pid)
    else:
        # One that hangs does not end by itself: no time is given to it.
        hung = any(request.timed_out for request in journal.recorder.evidence.requests)
        _stop(server, journal, _GRACE_HUNG_S if hung else _GRACE_S)


def _stop(server: Started, journal: Journal, grace_s: float) -> None:
    """Stop the server. ``grace_s``: seconds between SIGTERM and SIGKILL."""
    server.sampler.stop()
    with journal.stage("stop"):
        report = server.process.stop(grace_s)

    journal.incident.left_behind += report.left
    if report.shm_removed:
        names = ", ".join(report.shm_removed)
        journal.recorder.event(f"removed shared memory that the engine left: {names}")

    for command in report.forced:
        journal.recorder.event(f"needed SIGKILL: {command}")
