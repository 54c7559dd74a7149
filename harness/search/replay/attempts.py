"""Attempts at a case, each on a fresh server: what a place runs, and those of one
replay, counted.

Whatever is decided is decided in the line of work that asked: judging may ask for more
attempts."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrepro.base.errors import InfrastructureError
from mmrepro.base.records import FindingClass, Record
from mmrepro.campaign import (
    CampaignState,
    Established,
    MeasuredBlock,
    MeasureRun,
    OnServers,
    Order,
    RunEnded,
    Search,
    Spent,
    StartedRun,
    Working,
    Workplace,
)
from mmrepro.engines import get_engine
from mmrepro.engines.serving import pools
from mmrepro.failure.documents.replay import Finding, PlayFacts, bucket_words
from mmrepro.runs import Deadlines
from mmrepro.runs.play import PlayOptions, Servers
from mmrepro.search.oracle.judge import judge
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.replay.folder import DocumentT, SessionFolder
from mmrepro.search.replay.known import diagnosed, named
from mmrepro.search.replay.options import ServerCommand
from mmrepro.search.replay.silent import Silent
from mmrepro.search.replay.store import (
    PLAYS_DIR,
    AttemptWanted,
    Key,
    LiveLook,
    Named,
    Observation,
    ReplayFolder,
    observation_of,
)
from mmrepro.traffic.capture import ClientRun, ClientWanted
from mmrepro.traffic.case import Case, Played, case_digest, read_contents

_LookAt = Callable[[str, int, Path], LiveLook]
"""Looks at a server that still lives, by its address, first process and log. Can be
pickled."""


class CaseResult(Record):
    """What came of an attempt.

    Attributes:
        played: None: of deadlines.
        looked: what a look at the living server told.
        client: how the client of a report ran, where one was asked for.
        seconds: with all that was around it.
        error: infrastructure: why an attempt before it counts for nothing.
        place: folder of its files, below the campaign's.
    """

    id: str
    played: Played | None = None
    looked: LiveLook = LiveLook()
    deadlines: Deadlines | None = None
    client: ClientRun | None = None
    seconds: float = 0.0
    error: str = ""
    place: str = ""
    machine: str = ""


@dataclass(frozen=True)
class CaseRun(OnServers):
    """The order of one attempt at a case.

    Attributes:
        case: None: deadlines are measured, on a server of its own.
        contents: folder of its images; they are taken along to another machine.
        look: at the server before it is stopped, if it still lives.
        client: of a report: it is run and recorded on the server that measures
            deadlines.
    """

    case: Case | None = None
    contents: Path | None = None
    options: PlayOptions = field(default_factory=PlayOptions)
    look: _LookAt | None = None
    client: ClientWanted | None = None

    def __getstate__(self) -> dict[str, Any]:
        images = self.images
        if self.case is not None and images is None:
            images = read_contents(self.case, self.contents)
        return {**self.__dict__, "contents": None, "images": images}

    def files(self, result: Record) -> str:
        assert isinstance(result, CaseResult)
        return result.place

    def not_carried(self, result: Record, why: str) -> Record:
        """Without its log nothing can be judged."""
        raise InfrastructureError(why)

    def carry_out(self, here: Workplace, root: Path) -> Working:
        yield self.began
        made = CaseResult(id=self.id, place=self.place, machine=here.machine)
        player, began = here.players.of(self.servers, root), time.monotonic()
        folder = root / self.place
        if self.client is not None:
            made.deadlines, made.client = player.record(self.client, folder)
        elif self.case is None:
            made.deadlines = player.calibrate()
        else:

            def on_look(url: str, pid: int, log: Path) -> None:
                assert self.look is not None
                made.looked = self.look(url, pid, log)

            look = None if self.look is None else on_look
            contents = self.contents_at(root, self.case, self.contents)
            play = functools.partial(
                player.play, self.case, contents, self.options, folder, on_look=look
            )
            made.played, made.error = self.attempted(folder, play)

        made.seconds = round(time.monotonic() - began, 2)
        yield made


class CaseSearch(Search[DocumentT, CaseResult | MeasuredBlock]):
    """A search whose runs are attempts at cases, with a folder of its own.

    Attributes:
        servers: how all of them are started.
        blind: nothing is named.
        files: the document and the journal; there once the campaign has begun.
    """

    folder: Path
    files: SessionFolder[DocumentT]

    def __init__(self, options: ServerCommand, *, blind: bool = False) -> None:
        super().__init__()
        self.servers = Servers(
            options.server,
            options.start_mode,
            options.timeout_s,
            options.device,
            options.boxed,
        )
        self.options, self.blind = options, blind
        self._orders: dict[tuple[str, int], CaseRun | MeasureRun] = {}

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; nothing that has ended is made again."""
        return self.options.command_line(out=None, resume=self.folder)

    # ------------------------------------------------------------ within a line of work

    @property
    def at_once(self) -> int:
        """Attempts that may be made beside each other."""
        return max(1, len(self.campaign.places.there()))

    def attempt(self, order: CaseRun) -> CaseResult:
        """What came of an attempt at a case."""
        result = self._result_of(order)
        assert isinstance(result, CaseResult)
        return result

    def measure(self, order: MeasureRun) -> MeasuredBlock:
        """What came of a block."""
        result = self._result_of(order)
        assert isinstance(result, MeasuredBlock)
        return result

    def _result_of(self, order: CaseRun | MeasureRun) -> CaseResult | MeasuredBlock:
        run = order.began
        self._orders[run.key] = order
        result = self.result(run)
        # Whoever asked keeps it: the same name may be asked for again.
        del self.done[run.key], self._orders[run.key]
        return result

    def judged(self, case: Case, played: Played) -> OracleReport:
        """What is wrong with it by itself."""
        return judge(case, played, engine=get_engine(case.server.engine))

    def named(
        self, bucket: str, seen: Observation, case: Case, result: CaseResult
    ) -> Observation:
        """``seen`` with what the failure of that bucket is called."""
        if self.blind:
            why = Named(bucket=bucket, why="nothing was looked for: --blind")
            return seen.model_copy(update={"named": why})
        assert result.played is not None
        folder = self.folder / result.place
        return named(bucket, seen, case, result.played, folder, result.looked)

    # ------------------------------------------------------------ asked by the campaign

    def order_of(self, want: StartedRun) -> Order:
        return self._orders[want.key]

    def keep(self, line: CaseResult | MeasuredBlock) -> tuple[str, int]:
        """Whoever asked for it judges it, and writes that down."""
        return line.id, line.block.index if isinstance(line, MeasuredBlock) else 1

    def closing(self, state: CampaignState) -> None:
        """Do what is still to be done, however it ends; the document is written
        afterwards."""

    def end(self, state: CampaignState, failure: str) -> DocumentT:
        self.break_off()
        with self.files as files:
            self.closing(state)
            return files.end(state, failure)


