"""What a list of incidents shows of one: the beginning of its file, without the evidence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.incident.model import INCIDENT_FILE
from mmrepro.machine.files import open_to_read
from mmrepro.records import Fidelity, Moment, parsed
from mmrepro.signature import Outcome
from pydantic import BaseModel

CHUNK = 1 << 16
MAX_BYTES = 128 << 20
_EVIDENCE = b'\n "evidence": {'
"""The last field of what ``write_incident`` writes, and nearly all of it. No text in the file holds
a line break, so it can be nothing else."""


class _Named(BaseModel):
    name: str
    variant: str = ""
    release: str = ""


class _Verdict(BaseModel):
    outcome: Outcome
    expected: Outcome | None = None
    as_expected: bool = False


class Head(BaseModel):
    """Of an incident of any version that has these fields; others are not looked at."""

    id: str
    created: Moment
    finished: Moment | None = None
    state: str
    failure: str = ""
    failure_class: str = ""
    command: str = ""
    scenario: _Named
    engine: _Named
    fidelity: Fidelity
    verdict: _Verdict | None = None
    diagnosis: dict[str, Any] | None = None

    @property
    def seconds(self) -> float | None:
        """From its beginning to its end; None: it has none."""
        return None if self.finished is None else self.finished.mono - self.created.mono

    @property
    def as_expected(self) -> bool | None:
        """None: nothing was expected, or there is no verdict."""
        if self.verdict is None or self.verdict.expected is None:
            return None
        return self.verdict.as_expected

    @property
    def outcome(self) -> str:
        """The verdict's; of a run without one, how it ended: failed, interrupted, diagnosis."""
        if self.verdict is not None and self.state == "complete":
            return self.verdict.outcome.value
        return "diagnosis" if self.diagnosis is not None else self.state


@dataclass(frozen=True)
class Found:
    """A folder with an incident; ``head`` is None where it cannot be read, and ``why`` tells."""

    folder: Path
    head: Head | None
    why: str = ""


def read_head(folder: Path) -> Found:
    """The head of the incident in ``folder``; reads no more of the file than that takes."""
    try:
        return Found(folder, parsed(Head, _beginning(folder / INCIDENT_FILE)))
    except (OSError, ValueError) as error:
        return Found(folder, None, str(getattr(error, "strerror", None) or error))


def incident_folders(roots: Iterable[Path]) -> Iterator[Path]:
    """Folders below ``roots`` (they included) that hold an incident, each once; what lies within
    such a one is its evidence, and links are not followed."""
    seen: set[Path] = set()
    for root in roots:
        for place, folders, files in os.walk(root):
            if INCIDENT_FILE in files:
                folders.clear()
                found = Path(place)
                if (whole := found.resolve()) not in seen:
                    seen.add(whole)
                    yield found
            else:
                folders[:] = sorted(name for name in folders if not name.startswith("."))


def _beginning(path: Path) -> bytes:
    """The file up to its evidence, as a JSON document of its own; all of one laid out otherwise."""
    text = bytearray()
    with open_to_read(path) as file:
        while chunk := file.read(CHUNK):
            start = max(0, len(text) - len(_EVIDENCE))
            text += chunk
            end = text.find(_EVIDENCE, start)
            if end >= 0:
                return bytes(text[:end].rstrip().removesuffix(b",") + b"}")
            if len(text) > MAX_BYTES:
                raise ValueError("it is larger than any that mmrepro writes")
    return bytes(text)
