"""Plays on disk as they begin and end: whoever goes on with a replay repeats none that ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from mmrepro.errors import UsageError
from mmrepro.incident.replay import REPLAY_FILE, VERDICTS_FILE
from mmrepro.records import Record
from mmrepro.replay import kept
from mmrepro.replay.seen import Seen
from mmrepro.run.deadline import Deadlines
from pydantic import Field, TypeAdapter

How: TypeAlias = Literal["calibration", "whole", "confirm", "look", "shrink", "silent"]
"""What a play is for, as far as it changes how it is played."""


class Key(NamedTuple):
    """One play: its case (and into how many blocks it was cut), how it was played, and which of
    several alike it is."""

    digest: str
    how: How
    nth: int


class Head(kept.Head):
    """The first line: whose plays follow."""

    case: Annotated[str, Field(description="digest of the case, before anything was left out")]

    def other_than(self, asked: Self) -> str:
        same_maker = self.mmrepro_version == asked.mmrepro_version
        if same_maker and self.case != asked.case:
            return "is of another case"
        return super().other_than(asked)


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


class Store(kept.Kept):
    """The plays of one replay, in its folder.

    Attributes:
        ended: by key, those of an earlier call included.
    """

    names = kept.Names("replay", VERDICTS_FILE, ".replay.lock", REPLAY_FILE)
    adapter = TypeAdapter(AnyLine)

    def __init__(self, folder: Path, head: Head) -> None:
        self.ended: dict[Key, Ended] = {}
        super().__init__(folder, head)

    def took(self, line: Record) -> None:
        if isinstance(line, Ended):
            self.ended[line.key] = line

    def began(self, number: int, key: Key, what: str, requests: int) -> None:
        self.append(
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
        """Keep it. Raises UsageError: it ended before."""
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
        self.ended[key] = self.append(line)
        return self.ended[key]


def holds_replay(folder: Path) -> bool:
    return Store.in_folder(folder)
