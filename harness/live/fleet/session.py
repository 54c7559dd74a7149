"""Several servers, diagnosed beside each other and read together."""

from __future__ import annotations

import queue
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from mmrepro import __version__
from mmrepro.base.errors import MmreproError, UnwritableOutput, UsageError
from mmrepro.base.machine import is_there
from mmrepro.base.records import Moment
from mmrepro.base.text import Redactor
from mmrepro.failure.documents import (
    DEFAULT_ROOT,
    FLEET_FILE,
    Fleet,
    FleetPart,
    Scraped,
    document_json,
    new_folder,
    prepared_folder,
    remove_made,
    replace_file,
)
from mmrepro.live.diagnose.classes import UNASKED_S
from mmrepro.live.diagnose.discover import local_servers, parse_url
from mmrepro.live.diagnose.options import DiagnoseCommand, LiveCommand
from mmrepro.live.diagnose.session import Diagnosed, diagnose, secrets
from mmrepro.live.fleet import prometheus
from mmrepro.live.fleet.look import Look, may_hang, member, on_their_way
from mmrepro.live.fleet.reading import read, summary
from mmrepro.probes import MetricsProbe, run_probe
from mmrepro.probes.http import api_root

_LATER_S = UNASKED_S + 0.5
_METRICS_S = 2.0
_AT_ONCE = 8
"""Servers that are looked at beside each other: each look has threads and py-spy of its
own."""
Listener = Callable[[str], None]
"""Gets a sentence for each server that was looked at."""


@dataclass(frozen=True)
class Looked:
    """``folder``: None where nothing was kept: all are well, and no ``out``."""

    fleet: Fleet
    folder: Path | None
    diagnosed: tuple[Diagnosed, ...]


def servers(asked: LiveCommand) -> tuple[dict[str, Scraped | None], list[str]]:
    """Addresses, each once, in their order, with what Prometheus holds of each; what of
    them could not be seen.

    Raises:
        UsageError: an address is none, or a Prometheus server knows no inference
            server.
    """
    addresses: dict[str, Scraped | None] = {}
    for url in (asked.url, *asked.more):
        if url:
            parse_url(url)
            addresses.setdefault(api_root(url), None)
    if not asked.prometheus:
        return addresses, []

    watched = prometheus.known(asked.prometheus)
    for url, scraped in watched.found.items():
        addresses[api_root(url)] = scraped
    return addresses, watched.unseen


def look(asked: DiagnoseCommand, listener: Listener | None = None) -> Looked:
    """Diagnose each, and read what they say together.

    Raises:
        UsageError: as :func:`servers`; an option that only one server can have.
    """
    if asked.pid or asked.logs:
        raise UsageError(
            "--pid and --log belong to one server.",
            hint=f"mmrepro diagnose {asked.url} --log FILE",
        )
    began, taken = time.monotonic(), Moment.now()
    addresses, unseen = servers(asked)
    if asked.out is not None and is_there(asked.out / FLEET_FILE):
        raise UnwritableOutput(
            f"{asked.out} already holds such a look.",
            hint="choose another --out, or remove it",
        )
    folder = prepared_folder(
        asked.out or new_folder(DEFAULT_ROOT, "servers", str(len(addresses)))
    )
    ours: list[Path] = []
    for index, url in enumerate(addresses):
        single = folder / _below(index, url)
        if not is_there(single):
            ours.append(single)
    try:
        results = _each(asked, folder, addresses, listener)
    # Also where it is interrupted: half of a look is no report.
    except BaseException:
        _drop(folder, ours)
        raise
    looks = [look for look, _ in results]
    _once_more(asked, looks)
    members, findings = read(looks)
    state, sentence = summary(members, findings)
    fleet = Fleet(
        mmrepro_version=__version__,
        taken=taken,
        prometheus=prometheus.bare(asked.prometheus),
        state=state,
        sentence=sentence,
        findings=findings,
        members=members,
        unseen=unseen,
        seconds=round(time.monotonic() - began, 2),
    )
    diagnosed = tuple(each for _, each in results if each is not None)
    if asked.out is None and fleet.exit_code == 0:
        _drop(folder, ours)
        for server in members:
            if server.diagnosis is not None:
                server.diagnosis.incident_dir = ""
        return Looked(fleet, None, diagnosed)
    redactor = Redactor()
    for secret in secrets(asked.headers):
        redactor.add(secret, "header")
    fleet = redactor.redact_model(fleet)
    fleet.incident_dir = str(folder)
    replace_file(folder / FLEET_FILE, document_json(fleet))
    return Looked(fleet, folder, diagnosed)


