"""A comparison of two sides of an engine: which servers are started, and when it is
enough.

All of the traffic is played twice on each side, A B B A, for what servers answer; then
blocks are measured until the statistics are settled or the time is over."""

from __future__ import annotations

import functools
import hashlib
import os
import statistics
import subprocess
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import mmrepro
import psutil
from mmrepro.base.machine import journal
from mmrepro.base.machine.files import device_of
from mmrepro.base.machine.host import child_environment, host_facts
from mmrepro.base.machine.journal import Journal, JournalKind, Line
from mmrepro.base.records import Moment, Record
from mmrepro.base.text.redact import Redactor
from mmrepro.campaign.campaign import Campaign, CampaignState
from mmrepro.campaign.events import Established, RunEnded
from mmrepro.campaign.measure import MeasuredBlock, MeasureRun
from mmrepro.campaign.search import Search, Spent
from mmrepro.campaign.work import Order, StartedRun
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments.build import existing
from mmrepro.failure.documents.folder import prepared
from mmrepro.failure.documents.upgrade import (
    RUNS_FILE,
    UPGRADE_FILE,
    Area,
    Block,
    Difference,
    OptionSeen,
    Outcome,
    Side,
    SideRun,
    Upgrade,
)
from mmrepro.runs.changes import BUSY, LOOKS, changes, difference, enough
from mmrepro.runs.judge import Deadlines
from mmrepro.runs.play.options import Measuring, PlayOptions, Servers
from mmrepro.search.oracle.judge import judge
from mmrepro.search.oracle.reference import with_logprobs
from mmrepro.search.replay.attempts import (
    ENDINGS,
    PLAYED_FILE,
    CaseResult,
    CaseRun,
    campaign_folder,
)
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.upgrade import (
    answers,
    catalogue,
    configuration,
    failures,
    help_text,
    protocol,
    starts,
)
from mmrepro.search.upgrade.options import UpgradeCommand
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.files import case_digest, read_case, write_case
from mmrepro.traffic.case.model import Case, ServerWanted
from mmrepro.traffic.case.sending import Played, PlayState
from pydantic import Field, TypeAdapter

_DEFAULT_ROOT = "upgrades"
_RUNS_DIR, _BLOCKS_DIR = "runs", "blocks"
_TOGETHER_BYTES = 6 << 30
"""Memory that is free where two servers live at once: each takes 1.5 GiB with a tiny
model."""
_HELP_S = 180.0
_LEAST_S, _MOST_S = 6.0, 60.0
"""Seconds of traffic of a block on each side, at least and at most; between them, as
long as two starts take. A machine is slower for a second now and then: a block has more
parts than that."""
_PARTS_S, _ANSWERS = (0.2, 30.0), 5.0
"""Seconds of a part, at least and at most; between them, as long as so many answers
take."""
UNEVEN = 1.15
"""By how much a machine may be slower in some blocks than in others before it is
said."""
_BROKEN_BLOCKS = 3
"""In a row, after which nothing more is measured."""
_ORDER: tuple[Side, Side] = ("old", "new")
_LONG_PLAY = 1 / 6
"""Of the budget: where all of the traffic takes longer, it is played once on each side,
not twice, so that there is time to measure."""


class UpgradeHead(journal.Head):
    """The first line: whose runs follow."""

    case: Annotated[str, Field(description="digest of the traffic")]

    def other_than(self, asked: Any) -> str:
        if self.mmrepro_version == asked.mmrepro_version and self.case != asked.case:
            return "is of other traffic"
        return super().other_than(asked)


class Calibrated(Line):
    kind: Literal["deadlines"] = "deadlines"
    answer_s: float
    suspect_s: float
    rule: str = ""

    @property
    def once(self) -> str:
        return "The deadlines were measured"


class RunLine(Line):
    kind: Literal["run"] = "run"
    run: SideRun

    @property
    def once(self) -> str:
        return f"Run {self.run.index} of the {self.run.side} side ended"


class MeasuredLine(Line):
    kind: Literal["block"] = "block"
    block: Block

    @property
    def once(self) -> str:
        return f"Block {self.block.index} was measured"


_AnyLine: TypeAlias = Annotated[
    UpgradeHead | Calibrated | RunLine | MeasuredLine, Field(discriminator="kind")
]
RUNS = JournalKind(
    "comparison", RUNS_FILE, ".upgrade.lock", UPGRADE_FILE, TypeAdapter(_AnyLine)
)
_WriteUpgrade = Callable[[Upgrade, Path], object]


