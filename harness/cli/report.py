"""What is made again of records on disk: ``mmrepro report``, ``judge``, ``bundle``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.console import done_head, emit, say, table, table_console
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.failure.documents import (
        BundleManifest,
        HashCheck,
        Incident,
        LoadedFinding,
    )
    from mmrepro.reports.documents import ReportKind
    from mmrepro.runs import Rejudged


def page_of(place: Path) -> Path:
    """The page of what is in a folder; it is made where there is none.

    Raises:
        BadIncident: there is nothing of which a page could be made.
        UsageError: it is a bundle.
    """
    from mmrepro.base.machine import is_file, is_folder
    from mmrepro.failure.documents import is_bundle
    from mmrepro.reports import write_reports
    from mmrepro.reports.documents import kind_of

    if is_bundle(place):
        raise UsageError(
            f"{place} is a bundle: no page is in it.",
            hint=f"mmrepro report {place} --format html > report.html",
        )
    page = (place if is_folder(place) else place.parent) / kind_of(place).files[1]
    return page if is_file(page) else write_reports(place)[1]


# --------------------------------------------------------------- mmrepro report


_UPSTREAM = "upstream-test"
_PROFILES = ("speedscope", "perfetto")
_FORMATS = ("text", "md", "html", "json", "junit", "issue", _UPSTREAM, *_PROFILES)


@dataclass(frozen=True)
class _ReportCommand(Command):
    COMMAND: ClassVar[str] = "report"
    incident: Path = common.PLACE(
        Path(),
        help="Incident, ablation, bisection, replay, finding or fuzz session: its "
        "folder, number, id, or last; or a bundle.",
    )
    format: str = option(
        "md",
        "What to print on stdout; text: the end screen; issue: the engine's own "
        "bug-report form; upstream-test: a finding as a test for the engine's own "
        "tree, once it was run; speedscope, perfetto: the stack samples for these "
        "viewers.",
        group=OUTPUT,
        choices=_FORMATS,
    )
    full: bool = common.FULL(False, help="Print every section on the terminal.")
    good: str = option(
        "",
        "For upstream-test and issue: a release without the failure, where the test is "
        "to pass.",
        "VERSION",
        OUTPUT,
        names="release",
        configurable=False,
    )
    run: bool = option(
        True,
        (
            "For upstream-test and issue: run the test, or the script, before it is "
            "printed, where the finding is and on --good."
        ),
        group=OUTPUT,
        name="--run/--no-run",
        configurable=False,
    )

    def __post_init__(self) -> None:
        is_run = self.format in (_UPSTREAM, "issue")
        if not is_run and (self.good or not self.run):
            raise UsageError(
                "--good and --no-run are for --format upstream-test and issue.",
                hint=f"mmrepro report DIR --format {_UPSTREAM} --good VERSION",
            )


@command(_ReportCommand)
def report(asked: _ReportCommand) -> None:
    """Make a report again, from a folder alone.

    Example:  mmrepro report last --format html
    """
    from mmrepro.failure.documents import as_published
    from mmrepro.reports.documents import kind_of, render

    kind = kind_of(asked.incident)
    loaded = as_published(kind.load(asked.incident))
    if asked.full or asked.format == "text":
        from mmrepro.reports.terminal import print_page

        print_page(kind.compose(loaded), table_console(), full=asked.full)
        return
    if asked.format in _PROFILES:
        text = _profile(loaded, asked)
    elif asked.format == "issue":
        text = _issue(kind, loaded, asked)
    elif asked.format == _UPSTREAM:
        text = _upstream(asked, loaded)
    else:
        place = asked.incident
        text = render(
            kind, loaded, asked.format, place if place.is_dir() else place.parent
        )
    typer.echo(text.rstrip("\n"))


def _profile(loaded: object, asked: _ReportCommand) -> str:
    """The stack samples for another viewer. Raises UsageError: there are none."""
    from mmrepro.failure.documents import Incident
    from mmrepro.reports import PROFILES

    if not isinstance(loaded, Incident):
        raise UsageError(
            "Stack samples are of an incident, and this is none.",
            hint=f"mmrepro report INCIDENT --format {asked.format}",
        )
    return PROFILES[asked.format](loaded)


def _issue(kind: ReportKind[Any], loaded: object, asked: _ReportCommand) -> str:
    """The engine's own form, filled in.

    Raises:
        UsageError: ``loaded`` is no single failure.
        NotConfirmed: its script does not show it.
    """
    from mmrepro.base.errors import UsageError
    from mmrepro.failure.documents import Incident, LoadedFinding
    from mmrepro.failure.documents.replay import Fuzz, Replay
    from mmrepro.reports import incident_issue

    folder = asked.incident
    if isinstance(loaded, Incident):
        return incident_issue(loaded)
    if isinstance(loaded, LoadedFinding):
        return _finding_issue(loaded, asked)
    if isinstance(loaded, Replay):
        raise _of_one(
            [folder / finding.folder for finding in loaded.findings], "a replay", folder
        )
    if isinstance(loaded, Fuzz):
        raise _of_one(
            [folder / found.folder for found in loaded.found], "a session", folder
        )
    raise UsageError(
        (
            f"{kind.name.capitalize()} is no bug report: give an incident's folder, or "
            "a finding's."
        ),
        hint=f"mmrepro report {folder} --format md",
    )


def _finding_issue(loaded: LoadedFinding, asked: _ReportCommand) -> str:
    """The form of a finding, once its script was run where its environment is here."""
    from functools import partial

    from mmrepro.failure.documents import as_public
    from mmrepro.reports import public_issue, script_of
    from mmrepro.search.replay.handed import run_by_hand

    with as_public(loaded) as shown:
        finding, case = shown.finding, shown.case
        if not (asked.run and finding.confirmed and case and case.operations):
            return public_issue(shown)
        say = partial(typer.echo, err=True)
        always = finding.rate.failed == finding.rate.plays
        script = script_of(shown)
        server = case.server
        sentence = run_by_hand(script, server, asked.good, say, always=always)
        return public_issue(shown, sentence)


def _of_one(
    findings: list[Path], name: str, folder: Path, format: str = "issue"
) -> UsageError:
    from mmrepro.base.errors import UsageError

    first = findings[0] if findings else folder / "f1"
    what = "an issue" if format == "issue" else "a test"
    return UsageError(
        f"Choose one finding for {what}: {name} may have several.",
        hint=f"mmrepro report {first} --format {format}",
    )


def _upstream(asked: _ReportCommand, loaded: object) -> str:
    """The test, run where it is to fail and where it is to pass.

    Raises:
        UsageError: ``loaded`` is no finding, or one of which no test can be written.
        NotConfirmed: it does not tell the two sides apart.
    """
    from functools import partial

    from mmrepro.failure.documents import LoadedFinding, as_public
    from mmrepro.failure.documents.replay import Replay
    from mmrepro.reports import upstream_test_of
    from mmrepro.search.replay.upstream import confirmed

    if isinstance(loaded, Replay):
        folders = [asked.incident / finding.folder for finding in loaded.findings]
        raise _of_one(folders, "a replay", asked.incident, _UPSTREAM)
    if not isinstance(loaded, LoadedFinding):
        raise UsageError(
            "A test is written for a finding of mmrepro replay or fuzz.",
            hint=f"mmrepro report f1 --format {_UPSTREAM}",
        )
    with as_public(loaded) as shown:
        if not asked.run:
            return upstream_test_of(shown)
        finding = shown.finding
        say = partial(typer.echo, err=True)
        write = partial(upstream_test_of, shown)
        return confirmed(write, finding.finding_class, finding.server, asked.good, say)


# ---------------------------------------------------------------- mmrepro judge

_STYLES = {"met": "green", "confirmed": "green", "not-met": "red", "refuted": "red"}


@dataclass(frozen=True)
class _JudgeCommand(Command):
    COMMAND: ClassVar[str] = "judge"
    DOCUMENTS: ClassVar[tuple[str, ...]] = ("mmrepro.runs.judge:JudgeDocument",)
    incidents: tuple[Path, ...] = common.PLACE(
        (),
        help="Incidents: their folders, numbers, ids, or last; or bundles.",
        metavar="DIR|N|ID…",
        names="run",
    )
    scenario: str = option(
        "",
        "Judge by this scenario: a name, or a path that ends in .py.",
        "NAME|FILE",
        shown="the scenario that was run",
        configurable=False,
        names="scenario",
    )
    edited: bool = option(
        False,
        "Judge incidents that were changed since they were recorded as they are now.",
        group=OUTPUT,
        configurable=False,
    )
    signers: Path | None = option(
        None,
        "Judge only what somebody in this file of allowed signers (ssh-keygen) signed.",
        "FILE",
        OUTPUT,
        configurable=False,
    )
    trust: bool = common.TRUST(False)
    verbose: bool = common.VERBOSE(
        False, help="Print all conditions, those as recorded as well."
    )
    json: bool = common.JSON(False)


@command(_JudgeCommand)
def judge(asked: _JudgeCommand) -> None:
    """Judge recorded evidence again, without an engine: each condition and claim, then
    and now.

    It is how a signature is improved on runs that were made, and how a stranger checks
    a verdict. An incident that was changed since it was recorded is refused.

    Example:  mmrepro judge incidents/ghost-key-eviction-0.23.0-20261121-030000
    """
    from mmrepro.base.records import DocumentHead
    from mmrepro.failure.documents import check_hashes, signed_by
    from mmrepro.reports import load
    from mmrepro.runs import JudgedAgain, JudgeDocument, rejudge

    judged: list[_JudgedRun] = []
    for path in asked.incidents:
        incident = load(path)
        check = check_hashes(path)
        if not asked.edited:
            check.refuse_changed(path)
        signer = signed_by(path, check, asked.signers) if asked.signers else ""
        found = rejudge(incident, _scenario(incident, asked))
        judged.append(_JudgedRun(path, incident, found, check, signer))
    differs = any(row.found.differs for row in judged)
    code = ExitCode.NOT_AS_EXPECTED if differs else ExitCode.AS_EXPECTED
    if asked.json:
        again = [
            JudgedAgain.of(row.path, row.incident, row.found, row.check, row.signer)
            for row in judged
        ]
        different = sum(row.found.differs for row in judged)
        head = DocumentHead(
            status="differs" if different else "same",
            exit_code=code,
            summary=f"{different} of {units.count(len(judged), 'verdict')} differ now.",
        )
        emit(JudgeDocument(judged=again), head)
    else:
        _print_judged(judged, every=asked.verbose)
    raise typer.Exit(code)


class _JudgedRun(NamedTuple):
    """An incident that was judged again, what the record of its hashes says, and who
    signed that."""

    path: Path
    incident: Incident
    found: Rejudged
    check: HashCheck
    signer: str


def _scenario(incident: Incident, asked: _JudgeCommand) -> Any:
    """Raises UsageError: it is none of those that are known, and none was given.

    A file that the incident names is never run: whoever wrote the incident chose that
    name."""
    from mmrepro.base.errors import UnknownScenario, UntrustedFile
    from mmrepro.scenario.registry import as_run

    given, ran = asked.scenario, incident.scenario
    if incident.diagnosis is not None:
        raise UsageError(
            f"{incident.incident_dir} is a diagnosis and cannot be judged again.",
            hint="mmrepro judge last, for the newest run",
        )
    try:
        return as_run(given or ran.name, ran.variant, trust=bool(given) and asked.trust)
    except (UnknownScenario, UntrustedFile) as error:
        if given:
            raise
        raise UsageError(
            f"The scenario {incident.scenario.name} is not known here.",
            hint=f"mmrepro judge {incident.incident_dir} --scenario FILE.py --trust",
        ) from error


def _print_judged(judged: list[_JudgedRun], *, every: bool) -> None:
    from mmrepro.base.text import plain
    from rich.markup import escape

    out = table_console()
    for path, _, rejudged, check, signer in judged:
        now = rejudged.now.outcome.value
        if rejudged.differs:
            now = f"[bold red]{rejudged.then.outcome.value} → {now}[/]"
        count, changed = len(rejudged.parts), len(rejudged.changes)
        parts = f"{changed} of {count} conditions and claims differ"
        if not changed:
            parts = f"as recorded, with all {count} conditions and claims"
        out.print(f"{escape(plain(path.name))}  {now}  {parts}")
        if signer:
            out.print(f"  signed by {escape(plain(signer))}")
        for note in check.notes:
            out.print(f"  {escape(plain(note))}")
        rows = []
        for part in rejudged.parts if every else rejudged.changes:
            then, now = part.then or "new", part.now or "gone"
            style = "bold yellow" if part.differs else _STYLES.get(now, "dim")
            observed = escape(plain(part.observed))
            rows.append((part.kind, part.id, then, f"[{style}]{now}[/]", observed))
        if rows:
            out.print(table(("", "", "then", "now", "observed"), rows))
        if every and rejudged.parts:
            verdict = f"{rejudged.now.outcome.value}: {rejudged.now.explanation}"
            out.print(escape(plain(verdict)))
    if len(judged) > 1:
        other = alone = 0
        for row in judged:
            if row.found.differs:
                other += 1
            elif row.found.changes:
                alone += 1
        out.print(
            f"{len(judged)} judged again: {len(judged) - other - alone} as recorded, "
            f"{other} with another verdict, {alone} with other conditions or claims "
            "alone"
        )
    unrecorded = sum(not row.check.has_record for row in judged)
    if unrecorded:
        carry = "carries" if unrecorded == 1 else "carry"
        which = "It" if len(judged) == 1 else f"{unrecorded} of them"
        out.print(
            f"{which} {carry} no record of hashes: whether anything was changed since it was "
            "recorded cannot be seen."
        )


# ---------------------------------------------------------------- mmrepro bundle

_MAX_SECRETS = 1000
_MAX_SECRETS_BYTES = 1 << 20


@dataclass(frozen=True)
class _BundleCommand(Command):
    COMMAND: ClassVar[str] = "bundle"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "bundle=mmrepro.failure.documents.stored:BundleManifest",
    )
    incident: Path = common.PLACE(
        Path(), help="Incident or replay: its folder, number, id, or last."
    )
    out: Path | None = common.OUT(
        None, help="The file to write.", metavar="FILE", shown="NAME-OF-DIR.zip"
    )
    max_mib: float = option(
        10.0, "Largest size of the file.", "MIB", OUTPUT, least=0.1, most=1024
    )
    secrets_file: Path | None = common.SECRETS_FILE(None)
    sign: Path | None = option(
        None,
        "Sign the record of hashes with this SSH key (ssh-keygen -Y sign).",
        "KEY",
        OUTPUT,
        configurable=False,
    )
    force: bool = common.FORCE(False)
    full: bool = common.FULL(False, help="List every file of the bundle.")
    json: bool = common.JSON(False)


@command(_BundleCommand)
def bundle(asked: _BundleCommand) -> None:
    """Pack an incident or a replay into one file: redacted, listed, checksummed, small.

    A replay's texts and images are replaced by random ones of the same lengths. Read
    the file with mmrepro report FILE.zip. Look at it before you publish it: a pattern
    knows keys, tokens, prompts, images, addresses and user names, not every secret
    there is.

    Example:  mmrepro bundle incidents/ghost-key-eviction-0.23.0-20261121-030000
    """
    import os

    from mmrepro.base.machine import is_file, is_folder
    from mmrepro.failure.documents import is_bundle
    from mmrepro.reports import incident as runs, replay as replays, write_bundle

    given = asked.incident
    folder = given if is_folder(given) else given.parent
    # A name that a terminal shows otherwise could not be typed.
    target = asked.out or Path(f"{typed_name(Path(os.path.realpath(folder)).name)}.zip")
    replay = given.name == "replay.json" or is_file(given / "replay.json")
    manifest = write_bundle(
        folder,
        (replays.KIND if replay else runs.KIND).load(given),
        target,
        max_bytes=int(asked.max_mib * 2**20),
        secrets=secrets_in(asked.secrets_file) if asked.secrets_file else (),
        force=asked.force,
        sign=asked.sign,
        packed=given if is_bundle(given) else None,
    )
    if asked.json:
        facts = {"bundle": str(target), "bytes": target.stat().st_size}
        following = [f"mmrepro report {target}"]
        summary = f"The bundle is {target}: look at it before you publish it."
        head = done_head("written", summary, following)
        emit(facts | manifest.model_dump(), head, "bundle")
    else:
        _print_bundle(target, manifest, full=asked.full)


def typed_name(name: str) -> str:
    """A name that a shell takes as it is printed."""
    import re

    return re.sub(r"[^\w.+:@=-]+", "-", name).strip("-.") or "bundle"


def secrets_in(path: Path) -> list[str]:
    """The texts in a file, one a line. Raises UsageError: it cannot be read, or has
    more than can be looked for everywhere."""
    from mmrepro.base.machine import read_file

    try:
        text = read_file(path, _MAX_SECRETS_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {why}.") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > _MAX_SECRETS:
        raise UsageError(
            f"{path} has {len(lines):,} texts: at most {_MAX_SECRETS:,} are looked for.",
            hint="leave out what has the form of a key or a token: it is found anyway",
        )
    return lines


def _print_bundle(target: Path, manifest: BundleManifest, *, full: bool) -> None:
    """Print what was packed in three lines; ``full``: each file before them."""
    import shlex

    from mmrepro.base.text import plain

    if full:
        _print_bundled_files(manifest)
    redacted = [file.redactions for file in manifest.files if file.redactions]
    shown = shlex.quote(plain(str(target)))
    size = units.size(target.stat().st_size, 2)
    say(f"{shown}  {size}, {units.count(len(manifest.files), 'file')}")
    places = units.count(sum(redacted), "place")
    line = f"Redacted: {places} in {units.count(len(redacted), 'file')}"
    if manifest.left_out:
        line += f"; left out: {units.count(len(manifest.left_out), 'file')}"
    say(line + ("." if full else " (--full lists them)."))
    say(f"Read it before you publish it: mmrepro report {shown}")


def _print_bundled_files(manifest: BundleManifest) -> None:
    from rich.markup import escape

    dumps = [entry for entry in manifest.files if "-stacks-" in entry.name]
    rows = [
        (
            escape(file.name),
            str(file.bytes),
            str(file.redactions or ""),
            file.sha256[:12],
            escape(file.note),
        )
        for file in manifest.files
        if file not in dumps[1:]
    ]
    if len(dumps) > 1:
        size = sum(entry.bytes for entry in dumps[1:])
        rows.append((f"… and {len(dumps) - 1} more stack dumps", str(size), "", "", ""))
    for gone in manifest.left_out:
        rows.append(
            (f"[dim]{escape(gone.name)}", str(gone.bytes), "", "", escape(gone.why))
        )
    heads = ("file", "bytes", "redacted", "sha256", "note")
    table_console().print(table(heads, rows))
