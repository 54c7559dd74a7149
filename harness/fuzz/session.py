"""A session from start to end: episodes played, judged and pursued, and its files at every step."""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import mmrepro
from mmrepro.case.files import read_case, write_case
from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import get_engine
from mmrepro.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.fuzz.episodes import Episodes, Planned
from mmrepro.fuzz.features import features
from mmrepro.fuzz.knowledge import AGAIN, Knowledge
from mmrepro.fuzz.limits import Asked, learn, narrowed
from mmrepro.fuzz.options import FuzzOptions
from mmrepro.fuzz.profiles import Profile
from mmrepro.fuzz.source import Source, read_source
from mmrepro.fuzz.store import Ended, Finished, Led, Pursued, Store, holds_session
from mmrepro.fuzz.watcher import FuzzWatcher
from mmrepro.incident import Fidelity
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.fuzz import EPISODES_DIR, Episode, Found, Fuzz
from mmrepro.incident.replay import Finding, FindingClass, PlayFacts, Replay, Sighting
from mmrepro.machine.facts import host_facts
from mmrepro.models import TINY
from mmrepro.oracle.judge import judge
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.reference import (
    agreeing,
    compare_with_reference,
    compared,
    has_own_format,
    reference_case,
)
from mmrepro.play.options import Look, PlayOptions
from mmrepro.play.player import Player
from mmrepro.records import Moment
from mmrepro.replay.kept import Head
from mmrepro.replay.known import Naming
from mmrepro.replay.options import ReplayOptions
from mmrepro.replay.order import as_sent
from mmrepro.replay.plays import PLAYS_DIR, Looker, PlayerLike, attempted
from mmrepro.replay.pursue import FATAL
from mmrepro.replay.seen import Named, Seen, seen_of
from mmrepro.replay.session import Judge, Lead, MakePlayer, Replaying, note_server
from mmrepro.replay.simplify import in_order
from mmrepro.replay.store import holds_replay
from mmrepro.replay.watcher import Watcher
from mmrepro.run.deadline import Deadlines
from mmrepro.text.redact import Redactor

DEFAULT_ROOT, STRAIGHT = "fuzz", "straight"
NOT_ENDED = "the session has not ended"
PURSUIT = 40
"""Starts of servers for what one episode showed, at most."""
PURSUIT_S, PURSUIT_SHARE = 300.0, 0.2
"""Seconds for what ends or stops a server, or that share of the budget, if it is more."""
LESSER_S, LESSER_SHARE = 100.0, 0.07
"""The same for all else."""
FINISH_AFTER = 0.5
"""Share of the budget after which what was not shrunk to its end is taken up again."""
FINISH_SHARE, FINISH_LESSER = 0.5, 0.15
"""Of the time that is left then: for what ends or stops a server, and for all else."""
FINISH = 3 * PURSUIT
"""Starts of servers for that, at most."""
LONG_S = 10.0
"""A deadline from which on it is measured again before a hang is played again and again."""
SHARE = 0.8
"""An episode begins while there is time for so much of one."""


class Blind:
    """Names nothing."""

    def __init__(self, bucket: str, deadline_s: float) -> None:
        self.bucket = bucket

    def on_look(self, url: str, pid: int, log: Path) -> None:
        return

    def name(self, seen: Seen, case: Case, played: Played, folder: Path) -> Seen:
        named = Named(bucket=self.bucket, why="nothing was looked for: --blind")
        return seen.model_copy(update={"named": named})


