"""What is wrong with one attempt by itself: every oracle that needs no second attempt.

An oracle says three things: what it holds against the attempt, what it saw that is no
failure, and what it could not judge. What it could not judge counts as neither sound
nor wrong. Here stand those of the canary and of the idle server: its counters against
what its client saw, what it still holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

from mmrepro.base.records import FindingClass
from mmrepro.base.units import size
from mmrepro.engines import Engine
from mmrepro.failure.documents.replay import Sighting
from mmrepro.runs.play import CANARY_AFTER, CANARY_BEFORE
from mmrepro.search.oracle import loud, near_ties
from mmrepro.search.oracle.adapters import adapters
from mmrepro.search.oracle.cache_bound import cache_bound
from mmrepro.search.oracle.expected import expected
from mmrepro.search.oracle.judged import (
    GENERATES,
    OracleReport,
    Sent,
    sent_of,
    sighting,
    silent_bucket,
)
from mmrepro.search.oracle.near_ties import TieVerdict, TokenAnswer
from mmrepro.search.oracle.protocol import protocol
from mmrepro.traffic.case import Case, Played, PlayState, Reading
from mmrepro.traffic.evidence import RequestRecord


def canary(played: Played, engine: Engine) -> OracleReport:
    """Whether the canary is answered as before, word for word, but for near-ties."""
    before, after = played.record(CANARY_BEFORE), played.record(CANARY_AFTER)
    if before is None or after is None:
        return OracleReport(
            unseen=["The canary was not asked both before and after the traffic."]
        )

    if not before.answered or not after.answered:
        return OracleReport(
            unseen=["The canary was not answered both before and after the traffic."]
        )

    if before.text == after.text:
        return OracleReport()
    exact = engine.promises.exact
    mine = next(iter(near_ties.answers(after)), TokenAnswer(after.text))
    right = next(iter(near_ties.answers(before)), TokenAnswer(before.text))
    bound = near_ties.bound_of((), exact=exact) or 0.0
    compared = near_ties.compare(mine, right, bound, exact=exact)
    if compared.verdict in (TieVerdict.SAME, TieVerdict.NEAR_TIE):
        return OracleReport(counted={"canary: near-tie": 1})
    if compared.verdict is TieVerdict.NOT_COMPARABLE:
        return OracleReport(
            unseen=[f"The canary's answer changed ({compared.said}): it may be a tie."]
        )

    return OracleReport.found(
        FindingClass.CANARY,
        "text",
        f"The canary was answered {before.text[:60]!r} before the traffic and "
        f"{after.text[:60]!r} after it: {compared.said}.",
        "A greedy answer does not change by what else was asked.",
    )


def judge(case: Case, played: Played, *, engine: Engine) -> OracleReport:
    """What the oracles hold against ``played``, the worst first. Pure."""
    if played.state is PlayState.START_FAILED:
        return loud.start_failure(played, engine)
    return OracleReport.of(
        [
            loud.death(case, played, engine),
            loud.hang(played, engine),
            loud.failing(case, played, engine),
            loud.server_errors(case, played, engine),
            cache_bound(case, played, engine),
            canary(played, engine),
            expected(case, played, engine),
            protocol(case, played, engine),
            adapters(case, played, engine),
            ledger(case, played, engine),
            quiescence(case, played, engine),
        ]
    )


# ---------------------------------------------------------------------- the idle server

_SETTLES_S = 0.05


class _CacheSpan(NamedTuple):
    """From the least to the most."""

    least: float
    most: float


def ledger(case: Case, played: Played, engine: Engine) -> OracleReport:
    """Whether any counter contradicts the sum over all requests between the two
    readings.

    Each request adds to each counter something between a least and a most. The growth
    from the reading before the traffic to the one after it must lie between the sums.
    What an answer tells by its usage is exact: least and most are one. What it does not
    tell (a client that left, a refusal, several answers to one request, a failure)
    leaves room, up to all that was asked for; where no most is known, only the least is
    asked. A counter that an engine does not have is not judged. What ended right before
    the reading after it is possibly not counted yet: an engine may count when it has
    sent."""
    if played.state is not PlayState.ENDED:
        return OracleReport(
            unseen=["The play did not end: the server's counters were not judged."]
        )

    before, after = played.before, played.after
    if before is None or after is None or not after.metrics:
        return OracleReport(
            unseen=["The server's counters were not read before and after the traffic."]
        )

    entries = list(_entries(case, played, before, after))
    sightings, unseen = [], []
    for name, (people, counted) in _COUNTERS.items():
        last = after.first(names := engine.metrics.get(name, ()))
        if last is None:
            unseen.append(f"The server does not count {people}.")
            continue
        # A counter without a value has none yet.
        used = next(name for name in names if name in after.metrics)
        grown = last - before.metrics.get(used, 0.0)
        anything = _CacheSpan(0.0, math.inf)
        spans = [anything if entry.other else counted(entry, case) for entry in entries]
        least, most = (
            sum(span.least for span in spans),
            sum(span.most for span in spans),
        )
        if least <= grown <= most:
            continue
        upto = "" if most == least else f" to {most:g}" if most < math.inf else "…"
        sightings.append(
            sighting(
                FindingClass.METRICS,
                f"{name}-{'too-few' if grown < least else 'too-many'}",
                (
                    f"The server counts {grown:g} {people}; its client counts "
                    f"{least:g}{upto}."
                ),
                "The counters grow by what was served.",
            )
        )

    return OracleReport(sightings=sightings, unseen=unseen)


# ------------------------------------------------------------------ what a request adds


@dataclass(frozen=True)
class _Entry:
    """A request between the readings.

    Attributes:
        n: answers asked for.
        limit: most tokens of each, if told.
        late: it may not be counted yet, or was before.
        other: no completion: it may add anything.
    """

    record: RequestRecord
    n: int = 1
    limit: int | None = None
    late: bool = False
    other: bool = False

    @property
    def told(self) -> bool:
        """It was served whole, and says how many tokens that took."""
        return self.record.answered and self.n == 1 and not self.record.cut_short

    def span(self, exact: float | None, most: float) -> _CacheSpan:
        """``exact`` where the answer tells it."""
        if exact is None:
            return _CacheSpan(0.0, most)
        return _CacheSpan(0.0 if self.late else exact, exact)


def _entries(
    case: Case, played: Played, before: Reading, after: Reading
) -> Iterator[_Entry]:
    """The requests between the readings, the harness's own as well."""
    ours: dict[str, Sent] = {
        request.op.id: request for request in sent_of(case, played)
    }
    for record in played.evidence.requests:
        end = record.sent.mono + record.latency_s
        if end <= before.mono or record.sent.mono >= after.mono:
            continue
        if record.method != "POST":
            continue
        sent = ours.get(record.label)
        # What it adds is told in a form of its own, or not.
        if record.path not in GENERATES:
            yield _Entry(record, other=True)
            continue
        late = end > after.mono - _SETTLES_S or record.sent.mono < before.mono
        if sent is None:
            yield _Entry(record, limit=record.max_tokens, late=late)
        else:
            yield _Entry(record, sent.n, sent.limit, late)


