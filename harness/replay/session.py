"""A replay from start to end: played, judged, confirmed, shrunk, and its files at every step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import mmrepro
from mmrepro.capture.anonymise import anonymise
from mmrepro.capture.captured import Captured
from mmrepro.capture.read import read
from mmrepro.capture.scale import scale
from mmrepro.case.files import case_digest, read_case, write_case
from mmrepro.case.model import Case
from mmrepro.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.incident import INCIDENT_FILE, Fidelity, Incident
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.fuzz import Fuzz
from mmrepro.incident.replay import Finding, PlayFacts, Replay
from mmrepro.machine.facts import host_facts
from mmrepro.machine.files import is_there
from mmrepro.oracle.judge import judge
from mmrepro.play.player import Player
from mmrepro.records import Moment
from mmrepro.replay.known import Naming
from mmrepro.replay.options import ReplayCommand
from mmrepro.replay.plays import PLAYS_DIR, Looker, PlayerLike, Told
from mmrepro.replay.rounds import Judge, Lead, Rounds
from mmrepro.replay.store import Head, Store, holds_replay
from mmrepro.replay.watcher import Watcher
from mmrepro.text.redact import Redactor
from pydantic import ValidationError

DEFAULT_ROOT = "replays"
NOT_ENDED = "the replay has not ended"
MakePlayer = Callable[..., AbstractContextManager[PlayerLike]]


class Replaying:
    """A replay in progress. ``replay`` is valid, if partial, at every moment."""

    def __init__(
        self,
        options: ReplayCommand,
        watcher: Watcher | None = None,
        *,
        write: Callable[[Replay, Path], object],
        make_player: MakePlayer = Player,
        judge: Judge = judge,
        look: Callable[[str, float], Looker] = Naming,
        lead: Lead | None = None,
    ) -> None:
        """``write`` writes the replay's documents below its folder, each time that it has grown;
        the findings' folders with their ``case.json`` are there by then."""
        self.options, self.watcher = options, watcher
        self._lead = lead or Lead()
        self._write_documents, self._make_player = write, make_player
        self._judge, self._look = judge, look
        self.dir: Path
        self.replay: Replay

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; no play that has ended is played again."""
        return self.options.command_line(out=None, resume=self.dir)

    def execute(self) -> Replay:
        """Replay to the conclusion. The files are on disk afterwards, whatever happened.

        Raises:
            MmreproError: usage, or infrastructure that no play can do without.
            KeyboardInterrupt: the partial replay is on disk.
        """
        case = self._case()
        with Store(self.dir, self._head(case)) as store:
            self.replay = self._blank(case, store.head.id)
            self._write()
            try:
                with self._make_player(
                    case.server,
                    start_mode=self.options.start_mode,
                    folder=self.dir,
                    timeout_s=self.options.timeout_s,
                    listener=self.watcher.event if self.watcher else None,
                ) as player:
                    self._run(case, player, store)
            except KeyboardInterrupt:
                self._end("interrupted", f"interrupted; to resume, run: {self.resume_command}")
                raise
            except MmreproError as error:
                self._end("failed", error.message)
                raise
            except BaseException as error:
                self._end("failed", f"mmrepro itself failed: {type(error).__name__}: {error}")
                raise
            self._end("complete")
        return self.replay

    def _run(self, case: Case, player: PlayerLike, store: Store) -> None:
        self._rounds = Rounds(
            self.replay,
            self.dir,
            self.options,
            self._lead,
            player,
            store,
            judge=self._judge,
            look=self._look,
            told=Told(self._began, self._ended),
            grew=self._grew,
        )
        self._rounds.play(case)

    def _began(self, what: str, requests: int) -> None:
        if self.watcher is not None:
            self.watcher.began(self.replay, what, requests)

    def _ended(self, facts: PlayFacts, kept: bool) -> None:
        self.replay.plays = [play for play in self._rounds.plays.facts if play.state]
        self.replay.kept_s += facts.seconds if kept else 0.0
        self._note_server()
        self._write()
        if self.watcher is not None:
            self.watcher.ended(self.replay, facts, kept=kept)

    def _note_server(self) -> None:
        """How the first server was set up, by the incident of its start."""
        if not self.replay.start_mode:
            note_server(self.replay, sorted(self.dir.glob(f"{PLAYS_DIR}/*")))

    def _grew(self, finding: Finding) -> None:
        others = [f for f in self.replay.findings if f.id != finding.id]
        self.replay.findings = sorted([*others, finding], key=lambda f: int(f.id[1:]))
        self._write()
        if self.watcher is not None:
            self.watcher.grew(self.replay, finding)

    def _end(self, state: str, failure: str = "") -> None:
        self.replay.state = state  # type: ignore[assignment]
        self.replay.failure = failure
        self.replay.finished = Moment.now()
        self._write()

    def _write(self) -> None:
        self._write_documents(Redactor().redact_model(self.replay), self.dir)

    def _case(self) -> Case:
        """The case, which is in the replay's folder afterwards, with its pictures."""
        options = self.options
        if options.resume is not None:
            if not holds_replay(options.resume):
                raise UsageError(
                    f"{options.resume} holds no replay to go on with.",
                    hint=f"without --resume: {options.command_line()}",
                )
            self.dir = options.resume.resolve()
            return read_case(self.dir)[0].model_copy(update={"server": options.server})
        captured = read(
            options.file, options.server, host=options.host, concurrency=options.concurrency
        )
        model = Path(options.server.model) if is_there(Path(options.server.model)) else None
        if options.scale:
            captured = scale(captured, options.server.max_model_len, model=model)
        if options.anonymise:
            captured = anonymise(captured, options.seed, model)
        return self._kept(captured)

    def _kept(self, captured: Captured) -> Case:
        case = captured.case.model_copy(update={"server": self.options.server})
        if self.options.out is not None and holds_replay(self.options.out):
            raise UnwritableOutput(
                f"{self.options.out} already holds a replay.",
                hint=f"--resume {self.options.out} goes on with it; or choose another --out",
            )
        engine, release = case.server.engine, case.server.release
        self.dir = prepared(self.options.out or new_folder(DEFAULT_ROOT, engine, release))
        write_case(case, self.dir, captured.contents)
        return case

    def _head(self, case: Case) -> Head:
        options = self.options
        decides = {
            "--time": options.time,
            "--budget": str(options.budget),
            "--repeat": str(options.repeat),
            "--no-shrink": "" if options.shrink else "yes",
            "--seed": str(options.seed),
        }
        return Head(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            case=case_digest(case),
            decides=decides,
        )

    def _blank(self, case: Case, id: str) -> Replay:
        return Replay(
            mmrepro_version=mmrepro.__version__,
            id=id,
            created=Moment.now(),
            state="interrupted",
            failure=f"{NOT_ENDED}; to resume, run: {self.resume_command}",
            command=self.options.command_line(),
            resume=self.resume_command,
            origin=case.origin,
            server=case.server,
            requests=len(case.operations),
            images=len(case.images),
            time=self.options.time,
            seed=self.options.seed,
            host=host_facts(),
            fidelity=Fidelity.CPU,
            budget=self.options.budget,
        )


def note_server(told: Replay | Fuzz, folders: Iterable[Path]) -> None:
    """How the server was set up, by the first incident of a start that is in one of them."""
    for folder in folders:
        try:
            incident = Incident.model_validate_json((folder / INCIDENT_FILE).read_bytes())
        except (OSError, ValidationError):
            continue
        engine = incident.engine
        told.settings, told.wheel = engine.settings, engine.wheel
        told.packages, told.start_mode = engine.packages, engine.start_mode
        told.fidelity, told.stand_ins = incident.fidelity, incident.stand_ins
        told.host = incident.host
        return
