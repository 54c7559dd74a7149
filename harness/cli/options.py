"""From the declared options of a command to its parameters, and back to its dataclass.

A value is taken from the command line, else from a variable, else from
``mmrepro.toml``. An incident or a campaign may be named by its number, its id or
``last``."""

import inspect
import os
import shlex
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from mmrepro.base.common_options import (
    FEATURE_OPTIONS,
    RANK_OPTIONS,
)
from mmrepro.base.errors import ExitCode, UntrustedFile, UsageError, did_you_mean
from mmrepro.base.machine import Configured
from mmrepro.base.options import (
    GROUPS,
    OUTPUT,
    Command,
    DeclaredOption,
    OptionOrigin,
    declared,
)
from mmrepro.base.values import WrongValue, read_value
from mmrepro.cli.commands import COMMANDS
from mmrepro.cli.exit_codes import EXIT_ZERO, codes_of, help_rows
from typer._click.exceptions import ClickException
from typer.core import TyperCommand, TyperGroup

C = TypeVar("C", bound=Command)
_JSON_SCHEMA = "json_schema"
_EXIT_ZERO = "exit_zero"
_VERDICTS = (ExitCode.NOT_AS_EXPECTED, ExitCode.INCONCLUSIVE)
_SCENARIOS = "mmrepro.scenarios"
_WHOLE = 1000
"""Characters of a command's sentence in the help of its group."""
"""Entry points with which distributions add scenarios."""
_AFTER_DASHES = "after --"
"""Where a command keeps what follows ``--``, if it has a plain field ``child``: another
command."""
PLACES = ("incident", "run", "campaign", "unfinished", "finding", "record")
"""Kinds of :attr:`Option.names` that lie in folders here."""


def command(made: type[C]) -> Callable[[Callable[[C], None]], Callable[..., None]]:
    """Decorate the function of a command: it gets a ``made``, and typer a parameter per
    option."""

    def decorate(execute: Callable[[C], None]) -> Callable[..., None]:
        @wraps(execute)
        def call(ctx: typer.Context, **values: Any) -> None:
            values.pop(_JSON_SCHEMA, None)
            exit_zero = values.pop(_EXIT_ZERO, False)
            asked = _options(made, ctx, values)
            try:
                execute(asked)
            except typer.Exit as ended:
                if exit_zero and ended.exit_code in _VERDICTS:
                    raise typer.Exit(ExitCode.AS_EXPECTED) from None
                raise
            except UntrustedFile as error:
                if hasattr(asked, "trust"):
                    again = asked.command_line(trust=True)
                    error.hint = f"read it yourself first, then: {again}"
                raise

        context = inspect.Parameter(
            "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [context, *map(_parameter, declared(made))]
        if made.DOCUMENTS:
            parameters.append(_json_schema(made))
        if codes_of(made.COMMAND).has_verdict:
            parameters.append(_exit_zero())
        # typer follows __wrapped__, and would see the function's own parameters.
        del call.__wrapped__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.options = made  # type: ignore[attr-defined]
        return call

    return decorate


def _json_schema(made: type[Command]) -> inspect.Parameter:
    """The option ``--json-schema`` of a command.

    It is eager: what the command requires need not be given with it."""

    def show(value: bool) -> None:
        if value:
            import json

            from mmrepro.cli.json_schema import json_schema

            typer.echo(json.dumps(json_schema(made.DOCUMENTS), indent=1))
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


def _exit_zero() -> inspect.Parameter:
    """The option ``--exit-zero`` of a command with a verdict."""
    info = typer.Option("--exit-zero", help=EXIT_ZERO, rich_help_panel=OUTPUT)
    return inspect.Parameter(
        _EXIT_ZERO,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, info],
    )


def _options(made: type[C], ctx: typer.Context, values: dict[str, Any]) -> C:
    """The options of a command: what the command line, a variable or a file says, else
    the defaults, and where each comes from."""
    origins: dict[str, OptionOrigin] = {}
    configured = ctx.default_map
    for known in declared(made):
        below: OptionOrigin | None = None
        if isinstance(configured, Configured):
            below = configured.origin(known.field)
        source = ctx.get_parameter_source(known.field)
        if source is not None and source.name == "COMMANDLINE":
            origins[known.field] = OptionOrigin.OVER if below else OptionOrigin.WORD
        elif below:
            origins[known.field] = below
        else:
            values[known.field] = known.default
            continue
        values[known.field] = _read(known, values[known.field])
    if hasattr(made, "child"):
        values["child"] = ctx.meta.get(_AFTER_DASHES, ())
    return made(**values, origins=origins)


def read_words(command: Any, words: Sequence[str], made: type[C]) -> C:
    """The options that these words are of a command, as if it were typed with them.

    Args:
        command: typer's.
        made: its options.

    Raises:
        UsageError: they are none.
    """
    try:
        context = command.make_context(made.COMMAND, [*words])
    except ClickException as error:
        raise UsageError(f"{shlex.join(words)}: {error.format_message()}") from None
    values = dict(context.params)
    values.pop(_JSON_SCHEMA, None)
    values.pop(_EXIT_ZERO, None)
    return _options(made, context, values)


