"""From the declared options of a command to its parameters, and back to its dataclass.

A value is taken from the command line, else from a variable, else from
``mmrepro.toml``. An incident or a campaign may be named by its number, its id or
``last``."""

import inspect
import os
import shlex
import types
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from mmrepro.base.common_options import RANK_OPTIONS
from mmrepro.base.errors import UntrustedFile, UsageError, did_you_mean
from mmrepro.base.machine.configured import Configured
from mmrepro.base.options import (
    GROUPS,
    OUTPUT,
    Command,
    DeclaredOption,
    OptionOrigin,
    declared,
)
from mmrepro.cli.commands import COMMANDS
from typer.core import TyperCommand

C = TypeVar("C", bound=Command)
_JSON_SCHEMA = "json_schema"
_AFTER_DASHES = "after --"
"""Where a command keeps what follows ``--``, if it has a plain field ``child``: another
command."""
PLACES = ("incident", "campaign", "unfinished", "finding", "record")
"""Kinds of :attr:`Option.names` that lie in folders here."""


def command(made: type[C]) -> Callable[[Callable[[C], None]], Callable[..., None]]:
    """Decorate the function of a command: it gets a ``made``, and typer a parameter per
    option."""

    def decorate(execute: Callable[[C], None]) -> Callable[..., None]:
        @wraps(execute)
        def call(ctx: typer.Context, **values: Any) -> None:
            values.pop(_JSON_SCHEMA, None)
            asked = _options(made, ctx, values)
            try:
                execute(asked)
            except UntrustedFile as error:
                if hasattr(asked, "trust"):
                    again = asked.command_line(trust=True)
                    error.hint = f"read it yourself first, then: {again}"
                raise

        context = inspect.Parameter(
            "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [context, *(_parameter(one) for one in declared(made))]
        if made.DOCUMENTS:
            parameters.append(_json_schema(made))
        del call.__wrapped__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.options = made  # type: ignore[attr-defined]
        return call

    return decorate


def _json_schema(made: type[Command]) -> inspect.Parameter:
    """The option ``--json-schema`` of a command.

    It is eager: what the command requires need not be given with it."""

    def show(value: bool) -> None:
        if value:
            from mmrepro.cli.console import emit
            from mmrepro.cli.json_schema import json_schema

            emit(json_schema(made.DOCUMENTS))
            raise typer.Exit

    info = typer.Option(
        "--json-schema",
        callback=show,
        is_eager=True,
        help="Print the JSON Schema of what is printed as JSON, and end.",
        rich_help_panel=OUTPUT,
    )
    return inspect.Parameter(
        _JSON_SCHEMA,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, info],
    )


def _options(made: type[C], ctx: typer.Context, values: dict[str, Any]) -> C:
    origins: dict[str, OptionOrigin] = {}
    for one in declared(made):
        source = ctx.get_parameter_source(one.field)
        configured = ctx.default_map
        below = (
            configured.origin(one.field) if isinstance(configured, Configured) else None
        )
        if source is not None and source.name == "COMMANDLINE":
            origins[one.field] = OptionOrigin.OVER if below else OptionOrigin.WORD
        elif below:
            origins[one.field] = below
        else:
            values[one.field] = one.default
            continue
        value = values[one.field]
        if one.option.read:
            values[one.field] = one.option.read(value)
        elif one.several:
            values[one.field] = tuple(
                dict.fromkeys(value) if one.option.distinct else value
            )
        if one.option.names in PLACES:
            from mmrepro.failure.documents.here import place

            found = values[one.field]
            at = partial(place, kind=one.option.names)
            values[one.field] = tuple(map(at, found)) if one.several else at(found)
    if hasattr(made, "child"):
        values["child"] = ctx.meta.get(_AFTER_DASHES, ())
    return made(**values, origins=origins)


def _parameter(one: DeclaredOption) -> inspect.Parameter:
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
            *filter(None, (one.name, option.short)),
            rich_help_panel=option.group,
            **common,
        )
    )
    return inspect.Parameter(
        one.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=Annotated[annotation, info],
    )


def _ranks_apart(words: Sequence[str]) -> Iterator[str]:
    """``--tensor-parallel-size 2``, which is the server's own, as two
    ``--server-arg``."""
    names = {name for some in RANK_OPTIONS.values() for name in some}
    left = iter(words)
    for word in left:
        name, equals, _ = word.partition("=")
        if word == "--":
            yield from (word, *left)
        elif name not in names:
            yield word
        elif equals:
            yield f"--server-arg={word}"
        else:
            value = next(left, "")
            yield from (f"--server-arg={one}" for one in (word, value) if one)


