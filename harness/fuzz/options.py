"""Options of a fuzz session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from mmrepro.base.common_options import BUDGET, ENGINE_NAME, OUT, RESUME_DIR
from mmrepro.base.options import WHAT, Option
from mmrepro.errors import UsageError
from mmrepro.fuzz.profiles import Profile
from mmrepro.matrix.quantity import seconds, seconds_text
from mmrepro.replay.options import ServerCommand

BUDGET_S = 1800.0
LEAST_S = 10.0


@dataclass(frozen=True)
class FuzzCommand(ServerCommand):
    """Options of ``mmrepro fuzz``.

    Attributes:
        server: under the options of the profile.
        budget_s: time of replaying, from the moment on that a first server has answered.
        blind: nothing is named, and no known failure is kept away.
        source: a recording, a case, or a folder of images, that is used and changed.
    """

    COMMAND: ClassVar[str] = "fuzz"
    engine: Annotated[str, ENGINE_NAME] = ""
    profile: Annotated[
        Profile,
        Option(
            "--profile",
            "pressure: small caches and KV; plain: the engine's defaults; text: pressure without "
            "images; hazards: clients that do what the documentation warns of.",
            WHAT,
        ),
    ] = Profile.PRESSURE
    blind: Annotated[
        bool, Option("--blind", "Name nothing, and keep no known failure away.", WHAT)
    ] = False
    source: Annotated[
        Path | None,
        Option(
            "--from",
            "Use and change the requests of a recording or case, or the images of a folder.",
            WHAT,
            "FILE",
        ),
    ] = None
    budget_s: Annotated[
        float,
        BUDGET.but(
            help="Time for it, e.g. 10m or 2h; building an environment does not count.",
            default="30m",
            read=seconds,
            write=seconds_text,
        ),
    ] = BUDGET_S
    resume: Annotated[
        Path | None,
        RESUME_DIR.but(
            help="Continue the session in this folder, with its options; no episode is repeated."
        ),
    ] = None
    out: Annotated[Path | None, OUT.but(help="Folder of the session.", default="fuzz/…")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget_s < LEAST_S:
            raise UsageError(
                f"--budget {self.budget_s:g}s is not enough for one episode.", hint="--budget 30m"
            )

    def written(self) -> Self:
        return replace(self, engine=self.engine or self.server.engine)

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
