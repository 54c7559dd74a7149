"""What variables and ``mmrepro.toml`` say of a command's options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from mmrepro.base import common_options
from mmrepro.base.errors import UsageError
from mmrepro.base.machine.files import read_toml
from mmrepro.base.options import (
    CONFIG_VARIABLE,
    Command,
    Declared,
    Option,
    Origin,
    declared,
)

FILE = "mmrepro.toml"
PROJECT = "pyproject.toml"
TYPES: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}
KEYS = {
    (one.name.partition("/")[0].strip("-") or name.lower().replace("_", "-"))
    for name, one in vars(common_options).items()
    if isinstance(one, Option)
}
"""Of the options that several commands have."""
DOCS = "docs/options.md lists the keys"


class Configured(dict[str, Any]):
    """Values by field, in place of the defaults; they are read when the first one is
    asked for.

    Args:
        check: checks a field's name and value as the command line does, and raises the
            same.
        commands: all that a file may have a table for.
    """

    def __init__(
        self,
        made: type[Command],
        check: Callable[[str, Any], object],
        commands: Collection[str],
    ) -> None:
        super().__init__()
        self._made, self._check, self._commands = made, check, commands
        self._origins: dict[str, Origin] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        self._read()
        return super().get(name, default)

    def origin(self, name: str) -> Origin | None:
        """Where the value of the field ``name`` comes from; None: there is none.

        Raises:
            UsageError: a file cannot be read or has no such key, or a value is of
                another type.
        """
        return self._read().get(name)

    def _read(self) -> dict[str, Origin]:
        if self._origins is not None:
            return self._origins
        self._origins = {}
        alone = os.environ.get(CONFIG_VARIABLE) == ""
        known = {one.key: one for one in declared(self._made) if one.configurable}
        if not alone and (found := config_file()) is not None:
            for key, (value, where) in _keys(
                self._made, known, found, self._commands
            ).items():
                self._take(known[key], value, where, Origin.FILE)
        for one in known.values():
            name = one.variable
            if (
                name
                and (text := os.environ.get(name))
                and (one.option.variable or not alone)
            ):
                self._take(one, _split(one, text), name, Origin.VARIABLE)
        return self._origins

    def _take(self, one: Declared, value: Any, where: str, origin: Origin) -> None:
        assert self._origins is not None
        try:
            if one.option.read:
                one.option.read(value)
            self._check(one.field, value)
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
        except Exception as error:
            # Every refusal of the command line has it.
            if not hasattr(error, "format_message"):
                raise
            raise UsageError(
                f"{where}: {str(error).removeprefix('Value error, ').rstrip('.')}.",
                hint=DOCS,
            ) from error
        self[one.field], self._origins[one.field] = value, origin


def config_file() -> Path | None:
    """Return the file that holds here: in the current folder, or the nearest one above
    with one.

    Raises:
        UsageError: the variable names none.
    """
    if given := os.environ.get(CONFIG_VARIABLE):
        if not Path(given).is_file():
            raise UsageError(f"{CONFIG_VARIABLE}: there is no file {given}.")
        return Path(given)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        project = folder / PROJECT
        if project.is_file() and b"[tool.mmrepro" in project.read_bytes():
            return project
    return None


def _keys(
    made: type[Command],
    known: dict[str, Declared],
    file: Path,
    commands: Collection[str],
) -> dict[str, tuple[Any, str]]:
    """Value and place of each key that holds for ``made``, its own table's before the
    others."""
    document = read_toml(file)
    named = bool(os.environ.get(CONFIG_VARIABLE))
    top = ["tool", "mmrepro"] if file.name == PROJECT else []
    found: dict[str, tuple[Any, str]] = {}
    for names, taken, why in (
        (top, KEYS, "it is no option that several commands have"),
        (
            [*top, *made.COMMAND.split()],
            known,
            f"mmrepro {made.COMMAND} takes none of that name",
        ),
    ):
        table: Any = document
        for name in names:
            table = table.get(name, {}) if isinstance(table, dict) else {}
        for key, value in table.items() if isinstance(table, dict) else ():
            where = f"{file}, key {key!r}" + (
                f" of [{'.'.join(names)}]" if names else ""
            )
            if names == top and isinstance(value, dict):
                if key not in commands:
                    raise UsageError(
                        f"{where}: there is no command {key!r}.", hint=DOCS
                    )
            elif key not in taken:
                raise UsageError(f"{where}: {why}.", hint=DOCS)
            elif key in known and known[key].option.runs_code and not named:
                raise UsageError(
                    f"{where}: it decides which code runs, and a file that was only "
                    "found here does not set it.",
                    hint=f"give {known[key].name} yourself, or read the file, then: "
                    f"{CONFIG_VARIABLE}={shlex.quote(str(file))} mmrepro …",
                )
            elif key in known:
                found[key] = (_checked(known[key], value, file, where), where)
    return found


def _checked(one: Declared, value: Any, file: Path, where: str) -> Any:
    """Return ``value`` as its parameter takes it. Raises UsageError: it is of another
    type."""
    allowed, wanted = TYPES.get(one.type, ((str,), "a text"))
    if one.option.read:
        allowed, wanted = (int, float, str), "a text or a number"
    checked = []
    for each in value if one.several and isinstance(value, list) else [value]:
        if not isinstance(each, allowed) or (
            isinstance(each, bool) and one.type is not bool
        ):
            raise UsageError(f"{where}: {each!r} is not {wanted}.", hint=DOCS)
        each = os.path.relpath(file.parent / str(each)) if one.type is Path else each
        checked.append(str(each) if one.option.read else each)
    return checked if one.several else checked[0]


def _split(one: Declared, text: str) -> Any:
    """Return the value that a variable holds; several stand beside each other, quoted
    as in a shell."""
    try:
        return shlex.split(text) if one.several else text
    except ValueError as error:
        raise UsageError(f"{one.variable}: {error}.") from error
