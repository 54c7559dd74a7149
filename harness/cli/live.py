"""``mmrepro diagnose`` and ``mmrepro watch``: what is wrong with a live server, now or
later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.cli.console import emit, head_of_page, say, table_console
from mmrepro.cli.options import command
from mmrepro.live.diagnose import DiagnoseCommand
from mmrepro.live.watch import WatchCommand

_WARM_UP_S = 4.0
"""A healthy server is known by then, and has no report."""
_MAX_CPU_S = 60
_MAX_MEMORY = 2 << 30
_MOST_SERVERS = 64

if TYPE_CHECKING:
    from mmrepro.failure.documents import Diagnosis
    from mmrepro.live.diagnose import Diagnosed
    from mmrepro.live.watch import ServerWatch, WatchDiagnosis


@command(DiagnoseCommand)
def diagnose(asked: DiagnoseCommand) -> None:
    """Find out what is wrong with a live server, and which known failure it is.

    It only observes: no signal, no debugging endpoint, nothing installed. Several
    servers, named or from --prometheus, are observed beside each other: which one is
    unlike the others, and which side of a prefill and decode pair stands.

    A folder in place of URL is what mmrepro watch kept of a fall; it is judged as the
    server itself would have been.

    With --only nothing is judged: one kind of evidence is collected and printed, of the
    server, or of what --pid or --log names.

    Example:  mmrepro diagnose http://127.0.0.1:8000
    """
    from mmrepro.live.diagnose import with_rules

    with with_rules(asked.rules):
        _diagnose(asked)


def _diagnose(asked: DiagnoseCommand) -> None:
    from mmrepro.live.diagnose import diagnose as observe
    from mmrepro.live.fleet import is_several, with_servers

    if asked.url and Path(asked.url).is_dir():
        _fallen(asked)
    if asked.through:
        _through(asked)
    if asked.only is not None:
        _collect_only(asked, asked.only)
    asked = with_servers(asked, "diagnose", partial(say, stderr=True))
    if is_several(asked):
        _several(asked)
    _bound()
    _warm_up()
    diagnosed = observe(asked) if asked.json else _shown(asked)
    if diagnosed.folder is not None:
        from mmrepro.reports import write_reports

        write_reports(diagnosed.folder)
    if asked.json:
        _emit_diagnosis(diagnosed.diagnosis)
    raise typer.Exit(diagnosed.diagnosis.exit_code)


def _fallen(asked: DiagnoseCommand) -> NoReturn:
    """Judge the evidence of a fall, which a watch has kept in a folder."""
    from mmrepro.live.diagnose import diagnose_fall
    from mmrepro.reports import compose_diagnosis
    from mmrepro.reports.terminal import print_page

    diagnosis = diagnose_fall(Path(asked.url), asked.scenarios, trust=asked.trust)
    if asked.json:
        _emit_diagnosis(diagnosis)
    else:
        page = compose_diagnosis(diagnosis)
        print_page(page, table_console(), "", full=asked.full, quiet=asked.quiet)
    raise typer.Exit(diagnosis.exit_code)


def _through(asked: DiagnoseCommand) -> NoReturn:
    """Say which hop of a gateway's chain is wrong."""
    from mmrepro.base.records import DocumentHead
    from mmrepro.failure.documents import HOP_WORDS
    from mmrepro.live.fleet import look_through, with_servers

    asked = with_servers(asked, "diagnose", partial(say, stderr=True))
    chain = look_through(asked)
    if asked.json:
        words = {0: "well", 1: "wrong-hop"}
        head = DocumentHead(
            status=words.get(chain.exit_code, "undecided"),
            exit_code=chain.exit_code,
            summary=chain.sentence,
            next=list(chain.advice),
        )
        emit(chain, head)
        raise typer.Exit(chain.exit_code)
    say(chain.sentence)
    hops = [] if asked.quiet else [chain.gateway, *chain.workers]
    for hop in hops:
        told = f" ({hop.told})" if hop.told else ""
        say(f"  {hop.url}  {HOP_WORDS[hop.state]}{told}", hang=4)
    for step in chain.advice:
        say(f"  next: {step}", hang=8)
    raise typer.Exit(chain.exit_code)


def _emit_diagnosis(diagnosis: Diagnosis) -> None:
    from mmrepro.reports import compose_diagnosis
    from mmrepro.reports.documents import HTML_FILE

    place = f"{diagnosis.incident_dir}/{HTML_FILE}" if diagnosis.incident_dir else ""
    page = compose_diagnosis(diagnosis)
    state = diagnosis.state.value
    emit(diagnosis, head_of_page(page, state, diagnosis.exit_code, place))


