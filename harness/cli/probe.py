"""``mmrepro probe``: one probe alone, on anything that runs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import typer
from mmrepro.base.options import LIMITS, OUTPUT, Command, option
from mmrepro.cli.options import command
from mmrepro.errors import ExitCode, UsageError
from mmrepro.probes import PROBES


@dataclass(frozen=True)
class ProbeCommand(Command):
    COMMAND: ClassVar[str] = "probe"
    kind: str = option(
        "", "Kind of evidence.", "KIND", argument=True, required=True, choices=tuple(PROBES)
    )
    url: str = option("", "Server, e.g. http://127.0.0.1:8000.", "URL")
    pid: int = option(0, "Process.", "PID")
    log: Path | None = option(None, "Log file.", "FILE")
    model: str = option("tiny", "Served model, for inference.", "NAME")
    deadline: float = option(15.0, "Time limit.", "SECONDS", LIMITS, least=0.1, most=3600)
    raw: Path | None = option(None, "Folder for raw output.", "DIR", OUTPUT)


@command(ProbeCommand)
def probe(asked: ProbeCommand) -> None:
    """Collect one kind of evidence and print it as JSON.

    Example:  mmrepro probe stacks --pid 4576
    """
    from mmrepro.probes import probe_class
    from mmrepro.probes.base import Subject, run_probe

    kind, deadline = asked.kind, asked.deadline
    subject = Subject(
        url=asked.url, pid=asked.pid, log=asked.log, model=asked.model, deadline_s=deadline
    )
    chosen = probe_class(kind)
    if chosen.needs and not getattr(subject, chosen.needs):
        raise UsageError(
            f"The probe {kind} needs --{chosen.needs}.", hint=f"mmrepro probe {kind} --help"
        )
    folder = asked.raw or Path(tempfile.mkdtemp(prefix="mmrepro-probe-"))
    result = run_probe(chosen.on(subject), folder, deadline)
    typer.echo(result.model_dump_json(indent=1))
    if not result.ok:
        raise typer.Exit(ExitCode.INCONCLUSIVE)