def _finished(entry: _Entry, case: Case) -> _CacheSpan:
    # An answer is counted once, or once for each choice, and a prompt that several
    # share once more.
    if entry.told:
        return entry.span(1.0, 1.0)
    whole = entry.record.answered and not entry.record.cut_short
    least = 1.0 if whole and not entry.late else 0.0
    return _CacheSpan(least, entry.n + 1.0)


def _prompt_tokens(entry: _Entry, case: Case) -> _CacheSpan:
    tokens = entry.record.prompt_tokens
    if entry.told and tokens is not None:
        return entry.span(tokens, tokens)
    most = (entry.n + 1.0) * (
        tokens if tokens is not None else case.server.max_model_len
    )
    if entry.record.status is not None and 400 <= entry.record.status < 500:
        most = math.inf  # refused for its length, maybe
    return _CacheSpan(0.0, most)


def _generated(entry: _Entry, case: Case) -> _CacheSpan:
    tokens = entry.record.completion_tokens
    if entry.told and tokens is not None:
        return entry.span(tokens, tokens)
    limit = entry.limit if entry.limit is not None else case.server.max_model_len
    return _CacheSpan(0.0, (entry.n + 1.0) * limit)


_COUNTERS: dict[str, tuple[str, Callable[[_Entry, Case], _CacheSpan]]] = {
    "finished": ("requests that ended", _finished),
    "prompt_tokens": ("prompt tokens", _prompt_tokens),
    "generation_tokens": ("generated tokens", _generated),
}
"""By their short name (``Engine.metrics``): for people, and what a request adds."""


_KV_SLACK = 1e-6
_LEAST_BLOCKS = 3
_LEAST_BLOCKS_OF_MEMORY = 5
"""Allocators and logs make it rougher than a count."""
_SHARE_OF_REQUESTS = 0.25
"""A leak that is worth a report takes a thread or a file in every fourth request at
least: a pool that is still filling adds fewer, one at a time."""
LEAST_STEP = 2
NO_BLOCKS = (
    "Threads, files and memory were not judged: that needs equal blocks of requests, "
    f"{_LEAST_BLOCKS} at least."
)
MIB = 1 << 20
_PER_REQUEST = 32 << 10
"""Bytes: what a log, a counter's labels or a request's text may leave."""
_PER_PIXEL = 96
"""Bytes: a picture in a cache, as three float32 channels twice over, its embedding, and
its copy in a second process."""