# ------------------------------------------------------------------------ of one replay

PLAYED_FILE = "played.json"
_LAST, _USUAL_S = 5, 5.0
"""Attempts by which it is known how many more there is time for; seconds, before there
are any."""


@dataclass(frozen=True)
class StartingPoint:
    """Where a replay begins that pursues what somebody else's attempt at the case
    showed.

    Attributes:
        seen: that attempt; None: there is none, and all of the case is inspected.
        compared: it was wrong beside a reference, and by itself nothing was.
        blocks: it was made in so many blocks.
        again: the case is what was left of a finding: nothing besides is looked for.
        handled: buckets that are known already, and not pursued.
        deadlines: None: they are measured.
        until: monotonic seconds; no attempt begins after it.
        end: the same, of attempts that confirm.
        brief: what the case itself shows, and neither what that hides nor side
            findings.
        loud: of a brief replay: answers are not held against a reference.
        starts: a server that does not start is pursued.
        classes: of findings that are asked for: where one of them shows, others are
            only noted.
        quiet: plays of requests one after another that show nothing; 0: as of any
            replay.
    """

    seen: Observation | None = None
    compared: bool = False
    blocks: int = 0
    again: bool = False
    handled: tuple[str, ...] = ()
    deadlines: Deadlines | None = None
    until: float = math.inf
    end: float = -math.inf
    brief: bool = False
    loud: bool = False
    starts: bool = True
    classes: tuple[FindingClass, ...] = ()
    quiet: int = 0


