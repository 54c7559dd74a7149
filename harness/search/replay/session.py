"""A replay: from recorded traffic to its document."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import is_there
from mmrepro.base.units import count
from mmrepro.campaign import Campaign, Note
from mmrepro.failure.documents import prepared_folder
from mmrepro.failure.documents.replay import Replay
from mmrepro.search.replay.attempts import CaseSearch
from mmrepro.search.replay.folder import campaign_folder
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.replay.rounds import Rounds
from mmrepro.search.replay.store import (
    VERDICTS,
    ReplayFolder,
    WriteReplay,
)
from mmrepro.traffic.capture import read_capture, scale_capture
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.case import (
    Case,
    asks_elsewhere,
    read_case,
    with_expectations,
    write_case,
)

_DEFAULT_ROOT = "replays"
_ELSEWHERE = "would make the server ask another machine or read a file, without a box"
_BOXED = (
    "Servers and clients run in a box (bubblewrap): no network, none of your "
    "files, no rights."
)
_UNBOXED = (
    "Servers and clients run WITHOUT a box, with this machine's network and your files."
)
_JOB_BYTES = 3 << 30
"""Memory that a second server must find free: vLLM's, with a tiny model, takes about
1.5 GiB."""


class Replaying(CaseSearch[Replay]):
    """A replay in progress: found, confirmed, shrunk."""

    kind = "replay"
    options: ReplayCommand
    files: ReplayFolder

    def __init__(self, options: ReplayCommand, *, write: WriteReplay) -> None:
        """``write`` writes the replay's documents, each time that it has grown."""
        super().__init__(options)
        self._write = write
        self.case = self._read()
        self._begun = False
        self.works = [self.run]

    @property
    def replay(self) -> Replay:
        """Valid, if partial, at every moment."""
        return self.files.document

    def standing(self) -> str:
        """How many starts there were, and what was found."""
        if not self._begun:
            return "nothing has begun"
        made, findings = len(self.replay.plays), self.replay.findings
        words = [f"{made} of at most {max(made, self.options.budget)} starts"]
        for finding in findings:
            requests = count(finding.requests, "request")
            words.append(f"{finding.id}: {finding.finding_class}, {requests}")
        return ", ".join(words)

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Replay]) -> None:
        super().begin(campaign)
        campaign.emit(Note(text=_BOXED if self.options.boxed else _UNBOXED))
        self.files = ReplayFolder(self.folder, self.case, self.options, self._write)
        self._begun = True

    def run(self) -> None:
        """All of it, which is one line of work."""
        Rounds(self, self.files).run()

    # ------------------------------------------------------------------ the case

    def _read(self) -> Case:
        """The case, which is in the replay's folder afterwards, with its pictures."""
        options, server = self.options, {"server": self.options.server}
        self.folder = campaign_folder(options, VERDICTS, _DEFAULT_ROOT)
        if options.resume is not None:
            return self._only_here(read_case(self.folder)[0].model_copy(update=server))
        captured = self._captured()
        place = Path(options.server.model)
        model = place if is_there(place) else None
        if options.scale:
            captured = scale_capture(
                captured, options.server.max_model_len, model=model
            )
        if options.anonymise:
            captured = anonymise(captured, options.seed, model)
        case = self._expecting(captured.case.model_copy(update=server))
        case = self._only_here(case)
        self.folder = prepared_folder(self.folder)
        write_case(case, self.folder, captured.contents)
        return case

    def _only_here(self, case: Case) -> Case:
        """Without a box: without requests that the server would ask others for. Raises
        UsageError: none is left."""
        if self.options.boxed:
            return case
        kept = [op.id for op in case.operations if not asks_elsewhere(op)]
        if len(kept) == len(case.operations):
            return case
        if not kept:
            raise UsageError(
                "Each request of the case would make the server ask another machine or "
                "read a file, and there is no box that keeps it from that.",
                hint="leave --no-box out (mmrepro help box)",
            )
        left = case.keeping(kept)
        gone = {_ELSEWHERE: len(case.operations) - len(left.operations)}
        origin = case.origin
        told = origin.model_copy(update={"left_out": {**origin.left_out, **gone}})
        return left.model_copy(update={"origin": told})

    def _expecting(self, case: Case) -> Case:
        """With what ``--expect`` says. Raises UsageError."""
        return with_expectations(case, self.options.expect)

    def _captured(self) -> Captured:
        """What was recorded. Raises UsageError."""
        options = self.options
        return read_capture(
            options.file,
            options.server,
            host=options.host,
            concurrency=options.concurrency,
            excerpt=options.excerpt,
            seed=options.seed,
        )


def jobs_of(asked: ReplayCommand) -> int | None:
    """Servers at a time while shrinking: two need cores and memory for two; a GPU has
    one at a time, unless more are asked for. None: as Ray has machines."""
    if asked.jobs or asked.ray:
        return asked.jobs
    # Two servers would share its memory.
    if asked.on_gpu:
        return 1
    cores = len(os.sched_getaffinity(0))
    if cores >= 4 and psutil.virtual_memory().available >= 2 * _JOB_BYTES:
        return 2
    return 1
