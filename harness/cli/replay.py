"""``mmrepro replay``: recorded traffic on a fresh engine, what is wrong, and the few requests."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mmrepro.cli.bounds import WEEK_S
from mmrepro.cli.where import Events, Ray
from mmrepro.errors import ExitCode
from mmrepro.run.options import StartMode

if TYPE_CHECKING:
    from mmrepro.case.model import ServerWanted
    from mmrepro.incident.replay import Replay
    from mmrepro.replay.options import ReplayOptions
    from rich.console import Console


class TimeChoice(StrEnum):
    REAL = "real"
    FAST = "fast"
    ORDER = "order"


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            help="A HAR, an OpenAI Batch JSONL, a log of vLLM or SGLang, or a case.json.",
            metavar="FILE",
        ),
    ],
    engine: Annotated[
        str, typer.Option(help="vllm, sglang, lmdeploy or minivllm.  [default: a case's own]")
    ] = "",
    release: Annotated[
        str,
        typer.Option(
            help="Release of the engine.  [default: a case's own, else the known scenarios' last]"
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="A tiny model's name (qwen2-vl, dots-ocr, qwen3, text), or a model's folder.  "
            "[default: a case's own, else that of the engine's scenarios]"
        ),
    ] = "",
    server_arg: Annotated[
        list[str] | None,
        typer.Option(help="One more option for the server, e.g. --server-arg=--dtype=float32."),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=16, help="Tokens that a prompt and its answer may have.  [default: 2048]"),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="One more variable for the server.", metavar="NAME=VALUE"),
    ] = None,
    time: Annotated[
        TimeChoice,
        typer.Option(
            help="fast: as fast as the recording's order allows; real: at its own times; order: "
            "one after another."
        ),
    ] = TimeChoice.FAST,
    anonymise: Annotated[
        bool | None,
        typer.Option(
            "--anonymise/--no-anonymise",
            help="Play random text of the same lengths and sharing in place of what people wrote.  "
            "[default: the real prompts are played; what leaves the machine has random ones]",
        ),
    ] = None,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Fit lengths to --max-model-len; what was too long stays so."),
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            help="Of a HAR with several: read the requests to this one. Nothing is sent to it.",
            metavar="HOST[:PORT]",
        ),
    ] = "",
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, help="Of a file without times: so many at once.  [default: 1]"
        ),
    ] = None,
    no_shrink: Annotated[
        bool, typer.Option("--no-shrink", help="Confirm what is found, and leave it as it is.")
    ] = False,
    repeat: Annotated[
        int, typer.Option(min=1, max=100, help="Plays on fresh servers that confirm a finding.")
    ] = 3,
    budget: Annotated[int, typer.Option(min=2, max=10_000, help="Most starts of servers.")] = 40,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Servers at a time.  [default: by memory and cores]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    start_mode: Annotated[
        StartMode,
        typer.Option(
            envvar="MMREPRO_START_MODE",
            help="How servers are started; see mmrepro run --help. auto means warm here.",
        ),
    ] = StartMode.AUTO,
    timeout: Annotated[
        float, typer.Option(min=1, max=WEEK_S, help="Seconds that a server may take to be ready.")
    ] = 600.0,
    ray: Ray = "",
    events: Events = "",
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the replay in this folder; no play is repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The replay's folder.  [default: replays/…]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Play recorded traffic on a fresh engine, notice what is wrong, and shrink it.

    It talks to servers that it started itself, never to the recording's. Exit codes: 0 nothing
    unknown; 1 an unknown failure, confirmed; 3 seen but not proven; 4 infrastructure.

    Example:  mmrepro replay night.har --engine vllm --release 0.23.0
    """
    from mmrepro.cli.console import table_console
    from mmrepro.replay.options import ReplayOptions

    told = {
        "engine": engine,
        "release": release,
        "model": model,
        "max_model_len": max_model_len,
        "args": list(server_arg or ()),
        "env": variables(env or []),
    }
    options = ReplayOptions(
        file=file,
        server=server_wanted(file, resume, {name: value for name, value in told.items() if value}),
        time=time.value,
        anonymise=anonymise,
        scale=scale,
        host=host,
        concurrency=concurrency,
        shrink=not no_shrink,
        budget=budget,
        repeat=repeat,
        jobs=jobs,
        seed=seed,
        start_mode=start_mode,
        timeout_s=timeout,
        resume=resume,
        out=out,
    )
    console = table_console(stderr=json or events == "-")
    made, folder = _run(options, console, quiet=json, ray=ray, events=events)
    if json:
        from mmrepro.reports.replay_json import replay_json

        typer.echo(replay_json(made, folder).rstrip("\n"))
    raise typer.Exit(exit_code(made))


