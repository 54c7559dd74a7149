"""``mmrepro find``: which known failure a text, a log or an issue belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.tools.catalogue.find import IndexEntry, IndexHit

_GROUP = "mmrepro.scenarios"
"""Entry points with which distributions add scenarios (mmrepro.scenario.registry)."""
_SHOWN = 3
"""Of what it is, and of what it may be."""
_WIDTH = 100
_DEADLINE_S = 600.0


@dataclass(frozen=True)
class _FindCommand(Command):
    COMMAND: ClassVar[str] = "find"
    text: tuple[str, ...] = option(
        (),
        "A message, a traceback, an issue (vllm#43941, its address), a log file, or - "
        "for standard input.",
        "TEXT|LOG|ISSUE…",
        argument=True,
        required=True,
    )
    full: bool = common.FULL(
        False, help="All that was found, and all that is known of it."
    )
    json: bool = common.JSON(False)


@command(_FindCommand)
def find(asked: _FindCommand) -> None:
    """Find the known failure that a text, a log or an issue belongs to, with its fix.

    No network is asked. Exit status: 0 it is one that is known; 3 perhaps, by its words
    alone; 1 nothing is known of it.

    Example:  mmrepro find "Expected a cached item"
    """
    from mmrepro.base.errors import ExitCode

    name, found = _found(asked.text)
    if asked.json:
        from mmrepro.cli.console import emit

        emit({"asked": name, "found": [one.to_dict() for one in found]}, "find")
    else:
        for line in _lines(name, found, full=asked.full):
            typer.echo(line)
    if not found:
        raise typer.Exit(ExitCode.NOT_AS_EXPECTED)
    if not any(one.sure == "this" for one in found):
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _found(words: tuple[str, ...]) -> tuple[str, list[IndexHit]]:
    """What was asked, for people, and what was found."""
    from mmrepro.tools.catalogue.find import find as search, is_reference

    if len(words) == 1 and not is_reference(words[0]) and _is_file(words[0]):
        name = "standard input" if words[0] == "-" else words[0]
        return name, _in_file(Path(words[0]))
    text = " ".join(words)
    return text, search(text, known())


def known() -> tuple[IndexEntry, ...]:
    """The index, and scenarios of other distributions than mmrepro's."""
    from mmrepro.tools.catalogue.find import entries

    others = foreign()
    if not others:
        return entries()
    from mmrepro.cli.find_index import others_of

    made = [
        one for one in entries() if one.kind != "scenario" or one.name not in others
    ]
    return (*made, *others_of(sorted(others)))


def foreign() -> set[str]:
    """Scenarios that the index does not have: those of other distributions, also where
    one takes a name of ours."""
    from importlib.metadata import entry_points

    from mmrepro.tools.catalogue.find import entries

    here = {entry.name for entry in entries() if entry.kind == "scenario"}
    points = {point.name: point.module for point in entry_points(group=_GROUP)}
    ours = {
        name for name in here if points.get(name, "").startswith("mmrepro.scenarios.")
    }
    return {*points} - ours


def _is_file(text: str) -> bool:
    """A text may hold what no file's name can."""
    try:
        return text == "-" or Path(text).is_file()
    except (OSError, ValueError):
        return False


def _in_file(path: Path) -> list[IndexHit]:
    """What a log names: by the engine's own words, not its clients', and the cause as
    in ``logs``.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    import tempfile

    from mmrepro.base.errors import UsageError
    from mmrepro.base.text.sanitize import one_line
    from mmrepro.cli.console import while_reading
    from mmrepro.failure.documents.cause import CauseClass
    from mmrepro.live.diagnose.log_reading import NO_CAUSE, matched_in, read_logs
    from mmrepro.probes.data import DumpKind, LogPattern
    from mmrepro.probes.dumps import kind_of, text_of
    from mmrepro.probes.log_files import kept
    from mmrepro.tools.catalogue.find import IndexHit, find as search

    entries = known()
    classes = {entry.name: entry for entry in entries if entry.kind == "class"}
    failures = [entry for entry in entries if entry.kind != "class"]
    patterns = {
        p.regex: LogPattern(p.regex, *p.texts) for e in failures for p in e.patterns
    }
    with while_reading(), tempfile.TemporaryDirectory(prefix="mmrepro-find-") as folder:
        [file] = kept([path], Path(folder))
        kind = kind_of(file)
        if kind is DumpKind.REQUESTS:
            raise UsageError(
                f"{path} is a dump of requests, no text.", hint=f"mmrepro logs {path}"
            )
        if kind is not None:
            return search(text_of(file), entries)
        reading = read_logs([file], alone=True, deadline_s=_DEADLINE_S, more=patterns)
        for why in reading.log.unread.values():
            typer.echo(one_line(f"{path}: {why}.", 300), err=True)
        cause = reading.cause
        if cause.name is CauseClass.NOT_A_LOG:
            return search(text_of(file), entries)
    found = search("", failures, matched=matched_in(reading.log))
    named = cause.name not in {*NO_CAUSE, CauseClass.ENGINE_DEFECT}
    if named and (entry := classes.get(cause.name.value)):
        because = (
            f"line {cause.line}: {cause.exception}"
            if cause.exception
            else cause.sentence
        )
        found.append(
            IndexHit(
                entry, "perhaps" if cause.certainty == "possible" else "this", [because]
            )
        )
    return sorted(found, key=lambda one: one.sure != "this")


def _lines(asked: str, found: list[IndexHit], *, full: bool) -> Iterator[str]:
    from mmrepro.base.text.sanitize import one_line
    from mmrepro.tools.catalogue.find import is_echo

    sure = [one for one in found if one.sure == "this"]
    perhaps = [one for one in found if one.sure != "this"]
    shown = repr(one_line(asked, 50))
    if not found:
        yield f"{shown}: nothing that mmrepro knows has these words."
        if is_echo(asked):
            yield "It is an echo: what failed was logged before it."
        yield (
            "Next: mmrepro logs FILE judges a whole log; mmrepro list has all "
            "known failures"
        )
        return
    if sure:
        yield f"{shown}: this is {'one of these' if len(sure) > 1 else ''}".rstrip()
    else:
        yield f"{shown}: perhaps one of these"
    main = sure or perhaps
    for one in main if full else main[:_SHOWN]:
        for name, text in _rows(one, full=full):
            head = f"  {name:<11}" if name else ""
            yield head + (text if full else one_line(text, _WIDTH - len(head)))
    more = [
        one.entry.name
        for one in [*([] if full else main[_SHOWN:]), *(perhaps if sure else [])]
    ]
    if more:
        yield one_line(f"Less near: {', '.join(more)}  (--full)", _WIDTH)


def _rows(one: IndexHit, *, full: bool) -> Iterator[tuple[str, str]]:
    entry = one.entry
    engine = f", {entry.engine}" if entry.engine else ""
    affected = (
        f" {entry.affected.removeprefix(entry.engine).strip()}"
        if entry.affected
        else ""
    )
    yield "", f"{entry.name} ({entry.kind}{engine}{affected}): {entry.title}"
    yield from (
        ("because", text) for text in (one.because if full else one.because[:1])
    )
    if entry.fixed:
        yield "fix", entry.fixed
    advice = "workaround" if entry.kind != "class" else "do"
    yield from (
        (advice, text)
        for text in (entry.workarounds if full else entry.workarounds[:1])
    )
    see = [*entry.see, *(f"{id_} {url}" for id_, _, url in entry.references)]
    if full:
        yield from (("see", text) for text in see)
    elif see:
        yield "see", "; ".join(see[:2])
