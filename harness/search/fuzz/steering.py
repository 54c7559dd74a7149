"""What steers a session: what the requests of an episode may have, and what an episode
showed.

Each episode has some of it only. Swarm testing (Groce and others, ISSTA 2012): with
everything on at once most failures are hidden, by others that come first or by requests
that keep them away."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from mmrepro.engines import without_prefix
from mmrepro.engines.dialects import Dialect
from mmrepro.search.oracle.judged import normalised, sent_of
from mmrepro.search.oracle.loud import error_words
from mmrepro.traffic.case import Case, Operation, Played
from mmrepro.traffic.evidence import RequestRecord


class Switch(StrEnum):
    IMAGES = "images"
    REUSE = "reuse"
    """Pictures, and beginnings of texts, that were used before."""
    RELATIVES = "relatives"
    """Pictures that are nearly another one: other pixels, another layout, another
    size."""
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
    # What the server does, each called as its feature is (engines/features.py).
    NGRAM = "ngram"
    DRAFT = "draft"
    LORA = "lora"
    EVICTED = "lora-evicted"
    FILES = "file-connector"
    HYBRID = "hybrid-prefix"
    TOOLS = "parsers"
    CHUNKS = "chunked-prefill"
    SYNCHRONOUS = "no-async"
    MIXED = "mixed-chunk"


SERVERS: Final = (
    Switch.NGRAM,
    Switch.DRAFT,
    Switch.LORA,
    Switch.EVICTED,
    Switch.FILES,
    Switch.HYBRID,
    Switch.TOOLS,
    Switch.CHUNKS,
    Switch.SYNCHRONOUS,
    Switch.MIXED,
)
"""Switches of the server, in the order in which its options are given."""
ADAPTERS: Final = (Switch.LORA, Switch.EVICTED)
SPECULATION: Final = (Switch.NGRAM, Switch.DRAFT)
ONE_OF: Final = (
    (*SPECULATION, Switch.HYBRID),
    (*ADAPTERS, Switch.FILES, Switch.HYBRID),
    (Switch.FILES, Switch.CHUNKS),
    (Switch.FILES, Switch.SALT),
    (Switch.CHUNKS, Switch.MIXED),
)
"""Switches of which one server has one at most. vLLM's file connector takes the keys
and values of one adapter, or under one salt, for another's (vllm#53495), and a prompt's
first chunk for all of it (vllm#16928): both would hide all else. A hybrid's prediction
head needs a GPU (docs/lab/stack.md)."""
LEADS: Final = (
    SPECULATION,
    ADAPTERS,
    (Switch.FILES,),
    (Switch.HYBRID,),
    (Switch.MIXED,),
)
"""What a server of today keeps between its steps. Each episode has one of a group for
certain, the groups in turn: chance alone would leave one out of a short session."""


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
_USUAL_ODDS = 0.45
LESS = 0.35
"""By so much a switch is less likely once a fatal failure was found that needs it."""
_LEAST = 0.05


def offered(dialect: Dialect, *, pictures: bool, modern: bool = False) -> list[Switch]:
    """Those that the engine's API has; ``modern``: those of its servers as well."""
    there: dict[Switch, object] = {
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
    for switch in SERVERS:
        there[switch] = modern and str(switch) in dialect.features
    return [switch for switch in Switch if there.get(switch, True)]


def drawn(
    random: Random,
    among: Iterable[Switch],
    less: Mapping[Switch, float],
    lead: Switch | None = None,
    apart: Iterable[frozenset[Switch]] = (),
    untried: tuple[Switch, ...] = (),
) -> set[Switch]:
    """Draw the switches of one episode.

    Args:
        less: what their odds are multiplied by.
        lead: a switch that the episode has for certain.
        apart: groups with all of which no server starts.
        untried: those of which there is one at most, so that a start that fails has one
            reason.
    """
    on = set()
    for switch in among:
        odds = ODDS.get(switch, _USUAL_ODDS) * less.get(switch, 1.0)
        if switch is lead or random.random() < max(_LEAST, odds):
            on.add(switch)

    # Without pictures these would stand for nothing.
    if Switch.IMAGES not in on:
        on -= {Switch.RELATIVES, Switch.SEVERAL, Switch.UUID}
    for group in (*ONE_OF, untried):
        there = [switch for switch in group if switch in on]
        if len(there) > 1:
            stays = lead if lead in there else random.choice(there)
            on -= set(there) - {stays}

    return without_groups(on, apart, lead)


def without_groups(
    on: set[Switch], apart: Iterable[frozenset[Switch]], keep: Switch | None
) -> set[Switch]:
    """``on``, without a switch of each group of which it has all; ``keep`` stays if it
    can."""
    for together in apart:
        if together <= on:
            # Always the same one of a group, so that a seed makes the same episode.
            on = on - {min(together - {keep}, default=keep)}
    return on


def lead_of(seed: int, number: int, among: Iterable[Switch]) -> Switch | None:
    """The switch of :data:`LEADS` that episode ``number`` has for certain; None: there
    is none."""
    there = set(among)
    groups: list[list[Switch]] = []
    for group in LEADS:
        left: list[Switch] = [switch for switch in group if switch in there]
        if left:
            groups.append(left)

    if not groups:
        return None
    Random(f"{seed}/leads").shuffle(groups)  # noqa: S311
    turn = groups[number % len(groups)]
    return Random(f"{seed}/{number}/lead").choice(turn)  # noqa: S311


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
    "tools": Switch.TOOLS,
}


def needed_by(case: Case) -> set[Switch]:
    """What is unusual in the requests of a shrunk case."""
    needed: set[Switch] = set()
    for op in case.operations:
        needed |= _of(op)
    return needed


def _of(op: Operation) -> set[Switch]:
    switches = {_BY_PARAMETER[name] for name in op.parameters if name in _BY_PARAMETER}
    if op.leave:
        switches.add(Switch.LEAVE)
    if len(op.images) > 1:
        switches.add(Switch.SEVERAL)
    for message in op.messages or []:
        if any(part.uuid is not None for part in message.parts()):
            switches.add(Switch.UUID)
    return switches


# --------------------------------------------------------------- what an episode showed

_LOG, _ANSWER, _METRIC, _PAIR = "log", "answer", "metric", "pair"
_WORTH = {_LOG: 3, _ANSWER: 5, _METRIC: 2, _PAIR: 0}
"""Of a new one. Pairs of requests are told; there are always new ones."""
ENOUGH = 3
"""Worth from which on an episode is changed into others."""
_MOST_LINES, _MOST_BYTES = 20_000, 8 << 20
_COUNTED = re.compile(r"_(?:created|bucket|sum)$")


def features(case: Case, played: Played, log: Path) -> set[str]:
    """Each as its kind and a short text; the same failure gives the same ones. Pure,
    but for the log."""
    digests = {_digest(_LOG, text) for text in _templates(log)}
    digests |= {_digest(_METRIC, text) for text in _metrics(played)}
    labels: list[str] = []
    for sent in sent_of(case, played):
        kind, answer = _kind(sent.op), _answer(sent.record)
        digests.add(_digest(_ANSWER, f"{kind}:{answer}"))
        labels.append(f"{kind}={answer[:12]}")

    for first, second in pairwise(labels):
        digests.add(_digest(_PAIR, f"{first} {second}"))
    return digests


def _digest(kind: str, text: str) -> str:
    """A digest in place of the text: a log's words may be long, and are somebody's."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6)
    return f"{kind}:{digest.hexdigest()}"


def kinds(shown: Iterable[str]) -> dict[str, int]:
    """Count the features of each kind."""
    counted: dict[str, int] = {}
    for text in shown:
        kind = text.partition(":")[0]
        counted[kind] = counted.get(kind, 0) + 1
    return counted


def worth(new: Iterable[str]) -> int:
    return sum(_WORTH[kind] * number for kind, number in kinds(new).items())


def _templates(log: Path) -> Iterator[str]:
    """Of each line of the log what stays the same whatever its numbers are."""
    try:
        with log.open("rb") as file:
            lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in dict.fromkeys(lines[:_MOST_LINES]):
        yield normalised(without_prefix(line)[:300])


def _kind(op: Operation) -> str:
    """What is unusual in a request."""
    kind = op.path.rpartition("/")[2] + "i" * min(3, len(op.images))
    if op.stream:
        kind += "s"
    if op.leave:
        kind += "l"
    unusual = [name[:4] for name in op.parameters if name not in _USUAL]
    return kind + "".join(sorted(unusual))


_USUAL = ("max_tokens", "temperature", "seed", "ignore_eos", "return_token_ids")


def _answer(record: RequestRecord) -> str:
    if record.left:
        return "left"
    words = normalised(error_words(record)) if record.error else ""
    return f"{record.status} {record.finish_reason} {words}"


def _metrics(played: Played) -> Iterator[str]:
    """Metrics that moved, and by how much, roughly."""
    if played.before is None or played.after is None:
        return
    for name, value in played.after.metrics.items():
        moved = value - played.before.metrics.get(name, 0.0)
        if moved and not _COUNTED.search(name) and math.isfinite(moved):
            yield f"{name} {round(math.log2(abs(moved)) / 2)} {moved > 0}"