def _read(known: DeclaredOption, value: Any) -> Any:
    """A value that was given, as the command's dataclass has it."""
    option = known.option
    if option.read:
        value = option.read(value)
    elif known.several:
        value = tuple(dict.fromkeys(value) if option.distinct else value)
    if option.names not in PLACES:
        return value

    # It loads documents: only what names folders needs it.
    from mmrepro.failure.documents import place_here

    if known.several:
        return tuple([place_here(given, kind=option.names) for given in value])
    return place_here(value, kind=option.names)


def _parameter(known: DeclaredOption) -> inspect.Parameter:
    """The parameter from which typer makes an option or an argument."""
    option = known.option
    kind: Any = known.type
    is_number = kind in (int, float)
    help_text = option.help
    if option.shown:
        help_text += f"  [default: {option.shown}]"
    shown = not option.shown and known.default not in (None, "", (), {}, False)
    common: dict[str, Any] = {
        "help": help_text,
        "metavar": option.metavar or _metavar(known),
        "min": _whole(option.least) if is_number else None,
        "max": _whole(option.most) if is_number else None,
        "show_default": shown,
        "autocompletion": _completion(option.names) if option.names else None,
    }

    default: Any = None if known.several else _whole(known.default)
    if option.read and not known.several:
        default = None if default in (None, ()) else option.write(default)
    annotation = types.GenericAlias(list, (kind,)) if known.several else kind
    if default is None and not option.required:
        annotation = annotation | None
    info: Any
    if option.argument:
        info = typer.Argument(**common)
    else:
        names = [known.name, option.short] if option.short else [known.name]
        info = typer.Option(*names, rich_help_panel=option.group, **common)
    return inspect.Parameter(
        known.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.required else default,
        annotation=Annotated[annotation, info],
    )


def _for_the_server(words: Sequence[str]) -> Iterator[str]:
    """Yield ``words`` with short forms written out as ``--server-arg``.

    ``--tensor-parallel-size 2`` is the server's own option; ``--runner v2`` stands for
    a feature of the engine."""
    ranks: set[str] = set()
    for options in RANK_OPTIONS.values():
        ranks.update(options)
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            yield word
            yield from left
        elif name in FEATURE_OPTIONS:
            feature = FEATURE_OPTIONS[name] + (value if equals else next(left, ""))
            yield f"--server-arg={{feature:{feature}}}"
        elif name not in ranks:
            yield word
        elif equals:
            yield f"--server-arg={word}"
        else:
            yield f"--server-arg={word}"
            value = next(left, "")
            if value:
                yield f"--server-arg={value}"


def _whole(value: Any) -> Any:
    """Return 600 for 600.0, as the help is to show it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _metavar(known: DeclaredOption) -> str | None:
    if isinstance(known.type, type(StrEnum)):
        return None
    return {int: "N", float: "N", Path: "FILE", str: "TEXT"}.get(known.type)


def _completion(kind: str) -> Callable[..., list[Any]]:
    def complete(incomplete: str) -> list[Any]:
        names = _known(kind)
        if kind == "scenario":
            names = _with_variants(incomplete)
        return [name for name in names if str(name).startswith(incomplete)]

    return complete


def _typed() -> list[str]:
    """The words of the line that a shell completes."""
    line = os.environ.get("COMP_WORDS")
    return (line or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()


def _known(kind: str) -> Iterator[str]:
    """Names of that kind, for a shell."""
    if kind == "scenario":
        yield from sorted(_scenarios())
    elif kind == "engine":
        from mmrepro.engines import ENGINES

        yield from ENGINES
    elif kind == "release":
        from mmrepro.scenarios.data import recorded_releases

        # What stands before an option is not parsed yet: the line itself says which
        # engine.
        yield from recorded_releases(_typed())
    elif kind in ("variant", "mitigation", "factor"):
        yield from _of_scenario(kind)
    else:
        from mmrepro.failure.documents import names_here

        yield from names_here(kind)


def _scenarios() -> set[str]:
    """No scenario is loaded for their names: that takes too long."""
    from importlib.metadata import entry_points

    return {point.name for point in entry_points(group=_SCENARIOS)}


def _with_variants(incomplete: str) -> Iterator[str]:
    """Names of scenarios, and NAME:VARIANT once a colon was typed."""
    name, colon, _ = incomplete.partition(":")
    # A colon ends a word for bash: the name is the word before it.
    before = _typed()[:-1]
    if not colon and before[-1:] == [":"]:
        yield from _variants(before[-2])
    elif colon and name in _scenarios():
        for variant in _variants(name):
            yield f"{name}:{variant}"
    else:
        yield from sorted(_scenarios())


def _variants(name: str) -> Iterator[str]:
    from mmrepro.scenario.registry import load_scenario

    if name in _scenarios():
        for scenario in load_scenario(name, conditions=False).variants:
            yield scenario.variant


def _of_scenario(kind: str) -> Iterator[str]:
    """Variants, mitigations or factors of the scenario that was typed."""
    from mmrepro.scenario.registry import load_scenario

    known = _scenarios()
    names = [word.partition(":")[0] for word in _typed()]
    for name in names:
        if name not in known:
            continue
        scenario = load_scenario(name, conditions=False)
        if kind == "variant":
            yield from _variants(name)
        elif kind == "mitigation":
            yield from [mitigation.name for mitigation in scenario.mitigations]
        else:
            yield from [factor.name for factor in scenario.factors]
        return


def _resumed(words: Sequence[str]) -> str:
    """Return the folder that ``--resume`` names; "": none."""
    for word, after in pairwise([*words, ""]):
        if word.startswith("--resume"):
            return word.partition("=")[2] or after
    return ""


class _Switch:
    """Takes a switch as it is."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


