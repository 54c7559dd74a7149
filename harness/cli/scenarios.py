"""The known failures: ``mmrepro list`` and ``mmrepro show``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.errors import BrokenScenario, UsageError
from mmrepro.base.options import Command, option
from mmrepro.cli.console import emit, print_rows, table_console
from mmrepro.cli.find import foreign
from mmrepro.cli.options import command
from mmrepro.runs.options import split_variant

if TYPE_CHECKING:
    from datetime import datetime

    from mmrepro.failure.signature import Condition
    from mmrepro.reports.blocks import Inline, Page
    from mmrepro.scenario.definition import Scenario
    from mmrepro.scenario.reading import DeclaredScenario
    from mmrepro.tools.catalogue.claims import JudgedClaim
    from mmrepro.tools.catalogue.recorded import RecordedRun
    from mmrepro.tools.catalogue.standing import Newest, Standing


# ---------------------------------------------------------------- mmrepro list


@dataclass(frozen=True)
class _ListCommand(Command):
    COMMAND: ClassVar[str] = "list"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.tools.catalogue.documents:ListDocument",
        "mmrepro.tools.catalogue.documents:AliveDocument",
    )
    scenarios: tuple[str, ...] = common.SCENARIOS(())
    trust: bool = common.TRUST(False)
    alive: bool = option(
        False, "Which are still unfixed in the newest release, by recorded runs."
    )
    markdown: bool = common.MARKDOWN(False)
    ledger: Path | None = common.LEDGER(
        None,
        help="With --alive or --markdown: the runs of this ledger as well.",
        argument=False,
    )
    full: bool = common.FULL(
        False, help="With --alive: those that are fixed, or not run, too."
    )
    json: bool = common.JSON(False)


@command(_ListCommand)
def list_scenarios(asked: _ListCommand) -> None:
    """List the known failure modes.

    Example:  mmrepro list --alive
    """
    alive, markdown, names = asked.alive, asked.markdown, asked.scenarios
    if (markdown and (alive or asked.json)) or (
        asked.ledger is not None and not (alive or markdown)
    ):
        raise UsageError(
            (
                "--markdown is a form of its own, and --ledger is for --alive and "
                "--markdown."
            ),
            hint="mmrepro list --alive --ledger nights",
        )
    if alive:
        _alive(asked)
        return
    if markdown:
        from mmrepro.tools.catalogue.standing import known, page

        failures, broken = known(_recorded(asked.ledger), names, trust=asked.trust)
        for error in broken.values():
            raise error
        typer.echo(page(failures), nl=False)
        return
    if asked.json:
        from mmrepro.scenario.registry import scenario_names
        from mmrepro.tools.catalogue.documents import ListDocument

        facts = [_facts(name, asked.trust) for name in names or scenario_names()]
        emit(ListDocument(scenarios=facts))
        return
    print_rows(
        [
            ("scenario", "engine", "affected", "default", "what happens"),
            *_rows(names, asked.trust),
        ],
        spare=(3, 1),
    )


def _facts(name: str, trust: bool) -> dict[str, Any]:
    """What ``--json`` has of one. Raises UnknownScenario."""
    from mmrepro.scenario.reading import DeclaredScenario
    from mmrepro.tools.catalogue.documents import listed, listed_as_declared

    one = _loaded(name, trust)
    if isinstance(one, BrokenScenario):
        return {"name": name, "error": one.message}
    return listed_as_declared(one) if isinstance(one, DeclaredScenario) else listed(one)


def _loaded(name: str, trust: bool) -> Scenario | DeclaredScenario | BrokenScenario:
    """One broken plug-in does not hide the others. A file that is not trusted is only
    parsed."""
    from mmrepro.scenario.reading import read_declared
    from mmrepro.scenario.registry import is_file_name, known_scenario

    try:
        if is_file_name(name) and not trust:
            return read_declared(name)
        return known_scenario(name, trust=trust, conditions=False)
    except BrokenScenario as error:
        return error


def _rows(names: Sequence[str], trust: bool) -> Iterator[tuple[str, ...]]:
    """A line for each failure. mmrepro's own scenarios are read from its index: loading
    all of them takes too long here."""
    from mmrepro.tools.catalogue.find import entries

    theirs = foreign()
    rows = {entry.name: entry.row for entry in entries() if entry.kind == "scenario"}
    for name in names or sorted({*rows, *theirs}):
        if name in rows and name not in theirs:
            yield rows[name]
        else:
            one = _loaded(name, trust)
            yield (
                (name, "", "", "", one.message)
                if isinstance(one, BrokenScenario)
                else one.row
            )


def _recorded(ledger: Path | None) -> list[RecordedRun]:
    """The runs that come with mmrepro, and those of a ledger.

    Raises:
        InfrastructureError: the list that comes with mmrepro cannot be read.
        BadLedger: the ledger cannot be.
    """
    from mmrepro.history.ledger import read
    from mmrepro.scenarios.data import recorded_runs
    from mmrepro.tools.catalogue.recorded import load, of_history

    found = load(recorded_runs())
    return found if ledger is None else [*found, *of_history(read(ledger), str(ledger))]


def _alive(asked: _ListCommand) -> None:
    """What recorded runs show of the newest releases. Raises as :func:`_recorded` and
    ``known``."""
    from mmrepro.tools.catalogue.standing import known, newest_of, standings, strangers

    names, full = asked.scenarios, asked.full
    runs = _recorded(asked.ledger)
    failures, broken = known(runs, names, trust=asked.trust)
    engines = {one.scenario.engine: one.scenario.release for one in failures}
    newest = [newest_of(engine, runs, release) for engine, release in engines.items()]
    rows = standings(failures, newest)
    unknown = [] if names else strangers(runs, failures)
    if asked.json:
        from mmrepro.tools.catalogue.documents import AliveDocument

        why = {name: error.message for name, error in broken.items()}
        emit(
            AliveDocument(
                engines=newest, failures=rows, broken=why, not_registered=unknown
            )
        )
        return
    from mmrepro.reports.blocks import Paragraph, table
    from mmrepro.reports.terminal import print_blocks

    shown = rows if full or names else [row for row in rows if row.alive]
    alone = len(shown) < len(rows)
    heads = ["failure:name", "newest release:name", "when:name", "class:name"]
    heads.append("still unfixed" if alone else "observed there")
    blocks = table([*heads, "last run"], [_row(row, alone=alone) for row in shown])
    if alone:
        text = f"{len(shown)} still unfixed; {len(rows) - len(shown)} more: --full"
        blocks.append(Paragraph(text))
    print_blocks(blocks, table_console())
    for line in (*_notes(newest), *(error.message for error in broken.values())):
        typer.echo(line, err=True)
    if unknown:
        typer.echo(f"Recorded, and no scenario here: {', '.join(unknown)}.", err=True)


def _row(row: Standing, *, alone: bool) -> tuple[Inline, ...]:
    """``alone``: all rows are of what is still unfixed, and only what else there is is
    said."""
    from mmrepro.reports.blocks import Tone, toned

    name = f"{row.scenario} ({row.variant})" if row.variant else row.scenario
    state = (
        "" if alone else "still unfixed" if row.alive else row.outcome.replace("-", " ")
    )
    state += f" {row.where}" if row.alive and row.where else ""
    if row.reproduced and row.reproduced < row.runs:
        state += f" ({row.reproduced} of {row.runs} runs)"
    last = ""
    if row.last_release and not row.runs:
        last = (
            f"{row.last_release}: {row.last_outcome.replace('-', ' ')}, "
            f"{_day(row.last_at)}"
        )
    tones: dict[bool | None, Tone] = {True: "bad", False: "good", None: "unsure"}
    kind = (row.failure_class or "").replace("-", " ")
    newest = f"{row.engine} {row.newest}"
    return (
        name,
        newest,
        _day(row.at),
        kind,
        toned(state.strip(), tones[row.alive]),
        last,
    )


def _notes(newest: Iterable[Newest]) -> Iterable[str]:
    from mmrepro.tools.catalogue.standing import INDEX

    for one in newest:
        if one.kernels:
            yield (
                f"{one.engine} {one.release} has no wheel for this device: its Python "
                f"runs over the kernels of {one.kernels}."
            )
        if one.says != INDEX:
            yield (
                f"{one.engine}: {one.why}. Its newest release that is known here, "
                f"{one.release}, stands in the place of the newest one."
            )


def _day(moment: datetime | None) -> str:
    return moment.date().isoformat() if moment else ""


# ---------------------------------------------------------------- mmrepro show


_STATUSES = ("confirmed", "refuted", "not-tested")


@dataclass(frozen=True)
class _ShowCommand(Command):
    COMMAND: ClassVar[str] = "show"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.tools.catalogue.documents:ScenarioDocument",
        "mmrepro.tools.catalogue.claims:Claims",
    )
    scenarios: tuple[str, ...] = common.SCENARIOS(
        (),
        help="Name of a scenario, NAME:VARIANT, or a FILE.py with one; with --claims "
        "several, or none for all.",
        shown="",
    )
    variant: str = common.VARIANT("", configurable=False)
    trust: bool = common.TRUST(False)
    claims: bool = option(
        False, "Show what the original reports claim, and the run that judged it."
    )
    status: str | None = option(
        None, "With --claims: only those with this status.", choices=_STATUSES
    )
    full: bool = common.FULL(
        False, help="Print every section; with --claims every claim."
    )
    json: bool = common.JSON(False)

    def __post_init__(self) -> None:
        if len(self.scenarios) == 1:
            name, variant = split_variant(self.scenarios[0], self.variant)
            object.__setattr__(self, "scenarios", (name,))
            object.__setattr__(self, "variant", variant)

    @property
    def scenario(self) -> str:
        """The scenario that is shown, where no claims are."""
        return self.scenarios[0]


_PARTS = {
    "precondition": "Preconditions: the trigger arrived",
    "symptom": "Conditions of the symptom",
    "cause": "Conditions of the cause",
}


@command(_ShowCommand)
def show(asked: _ShowCommand) -> None:
    """Show one failure mode: what happens, why, its signature, mitigations and
    references.

    With --claims: each statement of the original reports, whether a run confirmed or
    refuted it, and when.

    Example:  mmrepro show ghost-key-eviction --claims
    """
    _check(asked)
    if asked.claims:
        _claims(asked)
        return
    from mmrepro.base.records import Fidelity
    from mmrepro.scenario.parts import LiveFacts, RunFacts
    from mmrepro.scenario.registry import is_file_name, known_scenario

    if is_file_name(asked.scenario) and not (asked.trust or asked.variant):
        _show_declared(asked)
        return
    loaded = known_scenario(asked.scenario, trust=asked.trust).with_variant(
        asked.variant
    )
    conditions = loaded.conditions(
        RunFacts(loaded.release, Fidelity.CPU, frozenset(), 0.0)
    )
    live = {
        c.id for c in loaded.live_conditions(LiveFacts(loaded.engine, loaded.release))
    }
    if asked.json:
        from mmrepro.tools.catalogue.documents import shown

        emit(shown(loaded, conditions, live))
        return
    from mmrepro.reports.terminal import print_page

    print_page(_page(loaded, conditions, live), table_console(), full=asked.full)


def _check(asked: _ShowCommand) -> None:
    """Raises UsageError: options that do not go together, or not one scenario."""
    if asked.claims and asked.variant:
        raise UsageError(
            "--variant does not choose claims: each names its variants.",
            hint="mmrepro show SCENARIO --claims",
        )
    if asked.claims:
        return
    if asked.status is not None:
        raise UsageError(
            "--status is for --claims.",
            hint=f"mmrepro show --claims --status {asked.status}",
        )
    if len(asked.scenarios) != 1:
        raise UsageError(
            "One scenario is shown at a time: name it.",
            hint="mmrepro list, then mmrepro show SCENARIO",
        )


def _show_declared(asked: _ShowCommand) -> None:
    """Show what a file declares, which was parsed and not run. Raises as
    ``read_declared``."""
    from mmrepro.scenario.reading import read_declared

    read = read_declared(asked.scenario)
    if asked.json:
        from mmrepro.tools.catalogue.documents import shown_as_declared

        emit(shown_as_declared(read))
        return
    from mmrepro.reports.terminal import print_page

    page = _declared_page(read, asked.scenario, asked.command_line(trust=True))
    print_page(page, table_console(), full=asked.full)


def _declared_page(read: DeclaredScenario, file: str, in_full: str) -> Page:
    """What a file says of its failure mode, on the screen of :func:`_page`."""
    from mmrepro.reports.blocks import (
        Badge,
        Page,
        Paragraph,
        Section,
        count,
        prose,
        table,
    )

    conditions = {
        title: [
            (one.id, one.statement, "" if one.required else "supporting")
            for one in read.conditions
            if one.part == part
        ]
        for part, title in _PARTS.items()
    }
    mitigations = [(one.name, one.description) for one in read.mitigations]
    references = [(one.id, one.title, one.address) for one in read.references]
    counted = (
        (len(read.conditions), "condition"),
        (len(read.variants), "variant"),
        (len(read.mitigations), "mitigation"),
    )
    return Page(
        title=read.title,
        badge=Badge(read.name, "", read.kind),
        subject=read.title,
        card=[
            Paragraph(
                f"Declared, not run: {file} was parsed, and nothing in it was executed."
            ),
            Paragraph(prose(read.summary)),
            Paragraph(prose(f"Why: {read.explanation}")),
            Paragraph(
                f"Affected: {read.engine} {read.affected_where}; run by default at "
                f"{read.release}; upstream: {read.upstream_words}"
            ),
            *(
                Paragraph(prose(f"Workaround {name}: {text}"))
                for name, text in mitigations[:2]
            ),
        ],
        counts=[count(number, word) for number, word in counted if number],
        commands=[("to run the file and show all of it", in_full)],
        sections=[
            Section("What happens", [Paragraph(prose(read.summary))]),
            Section("Why", [Paragraph(prose(read.explanation))]),
            *(
                Section(title, table(["id:name", "condition", ""], some))
                for title, some in conditions.items()
            ),
            Section("Mitigations", table(["name:name", "what it is"], mitigations)),
            Section(
                "References", table(["id:name", "title", "address:name"], references)
            ),
        ],
    )


def _page(loaded: Scenario, conditions: Sequence[Condition], live: set[str]) -> Page:
    """The failure mode: its end screen, and a section for each kind of thing it
    declares."""
    from mmrepro.reports.blocks import (
        Badge,
        Page,
        Paragraph,
        Section,
        count,
        prose,
        table,
    )

    name = f"{loaded.name}:{loaded.variant}" if loaded.variant else loaded.name
    upstream = loaded.upstream
    when = f" ({upstream.looked_up})" if upstream.looked_up else ""
    where = f": {upstream.source.id}" if upstream.source else ""
    helps = [f"{m.name}: {m.description}" for m in loaded.mitigations[:2]]
    rows = {
        title: [
            (
                c.id,
                c.statement,
                "" if c.required else "supporting",
                "" if c.id in live else "not on a live server",
            )
            for c in conditions
            if c.part == part
        ]
        for part, title in _PARTS.items()
    }
    named = ["name:name", "what it is"]
    listed = {
        "Variants": [(v.variant, v.title) for v in loaded.variants],
        "Mitigations": [(m.name, m.description) for m in loaded.mitigations],
        "Options (--option NAME=VALUE)": list(loaded.options.items()),
        "Factors (mmrepro ablate)": [
            (f.name, f"{f.failing} → {f.setting}") for f in loaded.factors
        ],
    }
    references = [(r.id, r.title, r.url) for r in loaded.references]
    kind = (
        f"{loaded.failure_class.words}, {loaded.severity}"
        if loaded.failure_class
        else ""
    )
    counted = (
        (len(conditions), "condition"),
        (len(loaded.variants), "variant"),
        (len(loaded.mitigations), "mitigation"),
        (len(loaded.factors), "factor"),
    )
    return Page(
        title=loaded.title,
        badge=Badge(name, "", kind),
        subject=loaded.title,
        card=[
            Paragraph(prose(loaded.summary)),
            Paragraph(prose(f"Why: {loaded.explanation}")),
            Paragraph(
                f"Affected: {loaded.engine} {loaded.affected_where}; run by default at "
                f"{loaded.release}; upstream: {upstream.words}{where}{when}"
            ),
            *(Paragraph(prose(f"Workaround {text}")) for text in helps),
        ],
        counts=[count(number, word) for number, word in counted if number],
        commands=[("to run it", f"mmrepro run {name}")],
        sections=[
            Section("What happens", [Paragraph(prose(loaded.summary))]),
            Section("Why", [Paragraph(prose(loaded.explanation))]),
            *(
                Section(title, table(["id:name", "condition", "", ""], some))
                for title, some in rows.items()
            ),
            *(Section(title, table(named, some)) for title, some in listed.items()),
            Section(
                "References", table(["id:name", "title", "address:name"], references)
            ),
        ],
    )


# ------------------------------------------------------- mmrepro show --claims


def _claims(asked: _ShowCommand) -> None:
    """Print the claims of the original reports, and the run that judged each."""
    from mmrepro.scenarios.data import claims as file
    from mmrepro.tools.catalogue.claims import Claims, load

    names = {_name_of(name, asked.trust) for name in asked.scenarios}
    chosen = []
    for claim in load(file()):
        if names and claim.scenario not in names:
            continue
        if asked.status in (None, claim.judged.status):
            chosen.append(claim)
    if asked.json:
        emit(Claims(claims=chosen))
    elif asked.scenarios or asked.status is not None or asked.full:
        _print_claims(chosen)
    else:
        _print_claim_counts(chosen)


def _name_of(given: str, trust: bool) -> str:
    """The name of a scenario or of a file's. Raises UnknownScenario, BrokenScenario."""
    loaded = _loaded(given, trust)
    if isinstance(loaded, BrokenScenario):
        raise loaded
    return loaded.name


