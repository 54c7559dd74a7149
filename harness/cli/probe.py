"""``mmrepro probe``: one probe alone, on anything that runs."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mmrepro.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from mmrepro.probes.base import Probe


class Kind(StrEnum):
    HTTP = "http"
    INFERENCE = "inference"
    METRICS = "metrics"
    PROCESSES = "processes"
    STACKS = "stacks"
    SYSCALLS = "syscalls"
    GPU = "gpu"
    LOGS = "logs"


def probe(
    kind: Annotated[Kind, typer.Argument(help="Kind of evidence.")],
    url: Annotated[str, typer.Option(help="Server, e.g. http://127.0.0.1:8000.")] = "",
    pid: Annotated[int, typer.Option(help="Process.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Log file.")] = None,
    model: Annotated[str, typer.Option(help="Served model, for inference.")] = "tiny",
    deadline: Annotated[float, typer.Option(help="Seconds.")] = 15.0,
    raw: Annotated[Path | None, typer.Option(help="Folder for raw output.")] = None,
) -> None:
    """Collect one kind of evidence and print it as JSON.

    Example:  mmrepro probe stacks --pid 4576
    """
    from mmrepro.probes.base import run_probe

    chosen = _make(kind, url=url, pid=pid, log=log, model=model, deadline=deadline)
    folder = raw or Path(tempfile.mkdtemp(prefix="mmrepro-probe-"))
    result = run_probe(chosen, folder, deadline)
    typer.echo(result.model_dump_json(indent=1))
    if not result.ok:
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _make(
    kind: Kind, *, url: str, pid: int, log: Path | None, model: str, deadline: float
) -> Probe[Any]:
    needs = {Kind.HTTP: "url", Kind.INFERENCE: "url", Kind.METRICS: "url", Kind.LOGS: "log"}
    needs |= {Kind.PROCESSES: "pid", Kind.STACKS: "pid", Kind.SYSCALLS: "pid"}
    given = {"url": url, "pid": pid, "log": log}
    if kind in needs and not given[needs[kind]]:
        raise UsageError(
            f"The probe {kind} needs --{needs[kind]}.", hint=f"mmrepro probe {kind} --help"
        )
    if kind is Kind.HTTP:
        from mmrepro.probes.http import HttpProbe

        return HttpProbe(url)
    if kind is Kind.INFERENCE:
        from mmrepro.probes.inference import InferenceProbe

        return InferenceProbe(url, model, deadline)
    if kind is Kind.METRICS:
        from mmrepro.probes.metrics import MetricsProbe

        return MetricsProbe(url.rstrip("/") + "/metrics")
    if kind is Kind.PROCESSES:
        from mmrepro.probes.processes import ProcessesProbe

        return ProcessesProbe(pid)
    if kind is Kind.STACKS:
        from mmrepro.probes.stacks import StacksProbe

        return StacksProbe([pid])
    if kind is Kind.SYSCALLS:
        from mmrepro.probes.syscalls import SyscallsProbe

        return SyscallsProbe(pid)
    if kind is Kind.GPU:
        from mmrepro.probes.gpu import GpuProbe

        return GpuProbe()
    from mmrepro.probes.logs import LogsProbe

    assert log is not None
    return LogsProbe(log)
