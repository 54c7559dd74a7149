"""A case, or a finding, as what a bisection runs at each point: ``mmrepro replay``
without shrinking, and whether the same failure is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrepro.base.errors import BadIncident, ExitCode, UsageError
from mmrepro.base.machine import is_file, is_folder
from mmrepro.base.records import FindingClass
from mmrepro.campaign import StartedRun, TrialOptions, incident_in
from mmrepro.campaign.bisect import BisectCommand, Bisecting, Field
from mmrepro.failure.documents import (
    FINDING_ID,
    INCIDENT_FILE,
    LAST_HERE,
    Attempt,
    Cell,
    Incident,
    Lost,
    load_document,
    load_finding,
    names_here,
    place_here as place,
)
from mmrepro.failure.documents.replay import REPLAY_FILE, VERDICTS_FILE, Finding, Replay
from mmrepro.failure.documents.searches import Bisection
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.runs import RunCommand
from mmrepro.runs.play import replayed
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import scenario_names
from mmrepro.search.oracle.judged import alike
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.pursue import COMPARED, LOUD
from mmrepro.search.replay.store import PLAYS_DIR, VERDICTS, AttemptEnded
from mmrepro.search.replay.unlisted import refuse_unlisted
from mmrepro.traffic.case import (
    CASE_DIR,
    CASE_FILE,
    Case,
    case_digest,
    read_case,
    read_contents,
    write_case,
)

_NOT_SERVED = ("401", "403", "404", "405", "501")
"""Statuses of a release that has no such endpoint: a request so answered tested
nothing."""
_STARTS = 14
"""Servers that one replay without shrinking starts, about, at most."""


@dataclass(frozen=True)
class CaseSubject:
    """A case that is to be bisected.

    Attributes:
        place: where it lies; a command takes it.
        folder: that its images lie below.
        finding: None: the case alone is known, and the failure is what it shows where
            it is bad.
    """

    place: Path
    case: Case
    folder: Path
    finding: Finding | None = None
    contents: Mapping[str, bytes] | None = None
    """Of its images, where they lie in no folder."""

    @property
    def name(self) -> str:
        return f"case-{case_digest(self.case)[:8]}"

    @property
    def title(self) -> str:
        requests = len(self.case.operations)
        said = f"{requests} request{'s' * (requests != 1)} of {self.place.name}"
        return (
            self.finding.title if self.finding else f"{self.case.server.label}: {said}"
        )

    @property
    def scenario(self) -> Scenario:
        """What stands for it where a scenario is wanted: its engine, its release, its
        model."""
        plain, _ = replayed(self.case.server, RunCommand())
        doc = (
            f"{self.title}.\n\nWhat: the requests of a case are sent to a fresh server."
        )
        members: dict[str, Any] = {
            "__doc__": doc,
            "name": self.name,
            "affects": lambda *_: False,  # nobody has declared anything
        }
        made: Scenario = type("Bisected", (type(plain),), members)()
        return made

    def write(self, folder: Path) -> None:
        """Raises UsageError: an image is missing; UnwritableOutput."""
        contents = self.contents
        write_case(
            self.case,
            folder,
            read_contents(self.case, self.folder) if contents is None else contents,
        )

    def making(self, folder: Path) -> ByReplay:
        """How it is run, from the copy that is written into ``folder``. Raises
        UsageError: an image is missing; UnwritableOutput."""
        self.write(folder)
        finding = self.finding
        if finding is None:
            return ByReplay(folder / CASE_FILE)
        return ByReplay(
            folder / CASE_FILE,
            finding.bucket,
            finding.known or "",
            dict(finding.observed),
        )


def subject(word: str) -> CaseSubject | None:
    """The case or finding that ``word`` names; None: it is a scenario's name, or its
    file.

    A case is a file or a folder with one. A finding is its folder, its id (f1: of the
    newest replay that has such a one), or the replay's number, id or ``last``.

    Raises:
        UsageError: it is a case that cannot be read, a replay of several findings, or
            no finding.
    """
    if word in scenario_names() or word.endswith(".py"):
        return None
    path = Path(word)
    there = is_folder(path) or (path.suffix == ".json" and is_file(path))
    named = FINDING_ID.fullmatch(word) or word.isdecimal() or word == LAST_HERE
    if not (there or named or path.suffix == ".json" or word in names_here("finding")):
        return None
    there_is = place(path, "finding")
    try:
        loaded = load_finding(there_is)
    except BadIncident:
        case, folder = read_case(there_is)
        return CaseSubject(there_is, _playable(case, there_is), folder)

    if loaded.case is None or loaded.folder is None:
        raise UsageError(f"{there_is} has no case that could be sent.")
    # The images of a finding's case lie in its own folder.
    return CaseSubject(
        there_is, _playable(loaded.case, there_is), loaded.folder, loaded.finding
    )


def _playable(case: Case, place: Path) -> Case:
    """Raises UsageError: it has no request, or sets of its server what a file may
    not."""
    if not case.operations:
        raise UsageError(f"{place} has no request that could be sent.")
    refuse_unlisted(case.server, place, command=f"mmrepro replay {place}")
    return case


@dataclass
class ByReplay:
    """Runs of a case, by ``mmrepro replay``.

    Attributes:
        bucket: of the failure; "": what a run shows first is it.
        known: the scenario that the failure is known as; "": none.
        observed: what came of each request where the failure was, as
            ``Finding.observed`` has it.
    """

    case: Path
    bucket: str = ""
    known: str = ""
    observed: Mapping[str, str] = field(default_factory=dict)
    file: str = REPLAY_FILE
    starts: int = _STARTS

    def command(self, cell: Cell, options: TrialOptions) -> ReplayCommand:
        return ReplayCommand(
            file=self.case,
            release=cell.release,
            device=cell.device,
            shrink=False,
            repeat=1,
            timeout_s=options.timeout_s,
            start_mode=options.start_mode,
        )

    def outcome(self, folder: Path, code: int | None, words: str) -> dict[str, object]:
        """What the replay in ``folder`` says of the failure."""
        try:
            replay = load_document(folder, REPLAY_FILE, Replay)
        except BadIncident:
            kind = Lost.USAGE if code == ExitCode.USAGE else Lost.INFRASTRUCTURE
            return {"lost": kind, "error": words or f"mmrepro replay ended with {code}"}

        if replay.state != "complete":
            return {"lost": Lost.INFRASTRUCTURE, "error": replay.failure or words}
        shown = self._shown(replay)
        buckets = [shown[0]] if shown else []
        buckets += [finding.bucket for finding in replay.findings]
        facts: dict[str, object] = {
            "fidelity": replay.fidelity,
            "start_mode": replay.start_mode,
            "conditions": dict.fromkeys(buckets, Truth.MET),
        }
        if shown is not None:
            return {**facts, "outcome": Outcome.REPRODUCED, "explanation": shown[1]}
        for finding in replay.findings:
            if finding.finding_class is FindingClass.START_FAILURE:
                error = finding.observation
                return {**facts, "lost": Lost.INFRASTRUCTURE, "error": error}
        outcome, why = self._without(replay, _answers_in(folder))
        return {**facts, "outcome": outcome, "explanation": why}

    def _shown(self, replay: Replay) -> tuple[str, str] | None:
        """The failure as the replay shows it, its bucket and a sentence; None: it does
        not."""
        for finding in replay.findings:
            if self._is_it(finding):
                rate = f"{finding.rate.failed} of {finding.rate.plays} attempts"
                return finding.bucket, f"{finding.observation} ({rate})"

        for seen in replay.unconfirmed:
            if self.bucket and alike(seen.bucket, self.bucket):
                return seen.bucket, f"{seen.said.rstrip('.')} (once, and not again)"
        return None

    def _is_it(self, finding: Finding) -> bool:
        if self.known and finding.known == self.known:
            return True
        if self.bucket:
            return alike(finding.bucket, self.bucket)
        return _starts(finding)

    def _without(
        self, replay: Replay, answers: Mapping[str, str]
    ) -> tuple[Outcome, str]:
        """The outcome of a replay that does not show the failure, and why."""
        for op, answer in answers.items():
            # A release that does not have the endpoint tests nothing of it.
            was_so = self.observed.get(op, "").startswith(answer)
            if answer in _NOT_SERVED and not was_so:
                return Outcome.INCONCLUSIVE, f"{op} got {answer}: nothing was tested"

        for finding in replay.findings:
            if finding.finding_class in LOUD:
                said = f"another failure: {finding.finding_class}, "
                return Outcome.DIFFERENT_FAILURE, said + finding.observation
        compared = any(f"/{kind}" in f"/{self.bucket}" for kind in COMPARED)
        if compared and replay.unseen:
            return Outcome.INCONCLUSIVE, replay.unseen[0]
        refused = [
            f"{op} got {answer}" for op, answer in answers.items() if answer[:1] == "4"
        ]
        said = f"{len(replay.plays)} server starts do not show it"
        return Outcome.NOT_REPRODUCED, "; ".join([said, *refused[:3]])


def _starts(finding: Finding) -> bool:
    """Whether it may be what a case is about of which nothing else is known."""
    return finding.confirmed and finding.finding_class is not FindingClass.START_FAILURE


def _answers_in(folder: Path) -> dict[str, str]:
    """What came of each request in the first attempt of the replay in ``folder``: its
    status, stuck, left, unsent or broken; {}: nothing can be read."""
    try:
        lines = (folder / VERDICTS_FILE).read_bytes().splitlines()
        read = (VERDICTS.lines.validate_json(line) for line in lines)
        whole = (
            line
            for line in read
            if isinstance(line, AttemptEnded) and line.how == "whole"
        )
        return dict(next(whole).seen.answers)
    except (OSError, ValueError, StopIteration):
        return {}


class BisectingCase(Bisecting):
    """A bisection of a case: its runs are replays."""

    def __init__(
        self,
        subject: CaseSubject,
        options: BisectCommand,
        field: Field,
        *,
        write: Callable[[Bisection, Path], object],
    ) -> None:
        self.subject = subject
        named = replace(options, scenario=subject.name)
        super().__init__(subject.scenario, named, field, write=write)
        self.making = self.prepare(self.folder / CASE_DIR)

    def prepare(self, folder: Path) -> Any:
        """How a point is run, from what is written into ``folder``."""
        return self.subject.making(folder)

    def command(self, **changed: Any) -> str:
        """By the case's place: the name is of this bisection only."""
        return super().command(**{"scenario": os.fspath(self.subject.place), **changed})

    def attempt(self, want: StartedRun) -> Attempt:
        """Of a case alone, the first run that shows a failure says which one is looked
        for."""
        attempt = super().attempt(want)
        if attempt.outcome is Outcome.REPRODUCED and not self.making.bucket:
            self.making.bucket = next(iter(attempt.conditions))
            self.making.observed = _answers_in(self.folder / attempt.incident)
        return attempt

    def incident(self, attempt: Attempt) -> Incident | None:
        """Of the first server that the replay started."""
        if not attempt.incident:
            return None
        made = sorted(
            (self.folder / attempt.incident / PLAYS_DIR).glob(f"*/{INCIDENT_FILE}")
        )
        return incident_in(made[0].parent) if made else None
