"""A replay from start to end: played, judged, confirmed, shrunk, and its files at every step."""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import mmrepro
from mmrepro.capture.anonymise import anonymise
from mmrepro.capture.captured import Captured
from mmrepro.capture.read import read
from mmrepro.capture.scale import scale
from mmrepro.case.files import case_digest, read_case, write_case
from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.engines import get_engine
from mmrepro.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.incident import INCIDENT_FILE, Fidelity, Incident
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.fuzz import Fuzz
from mmrepro.incident.replay import Finding, FindingClass, PlayFacts, Replay, Sighting
from mmrepro.machine.facts import host_facts
from mmrepro.machine.files import is_there
from mmrepro.oracle.buckets import alike
from mmrepro.oracle.judge import judge
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.quiescence import NO_BLOCKS
from mmrepro.play.player import Player
from mmrepro.records import Moment
from mmrepro.replay.confirm import GIVE_UP, decided, tally
from mmrepro.replay.known import Naming, mitigation
from mmrepro.replay.options import ReplayOptions
from mmrepro.replay.plays import PLAYS_DIR, Looker, PlayerLike, Plays, Told, Wanted
from mmrepro.replay.public import play_publicly
from mmrepro.replay.pursue import FATAL, LOUD, Pursuit, Start, show
from mmrepro.replay.rate import rate_of
from mmrepro.replay.seen import Named, Seen
from mmrepro.replay.shrink import Spent
from mmrepro.replay.silent import Silent
from mmrepro.replay.store import Head, Store, holds_replay
from mmrepro.replay.watcher import Watcher
from mmrepro.text.redact import Redactor
from pydantic import ValidationError

DEFAULT_ROOT = "replays"
NOT_ENDED = "the replay has not ended"
QUIET_S = 120.0
"""For playing traffic again that showed nothing."""
LED, LET_GO = 2, 4
"""Plays that show again what somebody else's play showed, before it is shrunk; and plays that do
not, after which it is let go: other traffic may show it better."""
OF_ANOTHER = 3
"""Starts that a further finding takes besides its confirmation, about."""
JOB_BYTES = 3 << 30
"""Memory that a second server must find free: vLLM's, with a tiny model, takes about 1.5 GiB."""

MakePlayer = Callable[..., AbstractContextManager[PlayerLike]]


@dataclass(frozen=True)
class Lead:
    """Where a replay begins that pursues what somebody else's play of the case showed.

    Attributes:
        seen: that play; None: there is none, and all of the case is looked at.
        compared: it was wrong beside a reference, and by itself nothing was.
        blocks: it was played in so many blocks.
        again: the case is what was left of a finding: nothing besides is looked for.
        handled: buckets that are known already, and not pursued.
        until: monotonic seconds; no play begins after it.
    """

    seen: Seen | None = None
    compared: bool = False
    blocks: int = 0
    again: bool = False
    handled: tuple[str, ...] = ()
    until: float = math.inf


Judge = Callable[..., Judged]