def _collect_only(asked: DiagnoseCommand, kind: str) -> NoReturn:
    """Collect one kind of evidence and print it as JSON; ``kind``: the probe's name."""
    import tempfile

    from mmrepro.base.records import DocumentHead
    from mmrepro.live.fleet import is_several
    from mmrepro.probes import Subject, probe_class, run_probe

    if is_several(asked) or len(asked.logs) > 1:
        raise UsageError(
            "--only collects from one server, or from one log.",
            hint=f"mmrepro diagnose URL --only {kind}",
        )
    if asked.headers:
        raise UsageError(
            "--only sends no --header.", hint="mmrepro diagnose URL --header …"
        )
    subject = Subject(
        url=asked.url,
        pid=asked.pid,
        log=asked.logs[0] if asked.logs else None,
        deadline_s=asked.deadline_s,
    )
    probe = probe_class(kind)
    if probe.needs and not getattr(subject, probe.needs):
        needed = {"url": "URL", "pid": "--pid PID", "log": "--log FILE"}[probe.needs]
        raise UsageError(
            f"The evidence {kind} needs {needed}.",
            hint=f"mmrepro diagnose {needed} --only {kind}",
        )
    folder = asked.out or Path(tempfile.mkdtemp(prefix="mmrepro-probe-"))
    if kind == "inference":
        model = asked.model or _first_model(asked.url, folder, asked.deadline_s)
        subject = replace(subject, model=model)
    result = run_probe(probe.on(subject), folder, asked.deadline_s)
    code = ExitCode.AS_EXPECTED if result.ok else ExitCode.INCONCLUSIVE
    summary = f"Evidence of the kind {kind}: {result.reason or 'collected'}"
    head = DocumentHead(status=result.status.value, exit_code=code, summary=summary)
    emit(result, head, "probe")
    raise typer.Exit(code)


def _first_model(url: str, folder: Path, deadline_s: float) -> str:
    """The first model that the server lists; "" where it lists none."""
    from mmrepro.probes import run_probe
    from mmrepro.probes.http import HttpProbe, first_model

    listing = run_probe(HttpProbe(url, ("/v1/models",)), folder, deadline_s).data
    answer = listing.answer("/v1/models") if listing is not None else None
    return first_model(answer.body) if answer is not None else ""


def _shown(asked: DiagnoseCommand) -> Diagnosed:
    from mmrepro.cli.progress import Progress
    from mmrepro.live.diagnose import diagnose as observe
    from mmrepro.reports import compose_diagnosis
    from mmrepro.reports.documents import HTML_FILE
    from mmrepro.reports.terminal import print_page
    from rich.console import Console

    console = Console(quiet=asked.quiet)
    with Progress(console, f"diagnosing {asked.url}", verbose=asked.verbose) as display:
        diagnosed = observe(asked, display)
    diagnosis = diagnosed.diagnosis
    place = f"{diagnosis.incident_dir}/{HTML_FILE}" if diagnosis.incident_dir else ""
    page = compose_diagnosis(diagnosis)
    print_page(page, table_console(), place, full=asked.full, quiet=asked.quiet)
    return diagnosed


def _several(asked: DiagnoseCommand) -> NoReturn:
    from mmrepro.live.fleet import diagnose_fleet
    from mmrepro.reports import compose_fleet, write_reports
    from mmrepro.reports.documents import HTML_FILE
    from mmrepro.reports.terminal import print_page
    from rich.console import Console

    quiet = asked.json or asked.quiet
    _bound(1 + len(asked.more) if not asked.prometheus else _MOST_SERVERS)
    told = Console(stderr=True, quiet=quiet)
    looked = diagnose_fleet(
        asked, None if quiet else lambda text: told.print(text, markup=False)
    )
    for folder in (
        [one.folder for one in looked.diagnosed] if looked.folder is not None else []
    ):
        if folder is not None and folder.exists():
            write_reports(folder)
    if looked.folder is not None:
        write_reports(looked.folder)
    place = f"{looked.folder}/{HTML_FILE}" if looked.folder is not None else ""
    page = compose_fleet(looked.fleet)
    if asked.json:
        state, code = looked.fleet.state.value, looked.fleet.exit_code
        emit(looked.fleet, head_of_page(page, state, code, place))
    else:
        print_page(page, table_console(), place, full=asked.full, quiet=asked.quiet)
    raise typer.Exit(looked.fleet.exit_code)


def _warm_up() -> None:
    """Load what writes the report while the server is waited for."""
    import threading

    def load() -> None:
        import mmrepro.reports.diagnosis
        import mmrepro.reports.picture  # noqa: F401

    timer = threading.Timer(_WARM_UP_S, load)
    timer.daemon = True  # nobody waits for it
    timer.start()


