"""The night that a command asks for: its cells, and how it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import mmrepro
from mmrepro.campaign.schedule import CONFIRM, REPEAT
from mmrepro.errors import UsageError
from mmrepro.incident.ledger import Night, Planned
from mmrepro.machine.host import host_facts
from mmrepro.matrix.file import MatrixFile, Rows, Settings
from mmrepro.matrix.options import MatrixRunCommand
from mmrepro.matrix.plan import plan, sharded
from mmrepro.records import Moment
from mmrepro.run.key import gpu_models


def planned_of(asked: MatrixRunCommand, given: MatrixFile) -> tuple[list[Planned], list[str]]:
    """The cells that are asked for, and what was left out of them. Raises MmreproError."""
    made = plan(name_of(asked), _rows(asked, given), asked.settings, given.matrix)
    cells = sharded(made.cells, asked.shard)
    if not cells:
        made.notes.append(f"no environment of the plan falls into shard {asked.shard}")
    return cells, made.notes


def name_of(asked: MatrixRunCommand) -> str:
    return asked.night or f"{datetime.now(UTC):%Y-%m-%d}"


def night_of(asked: MatrixRunCommand, settings: Settings) -> Night:
    """Raises UsageError: its name is none."""
    try:
        return Night(
            id=name_of(asked),
            created=Moment.now(),
            command=asked.command_line(ray="auto" if asked.ray else ""),
            mmrepro_version=mmrepro.__version__,
            machine=settings.machine or "",
            host=host_facts(gpu_models()),
            repeat=settings.repeat or REPEAT,
            confirm=CONFIRM if settings.confirm is None else settings.confirm,
            every_h=settings.every / 3600 if settings.every else None,
            shard=asked.shard,
        )
    except ValueError as error:
        raise UsageError(
            f"{asked.night!r} cannot name a night.", hint="letters, digits, dots, dashes"
        ) from error


def _rows(asked: MatrixRunCommand, given: MatrixFile) -> list[Rows]:
    """The file's, those with a scenario of the command line if that names any; or that one's."""
    arguments, options = list(asked.server_args), list(asked.options)
    if asked.file is None or not given.cell:
        own = Rows(scenario=list(asked.scenarios), server_arg=arguments, option=options)
        return [own] if asked.scenarios else []
    rows = []
    for group in given.cell:
        names = [s for s in group.scenario if not asked.scenarios or _named(s, asked.scenarios)]
        if names:
            added = {
                "scenario": names,
                "server_arg": group.server_arg + arguments,
                "option": group.option + options,
            }
            rows.append(group.model_copy(update=added))
    if not rows:
        raise UsageError(
            f"{asked.file} has no row of {', '.join(asked.scenarios)}.",
            hint=f"mmrepro matrix run {asked.file} --dry-run",
        )
    return rows


def _named(name: str, wanted: Sequence[str]) -> bool:
    return "all" in wanted or name in wanted or name.partition(":")[0] in wanted
