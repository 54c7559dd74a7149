"""What ran here: ``mmrepro incidents``, ``mmrepro open`` and ``mmrepro resume``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.console import done_head, emit
from mmrepro.cli.options import command
from mmrepro.failure.documents import LAST_HERE, Here, place_here, places_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mmrepro.failure.documents import IncidentHead, ListedCampaign, Listing
    from rich.console import Console

_STYLES = {
    "reproduced": "red",
    "different-failure": "magenta",
    "not-reproduced": "green",
    "inconclusive": "yellow",
    "failed": "yellow",
}


class RunEnding(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    DIFFERENT_FAILURE = "different-failure"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    DIAGNOSIS = "diagnosis"


@dataclass(frozen=True)
class _IncidentsCommand(Command):
    COMMAND: ClassVar[str] = "incidents"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.listing:IncidentsDocument",
    )
    roots: tuple[Path, ...] = option(
        (),
        "Folders to look below.",
        "DIR…",
        argument=True,
        shown="incidents, ablations, bisections, nights and other ledgers' folders, in "
        "the current one",
    )
    scenario: str = option("", "Only this scenario; * matches anything.", "NAME")
    engine: str = common.ENGINE_NAME("", help="Only this engine.", configurable=False)
    release: str = common.RELEASE(
        "",
        help="Only this release, or a range: '>=0.14, <0.24'.",
        shown="",
        configurable=False,
    )
    outcome: tuple[RunEnding, ...] = option(
        (),
        f"Only those that ended so: {', '.join(RunEnding)}. May be repeated.",
        "OUTCOME",
    )
    since: str = option(
        "", "Only those since then: 90m, 12h, 2d, 3w, or a date (UTC).", "TIME"
    )
    limit: int = option(20, "Maximum number of lines.", "N", OUTPUT, least=1)
    open_: str = option("", "The same as mmrepro open.", "N|ID", OUTPUT)
    verbose: bool = common.VERBOSE(
        False, help="Print how to continue each campaign, too."
    )
    json: bool = common.JSON(False)


@command(_IncidentsCommand)
def incidents(asked: _IncidentsCommand) -> None:
    """List the incidents that lie here, newest first, then the campaigns.

    Other commands take the numbers: mmrepro open 3, mmrepro report last.

    Example:  mmrepro incidents --scenario ghost-key-eviction --since 2d
    """
    from mmrepro.failure.documents import RecordFilter, find_incidents

    if asked.open_:
        show_page(Path(asked.open_))
        return
    wanted = RecordFilter(
        asked.scenario, asked.engine, asked.release, asked.outcome, asked.since
    )
    listing = find_incidents(asked.roots, wanted)
    if asked.json:
        document = listing.document(asked.limit)
        head = done_head(
            "listed", f"{units.count(document.found, 'incident')} found here."
        )
        emit(document, head)
    else:
        _table(listing, asked)


def _table(listing: Listing, asked: _IncidentsCommand) -> None:
    """Print incidents, then campaigns, each newest first."""
    from mmrepro.base.text import one_line, wrapped
    from rich.console import Console

    console = Console(highlight=False)
    # A file is not cut to 80 columns.
    if not console.is_terminal:
        console = Console(highlight=False, width=1000)

    def line(text: str, style: str = "") -> None:
        if console.is_terminal:
            text = wrapped(text, console.width, hang=4)
        console.print(text, style=style, markup=False, soft_wrap=True)

    limit, incidents = asked.limit, listing.incidents
    if incidents:
        _rows(incidents[:limit], console)
    else:
        places = ", ".join(map(str, places_of(asked.roots)))
        line(f"No such incident below {one_line(places, 400) or 'the current folder'}.")
    if len(incidents) > limit:
        line(f"{limit} of {len(incidents)}; --limit {len(incidents)} shows all")
    if listing.broken:
        first = listing.broken[0]
        example = one_line(f"{first.folder}: {first.why}", 400)
        number = units.count(len(listing.broken), "incident")
        line(f"{number} could not be read, e.g. {example}")

    campaigns = listing.campaigns
    if campaigns:
        line("\nCampaigns", "bold")
    for row, listed in campaigns[:limit]:
        for text in _campaign_lines(row, listed, verbose=asked.verbose):
            line(text)
    if len(campaigns) > limit:
        line(
            f"{limit} of {len(campaigns)} campaigns; --limit {len(campaigns)} shows all"
        )


def _campaign_lines(row: Here, listed: ListedCampaign, *, verbose: bool) -> list[str]:
    """A campaign's line, and with ``verbose`` the command that goes on with it."""
    from mmrepro.base.text import one_line
    from mmrepro.failure.documents import campaign_facts

    fields = campaign_facts(row, listed)
    when = f"{listed.head.created.wall:%Y-%m-%d %H:%M}" if listed.head else "–"
    words = [
        str(row.number),
        when,
        row.kind,
        fields["what"] or fields["why"],
        fields["state"],
        fields["folder"],
    ]
    lines = ["  ".join(one_line(word, 200) for word in words)]
    if verbose and fields["resume"]:
        lines.append(f"  to go on: {fields['resume']}")
    return lines


