"""``mmrepro replay`` and ``mmrepro fuzz``: recorded or generated requests on fresh
engines, what is wrong, and the few requests that show it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from mmrepro.cli.console import say
from mmrepro.cli.options import command
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.search.replay.options import ReplayCommand
from mmrepro.search.repro.options import ReproCommand

if TYPE_CHECKING:
    from mmrepro.reports.documents import ReportKind
    from mmrepro.traffic.case import ServerWanted


@command(ReplayCommand)
def replay(asked: ReplayCommand) -> None:
    """Replay recorded traffic on a fresh engine, notice what is wrong, and shrink it.

    It talks to servers that it started itself, never to the recording's.

    Example:  mmrepro replay night.har --engine vllm --release 0.23.0
    """
    from mmrepro.cli.sources import released
    from mmrepro.reports import REPLAY_REPORT, origin_sentences, write_replay
    from mmrepro.search.replay.known import server_wanted
    from mmrepro.search.replay.session import Replaying, jobs_of

    asked = box_there(released(asked, asked.engine), "--no-box")
    named = {"engine": asked.engine} if asked.engine else {}
    asked = replace(
        asked, server=server_wanted(asked.file, asked.resume, named | asked.asked)
    )

    def begin() -> Replaying:
        made = Replaying(asked, write=write_replay)
        for problem in (
            []
            if asked.quiet or asked.resume
            else origin_sentences(made.case.origin, changed=True)
        ):
            say(problem, stderr=True)
        return made

    conduct_search(asked, jobs_of(asked), begin, REPLAY_REPORT)


@command(FuzzCommand)
def fuzz(asked: FuzzCommand) -> None:
    """Look for failures that nobody has reported: generate requests, and judge the
    answers.

    It talks to servers that it started itself, and claims nothing absent.

    Example:  mmrepro fuzz vllm --release 0.23.0 --budget 10m
    """
    from mmrepro.cli.sources import released
    from mmrepro.reports import FUZZ_REPORT, write_replay
    from mmrepro.reports.documents import keep
    from mmrepro.search.fuzz.fuzzing import session_of
    from mmrepro.search.fuzz.server import settled

    asked = settled(box_there(released(asked, asked.engine), "--no-box"))
    if asked.against:
        asked = replace(asked, other=_other_side(asked))
    servers: list[tuple[str, str]] = []
    if asked.other is not None:
        for side in (asked.server, asked.other):
            servers.append((side.engine, side.release))
    conduct_search(
        asked,
        asked.jobs,
        lambda: session_of(
            asked, write=partial(keep, FUZZ_REPORT), write_replay=write_replay
        ),
        FUZZ_REPORT,
        servers,
    )


def _other_side(asked: FuzzCommand) -> ServerWanted:
    """The second server, by the words of --against.

    Raises:
        UsageError: they are no options of the command.
    """
    from mmrepro.cli.app import typed_command
    from mmrepro.cli.options import read_words
    from mmrepro.cli.sources import released
    from mmrepro.search.fuzz.server import other_side

    words = shlex.split(asked.against)
    if words and not words[0].startswith("-"):
        words = ["--release", *words]  # a release alone
    own = typed_command(FuzzCommand.COMMAND)
    other = read_words(own, [asked.engine, *words], FuzzCommand)
    return other_side(asked, released(other, asked.engine))


_CommandT = TypeVar("_CommandT", ReplayCommand, ReproCommand, FuzzCommand)


def box_there(asked: _CommandT, without: str) -> _CommandT:
    """The command, with a box that holds; on a terminal its user may do without one.

    ``without``: the option that says so beforehand. Raises NoBox: there is none here,
    and nobody said that it may be done without."""
    from mmrepro.base.box import NoBox, require_box
    from mmrepro.cli.console import at_terminal

    if not asked.boxed or asked.ray:  # machines of a cluster answer for themselves
        return asked
    try:
        require_box(without)
    except NoBox as error:
        if asked.json or not at_terminal():
            raise
        say(error.message, stderr=True)
        question = (
            "Have you read all that is run, and shall it have your files and network?"
        )
        if not typer.confirm(question, default=False, err=True):
            raise
        return replace(asked, box=False)
    return asked


def device_there(asked: ReplayCommand | FuzzCommand) -> str:
    """The device, which is looked at before a folder is made or anything is downloaded.
    Raises
    GpuUnavailable: it is a GPU, and none is free on this machine."""
    from mmrepro.base.machine import take_gpus

    if asked.on_gpu and not asked.ray:
        take_gpus()
    return asked.on_gpu or "cpu"


def conduct_search(
    asked: ReplayCommand | FuzzCommand,
    jobs: int | None,
    begin: Callable[[], Any],
    kind: ReportKind[Any],
    servers: Sequence[tuple[str, str]] = (),
) -> None:
    """Run it, print it and exit. Raises as :func:`device_there`.

    Args:
        begin: makes the session, which reads what it is about.
        kind: of its document and its reports.
        servers: engines and releases that it starts; (): the one of ``asked``.
    """
    from mmrepro.campaign import TrialOptions
    from mmrepro.cli.campaign import announce_servers, carry_out, code_of_search
    from mmrepro.engines import get_engine

    device = device_there(asked)
    if asked.server.engine:
        get_engine(asked.server.engine).given(asked.server.args)
    session = begin()
    # A report that was read is not thrown away.
    new = None if servers else session.folder
    announce_servers(
        asked, servers or [(asked.server.engine, asked.server.release)], new=new
    )
    carry_out(
        session,
        kind,
        asked,
        TrialOptions(),
        exit_code=code_of_search,
        jobs=jobs,
        device=device,
    )
