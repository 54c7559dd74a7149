"""The recordings were made by what the scenarios declare: the server, its model, the trigger.

A number that is only sent is judged by nobody; a wrong one would make another run, of which the
corpus says nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mmrepro.failure.documents import Incident
from mmrepro.reports import load
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario

CHANGES = ("--mitigation", "--flip", "--server-arg", "--option")
RECORDINGS = sorted((Path(__file__).parent.parent / "evidence").glob("*.zip"))
LIMITS = ("--max-model-len", "--context-length")


def plain() -> dict[str, tuple[Incident, Scenario]]:
    """Runs as they are declared, of each scenario and variant."""
    found = {}
    for path in RECORDINGS:
        incident = load(path)
        if not any(word in incident.command for word in CHANGES):
            scenario = load_scenario(incident.scenario.name)
            found[path.stem] = incident, scenario.with_variant(incident.scenario.variant)
    return found


RUNS = plain()
each = pytest.mark.parametrize(("incident", "scenario"), RUNS.values(), ids=RUNS.keys())


@each
def test_the_server_is_the_one(incident: Incident, scenario: Scenario) -> None:
    command = incident.engine.command
    assert not [word for word in scenario.server_args if word not in command]
    limits = [command[command.index(name) + 1] for name in LIMITS if name in command]
    assert limits in ([str(scenario.max_model_len)], [])


@each
def test_the_model_is_the_one(incident: Incident, scenario: Scenario) -> None:
    assert incident.model is not None
    assert Path(incident.model.path).name == scenario.model.key
