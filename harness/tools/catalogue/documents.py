"""What ``mmrepro list`` and ``mmrepro show`` print with ``--json``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from mmrepro.base.records import Document
from mmrepro.failure.signature import Condition
from mmrepro.scenario import Scenario
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
    upstream = loaded.upstream
    return {
        "name": loaded.name,
        "engine": loaded.engine,
        "affected": loaded.affected_range,
        "devices": list(loaded.devices),
        "default_release": loaded.release,
        "title": loaded.title,
        "variants": ", ".join(v.variant for v in loaded.variants),
        "failure_class": loaded.failure_class,
        "severity": loaded.severity,
        "upstream": {
            **_of(upstream, "state", "release", "looked_up", "note"),
            "source": upstream.source.model_dump() if upstream.source else None,
        },
    }


def shown(
    loaded: Scenario, conditions: Sequence[Condition], live: Collection[str]
) -> ScenarioDocument:
    """``live``: ids of the conditions that are judged on a live server."""
    facts = {
        **listed(loaded),
        **_of(loaded, "variant", "summary", "explanation"),
        "variants": [v.variant for v in loaded.variants],
        "server_args": list(loaded.server_args),
        "conditions": [
            {**_of(c, "id", "part", "statement", "required"), "live": c.id in live}
            for c in conditions
        ],
        "mitigations": [
            _of(m, "name", "description", "release") for m in loaded.mitigations
        ],
        "options": dict(loaded.options),
        "factors": [
            _of(f, "name", "failing", "setting", "claim") for f in loaded.factors
        ],
        "references": [r.model_dump() for r in loaded.references],
    }
    return ScenarioDocument(**facts)


def listed_as_declared(read: DeclaredScenario) -> _Facts:
    """As :func:`listed`, of a file that was not run."""
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
    """As :func:`shown`, of a file that was not run."""
    facts = {
        **listed_as_declared(read),
        **_of(read, "variant", "variants", "summary", "explanation"),
        "server_args": read.server.split(),
        "conditions": [one.model_dump() for one in read.conditions],
        "mitigations": [one.model_dump() for one in read.mitigations],
        "options": {},
        "factors": [],
        "references": [
            {"id": one.id, "title": one.title, "url": one.address}
            for one in read.references
        ],
    }
    return ScenarioDocument(**facts)


def _of(given: object, *names: str) -> _Facts:
    return {name: getattr(given, name) for name in names}
