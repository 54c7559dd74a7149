"""Each engine is a folder, and a folder is enough to be one.

The first part is the contract that every engine's folder keeps. The second one has an
engine that does not exist: nothing outside its folder knows its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import mmrepro.engines
import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, Signs, get_engine, log_marks
from mmrepro.engines.features import feature, features, turned_on
from mmrepro.engines.folders import facts, folders, table
from mmrepro.engines.waits import Wait, wait_places, waiting
from mmrepro.probes.data import Frame

MADE_UP = Path(__file__).with_name("made_up_engines")
TABLES = (
    "engine.toml",
    "allowed.toml",
    "features.toml",
    "waits.toml",
    "starts.toml",
    "serving.toml",
    "promises.toml",
    "dialect.toml",
    "plain.toml",
    "issue_form.toml",
    "advice.toml",
)


@pytest.mark.parametrize("name", [*ENGINES])
def test_a_folder_keeps_the_contract(name: str) -> None:
    engine = ENGINES[name]
    assert engine.name == name
    assert facts(name).title.lower() == name
    assert re.fullmatch(r"[\w-]+/[\w-]+", facts(name).repository)
    patterns = [
        engine.progress_pattern,
        engine.added_pattern,
        engine.ready_mark,
        engine.log_mark,
        engine.ends_itself,
        engine.process_pattern,
        *engine.log_patterns.values(),
        *engine.start_marks.values(),
        *engine.start_lines,
    ]
    for pattern in patterns:
        re.compile(pattern)
    # An engine may have no metrics at all.
    if engine.metrics:
        assert {"running", "waiting", "finished"} <= set(engine.metrics)


@pytest.mark.parametrize("name", [*ENGINES])
def test_its_tables_are_known_ones(name: str) -> None:
    known = {file.name for file in folders()[name].glob("*.toml")}
    assert known <= set(TABLES), known - set(TABLES)
    for row in features(name).values():
        assert row.what
    places = wait_places(name)
    assert len(set(places)) == len(places)


def test_engines_are_listed_in_their_order() -> None:
    orders = [facts(name).order for name in ENGINES]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


@pytest.fixture
def teapot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made-up engine, as if its folder lay beside the others."""
    path = [*mmrepro.engines.__path__, str(MADE_UP)]
    monkeypatch.setattr(mmrepro.engines, "__path__", path)
    remembered = (folders, facts, table, features, wait_places)
    for function in remembered:
        function.cache_clear()
    yield
    monkeypatch.undo()
    for function in remembered:
        function.cache_clear()


@pytest.mark.usefixtures("teapot")
def test_a_folder_is_an_engine() -> None:
    assert [*ENGINES][-1] == "teapot"
    engine = get_engine("teapot")
    assert engine.recognise(Signs(metrics=frozenset({"teapot:cups_being_poured"})))
    assert re.search(log_marks()["teapot"], "Teapot 2.1 is heating")
    args, variables = engine.given(["{feature:milk}"], {})
    assert (args, variables) == (["--milk=first"], {})
    assert [*turned_on("teapot", args)] == ["milk"]
    refused = engine.allowed.refused(["--cups=4", "--milk=/etc/passwd", "--lid"], {})
    assert [option for option, _ in refused] == ["--milk=/etc/passwd", "--lid"]


@pytest.mark.usefixtures("teapot")
def test_its_waits_are_read_off_a_stack() -> None:
    stack = [
        Frame(function="get", file="queue.py", line=171),
        Frame(function="pour", file="teapot/kettle.py", line=12),
    ]
    seen = waiting(stack, wait_places("teapot"), "2.0")
    assert seen is not None
    assert seen.wait is Wait.WORK
    assert waiting(stack, wait_places("teapot"), "1.0") is None


def test_without_its_folder_it_is_unknown() -> None:
    assert "teapot" not in ENGINES
    with pytest.raises(UsageError, match="no engine 'teapot'"):
        get_engine("teapot")
    with pytest.raises(UsageError, match="no feature milk"):
        feature("teapot", "milk")
    assert wait_places("teapot") == ()
