"""What ran here: ``mmrepro incidents``, ``mmrepro open`` and ``mmrepro resume``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.errors import UsageError
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.console import emit
from mmrepro.cli.options import command
from mmrepro.failure.documents.here import LAST, LISTS, Here, here, place, places_of, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from mmrepro.failure.documents.head import CampaignHead, Found, Head, Listed
    from rich.console import Console

STYLES = {
    "reproduced": "red",
    "different-failure": "magenta",
    "not-reproduced": "green",
    "inconclusive": "yellow",
    "failed": "yellow",
}


class Ended(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    DIFFERENT_FAILURE = "different-failure"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    DIAGNOSIS = "diagnosis"


@dataclass(frozen=True)
class IncidentsCommand(Command):
    COMMAND: ClassVar[str] = "incidents"
    roots: tuple[Path, ...] = option(
        (),
        "Folders to look below.",
        "DIR…",
        argument=True,
        shown="incidents, ablations, bisections, nights and other ledgers' folders, in the "
        "current one",
    )
    scenario: str = option("", "Only this scenario; * stands for anything.", "NAME")
    engine: str = common.ENGINE_NAME("", help="Only this engine.", configurable=False)
    release: str = common.RELEASE(
        "",
        help="Only this release, or a range: '>=0.14, <0.24'.",
        shown="",
        configurable=False,
    )
    outcome: tuple[Ended, ...] = option(
        (), f"Only those that ended so: {', '.join(Ended)}. May be repeated.", "OUTCOME"
    )
    since: str = option("", "Only those since then: 90m, 12h, 2d, 3w, or a date (UTC).", "TIME")
    limit: int = option(20, "Maximum number of lines.", "N", OUTPUT, least=1)
    open_: str = option("", "The same as mmrepro open.", "N|ID", OUTPUT)
    verbose: bool = common.VERBOSE(False, help="Print how to continue each campaign, too.")
    json: bool = common.JSON(False)


@command(IncidentsCommand)
def incidents(asked: IncidentsCommand) -> None:
    """List the incidents that lie here, newest first, then the campaigns.

    Other commands take the numbers: mmrepro open 3, mmrepro report last.

    Example:  mmrepro incidents --scenario ghost-key-eviction --since 2d
    """
    if asked.open_:
        _show(Path(asked.open_))
        return
    wanted = _filter(asked)
    rows, broken = here(asked.roots)
    filtered = asked.engine or asked.release or asked.outcome
    found: list[tuple[Here, Head]] = []
    campaigns: list[tuple[Here, Listed]] = []
    for one in rows:
        head: Any = one.of.head
        if one.kind != "incident":
            if head is None or _of(head, asked.scenario, asked.since, filtered=filtered):
                campaigns.append((one, one.of))  # type: ignore[arg-type]
        elif wanted(head):
            found.append((one, head))
    if asked.json:
        emit(
            {
                "found": len(found),
                "incidents": [_fields(one, head) for one, head in found[: asked.limit]],
                "campaigns": [_campaign(*one) for one in campaigns[: asked.limit]],
                "unreadable": [{"folder": str(one.folder), "why": one.why} for one in broken],
            }
        )
    else:
        _table(found, broken, campaigns, asked)


def _of(head: CampaignHead, scenario: str, since: str, *, filtered: object) -> bool:
    """Whether a campaign is asked for; ``filtered``: by what only an incident has."""
    from fnmatch import fnmatchcase

    if filtered or (scenario and not fnmatchcase(getattr(head.scenario, "name", ""), scenario)):
        return False
    return not since or head.created.wall.timestamp() >= _time(since).timestamp()


def _filter(asked: IncidentsCommand) -> Callable[[Head], bool]:
    """Raises UsageError: a range or a time that is none."""
    from fnmatch import fnmatchcase

    begin = _time(asked.since) if asked.since else None
    of_release = _releases(asked.release)

    def wanted(head: Head) -> bool:
        return (
            fnmatchcase(head.scenario.name, asked.scenario or "*")
            and asked.engine in ("", head.engine.name)
            and of_release(head.engine.release)
            and (not asked.outcome or head.outcome in asked.outcome)
            and (begin is None or head.created.wall.timestamp() >= begin.timestamp())
        )

    return wanted


def _releases(text: str) -> Callable[[str], bool]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    if not text or text[0] not in "<>=!~":
        return lambda release: not text or release == text
    try:
        known = SpecifierSet(text)
    except InvalidSpecifier:
        raise UsageError(
            f"{text!r} is no range of releases.", hint=f"{LISTS} --release '>=0.14, <0.24'"
        ) from None

    def contains(release: str) -> bool:
        try:
            return known.contains(release, prereleases=True)
        except InvalidVersion:
            return False

    return contains


def _time(text: str) -> datetime:
    from datetime import UTC, datetime, timedelta

    try:
        try:
            when = datetime.fromisoformat(text.strip())
        except ValueError:
            when = datetime.now(UTC) - timedelta(seconds=units.parse_duration(text))
    except UsageError:
        raise UsageError(
            f"{text!r} is no time.", hint=f"{LISTS} --since 2d, or --since 2026-11-22"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _fields(one: Here, head: Head) -> dict[str, Any]:
    return {
        "number": one.number,
        "id": head.id,
        "created": head.created.wall.isoformat(),
        "scenario": head.scenario.name,
        "variant": head.scenario.variant,
        "engine": head.engine.name,
        "release": head.engine.release,
        "outcome": head.outcome,
        "as_expected": head.as_expected,
        "fidelity": head.fidelity.value,
        "seconds": None if head.seconds is None else round(head.seconds, 2),
        "failure": head.failure,
        "command": head.command,
        "folder": str(one.folder),
    }


def _campaign(one: Here, listed: Listed) -> dict[str, Any]:
    head = listed.head
    left = head is not None and unfinished(listed)
    return {
        "number": one.number,
        "kind": one.kind,
        "folder": str(one.folder),
        "state": head.state if head else "unreadable",
        "created": head.created.wall.isoformat() if head else "",
        "what": head.what if head else "",
        "why": listed.why or (head.failure if head else ""),
        "command": head.command if head else "",
        "resume": f"mmrepro resume {shlex.quote(str(one.folder))}" if left else "",
    }


def _table(
    found: Sequence[tuple[Here, Head]],
    broken: Sequence[Found],
    campaigns: Sequence[tuple[Here, Listed]],
    asked: IncidentsCommand,
) -> None:
    from mmrepro.base.text.sanitize import one_line
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file is not cut to 80 columns
        console = Console(highlight=False, width=1000)

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    limit = asked.limit
    if found:
        _rows(found[:limit], console)
    if len(found) > limit:
        line(f"{limit} of {len(found)}; --limit {len(found)} shows all")
    if not found:
        where = one_line(", ".join(map(str, places_of(asked.roots))), 400) or "the current folder"
        line(f"No such incident below {where}.")
    if broken:
        first = one_line(f"{broken[0].folder}: {broken[0].why}", 400)
        many = "incident" if len(broken) == 1 else "incidents"
        line(f"{len(broken)} {many} could not be read, e.g. {first}")
    if campaigns:
        line("\nCampaigns", "bold")
    for one, listed in campaigns[:limit]:
        fields = _campaign(one, listed)
        when = f"{listed.head.created.wall:%Y-%m-%d %H:%M}" if listed.head else "–"
        words = [str(one.number), when, one.kind, fields["what"] or fields["why"]]
        words += [fields["state"], fields["folder"]]
        line("  ".join(one_line(word, 200) for word in words))
        if asked.verbose and fields["resume"]:
            line(f"  to go on: {fields['resume']}")
    if len(campaigns) > limit:
        line(f"{limit} of {len(campaigns)} campaigns; --limit {len(campaigns)} shows all")


COLUMNS = ("#", "when (UTC)", "scenario", "engine", "outcome", "expected", "fidelity", "took")


def _rows(found: Sequence[tuple[Here, Head]], console: Console) -> None:
    """One line each, the folder at its end; on a narrow terminal on a line of its own."""
    from mmrepro.base.text.sanitize import one_line
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    rows = [[one_line(cell, 200) for cell in (str(one.number), *_row(head))] for one, head in found]
    folders = [one_line(str(one.folder), 400) for one, _ in found]
    widths = [max(map(cell_len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    wide = sum(widths) + 2 * len(widths) + max(map(cell_len, folders)) <= console.width

    def show(cells: Sequence[str], styles: Mapping[int, str], folder: str) -> None:
        padded = zip(cells, widths, strict=True)
        pairs = [(set_cell_size(text, n), styles.get(i, "")) for i, (text, n) in enumerate(padded)]
        text = Text("  ").join(Text(*pair) for pair in pairs)
        text.append(f"  {folder}" if wide else f"\n{' ' * widths[0]}  {folder}", "dim")
        console.print(text, soft_wrap=True)

    show(COLUMNS, dict.fromkeys(range(len(COLUMNS)), "bold"), "folder")
    for cells, folder, (_, head) in zip(rows, folders, found, strict=True):
        wrong = "bold red" if head.as_expected is False else ""
        show(cells, {0: "dim", 4: STYLES.get(head.outcome, ""), 5: wrong}, folder)


def _row(head: Head) -> Iterator[str]:
    from datetime import UTC

    yield f"{head.created.wall.astimezone(UTC):%Y-%m-%d %H:%M}"
    yield head.scenario.name + (f" ({head.scenario.variant})" if head.scenario.variant else "")
    yield f"{head.engine.name} {head.engine.release}"
    failed = head.outcome == "failed" and head.failure_class
    yield f"failed ({head.failure_class})" if failed else head.outcome
    yield {True: "yes", False: "no", None: "–"}[head.as_expected]
    yield head.fidelity.value
    yield "–" if head.seconds is None else units.duration(head.seconds)


# ---------------------------------------------------------------- mmrepro open


@dataclass(frozen=True)
class OpenCommand(Command):
    COMMAND: ClassVar[str] = "open"
    folder: Path = common.PLACE(Path(LAST), required=False, shown=LAST)
    print: bool = option(False, "Print the path of the page; open nothing.", group=OUTPUT)


@command(OpenCommand)
def open_(asked: OpenCommand) -> None:
    """Open the HTML page of an incident or a campaign in the browser.

    Without a display, or off a terminal, its path is printed.

    Example:  mmrepro open last
    """
    _show(asked.folder, only_print=asked.print)


def _show(given: Path, *, only_print: bool = False) -> None:
    import sys
    import webbrowser

    from mmrepro.base.text.sanitize import plain
    from mmrepro.cli.report import page_of

    page = page_of(place(given, "record"))
    if only_print or not (sys.stdout.isatty() and webbrowser.open(page.resolve().as_uri())):
        typer.echo(plain(str(page)) if sys.stdout.isatty() else str(page))


# ---------------------------------------------------------------- mmrepro resume

IN_THE_PLAN = ("--scenario", "--night", "--shard")
"""Options of a nightly run whose outcome is written down; no other kind has them."""


@dataclass(frozen=True)
class ResumeCommand(Command):
    COMMAND: ClassVar[str] = "resume"
    folder: Path = common.PLACE(
        Path(), help="The campaign: its folder, number, id, or last.", names="unfinished"
    )
    more: tuple[str, ...] = option(
        (), "After --: options of its own command.", "[-- OPTIONS]", argument=True
    )


@command(ResumeCommand)
def resume(asked: ResumeCommand) -> None:
    """Continue a campaign: a matrix, bisection, ablation, acceptance, replay or fuzz session.
    No run that has ended is repeated.

    Example:  mmrepro resume nights -- --budget 1h
    """
    from mmrepro.base.text.sanitize import one_line
    from mmrepro.cli.app import app

    words = [*words_of(_left(asked.folder), asked.folder), *asked.more]
    typer.echo(one_line(shlex.join(["mmrepro", *words]), 2000), err=True)
    code = app(words, prog_name="mmrepro", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)


def _left(folder: Path) -> Listed:
    """The newest campaign there that has something left. Raises UsageError: there is none."""
    from mmrepro.base.machine.files import is_folder
    from mmrepro.failure.documents.head import campaigns_in

    if not is_folder(folder):
        raise UsageError(f"There is no folder {folder}.", hint=LISTS)
    found = list(campaigns_in(folder, {path.name for path in folder.iterdir()}))
    for one in found:
        if one.head is not None and unfinished(one):
            return one
    if not found:
        raise UsageError(f"{folder} holds no campaign to go on with.", hint=LISTS)
    if found[0].head is None:
        raise UsageError(f"The {found[0].kind.name} in {folder} cannot be read: {found[0].why}.")
    reports = {"matrix": "matrix report", "accept": "accept --again --out"}
    report = reports.get(found[0].kind.words[0], "report")
    raise UsageError(
        f"The {found[0].kind.name} in {folder} is complete: nothing is left to run.",
        hint=f"mmrepro {report} {shlex.quote(str(folder))}",
    )


def words_of(one: Listed, folder: Path) -> list[str]:
    """The words that continue it in ``folder``, wherever that lies now.

    Raises:
        UsageError: what is written down there is no command of such a campaign.
    """
    assert one.head is not None
    try:
        program, *given = shlex.split(one.head.resume or one.head.command)
    except ValueError:
        program, given = "", []
    kind = one.kind.words
    if program != "mmrepro" or tuple(given[: len(kind)]) != kind:
        raise UsageError(
            f"What is written in {folder} does not say how to go on with its {one.kind.name}.",
            hint=f"mmrepro {' '.join(kind)} --help",
        )
    named = kind[0] in ("replay", "fuzz")
    with_value = {"--out", *(["--resume"] if named else IN_THE_PLAN)}
    words, value = [], False
    for word in given:
        if word.partition("=")[0] in with_value:
            value = "=" not in word
        elif value or word == "--resume":
            value = False
        else:
            # Documents have ~ in place of the home folder.
            words.append(str(Path(word).expanduser()) if word.startswith("~") else word)
    if named:
        return [*words, "--resume", str(folder)]
    return [*words, "--out", str(folder), *(["--resume"] if kind[0] != "ablate" else [])]