_COLUMNS = (
    "#",
    "when (UTC)",
    "scenario",
    "engine",
    "outcome",
    "expected",
    "fidelity",
    "took",
)


def _rows(incidents: Sequence[tuple[Here, IncidentHead]], console: Console) -> None:
    """One line each, the folder at its end; on a narrow terminal on a line of its
    own, and on a narrower one without columns."""
    from mmrepro.base.text import one_line, wrapped
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    rows: list[list[str]] = []
    folders: list[str] = []
    for row, head in incidents:
        cells = [str(row.number), *_row(head)]
        rows.append([one_line(cell, 200) for cell in cells])
        folders.append(one_line(str(row.folder), 400))
    widths = [
        max(cell_len(cell) for cell in column)
        for column in zip(_COLUMNS, *rows, strict=True)
    ]
    gaps = 2 * len(widths)
    if sum(widths) + gaps > console.width:
        for cells, folder in zip(rows, folders, strict=True):
            *facts, expected, fidelity, took = cells
            facts += [f"expected: {expected}", fidelity, f"took {took}", folder]
            text = wrapped("  ".join(facts), console.width, hang=4)
            console.print(text, markup=False, soft_wrap=True)
        return
    longest = max(cell_len(folder) for folder in folders)
    wide = sum(widths) + gaps + longest <= console.width

    def show(cells: Sequence[str], styles: Mapping[int, str], folder: str) -> None:
        parts: list[Text] = []
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            parts.append(Text(set_cell_size(cell, width), styles.get(number, "")))
        text = Text("  ").join(parts)
        text.append(f"  {folder}" if wide else f"\n{' ' * widths[0]}  {folder}", "dim")
        console.print(text, soft_wrap=True)

    show(_COLUMNS, dict.fromkeys(range(len(_COLUMNS)), "bold"), "folder")
    for cells, folder, (_, head) in zip(rows, folders, incidents, strict=True):
        wrong = "bold red" if head.as_expected is False else ""
        show(cells, {0: "dim", 4: _STYLES.get(head.outcome, ""), 5: wrong}, folder)


def _row(head: IncidentHead) -> Iterator[str]:
    """The cells of an incident, but for its number and its folder."""
    from datetime import UTC

    yield f"{head.created.wall.astimezone(UTC):%Y-%m-%d %H:%M}"
    variant = f" ({head.scenario.variant})" if head.scenario.variant else ""
    yield f"{head.scenario.name}{variant}"
    yield f"{head.engine.name} {head.engine.release}"
    failed = head.outcome == "failed" and head.failure_class
    yield f"failed ({head.failure_class})" if failed else head.outcome
    yield {True: "yes", False: "no", None: "–"}[head.as_expected]
    yield head.fidelity.value
    yield "–" if head.seconds is None else units.duration(head.seconds)


