"""What episodes showed: confirmed, shrunk and named, each in a folder of its own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from mmrepro.case.files import read_case
from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.fuzz.course import Course
from mmrepro.fuzz.knowledge import AGAIN
from mmrepro.fuzz.store import Ended, Finished, Led, Pursued
from mmrepro.incident.fuzz import Found
from mmrepro.incident.replay import Finding, FindingClass, PlayFacts, Replay, Sighting
from mmrepro.play.options import PlayOptions
from mmrepro.replay.known import Naming
from mmrepro.replay.options import ReplayCommand
from mmrepro.replay.order import as_sent
from mmrepro.replay.plays import PLAYS_DIR, Looker, PlayerLike
from mmrepro.replay.pursue import FATAL
from mmrepro.replay.rounds import Lead
from mmrepro.replay.seen import Named, Seen, seen_of
from mmrepro.replay.session import Replaying
from mmrepro.replay.simplify import in_order
from mmrepro.replay.store import holds_replay
from mmrepro.replay.watcher import Watcher
from mmrepro.run.deadline import Deadlines

STRAIGHT = "straight"
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


class Pursuits:
    """Those of one session."""

    def __init__(
        self,
        course: Course,
        *,
        write: Callable[[Replay, Path], object],
        look: Callable[[str, float], Looker] = Naming,
    ) -> None:
        """``write`` writes the documents of a replay below its folder."""
        self._course, self._write = course, write
        self._look = Blind if course.options.blind else look

    def pursue(self, line: Ended) -> None:
        """What is new in an episode, if anything is."""
        course = self._course
        known, episode = course.known, line.episode
        new = known.new(line.seen.play.buckets)
        if not new or episode.pursued:
            return
        place = f"e{episode.number:04d}"
        began = time.monotonic()
        self._measure_again(line.seen.sightings)
        led = known.led.get(episode.number) or self._lead(line, new)
        source = course.episode_dir(episode.number)
        source = source / STRAIGHT if led.straight else source
        handled = [b for f in course.fuzz.found if known.handled(b := f.finding.bucket)]
        handled += known.also
        handled += [b for b in led.seen.play.buckets if b not in new]
        until = min(course.until, began + self._time_for(led))
        lead = Lead(
            led.seen,
            line.silent,
            line.blocks,
            handled=tuple(handled),
            until=until,
            end=course.until + course.grace_s,
        )
        watcher = course.watcher.pursues(course.fuzz, episode, new) if course.watcher else None
        self._replay(source, place, PURSUIT, lead, watcher)
        done = Pursued(
            number=episode.number,
            replay=place,
            elapsed_s=round(course.elapsed_s, 2),
            seconds=round(time.monotonic() - began, 2),
        )
        self.take_pursued(course.store.once(done))
        course.write()

    def take_pursued(self, line: Pursued) -> None:
        self._tell(self._course.known.take_pursued(line))

    def unfinished(self) -> Found | None:
        """A finding that is to be shrunk further now."""
        options = self._course.options
        early = self._course.elapsed_s < FINISH_AFTER * options.budget_s
        return None if early or not options.shrink else self._course.known.unfinished()

    def finish(self, found: Found) -> None:
        """Goes on with what is left of it."""
        course = self._course
        place, of = f"{found.replay}{AGAIN}{found.finding.id}", found.folder
        began = time.monotonic()
        self._measure_again([found.finding])
        others = [f.finding.bucket for f in course.fuzz.found if f is not found]
        share = FINISH_SHARE if found.finding.finding_class in FATAL else FINISH_LESSER
        until = began + share * (course.until - began)
        handled = (*others, *course.known.also)
        lead = Lead(again=True, handled=handled, until=until, end=course.until + course.grace_s)
        bucket = [found.finding.bucket]
        episode = course.known.ended[found.episode].episode
        watcher = course.watcher.pursues(course.fuzz, episode, bucket) if course.watcher else None
        self._replay(course.dir / of, place, FINISH, lead, watcher)
        done = Finished(
            of=of,
            replay=place,
            elapsed_s=round(course.elapsed_s, 2),
            seconds=round(time.monotonic() - began, 2),
        )
        self.take_finished(course.store.once(done))
        course.write()

    def take_finished(self, line: Finished) -> None:
        better = self._course.known.take_finished(line)
        self._tell([better] if better is not None else [])

    def _tell(self, found: Sequence[Found]) -> None:
        watcher = self._course.watcher
        if watcher is not None:
            for one in found:
                watcher.found(self._course.fuzz, one)

    def _replay(
        self, source: Path, place: str, budget: int, lead: Lead, watcher: Watcher | None
    ) -> None:
        """Of the case in ``source``, in the folder ``place``; one that was killed goes on."""
        course = self._course
        case, _ = read_case(source)
        folder = course.dir / place
        goes_on = holds_replay(folder)
        options = ReplayCommand(
            file=source,
            server=case.server,
            shrink=course.options.shrink,
            budget=budget,
            repeat=course.options.repeat,
            seed=course.options.seed,
            start_mode=course.options.start_mode,
            timeout_s=course.options.timeout_s,
            resume=folder if goes_on else None,
            out=None if goes_on else folder,
        )
        Replaying(
            options,
            watcher,
            write=self._write,
            make_player=_Lent(course.player, course.deadlines),
            judge=course.judge,
            look=self._look,
            lead=lead,
        ).execute()
        shutil.rmtree(folder / PLAYS_DIR, ignore_errors=True)

    def _measure_again(self, seen: Sequence[Sighting | Finding]) -> None:
        """The deadline, where a busy moment made it long: each play of a hang lasts as long."""
        hangs = any(one.finding_class is FindingClass.HANG for one in seen)
        if hangs and self._course.deadlines.answer_s > LONG_S:
            deadlines = self._course.player.calibrate()
            if deadlines.answer_s < self._course.deadlines.answer_s:
                self._course.deadlines = deadlines

    def _lead(self, line: Ended, new: Sequence[str]) -> Led:
        """The episode's requests one after another, if they show the worst of it as well; else
        the episode as it was."""
        course, number = self._course, line.episode.number
        led = Led(number=number, straight=False, seen=line.seen)
        folder = course.episode_dir(number)
        case, _ = read_case(folder)
        straight = in_order(as_sent(case, line.seen))
        late = time.monotonic() >= course.until
        if straight != case and not line.silent and not line.blocks and not late:
            shutil.rmtree(folder / STRAIGHT, ignore_errors=True)
            course.keep(straight, folder / STRAIGHT)
            options = PlayOptions(course.deadlines)
            played = course.played(straight, options, folder / STRAIGHT / "play")
            judged = course.judged(straight, played)
            facts = PlayFacts(
                number=0, what="one after another", requests=len(straight.operations), state=""
            )
            seen = seen_of(straight, played, judged, facts)
            led.starts = 1
            if seen.has(new[0]):
                led.straight, led.seen = True, seen
            shutil.rmtree(folder / STRAIGHT / "play", ignore_errors=True)
        kept = course.store.once(led)
        course.known.take_led(kept)
        return kept

    def _time_for(self, led: Led) -> float:
        """Seconds that the pursuit may take."""
        budget_s = self._course.options.budget_s
        if any(one.finding_class in FATAL for one in led.seen.sightings):
            return max(PURSUIT_S, PURSUIT_SHARE * budget_s)
        return max(LESSER_S, LESSER_SHARE * budget_s)


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
