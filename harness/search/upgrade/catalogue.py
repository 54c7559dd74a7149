"""Known failures of which one side's release is known to have one and the other's is
not.

What recorded runs of a release show counts before the range that a scenario declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmrepro.engines import has_option
from mmrepro.failure.documents import Difference, UpgradeOutcome
from mmrepro.failure.signature import Outcome as RunOutcome, Truth
from mmrepro.scenario import LiveFacts, Scenario
from mmrepro.scenarios.data import recorded_runs
from mmrepro.search.oracle.loud import GRAMMARS
from mmrepro.search.upgrade.failures import difference
from mmrepro.tools.catalogue import (
    RecordedScenario,
    index_entries,
    known_standings,
    load_recorded,
)
from mmrepro.traffic.case import Case, Operation, ServerWanted, opened_body
from packaging.version import InvalidVersion, Version

_IMAGES = "images"
_GRAMMAR = "a grammar"
_LEAVES = "a client that leaves"
_STREAM = "a stream"
"""Words of ``Scenario.needs``."""


def compare(case: Case, new: ServerWanted, device: str = "") -> list[Difference]:
    """Compare the known failures of the case's own server with those of ``new``. One
    that the traffic cannot meet is listed, one of NEW that it could meet matters."""
    old = case.server
    try:
        releases = Version(old.release), Version(new.release)
    except InvalidVersion:
        said = "Known failures were not looked up: a source tree is no release."
        return [difference("known failures", UpgradeOutcome.NONE, said)]

    if old.engine != new.engine or releases[0] == releases[1]:
        return []

    ops = [opened_body(op) for op in case.operations]
    differences: dict[str, Difference] = {}
    not_met: dict[bool, list[str]] = {True: [], False: []}
    for failure in _failures(old.engine, device):
        name = failure.scenario.name
        before, after = _has(failure, old), _has(failure, new)
        if before[0] == after[0] or name in differences:
            continue  # of several variants the first one that the traffic could meet
        is_of_new = after[0]
        could = _could_meet(failure.scenario, new if is_of_new else old, ops)
        if could:
            differences[name] = _differing(failure.scenario, before, after, could)
        elif name not in not_met[is_of_new]:
            not_met[is_of_new].append(name)

    listed: list[Difference] = []
    for is_of_new, names in not_met.items():
        # The traffic may have met a later variant.
        listed += _listed(is_of_new, [n for n in names if n not in differences])
    return [*differences.values(), *listed]


def _failures(engine: str, device: str) -> Iterator[RecordedScenario]:
    """Known failures of an engine that the device does not spare."""
    every, _ = known_standings(load_recorded(recorded_runs()))
    for failure in every:
        scenario = failure.scenario
        if scenario.engine == engine and not scenario.spares(device):
            yield failure


def _differing(
    scenario: Scenario, before: tuple[bool, str], after: tuple[bool, str], could: str
) -> Difference:
    """State a failure of one side that the traffic could meet.

    Args:
        before: whether OLD has it, and by what that is known; ``after`` the same of NEW.
        could: what of the traffic it needs.
    """
    is_of_new = after[0]
    if is_of_new:
        sides = f"NEW has it ({after[1]}), OLD has not ({before[1]})"
    else:
        sides = f"OLD has it ({before[1]}), NEW has not ({after[1]})"

    said = f"{scenario.name} ({scenario.title}): {sides}"
    fixed = _fixed(scenario)
    if fixed:
        said += f"; {fixed}"
    said += f"; the traffic could meet it: {could}."
    references = [
        f"{reference.id} {reference.url}" for reference in scenario.references
    ]
    return difference(
        scenario.name,
        UpgradeOutcome.DIFFERENCE,
        said,
        matters=is_of_new,
        sides=(not is_of_new, is_of_new),
        evidence=references,
    )


def _listed(is_of_new: bool, names: Sequence[str]) -> Iterator[Difference]:
    if not names:
        return
    side = "NEW alone has" if is_of_new else "OLD alone has"
    said = f"{side} these known failures too, which this traffic cannot meet: "
    said += f"{', '.join(names)}."
    yield difference(
        "other known failures",
        UpgradeOutcome.DIFFERENCE,
        said,
        sides=(not is_of_new, is_of_new),
        evidence=names,
    )


def _has(failure: RecordedScenario, server: ServerWanted) -> tuple[bool, str]:
    """Whether a release has the failure, and by what that is known."""
    # What was seen counts before what was declared.
    outcomes = {run.outcome for run in failure.at(server.release)}
    if RunOutcome.REPRODUCED in outcomes:
        return True, "reproduced in a recorded run"
    if RunOutcome.NOT_REPRODUCED in outcomes:
        return False, "not reproduced in a recorded run"
    affected = failure.scenario.affects(server.release)
    return affected, f"by its range, {failure.scenario.affected_range}"


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
    for need in scenario.needs:
        if _met(need, facts, ops):
            return f"it has {need}"
    return ""


def _met(need: str, facts: LiveFacts, ops: Sequence[Operation]) -> bool:
    """Whether all that ``need`` names is there, whatever one request has of it."""
    if " and " in need:
        return all(_met(part, facts, ops) for part in need.split(" and "))
    if need == _STREAM:
        return any(op.stream for op in ops)
    if need == _IMAGES:
        return any(op.images for op in ops)
    if need == _GRAMMAR:
        return any(_has_grammar(op) for op in ops)
    if need == _LEAVES:
        return any(op.leave for op in ops)
    if need.startswith("-"):
        return _has_option(need, facts)
    return any(op.parameters.get(need) is not None for op in ops)


def _has_grammar(op: Operation) -> bool:
    return any(op.parameters.get(name) for name in GRAMMARS)


def _has_option(need: str, facts: LiveFacts) -> bool:
    """Whether the command has the option, with the value if ``need`` says one."""
    name, valued, value = need.partition("=")
    if valued:
        return facts.option(name) == value
    return has_option(facts.command, name)


def _fixed(scenario: Scenario) -> str:
    """Where it is fixed, as far as that is known."""
    for entry in index_entries():
        if entry.kind == "scenario" and entry.name == scenario.name:
            return entry.fixed
    return scenario.upstream.words
