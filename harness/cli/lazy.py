"""A group of commands that are imported when they are asked for: ``--help`` needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from mmrepro.cli.options import DeclaredCommand
from typer.core import TyperGroup

Named = dict[str, tuple[str, str]]
"""By a command's name: where it is (``module:name`` below ``mmrepro.cli``), and what it does."""


def lazy_group(named: Named) -> type[TyperGroup]:
    """The class of a typer group that holds ``named``, in that order."""

    class Lazy(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*named]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in named and cmd_name not in self.commands:
                self.add_command(_command(cmd_name, *named[cmd_name]))
            return super().get_command(ctx, cmd_name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] not in named:  # what is close to it is looked for among all
                for name in named:
                    self.get_command(ctx, name)
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, told) for name, (_, told) in named.items()])

    return Lazy


def _command(name: str, place: str, told: str) -> Any:
    module, _, attribute = place.partition(":")
    found: typer.Typer | Callable[..., Any] = getattr(
        import_module(f"mmrepro.cli.{module}"), attribute
    )
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = None
        command = typer.main.get_group(found)
        command.name, command.short_help = name, told
        return command
    app.command(name, cls=DeclaredCommand, short_help=told)(found)
    return typer.main.get_command(app)
