"""``mmrepro watch``: a deep health check for a live server."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import typer
from mmrepro.cli.options import command
from mmrepro.watch.options import WatchCommand


@command(WatchCommand)
def watch(asked: WatchCommand) -> None:
    """Check a live server with a real small inference, and diagnose it when that fails.

    After a failed check the next one follows at once. The default deadline lets all of
    --failures end within one interval, so that a hang whose process is seen is told within two
    of them. Liveness ends where a process was seen to have ended or to stand still, or after
    --stall; a refusal, an error or a server that is busy ends readiness at most.

    Exit status: 1 the server is not live; with --once, 0 it is. With --http it runs until it is
    stopped.

    Example:  mmrepro watch http://127.0.0.1:8000 --http 9400
    """
    from mmrepro.errors import ExitCode
    from mmrepro.watch.build import diagnosed, watch_of
    from mmrepro.watch.health import Health
    from mmrepro.watch.server import WatchServer, parse_address

    address = parse_address(asked.http) if asked.http else None
    running = watch_of(
        asked,
        Health(
            failures=asked.failures,
            successes=asked.successes,
            grace_s=0.0 if asked.once else asked.grace_s,
            stall_s=asked.stall_s,
            started=time.monotonic(),
        ),
        diagnose=partial(diagnosed, asked, _write_reports) if asked.diagnose else None,
        listener=_json_line if asked.json else _line,
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
