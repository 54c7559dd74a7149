"""SGLang: one buffer of pixels in two layouts is one picture to its caches.

The hash covers the bytes of the preprocessed pixels and not their grid. Eight tiles
laid out 2 x 4 and 4 x 2 give the same bytes. Two caches go by that hash, each a
variant: the prefix cache (KV) and the cache of vision embeddings."""

from collections.abc import Mapping
from statistics import median

from mmrepro.base.records import FindingClass
from mmrepro.scenario import (
    Check,
    Claim,
    Drive,
    FailureClass,
    Finding,
    Reproducers,
    Requests,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    all_met,
    cause,
    claim,
    cure,
    issue,
    precondition,
    quote,
    row,
    sglang,
    symptom,
    unmitigated,
    with_variants,
)
from mmrepro.scenario.more import (
    ComparedAnswers,
    Failure,
    Mitigation,
    Picture,
    TinyQwen2VL,
    checks,
    happened,
    tiles,
)
from mmrepro.scenario.sglang import same_bytes
from mmrepro.scenario.silent import (
    PicturePair,
    every_picture,
    explained,
    may_show,
    pairs,
    whole_prompt,
)

_REPRODUCER = "shape_alias.py"
_CACHE_VARIABLE = "SGLANG_VLM_CACHE_SIZE_MB"
_FILLS = 5
"""Pictures of 1024 tokens that fill the embedding cache of 1 MiB: 256 KiB each (128 x
bfloat16)."""
FEW = 2
"""Of them, so many leave in the cache what was sent before them."""
_TWICE_AS_FAST, _AS_SLOW = 0.5, 0.8
"""Seconds of a picture that fills it, sent again, by those of the first time: its
cached features save the vision tower, most of the work (0.17 of it on two cores;
without the cache 1.0)."""
_LEAST_PAIRS = 10
_ANALYSIS = "analysis"
_TEXT_ALONE = "gate: W after others"
"""It shares with the picture before it only the text before both."""
_SHARED = ("T after W", "control after W", "W after T", "control after T")


def _told_apart(answers: ComparedAnswers) -> Finding:
    """Else unknown: one wrong answer by itself is neither the symptom nor another
    failure."""
    own = all_met(answers.own("W", "T"), answers.own("T", "W"))
    return own if own.truth is Truth.MET else Finding.unknown(own.observed)


def was_emptied(requests: Requests, reproducers: Reproducers) -> Finding:
    """One hash, a cache that is on, and no alias would mean that nothing was evicted
    between the measurements, and that the own answers of the gate were none."""
    again = encoded_once(requests)
    if again.truth is Truth.NOT_MET:
        return Finding.of(True, f"the embedding cache is off: {again.observed}")
    if not reproducers.truth(_REPRODUCER, "hashes_equal"):
        return Finding.of(True, "the two layouts have two hashes")
    return Finding.unknown(f"one hash, and {again.observed}: was the cache emptied?")


def encoded_once(requests: Requests) -> Finding:
    """Whether a picture that is sent again is not encoded again: the embedding cache is
    on."""
    first: list[float] = []
    again: list[float] = []
    for number in range(_FILLS):
        for request in requests.all(f"fill-{number}"):
            if not request.answered:
                continue
            times = again if request.label.endswith("again") else first
            times.append(request.latency_s)
    if min(len(first), len(again)) < _LEAST_PAIRS:
        return Finding.unknown(f"{len(again)} pictures were sent again")

    share = median(again) / median(first)
    text = f"a picture takes {median(first):.2f} s, sent again {share:.2f} of that"
    if _TWICE_AS_FAST < share < _AS_SLOW:
        return Finding.unknown(text)
    return Finding.of(share <= _TWICE_AS_FAST, text)


def embeddings_kept(answers: ComparedAnswers) -> Finding:
    """The alias outlives other pictures as long as they leave room, and no longer."""
    observed = []
    for first, second in (("W", "T"), ("T", "W")):
        at_once, later = f"{second} after {first}", f"{second} after {first} and others"
        whose, text = answers.after(first, second)
        kept = answers.alike(at_once, later)
        emptied = answers.whose(f"{second} first", second) == second
        observed.append(
            f"{text}; {FEW} other pictures in between: "
            f"{'the same' if kept else 'another answer'}; "
            f"{_FILLS}: {'its own' if emptied else 'not its own'}"
        )
        if whose == second or not kept or not emptied:
            return Finding.of(False, observed[-1])
    return Finding.of(True, "; ".join(observed))


def _aliased(failure: Failure, found: Mapping[str, list[PicturePair]]) -> Finding:
    """Whether each wrong answer has a picture that is another one's bytes on another
    grid."""
    model = failure.case.server.model
    what = "the same bytes after preprocessing, on another grid"
    return explained(found, lambda pair: same_bytes(pair, model), what)


