"""``mmrepro probe``: one probe alone, on anything that runs."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from mmrepro.errors import ExitCode, UsageError
from mmrepro.probes import PROBES

Kind = StrEnum("Kind", list(PROBES))  # type: ignore[misc]  # mypy wants them spelled out


def probe(
    kind: Annotated[Kind, typer.Argument(help="Kind of evidence.")],
    url: Annotated[str, typer.Option(help="Server, e.g. http://127.0.0.1:8000.")] = "",
    pid: Annotated[int, typer.Option(help="Process.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Log file.")] = None,
    model: Annotated[str, typer.Option(help="Served model, for inference.")] = "tiny",
    deadline: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds.")] = 15.0,
    raw: Annotated[Path | None, typer.Option(help="Folder for raw output.")] = None,
) -> None:
    """Collect one kind of evidence and print it as JSON.

    Example:  mmrepro probe stacks --pid 4576
    """
    from mmrepro.probes import probe_class
    from mmrepro.probes.base import Subject, run_probe

    subject = Subject(url=url, pid=pid, log=log, model=model, deadline_s=deadline)
    chosen = probe_class(kind.value)
    if chosen.needs and not getattr(subject, chosen.needs):
        raise UsageError(
            f"The probe {kind} needs --{chosen.needs}.", hint=f"mmrepro probe {kind} --help"
        )
    folder = raw or Path(tempfile.mkdtemp(prefix="mmrepro-probe-"))
    result = run_probe(chosen.on(subject), folder, deadline)
    typer.echo(result.model_dump_json(indent=1))
    if not result.ok:
        raise typer.Exit(ExitCode.INCONCLUSIVE)