class Replaying:
    """A replay in progress. ``replay`` is valid, if partial, at every moment."""

    def __init__(
        self,
        options: ReplayOptions,
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
        self._left: list[tuple[Finding, tuple[list[str], str]]] = []
        self._with_another: list[str] = []

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; no play that has ended is played again."""
        return self.options.command(self.dir)

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
                    self._play(case, player, store)
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

    # ------------------------------------------------------------------ the plays

    def _play(self, case: Case, player: PlayerLike, store: Store) -> None:
        engine = get_engine(case.server.engine)

        def judged(case: Case, played: Played) -> Judged:
            alone = self._judge(case, played, engine=engine)
            return Judged.of([alone, self._silent.judge(case, played)])

        self._plays = Plays(
            player,
            store,
            self.dir,
            self.dir,
            judged,
            budget=self.options.budget,
            pace=self.options.time,
            until=self._lead.until,
            told=Told(self._began, self._ended),
        )
        self._plays.hurried = self.options.shrink
        self._silent = Silent(self._plays, engine, self.dir)
        self._pursuit = Pursuit(
            self._plays,
            self.dir,
            self.options.repeat,
            self.options.jobs or jobs_here(),
            self.options.shrink,
            self._grew,
            self._look,
        )
        deadlines = self._plays.calibrate(case)
        self.replay.deadline_s = deadlines.answer_s
        if self._lead.seen is not None or self._lead.again:
            self._pursued(case)
            return
        loud, named = self._round(case, "the whole case")
        if named is not None and (keep_away := mitigation(named, case.server.release)):
            self._mitigated(case, keep_away)
        elif not loud:
            self._compared(case)
        self._strays()

    def _pursued(self, case: Case) -> None:
        """Only what the lead is about, and what shows itself on the way."""
        if self._lead.compared:
            self._compared(case)
        else:
            self._plays.blocks = self._lead.blocks
            self._round(case, "the whole case")
        self._strays()

    def _round(
        self, case: Case, what: str, limits: tuple[str, ...] = ()
    ) -> tuple[bool, Named | None]:
        """Plays a case until it is known how often it shows what, and makes findings of that.

        Returns whether it showed anything loud, and the name of the fatal failure, if it is known.
        """
        seens = []
        try:
            first = self._lead.seen or self._plays.play(Wanted(case, "whole", 1, what))
            seens.append(first)
            self._note(first)
            for bucket in first.play.buckets:
                self._plays.smallest.setdefault(bucket, (case, first))
            while self._open(seens) or self._quiet(seens):
                again = Wanted(case, "confirm", len(seens), f"{what}, again")
                seens.append(self._plays.play(again))
        except Spent:
            self.replay.limits.append(f"{what} was played {len(seens)} times: --budget")
        return self._found(case, seens, limits)

    def _found(
        self, case: Case, seens: list[Seen], limits: tuple[str, ...], *, simpler: bool = True
    ) -> tuple[bool, Named | None]:
        fatal: Named | None = None
        loud = False
        counts = {b: c for b, c in tally(seens).items() if not self._handled(b)}
        sure = [b for b, (failed, _) in counts.items() if failed]
        for bucket, (failed, plays) in counts.items():
            seen = next(s for s in seens if s.has(bucket))
            sighting = seen.sighting(bucket)
            assert sighting is not None
            loud = loud or sighting.finding_class in LOUD
            if not failed:
                self.replay.unconfirmed.append(sighting)
                continue
            smaller, small_seen = self._plays.smallest[bucket]
            rate = rate_of(failed, plays)
            before = len(case.operations)
            start = Start(bucket, smaller, small_seen, rate, before, limits, simpler)
            later = len(sure) - sure.index(bucket) - 1
            reserve = later * (self.options.repeat + OF_ANOTHER)
            if sighting.finding_class in FATAL:
                reserve += 1  # to see what comes after it, if it is known
            named = self._finding(start, min(reserve, self._plays.left // 2))
            if sighting.finding_class in FATAL and fatal is None:
                fatal = named
        return loud, fatal

    def _finding(self, start: Start, reserve: int) -> Named | None:
        id = f"f{len(self.replay.findings) + 1}"
        finding, left, named = self._pursuit.pursue(start, id, reserve)
        if self._comes_with_another(finding, left):
            return None
        play_publicly(self._plays, finding, left, self.dir, self.options.seed)
        self._grew(finding)
        return named if finding.known else None

    def _comes_with_another(self, finding: Finding, case: Case) -> bool:
        """Whether exactly the same requests were left of another failure: then it is what else
        they show, and no finding of its own."""
        left = [op.id for op in case.operations], case.server.mitigation
        other = next((f for f, of in self._left if of == left and left[0]), None)
        if other is None or not (finding.shrunk and other.shrunk):
            self._left.append((finding, left))
            return False
        other.also.append(f"{finding.finding_class}: {finding.said}")
        self._with_another.append(finding.bucket)
        self.replay.findings.remove(finding)
        shutil.rmtree(self.dir / finding.folder, ignore_errors=True)
        self._grew(other)
        return True

    def _mitigated(self, case: Case, keep_away: str) -> None:
        """Once more, with the known fatal failure kept away: what did it hide?"""
        server = case.server.model_copy(update={"mitigation": keep_away})
        limit = f"found with the mitigation {keep_away} on, which keeps a known failure away"
        kept = case.model_copy(update={"server": server})
        known = [f.bucket for f in self.replay.findings]
        if self._plays.left < 1:
            why = f"what comes after it, with {keep_away}, was not looked at: --budget"
            self.replay.limits.append(why)
            return
        begun = len(self._plays.facts)
        loud, _ = self._round(kept, f"the whole case, with {keep_away}", (limit,))
        seen = {bucket for facts in self._plays.facts[begun:] for bucket in facts.buckets}
        if any(alike(one, other) for one in seen for other in known):
            why = f"with the mitigation {keep_away} something of what is known is still seen"
            self.replay.limits.append(why)
        elif not loud:
            self._compared(kept, (limit,))

    def _compared(self, case: Case, limits: tuple[str, ...] = ()) -> None:
        """Nothing loud: are the answers right?"""
        known = len(self.replay.findings)
        try:
            found = self._silent.compare(case)
            if found is None:
                return
            asked, first = found
            if self._plays.blocks:  # what the whole case's play could not see was seen now
                self.replay.unseen = [text for text in self.replay.unseen if text != NO_BLOCKS]
            self._note(first)
            seens = [first]
            while self._open(seens) or self._led_to(seens):
                again = Wanted(asked, "confirm", len(seens), "held against the reference, again")
                seens.append(self._plays.play(again))
            self._plays.blocks = 0  # what is left out may lie in another block then
            limit = "found with the requests made greedy and with logprobs: so answers compare"
            self._found(asked, seens, (*limits, limit), simpler=False)
            for finding in self.replay.findings[known:]:
                if finding.finding_class is FindingClass.WRONG_ANSWER and finding.confirmed:
                    self._crossed(finding)
        except Spent:
            self.replay.unseen.append("whether the answers are right: no start is left (--budget)")
        finally:
            self._silent.reference, self._plays.blocks = None, 0
            self._say(Judged.of(self._silent.judged))

    def _led_to(self, seens: list[Seen]) -> bool:
        """Whether what another play showed beside its reference is still waited for."""
        return (
            self._lead.compared
            and len(seens) <= LET_GO
            and not any(seen.sightings for seen in seens)
        )

    def _crossed(self, finding: Finding) -> None:
        """Does the wrong answer follow from what other requests hold? Then it is that."""
        left, _ = read_case(self.dir / finding.case_file)
        judged = self._silent.cross_talk(left, finding.operations)
        self._say(judged)
        for sighting in judged.sightings:
            finding.finding_class, finding.bucket = sighting.finding_class, sighting.bucket
            show(finding, sighting)
            self._grew(finding)

    def _strays(self) -> None:
        """What only a smaller case showed, on the way: is it there again?"""
        for bucket, (case, seen) in sorted(self._plays.smallest.items()):
            if self._handled(bucket):
                continue
            seens = [seen]
            try:
                while self._open(seens):
                    what = "a smaller case that showed something else, again"
                    seens.append(self._plays.play(Wanted(case, "confirm", len(seens), what)))
            except Spent:
                self.replay.limits.append("what a smaller case showed was not confirmed: --budget")
            self._found(case, seens, ())

    def _open(self, seens: list[Seen]) -> bool:
        """Whether one more play of the same case is worth a server."""
        counts = {b: c for b, c in tally(seens).items() if not self._handled(b)}
        repeat, give_up = self.options.repeat, GIVE_UP
        if self._lead.seen is not None:  # what is left is confirmed in any case
            repeat, give_up = min(repeat, LED), LET_GO
        return any(
            not decided(failed, plays, repeat, give_up=give_up) for failed, plays in counts.values()
        )

    def _quiet(self, seens: list[Seen]) -> bool:
        """Whether a case that showed nothing is worth one more play: what comes and goes may not
        have come. Not of traffic that takes minutes."""
        nothing = not any(seen.sightings for seen in seens)
        took = sum(seen.play.seconds for seen in seens)
        return nothing and len(seens) < GIVE_UP and took < QUIET_S

    def _handled(self, bucket: str) -> bool:
        told: list[Finding | Sighting] = [*self.replay.findings, *self.replay.unconfirmed]
        known = [*(one.bucket for one in told), *self._with_another, *self._lead.handled]
        return any(alike(bucket, one) for one in known)

    # ------------------------------------------------------------------ telling

    def _note(self, seen: Seen) -> None:
        self._say(Judged(counted=seen.counted, unseen=seen.unseen))

    def _say(self, judged: Judged) -> None:
        replay = self.replay
        replay.unseen += [text for text in judged.unseen if text not in replay.unseen]
        for what, number in judged.counted.items():
            replay.counted[what] = replay.counted.get(what, 0) + number

    def _began(self, what: str, requests: int) -> None:
        if self.watcher is not None:
            self.watcher.began(self.replay, what, requests)

    def _ended(self, facts: PlayFacts, kept: bool) -> None:
        self.replay.plays = [play for play in self._plays.facts if play.state]
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

    # ------------------------------------------------------------------ set-up

    def _case(self) -> Case:
        """The case, which is in the replay's folder afterwards, with its pictures."""
        options = self.options
        if options.resume is not None:
            if not holds_replay(options.resume):
                raise UsageError(
                    f"{options.resume} holds no replay to go on with.",
                    hint=f"without --resume: {options.command()}",
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
            command=self.options.command(),
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


def jobs_here() -> int:
    """Servers at a time while shrinking: two need cores and memory for two."""
    import psutil

    cores = len(os.sched_getaffinity(0))
    return 2 if cores >= 4 and psutil.virtual_memory().available >= 2 * JOB_BYTES else 1
