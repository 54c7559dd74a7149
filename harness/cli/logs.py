"""``mmrepro logs``: what a server's logs tell, of any size, rotated or compressed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import LIMITS, Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.engines import Engine
    from mmrepro.probes.data import LogLine, LogsData

PEEK_BYTES = 1 << 20


@dataclass(frozen=True)
class LogsCommand(Command):
    COMMAND: ClassVar[str] = "logs"
    files: tuple[Path, ...] = option(
        (), "Log files, folders of them, or - for the standard input.", "LOG…",
        argument=True, required=True,
    )  # fmt: skip
    engine: str = common.ENGINE_NAME("auto", help="Engine that wrote them.")
    alone: bool = option(False, "Leave out the files that were rotated away from them.")
    deadline: float = option(600.0, "Time to read.", "SECONDS", LIMITS, least=1, most=common.WEEK_S)
    json: bool = common.JSON(False)


@command(LogsCommand)
def logs(asked: LogsCommand) -> None:
    """Read logs as one timeline: last progress, first error, requests that were never scheduled.

    Exit status: 0 they were read; 3 they could not be, or not to the end.

    Example:  mmrepro logs /var/log/vllm/server.log
    """
    import tempfile

    from mmrepro.base.errors import ExitCode, UsageError
    from mmrepro.engines import log_marks
    from mmrepro.probes.base import run_probe
    from mmrepro.probes.log_files import kept
    from mmrepro.probes.logs import LogsProbe

    with tempfile.TemporaryDirectory(prefix="mmrepro-logs-") as folder:
        files = kept(asked.files, Path(folder))
        chosen = _engine(asked.engine, files)
        probe = LogsProbe(
            files,
            scenario_patterns(chosen),
            chosen.progress_pattern if chosen else None,
            added=chosen.added_pattern or None if chosen else None,
            rotated=not asked.alone,
            marks=log_marks(),
        )
        result = run_probe(probe, Path(folder), asked.deadline)
    if result.data is None or not result.data.bytes_read:
        raise UsageError(f"No log could be read: {result.reason}.", hint="mmrepro logs FILE")
    if asked.json:
        typer.echo(result.model_dump_json(indent=1))
    else:
        _tell(result.data, chosen)
        if not result.ok:
            typer.echo(f"\nNot read to the end: {result.reason}; --deadline gives it longer.")
    if not result.ok:
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _engine(name: str, files: list[Path]) -> Engine | None:
    """The engine called ``name``; "auto": the one whose form the lines of the logs have."""
    from mmrepro.engines import ENGINES, get_engine, log_marks
    from mmrepro.probes.log_files import logs_in, with_rotated
    from mmrepro.probes.logs import identify

    if name != "auto":
        return get_engine(name)
    for file in logs_in(files):
        for path in dict.fromkeys((file, with_rotated(file)[0])):
            if found := identify(path, log_marks(), PEEK_BYTES):
                return ENGINES[found.engine]
    return None


def scenario_patterns(engine: Engine | None) -> dict[str, str]:
    """The engine's and those of its scenarios; of every engine's where it is not known.

    A name that two scenarios give to different expressions goes with the second one's own name.
    """
    from mmrepro.live.diagnose.match import all_scenarios

    patterns = dict(engine.log_patterns) if engine else {}
    for scenario in all_scenarios():
        if engine is None or scenario.engine == engine.name:
            for name, expression in scenario.log_patterns.items():
                taken = patterns.setdefault(name, expression) != expression
                if taken and expression not in patterns.values():
                    patterns[f"{scenario.full_name}: {name}"] = expression
    return patterns


def _tell(data: LogsData, engine: Engine | None) -> None:
    from mmrepro.base.text.sanitize import one_line
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def shown(line: LogLine | None, none: str) -> str:
        if line is None:
            return f"[dim]{none}"
        where = f"{Path(line.file).name}:{line.number}" if line.file else f"line {line.number}"
        who = f" {line.process}" if line.process else ""
        text = escape(f"{where}{who}  {one_line(line.text, 200)}")
        return f"[bold]{escape(line.time)}[/] {text}"

    console = Console(highlight=False)
    table = Table(show_header=False, box=None)
    files = data.files or [data.file]
    size = f"{units.size(data.bytes_read, 1)}, {data.lines} lines"
    table.add_row("read", escape(f"{len(files)} file{'s' * (len(files) > 1)}, {size}"))
    table.add_row("engine", engine.name if engine else "[dim]not recognised; give --engine")
    for file, why in data.unread.items():
        table.add_row("not read", escape(f"{file}: {why}"))
    table.add_row("begins", shown(data.first_line, "no line with a time"))
    table.add_row("ends", shown(data.last_line, "no line with a time"))
    first = data.errors[0] if data.errors else None
    table.add_row("first error", shown(first, "no error line"))
    table.add_row("last progress", shown(data.last_work, "no line shows work done"))
    if data.stuck_count is not None:
        after = f"{data.stuck_count} requests were added after it and never scheduled"
        table.add_row("", f"[bold red]{after}" if data.stuck_count else "no request after it")
    for server in data.servers:
        last, first = server.last_work, next(iter(server.errors), None)
        table.add_row(escape(server.stream), f"last progress: {shown(last, 'none')}")
        table.add_row("", f"first error: {shown(first, 'none')}")
    for name, count in data.match_counts.items():
        if count:
            table.add_row(escape(name), f"{count} lines, last: {shown(data.matches[name][-1], '')}")
    console.print(table)
    if len(data.last_by_process) > 1:
        words = Table("process", "last words", box=None, title="\nLast words", title_justify="left")
        for process, line in data.last_by_process.items():
            words.add_row(escape(process or "(unmarked)"), shown(line, ""))
        console.print(words)
