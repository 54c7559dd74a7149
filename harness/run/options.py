"""What the command line asks of a run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path


class StartMode(StrEnum):
    """How a server is started; see ``mmrepro.run.starter``."""

    AUTO = "auto"
    COLD = "cold"
    FORK = "fork"
    WARM = "warm"


@dataclass(frozen=True)
class RunOptions:
    """Arguments of ``mmrepro run``, checked by the runner.

    ``timeout_s`` bounds the run from the engine's start on; building an environment is not in it.
    ``scenario`` is the name or file as the user typed it.
    """

    release: str = ""
    commit: str = ""
    """In place of a release: its wheel comes from the index of commits."""
    commit_date: str = ""
    """RFC 3339: the commit's requirements are resolved as of then."""
    device: str = "auto"
    model: Path | None = None
    server_args: tuple[str, ...] = ()
    mitigations: tuple[str, ...] = ()
    flips: tuple[str, ...] = ()
    """Names of the factors that are not left as in the failing baseline."""
    timeout_s: float = 600.0
    out: Path | None = None
    keep_server: bool = False
    contract_probe: bool = False
    """Hold each step of the engine against the multimodal prefill contract."""
    scenario: str = ""
    variant: str = ""
    start_mode: StartMode = StartMode.AUTO
    options: tuple[str, ...] = ()
    """The scenario's own options: NAME or NAME=VALUE."""

    def numbered(self, number: int) -> RunOptions:
        """The same for run ``number`` of several: a folder of its own below ``out``."""
        return replace(self, out=self.out / f"run-{number}" if self.out else None)

    def command(self, scenario: str) -> str:
        """The one command that repeats the run."""
        parts = ["mmrepro", "run", self.scenario or scenario]
        if self.variant:
            parts += ["--variant", self.variant]
        if self.release:
            parts += ["--release", self.release]
        if self.commit:
            parts += ["--commit", self.commit]
        if self.commit_date:
            parts += ["--commit-date", self.commit_date]
        if self.device != "auto":
            parts += ["--device", self.device]
        if self.model:
            parts += ["--model", str(self.model)]
        if self.start_mode is not StartMode.AUTO:
            parts += ["--start-mode", self.start_mode]
        if self.contract_probe:
            parts.append("--contract-probe")
        parts += [f"--server-arg={arg}" for arg in self.server_args]
        for name in self.mitigations:
            parts += ["--mitigation", name]
        for name in self.flips:
            parts += ["--flip", name]
        for option in self.options:
            parts += ["--option", option]
        return shlex.join(parts)
