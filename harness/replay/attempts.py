"""Attempts at a case on fresh servers: what a place is told, what it sends back, who asks for them.

Whatever is decided is decided in the line of work that asked: judging may ask for more attempts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mmrepro.campaign.search import Search
from mmrepro.campaign.work import Began, Here, Order, Working
from mmrepro.case.files import read_contents, write_case
from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.engines import get_engine, spec_for
from mmrepro.environments.spec import EnvironmentSpec
from mmrepro.errors import InfrastructureError
from mmrepro.oracle.judge import judge
from mmrepro.oracle.judged import Judged
from mmrepro.play.options import PlayOptions
from mmrepro.play.players import PlayerLike, Servers
from mmrepro.records import Record
from mmrepro.replay.known import named
from mmrepro.replay.seen import Looked, Named, Seen
from mmrepro.run.judge import Deadlines

ATTEMPTS = 2
"""Of what told nothing of the engine."""
LookAt = Callable[[str, int, Path], Looked]
"""Looks at a server that still lives, by its address, first process and log. Can be pickled."""
DocumentT = TypeVar("DocumentT")


class CaseResult(Record):
    """What came of an attempt.

    Attributes:
        played: None: of deadlines.
        looked: what a look at the living server told.
        seconds: with all that was around it.
        error: infrastructure: why an attempt before it counts for nothing.
        place: folder of its files, below the campaign's.
    """

    id: str
    played: Played | None = None
    looked: Looked = Looked()
    deadlines: Deadlines | None = None
    seconds: float = 0.0
    error: str = ""
    place: str = ""
    machine: str = ""


@dataclass(frozen=True)
class CaseRun:
    """The order of one attempt at a case.

    Attributes:
        id: names the attempt within the campaign.
        what: the same for people.
        servers: of all attempts of the campaign.
        place: folder for its files, below the campaign's.
        case: None: deadlines are measured, on a server of its own.
        contents: folder of its images; they are taken along to another machine.
        look: at the server before it is stopped, if it still lives.
    """

    id: str
    what: str
    servers: Servers
    place: str = ""
    case: Case | None = None
    contents: Path | None = None
    options: PlayOptions = field(default_factory=PlayOptions)
    look: LookAt | None = None
    images: dict[str, bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        images = self.images
        if self.case is not None and images is None:
            images = read_contents(self.case, self.contents)
        return {**self.__dict__, "contents": None, "images": images}

    @property
    def began(self) -> Began:
        return Began(self.id, 1, what=self.what)

    @property
    def name(self) -> str:
        server = self.servers.wanted
        return f"{server.engine} {server.release}"

    @property
    def device(self) -> str:
        return self.environment.device

    @property
    def environment(self) -> EnvironmentSpec:
        return spec_for(self.servers.wanted.engine, self.servers.wanted.release)

    @property
    def campaign(self) -> str:
        return self.servers.wanted.engine

    def expect(self, here: Here) -> None:
        """Nothing: an environment is built when its first server is wanted."""

    def folder(self, began: Began) -> Path:
        return Path(self.place)

    def files(self, result: Record) -> str:
        assert isinstance(result, CaseResult)
        return result.place

    def not_carried(self, result: Record, why: str) -> Record:
        """Without its log nothing can be judged."""
        raise InfrastructureError(why)

    def carry_out(self, here: Here, root: Path) -> Working:
        yield self.began
        made = CaseResult(id=self.id, place=self.place, machine=here.machine)
        player, began = here.players.of(self.servers, root), time.monotonic()
        if self.case is None:
            made.deadlines = player.calibrate()
        else:
            contents = self.contents
            if self.images is not None:
                contents = write_case(self.case, root / "case", self.images).parent
            made.played = self._attempted(self.case, contents, player, root / self.place, made)
        made.seconds = round(time.monotonic() - began, 2)
        yield made

    def _attempted(
        self, case: Case, contents: Path | None, player: PlayerLike, folder: Path, made: CaseResult
    ) -> Played:
        """In ``folder``, which is emptied before; what told nothing of the engine is tried again.
        Raises as the player does."""

        def on_look(url: str, pid: int, log: Path) -> None:
            assert self.look is not None
            made.looked = self.look(url, pid, log)

        look = None if self.look is None else on_look
        for _ in range(ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)  # killed in the middle, or failed
            try:
                return player.play(case, contents, self.options, folder, on_look=look)
            except InfrastructureError as error:
                made.error, last = error.message, error
        raise last


class CaseSearch(Search[DocumentT, CaseResult]):
    """A search whose runs are attempts at cases.

    Attributes:
        servers: how all of them are started.
        blind: nothing is named.
    """

    folder: Path

    def __init__(self, servers: Servers, *, blind: bool = False) -> None:
        super().__init__()
        self.servers, self.blind = servers, blind
        self._orders: dict[str, CaseRun] = {}

    # ------------------------------------------------------------------ within a line of work

    @property
    def at_once(self) -> int:
        """Attempts that may be made beside each other."""
        return max(1, len(self.campaign.places.there()))

    def attempt(self, order: CaseRun) -> CaseResult:
        """What came of it."""
        self._orders[order.id] = order
        made = self.result(order.began)
        del self.done[made.id, 1], self._orders[made.id]
        return made

    def judged(self, case: Case, played: Played) -> Judged:
        """What is wrong with it by itself."""
        return judge(case, played, engine=get_engine(case.server.engine))

    def named(self, bucket: str, seen: Seen, case: Case, result: CaseResult) -> Seen:
        """``seen`` with what the failure of that bucket is called."""
        if self.blind:
            why = Named(bucket=bucket, why="nothing was looked for: --blind")
            return seen.model_copy(update={"named": why})
        assert result.played is not None
        folder = self.folder / result.place
        return named(bucket, seen, case, result.played, folder, result.looked)

    # ------------------------------------------------------------------ asked by the campaign

    def order_of(self, want: Began) -> Order:
        return self._orders[want.id]

    def keep(self, line: CaseResult) -> tuple[str, int]:
        """Whoever asked for it judges it, and writes that down."""
        return line.id, 1
