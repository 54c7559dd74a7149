"""The end screen of recorded runs, at 100 columns: at most 20 rows, and the verdict is
the last."""

import re
from pathlib import Path

import pytest
from grids import grid
from mmrepro.failure.documents import shown_here
from mmrepro.reports import load
from mmrepro.reports.incident import compose, condition_count
from mmrepro.reports.terminal import LINES
from rendered import terminal, unwrapped
from sample import sample_incident

EVIDENCE = Path(__file__).parents[2] / "evidence"
RECORDED = sorted(EVIDENCE.glob("*.zip"))
WIDTH = 100
PLACE = "~/incidents/a-run-of-a-scenario/report.html"


def one_of_each() -> list[Path]:
    """The last recording of each scenario: two words of its name are its own."""
    return list({tuple(path.stem.split("-")[:2]): path for path in RECORDED}.values())


@pytest.mark.parametrize(
    "path", grid(RECORDED, always=one_of_each()), ids=lambda path: path.stem
)
def test_the_end_screen_of_a_recorded_run(path: Path) -> None:
    incident = load(path)
    text = terminal(incident, PLACE, force_terminal=True, width=WIDTH, no_color=True)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    rows = sum(max(1, -(-len(line) // WIDTH)) for line in lines)
    assert rows <= LINES
    lines = unwrapped(lines)
    assert f"page: {PLACE}" in lines
    page = compose(incident)
    assert lines[-1].startswith(page.badge.label.upper())
    assert f"{incident.scenario.name} on " in lines[-1], "the name is not cut"
    assert f"run again: {incident.command}" in lines, "the command is not cut"
    assert any(line.startswith(condition_count(incident)) for line in lines)
    assert not any(line.startswith("…") for line in lines), "nothing had to be left out"


def test_a_command_on_ones_own_screen_has_paths_and_no_secret() -> None:
    typed = "mmrepro run /home/anna/x.py --server-env HF_TOKEN=hf_abcdefghijklmnop12345"
    incident = sample_incident().model_copy(update={"command": typed})
    shown = shown_here(incident).command
    assert "/home/anna/x.py" in shown
    assert "hf_abcdefghijklmnop12345" not in shown