class Attempts:
    """Makes the attempts of a replay within a line of work, or says what those of an
    earlier call showed.

    Attributes:
        blocks: into so many blocks a case is cut, with a reading of the idle server
            after each.
        hurried: a hang is judged early in attempts that confirm a case before it is
            shrunk; what is left is confirmed with the whole deadline.
        silent: candidates are judged by what the idle server looks like, too.
        facts: of all attempts, in the order in which they were asked for.
        smallest: of each bucket the smallest case that showed it, and that attempt.
        comparison: what answers are held against.
        until: monotonic seconds after which no attempt begins.
        unasked: attempts that a free place made ahead and nobody has asked for; they
            are no starts of the budget, so that what is found does not depend on the
            places.
    """

    def __init__(
        self, search: CaseSearch[Any], files: ReplayFolder, start: StartingPoint
    ) -> None:
        self.search, self.files, self.folder = search, files, files.folder
        self.until, self._end = start.until, start.end
        self.deadlines: Deadlines | None = None
        self.silent, self.hurried, self.blocks = False, files.options.shrink, 0
        self.facts: list[PlayFacts] = []
        self.unasked = 0
        self.smallest: dict[str, tuple[Case, Observation]] = {}
        engine = get_engine(files.options.server.engine)
        self.comparison = Silent(self, engine, self.folder)
        inside = self.folder.relative_to(search.folder).as_posix()
        self._below = "" if inside == "." else f"{inside}/"
        self._prefix = self._below.replace("/", ", ")
        self._asked: dict[Key, Observation] = {}
        self._found: dict[str, tuple[bool, bool]] = {}

    @property
    def left(self) -> int:
        """Starts of servers that may still be made: of the budget, and before
        ``until``, if each takes as long as the slowest of the last ones."""
        left = self.files.options.budget - len(self.facts) + self.unasked
        if math.isinf(self.until):
            return left
        took = [facts.seconds for facts in self.facts if facts.seconds][-_LAST:]
        usual = max(took, default=_USUAL_S)
        return max(0, min(left, int((self.until - time.monotonic()) / usual)))

    @contextmanager
    def confirming(self) -> Iterator[None]:
        """How often it shows is worth a few attempts more: up to the starting point's
        end."""
        until, self.until = self.until, max(self.until, self._end)
        try:
            yield
        finally:
            self.until = until

    def calibrate(self, known: Deadlines | None) -> Deadlines:
        """Measured on a server of its own, if they are not ``known``; counts as a
        start."""
        key = Key("", "calibration", 1)
        facts = self._counted("deadlines", 0)
        facts.state = "ended"
        kept = self.files.ended.get(key)
        if kept is None or kept.deadlines is None:
            self.files.begin_attempt(key, facts)
            deadlines = known
            if deadlines is None:
                order = CaseRun(self._id(key), self._name(facts), self.search.servers)
                result = self.search.attempt(order)
                deadlines, facts.seconds = result.deadlines, result.seconds
            line = self.files.end_attempt(key, Observation(play=facts), deadlines)
        else:
            line = kept
            facts.seconds = kept.seen.play.seconds

        self.deadlines = line.deadlines
        assert self.deadlines is not None
        self._report(facts, kept=kept is not None, quiet=known is not None)
        return self.deadlines

    def play(self, wanted: AttemptWanted, bucket: str = "") -> Observation:
        """One attempt; what was asked for before costs no start.

        Args:
            bucket: the server is looked at, and the failure named.

        Raises:
            Spent: no start is left.
        """
        return self.several([wanted], bucket)[0]

    def several(
        self, wanted: Sequence[AttemptWanted], bucket: str = ""
    ) -> list[Observation]:
        """As :meth:`play`; beside each other where places are free."""
        works: dict[Key, Callable[[], None]] = {}
        for attempt in wanted:
            key = self._key(attempt)
            if key in self._asked or key in works:
                continue
            if self.left < 1:
                raise Spent
            facts = self._counted(attempt.what, len(attempt.case.operations))
            works[key] = functools.partial(self._known, key, facts, attempt, bucket)

        if len(works) > 1:
            self.search.beside(list(works.values()))
        # What no free place made is made here, one after the other.
        for key in works.keys() - self._asked.keys():
            works[key]()
        return [self._asked[self._key(attempt)] for attempt in wanted]

    def whole(self, seen: Observation) -> Played:
        """All that an attempt recorded; it was kept beside its log."""
        return Played.model_validate_json(
            (self.folder / seen.folder / PLAYED_FILE).read_bytes()
        )

    def grew(self, finding: Finding) -> None:
        """A finding has more to say."""
        self.files.grew(finding)
        stands = finding.confirmed, finding.shrunk
        if self._found.get(finding.id) != stands:
            self._found[finding.id] = stands
            self.search.campaign.emit(found(f"{self._prefix}{finding.id}", finding))

    # ------------------------------------------------------------------ one attempt

    def _key(self, wanted: AttemptWanted) -> Key:
        cut = f"/{self.blocks}" if self.blocks else ""
        return Key(case_digest(wanted.case) + cut, wanted.how, wanted.nth)

    def _counted(self, what: str, requests: int) -> PlayFacts:
        """It has a number, and is one start of the budget."""
        facts = PlayFacts(
            number=len(self.facts) + 1, what=what, requests=requests, state=""
        )
        self.facts.append(facts)
        return facts

    def _known(
        self, key: Key, facts: PlayFacts, wanted: AttemptWanted, bucket: str
    ) -> None:
        """It is made, or an earlier call made it."""
        kept = self.files.ended.get(key)
        seen = kept.seen if kept else self._made(key, facts, wanted, bucket)
        for name in ("state", "buckets", "start_s", "seconds", "early"):
            setattr(facts, name, getattr(seen.play, name))
        self._asked[key] = seen
        for shown in facts.buckets:
            best = self.smallest.get(shown)
            # Side findings begin with the smallest case that showed them.
            if best is None or len(wanted.case.operations) < len(best[0].operations):
                self.smallest[shown] = wanted.case, seen

        self._report(facts, kept=kept is not None)

    def _made(
        self, key: Key, facts: PlayFacts, wanted: AttemptWanted, bucket: str
    ) -> Observation:
        """What it showed, written down. Raises Spent: judging it takes one more
        start."""
        shrinking, place = wanted.how == "shrink", f"{PLAYS_DIR}/{facts.number:04d}"
        options = PlayOptions(
            self.deadlines,
            time=self.files.options.time,
            look="none" if shrinking and not self.silent else "quick",
            early=shrinking or (wanted.how == "confirm" and self.hurried),
            blocks=self.blocks,
            canary=not pools(wanted.case.server.engine, wanted.case.server.args),
        )
        look = None
        if bucket and not self.search.blind:
            assert self.deadlines is not None
            look = functools.partial(
                diagnosed, self.deadlines.answer_s, wanted.case.server
            )

        order = CaseRun(
            self._id(key),
            self._name(facts),
            self.search.servers,
            self._below + place,
            case=wanted.case,
            contents=self.folder,
            options=options,
            look=look,
        )
        self.files.begin_attempt(key, facts)
        result = self.search.attempt(order)
        case, played = wanted.case, result.played
        assert played is not None
        facts.error = result.error
        alone = self.search.judged(case, played)
        judged = OracleReport.of([alone, self.comparison.judge(case, played)])
        seen = observation_of(case, played, judged, facts.model_copy())
        seen.folder = place
        if bucket:
            seen = self.search.named(bucket, seen, case, result)
        if not shrinking:
            (self.folder / place / PLAYED_FILE).write_text(
                played.model_dump_json(), encoding="utf-8"
            )

        return self.files.end_attempt(key, seen).seen

    # ------------------------------------------------------------------ its names

    def _id(self, key: Key) -> str:
        return f"{self._below}{key.how}/{key.nth}/{key.digest}"

    def _name(self, facts: PlayFacts) -> str:
        return self._prefix + name_of(facts, self.files.options.budget + self.unasked)

    def _report(self, facts: PlayFacts, *, kept: bool, quiet: bool = False) -> None:
        self.files.attempted(self.facts, kept_s=facts.seconds if kept else 0.0)
        if quiet:  # nothing was started for it
            return
        self.search.campaign.emit(attempt_ended(self._name(facts), facts, kept=kept))


