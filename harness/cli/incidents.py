"""``mmrepro incidents``: what ran here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from mmrepro.incident.head import CampaignHead, Found, Head, Listed
    from rich.console import Console

ROOTS = ("incidents", "ablations", "bisections", "nights", "replays", "fuzz")
"""Where commands put incidents by default."""
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
    scenario: str = option("", "Only of this one; * stands for anything.", "NAME")
    engine: str = common.ENGINE_NAME("", help="Only of this engine.", configurable=False)
    release: str = common.RELEASE(
        "",
        help="Only of this release, or of a range: '>=0.14, <0.24'.",
        shown="",
        configurable=False,
    )
    outcome: tuple[Ended, ...] = option((), "Only those that ended so. May be repeated.")
    since: str = option("", "Only those since then: 90m, 12h, 2d, 3w, or a date (UTC).", "TIME")
    limit: int = option(20, "Maximum number of lines.", "N", OUTPUT, least=1)
    open_: str = option(
        "",
        "Open the HTML report of one in the browser: its number in this list, its id or its "
        "folder's name.",
        "N|ID",
        OUTPUT,
    )
    verbose: bool = option(
        False, "Print what goes on with each campaign, too.", group=OUTPUT, short="-v"
    )
    json: bool = common.JSON(False)


@command(IncidentsCommand)
def incidents(asked: IncidentsCommand) -> None:
    """List the incidents that lie here, newest first, then the campaigns.

    Example:  mmrepro incidents --scenario ghost-key-eviction --since 2d
    """
    from mmrepro.incident.head import campaigns_in, read_head, record_folders
    from mmrepro.incident.model import INCIDENT_FILE

    wanted, places = _filter(asked), _places(asked.roots)
    there = list(record_folders(places))
    read = [read_head(folder) for folder, files in there if INCIDENT_FILE in files]
    filtered = asked.engine or asked.release or asked.outcome
    campaigns = [
        one
        for folder, files in there
        if INCIDENT_FILE not in files
        for one in campaigns_in(folder, files)
        if one.head is None or _of(one.head, asked.scenario, asked.since, filtered=filtered)
    ]
    campaigns.sort(key=lambda one: one.created, reverse=True)
    whole = [(one, one.head) for one in read if one.head is not None and wanted(one.head)]
    whole.sort(key=lambda pair: pair[1].created.wall.timestamp(), reverse=True)
    broken = [one for one in read if one.head is None]
    if asked.open_:
        _open(_chosen(whole, asked.open_))
    elif asked.json:
        _document(whole, broken, campaigns, asked.limit)
    else:
        _table(whole, broken, campaigns, asked.limit, places, verbose=asked.verbose)


def _places(roots: Sequence[Path]) -> list[Path]:
    """Raises UsageError: a folder that was named is not there."""
    from mmrepro.errors import UsageError
    from mmrepro.incident.head import CAMPAIGN_FILES
    from mmrepro.machine.files import is_folder

    for root in roots:
        if not is_folder(root):
            raise UsageError(f"There is no folder {root}.")
    if roots:
        return list(roots)
    others = sorted(path.parent for name in CAMPAIGN_FILES for path in Path().glob(f"*/{name}"))
    here = [Path()] if any(Path(name).is_file() for name in CAMPAIGN_FILES) else []
    return [*dict.fromkeys([*(Path(n) for n in ROOTS if Path(n).is_dir()), *others, *here])]


def _of(head: CampaignHead, scenario: str, since: str, *, filtered: object) -> bool:
    """Whether a campaign is asked for; ``filtered``: by what only an incident has."""
    from fnmatch import fnmatchcase

    if filtered or (scenario and not fnmatchcase(getattr(head.scenario, "name", ""), scenario)):
        return False
    return not since or head.created.wall.timestamp() >= _time(since).timestamp()


def _filter(asked: IncidentsCommand) -> Callable[[Head], bool]:
    """Raises UsageError: a range or a time that is none."""
    from fnmatch import fnmatchcase

    scenario, engine = asked.scenario, asked.engine
    outcomes = {str(one) for one in asked.outcome}
    begin = _time(asked.since) if asked.since else None
    of_release = _releases(asked.release)

    def wanted(head: Head) -> bool:
        if scenario and not fnmatchcase(head.scenario.name, scenario):
            return False
        if (engine and head.engine.name != engine) or not of_release(head.engine.release):
            return False
        if outcomes and head.outcome not in outcomes:
            return False
        return begin is None or head.created.wall.timestamp() >= begin.timestamp()

    return wanted


def _releases(text: str) -> Callable[[str], bool]:
    from mmrepro.errors import UsageError
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    if not text or text[0] not in "<>=!~":
        return lambda release: not text or release == text
    try:
        known = SpecifierSet(text)
    except InvalidSpecifier:
        raise UsageError(
            f"{text!r} is no range of releases.", hint="mmrepro incidents --release '>=0.14, <0.24'"
        ) from None

    def contains(release: str) -> bool:
        try:
            return known.contains(release, prereleases=True)
        except InvalidVersion:
            return False

    return contains


def _time(text: str) -> datetime:
    from datetime import UTC, datetime, timedelta

    from mmrepro.errors import UsageError

    try:
        try:
            when = datetime.fromisoformat(text.strip())
        except ValueError:
            when = datetime.now(UTC) - timedelta(seconds=units.parse_duration(text))
    except UsageError:
        raise UsageError(
            f"{text!r} is no time.", hint="mmrepro incidents --since 2d, or --since 2026-11-22"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _chosen(found: Sequence[tuple[Found, Head]], name: str) -> Path:
    """Raises UsageError: none, or more than one, is called so."""
    from mmrepro.errors import UsageError

    hint = "mmrepro incidents lists them; --open takes their numbers"
    if name.isdecimal() and len(name) < 7:
        if not 1 <= int(name) <= len(found):
            raise UsageError(f"There is no number {name} in a list of {len(found)}.", hint=hint)
        return found[int(name) - 1][0].folder
    named = [one for one, head in found if name in (head.id, one.folder.name, str(one.folder))]
    if len(named) != 1:
        many = f"{len(named)} incidents are" if named else "No incident is"
        raise UsageError(f"{many} called {name}.", hint=hint)
    return named[0].folder


def _open(folder: Path) -> None:
    import sys
    import webbrowser

    from mmrepro.reports import write_reports
    from mmrepro.reports.documents import HTML_FILE

    report = folder / HTML_FILE
    if not report.is_file():  # a run that was killed has made none
        write_reports(folder)
    if not (sys.stdout.isatty() and webbrowser.open(report.resolve().as_uri())):
        typer.echo(str(report))


def _document(
    found: Sequence[tuple[Found, Head]],
    broken: Sequence[Found],
    campaigns: Sequence[Listed],
    limit: int,
) -> None:
    import json as jsonlib

    document = {
        "found": len(found),
        "incidents": [_fields(one.folder, head) for one, head in found[:limit]],
        "campaigns": [_campaign(one) for one in campaigns[:limit]],
        "unreadable": [{"folder": str(one.folder), "why": one.why} for one in broken],
    }
    typer.echo(jsonlib.dumps(document, indent=1))


def _fields(folder: Path, head: Head) -> dict[str, Any]:
    return {
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
        "folder": str(folder),
    }


def _campaign(one: Listed) -> dict[str, Any]:
    head = one.head
    return {
        "kind": one.kind.name,
        "folder": str(one.folder),
        "state": head.state if head else "unreadable",
        "created": head.created.wall.isoformat() if head else "",
        "what": head.what if head else "",
        "why": one.why or (head.failure if head else ""),
        "command": head.command if head else "",
        "resume": _resume(one),
    }


def _resume(one: Listed) -> str:
    """The command that goes on with it; "": nothing is left."""
    import shlex

    from mmrepro.incident.head import COMPLETE

    if one.head is None or one.head.state == COMPLETE:
        return ""
    return f"mmrepro resume {shlex.quote(str(one.folder))}"


def _table(
    found: Sequence[tuple[Found, Head]],
    broken: Sequence[Found],
    campaigns: Sequence[Listed],
    limit: int,
    places: list[Path],
    *,
    verbose: bool,
) -> None:
    from mmrepro.text.sanitize import one_line
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file is not cut to 80 columns
        console = Console(highlight=False, width=1000)
    if found:
        _rows(found[:limit], console)
    if len(found) > limit:
        console.print(f"{limit} of {len(found)}; --limit {len(found)} shows all")
    if not found:
        where = one_line(", ".join(map(str, places)), 400) or "the current folder"
        console.print(f"No such incident below {where}.", markup=False, soft_wrap=True)
    if broken:
        first = one_line(f"{broken[0].folder}: {broken[0].why}", 400)
        many = "incident" if len(broken) == 1 else "incidents"
        console.print(
            f"{len(broken)} {many} could not be read, e.g. {first}", markup=False, soft_wrap=True
        )
    if campaigns:
        console.print("\nCampaigns", style="bold")
    for one in campaigns[:limit]:
        fields = _campaign(one)
        when = f"{one.head.created.wall:%Y-%m-%d %H:%M}" if one.head else "–"
        words = [when, fields["kind"], fields["what"] or one.why, fields["state"], fields["folder"]]
        text = "  ".join(one_line(word, 200) for word in words)
        console.print(text, markup=False, soft_wrap=True)
        if verbose and fields["resume"]:
            console.print(f"  to go on: {fields['resume']}", markup=False, soft_wrap=True)
    if len(campaigns) > limit:
        console.print(f"{limit} of {len(campaigns)} campaigns; --limit {len(campaigns)} shows all")


COLUMNS = ("#", "when (UTC)", "scenario", "engine", "outcome", "expected", "fidelity", "took")


def _rows(found: Sequence[tuple[Found, Head]], console: Console) -> None:
    """One line each, the folder at its end; on a narrow terminal on a line of its own."""
    from mmrepro.text.sanitize import one_line
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    rows = [
        [one_line(cell, 200) for cell in (str(number), *_row(head))]
        for number, (_, head) in enumerate(found, start=1)
    ]
    folders = [one_line(str(one.folder), 400) for one, _ in found]
    widths = [max(map(cell_len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    wide = sum(widths) + 2 * len(widths) + max(map(cell_len, folders)) <= console.width

    def line(cells: Sequence[str], styles: Mapping[int, str]) -> Text:
        padded = zip(cells, widths, strict=True)
        pairs = [(set_cell_size(text, n), styles.get(i, "")) for i, (text, n) in enumerate(padded)]
        return Text("  ").join(Text(*pair) for pair in pairs)

    def show(text: Text, folder: str) -> None:
        text.append(f"  {folder}" if wide else f"\n{' ' * widths[0]}  {folder}", "dim")
        console.print(text, soft_wrap=True)

    show(line(COLUMNS, dict.fromkeys(range(len(COLUMNS)), "bold")), "folder")
    for cells, folder, (_, head) in zip(rows, folders, found, strict=True):
        wrong = "bold red" if head.as_expected is False else ""
        show(line(cells, {0: "dim", 4: STYLES.get(head.outcome, ""), 5: wrong}), folder)


def _row(head: Head) -> list[str]:
    from datetime import UTC

    from mmrepro.base.units import duration

    variant = f" ({head.scenario.variant})" if head.scenario.variant else ""
    ended = head.outcome
    if ended == "failed" and head.failure_class:
        ended = f"failed ({head.failure_class})"
    return [
        f"{head.created.wall.astimezone(UTC):%Y-%m-%d %H:%M}",
        f"{head.scenario.name}{variant}",
        f"{head.engine.name} {head.engine.release}",
        ended,
        {True: "yes", False: "no", None: "–"}[head.as_expected],
        head.fidelity.value,
        "–" if head.seconds is None else duration(head.seconds),
    ]
