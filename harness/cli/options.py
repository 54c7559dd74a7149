"""From the declared options of a command to its parameters, and back to its dataclass.

A value is taken from the command line, else from a variable, else from ``mmrepro.toml``. An
incident or a campaign may be named by its number, its id or ``last``.
"""

from __future__ import annotations

import inspect
import os
import shlex
import types
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from mmrepro.base import common_options
from mmrepro.base.options import (
    CONFIG_VARIABLE,
    GROUPS,
    OUTPUT,
    Command,
    Declared,
    Option,
    Origin,
    declared,
)
from mmrepro.errors import UsageError, did_you_mean
from mmrepro.machine.files import read_toml
from typer.core import TyperCommand

C = TypeVar("C", bound=Command)
PLACES = ("incident", "campaign", "unfinished", "finding", "record")
"""Kinds of :attr:`Option.names` that lie in folders here."""


def command(made: type[C]) -> Callable[[Callable[[C], None]], Callable[..., None]]:
    """Decorate the function of a command: it gets a ``made``, and typer a parameter per option."""

    def decorate(execute: Callable[[C], None]) -> Callable[..., None]:
        @wraps(execute)
        def call(ctx: typer.Context, **values: Any) -> None:
            execute(_options(made, ctx, values))

        context = inspect.Parameter(
            "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [context, *(_parameter(one) for one in declared(made))]
        del call.__wrapped__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.options = made  # type: ignore[attr-defined]
        return call

    return decorate


def _options(made: type[C], ctx: typer.Context, values: dict[str, Any]) -> C:
    origins: dict[str, Origin] = {}
    for one in declared(made):
        source = ctx.get_parameter_source(one.field)
        configured = ctx.default_map
        below = configured.origin(one.field) if isinstance(configured, Configured) else None
        if source is not None and source.name == "COMMANDLINE":
            origins[one.field] = Origin.OVER if below else Origin.WORD
        elif below:
            origins[one.field] = below
        else:
            values[one.field] = one.default
            continue
        value = values[one.field]
        if one.option.read:
            values[one.field] = one.option.read(value)
        elif one.several:
            values[one.field] = tuple(dict.fromkeys(value) if one.option.distinct else value)
        if one.option.names in PLACES:
            from mmrepro.incident.here import place

            found = values[one.field]
            at = partial(place, kind=one.option.names)
            values[one.field] = tuple(map(at, found)) if one.several else at(found)
    return made(**values, origins=origins)


def _parameter(one: Declared) -> inspect.Parameter:
    option = one.option
    kind: Any = one.type
    help_text = option.help + (f"  [default: {option.shown}]" if option.shown else "")
    shown = not option.shown and one.default not in (None, "", (), {}, False)
    common: dict[str, Any] = {
        "help": help_text,
        "metavar": option.metavar or _metavar(one),
        "min": _whole(option.least) if kind in (int, float) else None,
        "max": _whole(option.most) if kind in (int, float) else None,
        "show_default": shown,
        "autocompletion": _completion(option.names) if option.names else None,
    }
    default: Any = None if one.several else _whole(one.default)
    if option.read and not one.several:
        default = None if default in (None, ()) else option.write(default)
    annotation = types.GenericAlias(list, (kind,)) if one.several else kind
    if default is None and not option.required:
        annotation = annotation | None
    info: Any = (
        typer.Argument(**common)
        if option.argument
        else typer.Option(
            *filter(None, (one.name, option.short)), rich_help_panel=option.group, **common
        )
    )
    return inspect.Parameter(
        one.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=Annotated[annotation, info],
    )


def _whole(value: Any) -> Any:
    """Return 600 for 600.0, as the help is to show it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _metavar(one: Declared) -> str | None:
    names = {int: "N", float: "N", Path: "FILE", str: "TEXT"}
    return names.get(one.type) if not isinstance(one.type, type(StrEnum)) else None


def _completion(kind: str) -> Callable[..., list[Any]]:
    def complete(incomplete: str) -> list[Any]:
        return [one for one in _known(kind) if str(one).startswith(incomplete)]

    return complete


def _known(kind: str) -> Iterator[str]:
    """Names of that kind, for a shell. No scenario is loaded for them: that takes too long."""
    if kind == "scenario":
        from importlib.metadata import entry_points

        yield from sorted(one.name for one in entry_points(group="mmrepro.scenarios"))
    elif kind == "engine":
        from mmrepro.engines import CLASSES

        yield from CLASSES
    elif kind == "release":
        from mmrepro.scenarios.data import recorded_releases

        # What stands before an option is not parsed yet: the line itself says which engine.
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        yield from recorded_releases(line.split())
    else:
        from mmrepro.incident.here import names

        yield from names(kind)


def _choices(one: Declared) -> list[str]:
    """Return the words that it takes; []: any."""
    words = one.type if isinstance(one.type, type(StrEnum)) else get_args(one.type)
    return [str(word) for word in words]


class DeclaredCommand(TyperCommand):
    """A command whose parameters are declared options: its help is grouped, and what the command
    line does not say is looked for in variables and in ``mmrepro.toml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        made = getattr(self.callback, "options", None)
        if made is not None:
            ctx.default_map = Configured(made, partial(self._check, ctx))
        words = [*args]  # the parser empties it
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # the command line's own: typer has no public class of them
            if hasattr(error, "possibilities"):
                known = [name for one in self.params for name in one.opts]
                error.possibilities = None
                error.message += "." + did_you_mean(error.option_name, known)
            elif made is not None and (wrong := getattr(error, "param", None)) is not None:
                one = next(one for one in declared(made) if one.field == wrong.name)
                error.message = error.message.removeprefix("Value error, ").rstrip(".") + "."
                for word in (word.rpartition("=")[2] for word in words):
                    if repr(word) in error.message:
                        error.message += did_you_mean(word, _choices(one))
            raise

    def _check(self, ctx: Any, name: str, value: Any) -> None:
        parameter: Any = next(one for one in self.params if one.name == name)
        parameter.process_value(ctx, value)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        ctx.default_map = None  # mmrepro's own defaults are shown, and no file is read for it
        lines: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if (record := one.get_help_record(ctx)) is not None:
                group = getattr(one, "rich_help_panel", None) or OUTPUT
                if one.param_type_name == "argument":
                    group, record = "Arguments", (record[0].partition(" <")[0], record[1])
                lines.setdefault(group, []).append(record)
        for heading in ("Arguments", *GROUPS):
            if heading in lines:
                with formatter.section(heading):
                    formatter.write_dl(lines[heading])


# ---------------------------------------------------------------- variables and files

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
    """Values by field, in place of the defaults; they are read when the first one is asked for.

    Args:
        check: checks a field's name and value as the command line does, and raises the same.
    """

    def __init__(self, made: type[Command], check: Callable[[str, Any], object]) -> None:
        super().__init__()
        self._made, self._check = made, check
        self._origins: dict[str, Origin] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        self._read()
        return super().get(name, default)

    def origin(self, name: str) -> Origin | None:
        """Where the value of the field ``name`` comes from; None: there is none.

        Raises:
            UsageError: a file cannot be read or has no such key, or a value is of another type.
        """
        return self._read().get(name)

    def _read(self) -> dict[str, Origin]:
        if self._origins is not None:
            return self._origins
        self._origins = {}
        alone = os.environ.get(CONFIG_VARIABLE) == ""
        known = {one.key: one for one in declared(self._made) if one.configurable}
        if not alone and (found := config_file()) is not None:
            for key, (value, where) in _keys(self._made, known, found).items():
                self._take(known[key], value, where, Origin.FILE)
        for one in known.values():
            name = one.variable
            if name and (text := os.environ.get(name)) and (one.option.variable or not alone):
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
            if not hasattr(error, "format_message"):  # every refusal of the command line has it
                raise
            raise UsageError(
                f"{where}: {str(error).removeprefix('Value error, ').rstrip('.')}.", hint=DOCS
            ) from error
        self[one.field], self._origins[one.field] = value, origin


def config_file() -> Path | None:
    """Return the file that holds here: in the current folder, or the nearest one above with one.

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
    made: type[Command], known: dict[str, Declared], file: Path
) -> dict[str, tuple[Any, str]]:
    """Value and place of each key that holds for ``made``, its own table's before the others."""
    from mmrepro.cli.app import COMMANDS

    document = read_toml(file)
    top = ["tool", "mmrepro"] if file.name == PROJECT else []
    found: dict[str, tuple[Any, str]] = {}
    for names, taken, why in (
        (top, KEYS, "it is no option that several commands have"),
        ([*top, *made.COMMAND.split()], known, f"mmrepro {made.COMMAND} takes none of that name"),
    ):
        table: Any = document
        for name in names:
            table = table.get(name, {}) if isinstance(table, dict) else {}
        for key, value in table.items() if isinstance(table, dict) else ():
            where = f"{file}, key {key!r}" + (f" of [{'.'.join(names)}]" if names else "")
            if names == top and isinstance(value, dict):
                if key not in COMMANDS:
                    raise UsageError(f"{where}: there is no command {key!r}.", hint=DOCS)
            elif key not in taken:
                raise UsageError(f"{where}: {why}.", hint=DOCS)
            elif key in known:
                found[key] = (_checked(known[key], value, file, where), where)
    return found


def _checked(one: Declared, value: Any, file: Path, where: str) -> Any:
    """Return ``value`` as its parameter takes it. Raises UsageError: it is of another type."""
    allowed, wanted = TYPES.get(one.type, ((str,), "a text"))
    if one.option.read:
        allowed, wanted = (int, float, str), "a text or a number"
    checked = []
    for each in value if one.several and isinstance(value, list) else [value]:
        if not isinstance(each, allowed) or (isinstance(each, bool) and one.type is not bool):
            raise UsageError(f"{where}: {each!r} is not {wanted}.", hint=DOCS)
        each = os.path.relpath(file.parent / str(each)) if one.type is Path else each
        checked.append(str(each) if one.option.read else each)
    return checked if one.several else checked[0]


def _split(one: Declared, text: str) -> Any:
    """Return the value that a variable holds; several stand beside each other, quoted as in a
    shell."""
    try:
        return shlex.split(text) if one.several else text
    except ValueError as error:
        raise UsageError(f"{one.variable}: {error}.") from error
