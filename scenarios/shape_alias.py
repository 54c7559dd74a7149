"""SGLang: one buffer of pixels in two layouts is one picture to its caches.

The hash covers the bytes of the preprocessed pixels and not their grid. Eight tiles laid out 2 x 4
and 4 x 2 give the same bytes. Two caches go by that hash, each a variant: the prefix cache (KV)
and the cache of vision embeddings.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, Exhibit, Reference, SymptomRow
from mmrepro.models import TinyQwen2VL
from mmrepro.scenario import Mitigation, RunFacts, Scenario, SourceRef, with_variants
from mmrepro.scenarios import prefix_sharing as sharing
from mmrepro.scenarios.prefix_sharing import cached, claim, first_difference, one
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.pictures import Picture

REPRODUCER = "shape_alias.py"
TILE = 28
CACHE_VARIABLE = "SGLANG_VLM_CACHE_SIZE_MB"
ORDERS = (("W", "T"), ("T", "W"))
FILLS = 5
"""Pictures of 1024 tokens that fill the embedding cache of 1 MiB: 256 KiB each (128 x bfloat16)."""
SOURCE = "analysis"


def tiles(name: str, rows: int, columns: int, seed: int = 7) -> Picture:
    """Eight tiles of 28 x 28 pixels, each of four colours, in so many rows and columns.

    A tile is what Qwen2-VL's processor takes at a time, row by row of tiles, so that the order of
    the preprocessed pixels is that of the tiles, whatever their layout.
    """
    import numpy as np
    from PIL import Image

    cells = np.random.default_rng(seed).integers(0, 256, (8, 2, 2, 3), dtype=np.uint8)
    made = cells.repeat(TILE // 2, axis=1).repeat(TILE // 2, axis=2)
    grid = made.reshape(rows, columns, TILE, TILE, 3).transpose(0, 2, 1, 3, 4)
    width, height = columns * TILE, rows * TILE
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(grid.reshape(height, width, 3))).save(buffer, "PNG")
    return Picture(name, buffer.getvalue(), width, height)


PICTURES = {
    "W": tiles("W", 2, 4),
    "T": tiles("T", 4, 2),
    "control": tiles("control", 4, 2, seed=8),
}


def victim_label(first: str, second: str) -> str:
    return f"{second} after {first}"


class ShapeAlias(Scenario):
    """What both variants share; ``between`` is what makes answers independent of each other."""

    name = "shape-alias"
    engine = "sglang"
    release = "0.5.23"
    affected = ">=0.5.3"
    max_model_len = 4096
    model = TinyQwen2VL(image_tokens=1024)
    reproducers = (REPRODUCER,)
    sources = (
        SourceRef(
            file="sglang/srt/managers/mm_utils.py",
            qualname="tensor_hash",
            note="the values' bytes, and nothing of their shape or of the picture's grid",
            highlight=("reshape(-1)", "flatten()", "hasher.update", "tobytes()"),
        ),
        SourceRef(
            file="sglang/srt/managers/mm_utils.py",
            qualname="hash_feature",
            note="what is hashed",
            highlight=("tensor_hash([f])",),
        ),
    )
    references = (
        Reference(
            id="sglang#8342",
            title="Security Vulnerability Report Structure for SGLang Hash Function "
            "Vulnerabilities",
            url="https://github.com/sgl-project/sglang/issues/8342",
            note="other weaknesses of the same hash; the missing shape was found here",
        ),
    )

    prefix_cached = True
    """Whether an answer may be computed on a cached prefix, which may round in another way."""

    async def between(self, drive: Drive) -> None:
        raise NotImplementedError

    async def gate(self, drive: Drive) -> None:
        for name, picture in PICTURES.items():
            drive.attach(f"{name}.png", picture.png)
        drive.reproducer_env["MMREPRO_PAIR"] = str(drive.recorder.dir)
        if drive.model is not None:
            drive.reproducer_env["MMREPRO_MODEL"] = str(drive.model)
        await sharing.ask(drive, "gate: warm-up", drive.picture("warm-up", 10, (56, 56)))
        for name, picture in PICTURES.items():
            await self.between(drive)
            await sharing.ask(drive, f"gate: {name} alone", picture)
            await sharing.ask(drive, f"gate: {name} again", picture)
            if self.prefix_cached:
                await self.between(drive)
                await sharing.ask(drive, "gate: another picture", tiles("other", 4, 2, seed=11))
                await sharing.ask(drive, f"gate: {name} after others", picture)
        await sharing.read_counters(drive)

    async def trigger(self, drive: Drive) -> None:
        for first, second in ORDERS:
            await self.between(drive)
            await sharing.ask(drive, f"{first} first", PICTURES[first])
            await sharing.ask(drive, victim_label(first, second), PICTURES[second])
            await sharing.ask(drive, f"control after {first}", PICTURES["control"])
        await sharing.read_counters(drive)

    def gate_check(self, evidence: Evidence) -> Finding:
        for record in evidence.requests_in("gate"):
            if record.label != sharing.FLUSH and not record.answered:
                return Finding.of(False, f"{record.label}: {record.error or record.status}")
        return sharing.different_answers(evidence, *PICTURES)

    def conditions(self, facts: RunFacts) -> list[Condition]:
        found = [
            Condition(
                "t-after-w",
                "symptom",
                "T, sent after W, is not answered as T alone",
                lambda e: wrong_answer(e, "W", "T"),
            ),
            Condition(
                "w-after-t",
                "symptom",
                "and the other way round: W, sent after T, is not answered as W alone",
                lambda e: wrong_answer(e, "T", "W"),
            ),
            Condition(
                "control",
                "symptom",
                "other tiles in T's layout get their own answer, after W and after T",
                control_is_right,
            ),
            Condition(
                "one-hash",
                "cause",
                "the engine's own code gives both layouts one hash, and different grids",
                one_hash,
            ),
            *self.cache_conditions(),
        ]
        return [*found, *sharing.stub_conditions(facts)]

    def cache_conditions(self) -> list[Condition]:
        """Which cache it was."""
        raise NotImplementedError

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        control = control_is_right(evidence)
        if control.truth is not Truth.MET:
            return control
        for order in ORDERS:
            found = wrong_answer(evidence, *order)
            if found.truth is not Truth.NOT_MET:
                return Finding.unknown(found.observed)
        return Finding.of(True, "both layouts and the control get their own answers")

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        return list(_rows(evidence))

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        wrong = wrong_answer(evidence, "W", "T")
        alive = wrong if not facts.mitigations else Finding.unknown("mitigated in this run")
        return [
            claim("bytes-only", "the hash covers bytes and not shape", one_hash(evidence), SOURCE),
            claim("one-entry", "one buffer in two layouts is one cache entry", wrong, SOURCE),
            claim("alive", "alive in 0.5.23", alive, SOURCE)
            if facts.release == "0.5.23"
            else claim(
                "alive",
                "alive in 0.5.23",
                Finding.unknown(f"this run is of {facts.release}; mmrepro run {self.name}"),
                SOURCE,
            ),
        ]

    def exhibits(self, evidence: Evidence, facts: RunFacts) -> list[Exhibit]:
        columns = (
            ("W alone", "W", "gate: W alone"),
            ("T alone", "T", "gate: T alone"),
            ("T after W", "T", victim_label("W", "T")),
            ("control after W", "control", "control after W"),
        )
        return [
            Exhibit(
                title="One buffer, two layouts",
                note="The same eight tiles in the same order, 2 x 4 and 4 x 2. The model has "
                "random weights: an answer is not sense, but it is the picture's own.",
                shown=[
                    sharing.shown(
                        caption,
                        PICTURES[name].png,
                        f"{name}.png",
                        evidence,
                        one(evidence, label),
                        one(evidence, f"gate: {name} alone"),
                    )
                    for caption, name, label in columns
                ],
            )
        ]


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
        Mitigation(
            name="disable-radix-cache",
            description="no prefix cache at all (the embedding cache, off here, has the same hash)",
            server_args=("--disable-radix-cache",),
        ),
    )

    async def between(self, drive: Drive) -> None:
        await sharing.flush(drive)

    def cache_conditions(self) -> list[Condition]:
        return [
            Condition(
                "kv-reused",
                "cause",
                "the wrong answers took more from the prefix cache than the control did",
                kv_reused,
            )
        ]


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
    server = shlex.join(("--disable-radix-cache",))
    server_env = {CACHE_VARIABLE: "1"}
    mitigations = (
        Mitigation(
            name="disable-embedding-cache",
            description="`SGLANG_VLM_CACHE_SIZE_MB=0` (every picture is encoded anew)",
            env={CACHE_VARIABLE: "0"},
        ),
    )

    async def between(self, drive: Drive) -> None:
        drive.fact("embedding_cache_off", "disable-embedding-cache" in drive.mitigations)
        for number in range(FILLS):
            picture = drive.picture(f"fill-{number}", 100 + number, (896, 896))
            await drive.chat(f"fill-{number}", text="hi", images=[picture], max_tokens=1)

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        """Also: one hash, a cache that is on, and no alias would mean that nothing was evicted
        between the measurements, and that the own answers of the gate were none."""
        healthy = super().healthy_after(evidence, facts)
        same_hash = one_hash(evidence).truth is not Truth.NOT_MET
        if (
            healthy.truth is Truth.MET
            and same_hash
            and evidence.facts.get("embedding_cache_off") is not True
        ):
            return Finding.unknown("the cache is on and has one entry for both: was it emptied?")
        return healthy

    def cache_conditions(self) -> list[Condition]:
        return [
            Condition(
                "no-kv-reused",
                "cause",
                "nothing came from the prefix cache: it is off",
                no_kv_reused,
            )
        ]


# ------------------------------------------------------------------ findings


def wrong_answer(evidence: Evidence, first: str, second: str) -> Finding:
    """``second``, sent after ``first``, gets an answer that it did not get in the gate."""
    record = one(evidence, victim_label(first, second))
    owns = sharing.own_answers(evidence, second)
    if record is None or not owns:
        return Finding.unknown(f"{victim_label(first, second)} was not answered")
    if sharing.is_any(record, owns):
        return Finding.of(False, f"{record.label}: {second}'s own answer")
    whose = (
        f"{first}'s answer"
        if sharing.is_any(record, sharing.own_answers(evidence, first))
        else f"neither {first}'s nor {second}'s answer"
    )
    return Finding.of(
        True, f"{record.label}: {whose}; from its own: {first_difference(record, owns[0])}"
    )


def control_is_right(evidence: Evidence) -> Finding:
    told = []
    for first in ("W", "T"):
        record = one(evidence, f"control after {first}")
        owns = sharing.own_answers(evidence, "control")
        if record is None or not owns:
            return Finding.unknown(f"the control after {first} was not answered")
        if not sharing.is_any(record, owns):
            return Finding.of(False, f"the control after {first} does not get its own answer")
        told.append(record.label)
    return Finding.of(True, f"{', '.join(told)}: its own answer")


def one_hash(evidence: Evidence) -> Finding:
    result = evidence.reproducer(REPRODUCER)
    if result is None or result.exit_code != 0:
        why = "was not run" if result is None else f"failed: {result.error[-200:]}"
        return Finding.unknown(f"the reproducer {why}")
    facts = result.facts
    text = (
        f"W: grid {facts.get('grid_w')}, hash {facts.get('hash_w')}; "
        f"T: grid {facts.get('grid_t')}, hash {facts.get('hash_t')}"
    )
    met = facts.get("hashes_equal") is True and facts.get("grids_differ") is True
    return Finding.of(met, text, f"{REPRODUCER}.json")


def _shared(evidence: Evidence) -> list[tuple[RequestRecord, int]] | Finding:
    """Each victim and the control after the same picture, with what came from the cache."""
    found = []
    for first, second in ORDERS:
        for label in (victim_label(first, second), f"control after {first}"):
            record = one(evidence, label)
            number = None if record is None else cached(evidence, record)
            if record is None or number is None:
                return Finding.unknown(f"{label}: what came from the cache is unknown")
            found.append((record, number))
    return found


def kv_reused(evidence: Evidence) -> Finding:
    shared = _shared(evidence)
    if isinstance(shared, Finding):
        return shared
    text = "; ".join(f"{r.label}: {n} of {r.prompt_tokens}" for r, n in shared)
    pairs = zip(shared[::2], shared[1::2], strict=True)
    return Finding.of(all(victim[1] > control[1] for victim, control in pairs), text)


def no_kv_reused(evidence: Evidence) -> Finding:
    shared = _shared(evidence)
    if isinstance(shared, Finding):
        return shared
    text = "; ".join(f"{r.label}: {n} of {r.prompt_tokens}" for r, n in shared)
    return Finding.of(not any(n for _, n in shared), text)


def _rows(evidence: Evidence) -> Iterator[SymptomRow]:
    for first, second in ORDERS:
        found = wrong_answer(evidence, first, second)
        owns = sharing.own_answers(evidence, second)
        yield SymptomRow(
            check=f"{second} after {first}, same text",
            healthy=sharing.answer(owns[0]) if owns else "",
            observed=found.observed,
            abnormal=None if found.truth is Truth.UNKNOWN else found.truth is Truth.MET,
        )
    green = checks.endpoints_green(evidence)
    yield SymptomRow(
        check="/health, /health_generate, /v1/models",
        healthy="200",
        observed=green.observed,
        abnormal=None if green.truth is Truth.UNKNOWN else green.truth is not Truth.MET,
    )


SCENARIO = with_variants(KvCache(), EmbeddingCache())
