"""Attempts at a case, each on a fresh server, and what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import shlex
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from mmrepro.base.errors import EngineStartError, InfrastructureError, UsageError
from mmrepro.base.machine import MOST_CONFIG_BYTES, Choice, leased_gpu, read_file
from mmrepro.base.records import EVIDENCE_DIR
from mmrepro.engines import SERVED_MODEL, get_engine
from mmrepro.engines.environments import Environment, EnvironmentSpec
from mmrepro.engines.misfit import lent_misfit_in, uninterpreted_in
from mmrepro.engines.models import TINY, TinyModel, TinyQwen2VL, TinyText
from mmrepro.engines.offline import RUNNER, SETTINGS_FILE, offline_settings
from mmrepro.engines.serving import pools
from mmrepro.engines.supervise import free_port
from mmrepro.failure.documents import Block, Journal, prepared_folder
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.judge import Deadlines, derive
from mmrepro.runs.options import RunCommand, StartMode
from mmrepro.runs.play.looking import of_engine, read_tracebacks
from mmrepro.runs.play.observing import Observing
from mmrepro.runs.play.options import (
    Look as Look,
    Measuring,
    PlayOptions as PlayOptions,
)
from mmrepro.runs.play.prepared import prepare
from mmrepro.runs.runner import blank, driving, model_of
from mmrepro.runs.start import (
    ServerSpec,
    Started,
    have_environment,
    in_service,
    note_environment,
    note_gpu,
    start,
    target,
)
from mmrepro.runs.starter import Starter, box_of
from mmrepro.scenario import Drive, Scenario
from mmrepro.scenario.registry import known_scenario
from mmrepro.traffic.capture import (
    BoxedRecording,
    ClientRun,
    ClientWanted,
    RecordingProxy,
    run_alone,
    run_client,
    run_trusted,
)
from mmrepro.traffic.case import Case, Played, PlayState, ServerWanted, pictures
from mmrepro.traffic.evidence import Listener

_NO_ROOM = ("No space left on device", "Cannot allocate memory")
"""In the log of a server that did not start: it is this machine's fault."""
RECORDED: Final = "recorded.har"
_GATE_LIMIT_S = 30.0
_POOLS_S = 2.0
"""The same of a model that pools, which is asked nothing before."""
_UNKNOWN_S = 0.2
"""An answer's time, where a gate measured none."""


