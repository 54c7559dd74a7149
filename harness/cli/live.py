"""``mmrepro diagnose`` and ``mmrepro watch``: what is wrong with a live server, now or later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from mmrepro.base.errors import ExitCode
from mmrepro.cli.console import emit
from mmrepro.cli.options import command
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.watch.options import WatchCommand

WARM_UP_S = 4.0
"""A healthy server is known by then, and has no report."""
MAX_CPU_S = 60
MAX_MEMORY = 2 << 30

if TYPE_CHECKING:
    from mmrepro.live.diagnose.session import Diagnosed


@command(DiagnoseCommand)
def diagnose(asked: DiagnoseCommand) -> None:
    """Find out what is wrong with a live server, and which known failure it is.

    It only observes: no signal, no debugging endpoint, nothing installed. Exit codes: 0 healthy;
    1 a known failure was found or the server is unhealthy; 3 inconclusive.

    Example:  mmrepro diagnose http://127.0.0.1:8000
    """
    from mmrepro.live.diagnose.session import diagnose as observe

    _bound()
    _warm_up()
    diagnosed = observe(asked) if asked.json else _shown(asked)
    if diagnosed.folder is not None:
        from mmrepro.reports import write_reports

        write_reports(diagnosed.folder)
    if asked.json:
        emit(diagnosed.diagnosis)
    raise typer.Exit(diagnosed.diagnosis.exit_code)


def _shown(asked: DiagnoseCommand) -> Diagnosed:
    from mmrepro.cli.progress import Progress
    from mmrepro.live.diagnose.session import diagnose as observe
    from mmrepro.reports.diagnosis import compose_diagnosis
    from mmrepro.reports.documents import HTML_FILE
    from mmrepro.reports.terminal import print_page
    from rich.console import Console

    console = Console(quiet=asked.quiet)
    with Progress(console, f"diagnosing {asked.url}", verbose=asked.verbose) as display:
        diagnosed = observe(asked, display)
    found = diagnosed.diagnosis
    place = f"{found.incident_dir}/{HTML_FILE}" if found.incident_dir else ""
    page = compose_diagnosis(None, found)
    print_page(page, Console(), place, full=asked.full, quiet=asked.quiet)
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

    The priority stays: an observer that waits for a processor takes its own lateness for the
    server's (a healthy one was called failing on a busy machine, at nice 10).
    """
    import contextlib
    import resource
    import signal

    from mmrepro.base.errors import RunTimeout

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


# ---------------------------------------------------------------- mmrepro watch


@command(WatchCommand)
def watch(asked: WatchCommand) -> None:
    """Check a live server with a real small inference, and diagnose it when that fails.

    Each line has the server's state: starting, ready, live (but not ready) or not-live. After a
    failed check the next one follows at once. The default deadline lets all of --failures end
    within one interval, so that a hang whose process is observed is reported within two of them.
    Liveness ends where a process was observed to have ended or to stand still, or after --stall; a
    refusal, an error or a server that is busy ends readiness at most.

    Exit codes: 1 the server is not live; with --once, 0 it is. With --http it runs until it is
    stopped.

    Example:  mmrepro watch http://127.0.0.1:8000 --http 9400
    """
    import time
    from functools import partial

    from mmrepro.live.watch.health import Health
    from mmrepro.live.watch.loop import diagnosed, watch_of
    from mmrepro.live.watch.server import WatchServer, parse_address
    from mmrepro.reports import write_reports

    address = parse_address(asked.http) if asked.http else None
    health = Health(
        failures=asked.failures,
        successes=asked.successes,
        grace_s=0.0 if asked.once else asked.grace_s,
        stall_s=asked.stall_s,
        started=time.monotonic(),
    )

    def report(kind: str, text: str) -> None:
        if not (asked.quiet and kind == "check"):
            _event(health.state, kind, text, as_json=asked.json)

    running = watch_of(
        asked,
        health,
        diagnose=partial(diagnosed, asked, write_reports) if asked.diagnose else None,
        listener=report,
    )
    server = WatchServer(running, address) if address is not None else None
    if server is not None:
        host, port = server.address
        report("http", f"serving /live, /ready and /metrics on {host}:{port}")
    try:
        live = running.run()
    finally:
        running.stop()
        if server is not None:
            server.close()
    raise typer.Exit(ExitCode.AS_EXPECTED if live else ExitCode.NOT_AS_EXPECTED)


def _event(state: str, kind: str, text: str, *, as_json: bool) -> None:
    import json
    from datetime import UTC, datetime

    from mmrepro.base.text.sanitize import one_line

    if as_json:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        typer.echo(json.dumps({"time": moment, "state": state, "event": kind, "text": text}))
    else:
        typer.echo(f"{datetime.now():%H:%M:%S}  {state:8}  {kind:9}  {one_line(text, 500)}")