def _alias_claims(
    *shown: str | Check, given: tuple[str, ...] = ()
) -> tuple[Claim, ...]:
    """``shown``: what is seen of the cache that took the one for the other."""
    known: tuple[str | Check, ...] = (
        "same-bytes",
        "starts-anew",
        "cache-on",
        sglang.engines_own,
        *given,
    )
    by: tuple[str | Check, ...] = ("one-hash", *shown, "t-after-w", "w-after-t")
    entry = "one buffer in two layouts is one cache entry"
    return (
        claim(
            "bytes-only",
            "the hash covers bytes and not shape",
            _ANALYSIS,
            by="one-hash",
            given="same-bytes",
        ),
        claim("one-entry", entry, _ANALYSIS, by=by, given=known),
        claim(
            "alive",
            "alive in 0.5.23",
            _ANALYSIS,
            by=by,
            releases="==0.5.23",
            given=(unmitigated, *known),
        ),
    )


class ShapeAlias(sglang.PictureAlias):
    """What both variants share; ``between`` is what makes answers independent of each
    other."""

    # Run: 0.5.6, 0.5.17 and 0.5.23. By source only: 0.4.6 is the first that hashes the
    # values of the pixels (managers/schedule_batch.py, set_pad_value, by x.flatten());
    # 0.4.5 hashes the tensor object, which is like no other.
    name, release, affected = "shape-alias", "0.5.23", ">=0.4.6"
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    needs = ("images",)
    upstream = Upstream(
        UpstreamState.CLOSED,
        issue(
            "sglang#25462",
            "Multimodal cache hash collisions",
            "names the missing shape",
        ),
        "2026-11-24",
        note="as inactive; its pull request, sglang#22033, closed as well",
    )
    model = TinyQwen2VL(image_tokens=1024)
    pair = ("W", "T")
    reproducers = (_REPRODUCER,)
    sources = (
        quote(
            "sglang/srt/managers/mm_utils.py",
            "tensor_hash",
            "the values' bytes, and nothing of their shape or of the picture's grid",
            "reshape(-1)",
            "flatten()",
            "hasher.update",
            "tobytes()",
        ),
        quote(
            "sglang/srt/managers/mm_utils.py",
            "hash_feature",
            "what is hashed",
            "tensor_hash([f])",
        ),
    )
    references = (
        issue(
            "sglang#8342",
            (
                "Security Vulnerability Report Structure for SGLang Hash Function "
                "Vulnerabilities"
            ),
            "other weaknesses of the same hash; the missing shape was found here",
        ),
    )
    exhibit = (
        "One buffer, two layouts",
        "The same eight tiles in the same order: 2 x 4, 4 x 2.",
    )

    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        return {
            "W": tiles("W", 2, 4, 7),
            "T": tiles("T", 4, 2, 7),
            sglang.CONTROL: tiles(sglang.CONTROL, 4, 2, 8),
        }

    @precondition("both layouts are the same bytes, on two grids")
    def same_bytes(self, reproducers: Reproducers) -> Finding:
        same, differ = (
            reproducers.truth(_REPRODUCER, f) for f in ("bytes_equal", "grids_differ")
        )
        text = (
            f"{'the same' if same else 'other'} bytes, "
            f"{'two grids' if differ else 'one grid'}"
        )
        return Finding.of(same and differ, text)

    @symptom("T, sent after W, is not answered as T alone")
    def t_after_w(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("W", "T")
        return Finding.of(whose != "T", text)

    @symptom("and the other way round: W, sent after T, is not answered as W alone")
    def w_after_t(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("T", "W")
        return Finding.of(whose != "W", text)

    @symptom(
        "other tiles in T's layout get their own answer, after W and after T",
        id=sglang.CONTROL,
    )
    def control_gets_its_own(self, answers: ComparedAnswers) -> Finding:
        return all_met(
            answers.own("W", sglang.CONTROL), answers.own("T", sglang.CONTROL)
        )

    @cause("the engine's own code gives both layouts one hash, and different grids")
    def one_hash(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(_REPRODUCER)
        text = (
            f"W: grid {facts.get('grid_w')}, hash {facts.get('hash_w')}; "
            f"T: grid {facts.get('grid_t')}, hash {facts.get('hash_t')}"
        )
        equal, differ = (
            reproducers.truth(_REPRODUCER, f) for f in ("hashes_equal", "grids_differ")
        )
        return Finding.of(equal and differ, text)

    rows = (
        row("T after W, same text", "t-after-w", sglang.own_answer("T")),
        row("W after T, same text", "w-after-t", sglang.own_answer("W")),
        row(
            "/health, /health_generate, /v1/models",
            checks.endpoints_green,
            "200",
            abnormal_if=False,
        ),
    )


class KvCache(ShapeAlias):
    """SGLang's prefix cache takes one picture for another of another shape.

    What: Two pictures of the same tiles in the same order, 56 x 112 and 112 x 56
    pixels, share KV cache, although they look different and have different grids: the
    second is answered with the first one's tokens from the cache. No search is needed
    to find such a pair.

    Why: SGLang hashes the bytes of the preprocessed pixels (`tensor_hash`), and neither
    their shape nor the grid that says how patches lie in the picture. The pad value, or
    from 0.5.23 on the wide pad values, follow from that hash alone, and the prefix
    cache matches on them. Wider hashes do not help: the hashed bytes are equal."""

    variant = "kv-cache"
    server_env = {_CACHE_VARIABLE: "0"}
    mitigations = (
        cure(
            sglang.OFF,
            f"--{sglang.OFF}",
            "no prefix cache at all (the embedding cache, off here, has the same hash)",
        ),
    )

    preconditions = sglang.prefix_cache_at_work(_TEXT_ALONE, "W", "T")

    @cause("the wrong answers took the picture's tokens from the prefix cache")
    def kv_reused(self, answers: ComparedAnswers) -> Finding:
        return answers.more_than_text(_TEXT_ALONE, *_SHARED[::2])

    def recognises(self, failure: Failure) -> Finding:
        able = may_show(self, failure)
        return (
            _aliased(failure, pairs(failure, whole_prompt))
            if able.truth is Truth.MET
            else able
        )

    works_after = (
        sglang.CONTROL,
        _told_apart,
        sglang.PictureAlias.off_as_told,
        sglang.engines_own,
    )
    claims = _alias_claims("kv-reused", given=("text-shared",))


class EmbeddingCache(ShapeAlias):
    """SGLang's vision embedding cache serves a picture of another shape.

    What: With the prefix cache off, two pictures of the same tiles in another layout
    still share one entry of the cache of vision embeddings: the second is answered from
    features that were computed for the first one's grid.

    Why: The cache of vision embeddings (100 MB by default, `SGLANG_VLM_CACHE_SIZE_MB`)
    goes by the same hash of the bytes alone. The features depend on the grid: the
    vision tower's rotary positions are rows and columns. `/flush_cache` does not empty
    this cache. Here it is 1 MB, and other pictures push the entries out between the
    measurements."""

    variant = "embedding-cache"
    affected = (
        ">=0.4.7"  # by source as well: 0.4.6 has no such cache (managers/mm_utils.py)
    )
    prefix_cached = False
    server = f"--{sglang.OFF}"
    server_env = {_CACHE_VARIABLE: "1"}
    mitigations = (
        Mitigation(
            name="disable-embedding-cache",
            description=f"`{_CACHE_VARIABLE}=0` (every picture is encoded anew)",
            env={_CACHE_VARIABLE: "0"},
        ),
    )

    async def between(self, drive: Drive) -> None:
        await self.fill(drive, _FILLS)

    async def fill(self, drive: Drive, number: int) -> None:
        """Each picture twice, one after the other: it is encoded once where there is a
        cache."""
        for index in range(number):
            name = f"fill-{index}"
            picture = drive.picture(name, 100 + index, (896, 896))
            for label in (name, f"{name} again"):
                await drive.chat(label, text="hi", images=[picture], max_tokens=1)

    async def trigger(self, drive: Drive) -> None:
        pictures = self.pictures(drive)
        for first, second in self.orders:
            await self.between(drive)
            await self.ask(drive, f"{first} before others", pictures[first])
            await self.fill(drive, FEW)
            await self.ask(
                drive, f"{second} after {first} and others", pictures[second]
            )
        await super().trigger(drive)

    @precondition(
        (
            "the cache of embeddings is at work: it serves an alias, or a picture "
            "that is sent again"
        ),
        removed_by=("disable-embedding-cache",),
    )
    def cache_on(self, answers: ComparedAnswers) -> Finding:
        kept = embeddings_kept(answers)
        return kept if kept.truth is Truth.MET else encoded_once(answers)

    causes = (
        cause(
            f"the alias outlives {FEW} other pictures, and {_FILLS}, as many as fill "
            "the cache of embeddings, push it out",
            embeddings_kept,
        ),
    )

    @cause("nothing came from the prefix cache: it is off")
    def no_kv_reused(self, answers: ComparedAnswers) -> Finding:
        cached = [answers.cached(label) for label in _SHARED]
        return Finding.of(not any(cached), answers.from_cache(*_SHARED))

    def recognises(self, failure: Failure) -> Finding:
        """Features are kept whatever stands before a picture."""
        if failure.finding_class is FindingClass.CACHE_BOUND:
            return Finding.of(
                False, "of this cache no answer tells how much came from it"
            )
        if failure.case.server.env.get(_CACHE_VARIABLE) == "0":
            return Finding.of(False, f"the server runs with {_CACHE_VARIABLE}=0")
        able = may_show(self, failure)
        return (
            _aliased(failure, every_picture(failure))
            if able.truth is Truth.MET
            else able
        )

    works_after = (sglang.CONTROL, _told_apart, was_emptied, sglang.engines_own)
    claims = _alias_claims(happened(embeddings_kept), given=("no-kv-reused",))


SCENARIO = with_variants(KvCache(), EmbeddingCache())