def _whole(value: Any) -> Any:
    """Return 600 for 600.0, as the help is to show it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _metavar(one: DeclaredOption) -> str | None:
    names = {int: "N", float: "N", Path: "FILE", str: "TEXT"}
    return names.get(one.type) if not isinstance(one.type, type(StrEnum)) else None


def _completion(kind: str) -> Callable[..., list[Any]]:
    def complete(incomplete: str) -> list[Any]:
        return [one for one in _known(kind) if str(one).startswith(incomplete)]

    return complete


def _known(kind: str) -> Iterator[str]:
    """Names of that kind, for a shell. No scenario is loaded for them: that takes too
    long."""
    if kind == "scenario":
        from importlib.metadata import entry_points

        yield from sorted(one.name for one in entry_points(group="mmrepro.scenarios"))
    elif kind == "engine":
        from mmrepro.engines import ENGINES

        yield from ENGINES
    elif kind == "release":
        from mmrepro.scenarios.data import recorded_releases

        # What stands before an option is not parsed yet: the line itself says which
        # engine.
        line = os.environ.get("COMP_WORDS") or os.environ.get(
            "_TYPER_COMPLETE_ARGS", ""
        )
        yield from recorded_releases(line.split())
    else:
        from mmrepro.failure.documents.here import names

        yield from names(kind)


def _choices(one: DeclaredOption) -> list[str]:
    """Return the words that it takes; []: any."""
    words = one.type if isinstance(one.type, type(StrEnum)) else get_args(one.type)
    return [str(word) for word in words]


def _resumed(words: list[str]) -> str:
    """Return the folder that ``--resume`` names; "": none."""
    for word, after in pairwise([*words, ""]):
        if word.startswith("--resume"):
            return word.partition("=")[2] or after
    return ""


class DeclaredCommand(TyperCommand):
    """A command whose parameters are declared options: its help is grouped, and what
    the command line does not say is looked for in variables and in ``mmrepro.toml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        made = getattr(self.callback, "options", None)
        if made is not None:
            ctx.default_map = Configured(made, partial(self._check, ctx), COMMANDS)
        if made is not None and any(
            one.field == "server_args" for one in declared(made)
        ):
            args = [*_ranks_apart(args)]
        dashes = [at for at, word in enumerate(args) if word == "--"]
        if hasattr(made, "child") and dashes:
            # Of two, the first is for arguments that begin with a dash.
            at = dashes[:2][-1]
            ctx.meta[_AFTER_DASHES], args = tuple(args[at + 1 :]), args[:at]
        words = [*args]  # the parser empties it
        try:
            return super().parse_args(ctx, args)
        except (
            Exception
        ) as raised:  # the command line's own: typer has no public class of them
            error: Any = raised
            if hasattr(error, "possibilities"):
                known = [name for one in self.params for name in one.opts]
                error.possibilities = None
                error.message += "." + did_you_mean(error.option_name, known)
            elif (
                made is not None
                and (wrong := getattr(error, "param", None)) is not None
            ):
                one = next(one for one in declared(made) if one.field == wrong.name)
                if not error.message and (folder := _resumed(words)):
                    raise UsageError(
                        "--resume alone does not repeat what was asked for.",
                        hint=shlex.join(["mmrepro", "resume", folder]),
                    ) from None
                if error.message:  # of an option that is missing typer says all itself
                    error.message = (
                        error.message.removeprefix("Value error, ").rstrip(".") + "."
                    )
                for word in (word.rpartition("=")[2] for word in words):
                    if repr(word) in error.message:
                        error.message += did_you_mean(word, _choices(one))
            raise

    def _check(self, ctx: Any, name: str, value: Any) -> None:
        parameter: Any = next(one for one in self.params if one.name == name)
        parameter.process_value(ctx, value)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        ctx.default_map = (
            None  # mmrepro's own defaults are shown, and no file is read for it
        )
        lines: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if (record := one.get_help_record(ctx)) is not None:
                group = getattr(one, "rich_help_panel", None) or OUTPUT
                if one.param_type_name == "argument":
                    group, record = (
                        "Arguments",
                        (record[0].partition(" <")[0], record[1]),
                    )
                lines.setdefault(group, []).append(record)
        for heading in ("Arguments", *GROUPS):
            if heading in lines:
                with formatter.section(heading):
                    formatter.write_dl(lines[heading])
