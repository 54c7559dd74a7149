"""What the analysis of the pad value collision states, judged; its rows, and the
birthday curve."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmrepro.scenario import (
    Finding,
    Logs,
    Reproducers,
    RunFacts,
    Truth,
    all_met,
    claim,
    row,
    sglang,
    unmitigated,
)
from mmrepro.scenario.more import ComparedAnswers, changed

if TYPE_CHECKING:
    from mmrepro.scenario.more import Exhibit

REPRODUCER = "pad_value_collision.py"
_PADS = ("pad_of_0", "pad_of_2_30_less_1", "pad_of_2_30")
"""Its facts: the pad values of these hashes."""
BITS = 30
REPORTED_POOL = 46_000
PASSED_ON_SINCE = "0.5.11"
"""First release whose scheduler passes extra_key on to the request
(managers/scheduler.py:2001 of 0.5.11; 0.5.10 builds Req without it)."""
SALTS = {"cache-salt": "cache_salt", "extra-key": "extra_key"}
"""Mitigations that are fields of a request."""
FROM_HASH, FULL_HASH = sglang.PATCHED_KEYS
OVERFLOW = "hash-overflow"
"""In the log: a number that token ids, 64 bits with a sign, cannot hold."""


def pad_range(reproducers: Reproducers) -> Finding:
    facts = reproducers.facts(REPRODUCER)
    low, high, wraps = (facts.get(name) for name in _PADS)
    if None in (low, high, wraps):
        return Finding.unknown("the reproducer does not tell")
    space = "2^30 different ones" if wraps == low else "more than 2^30 different ones"
    text = (
        f"hash 0 gives {low}, hash 2^30 - 1 gives {high}, hash 2^30 gives "
        f"{wraps}: {space}"
    )
    return Finding.of(low == wraps == 0 and high == (1 << BITS) - 1, text)


def _as_released(facts: RunFacts) -> Finding:
    """What is patched says nothing of the engine's own pad values."""
    return Finding.of(FULL_HASH not in facts.mitigations, "the engine's own pad values")


def _modulo_2_30(reproducers: Reproducers) -> Finding:
    """2^30 different ones, wherever they begin: since 0.5.9 beyond the vocabulary."""
    low, high, wraps = (reproducers.number(REPRODUCER, name) for name in _PADS)
    text = (
        f"hash 0 gives {low:g}, hash 2^30 - 1 gives {high:.0f}, hash 2^30 "
        f"gives {wraps:g}"
    )
    return Finding.of(wraps == low and high - low == (1 << BITS) - 1, text)


def half_chance(reproducers: Reproducers) -> Finding:
    """Arithmetic, once the engine's own code has shown that there are 2^30 values."""
    facts = reproducers.facts(REPRODUCER)
    if facts.get("pad_of_2_30") is None or facts.get("pad_of_2_30") != facts.get(
        "pad_of_0"
    ):
        return Finding.unknown("this release has more than 2^30 pad values")
    from mmrepro.scenario.more import collision_probability, images_for

    half, there = images_for(0.5, BITS), collision_probability(REPORTED_POOL, BITS)
    text = f"50 % is reached at {half:,} images; {REPORTED_POOL:,} give {there:.1%}"
    return Finding.of(abs(there - 0.5) < 0.01, text)


def own_answers(answers: ComparedAnswers) -> Finding:
    """Each picture of the pair, and the control after each, gets its own answer."""
    orders = (("A", "B"), ("B", "A"), ("A", sglang.CONTROL), ("B", sglang.CONTROL))
    return all_met(*(answers.own(first, second) for first, second in orders))


def flushed_alone(logs: Logs) -> Finding:
    """Nobody else emptied the cache: what salts keep apart looks like what was
    flushed."""
    own = [
        r for r in logs.evidence.requests if r.label == sglang.FLUSH and r.status == 200
    ]
    count = logs.count("cache-flushed")
    return Finding.of(
        count == len(own), f"flushed {count} times, {len(own)} of them by the run"
    )


def isolated(
    answers: ComparedAnswers, reproducers: Reproducers, facts: RunFacts
) -> Finding:
    """The run that sends salts decides; the engine's cache alone is not the server.
    Unknown where each gets its own answer and shares the text all the same: no salt
    kept them apart then."""
    alone = reproducers.number(REPRODUCER, "match_b_after_a_other_key")
    victims = ("B after A", "A after B")
    text = (
        f"on {facts.release}: {answers.from_cache(*victims)} from the cache; the "
        f"radix cache by itself matches {alone} tokens under another key"
    )
    if answers.after("A", "B")[0] == "A" and answers.after("B", "A")[0] == "B":
        return Finding.of(False, text)
    apart = not any(answers.cached(label) for label in victims)
    own = all_met(answers.own("A", "B"), answers.own("B", "A"))
    return (
        Finding.of(True, text)
        if apart and own.truth is Truth.MET
        else Finding.unknown(text)
    )