def quiescence(case: Case, played: Played, engine: Engine) -> OracleReport:
    """What the idle server still holds, and what grew with each block.

    Running, waiting and the use of the KV cache are gauges; they count only of engines
    that set them at each step (SGLang sets them now and then, and leaves them as they
    were while it is idle).

    What grows once is no leak: pools of threads, caches and allocators fill with the
    first traffic. Threads, files, shared memory and memory are therefore judged by
    blocks of equally many requests, idle readings after each, and only what grows in
    every one of them counts, beyond what the block itself may rightly leave: pictures
    are kept in caches."""
    if played.state is not PlayState.ENDED:
        return OracleReport()
    before, after = played.before, played.after
    if before is None or after is None:
        return OracleReport(
            unseen=["The idle server was not read before and after the traffic."]
        )

    held = case.changes_server or any(
        op.path == "/open_session" for op in case.operations
    )
    idle = [] if held else [_gauges(after, engine), _kv_use(before, after, engine)]
    return OracleReport.of([*idle, _growth(case, played)])


def _gauges(after: Reading, engine: Engine) -> OracleReport:
    sightings, unseen = [], []
    for name in ("running", "waiting"):
        value = after.first(engine.metrics.get(name, ()))
        if value is None:
            unseen.append(f"The server does not tell how many requests are {name}.")
        elif value and not engine.promises.prompt_gauges:
            unseen.append(
                f"The server sets its count of {name} requests now and then only."
            )
        elif value:
            sightings.append(
                _residue(
                    name,
                    f"{value:g} requests are {name} on a server that serves nobody",
                )
            )

    return OracleReport(sightings=sightings, unseen=unseen)


def _kv_use(before: Reading, after: Reading, engine: Engine) -> OracleReport:
    names = engine.promises.kv_use
    first, last = before.first(names), after.first(names)
    if first is None or last is None:
        return OracleReport(
            unseen=["The server does not tell how much of its KV cache is in use."]
        )

    if last <= first + _KV_SLACK:
        return OracleReport()
    said = (
        f"{last:.2%} of the KV cache is in use on an idle server, {first:.2%} before "
        "the traffic"
    )
    return OracleReport(sightings=[_residue("kv-use", said)])


# ------------------------------------------------------------------- growth over blocks


def _growth(case: Case, played: Played) -> OracleReport:
    blocks = played.blocks
    if len(blocks) < _LEAST_BLOCKS:
        return OracleReport(unseen=[NO_BLOCKS])
    requests = len(sent_of(case, played)) / len(blocks)
    step = max(LEAST_STEP, _SHARE_OF_REQUESTS * requests)
    sightings = []
    for name, people, read in _COUNTED:
        grown = _grown(blocks, read, [step] * (len(blocks) - 1))
        if grown is not None:
            said = (
                f"{grown:.0f} more {people} with each block of {requests:.0f} requests"
            )
            sightings.append(_residue(name, said))

    grown = None
    if len(blocks) >= _LEAST_BLOCKS_OF_MEMORY:
        grown = _grown(blocks, lambda r: r.rss_bytes, list(_allowed(case, played)))
    if grown is not None:
        said = (
            f"{size(grown, 1)} more memory with each block of {requests:.0f} requests"
        )
        sightings.append(_residue("memory", said))

    return OracleReport(sightings=sightings)


_COUNTED: tuple[tuple[str, str, Callable[[Reading], float | None]], ...] = (
    ("threads", "threads", lambda reading: reading.threads),
    ("files", "open files", lambda reading: reading.files),
    ("shm", "files in /dev/shm", lambda reading: len(reading.shm)),
)


def grows(bucket: str) -> bool:
    """Whether the failure is one that only equal blocks of requests show."""
    kinds = (*(name for name, _, _ in _COUNTED), "memory")
    return bucket in {silent_bucket(FindingClass.RESIDUE, kind) for kind in kinds}


def _grown(
    blocks: Sequence[Reading],
    read: Callable[[Reading], float | None],
    least: Sequence[float],
) -> float | None:
    """The median step from block to block (Theil-Sen's slope is the median of all
    pairs'), if each step is beyond its ``least`` and all pairs agree; None: no such
    growth, or it was not read."""
    values = [value for reading in blocks if (value := read(reading)) is not None]
    if len(values) < len(blocks):
        return None
    steps = [later - earlier for earlier, later in pairwise(values)]
    if any(step < bound for step, bound in zip(steps, least, strict=True)):
        return None
    pairs = combinations(range(len(values)), 2)
    slope = median((values[j] - values[i]) / (j - i) for i, j in pairs)
    return slope if min(steps) >= slope / 2 else None


def _allowed(case: Case, played: Played) -> Iterator[float]:
    """Bytes by which memory may rightly grow in each block after the first."""
    sent = sent_of(case, played)
    seen: set[str] = set()
    begins = [float("-inf"), *(reading.mono for reading in played.blocks)]
    for number, (begin, end) in enumerate(pairwise(begins)):
        of_block = [request for request in sent if begin <= request.begin < end]
        new = {
            image.sha256: image.width * image.height
            for request in of_block
            for image in request.record.images
            if image.sha256 not in seen
        }
        seen |= new.keys()
        if number:
            yield MIB + _PER_REQUEST * len(of_block) + _PER_PIXEL * sum(new.values())


def _residue(kind: str, said: str) -> Sighting:
    expected = "A server that serves nobody holds what it held before."
    return sighting(FindingClass.RESIDUE, kind, f"{said}.", expected)
