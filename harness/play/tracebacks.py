"""Tracebacks in an engine's log, and the one that tells what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrepro.engines import Engine
from mmrepro.engines.base import without_prefix
from mmrepro.evidence import RequestRecord
from mmrepro.text import sanitize

MAX_BYTES = 16 << 20
MAX_TRACEBACKS, MAX_FRAMES = 200, 60
ERROR_CHARS, MESSAGE_CHARS = 300, 60
OF_LEAVING = ("CancelledError", "ClientDisconnect", "KeyboardInterrupt", "BrokenPipeError")
"""What a server logs of a client that went away: no failure."""
OF_DEATH = ("EngineDeadError",)
"""What the rest of an engine says when its core has died: an echo, whatever the cause was."""
WEB_SERVERS = ("/uvicorn/", "/starlette/", "/fastapi/")

_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "([^"]{1,500})", line \d+, in (\S{1,200})')
_PROCESS = re.compile(r"^\([^)]{1,60}\)")
_GROUP = re.compile(r"^ *\| ?")
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")


@dataclass
class Traceback:
    """One of a log: the line that names the exception, and where it was raised."""

    error: str = ""
    frames: list[str] = field(default_factory=list)
    """Names of functions, innermost first."""
    files: list[str] = field(default_factory=list)
    process: str = ""
    """What its lines begin with: "(EngineCore pid=7)"; "": nothing."""
    fatal: bool = False
    """Its process said just before that this ends the engine."""

    @property
    def message(self) -> str:
        """What the exception says, its beginning."""
        found = _ERROR.match(self.error)
        return (found["message"] or "")[:MESSAGE_CHARS].strip() if found else ""

    def named_in(self, answers: Sequence[str]) -> bool:
        """Whether one of them carries what it says."""
        plain = (answer.replace('\\"', '"') for answer in answers)  # it is inside JSON
        return bool(self.message) and any(self.message in answer for answer in plain)

    def frames_of(self, engine: Engine) -> list[str]:
        """Its functions in the engine's own code, innermost first; of others, if it has none."""
        both = zip(self.frames, self.files, strict=True)
        own = [name for name, file in both if f"/{engine.name}/" in file]
        return own or self.frames

    @property
    def _type(self) -> str:
        return self.error.partition(":")[0].rpartition(".")[2]

    @property
    def of_leaving(self) -> bool:
        return self._type in OF_LEAVING

    @property
    def of_death(self) -> bool:
        return self._type in OF_DEATH

    @property
    def in_request(self) -> bool:
        """Raised while the web server handled one request, and not by the engine on its own."""
        return any(web in file for file in self.files for web in WEB_SERVERS)


def read_tracebacks(log: Path, start: int = 0, fatal: str = "") -> list[Traceback]:
    """Those of a log from byte ``start`` on, in order; [] where it cannot be read. ``fatal``: as
    for :func:`tracebacks`."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return tracebacks(text.splitlines(), fatal)


def tracebacks(lines: Iterable[str], fatal: str = "") -> list[Traceback]:
    """Of lines in which several processes may write in turn. ``fatal``: pattern of what an engine
    says before the traceback of what ends it; "": it says nothing."""
    found: list[Traceback] = []
    open_ones: dict[str, Traceback] = {}
    announced: set[str] = set()
    says = re.compile(fatal or r"(?!)")
    for line in lines:
        process = _PROCESS.match(sanitize.plain(line))
        key = process[0] if process else ""
        plain = _GROUP.sub("", without_prefix(line))
        if says.search(plain):
            announced.add(key)
        if plain.rstrip().endswith(_BEGIN):
            open_ones[key] = Traceback(process=key, fatal=key in announced)
            announced.discard(key)
        elif (one := open_ones.get(key)) is None or not plain.strip():
            continue
        elif frame := _FRAME.match(plain):
            one.frames.insert(0, frame[2])
            one.files.insert(0, frame[1])
            del one.frames[MAX_FRAMES:], one.files[MAX_FRAMES:]
        elif not plain.startswith(" "):
            del open_ones[key]
            one.error = plain.strip()[:ERROR_CHARS]
            found.append(one)
            if len(found) == MAX_TRACEBACKS:
                break
    return found


def failed(record: RequestRecord) -> bool:
    """Whether it got no proper answer: 500 or above, a broken connection, a stream without an
    end."""
    if record.left:
        return False
    return record.status is None or record.status >= 500 or record.cut_short


def telling(
    found: Sequence[Traceback], requests: Sequence[RequestRecord], core: str = ""
) -> list[Traceback]:
    """Those that are more than a refused request or a client that went away; first what ended the
    engine by its own word, then those whose message an answer of 500 or above carries, then those
    of the process ``core``, then those that no request of its own raised, last the echoes of a
    death."""
    refused = [r.error for r in requests if r.status is not None and 400 <= r.status < 500]
    failed = [r.error for r in requests if r.status is None or r.status >= 500]
    left = [one for one in found if not one.of_leaving and not one.named_in(refused)]

    def rank(one: Traceback) -> tuple[bool, ...]:
        named = one.named_in(failed)
        return one.of_death, not one.fatal, not named, core not in one.process, one.in_request

    return sorted(left, key=rank)


def of_engine(found: Sequence[Traceback], engine: Engine) -> Traceback | None:
    """The first one that was in the engine's own code; else the first."""
    own = [one for one in found if any(f"/{engine.name}/" in file for file in one.files)]
    return next(iter([*own, *found]), None)
