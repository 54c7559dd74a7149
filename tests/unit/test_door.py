"""A room's door: each name is imported when it is asked for, and no sooner."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOOR = """
from typing import TYPE_CHECKING
from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from made_up_room.beds import Bed as Bed, made as made_bed
    from made_up_room import lamps as lights
else:
    __getattr__ = lazily(__name__)
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    files = {
        "__init__.py": DOOR,
        "beds.py": "class Bed: pass\nmade = 'made'",
        "lamps.py": "lit = True",
    }
    (tmp_path / "made_up_room").mkdir()
    for name, text in files.items():
        (tmp_path / "made_up_room" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("made_up_room", "made_up_room.beds", "made_up_room.lamps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("made_up_room")


def test_a_name_loads_its_own_module_alone(room: ModuleType) -> None:
    assert "made_up_room.beds" not in sys.modules
    assert room.made_bed == "made"
    assert "made_up_room.beds" in sys.modules
    assert "made_up_room.lamps" not in sys.modules
    assert room.lights.lit


def test_a_module_of_the_room_is_no_name_of_its_door(room: ModuleType) -> None:
    beds = importlib.import_module("made_up_room.beds")
    assert room.Bed is beds.Bed
    assert room.beds is beds


def test_what_a_test_replaces_in_its_module_is_replaced_at_the_door(
    room: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room.made_bed == "made"
    monkeypatch.setattr("made_up_room.beds.made", "unmade")
    assert room.made_bed == "unmade"


def test_a_name_that_there_is_not_is_an_attribute_error(room: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"'made_up_room' has no attribute 'made'"):
        _ = room.made


def test_all_names_are_listed_for_a_star(room: ModuleType) -> None:
    given: dict[str, object] = {}
    exec("from made_up_room import *", given)
    assert {"Bed", "made_bed", "lights"} <= given.keys()
