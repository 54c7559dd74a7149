"""``--json-schema``: the JSON Schema of what a command's ``--json`` prints."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Union

DRAFT = "https://json-schema.org/draft/2020-12/schema"
DOCUMENTS = {
    "run": ("mmrepro.failure.documents:Incident",),
    "diagnose": (
        "mmrepro.failure.documents.diagnosis:Diagnosis",
        "mmrepro.failure.documents.fleet:Fleet",
    ),
    "logs": ("mmrepro.failure.documents.cause:LogReading",),
    "why": ("mmrepro.live.diagnose.starts:StartReading",),
    "repro": ("mmrepro.failure.documents.replay:Replay",),
    "replay": (
        "mmrepro.failure.documents.replay:Replay",
        # Nothing prints a case, which people write by hand: it is what replay reads.
        "mmrepro.traffic.case.model:Case",
    ),
    "fuzz": ("mmrepro.failure.documents.replay:Fuzz",),
    "upgrade": ("mmrepro.failure.documents.upgrade:Upgrade",),
    "ablate": ("mmrepro.failure.documents.searches:Ablation",),
    "bisect": ("mmrepro.failure.documents.searches:Bisection",),
    "matrix run": ("mmrepro.history.nightly:NightDocument",),
    "matrix diff": ("mmrepro.history.nightly:DiffDocument",),
    "matrix history": ("mmrepro.history.nightly:NightsDocument",),
    "list": (
        "mmrepro.tools.catalogue.documents:ListDocument",
        "mmrepro.tools.catalogue.documents:AliveDocument",
    ),
    "show": (
        "mmrepro.tools.catalogue.documents:ScenarioDocument",
        "mmrepro.tools.catalogue.claims:Claims",
    ),
    "judge": ("mmrepro.runs.judge:JudgeDocument",),
    "incidents": ("mmrepro.failure.documents.listing:IncidentsDocument",),
    "check": (
        "mmrepro.tools.check:HostReport",
        "mmrepro.engines.environments.fit:FitReport",
    ),
}
"""By command: where the classes of its documents are (``module:name``). A command
without one prints JSON that no schema describes."""


def json_schema(command: str) -> dict[str, Any]:
    """Return the schema of the documents of ``command``: of several, any of them."""
    from pydantic import TypeAdapter

    classes = []
    for place in DOCUMENTS[command]:
        module, _, name = place.partition(":")
        classes.append(getattr(import_module(module), name))
    schema = TypeAdapter(Union[tuple(classes)]).json_schema()  # noqa: UP007
    return {**schema, "$schema": DRAFT}
