"""``mmrepro diagnose``: what is wrong with this live server?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

WARM_UP_S = 4.0
"""A healthy server is told by then, and has no report."""
MAX_CPU_S = 60
MAX_MEMORY = 2 << 30

if TYPE_CHECKING:
    from mmrepro.diagnose.session import Diagnosed, DiagnoseOptions
    from rich.console import Console


def diagnose(
    url: Annotated[str, typer.Argument(help="The server, e.g. http://127.0.0.1:8000.")],
    pid: Annotated[
        int, typer.Option(min=0, help="A process of the server.  [default: who listens there]")
    ] = 0,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="A log file of it.  [default: where its output goes]"),
    ] = None,
    engine: Annotated[str, typer.Option(help="Name of the engine.")] = "auto",
    model: Annotated[
        str, typer.Option(help="Served model to ask for.  [default: the first listed]")
    ] = "",
    deadline: Annotated[
        str, typer.Option(help="Time that the one request may take, in seconds.")
    ] = "15s",
    samples: Annotated[int, typer.Option(min=3, max=100, help="Stack samples a process.")] = 5,
    no_request: Annotated[
        bool, typer.Option("--no-request", help="Send no inference, only look.")
    ] = False,
    native: Annotated[
        bool,
        typer.Option("--native", help="C frames as well: pauses the server for each sample."),
    ] = False,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="Try this one besides the known ones: a name, or a path that ends in .py.",
            metavar="NAME|FILE",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Sent with each request, e.g. 'Authorization: Bearer KEY'."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The incident's folder.  [default: incidents/…]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what is wrong with a live server, and which known failure it is.

    It only looks: no signal, no debugging endpoint, nothing installed. Exit status: 0 healthy;
    1 a known failure was found or the server is unhealthy; 3 it could not be told.

    Example:  mmrepro diagnose http://127.0.0.1:8000
    """
    from mmrepro.cli.headers import parse_headers
    from mmrepro.diagnose.session import DiagnoseOptions, diagnose as look

    options = DiagnoseOptions(
        url=url,
        pid=pid,
        logs=tuple(log or ()),
        engine=engine,
        model=model,
        deadline_s=_seconds(deadline),
        samples=samples,
        request=not no_request,
        native=native,
        scenarios=tuple(scenario or ()),
        out=out,
        headers=parse_headers(header or ()),
    )
    _bound()
    _warm_up()
    diagnosed = look(options) if json else _watched(options)
    if diagnosed.folder is not None:
        from mmrepro.reports import write_reports

        write_reports(diagnosed.folder)
    if json:
        typer.echo(diagnosed.diagnosis.model_dump_json(indent=1))
    raise typer.Exit(diagnosed.diagnosis.exit_code)


def _watched(options: DiagnoseOptions) -> Diagnosed:
    from mmrepro.cli.progress import Progress
    from mmrepro.diagnose.session import diagnose as look
    from mmrepro.reports.diagnosis import print_diagnosis
    from rich.console import Console

    console: Console = Console()
    with Progress(console, f"diagnosing {options.url}") as display:
        diagnosed = look(options, display)
    print_diagnosis(diagnosed.diagnosis, console)
    return diagnosed


def _seconds(text: str) -> float:
    """``15``, ``15s`` or ``1.5s``."""
    from mmrepro.errors import UsageError

    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise UsageError(f"--deadline {text!r} is not a time of 1 to 600 s.", hint="--deadline 15s")
    return seconds


def _warm_up() -> None:
    """Load what writes the report while the server is waited for."""
    import threading

    def load() -> None:
        import jinja2  # noqa: F401
        import mmrepro.reports.diagnosis
        import mmrepro.reports.picture  # noqa: F401

    timer = threading.Timer(WARM_UP_S, load)
    timer.daemon = True  # nobody waits for it
    timer.start()


def _bound() -> None:
    """A hard limit on our own CPU and memory, inherited by py-spy: the server comes first.

    The priority stays: an observer who waits for a processor takes his own lateness for the
    server's (a healthy one was called failing on a busy machine, at nice 10).
    """
    import contextlib
    import resource
    import signal

    from mmrepro.errors import RunTimeout

    def stop(*_: object) -> None:
        raise RunTimeout(
            f"The diagnosis used {MAX_CPU_S} s of CPU and was ended.",
            hint="mmrepro diagnose URL --log /dev/null, if its log is very large",
        )

    signal.signal(signal.SIGXCPU, stop)
    for kind, limit in ((resource.RLIMIT_CPU, MAX_CPU_S), (resource.RLIMIT_DATA, MAX_MEMORY)):
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, hard))
