"""SGLang: one buffer of pixels in two layouts is one picture to its caches.

The hash covers the bytes of the preprocessed pixels and not their grid. Eight tiles laid out 2 x 4
and 4 x 2 give the same bytes. Two caches go by that hash, each a variant: the prefix cache (KV)
and the cache of vision embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmrepro.scenario import (
    ComparedAnswers,
    Drive,
    Evidence,
    Finding,
    Mitigation,
    Picture,
    Reproducers,
    TinyQwen2VL,
    Truth,
    all_met,
    cause,
    checks,
    claim,
    cure,
    issue,
    quote,
    row,
    symptom,
    tiles,
    unmitigated,
    with_variants,
)
from mmrepro.scenario.sglang import CONTROL, PictureAlias, own_answer

REPRODUCER = "shape_alias.py"
CACHE_VARIABLE = "SGLANG_VLM_CACHE_SIZE_MB"
FILLS = 5
"""Pictures of 1024 tokens that fill the embedding cache of 1 MiB: 256 KiB each (128 x bfloat16)."""
ANALYSIS = "analysis"
SHARED = ("T after W", "control after W", "W after T", "control after T")


def told_apart(answers: ComparedAnswers) -> Finding:
    """Else unknown: one wrong answer by itself is neither the symptom nor another failure."""
    own = all_met(answers.own("W", "T"), answers.own("T", "W"))
    return own if own.truth is Truth.MET else Finding.unknown(own.observed)


def was_emptied(evidence: Evidence, reproducers: Reproducers) -> Finding:
    """One hash, a cache that is on, and no alias would mean that nothing was evicted between
    the measurements, and that the own answers of the gate were none."""
    if evidence.facts.get("embedding_cache_off") is True:
        return Finding.of(True, "the embedding cache is off")
    if not reproducers.truth(REPRODUCER, "hashes_equal"):
        return Finding.of(True, "the two layouts have two hashes")
    return Finding.unknown("the cache is on and has one entry for both: was it emptied?")


class ShapeAlias(PictureAlias):
    """What both variants share; ``between`` is what makes answers independent of each other."""

    name, release, affected = "shape-alias", "0.5.23", ">=0.5.3"
    model = TinyQwen2VL(image_tokens=1024)
    pair = ("W", "T")
    reproducers = (REPRODUCER,)
    sources = (
        quote(
            "sglang/srt/managers/mm_utils.py",
            "tensor_hash",
            "the values' bytes, and nothing of their shape or of the picture's grid",
            *("reshape(-1)", "flatten()", "hasher.update", "tobytes()"),
        ),
        quote(
            "sglang/srt/managers/mm_utils.py", "hash_feature", "what is hashed", "tensor_hash([f])"
        ),
    )
    references = (
        issue(
            "sglang#8342",
            "Security Vulnerability Report Structure for SGLang Hash Function Vulnerabilities",
            "other weaknesses of the same hash; the missing shape was found here",
        ),
    )
    exhibit = ("One buffer, two layouts", "The same eight tiles in the same order: 2 x 4, 4 x 2.")

    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        return {
            "W": tiles("W", 2, 4, 7),
            "T": tiles("T", 4, 2, 7),
            CONTROL: tiles(CONTROL, 4, 2, 8),
        }

    @symptom("T, sent after W, is not answered as T alone")
    def t_after_w(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("W", "T")
        return Finding.of(whose != "T", text)

    @symptom("and the other way round: W, sent after T, is not answered as W alone")
    def w_after_t(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("T", "W")
        return Finding.of(whose != "W", text)

    @symptom("other tiles in T's layout get their own answer, after W and after T", id=CONTROL)
    def control_gets_its_own(self, answers: ComparedAnswers) -> Finding:
        return all_met(answers.own("W", CONTROL), answers.own("T", CONTROL))

    @cause("the engine's own code gives both layouts one hash, and different grids")
    def one_hash(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(REPRODUCER)
        text = (
            f"W: grid {facts.get('grid_w')}, hash {facts.get('hash_w')}; "
            f"T: grid {facts.get('grid_t')}, hash {facts.get('hash_t')}"
        )
        met = facts.get("hashes_equal") is True and facts.get("grids_differ") is True
        return Finding.of(met, text)

    rows = (
        row("T after W, same text", "t-after-w", own_answer("T")),
        row("W after T, same text", "w-after-t", own_answer("W")),
        row(
            "/health, /health_generate, /v1/models",
            checks.endpoints_green,
            "200",
            abnormal_if=False,
        ),
    )
    claims = (
        claim("bytes-only", "the hash covers bytes and not shape", ANALYSIS, by="one-hash"),
        claim(
            "one-entry", "one buffer in two layouts is one cache entry", ANALYSIS, by="t-after-w"
        ),
        claim(
            "alive",
            "alive in 0.5.23",
            ANALYSIS,
            by="t-after-w",
            releases="==0.5.23",
            given=unmitigated,
        ),
    )


class KvCache(ShapeAlias):
    """SGLang's prefix cache takes one picture for another of another shape.

    What: Two pictures of the same tiles in the same order, 56 x 112 and 112 x 56 pixels, share
    KV cache, although they look different and have different grids: the second is answered with
    the first one's tokens from the cache. No search is needed to find such a pair.

    Why: SGLang hashes the bytes of the preprocessed pixels (`tensor_hash`), and neither their
    shape nor the grid that says how patches lie in the picture. The pad value, or from 0.5.23
    on the wide pad values, follow from that hash alone, and the prefix cache matches on them.
    Wider hashes do not help: the hashed bytes are equal.
    """

    variant = "kv-cache"
    server_env = {CACHE_VARIABLE: "0"}
    mitigations = (
        cure(
            "disable-radix-cache",
            "--disable-radix-cache",
            "no prefix cache at all (the embedding cache, off here, has the same hash)",
        ),
    )

    @cause("the wrong answers took more from the prefix cache than the control did")
    def kv_reused(self, answers: ComparedAnswers) -> Finding:
        cached = [answers.cached(label) for label in SHARED]
        more = cached[0] > cached[1] and cached[2] > cached[3]
        return Finding.of(more, answers.from_cache(*SHARED))

    works_after = (CONTROL, told_apart)


class EmbeddingCache(ShapeAlias):
    """SGLang's vision embedding cache serves a picture of another shape.

    What: With the prefix cache off, two pictures of the same tiles in another layout still
    share one entry of the cache of vision embeddings: the second is answered from features that
    were computed for the first one's grid.

    Why: The cache of vision embeddings (100 MB by default, `SGLANG_VLM_CACHE_SIZE_MB`) goes by
    the same hash of the bytes alone. The features depend on the grid: the vision tower's rotary
    positions are rows and columns. `/flush_cache` does not empty this cache. Here it is 1 MB,
    and other pictures push the entries out between the measurements.
    """

    variant = "embedding-cache"
    prefix_cached = False
    server = "--disable-radix-cache"
    server_env = {CACHE_VARIABLE: "1"}
    mitigations = (
        Mitigation(
            name="disable-embedding-cache",
            description=f"`{CACHE_VARIABLE}=0` (every picture is encoded anew)",
            env={CACHE_VARIABLE: "0"},
        ),
    )

    async def between(self, drive: Drive) -> None:
        drive.fact("embedding_cache_off", "disable-embedding-cache" in drive.mitigations)
        for number in range(FILLS):
            picture = drive.picture(f"fill-{number}", 100 + number, (896, 896))
            await drive.chat(f"fill-{number}", text="hi", images=[picture], max_tokens=1)

    @cause("nothing came from the prefix cache: it is off")
    def no_kv_reused(self, answers: ComparedAnswers) -> Finding:
        cached = [answers.cached(label) for label in SHARED]
        return Finding.of(not any(cached), answers.from_cache(*SHARED))

    works_after = (CONTROL, told_apart, was_emptied)


SCENARIO = with_variants(KvCache(), EmbeddingCache())
