"""Several servers in one look as a page: which is unlike the others, what is wrong
between them."""

from collections.abc import Iterator, Sequence
from typing import Final

from mmrepro.base import units
from mmrepro.failure.documents import (
    FLEET_FILE,
    FLEET_WORDS,
    STATE_WORDS,
    Diagnosis,
    Fleet,
    FleetFinding,
    FleetPart,
    FleetState,
    Member,
)
from mmrepro.reports import blocks as b, diagnosis as one_server, words
from mmrepro.reports.documents import JunitCase, Suite, kind

_ROWS: Final = 8
"""Servers on the first screen; those that are unwell come first."""


def compose_fleet(fleet: Fleet) -> b.Page:
    """The page of several servers."""
    servers = len(fleet.members)
    unwell = sum(member.well is False for member in fleet.members)
    return b.Page(
        title=f"{servers} servers",
        badge=_badge(fleet),
        subject=f"{b.count(servers, 'server')}, observed together",
        card=[*_card(fleet)],
        counts=[
            f"{unwell} of {servers} unwell",
            f"in {units.duration(fleet.seconds)}",
        ],
        sections=[*_sections(fleet)],
        footer=f"mmrepro {fleet.mmrepro_version}",
    )


def _badge(fleet: Fleet) -> b.Badge:
    tones: dict[int, b.Tone] = {0: "good", 1: "bad"}
    state, _, _ = FLEET_WORDS[fleet.state].partition(":")
    return b.Badge(
        label=words.capital(state),
        tone=tones.get(fleet.exit_code, "unsure"),
        note=f"exit {fleet.exit_code}",
    )


def _sections(fleet: Fleet) -> Iterator[b.Section]:
    everyone = [*_table(fleet.members, len(fleet.members))]
    yield b.Section("All servers", everyone, keep=97)
    yield b.Section("What they say together", [*_findings(fleet)], keep=96)
    yield b.Section("In what they differ", _differences(fleet), keep=90)
    for member in fleet.members[:32]:
        yield b.Section(member.name, [*_member(member)], keep=80)

    yield b.Section("What could not be observed", b.bullets(fleet.unseen[:40]), keep=72)


def _card(fleet: Fleet) -> Iterator[b.Block]:
    yield b.p(b.strong(words.sentence(fleet.sentence)))
    for finding in fleet.findings[1:3]:
        yield b.p(words.sentence(finding.sentence))

    unwell_first = sorted(fleet.members, key=lambda member: member.well is not False)
    yield from _table(unwell_first[:_ROWS], len(fleet.members))
    for finding in fleet.findings[:1]:
        for text in finding.advice[:2]:
            yield b.p("To do: ", b.prose(text))
        yield from _own_report(_first_diagnosis(fleet, finding))


def _first_diagnosis(fleet: Fleet, finding: FleetFinding) -> Diagnosis | None:
    """The diagnosis of the first server that the finding is about; it may have none."""
    for member in fleet.members:
        if member.name in finding.servers:
            return member.diagnosis

    return None


def _own_report(diagnosis: Diagnosis | None) -> Iterator[b.Block]:
    if diagnosis is not None and diagnosis.incident_dir:
        command = b.code(f"mmrepro report {diagnosis.incident_dir}")
        yield b.p("Its own report: ", command)


def _table(members: Sequence[Member], count: int) -> Iterator[b.Block]:
    has_parts = {member.part for member in members} != {FleetPart.REPLICA}
    rows = []
    for member in members:
        cells: list[b.Inline] = [b.code(member.name)]
        if has_parts:
            cells.append(member.part.value)
        cells += [_state(member), _process(member), _load(member)]
        rows.append(b.row(*cells, status="" if member.well else "unwell"))

    part = " | for" if has_parts else ""
    heads = f"server:name{part} | is | process:name | counted"
    yield from b.table(heads, rows, "servers")
    if count > len(members):
        yield b.p(f"and {count - len(members)} more", tone="soft")


def _state(member: Member) -> b.Inline:
    tones: dict[bool | None, b.Tone] = {None: "unsure", True: "good", False: "bad"}
    state = "not diagnosed"
    if member.diagnosis:
        state, _, _ = STATE_WORDS[member.diagnosis.state].partition(":")
    return b.toned(state, tones[member.well])


def _process(member: Member) -> str:
    return member.diagnosis.assessment.process if member.diagnosis else ""


def _load(member: Member) -> str:
    """``running 1 → 1, waiting 3 → 5``; of what Prometheus holds where nothing else is
    known."""
    counted = {}
    for name, values in member.counted.items():
        if name in ("running", "waiting", "transfers"):
            counted[name] = values

    held = member.scraped
    if not counted and held is not None:
        counted = {
            "running": held.running,
            "waiting": held.waiting,
            "tokens": held.tokens,
        }

    courses = []
    for name, values in counted.items():
        if values:
            course = " → ".join(f"{value:g}" for value in values)
            courses.append(f"{name} {course}")

    text = ", ".join(courses)
    return f"{text} (Prometheus)" if text and not member.counted else text


def _findings(fleet: Fleet) -> Iterator[b.Block]:
    for finding in fleet.findings:
        yield from _finding(finding)


def _finding(finding: FleetFinding) -> Iterator[b.Block]:
    yield b.Heading((b.code(finding.state.value), f" {finding.certainty.value}"))
    yield b.p(words.sentence(finding.sentence))
    yield from b.bullets(finding.why[:24])
    if finding.advice:
        yield b.p("What to do:")
        yield from b.bullets([b.prose(text) for text in finding.advice])


def _differences(fleet: Fleet) -> list[b.Block]:
    differences = []
    for member in fleet.members:
        for text in member.differs[:12]:
            differences.append(f"{member.name}: {text}")

    return b.bullets(differences)


def _member(member: Member) -> Iterator[b.Block]:
    yield b.p(words.sentence(member.sentence or "It was not diagnosed."))
    if member.part_because:
        yield b.p(f"It is a {member.part} server, by {member.part_because}.")
    scraped = member.scraped
    if scraped is not None and scraped.health:
        error = f": {scraped.last_error}" if scraped.last_error else ""
        yield b.p(f"Prometheus scrapes it: {scraped.health}{error}.")

    diagnosis = member.diagnosis
    if diagnosis is not None:
        yield from b.bullets(diagnosis.assessment.why[:12])
        yield b.p(one_server.effect_sentence(diagnosis))
        yield from _own_report(diagnosis)


def _suites(fleet: Fleet) -> list[Suite]:
    cases: list[JunitCase] = []
    for member in fleet.members:
        if member.diagnosis is not None:
            cases += one_server.diagnosis_cases(member.diagnosis, member.name)
        else:
            case = JunitCase(
                group=member.name,
                name=f"state of {member.url}",
                how="error",
                message=member.error,
            )
            cases.append(case)

    for finding in fleet.findings:
        # Each server that is unwell has a case already.
        if finding.state is FleetState.ALL_UNWELL:
            continue
        case = JunitCase(
            group="servers",
            name=", ".join(finding.servers),
            how="failed",
            message=finding.sentence,
            text="\n".join(finding.why),
        )
        cases.append(case)

    return [Suite("servers", fleet.taken.wall, cases)]


KIND = kind(
    Fleet,
    FLEET_FILE,
    compose_fleet,
    name="a look at several servers",
    files=("report.md", "report.html"),
    junit=_suites,
)
