"""A replay: which cases are tried, how often, and what becomes of what they show."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from mmrepro.base.machine.files import is_there
from mmrepro.base.records import FindingClass
from mmrepro.campaign.campaign import Campaign, State
from mmrepro.campaign.events import Note
from mmrepro.campaign.search import Spent
from mmrepro.failure.documents.folder import prepared
from mmrepro.failure.documents.replay import Answer, Finding, Replay, Sighting
from mmrepro.search.oracle.judge import NO_BLOCKS
from mmrepro.search.oracle.judged import Judged, alike
from mmrepro.search.replay.attempts import (
    ENDINGS,
    Attempts,
    CaseSearch,
    StartingPoint,
    campaign_folder,
)
from mmrepro.search.replay.confirm import GIVE_UP, decided, rate_of, tally
from mmrepro.search.replay.known import mitigation
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.pursue import (
    FATAL,
    LOUD,
    Pursuit,
    Start,
    attempt_publicly,
    show,
)
from mmrepro.search.replay.store import (
    VERDICTS,
    Named,
    Observation,
    ReplayFolder,
    Wanted,
    WriteReplay,
    answers_of,
)
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.scale import scale
from mmrepro.traffic.case.expecting import expecting
from mmrepro.traffic.case.files import read_case, write_case
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.case.sending import PlayState
from mmrepro.traffic.case.typed import in_order

BOXED = (
    "Servers and clients run in a box (bubblewrap): no network, none of your "
    "files, no rights."
)
UNBOXED = (
    "Servers and clients run WITHOUT a box, with this machine's network and your files."
)
ALONE = 2
"""Plays of traffic that showed nothing and in which nothing runs beside anything
else."""
SHOWN = 12
"""Requests of the first play that are listed, at most."""
QUIET_S = 120.0
"""For playing traffic again that showed nothing."""
LED, LET_GO = 2, 4
"""Plays that show again what somebody else's play showed, before it is shrunk; and
plays that do not, after which it is let go: other traffic may show it better."""
OF_ANOTHER = 3
"""Starts that a further finding takes besides its confirmation, about."""
JOB_BYTES = 3 << 30
"""Memory that a second server must find free: vLLM's, with a tiny model, takes about
1.5 GiB."""


class Rounds:
    """Those of one replay, which grows by what they show. Within a line of work."""

    def __init__(
        self,
        search: CaseSearch[Any],
        files: ReplayFolder,
        start: StartingPoint | None = None,
    ) -> None:
        """``start``: where it begins that pursues what somebody else's attempt
        showed."""
        self._files, self._replay, self._options = files, files.replay, files.options
        self._start = start or StartingPoint()
        self._left: list[tuple[Finding, tuple[list[str], str]]] = []
        self._with_another: list[str] = []
        self.plays = Attempts(search, files, self._start)
        self._silent = self.plays.comparison
        options, brief = self._options, self._start.brief
        self._pursuit = Pursuit(self.plays, options.repeat, options.shrink, brief)

    def run(self) -> None:
        """All of them, to the conclusion."""
        case = self._files.case
        self._replay.deadline_s = self.plays.calibrate(self._start.deadlines).answer_s
        if self._start.seen is not None or self._start.again:
            self._pursued(case)
            return
        loud, named = self._round(case, "the whole case")
        if self._start.brief:
            if not (loud or self._start.loud or self._replay.nothing_tested):
                self._compared(case)
            return
        if named is not None and (keep_away := mitigation(named, case.server.release)):
            self._mitigated(case, keep_away)
        elif not (loud or self._replay.untestable or self._replay.nothing_tested):
            self._compared(case)
        self._side_findings()

    def once_more(self, case: Case, what: str) -> None:
        """Another case of the same server, looked at as the whole one was."""
        self._round(case, what)
        self._side_findings()

    def _pursued(self, case: Case) -> None:
        """Only what the starting point is about, and what shows itself on the way."""
        if self._start.compared:
            self._compared(case)
        else:
            self.plays.blocks = self._start.blocks
            self._round(case, "the whole case")
        self._side_findings()

    def _round(
        self, case: Case, what: str, limits: tuple[str, ...] = ()
    ) -> tuple[bool, Named | None]:
        """Plays a case until it is known how often it shows what, and makes findings of
        that.

        Returns whether it showed anything loud, and the name of the fatal failure, if
        it is known."""
        seens = []
        try:
            first = self._start.seen or self.plays.play(Wanted(case, "whole", 1, what))
            seens.append(first)
            self._say(first)
            self._answered(case, first)
            started = first.play.state != PlayState.START_FAILED
            if not (started or self._start.starts):
                self._replay.unconfirmed += first.sightings
                return True, None
            for bucket in first.play.buckets:
                self.plays.smallest.setdefault(bucket, (case, first))
            with self.plays.confirming():
                while self._open(seens) or self._quiet(case, seens):
                    again = Wanted(case, "confirm", len(seens), f"{what}, again")
                    seens.append(self.plays.play(again))
        except Spent:
            self._replay.limits.append(
                f"{what} was played {len(seens)} times: --budget"
            )
        return self._found(case, seens, limits)

    def _found(
        self,
        case: Case,
        seens: list[Observation],
        limits: tuple[str, ...],
        *,
        simpler: bool = True,
    ) -> tuple[bool, Named | None]:
        fatal: Named | None = None
        loud = False
        counts = self._pursuable(seens)
        sure = [b for b, (failed, _) in counts.items() if failed]
        for bucket, (failed, plays) in counts.items():
            seen = next(s for s in seens if s.has(bucket))
            sighting = seen.sighting(bucket)
            assert sighting is not None
            loud = loud or sighting.finding_class in LOUD
            if not failed:
                self._replay.unconfirmed.append(sighting)
                continue
            smaller, small_seen = self.plays.smallest[bucket]
            rate = rate_of(failed, plays)
            before = len(case.operations)
            start = Start(bucket, smaller, small_seen, rate, before, limits, simpler)
            later = len(sure) - sure.index(bucket) - 1
            reserve = later * (self._options.repeat + OF_ANOTHER)
            if sighting.finding_class in FATAL:
                reserve += 1  # to see what comes after it, if it is known
            named = self._finding(start, min(reserve, self.plays.left // 2))
            if sighting.finding_class in FATAL and fatal is None:
                fatal = named
        return loud, fatal

    def _finding(self, start: Start, reserve: int) -> Named | None:
        id = f"f{len(self._replay.findings) + 1}"
        finding, left, named = self._pursuit.pursue(start, id, reserve)
        if self._comes_with_another(finding, left):
            return None
        attempt_publicly(
            self.plays, finding, left, self._files.folder, self._options.seed
        )
        self.plays.grew(finding)
        return named if finding.known else None

    def _comes_with_another(self, finding: Finding, case: Case) -> bool:
        """Whether exactly the same requests were left of another failure: then it is
        what else they show, and no finding of its own."""
        left = [op.id for op in case.operations], case.server.mitigation
        other = next((f for f, of in self._left if of == left and left[0]), None)
        if other is None or not (finding.shrunk and other.shrunk):
            self._left.append((finding, left))
            return False
        other.also.append(f"{finding.finding_class}: {finding.said}")
        self._with_another.append(finding.bucket)
        self._replay.findings.remove(finding)
        if finding.folder:  # without a name of its own it would be the replay's
            shutil.rmtree(self._files.folder / finding.folder, ignore_errors=True)
        self.plays.grew(other)
        return True

    def _mitigated(self, case: Case, keep_away: str) -> None:
        """Once more, with the known fatal failure kept away: what did it hide?"""
        server = case.server.model_copy(update={"mitigation": keep_away})
        limit = (
            f"found with the mitigation {keep_away} on, which keeps a known failure "
            "away"
        )
        kept = case.model_copy(update={"server": server})
        known = [f.bucket for f in self._replay.findings]
        if self.plays.left < 1:
            why = f"what comes after it, with {keep_away}, was not looked at: --budget"
            self._replay.limits.append(why)
            return
        begun = len(self.plays.facts)
        loud, _ = self._round(kept, f"the whole case, with {keep_away}", (limit,))
        seen = {
            bucket for facts in self.plays.facts[begun:] for bucket in facts.buckets
        }
        if any(alike(one, other) for one in seen for other in known):
            why = (
                f"with the mitigation {keep_away} something of what is known is still "
                "seen"
            )
            self._replay.limits.append(why)
        elif not loud:
            self._compared(kept, (limit,))

    def _compared(self, case: Case, limits: tuple[str, ...] = ()) -> None:
        """Nothing loud: are the answers right?"""
        known = len(self._replay.findings)
        try:
            with self.plays.confirming():
                found = self._silent.compare(case)
            if found is None:
                return
            asked, first = found
            # What the whole case's play could not see was seen now.
            if self.plays.blocks:
                self._replay.unseen = [
                    text for text in self._replay.unseen if text != NO_BLOCKS
                ]
            self._say(first)
            seens = [first]
            try:
                with self.plays.confirming():
                    while self._open(seens) or self._led_to(seens):
                        what = "held against the reference, again"
                        seens.append(
                            self.plays.play(Wanted(asked, "confirm", len(seens), what))
                        )
            except Spent:
                told = (
                    f"what is held against the reference was played {len(seens)} times"
                )
                self._replay.limits.append(f"{told}: --budget")
            self.plays.blocks = 0  # what is left out may lie in another block then
            limit = (
                "found with the requests made greedy and with logprobs: so "
                "answers compare"
            )
            self._found(asked, seens, (*limits, limit), simpler=False)
            for finding in self._replay.findings[known:]:
                if (
                    finding.finding_class is FindingClass.WRONG_ANSWER
                    and finding.confirmed
                ):
                    self._crossed(finding)
        except Spent:
            self._replay.unseen.append(
                "whether the answers are right: no start is left (--budget)"
            )
        finally:
            self._silent.reference, self.plays.blocks = None, 0
            self._say(Judged.of(self._silent.judged))

    def _led_to(self, seens: list[Observation]) -> bool:
        """Whether what another play showed beside its reference is still waited for."""
        return (
            self._start.compared
            and len(seens) <= LET_GO
            and not any(seen.sightings for seen in seens)
        )

    def _crossed(self, finding: Finding) -> None:
        """Does the wrong answer follow from what other requests hold? Then it is
        that."""
        left, _ = read_case(self._files.folder / finding.case_file)
        judged = self._silent.cross_talk(left, finding.operations)
        self._say(judged)
        for sighting in judged.sightings:
            finding.finding_class, finding.bucket = (
                sighting.finding_class,
                sighting.bucket,
            )
            show(finding, sighting)
            self.plays.grew(finding)

    def _side_findings(self) -> None:
        """What only a smaller case showed, on the way: is it there again?"""
        for bucket, (case, seen) in sorted(self.plays.smallest.items()):
            # One option may not go without another: the server that was given does
            # start.
            if self._handled(bucket) or seen.play.state == PlayState.START_FAILED:
                continue
            seens = [seen]
            try:
                while self._open(seens):
                    what = "a smaller case that showed something else, again"
                    seens.append(
                        self.plays.play(Wanted(case, "confirm", len(seens), what))
                    )
            except Spent:
                self._replay.limits.append(
                    "what a smaller case showed was not confirmed: --budget"
                )
            self._found(case, seens, ())

    def _pursuable(self, seens: list[Observation]) -> dict[str, tuple[int, int]]:
        """As :func:`tally`, of what is not handled yet; of what is asked for, where
        that shows."""
        counts = {b: c for b, c in tally(seens).items() if not self._handled(b)}
        kinds = {s.bucket: s.finding_class for seen in seens for s in seen.sightings}
        mine = {b: c for b, c in counts.items() if kinds[b] in self._start.classes}
        if mine and (others := {str(kinds[b]) for b in counts.keys() - mine.keys()}):
            text = f"also observed, and not pursued: {', '.join(sorted(others))}"
            self._replay.limits += [text] if text not in self._replay.limits else []
        return mine or counts

    def _open(self, seens: list[Observation]) -> bool:
        """Whether one more play of the same case is worth a server."""
        counts = self._pursuable(seens)
        repeat, give_up = self._options.repeat, GIVE_UP
        if self._start.seen is not None:  # what is left is confirmed in any case
            repeat, give_up = min(repeat, LED), LET_GO
        return any(
            not (self._start.brief and failed >= repeat)
            and not decided(failed, plays, repeat, give_up=give_up)
            for failed, plays in counts.values()
        )

    def _answered(self, case: Case, first: Observation) -> None:
        """The first play says what each request tested, before anything is played
        again."""
        if self._replay.answers or self._start.seen is not None:
            return
        self._replay.answers = answers_of(case, first)
        for line in answer_lines(self._replay.answers):
            self.plays.search.campaign.emit(Note(text=line))

    def _quiet(self, case: Case, seens: list[Observation]) -> bool:
        """Whether a case that showed nothing is worth one more play: what comes and
        goes may not have come. Not of traffic that takes minutes, nor of requests that
        were all refused; and once of requests of which none runs beside another."""
        nothing = not any(seen.sightings or seen.untestable for seen in seens)
        took = sum(seen.play.seconds for seen in seens)
        if not nothing or self._replay.nothing_tested:
            return False
        most = self._start.quiet or ALONE if in_order(case) else GIVE_UP
        return len(seens) < most and took < QUIET_S

    def _handled(self, bucket: str) -> bool:
        told: list[Finding | Sighting] = [
            *self._replay.findings,
            *self._replay.unconfirmed,
        ]
        known = [
            *(one.bucket for one in told),
            *self._with_another,
            *self._start.handled,
        ]
        return any(alike(bucket, one) for one in known)

    def _say(self, judged: Judged | Observation) -> None:
        replay = self._replay
        replay.unseen += [text for text in judged.unseen if text not in replay.unseen]
        replay.untestable += [
            t for t in judged.untestable if t not in replay.untestable
        ]
        for what, number in judged.counted.items():
            replay.counted[what] = replay.counted.get(what, 0) + number


def answer_lines(answers: Sequence[Answer]) -> list[str]:
    """``r1 POST /v1/completions: 400 in 0.02 s: …``, and of many how many have which
    status."""
    lines = []
    for one in answers[:SHOWN]:
        took = "" if one.seconds is None else f" in {one.seconds:.2f} s"
        words = one.words.removeprefix(one.status).strip()
        said = f": {words}" if words else ""
        lines.append(
            f"{one.operation} {one.method} {one.path}: {one.status}{took}{said}"
        )
    if rest := Counter(one.status for one in answers[SHOWN:]):
        lines.append(
            ", ".join(f"{number} × {status}" for status, number in rest.items())
        )
    return lines


def jobs_of(asked: ReplayCommand) -> int | None:
    """Servers at a time while shrinking: two need cores and memory for two; a GPU has
    one at a time, unless more are asked for. None: as Ray has machines."""
    if asked.jobs or asked.ray:
        return asked.jobs
    if asked.on_gpu:
        return 1
    cores = len(os.sched_getaffinity(0))
    return 2 if cores >= 4 and psutil.virtual_memory().available >= 2 * JOB_BYTES else 1


DEFAULT_ROOT = "replays"


class Replaying(CaseSearch[Replay]):
    """A replay in progress: found, confirmed, shrunk."""

    kind = "replay"
    options: ReplayCommand

    def __init__(self, options: ReplayCommand, *, write: WriteReplay) -> None:
        """``write`` writes the replay's documents, each time that it has grown."""
        super().__init__(options)
        self._write = write
        self.case = self._read()
        self._files: ReplayFolder | None = None
        self._begun = False

    @property
    def replay(self) -> Replay:
        """Valid, if partial, at every moment."""
        assert self._files is not None
        return self._files.replay

    def standing(self) -> str:
        """How many starts there were, and what was found."""
        if self._files is None:
            return "nothing has begun"
        made, findings = len(self.replay.plays), self.replay.findings
        words = [f"{made} of at most {max(made, self.options.budget)} starts"]
        words += [f"{f.id}: {f.finding_class}, {f.requests} requests" for f in findings]
        return ", ".join(words)

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Replay]) -> None:
        super().begin(campaign)
        campaign.emit(Note(text=BOXED if self.options.boxed else UNBOXED))
        self._files = ReplayFolder(self.folder, self.case, self.options, self._write)

    def more(self) -> Callable[[], None] | None:
        """All of it is one line of work."""
        begun, self._begun = self._begun, True
        return None if begun else self.run

    def run(self) -> None:
        """All of it."""
        assert self._files is not None
        Rounds(self, self._files).run()

    def end(self, state: State, failure: str) -> Replay:
        assert self._files is not None
        self.break_off()
        with self._files as files:
            files.end(ENDINGS[state], failure)
            return files.replay

    # ------------------------------------------------------------------ the case

    def _read(self) -> Case:
        """The case, which is in the replay's folder afterwards, with its pictures."""
        options, server = self.options, {"server": self.options.server}
        self.folder = campaign_folder(options, VERDICTS, DEFAULT_ROOT)
        if options.resume is not None:
            return read_case(self.folder)[0].model_copy(update=server)
        captured = self._captured()
        model = (
            Path(options.server.model) if is_there(Path(options.server.model)) else None
        )
        if options.scale:
            captured = scale(captured, options.server.max_model_len, model=model)
        if options.anonymise:
            captured = anonymise(captured, options.seed, model)
        case = self._expecting(captured.case.model_copy(update=server))
        self.folder = prepared(self.folder)
        write_case(case, self.folder, captured.contents)
        return case

    def _expecting(self, case: Case) -> Case:
        """With what ``--expect`` says. Raises UsageError."""
        return expecting(case, self.options.expect)

    def _captured(self) -> Captured:
        """What was recorded. Raises UsageError."""
        options = self.options
        return read(
            options.file,
            options.server,
            host=options.host,
            concurrency=options.concurrency,
            excerpt=options.excerpt,
            seed=options.seed,
        )
