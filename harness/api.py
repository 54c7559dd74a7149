"""The Python API: what the commands do, as functions that return documents.

They print nothing and never exit. Progress comes as events, to a function that is
given. Options have the names of the command's fields, and are typed in
the classes below: ``timeout_s=60``, ``mitigations=["fix"]``. Each error is a
``mmrepro.MmreproError`` with a sentence, a hint and an exit code.

    >>> incident = mmrepro.run("ghost-key-eviction", release="0.23.0")
    >>> assert incident.outcome == "reproduced"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
)

from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.base.options import Command, declared
from mmrepro.base.values import WrongValue, check_field

if TYPE_CHECKING:
    from mmrepro.campaign import CampaignEvent
    from mmrepro.failure.documents import Diagnosis, Incident, LogReading, Upgrade
    from mmrepro.failure.documents.replay import Replay
    from mmrepro.runs import Rejudged
    from mmrepro.traffic.evidence import Event

__all__ = ["diagnose", "judge", "load", "logs", "replay", "run", "upgrade"]
C = TypeVar("C", bound=Command)
EventT = TypeVar("EventT")
Handlers: TypeAlias = Callable[[EventT], None] | Iterable[Callable[[EventT], None]]
"""A function that gets each event, or several."""
_Device: TypeAlias = Literal["auto", "cpu", "cuda"]
_StartMode: TypeAlias = Literal["auto", "cold", "fork", "warm"]
_Texts: TypeAlias = Iterable[str]
_Place: TypeAlias = str | Path


class RunOptions(TypedDict, total=False):
    """Options of ``mmrepro run``."""

    variant: str
    device: _Device
    server_args: _Texts
    start_mode: _StartMode
    timeout_s: float
    release: str
    commit: str
    commit_date: str
    index: str
    model: _Place | None
    mitigations: _Texts
    flips: _Texts
    options: _Texts
    contract_probe: bool
    out: _Place | None


class DiagnoseOptions(TypedDict, total=False):
    """Options of ``mmrepro diagnose``."""

    model: str
    logs: Iterable[_Place]
    rules: _Place | None
    headers: Mapping[str, str]
    out: _Place | None
    more: _Texts
    prometheus: str
    pid: int
    engine: str
    deadline_s: float
    samples: int
    request: bool
    native: bool
    gpu_core: bool
    through: bool
    scenarios: _Texts
    trust: bool


class _ServerOptions(TypedDict, total=False):
    """Options of the functions that start servers for recorded traffic."""

    engine: str
    device: _Device
    model: str
    script: _Place | None
    max_model_len: int | None
    server_args: _Texts
    env: _Texts
    seed: int
    start_mode: _StartMode
    timeout_s: float
    ray: str
    resume: _Place | None
    out: _Place | None
    first: int | None
    window: tuple[float, float] | None


class ReplayOptions(_ServerOptions, total=False):
    """Options of ``mmrepro replay``."""

    release: str
    shrink: bool
    repeat: int
    time: Literal["real", "fast", "order"]
    anonymise: bool | None
    scale: bool
    host: str
    concurrency: int | None
    expect: _Texts
    budget: int
    jobs: int | None
    box: bool


class UpgradeOptions(_ServerOptions, total=False):
    """Options of ``mmrepro upgrade``."""

    server_words: str
    new_server_words: str
    new_env: _Texts
    budget_s: float
    worse: _Texts
    only: str
    confidence: float
    interleave: Literal["auto", "requests", "servers"]
    at_once: int


def run(
    scenario: str | Path,
    *,
    events: Handlers[Event] | None = None,
    **options: Unpack[RunOptions],
) -> Incident:
    """Drive a real engine into a known failure, and judge what was observed.

    Args:
        scenario: a name, ``NAME:VARIANT``, or a ``FILE.py``.
        events: a function that gets each event of the run as it happens, or several.
        options: of ``mmrepro run``: ``release``, ``device``, ``mitigations``, ``out``,
            ….

    Returns:
        The incident, whose ``verdict`` has each condition. Its folder also holds the
        reports.

    Raises:
        MmreproError: the engine could not be had or started, or an option is wrong.
    """
    from mmrepro.reports import INCIDENT_REPORT, load_incident as stored
    from mmrepro.reports.documents import write
    from mmrepro.runs import RunCommand, Starter, begin_run, execute_run, target
    from mmrepro.scenario.registry import load_scenario

    asked = _asked(RunCommand, {"scenario": str(scenario), **options})
    if asked.repeat > 1 or asked.keep_server:
        raise UsageError(
            "One call is one run, and it stops its server.",
            hint="call mmrepro.run again",
        )
    chosen = load_scenario(asked.scenario).with_variant(asked.variant)
    several = chosen.control_server is not None
    resolved = target(chosen, asked)
    with Starter(asked.start_mode, several=several) as starter:
        journal = begin_run(chosen, asked, resolved, _joined(events))
        execute_run(chosen, asked, resolved, journal, starter)
    incident = stored(journal.folder)
    write(INCIDENT_REPORT, incident, journal.folder)
    return incident


def diagnose(
    url: str,
    *,
    events: Handlers[Event] | None = None,
    **options: Unpack[DiagnoseOptions],
) -> Diagnosis:
    """Find out what is wrong with a live server. It is only observed.

    Args:
        url: of the server, e.g. ``http://127.0.0.1:8000``.
        events: a function that gets each event as it happens, or several.
        options: of ``mmrepro diagnose``: ``engine``, ``logs``, ``headers``, ``out``, ….

    Raises:
        UsageError: no address, an unknown engine, or a folder that cannot be used.
    """
    from mmrepro.live.diagnose import DiagnoseCommand, diagnose as observe, with_rules
    from mmrepro.reports import write_reports

    asked = _asked(DiagnoseCommand, {"url": url, **options})
    with with_rules(asked.rules):
        diagnosed = observe(asked, _joined(events))
    if diagnosed.folder is not None:
        write_reports(diagnosed.folder)
    return diagnosed.diagnosis


def logs(
    *files: str | Path,
    engine: str = "auto",
    alone: bool = False,
    deadline_s: float = 600.0,
) -> LogReading:
    """Read a server's logs and dumps: what ended it, which process first, and when.

    Args:
        files: logs, folders of them, dumps and metrics beside them.
        alone: leave out what was rotated away from them.
        deadline_s: seconds to read.

    Raises:
        UsageError: there is no such file.
    """
    from mmrepro.live.diagnose import read_logs

    return read_logs(
        [Path(one) for one in files], engine, alone=alone, deadline_s=deadline_s
    )


def judge(
    incident: Incident | str | Path,
    *,
    scenario: str | Path = "",
    edited: bool = False,
) -> Rejudged:
    """Judge recorded evidence again, without an engine.

    Args:
        incident: or its folder, its number, its id, ``last``, or a bundle.
        scenario: a name or a ``FILE.py``; "": the one that was run.
        edited: judge a folder or a bundle that was changed since it was recorded.

    Returns:
        The verdict ``then`` and ``now``, each condition and claim, and whether the
        verdict ``differs``.

    Raises:
        BadIncident: there is none.
        ChangedIncident: it differs from the record of its hashes.
        UsageError: it holds no verdict, or the scenario is unknown.
    """
    from mmrepro.failure.documents import check_hashes, place_here
    from mmrepro.runs import rejudge
    from mmrepro.scenario.registry import as_run

    read = incident
    if isinstance(incident, str | Path):
        place = place_here(Path(incident), kind="run")
        read = load(place)
        if not edited:
            check_hashes(place).refuse_changed(place)
    assert not isinstance(read, str | Path)
    name, ran = str(scenario), read.scenario
    # A file is run where the caller names it, and never where the incident does.
    return rejudge(read, as_run(name or ran.name, ran.variant, trust=bool(name)))


def load(place: str | Path) -> Incident:
    """The incident in a folder, a file or a bundle, or by its number, its id or
    ``last``. Raises BadIncident."""
    from mmrepro.failure.documents import place_here
    from mmrepro.reports import load as read

    return read(place_here(Path(place), kind="incident"))


def replay(
    file: str | Path,
    *,
    events: Handlers[CampaignEvent] | None = None,
    **options: Unpack[ReplayOptions],
) -> Replay:
    """Replay recorded traffic on fresh servers, and shrink it to what fails.

    Args:
        file: a HAR, a batch, a log, a case, or a finding's folder.
        events: a function that gets each event of the campaign, or several.
        options: of ``mmrepro replay``: ``engine``, ``release``, ``jobs``, ``out``, ….

    Raises:
        MmreproError: the recording cannot be read, or the engine could not be had.
    """
    from mmrepro.campaign import Campaign, TrialOptions
    from mmrepro.campaign.cluster import placed_runs
    from mmrepro.reports import write_replay
    from mmrepro.search.replay.known import server_wanted
    from mmrepro.search.replay.options import ReplayCommand
    from mmrepro.search.replay.session import Replaying, jobs_of

    asked = _asked(ReplayCommand, {"file": Path(file), **options})
    named = {"engine": asked.engine} if asked.engine else {}
    asked = replace(
        asked, server=server_wanted(asked.file, asked.resume, named | asked.asked)
    )
    with placed_runs(jobs_of(asked), asked.ray) as where:
        policy = Replaying(asked, write=write_replay)
        return Campaign(
            policy, where.places(lambda _: None, TrialOptions()), _handlers(events)
        ).execute()


def upgrade(
    old: str,
    new: str,
    traffic: str | Path,
    *,
    events: Handlers[CampaignEvent] | None = None,
    **options: Unpack[UpgradeOptions],
) -> Upgrade:
    """Compare two releases of an engine, or two settings of one, under recorded
    traffic.

    Args:
        old: the release that runs.
        new: the one that is to run; the same with ``new_server_words="--max-num-seqs
            64"``.
        traffic: what :func:`replay` reads, or a profile: ``chat``, ``code``, ``rag``,
            ``agents``.
        events: a function that gets each event of the campaign, or several.
        options: of ``mmrepro upgrade``: ``engine``, ``budget_s``, ``worse``, ``out``,
            ….

    Returns:
        The comparison, with its ``differences``, and in ``matter`` those that matter.

    Raises:
        MmreproError: the traffic cannot be read, or the engine could not be had.
    """
    from mmrepro.campaign import Campaign, TrialOptions
    from mmrepro.campaign.cluster import placed_runs
    from mmrepro.reports import UPGRADE_REPORT
    from mmrepro.reports.documents import keep
    from mmrepro.search.upgrade.options import UpgradeCommand
    from mmrepro.search.upgrade.session import Upgrading, with_servers

    given = {"old": old, "new": new, "traffic": Path(traffic), **options}
    asked = _asked(UpgradeCommand, given)
    asked = with_servers(asked, *asked.sides())
    with placed_runs(None if asked.ray else 1, asked.ray) as where:
        policy = Upgrading(asked, write=partial(keep, UPGRADE_REPORT))
        places = where.places(lambda _: None, TrialOptions(), device=asked.device)
        return Campaign(
            policy, places, _handlers(events), budget_s=asked.budget_s
        ).execute()


def _handlers(events: Handlers[EventT] | None) -> list[Callable[[EventT], None]]:
    if events is None:
        return []
    return [events] if callable(events) else [*events]


def _joined(events: Handlers[EventT] | None) -> Callable[[EventT], None]:
    """One function that hands each event on to all."""
    handlers = _handlers(events)

    def tell(event: EventT) -> None:
        for handler in handlers:
            handler(event)

    return tell


def _asked(made: type[C], given: dict[str, Any]) -> C:
    """The options of a command. Raises UsageError: one is unknown, or out of its
    bounds."""
    trees = ("tree", "new_tree", "kernels")
    known = {one.field: one for one in declared(made) if one.field not in trees}
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                f"{made.COMMAND} has no option {name}.{did_you_mean(name, [*known])}",
                hint="help(mmrepro.api) lists them",
            )
        try:
            given[name] = check_field(known[name], value)
        except WrongValue as error:
            raise UsageError(error.sentence(name)) from None
    return made(**given)
