"""``mmrepro fuzz``: generated requests on fresh engines, what is wrong, and the few requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mmrepro.base import units
from mmrepro.cli.bounds import WEEK_S
from mmrepro.cli.replay import usual_server, variables
from mmrepro.cli.where import Events, Ray
from mmrepro.errors import ExitCode
from mmrepro.fuzz.profiles import Profile
from mmrepro.run.options import StartMode

if TYPE_CHECKING:
    from mmrepro.case.model import ServerWanted
    from mmrepro.fuzz.options import FuzzOptions
    from mmrepro.incident.fuzz import Fuzz
    from rich.console import Console


def fuzz(
    engine: Annotated[str, typer.Argument(help="vllm, sglang, lmdeploy or minivllm.")],
    release: Annotated[
        str, typer.Option(help="Release of the engine.  [default: the known scenarios' last]")
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="Time for it, e.g. 10m or 2h; building an environment does not count.  "
            "[default: 30m]"
        ),
    ] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Of all that is made up.")] = None,
    profile: Annotated[
        Profile | None,
        typer.Option(
            help="pressure: small caches and KV; plain: the engine's defaults; text: pressure "
            "without pictures; hazards: clients that do what the documentation warns of.  "
            "[default: pressure]"
        ),
    ] = None,
    server_arg: Annotated[
        list[str] | None,
        typer.Option(help="One more option for the server, e.g. --server-arg=--dtype=float32."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="One more variable for the server.", metavar="NAME=VALUE"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="A tiny model's name (qwen2-vl, dots-ocr, qwen3, text), or a model's folder.  "
            "[default: that of the engine's scenarios]"
        ),
    ] = "",
    max_model_len: Annotated[
        int | None, typer.Option(min=64, help="Tokens that a prompt and its answer may have.")
    ] = None,
    blind: Annotated[
        bool,
        typer.Option("--blind", help="Name nothing, and keep no known failure away."),
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Use and change the requests of a recording or case, or a folder's pictures.",
            metavar="FILE",
        ),
    ] = None,
    no_shrink: Annotated[
        bool, typer.Option("--no-shrink", help="Confirm what is found, and leave it as it is.")
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="Plays on fresh servers that confirm a finding.  [default: 3]"
        ),
    ] = None,
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
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Servers at a time.")] = 1,
    ray: Ray = "",
    events: Events = "",
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with the session in this folder, with its options; no episode is repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The session's folder.  [default: fuzz/…]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Look for failures that nobody has reported: make up requests, and judge the answers.

    It talks to servers that it started itself, and claims nothing absent. Exit codes: 0 nothing
    unknown; 1 an unknown failure, confirmed; 3 seen but not proven; 4 infrastructure.

    Example:  mmrepro fuzz vllm --release 0.23.0 --budget 10m
    """
    from mmrepro.cli.console import table_console
    from mmrepro.fuzz.options import BUDGET_S, REPEAT, FuzzOptions

    told: dict[str, Any] = {
        "release": release,
        "model": model,
        "max_model_len": max_model_len,
        "args": list(server_arg or ()),
        "env": variables(env or []),
    }
    told = {name: value for name, value in told.items() if value}
    kept, kept_budget_s = kept_options(resume) if resume is not None else ({}, None)
    chosen = profile or Profile(kept.get("--profile", Profile.PRESSURE))
    from_ = source or (Path(kept["--from"]) if kept.get("--from") else None)
    options = FuzzOptions(
        server=server_of(engine, chosen, told, kept.get("server", "")),
        asked=asked(told),
        profile=chosen,
        budget_s=units.parse_duration(budget) if budget else kept_budget_s or BUDGET_S,
        seed=seed if seed is not None else int(kept.get("--seed", "0")),
        blind=blind or bool(kept.get("--blind")),
        source=from_,
        shrink=not (no_shrink or kept.get("--no-shrink")),
        repeat=repeat if repeat is not None else int(kept.get("--repeat", str(REPEAT))),
        start_mode=start_mode,
        timeout_s=timeout,
        jobs=jobs,
        resume=resume,
        out=out,
    )
    console = table_console(stderr=json or events == "-")
    made, folder = _run(options, console, quiet=json, ray=ray, events=events)
    if json:
        from mmrepro.reports.fuzz_json import fuzz_json

        typer.echo(fuzz_json(made, folder).rstrip("\n"))
    raise typer.Exit(
        ExitCode.INFRASTRUCTURE if made.state == "failed" else ExitCode(made.exit_code)
    )


def server_of(engine: str, profile: Profile, told: dict[str, Any], kept: str) -> ServerWanted:
    """The server: that of the engine's scenarios, under ``profile``, with what ``told`` says; of
    a session that is gone on with the ``kept`` one, unless something is told.

    Raises:
        UsageError: no such engine or release.
    """
    from mmrepro.case.model import ServerWanted
    from mmrepro.engines import get_engine
    from mmrepro.fuzz.profiles import under

    found = get_engine(engine)
    if kept and not told:
        return ServerWanted.model_validate_json(kept)
    usual = usual_server(engine)
    wanted = ServerWanted.model_validate({**usual.model_dump(), **told})
    found.environment_spec(wanted.release, "cpu")
    return under(profile, wanted, length_told="max_model_len" in told)


def asked(told: dict[str, Any]) -> tuple[str, ...]:
    """The words that ask for such a server again."""
    words: list[str] = []
    for name in ("release", "model", "max_model_len"):
        if name in told:
            words += [f"--{name.replace('_', '-')}", str(told[name])]
    words += [f"--server-arg={arg}" for arg in told.get("args", ())]
    words += [f"--env={name}={value}" for name, value in told.get("env", {}).items()]
    return tuple(words)


def kept_options(folder: Path) -> tuple[dict[str, str], float | None]:
    """What the session in ``folder`` was begun with, and its budget in seconds.

    Raises:
        UsageError: there is none.
    """
    from mmrepro.errors import MmreproError
    from mmrepro.fuzz.store import EPISODES
    from mmrepro.incident.fuzz import EPISODES_FILE
    from mmrepro.reports.fuzz import load_fuzz

    try:
        with (folder / EPISODES_FILE).open("rb") as file:
            line = file.readline(1 << 20)
    except OSError:
        return {}, None  # the session says what is wrong
    head = EPISODES.head(line, folder)
    try:
        budget_s = load_fuzz(folder).budget_s
    except MmreproError:
        budget_s = None
    return head.decides, budget_s


def _run(
    options: FuzzOptions, console: Console, *, quiet: bool, ray: str, events: str
) -> tuple[Fuzz, Path]:
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, placed
    from mmrepro.fuzz.session import Fuzzing
    from mmrepro.reports.fuzz import write_fuzz
    from mmrepro.reports.fuzz_terminal import print_fuzz
    from mmrepro.reports.replay import write_replay

    running = Fuzzing(options, write=write_fuzz, write_replay=write_replay)
    with placed(options.jobs if options.jobs > 1 else None, ray) as where:
        made = conduct(
            running, lambda say: where.places(say, TrialOptions()), console, events=events
        )
    if not quiet:
        print_fuzz(made, console, str(running.folder))
    return made, running.folder
