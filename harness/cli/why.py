"""``mmrepro why``: a start, from its log or while it runs: ready, failed or stuck, and
why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import LIMITS, OUTPUT, Command, option
from mmrepro.cli.console import emit, table_console, wants_document, while_reading
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.base.records import DocumentHead
    from mmrepro.engines import Engine
    from mmrepro.live.diagnose import StartReading
    from mmrepro.probes import LogLine

_GRACE_S = 5.0
_READY, _FAILED, _UNTOLD = 0, 1, 3


@dataclass(frozen=True)
class _WhyCommand(Command):
    COMMAND: ClassVar[str] = "why"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.live.diagnose.starts:StartReading",
    )
    files: tuple[Path, ...] = option(
        (), "Log file.", "LOG | -- COMMAND…", argument=True
    )
    engine: str = common.ENGINE_NAME("auto", help="Engine that is started.")
    release: str = option(
        "", "Its release.", "VERSION", shown="as the log says it", once=True
    )
    deadline: float = option(
        600.0,
        "Time for the start of COMMAND.",
        "SECONDS",
        LIMITS,
        least=1,
        most=common.WEEK_S,
    )
    keep: bool = option(
        False, "Leave a server that is ready running.", group=LIMITS, once=True
    )
    log: Path | None = option(
        None, "Where COMMAND's output goes.", "FILE", OUTPUT, shown="why-DATE-TIME.log"
    )
    rules: Path | None = common.RULES(None)
    json: bool = common.JSON(False)
    verbose: bool = common.VERBOSE(False)
    child: tuple[str, ...] = ()


@command(_WhyCommand)
def why(asked: _WhyCommand) -> None:
    """Find out why a server does not start: from its log, or by starting it.

    With a LOG it reads the last start in it. With -- COMMAND… it starts that in a
    process group of its own, writes its output to a file, and waits until it is ready,
    gone or late. Then it ends it, unless --keep leaves a ready one running. Ctrl-C ends
    it, too.

    Example:  mmrepro why -- vllm serve Qwen/Qwen3-0.6B --port 8000
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.engines import get_engine
    from mmrepro.failure.documents import shown_here
    from mmrepro.live.diagnose import with_rules

    if bool(asked.files) == bool(asked.child):
        raise UsageError(
            "Pass a start-up log, or the start command after --.",
            hint="mmrepro why server.log, or mmrepro why -- vllm serve MODEL",
        )
    engine = None if asked.engine == "auto" else get_engine(asked.engine)
    with with_rules(asked.rules):
        answer = _watched(asked, engine) if asked.child else _read(asked, engine)
    answer = shown_here(answer)
    code = _code(answer)
    if wants_document(asked):
        emit(answer, _head(answer, code), printed=asked.json)
    if not asked.json:
        _print(answer)
    raise typer.Exit(code)


def _head(answer: StartReading, code: int) -> DocumentHead:
    from mmrepro.base.records import DocumentHead

    return DocumentHead(
        status=answer.state.value, exit_code=code, summary=answer.sentence
    )


def _code(answer: StartReading) -> int:
    if answer.state == "ready":
        return _READY
    return _FAILED if answer.cause is not None else _UNTOLD


def _read(asked: _WhyCommand, engine: Engine | None) -> StartReading:
    import tempfile

    from mmrepro.base.errors import UsageError
    from mmrepro.engines.starts import lines_of
    from mmrepro.live.diagnose import judge_log, read_start
    from mmrepro.probes import Unavailable
    from mmrepro.probes.log_files import BROKEN, kept, logs_below

    notes: list[str] = []
    lines: list[LogLine] = []
    with while_reading(), tempfile.TemporaryDirectory(prefix="mmrepro-why-") as folder:
        below = logs_below(kept(asked.files, Path(folder)))
        notes += below.left_out
        for path in below.files:
            try:
                lines += lines_of(path, notes)
            except (*BROKEN, Unavailable) as error:
                why = getattr(error, "strerror", None) or str(error)
                hint = "mmrepro why LOG"
                raise UsageError(f"{path} cannot be read: {why}.", hint=hint) from error
    answer = read_start(lines, engine=engine, release=asked.release)
    update: dict[str, object] = {
        "log": ", ".join(map(str, asked.files)),
        "notes": [*answer.notes, *notes],
        "facts": judge_log(lines, answer.engine).facts,
    }
    return answer.model_copy(update=update)


