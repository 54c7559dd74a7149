"""Known failures of which one side's release is known to have one and the other's is
not.

What recorded runs of a release show counts before the range that a scenario declares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from mmrepro.engines.base import has_option
from mmrepro.failure.documents.upgrade import Difference, Outcome
from mmrepro.failure.signature import Outcome as RunOutcome, Truth
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.scenarios.data import recorded_runs
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.upgrade.failures import difference
from mmrepro.tools.catalogue.find import entries
from mmrepro.tools.catalogue.recorded import load
from mmrepro.tools.catalogue.standing import RecordedScenario, known
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import Case, Operation, ServerWanted
from packaging.version import InvalidVersion, Version

IMAGES, GRAMMAR, LEAVES, STREAM = (
    "images",
    "a grammar",
    "a client that leaves",
    "a stream",
)
"""Words of ``Scenario.needs``."""


def compare(case: Case, new: ServerWanted, device: str = "") -> list[Difference]:
    """The known failures that the case's own server has and ``new`` has not, and the
    other way round. One that the traffic cannot meet is listed, one of NEW that it
    could meet matters."""
    old = case.server
    try:
        releases = Version(old.release), Version(new.release)
    except InvalidVersion:
        said = "Known failures were not looked up: a source tree is no release."
        return [difference("known failures", Outcome.NONE, said)]
    if old.engine != new.engine or releases[0] == releases[1]:
        return []
    ops = [opened(op) for op in case.operations]
    every, _ = known(load(recorded_runs()))
    failures = [one for one in every if one.scenario.engine == old.engine]
    failures = [one for one in failures if not one.scenario.spares(device)]
    found: list[Difference] = []
    apart: dict[bool, list[str]] = {True: [], False: []}
    for one in failures:
        before, after = (_has(one, server) for server in (old, new))
        name, has = one.scenario.name, after[0]
        if before[0] == after[0] or any(name == done.subject for done in found):
            continue  # of several variants the first one that the traffic could meet
        could = _could_meet(one.scenario, new if has else old, ops)
        if not could:
            apart[has].append(name)
            continue
        sides = ("NEW has it", "OLD has not") if has else ("OLD has it", "NEW has not")
        reasons = (after[1], before[1]) if has else (before[1], after[1])
        both = zip(sides, reasons, strict=True)
        said = f"{name} ({one.scenario.title}): "
        said += ", ".join(f"{side} ({why})" for side, why in both)
        said += f"; {fixed}" if (fixed := _fixed(one.scenario)) else ""
        said += f"; the traffic could meet it: {could}."
        evidence = [f"{r.id} {r.url}" for r in one.scenario.references]
        found.append(
            difference(
                name,
                Outcome.DIFFERENCE,
                said,
                matters=has,
                sides=(not has, has),
                evidence=evidence,
            )
        )
    met = {one.subject for one in found}
    return [
        *found,
        *_listed({has: [*dict.fromkeys(names)] for has, names in apart.items()}, met),
    ]


def _listed(
    apart: Mapping[bool, Sequence[str]], met: Collection[str]
) -> Iterator[Difference]:
    for has, all_names in apart.items():
        if names := [name for name in all_names if name not in met]:
            side = "NEW alone has" if has else "OLD alone has"
            said = f"{side} these known failures too, which this traffic cannot meet: "
            said += f"{', '.join(names)}."
            yield difference(
                "other known failures",
                Outcome.DIFFERENCE,
                said,
                sides=(not has, has),
                evidence=names,
            )


def _has(one: RecordedScenario, server: ServerWanted) -> tuple[bool, str]:
    """Whether a release has the failure, and by what that is known."""
    outcomes = {run.outcome for run in one.at(server.release)}
    if RunOutcome.REPRODUCED in outcomes:
        return True, "reproduced in a recorded run"
    if RunOutcome.NOT_REPRODUCED in outcomes:
        return False, "not reproduced in a recorded run"
    affected = one.scenario.affects(server.release)
    return affected, f"by its range, {one.scenario.affected_range}"


def _could_meet(
    scenario: Scenario, server: ServerWanted, ops: Sequence[Operation]
) -> str:
    """What of the traffic or the server's command it needs; "": it cannot happen."""
    facts = LiveFacts(server.engine, server.release, tuple(server.args))
    exposure = scenario.exposure(facts)
    if exposure.truth is Truth.NOT_MET and scenario.affects(server.release):
        return ""  # an option of the command keeps it away
    if not scenario.needs:
        return "it needs nothing that traffic shows"
    return next(
        (f"it has {need}" for need in scenario.needs if _met(need, facts, ops)), ""
    )


def _met(need: str, facts: LiveFacts, ops: Sequence[Operation]) -> bool:
    """Whether all that ``need`` names is there, whatever one request has of it."""
    if " and " in need:
        return all(_met(one, facts, ops) for one in need.split(" and "))
    if need == STREAM:
        return any(op.stream for op in ops)
    if need == IMAGES:
        return any(op.images for op in ops)
    if need == GRAMMAR:
        return any(op.parameters.get(name) for op in ops for name in GRAMMARS)
    if need == LEAVES:
        return any(op.leave for op in ops)
    if need.startswith("-"):
        name, valued, value = need.partition("=")
        return (
            facts.option(name) == value if valued else has_option(facts.command, name)
        )
    return any(op.parameters.get(need) is not None for op in ops)


def _fixed(scenario: Scenario) -> str:
    """Where it is fixed, as far as that is known."""
    told = (
        one.fixed
        for one in entries()
        if (one.kind, one.name) == ("scenario", scenario.name)
    )
    return next(told, scenario.upstream.words)
