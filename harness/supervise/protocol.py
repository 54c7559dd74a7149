"""What the harness and the supervisor say to each other: one JSON object a line.

Standard library only: the supervisor must start in some ten milliseconds and never fail on an
import.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

MARKER_VARIABLE = "MMREPRO_RUN"
"""Environment variable whose value marks every process of one run."""


@dataclass(frozen=True)
class Entry:
    """What an engine's process runs, as ``python -m MODULE ARGUMENTS`` would.

    ``path`` holds folders that come first on the module path.
    """

    module: str
    arguments: list[str]
    path: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchOrder:
    """The first line that the supervisor reads.

    ``argv`` is the engine's command line; with ``entry`` nothing is executed, the supervisor's own
    process is forked and runs that, and ``argv`` is what the process is shown as in /proc.
    ``preface``: a file whose contents come first in the log, "" for none. ``log`` receives stdout
    and stderr of the engine; ``tmp`` is the run's own temporary folder, removed at the end;
    ``grace_s`` is the time between SIGTERM and SIGKILL.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    tmp: str
    marker: str
    grace_s: float = 10.0
    entry: Entry | None = None
    preface: str = ""

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> LaunchOrder:
        fields = json.loads(line)
        entry = fields.pop("entry", None)
        return cls(**fields, entry=Entry(**entry) if entry else None)


@dataclass
class StopReport:
    """What the end of an engine looked like.

    ``forced``: processes that needed SIGKILL; ``shm_removed``: /dev/shm entries that the engine
    left and the supervisor removed; ``left``: what is still there, which should be nothing.
    """

    exit_code: int | None = None
    forced: list[str] = field(default_factory=list)
    shm_removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0
