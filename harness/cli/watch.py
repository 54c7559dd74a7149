"""``mmrepro watch``: a deep health check for a live server."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from mmrepro.cli.bounds import WEEK_S


def watch(
    url: Annotated[str, typer.Argument(help="The server, e.g. http://127.0.0.1:8000.")],
    interval: Annotated[
        float, typer.Option(min=0.5, max=86400, help="Seconds from one check to the next.")
    ] = 10.0,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.1, max=600, help="Seconds for one check.  [default: see below]"),
    ] = None,
    failures: Annotated[
        int, typer.Option(min=1, max=100, help="Failed checks in a row that end liveness.")
    ] = 2,
    successes: Annotated[
        int, typer.Option(min=1, max=100, help="Answered checks in a row that bring it back.")
    ] = 2,
    grace: Annotated[
        float,
        typer.Option(
            min=0, max=WEEK_S, help="Seconds that a server may take until its first answer."
        ),
    ] = 600.0,
    stall: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds of silence, no counter moving, that end liveness where its processes "
            "cannot be seen to stand still.",
        ),
    ] = 60.0,
    http: Annotated[
        str,
        typer.Option(
            help="Serve /live, /ready and /metrics at PORT of this machine, or at HOST:PORT, and "
            "go on when it is dead."
        ),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="End with the first verdict.")] = False,
    image: Annotated[
        bool, typer.Option("--image", help="Send a small picture as well: checks the vision path.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="Served model to ask for.  [default: the first listed]")
    ] = "",
    log: Annotated[
        list[Path] | None,
        typer.Option(help="A log file for diagnoses.  [default: where its output goes]"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="Sent with each request, e.g. 'Authorization: Bearer KEY'."),
    ] = None,
    no_diagnose: Annotated[
        bool, typer.Option("--no-diagnose", help="Only tell, do not look for the cause.")
    ] = False,
    max_incidents: Annotated[int, typer.Option(min=1, max=1000, help="Diagnoses kept in all.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the incidents.  [default: incidents/]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")] = False,
) -> None:
    """Check a live server with a real small inference, and diagnose it when that fails.

    After a failed check the next one follows at once. The default deadline lets all of
    --failures end within one interval, so that a hang whose process is seen is told within two
    of them. Liveness ends where a process was seen to have ended or to stand still, or after
    --stall; a refusal, an error or a server that is busy ends readiness at most.

    Exit status: 1 the server is not live; with --once, 0 it is. With --http it runs until it is
    stopped.

    Example:  mmrepro watch http://127.0.0.1:8000 --http 9400
    """
    from mmrepro.cli.headers import parse_headers
    from mmrepro.errors import ExitCode
    from mmrepro.watch.build import diagnosed, watch_of
    from mmrepro.watch.health import Health
    from mmrepro.watch.loop import WatchOptions
    from mmrepro.watch.server import WatchServer, parse_address

    address = parse_address(http) if http else None
    headers = parse_headers(header or ())
    running = watch_of(
        url,
        WatchOptions(interval, max_incidents, until_dead=address is None, once=once),
        Health(
            failures=failures,
            successes=successes,
            grace_s=0.0 if once else grace,
            stall_s=stall,
            started=time.monotonic(),
        ),
        deadline_s=deadline,
        image=image,
        model=model,
        headers=headers,
        diagnose=None
        if no_diagnose
        else partial(diagnosed, url, model, headers, out, _write_reports, tuple(log or ())),
        listener=_json_line if json else _line,
    )
    server = WatchServer(running, address) if address is not None else None
    if server is not None:
        host, port = server.address
        running.listener("http", f"serving /live, /ready and /metrics on {host}:{port}")
    try:
        live = running.run()
    finally:
        running.stop()
        if server is not None:
            server.close()
    raise typer.Exit(ExitCode.AS_EXPECTED if live else ExitCode.NOT_AS_EXPECTED)


def _write_reports(folder: Path) -> None:
    from mmrepro.reports import write_reports

    write_reports(folder)


def _line(kind: str, text: str) -> None:
    from datetime import datetime

    from mmrepro.text.sanitize import one_line

    typer.echo(f"{datetime.now():%H:%M:%S}  {kind:9}  {one_line(text, 500)}")


def _json_line(kind: str, text: str) -> None:
    import json
    from datetime import UTC, datetime

    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    typer.echo(json.dumps({"time": moment, "event": kind, "text": text}))
