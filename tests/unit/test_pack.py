"""A scenario in a distribution of its own (tests/pack), installed: known by its
name."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mmrepro.cli.app import app
from typer.testing import CliRunner

PACK = Path(__file__).parent.parent / "pack"
runner = CliRunner()


@pytest.fixture
def known(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(packed))
    yield
    sys.modules.pop("odd_image", None)


def test_without_the_pack_it_is_unknown() -> None:
    said = runner.invoke(app, ["show", "odd-image"])
    assert "There is no scenario 'odd-image'" in str(said.exception)


@pytest.mark.usefixtures("known")
def test_it_is_listed_and_shown() -> None:
    listed = json.loads(runner.invoke(app, ["list", "--json"]).stdout)["scenarios"]
    mine = next(one for one in listed if one["name"] == "odd-image")
    assert (mine["engine"], mine["default_release"]) == ("minivllm", "0.1")
    assert len(listed) > 10  # the known ones beside it
    shown = json.loads(runner.invoke(app, ["show", "odd-image", "--json"]).stdout)
    assert [c["id"] for c in shown["conditions"]] == [
        "arrives",
        "others-answered",
        "request-fails",
        "refused-in-store",
        "short-by-the-image",
    ]


@pytest.mark.usefixtures("known")
def test_its_recorded_runs_are_judged_by_name() -> None:
    paths = [str(PACK / "recorded" / name) for name in ("fails.zip", "works.zip")]
    said = runner.invoke(app, ["judge", "--json", *paths])
    assert said.exit_code == 0, said.output
    assert [one["now"] for one in json.loads(said.stdout)["judged"]] == [
        "reproduced",
        "not-reproduced",
    ]


@pytest.mark.usefixtures("known")
def test_diagnose_tries_it() -> None:
    from mmrepro.live.diagnose.match import all_scenarios

    assert "odd-image" in {scenario.name for scenario in all_scenarios()}
