"""The root command, and where its subcommands live: each is imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer
from mmrepro import __version__
from mmrepro.cli.lazy import lazy_group

COMMANDS = {
    "run": ("run:run", "Drive a real engine into a known failure."),
    "diagnose": ("diagnose:diagnose", "Say what is wrong with a live server."),
    "replay": ("replay:replay", "Shrink recorded traffic to what fails."),
    "fuzz": ("fuzz:fuzz", "Look for failures that nobody has reported."),
    "ablate": ("ablate:ablate", "Find out which setting is the cause."),
    "bisect": ("bisect:bisect", "Find the release that brought or fixed it."),
    "matrix": ("matrix:app", "Scenarios × releases, night after night."),
    "accept": ("accept:accept", "Try all that only this machine can show."),
    "resume": ("resume:resume", "Go on with the campaign in a folder."),
    "list": ("scenarios:list_scenarios", "List the known failure modes."),
    "claims": ("claims:claims", "What recorded runs say of each report's claims."),
    "show": ("scenarios:show", "Show one: symptom, cause, mitigations."),
    "collide": ("collide:collide", "Find two pictures that an engine takes for one."),
    "incidents": ("incidents:incidents", "List what ran here, newest first."),
    "report": ("report:report_command", "Make a report again from an incident."),
    "judge": ("judge:judge", "Judge recorded evidence again."),
    "new": ("new:new", "Write a scenario for you to fill in."),
    "watch": ("watch:watch", "A deep health check of a live server."),
    "logs": ("logs:logs", "What a server's logs tell, as one timeline."),
    "bundle": ("bundle:bundle", "Pack an incident for an upstream issue."),
    "schema": ("report:schema", "Print the JSON Schema of incident.json."),
    "check": ("check:check", "Tell what this machine can do."),
    "probe": ("probe:probe", "Collect one kind of evidence."),
    "kv-budget": ("kv_budget:kv_budget", "Compute an engine's KV cache from its setting."),
    "env": ("env:app", "The cached environments of engines."),
    "warm": ("warm:app", "Keep engines imported between commands."),
}

app = typer.Typer(
    name="mmrepro",
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    # Plain help: it needs no rich, and `mmrepro --help` takes a third of the time.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Reproduce and diagnose failures of multimodal LLM inference engines.\n\n"
    "Start here:  mmrepro run ghost-key-eviction",
    epilog="Exit codes: 0 as expected · 1 not as expected · 2 usage · 3 inconclusive · "
    "4 infrastructure · 130 interrupted · 141 the reader of its output left",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"mmrepro {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
