"""pytest, run by a test, with a fake of what runs engines."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "matrix"))  # matrix_nights

import plugin_fakes
from mmrepro.pytest_plugin import running


@pytest.fixture
def faked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> plugin_fakes.Faked:
    """``faked({"0.23.0": ["reproduced"]})``: a folder in which runs come to that."""
    monkeypatch.setattr(running, "Trials", running.Trials)
    monkeypatch.setattr(running, "Provisions", running.Provisions)

    def prepared(world: plugin_fakes.World) -> pytest.Pytester:
        pytester.makeconftest(plugin_fakes.CONFTEST.format(world=world))
        return pytester

    return prepared
