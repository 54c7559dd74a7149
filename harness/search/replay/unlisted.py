"""The server of a case file: somebody else may have written it.

Who sends a case chooses options, variables, a model and a mitigation of a server that
runs here. They are held against the list of the engine (``allowed.toml``), wherever a
server is started from a file. What the user types himself is his own: it replaces what
the file has."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

from mmrepro.base.errors import UsageError
from mmrepro.engines import get_engine
from mmrepro.engines.models import TINY
from mmrepro.traffic.case import CASE_FILE, ServerWanted

_NOTHING_TYPED: Collection[str] = ()


def refuse_unlisted(
    server: ServerWanted,
    place: Path,
    typed: Collection[str] = _NOTHING_TYPED,
    *,
    command: str = "",
) -> None:
    """Hold the server of the case in ``place`` against what others may set.

    Args:
        typed: fields of the server that the user gives instead: they are not asked.
        command: what the user can type an option to; "": the command that reads the
            case.

    Raises:
        UsageError: something is not on the list; says what, why, and what allows it.
    """
    for field, shown, why in _unlisted(server):
        if field not in typed:
            where = f"{command} " if command else ""
            raise UsageError(
                (
                    f"{place} sets {shown[:200]} for its server, which a file may "
                    f"not: {why}."
                ),
                hint=f"take it out of {CASE_FILE}, or type it yourself: {where}"
                + _typed_again(server, field),
            )


def _unlisted(server: ServerWanted) -> Iterator[tuple[str, str, str]]:
    """Field, what it has that is not listed, and why it may not have it."""
    allowed = get_engine(server.engine).allowed
    if server.model not in TINY:
        yield "model", f"the model {server.model}", "it is none of the tiny models"
    for shown, why in allowed.refused(server.args, {}):
        yield "args", shown, why
    for shown, why in allowed.refused([], server.env):
        yield "env", shown, why


def _typed_again(server: ServerWanted, field: str) -> str:
    """Options of ours that give the whole field: they take the place of what the file
    has."""
    if field == "model":
        return f"--model {shlex.quote(server.model)}"
    if field == "args":
        return " ".join(shlex.quote(f"--server-arg={word}") for word in server.args)
    pairs = (f"--env={name}={value}" for name, value in server.env.items())
    return " ".join(shlex.quote(pair) for pair in pairs)
