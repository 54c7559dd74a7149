"""What the command line asks of a replay."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmrepro.case.model import ServerWanted
from mmrepro.errors import UsageError
from mmrepro.run.options import StartMode

BUDGET, REPEAT, TIMEOUT_S = 40, 3, 600.0


@dataclass(frozen=True)
class ReplayOptions:
    """Arguments of ``mmrepro replay``.

    Attributes:
        file: the traffic: a HAR, Batch JSONL, an engine's log, or a case.
        server: the one that is started; of a case file the case's own, with what was given on the
            command line over it.
        anonymise: None: as the file's kind has it (a case is left as it is).
        host: of a HAR with several: the one whose requests are read.
        concurrency: of a file without times: so many at once.
        scale: lengths are fitted to ``server.max_model_len``.
        budget: most starts of servers.
        repeat: plays on fresh servers that confirm a finding.
        where: words that say on which places, how many at a time.
        resume: folder of a replay that is gone on with: the case is read there, not from ``file``.
        timeout_s: that a server may take to become ready.
    """

    file: Path
    server: ServerWanted
    time: Literal["real", "fast", "order"] = "fast"
    anonymise: bool | None = None
    scale: bool = False
    host: str = ""
    concurrency: int | None = None
    shrink: bool = True
    budget: int = BUDGET
    repeat: int = REPEAT
    where: tuple[str, ...] = ()
    seed: int = 0
    start_mode: StartMode = StartMode.AUTO
    timeout_s: float = TIMEOUT_S
    resume: Path | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise UsageError("--repeat is at least 1.", hint=f"--repeat {REPEAT}")
        if self.budget < 2 + self.repeat:
            raise UsageError(
                f"--budget {self.budget} is not enough: one start for the deadlines, one for the "
                f"traffic, and {self.repeat} that confirm what it shows.",
                hint=f"--budget {BUDGET}",
            )
        if self.resume is not None and self.out is not None:
            raise UsageError(
                "--resume names the folder to go on with: --out is for a new one.",
                hint=f"--resume {self.resume}",
            )

    def command(self, resume: Path | None = None) -> str:
        """The command that repeats the replay; with ``resume``, the one that goes on with it."""
        server = self.server
        parts = ["mmrepro", "replay", str(self.file), "--engine", server.engine]
        parts += ["--release", server.release] if server.release else []
        if server.model != ServerWanted.model_fields["model"].default:
            parts += ["--model", server.model]
        if server.max_model_len != ServerWanted.model_fields["max_model_len"].default:
            parts += ["--max-model-len", str(server.max_model_len)]
        parts += [f"--server-arg={arg}" for arg in server.args]
        parts += [f"--env={name}={value}" for name, value in server.env.items()]
        parts += ["--time", self.time] if self.time != "fast" else []
        if self.anonymise is not None:
            parts.append("--anonymise" if self.anonymise else "--no-anonymise")
        parts += ["--scale"] if self.scale else []
        parts += ["--host", self.host] if self.host else []
        parts += [] if self.concurrency is None else ["--concurrency", str(self.concurrency)]
        parts += [] if self.shrink else ["--no-shrink"]
        parts += ["--budget", str(self.budget)] if self.budget != BUDGET else []
        parts += ["--repeat", str(self.repeat)] if self.repeat != REPEAT else []
        parts += self.where
        parts += ["--seed", str(self.seed)] if self.seed else []
        if self.start_mode is not StartMode.AUTO:
            parts += ["--start-mode", self.start_mode]
        parts += ["--timeout", f"{self.timeout_s:g}"] if self.timeout_s != TIMEOUT_S else []
        if resume is not None:
            parts += ["--resume", str(resume)]
        return shlex.join(parts)
