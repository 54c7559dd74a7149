"""What the command line asks of a session."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.base.units import exact_duration
from mmrepro.case.model import ServerWanted
from mmrepro.errors import UsageError
from mmrepro.fuzz.profiles import Profile
from mmrepro.run.options import StartMode

BUDGET_S, REPEAT, TIMEOUT_S = 1800.0, 3, 600.0
LEAST_S = 10.0


@dataclass(frozen=True)
class FuzzOptions:
    """Arguments of ``mmrepro fuzz``.

    Attributes:
        server: the one that is started, with the profile's options.
        asked: what the command line said of it: the words that repeat it.
        budget_s: seconds of playing, from the moment on that a first server has answered.
        blind: nothing is named, and no known failure is kept away.
        source: a recording, a case, or a folder of pictures, that is used and changed.
        repeat: attempts on fresh servers that confirm a finding.
        where: words that say on which places, how many at a time.
        resume: folder of a session that is gone on with.
    """

    server: ServerWanted
    asked: tuple[str, ...] = field(default=())
    profile: Profile = Profile.PRESSURE
    budget_s: float = BUDGET_S
    seed: int = 0
    blind: bool = False
    source: Path | None = None
    shrink: bool = True
    repeat: int = REPEAT
    start_mode: StartMode = StartMode.AUTO
    timeout_s: float = TIMEOUT_S
    where: tuple[str, ...] = ()
    resume: Path | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.budget_s < LEAST_S:
            raise UsageError(
                f"--budget {exact_duration(self.budget_s)} is not enough for one episode.",
                hint="--budget 30m",
            )
        if self.resume is not None and self.out is not None:
            raise UsageError(
                "--resume names the folder to go on with: --out is for a new one.",
                hint=f"--resume {self.resume}",
            )

    @property
    def decides(self) -> dict[str, str]:
        """What the way of a session depends on; it can only be gone on with as it began."""
        return {
            "server": self.server.model_dump_json(exclude_defaults=True),
            "--profile": self.profile,
            "--seed": str(self.seed),
            "--blind": "yes" if self.blind else "",
            "--from": str(self.source or ""),
            "--no-shrink": "" if self.shrink else "yes",
            "--repeat": str(self.repeat),
        }

    def command(self, resume: Path | None = None) -> str:
        """The command that begins such a session; with ``resume``, the one that goes on with it."""
        parts = ["mmrepro", "fuzz", self.server.engine, *self.asked]
        parts += ["--budget", exact_duration(self.budget_s)]
        parts += ["--profile", self.profile] if self.profile is not Profile.PRESSURE else []
        parts += ["--seed", str(self.seed)] if self.seed else []
        parts += ["--blind"] if self.blind else []
        parts += ["--from", str(self.source)] if self.source is not None else []
        parts += [] if self.shrink else ["--no-shrink"]
        parts += ["--repeat", str(self.repeat)] if self.repeat != REPEAT else []
        if self.start_mode is not StartMode.AUTO:
            parts += ["--start-mode", self.start_mode]
        parts += ["--timeout", f"{self.timeout_s:g}"] if self.timeout_s != TIMEOUT_S else []
        parts += self.where
        parts += ["--resume", str(resume)] if resume is not None else []
        return shlex.join(parts)
