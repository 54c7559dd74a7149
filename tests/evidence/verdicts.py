"""The table of verdicts: what is concluded from every recording and every imposter.

``verdicts.json`` has a line for each, so that a diff names what a commit changed. Tests
judge all of them again and compare; ``python tests/evidence/record.py --verdicts``
writes the table anew."""

import contextlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mmrepro.cli.app import app
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.hashes import HashCheck
from mmrepro.runs import judge
from mmrepro.runs.judge import facts_of
from mmrepro.scenario.registry import load_scenario
from typer.testing import CliRunner

TABLE = Path(__file__).resolve().parent / "verdicts.json"
UPDATE = "python tests/evidence/record.py --verdicts"
GROUPS = {"claim": "claims", "mitigation": "mitigations"}
"""By the kind of a judged part; conditions have several kinds."""

Row = dict[str, Any]
Rows = dict[str, Row]


def judged(
    incidents: Mapping[str, Incident], *, by_conditions: bool = False
) -> dict[str, Any]:
    """Documents of one ``mmrepro judge --json`` of all incidents, by name.

    ``by_conditions``: alone, although the evidence may not belong together.
    """
    held = (lambda evidence, _: ({}, evidence)) if by_conditions else judge.held
    with (
        tempfile.TemporaryDirectory() as empty,
        contextlib.chdir(empty),  # no run of the checkout has a name like these
        patch("mmrepro.reports.load", lambda path: incidents[path.name]),
        # They are in memory: no record on disk is theirs.
        patch("mmrepro.failure.documents.hashes.checked", lambda _: HashCheck()),
        patch.object(judge, "held", held),
    ):
        ran = CliRunner().invoke(app, ["judge", "--json", *incidents])
    assert ran.exit_code in (0, 1), ran.output
    return {
        document["incident"]: document for document in json.loads(ran.output)["judged"]
    }


def row(document: Mapping[str, Any]) -> Row:
    """What the table says of one: its outcome, and the truth or status of each part."""
    parts: Row = {"conditions": {}, "claims": {}, "mitigations": {}}
    for part in document["parts"]:
        parts[GROUPS.get(part["kind"], "conditions")][part["id"]] = part["now"]
    return {"outcome": document["now"], **parts}


def recordings(documents: Mapping[str, Any], incidents: Mapping[str, Incident]) -> Rows:
    """Rows of recordings, with what no verdict depends on: the rows of their symptom
    tables."""
    return {
        name: {**row(documents[name]), "symptoms": symptoms(incident)}
        for name, incident in incidents.items()
    }


def symptoms(incident: Incident) -> list[list[Any]]:
    """Checks of the symptom table, and whether each is abnormal."""
    scenario = load_scenario(incident.scenario.name).with_variant(
        incident.scenario.variant
    )
    rows = scenario.symptom_rows(incident.evidence, facts_of(incident, scenario))
    return [[one.check, one.abnormal] for one in rows]


def differences(pinned: Rows, now: Rows) -> list[str]:
    """What is another than in the table, a line each."""
    found = [
        f"{name}: judged, but not in the table"
        for name in sorted(now.keys() - pinned.keys())
    ]
    found += [
        f"{name}: in the table, but not judged"
        for name in sorted(pinned.keys() - now.keys())
    ]
    for name in sorted(pinned.keys() & now.keys()):
        before, after = (dict(_flat(rows[name])) for rows in (pinned, now))
        found += [
            f"{name}: {what}: {before.get(what)} -> {after.get(what)}"
            for what in {**before, **after}
            if before.get(what) != after.get(what)
        ]
    return found


def _flat(one: Row) -> Iterable[tuple[str, Any]]:
    for key, value in one.items():
        if isinstance(value, dict):
            yield from ((f"{key} {name}", truth) for name, truth in value.items())
        else:
            yield key, value


def read() -> dict[str, Rows]:
    """Both parts of the table: ``recordings`` and ``imposters``."""
    table: dict[str, Rows] = json.loads(TABLE.read_text())
    return table


def write(**parts: Rows) -> None:
    """Replace parts of the table: a line for each name, sorted."""
    table = {**(read() if TABLE.exists() else {}), **parts}
    blocks = []
    for part, rows in sorted(table.items()):
        lines = [
            f"{json.dumps(name)}:{json.dumps(rows[name], separators=(',', ':'))}"
            for name in sorted(rows)
        ]
        blocks.append(f"{json.dumps(part)}:{{\n" + ",\n".join(lines) + "\n}")
    TABLE.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
