"""What a session of two sides writes down as it goes on: its journal."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from mmrepro.base.machine import JournalHead, JournalKind, JournalLine
from mmrepro.failure.documents import UpgradeSide
from mmrepro.failure.documents.replay import FUZZ_FILE
from mmrepro.search.fuzz.differences import SeenDifference
from pydantic import Field, TypeAdapter


class PairEnded(JournalLine):
    """What a fresh pair of servers showed.

    Attributes:
        purpose: episode 3; round 1; confirmation 2.
        case: digest of what was asked; "": of a session of earlier days.
        seen: by the identifiers of the requests of its case.
        asked: requests that both sides answered or refused.
        reached: lines of what the sides have otherwise, by the request that ran them
            first in the session.
    """

    # With more time a session confirms another case.
    once_as = "The pair for {0.purpose} of {0.case} ended"
    kind: Literal["pair"] = "pair"
    purpose: str
    case: str = ""
    seen: list[SeenDifference] = []
    asked: list[str] = []
    reached: dict[UpgradeSide, dict[str, list[str]]] = {}
    limits: list[str] = []
    seconds: float = 0.0
    elapsed_s: float = 0.0


class MeasuredDeadlines(JournalLine):
    once_as = "The deadlines were measured"
    kind: Literal["deadlines"] = "deadlines"
    answer_s: float
    suspect_s: float
    rule: str = ""


class TriedFlags(JournalLine):
    """Options that the changed code asks for, and whether both sides start with them.

    Attributes:
        refusal: why they are left out; "": both start.
    """

    once_as = "The options of the change were tried"
    kind: Literal["flags"] = "flags"
    flags: list[str]
    refusal: str = ""


_AnyLine: TypeAlias = Annotated[
    JournalHead | PairEnded | MeasuredDeadlines | TriedFlags,
    Field(discriminator="kind"),
]
PAIRS = JournalKind(
    "comparison of two sides",
    "pairs.jsonl",
    ".pairs.lock",
    FUZZ_FILE,
    TypeAdapter(_AnyLine),
)
