"""A run as a fold: environment, model, server, gate, trigger, check, verdict."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Collection, Coroutine
from dataclasses import replace
from pathlib import Path

from mmrepro import __version__
from mmrepro.base.errors import EngineStartError, RunTimeout
from mmrepro.base.machine import cache_root, host_facts, leased_gpu
from mmrepro.base.records import Moment, Setting
from mmrepro.base.units import duration
from mmrepro.engines import SERVED_MODEL, get_engine
from mmrepro.engines.environments import EnvironmentSpec
from mmrepro.engines.models import MODELS_DIR, TinyModel
from mmrepro.failure.documents import (
    EngineFacts,
    Incident,
    Journal,
    MitigationFacts,
    ModelFacts,
    discard_folder,
    make_run_dir,
)
from mmrepro.failure.signature import guarded
from mmrepro.runs.judge import Deadlines, facts_of, judge, note_judged, of_gate
from mmrepro.runs.key import START_MODE, decisive_parts, run_key
from mmrepro.runs.observe import Interpreter, Probing, read_log
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.start import (
    ServerSpec,
    Started,
    have_environment,
    in_service,
    note_environment,
    note_gpu,
    start,
)
from mmrepro.runs.starter import Starter
from mmrepro.scenario import Scenario
from mmrepro.traffic import Drive, Traffic
from mmrepro.traffic.evidence import Evidence, Listener, Phase


def begin(
    scenario: Scenario,
    options: RunCommand,
    resolved: EnvironmentSpec,
    listener: Listener | None = None,
) -> Journal:
    """The folder of a run that can be made, and what it holds at first.

    Args:
        resolved: the environment that ``options`` ask for: ``runs.start.target``.

    Raises:
        UsageError: the folder cannot be made.
        NoSpace: as ``make_run_dir``.
    """
    folder = make_run_dir(options.out, scenario.full_name, resolved.release)
    try:
        incident = blank(scenario, options, resolved.release, resolved.device, folder)
        journal = Journal(incident, folder, listener)
        # Whoever ends us from now on leaves an incident that can be read.
        journal.save()
    except BaseException:
        discard_folder(folder)
        raise

    return journal


def execute(
    scenario: Scenario,
    options: RunCommand,
    resolved: EnvironmentSpec,
    journal: Journal,
    starter: Starter,
) -> Incident:
    """Run to the verdict. The incident is on disk afterwards, whatever happened.

    ``resolved``: as :func:`begin` has it.

    Raises:
        MmreproError: infrastructure or usage; the partial incident is written first.
        KeyboardInterrupt: likewise.
    """
    with journal.whole_run(), contextlib.ExitStack() as held:
        gpu = None
        # Before anything is downloaded: a run without a GPU would need none of it.
        if resolved.device == "cuda":
            gpu = held.enter_context(leased_gpu())
            note_gpu(gpu, journal)

        with journal.stage("environment"):
            environment = have_environment(resolved, journal)
            note_environment(journal, environment)

        # `mmrepro env prune` beside us leaves it alone.
        held.enter_context(environment.in_use())
        with journal.stage("model"):
            model, journal.incident.model = model_of(scenario.model, options.model)

        models = journal.incident.host.gpus
        parts = decisive_parts(scenario, options, environment, model, starter, models)
        _note_key(journal.incident, parts)
        journal.save()
        spec = ServerSpec(scenario, options, environment, model, gpu=gpu)
        restarts = _control(spec, journal, starter)
        try:
            with journal.stage("start-up"):
                server = start(spec, journal, starter, restarts)
        except EngineStartError as error:
            failed = scenario.fails_at_start and error.ended_with is not None
            if error.usage or not (failed or error.refused):
                raise
            _note_never_ready(spec, journal, error)
            return journal.incident

        with in_service(server, journal, keep=options.keep_server):
            # The start may have found that the mode meant for it cannot be used.
            mode = {START_MODE: server.mode.value}
            _note_key(journal.incident, journal.incident.decided_by | mode)
            journal.save()
            asyncio.run(_bounded(_observe(server, journal, starter), options.timeout_s))
            server.sampler.stop()
            # All evidence is hashed before anything is judged.
            journal.save()
            with journal.stage("verdict"):
                _judge(spec, journal.incident, spec.log(journal))

            journal.recorder.phase = "stop"

    return journal.incident


def _note_key(incident: Incident, parts: dict[str, str]) -> None:
    incident.decided_by = parts
    incident.key = run_key(parts)


def _control(
    spec: ServerSpec, journal: Journal, starter: Starter
) -> tuple[Setting, ...]:
    """The other server, if the scenario has one: start, traffic, log, stop. Its
    restarts."""
    control, recorder = spec.scenario.control_server, journal.recorder
    if control is None:
        return ()
    with journal.stage("control"):
        recorder.phase = "control"
        recorder.event(f"control server: {control.description}")
        server = start(replace(spec, control=control), journal, starter)
        with in_service(server, journal):
            asyncio.run(
                _bounded(_control_traffic(server, journal), spec.options.timeout_s)
            )

        recorder.phase = "start"

    journal.save()
    return server.restarts


async def _control_traffic(server: Started, journal: Journal) -> None:
    async with driving(server, journal) as drive:
        await server.spec.scenario.control(drive)
        await Probing(server, server.spec.scenario, journal.recorder).logs()


async def _bounded(work: Coroutine[None, None, None], timeout_s: float) -> None:
    """Raises RunTimeout after ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError as error:
        raise RunTimeout(
            f"The run did not end within {duration(timeout_s)}.",
            hint="mmrepro run … --timeout SECONDS",
        ) from error


