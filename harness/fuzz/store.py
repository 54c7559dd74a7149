"""Lines of a session's journal: whoever goes on with it repeats no episode."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypeVar

from mmrepro.fuzz.limits import Limits
from mmrepro.incident.replay import EPISODES_FILE, FUZZ_FILE, Episode
from mmrepro.machine.journal import Head, JournalKind, Line
from mmrepro.replay.seen import Seen
from mmrepro.run.judge import Deadlines
from pydantic import Field, TypeAdapter


class Began(Line):
    kind: Literal["began"] = "began"
    episode: Episode


class Ended(Line):
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
    def once(self) -> str:
        return f"Episode {self.episode.number} ended"

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.answer_s, self.suspect_s, self.rule)


class Led(Line):
    """What the pursuit of an episode begins with.

    Attributes:
        straight: its requests one after another, in the order in which they were sent, show it as
            well: then it does not hang on chance.
        seen: the attempt at what is pursued.
    """

    kind: Literal["led"] = "led"
    number: int
    straight: bool
    seen: Seen
    starts: int = 0

    @property
    def once(self) -> str:
        return f"Episode {self.number} led"


class Pursued(Line):
    """What an episode showed has been pursued, in the folder ``replay``."""

    kind: Literal["pursued"] = "pursued"
    number: int
    replay: str
    elapsed_s: float
    seconds: float

    @property
    def once(self) -> str:
        return f"Episode {self.number} was pursued"


class Finished(Line):
    """A finding that was not shrunk to its end was taken up again, in the folder ``replay``.

    Attributes:
        of: the finding's folder.
    """

    kind: Literal["finished"] = "finished"
    of: str
    replay: str
    elapsed_s: float
    seconds: float

    @property
    def once(self) -> str:
        return f"{self.of} was finished"


KeptLine: TypeAlias = Ended | Led | Pursued | Finished
LineT = TypeVar("LineT", Ended, Led, Pursued, Finished)
AnyLine: TypeAlias = Annotated[Head | Began | KeptLine, Field(discriminator="kind")]
EPISODES = JournalKind("session", EPISODES_FILE, ".fuzz.lock", FUZZ_FILE, TypeAdapter(AnyLine))