def _watched(asked: _WhyCommand, engine: Engine | None) -> StartReading:
    import shutil

    from mmrepro.base.errors import UsageError
    from mmrepro.base.machine import read_gpus
    from mmrepro.engines.supervise import start_engine
    from mmrepro.live.diagnose import StartState, watch_start

    program = asked.child[0]
    if shutil.which(program) is None:
        raise UsageError(
            f"There is no program {program!r} that can be run.",
            hint="activate the engine's environment, or give the program's whole path",
        )
    log = asked.log or Path(f"why-{datetime.now():%Y%m%d-%H%M%S}.log")
    log = log.absolute()
    if log.is_file():
        log.unlink()
    sizes = [gpu.memory_total_bytes or 0 for gpu in read_gpus().gpus]
    process = start_engine(
        list(asked.child), dict(os.environ), cwd=Path.cwd(), log=log, grace_s=_GRACE_S
    )
    kept = False
    try:
        answer = watch_start(
            process,
            asked.child,
            asked.deadline,
            engine=engine,
            show=_line if asked.verbose else lambda _: None,
            total_bytes=min(sizes, default=0),
        )
        if (
            asked.keep
            and answer.state is StartState.READY
            and process.exit_code is None
        ):
            process.detach()
            kept = True
            answer = answer.model_copy(update={"pid": process.pid})
    finally:
        if not kept:
            process.stop()
    return answer


def _line(line: LogLine) -> None:
    from mmrepro.base.text import one_line
    from mmrepro.probes.log_words import public_line

    typer.echo(one_line(public_line(line), 400), err=True)


_MOST_WHY, _MOST_ADVICE = 5, 4


def _facts_rows(answer: StartReading) -> Iterator[tuple[str, str]]:
    """What the log carries besides: where it ran, how it was started, where it
    failed."""
    facts = answer.facts
    if facts is None:
        return
    where = ", ".join(filter(None, [facts.platform.upper(), *facts.topology]))
    if where:
        yield "on", where
    if facts.command:
        yield "command", facts.command
    if facts.failure is not None and facts.failure.place:
        yield "raised at", f"{facts.failure.place} {facts.failure.code}".strip()
    for text in facts.ties[:1]:
        yield "tie", text


def _print(answer: StartReading) -> None:
    """Print at most 20 lines, the verdict last."""
    from mmrepro.base.text import one_line
    from mmrepro.probes.log_words import public_line
    from rich.markup import escape
    from rich.table import Table

    cause = answer.cause
    grid = Table(show_header=False, box=None, pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")

    def row(name: str, text: str, length: int = 170) -> None:
        grid.add_row(name, escape(one_line(text, length)))

    words = [
        answer.engine or "not recognised; give --engine",
        answer.release,
        answer.stage,
    ]
    row("engine", " ".join(filter(None, words)))
    row("log", f"{answer.log}, {answer.lines} lines")
    for name, text in _facts_rows(answer):
        row(name, text)
    shown = cause.why[:_MOST_WHY] if cause else answer.notes
    for at, text in enumerate(shown):
        row("" if at else "why", text)
    if not shown and answer.last is not None:
        row("last line", public_line(answer.last))
    for at, text in enumerate(cause.advice[:_MOST_ADVICE] if cause else ()):
        row("" if at else "do", text)
    if answer.pid is not None:
        row("running", f"{answer.url or 'the server'}; end it: kill {answer.pid}")
    console = table_console()
    console.print(grid)
    colour = {"ready": "green", "failed": "red", "stuck": "red"}.get(
        answer.state, "yellow"
    )
    name = f"  [{cause.start.name}]" if cause and cause.start else ""
    sure = "" if cause is None or cause.certainty == "certain" else "likely: "
    verdict = f"[bold {colour}]{answer.state.upper()}[/]  {sure}"
    console.print(verdict + escape(one_line(answer.sentence, 300) + name))