async def _observe(server: Started, journal: Journal, starter: Starter) -> None:
    recorder, scenario = journal.recorder, server.spec.scenario
    probing = Probing(server, scenario, recorder)
    try:
        async with driving(server, journal) as drive:
            with journal.stage("gate"):
                passed = await _gate(drive, probing, journal)

            if passed:
                recorder.phase = "trigger"
                with journal.stage("trigger"):
                    await scenario.trigger(drive)

            recorder.phase = "check"
            with journal.stage("probes"):
                interpreter = _interpreter(server, drive, starter)
                await probing.check(
                    drive.deadline_s, interpreter, waiting=bool(drive.pending)
                )
                await drive.collect()

            journal.incident.deadline_s = drive.deadline_s
    finally:
        recorder.evidence.engine_exit = server.process.exit_code


async def _gate(drive: Drive, probing: Probing, journal: Journal) -> bool:
    """Whether it passed; the drive has its deadlines afterwards."""
    recorder = journal.recorder
    scenario = probing.scenario
    recorder.phase = "gate"
    await scenario.gate(drive)
    facts, deadlines = of_gate(
        guarded(scenario.gate_check, recorder.evidence),
        _latencies(recorder.evidence, "gate"),
        Deadlines(drive.deadline_s, drive.suspect_s),
    )
    journal.incident.gate = facts
    drive.deadline_s = deadlines.answer_s
    drive.suspect_s = deadlines.suspect_s
    if not facts.passed:
        recorder.event(f"gate failed: {facts.why}", level="error")
        return False

    await probing.baseline()
    recorder.event(f"gate passed: {facts.why}")
    return True


def _latencies(evidence: Evidence, phase: Phase) -> list[float]:
    """Latencies of the requests of a phase that were answered."""
    latencies = []
    for request in evidence.requests_in(phase):
        if request.answered:
            latencies.append(request.latency_s)

    return latencies


@contextlib.asynccontextmanager
async def driving(server: Started, journal: Journal) -> AsyncIterator[Drive]:
    """The scenario's hands, until all that it sent is answered or given up."""
    spec = server.spec
    drive = Drive(
        traffic=Traffic(server.url, SERVED_MODEL, journal.recorder),
        recorder=journal.recorder,
        image_size=spec.scenario.model.image_size(),
        max_model_len=spec.scenario.max_model_len,
        release=spec.environment.spec.release,
        mitigations=frozenset(spec.options.mitigations),
        flips=frozenset(spec.options.flips),
        options=spec.scenario.read_options(spec.options.options),
        python=spec.environment.python,
        model=spec.model,
    )
    try:
        yield drive
    finally:
        # What is still unanswered would wait for as long as the engine hangs.
        for task in drive.pending:
            task.cancel()

        await asyncio.gather(*drive.pending, return_exceptions=True)
        await drive.traffic.close()