# ---------------------------------------------------------------------- for people


def requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def name_of(facts: PlayFacts, budget: int) -> str:
    """``attempt 2 of at most 40 (the whole case, 12 requests)``."""
    of = f"{facts.number} of at most {budget}"
    return f"attempt {of} ({facts.what}, {requests(facts.requests)})"


def attempt_ended(name: str, facts: PlayFacts, *, kept: bool) -> RunEnded:
    """The event of an attempt that has ended, now or in an earlier call."""
    quiet = "clean" if facts.state == "ended" else facts.state
    detail = ""
    if facts.error:
        detail = f"the one before it counts for nothing: {facts.error}"
    return RunEnded(
        what=name,
        index=1,
        outcome=bucket_words(facts.buckets) or quiet,
        detail=detail,
        tone="bad" if facts.buckets else "soft",
        seconds=facts.seconds,
        kept=kept,
    )


def found(name: str, finding: Finding) -> Established:
    """The event of a finding that is new, or has more to say."""
    known = f"known: {finding.known}" if finding.known else "unknown"
    confirmed = "confirmed" if finding.confirmed else "not confirmed"
    shrunk = ", shrunk" if finding.shrunk else ""
    rate = f"{finding.rate.failed} of {finding.rate.plays} attempts"
    words = f"{finding.finding_class}, {known}, {confirmed}{shrunk}, {rate}"
    text = f"{name}: {words}, {requests(finding.requests)}: {finding.said}"
    return Established(text=text, tone="bad" if finding.confirmed else "unsure")
