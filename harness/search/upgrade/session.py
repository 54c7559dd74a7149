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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import psutil
from mmrepro.base.machine import (
    JournalKind,
    JournalLine,
    child_environment,
    device_of,
    host_facts,
)
from mmrepro.base.units import count, duration, exact_duration
from mmrepro.campaign import (
    Campaign,
    CampaignState,
    Established,
    MeasureRun,
    RunEnded,
    Spent,
    StartedRun,
)
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments import existing
from mmrepro.failure.documents import (
    UPGRADE_FILE,
    UPGRADE_RUNS_FILE,
    Area,
    Block,
    Difference,
    OptionSeen,
    SideRun,
    Upgrade,
    UpgradeOutcome,
    UpgradeSide,
    prepared_folder,
)
from mmrepro.failure.documents.searches import begun
from mmrepro.runs import (
    BUSY,
    FACTOR,
    LOOKS,
    Deadlines,
    difference_of,
    enough_blocks,
    metric_changes,
)
from mmrepro.runs.play import Measuring, PlayOptions
from mmrepro.search.oracle import sides
from mmrepro.search.oracle.reference import with_logprobs
from mmrepro.search.replay.attempts import (
    PLAYED_FILE,
    CaseResult,
    CaseRun,
    CaseSearch,
)
from mmrepro.search.replay.folder import (
    CaseHead,
    SessionFolder,
    campaign_folder,
    new_head,
)
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.upgrade import (
    catalogue,
    configuration,
    failures,
    help_text,
    starts,
)
from mmrepro.search.upgrade.options import UpgradeCommand
from mmrepro.traffic.capture import read_capture
from mmrepro.traffic.case import (
    Case,
    Played,
    ServerWanted,
    case_digest,
    read_case,
    write_case,
)
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
_NOISY = 0.2
"""Cores that other programs may take before it is said."""
_BROKEN_BLOCKS = 3
"""In a row, after which nothing more is measured."""
_ORDER: tuple[UpgradeSide, UpgradeSide] = ("old", "new")
_LONG_PLAY = 1 / 6
"""Of the budget: where all of the traffic takes longer, it is played once on each side,
not twice, so that there is time to measure."""


class UpgradeHead(CaseHead):
    """The first line: whose runs follow."""

    other = "other traffic"


class Calibrated(JournalLine):
    once_as = "The deadlines were measured"
    kind: Literal["deadlines"] = "deadlines"
    answer_s: float
    suspect_s: float
    rule: str = ""
    seconds: float = 0.0
    """With the start of the server on which they were measured."""

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


class RunLine(JournalLine):
    once_as = "Run {0.run.index} of the {0.run.side} side ended"
    kind: Literal["run"] = "run"
    run: SideRun


class MeasuredLine(JournalLine):
    once_as = "Block {0.block.index} was measured"
    kind: Literal["block"] = "block"
    block: Block


_AnyLine: TypeAlias = Annotated[
    UpgradeHead | Calibrated | RunLine | MeasuredLine, Field(discriminator="kind")
]
RUNS = JournalKind(
    "comparison",
    UPGRADE_RUNS_FILE,
    ".upgrade.lock",
    UPGRADE_FILE,
    TypeAdapter(_AnyLine),
)
_WriteUpgrade = Callable[[Upgrade, Path], object]