def _whole_hash_serves(
    logs: Logs, answers: ComparedAnswers, reproducers: Reproducers
) -> Finding:
    """Each gets its own answer; half of all hashes do not fit what token ids are kept
    in."""
    if lines := logs.lines(OVERFLOW):
        hashes = [reproducers.hash(REPRODUCER, f"hash_{name}") for name in ("a", "b")]
        beyond = ", ".join(f"{value:#x}" for value in hashes if value >> 63)
        text = (
            f"a hash of 2^63 or more ({beyond}) ends the server: "
            f"{lines[0].text.strip()}"
        )
        return Finding.of(False, text)
    return own_answers(answers)


ANALYSIS = "analysis"
_SWAPPED = ("b-gets-a", "a-gets-b")
_SERVED = (*_SWAPPED, "silent", "kv-reused")
ALIKE = (
    "pair-agrees",
    "equal-pad-values",
    "starts-anew",
    "cache-on",
    sglang.engines_own,
)
"""Two pictures with one pad value were sent to a prefix cache that was seen at work."""
_SHARED = (*ALIKE, "text-shared")
"""And nothing keeps them apart in it."""

_stated = partial(claim, source=ANALYSIS)
CLAIMS = (
    _stated(
        "pad-range", "pad values lie in [0, 2^30)", by=pad_range, given=_as_released
    ),
    _stated(
        "half-chance",
        "about 46 000 images give a 50 % chance of a collision",
        by=half_chance,
    ),
    _stated(
        "kv-reused",
        "two pictures with one pad value share KV cache",
        by="kv-reused",
        given=_SHARED,
    ),
    _stated(
        "a-features",
        "B is answered with A's features",
        by=_SWAPPED,
        given=(*_SHARED, "kv-reused"),
    ),
    _stated(
        "embeddings",
        "the embeddings are still replaced correctly, so it does not crash",
        by=_SERVED,
        given=(*ALIKE, *_SERVED),
        otherwise="no collision was served in this run",
        refuted=True,
    ),
    _stated(
        "extra-key",
        "extra_key isolates completely",
        by=isolated,
        given=(changed(*SALTS), *ALIKE, flushed_alone),
        otherwise="to test: mmrepro run pad-value-collision --mitigation cache-salt",
        note=f"the scheduler passes the key on since {PASSED_ON_SINCE}",
    ),
    _stated(
        "key-from-hash",
        "an extra_key of the pictures' whole hashes keeps them apart",
        by=(own_answers, sglang.patch_worked),
        given=(changed(FROM_HASH), *ALIKE, flushed_alone),
        otherwise=f"to test: mmrepro run pad-value-collision --mitigation {FROM_HASH}",
    ),
    _stated(
        "full-hash",
        "the whole 64-bit hash in place of the remainder keeps them apart",
        by=_whole_hash_serves,
        given=(changed(FULL_HASH), "pair-agrees", sglang.patch_worked),
        otherwise=f"to test: mmrepro run pad-value-collision --mitigation {FULL_HASH}",
    ),
    claim(
        "widened-2256",
        (
            "since sglang#2256 and #2309 it is taken modulo 2^30, not modulo the "
            "vocabulary's size"
        ),
        "history",
        by=_modulo_2_30,
        given=unmitigated,
        refutable_on="<0.5.23",
        note=(
            "both are of 2024, and in every release that can be run here; the "
            "collision is there"
        ),
    ),
)

_OTHERS = "answered with the features of the other picture"
ROWS = (
    row("B after A, same text", "b-gets-a", sglang.own_answer("B"), _OTHERS),
    row("A after B, same text", "a-gets-b", sglang.own_answer("A"), _OTHERS),
    row("prompt tokens from the cache", "kv-reused", "the text before"),
    row("control picture after A, after B", "control", "its own", abnormal_if=False),
    row("HTTP status after the other picture", "silent", "200", abnormal_if=False),
)


def curve() -> Exhibit:
    from mmrepro.scenario.more import Birthday, Exhibit, Pool, images_for

    pools = {
        images_for(0.5, BITS): "one half",
        REPORTED_POOL: "the analysis' 50 %",
        10_000: "a shop's catalogue",
        100_000: "a day of a busy service",
    }
    return Exhibit(
        title="How soon two of many pictures collide",
        note="Pictures that one server's prefix cache holds at a time, 30 bits each.",
        birthday=Birthday(
            bits=BITS, pools=[Pool(images=n, label=t) for n, t in pools.items()]
        ),
    )
