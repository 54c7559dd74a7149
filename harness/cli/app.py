"""The root command. Each of its subcommands is imported when it is asked for:
``--help``, and a shell that completes a name, need none of them."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from mmrepro import __version__
from mmrepro.base.errors import (
    RUN_MODULES,
    UsageError,
    did_you_mean,
    missing_extra,
)
from mmrepro.base.options import Command
from mmrepro.cli.commands import (
    ALIASES,
    COMMANDS,
    FOLDED,
    START_ENGINES,
)
from mmrepro.cli.help_screen import HELP_COLUMNS, help_screen
from mmrepro.cli.options import DeclaredCommand, without_pydantic
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup

_DESCRIBE = frozenset({"-h", "--help", "--json-schema"})
"""Options with which a command says what it is, and does nothing."""


class Root(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.add_command(_command(cmd_name, *COMMANDS[cmd_name]))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in ALIASES:
            args = [ALIASES[args[0]], *args[1:]]
        if args == ["version"]:
            _version(True)
        if args and args[0] in FOLDED:
            sentence, instead = FOLDED[args[0]]
            raise UsageError(sentence, hint=instead)
        if (
            args
            and args[0] not in COMMANDS
            and not (args[0][:1] == "-" or ctx.resilient_parsing)
        ):
            ctx.fail(
                f"No such command {args[0]!r}.{did_you_mean(args[0], [*COMMANDS])}"
            )
        named = {" ".join(args[:1]), " ".join(args[:2])}  # "env", "env warm"
        # What only describes the command starts no engine.
        if named & START_ENGINES and _DESCRIBE.isdisjoint(args):
            for module in RUN_MODULES:
                # uv may be a program of the system's.
                if module != "uv" and find_spec(module) is None:
                    from mmrepro.base.installed import install_command

                    raise UsageError(missing_extra(module), hint=install_command("run"))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """Return the everyday commands; ``mmrepro help all`` prints all."""
        return help_screen()

    def get_params(self, ctx: Any) -> list[Any]:
        return without_pydantic(super().get_params(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        begun = [
            (n, about) for n, (_, about) in COMMANDS.items() if n.startswith(incomplete)
        ]
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        return [*(CompletionItem(name, help=about) for name, about in begun), *options]


@cache
def _command(name: str, where: str, about: str) -> Any:
    module, _, attribute = where.partition(":")
    callback: typer.Typer | Callable[..., Any] = getattr(
        import_module(f"mmrepro.cli.{module}"), attribute
    )
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(callback, typer.Typer):
        callback.rich_markup_mode = None
        command = typer.main.get_group(callback)
        command.name, command.short_help = name, about
        return command
    app.command(name, cls=DeclaredCommand, short_help=about)(callback)
    return typer.main.get_command(app)


def typed_command(name: str) -> Any:
    """The command of that name, as the command line has it."""
    return _command(name, *COMMANDS[name])


def declared_command(words: Sequence[str]) -> type[Command]:
    """The options of the command that ``words`` begin with: ``matrix run …``, ``ablate
    …``."""
    command = _command(words[0], *COMMANDS[words[0]])
    if not hasattr(command.callback, "options"):  # a group of commands
        command = command.commands[words[1]]
    made: type[Command] = command.callback.options
    return made


def declared_commands() -> Iterator[type[Command]]:
    """Yield the options of all commands, those of groups too."""
    for name, (where, about) in COMMANDS.items():
        yield from _declared_below(_command(name, where, about))


def _declared_below(command: Any) -> Iterator[type[Command]]:
    for inner in getattr(command, "commands", {}).values():
        yield from _declared_below(inner)
    if hasattr(command.callback, "options"):
        yield command.callback.options


app = typer.Typer(
    name="mmrepro",
    cls=Root,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": HELP_COLUMNS,
    },
    # Plain help: it needs no rich, and `mmrepro --help` takes a third of the time.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"mmrepro {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
