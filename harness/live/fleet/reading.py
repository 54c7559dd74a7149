"""What several looks say together: who is unlike the others. Pure.

A replica is compared with those that are for the same; a decode server with the prefill
servers. A statement rests on what was read of both sides, never on what could not be
read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from mmrepro.failure.documents import (
    Certainty,
    FleetFinding,
    FleetPart,
    FleetState,
    Member,
    TargetFacts,
)
from mmrepro.live.fleet.look import (
    SHOWN,
    Look,
    member,
    names_of,
    option_words,
    state_of,
)
from mmrepro.live.fleet.transfers import local_prefills, standing_transfers
from mmrepro.probes import InferenceData

_SLOW_TIMES, _SLOW_S = 5.0, 2.0
"""A small request that takes so many times as long as with the median, and so much
longer."""
_OWN = re.compile(
    r"^--?(?:port|host|.*-port|.*-ip|.*-addr(?:ess)?|.*-rank|node-id|.*-host|uds|seed"
    r"|root-path"
    r"|base-gpu-id|.*-init-addr|.*-log.*|device|name)$"
)
"""Options that are each server's own."""


def read(looks: Sequence[Look]) -> tuple[list[Member], list[FleetFinding]]:
    """The servers, and what is to be said of them together, the gravest first."""
    members = [member(look) for look in looks]
    by_part: dict[FleetPart, list[tuple[Member, Look]]] = {}
    for server, look in zip(members, looks, strict=True):
        by_part.setdefault(server.part, []).append((server, look))
    for alike in by_part.values():
        _note_differences(alike)

    findings = [*standing_transfers(by_part)]
    about: set[str] = set()
    for finding in findings:
        about.update(finding.servers)
    for part, alike in by_part.items():
        findings += _odd(part, [server for server, _ in alike], about)
    return members, [*findings, *local_prefills(by_part)]


def summary(
    members: Sequence[Member], findings: Sequence[FleetFinding]
) -> tuple[FleetState, str]:
    """One state for all of them, and a sentence."""
    if findings:
        return findings[0].state, findings[0].sentence
    blind = [server for server in members if server.well is None]
    if blind:
        well = len(members) - len(blind)
        return FleetState.UNKNOWN, (
            f"{well} of {len(members)} servers are well; the state of "
            f"{names_of(blind)} is unknown."
        )
    return FleetState.ALL_WELL, f"All {len(members)} servers are well."


def _each(unwell: Sequence[Member]) -> str:
    return "; ".join(f"{server.name}: {state_of(server)}" for server in unwell[:SHOWN])


def _answer(well: Sequence[Member]) -> str:
    return "answers" if len(well) == 1 else "answer"


def _odd(
    part: FleetPart, alike: Sequence[Member], about: set[str]
) -> Iterator[FleetFinding]:
    """The servers that are unwell among those that are for the same."""
    unwell = [server for server in alike if server.well is False]
    well = [server for server in alike if server.well]
    names = [server.name for server in unwell]
    if not unwell or about.issuperset(names):
        return
    kind = "servers" if part is FleetPart.REPLICA else f"{part} servers"
    count = len(alike)
    why = _why_unwell(unwell, well)
    if not well:
        all_unwell = len(unwell) == count
        yield FleetFinding(
            state=FleetState.ALL_UNWELL,
            certainty=Certainty.CERTAIN if all_unwell else Certainty.LIKELY,
            sentence=_none_works(unwell, count, kind),
            servers=names,
            why=why,
            advice=[
                "look at what they share: their traffic, their model, their release"
            ],
        )
        return
    if len(unwell) == 1:
        rest = f"{len(well)} of {count} {kind} {_answer(well)}"
        sentence = f"{names[0]} is the odd one out, {rest}: {unwell[0].sentence}"
    else:
        sentence = f"{len(unwell)} of {count} {kind} are unwell: {_each(unwell)}."
    yield FleetFinding(
        state=FleetState.ODD_ONE_OUT,
        certainty=Certainty.CERTAIN,
        sentence=sentence,
        servers=names,
        why=why,
        advice=[f"take {names_of(unwell)} out of the load balancer, then restart"],
    )


