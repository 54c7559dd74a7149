"""The root command and where its subcommands live."""

from __future__ import annotations

from typing import Annotated

import typer
from mmrepro import __version__
from mmrepro.cli.ablate import ablate
from mmrepro.cli.accept import accept
from mmrepro.cli.bisect import bisect
from mmrepro.cli.bundle import bundle
from mmrepro.cli.check import check
from mmrepro.cli.collide import collide
from mmrepro.cli.diagnose import diagnose
from mmrepro.cli.env import app as env_app
from mmrepro.cli.incidents import incidents
from mmrepro.cli.judge import judge
from mmrepro.cli.kv_budget import kv_budget
from mmrepro.cli.logs import logs
from mmrepro.cli.matrix import app as matrix_app
from mmrepro.cli.new import new
from mmrepro.cli.probe import probe
from mmrepro.cli.replay import replay
from mmrepro.cli.report import report_command, schema
from mmrepro.cli.run import run
from mmrepro.cli.scenarios import list_scenarios, show
from mmrepro.cli.warm import app as warm_app
from mmrepro.cli.watch import watch

app = typer.Typer(
    name="mmrepro",
    no_args_is_help=True,
    add_completion=False,
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


app.command("run", short_help="Drive a real engine into a known failure.")(run)
app.command("diagnose", short_help="Say what is wrong with a live server.")(diagnose)
app.command("replay", short_help="Shrink recorded traffic to what fails.")(replay)
app.command("ablate", short_help="Find out which setting is the cause.")(ablate)
app.command("bisect", short_help="Find the release that brought or fixed it.")(bisect)
app.add_typer(matrix_app, name="matrix", short_help="Scenarios × releases, night after night.")
app.command("accept", short_help="Try all that only this machine can show.")(accept)
app.command("list", short_help="List the known failure modes.")(list_scenarios)
app.command("show", short_help="Show one: symptom, cause, mitigations.")(show)
app.command("collide", short_help="Find two pictures that an engine takes for one.")(collide)
app.command("incidents", short_help="List what ran here, newest first.")(incidents)
app.command("report", short_help="Make a report again from an incident.")(report_command)
app.command("judge", short_help="Judge recorded evidence again.")(judge)
app.command("new", short_help="Write a scenario for you to fill in.")(new)
app.command("watch", short_help="A deep health check of a live server.")(watch)
app.command("logs", short_help="What a server's logs tell, as one timeline.")(logs)
app.command("bundle", short_help="Pack an incident for an upstream issue.")(bundle)
app.command("schema", short_help="Print the JSON Schema of incident.json.")(schema)
app.command("check", short_help="Tell what this machine can do.")(check)
app.command("probe", short_help="Collect one kind of evidence.")(probe)
app.command("kv-budget", short_help="Compute an engine's KV cache from its setting.")(kv_budget)
app.add_typer(env_app, name="env", short_help="The cached environments of engines.")
app.add_typer(warm_app, name="warm", short_help="Keep engines imported between commands.")
