"""Options of all commands that run campaigns: where runs are made, how long, who follows them."""

from __future__ import annotations

from typing import Annotated

import typer

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, max=64, help="Runs at a time on this machine.  [default: 1]"),
]
Ray = Annotated[
    str,
    typer.Option("--ray", help="On the machines of a Ray cluster: auto, or HOST:PORT."),
]
Budget = Annotated[
    str,
    typer.Option(
        "--budget", help="Start no run that is not expected to end in time, e.g. 45m or 2h."
    ),
]
Events = Annotated[
    str,
    typer.Option(
        "--events", metavar="FILE|-", help="Append what happens to FILE, an event a line as JSON."
    ),
]


def words(jobs: int | None, ray: str, budget: str) -> tuple[str, ...]:
    """The same options again, for the command that goes on with a campaign.

    A cluster's address is left out: documents are read by others.
    """
    told = [("--jobs", jobs), ("--ray", ray and "auto"), ("--budget", budget)]
    return tuple(word for name, value in told if value for word in (name, str(value)))
