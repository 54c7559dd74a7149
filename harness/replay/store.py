"""Plays on disk as they begin and end: whoever goes on with a replay repeats none that ended."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, NamedTuple, TypeAlias

from mmrepro.errors import BadIncident, UsageError
from mmrepro.history.lines import LineFile
from mmrepro.incident.replay import VERDICTS_FILE
from mmrepro.records import Record
from mmrepro.replay.seen import Seen
from mmrepro.run.deadline import Deadlines
from mmrepro.text.redact import Redactor
from pydantic import Field, TypeAdapter, ValidationError

STORE_VERSION = 1
LOCK_FILE = ".replay.lock"

How: TypeAlias = Literal["calibration", "whole", "confirm", "look", "shrink", "silent"]
"""What a play is for, as far as it changes how it is played."""


class Key(NamedTuple):
    """One play: its case (and into how many blocks it was cut), how it was played, and which of
    several alike it is."""

    digest: str
    how: How
    nth: int


class Head(Record):
    """The first line: whose plays follow."""

    kind: Literal["head"] = "head"
    version: int = STORE_VERSION
    mmrepro_version: str
    id: Annotated[str, Field(description="of the replay")]
    case: Annotated[str, Field(description="digest of the case, before anything was left out")]
    decides: Annotated[
        dict[str, str], Field(description="options on which the way of the replay depends")
    ] = {}


class Began(Record):
    kind: Literal["began"] = "began"
    number: int
    digest: str
    how: How
    index: int
    what: str
    requests: int


class Ended(Record):
    kind: Literal["ended"] = "ended"
    number: int
    digest: str
    how: How
    index: int
    seen: Seen
    answer_s: Annotated[float | None, Field(description="of a calibration: the deadline")] = None
    suspect_s: float | None = None
    rule: str = ""

    @property
    def key(self) -> Key:
        return Key(self.digest, self.how, self.index)

    @property
    def deadlines(self) -> Deadlines | None:
        if self.answer_s is None or self.suspect_s is None:
            return None
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


AnyLine: TypeAlias = Annotated[Head | Began | Ended, Field(discriminator="kind")]
_LINE: TypeAdapter[Head | Began | Ended] = TypeAdapter(AnyLine)


class Store:
    """The plays of one replay, in its folder; also a context manager.

    Attributes:
        ended: by key, those of an earlier call included.

    Raises:
        UsageError: the folder's plays are of another case, of other options or of another mmrepro,
            or another process goes on with it.
    """

    def __init__(self, folder: Path, head: Head) -> None:
        self.path = folder / VERDICTS_FILE
        self.ended: dict[Key, Ended] = {}
        busy = UsageError(
            f"Another mmrepro goes on with the replay in {folder}.", hint="wait until it has ended"
        )
        self._lines = LineFile(self.path, LOCK_FILE, "replay", busy)
        try:
            self.head = self._read(head, folder)
        except BaseException:
            self.close()
            raise

    def began(self, number: int, key: Key, what: str, requests: int) -> None:
        self._append(
            Began(
                number=number,
                digest=key.digest,
                how=key.how,
                index=key.nth,
                what=what,
                requests=requests,
            )
        )

    def end(self, number: int, key: Key, seen: Seen, deadlines: Deadlines | None = None) -> Ended:
        """Keep it, as public as it is written. Raises UsageError: it ended before."""
        if key in self.ended:
            raise UsageError(f"Play {key.nth} of {key.digest[:12]} ended twice.")
        line = Ended(
            number=number,
            digest=key.digest,
            how=key.how,
            index=key.nth,
            seen=seen,
            answer_s=deadlines.answer_s if deadlines else None,
            suspect_s=deadlines.suspect_s if deadlines else None,
            rule=deadlines.rule if deadlines else "",
        )
        kept = self._append(line)
        assert isinstance(kept, Ended)
        self.ended[key] = kept
        return kept

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, line: Head | Began | Ended) -> Head | Began | Ended:
        """What goes on with it later sees what this call sees: the line as it was written."""
        text = Redactor().redact_model(line).model_dump_json().encode("utf-8", "replace")
        kept = _LINE.validate_json(text)
        self._lines.append(text + b"\n")
        return kept

    def _read(self, head: Head, folder: Path) -> Head:
        lines = self._lines.content.splitlines()
        if not lines:
            kept = self._append(head)
            assert isinstance(kept, Head)
            return kept
        first = read_head(lines[0], folder)
        _same(first, head, folder)
        for number, line in enumerate(lines[1:], start=2):
            try:
                read = _LINE.validate_json(line)
            except ValidationError as error:
                raise BadIncident(
                    f"{self.path}, line {number} is not what mmrepro wrote.",
                    hint="begin a new replay, with another --out",
                ) from error
            if isinstance(read, Ended):
                self.ended[read.key] = read
        return first


def read_head(line: bytes, folder: Path) -> Head:
    """Raises UsageError: it is none, or of another version."""
    try:
        head = _LINE.validate_json(line)
    except ValidationError:
        head = None
    if not isinstance(head, Head) or head.version != STORE_VERSION:
        raise UsageError(
            f"{folder} holds no replay that this mmrepro can go on with.",
            hint="begin a new one, with another --out",
        )
    return head


def _same(kept: Head, asked: Head, folder: Path) -> None:
    """Raises UsageError: what was kept is of something else."""
    if kept.mmrepro_version != asked.mmrepro_version:
        other = f"was made by mmrepro {kept.mmrepro_version}, this is {asked.mmrepro_version}"
    elif kept.case != asked.case:
        other = "is of another case"
    else:
        names = {**kept.decides, **asked.decides}
        changed = [n for n in names if kept.decides.get(n) != asked.decides.get(n)]
        if not changed:
            return
        was = kept.decides.get(changed[0]) or "nothing"
        other = f"was begun with another {changed[0]}: {was}"
    raise UsageError(
        f"The replay in {folder} {other}.",
        hint="go on with the command that replay.json names, or begin a new one with another --out",
    )


def holds_replay(folder: Path) -> bool:
    return (folder / VERDICTS_FILE).is_file()
