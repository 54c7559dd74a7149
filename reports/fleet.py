"""Several servers in one look as a page: which is unlike the others, what is wrong
between them."""

from collections.abc import Iterator, Sequence
from typing import Final

from mmrepro.base import units
from mmrepro.failure.documents.diagnosis import STATE_WORDS
from mmrepro.failure.documents.fleet import (
    FLEET_FILE,
    FLEET_WORDS,
    Finding,
    Fleet,
    FleetState,
    Member,
    Part,
)
from mmrepro.reports import blocks as b, diagnosis as one_server, words
from mmrepro.reports.documents import Case, Suite, kind

_ROWS: Final = 8
"""Servers on the first screen; those that are unwell come first."""


def compose_fleet(fleet: Fleet) -> b.Page:
    tones: dict[int, b.Tone] = {0: "good", 1: "bad"}
    unwell = sum(one.well is False for one in fleet.members)
    return b.Page(
        title=f"{len(fleet.members)} servers",
        badge=b.Badge(
            words.capital(FLEET_WORDS[fleet.state].partition(":")[0]),
            tones.get(fleet.exit_code, "unsure"),
            f"exit {fleet.exit_code}",
        ),
        subject=f"{b.count(len(fleet.members), 'server')}, looked at together",
        card=[*_card(fleet)],
        counts=[
            f"{unwell} of {len(fleet.members)} unwell",
            f"in {units.duration(fleet.seconds)}",
        ],
        sections=[
            b.Section("All servers", [*_table(fleet.members, len(fleet.members))], 97),
            b.Section("What they say together", [*_findings(fleet)], 96),
            b.Section("In what they differ", [*_differences(fleet)], 90),
            *(b.Section(one.name, [*_one(one)], 80) for one in fleet.members[:32]),
            b.Section("What could not be observed", b.bullets(fleet.unseen[:40]), 72),
        ],
        footer=f"mmrepro {fleet.mmrepro_version}",
    )


def _card(fleet: Fleet) -> Iterator[b.Block]:
    yield b.p(b.strong(words.sentence(fleet.sentence)))
    for finding in fleet.findings[1:3]:
        yield b.p(words.sentence(finding.sentence))
    unlike = sorted(fleet.members, key=lambda one: one.well is not False)
    yield from _table(unlike[:_ROWS], len(fleet.members))
    for finding in fleet.findings[:1]:
        yield from (b.p("To do: ", b.prose(text)) for text in finding.advice[:2])
        place = next(
            (m.diagnosis for m in fleet.members if m.name in finding.servers), None
        )
        if place is not None and place.incident_dir:
            yield b.p(
                "Its own report: ", b.code(f"mmrepro report {place.incident_dir}")
            )


def _table(members: Sequence[Member], count: int) -> Iterator[b.Block]:
    parts = {one.part for one in members} != {Part.REPLICA}
    rows = []
    for one in members:
        tone: b.Tone = "unsure" if one.well is None else "good" if one.well else "bad"
        found = one.diagnosis
        state = STATE_WORDS[found.state].partition(":")[0] if found else "not diagnosed"
        cells: list[b.Inline] = [b.code(one.name)]
        cells += [one.part.value] if parts else []
        cells += [
            b.toned(state, tone),
            found.assessment.process if found else "",
            _load(one),
        ]
        rows.append(b.row(*cells, status="" if one.well else "unwell"))
    heads = [
        "server:name",
        *(["for"] if parts else []),
        "is",
        "process:name",
        "counted",
    ]
    yield from b.table(heads, rows, "servers")
    if count > len(members):
        yield b.p(f"and {count - len(members)} more", tone="soft")


def _load(one: Member) -> str:
    """``running 1 → 1, waiting 3 → 5``; of what Prometheus holds where nothing else is
    known."""
    held = one.scraped
    parts = {
        k: v for k, v in one.counted.items() if k in ("running", "waiting", "transfers")
    }
    if not parts and held is not None:
        parts = {
            "running": held.running,
            "waiting": held.waiting,
            "tokens": held.tokens,
        }
    told = [f"{s} " + " → ".join(f"{v:g}" for v in vs) for s, vs in parts.items() if vs]
    return ", ".join(told) + (" (Prometheus)" if told and not one.counted else "")


def _findings(fleet: Fleet) -> Iterator[b.Block]:
    for finding in fleet.findings:
        yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[b.Block]:
    yield b.Heading((b.code(finding.state.value), f" {finding.certainty.value}"))
    yield b.p(words.sentence(finding.sentence))
    yield from b.bullets(finding.why[:24])
    if finding.advice:
        yield b.p("What to do:")
        yield from b.bullets([b.prose(text) for text in finding.advice])


def _differences(fleet: Fleet) -> Iterator[b.Block]:
    yield from b.bullets(
        [f"{m.name}: {text}" for m in fleet.members for text in m.differs[:12]]
    )


def _one(one: Member) -> Iterator[b.Block]:
    found = one.diagnosis
    yield b.p(words.sentence(one.sentence or "It was not diagnosed."))
    if one.part_because:
        yield b.p(f"It is a {one.part} server, by {one.part_because}.")
    if one.scraped is not None and one.scraped.health:
        error = f": {one.scraped.last_error}" if one.scraped.last_error else ""
        yield b.p(f"Prometheus scrapes it: {one.scraped.health}{error}.")
    if found is not None:
        yield from b.bullets(found.assessment.why[:12])
        yield b.p(one_server.effect_sentence(found))
        if found.incident_dir:
            yield b.p(
                "Its own report: ", b.code(f"mmrepro report {found.incident_dir}")
            )


def _suites(fleet: Fleet) -> list[Suite]:
    cases: list[Case] = []
    for one in fleet.members:
        if one.diagnosis is not None:
            cases += one_server.diagnosis_cases(one.diagnosis, one.name)
        else:
            cases.append(Case(one.name, f"state of {one.url}", "error", one.error))
    for finding in fleet.findings:
        if finding.state is not FleetState.ALL_UNWELL:
            name = ", ".join(finding.servers)
            cases.append(
                Case(
                    "servers", name, "failed", finding.sentence, "\n".join(finding.why)
                )
            )
    return [Suite("servers", fleet.taken.wall, cases)]


KIND = kind(
    Fleet,
    FLEET_FILE,
    compose_fleet,
    name="a look at several servers",
    files=("report.md", "report.html"),
    junit=_suites,
)
