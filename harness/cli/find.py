"""``mmrepro find``: which known failure a text, a log or an issue belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.errors import ExitCode
from mmrepro.base.options import Command, option
from mmrepro.cli.console import say, wants_document
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.failure.documents import Cause
    from mmrepro.history import LaterFix
    from mmrepro.probes import LogPattern
    from mmrepro.tools.catalogue import IndexEntry, IndexHit

"""Entry points with which distributions add scenarios (mmrepro.scenario.registry)."""
_SHOWN = 3
"""Of what it is, and of what it may be."""
_HANG = 13
"""Columns of the word before a text."""
_MOST = 4000
_DEADLINE_S = 600.0


@dataclass(frozen=True)
class _FindCommand(Command):
    COMMAND: ClassVar[str] = "find"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.cli.documents:FindDocument",)
    text: tuple[str, ...] = option(
        (),
        "A message, a traceback, an issue (vllm#43941, its address), a log file, or - "
        "for standard input.",
        "TEXT|LOG|ISSUE…",
        argument=True,
        required=True,
    )
    full: bool = common.FULL(
        False, help="Print all matches, and all that is known about each."
    )
    json: bool = common.JSON(False)


@command(_FindCommand)
def find(asked: _FindCommand) -> None:
    """Find the known failure that a text, a log or an issue belongs to, with its fix.

    No network is asked.

    Example:  mmrepro find "Expected a cached item"
    """
    name, hits, later = _search(asked.text)
    status, code = "known", ExitCode.AS_EXPECTED
    if not hits:
        status, code = "unknown", ExitCode.NOT_AS_EXPECTED
    elif not any(hit.sure == "this" for hit in hits):
        status, code = "perhaps", ExitCode.INCONCLUSIVE
    if wants_document(asked):
        _emit(name, hits, later, status, code, printed=asked.json)
    if asked.json:
        raise typer.Exit(code)
    for line in _lines(name, hits, full=asked.full):
        say(line, hang=_HANG if line.startswith("  ") else 2)
    for line in later_lines(later):
        say(line, hang=_HANG if line.startswith("  ") else 2)
    raise typer.Exit(code)


def _emit(
    asked: str,
    hits: Sequence[IndexHit],
    later: Sequence[LaterFix],
    status: str,
    code: ExitCode,
    *,
    printed: bool,
) -> None:
    from mmrepro.base.records import DocumentHead
    from mmrepro.base.text import one_line
    from mmrepro.cli.console import emit

    summary = f"No known failure contains {one_line(asked, 50)!r}."
    following: list[str] = []
    if hits:
        best = hits[0].entry
        summary = f"{best.name}: {best.title}"
        if best.kind == "scenario":
            following = [f"mmrepro show {best.name}"]
    head = DocumentHead(status=status, exit_code=code, summary=summary, next=following)
    shown = [fix.to_dict() for fix in later]
    found = [hit.to_dict() for hit in hits]
    document = {"asked": asked, "found": found, "later_fixes": shown}
    emit(document, head, "find", printed=printed)


def _search(words: tuple[str, ...]) -> tuple[str, list[IndexHit], list[LaterFix]]:
    """What was asked, for people, what was found, and later fixes of the functions that
    a traceback stands in."""
    from mmrepro.tools.catalogue import find_failures as search, is_reference

    if len(words) == 1 and not is_reference(words[0]) and _is_file(words[0]):
        name = "standard input" if words[0] == "-" else words[0]
        return name, *_in_file(Path(words[0]))
    text = " ".join(words)
    hits = search(text, known())
    start = None if is_reference(text) else _start_hit(text)
    if start is not None and not any(hit.sure == "this" for hit in hits):
        hits = [start, *hits] if start.sure == "this" else [*hits, start]
    return text, hits, _later_in(text)


_KINDS = ("", "RuntimeError: ", "ValueError: ", "OSError: ", "ImportError: ")
"""A message may be given without the exception that has it."""
_LEAST_WORDS = 3


def _start_hit(text: str) -> IndexHit | None:
    """What of a start that failed a text is, by the table of starts; None: nothing."""
    from mmrepro.engines.starts import start_cause
    from mmrepro.probes import LineReader

    if len(text.split()) < _LEAST_WORDS:
        return None
    for kind in _KINDS:
        lines = LineReader().take(f"{kind}{text}".encode(), last=True)
        failed = start_cause(lines)
        if failed is not None:
            because = failed.exception or text
            advice = tuple(failed.advice)
            sure = failed.certain
            return _hit_of_start(
                failed.fault.value, failed.sentence, advice, because, certain=sure
            )
    return None


def _hit_of_start(
    name: str, sentence: str, advice: Sequence[str], because: str, *, certain: bool
) -> IndexHit:
    from mmrepro.tools.catalogue import IndexEntry, IndexHit

    entry = IndexEntry(
        kind="class",
        name=name,
        title=sentence,
        workarounds=tuple(advice),
        see=("mmrepro help why",),
    )
    return IndexHit(entry, "this" if certain else "perhaps", [because])


def _later_in(text: str) -> list[LaterFix]:
    if "File " not in text:  # no frame of a traceback
        return []
    from mmrepro.live.diagnose import later_fixes_in

    return later_fixes_in(text)


def later_lines(fixes: Sequence[LaterFix]) -> Iterator[str]:
    """Lines on later fixes that touched the functions of a traceback."""
    if not fixes:
        return
    from mmrepro.base.text import one_line

    first = fixes[0]
    until = f"of those until {first.until}, newest first"
    yield f"Later fixes near these functions ({first.certainty}; {until}):"
    for fix in fixes:
        yield one_line(f"  {fix.sentence}", _MOST)


def known() -> tuple[IndexEntry, ...]:
    """The index, and scenarios of other distributions than mmrepro's."""
    from mmrepro.tools.catalogue import foreign_scenarios, index_entries

    others = foreign_scenarios()
    if not others:
        return index_entries()
    from mmrepro.cli.find_index import others_of

    own: list[IndexEntry] = []
    for entry in index_entries():
        if entry.kind != "scenario" or entry.name not in others:
            own.append(entry)
    return (*own, *others_of(sorted(others)))