def server_wanted(file: Path, resume: Path | None, told: dict[str, Any]) -> ServerWanted:
    """The server: of a case its own, of a recording that of the engine's scenarios; over both
    goes what ``told`` says.

    Raises:
        UsageError: no engine, or none of that name, or no such release.
    """
    from mmrepro.case.files import read_case
    from mmrepro.case.model import CASE_FILE, ServerWanted
    from mmrepro.engines import get_engine
    from mmrepro.errors import UsageError

    kept = next((place for place in (resume, file) if place and is_case(place)), None)
    own = read_case(kept)[0].server if kept else None
    if own is not None and told.get("engine", own.engine) != own.engine:
        raise UsageError(
            f"{kept} is a case of {own.engine}, not of {told['engine']}: another engine has other "
            "options.",
            hint=f"leave --engine out, or change the server in {CASE_FILE}",
        )
    if own is None:
        if "engine" not in told:
            raise UsageError(
                "--engine says which engine the traffic is played on.",
                hint=f"mmrepro replay {file} --engine vllm",
            )
        get_engine(told["engine"])
        own = usual_server(told["engine"])
    wanted = ServerWanted.model_validate({**own.model_dump(), **told})
    get_engine(wanted.engine).environment_spec(wanted.release, "cpu")
    return wanted


def is_case(place: Path) -> bool:
    """Whether a case is there: a folder with one, or a file called so."""
    from mmrepro.case.model import CASE_FILE
    from mmrepro.machine.files import is_file

    return place.name == CASE_FILE or is_file(place / CASE_FILE)


def usual_server(engine: str) -> ServerWanted:
    """The newest release that a known scenario runs, and the tiny model that goes with it."""
    from mmrepro.case.model import ServerWanted
    from mmrepro.cli.new import last_known
    from mmrepro.models import TINY

    known = last_known(engine)
    return ServerWanted(
        engine=engine,
        release=known.release,
        model=next(name for name, tiny in TINY.items() if type(tiny) is type(known.model)),
        max_model_len=known.max_model_len,
    )


def variables(given: list[str]) -> dict[str, str]:
    from mmrepro.errors import UsageError

    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (sign and name.isidentifier()):
            raise UsageError(f"--env {text}: a variable is given as NAME=VALUE.")
        found[name] = value
    return found


def _run(
    options: ReplayOptions, console: Console, *, quiet: bool, ray: str, events: str
) -> tuple[Replay, Path]:
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.replay.session import Replaying
    from mmrepro.reports.replay import write_replay
    from mmrepro.reports.replay_terminal import print_replay

    running = Replaying(options, write=write_replay)
    with placed(options.jobs if ray else running.places, ray) as where:
        made = conduct(
            running, lambda say: where.places(say, TrialOptions()), console, events=events
        )
    if not quiet:
        print_replay(made, console, str(running.folder))
    return made, running.folder


def exit_code(made: Replay) -> ExitCode:
    """4 where the replay failed before it could say anything."""
    if made.state == "failed":
        return ExitCode.INFRASTRUCTURE
    return ExitCode(made.exit_code)