class Upgrading(CaseSearch[Upgrade]):
    """A comparison in progress.

    Attributes:
        servers: how all of them are started.
        runs: of all of the traffic, by side.
        blocks: that were measured, in their order.
    """

    kind = "comparison"
    options: UpgradeCommand

    def __init__(self, options: UpgradeCommand, *, write: _WriteUpgrade) -> None:
        """``write`` writes the documents below the folder, each time that they have
        grown."""
        super().__init__(options)
        self._write = write
        self.sides: dict[UpgradeSide, ServerWanted] = {
            "old": options.server,
            "new": options.new_server,
        }
        self.runs: dict[UpgradeSide, list[SideRun]] = {"old": [], "new": []}
        self.blocks: list[Block] = []
        self.case = self._read()
        self._of_runs: tuple[int, list[Difference]] = 0, []
        self._enough = False
        self._play_s = 0.0
        self.works = [self.run]
        self.document = self._blank()

    def standing(self) -> str:
        made = sum(map(len, self.runs.values()))
        words = [count(made, "run"), count(len(self.blocks), "block")]
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
        except Spent as spent:
            why = "the time budget (--budget) ended before every comparison was decided"
            self._limit(str(spent) or why)

    def _deadlines(self) -> Deadlines:
        """Those of an earlier call, or measured now on a server of its own."""
        for line in self.files.kept(Calibrated):
            self._expect(line)
            return line.deadlines
        result = self.attempt(CaseRun("deadlines", "deadlines", self.servers))
        assert result.deadlines is not None
        line = Calibrated(**asdict(result.deadlines), seconds=result.seconds)
        self._expect(line)
        return self.files.journal.append(line).deadlines

    def _expect(self, line: Calibrated) -> None:
        """Estimate a play of all of the traffic: a start, and its requests as slow as
        the slowest warm one."""
        warm_s = line.answer_s / FACTOR
        self._play_s = line.seconds + len(self.case.operations) * warm_s

    def _check_budget(self) -> None:
        """Raises Spent: not even one play on each side ends in time, so none begins."""
        at_once = min(self.at_once, len(_ORDER))
        least_s = self._play_s * len(_ORDER) / at_once
        if self.runs["old"] or self.runs["new"] or self.campaign.fits(least_s):
            return
        requests = count(len(self.case.operations), "request")
        text = (
            f"playing {requests} on both sides takes about {duration(least_s)}, "
            f"longer than --budget {exact_duration(self.options.budget_s)} leaves: "
            "nothing was played"
        )
        self.campaign.note(text)
        raise Spent(text)

    def _play(self, deadlines: Deadlines) -> None:
        """All of the traffic, twice on each side, A B B A; once, where that takes
        long."""
        kept: dict[tuple[UpgradeSide, int], SideRun] = {}
        for line in self.files.kept(RunLine):
            kept[line.run.side, line.run.index] = line.run
        if not kept:
            self._check_budget()
        self._play_both(1, kept, deadlines)

        long = max(run.seconds for run in self._both())
        has_second = len(kept) > len(_ORDER)
        # The second play tells what a side does now and then; the rest of the time is
        # better spent on measuring.
        if long > _LONG_PLAY * self.options.budget_s and not has_second:
            self._limit(
                "all of the traffic was played once on each side, since that takes "
                "more than a sixth of the time (--budget): what a side does now "
                "and then is not told apart"
            )
            return
        self._play_both(2, kept, deadlines)

    def _play_both(
        self,
        index: int,
        kept: Mapping[tuple[UpgradeSide, int], SideRun],
        deadlines: Deadlines,
    ) -> None:
        """A play of each side, beside each other where places are free."""
        # A B B A: what drifts with time, such as a machine that grows warm, does not
        # favour a side.
        old_is_first = (self.options.seed + index) % 2
        plays: list[Callable[[], object]] = []
        for side in _ORDER if old_is_first else _ORDER[::-1]:
            if (side, index) in kept:
                self._ran(kept[side, index], kept=True)
            else:
                play = functools.partial(self._play_one, side, index, deadlines)
                plays.append(play)

        if plays:
            self.beside(plays)
        self._compare()

    def _play_one(self, side: UpgradeSide, index: int, deadlines: Deadlines) -> None:
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
        run = self._observed(side, index, case, self.attempt(order))
        self._ran(self.files.journal.append(RunLine(run=run)).run)

    def _observed(
        self, side: UpgradeSide, index: int, case: Case, result: CaseResult
    ) -> SideRun:
        played, folder = result.played, self.folder / result.place
        assert played is not None
        (folder / PLAYED_FILE).write_text(played.model_dump_json(), encoding="utf-8")
        sightings = self.judged(case, played).sightings
        whole = sides.side_run(
            side,
            index,
            played,
            seconds=result.seconds,
            folder=result.place,
            sightings=sightings,
        )
        # The journal names the file: what was played is read back from it.
        run = whole.model_copy(update={"played": None})
        if index == 1:  # a server's options do not change from start to start
            run.config = configuration.of_log(folder / played.log_file)
            run.options = self.listed_options(side)
        return run

    def listed_options(self, side: UpgradeSide) -> list[OptionSeen]:
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
        self.files.write()

    def _both(self) -> list[SideRun]:
        """All runs of all of the traffic, OLD's before NEW's."""
        return [*self.runs["old"], *self.runs["new"]]

    # ------------------------------------------------------------------ blocks

    def _measure(self) -> None:
        """Measure blocks until the statistics are settled."""
        kept = {line.block.index: line.block for line in self.files.kept(MeasuredLine)}
        broken = 0
        for look in LOOKS:
            for index in range(len(self.blocks) + 1, look + 1):
                block = kept.get(index)
                if block is None:
                    measured = self.measure(self._block(index)).block
                    line = MeasuredLine(block=measured)
                    block = self.files.journal.append(line).block
                self._took(block, kept=index in kept)
                # A block may fail by chance; several in a row do not.
                broken = broken + 1 if block.error else 0
                if broken == _BROKEN_BLOCKS:
                    self._limit(f"nothing more was measured: {block.error}")
                    return

            self._compare()
            if enough_blocks(self._changes()):
                self._enough = True
                return

    def _block(self, index: int) -> MeasureRun:
        """The order of a block, which takes about as long as two starts."""
        started = [run.start_s for run in self._both()]
        for block in self.blocks:
            started += [block.old.get("start", 0.0), block.new.get("start", 0.0)]
        starts_s = 2 * max(started, default=0.0)
        measuring = Measuring(
            self.sides["old"],
            self.sides["new"],
            self.case,
            self.folder,
            index=index,
            seed=self.options.seed,
            together=self.document.interleaved == "requests",
            part_s=_bounded(_ANSWERS * self._answer_s(), *_PARTS_S),
            seconds=_bounded(starts_s, _LEAST_S, _MOST_S),
            at_once=self.options.at_once,
            only=self.options.only,
        )
        what, place = "old and new in turn, block", f"{_BLOCKS_DIR}/{index:03d}"
        return MeasureRun("block", what, self.servers, place, measuring=measuring)

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
        self.files.write()

    def _changes(self, *, last: bool = False) -> list[Any]:
        asked = self.options
        return metric_changes(
            self._sound_blocks(),
            asked.thresholds,
            asked.confidence,
            only=asked.only,
            last=last,
        )

    # ------------------------------------------------------------------ what follows

    def _compare(self, *, last: bool = False) -> None:
        """All differences, from what is known now."""
        made = sum(map(len, self.runs.values()))
        # Comparing all runs takes seconds, and only another run changes what comes of
        # it.
        if self._of_runs[0] != made:
            self._of_runs = made, self.compared()
        differences = [*self._of_runs[1], *map(difference_of, self._changes(last=last))]
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
        self.files.write()

    def compared(self) -> list[Difference]:
        """What the runs of all of the traffic show."""
        old, new = self.runs["old"], self.runs["new"]
        if not (old and new):
            return []
        known = sides.compare(old, new, case=self.case)
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
        document = self.document
        self._compare(last=not self._enough)
        measured = any(d.metric for d in document.differences)
        if not measured and all(run.started for run in document.runs):
            untold = Difference(
                area=Area.SPEED,
                subject="times",
                outcome=UpgradeOutcome.UNTOLD,
                statement=self._why_unmeasured(),
            )
            document.differences.append(untold)
        self._limits_of_machine()

    def _why_unmeasured(self) -> str:
        sound = self._sound_blocks()
        if sound:
            return f"too few blocks were measured for an interval: {len(sound)}"
        return self.blocks[-1].error if self.blocks else "nothing was measured"

    def _limits_of_machine(self) -> None:
        """Say where the client, other programs or the machine's speed were in the
        way."""
        blocks = self._sound_blocks()
        busy = [block.client_busy for block in blocks]
        # The median: one block on a busy machine says nothing of the whole.
        if busy and _upper_median(busy) > BUSY:
            self._limit(
                f"the client was the bottleneck: it computed for {max(busy):.0%} of "
                "the time, so the servers may differ by more"
            )

        noise = [block.noise for block in blocks]
        if noise and _upper_median(noise) > _NOISY:
            cores = os.cpu_count() or 1
            self._limit(
                f"other programs took {_upper_median(noise):.1f} of {cores} cores "
                "meanwhile"
            )

        fast, slow = paces(blocks)
        if slow > UNEVEN * fast:
            self._limit(
                f"the machine's own speed varied: a fixed computation took {fast:.1f} "
                f"to {slow:.1f} ms from block to block, without a tenth of them at "
                "each end"
            )

    def _sound_blocks(self) -> list[Block]:
        return [block for block in self.blocks if not block.error]

    def _limit(self, text: str) -> None:
        if text not in self.document.limits:
            self.document.limits.append(text)

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Upgrade]) -> None:
        super().begin(campaign)
        options = self.options
        decides = {
            # Digests: what is written down is redacted, and is held against what is
            # asked.
            "old": _digest(options.server),
            "new": _digest(options.new_server),
            "--seed": str(options.seed),
            "--at-once": str(options.at_once),
            "--interleave": options.interleave,
        }
        head = new_head(UpgradeHead, decides, case=case_digest(self.case))
        self.files = SessionFolder(RUNS, self.folder, head, self.document, self._write)

    def affords(self, want: StartedRun) -> bool:
        """Whether a run that takes as long as the latest ones ends in time."""
        order, took = self.order_of(want), [block.seconds for block in self.blocks[-3:]]
        if not took and isinstance(order, MeasureRun):
            # The first block: a start of each side, and its traffic on both.
            starts_s = 0.0
            for runs in self.runs.values():
                starts_s += max((run.start_s for run in runs), default=0)
            took = [starts_s + 2 * order.measuring.seconds]
        if not took:
            took = [self._play_s, *(run.seconds for run in self.document.runs)]
        return self.campaign.fits(max(took, default=0.0))

    def closing(self, state: CampaignState) -> None:
        if state is not CampaignState.FAILED:
            self._conclude()

    # -------------------------------------------------------------- what it begins with

    def _read(self) -> Case:
        """The traffic, which is in the folder afterwards, with its pictures."""
        options, server = self.options, {"server": self.options.server}
        self.folder = campaign_folder(options, RUNS, _DEFAULT_ROOT)
        if options.resume is not None:
            return read_case(self.folder)[0].model_copy(update=server)
        captured = read_capture(
            options.traffic, options.server, excerpt=options.excerpt, seed=options.seed
        )
        case = captured.case.model_copy(update=server)
        self.folder = prepared_folder(self.folder)
        write_case(case, self.folder, captured.contents)
        return case

    def _blank(self) -> Upgrade:
        options = self.options
        return Upgrade(
            **begun(self.kind, options.command_line(), self.resume_command),
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


def _bounded(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))


def _upper_median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


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
