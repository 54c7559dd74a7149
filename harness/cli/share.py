"""``mmrepro share``: one page to hand on, with its evidence inside."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmrepro.base import common_options as common, units
from mmrepro.base.options import OUTPUT, Command, option
from mmrepro.cli.console import say
from mmrepro.cli.options import command
from mmrepro.cli.report import secrets_in, typed_name


@dataclass(frozen=True)
class _ShareCommand(Command):
    COMMAND: ClassVar[str] = "share"
    incident: Path = common.PLACE(
        Path(), help="Incident or replay: its folder, number, id, or last; or a bundle."
    )
    out: Path | None = common.OUT(
        None, help="The file to write.", metavar="FILE", shown="NAME-OF-DIR.html"
    )
    max_mib: float = option(
        5.0, "Largest size of the evidence.", "MIB", OUTPUT, least=0.1, most=100
    )
    secrets_file: Path | None = common.SECRETS_FILE(None)
    force: bool = common.FORCE(False)


@command(_ShareCommand)
def share(asked: _ShareCommand) -> None:
    """Write one page to hand on: the redacted report with its redacted evidence inside.

    It needs no other file and asks no network. Look at it before you share it: a
    pattern knows keys, tokens, prompts, images, addresses and user names, not every
    secret there is.

    Example:  mmrepro share last
    """
    from mmrepro.base.machine import is_file, is_folder
    from mmrepro.base.text import plain
    from mmrepro.failure.documents import is_bundle
    from mmrepro.reports import INCIDENT_REPORT, REPLAY_REPORT, write_shared

    given = asked.incident
    folder = given if is_folder(given) else given.parent
    name = given.stem if is_bundle(given) else Path(os.path.realpath(folder)).name
    target = asked.out or Path(f"{typed_name(name)}.html")
    is_replay = given.name == "replay.json" or is_file(given / "replay.json")
    page = write_shared(
        folder,
        (REPLAY_REPORT if is_replay else INCIDENT_REPORT).load(given),
        target,
        max_bytes=int(asked.max_mib * 2**20),
        secrets=secrets_in(asked.secrets_file) if asked.secrets_file else (),
        force=asked.force,
        packed=given if is_bundle(given) else None,
    )
    shown = shlex.quote(plain(str(target)))
    files = units.count(len(page.manifest.files), "file")
    say(f"{shown}  {units.size(page.bytes, 2)}, with {files} of evidence inside")
    say(f"Redacted: {units.count(page.redactions, 'place')}.")
    say(f"Look at it before you share it: xdg-open {shown}")