def _print_claim_counts(claims: Sequence[JudgedClaim]) -> None:
    """One line a scenario: all claims are ten screens."""
    from mmrepro.failure.documents import ClaimStatus
    from mmrepro.reports.blocks import Paragraph, count, table
    from mmrepro.reports.terminal import print_blocks

    counts = Counter((claim.scenario, claim.judged.status) for claim in claims)
    rows = []
    for name in dict.fromkeys(claim.scenario for claim in claims):
        numbers = [str(counts[name, status] or "") for status in ClaimStatus]
        rows.append((name, *numbers))
    heads = ["scenario:name"]
    heads += [f"{status.replace('-', ' ')}:number" for status in ClaimStatus]
    text = (
        f"{count(len(claims), 'claim')} of {count(len(rows), 'scenario')}. "
        "mmrepro show SCENARIO --claims lists one's; --full, or --status STATUS, "
        "lists all."
    )
    print_blocks([*table(heads, rows), Paragraph(text)], table_console())


def _print_claims(claims: Sequence[JudgedClaim]) -> None:
    from mmrepro.failure.documents import ClaimStatus
    from mmrepro.reports.blocks import table, toned
    from mmrepro.reports.terminal import print_blocks
    from mmrepro.reports.words import CLAIMS
    from mmrepro.tools.catalogue.claims import words

    heads = ["claim:name", "status:name", "what it says", "made in:name", "judged:name"]
    rows = []
    often = Counter(claim.name for claim in claims)
    for claim in claims:
        # Variants are named only where they are what tells two claims apart.
        variants = f" ({', '.join(claim.variants)})" if often[claim.name] > 1 else ""
        judged = claim.judged
        status = toned(words(judged.status), CLAIMS[ClaimStatus(judged.status)][2])
        name = claim.name + variants
        rows.append((name, status, claim.text, claim.made_in, f"{judged.at.date()}"))
    print_blocks(table(heads, rows), table_console())
