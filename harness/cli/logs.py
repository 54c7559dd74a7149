"""``mmrepro logs``: what a server's logs tell, of any size, rotated or compressed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import LIMITS, Command, option
from mmrepro.cli.console import (
    emit,
    head_of_page,
    say,
    table_console,
    wants_document,
    while_reading,
)
from mmrepro.cli.options import command


@dataclass(frozen=True)
class _LogsCommand(Command):
    COMMAND: ClassVar[str] = "logs"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.cause:LogReading",
    )
    files: tuple[Path, ...] = option(
        (),
        "Log files, folders of them, or - for the standard input.",
        "LOG…",
        argument=True,
        required=True,
    )
    engine: str = common.ENGINE_NAME("auto", help="Engine that wrote them.")
    alone: bool = option(False, "Leave out the files that were rotated away from them.")
    deadline: float = option(
        600.0, "Time to read.", "SECONDS", LIMITS, least=1, most=common.WEEK_S
    )
    rules: Path | None = common.RULES(None)
    full: bool = common.FULL(
        False, help="Print counts, last words and what else there is."
    )
    issue: bool = option(
        False, "Print what maintainers ask for in a report, without clients' words."
    )
    json: bool = common.JSON(False)


@command(_LogsCommand)
def logs(asked: _LogsCommand) -> None:
    """Read a server's logs: what ended it, which process first, when, and its last
    progress.

    Example:  mmrepro logs /var/log/vllm/server.log
    """
    from mmrepro.cli.find import later_lines
    from mmrepro.failure.documents import shown_here
    from mmrepro.live.diagnose import later_fixes_of, read_logs
    from mmrepro.reports import compose_logs

    with while_reading():
        read = read_logs(
            asked.files,
            asked.engine,
            alone=asked.alone,
            deadline_s=asked.deadline,
            rules=asked.rules,
        )
    reading = shown_here(read)
    page = compose_logs(reading)
    if wants_document(asked):
        head = head_of_page(page, reading.cause.name.value, reading.exit_code)
        emit(reading, head, printed=asked.json)
    if asked.json:
        raise typer.Exit(reading.exit_code)
    if asked.issue:
        from mmrepro.reports import issue_of_log

        typer.echo(issue_of_log(read), nl=False)
    else:
        from mmrepro.reports.terminal import print_page

        print_page(page, table_console(), full=asked.full)
        for line in later_lines(later_fixes_of(read)):
            say(line)
    raise typer.Exit(reading.exit_code)