def without_pydantic(
    parameters: list[Any], options: Mapping[str, DeclaredOption] | None = None
) -> list[Any]:
    """Return the parameters of a command, whose values mmrepro reads: typer would load
    pydantic for it, a third of a short command's time.

    Args:
        options: declared ones, by field; all others are switches.
    """
    for parameter in parameters:
        declaration = (options or {}).get(parameter.name)
        parameter._runtime_param = (
            _Switch() if declaration is None else _DeclaredValue(declaration)
        )
    return parameters


class _DeclaredValue:
    """Reads the values of one option."""

    def __init__(self, declaration: DeclaredOption) -> None:
        self._declaration = declaration

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of an option. Raises UsageError: it does not take it."""
        if value is None:
            return () if self._declaration.several else None
        try:
            if self._declaration.several:
                return [read_value(self._declaration, item) for item in value]
            return read_value(self._declaration, value)
        except WrongValue as error:
            name = self._declaration.option.metavar or self._declaration.field.upper()
            if not self._declaration.option.argument:
                name = self._declaration.name
            hint = f"{ctx.command_path} --help"
            raise UsageError(error.sentence(name), hint=hint) from None


class CommandGroup(TyperGroup):
    """A command that has commands: its help breaks their sentences, and cuts none."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=_WHOLE)))

        with formatter.section("Commands"):
            formatter.write_dl(rows)


class DeclaredCommand(TyperCommand):
    """A command whose parameters are declared options: its help is grouped, and what
    the command line does not say is looked for in variables and in ``mmrepro.toml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, and say what is wrong with them in one sentence."""
        made = getattr(self.callback, "options", None)
        if made is not None:
            ctx.default_map = Configured(made, COMMANDS)
            fields = {known.field for known in declared(made)}
            if "server_args" in fields:
                args = [*_for_the_server(args)]
        dashes = [at for at, word in enumerate(args) if word == "--"]
        if hasattr(made, "child") and dashes:
            # Of two, the first is for arguments that begin with a dash.
            at = dashes[:2][-1]
            ctx.meta[_AFTER_DASHES], args = tuple(args[at + 1 :]), args[:at]

        # The parser empties the list that it gets.
        words = [*args]
        try:
            return super().parse_args(ctx, args)
        # The command line's own: typer has no public class of them.
        except Exception as raised:
            self._explain(raised, made, words)
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        made = getattr(self.callback, "options", None)
        parameters = super().get_params(ctx)
        if made is None:
            return parameters
        return without_pydantic(
            parameters, {known.field: known for known in declared(made)}
        )

    def _explain(
        self, error: Any, made: type[Command] | None, words: Sequence[str]
    ) -> None:
        """Add to typer's message what it leaves out.

        Raises:
            UsageError: a command is to be resumed, and repeated what it needs.
        """
        if hasattr(error, "possibilities"):
            known: list[str] = []
            for parameter in self.params:
                known += parameter.opts
            error.possibilities = None
            error.message += "." + did_you_mean(error.option_name, known)
            return

        # Of an option that is missing typer says all itself.
        is_missing = getattr(error, "param", None) is not None and not error.message
        folder = _resumed(words)
        if made is not None and is_missing and folder:
            raise UsageError(
                "--resume alone does not repeat what was asked for.",
                hint=shlex.join(["mmrepro", "resume", folder]),
            ) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below their headings."""
        # mmrepro's own defaults are shown, and no file is read for it.
        ctx.default_map = None
        lines: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            heading = getattr(parameter, "rich_help_panel", None) or OUTPUT
            if parameter.param_type_name == "argument":
                heading = "Arguments"
                record = (record[0].partition(" <")[0], record[1])
            lines.setdefault(heading, []).append(record)
        for heading in ("Arguments", *GROUPS):
            if heading in lines:
                with formatter.section(heading):
                    formatter.write_dl(lines[heading])
        made = getattr(self.callback, "options", None)
        if made is not None:
            with formatter.section("Exit codes"):
                formatter.write_dl(help_rows(made.COMMAND))
