"""Traffic where there is no recording: a few shapes of load, drawn from published
statistics.

A profile says how long prompts and answers are and what they have in common; when
requests arrive (Poisson) and how long a client pauses is chosen for a small machine,
and from no source."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mmrepro.traffic.capture.mooncake import WHOLE, RecordingExcerpt, Trace, TraceRow

_REQUESTS = 200
"""Of a profile, if no other number is asked for."""
_MOST_SESSIONS = 100_000
_ARRIVAL_S = 0.5
"""Mean time between two sessions."""
_ZIPF = 1.1
"""Of 1000 documents the 30 first are asked for in about 60 % of all cases."""


class Spread(NamedTuple):
    """A lognormal number of tokens: its median, and the standard deviation of its
    logarithm."""

    median: float
    sigma: float = 1.0

    def draw(self, chance: random.Random) -> int:
        return max(
            1, round(self.median * math.exp(self.sigma * min(chance.gauss(0, 1), 2.0)))
        )


_DOCUMENT: Final = Spread(400, 0.5)


@dataclass(frozen=True)
class TrafficProfile:
    """A shape of load.

    Attributes:
        system: tokens with which all prompts begin.
        asked, answered: new tokens of a prompt, and tokens of its answer.
        turns: mean number of requests of a session, each of which has all before it in
            its prompt.
        pause_s: mean time between two of them.
        documents: how many there are, of which each first prompt of a session holds
            ``retrieved``.
        source: where the numbers come from.
    """

    system: int
    asked: Spread
    answered: Spread
    source: str
    turns: float = 1.0
    pause_s: float = 4.0
    documents: int = 0
    retrieved: int = 3


PROFILES: Final = {
    "chat": TrafficProfile(
        256,
        # Means of 69.5 and 214.5 tokens.
        Spread(42),
        Spread(130),
        "LMSYS-Chat-1M (ICLR 2024), table 1: tokens of prompts and answers, turns",
        turns=2.0,
    ),
    "code": TrafficProfile(
        0,
        Spread(1500, 0.7),
        Spread(13),
        (
            "Azure's LLM inference trace of coding (Splitwise, ISCA 2024): medians "
            "1500 and 13"
        ),
    ),
    "rag": TrafficProfile(
        128,
        Spread(100, 0.5),
        Spread(130),
        "RAGCache (2024): 3 % of the documents are asked for in 60 % of the cases, and "
        "add 1000 tokens and more to a question of 100",
        documents=1000,
    ),
    "agents": TrafficProfile(
        20_000,
        # 90 % are below 5342 and 1671.
        Spread(857, 1.43),
        Spread(252, 1.48),
        "TraceLab (2026), coding agents: tokens appended and generated in each step, "
        "eight steps for each problem",
        turns=8.0,
        pause_s=1.0,
    ),
}


def trace_of(name: str, seed: int = 0, excerpt: RecordingExcerpt = WHOLE) -> Trace:
    """Make up the profile's requests in the order of their arrival, the same for the
    same seed."""
    profile = PROFILES[name]
    chance = random.Random(f"{name} {seed}")  # noqa: S311 - no secret
    wanted = excerpt.first or _REQUESTS
    rows: list[TraceRow] = []
    begin_s = 0.0
    for number in range(_MOST_SESSIONS):
        # Sessions begin in order: what begins later cannot be among the first ones.
        enough = len(rows) >= wanted and rows[wanted - 1].at_s <= begin_s
        if enough or begin_s >= excerpt.end:
            break
        for row in _session(profile, number, begin_s, chance):
            if excerpt.has(row.at_s):
                rows.append(row)
        rows = sorted(rows, key=lambda row: row.at_s)[:wanted]
        begin_s += chance.expovariate(1 / _ARRIVAL_S)
    notes = [
        f"The traffic is made up, with the lengths of the profile {name}: "
        f"{profile.source}. Arrivals are Poisson, two sessions a second, a choice of "
        "mmrepro's."
    ]
    rounded = [replace(row, at_s=round(row.at_s, 3)) for row in rows]
    return Trace(rounded, notes=notes)


def _session(
    profile: TrafficProfile, number: int, at_s: float, chance: random.Random
) -> Iterator[TraceRow]:
    blocks, sizes = [0], [profile.system]
    if profile.documents:
        for place in _popular(profile, chance):
            # A document has one length, whoever asks for it.
            blocks.append(-1 - place)
            sizes.append(_DOCUMENT.draw(random.Random(place)))  # noqa: S311 - no secret
    stop = 1 / profile.turns
    own = number << 20
    while True:
        # New lists each time: a row keeps those of its own.
        own += 1
        blocks = [*blocks, own]
        sizes = [*sizes, profile.asked.draw(chance)]
        answer = profile.answered.draw(chance)
        yield TraceRow(at_s, sum(sizes), answer, blocks, f"s{number}", sizes)
        if chance.random() < stop:
            return
        own += 1
        blocks = [*blocks, own]
        sizes = [*sizes, answer]
        at_s += chance.expovariate(1 / profile.pause_s)


def _popular(profile: TrafficProfile, chance: random.Random) -> list[int]:
    """Documents that a search finds, the most popular first, each once."""
    weights = [1 / rank**_ZIPF for rank in range(1, profile.documents + 1)]
    drawn = chance.choices(range(profile.documents), weights, k=profile.retrieved)
    return sorted(set(drawn))
