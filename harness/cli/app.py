"""The root command and where its subcommands live."""

from __future__ import annotations

from typing import Annotated

import typer
from mmrepro import __version__
from mmrepro.cli.check import check
from mmrepro.cli.env import app as env_app
from mmrepro.cli.probe import probe
from mmrepro.cli.report import report_command, schema
from mmrepro.cli.run import run
from mmrepro.cli.scenarios import list_scenarios, show

app = typer.Typer(
    name="mmrepro",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Reproduce and diagnose failures of multimodal LLM inference engines.\n\n"
    "Start here:  mmrepro run ghost-key-eviction",
    epilog="Exit codes: 0 as expected · 1 not as expected · 2 usage · 3 inconclusive · "
    "4 infrastructure · 130 interrupted",
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


app.command("run")(run)
app.command("list")(list_scenarios)
app.command("show")(show)
app.command("report")(report_command)
app.command("schema")(schema)
app.command("check")(check)
app.command("probe")(probe)
app.add_typer(env_app, name="env")