class _Lent:
    """A player that somebody else closes, and of which the deadlines are known."""

    def __init__(self, player: PlayerLike, deadlines: Deadlines) -> None:
        self._player, self._deadlines = player, deadlines
        self.play = player.play
        self.cancel = player.cancel

    def __call__(self, *_: object, **__: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def calibrate(self) -> Deadlines:
        return self._deadlines


class Fuzzing:
    """A session in progress. ``fuzz`` is valid, if partial, at every moment."""

    def __init__(
        self,
        options: FuzzOptions,
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
        self._look = Blind if options.blind else look
        self._engine = get_engine(options.server.engine)
        self._began = 0.0
        self.dir: Path
        self.fuzz: Fuzz

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; no episode that has ended is played again."""
        return self.options.command(self.dir)

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

    # ------------------------------------------------------------------ the loop

    def _run(self, player: PlayerLike, store: Store, source: Source) -> None:
        self._player, self._store = player, store
        sees = self.options.server.model not in TINY or bool(
            TINY[self.options.server.model].image_tokens
        )
        episodes = Episodes(
            self.options.seed,
            self.options.server,
            pictures=sees and self.options.profile is not Profile.TEXT,
            given=source.images,
            source=source.case,
            hazards=self.options.profile is Profile.HAZARDS,
        )
        self._known = Knowledge(self.fuzz, episodes, self.dir)
        open_ = self._restore()
        self._deadlines = open_.deadlines if open_ is not None else player.calibrate()
        self._began = time.monotonic() - self.fuzz.elapsed_s
        if open_ is not None:
            self._pursue(open_)
        while not self._over():
            if (found := self._unfinished()) is not None:
                self._finish(found)
            else:
                planned = self._known.episodes.next(len(self.fuzz.episodes))
                self._pursue(self._play(planned))

    def _restore(self) -> Ended | None:
        """Take in what earlier calls kept; the last episode, should it not have been pursued."""
        last: Ended | None = None
        for line in self._store.kept:
            if isinstance(line, Ended):
                self._known.take(line)
                last = line
            elif isinstance(line, Led):
                self._known.take_led(line)
            elif isinstance(line, Pursued):
                self._took_pursued(line)
            else:
                self._took_finished(line)
        return last

    def _over(self) -> bool:
        """Whether there is no time for one more episode, or no sense in it."""
        if any(
            f.finding.confirmed and f.finding.finding_class is FindingClass.START_FAILURE
            for f in self.fuzz.found
        ):
            why = "the server does not start: nothing else can be tried"
            self.fuzz.limits += [why] if why not in self.fuzz.limits else []
            return True
        usual = max(self._known.lasted[-3:], default=0.0)
        return self._elapsed + SHARE * usual >= self.options.budget_s

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def _until(self) -> float:
        return self._began + self.options.budget_s

    # ------------------------------------------------------------------ one episode

    def _play(self, planned: Planned) -> Ended:
        learning, case = planned.number == 0, planned.case
        episode = _episode(planned)
        folder = self.dir / EPISODES_DIR / f"{episode.number:04d}"
        shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed in the middle
        write_case(case, folder, self._contents)
        self._store.began(episode)
        if self.watcher is not None:
            self.watcher.began(self.fuzz, episode)
        began = time.monotonic()
        asked = Asked()
        options = PlayOptions(self._deadlines, blocks=planned.blocks)
        played = self._played(case, options, folder / "play", asked if learning else None)
        note_server(self.fuzz, [folder / "play"] if not self.fuzz.start_mode else [])
        judged = self._judge(case, played, engine=self._engine)
        silent = False
        news = self._known.new(sighting.bucket for sighting in judged.sightings)
        if planned.compared and played.state is PlayState.ENDED and not news:
            beside = self._beside(case, played, folder / "reference")
            silent = bool(beside.sightings)
            judged = Judged.of([judged, beside])
            episode.compared, episode.starts = True, 2
        log = folder / "play" / played.log_file
        limits = self._known.episodes.limits
        if learning:
            limits = learn(self.options.server, played, log, asked.learnt)
        else:
            limits = narrowed(limits, played.evidence.requests)
        facts = PlayFacts(
            number=episode.number, what="an episode", requests=len(case.operations), state=""
        )
        seen = seen_of(case, played, judged, facts)
        seen.folder = f"../{EPISODES_DIR}/{episode.number:04d}/play"
        new = sorted(features(case, played, log) - self._known.features)
        episode.state, episode.buckets = seen.play.state, seen.play.buckets
        episode.answers = dict(Counter(seen.answers.values()))
        episode.new = len(new)
        episode.seconds = round(time.monotonic() - began, 2)
        shutil.rmtree(folder / "reference", ignore_errors=True)
        if not seen.sightings:
            shutil.rmtree(folder / "play", ignore_errors=True)
        line = Ended(
            episode=episode,
            elapsed_s=round(self._elapsed, 2),
            seen=seen,
            features=new,
            limits=limits,
            silent=silent,
            blocks=planned.blocks,
            answer_s=self._deadlines.answer_s,
            suspect_s=self._deadlines.suspect_s,
            rule=self._deadlines.rule,
        )
        kept = self._store.once(line)
        self._known.take(kept)
        self._write()
        if self.watcher is not None:
            self.watcher.ended(self.fuzz, kept.episode)
        return kept

    def _played(
        self, case: Case, options: PlayOptions, folder: Path, look: Look | None = None
    ) -> Played:
        return attempted(self._player, case, self.dir, options, folder, look)

    def _beside(self, case: Case, played: Played, folder: Path) -> Judged:
        """What the same requests to a plain server hold against its answers."""
        options = PlayOptions(self._deadlines, look="none", canary=False)

        def held(plain: Case) -> Judged:
            return compare_with_reference(case, played, self._played(plain, options, folder))

        judged = held(reference_case(case, self._engine))
        if not compared(judged) or not has_own_format(case):
            return judged
        return agreeing(judged, held(reference_case(case, self._engine, own_format=True)))

    # ------------------------------------------------------------------ what it showed

    def _pursue(self, line: Ended) -> None:
        """Confirms, shrinks and names it, in a folder of its own."""
        known = self._known
        new = known.new(line.seen.play.buckets)
        episode = line.episode
        if not new or episode.pursued:
            return
        place = f"e{episode.number:04d}"
        began = time.monotonic()
        self._measure_again(line.seen.sightings)
        led = known.led.get(episode.number) or self._lead(line, new)
        source = self.dir / EPISODES_DIR / f"{episode.number:04d}"
        source = source / STRAIGHT if led.straight else source
        handled = [b for f in self.fuzz.found if known.handled(b := f.finding.bucket)]
        handled += known.also
        handled += [b for b in led.seen.play.buckets if b not in new]
        until = min(self._until, began + self._time_for(led))
        lead = Lead(led.seen, line.silent, line.blocks, handled=tuple(handled), until=until)
        watcher = self.watcher.pursues(self.fuzz, episode, new) if self.watcher else None
        self._replay(source, place, PURSUIT, lead, watcher)
        done = Pursued(
            number=episode.number,
            replay=place,
            elapsed_s=round(self._elapsed, 2),
            seconds=round(time.monotonic() - began, 2),
        )
        self._took_pursued(self._store.once(done))
        self._write()

    def _took_pursued(self, line: Pursued) -> None:
        for found in self._known.take_pursued(line):
            if self.watcher is not None:
                self.watcher.found(self.fuzz, found)

    def _replay(
        self, source: Path, place: str, budget: int, lead: Lead, watcher: Watcher | None
    ) -> None:
        """Of the case in ``source``, in the folder ``place``; one that was killed goes on."""
        case, _ = read_case(source)
        folder = self.dir / place
        goes_on = holds_replay(folder)
        options = ReplayOptions(
            file=source,
            server=case.server,
            shrink=self.options.shrink,
            budget=budget,
            repeat=self.options.repeat,
            seed=self.options.seed,
            start_mode=self.options.start_mode,
            timeout_s=self.options.timeout_s,
            resume=folder if goes_on else None,
            out=None if goes_on else folder,
        )
        Replaying(
            options,
            watcher,
            write=self._write_replay,
            make_player=_Lent(self._player, self._deadlines),
            judge=self._judge,
            look=self._look,
            lead=lead,
        ).execute()
        shutil.rmtree(folder / PLAYS_DIR, ignore_errors=True)

    def _measure_again(self, seen: Sequence[Sighting | Finding]) -> None:
        """The deadline, where a busy moment made it long: each play of a hang lasts as long."""
        hangs = any(one.finding_class is FindingClass.HANG for one in seen)
        if hangs and self._deadlines.answer_s > LONG_S:
            deadlines = self._player.calibrate()
            if deadlines.answer_s < self._deadlines.answer_s:
                self._deadlines = deadlines

    def _unfinished(self) -> Found | None:
        """A finding that is to be shrunk further now."""
        early = self._elapsed < FINISH_AFTER * self.options.budget_s
        return None if early or not self.options.shrink else self._known.unfinished()

    def _finish(self, found: Found) -> None:
        """Goes on with what is left of it, in a folder of its own."""
        place, of = f"{found.replay}{AGAIN}{found.finding.id}", found.folder
        began = time.monotonic()
        self._measure_again([found.finding])
        others = [f.finding.bucket for f in self.fuzz.found if f is not found]
        share = FINISH_SHARE if found.finding.finding_class in FATAL else FINISH_LESSER
        until = began + share * (self._until - began)
        lead = Lead(again=True, handled=(*others, *self._known.also), until=until)
        bucket = [found.finding.bucket]
        episode = self._known.ended[found.episode].episode
        watcher = self.watcher.pursues(self.fuzz, episode, bucket) if self.watcher else None
        self._replay(self.dir / of, place, FINISH, lead, watcher)
        done = Finished(
            of=of,
            replay=place,
            elapsed_s=round(self._elapsed, 2),
            seconds=round(time.monotonic() - began, 2),
        )
        self._took_finished(self._store.once(done))
        self._write()

    def _took_finished(self, line: Finished) -> None:
        better = self._known.take_finished(line)
        if better is not None and self.watcher is not None:
            self.watcher.found(self.fuzz, better)

    def _lead(self, line: Ended, new: list[str]) -> Led:
        """The episode's requests one after another, if they show the worst of it as well; else
        the episode as it was."""
        number = line.episode.number
        led = Led(number=number, straight=False, seen=line.seen)
        folder = self.dir / EPISODES_DIR / f"{number:04d}"
        case, _ = read_case(folder)
        straight = in_order(as_sent(case, line.seen))
        if straight != case and not line.silent and not line.blocks and not self._late:
            shutil.rmtree(folder / STRAIGHT, ignore_errors=True)
            write_case(straight, folder / STRAIGHT, self._contents)
            options = PlayOptions(self._deadlines)
            played = self._played(straight, options, folder / STRAIGHT / "play")
            judged = self._judge(straight, played, engine=self._engine)
            facts = PlayFacts(
                number=0, what="one after another", requests=len(straight.operations), state=""
            )
            seen = seen_of(straight, played, judged, facts)
            led.starts = 1
            if seen.has(new[0]):
                led.straight, led.seen = True, seen
            shutil.rmtree(folder / STRAIGHT / "play", ignore_errors=True)
        kept = self._store.once(led)
        self._known.take_led(kept)
        return kept

    def _time_for(self, led: Led) -> float:
        """Seconds that the pursuit may take."""
        budget_s = self.options.budget_s
        if any(one.finding_class in FATAL for one in led.seen.sightings):
            return max(PURSUIT_S, PURSUIT_SHARE * budget_s)
        return max(LESSER_S, LESSER_SHARE * budget_s)

    @property
    def _late(self) -> bool:
        return time.monotonic() >= self._until

    # ------------------------------------------------------------------ telling

    def _end(self, state: str, failure: str = "") -> None:
        self.fuzz.state = state  # type: ignore[assignment]
        self.fuzz.failure = failure
        self.fuzz.finished = Moment.now()
        if self._began:
            self.fuzz.elapsed_s = round(self._elapsed, 2)
        self._write()

    def _write(self) -> None:
        self._write_documents(Redactor().redact_model(self.fuzz), self.dir)

    # ------------------------------------------------------------------ set-up

    def _place(self) -> Source:
        """The session's folder, and what it begins with: kept there, pictures and all."""
        options = self.options
        if options.resume is not None:
            if not holds_session(options.resume):
                raise UsageError(
                    f"{options.resume} holds no session to go on with.",
                    hint=f"without --resume: {options.command()}",
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
            command=options.command(),
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


def _episode(planned: Planned) -> Episode:
    return Episode(
        number=planned.number,
        kind=planned.kind,
        origin=planned.origin,
        switches=[str(switch) for switch in planned.switches],
        requests=len(planned.case.operations),
    )