def _note_never_ready(
    spec: ServerSpec, journal: Journal, error: EngineStartError
) -> None:
    """The verdict on a server that ended as it started, by what it logged."""
    recorder = journal.recorder
    scenario = spec.scenario
    evidence = recorder.evidence
    evidence.never_ready = error.message
    evidence.engine_exit = error.ended_with
    recorder.event(error.message, level="error")
    if scenario.fails_at_start:
        # Its gate is the control server, which did start.
        answered = _latencies(evidence, "control")
        gate = guarded(scenario.gate_check, evidence)
        limits = Deadlines(spec.options.timeout_s, spec.options.timeout_s)
        journal.incident.gate, _ = of_gate(gate, answered, limits)

    recorder.phase = "check"
    with journal.stage("probes"):
        asyncio.run(read_log(spec.log(journal), spec.engine, scenario, recorder))

    journal.save()
    with journal.stage("verdict"):
        _judge(spec, journal.incident, spec.log(journal))

    recorder.phase = "stop"


def _interpreter(server: Started, drive: Drive, starter: Starter) -> Interpreter:
    environment = server.spec.environment
    parent = None
    if server.mode is StartMode.WARM:
        parent = starter.parent_of(server.plan, environment)
    env = {**server.plan.env, **drive.reproducer_env}
    return Interpreter(environment.python, env, parent)


def _judge(spec: ServerSpec, incident: Incident, log: Path) -> None:
    incident.mitigations = _mitigation_table(spec.scenario, spec.options.mitigations)
    if spec.environment.python_of:
        from mmrepro.engines.misfit import misfit_in

        incident.engine.misfit = misfit_in(log, spec.environment)

    facts = facts_of(incident, spec.scenario)
    incident.verdict = judge(spec.scenario, incident.evidence, facts)
    note_judged(incident, spec.scenario, facts, spec.environment)


def blank(
    scenario: Scenario, options: RunCommand, release: str, device: str, folder: Path
) -> Incident:
    """The incident of a run that has just begun, valid as it is.

    ``device``: ``cpu`` or ``cuda``, as decided; ``folder``: the run's own.
    """
    return Incident(
        mmrepro_version=__version__,
        id=uuid.uuid4().hex[:12],
        created=Moment.now(),
        state="interrupted",
        failure="the run has not ended",
        incident_dir=str(folder),
        command=options.command_line(scenario=options.scenario or scenario.name),
        scenario=scenario.facts,
        engine=EngineFacts(name=scenario.engine, release=release),
        host=host_facts(),
        fidelity=get_engine(scenario.engine).fidelity_on(device),
        references=list(scenario.references),
    )


def model_of(tiny: TinyModel, given: Path | None) -> tuple[Path, ModelFacts]:
    """Folder and facts of the model: the user's own if ``given``, else ``tiny``."""
    if given is not None:
        path = given.resolve()
        return path, ModelFacts(kind="given with --model", path=str(path))
    path = tiny.write(cache_root() / MODELS_DIR)
    with (path / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()

    return path, ModelFacts(
        kind=tiny.kind,
        path=str(path),
        parameters=tiny.parameters,
        seed=tiny.seed,
        image_tokens=tiny.image_tokens,
        sha256=digest,
    )


def _mitigation_table(
    scenario: Scenario, applied: Collection[str]
) -> list[MitigationFacts]:
    """Every mitigation; of none it is known yet whether it helps. ``applied``:
    names."""
    variant = f" --variant {scenario.variant}" if scenario.variant else ""
    return [
        MitigationFacts(
            name=mitigation.name,
            description=mitigation.description,
            applied=mitigation.name in applied,
            command=(
                f"mmrepro run {scenario.name}{variant} --mitigation {mitigation.name}"
            ),
        )
        for mitigation in scenario.mitigations
    ]
