"""The screen of ``mmrepro --help``. It is composed here, since typer takes three times
as long to be imported as this screen takes to be printed."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mmrepro.cli.commands import COMMANDS, EVERYDAY, GROUPS

HELP_COLUMNS = 120
"""Help is as wide as the terminal, up to that: longer lines are hard to read."""
_LEAST_COLUMNS = 50
_USAGE = "Usage: mmrepro [OPTIONS] COMMAND [ARGS]..."
_ABOUT = "Reproduce and diagnose failures of multimodal LLM inference engines."
_START = "Start here:  mmrepro demo"
_OPTIONS = (
    ("-V, --version", "Print the version."),
    ("--install-completion", "Install completion for the current shell."),
    (
        "--show-completion",
        "Show completion for the current shell, to copy it or customize the "
        "installation.",
    ),
    ("-h, --help", "Show this message and exit."),
)
_CODES = (
    "Exit codes: 0 no problem or as expected · 1 a problem found or not as expected · "
    "2 usage · 3 undecided · 4 infrastructure"
)


def help_screen(*, everything: bool = False) -> str:
    """Return the everyday commands below their headings; ``everything``: all of
    them."""
    terminal = shutil.get_terminal_size().columns
    columns = max(min(terminal, HELP_COLUMNS) - 2, _LEAST_COLUMNS)
    lines = [_USAGE, "", *_wrapped(_ABOUT, columns), "", *_wrapped(_START, columns)]
    lines += ["", *_section("Options", _OPTIONS, columns)]
    for group, names in GROUPS.items():
        shown = [name for name in names if everything or name in EVERYDAY]
        rows = [(name, COMMANDS[name][1]) for name in shown]
        lines += _section(group, rows, columns)
    if not everything:
        more = [
            ("help all", f"All {len(COMMANDS)} commands."),
            ("help logs", "The page of a command; help pages lists all."),
        ]
        lines += _section("More", more, columns)
    lines += _wrapped(_CODES, columns)
    return "\n".join(lines)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent="  ", subsequent_indent="  ")


def _section(
    heading: str, rows: Sequence[tuple[str, str]], columns: int
) -> Iterator[str]:
    if rows:
        yield f"{heading}:"
        yield from _two_columns(rows, columns)
        yield ""


def _two_columns(rows: Iterable[tuple[str, str]], columns: int) -> Iterator[str]:
    first = max(len(name) for name, _ in rows) + 2
    for name, about in rows:
        head, *rest = textwrap.wrap(about, max(columns - first - 2, 10))
        yield f"  {name:{first}}{head}"
        for line in rest:
            yield f"  {'':{first}}{line}"
