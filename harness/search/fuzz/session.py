"""The policy of fuzzing: episodes as long as there is time, each a line of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import JournalHead, device_of
from mmrepro.campaign import Campaign, CampaignState, Note, RunEnded
from mmrepro.engines import spec_for
from mmrepro.engines.environments import ensure
from mmrepro.engines.models import TINY
from mmrepro.engines.parsers import RegisteredParsers, registered_parsers
from mmrepro.failure.documents import prepared_folder
from mmrepro.failure.documents.replay import EPISODES_DIR, Fuzz
from mmrepro.runs import Deadlines
from mmrepro.runs.play import PlayOptions
from mmrepro.search.fuzz.episodes import Episodes
from mmrepro.search.fuzz.knowledge import (
    EPISODES,
    KeptLine,
    Knowledge,
    LineT,
)
from mmrepro.search.fuzz.limits import look_at_limits
from mmrepro.search.fuzz.options import FuzzCommand, FuzzProfile
from mmrepro.search.fuzz.server import FuzzSource, new_document, read_source
from mmrepro.search.replay.attempts import (
    CaseResult,
    CaseRun,
    CaseSearch,
    found as found_event,
)
from mmrepro.search.replay.folder import SessionFolder, campaign_folder, new_head
from mmrepro.search.replay.store import WriteReplay
from mmrepro.traffic.capture.messages import Contents
from mmrepro.traffic.case import Case, write_case

_DEFAULT_ROOT = "fuzz"
_SHARE = 0.8
"""An episode begins while there is time for so much of one."""
_GRACE = 0.05
"""Of the budget."""


class FuzzSession(CaseSearch[Fuzz]):
    """A session in progress. ``fuzz`` is valid, if partial, at every moment.

    On one place episodes come one after the other, each pursued before the next one
    begins; on several others go on while one is pursued.

    Attributes:
        known: what the session has learnt.
        deadlines: of the next attempt; what pursues a hang may measure them again.
    """

    kind = "session"
    options: FuzzCommand
    deadlines: Deadlines

    def __init__(
        self,
        options: FuzzCommand,
        *,
        write: Callable[[Fuzz, Path], object],
        write_replay: WriteReplay,
    ) -> None:
        """``write`` and ``write_replay`` write documents below a folder, each time that
        they have grown."""
        super().__init__(options, blind=options.blind)
        self.write_replay, self._write_documents = write_replay, write
        self.contents: Contents | Mapping[str, bytes]
        self._source = self._prepare()
        self.fuzz = self._blank(self._source)
        self.known = Knowledge(self.fuzz, self._episodes(), self.folder)
        self._began = 0.0
        self._opened: bool | None = None
        """None: not yet; False: it is being opened."""
        self._playing: set[int] = set()
        self.pursued: list[str] = []
        """Buckets that a line of work pursues now."""

    def standing(self) -> str:
        """How many episodes there were, what was found, and the time that is left."""
        fuzz = self.fuzz
        spent_s = self.elapsed_s if self._opened else fuzz.elapsed_s
        left = max(0.0, fuzz.budget_s - spent_s)
        findings = f"{len(fuzz.found)} findings"
        if len(fuzz.found) == 1:
            findings = "1 finding"
        return f"{len(fuzz.episodes)} episodes, {findings}, {left:.0f} s left"

    # ------------------------------------------------------------------ time

    @property
    def elapsed_s(self) -> float:
        """Of the budget, with what earlier calls spent."""
        return time.monotonic() - self._began

    @property
    def until(self) -> float:
        """Monotonic seconds at which the budget is over."""
        return self._began + self.options.budget_s

    @property
    def grace_s(self) -> float:
        """For confirming what was found last: of how often it shows nothing was known
        else."""
        return _GRACE * self.options.budget_s

    def _over(self) -> bool:
        """Whether there is no time for one more episode, or no sense in it."""
        if self.known.stuck:
            why = "the server does not start: nothing else can be tried"
            if why not in self.fuzz.limits:
                self.fuzz.limits.append(why)
            return True
        usual = max(self.known.lasted[-3:], default=0.0)
        return self.elapsed_s + _SHARE * usual >= self.options.budget_s

    # ------------------------------------------------------------ within a line of work

    def measured(self) -> Deadlines:
        """Deadlines, on a server of its own."""
        order = CaseRun("deadlines", "deadlines", self.servers)
        result = self.attempt(order)
        assert result.deadlines is not None
        answer_s = result.deadlines.answer_s
        self.campaign.emit(Note(text=f"Deadline of an answer: {answer_s:.1f} s"))
        return result.deadlines

    def tried(
        self,
        case: Case,
        place: Path,
        what: str,
        options: PlayOptions,
        *,
        learning: bool = False,
    ) -> CaseResult:
        """An attempt, with its files in ``place``; it also learns the server's
        limits."""
        inside = place.relative_to(self.folder).as_posix()
        order = CaseRun(
            inside,
            what,
            self.servers,
            inside,
            case=case,
            contents=self.folder,
            options=options,
            look=look_at_limits if learning else None,
        )
        return self.attempt(order)

    def episode_dir(self, number: int) -> Path:
        return self.folder / EPISODES_DIR / f"{number:04d}"

    def keep_case(self, case: Case, folder: Path) -> None:
        write_case(case, folder, self.contents)

    def take(self, line: LineT) -> LineT:
        """Write it down, and what follows from it. Raises UsageError: it is there
        already."""
        kept = self.files.journal.append(line)
        self._take(kept)
        self.files.write()
        return kept

    def report_ended(
        self,
        what: str,
        outcome: str,
        seconds: float,
        detail: str = "",
        *,
        bad: bool = False,
    ) -> None:
        self.campaign.emit(
            RunEnded(
                what=what,
                index=1,
                outcome=outcome,
                detail=detail,
                tone="bad" if bad else "soft",
                seconds=seconds,
            )
        )

    @contextmanager
    def pursuing(self, buckets: list[str]) -> Iterator[None]:
        """No other line of work pursues them meanwhile."""
        self.pursued += buckets
        try:
            yield
        finally:
            self.pursued = [b for b in self.pursued if b not in buckets]

    def _take(self, line: KeptLine) -> None:
        for found in self.known.take(line):
            self.campaign.emit(found_event(found.id, found.finding))

    # ------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Fuzz]) -> None:
        super().begin(campaign)
        head = new_head(JournalHead, self.options.decides)
        self.files = SessionFolder(
            EPISODES, self.folder, head, self.fuzz, self._write_documents
        )
        for line in self.files.journal.kept:
            if isinstance(line, KeptLine):
                self._take(line)

    def closing(self, state: CampaignState) -> None:
        if self._opened:
            self.fuzz.elapsed_s = round(self.elapsed_s, 2)

    # ------------------------------------------------------------------ the folder

    def _prepare(self) -> FuzzSource:
        """The session's folder, and what it begins with: kept there, pictures and
        all."""
        self.folder = campaign_folder(self.options, EPISODES, _DEFAULT_ROOT)
        source = read_source(self.options.source, self.options.server)
        if self.options.resume is None:
            self.folder = prepared_folder(self.folder)
        self.contents = source.keep(self.folder)
        return source

    def _episodes(self) -> Episodes:
        options, source = self.options, self._source
        tiny = TINY.get(options.server.model)
        sees = tiny is None or bool(tiny.image_tokens)
        return Episodes(
            options.seed,
            options.server,
            pictures=sees and options.profile is not FuzzProfile.TEXT,
            given=source.images,
            source=source.case,
            hazards=options.profile is FuzzProfile.HAZARDS,
            modern=options.profile is FuzzProfile.MODERN,
            parsers=self._parsers() if options.scripts else None,
        )

    def _parsers(self) -> RegisteredParsers:
        """Parsers of the session's release. Raises UsageError: it registers none."""
        server = self.options.server
        spec = spec_for(server.engine, server.release, device_of(self.options.device))
        registered = registered_parsers(server.engine, ensure(spec).site_packages)
        if not registered.tools and not registered.reasoning:
            raise UsageError(
                f"{server.engine} {server.release} registers no parser that is known.",
                hint="mmrepro fuzz vllm --scripts",
            )
        return registered.chosen(server.args)

    def _blank(self, source: FuzzSource) -> Fuzz:
        fuzz = new_document(self.options, self.kind, self.resume_command)
        fuzz.source = source.name
        return fuzz
