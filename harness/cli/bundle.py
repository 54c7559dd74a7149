"""``mmrepro bundle``: one redacted file to attach to an upstream issue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from mmrepro.base import common_options as common, units
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.reports.bundle_file import BundleManifest

MAX_SECRETS = 1000
MAX_SECRETS_BYTES = 1 << 20


@dataclass(frozen=True)
class BundleCommand(Command):
    COMMAND: ClassVar[str] = "bundle"
    incident: Path = option(
        Path(), "Folder of an incident or a replay.", "DIR", argument=True, required=True
    )
    out: Path | None = common.OUT(
        None, help="The file to write.", metavar="FILE", shown="NAME-OF-DIR.zip"
    )
    max_mib: float = option(10.0, "Largest size of the file.", "MIB", OUTPUT, least=0.1, most=1024)
    secrets_file: Path | None = option(
        None, "Texts to replace wherever they occur, one a line.", "FILE", OUTPUT
    )
    force: bool = common.FORCE(False)
    json: bool = common.JSON(False)


@command(BundleCommand)
def bundle(asked: BundleCommand) -> None:
    """Pack an incident or a replay into one file: redacted, listed, checksummed, small.

    Of a replay random texts and images of the same lengths go out, not those that were played.
    Read it back with mmrepro report FILE.zip. Look at it before you publish it: a pattern knows
    keys, tokens, prompts, images, addresses and user names, not every secret there is.

    Example:  mmrepro bundle incidents/ghost-key-eviction-0.23.0-20261121-030000
    """
    import os

    from mmrepro.incident.replay import REPLAY_FILE
    from mmrepro.machine.files import is_file, is_folder
    from mmrepro.reports import incident as runs, replay as replays
    from mmrepro.reports.bundle import write_bundle
    from mmrepro.reports.replay_bundle import write_replay_bundle

    incident, force, secrets_file = asked.incident, asked.force, asked.secrets_file
    folder = incident if is_folder(incident) else incident.parent
    target = asked.out or Path(f"{Path(os.path.realpath(folder)).name}.zip")
    limit, secrets = int(asked.max_mib * 2**20), _lines(secrets_file) if secrets_file else ()
    if incident.name == REPLAY_FILE or is_file(incident / REPLAY_FILE):
        manifest = write_replay_bundle(
            folder, replays.load(incident), target, max_bytes=limit, secrets=secrets, force=force
        )
    else:
        manifest = write_bundle(
            folder, runs.load(incident), target, max_bytes=limit, secrets=secrets, force=force
        )
    if asked.json:
        import json as jsonlib

        document = {"bundle": str(target), "bytes": target.stat().st_size}
        typer.echo(jsonlib.dumps(document | manifest.model_dump(), indent=1))
        return
    _tell(target, manifest)


def _lines(path: Path) -> list[str]:
    """Raises UsageError: it cannot be read, or has more than can be looked for everywhere."""
    from mmrepro.errors import UsageError
    from mmrepro.machine.files import read_file

    try:
        text = read_file(path, MAX_SECRETS_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {why}.") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_SECRETS:
        raise UsageError(
            f"{path} has {len(lines):,} texts: at most {MAX_SECRETS:,} are looked for.",
            hint="leave out what has the form of a key or a token: it is found anyway",
        )
    return lines


def _tell(target: Path, manifest: BundleManifest) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("file", "bytes", "redacted", "sha256", "note", box=None)
    dumps = [entry for entry in manifest.files if "-stacks-" in entry.name]
    for entry in manifest.files:
        if entry in dumps[1:]:
            continue
        table.add_row(
            escape(entry.name),
            str(entry.bytes),
            str(entry.redactions or ""),
            entry.sha256[:12],
            escape(entry.note),
        )
    if len(dumps) > 1:
        size = sum(entry.bytes for entry in dumps[1:])
        table.add_row(f"… and {len(dumps) - 1} more stack dumps", str(size))
    for gone in manifest.left_out:
        table.add_row(f"[dim]{escape(gone.name)}", str(gone.bytes), "", "", escape(gone.why))
    console.print(table)
    console.print(f"\n{escape(str(target))}  {units.size(target.stat().st_size, 2)}")
    console.print(f"to read it:  mmrepro report {escape(str(target))}")
    console.print("Look at it before you publish it.")