def _is_file(text: str) -> bool:
    """A text may hold what no file's name can."""
    try:
        return text == "-" or Path(text).is_file()
    except (OSError, ValueError):
        return False


def _in_file(path: Path) -> tuple[list[IndexHit], list[LaterFix]]:
    """What a log names: by the engine's own words, not its clients', and the cause as
    in ``logs``; and later fixes of what its traceback stands in.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    import tempfile

    from mmrepro.base.errors import UsageError
    from mmrepro.base.text import one_line
    from mmrepro.cli.console import while_reading
    from mmrepro.failure.documents import CauseClass
    from mmrepro.live.diagnose import later_fixes_of, matched_in, read_logs
    from mmrepro.probes import DumpKind
    from mmrepro.probes.dumps import kind_of, text_of
    from mmrepro.probes.log_files import kept
    from mmrepro.tools.catalogue import find_failures as search

    entries = known()
    failures = [entry for entry in entries if entry.kind != "class"]
    with while_reading(), tempfile.TemporaryDirectory(prefix="mmrepro-find-") as folder:
        [file] = kept([path], Path(folder))
        kind = kind_of(file)
        if kind is DumpKind.REQUESTS:
            raise UsageError(
                f"{path} is a dump of requests, no text.", hint=f"mmrepro logs {path}"
            )
        if kind is not None:
            return search(text_of(file), entries), []
        reading = read_logs(
            [file], alone=True, deadline_s=_DEADLINE_S, more=_patterns(failures)
        )
        for why in reading.log.unread.values():
            say(one_line(f"{path}: {why}.", 300), stderr=True)
        if reading.cause.name is CauseClass.NOT_A_LOG:
            text = text_of(file)
            return search(text, entries), _later_in(text)
        later = later_fixes_of(reading)

    hits = search("", failures, matched=matched_in(reading.log))
    of_cause = _hit_of(reading.cause, entries)
    if of_cause is not None:
        hits.append(of_cause)
    start = reading.cause.start
    if start is not None:
        because = reading.cause.exception or start.sentence
        certain = reading.cause.certainty != "possible"
        hit = _hit_of_start(
            start.name, start.sentence, start.advice, because, certain=certain
        )
        hits.append(hit)
    return sorted(hits, key=lambda hit: hit.sure != "this"), later


def _patterns(entries: Sequence[IndexEntry]) -> dict[str, LogPattern]:
    """The patterns of entries, to be searched for in a log, by their expressions."""
    from mmrepro.probes import LogPattern

    patterns: dict[str, LogPattern] = {}
    for entry in entries:
        for pattern in entry.patterns:
            patterns[pattern.regex] = LogPattern(pattern.regex, *pattern.texts)
    return patterns


def _hit_of(cause: Cause, entries: Sequence[IndexEntry]) -> IndexHit | None:
    """The class of a log's cause; None: the cause is no failure of a known class."""
    from mmrepro.failure.documents import CauseClass
    from mmrepro.live.diagnose import NO_CAUSE
    from mmrepro.tools.catalogue import IndexHit

    # That an engine has a defect says nothing that the log does not say itself.
    if cause.name in {*NO_CAUSE, CauseClass.ENGINE_DEFECT}:
        return None
    classes = {entry.name: entry for entry in entries if entry.kind == "class"}
    entry = classes.get(cause.name.value)
    if entry is None:
        return None
    because = cause.sentence
    if cause.exception:
        because = f"line {cause.line}: {cause.exception}"
    if cause.certainty == "possible":
        return IndexHit(entry, "perhaps", [because])
    return IndexHit(entry, "this", [because])


