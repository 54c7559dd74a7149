"""What variables and ``mmrepro.toml`` say of a command's options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from mmrepro.base import common_options
from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.base.machine.files import read_toml
from mmrepro.base.options import (
    CONFIG_VARIABLE,
    Command,
    DeclaredOption,
    Option,
    OptionOrigin,
    declared,
)
from mmrepro.base.values import WrongValue, check_value, read_value

FILE = "mmrepro.toml"
_PROJECT = "pyproject.toml"
_KEYS = {
    (one.name.partition("/")[0].strip("-") or name.lower().replace("_", "-"))
    for name, one in vars(common_options).items()
    if isinstance(one, Option)
}
"""Of the options that several commands have."""
_DOCS = "mmrepro help options lists the keys"


class Configured(dict[str, Any]):
    """Values by field, in place of the defaults; they are read when the first one is
    asked for.

    Args:
        commands: all that a file may have a table for.
    """

    def __init__(
        self,
        made: type[Command],
        commands: Collection[str],
    ) -> None:
        super().__init__()
        self._made, self._commands = made, commands
        self._origins: dict[str, OptionOrigin] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        self._read()
        return super().get(name, default)

    def origin(self, name: str) -> OptionOrigin | None:
        """Where the value of the field ``name`` comes from; None: there is none.

        Raises:
            UsageError: a file cannot be read or has no such key, or a value is of
                another type.
        """
        return self._read().get(name)

    def _read(self) -> dict[str, OptionOrigin]:
        if self._origins is not None:
            return self._origins
        self._origins = {}
        # An empty variable: no file is read, and of variables only those that options
        # name themselves.
        alone = os.environ.get(CONFIG_VARIABLE) == ""
        known: dict[str, DeclaredOption] = {}
        for declaration in declared(self._made):
            if declaration.configurable:
                known[declaration.key] = declaration
        file = None if alone else _config_file()
        if file is not None:
            keys = _keys(self._made, known, file, self._commands)
            for key, (value, where) in keys.items():
                self._take(known[key], value, where, OptionOrigin.FILE)

        # After the file: a variable goes before it.
        for declaration in known.values():
            name = declaration.variable
            if not name or (alone and not declaration.option.variable):
                continue
            text = os.environ.get(name)
            if text:
                value = _split(declaration, text)
                self._take(declaration, value, name, OptionOrigin.VARIABLE)
        return self._origins

    def _take(
        self, declaration: DeclaredOption, value: Any, where: str, origin: OptionOrigin
    ) -> None:
        """Keep a value. Raises UsageError: the option does not take it."""
        assert self._origins is not None
        try:
            if declaration.option.read:
                declaration.option.read(value)
            else:
                _check(declaration, value)
        except WrongValue as error:
            raise UsageError(error.sentence(where), hint=_DOCS) from error
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
        self[declaration.field] = value
        self._origins[declaration.field] = origin


def _config_file() -> Path | None:
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
        project = folder / _PROJECT
        if project.is_file() and b"[tool.mmrepro" in project.read_bytes():
            return project
    return None


def _keys(
    made: type[Command],
    known: dict[str, DeclaredOption],
    file: Path,
    commands: Collection[str],
) -> dict[str, tuple[Any, str]]:
    """Return value and place of each key that holds for ``made``, its own table's
    before the others. Raises UsageError."""
    document = read_toml(file)
    top = ["tool", "mmrepro"] if file.name == _PROJECT else []
    own = [*top, *made.COMMAND.split()]
    found: dict[str, tuple[Any, str]] = {}
    for names, allowed in ((top, _KEYS), (own, known)):
        for key, value in _table(document, names).items():
            where = _place(file, key, names)
            if names == top and isinstance(value, dict):
                # The table of a command: it is read when that command runs.
                if key not in commands:
                    guess = did_you_mean(key, commands)
                    raise UsageError(
                        f"{where}: there is no command {key!r}.{guess}", hint=_DOCS
                    )
            elif key not in allowed:
                guess = did_you_mean(key, allowed)
                of_command = "" if names == top else f" of mmrepro {made.COMMAND}"
                raise UsageError(
                    f"{where}: unknown key{of_command}.{guess}", hint=_DOCS
                )
            elif key in known:
                _refuse_code(known[key], file, where)
                found[key] = (_checked(known[key], value, file, where), where)
    return found


def _place(file: Path, key: str, names: Sequence[str]) -> str:
    """Return where a key is: ``mmrepro.toml, key 'device' of [run]``."""
    table = f" of [{'.'.join(names)}]" if names else ""
    return f"{file}, key {key!r}{table}"


def _check(declaration: DeclaredOption, value: Any) -> None:
    """Raises WrongValue: an option does not take this value of a file or a variable."""
    values = value if declaration.several else [value]
    for item in values:
        read_value(declaration, item)


def _table(document: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the table of that name; {}: there is none."""
    table = document
    for name in names:
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, dict) else {}


def _refuse_code(declaration: DeclaredOption, file: Path, where: str) -> None:
    """Raises UsageError: the option decides which code runs, and nobody named the
    file."""
    if not declaration.option.runs_code or os.environ.get(CONFIG_VARIABLE):
        return
    raise UsageError(
        f"{where}: it decides which code runs, and a file that was only "
        "found here does not set it.",
        hint=f"give {declaration.name} yourself, or read the file, then: "
        f"{CONFIG_VARIABLE}={shlex.quote(str(file))} mmrepro …",
    )


def _checked(declaration: DeclaredOption, value: Any, file: Path, where: str) -> Any:
    """Return ``value`` as its parameter takes it. Raises UsageError: it is of another
    type."""
    values = value if declaration.several and isinstance(value, list) else [value]
    checked = [_checked_item(declaration, item, file, where) for item in values]
    return checked if declaration.several else checked[0]


def _checked_item(
    declaration: DeclaredOption, item: Any, file: Path, where: str
) -> Any:
    """Raises UsageError: it is of another type."""
    try:
        if declaration.option.read:
            _check_readable(item)
        else:
            check_value(declaration, item)
    except WrongValue as error:
        raise UsageError(error.sentence(where), hint=_DOCS) from error
    if declaration.type is Path:
        # A path in a file is meant from where the file lies.
        item = os.path.relpath(file.parent / str(item))
    return str(item) if declaration.option.read else item


def _check_readable(item: Any) -> None:
    """Raises WrongValue: it is nothing that an option reads from a word."""
    if isinstance(item, bool) or not isinstance(item, int | float | str):
        raise WrongValue(f"must be a string or a number, not {item!r}")


def _split(declaration: DeclaredOption, text: str) -> Any:
    """Return the value that a variable holds; several stand beside each other, quoted
    as in a shell. Raises UsageError."""
    if not declaration.several:
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{declaration.variable}: {error}.") from error
