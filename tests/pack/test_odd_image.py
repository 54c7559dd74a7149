"""odd-image, held against recorded runs of it. Red until the scenario says what it
looks for.

    mmrepro run ./odd_image.py --out recorded/fails
    mmrepro run ./odd_image.py --mitigation NAME --out recorded/works
    pytest test_odd_image.py

A recording is the folder of a real run or its bundle (`mmrepro bundle DIR`); it needs
no engine to be judged again. Nothing in it is made up: what is not in a recording has
not happened."""

from pathlib import Path

import pytest
from mmrepro.reports import load
from mmrepro.runs.judge import rejudge
from mmrepro.scenario import RunFacts
from mmrepro.scenario.more import Fidelity
from mmrepro.scenario.registry import load_scenario

HERE = Path(__file__).parent
FILE = HERE / "odd_image.py"
# The second is of a cure, or of another release: the same traffic, and no failure.
RECORDED = {
    "recorded/fails.zip": "reproduced",
    "recorded/works.zip": "not-reproduced",
}


def test_nothing_is_left_to_fill_in() -> None:
    lines = enumerate(FILE.read_text(encoding="utf-8").splitlines(), 1)
    left = [
        f"{FILE.name}:{number}: {line.strip()}"
        for number, line in lines
        if "TODO" in line
    ]
    assert not left, "\n".join(left)


def test_arrival_symptom_and_cause_are_all_required() -> None:
    scenario = load_scenario(str(FILE))
    facts = RunFacts(scenario.release, Fidelity.CPU, frozenset(), 1.0)
    required = {c.part for c in scenario.conditions(facts) if c.required}
    assert required == {"precondition", "symptom", "cause"}


@pytest.mark.parametrize(("recording", "outcome"), RECORDED.items())
def test_a_recorded_run_is_judged(recording: str, outcome: str) -> None:
    folder = HERE / recording
    assert folder.exists(), f"record one: mmrepro run ./{FILE.name} --out {recording}"
    scenario, incident = load_scenario(str(FILE)), load(folder)
    assert incident.scenario.name == scenario.name
    judged = rejudge(incident, scenario).now
    assert judged.outcome == outcome, judged.explanation
