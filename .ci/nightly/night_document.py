"""What `mmrepro matrix report --format json` prints, read; and what every sub-command
needs.

Standard library only: the image of a machine has mmrepro as a command and no module.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

Json = dict[str, Any]
LATE = 1.5
"""So many times the interval after the last start the next run counts as missing."""
NEEDED = {"nights", "concerns", "cells", "events", "notes", "warning"}
AHEAD_H = 1.0
"""By so much the clocks of two machines may differ."""


class Failed(Exception):
    """``code``: what to exit with."""

    def __init__(self, message: str, code: int = 4) -> None:
        super().__init__(message)
        self.code = code


def document_of(asked: argparse.Namespace, empty: bool = False) -> Json:
    """Raises Failed. ``empty``: a ledger that nobody wrote to yet has a document
    too."""
    path, more = Path(asked.night_of), []
    for option in ("night", "quarantine"):
        if value := getattr(asked, option, None):
            more += [f"--{option}", value]
    if path.suffix == ".json":
        if more:
            raise Failed(f"{more[0]} is for a ledger, and {path} is a document.", 2)
        try:
            return parsed(path.read_text("utf-8"), str(path))
        except OSError as error:
            raise Failed(
                f"{path} cannot be read: {error.strerror or error}.", 2
            ) from error
    ledger = path if path.suffix == ".jsonl" else path / "ledger.jsonl"
    if empty and ledger.is_file() and not begun(ledger):
        return {name: [] for name in NEEDED}
    code, text, why = mmrepro("matrix", "report", str(path), "--format", "json", *more)
    if code:
        raise Failed(why, code)
    return parsed(text, "the document of the installed mmrepro")


def begun(ledger: Path) -> bool:
    """Whether the ledger has a whole line: a killed writer leaves at most a part of
    one."""
    with ledger.open("rb") as file:
        return file.readline().endswith(b"\n")


def parsed(text: str, source: str) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if lacking := NEEDED.difference(found if isinstance(found, dict) else ()):
        printed = "what this checkout's mmrepro matrix report --format json prints"
        raise Failed(
            f"{source} lacks {', '.join(sorted(lacking))}: it is not {printed}.", 2
        )
    return dict(found)


def mmrepro(*words: str) -> tuple[int, str, str]:
    """Exit code, output and error of a command, which gets no token."""
    command = [*shlex.split(os.environ.get("MMREPRO", "mmrepro")), *words]
    clean = {
        k: v for k, v in os.environ.items() if k not in ("GH_TOKEN", "GITHUB_TOKEN")
    }
    done = subprocess.run(
        command, env=clean, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, one_line(done.stderr, 500)


def time_of(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def one_line(text: str, limit: int) -> str:
    """On one line, without control characters; the cut marked."""
    printable = "".join(c if c.isprintable() else " " for c in text[: limit * 8])
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def show(document: Json) -> None:
    print(json.dumps(document, indent=1, ensure_ascii=False))


# ---------------------------------------------------------------- Markdown

_APART = "&#8203;"
"""A space of no width."""
_SIGNS = {ord(c): f"&#{ord(c)};" for c in "&<>`*_[]~$|@\\"}
_LINKED = re.compile(
    r"(&#64;|(?<!&)#(?=\w)|:(?=//)|\bgh(?=-\d)|\bwww(?=\.))", re.IGNORECASE
)


def quiet(text: str, limit: int = 600) -> str:
    """Foreign text on one line, in which nothing is Markdown, HTML, a mention or a
    link.

    GitHub looks for ``@`` and ``#`` after it has read the Markdown: they are parted
    from what follows them as well as escaped."""
    return _LINKED.sub(rf"\1{_APART}", one_line(text, limit).translate(_SIGNS))


def paragraph(text: str, limit: int = 1200) -> str:
    """``quiet`` text at the start of a line, where ``1.`` or ``#`` would begin a
    block."""
    line = quiet(text, limit)
    return line if line[:1].isalpha() else _APART + line


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are escaped already."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def fence(command: str) -> str:
    """A block that its content cannot close."""
    line = one_line(command, 2000)
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", line)), default=0))
    return f"{ticks}sh\n{line}\n{ticks}"


# ---------------------------------------------------------------- a run that is missing


@dataclass(frozen=True)
class Watch:
    """The last nightly run that ran anything; ``text``: why the next one is overdue, or
    ""."""

    last: Json | None
    every_h: float | None
    text: str

    @property
    def night(self) -> str:
        return self.last["id"] if self.last else ""

    def after(self, times: float) -> datetime | None:
        if self.last is None or not self.every_h:
            return None
        return began(self.last) + timedelta(hours=times * self.every_h)


def began(night: Json) -> datetime:
    return datetime.fromisoformat(night["began"])


def watch(
    document: Json, now: datetime, every_h: float | None = None, absent: bool = False
) -> Watch:
    """A dead man's switch. A clock that is ahead would hide what is missing: it counts
    as overdue.

    Args:
        absent: a run was begun, and no machine delivered anything: it is missing at any
            hour.
    """
    if not document["nights"]:
        return Watch(None, every_h, "No night of this ledger ran anything.")
    last = document["nights"][-1]
    name, every = last["id"], every_h or last["every_h"]
    hours, text = (now - began(last)) / timedelta(hours=1), ""
    if hours < -AHEAD_H:
        text = (
            f"{name} began at {time_of(began(last))}, which is still to come: a clock "
            "is wrong."
        )
    elif every and hours > LATE * every:
        text = (
            f"{hours:.0f} h after {name} began no other night had, and one is due "
            "every "
        )
        text += f"{every:g} h."
    elif every and hours > every and last["state"] == "running":
        text = (
            f"{name} began {hours:.0f} h ago and has not ended; one is due "
            f"every {every:g} h."
        )
    elif absent:
        text = f"A night was to follow {name}, and no machine delivered anything."
    return Watch(last, every, text)
