"""What the playing and the pursuing of one session share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrepro.capture.captured import Contents
from mmrepro.case.files import write_case
from mmrepro.case.model import Case
from mmrepro.case.played import Played
from mmrepro.engines import get_engine
from mmrepro.fuzz.knowledge import Knowledge
from mmrepro.fuzz.options import FuzzCommand
from mmrepro.fuzz.store import Store
from mmrepro.fuzz.watcher import FuzzWatcher
from mmrepro.incident.fuzz import EPISODES_DIR, Fuzz
from mmrepro.oracle.judged import Judged
from mmrepro.play.options import Look, PlayOptions
from mmrepro.replay.plays import PlayerLike, attempted
from mmrepro.replay.rounds import Judge
from mmrepro.run.deadline import Deadlines

GRACE = 0.05
"""Of the budget."""


@dataclass
class Course:
    """A session that goes on.

    Attributes:
        dir: its folder.
        contents: the pictures that it was given.
        deadlines: of the next play; what pursues a hang may measure them again.
        began: monotonic seconds at which its budget began, less what earlier calls spent.
        write: writes its documents, which have grown.
    """

    options: FuzzCommand
    dir: Path
    contents: Contents | Mapping[str, bytes]
    player: PlayerLike
    store: Store
    known: Knowledge
    deadlines: Deadlines
    began: float
    judge: Judge
    write: Callable[[], None]
    watcher: FuzzWatcher | None = None

    @property
    def fuzz(self) -> Fuzz:
        return self.known.fuzz

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def until(self) -> float:
        """Monotonic seconds at which the budget is over."""
        return self.began + self.options.budget_s

    @property
    def grace_s(self) -> float:
        """For confirming what was found last: of how often it shows nothing was known else."""
        return GRACE * self.options.budget_s

    def episode_dir(self, number: int) -> Path:
        return self.dir / EPISODES_DIR / f"{number:04d}"

    def keep(self, case: Case, folder: Path) -> None:
        write_case(case, folder, self.contents)

    def played(
        self, case: Case, options: PlayOptions, folder: Path, look: Look | None = None
    ) -> Played:
        return attempted(self.player, case, self.dir, options, folder, look)

    def judged(self, case: Case, played: Played) -> Judged:
        return self.judge(case, played, engine=get_engine(self.options.server.engine))
