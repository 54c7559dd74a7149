"""``mmrepro resume``: go on with whatever campaign is in a folder."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base.options import Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.incident.head import Listed

IN_THE_PLAN = ("--scenario", "--night", "--shard")
"""Options of a nightly run whose outcome is written down; no other kind has them."""


@dataclass(frozen=True)
class ResumeCommand(Command):
    COMMAND: ClassVar[str] = "resume"
    folder: Path = option(Path(), "Folder of the campaign.", "DIR", argument=True, required=True)
    more: tuple[str, ...] = option(
        (), "After --: options of its own command.", "[-- OPTIONS]", argument=True
    )


@command(ResumeCommand)
def resume(asked: ResumeCommand) -> None:
    """Go on with the campaign in a folder: a matrix, bisection, ablation, acceptance, replay or
    fuzz session. No run that has ended is made again.

    Example:  mmrepro resume nights -- --budget 1h
    """
    from mmrepro.cli.app import app

    words = [*words_of(_unfinished(asked.folder), asked.folder), *asked.more]
    typer.echo(shlex.join(["mmrepro", *words]), err=True)
    code = app(words, prog_name="mmrepro", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)


def _unfinished(folder: Path) -> Listed:
    """The newest campaign there that has something left. Raises UsageError: there is none."""
    from mmrepro.errors import UsageError
    from mmrepro.incident.head import COMPLETE, campaigns_in
    from mmrepro.machine.files import is_folder

    if not is_folder(folder):
        raise UsageError(f"There is no folder {folder}.", hint="mmrepro incidents")
    found = list(campaigns_in(folder, {path.name for path in folder.iterdir()}))
    for one in found:
        if one.head is not None and one.head.state != COMPLETE:
            return one
    if not found:
        raise UsageError(f"{folder} holds no campaign to go on with.", hint="mmrepro incidents")
    if found[0].head is None:
        raise UsageError(f"The {found[0].kind.name} in {folder} cannot be read: {found[0].why}.")
    report = "mmrepro matrix report" if found[0].kind.words[0] == "matrix" else "mmrepro report"
    if found[0].kind.words[0] == "accept":
        report = "mmrepro accept --again --out"
    raise UsageError(
        f"The {found[0].kind.name} in {folder} is complete: nothing is left to run.",
        hint=f"{report} {shlex.quote(str(folder))}",
    )


def words_of(one: Listed, folder: Path) -> list[str]:
    """The words that go on with it in ``folder``, wherever that lies now.

    Raises:
        UsageError: what is written down there is no command of such a campaign.
    """
    from mmrepro.errors import UsageError

    assert one.head is not None
    try:
        program, *given = shlex.split(one.head.resume or one.head.command)
    except ValueError:
        program, given = "", []
    kind = one.kind.words
    if program != "mmrepro" or tuple(given[: len(kind)]) != kind:
        raise UsageError(
            f"What is written in {folder} does not say how to go on with its {one.kind.name}.",
            hint=f"mmrepro {' '.join(kind)} --help",
        )
    named = kind[0] in ("replay", "fuzz")
    with_value = {"--out", *(["--resume"] if named else IN_THE_PLAN)}
    words, value = [], False
    for word in given:
        if word.partition("=")[0] in with_value:
            value = "=" not in word
        elif value or word == "--resume":
            value = False
        else:
            # Documents have ~ in place of the home folder.
            words.append(str(Path(word).expanduser()) if word.startswith("~") else word)
    if named:
        return [*words, "--resume", str(folder)]
    return [*words, "--out", str(folder), *(["--resume"] if kind[0] != "ablate" else [])]
