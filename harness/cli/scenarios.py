"""The known failures: ``mmrepro list`` and ``mmrepro show``."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from mmrepro.base import common_options as common
from mmrepro.base.errors import BrokenScenario, UsageError
from mmrepro.base.options import Command, option
from mmrepro.base.units import count
from mmrepro.cli.console import (
    done_head,
    emit,
    print_rows,
    say,
    table_console,
    wants_document,
)
from mmrepro.cli.options import command
from mmrepro.runs import split_variant

if TYPE_CHECKING:
    from datetime import datetime

    from mmrepro.failure.signature import Condition
    from mmrepro.reports.blocks import Inline, Page, Section
    from mmrepro.scenario.definition import Scenario
    from mmrepro.scenario.reading import DeclaredScenario
    from mmrepro.tools.catalogue import (
        FailureCard,
        JudgedClaim,
        Newest,
        RecordedRun,
        Standing,
    )


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
    markdown_twice = asked.markdown and (asked.alive or asked.json)
    ledger_unused = asked.ledger is not None and not (asked.alive or asked.markdown)
    if markdown_twice or ledger_unused:
        raise UsageError(
            "--markdown is a form of its own, and --ledger is for --alive and "
            "--markdown.",
            hint="mmrepro list --alive --ledger nights",
        )
    names = asked.scenarios
    if asked.alive:
        _alive(asked)
        return
    if asked.markdown:
        from mmrepro.tools.catalogue import catalogue_page, known_standings

        failures, broken = known_standings(
            _recorded(asked.ledger), names, trust=asked.trust
        )
        for error in broken.values():
            raise error
        typer.echo(catalogue_page(failures), nl=False)
        return
    if asked.json:
        from mmrepro.scenario.registry import scenario_names
        from mmrepro.tools.catalogue import ListDocument

        facts = [_facts(name, asked.trust) for name in names or scenario_names()]
        words = f"{count(len(facts), 'known failure')}."
        emit(ListDocument(scenarios=facts), done_head("listed", words))
        return
    heads = ("scenario", "engine", "affected", "default", "what happens")
    print_rows([heads, *_rows(names, asked.trust)])


def _facts(name: str, trust: bool) -> dict[str, Any]:
    """What ``--json`` has of one. Raises UnknownScenario."""
    from mmrepro.scenario.reading import DeclaredScenario
    from mmrepro.tools.catalogue import listed, listed_as_declared

    loaded = _loaded(name, trust)
    if isinstance(loaded, BrokenScenario):
        return {"name": name, "error": loaded.message}
    if isinstance(loaded, DeclaredScenario):
        return listed_as_declared(loaded)
    return listed(loaded)


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
    from mmrepro.tools.catalogue import foreign_scenarios, index_entries

    theirs = foreign_scenarios()
    rows = {
        entry.name: entry.row for entry in index_entries() if entry.kind == "scenario"
    }
    for name in names or sorted({*rows, *theirs}):
        if name in rows and name not in theirs:
            yield rows[name]
            continue
        loaded = _loaded(name, trust)
        if isinstance(loaded, BrokenScenario):
            yield name, "", "", "", loaded.message
        else:
            yield loaded.row


def _recorded(ledger: Path | None) -> list[RecordedRun]:
    """The runs that come with mmrepro, and those of a ledger.

    Raises:
        InfrastructureError: the list that comes with mmrepro cannot be read.
        BadLedger: the ledger cannot be.
    """
    from mmrepro.history import read_history
    from mmrepro.scenarios.data import recorded_runs
    from mmrepro.tools.catalogue import load_recorded, of_history

    runs = load_recorded(recorded_runs())
    if ledger is None:
        return runs
    return [*runs, *of_history(read_history(ledger), str(ledger))]


def _alive(asked: _ListCommand) -> None:
    """What recorded runs show of the newest releases. Raises as :func:`_recorded` and
    ``known``."""
    from mmrepro.tools.catalogue import known_standings, newest_of, standings, strangers

    names = asked.scenarios
    runs = _recorded(asked.ledger)
    failures, broken = known_standings(runs, names, trust=asked.trust)
    engines: dict[str, str] = {}
    for failure in failures:
        engines[failure.scenario.engine] = failure.scenario.release
    newest = [newest_of(engine, runs, release) for engine, release in engines.items()]
    rows = standings(failures, newest)
    unknown = [] if names else strangers(runs, failures)
    if asked.json:
        from mmrepro.tools.catalogue import AliveDocument

        why = {name: error.message for name, error in broken.items()}
        document = AliveDocument(
            engines=newest, failures=rows, broken=why, not_registered=unknown
        )
        words = f"{count(len(rows), 'known failure')} against the newest releases."
        emit(document, done_head("listed", words))
        return

    _print_standings(rows, everything=asked.full or bool(names))
    for line in _notes(newest):
        say(line, stderr=True)
    for error in broken.values():
        say(error.message, stderr=True)
    if unknown:
        missing = ", ".join(unknown)
        say(f"Runs of scenarios that are not installed here: {missing}.", stderr=True)


def _print_standings(rows: Sequence[Standing], *, everything: bool) -> None:
    """Print what is still unfixed, and what is not where ``everything`` is asked
    for."""
    from mmrepro.reports.blocks import Paragraph, table
    from mmrepro.reports.terminal import print_blocks

    shown = rows if everything else [row for row in rows if _is_open(row)]
    alone = len(shown) < len(rows)
    heads = [
        "failure:name",
        "newest release:name",
        "when:name",
        "class:name",
        "still unfixed" if alone else "observed there",
        "last run",
    ]
    blocks = table(heads, [_row(row, alone=alone) for row in shown])
    if alone:
        # A scenario's variants are ways to one failure.
        failures = len({row.scenario for row in shown})
        text = (
            f"{count(failures, 'failure')} still unfixed upstream; "
            f"{len(rows) - len(shown)} more rows: --full"
        )
        blocks.append(Paragraph(text))
    print_blocks(blocks, table_console())


def _is_open(row: Standing) -> bool:
    """Whether it is unfixed upstream: what is planted in the teaching engine is not."""
    from mmrepro.engines.folders import facts, folders

    is_planted = row.engine in folders() and facts(row.engine).teaching
    return bool(row.alive) and not is_planted


def _row(row: Standing, *, alone: bool) -> tuple[Inline, ...]:
    """``alone``: all rows are of what is still unfixed, and only what else there is is
    said."""
    from mmrepro.reports.blocks import Tone, toned

    name = f"{row.scenario} ({row.variant})" if row.variant else row.scenario
    state = "still unfixed" if row.alive else row.outcome.replace("-", " ")
    if alone:
        state = ""
    if row.alive and row.where:
        state += f" {row.where}"
    if row.reproduced and row.reproduced < row.runs:
        state += f" ({row.reproduced} of {row.runs} runs)"
    pairs = [f"with {row.runner}"] if row.runner and row.other_pairs else []
    for pair, outcome in row.other_pairs.items():
        pairs.append(f"{outcome.replace('-', ' ')} with {pair}")
    state = "; ".join(filter(None, [state.strip(), *pairs]))

    last = ""
    if row.last_release and not row.runs:
        outcome = row.last_outcome.replace("-", " ")
        last = f"{row.last_release}: {outcome}, {_day(row.last_at)}"
    tones: dict[bool | None, Tone] = {True: "bad", False: "good", None: "unsure"}
    return (
        name,
        f"{row.engine} {row.newest}",
        _day(row.at),
        (row.failure_class or "").replace("-", " "),
        toned(state.strip(), tones[row.alive]),
        last,
    )


def _notes(newest: Iterable[Newest]) -> Iterator[str]:
    """What is to be said of the newest releases themselves."""
    from mmrepro.tools.catalogue import CATALOGUE_PAGE

    for release in newest:
        if release.kernels:
            yield (
                f"{release.engine} {release.release} has no wheel for this device: its "
                f"Python runs over the kernels of {release.kernels}."
            )
        if release.says != CATALOGUE_PAGE:
            yield (
                f"{release.engine}: {release.why}. Its newest release that is known "
                f"here, {release.release}, is shown in its place."
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
    card = None if asked.full or wants_document(asked) else _indexed_card(asked)
    if card is not None:
        from mmrepro.reports.terminal import print_page

        print_page(_card_page(card, card.name), table_console())
        return
    from mmrepro.scenario.parts import LiveFacts
    from mmrepro.scenario.registry import is_file_name, known_scenario
    from mmrepro.tools.catalogue import card_of, default_conditions

    if is_file_name(asked.scenario) and not (asked.trust or asked.variant):
        _show_declared(asked)
        return
    scenario = known_scenario(asked.scenario, trust=asked.trust)
    loaded = scenario.with_variant(asked.variant)
    conditions = default_conditions(loaded)
    observed = loaded.live_conditions(LiveFacts(loaded.engine, loaded.release))
    live = {condition.id for condition in observed}
    if wants_document(asked):
        from mmrepro.tools.catalogue import shown

        document = shown(loaded, conditions, live)
        following = [f"mmrepro run {_typed(loaded, asked.scenario)}"]
        head = done_head("known", document.summary, following)
        emit(document, head, printed=asked.json)
    if asked.json:
        return
    from mmrepro.reports.terminal import print_page

    sections = _sections(loaded, conditions, live)
    page = _card_page(card_of(loaded), _typed(loaded, asked.scenario), sections)
    print_page(page, table_console(), full=asked.full)


def _indexed_card(asked: _ShowCommand) -> FailureCard | None:
    """What the index has of a scenario of mmrepro's own, without a variant.

    Loading a scenario takes too long for its end screen."""
    from mmrepro.tools.catalogue import foreign_scenarios, index_entries

    if asked.variant or asked.scenario in foreign_scenarios():
        return None
    for entry in index_entries():
        if entry.kind == "scenario" and entry.name == asked.scenario:
            return entry.card
    return None


def _typed(loaded: Scenario, given: str) -> str:
    """How ``run`` takes a scenario that was shown: a file by its path."""
    from mmrepro.scenario.registry import is_file_name

    if is_file_name(given):
        return shlex.quote(given)
    return f"{loaded.name}:{loaded.variant}" if loaded.variant else loaded.name


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
    if wants_document(asked):
        from mmrepro.tools.catalogue import shown_as_declared

        document = shown_as_declared(read)
        following = [asked.command_line(trust=True)]
        head = done_head("declared", document.summary, following)
        emit(document, head, printed=asked.json)
    if asked.json:
        return
    from mmrepro.reports.terminal import print_page

    page = _declared_page(read, asked.scenario, asked.command_line(trust=True))
    print_page(page, table_console(), full=asked.full)


def _declared_page(read: DeclaredScenario, file: str, in_full: str) -> Page:
    """What a file says of its failure mode, on the screen of :func:`_card_page`."""
    from mmrepro.reports.blocks import Badge, Page, Paragraph, Section, prose, table
    from mmrepro.tools.catalogue import counts_of

    mitigations = [(known.name, known.description) for known in read.mitigations]
    references = [(known.id, known.title, known.address) for known in read.references]
    card = [
        Paragraph(
            f"Declared, not run: {file} was parsed, and nothing in it was executed."
        ),
        Paragraph(prose(read.summary)),
        Paragraph(prose(f"Why: {read.explanation}")),
        Paragraph(
            f"Affected: {read.engine} {read.affected_where}; run by default at "
            f"{read.release}; upstream: {read.upstream_words}"
        ),
    ]
    for name, text in mitigations[:2]:
        card.append(Paragraph(prose(f"Workaround {name}: {text}")))

    sections = [
        Section("What happens", [Paragraph(prose(read.summary))]),
        Section("Why", [Paragraph(prose(read.explanation))]),
    ]
    for part, title in _PARTS.items():
        rows: list[tuple[str, ...]] = []
        for condition in read.conditions:
            if condition.part == part:
                note = "" if condition.required else "supporting"
                rows.append((condition.id, condition.statement, note))
        sections.append(Section(title, table(["id:name", "condition", ""], rows)))
    sections += [
        Section("Mitigations", table(["name:name", "what it is"], mitigations)),
        Section("References", table(["id:name", "title", "address:name"], references)),
    ]
    counted = {
        "condition": len(read.conditions),
        "variant": len(read.variants),
        "mitigation": len(read.mitigations),
    }
    return Page(
        title=read.title,
        badge=Badge(read.name, "", read.kind),
        subject=read.title,
        card=card,
        counts=counts_of(counted),
        commands=[("to run the file and show everything", in_full)],
        sections=sections,
    )


def _card_page(card: FailureCard, typed: str, sections: Sequence[Section] = ()) -> Page:
    """The end screen of a failure mode, and its sections. ``typed``: how ``run`` takes
    it."""
    from mmrepro.reports.blocks import Badge, Page, Paragraph, prose

    return Page(
        title=card.title,
        badge=Badge(card.name, "", card.kind),
        subject=card.title,
        sections=sections,
        card=[Paragraph(prose(text)) for text in card.texts],
        counts=list(card.counts),
        commands=[("to run it", f"mmrepro run {typed}")],
    )


def _sections(
    loaded: Scenario, conditions: Sequence[Condition], live: set[str]
) -> list[Section]:
    """All that a scenario declares, kind by kind."""
    from mmrepro.reports.blocks import Paragraph, Section, prose, table

    sections = [
        Section("What happens", [Paragraph(prose(loaded.summary))]),
        Section("Why", [Paragraph(prose(loaded.explanation))]),
    ]
    for part, title in _PARTS.items():
        rows = [_condition_row(c, live) for c in conditions if c.part == part]
        sections.append(Section(title, table(["id:name", "condition", "", ""], rows)))

    factors: list[tuple[str, str]] = []
    for factor in loaded.factors:
        factors.append((factor.name, f"{factor.failing} → {factor.setting}"))
    named = {
        "Variants": [(v.variant, v.title) for v in loaded.variants],
        "Mitigations": [(m.name, m.description) for m in loaded.mitigations],
        "Options (--option NAME=VALUE)": list(loaded.options.items()),
        "Factors (mmrepro ablate)": factors,
    }
    for title, entries in named.items():
        sections.append(Section(title, table(["name:name", "what it is"], entries)))
    references = [(r.id, r.title, r.url) for r in loaded.references]
    heads = ["id:name", "title", "address:name"]
    sections.append(Section("References", table(heads, references)))
    return sections


def _condition_row(condition: Condition, live: set[str]) -> tuple[str, ...]:
    return (
        condition.id,
        condition.statement,
        "" if condition.required else "supporting",
        "" if condition.id in live else "not on a live server",
    )


# ------------------------------------------------------- mmrepro show --claims


def _claims(asked: _ShowCommand) -> None:
    """Print the claims of the original reports, and the run that judged each."""
    from mmrepro.scenarios.data import claims as file
    from mmrepro.tools.catalogue import Claims, load_claims

    names = {_name_of(name, asked.trust) for name in asked.scenarios}
    chosen: list[JudgedClaim] = []
    for claim in load_claims(file()):
        if names and claim.scenario not in names:
            continue
        if asked.status in (None, claim.judged.status):
            chosen.append(claim)
    if asked.json:
        words = f"{count(len(chosen), 'statement')} of the original reports."
        emit(Claims(claims=chosen), done_head("listed", words))
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
    from mmrepro.base.records import ClaimStatus
    from mmrepro.reports.blocks import Paragraph, table
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
    from mmrepro.base.records import ClaimStatus
    from mmrepro.reports import CLAIM_MARKS
    from mmrepro.reports.blocks import table, toned
    from mmrepro.reports.terminal import print_blocks
    from mmrepro.tools.catalogue import claim_words

    heads = ["claim:name", "status:name", "what it says", "made in:name", "judged:name"]
    rows = []
    often = Counter(claim.name for claim in claims)
    for claim in claims:
        # Variants are named only where they are what tells two claims apart.
        variants = f" ({', '.join(claim.variants)})" if often[claim.name] > 1 else ""
        judged = claim.judged
        status = toned(
            claim_words(judged.status), CLAIM_MARKS[ClaimStatus(judged.status)][2]
        )
        name = claim.name + variants
        rows.append((name, status, claim.text, claim.made_in, f"{judged.at.date()}"))
    print_blocks(table(heads, rows), table_console())
