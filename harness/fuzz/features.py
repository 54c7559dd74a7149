"""What an episode showed, as far as it steers: things that no episode before it showed are worth
more of the same."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from mmrepro.case.model import Case, Operation
from mmrepro.case.played import Played
from mmrepro.engines.base import without_prefix
from mmrepro.evidence import RequestRecord
from mmrepro.oracle.buckets import normalised
from mmrepro.oracle.judged import sent_of
from mmrepro.oracle.loud import error_words

LOG, ANSWER, METRIC, PAIR = "log", "answer", "metric", "pair"
WORTH = {LOG: 3, ANSWER: 5, METRIC: 2, PAIR: 0}
"""Of a new one. Pairs of requests are told; there are always new ones."""
ENOUGH = 3
"""Worth from which on an episode is changed into others."""
MOST_LINES, MOST_BYTES = 20_000, 8 << 20
_COUNTED = re.compile(r"_(?:created|bucket|sum)$")


def features(case: Case, played: Played, log: Path) -> set[str]:
    """Each as its kind and a short text; the same failure gives the same ones. Pure, but for the
    log."""
    found = {f"{LOG}:{text}" for text in _templates(log)}
    sent = sent_of(case, played)
    shown = [(_kind(one.op), _answer(one.record)) for one in sent]
    found |= {f"{ANSWER}:{kind}:{answer}" for kind, answer in shown}
    found |= {f"{METRIC}:{text}" for text in _metrics(played)}
    labels = [f"{kind}={answer[:12]}" for kind, answer in shown]
    found |= {f"{PAIR}:{first} {second}" for first, second in pairwise(labels)}
    return {_short(text) for text in found}


def kinds(found: Iterable[str]) -> dict[str, int]:
    """How many there are of each kind."""
    counted: dict[str, int] = {}
    for text in found:
        kind = text.partition(":")[0]
        counted[kind] = counted.get(kind, 0) + 1
    return counted


def worth(new: Iterable[str]) -> int:
    return sum(WORTH[kind] * number for kind, number in kinds(new).items())


def _short(text: str) -> str:
    """As it is kept: no log's words, which may be long and are somebody's."""
    kind, _, rest = text.partition(":")
    return f"{kind}:{hashlib.blake2b(rest.encode('utf-8', 'replace'), digest_size=6).hexdigest()}"


def _templates(log: Path) -> Iterator[str]:
    """Of each line of the log what stays the same whatever its numbers are."""
    try:
        with log.open("rb") as file:
            lines = file.read(MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in dict.fromkeys(lines[:MOST_LINES]):
        yield normalised(without_prefix(line)[:300])


def _kind(op: Operation) -> str:
    """What is unusual in a request."""
    parts = [op.path.rpartition("/")[2], "i" * min(3, len(op.images))]
    parts += ["s"] if op.stream else []
    parts += ["l"] if op.leave else []
    return "".join([*parts, *sorted(name[:4] for name in op.parameters if name not in _USUAL)])


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