class Upgrading(Search[Upgrade, Record]):
    """A comparison in progress.

    Attributes:
        servers: how all of them are started.
        runs: of all of the traffic, by side.
        blocks: that were measured, in their order.
    """

    kind = "comparison"

    def __init__(self, options: UpgradeCommand, *, write: _WriteUpgrade) -> None:
        """``write`` writes the documents below the folder, each time that they have
        grown."""
        super().__init__()
        self.options, self._write = options, write
        self.sides: dict[Side, ServerWanted] = {
            "old": options.server,
            "new": options.new_server,
        }
        self.servers = Servers(
            options.server, options.start_mode, options.timeout_s, options.device
        )
        self.runs: dict[Side, list[SideRun]] = {"old": [], "new": []}
        self.blocks: list[Block] = []
        self.case = self._read()
        self._orders: dict[tuple[str, int], Order] = {}
        self._journal: Journal | None = None
        self._of_runs: tuple[int, list[Difference]] = 0, []
        self._enough = False
        self.works = [self.run]
        self.document = self._blank()

    @property
    def resume_command(self) -> str:
        return self.options.command_line(out=None, resume=self.folder)

    def standing(self) -> str:
        made = sum(map(len, self.runs.values()))
        words = [f"{made} runs", f"{len(self.blocks)} blocks"]
        words += [d.subject for d in self.document.matter[:3]]
        return ", ".join(words)

    # ----------------------------------------------------------------- the line of work

    def run(self) -> None:
        """All of it."""
        try:
            if not self.options.only:
                self._play(self._deadlines())
            if all(run.started for run in self._both()):
                self._measure()
        except Spent:
            self._limit("the time was over (--budget) before all was settled")

    def _deadlines(self) -> Deadlines:
        kept = next((line for line in self._kept if isinstance(line, Calibrated)), None)
        if kept is None:
            order = CaseRun("deadlines", "deadlines", self.servers)
            result = self._made(order, order.began)
            assert isinstance(result, CaseResult)
            measured = result.deadlines
            assert measured is not None
            line = Calibrated(
                answer_s=measured.answer_s,
                suspect_s=measured.suspect_s,
                rule=measured.rule,
            )
            kept = self._append(line)

        return Deadlines(kept.answer_s, kept.suspect_s, kept.rule)

    def _play(self, deadlines: Deadlines) -> None:
        """All of the traffic, twice on each side, A B B A; once, where that takes
        long."""
        kept: dict[tuple[Side, int], SideRun] = {}
        for line in self._kept:
            if isinstance(line, RunLine):
                kept[line.run.side, line.run.index] = line.run
        for index in (1, 2):
            works: list[Callable[[], object]] = []
            # A B B A: what drifts with time, such as a machine that grows warm, does
            # not favour a side.
            in_order = (self.options.seed + index) % 2
            for side in _ORDER if in_order else _ORDER[::-1]:
                if (side, index) in kept:
                    self._ran(kept[side, index], kept=True)
                    continue
                work = functools.partial(self._play_one, side, index, deadlines)
                works.append(work)

            if works:
                self.beside(works)
            self._compare()
            long = max(run.seconds for run in self._both())
            once = index == 1 and len(kept) <= len(_ORDER)
            # The second play tells what a side does now and then; the rest of the time
            # is better spent on measuring.
            if once and long > _LONG_PLAY * self.options.budget_s:
                self._limit(
                    "all of the traffic was played once on each side, since that takes "
                    "more than a sixth of the time (--budget): what a side does now "
                    "and then is not told apart"
                )
                return

    def _play_one(self, side: Side, index: int, deadlines: Deadlines) -> None:
        case = with_logprobs(self.case.model_copy(update={"server": self.sides[side]}))
        order = CaseRun(
            f"{side} {index}",
            f"{side}, {self.sides[side].label}, all of the traffic, play {index}",
            self.servers,
            f"{_RUNS_DIR}/{side}-{index}",
            case=case,
            contents=self.folder,
            options=PlayOptions(deadlines, early=False, blocks=6, bodies=True),
        )
        result = self._made(order, order.began)
        assert isinstance(result, CaseResult)
        self._ran(
            self._append(RunLine(run=self._observed(side, index, case, result))).run
        )

    def _observed(
        self, side: Side, index: int, case: Case, result: CaseResult
    ) -> SideRun:
        played, folder = result.played, self.folder / result.place
        assert played is not None
        (folder / PLAYED_FILE).write_text(played.model_dump_json(), encoding="utf-8")
        fields: dict[str, dict[str, list[str]]] = {}
        for id, body in played.bodies.items():
            fields[id] = protocol.fields_of(body.encode(), played.headers.get(id))
        run = SideRun(
            side=side,
            index=index,
            state=played.state,
            error="" if played.state is PlayState.ENDED else played.said,
            start_s=played.start_s,
            seconds=result.seconds,
            sightings=self.judged(case, played),
            fields=fields,
            folder=result.place,
        )
        if index == 1:  # a server's options do not change from start to start
            run.config = configuration.of_log(folder / played.log_file)
            run.options = self.listed_options(side)
        return run

    def judged(self, case: Case, played: Played) -> list[Any]:
        """What is wrong with it by itself."""
        return judge(case, played, engine=get_engine(case.server.engine)).sightings

    def listed_options(self, side: Side) -> list[OptionSeen]:
        """The options that the side's server lists; []: its environment is not on this
        machine."""
        wanted = self.sides[side]
        environment = existing(
            spec_for(wanted.engine, wanted.release, self.options.device)
        )
        if environment is None:
            return []
        env = child_environment({**wanted.env, **help_text.WIDE})
        for argv in help_text.commands(get_engine(wanted.engine), environment):
            try:
                ended = subprocess.run(
                    argv,
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=_HELP_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue

            options = help_text.read(ended.stdout)
            if options:
                return options

        return []

    def _ran(self, run: SideRun, *, kept: bool = False) -> None:
        file = self.folder / run.folder / PLAYED_FILE
        played = Played.model_validate_json(file.read_bytes())
        of_side = self.runs[run.side]
        of_side.append(run.model_copy(update={"played": played}))
        of_side.sort(key=lambda other: other.index)
        # All that was played lies in the run's folder: the document stays small.
        bare: dict[str, object] = {"played": None, "fields": {}}
        self.document.runs = [other.model_copy(update=bare) for other in self._both()]
        kinds = dict.fromkeys(s.finding_class for s in run.sightings)
        event = RunEnded(
            what=f"{run.side}, all of the traffic",
            index=run.index,
            outcome=", ".join(kinds) or run.state,
            tone="bad" if kinds else "soft",
            seconds=run.seconds,
            kept=kept,
        )
        self.campaign.emit(event)
        self.write()

    def _both(self) -> list[SideRun]:
        """All runs of all of the traffic, OLD's before NEW's."""
        return [*self.runs["old"], *self.runs["new"]]

    # ------------------------------------------------------------------ blocks

    def _measure(self) -> None:
        lines = (line for line in self._kept if isinstance(line, MeasuredLine))
        kept = {line.block.index: line.block for line in lines}
        broken = 0
        for look in LOOKS:
            wanted = range(len(self.blocks) + 1, look + 1)
            for index in wanted:
                block = kept.get(index)
                if block is None:
                    order = self._block(index)
                    made = self._made(order, order.began)
                    assert isinstance(made, MeasuredBlock)
                    block = self._append(MeasuredLine(block=made.block)).block
                self._took(block, kept=index in kept)
                # A block may fail by chance; several in a row do not.
                broken = broken + 1 if block.error else 0
                if broken == _BROKEN_BLOCKS:
                    self._limit(f"nothing more was measured: {block.error}")
                    return

            self._compare()
            if enough(self._changes()):
                self._enough = True
                return

    def _block(self, index: int) -> MeasureRun:
        started = [run.start_s for run in self._both()]
        for block in self.blocks:
            started += [block.old.get("start", 0.0), block.new.get("start", 0.0)]
        seconds = min(_MOST_S, max(_LEAST_S, 2 * max(started, default=0.0)))
        measuring = Measuring(
            self.sides["old"],
            self.sides["new"],
            self.case,
            self.folder,
            index=index,
            seed=self.options.seed,
            together=self.document.interleaved == "requests",
            part_s=min(_PARTS_S[1], max(_PARTS_S[0], _ANSWERS * self._answer_s())),
            seconds=seconds,
            at_once=self.options.at_once,
            only=self.options.only,
        )
        place = f"{_BLOCKS_DIR}/{index:03d}"
        return MeasureRun(
            "block",
            "old and new in turn, block",
            self.servers,
            place,
            measuring=measuring,
        )

    def _answer_s(self) -> float:
        """What an answer takes."""
        took: list[float] = []
        for run in self._both():
            requests = run.played.evidence.requests if run.played else []
            took += [record.latency_s for record in requests if record.answered]
        for block in self.blocks:
            if "latency" in block.old:
                took.append(block.old["latency"])
        return statistics.median(took) if took else 1.0

    def _took(self, block: Block, *, kept: bool) -> None:
        self.blocks.append(block)
        self.document.blocks = self.blocks
        shown = [m for m in ("ttft", "itl", "tpot", "throughput") if m in block.changes]
        words = ", ".join(f"{m} {block.changes[m]:+.1%}" for m in shown)
        self.campaign.emit(
            RunEnded(
                what="block",
                index=block.index,
                outcome=block.error or words or "nothing was measured",
                tone="unsure" if block.error else "soft",
                seconds=block.seconds,
                kept=kept,
            )
        )
        self.write()

    def _changes(self, *, last: bool = False) -> list[Any]:
        sound = [block for block in self.blocks if not block.error]
        asked = self.options
        return changes(
            sound, asked.thresholds, asked.confidence, only=asked.only, last=last
        )

    # ------------------------------------------------------------------ what follows

    def _compare(self, *, last: bool = False) -> None:
        """All differences, from what is known now."""
        made = sum(map(len, self.runs.values()))
        # Comparing all runs takes seconds, and only another run changes what comes of
        # it.
        if self._of_runs[0] != made:
            self._of_runs = made, self.compared()
        differences = [*self._of_runs[1], *map(difference, self._changes(last=last))]
        before = {d.subject for d in self.document.matter}
        order = list(Area)
        self.document.differences = sorted(
            differences, key=lambda d: order.index(d.area)
        )
        for item in self.document.matter:
            if item.subject not in before:
                self.campaign.emit(
                    Established(text=f"{item.subject}: {item.statement}")
                )
        self.write()

    def compared(self) -> list[Difference]:
        """What the runs of all of the traffic show."""
        old, new = self.runs["old"], self.runs["new"]
        if not (old and new):
            return []
        known = [
            *answers.compare(old, new, case=self.case),
            *protocol.compare(old, new, case=self.case),
        ]
        return [
            *starts.compare(
                old, new, old_server=self.sides["old"], new_server=self.sides["new"]
            ),
            *failures.compare(old, new, case=self.case, known=known),
            *catalogue.compare(
                self.case, self.sides["new"], device_of(self.options.device)
            ),
            *known,
        ]

    def _conclude(self) -> None:
        """What is to be said of the whole, at its end."""
        document, blocks = self.document, [b for b in self.blocks if not b.error]
        self._compare(last=not self._enough)
        measured = any(d.metric for d in document.differences)
        if not measured and all(run.started for run in document.runs):
            why = "nothing was measured"
            if blocks:
                why = f"too few blocks were measured for an interval: {len(blocks)}"
            elif self.blocks:
                why = self.blocks[-1].error
            untold = Difference(
                area=Area.SPEED, subject="times", outcome=Outcome.UNTOLD, statement=why
            )
            document.differences.append(untold)

        busy = [block.client_busy for block in blocks]
        # The median: one block on a busy machine says nothing of the whole.
        if busy and sorted(busy)[len(busy) // 2] > BUSY:
            self._limit(
                f"the client was the bottleneck: it computed for {max(busy):.0%} of "
                "the time, so the servers may differ by more"
            )

        noise = sorted(block.noise for block in blocks)
        if noise and noise[len(noise) // 2] > 0.2:
            cores = os.cpu_count() or 1
            self._limit(
                f"other programs took {noise[len(noise) // 2]:.1f} of {cores} cores "
                "meanwhile"
            )

        fast, slow = paces(blocks)
        if slow > UNEVEN * fast:
            self._limit(
                f"the machine's own speed varied: a fixed computation took {fast:.1f} "
                f"to {slow:.1f} ms from block to block, without a tenth of them at "
                "each end"
            )

    def _limit(self, text: str) -> None:
        if text not in self.document.limits:
            self.document.limits.append(text)

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Upgrade]) -> None:
        super().begin(campaign)
        options = self.options
        decides = {
            # Digests: what is written down is redacted, and is held against what is
            #     asked.
            "old": _digest(options.server),
            "new": _digest(options.new_server),
            "--seed": str(options.seed),
            "--at-once": str(options.at_once),
            "--interleave": options.interleave,
        }
        head = UpgradeHead(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            case=case_digest(self.case),
            decides=decides,
        )
        self._journal = Journal(RUNS, self.folder, head)
        self.document.id = self._journal.head.id
        self.write()

    @property
    def _kept(self) -> Sequence[Line]:
        assert self._journal is not None
        return self._journal.kept

    def _append(self, line: Any) -> Any:
        assert self._journal is not None
        return self._journal.append(line)

    def _made(self, order: CaseRun | MeasureRun, began: StartedRun) -> Record:
        self._orders[began.key] = order
        made = self.result(began)
        del self.done[began.key], self._orders[began.key]
        return made

    def order_of(self, want: StartedRun) -> Order:
        return self._orders[want.key]

    def keep(self, line: Record) -> tuple[str, int]:
        """Whoever asked for it writes it down."""
        assert isinstance(line, CaseResult | MeasuredBlock)
        return line.id, line.block.index if isinstance(line, MeasuredBlock) else 1

    def affords(self, want: StartedRun) -> bool:
        order, took = self.order_of(want), [block.seconds for block in self.blocks[-3:]]
        if not took and isinstance(order, MeasureRun):
            starts_s = 0.0
            for runs in self.runs.values():
                starts_s += max((run.start_s for run in runs), default=0)
            # Both sides, of the first block.
            took = [starts_s + 2 * order.measuring.seconds]

        took = took or [run.seconds for run in self.document.runs]
        return self.campaign.fits(max(took, default=0.0))

    def end(self, state: CampaignState, failure: str) -> Upgrade:
        self.break_off()
        document = self.document
        try:
            if state is not CampaignState.FAILED:
                self._conclude()
            document.state, document.failure = ENDINGS[state], failure
            document.finished = Moment.now()
            self.write()
        finally:
            if self._journal is not None:
                self._journal.close()

        return document

    def write(self) -> None:
        self._write(Redactor().redact_model(self.document), self.folder)

    # -------------------------------------------------------------- what it begins with

    def _read(self) -> Case:
        """The traffic, which is in the folder afterwards, with its pictures."""
        options, server = self.options, {"server": self.options.server}
        self.folder = campaign_folder(options, RUNS, _DEFAULT_ROOT)
        if options.resume is not None:
            return read_case(self.folder)[0].model_copy(update=server)
        captured = read(
            options.traffic, options.server, excerpt=options.excerpt, seed=options.seed
        )
        case = captured.case.model_copy(update=server)
        self.folder = prepared(self.folder)
        write_case(case, self.folder, captured.contents)
        return case

    def _blank(self) -> Upgrade:
        options = self.options
        return Upgrade(
            mmrepro_version=mmrepro.__version__,
            id=uuid.uuid4().hex[:12],
            created=Moment.now(),
            state="interrupted",
            failure=(
                f"the comparison has not ended; to resume, run: {self.resume_command}"
            ),
            command=options.command_line(),
            resume=self.resume_command,
            server=options.server,
            new=options.new_server,
            origin=self.case.origin,
            requests=len(self.case.operations),
            seed=options.seed,
            confidence=options.confidence,
            thresholds=options.thresholds,
            interleaved=_interleaved(options),
            host=host_facts(),
        )


def paces(blocks: Sequence[Block]) -> tuple[float, float]:
    """Milliseconds of the fixed computation, in fast and in slow blocks: a tenth is
    beyond either.

    Zeros: fewer than two blocks have it.
    """
    known = [block.pace for block in blocks if block.pace]
    if len(known) < 2:
        return 0.0, 0.0
    fast, *_, slow = statistics.quantiles(known, n=10, method="inclusive")
    return fast, slow


def with_servers(asked: UpgradeCommand, old: str, new: str) -> UpgradeCommand:
    """The options with the servers of both sides, of these releases. Raises UsageError:
    it is not known of which engine, or which options it has."""
    named = {"engine": asked.engine} if asked.engine else {}
    wanted = functools.partial(server_wanted, asked.traffic, asked.resume)
    return replace(
        asked,
        server=wanted(named | asked.asked | {"release": old}),
        new_server=wanted(named | asked.asked_new | {"release": new}),
    )


def _digest(server: ServerWanted) -> str:
    """What a journal keeps of a server: paths and secrets of it would be written
    without what makes them out."""
    whole = server.model_dump_json().encode()
    return f"{server.label}, {hashlib.sha256(whole).hexdigest()[:12]}"


def _interleaved(options: UpgradeCommand) -> Literal["requests", "servers"]:
    """``requests`` where both servers can live at once, and an idle one does not
    compute."""
    if options.interleave != "auto":
        return options.interleave
    engine = get_engine(options.server.engine)
    spec = spec_for(options.server.engine, options.server.release, options.device)
    room = psutil.virtual_memory().available >= _TOGETHER_BYTES
    if spec.device == "cpu" and not engine.idle_loops and room:
        return "requests"
    return "servers"