def _why_unwell(unwell: Sequence[Member], well: Sequence[Member]) -> list[str]:
    shown = unwell[:SHOWN]
    why = [f"{server.name}: {state_of(server)}: {server.sentence}" for server in shown]
    if well:
        why.append(f"{names_of(well)}: {_answer(well)}")
    for server in shown:
        why += [f"{server.name}: {difference}" for difference in server.differs]
    known: set[str] = set()
    for server in unwell:
        if server.diagnosis is not None:
            known.update(match.scenario for match in server.diagnosis.found)
    return why + [f"known failure: {name}" for name in sorted(known)]


def _none_works(unwell: Sequence[Member], count: int, kind: str) -> str:
    """The sentence where no server of ``kind`` is seen to be well."""
    first = unwell[0]
    if count == 1:
        return f"{first.name}, the only {kind[:-1]}, is unwell: {first.sentence}"
    if len(unwell) < count:
        return f"No {kind[:-1]} is seen to work: {_each(unwell)}."
    states = {state_of(server) for server in unwell}
    if len(states) == 1:
        return f"All {count} {kind} are unwell: {state_of(first)}."
    return f"All {count} {kind} are unwell: {_each(unwell)}."


def _note_differences(alike: Sequence[tuple[Member, Look]]) -> None:
    """Note in what each is unlike the others: release, model, options, the time of an
    answer."""
    members = [server for server, _ in alike]
    targets: list[TargetFacts | None] = []
    for server in members:
        targets.append(server.diagnosis.target if server.diagnosis else None)

    for fact in ("release", "engine", "model"):
        # What is not known of a server is no difference: its value is "".
        values = [getattr(target, fact, "") for target in targets]
        for server, value, usual in _unusual(members, values):
            server.differs.append(f"{fact} {value}, where the others have {usual}")
    _note_options(members, targets)
    _note_times(alike)


def _note_options(
    members: Sequence[Member], targets: Sequence[TargetFacts | None]
) -> None:
    # Of a server whose command line is not known no option is missing.
    options: list[dict[str, str] | None] = []
    names: set[str] = set()
    for target in targets:
        given: dict[str, str] | None = None
        if target and target.command:
            given = _options(target.command)
            names.update(given)
        options.append(given)

    for name in sorted(names):
        values: list[str] = []
        for given in options:
            values.append("" if given is None else given.get(name, "-"))
        for server, value, usual in _unusual(members, values):
            has = "is not given" if value == "-" else f"is {value}"
            theirs = "do not have it" if usual == "-" else f"have {usual}"
            server.differs.append(f"{name} {has}, where the others {theirs}")


def _note_times(alike: Sequence[tuple[Member, Look]]) -> None:
    times: list[tuple[Member, float]] = []
    for server, look in alike:
        seconds = _answered_s(look)
        if seconds is not None:
            times.append((server, seconds))
    # Of two servers the slower one may be the usual one.
    if len(times) < 3:
        return
    for server, seconds in times:
        usual = median(other for member, other in times if member is not server)
        if seconds > _SLOW_TIMES * usual and seconds > usual + _SLOW_S:
            server.differs.append(
                f"a small request takes {seconds:.1f} s, with the others {usual:.1f} s"
            )


def _unusual(
    members: Sequence[Member], values: Sequence[str]
) -> Iterator[tuple[Member, str, str]]:
    """Each server whose value is known and is not what most have: it, its value, and
    theirs."""
    usual = _usual(values)
    if not usual:
        return
    for server, value in zip(members, values, strict=True):
        if value and value != usual:
            yield server, value, usual


def _usual(values: Sequence[str]) -> str:
    """What most have; "": there is none."""
    known = [value for value in values if value]
    if len(known) < 2:
        return ""
    first, count = Counter(known).most_common(1)[0]
    return first if count > len(known) / 2 else ""


def _options(command: Sequence[str]) -> dict[str, str]:
    """Option: its value, without those that are each server's own."""
    options: dict[str, str] = {}
    for name, value in pairwise([*option_words(command), ""]):
        if not name.startswith("--") or _OWN.match(name):
            continue
        has_value = value and not value.startswith("--")
        options[name] = value[:80] if has_value else "given"
    return options


def _answered_s(look: Look) -> float | None:
    if look.evidence is None:
        return None
    for _, data in look.evidence.results(InferenceData, "check"):
        if data.answered:
            return data.seconds
    return None
