"""What the requests of one episode may have. Each episode has some of it only.

Swarm testing (Groce and others, ISSTA 2012): with everything on at once most failures are hidden,
by others that come first or by requests that keep them away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from random import Random

from mmrepro.case.model import Case, Operation
from mmrepro.fuzz.profiles import Dialect


class Switch(StrEnum):
    IMAGES = "images"
    REUSE = "reuse"
    """Pictures, and beginnings of texts, that were used before."""
    RELATIVES = "relatives"
    """Pictures that are nearly another one: other pixels, another layout, another size."""
    SEVERAL = "several images"
    OVER = "over-long"
    EDGES = "edges"
    """Lengths at a limit, one less and one more."""
    BLOCKS = "block edges"
    GROWTH = "growth"
    """Answers that may grow beyond the KV cache, or up to the context's end."""
    LEAVE = "leave"
    STREAM = "stream"
    N = "n"
    STOP = "stop"
    LOGPROBS = "logprobs"
    PRIORITY = "priority"
    SALT = "salt"
    UUID = "uuid"
    RID = "rid"
    GRAMMAR = "grammar"
    SAMPLED = "sampled"
    COMPLETIONS = "completions"
    TURNS = "turns"
    ODD = "odd texts"


ODDS: Mapping[Switch, float] = {
    Switch.IMAGES: 0.8,
    Switch.REUSE: 0.8,
    Switch.OVER: 0.7,
    Switch.STREAM: 0.6,
    Switch.RELATIVES: 0.4,
    Switch.UUID: 0.25,
    Switch.STOP: 0.35,
    Switch.GRAMMAR: 0.3,
    Switch.LOGPROBS: 0.35,
    Switch.ODD: 0.25,
}
USUAL_ODDS = 0.45
LESS = 0.35
"""By so much a switch is less likely once a fatal failure was found that needs it."""
LEAST = 0.05


def offered(dialect: Dialect, *, pictures: bool) -> list[Switch]:
    """Those that the engine's API has."""
    there = {
        Switch.N: dialect.several,
        Switch.SALT: dialect.salts,
        Switch.RID: dialect.rid,
        Switch.PRIORITY: dialect.priority,
        Switch.GRAMMAR: dialect.shaped,
        Switch.LOGPROBS: dialect.logprobs,
        Switch.COMPLETIONS: dialect.completions,
        Switch.IMAGES: pictures,
        Switch.RELATIVES: pictures,
        Switch.SEVERAL: pictures,
        Switch.UUID: pictures and dialect.uuids,
    }
    return [one for one in Switch if there.get(one, True)]


def drawn(random: Random, among: Iterable[Switch], less: Mapping[Switch, float]) -> set[Switch]:
    """Those of one episode; ``less``: what their odds are multiplied by."""
    on = set()
    for one in among:
        odds = ODDS.get(one, USUAL_ODDS) * less.get(one, 1.0)
        if random.random() < max(LEAST, odds):
            on.add(one)
    if Switch.IMAGES not in on:
        on -= {Switch.RELATIVES, Switch.SEVERAL, Switch.UUID}
    return on


_BY_PARAMETER = {
    "n": Switch.N,
    "stop": Switch.STOP,
    "stop_token_ids": Switch.STOP,
    "min_tokens": Switch.STOP,
    "logprobs": Switch.LOGPROBS,
    "top_logprobs": Switch.LOGPROBS,
    "priority": Switch.PRIORITY,
    "cache_salt": Switch.SALT,
    "extra_key": Switch.SALT,
    "rid": Switch.RID,
    "request_id": Switch.RID,
    "session_id": Switch.RID,
    "response_format": Switch.GRAMMAR,
    "structured_outputs": Switch.GRAMMAR,
    "regex": Switch.GRAMMAR,
    "ebnf": Switch.GRAMMAR,
}


def needed_by(case: Case) -> set[Switch]:
    """What is unusual in the requests of a shrunk case."""
    return {one for op in case.operations for one in _of(op)}


def _of(op: Operation) -> set[Switch]:
    found = {_BY_PARAMETER[name] for name in op.parameters if name in _BY_PARAMETER}
    parts = [part for message in op.messages or [] for part in message.parts()]
    if op.leave:
        found.add(Switch.LEAVE)
    if len(op.images) > 1:
        found.add(Switch.SEVERAL)
    if any(part.uuid is not None for part in parts):
        found.add(Switch.UUID)
    return found
