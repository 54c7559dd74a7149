"""What start modes an environment was seen to bear, kept beside it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from mmrepro.machine.files import write_file
from mmrepro.records import Record
from pydantic import Field, ValidationError

FILE = "starts.json"


class ModeSeen(Record):
    """How a start of one mode went. ``seconds``: start to ready."""

    works: bool
    certain: Annotated[
        bool, Field(description="else it failed once where a cold start worked: perhaps by chance")
    ] = True
    why: str = ""
    seconds: float | None = None
    imports_s: float | None = None
    memory_bytes: int | None = None


class StartsSeen(Record):
    """By mode, or by mode and stand-ins: ``warm``, ``warm with lmdeploy_cpu``."""

    modes: dict[str, ModeSeen] = {}


def starts_seen(folder: Path) -> StartsSeen:
    """Of the environment whose state folder that is; empty where nothing was seen or kept."""
    try:
        return StartsSeen.model_validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return StartsSeen()


def note_start(folder: Path, mode: str, seen: ModeSeen) -> None:
    """Keep it; a folder that cannot be written costs only the memory of it."""
    known = starts_seen(folder)
    known.modes[mode] = seen
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / FILE, known.model_dump_json(indent=1) + "\n")