class Player:
    """Fresh servers for the plays of one session. ``deadlines``: of ``calibrate()``;
    None before."""

    def __init__(
        self,
        server: ServerWanted,
        *,
        start_mode: StartMode = StartMode.AUTO,
        folder: Path,
        timeout_s: float = 600.0,
        device: str = "auto",
        listener: Listener | None = None,
        boxed: bool = False,
    ) -> None:
        """``boxed``: servers run in a box: a stranger chose their options or
        requests."""
        self.server = server
        self.folder = folder
        self.listener = listener
        self.options = RunCommand(timeout_s=timeout_s, device=device)
        self.deadlines: Deadlines | None = None
        self.starter = Starter(start_mode, several=True, boxed=boxed)
        self._held = contextlib.ExitStack()
        self._environments: dict[EnvironmentSpec, Environment] = {}
        self._gpu: Choice | None = None
        # Two may ask at a time.
        self._building = threading.RLock()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._starting: set[int] = set()
        self._tries_cold = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self.starter.__exit__()
        self._held.close()

    def cancel(self) -> None:
        """Plays in other threads stop their servers and raise KeyboardInterrupt."""
        with self._lock:
            self._cancelled.set()
            for thread in self._starting:
                # A build or a start looks at no event; it ends as by Ctrl-C in the main
                # thread.
                interrupt = ctypes.py_object(KeyboardInterrupt)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), interrupt
                )

    def calibrate(self) -> Deadlines:
        """Deadlines from latencies measured on a server of its own, which is stopped
        again: a scenario's gate, two images and a text.

        Where that server does not start, or does not answer, they are those of fast
        answers: the first play tells what is wrong."""
        self.deadlines = derive([_UNKNOWN_S])
        with (
            contextlib.suppress(EngineStartError),
            self.serving(self.server, self.folder / "calibrate") as (server, journal),
        ):
            self._measured(server, journal)

        return self.deadlines

    def record(self, wanted: ClientWanted, folder: Path) -> tuple[Deadlines, ClientRun]:
        """Run a client against a server of its own, whose latencies are measured
        before.

        What it sends is recorded as ``RECORDED`` in ``folder``. Where the server does
        not start nothing is: the first play tells what is wrong. Raises UsageError: the
        client cannot be run."""
        made = ClientRun(ran=False)
        self.deadlines = derive([_UNKNOWN_S])
        if wanted.offline:
            self.deadlines = derive([_POOLS_S])
            return self.deadlines, self._run_alone(wanted, folder)
        with (
            contextlib.suppress(EngineStartError),
            self.serving(self.server, folder) as (server, journal),
        ):
            self._measured(server, journal)
            environment = server.spec.environment
            wanted = replace(
                wanted,
                python=environment.python,
                readable=box_of(environment).readable,
            )
            port = urlsplit(server.url).port or 0
            if server.process.door is None:
                with RecordingProxy(port, SERVED_MODEL) as proxy:
                    made = run_trusted(wanted, proxy, alive=server.alive)
                    made.died = not server.alive()

                proxy.write(folder / RECORDED)
                made.notes += proxy.notes
            else:
                with BoxedRecording(
                    server.process.door, port, SERVED_MODEL
                ) as recording:
                    made = run_client(wanted, recording, alive=server.alive)
                    made.died = not server.alive()
                    recording.write(folder / RECORDED)
                made.notes += recording.notes

        return self.deadlines, made

    def _run_alone(self, wanted: ClientWanted, folder: Path) -> ClientRun:
        """Run a script that has the engine in its own process, with this server's model
        and options in it. Raises UsageError: it would not run in a box."""
        if not self.starter.boxed:
            raise UsageError(
                "A script that has the engine in its own process runs in a box only.",
                hint="leave --trust-report out (docs/box.md)",
            )
        scenario, options = replayed(self.server, self.options)
        resolved = target(scenario, options)
        journal = self._journal(scenario, options, resolved, folder)
        with journal.whole_run(), self._building:
            environment = self._environment(resolved, journal)
            model, journal.incident.model = model_of(scenario.model, options.model)
            spec = ServerSpec(scenario, options, environment, model, gpu=self._gpu)
            prepare(spec, _Replayed, journal)
            plan = spec.plan(free_port())
            engine = self.server.engine
            settings = offline_settings(engine, model, plan.argv, wanted.command[-1])
            text = json.dumps(settings)
            (wanted.folder / SETTINGS_FILE).write_text(text, encoding="utf-8")
            shutil.copyfile(reproducer_path(RUNNER), wanted.folder / RUNNER)
            command = (str(environment.python), RUNNER, SETTINGS_FILE)
            box = self.starter.box_for(plan, environment)
            return run_alone(replace(wanted, command=command), box)

    @contextlib.contextmanager
    def serving(
        self, wanted: ServerWanted, folder: Path
    ) -> Iterator[tuple[Started, Journal]]:
        """A server that is ready, and its journal; it is stopped afterwards.

        Raises:
            EngineStartError: it does not start; what its log says is in ``folder``.
            KeyboardInterrupt: the session was cancelled.
        """
        scenario, options = replayed(wanted, self.options)
        resolved = target(scenario, options)
        journal = self._journal(scenario, options, resolved, folder)
        with journal.whole_run():
            server = self._started(scenario, options, resolved, journal)
            with in_service(server, journal):
                yield server, journal

    def measure(self, wanted: Measuring, folder: Path) -> Block:
        """A server of each side under the same requests in turn; see
        ``runs.play.measuring``."""
        from mmrepro.runs.play.measuring import measure

        return measure(self, wanted, folder)

    @property
    def cancelled(self) -> bool:
        """Whether nothing goes on any more."""
        return self._cancelled.is_set()

    def play(
        self,
        case: Case,
        contents: Path | None,
        options: PlayOptions,
        folder: Path,
        *,
        on_look: Look | None = None,
    ) -> Played:
        """Play ``case``, whose pictures lie below ``contents``, with all that is kept
        in ``folder``. Two at a time may be played.

        Args:
            on_look: called before a server is stopped that still lives, hung or not.

        Raises:
            InfrastructureError: nothing was learnt of the engine.
            UsageError: what the case asks for cannot be had.
        """
        began = time.monotonic()
        deadlines = options.deadlines or self.deadlines or self.calibrate()
        made = pictures(case, contents)
        scenario, run_options = replayed(case.server, self.options)
        resolved = target(scenario, run_options)
        journal = self._journal(scenario, run_options, resolved, folder)
        journal.incident.deadline_s = deadlines.answer_s
        played = Played(state=PlayState.ENDED, deadline_s=deadlines.answer_s)
        played.evidence = journal.recorder.evidence
        played.log_file = f"{EVIDENCE_DIR}/engine.log"
        played.device = resolved.device
        try:
            with journal.whole_run():
                server = self._started(scenario, run_options, resolved, journal)
                with in_service(server, journal):
                    played.start_s = journal.incident.engine.start_seconds or 0.0
                    observing = Observing(
                        server,
                        journal.recorder,
                        options,
                        deadlines,
                        made,
                        self._cancelled,
                    )
                    asyncio.run(observing.play(case, played, on_look))
                    journal.recorder.phase = "stop"
        except EngineStartError as error:
            if _has_no_room(error):
                raise
            # The mode makes no difference to this failure.
            if journal.incident.engine.start_mode == StartMode.COLD:
                self._tries_cold = False
            _note_failed_start(played, case, journal, error)

        environment = self._environments[resolved]
        log = journal.recorder.dir / "engine.log"
        if kernel := uninterpreted_in(log):
            raise InfrastructureError(kernel, hint="--runner v1")
        may_lack = not options.needs_fit and played.state is PlayState.START_FAILED
        if not may_lack and (misfit := lent_misfit_in(log, environment)):
            raise InfrastructureError(misfit, hint="--kernels RELEASE")
        played.seconds = round(time.monotonic() - began, 2)
        return played

    # ------------------------------------------------------------------ inner workings

    def _measured(self, server: Started, journal: Journal) -> None:
        """The deadlines that follow from what a warm-up check takes on this server."""
        if pools(self.server.engine, self.server.args):
            # The check is a chat, by which such a server may end.
            self.deadlines = derive([_POOLS_S])
            return
        asyncio.run(_gate(server, journal))
        requests = journal.recorder.evidence.requests
        answered = [request.latency_s for request in requests if request.answered]
        self.deadlines = derive(answered or [_UNKNOWN_S])
        journal.incident.deadline_s = self.deadlines.answer_s

    def _journal(
        self,
        scenario: Scenario,
        options: RunCommand,
        resolved: EnvironmentSpec,
        folder: Path,
    ) -> Journal:
        """Journal of a play in ``folder``. Raises as ``prepared``."""
        folder = prepared_folder(folder, EVIDENCE_DIR)
        incident = blank(scenario, options, resolved.release, resolved.device, folder)
        return Journal(incident, folder, self.listener)

    def _started(
        self,
        scenario: Scenario,
        options: RunCommand,
        resolved: EnvironmentSpec,
        journal: Journal,
    ) -> Started:
        """A server that is ready; :meth:`cancel` breaks this off. Raises as ``start``
        and ``ensure``, and KeyboardInterrupt."""
        mine = threading.get_ident()
        with self._lock:
            if self._cancelled.is_set():
                raise KeyboardInterrupt
            self._starting.add(mine)

        try:
            return self._start(scenario, options, resolved, journal)
        finally:
            with self._lock:
                self._starting.discard(mine)

    def _start(
        self,
        scenario: Scenario,
        options: RunCommand,
        resolved: EnvironmentSpec,
        journal: Journal,
    ) -> Started:
        with self._building:
            environment = self._environment(resolved, journal)
            model, journal.incident.model = model_of(scenario.model, options.model)

        spec = ServerSpec(
            scenario,
            options,
            environment,
            model,
            gpu=self._gpu,
            tries_cold=self._tries_cold,
        )
        if self.starter.boxed:
            with self._building:
                prepare(spec, _Replayed, journal)

        with journal.stage("start-up"):
            return start(spec, journal, self.starter)

    def _environment(self, wanted: EnvironmentSpec, journal: Journal) -> Environment:
        """Found or built once a session, and kept from being pruned as long as it
        lasts."""
        if wanted.device == "cuda" and self._gpu is None:
            self._gpu = self._held.enter_context(leased_gpu())
        if self._gpu is not None:
            note_gpu(self._gpu, journal)
        if wanted not in self._environments:
            environment = have_environment(wanted, journal)
            self._held.enter_context(environment.in_use())
            self._environments[wanted] = environment

        environment = self._environments[wanted]
        note_environment(journal, environment)
        return environment


