"""A session from start to end: episodes played, judged and pursued, and its files at every step."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import mmrepro
from mmrepro.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.fuzz.course import Course
from mmrepro.fuzz.episodes import Episodes
from mmrepro.fuzz.knowledge import Knowledge
from mmrepro.fuzz.options import FuzzCommand
from mmrepro.fuzz.playing import play_episode
from mmrepro.fuzz.profiles import Profile
from mmrepro.fuzz.pursuits import Pursuits
from mmrepro.fuzz.source import Source, read_source
from mmrepro.fuzz.store import Ended, Led, Pursued, Store, holds_session
from mmrepro.fuzz.watcher import FuzzWatcher
from mmrepro.incident import Fidelity
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.fuzz import Fuzz
from mmrepro.incident.replay import FindingClass, Replay
from mmrepro.machine.facts import host_facts
from mmrepro.models import TINY
from mmrepro.oracle.judge import judge
from mmrepro.play.player import Player
from mmrepro.records import Moment
from mmrepro.replay.kept import Head
from mmrepro.replay.known import Naming
from mmrepro.replay.plays import Looker, PlayerLike
from mmrepro.replay.rounds import Judge
from mmrepro.replay.session import MakePlayer
from mmrepro.text.redact import Redactor

DEFAULT_ROOT = "fuzz"
NOT_ENDED = "the session has not ended"
SHARE = 0.8
"""An episode begins while there is time for so much of one."""


class Fuzzing:
    """A session in progress. ``fuzz`` is valid, if partial, at every moment."""

    def __init__(
        self,
        options: FuzzCommand,
        watcher: FuzzWatcher | None = None,
        *,
        write: Callable[[Fuzz, Path], object],
        write_replay: Callable[[Replay, Path], object],
        make_player: MakePlayer = Player,
        judge: Judge = judge,
        look: Callable[[str, float], Looker] = Naming,
    ) -> None:
        """``write`` and ``write_replay`` write documents below a folder, each time that they have
        grown."""
        self.options, self.watcher = options, watcher
        self._write_documents, self._write_replay = write, write_replay
        self._make_player, self._judge = make_player, judge
        self._look = look
        self._course: Course | None = None
        self.dir: Path
        self.fuzz: Fuzz

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; no episode that has ended is played again."""
        return self.options.command_line(out=None, resume=self.dir)

    def execute(self) -> Fuzz:
        """Fuzz until the budget is over. The files are on disk afterwards, whatever happened.

        Raises:
            MmreproError: usage, or infrastructure that no play can do without.
            KeyboardInterrupt: the partial session is on disk.
        """
        source = self._place()
        with Store(self.dir, self._head()) as store:
            self.fuzz = self._blank(store.head.id, source)
            self._write()
            try:
                with self._make_player(
                    self.options.server,
                    start_mode=self.options.start_mode,
                    folder=self.dir,
                    timeout_s=self.options.timeout_s,
                    listener=self.watcher.event if self.watcher else None,
                ) as player:
                    self._run(player, store, source)
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
        return self.fuzz

    def _run(self, player: PlayerLike, store: Store, source: Source) -> None:
        options = self.options
        sees = options.server.model not in TINY or bool(TINY[options.server.model].image_tokens)
        episodes = Episodes(
            options.seed,
            options.server,
            pictures=sees and options.profile is not Profile.TEXT,
            given=source.images,
            source=source.case,
            hazards=options.profile is Profile.HAZARDS,
        )
        open_ = next((one for one in reversed(store.kept) if isinstance(one, Ended)), None)
        course = Course(
            options=options,
            dir=self.dir,
            contents=self._contents,
            player=player,
            store=store,
            known=Knowledge(self.fuzz, episodes, self.dir),
            deadlines=open_.deadlines if open_ is not None else player.calibrate(),
            began=time.monotonic(),
            judge=self._judge,
            write=self._write,
            watcher=self.watcher,
        )
        pursuits = Pursuits(course, write=self._write_replay, look=self._look)
        self._restore(course, pursuits)
        course.began -= self.fuzz.elapsed_s
        self._course = course
        if open_ is not None:
            pursuits.pursue(open_)
        while not self._over(course):
            if (found := pursuits.unfinished()) is not None:
                pursuits.finish(found)
            else:
                planned = course.known.episodes.next(len(self.fuzz.episodes))
                pursuits.pursue(play_episode(course, planned))

    def _restore(self, course: Course, pursuits: Pursuits) -> None:
        """Take in what earlier calls kept."""
        for line in course.store.kept:
            if isinstance(line, Ended):
                course.known.take(line)
            elif isinstance(line, Led):
                course.known.take_led(line)
            elif isinstance(line, Pursued):
                pursuits.take_pursued(line)
            else:
                pursuits.take_finished(line)

    def _over(self, course: Course) -> bool:
        """Whether there is no time for one more episode, or no sense in it."""
        if any(
            f.finding.confirmed and f.finding.finding_class is FindingClass.START_FAILURE
            for f in self.fuzz.found
        ):
            why = "the server does not start: nothing else can be tried"
            self.fuzz.limits += [why] if why not in self.fuzz.limits else []
            return True
        usual = max(course.known.lasted[-3:], default=0.0)
        return course.elapsed_s + SHARE * usual >= self.options.budget_s

    def _end(self, state: str, failure: str = "") -> None:
        self.fuzz.state = state  # type: ignore[assignment]
        self.fuzz.failure = failure
        self.fuzz.finished = Moment.now()
        if self._course is not None:
            self.fuzz.elapsed_s = round(self._course.elapsed_s, 2)
        self._write()

    def _write(self) -> None:
        self._write_documents(Redactor().redact_model(self.fuzz), self.dir)

    def _place(self) -> Source:
        """The session's folder, and what it begins with: kept there, pictures and all."""
        options = self.options
        if options.resume is not None:
            if not holds_session(options.resume):
                raise UsageError(
                    f"{options.resume} holds no session to go on with.",
                    hint=f"without --resume: {options.command_line()}",
                )
            self.dir = options.resume.resolve()
        source = read_source(options.source, options.server)
        if options.resume is None:
            if options.out is not None and holds_session(options.out):
                raise UnwritableOutput(
                    f"{options.out} already holds a session.",
                    hint=f"--resume {options.out} goes on with it; or choose another --out",
                )
            engine, release = options.server.engine, options.server.release
            self.dir = prepared(options.out or new_folder(DEFAULT_ROOT, engine, release))
        self._contents = source.keep(self.dir)
        return source

    def _head(self) -> Head:
        return Head(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            decides=self.options.decides,
        )

    def _blank(self, id: str, source: Source) -> Fuzz:
        options = self.options
        return Fuzz(
            mmrepro_version=mmrepro.__version__,
            id=id,
            created=Moment.now(),
            state="interrupted",
            failure=f"{NOT_ENDED}; to resume, run: {self.resume_command}",
            command=options.command_line(),
            resume=self.resume_command,
            server=options.server,
            profile=options.profile,
            seed=options.seed,
            budget_s=options.budget_s,
            blind=options.blind,
            source=source.name,
            host=host_facts(),
            fidelity=Fidelity.CPU,
        )
