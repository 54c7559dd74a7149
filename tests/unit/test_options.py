"""What follows from declared options: words, parameters, keys and variables."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from hypothesis import HealthCheck, given, settings, strategies as st
from mmrepro.base.options import Command, Declared, declared
from mmrepro.cli.app import COMMANDS
from mmrepro.cli.lazy import functions_of
from mmrepro.cli.options import DeclaredCommand, command
from mmrepro.errors import MmreproError, UsageError
from mmrepro.matrix import selectors
from typer.testing import CliRunner

runner = CliRunner()
MADE: list[type[Command]] = [
    one.options for one in functions_of(COMMANDS) if hasattr(one, "options")
]
BY_NAME = {made.COMMAND: made for made in MADE}
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",)), min_size=1
)
PLAIN = st.text("abcdefghij0123456789-_.", min_size=1).filter(lambda t: not t.startswith("-"))
READ = {
    "--releases": st.sampled_from(["own", "affected,0.22.0..0.25.0", "0.1"]).map(selectors.parse),
    "--factors": st.lists(PLAIN, unique=True, min_size=1).map(tuple),
    "--repeat": st.integers(1, 1000),
    "--disk": st.integers(1, 1 << 50),
}
"""Values of the options that are not simply a word of their type."""
SECONDS = st.floats(10, 600_000).map(lambda s: round(s, 3))


def parsed(made: type[Command], words: list[str]) -> Command:
    """The options that the real command line makes of ``words``."""
    got: list[Command] = []
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=DeclaredCommand)(command(made)(got.append))
    done = runner.invoke(app, words)
    if isinstance(done.exception, MmreproError):
        raise done.exception
    assert done.exit_code == 0, (words, done.output)
    return got[0]


def value_of(one: Declared) -> st.SearchStrategy[Any]:
    option = one.option
    if option.read:
        return READ.get(one.name, SECONDS)
    kind: st.SearchStrategy[Any]
    if get_origin(one.type) is Literal:
        kind = st.sampled_from(get_args(one.type))
    elif issubclass(one.type, Enum):
        kind = st.sampled_from(list(one.type))
    elif one.type is bool:
        kind = st.booleans()
    elif one.type is int:
        kind = st.integers(int(option.least or 0), int(option.most or 1 << 40))
    elif one.type is float:
        kind = st.floats(option.least or 0.5, option.most or 0.99)
    else:
        kind = PLAIN.map(Path) if one.type is Path else TEXT
    if one.several:
        return st.lists(kind, max_size=3, unique=option.distinct).map(tuple)
    return kind


@st.composite
def made_up(draw: st.DrawFn, made: type[Command]) -> Command:
    values: dict[str, Any] = {}
    for one in declared(made):
        if one.option.required or draw(st.booleans()):
            values[one.field] = draw(value_of(one))
    try:
        return made(**values)
    except UsageError:  # options that cannot be combined
        return made(**{one.field: values[one.field] for one in declared(made) if one.option.required})


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MMREPRO_")]:
        if name != "MMREPRO_CACHE_DIR":
            monkeypatch.delenv(name)


def all_words(options: Command) -> list[str]:
    """With those of one call, but not what is private."""
    once = {
        one.field: getattr(options, one.field)
        for one in declared(type(options))
        if one.option.once
    }
    return options.argv(**once)[len(options.COMMAND.split()) :]


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.COMMAND)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_command_parsed_again_is_the_same_options(
    made: type[Command], data: st.DataObject
) -> None:
    options = data.draw(made_up(made))
    private = {
        one.field: one.default for one in declared(made) if one.option.private
    }
    options = replace(options, **private)
    assert parsed(made, all_words(options)) == options
