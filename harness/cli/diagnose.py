"""``mmrepro diagnose``: what is wrong with this live server?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from mmrepro.cli.options import command
from mmrepro.diagnose.options import DiagnoseCommand

WARM_UP_S = 4.0
"""A healthy server is told by then, and has no report."""
MAX_CPU_S = 60
MAX_MEMORY = 2 << 30

if TYPE_CHECKING:
    from mmrepro.diagnose.session import Diagnosed
    from rich.console import Console


@command(DiagnoseCommand)
def diagnose(options: DiagnoseCommand) -> None:
    """Say what is wrong with a live server, and which known failure it is.

    It only looks: no signal, no debugging endpoint, nothing installed. Exit status: 0 healthy;
    1 a known failure was found or the server is unhealthy; 3 it could not be told.

    Example:  mmrepro diagnose http://127.0.0.1:8000
    """
    from mmrepro.diagnose.session import diagnose as look

    _bound()
    _warm_up()
    diagnosed = look(options) if options.json else _watched(options)
    if diagnosed.folder is not None:
        from mmrepro.reports import write_reports

        write_reports(diagnosed.folder)
    if options.json:
        typer.echo(diagnosed.diagnosis.model_dump_json(indent=1))
    raise typer.Exit(diagnosed.diagnosis.exit_code)


def _watched(options: DiagnoseCommand) -> Diagnosed:
    from mmrepro.cli.progress import Progress
    from mmrepro.diagnose.session import diagnose as look
    from mmrepro.reports.diagnosis import compose_diagnosis
    from mmrepro.reports.documents import HTML_FILE
    from mmrepro.reports.terminal import print_page
    from rich.console import Console

    console: Console = Console()
    with Progress(console, f"diagnosing {options.url}") as display:
        diagnosed = look(options, display)
    found = diagnosed.diagnosis
    place = f"{found.incident_dir}/{HTML_FILE}" if found.incident_dir else ""
    print_page(compose_diagnosis(None, found), console, place, full=options.full)
    return diagnosed


def _warm_up() -> None:
    """Load what writes the report while the server is waited for."""
    import threading

    def load() -> None:
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
