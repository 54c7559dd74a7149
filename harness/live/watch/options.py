"""Options of ``mmrepro watch``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common
from mmrepro.base.options import EVIDENCE, LIMITS, OUTPUT, option
from mmrepro.live.diagnose.options import LiveCommand


@dataclass(frozen=True)
class WatchCommand(LiveCommand):
    """Options of ``mmrepro watch``; ``deadline_s``: None: by
    ``loop.default_deadline``."""

    COMMAND: ClassVar[str] = "watch"
    interval_s: float = option(
        10.0,
        "Time from one check to the next.",
        "SECONDS",
        LIMITS,
        name="--interval",
        least=0.5,
        most=86400,
    )
    deadline_s: float | None = option(
        None,
        "Time limit of one check.",
        "SECONDS",
        LIMITS,
        name="--deadline",
        shown="see above",
        least=0.1,
        most=600,
    )
    failures: int = option(
        2, "Failed checks in a row that end liveness.", "N", LIMITS, least=1, most=100
    )
    successes: int = option(
        2,
        "Answered checks in a row that bring it back.",
        "N",
        LIMITS,
        least=1,
        most=100,
    )
    grace_s: float = option(
        600.0,
        "Time that a server may take until its first answer.",
        "SECONDS",
        LIMITS,
        name="--grace",
        least=0,
        most=common.WEEK_S,
    )
    stall_s: float = option(
        60.0,
        "Silence, no counter moving, that ends liveness where its processes cannot be "
        "observed to stand still.",
        "SECONDS",
        LIMITS,
        name="--stall",
        least=1,
    )
    http: str = option(
        "",
        "Serve /live, /ready and /metrics at PORT of this machine, or at HOST:PORT, "
        "and continue when the server is dead.",
        "[HOST:]PORT",
        OUTPUT,
    )
    once: bool = option(False, "End with the first verdict.", group=LIMITS)
    image: bool = option(
        False, "Send a small image as well: checks the vision path.", group=EVIDENCE
    )
    canary: bool = option(
        False,
        "Once a minute tell two sessions a code each, and alarm where one says the "
        "other's.",
        group=EVIDENCE,
    )
    diagnose: bool = option(
        True,
        "Diagnose the server when it fails; --no-diagnose only reports.",
        group=EVIDENCE,
        name="--diagnose/--no-diagnose",
    )
    max_incidents: int = option(
        5,
        "Maximum number of diagnoses, and of falls, that are kept.",
        "N",
        OUTPUT,
        least=1,
        most=1000,
    )
    capture: str = option(
        "",
        "Where the evidence of a fall goes, taken when a check first fails: a folder, "
        "or an HTTP address that gets it as a packed tar.",
        "DIR|URL",
        OUTPUT,
        shown="incidents/",
    )
    capture_s: float = option(
        20.0,
        "Time for that; keep it below the pod's terminationGracePeriodSeconds.",
        "SECONDS",
        LIMITS,
        name="--capture-time",
        least=4,
        most=600,
    )
    keep_days: float = option(
        7.0,
        "Age at which the evidence of a fall is removed.",
        "DAYS",
        OUTPUT,
        least=0,
        most=3650,
    )
    state: Path | None = option(
        None,
        "Keep the state in this folder as well, with probe-live and probe-ready, two "
        "shell scripts for an exec probe of another container.",
        "DIR",
        OUTPUT,
    )
    out: Path | None = common.OUT(
        None, help="Folder of the incidents.", shown="incidents/"
    )
    json: bool = common.JSON(False, help="Print one JSON object a line on stdout.")
    quiet: bool = common.QUIET(False, help="Print what changes, not each check.")

    @property
    def captures(self) -> bool:
        """Whether the evidence of a fall is taken: a single verdict takes none unless
        it is asked to."""
        return bool(self.capture) or (self.diagnose and not self.once)

    @property
    def until_dead(self) -> bool:
        return not self.http