def _lines(asked: str, hits: list[IndexHit], *, full: bool) -> Iterator[str]:
    from mmrepro.base.text import one_line
    from mmrepro.tools.catalogue import is_echo

    sure = [hit for hit in hits if hit.sure == "this"]
    perhaps = [hit for hit in hits if hit.sure != "this"]
    shown = repr(one_line(asked, 50))
    if not hits:
        yield f"No known failure contains {shown}."
        if is_echo(asked):
            yield "It is an echo: what failed was logged before it."
        yield (
            "Next: mmrepro logs FILE judges a whole log; mmrepro list has all "
            "known failures"
        )
        return

    if len(sure) > 1:
        yield f"{len(sure)} known failures match {shown}:"
    elif sure:
        yield f"1 known failure matches {shown}:"
    else:
        yield f"No known failure matches {shown} for certain. By its words, perhaps:"
    main = sure or perhaps
    for hit in main if full else main[:_SHOWN]:
        for name, text in _rows(hit, full=full):
            head = f"  {name:<11}" if name else ""
            yield head + one_line(text, _MOST)

    left = [] if full else main[_SHOWN:]
    if sure:
        left = [*left, *perhaps]
    if left:
        names = ", ".join(hit.entry.name for hit in left)
        yield one_line(f"Weaker matches: {names} (--full)", _MOST)


_OF_PATTERN = re.compile(r"its ([\w-]+): (.*)", re.DOTALL)


def _matched(because: str) -> str:
    """What of the text matches, before the name of the pattern that says so."""
    fit = _OF_PATTERN.fullmatch(because)
    return f"{fit[2]} ({fit[1]})" if fit else because


def _rows(hit: IndexHit, *, full: bool) -> Iterator[tuple[str, str]]:
    """What is known of a failure: a word, and a line. Without ``full``, the first of
    each kind."""
    entry = hit.entry
    what: str = entry.kind
    if entry.engine:
        what += f", {entry.engine}"
    if entry.affected:
        what += f" {entry.affected.removeprefix(entry.engine).strip()}"
    yield "", f"{entry.name} ({what}): {entry.title}"

    for text in hit.because if full else hit.because[:1]:
        yield "matches", _matched(text)
    if entry.fixed:
        yield "fix", entry.fixed
    advice = "workaround" if entry.kind != "class" else "do"
    for text in entry.workarounds if full else entry.workarounds[:1]:
        yield advice, text

    see = list(_openable(entry.see))
    see += [f"{id_} {url}" for id_, _, url in entry.references]
    if full:
        for text in see:
            yield "see", text
    elif see:
        yield "see", "; ".join(see[:2])


def _openable(places: Iterable[str]) -> Iterator[str]:
    """Yield what can be opened here: a page below docs/ is no part of the package."""
    from mmrepro.base.installed import checkout_folder

    for place in places:
        if checkout_folder() is not None or not place.startswith("docs/"):
            yield place