def _each(
    asked: DiagnoseCommand,
    folder: Path,
    addresses: dict[str, Scraped | None],
    listener: Listener | None,
) -> list[tuple[Look, Diagnosed | None]]:
    """Diagnose each in a daemon thread: who interrupts a look waits for none of them."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    urls = list(addresses)
    results: dict[int, tuple[Look, Diagnosed | None]] = {}
    for index in range(len(urls)):
        todo.put(index)

    def work() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            url = urls[index]
            out = folder / _below(index, url)
            single = replace(asked, url=url, more=(), prometheus="", out=out)
            diagnosed, error = _diagnosed(single)
            results[index] = _look_of(url, diagnosed, error, addresses[url]), diagnosed
            if listener is not None:
                sentence = error
                if diagnosed:
                    sentence = diagnosed.diagnosis.assessment.sentence
                listener(f"{url}: {sentence}")

    threads = [threading.Thread(target=work, daemon=True) for _ in urls[:_AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in range(len(urls))]


def _look_of(
    url: str, diagnosed: Diagnosed | None, error: str, scraped: Scraped | None
) -> Look:
    if diagnosed is None:
        return Look(url, error=error, scraped=scraped)
    evidence = diagnosed.incident.evidence
    return Look(url, diagnosed.diagnosis, evidence, error, scraped)


def _diagnosed(single: DiagnoseCommand) -> tuple[Diagnosed | None, str]:
    """One of several that cannot be diagnosed does not end the look at the others."""
    try:
        return diagnose(single), ""
    except MmreproError as error:
        return None, error.message
    except Exception as error:
        return None, f"mmrepro failed ({type(error).__name__})"


def _once_more(asked: DiagnoseCommand, looks: Sequence[Look]) -> None:
    """Read the metrics of a pair again where KV caches were on their way all the time:
    a server that answers was looked at for two seconds only."""
    halves = [look for look in looks if member(look).part is not FleetPart.REPLICA]
    moments: list[float] = []
    for look in halves:
        if may_hang(look):
            moments += [moment for moment, _ in on_their_way(look)]
    if not moments:
        return

    # The second reading has to be far enough from the last for a standstill to show.
    time.sleep(max(0.0, max(moments) + _LATER_S - time.monotonic()))
    with tempfile.TemporaryDirectory(prefix="mmrepro-run-") as scratch:
        for look in halves:
            if look.evidence is None:
                continue
            probe = MetricsProbe(look.url, _METRICS_S, headers=asked.headers)
            result = run_probe(probe, Path(scratch), _METRICS_S + 1, phase="check")
            result.raw = []
            look.evidence.probes.append(result)  # type: ignore[arg-type] # as AnyProbeResult


def _drop(folder: Path, ours: Sequence[Path]) -> None:
    """Remove what this look has made, and nothing that somebody else put there.

    Args:
        ours: folders of single servers that were not there before it.
    """
    for single in ours:
        shutil.rmtree(single, ignore_errors=True)
    remove_made(folder)


def _below(index: int, url: str) -> str:
    """Name of the folder of one server's diagnosis."""
    host = url.partition("://")[2]
    return f"{index + 1}-{re.sub(r'[^A-Za-z0-9.-]+', '-', host)}"


def is_several(asked: LiveCommand) -> bool:
    """Whether more than one server may be meant."""
    return bool(asked.more or asked.prometheus)


L = TypeVar("L", bound=LiveCommand)


def with_servers(asked: L, command: str, say: Callable[[str], None]) -> L:
    """The options with the servers of this machine, where none is named.

    Args:
        say: prints a line: which servers were found.

    Raises:
        UsageError: none is named, and none runs here.
    """
    if asked.url or asked.prometheus:
        return asked
    found = local_servers()
    if not found:
        raise UsageError(
            "No inference server that this user can see is running on this machine.",
            hint=f"mmrepro {command} http://HOST:8000, or --prometheus "
            "http://127.0.0.1:9090",
        )
    for server in found:
        say(f"Found {server.engine} at {server.url} (pid {server.pid})")
    first, *more = found
    return replace(asked, url=first.url, more=tuple(server.url for server in more))
