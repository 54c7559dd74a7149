"""Episodes on disk as they begin and end: whoever goes on with a session repeats none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

from mmrepro.errors import UsageError
from mmrepro.fuzz.limits import Limits
from mmrepro.incident.fuzz import EPISODES_FILE, FUZZ_FILE, Episode
from mmrepro.records import Record
from mmrepro.replay.kept import Head, Kept, Names
from mmrepro.replay.seen import Seen
from mmrepro.run.deadline import Deadlines
from pydantic import Field, TypeAdapter


class Began(Record):
    kind: Literal["began"] = "began"
    episode: Episode


class Ended(Record):
    """An episode, judged.

    Attributes:
        elapsed_s: of the session when it had ended.
        features: those that no episode before it showed.
        limits: as they are known from here on.
        silent: by itself it showed nothing: it was wrong beside a reference.
    """

    kind: Literal["ended"] = "ended"
    episode: Episode
    elapsed_s: float
    seen: Seen
    features: list[str] = []
    limits: Limits
    silent: bool = False
    blocks: int = 0
    answer_s: float
    suspect_s: float
    rule: str = ""

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


class Led(Record):
    """What the pursuit of an episode begins with.

    Attributes:
        straight: its requests one after another, in the order in which they were sent, show it as
            well: then it does not hang on chance.
        seen: the play of what is pursued.
    """

    kind: Literal["led"] = "led"
    number: int
    straight: bool
    seen: Seen
    starts: int = 0


class Pursued(Record):
    """What an episode showed has been pursued, in the folder ``replay``."""

    kind: Literal["pursued"] = "pursued"
    number: int
    replay: str
    elapsed_s: float
    seconds: float


class Finished(Record):
    """A finding that was not shrunk to its end was taken up again, in the folder ``replay``.

    Attributes:
        of: the finding's folder.
    """

    kind: Literal["finished"] = "finished"
    of: str
    replay: str
    elapsed_s: float
    seconds: float


KeptLine: TypeAlias = Ended | Led | Pursued | Finished
OnceT = TypeVar("OnceT", Ended, Led, Pursued, Finished)
AnyLine: TypeAlias = Annotated[Head | Began | KeptLine, Field(discriminator="kind")]


class Store(Kept):
    """The episodes of one session, in its folder.

    Attributes:
        kept: what ended, and what was or is pursued, in earlier calls, in order.
    """

    names = Names("session", EPISODES_FILE, ".fuzz.lock", FUZZ_FILE)
    adapter = TypeAdapter(AnyLine)

    def __init__(self, folder: Path, head: Head) -> None:
        self.kept: list[KeptLine] = []
        self._known: set[tuple[str, str]] = set()
        super().__init__(folder, head)

    def took(self, line: Record) -> None:
        if isinstance(line, KeptLine):
            self._once(line)
            self.kept.append(line)

    def began(self, episode: Episode) -> None:
        self.append(Began(episode=episode))

    def once(self, line: OnceT) -> OnceT:
        """Keep it. Raises UsageError: its episode, or finding, has such a line."""
        self._once(line)
        return self.append(line)

    def _once(self, line: KeptLine) -> None:
        match line:
            case Ended():
                what = f"episode {line.episode.number}"
            case Finished():
                what = line.of
            case _:
                what = f"episode {line.number}"
        if (line.kind, what) in self._known:
            raise UsageError(f"{what} {line.kind} twice.")
        self._known.add((line.kind, what))


def holds_session(folder: Path) -> bool:
    return Store.in_folder(folder)
