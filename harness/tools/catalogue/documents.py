"""What ``mmrepro list`` and ``mmrepro show`` print of a scenario that is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from mmrepro.base.records import Document, Fidelity
from mmrepro.base.units import count
from mmrepro.failure.signature import Condition
from mmrepro.scenario import Scenario
from mmrepro.scenario.parts import RunFacts
from mmrepro.tools.catalogue.find import FailureCard
from mmrepro.tools.catalogue.standing import Newest, Standing
from pydantic import Field

if TYPE_CHECKING:
    from mmrepro.scenario.reading import DeclaredScenario

_Facts = dict[str, Any]


class ListDocument(Document, kind="list"):
    """The known failures; of one that cannot be loaded its name and why, as
    ``error``."""

    scenarios: list[_Facts]


class AliveDocument(Document, kind="alive"):
    """What recorded runs show of the newest releases."""

    engines: list[Newest]
    failures: list[Standing]
    broken: Annotated[
        dict[str, str], Field(description="scenario, and why it cannot be loaded")
    ]
    not_registered: Annotated[
        list[str], Field(description="recorded, and no scenario here")
    ]


class ScenarioDocument(Document, kind="scenario"):
    """One failure mode."""

    name: str
    engine: str
    affected: str
    devices: list[str]
    default_release: str
    title: str
    variants: list[str]
    failure_class: str | None
    severity: str | None
    upstream: _Facts
    variant: str
    summary: str
    explanation: str
    server_args: list[str]
    conditions: list[_Facts]
    mitigations: list[_Facts]
    options: dict[str, str]
    factors: list[_Facts]
    references: list[_Facts]
    declared_only: Annotated[
        bool,
        Field(
            description="its file was parsed and not run: what it computes is missing"
        ),
    ] = False


def listed(loaded: Scenario) -> _Facts:
    """What it is, what a user observes, how bad that is, and what the engine's project
    says."""
    source = loaded.upstream.source
    upstream = _of(loaded.upstream, "state", "release", "looked_up", "note")
    upstream["source"] = source.model_dump() if source else None
    variants = [scenario.variant for scenario in loaded.variants]
    return {
        "name": loaded.name,
        "engine": loaded.engine,
        "affected": loaded.affected_range,
        "devices": list(loaded.devices),
        "default_release": loaded.release,
        "title": loaded.title,
        "variants": ", ".join(variants),
        "failure_class": loaded.failure_class,
        "severity": loaded.severity,
        "upstream": upstream,
    }


def shown(
    loaded: Scenario, conditions: Sequence[Condition], live: Collection[str]
) -> ScenarioDocument:
    """Facts of a scenario for ``mmrepro show``. ``live``: ids of the conditions that
    are judged on a live server."""
    judged = []
    for condition in conditions:
        facts = _of(condition, "id", "part", "statement", "required")
        judged.append({**facts, "live": condition.id in live})

    mitigations = []
    for mitigation in loaded.mitigations:
        mitigations.append(_of(mitigation, "name", "description", "release"))

    factors = []
    for factor in loaded.factors:
        factors.append(_of(factor, "name", "failing", "setting", "claim"))

    facts = {
        **listed(loaded),
        **_of(loaded, "variant", "summary", "explanation"),
        "variants": [scenario.variant for scenario in loaded.variants],
        "server_args": list(loaded.server_args),
        "conditions": judged,
        "mitigations": mitigations,
        "options": dict(loaded.options),
        "factors": factors,
        "references": [reference.model_dump() for reference in loaded.references],
    }
    return ScenarioDocument(**facts)


def listed_as_declared(read: DeclaredScenario) -> _Facts:
    """Facts as :func:`listed` has them, of a file that was not run."""
    return {
        "name": read.name,
        "engine": read.engine,
        "affected": read.affected,
        "devices": read.devices,
        "default_release": read.release,
        "title": read.title,
        "variants": ", ".join(read.variants),
        "failure_class": read.failure_class or None,
        "severity": read.severity or None,
        "upstream": read.upstream.model_dump(),
        "declared_only": True,
    }


def shown_as_declared(read: DeclaredScenario) -> ScenarioDocument:
    """Facts as :func:`shown` has them, of a file that was not run."""
    references = []
    for source in read.references:
        references.append(
            {"id": source.id, "title": source.title, "url": source.address}
        )

    facts = {
        **listed_as_declared(read),
        **_of(read, "variant", "variants", "summary", "explanation"),
        "server_args": read.server.split(),
        "conditions": [condition.model_dump() for condition in read.conditions],
        "mitigations": [mitigation.model_dump() for mitigation in read.mitigations],
        "options": {},
        "factors": [],
        "references": references,
    }
    return ScenarioDocument(**facts)


def _of(given: object, *names: str) -> _Facts:
    return {name: getattr(given, name) for name in names}


def default_conditions(loaded: Scenario) -> Sequence[Condition]:
    """Conditions that a run of its default release on a CPU is judged by."""
    return loaded.conditions(
        RunFacts(loaded.release, Fidelity.CPU, frozenset(), deadline_s=0.0)
    )


def counts_of(counted: Mapping[str, int]) -> list[str]:
    """``3 conditions``, ``1 variant``: of each that there is any of."""
    return [count(number, word) for word, number in counted.items() if number]


def card_of(loaded: Scenario) -> FailureCard:
    """The texts of its end screen."""
    name = f"{loaded.name}:{loaded.variant}" if loaded.variant else loaded.name
    kind = ""
    if loaded.failure_class:
        kind = f"{loaded.failure_class.words}, {loaded.severity}"
    upstream = loaded.upstream
    when = f" ({upstream.looked_up})" if upstream.looked_up else ""
    where = f": {upstream.source.id}" if upstream.source else ""
    texts = [
        loaded.summary,
        f"Why: {loaded.explanation}",
        f"Affected: {loaded.engine} {loaded.affected_where}; run by default at "
        f"{loaded.release}; upstream: {upstream.words}{where}{when}",
    ]
    for cure in loaded.mitigations[:2]:
        texts.append(f"Workaround {cure.name}: {cure.description}")
    counted = {
        "condition": len(default_conditions(loaded)),
        "variant": len(loaded.variants),
        "mitigation": len(loaded.mitigations),
        "factor": len(loaded.factors),
    }
    return FailureCard(
        name=name,
        title=loaded.title,
        kind=kind,
        texts=tuple(texts),
        counts=tuple(counts_of(counted)),
    )
