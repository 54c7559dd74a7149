"""``mmrepro help``: all commands, and the pages of the documentation.

The pages come with the package: an installed user has no checkout to look into."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import typer
from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.base.options import Command, option
from mmrepro.cli.commands import COMMANDS, PAGES
from mmrepro.cli.help_screen import help_screen
from mmrepro.cli.options import command

_ALL = "all"


@dataclass(frozen=True)
class _HelpCommand(Command):
    COMMAND: ClassVar[str] = "help"
    topic: tuple[str, ...] = option(
        (),
        "A command, a page (mmrepro help pages lists them), or all.",
        "TOPIC",
        argument=True,
        shown="the everyday commands",
    )


@command(_HelpCommand)
def help_(asked: _HelpCommand) -> None:
    """Print the page of a command or a topic, or list all commands.

    The options of a command are in its own help: mmrepro logs --help.

    Example:  mmrepro help logs
    """
    topic = " ".join(asked.topic)
    if topic in ("", _ALL):
        typer.echo(help_screen(everything=topic == _ALL))
    elif topic == "pages":
        typer.echo("\n".join(sorted(page.stem for page in pages().glob("*.md"))))
    else:
        _show(_page_of(topic))


def pages() -> Path:
    """The folder of the pages: in the package, or docs/ of a checkout."""
    import mmrepro

    package = Path(mmrepro.__file__).parent
    installed = package / "pages"
    return installed if installed.is_dir() else package.parent / "docs"


def _page_of(topic: str) -> Path:
    """Raises UsageError: no page has that name."""
    name = topic.split()[0]
    page = pages() / PAGES.get(name, f"{name}.md")
    # A name may lead out of the folder.
    known = {path.stem: path for path in pages().glob("*.md")}
    if page.stem not in known:
        close = did_you_mean(topic, [*known, *COMMANDS])
        raise UsageError(
            f"No page is called {topic}.{close}", hint="mmrepro help pages"
        )
    return known[page.stem]


def _show(page: Path) -> None:
    """Print a page: on a terminal by a pager, elsewhere as it is written."""
    text = page.read_text("utf-8")
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text))