def _has_no_room(error: EngineStartError) -> bool:
    """Whether the log's lines say that this machine was full."""
    lines = "\n".join(error.detail)
    return any(sign in lines for sign in _NO_ROOM)


def _note_failed_start(
    played: Played, case: Case, journal: Journal, error: EngineStartError
) -> None:
    """Write into ``played`` why its server did not start, by its log first."""
    played.state = PlayState.START_FAILED
    played.said = error.message
    played.unsent = [op.id for op in case.operations]

    engine = get_engine(case.server.engine)
    tracebacks = read_tracebacks(journal.recorder.dir / "engine.log")
    first = of_engine(tracebacks, engine)
    causes = list(error.detail)
    if first:
        causes.insert(0, first.error)
        played.frames = first.frames_of(engine)
        played.places = first.places_of(engine)
    played.causes = list(dict.fromkeys(causes))


async def _gate(server: Started, journal: Journal) -> None:
    """A scenario's warm-up check, for its latencies."""
    journal.recorder.phase = "gate"
    async with driving(server, journal) as drive:
        drive.deadline_s = _GATE_LIMIT_S
        await server.spec.scenario.gate(drive)


# --------------------------------------------- the scenario that starts a case's server

_NAME = "replay"


class _Replayed(Scenario):
    """A case is played.

    What: the requests of a case are sent to a fresh server.

    Why: to see whether it fails.
    """

    name = _NAME
    release = ""
    affected = ""

    async def trigger(self, drive: Drive) -> None:
        """The player sends what the case says."""