# ---------------------------------------------------------------- mmrepro open


@dataclass(frozen=True)
class _OpenCommand(Command):
    COMMAND: ClassVar[str] = "open"
    folder: Path = common.PLACE(Path(LAST_HERE), required=False, shown=LAST_HERE)
    print: bool = option(
        False, "Print the path of the page; open nothing.", group=OUTPUT
    )


@command(_OpenCommand)
def open_(asked: _OpenCommand) -> None:
    """Open the HTML page of an incident or a campaign in the browser.

    Without a display, or off a terminal, its path is printed.

    Example:  mmrepro open last
    """
    show_page(asked.folder, only_print=asked.print)


def show_page(given: Path, *, only_print: bool = False) -> None:
    """Open the page of what is in ``given``; off a terminal, print its path."""
    import sys
    import webbrowser

    from mmrepro.base.text import plain
    from mmrepro.cli.report import page_of

    page = page_of(place_here(given, "record"))
    if only_print or not (
        sys.stdout.isatty() and webbrowser.open(page.resolve().as_uri())
    ):
        typer.echo(plain(str(page)) if sys.stdout.isatty() else str(page))


# ---------------------------------------------------------------- mmrepro resume


@dataclass(frozen=True)
class _ResumeCommand(Command):
    COMMAND: ClassVar[str] = "resume"
    folder: Path = common.PLACE(
        Path(),
        help="The campaign: its folder, number, id, or last.",
        names="unfinished",
    )
    more: tuple[str, ...] = option(
        (), "After --: options of its own command.", "[-- OPTIONS]", argument=True
    )
    trust: bool = common.TRUST(
        False,
        help=(
            "Run the FILE.pys and options for servers that the folder names. "
            "Read it first."
        ),
    )


def _code_in(written: Sequence[str]) -> str:
    """The first word of a recorded command that decides which code runs; "": none does.

    A campaign's folder may be somebody else's, and so is the command in it.
    """
    from mmrepro.base.options import declared
    from mmrepro.cli.app import declared_command
    from mmrepro.scenario.registry import is_file_name

    made = declared_command(written)
    # --trust is such an option too: nobody says it for who resumes.
    dangerous: set[str] = set()
    for known in declared(made):
        if known.option.runs_code:
            dangerous.update(known.name.split("/"))
    dangerous.discard("--box")  # the other word of its switch does without one
    for word in written:
        name, _, value = word.partition("=")
        if name in dangerous or is_file_name(word) or is_file_name(value):
            return word
    return ""


def _trusting(written: Sequence[str], asked: _ResumeCommand) -> list[str]:
    """``--trust``, for a command that asks for it again: the ledger of a matrix names
    files too."""
    from mmrepro.cli.app import declared_command

    takes_it = hasattr(declared_command(written), "trust")
    return ["--trust"] if asked.trust and takes_it and "--trust" not in written else []


@command(_ResumeCommand)
def resume(asked: _ResumeCommand) -> None:
    """Continue a campaign: a matrix, bisection, ablation, replay or fuzz
    session. No run that has ended is repeated.

    Example:  mmrepro resume nights -- --budget 1h
    """
    from mmrepro.base.errors import UntrustedFile
    from mmrepro.base.text import one_line
    from mmrepro.cli.app import app
    from mmrepro.failure.documents import resume_words

    written = resume_words(asked.folder)
    if not asked.trust and (code := _code_in(written)):
        raise UntrustedFile(
            f"The campaign in {asked.folder} was written with {one_line(code, 200)}, "
            "which decides which code runs here."
        )
    words = [*written, *_trusting(written, asked), *asked.more]
    typer.echo(one_line(shlex.join(["mmrepro", *words]), 2000), err=True)
    code = app(words, prog_name="mmrepro", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)
