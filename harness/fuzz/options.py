"""Options of a fuzz session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from mmrepro.base import common_options as common
from mmrepro.base.options import option
from mmrepro.base.units import exact_duration
from mmrepro.errors import UsageError
from mmrepro.fuzz.profiles import Profile
from mmrepro.replay.options import ServerCommand

BUDGET_S = 1800.0
LEAST_S = 10.0


@dataclass(frozen=True)
class FuzzCommand(ServerCommand):
    """Options of ``mmrepro fuzz``; its ``server`` has the options of the profile."""

    COMMAND: ClassVar[str] = "fuzz"
    engine: str = common.ENGINE_NAME("", argument=True, required=True)
    release: str = common.RELEASE("", shown="the known scenarios' last")
    profile: Profile = option(
        Profile.PRESSURE,
        "pressure: small caches and KV; plain: the engine's defaults; text: pressure without "
        "images; hazards: clients that do what the documentation warns of.",
    )
    blind: bool = option(False, "Name nothing, and keep no known failure away.")
    source: Path | None = option(
        None,
        "Use and change the requests of a recording or case, or the images of a folder.",
        "FILE",
        name="--from",
        names="record",
    )
    budget_s: float = common.BUDGET(
        BUDGET_S,
        help="Time for it, e.g. 10m or 2h; building an environment does not count.",
        shown="30m",
    )
    jobs: int | None = common.JOBS(None, help="Number of servers at a time.", shown="1")
    out: Path | None = common.OUT(None, shown="fuzz/…")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget_s < LEAST_S:
            raise UsageError(
                f"--budget {exact_duration(self.budget_s)} is not enough for one episode.",
                hint="--budget 30m",
            )

    def written(self) -> Self:
        """A cluster's address is left out: others read documents."""
        return replace(self, engine=self.engine or self.server.engine, ray=self.ray and "auto")

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
