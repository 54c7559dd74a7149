"""The policy of a replay: the recorded case in its folder, and one line of work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmrepro.campaign.campaign import Campaign, State
from mmrepro.capture.anonymise import anonymise
from mmrepro.capture.messages import Captured
from mmrepro.capture.read import read
from mmrepro.capture.scale import scale
from mmrepro.case.files import read_case, write_case
from mmrepro.case.model import Case
from mmrepro.errors import UnwritableOutput, UsageError
from mmrepro.incident.folder import new_folder, prepared
from mmrepro.incident.replay import Replay
from mmrepro.machine.files import is_there
from mmrepro.play.players import Servers
from mmrepro.replay.attempts import CaseSearch
from mmrepro.replay.options import ReplayCommand
from mmrepro.replay.rounds import Rounds
from mmrepro.replay.store import VERDICTS, ReplayFolder, WriteReplay

DEFAULT_ROOT = "replays"


class Replaying(CaseSearch[Replay]):
    """A replay in progress: found, confirmed, shrunk."""

    kind = "replay"

    def __init__(self, options: ReplayCommand, *, write: WriteReplay) -> None:
        """``write`` writes the replay's documents, each time that it has grown."""
        servers = Servers(options.server, options.start_mode, options.timeout_s)
        super().__init__(servers)
        self.options, self._write = options, write
        self._case = self._read()
        self._files: ReplayFolder | None = None
        self._rounds: Rounds | None = None

    @property
    def resume_command(self) -> str:
        """Goes on in the same folder; no attempt that has ended is made again."""
        return self.options.command_line(out=None, resume=self.folder)

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
        words = [f"{made} of at most {self.options.budget} starts"]
        words += [f"{f.id}: {f.finding_class}, {f.requests} requests" for f in findings]
        return ", ".join(words)

    # ------------------------------------------------------------------ asked by the campaign

    def begin(self, campaign: Campaign[Replay]) -> None:
        super().begin(campaign)
        self._files = ReplayFolder(self.folder, self._case, self.options, self._write)
        self._rounds = Rounds(self, self._files)

    def more(self) -> Callable[[], None] | None:
        """All of it is one line of work."""
        rounds, self._rounds = self._rounds, None
        return None if rounds is None else rounds.run

    def end(self, state: State, failure: str) -> Replay:
        assert self._files is not None
        self.break_off()
        with self._files as files:
            match state:
                case State.COMPLETE | State.OUT_OF_TIME:
                    files.end("complete")
                case State.INTERRUPTED:
                    files.end("interrupted", failure)
                case State.FAILED:
                    files.end("failed", failure)
            return files.replay

    # ------------------------------------------------------------------ the case

    def _read(self) -> Case:
        """The case, which is in the replay's folder afterwards, with its pictures."""
        options = self.options
        if options.resume is not None:
            if not VERDICTS.is_in(options.resume):
                raise UsageError(
                    f"{options.resume} holds no replay to go on with.",
                    hint=f"without --resume: {options.command_line()}",
                )
            self.folder = options.resume.resolve()
            return read_case(self.folder)[0].model_copy(update={"server": options.server})
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
        if self.options.out is not None and VERDICTS.is_in(self.options.out):
            raise UnwritableOutput(
                f"{self.options.out} already holds a replay.",
                hint=f"--resume {self.options.out} goes on with it; or choose another --out",
            )
        engine, release = case.server.engine, case.server.release
        self.folder = prepared(self.options.out or new_folder(DEFAULT_ROOT, engine, release))
        write_case(case, self.folder, captured.contents)
        return case