def replayed(wanted: ServerWanted, options: RunCommand) -> tuple[Scenario, RunCommand]:
    """The scenario that starts ``wanted``, and the options with its model and
    mitigation. Raises
    UsageError: there is no such model or mitigation."""
    tiny = wanted.tiny
    # What is none of the tiny models is a folder of the user's own.
    given = None if tiny else Path(wanted.model)
    attributes: dict[str, Any] = {
        "__doc__": _Replayed.__doc__,
        "engine": wanted.engine,
        "release": wanted.release,
        "model": tiny or _stand_in(Path(wanted.model)),
        "max_model_len": wanted.max_model_len,
        "server": shlex.join(wanted.args),
        "server_env": wanted.env,
    }
    names: tuple[str, ...] = ()
    if wanted.mitigation:
        scenario, _, name = wanted.mitigation.rpartition("/")
        known = known_scenario(scenario, trust=False)  # the name is of a case's file
        if known.engine != wanted.engine:
            raise UsageError(
                f"{wanted.mitigation} is of {known.engine}, not of {wanted.engine}."
            )

        attributes["mitigations"], names = (known.mitigation(name),), (name,)

    made = type("Replayed", (_Replayed,), attributes)()
    return made, RunCommand(
        model=given,
        mitigations=names,
        timeout_s=options.timeout_s,
        device=options.device,
    )


def _stand_in(folder: Path) -> TinyModel:
    """What is known of a model of the user's own: whether it sees images. Raises
    UsageError."""
    try:
        config = json.loads(read_file(folder / "config.json", MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        names = ", ".join(TINY)
        raise UsageError(
            f"{folder} holds no model: its config.json cannot be read.",
            hint=f"--model DIR, or one of {names}",
        ) from error

    sees = isinstance(config, dict) and any("vision" in name for name in config)
    return TinyQwen2VL() if sees else TinyText()
