"""Runs a step's child within its time, whatever becomes of it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mmrepro.accept.steps import Child, Ended
from mmrepro.campaign.child import end, spawn, spawn_program
from mmrepro.machine.cache import Device
from mmrepro.machine.child_env import child_environment
from mmrepro.machine.files import open_plain

GRACE_S = 30.0
"""Between SIGTERM, on which a run ends its engine, and SIGKILL, after which its supervisor does."""
LAST_WORDS = 600
MAX_DOCUMENT = 16 << 20


@dataclass(frozen=True)
class Place:
    """Files of one step: its incident's folder, and what it printed beside that."""

    folder: Path
    name: str

    @property
    def incident(self) -> Path:
        return self.folder / self.name

    @property
    def record(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def printed(self) -> Path:
        return self.folder / f"{self.name}.out"

    @property
    def report(self) -> Path:
        """Of tests."""
        return self.folder / f"{self.name}.xml"

    @property
    def errors(self) -> Path:
        return self.folder / f"{self.name}.err"


def run(
    child: Child,
    device: Device,
    place: Place,
    *,
    python: Path | None,
    limit_s: float,
    before: Mapping[str, dict[str, Any]],
    variables: Mapping[str, str],
) -> Ended:
    """Run it; one that outruns ``limit_s`` seconds is ended, with its engine.

    Args:
        python: the interpreter of a script.
        variables: for a script, those that make it see the GPU that is taken.

    Raises:
        KeyboardInterrupt: the child has been ended.
    """
    began = time.monotonic()
    with _emptied(place.printed) as printed, _emptied(place.errors) as errors:
        process = _started(child, device, place, python, variables, printed, errors)
        code: int | None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                end([process], GRACE_S)
    return Ended(
        device=device,
        exit_code=code,
        seconds=round(time.monotonic() - began, 2),
        limit_s=limit_s,
        incident=place.incident,
        report=place.report,
        words=_last_words(place.errors),
        document=document(place.printed),
        before=dict(before),
    )


def _emptied(path: Path) -> IO[bytes]:
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_TRUNC), "wb")


def _started(
    child: Child,
    device: Device,
    place: Place,
    python: Path | None,
    variables: Mapping[str, str],
    printed: IO[bytes],
    errors: IO[bytes],
) -> subprocess.Popen[bytes]:
    arguments = child.arguments(device)
    if child.script or child.tests:
        command = [str(python), str(child.file), *arguments[1:]]
        if child.tests:
            command[1:1] = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += ["--junitxml", str(place.report)]
        return spawn_program(command, child_environment(variables), stdout=printed, stderr=errors)
    if child.incident:
        arguments += ["--out", str(place.incident)]
        # What it prints is the incident that it writes.
        return spawn(arguments, {**os.environ, "NO_COLOR": "1"}, stderr=errors)
    return spawn(arguments, {**os.environ, "NO_COLOR": "1"}, stdout=printed, stderr=errors)


def _last_words(file: Path) -> str:
    """The end of what it wrote to stderr, in one line."""
    text = file.read_bytes()[-LAST_WORDS * 4 :].decode("utf-8", "replace")
    return " ".join(text.split())[-LAST_WORDS:]


def document(file: Path) -> dict[str, Any]:
    """The JSON object that a child printed; {}: it printed none."""
    try:
        if file.stat().st_size > MAX_DOCUMENT:
            return {}
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
