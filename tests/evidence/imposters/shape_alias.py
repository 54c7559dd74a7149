"""Imposters of shape-alias: the KV cache and the embedding cache."""

from typing import Any

from mmrepro.failure.documents import Incident

from .sglang import (
    CALLED,
    DIFFERENT,
    INCONCLUSIVE,
    LOADED,
    NOT_REPRODUCED,
    Edit,
    Row,
    answered_as,
    asked,
    both,
    by_hand,
    facts,
    listed,
    logged,
    unrun,
)

LATER = ("T after W and others", "W after T and others")
BYTES = ("bytes-only",)


def measured(**changed: Any) -> Edit:
    return lambda incident: incident.evidence.facts.update(changed)


def latencies(factor: float, *, again: bool) -> Edit:
    """Of the pictures that fill the cache: of the first time, or of the second."""

    def edit(incident: Incident) -> None:
        for record in incident.evidence.requests:
            if (
                record.label.startswith("fill-")
                and record.label.endswith("again") == again
            ):
                record.latency_s *= factor

    return edit


def grid_hashed(*second: str, tokens: int) -> Edit:
    """A build that hashes the grid as well: two hashes, and each layout gets its own
    answer."""
    own = [
        answered_as(label, f"gate: {label[0]} alone", cached_tokens=tokens)
        for label in second
    ]
    return both(facts(hashes_equal=False, hash_t="0c1674aeeda337ff"), *own)


EITHER: list[Row] = [
    (
        "no-reproducer",
        "0.5.23",
        "absent-probe",
        "the reproducer was not run",
        unrun,
        INCONCLUSIVE,
    ),
    (
        "log-of-another-start",
        "0.5.23",
        "stale-log",
        "the log is of a start without the stand-in",
        logged(**{LOADED: 0}),
        INCONCLUSIVE,
        BYTES,
    ),
]
"""Of both caches."""

KV: list[Row] = [
    (
        "cured-with-pretended-kernels",
        "disable-radix-cache",
        "other-cause",
        "the stand-in was called: the answers may not be the engine's",
        logged(**{CALLED: 1}),
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "patched-build",
        "0.5.23",
        "healthy",
        "a build that hashes the grid",
        grid_hashed("T after W", "W after T", tokens=7),
        NOT_REPRODUCED,
    ),
    (
        "resized",
        "disable-radix-cache",
        "trigger-failed",
        "the processor cuts both pictures to a square: other bytes, one grid",
        facts(
            bytes_equal=False, grids_differ=False, hashes_equal=False, grid_t="1x6x6"
        ),
        INCONCLUSIVE,
    ),
    (
        "other-bytes",
        "disable-radix-cache",
        "trigger-failed",
        "the processor blurs across tiles: other bytes",
        facts(bytes_equal=False, hashes_equal=False),
        INCONCLUSIVE,
    ),
    (
        "cache-off-by-hand",
        "disable-radix-cache",
        "trigger-failed",
        (
            "--disable-radix-cache was in the server's own options, and nobody tried "
            "a mitigation"
        ),
        by_hand,
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "cache-on-after-all",
        "disable-radix-cache",
        "trigger-failed",
        (
            "the release ignores --disable-radix-cache: what is sent again comes from "
            "the cache"
        ),
        asked("gate: W again", "gate: T again", cached_tokens=53),
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "only-the-text-shared",
        "0.5.23",
        "other-cause",
        (
            "wrong answers with the text alone from the cache, which is flushed "
            "before the control"
        ),
        both(
            asked("T after W", "W after T", cached_tokens=7),
            asked("control after W", "control after T", cached_tokens=0),
        ),
        DIFFERENT,
        BYTES,
    ),
    (
        "two-hashes",
        "0.5.23",
        "other-cause",
        "the engine's own code gives the layouts two hashes",
        facts(hashes_equal=False, hash_t="0c1674aeeda337ff"),
        DIFFERENT,
    ),
    (
        "wrong-in-one-order",
        "0.5.23",
        "other-cause",
        "W, sent after T, gets its own answer",
        answered_as("W after T", "gate: W alone", cached_tokens=7),
        INCONCLUSIVE,
        BYTES,
    ),
    *EITHER,
    (
        "torn-usage",
        "0.5.6",
        "torn-sample",
        (
            "T's answer does not say what came from the cache, and the counter is of "
            "another moment"
        ),
        asked("T after W", cached_tokens=None),
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "not-answered-when-busy",
        "0.5.23",
        "overload",
        "the busy server does not answer T after W",
        asked("T after W", status=503, error="", tokens=[], logprobs=[]),
        INCONCLUSIVE,
        BYTES,
    ),
]

EMBEDDING: list[Row] = [
    (
        "cured-with-pretended-kernels",
        "disable-embedding-cache",
        "other-cause",
        "the stand-in was called: the answers may not be the engine's",
        logged(**{CALLED: 1}),
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "patched-build",
        "0.5.23",
        "healthy",
        "a build that hashes the grid",
        grid_hashed("T after W", "W after T", *LATER, tokens=0),
        NOT_REPRODUCED,
    ),
    (
        "cache-off-by-hand",
        "disable-embedding-cache",
        "trigger-failed",
        "SGLANG_VLM_CACHE_SIZE_MB=0 was set before, and nobody tried a mitigation",
        by_hand,
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "cache-on-after-all",
        "disable-embedding-cache",
        "trigger-failed",
        (
            "the release reads the cache's size from elsewhere: what is sent again is "
            "not encoded"
        ),
        latencies(0.2, again=True),
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "other-bytes",
        "disable-embedding-cache",
        "trigger-failed",
        "the processor blurs across tiles: other bytes",
        facts(bytes_equal=False, hashes_equal=False),
        INCONCLUSIVE,
    ),
    (
        "machine-was-busy",
        "disable-embedding-cache",
        "overload",
        (
            "the machine was busy whenever a picture came first: whether it is "
            "encoded again is unseen"
        ),
        latencies(1.5, again=False),
        INCONCLUSIVE,
        BYTES,
    ),
    (
        "state-of-the-last-request",
        "0.5.23",
        "other-cause",
        (
            "T is answered wrongly right after W only: what is left of a request "
            "leaks into the next"
        ),
        both(
            answered_as(LATER[0], "gate: T alone"),
            answered_as(LATER[1], "gate: W alone"),
        ),
        DIFFERENT,
        BYTES,
    ),
    (
        "never-pushed-out",
        "0.5.23",
        "other-cause",
        (
            "the wrong answer to T outlives every other picture: it is no cache of "
            "that size"
        ),
        answered_as("T first", "T after W"),
        DIFFERENT,
        BYTES,
    ),
    (
        "prefix-cache-on",
        "0.5.23",
        "other-cause",
        "T's tokens came from the prefix cache, which is on",
        asked("T after W", "W after T", cached_tokens=53),
        DIFFERENT,
        BYTES,
    ),
    (
        "two-hashes",
        "0.5.23",
        "other-release",
        (
            "the engine's own code is of a release that hashes the grid, and gives "
            "two hashes"
        ),
        facts(hashes_equal=False, hash_t="0c1674aeeda337ff"),
        DIFFERENT,
    ),
    *EITHER,
    (
        "torn-usage",
        "0.5.6",
        "torn-sample",
        (
            "the server's counter could not be read: that nothing came from the "
            "prefix cache is unseen"
        ),
        measured(cached_tokens_total=None),
        INCONCLUSIVE,
        BYTES,
    ),
]


IMPOSTERS = [
    *listed("shape-alias-kv-cache", KV),
    *listed("shape-alias-embedding-cache", EMBEDDING),
]
