"""``mmrepro demo``: a recorded run, judged again and shown. Nothing is downloaded or
started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import typer
from mmrepro.base import common_options as common
from mmrepro.base.installed import typed_program
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command

_FILE: Final = "incident.json"
RECORDING: Final = "demo.zip"
"""A bundle in the package, the same as tests/evidence/ghost-key-eviction-0.23.0.zip."""
_NEXT: Final = """\
{program} diagnose
  a server hangs: finds the servers of this machine
{program} logs server.log
  a server died
{program} run {name}
  this failure on a real server here (downloads vLLM, 2.7 GB)
{program} show {name}
  its cause, its fix and its workarounds"""


@dataclass(frozen=True)
class _DemoCommand(Command):
    COMMAND: ClassVar[str] = "demo"
    out: Path = common.OUT(
        Path("incidents/demo"), help="Folder for the incident and its page."
    )
    print: bool = option(
        False, "Print the path of the page; open nothing.", group=OUTPUT
    )


@command(_DemoCommand)
def demo(asked: _DemoCommand) -> None:
    """Judge a recorded incident of vLLM again, and open its page. Nothing is
    downloaded.

    Example:  mmrepro demo
    """
    from importlib.resources import as_file, files

    from mmrepro.base.errors import UsageError
    from mmrepro.base.machine import is_file, write_file
    from mmrepro.cli.console import say, table_console
    from mmrepro.cli.incidents import show_page
    from mmrepro.failure.documents import read_listed
    from mmrepro.reports import INCIDENT_REPORT, load
    from mmrepro.reports.terminal import print_page
    from mmrepro.runs import rejudge
    from mmrepro.scenario.registry import known_scenario

    with as_file(files("mmrepro.cli") / RECORDING) as recording:
        recorded = read_listed(recording, _FILE)
    stored = asked.out / _FILE
    ours = is_file(stored) and stored.read_bytes() == recorded
    if (
        not ours
        and asked.out.exists()
        and not (asked.out.is_dir() and not [*asked.out.iterdir()])
    ):
        raise UsageError(
            f"{asked.out} is something else already.",
            hint="mmrepro demo --out ANOTHER-FOLDER",
        )
    asked.out.mkdir(parents=True, exist_ok=True)
    write_file(stored, recorded.decode())
    incident = load(asked.out)
    name = incident.scenario.name
    again_judged = rejudge(incident, known_scenario(name, trust=False))
    again = "now differs:" if again_judged.differs else "still"
    say(
        f"Re-checked a recorded run ({len(again_judged.parts)} conditions and claims): "
        f"{again} {again_judged.now.outcome.value}.\n",
        hang=4,
    )
    print_page(INCIDENT_REPORT.compose(incident), table_console())
    say("\n" + _NEXT.format(program=typed_program(), name=name), hang=4)
    show_page(asked.out, only_print=asked.print)
    if again_judged.differs:
        raise typer.Exit(1)