def _bound(servers: int = 1) -> None:
    """A hard limit on our own CPU and memory, inherited by py-spy: the server comes
    first.

    ``servers``: that are looked at; each may cost as much.

    The priority stays: an observer that waits for a processor takes its own lateness
    for the server's (a healthy one was called failing on a busy machine, at nice 10).
    """
    import contextlib
    import resource
    import signal

    from mmrepro.base.errors import RunTimeout

    def stop(*_: object) -> None:
        raise RunTimeout(
            f"The diagnosis used {_MAX_CPU_S * servers} s of CPU and was ended.",
            hint="mmrepro diagnose URL --log /dev/null, if its log is very large",
        )

    signal.signal(signal.SIGXCPU, stop)
    limits = (
        (resource.RLIMIT_CPU, _MAX_CPU_S * servers),
        (resource.RLIMIT_DATA, _MAX_MEMORY * min(servers, 4)),
    )
    for kind, limit in limits:
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, hard))


# ---------------------------------------------------------------- mmrepro watch


@command(WatchCommand)
def watch(asked: WatchCommand) -> None:
    """Check a live server with a real small inference, and diagnose it when that fails.

    Each line has the server's state: starting, ready, live (but not ready) or not-live.
    After a failed check the next one follows at once. With the default deadline all
    --failures checks fit into one interval: a hang whose process is observed is
    reported within two intervals. Liveness ends where a process was observed to have
    ended or to stand still, or after --stall; a refusal, an error or a server that is
    busy ends readiness at most.

    Several servers, named or from --prometheus, are watched beside each other; when one
    fails, all are diagnosed together, and without --http the watch ends.

    With --http it runs until it is stopped.

    Example:  mmrepro watch http://127.0.0.1:8000 --http 9400
    """
    from mmrepro.live.diagnose import with_rules

    with with_rules(asked.rules):
        _watch(asked)


def _watch(asked: WatchCommand) -> None:
    import threading

    from mmrepro.live.fleet import is_several, servers_asked_for, with_servers
    from mmrepro.live.watch import (
        Together,
        WatchServer,
        default_deadline,
        diagnosed_server,
        parse_address,
    )
    from mmrepro.reports import write_reports

    asked = with_servers(asked, "watch", partial(say, stderr=True))
    address = parse_address(asked.http) if asked.http else None
    if not is_several(asked):
        look = (
            partial(diagnosed_server, asked, write_reports) if asked.diagnose else None
        )
        running = {"": _watch_of(asked, look)}
    else:
        deadline = asked.deadline_s or default_deadline(
            asked.interval_s, asked.failures
        )
        together = Together(asked, write_reports, max(1.0, deadline))
        running = {}
        for url in servers_asked_for(asked)[0]:
            look = partial(together.diagnosed, url) if asked.diagnose else None
            name = url.partition("://")[2]
            running[name] = _watch_of(replace(asked, url=url), look, name)
    served = running if is_several(asked) else running[""]
    server = WatchServer(served, address) if address else None
    if server is not None:
        host, port = server.address
        text = f"serving /live, /ready and /metrics on {host}:{port}"
        _event(
            "",
            next(iter(running.values())).health.state,
            "http",
            text,
            as_json=asked.json,
        )
    live: dict[str, bool] = {}

    def run(name: str) -> None:
        live[name] = running[name].run()
        if asked.until_dead and not asked.once:
            for watcher in running.values():
                watcher.stop()

    try:
        threads = [
            threading.Thread(target=run, args=(n,), daemon=True) for n in [*running][1:]
        ]
        for thread in threads:
            thread.start()
        run(next(iter(running)))
        for thread in threads:
            thread.join()
    finally:
        for watcher in running.values():
            watcher.stop()
        # A pod that is being ended ends its server as well: what it is at is kept first.
        for watcher in running.values():
            watcher.capture_now("the watch was ended while the server did not answer")
        if server is not None:
            server.close()
    fine = len(live) == len(running) and all(live.values())
    raise typer.Exit(ExitCode.AS_EXPECTED if fine else ExitCode.NOT_AS_EXPECTED)


def _watch_of(
    asked: WatchCommand, look: Callable[[float], WatchDiagnosis] | None, name: str = ""
) -> ServerWatch:
    import time

    from mmrepro.live.watch import Health, watch_of

    health = Health(
        failures=asked.failures,
        successes=asked.successes,
        grace_s=0.0 if asked.once else asked.grace_s,
        prepare_s=asked.grace_s,
        stall_s=asked.stall_s,
        started=time.monotonic(),
    )

    def report(kind: str, text: str) -> None:
        if not (asked.quiet and kind == "check"):
            _event(name, health.state, kind, text, as_json=asked.json)

    return watch_of(asked, health, diagnose=look, listener=report, name=name)


def _event(server: str, state: str, kind: str, text: str, *, as_json: bool) -> None:
    import json
    from datetime import UTC, datetime

    from mmrepro.base.text import one_line

    if as_json:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {"time": moment, "state": state, "event": kind, "text": text}
        typer.echo(json.dumps(told | ({"server": server} if server else {})))
    else:
        text = f"{server}  {text}" if server else text
        now = f"{datetime.now():%H:%M:%S}"
        say(f"{now}  {state:8}  {kind:9}  {one_line(text, 500)}", hang=10)
